// ranks: up to 8
// Packed documents: on every grid of 1, 2, 3, 4, 6 and 8 ranks with every w, in turn over placements and kinds of recompute, by ring and
// all-gather, the loss and every gradient of a step equal those of the documents run alone, each from position 0, with and without segments
// of their own for long documents. Boundaries lie on, before and after chunk edges; one document spans all ranks (bit-equal to a run that
// is not packed); documents have one token (no label, no gradient, no NaN). The number of skipped blocks is that of the blocks in which no
// query sees a key. Tiles of scores become fewer with shorter documents. (F21, F22) In the emulated build a third model has heads that the
// attention engine takes, in pieces of 4 rows: on the diagonal and off it.
#include "model_fixture.h"
#ifdef DEVICE_EMULATED
#include "../device/cuda/attention_call.h"
#endif

// Float sums in another order, as in test_grids.
#define BOUND 1e-5
#define BOUND_BF16 0.011 // --dkv-wire bf16, as in test_grids

enum { SIZES = 6, SAMPLES = 8, LAYOUTS = 7, UNITS = 4 };
static const int sizes[SIZES] = {1, 2, 3, 4, 6, 8};

// Whether a document begins at a position of a sample's layout; S is 48 (chunks of 3 to 24 tokens) or 37 (padded).
static bool begins(int layout, int64_t position) {
    if (position == 0 || layout == 1) return true; // 1: documents of one token
    // 3: at multiples of 12, edges of chunks on most grids; 2: one token before; 4: one after.
    if (layout >= 2 && layout <= 4) return (position - (layout - 3)) % 12 == 0;
    if (layout == 5) return test_random(5, (uint64_t)position) > 0.6;
    if (layout == 6) return position == 1 || position == 30 || position == 36 || position == 47; // one token at both ends
    return false; // 0: one document
}
static int64_t begin_of_span(int layout, sequence_span span) {
    int64_t position = min_i64(span.position, span.end - 1); // padding belongs to the last document
    while (!begins(layout, position)) position--;
    return position;
}
// The label is the next token; none (-100) for a document's last token, and for some others.
static int32_t label_of(const model_config *c, int64_t S, int64_t sample, int64_t position) {
    if (position + 1 >= S || begins((int)(sample % LAYOUTS), position + 1) || test_random(8, (uint64_t)(sample * 1000 + position)) > 0.8)
        return -100;
    return fixture_token(c, sample, position + 1);
}

typedef struct {
    double loss;
    int64_t count[UNITS];
    double *gradients[UNITS];
} reference;

// The step of all samples, computed from the documents alone, each of them on one rank: mean losses and gradients, weighted by labels.
static void make_reference(reference *r, const model_config *c, int64_t S, comm *self, comm *world) {
    grid_shape one = {.dp = 1, .hp = 1, .cp = 1, .w = 1};
    double sums[2] = {0, 0}; // losses, labels
    memset(r, 0, sizeof *r);
    for (int64_t sample = comm_rank(world); sample < SAMPLES; sample += comm_size(world)) {
        for (int64_t from = 0, to; from < S; from = to) {
            for (to = from + 1; to < S && !begins((int)(sample % LAYOUTS), to);) to++;
            fixture f;
            fixture_make(&f, c, one, self, fixture_setup(1, 1), RECOMPUTE_NONE, to - from);
            for (int64_t i = from; i < to; i++) {
                f.tokens[i - from] = fixture_token(c, sample, i);
                f.labels[i - from] = label_of(c, S, sample, i);
            }
            step_result s = model_step(&f.m, fixture_adamw(1), 1.0);
            CHECK(s.valid > 0 || (s.norm == 0 && s.loss == 0), "no label, but loss %g and a gradient of norm %g", s.loss, s.norm);
            sums[0] += s.loss * (double)s.valid;
            sums[1] += (double)s.valid;
            for (int u = 0; u < c->L + 2; u++) {
                float *gradient = fixture_gradient(&f, u);
                r->count[u] = f.m.units[u].count;
                if (r->gradients[u] == NULL) r->gradients[u] = HOST_NEW(double, r->count[u]);
                for (int64_t i = 0; i < r->count[u]; i++) r->gradients[u][i] += gradient[i] * (double)s.valid;
                free(gradient);
            }
            fixture_free(&f);
        }
    }
    comm_sum_double(world, sums, 2);
    r->loss = sums[0] / sums[1];
    for (int u = 0; u < c->L + 2; u++) {
        comm_sum_double(world, r->gradients[u], (int)r->count[u]);
        for (int64_t i = 0; i < r->count[u]; i++) r->gradients[u][i] /= sums[1];
    }
}

