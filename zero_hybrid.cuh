// Hybrid ZeRO (LoongTrain section 5.1, after AMSP): parameters, gradients and optimizer states are each sharded over zp, zg, zo ranks,
// independently, over data *and* sequence parallel ranks together: 1 = Full-Replica, all ranks = Full-Sharding, else Partial.
//
// Model states are divided into units (embedding, each layer, head); a unit is one flat vector, padded so that every rank count divides it.
// zp divides zg divides zo divides the number of ranks, so shards are nested: a rank's optimizer piece lies inside its gradient shard,
// which lies inside its parameter shard. Groups are runs of consecutive ranks: keep Partial degrees inside a node.
//
//   forward, backward   the next unit (forward u+1, backward u-1) is gathered in the group of zp while unit u computes
//   backward            the gradients of unit u advance one stage while each of the units u-1, u-2, ... computes (what the backward pass
//                       leaves of a micro-step that is not the last one, while the layers of the next forward pass compute):
//                         1  reduce-scatter in the group of zg             every micro-step, when zg > 1
//                         2  reduce-scatter of the shard to zo pieces      last micro-step, when zo > zg
//                         3  all-reduce across the replicas of the piece   last micro-step, as reduce-scatter + all-gather
//   update              AdamW on the rank's piece. The next forward pass all-gathers the new parameters into the parameter shards (group of
//                       zo / zp), those of unit u+1 (zp > 1: u+2) while unit u computes
//
// Model states on the host, so that the device holds them only while it works on them:
//   optimizer states    come to the device and go in parts, through two staging buffers. AdamW on unit u runs in the next forward pass,
//                       aside, while unit u-2 (zp = 1) or u-3 computes; only that of the first units is exposed
//   gradients, too      if zg = zo = ranks: stage 1 is followed by a copy of the shard to the host, while the next unit computes; what
//                       earlier micro-steps left there has come back before
//   parameters, too     if zp = zg = zo = ranks: a shard comes to the device before its gather, while the unit before the one that hides
//                       the gather computes; with one rank it comes in place of the gather. The update takes the new ones to the host
//
// Bytes a rank sends per step, n = padded elements of a unit, s = sizeof(floatX), R = ranks / zo, A = micro-steps of a step:
//   gather   n s (zp-1)/zp  times: embedding A, head A (tied: 1 each), all layers together L + max(L-2, 0) (2A-1): where the passes turn
//                           from forward to backward and back, two layers are still in their slots
//   reduce   4 n (A (zg-1)/zg + (1/zg) (1 - zg/zo) + 2 (1/zo) (R-1)/R)
//   update   n s (1/zp) (1 - zp/zo)
// All sums are float, in a fixed order (comm.h); replicas get the same bits because each sum is computed once and then gathered.
#ifndef ZERO_HYBRID_CUH
#define ZERO_HYBRID_CUH

#include "arena.h"      // defines: arena, ARENA_TAKE, ARENA_TAKE_X
#include "device/ops.h" // defines: op_adamw, op_add_float, op_sum_squares
#include "progress.h"   // defines: progress_*
#include "trace.h"      // defines: transfer_finish, trace_*

enum { ZERO_MAX_TENSORS = 8, ZERO_SLOTS = 4 };
enum { REDUCE_SHARD, REDUCE_PIECE, REDUCE_REPLICAS, REDUCE_BACK, // 1, 2, and the two halves of 3 above
       REDUCE_HOST, ZERO_STAGES };                               // offloaded gradients: the copy to the host
typedef enum { OFFLOAD_NONE, OFFLOAD_OPTIMIZER, OFFLOAD_GRADIENTS, OFFLOAD_PARAMETERS } zero_offload; // each with those before it
enum { ZERO_PARTS = 16 }; // offloaded optimizer states: the largest piece goes through the two staging buffers in this many parts

// A tensor inside a unit.
typedef struct {
    const char *name;
    int64_t offset, count; // elements
    bool decay;            // weight decay applies (matrices), or not (norm weights)
    bool product;          // the whole gradient is one product of matrices: where there is nothing to add to yet, it is stored
} zero_tensor;

typedef struct {
    int64_t count; // elements, padded
    zero_tensor tensors[ZERO_MAX_TENSORS];
    int tensor_count;
    int slot; // where it is gathered and its gradient is summed. Units that are in use at different times may share one
} zero_unit;

static inline void zero_unit_add(zero_unit *u, const char *name, int64_t count, bool decay, bool product) {
    if (u->tensor_count == ZERO_MAX_TENSORS) comm_abort("%s: a unit has at most %d tensors", name, ZERO_MAX_TENSORS);
    u->tensors[u->tensor_count++] = (zero_tensor){name, u->count, count, decay, product};
    u->count = round_up(u->count + count, 64); // tensors are aligned to 128 bytes at least
}

// The part of a tensor that lies in elements [begin, end) of its unit: elements [*from, *to) of the unit. False: none of it does.
static inline bool zero_span(const zero_tensor *t, int64_t begin, int64_t end, int64_t *from, int64_t *to) {
    *from = max_i64(begin, t->offset);
    *to = min_i64(end, t->offset + t->count);
    return *from < *to;
}

typedef struct {
    int unit, at;   // at: in zero_hybrid.route; -1: before it
    int64_t ticket; // of REDUCE_HOST
} zero_reduction;

