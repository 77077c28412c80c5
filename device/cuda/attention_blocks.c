// op_attention_*: cuts a block into calls of the attention engine, and joins their results. See device/ops.h and attention_call.h.
#include "attention_call.h"

// ---- how a block is cut into calls ----

size_t attention_call_workspace(attention_shape s) {
    size_t slack = 4096;
    if (!s.backward) return slack;
    return sizeof(float) * (size_t)(s.Tq * s.Hq * s.HS) + slack; // engines for GPUs before Hopper accumulate dq in their workspace
}

static bool deterministic, blackwell;
void attention_use_deterministic(void) { deterministic = true; }
void attention_use_blackwell(bool yes) { blackwell = yes; }

attention_shape attention_call_shape(attention_block b, bool backward, attention_part part) {
    return (attention_shape){.backward = backward, .causal = b.causal, .Tq = b.Tq, .Tk = b.Tk, .Hq = part.kv * part.members,
                             .Hkv = part.kv, .HS = b.HS, .q_stride = b.q_stride, .kv_stride = b.kv_stride};
}
bool attention_shape_equal(attention_shape a, attention_shape b) {
    return a.backward == b.backward && a.causal == b.causal && a.Tq == b.Tq && a.Tk == b.Tk && a.Hq == b.Hq && a.Hkv == b.Hkv &&
           a.HS == b.HS && a.q_stride == b.q_stride && a.kv_stride == b.kv_stride;
}

static int64_t most_elements = INT32_MAX, most_scratch = DEVICE_ATTENTION_SCRATCH;
void attention_test_limits(int64_t elements, int64_t scratch_bytes) {
    most_elements = elements > 0 ? elements : INT32_MAX;
    most_scratch = scratch_bytes > 0 ? scratch_bytes : DEVICE_ATTENTION_SCRATCH;
}
#define LEAST_WORK ((int64_t)1 << 33)
static int64_t least_rows = 512, least_work = LEAST_WORK;
void attention_test_documents(int64_t rows) {
    least_rows = rows > 0 ? rows : 512;
    least_work = rows > 0 ? 1 : LEAST_WORK;
}
static int64_t engine_tiles;
int64_t attention_test_engine_tiles(void) { return engine_tiles; }
// Scratch of a call for each query head: results, in the backward pass also cuDNN's sums of dq (float, in two places), delta and lse.
static int64_t call_bytes(bool backward, int64_t Tq, int64_t Tk, int HS) {
    int64_t X = sizeof(floatX);
    return backward ? ((X + 8) * Tq + 2 * X * Tk) * HS + 8 * Tq : (X * HS + 4) * Tq;
}
int64_t attention_tile_rows(attention_block b) {
    int64_t rows = max_i64(b.Tq, b.Tk);
    int64_t bytes = max_i64(call_bytes(true, 1, 1, b.HS), b.Hq / b.Hkv * call_bytes(false, 1, 1, b.HS)); // of scratch per row
    int64_t most = min_i64(most_elements / max_i64(b.q_stride, b.kv_stride), most_scratch / bytes);
    if (blackwell) most = min_i64(most, min_i64(65536, ((int64_t)1 << 23) / b.HS));
    if (rows <= most) return rows;
    most = max_i64(most / 128 * 128, 128);
    return round_up(ceil_div(rows, ceil_div(rows, most)), 128); // equal tiles
}
attention_part attention_call_part(bool backward, int64_t Tq, int64_t Tk, int Hq, int Hkv, int HS) {
    int64_t heads = max_i64(1, most_scratch / max_i64(call_bytes(backward, Tq, Tk, HS), 1));
    attention_part part = {(int)max_i64(1, min_i64(heads * Hkv / Hq, Hkv)), Hq / Hkv};
    while (Hkv % part.kv != 0) part.kv--; // all calls of a block have one shape
    while (backward && (part.members > heads || Hq / Hkv % part.members != 0)) part.members--; // part of a group: must divide it
    return part;
}

// ---- scratch: pieces of the caller's memory, each aligned to 256 bytes ----

typedef struct {
    char *at; // NULL: only count the bytes
    size_t used;
} scratch_memory;

static void *take(scratch_memory *m, size_t bytes) {
    void *p = m->at == NULL ? NULL : m->at + m->used;
    m->used += (bytes + 255) / 256 * 256;
    return p;
}
#define TAKE(m, type, count) ((type *)take(m, sizeof(type) * (size_t)(count)))

