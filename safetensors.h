// The safetensors format, in one file or a folder of several with an index: 8 bytes of header length (little-endian), a JSON header that
// gives each tensor's dtype, shape and place in the data, then the data, without holes. Everything is checked before a tensor is read:
// no file can cause a read outside of it. Values are floats on our side; F16 and BF16 widen exactly.
// The machine must be little-endian, as every machine that our devices run on is.
#ifndef SAFETENSORS_H
#define SAFETENSORS_H

#include "config.h" // defines: cJSON_*, file_read_json
#include "files.h"

typedef enum { DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPES } safetensors_dtype;
static inline const char *safetensors_dtype_name(safetensors_dtype d) {
    static const char *const names[DTYPES] = {"F32", "F16", "BF16"};
    return names[d];
}
static inline int64_t safetensors_dtype_bytes(safetensors_dtype d) { return d == DTYPE_F32 ? 4 : 2; }

enum { SAFETENSORS_DIMS = 4, SAFETENSORS_HEADER_LIMIT = 100000000 }; // the limit is that of the reference implementation

typedef struct {
    char *name;
    safetensors_dtype dtype;
    int dims;
    int64_t shape[SAFETENSORS_DIMS];
    int64_t count;  // elements
    int file;       // index into safetensors.files
    int64_t offset; // of its first byte in the file
} safetensor;

typedef struct {
    char *path;
    int fd; // -1: not open
    int64_t bytes_read; // tensor bytes that this process has read
} safetensors_file;

// A set of tensors in one or several files: opened to read, or laid out to write. Start from safetensors_none(); safetensors_close frees.
typedef struct {
    safetensor *tensors; // in the order of the files
    int64_t tensor_count, tensor_space;
    safetensors_file *files;
    int file_count;
} safetensors;

static inline safetensors safetensors_none(void) {
    safetensors s;
    memset(&s, 0, sizeof s);
    return s;
}
static inline void safetensors_close(safetensors *s) {
    for (int64_t i = 0; i < s->tensor_count; i++) free(s->tensors[i].name);
    for (int i = 0; i < s->file_count; i++) {
        if (s->files[i].fd >= 0) close(s->files[i].fd);
        free(s->files[i].path);
    }
    free(s->tensors);
    free(s->files);
    memset(s, 0, sizeof *s);
}
// The tensor of that name, or NULL.
static inline const safetensor *safetensors_find(const safetensors *s, const char *name) {
    for (int64_t i = 0; i < s->tensor_count; i++)
        if (strcmp(s->tensors[i].name, name) == 0) return &s->tensors[i];
    return NULL;
}

static inline safetensor *safetensors_push(safetensors *s, const char *name) {
    if (s->tensor_count == s->tensor_space) {
        int64_t space = max_i64(64, 2 * s->tensor_space);
        safetensor *grown = HOST_NEW(safetensor, space);
        if (s->tensor_count > 0) memcpy(grown, s->tensors, sizeof(safetensor) * (size_t)s->tensor_count);
        free(s->tensors);
        s->tensors = grown;
        s->tensor_space = space;
    }
    safetensor *t = &s->tensors[s->tensor_count++];
    t->name = text_copy(name);
    return t;
}
static inline int safetensors_push_file(safetensors *s, const char *path, int fd) {
    safetensors_file *grown = HOST_NEW(safetensors_file, s->file_count + 1);
    if (s->file_count > 0) memcpy(grown, s->files, sizeof(safetensors_file) * (size_t)s->file_count);
    free(s->files);
    s->files = grown;
    s->files[s->file_count].path = text_copy(path);
    s->files[s->file_count].fd = fd;
    return s->file_count++;
}

// ---- numbers ----

