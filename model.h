// Llama-3: parameters, the straight-line forward and backward passes, and the layout of all memory of a rank.
//
// A layer, per rank, rows = B T (B sequences of T local tokens; Tc = hp T rows of a sequence in attention, after SeqAlltoAll):
//     xn = rmsnorm(x_in);  qkv = xn wqkv^T                                                                 (tile by tile over rows)
//     out = 2D-Attention(qkv);  x_mid = x_in + out wo^T
//     xn = rmsnorm(x_mid); gate_up = xn w_gate_up^T; act = silu(gate) up; x_out = x_mid + act w_down^T     (tile by tile over rows)
// The loss is the sum of token losses over all ranks and micro-steps, times a scale that is known before the first backward pass.
#ifndef MODEL_H
#define MODEL_H

#include "attention_2d.cuh" // defines: attention_2d_*, grid, arena
#include "checkpoint.cuh"   // defines: checkpoint_*, layer_activations, recompute_kind
#include "config.h"         // defines: model_config, config_rope_frequencies
#include "progress.h"       // defines: progress_*
#include "sequence_shard.h" // defines: sequence_shard_position
#include "zero_hybrid.cuh"  // defines: zero_*

// How a model is set up: everything besides its config and its grid that decides memory and schedule.
typedef struct {
    int64_t B;            // sequences of a micro-step
    sequence_shard shard; // the rows of a sequence that this rank has, as if it had one segment
    int64_t grad_accum;   // micro-steps of a step
    int64_t mlp_tile, loss_tile; // rows; 0 = auto
    int zp, zg, zo;       // shard degrees
    bool cp_allgather, dkv_bf16; // --cp-comm, --dkv-wire
    bool packed;          // samples are packed documents: see model.batch_documents
    int64_t attention_bytes; // most bytes of a slice of heads (attention_2d_first_slice); 0: ATTENTION_SLICE_BYTES
    recompute_kind *kinds; // (L), the caller's
    int offload_layers;   // number of layers, from the first, whose activations are offloaded (checkpoint.cuh)
    zero_offload offload_states;
    bool forward_only;    // no training: no gradients and moments, two layers hold activations; kinds are all full, offload_layers is L
    bool bf16_moments;    // --moments bf16
    bool exports;         // forward_only: parameters are written, too, which takes their master weights
    bool saves;           // reserves host memory for a copy of the model states, so that training continues while they are written
    size_t element_bytes; // of floatX on the device that is planned for; 0: this build's
} model_setup;

// Model states are gathered, reduced and updated by units (zero_hybrid.cuh): 0 is the embedding, 1 + l layer l, L + 1 the head. Indices of
// tensors in a unit: in the order in which model_describe_units adds them.
enum { UNIT_EMBEDDING = 0 };
enum { T_EMBEDDING = 0 };                                              // (V, D)
enum { T_NORM1, T_WQKV, T_WO, T_NORM2, T_W_GATE_UP, T_W_DOWN };        // of a layer
enum { T_FINAL_NORM, T_LM_HEAD };                                      // of the head; lm_head only when untied

typedef struct {
    model_config c;
    const grid *g;
    model_setup setup;
    int64_t T, rows; // local tokens of a sequence; B T
    int64_t entries, most_segments; // of a sequence (sequence_shard_entries, sequence_shard_segments)
    int qkv_width, out_width; // (H + 2 Hkv) HS, H HS
    zero_unit *units; // L + 2
    zero_hybrid zero;
    attention_2d attention;
    checkpoint_store store;
    int64_t mlp_tile, loss_tile, norm_tile; // rows; qkv and its gradient take mlp_tile at a time, too; norm_tile: the larger of both
    bool keep_gate_up;
    const int64_t *documents; // (B, entries) of this micro-step, in batch_documents; NULL: every sequence is one document
    const sequence_segment *segments; // (B, most_segments + 1) of this micro-step, in batch_segments; NULL: every sequence is one segment
    double *frequencies, rope_factor; // (HS/2), of RoPE; of its cos and sin
    double most_loss, most_norm;  // a step with more changes no parameter (spikes.h); the caller's, before each step. 0: all do
    // device memory, from the arena
    int32_t *tokens, *labels; // (rows)
    int64_t *first;           // (B, entries): `documents`; packed only
    float *table;             // (T, HS/2, 2): cos and sin of the local positions; with batch_segments (B, T, HS/2, 2), of this micro-step
    float *losses;            // (grad_accum, rows)
    floatX *x_last, *dx;      // (rows, D): input of the head, and the gradient that takes its place: the same memory
    floatX *dout;             // (rows, H HS), and where SeqAlltoAll's out and dQ arrive
    floatX *xn;               // (norm_tile, D) of a norm's output, and then of its gradient
    float *rstd;              // (norm_tile)
    floatX *qkv;              // (mlp_tile, (H + 2 Hkv) HS), or its gradient
    floatX *act;              // (mlp_tile, F); in the backward pass first its gradient
    floatX *gate_up;          // (mlp_tile, 2F)
    floatX *logits;           // (loss_tile, V)
    void *norm_scratch, *embedding_scratch, *product_scratch;
    // host memory, from the arena
    int32_t *batch_tokens, *batch_labels; // (grad_accum, rows): a step's, for the caller to read into
    // Packed only, (grad_accum, B, entries) from dataloader_read_packed: for each attention row, where in its sequence its document begins;
    // then the same for the first row of each chunk of each segment. RoPE uses the position in the sequence: scores depend on differences
    // of positions only, so within a document they are the same as with positions that restart at 0.
    int64_t *batch_documents;
    sequence_segment *batch_segments;     // (grad_accum, B, most_segments + 1): which rows are where; NULL: every sequence is one segment
    char *saving;             // copy of parameters, m and v while it is written, stored as they are, each (zero_shares); NULL: !setup.saves
} model;

