// Rates of the CPU operations that take most of the time, all in one run of one process: linear layers beside OpenBLAS itself on the same
// shapes, and attention against the peak of fused multiply-adds. And the rate of a copy to the host.
//   build/cpu/test/bench_ops [threads]        (unset OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE first: they slow OpenBLAS down)
// Figures are GFLOP/s, best/median of the repetitions. Attention counts causal pairs only (half), backward 2.5 times forward.
#include "../device/cpu/simd.h"
#include "bench.h"

#include <cblas.h>
#include <omp.h>

typedef struct {
    double best, median;
} rates;

static rates rates_of(double *seconds, int runs, double flops) {
    qsort(seconds, (size_t)runs, sizeof *seconds, compare_doubles);
    rates r = {flops / seconds[0] * 1e-9, flops / seconds[runs / 2] * 1e-9};
    return r;
}
enum { RUNS_MOST = 15 };
#define SECONDS(into, work)                                                                                                      \
    do {                                                                                                                         \
        double began = device_seconds();                                                                                         \
        work;                                                                                                                    \
        into = device_seconds() - began;                                                                                         \
    } while (0)

// Registers only: 16 chains of fused multiply-adds on each thread.
static double fma_loop(int64_t n) {
    double total = 0;
#pragma omp parallel reduction(+ : total)
    {
        vec sums[16];
        for (int i = 0; i < 16; i++) sums[i] = vec_set((float)(i + omp_get_thread_num()));
        vec a = vec_set(0.999f), b = vec_set(0.001f);
        for (int64_t l = 0; l < n; l++) {
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) sums[i] = sums[i] * a + b;
        }
        for (int i = 0; i < 16; i++) total += vec_sum_lanes(sums[i]);
    }
    return total;
}

// GFLOP/s; the best seen so far in this process, so that a moment of other load does not count.
static double fma_peak(void) {
    static double best = 0;
    const int64_t n = 10000000;
    for (int run = 0; run < 5; run++) {
        double seconds, total;
        SECONDS(seconds, total = fma_loop(n));
        double rate = 2.0 * 16 * LANES * (double)n * omp_get_max_threads() / seconds * 1e-9;
        if (rate > best && !isnan(total)) best = rate;
    }
    return best;
}

static float *tensor(int64_t n, float scale) {
    float *x = (float *)device_alloc(sizeof(float) * (size_t)n);
    if (x == NULL) exit(EXIT_FAILED);
    test_fill(x, n, 1, scale);
    return x;
}
static void drop(float *x) { device_free(x); }

static void bench_linear(int64_t T, int64_t in, int64_t out) {
    float *x = tensor(T * in, 1), *w = tensor(out * in, 1), *y = tensor(T * out, 1);
    double flops = 2.0 * (double)T * (double)in * (double)out;
    int runs = flops > 3e10 ? 3 : flops > 3e9 ? 7 : RUNS_MOST, t = (int)T, i = (int)in, o = (int)out;
    double ours[3][RUNS_MOST], raw[3][RUNS_MOST];
    for (int run = -1; run < runs; run++) { // run -1 touches memory and wakes threads; ours and OpenBLAS alternate
        int r = run < 0 ? 0 : run;
        SECONDS(ours[0][r], op_linear_forward(y, x, w, NULL, T, in, out));
        SECONDS(raw[0][r], cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, t, o, i, 1, x, i, w, i, 0, y, o));
        SECONDS(ours[1][r], op_linear_backward_input(x, y, w, T, in, out));
        SECONDS(raw[1][r], cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, t, i, o, 1, y, o, w, i, 0, x, i));
        SECONDS(ours[2][r], op_linear_backward_weight(w, y, x, T, in, out, true));
        SECONDS(raw[2][r], cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, o, i, t, 1, y, o, x, i, 1, w, i));
    }
    printf("%6lld %6lld %6lld", (long long)T, (long long)in, (long long)out);
    for (int k = 0; k < 3; k++) {
        rates a = rates_of(ours[k], runs, flops), b = rates_of(raw[k], runs, flops);
        printf("   %4.0f/%4.0f %4.0f/%4.0f %4.2f/%4.2f", a.best, a.median, b.best, b.median, a.best / b.best, a.median / b.median);
    }
    printf("\n");
    fflush(stdout);
    drop(x), drop(w), drop(y);
}

