// The model states in safetensors files, under the names and shapes of Hugging Face: which tensors in a file make up a tensor of ours, and
// how each rank reads and writes its own pieces. Files hold whole, unsharded tensors, so they do not depend on the grid.
#ifndef MODEL_FILES_H
#define MODEL_FILES_H

#include "model.h"    // defines: model, zero_hybrid
#include "progress.h" // defines: progress_*
#include "safetensors.h"

// The kinds of model states. Parameters are the master weights where those exist (floatX holds them rounded).
typedef enum { VALUES_PARAMETERS, VALUES_M, VALUES_V, VALUES_KINDS } values_kind;
static inline const char *values_suffix(values_kind kind) { // of tensor names in files
    static const char *const suffixes[VALUES_KINDS] = {"", ".exp_avg", ".exp_avg_sq"};
    return suffixes[kind];
}

// A tensor in a file: a run of rows of a tensor of ours. "wqkv" is the rows of q_proj, then k_proj, then v_proj; "w_gate_up" those of
// gate_proj, then up_proj; every other tensor of ours is one tensor in a file.
typedef struct {
    char name[128];
    int dims;
    int64_t shape[2], count;
} file_part;
enum { FILE_PARTS = 3 };

// columns 0: a vector
static inline void file_part_set(file_part *p, values_kind kind, int layer, const char *name, int64_t rows, int64_t columns) {
    if (layer >= 0) snprintf(p->name, sizeof p->name, "model.layers.%d.%s.weight%s", layer, name, values_suffix(kind));
    else snprintf(p->name, sizeof p->name, "%s.weight%s", name, values_suffix(kind));
    p->dims = columns > 0 ? 2 : 1;
    p->shape[0] = rows;
    p->shape[1] = columns;
    p->count = columns > 0 ? rows * columns : rows;
}
// The file parts of a tensor of a unit, in order; returns how many, 1 to FILE_PARTS.
static inline int file_parts(const model *m, values_kind kind, int unit, int tensor, file_part *parts) {
    const model_config *c = &m->c;
    int64_t D = c->D, F = c->F, q = (int64_t)c->H * c->HS, kv = (int64_t)c->Hkv * c->HS;
    int layer = unit - 1;
    if (unit == UNIT_EMBEDDING) return file_part_set(parts, kind, -1, "model.embed_tokens", c->V, D), 1;
    if (unit == c->L + 1 && tensor == T_FINAL_NORM) return file_part_set(parts, kind, -1, "model.norm", D, 0), 1;
    if (unit == c->L + 1) return file_part_set(parts, kind, -1, "lm_head", c->V, D), 1;
    switch (tensor) {
    case T_NORM1: file_part_set(parts, kind, layer, "input_layernorm", D, 0); return 1;
    case T_WQKV:
        file_part_set(&parts[0], kind, layer, "self_attn.q_proj", q, D);
        file_part_set(&parts[1], kind, layer, "self_attn.k_proj", kv, D);
        file_part_set(&parts[2], kind, layer, "self_attn.v_proj", kv, D);
        return 3;
    case T_WO: file_part_set(parts, kind, layer, "self_attn.o_proj", D, q); return 1;
    case T_NORM2: file_part_set(parts, kind, layer, "post_attention_layernorm", D, 0); return 1;
    case T_W_GATE_UP:
        file_part_set(&parts[0], kind, layer, "mlp.gate_proj", F, D);
        file_part_set(&parts[1], kind, layer, "mlp.up_proj", F, D);
        return 2;
    case T_W_DOWN: file_part_set(parts, kind, layer, "mlp.down_proj", D, F); return 1;
    default: comm_abort("tensor %d of unit %d has no name in files", tensor, unit);
    }
}

// ---- a rank's values as floats on the host ----

