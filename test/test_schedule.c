// ranks: 1
// The ring's schedule for every cp <= 64, every w dividing it and every way to lay out windows, without running ranks. double_ring.cuh is
// compiled against fakes of the device that record every rank's operations as a program. The programs are then played against each other
// over the strictest possible network: a rank can finish a transfer only once both its peers have started theirs, and data arrives only
// then. Checked: no deadlock, the right block with the right mask at each step, every block used once, the same work at every step, no
// buffer touched while it travels, every hop under way while the rank computes what hides it, every dKV home with the contribution of every
// rank exactly once, sent as float and as bf16. (F7-F10, F42, F44, F45) With packed documents: in each transfer the receiver expects the
// rows that the sender sends.
#include "../double_ring.cuh"
#include "test.h"

// ---- the fakes: a comm knows its members, operations append to a program ----
struct comm {
    int lane, size, rank, members[64]; // lane 0..3: kv inner, kv outer, dkv inner, dkv outer; members: CP indices
};
typedef enum { OP_START, OP_FINISH, OP_FORWARD, OP_BACKWARD, OP_ZERO, OP_ADD, OP_COPY } op_kind;
typedef struct {
    op_kind kind;
    int lane, to, from; // OP_START: CP indices
    const void *read;   // send buffer, or the KV of an attention call
    void *write;        // receive buffer, or dKV
    attention_block block;
    int64_t first_query;
    bool merge;
    size_t bytes;       // OP_ZERO; OP_START: bytes sent
    size_t arriving;    // OP_START: bytes received
} op;
enum { MAX_OPS = 4096, BUFFERS = 16 };
typedef struct {
    op ops[MAX_OPS];
    int count;
} program;
static program *recording;

static op *record(op_kind kind) {
    if (recording->count == MAX_OPS) abort();
    op *o = &recording->ops[recording->count++];
    memset(o, 0, sizeof *o);
    o->kind = kind;
    return o;
}
int comm_rank(const comm *c) { return c->rank; }
int comm_size(const comm *c) { return c->size; }
comm_kind comm_kind_of(const comm *c) { (void)c; return COMM_KINDS; } // for a trace, which is off here
void comm_sendrecv_start(comm *c, const void *send, size_t send_bytes, int to, void *recv, size_t recv_bytes, int from) {
    op *o = record(OP_START);
    o->lane = c->lane; o->to = c->members[to]; o->from = c->members[from]; o->read = send; o->write = recv; o->bytes = send_bytes;
    o->arriving = recv_bytes;
}
void comm_finish(comm *c) { record(OP_FINISH)->lane = c->lane; }
void comm_allgather_start(comm *c, const void *s, void *r, size_t n) { (void)c; (void)s; (void)r; (void)n; abort(); }
void comm_alltoall_start(comm *c, const void *s, void *r, size_t n) { (void)c; (void)s; (void)r; (void)n; abort(); }
void comm_reduce_scatter_start(comm *c, const float *s, float *r, size_t n, void *t) {
    (void)c; (void)s; (void)r; (void)n; (void)t; abort();
}
size_t comm_reduce_scatter_scratch(int ranks, size_t n) { (void)ranks; (void)n; return 0; }
comm *comm_split(comm *p, int colour, int key, comm_kind k) { (void)p; (void)colour; (void)key; (void)k; return NULL; }
void comm_free(comm *c) { (void)c; }
void comm_sum_int64(comm *c, int64_t *v, int n) { (void)c; (void)v; (void)n; }
void comm_abort(const char *format, ...) { (void)format; exit(EXIT_FAILED); }
void device_zero(void *p, size_t n) {
    if (n == 0) return;
    op *o = record(OP_ZERO);
    o->write = p; o->bytes = n;
}
void device_copy(void *to, const void *from, size_t n) { (void)n; op *o = record(OP_COPY); o->write = to; o->read = from; }
void op_add_float(float *to, const float *from, int64_t n) { (void)n; op *o = record(OP_ADD); o->write = to; o->read = from; }
void op_add_bf16(float *to, const bf16 *from, int64_t n) { (void)n; op *o = record(OP_ADD); o->write = to; o->read = from; }
void op_bf16_from_float(bf16 *to, const float *from, int64_t n) { (void)n; op *o = record(OP_COPY); o->write = to; o->read = from; }
size_t op_attention_scratch(attention_block b, bool backward) { (void)b; (void)backward; return 0; }
static int64_t query_base; // address of row 0 of q, as a number
void op_attention_forward(float *out, float *lse, const floatX *q, const floatX *k, const floatX *v, attention_block b, bool merge,
                          void *s) {
    (void)out; (void)lse; (void)s;
    op *o = record(OP_FORWARD);
    o->read = k; o->block = b; o->merge = merge;
    o->first_query = ((int64_t)(intptr_t)q - query_base) / (int64_t)sizeof(floatX) / b.q_stride;
    CHECK(v == k + b.Hkv * b.HS, "v is not beside k");
}
void op_attention_backward(float *dq, float *dk, float *dv, const floatX *q, const floatX *k, const floatX *v, const floatX *out,
                           const floatX *dout, const float *lse, const float *delta, attention_block b, bool add_dq,
                           bool add_dkv, void *s) {
    (void)dq; (void)dv; (void)v; (void)out; (void)dout; (void)lse; (void)delta; (void)s;
    CHECK(!add_dkv, "dKV is added to");
    op *o = record(OP_BACKWARD);
    o->read = k; o->write = dk; o->block = b; o->merge = add_dq;
    o->first_query = ((int64_t)(intptr_t)q - query_base) / (int64_t)sizeof(floatX) / b.q_stride;
}

