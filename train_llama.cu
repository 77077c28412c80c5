// train_llama: trains Llama-3 models on very long sequences. mpirun -np N ./train_llama --help
//
// This file reads like a table of contents: options -> grid -> data -> memory -> parameters -> training loop -> finish.
//     trainer.h                           what a run holds; its data, evaluation, saving and reports
//     model.h                             a step: the forward and backward pass as straight-line calls
//     attention_2d.cuh  double_ring.cuh   who attends to what, and which transfers run meanwhile
//     zero_hybrid.cuh   checkpoint.cuh    which model states and activations a rank keeps
//     dataloader.h                        token files -> this rank's tokens and labels
//     device/                             memory, operations and communication of the CPU and the CUDA device
#include "calibrate.h" // defines: calibrate
#include "hf_folder.h" // defines: hf_import, hf_export
#include "learning_rate.h" // defines: learning_rate
#include "run_memory.h" // defines: run_fit, dry_run
#include "trainer.h"   // defines: trainer, stop_on_error, read_step, evaluate, sample, report_step, print_*, note_tokens
#include "verify.h"    // defines: verify

// ---- options ----

// Reads the command line, which must be the same on every rank. Collective.
static void read_options(options *o, int argc, char **argv, error_text *error) {
    options_parse(o, argc, argv, error);
    stop_on_error(error);
    agree_on_options(comm_world(), o, error);
    stop_on_error(error);
    note_nccl_variables(comm_world());
}

// What the user of a pretrained model may have forgotten.
static void note_pretrained(const options *o, const model_config *c, int64_t made_for) {
    bool uses_length = o->steps > 0 || o->val_data != NULL || o->sample_every > 0;
    double made = c->rope.factor * c->rope.original_length; // by yarn; programs that serve a model hold to it
    if (uses_length && o->rope_scaling != NULL && c->rope.kind == ROPE_YARN && (double)o->seq_len > made)
        fprintf(stderr, "note: --rope-scaling %s is for %.0f tokens, and --seq-len is %lld\n", printable(o->rope_scaling).text, made,
                (long long)o->seq_len);
    bool saves = o->out != NULL || o->export_to != NULL;
    if (saves && o->rope_scaling != NULL && c->rope.kind == ROPE_YARN && (double)c->max_position > made)
        fprintf(stderr, "note: what is saved has %lld positions, more than yarn's %.0f; transformers 4.51 to 4.56 will take %g for its "
                        "factor\n", (long long)c->max_position, made, (double)c->max_position / c->rope.original_length);
    if (uses_length && o->seq_len > made_for && o->rope_theta == 0 && o->rope_scaling == NULL)
        fprintf(stderr, "note: %lld tokens are more than the %lld that the model was made for, and its RoPE is unchanged "
                        "(--rope-theta, --rope-scaling)\n", (long long)o->seq_len, (long long)made_for);
    if (o->steps > 0 && !o->dry_run && !options_given(o, "lr"))
        fprintf(stderr, "note: --lr %g is for training from random parameters; pretrained ones usually take less, such as 2e-5\n", o->lr);
}

// Reads the sizes of --model, if it is given. Collective.
static void read_config(model_config *c, options *o, error_text *error) {
    if (o->model != NULL && config_load(c, o->model, error)) {
        int64_t made_for = c->max_position;
        options_model(o, c, error);
        bool pretrained = config_preset(o->model) == NULL && !o->from_scratch;
        if (pretrained && !o->plan && !o->calibrate && comm_rank(comm_world()) == 0) note_pretrained(o, c, made_for);
    }
    stop_on_error(error);
    if (o->model != NULL) agree_on_number(comm_world(), state_sizes_hash(c), "--model: the sizes in config.json", error);
    stop_on_error(error);
}

// The Hugging Face folder that --model names; NULL: a preset.
static const char *model_folder(const options *o) { return config_preset(o->model) == NULL ? o->model : NULL; }

