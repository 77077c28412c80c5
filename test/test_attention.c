// ranks: 8
// 2D-Attention on every grid of 1, 2, 3, 4, 6 and 8 ranks x every w x placement x ring/all-gather x MHA, GQA, MQA, against attention in
// double precision over the whole sequence: out, lse, and dqkv (so dQ, dK, dV through RoPE and replication). The bound is the same for
// every ring, so an error that grows with the ring fails. (F3-F9, F11-F13, F15, F16, F18, F23, F43)
#include "../attention_2d.cuh"
#include "../dataloader.h"
#include "attention_reference.h"

// 2e-6 of the largest element: inputs are float, and sums of HS and of S products in float have a relative error of a few 2^-24 each.
#define BOUND 2e-6
// dK and dV with --dkv-wire bf16, relative to the largest element of dqkv: rounding a partial sum changes it by at most 2^-8. There are at
// most cp roundings, which are independent: sqrt(cp) 2^-8. Nothing else may change.
#define BOUND_BF16(cp) (sqrt((double)(cp)) / 256)

typedef struct {
    int H, Hkv, HS;
    int64_t S;
    double *qkv, *dout;       // (S, H + 2 Hkv, HS), and dout in rows of this length
    double *out, *lse, *dqkv; // the reference; out in such rows, too
} problem;

static double angle(int64_t position, int i, int half) { return (double)position * pow(10000.0, -(double)i / half); }
static void rotate(double *x, int64_t position, int HS, double sign) {
    for (int i = 0; i < HS / 2; i++) {
        double c = cos(angle(position, i, HS / 2)), s = sign * sin(angle(position, i, HS / 2)), a = x[i], b = x[i + HS / 2];
        x[i] = a * c - b * s;
        x[i + HS / 2] = b * c + a * s;
    }
}

static void solve(problem *p) {
    int H = p->H, Hkv = p->Hkv, HS = p->HS, width = (H + 2 * Hkv) * HS;
    int64_t S = p->S;
    p->qkv = HOST_NEW(double, S * width);
    p->dqkv = HOST_NEW(double, S * width);
    p->out = HOST_NEW(double, S * width);
    p->dout = HOST_NEW(double, S * width);
    p->lse = HOST_NEW(double, H * S);
    for (int64_t i = 0; i < S * width; i++) { // exactly what the ranks get
        p->qkv[i] = (float)(2 * test_random(7, (uint64_t)i));
        p->dout[i] = (float)test_random(8, (uint64_t)i);
    }
    double *x = HOST_NEW(double, S * width), *dx = p->dqkv;
    memcpy(x, p->qkv, sizeof(double) * (size_t)(S * width));
    for (int64_t t = 0; t < S; t++)
        for (int h = 0; h < H + Hkv; h++) rotate(x + t * width + h * HS, t, HS, 1);
    attention_block b = {.Tq = S, .Tk = S, .Hq = H, .Hkv = Hkv, .HS = HS, .q_stride = width, .sum_stride = width, .kv_stride = width,
                         .lse_stride = S, .scale = 1 / sqrtf((float)HS), .causal = true};
    int k = H * HS, v = (H + Hkv) * HS;
    attention_reference(b, (attention_doubles){x, x + k, x + v, p->dout, p->out, p->lse, NULL, dx, dx + k, dx + v}, NULL);
    for (int64_t t = 0; t < S; t++)
        for (int h = 0; h < H + Hkv; h++) rotate(dx + t * width + h * HS, t, HS, -1);
    free(x);
}

static double worst_bf16; // largest error of dK and dV sent as bf16, as a part of its bound

static double largest_of(const double *x, int64_t n) {
    double m = 0;
    for (int64_t i = 0; i < n; i++)
        if (fabs(x[i]) > m) m = fabs(x[i]); // fmax is a call
    return m;
}

