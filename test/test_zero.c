// ranks: 8
// Hybrid ZeRO: every legal (params, grads, optim) triple on 1 to 8 ranks, with and without accumulation, against the replicated run over
// 10 steps: the same gradient norms and parameters, and parameters bit-equal on all ranks after every step. Moments in bf16: the same bits
// for every triple. Offload of model states; bytes equal the formulas; a transfer starts before, and is waited for after, the compute that
// hides it; delays change nothing. (F27, F28, F30, F31, F43, F49, F52)
#include "model_fixture.h"

enum { SIZES = 8, STEPS = TEST_SANITIZED ? 4 : 10, ACCUM = 2 };
static const int sizes[SIZES] = {1, 2, 3, 4, 5, 6, 7, 8};

typedef struct {
    double norm[STEPS], loss[STEPS];
    float *parameters[16];
    int64_t count[16];
} outcome;

static void free_outcome(outcome *o, int units) {
    for (int u = 0; u < units; u++) free(o->parameters[u]);
}

// Bytes of gather, reduce and update of a step, by the formulas at the top of zero_hybrid.cuh. They are the same for every step, because
// the update makes gathered parameters stale.
static void check_bytes(const fixture *f, const char *where) {
    const zero_hybrid *z = &f->m.zero;
    int64_t A = f->m.setup.grad_accum, s = sizeof(floatX), R = z->ranks / z->zo, L = f->m.c.L;
    int64_t gather = 0, reduce = 0, update = 0;
    for (int u = 0; u < z->unit_count; u++) {
        int64_t n = z->units[u].count;
        bool layer = u >= 1 && u <= L;
        if (!layer) gather += (f->m.c.tied ? 1 : A) * n * s / z->zp * (z->zp - 1);
        if (z->zg > 1) reduce += A * 4 * n / z->zg * (z->zg - 1);
        if (z->zo > z->zg) reduce += 4 * n / z->zo * (z->zo / z->zg - 1);
        reduce += 2 * 4 * n / z->zo / R * (R - 1);
        update += n * s / z->zo * (z->zo / z->zp - 1);
    }
    gather += (L + max_i64(L - 2, 0) * (2 * A - 1)) * z->units[1].count * s / z->zp * (z->zp - 1);
    CHECK(comm_count(COMM_PARAM_GATHER).bytes_sent == gather, "%s: gather %lld bytes, formula %lld", where,
          (long long)comm_count(COMM_PARAM_GATHER).bytes_sent, (long long)gather);
    CHECK(comm_count(COMM_GRAD_REDUCE).bytes_sent == reduce, "%s: reduce %lld bytes, formula %lld", where,
          (long long)comm_count(COMM_GRAD_REDUCE).bytes_sent, (long long)reduce);
    CHECK(comm_count(COMM_PARAM_UPDATE).bytes_sent == update, "%s: update %lld bytes, formula %lld", where,
          (long long)comm_count(COMM_PARAM_UPDATE).bytes_sent, (long long)update);
}

// Puts this rank back to where it is after an update: only its own pieces hold the new parameters, all others are NaN. The next forward
// pass must gather them and wait for them.
static void forget_others(zero_hybrid *z) {
    zero_spread_due(z);
    for (int u = 0; u < z->unit_count; u++) {
        int64_t piece = z->units[u].count / z->zo, held = z->units[u].count / z->zp, own = z->optim_piece * piece - z->param_piece * held;
        for (int64_t i = 0; i < held; i++)
            if (i < own || i >= own + piece) z->params[u][i] = NAN;
    }
}

static outcome train(const model_config *c, grid_shape shape, model_setup setup, comm *ranks, const char *where) {
    fixture f;
    outcome o;
    memset(&o, 0, sizeof o);
    fixture_make(&f, c, shape, ranks, setup, RECOMPUTE_NONE, 12);
    for (int step = 0; step < STEPS; step++) {
        fixture_batch(&f, step * 100);
        comm_count_reset();
        adamw_args args = fixture_adamw(step + 1);
        args.lr = 1e-3f; // small enough that over 10 steps a difference in the last bit does not grow beyond 1e-6
        step_result s = model_step(&f.m, args, 1.0);
        check_bytes(&f, where);
        o.norm[step] = s.norm;
        o.loss[step] = s.loss;
        for (int u = 0; u < c->L + 2; u++) { // every rank gathers the same parameters as rank 0, bit for bit
            float *mine = fixture_parameters(&f, u);
            o.count[u] = f.m.units[u].count;
            size_t bytes = sizeof(float) * (size_t)o.count[u];
            float *first = HOST_NEW(float, f.m.units[u].count);
            memcpy(first, mine, bytes);
            comm_broadcast(ranks, first, bytes, 0);
            CHECK(memcmp(first, mine, bytes) == 0, "%s: step %d: parameters of unit %d differ from rank 0's", where, step, u);
            free(first);
            if (step == STEPS - 1) o.parameters[u] = mine;
            else free(mine);
        }
        // Undoes the effect of the check's own gathers.
        for (int s2 = 0; s2 < ZERO_SLOTS; s2++) f.m.zero.param_slot_unit[s2] = f.m.zero.shard_slot_unit[s2] = -1;
        forget_others(&f.m.zero);
    }
    fixture_free(&f);
    return o;
}

