// ranks: 1
// Every operation of device/ops.h, forward and backward, against the same thing written in the plainest way in double precision, over odd
// sizes. Buffers that an operation must overwrite are filled with NaN first. u = 6e-8 is half a unit in the last place of a float near 1;
// tolerances are stated in it, relative to the largest element of the result.
#include "attention_reference.h"
#include "moments.h"
#include "../files.h"

#include <omp.h>

static const double u = 6e-8;
static const int odd_sizes[] = {1, 2, 3, 5, 7, 17, 64, 100, 129};
enum { ODD_SIZES = sizeof odd_sizes / sizeof odd_sizes[0] };

// ---- small things ----

static void poison(float *x, int64_t n) { memset(x, 0xff, sizeof(float) * (size_t)n); } // all NaN
static float *floats(int64_t n) {
    float *x = (float *)device_alloc(sizeof(float) * (size_t)max_i64(n, 1));
    if (x == NULL) exit(EXIT_FAILED);
    poison(x, n);
    return x;
}
static float *randoms(int64_t n, uint64_t seed, double scale) {
    float *x = floats(n);
    test_fill(x, n, seed, scale);
    return x;
}
static float *copy_of(const float *from, int64_t n) {
    float *x = floats(n);
    memcpy(x, from, sizeof(float) * (size_t)n);
    return x;
}
static void drop(float *x) { device_free(x); }
static bool same_bits(const float *a, const float *b, int64_t n) { return memcmp(a, b, sizeof(float) * (size_t)n) == 0; }
static int64_t random_below(uint64_t seed, uint64_t index, int64_t n) { return (int64_t)(fabs(test_random(seed, index)) * (double)n) % n; }

// ---- embedding ----

static void test_embedding(int64_t T, int64_t D, int64_t V) {
    int32_t *tokens = HOST_NEW(int32_t, T);
    for (int64_t t = 0; t < T; t++) tokens[t] = (int32_t)random_below(1, (uint64_t)t, V);
    float *table = randoms(V * D, 2, 1), *x = floats(T * D), *dx = randoms(T * D, 3, 1), *dtable = randoms(V * D, 4, 1);
    double *expected = HOST_NEW(double, V * D);
    op_embedding_forward(x, tokens, table, T, D);
    int64_t wrong = 0;
    for (int64_t i = 0; i < T * D; i++) wrong += x[i] != table[tokens[i / D] * D + i % D];
    CHECK(wrong == 0, "embedding T %lld D %lld V %lld: %lld wrong elements", (long long)T, (long long)D, (long long)V, (long long)wrong);

    for (int64_t i = 0; i < V * D; i++) expected[i] = dtable[i];
    for (int64_t i = 0; i < T * D; i++) expected[tokens[i / D] * D + i % D] += dx[i];
    float *scratch = floats((int64_t)op_embedding_backward_scratch(T) / 4 + 1);
    op_embedding_backward(dtable, tokens, dx, T, D, scratch);
    double e = test_difference_double(dtable, expected, V * D); // up to T additions into one row, each rounded once
    CHECK(e < 8 * u + (double)T * u / 4, "embedding backward T %lld D %lld V %lld: error %g", (long long)T, (long long)D, (long long)V, e);
    free(tokens), free(expected), drop(table), drop(x), drop(dx), drop(dtable), drop(scratch);
}

// ---- RMSNorm ----

static double rmsnorm_reference(double *y, const double *x, const float *weight, const float *dy, int64_t D, double eps) { // <dy, y>
    double squares = 0, product = 0;
    for (int64_t d = 0; d < D; d++) squares += x[d] * x[d];
    double r = 1 / sqrt(squares / (double)D + eps);
    for (int64_t d = 0; d < D; d++) {
        double value = x[d] * r * weight[d];
        if (y != NULL) y[d] = value;
        product += value * dy[d];
    }
    return product;
}
static void test_rmsnorm(int64_t T, int64_t D) {
    const float eps = 1e-5f;
    float *x = randoms(T * D, 1, 2), *weight = randoms(D, 2, 1), *dy = randoms(T * D, 3, 1), *y = floats(T * D), *rstd = floats(T);
    float *dx = randoms(T * D, 4, 1), *dweight = randoms(D, 5, 1);
    double *expected = HOST_NEW(double, T * D), *dx_expected = HOST_NEW(double, T * D), *dw_expected = HOST_NEW(double, D);
    double *row = HOST_NEW(double, D);
    double terms = 0; // the size of the terms whose difference is dx
    for (int64_t d = 0; d < D; d++) dw_expected[d] = dweight[d];
    for (int64_t t = 0; t < T; t++) {
        for (int64_t d = 0; d < D; d++) row[d] = x[t * D + d];
        rmsnorm_reference(expected + t * D, row, weight, dy + t * D, D, eps);
        for (int64_t d = 0; d < D; d++) {
            if (weight[d] != 0) dw_expected[d] += expected[t * D + d] / weight[d] * dy[t * D + d];
            const double h = 1e-5; // central difference in double: error about h^2 = 1e-10
            row[d] += h;
            double above = rmsnorm_reference(NULL, row, weight, dy + t * D, D, eps);
            row[d] -= 2 * h;
            double below = rmsnorm_reference(NULL, row, weight, dy + t * D, D, eps);
            row[d] += h;
            dx_expected[t * D + d] = dx[t * D + d] + (above - below) / (2 * h);
            if (row[d] != 0) terms = fmax(terms, fabs(expected[t * D + d] / row[d] * dy[t * D + d]));
        }
    }
    op_rmsnorm_forward(y, rstd, x, weight, T, D, eps);
    double e = test_difference_double(y, expected, T * D); // rstd and two products: three roundings
    CHECK(e < 4 * u, "rmsnorm T %lld D %lld: error %g", (long long)T, (long long)D, e);
    float *scratch = floats((int64_t)op_rmsnorm_backward_scratch(T, D) / 4);
    float *dx_before = copy_of(dx, T * D), *dweight_before = copy_of(dweight, D), *in_place = copy_of(x, T * D);
    op_rmsnorm_backward(dx, dweight, dy, x, weight, rstd, T, D, true, scratch);
    op_rmsnorm_backward(in_place, dweight_before, dy, in_place, weight, rstd, T, D, false, scratch);
    CHECK(memcmp(dweight_before, dweight, sizeof(float) * (size_t)D) == 0,
          "rmsnorm T %lld D %lld: another dweight where dx is x", (long long)T, (long long)D);
    double e_in_place = e = 0;
    for (int64_t i = 0; i < T * D; i++) {
        e = test_worse(e, fabs(dx[i] - dx_expected[i]) / (1 + terms));
        e_in_place = test_worse(e_in_place, fabs(dx_before[i] + in_place[i] - dx_expected[i]) / (1 + terms));
    }
    CHECK(e < 8 * u, "rmsnorm dx T %lld D %lld: error %g", (long long)T, (long long)D, e);
    CHECK(e_in_place < 8 * u, "rmsnorm dx where x is T %lld D %lld: error %g", (long long)T, (long long)D, e_in_place);
    e = test_difference_double(dweight, dw_expected, D); // a sum of T rounded terms
    CHECK(e < (16 + (double)T / 4) * u, "rmsnorm dweight T %lld D %lld: error %g", (long long)T, (long long)D, e);
    free(expected), free(dx_expected), free(dw_expected), free(row);
    drop(x), drop(weight), drop(dy), drop(y), drop(rstd), drop(dx), drop(dweight), drop(scratch);
    drop(dx_before), drop(dweight_before), drop(in_place);
}

// ---- linear ----

static void test_linear(int64_t T, int64_t in, int64_t out) {
    float *x = randoms(T * in, 1, 1), *w = randoms(out * in, 2, 1), *dy = randoms(T * out, 3, 1), *residual = randoms(T * out, 4, 1);
    float *y = floats(T * out), *y_added = floats(T * out), *dx = floats(T * in), *dw = randoms(out * in, 5, 1);
    float *in_place = copy_of(residual, T * out);
    double *expected = HOST_NEW(double, T * out), *dx_expected = HOST_NEW(double, T * in), *dw_expected = HOST_NEW(double, out * in);
    for (int64_t i = 0; i < out * in; i++) dw_expected[i] = dw[i];
    for (int64_t t = 0; t < T; t++) {
        for (int64_t o = 0; o < out; o++) {
            double d = dy[t * out + o], sum = 0;
            for (int64_t i = 0; i < in; i++) {
                sum += (double)x[t * in + i] * w[o * in + i];
                dx_expected[t * in + i] += d * w[o * in + i];
                dw_expected[o * in + i] += d * x[t * in + i];
            }
            expected[t * out + o] = sum;
        }
    }
    op_linear_forward(y, x, w, NULL, T, in, out);
    op_linear_forward(y_added, x, w, residual, T, in, out);
    op_linear_forward(in_place, x, w, in_place, T, in, out);
    op_linear_backward_input(dx, dy, w, T, in, out);
    op_linear_backward_weight(dw, dy, x, T, in, out, true);
    // A sum of n rounded products of numbers up to 1: its error grows like n u at worst, typically like sqrt(n) u; the result like sqrt(n).
    double e = test_difference_double(y, expected, T * out), e_dx = test_difference_double(dx, dx_expected, T * in);
    double e_dw = test_difference_double(dw, dw_expected, out * in);
    for (int64_t i = 0; i < T * out; i++) expected[i] += residual[i];
    double e_added = test_difference_double(y_added, expected, T * out);
    CHECK(e < (4 + (double)in / 8) * u, "linear T %lld in %lld out %lld: error %g", (long long)T, (long long)in, (long long)out, e);
    CHECK(e_added < (4 + (double)in / 8) * u, "linear + residual T %lld in %lld out %lld: error %g", (long long)T, (long long)in,
          (long long)out, e_added);
    CHECK(same_bits(in_place, y_added, T * out),
          "linear T %lld in %lld out %lld: residual in place differs", (long long)T, (long long)in, (long long)out);
    CHECK(e_dx < (4 + (double)out / 8) * u,
          "linear dx T %lld in %lld out %lld: error %g", (long long)T, (long long)in, (long long)out, e_dx);
    CHECK(e_dw < (4 + (double)T / 8) * u, "linear dw T %lld in %lld out %lld: error %g", (long long)T, (long long)in, (long long)out, e_dw);
    float *added = floats(out * in), *stored = floats(out * in); // `stored` must not be read
    memset(added, 0, sizeof(float) * (size_t)(out * in));
    op_linear_backward_weight(added, dy, x, T, in, out, true);
    op_linear_backward_weight(stored, dy, x, T, in, out, false);
    CHECK(same_bits(stored, added, out * in), "linear dw T %lld in %lld out %lld: stored is not added to zeros", (long long)T,
          (long long)in, (long long)out);
    op_linear_backward_weight(stored, dy, x, 0, in, out, false);
    for (int64_t i = 0; i < out * in; i++) added[i] = 0;
    CHECK(same_bits(stored, added, out * in),
          "linear dw of no tokens, in %lld out %lld, stored, is not zero", (long long)in, (long long)out);
    drop(added), drop(stored);
    free(expected), free(dx_expected), free(dw_expected);
    drop(x), drop(w), drop(dy), drop(residual), drop(y), drop(y_added), drop(dx), drop(dw), drop(in_place);
}

