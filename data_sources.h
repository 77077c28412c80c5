// Several streams of tokens: a mixture of sources to train on, validation sets by name.
//     --train-data 'GLOB'   or a mixture   '[NAME=]GLOB:WEIGHT,[NAME=]GLOB:WEIGHT,...'
//     --val-data   'GLOB'   or sets        'NAME=GLOB,NAME=GLOB,...'
// A comma ends a source; NAME is letters, digits, '.', '_' and '-' before the first '='; WEIGHT follows the last ':' in the last part of
// the path. Names of files that contain one of these three can still be given: '?' matches any character, and after './' there is no NAME.
//
// Weights are relative decimal numbers. Their ratios are those of whole numbers a_i with sum M, so the mixture repeats with period M.
// Within a period, turn j of source i is the range of samples [floor(j M / a_i), ceil((j+1) M / a_i)). Among the sources whose next turn
// has begun, sample n comes from the one whose turn ends first. Every source then gets a sample in each of its turns (Baruah, Cohen,
// Plaxton, Varvel: Proportionate progress, 1996, theorem 1, one processor), so after any n samples it has had its share n a_i / M to
// within less than one sample.
#ifndef DATA_SOURCES_H
#define DATA_SOURCES_H

#include "dataloader.h" // defines: dataloader_*

enum { DATA_SOURCES_MAX = 64, DATA_SOURCE_NAME = 64, MIXTURE_PERIOD_MAX = 1 << 20 };

typedef struct {
    char name[DATA_SOURCE_NAME]; // "": none given
    char *pattern;
    int64_t weight; // a_i; `period` is their sum
    dataloader data;
} data_source;

typedef struct {
    const char *option;   // "--train-data"
    data_source *sources; // (count)
    int count;
    int64_t period;     // M
    uint8_t *source_of; // (period): the source of sample n of a period,
    int32_t *index_of;  // (period): and how many samples of the period that source has had before it
} data_sources;

static inline void data_sources_close(data_sources *s) {
    for (int i = 0; i < s->count; i++) {
        dataloader_close(&s->sources[i].data);
        free(s->sources[i].pattern);
    }
    free(s->sources);
    free(s->source_of);
    free(s->index_of);
    memset(s, 0, sizeof *s);
}

// "0.7" -> 700000 millionths. Legal are digits, at most six of them after a point, for a weight above 0 and at most 1000000.
static inline bool data_weight_parse(const char *text, int64_t *millionths) {
    char *end = NULL;
    double n = strspn(text, "0123456789.") == strlen(text) ? 1e6 * strtod(text, &end) : 0; // no sign, exponent or hexadecimal digits
    *millionths = (int64_t)(n <= 1e12 ? n + 0.5 : 0);
    return n > 0 && n <= 1e12 && *end == '\0' && fabs(n - (double)*millionths) < 1e-3;
}

// Parses one source into s->sources[s->count]; changes text in place.
static inline bool data_source_parse(data_sources *s, char *text, bool weights, const char *option, error_text *error) {
    data_source *source = &s->sources[s->count];
    text += strspn(text, " ");
    size_t length = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    source->weight = 1000000;
    if (text[length] == '=' && length > 0) {
        if (length >= DATA_SOURCE_NAME)
            return error_set(error, "%s: a name has %zu bytes; legal values are 1 to %d", option, length, DATA_SOURCE_NAME - 1);
        memcpy(source->name, text, length);
        text += length + 1;
    }
    char *slash = strrchr(text, '/'), *colon = strrchr(slash != NULL ? slash : text, ':');
    if (colon != NULL && !weights)
        return error_set(error, "%s: \"%s\": validation sets have no weights; write GLOB or NAME=GLOB,NAME=GLOB,... "
                                "('?' matches a ':' in a file's name)", option, text);
    if (colon != NULL) {
        *colon = '\0';
        if (!data_weight_parse(colon + 1, &source->weight))
            return error_set(error, "%s: \"%s\" is not a weight; "
                                    "legal values are numbers from 0.000001 to 1000000 with at most six digits after the point "
                                    "('?' matches a ':' in a file's name)", option, colon + 1);
    }
    if (text[0] == '\0')
        return error_set(error, "%s: source %d has no pattern; write %s",
                         option, s->count + 1, weights ? "[NAME=]GLOB[:WEIGHT],..." : "GLOB or NAME=GLOB,NAME=GLOB,...");
    for (int i = 0; i < s->count; i++) {
        if (source->name[0] != '\0' && strcmp(s->sources[i].name, source->name) == 0)
            return error_set(error, "%s: the name %s is used twice; names must differ", option, source->name);
        if (weights && strcmp(s->sources[i].pattern, text) == 0)
            return error_set(error, "%s: %s is given twice; give each source once, with its total weight", option, text);
    }
    source->pattern = text_copy(text);
    return true;
}

