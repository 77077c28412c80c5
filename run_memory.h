// What fits: computes a run's memory from its options, before a device is touched. A run, --dry-run and the planner use the same functions.
#ifndef RUN_MEMORY_H
#define RUN_MEMORY_H

#include "cluster.h" // defines: cluster
#include "metrics.h" // defines: memory_print
#include "model.h"   // defines: model_setup, model_count, sequence_shard
#include "options.h" // defines: options

static inline grid_shape run_grid_shape(const options *o) {
    return (grid_shape){(int)o->dp, (int)o->hp, (int)o->cp, (int)o->inner_ring, o->placement, (int)o->gpus_per_node, (int)o->nics_per_node};
}

// Which tokens of S the rank at (h, c) of the options' grid holds, on machines that are planned for (NULL: this build's device).
static inline sequence_shard run_shard(const options *o, const model_config *c, int64_t S, int h, int cp_rank, const cluster *machines) {
    int hp = (int)o->hp, cp = (int)o->cp;
    bool gpu = machines == NULL ? sizeof(floatX) == 2 : machines->element_bytes == 2, own = gpu == (sizeof(floatX) == 2);
    int64_t multiple = own ? DEVICE_ROW_MULTIPLE : gpu ? 128 : 1; // to which local rows are padded: see device.h
    if (!options_packed(o)) return sequence_shard_make(S, hp, cp, h, cp_rank, multiple);
    const char *few = getenv("TRAIN_LLAMA_TEST_LONG_DOCUMENT"); // for tests: segments of short documents
    int64_t long_document = few != NULL ? max_i64(2 * cp, strtoll(few, NULL, 10)) : device_long_document(cp, c->H / hp, gpu);
    return sequence_shard_make_packed(S, hp, cp, h, cp_rank, multiple, long_document);
}

// The setup that the options ask for. Fills kinds (L) with --recompute (auto, and without training: full); kinds must outlive the run.
static inline model_setup run_make(const options *o, const model_config *c, sequence_shard shard, recompute_kind *kinds) {
    model_setup setup;
    memset(&setup, 0, sizeof setup);
    setup.B = o->batch_size;
    setup.shard = shard;
    setup.grad_accum = o->grad_accum;
    setup.mlp_tile = o->mlp_tile;
    setup.loss_tile = o->loss_tile;
    setup.zp = (int)o->zero_params;
    setup.zg = (int)o->zero_grads;
    setup.zo = (int)o->zero_optim;
    setup.cp_allgather = o->cp_comm == CP_COMM_ALLGATHER;
    setup.dkv_bf16 = o->dkv_wire == DKV_WIRE_BF16 && o->cp > 1;
    setup.packed = options_packed(o);
    const char *bytes = getenv("TRAIN_LLAMA_TEST_SLICE_BYTES"); // for tests: short slices of heads in small models
    setup.attention_bytes = bytes != NULL ? strtoll(bytes, NULL, 10) : 0;
    setup.forward_only = o->steps == 0;
    for (int l = 0; l < c->L; l++) kinds[l] = setup.forward_only || o->recompute == RECOMPUTE_AUTO ? RECOMPUTE_FULL : o->recompute;
    setup.kinds = kinds;
    setup.offload_layers = setup.forward_only ? c->L : checkpoint_offloaded(o->offload_activations, c->L);
    setup.offload_states = options_offload(o);
    setup.bf16_moments = o->moments == MOMENTS_BF16;
    setup.exports = setup.forward_only && o->export_to != NULL;
    setup.saves = !setup.forward_only && o->save_every > 0;
    return setup;
}

// What each layer keeps.
static inline void run_print_recompute(const model_config *c, const model_setup *setup) {
    int count[3] = {0, 0, 0}, offloaded = setup->offload_layers;
    for (int l = 0; l < c->L; l++) count[setup->kinds[l]]++;
    if (setup->forward_only) {
        printf("--steps 0 trains nothing, and keeps no activations\n");
        return;
    }
    printf("%d layers keep all%s, %d selective, %d full; %d offloaded", count[0], setup->mlp_tile > 0 ? " but gate and up" : "",
           count[1], count[2], offloaded);
    if (offloaded > 0) printf(", of which %d are copied to the host", checkpoint_leaving(setup->kinds, offloaded));
    printf("\n");
}

