// Rates of the CUDA device's operations on the shapes of Llama-3-8B, all in one run of one process:
//   products    matrix products in TFLOP/s and in % of the largest rate that a square product of 8192 reaches here
//   attention   in TFLOP/s (causal pairs only, backward 2.5 times forward) and in % of the same rate, by cuDNN and by the hand-written
//               kernels; also on packed documents
//   beside      what both lose while other kernels hold SMs, as transfers do (see most_ctas in comm_nccl.c), also where products leave SMs
//               to them; and which property of such a kernel costs how much
//   kernels     kernels that move memory, in GB/s and in % of what a copy on the device reaches
//   limits      what the products and the attention of a step of gpu_check.sh's two models take by themselves: no step can be faster
//     build/cuda/test/bench_cuda [products|attention|beside|kernels|limits]...     nothing named: all
//     build/emulated/test/bench_cuda small                            tiny sizes: shows that the program works; the figures are meaningless
// Figures are best/median of the repetitions. A shape that does not fit the device's memory is named and left out.
#include "../device/cuda/attention_call.h"
#include "bench.h"
#include "hold_sms.h"

enum { RUNS = 7 };
static bool small;
static double peak, copy_rate; // FLOP/s, bytes/s

typedef struct {
    double best, median; // seconds
} timing;

// Memory of one benchmark, freed together. Once one piece does not fit, all further ones are NULL.
static void *pieces[16];
static size_t sizes[16];
static int piece_count;
static bool fits;
static void begin_memory(void) { piece_count = 0, fits = true; }
static void end_memory(void) {
    for (int i = 0; i < piece_count; i++) device_free(pieces[i]);
}
static void *piece(size_t bytes) {
    void *p = fits ? device_alloc(bytes) : NULL;
    fits = fits && p != NULL;
    if (p == NULL) return NULL;
    pieces[piece_count] = p;
    sizes[piece_count++] = bytes;
    return p;
}
static floatX *stored(int64_t n) { // normal numbers: products of zeros run at a higher clock
    floatX *x = (floatX *)piece(sizeof(floatX) * (size_t)n);
    if (x != NULL) op_init_normal(x, 1, (uint64_t)piece_count, 0, n, 1);
    return x;
}
static float *floats(int64_t n) {
    float *x = (float *)piece(sizeof(float) * (size_t)n);
    if (x != NULL) device_zero(x, sizeof(float) * (size_t)n);
    return x;
}

// What is timed while SMs are held must have run before, because a first run may wait for all that runs. Nothing is held in emulation.
#if defined DEVICE_EMULATED || defined WITHOUT_GPU
double hold_sms(int sms, hold_kind kind) { return (void)kind, 1e-9 * sms; }
void hop_launch(int sms, bool first) { (void)sms, (void)first; }
hop_times hop_waited(void) { return (hop_times){0, 0}; }
#endif
enum { HELD = 8 }; // SMs of a ring of few ranks, or of a gather

// TIME(t, work): t = seconds of `work`. Each timed run queues it often enough that starting and waiting do not count.
#define TIME(t, work)                                                                                                            \
    do {                                                                                                                         \
        double seconds[RUNS];                                                                                                    \
        work; /* chooses algorithms, compiles kernels */                                                                         \
        device_synchronize();                                                                                                    \
        double once = device_seconds();                                                                                          \
        work;                                                                                                                    \
        device_synchronize();                                                                                                    \
        once = device_seconds() - once;                                                                                          \
        int times = small ? 1 : once > 0.02 ? 1 : (int)(0.02 / fmax(once, 2e-6)) + 1, runs = small ? 1 : once > 0.2 ? 3 : RUNS;   \
        for (int run = 0; run < runs; run++) {                                                                                   \
            double began = device_seconds();                                                                                     \
            for (int i = 0; i < times; i++) {                                                                                    \
                work;                                                                                                            \
            }                                                                                                                    \
            device_synchronize();                                                                                                \
            seconds[run] = (device_seconds() - began) / times;                                                                   \
        }                                                                                                                        \
        qsort(seconds, (size_t)runs, sizeof *seconds, compare_doubles);                                                          \
        t.best = seconds[0];                                                                                                     \
        t.median = seconds[runs / 2];                                                                                            \
    } while (0)

