// The time model: how long a step takes on a cluster, by compute and by what transfers add to it.
//
// It is the planner's (planner.h), hence its names. It is LoongTrain's analysis (section 4.5) plus what the paper leaves out: flows that
// share a NIC, overlap that slows compute, the merge of partial results, launches, packing. For LoongTrain's schedule it is tested against
// the paper's tables 2, 4, 5 and 6 (test/test_planner.c). Those cover 32 and 64 GPUs, 128K to 1M tokens, one model size, and w > 1 with
// context-first only; anything else is extrapolation. Units: seconds, bytes, FLOP, bytes/s, FLOP/s; a multiply-add counts 2.
#ifndef TIME_MODEL_H
#define TIME_MODEL_H

#include "attention_2d.cuh" // defines: attention_2d_first_slice
#include "checkpoint.cuh"  // defines: recompute_kind
#include "cluster.h"       // defines: cluster
#include "config.h"        // defines: model_config, config_parameters
#include "device/ops.h"    // defines: head_layout_make
#include "grid.h"          // defines: grid_shape, grid_rank, grid_place_of, grid_context_index
#include "metrics.h"       // defines: flops_*
#include "zero_hybrid.cuh" // defines: zero_offload

// ---- questions and answers ----

typedef enum {
    SCHEDULE_LOONGTRAIN, // that of LoongTrain's tables, for tests against these: waits for dKV of a window after one ring step; dKV in bf16
    SCHEDULE_LATE_DKV,   // ours (double_ring.cuh): dKV of a window hides behind the whole next window; KV and dKV on separate lanes
} planner_schedule;

typedef struct {
    grid_shape shape; // its gpus_per_node and nics_per_node decide how windows are laid out
    bool cp_allgather;
    int zp, zg, zo;
    recompute_kind recompute;
    int less;     // number of layers, the last ones, of the next faster kind (full -> selective -> none): what --recompute auto chooses
    double offload; // --offload-activations: the fraction of the layers, the first ones, whose kept activations go to the host
    zero_offload offload_states; // gradients only with zg = zo = ranks, parameters with zp, too
    // predicted
    double seconds;         // of a step
    double tgs, mfu, hfu;   // tokens per second and GPU; fractions of peak
    double attention, linear, optimizer, launch; // seconds of compute in a step; launch: launches and merging, of attention alone
    double alltoall, ring_inner, ring_outer, gather, reduce, update, offloading; // exposed seconds in a step
    double memory, host_memory; // bytes of a rank's device, of a node's host; from planner_query.fits, 0 without one
} planner_choice;

typedef struct {
    const model_config *model;
    const cluster *machines;
    int64_t S;            // tokens of a sequence
    int64_t attended;     // packed documents: length of a single document in which a token sees as many tokens on average; else S
    int64_t global_batch; // sequences of a step, over all ranks
    int64_t batch;        // sequences of a micro-step of one data-parallel index
    zero_offload offload_states; // every choice has it, or more
    int ranks;
    planner_schedule schedule;
    double dkv_bytes;     // bytes of a dKV element on the wire: 4 (ours), 2 (LoongTrain)
    double moment_bytes;  // of one of a parameter's two moments: 4 (--moments f32), 2 (bf16)
    bool gate_up_again;   // every layer recomputes gate_up, because --mlp-tile is given
    // Whether a choice fits in memory; sets its memory and host_memory. NULL: everything fits.
    bool (*fits)(void *context, planner_choice *choice);
    void *context;
} planner_query;

// The defaults: our schedule, one sequence a micro-step, no packed documents, dKV and moments in float, everything fits. What the pointers
// name must outlive it.
static inline planner_query planner_query_make(const model_config *model, const cluster *machines, int64_t S, int64_t global_batch,
                                               int ranks) {
    return (planner_query){.model = model, .machines = machines, .S = S, .attended = S, .global_batch = global_batch, .batch = 1,
                           .ranks = ranks, .schedule = SCHEDULE_LATE_DKV, .dkv_bytes = 4, .moment_bytes = 4};
}
static inline grid_shape planner_shape(const cluster *c, int dp, int hp, int cp, int w, placement_kind placement) {
    return (grid_shape){dp, hp, cp, w, placement, (int)c->gpus_per_node, (int)c->nics_per_node};
}