// A part of this rank's optimizer piece of a unit: elements [begin, begin + count) of the piece.
typedef struct {
    int unit;
    int64_t begin, count;
} zero_part;

typedef struct {
    int ranks, rank;
    int zp, zg, zo;
    int param_piece, grad_piece, optim_piece; // this rank's place in zp, zg, zo pieces of a unit
    int unit_count;
    zero_unit *units; // the model's
    int64_t largest;  // elements of the largest unit
    rounding_rule rounding; // of stored parameters: `stochastic` and `seed`, set after zero_describe; all zero: round to nearest even
    comm *gather;              // the zp ranks that together hold a unit's parameters
    comm *reduce[ZERO_STAGES];
    comm *spread;              // the zo / zp ranks whose optimizer pieces make up this rank's parameter shard
    comm *pieces;              // the zo ranks that together hold every optimizer piece once
    // per unit, from the arena; on the host when offloaded
    floatX **params; // (count / zp)
    float **grads;   // (count / zg)
    void **m, **v;   // moments, (count / zo) of moment_bytes each
    float **master;  // (count / zo); NULL when floatX is float, or parameters are only read
    size_t moment_bytes; // sizeof(float), or sizeof(bf16): then rounded as op_adamw says, by rounding's seed
    // gathered units (zp > 1, or offloaded) and gradients before their reduce-scatter (zg > 1) or their copy to the host
    floatX *param_slot[ZERO_SLOTS];
    int param_slot_unit[ZERO_SLOTS]; // -1: empty
    int gathering;                   // the unit whose gather (zp = 1: copy to the device) is in flight, or -1: one at a time
    float *grad_slot[ZERO_SLOTS];
    int grad_slot_unit[ZERO_SLOTS];
    bool *grads_begun; // per unit: has a gradient in this step (used when a unit's gradient stays in its place: zg = 1, not offloaded)
    double *squares;   // (unit_count) device: sums of squares of this rank's pieces of the gradient
    int route[ZERO_STAGES], route_every, route_count; // the stages of a gradient; the first route_every of them in every micro-step
    zero_reduction reducing[ZERO_STAGES + 1];         // units on this route, oldest first
    int reducing_count;
    bool first_micro, last_micro;
    // An update is AdamW on this rank's pieces, and the all-gather that spreads these over the parameter shards. Both go through the units
    // in order, in the next forward pass; these numbers say how many units are done with each of its stages (unit_count: all).
    int adamw_started, adamw_finished;     // offloaded states only: AdamW is issued, aside; compute has waited for it
    int spreads_started, spreads_finished; // zo > zp only: the all-gather is started; is finished
    adamw_args adamw;
    float *arrived;             // (largest / zg) before it is added: one micro-step's gradient shard; offloaded: what is on the host
    void *scratch[ZERO_STAGES]; // of the reductions
    zero_offload offload;
    int64_t staging_count;     // elements of a part
    char *staging[2];          // device: m, v, master, gradient of one part, in this order, as far as offloaded; each (staging_count)
    floatX *staging_params[2]; // device: its parameters, (staging_count)
    float *leaving[2];        // device: (largest / zg) gradient shards of two units, from their reduction to their copy to the host; zg > 1
    int64_t arriving;         // ticket of the copy into `arrived`
    floatX *shard_slot[ZERO_SLOTS];   // device: (count / zp) parameter shards on their way from host to gather; one rank: param_slot
    int shard_slot_unit[ZERO_SLOTS];  // whose shard is there or coming; -1: none
    int64_t shard_ticket[ZERO_SLOTS]; // of its copy
    device_copier *to_device, *to_host;
} zero_hybrid;

// Sets the degrees and this rank's pieces. Needs zp | zg | zo | ranks (options.h checks). Pads the units; they stay the caller's.
static inline void zero_describe(zero_hybrid *z, int ranks, int rank, int zp, int zg, int zo, zero_unit *units, int unit_count) {
    memset(z, 0, sizeof *z);
    z->ranks = ranks; z->rank = rank;
    z->zp = zp; z->zg = zg; z->zo = zo;
    // each index refines the one before, so that optimizer pieces lie inside gradient shards, and these inside parameter shards
    z->param_piece = rank % zp;
    z->grad_piece = z->param_piece * (zg / zp) + rank / zp % (zg / zp);
    z->optim_piece = z->grad_piece * (zo / zg) + rank / zg % (zo / zg);
    z->units = units;
    z->unit_count = z->spreads_started = z->spreads_finished = z->adamw_started = z->adamw_finished = unit_count;
    for (int u = 0; u < unit_count; u++) {
        units[u].count = round_up(units[u].count, (int64_t)ranks * 16);
        z->largest = max_i64(z->largest, units[u].count);
    }
    for (int s = 0; s < ZERO_SLOTS; s++) z->param_slot_unit[s] = z->shard_slot_unit[s] = z->grad_slot_unit[s] = -1;
    z->gathering = -1;
}

// A rank's share of a unit when it is divided among all ranks: the replicas of an optimizer piece divide it further among themselves. Units
// are padded, so both divisions are exact. Begin and length in elements of the unit.
static inline int64_t zero_share(const zero_hybrid *z, int unit) { return z->units[unit].count / z->ranks; }
static inline int64_t zero_share_begin(const zero_hybrid *z, int unit) {
    return z->optim_piece * (z->units[unit].count / z->zo) + z->rank / z->zo * zero_share(z, unit);
}
static inline int64_t zero_shares(const zero_hybrid *z) { // of all units
    int64_t n = 0;
    for (int u = 0; u < z->unit_count; u++) n += zero_share(z, u);
    return n;
}

