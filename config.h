// The model's sizes: presets by name, or the config.json of a Hugging Face folder (Llama, Mistral); and the RoPE frequencies from them.
#ifndef CONFIG_H
#define CONFIG_H

#include "files.h"       // defines: path_join, path_last, path_is_folder
#include <cjson/cJSON.h> // defines: cJSON_*
#include <stddef.h>

typedef enum { ROPE_PLAIN, ROPE_LLAMA3, ROPE_LINEAR, ROPE_YARN, ROPE_KINDS } rope_kind;
static inline const char *config_rope_name(rope_kind kind) { // in config.json
    static const char *const names[ROPE_KINDS] = {"default", "llama3", "linear", "yarn"};
    return names[kind];
}

// How RoPE frequencies are stretched for long contexts. Fields that a kind does not use are 0.
typedef struct {
    rope_kind kind;
    double factor;                            // llama3, linear, yarn: context is this many times longer, >= 1
    double low_freq_factor, high_freq_factor; // llama3
    double original_length;                   // llama3, yarn: tokens of the context before stretching, a whole number
    double beta_fast, beta_slow;              // yarn: rotations of a pair over original_length
    double attention_factor;                  // yarn: multiplies cos and sin; 0 = 0.1 ln(factor) + 1
} rope_scaling;

// Its numbers: their names in config.json and in --rope-scaling, where they are, which kinds have them (bits), and what is legal.
typedef struct {
    const char *key, *option;
    size_t at;
    int kinds;
    bool whole;
    double low, high, absent; // absent: its value where the key is; NAN: the key is required
} rope_number;
enum { ROPE_NUMBERS = 7, IN_LLAMA3 = 1 << ROPE_LLAMA3, IN_LINEAR = 1 << ROPE_LINEAR, IN_YARN = 1 << ROPE_YARN };
#define AT(field) offsetof(rope_scaling, field)
static const rope_number rope_numbers[ROPE_NUMBERS] = { // in the order in which they are written
    {"factor", "factor", AT(factor), IN_LLAMA3 | IN_LINEAR | IN_YARN, false, 1, 1e6, NAN},
    {"low_freq_factor", "low", AT(low_freq_factor), IN_LLAMA3, false, 1e-6, 1e6, NAN},
    {"high_freq_factor", "high", AT(high_freq_factor), IN_LLAMA3, false, 1e-6, 1e6, NAN},
    {"original_max_position_embeddings", "original", AT(original_length), IN_LLAMA3 | IN_YARN, true, 1, 0x1p40, NAN},
    {"beta_fast", "beta_fast", AT(beta_fast), IN_YARN, false, 0, 1e6, 32}, // 0 counts as absent, too
    {"beta_slow", "beta_slow", AT(beta_slow), IN_YARN, false, 0, 1e6, 1},
    {"attention_factor", "attention_factor", AT(attention_factor), IN_YARN, false, 1e-6, 1e6, 0}};
#undef AT
static inline double *rope_value(const rope_scaling *r, int i) { return (double *)(void *)((char *)r + rope_numbers[i].at); }

typedef struct {
    char name[128];      // preset, or the last part of the folder's path
    int L, D, H, Hkv, HS; // layers, hidden size, query heads, key/value heads, head size (even); H % Hkv == 0
    int F, V;            // feed-forward size, vocabulary
    float rms_eps;
    double rope_theta;
    rope_scaling rope;
    bool tied;            // the head's matrix is the embedding
    int64_t max_position; // tokens the model was made for; longer sequences are legal (that is what training is for)
    int64_t window;       // tokens a query of a Mistral sees, itself included; 0: no limit. Longer sequences are refused (options_model)
    float initializer_range; // of random matrices (--from-scratch): standard deviation
} model_config;

// Adds a text of any bytes, such as a file's name. JSON is UTF-8: a byte that belongs to no character becomes '?'.
static inline void json_add_text(cJSON *json, const char *key, const char *text) {
    char *copy = text_copy(text);
    for (char *at = copy; *at != '\0'; at++) {
        int length = utf8_length(at, (int64_t)strlen(at));
        if (length == 0) *at = '?';
        else at += length - 1;
    }
    cJSON_AddStringToObject(json, key, copy);
    free(copy);
}

