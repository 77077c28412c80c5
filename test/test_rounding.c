// ranks: 4
// device: emulated
// Stochastic rounding of stored parameters under emulation. op_round and op_adamw round to one of the two neighbours, leave representable
// numbers as they are, and are right in the mean. A model's parameters, and moments in bf16, are bit-equal on every rank and for every
// legal (params, grads, optim) triple of shard degrees, because an element's draw depends on its place in the tensor, not on the shard.
#include "model_fixture.h"

static float as_float(floatX x) {
    float f;
    op_cast_to_float(&f, &x, 1);
    return f;
}
static rounding_rule rule(uint64_t seed, uint64_t tensor, int64_t step, int64_t first) {
    rounding_rule r = {true, seed, tensor, step, first};
    return r;
}

// Many draws for each of several fractions of the distance between two neighbours, once over the elements of one call and once over steps.
static void test_mean(void) {
    enum { DRAWS = 40000 };
    float *x = HOST_NEW(float, DRAWS);
    floatX *y = HOST_NEW(floatX, DRAWS);
    const float unit = 0x1p-7f; // between neighbours in [1, 2)
    for (int over_steps = 0; over_steps < 2; over_steps++)
        for (int f = 0; f <= 8; f++)
            for (int negative = 0; negative < 2; negative++) {
                float sign = negative ? -1.0f : 1.0f, fraction = (float)f / 8, low = 1 + 5 * unit, sum = 0;
                for (int i = 0; i < DRAWS; i++) x[i] = sign * (low + fraction * unit);
                if (over_steps)
                    for (int i = 0; i < DRAWS; i++) op_round(y + i, x + i, 1, rule(9, 4, 1 + i, 77));
                else op_round(y, x, DRAWS, rule(9, 4, 1, 77));
                int64_t strange = 0;
                for (int i = 0; i < DRAWS; i++) {
                    float steps = (sign * as_float(y[i]) - low) / unit;
                    strange += steps != 0 && steps != 1;
                    sum += steps;
                }
                // The mean of n draws, each 1 with probability f and else 0: within 5 standard deviations.
                double mean = (double)sum / DRAWS, bound = 5 * sqrt((double)fraction * (1 - (double)fraction) / DRAWS);
                CHECK(strange == 0, "%lld of %d are not a neighbour of %g", (long long)strange, DRAWS, (double)x[0]);
                CHECK(fabs(mean - (double)fraction) <= bound,
                      "%g is rounded away from zero in %.4f of the draws, not %.4f +- %.4f", (double)x[0], mean, (double)fraction, bound);
            }
    free(x);
    free(y);
}

// Every number of floatX stays, infinities and NaN too. Another tensor, seed or step gives other draws. A part of a tensor gets the draws
// that it gets in the whole.
static void test_draws(void) {
    enum { ALL = 65536, PART = 1000, FIRST = 37 };
    float *x = HOST_NEW(float, ALL);
    floatX *stored = HOST_NEW(floatX, ALL), *y = HOST_NEW(floatX, ALL), *other = HOST_NEW(floatX, ALL);
    for (int i = 0; i < ALL; i++) stored[i].bits = (uint16_t)i;
    op_cast_to_float(x, stored, ALL);
    op_round(y, x, ALL, rule(1, 2, 3, 0));
    int64_t wrong = 0;
    for (int i = 0; i < ALL; i++) wrong += isnan(x[i]) ? !isnan(as_float(y[i])) : y[i].bits != stored[i].bits;
    CHECK(wrong == 0, "%lld numbers of floatX are changed", (long long)wrong);
    for (int i = 0; i < ALL; i++) x[i] = 1.00390625f; // in the middle
    op_round(y, x, ALL, rule(1, 2, 3, 0));
    op_round(other, x + FIRST, PART, rule(1, 2, 3, FIRST));
    CHECK(memcmp(other, y + FIRST, sizeof(floatX) * PART) == 0, "a shard is rounded otherwise than the whole");
    const rounding_rule others[3] = {rule(2, 2, 3, 0), rule(1, 3, 3, 0), rule(1, 2, 4, 0)};
    for (int k = 0; k < 3; k++) {
        int64_t same = 0;
        op_round(other, x, ALL, others[k]);
        for (int i = 0; i < ALL; i++) same += other[i].bits == y[i].bits;
        // 128: the standard deviation.
        CHECK(llabs(same - ALL / 2) < 5 * 128, "draws of another seed, tensor or step agree in %lld of %d", (long long)same, ALL);
    }
    rounding_rule nearest = rule(1, 2, 3, 0);
    nearest.stochastic = false;
    op_round(y, x, ALL, nearest);
    op_cast_from_float(other, x, ALL);
    CHECK(memcmp(y, other, sizeof(floatX) * ALL) == 0, "without stochastic rounding: not to nearest");
    free(x);
    free(stored);
    free(y);
    free(other);
}

