// What all kernels use: 16-byte loads into float registers, sums over warps and blocks, grid arithmetic in 64 bits.
#ifndef KERNEL_CUH
#define KERNEL_CUH

#include "emulation.h"

#include <type_traits>

#ifdef __CUDACC__
#include <cuda_bf16.h>
#endif

// ---- numbers as stored and as computed with ----

static __device__ __forceinline__ float to_float(float x) { return x; }
template <class E> __device__ __forceinline__ E from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }

static __device__ __forceinline__ float to_float(bf16 x) { return float_of_bf16(x.bits); }
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x) {
    bf16 r;
#ifdef __CUDACC__
    r.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x)); // one instruction
#else
    r.bits = bf16_of_float(x);
#endif
    return r;
}

// Two numbers as bf16, the first in the lower half.
static __device__ __forceinline__ uint32_t bf16_pair(float low, float high) {
#ifdef __CUDACC__
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high); // one instruction
    uint32_t bits;
    memcpy(&bits, &pair, 4);
    return bits;
#else
    return (uint32_t)from_float<bf16>(low).bits | (uint32_t)from_float<bf16>(high).bits << 16;
#endif
}

// 2^x in one instruction; exp2f takes four, for results below 2^-126, which are 0 here. Relative error: some 2^-22.
static __device__ __forceinline__ float fast_exp2(float x) {
#ifdef __CUDACC__
    asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
#else
    return exp2f(x);
#endif
}
constexpr float LOG2_E = 1.4426950408889634f;
// e^x in two instructions; expf takes eight, too many for a memory-bound kernel. Relative error: some (|x| + 4) 2^-24.
static __device__ __forceinline__ float fast_exp(float x) { return fast_exp2(x * LOG2_E); }
// 1 / (1 + e^-x), in four instructions.
static __device__ __forceinline__ float sigmoid(float x) {
    float below = 1 + fast_exp(-x);
#ifdef __CUDACC__
    asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(below));
    return below;
#else
    return 1 / below;
#endif
}

// ---- loads and stores of W contiguous elements: one instruction per 16 bytes where W elements fill them, per 8 bytes for 4 bf16 ----

template <int BYTES> struct alignas(BYTES) chunk {
    uint32_t words[BYTES / 4];
};
constexpr int PACK = 16 / (int)sizeof(floatX); // floatX in 16 bytes: W of a kernel's fast variant (the slow one has 1)
constexpr int FLOAT_PACK = 4;                  // where most of the traffic is float: a warp's instruction then covers whole sectors
template <int W, class E> constexpr int CHUNK_BYTES = W * sizeof(E) % 16 == 0 ? 16 : W == 4 ? 8 : 0; // 0: element by element