// Gradients, and parameters, on the host, against `on_device`, the same run without. The same bits, unless micro-steps are added up by one
// rank: products then add to what is there one row after the other, and otherwise start from zero.
static void check_offloaded(const model_config *c, grid_shape shape, model_setup setup, comm *ranks, const outcome *on_device,
                            const char *where) {
    for (int states = OFFLOAD_GRADIENTS; states <= (setup.zp == setup.zo ? OFFLOAD_PARAMETERS : OFFLOAD_GRADIENTS); states++) {
        setup.offload_states = (zero_offload)states;
        outcome o = train(c, shape, setup, ranks, where);
        double tolerance = setup.zg == 1 && setup.grad_accum > 1 ? 1e-6 : 0;
        for (int s = 0; s < STEPS; s++)
            CHECK(fabs(o.norm[s] - on_device->norm[s]) <= tolerance * on_device->norm[s],
                  "%s, offload %d: step %d: norm %.9f, on the device %.9f", where, states, s, o.norm[s], on_device->norm[s]);
        for (int u = 0; u < c->L + 2; u++) {
            double d = test_difference(o.parameters[u], on_device->parameters[u], o.count[u]);
            CHECK(d <= tolerance, "%s, offload %d: parameters of unit %d differ by %.1e", where, states, u, d);
        }
        free_outcome(&o, c->L + 2);
    }
}

// Weight decay changes matrices and no norm.
static void check_decay(comm *self) {
    model_config c = fixture_config(2, 32, 4, 2, 8, 48, 50, false);
    grid_shape one = {.dp = 1, .hp = 1, .cp = 1, .w = 1};
    fixture f[2];
    for (int d = 0; d < 2; d++) {
        fixture_make(&f[d], &c, one, self, fixture_setup(1, 1), RECOMPUTE_NONE, 12);
        fixture_batch(&f[d], 0);
        adamw_args args = fixture_adamw(1);
        args.weight_decay = (float)d;
        model_step(&f[d].m, args, 1.0);
    }
    for (int u = 0; u < c.L + 2; u++) {
        float *without = fixture_parameters(&f[0], u), *with = fixture_parameters(&f[1], u);
        for (int t = 0; t < f[0].m.units[u].tensor_count; t++) {
            const zero_tensor *tensor = &f[0].m.units[u].tensors[t];
            bool same = memcmp(without + tensor->offset, with + tensor->offset, sizeof(float) * (size_t)tensor->count) == 0;
            CHECK(same == (strstr(tensor->name, "norm") != NULL),
                  "%s of unit %d: %s by weight decay", tensor->name, u, same ? "not changed" : "changed");
        }
        free(without);
        free(with);
    }
    fixture_free(&f[0]);
    fixture_free(&f[1]);
}

// The n-th event (from 0) with this name, track and index; NULL if there are fewer.
static const trace_event *find_event(const char *name, int track, int index, int n) {
    for (int64_t i = 0; i < trace_global.count; i++) {
        const trace_event *e = &trace_global.events[i];
        if (e->track == track && e->index == index && strcmp(e->name, name) == 0 && n-- == 0) return e;
    }
    return NULL;
}
static void check_hides(const trace_event *transfer, const trace_event *compute, const char *what, int unit) {
    CHECK(transfer != NULL && compute != NULL, "%s of unit %d is not in the trace", what, unit);
    if (transfer == NULL || compute == NULL) return;
    CHECK(transfer->begin <= compute->begin && transfer->end >= compute->end,
          "%s of unit %d starts after or is waited for before the compute that hides it", what, unit);
}

