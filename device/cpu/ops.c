// The operations of the CPU device, except attention (attention.c). Matrix products run on OpenBLAS, everything else is plain loops.
// Only matrix products may depend on the number of threads: elsewhere work is cut by shape alone, and sums have a fixed order.
#include "../ops.h"
#include "simd.h"

#include <cblas.h>
#include <omp.h>

enum {
    PARALLEL_ELEMENTS = 32768, // below this many elements waking the threads costs more than they save
    SUM_PARTS = NORM_PARTS_CPU, // sums over many rows or elements are cut into this many parts, which are added in order
    COLUMNS = 64               // columns that a thread adds up at a time, over all rows
};

// ---- embedding ----

void op_embedding_forward(floatX *x, const int32_t *tokens, const floatX *table, int64_t T, int64_t D) {
#pragma omp parallel for schedule(static) if (T * D > PARALLEL_ELEMENTS)
    for (int64_t t = 0; t < T; t++) memcpy(x + t * D, table + tokens[t] * D, sizeof(floatX) * (size_t)D);
}

// Each thread owns some columns of the table and adds all tokens in order.
void op_embedding_backward(float *dtable, const int32_t *tokens, const floatX *dx, int64_t T, int64_t D, void *scratch) {
    (void)scratch;
#pragma omp parallel for schedule(static) if (T * D > PARALLEL_ELEMENTS)
    for (int64_t from = 0; from < D; from += COLUMNS) {
        int64_t to = min_i64(D, from + COLUMNS);
        for (int64_t t = 0; t < T; t++) {
            float *row = dtable + tokens[t] * D;
            for (int64_t d = from; d < to; d++) row[d] += dx[t * D + d];
        }
    }
}
size_t op_embedding_backward_scratch(int64_t T) {
    (void)T;
    return 0;
}

// ---- RMSNorm ----

void op_rmsnorm_forward(floatX *y, float *rstd, const floatX *x, const floatX *weight, int64_t T, int64_t D, float eps) {
#pragma omp parallel for schedule(static) if (T * D > PARALLEL_ELEMENTS)
    for (int64_t t = 0; t < T; t++) {
        const floatX *in = x + t * D;
        floatX *out = y + t * D;
        double squares = 0;
#pragma omp simd reduction(+ : squares)
        for (int64_t d = 0; d < D; d++) squares += (double)in[d] * in[d];
        float r = (float)(1 / sqrt(squares / (double)D + eps));
        for (int64_t d = 0; d < D; d++) out[d] = in[d] * r * weight[d];
        rstd[t] = r;
    }
}

// With g = dy * weight: dx += rstd * (g - x * rstd^2 * mean(g * x)). Rows are cut into SUM_PARTS parts; each sums its share of dweight.
void op_rmsnorm_backward(floatX *dx, float *dweight, const floatX *dy, const floatX *x, const floatX *weight, const float *rstd, int64_t T,
                         int64_t D, bool add, void *scratch) {
    float *shares = (float *)scratch; // (parts, D)
    int64_t parts = min_i64(T, SUM_PARTS);
#pragma omp parallel if (T * D > PARALLEL_ELEMENTS)
    {
#pragma omp for schedule(static)
        for (int64_t part = 0; part < parts; part++) {
            float *share = shares + part * D;
            memset(share, 0, sizeof(float) * (size_t)D);
            for (int64_t t = T * part / parts; t < T * (part + 1) / parts; t++) {
                const floatX *in = x + t * D, *dout = dy + t * D;
                floatX *din = dx + t * D;
                double dot = 0;
#pragma omp simd reduction(+ : dot)
                for (int64_t d = 0; d < D; d++) dot += (double)(dout[d] * weight[d]) * in[d];
                float r = rstd[t], pull = (float)(dot / (double)D * r * r);
                for (int64_t d = 0; d < D; d++) share[d] += dout[d] * in[d] * r;
                for (int64_t d = 0; d < D; d++) din[d] = (add ? din[d] : 0) + r * (dout[d] * weight[d] - in[d] * pull);
            }
        }
#pragma omp for schedule(static)
        for (int64_t from = 0; from < D; from += COLUMNS) {
            int64_t to = min_i64(D, from + COLUMNS);
            for (int64_t part = 0; part < parts; part++) {
                for (int64_t d = from; d < to; d++) dweight[d] += shares[part * D + d];
            }
        }
    }
}
size_t op_rmsnorm_backward_scratch(int64_t T, int64_t D) { return sizeof(float) * (size_t)(min_i64(T, SUM_PARTS) * D); }