// Where the state of the last step says to which folder its model was exported, and how.
static path_text export_record(const options *o) { return path_join(state_path(o->out, "", o->steps).text, "exported_to"); }
// The options on which the folder depends, besides those that a resumed run cannot change.
static bool export_depends_on(const option_row *row) {
    return word_listed(" model from-scratch export export-dtype seq-len rope-theta rope-scaling ", row->name);
}
// What the record says: these options. The caller frees.
static char *export_text(const options *o) {
    cJSON *json = options_json(o, export_depends_on);
    char *text = cJSON_PrintUnformatted(json);
    cJSON_Delete(json);
    return text;
}
// Whether --export is there from the run that this one resumes, which was killed before it could end with status 0. Collective.
static bool exported_before(const options *o) {
    error_text none = {"", 0};
    char *made = o->resume && path_exists(o->export_to) ? file_read_text(export_record(o).text, CONFIG_BYTES, &none) : NULL;
    char *wanted = export_text(o);
    bool before = made != NULL && strcmp(made, wanted) == 0;
    free(made);
    free(wanted);
    comm_agree_on_files(comm_world(), &none); // that file may be slow to read
    comm_broadcast(comm_world(), &before, sizeof before, 0);
    return before;
}
// Checks before the run that --export can be written. True: it is exported_before, and need not be. Collective.
static bool check_export(const options *o, error_text *error) {
    if (exported_before(o)) return true;
    // it lies in --out, which the run will make
    bool in_new_out = o->out != NULL && !path_exists(o->out) && path_same(path_parent(o->export_to).text, o->out);
    comm_broadcast(comm_world(), &in_new_out, sizeof in_new_out, 0); // machines may differ
    if (!in_new_out) hf_export_check(comm_world(), o->export_to, error);
    stop_on_error(error);
    return false;
}

// Lets --hp auto choose, and refuses what is illegal or impossible. True: --export is exported_before. Collective.
static bool check_options(options *o, const model_config *c, error_text *error) {
    if (o->hp == 0) plan_apply(o, c, comm_world(), error);
    options_check(o, c, comm_size(comm_world()), error);
    stop_on_error(error);
    return o->export_to != NULL && !o->dry_run && check_export(o, error);
}

// Starts this rank's device. Collective.
static void start_device(const options *o, error_text *error) {
    if (o->deterministic) comm_use_deterministic(error);
    device_start((int)o->threads, error);
    stop_on_error(error);
}

// Ends the program. Status 0 also says that all that rank 0 printed was written, as of other programs. Collective.
static int finish(int status) {
    bool lost = comm_rank(comm_world()) == 0 && (fflush(stdout) != 0 || ferror(stdout) != 0);
    comm_finalize();
    if (!lost || status != EXIT_OK) return status;
    error_text error = {"", 0};
    errno = 0; // it may be long ago that a line was lost; one more says why, and ends a line that was cut
    if (putchar('\n') == EOF || fflush(stdout) != 0) error_set_errno(&error, "standard output cannot be written");
    else error_set(&error, "standard output: not all of it could be written");
    fprintf(stderr, "error: %s\n", error.text);
    return EXIT_FAILED;
}

// What is answered instead of training. They return the exit status. Collective.
static int show_help(const options *o) {
    bool first_rank = comm_rank(comm_world()) == 0;
    if (first_rank && o->help) options_help(stdout);
    else if (first_rank) printf("train_llama %s\n", TRAIN_LLAMA_VERSION);
    return finish(EXIT_OK);
}
static int run_calibrate(const options *o, const model_config *c, error_text *error) {
    int local;
    start_device(o, error);
    if (calibrate_local_ranks(comm_world(), &local, error)) calibrate(o, o->model != NULL ? c : NULL, comm_world(), local, error);
    stop_on_error(error);
    device_stop();
    return finish(EXIT_OK);
}
static int run_plan(const options *o, const model_config *c, error_text *error) {
    if (comm_rank(comm_world()) == 0) plan_show(o, c, comm_size(comm_world()), error);
    comm_agree_on_files(comm_world(), error); // which may take minutes
    stop_on_error(error);
    return finish(EXIT_OK);
}
static int run_dry(const options *o, const model_config *c, error_text *error) {
    cluster machines;
    bool known = o->cluster == NULL || plan_cluster(&machines, o, (int)o->ranks, error);
    if (comm_rank(comm_world()) == 0 && known) dry_run(o, c, o->cluster == NULL ? NULL : &machines, (int)o->ranks, error);
    stop_on_error(error);
    return finish(EXIT_OK);
}