static inline float *zero_optim_grads(const zero_hybrid *z, int unit) { // this rank's piece, (count / zo); on the host when offloaded
    int64_t n = z->units[unit].count;
    return z->grads[unit] + (z->optim_piece * (n / z->zo) - z->grad_piece * (n / z->zg));
}

// The slot's size: the largest unit that uses it.
static inline int64_t zero_slot_count(const zero_hybrid *z, int slot) {
    int64_t n = 0;
    for (int u = 0; u < z->unit_count; u++)
        if (z->units[u].slot == slot) n = max_i64(n, z->units[u].count);
    return n;
}

// Takes all memory: from `device`, and from `host` for what is offloaded. trains: false: neither gradients nor moments (NULL). masters:
// false: no master weights either (NULL): parameters are only read. accumulates: more than one micro-step in a step. offload: gradients
// need zg = zo = ranks, parameters zp, too (options.h checks). The per-unit tables are host memory of z (zero_free).
static inline void zero_layout(zero_hybrid *z, arena *device, arena *host, bool trains, bool masters, bool bf16_moments, bool accumulates,
                               zero_offload offload) {
    int units = z->unit_count;
    masters = masters && arena_element(device) != sizeof(float);
    bool offload_grads = trains && offload >= OFFLOAD_GRADIENTS, offload_params = offload >= OFFLOAD_PARAMETERS;
    bool grad_slots = trains && (z->zg > 1 || offload_grads), param_slots = z->zp > 1 || offload_params;
    bool staged = offload >= OFFLOAD_OPTIMIZER && (trains || masters); // otherwise there are no optimizer states
    z->offload = offload;
    z->params = HOST_NEW(floatX *, units);
    z->grads = HOST_NEW(float *, units);
    z->moment_bytes = bf16_moments ? sizeof(bf16) : sizeof(float);
    z->m = HOST_NEW(void *, units);
    z->v = HOST_NEW(void *, units);
    z->master = HOST_NEW(float *, units);
    z->grads_begun = HOST_NEW(bool, units);
    arena *states = offload >= OFFLOAD_OPTIMIZER ? host : device;
    for (int u = 0; u < units; u++) {
        int64_t n = z->units[u].count;
        z->params[u] = ARENA_TAKE_X(offload_params ? host : device, MEM_PARAMETERS, n / z->zp);
        z->grads[u] = trains ? ARENA_TAKE(offload_grads ? host : device, MEM_GRADIENTS, float, n / z->zg) : NULL;
        z->m[u] = trains ? arena_take(states, MEM_OPTIMIZER, n / z->zo, z->moment_bytes) : NULL;
        z->v[u] = trains ? arena_take(states, MEM_OPTIMIZER, n / z->zo, z->moment_bytes) : NULL;
        z->master[u] = masters ? ARENA_TAKE(states, MEM_OPTIMIZER, float, n / z->zo) : NULL;
    }
    z->squares = ARENA_TAKE(device, MEM_GRADIENTS, double, units);
    z->staging_count = round_up(ceil_div(z->largest / z->zo, ZERO_PARTS), 64);
    size_t staging_bytes = 2 * z->moment_bytes + sizeof(float) * (size_t)(masters + offload_grads); // of an element
    for (int i = 0; i < 2; i++) {
        z->staging[i] = staged ? (char *)arena_take(device, MEM_OPTIMIZER, z->staging_count, staging_bytes) : NULL;
        z->staging_params[i] = staged && offload_params ? ARENA_TAKE_X(device, MEM_OPTIMIZER, z->staging_count) : NULL;
        z->leaving[i] = offload_grads && z->zg > 1 ? ARENA_TAKE(device, MEM_GRADIENTS, float, z->largest / z->zg) : NULL;
    }
    for (int s = 0; s < ZERO_SLOTS; s++) {
        int64_t n = zero_slot_count(z, s);
        z->param_slot[s] = param_slots ? ARENA_TAKE_X(device, MEM_PARAMETERS, n) : NULL;
        z->shard_slot[s] = offload_params && z->zp > 1 ? ARENA_TAKE_X(device, MEM_PARAMETERS, n / z->zp) : z->param_slot[s];
        z->grad_slot[s] = grad_slots ? ARENA_TAKE(device, MEM_GRADIENTS, float, n) : NULL;
    }
    z->arrived = accumulates && grad_slots ? ARENA_TAKE(device, MEM_REDUCTION, float, z->largest / z->zg) : NULL;
    if (!trains) return;
    if (z->zg > 1) z->route[z->route_count++] = REDUCE_SHARD;
    if (offload_grads) z->route[z->route_count++] = REDUCE_HOST;
    z->route_every = z->route_count; // the others, across groups, only after the last micro-step
    if (z->zo > z->zg) z->route[z->route_count++] = REDUCE_PIECE;
    if (z->ranks > z->zo) z->route[z->route_count++] = REDUCE_REPLICAS;
    if (z->ranks > z->zo) z->route[z->route_count++] = REDUCE_BACK;
    const int sizes[] = {z->zg, z->zo / z->zg, z->ranks / z->zo}; // of the groups of the three reductions
    int64_t n = z->largest;
    for (int stage = REDUCE_SHARD; stage <= REDUCE_REPLICAS; stage++) {
        n /= sizes[stage];
        z->scratch[stage] = arena_take(device, MEM_REDUCTION, 1, arena_reduce_scatter_scratch(device, sizes[stage], (size_t)n));
    }
}