static void bench_attention(int64_t T, int Hq, int Hkv, int HS) {
    attention_block b = block_of(T, Hq, Hkv, HS);
    float *q = tensor(T * b.q_stride, 1), *kv = tensor(T * b.kv_stride, 1), *out = tensor(T * b.q_stride, 1);
    float *dout = tensor(T * b.q_stride, 1);
    float *dq = tensor(T * b.q_stride, 1), *dkv = tensor(T * b.kv_stride, 1), *lse = tensor(T * Hq, 1), *delta = tensor(T * Hq, 1);
    size_t forward_bytes = op_attention_scratch(b, false), backward_bytes = op_attention_scratch(b, true);
    void *scratch = device_alloc(forward_bytes > backward_bytes ? forward_bytes : backward_bytes);
    if (scratch == NULL) exit(EXIT_FAILED);
    double flops = 4.0 * (double)T * (double)T / 2 * Hq * HS;
    int runs = T > 8192 ? 3 : T > 2048 ? 7 : RUNS_MOST, v = Hkv * HS;
    double seconds[2][RUNS_MOST], peak = fma_peak();
    for (int run = -1; run < runs; run++) {
        int r = run < 0 ? 0 : run;
        SECONDS(seconds[0][r], op_attention_forward(out, lse, q, kv, kv + v, b, false, scratch));
        op_attention_delta(delta, out, dout, b);
        SECONDS(seconds[1][r], op_attention_backward(dq, dkv, dkv + v, q, kv, kv + v, out, dout, lse, delta, b, false, false, scratch));
    }
    rates forward = rates_of(seconds[0], runs, flops), backward = rates_of(seconds[1], runs, 2.5 * flops);
    printf("%6lld %4d %4d %4d   %4.0f/%4.0f %3.0f/%3.0f %%   %4.0f/%4.0f %3.0f/%3.0f %%   %6.1f\n", (long long)T, Hq, Hkv, HS,
           forward.best, forward.median, 100 * forward.best / peak, 100 * forward.median / peak, backward.best, backward.median,
           100 * backward.best / peak, 100 * backward.median / peak, (double)forward_bytes / 1048576);
    fflush(stdout);
    drop(q), drop(kv), drop(out), drop(dout), drop(dq), drop(dkv), drop(lse), drop(delta);
    device_free(scratch);
}

// The part of a save that training waits for: device memory copied to host memory that was touched before, in GB/s.
static void bench_copy(void) {
    enum { RUNS = 5 };
    size_t bytes = (size_t)512 << 20;
    void *from = device_alloc(bytes), *to = device_host_slab(bytes);
    if (from == NULL || to == NULL) {
        printf("\ncopy to the host: 1 GiB does not fit\n");
        return;
    }
    double seconds[RUNS];
    device_zero(from, bytes);
    device_zero(to, bytes);
    for (int run = 0; run < RUNS; run++) SECONDS(seconds[run], device_to_host(to, from, bytes));
    rates r = rates_of(seconds, RUNS, (double)bytes);
    printf("\ncopy to the host: %.2f/%.2f GB/s\n", r.best, r.median);
    device_free(from);
    device_host_slab_free(to, bytes);
}

int main(int argc, char **argv) {
    error_text error = {"", 0};
    if (!device_start(argc > 1 ? (int)strtol(argv[1], NULL, 10) : 0, &error)) {
        fprintf(stderr, "error: %s\n", error.text);
        return EXIT_USER_ERROR;
    }
    printf("%s\n", device_name());
    printf("fused multiply-add peak: %.0f GFLOP/s with %d lanes\n\n", fma_peak(), LANES);
    printf("linear: GFLOP/s ours, raw OpenBLAS, ratio\n%6s %6s %6s   %-28s %-28s %s\n", "T", "in", "out", "y = x w^T",
           "dx = dy w", "dw += dy^T x");
    static const int shapes[][3] = {{512, 256, 256},   {512, 768, 768},    {512, 768, 2048},   {512, 2048, 768},
                                    {2048, 768, 768}, {2048, 768, 4096}, {4096, 2048, 2048}, {1024, 768, 32000}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) bench_linear(shapes[s][0], shapes[s][1], shapes[s][2]);

    printf("\nattention, causal: GFLOP/s and %% of the peak\n%6s %4s %4s %4s   %-18s   %-18s   %s\n", "T", "H", "Hkv", "HS", "forward",
           "backward", "scratch MB");
    static const int heads[][3] = {{12, 4, 64}, {6, 2, 128}, {4, 1, 128}};
    static const int lengths[] = {512, 4096, 16384};
    for (size_t h = 0; h < 3; h++) {
        for (size_t l = 0; l < 3; l++) bench_attention(lengths[l], heads[h][0], heads[h][1], heads[h][2]);
    }
    bench_copy();
    printf("\nfused multiply-add peak, the best of the whole run: %.0f GFLOP/s\n", fma_peak());
    device_stop();
    return EXIT_OK;
}
