// Hand-written attention: flash-style forward and backward kernels in float, the merge of two blocks, and delta. See device/ops.h.
//
// DEVICE=emulated computes attention with them, and cuDNN's results are checked against them: simplicity before speed. A thread block of
// P R threads holds a tile of R rows and walks over tiles of R rows of the other side. P neighbouring threads share a row; thread `part` of
// them accumulates columns part, part + P, ... of its result. No two thread blocks add to the same number, so every sum has a fixed order.
#include "attention_rows.cuh"

// ---- tiles ----

// tile (R, pitch) = rows [first, first + R) of one head, times factor; rows from `end` on are 0. All threads of the block must call it.
template <int R>
__device__ __forceinline__ void tile_load(float *tile, const floatX *head, int64_t stride, int64_t first, int64_t end, int HS, int packed,
                                          float factor) {
    int width = packed ? PACK : 1, pieces = HS / width, pitch = HS + 1;
    for (int item = (int)threadIdx.x; item < R * pieces; item += (int)blockDim.x) {
        int row = item / pieces, d = item % pieces * width;
        bool inside = first + row < end;
        const floatX *from = head + (first + row) * stride + d;
        float *to = tile + row * pitch + d;
        if (packed) {
            float x[PACK];
            load_some<PACK>(x, from, inside ? PACK : 0);
#pragma unroll
            for (int k = 0; k < PACK; k++) to[k] = x[k] * factor;
        } else {
            to[0] = inside ? to_float(from[0]) * factor : 0.0f;
        }
    }
}
static __device__ __forceinline__ float dot(const float *a, const float *b, int n) {
    float sum = 0;
    for (int d = 0; d < n; d++) sum += a[d] * b[d];
    return sum;
}
// sum (columns part, part + P, ...) += factor * row
template <int P, int COLUMNS>
__device__ __forceinline__ void add_row(float (&sum)[COLUMNS], float factor, const float *row, int part, int HS) {
#pragma unroll
    for (int n = 0; n < COLUMNS; n++)
        if (part + P * n < HS) sum[n] += factor * row[part + P * n];
}
// row = sum, or += sum
template <int P, int COLUMNS>
__device__ __forceinline__ void to_global(float *row, const float (&sum)[COLUMNS], int part, int HS, bool add) {
#pragma unroll
    for (int n = 0; n < COLUMNS; n++)
        if (part + P * n < HS) row[part + P * n] = sum[n] + (add ? row[part + P * n] : 0.0f);
}

// ---- forward ----

