// --skip-spikes Z: a step whose loss or gradient norm is more than Z standard deviations above the mean of the steps before it changes no
// parameter. One bad batch can throw a long run off, and leaving its update out costs nothing else. OLMo-core (SkipStepOptimizer, by
// default 6 standard deviations) and llm.c (-sl, -sg) do the same, with windows of 128 steps, too.
#ifndef SPIKES_H
#define SPIKES_H

#include "common.h"

enum { SPIKE_WINDOW = 128 };
typedef struct {
    int64_t count;
    double values[SPIKE_WINDOW]; // of the last `count` steps, oldest first, and also those left out: a new level is soon accepted
} recent_values;

// Keeps 15 digits, as cJSON writes numbers: a run that resumes a state decides by the same values.
static inline void recent_add(recent_values *r, double value) {
    char text[32];
    snprintf(text, sizeof text, "%.15g", value);
    if (r->count == SPIKE_WINDOW) memmove(r->values, r->values + 1, sizeof *r->values * (size_t)--r->count);
    r->values[r->count++] = strtod(text, NULL);
}
// What the next step may have at most. INFINITY until the window is full: at its start a run knows no level yet.
static inline double recent_limit(const recent_values *r, double z) {
    double mean = 0, square = 0;
    if (r->count < SPIKE_WINDOW) return INFINITY;
    for (int i = 0; i < SPIKE_WINDOW; i++) mean += r->values[i] / SPIKE_WINDOW;
    for (int i = 0; i < SPIKE_WINDOW; i++) square += (r->values[i] - mean) * (r->values[i] - mean) / SPIKE_WINDOW;
    return mean + z * sqrt(square);
}

#endif
