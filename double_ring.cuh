// Double-Ring-Attention (LoongTrain section 4.3, Algorithm 2) over the cp ranks of a context-parallel group.
//
// The sequence is sharded for causal balance: it is cut in 2 cp chunks, and CP rank c holds chunks c and 2 cp - 1 - c, in that order
// (sequence_shard.h). So the block of (queries of c, keys of k) is one of three calls, all with the same amount of work:
//     k == c   causal on the local pair
//     k <  c   all queries x the first half of the keys       (chunk k is before both, chunk 2 cp - 1 - k after both)
//     k >  c   the second half of the queries x all keys      (only chunk 2 cp - 1 - c is after both chunks of k)
// (DistFlashAttn, section 3.2, has one chunk a rank, and ranks with less work help others, with their queries and outputs on the way.)
// So each block goes whole around the ring: ranks behind its owner (c > k) need its first half alone, but hand it on to those before the
// owner (c < k), which need all. (Second halves sent the other way round would save a quarter of the bytes on average, and none on the
// busiest rank.) A sequence of packed documents has segments that do not see each other, each cut in this way: a block is then such a call
// for each segment.
//
// The cp ranks form windows of w. A window step is w ring steps: the inner ring passes the KV blocks of one window around. Meanwhile the
// outer ring brings the block that the *next* window step starts from, from the window before: that transfer hides behind the whole window
// step. (It is started after the first inner hop, which is needed first, in case the network takes one at a time.)
// Backward: the KV travels the same way, and the gradient of each KV block follows its block. In each window step dKV starts from zero. The
// sum of the earlier window steps arrives during the whole window step and is added at its end, so both outer transfers are hidden
// (LoongTrain's own code waits for dKV after one ring step). The last block of a window step is always that of the next place (pos + 1) of
// some window. So the sums for a block end every window step at the same place, and outer hops alone pass them on; one outer and one inner
// hop at the very end bring every dKV home. With cp = 4 and w = 2:
//              block in use at step (o, i)          the gradient of block 0
//              0,0   0,1   1,0   1,1
//     rank 0    0     1     2     3                 begins here; inner hop to 1                        home
//     rank 1    1     0     3     2                 0,1: sum of ranks 0 and 1; outer hop to 3          arrives from 3; inner hop to 0
//     rank 2    2     3     0     1                 1,0: begins again; inner hop to 3
//     rank 3    3     2     1     0                 1,1: sum of ranks 2 and 3, plus that from 1; outer hop to 1
//
// dKV is summed in float on every rank. --dkv-wire f32 sends the sums as they are. bf16 (as LoongTrain does) sends half the bytes: a sum
// is rounded before each hop, each time by at most 2^-8 of itself. In total a gradient is off by less than sqrt(cp) 2^-8 of the largest one
// (test_attention). With --cp-comm allgather each contribution goes straight to its owner: one rounding each.
#ifndef DOUBLE_RING_CUH
#define DOUBLE_RING_CUH

#include "arena.h"     // defines: arena, ARENA_TAKE, ARENA_TAKE_X
#include "device/ops.h" // defines: op_attention_*
#include "grid.h"      // defines: grid
#include "sequence_shard.h" // defines: sequence_segment
#include "trace.h"     // defines: transfer_finish, trace_*

// Packed documents of one sequence: where the document of each query row begins. All NULL: the whole sequence is one document. Keys that no
// query of this rank sees, and queries that see no key, are cut off a block before the kernel is called; an empty block is skipped. KV rows
// that no other rank sees are not sent (double_ring_rows), except by --cp-comm allgather, which sends whole blocks. Every hop still takes
// place, so the order of transfers and sums never depends on the data.
typedef struct {
    const int64_t *first;  // (Tc) on the device, ascending in a segment: position in the sequence of the first token of the row's document
    const int64_t *host;   // (sequence_shard_entries) the same on the host: of Tc rows, then of the first row of each chunk of each segment
    const sequence_segment *segments; // ascending, then {S, Tc}; NULL: one
} document_rows;