// ---- RoPE and head layout ----

static double dot(const float *a, const float *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)a[i] * b[i];
    return sum;
}
static void test_rope(int peers, int H, int Hkv, int HS, int64_t T) {
    head_layout l = head_layout_make(peers, H, Hkv, HS);
    int Hq = l.Hq, slots = l.Hkv_local, half = HS / 2;
    int64_t row = (int64_t)(H + 2 * Hkv) * HS, nq = peers * T * Hq * HS, nkv = peers * T * 2 * slots * HS;
    float *qkv = randoms(T * row, 1, 1), *table = floats(T * half * 2), *q = floats(nq), *kv = floats(nkv);
    for (int64_t i = 0; i < T * half; i++) {
        table[2 * i] = (float)cos(3.0 * (double)i);
        table[2 * i + 1] = (float)sin(3.0 * (double)i);
    }
    op_rope_pack_forward(q, kv, qkv, table, T, l, 0, T);
    // What attention needs: local query head h of peer p is head p Hq + h, and its key/value slot holds that head's key and value.
    int64_t wrong = 0;
    CHECK(Hq % slots == 0, "peers %d H %d Hkv %d: %d query heads to %d slots", peers, H, Hkv, Hq, slots);
    for (int p = 0; p < peers; p++) {
        for (int64_t t = 0; t < T; t++) {
            for (int h = 0; h < Hq; h++) {
                int head = p * Hq + h, slot = h / (Hq / slots), kv_head = head / (H / Hkv);
                const float *in[2] = {qkv + t * row + head * HS, qkv + t * row + (H + kv_head) * HS};
                const float *v = qkv + t * row + (H + Hkv + kv_head) * HS;
                const float *to[2] = {q + ((p * T + t) * Hq + h) * HS, kv + ((p * T + t) * 2 * slots + slot) * HS};
                for (int i = 0; i < half; i++) {
                    double c = table[(t * half + i) * 2], s = table[(t * half + i) * 2 + 1];
                    for (int k = 0; k < 2; k++) { // two products and a sum, at most 1.5 in size
                        wrong += !(fabs(in[k][i] * c - in[k][i + half] * s - to[k][i]) < 4 * u);
                        wrong += !(fabs(in[k][i + half] * c + in[k][i] * s - to[k][i + half]) < 4 * u);
                    }
                }
                wrong += memcmp(v, kv + ((p * T + t) * 2 * slots + slots + slot) * HS, sizeof(float) * (size_t)HS) != 0;
            }
        }
    }
    CHECK(wrong == 0, "rope pack: peers %d H %d Hkv %d HS %d: %lld wrong", peers, H, Hkv, HS, (long long)wrong);

    // The backward pass is the transpose: <pack(x), y> = <x, unpack(y)>. Every copy counts exactly once.
    float *dq = randoms(nq, 2, 1), *dkv = randoms(nkv, 3, 1), *dqkv = floats(T * row);
    op_rope_unpack_backward(dqkv, dq, dkv, table, T, l, 0, T);
    double left = dot(q, dq, nq) + dot(kv, dkv, nkv), right = dot(qkv, dqkv, T * row), size = sqrt((double)(nq + nkv));
    CHECK(fabs(left - right) < 16 * u * size, "rope transpose: peers %d H %d Hkv %d HS %d: %g and %g", peers, H, Hkv, HS, left, right);

    // Ranges of rows, the last first, give the bits of the whole, and leave other rows alone. With few rows a range is empty.
    const int64_t begin[4] = {0, T / 3, T / 3 + T / 2, T};
    float *q_part = floats(nq), *kv_part = floats(nkv), *part = floats((T + 1) * row);
    for (int range = 2; range >= 0; range--) {
        int64_t first = begin[range], rows = begin[range + 1] - first;
        size_t bytes = sizeof(float) * (size_t)(Hq * HS), kv_bytes = sizeof(float) * (size_t)(2 * slots * HS);
        op_rope_pack_forward(q_part, kv_part, qkv + first * row, table, T, l, first, rows);
        wrong = test_wrong_rows(q_part, q, peers, T, bytes, first) + test_wrong_rows(kv_part, kv, peers, T, kv_bytes, first);
        poison(part, (T + 1) * row);
        op_rope_unpack_backward(part, dq, dkv, table, T, l, first, rows);
        wrong += !same_bits(part, dqkv + first * row, rows * row);
        for (int64_t i = rows * row; i < (T + 1) * row; i++) wrong += !isnan(part[i]);
        CHECK(wrong == 0, "rope of rows %lld to %lld of %lld: peers %d H %d Hkv %d HS %d: %lld wrong", (long long)first,
              (long long)(first + rows), (long long)T, peers, H, Hkv, HS, (long long)wrong);
    }
    drop(q_part), drop(kv_part), drop(part);

    // Rotating back what was rotated gives the input, times the number of slots that hold a head.
    op_rope_unpack_backward(dqkv, q, kv, table, T, l, 0, T);
    wrong = 0;
    for (int64_t i = 0; i < T * row; i++) {
        int head = (int)(i % row / HS), copies = 0;
        for (int p = 0; p < peers; p++) {
            for (int slot = 0; slot < slots; slot++) copies += head >= H && head_layout_slot(&l, p, slot) == (head - H) % Hkv;
        }
        if (head < H) copies = 1;
        wrong += !(fabs(dqkv[i] - (double)copies * qkv[i]) < 8 * u * copies);
        if (copies == 0) wrong++;
    }
    CHECK(wrong == 0, "rope inverse: peers %d H %d Hkv %d HS %d: %lld wrong", peers, H, Hkv, HS, (long long)wrong);

    float *out = randoms(T * H * HS, 4, 1), *sent = floats(nq), *back = floats(T * H * HS);
    op_heads_pack(sent, out, T, l);
    wrong = 0;
    for (int64_t i = 0; i < nq; i++) {
        int64_t d = i % HS, h = i / HS % Hq, t = i / HS / Hq % T, p = i / HS / Hq / T;
        wrong += sent[i] != out[(t * H + p * Hq + h) * HS + d];
    }
    op_heads_unpack(back, sent, T, l);
    CHECK(wrong == 0 && same_bits(back, out, T * H * HS), "heads pack: peers %d H %d HS %d: %lld wrong", peers, H, HS, (long long)wrong);
    drop(qkv), drop(table), drop(q), drop(kv), drop(dq), drop(dkv), drop(dqkv), drop(out), drop(sent), drop(back);
}

// ---- attention ----

// One problem: inputs as stored (strided), and the results in double precision (compact).
typedef struct {
    attention_block b;
    float *q, *k, *v, *dout;                             // strided
    double *out, *lse, *dq, *dk, *dv;                    // (Tq, Hq, HS), (Hq, Tq), ..., (Tk, Hkv, HS)
} attention_problem;

static int64_t q_size(const attention_problem *p) { return p->b.Tq * p->b.q_stride; }
static int64_t sum_size(const attention_problem *p) { return p->b.Tq * p->b.sum_stride; }
static int64_t kv_size(const attention_problem *p) { return p->b.Tk * p->b.kv_stride; }
static int64_t lse_size(const attention_problem *p) { return p->b.Hq * p->b.lse_stride; }

static double *compact_doubles(const float *x, int64_t rows, int64_t width, int64_t stride) {
    double *compact = HOST_NEW(double, rows * width);
    for (int64_t i = 0; i < rows * width; i++) compact[i] = x[i / width * stride + i % width];
    return compact;
}
static void attention_solve(const attention_problem *p) {
    attention_block b = p->b;
    b.q_stride = b.sum_stride = b.Hq * b.HS, b.kv_stride = b.Hkv * b.HS, b.lse_stride = b.Tq;
    double *q = compact_doubles(p->q, b.Tq, b.q_stride, p->b.q_stride), *dout = compact_doubles(p->dout, b.Tq, b.q_stride, p->b.q_stride);
    double *k = compact_doubles(p->k, b.Tk, b.kv_stride, p->b.kv_stride), *v = compact_doubles(p->v, b.Tk, b.kv_stride, p->b.kv_stride);
    attention_reference(b, (attention_doubles){q, k, v, dout, p->out, p->lse, NULL, p->dq, p->dk, p->dv}, NULL);
    free(q), free(dout), free(k), free(v);
}
// padding: elements between rows beyond the heads; sum_padding: the same in out and dq.
static attention_problem attention_problem_make(int64_t Tq, int64_t Tk, int Hq, int Hkv, int HS, bool causal, int64_t padding,
                                                int64_t sum_padding, double q_scale) {
    attention_problem p;
    memset(&p, 0, sizeof p);
    p.b.Tq = Tq; p.b.Tk = Tk;
    p.b.Hq = Hq; p.b.Hkv = Hkv; p.b.HS = HS;
    p.b.q_stride = Hq * HS + padding;
    p.b.sum_stride = Hq * HS + sum_padding;
    p.b.kv_stride = Hkv * HS + 2 * padding;
    p.b.lse_stride = Tq + padding;
    p.b.scale = 1 / sqrtf((float)HS);
    p.b.causal = causal;
    p.q = randoms(q_size(&p), 11, q_scale);
    p.k = randoms(kv_size(&p), 12, 1);
    p.v = randoms(kv_size(&p), 13, 1);
    p.dout = randoms(q_size(&p), 14, 1);
    p.out = HOST_NEW(double, Tq * Hq * HS);
    p.dq = HOST_NEW(double, Tq * Hq * HS);
    p.lse = HOST_NEW(double, Tq * Hq);
    p.dk = HOST_NEW(double, Tk * Hkv * HS);
    p.dv = HOST_NEW(double, Tk * Hkv * HS);
    attention_solve(&p);
    return p;
}
static void attention_problem_drop(attention_problem *p) {
    drop(p->q), drop(p->k), drop(p->v), drop(p->dout);
    free(p->out), free(p->dq), free(p->lse), free(p->dk), free(p->dv);
}
// Error of a strided result (rows, width) against the compact reference; `start` is what the result was added to (NULL: nothing).
// Relative to the largest element, or to 1, the size of the inputs, if averaging made the results smaller.
// What lies between the rows must still be NaN, or what `start` has there.
static double strided_error(const float *x, const float *start, const double *expected, int64_t rows, int64_t width, int64_t stride) {
    double largest = 1, worst = 0;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < stride; i++) {
            double was = start == NULL ? 0 : start[r * stride + i], found = x[r * stride + i];
            if (i >= width) {
                if (start == NULL ? !isnan(found) : found != was) return INFINITY;
                continue;
            }
            double wanted = expected[r * width + i];
            if (isinf(wanted) && found == wanted) continue;
            double d = fabs(found - was - wanted);
            if (!(d <= 1e300)) return INFINITY;
            if (d > worst) worst = d;
            if (fabs(wanted) + fabs(was) > largest) largest = fabs(wanted) + fabs(was);
        }
    }
    return worst / largest;
}
// Scratch of exactly the size asked for, poisoned, with a guard behind it.
typedef struct {
    char *bytes;
    size_t size;
} guarded_scratch;
static guarded_scratch scratch_make(attention_block b, bool backward) {
    guarded_scratch s;
    s.size = op_attention_scratch(b, backward);
    s.bytes = (char *)device_alloc(s.size + 64);
    if (s.bytes == NULL) exit(EXIT_FAILED);
    memset(s.bytes, 0xff, s.size + 64); // NaNs
    return s;
}
static void scratch_drop(guarded_scratch s) {
    int broken = 0;
    for (size_t i = 0; i < 64; i++) broken += s.bytes[s.size + i] != (char)0xff;
    CHECK(broken == 0, "attention wrote beyond its scratch of %zu bytes", s.size);
    device_free(s.bytes);
}