static inline bool config_same_rope(const model_config *a, const model_config *b) {
    bool same = a->rope_theta == b->rope_theta && a->rope.kind == b->rope.kind;
    for (int i = 0; i < ROPE_NUMBERS; i++) same = same && *rope_value(&a->rope, i) == *rope_value(&b->rope, i);
    return same;
}

// ---- presets ----

// None has a window. llama2-7b-gqa is the 7B-GQA of LoongTrain's section 6.1 (its MFU formula implies F 14336 and V 51200). The tokens of
// tiny, for the demo, and of nano, for tests, are bytes.
#define PLAIN {ROPE_PLAIN, 0, 0, 0, 0, 0, 0, 0}
#define LLAMA3(factor) {ROPE_LLAMA3, factor, 1, 4, 8192, 0, 0, 0}
static const model_config config_presets[] = {
    // name            L      D    H Hkv   HS      F       V  eps    theta     scaling     tied    length window, initializer_range
    {"llama3-8b",      32,  4096,  32,  8, 128, 14336, 128256, 1e-5f, 500000.0, PLAIN,      false,   8192, 0, 0.02f},
    {"llama3-70b",     80,  8192,  64,  8, 128, 28672, 128256, 1e-5f, 500000.0, PLAIN,      false,   8192, 0, 0.02f},
    {"llama3.1-8b",    32,  4096,  32,  8, 128, 14336, 128256, 1e-5f, 500000.0, LLAMA3(8),  false, 131072, 0, 0.02f},
    {"llama3.1-70b",   80,  8192,  64,  8, 128, 28672, 128256, 1e-5f, 500000.0, LLAMA3(8),  false, 131072, 0, 0.02f},
    {"llama3.1-405b", 126, 16384, 128,  8, 128, 53248, 128256, 1e-5f, 500000.0, LLAMA3(8),  false, 131072, 0, 0.02f},
    {"llama3.2-1b",    16,  2048,  32,  8,  64,  8192, 128256, 1e-5f, 500000.0, LLAMA3(32), true,  131072, 0, 0.02f},
    {"llama3.2-3b",    28,  3072,  24,  8, 128,  8192, 128256, 1e-5f, 500000.0, LLAMA3(32), true,  131072, 0, 0.02f},
    {"llama2-7b",      32,  4096,  32, 32, 128, 11008,  32000, 1e-5f,  10000.0, PLAIN,      false,   4096, 0, 0.02f},
    {"llama2-7b-gqa",  32,  4096,  32,  8, 128, 11008,  32000, 1e-5f,  10000.0, PLAIN,      false,   4096, 0, 0.02f},
    {"tiny",            4,   256,   8,  4,  32,   688,    256, 1e-5f,  10000.0, PLAIN,      false,   4096, 0, 0.02f},
    {"nano",            2,    64,   4,  2,  16,   176,    256, 1e-5f,  10000.0, PLAIN,      false,   4096, 0, 0.02f},
};
#undef PLAIN
#undef LLAMA3
enum { CONFIG_PRESETS = sizeof config_presets / sizeof config_presets[0] };
// The preset of that name, or NULL.
static inline const model_config *config_preset(const char *name) {
    for (int i = 0; i < CONFIG_PRESETS; i++)
        if (strcmp(name, config_presets[i].name) == 0) return &config_presets[i];
    return NULL;
}
// "llama3-8b, llama3-70b, ..."
static inline list_text config_preset_names(void) {
    list_text list;
    size_t used = 0;
    for (int i = 0; i < CONFIG_PRESETS && used < sizeof list.text; i++)
        used += (size_t)snprintf(list.text + used, sizeof list.text - used, i > 0 ? ", %s" : "%s", config_presets[i].name);
    return list;
}

// ---- config.json ----

