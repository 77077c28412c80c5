// train_llama: trains Llama-3 models on very long sequences. mpirun -np N ./train_llama --help
//
// This file reads like a table of contents: options -> grid -> memory -> data -> training loop -> finish.
//     attention_2d.cuh  double_ring.cuh   who attends to what, and which transfers run meanwhile
//     zero_hybrid.cuh   checkpoint.cuh    which model states and activations a rank keeps
//     model.h           the forward and backward pass as straight-line calls
//     dataloader.h      token files -> this rank's tokens and labels
//     device/           memory, operations and communication of the CPU and the CUDA device
#include "calibrate.h"  // defines: calibrate
#include "data_sources.h" // defines: data_sources_*, dataloader_*, sequence_shard
#include "evaluation.h" // defines: loss_by_position_*, needle_*, evaluation_*
#include "hf_folder.h"  // defines: hf_import, hf_export
#include "metrics.h"    // defines: step_report, step_print, memory_print, flops_*
#include "model.h"      // defines: model_*, model_run
#include "options.h"    // defines: options, options_*
#include "plan.h"       // defines: plan_show, plan_apply
#include "planning.h"   // defines: plan_memory, dry_run
#include "sample.h"     // defines: sample_*
#include "schedule.h"   // defines: learning_rate
#include "training_state.h" // defines: state_*, training_progress
#include "verify.h" // defines: verify
#include <signal.h>

// Ends every rank with status 2 when any rank holds an error; rank 0 says which. Collective.
static void stop_on_error(error_text *error) {
    if (comm_agree(comm_world(), error)) return;
    if (comm_rank(comm_world()) == 0) fprintf(stderr, "error: %s\n", error->text);
    comm_finalize();
    exit(EXIT_USER_ERROR);
}

typedef struct {
    const options *o;
    grid g;
    sequence_shard shard;
    model m;
    arena device, host;
    data_sources train, val; // count 0: not given
    sample_job sample;       // --sample-every
    int32_t *tokens, *labels; // (grad_accum, rows)
    int64_t *documents;       // (grad_accum, B, hp T + 2 cp), model.documents; NULL: --document-end none
    double peak_flops;        // of rank 0; 0: not known
    size_t memory_before;     // device_memory_used before the arena
    cluster machines;         // that predictions are for
    training_progress done;   // steps and samples, of this run and of those it resumes
    state_store states;       // --out
    bool stopped, save_failed, report_failed; // stopped by a signal; the last state was not saved; --log or --trace of some rank was not written
} trainer;

// SIGTERM and SIGUSR1 with --out: the run finishes the step in progress, saves the state and ends.
static volatile sig_atomic_t stop_signal;
static void on_stop_signal(int number) { stop_signal = number; }

// Advances the save in progress, if there is one; with `wait` completes it. When a save fails, training continues: only the last save decides the
// exit status. Collective.
static void advance_save(trainer *t, bool wait, FILE *log) {
    if (t->states.stage == SAVE_NONE) return;
    error_text why;
    t->save_failed = !state_save_advance(&t->states, wait, &why);
    if (t->states.stage != SAVE_NONE || t->g.rank != 0) return;
    double waited = t->states.wait_seconds, written = t->states.write_seconds;
    long long step = (long long)t->states.progress.step;
    if (t->save_failed) fprintf(stderr, "warning: the state of step %lld was not saved: %s\n", step, why.text);
    else printf("saved %5lld/%lld | %s/step-%08lld | training waited %.3f s, written in %.3f s\n", step, (long long)t->o->steps, t->o->out, step, waited, written);
    if (log != NULL) fprintf(log, "{\"step\":%lld,\"saved\":%s,\"save_wait_ms\":%.3f,\"save_write_ms\":%.3f}\n", step, t->save_failed ? "false" : "true", 1e3 * waited, 1e3 * written);
    fflush(stdout);
}
// As stop_on_error, but completes the save in progress first.
static void stop_training_on_error(trainer *t, error_text *error) {
    if (comm_agree(t->g.all, error)) return;
    advance_save(t, true, NULL);
    stop_on_error(error);
}

// Sequences of a step over all ranks.
static int64_t step_sequences(const trainer *t) { return t->g.shape.dp * t->m.run.B * t->m.run.grad_accum; }

