// ranks: 1
// config.json of every preset, written and read again, is the same model. test_folder compares with transformers. (F19, F56)
#include "../hf_folder.h"
#include "test.h"

// Writes config.json with the folder's own as the source.
static bool write_again(const model_config *c, const char *folder, error_text *error) {
    hf_source source;
    if (!hf_source_read(&source, folder, true, false, error)) return false;
    bool ok = hf_write_config(c, folder, &source, DTYPE_BF16, error);
    hf_source_free(&source);
    return ok;
}
static void check_round_trip(const model_config *c, const char *folder) {
    error_text error;
    error.text[0] = '\0';
    model_config back;
    bool ok = hf_write_config(c, folder, NULL, DTYPE_BF16, &error) && config_load(&back, folder, &error);
    CHECK(ok, "%s: %s", c->name, error.text);
    if (!ok) return;
    CHECK(back.L == c->L && back.D == c->D && back.H == c->H && back.Hkv == c->Hkv && back.HS == c->HS && back.F == c->F && back.V == c->V,
          "%s: sizes", c->name);
    CHECK(back.rms_eps == c->rms_eps && back.rope_theta == c->rope_theta && back.tied == c->tied && back.max_position == c->max_position,
          "%s: numbers", c->name);
    CHECK(memcmp(&back.rope.factor, &c->rope.factor, sizeof(rope_scaling) - offsetof(rope_scaling, factor)) == 0 &&
          back.rope.kind == c->rope.kind, "%s: rope", c->name);
    char *text = file_read_text(path_join(folder, "config.json").text, CONFIG_BYTES, &error);
    CHECK(text != NULL && strstr(text, "\"torch_dtype\":\t\"bfloat16\"") != NULL && strstr(text, "e-05") != NULL &&
          strstr(text, "0.0,") != NULL, "%s: %s", c->name, text != NULL ? text : "no text");
    CHECK(c->rope.kind == ROPE_PLAIN || strstr(text, "\"high_freq_factor\":\t4.0") != NULL || strstr(text, "\"factor\":\t4.0") != NULL,
          "%s: %s", c->name, text);

    CHECK(strstr(text, "\"bos_token_id\":\tnull") != NULL && strstr(text, "\"eos_token_id\":\tnull") != NULL &&
          (strstr(text, "\"rope_scaling\":\tnull") != NULL) == (c->rope.kind == ROPE_PLAIN), "%s: %s", c->name, text);

    // Written again with that folder as the source: nothing changes.
    char before[4096];
    snprintf(before, sizeof before, "%s", text);
    free(text);
    CHECK(write_again(c, folder, &error), "%s", error.text);
    text = file_read_text(path_join(folder, "config.json").text, CONFIG_BYTES, &error);
    CHECK(text != NULL && strcmp(text, before) == 0, "%s: copied, it is %s", c->name, text);
    free(text);

    // Written with that folder as the source, but with one number of RoPE changed or no scaling at all: read again, it has the change.
    model_config wanted = *c;
    rope_scaling *r = &wanted.rope;
    double *const numbers[] = {&wanted.rope_theta, &r->factor, &r->low_freq_factor, &r->high_freq_factor, &r->beta_fast,
                               &r->beta_slow, &r->attention_factor};
    for (size_t i = 0; i <= 8; i++) {
        wanted = *c;
        if (i < 7) *numbers[i] *= 1.25;
        if (i == 7) r->original_length *= 2;
        if (i == 8) memset(r, 0, sizeof *r);
        ok = hf_write_config(c, folder, NULL, DTYPE_BF16, &error) && write_again(&wanted, folder, &error) &&
             config_load(&back, folder, &error);
        CHECK(ok && back.rope_theta == wanted.rope_theta && back.rope.kind == r->kind &&
              memcmp(&back.rope.factor, &r->factor, sizeof *r - offsetof(rope_scaling, factor)) == 0,
              "%s: change %zu is not read again: %s", c->name, i, error.text);
        text = file_read_text(path_join(folder, "config.json").text, CONFIG_BYTES, &error);
        CHECK(text != NULL && (strstr(text, "\"rope_scaling\":\tnull") != NULL) == (r->kind == ROPE_PLAIN),
              "%s: change %zu: %s", c->name, i, text != NULL ? text : "no text");
        free(text);
    }
}

// A source's number type is replaced, under the name that it has there.
static void check_dtype(const model_config *c, const char *folder, const char *name) {
    error_text error = {"", 0};
    cJSON *json = hf_config(c);
    cJSON_AddStringToObject(json, name, "float32");
    char *bytes = cJSON_Print(json), found[64];
    hf_file file = {NULL, bytes, strlen(bytes)};
    hf_source source = {.folder = folder, .files = &file, .file_count = 1};
    bool ok = hf_write_config(c, folder, &source, DTYPE_F16, &error);
    char *text = ok ? file_read_text(path_join(folder, "config.json").text, CONFIG_BYTES, &error) : NULL, *first, *second = NULL;
    snprintf(found, sizeof found, "\"%s\":\t\"float16\"", name);
    first = text != NULL ? strstr(text, "dtype\"") : NULL;
    if (first != NULL) second = strstr(first + 1, "dtype\"");
    CHECK(first != NULL && second == NULL && strstr(text, found) != NULL, "%s: %s", name, text != NULL ? text : error.text);
    free(text);
    free(bytes);
    cJSON_Delete(json);
}

