// Matrix products by cuBLASLt: bf16 factors, sums in float. See device/ops.h.
//
// cuBLASLt is column-major, we are row-major: our (rows, columns) is its (columns x rows). Its D (m x n) = op(A) op(B) + beta C is then
//     forward          y  (T, out)  = x w^T + residual   m = out, n = T,   k = in    A = w, transposed   B = x
//     backward input   dx (T, in)   = dy w               m = in,  n = T,   k = out   A = w               B = dy
//     backward weight  dw (out, in) (+)= dy^T x          m = in,  n = out, k = T     A = x               B = dy, transposed   D, C float
// The first time a shape is seen, the algorithms that cuBLASLt proposes are timed on the operands at hand and the fastest is kept.
#include "internal.h"

#include <cublasLt.h>

typedef enum { FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT } product_kind;
static const char *const kind_names[] = {"linear forward", "linear backward input", "linear backward weight"};

typedef struct {
    product_kind kind;
    bool adds;            // beta = 1: C is added
    uint32_t alignment;   // bytes that divide every address
    int32_t sms;          // SMs that the algorithm is made for; 0: all
    int64_t T, in, out;
} product_shape;

typedef struct {
    product_shape shape;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
    size_t result_bytes;
} product_plan;

enum { MAX_PROPOSALS = 8, TIMED_ROUNDS = 4 };

static struct {
    cublasLtHandle_t handle; // NULL: not started
    void *workspace, *own; // own: allocated here while the caller has named none
    bool deterministic;
    int32_t sms; // linear_test_sms_left
    product_plan *plans;
    int count, capacity;
} lt;

static void check(cublasStatus_t status, const char *what) {
    if (status != CUBLAS_STATUS_SUCCESS) comm_abort("cuBLASLt: %s: %s", what, cublasLtGetStatusString(status));
}

static void start(void) {
    if (lt.handle != NULL) return;
    check(cublasLtCreate(&lt.handle), "start");
    size_t version = cublasLtGetVersion();
    // Before: wrong beside another kernel in tensor memory, launches that fail (CUDA's release notes, bugs 5807900, 5124406).
    if (version < 130300 && device_compute_capability() >= 100 && comm_speaks())
        fprintf(stderr, "note: cuBLAS %zu.%zu.%zu: versions from 13.3 on (CUDA 13.2) have fewer known errors on Blackwell\n",
                version / 10000, version / 100 % 100, version % 100);
}

static const size_t workspace_bytes = DEVICE_LINEAR_WORKSPACE; // NVIDIA's recommendation for Hopper; enough for all GPUs before it
size_t op_linear_workspace(void) { return workspace_bytes; }
void op_linear_use_workspace(void *workspace) {
    if (lt.own != NULL) cuda_check(cudaFree(lt.own), "the workspace of matrix products");
    lt.own = NULL;
    lt.workspace = workspace;
}
static void *workspace_now(void) {
    if (lt.workspace == NULL) {
        cuda_check(cudaMalloc(&lt.own, workspace_bytes), "the workspace of matrix products");
        lt.workspace = lt.own;
    }
    return lt.workspace;
}

void linear_use_deterministic(void) { lt.deterministic = true; }

void linear_test_sms_left(int sms) {
    int all = 0;
    cuda_check(cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, 0), "counting SMs");
    lt.sms = sms > 0 ? all - sms : 0;
}

static cublasLtMatrixLayout_t layout(cudaDataType_t type, int64_t rows, int64_t columns) { // ours (columns, rows), dense
    cublasLtMatrixLayout_t l;
    check(cublasLtMatrixLayoutCreate(&l, type, (uint64_t)rows, (uint64_t)columns, rows), "layout");
    return l;
}

static const char *shape_text(product_shape s) {
    static char text[160];
    snprintf(text, sizeof text, "%s, T %lld, in %lld, out %lld", kind_names[s.kind], (long long)s.T, (long long)s.in, (long long)s.out);
    return text;
}