// The documents of sequence s of a step.
static int64_t *documents_of(const trainer *t, int64_t s) { return t->documents + s * sequence_shard_entries(&t->shard); }
// Reads one sample into the rows of sequence b of micro-step a.
static bool read_sample(trainer *t, dataloader *data, int64_t sample, int64_t a, int64_t b, error_text *error) {
    int64_t sequence = a * t->m.run.B + b, at = sequence * t->shard.T;
    if (!dataloader_read(data, sample, &t->shard, t->tokens + at, t->labels + at, error)) return false;
    if (t->documents == NULL) return true;
    return dataloader_documents(data, sample, &t->shard, (int32_t)t->o->document_end, t->tokens + at, t->labels + at, documents_of(t, sequence), error);
}
// Fills sequence b with ignored rows: the last batch of an evaluation can be short.
static void read_nothing(trainer *t, int64_t b) {
    for (int64_t i = b * t->shard.T; i < (b + 1) * t->shard.T; i++) {
        t->tokens[i] = 0;
        t->labels[i] = LABEL_IGNORED;
    }
}

// Reads the data of the next step, all of its micro-steps. Collective: ends every rank when one cannot read.
static void read_step(trainer *t, error_text *error) {
    int64_t dp = t->g.shape.dp, B = t->m.run.B, A = t->m.run.grad_accum;
    for (int64_t a = 0; a < A; a++) {
        for (int64_t b = 0; b < B; b++) {
            int64_t sample;
            int source = data_sources_at(&t->train, t->done.samples + dataloader_counter(a, dp, t->g.place.d, B, b), &sample);
            if (!read_sample(t, &t->train.sources[source].data, sample, a, b, error)) break;
        }
    }
    stop_training_on_error(t, error);
}

// Evaluates the batch that was read: its losses go to losses (rows) on the host. Collective.
static void evaluate_batch(trainer *t, float *losses, error_text *error) {
    stop_training_on_error(t, error);
    model_evaluate(&t->m, t->tokens, t->labels);
    device_to_host(losses, t->m.losses, sizeof(float) * (size_t)t->m.rows);
}
// Adds up token losses over the first samples of a validation set: the same samples on every grid with the same global batch. Collective.
static void evaluate_set(trainer *t, dataloader *data, loss_by_position *sums, float *losses, error_text *error) {
    int64_t dp = t->g.shape.dp, B = t->m.run.B, T = t->shard.T;
    int64_t samples = min_i64(dataloader_samples(data), t->o->eval_steps * step_sequences(t));
    for (int64_t first = 0; first < samples; first += dp * B) {
        for (int64_t b = 0, n = first + t->g.place.d * B; b < B; b++, n++) {
            if (n >= samples) read_nothing(t, b);
            else if (!read_sample(t, data, dataloader_sample_at(data, n), 0, b, error)) break;
        }
        evaluate_batch(t, losses, error);
        for (int64_t b = 0; b < B; b++) {
            const int64_t *documents = t->documents != NULL ? documents_of(t, b) + t->shard.h * T : NULL;
            loss_by_position_add(sums, &t->shard, documents, t->labels + b * T, losses + b * T);
        }
    }
    comm_sum_double(t->g.all, sums->loss, POSITION_BUCKETS);
    comm_sum_double(t->g.all, sums->tokens, POSITION_BUCKETS);
}
// Scores --eval-needles needles at each depth, in the first samples of a validation set: needle n is at depth n % NEEDLE_DEPTHS. Collective.
static void evaluate_needles(trainer *t, dataloader *data, needle_scores *scores, float *losses, error_text *error) {
    int64_t dp = t->g.shape.dp, B = t->m.run.B, T = t->shard.T, needles = t->o->eval_needles * NEEDLE_DEPTHS;
    float *logits = HOST_NEW(float, t->m.c.V);
    t->m.documents = NULL; // a haystack is one document
    for (int64_t first = 0; first < needles; first += dp * B) {
        int64_t own = first + t->g.place.d * B;
        for (int64_t b = 0, n = own; b < B; b++, n++) {
            int64_t sample = n / NEEDLE_DEPTHS % dataloader_samples(data);
            if (n >= needles) read_nothing(t, b);
            else if (!read_sample(t, data, dataloader_sample_at(data, sample), 0, b, error)) break;
            else needle_place(&t->shard, t->m.c.V, (uint64_t)t->o->seed, n, (int)(n % NEEDLE_DEPTHS), t->tokens + b * T, t->labels + b * T);
        }
        evaluate_batch(t, losses, error);
        for (int64_t b = 0; b < B; b++) needle_scores_add(scores, &t->m, (int)((own + b) % NEEDLE_DEPTHS), b * T, t->labels + b * T, losses + b * T, logits);
    }
    t->m.documents = t->documents;
    comm_sum_double(t->g.all, scores->right, NEEDLE_DEPTHS);
    comm_sum_double(t->g.all, scores->loss, NEEDLE_DEPTHS);
    comm_sum_double(t->g.all, scores->tokens, NEEDLE_DEPTHS);
    free(logits);
}
// Evaluates all validation sets and --eval-needles; prints and logs the results. Collective.
static void evaluate(trainer *t, FILE *log, error_text *error) {
    evaluation_report r;
    memset(&r, 0, sizeof r);
    r.step = t->done.step;
    r.steps = t->o->steps;
    r.S = t->shard.S;
    r.sets = t->val.count;
    r.has_needles = t->o->eval_needles > 0;
    float *losses = HOST_NEW(float, t->m.rows);
    for (int i = 0; i < r.sets; i++) {
        r.names[i] = t->val.sources[i].name;
        evaluate_set(t, &t->val.sources[i].data, &r.losses[i], losses, error);
    }
    if (r.has_needles) evaluate_needles(t, &t->val.sources[0].data, &r.needles, losses, error);
    free(losses);
    if (t->g.rank == 0) evaluation_print(&r);
    if (log != NULL) evaluation_log(log, &r);
}

