// ranks: 1
// options.h: the table against parser, help and print; refusals say in one line what is legal; grids, ZeRO degrees by brute force.
#include "../options.h"
#include "test.h"

// Parses a command line whose words are separated by single blanks ('~' stands for a blank inside a word).
static bool parse(options *o, const char *line, error_text *error) {
    static char words[4][4096]; // options point into the words, so four command lines are kept at a time
    static int turn;
    char *text = words[turn++ % 4];
    char *argv[256];
    int argc = 0;
    snprintf(text, 4096, "train_llama %s", line);
    for (char *at = text; argc < 255;) {
        argv[argc++] = at;
        at += strcspn(at, " ");
        if (*at == '\0') break;
        *at++ = '\0';
        if (*at == '\0') break;
    }
    for (int i = 0; i < argc; i++)
        for (char *at = argv[i]; *at != '\0'; at++)
            if (*at == '~') *at = ' ';
    argv[argc] = NULL;
    error->text[0] = '\0';
    return options_parse(o, argc, argv, error);
}
static bool check(options *o, const char *line, int ranks, error_text *error) {
    model_config c;
    if (!parse(o, line, error) || !config_load(&c, o->model, error)) return false;
    return options_model(o, &c, error) && options_check(o, &c, ranks, error);
}
#define GOOD "--model tiny --from-scratch --train-data x.bin "

static void test_table(void) {
    options o;
    options_default(&o);
    CHECK((int)OPTION_ROWS <= OPTION_ROWS_MAX, "%d options", OPTION_ROWS);
    CHECK(sizeof(placement_kind) == sizeof(int) && sizeof(cp_comm_kind) == sizeof(int) && sizeof(dkv_wire_kind) == sizeof(int) &&
          sizeof(moments_kind) == sizeof(int) && sizeof(lr_schedule_kind) == sizeof(int) && sizeof(recompute_kind) == sizeof(int),
          "an enum is not as large as an int");
    for (int i = 0; i < OPTION_ROWS; i++) {
        const option_row *r = &option_rows[i];
        char text[128];
        CHECK(options_find(r->name, strlen(r->name)) == i, "%s stands there twice", r->name);
        CHECK(strlen(r->name) < 48 && strlen(r->help) > 0 && strlen(r->help) < 400, "%s", r->name);
        CHECK((r->kind == OPTION_FLAG) == (r->value[0] == '\0' && r->choices[0] == '\0'), "%s", r->name);
        CHECK(r->initial[0] == '\0' || option_store(&o, r, r->initial), "the default of --%s is not legal", r->name);
        for (int j = 0; j < i; j++) CHECK(option_rows[j].offset != r->offset, "--%s and --%s share a field", option_rows[j].name, r->name);
        if (r->kind == OPTION_REAL) { // printed so that it reads back as the same number
            double third = r->low + (r->high - r->low) / 3, *field = (double *)(void *)((char *)&o + r->offset);
            *field = third;
            option_format(&o, r, text, sizeof text);
            *field = -1;
            CHECK(option_store(&o, r, text) && *field == third, "--%s %.17g is printed as %s", r->name, third, text);
        }
        if (r->kind != OPTION_CHOICE) continue;
        int place = 0;
        for (const char *at = r->choices;; place++) { // every choice is stored and printed
            size_t n = strcspn(at, "|");
            char word[64];
            snprintf(word, sizeof word, "%.*s", (int)n, at);
            CHECK(option_store(&o, r, word), "--%s %s", r->name, word);
            option_format(&o, r, text, sizeof text);
            CHECK(strcmp(text, word) == 0 && option_choice_find(r->choices, word) == place,
                  "--%s %s is printed as %s", r->name, word, text);
            if (at[n] == '\0') break;
            at += n + 1;
        }
    }
    // The texts of the choices are in the order of the enums.
    error_text e;
    CHECK(parse(&o, GOOD "--placement context-first --cp-comm allgather --dkv-wire bf16 --recompute selective "
                         "--lr-schedule wsd --moments bf16", &e), "%s", e.text);
    CHECK(o.dkv_wire == DKV_WIRE_BF16 && o.placement == PLACEMENT_CONTEXT_FIRST && o.cp_comm == CP_COMM_ALLGATHER &&
          o.recompute == RECOMPUTE_SELECTIVE && o.lr_schedule == LR_WSD && o.moments == MOMENTS_BF16, "choices");
    CHECK(parse(&o, GOOD "--placement head-first --cp-comm ring --recompute auto --lr-schedule constant", &e), "%s", e.text);
    CHECK(o.dkv_wire == DKV_WIRE_F32 && o.placement == PLACEMENT_HEAD_FIRST && o.cp_comm == CP_COMM_RING &&
          o.recompute == RECOMPUTE_AUTO && o.lr_schedule == LR_CONSTANT, "choices");
    CHECK(parse(&o, GOOD "--steps 10 --lr-schedule wsd --wsd-decay 0.3 --warmup 7", &e) &&
          parse(&o, GOOD "--steps 1 --lr-schedule wsd --wsd-decay 1", &e), "%s", e.text);
    CHECK(parse(&o, GOOD "--recompute=none --lr-schedule=cosine", &e) && o.recompute == RECOMPUTE_NONE && o.lr_schedule == LR_COSINE,
          "choices");
    CHECK(parse(&o, GOOD "--recompute=full", &e) && o.recompute == RECOMPUTE_FULL, "choices");
}