typedef struct {
    float *out, *lse, *delta, *dq, *dk, *dv;
} attention_result;
static void attention_result_drop(attention_result *r) {
    drop(r->out), drop(r->lse), drop(r->delta), drop(r->dq), drop(r->dk), drop(r->dv);
}

// Forward's out, laid out like dout.
static float *out_as_stored(const float *out, attention_block b) {
    float *stored = floats(b.Tq * b.q_stride);
    for (int64_t i = 0; i < b.Tq; i++) memcpy(stored + i * b.q_stride, out + i * b.sum_stride, sizeof(float) * (size_t)(b.Hq * b.HS));
    return stored;
}
enum { ADDED_TO = 77 };
// Forward and backward, in one block; what is added to begins as random numbers of seed ADDED_TO (dq) and the two after it (dk, dv).
static attention_result attention_run(const attention_problem *p, bool add_dq, bool add_dkv) {
    attention_block b = p->b;
    attention_result r = {floats(sum_size(p)), floats(lse_size(p)), floats(lse_size(p)), floats(sum_size(p)),
                          floats(kv_size(p)), floats(kv_size(p))};
    if (add_dq) test_fill(r.dq, sum_size(p), ADDED_TO, 1);
    if (add_dkv) test_fill(r.dk, kv_size(p), ADDED_TO + 1, 1), test_fill(r.dv, kv_size(p), ADDED_TO + 2, 1);
    guarded_scratch forward = scratch_make(b, false), backward = scratch_make(b, true);
    op_attention_forward(r.out, r.lse, p->q, p->k, p->v, b, false, forward.bytes);
    float *out = out_as_stored(r.out, b);
    op_attention_delta(r.delta, out, p->dout, b);
    op_attention_backward(r.dq, r.dk, r.dv, p->q, p->k, p->v, out, p->dout, r.lse, r.delta, b, add_dq, add_dkv, backward.bytes);
    scratch_drop(forward), scratch_drop(backward), drop(out);
    return r;
}
static float *const nothing[3] = {NULL, NULL, NULL};
// The rows of out and dq lie `stride` apart. start: what dq, dk and dv were added to. Bounds in u.
static void result_check(const char *how, const attention_problem *p, const attention_result *r, int64_t stride, float *const start[3],
                         double forward_bound, double backward_bound) {
    attention_block b = p->b;
    int64_t width = b.Hq * b.HS, kv_width = b.Hkv * b.HS;
    double e[5] = {strided_error(r->out, NULL, p->out, b.Tq, width, stride), strided_error(r->lse, NULL, p->lse, b.Hq, b.Tq, b.lse_stride),
                   strided_error(r->dq, start[0], p->dq, b.Tq, width, stride),
                   strided_error(r->dk, start[1], p->dk, b.Tk, kv_width, b.kv_stride),
                   strided_error(r->dv, start[2], p->dv, b.Tk, kv_width, b.kv_stride)};
    static const char *const names[5] = {"out", "lse", "dq", "dk", "dv"};
    for (int k = 0; k < 5; k++) {
        double bound = (k < 2 ? forward_bound : backward_bound) * u;
        CHECK(e[k] < bound,
              "attention, %s, %s: Tq %lld Tk %lld Hq %d Hkv %d HS %d%s, rows of q %lld and of sums %lld apart: error %.3g, bound %.3g", how,
              names[k], (long long)b.Tq, (long long)b.Tk, b.Hq, b.Hkv, b.HS, b.causal ? " causal" : "", (long long)b.q_stride,
              (long long)stride, e[k], bound);
    }
}
// forward_bound, backward_bound in u.
static void attention_check(const attention_problem *p, double forward_bound, double backward_bound) {
    attention_block b = p->b;
    for (int add = 0; add < 4; add++) {
        if (TEST_SANITIZED && (b.Tq + b.HS) % 4 != add) continue;
        bool add_dq = add % 2 == 1, add_dkv = add / 2 == 1;
        attention_result r = attention_run(p, add_dq, add_dkv);
        float *start[3] = {add_dq ? randoms(sum_size(p), ADDED_TO, 1) : NULL, add_dkv ? randoms(kv_size(p), ADDED_TO + 1, 1) : NULL,
                           add_dkv ? randoms(kv_size(p), ADDED_TO + 2, 1) : NULL};
        static const char *const how[4] = {"all set", "dq added", "dk and dv added", "dq, dk and dv added"};
        result_check(how[add], p, &r, b.sum_stride, start, forward_bound, backward_bound);
        attention_result_drop(&r);
        for (int k = 0; k < 3; k++) drop(start[k]);
    }
}

// Scores are below 2: an error of a few u in a score is the same relative error in its probability, and averaging does not enlarge it: 8 u.
// Gradients multiply dout v^T - delta by a key or query. That difference of two sums of HS products is off by about u sqrt(HS) / 2 even
// where it should be 0, and dk adds it up over all rows and heads of a group.
static double gradient_bound(const attention_problem *p) { return 16 + (double)(p->b.Tq * (p->b.Hq / p->b.Hkv)) * sqrt(p->b.HS) / 48; }

static void test_attention_sizes(void) {
    static const int head_sizes[] = {1, 3, 8, 16, 20, 32, 64, 80, 128};
    static const int heads[][2] = {{1, 1}, {2, 1}, {3, 3}, {4, 2}, {6, 2}, {5, 1}};
    static const int sizes[][2] = {{1, 1},   {2, 3},   {3, 2},   {5, 7},    {17, 17},  {1, 129},  {129, 1},   {64, 64},
                                   {7, 100}, {100, 5}, {64, 129}, {129, 64}, {65, 128}, {129, 129}, {100, 260}, {200, 257}, {257, 513}};
    enum { HEAD_SIZES = sizeof head_sizes / sizeof head_sizes[0], SIZES = sizeof sizes / sizeof sizes[0] };
    int run = 0;
    for (int s = 0; s < SIZES; s++) {
        for (int d = 0; d < HEAD_SIZES; d++) {
            for (int causal = 0; causal < 2; causal++, run++) {
                if (TEST_SANITIZED && run % 5 != 0) continue; // 5 is coprime to the lengths of the loops
                int which = (s + 2 * d + 3 * causal) % 6, Tq = sizes[s][0], Tk = sizes[s][1];
                // Each may be 0, and either the larger.
                int64_t padding = run % 3 == 0 ? 0 : run % 3 + 4, sum_padding = (run / 3 + s) % 3 * 5;
                attention_problem p = attention_problem_make(Tq, Tk, heads[which][0], heads[which][1], head_sizes[d], causal == 1,
                                                             padding, sum_padding, 1);
                attention_check(&p, 8, gradient_bound(&p));
                attention_problem_drop(&p);
            }
        }
    }
}

