// ranks: 1
// device: emulated
// Every hand-written CUDA kernel, run on the CPU by device/cuda/emulation.h, against the same operation in double: with rows that are
// multiples of 16 bytes and rows that are not, several block sizes, and blocks and threads started from the first or from the last.
//
// Bounds. Float: 1e-6 of the tensor's largest number for a few operations in a row (8 roundings of 2^-24), times a factor that the
// check gives where a sum over many numbers comes first. Stored bf16: this, and half a unit in the last place: at most 2^-8 of the number.
//
// On a GPU the same program checks the kernels, cuBLASLt and cuDNN: make DEVICE=cuda build/cuda/test/test_kernels. `products` checks
// products alone; `last-first`: blocks and threads from the last on; `tell`: says what comes next.
#include "attention_reference.h"
#include "moments.h"
#include "../device/cuda/attention_call.h"

// ---- tensors: what is stored, and the same numbers in double ----

typedef struct {
    floatX *x; // or NULL
    float *f;  // or NULL
    double *d;
    int64_t n;
} tensor;

static tensor tensor_new(int64_t n, bool stored) {
    tensor t;
    t.n = n;
    t.d = HOST_NEW(double, n);
    t.x = stored ? (floatX *)device_alloc(sizeof(floatX) * (size_t)n) : NULL;
    t.f = stored ? NULL : (float *)device_alloc(sizeof(float) * (size_t)n);
    return t;
}
static void tensor_free(tensor t) {
    free(t.d);
    device_free(t.x);
    device_free(t.f);
}
static floatX round_stored(float v) { // the test's own rounding
#ifdef DEVICE_BF16
    floatX r;
    uint32_t bits, low;
    memcpy(&bits, &v, 4);
    low = bits & 0xffffu;
    bits >>= 16;
    if (low > 0x8000u || (low == 0x8000u && (bits & 1))) bits++;
    r.bits = (uint16_t)bits;
    return r;
#else
    return v;
#endif
}
static float stored_float(floatX v) {
#ifdef DEVICE_BF16
    uint32_t bits = (uint32_t)v.bits << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
#else
    return v;
#endif
}
static double as_stored(double v) { return (double)stored_float(round_stored((float)v)); }
static void tensor_set(tensor t, uint64_t seed, double scale) {
    for (int64_t i = 0; i < t.n; i++) {
        float v = (float)(scale * test_random(seed, (uint64_t)i));
        if (t.x != NULL) t.x[i] = round_stored(v);
        else t.f[i] = v;
        t.d[i] = t.x != NULL ? (double)stored_float(t.x[i]) : (double)v;
    }
}
static tensor tensor_random(int64_t n, bool stored, uint64_t seed, double scale) {
    tensor t = tensor_new(n, stored);
    tensor_set(t, seed, scale);
    return t;
}

// The race detector, and a build of what nvcc makes of the kernels or of the host code around them, find nothing new where the host cuts
// blocks, checks the engine and asks for wide heads in pieces: KERNELS_ALONE. They and the sanitizers take every value of a factor, but not
// the whole product.
#if defined(EMULATION_RACES) || defined(WITHOUT_GPU)
enum { KERNELS_ALONE = 1 };
#else
enum { KERNELS_ALONE = 0 };
#endif
enum { THIN = KERNELS_ALONE || TEST_SANITIZED, CUTS = KERNELS_ALONE ? 1 : 3, DOCUMENTS_STEP = KERNELS_ALONE ? 4 : THIN ? 3 : 1,
      BACKWARD_PASSES = THIN ? 2 : 4 };

// Factors of the float bound. The attention engine rounds out, dq, dk and dv, of each call, to bf16: 2^-8 at most, which is 4 x 1000 x
// 1e-6. That of a GPU also rounds probabilities and their gradients on the way there: 2^-8 more.
#ifdef DEVICE_EMULATED
enum { ENGINE = sizeof(floatX) == 2 ? 1000 : 1, ENGINE_ROWS = 16 }; // ENGINE_ROWS: the smallest pieces of packed documents that it gets
#else
enum { ENGINE = 2000, ENGINE_ROWS = 128 };
#endif
enum { TENSOR_CORES = 500 }; // the hand-written kernels for them round the same numbers; half the bound is enough for them

static char settings[128]; // block size and order, for messages
static bool tells; // on a GPU: what comes next, so that a hang or a fault inside a library has a place
static void tell(const char *text) {
    if (!tells) return;
    printf("next: %s\n", text);
    fflush(stdout);
}

// Checks every element. The bound is 1e-6 `factor` of the largest wanted number, or of `least` if that is larger (the size of terms that
// cancel to a result of almost 0). Stored bf16 numbers may also be off by their own rounding.
static void check_beside(const char *what, tensor got, const double *want, double factor, double least) {
    double largest = least, worst = 0;
    int64_t at = -1;
    device_synchronize();
    bool bf16 = got.x != NULL && sizeof(floatX) == 2;
    for (int64_t i = 0; i < got.n; i++)
        if (!isinf(want[i]) && fabs(want[i]) > largest) largest = fabs(want[i]); // fmax is a call
    for (int64_t i = 0; i < got.n; i++) {
        double g = got.x != NULL ? (double)stored_float(got.x[i]) : (double)got.f[i];
        if (g == want[i]) continue; // -inf too
        double bound = 1e-6 * factor * largest + (bf16 ? fabs(want[i]) / 256 : 0) + 1e-30;
        double excess = fabs(g - want[i]) / bound;
        if (!(excess <= worst)) {
            worst = isfinite(excess) ? excess : INFINITY;
            at = i;
        }
    }
    at = max_i64(at, 0);
    CHECK(worst <= 1, "%s: element %lld of %lld is %g of its bound off (want %.9g, got %.9g), %s", what, (long long)at, (long long)got.n,
          worst, want[at], got.x != NULL ? (double)stored_float(got.x[at]) : (double)got.f[at], settings);
}

static void check(const char *what, tensor got, const double *want, double factor) { check_beside(what, got, want, factor, 0); }

// ---- casts and sums of vectors ----

static void test_casts(void) {
    int64_t n = 65536 + 7;
    float *from = (float *)device_alloc(sizeof(float) * (size_t)n), *back = (float *)device_alloc(sizeof(float) * (size_t)n);
    floatX *to = (floatX *)device_alloc(sizeof(floatX) * (size_t)n);
    for (int offset = 0; offset < 2; offset++) { // 1: no address is a multiple of 16
        // bf16 numbers, in turn: the number itself, and slightly below, at and slightly above the middle to the next.
        for (int64_t i = 0; i < n; i++) {
            uint32_t bits = (uint32_t)i << 16 | (i % 4 == 0 ? 0u : i % 4 == 1 ? 0x7fffu : i % 4 == 2 ? 0x8000u : 0x8001u);
            memcpy(&from[i], &bits, 4);
        }
        op_cast_from_float(to + offset, from + offset, n - offset);
        op_cast_to_float(back + offset, to + offset, n - offset);
        device_synchronize();
        int64_t wrong = 0;
        for (int64_t i = offset; i < n; i++) {
            float want = stored_float(round_stored(from[i]));
            wrong += isnan(from[i]) ? !isnan(back[i]) : memcmp(&back[i], &want, 4) != 0;
        }
        CHECK(wrong == 0, "casts: %lld numbers are not rounded to nearest even, offset %d, %s", (long long)wrong, offset, settings);
    }
    bf16 *wire = (bf16 *)device_alloc(sizeof(bf16) * (size_t)n);
    for (int offset = 0; offset < 2; offset++) { // dKV on the wire is bf16 whatever floatX is
        for (int64_t i = 0; i < n; i++) back[i] = 1;
        op_bf16_from_float(wire + offset, from + offset, n - offset);
        op_add_bf16(back + offset, wire + offset, n - offset);
        device_synchronize();
        int64_t wrong = 0;
        for (int64_t i = offset; i < n; i++) {
            uint32_t bits = (uint32_t)i << 16, up = bits + 0x10000u, want_bits = i % 4 < 2 || (i % 4 == 2 && i % 2 == 0) ? bits : up;
            float want;
            memcpy(&want, &want_bits, 4);
            wrong += isnan(from[i]) ? !isnan(back[i]) : back[i] != 1 + want;
        }
        CHECK(wrong == 0, "bf16 on the wire: %lld sums wrong, offset %d, %s", (long long)wrong, offset, settings);
    }
    device_free(wire);
    device_free(from);
    device_free(back);
    device_free(to);
}

// Rows that lie `gap` elements further apart than they are wide: the bits of op_cast_from_float, and nothing between rows. And back.
static void test_cast_rows(int64_t rows, int64_t width, int64_t gap, int to_offset, int from_offset) {
    int64_t stride = width + gap, n = rows * width, size = rows * stride + to_offset, wrong = 0;
    float *from = (float *)device_alloc(sizeof(float) * (size_t)(n + from_offset + 1));
    floatX *flat = (floatX *)device_alloc(sizeof(floatX) * (size_t)(n + 1)),
        *to = (floatX *)device_alloc(sizeof(floatX) * (size_t)(size + 1)), mark;
    memset(&mark, 0x5a, sizeof mark);
    for (int64_t i = 0; i < size; i++) to[i] = mark;
    for (int64_t i = 0; i < n; i++) { // below, at and above the middle between two bf16 numbers
        uint32_t bits = (uint32_t)(i * 40503 % 65536) << 16 | (0x7fffu + (uint32_t)(i % 3));
        memcpy(&from[from_offset + i], &bits, 4);
    }
    op_cast_from_float(flat, from + from_offset, n);
    op_cast_rows(to + to_offset, stride, from + from_offset, rows, width);
    device_synchronize();
    for (int64_t i = 0; i < size; i++) {
        int64_t row = (i - to_offset) / stride, at = (i - to_offset) % stride;
        wrong += memcmp(&to[i], i < to_offset || at >= width ? &mark : &flat[row * width + at], sizeof mark) != 0;
    }
    CHECK(wrong == 0, "op_cast_rows: %lld elements wrong of %lld rows of %lld, %lld apart, offsets %d and %d, %s", (long long)wrong,
          (long long)rows, (long long)width, (long long)stride, to_offset, from_offset, settings);
    floatX *back = (floatX *)device_alloc(sizeof(floatX) * (size_t)(n + from_offset + 1));
    for (int64_t i = 0; i < n + from_offset + 1; i++) back[i] = mark;
    op_copy_rows(back + from_offset, width, to + to_offset, stride, rows, width);
    device_synchronize();
    wrong = memcmp(back + from_offset, flat, sizeof mark * (size_t)n) != 0 || memcmp(back + from_offset + n, &mark, sizeof mark) != 0;
    for (int i = 0; i < from_offset; i++) wrong += memcmp(&back[i], &mark, sizeof mark) != 0;
    CHECK(wrong == 0, "op_copy_rows of %lld rows of %lld, %lld apart, offsets %d and %d, %s", (long long)rows, (long long)width,
          (long long)stride, from_offset, to_offset, settings);
    device_free(back);
    device_free(from);
    device_free(flat);
    device_free(to);
}

static void test_vectors(int64_t n, int offset) {
    tensor x = tensor_random(n + offset, false, 3, 3), y = tensor_random(n + offset, false, 4, 3);
    double *want = HOST_NEW(double, n + offset);
    for (int64_t i = 0; i < n + offset; i++) want[i] = x.d[i] + (i >= offset ? y.d[i] : 0);
    op_add_float(x.f + offset, y.f + offset, n);
    check("op_add_float", x, want, 1);

    double sum = 0, squares = 0;
    for (int64_t i = offset; i < n + offset; i++) {
        sum += (double)x.f[i];
        squares += (double)x.f[i] * (double)x.f[i];
    }
    double got = op_sum_float(x.f + offset, n), again = op_sum_float(x.f + offset, n);
    double *got_squares = (double *)device_alloc(sizeof *got_squares);
    op_sum_squares(got_squares, x.f + offset, n);
    device_synchronize();
    CHECK(fabs(got - sum) <= 1e-12 * (fabs(sum) + (double)n), "op_sum_float of %lld: %.17g for %.17g, %s", (long long)n, got, sum,
          settings);
    CHECK(got == again, "op_sum_float: not the same bits twice");
    CHECK(fabs(*got_squares - squares) <= 1e-12 * squares,
          "op_sum_squares of %lld: %.17g for %.17g, %s", (long long)n, *got_squares, squares, settings);
    device_free(got_squares);
    free(want);
    tensor_free(x);
    tensor_free(y);
}

// ---- AdamW and initial numbers ----

