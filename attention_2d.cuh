// 2D-Attention (LoongTrain sections 4.1, 4.2, Algorithm 1): SeqAlltoAll over the hp ranks of a head-parallel group turns "my tokens,
// all heads" into "all tokens of the group, my heads"; Double-Ring-Attention runs over the cp ranks; a second SeqAlltoAll turns back.
//
//     qkv (T, H + 2 Hkv, HS)  --rotate, deal-->  q (hp, T, Hq, HS), kv (hp, T, 2 Hkv', HS)  --SeqAlltoAll-->
//     q (Tc, Hq, HS), kv (Tc, 2 Hkv', HS)   with Tc = hp T rows in sequence order, Hq = H / hp query heads of a rank, and
//                                           Hkv' = head_layout.Hkv_local key/value heads (max(Hkv, hp) / hp where one divides the other)
//     --ring-->  out (Tc, Hq, HS), lse (Hq, Tc)  --SeqAlltoAll-->  out (T, H, HS)
//
// RoPE writes straight into the send layout, so there is no pack kernel. With hp > Hkv a key/value head is sent to every peer that
// needs it (KV replication), and the gradients of its copies are summed once, in the order of peers, on the rank they come back to.
//
// Where a rank has the whole sequence to itself (hp = cp = 1), nothing is sent, and attention may take its heads in passes: the layout above, with passes
// for peers. Only one pass's float results exist at a time, so that a longer sequence fits. The copies into and out of that layout cost some 64 KiB of
// memory traffic a token and layer of Llama-3-8B: 0.25 % of a step at 128K tokens on an H100 by arithmetic, and less the longer the sequence.
// Bytes a rank sends (LoongTrain 4.5.4) per layer and sequence, E = sizeof(floatX):
//     forward   E T HS (H + 2 hp Hkv' + H) (hp - 1) / hp        backward: the same
#ifndef ATTENTION_2D_CUH
#define ATTENTION_2D_CUH

#include "double_ring.cuh" // defines: double_ring_*, arena, grid, op_*

// What a layer's attention keeps for its backward pass (one sequence). With several passes, q, kv and lse of each lie one behind another.
typedef struct {
    floatX *q;   // (Tc, Hq, HS), rotated
    floatX *kv;  // (Tc, 2 Hkv', HS), keys rotated
    floatX *out; // (Tc, Hq, HS), merged over all blocks; of all passes, (T, H, HS)
    float *lse;  // (Hq, Tc), merged
    document_rows documents; // the caller's; the same in both passes
} attention_saved;

typedef struct {
    const grid *g;
    int passes;        // 1, unless hp = cp = 1
    head_layout heads; // of hp peers, or of as many as there are passes
    int64_t T, Tc;     // local rows before and after SeqAlltoAll
    double_ring ring;
    floatX *q_send;  // (hp, T, Hq, HS): q, dout. With hp = 1 nothing is sent, and these two are NULL
    floatX *kv_send; // (hp, T, 2 Hkv', HS)
    float *out_float; // (Tc, Hq, HS): out accumulates in float; dq in the backward pass, and then dkv leaves from here, (hp, T, 2 Hkv', HS) floatX
    float *delta;     // (Hq, Tc)
    floatX *pass_out, *pass_dout; // (T, Hq, HS): out and dout of one pass; with a single one NULL
} attention_2d;

static inline int64_t attention_2d_q_count(const attention_2d *a) { return a->T * a->heads.H * a->heads.HS; }
static inline int64_t attention_2d_kv_count(const attention_2d *a) { return a->passes * a->Tc * 2 * a->heads.Hkv_local * a->heads.HS; }
// Does attention_2d_backward_finish read dq and dkv in float? Then dqkv may lie where q and kv are, but not where the buffers of attention_2d_layout are.
static inline bool attention_2d_from_float(const attention_2d *a) { return a->g->shape.hp == 1 && a->passes == 1; }

