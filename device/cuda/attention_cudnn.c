// The attention engine of CUDA: cuDNN's fused kernels, through the graphs of attention_graph.c. See attention_call.h.
#include "attention_graph.h"
#include "internal.h"

#if CUDNN_VERSION < 91002
#error "cuDNN 9.10.2 or newer is needed: versions before take another number for what a mask hides; CUDNN=0 builds without it"
#endif

typedef struct {
    attention_shape shape;
    cudnnBackendDescriptor_t plan;
} attention_plan;

static struct {
    cudnnHandle_t handle; // NULL: not started
    attention_plan *plans;
    int count, capacity;
} cudnn;

static void check(cudnnStatus_t status, const char *what) {
    if (status == CUDNN_STATUS_SUCCESS) return;
    char reason[512] = "";
    cudnnGetLastErrorString(reason, sizeof reason);
    device_fail("cuDNN attention: %s: %s %s", what, cudnnGetErrorString(status), reason);
}

static void start(void) {
    if (cudnn.handle != NULL) return;
    size_t version = cudnnGetVersion(); // the library loaded may differ from the one built against
    if (version < 91002) device_fail("cuDNN %zu.%zu.%zu was loaded; 9.10.2 or newer is needed", version / 10000, version / 100 % 100, version % 100);
    if (version < 91501)
        fprintf(stderr, "note: cuDNN %zu.%zu.%zu: versions from 9.15.1 on have fewer known errors in attention\n", version / 10000,
                version / 100 % 100, version % 100);
    check(cudnnCreate(&cudnn.handle), "start");
    check(cudnnSetStream(cudnn.handle, device_compute_stream()), "start");
}

// ---- plans: an engine compiled for one shape, made when the shape is first seen ----

// Compiles the kernel of an engine that cuDNN proposes. NULL, with a note, when that fails or needs more workspace than is reserved.
static cudnnBackendDescriptor_t compile(const attention_graph *g, int choice) {
    attention_shape s = g->shape;
    int64_t workspace = 0, one = 0;
    cudnnBackendDescriptor_t plan;
    check(cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan), "plan");
    check(cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &cudnn.handle), "plan");
    check(cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &g->configs[choice]), "plan");
    cudnnStatus_t status = cudnnBackendFinalize(plan);
    if (status == CUDNN_STATUS_SUCCESS)
        check(cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &one, &workspace), "plan");
    if (status == CUDNN_STATUS_SUCCESS && (size_t)workspace <= attention_call_workspace(s)) return plan;
    fprintf(stderr, "note: cuDNN's choice %d of %d for %s attention, rows %lld x %lld, heads %d on %d of %d: ", choice + 1, g->config_count,
            s.backward ? "backward" : "forward", (long long)s.Tq, (long long)s.Tk, s.Hq, s.Hkv, s.HS);
    if (status == CUDNN_STATUS_SUCCESS)
        fprintf(stderr, "it wants %lld bytes of workspace, but only %zu are planned\n", (long long)workspace, attention_call_workspace(s));
    else fprintf(stderr, "it cannot be compiled (%s)\n", cudnnGetErrorString(status));
    cudnnBackendDestroyDescriptor(plan);
    return NULL;
}

static cudnnBackendDescriptor_t plan_of(attention_shape shape) { // NULL: no engine takes it
    start();
    for (int i = 0; i < cudnn.count; i++)
        if (attention_shape_equal(cudnn.plans[i].shape, shape)) return cudnn.plans[i].plan;
    if (cudnn.count == cudnn.capacity) {
        cudnn.capacity = cudnn.capacity == 0 ? 32 : 2 * cudnn.capacity;
        cudnn.plans = (attention_plan *)realloc(cudnn.plans, sizeof *cudnn.plans * (size_t)cudnn.capacity);
        if (cudnn.plans == NULL) device_fail("out of host memory for the plans of attention");
    }
    attention_plan *p = &cudnn.plans[cudnn.count++];
    p->shape = shape;
    p->plan = NULL;
    attention_graph *g = HOST_NEW(attention_graph, 1); // kept: the plan refers to its descriptors
    if (attention_graph_build(g, shape, cudnn.handle)) attention_graph_choose(g, NULL);
    for (int i = 0; i < g->config_count && p->plan == NULL; i++) p->plan = compile(g, i);
    if (p->plan != NULL) return p->plan;
    fprintf(stderr, "note: %s; a hand-written kernel computes %s attention with heads of %d (CUDNN_LOGLEVEL_DBG=2 CUDNN_LOGDEST_DBG=stderr: cuDNN says why)\n",
            g->error.text[0] != 0 ? g->error.text : "cuDNN attention: no engine is left", shape.backward ? "backward" : "forward", shape.HS);
    attention_graph_free(g);
    free(g);
    return NULL;
}

const char *op_attention_engine(bool documents) {
    return documents ? "cuDNN for long documents, the hand-written kernels for short ones" : "cuDNN";
}
bool attention_call_possible(void) { return true; }

// Above head size 128 the backward engine is used only where NVIDIA's own callers use it: 256, on Hopper.
bool attention_call_takes(attention_shape shape) {
    if (shape.backward && shape.HS > 128 && !(shape.HS == 256 && device_compute_capability() / 10 == 9)) return false;
    return plan_of(shape) != NULL;
}

void attention_call(attention_shape shape, void *const tensors[ATTENTION_TENSORS], float scale, void *workspace) {
    cudnnBackendDescriptor_t plan = plan_of(shape);
    float minus_infinity = -INFINITY, one = 1;
    int64_t ids[ATTENTION_TENSORS], count = 0;
    void *addresses[ATTENTION_TENSORS];
    for (int id = 1; id < ATTENTION_TENSORS; id++) {
        void *address = tensors[id];
        if (id == ATTENTION_SCALE) address = &scale;
        if (id == ATTENTION_MINUS_INFINITY && shape.causal) address = &minus_infinity;
        if (id == ATTENTION_ONE && shape.backward) address = &one;
        if (address == NULL) continue; // not in this graph
        ids[count] = id;
        addresses[count++] = address;
    }
    cudnnBackendDescriptor_t pack;
    check(cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack), "addresses");
    check(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, addresses), "addresses");
    check(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids), "addresses");
    check(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace), "addresses");
    check(cudnnBackendFinalize(pack), "addresses");
    cuda_span_begin(shape.backward ? "cuDNN attention backward" : "cuDNN attention forward");
    check(cudnnBackendExecute(cudnn.handle, plan, pack), shape.backward ? "running backward" : "running forward");
    cuda_span_end();
    check(cudnnBackendDestroyDescriptor(pack), "addresses");
}