// ---- playing all programs against each other ----
typedef struct {
    int owner;      // whose KV or dKV the buffer holds; -1: nothing known
    uint64_t from;  // dKV: which ranks have contributed
} content;
typedef struct {
    const void *address[BUFFERS];
    content holds[BUFFERS];
    int travels[BUFFERS]; // in flight: 2 as a receive buffer, 1 as a send buffer; 0: not
    int64_t zero_from[BUFFERS]; // the rows from this one on are zeros; 0: all, or nothing known
    int buffers, at;
    uint64_t seen_forward, seen_backward;
} player;
typedef struct {
    content sent;
    void *write;
    const void *read;
} transfer_side;

static int buffer_of(player *p, const void *address) {
    for (int i = 0; i < p->buffers; i++)
        if (p->address[i] == address) return i;
    if (p->buffers == BUFFERS) abort();
    p->address[p->buffers] = address;
    p->holds[p->buffers].owner = -1;
    p->travels[p->buffers] = 0;
    return p->buffers++;
}

static float memory_dkv[64][6][64]; // only addresses matter
static void *dkv_begin(void *inside) { // the first byte of the buffer that contains the address
    int64_t at = (char *)inside - (char *)memory_dkv;
    return (char *)memory_dkv + at / (int64_t)sizeof memory_dkv[0][0] * (int64_t)sizeof memory_dkv[0][0];
}

enum { MAX_HOPS = 256 };
static transfer_side sides[64][4][MAX_HOPS]; // per CP index and lane, in order of start
static int started[64][4], finished[64][4];
static program programs[64];
static player players[64];

// The block of c's queries with k's keys is one of three, each of work Tc^2 / 2.
static void check_block(const op *o, int c, int k, int64_t Tc, const char *pass) {
    bool right = k == c   ? o->block.causal && o->block.Tq == Tc && o->block.Tk == Tc && o->first_query == 0
                 : k < c ? !o->block.causal && o->block.Tq == Tc && o->block.Tk == Tc / 2 && o->first_query == 0
                         : !o->block.causal && o->block.Tq == Tc / 2 && o->block.Tk == Tc && o->first_query == Tc / 2;
    CHECK(right, "%s: rank %d with keys of %d: wrong block", pass, c, k);
    int64_t work = o->block.Tq * o->block.Tk / (o->block.causal ? 2 : 1);
    CHECK(work == Tc * Tc / 2, "%s: rank %d with keys of %d: work %lld", pass, c, k, (long long)work);
}

