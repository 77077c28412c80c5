// device: cuda
// What only a GPU can show of the CUDA device, point by point: `build/cuda/test/gpu_points [N]...` (none named: all that one process can
// show). Each prints "point N: pass|fail|not possible: what was seen"; exit status 1 when one fails, 77 when none could be seen or memory
// ran out before one failed. scripts/gpu_check.sh runs it. Without a GPU the same source runs on small sizes:
// build/emulated/test/gpu_points small.
//   1 attention of the library, and of our kernels on tensor cores, against our kernels in float
//   2 blocks of keys merged, and backward with the merged out and lse
//   3 dk and dv with several query heads per key/value head         4 backward twice: the same bits when deterministic
//   5 tensors of more than 2^31 elements or 2^32 bytes             6 cuDNN's properties of this GPU
//     gpu_points 6 NAME.json writes them to this file, for test_cudnn_graphs
//   9 rates of copies to and from pinned memory, each way alone and both at once
//   races: only the hand-written kernels of attention, on so few rows that racecheck is done with them in some 20 seconds
// (7, several ranks on one GPU, and 8, the shapes of matrix products, are compare_devices and bench_cuda.)
#include "../device/cuda/attention_call.h"
#include "../files.h"
#include "bench.h"
#if !defined(DEVICE_EMULATED) && !defined(WITHOUT_CUDNN)
#include <cudnn.h>
#endif

static bool small, races, passed, failed;
static const char *properties_file; // of point 6, or NULL
static void say(int point, const char *verdict, const char *format, ...) PRINTF_LIKE(3, 4);
static void say(int point, const char *verdict, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    printf("point %d: %s: %s\n", point, verdict, text);
    fflush(stdout);
    passed = passed || strcmp(verdict, "pass") == 0;
    failed = failed || strcmp(verdict, "fail") == 0;
}

// ---- a block and its tensors ----

typedef struct {
    attention_block b;
    floatX *q, *kv, *out_x, *dout;
    float *out, *lse, *delta, *dq, *dkv;
    void *scratch;
    int64_t nq, nkv;
} problem;

