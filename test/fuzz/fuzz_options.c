// Input: the number of ranks - 1 in the first byte, then the words of a command line, one a line.
#include "../../options.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { WORDS = 200 };
    static FILE *nowhere = NULL;
    if (nowhere == NULL) nowhere = fopen("/dev/null", "w");
    if (size < 1) return 0;
    char *argv[WORDS + 2], *text = HOST_NEW(char, size); // the words end at the last byte, so that a read past it is found
    int argc = 0, ranks = data[0] + 1;
    memcpy(text, data + 1, size - 1);
    argv[argc++] = text; // the program's name
    for (char *at = text; argc <= WORDS && (at = strchr(at, '\n')) != NULL;) {
        *at++ = '\0';
        argv[argc++] = at;
    }
    argv[argc] = NULL;

    error_text error = no_error();
    options o;
    model_config c;
    bool ok = options_parse(&o, argc, argv, &error);
    must_be_clear(ok, &error);
    if (ok && !o.help && !o.version && !o.calibrate) {
        const model_config *preset = config_preset(o.model); // folders are for fuzz_config
        c = preset != NULL ? *preset : *config_preset("nano");
        options_print(&o, nowhere);
        ok = options_model(&o, &c, &error);
        must_be_clear(ok, &error);
        ok = ok && options_check(&o, &c, ranks, &error);
        must_be_clear(ok, &error);
        if (ok) {
            MUST(o.dp * o.hp * o.cp == (o.dry_run ? o.ranks : ranks),
                 "%lld x %lld x %lld", (long long)o.dp, (long long)o.hp, (long long)o.cp);
            MUST(c.H % o.hp == 0 && o.cp % o.inner_ring == 0 && o.ranks % o.zero_optim == 0 && o.zero_optim % o.zero_grads == 0 &&
                 o.zero_grads % o.zero_params == 0, "%lld %lld %lld %lld %lld", (long long)o.hp, (long long)o.inner_ring,
                 (long long)o.zero_params, (long long)o.zero_grads, (long long)o.zero_optim);
            MUST(o.grad_accum >= 1 && o.seq_len >= 1 && o.batch_size >= 1 && (o.steps == 0 || o.warmup <= o.steps),
                 "%lld %lld %lld, warm-up %lld of %lld", (long long)o.grad_accum, (long long)o.seq_len, (long long)o.batch_size,
                 (long long)o.warmup, (long long)o.steps); // without steps there is no schedule
            options_print(&o, nowhere);
            fuzz_accepted++;
        }
    }
    free(text);
    return 0;
}