// Bytes that a rank's memory budget must hold: the device's; on CPUs, where host and device are one memory, both.
static inline double run_bytes(const arena *device, const arena *host) {
    return (double)(device->peak + (arena_is_cpu(device) ? host->peak : 0));
}

// What a rank may use, in bytes. host: beside the device's; INFINITY on CPUs, where `device` covers both.
typedef struct {
    double device, host;
} memory_room;

// Fills *device and *host with the counts of each.
static inline bool run_in_room(const model_config *c, const grid *g, const model_setup *setup, memory_room room, arena *device,
                               arena *host) {
    model_count(device, host, c, g, setup);
    return run_bytes(device, host) <= room.device && (double)host->peak <= room.host;
}

static inline void run_add_way(char *ways, size_t size, bool helps, const char *way) {
    if (helps) snprintf(ways + strlen(ways), size - strlen(ways), "%s", way);
}

// Whether the run fits into `room`, with full recompute (auto) or the kind asked for. False with a message: what would take less memory.
static inline bool run_check_memory(const options *o, const model_config *c, const grid *g, model_setup *setup, memory_room room,
                                    error_text *error) {
    arena device, host;
    int L = c->L;
    if (run_in_room(c, g, setup, room, &device, &host)) return true;
    double bytes = run_bytes(&device, &host);
    bool cpu = arena_is_cpu(&device), trains = !setup->forward_only;
    char keep_less[128] = "", ways[512] = "";
    run_add_way(keep_less, sizeof keep_less, trains && o->recompute == RECOMPUTE_NONE, "--recompute selective, full or auto, ");
    run_add_way(keep_less, sizeof keep_less, trains && o->recompute == RECOMPUTE_SELECTIVE, "--recompute full or auto, ");
    run_add_way(keep_less, sizeof keep_less, setup->B > 1, "a smaller --batch-size, ");
    if (bytes > room.device) {
        run_add_way(ways, sizeof ways, trains && g->shape.dp > 1, "a larger --cp in place of dp, ");
        bool sharded = g->ranks > 1 && setup->zp == g->ranks; // and so are zg and zo, which are multiples of it
        run_add_way(ways, sizeof ways, !sharded, "--zero-params, --zero-grads and --zero-optim full, ");
        run_add_way(ways, sizeof ways, !cpu && setup->offload_layers < L, "--offload-activations 1, ");
        run_add_way(ways, sizeof ways, !cpu && setup->offload_states < OFFLOAD_OPTIMIZER, "--offload-optimizer, ");
        run_add_way(ways, sizeof ways, !cpu && setup->offload_states < OFFLOAD_GRADIENTS, "--offload-gradients, ");
        run_add_way(ways, sizeof ways, !cpu && setup->offload_states < OFFLOAD_PARAMETERS, "--offload-parameters, ");
        run_add_way(ways, sizeof ways, trains && !setup->bf16_moments && (cpu || setup->offload_states < OFFLOAD_OPTIMIZER),
                    "--moments bf16, ");
        run_add_way(ways, sizeof ways, cpu && setup->saves, "no --save-every, ");
        return error_set(error, "a rank needs %s but may use only %s; "
                                "to reduce it: %smore ranks, %ssmaller --mlp-tile and --loss-tile, a shorter --seq-len "
                                "(--hp auto chooses grid, ZeRO degrees and offload; --dry-run prints the memory by category)",
                         bytes_text(bytes).text, bytes_text(room.device).text, keep_less, ways);
    }
    run_add_way(ways, sizeof ways, trains && setup->offload_layers > 0, "a smaller --offload-activations, ");
    run_add_way(ways, sizeof ways, setup->offload_states >= OFFLOAD_PARAMETERS, "no --offload-parameters, ");
    run_add_way(ways, sizeof ways, setup->offload_states >= OFFLOAD_GRADIENTS, "no --offload-gradients, ");
    run_add_way(ways, sizeof ways, setup->offload_states >= OFFLOAD_OPTIMIZER, "no --offload-optimizer, ");
    run_add_way(ways, sizeof ways, trains && !setup->bf16_moments && (setup->offload_states >= OFFLOAD_OPTIMIZER || setup->saves),
                "--moments bf16, ");
    run_add_way(ways, sizeof ways, setup->saves, "no --save-every, ");
    return error_set(error, "a rank needs %s of host memory but may use only %s; "
                            "to reduce it: %s%smore ranks (--dry-run prints the memory by category%s)",
                     bytes_text((double)host.peak).text, bytes_text(room.host).text, ways,
                     trains && setup->offload_layers > 0 ? keep_less : "",
                     o->host_memory > 0 ? "" : "; --host-memory says that a machine has more");
}
// --recompute auto: gives each layer the fastest kind that fits. First as many layers as fit become selective, then `none` if all did,
// because the attention that selective saves takes more time per byte than the rest. Nothing goes to the host unasked: whether its copies
// are hidden depends on the machines, which the planner knows (--hp auto). The layers that keep more are the last ones: what they keep
// lives shortest. Sets setup->kinds, all full before, which fits.
static inline void run_choose_recompute(const model_config *c, const grid *g, model_setup *setup, memory_room room) {
    arena device, host;
    int L = c->L;
    for (int kind = RECOMPUTE_SELECTIVE; kind >= RECOMPUTE_NONE; kind--) {
        int fits = 0, fails = L + 1; // binary search: layers of this kind, counted from the last layer
        while (fails - fits > 1) {
            int middle = (fits + fails) / 2;
            for (int l = 0; l < L; l++) setup->kinds[l] = l >= L - middle ? (recompute_kind)kind : (recompute_kind)(kind + 1);
            if (run_in_room(c, g, setup, room, &device, &host)) fits = middle;
            else fails = middle;
        }
        for (int l = 0; l < L; l++) setup->kinds[l] = l >= L - fits ? (recompute_kind)kind : (recompute_kind)(kind + 1);
        if (fits < L) return;
    }
}
// Decides what each layer keeps: sets setup->kinds. False with a message when the run does not fit into `room`.
static inline bool run_fit(const options *o, const model_config *c, const grid *g, model_setup *setup, memory_room room,
                           error_text *error) {
    if (!run_check_memory(o, c, g, setup, room, error)) return false;
    if (o->recompute == RECOMPUTE_AUTO && !setup->forward_only) run_choose_recompute(c, g, setup, room);
    return true;
}

