// Training state: what a run needs to continue as if it had never stopped, in a folder --out DIR:
//     DIR/lock                        locked by the run that writes here
//     DIR/step-00000123/              a complete state: a Hugging Face folder in F32 (transformers loads it), and beside it
//         optimizer/*.safetensors       both moments of every tensor, in F32 (--moments bf16: BF16). The other --moments may resume it
//         training_state.json           step, samples, what these samples are, the options of the optimizer, a checksum of every tensor
//         exported_to                   of the last step, with --export: which folder holds its model, if that is there, and in which
//                                       number type and so on (train_llama.cu)
//     DIR/unfinished-*                a state that is being written or removed; the next run removes what is left of it
//     DIR/damaged-*                   a state that did not pass its checksums, set aside
// Tensors are stored whole, so that a state resumes on any grid and any ZeRO degrees. Each distinct piece has one writer. A state is
// written under a temporary name, synced and renamed, so every step-* folder is complete; its checksums show when a disk has changed it.
//     state_save_start     copies the rank's shares to host memory (m->saving) and starts a thread that writes them; without that memory it
//                          writes them before it returns
//     state_save_advance   at the end of later steps: when all ranks have written, a thread of rank 0 renames the state to its final name
//                          and removes the oldest; the save is over when it has
// These threads only work on files: no communication, no device. The functions are collective: every rank calls, and gets the same answer
// and message. All ranks must see one file system.
#ifndef TRAINING_STATE_H
#define TRAINING_STATE_H

#include "hf_folder.h" // defines: hf_import, hf_write
#include "spikes.h"    // defines: recent_values
#include <pthread.h>
#include <sys/file.h>

typedef struct {
    int64_t step, samples; // done; samples: of this data
    int64_t sequences;     // of the last step; 0: not known
    int64_t updated_step;  // the last step that changed parameters, neither without labels nor a spike: bf16 ones are rounded as after it
    int64_t data_step;     // steps that were done when this data began (--new-data), 0: the run began with it
    // What these samples are. A run resumes a state only with the same, or begins new data (--new-data).
    int64_t seed, seq_len, train_tokens, train_order; // their order depends on these; train_order: data_sources_order
    int64_t train_files;                              // data_sources_hash, the upper 52 bits
    int64_t document_end, document_begin;             // the options, which labels and attention depend on; -1: none
    recent_values losses, norms;                      // of the last steps on this data, with --skip-spikes
} training_progress;

typedef enum { SAVE_NONE, SAVE_WRITING, SAVE_NAMING } save_stage;
typedef struct {
    comm *all;
    const hf_source *source; // whose config and tokenizer go into each state; NULL: the model came from no folder
    const options *o;   // --out is the folder; those of the optimizer are written into each state
    int lock;           // file descriptor of rank 0, -1 elsewhere
    // the save in progress
    save_stage stage;
    bool threaded;                // the stage runs in `worker`
    pthread_t worker;
    bool worked;                  // set by the stage's work when it is done
    const model *m;
    training_progress progress;
    path_text unfinished;         // its folder until it is renamed
    uint64_t *sums;               // (VALUES_KINDS, model_checksums)
    double wait_seconds, write_seconds; // of this rank: how long training stood still, how long files were written
    error_text why;               // why the stage has failed; "": it has not
} state_store;

enum { STATE_FORMAT = 4, STATES_MAX = 4096, STATE_BYTES = 1 << 30 }; // STATE_BYTES: at most, of a training_state.json; they have 2 MB

// Where the state of a step is in the folder; prefix: "", "unfinished-", "damaged-".
static inline path_text state_path(const char *folder, const char *prefix, int64_t step) {
    char name[64];
    snprintf(name, sizeof name, "%sstep-%08lld", prefix, (long long)step);
    return path_join(folder, name);
}

static inline int state_compare_steps(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}
// Lists the steps of the step-* folders, ascending, in steps (STATES_MAX); returns how many. With an error, some may be missing. Only rank
// 0 looks into the folder.
static inline int state_list(const char *folder, int64_t *steps, error_text *error) {
    DIR *list = opendir(folder);
    struct dirent *entry;
    int count = 0;
    while (list != NULL && (errno = 0, entry = readdir(list)) != NULL) {
        int64_t step;
        if (strncmp(entry->d_name, "step-", 5) != 0 || !option_parse_whole(entry->d_name + 5, true, &step)) continue;
        path_text path = state_path(folder, "", step); // other names, such as step-7 or step-1KiB, are not our states
        if (strcmp(path_join(folder, entry->d_name).text, path.text) != 0) continue;
        if (!path_is_folder(path.text)) {
            if (errno != ENOENT && errno != ENOTDIR) error_set_errno(error, "%s: cannot be read", printable(path.text).text);
        } else if (count < STATES_MAX) steps[count++] = step;
    }
    if (errno != 0) error_set_errno(error, "--out %s: cannot be read", printable(folder).text);
    if (list != NULL) closedir(list);
    qsort(steps, (size_t)count, sizeof *steps, state_compare_steps);
    return count;
}
static inline void state_remove_unfinished(const char *folder) {
    DIR *list = opendir(folder);
    if (list == NULL) return;
    for (struct dirent *entry; (entry = readdir(list)) != NULL;)
        if (strncmp(entry->d_name, "unfinished-step-", 16) == 0) folder_remove(path_join(folder, entry->d_name).text);
    closedir(list);
}