// The trace of a step of two micro-steps. (Layer l is unit l + 1; the last two layers stay from forward to backward.)
// A layer is gathered while the layer that comes before it in the pass computes, in forward and backward. Stage k of the reduction of a
// unit's gradient (the degrees decide how many stages there are) is in flight while the layer k + 1 further down computes. A unit's new
// parameters are exchanged while the layer before it computes, or, if a gather follows, the layer before that one.
// Stages that outlast the first micro-step's backward pass are hidden by the next forward pass. The embedding is gathered for the next
// micro-step while the first layer's backward pass computes. Nothing hides the gather of the step's first unit, nor the stages that outlast
// the last backward pass.
static void check_overlap(const model_config *c, grid_shape shape, comm *ranks, int zp, int zg, int zo) {
    model_setup setup = fixture_setup(1, 2);
    setup.zp = zp; setup.zg = zg; setup.zo = zo;
    fixture f;
    fixture_make(&f, c, shape, ranks, setup, RECOMPUTE_NONE, 12);
    trace_start();
    model_step(&f.m, fixture_adamw(1), 1.0);
    int gather = TRACE_KIND + (int)COMM_PARAM_GATHER, reduce = TRACE_KIND + (int)COMM_GRAD_REDUCE;
    int update = TRACE_KIND + (int)COMM_PARAM_UPDATE;
    int L = c->L, replicas = comm_size(ranks) / zo, expected = 0;
    char what[80];
    for (int unit = 2; zp > 1 && unit <= L + 1; unit++)
        check_hides(find_event("gather parameters", gather, unit, 0), find_event("layer forward", TRACE_COMPUTE, unit - 2, 0),
                    "forward gather", unit);
    for (int unit = 1; zp > 1 && unit <= L - 2; unit++)
        check_hides(find_event("gather parameters", gather, unit, 1), find_event("layer backward", TRACE_COMPUTE, unit, 0),
                    "backward gather", unit);
    if (zp > 1 && !c->tied)
        check_hides(find_event("gather parameters", gather, 0, 1), find_event("layer backward", TRACE_COMPUTE, 0, 0),
                    "gather for the next micro-step", 0);
    int seen[16] = {0}; // stages of a unit so far
    for (int micro = 0; micro < 2; micro++) {
        int stages = (zg > 1) + (micro == 1 ? (zo > zg) + (replicas > 1 ? 2 : 0) : 0);
        for (int unit = 0; unit <= L + 1; unit++) {
            for (int k = 0; k < stages; k++) {
                snprintf(what, sizeof what, "zero %d/%d/%d, micro-step %d: reduction stage %d", zp, zg, zo, micro, k);
                const trace_event *stage = find_event("reduce gradients", reduce, unit, seen[unit]++);
                CHECK(stage != NULL, "%s of unit %d is not in the trace", what, unit);
                int hiding = unit - 2 - k; // layer; below 0: -1 is the first layer of the next forward pass
                if (hiding >= 0) check_hides(stage, find_event("layer backward", TRACE_COMPUTE, hiding, micro), what, unit);
                else if (micro == 0) check_hides(stage, find_event("layer forward", TRACE_COMPUTE, -1 - hiding, 1), what, unit);
                expected++;
            }
        }
    }
    for (int unit = zp == 1 ? 2 : 3; zo > zp && unit <= L + 1; unit++) {
        snprintf(what, sizeof what, "zero %d/%d/%d: update", zp, zg, zo);
        check_hides(find_event("update parameters", update, unit, 0),
                    find_event("layer forward", TRACE_COMPUTE, unit - (zp == 1 ? 2 : 3), 0), what, unit);
    }
    int reductions = 0;
    for (int64_t i = 0; i < trace_global.count; i++) reductions += trace_global.events[i].track == reduce;
    CHECK(reductions == expected, "zero %d/%d/%d: %d reductions in the trace, %d expected", zp, zg, zo, reductions, expected);
    trace_global.on = false;
    trace_global.count = 0;
    fixture_free(&f);
}

// Optimizer states on the host: AdamW on a unit is issued right before the forward pass of the layer two units (zp > 1: three) before it,
// which hides it; that of the units before these is exposed.
static void check_update_aside(const model_config *c, grid_shape shape, comm *ranks, int zp, int zo) {
    model_setup setup = fixture_setup(1, 1);
    setup.zp = zp; setup.zg = setup.zo = zo;
    setup.offload_states = OFFLOAD_OPTIMIZER;
    fixture f;
    fixture_make(&f, c, shape, ranks, setup, RECOMPUTE_NONE, 12);
    model_step(&f.m, fixture_adamw(1), 1.0);
    trace_start();
    model_step(&f.m, fixture_adamw(2), 1.0); // its forward pass updates
    for (int unit = 0; unit <= c->L + 1; unit++) {
        int hiding = unit - (zp == 1 ? 3 : 4); // layer
        const trace_event *update = find_event("AdamW", TRACE_COMPUTE, unit, 0);
        const trace_event *hides = hiding < 0 ? NULL : find_event("layer forward", TRACE_COMPUTE, hiding, 0);
        const trace_event *before = hiding < 1 ? NULL : find_event("layer forward", TRACE_COMPUTE, hiding - 1, 0);
        CHECK(update != NULL && (hides == NULL || update->end <= hides->begin) && (before == NULL || update->begin >= before->end),
              "zp %d: AdamW on unit %d is not issued right before layer %d's forward pass", zp, unit, hiding);
    }
    trace_global.on = false;
    trace_global.count = 0;
    fixture_free(&f);
}

