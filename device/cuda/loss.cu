// Cross-entropy on a tile of logits. See device/ops.h.
#include "kernel.cuh"

// A sum of exponentials with the largest logit factored out: sum = sum of e^(x - largest).
struct softmax_sum {
    float largest, sum;
};
// Combines those of a warp's lanes into one over all their logits, the same bits in every lane.
static __device__ __forceinline__ softmax_sum warp_softmax(softmax_sum mine) {
    softmax_sum all = mine;
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) all.largest = fmaxf(all.largest, __shfl_xor_sync(0xffffffffu, all.largest, mask));
    all.sum = warp_sum(mine.sum == 0 ? 0.0f : mine.sum * fast_exp(mine.largest - all.largest)); // 0: no logit seen; NaN stays NaN
    return all;
}

// One block per row, which is read from memory only once: for the backward pass its first `kept` logits stay in shared memory until the
// gradient replaces them. The rest (a tenth of Llama-3's 128256 in bf16 on Hopper) is read again from cache, too small for two rows per SM.
constexpr int SUMS = 32; // one for each warp of the largest block

template <int W>
__global__ void __launch_bounds__(1024)
cross_entropy_kernel(float *losses, floatX *logits, const int32_t *labels, int64_t V, int kept, float scale, bool backward) {
    DYN_SHARED(softmax_sum, shared);
    floatX *row_kept = reinterpret_cast<floatX *>(shared + SUMS); // (kept)
    int64_t t = blockIdx.x;
    floatX *row = logits + t * V;
    int label = labels[t];
    int width = (int)V, first = (int)threadIdx.x * W, step = (int)blockDim.x * W;
    if (label < 0) { // ignored
        float zero[W];
        for (int k = 0; k < W; k++) zero[k] = 0;
        for (int v = first; backward && v < width; v += step) store<W>(row + v, zero);
        if (threadIdx.x == 0) losses[t] = 0;
        return;
    }
    float label_logit = to_float(row[label]); // before any thread overwrites it: a barrier follows
    softmax_sum mine = {-INFINITY, 0};
    constexpr int AT_A_TIME = 4;
    for (int begin = first; begin < width; begin += AT_A_TIME * step) {
        stored_piece<W> piece[AT_A_TIME];
        load_pieces<AT_A_TIME, W>(piece, row, begin, step, width);
#pragma unroll
        for (int n = 0; n < AT_A_TIME; n++) {
            int v = begin + n * step;
            if (v >= width) continue;
            if (v < kept) *reinterpret_cast<stored_piece<W> *>(row_kept + v) = piece[n];
            float x[W], largest = mine.largest;
            unpack<W>(x, piece[n]);
#pragma unroll
            for (int k = 0; k < W; k++) largest = fmaxf(largest, x[k]);
            if (largest > mine.largest) mine.sum *= fast_exp(mine.largest - largest);
            mine.largest = largest;
#pragma unroll
            for (int k = 0; k < W; k++) mine.sum += fast_exp2(fmaf(x[k], LOG2_E, -largest * LOG2_E));
        }
    }
    mine = warp_softmax(mine);
    int lane = (int)threadIdx.x % 32, warps = (int)blockDim.x / 32;
    if (lane == 0) shared[threadIdx.x / 32] = mine;
    __syncthreads();
    softmax_sum none = {-INFINITY, 0}, all = warp_softmax(lane < warps ? shared[lane] : none);
    if (threadIdx.x == 0) losses[t] = logf(all.sum) + all.largest - label_logit;
    if (!backward || first >= width) return;
    float factor = scale / all.sum, shift = -all.largest * LOG2_E;
    auto replace = [&](int v, const floatX *logits_at_v) {
        float x[W];
        load<W>(x, logits_at_v);
#pragma unroll
        for (int k = 0; k < W; k++) x[k] = fast_exp2(fmaf(x[k], LOG2_E, shift)) * factor;
        if (v <= label && label < v + W) {
#pragma unroll
            for (int k = 0; k < W; k++) // not x[label - v]: x must stay in registers
                if (v + k == label) x[k] -= scale;
        }
        store<W>(row + v, x);
    };
    int v = first + (width - 1 - first) / step * step; // backwards: the end of the row, which was not kept, was read last
    for (; v >= kept; v -= step) replace(v, row + v);
#pragma unroll 4
    for (; v >= 0; v -= step) replace(v, row_kept + v); // stored by this thread
}
void op_cross_entropy(float *losses, floatX *logits, const int32_t *labels, int64_t T, int64_t V, float scale, bool backward) {
    if (T == 0) return;
    size_t sums = sizeof(softmax_sum) * SUMS;
    int64_t fit = (int64_t)((device_shared_memory() - sums) / (PACK * sizeof(floatX))) * PACK, kept = backward ? min_i64(V, fit) : 0;
    size_t shared = sums + sizeof(floatX) * (size_t)kept;
    int most = 2 * V <= fit ? 512 : 1024; // two blocks on an SM where their rows fit: one's loads hide the other's sums
    if (packs(V, logits))
        LAUNCH(cross_entropy_kernel<PACK>, grid_size(T), block_size(V / PACK, most), shared, losses, logits, labels, V, (int)kept, scale,
               backward);
    else
        LAUNCH(cross_entropy_kernel<1>, grid_size(T), block_size(V, most), shared, losses, logits, labels, V, (int)kept, scale, backward);
}
