// Import and export of Hugging Face folders: config.json, *.safetensors, tokenizer files. On import, each rank reads only the rows that its
// shards hold. On export, each distinct piece has one writer. All ranks must see one file system.
// Collective functions: every rank calls, and every rank gets the same answer and message.
#ifndef HF_FOLDER_H
#define HF_FOLDER_H

#include "agreement.h"   // defines: agree_on_number, agree_on_folder
#include "model_files.h" // defines: model_files_*, values_buffer, safetensors
#include "options.h"     // defines: export_dtype_kind
#include <fnmatch.h>
#include <sys/file.h>

// ---- import ----

// Tied embeddings may be in a file under the name of the head alone: safetensors' save_model keeps the first name in the alphabet.
static inline void hf_name_tied(const model_config *c, safetensors *files) {
    const char *name = "model.embed_tokens.weight";
    for (int64_t i = 0; c->tied && i < files->tensor_count && safetensors_find(files, name) == NULL; i++) {
        if (strcmp(files->tensors[i].name, "lm_head.weight") != 0) continue;
        free(files->tensors[i].name);
        files->tensors[i].name = text_copy(name);
    }
}

// An lm_head beside tied embeddings must be equal to them; each rank compares a share.
static inline bool hf_check_tied(const model *m, const safetensors *files, values_buffer *buffer, error_text *error) {
    const safetensor *a = safetensors_find(files, "model.embed_tokens.weight"), *b = safetensors_find(files, "lm_head.weight");
    if (!m->c.tied || b == NULL) return true;
    if (b->dims != 2 || b->shape[0] != a->shape[0] || b->shape[1] != a->shape[1])
        return error_set(error, "\"lm_head.weight\" and \"model.embed_tokens.weight\" have different shapes, but config.json ties them");
    int64_t share = ceil_div(a->count, m->g->ranks), half = VALUES_CHUNK / 2, end = min_i64(a->count, share * (m->g->rank + 1));
    for (int64_t at = share * m->g->rank; at < end; at += half) {
        int64_t n = min_i64(half, end - at);
        float *x = buffer->host, *y = buffer->host + half;
        if (!safetensors_read(files, a, at, n, x, error) || !safetensors_read(files, b, at, n, y, error)) return false;
        if (memcmp(x, y, sizeof(float) * (size_t)n) != 0)
            return error_set(error, "\"lm_head.weight\" and \"model.embed_tokens.weight\" differ, but config.json ties them; "
                                    "set \"tie_word_embeddings\" to false");
    }
    return true;
}

// Reads parameters (and master weights) from the folder's files and zeroes the moments. sums (model_checksums; may be NULL): += the
// checksums of what this rank read. Rank 0 prints how much it read. Collective; false with a message that names the folder: a tensor
// missing, unknown or of another shape; anything wrong with a file; files that differ between ranks.
static inline bool hf_import(model *m, const char *folder, uint64_t *sums, error_text *error) {
    error_text why = {"", 0};
    safetensors files = safetensors_none();
    values_buffer buffer;
    uint64_t hash = 0;
    if (values_buffer_make(&buffer, &why) && safetensors_open(&files, folder, "model", &why)) {
        hf_name_tied(&m->c, &files);
        if (model_files_check(m, &files, VALUES_PARAMETERS, &why)) safetensors_hash(&files, &hash, &why);
    }
    // A bad folder: one line, before anything large is read.
    if (comm_agree_on_files(m->g->all, &why) && agree_on_number(m->g->all, hash, "the parameters", &why)) {
        zero_reset_moments(&m->zero);
        double began = device_seconds();
        if (hf_check_tied(m, &files, &buffer, &why)) model_files_read(m, &files, VALUES_PARAMETERS, &buffer, sums, &why);
        zero_spread_due(&m->zero);
        if (comm_agree_on_files(m->g->all, &why) && m->g->rank == 0)
            printf("read        %s: %.3f of %.3f MB on this rank, %.3f s\n", folder, 1e-6 * (double)safetensors_bytes_read(&files),
                   1e-6 * (double)safetensors_bytes(&files), device_seconds() - began);
    }
    safetensors_close(&files);
    values_buffer_free(&buffer);
    if (why.text[0] == '\0') return true;
    error_cut_folder(&why, folder);
    return error_set_why(error, &why, "%s", printable(folder).text);
}