// The heads of p in slices of `kv` key/value heads and `members` query heads of each, which lie among the other heads: kv == 1 or members
// is the whole group. Each slice's sums are dense; its out goes to its place among the others; its dk and dv are set, or added to those
// of its group.
static void check_slices_of_heads(const attention_problem *p, int kv, int members, double forward_bound, double backward_bound) {
    attention_block b = p->b, slice = b;
    int group = b.Hq / b.Hkv;
    slice.Hq = kv * members;
    slice.Hkv = kv;
    slice.sum_stride = (int64_t)slice.Hq * b.HS;
    float *sum = floats(b.Tq * slice.sum_stride);
    attention_result r = {floats(q_size(p)), floats(lse_size(p)), floats(lse_size(p)), floats(q_size(p)),
                          floats(kv_size(p)), floats(kv_size(p))};
    guarded_scratch forward = scratch_make(slice, false), backward = scratch_make(slice, true);
    for (int g = 0; g < b.Hkv; g += kv) {
        for (int member = 0; member < group; member += members) {
            int64_t head = g * group + member, at = head * b.HS, kv_at = (int64_t)g * b.HS, row = head * b.lse_stride;
            poison(sum, b.Tq * slice.sum_stride);
            op_attention_forward(sum, r.lse + row, p->q + at, p->k + kv_at, p->v + kv_at, slice, false, forward.bytes);
            op_cast_rows(r.out + at, b.q_stride, sum, b.Tq, slice.sum_stride);
            op_attention_delta(r.delta + row, r.out + at, p->dout + at, slice);
            poison(sum, b.Tq * slice.sum_stride);
            op_attention_backward(sum, r.dk + kv_at, r.dv + kv_at, p->q + at, p->k + kv_at, p->v + kv_at, r.out + at, p->dout + at,
                                  r.lse + row, r.delta + row, slice, false, member > 0, backward.bytes);
            op_cast_rows(r.dq + at, b.q_stride, sum, b.Tq, slice.sum_stride);
        }
    }
    char how[80];
    snprintf(how, sizeof how, "slices of %d key/value heads and %d of their queries'", kv, members);
    result_check(how, p, &r, b.q_stride, nothing, forward_bound, backward_bound);
    scratch_drop(forward), scratch_drop(backward);
    attention_result_drop(&r), drop(sum);
}
static void test_attention_slices_of_heads(void) {
    static const int cases[][6] = {{4, 2, 2, 1, 8, 0}, {8, 2, 1, 1, 16, 5}, {8, 2, 1, 2, 20, 3}, {6, 3, 1, 2, 32, 0},
                                   {6, 3, 3, 2, 5, 4}, {12, 4, 2, 3, 64, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int Hq = cases[i][0], Hkv = cases[i][1], kv = cases[i][2], members = cases[i][3] * (cases[i][2] > 1 ? Hq / Hkv / cases[i][3] : 1);
        for (int causal = 0; causal < 2; causal++) {
            attention_problem p = attention_problem_make(130, 130 + 70 * (1 - causal), Hq, Hkv, cases[i][4],
                                                         causal == 1, cases[i][5], 0, 1);
            check_slices_of_heads(&p, kv, members, 8, gradient_bound(&p));
            attention_problem_drop(&p);
        }
    }
}

static void test_attention_long(void) {
    for (int causal = 0; causal < 2; causal++) {
        // Backward takes its largest tiles.
        attention_problem p = attention_problem_make(300 + 700 * causal, 1000, 8, 4, 24, causal == 1, 8, 0, 1);
        attention_check(&p, 8, gradient_bound(&p));
        attention_problem_drop(&p);
    }
    for (int HS = 20; HS <= 64; HS += 44) { // most of the scratch holds packed keys and values
        attention_problem p = attention_problem_make(1, 1500, 16, 16, HS, false, 0, 0, 1);
        attention_check(&p, 8, gradient_bound(&p));
        attention_problem_drop(&p);
    }
}

// Scores up to +-1e3: rounding changes a score by up to 1e3 u, which becomes the relative error of e^score.
static void test_attention_large_scores(void) {
    for (int causal = 0; causal < 2; causal++) {
        attention_problem p = attention_problem_make(70, 140, 4, 2, 32, causal == 1, 3, 0, 1);
        for (int64_t i = 0; i < q_size(&p); i++) p.q[i] *= 500;
        double largest = 0;
        attention_solve(&p);
        for (int64_t i = 0; i < p.b.Tq * p.b.Hq; i++) largest = fmax(largest, fabs(p.lse[i]));
        CHECK(largest > 500, "the test wants large scores, has %g", largest);
        attention_check(&p, 2000, 2000);
        attention_problem_drop(&p);
    }
    // All scores of a row are equal and huge, of either sign: the result is the mean of v whatever their size.
    for (int sign = -1; sign <= 1; sign += 2) {
        attention_problem p = attention_problem_make(3, 100, 1, 1, 16, false, 0, 0, 1);
        for (int64_t i = 0; i < q_size(&p); i++) p.q[i] = (float)sign * 100;
        for (int64_t i = 0; i < kv_size(&p); i++) p.k[i] = 2.5f;
        attention_solve(&p);
        attention_check(&p, 8, 2000); // delta and dp do not cancel exactly in float, and k and q of size 100 multiply the rest
        attention_problem_drop(&p);
    }
}

// The gradients of the double-precision reference itself, against central differences.
static void test_attention_reference(void) {
    attention_problem p = attention_problem_make(4, 5, 4, 2, 3, true, 2, 0, 1);
    float *const inputs[3] = {p.q, p.k, p.v};
    int64_t rows[3] = {p.b.Tq, p.b.Tk, p.b.Tk}, strides[3] = {p.b.q_stride, p.b.kv_stride, p.b.kv_stride}, widths[3] = {12, 6, 6};
    for (int which = 0; which < 3; which++) {
        for (int64_t i = 0; i < rows[which] * widths[which]; i++) {
            double *gradients[3] = {p.dq, p.dk, p.dv}, expected = gradients[which][i], value[2] = {0, 0};
            float *x = inputs[which] + i / widths[which] * strides[which] + i % widths[which], at = *x;
            float points[2] = {at + 0.001f, at - 0.001f};
            for (int k = 0; k < 2; k++) {
                *x = points[k];
                attention_solve(&p);
                for (int64_t j = 0; j < p.b.Tq * 12; j++) value[k] += p.out[j] * p.dout[j / 12 * p.b.q_stride + j % 12];
            }
            *x = at;
            attention_solve(&p);
            double found = (value[0] - value[1]) / ((double)points[0] - points[1]);
            // h^2 = 1e-6.
            CHECK(fabs(found - expected) < 1e-5,
                  "reference gradient %d of input %d: %g, by differences %g", (int)i, which, expected, found);
        }
    }
    attention_problem_drop(&p);
}

// Keys cut into `parts` blocks, visited in every order and merged, give the result of the whole. So do the gradients, block by block.
static void test_attention_merge_orders(int parts, bool from_nothing) {
    attention_problem p = attention_problem_make(19, 43, 4, 2, 8, false, 3, 1, 3);
    attention_block b = p.b;
    attention_result r = {floats(sum_size(&p)), floats(lse_size(&p)), floats(lse_size(&p)), floats(sum_size(&p)),
                          floats(kv_size(&p)), floats(kv_size(&p))};
    guarded_scratch forward = scratch_make(b, false), backward = scratch_make(b, true); // enough for every smaller block
    int orders = 1;
    for (int i = 2; i <= parts; i++) orders *= i;
    for (int order = 0; order < orders; order++) {
        int visit[5], left[5] = {0, 1, 2, 3, 4};
        for (int i = 0, rest = order; i < parts; i++) { // the order-th permutation
            int at = rest % (parts - i);
            rest /= parts - i;
            visit[i] = left[at];
            for (int j = at; j + 1 < parts - i; j++) left[j] = left[j + 1];
        }
        poison(r.out, sum_size(&p)), poison(r.lse, lse_size(&p));
        if (from_nothing) {
            for (int64_t i = 0; i < b.Tq; i++) {
                for (int j = 0; j < b.Hq * b.HS; j++) r.out[i * b.sum_stride + j] = 0;
                for (int h = 0; h < b.Hq; h++) r.lse[h * b.lse_stride + i] = -INFINITY;
            }
        }
        for (int i = 0; i < parts; i++) {
            int64_t from = 43 * visit[i] / parts, to = 43 * (visit[i] + 1) / parts;
            attention_block part = b;
            part.Tk = to - from;
            op_attention_forward(r.out, r.lse, p.q, p.k + from * b.kv_stride, p.v + from * b.kv_stride, part,
                                 from_nothing || i > 0, forward.bytes);
        }
        float *stored = out_as_stored(r.out, b);
        op_attention_delta(r.delta, stored, p.dout, b);
        for (int i = 0; i < parts; i++) {
            int64_t from = 43 * visit[i] / parts, to = 43 * (visit[i] + 1) / parts, at = from * b.kv_stride;
            attention_block part = b;
            part.Tk = to - from;
            op_attention_backward(r.dq, r.dk + at, r.dv + at, p.q, p.k + at, p.v + at, stored, p.dout, r.lse, r.delta, part,
                                  i > 0, false, backward.bytes);
        }
        drop(stored);
        char how[80];
        snprintf(how, sizeof how, "%d blocks merged in order %d", parts, order);
        result_check(how, &p, &r, b.sum_stride, nothing, 12, 48); // a few roundings a merge
    }
    scratch_drop(forward), scratch_drop(backward);
    attention_result_drop(&r);
    attention_problem_drop(&p);
}

// Merges of a block with one key: every pair of these lse, with differences for which e^x overflows, the first also onto "no key seen yet".
static void test_attention_merge_extremes(void) {
    static const float values[] = {-INFINITY, -2e4f, -100, -1, 0, 0.5f, 3, 88, 1000, 2e4f};
    enum { N = sizeof values / sizeof values[0], HS = 5 };
    attention_problem p = attention_problem_make(N * (N - 1), 1, 2, 1, HS, false, 3, 2, 1);
    attention_block b = p.b;
    b.scale = 1;
    memset(p.k, 0, sizeof(float) * HS);
    p.k[0] = 1; // a score is the first element of q, and the block's lse
    float *out = floats(sum_size(&p)), *lse = floats(lse_size(&p));
    double *expected = HOST_NEW(double, b.Tq * b.Hq * HS), *lse_expected = HOST_NEW(double, b.Hq * b.Tq);
    for (int64_t t = 0; t < b.Tq; t++)
        for (int h = 0; h < b.Hq; h++) {
            float before = values[(t / (N - 1) + h) % N], score = p.q[t * b.q_stride + h * HS] = values[1 + t % (N - 1)];
            float *row = out + t * b.sum_stride + h * HS;
            double max = fmax(before, score), kept = exp(before - max), added = exp(score - max);
            lse[h * b.lse_stride + t] = before;
            lse_expected[h * b.Tq + t] = max + log(kept + added);
            for (int d = 0; d < HS; d++) {
                row[d] = before == -INFINITY ? 0 : (float)test_random(3, (uint64_t)(t * b.q_stride + h * HS + d));
                expected[(t * b.Hq + h) * HS + d] = (kept * row[d] + added * p.v[d]) / (kept + added);
            }
        }
    guarded_scratch s = scratch_make(b, false);
    op_attention_forward(out, lse, p.q, p.k, p.v, b, true, s.bytes);
    double e = strided_error(out, NULL, expected, b.Tq, b.Hq * HS, b.sum_stride);
    double e_lse = strided_error(lse, NULL, lse_expected, b.Hq, b.Tq, b.lse_stride);
    CHECK(e < 4 * u, "merge of extremes: error %g", e);
    CHECK(e_lse < 4 * u, "merge of extremes: lse error %g", e_lse);
    scratch_drop(s), free(expected), free(lse_expected), drop(out), drop(lse);
    attention_problem_drop(&p);
}

// Rows that see no key: no keys at all, and rows whose merged lse is -inf.
static void test_attention_nothing_seen(void) {
    attention_problem p = attention_problem_make(5, 0, 2, 1, 8, false, 2, 4, 1);
    attention_check(&p, 1, 1); // out 0, lse -inf, nothing added to dq
    attention_block b = p.b;
    float *out = randoms(sum_size(&p), 5, 1), *lse = randoms(lse_size(&p), 6, 1);
    float *out_before = copy_of(out, sum_size(&p)), *lse_before = copy_of(lse, lse_size(&p));
    guarded_scratch s = scratch_make(b, false);
    op_attention_forward(out, lse, p.q, p.k, p.v, b, true, s.bytes);
    CHECK(same_bits(out, out_before, sum_size(&p)) && same_bits(lse, lse_before, lse_size(&p)), "merging no keys changed out or lse");
    scratch_drop(s), drop(out), drop(lse), drop(out_before), drop(lse_before);
    attention_problem_drop(&p);

    p = attention_problem_make(6, 9, 2, 1, 8, false, 2, 4, 1);
    b = p.b;
    attention_result r = attention_run(&p, false, false);
    for (int h = 0; h < b.Hq; h++) {
        for (int64_t i = 0; i < b.Tq; i += 2) r.lse[h * b.lse_stride + i] = -INFINITY;
    }
    s = scratch_make(b, true);
    float *stored = out_as_stored(r.out, b);
    op_attention_backward(r.dq, r.dk, r.dv, p.q, p.k, p.v, stored, p.dout, r.lse, r.delta, b, false, false, s.bytes);
    drop(stored);
    int64_t wrong = 0;
    for (int64_t i = 0; i < b.Tq; i += 2) {
        for (int j = 0; j < b.Hq * b.HS; j++) wrong += r.dq[i * b.sum_stride + j] != 0;
    }
    double *dv = HOST_NEW(double, b.Tk * b.HS);
    for (int h = 0; h < b.Hq; h++) {
        for (int64_t i = 1; i < b.Tq; i += 2) {
            for (int64_t j = 0; j < b.Tk; j++) {
                double score = 0;
                for (int d = 0; d < b.HS; d++) score += (double)p.q[i * b.q_stride + h * b.HS + d] * p.k[j * b.kv_stride + d];
                for (int d = 0; d < b.HS; d++)
                    dv[j * b.HS + d] += exp(score * b.scale - p.lse[h * b.Tq + i]) * p.dout[i * b.q_stride + h * b.HS + d];
            }
        }
    }
    for (int64_t j = 0; j < b.Tk; j++) {
        for (int d = 0; d < b.HS; d++) wrong += !(fabs(r.dv[j * b.kv_stride + d] - dv[j * b.HS + d]) < 48 * u);
    }
    CHECK(wrong == 0, "rows with lse = -inf left a gradient, or spoilt others: %lld wrong", (long long)wrong);
    scratch_drop(s), free(dv);
    attention_result_drop(&r);
    attention_problem_drop(&p);
}

// A NaN in the input comes out as NaN, in the rows that see it and no others.
static void test_attention_nan(void) {
    attention_problem p = attention_problem_make(20, 20, 1, 1, 8, true, 0, 0, 1);
    p.k[10 * p.b.kv_stride] = NAN;
    attention_result r = attention_run(&p, false, false);
    int64_t wrong = 0;
    for (int64_t i = 0; i < 20; i++) wrong += isnan(r.out[i * p.b.sum_stride]) != (i >= 10) || isnan(r.lse[i]) != (i >= 10);
    CHECK(wrong == 0, "NaN in key 10: %lld of 20 rows wrong", (long long)wrong);
    attention_result_drop(&r);
    attention_problem_drop(&p);
}

// Any NaN stays one, whatever its lower bits hold: GPUs make 0x7fffffff. 40 columns: whole registers, with 16 lanes also a rest.
static void test_nan_bits(void) {
    enum { KEYS = 40, V = 40 };
    for (int bit = -1; bit < 23; bit++) {
        float is_nan = float_of_bits(bit < 0 ? 0x7fffffff : 0x7fc00000u | 1u << bit);
        attention_problem p = attention_problem_make(KEYS, KEYS, 1, 1, 8, true, 0, 0, 1);
        p.k[10 * p.b.kv_stride] = is_nan;
        attention_result r = attention_run(&p, false, false);
        int64_t wrong = 0;
        for (int64_t i = 0; i < KEYS; i++) wrong += isnan(r.out[i * p.b.sum_stride]) != (i >= 10) || isnan(r.lse[i]) != (i >= 10);
        CHECK(wrong == 0, "NaN %08x in key 10: %lld of %d rows wrong", bits_of_float(is_nan), (long long)wrong, KEYS);
        attention_result_drop(&r);
        attention_problem_drop(&p);
        for (int at = 1; at < V; at++) {
            float logits[V] = {0}, loss;
            int32_t label = 0;
            logits[at] = is_nan;
            op_cross_entropy(&loss, logits, &label, 1, V, 1, false);
            CHECK(isnan(loss), "NaN %08x in logit %d: loss %g", bits_of_float(is_nan), at, (double)loss);
        }
    }
}
// Scores far below 0: the only key of a row has weight 1.
static void test_attention_low_scores(void) {
    attention_problem p = attention_problem_make(1, 1, 1, 1, 8, true, 0, 0, 1);
    for (int d = 0; d < 8; d++) p.q[d] = -1e18f, p.k[d] = 1e18f;
    attention_result r = attention_run(&p, false, false);
    int wrong = 0;
    for (int d = 0; d < 8; d++) wrong += r.out[d] != p.v[d];
    CHECK(wrong == 0 && r.lse[0] < -1e35f, "scores of -1e36: %d of 8 numbers wrong, lse %g", wrong, (double)r.lse[0]);
    attention_result_drop(&r);
    attention_problem_drop(&p);
}

// Packed documents: keys in two runs of positions, 100 ... and 5000 ..., and queries whose documents begin anywhere before, in and
// after them; both passes against double precision. Then keys and values of one document are NaN: the other document's rows must not
// read its tiles.
static void test_attention_documents(void) {
    static const int64_t sizes[][2] = {{1, 1}, {7, 9}, {70, 70}, {130, 300}, {300, 130}, {700, 700}, {600, 1100}};
    for (size_t size = 0; size < sizeof sizes / sizeof sizes[0]; size++)
        for (int layout = 0; layout < 5; layout++)
            for (int causal = 0; causal < 2; causal++) {
                int64_t Tq = sizes[size][0], Tk = sizes[size][1], split = layout == 4 ? Tk : Tk / 3;
                if (causal == 1 && Tq != Tk) continue;
                attention_problem p = attention_problem_make(Tq, Tk, 4, 2, 20, causal == 1, 3, 6, 1);
                int64_t *first = HOST_NEW(int64_t, Tq);
                p.b.documents.first = p.b.documents.host = first;
                p.b.documents.at[0] = 100;
                p.b.documents.at[1] = 5000;
                p.b.documents.split = split;
                for (int64_t i = 0, begin = layout == 3 ? 100 : 0; i < Tq; i++) {
                    bool boundary = layout == 0   ? i % 64 == 0
                                    : layout == 1 ? test_random(3, (uint64_t)i) > 0.9
                                                  : layout == 2 || (layout == 4 && i == Tq / 2);
                    int64_t at = (i + 1) * Tk / Tq; // causal: a document begins at its own row, as in a sequence
                    if (boundary && at > 0)
                        begin = causal == 1 ? key_position(p.b, min_i64(i, Tk - 1)) : key_position(p.b, at - 1) + (layout == 1 ? 1 : 0);
                    if (layout == 2 && causal == 0 && i > Tq / 2) begin = 100000; // nothing is seen
                    first[i] = begin;
                }
                attention_solve(&p);
                attention_check(&p, 8, gradient_bound(&p));
                check_slices_of_heads(&p, 1, 1, 8, gradient_bound(&p));
                free(first);
                attention_problem_drop(&p);
            }
    enum { T = 768 }; // two documents of whole tiles
    int64_t alone = 0;
    for (int poisoned = -1; poisoned < 2; poisoned++) { // -1: one document of the two alone
        int64_t n = poisoned < 0 ? T / 2 : T, wrong = 0, before = op_attention_tiles();
        attention_problem p = attention_problem_make(n, n, 2, 1, 16, true, 0, 0, 1);
        int64_t *first = HOST_NEW(int64_t, n);
        for (int64_t i = 0; i < n; i++) first[i] = i / (T / 2) * (T / 2);
        p.b.documents.first = p.b.documents.host = first;
        p.b.documents.split = n;
        for (int64_t j = 0; j < T / 2 && poisoned == 1; j++)
            for (int d = 0; d < 16; d++) p.k[j * p.b.kv_stride + d] = p.v[j * p.b.kv_stride + d] = NAN;
        attention_result r = attention_run(&p, false, false);
        int64_t tiles = op_attention_tiles() - before;
        if (poisoned < 0) alone = tiles;
        for (int64_t i = T / 2; i < n; i++)
            wrong += isnan(r.out[i * p.b.sum_stride]) || isnan(r.lse[i]) || isnan(r.dq[i * p.b.sum_stride]) ||
                     isnan(r.dk[i * p.b.kv_stride]);
        CHECK(wrong == 0, "NaN in another document's tiles: %lld of %d rows have it", (long long)wrong, T / 2);
        CHECK(isnan(r.out[0]) == (poisoned == 1), "out %g", r.out[0]);
        CHECK(alone > 0 && tiles == (poisoned < 0 ? 1 : 2) * alone,
              "%lld tiles, one document alone %lld", (long long)tiles, (long long)alone);
        attention_result_drop(&r);
        free(first);
        attention_problem_drop(&p);
    }
}

static void test_attention_interface(void) {
    attention_block b = {1, 1, 4, 2, 64, 256, 256, 128, 1, 1, false, {NULL, NULL, {0, 0}, 0}};
    size_t before[2] = {op_attention_scratch(b, false), op_attention_scratch(b, true)};
    for (int64_t T = 2; T < 3000; T = T * 5 / 4 + 1) {
        for (int which = 0; which < 2; which++) { // never shrinks with Tq or with Tk
            attention_block longer = b;
            if (which == 0) longer.Tq = T;
            else longer.Tk = T;
            for (int backward = 0; backward < 2; backward++) {
                size_t size = op_attention_scratch(longer, backward == 1);
                CHECK(size >= before[backward], "scratch shrinks: T %lld", (long long)T);
            }
        }
        b.Tq = b.Tk = T;
        before[0] = op_attention_scratch(b, false), before[1] = op_attention_scratch(b, true);
    }
    b.Tq = b.Tk = 1 << 20;
    size_t kv_bytes = sizeof(float) * 2 * (size_t)b.Tk * 128;
    CHECK(op_attention_scratch(b, false) < 2 * kv_bytes && op_attention_scratch(b, true) < 2 * kv_bytes,
          "scratch of 1M tokens is not O(T)");

    int64_t calls = op_attention_calls();
    attention_problem p = attention_problem_make(3, 3, 1, 1, 4, true, 0, 0, 1);
    attention_result r = attention_run(&p, false, false);
    CHECK(op_attention_calls() == calls + 1, "forward calls: %lld, was %lld", (long long)op_attention_calls(), (long long)calls);
    attention_result_drop(&r);
    attention_problem_drop(&p);
}

// ---- SwiGLU ----

static double swiglu_reference(double g, double x) { return g / (1 + exp(-g)) * x; }
static void test_swiglu(int64_t T, int64_t F, double scale) {
    float *gate_up = randoms(T * 2 * F, 1, scale), *dact = randoms(T * F, 2, 1), *act = floats(T * F), *dgate_up = floats(T * 2 * F);
    double *expected = HOST_NEW(double, T * F), *gradient = HOST_NEW(double, T * 2 * F);
    for (int64_t i = 0; i < T * F; i++) {
        int64_t at = i / F * 2 * F + i % F;
        double g = gate_up[at], x = gate_up[at + F], h = 1e-4; // central difference: error h^2 = 1e-8
        expected[i] = swiglu_reference(g, x);
        gradient[at] = dact[i] * (swiglu_reference(g + h, x) - swiglu_reference(g - h, x)) / (2 * h);
        gradient[at + F] = dact[i] * swiglu_reference(g, 1);
    }
    op_swiglu_forward(act, gate_up, T, F);
    float *again = floats(T * F);
    op_swiglu_backward(dgate_up, again, dact, gate_up, T, F);
    CHECK(same_bits(act, again, T * F), "swiglu backward T %lld F %lld: act is not the forward pass's", (long long)T, (long long)F);
    // A handful of roundings, each below u.
    double e = test_difference_double(act, expected, T * F), e_back = test_difference_double(dgate_up, gradient, T * 2 * F);
    CHECK(e < 8 * u, "swiglu T %lld F %lld scale %g: error %g", (long long)T, (long long)F, scale, e);
    CHECK(e_back < 16 * u, "swiglu backward T %lld F %lld scale %g: error %g", (long long)T, (long long)F, scale, e_back);
    op_swiglu_backward(gate_up, dact, dact, gate_up, T, F);
    CHECK(same_bits(gate_up, dgate_up, T * 2 * F) && same_bits(dact, act, T * F),
          "swiglu backward T %lld F %lld in place differs", (long long)T, (long long)F);
    free(expected), free(gradient), drop(gate_up), drop(dact), drop(act), drop(again), drop(dgate_up);
}

// ---- cross-entropy ----

static void test_cross_entropy(int64_t T, int64_t V, double scale, double confidence) {
    float *logits = randoms(T * V, 1, scale), *losses = floats(T), *losses_only = floats(T);
    int32_t *labels = HOST_NEW(int32_t, T);
    double largest = 0, worst = 0, worst_gradient = 0;
    const float factor = 0.37f;
    for (int64_t t = 0; t < T; t++) {
        labels[t] = t % 4 == 3 ? -100 : (int32_t)random_below(2, (uint64_t)t, V);
        if (labels[t] >= 0) logits[t * V + labels[t]] += (float)confidence;
    }
    float *untouched = copy_of(logits, T * V);
    op_cross_entropy(losses_only, logits, labels, T, V, factor, false);
    CHECK(same_bits(logits, untouched, T * V), "cross-entropy without backward changed the logits");
    op_cross_entropy(losses, logits, labels, T, V, factor, true);
    CHECK(same_bits(losses, losses_only, T), "cross-entropy: the loss depends on backward");
    for (int64_t t = 0; t < T; t++) {
        const float *x = untouched + t * V;
        double max = -INFINITY, sum = 0;
        for (int64_t i = 0; i < V; i++) max = fmax(max, x[i]);
        for (int64_t i = 0; i < V; i++) sum += exp(x[i] - max);
        double loss = labels[t] < 0 ? 0 : max - x[labels[t]] + log(sum);
        worst = test_worse(worst, loss == 0 ? fabs(losses[t]) : fabs(losses[t] - loss) / loss);
        for (int64_t i = 0; i < V; i++) {
            double g = labels[t] < 0 ? 0 : factor * (exp(x[i] - max) / sum - (i == labels[t]));
            worst_gradient = test_worse(worst_gradient, fabs(logits[t * V + i] - g));
            largest = fmax(largest, fabs(g));
        }
    }
    CHECK(worst <= 1e-6, "cross-entropy T %lld V %lld scale %g confidence %g: relative error of the loss %g", (long long)T, (long long)V,
          scale, confidence, worst);
    CHECK(worst_gradient <= 16 * u * largest, "cross-entropy gradient T %lld V %lld scale %g: %g of %g", (long long)T, (long long)V, scale,
          worst_gradient, largest);
    free(labels), drop(logits), drop(losses), drop(losses_only), drop(untouched);
}

// ---- numbers ----

static void test_numbers(int64_t n) {
    float *x = randoms(n, 1, 3), *y = randoms(n, 2, 3), *z = floats(n);
    double sum = 0, squares = 0, magnitude = 0;
    int64_t wrong = 0;
    op_cast_from_float(z, x, n);
    wrong += !same_bits(z, x, n);
    poison(z, n);
    op_cast_to_float(z, x, n);
    wrong += !same_bits(z, x, n);
    op_cast_from_float(z, z, n);
    op_add_float(z, y, n);
    for (int64_t i = 0; i < n; i++) wrong += z[i] != x[i] + y[i];
    CHECK(wrong == 0, "cast, add of %lld numbers: %lld wrong", (long long)n, (long long)wrong);
    for (int64_t i = 0; i < n; i++) sum += x[i], squares += (double)x[i] * x[i], magnitude += fabs(x[i]);
    // Double sums in another order: they differ by 1e-16 n at worst.
    CHECK(fabs(op_sum_float(x, n) - sum) <= 1e-12 * magnitude,
          "sum of %lld numbers: %g, expected %g", (long long)n, op_sum_float(x, n), sum);
    double got_squares;
    op_sum_squares(&got_squares, x, n);
    CHECK(fabs(got_squares - squares) <= 1e-12 * squares, "sum of %lld squares: %g, expected %g", (long long)n, got_squares, squares);
    drop(x), drop(y), drop(z);
}

// Rows that lie further apart than they are wide, from an address that is no multiple of 16 bytes: the bits of op_cast_from_float, and
// nothing between rows. And back.
static void test_cast_rows(int64_t rows, int64_t width, int64_t gap) {
    int64_t stride = width + gap, n = rows * width, wrong = 0;
    float *x = randoms(n + 1, 1, 3), *flat = floats(n), *to = floats(rows * stride + 1);
    op_cast_from_float(flat, x + 1, n);
    op_cast_rows(to + 1, stride, x + 1, rows, width);
    wrong += !isnan(to[0]);
    for (int64_t row = 0; row < rows; row++) {
        wrong += !same_bits(to + 1 + row * stride, flat + row * width, width);
        for (int64_t i = width; i < stride; i++) wrong += !isnan(to[1 + row * stride + i]);
    }
    CHECK(wrong == 0, "cast of %lld rows of %lld, %lld apart: %lld wrong", (long long)rows, (long long)width,
          (long long)stride, (long long)wrong);
    float *back = floats(n + 1);
    op_copy_rows(back, width, to + 1, stride, rows, width);
    CHECK(same_bits(back, flat, n) && isnan(back[n]),
          "copy of %lld rows of %lld, %lld apart", (long long)rows, (long long)width, (long long)stride);
    drop(x), drop(flat), drop(to), drop(back);
}

// Every bf16 number, and slightly below, at and slightly above the middle to the next one; and each of them added to 1. The first and the
// last are about 2: a sum that leaves one of them out is seen.
static void test_bf16(void) {
    int64_t n = 4 * 65536, wrong = 0, wrong_sums = 0;
    const int64_t begin = 0x4000; // 2
    float *x = floats(n), *sum = floats(n);
    bf16 *wire = (bf16 *)device_alloc(sizeof *wire * (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        static const uint32_t low[] = {0, 0x7fff, 0x8000, 0x8001};
        uint32_t bits = (uint32_t)(begin + i / 4) << 16 | low[i % 4];
        memcpy(&x[i], &bits, sizeof bits);
        sum[i] = 1;
    }
    op_bf16_from_float(wire, x, n);
    op_add_bf16(sum, wire, n);
    for (int64_t i = 0; i < n; i++) {
        uint16_t high = (uint16_t)(begin + i / 4), up = (uint16_t)(high + 1), want = i % 4 < 2 || (i % 4 == 2 && high % 2 == 0) ? high : up;
        uint32_t bits = (uint32_t)wire[i].bits << 16;
        float stored;
        memcpy(&stored, &bits, sizeof stored);
        wrong += isnan(x[i]) ? !isnan(stored) : wire[i].bits != want;
        wrong_sums += isnan(x[i]) ? !isnan(sum[i]) : sum[i] != 1 + stored;
    }
    CHECK(wrong == 0 && wrong_sums == 0,
          "bf16: %lld numbers are not rounded to nearest even, %lld sums wrong", (long long)wrong, (long long)wrong_sums);
    device_free(wire);
    drop(x), drop(sum);
}

static void test_init(void) {
    const int64_t n = 100001;
    const float sigma = 0.02f;
    float *whole = floats(n), *shards = floats(n), *other = floats(n);
    op_init_normal(whole, 1234, 5, 0, n, sigma);
    for (int64_t from = 0, piece = 1; from < n; from += piece, piece = piece * 3 + 1) { // shards that begin at odd and even places
        op_init_normal(shards + from, 1234, 5, from, min_i64(piece, n - from), sigma);
    }
    CHECK(same_bits(whole, shards, n), "init depends on the shards");
    double moments[5] = {0, 0, 0, 0, 0}, neighbours = 0, against = 0;
    for (int k = 0; k < 2; k++) { // another tensor, another seed: independent draws
        op_init_normal(other, k == 0 ? 1234 : 1235, k == 0 ? 6 : 5, 0, n, sigma);
        against = 0;
        for (int64_t i = 0; i < n; i++) against += (double)whole[i] * other[i] / sigma / sigma;
        // 5 standard deviations.
        CHECK(fabs(against) < 5 * sqrt((double)n), "init: draws of different tensors or seeds correlate: %g", against);
    }
    for (int64_t i = 0; i < n; i++) {
        double z = whole[i] / sigma;
        for (int k = 1; k <= 4; k++) moments[k] += pow(z, k) / (double)n;
        if (i > 0) neighbours += z * whole[i - 1] / sigma;
    }
    // Mean 0, variance 1, skewness 0, kurtosis 3, each within 5 of its standard deviations (1, 2, 15, 96 over n).
    static const double wanted[5] = {0, 0, 1, 0, 3}, variances[5] = {0, 1, 2, 15, 96};
    for (int k = 1; k <= 4; k++)
        CHECK(fabs(moments[k] - wanted[k]) < 5 * sqrt(variances[k] / (double)n), "init: moment %d is %g", k, moments[k]);
    CHECK(fabs(neighbours) < 5 * sqrt((double)n), "init: neighbours correlate: %g", neighbours);
    op_init_normal(other, 1, 2, 3, 101, 0);
    int64_t wrong = 0;
    for (int64_t i = 0; i < 101; i++) wrong += other[i] != 1;
    CHECK(wrong == 0, "init with sigma 0 is not 1");
    // Beyond 2^32 elements of a tensor the draws do not repeat.
    op_init_normal(other, 1234, 5, (int64_t)1 << 33, 1000, sigma);
    CHECK(!same_bits(other, whole, 1000), "init repeats after 2^33 elements");
    drop(whole), drop(shards), drop(other);
}

static void test_adamw(int64_t n, bool with_master) {
    float *param = randoms(n, 1, 1), *m = floats(n), *v = floats(n), *grad = floats(n), *master = with_master ? copy_of(param, n) : NULL;
    double *p_expected = HOST_NEW(double, n), *m_expected = HOST_NEW(double, n), *v_expected = HOST_NEW(double, n);
    for (int64_t i = 0; i < n; i++) p_expected[i] = param[i], m[i] = v[i] = 0;
    if (with_master) poison(param, n);
    adamw_args a = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f, 0, {false, 0, 0, 0, 0}, false};
    for (a.step = 1; a.step <= 4; a.step++) {
        test_fill(grad, n, (uint64_t)a.step + 10, 0.1);
        for (int64_t i = 0; i < n; i++) {
            double g = (double)grad[i] * a.grad_scale;
            m_expected[i] = (double)a.beta1 * m_expected[i] + (1 - (double)a.beta1) * g;
            v_expected[i] = (double)a.beta2 * v_expected[i] + (1 - (double)a.beta2) * g * g;
            double mean = m_expected[i] / (1 - pow(a.beta1, (double)a.step)), square = v_expected[i] / (1 - pow(a.beta2, (double)a.step));
            p_expected[i] -= a.lr * (mean / (sqrt(square) + a.eps) + a.weight_decay * p_expected[i]);
        }
        op_adamw(param, master, m, v, grad, n, a);
    }
    // Four steps of a few roundings.
    double e = test_difference_double(param, p_expected, n), e_m = test_difference_double(m, m_expected, n);
    double e_v = test_difference_double(v, v_expected, n);
    // 1 - beta2 is 8 u / 0.05 off.
    CHECK(e < 16 * u && e_m < 16 * u && e_v < 32 * u, "adamw n %lld: errors %g, m %g, v %g", (long long)n, e, e_m, e_v);
    CHECK(!with_master || same_bits(param, master, n), "adamw: param is not the master");
    free(p_expected), free(m_expected), free(v_expected), drop(param), drop(m), drop(v), drop(grad);
    if (with_master) drop(master);
}
// A decay far below the rounding of 1 - decay, as at the end of a cosine: its mean over many parameters, whose own roundings together are
// 0.2 % of it.
static void test_adamw_decay(void) {
    int64_t n = 50001;
    float *param = randoms(n, 1, 0.02), *before = copy_of(param, n), *m = floats(n), *v = floats(n), *grad = randoms(n, 2, 0.1);
    adamw_args a = {1e-6f, 0.9f, 0.95f, 1e-8f, 0.1f, 1, 1, {false, 0, 0, 0, 0}, false};
    double decayed = 0, squares = 0;
    test_fill(m, n, 3, 0.1), test_fill(v, n, 4, 0.1);
    for (int64_t i = 0; i < n; i++) v[i] *= v[i];
    op_adamw(param, NULL, m, v, grad, n, a);
    for (int64_t i = 0; i < n; i++) {
        double old = before[i];
        double step = (double)a.lr * (double)m[i] / (1 - (double)a.beta1) / (sqrt((double)v[i] / (1 - (double)a.beta2)) + (double)a.eps);
        decayed += old * (old - step - (double)param[i]);
        squares += old * old;
    }
    double ratio = decayed / squares / ((double)a.lr * (double)a.weight_decay);
    CHECK(fabs(ratio - 1) < 0.02, "adamw decays by %g of what it should", ratio);
    drop(param), drop(before), drop(m), drop(v), drop(grad);
}

// ---- the device ----

static void test_device(void) {
    CHECK(strncmp(device_name(), "CPU: ", 5) == 0 && strstr(device_name(), "OpenBLAS") != NULL, "name: %s", device_name());
    const size_t n = (size_t)5 << 20;
    char *a = (char *)device_alloc(n), *b = (char *)device_host_slab(n);
    CHECK(a != NULL && b != NULL && (uintptr_t)a % 256 == 0 && (uintptr_t)b % 256 == 0, "allocation: %p %p", (void *)a, (void *)b);
    for (size_t i = 0; i < n; i++) b[i] = (char)(i * 7 >> 3);
    device_from_host(a, b, n);
    CHECK(memcmp(a, b, n) == 0, "device_from_host");
    device_zero(a, n - 3);
    size_t zeros = 0;
    for (size_t i = 0; i < n; i++) zeros += a[i] == 0;
    CHECK(zeros >= n - 3 && a[n - 1] == b[n - 1], "device_zero: %zu of %zu", zeros, n - 3);
    device_copier *lane = device_copier_new();
    int64_t first = device_copy_start(lane, a, b, n / 2), second = device_copy_start(lane, a + n / 2, b + n / 2, n - n / 2);
    CHECK(first > 0 && second > first, "tickets %lld, %lld", (long long)first, (long long)second);
    device_copy_finish(lane, first);
    device_copy_finish(lane, second);
    CHECK(memcmp(a, b, n) == 0, "copier");
    device_copier_free(lane);
    device_free(a);
    device_host_slab_free(b, n);
    CHECK(device_memory_total() > (size_t)1 << 28, "memory: %zu", device_memory_total());

    // Memory that nobody touches costs nothing: allocate most of the machine's memory and look at what is resident.
    long size, resident[2] = {0, 0}; // pages
    size_t large = device_memory_total() / 4 * 3;
    void *arena = NULL;
    for (int k = 0; k < 2; k++) {
        FILE *f = fopen("/proc/self/statm", "r");
        CHECK(f != NULL && fscanf(f, "%ld %ld", &size, &resident[k]) == 2 && resident[k] > 0, "/proc/self/statm cannot be read");
        if (f != NULL) fclose(f);
        if (k == 0) arena = device_alloc(large);
    }
    if (arena == NULL) TEST_SKIP("memory that nobody touches: %zu bytes cannot be allocated", large); // a limit, or no overcommitting
    else CHECK(resident[1] - resident[0] < 4096, "untouched memory is resident: %ld pages", resident[1] - resident[0]);
    device_free(arena);
}

// Memory limits of control groups, version 1 and 2, of the process's group or one above it, from files like the kernel's.
static void test_machine_memory(void) {
    static const struct {
        const char *groups, *folder, *file, *limit;
        size_t expected; // 0: all of the machine's
    } cases[] = {
        {"0::/\n", "", "memory.max", "1048576\n", 1048576},
        {"0::/\n", "", "memory.max", "max\n", 0},
        {"0::/system.slice/job_7/step_0\n", "system.slice/job_7", "memory.max", "2097152\n", 2097152},
        {"9:cpu:/\n4:memory:/slurm/job_7\n0::/\n", "memory/slurm/job_7", "memory.limit_in_bytes", "3145728\n", 3145728},
        {"9:cpu:/\n4:memory:/docker/abc\n0::/\n", "memory", "memory.limit_in_bytes", "4194304\n", 4194304},
        {"4:memory:/a\n0::/\n", "memory/a", "memory.limit_in_bytes", "9223372036854771712\n", 0},
        {"4:memory:/a\n", "memory/b", "memory.limit_in_bytes", "1048576\n", 0}, // another group's
        {"5:cpuset:/a\n", "a", "memory.max", "1048576\n", 0},
    };
    size_t all = machine_memory("/none"), most = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    CHECK(all == most && machine_memory("") <= all, "without control groups: %zu of %zu", all, most);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char root[] = "/tmp/train_llama_groups_XXXXXX", command[512];
        error_text error = {"", 0};
        if (mkdtemp(root) == NULL) exit(EXIT_FAILED);
        snprintf(command, sizeof command, "mkdir -p %s/proc/self %s/sys/fs/cgroup/%s", root, root, cases[i].folder);
        CHECK(system(command) == 0, "%s", command);
        file_write(path_join(root, "proc/self/cgroup").text, cases[i].groups, strlen(cases[i].groups), &error);
        snprintf(command, sizeof command, "sys/fs/cgroup/%s/%s", cases[i].folder, cases[i].file);
        file_write(path_join(root, command).text, cases[i].limit, strlen(cases[i].limit), &error);
        size_t seen = machine_memory(root), expected = cases[i].expected > 0 ? cases[i].expected : all;
        CHECK(error.text[0] == '\0' && seen == expected, "case %zu: %zu, not %zu %s", i, seen, expected, error.text);
        folder_remove(root);
    }
}