static void *memory(size_t bytes) {
    void *p = device_alloc(bytes);
    if (p == NULL) {
        printf("not possible: %.1f GiB more do not fit\n", (double)bytes / (double)(1 << 30));
        exit(failed ? EXIT_FAILED : 77);
    }
    return p;
}
static problem problem_make(int64_t T, int Hq, int Hkv, int HS) {
    problem p;
    memset(&p, 0, sizeof p);
    p.b = block_of(T, Hq, Hkv, HS);
    p.nq = T * p.b.q_stride;
    p.nkv = T * p.b.kv_stride;
    floatX **stored[4] = {&p.q, &p.kv, &p.out_x, &p.dout};
    for (int i = 0; i < 4; i++) {
        int64_t n = i == 1 ? p.nkv : p.nq;
        *stored[i] = (floatX *)memory(sizeof(floatX) * (size_t)n);
        op_init_normal(*stored[i], 5, (uint64_t)i, 0, n, 1);
    }
    p.out = (float *)memory(sizeof(float) * (size_t)p.nq);
    p.dq = (float *)memory(sizeof(float) * (size_t)p.nq);
    p.dkv = (float *)memory(sizeof(float) * (size_t)p.nkv);
    p.lse = (float *)memory(sizeof(float) * (size_t)(T * Hq));
    p.delta = (float *)memory(sizeof(float) * (size_t)(T * Hq));
    size_t forward = op_attention_scratch(p.b, false), backward = op_attention_scratch(p.b, true);
    p.scratch = memory(forward > backward ? forward : backward);
    return p;
}
static void problem_free(problem p) {
    void *all[] = {p.q, p.kv, p.out_x, p.dout, p.out, p.dq, p.dkv, p.lse, p.delta, p.scratch};
    for (int i = 0; i < 10; i++) device_free(all[i]);
}
// Sets results to 1e30, so that what is not written again is not right either: those of the backward pass, or of the forward pass.
static void forget(const problem *p, bool backward) {
    float *results[2] = {backward ? p->dq : p->out, backward ? p->dkv : p->lse};
    int64_t n[2] = {p->nq, backward ? p->nkv : p->b.Tq * p->b.Hq};
    for (int i = 0; i < 2; i++) attention_lse_copy(results[i], results[i], 1, n[i], 0, 0, 0);
}
static floatX *values_of(const problem *p) { return p->kv + (int64_t)p->b.Hkv * p->b.HS; }
static float *dv_of(const problem *p) { return p->dkv + (int64_t)p->b.Hkv * p->b.HS; }
// Computes delta, and out as it is stored, from the merged out.
static void between(const problem *p) {
    op_cast_from_float(p->out_x, p->out, p->nq);
    op_attention_delta(p->delta, p->out_x, p->dout, p->b);
}
static void whole_backward(const problem *p) {
    between(p);
    op_attention_backward(p->dq, p->dkv, dv_of(p), p->q, p->kv, values_of(p), p->out_x, p->dout, p->lse, p->delta, p->b,
                          false, false, p->scratch);
}
// The same by the hand-written kernels: in float, or on tensor cores (false when those do not take the shape).
static bool by_hand(const problem *p, bool backward, bool tensor_cores) {
    if (backward) {
        between(p);
        if (tensor_cores)
            return attention_mma_backward(p->dq, p->dkv, dv_of(p), p->q, p->kv, values_of(p), p->dout, p->lse, p->delta, p->b, false,
                                          false);
        attention_kernel_backward(p->dq, p->dkv, dv_of(p), p->q, p->kv, values_of(p), p->dout, p->lse, p->delta, p->b, false, false);
        return true;
    }
    if (tensor_cores) return attention_mma_forward(p->out, p->lse, p->q, p->kv, values_of(p), p->b, false);
    attention_kernel_forward(p->out, p->lse, p->q, p->kv, values_of(p), p->b, false);
    return true;
}
static float *copy_of(const float *x, int64_t n) {
    float *copy = HOST_NEW(float, n);
    device_to_host(copy, x, sizeof(float) * (size_t)n);
    return copy;
}
// Root mean square of a - b over that of b; infinite if any element is not finite.
static double apart(const float *a, const float *b, int64_t n) {
    double d = 0, s = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i])) return INFINITY;
        d += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        s += (double)b[i] * (double)b[i];
    }
    return sqrt(d / s);
}
static double apart_from(const float *device, float *host, int64_t n) { // frees host
    float *now = copy_of(device, n);
    double d = apart(now, host, n);
    free(now);
    free(host);
    return d;
}

// ---- the points ----

// The library rounds probabilities and their gradients to bf16 (2^-8 each at most, independent): 2^-7 of the root mean square is ample.
#define LIBRARY_BOUND (1.0 / 128)

