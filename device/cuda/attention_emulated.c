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
    const floatX *q = (const floatX *)tensors[ATTENTION_Q], *k = (const floatX *)tensors[ATTENTION_K],
                 *v = (const floatX *)tensors[ATTENTION_V];
    float *lse = (float *)tensors[ATTENTION_LSE];
    int64_t nq = s.Tq * s.Hq * s.HS, nkv = s.Tk * s.Hq * s.HS;
    int64_t floats = nq + (s.backward ? 2 * nkv : 0); // results, which are then rounded: out, or dq, dk and dv
    float *sums = (float *)device_alloc(sizeof(float) * (size_t)floats), *dk = sums + nq, *dv = dk + nkv;
    if (sums == NULL) comm_abort("the emulated attention engine is out of memory: %lld floats", (long long)floats);
    if (!s.backward) {
        attention_kernel_forward(sums, lse, q, k, v, s, scale, false);
        if (s.HS == 88) spoil(lse, s.Hq * s.Tq);
        op_cast_from_float((floatX *)tensors[ATTENTION_OUT], sums, nq);
        device_free(sums);
        return true;
    }
    const floatX *out = (const floatX *)tensors[ATTENTION_OUT], *dout = (const floatX *)tensors[ATTENTION_DOUT];
    float *delta = (float *)tensors[ATTENTION_DELTA], *faulty = s.HS == 56 || s.HS == 72 ? HOST_NEW(float, s.Hq * s.Tq) : NULL;
    attention_kernel_delta(delta, out, dout, s);
    // And engines that are wrong only for queries with low scores, by much or by little.
    for (int64_t i = 0; i < s.Hq * s.Tq && faulty != NULL; i++)
        faulty[i] = lse[i] - (lse[i] >= -50 ? 0 : s.HS == 56 ? 1.0f : 0.07f);
    if (faulty != NULL) lse = faulty;
    bool adds = s.HS == 96; // one that adds to dq instead of setting it
    if (adds) op_cast_to_float(sums, (const floatX *)tensors[ATTENTION_DQ], nq);
    attention_shape one = s;
    one.Hq = one.Hkv = 1;
    for (int h = 0; h < s.Hq; h++) {
        int64_t at = h * s.HS, kv_at = h / (s.Hq / s.Hkv) * s.HS, row = h * s.Tq;
        attention_kernel_backward(sums + at, dk + at, dv + at, q + at, k + kv_at, v + kv_at, dout + at, lse + row, delta + row, one, scale,
                                  adds, false);
    }
    if (emulation_runs != NULL) emulation_runs(true);
    memset(tensors[ATTENTION_DQ_SUM], 0xff, sizeof(float) * (size_t)(s.Tq * s.Hq * s.HS));
    if (emulation_runs != NULL) emulation_runs(false);
    free(faulty);
    if (s.HS == 104) spoil(dv, nkv);
    op_cast_from_float((floatX *)tensors[ATTENTION_DQ], sums, nq);
    op_cast_from_float((floatX *)tensors[ATTENTION_DK], dk, nkv);
    op_cast_from_float((floatX *)tensors[ATTENTION_DV], dv, nkv);
    device_free(sums);
    return true;
}