// ---- the source: what goes from the model's folder into each state and export ----

typedef struct {
    char *name;  // in the folder
    char *bytes; // its contents, and a NUL behind them
    size_t count;
} hf_file;
enum { HF_FILES_MAX = 256 };
// Read before training: at a save or export, hours later, the folder may be gone. hf_source_free frees.
typedef struct {
    const char *folder;   // the caller's
    int64_t max_position; // the length that its model was made for
    hf_file *files;       // of rank 0: config.json, then tokenizer, generation defaults and licence
    int file_count;
    safetensors like;     // its tensors, if their number types are wanted
} hf_source;

static inline void hf_source_free(hf_source *s) {
    for (int i = 0; i < s->file_count; i++) {
        free(s->files[i].name);
        free(s->files[i].bytes);
    }
    free(s->files);
    safetensors_close(&s->like);
    memset(s, 0, sizeof *s);
}
static inline bool hf_source_add(hf_source *s, const char *name, error_text *error) {
    path_text path = path_join(s->folder, name);
    struct stat entry;
    int fd = open(path.text, O_RDONLY | O_CLOEXEC);
    bool ok = s->file_count < HF_FILES_MAX || error_set(error, "%s: holds more than %d files for a tokenizer", s->folder, HF_FILES_MAX);
    ok = ok && ((fd >= 0 && fstat(fd, &entry) == 0) || error_set_errno(error, "%s: cannot be opened", path.text));
    if (ok) {
        hf_file *file = &s->files[s->file_count++];
        file->name = text_copy(name);
        file->count = (size_t)entry.st_size;
        file->bytes = HOST_NEW(char, file->count + 1);
        ok = file_pread(fd, path.text, file->bytes, file->count, 0, error);
    }
    if (fd >= 0) close(fd);
    return ok;
}
// files: reads the files (rank 0); types: also what its tensors are. False with a message, and nothing to free.
static inline bool hf_source_read(hf_source *s, const char *folder, bool files, bool types, error_text *error) {
    static const char *const patterns[] = {"generation_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json",
                                           "vocab.json", "merges.txt", "chat_template.*", "LICENSE*", "USE_POLICY*"};
    model_config was;
    memset(s, 0, sizeof *s);
    s->folder = folder;
    s->files = HOST_NEW(hf_file, HF_FILES_MAX);
    DIR *list = files ? opendir(folder) : NULL;
    bool ok = !files || list != NULL || error_set_errno(error, "%s: cannot be opened", folder);
    ok = ok && config_load(&was, folder, error) && (!files || hf_source_add(s, "config.json", error));
    for (struct dirent *entry; ok && files && (errno = 0, entry = readdir(list)) != NULL;) {
        struct stat kind;
        bool wanted = false;
        for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) wanted = wanted || fnmatch(patterns[i], entry->d_name, 0) == 0;
        bool known = stat(path_join(folder, entry->d_name).text, &kind) == 0;
        if (wanted && (known ? S_ISREG(kind.st_mode) : errno != ENOENT)) // ENOENT: a link to nothing
            ok = hf_source_add(s, entry->d_name, error);
    }
    if (ok && files && errno != 0) ok = error_set_errno(error, "%s: cannot be read", folder);
    if (list != NULL) closedir(list);
    if (ok) s->max_position = was.max_position;
    ok = ok && (!types || safetensors_open(&s->like, folder, "model", error));
    if (ok) hf_name_tied(&was, &s->like);
    if (!ok) hf_source_free(s);
    return ok;
}

// ---- export ----

static inline double hf_short_number(float x) { // the double with the fewest digits that is x in float: 1e-05, not 9.99999974737875e-06
    char text[32];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)x);
        if (strtof(text, NULL) == x) return strtod(text, NULL);
    }
    return (double)x;
}
static inline const char *hf_dtype_name(safetensors_dtype d) {
    return d == DTYPE_F32 ? "float32" : d == DTYPE_F16 ? "float16" : "bfloat16";
}