static bool shape_equal(product_shape a, product_shape b) {
    return a.kind == b.kind && a.adds == b.adds && a.alignment == b.alignment && a.sms == b.sms && a.T == b.T && a.in == b.in &&
           a.out == b.out;
}

static cublasStatus_t run(const product_plan *p, const void *a, const void *b, const void *c, void *d) {
    const float one = 1, beta = p->shape.adds ? 1 : 0;
    return cublasLtMatmul(lt.handle, p->operation, &one, a, p->a, b, p->b, &beta, c, p->c, d, p->c, &p->algorithm, workspace_now(),
                          workspace_bytes, device_compute_stream());
}

// Runs each proposal once. seconds[i] becomes the least that proposal i has taken so far; a refusal leaves it. events: count + 1.
static void time_round(product_plan *p, const cublasLtMatmulHeuristicResult_t *proposals, int count, const void *a, const void *b,
                       const void *c, void *d, cudaEvent_t *events, double *seconds) {
    bool ran[MAX_PROPOSALS];
    for (int i = 0; i < count; i++) {
        p->algorithm = proposals[i].algo;
        cuda_check(cudaEventRecord(events[i], device_compute_stream()), "timing products");
        ran[i] = run(p, a, b, c, d) == CUBLAS_STATUS_SUCCESS;
    }
    cuda_check(cudaEventRecord(events[count], device_compute_stream()), "timing products");
    cuda_check(cudaEventSynchronize(events[count]), "timing products");
    for (int i = 0; i < count; i++) {
        float milliseconds = 0;
        if (!ran[i]) continue;
        cuda_check(cudaEventElapsedTime(&milliseconds, events[i], events[i + 1]), "timing products");
        seconds[i] = fmin(seconds[i], 1e-3 * (double)milliseconds);
    }
}

// Takes the algorithm chosen for the same product without the addition, if there is one and it supports this product too.
static bool choose_as_without_addition(product_plan *p) {
    product_shape s = p->shape;
    s.adds = false;
    for (int i = 0; i < lt.count; i++) {
        cublasLtMatmulHeuristicResult_t needs;
        if (!shape_equal(lt.plans[i].shape, s)) continue;
        cublasStatus_t status = cublasLtMatmulAlgoCheck(lt.handle, p->operation, p->a, p->b, p->c, p->c, &lt.plans[i].algorithm, &needs);
        if (status != CUBLAS_STATUS_SUCCESS || needs.workspaceSize > workspace_bytes) return false;
        p->algorithm = lt.plans[i].algorithm;
        return true;
    }
    return false;
}

// Keeps the fastest of the proposals. Transfers may be under way and slow what runs beside them, so all proposals are timed in turn,
// several times, and each by its best run. Each run writes the result, d, again. A product that adds to its own result cannot be run twice:
// its runs write to temporary memory, allocated and freed in stream order. Without memory for that, it takes the algorithm chosen for the
// product without the addition, or else cuBLASLt's first proposal, with a note.
static void choose(product_plan *p, cublasLtMatmulHeuristicResult_t *proposals, int count, const void *a, const void *b, const void *c,
                   void *d) {
    p->algorithm = proposals[0].algo;
    if (count == 1) return;
    bool onto_itself = p->shape.adds && c == d;
    void *result = d;
    if (onto_itself && cudaMallocAsync(&result, p->result_bytes, device_compute_stream()) != cudaSuccess) {
        cudaGetLastError();
        static bool said;
        if (choose_as_without_addition(p)) return;
        if (!said)
            comm_note("note: not enough memory to time matrix products (%zu bytes); cuBLASLt's first choice is used", p->result_bytes);
        said = true;
        return;
    }
    cudaEvent_t events[MAX_PROPOSALS + 1];
    double seconds[MAX_PROPOSALS];
    int fastest = 0;
    for (int i = 0; i <= count; i++) cuda_check(cudaEventCreate(&events[i]), "timing products");
    for (int i = 0; i < count; i++) seconds[i] = INFINITY;
    for (int round = 0; round < TIMED_ROUNDS; round++) // the first also loads kernels
        time_round(p, proposals, count, a, b, c, result, events, seconds);
    for (int i = 0; i < count; i++)
        if (seconds[i] < seconds[fastest]) fastest = i;
    p->algorithm = proposals[fastest].algo;
    for (int i = 0; i <= count; i++) cuda_check(cudaEventDestroy(events[i]), "timing products");
    if (!onto_itself) return;
    cuda_check(cudaFreeAsync(result, device_compute_stream()), "timing products");
    device_synchronize(); // the pool gives the memory back when the host waits: cuDNN's next plan may need it
}

