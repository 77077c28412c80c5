// 2D-Attention (LoongTrain sections 4.1, 4.2, Algorithm 1): SeqAlltoAll over the hp ranks of a head-parallel group turns "my tokens,
// all heads" into "all tokens of the group, my heads"; Double-Ring-Attention runs over the cp ranks; a second SeqAlltoAll turns back.
//
//     qkv (T, H + 2 Hkv, HS)  --rotate, deal-->  q (hp, T, Hq, HS), kv (hp, T, 2 Hkv', HS)  --SeqAlltoAll-->
//     q (Tc, Hq, HS), kv (Tc, 2 Hkv', HS)   with Tc = hp T rows in sequence order, Hq = H / hp query heads of a rank, and
//                                           Hkv' = head_layout.Hkv_local key/value heads (max(Hkv, hp) / hp where one divides the other)
//     --ring-->  out (Tc, Hq, HS), lse (Hq, Tc)  --SeqAlltoAll-->  out (T, H, HS)
//
// lse is each row's log-sum-exp of scaled scores: with it blocks are merged, and the backward pass computes a block's weights again
// (device/ops.h).
//
// RoPE writes straight into the send layout, so there is no pack kernel. With hp > Hkv a key/value head is sent to every peer that
// needs it (KV replication), and the gradients of its copies are summed once, in the order of peers, on the rank they come back to.
//
// Sums are float. In bf16 that of out, or dq, takes as many bytes as q and out together, and the buffers of one ring 8 times those of KV,
// of a double ring 14 times: nine of KV's shape, of which five hold dKV (packed documents: 2 more). So the attention of a long
// sequence is computed a slice of heads at a time: each slice goes around the ring on its own, and then its sums are rounded. Where cp = 1
// and nothing is summed, an engine's results are final (double_ring_forward_alone).
// Bytes a rank sends (LoongTrain 4.5.4) per layer and sequence, E = sizeof(floatX):
//     forward   E T HS (H + 2 hp Hkv' + H) (hp - 1) / hp        backward: the same
#ifndef ATTENTION_2D_CUH
#define ATTENTION_2D_CUH

#include "double_ring.cuh" // defines: double_ring_*, arena, grid, op_*

// What a layer's attention keeps for its backward pass (one sequence).
typedef struct {
    floatX *q;   // (Tc, Hq, HS), rotated
    floatX *kv;  // (Tc, 2 Hkv', HS), keys rotated
    floatX *out; // (Tc, Hq, HS), merged over all blocks
    float *lse;  // (Hq, Tc), merged
    document_rows documents; // the caller's; the same in both passes
} attention_saved;

typedef struct {
    const grid *g;
    head_layout heads; // of hp peers
    int64_t T, Tc;     // local rows before and after SeqAlltoAll
    double_ring ring;
    floatX *q_send;   // (hp, T, Hq, HS): q, dout. With hp = 1 nothing is sent, and these three are NULL
    floatX *kv_send;  // (hp, T, 2 Hkv', HS)
    floatX *dkv_send; // (hp, T, 2 Hkv', HS)
    floatX *kv_slice; // (Tc, 2 hkv, HS); NULL where a slice is all heads
    float *out_float; // (Tc, hq, HS): out accumulates in float; dq in the backward pass
    float *delta;     // (Hq, Tc): sum of out dout over a head, which softmax's backward pass subtracts (op_attention_delta)
} attention_2d;

static inline int64_t attention_2d_q_count(const attention_2d *a) { return a->T * a->heads.H * a->heads.HS; }
static inline int64_t attention_2d_kv_count(const attention_2d *a) { return a->Tc * 2 * a->heads.Hkv_local * a->heads.HS; }

