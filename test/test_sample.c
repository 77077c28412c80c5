// ranks: 4
// sample.h: a model that has learnt to count draws the numbers that come next, on every grid; draws with a temperature follow the softmax;
// prompts; the text of tokens, by a tokenizer.json and as bytes. (F54)
#include "../sample.h"
#include "model_fixture.h"

// ---- drawing ----

enum { CYCLE = 7, LENGTH = 24, STEPS = 400 };
static sample_job job_of(const int32_t *prompt, int64_t prompt_count, int64_t count) {
    sample_job job;
    memset(&job, 0, sizeof job);
    job.prompt = prompt_count;
    job.count = count;
    job.tokens = HOST_NEW(int32_t, prompt_count + count);
    memcpy(job.tokens, prompt, sizeof(int32_t) * (size_t)prompt_count);
    return job;
}
static void check_counting(grid_shape shape, comm *ranks, const fixture *learnt) {
    static const int32_t prompt[] = {4, 5, 6};
    fixture f;
    fixture_make(&f, &learnt->m.c, shape, ranks, fixture_setup(2, 1), RECOMPUTE_NONE, LENGTH);
    for (int u = 0; u < f.m.c.L + 2; u++)
        device_copy(f.m.zero.params[u], learnt->m.zero.params[u], sizeof(floatX) * (size_t)f.m.units[u].count);
    sample_job job = job_of(prompt, 3, LENGTH - 3); // to the last position
    for (int64_t n = 3; n < LENGTH; n++) sample_draw(&job, n, &f.m, 0, 1);
    for (int i = 0; i < LENGTH; i++)
        CHECK(job.tokens[i] == (4 + i) % CYCLE,
              "dp %d hp %d cp %d: token %d is %d, not %d", shape.dp, shape.hp, shape.cp, i, job.tokens[i], (4 + i) % CYCLE);
    sample_close(&job);
    int32_t first[2][LENGTH];
    for (int k = 0; k < 3; k++) { // at a high temperature: the same seed draws the same tokens, another seed others
        job = job_of(prompt, 3, LENGTH - 3);
        for (int64_t n = 3; n < LENGTH; n++) sample_draw(&job, n, &f.m, 100, k < 2 ? 8 : 9);
        if (k < 2) memcpy(first[k], job.tokens, sizeof first[k]);
        else CHECK(memcmp(first[0], first[1], sizeof first[0]) == 0 && memcmp(first[0], job.tokens, sizeof first[0]) != 0,
                   "seeds and draws");
        sample_close(&job);
    }
    fixture_free(&f);
}
static void test_draw(comm *world, comm *self) {
    model_config c = fixture_config(1, 32, 4, 2, 8, 64, CYCLE + 1, true);
    fixture f;
    fixture_make(&f, &c, fixture_shape(4, 1, 1, 1), world, fixture_setup(2, 1), RECOMPUTE_NONE, LENGTH);
    double loss = 1;
    for (int step = 1; step <= STEPS && loss > 0.01; step++) {
        for (int64_t i = 0; i < f.m.rows; i++) {
            int64_t start = (f.g.place.d * f.m.setup.B + i / LENGTH) % CYCLE;
            f.tokens[i] = (int32_t)((start + i % LENGTH) % CYCLE);
            f.labels[i] = (f.tokens[i] + 1) % CYCLE;
        }
        loss = model_step(&f.m, fixture_adamw(step), 1.0).loss;
    }
    CHECK(loss <= 0.01, "counting is not learnt: loss %.3f", loss);
    check_counting(fixture_shape(1, 1, 1, 1), self, &f);
    check_counting(fixture_shape(1, 2, 2, 1), world, &f);
    check_counting(fixture_shape(2, 1, 2, 2), world, &f);
    check_counting(fixture_shape(4, 1, 1, 1), world, &f);
    fixture_free(&f);
}
static void test_choose(void) {
    enum { V = 5, DRAWS = 20000 };
    static const float logits[V] = {0, 1, 2.5f, -1, 2.5f};
    CHECK(sample_choose(logits, V, 0, 0.9) == 2, "the first of equals");
    for (int k = 0; k < 2; k++) {
        double temperature = k == 0 ? 1 : 2.5, sum = 0;
        int count[V] = {0};
        for (int i = 0; i < V; i++) sum += exp(logits[i] / temperature);
        for (int n = 0; n < DRAWS; n++) count[sample_choose(logits, V, temperature, (n + 0.5) / DRAWS)]++;
        for (int i = 0; i < V; i++)
            CHECK(fabs(count[i] - DRAWS * exp(logits[i] / temperature) / sum) <= 2,
                  "temperature %g: token %d drawn %d times", temperature, i, count[i]);
    }
}