// ---- the same bits on any number of threads ----

enum { THREADED = 21 };
// Runs operations whose work is split among threads, and keeps the results.
static void run_all(float *results[THREADED], int64_t sizes[THREADED]) {
    int n = 0;
#define KEEP(pointer, count) (results[n] = copy_of(pointer, count), sizes[n] = (count), n++)
    static const int shapes[][5] = {{1000, 1000, 8, 1, 32}, {300, 900, 3, 3, 20}, {500, 200, 8, 2, 32}};
    for (int s = 0; s < 3; s++) {
        attention_problem p;
        memset(&p, 0, sizeof p);
        p.b.Tq = shapes[s][0], p.b.Tk = shapes[s][1];
        p.b.Hq = shapes[s][2], p.b.Hkv = shapes[s][3], p.b.HS = shapes[s][4];
        p.b.q_stride = p.b.sum_stride = p.b.Hq * p.b.HS, p.b.kv_stride = p.b.Hkv * p.b.HS, p.b.lse_stride = p.b.Tq;
        p.b.scale = 0.3f;
        p.b.causal = s != 1;
        p.q = randoms(q_size(&p), 1, 1), p.k = randoms(kv_size(&p), 2, 1);
        p.v = randoms(kv_size(&p), 3, 1), p.dout = randoms(q_size(&p), 4, 1);
        attention_result r = attention_run(&p, true, false);
        KEEP(r.out, q_size(&p)), KEEP(r.dq, q_size(&p)), KEEP(r.dk, kv_size(&p)), KEEP(r.dv, kv_size(&p));
        attention_result_drop(&r);
        drop(p.q), drop(p.k), drop(p.v), drop(p.dout);
    }
    const int64_t T = 500, D = 300;
    float *x = randoms(T * D, 1, 1), *w = randoms(D * D, 2, 1), *y = floats(T * D), *dw = randoms(D * D, 3, 1), *rstd = floats(T);
    float *dweight = randoms(D, 4, 1);
    op_rmsnorm_forward(y, rstd, x, w, T, D, 1e-5f), KEEP(y, T * D);
    float *scratch = floats((int64_t)op_rmsnorm_backward_scratch(T, D) / 4);
    op_rmsnorm_backward(y, dweight, x, y, w, rstd, T, D, true, scratch), KEEP(dweight, D);
    int32_t *tokens = HOST_NEW(int32_t, T);
    for (int64_t t = 0; t < T; t++) tokens[t] = (int32_t)random_below(7, (uint64_t)t, 40);
    op_embedding_backward(dw, tokens, x, T, D, NULL), KEEP(dw, D * D);
    op_cross_entropy(rstd, x, tokens, T, D, 0.1f, true), KEEP(rstd, T);
    double sums[2] = {op_sum_float(y, T * D), 0};
    op_sum_squares(&sums[1], y, T * D);
    KEEP((const float *)(const void *)sums, 4);
    op_init_normal(y, 1, 2, 3, T * D, 1), KEEP(y, T * D);
    float *m = randoms(T * D, 8, 1), *v = randoms(T * D, 9, 1);
    for (int64_t i = 0; i < T * D; i++) v[i] = fabsf(v[i]);
    adamw_args a = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f, 3, {false, 0, 0, 0, 0}, false};
    op_adamw(y, NULL, m, v, x, T * D, a), KEEP(y, T * D);
    a.bf16_moments = true; // the same bytes, as twice as many moments
    op_adamw(y, NULL, m, v, x, T * D, a), KEEP(y, T * D), KEEP(v, T * D / 2);
    free(tokens), drop(x), drop(w), drop(y), drop(dw), drop(rstd), drop(dweight), drop(scratch), drop(m), drop(v);