static inline void state_store_close(state_store *s) {
    if (s->lock >= 0) close(s->lock); // also releases the lock
    s->lock = -1;
}
// Locks a file; waits some seconds for a run that was killed, whose ranks may outlive it by as much. False: another run holds it.
static inline bool state_lock(int file) {
    for (int i = 0; i < 100; i++) {
        if (flock(file, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return true; // other errors: a file system without locks
        usleep(100000);
    }
    return false;
}
// Makes the folder --out if it does not exist and locks it until state_store_close. False with a message: another run writes there; a run
// has left states there and --resume is not given; `source` is one of its states; the folder is a state, or cannot be made or written to;
// ranks do not see the same one.
static inline bool state_store_open(state_store *s, comm *all, const options *o, const hf_source *source, error_text *error) {
    const char *folder = o->out;
    s->all = all;
    s->source = source;
    s->o = o;
    s->lock = -1;
    s->stage = SAVE_NONE;
    bool made = !path_exists(folder);
    char what[OPTION_TEXT_BYTES + 16];
    snprintf(what, sizeof what, "--out %s", printable(folder).text);
    bool state = comm_rank(all) == 0 && path_exists(path_join(folder, "training_state.json").text);
    if (state)
        error_set(error, "%s: is a state; give the folder that it lies in (--resume continues from its newest state), or --model this one",
                  what);
    if (comm_rank(all) == 0 && !state && folder_make(folder, error)) {
        int64_t *steps = HOST_NEW(int64_t, STATES_MAX);
        s->lock = open(path_join(folder, "lock").text, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        int states = 0;
        if (s->lock < 0) error_set_errno(error, "%s: cannot be written to", what);
        else if (!state_lock(s->lock)) {
            error_set(error, "%s: another run writes its states there; every run needs a folder of its own", what);
            error->number = EWOULDBLOCK; // a network file system may hold the lock of a machine that was lost for longer than we wait
        }
        else if ((states = state_list(folder, steps, error)) > 0 && !o->resume)
            error_set(error, "%s: holds states of an earlier run, the last one of step %lld; "
                             "add --resume to continue from it, or name another folder", what, (long long)steps[states - 1]);
        else if (source != NULL && path_exists(path_join(source->folder, "training_state.json").text) &&
                 path_leads_to_same(folder, path_join(source->folder, "..").text))
            error_set(error, "--model %s is a state in this --out: "
                             "it is removed when newer ones are complete, and then the same command finds no model; "
                             "give the folder that the run began with (--resume continues from the newest state), or a copy elsewhere",
                      printable(source->folder).text);
        else state_remove_unfinished(folder);
        free(steps);
    }
    bool ok = comm_agree_on_files(all, error); // a state that is unfinished may be large
    if (ok && !agree_on_folder(all, folder, what, error)) {
        ok = false;
        if (s->lock >= 0 && remove(path_join(folder, "lock").text) == 0 && made) rmdir(folder);
    }
    if (!ok) state_store_close(s);
    return ok;
}

// Whether the state of a step is never removed.
static inline bool state_stays(const options *o, int64_t step) { return o->keep_every > 0 && step % o->keep_every == 0; }

// Bytes of the states that a run from `step` on adds, at 12 a parameter (--moments bf16: 8).
static inline double state_bytes_more(const state_store *s, const model_config *c, int64_t step) {
    error_text unread = {"", 0}; // then they may be fewer
    if (step >= s->o->steps) return 0;
    int64_t *steps = HOST_NEW(int64_t, STATES_MAX), count = state_list(s->o->out, steps, &unread);
    int64_t there = 0; // of those that may be removed
    int64_t every = s->o->save_every > 0 ? s->o->save_every : s->o->steps;
    for (int64_t i = 0; i < count; i++) there += !state_stays(s->o, steps[i]);
    free(steps);
    int64_t last = (s->o->steps - 1) / every, saves = last - step / every + 1; // the last step is always saved
    int64_t most = max_i64(1, min_i64(saves, s->o->keep + 1 - there)); // at once, beside those that are there
    if (s->o->keep_every > 0) // and older than these
        most += max_i64(0, ((last - s->o->keep + 1) * every - 1) / s->o->keep_every - step / s->o->keep_every);
    return (s->o->moments == MOMENTS_BF16 ? 8.0 : 12.0) * (double)config_parameters(c) * (double)most;
}
// Notes on stderr when the file system has less room. Rank 0 calls it.
static inline void state_note_room(const state_store *s, const model_config *c, int64_t step) {
    double needed = state_bytes_more(s, c, step), room = file_system_room(s->o->out);
    if (room < needed)
        fprintf(stderr, "note: --out %s: the states of this run will take %.3g GB more (--keep %lld and one that is written%s), "
                        "and %.3g GB are free\n",
                printable(s->o->out).text, 1e-9 * needed, (long long)s->o->keep,
                s->o->keep_every > 0 ? ", and those of --keep-every" : "", 1e-9 * room);
}

// ---- training_state.json ----

static inline cJSON *state_hex(uint64_t value) {
    char text[20];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)value);
    return cJSON_CreateString(text);
}
static inline bool state_read_hex(const cJSON *at, uint64_t *value) {
    if (!cJSON_IsString(at) || strlen(at->valuestring) != 16 || strspn(at->valuestring, "0123456789abcdef") != 16) return false;
    *value = (uint64_t)strtoull(at->valuestring, NULL, 16);
    return true;
}
static const char *const state_sum_keys[VALUES_KINDS] = {"checksums_parameters", "checksums_exp_avg", "checksums_exp_avg_sq"};
#define STATE_NUMBER(field) {#field, offsetof(training_progress, field)}
static const struct {
    const char *key;
    size_t at; // offset in training_progress
} state_numbers[] = {
    STATE_NUMBER(step), STATE_NUMBER(samples), STATE_NUMBER(data_step), STATE_NUMBER(sequences), STATE_NUMBER(updated_step),
    STATE_NUMBER(seed), STATE_NUMBER(seq_len), STATE_NUMBER(train_tokens), STATE_NUMBER(train_order), STATE_NUMBER(train_files),
    STATE_NUMBER(document_end), STATE_NUMBER(document_begin)};
#undef STATE_NUMBER
enum { STATE_NUMBERS = sizeof state_numbers / sizeof *state_numbers, STATE_TOKENS = 10 }; // from STATE_TOKENS on -1 is legal
static inline int64_t *state_number(const training_progress *p, int i) { return (int64_t *)(void *)((char *)p + state_numbers[i].at); }

static const char *const state_recent_keys[2] = {"losses", "grad_norms"};

// The options that change how training goes on, but need not stay: those of the optimizer, --steps, and which states are never removed.
static inline bool state_keeps_option(const option_row *row) {
    return strcmp(row->group, "Optimizer") == 0 || strcmp(row->name, "steps") == 0 || strcmp(row->name, "keep-every") == 0;
}

// sums: (VALUES_KINDS, count)
static inline bool state_write_json(const char *folder, const training_progress *p, const options *o, const uint64_t *sums, int64_t count,
                                    error_text *error) {
    cJSON *json = cJSON_CreateObject();
    cJSON_AddNumberToObject(json, "format", STATE_FORMAT);
    for (int i = 0; i < STATE_NUMBERS; i++) cJSON_AddNumberToObject(json, state_numbers[i].key, (double)*state_number(p, i));
    const recent_values *recent[2] = {&p->losses, &p->norms};
    for (int i = 0; i < 2 && p->losses.count > 0; i++)
        cJSON_AddItemToObject(json, state_recent_keys[i], cJSON_CreateDoubleArray(recent[i]->values, (int)recent[i]->count));
    cJSON_AddItemToObject(json, "options", options_json(o, state_keeps_option));
    for (int k = 0; k < VALUES_KINDS; k++) {
        cJSON *list = cJSON_AddArrayToObject(json, state_sum_keys[k]);
        for (int64_t i = 0; i < count; i++) cJSON_AddItemToArray(list, state_hex(sums[k * count + i]));
    }
    char *text = cJSON_PrintUnformatted(json);
    cJSON_AddItemToObject(json, "checksum", state_hex(hash_bytes(HASH_EMPTY, text, strlen(text)))); // of the text without this member
    free(text);
    text = cJSON_PrintUnformatted(json);
    cJSON_Delete(json);
    bool ok = file_write(path_join(folder, "training_state.json").text, text, strlen(text), error);
    free(text);
    return ok;
}
static inline bool state_parse_json(const cJSON *json, training_progress *p, uint64_t *sums, int64_t count, error_text *error) {
    for (int i = 0; i < STATE_NUMBERS; i++) {
        const cJSON *at = cJSON_GetObjectItemCaseSensitive(json, state_numbers[i].key);
        int64_t *number = state_number(p, i);
        *number = -1;
        bool none = i >= STATE_TOKENS && cJSON_IsNumber(at) && at->valuedouble == -1;
        // From 2^52 on cJSON does not print every digit.
        if (!none && (!safetensors_whole(at, number) || *number >= (int64_t)1 << 52))
            return error_set(error, "training_state.json: \"%s\" is missing or not a whole number below 2^52", state_numbers[i].key);
    }
    recent_values *recent[2] = {&p->losses, &p->norms};
    for (int i = 0; i < 2; i++) {
        const cJSON *list = cJSON_GetObjectItemCaseSensitive(json, state_recent_keys[i]);
        memset(recent[i], 0, sizeof *recent[i]); // a run without --skip-spikes does not have them
        for (const cJSON *at = list != NULL ? list->child : NULL; at != NULL; at = at->next) {
            if (!cJSON_IsNumber(at) || !isfinite(at->valuedouble) || recent[i]->count == SPIKE_WINDOW)
                return error_set(error, "training_state.json: \"%s\" is not a list of at most %d numbers",
                                 state_recent_keys[i], SPIKE_WINDOW);
            recent_add(recent[i], at->valuedouble);
        }
    }
    if (p->losses.count != p->norms.count)
        return error_set(error, "training_state.json: it has %lld losses and %lld gradient norms",
                         (long long)p->losses.count, (long long)p->norms.count);
    for (int k = 0; k < VALUES_KINDS; k++) {
        const cJSON *list = cJSON_GetObjectItemCaseSensitive(json, state_sum_keys[k]);
        if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != (int)count)
            return error_set(error, "training_state.json: \"%s\" does not hold %lld sums", state_sum_keys[k], (long long)count);
        int64_t i = k * count;
        for (const cJSON *at = list->child; at != NULL; at = at->next, i++)
            if (!state_read_hex(at, &sums[i]))
                return error_set(error, "training_state.json: a sum in \"%s\" is damaged", state_sum_keys[k]);
    }
    return true;
}
// *p, sums (VALUES_KINDS, count) = what the file says. False with a message in `refused`: another version of this program has written it;
// or in error.
static inline bool state_read_json(const char *folder, training_progress *p, uint64_t *sums, int64_t count, error_text *refused,
                                   error_text *error) {
    error_text why = {"", 0};
    cJSON *json = file_read_json(path_join(folder, "training_state.json").text, STATE_BYTES, &why);
    if (json == NULL) return error_set_why(error, &why, "training_state.json");
    int64_t format = STATE_FORMAT;
    uint64_t stored = 0;
    safetensors_whole(cJSON_GetObjectItemCaseSensitive(json, "format"), &format);
    cJSON *checksum = cJSON_DetachItemFromObjectCaseSensitive(json, "checksum");
    char *text = cJSON_PrintUnformatted(json);
    bool ok = format == STATE_FORMAT ||
              error_set(refused, "was written by another version of this program, in format %lld (this one: %d); "
                                 "only its parameters can be used, by --model %s",
                        (long long)format, STATE_FORMAT, printable(folder).text);
    ok = ok && ((state_read_hex(checksum, &stored) && hash_bytes(HASH_EMPTY, text, strlen(text)) == stored) ||
                error_set(error, "training_state.json: its checksum is wrong"));
    ok = ok && state_parse_json(json, p, sums, count, error);
    free(text);
    cJSON_Delete(checksum);
    cJSON_Delete(json);
    return ok;
}