// Makes numbers that Hugging Face wants as floats print as such, 8.0 and not 8: cJSON does not keep the difference. Numbers that no double
// holds print as one that reads as infinite again; cJSON's would be null.
static inline void hf_print_floats(cJSON *json) {
    for (cJSON *at = json->child, *next; at != NULL; at = next) {
        next = at->next;
        if (cJSON_IsObject(at)) hf_print_floats(at);
        char text[64];
        if (!cJSON_IsNumber(at) || at->string == NULL) continue;
        bool is_float = word_listed(" rope_theta attention_dropout ", at->string) || isinf(at->valuedouble);
        for (int i = 0; i < ROPE_NUMBERS; i++) is_float |= strcmp(at->string, rope_numbers[i].key) == 0 && !rope_numbers[i].whole;
        if (!is_float) continue;
        double x = at->valuedouble;
        snprintf(text, sizeof text, x == floor(x) ? "%.1f" : "%.15g", x); // numbers up to 1e15, as config_read allows
        for (int digits = 16; digits <= 17 && strtod(text, NULL) != x; digits++) // cJSON's may be off by a bit
            snprintf(text, sizeof text, "%.*g", digits, x);
        if (isinf(x)) snprintf(text, sizeof text, x > 0 ? "1e999" : "-1e999");
        cJSON_ReplaceItemInObjectCaseSensitive(json, at->string, cJSON_CreateRaw(text));
    }
}

// The object for rope_scaling or rope_parameters; the caller deletes.
static inline cJSON *hf_rope(const rope_scaling *r) {
    cJSON *rope = cJSON_CreateObject();
    cJSON_AddStringToObject(rope, "rope_type", config_rope_name(r->kind));
    for (int i = 0; i < ROPE_NUMBERS; i++)
        if (*rope_value(r, i) > 0) cJSON_AddNumberToObject(rope, rope_numbers[i].key, *rope_value(r, i));
    return rope;
}
// Changes a source's config.json as the options did: RoPE (in the older or newer form, as the file has it), max_position_embeddings, and
// other names of that length, which transformers ignores, but not all that serve models: vLLM takes the least of them, SGLang the first.
static inline void hf_change_config(cJSON *json, const model_config *c, error_text *error) {
    model_config was;
    memset(&was, 0, sizeof was);
    if (!config_read(&was, json, error)) return;
    static const char *const lengths[] = {"max_position_embeddings", "max_sequence_length", "max_seq_length", "max_seq_len", "seq_length",
                                          "seq_len", "model_max_length"};
    for (size_t i = 0; was.max_position != c->max_position && i < sizeof lengths / sizeof lengths[0]; i++) {
        const cJSON *at = cJSON_GetObjectItemCaseSensitive(json, lengths[i]);
        if (cJSON_IsNumber(at) && at->valuedouble < (double)c->max_position)
            cJSON_ReplaceItemInObjectCaseSensitive(json, lengths[i], cJSON_CreateNumber((double)c->max_position));
    }
    if (config_same_rope(&was, c)) return;
    bool newer = cJSON_GetObjectItemCaseSensitive(json, "rope_parameters") != NULL;
    cJSON_DeleteItemFromObjectCaseSensitive(json, "rope_theta");
    cJSON_DeleteItemFromObjectCaseSensitive(json, "rope_scaling");
    cJSON_DeleteItemFromObjectCaseSensitive(json, "rope_parameters");
    cJSON_DeleteItemFromObjectCaseSensitive(json, "original_max_position_embeddings");
    cJSON *rope = newer || c->rope.kind != ROPE_PLAIN ? hf_rope(&c->rope) : cJSON_CreateNull();
    cJSON_AddItemToObject(json, newer ? "rope_parameters" : "rope_scaling", rope);
    cJSON_AddNumberToObject(newer ? rope : json, "rope_theta", c->rope_theta);
}