// ---- start ----

// Makes the rank's place in the grid, and reads which machines predictions are for. Collective.
static void start_grid(trainer *t, error_text *error) {
    const options *o = t->o;
    int ranks = comm_size(comm_world()), rank = comm_rank(comm_world()), first = rank;
    comm_broadcast(comm_machine(), &first, sizeof first, 0);
    double most[2] = {-(double)comm_local_ranks(), rank == first + comm_local_rank() ? 0.0 : 1.0};
    comm_max_double(comm_world(), most, 2);
    if (plan_cluster(&t->machines, o, ranks, error)) plan_cluster_here(&t->machines, ranks, -most[0]);
    stop_on_error(error);
    if (most[1] > 0 && rank == 0)
        fprintf(stderr, "note: the ranks of a machine are not consecutive, so more transfers than need be go between machines (mpirun: "
                        "--map-by slot or ppr:N:node; srun: -m block)\n");
    grid_create(&t->g, run_grid_shape(o), o->cp_comm == CP_COMM_ALLGATHER, comm_world());
}

// Checks one output, a file whose content `begins` so; one in a folder that --out is yet to make is left to the run.
static void check_output(const trainer *t, const char *option, const char *path, const char *begins, error_text *error) {
    path_text folder = path_parent(path);
    struct stat entry;
    if (stat(path, &entry) == 0 && S_ISFIFO(entry.st_mode)) signal(SIGPIPE, SIG_IGN); // a reader that ends costs this output, not the run
    if (t->o->out == NULL || path_exists(t->o->out) || !path_same(folder.text, t->o->out)) file_writable(option, path, begins, error);
}
// Checks before the run that --log and --trace can be written, to files of their own. Collective.
static void check_outputs(const trainer *t, error_text *error) {
    const options *o = t->o;
    if (o->trace != NULL) check_output(t, "--trace", trace_path(t).text, "[\n{\"ph\":", error);
    if (o->trace != NULL && o->log != NULL && path_same(o->log, trace_path(t).text))
        error_set(error, "--log %s is a file of --trace, too; give another", printable(o->log).text);
    if (o->trace != NULL && o->export_to != NULL && path_same(o->export_to, trace_path(t).text))
        error_set(error, "--export %s is a file of --trace, too; give another", printable(o->export_to).text);
    if (o->log != NULL && t->g.rank == 0) check_output(t, "--log", o->log, "{\"run\":", error);
    stop_on_error(error);
}

// Reads what states and the export take from the folder of --model. The layout of the export's files depends on the number types of the
// parameters there, so these must be the same on all ranks, also where hf_import, which compares them, does not run (--resume). Collective.
static void read_source(trainer *t, error_text *error) {
    const options *o = t->o;
    bool types = o->export_to != NULL && o->export_dtype == EXPORT_AUTO && !o->from_scratch; // of its parameters
    uint64_t hash = HASH_EMPTY;
    if (t->folder != NULL && (o->out != NULL || o->export_to != NULL) &&
        hf_source_read(&t->source, t->folder, t->g.rank == 0, types, error))
        safetensors_hash(&t->source.like, &hash, error);
    comm_agree_on_files(comm_world(), error);
    agree_on_number(comm_world(), hash, "--model: the parameters (--export uses their number types)", error);
    stop_on_error(error);
}

