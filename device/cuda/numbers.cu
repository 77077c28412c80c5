// Operations on flat vectors: casts, sums, initial numbers, AdamW. See device/ops.h.
#include "kernel.cuh"

static int block_size_for_tests; // 0: the launchers' own choice
void kernels_test_block_size(int threads) { block_size_for_tests = threads; }

int block_size(int64_t items, int most) {
    if (block_size_for_tests > 0) return block_size_for_tests;
    return (int)min_i64(round_up(max_i64(items, 1), 32), most);
}
unsigned grid_size(int64_t blocks) {
    if (blocks < 1 || blocks > INT32_MAX) comm_abort("a kernel of %lld blocks: a grid has 1 to 2^31 - 1", (long long)blocks);
    return (unsigned)blocks;
}

// ---- casts, sums of vectors ----

template <int W, class To, class From> __device__ __forceinline__ void cast_flat(To *to, const From *from, int64_t n) {
    int64_t i;
    int count = flat_range<W>(n, &i);
    float x[W];
    load_some<W>(x, from + i, count);
    store_some<W>(to + i, x, count);
}
template <int W, class To, class From> __device__ __forceinline__ void add_flat(To *to, const From *from, int64_t n) {
    int64_t i;
    int count = flat_range<W>(n, &i);
    float x[W], y[W];
    load_some<W>(x, to + i, count);
    load_some<W>(y, from + i, count);
    for (int k = 0; k < W; k++) x[k] += y[k];
    store_some<W>(to + i, x, count);
}
template <int W> __global__ void cast_from_float_kernel(floatX *to, const float *from, int64_t n) { cast_flat<W>(to, from, n); }
// In the next two W divides the width.
template <int W> __global__ void cast_rows_kernel(floatX *to, int64_t to_stride, const float *from, int64_t n, int64_t width) {
    int64_t i;
    if (flat_range<W>(n, &i) == 0) return;
    float x[W];
    load<W>(x, from + i);
    store<W>(to + i / width * to_stride + i % width, x);
}
template <int W>
__global__ void copy_rows_kernel(floatX *to, int64_t to_stride, const floatX *from, int64_t from_stride, int64_t n, int64_t width) {
    int64_t i;
    if (flat_range<W>(n, &i) == 0) return;
    float x[W];
    load<W>(x, from + i / width * from_stride + i % width);
    store<W>(to + i / width * to_stride + i % width, x);
}
template <int W> __global__ void cast_to_float_kernel(float *to, const floatX *from, int64_t n) { cast_flat<W>(to, from, n); }
template <int W> __global__ void bf16_from_float_kernel(bf16 *to, const float *from, int64_t n) { cast_flat<W>(to, from, n); }
template <int W> __global__ void add_float_kernel(float *to, const float *from, int64_t n) { add_flat<W>(to, from, n); }
template <int W> __global__ void add_bf16_kernel(float *to, const bf16 *from, int64_t n) { add_flat<W>(to, from, n); }

void op_cast_from_float(floatX *to, const float *from, int64_t n) {
    LAUNCH_FLAT(cast_from_float_kernel, FLOAT_PACK, aligned16(to) && aligned16(from), n, to, from, n);
}
void op_cast_rows(floatX *to, int64_t to_stride, const float *from, int64_t rows, int64_t width) {
    int64_t n = rows * width;
    LAUNCH_FLAT(cast_rows_kernel, FLOAT_PACK, aligned16(to) && aligned16(from) && width % FLOAT_PACK == 0 && to_stride % FLOAT_PACK == 0,
                n, to, to_stride, from, n, width);
}
void op_copy_rows(floatX *to, int64_t to_stride, const floatX *from, int64_t from_stride, int64_t rows, int64_t width) {
    int64_t n = rows * width;
    LAUNCH_FLAT(copy_rows_kernel, PACK,
                aligned16(to) && aligned16(from) && width % PACK == 0 && to_stride % PACK == 0 && from_stride % PACK == 0,
                n, to, to_stride, from, from_stride, n, width);
}
void op_cast_to_float(float *to, const floatX *from, int64_t n) {
    LAUNCH_FLAT(cast_to_float_kernel, FLOAT_PACK, aligned16(to) && aligned16(from), n, to, from, n);
}
void op_add_float(float *to, const float *from, int64_t n) {
    LAUNCH_FLAT(add_float_kernel, FLOAT_PACK, aligned16(to) && aligned16(from), n, to, from, n);
}
void op_bf16_from_float(bf16 *to, const float *from, int64_t n) {
    LAUNCH_FLAT(bf16_from_float_kernel, FLOAT_PACK, aligned16(to) && aligned16(from), n, to, from, n);
}
void op_add_bf16(float *to, const bf16 *from, int64_t n) {
    LAUNCH_FLAT(add_bf16_kernel, FLOAT_PACK, aligned16(to) && aligned16(from), n, to, from, n);
}

// ---- sums to one number: each thread strides over the vector, blocks leave partial sums, one warp adds them in a fixed order ----