// The config.json of a model that came from no folder; the caller deletes.
static inline cJSON *hf_config(const model_config *c) {
    cJSON *j = cJSON_CreateObject();
    cJSON_AddItemToArray(cJSON_AddArrayToObject(j, "architectures"), cJSON_CreateString("LlamaForCausalLM"));
    cJSON_AddStringToObject(j, "model_type", "llama");
    cJSON_AddFalseToObject(j, "attention_bias");
    cJSON_AddNumberToObject(j, "attention_dropout", 0);
    cJSON_AddNullToObject(j, "bos_token_id"); // not known; absent, they would be 1 and 2
    cJSON_AddNullToObject(j, "eos_token_id");
    cJSON_AddNumberToObject(j, "head_dim", c->HS);
    cJSON_AddStringToObject(j, "hidden_act", "silu");
    cJSON_AddNumberToObject(j, "hidden_size", c->D);
    cJSON_AddNumberToObject(j, "intermediate_size", c->F);
    cJSON_AddNumberToObject(j, "max_position_embeddings", (double)c->max_position);
    cJSON_AddFalseToObject(j, "mlp_bias");
    cJSON_AddNumberToObject(j, "num_attention_heads", c->H);
    cJSON_AddNumberToObject(j, "num_hidden_layers", c->L);
    cJSON_AddNumberToObject(j, "num_key_value_heads", c->Hkv);
    cJSON_AddNumberToObject(j, "rms_norm_eps", hf_short_number(c->rms_eps));
    cJSON_AddItemToObject(j, "rope_scaling", c->rope.kind == ROPE_PLAIN ? cJSON_CreateNull() : hf_rope(&c->rope));
    cJSON_AddNumberToObject(j, "rope_theta", c->rope_theta);
    cJSON_AddBoolToObject(j, "tie_word_embeddings", c->tied);
    cJSON_AddBoolToObject(j, "use_cache", true);
    cJSON_AddNumberToObject(j, "vocab_size", c->V);
    return j;
}

// Writes config.json, with `dtype`: the source's with what the options changed, or a new one (source NULL).
static inline bool hf_write_config(const model_config *c, const char *folder, const hf_source *source, safetensors_dtype dtype,
                                   error_text *error) {
    cJSON *json = source != NULL ? cJSON_Parse(source->files[0].bytes) : hf_config(c);
    if (json == NULL) return error_set(error, "%s/config.json: is not valid JSON", printable(source->folder).text); // config_load took it
    if (source != NULL) hf_change_config(json, c, error);
    const char *key = cJSON_GetObjectItemCaseSensitive(json, "dtype") != NULL ? "dtype" : "torch_dtype";
    cJSON_DeleteItemFromObjectCaseSensitive(json, "dtype");
    cJSON_DeleteItemFromObjectCaseSensitive(json, "torch_dtype");
    cJSON_AddStringToObject(json, key, hf_dtype_name(dtype));
    hf_print_floats(json);
    char *text = cJSON_Print(json);
    cJSON_Delete(json);
    bool ok = file_write(path_join(folder, "config.json").text, text, strlen(text), error);
    free(text);
    return ok;
}
// Writes a JSON file as it was, but for a number `name` (with its quotes) below `now`, where the model's length has grown from `was`.
static inline bool hf_write_longer(const hf_file *file, const char *to, const char *name, int64_t was, int64_t now, error_text *error) {
    char *number = was < now ? strstr(file->bytes, name) : NULL, *end = NULL;
    if (number != NULL) {
        number += strlen(name);
        number += strspn(number, " \t\r\n:");
    }
    if (number == NULL || !(strtod(number, &end) < (double)now) || end == number) return file_write(to, file->bytes, file->count, error);
    size_t most = file->count + 32;
    char *changed = HOST_NEW(char, most);
    int n = snprintf(changed, most, "%.*s%lld%s", (int)(number - file->bytes), file->bytes, (long long)now, end);
    bool ok = file_write(to, changed, (size_t)n, error);
    free(changed);
    return ok;
}
// Writes tokenizer, generation defaults and licence of the source; the model that is written is for `now` tokens.
static inline bool hf_write_companions(const hf_source *source, const char *folder, int64_t now, error_text *error) {
    bool ok = true;
    for (int i = 1; ok && i < source->file_count; i++) {
        const hf_file *file = &source->files[i];
        path_text to = path_join(folder, file->name);
        // transformers cuts prompts at the first, and refuses those that are longer than the second.
        const char *length = strcmp(file->name, "tokenizer_config.json") == 0   ? "\"model_max_length\""
                             : strcmp(file->name, "generation_config.json") == 0 ? "\"max_length\""
                                                                                 : NULL;
        if (length != NULL) ok = hf_write_longer(file, to.text, length, source->max_position, now, error);
        else ok = file_write(to.text, file->bytes, file->count, error);
    }
    return ok;
}