// data_sources_open, by all ranks together: those of a machine divide its files. (With 1024 ranks and thousands of files on a shared file
// system, every rank would open every file for many minutes.) Collective.
static void open_sources(data_sources *s, const char *text, const char *option, bool weights, const options *o, const model_config *c,
                         error_text *error) {
    comm *world = comm_world(), *machine = comm_machine();
    if (text == NULL) return;
    data_sources_find(s, text, option, weights, o->seq_len, c->V, (uint64_t)o->seed, error);
    comm_agree_on_files(world, error); // a slow disk is waited for
    stop_on_error(error);
    double place = (double)(data_sources_place(s) >> 12), same[2] = {place, -place};
    comm_max_double(machine, same, 2);
    bool divide = same[0] == -same[1]; // otherwise containers, or folders of the ranks, show them different files, of which each checks all
    int64_t first = divide ? comm_rank(machine) : 0, step = divide ? comm_size(machine) : 1, most = data_sources_files(s);
    progress_note note = progress_start("opening token files");
    for (int64_t f = first; f < most && progress_goes_on(error) && data_sources_check(s, f, error); f += step)
        progress_show(&note, min_i64(f + step, most), most);
    comm_agree_on_files(world, error);
    stop_on_error(error);
    for (int i = 0; i < s->count && divide; i++) {
        dataloader *data = &s->sources[i].data;
        comm_sum_int64(machine, (int64_t *)(void *)data->files, (int)(data->file_count * (int64_t)(sizeof(token_file) / sizeof(int64_t))));
    }
    data_sources_take(s, error);
    stop_on_error(error);
}

// Opens the token files, which must be the same on every rank. Collective.
static void open_data(trainer *t, const model_config *c, error_text *error) {
    const options *o = t->o;
    open_sources(&t->train, o->train_data, "--train-data", true, o, c, error);
    open_sources(&t->val, o->val_data, "--val-data", false, o, c, error);
    agree_on_number(comm_world(), data_sources_hash(&t->train), "--train-data: the files", error);
    agree_on_number(comm_world(), data_sources_hash(&t->val), "--val-data: the files", error);
    stop_on_error(error);
    if (t->g.rank == 0) data_sources_note_shared(&t->train, &t->val);
    if (o->check_data) check_data(t, error);
    data_sources *sources = t->val.count > 0 ? &t->val : &t->train;
    dataloader *text = sources->count > 0 ? &sources->sources[0].data : NULL;
    if (o->sample_every > 0) sample_open(&t->sample, o, c->V, t->folder, text, t->g.rank == 0, error);
    stop_on_error(error);
}

// Decides what each layer keeps, and checks that the run fits. The caller frees setup.kinds. Collective.
static model_setup choose_recompute(trainer *t, const model_config *c, error_text *error) {
    const options *o = t->o;
    sequence_shard shard = run_shard(o, c, o->seq_len, t->g.place.h, t->g.place.c, NULL);
    model_setup setup = run_make(o, c, shard, HOST_NEW(recompute_kind, c->L));
    memory_room room = {o->memory_budget > 0 ? (double)o->memory_budget : (double)device_memory_total(),
                        device_is_host() ? INFINITY : run_host_memory(o)};
    run_fit(o, c, &t->g, &setup, room, error);
    stop_on_error(error);
    double *most = HOST_NEW(double, c->L); // recompute communicates, so all ranks take what the one with the least memory does
    for (int l = 0; l < c->L; l++) most[l] = setup.kinds[l];
    comm_max_double(comm_world(), most, c->L);
    for (int l = 0; l < c->L; l++) setup.kinds[l] = (recompute_kind)most[l];
    free(most);
    return setup;
}

// The peak rate that MFU refers to: rank 0's, as devices may differ. Before the arena is taken, because measuring needs memory. Collective.
static void find_peak(trainer *t) {
    t->peak_flops = device_peak_flops();
    comm_barrier(comm_world());
    if (t->g.rank == 0 && t->peak_flops == 0) t->peak_flops = device_measure_gemm(); // while the others wait
    comm_broadcast(comm_world(), &t->peak_flops, sizeof t->peak_flops, 0);
}

// Takes all memory that the run will use. Collective.
static void take_memory(trainer *t, const model_config *c, const model_setup *setup, error_text *error) {
    t->memory_before = device_memory_used();
    model_allocate(&t->m, &t->device, &t->host, c, &t->g, setup, error);
    stop_on_error(error);
    model_start(&t->m);
    t->m.zero.rounding.stochastic = t->o->stochastic_rounding;
    t->m.zero.rounding.seed = (uint64_t)t->o->seed;
}