typedef struct {
    floatX *out;
    float *lse;
    void *workspace;
} forward_scratch;
static forward_scratch forward_take(scratch_memory *m, attention_shape s) {
    forward_scratch f;
    f.out = TAKE(m, floatX, s.Tq * s.Hq * s.HS);
    f.lse = TAKE(m, float, s.Tq * s.Hq);
    f.workspace = take(m, attention_call_workspace(s));
    return f;
}
typedef struct {
    floatX *dq, *dk, *dv;
    float *dq_sum, *delta, *lse;
    void *workspace;
} backward_scratch;
static backward_scratch backward_take(scratch_memory *m, attention_shape s) {
    backward_scratch b;
    b.dq = TAKE(m, floatX, s.Tq * s.Hq * s.HS);
    b.dk = TAKE(m, floatX, s.Tk * s.Hq * s.HS);
    b.dv = TAKE(m, floatX, s.Tk * s.Hq * s.HS);
    b.dq_sum = TAKE(m, float, s.Tq * s.Hq * s.HS);
    b.delta = TAKE(m, float, s.Tq * s.Hq);
    b.lse = TAKE(m, float, s.Tq * s.Hq);
    b.workspace = take(m, attention_call_workspace(s));
    return b;
}

static size_t call_scratch(attention_block b, bool backward, attention_part part) {
    scratch_memory m = {NULL, 0};
    attention_shape s = attention_call_shape(b, backward, part);
    if (backward) backward_take(&m, s);
    else forward_take(&m, s);
    return m.used;
}

// ---- a tile: loops over parts of the key/value heads ----

// The tensors of a block, or of a part of it: forward_from and backward_from leave out the first rows and heads of queries and keys.
// `alone`: where out or dq go in floatX, rows q_stride apart (op_attention_*_alone); the float ones, and delta, are then NULL. Else it is
// NULL.
typedef struct {
    float *out, *lse;
    const floatX *q, *k, *v;
    floatX *alone;
} forward_tensors;
static forward_tensors forward_from(forward_tensors t, attention_block b, int64_t query, int64_t key, int64_t head, int64_t kv_head) {
    int64_t q = query * b.q_stride + head * b.HS, kv = key * b.kv_stride + kv_head * b.HS;
    bool alone = t.alone != NULL;
    forward_tensors from = {alone ? NULL : t.out + query * b.sum_stride + head * b.HS, t.lse + head * b.lse_stride + query, t.q + q,
                            t.k + kv, t.v + kv, alone ? t.alone + q : NULL};
    return from;
}
typedef struct {
    float *dq, *dk, *dv;
    const floatX *q, *k, *v, *out, *dout;
    const float *lse, *delta;
    floatX *alone;
} backward_tensors;
static backward_tensors backward_from(backward_tensors t, attention_block b, int64_t query, int64_t key, int64_t head, int64_t kv_head) {
    int64_t q = query * b.q_stride + head * b.HS, kv = key * b.kv_stride + kv_head * b.HS, lse = head * b.lse_stride + query;
    bool alone = t.alone != NULL;
    backward_tensors from = {alone ? NULL : t.dq + query * b.sum_stride + head * b.HS, t.dk + kv, t.dv + kv, t.q + q, t.k + kv, t.v + kv,
                             t.out + q, t.dout + q, t.lse + lse, alone ? NULL : t.delta + lse, alone ? t.alone + q : NULL};
    return from;
}

// The hand-written kernels: on tensor cores where the shape allows it, else in float.
static void forward_by_hand(forward_tensors t, attention_block b, bool merge) {
    if (!attention_mma_forward(t.out, t.lse, t.q, t.k, t.v, b, merge))
        attention_kernel_forward(t.out, t.lse, t.q, t.k, t.v, b, merge);
}
static void backward_by_hand(backward_tensors t, attention_block b, bool add_dq, bool add_dkv) {
    if (!attention_mma_backward(t.dq, t.dk, t.dv, t.q, t.k, t.v, t.dout, t.lse, t.delta, b, add_dq, add_dkv))
        attention_kernel_backward(t.dq, t.dk, t.dv, t.q, t.k, t.v, t.dout, t.lse, t.delta, b, add_dq, add_dkv);
}

