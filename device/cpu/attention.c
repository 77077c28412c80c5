// Attention on the CPU: blocked, with running maxima and sums, so that no (Tq, Tk) matrix exists.
//
// Every matrix product runs on tiles that stay in the L2 cache, through one register-blocked loop (`product`). Tiles are packed: rows are
// padded with zeros to whole registers, so that any head size and any number of tokens take the same path; keys and values are cut into
// panels as wide as a register tile, so that the panel in use is contiguous in the L1 cache (long rows would compete for few of its sets).
// Forward: a task is two tiles of queries of one head; it walks over the keys. K is transposed and V packed once per call.
// Backward: a task is one tile of keys of one key/value head; it walks over the queries of all its heads and owns its dK and dV.
// Packed documents: tiles of keys before the documents of a tile of queries are never touched, in either direction.
// A tile of dQ receives one addend per tile of keys, always in ascending order: a task waits for its turn. Tasks are taken in
// ascending order too, so the task that is waited for is always running, and the result is the same for any number of threads.
#include "../ops.h"
#include "simd.h"

#include <float.h>
#include <omp.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

enum {
    QUERY_TILE = 64, // rows of a tile of queries
    QUERY_TASK = 2 * QUERY_TILE, // rows of a forward task: each tile of keys that it loads serves two tiles of queries
    KEY_TILE = 192,  // rows of a tile of keys
    REGISTER_ROWS = LANES == 16 ? 8 : 4, // a register tile is this many rows by a panel
    KEY_PANEL = 3 * LANES,  // width of a panel whose columns are keys; divides KEY_TILE
    HEAD_PANEL = 2 * LANES, // width of a panel whose columns are a head's elements
    THREADS_MIN = 16,
    PARALLEL_ELEMENTS = 32768, // as in ops.c
};

static _Atomic int64_t calls, tiles_computed;
int64_t op_attention_calls(void) { return calls; }
int64_t op_attention_tiles(void) { return tiles_computed; }
const char *op_attention_engine(bool documents) {
    return documents ? "this device's kernel, tiles of other documents skipped" : "this device's kernel";
}

// ---- products of tiles ----