// The length of one document in which a token sees on average as many tokens as in this step: the S by which attention's FLOPs are counted.
// Collective.
static int64_t attended_length(const trainer *t) {
    if (t->documents == NULL) return t->shard.S;
    int64_t sums[2] = {0, 0}, T = t->shard.T, sequences = t->m.run.grad_accum * t->m.run.B; // tokens seen, tokens
    for (int64_t s = 0; s < sequences; s++)
        for (int64_t i = 0; i < T; i++) {
            int64_t position = sequence_shard_position(&t->shard, i);
            if (position >= t->shard.S) break; // padding
            sums[0] += position - documents_of(t, s)[t->shard.h * T + i] + 1;
            sums[1]++;
        }
    comm_sum_int64(t->g.all, sums, 2);
    return (2 * sums[0] - sums[1]) / sums[1];
}

static void print_start(const trainer *t, const model_config *c, const recompute_kind *kinds) {
    const options *o = t->o;
    int count[3] = {0, 0, 0};
    char mfu_peak[64], windows[32];
    for (int l = 0; l < c->L; l++) count[kinds[l]]++;
    options_print(o, stdout);
    printf("device      %s\n", device_name());
    printf("repeatable  %s\n", device_determinism());
    snprintf(mfu_peak, sizeof mfu_peak, t->peak_flops > 0 ? "%.4g TFLOP/s a rank" : "not known", t->peak_flops / 1e12);
    printf("peak        %s (%s; MFU: model FLOPs, causal attention counted half, recompute not counted)\n", mfu_peak,
           device_peak_flops() > 0 ? "data sheet" : "GEMM rate measured at start");
    printf("model       %s: %.1f M parameters, L %d D %d H %d Hkv %d HS %d F %d V %d%s\n", c->name, 1e-6 * (double)config_parameters(c), c->L, c->D,
           c->H, c->Hkv, c->HS, c->F, c->V, c->tied ? ", tied" : "");
    snprintf(windows, sizeof windows, "windows of %d", t->g.shape.w);
    printf("grid        %d ranks = dp %d x hp %d x cp %d, %s, %s%s\n", t->g.ranks, t->g.shape.dp, t->g.shape.hp, t->g.shape.cp,
           t->m.run.cp_allgather ? "all-gather of KV" : windows, t->g.shape.placement == PLACEMENT_HEAD_FIRST ? "head-first" : "context-first",
           t->m.run.dkv_bf16 ? ", dKV sent as bf16" : "");
    printf("sequence    %lld tokens (%lld with padding), %lld on a rank; %lld sequences a step\n", (long long)t->shard.S, (long long)t->shard.S_padded,
           (long long)t->shard.T, (long long)step_sequences(t));
    printf("ZeRO        parameters / gradients / optimizer over %d / %d / %d ranks\n", t->m.run.zp, t->m.run.zg, t->m.run.zo);
    printf("recompute   %d layers keep all, %d selective, %d full; %d offloaded\n", count[0], count[1], count[2], t->m.run.offload_layers);
    printf("tiles       MLP %lld rows, loss %lld rows\n", (long long)t->m.mlp_tile, (long long)t->m.loss_tile);
    data_sources_print(&t->train, o->steps * step_sequences(t));
    for (int i = 0; i < t->val.count; i++)
        printf("validation  %s: %lld samples%s\n", data_source_label(&t->val.sources[i]), (long long)dataloader_samples(&t->val.sources[i].data),
               t->val.sources[i].data.masks > 0 ? ", with loss masks" : "");
    if (t->documents != NULL)
        printf("documents   end with token %lld; attention: %s; at document boundaries: %s\n", (long long)o->document_end, op_attention_engine(false),
               op_attention_engine(true));
    if (t->sample.count > 0) sample_print_start(&t->sample);
    memory_print(stdout, &t->device, &t->host);
    fflush(stdout);
}

