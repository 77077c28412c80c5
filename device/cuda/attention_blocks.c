// op_attention_*: cuts a block into calls of the attention engine, and joins their results. See device/ops.h and attention_call.h.
#include "attention_call.h"

// ---- how a block is cut into calls ----

size_t attention_call_workspace(attention_shape s) {
    size_t slack = 4096;
    if (!s.backward) return slack;
    return sizeof(float) * (size_t)(s.Tq * s.Hq * s.HS) + slack; // engines before Hopper sum dq up in memory of their own
}

static bool deterministic, blackwell;
void attention_use_deterministic(void) { deterministic = true; }
void attention_use_blackwell(bool yes) { blackwell = yes; }

attention_shape attention_call_shape(attention_block b, bool backward, bool q_apart, bool kv_apart, attention_run run) {
    attention_shape s;
    memset(&s, 0, sizeof s);
    s.backward = backward;
    s.dkv_bf16 = backward && blackwell;
    s.causal = b.causal;
    s.Tq = b.Tq;
    s.Tk = b.Tk;
    s.HS = b.HS;
    s.Hkv = run.kv;
    s.kv.row = b.kv_stride;
    s.Hq = run.kv * run.members;
    s.q.row = b.q_stride;
    s.q.head = s.kv.head = b.HS;
    s.lse_head = s.delta_head = b.Tq;
    head_strides dense = {(int64_t)s.Hq * b.HS, b.HS};
    s.out = s.dq = q_apart ? dense : s.q;
    s.dkv = kv_apart || s.dkv_bf16 ? dense : s.kv;
    return s;
}
attention_shape attention_whole_shape(attention_block b) {
    attention_run all = {b.Hkv, b.Hq / b.Hkv};
    attention_shape s = attention_call_shape(b, false, false, false, all);
    s.lse_head = s.delta_head = b.lse_stride;
    s.documents = b.documents;
    return s;
}
static bool strides_equal(head_strides a, head_strides b) { return a.row == b.row && a.head == b.head; }
bool attention_shape_equal(attention_shape a, attention_shape b) {
    return a.backward == b.backward && a.causal == b.causal && a.dkv_bf16 == b.dkv_bf16 && a.Tq == b.Tq && a.Tk == b.Tk && a.Hq == b.Hq && a.Hkv == b.Hkv &&
           a.HS == b.HS && strides_equal(a.q, b.q) && strides_equal(a.kv, b.kv) && strides_equal(a.out, b.out) &&
           strides_equal(a.dq, b.dq) && strides_equal(a.dkv, b.dkv) && a.lse_head == b.lse_head && a.delta_head == b.delta_head;
}

static int64_t most_elements = INT32_MAX, most_scratch = (int64_t)768 << 20;
void attention_test_limits(int64_t elements, int64_t scratch_bytes) {
    most_elements = elements > 0 ? elements : INT32_MAX;
    most_scratch = scratch_bytes > 0 ? scratch_bytes : (int64_t)768 << 20;
}
int64_t attention_tile_rows(int64_t q_stride, int64_t kv_stride, int64_t Tq, int64_t Tk) {
    int64_t rows = most_elements / max_i64(1, max_i64(q_stride, kv_stride)) / 128 * 128;
    if (blackwell) rows = min_i64(rows, 65536);
    return rows >= max_i64(Tq, Tk) ? max_i64(Tq, Tk) : max_i64(rows, 128);
}
attention_run attention_call_run(bool backward, int64_t Tq, int64_t Tk, int Hq, int Hkv, int HS) {
    int64_t floats = backward ? (3 * Tq + 2 * Tk) * HS + 2 * Tq : Tq * HS + Tq; // of scratch for one query head
    int64_t heads = max_i64(1, most_scratch / (4 * max_i64(floats, 1)));
    attention_run run = {(int)max_i64(1, min_i64(heads * Hkv / Hq, Hkv)), Hq / Hkv};
    while (backward && (run.members > heads || Hq / Hkv % run.members != 0)) run.members--; // a part of a group: a divisor of it
    return run;
}

