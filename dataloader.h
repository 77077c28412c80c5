// Token files -> this rank's tokens and labels, and where packed documents begin.
//
// Files are llm.c's: 256 int32 of header (magic, version, count), then tokens, little-endian: uint16 (magic 20240520, version 1) or uint32
// (magic 20240801, version 7). All files that match a pattern, sorted by name (bytes), form one stream of tokens. Sample n is the S tokens
// from n S on. The label of a token is the token after it in the stream, even if that is in another rank's rows, the next sample or the
// next file. Only the stream's very last token has none (-100).
//
// Loss masks: a file FILE.mask beside a token file FILE has one byte for each of its tokens, no header: 1 = learnt, 0 = never a label (such
// as the prompts in instruction data). Without a mask, all tokens of a file are learnt.
#ifndef DATALOADER_H
#define DATALOADER_H

#include "files.h"          // defines: file_pread
#include "sequence_shard.h" // defines: sequence_shard
#include <glob.h>

enum { LABEL_IGNORED = -100 };

// How packed documents are told apart: by the token that ends each, or by the one that begins each.
typedef struct {
    int32_t token;
    bool ends;
} document_mark;

// ---- the stream of tokens ----

enum { TOKEN_HEADER_BYTES = 1024, TOKEN_MAGIC_16 = 20240520, TOKEN_VERSION_16 = 1, TOKEN_MAGIC_32 = 20240801, TOKEN_VERSION_32 = 7 };

// What a rank must know of a token file. Numbers of 8 bytes alone: ranks add up tables of which each has filled a part (dataloader_check).
typedef struct {
    int64_t count, width;  // tokens; bytes of one: 2 or 4
    int64_t masked;        // 1: the file has a loss mask
    int64_t device, inode; // where it is: it may have several names
    uint64_t hash;         // of a few places in it and its mask (file_hash_places)
    int64_t first;         // its first token's index in the stream (dataloader_take)
} token_file;

typedef struct {
    glob_t found;      // gl_pathv: their paths
    token_file *files; // (file_count)
    int64_t file_count;
    int width;     // bytes of a token: 2 or 4
    int64_t total; // tokens of the stream
    int64_t masks; // files with a loss mask
    uint64_t hash; // of all files and masks
    int64_t S, V;  // tokens of a sample; vocabulary
    uint64_t seed;
    bool shuffle;
    int fd;            // the open file, -1: none
    int64_t open_file; // its index
    void *buffer;      // (buffer_bytes) raw tokens
    size_t buffer_bytes;
} dataloader;

static inline const char *dataloader_path(const dataloader *loader, int64_t file) { return loader->found.gl_pathv[file]; }

static inline void dataloader_close(dataloader *loader) {
    if (loader->files != NULL) globfree(&loader->found);
    free(loader->files);
    free(loader->buffer);
    if (loader->fd >= 0) close(loader->fd);
    memset(loader, 0, sizeof *loader);
    loader->fd = -1;
}