// ---- memory ----

// --mlp-tile auto and --loss-tile auto: rows of a tile, in equal tiles of rows with `width` elements. They depend only on the model, `rows`
// and the element size, so that they are the same on every rank and for every kind of recompute. Each tile reads and writes the gradient of
// its weights once: 8 bytes per weight, for 2 x (rows of the tile) FLOP. A CPU (float, element 4) hides that from 256 rows on, and works
// from its caches: about 2^24 elements per tile. On a GPU (bf16) of 660 TFLOP/s and 4 TB/s that traffic takes 660 / rows of the product's
// time: at least 8192 rows, and up to 1 GiB.
static inline int64_t model_auto_tile(int64_t rows, int64_t width, size_t element) {
    int64_t most = element == sizeof(float) ? max_i64(256, ((int64_t)1 << 24) / width) : max_i64(8192, ((int64_t)1 << 29) / width);
    return min_i64(rows, round_up(ceil_div(rows, ceil_div(rows, most)), 64));
}

// Sets widths and units. Slots: where units are gathered, and their gradients summed. Layers take two in turn: one computes while the next
// one is gathered. Embedding and head, in use at opposite ends of a pass, share one unless they are tied. zero_unit_add: name, elements,
// decay, product.
static inline void model_describe_units(model *m) {
    const model_config *c = &m->c;
    int64_t D = c->D, F = c->F, V = c->V;
    m->qkv_width = (c->H + 2 * c->Hkv) * c->HS;
    m->out_width = c->H * c->HS;
    m->units = HOST_NEW(zero_unit, c->L + 2);
    zero_unit *u = m->units;
    zero_unit_add(&u[UNIT_EMBEDDING], "embedding", V * D, true, false);
    u[UNIT_EMBEDDING].slot = 2;
    for (int l = 0; l < c->L; l++) {
        zero_unit *layer = &u[1 + l];
        layer->slot = l % 2;
        zero_unit_add(layer, "norm1", D, false, false);
        zero_unit_add(layer, "wqkv", m->qkv_width * D, true, true);
        zero_unit_add(layer, "wo", D * m->out_width, true, true);
        zero_unit_add(layer, "norm2", D, false, false);
        zero_unit_add(layer, "w_gate_up", 2 * F * D, true, true);
        zero_unit_add(layer, "w_down", D * F, true, true);
    }
    zero_unit *head = &u[c->L + 1];
    head->slot = c->tied ? 3 : 2; // tied: the loss uses it together with the embedding
    zero_unit_add(head, "final_norm", D, false, false);
    if (!c->tied) zero_unit_add(head, "lm_head", V * D, true, true);
}

// The buffers that are live within a layer or the head. Those between which a | stands share a place: they are never live at the same time.
//     x_last, and then dx
//     dout | x_mid                          the MLP's backward pass is done with x_mid before dout is computed
//     out (hp > 1, cp > 1)                  it outlives the ring, whose last hop its product with dx hides. hp = 1: out is out_ring
//     one of these at a time, at the end of the arena:
//         a slice's sums, the ring's buffers
//       | dkv_send                          when the ring's buffers have been used
//       | xn, rstd, with
//             out (hp > 1, cp = 1) | kv_send
//             act, gate_up | qkv, q_send    but kv_send and q_send have places of their own where Q and KV are in flight during the MLP's
//                                           backward pass (model_attention_again)
//           | logits                        in place of these two lines
//       | scratch of the embedding's gradient
// x_mid and out: only where some layer does not keep them.
static inline void model_layout_workspace(model *m, arena *device) {
    attention_2d *a = &m->attention;
    bool sends = m->g->shape.hp > 1, rings = m->g->shape.cp > 1, recomputes = m->store.most != RECOMPUTE_NONE;
    bool own_place = false; // kv_send and q_send have one
    int64_t rows = m->rows, D = m->c.D;
    for (int l = 0; l < m->c.L; l++) own_place |= m->setup.kinds[l] == RECOMPUTE_SELECTIVE;
    m->x_last = m->dx = ARENA_TAKE_X(device, MEM_WORKSPACE, rows * D);
    arena_place of_dout = arena_share_begin(device);
    m->dout = ARENA_TAKE_X(device, MEM_WORKSPACE, rows * m->out_width);
    arena_share(device, &of_dout);
    if (recomputes) m->store.work.x_mid = ARENA_TAKE_X(device, MEM_WORKSPACE, rows * D);
    arena_share_end(device, &of_dout);
    if (sends && rings && recomputes) m->store.work.out = ARENA_TAKE_X(device, MEM_WORKSPACE, rows * m->out_width);

    arena_place at_work = arena_share_begin(device);
    attention_2d_layout(a, device);

    arena_share(device, &at_work);
    if (!m->setup.forward_only) attention_2d_layout_dkv_send(a, device);

    arena_share(device, &at_work);
    m->xn = ARENA_TAKE_X(device, MEM_WORKSPACE, m->norm_tile * D);
    m->rstd = ARENA_TAKE(device, MEM_WORKSPACE, float, m->norm_tile);
    arena_place of_products = arena_share_begin(device);
    arena_place of_out = arena_share_begin(device);
    if (sends && !rings && recomputes) m->store.work.out = ARENA_TAKE_X(device, MEM_WORKSPACE, rows * m->out_width);
    arena_share(device, &of_out);
    if (!own_place) attention_2d_layout_kv_send(a, device);
    arena_share_end(device, &of_out);
    arena_place of_tile = arena_share_begin(device);
    m->act = ARENA_TAKE_X(device, MEM_WORKSPACE, m->mlp_tile * m->c.F);
    m->gate_up = ARENA_TAKE_X(device, MEM_WORKSPACE, m->mlp_tile * 2 * m->c.F);
    arena_share(device, &of_tile);
    m->qkv = ARENA_TAKE_X(device, MEM_WORKSPACE, m->mlp_tile * m->qkv_width);
    if (!own_place) attention_2d_layout_q_send(a, device);
    arena_share_end(device, &of_tile);
    if (own_place) attention_2d_layout_kv_send(a, device); // beside all that the MLP's backward pass uses
    if (own_place) attention_2d_layout_q_send(a, device);

    arena_share(device, &of_products);
    m->logits = ARENA_TAKE_X(device, MEM_WORKSPACE, m->loss_tile * m->c.V);
    arena_share_end(device, &of_products);

    arena_share(device, &at_work);
    m->embedding_scratch = arena_take(device, MEM_WORKSPACE, 1, op_embedding_backward_scratch(rows));
    arena_share_end(device, &at_work);
}