// ---- scratch: pieces of the caller's memory, each on 256 bytes ----

typedef struct {
    char *at; // NULL: counting
    size_t used;
} scratch_memory;

static void *take(scratch_memory *m, size_t bytes) {
    void *p = m->at == NULL ? NULL : m->at + m->used;
    m->used += (bytes + 255) / 256 * 256;
    return p;
}

typedef struct {
    float *out, *lse; // of a forward call that is merged afterwards
    void *workspace;
} forward_scratch;
static forward_scratch forward_take(scratch_memory *m, attention_shape s) {
    forward_scratch f;
    f.out = (float *)take(m, sizeof(float) * (size_t)(s.Tq * s.Hq * s.HS));
    f.lse = (float *)take(m, sizeof(float) * (size_t)(s.Tq * s.Hq));
    f.workspace = take(m, attention_call_workspace(s));
    return f;
}
typedef struct {
    float *dq, *dq_sum, *dk, *dv, *delta, *lse;
    void *workspace;
} backward_scratch;
static backward_scratch backward_take(scratch_memory *m, attention_shape s) {
    size_t q = sizeof(float) * (size_t)(s.Tq * s.Hq * s.HS), k = sizeof(float) * (size_t)(s.Tk * s.Hq * s.HS);
    backward_scratch b;
    b.dq = (float *)take(m, q);
    b.dq_sum = (float *)take(m, q);
    b.dk = (float *)take(m, k);
    b.dv = (float *)take(m, k);
    b.delta = (float *)take(m, sizeof(float) * (size_t)(s.Tq * s.Hq));
    b.lse = (float *)take(m, sizeof(float) * (size_t)(s.Tq * s.Hq));
    b.workspace = take(m, attention_call_workspace(s));
    return b;
}

static size_t call_scratch(attention_block b, bool backward, attention_run run) {
    scratch_memory m = {NULL, 0};
    attention_shape s = attention_call_shape(b, backward, true, true, run);
    if (backward) backward_take(&m, s);
    else forward_take(&m, s);
    return m.used;
}

// ---- a tile: loops over runs of key/value heads ----

// For the engine? What cuDNN's kernels are known to be right for: whole tiles of 128 rows (on other lengths backward kernels before 9.15.1 may read
// outside, and Hopper's up to 9.30 give NaN in dq for scores far below 0), heads in pieces of 8, addresses on 16 bytes (`addresses`: all of
// the call, or'ed). Its graphs know no boundaries of documents. Causal: every key is seen. Last, what it is found to be here: the first time by
// running it (attention_engine_agrees).
static bool is_for_engine(attention_block b, uintptr_t addresses) {
    return attention_call_possible() && b.documents.first == NULL && b.Tq > 0 && b.Tk > 0 && (!b.causal || b.Tk <= b.Tq) && b.HS % 8 == 0 && b.Tq % 128 == 0 &&
           b.Tk % 128 == 0 && b.q_stride % 8 == 0 && b.kv_stride % 8 == 0 && b.lse_stride % 4 == 0 && addresses % 16 == 0 && attention_engine_agrees(b.HS);
}

// By hand: on tensor cores where the shape allows it, else in float.
static void forward_by_hand(float *out, float *lse, const floatX *q, const floatX *k, const floatX *v, attention_block b, bool merge) {
    attention_shape s = attention_whole_shape(b);
    if (!attention_mma_forward(out, lse, q, k, v, s, b.scale, merge)) attention_kernel_forward(out, lse, q, k, v, s, b.scale, merge);
}
static void backward_by_hand(float *dq, float *dk, float *dv, const floatX *q, const floatX *k, const floatX *v, const floatX *dout, const float *lse,
                             const float *delta, attention_block b, bool add_dq, bool add_dkv) {
    attention_shape s = attention_whole_shape(b);
    if (!attention_mma_backward(dq, dk, dv, q, k, v, dout, lse, delta, s, b.scale, add_dq, add_dkv))
        attention_kernel_backward(dq, dk, dv, q, k, v, dout, lse, delta, s, b.scale, add_dq, add_dkv);
}