template <class E> __device__ __forceinline__ void from_word(float *x, uint32_t word) { // 1 float or 2 bf16
    if constexpr (sizeof(E) == 4) {
        memcpy(x, &word, 4);
    } else {
        uint32_t low = word << 16, high = word & 0xffff0000u;
        memcpy(x, &low, 4);
        memcpy(x + 1, &high, 4);
    }
}
template <class E> __device__ __forceinline__ uint32_t to_word(const float *x) {
    uint32_t word;
    if constexpr (sizeof(E) == 4) memcpy(&word, x, 4);
    else word = bf16_pair(x[0], x[1]);
    return word;
}
template <int W, class E> __device__ __forceinline__ void load(float (&x)[W], const E *from) {
    constexpr int BYTES = CHUNK_BYTES<W, E>, IN_WORD = 4 / (int)sizeof(E);
    if constexpr (BYTES > 0) {
#pragma unroll
        for (int at = 0; at < W; at += BYTES / (int)sizeof(E)) {
            chunk<BYTES> piece = *reinterpret_cast<const chunk<BYTES> *>(from + at);
#pragma unroll
            for (int i = 0; i < BYTES / 4; i++) from_word<E>(x + at + i * IN_WORD, piece.words[i]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < W; i++) x[i] = to_float(from[i]);
    }
}
template <int W, class E> __device__ __forceinline__ void store(E *to, const float (&x)[W]) { // to global memory
    constexpr int BYTES = CHUNK_BYTES<W, E>, IN_WORD = 4 / (int)sizeof(E);
    if constexpr (BYTES > 0) {
#pragma unroll
        for (int at = 0; at < W; at += BYTES / (int)sizeof(E)) {
            uint32_t words[BYTES / 4];
#pragma unroll
            for (int i = 0; i < BYTES / 4; i++) words[i] = to_word<E>(x + at + i * IN_WORD);
            store_words(to + at, words);
        }
    } else {
#pragma unroll
        for (int i = 0; i < W; i++) to[i] = from_float<E>(x[i]);
    }
}

// The same for the last, shorter piece of a row: elements from `count` on are loaded as 0 and not stored.
template <int W, class E> __device__ __forceinline__ void load_some(float (&x)[W], const E *from, int count) {
    if (count >= W) {
        load<W>(x, from);
    } else {
#pragma unroll
        for (int i = 0; i < W; i++) x[i] = i < count ? to_float(from[i]) : 0.0f;
    }
}
template <int W, class E> __device__ __forceinline__ void store_some(E *to, const float (&x)[W], int count) {
    if (count >= W) {
        store<W>(to, x);
    } else {
#pragma unroll
        for (int i = 0; i < W; i++) // not up to `count`: x must stay in registers
            if (i < count) to[i] = from_float<E>(x[i]);
    }
}

// Loads N pieces of W elements of a row, unconverted: at begin, begin + step, ..., those before `end`. A kernel with few threads per SM
// loads several before it uses the first, or it would wait for memory most of the time.
template <int W> using stored_piece = std::conditional_t<W == 1, floatX, chunk<16>>;
template <int N, int W>
__device__ __forceinline__ void load_pieces(stored_piece<W> (&piece)[N], const floatX *row, int begin, int step, int end) {
#pragma unroll
    for (int n = 0; n < N; n++)
        if (begin + n * step < end) piece[n] = *reinterpret_cast<const stored_piece<W> *>(row + begin + n * step);
}
template <int W> __device__ __forceinline__ void unpack(float (&x)[W], const stored_piece<W> &piece) {
    load<W>(x, reinterpret_cast<const floatX *>(&piece));
}

// Host: may rows of `width` elements at these addresses be read in steps of PACK?
static inline bool aligned16(const void *p) { return ((uintptr_t)p & 15) == 0; }
static inline bool packs(int64_t width, const void *a, const void *b = nullptr, const void *c = nullptr, const void *d = nullptr,
                         const void *e = nullptr) {
    return width % PACK == 0 && aligned16(a) && aligned16(b) && aligned16(c) && aligned16(d) && aligned16(e);
}

// ---- sums: the order is fixed by the number of threads ----

template <class T> __device__ __forceinline__ T warp_sum(T x) { // the same bits in every lane
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}
// The sum over a block, in every thread. `shared`: blockDim.x / 32 elements that nothing else uses.
template <class T> __device__ __forceinline__ T block_sum(T x, T *shared) {
    int warps = (int)blockDim.x / 32, lane = (int)threadIdx.x % 32;
    x = warp_sum(x);
    if (warps == 1) return x;
    __syncthreads(); // all threads have read the previous sum
    if (lane == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_sum(lane < warps ? shared[lane] : 0);
}

// ---- grids ----

// Flat work of n elements, W per thread: where this thread starts, and how many elements it has (W, fewer at the end, 0 beyond it).
template <int W> __device__ __forceinline__ int flat_range(int64_t n, int64_t *begin) {
    *begin = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
    int64_t left = n - *begin;
    return left >= W ? W : left > 0 ? (int)left : 0;
}

// Threads of a block for `items` independent pieces of work, at most `most`: whole warps, no more than needed.
int block_size(int64_t items, int most);
// The number of blocks, checked: grid.x holds 2^31 - 1.
unsigned grid_size(int64_t blocks);

// Launches a kernel<W> over n elements: W = pack when all addresses allow it, else 1. n == 0: nothing.
#define LAUNCH_FLAT(kernel, pack, all_aligned, n, ...)                                                                           \
    do {                                                                                                                         \
        int threads = block_size(ceil_div(n, pack), 256);                                                                        \
        if ((n) == 0) break;                                                                                                     \
        if (all_aligned) {                                                                                                       \
            LAUNCH(kernel<pack>, grid_size(ceil_div(n, (int64_t)pack * threads)), threads, 0, __VA_ARGS__);                      \
        } else {                                                                                                                 \
            LAUNCH(kernel<1>, grid_size(ceil_div(n, (int64_t)threads)), threads, 0, __VA_ARGS__);                                \
        }                                                                                                                        \
    } while (0)

#endif
