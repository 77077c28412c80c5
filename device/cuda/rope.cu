// Rotary position embedding fused with the layout change for SeqAlltoAll, and the layout change alone. See device/ops.h.
// One block per token; its threads divide the token's heads in pieces of W elements.
#include "kernel.cuh"

// Rotates W pairs (a, b) by the angles at table: (a c - b s, a s + b c); direction -1 rotates back.
template <int W> __device__ __forceinline__ void rotate(float (&a)[W], float (&b)[W], const float *table, float direction) {
    float angle[2 * W];
    load<2 * W>(angle, table);
#pragma unroll
    for (int k = 0; k < W; k++) {
        float c = angle[2 * k], s = angle[2 * k + 1] * direction, x = a[k], y = b[k];
        a[k] = x * c - y * s;
        b[k] = x * s + y * c;
    }
}

template <int W>
__global__ void rope_pack_kernel(floatX *q_send, floatX *kv_send, const floatX *qkv, const float *table, int64_t T, head_layout l,
                                 int64_t first) {
    int64_t t = first + blockIdx.x;
    int half = l.HS / 2, pieces = half / W, slots = l.Hq + 2 * l.Hkv_local; // per peer: its query heads, key slots, value slots
    const floatX *row = qkv + (t - first) * (l.H + 2 * l.Hkv) * l.HS;
    for (int item = (int)threadIdx.x; item < l.peers * slots * pieces; item += (int)blockDim.x) {
        int i = item % pieces * W, slot = item / pieces % slots, peer = item / pieces / slots;
        int from; // head of the row
        floatX *to;
        if (slot < l.Hq) {
            from = peer * l.Hq + slot;
            to = q_send + ((peer * T + t) * l.Hq + slot) * l.HS;
        } else {
            int j = slot - l.Hq;
            from = l.H + (j < l.Hkv_local ? 0 : l.Hkv) + (peer * l.Hq + j % l.Hkv_local * l.group_local) / l.group;
            to = kv_send + ((peer * T + t) * 2 * l.Hkv_local + j) * l.HS;
        }
        float a[W], b[W];
        load<W>(a, row + (int64_t)from * l.HS + i);
        load<W>(b, row + (int64_t)from * l.HS + half + i);
        if (from < l.H + l.Hkv) rotate<W>(a, b, table + (t * half + i) * 2, 1); // queries and keys
        store<W>(to + i, a);
        store<W>(to + half + i, b);
    }
}

// Number the slots of all peers in a row: slot c is slot c % Hkv_local of peer c / Hkv_local. The copies of key/value head h then are in
// slots [h copies, (h + 1) copies), with copies = group / group_local.
template <int W>
__global__ void rope_unpack_kernel(floatX *dqkv, const floatX *dq_recv, const floatX *dkv_recv, const float *table, int64_t T,
                                   head_layout l, int64_t first) {
    int64_t t = first + blockIdx.x;
    int half = l.HS / 2, pieces = half / W, heads = l.H + 2 * l.Hkv, copies = l.group / l.group_local;
    for (int item = (int)threadIdx.x; item < heads * pieces; item += (int)blockDim.x) {
        int i = item % pieces * W, head = item / pieces;
        float a[W], b[W];
        if (head < l.H) {
            const floatX *from = dq_recv + ((head / l.Hq * T + t) * l.Hq + head % l.Hq) * l.HS;
            load<W>(a, from + i);
            load<W>(b, from + half + i);
        } else {
            bool value = head >= l.H + l.Hkv;
            int kv = head - l.H - (value ? l.Hkv : 0);
            for (int k = 0; k < W; k++) a[k] = b[k] = 0;
            for (int copy = kv * copies; copy < (kv + 1) * copies; copy++) {
                int slot = copy % l.Hkv_local + (value ? l.Hkv_local : 0);
                const floatX *from = dkv_recv + ((copy / l.Hkv_local * T + t) * 2 * l.Hkv_local + slot) * l.HS;
                float x[W], y[W];
                load<W>(x, from + i);
                load<W>(y, from + half + i);
#pragma unroll
                for (int k = 0; k < W; k++) {
                    a[k] += x[k];
                    b[k] += y[k];
                }
            }
        }
        if (head < l.H + l.Hkv) rotate<W>(a, b, table + (t * half + i) * 2, -1);
        floatX *to = dqkv + ((t - first) * heads + head) * l.HS;
        store<W>(to + i, a);
        store<W>(to + half + i, b);
    }
}

// (T, peers Hq, HS) <-> (peers, T, Hq, HS); width = Hq HS.
template <int W, bool PACKING> __global__ void heads_kernel(floatX *to, const floatX *from, int64_t T, int peers, int width) {
    int64_t t = blockIdx.x;
    int pieces = width / W;
    for (int item = (int)threadIdx.x; item < peers * pieces; item += (int)blockDim.x) {
        int peer = item / pieces, i = item % pieces * W;
        int64_t row = (t * peers + peer) * width + i, dealt = (peer * T + t) * width + i;
        float x[W];
        load<W>(x, from + (PACKING ? row : dealt));
        store<W>(to + (PACKING ? dealt : row), x);
    }
}

void op_rope_pack_forward(floatX *q_send, floatX *kv_send, const floatX *qkv, const float *table, int64_t T, head_layout heads,
                          int64_t first, int64_t rows) {
    if (rows == 0) return;
    int half = heads.HS / 2, items = heads.peers * (heads.Hq + 2 * heads.Hkv_local) * half;
    if (packs(half, q_send, kv_send, qkv, table))
        LAUNCH(rope_pack_kernel<PACK>, grid_size(rows), block_size(items / PACK, 256), 0, q_send, kv_send, qkv, table, T, heads, first);
    else
        LAUNCH(rope_pack_kernel<1>, grid_size(rows), block_size(items, 256), 0, q_send, kv_send, qkv, table, T, heads, first);
}
void op_rope_unpack_backward(floatX *dqkv, const floatX *dq_recv, const floatX *dkv_recv, const float *table, int64_t T, head_layout heads,
                             int64_t first, int64_t rows) {
    if (rows == 0) return;
    int half = heads.HS / 2, items = (heads.H + 2 * heads.Hkv) * half;
    if (packs(half, dqkv, dq_recv, dkv_recv, table))
        LAUNCH(rope_unpack_kernel<PACK>, grid_size(rows), block_size(items / PACK, 256), 0, dqkv, dq_recv, dkv_recv, table, T, heads,
               first);
    else
        LAUNCH(rope_unpack_kernel<1>, grid_size(rows), block_size(items, 256), 0, dqkv, dq_recv, dkv_recv, table, T, heads, first);
}

template <bool PACKING> static void heads_move(floatX *to, const floatX *from, int64_t T, head_layout heads) {
    if (T == 0) return;
    int width = heads.Hq * heads.HS, items = heads.peers * width;
    auto heads_packs_kernel = heads_kernel<PACK, PACKING>, heads_ones_kernel = heads_kernel<1, PACKING>;
    if (packs(width, to, from)) LAUNCH(heads_packs_kernel, grid_size(T), block_size(items / PACK, 256), 0, to, from, T, heads.peers, width);
    else LAUNCH(heads_ones_kernel, grid_size(T), block_size(items, 256), 0, to, from, T, heads.peers, width);
}
void op_heads_unpack(floatX *out, const floatX *out_recv, int64_t T, head_layout heads) { heads_move<false>(out, out_recv, T, heads); }
void op_heads_pack(floatX *out_send, const floatX *out, int64_t T, head_layout heads) { heads_move<true>(out_send, out, T, heads); }
