// --sample-every: tokens drawn from the running model, printed with their text where it is known.
//
// There is no KV cache: every token takes a forward pass of the sharded model over the whole padded sequence; the rows after the last token
// are causally invisible to it. Simple, the same on every grid, and meant for a look at the model, not for serving.
#ifndef SAMPLE_H
#define SAMPLE_H

#include "evaluation.h" // defines: evaluation_logits, evaluation_argmax
#include "files.h"      // defines: path_join
#include "options.h"    // defines: options

enum { SAMPLE_PROMPT = 32 }; // tokens of the data that serve as the prompt when none is given

typedef struct {
    uint8_t *bytes; // NULL: not known
    int64_t length;
} token_text;

typedef struct {
    int64_t prompt, count; // tokens given; tokens to draw
    int32_t *tokens;       // (prompt + count)
    token_text *texts;     // (V) on rank 0; NULL: tokens are printed as numbers alone, for the reason in why
    error_text why;
    int64_t V;
} sample_job;

// ---- the prompt ----

// "1,15,42" -> token numbers below V; anything else is text, legal where tokens are bytes (V = 256). tokens: room for strlen(text).
// Returns how many tokens, or 0 with a message.
static inline int64_t sample_parse_prompt(const char *text, int64_t V, int32_t *tokens, error_text *error) {
    int64_t count = 0;
    if (strspn(text, "0123456789,") != strlen(text)) {
        if (V != 256) {
            error_set(error, "--sample-prompt: text needs a vocabulary of 256 bytes, and the model's has %lld tokens; "
                             "give token numbers such as 1,15,42 (dev/tokenize_text.py --tokenizer DIR --ids TEXT prints them)",
                      (long long)V);
            return 0;
        }
        for (; text[count] != '\0'; count++) tokens[count] = (uint8_t)text[count];
        return count;
    }
    for (const char *at = text;; at++) {
        size_t digits = strspn(at, "0123456789");
        long long token = digits > 0 && digits < 11 ? strtoll(at, NULL, 10) : -1;
        if (token < 0 || token >= V) {
            error_set(error, "--sample-prompt: \"%.*s\" is not a token; legal values are numbers from 0 to %lld, separated by commas",
                      (int)strcspn(at, ","), at, (long long)V - 1);
            return 0;
        }
        tokens[count++] = (int32_t)token;
        at += digits;
        if (*at == '\0') return count;
    }
}

// ---- text of tokens: the tokenizer.json of a byte-level BPE, or bytes ----