// ---- save ----

// Writes this rank's part of both moments, as hf_write does with the parameters. sums (2, model_checksums): += their checksums.
static inline bool state_write_moments(const model *m, const char *folder, uint64_t *sums, error_text *error) {
    safetensors files = safetensors_none();
    size_t shares = (size_t)zero_shares(&m->zero);
    const char *copy_m = m->saving != NULL ? m->saving + sizeof(float) * shares : NULL;
    const char *copy_v = copy_m != NULL ? copy_m + m->zero.moment_bytes * shares : NULL;
    safetensors_dtype dtype = m->setup.bf16_moments ? DTYPE_BF16 : DTYPE_F32;
    model_files_add(m, &files, VALUES_M, dtype, NULL);
    model_files_add(m, &files, VALUES_V, dtype, NULL);
    bool ok = safetensors_lay_out(&files, folder, "optimizer", EXPORT_LIMIT, m->g->rank == 0, error) &&
              model_files_write(m, &files, VALUES_M, copy_m, sums, error) &&
              model_files_write(m, &files, VALUES_V, copy_v, sums + model_checksums(m), error) && safetensors_sync(&files, error);
    safetensors_close(&files);
    return ok;
}
// Removes all states but the newest --keep and those of --keep-every. Renames each first, so that no half-removed folder is called step-*.
static inline void state_remove_old(const state_store *s) {
    int64_t *steps = HOST_NEW(int64_t, STATES_MAX);
    error_text unread = {"", 0}; // then some stay until the next save
    int count = state_list(s->o->out, steps, &unread);
    for (int i = 0; i < count - s->o->keep; i++) {
        if (state_stays(s->o, steps[i])) continue;
        path_text from = state_path(s->o->out, "", steps[i]), to = state_path(s->o->out, "unfinished-", steps[i]);
        if (rename(from.text, to.text) == 0) folder_remove(to.text);
    }
    free(steps);
}