// The member `key` of an object: NULL if absent or null. A key that appears twice is an error: readers differ in which one they take.
static inline const cJSON *config_member(const cJSON *object, const char *key, error_text *error) {
    const cJSON *found = NULL;
    for (const cJSON *at = object->child; at != NULL; at = at->next)
        if (at->string != NULL && strcmp(at->string, key) == 0) {
            if (found != NULL) error_set(error, "\"%s\" appears twice; keep one of them", key);
            found = at;
        }
    return found == NULL || cJSON_IsNull(found) ? NULL : found;
}
// Reads a number in [low, high] into *value, which keeps its default if the key is absent. A NAN default means that the key is required.
static inline bool config_number(double *value, const cJSON *object, const char *key, bool whole, double low, double high,
                                 error_text *error) {
    const cJSON *at = config_member(object, key, error);
    const char *kind = whole ? "whole number" : "number";
    if (at == NULL && isnan(*value))
        return error_set(error, "\"%s\" is missing; it must be a %s from %.15g to %.15g", key, kind, low, high);
    if (at == NULL) return error->text[0] == '\0';
    if (!cJSON_IsNumber(at)) return error_set(error, "\"%s\" is not a number; it must be a %s from %.15g to %.15g", key, kind, low, high);
    double x = at->valuedouble;
    if (!(x >= low && x <= high) || (whole && x != floor(x)))
        return error_set(error, "\"%s\" is %.15g; it must be a %s from %.15g to %.15g", key, x, kind, low, high);
    *value = x;
    return error->text[0] == '\0';
}
static inline bool config_int(int *value, const cJSON *object, const char *key, int low, int high, error_text *error) {
    double x = NAN;
    if (!config_number(&x, object, key, true, low, high, error)) return false;
    *value = (int)x;
    return true;
}
// The key must be absent, null, or the one value that we support.
static inline bool config_must_be(const cJSON *object, const char *key, const char *text, error_text *error) {
    const cJSON *at = config_member(object, key, error);
    if (at == NULL) return error->text[0] == '\0';
    if (!cJSON_IsString(at) || strcmp(at->valuestring, text) != 0)
        return error_set(error, "\"%s\" is %s%s; only \"%s\" is supported", key, cJSON_IsString(at) ? "" : "not a string",
                         cJSON_IsString(at) ? printable(at->valuestring).text : "", text);
    return true;
}
static inline bool config_must_be_false(const cJSON *object, const char *key, error_text *error) {
    const cJSON *at = config_member(object, key, error);
    if (at == NULL || cJSON_IsFalse(at)) return error->text[0] == '\0';
    return error_set(error, "\"%s\" must be false; models that use it are not supported", key);
}

// The numbers that belong to rope->kind.
static inline bool config_read_rope_numbers(rope_scaling *rope, const cJSON *scaling, error_text *error) {
    for (int i = 0; i < ROPE_NUMBERS; i++) {
        const rope_number *n = &rope_numbers[i];
        double *value = rope_value(rope, i);
        if ((n->kinds >> rope->kind & 1) == 0) continue;
        *value = isnan(n->absent) ? NAN : 0;
        if (!config_number(value, scaling, n->key, n->whole, n->low, n->high, error)) return false;
        if (*value == 0) *value = n->absent;
    }
    if (rope->kind == ROPE_LLAMA3 && rope->high_freq_factor <= rope->low_freq_factor)
        return error_set(error, "\"high_freq_factor\" is %.15g; it must be above \"low_freq_factor\", which is %.15g",
                         rope->high_freq_factor, rope->low_freq_factor);
    if (rope->kind == ROPE_YARN && rope->beta_fast < rope->beta_slow)
        return error_set(error, "\"beta_fast\" is %.15g; it must not be below \"beta_slow\", which is %.15g",
                         rope->beta_fast, rope->beta_slow);
    return error->text[0] == '\0';
}