// Checks header and size of one token file -> count, width, where it is. Continues the hash.
static inline bool token_file_check(const char *path, token_file *file, error_text *error) {
    struct stat entry;
    if (stat(path, &entry) != 0) return error_set_errno(error, "%s: cannot be opened", path);
    if (!S_ISREG(entry.st_mode))
        return error_set(error, "%s: is not a file (a pattern such as 'DIR/*.bin' names the files of a folder)", path);
    file->device = (int64_t)entry.st_dev;
    file->inode = (int64_t)entry.st_ino;
    int64_t bytes = (int64_t)entry.st_size;
    size_t length = strlen(path);
    const char *hint = "";
    if (length > 5 && strcmp(path + length - 5, ".mask") == 0)
        hint = "; a loss mask is found beside its token file: let the pattern end in .bin";
    if (bytes < TOKEN_HEADER_BYTES)
        return error_set(error, "%s: has %lld bytes, fewer than the header of a token file (%d)%s",
                         path, (long long)bytes, TOKEN_HEADER_BYTES, hint);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return error_set_errno(error, "%s: cannot be opened", path);
    int32_t header[TOKEN_HEADER_BYTES / 4];
    bool ok = file_pread(fd, path, header, sizeof header, 0, error) && file_hash_places(fd, path, bytes, &file->hash, error);
    close(fd);
    if (!ok) return false;

    int32_t version = header[1];
    if (header[0] != TOKEN_MAGIC_16 && header[0] != TOKEN_MAGIC_32)
        return error_set(error, "%s: magic number %d; legal values are %d (uint16 tokens) and %d (uint32 tokens): is it a token file? "
                                "dev/tokenize_text.py writes them, and of bytes scripts/prepare_text.sh%s",
                         path, (int)header[0], TOKEN_MAGIC_16, TOKEN_MAGIC_32, hint);
    int width = header[0] == TOKEN_MAGIC_16 ? 2 : 4, legal = width == 2 ? TOKEN_VERSION_16 : TOKEN_VERSION_32;
    if (version != legal)
        return error_set(error, "%s: version %d; with magic number %d the legal value is %d", path, (int)version, (int)header[0], legal);
    if (header[2] == 0) return error_set(error, "%s: holds no tokens", path);
    if (header[2] < 0) return error_set(error, "%s: token count %d in the header; legal values are 1 to 2147483647", path, (int)header[2]);
    file->width = width;
    file->count = header[2];
    int64_t wanted = TOKEN_HEADER_BYTES + file->count * width, other = TOKEN_HEADER_BYTES + file->count * (6 - width);
    if (bytes == other)
        return error_set(error, "%s: tokens have %d bytes, but magic number %d stands for %d (%d: uint16, %d: uint32)", path, 6 - width,
                         (int)header[0], width, TOKEN_MAGIC_16, TOKEN_MAGIC_32);
    if (bytes < wanted)
        return error_set(error, "%s: is truncated: %lld bytes, but %lld tokens need %lld",
                         path, (long long)bytes, (long long)file->count, (long long)wanted);
    if (bytes > wanted)
        return error_set(error, "%s: has %lld bytes, but its header's %lld tokens end at %lld",
                         path, (long long)bytes, (long long)file->count, (long long)wanted);
    return true;
}

