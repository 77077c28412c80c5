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

// One block to a row. The row is read once from memory: going backward, its first `kept` logits are in shared memory when the gradient takes
// their place, and the rest (of Llama-3's 128256 in bf16 on Hopper a tenth) comes from cache: two whole rows would not fit there for each SM.
constexpr int SUMS = 32; // one for each warp of the largest block

template <int W>
__global__ void __launch_bounds__(1024)
cross_entropy_kernel(float *losses, floatX *logits, const int32_t *labels, int64_t V, int64_t kept, float scale, bool backward) {
    DYN_SHARED(softmax_sum, shared);
    floatX *row_kept = reinterpret_cast<floatX *>(shared + SUMS); // (kept)
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
    constexpr int AT_A_TIME = 4;
    for (int64_t begin = first; begin < V; begin += AT_A_TIME * step) {
        stored_piece<W> piece[AT_A_TIME];
        load_pieces<AT_A_TIME, W>(piece, row, begin, step, V);
#pragma unroll
        for (int n = 0; n < AT_A_TIME; n++) {
            int64_t v = begin + n * step;
            if (v >= V) continue;
            if (v < kept) *reinterpret_cast<stored_piece<W> *>(row_kept + v) = piece[n];
            float x[W], largest = mine.largest;
            unpack<W>(x, piece[n]);
#pragma unroll
            for (int k = 0; k < W; k++) largest = fmaxf(largest, x[k]);
            if (largest > mine.largest) mine.sum *= expf(mine.largest - largest);
            mine.largest = largest;
#pragma unroll
            for (int k = 0; k < W; k++) mine.sum += expf(x[k] - largest);
        }
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
        if (v < kept) load<W>(x, row_kept + v); // this thread's own
        else load<W>(x, row + v);
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
    size_t sums = sizeof(softmax_sum) * SUMS;
    int64_t fit = (int64_t)((device_shared_memory() - sums) / (PACK * sizeof(floatX))) * PACK, kept = backward ? min_i64(V, fit) : 0;
    size_t shared = sums + sizeof(floatX) * (size_t)kept;
    if (packs(V, logits))
        LAUNCH(cross_entropy_kernel<PACK>, grid_size(T), block_size(V / PACK, 1024), shared, losses, logits, labels, V, kept, scale, backward);
    else
        LAUNCH(cross_entropy_kernel<1>, grid_size(T), block_size(V, 1024), shared, losses, logits, labels, V, kept, scale, backward);
}
