// ranks: 1
// dataloader.h: which rank holds which token, labels across shards and files, padding, order of samples, and every kind of bad file.
// data_sources.h: shares of a mixture at every prefix, epochs of each source, names, and every kind of bad list.
#include "../data_sources.h"
#include "test.h"
#include <sys/mman.h>
#ifdef __x86_64__
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#endif

static char folder[256];

// A file of tokens of this header and so many bytes.
static void write_raw(const char *name, int32_t magic, int32_t version, int64_t count, const void *tokens, size_t bytes) {
    int32_t header[TOKEN_HEADER_BYTES / 4] = {magic, version, (int32_t)count};
    FILE *f = fopen(path_join(folder, name).text, "wb");
    bool ok = f != NULL && fwrite(header, 1, sizeof header, f) == sizeof header && fwrite(tokens, 1, bytes, f) == bytes && fclose(f) == 0;
    if (!ok) {
        printf("cannot write %s\n", name);
        exit(EXIT_FAILED);
    }
}
static void remove_files(void) {
    glob_t found;
    if (glob(path_join(folder, "*").text, 0, NULL, &found) != 0) return;
    for (size_t i = 0; i < found.gl_pathc; i++) unlink(found.gl_pathv[i]);
    globfree(&found);
}
// A good file of the tokens values[0..count).
static void write_tokens(const char *name, int width, const int64_t *values, int64_t count) {
    uint16_t *narrow = HOST_NEW(uint16_t, count);
    uint32_t *wide = HOST_NEW(uint32_t, count);
    for (int64_t i = 0; i < count; i++) {
        narrow[i] = (uint16_t)values[i];
        wide[i] = (uint32_t)values[i];
    }
    if (width == 2) write_raw(name, TOKEN_MAGIC_16, TOKEN_VERSION_16, count, narrow, (size_t)count * sizeof *narrow);
    else write_raw(name, TOKEN_MAGIC_32, TOKEN_VERSION_32, count, wide, (size_t)count * sizeof *wide);
    free(narrow);
    free(wide);
}
static bool open_data(dataloader *loader, const char *name, int64_t S, int64_t V, bool shuffle, error_text *error) {
    error->text[0] = '\0';
    path_text pattern = path_join(folder, name);
    bool ok = dataloader_find(loader, pattern.text, S, V, 7, shuffle, error);
    for (int64_t f = 0; ok && f < loader->file_count; f++) ok = dataloader_check(loader, f, error);
    ok = ok && dataloader_take(loader, pattern.text, error);
    if (!ok) dataloader_close(loader);
    return ok;
}

// ---- which rank holds which token ----

static void check_shards(int64_t S, int hp, int cp, int64_t multiple) {
    sequence_shard first = sequence_shard_make(S, hp, cp, 0, 0, multiple);
    int64_t T = first.T, padded = first.S_padded, C = T * hp / 2;
    int *seen = HOST_NEW(int, padded);
    int64_t wrong = 0, spans_wrong = 0;
    for (int c = 0; c < cp; c++)
        for (int h = 0; h < hp; h++) {
            sequence_shard s = sequence_shard_make(S, hp, cp, h, c, multiple);
            int64_t before = -2, spans = 0, span_end = 0;
            for (int64_t t = 0; t < T; t++) {
                int64_t p = sequence_shard_position(&s, t), row = h * T + t;
                int64_t want = cp == 1 ? row : row < C ? c * C + row : (2 * cp - 1 - c) * C + row - C;
                wrong += p != want || p < 0 || p >= padded;
                if (p >= 0 && p < padded) seen[p]++;
                if (p != before + 1) spans++;
                if (t == span_end) span_end = t + min_i64(T - t, sequence_shard_span_at(&s, row).rows);
                else spans_wrong += p != before + 1; // within a span positions follow each other
                before = p;
            }
            spans_wrong += span_end != T || spans > 2;
            wrong += s.S != S || s.T != T || s.S_padded != padded || s.hp != hp || s.cp != cp || s.h != h || s.c != c;
        }
    for (int64_t p = 0; p < padded; p++) wrong += seen[p] != 1;
    CHECK(wrong == 0,
          "S %lld hp %d cp %d multiple %lld: %lld positions wrong", (long long)S, hp, cp, (long long)multiple, (long long)wrong);
    CHECK(spans_wrong == 0, "S %lld hp %d cp %d: spans", (long long)S, hp, cp);
    int64_t step = T - 1; // the next smaller legal T would not hold the sequence
    while (step > 0 && (step % multiple != 0 || (cp > 1 && step * hp % (2 * multiple) != 0))) step--;
    CHECK(padded >= S && padded == T * hp * cp && T % multiple == 0 && (cp == 1 || T * hp % (2 * multiple) == 0) && step * hp * cp < S,
          "S %lld hp %d cp %d multiple %lld: T %lld", (long long)S, hp, cp, (long long)multiple, (long long)T);
    free(seen);
}
static void test_shards(void) {
    static const int64_t multiples[] = {1, 2, 3, 8, 128};
    for (int64_t S = 1; S <= 200; S += S < 70 ? 1 : 13)
        for (int hp = 1; hp <= 8; hp++)
            for (int cp = 1; cp <= 6; cp++) check_shards(S, hp, cp, multiples[(S + hp + cp) % 5]);
    check_shards(1, 8, 16, 128);
    // Far beyond 2^31: nothing overflows.
    sequence_shard s = sequence_shard_make((int64_t)1 << 40, 8, 64, 7, 0, 128);
    CHECK(s.T == (int64_t)1 << 31, "T %lld", (long long)s.T);
    CHECK(sequence_shard_position(&s, s.T - 1) == ((int64_t)1 << 40) - 1,
          "last position %lld", (long long)sequence_shard_position(&s, s.T - 1));
}

// ---- reading ----

enum { STREAM = 331, VOCABULARY = 60000 };
static int64_t stream[STREAM];