// PRINT_WAIT(t, held, work): how long a transfer that begins in the first tenth of `work` waits for its SMs, in % of the time t of `work`.
// Near 0: it runs beside it. Near 90: only behind it, because blocks of `work` stay on every SM to the end.
#define PRINT_WAIT(t, held, work)                                                                                                \
    do {                                                                                                                         \
        work;                                                                                                                    \
        work;                                                                                                                    \
        for (double began = device_seconds(); device_seconds() < began + 0.1 * t.median;) {}                                     \
        printf("   %3.0f %%", 100 * hold_sms(held, HOLD_AS_NCCL) / t.median);                                                    \
        hold_sms(0, HOLD_AS_NCCL);                                                                                               \
        device_synchronize();                                                                                                    \
    } while (0)

// PRINT_HOP(t, held, work): when a hop that is ready together with `work` has arrived, and when `work` is done, in % of the time t of
// `work` alone; as they are issued, then with `work` behind an event of the hop's stream (hop_launch).
#define PRINT_HOP(t, held, work)                                                                                                 \
    for (int first = 0; first < 2; first++) {                                                                                    \
        double hop[RUNS], compute[RUNS];                                                                                         \
        for (int run = 0; run < RUNS; run++) {                                                                                   \
            hop_launch(held, first == 1);                                                                                        \
            work;                                                                                                                \
            hop_times times = hop_waited();                                                                                      \
            hop[run] = times.hop;                                                                                                \
            compute[run] = times.compute;                                                                                        \
        }                                                                                                                        \
        qsort(hop, RUNS, sizeof *hop, compare_doubles);                                                                          \
        qsort(compute, RUNS, sizeof *compute, compare_doubles);                                                                  \
        printf("   %5.1f/%5.1f %%", 100 * hop[RUNS / 2] / t.median, 100 * compute[RUNS / 2] / t.median);                         \
    }

static void print_flops(timing t, double flops) {
    printf("   %6.1f/%6.1f %3.0f/%3.0f %%", flops / t.best * 1e-12, flops / t.median * 1e-12, 100 * flops / t.best / peak,
           100 * flops / t.median / peak);
}

// The three products of a linear layer; x is overwritten.
static void time_products(floatX *x, const floatX *w, floatX *y, float *dw, int64_t T, int64_t in, int64_t out) {
    timing t;
    double flops = 2.0 * (double)T * (double)in * (double)out;
    TIME(t, op_linear_forward(y, x, w, NULL, T, in, out));
    print_flops(t, flops);
    TIME(t, op_linear_backward_input(x, y, w, T, in, out));
    print_flops(t, flops);
    op_init_normal(x, 1, 9, 0, T * in, 1);
    TIME(t, op_linear_backward_weight(dw, y, x, T, in, out, true));
    print_flops(t, flops);
}
static void bench_product(int64_t T, int64_t in, int64_t out) {
    printf("%6lld %6lld %6lld", (long long)T, (long long)in, (long long)out);
    begin_memory();
    floatX *x = stored(T * in), *w = stored(in * out), *y = stored(T * out);
    float *dw = floats(in * out);
    if (fits) time_products(x, w, y, dw, T, in, out);
    else printf("   does not fit");
    printf("\n");
    fflush(stdout);
    end_memory();
}

// The same products, and the weight gradient stored instead of added: planned for all SMs and for fewer, alone and while some are held. A
// product whose blocks each stay on an SM to the end, as many as there are SMs, takes up to twice as long for a single one that is held.
static void bench_product_beside(int64_t T, int64_t in, int64_t out) {
    static const int left[] = {0, HELD, 2 * HELD};
    begin_memory();
    floatX *x = stored(T * in), *w = stored(in * out), *y = stored(T * out);
    float *dw = floats(in * out);
    double flops = 2.0 * (double)T * (double)in * (double)out;
    for (size_t i = 0; fits && i < 2 * sizeof left / sizeof *left; i++) {
        timing t;
        int held = i % 2 == 0 ? 0 : HELD;
        printf("%6lld %6lld %6lld %4d %4d", (long long)T, (long long)in, (long long)out, left[i / 2], held);
        linear_test_sms_left(left[i / 2]);
        op_init_normal(x, 1, 9, 0, T * in, 1);
        device_synchronize();
        hold_sms(held, HOLD_AS_NCCL);
        time_products(x, w, y, dw, T, in, out);
        TIME(t, op_linear_backward_weight(dw, y, x, T, in, out, false));
        hold_sms(0, HOLD_AS_NCCL);
        print_flops(t, flops);
        if (held > 0) PRINT_WAIT(t, held, op_linear_backward_weight(dw, y, x, T, in, out, false));
        printf("\n");
        fflush(stdout);
    }
    linear_test_sms_left(0);
    end_memory();
}