// Block (x, y): query rows [x R, (x + 1) R) of head y.
template <int HS_MAX, int R, int P>
__global__ void __launch_bounds__(P * R, 1)
    attention_forward_kernel(float *out, float *lse, const floatX *q, const floatX *k, const floatX *v, attention_block b, bool merge,
                             int packed) {
    DYN_SHARED(float, shared);
    int HS = b.HS, pitch = HS + 1, head = (int)blockIdx.y, kv_head = head / (b.Hq / b.Hkv);
    float *qs = shared, *ks = qs + R * pitch, *vs = ks + R * pitch, *ps = vs + R * pitch; // (R, pitch) three times, (R, R + 1)
    int row = (int)threadIdx.x / P, part = (int)threadIdx.x % P;
    int64_t first = (int64_t)blockIdx.x * R, i = first + row;
    float *mine = ps + row * (R + 1); // this row's scores, then probabilities
    float sum[HS_MAX / P], largest = -INFINITY, total = 0;
    for (int n = 0; n < HS_MAX / P; n++) sum[n] = 0;
    tile_load<R>(qs, q + head * HS, b.q_stride, first, b.Tq, HS, packed, b.scale);
    int64_t from = attention_first_visible(b, i);
    for (int64_t j0 = attention_first_visible(b, first) / R * R; j0 < b.Tk && (!b.causal || j0 < first + R); j0 += R) {
        __syncthreads(); // all threads are done with the previous tiles
        tile_load<R>(ks, k + kv_head * HS, b.kv_stride, j0, b.Tk, HS, packed, 1);
        tile_load<R>(vs, v + kv_head * HS, b.kv_stride, j0, b.Tk, HS, packed, 1);
        __syncthreads();
        for (int c = part; c < R; c += P) {
            bool visible = j0 + c < b.Tk && j0 + c >= from && (!b.causal || j0 + c <= i);
            mine[c] = visible ? dot(qs + row * pitch, ks + c * pitch, HS) : -INFINITY;
        }
        __syncwarp();
        float before = largest;
        for (int c = 0; c < R; c++) largest = fmaxf(largest, mine[c]);
        __syncwarp(); // all P threads have read the scores
        for (int c = part; c < R; c += P) mine[c] = mine[c] == -INFINITY ? 0.0f : expf(mine[c] - largest);
        __syncwarp();
        float keep = before == -INFINITY ? 0.0f : expf(before - largest);
        total *= keep;
        for (int n = 0; n < HS_MAX / P; n++) sum[n] *= keep;
        for (int c = 0; c < R; c++) {
            total += mine[c];
            add_row<P>(sum, mine[c], vs + c * pitch, part, HS);
        }
    }
    bool exists = i < b.Tq;
    float *lse_at = lse + head * b.lse_stride + i, *out_row = out + i * b.sum_stride + head * HS;
    bool any = total != 0; // true for NaN, too
    float lse_new = any ? largest + logf(total) : -INFINITY, scale_new = any ? 1 / total : 0.0f, scale_old = 0;
    if (merge) {
        float lse_old = exists ? *lse_at : -INFINITY, weight_new;
        __syncwarp(); // all P threads have read lse
        lse_new = merge_weights(lse_old, lse_new, &scale_old, &weight_new);
        scale_new *= weight_new;
    }
    if (!exists) return;
    if (part == 0) *lse_at = lse_new;
#pragma unroll
    for (int n = 0; n < HS_MAX / P; n++) {
        int d = part + P * n;
        if (d < HS) out_row[d] = sum[n] * scale_new + (scale_old != 0 ? out_row[d] * scale_old : 0.0f);
    }
}

// ---- backward: p = e^(s - lse), ds = p (dout v^T - delta) scale ----

// Block (x, y): dq of query rows [x R, (x + 1) R) of head y: dq (+)= ds k.
template <int HS_MAX, int R, int P> __global__ void __launch_bounds__(P * R, 1)
attention_dq_kernel(float *dq, const floatX *q, const floatX *k, const floatX *v, const floatX *dout, const float *lse, const float *delta,
                    attention_block b, int packed, bool add) {
    DYN_SHARED(float, shared);
    int HS = b.HS, pitch = HS + 1, head = (int)blockIdx.y, kv_head = head / (b.Hq / b.Hkv);
    float *qs = shared, *ks = qs + R * pitch, *vs = ks + R * pitch, *os = vs + R * pitch, *ds = os + R * pitch;
    int row = (int)threadIdx.x / P, part = (int)threadIdx.x % P;
    int64_t first = (int64_t)blockIdx.x * R, i = first + row;
    float *mine = ds + row * (R + 1);
    float sum[HS_MAX / P];
    for (int n = 0; n < HS_MAX / P; n++) sum[n] = 0;
    float row_lse = i < b.Tq ? lse[head * b.lse_stride + i] : 0.0f, row_delta = i < b.Tq ? delta[head * b.lse_stride + i] : 0.0f;
    tile_load<R>(qs, q + head * HS, b.q_stride, first, b.Tq, HS, packed, b.scale);
    tile_load<R>(os, dout + head * HS, b.q_stride, first, b.Tq, HS, packed, 1);
    int64_t from = attention_first_visible(b, i);
    for (int64_t j0 = attention_first_visible(b, first) / R * R; j0 < b.Tk && (!b.causal || j0 < first + R); j0 += R) {
        __syncthreads();
        tile_load<R>(ks, k + kv_head * HS, b.kv_stride, j0, b.Tk, HS, packed, 1);
        tile_load<R>(vs, v + kv_head * HS, b.kv_stride, j0, b.Tk, HS, packed, 1);
        __syncthreads();
        for (int c = part; c < R; c += P) {
            bool visible = j0 + c < b.Tk && j0 + c >= from && (!b.causal || j0 + c <= i);
            float p = visible ? expf(dot(qs + row * pitch, ks + c * pitch, HS) - row_lse) : 0.0f;
            mine[c] = p * (dot(os + row * pitch, vs + c * pitch, HS) - row_delta) * b.scale;
        }
        __syncwarp();
        for (int c = 0; c < R; c++) add_row<P>(sum, mine[c], ks + c * pitch, part, HS);
    }
    if (i < b.Tq) to_global<P>(dq + i * b.sum_stride + head * HS, sum, part, HS, add);
}