static inline size_t model_saving_bytes(const model *m) { // of m->saving
    return (size_t)zero_shares(&m->zero) * (sizeof(float) + 2 * m->zero.moment_bytes);
}

// Lays out every buffer of a rank in `device` and `host`. A run and a dry run both use this function: with arenas without a base it
// only counts, and needs neither communicators nor a device. g must have shape, place, rank and ranks set;
// setup->shard is as sequence_shard_make makes it. The model keeps the pointer to g; model_free releases the tables.
static inline void model_layout(model *m, arena *device, arena *host, const model_config *c, const grid *g, const model_setup *setup) {
    memset(m, 0, sizeof *m);
    m->c = *c;
    m->g = g;
    m->setup = *setup;
    m->T = setup->shard.T;
    m->rows = setup->B * m->T;
    m->entries = sequence_shard_entries(&setup->shard);
    m->most_segments = sequence_shard_segments(&setup->shard);
    int64_t rows = m->rows, D = c->D, F = c->F, V = c->V;
    int64_t multiple = arena_is_cpu(device) ? 1 : 2; // cuBLAS 13.5.1 to 13.6.0 may refuse a product of one row, which a last tile could be
    size_t element = arena_element(device);
    m->mlp_tile = setup->mlp_tile > 0 ? min_i64(round_up(setup->mlp_tile, multiple), rows) : model_auto_tile(rows, 2 * F, element);
    m->loss_tile = setup->loss_tile > 0 ? min_i64(round_up(setup->loss_tile, multiple), rows) : model_auto_tile(rows, V, element);
    m->norm_tile = max_i64(m->mlp_tile, m->loss_tile);
    m->keep_gate_up = setup->mlp_tile == 0; // a given --mlp-tile bounds gate_up, too: it is recomputed tile by tile

    model_describe_units(m);
    zero_describe(&m->zero, g->ranks, g->rank, setup->zp, setup->zg, setup->zo, m->units, c->L + 2);
    zero_layout(&m->zero, device, host, !setup->forward_only, !setup->forward_only || setup->exports, setup->bf16_moments,
                setup->grad_accum > 1, setup->offload_states);

    m->saving = setup->saves ? ARENA_TAKE(host, MEM_SAVING, char, model_saving_bytes(m)) : NULL;
    m->batch_tokens = ARENA_TAKE(host, MEM_DATA, int32_t, setup->grad_accum * rows);
    m->batch_labels = ARENA_TAKE(host, MEM_DATA, int32_t, setup->grad_accum * rows);
    m->batch_documents = setup->packed ? ARENA_TAKE(host, MEM_DATA, int64_t, setup->grad_accum * setup->B * m->entries) : NULL;
    int64_t segments = setup->grad_accum * setup->B * (m->most_segments + 1);
    m->batch_segments = m->most_segments > 1 ? ARENA_TAKE(host, MEM_DATA, sequence_segment, segments) : NULL;
    m->tokens = ARENA_TAKE(device, MEM_DATA, int32_t, rows);
    m->labels = ARENA_TAKE(device, MEM_DATA, int32_t, rows);
    m->first = setup->packed ? ARENA_TAKE(device, MEM_DATA, int64_t, setup->B * m->entries) : NULL;
    m->table = ARENA_TAKE(device, MEM_DATA, float, (m->most_segments > 1 ? rows : m->T) * c->HS);
    m->losses = ARENA_TAKE(device, MEM_DATA, float, setup->grad_accum * rows);

    attention_2d_describe(&m->attention, g, c->H, c->Hkv, c->HS, m->T, setup->cp_allgather, setup->dkv_bf16, setup->packed,
                          setup->attention_bytes);
    m->attention.ring.forward_only = setup->forward_only;
    activation_sizes n = {.x = rows * D, .out = rows * m->out_width, .lse = rows * c->H,
                          .kv = setup->B * attention_2d_kv_count(&m->attention), .gate_up = m->keep_gate_up ? rows * 2 * F : 0,
                          .out_is_ring = g->shape.hp == 1};
    checkpoint_layout(&m->store, device, host, c->L, setup->kinds, setup->offload_layers, !setup->forward_only, n);

    int64_t norm_parts = arena_is_cpu(device) ? NORM_PARTS_CPU : NORM_PARTS_GPU; // of another device
    size_t norm = !arena_counts_other(device) ? op_rmsnorm_backward_scratch(m->norm_tile, D)
                                              : sizeof(float) * (size_t)(min_i64(m->norm_tile, norm_parts) * D);
    m->norm_scratch = arena_take(device, MEM_WORKSPACE, 1, norm);
    size_t products = !arena_counts_other(device) ? op_linear_workspace() : arena_is_cpu(device) ? 0 : DEVICE_LINEAR_WORKSPACE;
    m->product_scratch = arena_take(device, MEM_WORKSPACE, 1, products);
    model_layout_workspace(m, device);
}