// One product of each direction, and attention by hand, while kernels of each kind hold SMs, and while more and more SMs are held.
static void bench_holding(int64_t T, int64_t in, int64_t out, int64_t rows, int Hq, int Hkv, int HS) {
    static const struct {
        const char *name;
        hold_kind kind;
        int sms;
    } holders[] = {{"none", HOLD_AS_NCCL, 0}, {"as NCCL", HOLD_AS_NCCL, 1}, {"as NCCL", HOLD_AS_NCCL, 2}, {"as NCCL", HOLD_AS_NCCL, 4},
                   {"as NCCL", HOLD_AS_NCCL, 8}, {"as NCCL", HOLD_AS_NCCL, 16}, {"low priority", HOLD_LOW_PRIORITY, 8},
                   {"asks the host", HOLD_ASKS_HOST, 8}, {"no shared memory", HOLD_NO_SHARED, 8}, {"one warp", HOLD_ONE_WARP, 8}};
    attention_block b = block_of(rows, Hq, Hkv, HS);
    begin_memory();
    floatX *x = stored(T * in), *w = stored(in * out), *y = stored(T * out);
    floatX *q = stored(rows * b.q_stride), *kv = stored(rows * b.kv_stride);
    float *dw = floats(in * out), *sums = floats(rows * b.q_stride), *lse = floats(rows * Hq);
    timing t;
    for (size_t i = 0; fits && i < sizeof holders / sizeof *holders; i++) {
        printf("%-16s %4d", holders[i].name, holders[i].sms);
        op_init_normal(x, 1, 9, 0, T * in, 1);
        device_synchronize();
        hold_sms(holders[i].sms, holders[i].kind);
        time_products(x, w, y, dw, T, in, out);
        TIME(t, (void)attention_mma_forward(sums, lse, q, kv, kv + (int64_t)Hkv * HS, b, false));
        print_flops(t, 2.0 * (double)rows * (double)rows * Hq * HS);
        hold_sms(0, HOLD_AS_NCCL);
        printf("\n");
        fflush(stdout);
    }
    end_memory();
}

// documents > 0: packed documents of so many tokens each; only visible pairs count. held: SMs (hold_sms), 0 first; -1: none are.
static void bench_attention(int64_t T, int Hq, int Hkv, int HS, int64_t documents, int held) {
    attention_block b = block_of(T, Hq, Hkv, HS);
    printf("%6lld %4d %4d %4d", (long long)T, Hq, Hkv, HS);
    begin_memory();
    floatX *q = stored(T * b.q_stride), *kv = stored(T * b.kv_stride), *out_x = stored(T * b.q_stride), *dout = stored(T * b.q_stride);
    float *out = floats(T * b.q_stride), *dq = floats(T * b.q_stride), *dkv = floats(T * b.kv_stride), *lse = floats(T * Hq);
    float *delta = floats(T * Hq);
    int64_t *first = (int64_t *)piece(sizeof(int64_t) * (size_t)T), v = (int64_t)Hkv * HS;
    size_t forward_bytes = op_attention_scratch(b, false), backward_bytes = op_attention_scratch(b, true);
    void *scratch = piece(forward_bytes > backward_bytes ? forward_bytes : backward_bytes);
    if (fits) {
        timing t, forward, backward;
        int64_t *host = HOST_NEW(int64_t, T), last = documents > 0 ? T % documents : 0;
        double pairs = (documents > 0 ? (double)(T - last) * (double)documents + (double)last * (double)last : (double)T * (double)T) / 2;
        double flops = 4 * pairs * Hq * HS;
        if (documents > 0) {
            for (int64_t i = 0; i < T; i++) host[i] = i / documents * documents;
            device_from_host(first, host, sizeof(int64_t) * (size_t)T);
            b.documents.first = first;
            b.documents.host = host;
            b.documents.split = T;
        }
        device_synchronize();
        hold_sms((int)max_i64(held, 0), HOLD_AS_NCCL);
        TIME(forward, op_attention_forward(out, lse, q, kv, kv + v, b, false, scratch));
        print_flops(forward, flops);
        op_cast_from_float(out_x, out, T * b.q_stride);
        op_attention_delta(delta, out_x, dout, b);
        TIME(backward, op_attention_backward(dq, dkv, dkv + v, q, kv, kv + v, out_x, dout, lse, delta, b, false, false, scratch));
        print_flops(backward, 2.5 * flops);
        if (attention_mma_forward(out, lse, q, kv, kv + v, b, false)) {
            TIME(t, (void)attention_mma_forward(out, lse, q, kv, kv + v, b, false));
            print_flops(t, flops);
            TIME(t, (void)attention_mma_backward(dq, dkv, dkv + v, q, kv, kv + v, dout, lse, delta, b, false, false));
            print_flops(t, 2.5 * flops);
        }
        hold_sms(0, HOLD_AS_NCCL);
        if (held >= 0) printf("   %8d", held);
        else if (documents > 0) printf("   %8lld", (long long)documents);
        else printf("   %8.1f", (double)backward_bytes / 1048576);
        if (held == 0) {
            PRINT_HOP(forward, HELD, op_attention_forward(out, lse, q, kv, kv + v, b, false, scratch));
            PRINT_HOP(backward, HELD,
                      op_attention_backward(dq, dkv, dkv + v, q, kv, kv + v, out_x, dout, lse, delta, b, false, false, scratch));
        }
        if (held > 0) {
            PRINT_WAIT(forward, held, op_attention_forward(out, lse, q, kv, kv + v, b, false, scratch));
            PRINT_WAIT(backward, held,
                       op_attention_backward(dq, dkv, dkv + v, q, kv, kv + v, out_x, dout, lse, delta, b, false, false, scratch));
        }
        free(host);
    } else printf("   does not fit");
    printf("\n");
    fflush(stdout);
    end_memory();
}