// What is asked, by --dry-run and the planner, before there are ranks.
typedef struct {
    const options *o;
    const model_config *c;
    const cluster *machines; // NULL: this build's device
    int ranks;
} run_question;

// The run with sequences of S tokens in place of --seq-len. Fills *g with rank 0's grid, without communicators, which is enough to lay out
// memory; and kinds (L) as run_make does.
static inline model_setup run_at_length(const run_question *q, int64_t S, grid *g, recompute_kind *kinds) {
    memset(g, 0, sizeof *g); // rank 0 is at place 0 of every dimension
    g->shape = run_grid_shape(q->o);
    g->ranks = q->ranks;
    sequence_shard shard = run_shard(q->o, q->c, S, 0, 0, q->machines);
    model_setup setup = run_make(q->o, q->c, shard, kinds);
    setup.element_bytes = q->machines == NULL ? 0 : (size_t)q->machines->element_bytes;
    return setup;
}
// Whether sequences of S tokens fit, with the least memory that --recompute allows.
static inline bool run_holds(const run_question *q, int64_t S, memory_room room, recompute_kind *kinds) {
    arena device, host;
    grid g;
    model_setup setup = run_at_length(q, S, &g, kinds);
    return run_in_room(q->c, &g, &setup, room, &device, &host);
}
// The longest sequence that fits, to within a thousandth, up to 2^40 tokens.
static inline int64_t run_longest(const run_question *q, memory_room room, recompute_kind *kinds) {
    int64_t low = 0, high = 1; // low fits (or is 0), high does not (or is 2^40)
    while (high < ((int64_t)1 << 40) && run_holds(q, high, room, kinds)) {
        low = high;
        high *= 2;
    }
    while (high - low > max_i64(1, low / 1024)) {
        int64_t middle = low + (high - low) / 2;
        if (run_holds(q, middle, room, kinds)) low = middle;
        else high = middle;
    }
    // Where tiles become more and smaller, longer sequences take a little less: --seq-len may fit where shorter ones do not.
    return q->o->seq_len > low && run_holds(q, q->o->seq_len, room, kinds) ? q->o->seq_len : low;
}
// What a rank may use: the memory of its device, or --memory-budget; and its share of the node's host memory. INFINITY where not known.
static inline memory_room run_room(const run_question *q) {
    memory_room room = {INFINITY, INFINITY};
    if (q->machines != NULL) room.device = q->machines->memory;
    if (q->o->memory_budget > 0) room.device = (double)q->o->memory_budget;
    if (q->machines != NULL && q->machines->element_bytes != sizeof(float))
        room.host = q->machines->host_memory / fmin(q->ranks, q->machines->gpus_per_node);
    return room;
}