// T rows per rank; needs hp dividing H and, when cp > 1, hp T even. passes: 1 unless hp = cp = 1; divides Hkv. All buffers are still to be taken.
static inline void attention_2d_describe(attention_2d *a, const grid *g, int H, int Hkv, int HS, int64_t T, bool allgather, bool dkv_bf16, bool packed,
                                         int passes) {
    memset(a, 0, sizeof *a);
    a->g = g;
    a->passes = passes;
    a->heads = head_layout_make(g->shape.hp * passes, H, Hkv, HS);
    a->T = T;
    a->Tc = T * g->shape.hp;
    a->ring.g = g;
    a->ring.Tc = a->Tc;
    a->ring.Hq = a->heads.Hq;
    a->ring.Hkv = a->heads.Hkv_local;
    a->ring.HS = HS;
    a->ring.allgather = allgather && g->shape.cp > 1;
    a->ring.dkv_bf16 = dkv_bf16;
    a->ring.packed = packed;
}
// Takes q_send and kv_send, in use from attention_2d_distribute_start to attention_2d_distribute_finish, and when attention_2d_backward_start begins:
// never while a ring runs.
static inline void attention_2d_layout_sends(attention_2d *a, arena *memory) {
    if (a->g->shape.hp == 1) return;
    a->q_send = ARENA_TAKE_X(memory, MEM_RING, attention_2d_q_count(a));
    a->kv_send = ARENA_TAKE_X(memory, MEM_RING, attention_2d_kv_count(a));
}
// Takes the other buffers, in use during attention_2d_ring_forward, and from attention_2d_backward_start on until dqkv is being written, or
// (attention_2d_from_float) has been.
static inline void attention_2d_layout(attention_2d *a, arena *memory) {
    int64_t pass = attention_2d_q_count(a) / a->passes, kv_floats = attention_2d_kv_count(a) * (int64_t)arena_element(memory) / (int64_t)sizeof(float);
    a->out_float = ARENA_TAKE(memory, MEM_WORKSPACE, float, a->g->shape.hp > 1 ? max_i64(pass, kv_floats) : pass); // attention_2d_send_dkv; bf16 always fits
    double_ring_layout(&a->ring, memory);
    a->delta = !a->ring.forward_only ? ARENA_TAKE(memory, MEM_WORKSPACE, float, a->Tc * a->heads.Hq) : NULL;
    a->pass_out = a->passes > 1 ? ARENA_TAKE_X(memory, MEM_WORKSPACE, pass) : NULL;
    a->pass_dout = a->passes > 1 && !a->ring.forward_only ? ARENA_TAKE_X(memory, MEM_WORKSPACE, pass) : NULL;
}
// One pass's part of what a layer keeps; out lies row by row, so that of one pass is copied (pass_out).
static inline attention_saved attention_2d_pass(const attention_2d *a, attention_saved s, int pass) {
    s.q += pass * (attention_2d_q_count(a) / a->passes);
    s.kv += pass * (attention_2d_kv_count(a) / a->passes);
    s.lse += pass * a->heads.Hq * a->Tc;
    return s;
}

static inline void attention_2d_alltoall_start(const attention_2d *a, const char *name, const floatX *send, floatX *recv, int64_t count) {
    trace_transfer(a->g->hp_group, name, -1);
    comm_alltoall_start(a->g->hp_group, send, recv, sizeof(floatX) * (size_t)(count / a->g->shape.hp));
}

// saved.q and saved.kv from qkv (T, H + 2 Hkv, HS); table: cos and sin of the local rows, (T, HS/2, 2). Both are complete after
// attention_2d_distribute_finish. The first part of the forward pass; Selective Checkpoint++ runs it again in the backward pass.
static inline void attention_2d_distribute_start(const attention_2d *a, attention_saved saved, const floatX *qkv, const float *table) {
    if (a->g->shape.hp == 1) {
        op_rope_pack_forward(saved.q, saved.kv, qkv, table, a->T, a->heads);
        return;
    }
    op_rope_pack_forward(a->q_send, a->kv_send, qkv, table, a->T, a->heads);
    attention_2d_alltoall_start(a, "SeqAlltoAll KV", a->kv_send, saved.kv, attention_2d_kv_count(a));
    attention_2d_alltoall_start(a, "SeqAlltoAll Q", a->q_send, saved.q, attention_2d_q_count(a));
}
static inline void attention_2d_distribute_finish(const attention_2d *a) {
    if (a->g->shape.hp == 1) return;
    transfer_finish(a->g->hp_group);
    transfer_finish(a->g->hp_group);
}

// out (T, H, HS) from saved.out, complete after attention_2d_collect_finish. The last part of the forward pass; Selective Checkpoint++ runs it
// again in the backward pass. With hp = 1 the two are one buffer and there is nothing to do. arriving (hp, T, Hq, HS): in use until then.
static inline void attention_2d_collect_start(const attention_2d *a, attention_saved saved, floatX *arriving) {
    if (a->g->shape.hp > 1) attention_2d_alltoall_start(a, "SeqAlltoAll out", saved.out, arriving, attention_2d_q_count(a));
}
static inline void attention_2d_collect_finish(const attention_2d *a, floatX *out, const floatX *arriving) {
    if (a->g->shape.hp == 1) return;
    transfer_finish(a->g->hp_group);
    op_heads_unpack(out, arriving, a->T, a->heads, 0, a->heads.peers);
}

