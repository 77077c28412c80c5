// The planner: which grid (dp, hp, cp, w, placement), ZeRO degrees, recompute and offload are fastest on a cluster. planner_* searches all
// legal choices by the time model (time_model.h); plan_* does so for the options of a run (--plan, --hp auto), whose own memory layout
// decides what fits (run_memory.h).
#ifndef PLANNER_H
#define PLANNER_H

#include "data_sources.h" // defines: data_sources_*
#include "run_memory.h"   // defines: run_at_length, run_in_room, run_question
#include "time_model.h"   // defines: planner_query, planner_choice, planner_step_time, cluster

// ---- the search ----

// Whether hp x cp of the ranks can share a sequence: a whole number of them (dp), which divides a step's sequences; two tokens for each
// of several ranks.
static inline bool planner_legal(const planner_query *q, int hp, int cp) {
    return q->model->H % hp == 0 && q->ranks % (hp * cp) == 0 && q->global_batch % (q->ranks / (hp * cp) * q->batch) == 0 &&
           (hp * cp == 1 || q->S >= 2 * (int64_t)hp * cp);
}

// A relative gap below this is inside the model's error: a tie.
#define PLANNER_TIE 0.02

// By which choices are compared: their seconds, plus a tie's for each thing that is less simple: offload of activations, of those of some
// layers, of each kind of model states, and two kinds of recompute. So these are chosen only where they save more than the model's error.
static inline double planner_cost(const planner_choice *p) {
    double cost = p->seconds;
    int less_simple = (p->offload > 0) + (p->offload > 0 && p->offload < 1) + (int)p->offload_states + (p->less > 0);
    for (int n = less_simple; n > 0; n--) cost *= 1 + PLANNER_TIE;
    return cost;
}

enum { PLANNER_WAYS = 10 * 12 * 5 * 4 }; // ZeRO degrees, nested, out of three; recompute in quarters; offload of activations, of states
// Fills ways (PLANNER_WAYS) with all ways to run a grid, and their predicted time; returns their number. ZeRO degrees: 1, a node, all
// ranks; recompute: also by quarters of the layers, as --recompute auto may choose; offload: activations by quarters of the layers, states.
static inline int planner_ways(const planner_query *q, const planner_choice *grid, planner_choice *ways) {
    int count = 0, node = (int)q->machines->gpus_per_node, degrees[3], degree_count = 0;
    degrees[degree_count++] = 1;
    if (node > 1 && node < q->ranks && q->ranks % node == 0) degrees[degree_count++] = node;
    if (q->ranks > 1) degrees[degree_count++] = q->ranks;
    planner_attention a = planner_attention_time(q, &grid->shape, grid->cp_allgather);
    for (int p = 0; p < degree_count; p++)
        for (int g = p; g < degree_count; g++)
            for (int o = g; o < degree_count; o++) {
                bool p_full = p + 1 == degree_count, g_full = g + 1 == degree_count; // ZeRO: offload of these states needs it
                int most = p_full ? OFFLOAD_PARAMETERS : g_full ? OFFLOAD_GRADIENTS : OFFLOAD_OPTIMIZER;
                for (int kind = RECOMPUTE_NONE; kind <= RECOMPUTE_FULL; kind++)
                    for (int less = 0; less < (kind == RECOMPUTE_NONE || q->schedule == SCHEDULE_LOONGTRAIN ? 1 : 4); less++)
                        for (int states = q->offload_states; states <= most; states++)
                            for (int quarters = 0; quarters <= 4; quarters++) { // of the activations offloaded
                                planner_choice *t = &ways[count++];
                                *t = *grid;
                                t->zp = degrees[p];
                                t->zg = degrees[g];
                                t->zo = degrees[o];
                                t->recompute = (recompute_kind)kind;
                                t->less = less * q->model->L / 4; // quarters of the layers
                                t->offload = quarters / 4.0;
                                t->offload_states = (zero_offload)states;
                                planner_step_time(q, &a, t);
                            }
            }
    return count;
}

// The best way to run one grid, whose shape and cp_allgather are set in *best: the fastest that fits. Equally fast: the least sharded,
// which comes first. More sharding wins where it costs at most a thousandth of the time and saves at least a tenth of the device's memory.
// False: nothing fits.
static inline bool planner_best_of_grid(const planner_query *q, planner_choice *best) {
    planner_choice *ways = HOST_NEW(planner_choice, PLANNER_WAYS);
    int count = planner_ways(q, best, ways);
    for (;;) {
        int fastest = 0;
        for (int i = 1; i < count; i++)
            if (planner_cost(&ways[i]) < planner_cost(&ways[fastest])) fastest = i;
        *best = ways[fastest];
        if (best->seconds == INFINITY) break;
        if (q->fits == NULL || q->fits(q->context, best)) break;
        ways[fastest].seconds = INFINITY; // does not fit
    }
    double most = 1.001 * best->seconds;
    for (int i = 0; q->fits != NULL && i < count && best->seconds < INFINITY; i++) {
        planner_choice *t = &ways[i];
        bool alike = t->recompute == best->recompute && t->less == best->less && t->offload == best->offload &&
                     t->offload_states == best->offload_states;
        if (t->seconds <= most && alike && q->fits(q->context, t) && t->memory <= best->memory - 0.1 * q->machines->memory)
            *best = *t;
    }
    free(ways);
    return best->seconds < INFINITY;
}

