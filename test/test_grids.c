// ranks: 8
// One run, any grid: for every factorisation of 1, 2, 3, 4, 6 and 8 ranks into dp x hp x cp, every w, both placements, both cp-comm, for
// MHA, GQA and MQA, the loss, the gradient norm and every parameter gradient of a step equal the single-rank run's. So do the losses of
// 20 steps on many of these grids. Bytes and messages of SeqAlltoAll and the rings equal the formulas. (F3, F11-F13, F20, F23, F25-F29,
// F45, F46, F55)
#include "model_fixture.h"

// Float sums in another order: 1e-5 of a tensor's largest element is some 80 roundings; a wrong term is larger by orders of magnitude.
#define BOUND 1e-5
// With --dkv-wire bf16 the gradients of K and V are rounded at most 8 times, by at most 2^-8 each (test_attention): sqrt(8) 2^-8 is 0.011.
#define BOUND_BF16 0.011

enum { SIZES = 6, MAX_DP = 8, CURVE = TEST_SANITIZED ? 3 : 20 }; // steps
static const int sizes[SIZES] = {1, 2, 3, 4, 6, 8};

typedef struct {
    double loss, norm;
    float *gradients[16]; // per unit
    int64_t count[16];
    double curve[CURVE];
} reference;

// The step of `dp` x 2 samples on one rank.
static void make_reference(reference *r, const model_config *c, int dp, int64_t S, comm *self) {
    grid_shape one = {.dp = 1, .hp = 1, .cp = 1, .w = 1};
    fixture f;
    fixture_make(&f, c, one, self, fixture_setup(2 * dp, 1), RECOMPUTE_NONE, S);
    step_result s = model_step(&f.m, fixture_adamw(1), 1.0);
    r->loss = r->curve[0] = s.loss;
    r->norm = s.norm;
    for (int u = 0; u < c->L + 2; u++) {
        r->gradients[u] = fixture_gradient(&f, u);
        r->count[u] = f.m.units[u].count;
    }
    for (int step = 2; step <= CURVE; step++) r->curve[step - 1] = model_step(&f.m, fixture_adamw(step), 1.0).loss;
    fixture_free(&f);
}
// Gives every rank the one that `root` has made.
static void share_reference(reference *r, int units, int root, comm *world) {
    comm_broadcast(world, r, sizeof *r, root);
    for (int u = 0; u < units; u++) {
        if (comm_rank(world) != root) r->gradients[u] = HOST_NEW(float, r->count[u]);
        comm_broadcast(world, r->gradients[u], sizeof(float) * (size_t)r->count[u], root);
    }
}

// What a rank sends in forward and backward without recompute, by LoongTrain 4.5.3 and 4.5.4, in our layout.
static void check_wire(const fixture *f, const char *where) {
    const grid_shape *g = &f->g.shape;
    const model_config *c = &f->m.c;
    head_layout h = head_layout_make(g->hp, c->H, c->Hkv, c->HS);
    int64_t calls = f->m.setup.grad_accum * f->m.setup.B * c->L, T = f->shard.T, e = sizeof(floatX), windows = g->cp / g->w;
    // q, kv: elements of a Q and of a KV chunk.
    int64_t dkv = f->m.setup.dkv_bf16 ? 2 : 4, q = T * c->H * c->HS, kv = T * g->hp * 2 * h.Hkv_local * c->HS;
    bool ring = g->cp > 1 && !f->m.attention.ring.allgather, gather = g->cp > 1 && !ring;
    int64_t expected[COMM_KINDS], messages[COMM_KINDS];
    memset(expected, 0, sizeof expected);
    memset(messages, 0, sizeof messages);
    expected[COMM_SEQ_ALLTOALL] = 2 * calls * e * (2 * q + kv) / g->hp * (g->hp - 1); // q, kv, out and their gradients
    messages[COMM_SEQ_ALLTOALL] = 6 * calls * (g->hp - 1);
    messages[COMM_KV_INNER] = ring ? 2 * calls * windows * (g->w - 1) : 0; // forward and backward
    messages[COMM_KV_OUTER] = ring ? 2 * calls * (windows - 1) : 0;
    messages[COMM_DKV_INNER] = ring && g->w > 1 ? calls * (windows * (g->w - 1) + 1) : 0; // and one more hop at the end, home
    messages[COMM_DKV_OUTER] = ring && windows > 1 ? calls * windows : 0;     // of which the last goes home
    messages[COMM_KV_GATHER] = gather ? 2 * calls * (g->cp - 1) : 0;
    messages[COMM_DKV_SCATTER] = gather ? calls * (g->cp - 1) : 0;
    for (int k = COMM_KV_INNER; k <= COMM_KV_OUTER; k++) expected[k] = messages[k] * kv * e;
    for (int k = COMM_DKV_INNER; k <= COMM_DKV_OUTER; k++) expected[k] = messages[k] * kv * dkv;
    expected[COMM_KV_GATHER] = messages[COMM_KV_GATHER] * kv * e;
    expected[COMM_DKV_SCATTER] = messages[COMM_DKV_SCATTER] * kv * dkv;
    for (int k = 0; k <= COMM_DKV_SCATTER; k++) {
        comm_counters n = comm_count((comm_kind)k);
        CHECK(n.bytes_sent == expected[k] && n.messages == messages[k], "%s: %s: %lld bytes in %lld messages, expected %lld in %lld", where,
              comm_kind_name((comm_kind)k), (long long)n.bytes_sent, (long long)n.messages, (long long)expected[k], (long long)messages[k]);
    }
}

