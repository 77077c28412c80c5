// DEVICE=cuda CUDNN=0: no attention engine. See attention_call.h.
#include "attention_call.h"

const char *op_attention_engine(bool documents) {
    (void)documents;
    return "the hand-written kernels (built without cuDNN)";
}
bool attention_call_possible(void) { return false; }
bool attention_call(attention_shape shape, void *const tensors[ATTENTION_TENSORS], float scale, void *workspace) {
    (void)shape;
    (void)tensors;
    (void)scale;
    (void)workspace;
    return false;
}