static attention_block part_of(attention_block b, attention_part part) { // the same rows, as many heads as the part has
    b.Hq = part.kv * part.members;
    b.Hkv = part.kv;
    return b;
}
// b: the rows that are wanted. The engine computes Tq and Tk rows, which may be more. Its results go to scratch, dense, and from there into
// the sums, or to where they are final; out of all heads of a tile that is alone, which is dense there, goes there at once. Its lse is
// dense because cuDNN assumed that whatever strides it was given (forward before 9.12, backward before 9.26).
// What the engine does not take is done by hand; if the tile is alone, it is not done, and the answer is false.
static bool forward_tile(forward_tensors tile, attention_block b, int64_t Tq, int64_t Tk, bool merge, void *scratch) {
    int group = b.Hq / b.Hkv;
    bool taken = false;
    attention_block asked = b;
    asked.Tq = Tq;
    asked.Tk = Tk;
    attention_part part = attention_call_part(false, Tq, Tk, b.Hq, b.Hkv, b.HS);
    for (int kv = 0; kv < b.Hkv; kv += part.kv) {
        forward_tensors t = forward_from(tile, b, 0, 0, (int64_t)kv * group, kv);
        attention_shape s = attention_call_shape(asked, false, part);
        int64_t width = (int64_t)s.Hq * s.HS;
        scratch_memory m = {(char *)scratch, 0};
        forward_scratch f = forward_take(&m, s);
        if (t.alone != NULL && b.q_stride == width) f.out = t.alone;
        void *tensors[ATTENTION_TENSORS] = {NULL};
        tensors[ATTENTION_Q] = (void *)t.q;
        tensors[ATTENTION_K] = (void *)t.k;
        tensors[ATTENTION_V] = (void *)t.v;
        tensors[ATTENTION_OUT] = f.out;
        tensors[ATTENTION_LSE] = t.alone != NULL ? t.lse : f.lse;
        if (attention_call(s, tensors, b.scale, f.workspace)) {
            if (t.alone == NULL)
                attention_merge(t.out, t.lse, f.out, f.lse, b.Tq, s.Hq, b.HS, b.sum_stride, b.lse_stride, s.Tq, merge);
            else if (t.alone != f.out) op_copy_rows(t.alone, b.q_stride, f.out, width, b.Tq, width);
            taken = true;
        } else if (t.alone != NULL) {
            return false;
        } else {
            forward_by_hand(t, part_of(b, part), merge);
        }
    }
    engine_tiles += taken;
    return taken;
}
static bool backward_tile(backward_tensors tile, attention_block b, int64_t Tq, int64_t Tk, bool add_dq, bool add_dkv, void *scratch) {
    int group = b.Hq / b.Hkv;
    bool taken = false;
    attention_block asked = b;
    asked.Tq = Tq;
    asked.Tk = Tk;
    attention_part part = attention_call_part(true, Tq, Tk, b.Hq, b.Hkv, b.HS);
    for (int kv = 0; kv < b.Hkv; kv += part.kv)
        for (int member = 0; member < group; member += part.members) {
            backward_tensors t = backward_from(tile, b, 0, 0, (int64_t)kv * group + member, kv);
            bool adds = add_dkv || member > 0, lse_is_dense = b.lse_stride == Tq && b.Tq == Tq && (uintptr_t)t.lse % 16 == 0;
            attention_shape s = attention_call_shape(asked, true, part);
            int64_t width = (int64_t)s.Hq * s.HS;
            scratch_memory m = {(char *)scratch, 0};
            backward_scratch f = backward_take(&m, s);
            if (!lse_is_dense) attention_lse_copy(f.lse, t.lse, s.Hq, s.Tq, b.Tq, s.Tq, b.lse_stride);
            void *tensors[ATTENTION_TENSORS] = {NULL};
            tensors[ATTENTION_Q] = (void *)t.q;
            tensors[ATTENTION_K] = (void *)t.k;
            tensors[ATTENTION_V] = (void *)t.v;
            tensors[ATTENTION_OUT] = (void *)t.out;
            tensors[ATTENTION_DOUT] = (void *)t.dout;
            tensors[ATTENTION_LSE] = lse_is_dense ? (void *)(uintptr_t)t.lse : f.lse;
            tensors[ATTENTION_DQ] = f.dq;
            tensors[ATTENTION_DQ_SUM] = f.dq_sum;
            tensors[ATTENTION_DK] = f.dk;
            tensors[ATTENTION_DV] = f.dv;
            tensors[ATTENTION_DELTA] = f.delta;
            if (attention_call(s, tensors, b.scale, f.workspace)) {
                if (t.alone != NULL) op_copy_rows(t.alone, b.q_stride, f.dq, width, b.Tq, width); // not sooner: may be q
                else attention_sum_heads(t.dq, f.dq, b.Tq, s.Hq, 1, b.HS, b.sum_stride, add_dq);
                attention_sum_heads(t.dk, f.dk, b.Tk, part.kv, part.members, b.HS, b.kv_stride, adds);
                attention_sum_heads(t.dv, f.dv, b.Tk, part.kv, part.members, b.HS, b.kv_stride, adds);
                taken = true;
            } else if (t.alone != NULL) {
                return false;
            } else {
                backward_by_hand(t, part_of(b, part), add_dq, adds);
            }
        }
    engine_tiles += taken;
    return taken;
}