#define EXPORT_LIMIT ((int64_t)5000000000) // bytes of data in a file, as transformers splits models

// Writes this rank's part of a model into an empty folder: its share of the parameters, in files of at most EXPORT_LIMIT. Rank 0 also
// writes config.json, what belongs beside it from `source` (NULL: nothing), and the headers. copy: m->saving; NULL: the parameters as they
// are now. sums (model_checksums; may be NULL): += the checksums of what this rank wrote, before rounding to the dtype. Not collective:
// ranks may call at different times, and with a copy also from a thread; the folder is complete when all have returned. False with a
// message: the folder is half-written.
static inline bool hf_write(const model *m, const char *folder, const hf_source *source, export_dtype_kind dtype, const char *copy,
                            uint64_t *sums, error_text *error) {
    bool first_rank = m->g->rank == 0;
    safetensors files = safetensors_none();
    safetensors_dtype fallback = dtype == EXPORT_BF16 ? DTYPE_BF16 : dtype == EXPORT_F16 ? DTYPE_F16 : DTYPE_F32;
    model_files_add(m, &files, VALUES_PARAMETERS, fallback, dtype == EXPORT_AUTO && source != NULL ? &source->like : NULL);
    bool ok = !first_rank || hf_write_config(&m->c, folder, source, files.tensors[0].dtype, error);
    if (first_rank && source != NULL) ok = ok && hf_write_companions(source, folder, m->c.max_position, error);
    ok = ok && safetensors_lay_out(&files, folder, "model", EXPORT_LIMIT, first_rank, error) &&
         model_files_write(m, &files, VALUES_PARAMETERS, copy, sums, error) && safetensors_sync(&files, error);
    safetensors_close(&files);
    return ok;
}