// Inserts a choice into best (*count of at most `most`), which stays sorted by planner_cost; drops the last one when it is full.
static inline void planner_insert(planner_choice *best, int *count, int most, const planner_choice *choice) {
    int at = *count;
    while (at > 0 && planner_cost(choice) < planner_cost(&best[at - 1])) at--;
    if (at == most) return;
    if (*count < most) (*count)++;
    memmove(&best[at + 1], &best[at], sizeof *best * (size_t)(*count - 1 - at));
    best[at] = *choice;
}

// Fills best[0 ... n-1], by planner_cost, one entry per grid, n <= max_choices, and returns n; with a message 0 when nothing fits, -1
// when no grid is legal.
static inline int planner_plan(const planner_query *q, planner_choice *best, int max_choices, error_text *error) {
    int count = 0, legal = 0, longest = 0;
    for (int hp = 1; hp <= q->model->H; hp++)
        for (int cp = 1; cp <= q->ranks / hp; cp++) {
            if (!planner_legal(q, hp, cp)) continue;
            longest = (int)max_i64(longest, hp * cp);
            for (int placement = PLACEMENT_HEAD_FIRST; placement <= PLACEMENT_CONTEXT_FIRST; placement++) {
                if (placement == PLACEMENT_CONTEXT_FIRST && (hp == 1 || cp == 1)) continue; // the same grid
                for (int w = 1; w <= cp; w++) {
                    if (cp % w != 0 || (w == cp && cp > 1)) continue; // one window of all ranks is one ring, as is w = 1
                    for (int allgather = 0; allgather <= (w == 1 && cp > 1); allgather++) {
                        planner_choice choice = {
                            .shape = planner_shape(q->machines, q->ranks / (hp * cp), hp, cp, w, (placement_kind)placement),
                            .cp_allgather = allgather == 1};
                        legal++;
                        if (planner_best_of_grid(q, &choice)) planner_insert(best, &count, max_choices, &choice);
                    }
                }
            }
        }
    if (legal == 0) {
        error_set(error, "%d ranks, %lld sequences a step: no legal grid for %lld tokens "
                         "(hp must divide the %d heads and dp the sequences, dp x hp x cp must be the ranks, with two tokens a rank); "
                         "use fewer ranks or longer sequences",
                  q->ranks, (long long)q->global_batch, (long long)q->S, q->model->H);
        return -1;
    }
    if (count == 0)
        error_set(error, "no configuration for %lld tokens on %d rank%s of %s fits in memory "
                         "(%d grids tried, up to %d ranks a sequence, full ZeRO, full recompute, offload)",
                  (long long)q->S, q->ranks, plural(q->ranks), q->machines->name, legal, longest);
    return count;
}

// Where the time of a step goes; the parts sum to its seconds.
typedef struct {
    const char *name;
    double seconds;
} planner_part;
enum { PLANNER_PARTS = 11 };
static inline void planner_parts(const planner_choice *p, planner_part *parts) {
    const planner_part all[PLANNER_PARTS] = {
        {"attention kernels", p->attention},
        {"matrices", p->linear},
        {"launches and merging", p->launch},
        {"optimizer", p->optimizer},
        {"SeqAlltoAll", p->alltoall},
        {"inner ring exposed", p->ring_inner},
        {"outer ring exposed", p->ring_outer},
        {"gathering exposed", p->gather},
        {"reducing exposed", p->reduce},
        {"parameter update", p->update},
        {"offload exposed", p->offloading},
    };
    memcpy(parts, all, sizeof all);
}

// Why a step takes its time, in one line: the three largest parts of at least half a percent.
static inline void planner_reason(const planner_choice *p, char *text, size_t size) {
    planner_part parts[PLANNER_PARTS];
    planner_parts(p, parts);
    text[0] = '\0';
    for (int n = 0; n < 3; n++) {
        int largest = 0;
        for (int i = 1; i < PLANNER_PARTS; i++)
            if (parts[i].seconds > parts[largest].seconds) largest = i;
        if (parts[largest].seconds < 0.005 * p->seconds) return;
        size_t used = strlen(text);
        snprintf(text + used, size - used, "%s%s %.0f %%", n > 0 ? ", " : "", parts[largest].name,
                 100 * parts[largest].seconds / p->seconds);
        parts[largest].seconds = -1;
    }
}

// ---- what fits, for the options of a run ----

enum { PLAN_SHOWN = 5, PLAN_LISTED = 256, PLAN_SAMPLES = 16 }; // grids printed; grids in --plan-json; samples read for their documents