// Plays one operation of rank c; false when it must wait for another rank.
static bool play(int c, int64_t Tc) {
    player *p = &players[c];
    const op *o = &programs[c].ops[p->at];
    if (o->kind == OP_START) {
        int read = buffer_of(p, o->read), write = buffer_of(p, o->write);
        CHECK(o->bytes == o->arriving && o->bytes > 0, "rank %d: %zu bytes leave and %zu arrive", c, o->bytes, o->arriving);
        CHECK(p->travels[write] == 0 && p->travels[read] != 2, "rank %d starts a transfer on a buffer in flight", c);
        transfer_side *s = &sides[c][o->lane][started[c][o->lane]++];
        s->sent = p->holds[read];
        s->read = o->read;
        s->write = o->write;
        p->travels[write] = 2;
        if (p->travels[read] == 0) p->travels[read] = 1;
    } else if (o->kind == OP_FINISH) {
        int hop = finished[c][o->lane];
        const op *start = NULL; // the matching start of this rank
        for (int i = 0, seen = 0; i < p->at; i++)
            if (programs[c].ops[i].kind == OP_START && programs[c].ops[i].lane == o->lane && seen++ == hop) start = &programs[c].ops[i];
        CHECK(start != NULL, "rank %d finishes a transfer it never started", c);
        if (start == NULL) abort();
        // rendezvous: the peer that receives from this rank and the peer that sends to it must both have started
        if (started[start->from][o->lane] <= hop || started[start->to][o->lane] <= hop) return false;
        finished[c][o->lane]++;
        transfer_side *mine = &sides[c][o->lane][hop];
        p->holds[buffer_of(p, mine->write)] = sides[start->from][o->lane][hop].sent;
        p->travels[buffer_of(p, mine->write)] = 0;
        bool still_sent = false; // two lanes may send the same buffer
        for (int lane = 0; lane < 4; lane++)
            for (int h = finished[c][lane]; h < started[c][lane]; h++) still_sent = still_sent || sides[c][lane][h].read == mine->read;
        if (!still_sent) p->travels[buffer_of(p, mine->read)] = 0;
    } else if (o->kind == OP_FORWARD || o->kind == OP_BACKWARD) {
        int kv = buffer_of(p, o->read), k = p->holds[kv].owner;
        bool forward = o->kind == OP_FORWARD;
        CHECK(p->travels[kv] != 2, "rank %d computes on KV that is still arriving", c);
        CHECK(k >= 0, "rank %d computes on KV of nobody", c);
        if (k < 0) abort();
        check_block(o, c, k, Tc, forward ? "forward" : "backward");
        uint64_t *seen = forward ? &p->seen_forward : &p->seen_backward;
        CHECK((*seen >> k & 1) == 0, "rank %d uses the block of %d twice", c, k);
        CHECK(o->merge == (*seen != 0), "rank %d: %s wrong at its first block", c, forward ? "merge" : "add");
        *seen |= 1ull << k;
        if (!forward) {
            int dkv = buffer_of(p, o->write);
            CHECK(p->travels[dkv] == 0, "rank %d: dKV in flight", c);
            CHECK(o->block.Tk == Tc || p->zero_from[dkv] == o->block.Tk,
                  "rank %d with keys of %d: rows that no query sees are not zero", c, k);
            p->zero_from[dkv] = 0;
            p->holds[dkv].owner = k;
            p->holds[dkv].from = 1ull << c;
        }
    } else {
        void *begin = o->kind == OP_ZERO ? dkv_begin(o->write) : o->write;
        int to = buffer_of(p, begin);
        CHECK(p->travels[to] == 0, "rank %d writes a buffer in flight", c);
        if (o->kind == OP_ZERO) {
            const size_t row = 4 * sizeof(float), from = (size_t)((char *)o->write - (char *)begin); // make_ring's Hkv and HS
            CHECK(from + o->bytes == row * (size_t)Tc, "rank %d zeroes %zu bytes from %zu on", c, o->bytes, from);
            p->zero_from[to] = (int64_t)(from / row);
            if (from == 0) p->holds[to].owner = -2, p->holds[to].from = 0; // zeros
        }
        if (o->kind == OP_COPY) CHECK(p->travels[buffer_of(p, o->read)] != 2, "rank %d copies what is still arriving", c);
        if (o->kind == OP_COPY) p->holds[to] = p->holds[buffer_of(p, o->read)];
        if (o->kind == OP_ADD) {
            content *a = &p->holds[to], *b = &p->holds[buffer_of(p, o->read)];
            CHECK(p->travels[buffer_of(p, o->read)] != 2, "rank %d adds what is still arriving", c);
            if (a->owner == -2) a->owner = b->owner; // added to zeros
            CHECK(a->owner == b->owner && (a->from & b->from) == 0, "rank %d adds dKV of %d to dKV of %d, or twice", c, b->owner, a->owner);
            a->from |= b->from;
        }
    }
    p->at++;
    return true;
}