// AdamW: stochastic rounding does not change master and moments; param is the rounded master; without a master the mean of many params is
// the unrounded result.
static void test_update(void) {
    enum { N = 30001 };
    float *state[2][4];
    floatX *param[2] = {HOST_NEW(floatX, N), HOST_NEW(floatX, N)}, *want = HOST_NEW(floatX, N);
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < 4; i++) {
            state[k][i] = HOST_NEW(float, N);
            test_fill(state[k][i], N, (uint64_t)i, i == 2 ? 0 : 1);
        }
        adamw_args args = fixture_adamw(5);
        args.rounding = rule(11, 6, 0, 100);
        args.rounding.stochastic = k == 1;
        op_adamw(param[k], state[k][0], state[k][1], state[k][2], state[k][3], N, args);
    }
    for (int i = 0; i < 3; i++) CHECK(memcmp(state[0][i], state[1][i], sizeof(float) * N) == 0, "stochastic rounding changes state %d", i);
    op_round(want, state[1][0], N, rule(11, 6, 5, 100));
    CHECK(memcmp(want, param[1], sizeof(floatX) * N) == 0, "AdamW rounds otherwise than op_round");
    CHECK(memcmp(want, param[0], sizeof(floatX) * N) != 0, "stochastic rounding changes nothing");

    float one = 1;
    op_cast_from_float(param[0], &one, 1);
    for (int64_t i = 0; i < N; i++) param[1][i] = param[0][0];
    for (int i = 1; i < 4; i++)
        for (int64_t j = 0; j < N; j++) state[0][i][j] = i == 3 ? -1.0f : 0.0f;
    adamw_args args = fixture_adamw(1);
    args.lr = 1e-4f, args.weight_decay = 0;
    args.rounding = rule(12, 6, 0, 0);
    // 1 + lr: about an eightieth of the distance between neighbours.
    op_adamw(param[1], NULL, state[0][1], state[0][2], state[0][3], N, args);
    double sum = 0, fraction = 1e-4 / 0x1p-7;
    for (int64_t i = 0; i < N; i++) sum += (double)as_float(param[1][i]) - 1;
    CHECK(fabs(sum / N / 0x1p-7 - fraction) < 5 * sqrt(fraction / N),
          "updates of %.4f of a step move parameters by %.4f of it", fraction, sum / N / 0x1p-7);
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < 4; i++) free(state[k][i]);
        free(param[k]);
    }
    free(want);
}

int main(int argc, char **argv) {
    comm *world = test_start(&argc, &argv);
    if (comm_rank(world) == 0) {
        test_mean();
        test_draws();
        test_update();
    }
    model_config c = fixture_config(2, 24, 4, 2, 6, 40, 50, false);
    model_setup setup = fixture_setup(1, 1);
    for (int bf16_moments = 0; bf16_moments < 2; bf16_moments++) {
        setup.bf16_moments = bf16_moments == 1;
        fixture_check_updates(&c, setup, world, true);
    }
    int status = test_finish("stochastic rounding", world);
    device_stop();
    comm_finalize();
    return status;
}
