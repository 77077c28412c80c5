// --verify: one step of a small model on this run's grid, beside the same step on one rank. It finds on the machines at hand what no loss
// shows: a gradient that misses a rank's share, counts it twice or meets the wrong rows.
//
// What is distributed is the run's own: device, ranks and links, grid, placement, windows, --cp-comm, --dkv-wire, ZeRO degrees, heads,
// packed documents, what layers recompute and offload. What every rank computes by itself is small: at most 4 layers, hidden size 256, F
// 512, 1000 tokens in the vocabulary; VERIFY_ROWS rows of a sequence per rank; up to 2 sequences and 2 micro-steps. The tokens are random
// numbers, the same on every grid.
#ifndef VERIFY_H
#define VERIFY_H

#include "dataloader.h"  // defines: hash_mix, LABEL_IGNORED
#include "model_files.h" // defines: model, file_parts

enum { VERIFY_ROWS = DEVICE_ROW_MULTIPLE > 1 ? 2 * DEVICE_ROW_MULTIPLE : 32 }; // fills both chunks of a rank, on a GPU with tiles for cuDNN

// How far this grid's step may be from one rank's, for the loss and for each tensor's gradient (the norm of the difference over the norm).
// In float only the order of sums differs. Where numbers are stored in bf16, each is off by up to 2^-8 of itself: a cosine of 0.999 is
// 0.045. --dkv-wire bf16 adds sqrt(cp) 2^-8 (double_ring.cuh).
typedef struct {
    double loss, gradient;
} verify_bounds;
static inline verify_bounds verify_bounds_of(const model_setup *setup, int cp) {
    verify_bounds b = {1e-5, 1e-4};
    if (sizeof(floatX) == 2) b.loss = 1.0 / 256, b.gradient = 0.04;
    if (setup->dkv_bf16) b.gradient += sqrt(cp) / 256;
    return b;
}
// apart: by how much of its norm a tensor's gradient differs at most. False for a NaN, too.
static inline bool verify_agrees(double loss, double expected, double apart, verify_bounds b) {
    return apart <= b.gradient && fabs(loss - expected) <= b.loss * expected;
}

typedef struct {
    grid g;
    model m;
    arena device, host;
    step_result result;
} verify_model;

// Tokens in each of the packed documents of a sample.
static inline int64_t verify_document(int64_t sample) { return 37 + 60 * (sample % 3); }
static inline int32_t verify_token(int V, int64_t sample, int64_t position) {
    return (int32_t)(hash_mix((uint64_t)(sample << 32 | position)) % (uint64_t)V);
}

// Makes the model and runs one step of it on v->g; its gradient stays in v->m.zero. Every grid sees the same samples (dataloader_counter).
// Collective over v->g.all. False with a message: a rank has not enough memory; nothing is left to release then.
static inline bool verify_step(verify_model *v, const model_config *c, model_setup setup, int64_t S, error_text *error) {
    const grid_shape *s = &v->g.shape;
    int64_t long_document = setup.packed ? max_i64(2 * s->cp, 32) : S + 1; // so that many samples have several segments
    setup.shard = sequence_shard_make_packed(S, s->hp, s->cp, v->g.place.h, v->g.place.c, DEVICE_ROW_MULTIPLE, long_document);
    bool ok = model_allocate(&v->m, &v->device, &v->host, c, &v->g, &setup, error);
    if (!comm_agree(v->g.all, error)) {
        if (ok) model_release(&v->m, &v->device, &v->host);
        return false;
    }
    int64_t T = v->m.T, sequences = setup.grad_accum * setup.B, entries = v->m.entries;
    int64_t *documents = v->m.batch_documents;
    int32_t *tokens = v->m.batch_tokens, *labels = v->m.batch_labels;
    for (int64_t n = 0; n < sequences; n++) {
        int64_t sample = dataloader_counter(n / setup.B, s->dp, v->g.place.d, setup.B, n % setup.B);
        int64_t document = setup.packed ? verify_document(sample) : S;
        sequence_shard shard = setup.shard;
        segment_list list = {.shard = &shard, .list = model_batch_segments(&v->m, n)};
        for (int64_t begin = 0; list.list != NULL && begin < S; begin += document)
            segment_list_add(&list, begin, min_i64(S, begin + document));
        shard.segments = list.list;
        for (int64_t t = 0; t < T; t++) {
            sequence_span at = sequence_shard_span_at(&shard, shard.h * T + t);
            int64_t position = at.position, next = position + 1;
            bool label = next < at.end && next % document != 0 && (sample % 2 == 0 || position % 5 > 0); // unequal numbers of labels
            tokens[n * T + t] = position < at.end ? verify_token(c->V, sample, position) : 0;
            labels[n * T + t] = label ? verify_token(c->V, sample, next) : LABEL_IGNORED;
        }
        for (int64_t e = 0; e < entries && setup.packed; e++) {
            sequence_span at = sequence_shard_entry(&shard, e);
            documents[n * entries + e] = min_i64(at.position, at.end - 1) / document * document;
        }
    }
    model_start(&v->m);
    // Scores of about 1: attention is neither uniform nor one key's.
    zero_init(&v->m.zero, 1, 1 / sqrtf((float)c->D), 0.5f / sqrtf((float)c->D));
    zero_reset_states(&v->m.zero);
    adamw_args still = {.eps = 1, .step = 1}; // learning rate 0
    v->result = model_step(&v->m, still, 0);
    device_synchronize();
    return true;
}