enum { VALUES_CHUNK = 1 << 20 }; // floats copied at once: 4 MB, a large page for each of a few threads
#define VALUES_DEVICE_BYTES ((sizeof(float) + sizeof(floatX)) * (size_t)VALUES_CHUNK)
typedef struct {
    float *host;   // (VALUES_CHUNK)
    float *device; // (VALUES_CHUNK), for reading parameters where floatX is not float; behind it as many floatX; else NULL
} values_buffer;
static inline bool values_buffer_make(values_buffer *b, error_text *error) {
    bool cast = sizeof(floatX) != sizeof(float);
    b->host = HOST_NEW(float, VALUES_CHUNK);
    b->device = cast ? (float *)device_alloc(VALUES_DEVICE_BYTES) : NULL;
    if (!cast || b->device != NULL) return true;
    error_set(error, "not enough device memory: %zu bytes more are needed to read a model", VALUES_DEVICE_BYTES);
    error->number = ENOMEM;
    return false;
}
static inline void values_buffer_free(values_buffer *b) {
    free(b->host);
    if (b->device != NULL) device_free(b->device);
}

static inline size_t values_bytes(const zero_hybrid *z, values_kind kind) { // of a stored one
    return kind == VALUES_PARAMETERS ? sizeof(float) : z->moment_bytes;
}
// This rank's optimizer piece of a unit, (count / zo) of values_bytes; on the host when offloaded. NULL: parameters without master weights.
static inline void *values_piece(const zero_hybrid *z, values_kind kind, int unit) {
    if (kind == VALUES_M) return z->m[unit];
    if (kind == VALUES_V) return z->v[unit];
    return z->master[unit];
}
// Where element `at` of the unit is. It must lie in this rank's optimizer piece (parameters without master weights: in its parameter
// shard). The host may use the pointer if values_on_host.
static inline void *values_at(const zero_hybrid *z, values_kind kind, int unit, int64_t at) {
    int64_t count = z->units[unit].count;
    char *states = (char *)values_piece(z, kind, unit);
    if (states != NULL) return states + values_bytes(z, kind) * (size_t)(at - z->optim_piece * (count / z->zo));
    return (float *)z->params[unit] + (at - z->param_piece * (count / z->zp)); // without master weights floatX is float
}
static inline bool values_on_host(const zero_hybrid *z, values_kind kind, int unit) {
    return device_is_host() || (z->offload >= OFFLOAD_OPTIMIZER && values_piece(z, kind, unit) != NULL);
}
// Copies elements [at, at + n) of the unit, all in this rank's optimizer piece, to `to` (n of values_bytes, on the host): as stored.
static inline void values_get(const zero_hybrid *z, values_kind kind, int unit, int64_t at, int64_t n, void *to) {
    const void *from = values_at(z, kind, unit, at);
    size_t bytes = values_bytes(z, kind) * (size_t)n;
    if (values_on_host(z, kind, unit)) memcpy(to, from, bytes);
    else device_to_host(to, from, bytes);
}
// Sets elements [at, at + n) of the unit, all of one tensor and in this rank's optimizer piece, to `from` (n floats, on the host);
// bf16 moments: to nearest even.
static inline void values_put(const zero_hybrid *z, values_kind kind, int unit, int64_t at, int64_t n, const float *from) {
    void *to = values_at(z, kind, unit, at);
    size_t bytes = values_bytes(z, kind) * (size_t)n;
    bf16 *narrow = values_bytes(z, kind) == sizeof(bf16) ? HOST_NEW(bf16, n) : NULL;
    for (int64_t i = 0; narrow != NULL && i < n; i++) narrow[i].bits = bf16_of_float(from[i]);
    const void *stored = narrow != NULL ? (const void *)narrow : from;
    if (values_on_host(z, kind, unit)) memcpy(to, stored, bytes);
    else device_from_host(to, stored, bytes);
    free(narrow);
}
// Sets parameters [at, at + n) of the unit, all of one tensor and in this rank's optimizer piece, to buffer->host rounded to floatX,
// as they were in the step after which they were saved (z->rounding.step; 0 = a model that was not trained here: to nearest even).
static inline void values_set_parameters(zero_hybrid *z, int unit, int tensor, int64_t at, int64_t n, const values_buffer *buffer) {
    floatX *to = z->params[unit] + (at - z->param_piece * (z->units[unit].count / z->zp));
    bool offloaded = z->offload >= OFFLOAD_PARAMETERS && buffer->device != NULL;
    floatX *rounded = offloaded ? (floatX *)(void *)(buffer->device + VALUES_CHUNK) : to;
    device_from_host(buffer->device == NULL ? (void *)to : buffer->device, buffer->host, sizeof(float) * (size_t)n);
    rounding_rule how = zero_rounding(z, unit, tensor, at - z->units[unit].tensors[tensor].offset, z->rounding.step);
    how.stochastic = how.stochastic && how.step > 0;
    if (buffer->device != NULL) op_round(rounded, buffer->device, n, how);
    if (offloaded) device_to_host(to, rounded, sizeof(floatX) * (size_t)n);
}

