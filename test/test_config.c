// ranks: 1
// config.h: presets, config.json (every refusal is one line that says what is wrong), parameter counts, RoPE frequencies of transformers.
#include "../config.h"
#include "test.h"
#include <unistd.h>

static void test_presets(void) {
    static const struct {
        const char *name;
        int64_t parameters; // as the model cards and transformers count them
    } known[] = {{"llama3-8b", 8030261248}, {"llama3-70b", 70553706496}, {"llama3.1-8b", 8030261248}, {"llama3.1-70b", 70553706496},
                 {"llama3.1-405b", 405853388800}, {"llama3.2-1b", 1235814400}, {"llama3.2-3b", 3212749824}, {"llama2-7b", 6738415616},
                 {"llama2-7b-gqa", 6738415616 - 32ll * 2 * 4096 * (4096 - 1024)}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        model_config c;
        error_text error = {"", 0};
        CHECK(config_load(&c, known[i].name, &error), "%s: %s", known[i].name, error.text);
        CHECK(config_parameters(&c) == known[i].parameters,
              "%s: %lld parameters, not %lld", known[i].name, (long long)config_parameters(&c), (long long)known[i].parameters);
    }
    for (const model_config *p = config_presets; p < config_presets + CONFIG_PRESETS; p++) {
        CHECK(p->L > 0 && p->F > 0 && p->V > 1 && p->HS % 2 == 0 && p->H % p->Hkv == 0 && p->H * p->HS == p->D && p->max_position > 0,
              "%s", p->name);
        CHECK(p->rms_eps > 0 && p->rope_theta > 1 && (p->rope.kind == ROPE_PLAIN) == (p->rope.factor == 0), "%s", p->name);
        CHECK(config_preset(p->name) == p, "%s stands there twice", p->name);
    }
    model_config c;
    error_text error = {"", 0};
    CHECK(!config_load(&c, "llama4", &error) && strstr(error.text, "llama3.2-1b") && strstr(error.text, "nano") &&
          test_one_line(error.text), "%s", error.text);
    error.text[0] = '\0';
    CHECK(!config_load(&c, "", &error) && test_one_line(error.text), "%s", error.text);
    error.text[0] = '\0';
    CHECK(!config_load(&c, "a\nb", &error) && test_one_line(error.text), "%s", error.text);
}