// Growth of this rank's memory, in bytes, since before the arenas were allocated; the plan is both arenas.
static double memory_used(const trainer *t) { return (double)device_memory_used() - (double)t->memory_before; }

enum { PREDICTED_STEPS = 4 }; // steps measured before the predictions are printed beside the measurements

// The median of n step times, without the first, a warm-up, unless it is the only one. Sorts them.
static double median_of_first(double *seconds, int n) {
    int from = n > 1 ? 1 : 0;
    for (int i = from; i < n; i++)
        for (int j = i; j > from && seconds[j] < seconds[j - 1]; j--) {
            double larger = seconds[j - 1];
            seconds[j - 1] = seconds[j];
            seconds[j] = larger;
        }
    return (seconds[from + (n - from - 1) / 2] + seconds[from + (n - from) / 2]) / 2;
}

// Measured memory beside the plan.
static void print_memory(const trainer *t) {
    char measured[32], planned[32];
    double plan = (double)t->device.peak + (double)t->host.peak, used = memory_used(t);
    format_bytes(measured, sizeof measured, used);
    format_bytes(planned, sizeof planned, plan);
    printf("memory measured %s, planned %s (%.3f of the plan)\n", measured, planned, used / plan);
}

// Time that rank 0 waited for transfers, per step and kind.
static void print_waits(const double *seconds, int64_t steps) {
    printf("waited for transfers, ms a step:");
    for (int k = 0; k < COMM_KINDS; k++)
        if (seconds[k] > 0) printf("  %s %.1f", comm_kind_name((comm_kind)k), 1e3 * seconds[k] / (double)steps);
    printf("\n");
}

// Whether any rank has been told to stop. Collective.
static bool stop_agreed(trainer *t) {
    int64_t stops = stop_signal != 0;
    comm_sum_int64(t->g.all, &stops, 1);
    return stops > 0;
}

// Opens --log on rank 0; NULL without it and on other ranks. A run that has steps behind it appends. Collective.
static FILE *open_log(const trainer *t, error_text *error) {
    FILE *log = NULL;
    if (t->o->log != NULL && t->g.rank == 0) {
        log = fopen(t->o->log, t->done.step > 0 ? "a" : "w");
        if (log == NULL) error_set(error, "--log %s: cannot be written", t->o->log);
    }
    stop_on_error(error);
    return log;
}
// Warns of a log or trace that cannot be written, such as on a full disk. That is no reason to lose the model: the run continues, and its exit
// status reports the failure. Collective.
static void report_failure(trainer *t, error_text *error) {
    if (comm_agree(t->g.all, error)) return;
    if (t->g.rank == 0) fprintf(stderr, "warning: %s\n", error->text);
    t->report_failed = true;
    error->text[0] = '\0';
}
static void close_log(trainer *t, FILE *log, error_text *error) {
    if (log != NULL) {
        bool ok = ferror(log) == 0; // each line is flushed on its own, and fclose does not report those that were lost
        if (fclose(log) != 0 || !ok) error_set(error, "--log %s: not all of it could be written", t->o->log);
    }
    report_failure(t, error);
}
static path_text trace_path(const trainer *t) {
    path_text p;
    snprintf(p.text, sizeof p.text, t->g.ranks > 1 ? "%s.rank%d" : "%s", t->o->trace, t->g.rank);
    return p;
}
// Checks, before the run, that --trace can be written at its end. Leaves no new file behind.
static void trace_check(const trainer *t, error_text *error) {
    path_text path = trace_path(t);
    bool there = path_exists(path.text);
    FILE *f = fopen(path.text, "a");
    if (f == NULL) error_set(error, "--trace %s: cannot be written: %s", path.text, strerror(errno));
    else fclose(f);
    if (f != NULL && !there) remove(path.text);
}
static void sample(trainer *t, FILE *log) {
    sample_draw(&t->sample, &t->m, &t->shard, t->o->sample_temperature, (uint64_t)(t->o->seed + t->done.step - 1), t->tokens, t->labels);
    if (t->g.rank == 0) sample_print(&t->sample, t->done.step, t->o->steps, log);
}