// The rows of a rank's KV, and of its gradient, that travel: [at[i], at[i] + count[i]), the second range behind the first. Other ranks see
// no others.
typedef struct {
    int64_t at[2], count[2];
} double_ring_rows;

// Query heads [q, q + Hq) of a rank, and the key/value heads [kv, kv + Hkv) that they use: all query heads of each or, where Hkv = 1, some
// of them. In shapes, hq and hkv are its Hq and Hkv.
typedef struct {
    int q, Hq, kv, Hkv;
} head_slice;

enum { INNER, OUTER }; // the two rings of dKV

// One sequence's attention after SeqAlltoAll: q (Tc, Hq, HS), kv (Tc, 2 Hkv, HS) = [k heads | v heads] a row.
typedef struct {
    const grid *g;
    int64_t Tc;      // rows of this CP rank, S_padded / cp; even when cp > 1
    int Hq, Hkv, HS; // heads of this rank
    head_slice slice; // the heads that double_ring_forward and double_ring_backward compute, with buffers of their size
    bool allgather;  // --cp-comm allgather, and cp > 1: one all-gather of KV, one reduce-scatter of dKV
    bool dkv_bf16;   // --dkv-wire bf16
    bool packed;     // sequences may be packed documents
    bool forward_only; // no backward pass: its buffers are NULL
    int64_t blocks, blocks_skipped; // since the layout, forward and backward: all blocks of attention; those skipped as empty
    // buffers, from the arena
    floatX *kv_inner[2];  // inner ring: blocks arrive in these in turn, (Tc, 2 hkv, HS). w 2: one hop, so the second is NULL
    floatX *kv_outer[2];  // outer ring: the same, first blocks of the next window steps. 2 windows: the second is NULL
    floatX *kv_all;       // (cp, Tc, 2 hkv, HS)
    float *dkv;           // the sum being computed
    float *dkv_own;       // packed: gradient of this rank's own KV from its own queries; after double_ring_home from all queries
    void *dkv_arriving[2], *dkv_leaving[2]; // of the INNER and OUTER ring: sums as on the wire (float: double_ring_put swaps the buffers)
    float *dkv_all;       // (cp, Tc, 2 hkv, HS); with dkv_bf16 two bf16 tensors of that shape in these bytes: being sent, arriving
    void *scatter_scratch;
    void *scratch;        // of the attention kernels
    document_rows documents; // of the pass in progress
    sequence_segment whole[2]; // a list of one segment
} double_ring;

static inline int64_t double_ring_kv_row(const double_ring *r) { return (int64_t)2 * r->slice.Hkv * r->HS; }
static inline int64_t double_ring_kv_count(const double_ring *r) { return r->Tc * double_ring_kv_row(r); }
static inline size_t double_ring_dkv_element(const double_ring *r) { return r->dkv_bf16 ? sizeof(bf16) : sizeof(float); } // on the wire
// Begins a pass. From here on r->documents.segments is a list; loops over it end at row Tc.
static inline void double_ring_begin(double_ring *r, document_rows documents) {
    r->documents = documents;
    r->whole[1].row = r->Tc;
    if (documents.segments == NULL) r->documents.segments = r->whole;
}

// All of this rank's queries and all of its own keys, for the heads of the slice, without documents.
static inline attention_block double_ring_whole(const double_ring *r) {
    return (attention_block){.Tq = r->Tc, .Tk = r->Tc, .Hq = r->slice.Hq, .Hkv = r->slice.Hkv, .HS = r->HS,
                             .q_stride = (int64_t)r->Hq * r->HS, .sum_stride = (int64_t)r->slice.Hq * r->HS,
                             .kv_stride = double_ring_kv_row(r), .lse_stride = r->Tc, .scale = 1.0f / sqrtf((float)r->HS), .causal = true};
}

// Bytes of `scratch` on the device that `a` counts for.
static inline size_t double_ring_scratch(const double_ring *r, const arena *a) {
    if (arena_counts_cpu(a)) return sizeof(float) * (size_t)double_ring_kv_count(r); // the CPU's kernel packs K and V
    if (arena_counts_other(a)) // as on a GPU
        return (size_t)min_i64((14 * r->HS + 8) * r->Tc * r->slice.Hq + 4096, DEVICE_ATTENTION_SCRATCH + 16384);
    attention_block whole = double_ring_whole(r);
    return (size_t)max_i64((int64_t)op_attention_scratch(whole, false), (int64_t)op_attention_scratch(whole, true));
}