// Block (x, y): dk and dv of key rows [x R, (x + 1) R) of key/value head y, over all its query heads in their order:
// dk (+)= ds^T q, dv (+)= p^T dout.
template <int HS_MAX, int R, int P>
__global__ void __launch_bounds__(P * R, 1)
    attention_dkv_kernel(float *dk, float *dv, const floatX *q, const floatX *k, const floatX *v, const floatX *dout, const float *lse,
                         const float *delta, attention_block b, int packed, bool add) {
    DYN_SHARED(float, shared);
    int HS = b.HS, pitch = HS + 1, kv_head = (int)blockIdx.y, group = b.Hq / b.Hkv;
    float *ks = shared, *vs = ks + R * pitch, *qs = vs + R * pitch, *os = qs + R * pitch, *ps = os + R * pitch, *ds = ps + R * (R + 1);
    float *lses = ds + R * (R + 1), *deltas = lses + R;
    int row = (int)threadIdx.x / P, part = (int)threadIdx.x % P;
    int64_t first = (int64_t)blockIdx.x * R, j = first + row;
    float *my_p = ps + row * (R + 1), *my_ds = ds + row * (R + 1);
    float sum_k[HS_MAX / P], sum_v[HS_MAX / P];
    for (int n = 0; n < HS_MAX / P; n++) sum_k[n] = sum_v[n] = 0;
    tile_load<R>(ks, k + kv_head * HS, b.kv_stride, first, b.Tk, HS, packed, b.scale);
    tile_load<R>(vs, v + kv_head * HS, b.kv_stride, first, b.Tk, HS, packed, 1);
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
        for (int64_t i0 = b.causal ? first : 0; i0 < b.Tq && attention_first_visible(b, i0) < first + R; i0 += R) {
            __syncthreads();
            tile_load<R>(qs, q + head * HS, b.q_stride, i0, b.Tq, HS, packed, 1);
            tile_load<R>(os, dout + head * HS, b.q_stride, i0, b.Tq, HS, packed, 1);
            if (threadIdx.x < R) {
                int64_t i = i0 + threadIdx.x;
                lses[threadIdx.x] = i < b.Tq ? lse[head * b.lse_stride + i] : 0.0f;
                deltas[threadIdx.x] = i < b.Tq ? delta[head * b.lse_stride + i] : 0.0f;
            }
            __syncthreads();
            for (int c = part; c < R; c += P) {
                bool visible = i0 + c < b.Tq && j >= attention_first_visible(b, i0 + c) && (!b.causal || j <= i0 + c);
                float p = visible ? expf(dot(ks + row * pitch, qs + c * pitch, HS) - lses[c]) : 0.0f;
                my_p[c] = p;
                my_ds[c] = p * (dot(vs + row * pitch, os + c * pitch, HS) - deltas[c]) * b.scale;
            }
            __syncwarp();
            for (int c = 0; c < R; c++) {
                add_row<P>(sum_v, my_p[c], os + c * pitch, part, HS);
                add_row<P>(sum_k, my_ds[c], qs + c * pitch, part, HS);
            }
        }
    }
    if (j >= b.Tk) return;
    to_global<P>(dk + j * b.kv_stride + kv_head * HS, sum_k, part, HS, add);
    to_global<P>(dv + j * b.kv_stride + kv_head * HS, sum_v, part, HS, add);
}

// ---- launchers: up to head size 128 tiles of 32 rows, 4 threads per row; above, tiles of 16 rows, 8 threads per row ----

static void attention_check(attention_block b) {
    if (b.HS < 1 || b.HS > 256 || b.Hkv < 1 || b.Hq % b.Hkv != 0)
        comm_abort("attention: head size %d (1 to 256), %d query heads on %d key/value heads", b.HS, b.Hq, b.Hkv);
}
static int attention_packed(attention_block b, const void *q, const void *k, const void *v, const void *dout) {
    return packs(b.HS, q, k, v, dout) && b.q_stride % PACK == 0 && b.kv_stride % PACK == 0;
}
static size_t tiles_bytes(int R, int HS, int tiles, int squares) { // plus lse and delta
    return sizeof(float) * (size_t)(tiles * R * (HS + 1) + squares * R * (R + 1) + 2 * R);
}