static attention_block part_of(attention_block b, attention_run run) { // so many of its heads
    b.Hq = run.kv * run.members;
    b.Hkv = run.kv;
    return b;
}
// lse of so many heads without gaps: cuDNN has read and written it so, whatever strides it was told (forward before 9.12, backward before 9.26).
static void copy_lse(float *to, const float *from, int heads, int64_t rows, int64_t to_stride, int64_t from_stride) {
    attention_sum_heads(to, from, false, heads, 1, 1, (int)rows, from_stride, to_stride, rows, false);
}

static void forward_tile(float *out, float *lse, const floatX *q, const floatX *k, const floatX *v, attention_block b, bool merge,
                         void *scratch) {
    int group = b.Hq / b.Hkv;
    attention_run most = attention_call_run(false, b.Tq, b.Tk, b.Hq, b.Hkv, b.HS);
    for (int kv = 0; kv < b.Hkv; kv += most.kv) {
        attention_run run = {(int)min_i64(most.kv, b.Hkv - kv), group};
        int first = kv * group;
        attention_shape s = attention_call_shape(b, false, merge, false, run);
        scratch_memory m = {(char *)scratch, 0};
        forward_scratch f = forward_take(&m, s);
        float *to = out + (int64_t)first * b.HS, *to_lse = lse + first * b.lse_stride;
        bool lse_apart = merge || b.lse_stride != b.Tq;
        void *tensors[ATTENTION_TENSORS] = {NULL};
        tensors[ATTENTION_Q] = (void *)(uintptr_t)(q + (int64_t)first * b.HS);
        tensors[ATTENTION_K] = (void *)(uintptr_t)(k + (int64_t)kv * b.HS);
        tensors[ATTENTION_V] = (void *)(uintptr_t)(v + (int64_t)kv * b.HS);
        tensors[ATTENTION_OUT] = merge ? f.out : to;
        tensors[ATTENTION_LSE] = lse_apart ? f.lse : to_lse;
        if (!attention_call_takes(s)) {
            forward_by_hand(to, to_lse, q + (int64_t)first * b.HS, k + (int64_t)kv * b.HS, v + (int64_t)kv * b.HS, part_of(b, run), merge);
            continue;
        }
        attention_call(s, tensors, b.scale, f.workspace);
        if (merge) attention_merge(to, to_lse, f.out, f.lse, b.Tq, s.Hq, b.HS, b.q_stride, b.lse_stride, (int64_t)s.Hq * b.HS, b.Tq);
        else if (lse_apart) copy_lse(to_lse, f.lse, s.Hq, b.Tq, b.lse_stride, b.Tq);
    }
}

