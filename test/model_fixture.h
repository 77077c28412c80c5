// A model on a grid for tests, with made-up tokens; every rank of `all` takes part. A token depends on (sample, position) alone, so every
// grid sees the same batch.
#ifndef MODEL_FIXTURE_H
#define MODEL_FIXTURE_H

#include "../dataloader.h" // defines: sequence_shard
#include "../model.h"
#include "test.h"

typedef struct {
    grid g;
    model m;
    arena device, host;
    sequence_shard shard;     // with setup.packed: of long documents from fixture_long_document on
    int32_t *tokens, *labels; // (grad_accum, rows), in m
    int64_t S;
    recompute_kind kinds[16];
} fixture;

static int64_t fixture_long_document; // a test's; 0: sequences have one segment

// -100 for the last label of every sample and for a quarter of every second sample, so that ranks have unequal numbers of valid labels.
static inline int32_t fixture_label(const model_config *c, int64_t S, int64_t sample, int64_t position) {
    if (position + 1 >= S || (sample % 2 == 1 && position > S / 4 && position < S / 2)) return -100;
    return (int32_t)((test_random(99, (uint64_t)(sample * 100003 + position + 1)) * 0.5 + 0.5) * (c->V - 1));
}
static inline int32_t fixture_token(const model_config *c, int64_t sample, int64_t position) {
    return (int32_t)((test_random(99, (uint64_t)(sample * 100003 + position)) * 0.5 + 0.5) * (c->V - 1));
}

// Which tokens of sequence s of its batch this rank holds.
static inline sequence_shard fixture_shard(const fixture *f, int64_t s) {
    sequence_shard shard = f->shard;
    shard.segments = model_batch_segments(&f->m, s);
    return shard;
}
// Makes the segments of sequence s, whose documents are [0, length), [length, 2 length), ... Returns fixture_shard.
static inline sequence_shard fixture_cut(fixture *f, int64_t s, int64_t length) {
    segment_list list = {.shard = &f->shard, .list = model_batch_segments(&f->m, s)};
    for (int64_t begin = 0; list.list != NULL && begin < f->S; begin += length)
        segment_list_add(&list, begin, min_i64(f->S, begin + length));
    return fixture_shard(f, s);
}

static inline void fixture_batch(fixture *f, int64_t first_sample) { // sample of (micro a, dp d, sequence b): first + (a dp + d) B + b
    for (int64_t a = 0; a < f->m.setup.grad_accum; a++)
        for (int64_t b = 0; b < f->m.setup.B; b++) {
            sequence_shard shard = fixture_shard(f, a * f->m.setup.B + b);
            for (int64_t t = 0; t < shard.T; t++) {
                int64_t sample = first_sample + (a * f->g.shape.dp + f->g.place.d) * f->m.setup.B + b, at = a * f->m.rows + b * shard.T + t;
                sequence_span span = sequence_shard_span_at(&shard, shard.h * shard.T + t);
                f->tokens[at] = span.position < span.end ? fixture_token(&f->m.c, sample, span.position) : 0;
                f->labels[at] = span.position < span.end ? fixture_label(&f->m.c, f->S, sample, span.position) : -100;
            }
        }
}