// The report of the step that has finished, except predictions and the time left, which the caller adds.
static step_report report_step(const trainer *t, step_result result, double lr, double seconds, int64_t attended) {
    const model_config *c = &t->m.c;
    step_report r;
    memset(&r, 0, sizeof r);
    r.step = t->done.step;
    r.steps = t->o->steps;
    r.loss = result.valid > 0 ? result.loss : NAN; // null in the log
    r.norm = result.norm;
    r.lr = lr;
    r.seconds = seconds;
    r.tokens = step_sequences(t) * t->o->seq_len;
    r.samples = t->done.samples;
    r.tgs = (double)r.tokens / seconds / t->g.ranks;
    bool known = t->peak_flops > 0;
    r.mfu = known ? r.tgs * flops_model_per_token(c, attended) / t->peak_flops : -1;
    r.hfu = known ? r.tgs * flops_hardware_per_token(c, attended, t->m.store.kinds, t->m.keep_gate_up) / t->peak_flops : -1;
    r.memory = t->device.peak;
    r.memory_used = memory_used(t);
    for (int k = 0; k < COMM_KINDS; k++) r.sent[k] = comm_count((comm_kind)k);
    return r;
}
// What is due after a step: saving a state, an evaluation, a sample, and ending the run when a signal asks for it. Collective.
static void after_step(trainer *t, FILE *log, error_text *error) {
    const options *o = t->o;
    int64_t step = t->done.step;
    bool last = step == o->steps, save = o->out != NULL && (last || (o->save_every > 0 && step % o->save_every == 0));
    advance_save(t, save, log);
    if (save) state_save_start(&t->states, &t->m, &t->done); // before an evaluation, where bad validation data ends the run
    if (save && last) advance_save(t, true, log);
    if (t->val.count > 0 && ((o->eval_every > 0 && step % o->eval_every == 0) || last)) evaluate(t, log, error);
    if (o->sample_every > 0 && (step % o->sample_every == 0 || last)) sample(t, log);
    t->stopped = o->out != NULL && stop_agreed(t) && !last;
    if (!t->stopped) return;
    advance_save(t, true, log);
    if (!save) state_save_start(&t->states, &t->m, &t->done);
    advance_save(t, true, log);
    if (t->g.rank == 0) printf("stopped by a signal after step %lld%s\n", (long long)step, t->save_failed ? "" : "; the same command with --resume continues the run");
}

