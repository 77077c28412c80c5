// Reads the golden files of dev/make_goldens.py (the format stands at the top of that script): a small Llama of Hugging Face
// transformers with its tokens, labels, loss, logits and gradients, all fp32. Little-endian machines only, like the files.
#ifndef GOLDEN_H
#define GOLDEN_H

#include "../common.h"

enum { GOLDEN_ROPE_PLAIN = 0, GOLDEN_ROPE_LLAMA3 = 1, GOLDEN_ROPE_LINEAR = 2, GOLDEN_ROPE_YARN = 3 };

typedef struct {
    int L, D, H, Hkv, HS, F, V;
    bool tied;
    int rope_kind;
    double rms_eps, rope_theta;
    double rope_factor;              // all but plain
    double rope_low, rope_high;      // llama3 only
    double rope_beta_fast, rope_beta_slow; // yarn only
    int rope_original_max;           // llama3 and yarn
    int T, valid;                            // tokens, and labels that are not -100
    const int32_t *tokens;                   // (T)
    const int32_t *labels;                   // (T), already shifted
    const float *parameters;                 // parameter_count floats: embedding, layers (golden_layer_at), final norm, lm_head if not tied
    const float *gradients;                  // in the order of the parameters
    int64_t parameter_count;
    double loss;
    const float *logits; // (T, V)
    void *memory;        // all pointers above point in here
    error_text error;    // why golden_load returned false
} golden;

typedef struct {
    const float *norm1;     // (D)
    const float *wqkv;      // ((H + 2 Hkv) HS, D): rows of q, then k, then v
    const float *wo;        // (D, H HS)
    const float *norm2;     // (D)
    const float *w_gate_up; // (2F, D): rows of gate, then up
    const float *w_down;    // (D, F)
} golden_layer;

static inline int64_t golden_layer_count(const golden *g) {
    int64_t D = g->D, heads = (int64_t)g->H + 2 * g->Hkv;
    return D + heads * g->HS * D + D * g->H * g->HS + D + 2 * (int64_t)g->F * D + D * g->F;
}
static inline const float *golden_embedding(const golden *g, const float *set) { // (V, D); set: g->parameters or g->gradients
    (void)g;
    return set;
}
static inline golden_layer golden_layer_at(const golden *g, const float *set, int layer) {
    int64_t D = g->D, heads = (int64_t)g->H + 2 * g->Hkv;
    golden_layer l;
    l.norm1 = set + (int64_t)g->V * D + layer * golden_layer_count(g);
    l.wqkv = l.norm1 + D;
    l.wo = l.wqkv + heads * g->HS * D;
    l.norm2 = l.wo + D * g->H * g->HS;
    l.w_gate_up = l.norm2 + D;
    l.w_down = l.w_gate_up + 2 * (int64_t)g->F * D;
    return l;
}
static inline const float *golden_final_norm(const golden *g, const float *set) { // (D)
    return set + (int64_t)g->V * g->D + g->L * golden_layer_count(g);
}
static inline const float *golden_lm_head(const golden *g, const float *set) { // (V, D); tied: NULL
    return g->tied ? NULL : golden_final_norm(g, set) + g->D;
}

static inline void golden_free(golden *g) {
    free(g->memory);
    memset(g, 0, sizeof *g);
}

