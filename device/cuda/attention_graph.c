// See attention_graph.h. The operations and their order are those that cuDNN's SDPA engines recognise.
#include "attention_graph.h"

// ---- descriptors: the first error is kept in g->error and turns all later calls into no-ops ----

static bool good(const attention_graph *g) { return g->error.text[0] == '\0'; }

static void check(attention_graph *g, cudnnStatus_t status, const char *what) {
    if (status == CUDNN_STATUS_SUCCESS) return;
    char reason[512] = "";
    cudnnGetLastErrorString(reason, sizeof reason);
    error_set(&g->error, "cuDNN attention: %s: %s %s", what, cudnnGetErrorString(status), reason);
}
static cudnnBackendDescriptor_t make(attention_graph *g, cudnnBackendDescriptorType_t type, const char *what) {
    cudnnBackendDescriptor_t d = NULL;
    if (!good(g)) return NULL;
    if (g->owned_count == ATTENTION_DESCRIPTORS) {
        error_set(&g->error, "cuDNN attention: more than %d descriptors", ATTENTION_DESCRIPTORS);
        return NULL;
    }
    check(g, cudnnBackendCreateDescriptor(type, &d), what);
    if (good(g)) g->owned[g->owned_count++] = d;
    return d;
}
static void set(attention_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                int64_t count, const void *values, const char *what) {
    if (good(g)) check(g, cudnnBackendSetAttribute(d, name, type, count, values), what);
}
static void get(attention_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                int64_t most, int64_t *count, void *values, const char *what) {
    if (good(g)) check(g, cudnnBackendGetAttribute(d, name, type, most, count, values), what);
}
static void set_descriptor(attention_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t value,
                           const char *what) {
    set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value, what);
}
static void finalize(attention_graph *g, cudnnBackendDescriptor_t d, const char *what) {
    if (good(g)) check(g, cudnnBackendFinalize(d), what);
}

// ---- tensors: four dimensions (1, heads, rows, columns) ----

typedef struct {
    int64_t size[4], stride[4];
    cudnnDataType_t type;
    cudnnBackendDescriptor_t descriptor;
} tensor;

typedef enum { IN_MEMORY, VIRTUAL, BY_VALUE } tensor_place;

static tensor tensor_make(attention_graph *g, tensor t, tensor_place place, int64_t id) {
    int64_t alignment = 16;
    bool is_virtual = place == VIRTUAL, by_value = place == BY_VALUE;
    const char *what = "tensor";
    t.descriptor = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR, what);
    set(g, t.descriptor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &t.type, what);
    set(g, t.descriptor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, t.size, what);
    set(g, t.descriptor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, t.stride, what);
    set(g, t.descriptor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id, what);
    set(g, t.descriptor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment, what);
    set(g, t.descriptor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual, what);
    if (by_value) set(g, t.descriptor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value, what);
    finalize(g, t.descriptor, what);
    return t;
}
static tensor tensor_describe(cudnnDataType_t type, int64_t heads, int64_t rows, int64_t columns, int64_t head_stride, int64_t row_stride,
                              int64_t column_stride) {
    int64_t never_used = heads * rows * columns; // the stride of the first dimension, which is 1
    tensor t = {{1, heads, rows, columns}, {never_used, head_stride, row_stride, column_stride}, type, NULL};
    return t;
}
// A bf16 tensor in memory, (rows, HS) per head, with rows `stride` apart; `transposed` presents each head as (HS, rows).
static tensor memory(attention_graph *g, int64_t id, int64_t heads, int64_t rows, int64_t stride, bool transposed) {
    int64_t HS = g->shape.HS;
    tensor t = transposed ? tensor_describe(CUDNN_DATA_BFLOAT16, heads, HS, rows, HS, 1, stride)
                          : tensor_describe(CUDNN_DATA_BFLOAT16, heads, rows, HS, HS, stride, 1);
    return tensor_make(g, t, IN_MEMORY, id);
}
static tensor row_numbers(attention_graph *g, int64_t id) { // a float for each head and query row
    return tensor_make(g, tensor_describe(CUDNN_DATA_FLOAT, g->shape.Hq, g->shape.Tq, 1, g->shape.Tq, 1, 1), IN_MEMORY, id);
}
static tensor intermediate(attention_graph *g, cudnnDataType_t type, int64_t rows, int64_t columns) { // one per query head, never in memory
    tensor t = tensor_describe(type, g->shape.Hq, rows, columns, rows * columns, columns, 1);
    return tensor_make(g, t, VIRTUAL, ++g->next_virtual);
}
static tensor scores(attention_graph *g, cudnnDataType_t type) { return intermediate(g, type, g->shape.Tq, g->shape.Tk); }
static tensor host_number(attention_graph *g, int64_t id) {
    return tensor_make(g, tensor_describe(CUDNN_DATA_FLOAT, 1, 1, 1, 1, 1, 1), BY_VALUE, id);
}

