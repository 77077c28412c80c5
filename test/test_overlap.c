// ranks: 4
// What hides the transfers of a layer, beside ring hops (test_schedule) and ZeRO's (test_zero): what is issued between the start and the
// finish of each. Selective recompute: SeqAlltoAll of out is hidden by the projection of Q, K and V, that of Q, K and V by the MLP's
// backward pass. SeqAlltoAll of dout (cp = 1), or of dQ and dKV's first hop home (cp > 1): by wo's gradient. The all-gather of KV: by the
// rank's own block; the reduce-scatter of dKV: by wo's gradient. Copies of offloaded activations to the host: by the next layer's
// attention; back: by the backward pass of the layer above. Copies of model states on the host: shards of parameters and gradients by a
// layer's pass, the next part of the optimizer states by AdamW on the one before it. (F44)
#include "../device/device.h"
#include "../device/ops.h"
#include "../trace.h"

// What the model issues is recorded on its way to the device.
static struct {
    int64_t products, gradients; // of matrices, and blocks of attention, so far; of these the gradients of weights
    int64_t updates;             // calls of AdamW
    bool backward;
} issued;
static struct flight {
    const char *name; // of the transfer
    const void *lane; // a comm or a copier
    int64_t ticket;   // of a copy
    int64_t products, gradients, updates; // issued before its start; once it is finished, those during it
    bool backward, finished;
} flights[1024];
static int flight_count;
static const char *next_name;

static void start(const void *lane, const char *name, int64_t ticket) {
    if (flight_count == 1024) abort();
    flights[flight_count++] = (struct flight){name, lane, ticket, issued.products, issued.gradients, issued.updates, issued.backward,
                                              false};
}
static void finish(const void *lane, int64_t ticket) { // ticket 0: the oldest of the lane
    for (int i = 0; i < flight_count; i++) {
        struct flight *f = &flights[i];
        if (f->finished || f->lane != lane || f->ticket != ticket) continue;
        f->products = issued.products - f->products;
        f->gradients = issued.gradients - f->gradients;
        f->updates = issued.updates - f->updates;
        f->finished = true;
        return;
    }
}
static int64_t copy_start(device_copier *lane, void *to, const void *from, size_t bytes) {
    int64_t ticket = device_copy_start(lane, to, from, bytes);
    start(lane, "copy", ticket);
    return ticket;
}
#define trace_transfer(group, name, index) (next_name = (name), trace_transfer(group, name, index))
#define comm_alltoall_start(group, send, recv, bytes) (start(group, next_name, 0), comm_alltoall_start(group, send, recv, bytes))
#define comm_sendrecv_start(group, ...) (start(group, next_name, 0), comm_sendrecv_start(group, __VA_ARGS__))
#define comm_allgather_start(group, ...) (start(group, next_name, 0), comm_allgather_start(group, __VA_ARGS__))
#define comm_reduce_scatter_start(group, ...) (start(group, next_name, 0), comm_reduce_scatter_start(group, __VA_ARGS__))
#define transfer_finish(group) (finish(group, 0), transfer_finish(group))
#define device_copy_start(lane, to, from, bytes) copy_start(lane, to, from, bytes)
#define device_copy_finish(lane, ticket) (finish(lane, ticket), device_copy_finish(lane, ticket))
#define op_linear_forward(...) (issued.products++, op_linear_forward(__VA_ARGS__))
#define op_linear_backward_input(...) (issued.products++, op_linear_backward_input(__VA_ARGS__))
#define op_linear_backward_weight(...) (issued.products++, issued.gradients++, op_linear_backward_weight(__VA_ARGS__))
#define op_attention_forward(...) (issued.products++, op_attention_forward(__VA_ARGS__))
#define op_attention_backward(...) (issued.products++, op_attention_backward(__VA_ARGS__))
#define op_adamw(...) (issued.updates++, op_adamw(__VA_ARGS__))
#define op_cross_entropy(...) (issued.backward = true, op_cross_entropy(__VA_ARGS__))
#include "model_fixture.h"

enum { L = 5, WO = 1, QKV = 1, MLP_BACKWARD = 4 }; // layers; products: wo's gradient; Q, K and V of all rows; the MLP's backward pass

// In the backward pass (or forward pass) `expected` transfers of this name are hidden by so many products, gradients among them, or more.
static void check_hidden(const char *where, const char *name, bool backward, int expected, int64_t products, int64_t gradients) {
    int count = 0, hidden = 0;
    for (int i = 0; i < flight_count; i++) {
        const struct flight *f = &flights[i];
        if (strcmp(f->name, name) != 0 || f->backward != backward) continue;
        count++;
        hidden += f->finished && f->products >= products && f->gradients >= gradients;
    }
    CHECK(hidden == expected, "%s: %d of %d transfers \"%s\" are hidden by %lld products and blocks, %lld of them gradients; expected %d",
          where, hidden, count, name, (long long)products, (long long)gradients, expected);
}

