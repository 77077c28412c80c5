// The attention engine of CUDA: cuDNN's fused kernels, through the graphs of attention_graph.c. See attention_call.h.
#include "attention_graph.h"
#include "internal.h"

#if CUDNN_VERSION < 91002
#error "cuDNN 9.10.2 or newer is needed: versions before take another number for what a mask hides; CUDNN=0 builds without it"
#endif

typedef struct {
    attention_shape shape;
    attention_graph *graph; // the plan refers to its descriptors
    int choice;             // of the engines that cuDNN proposes for it
    cudnnBackendDescriptor_t plan; // of this engine; NULL: none is left
    bool has_run;
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
    comm_abort("cuDNN attention: %s: %s %s", what, cudnnGetErrorString(status), reason);
}

static void start(void) {
    if (cudnn.handle != NULL) return;
    size_t version = cudnnGetVersion(); // the library loaded may differ from the one built against
    if (version < 91002)
        comm_abort("cuDNN %zu.%zu.%zu was loaded; 9.10.2 or newer is needed", version / 10000, version / 100 % 100, version % 100);
    if (version < 91501 && comm_speaks())
        fprintf(stderr, "note: cuDNN %zu.%zu.%zu: versions from 9.15.1 on have fewer known errors in attention\n", version / 10000,
                version / 100 % 100, version % 100);
    size_t made_for = cudnnGetCudartVersion() / 1000, ours = CUDART_VERSION / 1000;
    if (made_for != ours && comm_speaks())
        fprintf(stderr,
                "note: this cuDNN is for CUDA %zu, and this program was built with CUDA %zu: cuDNN may not find its compiler (NVRTC)\n",
                made_for, ours);
    check(cudnnCreate(&cudnn.handle), "start");
    check(cudnnSetStream(cudnn.handle, device_compute_stream()), "start");
}

// ---- plans: an engine compiled for one shape, made when the shape is first seen ----

PRINTF_LIKE(2, 3) static void note_refused(const attention_plan *p, const char *format, ...) { // why
    attention_shape s = p->shape;
    char why[256];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    comm_note("note: cuDNN's choice %d of %d for %s attention, rows %lld x %lld, heads %d on %d of %d: %s", p->choice + 1,
              p->graph->config_count, s.backward ? "backward" : "forward", (long long)s.Tq, (long long)s.Tk, s.Hq, s.Hkv, s.HS, why);
}
// Compiles the kernel of the engine p->choice. NULL, with a note, when that fails or needs more workspace than is reserved.
static cudnnBackendDescriptor_t compile(const attention_plan *p) {
    size_t reserved = attention_call_workspace(p->shape);
    int64_t workspace = 0, one = 0;
    cudnnBackendDescriptor_t plan;
    check(cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan), "plan");
    check(cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &cudnn.handle), "plan");
    check(cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                   &p->graph->configs[p->choice]), "plan");
    cudnnStatus_t status = cudnnBackendFinalize(plan);
    if (status == CUDNN_STATUS_SUCCESS)
        check(cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &one, &workspace), "plan");
    if (status == CUDNN_STATUS_SUCCESS && (size_t)workspace <= reserved) return plan;
    if (status == CUDNN_STATUS_SUCCESS)
        note_refused(p, "it wants %lld bytes of workspace, but only %zu are planned", (long long)workspace, reserved);
    else
        note_refused(p, "it cannot be compiled (%s)", cudnnGetErrorString(status));
    cudnnBackendDestroyDescriptor(plan);
    return NULL;
}
// Goes on to the next engine that compiles. p->plan stays NULL, with a note, when none is left.
static void next_engine(attention_plan *p) {
    while (p->plan == NULL && ++p->choice < p->graph->config_count) p->plan = compile(p);
    if (p->plan != NULL) return;
    comm_note("note: %.700s; a hand-written kernel computes %s attention with heads of %d "
              "(CUDNN_LOGLEVEL_DBG=2 CUDNN_LOGDEST_DBG=stderr: cuDNN says why)",
              p->graph->error.text[0] != 0 ? p->graph->error.text : "cuDNN attention: no engine is left",
              p->shape.backward ? "backward" : "forward", p->shape.HS);
    attention_graph_free(p->graph);
    free(p->graph);
    p->graph = NULL;
}

static attention_plan *plan_of(attention_shape shape) { // valid until the next call
    start();
    for (int i = 0; i < cudnn.count; i++)
        if (attention_shape_equal(cudnn.plans[i].shape, shape)) return &cudnn.plans[i];
    if (cudnn.count == cudnn.capacity) {
        cudnn.capacity = cudnn.capacity == 0 ? 32 : 2 * cudnn.capacity;
        cudnn.plans = (attention_plan *)realloc(cudnn.plans, sizeof *cudnn.plans * (size_t)cudnn.capacity);
        if (cudnn.plans == NULL) comm_abort("out of host memory for the plans of attention");
    }
    attention_plan *p = &cudnn.plans[cudnn.count++];
    memset(p, 0, sizeof *p);
    p->shape = shape;
    p->graph = HOST_NEW(attention_graph, 1);
    p->choice = -1;
    if (attention_graph_build(p->graph, shape, cudnn.handle)) attention_graph_choose(p->graph, NULL);
    next_engine(p);
    return p;
}

const char *op_attention_engine(bool documents) {
    return documents ? "cuDNN for long documents, the hand-written kernels for short ones" : "cuDNN";
}
bool attention_call_possible(void) { return true; }

// Above head size 128 the backward engine is used only where NVIDIA's own callers use it: 256, on Hopper.
bool attention_call(attention_shape shape, void *const tensors[ATTENTION_TENSORS], float scale, void *workspace) {
    if (shape.backward && shape.HS > 128 && !(shape.HS == 256 && device_compute_capability() / 10 == 9)) return false;
    attention_plan *p = plan_of(shape);
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
    while (p->plan != NULL) {
        cuda_span_begin(shape.backward ? "cuDNN attention backward" : "cuDNN attention forward");
        cudnnStatus_t status = cudnnBackendExecute(cudnn.handle, p->plan, pack);
        cuda_span_end();
        if (status == CUDNN_STATUS_SUCCESS || p->has_run) {
            check(status, shape.backward ? "running backward" : "running forward");
            p->has_run = true;
            break;
        }
        note_refused(p, "it compiles, but does not run (%s)", cudnnGetErrorString(status));
        check(cudnnBackendDestroyDescriptor(p->plan), "plan");
        p->plan = NULL;
        next_engine(p);
    }
    check(cudnnBackendDestroyDescriptor(pack), "addresses");
    return p->plan != NULL;
}
