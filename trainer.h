// A run: what it holds, and what its steps need besides the model: saving, data, evaluation, samples, log, trace and prints.
#ifndef TRAINER_H
#define TRAINER_H

#include "data_sources.h" // defines: data_sources_*, dataloader_*
#include "evaluation.h" // defines: loss_by_position_*, needle_*, evaluation_*
#include "metrics.h"    // defines: step_report, step_print, memory_print, flops_*
#include "model.h"      // defines: model, model_evaluate, step_result
#include "options.h"    // defines: options, options_print
#include "planner.h"    // defines: plan_predict_seconds, plan_predict_sent, cluster
#include "progress.h"   // defines: progress_*
#include "sample.h"     // defines: sample_*
#include "training_state.h" // defines: state_*, training_progress

enum { PREDICTED_STEPS = 4 }; // steps measured before the predictions are printed beside what was measured

typedef struct {
    const options *o;
    const char *folder; // the Hugging Face folder of --model; NULL: a preset
    hf_source source;   // of states and exports: what they take from it
    grid g;
    model m;
    arena device, host;
    data_sources train, val; // count 0: not given
    sample_job sample;       // --sample-every
    FILE *log;                // --log, on rank 0
    training_progress done;   // steps of this run and of those it resumes; samples: of this data
    state_store states;       // --out
    int64_t saved_step;       // of the state that was resumed or saved last
    bool stopped;             // by a signal
    bool save_failed;         // the last state was not saved
    bool report_failed;       // --log or --trace of some rank was not written
    bool overflows;           // a loss of the last evaluation is not finite
    int log_error;            // errno of the first line that could not be logged; 0: none
    // What is measured, and what it is compared with.
    cluster machines;         // that predictions are for
    double peak_flops;        // of rank 0; 0: not known
    size_t memory_before;     // device_memory_used before the arena
    int64_t first_step;       // steps that were done before this run
    double started;           // device_seconds before the first step
    double predicted_seconds; // of a step
    int64_t predicted_sent;   // bytes of a rank in a step
    int64_t attended;         // the S by which attention's FLOPs are counted: data_attended of this step's samples
    double first_seconds[PREDICTED_STEPS]; // of the first steps of this run
    double waited[COMM_KINDS]; // seconds that this rank waited for transfers
    double computed;          // seconds that this rank did not wait
    int64_t spikes;           // steps of this run that changed no parameter (spikes.h)
    bool warned;              // of a step without labels
} trainer;

// ---- errors ----

// Ends this rank in the middle of a run, after it has printed why. Collective. Not by exit: it takes libraries apart, and NCCL's
// communicators, which are not freed here, may then crash and hide the status (NCCL issue 1013).
NO_RETURN static inline void end_early(int status) {
    comm_finalize();
    fflush(NULL);
    _exit(status);
}
// Ends every rank when any rank holds an error; rank 0 says which. Status 2, or 1 where another attempt may succeed; 0 where a signal ends
// the run before training. Collective.
static inline void stop_on_error(error_text *error) {
    if (comm_agree(comm_world(), error)) return;
    bool stopped = error->number == ERROR_STOPPED, first_rank = comm_rank(comm_world()) == 0;
    if (first_rank && stopped)
        printf("stopped by a signal before training; the same command with --resume begins it, or continues from the last state\n");
    if (first_rank && !stopped) fprintf(stderr, "error: %s\n", error->text);
    end_early(stopped ? EXIT_OK : error_may_pass(error) ? EXIT_FAILED : EXIT_USER_ERROR);
}

// ---- saving ----

static inline const hf_source *source_of(const trainer *t) { return t->source.folder != NULL ? &t->source : NULL; }

// SIGTERM and SIGUSR1, while they are heeded: the run finishes the step in progress, saves the state and ends. Once it is known that a run
// saves nothing, it no longer heeds them: they end it as any program, also if they have come already.
static inline void on_stop_signal(int number) { stop_signal = number; }
static inline void heed_signals(bool heed) {
    signal(SIGTERM, heed ? on_stop_signal : SIG_DFL);
    signal(SIGUSR1, heed ? on_stop_signal : SIG_DFL);
    if (!heed && stop_signal != 0) raise((int)stop_signal);
}
// Whether any rank has been told to stop. Collective.
static inline bool stop_agreed(const trainer *t) {
    int64_t stops = stop_signal != 0;
    comm_sum_int64(t->g.all, &stops, 1);
    return stops > 0;
}