// ---- is the engine right? ----

// Root mean square of a - b divided by that of b: 0 if they are equal, infinite if either is not finite.
static double difference(const float *a, const float *b, int64_t n) {
    float *x = HOST_NEW(float, 2 * n), *y = x + n;
    double d = 0, s = 0;
    device_to_host(x, a, sizeof(float) * (size_t)n);
    device_to_host(y, b, sizeof(float) * (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        d += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
        s += (double)y[i] * (double)y[i];
    }
    free(x);
    return !isfinite(d) || !isfinite(s) ? INFINITY : d == 0 ? 0 : sqrt(d / s);
}
// Sets the first number of heads [0, some) of every step-th row of x (rows, heads, HS). staging: as many floats on the device.
static void set_first_numbers(floatX *x, float *staging, int64_t rows, int heads, int HS, int some, int64_t step, float value) {
    int64_t n = rows * heads * HS;
    float *host = HOST_NEW(float, n);
    op_cast_to_float(staging, x, n);
    device_to_host(host, staging, sizeof(float) * (size_t)n);
    for (int64_t row = 0; row < rows; row += step)
        for (int head = 0; head < some; head++) host[(row * heads + head) * HS] = value;
    device_from_host(staging, host, sizeof(float) * (size_t)n);
    op_cast_from_float(x, staging, n);
    free(host);
}
// A causal block, and one of half the queries on all keys. For the second, cuDNN on Blackwell (9.19) would take its A100 kernel, and
// another one than for the first from 4096 keys on. So there it has 256 queries and 4096 keys. (Causal blocks have that other kernel from
// 65536 rows on, which only gpu_points reaches.) test_cudnn_graphs: what a run computes has no third kernel.
attention_block attention_checked_block(int HS, bool causal) {
    enum { T = 256, HQ = 4, HKV = 2 };
    attention_block b = {.Tq = causal || blackwell ? T : T / 2, .Tk = causal || !blackwell ? T : 4096, .Hq = HQ, .Hkv = HKV, .HS = HS,
                         .q_stride = (int64_t)HQ * HS, .sum_stride = (int64_t)HQ * HS, .kv_stride = (int64_t)2 * HKV * HS,
                         .lse_stride = T, .scale = 1 / sqrtf((float)HS), .causal = causal};
    return b;
}
// Computes the two blocks (documents: the causal one, for which the engine is asked for more rows than are wanted; low: the causal one),
// with the engine and with the hand-written kernels in float. worst: the largest differences of out, lse, dq, and dk and dv. low: all
// scores of every eighth query are moved by -4096 / sqrt(HS), which changes neither weights nor, but for the first number of each head,
// gradients. Kernels that were wrong only there: cudnn-frontend pull request 628 (a score of 0 behind the last key), issue 744 (dq and dk
// off by 7 % on B200).
static void engine_differences(int HS, bool documents, bool low, double worst[4]) {
    attention_block blocks[2] = {attention_checked_block(HS, true), attention_checked_block(HS, false)}, largest = blocks[0];
    largest.Tk = blocks[1].Tk;
    int64_t nq = largest.Tq * largest.q_stride, nkv = largest.Tk * largest.kv_stride;
    int64_t v_at = (int64_t)largest.Hkv * HS, n = largest.Tq * largest.Hq;
    attention_part all = {largest.Hkv, largest.Hq / largest.Hkv};
    size_t bytes = sizeof(float) * (size_t)(4 * nq + 2 * nkv + 3 * n) + sizeof(floatX) * (size_t)(3 * nq + nkv) +
                   16 * 256; // for alignment
    bytes += call_scratch(largest, false, all) + call_scratch(largest, true, all);
    scratch_memory m = {(char *)device_alloc(bytes), 0};
    if (m.at == NULL) comm_abort("not enough memory to check the attention engine: %zu bytes", bytes);
    int64_t sizes[4] = {nq, n, nq, nkv}; // out, lse, dq, dk and dv
    float *e[4], *h[4], *delta = TAKE(&m, float, n); // results of the engine, and by hand
    for (int i = 0; i < 4; i++) {
        e[i] = TAKE(&m, float, sizes[i]);
        h[i] = TAKE(&m, float, sizes[i]);
        worst[i] = 0;
    }
    floatX *q = TAKE(&m, floatX, nq), *dout = TAKE(&m, floatX, nq), *out = TAKE(&m, floatX, nq), *kv = TAKE(&m, floatX, nkv);
    op_init_normal(q, 1, 1, 0, nq, 1);
    op_init_normal(dout, 1, 2, 0, nq, 1);
    op_init_normal(kv, 1, 3, 0, nkv, 1);
    if (low) { // both numbers are exact in bf16
        set_first_numbers(q, e[0], largest.Tq, largest.Hq, HS, largest.Hq, 8, -512);
        set_first_numbers(kv, e[3], largest.Tk, 2 * largest.Hkv, HS, largest.Hkv, 1, 8);
    }
    for (int pass = 0; pass < (documents || low ? 1 : 2); pass++) {
        attention_block b = blocks[pass];
        int64_t queries = b.Tq, keys = b.Tk; // that the engine is asked for
        if (documents) b.Tq = b.Tk -= 50;
        for (int i = 0; i < 4; i++) {
            device_zero(e[i], sizeof(float) * (size_t)sizes[i]);
            device_zero(h[i], sizeof(float) * (size_t)sizes[i]);
        }
        // What the engine must set is 1e30 before, in case that it adds, or leaves something out.
        attention_lse_copy(e[1], e[1], b.Hq, b.Tq, 0, b.lse_stride, 0);
        for (int i = 0; i < 4; i += 2) attention_lse_copy(e[i], e[i], 1, b.Tq * b.q_stride, 0, 0, 0);
        attention_lse_copy(e[3], e[3], 1, b.Tk * b.kv_stride, 0, 0, 0);
        float *scratch = (float *)(void *)(m.at + m.used);
        attention_lse_copy(scratch, scratch, 1, (int64_t)(bytes - m.used) / 4, 0, 0, 0);
        forward_tensors f = {e[0], e[1], q, kv, kv + v_at, NULL};
        forward_tile(f, b, queries, keys, false, scratch);
        attention_kernel_forward(h[0], h[1], q, kv, kv + v_at, b, false);
        op_cast_from_float(out, h[0], nq);
        op_attention_delta(delta, out, dout, b);
        backward_tensors g = {e[2], e[3], e[3] + v_at, q, kv, kv + v_at, out, dout, h[1], delta, NULL};
        if (!deterministic) backward_tile(g, b, queries, keys, false, false, scratch);
        attention_kernel_backward(h[2], h[3], h[3] + v_at, q, kv, kv + v_at, dout, h[1], delta, b, false, false);
        for (int i = 0; i < (deterministic ? 2 : 4); i++) worst[i] = fmax(worst[i], difference(e[i], h[i], sizes[i]));
    }
    device_free(m.at);
}
// A pass (0 forward, 1 backward) is not right, with a warning, when its results differ by more than the engine's rounding to bf16 of
// weights, their gradients and results (2^-8 each at most) explains. Where that is so only for queries with low scores, and by less than a
// quarter, there is only the warning: such queries are rare in a Llama.
static void check_engine(int HS, bool documents, bool right[2]) {
    const double bound = 1.0 / 128, low_bound = 0.25;
    right[0] = right[1] = true;
    for (int low = 0; low < 2 && (right[0] || right[1]); low++) {
        double worst[4];
        engine_differences(HS, documents, low == 1, worst);
        for (int pass = 0; pass < 2; pass++) {
            double most = pass == 0 ? worst[0] : fmax(worst[2], worst[3]); // not NaN: difference() returns infinity for what is not finite
            bool lse = pass == 1 || worst[1] <= 1e-4;
            if (!right[pass] || (most <= bound && lse)) continue;
            right[pass] = low == 1 && most <= low_bound && lse;
            comm_note("warning: %s with heads of %d is %s on this device in the %s pass%s: its differences from the hand-written kernels "
                      "are out %.1e, lse %.1e, dq %.1e, dk and dv %.1e (bound %.1e; lse 1e-4); %s",
                      op_attention_engine(false), HS, right[pass] ? "inaccurate" : "wrong", pass == 0 ? "forward" : "backward",
                      low == 1 ? " for queries whose scores are all far below 0" : "", worst[0], worst[1], worst[2], worst[3], bound,
                      right[pass] ? "it is used nevertheless (a build with CUDNN=0 does without it)"
                      : documents ? "these kernels now compute it for packed documents"
                                  : "these kernels now compute it");
        }
    }
}
bool attention_engine_agrees(int HS, bool documents, bool backward) {
    static struct {
        bool known, right[2];
    } checks[2][DEVICE_HEAD_SIZE_MAX + 1];
    if (!attention_call_possible() || HS > DEVICE_HEAD_SIZE_MAX) return false;
    if (documents && !attention_engine_agrees(HS, false, backward)) return false;
    if (!checks[documents][HS].known) check_engine(HS, documents, checks[documents][HS].right);
    checks[documents][HS].known = true;
    return checks[documents][HS].right[backward];
}

// ---- a block: parts, and the pieces of rows that a part is computed in ----

// The first row after `row` that belongs to another document, or `rows`.
static int64_t document_end(const int64_t *first, int64_t row, int64_t rows) {
    int64_t low = row + 1, high = rows;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (first[middle] == first[row]) low = middle + 1;
        else high = middle;
    }
    return low;
}
// On the diagonal (causal): each document occupies the same rows of queries and of keys. Off it: all queries see all keys. Both always hold
// for the blocks of double_ring_block.
static bool documents_can_be_cut(attention_block b) {
    const attention_documents *d = &b.documents;
    if (!b.causal) return attention_first_key(d, d->host[b.Tq - 1], b.Tk) == 0;
    for (int64_t row = 0; row < b.Tq; row = document_end(d->host, row, b.Tq))
        if (attention_first_key(d, d->host[row], b.Tk) != row) return false;
    return b.Tq == b.Tk;
}