// The stream as several files, some shorter than a sample. They are written in the wrong order: sorting by name must restore the right one.
static void write_stream(int width) {
    static const int64_t counts[] = {40, 1, 7, 100, 2, 180, 1};
    int64_t first[8] = {0};
    for (int i = 0; i < 7; i++) first[i + 1] = first[i] + counts[i];
    for (int64_t i = 0; i < STREAM; i++) stream[i] = (i * 7919 + 13) % VOCABULARY; // all different
    stream[17] = VOCABULARY - 1;
    remove_files();
    for (int i = 6; i >= 0; i--) {
        char name[32];
        snprintf(name, sizeof name, "part_%03d.bin", i);
        write_tokens(name, width, stream + first[i], counts[i]);
    }
    CHECK(first[7] == STREAM, "files hold %lld tokens", (long long)first[7]);
}
// All samples on all ranks of one grid, against the stream.
static void check_reading(dataloader *loader, int64_t S, int hp, int cp, int64_t multiple) {
    int64_t wrong = 0, valid = 0, n = dataloader_samples(loader);
    error_text error = {"", 0};
    for (int64_t sample = 0; sample < n; sample++)
        for (int c = 0; c < cp; c++)
            for (int h = 0; h < hp; h++) {
                sequence_shard s = sequence_shard_make(S, hp, cp, h, c, multiple);
                int32_t *tokens = HOST_NEW(int32_t, s.T), *labels = HOST_NEW(int32_t, s.T);
                for (int64_t t = 0; t < s.T; t++) tokens[t] = labels[t] = -77;
                CHECK(dataloader_read(loader, sample, &s, tokens, labels, &error), "%s", error.text);
                for (int64_t t = 0; t < s.T; t++) {
                    int64_t p = sequence_shard_position(&s, t), at = sample * S + p;
                    bool padding = p >= S;
                    int64_t token = padding ? 0 : stream[at], label = padding || at + 1 >= STREAM ? LABEL_IGNORED : stream[at + 1];
                    wrong += tokens[t] != token || labels[t] != label;
                    valid += labels[t] >= 0;
                }
                free(tokens);
                free(labels);
            }
    CHECK(wrong == 0, "S %lld hp %d cp %d multiple %lld: %lld rows wrong", (long long)S, hp, cp, (long long)multiple, (long long)wrong);
    int64_t want = n * S - (n * S == STREAM ? 1 : 0); // every token has a label, except the stream's last one
    CHECK(valid == want, "S %lld hp %d cp %d: %lld valid labels, not %lld", (long long)S, hp, cp, (long long)valid, (long long)want);
}
static void test_reading(void) {
    static const int64_t lengths[] = {1, 2, 3, 7, 16, 41, 100, 165, 166, 330, STREAM};
    static const int grids[][2] = {{1, 1}, {2, 1}, {3, 1}, {1, 2}, {2, 2}, {3, 2}, {4, 3}, {1, 5}, {2, 8}};
    for (int width = 2; width <= 4; width += 2) {
        write_stream(width);
        for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
            dataloader loader;
            error_text error;
            CHECK(open_data(&loader, "part_*.bin", lengths[l], VOCABULARY, false, &error), "%s", error.text);
            CHECK(loader.file_count == 7 && loader.total == STREAM && loader.width == width, "%lld files", (long long)loader.file_count);
            CHECK(dataloader_samples(&loader) == STREAM / lengths[l], "%lld samples", (long long)dataloader_samples(&loader));
            for (size_t g = 0; g < sizeof grids / sizeof grids[0]; g++)
                check_reading(&loader, lengths[l], grids[g][0], grids[g][1], g % 2 == 0 ? 1 : 16);
            dataloader_close(&loader);
        }
        dataloader loader;
        error_text error;
        CHECK(!open_data(&loader, "part_*.bin", STREAM + 1, VOCABULARY, false, &error) &&
              strstr(error.text, "largest legal length is 331") != NULL, "%s", error.text);
        dataloader_close(&loader); // after a failure: harmless
    }
}

// ---- packed documents and loss masks ----