// After each line of the log: says once, while the run goes on, why it could not be written.
static inline void log_check(trainer *t) {
    if (t->log == NULL || ferror(t->log) == 0 || t->log_error != 0) return;
    t->log_error = errno;
    fprintf(stderr, "warning: --log %s: cannot be written any more: %s\n", t->o->log, strerror(t->log_error));
}

// Advances the save in progress, if there is one; with `wait` completes it. When a save fails, training continues: only the last save
// decides the exit status. Collective.
static inline void advance_save(trainer *t, bool wait) {
    if (t->states.stage == SAVE_NONE) return;
    error_text why;
    t->save_failed = !state_save_advance(&t->states, wait, &why);
    if (t->states.stage != SAVE_NONE) return;
    if (!t->save_failed) t->saved_step = t->states.progress.step;
    if (t->g.rank != 0) return;
    double waited = t->states.wait_seconds, written = t->states.write_seconds;
    long long step = (long long)t->states.progress.step;
    if (t->save_failed) fprintf(stderr, "warning: the state of step %lld was not saved: %s\n", step, why.text);
    else printf("saved %5lld/%lld | %s | training waited %.3f s, written in %.3f s\n", step, (long long)t->o->steps,
                state_path(t->o->out, "", step).text, waited, written);
    if (t->log == NULL) return;
    cJSON *json = cJSON_CreateObject();
    json_add(json, "step", (double)step);
    cJSON_AddBoolToObject(json, "saved", !t->save_failed);
    json_add_ms(json, "save_wait_ms", waited);
    json_add_ms(json, "save_write_ms", written);
    log_line(t->log, json);
    log_check(t);
}
// Starts saving the model as it is now, which is the state of `progress`. Collective.
static inline void start_save(trainer *t, const training_progress *progress) {
    advance_save(t, true);
    state_save_start(&t->states, &t->m, progress);
}
// Before a run with --out ends early: completes the save in progress, and saves what is not saved yet. Collective.
static inline void save_before_end(trainer *t, const training_progress *progress) {
    if (t->o->out == NULL) return;
    advance_save(t, true);
    if (t->saved_step == progress->step) return;
    start_save(t, progress);
    advance_save(t, true);
}
// After reading data: as stop_on_error, but a slow disk is waited for, and the state is saved first.
static inline void stop_training_on_error(trainer *t, error_text *error) {
    if (comm_agree_on_files(t->g.all, error)) return;
    save_before_end(t, &t->done);
    stop_on_error(error);
}
// Between two pieces of long work: advances the save in progress. Returns whether any rank has been told to stop. Collective.
static inline bool save_and_ask_stop(trainer *t) {
    advance_save(t, false);
    return stop_agreed(t);
}

// ---- data ----

// Sequences of a step over all ranks.
static inline int64_t step_sequences(const trainer *t) { return t->g.shape.dp * t->m.setup.B * t->m.setup.grad_accum; }

// The documents of sequence s of a step.
static inline int64_t *documents_of(const trainer *t, int64_t s) { return t->m.batch_documents + s * t->m.entries; }
// Reads one sample into the rows of sequence b of micro-step a.
static inline bool read_sample(trainer *t, dataloader *data, int64_t sample, int64_t a, int64_t b, error_text *error) {
    int64_t sequence = a * t->m.setup.B + b;
    int32_t *tokens = t->m.batch_tokens + sequence * t->m.T, *labels = t->m.batch_labels + sequence * t->m.T;
    if (!t->m.setup.packed) return dataloader_read(data, sample, &t->m.setup.shard, tokens, labels, error);
    return dataloader_read_packed(data, sample, &t->m.setup.shard, options_document(t->o), tokens, labels, documents_of(t, sequence),
                                  model_batch_segments(&t->m, sequence), error);
}
// Fills sequence b with ignored rows, in one document: the last batch of an evaluation can be short.
static inline void read_nothing(trainer *t, int64_t b) {
    segment_list list = {.shard = &t->m.setup.shard, .list = model_batch_segments(&t->m, b)};
    if (list.list != NULL) segment_list_add(&list, 0, t->o->seq_len);
    if (t->m.setup.packed) memset(documents_of(t, b), 0, sizeof(int64_t) * (size_t)t->m.entries); // the rings' transfers depend on it
    for (int64_t i = b * t->m.T; i < (b + 1) * t->m.T; i++) {
        t->m.batch_tokens[i] = 0;
        t->m.batch_labels[i] = LABEL_IGNORED;
    }
}