// Takes the buffers. g must have its shape set; nothing is communicated.
static inline void double_ring_layout(double_ring *r, arena *a) {
    int64_t n = double_ring_kv_count(r);
    int cp = r->g->shape.cp, w = r->g->shape.w, windows = cp / w;
    bool ring = cp > 1 && !r->allgather, inner = ring && w > 1, outer = ring && windows > 1, backward = !r->forward_only;
    for (int i = 0; i < 2; i++) {
        r->kv_inner[i] = inner && w > i + 1 ? ARENA_TAKE_X(a, MEM_RING, n) : NULL;
        r->kv_outer[i] = outer && windows > i + 1 ? ARENA_TAKE_X(a, MEM_RING, n) : NULL;
        void **dkv = i == 0 ? r->dkv_arriving : r->dkv_leaving;
        dkv[INNER] = backward && inner ? arena_take(a, MEM_RING, n, double_ring_dkv_element(r)) : NULL;
        dkv[OUTER] = backward && outer ? arena_take(a, MEM_RING, n, double_ring_dkv_element(r)) : NULL;
    }
    r->dkv = backward ? ARENA_TAKE(a, MEM_RING, float, n) : NULL;
    r->dkv_own = backward && ring && r->packed ? ARENA_TAKE(a, MEM_RING, float, n) : NULL;
    r->kv_all = r->allgather ? ARENA_TAKE_X(a, MEM_RING, n * cp) : NULL;
    r->dkv_all = backward && r->allgather ? ARENA_TAKE(a, MEM_RING, float, n * cp) : NULL;
    bool sums = backward && r->allgather && !r->dkv_bf16; // by reduce-scatter
    r->scatter_scratch = sums ? arena_take(a, MEM_RING, 1, arena_reduce_scatter_scratch(a, cp, (size_t)n)) : NULL;
    r->scratch = arena_take(a, MEM_WORKSPACE, 1, double_ring_scratch(r, a));
}

// The block of this rank's queries and CP rank k's keys in a segment, and the rows of q and kv at which it starts. Tq = Tk = 0: no query
// sees a key.
static inline attention_block double_ring_block(const double_ring *r, const sequence_segment *segment, int k, int64_t *first_query,
                                                int64_t *first_key) {
    int c = r->g->place.c, cp = r->g->shape.cp;
    int64_t rows = segment[1].row - segment->row, chunk = cp > 1 ? rows / 2 : rows;
    attention_block b = double_ring_whole(r);
    b.causal = k == c;
    b.Tq = k > c ? chunk : rows;
    b.Tk = k < c ? chunk : rows;
    *first_query = segment->row + (k > c ? chunk : 0);
    *first_key = segment->row;
    if (r->documents.host == NULL) return b;

    attention_documents d = {r->documents.first + *first_query, r->documents.host + *first_query,
                             {segment->position + k * chunk, segment->position + (2 * cp - 1 - k) * chunk}, chunk};
    const int64_t *first = d.host;
    int64_t queries = b.Tq; // before some are cut off
    if (!b.causal) {
        int64_t last = (b.Tk > chunk ? d.at[1] : d.at[0]) + chunk - 1; // position of the last key
        int64_t low = 0, high = queries;
        while (low < high) { // binary search for the first query whose document begins after the last key: from there on none sees a key
            int64_t middle = (low + high) / 2;
            if (first[middle] <= last) low = middle + 1;
            else high = middle;
        }
        b.Tq = low;
        if (b.Tq == 0) {
            b.Tk = 0;
            return b;
        }
        int64_t unseen = attention_first_key(&d, first[0], b.Tk); // no query sees the keys before the first query's document
        *first_key += unseen;
        b.Tk -= unseen;
        d = attention_documents_from(d, 0, unseen);
    }
    // The kernel gets the documents where a boundary hides keys from some query. A cut block, and that of one of several segments, always
    // gets them: its size is one of many, and without them cuDNN would compile a kernel for each size (attention_blocks.c).
    bool cut = rows < r->Tc || b.Tq < queries || *first_key > segment->row;
    if (cut || attention_first_key(&d, first[b.Tq - 1], b.Tk) > 0) b.documents = d;
    return b;
}

