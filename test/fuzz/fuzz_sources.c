// Input: the value of --train-data and of --val-data: several sources, names, weights. '@' stands for the folder of three token files; '/'
// is dropped, so that no pattern reaches the machine's own folders. An accepted source always has its share, to less than one sample.
#include "../../data_sources.h"
#include "../../options.h"
#include "fuzz.h"

enum { LENGTH = 4, VOCABULARY = 100 };

static void check_sources(const char *text, bool weights) {
    error_text error = no_error();
    data_sources s;
    bool ok = data_sources_open(&s, text, weights ? "--train-data" : "--val-data", weights, LENGTH, VOCABULARY, 1, &error);
    must_be_clear(ok, &error);
    if (!ok) return;
    int64_t had[DATA_SOURCES_MAX] = {0}, counters = min_i64(2 * s.period, 200);
    for (int64_t n = 0; n < counters; n++) {
        int64_t sample = -1;
        int i = data_sources_at(&s, n, &sample);
        MUST(i >= 0 && i < s.count && sample >= 0 && sample < dataloader_samples(&s.sources[i].data),
             "source %d, sample %lld", i, (long long)sample);
        had[i]++;
        for (int k = 0; k < s.count; k++) { // the samples so far of a source are its share, to within less than one
            MUST(data_sources_drawn(&s, k, n + 1) == had[k], "source %d", k);
            MUST(llabs(had[k] * s.period - (n + 1) * s.sources[k].weight) < s.period,
                 "source %d had %lld of %lld", k, (long long)had[k], (long long)(n + 1));
        }
    }
    data_sources_close(&s);
    fuzz_accepted++;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static bool made = false;
    if (!made) {
        fuzz_token_file("a.bin", 40);
        fuzz_token_file("b.bin", 12);
        fuzz_token_file("c.bin", 1);
        made = true;
    }
    const char *folder = fuzz_folder();
    size_t n = 0, longest = strlen(folder) + 1;
    char *text = HOST_NEW(char, size * longest + 1);
    for (size_t i = 0; i < size && data[i] != '\0'; i++) {
        if (data[i] == '@') {
            memcpy(text + n, folder, longest - 1);
            text[n + longest - 1] = '/';
            n += longest;
        } else if (data[i] != '/' && data[i] >= 32 && data[i] != 127) { // the option table refuses control characters
            text[n++] = (char)data[i];
        }
    }
    if (n < OPTION_TEXT_BYTES) { // no longer ones come from a command line; glob's recursion over some 1500 folders overflows the stack
        check_sources(text, true);
        check_sources(text, false);
    }
    free(text);
    return 0;
}