static void set_preference(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                           size_t bytes) {
    check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, value, bytes), "preference");
}

// cuBLAS 12.6.3 to 13.7.0 (CUDA 13.4.0): algorithm 66 silently loses the last terms of a long sum that is split into parts of unequal
// length (CUDA's release notes, bug 6580689).
static bool loses_terms(const cublasLtMatmulAlgo_t *algorithm, int64_t terms) {
    int32_t id = 0, parts = 1;
    size_t written;
    check(cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof id, &written), "algorithm");
    check(cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts, sizeof parts, &written), "algorithm");
    return id == 66 && parts > 1 && terms % parts != 0;
}

// Asks cuBLASLt for algorithms, the best first, and returns how many it proposes. terms: of each sum.
static int propose(const product_plan *p, int64_t terms, cublasLtMatmulHeuristicResult_t proposals[MAX_PROPOSALS]) {
    uint32_t alignment = p->shape.alignment;
    cublasLtMatmulPreference_t preference;
    check(cublasLtMatmulPreferenceCreate(&preference), "preference");
    set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes, sizeof workspace_bytes);
    set_preference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &alignment, sizeof alignment);
    set_preference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &alignment, sizeof alignment);
    set_preference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &alignment, sizeof alignment);
    set_preference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &alignment, sizeof alignment);
    // Split sums: the parts are added in float, neither rounded to bf16 first nor added in place in order of arrival.
    const uint32_t reductions[2] = {CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, CUBLASLT_REDUCTION_SCHEME_NONE};
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    int count = 0;
    for (int i = 0; i < 2 && count == 0; i++) { // the second time: sums not split at all
        int found = 0;
        set_preference(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions[i], sizeof reductions[i]);
        status = cublasLtMatmulAlgoGetHeuristic(lt.handle, p->operation, p->a, p->b, p->c, p->c, preference, MAX_PROPOSALS, proposals,
                                                &found);
        for (int k = 0; k < found && status == CUBLAS_STATUS_SUCCESS; k++)
            if (proposals[k].state == CUBLAS_STATUS_SUCCESS && !loses_terms(&proposals[k].algo, terms)) proposals[count++] = proposals[k];
    }
    if (status != CUBLAS_STATUS_SUCCESS || count == 0)
        comm_abort("cuBLASLt has no algorithm for %s: %s", shape_text(p->shape), cublasLtGetStatusString(status));
    check(cublasLtMatmulPreferenceDestroy(preference), "preference");
    return count;
}