static void test_adamw(int64_t n, bool with_master, int64_t step) {
    tensor p = tensor_random(n, true, 1, 1), master = tensor_random(n, false, 2, 1), m = tensor_random(n, false, 3, 0.1),
           v = tensor_new(n, false);
    tensor grad = tensor_random(n, false, 4, 0.5);
    for (int64_t i = 0; i < n; i++) {
        v.f[i] = (float)(0.01 * fabs(test_random(5, (uint64_t)i)));
        v.d[i] = (double)v.f[i];
    }
    adamw_args args = {.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .grad_scale = 0.5f, .step = step};
    double *want_p = HOST_NEW(double, n), *want_m = HOST_NEW(double, n), *want_v = HOST_NEW(double, n);
    double beta1 = (double)args.beta1, beta2 = (double)args.beta2;
    for (int64_t i = 0; i < n; i++) {
        double g = grad.d[i] * (double)args.grad_scale, old = with_master ? master.d[i] : p.d[i];
        want_m[i] = beta1 * m.d[i] + (1 - beta1) * g;
        want_v[i] = beta2 * v.d[i] + (1 - beta2) * g * g;
        double mean = want_m[i] / (1 - pow(beta1, (double)step)), square = want_v[i] / (1 - pow(beta2, (double)step));
        want_p[i] = old - (double)args.lr * (mean / (sqrt(square) + (double)args.eps) + (double)args.weight_decay * old);
    }
    op_adamw(p.x, with_master ? master.f : NULL, m.f, v.f, grad.f, n, args);
    check("op_adamw m", m, want_m, 1);
    check("op_adamw v", v, want_v, 1);
    if (with_master) check("op_adamw master", master, want_p, 1);
    check("op_adamw param", p, want_p, 1);
    free(want_p);
    free(want_m);
    free(want_v);
    tensor all[5] = {p, master, m, v, grad};
    for (int i = 0; i < 5; i++) tensor_free(all[i]);
}

// ---- stochastic rounding: every bit follows from the element's own draw (test_rounding.c checks the mean of the draws) ----

static bool is_rounded(floatX got, float from, rounding_rule how, int64_t i) {
#ifdef DEVICE_BF16
    uint64_t key = test_mix(test_mix(test_mix(how.seed) ^ how.tensor) ^ (uint64_t)how.step);
    uint32_t bits;
    if (isnan(from)) return isnan(stored_float(got));
    memcpy(&bits, &from, 4);
    if (!isinf(from)) bits += (uint32_t)(test_mix(key ^ (uint64_t)(how.first + i)) & 0xffffu);
    return got.bits == bits >> 16;
#else
    (void)how, (void)i;
    return isnan(from) ? isnan(got) : got == from;
#endif
}
static void test_rounding(int offset) { // 1: no address is a multiple of 16
    rounding_rule how = {true, 9, 4, 3, 37};
    int64_t n = 65536 + 7, wrong = 0;
    tensor from = tensor_new(n, false), to = tensor_new(n, true);
    // bf16 numbers, in turn: the number itself, and a quarter, half and three quarters of the way to the next.
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)i << 16 | (uint32_t)(i % 4) << 14;
        memcpy(&from.f[i], &bits, 4);
    }
    op_round(to.x + offset, from.f + offset, n - offset, how);
    device_synchronize();
    for (int64_t i = offset; i < n; i++) wrong += !is_rounded(to.x[i], from.f[i], how, i - offset);
    CHECK(wrong == 0, "op_round: %lld numbers are rounded by another draw, offset %d, %s", (long long)wrong, offset, settings);
    tensor_free(from);
    tensor_free(to);

    // AdamW rounds the updated master; without a master it rounds the same number.
    float *exact = HOST_NEW(float, n = 1031);
    adamw_args args = {.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .grad_scale = 0.5f,
                       .step = how.step, .rounding = how};
    args.rounding.step = 0;
    for (int with_master = 1; with_master >= 0; with_master--) {
        tensor p = tensor_random(n, true, 1, 1), m = tensor_random(n, false, 3, 0.1), v = tensor_random(n, false, 5, 0.1);
        tensor grad = tensor_random(n, false, 4, 0.5);
        tensor master = tensor_new(n, false);
        for (int64_t i = 0; i < n; i++) {
            v.f[i] = fabsf(v.f[i]);
            master.f[i] = stored_float(p.x[i]);
        }
        op_adamw(p.x + offset, with_master ? master.f + offset : NULL, m.f + offset, v.f + offset, grad.f + offset, n - offset, args);
        device_synchronize();
        if (with_master) memcpy(exact, master.f, sizeof(float) * (size_t)n);
        wrong = 0;
        for (int64_t i = offset; i < n; i++) wrong += !is_rounded(p.x[i], exact[i], how, i - offset);
        CHECK(wrong == 0, "op_adamw, %s master: %lld parameters are rounded by another draw, offset %d, %s",
              with_master ? "with a" : "without", (long long)wrong, offset, settings);
        tensor all[5] = {p, master, m, v, grad};
        for (int k = 0; k < 5; k++) tensor_free(all[k]);
    }
    free(exact);
}

static void test_init(void) { // the formula of device/cpu/ops.c; a shard draws the numbers that the whole tensor has there
    int64_t n = 1001, first = 37, part = 500;
    tensor whole = tensor_new(n, true), shard = tensor_new(part, true);
    double *want = HOST_NEW(double, n);
    for (int64_t i = 0; i < n; i++) {
        uint64_t key = test_mix(test_mix(7) ^ 3), counter = (uint64_t)i / 2 * 2;
        double u = (double)((test_mix(key ^ test_mix(counter)) >> 11) + 1) * 0x1p-53;
        double angle = 2 * acos(-1.0) * (double)(test_mix(key ^ test_mix(counter + 1)) >> 11) * 0x1p-53;
        want[i] = (double)0.02f * sqrt(-2 * log(u)) * (i % 2 == 0 ? cos(angle) : sin(angle));
    }
    op_init_normal(whole.x, 7, 3, 0, n, 0.02f);
    op_init_normal(shard.x, 7, 3, first, part, 0.02f);
    check("op_init_normal", whole, want, 1);
    CHECK(memcmp(shard.x, whole.x + first, sizeof(floatX) * (size_t)part) == 0, "op_init_normal: a shard draws other numbers");
    op_init_normal(whole.x, 7, 3, 0, n, 0);
    for (int64_t i = 0; i < n; i++) want[i] = 1;
    check("op_init_normal, sigma 0", whole, want, 1);
    free(want);
    tensor_free(whole);
    tensor_free(shard);
}

// ---- embedding ----

static void test_embedding(int64_t T, int64_t D, int64_t V) {
    tensor table = tensor_random(V * D, true, 1, 1), x = tensor_new(T * D, true), dx = tensor_random(T * D, true, 2, 1);
    tensor dtable = tensor_random(V * D, false, 3, 1);
    int32_t *tokens = (int32_t *)device_alloc(sizeof(int32_t) * (size_t)T);
    for (int64_t t = 0; t < T; t++) tokens[t] = (int32_t)(fabs(test_random(4, (uint64_t)t)) * (double)V * (t % 3 == 0 ? 0.1 : 0.999));
    op_embedding_forward(x.x, tokens, table.x, T, D);
    device_synchronize();
    int64_t wrong = 0;
    for (int64_t t = 0; t < T; t++) wrong += memcmp(x.x + t * D, table.x + tokens[t] * D, sizeof(floatX) * (size_t)D) != 0;
    CHECK(wrong == 0, "op_embedding_forward: %lld rows of %lld wrong, D %lld, %s", (long long)wrong, (long long)T, (long long)D, settings);

    float *want = HOST_NEW(float, V * D); // float sums in token order give the same bits
    memcpy(want, dtable.f, sizeof(float) * (size_t)(V * D));
    for (int64_t t = 0; t < T; t++)
        for (int64_t d = 0; d < D; d++) want[tokens[t] * D + d] += stored_float(dx.x[t * D + d]);
    void *scratch = device_alloc(op_embedding_backward_scratch(T));
    op_embedding_backward(dtable.f, tokens, dx.x, T, D, scratch);
    device_synchronize();
    CHECK(memcmp(want, dtable.f, sizeof(float) * (size_t)(V * D)) == 0,
          "op_embedding_backward T %lld D %lld V %lld: not the sum in token order, %s", (long long)T, (long long)D, (long long)V, settings);
    free(want);
    device_free(scratch);
    device_free(tokens);
    tensor_free(table);
    tensor_free(x);
    tensor_free(dx);
    tensor_free(dtable);
}

// ---- RMSNorm ----

static void test_rmsnorm(int64_t T, int64_t D) {
    tensor x = tensor_random(T * D, true, 1, 2), w = tensor_random(D, true, 2, 1.5), y = tensor_new(T * D, true),
           rstd = tensor_new(T, false);
    tensor dy = tensor_random(T * D, true, 3, 1), dx = tensor_random(T * D, true, 4, 1), dw = tensor_random(D, false, 5, 1);
    double *want_y = HOST_NEW(double, T *D), *want_rstd = HOST_NEW(double, T), *want_dx = HOST_NEW(double, T *D),
           *want_dw = HOST_NEW(double, D);
    const float eps = 1e-5f;
    memcpy(want_dw, dw.d, sizeof(double) * (size_t)D);
    for (int64_t t = 0; t < T; t++) {
        double squares = 0, dot = 0;
        const double *row = x.d + t * D, *g = dy.d + t * D;
        for (int64_t d = 0; d < D; d++) squares += row[d] * row[d];
        double r = 1 / sqrt(squares / (double)D + (double)eps);
        want_rstd[t] = r;
        for (int64_t d = 0; d < D; d++) {
            want_y[t * D + d] = row[d] * r * w.d[d];
            dot += g[d] * w.d[d] * row[d] * r;
            want_dw[d] += g[d] * row[d] * r;
        }
        for (int64_t d = 0; d < D; d++) want_dx[t * D + d] = dx.d[t * D + d] + r * (g[d] * w.d[d] - row[d] * r * dot / (double)D);
    }
    op_rmsnorm_forward(y.x, rstd.f, x.x, w.x, T, D, eps);
    check("op_rmsnorm_forward y", y, want_y, 2);
    check("op_rmsnorm_forward rstd", rstd, want_rstd, 2);
    void *scratch = device_alloc(op_rmsnorm_backward_scratch(T, D));
    op_rmsnorm_backward(dx.x, dw.f, dy.x, x.x, w.x, rstd.f, T, D, true, scratch);
    check("op_rmsnorm_backward dx", dx, want_dx, 2);
    check("op_rmsnorm_backward dweight", dw, want_dw, 2 + sqrt((double)T) / 4); // sums over T rows
    for (int64_t i = 0; i < T * D; i++) want_dx[i] -= dx.d[i];
    for (int64_t d = 0; d < D; d++) want_dw[d] += want_dw[d] - dw.d[d];
    op_rmsnorm_backward(x.x, dw.f, dy.x, x.x, w.x, rstd.f, T, D, false, scratch);
    check("op_rmsnorm_backward dx in the place of x", x, want_dx, 2);
    check("op_rmsnorm_backward dweight twice", dw, want_dw, 2 + sqrt((double)T) / 4);
    device_free(scratch);
    free(want_y);
    free(want_rstd);
    free(want_dx);
    free(want_dw);
    tensor all[7] = {x, w, y, rstd, dy, dx, dw};
    for (int i = 0; i < 7; i++) tensor_free(all[i]);
}

// ---- linear (BLAS in the emulated build, cuBLASLt in the CUDA build) ----

// A sum of ones, of a length at which cuBLASLt is known to have lost terms. The result is float, so no rounding hides a missing one.
static void test_long_sum(int64_t T) {
    tensor ones = tensor_new(T * 8, true), dw = tensor_new(64, false);
    for (int64_t i = 0; i < T * 8; i++) ones.x[i] = round_stored(1);
    op_linear_backward_weight(dw.f, ones.x, ones.x, T, 8, 8, false);
    device_synchronize();
    for (int i = 0; i < 64; i++) CHECK(dw.f[i] == (float)T, "a sum of %lld ones is %g", (long long)T, (double)dw.f[i]);
    tensor_free(ones);
    tensor_free(dw);
}
static void test_linear(int64_t T, int64_t in, int64_t out) {
    tensor x = tensor_random(T * in, true, 1, 1), w = tensor_random(out * in, true, 2, 1), residual = tensor_random(T * out, true, 3, 1);
    tensor y = tensor_new(T * out, true), dx = tensor_new(T * in, true), dw = tensor_random(out * in, false, 4, 1);
    tensor moved = tensor_new(8 + T * in, true); // x again, with less alignment than cuBLASLt's algorithm of the first product may need
    memcpy(moved.x + 8, x.x, sizeof(floatX) * (size_t)(T * in));
    double *want = HOST_NEW(double, max_i64(T * max_i64(in, out), in * out));
    for (int with = 0; with < 4; with++) { // no residual, residual, residual in y, residual and x moved
        for (int64_t t = 0; t < T; t++)
            for (int64_t o = 0; o < out; o++) {
                double sum = with > 0 ? residual.d[t * out + o] : 0;
                for (int64_t i = 0; i < in; i++) sum += x.d[t * in + i] * w.d[o * in + i];
                want[t * out + o] = sum;
            }
        if (with == 2) memcpy(y.x, residual.x, sizeof(floatX) * (size_t)(T * out));
        op_linear_forward(y.x, with == 3 ? moved.x + 8 : x.x, w.x, with == 0 ? NULL : with == 2 ? y.x : residual.x, T, in, out);
        check("op_linear_forward", y, want, 2);
    }
    for (int64_t t = 0; t < T; t++)
        for (int64_t i = 0; i < in; i++) {
            double sum = 0;
            for (int64_t o = 0; o < out; o++) sum += residual.d[t * out + o] * w.d[o * in + i];
            want[t * in + i] = sum;
        }
    op_linear_backward_input(dx.x, residual.x, w.x, T, in, out);
    check("op_linear_backward_input", dx, want, 2);
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < in; i++) {
            double sum = dw.d[o * in + i];
            for (int64_t t = 0; t < T; t++) sum += residual.d[t * out + o] * x.d[t * in + i];
            want[o * in + i] = sum;
        }
    op_linear_backward_weight(dw.f, residual.x, x.x, T, in, out, true);
    check("op_linear_backward_weight", dw, want, 2);
    for (int64_t i = 0; i < in * out; i++) want[i] -= dw.d[i], dw.f[i] = NAN; // must not be read
    op_linear_backward_weight(dw.f, residual.x, x.x, T, in, out, false);
    check("op_linear_backward_weight, stored", dw, want, 2);
    memset(want, 0, sizeof(double) * (size_t)(in * out));
    op_linear_backward_weight(dw.f, residual.x, x.x, 0, in, out, false);
    check("op_linear_backward_weight of no tokens, stored", dw, want, 1);
    free(want);
    tensor all[7] = {x, w, residual, y, dx, dw, moved};
    for (int i = 0; i < 7; i++) tensor_free(all[i]);
}

