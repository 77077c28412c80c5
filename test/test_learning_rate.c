// ranks: 1
// Schedules: their shape, their ends, warm-up, runs of one step. They depend on the optimizer step alone. (F53)
#include "../learning_rate.h"
#include "test.h"

int main(void) {
    options o;
    memset(&o, 0, sizeof o);
    o.lr = 2;
    o.min_lr_fraction = 0.1;
    o.wsd_decay = 0.25;
    for (int64_t steps = 1; steps <= 40; steps++)
        for (int64_t warmup = 0; warmup <= steps; warmup++)
            for (int kind = LR_COSINE; kind <= LR_CONSTANT; kind++) {
                o.steps = steps;
                o.warmup = warmup;
                o.lr_schedule = (lr_schedule_kind)kind;
                double before = 0;
                for (int64_t step = 0; step < steps; step++) {
                    double lr = learning_rate(&o, step, 0);
                    o.lr_restart = true;
                    o.steps = steps + 7;
                    CHECK(learning_rate(&o, step + 7, 7) == lr,
                          "restarted, kind %d step %lld of %lld", kind, (long long)step, (long long)steps);
                    o.lr_restart = false;
                    o.steps = steps;
                    CHECK(learning_rate(&o, step, 1) == lr,
                          "not restarted, new data, kind %d step %lld of %lld", kind, (long long)step, (long long)steps);
                    CHECK(lr > 0 && lr <= 2.0000001, "kind %d step %lld of %lld: %g", kind, (long long)step, (long long)steps, lr);
                    if (step < warmup)
                        CHECK(fabs(lr - 2.0 * (double)(step + 1) / (double)warmup) < 1e-12, "warm-up step %lld: %g", (long long)step, lr);
                    else if (step > warmup) CHECK(lr <= before + 1e-12, "kind %d rises after the warm-up", kind);
                    before = lr;
                }
                if (warmup < steps - 1 && kind != LR_CONSTANT) CHECK(fabs(before - 0.2) < 1e-9, "kind %d ends at %g", kind, before);
                if (kind == LR_CONSTANT && warmup < steps) CHECK(before == 2, "constant ends at %g", before);
            }
    o.steps = 101; o.warmup = 0; o.lr_schedule = LR_COSINE;
    CHECK(fabs(learning_rate(&o, 50, 0) - 1.1) < 1e-12, "middle of the cosine: %g", learning_rate(&o, 50, 0));
    o.steps = 121; o.warmup = 20;
    CHECK(fabs(learning_rate(&o, 70, 0) - 1.1) < 1e-12, "middle of the cosine, after a warm-up: %g", learning_rate(&o, 70, 0));
    o.steps = 100; o.lr_schedule = LR_WSD;
    for (o.warmup = 0; o.warmup <= 20; o.warmup += 20) {
        CHECK(learning_rate(&o, 74, 0) == 2 && learning_rate(&o, 75, 0) < 2, "wsd falls in its last part only");
        CHECK(fabs(learning_rate(&o, 87, 0) - (0.2 + 1.8 * 12 / 25)) < 1e-12, "wsd falls in a line: %g", learning_rate(&o, 87, 0));
    }
    return test_finish("test_learning_rate", NULL);
}
