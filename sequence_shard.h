// Which tokens of a sequence a rank holds, in causal balance (LoongTrain figure 3b).
//
// cp = 1: HP rank h holds positions [h T, (h+1) T).
// cp > 1: the padded sequence is cut in 2 cp chunks of C = T hp / 2; CP rank c's rows are chunk c, then chunk 2 cp - 1 - c; HP rank h holds
//         the h-th slice of T of these rows.
//
// Packed documents, cp > 1: a token attends to its own document alone, so these chunks would not be balanced. (With documents of 20 to
// 2020 tokens and cp 8 the busiest rank would have 1.5 times the mean to do, test_dataloader.) So the sequence is cut into segments of
// whole documents: a long document is one, and so are the shorter ones between two long ones. Each segment is cut into 2 cp chunks of
// its own, and a CP rank's rows are its two chunks of the first segment, then those of the second, and so on. A segment is padded at
// its end to a multiple of 2 cp; rows that are left over are a last segment without tokens. Segments begin at the same row on every
// rank, and none sees another.
#ifndef SEQUENCE_SHARD_H
#define SEQUENCE_SHARD_H

#include "common.h"

typedef struct {
    int64_t position, row; // of its first token in the sequence; its first row on every CP rank
} sequence_segment;

typedef struct {
    int64_t S, S_padded, T; // tokens of the sequence; with padding; local rows = S_padded / (hp cp)
    int hp, cp, h, c;       // degrees, and this rank's place
    int64_t long_document;  // tokens from which on a packed document is a segment; 0: sequences have one segment
    const sequence_segment *segments; // of a sequence, ascending, and after the last one {S, hp T}; NULL: one segment
} sequence_shard;

// S >= 1. Pads as little as possible to make T a multiple of `multiple` (>= 1), and with cp > 1 also the T hp / 2 rows of a chunk.
static inline sequence_shard sequence_shard_make(int64_t S, int hp, int cp, int h, int c, int64_t multiple) {
    if (cp > 1 && hp % 2 != 0) multiple *= 2;
    int64_t T = round_up(ceil_div(S, (int64_t)hp * cp), multiple);
    return (sequence_shard){S, T * hp * cp, T, hp, cp, h, c, 0, NULL};
}
// The most segments of a sequence: each long document; what is before, between and after them; and one without tokens.
static inline int64_t sequence_shard_segments(const sequence_shard *s) {
    return s->long_document > 0 ? 2 * (s->S / s->long_document) + 2 : 1;
}
// The same for packed documents: room for the padding of as many segments as there can be. long_document >= 2 cp.
static inline sequence_shard sequence_shard_make_packed(int64_t S, int hp, int cp, int h, int c, int64_t multiple, int64_t long_document) {
    sequence_shard s = {.S = S, .long_document = cp > 1 && long_document <= S ? long_document : 0};
    sequence_shard padded = sequence_shard_make(S + (sequence_shard_segments(&s) - 1) * (2 * cp - 1), hp, cp, h, c, multiple);
    padded.S = S;
    padded.long_document = s.long_document;
    return padded;
}

// Consecutive positions in the rows of an HP group.
typedef struct {
    int64_t position, rows, end; // of its first row; how many; positions >= end are padding
} sequence_span;
// The span that begins with row `row` of the HP group, 0 <= row < hp T.
static inline sequence_span sequence_shard_span_at(const sequence_shard *s, int64_t row) {
    const sequence_segment whole[2] = {{0, 0}, {s->S, s->T * s->hp}}, *segment = s->segments != NULL ? s->segments : whole;
    if (s->cp == 1) return (sequence_span){row, whole[1].row - row, s->S};
    while (segment[1].row <= row) segment++;
    int64_t C = (segment[1].row - segment->row) / 2, at = row - segment->row;
    int64_t chunk = at < C ? s->c : 2 * s->cp - 1 - s->c;
    if (at >= C) at -= C;
    return (sequence_span){segment->position + chunk * C + at, C - at, segment[1].position};
}
// Position in the sequence of local row t, 0 <= t < T; that of padding is at or behind the end of its segment.
static inline int64_t sequence_shard_position(const sequence_shard *s, int64_t t) {
    return sequence_shard_span_at(s, s->h * s->T + t).position;
}
// Entries of model.batch_documents for a sequence: one for each row of attention, then one for the first row of each chunk of each segment.
static inline int64_t sequence_shard_entries(const sequence_shard *s) { return s->T * s->hp + 2 * s->cp * sequence_shard_segments(s); }
// The span that begins with entry e; of a chunk, its first row alone. Entries of segments that the sequence does not have: padding.
static inline sequence_span sequence_shard_entry(const sequence_shard *s, int64_t e) {
    int64_t Tc = s->T * s->hp;
    if (e < Tc) return sequence_shard_span_at(s, e);
    const sequence_segment whole[2] = {{0, 0}, {s->S, Tc}}, *segment = s->segments != NULL ? s->segments : whole;
    for (e -= Tc; e >= 2 * s->cp && segment->row < Tc; e -= 2 * s->cp) segment++;
    if (segment->row == Tc) return (sequence_span){s->S, 1, s->S};
    return (sequence_span){segment->position + e * ((segment[1].row - segment->row) / 2), 1, segment[1].position};
}

// ---- segments ----

// Makes a sequence's list of segments from its documents. Not for shards whose sequences have one segment.
typedef struct {
    const sequence_shard *shard;
    sequence_segment *list; // (sequence_shard_segments + 1), the caller's
    int64_t count;          // so far
    bool is_long;           // the newest is a long document
} segment_list;
static inline void segment_list_cut(segment_list *l, int64_t position) { // a segment begins here
    sequence_segment last = l->list[l->count - 1];
    l->list[l->count++] = (sequence_segment){position, last.row + 2 * ceil_div(position - last.position, 2 * l->shard->cp)};
}
// Documents come in order: [begin, end), from 0 to S. After the last one the list is complete.
static inline void segment_list_add(segment_list *l, int64_t begin, int64_t end) {
    const sequence_shard *s = l->shard;
    bool is_long = end - begin >= s->long_document;
    if (begin == 0) l->list[l->count++] = (sequence_segment){0, 0};
    else if (is_long || l->is_long) segment_list_cut(l, begin);
    l->is_long = is_long;
    if (end < s->S) return;
    segment_list_cut(l, s->S);
    l->list[l->count] = (sequence_segment){s->S, s->T * s->hp};
}

#endif