// Does the engine compute this block? Only what cuDNN's kernels are known to get right: whole tiles of 128 rows (on other lengths backward
// kernels before 9.15.1 may read out of bounds, and Hopper's up to 9.30 give NaN in dq for scores far below 0), head sizes and strides
// divisible by 8, addresses aligned to 16 bytes (`addresses`: of its bf16 tensors, or'ed). Causal: no key without a query that sees it.
// Packed documents are cut into such rows later (part_from). Last, the engine must agree with the hand-written kernels on this device,
// which the first call finds out by running it (attention_engine_agrees).
static bool is_for_engine(attention_block b, bool backward, uintptr_t addresses) {
    if (!attention_call_possible() || b.Tq == 0 || b.Tk == 0) return false;
    bool rows = b.documents.first != NULL ? least_rows <= attention_tile_rows(b) && documents_can_be_cut(b)
                                          : b.Tq % 128 == 0 && b.Tk % 128 == 0 && (!b.causal || b.Tk <= b.Tq);
    return rows && b.HS % 8 == 0 && b.q_stride % 8 == 0 && b.kv_stride % 8 == 0 && addresses % 16 == 0 &&
           attention_engine_agrees(b.HS, b.documents.first != NULL, backward);
}

// Queries [at, at + b.Tq) and keys [at, at + b.Tk) of a block.
typedef struct {
    attention_block b;
    int64_t at;
    bool engine, document; // engine: it computes the part. document: one long document, of any length (whole blocks have few lengths)
    int64_t spare;         // rows of q, k and v that follow in memory: the engine may compute them as padding
    int64_t most;          // most rows of a piece
} block_part;