// A call writes straight to dq where that is set, and to dk and dv where they are set and there is one query head to a key/value head; else to
// scratch, from where they are added up.
static void backward_tile(float *dq, float *dk, float *dv, const floatX *q, const floatX *k, const floatX *v, const floatX *out,
                          const floatX *dout, const float *lse, const float *delta, attention_block b, bool add_dq, bool add_dkv, void *scratch) {
    int group = b.Hq / b.Hkv;
    attention_run most = attention_call_run(true, b.Tq, b.Tk, b.Hq, b.Hkv, b.HS);
    for (int kv = 0; kv < b.Hkv; kv += most.kv)
        for (int member = 0; member < group; member += most.members) {
            attention_run run = {(int)min_i64(most.kv, b.Hkv - kv), most.members};
            int first = kv * group + member;
            int64_t kv_at = (int64_t)kv * b.HS, q_at = (int64_t)first * b.HS, lse_at = first * b.lse_stride;
            bool adds = add_dkv || member > 0;
            attention_shape s = attention_call_shape(b, true, add_dq, adds || group > 1, run);
            bool apart = adds || group > 1 || s.dkv_bf16;
            if (!attention_call_takes(s)) {
                backward_by_hand(dq + q_at, dk + kv_at, dv + kv_at, q + q_at, k + kv_at, v + kv_at, dout + q_at, lse + lse_at, delta + lse_at, part_of(b, run),
                                 add_dq, adds);
                continue;
            }
            scratch_memory m = {(char *)scratch, 0};
            backward_scratch f = backward_take(&m, s);
            if (b.lse_stride != b.Tq) copy_lse(f.lse, lse + lse_at, s.Hq, b.Tq, b.Tq, b.lse_stride);
            void *tensors[ATTENTION_TENSORS] = {NULL};
            tensors[ATTENTION_Q] = (void *)(uintptr_t)(q + q_at);
            tensors[ATTENTION_K] = (void *)(uintptr_t)(k + kv_at);
            tensors[ATTENTION_V] = (void *)(uintptr_t)(v + kv_at);
            tensors[ATTENTION_OUT] = (void *)(uintptr_t)(out + q_at);
            tensors[ATTENTION_DOUT] = (void *)(uintptr_t)(dout + q_at);
            tensors[ATTENTION_LSE] = b.lse_stride != b.Tq ? (void *)f.lse : (void *)(uintptr_t)(lse + lse_at);
            tensors[ATTENTION_DQ] = add_dq ? f.dq : dq + q_at;
            tensors[ATTENTION_DQ_SUM] = f.dq_sum;
            tensors[ATTENTION_DK] = apart ? f.dk : dk + kv_at;
            tensors[ATTENTION_DV] = apart ? f.dv : dv + kv_at;
            tensors[ATTENTION_DELTA] = f.delta;
            attention_call(s, tensors, b.scale, f.workspace);
            int64_t dense = (int64_t)s.Hq * b.HS;
            if (add_dq) attention_sum_heads(dq + q_at, f.dq, false, b.Tq, s.Hq, 1, b.HS, dense, b.q_stride, b.HS, true);
            if (apart) attention_sum_heads(dk + kv_at, f.dk, s.dkv_bf16, b.Tk, run.kv, run.members, b.HS, dense, b.kv_stride, b.HS, adds);
            if (apart) attention_sum_heads(dv + kv_at, f.dv, s.dkv_bf16, b.Tk, run.kv, run.members, b.HS, dense, b.kv_stride, b.HS, adds);
        }
}

// ---- is the engine right? ----