static product_plan *plan_new(product_shape s, const void *a, const void *b, const void *c, void *d) {
    if (lt.count == lt.capacity) {
        lt.capacity = lt.capacity == 0 ? 32 : 2 * lt.capacity;
        lt.plans = (product_plan *)realloc(lt.plans, sizeof *lt.plans * (size_t)lt.capacity);
        if (lt.plans == NULL) comm_abort("out of host memory for the plans of matrix products");
    }
    product_plan *p = &lt.plans[lt.count++];
    memset(p, 0, sizeof *p);
    p->shape = s;
    // The table at the top of this file.
    bool forward = s.kind == FORWARD, weight = s.kind == BACKWARD_WEIGHT;
    int64_t m = forward ? s.out : s.in, n = weight ? s.out : s.T, k = forward ? s.in : weight ? s.T : s.out;
    cublasOperation_t transposed = CUBLAS_OP_T;
    check(cublasLtMatmulDescCreate(&p->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "operation");
    if (forward)
        check(cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed), "operation");
    if (weight)
        check(cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_TRANSB, &transposed, sizeof transposed), "operation");
    if (s.sms > 0)
        check(cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &s.sms, sizeof s.sms), "operation");
    p->a = forward ? layout(CUDA_R_16BF, k, m) : layout(CUDA_R_16BF, m, k);
    p->b = weight ? layout(CUDA_R_16BF, n, k) : layout(CUDA_R_16BF, k, n);
    p->c = layout(weight ? CUDA_R_32F : CUDA_R_16BF, m, n);
    p->result_bytes = (weight ? sizeof(float) : sizeof(bf16)) * (size_t)(m * n);
    cublasLtMatmulHeuristicResult_t proposals[MAX_PROPOSALS];
    int count = propose(p, k, proposals);
    choose(p, proposals, lt.deterministic ? 1 : count, a, b, c, d); // deterministic: no choice by timing, which varies
    return p;
}

static void product(product_kind kind, void *d, const void *a, const void *b, const void *c, int64_t T, int64_t in, int64_t out) {
    start();
    product_shape s = {kind, c != NULL, 256, lt.sms, T, in, out};
    while (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d) % s.alignment != 0) s.alignment /= 2;
    const void *read = c != NULL ? c : d; // cuBLASLt wants an address even when beta is 0
    product_plan *p = NULL;
    for (int i = 0; i < lt.count && p == NULL; i++)
        if (shape_equal(lt.plans[i].shape, s)) p = &lt.plans[i];
    if (p == NULL) p = plan_new(s, a, b, read, d);
    cuda_span_begin(kind_names[kind]);
    cublasStatus_t status = run(p, a, b, read, d);
    cuda_span_end();
    if (status != CUBLAS_STATUS_SUCCESS) comm_abort("cuBLASLt: %s: %s", shape_text(s), cublasLtGetStatusString(status));
}

// Products are cut by rows so that no operand of T rows has more than 2^31 - 1 elements: cuBLAS 13.6.0 proposes an algorithm for larger
// ones, 68, that fails (NVIDIA/raft issue 3097). Weights of so many, from D 16744 on with Llama-3's vocabulary, are not cut.
static int64_t most_elements = INT32_MAX;
void linear_test_elements(int64_t elements) { most_elements = elements > 0 ? elements : INT32_MAX; }
static int64_t rows_at_a_time(int64_t in, int64_t out) { return max_i64(128, most_elements / max_i64(in, out) / 128 * 128); }

void op_linear_forward(floatX *y, const floatX *x, const floatX *w, const floatX *residual, int64_t T, int64_t in, int64_t out) {
    int64_t rows = rows_at_a_time(in, out);
    for (int64_t at = 0; at < T; at += rows)
        product(FORWARD, y + at * out, w, x + at * in, residual != NULL ? residual + at * out : NULL, min_i64(rows, T - at), in, out);
}
void op_linear_backward_input(floatX *dx, const floatX *dy, const floatX *w, int64_t T, int64_t in, int64_t out) {
    int64_t rows = rows_at_a_time(in, out);
    for (int64_t at = 0; at < T; at += rows) product(BACKWARD_INPUT, dx + at * in, w, dy + at * out, NULL, min_i64(rows, T - at), in, out);
}
void op_linear_backward_weight(float *dw, const floatX *dy, const floatX *x, int64_t T, int64_t in, int64_t out, bool add) {
    int64_t rows = rows_at_a_time(in, out);
    if (T == 0 && !add) device_zero(dw, sizeof(float) * (size_t)(in * out));
    for (int64_t at = 0; at < T; at += rows)
        product(BACKWARD_WEIGHT, dw, x + at * in, dy + at * out, add || at > 0 ? dw : NULL, min_i64(rows, T - at), in, out);
}