// ---- communicators ----

// The optimizer pieces hold new parameters: every unit is to be all-gathered again.
static inline void zero_spread_due(zero_hybrid *z) {
    if (z->zo > z->zp) z->spreads_started = z->spreads_finished = 0;
}
// Creates the communicators over `all` (the ranks given to zero_describe). Every rank calls.
static inline void zero_connect(zero_hybrid *z, comm *all) {
    int within = z->zo / z->zp;
    z->gather = comm_split(all, z->rank / z->zp, z->param_piece, COMM_PARAM_GATHER);
    z->reduce[REDUCE_SHARD] = comm_split(all, z->rank / z->zg, z->grad_piece, COMM_GRAD_REDUCE);
    z->reduce[REDUCE_PIECE] = comm_split(all, z->rank / z->zo * z->zg + z->grad_piece, z->optim_piece, COMM_GRAD_REDUCE);
    z->reduce[REDUCE_REPLICAS] = comm_split(all, z->optim_piece, z->rank, COMM_GRAD_REDUCE);
    z->reduce[REDUCE_BACK] = z->reduce[REDUCE_REPLICAS]; // in order: a unit goes back before the sum of the next one starts (zero_advance)
    z->spread = comm_split(all, z->rank / z->zo * z->zp + z->param_piece, z->optim_piece % within, COMM_PARAM_UPDATE);
    z->pieces = comm_split(all, z->rank / z->zo, z->optim_piece, COMM_CONTROL);
    zero_spread_due(z); // the first step gathers parameters that are already there, so that every step sends the same
    if (z->offload != OFFLOAD_NONE) {
        z->to_device = device_copier_new();
        z->to_host = device_copier_new();
    }
}
// Releases the tables, communicators and copiers. The memory stays the arenas', the units the caller's. Every rank calls.
static inline void zero_free(zero_hybrid *z) {
    if (z->gather != NULL) {
        for (; z->spreads_finished < z->spreads_started; z->spreads_finished++) transfer_finish(z->spread);
        comm_free(z->gather);
        for (int s = 0; s < REDUCE_BACK; s++) comm_free(z->reduce[s]);
        comm_free(z->spread);
        comm_free(z->pieces);
    }
    if (z->to_device != NULL) device_copier_free(z->to_device);
    if (z->to_host != NULL) device_copier_free(z->to_host);
    free(z->params);
    free(z->grads);
    free(z->m);
    free(z->v);
    free(z->master);
    free(z->grads_begun);
}

// ---- update: AdamW ----
// The passes after a step start and finish its update, unit by unit. So it comes before what they call.

// How elements first, first + 1, ... of a tensor are rounded after `step`: the same way on every grid, whichever rank holds them.
static inline rounding_rule zero_rounding(const zero_hybrid *z, int unit, int tensor, int64_t first, int64_t step) {
    rounding_rule r = z->rounding;
    r.tensor = (uint64_t)(unit * ZERO_MAX_TENSORS + tensor);
    r.first = first;
    r.step = step;
    return r;
}

// The part after *p, which begins as {first unit, 0, 0}: the next unit's piece or, where states are offloaded, as much of a piece as a
// staging buffer holds. False: *p was the last one.
static inline bool zero_next_part(const zero_hybrid *z, zero_part *p) {
    p->begin += p->count;
    if (p->count > 0 && p->begin == z->units[p->unit].count / z->zo) {
        p->unit++;
        p->begin = 0;
    }
    if (p->unit == z->unit_count) return false;
    p->count = z->units[p->unit].count / z->zo - p->begin;
    if (z->offload != OFFLOAD_NONE) p->count = min_i64(p->count, z->staging_count);
    return true;
}

// Where the parameters of a part are in this rank's shard.
static inline floatX *zero_part_params(const zero_hybrid *z, zero_part p) {
    int64_t n = z->units[p.unit].count;
    return z->params[p.unit] + (z->optim_piece * (n / z->zo) + p.begin - z->param_piece * (n / z->zp));
}

// AdamW on a part, tensor by tensor: weight decay differs. params, m, v, master, grads: of the part.
static inline void zero_adamw_part(zero_hybrid *z, zero_part p, floatX *params, void *m, void *v, float *master, const float *grads) {
    const zero_unit *u = &z->units[p.unit];
    adamw_args args = z->adamw;
    int64_t begin = z->optim_piece * (u->count / z->zo) + p.begin;
    float decay = args.weight_decay;
    args.bf16_moments = z->moment_bytes == sizeof(bf16);
    for (int t = 0; t < u->tensor_count; t++) {
        int64_t from, to;
        if (!zero_span(&u->tensors[t], begin, begin + p.count, &from, &to)) continue;
        int64_t at = from - begin;
        size_t moment = z->moment_bytes * (size_t)at;
        args.weight_decay = u->tensors[t].decay ? decay : 0;
        args.rounding = zero_rounding(z, p.unit, t, from - u->tensors[t].offset, args.step);
        op_adamw(params + at, master != NULL ? master + at : NULL, (char *)m + moment, (char *)v + moment, grads + at, to - from, args);
    }
}