// ---- RoPE and the layout of SeqAlltoAll ----

static void test_rope(int64_t T, int peers, int H, int Hkv, int HS) {
    head_layout l = head_layout_make(peers, H, Hkv, HS);
    int half = HS / 2, heads = H + 2 * Hkv;
    int64_t nq = T * H * HS, nkv = T * peers * 2 * l.Hkv_local * HS;
    tensor qkv = tensor_random(T * heads * HS, true, 1, 1), dqkv = tensor_new(T * heads * HS, true),
           table = tensor_new(T * half * 2, false);
    tensor q = tensor_new(nq, true), kv = tensor_new(nkv, true), dq = tensor_random(nq, true, 2, 1), dkv = tensor_random(nkv, true, 3, 1);
    double *want_q = HOST_NEW(double, nq), *want_kv = HOST_NEW(double, nkv), *want = HOST_NEW(double, T * heads * HS);
    for (int64_t i = 0; i < T * half; i++) {
        table.f[2 * i] = (float)cos(0.37 * (double)i);
        table.f[2 * i + 1] = (float)sin(0.37 * (double)i);
    }
    for (int peer = 0; peer < peers; peer++)
        for (int64_t t = 0; t < T; t++)
            for (int slot = 0; slot < l.Hq + 2 * l.Hkv_local; slot++) {
                int j = slot - l.Hq;
                bool is_q = slot < l.Hq, is_v = !is_q && j >= l.Hkv_local;
                int head = is_q ? peer * l.Hq + slot : H + (is_v ? Hkv : 0) + head_layout_slot(&l, peer, j % l.Hkv_local);
                int64_t at = is_q ? ((peer * T + t) * l.Hq + slot) * HS : ((peer * T + t) * 2 * l.Hkv_local + j) * HS,
                        from = (t * heads + head) * HS;
                double *to = is_q ? want_q + at : want_kv + at;
                const double *back = is_q ? dq.d + at : dkv.d + at;
                for (int i = 0; i < half; i++) {
                    double c = is_v ? 1 : (double)table.f[(t * half + i) * 2], s = is_v ? 0 : (double)table.f[(t * half + i) * 2 + 1];
                    double a = qkv.d[from + i], b = qkv.d[from + half + i];
                    to[i] = a * c - b * s;
                    to[half + i] = a * s + b * c;
                    want[from + i] += back[i] * c + back[half + i] * s; // a sum over the copies of a key/value head
                    want[from + half + i] += back[half + i] * c - back[i] * s;
                }
            }
    op_rope_pack_forward(q.x, kv.x, qkv.x, table.f, T, l, 0, T);
    check("op_rope_pack_forward q", q, want_q, 1);
    check("op_rope_pack_forward kv", kv, want_kv, 1);
    op_rope_unpack_backward(dqkv.x, dq.x, dkv.x, table.f, T, l, 0, T);
    check("op_rope_unpack_backward", dqkv, want, 2);

    // Ranges of rows, the last first, give the bits of the whole, and leave other rows alone. With few rows a range is empty.
    const int64_t begin[4] = {0, T / 3, T / 3 + T / 2, T}, X = sizeof(floatX), row = heads * HS;
    tensor q_part = tensor_new(nq, true), kv_part = tensor_new(nkv, true), part = tensor_new((T + 1) * row, true);
    memset(q_part.x, 0xff, (size_t)(nq * X));
    memset(kv_part.x, 0xff, (size_t)(nkv * X));
    for (int range = 2; range >= 0; range--) {
        int64_t first = begin[range], rows = begin[range + 1] - first, wrong = 0;
        memcpy(part.x, qkv.x + first * row, (size_t)(rows * row * X));
        op_rope_pack_forward(q_part.x, kv_part.x, part.x, table.f, T, l, first, rows);
        device_synchronize();
        wrong += test_wrong_rows(q_part.x, q.x, peers, T, (size_t)(l.Hq * HS * X), first);
        wrong += test_wrong_rows(kv_part.x, kv.x, peers, T, (size_t)(2 * l.Hkv_local * HS * X), first);
        memset(part.x, 0xff, (size_t)(part.n * X));
        op_rope_unpack_backward(part.x, dq.x, dkv.x, table.f, T, l, first, rows);
        device_synchronize();
        wrong += memcmp(part.x, dqkv.x + first * row, (size_t)(rows * row * X)) != 0;
        for (int64_t i = rows * row * X; i < part.n * X; i++) wrong += ((const char *)part.x)[i] != (char)0xff;
        CHECK(wrong == 0, "op_rope_pack_forward and op_rope_unpack_backward of rows %lld to %lld of %lld: %lld wrong, %s", (long long)first,
              (long long)(first + rows), (long long)T, (long long)wrong, settings);
    }

    op_heads_pack(q.x, dq.x, T, l); // dq read as rows (T, H, HS)
    device_synchronize();
    int64_t wrong = 0;
    for (int64_t t = 0; t < T; t++)
        for (int h = 0; h < H; h++)
            wrong += memcmp(q.x + ((h / l.Hq * T + t) * l.Hq + h % l.Hq) * HS, dq.x + (t * H + h) * HS, sizeof(floatX) * (size_t)HS) != 0;
    CHECK(wrong == 0, "op_heads_pack: %lld head rows wrong, %s", (long long)wrong, settings);
    tensor rows = tensor_new(nq, true);
    op_heads_unpack(rows.x, q.x, T, l);
    device_synchronize();
    CHECK(memcmp(rows.x, dq.x, sizeof(floatX) * (size_t)nq) == 0, "op_heads_unpack is not the inverse of op_heads_pack, %s", settings);
    free(want_q);
    free(want_kv);
    free(want);
    tensor all[11] = {qkv, dqkv, table, q, kv, dq, dkv, rows, q_part, kv_part, part};
    for (int i = 0; i < 11; i++) tensor_free(all[i]);
}

// ---- attention ----

typedef struct {
    attention_block b;
    int64_t nq, nsum, nkv, nlse;
    tensor q, k, v, dout;
    double *out, *lse, *delta, *dq, *dk, *dv; // in double precision; out and dq with the stride of sums
    int64_t *first; // (Tq) packed documents on the host, or NULL; b.documents.first is on the device
} attention_case;

static int document_rows; // what attention_test_documents was given; 0: the hand-written kernels compute packed documents

// gap: elements between rows beyond the heads; sum_gap: the same in out and dq.
// documents > 0: packed documents of so many tokens each; where document_rows is set, each is followed by three short ones. Causal:
// queries and keys stand at the same positions. Otherwise the keys stand in two runs of positions, and the first documents begin before
// the first key.
static attention_case attention_make(int64_t Tq, int64_t Tk, int Hq, int Hkv, int HS, bool causal, int gap, int sum_gap, uint64_t seed,
                                     int documents) {
    attention_case a;
    memset(&a, 0, sizeof a);
    a.b.Tq = Tq; a.b.Tk = Tk; a.b.Hq = Hq; a.b.Hkv = Hkv; a.b.HS = HS;
    a.b.q_stride = (int64_t)Hq * HS + gap; a.b.kv_stride = (int64_t)2 * Hkv * HS + gap; a.b.lse_stride = Tq + gap;
    a.b.sum_stride = (int64_t)Hq * HS + sum_gap;
    a.b.scale = 1.0f / sqrtf((float)HS);
    a.b.causal = causal;
    if (documents > 0) {
        a.first = HOST_NEW(int64_t, Tq);
        for (int64_t i = 0; i < Tq; i++) {
            int64_t n = documents + (document_rows > 0 ? 12 : 0), at = i % n;
            int64_t begin = at < documents ? 0 : at < documents + 9 ? documents : at < n - 1 ? documents + 9 : n - 1;
            a.first[i] = 1000 + i - at + begin;
        }
        a.b.documents.split = causal ? Tk : Tk / 3;
        a.b.documents.at[0] = causal ? 1000 : 1040; // off the diagonal the first documents begin before the keys
        a.b.documents.at[1] = a.b.documents.at[0] + Tk / 3 + 5; // a gap: five positions without a key
        int64_t *first = (int64_t *)device_alloc(sizeof(int64_t) * (size_t)Tq);
        device_from_host(first, a.first, sizeof(int64_t) * (size_t)Tq);
        a.b.documents.first = first;
        a.b.documents.host = a.first;
    }
    a.nq = Tq * a.b.q_stride;
    a.nsum = Tq * a.b.sum_stride;
    a.nkv = max_i64(1, Tk * a.b.kv_stride);
    a.nlse = Hq * a.b.lse_stride;
    a.q = tensor_random(a.nq, true, seed, 2);
    a.k = tensor_random(a.nkv, true, seed + 1, 2);
    a.v = tensor_random(a.nkv, true, seed + 2, 2);
    a.dout = tensor_random(a.nq, true, seed + 3, 1);
    a.out = HOST_NEW(double, a.nsum); a.lse = HOST_NEW(double, a.nlse); a.delta = HOST_NEW(double, a.nlse);
    a.dq = HOST_NEW(double, a.nsum); a.dk = HOST_NEW(double, a.nkv); a.dv = HOST_NEW(double, a.nkv);
    attention_reference(a.b, (attention_doubles){a.q.d, a.k.d, a.v.d, a.dout.d, a.out, a.lse, a.delta, a.dq, a.dk, a.dv}, as_stored);
    return a;
}
static void attention_free(attention_case *a) {
    if (a->first != NULL) device_free((void *)(uintptr_t)a->b.documents.first);
    free(a->first);
    tensor tensors[4] = {a->q, a->k, a->v, a->dout};
    double *doubles[6] = {a->out, a->lse, a->delta, a->dq, a->dk, a->dv};
    for (int i = 0; i < 4; i++) tensor_free(tensors[i]);
    for (int i = 0; i < 6; i++) free(doubles[i]);
}

// A buffer that starts with a mark everywhere: between the end of a row's heads and the stride nothing may be written.
static tensor marked(int64_t n, float mark) {
    tensor t = tensor_new(n, false);
    for (int64_t i = 0; i < n; i++) t.f[i] = mark;
    return t;
}
static void keep_marks(double *want, int64_t rows, int64_t width, int64_t stride, double mark) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = width; i < stride; i++) want[r * stride + i] = mark;
}

// NaN in what a call must overwrite.
static void forget(tensor t, int64_t rows, int64_t width, int64_t stride) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++) t.f[r * stride + i] = NAN;
}

static void *attention_scratch(attention_block b) {
    size_t forward = op_attention_scratch(b, false), backward = op_attention_scratch(b, true);
    return device_alloc(forward > backward ? forward : backward);
}

// The exact out as it is stored, for the backward pass: laid out like dout, NaN between the rows.
static tensor out_as_stored(const attention_case *a) {
    tensor t = tensor_new(a->nq, true);
    int64_t width = (int64_t)a->b.Hq * a->b.HS;
    for (int64_t i = 0; i < a->nq; i++) {
        int64_t row = i / a->b.q_stride, at = i % a->b.q_stride;
        t.x[i] = round_stored(at < width ? (float)a->out[row * a->b.sum_stride + at] : NAN);
    }
    return t;
}

// The factor of the float bound for whoever computes the block: the rounding of its attention weights, and of an engine's results.
static int rounding_of(attention_block b) {
    bool engine = b.q_stride % 8 == 0 && b.kv_stride % 8 == 0 && b.HS % 8 == 0;
    bool rows = b.q_stride % 8 == 0 && b.sum_stride % 2 == 0 && b.kv_stride % 8 == 0;
    int by_hand = sizeof(floatX) == 2 && (b.HS == 64 || b.HS == 128) && rows ? TENSOR_CORES : 1;
    if (engine && b.documents.first == NULL && b.Tq % 128 == 0 && b.Tk % 128 == 0) return ENGINE;
    return engine && document_rows > 0 && ENGINE > by_hand ? ENGINE : by_hand;
}