// want: inv_freq of transformers 5.23 (LlamaRotaryEmbedding.inv_freq, float). Ours may differ by the rounding of one power, 2 units in the
// last place.
static void check_frequencies(const char *name, const model_config *c, const float *want, int first, int count, double factor) {
    double have[128];
    double got = config_rope_frequencies(c, have);
    CHECK(fabs(got - factor) <= 1e-15 * factor, "%s: factor on cos and sin %.17g, not %.17g", name, got, factor);
    for (int i = 0; i < count; i++) {
        CHECK(fabs(have[first + i] - (double)want[i]) <= 2.4e-7 * (double)want[i],
              "%s: pair %d: %.9g, not %.9g", name, first + i, have[first + i], (double)want[i]);
        CHECK((double)(float)have[first + i] == have[first + i], "%s: pair %d is not a float", name, first + i);
    }
}
static void test_frequencies(void) {
    static const float llama31[] = { // pairs 24 to 39: kept, smoothed, divided
        7.292665076e-03f, 5.940730684e-03f, 4.839421250e-03f, 3.942275885e-03f, 3.211446106e-03f, 2.166570630e-03f, 1.371893683e-03f,
        8.567514597e-04f, 5.248460220e-04f, 3.126936499e-04f, 1.785077911e-04f, 9.556212171e-05f, 7.784655463e-05f, 6.341514381e-05f,
        5.165906987e-05f, 4.208236714e-05f};
    static const float llama32[] = {
        1.000000000e+00f, 6.636012793e-01f, 4.403666258e-01f, 2.922278345e-01f, 1.939227581e-01f, 1.286873817e-01f, 8.539710194e-02f,
        5.666961893e-02f, 3.760603070e-02f, 2.495540865e-02f, 1.656044088e-02f, 1.098952908e-02f, 7.292665076e-03f, 4.839421250e-03f,
        3.211446106e-03f, 1.290548011e-03f, 4.295567051e-04f, 9.708286234e-05f, 1.946163866e-05f, 1.291476747e-05f, 8.570255886e-06f,
        5.687232260e-06f, 3.774054449e-06f, 2.504467147e-06f, 1.661967417e-06f, 1.102883630e-06f, 7.318749340e-07f, 4.856731266e-07f,
        3.222932889e-07f, 2.138742303e-07f, 1.419272024e-07f, 9.418306490e-08f};
    static const float plain[] = {1.000000000e+00f, 3.162277639e-01f, 1.000000015e-01f, 3.162277862e-02f,
                                  9.999999776e-03f, 3.162277862e-03f, 1.000000047e-03f, 3.162277862e-04f};
    static const float linear[] = {3.333333433e-01f, 1.054092571e-01f, 3.333333507e-02f, 1.054092590e-02f,
                                   3.333333181e-03f, 1.054092660e-03f, 3.333333589e-04f, 1.054092645e-04f}; // factor 3
    static const float yarn[] = {1.000000000e+00f, 5.623413324e-01f, 3.162277639e-01f, 1.778279394e-01f, 1.000000015e-01f, 5.623412877e-02f,
                                 2.738758363e-02f, 1.301954687e-02f, 5.982142407e-03f, 2.610870404e-03f, 1.044681063e-03f, 3.493048716e-04f,
                                 6.250000297e-05f, 3.514633136e-05f, 1.976423664e-05f, 1.111424626e-05f}; // factor 16, original 4096
    model_config c = *config_preset("llama3.1-8b");
    check_frequencies("llama3.1", &c, llama31, 24, 16, 1);
    c = *config_preset("llama3.2-1b");
    check_frequencies("llama3.2", &c, llama32, 0, 32, 1);
    c = *config_preset("nano");
    check_frequencies("plain", &c, plain, 0, 8, 1);
    c.rope.kind = ROPE_LINEAR;
    c.rope.factor = 3;
    check_frequencies("linear", &c, linear, 0, 8, 1);
    c.HS = 32;
    c.rope.kind = ROPE_YARN;
    c.rope.beta_fast = 32;
    c.rope.beta_slow = 1;
    c.rope.factor = 16;
    c.rope.original_length = 4096;
    check_frequencies("yarn", &c, yarn, 0, 16, 1.2772588722239782);
    c.rope.attention_factor = 0.75;
    check_frequencies("yarn", &c, yarn, 0, 16, 0.75);
    // Yarn's rule in double where the ramp would begin before the first pair, at -2, or end after the last, at 33: both ends are clamped.
    // Where it would end before the first pair, too, only that one is kept.
    for (int end = 0; end < 3; end++) {
        static const double lengths[] = {64, 1 << 30, 4}, lows[] = {0, 8, 0}, highs[] = {5, 31, 0.001};
        c.rope.original_length = lengths[end];
        c.rope.beta_fast = end == 1 ? 1e6 : 32;
        double have[16], low = lows[end], high = highs[end];
        config_rope_frequencies(&c, have);
        for (int i = 0; i < 16; i++) {
            double f = pow(10000, -2.0 * i / 32), ramp = fmin(fmax((i - low) / (high - low), 0), 1), want = f * (1 - ramp) + f / 16 * ramp;
            CHECK(fabs(have[i] - want) <= 1e-6 * want, "yarn cut at end %d, pair %d: %.9g, not %.9g", end, i, have[i], want);
        }
    }

    // Llama 3's rule in double, for two presets: kept below a wavelength of 8192/4, divided above 8192, linear in 1/wavelength between.
    for (int p = 0; p < 2; p++) {
        c = *config_preset(p == 0 ? "llama3.1-70b" : "llama3.2-3b");
        double have[64], factor = p == 0 ? 8 : 32;
        config_rope_frequencies(&c, have);
        for (int i = 0; i < 64; i++) {
            double f = pow(500000.0, -2.0 * i / 128), turns = 8192 * f / (2 * acos(-1.0)); // rotations within the original context
            double share = turns > 4 ? 1 : turns < 1 ? 0 : (turns - 1) / 3;
            double want = f * (share + (1 - share) / factor);
            CHECK(fabs(have[i] - want) <= 2e-6 * want, "%s pair %d: %.9g, not %.9g", c.name, i, have[i], want);
        }
    }
}

