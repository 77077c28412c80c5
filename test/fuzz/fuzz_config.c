// Input: a config.json. A config that is accepted has legal sizes and finite RoPE frequencies, and is the same model when it is written to
// another folder and read again.
#include "../../hf_folder.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    error_text error = no_error();
    model_config c, back;
    fuzz_file("config.json", data, size);
    bool ok = config_load(&c, fuzz_folder(), &error);
    must_be_clear(ok, &error);
    if (!ok) return 0;
    MUST(c.L >= 1 && c.D >= 1 && c.HS >= 2 && c.HS % 2 == 0 && c.H >= 1 && c.Hkv >= 1 && c.H % c.Hkv == 0 && c.F >= 1 && c.V >= 1,
         "%d %d %d", c.HS, c.H, c.Hkv);
    MUST(config_parameters(&c) > 0, "%lld parameters", (long long)config_parameters(&c));
    double *frequencies = HOST_NEW(double, c.HS / 2);
    double scale = config_rope_frequencies(&c, frequencies);
    MUST(isfinite(scale), "%g", scale);
    for (int i = 0; i < c.HS / 2; i++) MUST(isfinite(frequencies[i]) && frequencies[i] >= 0, "pair %d: %g", i, frequencies[i]);
    free(frequencies);

    path_text out = path_join(fuzz_folder(), "out");
    MUST(folder_make(out.text, &error), "%s", error.text);
    hf_source source;
    MUST(hf_source_read(&source, fuzz_folder(), true, false, &error) && hf_write_config(&c, out.text, &source, DTYPE_BF16, &error),
         "%s", error.text);
    hf_source_free(&source);
    MUST(config_load(&back, out.text, &error), "%s", error.text);
    MUST(back.L == c.L && back.D == c.D && back.H == c.H && back.Hkv == c.Hkv && back.HS == c.HS && back.F == c.F && back.V == c.V,
         "sizes differ");
    MUST(back.rms_eps == c.rms_eps && back.rope_theta == c.rope_theta && back.tied == c.tied && back.max_position == c.max_position,
         "numbers differ");
    MUST(back.rope.kind == c.rope.kind && back.rope.factor == c.rope.factor && back.rope.low_freq_factor == c.rope.low_freq_factor &&
         back.rope.high_freq_factor == c.rope.high_freq_factor && back.rope.original_length == c.rope.original_length &&
         back.rope.beta_fast == c.rope.beta_fast && back.rope.beta_slow == c.rope.beta_slow &&
         back.rope.attention_factor == c.rope.attention_factor, "rope differs");
    fuzz_accepted++;
    return 0;
}