// ---- linear ----

// c (M, N) = a b, plus what c holds if `add`, plus residual (M, N) if not NULL. a is (M, K), or (K, M) if a_transposed; b likewise.
// The BLAS splits the work over its own threads: the last bit of a result may depend on their number, but not on the run.
static void matrix_product(float *c, const float *a, bool a_transposed, const float *b, bool b_transposed, const float *residual, bool add,
                           int64_t M, int64_t N, int64_t K) {
    if (residual != NULL && residual != c) device_copy(c, residual, sizeof(float) * (size_t)(M * N));
    float beta = add || residual != NULL ? 1 : 0; // the BLAS takes 32-bit sizes: a rank holds no tensor of 2^31 rows
    cblas_sgemm(CblasRowMajor, a_transposed ? CblasTrans : CblasNoTrans, b_transposed ? CblasTrans : CblasNoTrans, (int)M, (int)N, (int)K,
                1, a, (int)(a_transposed ? M : K), b, (int)(b_transposed ? K : N), beta, c, (int)N);
}
void op_linear_forward(floatX *y, const floatX *x, const floatX *w, const floatX *residual, int64_t T, int64_t in, int64_t out) {
    matrix_product(y, x, false, w, true, residual, false, T, out, in);
}
void op_linear_backward_input(floatX *dx, const floatX *dy, const floatX *w, int64_t T, int64_t in, int64_t out) {
    matrix_product(dx, dy, false, w, false, NULL, false, T, in, out);
}
void op_linear_backward_weight(float *dw, const floatX *dy, const floatX *x, int64_t T, int64_t in, int64_t out, bool add) {
    matrix_product(dw, dy, true, x, false, NULL, add, out, in, T);
}

size_t op_linear_workspace(void) { return 0; } // the BLAS allocates its own
void op_linear_use_workspace(void *workspace) { (void)workspace; }

// ---- RoPE and head layout ----

// to (HS) = from (HS) rotated by the angles of one token, forward (direction +1) or back (-1); to += if `add`. angles (HS/2, 2): cos, sin.
static void rotate_head(float *RESTRICT to, const float *RESTRICT from, const float *RESTRICT angles, int HS, float direction, bool add) {
    int half = HS / 2;
    for (int i = 0; i < half; i++) {
        float c = angles[2 * i], s = direction * angles[2 * i + 1], a = from[i], b = from[i + half];
        to[i] = (add ? to[i] : 0) + (a * c - b * s);
        to[i + half] = (add ? to[i + half] : 0) + (b * c + a * s);
    }
}

void op_rope_pack_forward(floatX *q_send, floatX *kv_send, const floatX *qkv, const float *table, int64_t T, head_layout heads,
                          int64_t first, int64_t rows) {
    int H = heads.H, Hkv = heads.Hkv, HS = heads.HS, Hq = heads.Hq, slots = heads.Hkv_local;
#pragma omp parallel for schedule(static) if (rows * (H + 2 * Hkv) * HS > PARALLEL_ELEMENTS)
    for (int64_t t = first; t < first + rows; t++) {
        const floatX *q = qkv + (t - first) * (H + 2 * Hkv) * HS, *k = q + H * HS, *v = k + Hkv * HS;
        const float *angles = table + t * (HS / 2) * 2;
        for (int peer = 0; peer < heads.peers; peer++) {
            floatX *q_to = q_send + (peer * T + t) * Hq * HS, *k_to = kv_send + (peer * T + t) * 2 * slots * HS, *v_to = k_to + slots * HS;
            for (int h = 0; h < Hq; h++) rotate_head(q_to + h * HS, q + (peer * Hq + h) * HS, angles, HS, 1, false);
            for (int slot = 0; slot < slots; slot++) {
                int head = head_layout_slot(&heads, peer, slot);
                rotate_head(k_to + slot * HS, k + head * HS, angles, HS, 1, false);
                memcpy(v_to + slot * HS, v + head * HS, sizeof(floatX) * (size_t)HS);
            }
        }
    }
}