// Compares the gradients of all tensors, divided as in files (file_parts), over all ranks: the norm of the difference over the norm.
// Returns the largest; name: that of its tensor. `one` holds whole gradients, the same on every rank.
static inline double verify_compare(const verify_model *here, const verify_model *one, char *name, size_t bytes) {
    int units = here->m.c.L + 2, n = units * ZERO_MAX_TENSORS * FILE_PARTS;
    const zero_hybrid *z = &here->m.zero;
    double *sums = HOST_NEW(double, 2 * n), worst = -1; // squares of the difference, of the gradient
    for (int u = 0; u < units; u++) {
        float *mine = zero_read_grads(z, u), *whole = zero_read_grads(&one->m.zero, u);
        int64_t piece = z->units[u].count / z->zo, begin = z->optim_piece * piece;
        for (int t = 0; t < z->units[u].tensor_count; t++) {
            file_part parts[FILE_PARTS];
            int64_t at = z->units[u].tensors[t].offset;
            for (int p = 0, count = file_parts(&here->m, VALUES_PARAMETERS, u, t, parts); p < count; at += parts[p++].count) {
                double *sum = &sums[2 * ((u * ZERO_MAX_TENSORS + t) * FILE_PARTS + p)];
                for (int64_t i = max_i64(at, begin); i < min_i64(at + parts[p].count, begin + piece); i++) {
                    double d = (double)mine[i - begin] - (double)whole[i];
                    sum[0] += d * d;
                    sum[1] += (double)whole[i] * (double)whole[i];
                }
            }
        }
        free(mine);
        free(whole);
    }
    comm_sum_double(here->g.all, sums, 2 * n);
    for (int i = 0; i < n; i++) {
        file_part parts[FILE_PARTS];
        double apart = sums[2 * i] == 0 ? 0 : sqrt(sums[2 * i] / sums[2 * i + 1]);
        int tensor = i / FILE_PARTS % ZERO_MAX_TENSORS, unit = i / FILE_PARTS / ZERO_MAX_TENSORS;
        if (tensor >= z->units[unit].tensor_count ||
            i % FILE_PARTS >= file_parts(&here->m, VALUES_PARAMETERS, unit, tensor, parts))
            continue;
        if (apart <= worst) continue; // a NaN is not
        worst = isnan(apart) ? INFINITY : apart;
        snprintf(name, bytes, "%s", parts[i % FILE_PARTS].name);
    }
    free(sums);
    return worst;
}

// c, setup, g: the run's. Prints what it found on rank 0. False with a message when this grid's step is not that of one rank. Takes and
// gives back memory of its own. Collective.
static inline bool verify(const model_config *c, const model_setup *setup, const grid *g, error_text *error) {
    model_config small = *c;
    small.L = (int)min_i64(c->L, 4);
    small.D = (int)min_i64(c->D, 256);
    small.F = (int)min_i64(c->F, 512);
    small.V = (int)min_i64(c->V, 1000);
    int64_t S = (int64_t)VERIFY_ROWS * g->shape.hp * g->shape.cp - 1; // 1 row of padding
    recompute_kind kinds[4], none[4] = {RECOMPUTE_NONE, RECOMPUTE_NONE, RECOMPUTE_NONE, RECOMPUTE_NONE};
    for (int l = 0; l < small.L; l++) kinds[l] = setup->kinds[small.L > 1 ? l * (c->L - 1) / (small.L - 1) : 0];
    verify_model here, one;
    memset(&here, 0, sizeof here);
    memset(&one, 0, sizeof one);
    model_setup distributed = *setup;
    distributed.forward_only = false; // with --steps 0, too
    distributed.B = min_i64(setup->B, 2);
    distributed.grad_accum = min_i64(setup->grad_accum, 2);
    distributed.kinds = kinds;
    distributed.offload_layers = (int)ceil_div((int64_t)setup->offload_layers * small.L, c->L);
    distributed.saves = false;
    model_setup alone = {.B = 1, .grad_accum = g->shape.dp * distributed.B * distributed.grad_accum, .zp = 1, .zg = 1, .zo = 1,
                         .packed = setup->packed, .kinds = none};
    here.g = *g;
    comm *self = comm_split(g->all, g->rank, 0, COMM_CONTROL);
    grid_create(&one.g, (grid_shape){.dp = 1, .hp = 1, .cp = 1, .w = 1}, false, self);

    bool ok = verify_step(&one, &small, alone, S, error);
    if (comm_agree(g->all, error) && verify_step(&here, &small, distributed, S, error)) {
        char name[128];
        verify_bounds bounds = verify_bounds_of(setup, g->shape.cp);
        double apart = verify_compare(&here, &one, name, sizeof name), loss = here.result.loss, expected = one.result.loss;
        if (!verify_agrees(loss, expected, apart, bounds))
            error_set(error, "--verify: a step on this grid differs from the same step on one rank: "
                             "loss %.6f, one rank %.6f (relative bound %.1g); "
                             "gradients differ by up to %.2g of their norm, in %s (bound %.2g)",
                      loss, expected, bounds.loss, apart, name, bounds.gradient);
        else if (g->rank == 0)
            printf("verified    a step of %d layers and %lld tokens on this grid agrees with one rank: loss %.6f, one rank %.6f; "
                   "gradients differ by up to %.1e of their norm (%s; bound %.2g)\n",
                   small.L, (long long)S, loss, expected, apart, name, bounds.gradient);
        model_release(&here.m, &here.device, &here.host);
    }
    if (ok) model_release(&one.m, &one.device, &one.host);
    grid_free(&one.g);
    comm_free(self);
    return error->text[0] == '\0';
}

#endif