// p's tensors, as `who` computed them, against those of the hand-written kernels in float.
static void compare_forward(int point, const char *who, const problem *p, const float *out, const float *lse) {
    float *now = copy_of(p->out, p->nq), *now_lse = copy_of(p->lse, p->b.Tq * p->b.Hq);
    double of_out = apart(now, out, p->nq), of_lse = apart(now_lse, lse, p->b.Tq * p->b.Hq);
    say(point, of_out <= LIBRARY_BOUND && of_lse <= 1e-4 ? "pass" : "fail",
        "%s, T %lld, heads %d on %d of %d%s%s: out %.1e, lse %.1e", who, (long long)p->b.Tq, p->b.Hq, p->b.Hkv, p->b.HS,
        p->b.causal ? ", causal" : "", p->b.documents.first != NULL ? ", documents" : "", of_out, of_lse);
    free(now);
    free(now_lse);
}
static void compare_backward(int point, const char *who, const problem *p, const float *dq, const float *dkv) {
    float *now = copy_of(p->dq, p->nq), *now_dkv = copy_of(p->dkv, p->nkv);
    double of_dq = apart(now, dq, p->nq), of_dkv = apart(now_dkv, dkv, p->nkv);
    say(point, of_dq <= LIBRARY_BOUND && of_dkv <= LIBRARY_BOUND ? "pass" : "fail",
        "%s, T %lld, heads %d on %d of %d%s%s: dq %.1e, dk and dv %.1e", who, (long long)p->b.Tq, p->b.Hq, p->b.Hkv, p->b.HS,
        p->b.causal ? ", causal" : "", p->b.documents.first != NULL ? ", documents" : "", of_dq, of_dkv);
    free(now);
    free(now_dkv);
}
// The library, and the hand-written kernels on tensor cores, against those in float. documents > 0: packed documents of that length.
// by_library: the library must compute it. races: the library is left out.
static void three_ways(int64_t T, int Hq, int Hkv, int HS, bool causal, int64_t documents, bool by_library) {
    problem p = problem_make(T, Hq, Hkv, HS);
    int point = Hq > Hkv ? 3 : 1;
    int64_t *first = HOST_NEW(int64_t, T), *on_device = (int64_t *)memory(sizeof(int64_t) * (size_t)T);
    p.b.causal = causal;
    if (documents > 0) {
        for (int64_t i = 0; i < T; i++) first[i] = i / documents * documents;
        device_from_host(on_device, first, sizeof(int64_t) * (size_t)T);
        p.b.documents.first = on_device;
        p.b.documents.host = first;
        p.b.documents.split = T;
    }
    by_hand(&p, false, false);
    float *out = copy_of(p.out, p.nq), *lse = copy_of(p.lse, T * Hq);
    by_hand(&p, true, false);
    float *dq = copy_of(p.dq, p.nq), *dkv = copy_of(p.dkv, p.nkv);
    forget(&p, false);
    if (by_hand(&p, false, true)) {
        compare_forward(point, "tensor cores by hand", &p, out, lse);
        forget(&p, true);
        by_hand(&p, true, true);
        compare_backward(point, "tensor cores by hand", &p, dq, dkv);
    }
    if (!races) {
        int64_t tiles[3] = {attention_test_engine_tiles()};
        forget(&p, false);
        op_attention_forward(p.out, p.lse, p.q, p.kv, values_of(&p), p.b, false, p.scratch);
        compare_forward(point, op_attention_engine(documents > 0), &p, out, lse);
        tiles[1] = attention_test_engine_tiles();
        forget(&p, true);
        whole_backward(&p);
        compare_backward(point, op_attention_engine(documents > 0), &p, dq, dkv);
        tiles[2] = attention_test_engine_tiles();
        for (int pass = 0; pass < 2 && by_library && attention_call_possible(); pass++) // otherwise ours were compared with ours
            if (tiles[pass + 1] == tiles[pass])
                say(point, "fail", "%s did not compute the %s pass", op_attention_engine(false), pass == 0 ? "forward" : "backward");
    }
    float *copies[] = {out, lse, dq, dkv};
    for (int i = 0; i < 4; i++) free(copies[i]);
    free(first);
    device_free(on_device);
    problem_free(p);
}
static void point_1_and_3(void) {
    if (attention_call_possible()) // otherwise the hand-written kernels stand in for the engine and are compared with themselves
        for (int HS = 64; HS <= 128; HS *= 2)
            for (int documents = 0; documents < 2; documents++)
                for (int backward = 0; backward < 2; backward++)
                    say(1, attention_engine_agrees(HS, documents == 1, backward == 1) ? "pass" : "fail",
                        "%s, heads of %d, %s, on the small blocks that %s begins with", op_attention_engine(false), HS,
                        backward == 1 ? "backward" : "forward", documents == 1 ? "a run with packed documents" : "every run");
    static const int shapes[][4] = {{128, 8, 8, 64}, {1024, 8, 2, 64}, {2048, 4, 1, 128}, {4096, 32, 8, 128},
                                    {2048, 4, 4, 256}, {65536, 1, 1, 128}};
    for (int i = 0; i < (small ? 2 : 6); i++)
        for (int causal = 0; causal < 2; causal++)
            three_ways(small ? 128 : shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3], causal == 1, 0, shapes[i][3] <= 128);
    three_ways(small ? 100 : 8000, 8, 2, 128, true, small ? 30 : 1500, false); // the last tile is cut short; boundaries lie inside tiles
    three_ways(small ? 100 : 5000, 8, 8, 64, true, small ? 7 : 333, false);
    attention_test_documents(small ? 16 : 512);
    three_ways(small ? 100 : 16000, 4, 1, 128, true, small ? 40 : 5100, !small); // pieces for the library, if of 512 rows or more
    attention_test_documents(0);
}
// racecheck takes some 0.1 us for each access to shared memory, which those in float make 14 HS times for each query, key and head. Two
// tiles of theirs load everything twice. Those on tensor cores load the next tile while they compute one: each half of their memory is
// loaded again from the third tile on, of up to 64 rows.
static void point_1_races(void) {
    for (int HS = 64; HS <= 128; HS *= 2) {
        for (int kind = 0; kind < 3; kind++) three_ways(40, 2, 1, HS, kind > 0, kind == 2 ? 15 : 0, false);
        problem p = problem_make(200, 2, 1, HS);
        for (int causal = 0; causal < 2; causal++) { // point 1 says whether this is right
            p.b.causal = causal == 1;
            if (!by_hand(&p, false, true) || !by_hand(&p, true, true)) say(1, "fail", "tensor cores do not take heads of %d", HS);
        }
        device_synchronize();
        problem_free(p);
    }
}

