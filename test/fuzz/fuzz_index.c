// Input: a model.safetensors.index.json, beside two good files a.safetensors (tensors x, y) and b.safetensors (tensor z).
#include "../../safetensors.h"
#include "fuzz.h"

static void make_file(const char *name, const char *header, size_t data_bytes) {
    uint64_t n = strlen(header);
    char bytes[512];
    memset(bytes, 0, sizeof bytes);
    memcpy(bytes, &n, 8);
    memcpy(bytes + 8, header, n);
    fuzz_file(name, bytes, 8 + n + data_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static bool made = false;
    if (!made) {
        make_file("a.safetensors", "{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                                   "\"y\":{\"dtype\":\"F16\",\"shape\":[2,1],\"data_offsets\":[8,12]}}", 12);
        make_file("b.safetensors", "{\"z\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[0,2]}}", 2);
        made = true;
    }
    error_text error = no_error();
    safetensors s = safetensors_none();
    fuzz_file("model.safetensors.index.json", data, size);
    bool ok = safetensors_open(&s, fuzz_folder(), "model", &error);
    must_be_clear(ok, &error);
    for (int64_t i = 0; i < s.tensor_count; i++) {
        float values[2];
        MUST(safetensors_read(&s, &s.tensors[i], 0, s.tensors[i].count, values, &error), "%s", error.text);
    }
    safetensors_close(&s);
    fuzz_accepted += ok;
    return 0;
}
