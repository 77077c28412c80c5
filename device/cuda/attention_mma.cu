// Hand-written attention on tensor cores: bf16, head sizes 64 and 128, any number of rows, packed documents. See attention_call.h.
//
// For what cuDNN does not take, above all short documents. All three kernels walk the same way: a block of 4 warps owns 64 rows of one side
// (queries; keys for dk and dv), 16 per warp, and goes over tiles of N columns, which are rows of the other side, loading the next tile
// while it computes the current one. Scores s (rows, columns) are the product of two tiles. They stay in registers, where they become
// weights, the left factor of the next product:
//     forward    weights p = e^(s - lse)                     out += p v
//     dq         weights ds = p (dout v^T - delta)           dq += ds k
//     dk, dv     the same transposed: rows are keys          dv += p^T dout, dk += ds^T q
// Weights are rounded to bf16, sums are float. No two blocks add to the same number, so every sum has a fixed order. (FlashAttention-2,
// arXiv 2307.08691, Algorithms 1 and 2; its backward kernel adds dq from many blocks instead of computing the scores twice.)
#include "attention_rows.cuh"

constexpr int ROWS = 64, THREADS = 128; // per block
constexpr float LN_2 = 0.6931471805599453f;

static __device__ __forceinline__ int lane_of_warp() { return (int)(threadIdx.x % 32); }
// Row and column of this lane's element e of 16 x 8 sums. See multiply_add in emulation.h.
static __device__ __forceinline__ int row_of(int e) { return lane_of_warp() / 4 + e / 2 * 8; }
static __device__ __forceinline__ int column_of(int e) { return lane_of_warp() % 4 * 2 + e % 2; }
static __device__ __forceinline__ float quad_sum(float x) { // over the lanes that share a row
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
static __device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

// ---- tiles (rows, HS) in shared memory ----

// Rows lie PITCH elements apart: an odd number of 16-byte pieces, so that 8 rows read at the same column touch every bank once.
template <int HS> constexpr int PITCH = HS + 8;

// Starts copying rows [first, first + COUNT) of one head to tile. From `end` on the last row is repeated; nothing of it is used.
template <int COUNT, int HS> __device__ __forceinline__ void tile_start(bf16 *tile, const bf16 *head, int64_t stride, int first, int end) {
    constexpr int PIECES = HS / 8; // per row; a thread copies the same piece of every THREADS / PIECES-th row
    int begin = (int)(threadIdx.x / PIECES), column = (int)(threadIdx.x % PIECES) * 8;
#pragma unroll
    for (int row = begin; row < begin + COUNT; row += THREADS / PIECES)
        copy_async<16>(tile + row * PITCH<HS> + column, head + min(first + row, end - 1) * stride + column);
}
// Starts copying numbers (n) = from [first, first + n), repeating the last one from `end` on.
static __device__ __forceinline__ void numbers_start(float *numbers, const float *from, int first, int end, int n) {
    if ((int)threadIdx.x < n) copy_async<4>(numbers + threadIdx.x, from + min(first + (int)threadIdx.x, end - 1));
}

// ---- the two products ----

template <int TILES> __device__ __forceinline__ void zero(float (&sum)[TILES][4]) {
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) sum[n][e] = 0;
}
// s (16, N) = rows columns^T; rows: this warp's part of a tile.
template <int HS, int N> __device__ __forceinline__ void scores(float (&s)[N / 8][4], const bf16 *rows, const bf16 *columns) {
    int lane = lane_of_warp();
    zero(s);
#pragma unroll
    for (int k = 0; k < HS; k += 16) {
        uint32_t a[4], b[4];
        load_matrices<false>(a, rows + lane % 16 * PITCH<HS> + k + lane / 16 * 8);
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            load_matrices<false>(b, columns + (16 * n + lane / 16 * 8 + lane % 8) * PITCH<HS> + k + lane / 8 % 2 * 8);
            multiply_add(s[2 * n], a, b[0], b[1]);
            multiply_add(s[2 * n + 1], a, b[2], b[3]);
        }
    }
}
// sum (16, HS) += weights (16, N) columns (N, HS). Each lane already holds the weights that it must supply as the left factor.
template <int HS, int N>
__device__ __forceinline__ void accumulate(float (&sum)[HS / 8][4], const float (&weights)[N / 8][4], const bf16 *columns) {
    int lane = lane_of_warp();
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
        uint32_t a[4], b[4];
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = bf16_pair(weights[2 * k + i / 2][i % 2 * 2], weights[2 * k + i / 2][i % 2 * 2 + 1]);
#pragma unroll
        for (int n = 0; n < HS / 16; n++) {
            load_matrices<true>(b, columns + (16 * k + lane % 16) * PITCH<HS> + 16 * n + lane / 16 * 8);
            multiply_add(sum[2 * n], a, b[0], b[1]);
            multiply_add(sum[2 * n + 1], a, b[2], b[3]);
        }
    }
}

