// What a run reports: FLOPs by a named convention, the step line, JSON lines, tables at start-up.
#ifndef METRICS_H
#define METRICS_H

#include "arena.h"      // defines: memory categories
#include "checkpoint.cuh" // defines: recompute_kind
#include "config.h"     // defines: model_config
#include "device/comm.h" // defines: comm_counters, COMM_KINDS

// FLOPs of a token in a layer's wqkv and wo, and in its gate_up; a multiply-add counts 2.
static inline double flops_projections_per_token(const model_config *c) { return 2.0 * c->D * c->HS * (2 * c->H + 2 * c->Hkv); }
static inline double flops_gate_up_per_token(const model_config *c) { return 2.0 * c->D * 2 * c->F; }
// FLOPs of a token's matrix products: every projection and the head. The embedding is a look-up and counts nothing.
static inline double flops_matrices_per_token(const model_config *c) {
    return c->L * (flops_projections_per_token(c) + flops_gate_up_per_token(c) + 2.0 * c->F * c->D) + 2.0 * c->D * c->V;
}
// FLOPs of a token's causal attention in one layer (scores, and the weighted sum of values), counted half: it sees S/2 keys on average.
static inline double flops_attention_per_token(const model_config *c, int64_t S) { return 2.0 * (double)S * c->H * c->HS; }

// Model FLOPs of a training token: forward once, backward twice that, recompute not counted, causal attention counted half.
static inline double flops_model_per_token(const model_config *c, int64_t S) {
    return 3 * (flops_matrices_per_token(c) + c->L * flops_attention_per_token(c, S));
}

// Hardware FLOPs of a training token: what is really computed. Attention's backward pass recomputes the scores (2.5 x forward, as in cuDNN
// and on the CPU device; our own CUDA kernels compute more, which is not counted), and each layer recomputes what its kind says: selective
// wqkv, wo and gate_up; full the same and the attention. gate_up_kept: layers that keep all keep gate_up.
static inline double flops_hardware_per_token(const model_config *c, int64_t S, const recompute_kind *kinds, bool gate_up_kept) {
    double attention = flops_attention_per_token(c, S);
    double total = 3 * flops_matrices_per_token(c) + c->L * 3.5 * attention;
    for (int l = 0; l < c->L; l++) {
        bool again = kinds[l] != RECOMPUTE_NONE;
        if (again) total += flops_projections_per_token(c);
        if (again || !gate_up_kept) total += flops_gate_up_per_token(c);
        if (kinds[l] == RECOMPUTE_FULL) total += attention;
    }
    return total;
}

// Seconds that ranks computed, that is, did not wait for transfers: a rank that is slower than the others makes them wait.
typedef struct {
    double mean, most;
    int slowest; // the rank with the most
} rank_times;
// seconds: this rank's. Collective.
static inline rank_times rank_times_of(comm *all, double seconds) {
    double sum = seconds, most = seconds;
    comm_sum_double(all, &sum, 1);
    comm_max_double(all, &most, 1);
    double slowest = seconds == most ? -(double)comm_rank(all) : -INFINITY; // of several the first
    comm_max_double(all, &slowest, 1);
    return (rank_times){sum / comm_size(all), most, (int)-slowest};
}

typedef struct {
    int64_t step, steps; // 1, 2, ... of steps
    double loss, norm, lr, seconds;
    int64_t tokens, labels;   // of this step over all ranks
    int64_t samples;          // of this data, since its start
    double tgs;          // tokens per second and rank
    double mfu, hfu;     // fractions of peak; < 0: not known
    size_t memory;       // bytes of device memory of this rank's arena
    double memory_used;  // bytes that this rank's memory has grown by since before the arenas, device and host
    double predicted_seconds;
    int64_t predicted_sent; // bytes of a rank, all kinds but COMM_CONTROL
    double eta_seconds;
    comm_counters sent[COMM_KINDS];
    rank_times computed;
    bool spike; // the update was left out
} step_report;

// step    12/1000 | loss 10.8249 | norm 3.2100 | lr 3.00e-04 | 512.3 ms | TGS 8123 | MFU 54.3% | mem 71.2 GiB | eta 0:12:31
static inline void step_print(const step_report *r) {
    char mfu[16];
    snprintf(mfu, sizeof mfu, r->mfu < 0 ? "  n/a" : "%5.1f%%", 100 * r->mfu);
    printf("step %5lld/%lld | loss %8.4f | norm %8.4f | lr %.2e | %8.1f ms | TGS %7.0f | MFU %s | mem %9s | eta %s%s\n", (long long)r->step,
           (long long)r->steps, r->loss, r->norm, r->lr, 1e3 * r->seconds, r->tgs, mfu, bytes_text((double)r->memory).text,
           duration_text(r->eta_seconds).text, r->spike ? " | a spike: no update" : "");
}