int main(int argc, char **argv) {
    comm *world = test_start(&argc, &argv);
    // Norm weights of 10 elements are smaller than the ranks' 16-element pieces, so a piece may hold parts of several tensors, or padding.
    model_config configs[] = {fixture_config(4, 10, 4, 2, 6, 9, 31, false), fixture_config(1, 12, 4, 1, 4, 8, 17, true)};
    comm *self = comm_split(world, comm_rank(world), 0, COMM_CONTROL);
    check_decay(self);
    comm_free(self);
    for (int k = 0; k < 2; k++) {
        const model_config *c = &configs[k];
        for (int i = 0; i < SIZES; i++) {
            int n = sizes[i];
            comm *ranks = comm_split(world, comm_rank(world) < n ? 0 : -1, comm_rank(world), COMM_CONTROL);
            if (ranks == NULL) continue;
            grid_shape shape = {.hp = n % 2 == 0 ? 2 : 1, .cp = n % 4 == 0 ? 2 : 1};
            shape.dp = n / shape.hp / shape.cp;
            shape.w = 1;
            for (int accum = 1; accum <= ACCUM; accum++) {
                if (TEST_SANITIZED && accum != ACCUM - k) continue;
                char where[120];
                outcome replicated = train(c, shape, fixture_setup(1, accum), ranks, "replicated");
                for (int zp = 1; zp <= n; zp++)
                    for (int zg = zp; zg <= n; zg += zp)
                        for (int zo = zg; zo <= n; zo += zg) {
                            if (n % zo != 0) continue;
                            snprintf(where, sizeof where, "%d ranks, zero %d/%d/%d, accumulation %d", n, zp, zg, zo, accum);
                            model_setup setup = fixture_setup(1, accum);
                            setup.zp = zp; setup.zg = zg; setup.zo = zo;
                            setup.offload_states = zo % 2 == 0 ? OFFLOAD_OPTIMIZER : OFFLOAD_NONE;
                            outcome o = train(c, shape, setup, ranks, where);
                            // One stage over all ranks, in rank order, adds in the replicated run's order; other degrees group otherwise.
                            bool same_order = (zg == 1 && (zo == 1 || zo == n)) || (accum == 1 && zg == n && (zp == 1 || zp == n));
                            for (int s = 0; s < STEPS; s++)
                                CHECK((float)o.norm[s] == (float)replicated.norm[s] ||
                                      fabs(o.norm[s] - replicated.norm[s]) <= (same_order ? 0 : 1e-6) * replicated.norm[s],
                                      "%s: step %d: norm %.9f, replicated %.9f", where, s, o.norm[s], replicated.norm[s]);
                            for (int u = 0; u < c->L + 2; u++) {
                                double d = test_difference(o.parameters[u], replicated.parameters[u], o.count[u]);
                                CHECK(d <= (same_order ? 0 : 1e-6), "%s: parameters of unit %d differ by %.1e", where, u, d);
                            }
                            if (zo == n && zg == n) check_offloaded(c, shape, setup, ranks, &o, where);
                            free_outcome(&o, c->L + 2);
                        }
                free_outcome(&replicated, c->L + 2);
            }
            comm_free(ranks);
        }
        comm_barrier(world);
    }
    model_setup narrow = fixture_setup(1, 1);
    narrow.bf16_moments = true;
    fixture_check_updates(&configs[0], narrow, world, false);
    grid_shape shape = {.dp = 2, .hp = 2, .cp = 2, .w = 2};
    // 1, 2, 1, 4, 2 and 4 stages in the last micro-step.
    static const int triples[6][3] = {{8, 8, 8}, {1, 1, 1}, {1, 1, 8}, {2, 2, 4}, {2, 4, 8}, {1, 2, 4}};
    for (int i = 0; i < 6; i++) check_overlap(&configs[0], shape, world, triples[i][0], triples[i][1], triples[i][2]);
    check_update_aside(&configs[0], shape, world, 1, 8);
    check_update_aside(&configs[0], shape, world, 4, 8);
    model_setup setup = fixture_setup(1, 2); // late transfers must change nothing
    setup.zp = 2; setup.zg = 4; setup.zo = 8;
    outcome on_time = train(&configs[0], shape, setup, world, "on time");
    comm_test_delay(200, 3);
    outcome late = train(&configs[0], shape, setup, world, "late");
    for (int u = 0; u < 6; u++)
        CHECK(memcmp(on_time.parameters[u], late.parameters[u], (size_t)late.count[u] * sizeof(float)) == 0, "delays change unit %d", u);
    free_outcome(&on_time, 6);
    free_outcome(&late, 6);
    int status = test_finish("test_zero", world);
    comm_finalize();
    return status;
}