static void test_help_and_print(void) {
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    options_help(f);
    fclose(f);
    for (int i = 0; i < OPTION_ROWS; i++) { // the help has every option of the table, with its default
        char wanted[128];
        snprintf(wanted, sizeof wanted, "\n  --%s ", option_rows[i].name);
        const char *at = strstr(text, wanted);
        CHECK(at != NULL, "--help lacks --%s", option_rows[i].name);
        snprintf(wanted, sizeof wanted, "[%s]\n", option_rows[i].initial);
        const char *next = at != NULL ? strstr(at + 1, "\n  --") : NULL, *found = at != NULL ? strstr(at, wanted) : NULL;
        CHECK(option_rows[i].initial[0] == '\0' || (found != NULL && (next == NULL || found < next)),
              "--help lacks the default of --%s", option_rows[i].name);
    }
    for (const char *at = strstr(text, "--"); at != NULL; at = strstr(at + 2, "--")) { // and the help names no option that does not exist
        size_t n = strspn(at + 2, "abcdefghijklmnopqrstuvwxyz0123456789-");
        CHECK(options_find(at + 2, n) >= 0 || (n == 4 && memcmp(at + 2, "name", 4) == 0), "--help names --%.*s", (int)n, at + 2);
    }
    for (const char *at = text; *at != '\0'; at += strcspn(at, "\n") + 1)
        CHECK(strcspn(at, "\n") <= 132, "a line of %zu letters", strcspn(at, "\n"));
    free(text);

    options o;
    error_text e;
    CHECK(check(&o, GOOD "--hp 2 --lr 3e-4 --seq-len=128K --zero-optim full", 4, &e), "%s", e.text);
    f = open_memstream(&text, &size);
    options_print(&o, f);
    fclose(f);
    CHECK(strstr(text, "| hp                    * 2 ") && strstr(text, "| seq-len               * 131072 ") &&
          strstr(text, "| zero-optim            * 4 "), "%s", text);
    CHECK(strstr(text, "| lr                      0.0003 ") && strstr(text, "| dp                      2 ") &&
          strstr(text, "| cp                      1 "), "%s", text);
    CHECK(strstr(text, "| mlp-tile                auto ") && strstr(text, "| val-data                - ") &&
          strstr(text, "| zero-params             replica "), "%s", text);
    free(text);

    // Names of files: those of other letters leave the table's edge where it is, and bytes that are no UTF-8 make no JSON that is none.
    CHECK(parse(&o, GOOD "--log g\xc3\xbcte.log --out \xff\xe2\x82~\xed\xa0\x80\xc3\xbc\xe0\x9f\x80\xf4\x90\x80\x80\xf0\x9f\x98\x80", &e),
          "%s", e.text);
    f = open_memstream(&text, &size);
    options_print(&o, f);
    fclose(f);
    CHECK(strstr(text, "| log                   * g\xc3\xbcte.log                                         |\n"), "%s", text);
    free(text);
    cJSON *json = options_json(&o, NULL);
    const char *log = cJSON_GetObjectItem(json, "log")->valuestring, *out = cJSON_GetObjectItem(json, "out")->valuestring;
    CHECK(strcmp(log, "g\xc3\xbcte.log") == 0 && strcmp(out, "??? ???\xc3\xbc???????\xf0\x9f\x98\x80") == 0, "%s, %s", log, out);
    cJSON_Delete(json);
}

static void test_values(void) {
    options o, p;
    error_text e;
    CHECK(parse(&o, GOOD, &e), "%s", e.text);
    CHECK(strcmp(o.model, "tiny") == 0 && strcmp(o.train_data, "x.bin") == 0 && o.val_data == NULL && o.log == NULL && o.from_scratch &&
          !o.dry_run, "texts, flags");
    CHECK(o.hp == 1 && o.cp == 1 && o.dp == 0 && o.seq_len == 1024 && o.lr == 3e-4 && o.zero_params == 1 && o.zero_grads == 0 &&
          o.mlp_tile == 0, "defaults");
    CHECK(o.moments == MOMENTS_F32 && o.beta1 == 0.9 && o.beta2 == 0.95 && o.eps == 1e-8 && o.weight_decay == 0.1 && o.grad_clip == 1 &&
          o.warmup == 0 && o.min_lr_fraction == 0.1 && o.wsd_decay == 0.1, "AdamW's defaults");
    CHECK(parse(&o, "--model=tiny --train-data=x=y.bin --seq-len=1M --hp=8 --lr=1e-3 --zero-params=full "
                    "--memory-budget=40GiB --mlp-tile=4K --offload-activations=.5", &e) &&
          parse(&p, "--model tiny --train-data x=y.bin --seq-len 1048576 --hp 8 --lr .001 --zero-params full "
                    "--memory-budget 42949672960 --mlp-tile 4096 --offload-activations 0.5", &e),
          "%s", e.text);
    CHECK(strcmp(o.train_data, "x=y.bin") == 0 && o.seq_len == p.seq_len && o.hp == 8 && o.lr == p.lr && o.zero_params == ZERO_FULL &&
          p.zero_params == ZERO_FULL && o.memory_budget == p.memory_budget && o.mlp_tile == p.mlp_tile &&
          o.offload_activations == p.offload_activations && memcmp(o.given, p.given, sizeof o.given) == 0, "two forms differ");
    CHECK(o.seq_len == 1048576 && o.memory_budget == 40ll << 30 && o.mlp_tile == 4096, "suffixes");
    CHECK(parse(&o, GOOD "--mlp-tile auto --zero-optim replica --memory-budget 512MiB --seed 0 --warmup 0", &e) && o.mlp_tile == 0 &&
          o.zero_optim == 1 && o.memory_budget == 512ll << 20, "%s", e.text);
    CHECK(parse(&o, "--help --nonsense", &e) && o.help && !o.version, "%s", e.text);
    CHECK(parse(&o, "--version", &e) && o.version, "%s", e.text);
    CHECK(parse(&o, "--dry-run --model tiny", &e) && o.dry_run, "%s", e.text);
}