// What the user of a resumed run may not expect.
static void note_resumed(const trainer *t) {
    int64_t steps = t->done.step - t->done.data_step, left = t->o->steps - t->done.step; // with this data; to train
    if (left > 0 && steps > 0 && t->done.sequences > 0 && t->done.sequences != step_sequences(t))
        fprintf(stderr, "note: so far a step had %lld sequence%s, and with this command it has %lld (--global-batch N fixes the number for "
                        "any number of ranks)\n", (long long)t->done.sequences, plural(t->done.sequences), (long long)step_sequences(t));
    if (t->o->lr_restart && t->done.data_step == 0)
        fprintf(stderr, "note: --lr-restart changes nothing here: the data is that of the state, so the schedule covers all steps\n");
    if (left <= 0 && t->o->steps > 0)
        fprintf(stderr, "note: of --steps %lld none is left to train; a larger number continues\n", (long long)t->o->steps);
}

// What the samples of this run are: a state is resumed only with the same (training_progress).
static void describe_samples(trainer *t) {
    const options *o = t->o;
    t->done.seed = o->seed;
    t->done.seq_len = o->seq_len;
    t->done.train_tokens = data_sources_tokens(&t->train);
    t->done.train_order = data_sources_order(&t->train);
    t->done.train_files = (int64_t)(data_sources_hash(&t->train) >> 12); // below 2^52: a whole number in JSON
    t->done.document_end = o->document_end;
    t->done.document_begin = o->document_begin;
}

// Opens --out, and with --resume reads its newest complete state, if there is one. Returns whether it has. Collective.
static bool open_states(trainer *t, error_text *error) {
    const options *o = t->o;
    bool resumed = false;
    const char *nothing = "--out %s: holds no state to resume, and --steps 0 trains none";
    if (t->g.rank == 0 && o->steps == 0 && !path_exists(o->out) && errno == ENOENT) // it is not made
        error_set(error, nothing, printable(o->out).text);
    stop_on_error(error);
    bool opened = state_store_open(&t->states, t->g.all, o, source_of(t), error);
    if (opened && o->resume) state_resume(&t->states, &t->m, &t->done, &resumed, error);
    stop_on_error(error);
    if (o->lr_restart) options_check_schedule(o, o->steps - t->done.data_step, error);
    if (!resumed && o->steps == 0) error_set(error, nothing, printable(o->out).text);
    stop_on_error(error);
    if (t->g.rank != 0) return resumed;
    if (resumed)
        printf("resume      %s: from step %lld, %lld samples of this data done\n", o->out, (long long)t->done.step,
               (long long)t->done.samples);
    else if (o->resume) printf("resume      %s: holds no state; starting from the beginning\n", o->out);
    state_note_room(&t->states, &t->m.c, t->done.step);
    if (resumed) note_resumed(t);
    return resumed;
}

// Notes on stderr when the file system has less room than --export takes, beside the states of this run that it gets. Rank 0 calls it
// before the training.
static void note_export_room(const trainer *t) {
    const options *o = t->o;
    path_text parent = path_parent(o->export_to);
    double needed = (o->export_dtype == EXPORT_AUTO || o->export_dtype == EXPORT_F32 ? 4.0 : 2.0) * (double)config_parameters(&t->m.c);
    if (o->export_dtype == EXPORT_AUTO && !o->from_scratch) needed = (double)safetensors_bytes(&t->source.like);
    struct stat states, exported;
    bool shared = o->out != NULL && stat(o->out, &states) == 0 && stat(parent.text, &exported) == 0 && states.st_dev == exported.st_dev;
    double room = file_system_room(parent.text) - (shared ? state_bytes_more(&t->states, &t->m.c, t->done.step) : 0);
    if (room < needed)
        fprintf(stderr, "note: --export %s: will take %.3g GB, and %.3g GB are free%s\n", printable(o->export_to).text, 1e-9 * needed,
                1e-9 * fmax(0, room), shared ? " beside the states of this run" : "");
}

