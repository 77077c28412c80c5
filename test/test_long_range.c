// ranks: up to 4
// A task that only distant attention solves: the first half of a sequence is random, the second half repeats one marker, and the label at
// position t of the second half is the token at t - S/2. No token near t says anything about it, so the loss falls below 0.1 (from
// ln 16 = 2.77) only if queries attend to keys S/2 back. Trained at cp 4 with two windows. (F55)
#include "model_fixture.h"

enum { SYMBOLS = 16, MARKER = 16, LENGTH = 64, STEPS = 600 };

static void make_batch(fixture *f, int64_t step) {
    for (int64_t b = 0; b < f->m.setup.B; b++)
        for (int64_t t = 0; t < f->shard.T; t++) {
            int64_t position = sequence_shard_position(&f->shard, t), at = b * f->shard.T + t, half = LENGTH / 2;
            uint64_t key = (uint64_t)((step * f->m.setup.B + b) * half + position % half);
            int32_t symbol = (int32_t)((test_random(5, key) * 0.5 + 0.5) * SYMBOLS) % SYMBOLS;
            f->tokens[at] = position < half ? symbol : MARKER;
            f->labels[at] = position < half ? -100 : symbol;
        }
}

int main(int argc, char **argv) {
    comm *world = test_start(&argc, &argv);
    model_config c = fixture_config(2, 64, 4, 2, 16, 128, SYMBOLS + 1, false);
    grid_shape shape = {.dp = 1, .hp = 1, .cp = comm_size(world), .w = comm_size(world) % 2 == 0 ? 2 : 1};
    fixture f;
    fixture_make(&f, &c, shape, world, fixture_setup(8, 1), RECOMPUTE_NONE, LENGTH);
    double loss = 0, first = 0;
    int step = 1;
    for (; step <= STEPS; step++) {
        make_batch(&f, step);
        adamw_args args = fixture_adamw(step);
        args.lr = 3e-3f * (float)(step < 20 ? step / 20.0 : 1.0);
        args.weight_decay = 0;
        loss = model_step(&f.m, args, 1.0).loss;
        if (step == 1) first = loss;
        if (comm_rank(world) == 0 && step % 50 == 0) printf("step %d loss %.4f\n", step, loss);
        if (loss < 0.1) break;
    }
    CHECK(first > 2.0, "the task is too easy: first loss %.3f", first);
    CHECK(loss < 0.1, "loss %.3f after %d steps; distant tokens are not attended to", loss, STEPS);
    fixture_free(&f);
    int status = test_finish("test_long_range", world);
    comm_finalize();
    return status;
}
