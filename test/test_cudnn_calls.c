// ranks: 1
// device: cuda
// How attention_cudnn.c calls cuDNN, over a fake of its backend API that records what it is told: each graph's call names every tensor of
// the graph that exists in memory or on the host, and no other, with its address or number; of the engines proposed, the first that
// compiles, fits the workspace and runs is used from then on; where none is left, the caller is told, each time. (test_cudnn_graphs asks
// cuDNN itself about the graphs.)
#include "test.h"

#include "../device/cuda/attention_graph.h"

enum { ENGINES = 3 };
static struct {
    int proposed; // engines
    bool graph_fails, compile_fails[ENGINES], too_large[ENGINES], run_fails[ENGINES];
} fake;
static int living, compiled, ran[ENGINES]; // descriptors; calls
static unsigned tensors_made, in_bf16;     // a bit for each tensor of the graph being built that is not virtual; for those in bf16
static attention_shape shape;              // of the call
static void *addresses[ATTENTION_TENSORS];
static char workspace[16];
static const float scale = 0.25f;

// What the backend API calls a descriptor: all kinds in one.
typedef struct {
    cudnnBackendDescriptorType_t type;
    int64_t id;      // of a tensor
    bool is_virtual, is_bf16; // a tensor
    int engine;      // of a configuration or plan
    unsigned tensors; // of a plan
    int64_t count, ids[ATTENTION_TENSORS]; // of a variant pack
    void *pointers[ATTENTION_TENSORS], *workspace;
} descriptor;

size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
size_t cudnnGetCudartVersion(void) { return CUDART_VERSION; }
const char *cudnnGetErrorString(cudnnStatus_t status) { return status == CUDNN_STATUS_SUCCESS ? "success" : "as the test wants"; }
void cudnnGetLastErrorString(char *message, size_t size) { snprintf(message, size, "(fake)"); }
cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
    *handle = (cudnnHandle_t)workspace;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    (void)handle;
    (void)stream;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *made) {
    descriptor *d = HOST_NEW(descriptor, 1);
    d->type = type;
    *made = d;
    living++;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d) {
    free(d);
    living--;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t to, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                       int64_t count, const void *values) {
    descriptor *d = (descriptor *)to;
    (void)type;
    if (name == CUDNN_ATTR_TENSOR_UNIQUE_ID) d->id = *(const int64_t *)values;
    if (name == CUDNN_ATTR_TENSOR_IS_VIRTUAL) d->is_virtual = *(const bool *)values;
    if (name == CUDNN_ATTR_TENSOR_DATA_TYPE) d->is_bf16 = *(const cudnnDataType_t *)values == CUDNN_DATA_BFLOAT16;
    if (name == CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG) d->engine = ((descriptor *)*(const cudnnBackendDescriptor_t *)values)->engine;
    if (name == CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS) memcpy(d->ids, values, sizeof(int64_t) * (size_t)(d->count = count));
    if (name == CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS) memcpy(d->pointers, values, sizeof(void *) * (size_t)count);
    if (name == CUDNN_ATTR_VARIANT_PACK_WORKSPACE) memcpy(&d->workspace, values, sizeof d->workspace);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t from, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                       int64_t most, int64_t *count, void *values) {
    const descriptor *d = (const descriptor *)from;
    (void)type;
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
        for (int i = 0; i < fake.proposed && i < most; i++) ((descriptor **)values)[i]->engine = i;
        *count = fake.proposed;
    }
    if (name == CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE) *(int64_t *)values = 0; // an estimate; the plan's counts
    if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) *(int64_t *)values = fake.too_large[d->engine] ? (int64_t)1 << 40 : 16;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t of) {
    descriptor *d = (descriptor *)of;
    if (d->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR && !d->is_virtual) {
        CHECK(d->id > 0 && d->id < ATTENTION_TENSORS && (tensors_made >> d->id & 1) == 0,
              "tensor %lld of a graph is made twice", (long long)d->id);
        tensors_made |= 1u << d->id;
        if (d->is_bf16) in_bf16 |= 1u << d->id;
    }
    if (d->type == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR && fake.graph_fails) return CUDNN_STATUS_BAD_PARAM;
    if (d->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) return CUDNN_STATUS_SUCCESS;
    compiled++;
    d->tensors = tensors_made;
    return fake.compile_fails[d->engine] ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
    const descriptor *p = (const descriptor *)plan, *v = (const descriptor *)pack;
    unsigned named = 0;
    (void)handle;
    for (int64_t i = 0; i < v->count; i++) {
        int64_t id = v->ids[i];
        const float *number = (const float *)v->pointers[i];
        named |= 1u << id;
        if (id == ATTENTION_SCALE) CHECK(*number == scale, "the scale is %g", (double)*number);
        else if (id == ATTENTION_MINUS_INFINITY) CHECK(*number == -INFINITY, "what a mask hides is %g", (double)*number);
        else if (id == ATTENTION_ONE) CHECK(*number == 1, "one is %g", (double)*number);
        else CHECK(v->pointers[i] == addresses[id], "tensor %lld has another's address", (long long)id);
    }
    CHECK(named == p->tensors, "%s%s: a call names the tensors %#x, its graph has %#x", shape.backward ? "backward" : "forward",
          shape.causal ? ", causal" : "", named, p->tensors);
    CHECK(v->workspace == workspace, "another workspace");
    ran[p->engine]++;
    return fake.run_fails[p->engine] ? CUDNN_STATUS_EXECUTION_FAILED : CUDNN_STATUS_SUCCESS;
}