// Checks the header, sizes against the file's length, tokens and labels. The file has been read to `bytes` bytes at g->memory.
static inline bool golden_parse(golden *g, int64_t bytes) {
    enum { HEADER = 8 + 16 * 4 + 8 * 8 };
    const char *at = (const char *)g->memory;
    int32_t i[16];
    double d[8];
    if (bytes < HEADER || memcmp(at, "LLGOLD01", 8) != 0) return error_set(&g->error, "not a golden file (magic LLGOLD01)");
    memcpy(i, at + 8, sizeof i);
    memcpy(d, at + 8 + sizeof i, sizeof d);
    for (int k = 0; k < 7; k++) { // with these bounds no product below leaves int64
        if (i[k] < 1 || i[k] > 4096) return error_set(&g->error, "size %d of the header is %d; legal: 1 to 4096", k, i[k]);
    }
    g->L = i[0]; g->D = i[1]; g->H = i[2]; g->Hkv = i[3]; g->HS = i[4]; g->F = i[5]; g->V = i[6];
    g->tied = i[7] == 1;
    g->rope_kind = i[8];
    g->rope_original_max = i[9];
    g->T = i[10];
    g->valid = i[11];
    g->rms_eps = d[0];
    g->rope_theta = d[1];
    g->rope_factor = d[2];
    g->rope_low = d[3];
    g->rope_high = d[4];
    g->rope_beta_fast = d[5];
    g->rope_beta_slow = d[6];
    if (g->H % g->Hkv != 0 || g->HS % 2 != 0) {
        return error_set(&g->error, "H %d, Hkv %d, HS %d: H must be a multiple of Hkv and HS even", g->H, g->Hkv, g->HS);
    }
    if (i[7] < 0 || i[7] > 1 || i[8] < GOLDEN_ROPE_PLAIN || i[8] > GOLDEN_ROPE_YARN || g->T < 1 || g->T > 4096 || g->valid < 1) {
        return error_set(&g->error, "header: tied %d, rope kind %d, T %d, valid labels %d", i[7], i[8], g->T, g->valid);
    }
    bool scaled_ok = g->rope_kind == GOLDEN_ROPE_PLAIN || g->rope_factor > 1;
    if (g->rope_kind == GOLDEN_ROPE_LLAMA3)
        scaled_ok = scaled_ok && g->rope_low > 0 && g->rope_high > g->rope_low && g->rope_original_max > 0;
    if (g->rope_kind == GOLDEN_ROPE_YARN)
        scaled_ok = scaled_ok && g->rope_beta_slow > 0 && g->rope_beta_fast > g->rope_beta_slow && g->rope_original_max > 0;
    if (!(g->rms_eps > 0) || !(g->rope_theta > 1) || !scaled_ok) {
        return error_set(&g->error, "header: rms_norm_eps or a rope parameter is out of range");
    }
    g->parameter_count = (int64_t)g->V * g->D * (g->tied ? 1 : 2) + g->L * golden_layer_count(g) + g->D;
    int64_t expected = HEADER + 2 * 4 * (int64_t)g->T + 2 * 4 * g->parameter_count + 8 + 4 * (int64_t)g->T * g->V;
    if (bytes != expected) return error_set(&g->error, "%lld bytes; the header asks for %lld", (long long)bytes, (long long)expected);

    at += HEADER;
    g->tokens = (const int32_t *)(const void *)at;
    g->labels = g->tokens + g->T;
    g->parameters = (const float *)(const void *)(g->labels + g->T);
    const char *loss_at = (const char *)(g->parameters + g->parameter_count);
    memcpy(&g->loss, loss_at, sizeof g->loss); // may lie at an odd multiple of 4
    g->logits = (const float *)(const void *)(loss_at + sizeof g->loss);
    g->gradients = g->logits + (int64_t)g->T * g->V;

    int valid = 0;
    for (int t = 0; t < g->T; t++) {
        bool ignored = g->labels[t] == -100;
        if (g->tokens[t] < 0 || g->tokens[t] >= g->V || (!ignored && (g->labels[t] < 0 || g->labels[t] >= g->V))) {
            return error_set(&g->error, "token %d or label %d at %d is outside the vocabulary of %d", g->tokens[t], g->labels[t], t, g->V);
        }
        valid += !ignored;
    }
    if (valid != g->valid) return error_set(&g->error, "%d valid labels; the header says %d", valid, g->valid);
    if (!(fabs(g->loss) < 1e30)) return error_set(&g->error, "the loss is not finite");
    return true;
}

// Reads the whole file. false: g->error says why and nothing is to be freed; true: the caller calls golden_free.
static inline bool golden_load(const char *path, golden *g) {
    memset(g, 0, sizeof *g);
    FILE *file = fopen(path, "rb");
    if (file == NULL) return error_set(&g->error, "cannot open %s", path);
    long bytes = -1;
    if (fseek(file, 0, SEEK_END) == 0) bytes = ftell(file);
    if (bytes < 0 || fseek(file, 0, SEEK_SET) != 0) {
        fclose(file);
        return error_set(&g->error, "cannot read %s", path);
    }
    g->memory = host_alloc((size_t)bytes);
    bool whole = fread(g->memory, 1, (size_t)bytes, file) == (size_t)bytes;
    fclose(file);
    if (whole && golden_parse(g, bytes)) return true;
    error_text why = g->error;
    golden_free(g);
    return error_set(&g->error, "%s: %s", path, whole ? why.text : "shorter than it said");
}

#endif