// ---- the network: which flows share a NIC, and how long transfers take ----

// After how many ranks their places in nodes and in sequences repeat: the first ones show all.
static inline int planner_period(const cluster *c, const grid_shape *g) {
    int sp = g->hp * g->cp, gpus = (int)c->gpus_per_node;
    return (int)min_i64((int64_t)g->dp * sp, (int64_t)sp * gpus / gcd_i64(sp, gpus));
}

// How many flows of a ring hop share the busiest NIC (send or receive side), counted over all CP groups; 0: no hop leaves a node.
// outer: the hop to the same place of the next window; otherwise the hop to the next place of the window.
static inline int planner_nic_flows(const cluster *c, const grid_shape *g, bool outer) {
    int gpus = (int)c->gpus_per_node, nics = (int)c->nics_per_node, ranks = planner_period(c, g), windows = g->cp / g->w, most = 0;
    int nodes = (int)ceil_div(ranks, gpus);
    int *sent = HOST_NEW(int, nodes * nics), *received = HOST_NEW(int, nodes * nics);
    for (int rank = 0; rank < ranks; rank++) {
        grid_place p = grid_place_of(g, rank);
        int window = outer ? (p.window + 1) % windows : p.window, pos = outer ? p.pos : (p.pos + 1) % g->w;
        int to = grid_rank(g, p.d, p.h, grid_context_index(g, window, pos));
        if (to / gpus == rank / gpus) continue;
        int from_nic = rank / gpus * nics + rank % gpus * nics / gpus, to_nic = to / gpus * nics + to % gpus * nics / gpus;
        most = (int)max_i64(most, max_i64(++sent[from_nic], ++received[to_nic]));
    }
    free(sent);
    free(received);
    return most;
}

// Seconds of a ring hop of `bytes` per rank, that of the slowest flow. flows: from planner_nic_flows.
static inline double planner_hop(const cluster *c, double bytes, int flows) {
    double inside = bytes / c->p2p_rate;
    return c->hop_latency + (flows == 0 ? inside : fmax(inside, bytes * flows / (c->nic_rate * c->nic_efficiency)));
}

// Seconds of a KV and a dKV hop at the same time: inside a node two lanes side by side, until the links are full; a NIC they share.
static inline double planner_hop_both(const cluster *c, double kv, double dkv, int flows) {
    if (flows > 0) return planner_hop(c, kv + dkv, flows);
    return fmax(planner_hop(c, fmax(kv, dkv), 0), (kv + dkv) / c->nvlink_rate);
}

// The fraction of a rank's HP group (itself included) that lies on other nodes; the largest over all ranks.
static inline double planner_hp_outside(const cluster *c, const grid_shape *g) {
    int gpus = (int)c->gpus_per_node, ranks = planner_period(c, g), most = 0;
    for (int rank = 0; rank < ranks; rank++) {
        grid_place p = grid_place_of(g, rank);
        int outside = 0;
        for (int h = 0; h < g->hp; h++) outside += grid_rank(g, p.d, h, p.c) / gpus != rank / gpus;
        most = (int)max_i64(most, outside);
    }
    return (double)most / g->hp;
}

// Seconds of SeqAlltoAll of Q, K, V and out. `bytes`, of (2 + 2 replication) E elements (planner_attention_time), are packed, and the part
// that leaves the node goes through its NICs. A fitted or measured alltoall_pack holds the transfers inside the node; an estimated one may
// be less than these.
static inline double planner_alltoall(const cluster *c, const grid_shape *g, double bytes) {
    if (g->hp == 1) return 0;
    double nic_share = c->gpus_per_node / c->nics_per_node; // GPUs per NIC
    double outside = planner_hp_outside(c, g);
    double inside = (1 - 1.0 / g->hp - outside) / (c->nvlink_rate * c->collective_efficiency); // s per byte
    return c->alltoall_latency + bytes * fmax(c->alltoall_pack, inside) +
           bytes * outside * nic_share * (1 + c->alltoall_congestion * log2(g->hp)) / (c->nic_rate * c->alltoall_efficiency);
}