static void attention_layout(attention_2d *a, arena *memory, const grid *g, int H, int Hkv, int HS, int64_t T, bool allgather,
                             bool dkv_bf16, int64_t slice_bytes) {
    attention_2d_describe(a, g, H, Hkv, HS, T, allgather, dkv_bf16, false, slice_bytes);
    arena_place place = arena_share_begin(memory); // as in model.h
    attention_2d_layout(a, memory);
    arena_share(memory, &place);
    attention_2d_layout_q_send(a, memory);
    attention_2d_layout_kv_send(a, memory);
    arena_share(memory, &place);
    attention_2d_layout_dkv_send(a, memory);
    arena_share_end(memory, &place);
}
// heads: of a slice
static void check_grid_as(const problem *p, grid_shape shape, bool allgather, bool dkv_bf16, int heads, comm *ranks) {
    grid g;
    grid_create(&g, shape, allgather, ranks);
    int H = p->H, Hkv = p->Hkv, HS = p->HS, width = (H + 2 * Hkv) * HS;
    sequence_shard shard = sequence_shard_make(p->S, shape.hp, shape.cp, g.place.h, g.place.c, 1);
    int64_t T = shard.T, slice_bytes = heads * T * shape.hp * HS * (int64_t)sizeof(float);
    attention_2d a;
    arena memory;
    memset(&memory, 0, sizeof memory);
    attention_layout(&a, &memory, &g, H, Hkv, HS, T, allgather, dkv_bf16, slice_bytes);
    size_t bytes = memory.peak;
    memset(&memory, 0, sizeof memory);
    memory.base = (char *)device_alloc(bytes);
    memset(memory.base, 0xff, bytes); // NaN, which a read before the first write brings into the result
    attention_layout(&a, &memory, &g, H, Hkv, HS, T, allgather, dkv_bf16, slice_bytes);
    CHECK(memory.peak == bytes, "counting and taking memory disagree: %zu %zu", bytes, memory.peak);

    float *qkv = HOST_NEW(float, T * width), *dqkv = HOST_NEW(float, T * width), *table = HOST_NEW(float, T * HS);
    float *out = HOST_NEW(float, T * H * HS), *dout = HOST_NEW(float, T * H * HS);
    attention_saved saved;
    memset(&saved, 0, sizeof saved);
    saved.q = HOST_NEW(float, T * H * HS);
    saved.kv = HOST_NEW(float, attention_2d_kv_count(&a));
    saved.out = shape.hp == 1 ? out : HOST_NEW(float, T * H * HS);
    saved.lse = HOST_NEW(float, T * H);
    for (int64_t t = 0; t < T; t++) {
        int64_t position = sequence_shard_position(&shard, t);
        for (int i = 0; i < HS / 2; i++) {
            table[t * HS + 2 * i] = (float)cos(angle(position, i, HS / 2));
            table[t * HS + 2 * i + 1] = (float)sin(angle(position, i, HS / 2));
        }
        if (position >= p->S) { // padding: any finite numbers, and a gradient of zero
            for (int i = 0; i < width; i++) qkv[t * width + i] = 1;
            continue;
        }
        for (int i = 0; i < width; i++) qkv[t * width + i] = (float)p->qkv[position * width + i];
        for (int i = 0; i < H * HS; i++) dout[t * H * HS + i] = (float)p->dout[position * width + i];
    }
    int group = a.ring.Hq / a.ring.Hkv, slice_group = a.ring.slice.Hq / a.ring.slice.Hkv;
    CHECK(a.ring.slice.Hq == heads && (shape.cp == 1 || slice_group == group),
          "hp %d cp %d: a slice of %d heads, not %d", shape.hp, shape.cp, a.ring.slice.Hq, heads);
    for (int64_t at = 0; at < T; at += 7) attention_2d_pack(&a, saved, qkv + at * width, table, at, min_i64(7, T - at));
    attention_2d_distribute_start(&a, saved);
    attention_2d_distribute_finish(&a);
    attention_2d_ring_forward(&a, saved);
    float *arriving = HOST_NEW(float, T * H * HS);
    attention_2d_collect_start(&a, saved, arriving);
    attention_2d_collect_finish(&a, out, arriving);
    free(arriving);
    memset(memory.base, 0xff, bytes); // as if other layers had used it before the backward pass
    attention_2d_backward_start(&a, dout);
    attention_2d_backward_ring(&a, dout, saved);
    attention_2d_backward_finish(&a, saved);
    for (int64_t at = 0; at < T; at += 5) attention_2d_unpack(&a, dqkv + at * width, dout, saved, table, at, min_i64(5, T - at));

    double worst_out = 0, worst_dq = 0, worst_dkv = 0, worst_lse = 0;
    for (int64_t t = 0; t < T; t++) {
        int64_t position = sequence_shard_position(&shard, t);
        for (int i = 0; i < H * HS && position < p->S; i++) {
            worst_out = test_worse(worst_out, fabs(out[t * H * HS + i] - p->out[position * width + i]));
        }
        for (int i = 0; i < width; i++) {
            double d = fabs(dqkv[t * width + i] - (position < p->S ? p->dqkv[position * width + i] : 0));
            double *worst = i < H * HS ? &worst_dq : &worst_dkv;
            *worst = test_worse(*worst, d);
        }
    }
    for (int64_t t = 0; t < a.Tc; t++) { // lse has the rows and heads of after SeqAlltoAll
        sequence_shard whole = sequence_shard_make(p->S, shape.hp, shape.cp, (int)(t / T), g.place.c, 1);
        int64_t position = sequence_shard_position(&whole, t % T);
        for (int h = 0; h < H / shape.hp && position < p->S; h++) {
            double d = fabs(saved.lse[h * a.Tc + t] - p->lse[(g.place.h * (H / shape.hp) + h) * p->S + position]);
            worst_lse = test_worse(worst_lse, d);
        }
    }
    worst_out /= largest_of(p->out, p->S * width);
    worst_dq /= largest_of(p->dqkv, p->S * width);
    worst_dkv /= largest_of(p->dqkv, p->S * width);
    worst_lse /= largest_of(p->lse, p->S * H);
    double bound = dkv_bf16 && shape.cp > 1 ? BOUND_BF16(shape.cp) : BOUND;
    CHECK(worst_out <= BOUND && worst_dq <= BOUND && worst_dkv <= bound && worst_lse <= BOUND,
          "hp %d cp %d w %d %s %s%s H %d Hkv %d S %lld, slices of %d: out %.1e lse %.1e dq %.1e dkv %.1e", shape.hp, shape.cp, shape.w,
          shape.placement == PLACEMENT_HEAD_FIRST ? "head-first" : "context-first", allgather ? "allgather" : "ring",
          dkv_bf16 ? " bf16" : "", H, Hkv, (long long)p->S, a.ring.slice.Hq, worst_out, worst_lse, worst_dq, worst_dkv);
    if (dkv_bf16) {
        comm_max_double(ranks, &worst_dkv, 1); // a rank may hold nothing but padding
        CHECK(worst_dkv > 2e-5, "hp %d cp %d w %d: dkv %.1e: nothing was rounded", shape.hp, shape.cp, shape.w, worst_dkv);
        worst_bf16 = fmax(worst_bf16, worst_dkv / bound);
    }
    if (shape.hp > 1) free(saved.out);
    free(saved.q); free(saved.kv); free(saved.lse);
    free(qkv); free(dqkv); free(table); free(out); free(dout);
    device_free(memory.base);
    grid_free(&g);
}