static bool begins_document(int64_t sample, int64_t S, int64_t position, document_mark mark) {
    if (position == 0) return true;
    return stream[sample * S + position - mark.ends] == mark.token;
}
// Segments begin where documents do, a long document has its own, and shorter ones are together.
static void check_segments(const sequence_shard *s, int64_t sample, document_mark mark) {
    int64_t wrong = 0, count = 0, last_long = 0;
    for (int64_t begin = 0, end; begin < s->S; begin = end) {
        for (end = begin + 1; end < s->S && !begins_document(sample, s->S, end, mark);) end++;
        bool is_long = end - begin >= s->long_document, alone = begin == 0 || is_long || last_long;
        if (alone) wrong += s->segments[count].position != begin;
        if (alone && count > 0)
            wrong += (s->segments[count].row - s->segments[count - 1].row) / 2 !=
                     ceil_div(begin - s->segments[count - 1].position, 2 * s->cp);
        count += alone;
        last_long = is_long;
    }
    int64_t row = s->segments[count - 1].row + 2 * ceil_div(s->S - s->segments[count - 1].position, 2 * s->cp); // after the last token
    wrong += s->segments[0].row != 0 || s->segments[count].position != s->S || s->segments[count].row != row || row > s->T * s->hp;
    count += row < s->T * s->hp;
    wrong += s->segments[count].position != s->S || s->segments[count].row != s->T * s->hp || count > sequence_shard_segments(s);
    CHECK(wrong == 0, "S %lld hp %d cp %d, %s %d, long from %lld on: segments", (long long)s->S, s->hp, s->cp, mark.ends ? "end" : "begin",
          mark.token, (long long)s->long_document);
}
// The documents of every rank of a grid, against the stream. Its tokens repeat, so that the mark is every token, some of them, or none.
static void check_documents(dataloader *loader, int64_t S, int hp, int cp, int64_t multiple, document_mark mark, int64_t long_document) {
    int64_t wrong = 0, n = dataloader_samples(loader);
    error_text error = {"", 0};
    for (int64_t sample = 0; sample < n; sample++) {
        int *seen = HOST_NEW(int, S);
        for (int c = 0; c < cp; c++)
            for (int h = 0; h < hp; h++) {
                sequence_shard s = sequence_shard_make_packed(S, hp, cp, h, c, multiple, max_i64(2 * cp, long_document));
                int32_t *tokens = HOST_NEW(int32_t, s.T), *labels = HOST_NEW(int32_t, s.T);
                int64_t entries = sequence_shard_entries(&s), *first = HOST_NEW(int64_t, entries);
                sequence_segment *segments = s.long_document > 0 ? HOST_NEW(sequence_segment, sequence_shard_segments(&s) + 1) : NULL;
                CHECK(dataloader_read_packed(loader, sample, &s, mark, tokens, labels, first, segments, &error), "%s", error.text);
                s.segments = segments;
                for (int64_t t = 0; t < s.T; t++) {
                    sequence_span span = sequence_shard_span_at(&s, h * s.T + t);
                    bool padding = span.position >= span.end;
                    int64_t p = span.position, at = sample * S + p;
                    bool ignored = padding || at + 1 >= STREAM || stream[mark.ends ? at : at + 1] == mark.token;
                    int64_t label = ignored ? LABEL_IGNORED : stream[at + 1];
                    wrong += labels[t] != label || tokens[t] != (padding ? 0 : stream[at]);
                    if (!padding) seen[p]++;
                }
                for (int64_t e = 0, chunk = 0; e < entries; e++) { // rows of all HP ranks, and all chunks
                    sequence_span span = sequence_shard_entry(&s, e);
                    // chunk: the position of its first row.
                    if (e == 0 || e >= s.T * hp || sequence_shard_entry(&s, e - 1).rows == 1) chunk = span.position;
                    int64_t begin = min_i64(span.position, span.end - 1);
                    while (!begins_document(sample, S, begin, mark)) begin--;
                    wrong += first[e] != (chunk < span.end ? begin : span.position);
                }
                if (segments != NULL) check_segments(&s, sample, mark);
                free(tokens);
                free(labels);
                free(first);
                free(segments);
            }
        for (int64_t p = 0; p < S; p++) wrong += seen[p] != 1;
        free(seen);
    }
    CHECK(wrong == 0, "S %lld hp %d cp %d, %s %d, long from %lld on: %lld rows wrong", (long long)S, hp, cp, mark.ends ? "end" : "begin",
          mark.token, (long long)long_document, (long long)wrong);
}
// Documents of any length: how much more attention than the mean a CP rank has to compute.
static double balance_of(int cp, int64_t long_document) {
    enum { S = 16384 };
    sequence_shard s = sequence_shard_make_packed(S, 1, cp, 0, 0, 1, long_document);
    sequence_segment *segments = HOST_NEW(sequence_segment, sequence_shard_segments(&s) + 1);
    segment_list list = {.shard = &s, .list = segments};
    double pairs[16] = {0}, sum = 0, most = 0;
    int64_t begins[S];
    for (int64_t begin = 0, end, n = 0; begin < S; begin = end, n++) {
        end = min_i64(S, begin + 20 + (int64_t)(2000 * pow(test_random(7, (uint64_t)n), 4)));
        segment_list_add(&list, begin, end);
        for (int64_t p = begin; p < end; p++) begins[p] = begin;
    }
    s.segments = segments;
    for (s.c = 0; s.c < cp; s.c++) {
        for (int64_t t = 0; t < s.T; t++) {
            sequence_span span = sequence_shard_span_at(&s, t);
            if (span.position < span.end) pairs[s.c] += (double)(span.position - begins[span.position] + 1);
        }
        sum += pairs[s.c];
        most = fmax(most, pairs[s.c]);
    }
    free(segments);
    return most * cp / sum;
}
static void test_documents(void) {
    static const int64_t lengths[] = {1, 7, 48, 100, STREAM};
    static const int grids[][2] = {{1, 1}, {3, 1}, {1, 2}, {2, 2}, {3, 2}, {1, 5}, {2, 8}};
    for (int modulus = 1; modulus <= 11; modulus += 5) { // 0 is every token, every sixth or every eleventh; 12 is no token
        write_stream(2);
        for (int64_t i = 0; i < STREAM; i++) stream[i] = i % modulus;
        remove_files();
        write_tokens("part_0.bin", 2, stream, 200);
        write_tokens("part_1.bin", 2, stream + 200, STREAM - 200);
        for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
            dataloader loader;
            error_text error;
            CHECK(open_data(&loader, "part_*.bin", lengths[l], VOCABULARY, false, &error), "%s", error.text);
            for (size_t g = 0; g < sizeof grids / sizeof grids[0]; g++)
                for (int32_t mark = 0; mark <= 12; mark += 6)
                    for (int ends = 0; ends < 2; ends++)
                        for (int64_t long_document = 6; long_document <= 150; long_document *= 5) // 6 and 30, and none
                            check_documents(&loader, lengths[l], grids[g][0], grids[g][1], g % 2 == 0 ? 1 : 16,
                                            (document_mark){mark, ends == 1}, long_document < 150 ? long_document : STREAM + 1);
            dataloader_close(&loader);
        }
    }
    for (int cp = 4; cp <= 16; cp *= 2) {
        double segments = balance_of(cp, 2 * cp * 8), one = balance_of(cp, 16384);
        CHECK(segments < 1.12 && one > 1.3, "cp %d: a rank has %.2f times the mean to do, with one segment %.2f", cp, segments, one);
        printf("documents of 20 to 2020 tokens, cp %d: the busiest rank has %.2f times the mean to do, with one segment %.2f\n", cp,
               segments, one);
    }
    // As many segments as there can be, each with as much padding as there can be, fill all rows: short and long documents in turn, of a
    // token too many.
    for (int cp = 2; cp <= 8; cp++) {
        int64_t long_document = 2 * cp + 1;
        sequence_shard s = sequence_shard_make_packed(3 * long_document + 4, 1, cp, 0, 0, 1, long_document);
        sequence_segment segments[9];
        segment_list list = {.shard = &s, .list = segments};
        for (int64_t i = 0, begin = 0, end; i < 7; i++, begin = end)
            segment_list_add(&list, begin, end = begin + (i % 2 == 0 ? 1 : long_document));
        CHECK(segments[7].row == s.T && sequence_shard_segments(&s) == 8,
              "cp %d: segments end at row %lld of %lld", cp, (long long)segments[7].row, (long long)s.T);
    }
    // A document longer than the pieces in which the stream is searched; it begins two pieces back.
    enum { LONG = 50000, BEGIN = 5000 };
    int64_t *values = HOST_NEW(int64_t, LONG);
    for (int64_t i = 0; i < LONG; i++) values[i] = 1 + i % 7;
    values[BEGIN - 1] = values[LONG - 2] = 0;
    remove_files();
    write_tokens("long.bin", 2, values, LONG);
    dataloader loader;
    error_text error;
    CHECK(open_data(&loader, "long.bin", LONG, 8, false, &error), "%s", error.text);
    sequence_shard s = sequence_shard_make(LONG, 1, 1, 0, 0, 1), last = sequence_shard_make(LONG, 1, 2, 0, 1, 1);
    int32_t *tokens = HOST_NEW(int32_t, LONG), *labels = HOST_NEW(int32_t, LONG);
    int64_t *first = HOST_NEW(int64_t, LONG + 4);
    for (int ends = 0; ends < 2; ends++) {
        document_mark mark = {0, ends == 1};
        int64_t wrong = 0, begin = BEGIN - 1 + ends;
        CHECK(dataloader_read_packed(&loader, 0, &s, mark, tokens, labels, first, NULL, &error), "%s", error.text);
        for (int64_t i = 0; i < LONG; i++) wrong += first[i] != (i < begin ? 0 : i < LONG - 2 + ends ? begin : LONG - 2 + ends);
        CHECK(wrong == 0, "long documents: %lld of %d rows wrong", (long long)wrong, LONG);
        bool read = dataloader_read_packed(&loader, 0, &last, mark, tokens, labels, first, NULL, &error);
        CHECK(read && first[0] == begin && first[last.T / 2] == begin, "%s %lld", error.text, (long long)first[0]);
    }
    loader.V = 7; // 7 is among the tokens
    CHECK(!dataloader_read_packed(&loader, 0, &s, (document_mark){0, true}, tokens, labels, first, NULL, &error) &&
          strstr(error.text, "vocabulary"), "%s", error.text);
    dataloader_close(&loader);
    free(values);
    free(tokens);
    free(labels);
    free(first);
}