// Checks the loss mask of a token file whose count is known -> masked. Continues the hash.
static inline bool token_mask_check(const char *path, token_file *file, error_text *error) {
    char mask[4096];
    struct stat entry;
    if (snprintf(mask, sizeof mask, "%s.mask", path) >= (int)sizeof mask) return error_set(error, "%s: the path is too long", path);
    if (stat(mask, &entry) != 0) {
        if (errno == ENOENT && !path_exists(mask)) return true; // not: a link to nothing
        return error_set_errno(error, "%s: cannot be opened", mask);
    }
    if (!S_ISREG(entry.st_mode) || (int64_t)entry.st_size != file->count)
        return error_set(error, "%s: has %lld bytes, but the token file has %lld tokens; a loss mask has one byte (0 or 1) per token", mask,
                         (long long)entry.st_size, (long long)file->count);
    file->masked = 1;
    int fd = open(mask, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return error_set_errno(error, "%s: cannot be opened", mask);
    bool ok = file_hash_places(fd, mask, file->count, &file->hash, error);
    close(fd);
    return ok;
}

static inline int64_t dataloader_samples(const dataloader *loader) { return loader->total / loader->S; }

// For glob: whether to give up over a folder that cannot be read. Its files must not be left out in silence.
static inline int dataloader_folder_unread(const char *path, int number) {
    (void)path;
    return number != ENOENT && number != ENOTDIR;
}
// Finds the files that match `pattern` (as in a shell: * ? [..], no ~ or {}), the first of three parts of opening data.
// S >= 1: tokens of a sample; V: vocabulary. shuffle: a new order of the samples each epoch, from `seed` alone. On failure returns false
// with a message; dataloader_close is the caller's either way.
static inline bool dataloader_find(dataloader *loader, const char *pattern, int64_t S, int64_t V, uint64_t seed, bool shuffle,
                                   error_text *error) {
    memset(loader, 0, sizeof *loader);
    loader->fd = -1;
    loader->S = S;
    loader->V = V;
    loader->seed = seed;
    loader->shuffle = shuffle;
    glob_t found;
    errno = 0;
    int status = glob(pattern, 0, dataloader_folder_unread, &found); // errno: of the look-up or the folder that failed
    if (status == GLOB_NOMATCH && errno != 0 && errno != ENOENT && errno != ENOTDIR)
        return error_set_errno(error, "%s: cannot be looked up", pattern);
    if (status == GLOB_NOMATCH)
        return error_set(error, "no file matches %s%s", pattern,
                         path_exists(pattern) ? ", where [ and \\ do not stand for themselves: write ? for each" : "");
    const error_text last = {"", errno}; // glob takes a list that breaks off for a whole one: only errno tells
    if (status == 0 && error_may_pass(&last) && last.number != ENOMEM) { // not: the heap could not grow, and malloc took memory elsewhere
        globfree(&found);
        errno = last.number;
        status = GLOB_ABORTED;
    }
    if (status == GLOB_ABORTED) return error_set_errno(error, "%s: a folder that may hold such files cannot be read", pattern);
    if (status != 0) return error_set_errno(error, "%s: searching for files of this pattern failed", pattern); // a lack of memory
    loader->found = found;
    loader->file_count = (int64_t)found.gl_pathc;
    loader->files = HOST_NEW(token_file, loader->file_count);
    return true;
}
// Checks header and size of a file, and the size of its loss mask, and fills its entry of loader->files. False with a message.
static inline bool dataloader_check(dataloader *loader, int64_t file, error_text *error) {
    const char *path = dataloader_path(loader, file);
    loader->files[file].hash = HASH_EMPTY;
    return token_file_check(path, &loader->files[file], error) && token_mask_check(path, &loader->files[file], error);
}
// Makes one stream of the files, all of which have been checked. False with a message: other widths, too few tokens.
static inline bool dataloader_take(dataloader *loader, const char *pattern, error_text *error) {
    loader->width = (int)loader->files[0].width;
    loader->hash = HASH_EMPTY;
    for (int64_t i = 0; i < loader->file_count; i++) {
        token_file *file = &loader->files[i];
        if (file->width != loader->width)
            return error_set(error, "%s: has tokens of %d bytes, but %s has tokens of %d; all files of a stream must have the same width",
                             dataloader_path(loader, i), (int)file->width, dataloader_path(loader, 0), loader->width);
        loader->hash = hash_bytes(loader->hash, &file->hash, sizeof file->hash);
        loader->masks += file->masked;
        file->first = loader->total;
        loader->total += file->count;
    }
    if (loader->total < 2) return error_set(error, "%s: holds a single token; at least 2 are needed", pattern);
    if (loader->S > loader->total)
        return error_set(error, "a sequence of %lld tokens is longer than the data: %s holds %lld in %lld file%s; "
                                "the largest legal length is %lld",
                         (long long)loader->S, pattern, (long long)loader->total, (long long)loader->file_count,
                         plural(loader->file_count), (long long)loader->total);
    return true;
}

// ---- the order of samples ----

// A permutation of [0, n) for each (seed, epoch), computed without a table: a Feistel network on the smallest even number of bits that
// holds n values, applied again while its result is outside [0, n) (fewer than 4 passes on average).
static inline int64_t dataloader_permute(uint64_t seed, int64_t epoch, int64_t n, int64_t index) {
    if (n <= 1) return 0;
    int half = 1;
    while (half < 31 && ((int64_t)1 << (2 * half)) < n) half++;
    uint64_t mask = ((uint64_t)1 << half) - 1, key = hash_mix(hash_mix(seed + 0x9E3779B97F4A7C15ull) + (uint64_t)epoch);
    uint64_t x = (uint64_t)index;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t round = 0; round < 6; round++) {
            uint64_t mixed = left ^ (hash_mix(key + (round << 48) + right) & mask);
            left = right;
            right = mixed;
        }
        x = left << half | right;
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}

// Which of a step's samples is sequence b of dp rank d in micro-step `micro`. They are dealt out to the dp ranks in rounds, back and forth,
// so that where they are sorted by length each rank has as much to do. A step takes dp * grad_accum * batch samples, and every grid with
// the same product takes the same ones. hp and cp do not matter: all ranks that share a sequence read the same sample.
static inline int64_t dataloader_counter(int64_t micro, int64_t dp, int64_t d, int64_t batch, int64_t b) {
    int64_t round = micro * batch + b;
    return round * dp + (round % 2 == 0 ? d : dp - 1 - d);
}