// --cluster, or the default: cpu for float; for bf16 that of the GPU, once the device is started, where one is built in, else h100.
static inline const char *plan_cluster_name(const options *o) {
    static const char *const gpus[][2] = {
        {"GH200", "h100"}, {"GB200", "gb200"}, {"B200", "b200"}, {"H200", "h200"}, {"A100", "a100-4nic-datasheet"}};
    if (o->cluster != NULL) return o->cluster;
    if (sizeof(floatX) == sizeof(float)) return "cpu";
    for (size_t i = 0; i < sizeof gpus / sizeof gpus[0]; i++)
        if (strstr(device_name(), gpus[i][0]) != NULL) return gpus[i][1];
    return "h100";
}
// Fills *machines with the cluster that predictions are for, as `ranks` ranks see it. False with a message, also where what is given is not
// for such machines (--plan, --dry-run) or for this device (a run).
static inline bool plan_cluster(cluster *machines, const options *o, int ranks, error_text *error) {
    if (!cluster_load(machines, plan_cluster_name(o), error)) return false;
    cluster_share(machines, ranks);
    bool asked = o->plan || o->dry_run, cpu = asked ? machines->element_bytes == sizeof(float) : device_is_host();
    if (asked && cpu && o->stochastic_rounding)
        return error_set(error, "--stochastic-rounding: parameters on %s are stored in float, so nothing is rounded", machines->name);
    if (o->host_memory == 0) return true;
    machines->host_memory = (double)o->host_memory;
    return !cpu || error_set(error, "--host-memory is for GPUs; on CPUs, --memory-budget is for all memory of a rank");
}
// The cluster as a run's ranks are placed, with at least `local` of them on each machine: its machines may have other sizes than the
// cluster's; a single one with fewer ranks is a part of a node. Returns whether they have.
static inline bool plan_cluster_here(cluster *machines, int ranks, double local) {
    if (local == machines->gpus_per_node || ranks <= fmin(local, machines->gpus_per_node)) return false;
    machines->nics_per_node = fmax(1, floor(machines->nics_per_node * local / machines->gpus_per_node));
    machines->gpus_per_node = local;
    cluster_share(machines, ranks);
    return true;
}
static inline int64_t plan_global_batch(const options *o) { return o->global_batch > 0 ? o->global_batch : o->batch_size * o->grad_accum; }

// A copy of the options in which a choice replaces grid, ZeRO degrees, recompute and offload.
static inline options plan_chosen(const options *o, const planner_choice *p) {
    options t = *o;
    const grid_shape *s = &p->shape;
    t.dp = s->dp;
    t.hp = s->hp;
    t.cp = s->cp;
    t.inner_ring = p->cp_allgather ? s->cp : s->w; // --cp-comm allgather has no windows
    t.placement = s->placement;
    t.gpus_per_node = grid_weave(s) > 1 ? s->gpus_per_node : 0;
    t.nics_per_node = grid_weave(s) > 1 ? s->nics_per_node : 0;
    t.cp_comm = p->cp_allgather ? CP_COMM_ALLGATHER : CP_COMM_RING;
    t.zero_params = p->zp;
    t.zero_grads = p->zg;
    t.zero_optim = p->zo;
    t.recompute = p->less > 0 ? RECOMPUTE_AUTO : p->recompute;
    t.offload_activations = p->offload;
    t.offload_optimizer = p->offload_states >= OFFLOAD_OPTIMIZER;
    t.offload_gradients = p->offload_states >= OFFLOAD_GRADIENTS;
    t.offload_parameters = p->offload_states >= OFFLOAD_PARAMETERS;
    t.global_batch = plan_global_batch(o);
    t.grad_accum = t.global_batch / (s->dp * o->batch_size);
    return t;
}

// Whether sequences of S tokens fit: a rank in its budget, a node's ranks together in its host memory. Sets p->memory and p->host_memory.
static inline bool plan_fits_at(const run_question *q, planner_choice *p, int64_t S) {
    options t = plan_chosen(q->o, p);
    run_question chosen = {&t, q->c, q->machines, p->shape.dp * p->shape.hp * p->shape.cp};
    recompute_kind *kinds = HOST_NEW(recompute_kind, q->c->L);
    arena device, host;
    grid g;
    model_setup setup = run_at_length(&chosen, S, &g, kinds);
    for (int l = 0; !setup.forward_only && l < q->c->L; l++)
        kinds[l] = l < q->c->L - p->less ? p->recompute : (recompute_kind)(p->recompute - 1);
    bool fits = run_in_room(q->c, &g, &setup, run_room(&chosen), &device, &host);
    free(kinds);
    p->memory = (double)device.peak;
    p->host_memory = (double)host.peak * fmin(chosen.ranks, q->machines->gpus_per_node);
    return fits;
}
// planner_query.fits, with a run_question as context.
static inline bool plan_fits(void *context, planner_choice *p) {
    const run_question *q = (const run_question *)context;
    return plan_fits_at(q, p, q->o->seq_len);
}