static void test_attention(int64_t Tq, int64_t Tk, int Hq, int Hkv, int HS, bool causal, int gap, int sum_gap, int documents) {
    char text[160];
    snprintf(text, sizeof text, "attention, rows %lld x %lld, heads %d on %d of %d%s%s, gaps %d and %d", (long long)Tq, (long long)Tk, Hq,
             Hkv, HS, causal ? ", causal" : "", documents > 0 ? ", documents" : "", gap, sum_gap);
    tell(text);
    attention_case a = attention_make(Tq, Tk, Hq, Hkv, HS, causal, gap, sum_gap, 11, documents);
    attention_block b = a.b;
    int rounded = rounding_of(b);
    tensor out = marked(a.nsum, 0.25f), lse = marked(a.nlse, 0.25f), delta = marked(a.nlse, 0.25f);
    tensor dq = marked(a.nsum, 1), dk = marked(a.nkv, 1), dv = marked(a.nkv, 1);
    forget(out, Tq, (int64_t)Hq * HS, b.sum_stride);
    forget(dq, Tq, (int64_t)Hq * HS, b.sum_stride);
    forget(dk, Tk, (int64_t)Hkv * HS, b.kv_stride);
    forget(dv, Tk, (int64_t)Hkv * HS, b.kv_stride);
    keep_marks(a.out, Tq, (int64_t)Hq * HS, b.sum_stride, 0.25);
    keep_marks(a.lse, Hq, Tq, b.lse_stride, 0.25);
    keep_marks(a.delta, Hq, Tq, b.lse_stride, 0.25);
    void *scratch = attention_scratch(b);
    int64_t calls = op_attention_calls();
    op_attention_forward(out.f, lse.f, a.q.x, a.k.x, a.v.x, b, false, scratch);
    CHECK(op_attention_calls() == calls + 1, "op_attention_calls counts %lld", (long long)(op_attention_calls() - calls));
    check("op_attention_forward out", out, a.out, 4 * rounded);
    check("op_attention_forward lse", lse, a.lse, 4);

    // The backward pass starts from the exact out, lse and delta, as stored.
    tensor out_stored = out_as_stored(&a);
    for (int64_t i = 0; i < a.nlse; i++) lse.f[i] = (float)a.lse[i];
    op_attention_delta(delta.f, out_stored.x, a.dout.x, b);
    check("op_attention_delta", delta, a.delta, (double)HS); // a sum of HS products that cancel
    for (int64_t i = 0; i < a.nlse; i++) delta.f[i] = (float)a.delta[i];
    // First all gradients are set; each further pass sets them again or adds to what is there: once, twice, three times the gradients.
    double *times[3] = {HOST_NEW(double, a.nsum), HOST_NEW(double, a.nkv), HOST_NEW(double, a.nkv)};
    static const struct {
        bool add_dq, add_dkv;
        int dq, dkv;
    } passes[] = {{false, false, 1, 1}, {true, true, 2, 2}, {false, true, 1, 3}, {true, false, 2, 1}};
    for (int pass = 0; pass < BACKWARD_PASSES; pass++) {
        int dq_times = passes[pass].dq, dkv_times = passes[pass].dkv;
        for (int64_t i = 0; i < a.nsum; i++) times[0][i] = dq_times * a.dq[i];
        for (int64_t i = 0; i < a.nkv; i++) {
            times[1][i] = dkv_times * a.dk[i];
            times[2][i] = dkv_times * a.dv[i];
        }
        keep_marks(times[0], Tq, (int64_t)Hq * HS, b.sum_stride, 1);
        keep_marks(times[1], Tk, (int64_t)Hkv * HS, b.kv_stride, 1);
        keep_marks(times[2], Tk, (int64_t)Hkv * HS, b.kv_stride, 1);
        if (Tk == 0) times[1][0] = times[2][0] = 1; // a tensor has one element at least
        bool add_dq = passes[pass].add_dq, add_dkv = passes[pass].add_dkv;
        op_attention_backward(dq.f, dk.f, dv.f, a.q.x, a.k.x, a.v.x, out_stored.x, a.dout.x, lse.f, delta.f, b, add_dq, add_dkv, scratch);
        // For a query that sees a single key, dq is the difference of two equal numbers of size 1.
        check_beside(add_dq ? "op_attention_backward dq, added" : "op_attention_backward dq", dq, times[0], 8 * rounded, dq_times);
        check_beside(add_dkv ? "op_attention_backward dk, added" : "op_attention_backward dk", dk, times[1], 8 * rounded, dkv_times);
        check_beside(add_dkv ? "op_attention_backward dv, added" : "op_attention_backward dv", dv, times[2], 8 * rounded, dkv_times);
    }
    for (int i = 0; i < 3; i++) free(times[i]);
    device_free(scratch);
    tensor all[7] = {out, lse, delta, dq, dk, dv, out_stored};
    for (int i = 0; i < 7; i++) tensor_free(all[i]);
    attention_free(&a);
}

// The heads of a block in slices of `kv` key/value heads and `members` query heads of each, which lie among the other heads: kv == 1 or
// members is the whole group. Each slice's sums are dense; its out goes to its place among the others; its dk and dv are set, or added to
// those of its group.
static void test_slices_of_heads(int64_t Tq, int64_t Tk, int Hq, int Hkv, int HS, bool causal, int gap, int documents, int kv,
                                 int members) {
    char text[160];
    snprintf(text, sizeof text, "attention, rows %lld x %lld, %d of %d key/value heads and %d of their %d query heads", (long long)Tq,
             (long long)Tk, kv, Hkv, members, Hq / Hkv);
    tell(text);
    attention_case a = attention_make(Tq, Tk, Hq, Hkv, HS, causal, gap, gap, 31, documents);
    attention_block b = a.b, slice = b;
    slice.Hq = kv * members;
    slice.Hkv = kv;
    slice.sum_stride = (int64_t)slice.Hq * HS;
    int rounded = rounding_of(slice);
    tensor sum = tensor_new(Tq * slice.sum_stride, false), lse = marked(a.nlse, 0.25f), delta = marked(a.nlse, 0.25f);
    tensor dq = marked(a.nq, 1), dk = marked(a.nkv, 1), dv = marked(a.nkv, 1), out = tensor_new(a.nq, true), exact_out = out_as_stored(&a);
    forget(dk, Tk, (int64_t)Hkv * HS, b.kv_stride);
    forget(dv, Tk, (int64_t)Hkv * HS, b.kv_stride);
    for (int64_t i = 0; i < a.nq; i++) out.x[i] = round_stored(0.25f);
    keep_marks(a.out, Tq, (int64_t)Hq * HS, b.q_stride, 0.25);
    keep_marks(a.lse, Hq, Tq, b.lse_stride, 0.25);
    keep_marks(a.dq, Tq, (int64_t)Hq * HS, b.q_stride, 1);
    keep_marks(a.dk, Tk, (int64_t)Hkv * HS, b.kv_stride, 1);
    keep_marks(a.dv, Tk, (int64_t)Hkv * HS, b.kv_stride, 1);
    void *scratch = attention_scratch(slice);
    for (int backward = 0; backward < 2; backward++) {
        for (int g = 0; g < Hkv; g += kv)
            for (int member = 0; member < Hq / Hkv; member += members) {
                int64_t head = g * (Hq / Hkv) + member, at = head * HS, kv_at = (int64_t)g * HS, row = head * b.lse_stride;
                for (int64_t i = 0; i < sum.n; i++) sum.f[i] = NAN;
                if (backward == 0) {
                    op_attention_forward(sum.f, lse.f + row, a.q.x + at, a.k.x + kv_at, a.v.x + kv_at, slice, false, scratch);
                    op_cast_rows(out.x + at, b.q_stride, sum.f, Tq, slice.sum_stride);
                    device_synchronize();
                    continue;
                }
                op_attention_delta(delta.f + row, exact_out.x + at, a.dout.x + at, slice);
                op_attention_backward(sum.f, dk.f + kv_at, dv.f + kv_at, a.q.x + at, a.k.x + kv_at, a.v.x + kv_at, exact_out.x + at,
                                      a.dout.x + at, lse.f + row, delta.f + row, slice, false, member > 0, scratch);
                device_synchronize();
                for (int64_t i = 0; i < sum.n; i++) dq.f[i / slice.sum_stride * b.q_stride + at + i % slice.sum_stride] = sum.f[i];
            }
        if (backward == 1) break;
        check("slices of heads, out", out, a.out, 4 * rounded);
        check("slices of heads, lse", lse, a.lse, 4);
        for (int64_t i = 0; i < a.nlse; i++) lse.f[i] = (float)a.lse[i];
    }
    check_beside("slices of heads, dq", dq, a.dq, 8 * rounded, 1);
    check_beside("slices of heads, dk", dk, a.dk, 8 * rounded, 1);
    check_beside("slices of heads, dv", dv, a.dv, 8 * rounded, 1);
    device_free(scratch);
    tensor all[8] = {sum, lse, delta, dq, dk, dv, out, exact_out};
    for (int i = 0; i < 8; i++) tensor_free(all[i]);
    attention_free(&a);
}

static bool engine_compiles(void) { return strcmp(op_attention_engine(false), "cuDNN") == 0; }

// op_attention_*_alone, which gives its results in floatX at once: the same bits as by way of the float sums (backward passes of a GPU's
// engine: the same within its rounding, because it adds in varying order). dq takes the place of q. What the engine or the rules do not
// take leaves everything as it was. taken: whether this is taken; at_once: whether out then is written in its place.
static void test_alone(int64_t T, int Hq, int Hkv, int HS, bool causal, int gap, int documents, bool taken, bool at_once) {
    char text[160];
    snprintf(text, sizeof text, "attention that is alone, %lld rows, heads %d on %d of %d%s, gap %d", (long long)T, Hq, Hkv, HS,
             causal ? ", causal" : "", gap);
    tell(text);
    attention_case a = attention_make(T, T, Hq, Hkv, HS, causal, gap, 0, 41, documents);
    attention_block b = a.b;
    int64_t width = (int64_t)Hq * HS, kv_width = (int64_t)Hkv * HS;
    if (documents == 0) b.lse_stride = T;
    taken = taken && attention_call_possible();
    tensor sum = tensor_new(a.nsum, false), lse = marked(a.nlse, 0.25f), lse_alone = marked(a.nlse, 0.25f), delta = marked(a.nlse, 0);
    tensor out = tensor_random(a.nq, true, 7, 1), dq = tensor_random(a.nq, true, 8, 1), alone[2]; // random: what lies between the rows
    tensor kv[4] = {marked(a.nkv, 1), marked(a.nkv, 1), marked(a.nkv, 1), marked(a.nkv, 1)}; // dk, dv; of the call that is alone
    for (int i = 0; i < 2; i++) alone[i] = tensor_new(a.nq, true);
    void *scratch = attention_scratch(b);
    op_attention_forward(sum.f, lse.f, a.q.x, a.k.x, a.v.x, b, false, scratch);
    device_synchronize();
    memcpy(alone[0].x, out.x, sizeof(floatX) * (size_t)a.nq);
    if (taken) memcpy(scratch, a.q.x, sizeof(floatX)); // where a call's out begins, unless it goes to its place at once
    op_cast_rows(out.x, b.q_stride, sum.f, T, width);
    bool took = op_attention_forward_alone(alone[0].x, lse_alone.f, a.q.x, a.k.x, a.v.x, b, scratch);
    device_synchronize();
    CHECK(!taken || (memcmp(scratch, a.q.x, sizeof(floatX)) == 0) == at_once,
          "op_attention_forward_alone: out goes where? %s", text);
    CHECK(took == taken, "op_attention_forward_alone: %staken: %s", took ? "" : "not ", text);
    CHECK(took == (memcmp(alone[0].x, out.x, sizeof(floatX) * (size_t)a.nq) == 0) &&
              took == (memcmp(lse_alone.f, lse.f, sizeof(float) * (size_t)a.nlse) == 0),
          "op_attention_forward_alone: %s: %s", took ? "other results" : "not taken, but there are results", text);

    op_attention_delta(delta.f, out.x, a.dout.x, b);
    op_attention_backward(sum.f, kv[0].f, kv[1].f, a.q.x, a.k.x, a.v.x, out.x, a.dout.x, lse.f, delta.f, b, false, true, scratch);
    device_synchronize();
    memcpy(alone[1].x, a.q.x, sizeof(floatX) * (size_t)a.nq);
    memcpy(dq.x, a.q.x, sizeof(floatX) * (size_t)a.nq);
    op_cast_rows(dq.x, b.q_stride, sum.f, T, width);
    took = op_attention_backward_alone(alone[1].x, kv[2].f, kv[3].f, alone[1].x, a.k.x, a.v.x, out.x, a.dout.x, lse.f, b, true, scratch);
    device_synchronize();
    CHECK(took == taken, "op_attention_backward_alone: %staken: %s", took ? "" : "not ", text);
    double most = 0, size = 0; // of the differences; of the gradients
    for (int64_t i = 0; i < a.nq; i++) {
        double x = stored_float(alone[1].x[i]), y = stored_float(dq.x[i]);
        if (i % b.q_stride >= width) CHECK(x == y, "op_attention_backward_alone writes between the rows: %s", text);
        most = test_worse(most, fabs(x - y));
        size = fmax(size, fabs(y));
    }
    for (int n = 0; n < 2; n++)
        for (int64_t i = 0; i < a.nkv; i++) {
            if (i % b.kv_stride >= kv_width) CHECK(kv[2 + n].f[i] == 1, "op_attention_backward_alone writes between the rows: %s", text);
            most = test_worse(most, fabs((double)kv[2 + n].f[i] - (double)kv[n].f[i]));
        }
    CHECK(took ? most <= (engine_compiles() ? size / 128 : 0) : most > size / 8 && isfinite(most),
          "op_attention_backward_alone: gradients differ by %.1e of %.1e: %s", most, size, text);
    device_free(scratch);
    tensor all[12] = {sum, lse, lse_alone, delta, out, dq, alone[0], alone[1], kv[0], kv[1], kv[2], kv[3]};
    for (int i = 0; i < 12; i++) tensor_free(all[i]);
    attention_free(&a);
}