// The sample at place `counter` of the order: every sample once per epoch of dataloader_samples places.
static inline int64_t dataloader_sample_at(const dataloader *loader, int64_t counter) {
    int64_t n = dataloader_samples(loader), epoch = counter / n, index = counter % n;
    return loader->shuffle ? dataloader_permute(loader->seed, epoch, n, index) : index;
}

// ---- reading ----

// The index of the file that holds token `place` of the stream.
static inline int64_t dataloader_file_of(const dataloader *loader, int64_t place) {
    int64_t low = 0, high = loader->file_count - 1;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (loader->files[middle].first <= place) low = middle;
        else high = middle - 1;
    }
    return low;
}
// Reads tokens [first, first + count) of the stream into to (int32) and checks each against V.
static inline bool dataloader_read_tokens(dataloader *loader, int64_t first, int64_t count, int32_t *to, error_text *error) {
    for (int64_t f = dataloader_file_of(loader, first), n; count > 0; f++, to += n, first += n, count -= n) {
        const token_file *file = &loader->files[f];
        const char *path = dataloader_path(loader, f);
        int64_t at = first - file->first;
        n = min_i64(count, file->count - at);
        size_t bytes = (size_t)n * (size_t)loader->width;
        if (loader->fd < 0 || loader->open_file != f) { // one open file at a time: thousands of token files need one descriptor
            if (loader->fd >= 0) close(loader->fd);
            loader->fd = open(path, O_RDONLY | O_CLOEXEC);
            loader->open_file = f;
            if (loader->fd < 0) return error_set_errno(error, "%s: cannot be opened", path);
        }
        if (bytes > loader->buffer_bytes) {
            free(loader->buffer);
            loader->buffer = host_alloc(bytes);
            loader->buffer_bytes = bytes;
        }
        if (!file_pread(loader->fd, path, loader->buffer, bytes, TOKEN_HEADER_BYTES + at * loader->width, error)) return false;
        const uint16_t *raw16 = (const uint16_t *)loader->buffer;
        const uint32_t *raw32 = (const uint32_t *)loader->buffer;
        for (int64_t i = 0; i < n; i++) {
            int64_t token = loader->width == 2 ? raw16[i] : raw32[i];
            if (token >= loader->V)
                return error_set(error, "%s: token %lld (byte %lld) is %lld; the model's vocabulary has %lld tokens: "
                                        "legal values are 0 to %lld",
                                 path, (long long)(at + i), (long long)(TOKEN_HEADER_BYTES + (at + i) * loader->width), (long long)token,
                                 (long long)loader->V, (long long)(loader->V - 1));
            to[i] = (int32_t)token;
        }
    }
    return true;
}

// labels (count) hold the stream's tokens from `first` on. Sets those that their file's loss mask excludes to -100.
static inline bool dataloader_mask_labels(const dataloader *loader, int64_t first, int64_t count, int32_t *labels, error_text *error) {
    char path[4096];
    uint8_t mask[4096];
    for (int64_t f = dataloader_file_of(loader, first), here; count > 0; f++, labels += here, first += here, count -= here) {
        const token_file *file = &loader->files[f];
        int64_t at = first - file->first;
        here = min_i64(count, file->count - at);
        if (!file->masked) continue;
        snprintf(path, sizeof path, "%s.mask", dataloader_path(loader, f));
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) return error_set_errno(error, "%s: cannot be opened", path);
        bool ok = true;
        for (int64_t done = 0, n; ok && done < here; done += n) {
            n = min_i64(here - done, (int64_t)sizeof mask);
            ok = file_pread(fd, path, mask, (size_t)n, at + done, error);
            for (int64_t i = 0; i < n && ok; i++) {
                if (mask[i] == 0) labels[done + i] = LABEL_IGNORED;
                if (mask[i] > 1)
                    ok = error_set(error, "%s: byte %lld is %d; legal values are 0 and 1", path, (long long)(at + done + i), mask[i]);
            }
        }
        close(fd);
        if (!ok) return false;
    }
    return true;
}