void attention_kernel_forward(float *out, float *lse, const floatX *q, const floatX *k, const floatX *v, attention_block b, bool merge) {
    attention_check(b);
    if (b.Tq == 0) return;
    int packed = attention_packed(b, q, k, v, nullptr), R = b.HS <= 128 ? 32 : 16;
    auto forward_kernel = b.HS <= 64    ? attention_forward_kernel<64, 32, 4>
                          : b.HS <= 128 ? attention_forward_kernel<128, 32, 4>
                                        : attention_forward_kernel<256, 16, 8>;
    dim3 grid(grid_size(ceil_div(b.Tq, R)), (unsigned)b.Hq);
    LAUNCH(forward_kernel, grid, 128, tiles_bytes(R, b.HS, 3, 1), out, lse, q, k, v, b, merge, packed);
}
void attention_kernel_backward(float *dq, float *dk, float *dv, const floatX *q, const floatX *k, const floatX *v, const floatX *dout,
                               const float *lse, const float *delta, attention_block b, bool add_dq, bool add_dkv) {
    attention_check(b);
    int packed = attention_packed(b, q, k, v, dout), R = b.HS <= 128 ? 32 : 16;
    auto dq_kernel = b.HS <= 64    ? attention_dq_kernel<64, 32, 4>
                     : b.HS <= 128 ? attention_dq_kernel<128, 32, 4>
                                   : attention_dq_kernel<256, 16, 8>;
    auto dkv_kernel = b.HS <= 64    ? attention_dkv_kernel<64, 32, 4>
                      : b.HS <= 128 ? attention_dkv_kernel<128, 32, 4>
                                    : attention_dkv_kernel<256, 16, 8>;
    dim3 q_grid(grid_size(max_i64(1, ceil_div(b.Tq, R))), (unsigned)b.Hq);
    dim3 k_grid(grid_size(max_i64(1, ceil_div(b.Tk, R))), (unsigned)b.Hkv);
    if (b.Tq > 0) LAUNCH(dq_kernel, q_grid, 128, tiles_bytes(R, b.HS, 4, 1), dq, q, k, v, dout, lse, delta, b, packed, add_dq);
    if (b.Tk > 0) LAUNCH(dkv_kernel, k_grid, 128, tiles_bytes(R, b.HS, 4, 2), dk, dv, q, k, v, dout, lse, delta, b, packed, add_dkv);
}

// ---- merge and delta ----

// One block per token. Each thread computes the weights of its elements' heads itself: all that it needs is then loaded at once.
template <int W, bool MERGE>
__global__ void attention_merge_kernel(float *out, float *lse, const floatX *out_b, const float *lse_b, int H, int HS, int64_t stride,
                                       int64_t lse_stride, int64_t lse_stride_b) {
    int64_t t = blockIdx.x;
    auto weights = [&](int h, float *a, float *b) { // of out and of out_b; returns the log-sum-exp of both
        float added = lse_b[h * lse_stride_b + t];
        if constexpr (MERGE) return merge_weights(lse[h * lse_stride + t], added, a, b);
        *a = 0, *b = added == -INFINITY ? 0 : 1;
        return added;
    };
    for (int i = (int)threadIdx.x * W; i < H * HS; i += (int)blockDim.x * W) {
        float x[W] = {0}, y[W], a, b;
        if constexpr (MERGE) load<W>(x, out + t * stride + i);
        load<W>(y, out_b + t * H * HS + i);
        weights(i / HS, &a, &b);
#pragma unroll
        for (int k = 0; k < W; k++) x[k] = (a != 0 ? a * x[k] : 0.0f) + (b != 0 ? b * y[k] : 0.0f);
        store<W>(out + t * stride + i, x);
    }
    __syncthreads(); // all threads have read lse
    for (int h = (int)threadIdx.x; h < H; h += (int)blockDim.x) {
        float a, b;
        lse[h * lse_stride + t] = weights(h, &a, &b);
    }
}
void attention_merge(float *out, float *lse, const floatX *out_b, const float *lse_b, int64_t T, int H, int HS, int64_t stride,
                     int64_t lse_stride, int64_t lse_stride_b, bool merge) {
    bool packed = HS % FLOAT_PACK == 0 && stride % FLOAT_PACK == 0 && aligned16(out) && aligned16(out_b);
    auto merge_kernel = packed ? (merge ? attention_merge_kernel<FLOAT_PACK, true> : attention_merge_kernel<FLOAT_PACK, false>)
                               : (merge ? attention_merge_kernel<1, true> : attention_merge_kernel<1, false>);
    LAUNCH(merge_kernel, grid_size(T), block_size(H * HS / (packed ? FLOAT_PACK : 1), 256), 0, out, lse, out_b, lse_b, H, HS, stride,
           lse_stride, lse_stride_b);
}

