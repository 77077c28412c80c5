// ranks: up to 4
// Hugging Face: logits, loss and every gradient of transformers' LlamaForCausalLM, from the golden files of dev/make_goldens.py, on one
// rank and on every grid of 2 and 4 ranks. RoPE's angles far into a long sequence. (F12, F18, F19, F56)
#include "golden.h"
#include "model_fixture.h"

// Bounds on a device that stores bf16 (DEVICE=cuda, emulated): for logits and the whole gradient a cosine of 0.999 or more and a norm
// within 1 % (parameters are stored as bf16; transformers in bf16 is further from itself in float). For a single tensor's gradient 0.999
// and 2 %: here it is a sum over a few dozen tokens, so errors average out less. For the loss 2^-8 of itself.
// In float: sums in another order; transformers also rounds position x frequency to float, about 1e-5 of an angle at 80.
#define BOUND 2e-5

static const bool stored_bf16 = sizeof(floatX) != sizeof(float);

static void copy_tensor(fixture *f, int unit, int tensor, const float *from) {
    zero_tensor *t = &f->m.units[unit].tensors[tensor];
    size_t bytes = sizeof(float) * (size_t)t->count;
    float *copy = (float *)device_alloc(bytes);
    device_from_host(copy, from, bytes);
    op_cast_from_float(f->m.zero.params[unit] + t->offset, copy, t->count);
    device_synchronize();
    device_free(copy);
}
typedef struct {
    double ab, aa, bb;
} products;
static void add_products(products *p, const float *a, const float *b, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        p->ab += (double)a[i] * (double)b[i];
        p->aa += (double)a[i] * (double)a[i];
        p->bb += (double)b[i] * (double)b[i];
    }
}
static double worst[3][2]; // for logits, single tensors, whole gradients: the largest 1 - cosine, and the norm's largest distance from 1
static void check_direction(const char *where, const char *what, int kind, products p, double least_cosine, double norm_bound) {
    double cosine = p.ab / sqrt(p.aa * p.bb), norm = sqrt(p.aa / p.bb);
    worst[kind][0] = fmax(worst[kind][0], 1 - cosine);
    worst[kind][1] = fmax(worst[kind][1], fabs(norm - 1));
    CHECK(cosine >= least_cosine && fabs(norm - 1) <= norm_bound,
          "%s: %s: cosine %.6f, norm %.5f of transformers'", where, what, cosine, norm);
}
static products whole_gradient; // sums over all gradients of the model under test
static void check_gradient(const fixture *f, const char *where, const float *whole, int unit, int tensor, const float *expected) {
    zero_tensor *t = &f->m.units[unit].tensors[tensor];
    if (stored_bf16) {
        products p = {0, 0, 0};
        add_products(&p, whole + t->offset, expected, t->count);
        add_products(&whole_gradient, whole + t->offset, expected, t->count);
        check_direction(where, t->name, 1, p, 0.999, 0.02);
        return;
    }
    double d = test_difference(whole + t->offset, expected, t->count);
    CHECK(d <= BOUND, "%s: gradient of unit %d %s differs by %.1e", where, unit, t->name, d);
}

