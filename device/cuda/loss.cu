// Cross-entropy on a tile of logits. See device/ops.h.
#include "kernel.cuh"

// The sum of exponentials with the largest logit taken out: sum e^(x - largest). Two of them join into one of all their logits.
struct softmax_sum {
    float largest, sum;
};
static __device__ __forceinline__ softmax_sum softmax_join(softmax_sum a, softmax_sum b) {
    softmax_sum r;
    r.largest = fmaxf(a.largest, b.largest);
    if (r.largest == -INFINITY) { // neither has seen a logit above -inf
        r.sum = 0;
        return r;
    }
    r.sum = a.sum * expf(a.largest - r.largest) + b.sum * expf(b.largest - r.largest);
    return r;
}
static __device__ __forceinline__ softmax_sum softmax_shuffle(softmax_sum a, int mask) {
    softmax_sum r;
    r.largest = __shfl_xor_sync(0xffffffffu, a.largest, mask);
    r.sum = __shfl_xor_sync(0xffffffffu, a.sum, mask);
    return r;
}

// One block to a row. The row is read once for the sum and, going backward, once more (from cache) for the gradient in its place.
template <int W>
__global__ void cross_entropy_kernel(float *losses, floatX *logits, const int32_t *labels, int64_t V, float scale, bool backward) {
    DYN_SHARED(softmax_sum, shared); // (warps)
    int64_t t = blockIdx.x;
    floatX *row = logits + t * V;
    int label = labels[t];
    int64_t first = (int64_t)threadIdx.x * W, step = (int64_t)blockDim.x * W;
    if (label < 0) { // ignored
        float zero[W];
        for (int k = 0; k < W; k++) zero[k] = 0;
        for (int64_t v = first; backward && v < V; v += step) store<W>(row + v, zero);
        if (threadIdx.x == 0) losses[t] = 0;
        return;
    }
    float label_logit = to_float(row[label]); // before any thread overwrites it: two barriers follow
    softmax_sum mine = {-INFINITY, 0};
    for (int64_t v = first; v < V; v += step) {
        float x[W], largest = mine.largest;
        load<W>(x, row + v);
#pragma unroll
        for (int k = 0; k < W; k++) largest = fmaxf(largest, x[k]);
        if (largest > mine.largest) mine.sum *= expf(mine.largest - largest);
        mine.largest = largest;
#pragma unroll
        for (int k = 0; k < W; k++) mine.sum += expf(x[k] - largest);
    }
    for (int mask = 16; mask > 0; mask /= 2) mine = softmax_join(mine, softmax_shuffle(mine, mask));
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = mine;
    __syncthreads();
    softmax_sum all = shared[0];
    for (int w = 1; w < (int)blockDim.x / 32; w++) all = softmax_join(all, shared[w]);
    if (threadIdx.x == 0) losses[t] = logf(all.sum) + all.largest - label_logit;
    if (!backward) return;
    float factor = scale / all.sum;
    for (int64_t v = first; v < V; v += step) {
        float x[W];
        load<W>(x, row + v);
#pragma unroll
        for (int k = 0; k < W; k++) {
            x[k] = expf(x[k] - all.largest) * factor;
            if (v + k == label) x[k] -= scale;
        }
        store<W>(row + v, x);
    }
}
void op_cross_entropy(float *losses, floatX *logits, const int32_t *labels, int64_t T, int64_t V, float scale, bool backward) {
    if (T == 0) return;
    size_t shared = sizeof(softmax_sum) * 32;
    if (packs(V, logits))
        LAUNCH(cross_entropy_kernel<PACK>, grid_size(T), block_size(V / PACK, 1024), shared, losses, logits, labels, V, scale, backward);
    else
        LAUNCH(cross_entropy_kernel<1>, grid_size(T), block_size(V, 1024), shared, losses, logits, labels, V, scale, backward);
}
