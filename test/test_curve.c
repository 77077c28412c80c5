// ranks: 4
// 1000 steps of a tiny model on one rank and on hp 2 x cp 2 in two windows, with the same batches: the loss curves stay together. (F55)
// Rounding differences grow with training, so the bound is on their mean: 2e-3. No step may differ by more than 0.05.
// A third run, on one rank, has its moments in bf16. Roundings of up to 2^-7, of which m remembers some 5 and v some 10 (the root of which
// counts), make each update about 1 % wrong, without bias: the curve may differ by 1 % of what the loss falls by, in the mean.
// sanitize: no (the same code as test_grids, only longer)
#include "model_fixture.h"

enum { STEPS = 1000 };

static void curve(double *losses, const model_config *c, grid_shape shape, model_setup setup, comm *ranks) {
    fixture f;
    fixture_make(&f, c, shape, ranks, setup, RECOMPUTE_SELECTIVE, 24);
    for (int step = 0; step < STEPS; step++) {
        fixture_batch(&f, step % 50 * 2); // 50 batches, of 100 samples, in turn
        adamw_args args = fixture_adamw(step + 1);
        args.lr = 1e-3f;
        losses[step] = model_step(&f.m, args, 1.0).loss;
    }
    fixture_free(&f);
}

int main(int argc, char **argv) {
    comm *world = test_start(&argc, &argv), *self = comm_split(world, comm_rank(world), 0, COMM_CONTROL);
    model_config c = fixture_config(2, 32, 4, 2, 8, 48, 40, false);
    static double one[STEPS], many[STEPS], narrow[STEPS];
    grid_shape shape = {.dp = 1, .hp = 1, .cp = 1, .w = 1};
    curve(one, &c, shape, fixture_setup(2, 1), self);
    shape.hp = 2; shape.cp = 2;
    model_setup setup = fixture_setup(2, 1);
    setup.zg = setup.zo = 4;
    curve(many, &c, shape, setup, world);
    double sum = 0, worst = 0;
    for (int i = 0; i < STEPS; i++) {
        sum += fabs(one[i] - many[i]);
        worst = fmax(worst, fabs(one[i] - many[i]));
    }
    CHECK(sum / STEPS < 2e-3 && worst < 0.05, "mean difference %.2e, worst %.2e", sum / STEPS, worst);
    CHECK(one[STEPS - 1] < one[0] - 1, "the model does not learn: %.3f to %.3f", one[0], one[STEPS - 1]);
    if (comm_rank(world) == 0) printf("loss %.3f to %.3f; mean difference %.1e, worst %.1e\n", one[0], one[STEPS - 1], sum / STEPS, worst);
    model_setup moments = fixture_setup(2, 1);
    moments.bf16_moments = true;
    shape.hp = shape.cp = 1;
    curve(narrow, &c, shape, moments, self);
    double apart = 0;
    for (int i = 0; i < STEPS; i++) apart += fabs(one[i] - narrow[i]) / STEPS;
    CHECK(apart > 0 && apart < 0.01 * (one[0] - one[STEPS - 1]), "bf16 moments: mean difference %.2e", apart);
    if (comm_rank(world) == 0) printf("bf16 moments: mean difference %.1e\n", apart);
    comm_free(self);
    int status = test_finish("test_curve", world);
    comm_finalize();
    return status;
}