// Decodes one entry of a byte-level vocabulary, where every byte is written as one printable character: 33-126, 161-172 and 174-255 as
// themselves, the other 68 in order as U+0100, U+0101, ... (GPT-2's bytes_to_unicode). to: room for strlen(text). Returns how many bytes.
static inline int64_t token_text_decode(const char *text, uint8_t *to) {
    int64_t n = 0;
    for (const uint8_t *at = (const uint8_t *)text; *at != 0;) {
        int code = *at, length = 1;
        if (code >= 0xC2 && code < 0xE0 && (at[1] & 0xC0) == 0x80) {
            code = (code & 0x1F) << 6 | (at[1] & 0x3F);
            length = 2;
        }
        int extra = code - 256; // index among the 68: 0-32, 127-160, 173
        if (extra >= 0 && extra < 68) to[n++] = (uint8_t)(extra < 33 ? extra : extra < 67 ? 127 + extra - 33 : 173);
        else if (length == 2 && code < 256) to[n++] = (uint8_t)code;
        else for (int i = 0; i < length; i++) to[n++] = at[i]; // ASCII, and characters that stand for no byte
        at += length;
    }
    return n;
}
static inline void token_text_set(token_text *texts, int64_t V, const cJSON *id, const char *text, bool raw) {
    if (!cJSON_IsNumber(id) || text == NULL || id->valuedouble < 0 || id->valuedouble >= (double)V) return;
    token_text *t = &texts[(int64_t)id->valuedouble];
    size_t length = strlen(text);
    free(t->bytes);
    t->bytes = HOST_NEW(uint8_t, length + 1);
    t->length = raw ? (int64_t)length : token_text_decode(text, t->bytes);
    if (raw) memcpy(t->bytes, text, length);
}
static inline bool token_text_is_byte_level(const cJSON *decoder) { // ByteLevel, or a Sequence with one
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(decoder, "type"), *list = cJSON_GetObjectItemCaseSensitive(decoder, "decoders");
    if (cJSON_IsString(type) && strcmp(type->valuestring, "ByteLevel") == 0) return true;
    for (const cJSON *at = list != NULL ? list->child : NULL; at != NULL; at = at->next)
        if (token_text_is_byte_level(at)) return true;
    return false;
}
// The text of every token of FOLDER/tokenizer.json, (V); NULL with the reason if the file cannot be read or is not a byte-level BPE.
static inline token_text *token_texts_read(const char *folder, int64_t V, error_text *why) {
    error_text reason = {"", 0};
    cJSON *json = file_read_json(path_join(folder, "tokenizer.json").text, (size_t)1 << 27, &reason);
    if (json == NULL) error_set_why(why, &reason, "%s/tokenizer.json", printable(folder).text);
    if (json == NULL) return NULL;
    const cJSON *vocab = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(json, "model"), "vocab");
    const cJSON *added = cJSON_GetObjectItemCaseSensitive(json, "added_tokens");
    token_text *texts = NULL;
    if (!cJSON_IsObject(vocab) || !token_text_is_byte_level(cJSON_GetObjectItemCaseSensitive(json, "decoder"))) {
        error_set(why, "%s/tokenizer.json: is not a byte-level BPE", printable(folder).text);
    } else {
        texts = HOST_NEW(token_text, V);
        for (const cJSON *at = vocab->child; at != NULL; at = at->next) token_text_set(texts, V, at, at->string, false);
        for (const cJSON *at = added != NULL ? added->child : NULL; at != NULL; at = at->next)
            token_text_set(texts, V, cJSON_GetObjectItemCaseSensitive(at, "id"),
                           cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(at, "content")), true);
    }
    cJSON_Delete(json);
    return texts;
}
static inline token_text *token_texts_of_bytes(void) {
    token_text *texts = HOST_NEW(token_text, 256);
    for (int b = 0; b < 256; b++) {
        texts[b].bytes = HOST_NEW(uint8_t, 1);
        texts[b].bytes[0] = (uint8_t)b;
        texts[b].length = 1;
    }
    return texts;
}

// Prints the tokens' text between quotation marks; everything that is not text is escaped as in C.
static inline void sample_print_text(FILE *f, const token_text *texts, const int32_t *tokens, int64_t count) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < count; i++) bytes += texts[tokens[i]].length;
    uint8_t *text = HOST_NEW(uint8_t, bytes);
    bytes = 0;
    for (int64_t i = 0; i < count; i++) {
        if (texts[tokens[i]].length > 0) memcpy(text + bytes, texts[tokens[i]].bytes, (size_t)texts[tokens[i]].length);
        bytes += texts[tokens[i]].length;
    }
    fputc('"', f);
    for (int64_t i = 0; i < bytes;) {
        int length = utf8_length((const char *)text + i, bytes - i);
        uint8_t c = text[i];
        if (length < 1 || (c == 0xC2 && text[i + 1] < 0xA0)) length = 1; // U+0080 to U+009F move a terminal's cursor
        if (length > 1) fwrite(text + i, 1, (size_t)length, f);
        else if (c == '"' || c == '\\') fprintf(f, "\\%c", c);
        else if (c == '\n') fputs("\\n", f);
        else if (c == '\t') fputs("\\t", f);
        else if (c < 32 || c > 126) fprintf(f, "\\x%02x", c);
        else fputc(c, f);
        i += length;
    }
    fputc('"', f);
    free(text);
}

// ---- drawing ----

// temperature 0: the arg max (the first of equals). Else a draw from softmax(logits / temperature) with `random`, in [0, 1).
static inline int32_t sample_choose(const float *logits, int64_t V, double temperature, double random) {
    int32_t best = evaluation_argmax(logits, V);
    if (temperature == 0) return best;
    double sum = 0, top = (double)logits[best];
    for (int64_t i = 0; i < V; i++) sum += exp(((double)logits[i] - top) / temperature);
    double left = random * sum;
    for (int64_t i = 0; i < V; i++) {
        left -= exp(((double)logits[i] - top) / temperature);
        if (left < 0) return (int32_t)i;
    }
    return best; // rounding left a remainder
}
// Draws token n after the n before it into job->tokens, the same on every rank. seed: of the draws. Overwrites m->batch_tokens.
// Collective; n < S.
static inline void sample_draw(sample_job *job, int64_t n, model *m, double temperature, uint64_t seed) {
    const sequence_shard *shard = &m->setup.shard;
    int64_t V = m->c.V, next = 0;
    float *logits = HOST_NEW(float, V);
    for (int64_t i = 0; i < m->rows; i++) { // every sequence of the batch is the same
        int64_t position = sequence_shard_position(shard, i % shard->T);
        m->batch_tokens[i] = position < n ? job->tokens[position] : 0;
    }
    model_evaluate(m, false, false);
    for (int64_t t = 0; t < shard->T && m->g->place.d == 0; t++) { // one rank of dp index 0 has the row
        if (sequence_shard_position(shard, t) != n - 1) continue;
        evaluation_logits(m, t, logits);
        next = sample_choose(logits, V, temperature, (double)(hash_mix(seed + hash_mix((uint64_t)n)) >> 11) * 0x1p-53);
    }
    comm_sum_int64(m->g->all, &next, 1);
    job->tokens[n] = (int32_t)next;
    free(logits);
}