static void play_all(int cp, int64_t Tc, const char *what, int w) {
    memset(sides, 0, sizeof sides);
    memset(started, 0, sizeof started);
    memset(finished, 0, sizeof finished);
    for (bool progress = true; progress;) {
        progress = false;
        for (int c = 0; c < cp; c++)
            while (players[c].at < programs[c].count && play(c, Tc)) progress = true;
    }
    for (int c = 0; c < cp; c++) {
        CHECK(players[c].at == programs[c].count,
              "%s: cp %d w %d: rank %d is stuck at operation %d of %d", what, cp, w, c, players[c].at, programs[c].count);
        for (int lane = 0; lane < 4; lane++)
            CHECK(started[c][lane] == finished[c][lane], "%s: rank %d leaves a transfer unfinished", what, c);
    }
}

static comm lanes[64][4];
static grid grids[64];
static double_ring rings[64];
static floatX memory_kv[64][5][64]; // only addresses matter

static void make_ring(grid_shape shape, int c, bool dkv_bf16) {
    grid *g = &grids[c];
    memset(g, 0, sizeof *g);
    g->shape = shape;
    g->place = grid_place_of(&shape, grid_rank(&shape, 0, 0, c));
    CHECK(g->place.c == c, "place of %d is %d", c, g->place.c);
    int windows = shape.cp / shape.w;
    for (int lane = 0; lane < 4; lane++) {
        comm *l = &lanes[c][lane];
        bool inner = lane % 2 == 0;
        l->lane = lane;
        l->size = inner ? shape.w : windows;
        l->rank = inner ? g->place.pos : g->place.window;
        for (int i = 0; i < l->size; i++)
            l->members[i] = inner ? grid_context_index(&shape, g->place.window, i) : grid_context_index(&shape, i, g->place.pos);
    }
    g->kv_inner = &lanes[c][0];
    g->kv_outer = &lanes[c][1];
    g->dkv_inner = &lanes[c][2];
    g->dkv_outer = &lanes[c][3];
    double_ring *r = &rings[c];
    memset(r, 0, sizeof *r);
    r->g = g;
    r->Tc = 4;
    r->Hq = r->Hkv = 1;
    r->slice = (head_slice){0, 1, 0, 1};
    r->HS = 2;
    for (int i = 0; i < 2; i++) r->kv_inner[i] = memory_kv[c][i];
    for (int i = 0; i < 2; i++) r->kv_outer[i] = memory_kv[c][2 + i];
    r->dkv_bf16 = dkv_bf16;
    r->dkv = memory_dkv[c][0];
    for (int i = 0; i < 2; i++) r->dkv_arriving[i] = memory_dkv[c][1 + i];
    for (int i = 0; i < 2; i++) r->dkv_leaving[i] = memory_dkv[c][3 + i];
}

// The h-th operation of a kind on a lane of a program: where it is; -1 if there are fewer.
static int op_at(const program *p, op_kind kind, int lane, int h) {
    for (int i = 0, seen = 0; i < p->count; i++)
        if (p->ops[i].kind == kind && p->ops[i].lane == lane && seen++ == h) return i;
    return -1;
}
// What hides transfers: an inner hop is under way while the rank computes one block, an outer one during a whole window. The last hop of
// each dKV ring, which goes home, is hidden by no block.
static void check_overlap(const program *p, int w, int c) {
    for (int lane = 0; lane < 4; lane++)
        for (int h = 0, start; (start = op_at(p, OP_START, lane, h)) >= 0; h++) {
            int finish = op_at(p, OP_FINISH, lane, h), blocks = 0;
            for (int i = start; i < finish; i++) blocks += p->ops[i].kind == OP_FORWARD || p->ops[i].kind == OP_BACKWARD;
            bool home = lane >= 2 && op_at(p, OP_START, lane, h + 1) < 0;
            CHECK(blocks == (home ? 0 : lane % 2 == 0 ? 1 : w),
                  "w %d: rank %d computes %d blocks during hop %d of lane %d", w, c, blocks, h, lane);
        }
}