struct alignas(8) two_floats {
    float x, y;
};
// The two floats at `to` = scale_old * (their old values) + scale_new * (x, y); scale_old 0: the old values are not read.
static __device__ __forceinline__ void store_two(float *to, float x, float y, float scale_new, float scale_old) {
    two_floats *at = reinterpret_cast<two_floats *>(to), before = {0, 0};
    if (scale_old != 0) before = *at;
    before.x = x * scale_new + before.x * scale_old;
    before.y = y * scale_new + before.y * scale_old;
    *at = before;
}
// Rows [first, ...) of a head, those before `end`, = or += (add) factor * sum.
template <int HS>
__device__ __forceinline__ void rows_to_global(float *head, int64_t stride, const float (&sum)[HS / 8][4], float factor, int first, int end,
                                               bool add) {
#pragma unroll
    for (int e = 0; e < 4; e += 2) {
        int row = first + row_of(e);
        if (row >= end) continue;
#pragma unroll
        for (int n = 0; n < HS / 8; n++)
            store_two(head + row * stride + 8 * n + column_of(0), sum[n][e], sum[n][e + 1], factor, add ? 1 : 0);
    }
}

// ---- what is visible ----

// Query row i sees key rows [first_key, key_end).
static __device__ __forceinline__ int first_key(const attention_block &b, int i) { return (int)attention_first_visible(b, i); }
static __device__ __forceinline__ int key_end(const attention_block &b, int i) { return b.causal && i + 1 < b.Tk ? i + 1 : (int)b.Tk; }

// Sets the scores of invisible pairs to -infinity. s (16, N): rows from `row`, columns from `column`; KEYS: rows are keys, columns queries.
template <bool KEYS, int N> __device__ __forceinline__ void hide(float (&s)[N / 8][4], const attention_block &b, int row, int column) {
    constexpr int QUERIES = KEYS ? N / 4 : 2; // per lane: columns 8 n + column_of(e), or rows; what each sees is computed once
#pragma unroll
    for (int i = 0; i < QUERIES; i++) {
        int query = KEYS ? column + i / 2 * 8 + column_of(i % 2) : row + row_of(2 * i), from = (int)b.Tk, end = key_end(b, query);
        if (query < b.Tq) from = first_key(b, query);
#pragma unroll
        for (int k = 0; k < (KEYS ? 2 : N / 4); k++) {
            int n = KEYS ? i / 2 : k / 2, e = KEYS ? 2 * k + i % 2 : 2 * i + k % 2;
            int key = KEYS ? row + row_of(e) : column + 8 * n + column_of(e);
            if (key < from || key >= end) s[n][e] = -INFINITY;
        }
    }
}
// lse as a logarithm to base 2, for e^(s - lse) by fast_exp2. -infinity (a row that sees nothing) becomes finite, or s - lse would be NaN.
static __device__ __forceinline__ float lse_units(float lse) { return fmaxf(lse * LOG2_E, -1e38f); }

// ---- forward ----

template <int HS> constexpr int FORWARD_COLUMNS = HS == 64 ? 64 : 32; // three or more blocks fit an SM, of an A100 too