// Sets tokens, labels and segments of this rank's samples, and their documents if the run is packed.
static void fill(fixture *f, int first_sample) {
    const grid_shape *g = &f->g.shape;
    int64_t T = f->shard.T;
    CHECK(f->m.entries == sequence_shard_entries(&f->shard),
          "%lld entries, %lld read", (long long)f->m.entries, (long long)sequence_shard_entries(&f->shard));
    for (int64_t a = 0; a < f->m.setup.grad_accum; a++)
        for (int64_t b = 0; b < f->m.setup.B; b++) {
            int64_t sample = first_sample + (a * g->dp + f->g.place.d) * f->m.setup.B + b, at = (a * f->m.setup.B + b) * T;
            int layout = (int)(sample % LAYOUTS);
            sequence_shard shard = fixture_shard(f, at / T);
            segment_list list = {.shard = &f->shard, .list = model_batch_segments(&f->m, at / T)};
            for (int64_t begin = 0, end; shard.segments != NULL && begin < f->S; begin = end) {
                for (end = begin + 1; end < f->S && !begins(layout, end);) end++;
                segment_list_add(&list, begin, end);
            }
            for (int64_t t = 0; t < T; t++) {
                sequence_span span = sequence_shard_span_at(&shard, shard.h * T + t);
                f->tokens[at + t] = span.position < span.end ? fixture_token(&f->m.c, sample, span.position) : 0;
                f->labels[at + t] = span.position < span.end ? label_of(&f->m.c, f->S, sample, span.position) : -100;
            }
            for (int64_t e = 0; e < f->m.entries && f->m.setup.packed; e++)
                f->m.batch_documents[at / T * f->m.entries + e] = begin_of_span(layout, sequence_shard_entry(&shard, e));
        }
}

// In how many of this rank's blocks, of all segments, in one pass over its sequences, no query sees a key.
static int64_t blocks_unseen(const fixture *f) {
    const grid_shape *g = &f->g.shape;
    int64_t Tc = f->shard.T * g->hp, unseen = 0;
    for (int64_t s = 0; s < f->m.setup.grad_accum * f->m.setup.B; s++)
        for (int k = 0; k < g->cp; k++) {
            sequence_shard mine = fixture_shard(f, s), theirs = mine;
            const sequence_segment whole[2] = {{0, 0}, {f->S, Tc}}, *segment = mine.segments != NULL ? mine.segments : whole;
            for (theirs.c = k; segment->row < Tc; segment++) {
                bool seen = false;
                for (int64_t i = segment->row; i < segment[1].row; i++)
                    for (int64_t j = segment->row; j < segment[1].row; j++) {
                        int64_t query = sequence_shard_span_at(&mine, i).position, key = sequence_shard_span_at(&theirs, j).position;
                        seen = seen || (key <= query && key >= f->m.batch_documents[s * f->m.entries + i]);
                    }
                unseen += !seen;
            }
        }
    return unseen;
}