// Reads "rope_scaling", or "rope_parameters" in newer folders, and a "rope_theta" beside or inside it.
static inline bool config_read_rope(model_config *c, const cJSON *json, error_text *error) {
    rope_scaling *rope = &c->rope;
    const cJSON *old_form = config_member(json, "rope_scaling", error), *new_form = config_member(json, "rope_parameters", error);
    if (old_form != NULL && new_form != NULL)
        return error_set(error, "\"rope_scaling\" and \"rope_parameters\" are both given; keep one of them");
    const cJSON *scaling = old_form != NULL ? old_form : new_form;
    const char *where = old_form != NULL ? "rope_scaling" : "rope_parameters";
    if (scaling != NULL && !cJSON_IsObject(scaling)) return error_set(error, "\"%s\" must be null or an object", where);

    double theta = 10000, inner_theta = -1; // Hugging Face's default for Llama
    bool outside = config_member(json, "rope_theta", error) != NULL;
    if (!config_number(&theta, json, "rope_theta", false, 1.001, 1e15, error)) return false;
    if (scaling != NULL && !config_number(&inner_theta, scaling, "rope_theta", false, 1.001, 1e15, error)) return false;
    if (inner_theta > 0 && outside && inner_theta != theta)
        return error_set(error, "\"rope_theta\" is %.15g, but %.15g inside \"%s\"; keep one of them", theta, inner_theta, where);
    c->rope_theta = inner_theta > 0 ? inner_theta : theta;
    if (scaling == NULL) return error->text[0] == '\0';

    const cJSON *type = config_member(scaling, "rope_type", error), *old_type = config_member(scaling, "type", error);
    if (type == NULL) type = old_type;
    if (!cJSON_IsString(type))
        return error_set(error, "\"%s\" needs a string \"rope_type\"; legal values are default, llama3, linear, yarn", where);
    if (old_type != NULL && (!cJSON_IsString(old_type) || strcmp(type->valuestring, old_type->valuestring) != 0))
        return error_set(error, "\"rope_type\" and \"type\" in \"%s\" differ; keep one of them", where);

    int kind = 0;
    while (kind < ROPE_KINDS && strcmp(type->valuestring, config_rope_name((rope_kind)kind)) != 0) kind++;
    if (kind == ROPE_KINDS)
        return error_set(error, "the type in \"%s\" is \"%s\"; legal values are default, llama3, linear, yarn", where,
                         printable(type->valuestring).text);
    rope->kind = (rope_kind)kind;

    char keys[128] = " ";
    for (int i = 0; i < ROPE_NUMBERS; i++)
        if (rope_numbers[i].kinds >> kind & 1) snprintf(keys + strlen(keys), sizeof keys - strlen(keys), "%s ", rope_numbers[i].key);
    for (const cJSON *at = scaling->child; at != NULL; at = at->next) { // a key that we do not implement would change the model
        bool known = word_listed(" rope_type type rope_theta ", at->string) || word_listed(keys, at->string);
        if (!known && !cJSON_IsNull(at))
            return error_set(error, "\"%s\" of type %s has an unknown key \"%s\"; legal keys are rope_type rope_theta%s", where,
                             config_rope_name(rope->kind), printable(at->string).text, keys);
    }
    double original = 0; // transformers 5 prefers this one
    if (!config_read_rope_numbers(rope, scaling, error)) return false;
    if (!config_number(&original, json, "original_max_position_embeddings", true, 1, 1099511627776.0, error)) return false;
    if (original > 0 && rope->original_length > 0 && original != rope->original_length)
        return error_set(error, "\"original_max_position_embeddings\" is %.15g, but %.15g inside \"%s\"; keep one of them",
                         original, rope->original_length, where);
    return true;
}