static inline float float_of_f16(uint16_t h) { // without branches, as all conversions below, so that loops over them become vector code
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = h & 0x7fffu;
    uint32_t special = 0x7f800000u | (magnitude & 0x3ff) << 13; // infinite, NaN
    uint32_t subnormal = bits_of_float((float)magnitude * 0x1p-24f), normal = (magnitude << 13) + (112u << 23);
    return float_of_bits(sign | (magnitude >= 0x7c00 ? special : magnitude >= 0x400 ? normal : subnormal));
}
static inline uint16_t f16_of_float(float x) { // magnitudes of 65520 and above: infinite
    uint32_t bits = bits_of_float(x), sign = bits >> 16 & 0x8000, a = bits & 0x7fffffffu;
    uint32_t nan = 0x7c00 | ((a >> 13 & 0x3ff) != 0 ? a >> 13 & 0x3ff : 0x200);
    uint32_t normal = (a + 0xfff + (a >> 13 & 1) - (112u << 23)) >> 13;
    uint32_t subnormal = (uint32_t)(int32_t)rintf(float_of_bits(a < 0x38800000u ? a : 0) * 0x1p24f);
    return (uint16_t)(sign | (a > 0x7f800000u ? nan : a >= 0x477ff000u ? 0x7c00 : a >= 0x38800000u ? normal : subnormal));
}

// ---- reading ----

// Reads a JSON number; false unless it is a whole number in [0, 2^53].
static inline bool safetensors_whole(const cJSON *at, int64_t *value) {
    if (!cJSON_IsNumber(at) || !(at->valuedouble >= 0 && at->valuedouble <= 9007199254740992.0) ||
        at->valuedouble != floor(at->valuedouble))
        return false;
    *value = (int64_t)at->valuedouble;
    return true;
}
// Reads the description of one tensor. t->offset and *end (its last byte + 1) are relative to the start of the data.
static inline bool safetensors_read_entry(safetensor *t, const cJSON *entry, int64_t *end, error_text *error) {
    short_text shown = printable(t->name);
    const char *name = shown.text;
    if (!cJSON_IsObject(entry)) return error_set(error, "tensor \"%s\" is not described by an object", name);
    const cJSON *dtype = config_member(entry, "dtype", error), *shape = config_member(entry, "shape", error);
    const cJSON *place = config_member(entry, "data_offsets", error);
    if (error->text[0] != '\0') return false;
    if (!cJSON_IsString(dtype)) return error_set(error, "tensor \"%s\" has no \"dtype\"; legal values are F32, F16, BF16", name);
    int kind = 0;
    while (kind < DTYPES && strcmp(dtype->valuestring, safetensors_dtype_name((safetensors_dtype)kind)) != 0) kind++;
    if (kind == DTYPES)
        return error_set(error, "tensor \"%s\" has dtype \"%s\"; legal values are F32, F16, BF16",
                         name, printable(dtype->valuestring).text);
    t->dtype = (safetensors_dtype)kind;

    if (!cJSON_IsArray(shape) || cJSON_GetArraySize(shape) > SAFETENSORS_DIMS)
        return error_set(error, "tensor \"%s\" has no \"shape\" of at most %d dimensions", name, SAFETENSORS_DIMS);
    t->dims = 0;
    t->count = 1;
    for (const cJSON *at = shape->child; at != NULL; at = at->next) {
        int64_t size;
        if (!safetensors_whole(at, &size))
            return error_set(error, "tensor \"%s\": a size in its \"shape\" is not a whole number from 0 to 2^53", name);
        if (size > 0 && t->count > ((int64_t)1 << 53) / size) return error_set(error, "tensor \"%s\" has more than 2^53 elements", name);
        t->shape[t->dims++] = size;
        t->count *= size;
    }
    int64_t begin;
    if (!cJSON_IsArray(place) || cJSON_GetArraySize(place) != 2 || !safetensors_whole(place->child, &begin) ||
        !safetensors_whole(place->child->next, end))
        return error_set(error, "tensor \"%s\" has no \"data_offsets\" of two whole numbers", name);
    if (*end - begin != t->count * safetensors_dtype_bytes(t->dtype))
        return error_set(error, "tensor \"%s\": its \"data_offsets\" hold %lld bytes, but its shape in %s needs %lld",
                         name, (long long)(*end - begin), safetensors_dtype_name(t->dtype),
                         (long long)(t->count * safetensors_dtype_bytes(t->dtype)));
    t->offset = begin;
    return true;
}