// One step of a ring of `ring` ranks over S tokens, of the kind that rank 0 has most of: half of its queries, all keys of another rank.
// Measures what a step costs on top of attention itself: the merge in forward, the sum of dq in backward. Both run on the compute stream,
// so all of it is exposed.
static void bench_ring_step(int64_t S, int ring, int Hq, int Hkv, int HS) {
    attention_block b = block_of(S / ring, Hq, Hkv, HS);
    b.Tq /= 2;
    b.causal = false;
    begin_memory();
    floatX *q = stored(b.Tk * b.q_stride), *kv = stored(b.Tk * b.kv_stride), *out_x = stored(b.Tk * b.q_stride),
        *dout = stored(b.Tk * b.q_stride);
    float *out = floats(b.Tk * b.q_stride), *dq = floats(b.Tk * b.q_stride), *dkv = floats(b.Tk * b.kv_stride), *lse = floats(b.Tk * Hq);
    float *delta = floats(b.Tk * Hq);
    float *other_lse = floats(b.Tk * Hq);
    size_t forward_bytes = op_attention_scratch(b, false), backward_bytes = op_attention_scratch(b, true);
    void *scratch = piece(forward_bytes > backward_bytes ? forward_bytes : backward_bytes);
    if (fits) {
        timing first, merged, merge, backward, added;
        int64_t v = (int64_t)Hkv * HS;
        op_attention_forward(out, other_lse, q, kv, kv + v, b, false, scratch);
        TIME(first, op_attention_forward(out, lse, q, kv, kv + v, b, false, scratch));
        TIME(merged, op_attention_forward(out, lse, q, kv, kv + v, b, true, scratch));
        TIME(merge, attention_merge(out, lse, out_x, other_lse, b.Tq, Hq, HS, b.sum_stride, b.lse_stride, b.lse_stride, true));
        op_attention_forward(out, lse, q, kv, kv + v, b, false, scratch);
        op_cast_from_float(out_x, out, b.Tk * b.q_stride);
        op_attention_delta(delta, out_x, dout, b);
        TIME(backward, op_attention_backward(dq, dkv, dkv + v, q, kv, kv + v, out_x, dout, lse, delta, b, false, false, scratch));
        TIME(added, op_attention_backward(dq, dkv, dkv + v, q, kv, kv + v, out_x, dout, lse, delta, b, true, false, scratch));
        printf("%6lld %4d %4d %4d   %8.3f %8.3f %8.3f %5.1f %%   %8.3f %8.3f %8.3f %5.1f %%\n", (long long)S, ring, Hq, HS,
               1e3 * first.median, 1e3 * merged.median, 1e3 * merge.median, 100 * (merged.median / first.median - 1), 1e3 * backward.median,
               1e3 * added.median, 1e3 * (added.median - backward.median), 100 * (added.median / backward.median - 1));
    } else printf("%6lld %4d: does not fit\n", (long long)S, ring);
    end_memory();
}

