// Embedding. See device/ops.h.
#include "kernel.cuh"

// One block per token.
template <int W> __global__ void embedding_forward_kernel(floatX *x, const int32_t *tokens, const floatX *table, int64_t D) {
    int64_t t = blockIdx.x, token = tokens[t];
    for (int64_t d = (int64_t)threadIdx.x * W; d < D; d += (int64_t)blockDim.x * W) {
        float v[W];
        load<W>(v, table + token * D + d);
        store<W>(x + t * D + d, v);
    }
}
void op_embedding_forward(floatX *x, const int32_t *tokens, const floatX *table, int64_t T, int64_t D) {
    if (T == 0) return;
    if (packs(D, x, table)) LAUNCH(embedding_forward_kernel<PACK>, grid_size(T), block_size(D / PACK, 256), 0, x, tokens, table, D);
    else LAUNCH(embedding_forward_kernel<1>, grid_size(T), block_size(D, 256), 0, x, tokens, table, D);
}

// The gradient without float atomics: positions are sorted by (token, position), then the rows of each token are added up in that order.
// The sort is bitonic. No two keys are equal, so any order of comparisons gives the same result. A million tokens take 210 short launches:
// a few milliseconds of a training step of many seconds.

// keys (n, a power of two): token in the high half, position in the low; those beyond T come last.
__global__ void sort_keys_kernel(uint64_t *keys, const int32_t *tokens, int64_t T, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) keys[i] = i < T ? (uint64_t)(uint32_t)tokens[i] << 32 | (uint64_t)i : ~(uint64_t)0;
}
// One step, a thread per pair of keys that lie `stride` (a power of two) apart: runs of `run` keys are ascending and descending in turn.
__global__ void sort_step_kernel(uint64_t *keys, int64_t n, int64_t run, int64_t stride) {
    int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, i = p / stride * 2 * stride + p % stride;
    if (p >= n / 2) return;
    uint64_t a = keys[i], b = keys[i + stride];
    if ((a > b) == ((i & run) == 0)) {
        keys[i] = b;
        keys[i + stride] = a;
    }
}
// One block per sorted key and blockDim.x W columns. The block where a token's run of keys starts adds it up, AT_A_TIME loads in flight.
template <int W> __global__ void embedding_backward_kernel(float *dtable, const uint64_t *keys, const floatX *dx, int64_t T, int64_t D) {
    int64_t i = blockIdx.x, d = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * W;
    uint32_t token = (uint32_t)(keys[i] >> 32);
    if (d >= D || (i > 0 && (uint32_t)(keys[i - 1] >> 32) == token)) return;
    float sum[W];
    load<W>(sum, dtable + token * D + d);
    constexpr int AT_A_TIME = 8;
    for (bool more = true; more; i += AT_A_TIME) {
        uint64_t key[AT_A_TIME];
        stored_piece<W> piece[AT_A_TIME] = {};
#pragma unroll
        for (int n = 0; n < AT_A_TIME; n++) key[n] = i + n < T ? keys[i + n] : ~(uint64_t)0;
#pragma unroll
        for (int n = 0; n < AT_A_TIME; n++)
            if ((uint32_t)(key[n] >> 32) == token)
                piece[n] = *reinterpret_cast<const stored_piece<W> *>(dx + (int64_t)(uint32_t)key[n] * D + d);
#pragma unroll
        for (int n = 0; n < AT_A_TIME; n++) {
            more = (uint32_t)(key[n] >> 32) == token;
            if (!more) continue;
            float x[W];
            unpack<W>(x, piece[n]);
#pragma unroll
            for (int k = 0; k < W; k++) sum[k] += x[k];
        }
    }
    store<W>(dtable + token * D + d, sum);
}

static int64_t sort_length(int64_t T) {
    int64_t n = 2;
    while (n < T) n *= 2;
    return n;
}
size_t op_embedding_backward_scratch(int64_t T) { return sizeof(uint64_t) * (size_t)sort_length(T); }
void op_embedding_backward(float *dtable, const int32_t *tokens, const floatX *dx, int64_t T, int64_t D, void *scratch) {
    if (T == 0) return;
    uint64_t *keys = (uint64_t *)scratch;
    int64_t n = sort_length(T);
    int threads = block_size(n, 256);
    LAUNCH(sort_keys_kernel, grid_size(ceil_div(n, threads)), threads, 0, keys, tokens, T, n);
    for (int64_t run = 2; run <= n; run *= 2)
        for (int64_t stride = run / 2; stride > 0; stride /= 2)
            LAUNCH(sort_step_kernel, grid_size(ceil_div(n / 2, threads)), threads, 0, keys, n, run, stride);
    bool packed = packs(D, dtable, dx);
    int64_t items = packed ? D / PACK : D;
    int columns = block_size(items, 128);
    dim3 grid(grid_size(T), grid_size(ceil_div(items, columns)));
    if (packed) LAUNCH(embedding_backward_kernel<PACK>, grid, columns, 0, dtable, keys, dx, T, D);
    else LAUNCH(embedding_backward_kernel<1>, grid, columns, 0, dtable, keys, dx, T, D);
}