static void point_2(void) {
    problem p = problem_make(small ? 512 : 4096, 8, 2, 128); // quarters are whole tiles
    p.b.causal = false;
    op_attention_forward(p.out, p.lse, p.q, p.kv, values_of(&p), p.b, false, p.scratch);
    float *out = copy_of(p.out, p.nq);
    whole_backward(&p);
    float *dq = copy_of(p.dq, p.nq), *dkv = copy_of(p.dkv, p.nkv);
    attention_block part = p.b;
    part.Tk = p.b.Tk / 4;
    int64_t step = part.Tk * p.b.kv_stride;
    forget(&p, false);
    for (int k = 0; k < 4; k++) op_attention_forward(p.out, p.lse, p.q, p.kv + k * step, values_of(&p) + k * step, part, k > 0, p.scratch);
    double of_out = apart_from(p.out, out, p.nq);
    between(&p);
    forget(&p, true);
    for (int k = 0; k < 4; k++)
        op_attention_backward(p.dq, p.dkv + k * step, dv_of(&p) + k * step, p.q, p.kv + k * step, values_of(&p) + k * step, p.out_x, p.dout,
                              p.lse, p.delta, part, k > 0, false, p.scratch);
    double of_dq = apart_from(p.dq, dq, p.nq), of_dkv = apart_from(p.dkv, dkv, p.nkv);
    bool good = of_out <= LIBRARY_BOUND && of_dq <= LIBRARY_BOUND && of_dkv <= LIBRARY_BOUND;
    say(2, good ? "pass" : "fail", "four blocks of keys and one: out %.1e, dq %.1e, dk and dv %.1e apart", of_out, of_dq, of_dkv);
    problem_free(p);
}

static void point_4(bool deterministic) { // true comes last: there is no way back
    if (deterministic) device_use_deterministic();
    problem p = problem_make(small ? 128 : 16384, 8, 2, 128);
    op_attention_forward(p.out, p.lse, p.q, p.kv, values_of(&p), p.b, false, p.scratch);
    whole_backward(&p);
    float *dq = copy_of(p.dq, p.nq), *dkv = copy_of(p.dkv, p.nkv);
    forget(&p, true);
    whole_backward(&p);
    float *dq2 = copy_of(p.dq, p.nq), *dkv2 = copy_of(p.dkv, p.nkv);
    bool same_dq = memcmp(dq, dq2, sizeof(float) * (size_t)p.nq) == 0, same_dkv = memcmp(dkv, dkv2, sizeof(float) * (size_t)p.nkv) == 0;
    bool good = !deterministic || (same_dq && same_dkv); // the fastest may differ
    say(4, good ? "pass" : "fail", "backward twice, %s: dq %s, dk and dv %s", deterministic ? "deterministic" : "fastest",
        same_dq ? "equal" : "not equal", same_dkv ? "equal" : "not equal");
    free(dq);
    free(dkv);
    free(dq2);
    free(dkv2);
    problem_free(p);
}

