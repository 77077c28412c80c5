// Input: a training_state.json, tried twice: as the file of a state, which its checksum guards, and as JSON whose checksum counts as right.
#include "../../training_state.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { COUNT = 3 };
    uint64_t sums[VALUES_KINDS * COUNT];
    training_progress progress;
    memset(&progress, 0, sizeof progress);
    error_text error = no_error(), refused = no_error();
    fuzz_file("training_state.json", data, size);
    bool whole = state_read_json(fuzz_folder(), &progress, sums, COUNT, &refused, &error);
    must_be_clear(whole, refused.text[0] != '\0' ? &refused : &error);

    char *text = HOST_NEW(char, size + 1);
    memcpy(text, data, size);
    cJSON *json = cJSON_ParseWithOpts(text, NULL, 1);
    free(text);
    if (json == NULL) return 0;
    error = no_error();
    memset(&progress, 0, sizeof progress);
    bool ok = state_parse_json(json, &progress, sums, COUNT, &error);
    must_be_clear(ok, &error);
    cJSON_Delete(json);
    if (!ok) return 0;
    MUST(progress.step >= 0 && progress.samples >= 0 && progress.seed >= 0 && progress.seq_len >= 0 && progress.train_tokens >= 0,
         "a number below 0");

    // Written and read again, it is the same.
    training_progress back;
    uint64_t sums_back[VALUES_KINDS * COUNT];
    memset(&back, 0, sizeof back);
    options o;
    options_default(&o);
    MUST(state_write_json(fuzz_folder(), &progress, &o, sums, COUNT, &error), "%s", error.text);
    MUST(state_read_json(fuzz_folder(), &back, sums_back, COUNT, &refused, &error), "%s", error.text);
    MUST(memcmp(&back, &progress, sizeof back) == 0 && memcmp(sums, sums_back, sizeof sums) == 0, "another state");
    fuzz_accepted += whole;
    return 0;
}