typedef struct {
    int64_t begin, end;
    const char *name;
} safetensors_extent;
static inline int safetensors_by_name(const void *a, const void *b) {
    return strcmp(((const safetensors_extent *)a)->name, ((const safetensors_extent *)b)->name);
}
static inline int safetensors_by_place(const void *a, const void *b) {
    const safetensors_extent *x = (const safetensors_extent *)a, *y = (const safetensors_extent *)b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

// Checks the tensors of one header: each name once, and data without overlap or hole up to its end at `data_bytes`. Sorts extents.
static inline bool safetensors_check_extents(safetensors_extent *extents, int64_t count, int64_t data_bytes, error_text *error) {
    qsort(extents, (size_t)count, sizeof *extents, safetensors_by_name);
    for (int64_t i = 1; i < count; i++)
        if (strcmp(extents[i - 1].name, extents[i].name) == 0)
            return error_set(error, "tensor \"%s\" appears twice in the header", printable(extents[i].name).text);
    qsort(extents, (size_t)count, sizeof *extents, safetensors_by_place);
    int64_t at = 0;
    for (int64_t i = 0; i < count; i++) {
        const safetensors_extent *e = &extents[i];
        short_text name = printable(e->name);
        if (e->end > data_bytes)
            return error_set(error, "tensor \"%s\" ends at byte %lld of the data, but the file holds %lld: "
                                    "it is truncated, or its offsets are out of range",
                             name.text, (long long)e->end, (long long)data_bytes);
        if (e->begin < at)
            return error_set(error, "tensor \"%s\" begins at byte %lld of the data, inside the tensor before it",
                             name.text, (long long)e->begin);
        if (e->begin > at)
            return error_set(error, "the %lld bytes before tensor \"%s\" belong to no tensor", (long long)(e->begin - at), name.text);
        at = e->end;
    }
    if (at != data_bytes) return error_set(error, "the last %lld bytes belong to no tensor", (long long)(data_bytes - at));
    return true;
}

static inline bool safetensors_read_header(safetensors *s, int file, const cJSON *json, int64_t data_at, int64_t data_bytes,
                                           error_text *error) {
    if (!cJSON_IsObject(json)) return error_set(error, "the header is not a JSON object");
    safetensors_extent *extents = HOST_NEW(safetensors_extent, cJSON_GetArraySize(json));
    int64_t count = 0;
    bool ok = true;
    for (const cJSON *at = json->child; ok && at != NULL; at = at->next) {
        if (strcmp(at->string, "__metadata__") == 0) continue;
        safetensor *t = safetensors_push(s, at->string);
        int64_t end = 0;
        t->file = file;
        ok = safetensors_read_entry(t, at, &end, error);
        extents[count].begin = t->offset;
        extents[count].end = end;
        extents[count].name = at->string;
        count++;
        t->offset += data_at;
    }
    ok = ok && safetensors_check_extents(extents, count, data_bytes, error);
    free(extents);
    return ok;
}

// Adds the tensors of one file. Messages do not name the file: the caller does.
static inline bool safetensors_add_file(safetensors *s, const char *path, error_text *error) {
    struct stat entry;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); // O_NONBLOCK: a pipe is refused, not waited for
    if (fd < 0) return error_set_errno(error, "cannot be opened");
    int file = safetensors_push_file(s, path, fd);
    if (fstat(fd, &entry) != 0) return error_set_errno(error, "cannot be opened");
    if (!S_ISREG(entry.st_mode)) return error_set(error, "is not a file");
    uint64_t length = 0;
    int64_t bytes = (int64_t)entry.st_size;
    if (bytes < 8) return error_set(error, "has %lld bytes; a safetensors file begins with 8 bytes of header length", (long long)bytes);
    if (!file_pread(fd, "its header", &length, sizeof length, 0, error)) return false;
    if (length < 2 || length > SAFETENSORS_HEADER_LIMIT)
        return error_set(error, "its header has %llu bytes; legal values are 2 to %d: is it a safetensors file?",
                         (unsigned long long)length, SAFETENSORS_HEADER_LIMIT);
    if ((int64_t)length > bytes - 8)
        return error_set(error, "is truncated: the header has %llu bytes, but only %lld follow",
                         (unsigned long long)length, (long long)(bytes - 8));
    char *text = HOST_NEW(char, length + 1);
    bool ok = file_pread(fd, "its header", text, (size_t)length, 8, error);
    const char *end = NULL;
    cJSON *json = NULL;
    if (ok && strlen(text) != length) ok = error_set(error, "the header contains a NUL byte and is not JSON text");
    if (ok) json = cJSON_ParseWithOpts(text, &end, 1);
    if (ok && json == NULL) ok = error_set(error, "the header is not valid JSON at byte %lld", (long long)(end == NULL ? 0 : end - text));
    ok = ok && safetensors_read_header(s, file, json, 8 + (int64_t)length, bytes - 8 - (int64_t)length, error);
    cJSON_Delete(json);
    free(text);
    return ok;
}