static void check_refused(const char *line, const char *wanted) {
    options o;
    error_text e;
    bool ok = check(&o, line, 8, &e);
    CHECK(!ok, "accepted: %s", line);
    CHECK(test_one_line(e.text) && strstr(e.text, wanted) != NULL, "%s: \"%s\" lacks \"%s\"", line, e.text, wanted);
    CHECK(strstr(e.text, "legal") || strstr(e.text, "--help") || strstr(e.text, "presets are") || strstr(e.text, "give it once") ||
          strstr(e.text, "; write --") || strstr(e.text, "; add --") || strstr(e.text, "must ") || strstr(e.text, " require") ||
          strstr(e.text, "; give "),
          "%s: \"%s\" says nothing about what is legal", line, e.text);
}
static void test_refusals(void) {
    static const struct {
        const char *line, *wanted;
    } cases[] = {
        {"", "--model is missing; legal values are a Hugging Face folder or one of llama3-8b"}, {"", "(--help lists every option)"},
        {"--train-data x", "--model is missing"}, {"--model tiny", "--train-data is missing"},
        {"--model tinny --train-data x --from-scratch", "nano"}, {"--model tiny --train-data x", "--from-scratch"},
        {GOOD "--modle x", "did you mean --model?"}, {GOOD "--seqlen 4", "did you mean --seq-len?"},
        {GOOD "--head-parallel 4", "did you mean --hp?"}, {GOOD "--learning-rate 1", "did you mean --lr?"},
        {GOOD "--learning_rate=1", "did you mean --lr?"}, {GOOD "--tensor-parallel 4", "unknown option --tensor-parallel; --help lists"},
        {GOOD "--seq_len 4", "did you mean --seq-len?"}, {GOOD "--batchsize=4", "did you mean --batch-size?"},
        {GOOD "--zero-param 2", "did you mean --zero-params?"}, {GOOD "--LR 4", "did you mean --lr?"},
        {GOOD "--bs=4", "unknown option --bs=4; --help lists"}, {GOOD "-h", "did you mean --help?"}, {GOOD "-hp 2", "did you mean --hp?"},
        {GOOD "--", "unknown option --"}, {GOOD "--=3", "unknown option"}, {GOOD "-", "stray argument \"-\""},
        {GOOD "--hp 2 extra", "stray argument \"extra\"; options are --name value or --name=value, and --help lists them"},
        {GOOD "--hp 2 3", "stray argument \"3\""},
        {GOOD "y.bin",
         "\"y.bin\"; options are --name value or --name=value, and --help lists them. A pattern of several files must be in quotes"},
        {GOOD "--out d --resume d", "stray argument \"d\": --resume takes no value; options are"},
        {GOOD "--val-data y.bin z.bin", "must be in quotes: 'data/train*.bin'"},
        // What other programs call these options, and names of which nothing is right.
        {GOOD "--data x", "did you mean --train-data?"}, {GOOD "--max-steps 9", "did you mean --steps?"},
        {GOOD "--peak-lr 1", "did you mean --lr?"}, {GOOD "--max-grad-norm 1", "did you mean --grad-clip?"},
        {GOOD "--clip-grad=1", "did you mean --grad-clip?"}, {GOOD "--sequence-length 4", "did you mean --seq-len?"},
        {GOOD "--per-device-train-batch-size 4", "did you mean --batch-size?"}, {GOOD "--random-seed 4", "did you mean --seed?"},
        {GOOD "--num-warmup-steps 4", "did you mean --warmup?"}, {GOOD "--output-dir d", "did you mean --out?"},
        {GOOD "--log-file d", "did you mean --log?"}, {GOOD "--resume-from-checkpoint", "did you mean --resume?"},
        {GOOD "--val-file x", "did you mean --val-data?"}, {GOOD "--temperature 1", "did you mean --sample-temperature?"},
        {GOOD "--prompt a", "did you mean --sample-prompt?"},
        {GOOD "--epochs 3", "unknown option --epochs; --help lists"}, {GOOD "--verbose", "unknown option --verbose; --help lists"},
        {GOOD "--gradient-accumulation-steps 4", "did you mean --grad-accum?"}, {GOOD "--context-parallel-size 4", "did you mean --cp?"},
        // --gp: of two letters, one is too many.
        {GOOD "--max_seq_len 4", "did you mean --seq-len?"}, {GOOD "--gp 3", "unknown option --gp; --help lists"},
        {GOOD "--train-data-of-a-name-that-is-longer-than-any-option-of-any-program x", "did you mean --train-data?"},
        {GOOD "--a\nb\x01", "unknown option --a?b?"},
        {GOOD "--hp 2 --hp 2", "--hp is given twice"}, {GOOD "--from-scratch", "--from-scratch is given twice"},
        {GOOD "--hp", "--hp: the value is missing"}, {GOOD "--hp=", "--hp: the value is missing"},
        {GOOD "--hp --cp 2", "--hp: the value is missing"}, {"--model --train-data x", "--model: the value is missing"},
        {GOOD "--dry-run=1", "takes no value"}, {GOOD "--dry-run=", "takes no value"}, {GOOD "--hp 0", "from 1 to 4096"},
        {GOOD "--hp -1", "\"-1\" is not legal"}, {GOOD "--hp 2.0", "whole numbers"}, {GOOD "--hp 2x", "whole numbers"},
        {GOOD "--hp 0x2", "whole numbers"}, {GOOD "--hp ~2", "whole numbers"}, {GOOD "--hp 2~", "whole numbers"},
        {GOOD "--hp +2", "whole numbers"},
        {GOOD "--hp K", "whole numbers"}, {GOOD "--hp 4097", "from 1 to 4096"}, {GOOD "--hp 99999999999999999999999", "from 1 to 4096"},
        {GOOD "--hp 18446744073709551617", "from 1 to 4096"}, {GOOD "--seq-len 9223372036854775807M", "from 1 to 1099511627776"},
        {GOOD "--seq-len 1G", "K = 1024"}, {GOOD "--seq-len 1k", "K = 1024"}, {GOOD "--memory-budget 40GB", "GiB"},
        {GOOD "--memory-budget 40G", "GiB"}, {GOOD "--memory-budget 1", "1MiB"},
        {GOOD "--memory-budget 99999999TiB", "1024TiB"}, {GOOD "--mlp-tile 0", "auto"}, {GOOD "--loss-tile automatic", "auto"},
        {GOOD "--lr nan", "from 0 to 100"}, {GOOD "--lr inf", "from 0"}, {GOOD "--lr 1e999", "from 0"}, {GOOD "--lr 3e-400", "from 0"},
        {GOOD "--lr -1", "from 0"}, {GOOD "--lr 1e-3x", "from 0"}, {GOOD "--lr 1,5", "from 0"}, {GOOD "--lr 0x1p3", "from 0"},
        {GOOD "--lr --5", "the value is missing"}, {GOOD "--lr e", "from 0"}, {GOOD "--beta1 1", "0.999999"},
        {GOOD "--eps 0", "numbers from"}, {GOOD "--offload-activations 1.01", "from 0 to 1"},
        {GOOD "--recompute some", "none, selective, full, auto"}, {GOOD "--recompute ful", "none, selective, full, auto"},
        {GOOD "--placement heads", "head-first, context-first"}, {GOOD "--cp-comm none|ring", "ring, allgather"},
        {GOOD "--dkv-wire float", "f32, bf16"},
        {GOOD "--zero-params all", "full, replica"}, {GOOD "--zero-params 0", "full, replica"}, {GOOD "--zero-params -1", "full, replica"},
        {GOOD "--hp 3", "legal values are 1, 2, 4, 8"}, {GOOD "--hp 16", "query heads of tiny; legal values are 1, 2, 4, 8"},
        {GOOD "--cp 3", "does not divide the 8 ranks; legal values of the product are 1, 2, 4, 8"},
        {GOOD "--cp 16", "does not divide the 8 ranks"}, {GOOD "--dp 3", "there are 8 ranks"},
        {GOOD "--dp 1048576 --cp 1048576", "there are 8 ranks"}, {GOOD "--cp 4 --inner-ring 3", "legal values are 1, 2, 4"},
        {GOOD "--cp 4 --inner-ring 8", "legal values are 1, 2, 4"},
        {GOOD "--cp 4 --inner-ring 2 --cp-comm allgather", "--inner-ring cannot be combined"},
        {GOOD "--gpus-per-node 8", "given together"}, {GOOD "--nics-per-node 8", "given together"},
        {GOOD "--zero-params 3", "legal values are 1, 2, 4, 8"}, {GOOD "--zero-params 16", "does not divide the 8 ranks"},
        {GOOD "--zero-params 4 --zero-grads 2", "multiple of --zero-params 4"}, {GOOD "--zero-params full --zero-grads replica", "nest in"},
        {GOOD "--zero-grads 4 --zero-optim 2", "multiple of --zero-grads 4"}, {GOOD "--warmup 101", "legal values are 0 to 100"},
        {GOOD "--zero-params full --offload-gradients", "requires --offload-optimizer"},
        {GOOD "--offload-optimizer --offload-gradients", "requires --zero-grads full and"},
        {GOOD "--zero-grads 4 --zero-optim 8 --offload-optimizer --offload-gradients", "requires --zero-grads full and"},
        {GOOD "--zero-params full --offload-optimizer --offload-parameters", "requires --offload-gradients and"},
        {GOOD "--zero-grads full --offload-optimizer --offload-gradients --offload-parameters", "and --zero-params full"},
        {GOOD "--dp 8 --batch-size 2 --global-batch 24", "legal values are multiples of 16"},
        {GOOD "--wsd-decay 0.2", "--lr-schedule wsd"}, {GOOD "--steps 10 --lr-schedule wsd --wsd-decay 0.3 --warmup 8", "are 0 to 7"},
        {GOOD "--lr-schedule constant --min-lr-fraction 0", "cosine or wsd"}, {GOOD "--eval-every 3", "--val-data"},
        {GOOD "--out d --new-data", "--new-data requires --resume"}, {GOOD "--dry-run --host-memory 1GiB", "requires --cluster"},
        {GOOD "--out d --resume --lr-restart", "--lr-restart requires --new-data"},
        {GOOD "--document-end 1 --document-begin 1", "only one of them"},
        {GOOD "--eval-steps 3", "--val-data"}, {GOOD "--eval-needles 3", "--val-data"}, {GOOD "--eval-tokens 1M", "--val-data"},
        {GOOD "--val-data x --eval-tokens 1M --eval-steps 3", "give only one"}, {GOOD "--sample-prompt x", "require --sample-every"},
        {GOOD "--sample-tokens 1", "require --sample-every"}, {GOOD "--sample-temperature 1", "require --sample-every"},
        {GOOD "--val-data y.bin --seq-len 63 --eval-needles 3", "64 or more"}, {GOOD "--resume", "require --out"},
        {GOOD "--save-every 5", "require --out"}, {GOOD "--keep 2", "require --out"}, {GOOD "--keep-every 2", "require --out"},
        {GOOD "--out one --keep-every 4", "--keep-every requires --save-every"},
        {GOOD "--out one --save-every 3 --keep-every 4", "multiples of --save-every 3"},
        {GOOD "--out one --steps 5005 --save-every 1 --keep-every 5", "legal values with --steps 5005 are from 6 on"},
        {GOOD "--export-dtype f32", "--export DIR"}, {GOOD "--out one --export one", "two different folders"},
        {GOOD "--out one --export ./one", "two different folders"}, {GOOD "--out .//one/ --export one", "two different folders"},
        {GOOD "--out no/one --export no/one", "two different folders"},
        {GOOD "--out one --export one/step-00000001", "those of states"}, {GOOD "--out one --export ./one/lock/", "those of states"},
        {GOOD "--out one --export one/unfinished-x", "those of states"},
        {GOOD "--out one --export one/step-00000001/two", "lies in a state"}, {GOOD "--out ./one/ --log one//damaged-1/a/b", "in a state"},
        {GOOD "--out one.unfinished --export one", "--export is written there"},
        {GOOD "--out one.unfinished/two --export .//one/", "--export is written there"},
        {GOOD "--log one.unfinished/two/log --export one", "--export will be there"},
        {GOOD "--out one/ --export one//damaged-step-00000002", "those of states"}, {GOOD "--out one/two --export one", "lies in"},
        {GOOD "--out ./one//two/three/ --export one/", "lies in"}, {GOOD "--ranks 3", "--dry-run"},
        {GOOD "--rope-theta 1", "from 1.001 to 1e+15"}, {GOOD "--rope-theta 0", "from 1.001"},
        {GOOD "--rope-scaling ntk", "\"ntk\" is not legal; legal values are llama3:"}, {GOOD "--rope-scaling default", "none"},
        {GOOD "--rope-scaling none:", "none"}, {GOOD "--rope-scaling linear", "\"factor\" is missing"},
        {GOOD "--rope-scaling linear:", "not legal; legal"}, {GOOD "--rope-scaling linear:factor", "not legal; legal"},
        {GOOD "--rope-scaling linear:factor=", "not legal; legal"}, {GOOD "--rope-scaling linear:factor=4,", "not legal; legal"},
        {GOOD "--rope-scaling linear:factor=4x", "not legal; legal"}, {GOOD "--rope-scaling linear:factor=nan", "not legal; legal"},
        {GOOD "--rope-scaling linear:factor=0.99", "number from 1 to"},
        {GOOD "--rope-scaling yarn:factor=-4,original=8", "number from 1 to"}, {GOOD "--rope-scaling linear:factor=4,factor=4", "twice"},
        {GOOD "--rope-scaling linear:factor=4,original=8", "unknown key \"original_max_position_embeddings\""},
        {GOOD "--rope-scaling yarn:factor=4", "\"original_max_position_embeddings\" is missing"},
        {GOOD "--rope-scaling yarn:factor=4,original=8.5", "whole number"},
        {GOOD "--rope-scaling yarn:factor=4,original=8K,beta_fast=1,beta_slow=2", "must not be below"},
        {GOOD "--rope-scaling yarn:factor=4,original=8K,low=1", "unknown key"},
        {GOOD "--rope-scaling llama3:factor=8,low=1,original=8K", "\"high_freq_factor\" is missing"},
        {GOOD "--rope-scaling llama3:factor=8,low=4,high=1,original=8K", "above"},
        {GOOD "--rope-scaling llama3:low_freq_factor=1", "not legal; legal"}, {GOOD "--rope-scaling llama3;factor=8", "not legal; legal"},
        {"--model tiny --dry-run --dp 1048576 --cp 1048576", "legal values are 1 to"},
        {"--model tiny --dry-run --ranks 6 --cp 4", "does not divide the 6 ranks"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) check_refused(cases[i].line, cases[i].wanted);
    for (size_t i = 0; i < sizeof option_other_names / sizeof option_other_names[0]; i++) { // each leads to an option that there is
        char line[128], wanted[64];
        snprintf(line, sizeof line, GOOD "--%s=1", option_other_names[i].name);
        snprintf(wanted, sizeof wanted, "did you mean --%s?", option_other_names[i].ours);
        CHECK(options_find(option_other_names[i].ours, strlen(option_other_names[i].ours)) >= 0, "--%s", option_other_names[i].ours);
        check_refused(line, wanted);
    }
    options apart;
    error_text none;
    CHECK(check(&apart, GOOD "--out one --export /one", 1, &none) && check(&apart, GOOD "--out a/one --export b/one", 1, &none) &&
              check(&apart, GOOD "--out one --export one/two", 1, &none) && check(&apart, GOOD "--out one --export two/step-1", 1, &none) &&
              check(&apart, GOOD "--out one --export one/two/lock", 1, &none) && check(&apart, GOOD "--out /a/b/c --export ../b", 1, &none),
          "%s", none.text);
    // A value that is too long, or holds control characters.
    char line[2048];
    snprintf(line, sizeof line, GOOD "--log %01100d", 0);
    check_refused(line, "1023 bytes");
    check_refused(GOOD "--log a\tb", "control characters");

    // Every option that takes a value: a missing value, and both sides of both ends of its range.
    for (int i = 0; i < OPTION_ROWS; i++) {
        if (option_rows[i].kind == OPTION_FLAG || strcmp(option_rows[i].name, "model") == 0 ||
            strcmp(option_rows[i].name, "train-data") == 0)
            continue;
        snprintf(line, sizeof line, GOOD "--%s", option_rows[i].name);
        check_refused(line, "the value is missing");
        if (option_rows[i].kind == OPTION_TEXT) continue;
        snprintf(line, sizeof line, GOOD "--%s=??", option_rows[i].name);
        check_refused(line, "legal values are");
        if (option_rows[i].kind == OPTION_CHOICE) continue; // test_table takes each of its words
        options o;
        error_text e;
        bool real = option_rows[i].kind == OPTION_REAL;
        double low = option_rows[i].low, high = option_rows[i].high, values[4] = {low - 1, low, high, high + (high > 1e15 ? 2 : 1)};
        if (real) { // the next numbers; below 0 the first that is not refused as too small
            values[0] = low == 0 ? -0x1p-1022 : nextafter(low, -INFINITY);
            values[3] = nextafter(high, INFINITY);
        }
        for (int side = 0; side < 4; side++) {
            bool legal = side == 1 || side == 2;
            snprintf(line, sizeof line, real ? GOOD "--%s=%.17g" : GOOD "--%s=%.0f", option_rows[i].name, values[side]);
            CHECK(parse(&o, line, &e) == legal && (legal || strstr(e.text, "legal values are") != NULL), "%s: %s", line, e.text);
        }
    }
    // Noise: any bytes are either accepted or refused in one line.
    for (uint64_t k = 0; k < 4000; k++) {
        char noise[64];
        int n = 1 + (int)(k % 40);
        const char letters[] = "--=hpcdplr0123456789KMe.|~ \n\xC3\xA9\x7F";
        for (int i = 0; i < n; i++)
            noise[i] = letters[(size_t)((test_random(k, (uint64_t)i) + 1) / 2 * (double)(sizeof letters - 1)) % (sizeof letters - 1)];
        noise[n] = '\0';
        options o;
        error_text e;
        snprintf(line, sizeof line, GOOD "%s%s", k % 2 ? "--" : "", noise);
        CHECK(parse(&o, line, &e) || test_one_line(e.text), "noise %llu: \"%s\"", (unsigned long long)k, e.text);
    }
}

// --rope-theta and --rope-scaling replace the model's; max_position grows to the length that is trained.
static void test_model_changes(void) {
    options o;
    error_text e;
    model_config c = *config_preset("llama3.1-8b");
    CHECK(parse(&o, GOOD "--seq-len 64K", &e) && options_model(&o, &c, &e) && config_same_rope(&c, config_preset("llama3.1-8b")) &&
          c.max_position == 131072, "%s", e.text);
    CHECK(parse(&o, GOOD "--seq-len 1M --rope-theta 8e6", &e) && options_model(&o, &c, &e), "%s", e.text);
    CHECK(c.rope_theta == 8e6 && c.rope.kind == ROPE_LLAMA3 && c.rope.factor == 8 && c.max_position == 1048576, "theta alone");
    CHECK(parse(&o, GOOD "--rope-scaling yarn:factor=16,original=8K", &e) && options_model(&o, &c, &e), "%s", e.text);
    CHECK(c.rope_theta == 8e6 && c.rope.kind == ROPE_YARN && c.rope.factor == 16 && c.rope.original_length == 8192 &&
          c.rope.beta_fast == 32 && c.rope.beta_slow == 1 && c.rope.low_freq_factor == 0 && c.rope.attention_factor == 0, "yarn");
    CHECK(parse(&o, GOOD "--rope-scaling yarn:beta_slow=0.5,beta_fast=64,original=100,factor=1.5 --rope-theta 5e5", &e) &&
          options_model(&o, &c, &e), "%s", e.text);
    CHECK(c.rope_theta == 5e5 && c.rope.factor == 1.5 && c.rope.original_length == 100 && c.rope.beta_fast == 64 && c.rope.beta_slow == 0.5,
          "yarn with betas");
    CHECK(parse(&o, GOOD "--rope-scaling yarn:factor=4,original=8K,attention_factor=1", &e) && options_model(&o, &c, &e) &&
          c.rope.attention_factor == 1, "%s", e.text);
    CHECK(parse(&o, GOOD "--rope-scaling llama3:factor=8,low=1,high=4,original=8192", &e) && options_model(&o, &c, &e), "%s", e.text);
    CHECK(config_same_rope(&c, config_preset("llama3.1-8b")), "llama3");
    CHECK(parse(&o, GOOD "--rope-scaling linear:factor=4", &e) && options_model(&o, &c, &e) && c.rope.kind == ROPE_LINEAR &&
          c.rope.factor == 4 && c.rope.original_length == 0, "%s", e.text);
    CHECK(parse(&o, GOOD "--rope-scaling none", &e) && options_model(&o, &c, &e) && config_same_rope(&c, config_preset("llama3-8b")),
          "%s", e.text);
    CHECK(parse(&o, "--model tiny --from-scratch --steps 0 --seq-len 8M", &e) && options_model(&o, &c, &e) && c.max_position == 1048576,
          "not trained: %s", e.text);
}

// Accepted exactly if dp hp cp = ranks, hp divides H, w divides cp.
static void test_grids(void) {
    char line[512];
    options o;
    error_text e;
    for (int ranks = 1; ranks <= 8; ranks++)
        for (int hp = 1; hp <= 9; hp++)
            for (int cp = 1; cp <= 8; cp++)
                for (int w = 1; w <= 4; w++)
                    for (int dp = 0; dp <= 3; dp++) {
                        int n = snprintf(line, sizeof line, GOOD "--hp %d --cp %d --inner-ring %d", hp, cp, w);
                        if (dp > 0) snprintf(line + n, sizeof line - (size_t)n, " --dp %d", dp);
                        bool legal = 8 % hp == 0 && cp % w == 0 && ranks % (hp * cp) == 0 && (dp == 0 || dp * hp * cp == ranks);
                        bool ok = check(&o, line, ranks, &e);
                        CHECK(ok == legal && (ok || test_one_line(e.text)), "%d ranks, %s: %s", ranks, line, e.text);
                        CHECK(!ok || (o.dp * hp * cp == ranks && o.inner_ring == w && o.ranks == ranks),
                              "%d ranks, %s: dp %lld", ranks, line, (long long)o.dp);
                    }
    CHECK(check(&o, GOOD "--hp 2 --cp 4", 8, &e) && o.inner_ring == 4 && o.dp == 1, "one ring by default");
    // Cards of a node, ranks of a ring in it (8 / hp, head-first), and the divisor of cp and of these ranks that is no more than the cards.
    const struct { const char *line; int ranks, w; } windows[] = {
        {"--cp 64 --gpus-per-node 8 --nics-per-node 4", 64, 4}, {"--cp 64 --gpus-per-node 8 --nics-per-node 4 --inner-ring 8", 64, 8},
        {"--cp 64 --gpus-per-node 8 --nics-per-node 4 --cp-comm allgather", 64, 64}, {"--cp 8 --gpus-per-node 8 --nics-per-node 4", 8, 8},
        {"--hp 4 --cp 16 --gpus-per-node 8 --nics-per-node 4", 64, 2},
        {"--hp 4 --cp 16 --gpus-per-node 8 --nics-per-node 4 --placement context-first", 64, 4},
        {"--hp 4 --cp 2 --gpus-per-node 8 --nics-per-node 8", 8, 2}, {"--hp 4 --cp 4 --gpus-per-node 4 --nics-per-node 4", 16, 4},
        {"--cp 12 --gpus-per-node 8 --nics-per-node 8", 12, 4}, {"--cp 24 --gpus-per-node 8 --nics-per-node 6", 24, 4},
        {"--hp 2 --cp 4 --gpus-per-node 5 --nics-per-node 5", 8, 4},
        {"--cp 15 --gpus-per-node 8 --nics-per-node 4", 15, 15}, {"--cp 13 --gpus-per-node 8 --nics-per-node 4", 13, 13},
        {"--cp 64 --gpus-per-node 8 --nics-per-node 1", 64, 64}};
    for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++) {
        char line[512];
        snprintf(line, sizeof line, GOOD "%s", windows[i].line);
        CHECK(check(&o, line, windows[i].ranks, &e) && o.inner_ring == windows[i].w,
              "%s: windows of %lld %s", line, (long long)o.inner_ring, e.text);
    }
    CHECK(check(&o, "--model tiny --dry-run --hp 2 --cp 4 --dp 3", 1, &e) && o.ranks == 24, "%s", e.text);
    // Warm-up may last for all steps.
    CHECK(check(&o, GOOD "--dp 4 --batch-size 3 --global-batch 24 --warmup 100", 4, &e) && o.grad_accum == 2, "%s", e.text);
    CHECK(check(&o, "--model llama3-8b --dry-run --hp 2 --cp 4 --ranks 64", 1, &e) && o.ranks == 64 && o.dp == 8, "%s", e.text);
}