// Merges the block of CP rank k, kv (Tc, 2 hkv, HS), into out (Tc, hq, HS) and lse (Hq, Tc). A rank's own block comes
// first and sets them.
static inline void double_ring_block_forward(double_ring *r, float *out, float *lse, const floatX *q, const floatX *kv, int k) {
    double began = trace_now();
    for (const sequence_segment *segment = r->documents.segments; segment->row < r->Tc; segment++) {
        int64_t query, key; // first rows
        attention_block b = double_ring_block(r, segment, k, &query, &key);
        r->blocks++;
        r->blocks_skipped += b.Tq == 0;
        if (b.Tq == 0) continue;
        int64_t q_at = query * b.q_stride + r->slice.q * r->HS, kv_at = key * b.kv_stride, v_at = (int64_t)r->slice.Hkv * r->HS;
        op_attention_forward(out + query * b.sum_stride, lse + r->slice.q * r->Tc + query, q + q_at, kv + kv_at, kv + kv_at + v_at, b,
                             k != r->g->place.c, r->scratch);
    }
    trace_compute("attention forward", k, began);
}

// Tensors of the backward pass that stay with their queries.
typedef struct {
    float *dq;         // (Tc, hq, HS), = the sum over all blocks
    const floatX *q, *out, *dout; // (Tc, Hq, HS); out is the merged one
    const float *lse, *delta;     // (Hq, Tc), merged
    document_rows documents;
} double_ring_queries;

// dkv (Tc, 2 hkv, HS) = gradient of rank k's KV from this rank's queries; a slice that is not the first of its group adds to it. A
// rank's own block comes first and sets dq, the others add to it.
static inline void double_ring_block_backward(double_ring *r, const double_ring_queries *t, float *dkv, const floatX *kv, int k) {
    double began = trace_now();
    for (const sequence_segment *segment = r->documents.segments; segment->row < r->Tc; segment++) {
        int64_t query, key;
        attention_block b = double_ring_block(r, segment, k, &query, &key);
        int64_t q_at = query * b.q_stride + r->slice.q * r->HS, kv_at = key * b.kv_stride, v_at = (int64_t)r->slice.Hkv * r->HS;
        int64_t row_at = r->slice.q * r->Tc + query, end = key + b.Tk;
        // rows that no query sees; none where a slice adds (cp = 1: the block is whole)
        device_zero(dkv + segment->row * b.kv_stride, sizeof(float) * (size_t)((key - segment->row) * b.kv_stride));
        device_zero(dkv + end * b.kv_stride, sizeof(float) * (size_t)((segment[1].row - end) * b.kv_stride));
        r->blocks++;
        r->blocks_skipped += b.Tq == 0;
        if (b.Tq == 0) continue;
        op_attention_backward(t->dq + query * b.sum_stride, dkv + kv_at, dkv + kv_at + v_at, t->q + q_at, kv + kv_at, kv + kv_at + v_at,
                              t->out + q_at, t->dout + q_at, t->lse + row_at, t->delta + row_at, b, k != r->g->place.c,
                              r->slice.q % (r->Hq / r->Hkv) != 0, r->scratch);
    }
    trace_compute("attention backward", k, began);
}