// Checks that an index and the files have the same tensors in the same files. in_map: of each of the `named` tensors of the index the name
// and, in begin, the file. Sorts it.
static inline bool safetensors_check_index(const safetensors *s, safetensors_extent *in_map, int64_t named, error_text *error) {
    safetensors_extent *in_files = HOST_NEW(safetensors_extent, s->tensor_count);
    int64_t count = s->tensor_count;
    for (int64_t i = 0; i < count; i++) {
        in_files[i].name = s->tensors[i].name;
        in_files[i].begin = s->tensors[i].file;
    }
    qsort(in_map, (size_t)named, sizeof *in_map, safetensors_by_name);
    qsort(in_files, (size_t)count, sizeof *in_files, safetensors_by_name);
    for (int64_t i = 1; i < count; i++)
        if (strcmp(in_files[i - 1].name, in_files[i].name) == 0)
            error_set(error, "tensor \"%s\" is in two files", printable(in_files[i].name).text);
    for (int64_t i = 1; i < named; i++)
        if (strcmp(in_map[i - 1].name, in_map[i].name) == 0)
            error_set(error, "\"weight_map\" names tensor \"%s\" twice", printable(in_map[i].name).text);
    for (int64_t i = 0; error->text[0] == '\0' && (i < named || i < count); i++) { // names are unique: both lists must agree one by one
        int order = i == named ? 1 : i == count ? -1 : strcmp(in_map[i].name, in_files[i].name);
        if (order < 0) error_set(error, "tensor \"%s\" is in no file", printable(in_map[i].name).text);
        else if (order > 0) error_set(error, "tensor \"%s\" is in a file, but not in \"weight_map\"", printable(in_files[i].name).text);
        else if (in_map[i].begin != in_files[i].begin)
            error_set(error, "tensor \"%s\" is not in the file that \"weight_map\" names", printable(in_map[i].name).text);
    }
    free(in_files);
    return error->text[0] == '\0';
}
// Adds the files that an index names, and checks that it says what they hold.
static inline bool safetensors_read_index(safetensors *s, const char *folder, const cJSON *json, error_text *error) {
    const cJSON *map = cJSON_IsObject(json) ? config_member(json, "weight_map", error) : NULL;
    if (!cJSON_IsObject(map)) return error_set(error, "has no \"weight_map\" object");
    safetensors_extent *in_map = HOST_NEW(safetensors_extent, cJSON_GetArraySize(map));
    int64_t named = 0;
    bool ok = true;
    for (const cJSON *at = map->child; ok && at != NULL; at = at->next) {
        if (!cJSON_IsString(at) || at->valuestring[0] == '\0' || at->valuestring[0] == '.' || strchr(at->valuestring, '/') != NULL) {
            ok = error_set(error, "\"weight_map\": the file of tensor \"%s\" must be a plain file name in this folder",
                           printable(at->string).text);
            break;
        }
        path_text path = path_join(folder, at->valuestring);
        error_text why = {"", 0};
        int file = 0;
        while (file < s->file_count && strcmp(s->files[file].path, path.text) != 0) file++;
        if (file == s->file_count && !safetensors_add_file(s, path.text, &why))
            ok = error_set_why(error, &why, "%s", printable(at->valuestring).text);
        in_map[named].name = at->string;
        in_map[named++].begin = file;
    }
    ok = ok && safetensors_check_index(s, in_map, named, error);
    free(in_map);
    return ok;
}