static inline int64_t step_sent(const step_report *r) { // bytes of a rank, all kinds but COMM_CONTROL
    int64_t sent = 0;
    for (int k = 0; k < COMM_CONTROL; k++) sent += r->sent[k].bytes_sent;
    return sent;
}
// Prints predictions beside measurements, once a run. seconds: measured, the median of the first steps; planned: bytes of both arenas;
// packed: the rings send less than predicted.
static inline void prediction_print(const step_report *r, double seconds, double planned, const char *machines, bool packed) {
    printf("predicted for %s: %.1f ms a step, measured %.1f | memory %s, measured %s | sent by a rank %s%s a step, measured %s\n", machines,
           1e3 * r->predicted_seconds, 1e3 * seconds, bytes_text(planned).text, bytes_text(r->memory_used).text, packed ? "at most " : "",
           bytes_text((double)r->predicted_sent).text, bytes_text((double)step_sent(r)).text);
}

// Adds a number to a JSON object, which has no NaN and no infinity. Counts have all digits.
static inline void json_add(cJSON *json, const char *key, double value) {
    char text[64];
    bool count = value == floor(value) && fabs(value) < 0x1p53;
    snprintf(text, sizeof text, !isfinite(value) ? "null" : count ? "%.0f" : "%.9g", value);
    cJSON_AddRawToObject(json, key, text);
}
static inline void json_add_ms(cJSON *json, const char *key, double seconds) {
    char text[64];
    snprintf(text, sizeof text, "%.3f", 1e3 * seconds);
    cJSON_AddRawToObject(json, key, text);
}
// Writes a line of the log, and deletes `json`. Where that fails, errno says why, and of a file nothing of the line stays: later ones may
// find room again, and each must be one of its own.
static inline void log_line(FILE *log, cJSON *json) {
    char *text = cJSON_PrintUnformatted(json);
    struct stat before;
    bool file = fstat(fileno(log), &before) == 0 && S_ISREG(before.st_mode), written = fprintf(log, "%s\n", text) > 0;
    free(text);
    cJSON_Delete(json);
    if (fflush(log) == 0 && written) return;
    int number = errno;
    if (file && ftruncate(fileno(log), before.st_size) != 0) fputc('\n', log); // then it has an end
    errno = number;
}
static inline void step_log(FILE *log, const step_report *r) {
    cJSON *json = cJSON_CreateObject();
    json_add(json, "step", (double)r->step);
    json_add(json, "loss", r->loss);
    json_add(json, "grad_norm", r->norm);
    json_add(json, "lr", r->lr);
    if (r->spike) cJSON_AddTrueToObject(json, "spike");
    json_add(json, "step_ms", 1e3 * r->seconds);
    json_add(json, "tokens", (double)r->tokens);
    json_add(json, "labels", (double)r->labels);
    json_add(json, "samples", (double)r->samples);
    json_add(json, "tgs", r->tgs);
    json_add(json, "mfu", r->mfu < 0 ? NAN : r->mfu);
    json_add(json, "hfu", r->hfu < 0 ? NAN : r->hfu);
    json_add(json, "predicted_ms", 1e3 * r->predicted_seconds);
    json_add(json, "mem_used_bytes", r->memory_used);
    json_add(json, "mem_bytes", (double)r->memory);
    json_add(json, "predicted_comm_bytes", (double)r->predicted_sent);
    cJSON *sent = cJSON_AddObjectToObject(json, "comm_bytes"), *exposed = cJSON_AddObjectToObject(json, "exposed_ms");
    for (int k = 0; k < COMM_KINDS; k++) {
        json_add(sent, comm_kind_name((comm_kind)k), (double)r->sent[k].bytes_sent);
        json_add_ms(exposed, comm_kind_name((comm_kind)k), r->sent[k].wait_seconds);
    }
    cJSON *compute = cJSON_AddObjectToObject(json, "compute_ms");
    json_add_ms(compute, "mean", r->computed.mean);
    json_add_ms(compute, "slowest", r->computed.most);
    json_add(compute, "rank", r->computed.slowest);
    log_line(log, json);
}

// The memory of a rank by category; the same table for a run and a dry run.
static inline void memory_print(const arena *device, const arena *host) {
    printf("memory of a rank          device        host\n");
    for (int c = 0; c < MEM_CATEGORIES; c++) {
        if (device->by_category[c] == 0 && host->by_category[c] == 0) continue;
        printf("  %-18s %12s %11s\n", memory_category_name((memory_category)c), bytes_text((double)device->by_category[c]).text,
               bytes_text((double)host->by_category[c]).text);
    }
    printf("  %-18s %12s %11s   (memory that several buffers share counts once)\n", "in all", bytes_text((double)device->peak).text,
           bytes_text((double)host->peak).text);
}

#endif