template <bool SQUARES, int W> __global__ void sum_kernel(double *partial, const float *x, int64_t n) {
    DYN_SHARED(double, shared);
    double sum = 0;
    constexpr int AT_A_TIME = 4; // loads before the first addition
    int64_t step = (int64_t)gridDim.x * blockDim.x * W, i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
    auto add = [&](const float (&v)[W]) {
#pragma unroll
        for (int k = 0; k < W; k++) sum += SQUARES ? (double)v[k] * (double)v[k] : (double)v[k];
    };
    for (; i + (AT_A_TIME - 1) * step + W <= n; i += AT_A_TIME * step) {
        float v[AT_A_TIME][W];
#pragma unroll
        for (int a = 0; a < AT_A_TIME; a++) load<W>(v[a], x + i + a * step);
#pragma unroll
        for (int a = 0; a < AT_A_TIME; a++) add(v[a]);
    }
    for (; i < n; i += step) {
        float v[W];
        load_some<W>(v, x + i, n - i < W ? (int)(n - i) : W);
        add(v);
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}
__global__ void sum_partials_kernel(double *total, const double *partial, int blocks) {
    double sum = 0;
    for (int b = (int)threadIdx.x; b < blocks; b += 32) sum += partial[b];
    sum = warp_sum(sum);
    if (threadIdx.x == 0) *total = sum;
}
static void sum_to(double *total, const float *x, int64_t n, bool squares) {
    double *partial = device_reduction_scratch();
    int threads = block_size(n, 256);
    int blocks = (int)min_i64(REDUCTION_BLOCKS, ceil_div(n, (int64_t)threads * 16)); // from n alone: the order never depends on the device
    auto sum_packs_kernel = squares ? sum_kernel<true, 4> : sum_kernel<false, 4>;
    auto sum_ones_kernel = squares ? sum_kernel<true, 1> : sum_kernel<false, 1>;
    if (aligned16(x)) LAUNCH(sum_packs_kernel, blocks, threads, sizeof(double) * 32, partial, x, n);
    else LAUNCH(sum_ones_kernel, blocks, threads, sizeof(double) * 32, partial, x, n);
    LAUNCH(sum_partials_kernel, 1, 32, 0, total, partial, blocks);
}
double op_sum_float(const float *x, int64_t n) {
    if (n == 0) return 0;
    double *total = device_reduction_scratch() + REDUCTION_BLOCKS, result;
    sum_to(total, x, n, false);
    device_to_host(&result, total, sizeof result);
    return result;
}
void op_sum_squares(double *sum, const float *x, int64_t n) {
    if (n == 0) device_zero(sum, sizeof *sum);
    else sum_to(sum, x, n, true);
}

// ---- stochastic rounding ----

// An element uses the low 16 bits of its draw, its moments the next 16 and 16 more.
static __device__ __forceinline__ uint64_t rounding_draws(uint64_t key, int64_t element) { return mix_bits(key ^ (uint64_t)element); }
// Rounds x to one of its two neighbours in bf16: adds a random number, less than the step between them, to the magnitude and truncates to
// bf16. Exact where bf16 holds x; infinities and NaN are returned as they are (from_float handles them). draw: its low 16 bits count.
static __device__ __forceinline__ float round_at_random(float x, uint64_t draw) {
    uint32_t bits = bits_of_float(x);
    if ((bits & 0x7f800000u) == 0x7f800000u) return x;
    return float_of_bits((bits + (uint32_t)(draw & 0xffffu)) & 0xffff0000u);
}
template <int W> __global__ void round_kernel(floatX *to, const float *from, int64_t n, uint64_t key, int64_t first) {
    int64_t i;
    int count = flat_range<W>(n, &i);
    float x[W];
    load_some<W>(x, from + i, count);
#pragma unroll
    for (int k = 0; k < W; k++) x[k] = round_at_random(x[k], rounding_draws(key, first + i + k));
    store_some<W>(to + i, x, count);
}
void op_round(floatX *to, const float *from, int64_t n, rounding_rule how) {
    how.stochastic = how.stochastic && sizeof(floatX) == sizeof(bf16);
    if (how.stochastic)
        LAUNCH_FLAT(round_kernel, FLOAT_PACK, aligned16(to) && aligned16(from), n, to, from, n, rounding_key(how, how.step), how.first);
    else op_cast_from_float(to, from, n);
}

// ---- AdamW: rate = lr / (1 - beta1^step), unbias = 1 / sqrt(1 - beta2^step), decay = lr weight_decay ----

// 4 elements a thread also where moments are bf16, which are then read 8 bytes at a time: master and gradient are floats, two thirds of
// what is read, and with 8 elements each of a warp's instructions would cover half of every sector of theirs.
template <int W, class Moment>
__device__ __forceinline__ void adamw_flat(floatX *param, float *master, Moment *m, Moment *v, const float *grad, int64_t n,
                                           const adamw_args &args, float rate, float unbias, float decay, uint64_t key) {
    constexpr bool ROUNDS = sizeof(Moment) == sizeof(bf16);
    int64_t i;
    int count = flat_range<W>(n, &i);
    float p[W], g[W], mean[W], square[W];
    auto load_all = [&](int known) {
        load_some<W>(g, grad + i, known);
        load_some<W>(mean, m + i, known);
        load_some<W>(square, v + i, known);
        if (master != nullptr) load_some<W>(p, master + i, known);
        else load_some<W>(p, param + i, known);
    };
    if (count >= W) load_all(W); // a constant: no branch between these loads, at which one would wait for the one before
    else load_all(count);
#pragma unroll
    for (int k = 0; k < W; k++) {
        g[k] *= args.grad_scale;
        mean[k] = args.beta1 * mean[k] + (1 - args.beta1) * g[k];
        square[k] = args.beta2 * square[k] + (1 - args.beta2) * g[k] * g[k];
        p[k] -= rate * mean[k] / (sqrtf(square[k]) * unbias + args.eps) + decay * p[k]; // 1 - decay would be rounded (device/cpu/ops.c)
    }
    if (master != nullptr) store_some<W>(master + i, p, count);
    if (ROUNDS || args.rounding.stochastic) {
        uint64_t draws[W]; // before any condition, or nvcc computes some of them on both sides of it
#pragma unroll
        for (int k = 0; k < W; k++) {
            draws[k] = rounding_draws(key, args.rounding.first + i + k);
            if (ROUNDS) mean[k] = round_at_random(mean[k], draws[k] >> 16);
            if (ROUNDS) square[k] = round_at_random(square[k], draws[k] >> 32);
        }
#pragma unroll
        for (int k = 0; k < W; k++)
            if (args.rounding.stochastic) p[k] = round_at_random(p[k], draws[k]);
    }
    store_some<W>(m + i, mean, count);
    store_some<W>(v + i, square, count);
    store_some<W>(param + i, p, count);
}
template <int W>
__global__ void adamw_kernel(floatX *param, float *master, float *m, float *v, const float *grad, int64_t n, adamw_args args, float rate,
                             float unbias, float decay, uint64_t key) {
    adamw_flat<W>(param, master, m, v, grad, n, args, rate, unbias, decay, key);
}
template <int W>
__global__ void adamw_bf16_kernel(floatX *param, float *master, bf16 *m, bf16 *v, const float *grad, int64_t n, adamw_args args, float rate,
                                  float unbias, float decay, uint64_t key) {
    adamw_flat<W>(param, master, m, v, grad, n, args, rate, unbias, decay, key);
}
void op_adamw(floatX *param, float *master, void *m, void *v, const float *grad, int64_t n, adamw_args args) {
    float rate = (float)(args.lr / (1 - pow(args.beta1, (double)args.step)));
    float unbias = (float)(1 / sqrt(1 - pow(args.beta2, (double)args.step)));
    float decay = args.lr * args.weight_decay;
    bool aligned = aligned16(param) && aligned16(master) && aligned16(m) && aligned16(v) && aligned16(grad);
    args.rounding.stochastic = args.rounding.stochastic && sizeof(floatX) == sizeof(bf16);
    uint64_t key = rounding_key(args.rounding, args.step);
    if (args.bf16_moments)
        LAUNCH_FLAT(adamw_bf16_kernel, FLOAT_PACK, aligned, n, param, master, (bf16 *)m, (bf16 *)v, grad, n, args, rate, unbias, decay,
                    key);
    else
        LAUNCH_FLAT(adamw_kernel, FLOAT_PACK, aligned, n, param, master, (float *)m, (float *)v, grad, n, args, rate, unbias, decay, key);
}

// ---- initial numbers: the formula of device/cpu/ops.c, so that both devices start from the same model ----

// Elements 2p and 2p + 1 of a tensor are the cosine and the sine of one Box-Muller draw, made from two hashes of (seed, tensor, p).
__global__ void init_normal_kernel(floatX *to, uint64_t seed, uint64_t tensor, int64_t first, int64_t n, float sigma) {
    int64_t i;
    if (flat_range<1>(n, &i) == 0) return;
    float x = 1;
    if (sigma != 0) {
        uint64_t key = mix_bits(mix_bits(seed) ^ tensor), at = (uint64_t)(first + i), counter = at / 2 * 2;
        double u = (double)((mix_bits(key ^ mix_bits(counter)) >> 11) + 1) * 0x1p-53; // (0, 1]
        double angle = 2 * 3.14159265358979323846 * (double)(mix_bits(key ^ mix_bits(counter + 1)) >> 11) * 0x1p-53;
        x = (float)((double)sigma * sqrt(-2 * log(u)) * (at % 2 == 0 ? cos(angle) : sin(angle)));
    }
    to[i] = from_float<floatX>(x);
}
void op_init_normal(floatX *to, uint64_t seed, uint64_t tensor, int64_t first, int64_t n, float sigma) {
    if (n == 0) return;
    int threads = block_size(n, 256);
    LAUNCH(init_normal_kernel, grid_size(ceil_div(n, threads)), threads, 0, to, seed, tensor, first, n, sigma);
}