static inline void model_free(model *m) {
    zero_free(&m->zero);
    checkpoint_free(&m->store);
    free(m->units);
    free(m->frequencies);
}

// Counts in `device` and `host` what a run takes of each.
static inline void model_count(arena *device, arena *host, const model_config *c, const grid *g, const model_setup *setup) {
    model m;
    memset(device, 0, sizeof *device);
    memset(host, 0, sizeof *host);
    device->element_bytes = host->element_bytes = setup->element_bytes;
    model_layout(&m, device, host, c, g, setup);
    model_free(&m);
}
// Takes the arenas' memory, as much as model_layout counts, and lays out the model in it. False with a message when there is not enough:
// nothing is left to free then. model_release gives the model and the memory back.
static inline bool model_allocate(model *m, arena *device, arena *host, const model_config *c, const grid *g, const model_setup *setup,
                                  error_text *error) {
    model_count(device, host, c, g, setup);
    size_t device_bytes = device->peak, host_bytes = host->peak;
    memset(device, 0, sizeof *device);
    memset(host, 0, sizeof *host);
    device->base = (char *)device_alloc(device_bytes);
    host->base = host_bytes > 0 ? (char *)device_host_slab(host_bytes) : NULL;
    if (device->base == NULL || (host_bytes > 0 && host->base == NULL)) {
        if (device->base != NULL) device_free(device->base);
        if (host->base != NULL) device_host_slab_free(host->base, host_bytes);
        error_set(error, "not enough memory: a rank needs %zu bytes on the device and %zu on the host%s", device_bytes, host_bytes,
                  setup->saves ? "; --save-every keeps a copy of the states on the host, smaller with more ranks" : "");
        error->number = ENOMEM; // run_fit has found room: others hold it, and may give it back
        return false;
    }
    model_layout(m, device, host, c, g, setup);
    return true;
}
static inline void model_release(model *m, arena *device, arena *host) {
    op_linear_use_workspace(NULL); // the arena's memory goes away
    model_free(m);
    device_free(device->base);
    if (host->base != NULL) device_host_slab_free(host->base, host->peak);
}

// cos and sin of RoPE's angles at `position`, (HS/2, 2). In double: in float, position x frequency is off by 0.06 rad at 2^20.
static inline void model_turns(const model *m, int64_t position, double *turns) {
    for (int64_t i = 0; i < m->c.HS / 2; i++) {
        double angle = (double)position * m->frequencies[i];
        turns[2 * i] = cos(angle);
        turns[2 * i + 1] = sin(angle);
    }
}
// Fills the RoPE table of a sequence's local positions. A GPU may wait for it, and other ranks have the other cores: so one thread must be
// fast. It makes the cos and sin of a position a + b from those of a, a multiple of 64, and of b < 64, also in double.
static inline void model_fill_table(model *m, float *table, const sequence_shard *shard) {
    enum { PIECE = 1024, NEAR = 64 }; // rows
    int64_t half = m->c.HS / 2, row = m->c.HS, far_position = -1;
    float *piece = HOST_NEW(float, PIECE * row);
    double *far_turns = HOST_NEW(double, row), *near_turns = HOST_NEW(double, NEAR * row), factor = m->rope_factor;
    for (int64_t i = 0; i < NEAR; i++) model_turns(m, i, near_turns + i * row);
    for (int64_t at = 0; at < shard->T; at += PIECE) {
        int64_t n = min_i64(PIECE, shard->T - at);
        for (int64_t t = 0; t < n; t++) {
            int64_t position = sequence_shard_position(shard, at + t), near_position = position % NEAR;
            if (position - near_position != far_position) model_turns(m, far_position = position - near_position, far_turns);
            const double *a = far_turns, *b = near_turns + near_position * row;
            for (int64_t i = 0; i < half; i++) {
                piece[t * row + 2 * i] = (float)((a[2 * i] * b[2 * i] - a[2 * i + 1] * b[2 * i + 1]) * factor);
                piece[t * row + 2 * i + 1] = (float)((a[2 * i + 1] * b[2 * i] + a[2 * i] * b[2 * i + 1]) * factor);
            }
        }
        device_from_host(table + at * row, piece, sizeof(float) * (size_t)(n * row));
    }
    free(near_turns);
    free(far_turns);
    free(piece);
}
// Call after model_allocate: creates communicators over g->all, and the RoPE table of this rank's positions. Collective.
static inline void model_start(model *m) {
    zero_connect(&m->zero, m->g->all);
    checkpoint_start(&m->store);
    op_linear_use_workspace(m->product_scratch);
    if (m->saving != NULL) memset(m->saving, 0, model_saving_bytes(m)); // touches the pages, for the first save
    m->frequencies = HOST_NEW(double, m->c.HS / 2);
    m->rope_factor = config_rope_frequencies(&m->c, m->frequencies);
    model_fill_table(m, m->table, &m->setup.shard);
}