// Forward on two tiles of 524160 rows, the most that a call of 32 heads of 128 has: 4.3e9 elements of q. The hand-written kernel
// computes the last 64 rows again: with all earlier keys, then with their own.
static void point_5(void) {
    int64_t T = small ? 512 : 1048320, rows = 64;
    attention_block b;
    problem one = problem_make(128, 32, 8, 128); // only its block is needed
    b = one.b;
    problem_free(one);
    b.Tq = b.Tk = b.lse_stride = T;
    int64_t nq = T * b.q_stride, nkv = T * b.kv_stride;
    floatX *q = (floatX *)memory(sizeof(floatX) * (size_t)nq), *kv = (floatX *)memory(sizeof(floatX) * (size_t)nkv);
    float *out = (float *)memory(sizeof(float) * (size_t)nq), *lse = (float *)memory(sizeof(float) * (size_t)(T * b.Hq));
    float *again = (float *)memory(sizeof(float) * (size_t)(rows * b.q_stride));
    float *lse_again = (float *)memory(sizeof(float) * (size_t)(rows * b.Hq));
    void *scratch = memory(op_attention_scratch(b, false));
    op_init_normal(q, 5, 1, 0, nq, 1);
    op_init_normal(kv, 5, 2, 0, nkv, 1);
    op_attention_forward(out, lse, q, kv, kv + (int64_t)b.Hkv * b.HS, b, false, scratch);
    attention_block last = b;
    last.Tq = rows;
    last.lse_stride = rows;
    last.Tk = T - rows;
    last.causal = false;
    const floatX *q_last = q + (T - rows) * b.q_stride, *k_last = kv + (T - rows) * b.kv_stride;
    attention_kernel_forward(again, lse_again, q_last, kv, kv + (int64_t)b.Hkv * b.HS, last, false);
    last.Tk = rows;
    last.causal = true;
    attention_kernel_forward(again, lse_again, q_last, k_last, k_last + (int64_t)b.Hkv * b.HS, last, true);
    float *want = copy_of(again, rows * b.q_stride);
    double d = apart_from(out + (T - rows) * b.q_stride, want, rows * b.q_stride);
    say(5, d <= 2 * LIBRARY_BOUND ? "pass" : "fail",
        "%.2e elements of q: the last %lld rows are %.1e from the hand-written kernel", (double)nq, (long long)rows, d);
    void *all[] = {q, kv, out, lse, again, lse_again, scratch};
    for (int i = 0; i < 7; i++) device_free(all[i]);
}

// Backward on 256K rows of 32 heads, where dq alone has 2^32 bytes. The hand-written kernels compute again dq of
// the last 64 rows, and dk and dv of the first 64 (which all queries see) and of the last.
static void point_5_backward(void) {
    int64_t T = small ? 256 : 262144, rows = 64, last = T - rows;
    problem p = problem_make(T, small ? 4 : 32, small ? 1 : 8, small ? 64 : 128);
    int64_t n = rows * p.b.q_stride, nkv = rows * p.b.kv_stride;
    op_attention_forward(p.out, p.lse, p.q, p.kv, values_of(&p), p.b, false, p.scratch);
    whole_backward(&p);
    float *dq = (float *)memory(sizeof(float) * (size_t)n), *dkv[2], *unused = p.out; // as large as any
    for (int i = 0; i < 2; i++) dkv[i] = (float *)memory(sizeof(float) * (size_t)nkv);
    struct {
        int64_t query, queries, key, keys;
        float *dq, *dkv;
        bool add_dq, add_dkv;
    } parts[4] = {{0, rows, 0, rows, unused, dkv[0], false, false},    // the first rows, causal
                  {rows, last, 0, rows, unused, dkv[0], false, true},  // all other queries on the first keys
                  {last, rows, last, rows, dq, dkv[1], false, false},  // the last rows, causal
                  {last, rows, 0, last, dq, unused, true, false}};     // the last queries on all other keys
    for (int i = 0; i < 4; i++) {
        attention_block b = p.b;
        int64_t q_at = parts[i].query * b.q_stride, kv_at = parts[i].key * b.kv_stride, v_at = values_of(&p) - p.kv;
        b.Tq = parts[i].queries;
        b.Tk = parts[i].keys;
        b.causal = parts[i].query == parts[i].key;
        attention_kernel_backward(parts[i].dq, parts[i].dkv, parts[i].dkv + v_at, p.q + q_at, p.kv + kv_at, p.kv + kv_at + v_at,
                                  p.dout + q_at, p.lse + parts[i].query, p.delta + parts[i].query, b, parts[i].add_dq, parts[i].add_dkv);
    }
    double of_dq = apart_from(p.dq + last * p.b.q_stride, copy_of(dq, n), n), of_first = apart_from(p.dkv, copy_of(dkv[0], nkv), nkv);
    double of_last = apart_from(p.dkv + last * p.b.kv_stride, copy_of(dkv[1], nkv), nkv);
    bool good = of_dq <= LIBRARY_BOUND && of_first <= LIBRARY_BOUND && of_last <= LIBRARY_BOUND;
    say(5, good ? "pass" : "fail",
        "backward, dq of %.2e bytes: dq of the last %lld rows %.1e apart, dk and dv of the first %.1e, of the last %.1e",
        (double)p.nq * sizeof(float), (long long)rows, of_dq, of_first, of_last);
    device_free(dq);
    for (int i = 0; i < 2; i++) device_free(dkv[i]);
    problem_free(p);
}