// slice_bytes: of a slice of heads (model_setup). padded: to whole tiles of 128 rows a rank, as on a GPU, for the attention engine.
static void check_golden(const char *name, const golden *g, int hp, int cp, int64_t slice_bytes, bool padded, comm *ranks) {
    char where[120];
    snprintf(where, sizeof where, "%s hp %d cp %d%s%s", name, hp, cp, padded ? ", padded" : "",
             slice_bytes == 0 ? "" : slice_bytes == 1 ? ", slices of one head" : ", slices of one group");
    model_config c = fixture_config(g->L, g->D, g->H, g->Hkv, g->HS, g->F, g->V, g->tied);
    c.rms_eps = (float)g->rms_eps;
    c.rope_theta = g->rope_theta;
    static const rope_kind kinds[] = {ROPE_PLAIN, ROPE_LLAMA3, ROPE_LINEAR, ROPE_YARN};
    c.rope.kind = kinds[g->rope_kind];
    c.rope.beta_fast = g->rope_beta_fast;
    c.rope.beta_slow = g->rope_beta_slow;
    c.rope.factor = g->rope_factor;
    c.rope.low_freq_factor = g->rope_low;
    c.rope.high_freq_factor = g->rope_high;
    c.rope.original_length = g->rope_original_max;
    grid_shape shape = {.dp = 1, .hp = hp, .cp = cp, .w = cp % 2 == 0 ? 2 : 1};
    fixture f;
    model_setup setup = fixture_setup(1, 1);
    setup.attention_bytes = slice_bytes;
    fixture_make(&f, &c, shape, ranks, setup, RECOMPUTE_NONE, padded ? sequence_shard_make(g->T, hp, cp, 0, 0, 128).S_padded : g->T);
    int head = g->L + 1;
    copy_tensor(&f, UNIT_EMBEDDING, T_EMBEDDING, golden_embedding(g, g->parameters));
    for (int l = 0; l < g->L; l++) {
        golden_layer p = golden_layer_at(g, g->parameters, l);
        copy_tensor(&f, 1 + l, T_NORM1, p.norm1);
        copy_tensor(&f, 1 + l, T_WQKV, p.wqkv);
        copy_tensor(&f, 1 + l, T_WO, p.wo);
        copy_tensor(&f, 1 + l, T_NORM2, p.norm2);
        copy_tensor(&f, 1 + l, T_W_GATE_UP, p.w_gate_up);
        copy_tensor(&f, 1 + l, T_W_DOWN, p.w_down);
    }
    copy_tensor(&f, head, T_FINAL_NORM, golden_final_norm(g, g->parameters));
    if (!g->tied) copy_tensor(&f, head, T_LM_HEAD, golden_lm_head(g, g->parameters));
    for (int64_t t = 0; t < f.shard.T; t++) {
        int64_t position = sequence_shard_position(&f.shard, t);
        f.tokens[t] = position < g->T ? g->tokens[position] : 0;
        f.labels[t] = position < g->T ? g->labels[position] : -100;
    }

    model_evaluate(&f.m, true, true);
    const floatX *w_out = g->tied ? f.m.zero.params[UNIT_EMBEDDING] : f.m.zero.params[head] + f.m.units[head].tensors[T_LM_HEAD].offset;
    int64_t n = f.m.rows * g->V, seen = 0;
    floatX *stored = (floatX *)device_alloc(sizeof(floatX) * (size_t)n);
    float *floats = (float *)device_alloc(sizeof(float) * (size_t)n), *logits = HOST_NEW(float, n), *want = HOST_NEW(float, n);
    float worst = 0, largest = 0;
    floatX *xn = (floatX *)device_alloc(sizeof(floatX) * (size_t)(f.m.rows * g->D));
    float *rstd = (float *)device_alloc(sizeof(float) * (size_t)f.m.rows);
    op_rmsnorm_forward(xn, rstd, f.m.x_last, f.m.zero.params[head] + f.m.units[head].tensors[T_FINAL_NORM].offset,
                       f.m.rows, g->D, f.m.c.rms_eps);
    op_linear_forward(stored, xn, w_out, NULL, f.m.rows, g->D, g->V);
    op_cast_to_float(floats, stored, n);
    device_to_host(logits, floats, sizeof(float) * (size_t)n);
    for (int64_t t = 0; t < f.shard.T; t++) {
        int64_t position = sequence_shard_position(&f.shard, t);
        if (position >= g->T) continue;
        memmove(logits + seen * g->V, logits + t * g->V, sizeof(float) * (size_t)g->V); // the rows of real tokens, without gaps
        memcpy(want + seen++ * g->V, g->logits + position * g->V, sizeof(float) * (size_t)g->V);
    }
    for (int64_t i = 0; i < seen * g->V; i++) {
        worst = (float)test_worse(worst, fabsf(logits[i] - want[i]));
        largest = fmaxf(largest, fabsf(want[i]));
    }
    products of_logits = {0, 0, 0};
    add_products(&of_logits, logits, want, seen * g->V);
    if (stored_bf16 && seen > 0) check_direction(where, "logits", 0, of_logits, 0.999, 0.01);
    if (!stored_bf16) CHECK(worst <= BOUND * largest, "%s: logits differ by %.1e of %.1e", where, (double)worst, (double)largest);
    device_free(stored);
    device_free(floats);
    device_free(xn);
    device_free(rstd);
    free(logits);
    free(want);

    step_result s = model_step(&f.m, fixture_adamw(1), 0);
    CHECK(s.valid == g->valid, "%s: %lld valid labels, expected %d", where, (long long)s.valid, g->valid);
    // In float: each token's loss is rounded to 2^-24 = 6e-8 of itself here and there, after sums in another order; found were 9e-8.
    CHECK(fabs(s.loss - g->loss) <= (stored_bf16 ? 1.0 / 256 : 5e-7) * g->loss, "%s: loss %.8f, transformers %.8f", where, s.loss, g->loss);
    memset(&whole_gradient, 0, sizeof whole_gradient);
    float *d = fixture_gradient(&f, UNIT_EMBEDDING);
    check_gradient(&f, where, d, UNIT_EMBEDDING, T_EMBEDDING, golden_embedding(g, g->gradients));
    free(d);
    for (int l = 0; l < g->L; l++) {
        golden_layer p = golden_layer_at(g, g->gradients, l);
        d = fixture_gradient(&f, 1 + l);
        check_gradient(&f, where, d, 1 + l, T_NORM1, p.norm1);
        check_gradient(&f, where, d, 1 + l, T_WQKV, p.wqkv);
        check_gradient(&f, where, d, 1 + l, T_WO, p.wo);
        check_gradient(&f, where, d, 1 + l, T_NORM2, p.norm2);
        check_gradient(&f, where, d, 1 + l, T_W_GATE_UP, p.w_gate_up);
        check_gradient(&f, where, d, 1 + l, T_W_DOWN, p.w_down);
        free(d);
    }
    d = fixture_gradient(&f, head);
    check_gradient(&f, where, d, head, T_FINAL_NORM, golden_final_norm(g, g->gradients));
    if (!g->tied) check_gradient(&f, where, d, head, T_LM_HEAD, golden_lm_head(g, g->gradients));
    free(d);
    if (stored_bf16) check_direction(where, "the whole gradient", 2, whole_gradient, 0.999, 0.01);
    fixture_free(&f);
}