// ---- forward ----

// Where a tensor is in its unit: in what zero_params, or zero_grads, returned for that unit.
static inline int64_t model_offset(const model *m, int unit, int tensor) { return m->units[unit].tensors[tensor].offset; }
// The segments of sequence s of the batch, all micro-steps counted; NULL: it is one segment.
static inline sequence_segment *model_batch_segments(const model *m, int64_t s) {
    return m->batch_segments != NULL ? m->batch_segments + s * (m->most_segments + 1) : NULL;
}
// Those of this micro-step's sequence b; NULL: it is one segment.
static inline const sequence_segment *model_segments(const model *m, int64_t b) {
    return m->segments != NULL ? m->segments + b * (m->most_segments + 1) : NULL;
}
// The part of a layer's kept tensors that belongs to sequence b.
static inline attention_saved model_attention_saved(const model *m, const layer_activations *t, int64_t b) {
    int64_t nq = attention_2d_q_count(&m->attention), nkv = attention_2d_kv_count(&m->attention);
    attention_saved s = {.q = t->q + b * nq, .kv = t->kv + b * nkv, .out = t->out_ring + b * nq, .lse = t->lse + b * m->T * m->c.H};
    if (m->documents != NULL) s.documents = (document_rows){m->first + b * m->entries, m->documents + b * m->entries, model_segments(m, b)};
    return s;
}
// The RoPE table of sequence b.
static inline const float *model_table(const model *m, int64_t b) {
    return m->table + (m->batch_segments != NULL ? b * m->T * m->c.HS : 0);
}

// x_in -> Q and KV of sequence b, in what attention_2d_distribute_start sends, or where they stay; tile by tile.
static inline void model_project_qkv(model *m, const floatX *p, int unit, const layer_activations *t, attention_saved s, int64_t b) {
    int64_t T = m->T, D = m->c.D;
    for (int64_t at = 0; at < T; at += m->mlp_tile) {
        int64_t n = min_i64(m->mlp_tile, T - at);
        op_rmsnorm_forward(m->xn, m->rstd, t->x_in + (b * T + at) * D, p + model_offset(m, unit, T_NORM1), n, D, m->c.rms_eps);
        op_linear_forward(m->qkv, m->xn, p + model_offset(m, unit, T_WQKV), NULL, n, D, m->qkv_width);
        attention_2d_pack(&m->attention, s, m->qkv, model_table(m, b), at, n);
    }
}
// x_in -> x_mid.
static inline void model_attention_forward(model *m, const floatX *p, int unit, const layer_activations *t) {
    int64_t rows = m->rows, D = m->c.D;
    for (int64_t b = 0; b < m->setup.B; b++) {
        attention_saved s = model_attention_saved(m, t, b);
        model_project_qkv(m, p, unit, t, s, b);
        attention_2d_distribute_start(&m->attention, s);
        attention_2d_distribute_finish(&m->attention);
    }
    for (int64_t b = 0; b < m->setup.B; b++) attention_2d_ring_forward(&m->attention, model_attention_saved(m, t, b));
    for (int64_t b = 0; b < m->setup.B; b++) {
        attention_2d_collect_start(&m->attention, model_attention_saved(m, t, b), m->dout);
        attention_2d_collect_finish(&m->attention, t->out + b * m->T * m->out_width, m->dout);
    }
    op_linear_forward(t->x_mid, t->out, p + model_offset(m, unit, T_WO), t->x_in, rows, m->out_width, D);
}
// Selective Checkpoint++: out_ring and lse were kept; recomputes Q, K, V, out and x_mid. The projection of a sequence's Q, K and V hides
// the transfer of its out, which arrives where its Q will be. The last sequence's Q, K and V are left in flight: attention's backward pass
// reads them next, after the caller's attention_2d_distribute_finish.
static inline void model_attention_again(model *m, const floatX *p, int unit, const layer_activations *t) {
    int64_t rows = m->rows, D = m->c.D;
    for (int64_t b = 0; b < m->setup.B; b++) {
        attention_saved s = model_attention_saved(m, t, b);
        attention_2d_collect_start(&m->attention, s, s.q);
        model_project_qkv(m, p, unit, t, s, b);
        attention_2d_collect_finish(&m->attention, t->out + b * m->T * m->out_width, s.q);
        attention_2d_distribute_start(&m->attention, s);
        if (b + 1 < m->setup.B) attention_2d_distribute_finish(&m->attention);
    }
    op_linear_forward(t->x_mid, t->out, p + model_offset(m, unit, T_WO), t->x_in, rows, m->out_width, D);
}