// Whether --export FOLDER can be made: it must not exist yet, and its parent must exist and be writable.
static inline bool hf_export_check_here(const char *folder, error_text *error) {
    path_text parent = path_parent(folder);
    if (path_exists(path_plain(folder).text))
        return error_set(error, "already exists; name a folder that does not exist yet, "
                                "or leave --export out if an earlier attempt has written it");
    if (errno != ENOENT && errno != ENOTDIR) return error_set_errno(error, "cannot be looked up");
    if (!path_is_folder(parent.text)) {
        if (errno == ENOENT || errno == ENOTDIR)
            return error_set(error, "its parent %s is not an existing folder", printable(parent.text).text);
        return error_set_errno(error, "its parent %s cannot be looked up", printable(parent.text).text);
    }
    if (access(parent.text, W_OK) != 0) return error_set_errno(error, "its parent %s cannot be written to", printable(parent.text).text);
    return true;
}
// Locks the folder that an export is written into, so that no other run removes it; *lock: what to close, or -1 where there is no folder.
// Without locks, as on some network file systems, nothing is locked. False with a message when another run holds it, which may soon end.
static inline bool hf_export_lock(const char *temporary, int *lock, error_text *error) {
    *lock = open(temporary, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*lock < 0 || flock(*lock, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return true;
    close(*lock);
    *lock = -1;
    error_set(error, "another run is writing it");
    error->number = EWOULDBLOCK;
    return false;
}
// Removes what an export that was killed has left. False with a message: another run is writing there, or it cannot be removed.
static inline bool hf_export_clear(const char *temporary, error_text *error) {
    int left;
    if (!hf_export_lock(temporary, &left, error)) return false;
    if (!folder_remove(temporary))
        error_set_errno(error, "what a killed export has left in %s cannot be removed", printable(temporary).text);
    if (left >= 0) close(left);
    return error->text[0] == '\0';
}
// Whether hf_export will be able to make the folder: on rank 0 it does not exist, and nothing is in its way; all ranks see its parent and
// may write there. Collective; called long before hf_export.
static inline bool hf_export_check(comm *all, const char *folder, error_text *error) {
    char what[OPTION_TEXT_BYTES + 16];
    snprintf(what, sizeof what, "--export %s", printable(folder).text);
    error_text why = {"", 0};
    if (comm_rank(all) == 0 && (!hf_export_check_here(folder, &why) || !hf_export_clear(path_unfinished(folder).text, &why)))
        error_set_why(error, &why, "%s", what);
    return comm_agree_on_files(all, error) && agree_on_folder(all, path_parent(folder).text, what, error);
}
enum { EXPORT_NAMES = 100 }; // FOLDER, FOLDER-2, to FOLDER-99
static inline path_text hf_export_name(const char *folder, int i) {
    path_text name = path_plain(folder);
    size_t n = strlen(name.text);
    if (i > 1) snprintf(name.text + n, sizeof name.text - n, "-%d", i);
    return name;
}
// Makes and locks the folder that the export `to` is written into. False with a message.
static inline bool hf_export_begin(const char *to, int *lock, error_text *error) {
    path_text temporary = path_unfinished(to);
    if (!hf_export_clear(temporary.text, error)) return false;
    if (!path_exists(to)) return folder_make(temporary.text, error) && hf_export_lock(temporary.text, lock, error);
    error_set(error, "already exists by now");
    error->number = EEXIST;
    return false;
}
// Whether an export failed because another run has its name.
static inline bool hf_export_taken(const error_text *why) {
    return why->number == EWOULDBLOCK || why->number == EEXIST || why->number == ENOTEMPTY || why->number == ENOTDIR;
}
// Writes the model as a new Hugging Face folder, which appears whole or not at all. Where another run has taken its name meanwhile, the
// model is not lost: it is written beside it, as FOLDER-2, and the message says so. record: a file that says that FOLDER is this model,
// which is then removed (NULL: none). Collective; false with a message.
static inline bool hf_export(model *m, const char *folder, const hf_source *source, export_dtype_kind dtype, const char *record,
                             error_text *error) {
    bool first_rank = m->g->rank == 0, made = false;
    int lock = -1, i = 1; // i: of the name
    error_text other = {"", 0}; // why the model has another name
    path_text temporary = {""};
    zero_settle(&m->zero);
    for (; first_rank && !made && error->text[0] == '\0'; i += !made) {
        error_text why = {"", 0};
        temporary = path_unfinished(hf_export_name(folder, i).text);
        made = hf_export_begin(hf_export_name(folder, i).text, &lock, &why);
        if (!made && (!hf_export_taken(&why) || i + 1 == EXPORT_NAMES)) *error = why;
        if (!made && record != NULL) remove(record);
        if (i == 1) other = why;
    }
    bool ok = comm_agree_on_files(m->g->all, error);
    comm_broadcast(m->g->all, temporary.text, sizeof temporary.text, 0);
    if (ok) hf_write(m, temporary.text, source, dtype, NULL, NULL, error);
    ok = ok && comm_agree_on_files(m->g->all, error);
    while (ok && first_rank && error->text[0] == '\0') {
        error_text why = {"", 0};
        if (folder_publish(temporary.text, hf_export_name(folder, i).text, &why)) break;
        if (!hf_export_taken(&why) || i + 1 == EXPORT_NAMES) *error = why;
        else if (i++ == 1) {
            error_set(&other, "already exists by now");
            if (record != NULL) remove(record);
        }
    }
    if (ok && other.text[0] != '\0')
        error_set(error, "%s; the model is in %s", other.text, printable(hf_export_name(folder, i).text).text);
    if (made && path_exists(temporary.text)) folder_remove(temporary.text); // it was not published
    if (lock >= 0) close(lock);
    return comm_agree_on_files(m->g->all, error); // removing may have taken long
}

#endif
