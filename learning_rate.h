// The learning rate of a step.
#ifndef LEARNING_RATE_H
#define LEARNING_RATE_H

#include "options.h" // defines: options, lr_schedule kinds

// step counts optimizer steps from 0, independent of ranks and micro-steps. Linear warm-up to --lr over --warmup steps; then
//   constant  --lr
//   cosine    half a cosine down to --lr x --min-lr-fraction at the last step
//   wsd       --lr; over the last --wsd-decay (a fraction) of all steps, which the warm-up does not reach, linearly down to --lr x --min-lr-fraction
static inline double learning_rate(const options *o, int64_t step) {
    double low = o->lr * o->min_lr_fraction;
    if (step < o->warmup) return o->lr * (double)(step + 1) / (double)o->warmup;
    if (o->lr_schedule == LR_CONSTANT) return o->lr;
    double last = (double)(o->steps - 1);
    if (o->lr_schedule == LR_COSINE) {
        double span = last - (double)o->warmup, done = span > 0 ? ((double)step - (double)o->warmup) / span : 1;
        return low + (o->lr - low) * 0.5 * (1 + cos(3.14159265358979323846 * (done < 1 ? done : 1)));
    }
    double span = o->wsd_decay * (double)o->steps, left = last - (double)step;
    return left >= span ? o->lr : low + (o->lr - low) * (span > 0 ? left / span : 0);
}

#endif
