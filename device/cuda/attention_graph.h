// Attention as cuDNN graphs: which tensors and operations they consist of, and whether a GPU supports them. Building and checking a graph
// needs no GPU. attention_cudnn.c runs them; test/test_cudnn_graphs.c checks each one that the trainer can ask for.
//
// forward    s = q k^T scale (masked);  lse = log sum e^s;  out = e^(s - lse) v          lse float
// backward   p = e^(s - lse);  ds = p (dout v^T - rowsum(dout out)) scale;
//            dv = p^T dout,  dk = ds^T q,  dq = ds k        one per query head
// With the *merged* out and lse of all blocks the backward graph gives this block's contribution to the gradients.
// cuDNN recognises the whole graph and runs one or two fused kernels for it; only the tensors named in attention_call.h exist in memory.
#ifndef ATTENTION_GRAPH_H
#define ATTENTION_GRAPH_H

#include "attention_call.h"

#include <cudnn.h>

enum { ATTENTION_DESCRIPTORS = 128, ATTENTION_CONFIGS = 4 };
typedef struct {
    attention_shape shape;
    cudnnBackendDescriptor_t owned[ATTENTION_DESCRIPTORS]; // in the order of creation
    int owned_count;
    cudnnBackendDescriptor_t operations[32];
    int operation_count;
    int64_t next_virtual;
    cudnnBackendDescriptor_t graph; // the operation graph
    cudnnBackendDescriptor_t configs[ATTENTION_CONFIGS]; // engines that support it, best first; set by attention_graph_choose
    int64_t workspace[ATTENTION_CONFIGS];                // bytes each asks for
    int config_count;
    error_text error;
} attention_graph;

#ifdef __cplusplus
extern "C" {
#endif

// Builds the graph. handle NULL: for a check without a GPU. False with g->error when cuDNN rejects part of it.
bool attention_graph_build(attention_graph *g, attention_shape shape, cudnnHandle_t handle);
// Asks cuDNN which engines support the graph. properties: a finalized CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR of a
// GPU that need not be present, or NULL for the handle's. False with g->error when no engine supports the graph.
bool attention_graph_choose(attention_graph *g, cudnnBackendDescriptor_t properties);
void attention_graph_free(attention_graph *g);

#ifdef __cplusplus
}
#endif
#endif