// The kernels around attention, with 640K rows: their last rows are, bit for bit, those of a call with these rows alone.
static floatX *stored(int64_t n) { // random numbers
    floatX *x = (floatX *)memory(sizeof(floatX) * (size_t)n);
    op_init_normal(x, 5, 3, 0, n, 1);
    return x;
}
static float *floats(int64_t n) { // the same million of random numbers again and again
    int64_t some = min_i64(n, 1 << 20);
    floatX *x = stored(some);
    float *y = (float *)memory(sizeof(float) * (size_t)n);
    for (int64_t i = 0; i < n; i += some) op_cast_to_float(y + i, x, min_i64(some, n - i));
    device_free(x);
    return y;
}
static int different; // of the results of point_5_rows
static void same(const char *what, const void *a, const void *b, size_t bytes) {
    char *x = HOST_NEW(char, bytes), *y = HOST_NEW(char, bytes);
    device_to_host(x, a, bytes);
    device_to_host(y, b, bytes);
    if (memcmp(x, y, bytes) != 0) {
        printf("    %s: its last rows are not those of a call with these rows alone\n", what);
        different++;
    }
    free(x);
    free(y);
}
static void point_5_rows(void) {
    int64_t T = small ? 512 : 655360, rows = 64, before = T - rows, D = 4096, X = sizeof(floatX);
    head_layout l = head_layout_make(1, 32, 8, 128);
    int64_t width = 48 * 128, kv_width = 16 * 128;
    size_t scratch_bytes = op_rmsnorm_backward_scratch(T, D), embedding_bytes = op_embedding_backward_scratch(T);
    void *scratch = memory(scratch_bytes > embedding_bytes ? scratch_bytes : embedding_bytes);
    floatX *x = stored(T * D), *y = stored(T * D), *dx = (floatX *)memory((size_t)(T * D * X)),
        *alone = stored(rows * width), *w = stored(rows * D);
    float *rstd = floats(T), *rstd_alone = floats(rows), *dw = floats((rows + 1) * D), *dw_alone = floats((rows + 1) * D);

    op_rmsnorm_forward(y, rstd, x, w, T, D, 1e-5f);
    op_rmsnorm_forward(alone, rstd_alone, x + before * D, w, rows, D, 1e-5f);
    same("RMSNorm forward", y + before * D, alone, (size_t)(rows * D * X));
    device_zero(dx, (size_t)(T * D * X));
    device_zero(alone, (size_t)(rows * D * X));
    op_rmsnorm_backward(dx, dw, y, x, w, rstd, T, D, true, scratch);
    op_rmsnorm_backward(alone, dw_alone, y + before * D, x + before * D, w, rstd + before, rows, D, true, scratch);
    same("RMSNorm backward", dx + before * D, alone, (size_t)(rows * D * X));

    // The last rows alone have other tokens than 0.
    int32_t *host = HOST_NEW(int32_t, T), *tokens = (int32_t *)memory(sizeof *tokens * (size_t)T);
    for (int64_t t = 0; t < T; t++) host[t] = t < before ? 0 : (int32_t)(1 + t - before);
    device_from_host(tokens, host, sizeof *tokens * (size_t)T);
    device_zero(dw, sizeof(float) * (size_t)((rows + 1) * D));
    device_zero(dw_alone, sizeof(float) * (size_t)((rows + 1) * D));
    op_embedding_backward(dw, tokens, x, T, D, scratch);
    op_embedding_backward(dw_alone, tokens + before, x + before * D, rows, D, scratch);
    same("embedding backward", dw + D, dw_alone + D, sizeof(float) * (size_t)(rows * D));
    for (int64_t t = 0; t < T; t++) host[t] = (int32_t)(t % rows);
    device_from_host(tokens, host, sizeof *tokens * (size_t)T);
    op_embedding_forward(dx, tokens, w, T, D);
    op_embedding_forward(alone, tokens + before, w, rows, D);
    same("embedding forward", dx + before * D, alone, (size_t)(rows * D * X));

    attention_block b = {.Tq = T, .lse_stride = T, .Hq = 32, .Hkv = 8, .HS = 128, .q_stride = D, .sum_stride = D};
    float *delta = floats(32 * T), *delta_alone = floats(32 * rows);
    op_attention_delta(delta, x, y, b);
    b.Tq = b.lse_stride = rows;
    op_attention_delta(delta_alone, x + before * D, y + before * D, b);
    for (int h = 0; h < 32; h++) same("delta", delta + h * T + before, delta_alone + h * rows, sizeof(float) * (size_t)rows);
    void *norms[] = {dx, w, rstd, rstd_alone, dw, dw_alone, tokens, delta, delta_alone, scratch};
    for (int i = 0; i < 10; i++) device_free(norms[i]);

    device_free(y);
    device_free(x);
    floatX *qkv = stored(T * width), *q = stored(T * D), *kv = stored(T * kv_width), *q_alone = stored(rows * D),
        *kv_alone = stored(rows * kv_width);
    float *table = floats(T * 128);
    op_rope_pack_forward(q_alone, kv_alone, qkv + before * width, table + before * 128, rows, l, 0, rows);
    for (int range = 0; range < 2; range++) { // all rows, then the last ones as a range of them
        device_zero(q + before * D, (size_t)(rows * D * X));
        device_zero(kv + before * kv_width, (size_t)(rows * kv_width * X));
        op_rope_pack_forward(q, kv, qkv + (range == 1 ? before * width : 0), table, T, l, range == 1 ? before : 0, range == 1 ? rows : T);
        same(range == 1 ? "RoPE forward of a range, q" : "RoPE forward, q", q + before * D, q_alone, (size_t)(rows * D * X));
        same(range == 1 ? "RoPE forward of a range, k and v" : "RoPE forward, k and v", kv + before * kv_width, kv_alone,
             (size_t)(rows * kv_width * X));
    }
    op_rope_unpack_backward(qkv, q, kv, table, T, l, 0, T);
    op_rope_unpack_backward(alone, q + before * D, kv + before * kv_width, table + before * 128, rows, l, 0, rows);
    same("RoPE backward", qkv + before * width, alone, (size_t)(rows * width * X));
    op_rope_unpack_backward(alone, q, kv, table, T, l, before, rows);
    same("RoPE backward of a range", qkv + before * width, alone, (size_t)(rows * width * X));
    op_copy_rows(q, D, qkv, width, T, D);
    op_copy_rows(q_alone, D, qkv + before * width, width, rows, D);
    same("rows of some heads", q + before * D, q_alone, (size_t)(rows * D * X));
    device_free(kv);
    device_free(q);
    float *dq = floats(T * D);
    op_cast_rows(qkv, width, dq, T, D); // what lies between the rows is equal from before
    op_cast_rows(alone, width, dq + before * D, rows, D);
    same("float to stored, in wider rows", qkv + before * width, alone, (size_t)(rows * width * X));
    op_cast_from_float(qkv, dq, T * D);
    op_cast_from_float(alone, dq + before * D, rows * D);
    same("float to stored", qkv + before * D, alone, (size_t)(rows * D * X));
    void *rest[] = {alone, qkv, q_alone, kv_alone, table, dq};
    for (int i = 0; i < 6; i++) device_free(rest[i]);
    free(host);
    say(5, different == 0 ? "pass" : "fail", "%.2e elements: the last rows of the kernels around attention", (double)(T * D));
}