// Stage 1, on every rank, once the folders exist: writes its part of everything but training_state.json.
static inline void *state_write(void *store) {
    state_store *s = (state_store *)store;
    double began = device_seconds();
    path_text optimizer = path_join(s->unfinished.text, "optimizer");
    bool ok = s->why.text[0] == '\0' &&
              hf_write(s->m, s->unfinished.text, s->source, EXPORT_F32, s->m->saving, s->sums, &s->why) &&
              state_write_moments(s->m, optimizer.text, s->sums + model_checksums(s->m), &s->why);
    if (ok && s->m->g->rank == 0) folder_sync(optimizer.text, &s->why);
    s->write_seconds = device_seconds() - began;
    __atomic_store_n(&s->worked, true, __ATOMIC_RELEASE);
    return NULL;
}
// Stage 2, on rank 0: writes training_state.json, renames the folder, which completes the state; removes the oldest ones beyond --keep.
static inline void *state_give_name(void *store) {
    state_store *s = (state_store *)store;
    if (state_write_json(s->unfinished.text, &s->progress, s->o, s->sums, model_checksums(s->m), &s->why) &&
        folder_publish(s->unfinished.text, state_path(s->o->out, "", s->progress.step).text, &s->why))
        state_remove_old(s);
    __atomic_store_n(&s->worked, true, __ATOMIC_RELEASE);
    return NULL;
}
static inline void state_save_stage(state_store *s, save_stage stage, void *(*work)(void *)) { // work NULL: nothing to do on this rank
    s->stage = stage;
    s->worked = work == NULL;
    s->threaded = work != NULL && s->m->saving != NULL && pthread_create(&s->worker, NULL, work, s) == 0;
    if (work != NULL && !s->threaded) work(s);
}