// ---- the limit of a step ----

// Seconds (medians) of a linear layer's three products on T of the B T rows that are multiplied together, measured on at most 16384.
typedef struct {
    double forward, input, weight;
} product_seconds;
static product_seconds product_limit(int64_t B, int64_t T, int64_t in, int64_t out) {
    product_seconds s = {0, 0, 0};
    timing t;
    int64_t rows = B * T < 16384 ? B * T : 16384;
    double times = (double)T / (double)rows;
    begin_memory();
    floatX *x = stored(rows * in), *w = stored(in * out), *y = stored(rows * out);
    float *dw = floats(in * out);
    if (fits) {
        TIME(t, op_linear_forward(y, x, w, NULL, rows, in, out));
        s.forward = times * t.median;
        TIME(t, op_linear_backward_input(x, y, w, rows, in, out));
        s.input = times * t.median;
        op_init_normal(x, 1, 9, 0, rows * in, 1);
        TIME(t, op_linear_backward_weight(dw, y, x, rows, in, out, true));
        s.weight = times * t.median;
    }
    end_memory();
    return s;
}
// Forward and backward, causal, one sequence; 0: does not fit.
static double attention_limit(int64_t T, int Hq, int Hkv, int HS) {
    attention_block b = block_of(T, Hq, Hkv, HS);
    timing forward = {0, 0}, backward = {0, 0};
    begin_memory();
    floatX *q = stored(T * b.q_stride), *kv = stored(T * b.kv_stride), *out = stored(T * b.q_stride), *dout = stored(T * b.q_stride);
    floatX *dq = stored(T * b.q_stride);
    float *sums = floats(T * b.q_stride), *dkv = floats(T * b.kv_stride), *lse = floats(T * Hq), *delta = floats(T * Hq);
    size_t forward_bytes = op_attention_scratch(b, false), backward_bytes = op_attention_scratch(b, true);
    void *scratch = piece(forward_bytes > backward_bytes ? forward_bytes : backward_bytes);
    int64_t v = (int64_t)Hkv * HS;
    if (fits) { // as a run without a ring
        TIME(forward, if (!op_attention_forward_alone(out, lse, q, kv, kv + v, b, scratch))
                          op_attention_forward(sums, lse, q, kv, kv + v, b, false, scratch));
        op_attention_delta(delta, out, dout, b);
        TIME(backward,
             if (!op_attention_backward_alone(dq, dkv, dkv + v, q, kv, kv + v, out, dout, lse, b, false, scratch))
                 op_attention_backward(sums, dkv, dkv + v, q, kv, kv + v, out, dout, lse, delta, b, false, false, scratch));
    }
    end_memory();
    return forward.median + backward.median;
}
// A sequence of T tokens, of B at a time: every product and every layer's attention, forward and backward once, and nothing else.
static void bench_limit(const char *model, int L, int64_t B, int64_t T, int64_t D, int Hq, int Hkv, int HS, int64_t F, int64_t V) {
    product_seconds qkv = product_limit(B, T, D, (int64_t)(Hq + 2 * Hkv) * HS), wo = product_limit(B, T, (int64_t)Hq * HS, D);
    product_seconds up = product_limit(B, T, D, 2 * F), down = product_limit(B, T, F, D);
    product_seconds head = product_limit(B, T, D, V), all[] = {qkv, wo, up, down}, layer = {0, 0, 0};
    for (int i = 0; i < 4; i++) {
        layer.forward += all[i].forward;
        layer.input += all[i].input;
        layer.weight += all[i].weight;
    }
    double products = L * (layer.forward + layer.input + layer.weight) + head.forward + head.input + head.weight;
    double attention = L * attention_limit(T, Hq, Hkv, HS);
    double matrices = (double)L * (double)(D * (Hq + 2 * Hkv) * HS + (int64_t)Hq * HS * D + 3 * D * F) + (double)D * (double)V;
    // Counted as in metrics.h.
    double flops = (double)T * (6 * matrices + 6.0 * L * (double)T * Hq * HS), seconds = products + attention;
    printf("limit %s %lld alone %.3f ms: products %.3f attention %.3f again %.3f a layer that is selective; %.0f tokens/s, %.1f TFLOP/s",
           model, (long long)T, 1e3 * seconds, 1e3 * products, 1e3 * attention, 1e3 * (qkv.forward + wo.forward + up.forward),
           (double)T / seconds, 1e-12 * flops / seconds);
    if (device_peak_flops() > 0) printf(", MFU %.1f%%", 100 * flops / seconds / device_peak_flops());
    printf("\n");
    fflush(stdout);
}