static void point_6(void) {
#if defined(DEVICE_EMULATED) || defined(WITHOUT_CUDNN)
    say(6, "not possible", "no cuDNN in this build");
#else
    static char json[8192];
    int32_t device = 0;
    int64_t length = 0;
    cudnnBackendDescriptor_t d = NULL;
    cudnnStatus_t status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &d);
    if (status == CUDNN_STATUS_SUCCESS) status = cudnnBackendSetAttribute(d, CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, 1, &device);
    if (status == CUDNN_STATUS_SUCCESS) status = cudnnBackendFinalize(d);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnnBackendGetAttribute(d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                          (int64_t)sizeof json - 1, &length, json);
    error_text error = {"", 0};
    if (status != CUDNN_STATUS_SUCCESS) error_set(&error, "%s", cudnnGetErrorString(status));
    else if (properties_file != NULL) file_write(properties_file, json, strlen(json), &error);
    say(6, error.text[0] == '\0' ? "pass" : "fail", "%s%s",
        error.text[0] == '\0' ? "cuDNN's properties of this GPU, for test_cudnn_graphs: " : error.text,
        error.text[0] == '\0' && properties_file != NULL ? properties_file : "");
    if (status == CUDNN_STATUS_SUCCESS) printf("%s\n", json);
#endif
}