// x_mid -> x_out, tile by tile.
static inline void model_mlp_forward(model *m, const floatX *p, int unit, const layer_activations *t, floatX *x_out) {
    int64_t rows = m->rows, D = m->c.D, F = m->c.F;
    for (int64_t at = 0; at < rows; at += m->mlp_tile) {
        int64_t n = min_i64(m->mlp_tile, rows - at);
        floatX *gate_up = t->gate_up != NULL ? t->gate_up + at * 2 * F : m->gate_up;
        op_rmsnorm_forward(m->xn, m->rstd, t->x_mid + at * D, p + model_offset(m, unit, T_NORM2), n, D, m->c.rms_eps);
        op_linear_forward(gate_up, m->xn, p + model_offset(m, unit, T_W_GATE_UP), NULL, n, D, 2 * F);
        op_swiglu_forward(m->act, gate_up, n, F);
        op_linear_forward(x_out + at * D, m->act, p + model_offset(m, unit, T_W_DOWN), t->x_mid + at * D, n, F, D);
    }
}

// m->tokens -> m->x_last. kept: model_backward will use the activations; false in evaluation.
static inline void model_forward(model *m, bool kept) {
    int L = m->c.L;
    const floatX *embedding = zero_params(&m->zero, UNIT_EMBEDDING);
    zero_fetch(&m->zero, 1, 2);
    floatX *x = checkpoint_open_forward(&m->store, 0).x_in;
    op_embedding_forward(x, m->tokens, embedding, m->rows, m->c.D);
    for (int l = 0; l < L; l++) {
        int unit = 1 + l;
        const floatX *p = zero_params(&m->zero, unit);
        zero_fetch(&m->zero, unit + 1, l + 1 < L ? unit + 2 : -1); // after the last layer: the head
        layer_activations t = checkpoint_view(&m->store, l);
        double began = trace_now();
        model_attention_forward(m, p, unit, &t);
        floatX *x_out = l + 1 < L ? checkpoint_open_forward(&m->store, l + 1).x_in : m->x_last;
        model_mlp_forward(m, p, unit, &t, x_out);
        trace_compute("layer forward", l, began);
        checkpoint_forward_done(&m->store, l, kept);
        zero_advance(&m->zero); // the gradients that the micro-step before has left in flight
    }
}

// ---- loss ----

// (V, D): lm_head, or the embedding where they are tied.
static inline const floatX *model_output_weight(model *m) {
    if (m->c.tied) return zero_params(&m->zero, UNIT_EMBEDDING) + model_offset(m, UNIT_EMBEDDING, T_EMBEDDING);
    return zero_params(&m->zero, m->c.L + 1) + model_offset(m, m->c.L + 1, T_LM_HEAD);
}
// Losses of this micro-step's rows into losses (rows). backward: also dx = gradient of x_last, in its place, and gradients of the head (and
// of the tied embedding), scaled by `scale` = 1 / valid labels of the step.
static inline void model_loss(model *m, float *losses, float scale, bool backward) {
    int64_t rows = m->rows, D = m->c.D, V = m->c.V;
    int head = m->c.L + 1, out_unit = m->c.tied ? UNIT_EMBEDDING : head, out_tensor = m->c.tied ? (int)T_EMBEDDING : (int)T_LM_HEAD;
    const floatX *norm = zero_params(&m->zero, head) + model_offset(m, head, T_FINAL_NORM);
    const floatX *w_out = model_output_weight(m);
    bool adds = true, unused; // the first use of the output weight's unit says whether its gradient is added or stored
    float *dw_out = backward ? zero_grads(&m->zero, out_unit, &adds) + model_offset(m, out_unit, out_tensor) : NULL;
    float *dhead = backward ? zero_grads(&m->zero, head, &unused) : NULL;
    double began = trace_now();
    for (int64_t at = 0; at < rows; at += m->loss_tile) {
        int64_t n = min_i64(m->loss_tile, rows - at);
        floatX *x = m->x_last + at * D;
        op_rmsnorm_forward(m->xn, m->rstd, x, norm, n, D, m->c.rms_eps);
        op_linear_forward(m->logits, m->xn, w_out, NULL, n, D, V);
        op_cross_entropy(losses + at, m->logits, m->labels + at, n, V, scale, backward);
        if (!backward) continue;
        op_linear_backward_weight(dw_out, m->logits, m->xn, n, D, V, adds || at > 0);
        op_linear_backward_input(m->xn, m->logits, w_out, n, D, V);
        op_rmsnorm_backward(m->dx + at * D, dhead + model_offset(m, head, T_FINAL_NORM), m->xn, x, norm, m->rstd, n, D, false,
                            m->norm_scratch);
    }
    trace_compute("head", head, began);
    if (backward) zero_grads_done(&m->zero, head);
}

// ---- backward ----