// Whether any grid of `ranks` ranks can hold sequences of S tokens: full ZeRO, full recompute, rings (an all-gather holds all KV).
static inline bool plan_any_fits(const run_question *question, int ranks, int64_t S) {
    cluster machines = *question->machines;
    cluster_share(&machines, ranks); // ranks on machines of their own number share these
    run_question asked = *question, *q = &asked;
    asked.machines = &machines;
    planner_query query = planner_query_make(q->c, q->machines, S, plan_global_batch(q->o), ranks);
    query.batch = q->o->batch_size;
    for (int hp = 1; hp <= q->c->H; hp++)
        for (int cp = 1; q->c->H % hp == 0 && cp <= ranks / hp; cp++) {
            if (!planner_legal(&query, hp, cp)) continue;
            planner_choice p = {.shape = planner_shape(q->machines, ranks / (hp * cp), hp, cp, 1, PLACEMENT_HEAD_FIRST),
                                .zp = ranks, .zg = ranks, .zo = ranks, .recompute = RECOMPUTE_FULL};
            for (int states = options_offload(q->o); states <= OFFLOAD_PARAMETERS; states++)
                for (int quarters = 0; quarters <= 4; quarters++) { // of the activations
                    p.offload = quarters / 4.0;
                    p.offload_states = (zero_offload)states;
                    if (plan_fits_at(q, &p, S)) return true;
                }
        }
    return false;
}

// Appends to the message that nothing fits what would: the longest sequence on these ranks (within 1 %), or on how many ranks these fit.
static inline void plan_say_what_fits(const run_question *q, error_text *error) {
    char text[256] = "";
    int64_t low = 1, high = q->o->seq_len; // low fits (or is 1), high does not fit
    while (high - low > max_i64(1, low / 128)) {
        int64_t middle = low + (high - low) / 2;
        if (plan_any_fits(q, q->ranks, middle)) low = middle;
        else high = middle;
    }
    if (low > 1) snprintf(text, sizeof text, "; on these ranks up to %lld tokens fit", (long long)low);
    for (int64_t ranks = 2 * (int64_t)q->ranks; ranks <= 16 * (int64_t)q->ranks; ranks *= 2)
        if (plan_any_fits(q, (int)ranks, q->o->seq_len)) {
            size_t used = strlen(text);
            snprintf(text + used, sizeof text - used, "; %lld ranks fit %lld tokens", (long long)ranks, (long long)q->o->seq_len);
            break;
        }
    size_t used = strlen(error->text);
    snprintf(error->text + used, sizeof error->text - used, "%s%s",
             text[0] != '\0' ? text : "; shorter sequences or up to 16 times the ranks do not fit either",
             q->o->cluster == NULL ? "; --cluster NAME assumes other machines" : "");
}

// ---- predictions for a run that is laid out ----

// Seconds of a step. attended: as in planner_query. Layers have one kind, or one and then another, as the planner's (run_choose_recompute).
static inline double plan_predict_seconds(const model *m, const cluster *machines, int64_t attended) {
    const model_setup *setup = &m->setup;
    const grid_shape *s = &m->g->shape; // its windows lie as --gpus-per-node says, whatever the cluster's nodes are
    planner_query q = planner_query_make(&m->c, machines, setup->shard.S, s->dp * setup->B * setup->grad_accum, m->g->ranks);
    planner_choice p = {.shape = *s, .cp_allgather = setup->cp_allgather, .zp = setup->zp, .zg = setup->zg, .zo = setup->zo,
                        .recompute = setup->kinds[0], .offload = (double)setup->offload_layers / m->c.L,
                        .offload_states = setup->offload_states};
    for (int l = 0; l < m->c.L; l++) p.less += setup->kinds[l] != p.recompute;
    q.attended = attended;
    q.batch = setup->B;
    q.dkv_bytes = setup->dkv_bf16 ? 2 : 4;
    q.gate_up_again = !m->keep_gate_up;
    q.moment_bytes = (double)m->zero.moment_bytes;
    planner_attention a = planner_attention_time(&q, &p.shape, p.cp_allgather);
    planner_step_time(&q, &a, &p);
    return p.seconds;
}

