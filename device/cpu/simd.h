// One SIMD register of floats, through the compiler's vector extensions (gcc, clang): the width is what the target has.
// Products contract to fused multiply-add (-ffp-contract=fast).
#ifndef SIMD_H
#define SIMD_H

#include "../../common.h"

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

// Aligned like a float: any float address may be read as a register.
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t vec_bits __attribute__((vector_size(4 * LANES)));
typedef int32_t vec_mask __attribute__((vector_size(4 * LANES))); // what a comparison gives: all bits of a lane set, or none
typedef double vec_double __attribute__((vector_size(8 * LANES)));

static inline vec vec_load(const float *p) { return *(const vec *)p; }
static inline void vec_store(float *p, vec x) { *(vec *)p = x; }
static inline vec vec_set(float x) { return x - (vec){0}; }

// Loads the first n floats at p, zeros in the other lanes; stores the first n lanes. n >= LANES: all.
static inline vec vec_load_part(const float *p, int64_t n) {
    if (n >= LANES) return vec_load(p);
    vec x = {0};
    memcpy(&x, p, sizeof(float) * (size_t)n);
    return x;
}
static inline void vec_store_part(float *p, vec x, int64_t n) {
    if (n >= LANES) vec_store(p, x);
    else memcpy(p, &x, sizeof(float) * (size_t)n);
}

// Lane by lane: mask ? a : b. (C has no vector ?:, and loops over lanes become scalar code when they are inlined.)
static inline vec vec_select(vec_mask mask, vec a, vec b) { return (vec)(((vec_mask)a & mask) | ((vec_mask)b & ~mask)); }
static inline vec vec_max(vec a, vec b) { return vec_select(a > b, a, b); } // b where either is NaN
static inline float vec_max_lanes(vec x) {
    float a[LANES];
    memcpy(a, &x, sizeof a);
#pragma GCC unroll 4
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int l = 0; l < half; l++) a[l] = a[l] > a[l + half] ? a[l] : a[l + half];
    }
    return a[0];
}
// The sum of the lanes; halves are folded together, a fixed order.
static inline float vec_sum_lanes(vec x) {
    float a[LANES];
    memcpy(a, &x, sizeof a);
#pragma GCC unroll 4
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int l = 0; l < half; l++) a[l] += a[l + half];
    }
    return a[0];
}

// e^x for x <= 88, relative error below 1.2e-7. Below -64 it is 0 (e^-64 = 1.6e-28), so that no denormal numbers follow.
// x = n ln 2 + r with n whole and |r| <= ln(2)/2; a polynomial gives e^r, and 2^n is the float whose exponent bits are n + 127. Adding
// 1.5 * 2^23 + 127 rounds to a whole number and leaves n + 127 in the lowest bits of the sum. NaN stays NaN: it is multiplied, as a float.
static inline vec vec_exp(vec x) {
    const float to_whole = 0x1.8p23f + 127;
    vec shifted = x * 1.442695041f + to_whole;
    vec n = shifted - to_whole;
    vec r = x - n * 0.693359375f; // ln 2 in two parts, the first short enough that n * part is exact
    r = r + n * 2.12194440e-4f;
    vec p = r * 1.3814466867e-3f + 8.3687804184e-3f; // minimax on |r| <= 0.347, error 3e-9 before rounding
    p = p * r + 4.1668394215e-2f;
    p = p * r + 1.6666520108e-1f;
    p = p * r + 4.9999993412e-1f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    vec power = (vec)((vec_bits)shifted << 23);
    return vec_select(x < -64.0f, vec_set(0), p * power);
}

#endif