// ---- config.json ----

static char folder[256];
static char config_path[300];

static void write_config(const void *data, size_t bytes) {
    FILE *f = fopen(config_path, "wb");
    if (f == NULL || fwrite(data, 1, bytes, f) != bytes || fclose(f) != 0) {
        printf("cannot write %s\n", config_path);
        exit(EXIT_FAILED);
    }
}
// Writes a good Llama-3.1 config in which `key` has this value (added at the end if the key is new); value NULL leaves the key out.
static void write_changed(const char *key, const char *value) {
    static const char *const lines[][2] = {
        {"architectures", "[\"LlamaForCausalLM\"]"}, {"model_type", "\"llama\""}, {"hidden_size", "4096"}, {"num_hidden_layers", "32"},
        {"num_attention_heads", "32"}, {"num_key_value_heads", "8"}, {"intermediate_size", "14336"}, {"vocab_size", "128256"},
        {"rms_norm_eps", "1e-05"}, {"rope_theta", "500000.0"}, {"tie_word_embeddings", "false"}, {"max_position_embeddings", "131072"},
        {"hidden_act", "\"silu\""}, {"attention_bias", "false"}, {"mlp_bias", "false"}, {"attention_dropout", "0.0"},
        {"bos_token_id", "128000"},
        {"rope_scaling", "{\"factor\": 8.0, \"high_freq_factor\": 4.0, \"low_freq_factor\": 1.0, "
                         "\"original_max_position_embeddings\": 8192, \"rope_type\": \"llama3\"}"}};
    char text[4096];
    size_t n = 0;
    bool found = false;
    n += (size_t)snprintf(text + n, sizeof text - n, "{\"torch_dtype\": \"bfloat16\"");
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        bool this_one = key != NULL && strcmp(key, lines[i][0]) == 0;
        found = found || this_one;
        if (!this_one || value != NULL)
            n += (size_t)snprintf(text + n, sizeof text - n, ",\n\"%s\": %s", lines[i][0], this_one ? value : lines[i][1]);
    }
    if (key != NULL && !found) n += (size_t)snprintf(text + n, sizeof text - n, ",\n\"%s\": %s", key, value);
    n += (size_t)snprintf(text + n, sizeof text - n, "\n}\n");
    write_config(text, n);
}
static bool load(model_config *c, error_text *error) {
    error->text[0] = '\0';
    return config_load(c, folder, error);
}

