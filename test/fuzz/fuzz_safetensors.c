// Input: a .safetensors file. If its header is accepted, every tensor can be read from its first to its last element, and no further.
#include "../../safetensors.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    error_text error = no_error();
    safetensors s = safetensors_none();
    fuzz_file("model.safetensors", data, size);
    bool ok = safetensors_open(&s, fuzz_folder(), "model", &error);
    must_be_clear(ok, &error);
    int64_t bytes = safetensors_bytes(&s);
    MUST(bytes <= (int64_t)size, "%lld bytes of tensors", (long long)bytes);
    for (int64_t i = 0; i < s.tensor_count; i++) {
        const safetensor *t = &s.tensors[i];
        MUST(safetensors_find(&s, t->name) == t, "%s", t->name);
        float *values = HOST_NEW(float, t->count);
        MUST(safetensors_read(&s, t, 0, t->count, values, &error), "%s", error.text);
        free(values);
        float beyond;
        MUST(!safetensors_read(&s, t, t->count, 1, &beyond, &error), "an element after the last of %s was read", t->name);
        error = no_error();
    }
    safetensors_close(&s);
    fuzz_accepted += ok;
    return 0;
}