// Fills source_of and index_of for one period (the schedule at the top of this file).
static inline bool data_sources_schedule(data_sources *s, const char *option, error_text *error) {
    int64_t divisor = 0, M = 0, *had = HOST_NEW(int64_t, s->count);
    for (int i = 0; i < s->count; i++) divisor = gcd_i64(s->sources[i].weight, divisor);
    for (int i = 0; i < s->count; i++) M += s->sources[i].weight /= divisor;
    bool ok = M <= MIXTURE_PERIOD_MAX ||
              error_set(error, "%s: scaled to whole numbers, the weights sum to %lld; the limit is %d: use rounder weights",
                        option, (long long)M, MIXTURE_PERIOD_MAX);
    s->period = ok ? M : 0;
    s->source_of = HOST_NEW(uint8_t, s->period);
    s->index_of = HOST_NEW(int32_t, s->period);
    for (int64_t n = 0; n < s->period; n++) {
        int best = -1;
        int64_t earliest = INT64_MAX;
        for (int i = 0; i < s->count; i++) {
            int64_t a = s->sources[i].weight, end = ceil_div((had[i] + 1) * M, a);
            if (had[i] * M >= (n + 1) * a || end >= earliest) continue; // its turn has not begun, or another's ends first
            best = i;
            earliest = end;
        }
        s->source_of[n] = (uint8_t)best;
        s->index_of[n] = (int32_t)had[best]++;
    }
    free(had);
    return ok;
}

