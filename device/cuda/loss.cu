// Cross-entropy on a tile of logits. See device/ops.h.
#include "kernel.cuh"

#include <cfloat>

// A sum of exponentials with the largest logit factored out: sum = sum of e^(x - largest). The difference is rounded first: multiplied out,
// as x log2(e) - largest log2(e), it would lose all its digits for large logits. NaN is never the largest, but stays in the sum.
struct softmax_sum {
    float largest, sum;
};
constexpr float NO_LOGIT = -FLT_MAX; // the largest before the first one. Finite: logits may be -infinity, and -infinity less itself is NaN
// Combines those of a warp's lanes into one over all their logits, the same bits in every lane.
static __device__ __forceinline__ softmax_sum warp_softmax(softmax_sum mine) {
    softmax_sum all = mine;
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) all.largest = fmaxf(all.largest, __shfl_xor_sync(0xffffffffu, all.largest, mask));
    all.sum = warp_sum(mine.sum * fast_exp(mine.largest - all.largest));
    return all;
}

// A block takes ROWS rows, one after another. The first `kept` logits of a row stay in shared memory until the gradient replaces them, and
// as it does, copies of the next row's start to the same places, in PARTS: the sum over a part begins when it has arrived, while the others
// are on their way. So memory is read while the block computes, and once. The rest (a tenth of Llama-3's 128256 in bf16 on Hopper) is
// prefetched and read again from cache, which is too small for two rows per SM.
constexpr int SUMS = 32; // one for each warp of the largest block
constexpr int ROWS = 4, PARTS = 4;

template <int W>
__global__ void __launch_bounds__(1024)
cross_entropy_kernel(float *losses, floatX *logits, const int32_t *labels, int64_t T, int64_t V, int kept, float scale, bool backward) {
    DYN_SHARED(softmax_sum, shared);
    floatX *row_kept = reinterpret_cast<floatX *>(shared + SUMS); // (kept); each thread uses the pieces that it copies
    int width = (int)V, first = (int)threadIdx.x * W, step = (int)blockDim.x * W;
    int lane = (int)threadIdx.x % 32, warps = (int)blockDim.x / 32;
    int64_t begin = (int64_t)blockIdx.x * ROWS, end = min_i64(begin + ROWS, T);
    auto read_row = [&](int64_t t) { return t < end && labels[t] >= 0 ? logits + t * V : nullptr; }; // nullptr: there is nothing to read
    auto fetch = [&](const floatX *row, int v) {
        if (row == nullptr) return;
        if (v >= kept) prefetch(row + v);
        else if constexpr (W > 1) copy_async<16>(row_kept + v, row + v);
        else row_kept[v] = row[v];
    };
    int part = (kept + PARTS * step - 1) / (PARTS * step) * step;
    auto for_kept = [&](auto &&f) { // calls f for this thread's pieces; their copies are PARTS groups, whatever is copied
#pragma unroll 1 // unrolled, for sm_90 it would spill a register
        for (int p = 0; p < PARTS; p++) {
            for (int v = p * part + first; v < min(kept, (p + 1) * part); v += step) f(v);
            copy_async_group();
        }
    };
    int rest = first; // of this thread
    while (rest < kept) rest += step;
    const floatX *next = read_row(begin);
    for_kept([&](int v) { fetch(next, v); });
    for (int64_t t = begin; t < end; t++) {
        floatX *row = logits + t * V;
        int label = labels[t];
        next = read_row(t + 1);
        if (label < 0) { // ignored
            float zero[W] = {0};
            auto clear = [&](int v) {
                store<W>(row + v, zero);
                fetch(next, v);
            };
            for_kept(clear);
            for (int v = rest; backward && v < width; v += step) clear(v);
            if (threadIdx.x == 0) losses[t] = 0;
            continue;
        }
        float label_logit = to_float(row[label]); // before any thread overwrites it: a barrier follows
        softmax_sum mine = {NO_LOGIT, 0};
        auto add = [&](const float (&x)[W]) {
            float largest = mine.largest;
#pragma unroll
            for (int k = 0; k < W; k++) largest = fmaxf(largest, x[k]);
            if (largest > mine.largest) mine.sum *= fast_exp(mine.largest - largest);
            mine.largest = largest;
#pragma unroll
            for (int k = 0; k < W; k++) mine.sum += fast_exp(x[k] - largest);
        };
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            copy_async_wait_but(PARTS - 1 - p);
            for (int v = p * part + first; v < min(kept, (p + 1) * part); v += step) {
                float x[W];
                load<W>(x, row_kept + v);
                add(x);
            }
        }
        constexpr int AT_A_TIME = 4;
        for (int v = rest; v < width; v += AT_A_TIME * step) {
            stored_piece<W> piece[AT_A_TIME];
            load_pieces<AT_A_TIME, W>(piece, row, v, step, width);
#pragma unroll
            for (int n = 0; n < AT_A_TIME; n++) {
                if (v + n * step >= width) continue;
                float x[W];
                unpack<W>(x, piece[n]);
                add(x);
            }
        }
        mine = warp_softmax(mine);
        __syncthreads(); // all threads have read the sums of the row before
        if (lane == 0) shared[threadIdx.x / 32] = mine;
        __syncthreads();
        softmax_sum none = {NO_LOGIT, 0}, all = warp_softmax(lane < warps ? shared[lane] : none);
        if (threadIdx.x == 0) losses[t] = logf(all.sum) + (all.largest - label_logit);
        if (!backward) continue;
        float factor = scale / all.sum;
        auto replace = [&](int v, const floatX *logits_at_v) {
            float x[W];
            load<W>(x, logits_at_v);
#pragma unroll
            for (int k = 0; k < W; k++) x[k] = fast_exp(x[k] - all.largest) * factor;
            if (v <= label && label < v + W) {
#pragma unroll
                for (int k = 0; k < W; k++) // not x[label - v]: x must stay in registers
                    if (v + k == label) x[k] -= scale;
            }
            store<W>(row + v, x);
            fetch(next, v); // to the same place, after its last use
        };
        for_kept([&](int v) { replace(v, row_kept + v); });
        for (int v = rest; v < width; v += step) replace(v, row + v);
    }
}
void op_cross_entropy(float *losses, floatX *logits, const int32_t *labels, int64_t T, int64_t V, float scale, bool backward) {
    if (T == 0) return;
    size_t sums = sizeof(softmax_sum) * SUMS;
    int64_t fit = (int64_t)((device_shared_memory() - sums) / (PACK * sizeof(floatX))) * PACK, kept = backward ? min_i64(V, fit) : 0;
    size_t shared = sums + sizeof(floatX) * (size_t)kept;
    int most = 2 * V <= fit ? 512 : 1024; // two blocks on an SM where their rows fit: one's loads hide the other's sums
    unsigned blocks = grid_size(ceil_div(T, ROWS));
    if (packs(V, logits))
        LAUNCH(cross_entropy_kernel<PACK>, blocks, block_size(V / PACK, most), shared, losses, logits, labels, T, V, (int)kept, scale,
               backward);
    else
        LAUNCH(cross_entropy_kernel<1>, blocks, block_size(V, most), shared, losses, logits, labels, T, V, (int)kept, scale, backward);
}