// The rows of KV that travel when every rank of the ring sends its block of sequence s once: of each chunk, those from the first row on
// that another rank sees; and those between them, except the longest stretch.
static int64_t rows_seen(const fixture *f, int64_t s, int layout) {
    sequence_shard keys = fixture_shard(f, s), queries = keys;
    int64_t rows = 0, Tc = keys.T * keys.hp;
    for (keys.c = 0; keys.c < keys.cp; keys.c++) {
        int64_t end = 0, gap = 0, first = 0, sum = 0; // end: of the rows that travel so far; gap: the longest
        for (int64_t j = 0, n; j < Tc; j += n) { // chunk by chunk
            sequence_span span = sequence_shard_span_at(&keys, j);
            n = span.rows;
            int64_t unseen = n, segment_begin = j, segment_end = j + n;
            for (const sequence_segment *x = keys.segments; x != NULL && x->row <= j; x++) segment_begin = x->row, segment_end = x[1].row;
            if (keys.segments == NULL) segment_begin = 0, segment_end = Tc;
            for (queries.c = 0; queries.c < queries.cp; queries.c++)
                for (int64_t i = segment_begin; i < segment_end && queries.c != keys.c; i++) {
                    sequence_span query = sequence_shard_span_at(&queries, i);
                    if (query.position >= span.position + n)
                        unseen = min_i64(unseen, max_i64(0, begin_of_span(layout, query) - span.position));
                }
            if (unseen == n) continue;
            if (end == 0) first = j + unseen;
            else gap = max_i64(gap, j + unseen - end);
            end = j + n;
            sum = end - first - gap;
        }
        rows += sum;
    }
    return rows;
}
// The rings carry what other ranks see and nothing else. passes: of all layers, both ways; backward: the backward ones alone.
static void check_sent(const fixture *f, int64_t passes, int64_t backward, const char *where) {
    const grid_shape *g = &f->g.shape;
    const double_ring *r = &f->m.attention.ring;
    int64_t windows = g->cp / g->w, row = (int64_t)2 * r->Hkv * r->HS, rows = 0;
    int64_t hops = (g->w > 1 ? windows * (g->w - 1) + 1 : 0) + (windows > 1 ? windows : 0);
    for (int64_t a = 0; a < f->m.setup.grad_accum; a++)
        for (int64_t b = 0; b < f->m.setup.B; b++)
            rows += rows_seen(f, a * f->m.setup.B + b, (int)(((a * g->dp + f->g.place.d) * f->m.setup.B + b) % LAYOUTS));
    int64_t sums[4] = {0, 0, rows * row * passes * (g->cp - 1) * (int64_t)sizeof(floatX),
                       rows * row * backward * hops * (int64_t)double_ring_dkv_element(r)};
    sums[0] = g->cp * (comm_count(COMM_KV_INNER).bytes_sent + comm_count(COMM_KV_OUTER).bytes_sent);
    sums[1] = g->cp * (comm_count(COMM_DKV_INNER).bytes_sent + comm_count(COMM_DKV_OUTER).bytes_sent);
    comm_sum_int64(f->g.all, sums, 4);
    CHECK(sums[0] == sums[2], "%s: %lld bytes of KV sent, %lld are seen", where, (long long)sums[0], (long long)sums[2]);
    CHECK(sums[1] == sums[3], "%s: %lld bytes of dKV sent, %lld are seen", where, (long long)sums[1], (long long)sums[3]);
}