static void train(trainer *t, error_text *error) {
    const options *o = t->o;
    bool first_rank = t->g.rank == 0, unlabelled = false;
    int64_t first_step = t->done.step;
    read_step(t, error); // before the log is opened: bad data leaves no file behind
    FILE *log = open_log(t, error);
    double started = device_seconds(), waited[COMM_KINDS], first_seconds[PREDICTED_STEPS];
    double predicted_seconds = plan_predict_seconds(&t->m, &t->machines, o->seq_len, attended_length(t));
    int64_t predicted_sent = plan_predict_sent(&t->m);
    int measured = 0; // of first_seconds
    memset(waited, 0, sizeof waited);
    adamw_args args;
    memset(&args, 0, sizeof args);
    args.beta1 = (float)o->beta1;
    args.beta2 = (float)o->beta2;
    args.eps = (float)o->eps;
    args.weight_decay = (float)o->weight_decay;
    for (int64_t step = first_step; step < o->steps && !t->stopped; step++) {
        double began = device_seconds();
        if (step > first_step) read_step(t, error);
        comm_count_reset();
        double lr = learning_rate(o, step);
        int64_t attended = attended_length(t);
        args.lr = (float)lr;
        args.step = step + 1;
        step_result result = model_step(&t->m, t->tokens, t->labels, args, o->grad_clip);
        device_synchronize();
        double seconds = device_seconds() - began;
        t->done.step = step + 1;
        t->done.samples += step_sequences(t);
        if (result.valid == 0 && first_rank && !unlabelled)
            fprintf(stderr, "warning: step %lld: none of its tokens is a label (loss masks, --document-end), so it has no loss and its gradient is 0\n", (long long)step + 1);
        unlabelled = unlabelled || result.valid == 0;
        step_report r = report_step(t, result, lr, seconds, attended);
        r.predicted_seconds = predicted_seconds;
        r.predicted_sent = predicted_sent;
        r.eta_seconds = (device_seconds() - started) / (double)(step + 1 - first_step) * (double)(o->steps - step - 1);
        for (int k = 0; k < COMM_KINDS; k++) waited[k] += r.sent[k].wait_seconds;
        if (first_rank) step_print(&r);
        if (log != NULL) step_log(log, &r);
        if (measured < PREDICTED_STEPS) {
            first_seconds[measured++] = r.seconds;
            if (first_rank && (measured == PREDICTED_STEPS || step + 1 == o->steps))
                prediction_print(&r, median_of_first(first_seconds, measured), (double)t->device.peak + (double)t->host.peak, t->machines.name, t->documents != NULL);
        }
        if (!isfinite(result.norm) || !isfinite(result.loss)) {
            if (first_rank)
                fprintf(stderr, "error: step %lld: loss %g, gradient norm %g; the parameters were not updated (try a lower --lr or a longer --warmup)\n",
                        (long long)step + 1, result.loss, result.norm);
            advance_save(t, true, log);
            comm_finalize();
            exit(EXIT_USER_ERROR); // the same command would most likely diverge again
        }
        after_step(t, log, error);
    }
    close_log(t, log, error);
    int64_t blocks[2] = {t->m.attention.ring.blocks_skipped, t->m.attention.ring.blocks};
    comm_sum_int64(t->g.all, blocks, 2);
    if (first_rank) {
        if (t->documents != NULL)
            printf("documents: %lld of %lld attention blocks had no visible keys and were skipped\n", (long long)blocks[0], (long long)blocks[1]);
        print_waits(waited, t->done.step - first_step);
        print_memory(t);
    }
    if (o->trace != NULL) {
        path_text path = trace_path(t);
        if (!trace_write(path.text, t->g.rank)) error_set(error, "--trace %s: cannot be written", path.text);
        report_failure(t, error);
    }
}

// Loads the newest complete state of --out with --resume; otherwise random parameters, or those of the folder.
static void start_parameters(trainer *t, const char *folder, error_text *error) {
    const options *o = t->o;
    bool resumed = false;
    t->done.seed = o->seed;
    t->done.seq_len = o->seq_len;
    t->done.train_tokens = data_sources_tokens(&t->train);
    t->done.train_order = data_sources_order(&t->train);
    t->done.document_end = o->document_end;
    if (o->out != NULL) {
        if (state_store_open(&t->states, t->g.all, o->out, folder, o->keep, o->resume, error) && o->resume)
            state_resume(&t->states, &t->m, &t->done, &resumed, error);
        stop_on_error(error);
        signal(SIGTERM, on_stop_signal);
        signal(SIGUSR1, on_stop_signal);
        if (o->resume && t->g.rank == 0)
            printf(resumed ? "resume      %s: from step %lld, %lld samples done\n" : "resume      %s: holds no state; starting from the beginning\n", o->out,
                   (long long)t->done.step, (long long)t->done.samples);
    }
    if (resumed && t->g.rank == 0 && o->steps > t->done.step && t->done.samples != t->done.step * step_sequences(t))
        fprintf(stderr, "note: so far a step had %.6g sequences, and with this command it has %lld (--global-batch N fixes the number for any number of ranks)\n",
                (double)t->done.samples / (double)t->done.step, (long long)step_sequences(t));
    if (resumed) return;
    if (o->from_scratch) {
        zero_init(&t->m.zero, (uint64_t)o->seed, 0.02f, 0.02f / sqrtf(2.0f * (float)t->m.c.L));
        zero_reset_states(&t->m.zero);
    } else {
        hf_import(&t->m, folder, NULL, error);
    }
    stop_on_error(error);
}

