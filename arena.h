// One arena for device memory and one for host memory. Every buffer of a run is laid out before its first step, by one function
// (model_layout) that also serves --dry-run: an arena without a base hands out no pointers and only counts.
#ifndef ARENA_H
#define ARENA_H

#include "device/comm.h" // defines: comm_reduce_scatter_scratch

typedef enum {
    MEM_PARAMETERS,  // parameter shards and gathered layers
    MEM_GRADIENTS,
    MEM_OPTIMIZER,   // moments and master weights
    MEM_ACTIVATIONS, // kept from forward to backward
    MEM_WORKSPACE,   // live inside one layer
    MEM_RING,        // buffers of SeqAlltoAll and the rings
    MEM_REDUCTION,   // scratch of gather and reduce
    MEM_DATA,        // tokens, labels, angles, losses
    MEM_SAVING,      // copy of the model states while it is written to a file
    MEM_CATEGORIES
} memory_category;

static inline const char *memory_category_name(memory_category c) {
    static const char *const names[MEM_CATEGORIES] = {"parameters",      "gradients",      "optimizer", "activations",      "workspace",
                                                      "attention rings", "ZeRO transfers", "data",      "state being saved"};
    return names[c];
}

typedef struct {
    char *base; // NULL: counting only
    size_t element_bytes; // of floatX, when counting for another device than this build's (2: bf16 of a GPU, 4: float of a CPU); 0: its
    size_t used, peak;
    size_t by_category[MEM_CATEGORIES]; // their sum is the peak: a place that several buffers share counts once, for the first
} arena;

// 256-byte aligned memory for `count` elements of `element` bytes; NULL while counting.
static inline void *arena_take(arena *a, memory_category category, int64_t count, size_t element) {
    size_t bytes = (size_t)round_up(count * (int64_t)element, 256);
    void *p = a->base == NULL ? NULL : a->base + a->used;
    a->used += bytes;
    if (a->used > a->peak) {
        a->by_category[category] += a->used - a->peak;
        a->peak = a->used;
    }
    return p;
}
#define ARENA_TAKE(a, category, type, count) ((type *)arena_take(a, category, (int64_t)(count), sizeof(type)))
// The same for floatX (ARENA_TAKE_X): its size is that of the device that is counted for.
static inline size_t arena_element(const arena *a) { return a->element_bytes > 0 ? a->element_bytes : sizeof(floatX); }
#define ARENA_TAKE_X(a, category, count) ((floatX *)arena_take(a, category, (int64_t)(count), arena_element(a)))

static inline bool arena_counts_other(const arena *a) { return arena_element(a) != sizeof(floatX); }
static inline bool arena_is_cpu(const arena *a) { return arena_element(a) == sizeof(float); } // the device that is counted for
static inline bool arena_counts_cpu(const arena *a) { return arena_counts_other(a) && arena_is_cpu(a); } // only a GPU build does
// comm_reduce_scatter_scratch of the device that is counted for: a GPU's library has memory of its own, a CPU receives the other ranks'
// blocks there (comm_mpi.c).
static inline size_t arena_reduce_scatter_scratch(const arena *a, int ranks, size_t count_per_rank) {
    if (!arena_counts_other(a)) return comm_reduce_scatter_scratch(ranks, count_per_rank);
    return arena_counts_cpu(a) ? (size_t)(ranks - 1) * count_per_rank * sizeof(float) : 0;
}

// A place that several groups of buffers share, one of them live at a time: arena_share between them, arena_share_end after the last.
typedef struct {
    size_t begin, end;
} arena_place;
static inline arena_place arena_share_begin(const arena *a) { return (arena_place){a->used, a->used}; }
static inline void arena_share(arena *a, arena_place *p) {
    if (a->used > p->end) p->end = a->used;
    a->used = p->begin;
}
static inline void arena_share_end(arena *a, const arena_place *p) {
    if (a->used < p->end) a->used = p->end;
}

#endif