// Finds the files of the sources in `text`, the value of `option` ("--train-data"), the first of three parts of data_sources_open. weights:
// true = a mixture, shuffled; false = validation sets, in order. S, V, seed: as in dataloader_find; every source has an order of its own.
// On failure returns false with a message; data_sources_close is the caller's either way.
static inline bool data_sources_find(data_sources *s, const char *text, const char *option, bool weights, int64_t S, int64_t V,
                                     uint64_t seed, error_text *error) {
    memset(s, 0, sizeof *s);
    s->option = option;
    s->sources = HOST_NEW(data_source, DATA_SOURCES_MAX);
    char *copy = text_copy(text), *rest = copy, *part;
    const char *hint = strpbrk(text, ",=") != NULL && path_exists(text) ? " (write ? for each comma and = in a file's name)" : "";
    bool ok = true;
    while (ok && (part = strsep(&rest, ",")) != NULL) {
        if (s->count == DATA_SOURCES_MAX) ok = error_set(error, "%s: more than %d sources", option, DATA_SOURCES_MAX);
        else ok = data_source_parse(s, part, weights, option, error);
        if (!ok) break;
        data_source *source = &s->sources[s->count];
        error_text why = {"", 0};
        uint64_t own_seed = seed + hash_mix((uint64_t)s->count++); // the first source's is the seed itself
        ok = dataloader_find(&source->data, source->pattern, S, V, own_seed, weights, &why) ||
             error_set_why(error, &why, "%s%s", option, hint);
    }
    for (int i = 0; ok && !weights && s->count > 1 && i < s->count; i++)
        if (s->sources[i].name[0] == '\0')
            ok = error_set(error, "%s: \"%s\" has no name; write several validation sets as NAME=GLOB,NAME=GLOB,...",
                           option, s->sources[i].pattern);
    ok = ok && data_sources_schedule(s, option, error);
    free(copy);
    return ok;
}
// The files of the source that has most.
static inline int64_t data_sources_files(const data_sources *s) {
    int64_t most = 0;
    for (int i = 0; i < s->count; i++) most = max_i64(most, s->sources[i].data.file_count);
    return most;
}
// dataloader_check of file `file` of each source that has so many. Ranks that see the same files divide them, because opening thousands of
// files takes long on a shared file system.
static inline bool data_sources_check(data_sources *s, int64_t file, error_text *error) {
    error_text why = {"", 0};
    for (int i = 0; i < s->count; i++) {
        dataloader *data = &s->sources[i].data;
        if (file < data->file_count && !dataloader_check(data, file, &why)) return error_set_why(error, &why, "%s", s->option);
    }
    return true;
}
// dataloader_take of all sources.
static inline bool data_sources_take(data_sources *s, error_text *error) {
    error_text why = {"", 0};
    for (int i = 0; i < s->count; i++)
        if (!dataloader_take(&s->sources[i].data, s->sources[i].pattern, &why)) return error_set_why(error, &why, "%s", s->option);
    return true;
}
// All three, by one rank alone. On failure returns false with a message and leaves nothing open; else the caller calls data_sources_close.
static inline bool data_sources_open(data_sources *s, const char *text, const char *option, bool weights, int64_t S, int64_t V,
                                     uint64_t seed, error_text *error) {
    bool ok = data_sources_find(s, text, option, weights, S, V, seed, error);
    for (int64_t f = 0; ok && f < data_sources_files(s); f++) ok = data_sources_check(s, f, error);
    ok = ok && data_sources_take(s, error);
    if (!ok) data_sources_close(s);
    return ok;
}

// The sample at `counter` of the run (dataloader_counter): returns the index of its source; *sample = its number within that source.
static inline int data_sources_at(const data_sources *s, int64_t counter, int64_t *sample) {
    int64_t place = counter % s->period;
    int i = s->source_of[place];
    *sample = dataloader_sample_at(&s->sources[i].data, counter / s->period * s->sources[i].weight + s->index_of[place]);
    return i;
}
// How many of the first `counters` samples of the run come from source i.
static inline int64_t data_sources_drawn(const data_sources *s, int i, int64_t counters) {
    int64_t drawn = counters / s->period * s->sources[i].weight;
    for (int64_t n = 0; n < counters % s->period; n++) drawn += s->source_of[n] == i;
    return drawn;
}
static inline const char *data_source_label(const data_source *source) { return source->name[0] != '\0' ? source->name : source->pattern; }

// *seen = how many tokens those of the sample at `counter` see in its packed documents, summed over its tokens: the work of attention.
// Reads the sample whole. False with a message.
static inline bool data_sources_seen(data_sources *s, int64_t counter, document_mark mark, int64_t *seen, error_text *error) {
    int64_t sample, count, S = s->sources[0].data.S;
    dataloader *data = &s->sources[data_sources_at(s, counter, &sample)].data;
    int64_t *starts = dataloader_document_starts(data, sample, mark, &count, error);
    if (starts == NULL) return false;
    *seen = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t length = (i + 1 < count ? starts[i + 1] : S) - starts[i];
        *seen += length * (length + 1) / 2;
    }
    free(starts);
    return true;
}
// The length of one document in which a token sees, on average, as many tokens as where `tokens` of them see `seen` in all.
static inline int64_t data_attended(int64_t seen, int64_t tokens) { return (2 * seen - tokens) / tokens; }
// *attended = data_attended of the run's first `samples` samples. Reads these. False with a message.
static inline bool data_sources_attended(data_sources *s, int64_t samples, document_mark mark, int64_t *attended, error_text *error) {
    int64_t sum = 0, seen = 0;
    for (int64_t n = 0; n < samples; n++) {
        if (!data_sources_seen(s, n, mark, &seen, error)) return false;
        sum += seen;
    }
    *attended = data_attended(sum, samples * s->sources[0].data.S);
    return true;
}