// The first of equal slices of heads: as many as have at most `bytes` of sums of out, but at least one. (512 MiB are 8192 tiles of 128 rows
// of a head of 128: work for a whole GPU.) A group is the query heads of one key/value head. A ring's slice is whole groups, so that no KV
// goes around it twice.
#define ATTENTION_SLICE_BYTES ((int64_t)512 << 20)
static inline head_slice attention_2d_first_slice(int64_t Tc, int Hq, int Hkv, int HS, bool ring, int64_t bytes) {
    int group = Hq / Hkv, kv = Hkv, members = group;
    int64_t most = max_i64(1, bytes / (max_i64(Tc, 1) * HS * (int64_t)sizeof(float)));
    while (kv > 1 && (Hkv % kv != 0 || kv * group > most)) kv--;
    while (kv == 1 && !ring && (group % members != 0 || members > most)) members--; // part of a group: must divide it
    return (head_slice){0, kv * members, 0, kv};
}

// T rows per rank; needs hp dividing H and, when cp > 1, hp T even. slice_bytes: of sums (attention_2d_first_slice); 0:
// ATTENTION_SLICE_BYTES. All buffers are still to be taken.
static inline void attention_2d_describe(attention_2d *a, const grid *g, int H, int Hkv, int HS, int64_t T, bool allgather, bool dkv_bf16,
                                         bool packed, int64_t slice_bytes) {
    memset(a, 0, sizeof *a);
    a->g = g;
    a->heads = head_layout_make(g->shape.hp, H, Hkv, HS);
    a->T = T;
    a->Tc = T * g->shape.hp;
    a->ring.g = g;
    a->ring.Tc = a->Tc;
    a->ring.Hq = a->heads.Hq;
    a->ring.Hkv = a->heads.Hkv_local;
    a->ring.HS = HS;
    if (slice_bytes == 0) slice_bytes = ATTENTION_SLICE_BYTES;
    a->ring.slice = attention_2d_first_slice(a->Tc, a->ring.Hq, a->ring.Hkv, HS, g->shape.cp > 1, slice_bytes);
    a->ring.allgather = allgather && g->shape.cp > 1;
    a->ring.dkv_bf16 = dkv_bf16;
    a->ring.packed = packed;
}
// Take q_send and kv_send, in use from attention_2d_pack to attention_2d_distribute_finish, and q_send from attention_2d_backward_start to
// attention_2d_backward_ring: never while a ring runs.
static inline void attention_2d_layout_q_send(attention_2d *a, arena *memory) {
    if (a->g->shape.hp > 1) a->q_send = ARENA_TAKE_X(memory, MEM_RING, attention_2d_q_count(a));
}
static inline void attention_2d_layout_kv_send(attention_2d *a, arena *memory) {
    if (a->g->shape.hp > 1) a->kv_send = ARENA_TAKE_X(memory, MEM_RING, attention_2d_kv_count(a));
}
// Takes dkv_send, in use when the ring's buffers no longer are, to the end of attention_2d_backward_finish.
static inline void attention_2d_layout_dkv_send(attention_2d *a, arena *memory) {
    if (a->g->shape.hp > 1) a->dkv_send = ARENA_TAKE_X(memory, MEM_RING, attention_2d_kv_count(a));
}
// Takes the other buffers, in use during attention_2d_ring_forward, and from attention_2d_backward_ring to attention_2d_backward_finish.
static inline void attention_2d_layout(attention_2d *a, arena *memory) {
    a->out_float = ARENA_TAKE(memory, MEM_WORKSPACE, float, a->Tc * a->ring.slice.Hq * a->heads.HS);
    a->kv_slice = a->ring.slice.Hkv < a->ring.Hkv ? ARENA_TAKE_X(memory, MEM_RING, double_ring_kv_count(&a->ring)) : NULL;
    double_ring_layout(&a->ring, memory);
    a->delta = !a->ring.forward_only ? ARENA_TAKE(memory, MEM_WORKSPACE, float, a->Tc * a->heads.Hq) : NULL;
}

static inline void attention_2d_alltoall_start(const attention_2d *a, const char *name, const floatX *send, floatX *recv, int64_t count) {
    trace_transfer(a->g->hp_group, name, -1);
    comm_alltoall_start(a->g->hp_group, send, recv, sizeof(floatX) * (size_t)(count / a->g->shape.hp));
}

