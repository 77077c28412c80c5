// What an evaluation measures besides the mean loss: loss by position in the sequence, and needles in a haystack.
//
// Needle in a haystack: NEEDLE_KEY + NEEDLE_VALUE random tokens are put at a depth into a sample of the validation text, and again at its
// end. A model that uses its context predicts the value there, as an induction head does (Olsson et al. 2022: match what stood before, copy
// what came after). No generation is needed: each token of the value must be the arg max, given the true tokens before it. A guess is right
// once in V. The test says whether tokens that far back are reached, not whether the text in between is understood.
#ifndef EVALUATION_H
#define EVALUATION_H

#include "data_sources.h" // defines: DATA_SOURCES_MAX, hash_mix
#include "metrics.h" // defines: json_add, log_line
#include "model.h"

// ---- loss by position: buckets [0, 1K), [1K, 8K), [8K, 64K), ... ----

enum { POSITION_BUCKETS = 12, POSITION_FIRST = 1024, POSITION_FACTOR = 8 };
typedef struct {
    double loss[POSITION_BUCKETS]; // sums of token losses
    double tokens[POSITION_BUCKETS];
} loss_by_position;

static inline int position_bucket(int64_t position) {
    int bucket = 0;
    for (int64_t end = POSITION_FIRST; position >= end && bucket + 1 < POSITION_BUCKETS; end *= POSITION_FACTOR) bucket++;
    return bucket;
}
static inline void position_text(char *text, size_t size, int64_t position) {
    if (position > 0 && position % 1048576 == 0) snprintf(text, size, "%lldM", (long long)(position / 1048576));
    else if (position > 0 && position % 1024 == 0) snprintf(text, size, "%lldK", (long long)(position / 1024));
    else snprintf(text, size, "%lld", (long long)position);
}
// "8K-64K"; the last bucket of a sequence ends at its length S.
static inline void position_bucket_name(char *text, size_t size, int bucket, int64_t S) {
    char from[24], to[24];
    int64_t begin = 0, end = POSITION_FIRST;
    for (int i = 0; i < bucket; i++) {
        begin = end;
        end *= POSITION_FACTOR;
    }
    position_text(from, sizeof from, begin);
    position_text(to, sizeof to, min_i64(end, S));
    snprintf(text, size, "%s-%s", from, to);
}
// Adds this rank's rows of one sequence: labels, losses (T) on the host. documents (T): where in the sequence each row's document begins
// (dataloader_read_packed); the row's position counts from there. NULL: the sequence is one document.
static inline void loss_by_position_add(loss_by_position *sums, const sequence_shard *shard, const int64_t *documents,
                                        const int32_t *labels, const float *losses) {
    for (int64_t t = 0; t < shard->T; t++) {
        if (labels[t] < 0) continue;
        int bucket = position_bucket(sequence_shard_position(shard, t) - (documents != NULL ? documents[t] : 0));
        sums->loss[bucket] += (double)losses[t];
        sums->tokens[bucket]++;
    }
}
// Tokens at all positions, and the mean of their losses.
static inline double loss_by_position_tokens(const loss_by_position *sums) {
    double tokens = 0;
    for (int i = 0; i < POSITION_BUCKETS; i++) tokens += sums->tokens[i];
    return tokens;
}
static inline double evaluation_ratio(double sum, double count) {
    return count > 0 && !isnan(sum) ? sum / count : NAN; // printf would show a NaN's sign
}
static inline double loss_by_position_mean(const loss_by_position *sums) {
    double loss = 0;
    for (int i = 0; i < POSITION_BUCKETS; i++) loss += sums->loss[i];
    return evaluation_ratio(loss, loss_by_position_tokens(sums));
}

// ---- logits of single rows ----