// Zeroes elements [from, to) of the unit: the padding around tensors.
static inline void values_zero_parameters(zero_hybrid *z, int unit, int64_t from, int64_t to) {
    if (from >= to) return;
    floatX *params = z->params[unit] + (from - z->param_piece * (z->units[unit].count / z->zp));
    if (z->offload >= OFFLOAD_PARAMETERS) memset(params, 0, sizeof(floatX) * (size_t)(to - from));
    else device_zero(params, sizeof(floatX) * (size_t)(to - from));
}

// ---- checksums ----

// Checksum of elements [first, first + n) of a tensor: the sum, modulo 2^64, of a hash per (index, bits). The checksums of a tensor's parts
// add up to that of the tensor, however it is divided among ranks.
static inline uint64_t checksum_of(const float *x, int64_t first, int64_t n) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < n; i++) {
        uint64_t h = ((uint64_t)(first + i) * 0x9E3779B97F4A7C15ull) ^
                     ((uint64_t)bits_of_float(x[i]) * 0xD6E8FEB86659FD93ull + 0x632BE59BD9B4E019ull);
        h = (h ^ h >> 32) * 0xBF58476D1CE4E5B9ull;
        sum += h ^ h >> 29;
    }
    return sum;
}
// sums (count) = their sums over all ranks. Collective. Adds 32-bit halves, so that no addition overflows.
static inline void checksum_add_ranks(comm *all, uint64_t *sums, int64_t count) {
    int64_t *halves = HOST_NEW(int64_t, 2 * count);
    for (int64_t i = 0; i < count; i++) {
        halves[2 * i] = (int64_t)(sums[i] & 0xffffffffu);
        halves[2 * i + 1] = (int64_t)(sums[i] >> 32);
    }
    comm_sum_int64(all, halves, (int)(2 * count));
    for (int64_t i = 0; i < count; i++) sums[i] = (uint64_t)halves[2 * i] + ((uint64_t)halves[2 * i + 1] << 32);
    free(halves);
}
// How many checksums one kind of values has; that of (unit, tensor) is at unit * ZERO_MAX_TENSORS + tensor.
static inline int64_t model_checksums(const model *m) { return (int64_t)(m->c.L + 2) * ZERO_MAX_TENSORS; }

// ---- ranges of our tensors in files ----

// Writes elements [first, first + count) of a tensor of ours from from_values to its parts in the files, or reads them into to_values (the
// other one is NULL). Call after model_files_check or model_files_add.
static inline bool model_file_range(const model *m, const safetensors *files, values_kind kind, int unit, int tensor, int64_t first,
                                    int64_t count, const float *from_values, float *to_values, error_text *error) {
    file_part parts[FILE_PARTS];
    int n = file_parts(m, kind, unit, tensor, parts);
    int64_t part_first = 0, end = first + count;
    for (int i = 0; i < n; i++) {
        int64_t from = max_i64(first, part_first), to = min_i64(end, part_first + parts[i].count);
        if (from < to) {
            const safetensor *t = safetensors_find(files, parts[i].name);
            if (t == NULL) return error_set(error, "tensor \"%s\" is missing", parts[i].name);
            bool ok = from_values != NULL ? safetensors_write(files, t, from - part_first, to - from, from_values + (from - first), error)
                                          : safetensors_read(files, t, from - part_first, to - from, to_values + (from - first), error);
            if (!ok) return false;
        }
        part_first += parts[i].count;
    }
    return true;
}