// The forward pass, first part: saved.q and saved.kv from qkv, complete after attention_2d_distribute_finish. Selective Checkpoint++ runs
// it again in the backward pass.
// attention_2d_pack, until all T rows are packed: rows [first, first + rows), qkv (rows, H + 2 Hkv, HS). table (T, HS/2, 2): cos and sin.
static inline void attention_2d_pack(const attention_2d *a, attention_saved saved, const floatX *qkv, const float *table, int64_t first,
                                     int64_t rows) {
    bool sends = a->g->shape.hp > 1;
    op_rope_pack_forward(sends ? a->q_send : saved.q, sends ? a->kv_send : saved.kv, qkv, table, a->T, a->heads, first, rows);
}
static inline void attention_2d_distribute_start(const attention_2d *a, attention_saved saved) {
    if (a->g->shape.hp == 1) return;
    attention_2d_alltoall_start(a, "SeqAlltoAll KV", a->kv_send, saved.kv, attention_2d_kv_count(a));
    attention_2d_alltoall_start(a, "SeqAlltoAll Q", a->q_send, saved.q, attention_2d_q_count(a));
}
static inline void attention_2d_distribute_finish(const attention_2d *a) {
    if (a->g->shape.hp == 1) return;
    transfer_finish(a->g->hp_group);
    transfer_finish(a->g->hp_group);
}
// Starts the slice that begins with query head q. Returns its KV, (Tc, 2 hkv, HS), contiguous. A row [k heads | v heads] counts as two rows
// of Hkv heads, of each of which the slice's are copied: 2 Tc rows.
static inline const floatX *attention_2d_slice_start(attention_2d *a, int q, const floatX *kv) {
    head_slice *slice = &a->ring.slice;
    int group = a->ring.Hq / a->ring.Hkv;
    int64_t HS = a->heads.HS;
    slice->q = q;
    slice->kv = q / group;
    if (a->kv_slice == NULL) return kv;
    bool is_there = q % group != 0; // for an earlier slice of the group
    if (!is_there) op_copy_rows(a->kv_slice, slice->Hkv * HS, kv + slice->kv * HS, a->ring.Hkv * HS, 2 * a->Tc, slice->Hkv * HS);
    return a->kv_slice;
}
// Second part: saved.out and saved.lse from saved.q and saved.kv.
static inline void attention_2d_ring_forward(attention_2d *a, attention_saved saved) {
    int64_t HS = a->heads.HS, Hq = a->ring.slice.Hq;
    for (int q = 0; q < a->heads.Hq; q += a->ring.slice.Hq) {
        const floatX *kv = attention_2d_slice_start(a, q, saved.kv);
        if (double_ring_forward_alone(&a->ring, saved.out, saved.lse, saved.q, kv, saved.documents)) continue;
        double_ring_forward(&a->ring, a->out_float, saved.lse, saved.q, kv, saved.documents);
        op_cast_rows(saved.out + q * HS, a->heads.Hq * HS, a->out_float, a->Tc, Hq * HS);
    }
}
// Last part: out (T, H, HS) from saved.out, complete after attention_2d_collect_finish. Selective Checkpoint++ runs it again in the
// backward pass. With hp = 1 the two are one buffer and there is nothing to do. arriving (hp, T, Hq, HS): in use until then.
static inline void attention_2d_collect_start(const attention_2d *a, attention_saved saved, floatX *arriving) {
    if (a->g->shape.hp > 1) attention_2d_alltoall_start(a, "SeqAlltoAll out", saved.out, arriving, attention_2d_q_count(a));
}
static inline void attention_2d_collect_finish(const attention_2d *a, floatX *out, const floatX *arriving) {
    if (a->g->shape.hp == 1) return;
    transfer_finish(a->g->hp_group);
    op_heads_unpack(out, arriving, a->T, a->heads);
}