// With --resume the newest complete state of --out, if there is one; otherwise random parameters, or those of the folder. Collective.
static void start_parameters(trainer *t, error_text *error) {
    const options *o = t->o;
    describe_samples(t);
    bool resumed = o->out != NULL && open_states(t, error);
    t->saved_step = t->done.step;
    if (resumed) return;
    if (o->from_scratch) {
        float sigma = t->m.c.initializer_range;
        zero_init(&t->m.zero, (uint64_t)o->seed, sigma, sigma / sqrtf(2.0f * (float)t->m.c.L)); // the second as GPT-2
        zero_reset_states(&t->m.zero);
    } else {
        hf_import(&t->m, t->folder, NULL, error);
    }
    stop_on_error(error);
}

// ---- training ----

// Ends the run if its loss or gradient is not finite: the same command would most likely diverge again. Collective.
static void stop_if_diverged(trainer *t, step_result r, error_text *error) {
    if (isfinite(r.norm) && isfinite(r.loss)) return;
    bool first = t->done.step == t->first_step + 1;
    char cause[OPTION_TEXT_BYTES + 128] = "try a lower --lr or a longer --warmup";
    if (first) snprintf(cause, sizeof cause, "before any update of this run: the model that it began with is the cause");
    if (first && t->first_step > 0)
        snprintf(cause, sizeof cause, "the state that it began with is the cause; without %s the state before it is continued",
                 printable(state_path(t->o->out, "", t->first_step).text).text);
    if (t->g.rank == 0)
        fprintf(stderr, "error: step %lld: loss %g, gradient norm %g; the parameters were not updated (%s)\n", (long long)t->done.step,
                r.loss, r.norm, cause);
    training_progress before = t->done;
    before.step--;
    before.samples -= step_sequences(t);
    advance_save(t, true); // whether there is a state
    if (t->o->keep > 1 || t->saved_step == 0) save_before_end(t, &before); // not in place of the only state, which may be the better one
    if (t->o->trace != NULL) write_trace(t, error);
    end_early(EXIT_USER_ERROR);
}

// Ends the run after this step if a signal asks for it, with the state saved. Collective.
static void stop_if_told(trainer *t) {
    if (t->o->out == NULL || !stop_agreed(t)) return;
    t->stopped = true;
    save_before_end(t, &t->done);
    if (t->g.rank == 0)
        printf("stopped by a signal after step %lld%s\n", (long long)t->done.step,
               t->save_failed ? "" : "; the same command with --resume continues the run");
}

// What is due after a step: saving a state, ending the run when a signal asks for it, an evaluation, a sample. Collective.
static void after_step(trainer *t, error_text *error) {
    const options *o = t->o;
    int64_t step = t->done.step;
    bool last = step == o->steps, save = o->out != NULL && (last || (o->save_every > 0 && step % o->save_every == 0));
    advance_save(t, false);
    if (save) start_save(t, &t->done); // before an evaluation, which may take long
    if (save && last) advance_save(t, true);
    stop_if_told(t);
    if (t->stopped) return;
    if (t->val.count > 0 && ((o->eval_every > 0 && step % o->eval_every == 0) || last)) t->overflows = !evaluate(t, error);
    if (o->sample_every > 0 && (step % o->sample_every == 0 || last)) sample(t);
    stop_if_told(t);
}

// Ends the run before an export where a loss of the last evaluation is not finite. Collective.
static void stop_if_overflows(const trainer *t, error_text *error) {
    if (t->overflows) error_set(error, "a validation loss is not finite: parameters of this model are not, or overflow");
    stop_on_error(error);
}

