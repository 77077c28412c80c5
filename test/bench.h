// What bench_ops, bench_cuda and gpu_points share.
#ifndef BENCH_H
#define BENCH_H

#include "../device/ops.h"
#include "test.h"

static inline int compare_doubles(const void *a, const void *b) { // for qsort
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
// Causal attention of T tokens; the values of a token follow its keys.
static inline attention_block block_of(int64_t T, int Hq, int Hkv, int HS) {
    attention_block b = {.Tq = T, .Tk = T, .lse_stride = T, .Hq = Hq, .Hkv = Hkv, .HS = HS, .q_stride = (int64_t)Hq * HS,
                         .sum_stride = (int64_t)Hq * HS, .kv_stride = (int64_t)2 * Hkv * HS, .scale = 1 / sqrtf((float)HS), .causal = true};
    return b;
}

#endif