// test_attention on packed documents; and how many tiles of a pass go to the engine, in pieces of 128, 256, ... rows (it makes one pass
// forward and BACKWARD_PASSES backward).
static bool small_calls; // attention_test_limits has cut calls as small as they can be

static void check_tiles(int64_t tiles, int64_t Tq, int64_t Tk, int Hq, int Hkv, int HS, bool causal, int gap, int sum_gap, int documents) {
    if (tiles > 0) attention_engine_agrees(HS, true, false); // which asks the engine once
    int64_t before = attention_test_engine_tiles();
    test_attention(Tq, Tk, Hq, Hkv, HS, causal, gap, sum_gap, documents);
    int64_t asked = attention_test_engine_tiles() - before;
    if (document_rows == 128 && !small_calls && attention_call_possible())
        CHECK(asked == (1 + BACKWARD_PASSES) * tiles,
              "the engine was asked for %lld tiles of documents of %d", (long long)asked, documents);
}

// The engine is asked only for what cuDNN's kernels are known to compute correctly. Changes one thing at a time to something they do not;
// sums and lse may lie anywhere.
static void test_engine_takes(void) {
    enum { NOTHING, Q_ROWS, K_ROWS, LATER_KEYS, HEAD, Q_STRIDE, SUM_STRIDE, KV_STRIDE, LSE_STRIDE, LSE_PLACE, Q_PLACE,
          DOCUMENTS, OVERLAP, THINGS };
    for (int thing = 0; thing < THINGS; thing++) {
        bool documents = thing >= DOCUMENTS; // two of 128 tokens; OVERLAP: the second sees keys of the first
        attention_case a = attention_make(256, 256, 2, 2, 64, documents, 16, 16, 5, documents ? 128 : 0);
        attention_block b = a.b;
        for (int i = 128; thing == OVERLAP && i < 256; i++) a.first[i] -= 64;
        b.Tq = documents ? 256 : thing == Q_ROWS ? 192 : 128;
        b.Tk = thing == K_ROWS ? 192 : thing == LATER_KEYS || documents ? 256 : 128;
        b.causal = thing == LATER_KEYS || documents;
        if (thing == HEAD) b.HS = 60;
        if (thing == Q_STRIDE) b.q_stride -= 4;
        if (thing == SUM_STRIDE) b.sum_stride -= 4;
        if (thing == KV_STRIDE) b.kv_stride -= 4;
        if (thing == LSE_STRIDE) b.lse_stride -= 3;
        tensor out = marked(a.nq, 0), lse = marked(a.nlse, 0);
        void *scratch = attention_scratch(a.b);
        attention_engine_agrees(64, true, false); // which asks the engine once
        attention_test_documents(128);
        int64_t before = attention_test_engine_tiles();
        op_attention_forward(out.f, lse.f + (thing == LSE_PLACE ? 1 : 0), a.q.x + (thing == Q_PLACE ? 2 : 0), a.k.x,
                             a.v.x, b, false, scratch);
        device_synchronize();
        bool asked = attention_test_engine_tiles() > before;
        attention_test_documents(document_rows);
        bool takes = thing == NOTHING || thing == DOCUMENTS || thing == SUM_STRIDE || thing == LSE_STRIDE || thing == LSE_PLACE;
        CHECK(asked == (takes && attention_call_possible()),
              "the engine is %sasked for shape %d", asked ? "" : "not ", thing);
        device_free(scratch);
        tensor_free(out);
        tensor_free(lse);
        attention_free(&a);
    }
}
// How many rows and heads one call of the engine gets.
static void test_call_sizes(void) {
    enum { BF16 = sizeof(floatX) == 2 };
    static const struct {
        int64_t T;
        int Hq, Hkv, HS;
        int64_t q_stride, kv_stride;
        bool blackwell;
        int64_t rows;
    } blocks[] = {
        {1 << 17, 32, 8, 128, 4096, 2048, false, 1 << 17},                // fits
        {1 << 20, 32, 8, 16, 12000, 2048, false, 174848},                 // 2^31 elements of q are 178956 rows: six tiles
        {1 << 20, 32, 8, 16, 2048, 12000, false, 174848},                 // of k
        {1 << 20, 4, 1, 128, 512, 256, false, BF16 ? 524288 : 349568},    // scratch of one head's backward call: 524288 rows (367491)
        {1 << 20, 8, 1, 128, 1024, 256, false, BF16 ? 349568 : 209792},    // of one group's forward call: 453710 rows (228614)
        {1 << 20, 4, 1, 64, 256, 128, true, 65536},
        {1 << 20, 4, 1, 128, 512, 256, true, 65536},
        {1 << 20, 4, 1, 256, 1024, 512, true, 32768},
    };
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        attention_block b = {.Tq = blocks[i].T, .Tk = blocks[i].T, .Hq = blocks[i].Hq, .Hkv = blocks[i].Hkv, .HS = blocks[i].HS,
                             .q_stride = blocks[i].q_stride, .kv_stride = blocks[i].kv_stride};
        attention_use_blackwell(blocks[i].blackwell);
        CHECK(attention_tile_rows(b) == blocks[i].rows,
              "tiles of block %d have %lld rows, not %lld", (int)i, (long long)attention_tile_rows(b), (long long)blocks[i].rows);
        b.lse_stride = b.Tq;
        CHECK(!attention_call_possible() || op_attention_scratch(b, true) <= (size_t)DEVICE_ATTENTION_SCRATCH + 16384,
              "block %d takes %zu bytes of scratch", (int)i, op_attention_scratch(b, true));
    }
    attention_use_blackwell(false);
    attention_test_limits(0, BF16 ? 24000 : 42000); // a query head takes 2560 (float: 4608) bytes forward, 15360 (21504) backward
    attention_part forward = attention_call_part(false, 128, 128, 32, 16, 8), backward = attention_call_part(true, 128, 128, 2, 2, 8);
    CHECK(forward.kv == 4 && forward.members == 2,
          "a forward call takes %d key/value heads, %d query heads of each", forward.kv, forward.members);
    CHECK(backward.kv == 1 && backward.members == 1,
          "a backward call takes %d key/value heads, %d query heads of each", backward.kv, backward.members);
    attention_test_limits(0, BF16 ? 35000 : 50000);
    backward = attention_call_part(true, 128, 128, 3, 1, 8); // calls of two heads do not divide three
    CHECK(backward.kv == 1 && backward.members == 1, "a backward call takes %d of three query heads", backward.members);
    attention_test_limits(0, 0);
}

// Which documents go to the engine: 2^33 products, half of the pairs on the diagonal, and 512 rows on both sides. Both sides of each limit.
static void test_long_documents(void) {
    static const struct {
        int Hq, HS;
        bool causal;
        int64_t queries, keys; // the fewest keys
    } documents[] = {{32, 128, true, 2048, 2048}, {8, 128, true, 4096, 4096}, {1, 64, true, 16384, 16384}, {32, 128, false, 1024, 2048},
                     {32, 128, false, 2048, 1024}, {32, 128, false, 4096, 512}, {32, 128, false, 1 << 20, 512},
                     {128, 256, true, 725, 725}, {1024, 256, true, 512, 512}};
    for (size_t i = 0; i < sizeof documents / sizeof *documents; i++) {
        attention_block b = {.Hq = documents[i].Hq, .Hkv = 1, .HS = documents[i].HS, .causal = documents[i].causal};
        int64_t queries = documents[i].queries, keys = documents[i].keys, fewer = b.causal ? queries - 1 : queries;
        CHECK(attention_document_is_long(b, queries, keys) && attention_document_is_long(b, keys, queries) &&
              !attention_document_is_long(b, fewer, keys - 1) && !attention_document_is_long(b, keys - 1, fewer),
              "a document is not long from %lld x %lld rows on with %d heads of %d", (long long)queries, (long long)keys, b.Hq, b.HS);
    }
}

// Keys in three blocks, merged by the forward kernel and by attention_merge, equal all keys at once.
static void test_merge(int64_t T, int H, int HS, int gap, int sum_gap) {
    attention_case a = attention_make(T, 3 * T, H, H, HS, false, gap, sum_gap, 21, 0);
    attention_block part = a.b, dense = a.b; // dense: what attention_merge merges
    part.Tk = dense.Tk = T;
    dense.sum_stride = (int64_t)H * HS;
    tensor out = marked(a.nsum, 0), lse = marked(a.nlse, 0), out_b = marked(a.nsum, 0), lse_b = marked(a.nlse, 0);
    tensor stored_b = tensor_new(a.nsum, true); // out_b, as an engine stores it
    tensor out_2 = marked(a.nsum, 0), lse_2 = marked(a.nlse, 0);
    forget(out_2, T, (int64_t)H * HS, a.b.sum_stride); // its lse says that no key was seen: it must not be read
    for (int64_t i = 0; i < a.nlse; i++) lse_2.f[i] = lse.f[i] = -INFINITY;
    void *scratch = attention_scratch(part);
    op_attention_forward(out.f, lse.f, a.q.x, a.k.x, a.v.x, part, true, scratch); // onto "no key seen yet"
    for (int block = 0; block < 3; block++) {
        int64_t at = block * T * a.b.kv_stride;
        if (block > 0) op_attention_forward(out.f, lse.f, a.q.x, a.k.x + at, a.v.x + at, part, true, scratch);
        op_attention_forward(out_b.f, lse_b.f, a.q.x, a.k.x + at, a.v.x + at, dense, false, scratch);
        op_cast_from_float(stored_b.x, out_b.f, T * H * HS);
        attention_merge(out_2.f, lse_2.f, stored_b.x, lse_b.f, T, H, HS, a.b.sum_stride, a.b.lse_stride, a.b.lse_stride, true);
    }
    device_synchronize();
    for (int h = 0; h < H; h++) // what lies beyond T is not compared
        for (int64_t i = T; i < a.b.lse_stride; i++)
            a.lse[h * a.b.lse_stride + i] = lse.f[h * a.b.lse_stride + i] = lse_2.f[h * a.b.lse_stride + i] = 0;
    check("merge in the forward kernel, out", out, a.out, 4 * rounding_of(part));
    check("merge in the forward kernel, lse", lse, a.lse, 4);
    check("merge alone, out", out_2, a.out, 4 * (rounding_of(part) + (sizeof(floatX) == 2 ? 1000 : 0)));
    check("merge alone, lse", lse_2, a.lse, 4);

    // A block without keys merged into a result, and -inf merged with -inf.
    float before = out.f[0], lse_before = lse.f[0];
    part.Tk = dense.Tk = 0;
    op_attention_forward(out.f, lse.f, a.q.x, a.k.x, a.v.x, part, true, scratch);
    device_synchronize();
    CHECK(out.f[0] == before && lse.f[0] == lse_before, "a block without keys changes out from %g to %g", (double)before, (double)out.f[0]);
    op_attention_forward(out_b.f, lse_b.f, a.q.x, a.k.x, a.v.x, dense, false, scratch);
    device_synchronize();
    CHECK(out_b.f[0] == 0 && lse_b.f[0] == -INFINITY, "no key seen: out %g, lse %g", (double)out_b.f[0], (double)lse_b.f[0]);
    stored_b.x[0] = round_stored(NAN);
    attention_merge(out.f, lse.f, stored_b.x, lse_b.f, T, H, HS, a.b.sum_stride, a.b.lse_stride, a.b.lse_stride, true);
    device_synchronize();
    CHECK(out.f[0] == before && lse.f[0] == lse_before, "merging a block without keys changes out");
    for (int merge = 0; merge < 2; merge++) { // set, then merged
        out_b.f[0] = NAN;
        attention_merge(out_b.f, lse_b.f, stored_b.x, lse_b.f, T, H, HS, dense.sum_stride, a.b.lse_stride, a.b.lse_stride, merge == 1);
        device_synchronize();
        CHECK(out_b.f[0] == 0 && lse_b.f[0] == -INFINITY,
              "-inf, merged %d: out %g, lse %g", merge, (double)out_b.f[0], (double)lse_b.f[0]);
    }
    lse_2.f[0] = NAN;
    attention_merge(out.f, lse.f, stored_b.x, lse_2.f, T, H, HS, a.b.sum_stride, a.b.lse_stride, a.b.lse_stride, false);
    device_synchronize();
    CHECK(isnan(lse.f[0]) && isnan(out.f[0]), "NaN set: out %g, lse %g", (double)out.f[0], (double)lse.f[0]);
    // Then merged, before or after a finite lse, that of no key, and NaN. (stored_b.x[0] is NaN, its neighbour is not.)
    const float lses[3] = {1, -INFINITY, NAN};
    for (int i = 0; i < 6; i++) {
        lse.f[0] = i < 3 ? NAN : lses[i - 3];
        lse_2.f[0] = i < 3 ? lses[i] : NAN;
        out.f[0] = out.f[1] = 0;
        attention_merge(out.f, lse.f, stored_b.x, lse_2.f, T, H, HS, a.b.sum_stride, a.b.lse_stride, a.b.lse_stride, true);
        device_synchronize();
        CHECK(isnan(lse.f[0]) && isnan(out.f[0]) && isnan(out.f[1]), "NaN merged, case %d: out %g %g, lse %g", i, (double)out.f[0],
              (double)out.f[1], (double)lse.f[0]);
    }
    device_free(scratch);
    tensor all[7] = {out, lse, out_b, lse_b, out_2, lse_2, stored_b};
    for (int i = 0; i < 7; i++) tensor_free(all[i]);
    attention_free(&a);
}