// Seconds of an all-gather or reduce-scatter in which a rank of a group of `size` sends `bytes`. Members are `stride` ranks apart, so
// min(stride, GPUs of a node) groups leave a node at the same time and share all its NICs: NCCL's ring leaves it once per group. On CPUs
// every rank sends to every other directly (comm_mpi.c).
static inline double planner_collective(const cluster *c, int size, int stride, double bytes) {
    if (size == 1) return 0;
    if ((double)size * stride <= c->gpus_per_node) return bytes / (c->nvlink_rate * c->collective_efficiency);
    double inside = fmax(1, floor(c->gpus_per_node / stride)), leaving = fmin(stride, c->gpus_per_node);
    if (c->ranks_sharing > 0) leaving = c->gpus_per_node * (size - inside) / (size - 1);
    return bytes * leaving / (c->nics_per_node * c->nic_rate * c->collective_efficiency);
}

// Seconds of compute that overlaps with a transfer: the longer of the two, where compute is slowed by the fraction `cost` of the transfer's
// time (all of it on CPUs, where the ranks copy themselves).
static inline double planner_overlap(double compute, double transfer, double cost) { return fmax(compute + cost * transfer, transfer); }

// ---- attention of one layer, one sequence ----

// One pass around the rings, in seconds: the compute of a ring step, hops inside a window (inner) and to the next (outer). Forward: no dKV.
typedef struct {
    int w, windows;
    double step;
    double kv_inner, dkv_inner, both_inner; // both: KV and dKV in flight at the same time
    double kv_outer, dkv_outer, both_outer;
    bool inner_on_nic, outer_on_nic; // hops leave the node; if inner ones do, they share NICs with the outer ones
    double overlap_cost;
} planner_ring;

// LoongTrain section 4.5.3, T_inner_ring = A (w - 1) + B, but with the actual number of outer hops, one less than windows. An outer hop
// hides behind one ring step only, as in the paper's formula; its table 5 agrees, because its code waits for dKV after that step.
static inline double planner_ring_loongtrain(const planner_ring *r) {
    return r->windows * (r->w - 1) * planner_overlap(r->step, r->kv_inner + r->dkv_inner, r->overlap_cost) +
           (r->windows - 1) * planner_overlap(r->step, r->kv_outer + r->dkv_outer, r->overlap_cost) + r->step;
}

// double_ring.cuh, hop by hop. In a window: KV of step i + 1 hides behind step i, dKV of step i behind step i + 1. Between windows: KV of
// the next window and dKV of the previous one hide behind all of this one. At the very end dKV comes home, exposed: an outer, an inner hop.
static inline double planner_ring_late(const planner_ring *r) {
    double window = 0, inner_wire = 0, total = 0;
    for (int i = 0; i < r->w; i++) {
        bool kv = i < r->w - 1, dkv = i > 0;
        double transfer = kv && dkv ? r->both_inner : kv ? r->kv_inner : dkv ? r->dkv_inner : 0;
        window += planner_overlap(r->step, transfer, r->overlap_cost);
        inner_wire += transfer;
    }
    for (int o = 0; o < r->windows; o++) {
        bool kv = o < r->windows - 1, dkv = o > 0;
        double transfer = kv && dkv ? r->both_outer : kv ? r->kv_outer : dkv ? r->dkv_outer : 0;
        double shared = r->inner_on_nic ? inner_wire + transfer : 0;
        total += fmax(planner_overlap(window, transfer, r->overlap_cost), shared);
    }
    return total + (r->windows > 1 ? r->dkv_outer : 0) + (r->w > 1 ? r->dkv_inner : 0);
}
static inline double planner_ring_seconds(const planner_ring *r, planner_schedule schedule) {
    return schedule == SCHEDULE_LOONGTRAIN ? planner_ring_loongtrain(r) : planner_ring_late(r);
}