// Bytes that a rank sends in a step, all kinds except COMM_CONTROL: the formulas of attention_2d.cuh, double_ring.cuh and zero_hybrid.cuh.
static inline int64_t plan_predict_sent(const model *m) {
    const model_config *c = &m->c;
    const zero_hybrid *z = &m->zero;
    const grid_shape *g = &m->g->shape;
    head_layout h = head_layout_make(g->hp, c->H, c->Hkv, c->HS);
    int64_t T = m->T, A = m->setup.grad_accum, e = sizeof(floatX), windows = g->cp / g->w, replicas = z->ranks / z->zo;
    int64_t L = c->L, sent = 0;
    int64_t q = T * c->H * c->HS, kv = T * g->hp * 2 * h.Hkv_local * c->HS; // elements of a Q and of a KV chunk
    int64_t kv_hops = g->cp - 1, dkv_hops = g->cp - 1; // all-gather
    if (!m->setup.cp_allgather) {
        kv_hops = windows * (g->w - 1) + windows - 1;
        dkv_hops = (g->w > 1 ? windows * (g->w - 1) + 1 : 0) + (windows > 1 ? windows : 0); // the last of each bring dKV home
    }
    for (int l = 0; l < L; l++) {
        recompute_kind kind = m->setup.kinds[l];
        sent += (kind == RECOMPUTE_NONE ? 2 : 3) * e * (2 * q + kv) / g->hp * (g->hp - 1); // SeqAlltoAll
        sent += (kind == RECOMPUTE_FULL ? 3 : 2) * kv_hops * kv * e + dkv_hops * kv * (int64_t)double_ring_dkv_element(&m->attention.ring);
    }
    sent *= A * m->setup.B;
    for (int u = 0; u < z->unit_count; u++) {
        int64_t n = z->units[u].count, gathers = c->tied ? 1 : A;
        if (u == 0 || u == L + 1) sent += gathers * n * e / z->zp * (z->zp - 1);
        if (z->zg > 1) sent += A * 4 * n / z->zg * (z->zg - 1);
        if (z->zo > z->zg) sent += 4 * n / z->zo * (z->zo / z->zg - 1);
        sent += 2 * 4 * n / z->zo / replicas * (replicas - 1) + n * e / z->zo * (z->zo / z->zp - 1);
    }
    // Gathers of layers: two are still in their slots wherever the passes turn.
    return sent + (L + max_i64(L - 2, 0) * (2 * A - 1)) * z->units[1].count * e / z->zp * (z->zp - 1);
}

// ---- --plan and --hp auto ----

// Sets *attended, as in planner_query, from the run's data; prints it when documents are packed. False with a message.
static inline bool plan_attended(const options *o, const model_config *c, int64_t *attended, error_text *error) {
    *attended = o->seq_len;
    if (!options_packed(o)) return true;
    if (o->train_data == NULL) {
        printf("documents: without --train-data, a sample is assumed to be one document\n");
        return true;
    }
    data_sources data;
    if (!data_sources_open(&data, o->train_data, "--train-data", true, o->seq_len, c->V, (uint64_t)o->seed, error)) return false;
    bool ok = data_sources_attended(&data, PLAN_SAMPLES, options_document(o), attended, error);
    data_sources_close(&data);
    if (ok)
        printf("documents: on average a token sees as many tokens as in one document of %lld tokens (the run's first %d samples)\n",
               (long long)*attended, PLAN_SAMPLES);
    return ok;
}

enum { PLANNER_RANKS = 1 << 20 }; // planning for so many takes up to a minute or two; counts of 16 times as many fit an int
// False with a message when options are given that the planner chooses, or when batch or ranks are impossible.
static inline bool plan_options_check(const options *o, int ranks, error_text *error) {
    static const char *const chosen[] = {"dp", "cp", "inner-ring", "placement", "cp-comm", "gpus-per-node", "nics-per-node",
                                         "zero-params", "zero-grads", "zero-optim", "recompute", "offload-activations"};
    for (size_t i = 0; i < sizeof chosen / sizeof chosen[0]; i++)
        if (options_given(o, chosen[i]))
            return error_set(error, "--%s is chosen by %s; give only one of them", chosen[i], o->plan ? "--plan" : "--hp auto");
    if (o->hp > 0 && options_given(o, "hp"))
        return error_set(error, "--hp %lld with --plan: the plan chooses it; leave out --hp, or write --hp auto", (long long)o->hp);
    if (o->global_batch > 0 && options_given(o, "grad-accum"))
        return error_set(error, "--global-batch sets --grad-accum; give only one of them");
    if (plan_global_batch(o) % o->batch_size != 0)
        return error_set(error, "--global-batch %lld is not a multiple of --batch-size %lld",
                         (long long)o->global_batch, (long long)o->batch_size);
    if (ranks > PLANNER_RANKS) return error_set(error, "%d ranks: the planner takes up to %d", ranks, PLANNER_RANKS);
    return true;
}

// Fills best with at most `most` choices for these options on q->ranks ranks, the best first, and returns their number; 0 with a message.
// attended: as in planner_query.
static inline int plan_search(const run_question *q, int64_t attended, planner_choice *best, int most, error_text *error) {
    const options *o = q->o;
    if (!plan_options_check(o, q->ranks, error)) return 0;
    planner_query query = planner_query_make(q->c, q->machines, o->seq_len, plan_global_batch(o), q->ranks);
    run_question context = *q;
    query.attended = attended;
    query.batch = o->batch_size;
    query.dkv_bytes = o->dkv_wire == DKV_WIRE_BF16 ? 2 : 4;
    query.gate_up_again = o->mlp_tile > 0;
    query.moment_bytes = o->moments == MOMENTS_BF16 ? 2 : 4;
    query.offload_states = options_offload(o);
    query.fits = plan_fits;
    query.context = &context;
    int n = planner_plan(&query, best, most, error);
    if (n == 0) plan_say_what_fits(q, error);
    return (int)max_i64(n, 0);
}