// Opens STEM.safetensors of a folder, or the files that STEM.safetensors.index.json names (stem "model" in a Hugging Face folder), and
// checks all headers. s from safetensors_none(). On failure returns false with a message that names the file, and leaves nothing open.
static inline bool safetensors_open(safetensors *s, const char *folder, const char *stem, error_text *error) {
    char single[64], index[96];
    snprintf(single, sizeof single, "%s.safetensors", stem);
    snprintf(index, sizeof index, "%s.safetensors.index.json", stem);
    path_text path = path_join(folder, single), several = path_join(folder, index);
    error_text why = {"", 0};
    if (path_exists(path.text)) { // as transformers does, even beside an index
        safetensors_add_file(s, path.text, &why);
    } else if (errno != ENOENT) { // opening it may then say that it does not exist
        error_set_errno(&why, "cannot be opened");
    } else if (path_exists(several.text) || errno != ENOENT) {
        path = several;
        cJSON *json = file_read_json(path.text, SAFETENSORS_HEADER_LIMIT, &why);
        if (json != NULL) safetensors_read_index(s, folder, json, &why);
        cJSON_Delete(json);
    } else {
        bool model = strcmp(stem, "model") == 0; // not a state's moments
        error_set(&why, "does not exist, nor does %s%s", index,
                  model ? " (models in pytorch_model.bin are not read; transformers' save_pretrained converts them)" : "");
    }
    if (why.text[0] == '\0') return true;
    safetensors_close(s);
    return error_set_why(error, &why, "%s", path.text);
}

// *hash = that of all files (file_hash_places).
static inline bool safetensors_hash(const safetensors *s, uint64_t *hash, error_text *error) {
    struct stat entry;
    *hash = HASH_EMPTY;
    for (int i = 0; i < s->file_count; i++) {
        if (fstat(s->files[i].fd, &entry) != 0) return error_set_errno(error, "%s", s->files[i].path);
        if (!file_hash_places(s->files[i].fd, s->files[i].path, (int64_t)entry.st_size, hash, error)) return false;
    }
    return true;
}

enum { SAFETENSORS_CHUNK = 1 << 15 }; // elements converted at once: few enough to stay in the cache

// Reads elements [at, at + n) of a tensor as floats, n <= SAFETENSORS_CHUNK.
static inline bool safetensors_read_chunk(const safetensors_file *file, const safetensor *t, int64_t at, int64_t n, float *to,
                                          error_text *error) {
    if (t->dtype == DTYPE_F32) return file_pread(file->fd, file->path, to, sizeof(float) * (size_t)n, t->offset + 4 * at, error);
    uint16_t raw[SAFETENSORS_CHUNK];
    if (!file_pread(file->fd, file->path, raw, sizeof(uint16_t) * (size_t)n, t->offset + 2 * at, error)) return false;
    if (t->dtype == DTYPE_BF16)
        for (int64_t i = 0; i < n; i++) to[i] = float_of_bf16(raw[i]);
    else
        for (int64_t i = 0; i < n; i++) to[i] = float_of_f16(raw[i]);
    return true;
}

// Writes elements [at, at + n) of a 16-bit tensor, n <= SAFETENSORS_CHUNK.
static inline bool safetensors_write_chunk(const safetensors_file *file, const safetensor *t, int64_t at, int64_t n, const float *from,
                                           error_text *error) {
    uint16_t raw[SAFETENSORS_CHUNK];
    if (t->dtype == DTYPE_BF16) {
        for (int64_t i = 0; i < n; i++) raw[i] = bf16_of_float(from[i]);
    } else {
        for (int64_t i = 0; i < n; i++) raw[i] = f16_of_float(from[i]);
        for (int64_t i = 0; i < n; i++)
            if ((raw[i] & 0x7fff) == 0x7c00 && isfinite(from[i]))
                return error_set(error, "%s: element %lld of \"%s\" is %g, beyond the largest number of F16 (65504); use bf16 or f32",
                                 file->path, (long long)(at + i), t->name, (double)from[i]);
    }
    return file_pwrite(file->fd, file->path, raw, sizeof(uint16_t) * (size_t)n, t->offset + 2 * at, error);
}