// Tokens of all sources.
static inline int64_t data_sources_tokens(const data_sources *s) {
    int64_t tokens = 0;
    for (int i = 0; i < s->count; i++) tokens += s->sources[i].data.total;
    return tokens;
}
// A hash of what the order of a mixture depends on besides seed and length: each source's weight and samples, in order. 0 for one source.
static inline int64_t data_sources_order(const data_sources *s) {
    uint64_t hash = 0;
    for (int i = 0; i < s->count && s->count > 1; i++)
        hash = hash_mix(hash_mix(hash + (uint64_t)s->sources[i].weight) + (uint64_t)dataloader_samples(&s->sources[i].data));
    return (int64_t)(hash >> 12); // below 2^52: a whole number in JSON
}

// A hash of what this rank finds: the names of all files, and where the first of each source is.
static inline uint64_t data_sources_place(const data_sources *s) {
    uint64_t hash = HASH_EMPTY;
    for (int i = 0; i < s->count; i++) {
        const dataloader *data = &s->sources[i].data;
        struct stat entry;
        bool there = stat(dataloader_path(data, 0), &entry) == 0;
        for (int64_t f = 0; f < data->file_count; f++)
            hash = hash_bytes(hash, dataloader_path(data, f), strlen(dataloader_path(data, f)) + 1);
        if (there) hash = hash_bytes(hash_bytes(hash, &entry.st_dev, sizeof entry.st_dev), &entry.st_ino, sizeof entry.st_ino);
    }
    return hash;
}
// A hash of the files of all sources (file_hash_places).
static inline uint64_t data_sources_hash(const data_sources *s) {
    uint64_t hash = HASH_EMPTY;
    for (int i = 0; i < s->count; i++) hash = hash_bytes(hash, &s->sources[i].data.hash, sizeof s->sources[i].data.hash);
    return hash;
}

// Says once if --train-data holds a file of --val-data, under whatever name: patterns such as data/*.bin take more than is meant.
static inline void data_sources_note_shared(const data_sources *train, const data_sources *val) {
    for (int pair = 0; pair < train->count * val->count; pair++) {
        const dataloader *t = &train->sources[pair / val->count].data, *v = &val->sources[pair % val->count].data;
        for (int64_t n = 0; n < t->file_count * v->file_count; n++) {
            const token_file *a = &t->files[n % t->file_count], *b = &v->files[n / t->file_count];
            if (a->device != b->device || a->inode != b->inode) continue;
            const char *path = dataloader_path(v, n / t->file_count);
            fprintf(stderr, "note: --train-data holds %s, on which --val-data evaluates\n", printable(path).text);
            return;
        }
    }
}

// Prints a line for each source at the start of a run: share, samples, and how many the run draws. samples: of the whole run.
static inline void data_sources_print(const data_sources *s, int64_t samples) {
    for (int i = 0; i < s->count; i++) {
        const dataloader *data = &s->sources[i].data;
        int64_t own = dataloader_samples(data), drawn = data_sources_drawn(s, i, samples);
        printf("data        %s: share %.6g, %lld tokens, %lld sample%s; the run draws %lld (%.2f epochs)",
               data_source_label(&s->sources[i]), (double)s->sources[i].weight / (double)s->period, (long long)data->total,
               (long long)own, plural(own), (long long)drawn, (double)drawn / (double)own);
        if (data->total % data->S > 0)
            printf("; no sample holds the last %lld token%s", (long long)(data->total % data->S), plural(data->total % data->S));
        if (data->masks > 0) printf("; loss masks for %lld of %lld files", (long long)data->masks, (long long)data->file_count);
        printf("\n");
    }
}

#endif