static void check_schedule_as(grid_shape shape, bool dkv_bf16) {
    floatX *q = memory_kv[0][0];
    query_base = (int64_t)(intptr_t)q;
    float number[64];
    for (int pass = 0; pass < 2; pass++) {
        float *home[64];
        for (int c = 0; c < shape.cp; c++) {
            make_ring(shape, c, dkv_bf16);
            memset(&players[c], 0, sizeof players[c]);
            programs[c].count = 0;
            recording = &programs[c];
            const floatX *own = memory_kv[c][4];
            players[c].holds[buffer_of(&players[c], own)].owner = c;
            if (pass == 0) {
                double_ring_forward(&rings[c], number, number, q, own, (document_rows){NULL, NULL, NULL});
            } else {
                double_ring_queries t;
                memset(&t, 0, sizeof t);
                t.dq = number; t.q = t.out = t.dout = q; t.lse = t.delta = number;
                double_ring_backward(&rings[c], &t, own);
                int under_way = 0; // compute behind double_ring_backward hides one hop
                for (int i = 0; i < programs[c].count; i++)
                    under_way += (programs[c].ops[i].kind == OP_START) - (programs[c].ops[i].kind == OP_FINISH);
                CHECK(under_way == (shape.cp > 1), "cp %d w %d: rank %d has %d hops under way", shape.cp, shape.w, c, under_way);
                home[c] = double_ring_home(&rings[c]);
            }
            check_overlap(&programs[c], shape.w, c);
        }
        play_all(shape.cp, rings[0].Tc, pass == 0 ? "forward" : "backward", shape.w);
        uint64_t all = shape.cp == 64 ? ~0ull : (1ull << shape.cp) - 1;
        for (int c = 0; c < shape.cp; c++) {
            uint64_t seen = pass == 0 ? players[c].seen_forward : players[c].seen_backward;
            CHECK(seen == all, "cp %d w %d: rank %d saw %llx of the blocks", shape.cp, shape.w, c, (unsigned long long)seen);
            if (pass == 0) continue;
            content dkv = players[c].holds[buffer_of(&players[c], home[c])];
            CHECK(dkv.owner == c && dkv.from == all, "cp %d w %d: rank %d got dKV of %d from %llx", shape.cp, shape.w, c, dkv.owner,
                  (unsigned long long)dkv.from);
        }
    }
}

// The h-th OP_START of a lane in a program; NULL if it has fewer.
static const op *start_of(const program *p, int lane, int h) {
    int i = op_at(p, OP_START, lane, h);
    return i < 0 ? NULL : &p->ops[i];
}
// Packed documents: both sides of every transfer mean the same rows, without having communicated about them. several: in three segments.
static void check_parts(grid_shape shape, bool dkv_bf16, bool several) {
    enum { ROWS = 12 }; // of a rank
    int64_t S = shape.cp * ROWS, begins[64 * ROWS], rows[ROWS + 6 * 128], all = 0, most = 0;
    const sequence_segment segments[4] = {{0, 0}, {shape.cp * 4, 4}, {shape.cp * 6, 6}, {S, ROWS}};
    for (int p = 0; p < S; p++) {
        bool begun = p == 0 || test_random(3, (uint64_t)(p + 1000 * shape.cp)) > 0.4;
        begins[p] = begun || p == segments[1].position || p == segments[2].position ? p : begins[p - 1];
    }
    query_base = (int64_t)(intptr_t)memory_kv[0][0];
    for (int c = 0; c < shape.cp; c++) {
        make_ring(shape, c, dkv_bf16);
        double_ring *r = &rings[c];
        r->Tc = ROWS;
        r->packed = true;
        r->dkv_own = memory_dkv[c][5];
        sequence_shard shard = {.S = S, .T = ROWS, .hp = 1, .cp = shape.cp, .c = c, .long_document = several ? S / 2 : 0,
                                .segments = several ? segments : NULL};
        for (int64_t e = 0; e < sequence_shard_entries(&shard); e++)
            rows[e] = begins[min_i64(sequence_shard_entry(&shard, e).position, S - 1)];
        float number[64];
        double_ring_queries t;
        memset(&t, 0, sizeof t);
        t.dq = number; t.q = t.out = t.dout = memory_kv[0][0]; t.lse = t.delta = number;
        t.documents = (document_rows){rows, rows, shard.segments};
        programs[c].count = 0;
        recording = &programs[c];
        double_ring_forward(r, number, number, t.q, memory_kv[c][4], t.documents);
        double_ring_backward(r, &t, memory_kv[c][4]);
        double_ring_home(r);
    }
    for (int c = 0; c < shape.cp; c++)
        for (int lane = 0; lane < 4; lane++) {
            const op *out;
            for (int h = 0; (out = start_of(&programs[c], lane, h)) != NULL; h++) {
                const op *in = start_of(&programs[out->to], lane, h);
                size_t row = (lane < 2 ? sizeof(floatX) : double_ring_dkv_element(&rings[c])) * 4; // make_ring's Hkv and HS
                const char *from = (const char *)(lane < 2 ? (void *)memory_kv : (void *)memory_dkv), *of = (const char *)out->read;
                size_t place = (size_t)(of - from) % (lane < 2 ? sizeof memory_kv[0][0] : sizeof memory_dkv[0][0]);
                bool alike = in != NULL && in->from == c && in->arriving == out->bytes;
                size_t taken = in == NULL ? 0
                                          : (size_t)((const char *)in->write - from) %
                                                (lane < 2 ? sizeof memory_kv[0][0] : sizeof memory_dkv[0][0]);
                CHECK(alike && taken == place && out->bytes <= ROWS * row,
                      "cp %d w %d: rank %d, lane %d, start %d: %zu bytes at %zu leave, %zu at %zu arrive", shape.cp, shape.w, c, lane, h,
                      out->bytes, place, in == NULL ? 0 : in->arriving, taken);
                all += (int64_t)(out->bytes / row);
                most += ROWS;
            }
        }
    CHECK(shape.cp < 4 || (all > 0 && 4 * all < 3 * most / 2), // a hop has two transfers
          "%lld of %lld rows travel", (long long)all, (long long)most);
}