// Starts saving the state as step-<progress->step>; no other save may be in progress. What is saved is the model as it is now; with
// m->saving, training continues at once. state_save_advance reports errors.
static inline void state_save_start(state_store *s, model *m, const training_progress *progress) {
    double began = device_seconds();
    s->unfinished = state_path(s->o->out, "unfinished-", progress->step);
    s->m = m;
    s->progress = *progress;
    s->sums = HOST_NEW(uint64_t, VALUES_KINDS * model_checksums(m));
    s->why.text[0] = '\0';
    if (comm_rank(s->all) == 0) {
        state_remove_old(s); // where --keep has become less: their room may be needed
        if (folder_make(s->unfinished.text, &s->why)) folder_make(path_join(s->unfinished.text, "optimizer").text, &s->why);
    }
    zero_settle(&m->zero);
    if (m->saving != NULL) model_copy_shares(m);
    error_text none = {"", 0};
    // Removing old states may take long. From here on the folders exist: a rank that sees none must not make its own.
    comm_agree_on_files(s->all, &none);
    state_save_stage(s, SAVE_WRITING, state_write);
    s->wait_seconds = device_seconds() - began;
}
// Advances the save in progress as far as it can go now; with `wait`, to its end. s->stage is SAVE_NONE when the save is over. False with a
// message (no space, no permission): the save has failed and left nothing, earlier states are untouched, and the run can go on.
static inline bool state_save_advance(state_store *s, bool wait, error_text *error) {
    bool first_rank = comm_rank(s->all) == 0, ok = true;
    double began = device_seconds();
    error->text[0] = '\0';
    while (ok && s->stage != SAVE_NONE) {
        int64_t working = !__atomic_load_n(&s->worked, __ATOMIC_ACQUIRE);
        if (!wait) comm_sum_int64(s->all, &working, 1);
        if (!wait && working > 0) break;
        progress_note note = progress_start("writing the state");
        while (!__atomic_load_n(&s->worked, __ATOMIC_ACQUIRE)) {
            usleep(1000);
            progress_show(&note, 0, 0);
        }
        if (s->threaded) pthread_join(s->worker, NULL);
        *error = s->why;
        ok = comm_agree_on_files(s->all, error);
        if (ok && s->stage == SAVE_WRITING) {
            checksum_add_ranks(s->all, s->sums, VALUES_KINDS * model_checksums(s->m));
            state_save_stage(s, SAVE_NAMING, first_rank ? state_give_name : NULL);
        } else {
            s->stage = SAVE_NONE;
        }
    }
    error_text none = {"", 0};
    if (!ok && first_rank) folder_remove(s->unfinished.text);
    if (!ok) comm_agree_on_files(s->all, &none); // which may take long
    if (s->stage == SAVE_NONE) {
        free(s->sums);
        s->sums = NULL;
    }
    s->wait_seconds += device_seconds() - began;
    return ok;
}