// dx: gradient of x_out -> gradient of x_mid. dp: gradients of the MLP's weights are added (`adds`) or stored (zero_grads).
static inline void model_mlp_backward(model *m, const floatX *p, float *dp, bool adds, int unit, const layer_activations *t) {
    int64_t rows = m->rows, D = m->c.D, F = m->c.F;
    const floatX *w_gate_up = p + model_offset(m, unit, T_W_GATE_UP), *w_down = p + model_offset(m, unit, T_W_DOWN);
    const floatX *norm = p + model_offset(m, unit, T_NORM2);
    for (int64_t at = 0; at < rows; at += m->mlp_tile) {
        int64_t n = min_i64(m->mlp_tile, rows - at);
        floatX *gate_up = t->gate_up != NULL ? t->gate_up + at * 2 * F : m->gate_up;
        op_rmsnorm_forward(m->xn, m->rstd, t->x_mid + at * D, norm, n, D, m->c.rms_eps);
        if (t->gate_up == NULL) op_linear_forward(gate_up, m->xn, w_gate_up, NULL, n, D, 2 * F);
        op_linear_backward_input(m->act, m->dx + at * D, w_down, n, F, D);
        op_swiglu_backward(gate_up, m->act, m->act, gate_up, n, F);
        op_linear_backward_weight(dp + model_offset(m, unit, T_W_DOWN), m->dx + at * D, m->act, n, F, D, adds || at > 0);
        op_linear_backward_weight(dp + model_offset(m, unit, T_W_GATE_UP), gate_up, m->xn, n, D, 2 * F, adds || at > 0);
        op_linear_backward_input(m->xn, gate_up, w_gate_up, n, D, 2 * F);
        op_rmsnorm_backward(m->dx + at * D, dp + model_offset(m, unit, T_NORM2), m->xn, t->x_mid + at * D, norm, m->rstd, n, D, true,
                            m->norm_scratch);
    }
}

// The gradient of qkv, in its place, of rows [row, row + n) of the micro-step, from what attention_2d_backward_finish has left of each
// sequence.
static inline void model_unpack_dqkv(model *m, const layer_activations *t, int64_t row, int64_t n) {
    int64_t T = m->T;
    for (int64_t at = row, rows; at < row + n; at += rows) {
        int64_t b = at / T, first = at % T;
        rows = min_i64(row + n - at, T - first);
        attention_2d_unpack(&m->attention, m->qkv + (at - row) * m->qkv_width, m->dout + b * T * m->out_width,
                            model_attention_saved(m, t, b), model_table(m, b), first, rows);
    }
}
// dx: gradient of x_mid -> gradient of x_in. dp: gradients of the attention's weights, as above. The gradient of wo hides
// transfers: SeqAlltoAll of dout (cp = 1), or SeqAlltoAll of dQ and dKV's first hop home (cp > 1).
static inline void model_attention_backward(model *m, const floatX *p, float *dp, bool adds, int unit, const layer_activations *t) {
    int64_t rows = m->rows, B = m->setup.B, D = m->c.D;
    bool rings = m->g->shape.cp > 1;
    op_linear_backward_input(m->dout, m->dx, p + model_offset(m, unit, T_WO), rows, m->out_width, D);
    for (int64_t b = 0; b < B; b++) {
        attention_saved s = model_attention_saved(m, t, b);
        floatX *dout = m->dout + b * m->T * m->out_width;
        attention_2d_backward_start(&m->attention, dout);
        if (!rings && b == 0) op_linear_backward_weight(dp + model_offset(m, unit, T_WO), m->dx, t->out, rows, m->out_width, D, adds);
        attention_2d_backward_ring(&m->attention, dout, s);
        if (rings && b + 1 == B) op_linear_backward_weight(dp + model_offset(m, unit, T_WO), m->dx, t->out, rows, m->out_width, D, adds);
        attention_2d_backward_finish(&m->attention, s);
    }
    const floatX *norm = p + model_offset(m, unit, T_NORM1);
    for (int64_t at = 0; at < rows; at += m->mlp_tile) {
        int64_t n = min_i64(m->mlp_tile, rows - at);
        const floatX *x = t->x_in + at * D;
        model_unpack_dqkv(m, t, at, n);
        op_rmsnorm_forward(m->xn, m->rstd, x, norm, n, D, m->c.rms_eps);
        op_linear_backward_weight(dp + model_offset(m, unit, T_WQKV), m->qkv, m->xn, n, D, m->qkv_width, adds || at > 0);
        op_linear_backward_input(m->xn, m->qkv, p + model_offset(m, unit, T_WQKV), n, D, m->qkv_width);
        op_rmsnorm_backward(m->dx + at * D, dp + model_offset(m, unit, T_NORM1), m->xn, x, norm, m->rstd, n, D, true, m->norm_scratch);
    }
}