void op_rope_unpack_backward(floatX *dqkv, const floatX *dq_recv, const floatX *dkv_recv, const float *table, int64_t T, head_layout heads,
                             int64_t first, int64_t rows) {
    int H = heads.H, Hkv = heads.Hkv, HS = heads.HS, Hq = heads.Hq, slots = heads.Hkv_local;
#pragma omp parallel for schedule(static) if (rows * (H + 2 * Hkv) * HS > PARALLEL_ELEMENTS)
    for (int64_t t = first; t < first + rows; t++) {
        floatX *dq = dqkv + (t - first) * (H + 2 * Hkv) * HS, *dk = dq + H * HS, *dv = dk + Hkv * HS;
        const float *angles = table + t * (HS / 2) * 2;
        memset(dk, 0, sizeof(floatX) * (size_t)(2 * Hkv * HS));
        for (int peer = 0; peer < heads.peers; peer++) {
            const floatX *dq_from = dq_recv + (peer * T + t) * Hq * HS, *dk_from = dkv_recv + (peer * T + t) * 2 * slots * HS;
            const floatX *dv_from = dk_from + slots * HS;
            for (int h = 0; h < Hq; h++) rotate_head(dq + (peer * Hq + h) * HS, dq_from + h * HS, angles, HS, -1, false);
            for (int slot = 0; slot < slots; slot++) {
                int head = head_layout_slot(&heads, peer, slot);
                rotate_head(dk + head * HS, dk_from + slot * HS, angles, HS, -1, true);
                for (int d = 0; d < HS; d++) dv[head * HS + d] += dv_from[slot * HS + d];
            }
        }
    }
}

// Pieces of one token and peer, from the order (T, peers) to (peers, T) if `pack`, else back.
static void heads_move(floatX *to, const floatX *from, int64_t T, head_layout heads, bool pack) {
    int64_t piece = (int64_t)heads.Hq * heads.HS;
#pragma omp parallel for collapse(2) schedule(static) if (T * piece * heads.peers > PARALLEL_ELEMENTS)
    for (int64_t t = 0; t < T; t++) {
        for (int peer = 0; peer < heads.peers; peer++) {
            int64_t by_token = (t * heads.peers + peer) * piece, by_peer = (peer * T + t) * piece;
            memcpy(to + (pack ? by_peer : by_token), from + (pack ? by_token : by_peer), sizeof(floatX) * (size_t)piece);
        }
    }
}
void op_heads_unpack(floatX *out, const floatX *out_recv, int64_t T, head_layout heads) { heads_move(out, out_recv, T, heads, false); }
void op_heads_pack(floatX *out_send, const floatX *out, int64_t T, head_layout heads) { heads_move(out_send, out, T, heads, true); }

// ---- SwiGLU ----

static inline vec sigmoid(vec x) { return 1.0f / (1.0f + vec_exp(vec_select(x < -88.0f, vec_set(88.0f), -x))); }