// Starts a copy between host and device; returns its ticket.
static inline int64_t zero_copy(zero_hybrid *z, bool to_device, void *host, void *device, size_t bytes) {
    return to_device ? device_copy_start(z->to_device, device, host, bytes) : device_copy_start(z->to_host, host, device, bytes);
}
// Starts copying what is offloaded of a part from the host to staging buffer i, or back what the update changes. Gradients only
// come. Parameters only go, but where they are their own master weights they come, too. Returns the last ticket: a lane finishes in order.
static inline int64_t zero_staging_copy(zero_hybrid *z, zero_part p, int i, bool to_device) {
    bool grads = z->offload >= OFFLOAD_GRADIENTS && to_device;
    bool params = z->offload >= OFFLOAD_PARAMETERS && (!to_device || z->master[p.unit] == NULL);
    void *host[4] = {z->m[p.unit], z->v[p.unit], z->master[p.unit], grads ? z->grads[p.unit] : NULL};
    char *at = z->staging[i];
    int64_t ticket = 0;
    for (int k = 0; k < 4; k++) {
        size_t element = k < 2 ? z->moment_bytes : sizeof(float);
        if (host[k] == NULL) continue;
        ticket = zero_copy(z, to_device, (char *)host[k] + element * (size_t)p.begin, at, element * (size_t)p.count);
        at += element * (size_t)z->staging_count;
    }
    return params ? zero_copy(z, to_device, zero_part_params(z, p), z->staging_params[i], sizeof(floatX) * (size_t)p.count) : ticket;
}
// AdamW on a part that is in staging buffer i.
static inline void zero_adamw_staged(zero_hybrid *z, zero_part p, int i) {
    size_t moment = z->moment_bytes * (size_t)z->staging_count;
    char *m = z->staging[i], *v = m + moment;
    float *floats = (float *)(void *)(v + moment), *master = z->master[p.unit] != NULL ? floats : NULL;
    const float *grads = z->offload < OFFLOAD_GRADIENTS ? zero_optim_grads(z, p.unit) + p.begin
                         : master != NULL               ? floats + z->staging_count
                                                        : floats;
    zero_adamw_part(z, p, z->offload >= OFFLOAD_PARAMETERS ? z->staging_params[i] : zero_part_params(z, p), m, v, master, grads);
}

// Offloaded states: starts AdamW on the units before `units` that are due. It runs aside, part by part: while one part is updated, the one
// before it goes back to the host and the next one comes.
static inline void zero_adamw_start(zero_hybrid *z, int units) {
    units = (int)min_i64(units, z->unit_count);
    if (z->adamw_started >= units) return;
    int64_t arriving[2] = {0, 0}, leaving[2] = {0, 0};
    zero_part part = {z->adamw_started, 0, 0};
    device_aside_begin();
    zero_next_part(z, &part);
    arriving[0] = zero_staging_copy(z, part, 0, true);
    for (int now = 0; part.unit < units; now = 1 - now) {
        double began = trace_now();
        zero_part next = part;
        if (zero_next_part(z, &next) && next.unit < units) {
            if (leaving[1 - now] != 0) device_copy_finish(z->to_host, leaving[1 - now]);
            arriving[1 - now] = zero_staging_copy(z, next, 1 - now, true);
        }
        device_copy_finish(z->to_device, arriving[now]);
        zero_adamw_staged(z, part, now);
        leaving[now] = zero_staging_copy(z, part, now, false);
        trace_compute("AdamW", part.unit, began);
        part = next;
    }
    for (int i = 0; i < 2; i++)
        if (leaving[i] != 0) device_copy_finish(z->to_host, leaving[i]);
    device_aside_end();
    z->adamw_started = units;
}
// Compute issued from here on sees the update of the first `units` units, also on the host.
static inline void zero_adamw_finish(zero_hybrid *z, int units) {
    if (z->adamw_finished >= min_i64(units, z->unit_count)) return;
    zero_adamw_start(z, units);
    device_aside_wait();
    z->adamw_finished = z->adamw_started;
}

// ---- update: spreading new parameters ----

// Starts the all-gathers of the first `units` units, as far as they are not started yet. Callers ask only for the units needed next, to
// keep other transfers from waiting behind them: NCCL starts transfers in the order in which they were issued on all lanes, and one lane
// runs one at a time.
static inline void zero_spread_start(zero_hybrid *z, int units) {
    zero_adamw_finish(z, units);
    for (; z->spreads_started < min_i64(units, z->unit_count); z->spreads_started++) {
        int64_t piece = z->units[z->spreads_started].count / z->zo;
        floatX *params = z->params[z->spreads_started];
        trace_transfer(z->spread, "update parameters", z->spreads_started);
        comm_allgather_start(z->spread, params + comm_rank(z->spread) * piece, params, sizeof(floatX) * (size_t)piece);
    }
}
static inline void zero_spread_finish(zero_hybrid *z, int units) {
    zero_adamw_finish(z, units);
    for (; z->spreads_finished < min_i64(units, z->unit_count); z->spreads_finished++) {
        zero_spread_start(z, z->spreads_finished + 1);
        transfer_finish(z->spread);
    }
}