// ---- operations ----

static void add_operation(attention_graph *g, cudnnBackendDescriptor_t operation, const char *what) {
    finalize(g, operation, what);
    if (good(g)) g->operations[g->operation_count++] = operation;
}
// y = mode(x, b, t); b and t NULL where the mode has no such operand. axis: for GEN_INDEX, else -1.
static void pointwise(attention_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t precision, int64_t axis, const tensor *x,
                      const tensor *b, const tensor *t, const tensor *y) {
    const char *what = "pointwise operation";
    cudnnBackendDescriptor_t d = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, what), operation;
    set(g, d, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode, what);
    set(g, d, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &precision, what);
    if (axis >= 0) set(g, d, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis, what);
    finalize(g, d, what);
    operation = make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, what);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, d, what);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x->descriptor, what);
    if (b != NULL) set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b->descriptor, what);
    if (t != NULL) set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t->descriptor, what);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y->descriptor, what);
    add_operation(g, operation, what);
}
static void in_float(attention_graph *g, cudnnPointwiseMode_t mode, const tensor *x, const tensor *b, const tensor *y) {
    pointwise(g, mode, CUDNN_DATA_FLOAT, -1, x, b, NULL, y);
}
static void multiply_matrices(attention_graph *g, const tensor *a, const tensor *b, const tensor *c) { // c = a b, sums in float
    const char *what = "matrix product";
    cudnnDataType_t precision = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t d = make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR, what), operation;
    set(g, d, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &precision, what);
    finalize(g, d, what);
    operation = make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, what);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a->descriptor, what);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b->descriptor, what);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c->descriptor, what);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, d, what);
    add_operation(g, operation, what);
}
// Over the dimensions that have size 1 in y.
static void reduce(attention_graph *g, cudnnReduceTensorOp_t how, const tensor *x, const tensor *y) {
    const char *what = "reduction";
    cudnnDataType_t precision = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t d = make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, what), operation;
    set(g, d, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &how, what);
    set(g, d, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &precision, what);
    finalize(g, d, what);
    operation = make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, what);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x->descriptor, what);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y->descriptor, what);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, d, what);
    add_operation(g, operation, what);
}
static void reshape(attention_graph *g, const tensor *x, const tensor *y) {
    const char *what = "reshape";
    cudnnBackendDescriptor_t operation = make(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, what);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x->descriptor, what);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y->descriptor, what);
    add_operation(g, operation, what);
}

// ---- the two graphs ----

// s where the key's index is at most the query's, else -infinity; s itself when the shape is not causal.
static tensor masked(attention_graph *g, tensor s) {
    if (!g->shape.causal) return s;
    tensor row = scores(g, CUDNN_DATA_INT32), column = scores(g, CUDNN_DATA_INT32), visible = scores(g, CUDNN_DATA_BOOLEAN),
           result = scores(g, CUDNN_DATA_FLOAT);
    tensor hidden = host_number(g, ATTENTION_MINUS_INFINITY);
    pointwise(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, 2, &s, NULL, NULL, &row);
    pointwise(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, 3, &s, NULL, NULL, &column);
    pointwise(g, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, -1, &row, &column, NULL, &visible);
    pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, -1, &s, &hidden, &visible, &result);
    return result;
}
// s = q k^T scale
static tensor scaled_scores(attention_graph *g, const tensor *q, const tensor *k_transposed, const tensor *scale) {
    tensor raw = scores(g, CUDNN_DATA_FLOAT), s = scores(g, CUDNN_DATA_FLOAT);
    multiply_matrices(g, q, k_transposed, &raw);
    in_float(g, CUDNN_POINTWISE_MUL, &raw, scale, &s);
    return s;
}