// The training loop, after the evaluation and the sample that are due before it. Collective.
static void train(trainer *t, error_text *error) {
    const options *o = t->o;
    adamw_args args = {.beta1 = (float)o->beta1, .beta2 = (float)o->beta2, .eps = (float)o->eps, .weight_decay = (float)o->weight_decay};
    read_step(t, error); // the first step's, already here: bad data leaves no log behind, and note_tokens and start_measuring look at it
    open_log(t, error);
    bool begins = t->done.step == t->done.data_step; // otherwise the run that is resumed may have left out an evaluation or a sample
    if (begins && t->g.rank == 0) note_tokens(t);
    bool evaluates = t->val.count > 0 && o->eval_every > 0 && (begins || t->done.step % o->eval_every == 0);
    bool samples = o->sample_every > 0 && !begins && t->done.step % o->sample_every == 0;
    if (evaluates) evaluate(t, error);
    if (samples) sample(t);
    if (evaluates || samples) {
        t->stopped = stop_agreed(t); // and there is nothing to save
        if (!t->stopped) read_step(t, error); // again: they took its place
    }
    start_measuring(t);
    for (int64_t step = t->first_step; step < o->steps && !t->stopped; step++) {
        double began = device_seconds(), lr = learning_rate(o, step, t->done.data_step);
        comm_count_reset(); // before the data: ranks wait there for one with a slow disk
        if (step > t->first_step) read_step(t, error);
        args.lr = (float)lr;
        args.step = step + 1;
        if (o->skip_spikes > 0) {
            t->m.most_loss = recent_limit(&t->done.losses, o->skip_spikes);
            t->m.most_norm = recent_limit(&t->done.norms, o->skip_spikes);
        }
        step_result result = model_step(&t->m, args, o->grad_clip);
        device_synchronize();
        double seconds = device_seconds() - began;
        trace_compute("step", (int)(step + 1), began);
        t->done.step = step + 1;
        t->done.samples += step_sequences(t);
        t->done.sequences = step_sequences(t);
        report_step(t, result, lr, seconds);
        stop_if_diverged(t, result, error);
        if (result.valid > 0 && !result.spike) t->done.updated_step = step + 1;
        if (o->skip_spikes > 0 && result.valid > 0) {
            recent_add(&t->done.losses, result.loss);
            recent_add(&t->done.norms, result.norm);
        }
        after_step(t, error);
    }
    close_log(t, error);
    print_end(t);
    if (!t->stopped) stop_if_overflows(t, error);
}

// With no step left to train: evaluates and samples the model as it is. Ends the run where a loss is not finite. exported: exported_before.
// Collective.
static void evaluate_only(trainer *t, bool exported, error_text *error) {
    const options *o = t->o;
    if (t->g.rank == 0 && o->steps == 0 && o->val_data == NULL && o->sample_every == 0 && o->export_to == NULL)
        fprintf(stderr, "note: --steps 0 without --val-data, --sample-every and --export: "
                        "the model is read, and nothing is done with it\n");
    open_log(t, error);
    t->overflows = t->val.count > 0 && !evaluate(t, error);
    if (o->sample_every > 0) sample(t);
    t->stopped = stop_agreed(t);
    if (t->stopped && t->g.rank == 0)
        printf("stopped by a signal%s\n", o->export_to == NULL || exported ? "" : "; --export was not written: the same command does it");
    close_log(t, error);
    stop_if_overflows(t, error);
}

// ---- finish ----

// --export: writes the trained model as a Hugging Face folder; a signal does not cut it short. A failure, such as a full disk: status 1;
// parameters that the number type cannot hold: status 2. Collective.
static void export_model(trainer *t, error_text *error) {
    bool records = t->o->out != NULL && t->g.rank == 0;
    error_text none = {"", 0}; // without a record, this export will be in the way of another attempt
    // before it: whenever the run is killed, the two agree
    char *record = export_text(t->o);
    if (records) file_write(export_record(t->o).text, record, strlen(record), &none);
    free(record);
    double began = device_seconds();
    export_dtype_kind dtype = t->o->export_dtype == EXPORT_AUTO && t->o->from_scratch ? EXPORT_F32 : t->o->export_dtype;
    bool ok = hf_export(&t->m, t->o->export_to, source_of(t), dtype, records ? export_record(t->o).text : NULL, error);
    if (t->g.rank == 0 && ok) printf("exported    %s (%.3f s)\n", t->o->export_to, device_seconds() - began);
    if (t->g.rank == 0 && !ok) fprintf(stderr, "error: --export %s: %s\n", t->o->export_to, error->text);
    if (ok) return;
    if (records) remove(export_record(t->o).text);
    end_early(error->number != 0 ? EXIT_FAILED : EXIT_USER_ERROR);
}