template <int W>
__global__ void attention_sum_heads_kernel(float *to, const floatX *from, int64_t n, int width, int members, int HS, int64_t stride,
                                           bool add) {
    int64_t i;
    if (flat_range<W>(n, &i) == 0) return;
    float *at = to + i / width * stride + i % width, sum[W], x[W];
    const floatX *first = from + i / HS * members * HS + i % HS;
    load<W>(sum, first);
#pragma unroll 4
    for (int m = 1; m < members; m++) {
        load<W>(x, first + m * HS);
#pragma unroll
        for (int k = 0; k < W; k++) sum[k] += x[k];
    }
    if (add) {
        load<W>(x, at);
#pragma unroll
        for (int k = 0; k < W; k++) sum[k] += x[k];
    }
    store<W>(at, sum);
}
void attention_sum_heads(float *to, const floatX *from, int64_t T, int heads, int members, int HS, int64_t stride, bool add) {
    int width = heads * HS;
    LAUNCH_FLAT(attention_sum_heads_kernel, PACK, HS % PACK == 0 && stride % 4 == 0 && aligned16(to) && aligned16(from), T * width, to,
                from, T * width, width, members, HS, stride, add);
}

__global__ void attention_lse_copy_kernel(float *to, const float *from, int64_t n, int64_t rows, int64_t known, int64_t to_stride,
                                          int64_t from_stride) {
    int64_t i;
    if (flat_range<1>(n, &i) == 0) return;
    to[i / rows * to_stride + i % rows] = i % rows < known ? from[i / rows * from_stride + i % rows] : 1e30f;
}
void attention_lse_copy(float *to, const float *from, int heads, int64_t rows, int64_t known, int64_t to_stride, int64_t from_stride) {
    int64_t n = heads * rows;
    int threads = block_size(n, 256);
    if (n > 0)
        LAUNCH(attention_lse_copy_kernel, grid_size(ceil_div(n, threads)), threads, 0, to, from, n, rows, known, to_stride, from_stride);
}

// One block per token. `lanes` neighbouring threads, a power of two up to 32, share a head.
template <int W> __global__ void attention_delta_kernel(float *delta, const floatX *out, const floatX *dout, attention_block b, int lanes) {
    int64_t t = blockIdx.x;
    int part = (int)threadIdx.x % lanes;
    for (int first = 0; first < b.Hq; first += (int)blockDim.x / lanes) {
        int h = first + (int)threadIdx.x / lanes;
        int64_t at = t * b.q_stride + h * b.HS;
        float sum = 0;
        for (int d = part * W; h < b.Hq && d < b.HS; d += lanes * W) {
            float x[W], y[W];
            load<W>(x, out + at + d);
            load<W>(y, dout + at + d);
#pragma unroll
            for (int k = 0; k < W; k++) sum += x[k] * y[k];
        }
        for (int offset = lanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        if (part == 0 && h < b.Hq) delta[h * b.lse_stride + t] = sum;
    }
}
void op_attention_delta(float *delta, const floatX *out, const floatX *dout, attention_block b) {
    if (b.Tq == 0) return;
    bool packed = packs(b.HS, out, dout) && b.q_stride % PACK == 0;
    auto delta_kernel = packed ? attention_delta_kernel<PACK> : attention_delta_kernel<1>;
    int lanes = 32, width = packed ? PACK : 1;
    while (lanes / 2 * width >= b.HS) lanes /= 2;
    LAUNCH(delta_kernel, grid_size(b.Tq), block_size(b.Hq * lanes, 256), 0, delta, out, dout, b, lanes);
}