// cp == 1 and no documents: the slice's attention in one call of an engine, with results that are final (op_attention_forward_alone).
// False: nothing was done. out (Tc, Hq, HS) floatX, dq too, which may be t->q; otherwise as double_ring_forward and double_ring_backward.
static inline bool double_ring_forward_alone(double_ring *r, floatX *out, float *lse, const floatX *q, const floatX *kv,
                                             document_rows documents) {
    double began = trace_now();
    int64_t at = (int64_t)r->slice.q * r->HS, v_at = (int64_t)r->slice.Hkv * r->HS;
    if (r->g->shape.cp > 1 || documents.host != NULL ||
        !op_attention_forward_alone(out + at, lse + r->slice.q * r->Tc, q + at, kv, kv + v_at, double_ring_whole(r), r->scratch))
        return false;
    r->blocks++;
    trace_compute("attention forward", 0, began);
    return true;
}
static inline bool double_ring_backward_alone(double_ring *r, const double_ring_queries *t, floatX *dq, const floatX *kv) {
    double began = trace_now();
    int64_t at = (int64_t)r->slice.q * r->HS, v_at = (int64_t)r->slice.Hkv * r->HS, row_at = r->slice.q * r->Tc;
    if (r->g->shape.cp > 1 || t->documents.host != NULL ||
        !op_attention_backward_alone(dq + at, r->dkv, r->dkv + v_at, t->q + at, kv, kv + v_at, t->out + at, t->dout + at, t->lse + row_at,
                                     double_ring_whole(r), r->slice.q % (r->Hq / r->Hkv) != 0, r->scratch))
        return false;
    r->blocks++;
    trace_compute("attention backward", 0, began);
    return true;
}

// The four rings: communicator, name in the trace.
static inline comm *double_ring_group(const grid *g, comm_kind ring) {
    return ring == COMM_KV_INNER ? g->kv_inner : ring == COMM_KV_OUTER ? g->kv_outer : ring == COMM_DKV_INNER ? g->dkv_inner : g->dkv_outer;
}
static inline const char *double_ring_name(comm_kind ring) {
    return ring == COMM_KV_INNER ? "KV inner" : ring == COMM_KV_OUTER ? "KV outer" : ring == COMM_DKV_INNER ? "dKV inner" : "dKV outer";
}

// The CP rank whose KV is in use at window step o, ring step i.
static inline int double_ring_source(const grid *g, int o, int i) {
    int w = g->shape.w, windows = g->shape.cp / w;
    return grid_context_index(&g->shape, (g->place.window - o + windows) % windows, (g->place.pos - i + w) % w);
}

// How many first rows of half i of CP rank k's rows of a segment no other rank sees. A document is contiguous: so what others see of a
// chunk begins with the row that the first row of the next chunk on another rank sees first. first_seen (2 cp): position of what the first
// row of each chunk of the segment sees first.
static inline int64_t double_ring_unseen(const double_ring *r, const sequence_segment *segment, const int64_t *first_seen, int k, int i) {
    int cp = r->g->shape.cp, mirror = 2 * cp - 1 - k, chunk = i == 0 ? k : mirror;
    int next = chunk + 1 == mirror ? mirror + 1 : chunk + 1;
    int64_t rows = (segment[1].row - segment->row) / 2;
    if (next == 2 * cp) return rows;
    return min_i64(rows, max_i64(0, first_seen[next] - segment->position - chunk * rows));
}
// The rows of CP rank k's block that travel: from the first to the last that another rank sees, but for the longest gap between such rows.
// For example, of three segments with two halves each (#: another rank sees the row):
//     ..#### .....#   ....## ......   ...### ....##
//       [------------------]             [--------]
static inline double_ring_rows double_ring_travels(const double_ring *r, int k) {
    if (r->documents.host == NULL) return (double_ring_rows){{0, r->Tc}, {r->Tc, 0}};
    double_ring_rows rows = {{0, 0}, {0, 0}};
    int64_t sent_to = 0, gap = 0; // end of the rows that travel so far; between the two ranges
    const int64_t *first_seen = r->documents.host + r->Tc;
    for (const sequence_segment *segment = r->documents.segments; segment->row < r->Tc; segment++, first_seen += 2 * r->g->shape.cp)
        for (int i = 0; i < 2; i++) {
            int64_t half = (segment[1].row - segment->row) / 2, end = segment->row + (i + 1) * half;
            int64_t begin = end - half + double_ring_unseen(r, segment, first_seen, k, i);
            if (begin == end) continue;
            if (sent_to == 0) {
                rows.at[0] = begin;
            } else if (begin - sent_to > gap) {
                gap = begin - sent_to;
                rows.count[0] = sent_to - rows.at[0];
                rows.at[1] = begin;
            }
            sent_to = end;
        }
    rows.count[gap > 0] = sent_to - rows.at[gap > 0];
    return rows;
}

