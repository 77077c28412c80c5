// ranks: 8
// device: emulated
// Where parameters and activations are bf16, the sums of a ring are float all the same, from the first block to the last: out, lse, dq, dk
// and dv of 2, 4 and 8 ranks, with every window and with --cp-comm allgather, are as near to attention in double precision as one rank's.
// (test_attention says the same of every grid, but of the CPU device, on which all numbers are float.) (F3-F5)
#include "../attention_2d.cuh"
#include "attention_reference.h"

// Sums in float of numbers that are exactly in bf16: a few 1e-7 of the largest. A sum that is once stored in bf16 is off by up to 2e-3.
#define BOUND 2e-6

enum { S = 96, H = 4, HKV = 2, HS = 16, Q = H * HS, KV = 2 * HKV * HS }; // Q, KV: elements of a row

static double q[S * Q], kv[S * KV], dout[S * Q];
static double out[S * Q], lse[H * S], dq[S * Q], dkv[S * KV]; // by the reference

static void draw(double *x, int64_t n, uint64_t seed) {
    for (int64_t i = 0; i < n; i++) x[i] = (double)float_of_bf16(bf16_of_float((float)test_random(seed, (uint64_t)i)));
}
static void store(floatX *to, const double *from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i].bits = bf16_of_float((float)from[i]);
}
static double worst(const float *here, const double *there, int64_t n, double so_far) {
    for (int64_t i = 0; i < n; i++) so_far = test_worse(so_far, fabs((double)here[i] - there[i]));
    return so_far;
}
static double largest(const double *x, int64_t n) {
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(x[i]));
    return most;
}

static void check_ring(int cp, int w, bool allgather, comm *ranks) {
    grid g;
    grid_create(&g, (grid_shape){.dp = 1, .hp = 1, .cp = cp, .w = w}, allgather, ranks);
    sequence_shard shard = sequence_shard_make(S, 1, cp, 0, g.place.c, 1);
    int64_t T = shard.T;
    attention_2d a;
    arena memory;
    for (int pass = 0; pass < 2; pass++) { // counts; takes
        char *base = pass == 0 ? NULL : (char *)device_alloc(memory.peak);
        memset(&memory, 0, sizeof memory);
        memory.base = base;
        attention_2d_describe(&a, &g, H, HKV, HS, T, allgather, false, false, 0);
        attention_2d_layout(&a, &memory);
    }
    floatX *x = (floatX *)device_alloc(sizeof(floatX) * (size_t)(T * (2 * Q + KV))), *own_kv = x + T * Q, *own_dout = own_kv + T * KV;
    float *own_lse = (float *)device_alloc(sizeof(float) * (size_t)(H * T));
    for (int64_t t = 0; t < T; t++) {
        int64_t p = sequence_shard_position(&shard, t);
        store(x + t * Q, q + p * Q, Q);
        store(own_kv + t * KV, kv + p * KV, KV);
        store(own_dout + t * Q, dout + p * Q, Q);
    }
    double far[4] = {0, 0, 0, 0}; // out, lse, dq, dkv
    double_ring_forward(&a.ring, a.out_float, own_lse, x, own_kv, (document_rows){NULL, NULL, NULL});
    for (int64_t t = 0; t < T; t++) {
        int64_t p = sequence_shard_position(&shard, t);
        const float *row = a.out_float + t * Q;
        far[0] = worst(row, out + p * Q, Q, far[0]);
        for (int h = 0; h < H; h++) {
            double delta = 0;
            for (int d = h * HS; d < (h + 1) * HS; d++) delta += (double)row[d] * dout[p * Q + d];
            a.delta[h * T + t] = (float)delta;
            far[1] = worst(&own_lse[h * T + t], &lse[h * S + p], 1, far[1]);
        }
    }
    // out: not read by the hand-written kernels, which so few rows are for
    double_ring_queries t = {.dq = a.out_float, .q = x, .out = x, .dout = own_dout, .lse = own_lse, .delta = a.delta};
    double_ring_backward(&a.ring, &t, own_kv);
    const float *home = double_ring_home(&a.ring);
    for (int64_t row = 0; row < T; row++) {
        int64_t p = sequence_shard_position(&shard, row);
        far[2] = worst(a.out_float + row * Q, dq + p * Q, Q, far[2]);
        far[3] = worst(home + row * KV, dkv + p * KV, KV, far[3]);
    }
    const double most[4] = {largest(out, S * Q), largest(lse, H * S), largest(dq, S * Q), largest(dkv, S * KV)};
    for (int i = 0; i < 4; i++) far[i] /= most[i];
    CHECK(far[0] <= BOUND && far[1] <= BOUND && far[2] <= BOUND && far[3] <= BOUND, "cp %d w %d%s: out %.1e lse %.1e dq %.1e dkv %.1e", cp,
          w, allgather ? " allgather" : "", far[0], far[1], far[2], far[3]);
    if (g.rank == 0)
        printf("cp %d w %d%s: out %.1e lse %.1e dq %.1e dkv %.1e\n", cp, w, allgather ? " allgather" : "", far[0], far[1], far[2], far[3]);
    device_free(own_lse);
    device_free(x);
    device_free(memory.base);
    grid_free(&g);
}

int main(int argc, char **argv) {
    comm *world = test_start(&argc, &argv);
    draw(q, S * Q, 1);
    draw(kv, S * KV, 2);
    draw(dout, S * Q, 3);
    attention_block b = {.Tq = S, .Tk = S, .Hq = H, .Hkv = HKV, .HS = HS, .q_stride = Q, .sum_stride = Q, .kv_stride = KV, .lse_stride = S,
                         .scale = 1 / sqrtf((float)HS), .causal = true};
    int v = HKV * HS;
    attention_reference(b, (attention_doubles){q, kv, kv + v, dout, out, lse, NULL, dq, dkv, dkv + v}, NULL);
    for (int cp = 1; cp <= 8; cp *= 2) {
        comm *ranks = comm_split(world, comm_rank(world) < cp ? 0 : -1, comm_rank(world), COMM_CONTROL);
        for (int w = 1; ranks != NULL && w <= cp; w *= 2) check_ring(cp, w, false, ranks);
        if (ranks != NULL && cp > 1) check_ring(cp, cp, true, ranks);
        comm_free(ranks);
        comm_barrier(world);
    }
    int status = test_finish("test_ring_precision", world);
    comm_finalize();
    return status;
}
