// ranks: 1
// The limits of --skip-spikes: none before 128 values, then mean and standard deviation of the last 128, by a second computation; and that
// a state, which is JSON, gives the same values back.
#include "../spikes.h"
#include "test.h"
#include <cjson/cJSON.h>

int main(void) {
    recent_values r;
    double all[1000];
    memset(&r, 0, sizeof r);
    for (int i = 0; i < 1000; i++) {
        double limit = recent_limit(&r, 6);
        if (i < SPIKE_WINDOW) CHECK(isinf(limit) && limit > 0, "a limit of %g after %d values", limit, i);
        if (i >= SPIKE_WINDOW) {
            double sum = 0, squares = 0;
            for (int k = i - SPIKE_WINDOW; k < i; k++) sum += all[k], squares += all[k] * all[k];
            double mean = sum / SPIKE_WINDOW, want = mean + 6 * sqrt(squares / SPIKE_WINDOW - mean * mean);
            CHECK(fabs(limit - want) < 1e-9, "after %d values: %.12g, %.12g by hand", i, limit, want);
            CHECK(fabs(recent_limit(&r, 0) - mean) < 1e-12 && fabs(all[i - 1] - r.values[SPIKE_WINDOW - 1]) < 1e-13 &&
                  fabs(all[i - SPIKE_WINDOW] - r.values[0]) < 1e-13, "after %d values", i);
        }
        all[i] = 3 + 0.1 * test_random(1, (uint64_t)i) + (i >= 500 ? 1 : 0); // and a new level
        recent_add(&r, all[i]);
        if (i == 499) CHECK(recent_limit(&r, 6) < 4 - 0.1, "the first values of a new level are spikes: %g", recent_limit(&r, 6));
        if (i == 510) CHECK(recent_limit(&r, 6) > 4 + 0.1, "10 steps later they are none: %g", recent_limit(&r, 6));
    }
    cJSON *json = cJSON_CreateDoubleArray(r.values, SPIKE_WINDOW);
    char *text = cJSON_PrintUnformatted(json);
    cJSON_Delete(json);
    json = cJSON_Parse(text);
    const cJSON *at = json->child;
    for (int i = 0; i < SPIKE_WINDOW; i++, at = at->next)
        CHECK(at->valuedouble == r.values[i], "%.17g comes back from JSON as %.17g", r.values[i], at->valuedouble);
    cJSON_Delete(json);
    free(text);
    memset(&r, 0, sizeof r);
    for (int i = 0; i < SPIKE_WINDOW; i++) recent_add(&r, 2);
    CHECK(recent_limit(&r, 6) == 2, "equal values: %.17g", recent_limit(&r, 6));
    return test_finish("test_spikes", NULL);
}