// Seconds of a pass: compute alone, what inner hops add, what outer hops add. home, a part of what they add: the first hop of dKV home
// (all-gather: the reduce-scatter), which other compute of the layer may hide. nic: how long hops keep a NIC busy, hidden or not.
typedef struct {
    double compute, inner, outer, home, nic;
} planner_pass;
static inline planner_pass planner_pass_split(planner_ring r, planner_schedule schedule) {
    planner_pass p;
    planner_ring hops = r;
    hops.step = 0;
    if (!r.inner_on_nic) hops.kv_inner = hops.dkv_inner = hops.both_inner = 0;
    p.nic = r.inner_on_nic || r.outer_on_nic ? planner_ring_seconds(&hops, schedule) : 0;
    double all = planner_ring_seconds(&r, schedule);
    p.home = schedule == SCHEDULE_LOONGTRAIN ? 0 : r.windows > 1 ? r.dkv_outer : r.w > 1 ? r.dkv_inner : 0;
    r.kv_outer = r.dkv_outer = r.both_outer = 0;
    double without_outer = planner_ring_seconds(&r, schedule);
    p.compute = r.step * r.w * r.windows;
    p.inner = fmax(0, without_outer - p.compute); // fmax: rounding
    p.outer = fmax(0, all - without_outer);
    return p;
}

// --cp-comm allgather: the all-gather of KV hides behind the first ring step, the reduce-scatter of dKV follows the last (double_ring.cuh).
static inline planner_pass planner_pass_gather(const cluster *c, const grid_shape *g, double step, double kv_bytes, double dkv_bytes) {
    int stride = g->placement == PLACEMENT_HEAD_FIRST ? g->hp : 1;
    double gather = planner_collective(c, g->cp, stride, (g->cp - 1) * kv_bytes);
    double scatter = planner_collective(c, g->cp, stride, (g->cp - 1) * dkv_bytes);
    grid_shape ring = *g;
    ring.w = 1;
    int flows = g->cp * stride <= c->gpus_per_node ? planner_nic_flows(c, &ring, true) : 0;
    if (flows > 0) { // groups that would fit into a node, but of which some lie on two
        gather = (g->cp - 1) * planner_hop(c, kv_bytes, flows);
        scatter = (g->cp - 1) * planner_hop(c, dkv_bytes, flows);
    }
    return (planner_pass){.compute = step * g->cp, .outer = planner_overlap(step, gather, c->overlap_cost) - step + scatter,
                          .home = scatter, .nic = flows > 0 || g->cp * stride > c->gpus_per_node ? gather + scatter : 0};
}

typedef struct {
    planner_pass forward, backward;
    double alltoall; // s of SeqAlltoAll of Q, K, V and out in one pass; the backward pass moves as much
    double alltoall_nic; // the same if it keeps NICs busy, else 0
    double launch;   // s of the constant cost of an attention operation, forward and backward together (a third of it forward)
    double kernel_f, kernel_b; // s inside the attention kernels, forward and backward; the rest of compute is merging and launches
    int slices;       // of heads, each with a pass of its own around the ring: attention_2d_first_slice
} planner_attention;

// KV heads of an HP group, copies included: max(Hkv, hp) where one divides the other.
static inline double planner_kv_heads(const model_config *m, int hp) {
    return (double)hp * head_layout_make(hp, m->H, m->Hkv, m->HS).Hkv_local;
}