static void write_mask(const char *name, const uint8_t *mask, size_t bytes) {
    error_text error;
    CHECK(file_write(path_join(folder, name).text, mask, bytes, &error), "%s", error.text);
}
// Two of three files have a mask; labels across files and ranks.
static void test_masks(void) {
    static const int64_t counts[] = {130, 1, 200};
    static const int grids[][2] = {{1, 1}, {2, 1}, {1, 2}, {3, 2}};
    uint8_t mask[STREAM];
    dataloader loader;
    error_text error;
    write_stream(2);
    remove_files();
    for (int64_t i = 0; i < STREAM; i++) mask[i] = i == 130 || test_random(4, (uint64_t)i) > 0;
    for (int64_t f = 0, at = 0; f < 3; at += counts[f++]) {
        char name[32];
        snprintf(name, sizeof name, "%lld.bin", (long long)f);
        write_tokens(name, 2, stream + at, counts[f]);
        snprintf(name, sizeof name, "%lld.bin.mask", (long long)f);
        if (f != 1) write_mask(name, mask + at, (size_t)counts[f]);
    }
    for (int64_t S = 9; S <= STREAM; S += 161) {
        CHECK(open_data(&loader, "?.bin", S, VOCABULARY, false, &error) && loader.masks == 2,
              "%s %lld masks", error.text, (long long)loader.masks);
        for (size_t g = 0; g < 4; g++) {
            int64_t wrong = 0;
            for (int64_t sample = 0; sample < dataloader_samples(&loader); sample++)
                for (int rank = 0; rank < grids[g][0] * grids[g][1]; rank++) {
                    sequence_shard s = sequence_shard_make(S, grids[g][0], grids[g][1], rank % grids[g][0], rank / grids[g][0], 1);
                    int32_t tokens[STREAM + 1], labels[STREAM + 1];
                    CHECK(dataloader_read(&loader, sample, &s, tokens, labels, &error), "%s", error.text);
                    for (int64_t t = 0; t < s.T; t++) {
                        int64_t p = sequence_shard_position(&s, t), label = sample * S + p + 1;
                        wrong += labels[t] != (p >= S || label >= STREAM || mask[label] == 0 ? LABEL_IGNORED : stream[label]);
                    }
                }
            CHECK(wrong == 0, "S %lld grid %zu: %lld labels wrong", (long long)S, g, (long long)wrong);
        }
        dataloader_close(&loader);
    }
    write_mask("2.bin.mask", mask, 199);
    CHECK(!open_data(&loader, "?.bin", 9, VOCABULARY, false, &error) &&
          strstr(error.text, "2.bin.mask: has 199 bytes, but the token file has 200 tokens") != NULL, "%s", error.text);
    mask[150] = 2;
    write_mask("2.bin.mask", mask, 200);
    sequence_shard s = sequence_shard_make(STREAM, 1, 1, 0, 0, 1);
    int32_t tokens[STREAM], labels[STREAM];
    CHECK(open_data(&loader, "?.bin", STREAM, VOCABULARY, false, &error), "%s", error.text);
    CHECK(!dataloader_read(&loader, 0, &s, tokens, labels, &error) &&
          strstr(error.text, "2.bin.mask: byte 150 is 2; legal values are 0 and 1") != NULL, "%s", error.text);
    dataloader_close(&loader);
}

// A mask that is read in several pieces.
static void test_long_mask(void) {
    enum { LONG = 10000 };
    static int64_t values[LONG];
    static uint8_t mask[LONG];
    static int32_t tokens[LONG], labels[LONG];
    dataloader loader;
    error_text error;
    sequence_shard s = sequence_shard_make(LONG, 1, 1, 0, 0, 1);
    int64_t wrong = 0;
    remove_files();
    for (int64_t i = 0; i < LONG; i++) values[i] = i, mask[i] = test_random(5, (uint64_t)i) > 0;
    write_tokens("long.bin", 2, values, LONG);
    write_mask("long.bin.mask", mask, LONG);
    CHECK(open_data(&loader, "long.bin", LONG, LONG, false, &error) && dataloader_read(&loader, 0, &s, tokens, labels, &error),
          "%s", error.text);
    for (int64_t t = 0; t < LONG; t++) wrong += labels[t] != (t + 1 < LONG && mask[t + 1] == 1 ? t + 1 : LABEL_IGNORED);
    CHECK(wrong == 0, "a mask of %d bytes: %lld labels wrong", LONG, (long long)wrong);
    dataloader_close(&loader);
}

// Values at the limits of the types, and byte offsets beyond 2^32 (a sparse file).
static void test_limits(void) {
    int64_t edge[] = {65535, 0, 65534, 1};
    dataloader loader;
    error_text error;
    sequence_shard s = sequence_shard_make(4, 1, 1, 0, 0, 1);
    int32_t tokens[4], labels[4];
    remove_files();
    write_tokens("edge.bin", 2, edge, 4);
    CHECK(open_data(&loader, "edge.bin", 4, 65536, true, &error) && dataloader_read(&loader, 0, &s, tokens, labels, &error),
          "%s", error.text);
    CHECK(tokens[0] == 65535 && labels[1] == 65534 && labels[3] == LABEL_IGNORED, "%d %d %d", tokens[0], labels[1], labels[3]);
    dataloader_close(&loader);

    int64_t huge[] = {1, 2, 4294967295, 3};
    write_tokens("huge.bin", 4, huge, 4);
    CHECK(open_data(&loader, "huge.bin", 2, 128256, false, &error), "%s", error.text);
    s = sequence_shard_make(2, 1, 1, 0, 0, 1);
    CHECK(!dataloader_read(&loader, 1, &s, tokens, labels, &error) &&
          strstr(error.text, "huge.bin: token 2 (byte 1032) is 4294967295") != NULL, "%s", error.text);
    dataloader_close(&loader);
    s = sequence_shard_make(4, 1, 1, 0, 0, 1);

    int64_t count = 1300000000, bytes = TOKEN_HEADER_BYTES + 4 * count;
    uint32_t last[3] = {11, 22, 33};
    write_raw("sparse.bin", TOKEN_MAGIC_32, TOKEN_VERSION_32, count, "", 0);
    int fd = open(path_join(folder, "sparse.bin").text, O_WRONLY);
    bool made = fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 && pwrite(fd, last, sizeof last, (off_t)(bytes - 12)) == 12;
    if (!made) {
        TEST_SKIP("tokens far into a file: no room for a sparse one of %lld bytes: %s", (long long)bytes, strerror(errno));
    } else {
        CHECK(open_data(&loader, "sparse.bin", 4, 128256, false, &error), "%s", error.text);
        CHECK(dataloader_read(&loader, count / 4 - 1, &s, tokens, labels, &error), "%s", error.text);
        CHECK(tokens[0] == 0 && tokens[1] == 11 && tokens[3] == 33 && labels[0] == 11 && labels[2] == 33 && labels[3] == LABEL_IGNORED,
              "%d %d %d", tokens[1], tokens[3], labels[0]);
        dataloader_close(&loader);
    }
    if (fd >= 0) close(fd);
}