// ---- prompts and text ----

static void check_prompt(const char *text, int64_t V, int64_t count, int32_t last, const char *refused) {
    int32_t tokens[64];
    error_text error;
    error.text[0] = '\0';
    int64_t n = sample_parse_prompt(text, V, tokens, &error);
    CHECK(n == count && (n == 0 || tokens[n - 1] == last) &&
          (refused == NULL ? error.text[0] == '\0' : strstr(error.text, refused) != NULL),
          "%s: %lld tokens, %s", text, (long long)n, error.text);
}
static void check_text(const token_text *texts, const int32_t *tokens, int64_t count, const char *expected) {
    char text[256] = "";
    FILE *f = tmpfile();
    sample_print_text(f, texts, tokens, count);
    rewind(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    CHECK(n == strlen(expected) && strcmp(text, expected) == 0, "%s, not %s", text, expected);
}
static void test_text(void) {
    check_prompt("0,15,255", 256, 3, 255, NULL);
    check_prompt("7", 8, 1, 7, NULL);
    check_prompt("Once 1,2", 256, 8, '2', NULL);
    check_prompt("\xc3\xa4", 256, 2, 0xa4, NULL);
    check_prompt("0,8", 8, 0, 0, "\"8\" is not a token; legal values are numbers from 0 to 7");
    check_prompt("1,,2", 8, 0, 0, "is not a token");
    check_prompt("1,", 8, 0, 0, "is not a token");
    check_prompt("99999999999999999999", 8, 0, 0, "is not a token");
    check_prompt("Once", 128256, 0, 0, "needs a vocabulary of 256 bytes");

    token_text *bytes = token_texts_of_bytes();
    static const int32_t raw[] = {'a', '"', '\\', 10, 9, 0, 127, 0xc3, 0xa4, 0xe2, 0x82, 0xc2, 0x85, 0xe2, 0x82, 0xac, 0xff};
    check_text(bytes, raw, 17, "\"a\\\"\\\\\\n\\t\\x00\\x7f\xc3\xa4\\xe2\\x82\\xc2\\x85\xe2\x82\xac\\xff\"");
    sample_job job;
    memset(&job, 0, sizeof job);
    job.V = 256;
    job.texts = bytes;
    sample_close(&job);

    // Every byte of a byte-level vocabulary, as GPT-2's bytes_to_unicode writes it.
    int extra = 0;
    for (int b = 0; b < 256; b++) {
        bool shown = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        int code = shown ? b : 256 + extra++;
        char text[3] = {(char)code, 0, 0};
        if (code >= 128) text[0] = (char)(0xC0 | code >> 6), text[1] = (char)(0x80 | (code & 0x3F));
        uint8_t back[4] = {(uint8_t)~b};
        CHECK(token_text_decode(text, back) == 1 && back[0] == b, "byte %d came back as %d", b, back[0]);
    }
    CHECK(extra == 68, "%d", extra);

    char folder[] = "/tmp/llama_sample_XXXXXX";
    if (mkdtemp(folder) == NULL) exit(EXIT_FAILED);
    static const char *const files[] = {
        ("{\"added_tokens\":[{\"id\":4,\"content\":\"<|end|>\"}],"
         "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteLevel\"}]},\"model\":{\"vocab\":"
         "{\"\\u0120the\":0,\"cat\":1,\"\\u010a\":2,\"\\u00c3\\u00a4\":3,\"next\":6,\"far\":9}}}"),
        "{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"}]},\"model\":{\"vocab\":{\"a\":0}}}",
        "{\"model\":3}", "[1", ""};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        error_text why;
        why.text[0] = '\0';
        CHECK(file_write(path_join(folder, "tokenizer.json").text, files[i], strlen(files[i]), &why), "%s", why.text);
        token_text *texts = token_texts_read(folder, 6, &why);
        CHECK((texts != NULL) == (i == 0) && (i == 0 || strstr(why.text, "tokenizer.json: ") != NULL), "file %zu: %s", i, why.text);
        if (texts == NULL) continue;
        static const int32_t tokens[] = {0, 1, 2, 3, 4, 5};
        check_text(texts, tokens, 6, "\" thecat\\n\xc3\xa4<|end|>\"");
        job.V = 6;
        job.texts = texts;
        sample_close(&job);
    }
    folder_remove(folder);
}

int main(int argc, char **argv) {
    comm *world = test_start(&argc, &argv), *self = comm_split(world, comm_rank(world), 0, COMM_CONTROL);
    test_choose();
    if (comm_rank(world) == 0) test_text();
    test_draw(world, self);
    comm_free(self);
    int status = test_finish("test_sample", world);
    comm_finalize();
    return status;
}