// Copies this rank's shares of all units to m->saving, as they are after zero_settle.
static inline void model_copy_shares(model *m) {
    char *to = m->saving;
    for (int k = 0; k < VALUES_KINDS; k++)
        for (int u = 0; u < m->zero.unit_count; u++) {
            values_get(&m->zero, (values_kind)k, u, zero_share_begin(&m->zero, u), zero_share(&m->zero, u), to);
            to += values_bytes(&m->zero, (values_kind)k) * (size_t)zero_share(&m->zero, u);
        }
}

// Writes one kind of values; each rank writes its shares. copy: this kind's part of m->saving (the device is not used); NULL: writes
// the values as they are now, and needs no memory of the device, which may be full. sums (model_checksums; may be NULL): += the
// checksums of what this rank wrote.
static inline bool model_files_write(const model *m, const safetensors *files, values_kind kind, const char *copy, uint64_t *sums,
                                     error_text *error) {
    const zero_hybrid *z = &m->zero;
    size_t bytes = values_bytes(z, kind);
    char *stored = copy == NULL ? HOST_NEW(char, bytes * VALUES_CHUNK) : NULL;
    float *widened = bytes == sizeof(bf16) ? HOST_NEW(float, VALUES_CHUNK) : NULL;
    bool ok = true;
    progress_note note = progress_start(kind == VALUES_PARAMETERS ? "writing parameters" : "writing moments");
    for (int u = 0; u < z->unit_count; u++) {
        int64_t begin = zero_share_begin(z, u), share = zero_share(z, u), from, to;
        bool in_place = copy == NULL && values_on_host(z, kind, u);
        for (int t = 0; t < z->units[u].tensor_count; t++) {
            const zero_tensor *tensor = &z->units[u].tensors[t];
            if (!zero_span(tensor, begin, begin + share, &from, &to)) continue;
            for (int64_t at = from; ok && at < to; at += VALUES_CHUNK) {
                int64_t n = min_i64(VALUES_CHUNK, to - at);
                const void *from_here = copy != NULL ? copy + bytes * (size_t)(at - begin) : in_place ? values_at(z, kind, u, at) : stored;
                if (from_here == stored) values_get(z, kind, u, at, n, stored);
                for (int64_t i = 0; widened != NULL && i < n; i++) widened[i] = float_of_bf16(((const bf16 *)from_here)[i].bits);
                const float *values = widened != NULL ? widened : (const float *)from_here;
                if (sums != NULL) sums[u * ZERO_MAX_TENSORS + t] += checksum_of(values, at - tensor->offset, n);
                ok = model_file_range(m, files, kind, u, t, at - tensor->offset, n, values, NULL, error);
            }
        }
        if (copy != NULL) copy += bytes * (size_t)share; // beside training, which has progress of its own
        else progress_show(&note, u + 1, z->unit_count);
    }
    free(stored);
    free(widened);
    return ok;
}

// Reads one kind of values into this rank's optimizer pieces: a moment, or parameters, rounded to floatX, and their master weights. A rank
// reads nothing else: of parameters the caller has the rest spread (zero_spread_due). sums (model_checksums; may be NULL): += the checksums
// of what was read; each element counts on one rank only.
static inline bool model_files_read(model *m, const safetensors *files, values_kind kind, values_buffer *buffer, uint64_t *sums,
                                    error_text *error) {
    zero_hybrid *z = &m->zero;
    bool params = kind == VALUES_PARAMETERS;
    progress_note note = progress_start(params ? "reading parameters" : "reading moments");
    for (int u = 0; u < z->unit_count; u++) {
        int64_t piece = z->units[u].count / z->zo, begin = z->optim_piece * piece, filled = begin, from, to;
        bool in_place = values_on_host(z, kind, u) && values_bytes(z, kind) == sizeof(float) &&
                        (!params || sizeof(floatX) == sizeof(float));
        for (int t = 0; t < z->units[u].tensor_count; t++) {
            const zero_tensor *tensor = &z->units[u].tensors[t];
            if (!zero_span(tensor, begin, begin + piece, &from, &to)) continue;
            for (int64_t at = from; at < to; at += VALUES_CHUNK) {
                int64_t n = min_i64(VALUES_CHUNK, to - at);
                float *values = in_place ? (float *)values_at(z, kind, u, at) : buffer->host;
                if (!progress_goes_on(error) ||
                    !model_file_range(m, files, kind, u, t, at - tensor->offset, n, NULL, values, error))
                    return false;
                if (sums != NULL && z->rank < z->zo) sums[u * ZERO_MAX_TENSORS + t] += checksum_of(values, at - tensor->offset, n);
                if (in_place) continue;
                if (values_piece(z, kind, u) != NULL) values_put(z, kind, u, at, n, values);
                if (params) values_set_parameters(z, u, t, at, n, buffer);
            }
            if (params) values_zero_parameters(z, u, filled, from);
            filled = to;
        }
        if (params) values_zero_parameters(z, u, filled, begin + piece);
        progress_show(&note, u + 1, z->unit_count);
    }
    return true;
}

