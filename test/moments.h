// op_adamw with bf16 moments, on any device (test_ops, test_kernels): every bit by the element's own draw, whatever the call's first
// element; right in the mean; v follows with beta2 = 0.999, where rounding to nearest would leave it where it is.
#ifndef TEST_MOMENTS_H
#define TEST_MOMENTS_H

#include "../device/ops.h"
#include "test.h"

typedef struct {
    floatX *param;
    float *master, *grad;
    bf16 *m, *v;
} moments_case;

static moments_case moments_new(int64_t n) { // all zero
    size_t bytes = sizeof(float) * (size_t)n;
    moments_case c = {(floatX *)device_alloc(bytes), (float *)device_alloc(bytes), (float *)device_alloc(bytes),
                      (bf16 *)device_alloc(bytes / 2), (bf16 *)device_alloc(bytes / 2)};
    if (c.param == NULL || c.master == NULL || c.grad == NULL || c.m == NULL || c.v == NULL) exit(EXIT_FAILED);
    device_zero(c.param, bytes);
    device_zero(c.master, bytes);
    device_zero(c.grad, bytes);
    device_zero(c.m, bytes / 2);
    device_zero(c.v, bytes / 2);
    device_synchronize();
    return c;
}
static void moments_free(moments_case *c) {
    device_free(c->param);
    device_free(c->master);
    device_free(c->grad);
    device_free(c->m);
    device_free(c->v);
}
static bf16 moments_bf16(double x) { // that bf16 represents
    bf16 r = {(uint16_t)(bits_of_float((float)x) >> 16)};
    return r;
}
static double moments_double(bf16 x) { return (double)float_of_bf16(x.bits); }
// Powers of two, with which the numbers below stay exact in float.
static adamw_args moments_args(int64_t step) {
    adamw_args args = {.lr = 0.01f, .beta1 = 0.5f, .beta2 = 0.75f, .eps = 1e-8f, .weight_decay = 0.1f, .grad_scale = 1,
                       .step = step, .bf16_moments = true};
    args.rounding.seed = 9;
    args.rounding.tensor = 4;
    return args;
}

// Two calls for two parts of a tensor; offset: elements before the first that lie in front of its address, 1: no address is a multiple of
// 16. m and v are exact before they are rounded, so they are known to the bit; master is within 1e-6 of double precision: it never sees a
// rounded moment of its own step.
static void moments_check_bits(int64_t n, int64_t cut, int offset) {
    enum { FIRST = 37, STEP = 3 };
    moments_case c = moments_new(n + offset);
    double *p = HOST_NEW(double, n), *m = HOST_NEW(double, n), *v = HOST_NEW(double, n), worst = 0;
    uint64_t key = test_mix(test_mix(test_mix(9) ^ 4) ^ STEP);
    adamw_args args = moments_args(STEP);
    for (int64_t i = 0; i < n; i++) {
        double g = floor(127 * test_random(1, (uint64_t)i)) / 64, m0 = floor(255 * test_random(2, (uint64_t)i)) / 256;
        double v0 = floor(1 + fabs(254 * test_random(3, (uint64_t)i))) / 256;
        p[i] = (double)(float)test_random(4, (uint64_t)i);
        c.grad[offset + i] = (float)g, c.master[offset + i] = (float)p[i];
        c.m[offset + i] = moments_bf16(m0), c.v[offset + i] = moments_bf16(v0);
        m[i] = 0.5 * m0 + 0.5 * g;
        v[i] = 0.75 * v0 + 0.25 * g * g;
        double mean = m[i] / (1 - pow(0.5, STEP)), square = v[i] / (1 - pow(0.75, STEP));
        p[i] -= (double)args.lr * (mean / (sqrt(square) + (double)args.eps) + (double)args.weight_decay * p[i]);
    }
    for (int64_t at = 0, count; at < n; at += count) {
        count = at == 0 ? cut : n - at;
        args.rounding.first = FIRST + at;
        op_adamw(c.param + offset + at, c.master + offset + at, c.m + offset + at, c.v + offset + at, c.grad + offset + at, count, args);
    }
    device_synchronize();
    int64_t wrong[2] = {0, 0};
    for (int64_t i = 0; i < n; i++) {
        uint64_t draws = test_mix(key ^ (uint64_t)(FIRST + i));
        wrong[0] += c.m[offset + i].bits != (bits_of_float((float)m[i]) + (uint32_t)(draws >> 16 & 0xffff)) >> 16;
        wrong[1] += c.v[offset + i].bits != (bits_of_float((float)v[i]) + (uint32_t)(draws >> 32 & 0xffff)) >> 16;
        worst = test_worse(worst, fabs((double)c.master[offset + i] - p[i]));
    }
    CHECK(wrong[0] == 0 && wrong[1] == 0, "bf16 moments, n %lld, offset %d: %lld of m and %lld of v are rounded by another draw",
          (long long)n, offset, (long long)wrong[0], (long long)wrong[1]);
    CHECK(worst <= 1e-6, "bf16 moments, n %lld, offset %d: parameters are off by %g", (long long)n, offset, worst);
    free(p), free(m), free(v);
    moments_free(&c);
}