// Logits (V), on the host, of one local row of the last model_evaluate. Not collective: the head's parameters are still gathered.
static inline void evaluation_logits(model *m, int64_t row, float *logits) {
    int64_t V = m->c.V, D = m->c.D;
    // Of two rows, this one and its neighbour: cuBLAS 13.5.1 to 13.6.0 (CUDA 13.3) may refuse a product of one row (its release notes).
    int64_t n = min_i64(2, m->loss_tile), first = max_i64(0, row + 1 - n);
    const floatX *norm = zero_params(&m->zero, m->c.L + 1) + model_offset(m, m->c.L + 1, T_FINAL_NORM);
    op_rmsnorm_forward(m->xn, m->rstd, m->x_last + first * D, norm, n, D, m->c.rms_eps);
    op_linear_forward(m->logits, m->xn, model_output_weight(m), NULL, n, D, V);
    device_to_host(logits, m->logits + (row - first) * V, sizeof(floatX) * (size_t)V);
    if (sizeof(floatX) == sizeof(float)) return;
    for (int64_t i = V - 1; i >= 0; i--) { // in place, from the end
        uint16_t half;
        memcpy(&half, (const char *)logits + 2 * i, 2);
        logits[i] = float_of_bf16(half);
    }
}
static inline int32_t evaluation_argmax(const float *logits, int64_t V) { // the first of equals
    int32_t best = 0;
    for (int64_t i = 1; i < V; i++)
        if (logits[i] > logits[best]) best = (int32_t)i;
    return best;
}

// ---- needles ----

enum { NEEDLE_KEY = 4, NEEDLE_VALUE = 4, NEEDLE_DEPTHS = 5 };
typedef struct {
    double right[NEEDLE_DEPTHS], loss[NEEDLE_DEPTHS], tokens[NEEDLE_DEPTHS]; // sums over the values' tokens
} needle_scores;

// Puts needle `number` of the run, drawn from (seed, number) over the whole vocabulary, into this rank's rows of one sequence: tokens,
// labels (T). Depth 0 is its start, after its first token, which models use as a resting place of attention (Xiao et al. 2023);
// NEEDLE_DEPTHS - 1 is right before the question, the needle's copy at the end. All labels are ignored but those of the copy's value.
static inline void needle_place(const sequence_shard *shard, int64_t V, uint64_t seed, int64_t number, int depth, int32_t *tokens,
                                int32_t *labels) {
    int64_t length = NEEDLE_KEY + NEEDLE_VALUE, question = shard->S - length;
    int64_t place = 1 + (shard->S - 1 - 2 * length) * depth / (NEEDLE_DEPTHS - 1);
    int32_t needle[NEEDLE_KEY + NEEDLE_VALUE];
    for (int64_t i = 0; i < length; i++)
        needle[i] = (int32_t)(hash_mix(hash_mix(seed + 0x6E6565646C65ull) + (uint64_t)(number * length + i)) % (uint64_t)V);
    for (int64_t t = 0; t < shard->T; t++) {
        int64_t position = sequence_shard_position(shard, t), next = position + 1 - question; // the label's index in the needle
        labels[t] = next >= NEEDLE_KEY && next < length ? needle[next] : LABEL_IGNORED;
        if (position >= place && position < place + length) tokens[t] = needle[position - place];
        if (position >= question && position < shard->S) tokens[t] = needle[position - question];
    }
}
// Adds this rank's rows of one sequence of the last model_evaluate, which begins at local row `row`: labels, losses (T) on the
// host; logits (V): scratch.
static inline void needle_scores_add(needle_scores *scores, model *m, int depth, int64_t row, const int32_t *labels, const float *losses,
                                     float *logits) {
    for (int64_t t = 0; t < m->T; t++) {
        if (labels[t] < 0) continue;
        evaluation_logits(m, row + t, logits);
        scores->right[depth] += evaluation_argmax(logits, m->c.V) == labels[t];
        scores->loss[depth] += (double)losses[t];
        scores->tokens[depth]++;
    }
}

// ---- one evaluation: print and log ----

typedef struct {
    int64_t step, steps, S;
    int sets;
    const char *names[DATA_SOURCES_MAX]; // of the validation sets; "": the only one has none
    loss_by_position losses[DATA_SOURCES_MAX];
    bool has_needles;
    needle_scores needles;
} evaluation_report;

static inline int evaluation_buckets(const evaluation_report *r) { return 1 + position_bucket(r->S - 1); } // those that S tokens reach