// Root mean square of the difference of two tensors over that of b; infinite where one is not finite.
static double apart(const float *a, const float *b, int64_t n) {
    float *x = HOST_NEW(float, 2 * n), *y = x + n;
    double d = 0, s = 0;
    device_to_host(x, a, sizeof(float) * (size_t)n);
    device_to_host(y, b, sizeof(float) * (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        d += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
        s += (double)y[i] * (double)y[i];
    }
    free(x);
    return isfinite(d) && isfinite(s) ? sqrt(d / s) : INFINITY;
}
// Two small blocks, a causal one and one of half the queries, by the engine and by the hand-written kernels in float. False, with a warning,
// when they are farther apart than the engine's rounding of weights and their gradients to bf16 (2^-9 each) can bring them.
static bool engine_is_right(int HS) {
    enum { T = 256, HQ = 4, HKV = 2 };
    const double bound = 1.0 / 128;
    int64_t nq = (int64_t)T * HQ * HS, nkv = (int64_t)T * 2 * HKV * HS, v_at = (int64_t)HKV * HS, n = T * HQ;
    attention_block b;
    memset(&b, 0, sizeof b);
    b.Tk = b.lse_stride = T;
    b.Hq = HQ; b.Hkv = HKV; b.HS = HS;
    b.q_stride = (int64_t)HQ * HS;
    b.kv_stride = (int64_t)2 * HKV * HS;
    b.scale = 1 / sqrtf((float)HS);
    b.Tq = T;
    attention_run all = {HKV, HQ / HKV};
    size_t bytes = sizeof(float) * (size_t)(4 * nq + 2 * nkv + 3 * n) + sizeof(floatX) * (size_t)(3 * nq + nkv) + call_scratch(b, false, all) + call_scratch(b, true, all) + 16 * 256;
    scratch_memory m = {(char *)device_alloc(bytes), 0};
    if (m.at == NULL) device_fail("no memory to check the attention engine: %zu bytes", bytes);
    float *results[2][4], *delta = (float *)take(&m, sizeof(float) * (size_t)n); // out, lse, dq, dk and dv: the engine's, and by hand
    int64_t sizes[4] = {nq, n, nq, nkv};
    for (int who = 0; who < 2; who++)
        for (int i = 0; i < 4; i++) results[who][i] = (float *)take(&m, sizeof(float) * (size_t)sizes[i]);
    floatX *q = (floatX *)take(&m, sizeof(floatX) * (size_t)nq), *dout = (floatX *)take(&m, sizeof(floatX) * (size_t)nq), *out = (floatX *)take(&m, sizeof(floatX) * (size_t)nq);
    floatX *kv = (floatX *)take(&m, sizeof(floatX) * (size_t)nkv);
    op_init_normal(q, 1, 1, 0, nq, 1, 0);
    op_init_normal(dout, 1, 2, 0, nq, 1, 0);
    op_init_normal(kv, 1, 3, 0, nkv, 1, 0);
    double worst[4] = {0, 0, 0, 0};
    for (int half = 0; half < 2; half++) {
        b.causal = half == 0;
        b.Tq = half == 0 ? T : T / 2;
        for (int who = 0; who < 2; who++)
            for (int i = 0; i < 4; i++) device_zero(results[who][i], sizeof(float) * (size_t)sizes[i]);
        float **e = results[0], **h = results[1];
        attention_shape s = attention_whole_shape(b);
        forward_tile(e[0], e[1], q, kv, kv + v_at, b, false, m.at + m.used);
        attention_kernel_forward(h[0], h[1], q, kv, kv + v_at, s, b.scale, false);
        op_cast_from_float(out, h[0], nq);
        attention_kernel_delta(delta, out, dout, s);
        if (!deterministic) backward_tile(e[2], e[3], e[3] + v_at, q, kv, kv + v_at, out, dout, h[1], delta, b, false, false, m.at + m.used);
        attention_kernel_backward(h[2], h[3], h[3] + v_at, q, kv, kv + v_at, dout, h[1], delta, s, b.scale, false, false);
        for (int i = 0; i < (deterministic ? 2 : 4); i++) worst[i] = fmax(worst[i], apart(e[i], h[i], sizes[i]));
    }
    device_free(m.at, bytes);
    bool right = worst[0] <= bound && worst[1] <= 1e-4 && worst[2] <= bound && worst[3] <= bound;
    if (!right)
        fprintf(stderr, "warning: %s, heads of %d, is not right on this device: out %.1e, lse %.1e, dq %.1e, dk and dv %.1e from the hand-written kernels (bound %.1e; lse 1e-4), which compute attention now\n",
                op_attention_engine(false), HS, worst[0], worst[1], worst[2], worst[3], bound);
    return right;
}
bool attention_engine_agrees(int HS) {
    static enum { UNKNOWN, RIGHT, WRONG } known[257];
    if (!attention_call_possible() || HS > 256) return false;
    if (known[HS] == UNKNOWN) known[HS] = engine_is_right(HS) ? RIGHT : WRONG;
    return known[HS] == RIGHT;
}

// ---- a block: loops over square tiles of rows ----

// The tile of queries [i, i + rows) and keys [j, j + rows); false when no query of it sees a key.
static bool tile_of(attention_block block, int64_t i, int64_t j, int64_t rows, attention_block *tile) {
    if (block.causal && j > i) return false;
    *tile = block;
    tile->Tq = min_i64(rows, block.Tq - i);
    tile->Tk = min_i64(rows, block.Tk - j);
    tile->causal = block.causal && i == j;
    return true;
}

static int64_t attention_calls_made;

void op_attention_forward(float *out, float *lse, const floatX *q, const floatX *k, const floatX *v, attention_block block, bool merge,
                          void *scratch) {
    attention_calls_made++;
    if (!is_for_engine(block, (uintptr_t)out | (uintptr_t)lse | (uintptr_t)q | (uintptr_t)k | (uintptr_t)v)) {
        forward_by_hand(out, lse, q, k, v, block, merge);
        return;
    }
    int64_t rows = attention_tile_rows(block.q_stride, block.kv_stride, block.Tq, block.Tk);
    for (int64_t i = 0; i < block.Tq; i += rows)
        for (int64_t j = 0; j < block.Tk; j += rows) {
            attention_block tile;
            if (!tile_of(block, i, j, rows, &tile)) continue;
            forward_tile(out + i * block.q_stride, lse + i, q + i * block.q_stride, k + j * block.kv_stride, v + j * block.kv_stride, tile,
                         merge || j > 0, scratch);
        }
}
void op_attention_backward(float *dq, float *dk, float *dv, const floatX *q, const floatX *k, const floatX *v, const floatX *out,
                           const floatX *dout, const float *lse, const float *delta, attention_block block, bool add, void *scratch) {
    uintptr_t gradients = (uintptr_t)dq | (uintptr_t)dk | (uintptr_t)dv, tensors = (uintptr_t)q | (uintptr_t)k | (uintptr_t)v | (uintptr_t)out | (uintptr_t)dout;
    if (deterministic || !is_for_engine(block, gradients | tensors | (uintptr_t)lse)) {
        backward_by_hand(dq, dk, dv, q, k, v, dout, lse, delta, block, add, false);
        return;
    }
    int64_t rows = attention_tile_rows(block.q_stride, block.kv_stride, block.Tq, block.Tk);
    for (int64_t i = 0; i < block.Tq; i += rows)
        for (int64_t j = 0; j < block.Tk; j += rows) {
            attention_block tile;
            if (!tile_of(block, i, j, rows, &tile)) continue;
            int64_t q_at = i * block.q_stride, kv_at = j * block.kv_stride;
            backward_tile(dq + q_at, dk + kv_at, dv + kv_at, q + q_at, k + kv_at, v + kv_at, out + q_at, dout + q_at, lse + i, delta + i,
                          tile, add || j > 0, i > (block.causal ? j : 0), scratch);
        }
}

size_t op_attention_scratch(attention_block block, bool backward) {
    if (!attention_call_possible() || (backward && deterministic)) return 0;
    int64_t rows = attention_tile_rows(block.q_stride, block.kv_stride, block.Tq, block.Tk);
    block.Tq = min_i64(block.Tq, rows);
    block.Tk = min_i64(block.Tk, rows);
    // Calls with fewer rows may take more heads at a time. A run of n heads is taken only while it stays under most_scratch, so
    // that bound covers all of them; a single head (forward: a group) may need more, at full length.
    attention_run all = {block.Hkv, block.Hq / block.Hkv};
    size_t most = call_scratch(block, backward, attention_call_run(backward, block.Tq, block.Tk, block.Hq, block.Hkv, block.HS));
    size_t all_heads = call_scratch(block, backward, all), bound = (size_t)most_scratch + 16384; // of calls with fewer rows; 16384: alignment and slack
    if (all_heads < bound) bound = all_heads;
    return most > bound ? most : bound;
}

void op_attention_delta(float *delta, const floatX *out, const floatX *dout, attention_block block) {
    attention_kernel_delta(delta, out, dout, attention_whole_shape(block));
}

int64_t op_attention_calls(void) { return attention_calls_made; }
int64_t op_attention_tiles(void) { return 0; }