// ---- order ----

static void test_permutation(void) {
    for (int64_t n = 1; n <= 300; n += n < 40 ? 1 : 29)
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            int seen[300] = {0}, moved = 0;
            int64_t outside = 0;
            for (int64_t i = 0; i < n; i++) {
                int64_t p = dataloader_permute(5, epoch, n, i);
                if (p < 0 || p >= n) outside++;
                else seen[p]++;
                moved += p != i;
            }
            int wrong = 0;
            for (int64_t i = 0; i < n; i++) wrong += seen[i] != 1;
            CHECK(outside == 0 && wrong == 0, "n %lld epoch %lld: not a bijection", (long long)n, (long long)epoch);
            CHECK(n < 30 || moved > n / 2, "n %lld epoch %lld: %d of %lld moved", (long long)n, (long long)epoch, moved, (long long)n);
        }
    // Epochs and seeds give different orders. A sample's place is uniform: its mean over seeds is near the middle.
    int same_epoch = 0, same_seed = 0;
    double mean = 0;
    for (int64_t i = 0; i < 1000; i++) {
        same_epoch += dataloader_permute(5, 0, 1000, i) == dataloader_permute(5, 1, 1000, i);
        same_seed += dataloader_permute(5, 0, 1000, i) == dataloader_permute(6, 0, 1000, i);
        mean += (double)dataloader_permute((uint64_t)i, 0, 1000, 3) / 1000;
    }
    CHECK(same_epoch < 12 && same_seed < 12, "%d places shared by two epochs, %d by two seeds; 1 expected", same_epoch, same_seed);
    CHECK(fabs(mean - 499.5) < 5 * 289 / sqrt(1000), "mean place %g", mean); // 5 standard deviations
    int64_t far = dataloader_permute(5, 9, (int64_t)1 << 45, ((int64_t)1 << 45) - 1);
    CHECK(far >= 0 && far < (int64_t)1 << 45, "%lld", (long long)far);
}

// Every (dp, accumulation, batch) with the same global batch takes the same samples in a step; epochs and shuffling.
static void test_order(void) {
    enum { GLOBAL = 12, STEPS = 7, SAMPLES = 33 };
    dataloader loader;
    error_text error;
    write_stream(2);
    CHECK(open_data(&loader, "part_*.bin", 10, VOCABULARY, true, &error), "%s", error.text);
    int64_t n = dataloader_samples(&loader);
    CHECK(n == SAMPLES, "%lld samples", (long long)n);
    int64_t order[STEPS * GLOBAL];
    for (int64_t i = 0; i < STEPS * GLOBAL; i++) order[i] = dataloader_sample_at(&loader, i);
    for (int dp = 1; dp <= GLOBAL; dp++)
        for (int accum = 1; accum <= GLOBAL; accum++) {
            if (GLOBAL % (dp * accum) != 0) continue;
            int64_t batch = GLOBAL / (dp * accum), wrong = 0;
            bool taken[STEPS * GLOBAL] = {false};
            for (int64_t step = 0; step < STEPS; step++)
                for (int64_t a = 0; a < accum; a++)
                    for (int64_t d = 0; d < dp; d++)
                        for (int64_t b = 0; b < batch; b++) {
                            int64_t counter = dataloader_counter(step * accum + a, dp, d, batch, b);
                            // The step's own, each once.
                            wrong += counter < step * GLOBAL || counter >= (step + 1) * GLOBAL || taken[counter];
                            taken[counter] = true;
                        }
            CHECK(wrong == 0, "dp %d accumulation %d batch %lld", dp, accum, (long long)batch);
        }
    for (int64_t n = 2; n <= 16; n += 2) { // 8 dp ranks, n rounds of samples sorted by length: all have as much
        int64_t most = 0, least = INT64_MAX;
        for (int64_t d = 0; d < 8; d++) {
            int64_t sum = 0;
            for (int64_t round = 0; round < n; round++) sum += 1000 - dataloader_counter(round / 2, 8, d, 2, round % 2);
            most = max_i64(most, sum);
            least = min_i64(least, sum);
        }
        CHECK(most == least, "%lld rounds: %lld to %lld", (long long)n, (long long)least, (long long)most);
    }
    for (int64_t epoch = 0; epoch < 2; epoch++) { // an epoch has every sample once, also where it ends inside a step
        int seen[SAMPLES] = {0}, wrong = 0;
        for (int64_t i = 0; i < n; i++) seen[order[epoch * n + i]]++;
        for (int i = 0; i < SAMPLES; i++) wrong += seen[i] != 1;
        CHECK(wrong == 0, "epoch %lld", (long long)epoch);
    }
    int same = 0;
    for (int64_t i = 0; i < n; i++) same += order[i] == order[n + i];
    CHECK(same < 10, "%d of %lld samples keep their place in the second epoch", same, (long long)n);
    dataloader again;
    CHECK(open_data(&again, "part_*.bin", 10, VOCABULARY, true, &error), "%s", error.text);
    for (int64_t i = 0; i < 2 * n; i++) CHECK(dataloader_sample_at(&again, i) == order[i], "a second loader has another order");
    dataloader_close(&again);
    CHECK(open_data(&again, "part_*.bin", 10, VOCABULARY, false, &error), "%s", error.text);
    for (int64_t i = 0; i < 2 * n; i++) CHECK(dataloader_sample_at(&again, i) == i % n, "not shuffled, but not in order");
    dataloader_close(&again);
    dataloader_close(&loader);
}

// ---- several sources ----