// Ends the backward pass of a slice: its dkv takes the place of its KV in saved.kv (2 Tc rows, as in attention_2d_slice_start).
static inline void attention_2d_slice_home(attention_2d *a, attention_saved saved) {
    const head_slice *slice = &a->ring.slice;
    int64_t HS = a->heads.HS;
    op_cast_rows(saved.kv + slice->kv * HS, a->ring.Hkv * HS, double_ring_home(&a->ring), 2 * a->Tc, slice->Hkv * HS);
}
// Starts SeqAlltoAll of dKV, from saved.kv into the same place.
static inline void attention_2d_send_dkv(const attention_2d *a, attention_saved saved) {
    device_copy(a->dkv_send, saved.kv, sizeof(floatX) * (size_t)attention_2d_kv_count(a));
    attention_2d_alltoall_start(a, "SeqAlltoAll dKV", a->dkv_send, saved.kv, attention_2d_kv_count(a));
}

// The backward pass, from dout (T, H, HS) and what the forward pass saved, in three parts: _start, _ring, _finish. Compute that is issued
// after _start hides SeqAlltoAll of dout; after _ring, that of dQ and, if cp = 1, of dKV, otherwise the first hop home of the last slice's
// dKV. Rounded to floatX, dq takes the place of saved.q, dkv that of saved.kv. With hp > 1 dout becomes (Tc, Hq, HS), and dQ arrives there.
static inline void attention_2d_backward_start(attention_2d *a, floatX *dout) {
    if (a->g->shape.hp == 1) return;
    op_heads_pack(a->q_send, dout, a->T, a->heads);
    attention_2d_alltoall_start(a, "SeqAlltoAll dout", a->q_send, dout, attention_2d_q_count(a));
}
static inline void attention_2d_backward_ring(attention_2d *a, floatX *dout, attention_saved saved) {
    if (a->g->shape.hp > 1) transfer_finish(a->g->hp_group);
    int64_t HS = a->heads.HS, Hq = a->ring.slice.Hq;
    double_ring_queries t = {.dq = a->out_float, .q = saved.q, .out = saved.out, .dout = dout, .lse = saved.lse, .delta = a->delta,
                             .documents = saved.documents};
    for (int q = 0, next; q < a->heads.Hq; q = next) {
        next = q + a->ring.slice.Hq;
        const floatX *kv = attention_2d_slice_start(a, q, saved.kv);
        if (!double_ring_backward_alone(&a->ring, &t, saved.q, kv)) {
            op_attention_delta(a->delta + q * a->Tc, saved.out + q * HS, dout + q * HS, double_ring_whole(&a->ring));
            double_ring_backward(&a->ring, &t, kv);
            op_cast_rows(saved.q + q * HS, a->heads.Hq * HS, t.dq, a->Tc, Hq * HS);
        }
        bool group_is_complete = next % (a->ring.Hq / a->ring.Hkv) == 0, last_hop = a->g->shape.cp > 1 && next == a->heads.Hq;
        if (group_is_complete && !last_hop) attention_2d_slice_home(a, saved);
    }
    if (a->g->shape.hp > 1) attention_2d_alltoall_start(a, "SeqAlltoAll dQ", saved.q, dout, attention_2d_q_count(a));
    if (a->g->shape.cp == 1 && a->g->shape.hp > 1) attention_2d_send_dkv(a, saved);
}
static inline void attention_2d_backward_finish(attention_2d *a, attention_saved saved) {
    if (a->g->shape.cp > 1) attention_2d_slice_home(a, saved);
    if (a->g->shape.hp == 1) return;
    if (a->g->shape.cp > 1) attention_2d_send_dkv(a, saved);
    transfer_finish(a->g->hp_group);
    transfer_finish(a->g->hp_group);
}
// After that, dqkv (rows, H + 2 Hkv, HS), rotated back, of rows [first, first + rows) of T.
static inline void attention_2d_unpack(const attention_2d *a, floatX *dqkv, const floatX *dout, attention_saved saved, const float *table,
                                       int64_t first, int64_t rows) {
    op_rope_unpack_backward(dqkv, a->g->shape.hp > 1 ? dout : saved.q, saved.kv, table, a->T, a->heads, first, rows);
}

#endif