static inline const char *plan_recompute_name(recompute_kind kind) {
    return kind == RECOMPUTE_NONE ? "none" : kind == RECOMPUTE_SELECTIVE ? "selective" : "full";
}
// "selective"; "full, 24 layers selective" as "auto (24 selective)".
static inline void plan_recompute_text(const planner_choice *p, char *text, size_t size) {
    if (p->less == 0) snprintf(text, size, "%s", plan_recompute_name(p->recompute));
    else snprintf(text, size, "auto (%d %s)", p->less, plan_recompute_name((recompute_kind)(p->recompute - 1)));
}
// Prints the command that trains with a choice and the other options that the user gave.
static inline void plan_command(const options *given, const planner_choice *p) {
    const char *left_out = " plan plan-json dry-run ranks hp batch-size grad-accum global-batch from-scratch "
                           "offload-optimizer offload-gradients offload-parameters ";
    options t = plan_chosen(given, p);
    char value[OPTION_TEXT_BYTES + 8];
    printf("mpirun -np %d ./train_llama", p->shape.dp * p->shape.hp * p->shape.cp);
    for (int i = 0; i < OPTION_ROWS; i++) {
        if (!given->given[i] || word_listed(left_out, option_rows[i].name)) continue;
        printf(" --%s", option_rows[i].name);
        if (option_rows[i].kind == OPTION_FLAG) continue;
        option_format(given, &option_rows[i], value, sizeof value);
        if (option_rows[i].kind != OPTION_TEXT) {
            printf(" %s", value);
            continue;
        }
        printf(strncmp(value, "--", 2) == 0 ? "='" : " '"); // quoted for a shell; after a blank, -- would be the next option
        for (const char *at = value; *at != '\0'; at++) printf(*at == '\'' ? "'\\''" : "%c", *at);
        printf("'");
    }
    if (given->from_scratch || config_preset(given->model) != NULL) printf(" --from-scratch");
    if (given->train_data == NULL) printf(" --train-data 'data/train*.bin'");
    printf(" --batch-size %lld --global-batch %lld --dp %d --hp %d --cp %d", (long long)t.batch_size, (long long)t.global_batch,
           p->shape.dp, p->shape.hp, p->shape.cp);
    if (p->cp_allgather) printf(" --cp-comm allgather");
    else if (p->shape.cp > 1) printf(" --inner-ring %d", p->shape.w);
    if (t.gpus_per_node > 0) printf(" --gpus-per-node %lld --nics-per-node %lld", (long long)t.gpus_per_node, (long long)t.nics_per_node);
    if (p->shape.hp > 1 && p->shape.cp > 1) printf(" --placement %s", placement_name(p->shape.placement));
    printf(" --zero-params %d --zero-grads %d --zero-optim %d", p->zp, p->zg, p->zo);
    printf(" --recompute %s", p->less > 0 ? "auto" : plan_recompute_name(p->recompute));
    if (p->offload > 0) printf(" --offload-activations %g", p->offload);
    if (t.offload_optimizer) printf(" --offload-optimizer");
    if (t.offload_gradients) printf(" --offload-gradients");
    if (t.offload_parameters) printf(" --offload-parameters");
    printf("\n");
}

// "dp 8 hp 8 cp 2 w 1 head-first, ZeRO 64/64/64, recompute selective, offload 0.5, optimizer and gradient offload"
static inline void plan_choice_text(const planner_choice *p, char *text, size_t size) {
    const grid_shape *s = &p->shape;
    static const char *const states[] = {"", ", optimizer offload", ", optimizer and gradient offload", ", offload of all states"};
    char ring[48] = "", recompute[48], offload[48] = "";
    plan_recompute_text(p, recompute, sizeof recompute);
    if (s->cp > 1 && p->cp_allgather) snprintf(ring, sizeof ring, " all-gather");
    else if (s->cp > 1 && grid_one_ring(s)) snprintf(ring, sizeof ring, " ring");
    else if (s->cp > 1) snprintf(ring, sizeof ring, " w %d", s->w);
    if (p->offload > 0) snprintf(offload, sizeof offload, ", offload");
    if (p->offload > 0 && p->offload < 1) snprintf(offload, sizeof offload, ", offload %g", p->offload);
    bool placed = s->hp > 1 && s->cp > 1;
    snprintf(text, size, "dp %d hp %d cp %d%s%s%s, ZeRO %d/%d/%d, recompute %s%s%s", s->dp, s->hp, s->cp, ring, placed ? " " : "",
             placed ? placement_name(s->placement) : "", p->zp, p->zg, p->zo, recompute, offload,
             states[p->offload_states]);
}