void op_swiglu_forward(floatX *act, const floatX *gate_up, int64_t T, int64_t F) {
#pragma omp parallel for schedule(static) if (T * F > PARALLEL_ELEMENTS)
    for (int64_t t = 0; t < T; t++) {
        const floatX *gate = gate_up + t * 2 * F, *up = gate + F;
        for (int64_t f = 0; f < F; f += LANES) {
            vec g = vec_load_part(gate + f, F - f), u = vec_load_part(up + f, F - f);
            vec_store_part(act + t * F + f, g * sigmoid(g) * u, F - f);
        }
    }
}
// With s = sigmoid(gate): dgate = dact * up * s * (1 + gate * (1 - s)), dup = dact * gate * s.
void op_swiglu_backward(floatX *dgate_up, floatX *act, const floatX *dact, const floatX *gate_up, int64_t T, int64_t F) {
#pragma omp parallel for schedule(static) if (T * F > PARALLEL_ELEMENTS)
    for (int64_t t = 0; t < T; t++) {
        const floatX *gate = gate_up + t * 2 * F, *up = gate + F;
        floatX *dgate = dgate_up + t * 2 * F, *dup = dgate + F;
        for (int64_t f = 0; f < F; f += LANES) {
            vec g = vec_load_part(gate + f, F - f), u = vec_load_part(up + f, F - f), d = vec_load_part(dact + t * F + f, F - f);
            vec s = sigmoid(g);
            vec_store_part(dgate + f, d * u * s * (1.0f + g * (1.0f - s)), F - f);
            vec_store_part(dup + f, d * (g * s), F - f);
            vec_store_part(act + t * F + f, g * s * u, F - f);
        }
    }
}

// ---- cross-entropy ----

// Exponentials are summed in double: a loss near 0 is the logarithm of a sum just above 1.
void op_cross_entropy(float *losses, floatX *logits, const int32_t *labels, int64_t T, int64_t V, float scale, bool backward) {
#pragma omp parallel for schedule(static) if (T * V > PARALLEL_ELEMENTS)
    for (int64_t t = 0; t < T; t++) {
        floatX *x = logits + t * V;
        if (labels[t] < 0) {
            losses[t] = 0;
            if (backward) memset(x, 0, sizeof(floatX) * (size_t)V);
            continue;
        }
        float max = x[0];
#pragma omp simd reduction(max : max)
        for (int64_t i = 0; i < V; i++) max = x[i] > max ? x[i] : max;

        int64_t whole = V / LANES * LANES;
        vec_double sums = {0};
        for (int64_t i = 0; i < whole; i += LANES) sums += __builtin_convertvector(vec_exp(vec_load(x + i) - max), vec_double);
        double sum = 0;
        for (int l = 0; l < LANES; l++) sum += sums[l];
        for (int64_t i = whole; i < V; i++) sum += exp((double)x[i] - max);
        losses[t] = (float)(log(sum) + ((double)max - x[labels[t]]));
        if (!backward) continue;

        float factor = (float)(scale / sum);
        for (int64_t i = 0; i < V; i += LANES) vec_store_part(x + i, vec_exp(vec_load_part(x + i, V - i) - max) * factor, V - i);
        x[labels[t]] = (float)(scale * expm1(-(double)losses[t])); // p - 1 without cancellation
    }
}

// ---- numbers ----