// ---- resume ----

// The numbers of a model's config that a state and the run that resumes it must have in common.
typedef struct {
    const char *name;
    double value;
} state_size;
enum { STATE_ROPE = 9, STATE_SIZES = STATE_ROPE + 2 + ROPE_NUMBERS }; // from STATE_ROPE on: RoPE, which new data may change
static inline void state_sizes(const model_config *c, state_size *sizes) {
    const state_size all[STATE_ROPE + 2] = {
        {"num_hidden_layers", (double)c->L}, {"hidden_size", (double)c->D}, {"num_attention_heads", (double)c->H},
        {"num_key_value_heads", (double)c->Hkv}, {"head_dim", (double)c->HS}, {"intermediate_size", (double)c->F},
        {"vocab_size", (double)c->V}, {"tie_word_embeddings", (double)c->tied},
        {"rms_norm_eps", (double)c->rms_eps}, {"rope_theta", c->rope_theta}, {"rope type", (double)c->rope.kind}};
    memcpy(sizes, all, sizeof all);
    for (int i = 0; i < ROPE_NUMBERS; i++) sizes[STATE_ROPE + 2 + i] = (state_size){rope_numbers[i].key, *rope_value(&c->rope, i)};
}
static inline uint64_t state_sizes_hash(const model_config *c) {
    uint64_t hash = HASH_EMPTY;
    state_size sizes[STATE_SIZES];
    state_sizes(c, sizes);
    for (int i = 0; i < STATE_SIZES; i++) hash = hash_bytes(hash, &sizes[i].value, sizeof sizes[i].value);
    return hash;
}
static inline bool state_same_model(const model_config *state, const model_config *run, bool new_data, error_text *error) {
    state_size there[STATE_SIZES], here[STATE_SIZES];
    state_sizes(state, there);
    state_sizes(run, here);
    for (int i = 0; i < STATE_SIZES; i++)
        if (there[i].value != here[i].value && !(i >= STATE_ROPE && new_data))
            return error_set(error, "holds another model: \"%s\" is %.9g there and %.9g here%s",
                             here[i].name, there[i].value, here[i].value,
                             i >= STATE_ROPE ? "; the options of the run that was saved, or --new-data to go on with another RoPE" : "");
    return true;
}
// In what a state's samples are not the run's: texts (STATE_DIFFERENCES), each the end of a sentence about the state. Returns how many.
enum { STATE_DIFFERENCES = 5 };
static inline int state_differences(const training_progress *state, const training_progress *run, error_text *texts) {
    const int64_t there[2] = {state->document_end, state->document_begin}, here[2] = {run->document_end, run->document_begin};
    int n = 0;
    memset(texts, 0, sizeof *texts * STATE_DIFFERENCES);
    if (state->seed != run->seed)
        error_set(&texts[n++], "was trained with --seed %lld, on which the order of samples depends", (long long)state->seed);
    if (state->seq_len != run->seq_len) error_set(&texts[n++], "was trained with --seq-len %lld", (long long)state->seq_len);
    if (state->train_tokens != run->train_tokens)
        error_set(&texts[n++], "was trained on %lld tokens, and --train-data holds %lld",
                  (long long)state->train_tokens, (long long)run->train_tokens);
    else if (state->train_order != run->train_order && state->seq_len == run->seq_len)
        error_set(&texts[n++], "was trained on another mixture of sources");
    else if (state->train_files != run->train_files) error_set(&texts[n++], "was trained on other files, or other loss masks");
    for (int i = 0; i < 2; i++) {
        const char *option = i == 0 ? "end" : "begin";
        if (there[i] == here[i]) continue;
        if (there[i] < 0) error_set(&texts[n++], "was trained with --document-%s none", option);
        else error_set(&texts[n++], "was trained with --document-%s %lld", option, (long long)there[i]);
    }
    return n;
}
// Notes on stderr what of a state's options this run changes.
static inline void state_note_options(const char *folder, const options *o) {
    error_text why = {"", 0};
    cJSON *json = file_read_json(path_join(folder, "training_state.json").text, STATE_BYTES, &why);
    cJSON *now = options_json(o, state_keeps_option);
    for (const cJSON *at = now->child; at != NULL; at = at->next) {
        const cJSON *before = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(json, "options"), at->string);
        if (!cJSON_IsString(before) || strcmp(before->valuestring, at->valuestring) == 0) continue;
        const char *was = strcmp(before->valuestring, "-") == 0 ? "not given" : before->valuestring;
        const char *is = strcmp(at->valuestring, "-") == 0 ? "not given" : at->valuestring;
        fprintf(stderr, "note: --%s was %s so far and is %s from now on\n", at->string, was, is);
    }
    cJSON_Delete(now);
    cJSON_Delete(json);
}