// --check-data: reads all of it, each rank its part (where machines have copies, parts of each). Training data without a label is refused.
// Collective.
static inline void check_data(trainer *t, error_text *error) {
    double began = device_seconds();
    int sources = t->train.count + t->val.count;
    int64_t piece = (int64_t)1 << 20, total = data_sources_tokens(&t->train) + data_sources_tokens(&t->val), done = 0;
    int64_t *learnt = HOST_NEW(int64_t, sources);
    int32_t *tokens = HOST_NEW(int32_t, piece);
    progress_note note = progress_start("checking data");
    for (int i = 0; i < sources; i++) {
        dataloader *data = i < t->train.count ? &t->train.sources[i].data : &t->val.sources[i - t->train.count].data;
        int64_t begin = data->total * t->g.rank / t->g.ranks, end = data->total * (t->g.rank + 1) / t->g.ranks;
        for (int64_t at = begin; at < end && error->text[0] == '\0' && progress_goes_on(error); at += piece) {
            int64_t n = min_i64(piece, end - at);
            if (dataloader_read_tokens(data, at, n, tokens, error) && data->masks > 0) dataloader_mask_labels(data, at, n, tokens, error);
            for (int64_t k = 0; k < n; k++) learnt[i] += tokens[k] != LABEL_IGNORED;
            progress_show(&note, done += n, total / t->g.ranks);
        }
    }
    free(tokens);
    comm_agree_on_files(comm_world(), error);
    stop_on_error(error);
    comm_sum_int64(comm_world(), learnt, sources);
    for (int i = 0; i < t->train.count; i++)
        if (learnt[i] == 0)
            error_set(error, "--train-data: %s: none of its tokens is a label, its loss masks are 0 everywhere",
                      data_source_label(&t->train.sources[i]));
    free(learnt);
    stop_on_error(error);
    if (t->g.rank == 0) printf("checked     %lld tokens of data (%.3f s)\n", (long long)total, device_seconds() - began);
}

typedef struct {
    int64_t counter, seen; // where a sample stands in the step's; data_sources_seen
} sample_work;
static inline int sample_work_compare(const void *a, const void *b) { // most work first
    const sample_work *x = (const sample_work *)a, *y = (const sample_work *)b;
    if (x->seen != y->seen) return x->seen > y->seen ? -1 : 1;
    return x->counter < y->counter ? -1 : 1;
}
// Sorts the samples of the next step by the work that their documents are, so that dp ranks, to which they are dealt out, wait little for
// each other. Each rank reads and counts some of the samples. The caller frees the list (step_sequences). Collective: ends every rank when
// one cannot read.
static inline sample_work *sort_samples(trainer *t, error_text *error) {
    int64_t n = step_sequences(t), most = 1 << 20, sum = 0, *seen = HOST_NEW(int64_t, n);
    sample_work *sorted = HOST_NEW(sample_work, n);
    for (int64_t i = t->g.rank; i < n; i += t->g.ranks)
        if (!data_sources_seen(&t->train, t->done.samples + i, options_document(t->o), &seen[i], error)) break;
    stop_training_on_error(t, error);
    for (int64_t i = 0; i < n; i += most) comm_sum_int64(t->g.all, seen + i, (int)min_i64(most, n - i));
    for (int64_t i = 0; i < n; i++) {
        sorted[i] = (sample_work){i, seen[i]};
        sum += seen[i];
    }
    t->attended = data_attended(sum, n * t->o->seq_len);
    qsort(sorted, (size_t)n, sizeof *sorted, sample_work_compare);
    free(seen);
    return sorted;
}
// Reads the data of the next step, all of its micro-steps. Collective: ends every rank when one cannot read.
static inline void read_step(trainer *t, error_text *error) {
    int64_t dp = t->g.shape.dp, B = t->m.setup.B, A = t->m.setup.grad_accum;
    t->attended = t->o->seq_len;
    sample_work *sorted = t->m.setup.packed ? sort_samples(t, error) : NULL;
    for (int64_t a = 0; a < A; a++) {
        for (int64_t b = 0; b < B; b++) {
            int64_t counter = dataloader_counter(a, dp, t->g.place.d, B, b), sample;
            if (sorted != NULL) counter = sorted[counter].counter;
            int source = data_sources_at(&t->train, t->done.samples + counter, &sample);
            if (!read_sample(t, &t->train.sources[source].data, sample, a, b, error)) break;
        }
    }
    free(sorted);
    stop_training_on_error(t, error);
}
// Notes where no token of the step is in the upper half of the vocabulary: they may come from another tokenizer. Rank 0, after read_step.
static inline void note_tokens(const trainer *t) {
    enum { ENOUGH = 16384, SMALL = 1024 }; // tokens to judge by; a vocabulary of bytes has a half that ASCII never uses
    int64_t n = t->m.setup.grad_accum * t->m.rows;
    int32_t most = 0;
    for (int64_t i = 0; i < n; i++)
        if (t->m.batch_tokens[i] > most) most = t->m.batch_tokens[i];
    if (n >= ENOUGH && t->m.c.V > SMALL && most < t->m.c.V / 2)
        fprintf(stderr, "note: of %lld tokens none is above %d, of a vocabulary of %d: do they come from the model's tokenizer?\n",
                (long long)n, (int)most, t->m.c.V);
}