// Reads this rank's rows of a sample (below dataloader_samples) into tokens and labels, each (T), the caller's. Padding: token 0, label
// -100. Reads only these rows and the one token after each span. Returns false with a message that names file and offset.
static inline bool dataloader_read(dataloader *loader, int64_t sample, const sequence_shard *shard, int32_t *tokens, int32_t *labels,
                                   error_text *error) {
    for (int64_t t = 0, rows; t < shard->T; t += rows) {
        sequence_span span = sequence_shard_span_at(shard, shard->h * shard->T + t);
        rows = min_i64(span.rows, shard->T - t);
        int64_t first = sample * loader->S + span.position;                // in the stream
        int64_t here = max_i64(0, min_i64(rows, span.end - span.position)); // rows that are not padding
        for (int64_t i = here; i < rows; i++) {
            tokens[t + i] = 0;
            labels[t + i] = LABEL_IGNORED;
        }
        if (here == 0) continue;
        if (!dataloader_read_tokens(loader, first, here, tokens + t, error)) return false;
        for (int64_t i = 0; i + 1 < here; i++) labels[t + i] = tokens[t + i + 1];
        bool follows = first + here < loader->total; // the token that is the last row's label
        labels[t + here - 1] = LABEL_IGNORED;
        if (follows && !dataloader_read_tokens(loader, first + here, 1, labels + t + here - 1, error)) return false;
        if (loader->masks > 0 && !dataloader_mask_labels(loader, first + 1, here - 1 + follows, labels + t, error)) return false;
    }
    return true;
}

// ---- packed documents ----

enum { DOCUMENT_PIECE = 16384 }; // tokens read at once

// Where the documents of a sample begin, ascending, the first at 0: *count; the caller frees. Reads the whole sample. NULL with a message.
static inline int64_t *dataloader_document_starts(dataloader *loader, int64_t sample, document_mark mark, int64_t *count,
                                                  error_text *error) {
    int32_t piece[DOCUMENT_PIECE];
    int64_t S = loader->S, *starts = HOST_NEW(int64_t, S);
    *count = 1; // the first is 0
    for (int64_t p = 0; p < S; p++) {
        if (p % DOCUMENT_PIECE == 0 && !dataloader_read_tokens(loader, sample * S + p, min_i64(DOCUMENT_PIECE, S - p), piece, error)) {
            free(starts);
            return NULL;
        }
        int64_t start = mark.ends ? p + 1 : p;
        if (piece[p % DOCUMENT_PIECE] == mark.token && start > 0 && start < S) starts[(*count)++] = start;
    }
    return starts;
}
// Reads this rank's rows of a sample of packed documents, as dataloader_read does. The label of a document's last token would be the first
// token of the next document: it becomes -100.
// segments (sequence_shard_segments + 1): becomes the sample's list, from which the rows follow; NULL where there can be only one.
// documents (sequence_shard_entries): for every row that this rank has in attention, the position in the sample of the first token of the
// row's document; then the same for the first row of each chunk of each segment. A sample's first token always begins a document. Padding
// continues the document before it; in chunks of padding alone each row is a document.
static inline bool dataloader_read_packed(dataloader *loader, int64_t sample, const sequence_shard *shard, document_mark mark,
                                          int32_t *tokens, int32_t *labels, int64_t *documents, sequence_segment *segments,
                                          error_text *error) {
    int64_t count, *starts = dataloader_document_starts(loader, sample, mark, &count, error);
    if (starts == NULL) return false;
    segment_list list = {.shard = shard, .list = segments};
    for (int64_t i = 0; segments != NULL && i < count; i++) segment_list_add(&list, starts[i], i + 1 < count ? starts[i + 1] : loader->S);
    sequence_shard own = *shard;
    own.segments = segments;
    for (int64_t e = 0, i = 0; e < sequence_shard_entries(&own);) {
        sequence_span span = sequence_shard_entry(&own, e);
        for (int64_t p = span.position; p < span.position + span.rows; p++) {
            int64_t token = min_i64(p, span.end - 1);
            if (starts[i] > token) i = 0; // the entries of chunks begin again
            while (i + 1 < count && starts[i + 1] <= token) i++;
            documents[e++] = span.position < span.end ? starts[i] : p;
        }
    }
    free(starts);
    if (!dataloader_read(loader, sample, &own, tokens, labels, error)) return false;
    for (int64_t t = 0; t < shard->T; t++)
        if ((mark.ends ? tokens : labels)[t] == mark.token) labels[t] = LABEL_IGNORED;
    return true;
}

#endif