// Reads all that we use of config.json. Refuses everything that would change the model and that we do not implement.
static inline bool config_read(model_config *c, const cJSON *json, error_text *error) {
    if (!cJSON_IsObject(json)) return error_set(error, "the file is not a JSON object");
    const cJSON *type = config_member(json, "model_type", error), *names = config_member(json, "architectures", error);
    const char *kind = type == NULL ? "missing" : cJSON_IsString(type) ? type->valuestring : "not a string";
    bool mistral = strcmp(kind, "mistral") == 0; // the same architecture, but for the window and what transformers takes for absent keys
    const char *name = mistral ? "MistralForCausalLM" : "LlamaForCausalLM";
    if (!mistral && strcmp(kind, "llama") != 0)
        return error_set(error, "\"model_type\" is %s; legal values are \"llama\" and \"mistral\"", printable(kind).text);
    if (names != NULL) {
        bool known = cJSON_IsArray(names) && cJSON_GetArraySize(names) > 0;
        for (const cJSON *at = names->child; at != NULL; at = at->next)
            known = known && cJSON_IsString(at) && strcmp(at->valuestring, name) == 0;
        if (!known) return error_set(error, "\"architectures\" is not [\"%s\"], the only one supported for \"model_type\" %s", name, kind);
    }
    double window = mistral && cJSON_GetObjectItemCaseSensitive(json, "sliding_window") == NULL ? 4096 : 0; // null: none
    if (mistral && !config_number(&window, json, "sliding_window", true, 1, 1099511627776.0, error)) return false;
    c->window = (int64_t)window;
    if (!config_must_be(json, "hidden_act", "silu", error)) return false;
    if (!config_must_be_false(json, "attention_bias", error) || !config_must_be_false(json, "mlp_bias", error)) return false;
    double dropout = 0, partial = 1, eps = NAN, max_position = NAN, initializer_range = 0.02;
    if (!config_number(&dropout, json, "attention_dropout", false, 0, 0, error)) return false;
    if (!config_number(&partial, json, "partial_rotary_factor", false, 1, 1, error)) return false;
    if (config_member(json, "quantization_config", error) != NULL)
        return error_set(error, "\"quantization_config\" is given; quantized models are not supported");

    if (!config_int(&c->L, json, "num_hidden_layers", 1, 4096, error)) return false;
    if (!config_int(&c->D, json, "hidden_size", 1, 1 << 18, error)) return false;
    if (!config_int(&c->H, json, "num_attention_heads", 1, 4096, error)) return false;
    c->Hkv = c->H;
    if ((mistral || config_member(json, "num_key_value_heads", error) != NULL) &&
        !config_int(&c->Hkv, json, "num_key_value_heads", 1, c->H, error))
        return false;
    if (c->H % c->Hkv != 0)
        return error_set(error, "\"num_key_value_heads\" is %d; it must divide \"num_attention_heads\", which is %d", c->Hkv, c->H);
    bool has_size = config_member(json, "head_dim", error) != NULL;
    if (!has_size && c->D % c->H != 0)
        return error_set(error, "\"num_attention_heads\" is %d; without \"head_dim\" it must divide \"hidden_size\", which is %d",
                         c->H, c->D);
    c->HS = c->D / c->H;
    if (has_size && !config_int(&c->HS, json, "head_dim", 2, 4096, error)) return false;
    if (c->HS % 2 != 0) return error_set(error, "the head size is %d; it must be even, because RoPE rotates pairs", c->HS);
    if (!config_int(&c->F, json, "intermediate_size", 1, 1 << 20, error)) return false;
    if (!config_int(&c->V, json, "vocab_size", 2, 1 << 24, error)) return false;
    if (!config_number(&eps, json, "rms_norm_eps", false, 1e-12, 0.1, error)) return false;
    if (!config_number(&max_position, json, "max_position_embeddings", true, 1, 1099511627776.0, error)) return false;
    if (!config_number(&initializer_range, json, "initializer_range", false, 0, 1e6, error)) return false;
    c->rms_eps = (float)eps;
    c->initializer_range = (float)initializer_range;
    c->max_position = (int64_t)max_position;
    const cJSON *tied = config_member(json, "tie_word_embeddings", error);
    if (tied != NULL && !cJSON_IsBool(tied)) return error_set(error, "\"tie_word_embeddings\" must be true or false");
    c->tied = tied != NULL && cJSON_IsTrue(tied);
    return config_read_rope(c, json, error);
}

enum { CONFIG_BYTES = 1 << 20 }; // at most, of a config.json or another file of its kind
// Reads a JSON file as file_read_text does; the caller deletes.
static inline cJSON *file_read_json(const char *path, size_t limit, error_text *error) {
    char *text = file_read_text(path, limit, error);
    const char *end = NULL;
    cJSON *json = text == NULL ? NULL : cJSON_ParseWithOpts(text, &end, 1);
    if (text != NULL && json == NULL) error_set(error, "is not valid JSON at byte %lld", (long long)(end == NULL ? 0 : end - text));
    free(text);
    return json;
}