bool attention_document_is_long(attention_block b, int64_t queries, int64_t keys) {
    return min_i64(queries, keys) >= least_rows && queries * keys / (b.causal ? 2 : 1) * b.Hq * b.HS >= least_work;
}
// The part of a block that begins with query `at`. A block without documents is one part. So is one that the engine does not take, and one
// off the diagonal (a single document). On the diagonal a part is one long document, or all shorter ones up to the next long one.
static block_part part_from(attention_block b, int64_t at, bool engine) {
    block_part p = {.b = b, .engine = engine, .most = attention_tile_rows(b)};
    if (b.documents.first == NULL || !engine) return p;
    if (!b.causal) {
        p.document = p.engine = attention_document_is_long(b, b.Tq, b.Tk);
    } else {
        const int64_t *first = b.documents.host;
        int64_t end = document_end(first, at, b.Tq), next = end;
        p.document = p.engine = attention_document_is_long(b, end - at, end - at);
        for (; !p.engine && next < b.Tq; end = next) {
            next = document_end(first, end, b.Tq);
            if (attention_document_is_long(b, next - end, next - end)) break;
        }
        p.at = at;
        p.b.Tq = p.b.Tk = end - at;
        p.b.documents = attention_documents_from(b.documents, at, at);
        p.b.documents.split = min_i64(p.b.documents.split, p.b.Tk);
        p.spare = b.Tq - end;
    }
    if (p.document) p.b.documents.first = NULL;
    return p;
}