static void test_good_files(void) {
    model_config c, want = *config_preset("llama3.1-8b");
    error_text error;
    write_changed(NULL, NULL);
    CHECK(load(&c, &error), "%s", error.text);
    CHECK(strncmp(c.name, "llama_config_", 13) == 0, "name \"%s\"", c.name);
    char slash[300], name[128];
    snprintf(slash, sizeof slash, "%s//", folder);
    memcpy(name, c.name, sizeof name);
    CHECK(config_load(&c, slash, &error) && strcmp(c.name, name) == 0, "%s is named \"%s\"", slash, c.name);
    CHECK(c.L == want.L && c.D == want.D && c.H == want.H && c.Hkv == want.Hkv && c.HS == want.HS && c.F == want.F && c.V == want.V &&
              c.rms_eps == want.rms_eps && c.rope_theta == want.rope_theta && c.tied == want.tied && c.max_position == want.max_position &&
              c.initializer_range == want.initializer_range,
          "sizes");
    CHECK(c.rope.kind == ROPE_LLAMA3 && c.rope.factor == 8 && c.rope.low_freq_factor == 1 && c.rope.high_freq_factor == 4 &&
          c.rope.original_length == 8192, "rope");
    static const struct {
        const char *key, *value;
        int Hkv, HS;
        double theta;
        rope_kind kind;
    } cases[] = {
        {"num_key_value_heads", NULL, 32, 128, 500000, ROPE_LLAMA3},
        {"num_key_value_heads", "null", 32, 128, 500000, ROPE_LLAMA3},
        {"head_dim", "64", 8, 64, 500000, ROPE_LLAMA3},
        {"head_dim", "null", 8, 128, 500000, ROPE_LLAMA3},
        {"rope_theta", NULL, 8, 128, 10000, ROPE_LLAMA3},
        {"rope_scaling", NULL, 8, 128, 500000, ROPE_PLAIN},
        {"rope_scaling", "null", 8, 128, 500000, ROPE_PLAIN},
        {"rope_scaling", "{\"type\": \"linear\", \"factor\": 4}", 8, 128, 500000, ROPE_LINEAR},
        {"rope_scaling", "{\"type\": \"default\", \"rope_type\": \"default\"}", 8, 128, 500000, ROPE_PLAIN},
        {"rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": 8192, \"beta_fast\": null}",
         8, 128, 500000, ROPE_YARN},
        {"rope_scaling", "{\"rope_type\": \"default\", \"rope_theta\": 500000}", 8, 128, 500000, ROPE_PLAIN},
        {"architectures", NULL, 8, 128, 500000, ROPE_LLAMA3},
        {"tie_word_embeddings", NULL, 8, 128, 500000, ROPE_LLAMA3},
        {"attention_dropout", "0", 8, 128, 500000, ROPE_LLAMA3},
        {"pretraining_tp", "1", 8, 128, 500000, ROPE_LLAMA3},
        {"sliding_window", "8", 8, 128, 500000, ROPE_LLAMA3}, // a Mistral's alone
        {"quantization_config", "null", 8, 128, 500000, ROPE_LLAMA3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_changed(cases[i].key, cases[i].value);
        CHECK(load(&c, &error), "%s: %s", cases[i].key, error.text);
        CHECK(!c.tied && c.window == 0, "%s: tied, or a window", cases[i].key);
        CHECK(c.Hkv == cases[i].Hkv && c.HS == cases[i].HS && c.rope_theta == cases[i].theta && c.rope.kind == cases[i].kind,
              "%s = %s: %d %d %g %d", cases[i].key, cases[i].value != NULL ? cases[i].value : "absent", c.Hkv, c.HS,
              c.rope_theta, (int)c.rope.kind);
        CHECK(c.rope.kind != ROPE_YARN || (c.rope.beta_fast == 32 && c.rope.beta_slow == 1 && c.rope.attention_factor == 0),
              "yarn without what its folder may leave out: %g %g %g", c.rope.beta_fast, c.rope.beta_slow, c.rope.attention_factor);
    }
    // A Mistral is a Llama with a window: of 4096 tokens where the key is absent, and none where it is null.
    static const struct {
        const char *more, *wrong; // NULL: accepted
        int64_t window;
    } mistrals[] = {{"\"num_key_value_heads\":4", NULL, 4096}, {"\"num_key_value_heads\":4,\"sliding_window\":null", NULL, 0},
                    {"\"num_key_value_heads\":4,\"sliding_window\":8192", NULL, 8192},
                    {"\"sliding_window\":null", "\"num_key_value_heads\" is missing", 0},
                    {"\"num_key_value_heads\":4,\"sliding_window\":0", "\"sliding_window\" is 0; it must be", 0},
                    {"\"num_key_value_heads\":4,\"sliding_window\":null,\"sliding_window\":8", "twice", 0},
                    {"\"architectures\":[\"LlamaForCausalLM\"]", "MistralForCausalLM", 0}};
    for (size_t i = 0; i < sizeof mistrals / sizeof mistrals[0]; i++) {
        char text[1024];
        int n = snprintf(text, sizeof text,
                         "{\"model_type\":\"mistral\",\"hidden_size\":64,\"num_hidden_layers\":1,\"num_attention_heads\":8,"
                         "\"intermediate_size\":64,\"vocab_size\":64,\"rms_norm_eps\":1e-05,\"max_position_embeddings\":32768,%s}",
                         mistrals[i].more);
        write_config(text, (size_t)n);
        bool ok = load(&c, &error);
        CHECK(mistrals[i].wrong == NULL ? ok && c.window == mistrals[i].window && c.Hkv == 4
                                        : !ok && strstr(error.text, mistrals[i].wrong) != NULL,
              "%s: window %lld %s", mistrals[i].more, (long long)c.window, error.text);
    }
    // Newer folders have everything about RoPE in rope_parameters.
    const char *newer = "{\"model_type\":\"llama\",\"hidden_size\":2048,\"num_hidden_layers\":16,\"num_attention_heads\":32,"
                        "\"num_key_value_heads\":8,\"head_dim\":64,\"intermediate_size\":8192,\"vocab_size\":128256,"
                        "\"rms_norm_eps\":1e-05,\"tie_word_embeddings\":true,\"max_position_embeddings\":131072,"
                        "\"rope_parameters\":{\"rope_theta\":500000.0,\"rope_type\":\"llama3\",\"factor\":32.0,"
                        "\"high_freq_factor\":4.0,\"low_freq_factor\":1.0,\"original_max_position_embeddings\":8192}}\n";
    write_config(newer, strlen(newer));
    CHECK(load(&c, &error), "%s", error.text);
    want = *config_preset("llama3.2-1b");
    memcpy(c.name, want.name, sizeof c.name);
    CHECK(config_parameters(&c) == 1235814400 && c.tied && c.rope_theta == 500000 && c.rope.factor == 32 && c.rope.kind == ROPE_LLAMA3,
          "rope_parameters");
    double a[32], b[32];
    config_rope_frequencies(&c, a);
    config_rope_frequencies(&want, b);
    CHECK(memcmp(a, b, sizeof a) == 0, "frequencies of the folder and of the preset differ");
}

static void test_bad_values(void) {
    static const struct {
        const char *key, *value, *wanted; // wanted: a part of the message
    } cases[] = {
        {"model_type", NULL, "\"llama\""}, {"model_type", "\"gemma\"", "is gemma; legal values are \"llama\" and \"mistral\""},
        {"model_type", "\"mistral\"", "not [\"MistralForCausalLM\"]"}, {"model_type", "7", "\"llama\""},
        {"architectures", "[\"MixtralForCausalLM\"]", "LlamaForCausalLM"}, {"architectures", "[]", "LlamaForCausalLM"},
        {"architectures", "{}", "LlamaForCausalLM"}, {"hidden_act", "\"gelu\"", "silu"}, {"attention_bias", "true", "false"},
        {"mlp_bias", "true", "false"}, {"mlp_bias", "\"no\"", "false"},
        {"attention_dropout", "0.1", "0"}, {"partial_rotary_factor", "0.5", "1"}, {"quantization_config", "{}", "quantized"},
        {"hidden_size", NULL, "missing"}, {"hidden_size", "0", "from 1"}, {"hidden_size", "-4096", "from 1"},
        {"hidden_size", "4096.5", "whole"}, {"hidden_size", "1e300", "to 262144"}, {"hidden_size", "1e999", "to 262144"},
        {"hidden_size", "\"4096\"", "not a number"}, {"hidden_size", "4097", "divide"},
        {"num_hidden_layers", NULL, "missing"}, {"num_hidden_layers", "true", "not a number"}, {"num_hidden_layers", "1000000", "to 4096"},
        {"num_attention_heads", NULL, "missing"}, {"num_attention_heads", "0", "from 1"}, {"num_key_value_heads", "5", "divide"},
        {"num_key_value_heads", "64", "to 32"}, {"num_key_value_heads", "0", "from 1"}, {"head_dim", "65", "even"},
        {"head_dim", "0", "from 2"}, {"intermediate_size", NULL, "missing"}, {"intermediate_size", "99999999999", "to 1048576"},
        {"vocab_size", NULL, "missing"}, {"vocab_size", "1", "from 2"}, {"rms_norm_eps", NULL, "missing"}, {"rms_norm_eps", "0", "from"},
        {"rms_norm_eps", "-1e-5", "from"}, {"rms_norm_eps", "2", "to 0.1"}, {"max_position_embeddings", NULL, "missing"},
        {"max_position_embeddings", "0", "from 1"}, {"initializer_range", "-1", "from 0"}, {"tie_word_embeddings", "1", "true or false"},
        {"rope_theta", "0", "from"}, {"rope_theta", "-1", "from"}, {"rope_theta", "[]", "not a number"}, {"rope_scaling", "4", "object"},
        {"rope_scaling", "{}", "\"rope_scaling\" needs a string \"rope_type\"; legal values are default, llama3, linear, yarn"},
        {"rope_scaling", "{\"factor\": 2}", "llama3, linear, yarn"}, {"rope_scaling", "{\"type\": \"dynamic\", \"factor\": 2}", "dynamic"},
        {"rope_scaling", "{\"rope_type\": \"longrope\", \"factor\": 2}", "longrope"},
        {"rope_scaling", "{\"rope_type\": 3}", "llama3, linear, yarn"}, {"rope_scaling", "{\"rope_type\": \"a\\nb\"}", "a?b"},
        {"rope_scaling", "{\"rope_type\": \"linear\", \"type\": \"yarn\", \"factor\": 2}", "differ"},
        {"rope_scaling", "{\"rope_type\": \"linear\"}", "factor"},
        {"rope_scaling", "{\"rope_type\": \"linear\", \"factor\": 0.5}", "factor"},
        {"rope_scaling", "{\"rope_type\": \"linear\", \"factor\": 2, \"factor\": 4}", "twice"},
        {"rope_scaling", "{\"rope_type\": \"linear\", \"factor\": 2, \"low_freq_factor\": 1}", "low_freq_factor"},
        {"rope_scaling", "{\"rope_type\": \"linear\", \"factor\": 2, \"actor\": 1}", "actor"},
        {"rope_scaling", "{\"rope_type\": \"linear\", \"factor\": 2, \"rope_type type\": 1}", "unknown"},
        {"rope_scaling", "{\"rope_type\": \"linear\", \"factor\": 2, \"\": 1}", "unknown"},
        {"rope_scaling", "{\"rope_type\": \"llama3\", \"factor\": 8}", "low_freq_factor"},
        {"rope_scaling", "{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, \"high_freq_factor\": 1, "
         "\"original_max_position_embeddings\": 8192}", "above"},
        {"rope_scaling", "{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, \"high_freq_factor\": 4, "
         "\"original_max_position_embeddings\": 8192}", "above"},
        {"rope_scaling", "{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4}",
         "original_max_position_embeddings"},
        {"rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 8}", "original_max_position_embeddings"},
        {"rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 8, \"original_max_position_embeddings\": 8192, \"truncate\": false}",
         "truncate"},
        {"rope_scaling",
         "{\"rope_type\": \"yarn\", \"factor\": 8, \"original_max_position_embeddings\": 8192, \"beta_fast\": 1, \"beta_slow\": 2}",
         "beta_slow"},
        {"rope_scaling", "{\"rope_type\": \"default\", \"rope_theta\": 10000}", "10000"},
        {"rope_parameters", "{\"rope_type\": \"default\"}", "keep one"},
        {"original_max_position_embeddings", "4096", "8192 inside \"rope_scaling\"; keep one"},
        {"original_max_position_embeddings", "0", "from 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        model_config c;
        error_text error;
        write_changed(cases[i].key, cases[i].value);
        bool ok = load(&c, &error);
        CHECK(!ok, "%s = %s is accepted", cases[i].key, cases[i].value != NULL ? cases[i].value : "absent");
        CHECK(test_one_line(error.text) && strstr(error.text, cases[i].wanted) != NULL && strstr(error.text, "config.json") != NULL,
              "%s = %s: \"%s\" lacks \"%s\"", cases[i].key, cases[i].value != NULL ? cases[i].value : "absent",
              error.text, cases[i].wanted);
    }
}

static void test_bad_files(void) {
    static const struct {
        const char *text, *wanted;
    } cases[] = {{"{", "not valid JSON"}, {"{\"a\": NaN}", "not valid JSON"}, {"{\"hidden_size\": }", "byte"},
                 {"[1, 2]", "not a JSON object"}, {"3", "not a JSON object"}, {"{} trailing", "not valid JSON"}, {"{}", "model_type"},
                 {"", "empty"},
                 {"{\"model_type\": \"llama\", \"model_type\": \"llama\"}", "twice"}};
    model_config c;
    error_text error;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_config(cases[i].text, strlen(cases[i].text));
        CHECK(!load(&c, &error) && test_one_line(error.text) && strstr(error.text, cases[i].wanted) != NULL,
              "%s: \"%s\"", cases[i].text, error.text);
    }
    write_config("{}\0{}", 5);
    CHECK(!load(&c, &error) && strstr(error.text, "NUL") != NULL, "\"%s\"", error.text);
    size_t big = (1 << 20) + 1;
    char *blanks = HOST_NEW(char, big);
    memset(blanks, ' ', big);
    write_config(blanks, big);
    CHECK(!load(&c, &error) && strstr(error.text, "larger") != NULL, "\"%s\"", error.text);
    char pipe[sizeof config_path + 8]; // one that nobody writes to
    snprintf(pipe, sizeof pipe, "%s.pipe", config_path);
    error.text[0] = '\0';
    CHECK(mkfifo(pipe, 0600) == 0 && file_read_text(pipe, big, &error) == NULL && strstr(error.text, "is not a file") != NULL,
          "\"%s\"", error.text);
    unlink(pipe);
    memset(blanks, '[', big); // deeply nested: the parser has a limit
    write_config(blanks, big / 2);
    CHECK(!load(&c, &error) && strstr(error.text, "not valid JSON") != NULL, "\"%s\"", error.text);
    free(blanks);

    // A good file cut short after every third byte, and with a bit of every third byte flipped: never a crash (SANITIZE=1 watches).
    write_changed(NULL, NULL);
    char good[4096], changed[4096];
    FILE *f = fopen(config_path, "rb");
    size_t n = f != NULL ? fread(good, 1, sizeof good, f) : 0;
    if (f != NULL) fclose(f);
    for (size_t k = 1; k + 2 < n; k += 3) {
        write_config(good, k);
        CHECK(!load(&c, &error) && test_one_line(error.text), "the first %zu bytes are accepted", k);
        memcpy(changed, good, n);
        changed[k] = (char)(changed[k] ^ (1 << k % 7));
        write_config(changed, n);
        CHECK(load(&c, &error) || test_one_line(error.text), "byte %zu changed: no message", k);
    }
    unlink(config_path);
    CHECK(!load(&c, &error) && strstr(error.text, "no config.json") != NULL, "\"%s\"", error.text);
}

int main(void) {
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/llama_config_XXXXXX", tmp != NULL && strlen(tmp) < 200 ? tmp : "/tmp");
    if (mkdtemp(folder) == NULL) return EXIT_FAILED;
    snprintf(config_path, sizeof config_path, "%s/config.json", folder);
    test_presets();
    test_frequencies();
    test_good_files();
    test_bad_values();
    test_bad_files();
    rmdir(folder);
    return test_finish("test_config", NULL);
}