// c (m, n) = a b, or += if `add`; a is (m, k), or (k, m) if `transposed`; b is (k, n) in panels of columns. m is a multiple of
// REGISTER_ROWS, n of LANES. Always called with constant `transposed`, `add` and `width`, so that the accumulators are registers.
static inline __attribute__((always_inline)) void product_columns(const bool transposed, const bool add, const int width, int m, int k,
                                                                  const float *a, int64_t a_row, const float *b, int64_t b_row, float *c,
                                                                  int64_t c_row) {
    for (int row = 0; row < m; row += REGISTER_ROWS) {
        vec sum[REGISTER_ROWS][3];
#pragma GCC unroll 8
        for (int i = 0; i < REGISTER_ROWS; i++) {
#pragma GCC unroll 3
            for (int j = 0; j < width; j++) sum[i][j] = add ? vec_load(c + (row + i) * c_row + j * LANES) : (vec){0};
        }
        for (int l = 0; l < k; l++) {
            vec bs[3];
#pragma GCC unroll 3
            for (int j = 0; j < width; j++) bs[j] = vec_load(b + l * b_row + j * LANES);
#pragma GCC unroll 8
            for (int i = 0; i < REGISTER_ROWS; i++) {
                float x = transposed ? a[l * a_row + row + i] : a[(row + i) * a_row + l];
#pragma GCC unroll 3
                for (int j = 0; j < width; j++) sum[i][j] += x * bs[j];
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < REGISTER_ROWS; i++) {
#pragma GCC unroll 3
            for (int j = 0; j < width; j++) vec_store(c + (row + i) * c_row + j * LANES, sum[i][j]);
        }
    }
}
// The same for any n that LANES divides: column j of b is column j % panel of the panel at b + j / panel * b_panel, its rows b_row apart.
static inline __attribute__((always_inline)) void product(const bool transposed, const bool add, const int panel, int m, int n, int k,
                                                          const float *a, int64_t a_row, const float *b, int64_t b_row, int64_t b_panel,
                                                          float *c, int64_t c_row) {
    for (int column = 0; column < n; column += panel, b += b_panel, c += panel) {
        int width = (int)min_i64(panel, n - column) / LANES;
        if (width == 3) product_columns(transposed, add, 3, m, k, a, a_row, b, b_row, c, c_row);
        if (width == 2) product_columns(transposed, add, 2, m, k, a, a_row, b, b_row, c, c_row);
        if (width == 1) product_columns(transposed, add, 1, m, k, a, a_row, b, b_row, c, c_row);
    }
}
// Scores: c (m, n keys) = a (m, HS) times a tile of keys or values from pack_transposed.
static __attribute__((noinline)) void product_keys(int m, int n, int HS, const float *a, int64_t a_row, const float *b, float *c) {
    product(false, false, KEY_PANEL, m, n, HS, a, a_row, b, KEY_PANEL, (int64_t)HS * KEY_PANEL, c, KEY_TILE);
}
// c (m, n elements of a head) = or += a (m, keys) times a tile from pack_panels.
static __attribute__((noinline)) void product_head_set(int m, int n, int keys, const float *a, const float *b, float *c, int64_t c_row) {
    product(false, false, HEAD_PANEL, m, n, keys, a, KEY_TILE, b, HEAD_PANEL, KEY_TILE * HEAD_PANEL, c, c_row);
}
static __attribute__((noinline)) void product_head_add(int m, int n, int keys, const float *a, const float *b, float *c, int64_t c_row) {
    product(false, true, HEAD_PANEL, m, n, keys, a, KEY_TILE, b, HEAD_PANEL, KEY_TILE * HEAD_PANEL, c, c_row);
}
// c (m keys, n elements of a head) += a (rows, m keys) transposed, times a tile from pack_rows.
static __attribute__((noinline)) void product_transposed_add(int m, int n, int rows, const float *a, const float *b, int64_t width,
                                                             float *c) {
    product(true, true, HEAD_PANEL, m, n, rows, a, KEY_TILE, b, width, HEAD_PANEL, c, width);
}

// ---- packing ----

// tile (rows_padded, width) = factor * from (rows, HS), padded with zeros.
static void pack_rows(float *tile, const floatX *from, int64_t stride, int rows, int rows_padded, int HS, int width, float factor) {
    for (int r = 0; r < rows; r++) {
        for (int d = 0; d < HS; d++) tile[r * width + d] = factor * from[r * stride + d];
        for (int d = HS; d < width; d++) tile[r * width + d] = 0;
    }
    memset(tile + rows * width, 0, sizeof(float) * (size_t)(rows_padded - rows) * (size_t)width);
}
// tile (panels of a head, KEY_TILE, HEAD_PANEL) = from (rows, HS), padded with zeros.
static void pack_panels(float *tile, const floatX *from, int64_t stride, int rows, int HS) {
    for (int d0 = 0; d0 < HS; d0 += HEAD_PANEL, tile += KEY_TILE * HEAD_PANEL)
        pack_rows(tile, from + d0, stride, rows, KEY_TILE, (int)min_i64(HEAD_PANEL, HS - d0), HEAD_PANEL, 1);
}
// tile (panels of keys, HS, KEY_PANEL) = from (rows, HS) transposed, zeros in the columns from `rows` on. Strips of LANES rows keep source
// and tile in few cache lines.
static void pack_transposed(float *tile, const floatX *from, int64_t stride, int rows, int HS) {
    for (int r0 = 0; r0 < KEY_TILE; r0 += LANES) {
        float *to = tile + (int64_t)(r0 / KEY_PANEL) * KEY_PANEL * HS + r0 % KEY_PANEL;
        for (int d0 = 0; d0 < HS; d0 += 16) {
            int d1 = d0 + 16 < HS ? d0 + 16 : HS;
            for (int r = r0; r < r0 + LANES; r++) {
                for (int d = d0; d < d1; d++) to[d * KEY_PANEL + r - r0] = r < rows ? from[r * stride + d] : 0;
            }
        }
    }
}

// ---- what both directions share ----

static int padded_width(int HS) { return (int)round_up(HS, 32); } // whole panels, whatever LANES is

// Threads that the scratch has room for: fixed for a machine, so that scratch can be laid out before the device is started.
static int threads_at_most(void) {
    static long processors; // glibc reads a file each time
    if (processors == 0) processors = sysconf(_SC_NPROCESSORS_CONF);
    return processors > THREADS_MIN ? (int)processors : THREADS_MIN;
}
static int threads_for(attention_block b) {
    if ((double)b.Tq * (double)b.Tk * b.Hq * b.HS < 1e5) return 1; // about 10 microseconds of work
    int threads = omp_get_max_threads(), most = threads_at_most();
    return threads < most ? threads : most;
}
// How many of the keys [key, key + keys), counted from the first, query row `row` sees as far as `causal` decides.
static int keys_seen(attention_block b, int64_t row, int64_t key, int keys) {
    if (!b.causal || row - key >= keys) return keys;
    return row < key ? 0 : (int)(row - key + 1);
}
// The first key row that query row `row` sees, as far as documents decide; later query rows see none before it either.
static int64_t first_key(attention_block b, int64_t row) {
    return b.documents.first == NULL ? 0 : attention_first_key(&b.documents, b.documents.first[row], b.Tk);
}
// How many of the keys [key, key + keys) lie before the document of query row `row`.
static int keys_before(attention_block b, int64_t row, int64_t key, int keys) {
    return (int)max_i64(0, min_i64(first_key(b, row) - key, keys));
}
// How many keys of the tile of `size` keys from `key` on any of the query rows up to `last_row` sees, as far as `causal` decides.
static int keys_in_tile(attention_block b, int64_t last_row, int64_t key, int size) {
    return keys_seen(b, last_row, key, (int)min_i64(size, b.Tk - key));
}

// ---- forward ----

typedef struct { // of one thread
    float *q;    // (QUERY_TASK, HS padded), scaled
    float *s;    // (QUERY_TILE, KEY_TILE) scores, then probabilities
    float *out;  // (QUERY_TASK, HS padded), not yet divided by the sum
    float *sum;  // (QUERY_TASK, LANES) sums of exponentials, lane by lane
    float *max;  // (QUERY_TASK)
} forward_tiles;

static int64_t forward_thread_floats(int HS) { return QUERY_TASK * (2 * padded_width(HS) + 16 + 1) + QUERY_TILE * KEY_TILE; }

// s (rows, keys): scores become e^(s - max), with the running maximum and sum; where the maximum grows, out and sum are scaled down.
static void forward_softmax(const forward_tiles *t, attention_block b, int64_t query, int rows, int64_t key, int keys) {
    int width = padded_width(b.HS), columns = (int)round_up(keys, LANES);
    for (int r = 0; r < rows; r++) {
        float *s = t->s + r * KEY_TILE, *out = t->out + r * width;
        int seen = keys_seen(b, query + r, key, keys), before_document = keys_before(b, query + r, key, keys);
        for (int c = 0; c < before_document; c++) s[c] = -INFINITY;
        for (int c = seen; c < columns; c++) s[c] = -INFINITY;
        float before = t->max[r];
        vec even = vec_set(before), odd = even; // two dependency chains: with one, each maximum would wait for the last
        for (int c = 0; c + LANES < columns; c += 2 * LANES) {
            even = vec_max(even, vec_load(s + c));
            odd = vec_max(odd, vec_load(s + c + LANES));
        }
        if (columns / LANES % 2 == 1) even = vec_max(even, vec_load(s + columns - LANES));
        float max = vec_max_lanes(vec_max(even, odd));
        vec sum = vec_load(t->sum + r * LANES);
        if (max > before) {
            vec shrink = vec_exp(vec_set(before - max)); // the first time, out and sum are still zero
            sum *= shrink;
            for (int d = 0; d < width; d += LANES) vec_store(out + d, vec_load(out + d) * shrink);
            t->max[r] = max;
        }
        for (int c = 0; c < columns; c += LANES) {
            vec p = vec_exp(vec_load(s + c) - max);
            vec_store(s + c, p);
            sum += p;
        }
        vec_store(t->sum + r * LANES, sum);
    }
}

// out (HS) = row_factor * row and *lse = row_lse; with `merge`, merged into what earlier blocks left there.
static void write_row(float *out, float *lse, const float *row, float row_factor, float row_lse, int HS, bool merge) {
    if (merge && row_lse == -INFINITY) return;
    if (merge && *lse != -INFINITY) {
        float max = *lse > row_lse ? *lse : row_lse;
        double a = exp((double)(*lse - max)), b = exp((double)(row_lse - max));
        float kept = (float)(a / (a + b)), added = (float)(b / (a + b) * row_factor);
        row_lse = (float)(max + log(a + b));
        for (int d = 0; d < HS; d++) out[d] = kept * out[d] + added * row[d];
    } else {
        for (int d = 0; d < HS; d++) out[d] = row_factor * row[d];
    }
    *lse = row_lse;
}

// Query rows [query, query + rows) of one head: q, out and lse point at the first row. keys and values are packed.
static void forward_task(const forward_tiles *t, float *out, float *lse, const floatX *q, const float *k_packed, const float *v_packed,
                         attention_block b, int64_t query, bool merge) {
    int rows = (int)min_i64(QUERY_TASK, b.Tq - query), rows_padded = (int)round_up(rows, REGISTER_ROWS), width = padded_width(b.HS);
    pack_rows(t->q, q, b.q_stride, rows, rows_padded, b.HS, width, b.scale);
    memset(t->out, 0, sizeof(float) * (size_t)(rows_padded * width));
    memset(t->sum, 0, sizeof(float) * QUERY_TASK * LANES);
    for (int r = 0; r < rows; r++) t->max[r] = -FLT_MAX; // finite: a row that sees no key of a tile must not compute inf - inf
    int64_t first_tile = first_key(b, query) / KEY_TILE * KEY_TILE;
    for (int64_t key = first_tile; key < b.Tk && keys_in_tile(b, query + rows - 1, key, KEY_TILE) > 0; key += KEY_TILE) {
        const float *k_tile = k_packed + key * b.HS, *v_tile = v_packed + key * width;
        for (int first = 0; first < rows; first += QUERY_TILE) {
            int here = rows - first < QUERY_TILE ? rows - first : QUERY_TILE, padded = (int)round_up(here, REGISTER_ROWS);
            int keys = keys_in_tile(b, query + first + here - 1, key, KEY_TILE);
            if (keys <= 0 || first_key(b, query + first) >= key + KEY_TILE) continue;
            tiles_computed++;
            forward_tiles part = {t->q + first * width, t->s, t->out + first * width, t->sum + first * LANES, t->max + first};
            product_keys(padded, (int)round_up(keys, LANES), b.HS, part.q, width, k_tile, part.s);
            forward_softmax(&part, b, query + first, here, key, keys);
            product_head_add(padded, (int)round_up(b.HS, LANES), keys, part.s, v_tile, part.out, width);
        }
    }
    for (int r = 0; r < rows; r++) {
        float sum = vec_sum_lanes(vec_load(t->sum + r * LANES));
        bool any = sum != 0; // true for NaN, too
        write_row(out + r * b.sum_stride, lse + r, t->out + r * width, any ? 1 / sum : 0,
                  any ? t->max[r] + logf(sum) : -INFINITY, b.HS, merge);
    }
}

void op_attention_forward(float *out, float *lse, const floatX *q, const floatX *k, const floatX *v, attention_block b, bool merge,
                          void *scratch) {
    calls++;
    int width = padded_width(b.HS), threads = threads_for(b);
    int64_t key_tiles = ceil_div(b.Tk, KEY_TILE), query_tasks = ceil_div(b.Tq, QUERY_TASK), padded = key_tiles * KEY_TILE;
    float *k_packed = (float *)scratch;                // (Hkv, key tiles, panels of keys, HS, KEY_PANEL)
    float *v_packed = k_packed + b.Hkv * padded * b.HS; // (Hkv, key tiles, panels of a head, KEY_TILE, HEAD_PANEL)
    float *tiles = v_packed + b.Hkv * padded * width;
#pragma omp parallel num_threads(threads)
    {
        forward_tiles t;
        t.q = tiles + omp_get_thread_num() * forward_thread_floats(b.HS);
        t.out = t.q + QUERY_TASK * width;
        t.s = t.out + QUERY_TASK * width;
        t.sum = t.s + QUERY_TILE * KEY_TILE;
        t.max = t.sum + QUERY_TASK * 16;
#pragma omp for collapse(2) schedule(static)
        for (int head = 0; head < b.Hkv; head++) {
            for (int64_t tile = 0; tile < key_tiles; tile++) {
                int64_t key = tile * KEY_TILE;
                int rows = (int)min_i64(KEY_TILE, b.Tk - key);
                pack_transposed(k_packed + (head * padded + key) * b.HS, k + key * b.kv_stride + head * b.HS, b.kv_stride, rows, b.HS);
                pack_panels(v_packed + (head * padded + key) * width, v + key * b.kv_stride + head * b.HS, b.kv_stride, rows, b.HS);
            }
        }
#pragma omp for collapse(2) schedule(dynamic, 1)
        for (int64_t task = query_tasks - 1; task >= 0; task--) { // causal: the long ones first
            for (int head = 0; head < b.Hq; head++) {
                int64_t query = task * QUERY_TASK, packed = head / (b.Hq / b.Hkv) * padded, at = head * b.HS;
                forward_task(&t, out + query * b.sum_stride + at, lse + head * b.lse_stride + query, q + query * b.q_stride + at,
                             k_packed + packed * b.HS, v_packed + packed * width, b, query, merge);
            }
        }
    }
}

// ---- backward ----

void op_attention_delta(float *delta, const floatX *out, const floatX *dout, attention_block b) {
#pragma omp parallel for schedule(static) if (b.Tq * b.Hq * b.HS > PARALLEL_ELEMENTS)
    for (int64_t t = 0; t < b.Tq; t++) {
        for (int h = 0; h < b.Hq; h++) {
            const floatX *o = out + t * b.q_stride + h * b.HS, *d = dout + t * b.q_stride + h * b.HS;
            vec sum = {0};
            for (int i = 0; i < b.HS; i += LANES) sum += vec_load_part(o + i, b.HS - i) * vec_load_part(d + i, b.HS - i);
            delta[h * b.lse_stride + t] = vec_sum_lanes(sum);
        }
    }
}

typedef struct {            // of one thread
    float *k;               // panels of a head
    float *k_t, *v_t;       // panels of keys
    float *dk, *dv;         // (KEY_TILE, width)
    float *q, *dout, *dq;   // (QUERY_TILE, width), q scaled
    float *p, *ds;          // (QUERY_TILE, KEY_TILE)
} backward_tiles;

static int64_t backward_thread_floats(int HS) {
    int width = padded_width(HS);
    return KEY_TILE * (3 * width + 2 * HS) + QUERY_TILE * (3 * width + 2 * KEY_TILE);
}

// p (rows, keys): scores become probabilities. ds (rows, keys): the gradient of the probabilities becomes that of the scores.
static void backward_softmax(const backward_tiles *t, const float *lse, const float *delta, attention_block b, int64_t query, int rows,
                             int64_t key, int keys) {
    int columns = (int)round_up(keys, LANES);
    for (int r = 0; r < rows; r++) {
        float *p = t->p + r * KEY_TILE, *ds = t->ds + r * KEY_TILE;
        int seen = lse[r] == -INFINITY ? 0 : keys_seen(b, query + r, key, keys);
        for (int c = 0; c < seen; c += LANES) {
            vec prob = vec_exp(vec_load(p + c) - lse[r]);
            vec_store(p + c, prob);
            vec_store(ds + c, prob * (vec_load(ds + c) - delta[r]));
        }
        for (int c = seen; c < columns; c++) p[c] = ds[c] = 0;
        for (int c = 0, before = keys_before(b, query + r, key, keys); c < before; c++) p[c] = ds[c] = 0;
    }
}

// Keys of a backward task: KEY_TILE, or fewer where that would leave fewer than 16 tasks for the threads.
static int backward_step(attention_block b) {
    int step = KEY_TILE;
    while (step > QUERY_TILE && ceil_div(b.Tk, step) * b.Hkv < 16) step /= 2;
    return step;
}

// One tile of keys with all query heads of its key/value head. All pointers begin at the head; k, v, dk and dv also at the key.
// turn (heads of the group, query tiles): how many tiles of keys are done with a tile of dq; those before its documents count as done.
static void backward_task(const backward_tiles *t, float *dq, float *dk, float *dv, const floatX *q, const floatX *k, const floatX *v,
                          const floatX *dout, const float *lse, const float *delta, attention_block b, bool add_dkv, int64_t key,
                          _Atomic int32_t *turn) {
    int step = backward_step(b), width = padded_width(b.HS), rows_of_keys = (int)min_i64(step, b.Tk - key), n = (int)round_up(b.HS, LANES);
    int64_t query_tiles = ceil_div(b.Tq, QUERY_TILE);
    pack_panels(t->k, k, b.kv_stride, rows_of_keys, b.HS);
    pack_transposed(t->k_t, k, b.kv_stride, rows_of_keys, b.HS);
    pack_transposed(t->v_t, v, b.kv_stride, rows_of_keys, b.HS);
    memset(t->dk, 0, sizeof(float) * (size_t)(KEY_TILE * width));
    memset(t->dv, 0, sizeof(float) * (size_t)(KEY_TILE * width));
    for (int head = 0; head < b.Hq / b.Hkv; head++) {
        for (int64_t tile = b.causal ? key / QUERY_TILE : 0; tile < query_tiles; tile++) {
            int64_t query = tile * QUERY_TILE, at = query * b.q_stride + head * b.HS, row_at = head * b.lse_stride + query;
            int rows = (int)min_i64(QUERY_TILE, b.Tq - query), rows_padded = (int)round_up(rows, REGISTER_ROWS);
            int keys = keys_in_tile(b, query + rows - 1, key, step), columns = (int)round_up(keys, LANES);
            if (keys <= 0) continue;
            if (first_key(b, query) >= key + rows_of_keys) break; // the documents of these and all later queries begin behind the keys
            tiles_computed++;
            pack_rows(t->q, q + at, b.q_stride, rows, rows_padded, b.HS, width, b.scale);
            pack_rows(t->dout, dout + at, b.q_stride, rows, rows_padded, b.HS, width, 1);
            product_keys(rows_padded, columns, b.HS, t->q, width, t->k_t, t->p);
            product_keys(rows_padded, columns, b.HS, t->dout, width, t->v_t, t->ds);
            backward_softmax(t, lse + row_at, delta + row_at, b, query, rows, key, keys);
            product_transposed_add(columns, n, rows, t->p, t->dout, width, t->dv);
            product_transposed_add(columns, n, rows, t->ds, t->q, width, t->dk);
            product_head_set(rows_padded, n, keys, t->ds, t->k, t->dq, width);

            _Atomic int32_t *mine = turn + head * query_tiles + tile;
            while (atomic_load_explicit(mine, memory_order_acquire) != key / step) sched_yield();
            for (int r = 0; r < rows; r++) {
                float *to = dq + (query + r) * b.sum_stride + head * b.HS;
                for (int d = 0; d < b.HS; d++) to[d] += b.scale * t->dq[r * width + d];
            }
            atomic_store_explicit(mine, (int32_t)(key / step + 1), memory_order_release);
        }
    }
    for (int r = 0; r < rows_of_keys; r++) { // dk has its scale from q
        for (int d = 0; d < b.HS; d++) {
            dk[r * b.kv_stride + d] = t->dk[r * width + d] + (add_dkv ? dk[r * b.kv_stride + d] : 0);
            dv[r * b.kv_stride + d] = t->dv[r * width + d] + (add_dkv ? dv[r * b.kv_stride + d] : 0);
        }
    }
}

void op_attention_backward(float *dq, float *dk, float *dv, const floatX *q, const floatX *k, const floatX *v, const floatX *out,
                           const floatX *dout, const float *lse, const float *delta, attention_block b, bool add_dq, bool add_dkv,
                           void *scratch) {
    (void)out; // its product with dout is in delta
    int step = backward_step(b), width = padded_width(b.HS), threads = threads_for(b), group = b.Hq / b.Hkv;
    int64_t key_tiles = ceil_div(b.Tk, step), query_tiles = ceil_div(b.Tq, QUERY_TILE);
    int64_t turns = round_up(b.Hq * query_tiles, 64);
    _Atomic int32_t *turn = (_Atomic int32_t *)scratch; // (Hq, query tiles)
    float *tiles = (float *)scratch + turns;
    for (int64_t i = 0; i < turns; i++) atomic_init(turn + i, (int32_t)(first_key(b, i % query_tiles * QUERY_TILE) / step));
#pragma omp parallel num_threads(threads)
    {
        backward_tiles t;
        t.k = tiles + omp_get_thread_num() * backward_thread_floats(b.HS);
        t.dk = t.k + KEY_TILE * width;
        t.dv = t.dk + KEY_TILE * width;
        t.k_t = t.dv + KEY_TILE * width;
        t.v_t = t.k_t + KEY_TILE * b.HS;
        t.q = t.v_t + KEY_TILE * b.HS;
        t.dout = t.q + QUERY_TILE * width;
        t.dq = t.dout + QUERY_TILE * width;
        t.p = t.dq + QUERY_TILE * width;
        t.ds = t.p + QUERY_TILE * KEY_TILE;
        if (!add_dq) {
#pragma omp for schedule(static)
            for (int64_t i = 0; i < b.Tq; i++) memset(dq + i * b.sum_stride, 0, sizeof(float) * (size_t)(b.Hq * b.HS));
        }
#pragma omp for collapse(2) schedule(monotonic : dynamic, 1)
        for (int64_t tile = 0; tile < key_tiles; tile++) {
            for (int head = 0; head < b.Hkv; head++) {
                int64_t key = tile * step, at = key * b.kv_stride + head * b.HS, q_at = (int64_t)head * group * b.HS;
                int64_t row_at = head * group * b.lse_stride;
                backward_task(&t, dq + q_at, dk + at, dv + at, q + q_at, k + at, v + at, dout + q_at, lse + row_at, delta + row_at, b,
                              add_dkv, key, turn + head * group * query_tiles);
            }
        }
    }
}

size_t op_attention_scratch(attention_block b, bool backward) {
    int64_t padded = round_up(b.Tk, KEY_TILE), threads = threads_at_most();
    int64_t floats = backward ? round_up(b.Hq * ceil_div(b.Tq, QUERY_TILE), 64) + threads * backward_thread_floats(b.HS)
                              : b.Hkv * padded * (b.HS + padded_width(b.HS)) + threads * forward_thread_floats(b.HS);
    return sizeof(float) * (size_t)floats;
}

// ---- alone: floatX is float, so there is nothing to gain ----

bool op_attention_forward_alone(floatX *out, float *lse, const floatX *q, const floatX *k, const floatX *v, attention_block b,
                                void *scratch) {
    (void)out; (void)lse; (void)q; (void)k; (void)v; (void)b; (void)scratch;
    return false;
}
bool op_attention_backward_alone(floatX *dq, float *dk, float *dv, const floatX *q, const floatX *k, const floatX *v, const floatX *out,
                                 const floatX *dout, const float *lse, attention_block b, bool add_dkv, void *scratch) {
    (void)dq; (void)dk; (void)dv; (void)q; (void)k; (void)v; (void)out; (void)dout; (void)lse; (void)b; (void)add_dkv; (void)scratch;
    return false;
}