// One attention operation. E = S H HS / sp elements of Q a rank. FLOP of a ring step: 2 S^2 H HS / (sp cp), causal and balanced (section
// 4.5.2), backward 2.5 times that at an efficiency of its own (the paper takes 3 times the time). With packed documents S^2 becomes S
// attended, taken to be spread evenly over the steps. KV chunk: max(Hkv, hp) / H 2 E elements (section 4.5.3).
static inline planner_attention planner_attention_time(const planner_query *q, const grid_shape *g, bool allgather) {
    const cluster *c = q->machines;
    const model_config *m = q->model;
    planner_attention a;
    double width = (double)m->H * m->HS, sp = (double)g->hp * g->cp, E = (double)q->S * width / sp;
    double replication = planner_kv_heads(m, g->hp) / m->H;
    // Packed documents that are not long (device_long_document): of a chunk of S / (2 cp) tokens, other ranks typically see half a
    // document, and a ring carries no more (double_ring_rows).
    bool all_seen = q->attended >= device_long_document(g->cp, m->H / g->hp, c->element_bytes == 2);
    double seen = all_seen ? 1 : fmin(1, (double)q->attended * g->cp / (double)q->S), travels = allgather ? 1 : seen;
    double kv = 2 * replication * E * c->element_bytes * travels, dkv = 2 * replication * E * q->dkv_bytes * travels;
    double flop = 2 * (double)q->S * (double)q->attended * width / (sp * g->cp);
    head_layout heads = head_layout_make(g->hp, m->H, m->Hkv, m->HS);
    a.slices = 1;
    if (q->schedule == SCHEDULE_LATE_DKV)
        a.slices = heads.Hq / attention_2d_first_slice(q->S / g->cp, heads.Hq, heads.Hkv_local, m->HS, g->cp > 1, ATTENTION_SLICE_BYTES).Hq;
    // Merging and launch of a ring step, a third of it in the forward pass. A rank's own block is never skipped.
    double extra = (c->merge_bytes * E / c->hbm_rate + a.slices * c->step_launch) * fmax(seen, 1.0 / g->cp);
    double slower = (1 + c->softmax_width / m->HS) / (1 + c->softmax_width / 128); // a score's softmax costs the same for any head
    double kernel_f = slower * flop / (c->attention_forward_efficiency * c->peak);
    double kernel_b = slower * 2.5 * flop / (c->attention_backward_efficiency * c->peak);
    a.kernel_f = kernel_f * g->cp;
    a.kernel_b = kernel_b * g->cp;
    a.launch = c->attention_launch;
    a.alltoall = planner_alltoall(c, g, (2 + 2 * replication) * E * c->element_bytes);
    a.alltoall_nic = planner_hp_outside(c, g) > 0 ? a.alltoall : 0;
    if (allgather && g->cp > 1) {
        a.forward = planner_pass_gather(c, g, kernel_f + extra / 3, kv, 0);
        a.backward = planner_pass_gather(c, g, kernel_b + 2 * extra / 3, kv, dkv);
        return a;
    }
    int flows_inner = g->w > 1 ? planner_nic_flows(c, g, false) : 0, flows_outer = g->cp > g->w ? planner_nic_flows(c, g, true) : 0;
    double inner = planner_hop(c, kv, flows_inner), outer = planner_hop(c, kv, flows_outer);
    planner_ring r = {.w = g->w, .windows = g->cp / g->w, .step = kernel_f + extra / 3, .kv_inner = inner, .both_inner = inner,
                      .kv_outer = outer, .both_outer = outer, .inner_on_nic = flows_inner > 0, .outer_on_nic = flows_outer > 0,
                      .overlap_cost = c->overlap_cost};
    a.forward = planner_pass_split(r, q->schedule);
    r.step = kernel_b + 2 * extra / 3;
    r.dkv_inner = planner_hop(c, dkv, flows_inner);
    r.dkv_outer = planner_hop(c, dkv, flows_outer);
    r.both_inner = planner_hop_both(c, kv, dkv, flows_inner);
    r.both_outer = planner_hop_both(c, kv, dkv, flows_outer);
    a.backward = planner_pass_split(r, q->schedule);
    return a;
}

// ---- a whole step ----

// Bytes of activations that a rank keeps of one layer and sequence (checkpoint.cuh), T local tokens.
static inline double planner_kept_bytes(const model_config *m, const cluster *c, int hp, recompute_kind kind, double T,
                                        bool gate_up_again) {
    double width = (double)m->H * m->HS, kv = 2 * planner_kv_heads(m, hp) * m->HS;
    if (kind == RECOMPUTE_FULL) return c->element_bytes * T * m->D;
    if (kind == RECOMPUTE_SELECTIVE) return T * (c->element_bytes * (m->D + width) + 4.0 * m->H);
    return T * (c->element_bytes * (2.0 * m->D + (hp > 1 ? 3 : 2) * width + kv + (gate_up_again ? 0 : 2.0 * m->F)) + 4.0 * m->H);
}

