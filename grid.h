// The rank grid (design: LoongTrain sections 4.1, 4.3, 4.4): a rank's place in the data-, head- and context-parallel dimensions, the
// windows of the double ring, and the communicators.
#ifndef GRID_H
#define GRID_H

#include "device/comm.h"

typedef enum { PLACEMENT_HEAD_FIRST, PLACEMENT_CONTEXT_FIRST } placement_kind;
static inline const char *placement_name(placement_kind kind) {
    static const char *const names[] = {"head-first", "context-first"};
    return names[kind];
}

// The shape of the grid: plain numbers, the same on every rank.
typedef struct {
    int dp, hp, cp;           // degrees; dp hp cp = number of ranks
    int w;                    // inner ring: CP ranks per window; divides cp
    placement_kind placement;
    int gpus_per_node, nics_per_node; // used to lay out the windows; 0 = not known (contiguous windows)
} grid_shape;

// A rank's place. sp = hp cp ranks work on one sequence.
typedef struct {
    int d, h, c;     // data-, head- and context-parallel index
    int window, pos; // window of the outer ring, place in the inner ring
} grid_place;

// Head-first: h varies fastest with the rank, then c, then d. Context-first: c fastest, then h, then d. A bijection.
static inline int grid_rank(const grid_shape *g, int d, int h, int c) {
    int in_sequence = g->placement == PLACEMENT_HEAD_FIRST ? c * g->hp + h : h * g->cp + c;
    return d * g->hp * g->cp + in_sequence;
}

// Windows of one rank, and one window of all, are the same single ring.
static inline bool grid_one_ring(const grid_shape *g) { return g->w == 1 || g->w == g->cp; }

// How many windows are interleaved. The outer hop from the last window of a node to the next node should leave through as many NICs as
// the window has ranks. On nodes where several GPUs share a NIC, neighbours must then be in different windows (LoongTrain's code
// interleaves windows of less than 8; its paper has contiguous ones). Interleaved windows stay inside a node; where that is impossible,
// windows are contiguous (1).
static inline int grid_weave(const grid_shape *g) {
    if (g->gpus_per_node <= 0 || g->nics_per_node <= 0 || g->w == 1) return 1;
    int gpus_per_nic = (int)ceil_div(g->gpus_per_node, g->nics_per_node);
    int ranks_apart = g->placement == PLACEMENT_HEAD_FIRST ? g->hp : 1; // between neighbours of a CP group
    for (int weave = gpus_per_nic / ranks_apart; weave > 1; weave--)
        if (g->cp % (g->w * weave) == 0 && g->gpus_per_node % (g->w * weave * ranks_apart) == 0) return weave;
    return 1;
}

// (window, pos) <-> c. Blocks of w * weave neighbours hold `weave` windows; member p of window j of a block is neighbour p * weave + j.
static inline int grid_context_index(const grid_shape *g, int window, int pos) {
    int weave = grid_weave(g);
    return window / weave * (g->w * weave) + pos * weave + window % weave;
}

static inline grid_place grid_place_of(const grid_shape *g, int rank) {
    grid_place p;
    int sp = g->hp * g->cp, in_sequence = rank % sp;
    p.d = rank / sp;
    p.h = g->placement == PLACEMENT_HEAD_FIRST ? in_sequence % g->hp : in_sequence / g->cp;
    p.c = g->placement == PLACEMENT_HEAD_FIRST ? in_sequence / g->hp : in_sequence % g->cp;
    int weave = grid_weave(g), block = g->w * weave;
    p.window = p.c / block * weave + p.c % block % weave;
    p.pos = p.c % block / weave;
    return p;
}

// A rank's grid: place and communicators. KV and dKV, inner and outer, are separate lanes: on one, a transfer would wait for that before.
typedef struct {
    grid_shape shape;
    grid_place place;
    int rank, ranks;
    comm *all;      // every rank; control
    comm *hp_group; // same (d, c), ordered by h: SeqAlltoAll
    comm *kv_inner, *dkv_inner; // same window, ordered by pos
    comm *kv_outer, *dkv_outer; // same pos in every window, ordered by window
    comm *kv_gather, *dkv_scatter; // the CP group, ordered by c: in place of the four rings with --cp-comm allgather
} grid;

// Creates the grid over all ranks of `all` (kept, not owned); needs dp hp cp = its size. Creates either the rings' communicators or those
// of `allgather`: on a GPU a ring's takes up to 0.4 GB, dkv_scatter 0.8. Every rank calls; grid_free releases.
static inline void grid_create(grid *g, grid_shape shape, bool allgather, comm *all) {
    memset(g, 0, sizeof *g);
    g->shape = shape;
    g->all = all;
    g->rank = comm_rank(all);
    g->ranks = comm_size(all);
    g->place = grid_place_of(&shape, g->rank);
    grid_place p = g->place;
    int cp_group = p.d * shape.hp + p.h, windows = shape.cp / shape.w; // all ranks create communicators in this one order
    g->hp_group = comm_split(all, p.d * shape.cp + p.c, p.h, COMM_SEQ_ALLTOALL);
    if (allgather) {
        g->kv_gather = comm_split(all, cp_group, p.c, COMM_KV_GATHER);
        g->dkv_scatter = comm_split(all, cp_group, p.c, COMM_DKV_SCATTER);
        return;
    }
    g->kv_inner = comm_split(all, cp_group * windows + p.window, p.pos, COMM_KV_INNER);
    g->dkv_inner = comm_split(all, cp_group * windows + p.window, p.pos, COMM_DKV_INNER);
    g->kv_outer = comm_split(all, cp_group * shape.w + p.pos, p.window, COMM_KV_OUTER);
    g->dkv_outer = comm_split(all, cp_group * shape.w + p.pos, p.window, COMM_DKV_OUTER);
}
static inline void grid_free(grid *g) {
    comm_free(g->hp_group);
    comm_free(g->kv_inner);
    comm_free(g->dkv_inner);
    comm_free(g->kv_outer);
    comm_free(g->dkv_outer);
    comm_free(g->kv_gather);
    comm_free(g->dkv_scatter);
}

#endif