// --export: writes the trained model as a Hugging Face folder. A failure, such as a full disk, ends the run with status 1.
static void finish_export(trainer *t, const char *source, error_text *error) {
    double began = device_seconds();
    export_dtype_kind dtype = t->o->export_dtype == EXPORT_AUTO && t->o->from_scratch ? EXPORT_F32 : t->o->export_dtype;
    bool ok = hf_export(&t->m, t->o->export_to, source, dtype, error);
    if (t->g.rank == 0 && ok) printf("exported    %s (%.3f s)\n", t->o->export_to, device_seconds() - began);
    if (t->g.rank == 0 && !ok) fprintf(stderr, "error: --export %s: %s\n", t->o->export_to, error->text);
    if (ok) return;
    comm_finalize();
    exit(EXIT_FAILED);
}

int main(int argc, char **argv) {
    error_text error;
    memset(&error, 0, sizeof error);
    signal(SIGXFSZ, SIG_IGN); // a file over the size limit then makes the write fail, with a message
    if (!comm_init(&argc, &argv, &error)) {
        fprintf(stderr, "error: %s\n", error.text);
        return EXIT_USER_ERROR;
    }
    comm *world = comm_world();
    bool first_rank = comm_rank(world) == 0;

    // Options and model.
    options o;
    options_parse(&o, argc, argv, &error);
    stop_on_error(&error);
    agree_on_options(world, &o, &error);
    stop_on_error(&error);
    if (o.help || o.version) {
        if (first_rank && o.help) options_help(stdout);
        else if (first_rank) printf("train_llama %s\n", TRAIN_LLAMA_VERSION);
        comm_finalize();
        return EXIT_OK;
    }
    model_config c;
    if (o.model != NULL && config_load(&c, o.model, &error)) options_model(&o, &c, &error);
    stop_on_error(&error);
    if (o.model != NULL) agree_on_number(world, state_sizes_hash(&c), "--model: the sizes in config.json", &error);
    stop_on_error(&error);
    if (o.calibrate) {
        device_start(comm_local_rank(), comm_local_ranks(), (int)o.threads, &error);
        stop_on_error(&error);
        int local;
        if (calibrate_local_ranks(world, &local, &error)) calibrate(&o, o.model != NULL ? &c : NULL, world, local, &error);
        stop_on_error(&error);
        device_stop();
        comm_finalize();
        return EXIT_OK;
    }
    if (o.plan) {
        if (first_rank) plan_show(&o, &c, comm_size(world), &error);
        stop_on_error(&error);
        comm_finalize();
        return EXIT_OK;
    }
    if (o.hp == 0) plan_apply(&o, &c, world, &error);
    options_check(&o, &c, comm_size(world), &error);
    if (o.deterministic) device_use_deterministic(); // before its scratch is planned
    const char *folder = config_preset(o.model) == NULL ? o.model : NULL; // a Hugging Face folder
    if (o.export_to != NULL && !o.dry_run) hf_export_check(world, o.export_to, o.resume && o.export_dtype == EXPORT_AUTO && !o.from_scratch ? folder : NULL, &error);
    stop_on_error(&error);
    if (o.dry_run) {
        cluster machines;
        bool known = o.cluster == NULL || plan_cluster(&machines, &o, (int)o.ranks, &error);
        if (first_rank && known) dry_run(&o, &c, o.cluster == NULL ? NULL : &machines, (int)o.ranks, &error);
        stop_on_error(&error);
        comm_finalize();
        return EXIT_OK;
    }

    // Device, grid and data.
    trainer t;
    memset(&t, 0, sizeof t);
    t.o = &o;
    plan_cluster(&t.machines, &o, comm_size(world), &error);
    device_start(comm_local_rank(), comm_local_ranks(), (int)o.threads, &error);
    stop_on_error(&error);
    if (o.deterministic) comm_use_deterministic(&error);
    stop_on_error(&error);
    grid_create(&t.g, plan_grid_shape(&o), o.cp_comm == CP_COMM_ALLGATHER, world);
    if (o.trace != NULL) trace_check(&t, &error);
    t.shard = sequence_shard_make(o.seq_len, t.g.shape.hp, t.g.shape.cp, t.g.place.h, t.g.place.c, DEVICE_ROW_MULTIPLE);
    if (o.train_data != NULL) data_sources_open(&t.train, o.train_data, "--train-data", true, o.seq_len, c.V, (uint64_t)o.seed, &error);
    if (o.val_data != NULL) data_sources_open(&t.val, o.val_data, "--val-data", false, o.seq_len, c.V, (uint64_t)o.seed, &error);
    stop_on_error(&error);
    agree_on_number(world, data_sources_hash(&t.train), "--train-data: the files", &error);
    agree_on_number(world, data_sources_hash(&t.val), "--val-data: the files", &error);
    stop_on_error(&error);
    data_sources *text = t.val.count > 0 ? &t.val : &t.train;
    if (o.sample_every > 0) sample_open(&t.sample, &o, c.V, folder, text->count > 0 ? &text->sources[0].data : NULL, first_rank, &error);
    stop_on_error(&error);

    // Memory: what each layer keeps, then one arena for everything.
    recompute_kind *kinds = HOST_NEW(recompute_kind, c.L);
    model_run run = plan_run(&o, &c, t.shard.T, kinds);
    memory_room room = {o.memory_budget > 0 ? (double)o.memory_budget : (double)device_memory_total(),
                        device_is_host() ? INFINITY : (double)machine_memory("") / comm_local_ranks()};
    plan_memory(&o, &c, &t.g, &run, kinds, room, &error);
    stop_on_error(&error);
    double *most = HOST_NEW(double, c.L); // recompute communicates, so ranks must agree where memory or scratch differ: on the kind that keeps least
    for (int l = 0; l < c.L; l++) most[l] = kinds[l];
    comm_max_double(world, most, c.L);
    for (int l = 0; l < c.L; l++) kinds[l] = (recompute_kind)most[l];
    free(most);
    t.peak_flops = device_peak_flops(); // rank 0's value is used: ranks may have different devices
    comm_barrier(world);
    if (first_rank && t.peak_flops == 0) t.peak_flops = device_measure_gemm(); // while the others wait; before the arena: it needs its own memory
    comm_broadcast(world, &t.peak_flops, sizeof t.peak_flops, 0);
    if (o.verify) verify(&c, &run, &t.g, &error);
    stop_on_error(&error);
    t.memory_before = device_memory_used();
    model_allocate(&t.m, &t.device, &t.host, &c, &t.g, &run, &error);
    stop_on_error(&error);
    t.tokens = HOST_NEW(int32_t, run.grad_accum * t.m.rows);
    t.labels = HOST_NEW(int32_t, run.grad_accum * t.m.rows);
    t.documents = run.packed ? HOST_NEW(int64_t, run.grad_accum * run.B * sequence_shard_entries(&t.shard)) : NULL;
    t.m.documents = t.documents;
    int64_t *positions = HOST_NEW(int64_t, t.shard.T);
    for (int64_t i = 0; i < t.shard.T; i++) positions[i] = sequence_shard_position(&t.shard, i);
    model_start(&t.m, positions);
    free(positions);
    t.m.zero.rounding.stochastic = o.stochastic_rounding;
    t.m.zero.rounding.seed = (uint64_t)o.seed;
    start_parameters(&t, folder, &error);
    if (first_rank) print_start(&t, &c, kinds);
    if (o.trace != NULL) trace_open();

    if (t.done.step < o.steps) {
        train(&t, &error);
    } else if (t.val.count > 0 || o.sample_every > 0) { // nothing left to train: evaluates and samples the model as it is
        FILE *log = open_log(&t, &error);
        if (t.val.count > 0) evaluate(&t, log, &error);
        if (o.sample_every > 0) sample(&t, log);
        close_log(&t, log, &error);
    }
    if (o.export_to != NULL && !t.stopped) finish_export(&t, folder, &error);
    if (o.out != NULL) state_store_close(&t.states);

    model_release(&t.m, &t.device, &t.host);
    grid_free(&t.g);
    data_sources_close(&t.train);
    data_sources_close(&t.val);
    sample_close(&t.sample);
    free(t.tokens);
    free(t.labels);
    free(t.documents);
    free(kinds);
    device_stop();
    comm_finalize();
    return t.save_failed || t.report_failed ? EXIT_FAILED : EXIT_OK;
}