// ZeRO degrees: divisors of the ranks, each a multiple of the one before; a degree that is not given equals the one before.
static void test_degrees(void) {
    char line[512];
    options o;
    error_text e;
    for (int ranks = 1; ranks <= 12; ranks++)
        for (int p = 1; p <= 13; p++)
            for (int g = 0; g <= 13; g++)
                for (int z = 0; z <= 13; z++) {
                    int n = snprintf(line, sizeof line, GOOD "--zero-params %d", p);
                    if (g > 0) n += snprintf(line + n, sizeof line - (size_t)n, " --zero-grads %d", g);
                    if (z > 0) n += snprintf(line + n, sizeof line - (size_t)n, " --zero-optim %d", z);
                    int want_g = g > 0 ? g : p, want_z = z > 0 ? z : ranks;
                    bool legal = ranks % p == 0 && ranks % want_g == 0 && ranks % want_z == 0 && want_g % p == 0 && want_z % want_g == 0;
                    bool ok = check(&o, line, ranks, &e);
                    CHECK(ok == legal && (ok || test_one_line(e.text)), "%d ranks, %s: %s", ranks, line, e.text);
                    CHECK(!ok || (o.zero_params == p && o.zero_grads == want_g && o.zero_optim == want_z), "%d ranks, %s", ranks, line);
                }
    CHECK(check(&o, GOOD "--steps 0 --warmup 20", 1, &e), "the warm-up of a command that is used again to evaluate: %s", e.text);
    CHECK(check(&o, GOOD "--zero-params full", 6, &e) && o.zero_params == 6 && o.zero_grads == 6 && o.zero_optim == 6, "%s", e.text);
    CHECK(check(&o, GOOD "--zero-params full --offload-optimizer --offload-gradients --offload-parameters", 8, &e) &&
          options_offload(&o) == OFFLOAD_PARAMETERS, "%s", e.text);
    CHECK(check(&o, GOOD "--offload-optimizer --offload-gradients", 1, &e) && options_offload(&o) == OFFLOAD_GRADIENTS, "%s", e.text);
    CHECK(check(&o, GOOD "--zero-params 2 --zero-optim full", 6, &e) && o.zero_params == 2 && o.zero_grads == 2 && o.zero_optim == 6,
          "%s", e.text);
}