static void free_all(trainer *t) {
    if (t->o->out != NULL) state_store_close(&t->states);
    model_release(&t->m, &t->device, &t->host);
    free(t->m.setup.kinds);
    grid_free(&t->g);
    data_sources_close(&t->train);
    data_sources_close(&t->val);
    sample_close(&t->sample);
    hf_source_free(&t->source);
    device_stop();
}

int main(int argc, char **argv) {
    error_text error = {"", 0};
    setvbuf(stdout, NULL, _IOLBF, 0); // lines appear when they are printed, through mpirun, too
    heed_signals(true); // one that comes while libraries start, too
    signal(SIGXFSZ, SIG_IGN); // a file over the size limit then makes the write fail, with a message
    cJSON_Hooks hooks = {host_alloc, free}; // without memory for it, cJSON itself leaves a member out, and takes a text for no JSON
    cJSON_InitHooks(&hooks);
    if (!comm_init(&argc, &argv, &error)) {
        fprintf(stderr, "error: %s\n", error.text);
        return EXIT_USER_ERROR;
    }

    options o;
    model_config c;
    read_options(&o, argc, argv, &error);
    if (o.out == NULL || o.calibrate || o.plan || o.dry_run) heed_signals(false);
    if (o.help || o.version) return show_help(&o);
    if (o.deterministic) device_use_deterministic(); // before its scratch is planned
    read_config(&c, &o, &error);
    if (o.calibrate) return run_calibrate(&o, &c, &error);
    if (o.plan) return run_plan(&o, &c, &error);
    bool planned = o.hp == 0 && !o.dry_run; // --hp auto asks the device for its memory; otherwise options are checked first, without one
    if (planned) start_device(&o, &error);
    bool exported = check_options(&o, &c, &error);
    if (o.dry_run) return run_dry(&o, &c, &error);
    if (!planned) start_device(&o, &error);

    trainer t;
    memset(&t, 0, sizeof t);
    t.o = &o;
    t.folder = model_folder(&o);
    start_grid(&t, &error);
    check_outputs(&t, &error);
    read_source(&t, &error);
    open_data(&t, &c, &error);
    model_setup setup = choose_recompute(&t, &c, &error);
    find_peak(&t);
    if (o.verify) verify(&c, &setup, &t.g, &error);
    progress_goes_on(&error);
    stop_on_error(&error);
    take_memory(&t, &c, &setup, &error);
    start_parameters(&t, &error);
    if (exported && t.done.step < o.steps)
        error_set(&error, "--export %s: already exists, and the newest state that can be read is of step %lld; name another folder",
                  printable(o.export_to).text, (long long)t.done.step);
    stop_on_error(&error);
    allow_longer_waits(&t);
    if (t.g.rank == 0 && o.export_to != NULL && !exported) note_export_room(&t);
    if (t.g.rank == 0) print_start(&t);
    if (o.trace != NULL) trace_start();

    progress_goes_on(&error); // otherwise a signal came while the run started: there is nothing to save
    stop_on_error(&error);
    check_evaluation(&t, &error); // before the log is opened: bad data leaves no file behind
    if (t.done.step < o.steps) train(&t, &error);
    else evaluate_only(&t, exported, &error);
    if (o.trace != NULL) write_trace(&t, &error);
    if (exported && t.g.rank == 0) printf("exported    %s: is there already, from this run\n", o.export_to);
    if (o.export_to != NULL && !exported && !t.stopped) export_model(&t, &error);
    free_all(&t);
    if (t.g.rank == 0 && t.save_failed) fprintf(stderr, "error: the last state was not saved; a warning above says why\n");
    int lost = o.export_to != NULL && !t.stopped ? EXIT_USER_ERROR : EXIT_FAILED; // another attempt would find its export in the way
    return finish(t.save_failed || t.report_failed ? lost : EXIT_OK);
}