// Whether the loss of every validation set that holds labels is a number.
static inline bool evaluation_finite(const evaluation_report *r) {
    for (int i = 0; i < r->sets; i++)
        if (loss_by_position_tokens(&r->losses[i]) > 0 && !isfinite(loss_by_position_mean(&r->losses[i]))) return false;
    return true;
}

static inline void evaluation_print(const evaluation_report *r) {
    char at[64], bucket[64];
    snprintf(at, sizeof at, "eval %6lld/%lld |", (long long)r->step, (long long)r->steps);
    for (int i = 0; i < r->sets; i++) {
        const loss_by_position *l = &r->losses[i];
        const char *blank = r->names[i][0] != '\0' ? " " : "";
        double tokens = loss_by_position_tokens(l);
        if (tokens == 0)
            printf("%s val loss%s%s: no label in the samples that are evaluated (loss masks, document boundaries)\n",
                   at, blank, r->names[i]);
        else printf("%s val loss%s%s %8.4f of %.0f tokens\n", at, blank, r->names[i], loss_by_position_mean(l), tokens);
        if (tokens == 0 || evaluation_buckets(r) == 1) continue; // says no more than the mean
        printf("%s val loss%s%s by position", at, blank, r->names[i]);
        for (int b = 0, shown = 0; b < evaluation_buckets(r); b++) {
            if (l->tokens[b] == 0) continue; // no document is that long
            position_bucket_name(bucket, sizeof bucket, b, r->S);
            printf("%s %s %.4f", shown++ > 0 ? "," : "", bucket, evaluation_ratio(l->loss[b], l->tokens[b]));
        }
        printf("\n");
    }
    if (r->has_needles) {
        const needle_scores *n = &r->needles;
        printf("%s needles found (loss) at depth", at);
        for (int d = 0; d < NEEDLE_DEPTHS; d++)
            printf("%s %d%% %.3f (%.4f)", d > 0 ? "," : "", 100 * d / (NEEDLE_DEPTHS - 1), evaluation_ratio(n->right[d], n->tokens[d]),
                   evaluation_ratio(n->loss[d], n->tokens[d]));
        printf("\n");
    }
}

// Writes one JSON line: "val_loss", "val_tokens" and "val_loss_by_position" are those of the one set without a name, or objects
// with the sets' names as keys.
static inline void evaluation_log(FILE *log, const evaluation_report *r) {
    static const char *const keys[3] = {"val_loss", "val_tokens", "val_loss_by_position"};
    char key[64];
    bool named = r->names[0][0] != '\0', by_position = evaluation_buckets(r) > 1;
    cJSON *json = cJSON_CreateObject(), *sets[3];
    json_add(json, "step", (double)r->step);
    for (int k = 0; k < 2 + by_position; k++) sets[k] = named ? cJSON_AddObjectToObject(json, keys[k]) : json;
    for (int i = 0; i < r->sets; i++) {
        const loss_by_position *l = &r->losses[i];
        json_add(sets[0], named ? r->names[i] : keys[0], loss_by_position_mean(l));
        json_add(sets[1], named ? r->names[i] : keys[1], loss_by_position_tokens(l));
        cJSON *buckets = by_position ? cJSON_AddObjectToObject(sets[2], named ? r->names[i] : keys[2]) : NULL;
        for (int b = 0; b < evaluation_buckets(r) && by_position; b++) {
            position_bucket_name(key, sizeof key, b, r->S);
            if (l->tokens[b] > 0) json_add(buckets, key, l->loss[b] / l->tokens[b]);
        }
    }
    cJSON *accuracy = r->has_needles ? cJSON_AddObjectToObject(json, "needle_accuracy") : NULL;
    cJSON *loss = r->has_needles ? cJSON_AddObjectToObject(json, "needle_loss") : NULL;
    for (int d = 0; d < NEEDLE_DEPTHS && r->has_needles; d++) {
        snprintf(key, sizeof key, "%d%%", 100 * d / (NEEDLE_DEPTHS - 1));
        json_add(accuracy, key, evaluation_ratio(r->needles.right[d], r->needles.tokens[d]));
        json_add(loss, key, evaluation_ratio(r->needles.loss[d], r->needles.tokens[d]));
    }
    log_line(log, json);
}

#endif