static inline void plan_print(const run_question *q, const planner_choice *best, int n) {
    const options *o = q->o;
    char basis[128], text[256], host[128];
    cluster_basis(q->machines, basis, sizeof basis);
    printf("plan for %s, %lld tokens x %lld sequence%s a step, %d rank%s of %s\n", q->c->name, (long long)o->seq_len,
           (long long)plan_global_batch(o), plural(plan_global_batch(o)), q->ranks, plural(q->ranks), q->machines->name);
    printf("figures of the cluster: %s; a prediction, not a measurement\n", basis);
    printf("MFU: model FLOPs relative to a peak of %.4g TFLOP/s, causal attention counted half, recompute not counted; "
           "HFU: all that is computed\n", 1e-12 * q->machines->peak);
    for (int i = 0; i < n; i++) {
        const planner_choice *p = &best[i];
        plan_choice_text(p, text, sizeof text);
        host[0] = '\0';
        if (p->host_memory > 0) snprintf(host, sizeof host, ", %s of host memory a node", bytes_text(p->host_memory).text);
        bool tie = i > 0 && fabs(p->seconds / best[0].seconds - 1) <= PLANNER_TIE;
        printf("%d. %s\n   step %.3f s  TGS %.1f  MFU %.1f%%  HFU %.1f%%  memory %s a rank%s%s\n", i + 1, text, p->seconds, p->tgs,
               100 * p->mfu, 100 * p->hfu, bytes_text(p->memory).text, host, tie ? "  (a tie with 1)" : "");
        printf("   exposed ms: SeqAlltoAll %.1f, inner ring %.1f, outer ring %.1f, gather %.1f, reduce %.1f, update %.1f, offload %.1f\n",
               1e3 * p->alltoall, 1e3 * p->ring_inner, 1e3 * p->ring_outer, 1e3 * p->gather, 1e3 * p->reduce, 1e3 * p->update,
               1e3 * p->offloading);
    }
    planner_reason(&best[0], text, sizeof text);
    printf("why 1: its step is %s", text);
    if (n > 1) {
        double gap = best[1].seconds / best[0].seconds - 1;
        printf("; the runner-up is %.1f %% %s%s", 100 * fabs(gap), gap < 0 ? "faster, but not as simple" : "slower",
               fabs(gap) <= PLANNER_TIE ? ", a tie: differences below 2 % are within the model's error" : "");
    }
    printf("\n");
    plan_command(o, &best[0]);
}

// --plan-json: writes the n choices as a JSON object; false with a message.
static inline bool plan_write_json(const run_question *q, int64_t attended, const planner_choice *best, int n, error_text *error) {
    if (!file_writable("--plan-json", q->o->plan_json, "{\n\t\"model\":", error)) return false;
    cJSON *plan = cJSON_CreateObject(), *choices = cJSON_CreateArray(), *figures = cJSON_CreateObject();
    int kinds[FIGURE_KINDS] = {0, 0, 0};
    for (int i = 0; i < CLUSTER_FIGURES; i++) kinds[q->machines->kinds[i]]++;
    for (int k = 0; k < FIGURE_KINDS; k++) cJSON_AddNumberToObject(figures, figure_kind_name((figure_kind)k), kinds[k]);
    json_add_text(plan, "model", q->c->name);
    json_add_text(plan, "cluster", q->machines->name);
    cJSON_AddItemToObject(plan, "figures", figures);
    cJSON_AddNumberToObject(plan, "ranks", q->ranks);
    cJSON_AddStringToObject(plan, "dkv_wire", q->o->dkv_wire == DKV_WIRE_BF16 ? "bf16" : "f32");
    cJSON_AddNumberToObject(plan, "seq_len", (double)q->o->seq_len);
    cJSON_AddNumberToObject(plan, "attended_length", (double)attended);
    cJSON_AddNumberToObject(plan, "global_batch", (double)plan_global_batch(q->o));
    cJSON_AddItemToObject(plan, "choices", choices);
    for (int i = 0; i < n; i++) {
        const planner_choice *p = &best[i];
        cJSON *at = cJSON_CreateObject(), *parts = cJSON_CreateObject();
        const struct {
            const char *name;
            double value;
        } numbers[] = {
            {"dp", (double)p->shape.dp}, {"hp", (double)p->shape.hp}, {"cp", (double)p->shape.cp}, {"inner_ring", (double)p->shape.w},
            {"zero_params", (double)p->zp}, {"zero_grads", (double)p->zg}, {"zero_optim", (double)p->zo}, {"step_s", p->seconds},
            {"tgs", p->tgs}, {"mfu", p->mfu}, {"hfu", p->hfu}, {"memory_bytes", p->memory}, {"host_bytes_of_node", p->host_memory},
            {"slower_than_best", p->seconds / best[0].seconds - 1},
        };
        cJSON_AddItemToArray(choices, at);
        for (size_t k = 0; k < sizeof numbers / sizeof numbers[0]; k++) cJSON_AddNumberToObject(at, numbers[k].name, numbers[k].value);
        cJSON_AddStringToObject(at, "placement", placement_name(p->shape.placement));
        cJSON_AddStringToObject(at, "cp_comm", p->cp_allgather ? "allgather" : "ring");
        char recompute[48];
        plan_recompute_text(p, recompute, sizeof recompute);
        cJSON_AddStringToObject(at, "recompute", recompute);
        cJSON_AddNumberToObject(at, "offload_activations", p->offload);
        cJSON_AddBoolToObject(at, "offload_optimizer", p->offload_states >= OFFLOAD_OPTIMIZER);
        cJSON_AddBoolToObject(at, "offload_gradients", p->offload_states >= OFFLOAD_GRADIENTS);
        cJSON_AddBoolToObject(at, "offload_parameters", p->offload_states >= OFFLOAD_PARAMETERS);
        planner_part all[PLANNER_PARTS];
        planner_parts(p, all);
        for (int k = 0; k < PLANNER_PARTS; k++) cJSON_AddNumberToObject(parts, all[k].name, all[k].seconds);
        cJSON_AddItemToObject(at, "seconds", parts);
    }
    char *text = cJSON_Print(plan);
    path_text beside;
    FILE *f = file_open_beside(q->o->plan_json, &beside);
    if (f != NULL) fprintf(f, "%s\n", text);
    bool ok = file_finish("--plan-json", q->o->plan_json, beside.text, f, error);
    cJSON_free(text);
    cJSON_Delete(plan);
    return ok;
}