// bytes: the least that the operation must read and write.
static void print_bytes(const char *name, timing t, double bytes) {
    printf("%-28s %10.1f MB   %7.1f/%7.1f GB/s   %3.0f/%3.0f %%\n", name, bytes * 1e-6, bytes / t.best * 1e-9, bytes / t.median * 1e-9,
           100 * bytes / t.best / copy_rate, 100 * bytes / t.median / copy_rate);
    fflush(stdout);
}
#define KERNEL(name, bytes, work)                                                                                                \
    do {                                                                                                                         \
        timing t;                                                                                                                \
        TIME(t, work);                                                                                                           \
        print_bytes(name, t, bytes);                                                                                             \
    } while (0)

static void bench_kernels(int64_t T, int D, int H, int Hkv, int HS, int F, int V) {
    double X = sizeof(floatX), n = (double)T, width = H + 2 * Hkv;
    size_t copied = small ? 1 << 16 : (size_t)1 << 30;
    begin_memory();
    void *from = stored((int64_t)(copied / sizeof(floatX))), *to = piece(copied);
    timing t;
    if (!fits) return end_memory();
    TIME(t, device_copy(to, from, copied));
    copy_rate = 2 * (double)copied / t.best;
    print_bytes("copy on the device", t, 2 * (double)copied);
    end_memory();

    begin_memory();
    floatX *a = stored(T * 2 * F), *b = stored(T * 2 * F), *weight = stored(D);
    float *x = floats(T * H * HS), *y = floats(T * H * HS), *rows = floats(T * H), *other_rows = floats(T * H), *sums = floats(D);
    float *table = floats(T * HS);
    size_t norm_bytes = op_rmsnorm_backward_scratch(T, D);
    void *scratch = piece(norm_bytes);
    if (fits) {
        double residual = n * D * X, heads = n * H * HS;
        KERNEL("RMSNorm forward", 2 * residual, op_rmsnorm_forward(a, rows, b, weight, T, D, 1e-5f));
        KERNEL("RMSNorm backward", 4 * residual, op_rmsnorm_backward(a, sums, b, b + T * D, weight, rows, T, D, true, scratch));
        head_layout l = head_layout_make(1, H, Hkv, HS);
        KERNEL("RoPE and pack", 2 * n * width * HS * X, op_rope_pack_forward(a, a + T * H * HS, b, table, T, l, 0, T));
        KERNEL("RoPE and unpack backward", 2 * n * width * HS * X, op_rope_unpack_backward(a, b, b + T * H * HS, table, T, l, 0, T));
        KERNEL("SwiGLU forward", 3 * n * F * X, op_swiglu_forward(a, b, T, F));
        KERNEL("SwiGLU backward", 6 * n * F * X, op_swiglu_backward(b, a, a, b, T, F));
        KERNEL("results of attention, first", (X + 4) * heads, attention_sum_heads(x, a, T, H, 1, HS, (int64_t)H * HS, false));
        KERNEL("merge of two blocks", (X + 8) * heads, attention_merge(x, rows, a, other_rows, T, H, HS, (int64_t)H * HS, T, T, true));
        KERNEL("attention delta", 2 * X * heads, op_attention_delta(rows, a, b, block_of(T, H, Hkv, HS)));
        KERNEL("float to bf16", (4 + X) * heads, op_cast_from_float(a, x, T * H * HS));
        KERNEL("float to bf16, some heads", (4 + X) * n * l.group * HS, op_cast_rows(a, (int64_t)H * HS, x, T, (int64_t)l.group * HS));
        KERNEL("half the heads of KV", 4 * X * n * (Hkv / 2) * HS,
               op_copy_rows(a, (int64_t)(Hkv / 2) * HS, b, (int64_t)Hkv * HS, 2 * T, (int64_t)(Hkv / 2) * HS));
        KERNEL("add in float", 12 * heads, op_add_float(x, y, T * H * HS));
        KERNEL("sum of squares", 4 * heads, op_sum_squares((double *)(void *)rows, x, T * H * HS));
    } else printf("kernels: do not fit\n");
    end_memory();

    int64_t tile = small ? T : T < 4096 ? T : 4096, count = small ? 4096 : (int64_t)1 << 28;
    begin_memory();
    floatX *logits = stored(tile * V), *params = stored(count);
    int32_t *labels = (int32_t *)piece(sizeof(int32_t) * (size_t)tile);
    float *losses = floats(tile), *states[4];
    for (int i = 0; i < 4; i++) states[i] = floats(count);
    if (fits) {
        device_zero(labels, sizeof(int32_t) * (size_t)tile);
        KERNEL("cross-entropy, in place", 2 * (double)tile * V * X, op_cross_entropy(losses, logits, labels, tile, V, 1e-6f, true));
        adamw_args args = {.lr = 1e-9f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .step = 1, .grad_scale = 1};
        double bytes = (double)count * (28 + X);
        op_cast_to_float(states[3], params, count); // gradients: the square root of a zero takes longer than others
        KERNEL("AdamW", bytes, op_adamw(params, states[0], states[1], states[2], states[3], count, args));
        args.rounding.stochastic = true;
        KERNEL("AdamW, stochastic rounding", bytes, op_adamw(params, states[0], states[1], states[2], states[3], count, args));
        args.bf16_moments = true;
        for (int i = 1; i < 3; i++) device_zero(states[i], sizeof(float) * (size_t)count); // the first run fills them
        KERNEL("AdamW, and bf16 moments", bytes - 8 * (double)count,
               op_adamw(params, states[0], states[1], states[2], states[3], count, args));
    } else printf("loss and AdamW: do not fit\n");
    end_memory();
}

