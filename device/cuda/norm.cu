// RMSNorm. See device/ops.h.
#include "kernel.cuh"

// One block per row. The row stays in shared memory until its sum is known: the rows of all running blocks are more than the cache holds.
template <int W>
__global__ void rmsnorm_forward_kernel(floatX *y, float *rstd, const floatX *x, const floatX *weight, int64_t D, float eps) {
    DYN_SHARED(float, sums);                                // (32)
    floatX *kept = reinterpret_cast<floatX *>(sums + 32); // (D)
    x += (int64_t)blockIdx.x * D;
    y += (int64_t)blockIdx.x * D;
    int width = (int)D, first = (int)threadIdx.x * W, step = (int)blockDim.x * W;
    float squares = 0;
    constexpr int AT_A_TIME = 2;
    for (int begin = first; begin < width; begin += AT_A_TIME * step) {
        stored_piece<W> piece[AT_A_TIME];
        load_pieces<AT_A_TIME, W>(piece, x, begin, step, width);
#pragma unroll
        for (int n = 0; n < AT_A_TIME; n++) {
            if (begin + n * step >= width) continue;
            *reinterpret_cast<stored_piece<W> *>(kept + begin + n * step) = piece[n];
            float v[W];
            unpack<W>(v, piece[n]);
#pragma unroll
            for (int k = 0; k < W; k++) squares += v[k] * v[k];
        }
    }
    float scale = rsqrtf(block_sum(squares, sums) / (float)width + eps);
    if (threadIdx.x == 0) rstd[blockIdx.x] = scale;
    for (int d = first; d < width; d += step) {
        float v[W], w[W];
        load<W>(v, kept + d); // stored by this thread
        load<W>(w, weight + d);
#pragma unroll
        for (int k = 0; k < W; k++) v[k] = v[k] * scale * w[k];
        store<W>(y + d, v);
    }
}
void op_rmsnorm_forward(floatX *y, float *rstd, const floatX *x, const floatX *weight, int64_t T, int64_t D, float eps) {
    if (T == 0) return;
    size_t shared = sizeof(float) * 32 + sizeof(floatX) * (size_t)D;
    if (packs(D, y, x, weight))
        LAUNCH(rmsnorm_forward_kernel<PACK>, grid_size(T), block_size(D / PACK, 256), shared, y, rstd, x, weight, D, eps);
    else
        LAUNCH(rmsnorm_forward_kernel<1>, grid_size(T), block_size(D, 256), shared, y, rstd, x, weight, D, eps);
}

// Block b computes rows [b rows, (b + 1) rows). A thread has the same columns in all of them, so that it accumulates their dweight without
// a barrier, in shared memory, (D) float; at the end that goes to partial (blocks, D). Data needed after a barrier is prefetched before it.
// With n_i = x_i rstd and g_i = dy_i weight_i:
//     dx_i += (add) or = rstd (g_i - n_i mean(g n)),   dweight_i += dy_i n_i
template <int W>
__global__ void rmsnorm_backward_kernel(floatX *dx, float *partial, const floatX *dy, const floatX *x, const floatX *weight,
                                        const float *rstd, int64_t T, int64_t D, int64_t rows, bool add) {
    DYN_SHARED(float, shared);
    float *sums = shared, *dweight = shared + 32;
    int pieces = (int)D / W, first = (int)threadIdx.x, step = (int)blockDim.x;
    constexpr int V = W < 4 ? W : 4; // 16 bytes of float, next to those of the neighbouring threads: no bank conflicts
    auto sum = [&](int p, int k) -> float & { return dweight[V * p + k % V + k / V * (V * pieces)]; };
    for (int p = first; p < pieces; p += step)
        for (int k = 0; k < W; k++) sum(p, k) = 0;
    float share = 1 / (float)(pieces * W);
    int64_t end = (blockIdx.x + (int64_t)1) * rows;
    if (end > T) end = T;
    for (int64_t t = blockIdx.x * rows; t < end; t++) {
        const floatX *dy_row = dy + t * D, *x_row = x + t * D;
        floatX *dx_row = dx + t * D;
        float scale = rstd[t], dot = 0;
        for (int p = first; p < pieces; p += step) {
            float g[W], n[W], w[W];
            load<W>(g, dy_row + p * W);
            load<W>(n, x_row + p * W);
            load<W>(w, weight + p * W);
            if (add) prefetch(dx_row + p * W);
#pragma unroll
            for (int k = 0; k < W; k++) {
                n[k] *= scale;
                sum(p, k) += g[k] * n[k];
                dot += g[k] * w[k] * n[k];
            }
        }
        float back = block_sum(dot, sums) * share * scale;
        for (int p = first; p < pieces; p += step) {
            float g[W], n[W], w[W];
            load<W>(g, dy_row + p * W);
            load<W>(n, x_row + p * W);
            load<W>(w, weight + p * W);
            if (t + 1 < end) prefetch(dy_row + D + p * W);
            if (t + 1 < end) prefetch(x_row + D + p * W);
#pragma unroll
            for (int k = 0; k < W; k++) g[k] = scale * (g[k] * w[k] - n[k] * back);
            if (add) { // last: with 32 registers a thread, four blocks fit an SM
                load<W>(n, dx_row + p * W);
#pragma unroll
                for (int k = 0; k < W; k++) g[k] += n[k];
            }
            store<W>(dx_row + p * W, g);
        }
    }
    for (int p = first; p < pieces; p += step) {
        float part[W];
        for (int k = 0; k < W; k++) part[k] = sum(p, k);
        store<W>(partial + blockIdx.x * D + p * W, part);
    }
}
// dweight (D) += the partial sums (blocks, D). A block takes 32 columns, one per lane; a warp adds up every warps-th partial sum.
__global__ void rmsnorm_dweight_kernel(float *dweight, const float *partial, int blocks, int64_t D) {
    DYN_SHARED(float, sums); // (warps, 32)
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32;
    int64_t d = (int64_t)blockIdx.x * 32 + lane;
    float sum = 0;
#pragma unroll 16 // 16 loads at a time
    for (int b = d < D ? warp : blocks; b < blocks; b += warps) sum += partial[b * D + d];
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (warp > 0 || d >= D) return;
    sum = dweight[d];
    for (int w = 0; w < warps; w++) sum += sums[w * 32 + lane];
    dweight[d] = sum;
}

size_t op_rmsnorm_backward_scratch(int64_t T, int64_t D) { return sizeof(float) * (size_t)(min_i64(T, NORM_PARTS_GPU) * D); }
void op_rmsnorm_backward(floatX *dx, float *dweight, const floatX *dy, const floatX *x, const floatX *weight, const float *rstd, int64_t T,
                         int64_t D, bool add, void *scratch) {
    if (T == 0) return;
    int64_t rows = ceil_div(T, NORM_PARTS_GPU);
    int blocks = (int)ceil_div(T, rows); // none is empty
    float *partial = (float *)scratch;
    size_t shared = sizeof(float) * (size_t)(32 + D);
    if (packs(D, dx, dy, x, weight))
        LAUNCH(rmsnorm_backward_kernel<PACK>, blocks, block_size(D / PACK, 512), shared, dx, partial, dy, x, weight, rstd, T, D, rows, add);
    else
        LAUNCH(rmsnorm_backward_kernel<1>, blocks, block_size(D, 512), shared, dx, partial, dy, x, weight, rstd, T, D, rows, add);
    int threads = block_size(blocks * (int64_t)32, 512);
    LAUNCH(rmsnorm_dweight_kernel, grid_size(ceil_div(D, 32)), threads, sizeof(float) * (size_t)threads, dweight, partial, blocks, D);
}