// ---- evaluation and samples ----

// Evaluates the batch that was read, or ends the run where `error` says why it was not. documents: as for model_evaluate. losses (rows), on
// the host. Collective.
static inline void evaluate_batch(trainer *t, bool documents, float *losses, error_text *error) {
    stop_training_on_error(t, error);
    model_evaluate(&t->m, true, documents);
    device_to_host(losses, t->m.losses, sizeof(float) * (size_t)t->m.rows);
}
// How many samples of a validation set an evaluation takes.
static inline int64_t evaluation_samples(const trainer *t, const dataloader *data) {
    int64_t asked = t->o->eval_tokens > 0 ? ceil_div(t->o->eval_tokens, t->o->seq_len) : t->o->eval_steps * step_sequences(t);
    return min_i64(dataloader_samples(data), asked);
}
// Adds up token losses over the first samples of a validation set: the same samples on every grid (with --eval-steps: with the same global
// batch). Ends early when a signal stops the run, as do needles. Collective.
static inline void evaluate_set(trainer *t, dataloader *data, loss_by_position *sums, float *losses, error_text *error) {
    int64_t dp = t->g.shape.dp, B = t->m.setup.B, T = t->m.T;
    int64_t samples = evaluation_samples(t, data);
    progress_note note = progress_start("evaluation");
    for (int64_t first = 0; first < samples && !save_and_ask_stop(t); first += dp * B) {
        for (int64_t b = 0, n = first + t->g.place.d * B; b < B; b++, n++) {
            if (n >= samples) read_nothing(t, b);
            else if (!read_sample(t, data, dataloader_sample_at(data, n), 0, b, error)) break;
        }
        evaluate_batch(t, true, losses, error);
        for (int64_t b = 0; b < B; b++) {
            const int64_t *documents = t->m.setup.packed ? documents_of(t, b) + t->m.setup.shard.h * T : NULL;
            sequence_shard shard = t->m.setup.shard;
            shard.segments = model_batch_segments(&t->m, b);
            loss_by_position_add(sums, &shard, documents, t->m.batch_labels + b * T, losses + b * T);
        }
        progress_show(&note, min_i64(samples, first + dp * B), samples);
    }
    comm_sum_double(t->g.all, sums->loss, POSITION_BUCKETS);
    comm_sum_double(t->g.all, sums->tokens, POSITION_BUCKETS);
}
// Scores --eval-needles needles at each depth, in the first samples of a validation set: needle n is at depth n % NEEDLE_DEPTHS.
// Collective.
static inline void evaluate_needles(trainer *t, dataloader *data, needle_scores *scores, float *losses, error_text *error) {
    int64_t dp = t->g.shape.dp, B = t->m.setup.B, T = t->m.T, needles = t->o->eval_needles * NEEDLE_DEPTHS;
    float *logits = HOST_NEW(float, t->m.c.V);
    progress_note note = progress_start("needles");
    for (int64_t first = 0; first < needles && !save_and_ask_stop(t); first += dp * B) {
        int64_t own = first + t->g.place.d * B;
        for (int64_t b = 0, n = own; b < B; b++, n++) {
            int64_t sample = n / NEEDLE_DEPTHS % dataloader_samples(data);
            int32_t *tokens = t->m.batch_tokens + b * T, *labels = t->m.batch_labels + b * T;
            if (n >= needles) read_nothing(t, b);
            else if (!dataloader_read(data, dataloader_sample_at(data, sample), &t->m.setup.shard, tokens, labels, error)) break;
            else needle_place(&t->m.setup.shard, t->m.c.V, (uint64_t)t->o->seed, n, (int)(n % NEEDLE_DEPTHS), tokens, labels);
        }
        evaluate_batch(t, false, losses, error); // a haystack is one document
        for (int64_t b = 0; b < B; b++)
            needle_scores_add(scores, &t->m, (int)((own + b) % NEEDLE_DEPTHS), b * T, t->m.batch_labels + b * T, losses + b * T, logits);
        progress_show(&note, min_i64(needles, first + dp * B), needles);
    }
    comm_sum_double(t->g.all, scores->right, NEEDLE_DEPTHS);
    comm_sum_double(t->g.all, scores->loss, NEEDLE_DEPTHS);
    comm_sum_double(t->g.all, scores->tokens, NEEDLE_DEPTHS);
    free(logits);
}
// Reads what the evaluation after the last step will, so that bad validation data is said before training. Collective.
static inline void check_evaluation(trainer *t, error_text *error) {
    for (int i = 0; i < t->val.count; i++) {
        dataloader *data = &t->val.sources[i].data;
        int64_t needles = i == 0 ? min_i64(dataloader_samples(data), t->o->eval_needles) : 0; // so many samples become haystacks
        int64_t samples = max_i64(evaluation_samples(t, data), needles);
        for (int64_t n = t->g.place.d; n < samples && error->text[0] == '\0' && progress_goes_on(error); n += t->g.shape.dp)
            read_sample(t, data, dataloader_sample_at(data, n), 0, 0, error);
    }
    stop_training_on_error(t, error);
}
// Evaluates all validation sets and --eval-needles; prints and logs the results, unless a signal stops the run meanwhile. False: a loss
// is not finite. Collective.
static inline bool evaluate(trainer *t, error_text *error) {
    evaluation_report r;
    memset(&r, 0, sizeof r);
    r.step = t->done.step;
    r.steps = max_i64(t->o->steps, r.step);
    r.S = t->o->seq_len;
    r.sets = t->val.count;
    r.has_needles = t->o->eval_needles > 0;
    float *losses = HOST_NEW(float, t->m.rows);
    for (int i = 0; i < r.sets; i++) {
        r.names[i] = t->val.sources[i].name;
        evaluate_set(t, &t->val.sources[i].data, &r.losses[i], losses, error);
    }
    if (r.has_needles) evaluate_needles(t, &t->val.sources[0].data, &r.needles, losses, error);
    free(losses);
    if (stop_agreed(t)) {
        if (t->g.rank == 0) printf("eval %6lld/%lld | ended by a signal\n", (long long)r.step, (long long)r.steps);
        return true;
    }
    if (t->g.rank == 0) evaluation_print(&r);
    if (t->log != NULL) evaluation_log(t->log, &r);
    log_check(t);
    return evaluation_finite(&r);
}