// `list` with every '@' replaced by the folder of this test.
static bool open_sources(data_sources *s, const char *list, bool weights, error_text *error) {
    char text[32768];
    size_t used = 0;
    for (; *list != '\0' && used + sizeof folder < sizeof text; list++)
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "%.*s", *list == '@' ? (int)sizeof folder : 1, *list == '@' ? folder : list);
    error->text[0] = '\0';
    return data_sources_open(s, text, weights ? "--train-data" : "--val-data", weights, 10, VOCABULARY, 7, error);
}
static void write_sources(void) { // 4, 7, 30, 1 samples of 10 tokens
    static const int64_t counts[] = {40, 75, 309, 19};
    remove_files();
    for (int i = 0; i < 4; i++) {
        char name[32];
        snprintf(name, sizeof name, "%c.bin", 'a' + i);
        write_tokens(name, 2, stream, counts[i]);
    }
}
// After every n: n w - 1 < samples of a source with weight w < n w + 1. A source's samples are its own shuffled epochs, independent of the
// other sources.
static void check_mixture(const char *list, int count, const double *weights) {
    enum { COUNTERS = 3000 };
    data_sources s;
    error_text error;
    double sum = 0;
    int64_t had[8] = {0}, off = 0, wrong = 0;
    CHECK(open_sources(&s, list, true, &error) && s.count == count, "%s: %s", list, error.text);
    for (int i = 0; i < count; i++) sum += weights[i];
    for (int64_t n = 0; n < COUNTERS; n++) {
        int64_t sample = -1;
        int source = data_sources_at(&s, n, &sample);
        wrong += sample != dataloader_sample_at(&s.sources[source].data, had[source]++);
        for (int i = 0; i < count; i++) off += fabs((double)had[i] - (double)(n + 1) * weights[i] / sum) >= 1 - 1e-9;
        if (n % 500 == 0)
            for (int i = 0; i < count; i++) wrong += data_sources_drawn(&s, i, n + 1) != had[i];
    }
    CHECK(off == 0, "%s: %lld times a share is off by a sample or more", list, (long long)off);
    CHECK(wrong == 0, "%s: %lld samples out of their source's order", list, (long long)wrong);
    data_sources_close(&s);
}
// Two sources of the same size are shuffled differently.
static void check_own_orders(void) {
    data_sources s;
    error_text error;
    int same = 0;
    CHECK(open_sources(&s, "@/c.bin, @/[c].bin", true, &error), "%s", error.text); // the blank is no part of the name
    for (int n = 0; n < 30; n++) same += dataloader_sample_at(&s.sources[0].data, n) == dataloader_sample_at(&s.sources[1].data, n);
    CHECK(same < 10, "two sources have the same order in %d of 30 places", same);
    data_sources_close(&s);
}
static void test_mixture(void) {
    static const double thirds[] = {7, 3}, odd[] = {0.85, 0.1, 0.049, 0.001}, alike[] = {1, 1, 1, 1}, rough[] = {0.5, 0.333, 0.167};
    static const double steep[] = {1000, 0.001}, one[] = {1};
    write_sources();
    check_mixture("@/a.bin:0.7,@/b.bin:0.3", 2, thirds);
    check_mixture("@/a.bin:7,@/b.bin:3", 2, thirds);
    check_mixture("@/a.bin:0.85,x=@/b.bin:.1,@/c.bin:0.049,@/d.bin:0.001", 4, odd);
    check_mixture("@/a.bin,@/b.bin,@/c.bin,@/d.bin", 4, alike);
    check_own_orders();
    check_mixture("@/a.bin:0.5,@/b.bin:0.333,@/c.bin:0.167", 3, rough);
    check_mixture("@/c.bin:1000,@/d.bin:0.001", 2, steep);
    check_mixture("@/c.bin", 1, one);

    data_sources s, plain;
    dataloader alone;
    error_text error;
    CHECK(open_sources(&plain, "@/c.bin", true, &error) && open_data(&alone, "c.bin", 10, VOCABULARY, true, &error), "%s", error.text);
    for (int64_t n = 0; n < 90; n++) { // a single source has the order that a dataloader of its files has
        int64_t sample;
        data_sources_at(&plain, n, &sample);
        CHECK(sample == dataloader_sample_at(&alone, n), "counter %lld", (long long)n);
    }
    CHECK(data_sources_order(&plain) == 0 && data_sources_tokens(&plain) == 309, "order and tokens of one source");
    dataloader_close(&alone);
    int64_t order = 0;
    for (int i = 0; i < 3; i++) { // another weight or another source first gives another order, with which a state must not be resumed
        static const char *const lists[] = {"@/a.bin:7,@/b.bin:3", "@/a.bin:7,@/b.bin:2", "@/b.bin:3,@/a.bin:7"};
        CHECK(open_sources(&s, lists[i], true, &error) && data_sources_order(&s) != order && data_sources_order(&s) > 0,
              "%s: %s", lists[i], error.text);
        order = data_sources_order(&s);
        data_sources_close(&s);
    }
    data_sources_close(&plain);

    // Three ranks that divide the files and add up what each has checked.
    data_sources parts[3];
    for (int r = 0; r < 3; r++) {
        char list[2 * sizeof folder + 32];
        snprintf(list, sizeof list, "%s/?.bin:7,%s/b.bin:3", folder, folder);
        CHECK(data_sources_find(&parts[r], list, "--train-data", true, 10, VOCABULARY, 7, &error), "%s", error.text);
        for (int64_t f = r; f < data_sources_files(&parts[r]); f += 3)
            CHECK(data_sources_check(&parts[r], f, &error), "%s", error.text);
        CHECK(data_sources_place(&parts[r]) == data_sources_place(&parts[0]), "rank %d sees other files", r);
        for (int i = 0; r > 0 && i < 2; i++)
            for (size_t n = 0; n < (size_t)parts[0].sources[i].data.file_count * sizeof(token_file) / sizeof(int64_t); n++)
                ((int64_t *)(void *)parts[0].sources[i].data.files)[n] += ((int64_t *)(void *)parts[r].sources[i].data.files)[n];
    }
    CHECK(open_sources(&s, "@/?.bin:7,@/b.bin:3", true, &error) && data_sources_take(&parts[0], &error), "%s", error.text);
    CHECK(data_sources_hash(&parts[0]) == data_sources_hash(&s) && data_sources_tokens(&parts[0]) == data_sources_tokens(&s),
          "divided, the files are others");
    for (int i = 0; i < 2; i++)
        CHECK(memcmp(parts[0].sources[i].data.files, s.sources[i].data.files,
                     sizeof(token_file) * (size_t)s.sources[i].data.file_count) == 0, "source %d", i);
    uint64_t place = data_sources_place(&s);
    data_sources_close(&s);
    for (int r = 0; r < 3; r++) data_sources_close(&parts[r]);
    CHECK(open_sources(&s, "@/?.bin:7,@/a.bin:3", true, &error) && data_sources_place(&s) != place, "%s", error.text);
    data_sources_close(&s);

    CHECK(open_sources(&s, "first=@/a.bin,second-2=@/?.bin", false, &error), "%s", error.text);
    CHECK(s.count == 2 && strcmp(s.sources[0].name, "first") == 0 && strcmp(s.sources[1].name, "second-2") == 0 &&
          s.sources[1].data.file_count == 4, "names");
    data_sources_close(&s);
}
// data_sources_attended: the length of a single document in which a token sees as many tokens on average. For documents of equal length
// that is their length, for a mixture the mean over its samples.
static void test_attended(void) {
    enum { END = 1, SAMPLES = 4 };
    static const int ends[] = {10, 5, 2, 1}; // tokens of a document, in files of 4 samples of 10 tokens: 1, 2, 5, 10 documents a sample
    static const int begins[] = {8, 4, 1, 1}; // the length if END begins documents: (1 + 45) / 10 tokens are seen on average, and so on
    const document_mark end = {END, true};
    int64_t values[10 * SAMPLES], attended = 0;
    data_sources s;
    error_text error;
    remove_files();
    for (int i = 0; i < 4; i++) {
        char name[32], pattern[64];
        snprintf(name, sizeof name, "%d.bin", ends[i]);
        snprintf(pattern, sizeof pattern, "@/%s", name);
        for (int k = 0; k < 10 * SAMPLES; k++) values[k] = k % ends[i] == ends[i] - 1 ? END : 7;
        write_tokens(name, 2, values, 10 * SAMPLES);
        CHECK(open_sources(&s, pattern, true, &error) && data_sources_attended(&s, 2 * SAMPLES, end, &attended, &error) &&
              attended == ends[i], "documents of %d tokens: %lld %s", ends[i], (long long)attended, error.text);
        CHECK(data_sources_attended(&s, 1, (document_mark){END + 1, true}, &attended, &error) && attended == 10,
              "one document: %lld", (long long)attended);
        CHECK(data_sources_attended(&s, 2 * SAMPLES, (document_mark){END, false}, &attended, &error) && attended == begins[i],
              "begun: %lld", (long long)attended);
        data_sources_close(&s);
    }
    CHECK(open_sources(&s, "@/10.bin:3,@/2.bin:1", true, &error) && data_sources_attended(&s, 2 * SAMPLES, end, &attended, &error) &&
          attended == (3 * 10 + 2) / 4, "a mixture: %lld %s", (long long)attended, error.text);
    data_sources_close(&s);
    values[33] = VOCABULARY;
    write_tokens("bad.bin", 2, values, 10 * SAMPLES);
    CHECK(open_sources(&s, "@/bad.bin", true, &error) && !data_sources_attended(&s, SAMPLES, end, &attended, &error) &&
          strstr(error.text, "bad.bin: token 33") != NULL, "'%s'", error.text);
    data_sources_close(&s);
}
static void check_list_refused(const char *list, bool weights, const char *wanted) {
    data_sources s;
    error_text error;
    bool ok = open_sources(&s, list, weights, &error);
    CHECK(!ok && strstr(error.text, wanted) != NULL && strchr(error.text, '\n') == NULL,
          "%s: \"%s\" lacks \"%s\"", list, ok ? "accepted" : error.text, wanted);
    CHECK(ok || (s.count == 0 && s.sources == NULL), "%s: something is left open", list);
    if (ok) data_sources_close(&s);
}
static void test_bad_lists(void) {
    static const char *const weights[] = {"0", "-1", "", "x", "1e3", "0.0000001", "1000001", "1.2.3", ".", "nan", " 1",
                                          "99999999999999999999"};
    char list[256];
    write_sources();
    for (size_t i = 0; i < sizeof weights / sizeof weights[0]; i++) {
        snprintf(list, sizeof list, "@/a.bin:1,@/b.bin:%s", weights[i]);
        check_list_refused(list, true, "is not a weight; legal values are numbers from 0.000001 to 1000000");
    }
    check_list_refused("@/a.bin:1,", true, "source 2 has no pattern");
    check_list_refused(":1", true, "source 1 has no pattern");
    check_list_refused("x=:1", true, "source 1 has no pattern");
    check_list_refused("x=@/a.bin:1,x=@/b.bin:2", true, "the name x is used twice");
    check_list_refused("@/a.bin:1,@/a.bin:2", true, "is given twice");
    check_list_refused("@/a.bin:1000000,@/b.bin:0.000001", true, "the limit is 1048576");
    check_list_refused("@/a.bin:1,@/z*.bin:2", true, "no file matches");
    check_list_refused("@/a.bin,@/b.bin", false, "has no name");
    check_list_refused("x=@/a.bin,@/b.bin", false, "b.bin\" has no name");
    check_list_refused("x=@/a.bin,x=@/b.bin", false, "the name x is used twice");
    check_list_refused("x=@/a.bin:2,y=@/b.bin", false, "have no weights");
    check_list_refused("x=@/a.bin,y=", false, "source 2 has no pattern");
    check_list_refused("x=@/nothing*.bin", false, "no file matches");

    // As many sources as there may be, with names as long as they may be; then one source more, and a name of one byte more.
    char many[65 * 80] = "", name[2 * DATA_SOURCE_NAME];
    data_sources s;
    error_text error;
    for (int i = 0; i < DATA_SOURCES_MAX; i++)
        snprintf(many + strlen(many), sizeof many - strlen(many), "%s%0*d=@/a.bin", i > 0 ? "," : "", DATA_SOURCE_NAME - 1, i);
    CHECK(open_sources(&s, many, false, &error) && s.count == DATA_SOURCES_MAX && strlen(s.sources[63].name) == DATA_SOURCE_NAME - 1,
          "%s", error.text);
    data_sources_close(&s);
    strcat(many, ",x=@/a.bin");
    check_list_refused(many, false, "more than 64 sources");
    snprintf(name, sizeof name, "%0*d=@/a.bin", DATA_SOURCE_NAME, 0);
    check_list_refused(name, false, "a name has 64 bytes; legal values are 1 to 63");
}