// The sum over the first `layers` layers of a choice.
static inline double planner_kept_sum(const model_config *m, const cluster *c, const planner_choice *p, int layers, double T,
                                      bool gate_up_again) {
    int less = (int)max_i64(0, layers - (m->L - p->less)); // of these layers
    double kept = (layers - less) * planner_kept_bytes(m, c, p->shape.hp, p->recompute, T, gate_up_again);
    return less == 0 ? kept : kept + less * planner_kept_bytes(m, c, p->shape.hp, (recompute_kind)(p->recompute - 1), T, gate_up_again);
}

// FLOP per token in projections, MLP and head. again: share of the layers that are recomputed, in part or in full. LoongTrain's runs
// recompute every projection of a layer: 8 L N_layer + 6 D V.
static inline double planner_linear_flop(const planner_query *q, double again) {
    const model_config *m = q->model;
    double matrices = flops_matrices_per_token(m);
    if (q->schedule == SCHEDULE_LOONGTRAIN) return 3 * matrices + (matrices - 2.0 * m->D * m->V);
    double gate_up_again = q->gate_up_again ? 1 : again; // as flops_hardware_per_token counts: w_down is not recomputed
    return 3 * matrices + m->L * (again * flops_projections_per_token(m) + gate_up_again * flops_gate_up_per_token(m));
}

// The share of all parameters that lies in the embedding and in `layers` layers.
static inline double planner_share_of_ends(const planner_query *q, double layers) {
    double N = (double)config_parameters(q->model), table = (double)q->model->V * q->model->D;
    return (table + fmin(1, layers / q->model->L) * (N - (q->model->tied ? 1 : 2) * table)) / N;
}
// Seconds by which transfers of `transfer` seconds lengthen a pass that computes for `compute` seconds. `end` of the transfer's seconds lie
// before the pass begins to compute or after it has ended, where nothing hides them.
static inline double planner_exposed(const planner_query *q, double compute, double transfer, double end) {
    return planner_overlap(compute, transfer - end, q->machines->overlap_cost) - compute + end;
}

// Fills p->gather, p->reduce and p->update of our own schedule: what is exposed in a step of `micro` micro-steps, in whose passes `forward`
// and `backward` seconds hide transfers. Returns what of it is exposed in forward passes. The bytes are those of zero_hybrid.cuh. Gathers
// and reductions hide behind a pass, the update behind the first forward pass of a step. Nothing hides what the step's first layers wait
// for, nor what the last ones leave.
static inline double planner_zero_time(const planner_query *q, double micro, double forward, double backward, planner_choice *p) {
    const cluster *c = q->machines;
    double N = (double)config_parameters(q->model);
    int replicas = q->ranks / p->zo;
    double gather = planner_collective(c, p->zp, 1, c->element_bytes * N * (p->zp - 1) / p->zp);
    double reduce_always = planner_collective(c, p->zg, 1, 4 * N * (p->zg - 1) / p->zg);
    double reduce_last = planner_collective(c, p->zo / p->zg, p->zg, 4 * N / p->zg * (1 - (double)p->zg / p->zo)) +
                         planner_collective(c, replicas, p->zo, 2 * 4 * N / p->zo * (replicas - 1) / replicas);
    double first_gather = planner_share_of_ends(q, 1) * gather;
    double left = planner_share_of_ends(q, 1) * reduce_always + planner_share_of_ends(q, 2) * reduce_last; // after the last backward pass
    double gathered = planner_exposed(q, backward, gather, 0);
    double first_forward = planner_exposed(q, forward, gather, first_gather);
    double later_forward = (micro - 1) * planner_exposed(q, forward, gather, 0);
    p->gather = first_forward + later_forward + micro * gathered;
    p->reduce = (micro - 1) * (planner_exposed(q, backward, gather + reduce_always, 0) - gathered) +
                planner_exposed(q, backward, gather + reduce_always + reduce_last, left) - gathered;
    double update = planner_collective(c, p->zo / p->zp, p->zp, c->element_bytes * N / p->zp * (1 - (double)p->zp / p->zo));
    double first_update = planner_share_of_ends(q, p->zp == 1 ? 1 : 2) * update;
    p->update = planner_exposed(q, forward, gather + update, first_gather + first_update) - first_forward;
    return first_forward + later_forward + p->update;
}