static void build_forward(attention_graph *g) {
    const attention_shape *s = &g->shape;
    tensor q = memory(g, ATTENTION_Q, s->Hq, s->Tq, s->q_stride, false);
    tensor k = memory(g, ATTENTION_K, s->Hkv, s->Tk, s->kv_stride, true);
    tensor v = memory(g, ATTENTION_V, s->Hkv, s->Tk, s->kv_stride, false);
    tensor out = memory(g, ATTENTION_OUT, s->Hq, s->Tq, s->Hq * s->HS, false);
    tensor scale = host_number(g, ATTENTION_SCALE), lse = row_numbers(g, ATTENTION_LSE);
    tensor score = masked(g, scaled_scores(g, &q, &k, &scale));
    tensor largest = intermediate(g, CUDNN_DATA_FLOAT, s->Tq, 1), sum = intermediate(g, CUDNN_DATA_FLOAT, s->Tq, 1);
    tensor logarithm = intermediate(g, CUDNN_DATA_FLOAT, s->Tq, 1);
    tensor shifted = scores(g, CUDNN_DATA_FLOAT), exponential = scores(g, CUDNN_DATA_FLOAT), p = scores(g, CUDNN_DATA_BFLOAT16);
    reduce(g, CUDNN_REDUCE_TENSOR_MAX, &score, &largest);
    in_float(g, CUDNN_POINTWISE_SUB, &score, &largest, &shifted);
    in_float(g, CUDNN_POINTWISE_EXP, &shifted, NULL, &exponential);
    reduce(g, CUDNN_REDUCE_TENSOR_ADD, &exponential, &sum);
    in_float(g, CUDNN_POINTWISE_LOG, &sum, NULL, &logarithm);
    in_float(g, CUDNN_POINTWISE_ADD, &largest, &logarithm, &lse);
    in_float(g, CUDNN_POINTWISE_DIV, &exponential, &sum, &p);
    multiply_matrices(g, &p, &v, &out);
}

// gradient (Tk, HS) of k or v = (weights (Tq, Tk))^T x (Tq, HS), for each query head
static void key_gradient(attention_graph *g, int64_t id, const tensor *weights, const tensor *x) {
    const attention_shape *s = &g->shape;
    tensor turned = tensor_describe(CUDNN_DATA_BFLOAT16, s->Hq, s->Tk, s->Tq, s->Tq * s->Tk, 1, s->Tk);
    turned = tensor_make(g, turned, VIRTUAL, ++g->next_virtual);
    reshape(g, weights, &turned);
    tensor gradient = memory(g, id, s->Hq, s->Tk, s->Hq * s->HS, false);
    multiply_matrices(g, &turned, x, &gradient);
}