// ---- bad files ----

static void check_refused(const char *name, const char *wanted) {
    dataloader loader;
    error_text error;
    bool ok = open_data(&loader, name, 2, 256, true, &error);
    CHECK(!ok && strstr(error.text, wanted) != NULL && strchr(error.text, '\n') == NULL,
          "%s: \"%s\" lacks \"%s\"", name, ok ? "accepted" : error.text, wanted);
    dataloader_close(&loader);
}
static void test_bad_files(void) {
    uint32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    int64_t values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    path_text a = path_join(folder, "a.bin");
    remove_files();
    check_refused("*.bin", "no file matches");
    check_refused("missing.bin", "no file matches");
    check_refused("missing/*.bin", "no file matches");
    check_refused("", "is not a file"); // the folder itself
    static const struct {
        const char *name;
        int32_t magic, version, count;
        size_t bytes; // after the header
        const char *says;
    } bad[] = {
        {"magic.bin", 12345, TOKEN_VERSION_16, 8, 16, "legal values are 20240520 (uint16 tokens) and 20240801"},
        {"version.bin", TOKEN_MAGIC_16, 7, 8, 16, "version 7; with magic number 20240520 the legal value is 1"},
        {"version.bin", TOKEN_MAGIC_32, 1, 8, 32, "version 1; with magic number 20240801 the legal value is 7"},
        {"width.bin", TOKEN_MAGIC_16, TOKEN_VERSION_16, 8, 32, "tokens have 4 bytes, but magic number 20240520 stands for 2"},
        {"width.bin", TOKEN_MAGIC_32, TOKEN_VERSION_32, 8, 16, "tokens have 2 bytes, but magic number 20240801 stands for 4"},
        {"short.bin", TOKEN_MAGIC_32, TOKEN_VERSION_32, 8, 31, "truncated: 1055 bytes, but 8 tokens need 1056"},
        {"long.bin", TOKEN_MAGIC_32, TOKEN_VERSION_32, 7, 32, "has 1056 bytes, but its header's 7 tokens end at 1052"},
        {"none.bin", TOKEN_MAGIC_32, TOKEN_VERSION_32, 0, 0, "holds no tokens"},
        {"negative.bin", TOKEN_MAGIC_32, TOKEN_VERSION_32, -5, 32, "token count -5"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_raw(bad[i].name, bad[i].magic, bad[i].version, bad[i].count, tokens, bad[i].bytes);
        check_refused(bad[i].name, bad[i].says);
    }
    dataloader loader;
    error_text error;
    CHECK(file_write(path_join(folder, "tiny.bin").text, "", 0, &error), "%s", error.text);
    check_refused("tiny.bin", "has 0 bytes, fewer than the header");
    write_tokens("one.bin", 2, values, 1);
    check_refused("one.bin", "at least 2");
    check_refused("one.bin/*.bin", "no file matches");
    check_refused("one.bin/a.bin", "no file matches");

    remove_files(); // one bad file among good ones, and two widths
    write_tokens("a.bin", 2, values, 8);
    write_tokens("b.bin", 4, values, 8);
    check_refused("*.bin", "must have the same width");
    write_raw("b.bin", TOKEN_MAGIC_16, TOKEN_VERSION_16, 8, tokens, 10);
    check_refused("?.bin", "b.bin: is truncated");

    // A token beyond the vocabulary is found where it is read, also when it is only a label, in the next file.
    values[0] = 256;
    write_tokens("b.bin", 2, values, 8);
    int32_t read_tokens[8], labels[8];
    sequence_shard s = sequence_shard_make(8, 1, 1, 0, 0, 1);
    CHECK(open_data(&loader, "*.bin", 8, 256, false, &error), "%s", error.text);
    const char *wanted = "b.bin: token 0 (byte 1024) is 256; the model's vocabulary has 256 tokens: legal values are 0 to 255";
    CHECK(!dataloader_read(&loader, 0, &s, read_tokens, labels, &error) && strstr(error.text, wanted) != NULL, "%s", error.text);
    // A file that shrinks or is removed after it was opened.
    CHECK(truncate(a.text, 1030) == 0, "truncate");
    error.text[0] = '\0';
    CHECK(!dataloader_read(&loader, 0, &s, read_tokens, labels, &error) && strstr(error.text, "a.bin: ends before byte 1030") != NULL,
          "%s", error.text);
    unlink(a.text);
    dataloader_close(&loader);
    write_tokens("a.bin", 2, values + 1, 7);
    s = sequence_shard_make(7, 1, 1, 0, 0, 1);
    CHECK(open_data(&loader, "a.bin", 7, 256, false, &error), "%s", error.text);
    unlink(a.text);
    CHECK(!dataloader_read(&loader, 0, &s, read_tokens, labels, &error) && strstr(error.text, "a.bin: cannot be opened") != NULL,
          "%s", error.text);
    dataloader_close(&loader);
}

// ---- a folder whose list breaks off ----

// A whole list is none that breaks off where the heap cannot grow, because something is mapped behind it: malloc leaves ENOMEM in errno,
// and takes memory elsewhere.
static void test_heap_ends(void) {
    const int64_t values[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    path_text file = path_join(folder, "heap.bin");
    char name[256];
    dataloader loader;
    error_text error;
    write_tokens("heap.bin", 2, values, 8);
    for (int i = 0; i < 3000; i++) { // with their paths, a MB
        snprintf(name, sizeof name, "heap%0200d.bin", i);
        CHECK(symlink(file.text, path_join(folder, name).text) == 0, "%s: %s", name, strerror(errno));
    }
    uintptr_t end = ((uintptr_t)sbrk(0) + 65535) / 65536 * 65536;
    void *behind = mmap((void *)end, 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(behind != MAP_FAILED, "nothing can be mapped behind the heap: %s", strerror(errno));
    CHECK(open_data(&loader, "heap*.bin", 8, 256, false, &error) && loader.file_count == 3001, "%s", error.text);
    munmap(behind, 65536);
    dataloader_close(&loader);
    remove_files();
}

#ifdef __x86_64__
static int64_t answers; // that the kernel still gives to readers of folders
static void on_getdents(int number, siginfo_t *info, void *context) {
    (void)number, (void)info;
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    r[REG_RAX] = answers-- > 0 ? syscall(SYS_getdents64, r[REG_RDI], r[REG_RSI], r[REG_RDX] - 1) : -EIO; // an odd size passes the filter
}
// The C library's own calls are trapped: nothing else sees that glob reads a folder.
static void test_list_breaks_off(void) {
    struct sock_filter trap[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                                 BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getdents64, 0, 3),
                                 BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
                                 BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 1, 1, 0),
                                 BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
                                 BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {sizeof trap / sizeof *trap, trap};
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_getdents;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSYS, &action, NULL);
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0,
          "no filter: %s", strerror(errno));
    const int64_t values[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    dataloader loader;
    error_text error;
    write_tokens("list.bin", 2, values, 8);
    answers = 1; // the files, but not that there are no more
    CHECK(!open_data(&loader, "lis?.bin", 8, 256, false, &error) && strstr(error.text, "cannot be read: Input/output error") != NULL &&
          error_may_pass(&error), "a list that breaks off: %s", error.text);
    answers = INT64_MAX;
    CHECK(open_data(&loader, "lis?.bin", 8, 256, false, &error), "a whole list: %s", error.text);
    dataloader_close(&loader);
}
#else
static void test_list_breaks_off(void) { TEST_SKIP("a folder whose list breaks off: the registers of this processor have other names"); }
#endif

int main(void) {
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/llama_data_XXXXXX", tmp != NULL && strlen(tmp) < 200 ? tmp : "/tmp");
    if (mkdtemp(folder) == NULL) return EXIT_FAILED;
    test_shards();
    test_reading();
    test_documents();
    test_masks();
    test_long_mask();
    test_limits();
    test_permutation();
    test_order();
    test_mixture();
    test_attended();
    test_bad_lists();
    test_bad_files();
    test_heap_ends();
    test_list_breaks_off();
    remove_files();
    rmdir(folder);
    return test_finish("test_dataloader", NULL);
}