static void point_9(void) {
    size_t bytes = small ? 1 << 20 : (size_t)4 << 30;
    double began = device_seconds();
    char *host = (char *)device_host_slab(2 * bytes);
    double pinned = device_seconds() - began;
    char *device = (char *)memory(2 * bytes);
    if (host == NULL) {
        say(9, "fail", "%zu bytes cannot be pinned", 2 * bytes);
        return;
    }
    memset(host, 0x5a, bytes);
    device_copier *lanes[2] = {device_copier_new(), device_copier_new()};
    double rate[3];
    for (int run = 0; run < 4; run++) { // the first run touches memory
        int way = run == 0 ? 2 : run - 1;
        int64_t tickets[2] = {0, 0};
        began = device_seconds();
        if (way != 1) tickets[0] = device_copy_start(lanes[0], device, host, bytes);
        if (way != 0) tickets[1] = device_copy_start(lanes[1], host + bytes, device + bytes, bytes);
        for (int i = 0; i < 2; i++)
            if (tickets[i] > 0) device_copy_finish(lanes[i], tickets[i]);
        device_synchronize();
        rate[way] = (double)bytes / (device_seconds() - began) * 1e-9;
    }
    device_to_host(host + bytes, device, bytes);
    say(9, memcmp(host, host + bytes, bytes) == 0 ? "pass" : "fail",
        "to the device %.1f GB/s, to the host %.1f GB/s, both at once %.1f GB/s each; pinning takes %.2f s a GiB", rate[0], rate[1],
        rate[2], pinned / ((double)(2 * bytes) / (double)(1 << 30)));
    device_copier_free(lanes[0]);
    device_copier_free(lanes[1]);
    device_free(device);
    device_host_slab_free(host, 2 * bytes);
}

int main(int argc, char **argv) {
    error_text error = {"", 0};
    bool wanted[10] = {false}, any = false;
    for (int i = 1; i < argc; i++) {
        int n = (int)strtol(argv[i], NULL, 10);
        size_t length = strlen(argv[i]);
        if (strcmp(argv[i], "small") == 0) small = true;
        else if (strcmp(argv[i], "races") == 0) races = any = true;
        else if (length > 5 && strcmp(argv[i] + length - 5, ".json") == 0) properties_file = argv[i];
        else if (n >= 1 && n <= 9 && n != 7 && n != 8) wanted[n] = any = true;
        else {
            fprintf(stderr,
                    "error: unknown argument %s; legal values are small, races, 1, 2, 3, 4, 5, 6, 9, and a file NAME.json for point 6\n",
                    argv[i]);
            return EXIT_USER_ERROR;
        }
    }
    if (!device_start(1, &error)) {
        fprintf(stderr, "error: %s\n", error.text);
        return EXIT_USER_ERROR;
    }
    if (races) point_1_races();
    if (!any || wanted[1] || wanted[3]) point_1_and_3();
    if (!any || wanted[2]) point_2();
    if (!any || wanted[5]) point_5();
    if (!any || wanted[5]) point_5_backward();
    if (!any || wanted[5]) point_5_rows();
    if (!any || wanted[6]) point_6();
    if (!any || wanted[9]) point_9();
    for (int d = 0; d < 2 && (!any || wanted[4]); d++) point_4(d == 1);
    device_stop();
    return failed ? EXIT_FAILED : passed ? EXIT_OK : 77;
}
