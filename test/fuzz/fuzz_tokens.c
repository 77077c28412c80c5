// Input: a token file, read alone and after a good one. A file that is accepted can be read to its last token on every rank; the only error
// left is a token beyond the vocabulary. With packed documents, the first token of every row's document is the right one.
#include "../../data_sources.h"
#include "fuzz.h"

enum { LENGTH = 12, VOCABULARY = 300 };

// The rank's documents where `mark` tells them apart, against a search in the whole sample. From 4 tokens on they are long.
static void check_documents(dataloader *loader, int64_t sample, int h, int c, document_mark mark) {
    error_text error = no_error();
    sequence_shard shard = sequence_shard_make_packed(LENGTH, 2, 2, h, c, 1, 4);
    int32_t whole[LENGTH], tokens[LENGTH], labels[LENGTH];
    int64_t first[8 * LENGTH];
    sequence_segment segments[LENGTH];
    MUST(shard.T <= LENGTH && sequence_shard_entries(&shard) <= 8 * LENGTH && sequence_shard_segments(&shard) < LENGTH,
         "no room for %lld rows", (long long)shard.T);
    bool ok = dataloader_read_packed(loader, sample, &shard, mark, tokens, labels, first, segments, &error);
    must_be_clear(ok, &error);
    MUST(ok || strstr(error.text, "vocabulary") != NULL, "%s", error.text);
    // A token of another rank may be beyond the vocabulary.
    if (!ok || !dataloader_read_tokens(loader, sample * LENGTH, LENGTH, whole, &error)) return;
    shard.segments = segments;
    for (int64_t t = 0; t < sequence_shard_entries(&shard); t++) { // the rows, then the chunks' first rows
        sequence_span span = sequence_shard_entry(&shard, t);
        int64_t position = span.position, begin = min_i64(position, span.end - 1);
        while (begin > 0 && whole[begin - mark.ends] != mark.token) begin--;
        if (position >= span.end && first[t] == position) continue; // padding may be documents of its own
        MUST(first[t] == begin, "row %lld, at %lld: its document begins at %lld, not %lld", (long long)t, (long long)position,
             (long long)begin, (long long)first[t]);
    }
    for (int64_t t = 0; t < shard.T; t++)
        MUST((mark.ends ? tokens : labels)[t] != mark.token || labels[t] == LABEL_IGNORED, "a label crosses to the next document");
}

static void read_all(const char *pattern) {
    error_text error = no_error();
    data_sources sources;
    bool ok = data_sources_open(&sources, pattern, "--train-data", true, LENGTH, VOCABULARY, 1, &error);
    must_be_clear(ok, &error);
    if (!ok) return;
    dataloader *data = &sources.sources[0].data;
    int64_t samples = dataloader_samples(data);
    for (int64_t at = 0; at < min_i64(samples, 8); at++)
        for (int rank = 0; rank < 4; rank++) {
            int32_t tokens[LENGTH], labels[LENGTH];
            sequence_shard shard = sequence_shard_make(LENGTH, 2, 2, rank % 2, rank / 2, 1);
            int64_t sample = at < 4 ? at : samples - 1 - (at - 4); // the first and the last
            if (sample < 0) continue;
            ok = dataloader_read(data, sample, &shard, tokens, labels, &error);
            must_be_clear(ok, &error);
            MUST(ok || strstr(error.text, "vocabulary") != NULL, "%s", error.text);
            error = no_error();
            for (int64_t t = 0; ok && t < shard.T; t++)
                MUST(tokens[t] >= 0 && tokens[t] < VOCABULARY && labels[t] >= LABEL_IGNORED && labels[t] < VOCABULARY,
                     "token %d, label %d", tokens[t], labels[t]);
            if (ok) check_documents(data, sample, rank % 2, rank / 2, (document_mark){tokens[at % shard.T], rank % 3 > 0});
        }
    if (data->total <= 8192) { // all of it, over the files
        int32_t *all = HOST_NEW(int32_t, data->total);
        ok = dataloader_read_tokens(data, 0, data->total, all, &error);
        MUST(ok || strstr(error.text, "vocabulary") != NULL, "%s", error.text);
        free(all);
    }
    fuzz_accepted += ok;
    data_sources_close(&sources);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static bool made = false;
    if (!made) {
        fuzz_token_file("good.bin", 40);
        made = true;
    }
    path_text path = fuzz_file("input.bin", data, size);
    read_all(path.text);
    read_all(path_join(fuzz_folder(), "*.bin").text);
    return 0;
}