int main(int argc, char **argv) {
    error_text error = {"", 0};
    bool products = argc < 2, attention = argc < 2, beside = argc < 2, kernels = argc < 2, limits = argc < 2;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "products") == 0) products = true;
        else if (strcmp(argv[i], "beside") == 0) beside = true;
        else if (strcmp(argv[i], "attention") == 0) attention = true;
        else if (strcmp(argv[i], "kernels") == 0) kernels = true;
        else if (strcmp(argv[i], "limits") == 0) limits = true;
        else if (strcmp(argv[i], "small") == 0) small = products = attention = beside = kernels = limits = true;
        else {
            fprintf(stderr, "error: unknown argument %s; legal values are products, attention, beside, kernels, limits, small\n", argv[i]);
            return EXIT_USER_ERROR;
        }
    }
    if (!device_start(1, &error)) {
        fprintf(stderr, "error: %s\n", error.text);
        return EXIT_USER_ERROR;
    }
    printf("%s\n%s", device_name(), small ? "tiny sizes: the figures say nothing about any device's speed\n" : "");
    peak = small ? 1e12 : device_measure_gemm(); // which takes minutes on a CPU
    if (peak <= 0) peak = 1;
    if (!small)
        printf("square product of 8192: %.1f TFLOP/s, %.0f %% of the data sheet\n", peak * 1e-12,
               device_peak_flops() > 0 ? 100 * peak / device_peak_flops() : 0.0);
    const int Hq = small ? 2 : 32, Hkv = small ? 1 : 8, HS = small ? 64 : 128;
    if (products) {
        static const int shapes[][2] = {{4096, 6144}, {4096, 4096}, {4096, 28672}, {14336, 4096}, {4096, 128256}};
        printf("\nlinear: TFLOP/s and %% of the square product\n%6s %6s %6s   %-21s   %-21s   %s\n", "T", "in", "out", "y = x w^T",
               "dx = dy w", "dw += dy^T x");
        for (int64_t T = small ? 64 : 4096; T <= (small ? 64 : 65536); T *= 4)
            for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
                bench_product(T, small ? shapes[s][0] / 64 : shapes[s][0], small ? shapes[s][1] / 64 : shapes[s][1]);
    }
    if (beside) {
        printf("\nbeside SMs that are held, by kind of the kernel that holds them: TFLOP/s and %% of the square product\n%-16s %4s   "
               "%-21s   %-21s   %-21s   %s\n", "kind", "SMs", "y = x w^T", "dx = dy w", "dw += dy^T x", "attention by hand");
        if (small) bench_holding(64, 64, 448, 128, 2, 1, 64);
        else bench_holding(8192, 4096, 28672, 16384, 32, 8, 128);
        printf("\nlinear beside communication: SMs left to it, SMs that it holds\n%6s %6s %6s %4s %4s   %-21s   %-21s   %-21s   %s\n", "T",
               "in", "out", "left", "held", "y = x w^T", "dx = dy w", "dw += dy^T x", "dw = dy^T x             waits beside it");
        for (int i = 0; i < 2; i++)
            bench_product_beside(small ? 64 : 8192, (i == 0 ? 4096 : 14336) / (small ? 64 : 1), (i == 0 ? 28672 : 4096) / (small ? 64 : 1));
        printf("\nattention while transfers hold SMs: TFLOP/s and %% of the square product\n%6s %4s %4s %4s   %-21s   %-21s   %-21s   "
               "%-21s   SMs held, waits beside forward, backward (none held: a hop's and their ends, and with the hop first)\n",
               "T", "H", "Hkv", "HS", op_attention_engine(false), "backward", "by hand, forward", "backward");
        for (int held = 0; held <= 2 * HELD; held += HELD) bench_attention(small ? 256 : 32768, Hq, Hkv, HS, 0, held);
    }
    if (attention) {
        printf("\nattention, causal: TFLOP/s and %% of the square product\n%6s %4s %4s %4s   %-21s   %-21s   %-21s   %-21s   %s\n", "T",
               "H", "Hkv", "HS", op_attention_engine(false), "backward", "by hand, forward", "backward", "scratch MB");
        for (int64_t T = small ? 128 : 2048; T <= (small ? 256 : 131072); T *= 2) bench_attention(T, Hq, Hkv, HS, 0, -1);
        // So much scratch that backward calls have many heads: what DEVICE_ATTENTION_SCRATCH costs.
        attention_test_limits(0, small ? 1 << 20 : (int64_t)6 << 30);
        bench_attention(small ? 256 : 131072, Hq, Hkv, HS, 0, -1);
        attention_test_limits(0, 0);
        printf("\npacked documents (%s): the same, of what is seen\n%6s %4s %4s %4s   %-21s   %-21s   %-21s   %-21s   %s\n",
               op_attention_engine(true), "T", "H", "Hkv", "HS", "forward", "backward", "by hand, forward", "backward", "tokens each");
        int64_t documents[] = {1024, 2048, 4096, 5000, 16384};
        for (int i = 0; i < (small ? 1 : 5); i++) bench_attention(small ? 120 : 65536, Hq, Hkv, HS, small ? 40 : documents[i], -1);
    }
    if (limits) {
        printf("\na ring of N over S tokens, its longest kind of step, ms: forward alone, merged, the merge alone, on top; "
               "backward alone, added, the difference\n");
        if (small) bench_ring_step(1024, 4, 2, 1, 64);
        else bench_ring_step(131072, 8, 32, 8, 128);
        printf("\nwhat no step is faster than: its products and its attention by themselves (medians)\n");
        if (small) bench_limit("small", 2, 2, 128, 64, 2, 1, 64, 96, 256);
        for (int64_t T = 131072; !small && T >= 8192; T /= 4) {
            int64_t B = T == 8192 ? 4 : 1; // as the steps of gpu_check.sh
            bench_limit("llama-8b-4-layers", 4, B, T, 4096, 32, 8, 128, 14336, 128256);
            bench_limit("llama3.2-1b", 16, B, T, 2048, 32, 8, 64, 8192, 128256);
        }
    }
    if (kernels) {
        printf("\nkernels that move memory: bytes, GB/s, %% of a copy\n");
        if (small) bench_kernels(32, 64, 4, 2, 16, 96, 100);
        else bench_kernels(32768, 4096, 32, 8, 128, 14336, 128256);
    }
    if (attention_call_possible() && op_attention_calls() > 0 && attention_test_engine_tiles() == 0)
        printf("note: %s has computed no block: all figures of attention are those of the hand-written kernels\n",
               op_attention_engine(false));
    device_stop();
    return EXIT_OK;
}