// Fills p->offloading: the copies to and from the host that a step of `micro` micro-steps exposes, whose passes take `forward` and
// `backward` seconds without them; p->optimizer is filled.
static inline void planner_host_time(const planner_query *q, double micro, double forward, double backward, planner_choice *p) {
    const model_config *m = q->model;
    const cluster *c = q->machines;
    double N = (double)config_parameters(m), L = m->L, T = (double)q->S / ((double)p->shape.hp * p->shape.cp), rate = c->host_link_rate;
    bool grads = p->offload_states >= OFFLOAD_GRADIENTS, params = p->offload_states >= OFFLOAD_PARAMETERS;
    double gradients = grads ? 4 * N / p->zg * (2 - 1 / micro) / rate : 0; // leave, and come back before the next micro-step's are added
    double parameters = params ? c->element_bytes * N / p->zp / rate : 0;  // come for each pass
    // Moments and master weights, 12 bytes (bf16 moments: 8; float parameters: 4 less), come and go. Gradients come with them, new
    // parameters go with them. The first forward pass hides this, but for the embedding's and that of the first two layers (zp > 1: three).
    double states = 2 * q->moment_bytes + (c->element_bytes == 4 ? 0 : 4);
    double in = states + (grads ? 4 : 0), out = states + (params ? c->element_bytes : 0);
    double copies = p->offload_states >= OFFLOAD_OPTIMIZER ? N / p->zo * (in + out) / rate : 0;
    double first = planner_share_of_ends(q, p->zp == 1 ? 2 : 3);
    // What a layer keeps is hidden by the offloaded layers alone, because these share few slots.
    int offloaded = checkpoint_offloaded(p->offload, m->L);
    int slots = checkpoint_slots((recompute_kind)(p->recompute - (offloaded > m->L - p->less)));
    p->offloading = first * fmax(0, copies - p->optimizer);
    for (int kept = 0; kept < 2; kept++) {
        int layers = kept ? m->L - offloaded : offloaded;
        if (layers == 0) continue;
        double activations = kept ? 0 : (double)q->batch * planner_kept_sum(m, c, p, layers, T, q->gate_up_again) *
                                            fmax(0, 1 - (double)slots / layers) / rate;
        activations *= L / layers; // as if all layers were like these
        double forward_copied = planner_overlap(forward, activations + parameters, c->overlap_cost);
        double backward_copied = planner_overlap(backward, activations + gradients + parameters, c->overlap_cost);
        double updated =
            copies > 0 ? planner_overlap(forward, activations + parameters + (1 - first) * copies, c->overlap_cost) - forward_copied : 0;
        p->offloading += layers / L * (micro * (forward_copied - forward + backward_copied - backward) + updated);
    }
}