// Writes elements [first, first + count) from `from`, or reads them into `to` (the other one is NULL), with all threads of the rank.
static inline bool safetensors_chunks(const safetensors_file *file, const safetensor *t, int64_t first, int64_t count,
                                      const float *from, float *to, error_text *error) {
    bool ok = true;
#pragma omp parallel for schedule(static) if (count > SAFETENSORS_CHUNK)
    for (int64_t at = 0; at < count; at += SAFETENSORS_CHUNK) {
        int64_t n = min_i64(SAFETENSORS_CHUNK, count - at);
        error_text why = {"", 0};
        bool done = from != NULL ? safetensors_write_chunk(file, t, first + at, n, from + at, &why)
                                 : safetensors_read_chunk(file, t, first + at, n, to + at, &why);
        if (done) continue;
#pragma omp critical
        {
            if (error->text[0] == '\0') *error = why;
            ok = false;
        }
    }
    return ok;
}

// Reads elements [first, first + count) of a tensor as floats into to. All threads of the rank read, because the first touch of fresh
// memory is the slow part. A range outside of the tensor is an error.
static inline bool safetensors_read(const safetensors *s, const safetensor *t, int64_t first, int64_t count, float *to, error_text *error) {
    safetensors_file *file = &s->files[t->file];
    if (first < 0 || count < 0 || count > t->count - first)
        return error_set(error, "%s: elements %lld to %lld of tensor \"%s\" asked for; it has %lld", file->path, (long long)first,
                         (long long)(first + count), printable(t->name).text, (long long)t->count);
    file->bytes_read += count * safetensors_dtype_bytes(t->dtype);
    return safetensors_chunks(file, t, first, count, NULL, to, error);
}

// Bytes of all tensors, and how many of them this process has read.
static inline int64_t safetensors_bytes(const safetensors *s) {
    int64_t n = 0;
    for (int64_t i = 0; i < s->tensor_count; i++) n += s->tensors[i].count * safetensors_dtype_bytes(s->tensors[i].dtype);
    return n;
}
static inline int64_t safetensors_bytes_read(const safetensors *s) {
    int64_t n = 0;
    for (int i = 0; i < s->file_count; i++) n += s->files[i].bytes_read;
    return n;
}

// ---- writing ----

// Adds a tensor to write, of up to SAFETENSORS_DIMS sizes. safetensors_lay_out sets its file and offset.
static inline void safetensors_add(safetensors *s, const char *name, safetensors_dtype dtype, int dims, const int64_t *shape) {
    safetensor *t = safetensors_push(s, name);
    t->dtype = dtype;
    t->dims = dims;
    t->count = 1;
    for (int i = 0; i < dims; i++) {
        t->shape[i] = shape[i];
        t->count *= shape[i];
    }
}

// The header of a file, *length bytes, padded to align the data to 64 bytes; the caller frees. Sets the offsets of the file's tensors.
static inline char *safetensors_make_header(safetensors *s, int file, size_t *length, int64_t *file_bytes) {
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(cJSON_AddObjectToObject(json, "__metadata__"), "format", "pt");
    int64_t at = 0;
    for (int64_t i = 0; i < s->tensor_count; i++) {
        safetensor *t = &s->tensors[i];
        if (t->file != file) continue;
        int64_t bytes = t->count * safetensors_dtype_bytes(t->dtype);
        cJSON *entry = cJSON_AddObjectToObject(json, t->name);
        cJSON_AddStringToObject(entry, "dtype", safetensors_dtype_name(t->dtype));
        cJSON *shape = cJSON_AddArrayToObject(entry, "shape"), *place = cJSON_AddArrayToObject(entry, "data_offsets");
        for (int d = 0; d < t->dims; d++) cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)t->shape[d]));
        cJSON_AddItemToArray(place, cJSON_CreateNumber((double)at));
        cJSON_AddItemToArray(place, cJSON_CreateNumber((double)(at + bytes)));
        t->offset = at;
        at += bytes;
    }
    char *printed = cJSON_PrintUnformatted(json);
    cJSON_Delete(json);
    size_t n = strlen(printed);
    *length = (size_t)round_up(8 + (int64_t)n, 64);
    char *header = HOST_NEW(char, *length);
    memset(header, ' ', *length);
    uint64_t json_bytes = (uint64_t)*length - 8;
    memcpy(header, &json_bytes, 8);
    memcpy(header + 8, printed, n);
    free(printed);
    for (int64_t i = 0; i < s->tensor_count; i++)
        if (s->tensors[i].file == file) s->tensors[i].offset += (int64_t)*length;
    *file_bytes = (int64_t)*length + at;
    return header;
}