// Sets setup.shard and setup.kinds. Every layer gets `kind`; RECOMPUTE_AUTO: none, selective and full in turn. Memory starts as NaN.
static inline void fixture_make(fixture *f, const model_config *c, grid_shape shape, comm *all, model_setup setup, recompute_kind kind,
                                int64_t S) {
    memset(f, 0, sizeof *f);
    f->S = S;
    grid_create(&f->g, shape, setup.cp_allgather, all);
    bool segments = setup.packed && fixture_long_document > 0;
    f->shard = sequence_shard_make_packed(S, shape.hp, shape.cp, f->g.place.h, f->g.place.c, 1,
                                          segments ? max_i64(2 * shape.cp, fixture_long_document) : S + 1);
    setup.shard = f->shard;
    for (int l = 0; l < c->L; l++) f->kinds[l] = kind == RECOMPUTE_AUTO ? (recompute_kind)(l % 3) : kind;
    setup.kinds = f->kinds;
    error_text error = {"", 0};
    arena device, host; // which only count
    model_count(&device, &host, c, &f->g, &setup);
    bool enough = model_allocate(&f->m, &f->device, &f->host, c, &f->g, &setup, &error);
    CHECK(enough, "%s", error.text);
    CHECK(f->device.peak == device.peak && f->host.peak == host.peak, "layouts differ: %zu %zu", f->device.peak, device.peak);
    static char nan_bytes[4 << 20]; // kept: it would take as long to clear as all else here
    if (nan_bytes[0] == 0) memset(nan_bytes, 0xff, sizeof nan_bytes);
    for (size_t at = 0; at < f->device.peak; at += sizeof nan_bytes)
        device_from_host(f->device.base + at, nan_bytes, sizeof nan_bytes < f->device.peak - at ? sizeof nan_bytes : f->device.peak - at);
    if (f->host.base != NULL) memset(f->host.base, 0xff, f->host.peak);
    model_start(&f->m);
    f->tokens = f->m.batch_tokens;
    f->labels = f->m.batch_labels;
    zero_init(&f->m.zero, 1, 0.1f, 0.05f);
    zero_reset_states(&f->m.zero);
    for (int64_t s = 0; s < setup.grad_accum * setup.B; s++) fixture_cut(f, s, S);
    fixture_batch(f, 0);
}
static inline void fixture_free(fixture *f) {
    model_release(&f->m, &f->device, &f->host);
    grid_free(&f->g);
}

static inline model_setup fixture_setup(int64_t B, int64_t accum) { // everything replicated, all options off
    model_setup setup;
    memset(&setup, 0, sizeof setup);
    setup.B = B;
    setup.grad_accum = accum;
    setup.zp = setup.zg = setup.zo = 1;
    return setup;
}

// The whole gradient of a unit, on every rank (count floats; the caller frees): the sum over the ranks that hold one copy of all pieces.
static inline float *fixture_gradient(fixture *f, int unit) {
    zero_hybrid *z = &f->m.zero;
    int64_t n = z->units[unit].count, piece = n / z->zo;
    double *whole = HOST_NEW(double, n);
    float *own = zero_read_grads(z, unit);
    for (int64_t i = 0; i < piece; i++) whole[z->optim_piece * piece + i] = own[i];
    free(own);
    comm_sum_double(z->pieces, whole, (int)n);
    float *result = HOST_NEW(float, n);
    for (int64_t i = 0; i < n; i++) result[i] = (float)whole[i];
    free(whole);
    return result;
}
// The whole parameters of a unit; the caller frees.
static inline float *fixture_parameters(fixture *f, int unit) {
    int64_t n = f->m.units[unit].count;
    float *result = HOST_NEW(float, n);
    device_synchronize();
    memcpy(result, zero_params(&f->m.zero, unit), sizeof(float) * (size_t)n);
    return result;
}
static inline grid_shape fixture_shape(int dp, int hp, int cp, int w) { return (grid_shape){.dp = dp, .hp = hp, .cp = cp, .w = w}; }

static inline adamw_args fixture_adamw(int64_t step) {
    // eps: a gradient that differs from zero by rounding only must not become a full step of Adam.
    return (adamw_args){.lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .weight_decay = 0.1f, .grad_scale = 1, .eps = 1e-4f, .step = step};
}