// A NaN in one key: the queries that see it have NaN for out and lse, and keep it when later keys, all finite, are merged in.
static void test_nan(int HS) {
    enum { T = 40, AT = 10 };
    attention_case a = attention_make(T, T, 1, 1, HS, true, 0, 0, 31, 0);
    tensor out = marked(a.nsum, 0), lse = marked(a.nlse, 0);
    void *scratch = attention_scratch(a.b);
    floatX before = a.k.x[AT * a.b.kv_stride];
    for (int block = 0; block < 2; block++) {
        a.k.x[AT * a.b.kv_stride] = block == 0 ? round_stored(NAN) : before;
        op_attention_forward(out.f, lse.f, a.q.x, a.k.x, a.v.x, a.b, block > 0, scratch);
        device_synchronize();
        int wrong = 0;
        for (int i = 0; i < T; i++) wrong += isnan(out.f[i * HS]) != (i >= AT) || isnan(lse.f[i]) != (i >= AT);
        CHECK(wrong == 0, "NaN in key %d, heads of %d, %s: %d of %d rows wrong", AT, HS, block == 0 ? "set" : "merged", wrong, T);
    }
    device_free(scratch);
    tensor_free(out);
    tensor_free(lse);
    attention_free(&a);
}

// The kernels that bring cuDNN's dense results into strided tensors. What lies between rows stays untouched.
static void test_dense_results(int64_t T, int heads, int members, int HS, int64_t gap) {
    int64_t stride = (int64_t)heads * HS + gap, row = (int64_t)heads * members * HS;
    tensor to = tensor_random(T * stride, false, 1, 1), from = tensor_random(T * row, true, 2, 1);
    double *want = HOST_NEW(double, T * stride), *sum = HOST_NEW(double, T * heads * HS);
    memcpy(want, to.d, sizeof(double) * (size_t)(T * stride));
    for (int64_t t = 0; t < T; t++)
        for (int h = 0; h < heads; h++)
            for (int d = 0; d < HS; d++) {
                for (int m = 0; m < members; m++) sum[(t * heads + h) * HS + d] += from.d[t * row + (h * members + m) * HS + d];
                want[t * stride + h * HS + d] += sum[(t * heads + h) * HS + d];
            }
    attention_sum_heads(to.f, from.x, T, heads, members, HS, stride, true);
    check("attention_sum_heads, added", to, want, members);
    for (int add = 0; add < 2; add++) { // first set, then added: twice the numbers
        for (int64_t t = 0; t < T; t++)
            for (int h = 0; h < heads; h++)
                for (int d = 0; d < HS; d++) want[t * stride + h * HS + d] = (1 + add) * sum[(t * heads + h) * HS + d];
        attention_sum_heads(to.f, from.x, T, heads, members, HS, stride, add == 1);
        check("attention_sum_heads, set, then added", to, want, members);
    }
    free(sum);

    tensor lse = tensor_random(heads * (T + gap), false, 3, 1), lse_b = tensor_random(heads * T, false, 4, 1);
    for (int64_t i = 0; i < T * stride; i++) want[i] = to.f[i];
    for (int64_t t = 0; t < T; t++)
        for (int h = 0; h < heads; h++) {
            double a = exp(lse.d[h * (T + gap) + t]), b = exp(lse_b.d[h * T + t]);
            for (int d = 0; d < HS; d++) {
                double *w = &want[t * stride + h * HS + d];
                *w = (a * *w + b * from.d[(t * heads + h) * HS + d]) / (a + b);
            }
            lse.d[h * (T + gap) + t] = log(a + b);
        }
    attention_merge(to.f, lse.f, from.x, lse_b.f, T, heads, HS, stride, T + gap, T, true);
    check("attention_merge out", to, want, 2);
    check("attention_merge lse", lse, lse.d, 2);
    for (int64_t t = 0; t < T; t++) {
        for (int i = 0; i < heads * HS; i++) want[t * stride + i] = from.d[t * heads * HS + i];
        for (int h = 0; h < heads; h++) lse.d[h * (T + gap) + t] = lse_b.d[h * T + t];
    }
    attention_merge(to.f, lse.f, from.x, lse_b.f, T, heads, HS, stride, T + gap, T, false);
    check("attention_merge out, set", to, want, 0);
    check("attention_merge lse, set", lse, lse.d, 2);
    free(want);
    tensor_free(to);
    tensor_free(from);
    tensor_free(lse);
    tensor_free(lse_b);
}

// ---- SwiGLU and loss ----

static void test_swiglu(int64_t T, int64_t F, bool in_place) {
    tensor gate_up = tensor_random(T * 2 * F, true, 1, 4), act = tensor_new(T * F, true), dact = tensor_random(T * F, true, 2, 1);
    tensor d = in_place ? gate_up : tensor_new(T * 2 * F, true);
    gate_up.x[0] = round_stored(-200); // e^200 is above the largest float
    gate_up.d[0] = -200;
    double *want = HOST_NEW(double, T * F), *want_d = HOST_NEW(double, T * 2 * F);
    for (int64_t t = 0; t < T; t++)
        for (int64_t f = 0; f < F; f++) {
            double g = gate_up.d[t * 2 * F + f], u = gate_up.d[t * 2 * F + F + f], s = 1 / (1 + exp(-g)), o = dact.d[t * F + f];
            want[t * F + f] = g * s * u;
            want_d[t * 2 * F + f] = o * u * s * (1 + g * (1 - s));
            want_d[t * 2 * F + F + f] = o * g * s;
        }
    op_swiglu_forward(act.x, gate_up.x, T, F);
    check("op_swiglu_forward", act, want, 1);
    tensor again = in_place ? dact : tensor_new(T * F, true);
    op_swiglu_backward(d.x, again.x, dact.x, gate_up.x, T, F);
    check("op_swiglu_backward", d, want_d, 1);
    CHECK(memcmp(again.x, act.x, sizeof(floatX) * (size_t)(T * F)) == 0, "op_swiglu_backward: act is not the forward pass's, %s", settings);
    if (!in_place) tensor_free(again);
    free(want);
    free(want_d);
    tensor_free(gate_up);
    if (!in_place) tensor_free(d);
    tensor_free(act);
    tensor_free(dact);
}

// Two equal logits, 1e9 or -1e38, and -infinity everywhere else: the loss of one is ln 2, that of another label infinite.
static void test_cross_entropy_infinite(int64_t V) {
    tensor logits = tensor_new(V, true), loss = tensor_new(1, false);
    int32_t *label = (int32_t *)device_alloc(sizeof *label);
    double *want = HOST_NEW(double, V);
    const int64_t at[2] = {V / 2 + 1, V - 1};
    for (int i = 0; i < 4; i++) {
        for (int64_t k = 0; k < V; k++) {
            bool high = k == at[0] || k == at[1];
            logits.x[k] = round_stored(high ? i % 2 == 0 ? 1e9f : -1e38f : -INFINITY);
            want[k] = high ? 0.5 : 0;
        }
        *label = i < 2 ? (int32_t)at[0] : 0;
        want[*label] -= 1;
        op_cross_entropy(loss.f, logits.x, label, 1, V, 1, true);
        device_synchronize();
        bool right = i < 2 ? fabs((double)loss.f[0] - log(2)) <= 1e-6 : loss.f[0] == INFINITY;
        CHECK(right, "op_cross_entropy beside -infinity: the loss is %g, case %d, V %lld, %s", (double)loss.f[0], i, (long long)V,
              settings);
        check("op_cross_entropy gradient beside -infinity", logits, want, 4);
    }
    free(want);
    device_free(label);
    tensor_free(logits);
    tensor_free(loss);
}
static void test_cross_entropy(int64_t T, int64_t V, double range) {
    tensor logits = tensor_random(T * V, true, 1, range), losses = tensor_new(T, false);
    int32_t *labels = (int32_t *)device_alloc(sizeof(int32_t) * (size_t)T);
    double *want = HOST_NEW(double, T), *want_d = HOST_NEW(double, T * V);
    const double scale = 0.125;
    for (int64_t t = 0; t < T; t++) {
        labels[t] = t % 3 == 1 ? -100 : (int32_t)(t * 7 % V);
        double largest = -INFINITY, sum = 0;
        const double *row = logits.d + t * V;
        for (int64_t i = 0; i < V; i++) largest = fmax(largest, row[i]);
        for (int64_t i = 0; i < V; i++) sum += exp(row[i] - largest);
        want[t] = labels[t] < 0 ? 0 : largest + log(sum) - row[labels[t]];
        for (int64_t i = 0; i < V; i++) want_d[t * V + i] = labels[t] < 0 ? 0 : (exp(row[i] - largest) / sum - (i == labels[t])) * scale;
    }
    op_cross_entropy(losses.f, logits.x, labels, T, V, (float)scale, false);
    check("op_cross_entropy losses", losses, want, 2);
    check("op_cross_entropy logits, not backward", logits, logits.d, 0);
    op_cross_entropy(losses.f, logits.x, labels, T, V, (float)scale, true);
    check("op_cross_entropy losses, backward", losses, want, 2);
    // In float e^(x - max) has an error that grows with |x - max|, which is up to 2 range.
    check("op_cross_entropy gradient", logits, want_d, 4);
    memset(&logits.x[V - 1], 0xff, sizeof(floatX)); // a NaN, which one thread sees
    op_cross_entropy(losses.f, logits.x, labels, T, V, (float)scale, false);
    device_synchronize();
    CHECK(isnan(losses.f[0]), "op_cross_entropy: the loss of a row with a NaN is %g, V %lld, %s", (double)losses.f[0],
          (long long)V, settings);
    free(want);
    free(want_d);
    device_free(labels);
    tensor_free(logits);
    tensor_free(losses);
}

static void test_products(void) {
    test_linear(2, 2, 2); // a product of one row or column cuBLAS 13.5.1 to 13.6.0 may refuse
    test_linear(7, 24, 33);
    setenv("FAKE_CUDA_ELEMENTS", "8447", 1); // cut by rows: 128, 128 and 44
    linear_test_elements(8447);
    test_linear(300, 24, 33);
    linear_test_elements(0);
    unsetenv("FAKE_CUDA_ELEMENTS");
    test_long_sum(11528); // on an H100
    test_long_sum(8648);  // on a B200
}

// cuDNN takes half a second to compile a shape, so a GPU skips shapes that show nothing there.

// ---- addresses: each tensor of an operation alone begins between two multiples of 16 bytes, where vectors of 16 bytes fault ----

enum { TENSORS_MOST = 9, ROWS = 6, COLUMNS = 64, LABEL_OF_ROWS = 3 };
typedef struct {
    char *memory[TENSORS_MOST], *at[TENSORS_MOST]; // on the device; where the tensor begins in it
    float *values[TENSORS_MOST];                   // (n) on the host, before the call
    float *want[TENSORS_MOST];                     // (n) after the call with all tensors at multiples of 16 bytes
    int64_t n[TENSORS_MOST];
    int bytes[TENSORS_MOST]; // of an element: 4: float, 2: bf16
    int count;
    int32_t *rows; // (ROWS) on the device: tokens or labels
    void *scratch;
} call_tensors;