// Block (x, y): 64 query rows of head y, the last rows (which see most keys) first.
template <int HS> __global__ void __launch_bounds__(THREADS)
attention_forward_mma_kernel(float *out, float *lse, const bf16 *q, const bf16 *k, const bf16 *v, attention_block b, bool merge) {
    constexpr int N = FORWARD_COLUMNS<HS>, TILE = N * PITCH<HS>;
    DYN_SHARED(bf16, shared);
    bf16 *qs = shared, *ks = qs + ROWS * PITCH<HS>, *vs = ks + 2 * TILE; // ks, vs: two tiles each, the one in use and the next
    int head = (int)blockIdx.y, kv_head = head / (b.Hq / b.Hkv), Tq = (int)b.Tq, Tk = (int)b.Tk;
    int first = (int)(gridDim.x - 1 - blockIdx.x) * ROWS, mine = (int)(threadIdx.x / 32) * 16;
    auto start = [&](int key, int stage) {
        tile_start<N, HS>(ks + stage * TILE, k + kv_head * HS, b.kv_stride, key, Tk);
        tile_start<N, HS>(vs + stage * TILE, v + kv_head * HS, b.kv_stride, key, Tk);
    };
    // Of two rows. largest: times log2 e; total: of this lane's columns.
    float sum[HS / 8][4], largest[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
    int all_from = first_key(b, min(first + ROWS, Tq) - 1), end = key_end(b, first + ROWS - 1), stage = 0, j = first_key(b, first);
    zero(sum);
    tile_start<ROWS, HS>(qs, q + head * HS, b.q_stride, first, Tq);
    start(j, 0);
    for (; j < end; j += N, stage ^= 1) {
        copy_async_wait();
        __syncthreads(); // every thread's copies have arrived, and all threads are done with the previous tile
        if (j + N < end) start(j + N, stage ^ 1);
        float s[N / 8][4];
        scores<HS, N>(s, qs + mine * PITCH<HS>, ks + stage * TILE);
        if (j < all_from || j + N > key_end(b, first)) hide<false, N>(s, b, first + mine, j);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float top = -INFINITY;
#pragma unroll
            for (int n = 0; n < N / 8; n++) top = fmaxf(top, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
            top = fmaxf(largest[h], quad_max(top) * (b.scale * LOG2_E));
            float base = top == -INFINITY ? 0.0f : top, keep = fast_exp2(largest[h] - base), added = 0;
            largest[h] = top;
#pragma unroll
            for (int n = 0; n < N / 8; n++)
#pragma unroll
                for (int e = 2 * h; e < 2 * h + 2; e++) added += s[n][e] = fast_exp2(s[n][e] * (b.scale * LOG2_E) - base);
            total[h] = total[h] * keep + added;
#pragma unroll
            for (int n = 0; n < HS / 8; n++)
#pragma unroll
                for (int e = 2 * h; e < 2 * h + 2; e++) sum[n][e] *= keep;
        }
        accumulate<HS, N>(sum, s, vs + stage * TILE);
    }
    copy_async_wait(); // for a block that sees no key
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int i = first + mine + row_of(2 * h);
        float all = quad_sum(total[h]), scale_old = 0;
        bool any = all != 0; // true for NaN, too
        float scale_new = any ? 1 / all : 0.0f;
        float lse_new = any ? largest[h] * LN_2 + logf(all) : -INFINITY, *lse_at = lse + head * b.lse_stride + i;
        if (merge) {
            float lse_old = i < Tq ? *lse_at : -INFINITY, weight_new;
            __syncwarp(); // all lanes of the row have read lse
            lse_new = merge_weights(lse_old, lse_new, &scale_old, &weight_new);
            scale_new *= weight_new;
        }
        if (i >= Tq) continue;
        if (column_of(0) == 0) *lse_at = lse_new;
        float *row = out + i * b.sum_stride + head * HS + column_of(0);
#pragma unroll
        for (int n = 0; n < HS / 8; n++) store_two(row + 8 * n, sum[n][2 * h], sum[n][2 * h + 1], scale_new, scale_old);
    }
}

// ---- backward ----