// Parameters, m and v of all units, as floats, after three updates with gradients that depend on element and step alone; *count of them,
// the caller frees. Every rank has the whole. What is between tensors is left out: it means nothing.
static inline float *fixture_updated(const model_config *c, model_setup setup, comm *ranks, bool stochastic, int64_t *count) {
    fixture f;
    fixture_make(&f, c, fixture_shape(comm_size(ranks), 1, 1, 1), ranks, setup, RECOMPUTE_NONE, 12);
    zero_hybrid *z = &f.m.zero;
    z->rounding.stochastic = stochastic;
    z->rounding.seed = 3;
    for (int step = 1; step <= 3; step++) {
        zero_settle(z); // as a forward pass would: the last update may still need its gradients
        for (int u = 0; u < z->unit_count; u++) {
            int64_t piece = z->units[u].count / z->zo;
            float *grads = zero_optim_grads(z, u);
            for (int64_t i = 0; i < piece; i++)
                grads[i] = (float)test_random((uint64_t)(step * 100 + u), (uint64_t)(z->optim_piece * piece + i));
        }
        zero_update(z, fixture_adamw(step));
    }
    zero_settle(z);
    float *all = HOST_NEW(float, 3 * z->largest * z->unit_count);
    *count = 0;
    for (int u = 0; u < z->unit_count; u++) {
        int64_t n = z->units[u].count, piece = n / z->zo;
        double *moments = HOST_NEW(double, 2 * n); // m, then v
        float *values = HOST_NEW(float, 3 * n);    // parameters, m, v
        for (int64_t i = 0; i < 2 * piece; i++) {
            const char *own = (const char *)(i < piece ? z->m[u] : z->v[u]) + z->moment_bytes * (size_t)(i % piece);
            uint32_t bits = 0; // of a float, of which bf16 is the upper half
            memcpy((char *)&bits + 4 - z->moment_bytes, own, z->moment_bytes);
            moments[(i < piece ? 0 : n) + z->optim_piece * piece + i % piece] = (double)float_of_bits(bits);
        }
        comm_sum_double(z->pieces, moments, (int)(2 * n));
        op_cast_to_float(values, zero_params(z, u), n);
        device_synchronize();
        for (int64_t i = 0; i < 2 * n; i++) values[n + i] = (float)moments[i];
        for (int k = 0; k < 3; k++)
            for (int t = 0; t < z->units[u].tensor_count; t++) {
                const zero_tensor *tensor = &z->units[u].tensors[t];
                memcpy(all + *count, values + k * n + tensor->offset, sizeof(float) * (size_t)tensor->count);
                *count += tensor->count;
            }
        free(moments);
        free(values);
    }
    fixture_free(&f);
    return all;
}
// Checks that these are bit-equal on every rank and for every triple of shard degrees, with offload and without.
static inline void fixture_check_updates(const model_config *c, model_setup setup, comm *ranks, bool stochastic) {
    int n = comm_size(ranks);
    int64_t count, here_count;
    float *first = fixture_updated(c, setup, ranks, stochastic, &count), *theirs = HOST_NEW(float, count);
    for (setup.zp = 1; setup.zp <= n; setup.zp++)
        for (setup.zg = setup.zp; setup.zg <= n; setup.zg += setup.zp)
            for (setup.zo = setup.zg; setup.zo <= n; setup.zo += setup.zg)
                for (int offload = OFFLOAD_NONE; offload <= OFFLOAD_PARAMETERS; offload++) {
                    if (n % setup.zo != 0 || (offload >= OFFLOAD_GRADIENTS && setup.zg < n) ||
                        (offload == OFFLOAD_PARAMETERS && setup.zp < n))
                        continue;
                    setup.offload_states = (zero_offload)offload;
                    float *here = fixture_updated(c, setup, ranks, stochastic, &here_count);
                    size_t bytes = sizeof(float) * (size_t)count;
                    memcpy(theirs, here, bytes);
                    comm_broadcast(ranks, theirs, bytes, 0);
                    CHECK(memcmp(here, theirs, bytes) == 0,
                          "ZeRO %d %d %d, offload %d: parameters or moments differ from rank 0's", setup.zp, setup.zg, setup.zo, offload);
                    CHECK(here_count == count && memcmp(here, first, bytes) == 0,
                          "ZeRO %d %d %d, offload %d: parameters or moments are rounded otherwise than replicated ones", setup.zp,
                          setup.zg, setup.zo, offload);
                    free(here);
                }
    free(first);
    free(theirs);
}

static inline model_config fixture_config(int L, int D, int H, int Hkv, int HS, int F, int V, bool tied) {
    model_config c;
    memset(&c, 0, sizeof c);
    snprintf(c.name, sizeof c.name, "test");
    c.L = L; c.D = D; c.H = H; c.Hkv = Hkv; c.HS = HS; c.F = F; c.V = V;
    c.rms_eps = 1e-5f;
    c.rope_theta = 10000;
    c.tied = tied;
    c.max_position = 1024;
    return c;
}

#endif