// A block is computed with documents where a boundary hides keys: with one document nowhere; where the first token is a document, where the
// keys are those of rank 0, by all but that token's own query.
static void check_given(grid_shape shape) {
    enum { ROWS = 4 };
    for (int alone = 0; alone < 2; alone++)
        for (int c = 0; c < shape.cp; c++) {
            int64_t rows[ROWS + 2 * 64];
            float number[64];
            int w = shape.w, n = 0;
            make_ring(shape, c, false);
            sequence_shard shard = {.S = shape.cp * ROWS, .T = ROWS, .hp = 1, .cp = shape.cp, .c = c};
            for (int64_t e = 0; e < sequence_shard_entries(&shard); e++) rows[e] = min_i64(sequence_shard_entry(&shard, e).position, alone);
            programs[c].count = 0;
            recording = &programs[c];
            double_ring_forward(&rings[c], number, number, memory_kv[0][0], memory_kv[c][4], (document_rows){rows, rows, NULL});
            for (int i = 0; i < programs[c].count; i++) {
                const op *o = &programs[c].ops[i];
                if (o->kind != OP_FORWARD) continue;
                int k = double_ring_source(&grids[c], n / w, n % w);
                n++;
                CHECK((o->block.documents.first != NULL) == (alone == 1 && k == 0),
                      "cp %d w %d: rank %d with keys of %d: documents", shape.cp, w, c, k);
            }
            CHECK(n == shape.cp, "cp %d w %d: rank %d computes %d blocks", shape.cp, w, c, n);
        }
}

static void check_schedule(grid_shape shape) {
    check_schedule_as(shape, false);
    check_schedule_as(shape, true);
    for (int i = 0; i < 4; i++) check_parts(shape, i % 2 == 1, i / 2 == 1);
    if (shape.cp <= 8) check_given(shape);
}

int main(void) {
    for (int cp = 1; cp <= 64; cp++)
        for (int w = 1; w <= cp; w++) {
            if (cp % w != 0 || (TEST_SANITIZED && cp > 24 && cp % 8 != 0)) continue;
            grid_shape shape = {.dp = 1, .hp = 1, .cp = cp, .w = w, .placement = PLACEMENT_CONTEXT_FIRST};
            check_schedule(shape);
            shape.gpus_per_node = 8; // woven windows
            shape.nics_per_node = 4;
            if (grid_weave(&shape) > 1) check_schedule(shape);
            shape.nics_per_node = 1;
            if (grid_weave(&shape) > 1) check_schedule(shape);
        }
    return test_finish("test_schedule", NULL);
}
