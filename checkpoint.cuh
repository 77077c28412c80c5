// What a layer keeps from its forward to its backward pass, and where.
//     none       every tensor below
//     full       x_in; the rest is recomputed, including the attention ring
//     selective  x_in, out_ring and lse (Selective Checkpoint++, LoongTrain section 5.2, after DistFlashAttn 3.3): the attention kernel and
//                its ring never run twice; Q, K, V are projected and exchanged again
// The kind is chosen per layer. What a layer does not keep lives in one working set that all such layers share.
// The first layers can be offloaded: a layer's kept tensors are in one of few device slots while it computes, are copied to the host while
// the next layers compute, and come back one layer ahead of the backward pass. The last offloaded layers, one for each slot, are never
// copied: the backward pass finds them there, and a copy could still be reading what it overwrites with gradients.
#ifndef CHECKPOINT_CUH
#define CHECKPOINT_CUH

#include "arena.h"
#include "device/device.h" // defines: device_copier, device_copy_*

typedef enum { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL, RECOMPUTE_AUTO } recompute_kind; // fastest first

// Shapes: rows = batch x local tokens; attention rows are those after SeqAlltoAll.
typedef struct {
    floatX *x_in;     // (rows, D)
    floatX *out_ring; // (rows, H HS) as the ring leaves it, before SeqAlltoAll: per sequence (Tc, Hq, HS)
    float *lse;       // (rows, H): per sequence (Hq, Tc)
    floatX *q, *kv;   // per sequence (Tc, Hq, HS) and (Tc, 2 Hkv', HS)
    floatX *out;      // (rows, H, HS); with hp = 1 the same memory as out_ring
    floatX *x_mid;    // (rows, D)
    floatX *gate_up;  // (rows, 2F), or NULL: recomputed tile by tile
} layer_activations;

typedef struct {
    int64_t x, out, lse, kv, gate_up; // elements of the tensors above; gate_up = 0: never kept
    bool out_is_ring;                 // hp = 1
} activation_sizes;

enum { CHECKPOINT_SLOTS = 3 };

// How many slots the offloaded layers use in turn; least: checkpoint_least of them. Layer l writes its output into the slot of layer l + 1,
// which the copy of layer l - 1 (two slots) or l - 2 (three) must have left: it has the time of an attention forward pass, or of a layer
// more. The former is enough for x_in and out_ring of sequences from some 48K tokens on (their copy takes 4 D bytes a row at 25 GB/s,
// attention 2 S D FLOP a row at 600 TFLOP/s), but not for all tensors.
static inline int checkpoint_slots(recompute_kind least) { return least == RECOMPUTE_NONE ? CHECKPOINT_SLOTS : 2; }

// The kind that recomputes least, and so keeps most, of the offloaded layers.
static inline recompute_kind checkpoint_least(const recompute_kind *kinds, int offloaded) {
    recompute_kind least = RECOMPUTE_FULL;
    for (int l = 0; l < offloaded; l++)
        if (kinds[l] < least) least = kinds[l];
    return least;
}
// How many of the offloaded layers are copied to the host: all but the last ones, one for each slot.
static inline int checkpoint_leaving(const recompute_kind *kinds, int offloaded) {
    return (int)max_i64(0, offloaded - checkpoint_slots(checkpoint_least(kinds, offloaded)));
}
// The layers that a fraction of them is: --offload-activations.
static inline int checkpoint_offloaded(double fraction, int L) { return (int)(fraction * L + 0.5); }

typedef struct {
    int offloaded;    // so many of the layers, the first ones, compute in slots
    int slot_count;   // checkpoint_slots; at most `offloaded`
    recompute_kind most; // the kind that recomputes most, and so keeps least, of all layers
    const recompute_kind *kinds;   // (L), the caller's
    layer_activations *kept;       // (L) resident layers: their memory
    layer_activations slots[CHECKPOINT_SLOTS];
    layer_activations work;        // the shared working set; x_mid, and with hp > 1 out, are the caller's
    size_t *block_bytes;           // (L) bytes of an offloaded layer's kept tensors, contiguous from x_in
    char **host;                   // (L) where an offloaded layer is copied to; NULL: never copied
    int slot_layer[CHECKPOINT_SLOTS];       // whose tensors a slot holds, or held last; -1: none yet
    int64_t slot_ticket[CHECKPOINT_SLOTS];  // copy in flight, 0: none
    bool slot_leaving[CHECKPOINT_SLOTS];    // that copy goes to the host; false: it comes from there
    device_copier *to_host, *to_device;
} checkpoint_store;

// Takes the tensors that `kind` keeps from the arena, contiguous; the others are NULL.
static inline layer_activations checkpoint_take(arena *a, activation_sizes n, recompute_kind kind) {
    layer_activations t;
    memset(&t, 0, sizeof t);
    t.x_in = ARENA_TAKE_X(a, MEM_ACTIVATIONS, n.x);
    if (kind == RECOMPUTE_FULL) return t;
    t.out_ring = ARENA_TAKE_X(a, MEM_ACTIVATIONS, n.out);
    t.lse = ARENA_TAKE(a, MEM_ACTIVATIONS, float, n.lse);
    if (kind == RECOMPUTE_SELECTIVE) return t;
    t.q = ARENA_TAKE_X(a, MEM_ACTIVATIONS, n.out);
    t.kv = ARENA_TAKE_X(a, MEM_ACTIVATIONS, n.kv);
    t.out = n.out_is_ring ? t.out_ring : ARENA_TAKE_X(a, MEM_ACTIVATIONS, n.out);
    t.x_mid = ARENA_TAKE_X(a, MEM_ACTIVATIONS, n.x);
    t.gate_up = n.gate_up > 0 ? ARENA_TAKE_X(a, MEM_ACTIVATIONS, n.gate_up) : NULL;
    return t;
}