// From m->dx (set by model_loss) to all gradients. Uses up the activations that model_forward has kept.
static inline void model_backward(model *m) {
    int L = m->c.L;
    for (int l = L - 1; l >= 0; l--) {
        int unit = 1 + l;
        const floatX *p = zero_params(&m->zero, unit);
        if (l > 0) zero_fetch(&m->zero, unit - 1, l > 1 ? unit - 2 : -1);
        else if (!m->zero.last_micro) zero_fetch(&m->zero, UNIT_EMBEDDING, -1); // for the next forward pass
        layer_activations t = checkpoint_open_backward(&m->store, l);
        checkpoint_prefetch(&m->store, l - 1);
        bool adds;
        float *dp = zero_grads(&m->zero, unit, &adds);
        double began = trace_now();
        if (m->store.kinds[l] == RECOMPUTE_FULL) model_attention_forward(m, p, unit, &t);
        if (m->store.kinds[l] == RECOMPUTE_SELECTIVE) model_attention_again(m, p, unit, &t);
        model_mlp_backward(m, p, dp, adds, unit, &t);
        if (m->store.kinds[l] == RECOMPUTE_SELECTIVE) attention_2d_distribute_finish(&m->attention);
        model_attention_backward(m, p, dp, adds, unit, &t);
        trace_compute("layer backward", l, began);
        zero_grads_done(&m->zero, unit);
    }
    bool adds; // not needed: the embedding's backward pass adds, to zeros or to what is there (earlier micro-steps; tied: the head's)
    op_embedding_backward(zero_grads(&m->zero, UNIT_EMBEDDING, &adds), m->tokens, m->dx, m->rows, m->c.D, m->embedding_scratch);
    zero_grads_done(&m->zero, UNIT_EMBEDDING);
    if (m->zero.last_micro) zero_grads_finish(&m->zero);
}

// ---- one step's worth ----

// Copies what the caller has read for micro-step `micro` (batch_*) from the host to the device: tokens, with `labels` these, and where
// documents begin; without `documents` every sequence is one. With several segments, a row's position depends on them: also makes the
// RoPE tables.
static inline void model_take_batch(model *m, int64_t micro, bool labels, bool documents) {
    size_t bytes = sizeof(int32_t) * (size_t)m->rows;
    device_from_host(m->tokens, m->batch_tokens + micro * m->rows, bytes);
    if (labels) device_from_host(m->labels, m->batch_labels + micro * m->rows, bytes);
    int64_t n = m->setup.B * m->entries;
    m->documents = m->setup.packed && documents ? m->batch_documents + micro * n : NULL;
    if (m->documents != NULL) device_from_host(m->first, m->documents, sizeof(int64_t) * (size_t)n);
    if (m->batch_segments == NULL) return;
    m->segments = documents ? model_batch_segments(m, micro * m->setup.B) : NULL;
    for (int64_t b = 0; b < m->setup.B; b++) {
        sequence_shard shard = m->setup.shard;
        shard.segments = model_segments(m, b);
        model_fill_table(m, m->table + b * m->T * m->c.HS, &shard);
    }
}

typedef struct {
    double loss;   // mean over the valid labels of the step, all ranks
    double norm;   // of the whole gradient, before clipping
    int64_t valid; // labels counted
    bool spike;    // more than most_loss or most_norm: the update was left out
} step_result;

// One optimizer step on the batch that the caller has read (batch_*). Clips the gradient to norm `clip` (0: never). When loss or gradient
// norm is not finite, the update is skipped: the caller sees both and decides. It is skipped, too, for a spike, and when nothing is a
// label. Loss, norm and update are those of the whole batch on any grid. Collective.
static inline step_result model_step(model *m, adamw_args args, double clip) {
    int64_t accum = m->setup.grad_accum;
    step_result r = {0, 0, 0, false};
    for (int64_t i = 0; i < accum * m->rows; i++) r.valid += m->batch_labels[i] >= 0;
    comm_sum_int64(m->g->all, &r.valid, 1);
    float scale = r.valid > 0 ? (float)(1.0 / (double)r.valid) : 0; // of every micro-step's gradient
    progress_note note = progress_start("step");
    for (int64_t micro = 0; micro < accum; micro++) {
        model_take_batch(m, micro, true, true);
        model_forward(m, true);
        zero_begin_backward(&m->zero, micro == 0, micro == accum - 1);
        model_loss(m, m->losses + micro * m->rows, scale, true);
        model_backward(m);
        if (accum > 1) progress_show(&note, micro + 1, accum);
    }
    r.loss = op_sum_float(m->losses, accum * m->rows);
    comm_sum_double(m->g->all, &r.loss, 1);
    if (r.valid > 0) r.loss /= (double)r.valid;
    r.norm = zero_grad_norm(&m->zero);
    if (isnan(r.loss)) r.loss = NAN; // without the sign, which printf would show
    if (isnan(r.norm)) r.norm = NAN;
    r.spike = (m->most_loss > 0 && r.loss > m->most_loss) || (m->most_norm > 0 && r.norm > m->most_norm);
    if (r.valid == 0 || !isfinite(r.norm) || !isfinite(r.loss) || r.spike) return r;
    args.grad_scale = clip > 0 && r.norm > clip ? (float)(clip / r.norm) : 1;
    double began = trace_now();
    zero_update(&m->zero, args);
    trace_compute("update", -1, began);
    return r;
}

// A forward pass alone, of the batch's micro-step 0. losses: of this rank's tokens into m->losses. documents: as for model_take_batch.
// Logits of single rows: evaluation_logits. Collective.
static inline void model_evaluate(model *m, bool losses, bool documents) {
    model_take_batch(m, 0, losses, documents);
    model_forward(m, false);
    if (losses) model_loss(m, m->losses, 0, false);
    else zero_params(&m->zero, m->c.L + 1); // for evaluation_logits
}

#endif