// Fills the predicted fields of a choice whose shape, ZeRO degrees, recompute and offload are set. a: planner_attention_time of its shape.
//     step = sequences (L (forward + backward + 2 alltoall + again) + linear) + exposed ZeRO and offload + optimizer
//     again = full: forward + alltoall; selective (`part`): alltoall (attention is kept; Q, K, V are exchanged again), which our schedule
//     hides behind the matrices; none: 0
static inline void planner_step_time(const planner_query *q, const planner_attention *a, planner_choice *p) {
    const model_config *m = q->model;
    const cluster *c = q->machines;
    const grid_shape *g = &p->shape;
    double N = (double)config_parameters(m), T = (double)q->S / ((double)g->hp * g->cp);
    double B = (double)q->batch, micro = (double)q->global_batch / g->dp / B, L = m->L, operations = micro * B * L; // of attention
    double less = p->less / L, again = p->recompute == RECOMPUTE_FULL ? 1 - less : 0; // shares of the layers
    double part = p->recompute == RECOMPUTE_FULL ? less : p->recompute == RECOMPUTE_SELECTIVE ? 1 - less : 0;
    double linear = B * T * planner_linear_flop(q, again + part) / (c->linear_efficiency * c->peak) +
                    N * c->weight_bytes / c->hbm_rate; // of a micro-step
    p->attention = operations * ((1 + again) * a->kernel_f + a->kernel_b);
    p->launch = operations * ((1 + again) * (a->forward.compute + a->launch / 3) + a->backward.compute + 2 * a->launch / 3) - p->attention;
    p->linear = micro * linear;
    double matrices = linear * 2 / 3 / (B * L); // s, of a layer's backward pass
    double alltoall_part = q->schedule == SCHEDULE_LATE_DKV ? planner_overlap(matrices, a->alltoall, c->overlap_cost) - matrices
                                                            : a->alltoall;
    if (q->schedule == SCHEDULE_LATE_DKV) // that of a micro-step's last sequence alone is hidden
        alltoall_part = ((B - 1) * a->alltoall + alltoall_part) / B;
    p->alltoall = operations * ((2 + again) * a->alltoall + part * alltoall_part);
    p->ring_inner = operations * ((1 + again) * a->forward.inner + a->backward.inner);
    p->ring_outer = operations * ((1 + again) * a->forward.outer + a->backward.outer);
    // The gradient of wo hides the first hop home of dKV, an outer one if there is one, for the last slice of heads of the last sequence
    // of a micro-step.
    double wo = B * T * 2 * m->D * m->H * m->HS / (c->linear_efficiency * c->peak), home = a->backward.home / a->slices;
    double hidden = micro * L * (wo + home - planner_overlap(wo, home, c->overlap_cost));
    double *ring = p->cp_allgather || g->w < g->cp ? &p->ring_outer : &p->ring_inner;
    *ring = fmax(0, *ring - hidden); // fmax: rounding
    p->gather = p->reduce = p->update = p->offloading = p->optimizer = 0;
    if (q->schedule == SCHEDULE_LOONGTRAIN) {
        // Gradients out, parameters in, both 2 bytes and exposed, spread over the node's NICs: 4 N bytes. (Table 2: ZeRO-1, of which a
        // part is hidden, section 6.2; tables 3 and 6 do not say.)
        p->update = planner_collective(c, q->ranks, 1, 2 * c->element_bytes * N);
    } else {
        // What a pass takes without ZeRO and copies, and how long it keeps the NICs busy, where ZeRO's transfers would wait.
        double forward = B * L * (a->forward.compute + a->forward.inner + a->forward.outer + a->launch / 3 + a->alltoall) + linear / 3;
        double backward = (p->attention + p->launch + p->linear + p->alltoall + p->ring_inner + p->ring_outer) / micro - forward;
        double forward_nic = B * L * (a->forward.nic + a->alltoall_nic);
        double backward_nic = B * L * (a->backward.nic + (1 + part) * a->alltoall_nic) + again * forward_nic;
        // fmax: products hide two transfers at once
        double waits = planner_zero_time(q, micro, forward - forward_nic, fmax(0, backward - backward_nic), p);
        forward += waits / micro;
        backward += (p->gather + p->reduce + p->update - waits) / micro;
        // AdamW reads gradient, m, v, master and writes m, v, master and the parameter: 3 floats, 4 moments and one element. (On CPUs,
        // rounding bf16 moments takes longer than their bytes save, which is not counted.)
        p->optimizer = N / p->zo * (12 + 4 * q->moment_bytes + c->element_bytes) / (c->hbm_rate * c->optimizer_efficiency);
        planner_host_time(q, micro, forward, backward, p);
    }
    p->seconds = p->attention + p->launch + p->linear + p->optimizer + p->alltoall + p->ring_inner + p->ring_outer + p->gather + p->reduce +
                 p->update + p->offloading;
    p->tgs = (double)q->S * (double)q->global_batch / (q->ranks * p->seconds);
    p->mfu = p->tgs * flops_model_per_token(m, q->attended) / c->peak;
    p->hfu = p->tgs * (planner_linear_flop(q, again + part) + L * (3.5 + again) * flops_attention_per_token(m, q->attended)) / c->peak;
}

#endif