// RoPE's table of rows far into a long sequence of two segments: each number is, but for its last bit, that of the angle in double.
static void check_table(void) {
    enum { ROWS = 1500, HS = 128 };
    model m;
    memset(&m, 0, sizeof m);
    m.c = fixture_config(1, 256, 2, 1, HS, 8, 8, false);
    m.frequencies = HOST_NEW(double, HS / 2);
    m.rope_factor = config_rope_frequencies(&m.c, m.frequencies);
    const sequence_segment segments[] = {{30000001, 0}, {40000037, ROWS - 700}, {50000000, ROWS}};
    sequence_shard shard = {.S = 50000000, .T = ROWS, .hp = 1, .cp = 2, .c = 1, .segments = segments};
    float *table = (float *)device_alloc(sizeof(float) * ROWS * HS), *got = HOST_NEW(float, ROWS * HS);
    model_fill_table(&m, table, &shard);
    device_to_host(got, table, sizeof(float) * ROWS * HS);
    double apart = 0;
    for (int64_t t = 0; t < ROWS; t++)
        for (int i = 0; i < HS / 2; i++) {
            double angle = (double)sequence_shard_position(&shard, t) * m.frequencies[i];
            apart = test_worse(apart, fabs((double)got[t * HS + 2 * i] - cos(angle)));
            apart = test_worse(apart, fabs((double)got[t * HS + 2 * i + 1] - sin(angle)));
        }
    CHECK(apart <= 0x1p-24, "RoPE at positions from 30000001 on: cos and sin are off by %.1e", apart);
    device_free(table);
    free(got);
    free(m.frequencies);
}

int main(int argc, char **argv) {
    comm *world = test_start(&argc, &argv);
    check_table();
    static const char *const names[] = {"mha", "gqa_llama31", "tied_llama32", "odd_sizes", "mqa_wide_heads", "linear", "yarn"};
    int tested = 0;
    for (int k = 0; k < 7; k++) {
        if (argc > 1 && strcmp(argv[1], names[k]) != 0) continue; // an argument: this model alone
        tested++;
        char path[200];
        snprintf(path, sizeof path, "test/golden/%s.bin", names[k]);
        golden g;
        bool loaded = golden_load(path, &g);
        CHECK(loaded, "%s", g.error.text);
        for (int n = 1; loaded && n <= 4 && n <= comm_size(world); n *= 2) {
            comm *ranks = comm_split(world, comm_rank(world) < n ? 0 : -1, comm_rank(world), COMM_CONTROL);
            for (int hp = 1; ranks != NULL && hp <= n; hp *= 2)
                if (g.H % hp == 0) check_golden(names[k], &g, hp, n / hp, 0, false, ranks);
            if (ranks != NULL) check_golden(names[k], &g, 1, n, 1, n == 1, ranks);
            if (ranks != NULL && n == 1) check_golden(names[k], &g, 1, 1, 0, true, ranks);
            if (ranks != NULL && n == 1)
                check_golden(names[k], &g, 1, 1, round_up(g.T, 128) * g.HS * g.H / g.Hkv * (int64_t)sizeof(float), true, ranks);
            if (ranks != NULL) comm_free(ranks);
        }
        if (loaded) golden_free(&g);
    }
    CHECK(tested == (argc > 1 ? 1 : 7), "%d models tested", tested);
    if (stored_bf16 && comm_rank(world) == 0)
        printf("farthest from transformers, 1 - cosine and norm: "
               "logits %.1e %.1e (bounds 1e-3 1e-2), a tensor's gradient %.1e %.1e (1e-3 2e-2), whole gradients %.1e %.1e (1e-3 1e-2)\n",
               worst[0][0], worst[0][1], worst[1][0], worst[1][1], worst[2][0], worst[2][1]);
    int status = test_finish("test_golden", world);
    comm_finalize();
    return status;
}