// The length in a tokenizer_config.json changes if the model's has, and is more, and nothing else does.
static void check_tokenizer_length(const char *folder, int64_t was, const char *before, const char *expected) {
    error_text error;
    error.text[0] = '\0';
    path_text to = path_join(folder, "to");
    hf_file file = {NULL, text_copy(before), strlen(before)};
    bool ok = hf_write_longer(&file, to.text, "\"model_max_length\"", was, 64, &error);
    free(file.bytes);
    char *text = ok ? file_read_text(to.text, CONFIG_BYTES, &error) : NULL;
    CHECK(text != NULL && strcmp(text, expected) == 0, "%s became %s", before, text != NULL ? text : error.text);
    free(text);
}

int main(int argc, char **argv) {
    (void)argc;
    (void)argv;
    char folder[] = "/tmp/test_export_config.XXXXXX";
    if (mkdtemp(folder) == NULL) return EXIT_FAILED;
    for (int i = 0; i < CONFIG_PRESETS; i++) check_round_trip(&config_presets[i], folder);
    model_config c = config_presets[0];
    c.rope.kind = ROPE_LINEAR;
    c.rope.factor = 4;
    check_round_trip(&c, folder);
    c.rope.kind = ROPE_YARN;
    c.rope.original_length = 8192;
    c.rope.beta_fast = 32;
    c.rope.beta_slow = 1;
    c.rope.attention_factor = 1.25;
    check_round_trip(&c, folder);
    c.rope.attention_factor = 0.1 + 0.2; // of 17 digits
    check_round_trip(&c, folder);
    check_dtype(&c, folder, "dtype");
    check_dtype(&c, folder, "torch_dtype");
    // A source's number beside RoPE, which transformers 5 prefers to the one inside, goes when RoPE changes.
    error_text error = {"", 0};
    for (int changed = 0; changed < 2; changed++) {
        cJSON *json = hf_config(&c);
        cJSON_AddNumberToObject(json, "original_max_position_embeddings", 8192);
        model_config other = c;
        if (changed) other.rope.original_length = 4096;
        hf_change_config(json, &other, &error);
        CHECK(error.text[0] == '\0' && (cJSON_GetObjectItemCaseSensitive(json, "original_max_position_embeddings") == NULL) == changed,
              "%d: %s", changed, error.text);
        cJSON_Delete(json);
    }
    // Another name of the length, as those have that were made from LLaMA-1, grows with it; none is made shorter.
    for (int longer = 0; longer < 2; longer++) {
        cJSON *json = hf_config(&c);
        cJSON_AddNumberToObject(json, "max_sequence_length", (double)c.max_position / 2);
        cJSON_AddNumberToObject(json, "seq_length", (double)c.max_position * 8);
        cJSON_AddNumberToObject(json, "model_max_length", (double)c.max_position / 2);
        model_config other = c;
        other.max_position *= 1 + 3 * longer;
        hf_change_config(json, &other, &error);
        double of[] = {(double)c.max_position * (longer ? 4 : 1), (double)c.max_position * (longer ? 4 : 0.5), (double)c.max_position * 8,
                       (double)c.max_position * (longer ? 4 : 0.5)};
        const char *const names[] = {"max_position_embeddings", "max_sequence_length", "seq_length", "model_max_length"};
        for (int i = 0; i < 4; i++) {
            const cJSON *at = cJSON_GetObjectItemCaseSensitive(json, names[i]);
            CHECK(cJSON_IsNumber(at) && at->valuedouble == of[i], "longer %d: %s is %g, not %g", longer, names[i], at->valuedouble, of[i]);
        }
        cJSON_Delete(json);
    }
    check_tokenizer_length(folder, 48, "{\"model_max_length\": 48, \"b\": 48}", "{\"model_max_length\": 64, \"b\": 48}");
    check_tokenizer_length(folder, 48, "{\"model_max_length\": 1000000000000000019884624838656}",
                           "{\"model_max_length\": 1000000000000000019884624838656}");
    check_tokenizer_length(folder, 48, "{\"model_max_length\"\t:\r\n40}", "{\"model_max_length\"\t:\r\n64}");
    check_tokenizer_length(folder, 48, "{\"model_max_length\": null}", "{\"model_max_length\": null}");
    check_tokenizer_length(folder, 64, "{\"model_max_length\": 40}", "{\"model_max_length\": 40}");
    check_tokenizer_length(folder, 48, "{\"b\": 48}", "{\"b\": 48}");
    static const char *const printed[][2] = {
        {"{\"attention_dropout\": 0.07, \"rope_theta\": 10000}", "{\"attention_dropout\":0.07,\"rope_theta\":10000.0}"},
        {"{\"a\": {\"factor\": 1e400, \"b\": -1e400, \"c\": 1e300}}", "{\"a\":{\"factor\":1e999,\"b\":-1e999,\"c\":1e+300}}"}};
    for (int i = 0; i < 2; i++) {
        cJSON *json = cJSON_Parse(printed[i][0]);
        hf_print_floats(json);
        char *text = cJSON_PrintUnformatted(json);
        CHECK(strcmp(text, printed[i][1]) == 0, "%s", text);
        free(text);
        cJSON_Delete(json);
    }
    CHECK(hf_short_number(1e-5f) == 1e-5 && hf_short_number(1e-6f) == 1e-6 && hf_short_number(0.1f) == 0.1 &&
          hf_short_number(0.1234567f) == 0.1234567 &&
          (float)hf_short_number(1.0f / 3) == 1.0f / 3, "short numbers");
    folder_remove(folder);
    return test_finish("test_export_config", NULL);
}