static void check_grid(const reference *r, const model_config *c, grid_shape shape, bool allgather, recompute_kind kind, int64_t B,
                       int64_t S, bool dkv_bf16, comm *ranks) {
    char where[160];
    double bound = dkv_bf16 ? BOUND_BF16 : BOUND;
    snprintf(where, sizeof where, "dp %d hp %d cp %d w %d %s %s%s kind %d S %lld B %lld", shape.dp, shape.hp, shape.cp, shape.w,
             placement_name(shape.placement), allgather ? "allgather" : "ring", dkv_bf16 ? " bf16" : "", (int)kind,
             (long long)S, (long long)B);
    model_setup setup = fixture_setup(B, SAMPLES / shape.dp / B);
    setup.cp_allgather = allgather;
    setup.packed = true;
    setup.dkv_bf16 = dkv_bf16;
    setup.attention_bytes = shape.placement == PLACEMENT_HEAD_FIRST ? 1 : 0; // slices of one head, in a ring of one group
    fixture f;
    fixture_make(&f, c, shape, ranks, setup, kind, S);
    int64_t kept_twice = 0;
    fill(&f, 0);
    comm_count_reset();
    int64_t calls = op_attention_calls();
    step_result s = model_step(&f.m, fixture_adamw(1), 1.0);
    calls = op_attention_calls() - calls;
    CHECK(fabs(s.loss - r->loss) <= BOUND * r->loss, "%s: loss %.8f, documents alone %.8f", where, s.loss, r->loss);
    for (int u = 0; u < c->L + 2; u++) {
        float *gradient = fixture_gradient(&f, u);
        for (int t = 0; t < f.m.units[u].tensor_count; t++) {
            zero_tensor *tensor = &f.m.units[u].tensors[t];
            double d = test_difference_double(gradient + tensor->offset, r->gradients[u] + tensor->offset, tensor->count);
            CHECK(d <= bound, "%s: gradient of unit %d %s differs by %.1e", where, u, tensor->name, d);
        }
        free(gradient);
    }
    for (int l = 0; l < c->L; l++) kept_twice += f.kinds[l] == RECOMPUTE_FULL;
    int64_t unseen = (2 * c->L + kept_twice) * blocks_unseen(&f) * (f.m.attention.ring.Hq / f.m.attention.ring.slice.Hq);
    int64_t skipped = f.m.attention.ring.blocks_skipped;
    if (!allgather) check_sent(&f, 2 * c->L + kept_twice, c->L, where);
    CHECK(skipped == unseen, "%s: %lld blocks skipped, %lld have nothing to see", where, (long long)skipped, (long long)unseen);
    int64_t computed = f.m.attention.ring.blocks - skipped; // forward and backward; calls are forward
    CHECK(calls * (2 * c->L + kept_twice) == computed * (c->L + kept_twice),
          "%s: %lld calls for %lld blocks", where, (long long)calls, (long long)computed);
    fixture_free(&f);
}

// Sample 0 is one document: a packed run and one that is not are the same computation, bit by bit.
static void check_one_document(const model_config *c, grid_shape shape, bool allgather, int64_t S, comm *ranks) {
    fixture f[2];
    double loss[2];
    for (int packed = 0; packed < 2; packed++) {
        model_setup setup = fixture_setup(1, 1);
        setup.cp_allgather = allgather;
        setup.packed = packed == 1;
        setup.attention_bytes = shape.placement == PLACEMENT_HEAD_FIRST ? 1 : 0;
        fixture_make(&f[packed], c, shape, ranks, setup, RECOMPUTE_SELECTIVE, S);
        fill(&f[packed], 0);
        loss[packed] = model_step(&f[packed].m, fixture_adamw(1), 1.0).loss;
    }
    CHECK(loss[0] == loss[1], "hp %d cp %d: one document %.9f, not packed %.9f", shape.hp, shape.cp, loss[1], loss[0]);
    for (int u = 0; u < c->L + 2; u++) {
        float *a = fixture_gradient(&f[0], u), *b = fixture_gradient(&f[1], u);
        CHECK(memcmp(a, b, sizeof(float) * (size_t)f[0].m.units[u].count) == 0,
              "hp %d cp %d: gradients of unit %d are not equal", shape.hp, shape.cp, u);
        free(a);
        free(b);
    }
    for (int i = 0; i < 2; i++) fixture_free(&f[i]);
}

// The tiles of scores, over all ranks, of a step on documents of `length` tokens.
static int64_t tiles_of(const model_config *c, grid_shape shape, int64_t S, int64_t length, comm *ranks) {
    model_setup setup = fixture_setup(1, 1);
    setup.packed = true;
    fixture f;
    fixture_make(&f, c, shape, ranks, setup, RECOMPUTE_NONE, S);
    int64_t before = op_attention_tiles();
    for (int64_t e = 0; e < f.m.entries; e++) f.m.batch_documents[e] = sequence_shard_entry(&f.shard, e).position / length * length;
    model_step(&f.m, fixture_adamw(1), 1.0);
    int64_t tiles = op_attention_tiles() - before;
    comm_sum_int64(ranks, &tiles, 1);
    fixture_free(&f);
    return tiles;
}