// ---- sampling in a run ----

// Takes the prompt from --sample-prompt, or else from the first tokens of `data` (NULL: none), and on rank 0 the text of tokens from the
// model's folder (NULL: none), or else bytes where V is 256. False with a message. The caller calls sample_close.
static inline bool sample_open(sample_job *job, const options *o, int64_t V, const char *folder, dataloader *data, bool first_rank,
                               error_text *error) {
    memset(job, 0, sizeof *job);
    job->V = V;
    job->count = o->sample_tokens;
    if (data == NULL && o->sample_prompt == NULL)
        return error_set(error, "--sample-prompt is missing; without --val-data and --train-data there is no text to take the prompt from");
    int64_t room = o->sample_prompt != NULL ? (int64_t)strlen(o->sample_prompt) : min_i64(SAMPLE_PROMPT, o->seq_len - job->count);
    job->tokens = HOST_NEW(int32_t, max_i64(room, 0) + job->count);
    if (o->sample_prompt == NULL) job->prompt = room;
    else if ((job->prompt = sample_parse_prompt(o->sample_prompt, V, job->tokens, error)) == 0) return false;
    if (job->prompt < 1 || job->prompt + job->count > o->seq_len)
        return error_set(error, "--sample-tokens %lld after a prompt of %lld token%s does not fit in --seq-len %lld; "
                                "the sum must not exceed it",
                         (long long)job->count, (long long)max_i64(job->prompt, 1), plural(max_i64(job->prompt, 1)), (long long)o->seq_len);
    if (o->sample_prompt == NULL && !dataloader_read_tokens(data, 0, job->prompt, job->tokens, error)) return false;
    if (!first_rank) return true;
    if (folder != NULL) job->texts = token_texts_read(folder, V, &job->why);
    else if (V != 256) error_set(&job->why, "a preset has no tokenizer.json");
    if (job->texts == NULL && V == 256) job->texts = token_texts_of_bytes();
    return true;
}
// Prints at the start of a run what will be drawn.
static inline void sample_print_start(const sample_job *job) {
    printf("sample      %lld token%s after", (long long)job->count, plural(job->count));
    for (int64_t i = 0; i < job->prompt; i++) printf(" %d", (int)job->tokens[i]);
    printf("\n");
    if (job->texts == NULL) printf("sample      printed as token numbers only: %s\n", job->why.text);
}
static inline void sample_close(sample_job *job) {
    for (int64_t i = 0; i < job->V && job->texts != NULL; i++) free(job->texts[i].bytes);
    free(job->texts);
    free(job->tokens);
    memset(job, 0, sizeof *job);
}
// Prints the drawn tokens, and prompt and tokens as text where it is known; writes "sample_tokens" to the log (may be NULL). Rank 0 only.
static inline void sample_print(const sample_job *job, int64_t step, int64_t steps, FILE *log) {
    const int32_t *drawn = job->tokens + job->prompt;
    printf("sample %4lld/%lld | tokens", (long long)step, (long long)steps);
    for (int64_t i = 0; i < job->count; i++) printf(" %d", (int)drawn[i]);
    printf("\n");
    if (job->texts != NULL) {
        printf("sample %4lld/%lld | text ", (long long)step, (long long)steps);
        sample_print_text(stdout, job->texts, job->tokens, job->prompt);
        printf(" -> ");
        sample_print_text(stdout, job->texts, drawn, job->count);
        printf("\n");
    }
    if (log == NULL) return;
    cJSON *json = cJSON_CreateObject();
    json_add(json, "step", (double)step);
    cJSON_AddItemToObject(json, "sample_tokens", cJSON_CreateIntArray(drawn, (int)job->count));
    log_line(log, json);
}

#endif
