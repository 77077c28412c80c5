// DEVICE=emulated: the attention engine is the hand-written kernels. See attention_call.h.
//
// It is made wrong for some head sizes, so that test_kernels can test what then happens: 40 is refused; 48: gradients; 56 and 72: gradients
// of queries with low scores, by much and by little; 88: lse; 96: dq is added to what is there; 104: dv.
#include "attention_call.h"

void emulation_runs(bool begins) __attribute__((weak)); // test/fake_cuda.c, if linked: told when device memory is in use

const char *op_attention_engine(bool documents) {
    return documents ? "the hand-written kernels, tiles of other documents skipped" : "the hand-written kernel";
}
bool attention_call_possible(void) { return true; }

// For engines that are wrong in one tensor alone, which test_kernels tests.
static void spoil(float *x, int64_t n) {
    if (emulation_runs != NULL) emulation_runs(true);
    for (int64_t i = 0; i < n; i++) x[i] *= 1.1f;
    if (emulation_runs != NULL) emulation_runs(false);
}

bool attention_call(attention_shape s, void *const tensors[ATTENTION_TENSORS], float scale, void *workspace) {
    // cuDNN takes 128 rows or a multiple of it, and pieces of documents have few sizes. Tests make them smaller, down to 4 rows.
    if (s.Tq % 4 != 0 || s.Tk % 4 != 0)
        comm_abort("the attention engine is asked for %lld queries and %lld keys", (long long)s.Tq, (long long)s.Tk);
    if (s.HS == 40 || getenv("TRAIN_LLAMA_TEST_NO_ENGINE") != NULL) return false; // for tests: a shape that no engine takes
    if (emulation_runs != NULL) emulation_runs(true);
    memset(workspace, 0xff, attention_call_workspace(s)); // NaN for anyone else who uses this memory
    if (emulation_runs != NULL) emulation_runs(false);
    if (s.HS == 48 && s.backward) scale *= 1.1f; // lets test_kernels test an engine that is wrong
    int64_t width = (int64_t)s.Hq * s.HS, nq = s.Tq * width, n = s.Tk * s.HS; // n: of one head
    attention_block b = {.Tq = s.Tq, .Tk = s.Tk, .Hq = s.Hq, .Hkv = s.Hkv, .HS = s.HS, .q_stride = s.q_stride, .sum_stride = width,
                         .kv_stride = s.kv_stride, .lse_stride = s.Tq, .scale = scale, .causal = s.causal};
    const floatX *q = (const floatX *)tensors[ATTENTION_Q], *k = (const floatX *)tensors[ATTENTION_K],
                 *v = (const floatX *)tensors[ATTENTION_V];
    float *lse = (float *)tensors[ATTENTION_LSE];
    // Results, which are then rounded: out, or dq and the dk and dv of one head, whose k and v lie behind them, dense as well.
    size_t bytes = sizeof(float) * (size_t)(nq + 2 * n) + sizeof(floatX) * (size_t)(2 * n);
    float *sums = (float *)device_alloc(bytes), *dk = sums + nq, *dv = dk + n;
    floatX *k_head = (floatX *)(void *)(dv + n), *v_head = k_head + n;
    if (sums == NULL) comm_abort("the emulated attention engine is out of memory: %zu bytes", bytes);
    if (!s.backward) {
        attention_kernel_forward(sums, lse, q, k, v, b, false);
        if (s.HS == 88) spoil(lse, s.Hq * s.Tq);
        op_cast_from_float((floatX *)tensors[ATTENTION_OUT], sums, nq);
        device_free(sums);
        return true;
    }
    const floatX *out = (const floatX *)tensors[ATTENTION_OUT], *dout = (const floatX *)tensors[ATTENTION_DOUT];
    float *delta = (float *)tensors[ATTENTION_DELTA], *faulty = s.HS == 56 || s.HS == 72 ? HOST_NEW(float, s.Hq * s.Tq) : NULL;
    op_attention_delta(delta, out, dout, b);
    // And engines that are wrong only for queries with low scores, by much or by little.
    for (int64_t i = 0; i < s.Hq * s.Tq && faulty != NULL; i++)
        faulty[i] = lse[i] - (lse[i] >= -50 ? 0 : s.HS == 56 ? 1.0f : 0.07f);
    if (faulty != NULL) lse = faulty;
    bool adds = s.HS == 96; // one that adds to dq instead of setting it
    if (adds) op_cast_to_float(sums, (const floatX *)tensors[ATTENTION_DQ], nq);
    b.Hq = b.Hkv = 1;
    b.kv_stride = s.HS;
    for (int h = 0; h < s.Hq; h++) {
        int64_t at = h * s.HS, kv_at = h / (s.Hq / s.Hkv) * s.HS, row = h * s.Tq;
        op_copy_rows(k_head, s.HS, k + kv_at, s.kv_stride, s.Tk, s.HS);
        op_copy_rows(v_head, s.HS, v + kv_at, s.kv_stride, s.Tk, s.HS);
        attention_kernel_backward(sums + at, dk, dv, q + at, k_head, v_head, dout + at, lse + row, delta + row, b, adds, false);
        if (s.HS == 104) spoil(dv, n);
        op_cast_rows((floatX *)tensors[ATTENTION_DK] + at, width, dk, s.Tk, s.HS);
        op_cast_rows((floatX *)tensors[ATTENTION_DV] + at, width, dv, s.Tk, s.HS);
    }
    if (emulation_runs != NULL) emulation_runs(true);
    memset(tensors[ATTENTION_DQ_SUM], 0xff, sizeof(float) * (size_t)nq);
    if (emulation_runs != NULL) emulation_runs(false);
    free(faulty);
    op_cast_from_float((floatX *)tensors[ATTENTION_DQ], sums, nq);
    device_free(sums);
    return true;
}