int main(int argc, char **argv) {
    comm *world = test_start(&argc, &argv), *ranks[SIZES], *self = comm_split(world, comm_rank(world), 0, COMM_CONTROL);
    for (int i = 0; i < SIZES; i++)
        ranks[i] = comm_split(world, comm_rank(world) < sizes[i] && sizes[i] <= comm_size(world) ? 0 : -1, comm_rank(world), COMM_CONTROL);
    model_config configs[] = {fixture_config(2, 32, 24, 24, 2, 40, 61, false), fixture_config(1, 36, 12, 4, 4, 50, 61, true),
                              fixture_config(2, 32, 4, 2, 8, 40, 61, false)};
    int models = 2;
#ifdef DEVICE_EMULATED
    models = 3;
    attention_test_documents(4);
#endif
    for (int k = 0; k < models; k++) {
        const model_config *c = &configs[k];
        int64_t S = k == 1 ? 37 : 48;
        reference r;
        make_reference(&r, c, S, self, world);
        for (int i = 0; i < SIZES; i++) {
            if (ranks[i] == NULL) continue;
            int count = i + k - 1; // the same on all ranks of the group
            for (int dp = 1; dp <= 2; dp++)
                for (int hp = 1; sizes[i] % dp == 0 && hp <= sizes[i] / dp; hp++) {
                    int cp = sizes[i] / dp / hp;
                    if (sizes[i] / dp % hp != 0 || c->H % hp != 0) continue;
                    for (int w = 1; w <= cp; w++) {
                        if (cp % w != 0) continue;
                        count++;
                        if (TEST_SANITIZED && (dp + hp + w + k) % 2 == 1) continue; // with another model it is run
                        grid_shape shape = {.dp = dp, .hp = hp, .cp = cp, .w = w, // with another model the other placement
                                            .placement = count % 2 == 0 ? PLACEMENT_HEAD_FIRST : PLACEMENT_CONTEXT_FIRST};
                        fixture_long_document = (count + k) % 2 * 12; // every second grid has several segments
                        check_grid(&r, c, shape, false, (recompute_kind)(count % 4), 1 + count / 2 % 2, S, false, ranks[i]);
                        fixture_long_document = 12 - fixture_long_document;
                        if (cp > 1 && dp == 1) check_grid(&r, c, shape, false, (recompute_kind)(count % 4), 1, S, true, ranks[i]);
                        if (w == cp && cp > 1) check_grid(&r, c, shape, true, (recompute_kind)((count + 2) % 4), 2, S, false, ranks[i]);
                        fixture_long_document = 0;
                        if (dp == 1 && sizes[i] != 6 && !TEST_SANITIZED) check_one_document(c, shape, w == cp && cp > 1, S, ranks[i]);
                    }
                }
        }
        for (int u = 0; u < c->L + 2; u++) free(r.gradients[u]);
        comm_barrier(world);
    }
    // On one rank the kernel skips tiles; on four the ring also skips blocks.
    for (int cp = 1; cp <= 4 && op_attention_tiles() > 0; cp += 3) { // only the CPU device counts them
        comm *group = cp == 1 ? ranks[0] : ranks[3];
        grid_shape shape = {.dp = 1, .hp = 1, .cp = cp, .w = cp};
        model_config c = fixture_config(1, 8, 1, 1, 8, 8, 61, true);
        if (group == NULL) continue;
        int64_t tiles[4];
        for (int i = 0; i < 4; i++) tiles[i] = tiles_of(&c, shape, 2048, 2048 >> (2 * i), group); // documents of 2048, 512, 128, 32
        CHECK(tiles[0] > 0 && 2 * tiles[1] < tiles[0] && 4 * tiles[1] > 5 * tiles[2] && tiles[2] >= tiles[3],
              "cp %d: %lld %lld %lld %lld tiles", cp, (long long)tiles[0], (long long)tiles[1], (long long)tiles[2], (long long)tiles[3]);
        if (comm_rank(world) == 0)
            printf("tiles of scores, cp %d, documents of 2048, 512, 128, 32 tokens: %lld %lld %lld %lld\n", cp, (long long)tiles[0],
                   (long long)tiles[1], (long long)tiles[2], (long long)tiles[3]);
    }
    int status = test_finish("test_documents", world);
    comm_finalize();
    return status;
}