// ---- parameters ----

// Offloaded parameters: starts copying a unit's shard to the device, unless it is there or on its way.
static inline void zero_shard_start(zero_hybrid *z, int unit) {
    int slot = z->units[unit].slot;
    if (z->shard_slot_unit[slot] == unit) return;
    z->shard_slot_unit[slot] = unit;
    size_t bytes = sizeof(floatX) * (size_t)(z->units[unit].count / z->zp);
    z->shard_ticket[slot] = device_copy_start(z->to_device, z->shard_slot[slot], z->params[unit], bytes);
}

// Waits for the gather in flight, if there is one.
static inline void zero_gather_finish(zero_hybrid *z) {
    if (z->gathering < 0) return;
    if (z->zp > 1) transfer_finish(z->gather);
    else device_copy_finish(z->to_device, z->shard_ticket[z->units[z->gathering].slot]);
    z->gathering = -1;
}
// Starts bringing a unit to its slot, unless it is there or on its way. Gives up the unit that was there.
static inline void zero_slot_start(zero_hybrid *z, int unit) {
    bool offloaded = z->offload >= OFFLOAD_PARAMETERS;
    int slot = z->units[unit].slot;
    if (z->param_slot_unit[slot] == unit) return;
    zero_gather_finish(z); // of another unit: callers have waited for it
    zero_spread_finish(z, unit + 1);
    z->param_slot_unit[slot] = z->gathering = unit;
    if (offloaded) zero_shard_start(z, unit);
    if (z->zp == 1) return;
    if (offloaded) device_copy_finish(z->to_device, z->shard_ticket[slot]);
    trace_transfer(z->gather, "gather parameters", unit);
    comm_allgather_start(z->gather, offloaded ? z->shard_slot[slot] : z->params[unit], z->param_slot[slot],
                         sizeof(floatX) * (size_t)(z->units[unit].count / z->zp));
}
// Starts what a unit needs before zero_params: its update, and its gather unless this rank holds all of it on the device. next: the unit
// that will be fetched after this one, or -1: where parameters are offloaded, its shard starts coming to the device. zp > 1: also the
// spread of the unit after it, which must be over when the next call starts that unit's gather.
static inline void zero_fetch(zero_hybrid *z, int unit, int next) {
    zero_spread_start(z, z->zp == 1 ? unit + 1 : unit + 2);
    if (z->zp > 1 || z->offload >= OFFLOAD_PARAMETERS) zero_slot_start(z, unit);
    if (z->zp > 1 && z->offload >= OFFLOAD_PARAMETERS && next >= 0) zero_shard_start(z, next);
    zero_adamw_start(z, z->adamw_finished + 1); // of the next call's unit: what computes now hides it
}

// The whole parameters of a unit, (count). Fetches them if zero_fetch has not; waits for the gather.
static inline const floatX *zero_params(zero_hybrid *z, int unit) {
    if (z->zp == 1 && z->offload < OFFLOAD_PARAMETERS) {
        zero_spread_finish(z, unit + 1);
        return z->params[unit];
    }
    zero_fetch(z, unit, -1);
    if (z->gathering == unit) zero_gather_finish(z);
    return z->param_slot[z->units[unit].slot];
}

// ---- gradients ----

// Offloaded gradients: starts bringing back what earlier micro-steps left on the host of a unit's shard.
static inline void zero_bring_back(zero_hybrid *z, int unit) {
    z->arriving = device_copy_start(z->to_device, z->arrived, z->grads[unit], sizeof(float) * (size_t)(z->units[unit].count / z->zg));
}
// A unit's shard of this micro-step is complete on the device: adds what earlier ones left on the host, and starts its copy there. Returns
// the ticket.
static inline int64_t zero_leave(zero_hybrid *z, int unit) {
    float *shard = z->zg == 1 ? z->grad_slot[z->units[unit].slot] : z->leaving[unit % 2];
    int64_t n = z->units[unit].count / z->zg;
    if (!z->first_micro) {
        device_copy_finish(z->to_device, z->arriving);
        op_add_float(shard, z->arrived, n);
    }
    // Units leave from the last to the first.
    if (unit > 0 && !z->first_micro) zero_bring_back(z, unit - 1);
    if (unit == 0 && !z->last_micro) zero_bring_back(z, z->unit_count - 1); // for the next micro-step
    if (z->last_micro) op_sum_squares(&z->squares[unit], shard, n);
    return device_copy_start(z->to_host, z->grads[unit], shard, sizeof(float) * (size_t)n);
}