static void call_takes(call_tensors *c, int bytes, int64_t n) {
    int i = c->count++;
    c->n[i] = n;
    c->bytes[i] = bytes;
    c->memory[i] = (char *)device_alloc((size_t)n * (size_t)bytes + 8);
    c->values[i] = HOST_NEW(float, n);
    c->want[i] = HOST_NEW(float, n);
    // Positive, as second moments are.
    for (int64_t k = 0; k < n; k++) c->values[i][k] = (float)(0.6 + 0.5 * test_random(77, (uint64_t)(1000 * i + k)));
}
// moved: the tensor that begins `by` bytes later; -1: none.
static void call_run(call_tensors *c, void (*call)(call_tensors *), int moved, int by, float *const *results) {
    for (int i = 0; i < c->count; i++) {
        c->at[i] = c->memory[i] + (i == moved ? by : 0);
        for (int64_t k = 0; k < c->n[i]; k++) {
            uint32_t bits;
            memcpy(&bits, &c->values[i][k], 4);
            uint16_t half = (uint16_t)(bits >> 16);
            memcpy(c->at[i] + k * c->bytes[i], c->bytes[i] == 2 ? (void *)&half : (void *)&bits, (size_t)c->bytes[i]);
        }
    }
    call(c);
    device_synchronize();
    for (int i = 0; i < c->count; i++)
        for (int64_t k = 0; k < c->n[i]; k++) {
            uint32_t bits = 0;
            memcpy((char *)&bits + 4 - c->bytes[i], c->at[i] + k * c->bytes[i], (size_t)c->bytes[i]);
            memcpy(&results[i][k], &bits, 4);
        }
}
// Runs a call with each of its tensors moved by one element, and by 8 bytes. Sums are added in another order there, and tensor cores round
// weights to bf16: 1/32 of the tensor's largest number; what this looks for is a fault, or rows in the wrong place.
static void check_call(const char *name, call_tensors *c, void (*call)(call_tensors *)) {
    float *got[TENSORS_MOST];
    for (int i = 0; i < c->count; i++) got[i] = HOST_NEW(float, c->n[i]);
    c->scratch = device_alloc(1 << 20);
    c->rows = (int32_t *)device_alloc(sizeof(int32_t) * ROWS);
    for (int t = 0; t < ROWS; t++) c->rows[t] = LABEL_OF_ROWS;
    call_run(c, call, -1, 0, c->want);
    for (int way = 0; way < 2 * c->count; way++) {
        int moved = way / 2, by = way % 2 == 0 ? c->bytes[moved] : 8;
        call_run(c, call, moved, by, got);
        for (int i = 0; i < c->count; i++) {
            double largest = 0, apart = 0;
            for (int64_t k = 0; k < c->n[i]; k++) largest = fmax(largest, fabs((double)c->want[i][k]));
            for (int64_t k = 0; k < c->n[i]; k++) {
                double d = fabs((double)got[i][k] - (double)c->want[i][k]);
                if (!(d <= apart)) apart = isnan(d) ? INFINITY : d;
            }
            CHECK(largest > 0 && apart <= largest / 32,
                  "%s: with tensor %d moved by %d bytes, tensor %d is %g off its %g", name, moved, by, i, apart, largest);
        }
    }
    for (int i = 0; i < c->count; i++) {
        device_free(c->memory[i]);
        free(c->values[i]);
        free(c->want[i]);
        free(got[i]);
    }
    device_free(c->scratch);
    device_free(c->rows);
}

#define X(i) ((floatX *)c->at[i])
#define F(i) ((float *)c->at[i])
static void call_adamw(call_tensors *c) {
    adamw_args args = {.lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .grad_scale = 1, .step = 3};
    op_adamw(X(0), F(1), F(2), F(3), F(4), c->n[0], args);
}
static void call_adamw_bf16(call_tensors *c) {
    adamw_args args = {.lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .grad_scale = 1,
                       .step = 3, .bf16_moments = true};
    op_adamw(X(0), F(1), c->at[2], c->at[3], F(4), c->n[0], args);
}
static void call_round(call_tensors *c) {
    rounding_rule how = {.stochastic = true};
    op_round(X(0), F(1), c->n[0], how);
}
static void call_cast_from(call_tensors *c) { op_cast_from_float(X(0), F(1), c->n[0]); }
static void call_cast_rows(call_tensors *c) { op_cast_rows(X(0), COLUMNS, F(1), ROWS, COLUMNS / 2); }
static void call_copy_rows(call_tensors *c) { op_copy_rows(X(0), COLUMNS / 2, X(1), COLUMNS, ROWS, COLUMNS / 2); }
static void call_cast_to(call_tensors *c) { op_cast_to_float(F(0), X(1), c->n[0]); }
static void call_add(call_tensors *c) { op_add_float(F(0), F(1), c->n[0]); }
static void call_wire(call_tensors *c) { op_bf16_from_float((bf16 *)c->at[0], F(1), c->n[0]); }
static void call_add_wire(call_tensors *c) { op_add_bf16(F(0), (bf16 *)c->at[1], c->n[0]); }
static void call_norm(call_tensors *c) { op_rmsnorm_forward(X(0), F(1), X(2), X(3), ROWS, COLUMNS, 1e-5f); }
static void call_norm_back(call_tensors *c) { op_rmsnorm_backward(X(0), F(1), X(2), X(3), X(4), F(5), ROWS, COLUMNS, true, c->scratch); }
static void call_swiglu(call_tensors *c) { op_swiglu_forward(X(0), X(1), ROWS, COLUMNS); }
static void call_swiglu_back(call_tensors *c) { op_swiglu_backward(X(0), X(1), X(2), X(3), ROWS, COLUMNS); }
static void call_embedding(call_tensors *c) { op_embedding_forward(X(0), c->rows, X(1), ROWS, COLUMNS); }
static void call_embedding_back(call_tensors *c) { op_embedding_backward(F(0), c->rows, X(1), ROWS, COLUMNS, c->scratch); }
static void call_loss(call_tensors *c) { op_cross_entropy(F(0), X(1), c->rows, ROWS, COLUMNS, 1, true); }
static void call_rope(call_tensors *c) { op_rope_pack_forward(X(0), X(1), X(2), F(3), ROWS, head_layout_make(2, 4, 2, 16), 0, ROWS); }
static void call_rope_back(call_tensors *c) {
    op_rope_unpack_backward(X(0), X(1), X(2), F(3), ROWS, head_layout_make(2, 4, 2, 16), 0, ROWS);
}
static void call_heads(call_tensors *c) { op_heads_pack(X(0), X(1), ROWS, head_layout_make(2, 4, 2, 16)); }
static void call_heads_back(call_tensors *c) { op_heads_unpack(X(0), X(1), ROWS, head_layout_make(2, 4, 2, 16)); }
static void call_merge(call_tensors *c) { attention_merge(F(0), F(1), X(2), F(3), ROWS, 4, 16, COLUMNS, ROWS, ROWS, true); }
static void call_sum_heads(call_tensors *c) { attention_sum_heads(F(0), X(1), ROWS, 2, 2, 16, COLUMNS, true); }
static attention_block call_block(int Hkv) { // one head of 64, as tensor cores take it, or four of 16
    attention_block b = {.Tq = ROWS, .Tk = ROWS, .lse_stride = ROWS, .Hq = Hkv, .Hkv = Hkv, .HS = COLUMNS / Hkv, .q_stride = COLUMNS,
                         .sum_stride = COLUMNS, .kv_stride = COLUMNS, .scale = 0.1f, .causal = true};
    return b;
}
static void call_delta(call_tensors *c) { op_attention_delta(F(0), X(1), X(2), call_block(4)); }
static void call_attention(call_tensors *c) { op_attention_forward(F(0), F(1), X(2), X(3), X(4), call_block(1), true, c->scratch); }
static void call_attention_back(call_tensors *c) { // out, which cuDNN alone reads, is not among the tensors
    op_attention_backward(F(0), F(1), F(2), X(3), X(4), X(5), X(6), X(6), F(7), F(8), call_block(1), true, true, c->scratch);
}
#undef X
#undef F

static void test_addresses(void) {
    enum { N = ROWS * COLUMNS, S = sizeof(floatX) }; // element sizes: S: stored, 4: float, 2: bf16
    const struct {
        const char *name;
        void (*call)(call_tensors *);
        int count, bytes[TENSORS_MOST], n[TENSORS_MOST];
    } calls[] = {
        {"op_adamw", call_adamw, 5, {S, 4, 4, 4, 4}, {N, N, N, N, N}},
        {"op_adamw, bf16 moments", call_adamw_bf16, 5, {S, 4, 2, 2, 4}, {N, N, N, N, N}},
        {"op_round", call_round, 2, {S, 4}, {N, N}},
        {"op_cast_from_float", call_cast_from, 2, {S, 4}, {N, N}},
        {"op_cast_rows", call_cast_rows, 2, {S, 4}, {N, N / 2}},
        {"op_copy_rows", call_copy_rows, 2, {S, S}, {N / 2, N}},
        {"op_cast_to_float", call_cast_to, 2, {4, S}, {N, N}},
        {"op_add_float", call_add, 2, {4, 4}, {N, N}},
        {"op_bf16_from_float", call_wire, 2, {2, 4}, {N, N}},
        {"op_add_bf16", call_add_wire, 2, {4, 2}, {N, N}},
        {"op_rmsnorm_forward", call_norm, 4, {S, 4, S, S}, {N, ROWS, N, COLUMNS}},
        {"op_rmsnorm_backward", call_norm_back, 6, {S, 4, S, S, S, 4}, {N, COLUMNS, N, N, COLUMNS, ROWS}},
        {"op_swiglu_forward", call_swiglu, 2, {S, S}, {N, 2 * N}},
        {"op_swiglu_backward", call_swiglu_back, 4, {S, S, S, S}, {2 * N, N, N, 2 * N}},
        {"op_embedding_forward", call_embedding, 2, {S, S}, {N, N}},
        {"op_embedding_backward", call_embedding_back, 2, {4, S}, {N, N}},
        {"op_cross_entropy", call_loss, 2, {4, S}, {ROWS, N}},
        {"op_rope_pack_forward", call_rope, 4, {S, S, S, 4}, {N, N, 2 * N, ROWS * 16}},
        {"op_rope_unpack_backward", call_rope_back, 4, {S, S, S, 4}, {2 * N, N, N, ROWS * 16}},
        {"op_heads_pack", call_heads, 2, {S, S}, {N, N}},
        {"op_heads_unpack", call_heads_back, 2, {S, S}, {N, N}},
        {"attention_merge", call_merge, 4, {4, 4, S, 4}, {N, 4 * ROWS, N, 4 * ROWS}},
        {"attention_sum_heads", call_sum_heads, 2, {4, S}, {N, N}},
        {"op_attention_delta", call_delta, 3, {4, S, S}, {4 * ROWS, N, N}},
        {"op_attention_forward", call_attention, 5, {4, 4, S, S, S}, {N, ROWS, N, N, N}},
        {"op_attention_backward", call_attention_back, 9, {4, 4, 4, S, S, S, S, 4, 4}, {N, N, N, N, N, N, N, ROWS, ROWS}},
    };
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        call_tensors c;
        memset(&c, 0, sizeof c);
        for (int k = 0; k < calls[i].count; k++) call_takes(&c, calls[i].bytes[k], calls[i].n[k]);
        check_call(calls[i].name, &c, calls[i].call);
    }
}