#undef KEEP
    if (n != THREADED) exit(EXIT_FAILED);
}
static void test_threads(void) {
    float *first[THREADED], *now[THREADED];
    int64_t sizes[THREADED];
    omp_set_num_threads(1);
    run_all(first, sizes);
    static const int counts[] = {2, 3, 4, 5, 16, 40}; // from 16 on all of the scratch is used
    for (int c = 0; c < 6; c++) {
        int threads = counts[c];
        omp_set_num_threads(threads);
        run_all(now, sizes);
        for (int i = 0; i < THREADED; i++) {
            CHECK(same_bits(first[i], now[i], sizes[i]), "result %d differs between 1 and %d threads", i, threads);
            drop(now[i]);
        }
        CHECK(omp_get_max_threads() == threads, "an operation changed the number of threads from %d to %d", threads, omp_get_max_threads());
    }
    for (int i = 0; i < THREADED; i++) drop(first[i]);
    omp_set_num_threads(3);
}

// Linear layers: how the BLAS rounds depends on its number of threads, so the bits are the same from run to run only with the same number.
static void test_linear_threads(void) {
    // T, in, out.
    static const int64_t sizes[5][3] = {{500, 300, 300}, {1000, 130, 131}, {130, 1000, 130}, {131, 130, 2100}, {50, 52, 1801}};
    for (int s = 0; s < 5; s++) {
        int64_t T = sizes[s][0], in = sizes[s][1], out = sizes[s][2], count[3] = {T * out, T * in, out * in};
        float *x = randoms(T * in, 1, 1), *w = randoms(out * in, 2, 1), *dy = randoms(T * out, 3, 1);
        double *of_one[3] = {NULL, NULL, NULL};
        for (int threads = 1; threads <= 5; threads++) {
            omp_set_num_threads(threads);
            float *first[3] = {NULL, NULL, NULL};
            for (int run = 0; run < 3; run++) {
                float *now[3] = {floats(count[0]), floats(count[1]), floats(count[2])};
                op_linear_forward(now[0], x, w, NULL, T, in, out);
                op_linear_backward_input(now[1], dy, w, T, in, out);
                op_linear_backward_weight(now[2], dy, x, T, in, out, false);
                for (int i = 0; i < 3; i++) {
                    if (first[i] != NULL)
                        CHECK(same_bits(first[i], now[i], count[i]),
                              "product %d of shape %d differs from run to run on %d threads", i, s, threads);
                    // Sums of up to 2100 terms in another order. In one accumulator each is some 10 units off, of 2^-24 of the largest
                    // number: 1e-6 for two of them. Found were 4e-7.
                    if (of_one[i] != NULL)
                        CHECK(test_difference_double(now[i], of_one[i], count[i]) < 2e-6,
                              "product %d of shape %d differs between 1 and %d threads", i, s, threads);
                    if (of_one[i] == NULL) {
                        of_one[i] = HOST_NEW(double, count[i]);
                        for (int64_t e = 0; e < count[i]; e++) of_one[i][e] = (double)now[i][e];
                    }
                    if (first[i] == NULL) first[i] = copy_of(now[i], count[i]);
                    drop(now[i]);
                }
            }
            for (int i = 0; i < 3; i++) drop(first[i]);
        }
        for (int i = 0; i < 3; i++) free(of_one[i]);
        drop(x), drop(w), drop(dy);
    }
    omp_set_num_threads(3);
}