static inline int double_ring_transfers(const double_ring *r) { return r->documents.host != NULL ? 2 : 1; } // of a hop

// Starts a hop of one of the four rings: sends the block in use at window step o, ring step i, (Tc, 2 hkv, HS), to the next rank. The block
// that arrives is the one in use at that ring's next step. With packed documents a hop is two transfers, one for each range.
static inline void double_ring_hop(const double_ring *r, comm_kind ring, int o, int i, const void *send, void *recv) {
    bool outer = ring == COMM_KV_OUTER || ring == COMM_DKV_OUTER, kv = ring == COMM_KV_INNER || ring == COMM_KV_OUTER;
    comm *group = double_ring_group(r->g, ring);
    int size = comm_size(group), next = (comm_rank(group) + 1) % size, before = (comm_rank(group) + size - 1) % size;
    int64_t row = (int64_t)(kv ? sizeof(floatX) : double_ring_dkv_element(r)) * double_ring_kv_row(r);
    double_ring_rows leaves = double_ring_travels(r, double_ring_source(r->g, o, i));
    double_ring_rows arrives = double_ring_travels(r, double_ring_source(r->g, outer ? o + 1 : o, outer ? i : i + 1));
    for (int n = 0; n < double_ring_transfers(r); n++) {
        trace_transfer(group, double_ring_name(ring), outer ? o : i);
        comm_sendrecv_start(group, (const char *)send + leaves.at[n] * row, (size_t)(leaves.count[n] * row), next,
                            (char *)recv + arrives.at[n] * row, (size_t)(arrives.count[n] * row), before);
    }
}
static inline void double_ring_hop_finish(const double_ring *r, comm_kind ring) {
    for (int n = 0; n < double_ring_transfers(r); n++) transfer_finish(double_ring_group(r->g, ring));
}

// out (Tc, hq, HS) and lse (Hq, Tc) float = causal attention of q (Tc, Hq, HS) over the KV of all cp ranks, for the heads of the
// slice. kv (Tc, 2 hkv, HS) is this rank's own block.
static inline void double_ring_forward(double_ring *r, float *out, float *lse, const floatX *q, const floatX *kv, document_rows documents) {
    const grid *g = r->g;
    double_ring_begin(r, documents);
    int cp = g->shape.cp, w = g->shape.w, windows = cp / w, c = g->place.c;
    if (r->allgather) {
        trace_transfer(g->kv_gather, "KV all-gather", 0);
        comm_allgather_start(g->kv_gather, kv, r->kv_all, sizeof(floatX) * (size_t)double_ring_kv_count(r));
        double_ring_block_forward(r, out, lse, q, kv, c);
        transfer_finish(g->kv_gather);
        for (int i = 1; i < cp; i++) {
            int k = (c - i + cp) % cp;
            double_ring_block_forward(r, out, lse, q, r->kv_all + k * double_ring_kv_count(r), k);
        }
        return;
    }
    const floatX *first = kv; // the KV this window step starts from: intact until the outer ring has sent it
    for (int o = 0; o < windows; o++) {
        const floatX *block = first;
        for (int i = 0; i < w; i++) {
            if (i < w - 1) double_ring_hop(r, COMM_KV_INNER, o, i, block, r->kv_inner[i % 2]);
            if (i == 0 && o < windows - 1) double_ring_hop(r, COMM_KV_OUTER, o, 0, first, r->kv_outer[o % 2]);
            double_ring_block_forward(r, out, lse, q, block, double_ring_source(g, o, i));
            if (i < w - 1) double_ring_hop_finish(r, COMM_KV_INNER);
            block = r->kv_inner[i % 2];
        }
        if (o < windows - 1) double_ring_hop_finish(r, COMM_KV_OUTER);
        first = r->kv_outer[o % 2];
    }
}