int main(int argc, char **argv) {
    error_text error = {"", 0};
    setenv("TRAIN_LLAMA_TEST_MANAGED", "1", 1);
    if (!comm_init(&argc, &argv, &error) || !device_start(1, &error)) {
        fprintf(stderr, "error: %s\n", error.text);
        return EXIT_USER_ERROR;
    }
    const int blocks[] = {0, 32, 96, 1024};
    bool products_alone = argc == 2 && strcmp(argv[1], "products") == 0;
    bool last_first = argc == 2 && strcmp(argv[1], "last-first") == 0;
    tells = argc == 2 && strcmp(argv[1], "tell") == 0;
    setenv("EMULATION_REVERSE", last_first ? "1" : "0", 1);
    if (products_alone) test_products();
    for (int i = 0; i < 4 && !products_alone; i++) {
        kernels_test_block_size(blocks[i]);
        snprintf(settings, sizeof settings, "block size %d (0: the launcher's), %s first", blocks[i], last_first ? "last" : "first");
        tell(settings);
        test_casts();
        test_cast_rows(1, 1, 0, 0, 0);
        test_cast_rows(7, 16, 48, 0, 0); // in vectors
        test_cast_rows(300, 24, 8, 0, 0);
        test_cast_rows(9, 16, 48, 1, 0); // one address or the other, or a stride, or a width that is no multiple of 16 bytes
        test_cast_rows(9, 16, 48, 0, 1);
        test_cast_rows(9, 16, 3, 0, 0);
        test_cast_rows(9, 17, 7, 0, 0);
        test_cast_rows(70, 33, 0, 1, 3);
        test_cast_rows(0, 8, 8, 0, 0);
        test_vectors(1, 0);
        test_vectors(5, 1);
        test_vectors(1000, 0);
        test_vectors(20011, 1);
        test_adamw(1, true, 1);
        test_adamw(37, false, 3);
        test_adamw(1024, true, 100);
        moments_check_bits(1, 1, 0);
        moments_check_bits(1031, 512, 0);
        moments_check_bits(300, 37, 1);
        moments_check_not_finite();
        if (i == 0) moments_check_mean();
        if (i == 0 && !THIN) moments_check_stall();
        test_rounding(0);
        test_rounding(1);
        test_init();
        if (i < 2) test_addresses();
        test_embedding(1, 8, 5);
        test_embedding(70, 33, 9);
        test_embedding(600, 24, 40);
        test_rmsnorm(1, 8);
        test_rmsnorm(5, 33);
        test_rmsnorm(37, 264);
        if (i == 0) test_rmsnorm(1100, 264); // several rows to a block of several warps
        if (i == 0) test_rmsnorm(2, DEVICE_HIDDEN_SIZE_MAX); // all of the smallest GPU's shared memory
        test_rope(1, 1, 1, 1, 2);
        test_rope(5, 1, 3, 1, 6);
        test_rope(4, 1, 4, 2, 16); // in pieces of 16 bytes
        test_rope(7, 2, 8, 4, 16);
        test_rope(3, 4, 8, 2, 16); // each key/value head goes to two peers
        test_rope(3, 6, 6, 2, 10);
        test_rope(3, 2, 12, 4, 16); // 6 query heads to a peer, 3 to a key/value head
        test_merge(1, 2, 8, 0, 4);
        test_merge(9, 2, 8, 0, 4);
        test_merge(5, 3, 6, 3, 1);
        test_merge(2, 40, 12, 0, 4); // more heads than a block may have threads
        test_dense_results(5, 3, 1, 8, 0);
        test_dense_results(7, 2, 1, 5, 3);
        test_dense_results(5, 2, 4, 8, 16);
        test_dense_results(4, 3, 3, 5, 3);
        test_swiglu(1, 8, false);
        test_swiglu(5, 33, true);
        test_swiglu(3, 2056, false);
        test_cross_entropy(1, 8, 1);
        test_cross_entropy(9, 1001, 5);
        test_cross_entropy(6, 4096, 40);
        test_cross_entropy(4, 128256, 5); // more than shared memory holds
        test_cross_entropy(4, 1001, 1e10); // x log2(e) is then rounded by up to 512
        test_cross_entropy(4, 4096, 1e38);
        test_cross_entropy_infinite(1001);
        test_cross_entropy_infinite(4096);
        if (i > 0) continue; // block sizes below depend on the head size alone, or there are none
        test_attention(1, 1, 1, 1, 8, false, 0, 0, 0);
        test_attention(5, 0, 2, 1, 16, false, 0, 3, 0); // without keys dq is still set; without queries, dk and dv
        test_attention(0, 5, 2, 1, 16, false, 0, 0, 0);
        test_attention(33, 33, 4, 2, 16, true, 0, 4, 0);
        test_attention(40, 70, 4, 1, 20, false, 0, 0, 0);  // head size not in 16-byte pieces
        test_attention(70, 40, 2, 2, 24, true, 8, 0, 0);   // rows beyond the last key, strides with gaps
        test_attention(65, 65, 2, 1, 64, true, 3, 5, 0);   // strides that are no multiples of 16 bytes
        test_attention(33, 50, 2, 2, 80, false, 0, 1, 0);
        test_attention(34, 34, 2, 1, 128, true, 0, 3, 0);
        test_attention(20, 33, 2, 1, 256, false, 0, 0, 0);
        test_attention(33, 33, 1, 1, 200, true, 0, 8, 0);
        test_attention(100, 100, 4, 2, 16, true, 0, 0, 37); // packed documents: longer than a tile, shorter, of one token
        test_attention(100, 100, 2, 2, 24, true, 8, 3, 10);
        test_attention(70, 70, 2, 1, 20, true, 3, 0, 1);
        test_attention(128, 256, 4, 2, 16, false, 0, 8, 20); // a shape that cuDNN would take; rows that see nothing
        test_attention(130, 90, 2, 1, 136, false, 0, 0, 33);
        test_attention(33, 70, 2, 1, 64, false, 8, 0, 0); // for tensor cores
        test_attention(200, 200, 2, 1, 64, true, 0, 6, 0);
        test_attention(150, 100, 2, 2, 128, true, 8, 16, 0);
        test_attention(150, 150, 4, 2, 64, true, 0, 0, 37);
        test_attention(130, 180, 2, 1, 128, false, 8, 0, 50);
        test_attention(128, 128, 2, 2, 64, true, 0, 2, 1);
        // Limits of the rules that skip a tile or compute one without a mask: a document that begins at the last row of a tile; one whose
        // last tile of keys ends one row after the first query; one that begins in a short last tile of queries; keys that fill all but one
        // row of a tile.
        test_attention(150, 150, 2, 1, 16, true, 0, 0, 127);
        test_attention(150, 150, 2, 1, 64, true, 0, 0, 127);
        test_attention(130, 130, 1, 1, 64, true, 0, 0, 63);
        test_attention(230, 230, 1, 1, 128, true, 0, 0, 66);
        test_attention(70, 127, 2, 1, 64, false, 8, 8, 0);
        test_merge(40, 2, 64, 0, 0);
        test_merge(70, 1, 128, 8, 2);
        const int nan_heads[] = {16, 64, 128, 200};
        for (int k = 0; k < 4; k++) test_nan(nan_heads[k]);
        test_attention(256, 64, 2, 1, 64, false, 0, 8, 70); // rows and blocks that see nothing
        test_slices_of_heads(70, 90, 8, 2, 16, false, 0, 0, 1, 1);
        test_slices_of_heads(50, 50, 6, 2, 20, true, 3, 0, 1, 3); // strides that are no multiples of 16 bytes
        test_slices_of_heads(100, 100, 8, 4, 24, true, 8, 37, 2, 2);
        test_slices_of_heads(70, 130, 4, 1, 64, false, 0, 0, 1, 2); // for tensor cores
        test_slices_of_heads(130, 130, 4, 2, 128, true, 8, 60, 1, 1);
        // Lengths and strides that go to the engine (emulated: to the same kernels): in one call, then cut into tiles of 128 rows and into
        // runs of one query head, or of one or two key/value heads with all or half of their query heads.
        for (int cut = 0; cut < CUTS; cut++) {
            if (engine_compiles() && cut > 0) continue; // cuDNN would compile dozens more kernels, for sums that emulation shows
            attention_test_limits(cut > 0 ? 1 : 0, cut == 0 ? 0 : cut == 1 ? 1 : 100000);
            test_attention(128, 128, 4, 2, 16, true, 0, 0, 0);
            test_attention(384, 384, 6, 3, 8, true, 8, 0, 0);
            test_attention(256, 384, 4, 4, 16, false, 8, 16, 0);
            test_attention(128, 256, 4, 1, 16, false, 0, 8, 0);
            test_attention(384, 128, 3, 1, 8, false, 0, 0, 0);
            test_merge(256, 2, 8, 8, 0);
            test_slices_of_heads(256, 256, 8, 2, 16, true, 0, 0, 1, 1);
            test_slices_of_heads(256, 128, 8, 2, 8, false, 8, 0, 1, 2);
            test_slices_of_heads(128, 256, 4, 4, 16, false, 0, 0, 2, 1);
            if (!KERNELS_ALONE) { // cut: the least limits leave 128 rows of a head, and two heads do not divide three
                test_alone(128, 4, 2, 16, true, 0, 0, true, cut != 1);
                test_alone(128, 4, 4, 16, false, 8, 0, true, false);
                test_alone(256, 6, 3, 8, true, 8, 0, cut == 0, false);
            }
            if (engine_compiles() || KERNELS_ALONE) continue; // the kernels' launches are those of the shorter blocks above
            test_alone(128, 4, 2, 40, true, 0, 0, false, false); // the emulated engine does not take it
            test_attention(256, 256, 4, 2, 40, true, 8, 0, 0); // the emulated engine does not take it
            test_attention(128, 256, 2, 2, 40, false, 0, 8, 0);
        }
        // Packed documents go to the engine in pieces of 128 rows or more (the library's smallest); the emulated engine takes any number,
        // so there also of 16. A document that fills its pieces, one that is rounded up, one with no rows after it, last rows by hand,
        // short ones between long ones.
        for (int n = 0; n < (engine_compiles() ? 2 : 4); n += DOCUMENTS_STEP) {
            if (n == 1 && ENGINE_ROWS == 128) continue; // the same again
            document_rows = n % 2 == 0 ? 128 : ENGINE_ROWS;
            small_calls = n >= 2;
            attention_test_documents(document_rows);
            attention_test_limits(small_calls ? 1 : 0, small_calls ? 1 : 0);
            // 290 rows, rounded up; 256 rows and 34 with too few behind them.
            check_tiles(2, 600, 600, 4, 2, 16, true, 0, 8, 290);
            if (!KERNELS_ALONE) check_tiles(2, 400, 400, 2, 1, 64, true, 8, 0, 130); // twice 130, rounded up; 116 rows that are too few
            check_tiles(3, 420, 420, 2, 2, 8, true, 0, 0, 1000);   // 256, 128 and 36 with nothing behind them
            check_tiles(0, 270, 270, 2, 2, 24, true, 3, 0, 90);    // strides that the engine does not take
            check_tiles(0, 200, 300, 2, 1, 16, true, 0, 0, 130);   // keys that no query sees
            check_tiles(0, 256, 256, 2, 1, 16, false, 0, 0, 130);  // off the diagonal, not all of one document
            check_tiles(1, 200, 300, 4, 1, 16, false, 0, 8, 1000); // off the diagonal: 128 and 72, 256 and 44
            test_slices_of_heads(300, 300, 4, 1, 16, true, 0, 130, 1, 2);
            if (!KERNELS_ALONE) check_tiles(2, 390, 140, 2, 2, 64, false, 8, 16, 1000); // 256, 128 and 6, 128 and 12
            // The emulated engine does not take it.
            if (!engine_compiles() && !KERNELS_ALONE) check_tiles(0, 256, 200, 2, 1, 40, false, 0, 0, 1000);
        }
        attention_test_documents(document_rows = 0);
        attention_test_limits(0, 0);
        small_calls = false;
        test_call_sizes();
        test_long_documents();
        tell("products");
        test_products();
        if (KERNELS_ALONE) continue;
        test_alone(100, 2, 2, 16, true, 0, 0, false, false);   // rows that the engine is not asked for
        test_alone(128, 2, 2, 20, true, 0, 0, false, false);   // a head size
        test_alone(256, 2, 2, 16, true, 0, 100, false, false); // documents
        test_engine_takes();
        if (!TEST_SANITIZED) test_attention(256, 256, 4, 2, 48, true, 0, 0, 0); // the emulated engine takes it and computes it wrongly
#ifdef DEVICE_EMULATED
        attention_test_documents(document_rows = 40); // pieces under a limit of 128 rows: twice 80, and 10 by hand
        attention_test_limits(1, 0);
        attention_engine_agrees(16, true, false); // which asks the engine once
        int64_t before = attention_test_engine_tiles();
        test_attention(170, 170, 1, 1, 16, true, 0, 0, 1000);
        int64_t asked = attention_test_engine_tiles() - before;
        CHECK(asked == (1 + BACKWARD_PASSES) * 3, "the engine was asked for %lld tiles, in pieces of other sizes", (long long)asked);
        attention_test_limits(0, 0);
        // How a document is rounded up.
        static const struct {
            int rows, document, T, tiles; // rows: of the smallest piece; T: of the block
        } rounded[] = {{16, 515, 528, 3},   // 13 rows behind it are too few for 544: 512, and 3 that become 16
                       {16, 515, 547, 2},   // 544; and 16 of the 20 that follow
                       {256, 800, 870, 3}}; // 70 behind it are too few for 896: 512, 256, and 32 by hand
        for (size_t i = 0; i < sizeof rounded / sizeof *rounded; i++) {
            attention_test_documents(document_rows = rounded[i].rows);
            before = attention_test_engine_tiles();
            test_attention(rounded[i].T, rounded[i].T, 1, 1, 16, true, 0, 0, rounded[i].document);
            asked = attention_test_engine_tiles() - before;
            CHECK(asked == (1 + BACKWARD_PASSES) * rounded[i].tiles, "the engine was asked for %lld tiles of a document of %d",
                  (long long)asked, rounded[i].document);
        }
        attention_test_documents(document_rows = 0);
        before = attention_test_engine_tiles();
        CHECK(attention_engine_agrees(40, false, false) && attention_engine_agrees(40, false, true) &&
              attention_test_engine_tiles() == before, "an engine that takes no shape is wrong: what is computed in its place, or counted");
        static const struct {
            int HS;
            bool right[2]; // forward, backward
            const char *engine;
        } engines[] = {{48, {true, false}, "wrong in gradients"}, {88, {false, true}, "wrong in lse alone"},
                       {104, {true, false}, "wrong in dv alone"}, {96, {true, false}, "adding to dq instead of setting it"},
                       {56, {true, false}, "wrong where scores are low"}, {72, {true, true}, "inaccurate where scores are low"},
                       {24, {true, true}, "right"}}; // the last on another block
        for (size_t i = 0; i < sizeof engines / sizeof *engines && !TEST_SANITIZED; i++) { // sanitized: the same accesses
            attention_use_blackwell(engines[i].HS == 24);
            for (int pass = 0; pass < 2; pass++)
                CHECK(attention_engine_agrees(engines[i].HS, false, pass == 1) == engines[i].right[pass],
                      "an engine %s is %sused, pass %d", engines[i].engine, engines[i].right[pass] ? "not " : "", pass);
        }
        attention_use_blackwell(false);
#endif
        for (int HS = 64; HS <= 128 && !TEST_SANITIZED; HS *= 2) // 16 and 40, above, are the same accesses
            CHECK(!attention_call_possible() || (attention_engine_agrees(HS, true, false) && attention_engine_agrees(HS, true, true)),
                  "the attention engine is wrong");
    }
    if (!products_alone && attention_call_possible()) { // last: nothing ends it
        int64_t tiles[3] = {attention_test_engine_tiles()};
        for (int fixed = 0; fixed < 2; fixed++) {
            if (fixed) attention_use_deterministic();
            test_attention(128, 128, 4, 2, 16, true, 0, 0, 0);
            tiles[fixed + 1] = attention_test_engine_tiles();
        }
        CHECK(tiles[1] > tiles[0] && tiles[2] > tiles[1] && tiles[2] - tiles[1] < tiles[1] - tiles[0],
              "--deterministic: the engine computes the backward pass, or no forward pass");
    }
    int status = test_finish(sizeof(floatX) == 2 ? "kernels, bf16" : "kernels, float", NULL);
    device_stop();
    comm_finalize();
    return status;
}