// Takes all buffers except work.x_mid and work.out. kinds (L): must outlive s. offloaded: so many of the layers, the first ones. trains
// false: there will be no backward pass, so offloaded layers are lost when others need their slots. The tables are host memory of s
// (checkpoint_free).
static inline void checkpoint_layout(checkpoint_store *s, arena *device, arena *host, int L, const recompute_kind *kinds, int offloaded,
                                     bool trains, activation_sizes n) {
    memset(s, 0, sizeof *s);
    s->offloaded = offloaded;
    s->kinds = kinds;
    s->kept = HOST_NEW(layer_activations, L);
    s->block_bytes = HOST_NEW(size_t, L);
    s->host = HOST_NEW(char *, L);
    for (int l = 0; l < L; l++)
        if (kinds[l] > s->most) s->most = kinds[l];
    recompute_kind least = checkpoint_least(kinds, offloaded);
    s->slot_count = (int)min_i64(offloaded, checkpoint_slots(least));
    for (int l = 0; l < L; l++) {
        if (l >= offloaded) {
            s->kept[l] = checkpoint_take(device, n, kinds[l]);
            continue;
        }
        arena count;
        memset(&count, 0, sizeof count);
        count.element_bytes = device->element_bytes;
        checkpoint_take(&count, n, kinds[l]);
        s->block_bytes[l] = count.used;
        if (trains && l + s->slot_count < offloaded) s->host[l] = (char *)arena_take(host, MEM_ACTIVATIONS, (int64_t)count.used, 1);
    }
    for (int i = 0; i < s->slot_count; i++) {
        s->slots[i] = checkpoint_take(device, n, least);
        s->slot_layer[i] = -1;
    }
    // the working set, for the layer that keeps least
    if (s->most != RECOMPUTE_NONE) {
        s->work.q = ARENA_TAKE_X(device, MEM_WORKSPACE, n.out);
        s->work.kv = ARENA_TAKE_X(device, MEM_WORKSPACE, n.kv);
    }
    if (s->most == RECOMPUTE_FULL) {
        s->work.out_ring = ARENA_TAKE_X(device, MEM_WORKSPACE, n.out);
        s->work.lse = ARENA_TAKE(device, MEM_WORKSPACE, float, n.lse);
    }
}
static inline void checkpoint_start(checkpoint_store *s) {
    if (s->offloaded == 0) return;
    s->to_host = device_copier_new();
    s->to_device = device_copier_new();
}
static inline void checkpoint_free(checkpoint_store *s) {
    if (s->to_host != NULL) device_copier_free(s->to_host);
    if (s->to_device != NULL) device_copier_free(s->to_device);
    free(s->kept);
    free(s->block_bytes);
    free(s->host);
}

static inline void checkpoint_slot_wait(checkpoint_store *s, int slot) {
    if (s->slot_ticket[slot] != 0) device_copy_finish(s->slot_leaving[slot] ? s->to_host : s->to_device, s->slot_ticket[slot]);
    s->slot_ticket[slot] = 0;
}

// Where a layer's tensors are now: kept ones in its memory or slot, the others in the working set.
static inline layer_activations checkpoint_view(const checkpoint_store *s, int layer) {
    layer_activations t = layer < s->offloaded ? s->slots[layer % s->slot_count] : s->kept[layer];
    recompute_kind kind = s->kinds[layer];
    if (kind == RECOMPUTE_NONE) return t;
    if (kind == RECOMPUTE_FULL) {
        t.out_ring = s->work.out_ring;
        t.lse = s->work.lse;
    }
    t.q = s->work.q;
    t.kv = s->work.kv;
    t.out = s->work.out != NULL ? s->work.out : t.out_ring;
    t.x_mid = s->work.x_mid;
    t.gate_up = NULL;
    return t;
}

// Forward: the layer's tensors; waits until its slot is free. Call before x_in is written, by whoever computes the layer's input.
static inline layer_activations checkpoint_open_forward(checkpoint_store *s, int layer) {
    if (layer < s->offloaded) {
        int slot = layer % s->slot_count;
        checkpoint_slot_wait(s, slot); // until the layer that was here is on the host
        s->slot_layer[slot] = layer;
    }
    return checkpoint_view(s, layer);
}
// Call when the layer's forward pass is issued: starts its copy to the host, if it is to leave. kept: a backward pass will use the tensors.
static inline void checkpoint_forward_done(checkpoint_store *s, int layer, bool kept) {
    if (!kept || s->host[layer] == NULL) return; // the last offloaded layers stay in their slots
    int slot = layer % s->slot_count;
    s->slot_ticket[slot] = device_copy_start(s->to_host, s->host[layer], s->slots[slot].x_in, s->block_bytes[layer]);
    s->slot_leaving[slot] = true;
}

// Backward: starts copying a layer back, unless it is still in its slot or is not offloaded. Call after checkpoint_open_backward of the
// layer above.
static inline void checkpoint_prefetch(checkpoint_store *s, int layer) {
    if (layer < 0 || layer >= s->offloaded) return;
    int slot = layer % s->slot_count;
    if (s->slot_layer[slot] == layer) return; // otherwise no copy is in flight there: the slot's last layer has waited for its own
    s->slot_layer[slot] = layer;
    s->slot_ticket[slot] = device_copy_start(s->to_device, s->slots[slot].x_in, s->host[layer], s->block_bytes[layer]);
    s->slot_leaving[slot] = false;
}
// Backward: the layer's tensors; waits for their copy.
static inline layer_activations checkpoint_open_backward(checkpoint_store *s, int layer) {
    if (layer < s->offloaded) checkpoint_slot_wait(s, layer % s->slot_count);
    return checkpoint_view(s, layer);
}

#endif
