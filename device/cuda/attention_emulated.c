// DEVICE=emulated: the attention engine is the hand-written kernels. See attention_call.h.
//
// It is made wrong for some head sizes, so that test_kernels can test what then happens: 40 is refused (rounded: except on the small check); 48: gradients;
// 56 and 72: gradients of queries with low scores, by much and by little; 88: lse; 104: dv.
#include "attention_call.h"

void emulation_runs(bool begins) __attribute__((weak)); // test/fake_cuda.c, if linked: told when device memory is in use

const char *op_attention_engine(bool documents) { return documents ? "the hand-written kernels, tiles of other documents skipped" : "the hand-written kernel"; }
bool attention_call_possible(void) { return true; }

// For engines that are wrong in one tensor alone, which test_kernels tests.
static void spoil(float *x, int64_t n) {
    if (emulation_runs != NULL) emulation_runs(true);
    for (int64_t i = 0; i < n; i++) x[i] *= 1.1f;
    if (emulation_runs != NULL) emulation_runs(false);
}

static void call_in_float(attention_shape s, void *const tensors[ATTENTION_TENSORS], float scale, void *workspace) {
    if (emulation_runs != NULL) emulation_runs(true);
    memset(workspace, 0xff, attention_call_workspace(s)); // NaN for anyone else who uses this memory
    if (emulation_runs != NULL) emulation_runs(false);
    if (s.HS == 48 && s.backward) scale *= 1.1f; // lets test_kernels test an engine that is wrong
    const floatX *q = (const floatX *)tensors[ATTENTION_Q], *k = (const floatX *)tensors[ATTENTION_K],
                 *v = (const floatX *)tensors[ATTENTION_V];
    float *lse = (float *)tensors[ATTENTION_LSE];
    if (!s.backward) {
        attention_kernel_forward((float *)tensors[ATTENTION_OUT], lse, q, k, v, s, scale, false);
        if (s.HS == 88) spoil(lse, s.Hq * s.lse_head);
        return;
    }
    const floatX *out = (const floatX *)tensors[ATTENTION_OUT], *dout = (const floatX *)tensors[ATTENTION_DOUT];
    float *dq = (float *)tensors[ATTENTION_DQ], *dk = (float *)tensors[ATTENTION_DK], *dv = (float *)tensors[ATTENTION_DV];
    float *delta = (float *)tensors[ATTENTION_DELTA], *faulty = s.HS == 56 || s.HS == 72 ? HOST_NEW(float, s.Hq * s.lse_head) : NULL;
    attention_kernel_delta(delta, out, dout, s);
    for (int64_t i = 0; i < s.Hq * s.lse_head && faulty != NULL; i++) // and engines that are wrong only for queries with low scores, by much or by little
        faulty[i] = lse[i] - (lse[i] >= -50 ? 0 : s.HS == 56 ? 1.0f : 0.07f);
    if (faulty != NULL) lse = faulty;
    int64_t n = s.Tk * s.dkv.row; // dkv_bf16: dense
    float *rounded = s.dkv_bf16 ? HOST_NEW(float, 2 * n) : NULL, *to_dk = rounded != NULL ? rounded : dk, *to_dv = rounded != NULL ? rounded + n : dv;
    attention_shape one = s;
    one.Hq = one.Hkv = 1;
    for (int h = 0; h < s.Hq; h++) {
        int64_t q_at = h * s.q.head, kv_at = h / (s.Hq / s.Hkv) * s.kv.head, dkv_at = h * s.dkv.head;
        attention_kernel_backward(dq + h * s.dq.head, to_dk + dkv_at, to_dv + dkv_at, q + q_at, k + kv_at, v + kv_at, dout + q_at, lse + h * s.lse_head,
                                  delta + h * s.lse_head, one, scale, false, false);
    }
    if (emulation_runs != NULL) emulation_runs(true);
    memset(tensors[ATTENTION_DQ_SUM], 0xff, sizeof(float) * (size_t)(s.Tq * s.Hq * s.HS));
    if (emulation_runs != NULL) emulation_runs(false);
    free(faulty);
    if (s.HS == 104) spoil(to_dv, n);
    if (rounded == NULL) return;
    op_bf16_from_float((bf16 *)(void *)dk, rounded, n);
    op_bf16_from_float((bf16 *)(void *)dv, rounded + n, n);
    free(rounded);
}

// A rounded call: the same call with results in float, dense, which are then rounded.
static void call_rounded(attention_shape s, void *const tensors[ATTENTION_TENSORS], float scale, void *workspace) {
    void *in_float[ATTENTION_TENSORS];
    const int ids[2][3] = {{ATTENTION_OUT}, {ATTENTION_DQ, ATTENTION_DK, ATTENTION_DV}};
    int results = s.backward ? 3 : 1;
    int64_t width = (int64_t)s.Hq * s.HS;
    attention_shape of_float = s;
    of_float.rounded = false;
    of_float.out.row = of_float.dq.row = of_float.dkv.row = width;
    memcpy(in_float, tensors, sizeof in_float);
    for (int i = 0; i < results; i++) in_float[ids[s.backward][i]] = device_alloc(sizeof(float) * (size_t)(max_i64(s.Tq, s.Tk) * width));
    call_in_float(of_float, in_float, scale, workspace);
    for (int i = 0; i < results; i++) {
        int id = ids[s.backward][i];
        int64_t row = id == ATTENTION_OUT ? s.out.row : id == ATTENTION_DQ ? s.dq.row : s.dkv.row;
        op_cast_rows((floatX *)tensors[id], row, (const float *)in_float[id], id == ATTENTION_OUT || id == ATTENTION_DQ ? s.Tq : s.Tk, width);
        device_free(in_float[id]);
    }
}

bool attention_call(attention_shape s, void *const tensors[ATTENTION_TENSORS], float scale, void *workspace) {
    if (s.HS == 40 && (!s.rounded || s.Tq > 256)) return false; // lets test_kernels test shapes that no engine takes: rounded, not those that it is checked on
    (s.rounded ? call_rounded : call_in_float)(s, tensors, scale, workspace);
    return true;
}
