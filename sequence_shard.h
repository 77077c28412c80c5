// Which tokens of a sequence a rank holds, in causal balance (LoongTrain figure 3b).
//
// cp = 1: HP rank h holds positions [h T, (h+1) T).
// cp > 1: the padded sequence is cut in 2 cp chunks of C = T hp / 2; CP rank c's row is chunk c, then chunk 2cp-1-c; HP rank h holds the
//         h-th slice of T tokens of that row.
#ifndef SEQUENCE_SHARD_H
#define SEQUENCE_SHARD_H

#include "common.h"

typedef struct {
    int64_t S, S_padded, T; // tokens of the sequence; with padding at its end; local rows = S_padded / (hp cp)
    int hp, cp, h, c;       // degrees, and this rank's place
} sequence_shard;

// S >= 1. Pads as little as possible to make T a multiple of `multiple` (>= 1), and with cp > 1 also the T hp / 2 rows of a chunk.
static inline sequence_shard sequence_shard_make(int64_t S, int hp, int cp, int h, int c, int64_t multiple) {
    if (cp > 1 && hp % 2 != 0) multiple *= 2;
    int64_t T = round_up(ceil_div(S, (int64_t)hp * cp), multiple);
    return (sequence_shard){S, T * hp * cp, T, hp, cp, h, c};
}
// Global position of local row t, 0 <= t < T; positions >= S are padding.
static inline int64_t sequence_shard_position(const sequence_shard *s, int64_t t) {
    int64_t row = s->h * s->T + t; // in the row of the HP group
    if (s->cp == 1) return row;
    int64_t C = s->T * s->hp / 2;
    return row < C ? s->c * C + row : (2 * s->cp - 1 - s->c) * C + (row - C);
}
// How many local rows from t on have consecutive positions. A rank's rows are at most two such runs.
static inline int64_t sequence_shard_run(const sequence_shard *s, int64_t t) {
    int64_t row = s->h * s->T + t, C = s->T * s->hp / 2;
    return s->cp > 1 && row < C ? min_i64(s->T - t, C - row) : s->T - t;
}
// The rows of the whole HP group, as if one rank held them: those of attention.
static inline sequence_shard sequence_shard_group(const sequence_shard *s) {
    sequence_shard group = *s;
    group.T = s->T * s->hp;
    group.hp = 1;
    group.h = 0;
    return group;
}
// What model.batch_documents holds for a sequence: an entry for each row of attention, then one for the first row of each chunk; and the position of
// entry e in the sequence.
static inline int64_t sequence_shard_entries(const sequence_shard *s) { return s->T * s->hp + 2 * s->cp; }
static inline int64_t sequence_shard_entry_position(const sequence_shard *s, int64_t e) {
    sequence_shard group = sequence_shard_group(s);
    return e < group.T ? sequence_shard_position(&group, e) : (e - group.T) * (group.T / 2);
}

#endif