// --plan; one rank calls. started: the ranks that are running, planned for without --ranks. False with a message.
static inline bool plan_show(const options *o, const model_config *c, int started, error_text *error) {
    cluster machines;
    planner_choice best[PLAN_LISTED];
    int ranks = o->ranks > 0 ? (int)o->ranks : started;
    if (!plan_cluster(&machines, o, ranks, error)) return false;
    run_question q = {o, c, &machines, ranks};
    run_note_budget(&q);
    int64_t attended;
    if (!plan_attended(o, c, &attended, error)) return false;
    int n = plan_search(&q, attended, best, PLAN_LISTED, error);
    if (n == 0) return false;
    options chosen = plan_chosen(o, &best[0]); // a run must accept the command that is printed
    chosen.dry_run = true;
    chosen.plan_json = NULL;
    chosen.host_memory = 0; // a dry run wants a cluster with it
    if (!options_check(&chosen, c, ranks, error)) return false;
    if (o->plan_json != NULL && !plan_write_json(&q, attended, best, n, error)) return false;
    plan_print(&q, best, n < PLAN_SHOWN ? n : PLAN_SHOWN);
    return true;
}

// Bytes of a device that a plan may use before the ranks are connected, of which device_memory_total will then say less: NCCL's groups
// take up to 2.6 GiB of a GPU (docs/memory.md), some more with full grids.
static inline double plan_device_memory(int ranks) {
    double total = (double)device_memory_total();
    return device_is_host() || ranks == 1 ? total : total - fmin(4.0 * (1 << 30), total / 10);
}
// --hp auto: puts the best choice for these ranks into the options. Memory is that of the devices and machines of the ranks, the least of
// them all, and so is the number of ranks of a machine; in a dry run they are the cluster's. Rank 0 plans for all, because machines may
// round differently. Collective, after device_start; false with a message.
static inline bool plan_apply(options *o, const model_config *c, comm *world, error_text *error) {
    cluster machines;
    planner_choice best;
    memset(&best, 0, sizeof best);
    int ranks = o->dry_run && o->ranks > 0 ? (int)o->ranks : comm_size(world);
    // The least of all ranks is the largest of these.
    double negative[3] = {o->dry_run ? 0 : -plan_device_memory(ranks), -run_host_memory(o), -(double)comm_local_ranks()};
    comm_max_double(world, negative, 3);
    if (comm_rank(world) == 0 && plan_cluster(&machines, o, ranks, error)) {
        if (!o->dry_run) {
            double a_node = machines.gpus_per_node;
            if (plan_cluster_here(&machines, ranks, -negative[2]))
                printf("planning    for %g ranks a machine, where %s has %g\n", -negative[2], machines.name, a_node);
            machines.memory = -negative[0];
            machines.element_bytes = sizeof(floatX); // theirs, too, whatever --cluster is
            machines.host_memory = -negative[1] * fmin(ranks, machines.gpus_per_node);
        }
        run_question q = {o, c, &machines, ranks};
        int64_t attended;
        if (plan_attended(o, c, &attended, error) && plan_search(&q, attended, &best, 1, error) > 0) {
            char text[256];
            plan_choice_text(&best, text, sizeof text);
            printf("planned for %s: %s: %.3f s a step\n", machines.name, text, best.seconds);
        }
    }
    if (!comm_agree_on_files(world, error)) return false; // rank 0 reads samples of packed documents
    comm_broadcast(world, &best, sizeof best, 0);
    *o = plan_chosen(o, &best);
    return true;
}

#endif