// Puts the sum of rank k's dKV, in r->dkv, into r->dkv_leaving[ring], as it goes over the wire. Afterwards r->dkv is there to compute in.
// For float the two buffers are swapped.
static inline void double_ring_put(double_ring *r, int ring, int k) {
    if (!r->dkv_bf16) {
        void *sum = r->dkv;
        r->dkv = (float *)r->dkv_leaving[ring];
        r->dkv_leaving[ring] = sum;
        return;
    }
    double_ring_rows rows = double_ring_travels(r, k);
    bf16 *leaving = (bf16 *)r->dkv_leaving[ring];
    int64_t row = double_ring_kv_row(r);
    for (int i = 0; i < 2; i++) op_bf16_from_float(leaving + rows.at[i] * row, r->dkv + rows.at[i] * row, rows.count[i] * row);
}
// sum += rank k's dKV as it came over the wire; only the rows that travel.
static inline void double_ring_add(const double_ring *r, float *sum, const void *arrived, int k) {
    double_ring_rows rows = double_ring_travels(r, k);
    int64_t row = double_ring_kv_row(r);
    for (int i = 0; i < 2; i++) {
        int64_t at = rows.at[i] * row, n = rows.count[i] * row;
        if (r->dkv_bf16) op_add_bf16(sum + at, (const bf16 *)arrived + at, n);
        else op_add_float(sum + at, (const float *)arrived + at, n);
    }
}

// --cp-comm allgather. With dkv_bf16 an all-to-all takes every contribution to its owner, who adds them in float, in the order of ranks.
static inline void double_ring_backward_gathered(double_ring *r, const double_ring_queries *t, const floatX *kv) {
    const grid *g = r->g;
    int cp = g->shape.cp, c = g->place.c;
    int64_t n = double_ring_kv_count(r);
    bf16 *leaving = (bf16 *)(void *)r->dkv_all, *arriving = leaving + cp * n;
    trace_transfer(g->kv_gather, "KV all-gather", 0);
    comm_allgather_start(g->kv_gather, kv, r->kv_all, sizeof(floatX) * (size_t)n);
    for (int i = 0; i < cp; i++) {
        int k = (c - i + cp) % cp;
        if (i == 1) transfer_finish(g->kv_gather);
        double_ring_block_backward(r, t, r->dkv_bf16 ? r->dkv : r->dkv_all + k * n, i == 0 ? kv : r->kv_all + k * n, k);
        if (r->dkv_bf16) op_bf16_from_float(leaving + k * n, r->dkv, n);
    }
    trace_transfer(g->dkv_scatter, "dKV reduce-scatter", 0);
    if (r->dkv_bf16) comm_alltoall_start(g->dkv_scatter, leaving, arriving, sizeof(bf16) * (size_t)n);
    else comm_reduce_scatter_start(g->dkv_scatter, r->dkv_all, r->dkv, (size_t)n, r->scatter_scratch);
}
static inline float *double_ring_home_gathered(double_ring *r) {
    int cp = r->g->shape.cp;
    int64_t n = double_ring_kv_count(r);
    const bf16 *arriving = (const bf16 *)(const void *)r->dkv_all + cp * n;
    transfer_finish(r->g->dkv_scatter);
    if (!r->dkv_bf16) return r->dkv;
    device_zero(r->dkv, sizeof(float) * (size_t)n);
    for (int k = 0; k < cp; k++) op_add_bf16(r->dkv, arriving + k * n, n);
    return r->dkv;
}