static void build_backward(attention_graph *g) {
    const attention_shape *s = &g->shape;
    tensor q = memory(g, ATTENTION_Q, s->Hq, s->Tq, s->q_stride, false);
    tensor k = memory(g, ATTENTION_K, s->Hkv, s->Tk, s->kv_stride, true);
    tensor v = memory(g, ATTENTION_V, s->Hkv, s->Tk, s->kv_stride, true);
    tensor out = memory(g, ATTENTION_OUT, s->Hq, s->Tq, s->q_stride, false);
    tensor dout = memory(g, ATTENTION_DOUT, s->Hq, s->Tq, s->q_stride, false);
    tensor dq = memory(g, ATTENTION_DQ, s->Hq, s->Tq, s->Hq * s->HS, false);
    tensor lse = row_numbers(g, ATTENTION_LSE), delta = row_numbers(g, ATTENTION_DELTA);
    tensor scale = host_number(g, ATTENTION_SCALE), one = host_number(g, ATTENTION_ONE);

    tensor products = intermediate(g, CUDNN_DATA_FLOAT, s->Tq, s->HS), row_sum = intermediate(g, CUDNN_DATA_FLOAT, s->Tq, 1);
    in_float(g, CUDNN_POINTWISE_MUL, &dout, &out, &products);
    reduce(g, CUDNN_REDUCE_TENSOR_ADD, &products, &row_sum);
    in_float(g, CUDNN_POINTWISE_MUL, &row_sum, &one, &delta);

    tensor score = scaled_scores(g, &q, &k, &scale), shifted = scores(g, CUDNN_DATA_FLOAT), p = scores(g, CUDNN_DATA_FLOAT);
    in_float(g, CUDNN_POINTWISE_SUB, &score, &lse, &shifted);
    shifted = masked(g, shifted);
    in_float(g, CUDNN_POINTWISE_EXP, &shifted, NULL, &p);
    key_gradient(g, ATTENTION_DV, &p, &dout);

    tensor dp = scores(g, CUDNN_DATA_FLOAT), centred = scores(g, CUDNN_DATA_FLOAT), unscaled = scores(g, CUDNN_DATA_FLOAT),
           ds = scores(g, CUDNN_DATA_FLOAT);
    multiply_matrices(g, &dout, &v, &dp);
    in_float(g, CUDNN_POINTWISE_SUB, &dp, &delta, &centred);
    in_float(g, CUDNN_POINTWISE_MUL, &centred, &p, &unscaled);
    in_float(g, CUDNN_POINTWISE_MUL, &unscaled, &scale, &ds);
    key_gradient(g, ATTENTION_DK, &ds, &q);

    tensor k_rows = tensor_describe(CUDNN_DATA_BFLOAT16, s->Hkv, s->Tk, s->HS, s->HS, s->kv_stride, 1);
    k_rows = tensor_make(g, k_rows, VIRTUAL, ++g->next_virtual);
    reshape(g, &k, &k_rows);
    tensor dq_sum = tensor_describe(CUDNN_DATA_FLOAT, s->Hq, s->Tq, s->HS, s->Tq * s->HS, s->HS, 1);
    dq_sum = tensor_make(g, dq_sum, IN_MEMORY, ATTENTION_DQ_SUM);
    multiply_matrices(g, &ds, &k_rows, &dq_sum);
    in_float(g, CUDNN_POINTWISE_IDENTITY, &dq_sum, NULL, &dq);
}

bool attention_graph_build(attention_graph *g, attention_shape shape, cudnnHandle_t handle) {
    memset(g, 0, sizeof *g);
    g->shape = shape;
    g->next_virtual = 1000;
    if (shape.backward) build_backward(g);
    else build_forward(g);
    const char *what = shape.backward ? "backward graph" : "forward graph";
    g->graph = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, what);
    set(g, g->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->operation_count, g->operations, what);
    if (handle != NULL) set(g, g->graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle, what);
    finalize(g, g->graph, what);
    return good(g);
}

bool attention_graph_choose(attention_graph *g, cudnnBackendDescriptor_t properties) {
    const char *what = "choice of an engine";
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    cudnnBackendDescriptor_t heuristics = make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, what);
    set_descriptor(g, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, g->graph, what);
    set(g, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode, what);
    if (properties != NULL) set_descriptor(g, heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, properties, what);
    finalize(g, heuristics, what);
    for (int i = 0; i < ATTENTION_CONFIGS; i++) g->configs[i] = make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, what);
    int64_t count = 0, one = 0;
    get(g, heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, ATTENTION_CONFIGS, &count, g->configs, what);
    if (good(g) && count < 1) error_set(&g->error, "cuDNN attention: no engine takes this shape");
    g->config_count = (int)min_i64(count, ATTENTION_CONFIGS);
    for (int i = 0; i < g->config_count; i++)
        get(g, g->configs[i], CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &one, &g->workspace[i], "workspace");
    return good(g);
}

void attention_graph_free(attention_graph *g) {
    for (int i = g->owned_count - 1; i >= 0; i--) cudnnBackendDestroyDescriptor(g->owned[i]);
    g->owned_count = 0;
}