static void check_grid(grid_shape shape, bool allgather, comm *world) {
    char where[64];
    snprintf(where, sizeof where, "hp %d cp %d w %d%s", shape.hp, shape.cp, shape.w, allgather ? " allgather" : "");
    model_config c = fixture_config(L, 24, 4, 4, 6, 28, 31, false);
    model_setup setup = fixture_setup(1, 1);
    setup.offload_layers = L;
    setup.cp_allgather = allgather;
    fixture f;
    fixture_make(&f, &c, shape, world, setup, RECOMPUTE_SELECTIVE, 32);
    flight_count = 0;
    issued.backward = false;
    model_step(&f.m, fixture_adamw(1), 1.0);
    bool rings = shape.cp > 1;
    if (shape.hp > 1) {
        check_hidden(where, "SeqAlltoAll out", true, L, QKV, 0);
        check_hidden(where, "SeqAlltoAll KV", true, L, MLP_BACKWARD, 2);
        check_hidden(where, "SeqAlltoAll Q", true, L, MLP_BACKWARD, 2);
        check_hidden(where, rings ? "SeqAlltoAll dQ" : "SeqAlltoAll dout", true, L, WO, 1);
    }
    for (int pass = 0; allgather && pass < 2; pass++) check_hidden(where, "KV all-gather", pass == 1, L, 1, 0);
    if (allgather) check_hidden(where, "dKV reduce-scatter", true, L, WO, 1);
    else if (rings) check_hidden(where, shape.cp > shape.w ? "dKV outer" : "dKV inner", true, L, WO, 1); // of a layer's hops one, home
    int leaving = checkpoint_leaving(f.kinds, L);
    CHECK(leaving == L - 2, "%d layers are copied to the host", leaving);
    check_hidden(where, "copy", false, leaving, 3, 0); // Q, K and V's projection, a block, wo
    check_hidden(where, "copy", true, leaving, MLP_BACKWARD + 5, 4);
    fixture_free(&f);
}

// Copies of a lane in a pass, finished, that are hidden by so many products and updates at least.
static int hidden_copies(const device_copier *lane, bool backward, int64_t products, int64_t updates) {
    int hidden = 0;
    for (int i = 0; i < flight_count; i++) {
        const struct flight *f = &flights[i];
        hidden += f->lane == lane && f->backward == backward && f->finished && f->products >= products && f->updates >= updates;
    }
    return hidden;
}
// All model states on the host (or optimizer states alone), on the second of two steps, whose forward pass updates.
static void check_states(zero_offload states, comm *world) {
    model_config c = fixture_config(L, 24, 4, 4, 6, 28, 31, false);
    model_setup setup = fixture_setup(1, 1);
    setup.offload_states = states;
    setup.zo = 4;
    if (states == OFFLOAD_PARAMETERS) setup.zp = setup.zg = 4;
    fixture f;
    fixture_make(&f, &c, fixture_shape(4, 1, 1, 1), world, setup, RECOMPUTE_NONE, 32);
    for (int step = 1; step <= 2; step++) {
        flight_count = 0;
        issued.backward = false;
        model_step(&f.m, fixture_adamw(step), 1.0);
    }
    const device_copier *in = f.m.zero.to_device, *out = f.m.zero.to_host;
    if (states == OFFLOAD_OPTIMIZER) { // one part of each unit is the first
        int parts = hidden_copies(in, false, 0, 0), hidden = hidden_copies(in, false, 0, 1);
        CHECK(hidden > 0 && hidden == parts - (L + 2), "%d of %d parts come while another is updated", hidden, parts);
    } else { // the units before the first layer and behind the last are exposed, and layers that are still in their slots need no copy
        int came = hidden_copies(in, false, 5, 0), again = hidden_copies(in, true, MLP_BACKWARD + 4, 0);
        int left = hidden_copies(out, true, MLP_BACKWARD + 4, 0);
        CHECK(came == L - 1 && again == L - 2 && left == L - 1, "a layer's pass hides %d, %d shards of parameters, %d of gradients", came,
              again, left);
    }
    fixture_free(&f);
}

int main(int argc, char **argv) {
    comm *world = test_start(&argc, &argv);
    check_grid(fixture_shape(1, 4, 1, 1), false, world);
    check_grid(fixture_shape(1, 2, 2, 1), false, world);
    check_grid(fixture_shape(1, 2, 2, 2), false, world);
    check_grid(fixture_shape(1, 1, 4, 2), false, world);
    check_grid(fixture_shape(1, 2, 2, 2), true, world);
    check_states(OFFLOAD_OPTIMIZER, world);
    check_states(OFFLOAD_PARAMETERS, world);
    int status = test_finish("test_overlap", world);
    comm_finalize();
    return status;
}