static void check_grid(const problem *p, grid_shape shape, bool allgather, comm *ranks) {
    head_layout l = head_layout_make(shape.hp, p->H, p->Hkv, p->HS);
    for (int heads = 1; heads <= l.Hq; heads++) {
        bool ring = shape.cp > 1, whole = l.Hq % heads == 0 && (heads % l.group_local == 0 || (!ring && l.group_local % heads == 0));
        int slice = attention_2d_first_slice(1, l.Hq, l.Hkv_local, p->HS, ring, heads * p->HS * (int64_t)sizeof(float)).Hq;
        CHECK(whole ? slice == heads : slice < heads || (ring && slice == l.group_local),
              "%d of %d heads: a slice of %d", heads, l.Hq, slice);
        if (!whole) continue; // the same as with fewer heads, or with a group
        if (TEST_SANITIZED && heads > 1 && heads < l.Hq && (heads + shape.hp + shape.w) % 3 != 0) continue;
        check_grid_as(p, shape, allgather, false, heads, ranks);
        if (shape.placement == PLACEMENT_HEAD_FIRST && shape.cp > 1) check_grid_as(p, shape, allgather, true, heads, ranks);
    }
}

int main(int argc, char **argv) {
    comm *world = test_start(&argc, &argv);
    // S 101 is a prime: padding on every grid of several ranks. H 12, Hkv 4 with hp 3, 6: key/value slots neither shared nor split evenly.
    problem problems[] = {{24, 24, 4, 96, NULL, NULL, NULL, NULL, NULL}, {24, 8, 4, 101, NULL, NULL, NULL, NULL, NULL},
                          {12, 4, 8, 50, NULL, NULL, NULL, NULL, NULL},  {24, 1, 4, 64, NULL, NULL, NULL, NULL, NULL},
                          {8, 2, 6, 5, NULL, NULL, NULL, NULL, NULL}};
    static const int sizes[] = {1, 2, 3, 4, 6, 8};
    comm *ranks[6];
    for (int i = 0; i < 6; i++) ranks[i] = comm_split(world, comm_rank(world) < sizes[i] ? 0 : -1, comm_rank(world), COMM_CONTROL);
    for (size_t k = 0; k < sizeof problems / sizeof *problems; k++) {
        problem *p = &problems[k];
        solve(p);
        for (int i = 0; i < 6; i++) {
            if (ranks[i] == NULL) continue;
            for (int hp = 1; hp <= sizes[i]; hp++) {
                if (sizes[i] % hp != 0 || p->H % hp != 0) continue;
                int cp = sizes[i] / hp;
                for (int w = 1; w <= cp; w++) {
                    if (cp % w != 0) continue;
                    for (int placement = 0; placement < 2; placement++) {
                        // With hp 1 or cp 1 both placements are one map.
                        if (TEST_SANITIZED ? placement != (w + (int)k) % 2 : placement == 1 && (hp == 1 || cp == 1)) continue;
                        grid_shape shape = {.dp = 1, .hp = hp, .cp = cp, .w = w,
                                            .placement = placement == 0 ? PLACEMENT_HEAD_FIRST : PLACEMENT_CONTEXT_FIRST};
                        check_grid(p, shape, false, ranks[i]);
                        shape.gpus_per_node = 8;
                        shape.nics_per_node = 4;
                        if (grid_weave(&shape) > 1) check_grid(p, shape, false, ranks[i]);
                        if (w == cp && (cp > 1 || hp == 1)) check_grid(p, shape, true, ranks[i]); // one rank ignores it
                    }
                }
            }
        }
        comm_barrier(world);
    }
    comm_test_delay(300, 1); // late transfers must change nothing
    for (int w = 1; w <= 8; w *= 2) {
        grid_shape shape = {.dp = 1, .hp = 1, .cp = 8, .w = w};
        check_grid(&problems[1], shape, false, world);
        if (w == 8) check_grid(&problems[1], shape, true, world);
    }
    comm_max_double(world, &worst_bf16, 1);
    if (comm_rank(world) == 0) printf("dKV sent as bf16: at most %.2f of the bound of sqrt(cp) 2^-8\n", worst_bf16);
    int status = test_finish("test_attention", world);
    comm_finalize();
    return status;
}