// Block (x, y): dq of 64 query rows of head y, the last rows first.
template <int HS> __global__ void __launch_bounds__(THREADS)
attention_dq_mma_kernel(float *dq, const bf16 *q, const bf16 *k, const bf16 *v, const bf16 *dout, const float *lse, const float *delta,
                        attention_block b, bool add) {
    constexpr int N = 32, TILE = N * PITCH<HS>;
    DYN_SHARED(bf16, shared);
    bf16 *qs = shared, *os = qs + ROWS * PITCH<HS>, *ks = os + ROWS * PITCH<HS>, *vs = ks + 2 * TILE;
    int head = (int)blockIdx.y, kv_head = head / (b.Hq / b.Hkv), Tq = (int)b.Tq, Tk = (int)b.Tk;
    int first = (int)(gridDim.x - 1 - blockIdx.x) * ROWS, mine = (int)(threadIdx.x / 32) * 16;
    auto start = [&](int key, int stage) {
        tile_start<N, HS>(ks + stage * TILE, k + kv_head * HS, b.kv_stride, key, Tk);
        tile_start<N, HS>(vs + stage * TILE, v + kv_head * HS, b.kv_stride, key, Tk);
    };
    float sum[HS / 8][4], row_lse[2], row_delta[2];
    int all_from = first_key(b, min(first + ROWS, Tq) - 1), end = key_end(b, first + ROWS - 1), stage = 0, j = first_key(b, first);
    zero(sum);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int i = first + mine + row_of(2 * h);
        row_lse[h] = i < Tq ? lse_units(lse[head * b.lse_stride + i]) : 0.0f;
        row_delta[h] = i < Tq ? delta[head * b.lse_stride + i] : 0.0f;
    }
    tile_start<ROWS, HS>(qs, q + head * HS, b.q_stride, first, Tq);
    tile_start<ROWS, HS>(os, dout + head * HS, b.q_stride, first, Tq);
    start(j, 0);
    for (; j < end; j += N, stage ^= 1) {
        copy_async_wait();
        __syncthreads();
        if (j + N < end) start(j + N, stage ^ 1);
        float s[N / 8][4], dp[N / 8][4];
        scores<HS, N>(s, qs + mine * PITCH<HS>, ks + stage * TILE);
        scores<HS, N>(dp, os + mine * PITCH<HS>, vs + stage * TILE);
        if (j < all_from || j + N > key_end(b, first)) hide<false, N>(s, b, first + mine, j);
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[n][e] = fast_exp2(s[n][e] * (b.scale * LOG2_E) - row_lse[e / 2]) * (dp[n][e] - row_delta[e / 2]);
        accumulate<HS, N>(sum, s, ks + stage * TILE);
    }
    copy_async_wait();
    rows_to_global<HS>(dq + head * HS, b.sum_stride, sum, b.scale, first + mine, Tq, add);
}

// Block (x, y): dk and dv of 64 key rows of key/value head y, over all its query heads in their order.
template <int HS> __global__ void __launch_bounds__(THREADS)
attention_dkv_mma_kernel(float *dk, float *dv, const bf16 *q, const bf16 *k, const bf16 *v, const bf16 *dout, const float *lse,
                         const float *delta, attention_block b, bool add) {
    constexpr int N = 32, TILE = N * PITCH<HS>;
    DYN_SHARED(bf16, shared);
    bf16 *ks = shared, *vs = ks + ROWS * PITCH<HS>, *qs = vs + ROWS * PITCH<HS>, *os = qs + 2 * TILE;
    float *lses = reinterpret_cast<float *>(os + 2 * TILE), *deltas = lses + 2 * N;
    int kv_head = (int)blockIdx.y, group = b.Hq / b.Hkv, Tq = (int)b.Tq, Tk = (int)b.Tk;
    int first = (int)blockIdx.x * ROWS, mine = (int)(threadIdx.x / 32) * 16;
    float sum_k[HS / 8][4], sum_v[HS / 8][4];
    zero(sum_k);
    zero(sum_v);
    tile_start<ROWS, HS>(ks, k + kv_head * HS, b.kv_stride, first, Tk);
    tile_start<ROWS, HS>(vs, v + kv_head * HS, b.kv_stride, first, Tk);
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
        auto start = [&](int query, int stage) {
            tile_start<N, HS>(qs + stage * TILE, q + head * HS, b.q_stride, query, Tq);
            tile_start<N, HS>(os + stage * TILE, dout + head * HS, b.q_stride, query, Tq);
            numbers_start(lses + stage * N, lse + head * b.lse_stride, query, Tq, N);
            numbers_start(deltas + stage * N, delta + head * b.lse_stride, query, Tq, N);
        };
        int i = b.causal ? first : 0, stage = 0;
        __syncthreads(); // all threads are done with the previous head
        start(i, 0);
        for (; i < Tq && first_key(b, i) < first + ROWS; i += N, stage ^= 1) {
            copy_async_wait();
            __syncthreads();
            if (i + N < Tq) start(i + N, stage ^ 1);
            float s[N / 8][4], dp[N / 8][4];
            scores<HS, N>(s, ks + mine * PITCH<HS>, qs + stage * TILE);
            scores<HS, N>(dp, vs + mine * PITCH<HS>, os + stage * TILE);
            if (i + N > Tq || first_key(b, i + N - 1) > first || first + ROWS > key_end(b, i)) hide<true, N>(s, b, first + mine, i);
#pragma unroll
            for (int n = 0; n < N / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int column = stage * N + 8 * n + column_of(e);
                    s[n][e] = fast_exp2(s[n][e] * (b.scale * LOG2_E) - lse_units(lses[column]));
                    dp[n][e] = s[n][e] * (dp[n][e] - deltas[column]);
                }
            accumulate<HS, N>(sum_v, s, os + stage * TILE);
            accumulate<HS, N>(sum_k, dp, qs + stage * TILE);
        }
        copy_async_wait(); // for a tile that was started, but sees nothing
    }
    rows_to_global<HS>(dk + kv_head * HS, b.kv_stride, sum_k, b.scale, first + mine, Tk, add);
    rows_to_global<HS>(dv + kv_head * HS, b.kv_stride, sum_v, 1, first + mine, Tk, add);
}