void op_cast_from_float(floatX *to, const float *from, int64_t n) {
    if (to != from) device_copy(to, from, sizeof(float) * (size_t)n);
}
void op_cast_to_float(float *to, const floatX *from, int64_t n) { op_cast_from_float(to, from, n); }
static void move_rows(float *to, int64_t to_stride, const float *from, int64_t from_stride, int64_t rows, int64_t width) {
#pragma omp parallel for schedule(static) if (rows * width > PARALLEL_ELEMENTS)
    for (int64_t i = 0; i < rows; i++) memcpy(to + i * to_stride, from + i * from_stride, sizeof(float) * (size_t)width);
}
void op_cast_rows(floatX *to, int64_t to_stride, const float *from, int64_t rows, int64_t width) {
    move_rows(to, to_stride, from, width, rows, width);
}
void op_copy_rows(floatX *to, int64_t to_stride, const floatX *from, int64_t from_stride, int64_t rows, int64_t width) {
    move_rows(to, to_stride, from, from_stride, rows, width);
}
void op_round(floatX *to, const float *from, int64_t n, rounding_rule how) {
    (void)how;
    op_cast_from_float(to, from, n);
}
void op_add_float(float *to, const float *from, int64_t n) {
#pragma omp parallel for simd schedule(static) if (n > PARALLEL_ELEMENTS)
    for (int64_t i = 0; i < n; i++) to[i] += from[i];
}
void op_bf16_from_float(bf16 *to, const float *from, int64_t n) {
#pragma omp parallel for simd schedule(static) if (n > PARALLEL_ELEMENTS)
    for (int64_t i = 0; i < n; i++) to[i].bits = bf16_of_float(from[i]);
}
void op_add_bf16(float *to, const bf16 *from, int64_t n) {
#pragma omp parallel for simd schedule(static) if (n > PARALLEL_ELEMENTS)
    for (int64_t i = 0; i < n; i++) to[i] += float_of_bf16(from[i].bits);
}

static double sum_of(const float *x, int64_t n, bool squares) {
    double parts[SUM_PARTS], total = 0;
#pragma omp parallel for schedule(static) if (n > PARALLEL_ELEMENTS)
    for (int part = 0; part < SUM_PARTS; part++) {
        int64_t from = n / SUM_PARTS * part + min_i64(part, n % SUM_PARTS), to = from + n / SUM_PARTS + (part < n % SUM_PARTS);
        double sum = 0;
        if (squares) { // in one loop, gcc would not vectorize the plain sum
#pragma omp simd reduction(+ : sum)
            for (int64_t i = from; i < to; i++) sum += (double)x[i] * x[i];
        } else {
#pragma omp simd reduction(+ : sum)
            for (int64_t i = from; i < to; i++) sum += x[i];
        }
        parts[part] = sum;
    }
    for (int part = 0; part < SUM_PARTS; part++) total += parts[part];
    return total;
}
double op_sum_float(const float *x, int64_t n) { return sum_of(x, n, false); }
void op_sum_squares(double *sum, const float *x, int64_t n) { *sum = sum_of(x, n, true); }

// Elements 2p and 2p + 1 of a tensor are the cosine and sine of one Box-Muller draw, made from two hashes of (seed, tensor, p).
void op_init_normal(floatX *to, uint64_t seed, uint64_t tensor, int64_t first, int64_t n, float sigma) {
    uint64_t key = mix_bits(mix_bits(seed) ^ tensor);
    int64_t first_pair = first / 2, pairs = n > 0 ? (first + n - 1) / 2 - first_pair + 1 : 0;
#pragma omp parallel for schedule(static) if (n > PARALLEL_ELEMENTS)
    for (int64_t p = 0; p < pairs; p++) {
        float values[2] = {1, 1};
        if (sigma != 0) {
            uint64_t counter = 2 * (uint64_t)(first_pair + p);
            double u = (double)((mix_bits(key ^ mix_bits(counter)) >> 11) + 1) * 0x1p-53; // (0, 1]
            double angle = 2 * 3.14159265358979323846 * (double)(mix_bits(key ^ mix_bits(counter + 1)) >> 11) * 0x1p-53;
            double radius = sigma * sqrt(-2 * log(u));
            values[0] = (float)(radius * cos(angle));
            values[1] = (float)(radius * sin(angle));
        }
        for (int j = 0; j < 2; j++) {
            int64_t at = 2 * (first_pair + p) + j - first;
            if (at >= 0 && at < n) to[at] = values[j];
        }
    }
}