// Rows [at, at + rows) of a part. The engine computes `asked` rows from `at` on: `rows`, or more, whose results are discarded; 0: none.
typedef struct {
    int64_t at, rows, asked;
} row_piece;

// The piece that begins at row `at` of the rows up to `end`. A document is computed in few different sizes, because the engine is planned
// for each: where rows follow it, in one piece, rounded up to a sixteenth of a power of two; else cut into least_rows times powers of two,
// the largest first. Extra rows do no harm: extra queries see the document's keys (and are discarded), but the document's queries see no
// extra key.
static row_piece piece_from(const block_part *p, int64_t at, int64_t end) {
    int64_t left = end - at, size = least_rows;
    if (!p->document || left == 0) return (row_piece){at, min_i64(left, p->most), min_i64(left, p->most)};
    while (size < left) size *= 2;
    int64_t rounded = max_i64(least_rows, round_up(left, max_i64(size / 32, min_i64(least_rows, 128))));
    if (rounded <= p->most && at + rounded <= end + p->spare) return (row_piece){at, left, rounded};
    while (size > min_i64(left, p->most)) size = size == least_rows ? 0 : size / 2;
    return (row_piece){at, size == 0 ? left : size, size};
}
static row_piece piece_after(const block_part *p, row_piece piece, int64_t end) { return piece_from(p, piece.at + piece.rows, end); }
static attention_block tile_of(const block_part *p, row_piece queries, row_piece keys) {
    attention_block tile = p->b;
    tile.Tq = queries.rows;
    tile.Tk = keys.rows;
    tile.causal = p->b.causal && queries.at == keys.at;
    return tile;
}

static int64_t attention_calls_made;