// ---- launchers ----

static bool addresses_fit(uintptr_t bits, int multiple) { return bits % (uintptr_t)multiple == 0; }
// bf16, a supported head size, inputs that can be read 16 bytes at a time. (Callers check that outputs can be written 8 bytes at a time.)
static bool takes(attention_block b, const void *q, const void *k, const void *v, const void *dout) {
    uintptr_t bits = (uintptr_t)q | (uintptr_t)k | (uintptr_t)v | (uintptr_t)dout;
    return sizeof(floatX) == sizeof(bf16) && (b.HS == 64 || b.HS == 128) && b.Tq > 0 && b.Tk > 0 && b.Tq <= INT32_MAX - 256 &&
           b.Tk <= INT32_MAX - 256 && b.q_stride % 8 == 0 && b.kv_stride % 8 == 0 && addresses_fit(bits, 16);
}
static const bf16 *as_bf16(const floatX *x) { return (const bf16 *)x; } // after takes()

static size_t tiles_bytes(int HS, int rows) { return sizeof(bf16) * (size_t)(rows * (HS + 8)); }

bool attention_mma_forward(float *out, float *lse, const floatX *q, const floatX *k, const floatX *v, attention_block b, bool merge) {
    if (!takes(b, q, k, v, nullptr) || b.sum_stride % 2 != 0 || !addresses_fit((uintptr_t)out, 8)) return false;
    auto forward_mma_kernel = b.HS == 64 ? attention_forward_mma_kernel<64> : attention_forward_mma_kernel<128>;
    dim3 grid(grid_size(ceil_div(b.Tq, ROWS)), (unsigned)b.Hq);
    size_t tiles = tiles_bytes(b.HS, ROWS + 4 * (b.HS == 64 ? FORWARD_COLUMNS<64> : FORWARD_COLUMNS<128>));
    LAUNCH(forward_mma_kernel, grid, THREADS, tiles, out, lse, as_bf16(q), as_bf16(k), as_bf16(v), b, merge);
    return true;
}
bool attention_mma_backward(float *dq, float *dk, float *dv, const floatX *q, const floatX *k, const floatX *v, const floatX *dout,
                            const float *lse, const float *delta, attention_block b, bool add_dq, bool add_dkv) {
    uintptr_t written = (uintptr_t)dq | (uintptr_t)dk | (uintptr_t)dv;
    if (!takes(b, q, k, v, dout) || b.sum_stride % 2 != 0 || !addresses_fit(written, 8)) return false;
    auto dq_mma_kernel = b.HS == 64 ? attention_dq_mma_kernel<64> : attention_dq_mma_kernel<128>;
    auto dkv_mma_kernel = b.HS == 64 ? attention_dkv_mma_kernel<64> : attention_dkv_mma_kernel<128>;
    dim3 q_grid(grid_size(ceil_div(b.Tq, ROWS)), (unsigned)b.Hq), k_grid(grid_size(ceil_div(b.Tk, ROWS)), (unsigned)b.Hkv);
    size_t tiles = tiles_bytes(b.HS, 2 * ROWS + 4 * 32);
    LAUNCH(dq_mma_kernel, q_grid, THREADS, tiles, dq, as_bf16(q), as_bf16(k), as_bf16(v), as_bf16(dout), lse, delta, b, add_dq);
    LAUNCH(dkv_mma_kernel, k_grid, THREADS, tiles + 4 * 32 * sizeof(float), dk, dv, as_bf16(q), as_bf16(k), as_bf16(v), as_bf16(dout), lse,
           delta, b, add_dkv);
    return true;
}
