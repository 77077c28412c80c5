// Shared by the hand-written attention kernels: which keys a row sees, and how two results for a row are merged.
#ifndef ATTENTION_ROWS_CUH
#define ATTENTION_ROWS_CUH

#include "attention_call.h"
#include "kernel.cuh"

// The first key row that query row i sees (attention_first_key); 0 from Tq on. Up to there it never decreases with i, so a tile of queries
// skips all key tiles before the one that its first row sees first.
static __device__ __forceinline__ int64_t attention_first_visible(const attention_block &b, int64_t i) {
    if (b.documents.first == nullptr || i >= b.Tq) return 0;
    return attention_first_key(&b.documents, b.documents.first[i], b.Tk);
}

// The weights (of sum 1) of two results whose log-sum-exps are a and b; returns the merged log-sum-exp. -infinity: no key seen, weight 0.
// NaN, which fmaxf drops, makes all three NaN.
static __device__ __forceinline__ float merge_weights(float a, float b, float *weight_a, float *weight_b) {
    float top = fmaxf(a, b);
    *weight_a = *weight_b = 0;
    if (a == -INFINITY && b == -INFINITY) return top;
    float e_a = expf(a - top), e_b = expf(b - top), sum = e_a + e_b;
    *weight_a = e_a / sum;
    *weight_b = e_b / sum;
    return top + logf(sum);
}

#endif