// ---- sets of files ----

// Whether a file holds this part in our shape. found: the tensor of its name; NULL if there is none.
static inline bool file_part_check(const file_part *p, const safetensor *found, const model_config *c, error_text *error) {
    if (found == NULL)
        return error_set(error, "tensor \"%s\" is missing; config.json says %d layers, %s",
                         p->name, c->L, c->tied ? "tied embeddings" : "untied embeddings");
    if (found->dims == p->dims && found->shape[0] == p->shape[0] && found->shape[1] == p->shape[1]) // sizes that do not exist are 0
        return true;
    if (p->dims == 1)
        return error_set(error, "tensor \"%s\" has the wrong shape (%d dimensions, the first %lld); config.json says (%lld)",
                         p->name, found->dims, (long long)found->shape[0], (long long)p->shape[0]);
    return error_set(error, "tensor \"%s\" has the wrong shape (%d dimensions, %lld, %lld); config.json says (%lld, %lld)",
                     p->name, found->dims, (long long)found->shape[0], (long long)found->shape[1], (long long)p->shape[0],
                     (long long)p->shape[1]);
}
// Whether the files hold all tensors of this kind, in our shapes. Beside parameters nothing else is legal, except an lm_head beside tied
// embeddings (hf_import compares them) and rotary_emb.inv_freq, which old folders contain and which follows from config.json.
static inline bool model_files_check(const model *m, const safetensors *files, values_kind kind, error_text *error) {
    bool *ours = HOST_NEW(bool, files->tensor_count), ok = true;
    for (int u = 0; u < m->c.L + 2; u++)
        for (int t = 0; t < m->units[u].tensor_count; t++) {
            file_part parts[FILE_PARTS];
            int n = file_parts(m, kind, u, t, parts);
            for (int i = 0; i < n && ok; i++) {
                const safetensor *found = safetensors_find(files, parts[i].name);
                ok = file_part_check(&parts[i], found, &m->c, error);
                if (ok) ours[found - files->tensors] = true;
            }
        }
    for (int64_t i = 0; i < files->tensor_count && kind == VALUES_PARAMETERS && ok; i++) {
        const char *name = files->tensors[i].name, *rotary = ".rotary_emb.inv_freq";
        size_t n = strlen(name), tail = strlen(rotary);
        bool legal = ours[i] || strcmp(name, "lm_head.weight") == 0 || (n > tail && strcmp(name + n - tail, rotary) == 0);
        if (!legal) ok = error_set(error, "tensor \"%s\" is unknown in a Llama of %d layers", printable(name).text, m->c.L);
    }
    free(ours);
    return ok;
}

// Adds the tensors of one kind to files, to be written in `dtype`, or in the dtype that they have in `like` (may be NULL).
static inline void model_files_add(const model *m, safetensors *files, values_kind kind, safetensors_dtype dtype, const safetensors *like) {
    for (int u = 0; u < m->c.L + 2; u++)
        for (int t = 0; t < m->units[u].tensor_count; t++) {
            file_part parts[FILE_PARTS];
            int n = file_parts(m, kind, u, t, parts);
            for (int i = 0; i < n; i++) {
                const safetensor *found = like != NULL ? safetensors_find(like, parts[i].name) : NULL;
                safetensors_add(files, parts[i].name, found != NULL ? found->dtype : dtype, parts[i].dims, parts[i].shape);
            }
        }
}

#endif