static void check_grid(const reference *r, const model_config *c, grid_shape shape, bool allgather, bool dkv_bf16, bool accumulate,
                       int64_t S, bool curve, comm *ranks) {
    double bound = dkv_bf16 ? BOUND_BF16 : BOUND;
    char where[160];
    snprintf(where, sizeof where, "dp %d hp %d cp %d w %d %s %s%s %s Hkv %d", shape.dp, shape.hp, shape.cp, shape.w,
             placement_name(shape.placement), allgather ? "allgather" : "ring",
             dkv_bf16 ? " bf16" : "", accumulate ? "2 micro-steps" : "batch 2", c->Hkv);
    model_setup setup = fixture_setup(accumulate ? 1 : 2, accumulate ? 2 : 1);
    setup.cp_allgather = allgather;
    setup.dkv_bf16 = dkv_bf16;
    fixture f;
    fixture_make(&f, c, shape, ranks, setup, RECOMPUTE_NONE, S);
    comm_count_reset();
    step_result s = model_step(&f.m, fixture_adamw(1), 1.0);
    check_wire(&f, where);
    CHECK(fabs(s.loss - r->loss) <= BOUND * r->loss, "%s: loss %.8f, one rank %.8f", where, s.loss, r->loss);
    CHECK(fabs(s.norm - r->norm) <= bound * r->norm, "%s: norm %.8f, one rank %.8f", where, s.norm, r->norm);
    for (int u = 0; u < c->L + 2; u++) {
        float *gradient = fixture_gradient(&f, u);
        for (int t = 0; t < f.m.units[u].tensor_count; t++) {
            zero_tensor *tensor = &f.m.units[u].tensors[t];
            double d = test_difference(gradient + tensor->offset, r->gradients[u] + tensor->offset, tensor->count);
            CHECK(d <= bound, "%s: gradient of unit %d %s differs by %.1e", where, u, tensor->name, d);
        }
        free(gradient);
    }
    for (int step = 2; curve && step <= CURVE; step++) {
        double loss = model_step(&f.m, fixture_adamw(step), 1.0).loss;
        CHECK(fabs(loss - r->curve[step - 1]) <= bound * r->curve[0],
              "%s: step %d loss %.8f, one rank %.8f", where, step, loss, r->curve[step - 1]);
    }
    fixture_free(&f);
}

int main(int argc, char **argv) {
    comm *world = test_start(&argc, &argv), *ranks[SIZES], *self = comm_split(world, comm_rank(world), 0, COMM_CONTROL);
    for (int i = 0; i < SIZES; i++) ranks[i] = comm_split(world, comm_rank(world) < sizes[i] ? 0 : -1, comm_rank(world), COMM_CONTROL);
    model_config configs[] = {fixture_config(2, 48, 24, 24, 2, 40, 61, false), fixture_config(2, 36, 12, 4, 4, 50, 61, true),
                              fixture_config(1, 32, 24, 1, 2, 24, 61, false)};
    for (int k = 0; k < 3; k++) {
        const model_config *c = &configs[k];
        int64_t S = k == 0 ? 48 : 37; // 37 divides by nothing
        reference references[MAX_DP + 1];
        for (int i = 0; i < SIZES; i++) // dp is one of the sizes; ranks compute side by side
            if (comm_rank(world) == i) make_reference(&references[sizes[i]], c, sizes[i], S, self);
        for (int i = 0; i < SIZES; i++) share_reference(&references[sizes[i]], c->L + 2, i, world);
        for (int i = 0; i < SIZES; i++) {
            if (ranks[i] == NULL) continue;
            int n = sizes[i], count = 0;
            for (int dp = 1; dp <= n; dp++)
                for (int hp = 1; n % dp == 0 && hp <= n / dp; hp++) {
                    if (n / dp % hp != 0 || c->H % hp != 0) continue;
                    int cp = n / dp / hp;
                    for (int w = 1; w <= cp; w++)
                        for (int placement = 0; cp % w == 0 && placement < 2; placement++) {
                            if (TEST_SANITIZED && placement != (w + k) % 2) continue;
                            grid_shape shape = {.dp = dp, .hp = hp, .cp = cp, .w = w,
                                                .placement = placement == 0 ? PLACEMENT_HEAD_FIRST : PLACEMENT_CONTEXT_FIRST};
                            bool curve = placement == 0 && (w == 1 || w == cp);
                            check_grid(&references[dp], c, shape, false, false, count % 2 == 1, S, curve, ranks[i]);
                            if (w == cp && cp > 1) check_grid(&references[dp], c, shape, true, false, count % 2 == 0, S, false, ranks[i]);
                            count++;
                            if (k != 1 || cp == 1 || dp == 2 || placement == 1) continue; // dKV as bf16, on the remaining grids
                            check_grid(&references[dp], c, shape, false, true, count % 2 == 0, S, cp == 8, ranks[i]);
                            if (w == cp) check_grid(&references[dp], c, shape, true, true, count % 2 == 1, S, false, ranks[i]);
                        }
                }
        }
        for (int i = 0; i < SIZES; i++)
            for (int u = 0; u < c->L + 2; u++) free(references[sizes[i]].gradients[u]);
        comm_barrier(world);
    }
    int status = test_finish("test_grids", world);
    comm_finalize();
    return status;
}