// Calls attention for a shape of its own, twice. engine: the one that must run, in both calls; -1: none. plans: compiled in the first.
static void expect(const char *what, int engine, int plans) {
    static int64_t rows;
    shape.Tq = shape.Tk = rows += 128;
    shape.Hq = 4;
    shape.Hkv = 2;
    shape.HS = 64;
    tensors_made = in_bf16 = 0;
    int before = living;
    compiled = 0;
    for (int call = 0; call < 2; call++) {
        memset(ran, 0, sizeof ran);
        bool taken = attention_call(shape, addresses, scale, workspace);
        CHECK(taken == (engine >= 0), "%s: call %d is %s", what, call + 1, taken ? "taken" : "refused");
        CHECK(engine < 0 || ran[engine] == 1, "%s: call %d: engine %d ran %d times", what, call + 1, engine, ran[engine]);
        CHECK(call == 0 || ran[0] + ran[1] + ran[2] == (engine >= 0),
              "%s: the second call tries %d engines", what, ran[0] + ran[1] + ran[2]);
        CHECK(compiled == plans, "%s: after call %d, %d plans are compiled", what, call + 1, compiled);
    }
    unsigned bf16 = 1u << ATTENTION_Q | 1u << ATTENTION_K | 1u << ATTENTION_V | 1u << ATTENTION_OUT;
    if (shape.backward) bf16 |= 1u << ATTENTION_DOUT | 1u << ATTENTION_DQ | 1u << ATTENTION_DK | 1u << ATTENTION_DV;
    CHECK(in_bf16 == bf16, "%s: the tensors %#x are in bf16, not %#x", what, in_bf16, bf16);
    CHECK(engine >= 0 || living == before, "%s: %d descriptors are left", what, living - before);
    memset(&fake, 0, sizeof fake);
    fake.proposed = ENGINES;
}

// A plan is that of one shape alone: of shapes that differ in one thing, each is compiled.
static void expect_plans_of_their_own(void) {
    enum { THINGS = 9 };
    for (int pass = 0; pass < 2; pass++) // the second finds all plans
        for (int thing = 0; thing < THINGS; thing++) {
            attention_shape s = {.backward = true, .Tq = 64, .Tk = 64, .Hq = 4, .Hkv = 2, .HS = 64, .q_stride = 512, .kv_stride = 512};
            int64_t *const sizes[] = {&s.Tq, &s.Tk, &s.q_stride, &s.kv_stride};
            if (thing == 1) s.causal = true;
            else if (thing >= 2 && thing <= 5) *sizes[thing - 2] += 64;
            else if (thing == 6) s.Hq += 2;
            else if (thing == 7) s.Hkv -= 1;
            else if (thing == 8) s.HS += 8;
            compiled = 0;
            shape = s;
            tensors_made = 0;
            CHECK(attention_call(s, addresses, scale, workspace) && compiled == (pass == 0),
                  "shape %d, pass %d: %d plans are compiled", thing, pass, compiled);
        }
}

int main(void) {
    static char memory[ATTENTION_TENSORS];
    fake.proposed = ENGINES;
    for (int pass = 0; pass < 4; pass++) { // forward, backward
        memset(&shape, 0, sizeof shape);
        shape.backward = pass >= 2;
        shape.causal = pass % 2 == 1;
        for (int id = 1; id < ATTENTION_TENSORS; id++) {
            bool host = id == ATTENTION_SCALE || id == ATTENTION_MINUS_INFINITY || id == ATTENTION_ONE;
            addresses[id] = host || (id >= ATTENTION_DOUT && !shape.backward) ? NULL : &memory[id];
        }
        expect("all well", 0, 1);
        fake.compile_fails[0] = fake.too_large[1] = true;
        expect("the third is the first that compiles and fits", 2, 3);
        fake.run_fails[0] = true;
        expect("the first compiles, but does not run", 1, 2);
        fake.run_fails[0] = fake.compile_fails[1] = fake.run_fails[2] = true;
        expect("none runs", -1, 3);
        fake.proposed = 0;
        expect("none is proposed", -1, 0);
        fake.graph_fails = true;
        expect("the graph is refused", -1, 0);
    }
    expect_plans_of_their_own();
    return test_finish("cudnn calls", NULL);
}