// A rank's share of the host memory of this machine.
static inline double run_host_memory(const options *o) {
    return (o->host_memory > 0 ? (double)o->host_memory : (double)machine_memory_usable()) / comm_local_ranks();
}

// A budget is a limit of what is asked about, not of what there is: one above a GPU's memory is taken, and said.
static inline void run_note_budget(const run_question *q) {
    if (q->machines == NULL || (double)q->o->memory_budget <= q->machines->memory) return;
    fprintf(stderr, "note: --memory-budget is %.0f GB, and a rank on %s has %.0f GB\n", 1e-9 * (double)q->o->memory_budget,
            q->machines->name, 1e-9 * q->machines->memory);
}

// --dry-run: prints the memory table of a rank (all ranks have the same) and the longest sequence that fits. Needs neither ranks nor
// device. False with a message when the options do not fit.
static inline bool dry_run(const options *o, const model_config *c, const cluster *machines, int ranks, error_text *error) {
    run_question q = {o, c, machines, ranks};
    run_note_budget(&q);
    recompute_kind *kinds = HOST_NEW(recompute_kind, c->L);
    arena device, host;
    grid g;
    model_setup setup = run_at_length(&q, o->seq_len, &g, kinds);
    memory_room room = run_room(&q);
    bool fits = run_fit(o, c, &g, &setup, room, error);
    if (room.device == INFINITY && o->recompute == RECOMPUTE_AUTO && !setup.forward_only)
        printf("neither --memory-budget nor --cluster given: --recompute auto keeps all activations of every layer\n");
    model_count(&device, &host, c, &g, &setup);
    printf("model %s, %.1f M parameters; %lld tokens on dp %d x hp %d x cp %d = %d rank%s, %lld tokens a rank\n", c->name,
           1e-6 * (double)config_parameters(c), (long long)o->seq_len, g.shape.dp, g.shape.hp, g.shape.cp, ranks, plural(ranks),
           (long long)setup.shard.T);
    const char *numbers = (machines != NULL ? machines->element_bytes : sizeof(floatX)) != 2 ? "float"
                          : setup.forward_only && !setup.exports ? "bf16" : "bf16 with float master weights";
    if (machines != NULL) printf("on %s: %.0f GB a rank, %s\n", machines->name, 1e-9 * machines->memory, numbers);
    else printf("on the device of this build: %s (--cluster NAME assumes other machines)\n", numbers);
    printf("recompute: ");
    run_print_recompute(c, &setup);
    memory_print(&device, &host);
    printf("bytes of a rank: device %zu host %zu\n", device.peak, host.peak);
    if (room.device != INFINITY) {
        char beside[128] = "";
        if (room.host != INFINITY) snprintf(beside, sizeof beside, " and %s of host memory", bytes_text(room.host).text);
        printf("longest sequence in %s%s a rank with these options%s: %lld tokens\n", bytes_text(room.device).text, beside,
               o->recompute == RECOMPUTE_AUTO && !setup.forward_only ? " and --recompute full" : "",
               (long long)run_longest(&q, room, kinds));
    }
    free(kinds);
    return fits;
}

#endif
