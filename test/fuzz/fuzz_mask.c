// Input: the loss mask beside a token file of 24 tokens. If it is accepted, just the tokens with mask 1 are labels, each on one rank.
#include "../../data_sources.h"
#include "fuzz.h"

enum { TOKENS = 24, LENGTH = 12 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static path_text path;
    if (path.text[0] == '\0') path = fuzz_token_file("tokens.bin", TOKENS);
    fuzz_file("tokens.bin.mask", data, size);
    error_text error = no_error();
    data_sources sources;
    bool ok = data_sources_open(&sources, path.text, "--val-data", false, LENGTH, TOKENS, 1, &error);
    must_be_clear(ok, &error);
    MUST(ok == (size == TOKENS), "a mask of %zu bytes: %s", size, error.text);
    if (!ok) return 0;
    bool learnt[TOKENS] = {false}, legal = true;
    for (int i = 1; i < TOKENS; i++) legal = legal && data[i] <= 1; // token 0 is nobody's label
    for (int rank = 0; rank < 8; rank++) {
        int32_t tokens[LENGTH], labels[LENGTH];
        sequence_shard shard = sequence_shard_make(LENGTH, 2, 2, rank % 2, rank / 2 % 2, 1);
        bool read = dataloader_read(&sources.sources[0].data, rank / 4, &shard, tokens, labels, &error);
        must_be_clear(read, &error);
        ok = ok && read;
        error = no_error();
        for (int64_t t = 0; read && t < shard.T; t++)
            if (labels[t] != LABEL_IGNORED) {
                MUST(labels[t] == tokens[t] + 1 && !learnt[labels[t]], "label %d of token %d", labels[t], tokens[t]);
                learnt[labels[t]] = true;
            }
    }
    MUST(ok == legal, "read %d, legal %d", ok, legal);
    for (int i = 1; ok && i < TOKENS; i++) MUST(learnt[i] == (data[i] == 1), "token %d", i);
    data_sources_close(&sources);
    fuzz_accepted += ok;
    return 0;
}
