// DEVICE=emulated: the attention engine is the hand-written kernels. See attention_call.h.
#include "attention_call.h"

const char *op_attention_engine(bool documents) { return documents ? "the hand-written kernels, tiles of other documents skipped" : "the hand-written kernel"; }
bool attention_call_possible(void) { return true; }

bool attention_call_takes(attention_shape s) { return s.HS != 40; } // so that test_kernels sees what is done about a shape that no engine takes

void attention_call(attention_shape s, void *const tensors[ATTENTION_TENSORS], float scale, void *workspace) {
    (void)workspace;
    const floatX *q = (const floatX *)tensors[ATTENTION_Q], *k = (const floatX *)tensors[ATTENTION_K],
                 *v = (const floatX *)tensors[ATTENTION_V];
    float *lse = (float *)tensors[ATTENTION_LSE];
    if (!s.backward) {
        attention_kernel_forward((float *)tensors[ATTENTION_OUT], lse, q, k, v, s, scale, false);
        return;
    }
    const floatX *out = (const floatX *)tensors[ATTENTION_OUT], *dout = (const floatX *)tensors[ATTENTION_DOUT];
    float *dq = (float *)tensors[ATTENTION_DQ], *dk = (float *)tensors[ATTENTION_DK], *dv = (float *)tensors[ATTENTION_DV];
    float *delta = (float *)tensors[ATTENTION_DELTA];
    attention_kernel_delta(delta, out, dout, s);
    int64_t n = s.Tk * s.dkv.row; // dkv_bf16: dense
    float *rounded = s.dkv_bf16 ? HOST_NEW(float, 2 * n) : NULL;
    attention_kernel_backward(dq, rounded != NULL ? rounded : dk, rounded != NULL ? rounded + n : dv, q, k, v, dout, lse, delta, s, scale, false, false);
    if (rounded == NULL) return;
    op_bf16_from_float((bf16 *)(void *)dk, rounded, n);
    op_bf16_from_float((bf16 *)(void *)dv, rounded + n, n);
    free(rounded);
}