static inline bool safetensors_write_index(const safetensors *s, const char *folder, const char *stem, error_text *error) {
    cJSON *json = cJSON_CreateObject();
    cJSON_AddNumberToObject(cJSON_AddObjectToObject(json, "metadata"), "total_size", (double)safetensors_bytes(s));
    cJSON *map = cJSON_AddObjectToObject(json, "weight_map");
    for (int64_t i = 0; i < s->tensor_count; i++)
        cJSON_AddStringToObject(map, s->tensors[i].name, path_last(s->files[s->tensors[i].file].path).text);
    char name[96], *text = cJSON_Print(json);
    cJSON_Delete(json);
    snprintf(name, sizeof name, "%s.safetensors.index.json", stem);
    bool ok = file_write(path_join(folder, name).text, text, strlen(text), error);
    free(text);
    return ok;
}

// Distributes the added tensors over files of at most `limit` bytes of data (a larger tensor gets a file of its own), sets their offsets,
// and creates the files in `folder`. Ranks that added the same tensors get the same files, whichever calls first, so they need not wait for
// each other. first: also writes headers and index (one rank does). Continue with safetensors_write, then safetensors_sync.
static inline bool safetensors_lay_out(safetensors *s, const char *folder, const char *stem, int64_t limit, bool first, error_text *error) {
    int64_t bytes = 0;
    int files = 0;
    for (int64_t i = 0; i < s->tensor_count; i++) {
        int64_t n = s->tensors[i].count * safetensors_dtype_bytes(s->tensors[i].dtype);
        if (i == 0 || bytes + n > limit) {
            files++;
            bytes = 0;
        }
        s->tensors[i].file = files - 1;
        bytes += n;
    }
    for (int f = 0; f < files; f++) {
        char name[128];
        if (files == 1) snprintf(name, sizeof name, "%s.safetensors", stem);
        else snprintf(name, sizeof name, "%s-%05d-of-%05d.safetensors", stem, f + 1, files);
        path_text path = path_join(folder, name);
        size_t length;
        int64_t file_bytes;
        char *header = safetensors_make_header(s, f, &length, &file_bytes);
        // Write-only and, on every rank, with all its bytes before the first write: NFS writes back all of a page that it has read, or that
        // lies behind the file's end as this machine knows it, and with it stale bytes or zeros in place of other machines' parts.
        int fd = open(path.text, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
        bool ok = fd >= 0 || error_set_errno(error, "%s: cannot be created", path.text);
        safetensors_push_file(s, path.text, fd);
        if (ok && ftruncate(fd, (off_t)file_bytes) != 0) ok = error_set_errno(error, "%s: cannot be written", path.text);
        ok = ok && (!first || file_pwrite(fd, path.text, header, length, 0, error));
        free(header);
        if (!ok) return false;
    }
    return !first || files == 1 || safetensors_write_index(s, folder, stem, error);
}

// Writes elements [first, first + count) of a tensor, rounded to its dtype. All threads of the rank convert to 16 bits; one thread writes
// F32 as it is (a file takes one write at a time). A finite value that F16 cannot hold is an error.
static inline bool safetensors_write(const safetensors *s, const safetensor *t, int64_t first, int64_t count, const float *from,
                                     error_text *error) {
    const safetensors_file *file = &s->files[t->file];
    if (t->dtype == DTYPE_F32) return file_pwrite(file->fd, file->path, from, sizeof(float) * (size_t)count, t->offset + 4 * first, error);
    return safetensors_chunks(file, t, first, count, from, NULL, error);
}
// Syncs all files: what this process wrote is on disk when the call returns.
static inline bool safetensors_sync(const safetensors *s, error_text *error) {
    for (int i = 0; i < s->file_count; i++)
        if (fsync(s->files[i].fd) != 0) return error_set_errno(error, "%s: cannot be written", s->files[i].path);
    return true;
}

#endif