void op_attention_forward(float *out, float *lse, const floatX *q, const floatX *k, const floatX *v, attention_block block, bool merge,
                          void *scratch) {
    forward_tensors all = {out, lse, q, k, v, NULL};
    bool engine = is_for_engine(block, false, (uintptr_t)q | (uintptr_t)k | (uintptr_t)v);
    attention_calls_made++;
    int64_t at = 0;
    do {
        block_part p = part_from(block, at, engine);
        at += p.b.Tq;
        if (!p.engine) {
            forward_by_hand(forward_from(all, block, p.at, p.at, 0, 0), p.b, merge);
            continue;
        }
        for (row_piece i = piece_from(&p, 0, p.b.Tq); i.rows > 0; i = piece_after(&p, i, p.b.Tq))
            for (row_piece j = piece_from(&p, 0, p.b.Tk); j.rows > 0 && (!p.b.causal || j.at <= i.at); j = piece_after(&p, j, p.b.Tk)) {
                forward_tensors t = forward_from(all, block, p.at + i.at, p.at + j.at, 0, 0);
                if (i.asked == 0 || j.asked == 0) forward_by_hand(t, tile_of(&p, i, j), merge || j.at > 0);
                else forward_tile(t, tile_of(&p, i, j), i.asked, j.asked, merge || j.at > 0, scratch);
            }
    } while (at < block.Tq);
}
void op_attention_backward(float *dq, float *dk, float *dv, const floatX *q, const floatX *k, const floatX *v, const floatX *out,
                           const floatX *dout, const float *lse, const float *delta, attention_block block, bool add_dq, bool add_dkv,
                           void *scratch) {
    backward_tensors all = {dq, dk, dv, q, k, v, out, dout, lse, delta, NULL};
    uintptr_t addresses = (uintptr_t)q | (uintptr_t)k | (uintptr_t)v | (uintptr_t)out | (uintptr_t)dout;
    bool engine = !deterministic && is_for_engine(block, true, addresses);
    int64_t at = 0;
    do {
        block_part p = part_from(block, at, engine);
        at += p.b.Tq;
        if (!p.engine) {
            backward_by_hand(backward_from(all, block, p.at, p.at, 0, 0), p.b, add_dq, add_dkv);
            continue;
        }
        for (row_piece i = piece_from(&p, 0, p.b.Tq); i.rows > 0; i = piece_after(&p, i, p.b.Tq))
            for (row_piece j = piece_from(&p, 0, p.b.Tk); j.rows > 0 && (!p.b.causal || j.at <= i.at); j = piece_after(&p, j, p.b.Tk)) {
                backward_tensors t = backward_from(all, block, p.at + i.at, p.at + j.at, 0, 0);
                bool adds_dq = add_dq || j.at > 0, adds_dkv = add_dkv || i.at > (p.b.causal ? j.at : 0);
                if (i.asked == 0 || j.asked == 0) backward_by_hand(t, tile_of(&p, i, j), adds_dq, adds_dkv);
                else backward_tile(t, tile_of(&p, i, j), i.asked, j.asked, adds_dq, adds_dkv, scratch);
            }
    } while (at < block.Tq);
}

// One tile, whose calls have one shape: if the engine takes the first it takes all.
static bool is_alone(attention_block b, bool backward, uintptr_t addresses) {
    return b.documents.first == NULL && attention_tile_rows(b) >= max_i64(b.Tq, b.Tk) && b.lse_stride == b.Tq &&
           is_for_engine(b, backward, addresses);
}
bool op_attention_forward_alone(floatX *out, float *lse, const floatX *q, const floatX *k, const floatX *v, attention_block block,
                                void *scratch) {
    forward_tensors all = {NULL, lse, q, k, v, out};
    if (!is_alone(block, false, (uintptr_t)q | (uintptr_t)k | (uintptr_t)v | (uintptr_t)out | (uintptr_t)lse) ||
        !forward_tile(all, block, block.Tq, block.Tk, false, scratch))
        return false;
    attention_calls_made++;
    return true;
}
bool op_attention_backward_alone(floatX *dq, float *dk, float *dv, const floatX *q, const floatX *k, const floatX *v, const floatX *out,
                                 const floatX *dout, const float *lse, attention_block block, bool add_dkv, void *scratch) {
    backward_tensors all = {NULL, dk, dv, q, k, v, out, dout, lse, NULL, dq};
    uintptr_t addresses = (uintptr_t)q | (uintptr_t)k | (uintptr_t)v | (uintptr_t)out | (uintptr_t)dout;
    return !deterministic && is_alone(block, true, addresses) && backward_tile(all, block, block.Tq, block.Tk, false, add_dkv, scratch);
}

size_t op_attention_scratch(attention_block block, bool backward) {
    if (!attention_call_possible() || (backward && deterministic)) return 0;
    // Calls with fewer rows may take more heads at a time, but stay under most_scratch, unless 128 rows of a single head need more.
    attention_part all_heads = {block.Hkv, block.Hq / block.Hkv};
    size_t whole = call_scratch(block, backward, all_heads), bound = (size_t)most_scratch + 16384; // alignment and slack
    int64_t rows = attention_tile_rows(block);
    block.Tq = min_i64(block.Tq, rows);
    block.Tk = min_i64(block.Tk, rows);
    size_t least = call_scratch(block, backward, attention_call_part(backward, block.Tq, block.Tk, block.Hq, block.Hkv, block.HS));
    if (whole < bound) bound = whole;
    return least > bound ? least : bound;
}

int64_t op_attention_calls(void) { return attention_calls_made; }
int64_t op_attention_tiles(void) { return 0; }