// Draws --sample-tokens tokens and prints them, unless a signal stops the run meanwhile. Collective.
static inline void sample(trainer *t) {
    sample_job *job = &t->sample;
    int64_t step = t->done.step, steps = max_i64(t->o->steps, step);
    progress_note note = progress_start("sample");
    for (int64_t n = job->prompt; n < job->prompt + job->count; n++) {
        if (save_and_ask_stop(t)) {
            if (t->g.rank == 0) printf("sample %4lld/%lld | ended by a signal\n", (long long)step, (long long)steps);
            return;
        }
        sample_draw(job, n, &t->m, t->o->sample_temperature, (uint64_t)(t->o->seed + step - 1));
        progress_show(&note, n + 1 - job->prompt, job->count);
    }
    if (t->g.rank == 0) sample_print(job, step, steps, t->log);
    log_check(t);
}

// ---- log and trace ----

// Writes what runs: the first line of each run in the log.
static inline void log_run(const trainer *t) {
    cJSON *json = cJSON_CreateObject(), *run = cJSON_AddObjectToObject(json, "run");
    cJSON_AddStringToObject(run, "version", TRAIN_LLAMA_VERSION);
    cJSON_AddStringToObject(run, "device", device_name());
    cJSON_AddNumberToObject(run, "ranks", t->g.ranks);
    cJSON_AddNumberToObject(run, "parameters", (double)config_parameters(&t->m.c));
    if (t->peak_flops > 0) cJSON_AddNumberToObject(run, "peak_tflops", 1e-12 * t->peak_flops);
    cJSON_AddNumberToObject(run, "steps_done", (double)t->done.step);
    cJSON_AddItemToObject(run, "options", options_json(t->o, NULL));
    log_line(t->log, json);
}
// Whether another run writes this file. What is no file, such as /dev/null, is for all.
static inline bool log_is_shared(FILE *log) {
    struct stat entry;
    if (fstat(fileno(log), &entry) != 0 || !S_ISREG(entry.st_mode)) return false;
    return flock(fileno(log), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}
// Sets *cut: whether the last line of a log has no end, as a run was cut off, or its disk was full. False with a message: it cannot be
// read.
static inline bool log_last_line(const char *path, bool *cut, error_text *error) {
    struct stat entry;
    *cut = false;
    if (stat(path, &entry) == 0 && !S_ISREG(entry.st_mode)) return true;
    FILE *f = fopen(path, "r");
    *cut = f != NULL && fseek(f, -1, SEEK_END) == 0 && fgetc(f) != '\n';
    bool ok = (f != NULL && ferror(f) == 0) || error_set_errno(error, "--log %s: cannot be read", path);
    if (f != NULL) fclose(f);
    return ok;
}
// Opens --log on rank 0. A run that trains from the beginning empties it, others append; no two write it at a time. Collective.
static inline void open_log(trainer *t, error_text *error) {
    bool cut;
    if (t->o->log != NULL && t->g.rank == 0) {
        t->log = fopen(t->o->log, "a");
        if (t->log == NULL) error_set_errno(error, "--log %s: cannot be written", t->o->log);
        else if (log_is_shared(t->log)) error_set(error, "--log %s: another run writes it", t->o->log);
        else if (t->done.step == 0 && t->o->steps > 0 && ftruncate(fileno(t->log), 0) != 0 && errno != EINVAL) // that: no file, but a pipe
            error_set_errno(error, "--log %s: cannot be emptied", t->o->log);
        else if (log_last_line(t->o->log, &cut, error)) {
            if (cut) fputc('\n', t->log);
            log_run(t);
            log_check(t);
        }
    }
    stop_on_error(error);
}
// Warns of a log or trace that cannot be written, such as on a full disk. That is no reason to lose the model: the run continues, and its
// exit status reports the failure. Collective.
static inline void report_failure(trainer *t, error_text *error) {
    if (comm_agree_on_files(t->g.all, error)) return;
    if (t->g.rank == 0) fprintf(stderr, "warning: %s\n", error->text);
    t->report_failed = true;
    error->text[0] = '\0';
}
static inline void close_log(trainer *t, error_text *error) {
    if (t->log != NULL) {
        if (fclose(t->log) == 0) errno = t->log_error; // each line is flushed on its own, and fclose does not report those that were lost
        if (errno != 0) error_set_errno(error, "--log %s: not all of it could be written", t->o->log);
        t->log = NULL;
    }
    report_failure(t, error);
}
static inline path_text trace_path(const trainer *t) {
    path_text p;
    snprintf(p.text, sizeof p.text, t->g.ranks > 1 ? "%s.rank%d" : "%s", t->o->trace, t->g.rank);
    return p;
}
static inline void write_trace(trainer *t, error_text *error) {
    trace_write(trace_path(t).text, t->g.rank, error);
    report_failure(t, error);
}

// ---- what is printed and logged ----

static inline void print_start(const trainer *t) {
    const options *o = t->o;
    const model_config *c = &t->m.c;
    char mfu_peak[64], windows[32];
    options_print(o, stdout);
    printf("device      %s\n", device_name());
    printf("repeatable  %s\n", device_determinism());
    snprintf(mfu_peak, sizeof mfu_peak, t->peak_flops > 0 ? "%.4g TFLOP/s a rank" : "not known", t->peak_flops / 1e12);
    printf("peak        %s (%s; MFU: model FLOPs, causal attention counted half, recompute not counted)\n", mfu_peak,
           device_peak_flops() > 0 ? "data sheet" : t->peak_flops > 0 ? "GEMM rate measured at start" : "no data sheet, no GEMM rate");
    printf("model       %s: %.1f M parameters, L %d D %d H %d Hkv %d HS %d F %d V %d%s\n", c->name, 1e-6 * (double)config_parameters(c),
           c->L, c->D, c->H, c->Hkv, c->HS, c->F, c->V, c->tied ? ", tied" : "");
    snprintf(windows, sizeof windows, "windows of %d%s", t->g.shape.w, grid_weave(&t->g.shape) > 1 ? ", interleaved" : "");
    printf("grid        %d rank%s = dp %d x hp %d x cp %d", t->g.ranks, plural(t->g.ranks), t->g.shape.dp, t->g.shape.hp, t->g.shape.cp);
    if (t->g.shape.cp > 1)
        printf(", %s", t->m.attention.ring.allgather ? "all-gather of KV" : grid_one_ring(&t->g.shape) ? "one ring" : windows);
    if (t->g.shape.hp > 1 && t->g.shape.cp > 1) printf(", %s", placement_name(t->g.shape.placement));
    printf("%s\n", t->m.setup.dkv_bf16 ? ", dKV sent as bf16" : "");
    printf("sequence    %lld tokens", (long long)o->seq_len);
    if (t->m.setup.shard.S_padded > o->seq_len) printf(" (%lld with padding)", (long long)t->m.setup.shard.S_padded);
    printf(", %lld on a rank; %lld sequence%s a step\n", (long long)t->m.T, (long long)step_sequences(t), plural(step_sequences(t)));
    printf("ZeRO        parameters / gradients / optimizer over %d / %d / %d rank%s\n", t->m.setup.zp, t->m.setup.zg, t->m.setup.zo,
           plural(t->m.setup.zo));
    printf("recompute   ");
    run_print_recompute(c, &t->m.setup);
    printf("tiles       MLP %lld rows, loss %lld rows\n", (long long)t->m.mlp_tile, (long long)t->m.loss_tile);
    data_sources_print(&t->train, t->done.samples + max_i64(0, o->steps - t->done.step) * step_sequences(t));
    for (int i = 0; i < t->val.count; i++) {
        const dataloader *data = &t->val.sources[i].data;
        printf("validation  %s: %lld tokens, %lld sample%s%s; evaluations take %lld\n", data_source_label(&t->val.sources[i]),
               (long long)data->total, (long long)dataloader_samples(data), plural(dataloader_samples(data)),
               data->masks > 0 ? ", with loss masks" : "", (long long)evaluation_samples(t, data));
    }
    if (t->m.setup.packed)
        printf("documents   %s with token %d; attention: %s; at document boundaries: %s\n", options_document(o).ends ? "end" : "begin",
               options_document(o).token, op_attention_engine(false), op_attention_engine(true));
    if (t->sample.count > 0) sample_print_start(&t->sample);
    memory_print(&t->device, &t->host);
}

// Growth of this rank's memory, in bytes, since before the arenas were allocated; the plan is both arenas.
static inline double memory_used(const trainer *t) { return (double)device_memory_used() - (double)t->memory_before; }
static inline double memory_planned(const trainer *t) { return (double)t->device.peak + (double)t->host.peak; }

// The median of n step times, without the first, a warm-up, unless it is the only one. Sorts them.
static inline double median_of_first(double *seconds, int64_t n) {
    int64_t from = n > 1 ? 1 : 0;
    for (int64_t i = from; i < n; i++)
        for (int64_t j = i; j > from && seconds[j] < seconds[j - 1]; j--) {
            double larger = seconds[j - 1];
            seconds[j - 1] = seconds[j];
            seconds[j] = larger;
        }
    return (seconds[from + (n - from - 1) / 2] + seconds[from + (n - from) / 2]) / 2;
}

// With packed documents, a dp rank whose samples are short documents waits for the gradients of one whose are long ones: at most for as
// long as a step without boundaries takes. The limit is twice what is predicted for that. Before the first step or evaluation. Collective.
static inline void allow_longer_waits(const trainer *t) {
    if (!t->m.setup.packed || t->g.shape.dp == 1) return;
    double before = comm_wait_at_least(0), seconds = ceil(2 * plan_predict_seconds(&t->m, &t->machines, t->o->seq_len));
    comm_broadcast(t->g.all, &seconds, sizeof seconds, 0); // machines may round differently
    if (comm_wait_at_least(seconds) > before && t->g.rank == 0)
        fprintf(stderr, "note: a transfer may wait %.0f s before the job ends, as a dp rank with long documents may take so much longer "
                        "than one with short ones (TRAIN_LLAMA_TIMEOUT sets the limit)\n", seconds);
}
// Before the first step, whose data has been read. Collective.
static inline void start_measuring(trainer *t) {
    t->first_step = t->done.step;
    t->started = device_seconds();
    t->predicted_seconds = plan_predict_seconds(&t->m, &t->machines, t->attended);
    t->predicted_sent = plan_predict_sent(&t->m);
    document_mark mark = options_document(t->o);
    if (t->m.setup.packed && t->attended == t->o->seq_len && t->g.rank == 0)
        fprintf(stderr, "note: token %d (--document-%s) is nowhere inside the samples of the first step: each sample is one document\n",
                (int)mark.token, mark.ends ? "end" : "begin");
    if (t->g.rank == 0 && t->predicted_seconds > PROGRESS_SECONDS)
        printf("step time   %s predicted for %s\n", duration_text(t->predicted_seconds).text, t->machines.name);
}
// What is reported of a step that took `seconds`.
static inline step_report step_report_make(const trainer *t, step_result result, double lr, double seconds) {
    const model_config *c = &t->m.c;
    bool known = t->peak_flops > 0;
    step_report r;
    memset(&r, 0, sizeof r);
    r.step = t->done.step;
    r.steps = t->o->steps;
    r.loss = result.valid > 0 ? result.loss : NAN; // null in the log
    r.norm = result.norm;
    r.spike = result.spike;
    r.lr = lr;
    r.seconds = seconds;
    r.tokens = step_sequences(t) * t->o->seq_len;
    r.samples = t->done.samples;
    r.labels = result.valid;
    r.tgs = (double)r.tokens / seconds / t->g.ranks;
    r.mfu = known ? r.tgs * flops_model_per_token(c, t->attended) / t->peak_flops : -1;
    r.hfu = known ? r.tgs * flops_hardware_per_token(c, t->attended, t->m.setup.kinds, t->m.keep_gate_up) / t->peak_flops : -1;
    r.memory = t->device.peak;
    r.memory_used = memory_used(t);
    r.predicted_seconds = t->predicted_seconds;
    r.predicted_sent = t->predicted_sent;
    r.eta_seconds = (device_seconds() - t->started) / (double)(r.step - t->first_step) * (double)(r.steps - r.step);
    for (int k = 0; k < COMM_KINDS; k++) r.sent[k] = comm_count((comm_kind)k);
    return r;
}
// After each step: prints its line, logs it, and after the first few steps prints the predictions beside what was measured. Collective.
static inline void report_step(trainer *t, step_result result, double lr, double seconds) {
    step_report r = step_report_make(t, result, lr, seconds);
    int64_t steps = r.step - t->first_step; // of this run
    bool first_rank = t->g.rank == 0;
    double computed = seconds; // as opposed to waited for transfers
    for (int k = 0; k < COMM_KINDS; k++) {
        t->waited[k] += r.sent[k].wait_seconds;
        computed -= r.sent[k].wait_seconds;
    }
    t->computed += computed;
    r.computed = rank_times_of(t->g.all, computed);
    t->spikes += r.spike;
    if (r.labels == 0 && first_rank && !t->warned)
        fprintf(stderr, "warning: step %lld: none of its tokens is a label (loss masks, document boundaries), so it has no loss and "
                        "changes no parameter\n", (long long)r.step);
    t->warned = t->warned || r.labels == 0;
    if (first_rank) step_print(&r);
    if (t->log != NULL) step_log(t->log, &r);
    log_check(t);
    if (steps > PREDICTED_STEPS) return;
    t->first_seconds[steps - 1] = seconds;
    if (!first_rank || (steps < PREDICTED_STEPS && r.step < r.steps)) return;
    char machines[sizeof t->machines.name + 64];
    const char *guess = t->o->cluster == NULL ? " (the default; --calibrate measures yours)" : "";
    snprintf(machines, sizeof machines, "%s%s", t->machines.name, guess);
    prediction_print(&r, median_of_first(t->first_seconds, steps), memory_planned(t), machines, t->m.setup.packed);
}
// After the last step of a run: blocks skipped, time that rank 0 waited for transfers and that all computed, memory beside its plan.
// Collective.
static inline void print_end(trainer *t) {
    int64_t blocks[2] = {t->m.attention.ring.blocks_skipped, t->m.attention.ring.blocks};
    if (t->m.setup.packed) comm_sum_int64(t->g.all, blocks, 2);
    double steps = (double)(t->done.step - t->first_step);
    rank_times computed = rank_times_of(t->g.all, t->computed);
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    comm_broadcast(t->g.all, host, sizeof host, computed.slowest);
    if (t->g.rank == 0 && steps == 0) printf("stopped by a signal before the first step\n");
    if (t->g.rank != 0 || steps == 0) return;
    if (t->m.setup.packed)
        printf("documents: %lld of %lld attention blocks had no visible keys and were skipped\n", (long long)blocks[0],
               (long long)blocks[1]);
    if (t->spikes > 0) printf("spikes: %lld of %.0f steps changed no parameter\n", (long long)t->spikes, steps);
    if (t->g.ranks > 1) {
        printf("waited for transfers, ms a step:");
        for (int k = 0; k < COMM_KINDS; k++)
            if (t->waited[k] > 0) printf("  %s %.1f", comm_kind_name((comm_kind)k), 1e3 * t->waited[k] / steps);
        printf("\ncomputed, ms a step: %.1f in the mean of all ranks, %.1f on rank %d (%s), the slowest\n", 1e3 * computed.mean / steps,
               1e3 * computed.most / steps, computed.slowest, host);
    }
    double used = memory_used(t), plan = memory_planned(t);
    printf("memory measured %s, planned %s (%.3f of the plan)\n", bytes_text(used).text, bytes_text(plan).text, used / plan);
}

#endif