// Notes on stderr where this run's RoPE differs from a state's.
static inline void state_note_rope(const model_config *state, const model_config *run) {
    state_size there[STATE_SIZES], here[STATE_SIZES];
    state_sizes(state, there);
    state_sizes(run, here);
    for (int i = STATE_ROPE; i < STATE_SIZES; i++)
        if (there[i].value != here[i].value)
            fprintf(stderr, "note: \"%s\" was %.9g so far and is %.9g from now on\n", here[i].name, there[i].value, here[i].value);
}

// Loads parameters and moments (for training) of a state into the model and compares their checksums with sums (VALUES_KINDS,
// model_checksums). False with a message: the state is damaged. Collective.
static inline bool state_load(model *m, const char *folder, const uint64_t *sums, error_text *error) {
    int64_t count = model_checksums(m);
    int kinds = m->setup.forward_only ? 1 : VALUES_KINDS;
    uint64_t *read = HOST_NEW(uint64_t, VALUES_KINDS * count);
    safetensors files = safetensors_none();
    values_buffer buffer;
    bool room = values_buffer_make(&buffer, error);
    if (hf_import(m, folder, read, error) && room && kinds > 1 &&
        safetensors_open(&files, path_join(folder, "optimizer").text, "optimizer", error) &&
        model_files_check(m, &files, VALUES_M, error) && model_files_check(m, &files, VALUES_V, error) &&
        model_files_read(m, &files, VALUES_M, &buffer, read + count, error))
        model_files_read(m, &files, VALUES_V, &buffer, read + 2 * count, error);
    if (comm_agree_on_files(m->g->all, error)) {
        checksum_add_ranks(m->g->all, read, kinds * count);
        for (int64_t i = 0; i < kinds * count; i++) {
            if (read[i] == sums[i]) continue;
            int64_t u = i % count / ZERO_MAX_TENSORS, t = i % ZERO_MAX_TENSORS;
            error_set(error, "the checksum of unit %lld, \"%s\"%s, is wrong", (long long)u,
                      t < m->units[u].tensor_count ? m->units[u].tensors[t].name : "none", values_suffix((values_kind)(i / count)));
        }
    }
    safetensors_close(&files);
    values_buffer_free(&buffer);
    free(read);
    return error->text[0] == '\0';
}