// t->dq = the sum over all blocks. The dKV of this rank's own KV is still in flight on return: compute issued before double_ring_home hides
// it. All sums are float, each in an order that the ring fixes.
static inline void double_ring_backward(double_ring *r, const double_ring_queries *t, const floatX *kv) {
    double_ring_begin(r, t->documents);
    if (r->allgather) {
        double_ring_backward_gathered(r, t, kv);
        return;
    }
    const grid *g = r->g;
    int cp = g->shape.cp, w = g->shape.w, windows = cp / w;
    const floatX *first = kv;
    for (int o = 0; o < windows; o++) {
        const floatX *block = first;
        for (int i = 0; i < w; i++) {
            int k = double_ring_source(g, o, i);
            if (i < w - 1) double_ring_hop(r, COMM_KV_INNER, o, i, block, r->kv_inner[i % 2]);
            if (i == 0 && o < windows - 1) double_ring_hop(r, COMM_KV_OUTER, o, 0, first, r->kv_outer[o % 2]);
            // During the whole window step, the earlier ones' sum arrives for the block that this rank uses last.
            if (i == 0 && o > 0) double_ring_hop(r, COMM_DKV_OUTER, o - 1, w - 1, r->dkv_leaving[OUTER], r->dkv_arriving[OUTER]);
            if (k == g->place.c && cp > 1 && r->documents.host != NULL) { // all of it stays here; what others see also goes round the ring
                double_ring_block_backward(r, t, r->dkv_own, block, k);
                device_copy(r->dkv, r->dkv_own, sizeof(float) * (size_t)double_ring_kv_count(r));
            } else {
                double_ring_block_backward(r, t, r->dkv, block, k);
            }
            if (i < w - 1) double_ring_hop_finish(r, COMM_KV_INNER);
            block = r->kv_inner[i % 2];
            if (i > 0) { // the sum of the ranks that had this block before
                double_ring_hop_finish(r, COMM_DKV_INNER);
                double_ring_add(r, r->dkv, r->dkv_arriving[INNER], k);
            }
            if (i == w - 1) break;
            double_ring_put(r, INNER, k);
            double_ring_hop(r, COMM_DKV_INNER, o, i, r->dkv_leaving[INNER], r->dkv_arriving[INNER]);
        }
        if (o < windows - 1) double_ring_hop_finish(r, COMM_KV_OUTER);
        first = r->kv_outer[o % 2];
        int last = double_ring_source(g, o, w - 1);
        if (o > 0) {
            double_ring_hop_finish(r, COMM_DKV_OUTER);
            double_ring_add(r, r->dkv, r->dkv_arriving[OUTER], last);
        }
        if (windows > 1) double_ring_put(r, OUTER, last);
    }
    // The way home: the sum that is here now belongs to the next place of the next window.
    if (windows > 1) {
        double_ring_hop(r, COMM_DKV_OUTER, windows - 1, w - 1, r->dkv_leaving[OUTER], r->dkv_arriving[OUTER]);
    } else if (w > 1) {
        double_ring_put(r, INNER, double_ring_source(g, 0, w - 1));
        double_ring_hop(r, COMM_DKV_INNER, 0, w - 1, r->dkv_leaving[INNER], r->dkv_arriving[INNER]);
    }
}

// Once after double_ring_backward. Returns dkv (Tc, 2 hkv, HS) float of this rank's own KV, in a buffer of the ring, until the next pass.
static inline float *double_ring_home(double_ring *r) {
    const grid *g = r->g;
    int cp = g->shape.cp, w = g->shape.w, windows = cp / w;
    if (cp == 1) return r->dkv;
    if (r->allgather) return double_ring_home_gathered(r);
    void *home = r->dkv_arriving[w > 1 ? INNER : OUTER]; // where the last hop arrives
    if (windows > 1) double_ring_hop_finish(r, COMM_DKV_OUTER);
    if (windows > 1 && w > 1) // of the rank's own window, as in step 0
        double_ring_hop(r, COMM_DKV_INNER, 0, w - 1, r->dkv_arriving[OUTER], r->dkv_arriving[INNER]);
    if (w > 1) double_ring_hop_finish(r, COMM_DKV_INNER);
    if (r->documents.host == NULL && !r->dkv_bf16) return (float *)home;
    float *sum = r->documents.host != NULL ? r->dkv_own : r->dkv; // bf16 on the wire: sums never left r->dkv (double_ring_put)
    double_ring_rows rows = double_ring_travels(r, g->place.c);   // what arrives takes the place of these
    int64_t row = double_ring_kv_row(r);
    for (int i = 0; i < 2; i++) device_zero(sum + rows.at[i] * row, sizeof(float) * (size_t)(rows.count[i] * row));
    double_ring_add(r, sum, home, g->place.c);
    return sum;
}

#endif