// The legal values of --hp that a message lists are exactly those that are accepted.
static void test_listed_values(void) {
    static const char *const models[] = {"llama3-8b", "llama3.2-3b", "llama3-70b", "nano"};
    for (int i = 0; i < 4; i++) {
        const model_config *c = config_preset(models[i]);
        char line[256], word[32];
        list_text listed = options_divisors(c->H);
        for (int hp = 1; hp <= c->H; hp++) {
            options o;
            error_text e;
            snprintf(line, sizeof line, "--model %s --from-scratch --train-data x --hp %d", models[i], hp);
            bool ok = check(&o, line, hp, &e);
            snprintf(word, sizeof word, ", %d,", hp);
            char all[300];
            snprintf(all, sizeof all, ", %s,", listed.text);
            CHECK(ok == (strstr(all, word) != NULL), "%s hp %d: listed %s: %s", models[i], hp, listed.text, e.text);
        }
    }
    CHECK(strcmp(options_divisors(1).text, "1") == 0, "%s", options_divisors(1).text);
    CHECK(strcmp(options_divisors(12).text, "1, 2, 3, 4, 6, 12") == 0, "%s", options_divisors(12).text);
    CHECK(strcmp(options_divisors(7).text, "1, 7") == 0, "%s", options_divisors(7).text);
    list_text many = options_divisors(720720); // 240 divisors
    CHECK(strlen(many.text) > 200 && strcmp(many.text + strlen(many.text) - 5, ", ...") == 0, "%s", many.text);
}

int main(void) {
    test_table();
    test_help_and_print();
    test_values();
    test_refusals();
    test_model_changes();
    test_grids();
    test_degrees();
    test_listed_values();
    return test_finish("test_options", NULL);
}
