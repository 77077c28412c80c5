// SwiGLU. See device/ops.h. A block computes part of one row, so that a thread needs no 64-bit division.
#include "kernel.cuh"

// This thread's place: row t, column c; false beyond the row's end.
template <int W> __device__ __forceinline__ bool row_place(int64_t F, int blocks_per_row, int64_t *t, int64_t *c) {
    *t = blockIdx.x / (unsigned)blocks_per_row;
    *c = ((int64_t)(blockIdx.x % (unsigned)blocks_per_row) * blockDim.x + threadIdx.x) * W;
    return *c < F;
}

template <int W> __global__ void swiglu_forward_kernel(floatX *act, const floatX *gate_up, int64_t F, int blocks_per_row) {
    int64_t t, c;
    if (!row_place<W>(F, blocks_per_row, &t, &c)) return;
    float gate[W], up[W];
    load<W>(gate, gate_up + t * 2 * F + c);
    load<W>(up, gate_up + t * 2 * F + F + c);
#pragma unroll
    for (int k = 0; k < W; k++) up[k] *= gate[k] * sigmoid(gate[k]);
    store<W>(act + t * F + c, up);
}
// silu(g) = g s with s = 1 / (1 + e^-g);  silu'(g) = s (1 + g (1 - s))
template <int W>
__global__ void swiglu_backward_kernel(floatX *dgate_up, floatX *act, const floatX *dact, const floatX *gate_up, int64_t F,
                                       int blocks_per_row) {
    int64_t t, c;
    if (!row_place<W>(F, blocks_per_row, &t, &c)) return;
    float gate[W], up[W], d[W];
    load<W>(gate, gate_up + t * 2 * F + c);
    load<W>(up, gate_up + t * 2 * F + F + c);
    load<W>(d, dact + t * F + c);
#pragma unroll
    for (int k = 0; k < W; k++) {
        float s = sigmoid(gate[k]), g = gate[k];
        gate[k] = d[k] * up[k] * s * (1 + g * (1 - s));
        float silu = g * s, a = up[k] * silu;
        up[k] = d[k] * silu;
        d[k] = a;
    }
    store<W>(act + t * F + c, d);
    store<W>(dgate_up + t * 2 * F + c, gate);
    store<W>(dgate_up + t * 2 * F + F + c, up);
}

void op_swiglu_forward(floatX *act, const floatX *gate_up, int64_t T, int64_t F) {
    if (T == 0) return;
    bool packed = packs(F, act, gate_up);
    int64_t items = packed ? F / PACK : F;
    int threads = block_size(items, 256), per_row = (int)ceil_div(items, threads);
    if (packed) LAUNCH(swiglu_forward_kernel<PACK>, grid_size(T * per_row), threads, 0, act, gate_up, F, per_row);
    else LAUNCH(swiglu_forward_kernel<1>, grid_size(T * per_row), threads, 0, act, gate_up, F, per_row);
}
void op_swiglu_backward(floatX *dgate_up, floatX *act, const floatX *dact, const floatX *gate_up, int64_t T, int64_t F) {
    if (T == 0) return;
    bool packed = packs(F, dgate_up, act, dact, gate_up);
    int64_t items = packed ? F / PACK : F;
    int threads = block_size(items, 256), per_row = (int)ceil_div(items, threads);
    if (packed) LAUNCH(swiglu_backward_kernel<PACK>, grid_size(T * per_row), threads, 0, dgate_up, act, dact, gate_up, F, per_row);
    else LAUNCH(swiglu_backward_kernel<1>, grid_size(T * per_row), threads, 0, dgate_up, act, dact, gate_up, F, per_row);
}