int main(void) {
    attention_block b = {100, 100, 4, 2, 64, 256, 256, 128, 100, 1, false, {NULL, NULL, {0, 0}, 0}};
    size_t early = op_attention_scratch(b, true) + op_attention_scratch(b, false);
    error_text error = {"", 0};
    CHECK(device_start(3, &error), "%s", error.text);
    CHECK(omp_get_max_threads() == 3, "asked for 3 threads, have %d", omp_get_max_threads());
    CHECK(op_attention_scratch(b, true) + op_attention_scratch(b, false) == early, "attention scratch depends on device_start");
    test_device();
    test_machine_memory();
    for (int i = 0; i < ODD_SIZES; i++) {
        for (int j = 0; j < ODD_SIZES; j++) {
            test_embedding(odd_sizes[i], odd_sizes[j], odd_sizes[(i + j) % ODD_SIZES]);
            test_swiglu(odd_sizes[i], odd_sizes[j], 4);
            if (odd_sizes[i] * odd_sizes[j] < 10000) test_rmsnorm(odd_sizes[i], odd_sizes[j]);
            for (int k = (i + j) % 3; k < ODD_SIZES; k += 3) test_linear(odd_sizes[i], odd_sizes[j], odd_sizes[k]);
            test_cross_entropy(odd_sizes[i], odd_sizes[j], 5, 0);
        }
    }
    test_embedding(300, 200, 7);
    test_rmsnorm(700, 33);
    test_swiglu(200, 300, 4);
    test_swiglu(3, 100, 300); // gates where e^gate is far out of range
    test_linear(300, 400, 260);
    test_linear(1, 700, 300);
    test_linear(700, 1, 300);
    test_cross_entropy(4, 128256, 8, 0);
    test_cross_entropy(4, 128256, 1, 25); // losses near 1e-6
    test_cross_entropy(5, 1000, 300, 0);
    test_cross_entropy(40, 1003, 2, 3);
    static const int peer_counts[] = {1, 2, 3, 4, 6, 12}, kv_heads[] = {1, 2, 3, 4, 6, 12};
    for (int i = 0; i < 6; i++) {
        for (int j = 0; j < 6; j++) {
            test_rope(peer_counts[i], 12, kv_heads[j], 8, 3);
            test_rope(peer_counts[i], 12, kv_heads[j], 2, 5);
        }
    }
    test_rope(8, 16, 2, 64, 130);
    test_rope(8, 32, 8, 128, 2);
    test_attention_reference();
    test_attention_sizes();
    test_attention_slices_of_heads();
    test_attention_long();
    test_attention_large_scores();
    for (int parts = 2; parts <= 5; parts++) {
        test_attention_merge_orders(parts, false);
        test_attention_merge_orders(parts, true);
    }
    test_attention_merge_extremes();
    test_attention_nothing_seen();
    test_attention_nan();
    test_nan_bits();
    test_attention_low_scores();
    test_attention_documents();
    test_attention_interface();
    for (int i = 0; i < ODD_SIZES; i++) test_numbers(odd_sizes[i]);
    test_numbers(100003);
    for (int i = 0; i < ODD_SIZES; i++) test_cast_rows(odd_sizes[i], odd_sizes[ODD_SIZES - 1 - i], i % 4 * 3);
    test_cast_rows(1000, 300, 100);
    test_cast_rows(0, 8, 8);
    test_bf16();
    test_init();
    test_adamw(1, false), test_adamw(129, true), test_adamw(50001, false);
    test_adamw_decay();
    moments_check_bits(1, 1, 0), moments_check_bits(50001, 129, 0), moments_check_bits(200, 37, 1);
    moments_check_not_finite();
    moments_check_mean();
    moments_check_stall();
    test_threads();
    test_linear_threads();
    device_stop();
    return test_finish("test_ops", NULL);
}