static inline void state_set_aside(const state_store *s, int64_t step, error_text *error) { // a damaged state
    path_text from = state_path(s->o->out, "", step), to = state_path(s->o->out, "damaged-", step);
    folder_remove(to.text);
    if (rename(from.text, to.text) != 0) error_set_errno(error, "%s: this damaged state cannot be renamed", printable(from.text).text);
}
// Goes on from a state that was loaded, with config c (on ranks but 0 its max_position alone): sets *progress and notes what changes.
static inline void state_continue(const state_store *s, model *m, const model_config *c, const training_progress *saved, bool training,
                                  training_progress *progress) {
    error_text others[STATE_DIFFERENCES];
    int differences = training ? state_differences(saved, progress, others) : 0;
    bool same = differences == 0, first_rank = comm_rank(s->all) == 0;
    progress->step = saved->step;
    progress->samples = same ? saved->samples : 0;
    progress->sequences = saved->sequences;
    progress->updated_step = saved->updated_step;
    progress->data_step = same ? saved->data_step : saved->step;
    if (same && s->o->skip_spikes > 0) { // otherwise the level may be another, or is no longer followed
        progress->losses = saved->losses;
        progress->norms = saved->norms;
    }
    if (first_rank && training && s->o->new_data) state_note_rope(c, &m->c);
    for (int i = 0; first_rank && i < differences; i++) fprintf(stderr, "note: new data from here on: the state %s\n", others[i].text);
    if (first_rank && training && s->o->steps > saved->step) state_note_options(state_path(s->o->out, "", saved->step).text, s->o);
    m->c.max_position = max_i64(m->c.max_position, c->max_position); // with --steps 0, options_model does not raise it to --seq-len
}
// Loads the newest state that is not damaged. progress in: what this run's samples are; out: also the state's step and samples; with
// --new-data and other data 0 samples (another RoPE alone: the state's). *found false: there is no state, and model and progress are as
// before. Notes options that change. Damaged states are skipped with a line on stderr, and renamed to damaged-* if an older one is good.
// False with a message: a state of another model, or without --new-data of other data or another RoPE; states that cannot be read now;
// there are states, but all are damaged.
static inline bool state_resume(state_store *s, model *m, training_progress *progress, bool *found, error_text *error) {
    bool first_rank = comm_rank(s->all) == 0;
    bool training = s->o->steps > 0 && progress->train_tokens > 0; // without training, the data does not matter
    int64_t *steps = HOST_NEW(int64_t, STATES_MAX), count = model_checksums(m), states = 0;
    uint64_t *sums = HOST_NEW(uint64_t, VALUES_KINDS * count);
    training_progress saved = *progress;
    model_config c; // of the state that is tried
    if (first_rank) states = state_list(s->o->out, steps, error);
    comm_agree_on_files(s->all, error);
    comm_broadcast(s->all, &states, sizeof states, 0);
    comm_broadcast(s->all, steps, sizeof *steps * (size_t)states, 0);
    *found = false;
    int64_t at = states; // the state that is tried
    while (at > 0 && !*found) {
        error_text why = {"", 0};     // it is damaged, or cannot be read now
        error_text refused = {"", 0}; // the run must not go on from it, nor from an older one
        error_text others[STATE_DIFFERENCES];
        at--;
        path_text path = state_path(s->o->out, "", steps[at]);
        memset(&c, 0, sizeof c);
        bool read = first_rank && config_load(&c, path.text, &why) && state_same_model(&c, &m->c, s->o->new_data, &refused) &&
                    state_read_json(path.text, &saved, sums, count, &refused, &why);
        if (read && saved.step != steps[at]) error_set(&why, "training_state.json: its step is %lld", (long long)saved.step);
        if (read && training && !s->o->new_data && state_differences(&saved, progress, others) > 0)
            error_set(&refused, "%s; --new-data goes on from this state with other data", others[0].text);
        if (refused.text[0] != '\0') error_set(error, "--resume: %s %s", printable(path.text).text, refused.text);
        if (!comm_agree_on_files(s->all, error)) break;
        if (comm_agree(s->all, &why)) {
            comm_broadcast(s->all, sums, sizeof *sums * (size_t)(VALUES_KINDS * count), 0);
            comm_broadcast(s->all, &saved, sizeof saved, 0);
            comm_broadcast(s->all, &c.max_position, sizeof c.max_position, 0);
            m->zero.rounding.step = saved.updated_step;
            *found = state_load(m, path.text, sums, &why);
        }
        error_cut_folder(&why, path.text);
        bool unread = error_may_pass(&why) || why.number == EACCES || why.number == EPERM || why.number == ERROR_STOPPED; // not damaged
        if (unread && !*found) {
            const char *broken = why.number == EIO ? "; if its disk is broken there, move this state away: an older one is then used" : "";
            error_set(error, "--resume: %s: %s%s", printable(path.text).text, why.text, broken);
            error->number = why.number;
            break;
        }
        if (!*found && first_rank) fprintf(stderr, "note: skipping the damaged state %s: %s\n", printable(path.text).text, why.text);
    }
    m->zero.rounding.step = 0;
    if (*found) {
        state_continue(s, m, &c, &saved, training, progress);
        for (int64_t newer = at + 1; first_rank && newer < states; newer++) state_set_aside(s, steps[newer], error);
    } else if (states > 0 && error->text[0] == '\0') {
        error_set(error, "--resume: none of the states in %s is intact; move them away to start from the beginning",
                  printable(s->o->out).text);
    }
    free(steps);
    free(sums);
    return comm_agree_on_files(s->all, error);
}

#endif