// *config = the preset `model`, or what the config.json in folder `model` says (a preset takes precedence: write ./NAME for a folder
// of that name). Returns false with a one-line message: no such model, not a Llama or Mistral, or something in it that we do not implement.
static inline bool config_load(model_config *config, const char *model, error_text *error) {
    memset(config, 0, sizeof *config);
    const model_config *preset = config_preset(model);
    if (preset != NULL) {
        *config = *preset;
        return true;
    }
    if (!path_is_folder(model)) {
        if (errno != ENOENT && errno != ENOTDIR && errno != ENAMETOOLONG)
            return error_set_errno(error, "model folder \"%s\" cannot be opened", printable(model).text);
        return error_set(error, "model \"%s\" is neither a folder (models of a hub must be downloaded first) nor a preset; presets are %s",
                         printable(model).text, config_preset_names().text);
    }
    path_text path = path_join(model, "config.json");
    if (!path_exists(path.text) && errno == ENOENT)
        return error_set(error, "model folder \"%s\" has no config.json; "
                                "it must be a Hugging Face folder of a Llama or Mistral (or a saved state, DIR/step-N)",
                         printable(model).text);

    error_text why = {"", 0};
    cJSON *json = file_read_json(path.text, CONFIG_BYTES, &why);
    if (json != NULL) config_read(config, json, &why);
    cJSON_Delete(json);
    if (why.text[0] != '\0') return error_set_why(error, &why, "%s/config.json", printable(model).text);
    snprintf(config->name, sizeof config->name, "%.127s", path_last(model).text);
    return true;
}

// ---- what follows from the sizes ----

// Exact number of parameters; tied matrices count once.
static inline int64_t config_parameters(const model_config *c) {
    int64_t D = c->D, heads = (int64_t)c->H * c->HS, kv = (int64_t)c->Hkv * c->HS;
    int64_t layer = D * (heads + 2 * kv) + heads * D + 3 * D * c->F + 2 * D;
    return c->V * D * (c->tied ? 1 : 2) + c->L * layer + D;
}

// inv_freq (HS/2) = angle per token of each pair, exactly as Hugging Face transformers rounds them: every operation in float, so that
// weights trained there keep their meaning. The caller forms the angles, in double. Returns the factor on cos and sin (yarn;
// otherwise 1).
static inline double config_rope_frequencies(const model_config *config, double *inv_freq) {
    const rope_scaling *rope = &config->rope;
    const double pi = 3.14159265358979323846;
    int half = config->HS / 2, dim = config->HS;
    float factor = (float)rope->factor;

    double low = 0, high = 0; // yarn: pairs below low keep their frequency, those above high are divided by factor
    if (rope->kind == ROPE_YARN) {
        double scale = dim / (2 * log(config->rope_theta));
        low = floor(scale * log(rope->original_length / (rope->beta_fast * 2 * pi)));
        high = ceil(scale * log(rope->original_length / (rope->beta_slow * 2 * pi)));
        if (low < 0) low = 0;
        if (high > dim - 1) high = dim - 1;
        if (low == high) high += 0.001;
    }
    for (int i = 0; i < half; i++) {
        float power = (float)pow((double)(float)config->rope_theta, (double)((float)(2 * i) / (float)dim));
        float f = 1.0f / power;
        if (rope->kind == ROPE_LINEAR) f = f / factor;
        if (rope->kind == ROPE_LLAMA3) {
            float length = (float)rope->original_length, wavelength = (float)(2 * pi) / f;
            float longest = (float)(rope->original_length / rope->low_freq_factor);
            float shortest = (float)(rope->original_length / rope->high_freq_factor);
            if (wavelength > longest) {
                f = f / factor;
            } else if (!(wavelength < shortest)) {
                float smooth =
                    (length / wavelength - (float)rope->low_freq_factor) / (float)(rope->high_freq_factor - rope->low_freq_factor);
                f = (1.0f - smooth) * f / factor + smooth * f;
            }
        }
        if (rope->kind == ROPE_YARN) {
            float ramp = ((float)i - (float)low) / (float)(high - low);
            float keep = 1.0f - (ramp < 0 ? 0.0f : ramp > 1 ? 1.0f : ramp);
            f = 1.0f / (factor * power) * (1.0f - keep) + f * keep;
        }
        inv_freq[i] = f;
    }
    if (rope->kind != ROPE_YARN) return 1.0;
    return rope->attention_factor > 0 ? rope->attention_factor : rope->factor > 1 ? 0.1 * log(rope->factor) + 1.0 : 1.0;
}

#endif