// Updates ADAMW_BLOCK elements in a loop without a remainder: compilers may contract the vector body and the scalar remainder of a loop
// differently (clang on aarch64), and an element's bits must not depend on where threads and shards are cut.
enum { ADAMW_BLOCK = 64 };
typedef struct {
    float beta1, beta2, eps, grad_scale, rate, unbias, decay;
} adamw_factors;
static __attribute__((noinline)) void adamw_block(float *RESTRICT weights, float *RESTRICT m, float *RESTRICT v,
                                                  const float *RESTRICT grad, adamw_factors a) {
#pragma omp simd
    for (int i = 0; i < ADAMW_BLOCK; i++) {
        float g = grad[i] * a.grad_scale;
        float mean = a.beta1 * m[i] + (1 - a.beta1) * g, square = a.beta2 * v[i] + (1 - a.beta2) * g * g;
        m[i] = mean;
        v[i] = square;
        // 1 - decay would be rounded: by 19 % of a decay of 1e-7.
        weights[i] -= a.rate * mean / (sqrtf(square) * a.unbias + a.eps) + a.decay * weights[i];
    }
}
// Rounds to one of the two neighbours in bf16, by 16 random bits: as in device/cuda/numbers.cu.
static uint16_t bf16_at_random(float x, uint64_t draw) {
    return isnan(x) ? (uint16_t)0x7fff : (uint16_t)((bits_of_float(x) + (uint32_t)(draw & 0xffffu)) >> 16);
}
// The same on n elements, at most ADAMW_BLOCK, with moments in bf16. key: of the call's draws; first: the index in the tensor of element 0.
static void adamw_block_bf16(float *weights, bf16 *m, bf16 *v, const float *grad, int64_t n, adamw_factors a, uint64_t key, int64_t first) {
    float part[4][ADAMW_BLOCK] = {{0}};
    memcpy(part[0], weights, sizeof(float) * (size_t)n);
    memcpy(part[3], grad, sizeof(float) * (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        part[1][i] = float_of_bf16(m[i].bits);
        part[2][i] = float_of_bf16(v[i].bits);
    }
    adamw_block(part[0], part[1], part[2], part[3], a);
    memcpy(weights, part[0], sizeof(float) * (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        uint64_t draws = mix_bits(key ^ (uint64_t)(first + i));
        m[i].bits = bf16_at_random(part[1][i], draws >> 16);
        v[i].bits = bf16_at_random(part[2][i], draws >> 32);
    }
}
void op_adamw(floatX *param, float *master, void *m, void *v, const float *grad, int64_t n, adamw_args args) {
    uint64_t key = rounding_key(args.rounding, args.step);
    float *weights = master != NULL ? master : param;
    adamw_factors a = {args.beta1, args.beta2, args.eps, args.grad_scale, (float)(args.lr / (1 - pow(args.beta1, (double)args.step))),
                       (float)(1 / sqrt(1 - pow(args.beta2, (double)args.step))), args.lr * args.weight_decay};
#pragma omp parallel for schedule(static) if (n > PARALLEL_ELEMENTS)
    for (int64_t i = 0; i < n; i += ADAMW_BLOCK) {
        if (args.bf16_moments) {
            int64_t count = min_i64(n - i, ADAMW_BLOCK), first = args.rounding.first + i;
            adamw_block_bf16(weights + i, (bf16 *)m + i, (bf16 *)v + i, grad + i, count, a, key, first);
            continue;
        }
        float *of[3] = {weights + i, (float *)m + i, (float *)v + i};
        if (n - i >= ADAMW_BLOCK) {
            adamw_block(of[0], of[1], of[2], grad + i, a);
            continue;
        }
        float part[4][ADAMW_BLOCK] = {{0}};
        size_t bytes = sizeof(float) * (size_t)(n - i);
        for (int k = 0; k < 3; k++) memcpy(part[k], of[k], bytes);
        memcpy(part[3], grad + i, bytes);
        adamw_block(part[0], part[1], part[2], part[3], a);
        for (int k = 0; k < 3; k++) memcpy(of[k], part[k], bytes);
    }
    if (master != NULL) op_cast_from_float(param, master, n);
}