// Starts the next stage of a unit. Returns false when none is left for this micro-step.
static inline bool zero_stage_start(zero_hybrid *z, zero_reduction *r) {
    if (++r->at == (z->last_micro ? z->route_count : z->route_every)) return false;
    const zero_unit *unit = &z->units[r->unit];
    int64_t shard = unit->count / z->zg, piece = unit->count / z->zo, share = zero_share(z, r->unit);
    float *grads = z->grads[r->unit], *own = zero_optim_grads(z, r->unit), *own_share = own + comm_rank(z->reduce[REDUCE_REPLICAS]) * share;
    float *reduced = z->offload >= OFFLOAD_GRADIENTS ? z->leaving[r->unit % 2] : z->first_micro ? grads : z->arrived;
    int stage = z->route[r->at];
    comm *group = z->reduce[stage];
    void *scratch = z->scratch[stage];
    if (stage != REDUCE_HOST) trace_transfer(group, "reduce gradients", r->unit);
    switch (stage) {
    case REDUCE_SHARD: comm_reduce_scatter_start(group, z->grad_slot[unit->slot], reduced, (size_t)shard, scratch); break;
    case REDUCE_HOST: r->ticket = zero_leave(z, r->unit); break;
    case REDUCE_PIECE: comm_reduce_scatter_start(group, grads, own, (size_t)piece, scratch); break;
    case REDUCE_REPLICAS: comm_reduce_scatter_start(group, own, own_share, (size_t)share, scratch); break;
    case REDUCE_BACK: comm_allgather_start(group, own_share, own, sizeof(float) * (size_t)share); break;
    }
    return true;
}
// Finishes a unit's current stage.
static inline void zero_stage_finish(zero_hybrid *z, const zero_reduction *r) {
    const zero_unit *unit = &z->units[r->unit];
    int stage = z->route[r->at];
    if (stage == REDUCE_HOST) device_copy_finish(z->to_host, r->ticket);
    else transfer_finish(z->reduce[stage]);
    if (stage == REDUCE_SHARD && !z->first_micro && z->offload < OFFLOAD_GRADIENTS)
        op_add_float(z->grads[r->unit], z->arrived, unit->count / z->zg);
    if (r->at == 0) z->grad_slot_unit[unit->slot] = -1; // if the gradient was in a slot, the first stage has taken it out
}

// Finishes the current stage of each unit in flight, oldest unit first, and starts its next one. Units enter one at a time and advance
// together, so no two are ever in the same stage.
static inline void zero_advance(zero_hybrid *z) {
    int kept = 0;
    for (int i = 0; i < z->reducing_count; i++) {
        zero_reduction r = z->reducing[i];
        if (r.at >= 0) zero_stage_finish(z, &r);
        if (zero_stage_start(z, &r)) z->reducing[kept++] = r;
    }
    z->reducing_count = kept;
}

static inline void zero_begin_grads(const zero_unit *unit, float *grads) { // zeros, except where a product will be stored
    int64_t from = 0;
    for (int t = 0; t < unit->tensor_count; t++) {
        const zero_tensor *tensor = &unit->tensors[t];
        if (!tensor->product) continue;
        device_zero(grads + from, sizeof(float) * (size_t)(tensor->offset - from));
        from = tensor->offset + tensor->count;
    }
    device_zero(grads + from, sizeof(float) * (size_t)(unit->count - from));
}
// The buffer to which the backward pass adds the whole gradient of a unit, (count) float. *adds: false at the unit's first use in a step
// (zg = 1) or micro-step (zg > 1, or offloaded): then tensors with `product` set are uninitialized, and the caller stores into them; the
// others are zero.
static inline float *zero_grads(zero_hybrid *z, int unit, bool *adds) {
    if (z->zg == 1 && z->offload < OFFLOAD_GRADIENTS) {
        *adds = z->grads_begun[unit];
        if (!*adds) zero_begin_grads(&z->units[unit], z->grads[unit]);
        z->grads_begun[unit] = true;
        return z->grads[unit];
    }
    *adds = true;
    int slot = z->units[unit].slot;
    if (z->grad_slot_unit[slot] == unit) return z->grad_slot[slot];
    while (z->grad_slot_unit[slot] >= 0) zero_advance(z); // another unit's gradient is still leaving
    z->grad_slot_unit[slot] = unit;
    *adds = false;
    zero_begin_grads(&z->units[unit], z->grad_slot[slot]);
    return z->grad_slot[slot];
}

// The unit's gradient of this micro-step is complete: the units in flight advance one stage, and this one enters its first. The embedding's
// is the last one of a backward pass: unless the step ends with it, nothing advances before the next forward pass, which hides what is
// left.
static inline void zero_grads_done(zero_hybrid *z, int unit) {
    z->reducing[z->reducing_count++] = (zero_reduction){unit, -1, 0};
    if (unit > 0 || z->last_micro) zero_advance(z);
}

// Drains the stages. Call after the last micro-step's backward pass: all gradients are then summed over all ranks in their shards; compute
// issued from here on, and the host once it has waited for the device, see them there.
static inline void zero_grads_finish(zero_hybrid *z) {
    while (z->reducing_count > 0) zero_advance(z);
}

// Call before a micro-step's first zero_grads, after its forward pass: `first`, `last` of the step. Finishes what the forward pass has not
// hidden of the micro-step before. Gradients are stored in the first one, and leave the groups of zg after the last.
static inline void zero_begin_backward(zero_hybrid *z, bool first, bool last) {
    zero_grads_finish(z);
    z->first_micro = first;
    z->last_micro = last;
    if (first) memset(z->grads_begun, 0, sizeof(bool) * (size_t)z->unit_count);
}

// A copy on the host of this rank's piece of a unit's gradient, (count / zo) floats; the caller frees.
static inline float *zero_read_grads(const zero_hybrid *z, int unit) {
    int64_t n = z->units[unit].count / z->zo;
    float *to = HOST_NEW(float, n);
    if (z->offload < OFFLOAD_GRADIENTS) {
        device_to_host(to, zero_optim_grads(z, unit), sizeof(float) * (size_t)n);
    } else {
        device_synchronize(); // for their copies
        memcpy(to, zero_optim_grads(z, unit), sizeof(float) * (size_t)n);
    }
    return to;
}

