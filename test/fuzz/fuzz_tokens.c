// Input: a token file. Alone, and after a good one: a file that is accepted can be read to its last token on every rank, and the only thing
// that may be wrong then is a token beyond the vocabulary.
#include "../../dataloader.h"
#include "fuzz.h"

enum { LENGTH = 12, VOCABULARY = 300 };

static void read_all(const char *pattern) {
    error_text error = no_error();
    dataloader loader;
    bool ok = dataloader_open(&loader, pattern, LENGTH, VOCABULARY, 1, true, &error);
    must_be_clear(ok, &error);
    if (!ok) return;
    int64_t samples = dataloader_samples(&loader);
    for (int64_t at = 0; at < min_i64(samples, 8); at++)
        for (int rank = 0; rank < 4; rank++) {
            int32_t tokens[LENGTH], labels[LENGTH];
            int64_t positions[LENGTH];
            sequence_shard shard = sequence_shard_make(LENGTH, 2, 2, rank % 2, rank / 2, 1);
            int64_t sample = at < 4 ? at : samples - 1 - (at - 4); // the first and the last
            if (sample < 0) continue;
            ok = dataloader_read(&loader, sample, &shard, tokens, positions, labels, &error);
            must_be_clear(ok, &error);
            MUST(ok || strstr(error.text, "vocabulary") != NULL, "%s", error.text);
            error = no_error();
            for (int64_t t = 0; ok && t < shard.T; t++)
                MUST(tokens[t] >= 0 && tokens[t] < VOCABULARY && labels[t] >= LABEL_IGNORED && labels[t] < VOCABULARY, "token %d, label %d", tokens[t], labels[t]);
        }
    if (loader.total <= 8192) { // all of it, over the files
        int32_t *all = HOST_NEW(int32_t, loader.total);
        ok = dataloader_read_tokens(&loader, 0, loader.total, all, &error);
        MUST(ok || strstr(error.text, "vocabulary") != NULL, "%s", error.text);
        free(all);
    }
    dataloader_close(&loader);
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
