// The learning rate of a step.
#ifndef LEARNING_RATE_H
#define LEARNING_RATE_H

#include "options.h" // defines: options, lr_schedule kinds

// step counts optimizer steps from 0, independent of ranks and micro-steps. The schedule covers all --steps; with --lr-restart those from
// `new_data` on, the step at which the data of --new-data began. Linear warm-up to --lr over --warmup steps; then
//   constant  --lr
//   cosine    half a cosine down to --lr x --min-lr-fraction at the last step
//   wsd       --lr; over the last --wsd-decay (a fraction) of its steps, after the warm-up, linearly down to --lr x --min-lr-fraction
static inline double learning_rate(const options *o, int64_t step, int64_t new_data) {
    int64_t steps = o->lr_restart ? o->steps - new_data : o->steps;
    double low = o->lr * o->min_lr_fraction;
    if (o->lr_restart) step -= new_data;
    if (step < o->warmup) return o->lr * (double)(step + 1) / (double)o->warmup;
    if (o->lr_schedule == LR_CONSTANT) return o->lr;
    double last = (double)(steps - 1);
    if (o->lr_schedule == LR_COSINE) {
        double span = last - (double)o->warmup, done = span > 0 ? ((double)step - (double)o->warmup) / span : 1;
        return low + (o->lr - low) * 0.5 * (1 + cos(3.14159265358979323846 * (done < 1 ? done : 1)));
    }
    double span = o->wsd_decay * (double)steps, left = last - (double)step;
    return left >= span ? o->lr : low + (o->lr - low) * (span > 0 ? left / span : 0);
}

#endif