// ---- update: a step ----

// The norm of the whole gradient, each element counted once whatever the shards; the same bits on every rank.
static inline double zero_grad_norm(zero_hybrid *z) {
    double sum = 0, *squares = HOST_NEW(double, z->unit_count);
    for (int u = 0; u < z->unit_count && z->offload < OFFLOAD_GRADIENTS; u++) // offloaded: counted when they left (zero_leave)
        op_sum_squares(&z->squares[u], zero_optim_grads(z, u), z->units[u].count / z->zo);
    device_to_host(squares, z->squares, sizeof(double) * (size_t)z->unit_count);
    for (int u = 0; u < z->unit_count; u++) sum += squares[u];
    free(squares);
    comm_sum_double(z->pieces, &sum, 1);
    return sqrt(sum);
}

// One optimizer step on all units. Afterwards zero_params gives the new parameters, bit-equal across replicas. Offloaded, a unit's step is
// done when its parameters are first needed, in any case by a whole forward pass or zero_settle: until then its gradients must stay.
static inline void zero_update(zero_hybrid *z, adamw_args args) {
    zero_spread_finish(z, z->unit_count); // what is left of the previous step, unless a forward pass has finished it
    z->adamw = args;
    if (z->offload != OFFLOAD_NONE) z->adamw_started = z->adamw_finished = 0;
    for (zero_part p = {0, 0, 0}; z->offload == OFFLOAD_NONE && zero_next_part(z, &p);) {
        double began = trace_now();
        zero_adamw_part(z, p, zero_part_params(z, p), z->m[p.unit], z->v[p.unit], z->master[p.unit], zero_optim_grads(z, p.unit));
        trace_compute("AdamW", p.unit, began);
    }
    zero_spread_due(z);
    for (int s = 0; s < ZERO_SLOTS; s++) z->param_slot_unit[s] = z->shard_slot_unit[s] = -1; // copies are out of date
}
// Finishes the update and waits for it: the host may then read this rank's pieces, and its own memory where they are offloaded.
static inline void zero_settle(zero_hybrid *z) {
    zero_adamw_finish(z, z->unit_count);
    device_synchronize();
}

// ---- initial values ----

// Random parameters from (seed, unit, tensor, element): the same numbers on every grid. Tensors without weight decay, which are norm
// weights, are 1; matrices are Gaussian with sigma, those that write into the residual stream ("wo", "w_down") with residual_sigma.
static inline void zero_init(zero_hybrid *z, uint64_t seed, float sigma, float residual_sigma) {
    progress_note note = progress_start("drawing parameters");
    for (int u = 0; u < z->unit_count; u++) {
        const zero_unit *unit = &z->units[u];
        int64_t shard = unit->count / z->zp, begin = z->param_piece * shard, end = begin + shard;
        size_t bytes = sizeof(floatX) * (size_t)shard;
        bool offloaded = z->offload >= OFFLOAD_PARAMETERS;
        floatX *params = offloaded ? z->shard_slot[unit->slot] : z->params[u];
        device_zero(params, bytes);
        for (int t = 0; t < unit->tensor_count; t++) {
            const zero_tensor *tensor = &unit->tensors[t];
            int64_t from, to;
            if (!zero_span(tensor, begin, end, &from, &to)) continue;
            bool residual = strcmp(tensor->name, "wo") == 0 || strcmp(tensor->name, "w_down") == 0;
            float s = !tensor->decay ? 0 : residual ? residual_sigma : sigma;
            op_init_normal(params + (from - begin), seed, (uint64_t)(u * ZERO_MAX_TENSORS + t), from - tensor->offset, to - from, s);
        }
        if (offloaded) device_to_host(z->params[u], params, bytes);
        progress_show(&note, u + 1, z->unit_count);
    }
}

static inline void zero_reset_moments(zero_hybrid *z) {
    for (int u = 0; u < z->unit_count && z->m[u] != NULL; u++) { // NULL: no training
        size_t bytes = z->moment_bytes * (size_t)(z->units[u].count / z->zo);
        for (int i = 0; i < 2; i++) {
            void *moment = i == 0 ? z->m[u] : z->v[u];
            if (z->offload != OFFLOAD_NONE) memset(moment, 0, bytes); // a host slab
            else device_zero(moment, bytes);
        }
    }
}
// Sets moments to zero and master weights to the parameters. Call after the parameters are set and before the first update.
static inline void zero_reset_states(zero_hybrid *z) {
    zero_reset_moments(z);
    for (zero_part p = {0, 0, 0}; zero_next_part(z, &p) && z->master[p.unit] != NULL;) {
        float *master = z->master[p.unit], *staged = (float *)(void *)z->staging[0]; // whose bytes are enough for a part's master weights
        floatX *own = zero_part_params(z, p);
        if (z->offload >= OFFLOAD_PARAMETERS) {
            device_from_host(z->staging_params[0], own, sizeof(floatX) * (size_t)p.count);
            own = z->staging_params[0];
        }
        op_cast_to_float(z->offload != OFFLOAD_NONE ? staged : master, own, p.count);
        if (z->offload != OFFLOAD_NONE) device_to_host(master + p.begin, staged, sizeof(float) * (size_t)p.count);
    }
}

#endif