// What is not finite stays so, whatever the draw; a carry out of the mantissa of all ones would make it -0.
static void moments_check_not_finite(void) {
    enum { N = 1000 };
    moments_case c = moments_new(2 * N);
    for (int i = 0; i < 2 * N; i++) c.grad[i] = float_of_bits(i < N ? 0x7fffffffu : 0x7f800000u); // NaN, infinity
    op_adamw(c.param, c.master, c.m, c.v, c.grad, 2 * N, moments_args(1));
    device_synchronize();
    int64_t wrong = 0;
    for (int i = 0; i < 2 * N; i++) {
        double m = moments_double(c.m[i]), v = moments_double(c.v[i]);
        wrong += i < N ? !isnan(m) || !isnan(v) : !(isinf(m) && isinf(v) && m > 0 && v > 0);
    }
    CHECK(wrong == 0, "bf16 moments: %lld of %d gradients that are not finite are lost", (long long)wrong, 2 * N);
    moments_free(&c);
}

// Many elements with the same numbers. Each moment is one of the two neighbours of the exact one, at most 2^-7 of it away, and in the mean
// it is the exact one, to 5 standard deviations of the share that is rounded away from zero. m's draws say nothing about v's, nor about
// those of the parameter's low 16 bits.
static void moments_check_mean(void) {
    enum { DRAWS = 20000 };
    moments_case c = moments_new(DRAWS);
    const double unit = 1.0 / 128; // between neighbours in [1, 2)
    for (int f = 0; f <= 8; f++) {
        double sign = f % 2 == 0 ? 1 : -1, m0 = sign * (1 + 5 * unit), g = 2 * sign * (1 + 5 * unit + f / 8.0 * unit) - m0;
        double v0 = 1 + (double)f * unit;
        const double exact[2] = {0.5 * m0 + 0.5 * g, 0.75 * v0 + 0.25 * g * g};
        for (int i = 0; i < DRAWS; i++) c.grad[i] = (float)g, c.m[i] = moments_bf16(m0), c.v[i] = moments_bf16(v0);
        op_adamw(c.param, c.master, c.m, c.v, c.grad, DRAWS, moments_args(1 + f));
        device_synchronize();
        double together[2][2] = {{0, 0}, {0, 0}}, fractions[2]; // how often m and v are rounded down or up
        for (int k = 0; k < 2; k++) {
            double low = floor(fabs(exact[k]) / unit) * unit, fraction = fractions[k] = (fabs(exact[k]) - low) / unit, sum = 0;
            int64_t strange = 0;
            for (int i = 0; i < DRAWS; i++) {
                double steps = (fabs(moments_double(k == 0 ? c.m[i] : c.v[i])) - low) / unit;
                strange += steps != 0 && steps != 1;
                sum += steps;
            }
            double bound = 5 * sqrt(fraction * (1 - fraction) / DRAWS);
            CHECK(strange == 0 && (moments_double(c.m[0]) > 0) == (sign > 0),
                  "bf16 %s: %lld of %d are not a neighbour of %g", k == 0 ? "m" : "v", (long long)strange, DRAWS, exact[k]);
            CHECK(fabs(sum / DRAWS - fraction) <= bound, "bf16 %s: %g is rounded away from zero in %.4f of the draws, not %.4f +- %.4f",
                  k == 0 ? "m" : "v", exact[k], sum / DRAWS, fraction, bound);
        }
        for (int i = 0; i < DRAWS; i++)
            together[fabs(moments_double(c.m[i])) > fabs(exact[0])][moments_double(c.v[i]) > exact[1]] += 1.0 / DRAWS;
        double expected = fractions[0] * fractions[1];
        CHECK(fabs(together[1][1] - expected) <= 5 * sqrt(expected * (1 - expected) / DRAWS),
              "bf16 moments: both are rounded up in %.4f of the draws, not %.4f", together[1][1], expected);
    }
    moments_free(&c);
}

// beta2 = 0.999, v begins at 1, gradients of sqrt(2): the exact v after 1000 steps is 2 - 0.999^1000 = 1.632, and a step changes it by at
// most some eighth of the distance between neighbours. The roundings of a step have a standard deviation of at most half that distance,
// 2^-8; v forgets them at the rate at which it learns, so those of 1000 steps add up to at most 2^-8 sqrt(1000) = 0.12, and to 0.008 in the
// mean of 256 elements. Bound: 5 times that.
static void moments_check_stall(void) {
    enum { N = 256, STEPS = 1000 };
    moments_case c = moments_new(N);
    double exact = 1, sum = 0;
    for (int i = 0; i < N; i++) c.grad[i] = sqrtf(2), c.v[i] = moments_bf16(1);
    for (int step = 1; step <= STEPS; step++) {
        adamw_args args = moments_args(step);
        args.beta2 = 0.999f;
        op_adamw(c.param, c.master, c.m, c.v, c.grad, N, args);
        exact = 0.999 * exact + 0.001 * 2;
    }
    device_synchronize();
    for (int i = 0; i < N; i++) sum += moments_double(c.v[i]) / N;
    CHECK(fabs(sum - exact) < 0.04, "beta2 0.999: after %d steps v is %.4f in the mean, not %.4f", STEPS, sum, exact);
    moments_free(&c);
}

#endif