// The part between the two: saved.out and saved.lse from saved.q and saved.kv.
static inline void attention_2d_ring_forward(attention_2d *a, attention_saved saved) {
    for (int i = 0; i < a->passes; i++) {
        attention_saved s = attention_2d_pass(a, saved, i);
        double_ring_forward(&a->ring, a->out_float, s.lse, s.q, s.kv, s.documents);
        op_cast_from_float(a->passes > 1 ? a->pass_out : saved.out, a->out_float, attention_2d_q_count(a) / a->passes);
        if (a->passes > 1) op_heads_unpack(saved.out, a->pass_out, a->T, a->heads, i, 1);
    }
}

// Back to where the tokens are, into saved.kv, which the ring has used up; from out_float, because dq has left it.
static inline void attention_2d_send_dkv(attention_2d *a, attention_saved saved) {
    floatX *leaving = (floatX *)(void *)a->out_float;
    op_cast_from_float(leaving, double_ring_home(&a->ring), attention_2d_kv_count(a));
    attention_2d_alltoall_start(a, "SeqAlltoAll dKV", leaving, saved.kv, attention_2d_kv_count(a));
}

// The backward pass of one pass over the heads: dq and dkv, rounded, take the places of q and kv.
static inline void attention_2d_pass_backward(attention_2d *a, const floatX *dout, attention_saved saved, int pass) {
    attention_saved s = attention_2d_pass(a, saved, pass);
    op_heads_pack(a->pass_out, saved.out, a->T, a->heads, pass, 1);
    op_heads_pack(a->pass_dout, dout, a->T, a->heads, pass, 1);
    double_ring_queries t = {.dq = a->out_float, .q = s.q, .out = a->pass_out, .dout = a->pass_dout, .lse = s.lse, .delta = a->delta,
                             .documents = s.documents};
    op_attention_delta(a->delta, t.out, t.dout, double_ring_whole(&a->ring));
    double_ring_backward(&a->ring, &t, s.kv);
    op_cast_from_float(s.q, t.dq, attention_2d_q_count(a) / a->passes);
    op_cast_from_float(s.kv, double_ring_home(&a->ring), attention_2d_kv_count(a) / a->passes);
}

// dqkv (T, H + 2 Hkv, HS) from dout (T, H, HS) and what the forward pass saved, in two halves: compute that is issued between them hides SeqAlltoAll of
// dQ, and of dKV if cp = 1; otherwise dKV's first hop home. saved.q and saved.kv are overwritten, and with hp > 1 dout: it becomes (Tc, Hq, HS), and later
// dQ arrives there.
static inline void attention_2d_backward_start(attention_2d *a, floatX *dout, attention_saved saved) {
    if (a->passes > 1) {
        for (int i = 0; i < a->passes; i++) attention_2d_pass_backward(a, dout, saved, i);
        return;
    }
    int64_t nq = attention_2d_q_count(a);
    if (a->g->shape.hp > 1) {
        op_heads_pack(a->q_send, dout, a->T, a->heads, 0, a->heads.peers);
        attention_2d_alltoall_start(a, "SeqAlltoAll dout", a->q_send, dout, nq);
        transfer_finish(a->g->hp_group);
    }
    double_ring_queries t = {.dq = a->out_float, .q = saved.q, .out = saved.out, .dout = dout, .lse = saved.lse, .delta = a->delta,
                             .documents = saved.documents};
    op_attention_delta(a->delta, saved.out, dout, double_ring_whole(&a->ring));
    double_ring_backward(&a->ring, &t, saved.kv);
    if (a->g->shape.hp == 1) return;
    op_cast_from_float(saved.q, t.dq, nq);
    attention_2d_alltoall_start(a, "SeqAlltoAll dQ", saved.q, dout, nq);
    if (a->g->shape.cp == 1) attention_2d_send_dkv(a, saved);
}
static inline void attention_2d_backward_finish(attention_2d *a, floatX *dqkv, const floatX *dout, attention_saved saved, const float *table) {
    if (attention_2d_from_float(a)) {
        op_rope_unpack_backward_float(dqkv, a->out_float, double_ring_home(&a->ring), table, a->T, a->heads);
        return;
    }
    if (a->g->shape.hp > 1) {
        if (a->g->shape.cp > 1) attention_2d_send_dkv(a, saved);
        transfer_finish(a->g->hp_group);
        transfer_finish(a->g->hp_group);
    }
    op_rope_unpack_backward(dqkv, a->g->shape.hp > 1 ? dout : saved.q, saved.kv, table, a->T, a->heads);
}

#endif
