// ranks: 4
// With recompute none, full, selective and a mixture, and with offload of activations and of the optimizer, gradients are bit-equal.
// Attention on a block runs as often under selective as under none, and twice as often under full, also layer by layer. With tiles of 1, 7,
// T-1, T and T+1 rows, loss and gradients agree to 1e-6. One, two, three and seven layers use the offload slots in every phase. Delayed
// transfers change nothing. (F10, F33-F35, F37-F39, F43, F54)
#include "model_fixture.h"

typedef struct {
    double loss;
    float *gradients[16];
    int64_t count[16], attention_calls;
} outcome;

static outcome run_once(const model_config *c, grid_shape shape, model_setup setup, recompute_kind kind, int steps, comm *ranks) {
    fixture f;
    outcome o;
    memset(&o, 0, sizeof o);
    fixture_make(&f, c, shape, ranks, setup, kind, 32);
    int64_t before = op_attention_calls();
    for (int step = 1; step <= steps; step++) o.loss = model_step(&f.m, fixture_adamw(step), 1.0).loss;
    o.attention_calls = op_attention_calls() - before;
    model_evaluate(&f.m, true, true);
    for (int u = 0; u < c->L + 2; u++) {
        o.gradients[u] = fixture_gradient(&f, u);
        o.count[u] = f.m.units[u].count;
    }
    fixture_free(&f);
    return o;
}

static void compare(const outcome *o, const outcome *expected, int units, double bound, const char *where) {
    CHECK(fabs(o->loss - expected->loss) <= bound * expected->loss, "%s: loss %.9f, expected %.9f", where, o->loss, expected->loss);
    for (int u = 0; u < units; u++) {
        double d = test_difference(o->gradients[u], expected->gradients[u], expected->count[u]);
        CHECK(d <= bound, "%s: gradients of unit %d differ by %.1e", where, u, d);
    }
}
static void free_outcome(outcome *o, int units) {
    for (int u = 0; u < units; u++) free(o->gradients[u]);
}

// The tiles that `auto` chooses are nearly equal and not too large; on a GPU they have enough rows that products are not bound by memory.
static void check_auto_tiles(void) {
    // Logits; gate and up of Llama-3's sizes and of a small model.
    static const int64_t widths[] = {128256, 2 * 14336, 2 * 28672, 2 * 8192, 704};
    for (int i = 0; i < 5; i++)
        for (int64_t rows = 1; rows <= 1 << 20; rows = rows * 3 / 2 + 1)
            for (size_t element = 2; element <= 4; element += 2) {
                int64_t tile = model_auto_tile(rows, widths[i], element), least = element == 2 ? 4096 : 128;
                int64_t bytes = tile * widths[i] * (int64_t)element;
                int64_t last = rows - (ceil_div(rows, tile) - 1) * tile;
                CHECK(tile <= rows && tile >= min_i64(rows, least),
                      "%lld rows of %lld: a tile of %lld", (long long)rows, (long long)widths[i], (long long)tile);
                CHECK(tile - last <= 64 * ceil_div(rows, tile), "%lld rows of %lld: tiles of %lld, the last of %lld", (long long)rows,
                      (long long)widths[i], (long long)tile, (long long)last);
                CHECK(bytes <= (element == 2 ? (int64_t)9 << 28 : (int64_t)9 << 24),
                      "%lld rows of %lld: a tile of %lld bytes", (long long)rows, (long long)widths[i], (long long)bytes);
            }
}

// Memory of 8 layers, counted as bf16 in any build: five keep x_in alone and are offloaded, three keep all. The device holds two slots,
// each as large as what an offloaded layer keeps, three whole layers and the working set (its x_mid and out are the caller's); the host
// holds the three offloaded layers that have no slot.
static void check_layout(void) {
    enum { E = 256, L = 8 };
    activation_sizes n = {1 * E, 2 * E, 3 * E, 4 * E, 5 * E, false};
    recompute_kind kinds[L];
    checkpoint_store s;
    arena device, host;
    for (int l = 0; l < L; l++) kinds[l] = l < 5 ? RECOMPUTE_FULL : RECOMPUTE_NONE;
    memset(&device, 0, sizeof device);
    memset(&host, 0, sizeof host);
    device.element_bytes = 2;
    checkpoint_layout(&s, &device, &host, L, kinds, 5, true, n);
    size_t all = 2 * (1 + 2 + 2 + 4 + 2 + 1 + 5) * E + 4 * 3 * E, work = 2 * (2 + 4 + 2) * E + 4 * 3 * E; // q, kv, out_ring; lse is float
    CHECK(device.used == 2 * 2 * E + 3 * all + work && host.used == 3 * 2 * E,
          "device %zu bytes, host %zu; %zu and %d by hand", device.used, host.used, 2 * 2 * E + 3 * all + work, 3 * 2 * E);
    checkpoint_free(&s);
    // Layers that keep all have three slots, where so many are offloaded. Without training, none goes to the host.
    for (int l = 0; l < L; l++) kinds[l] = RECOMPUTE_NONE;
    for (int way = 0; way < 4; way++) {
        bool trains = way < 2;
        size_t offloaded = way % 2 == 0 ? 1 : 5, slots = way % 2 == 0 ? 1 : 3;
        memset(&device, 0, sizeof device);
        memset(&host, 0, sizeof host);
        device.element_bytes = 2;
        checkpoint_layout(&s, &device, &host, L, kinds, (int)offloaded, trains, n);
        CHECK(device.used == (L - offloaded + slots) * all && host.used == (trains ? (offloaded - slots) * all : 0),
              "%zu layers that keep all are offloaded: device %zu bytes, host %zu", offloaded, device.used, host.used);
        checkpoint_free(&s);
    }
}

int main(int argc, char **argv) {
    comm *world = test_start(&argc, &argv);
    check_auto_tiles();
    check_layout();
    static const int layers[] = {1, 2, 3, 7};
    // dp, hp, cp, w; slices of one head, in a ring of one group.
    static const int grids[4][4] = {{1, 1, 4, 2}, {1, 2, 2, 1}, {4, 1, 1, 1}, {2, 2, 1, 1}};
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < 4; i++) {
            if (grids[i][0] > 1 && k != 2) continue;
            model_config c = fixture_config(layers[k], 24, 4, 2, 6, 28, 31, k % 2 == 1);
            int units = c.L + 2;
            grid_shape shape = {.dp = grids[i][0], .hp = grids[i][1], .cp = grids[i][2], .w = grids[i][3]};
            model_setup setup = fixture_setup(2, 2);
            setup.attention_bytes = 1;
            setup.zp = setup.zg = setup.zo = 2;
            char where[120];
            outcome none = run_once(&c, shape, setup, RECOMPUTE_NONE, 2, world);
            // Steps x micro-steps x sequences x layers x blocks x slices.
            int64_t calls = 2 * setup.grad_accum * setup.B * c.L * (shape.cp > 1 ? shape.cp * c.Hkv : c.H) / shape.hp;
            CHECK(none.attention_calls == calls,
                  "none: %lld attention calls, expected %lld", (long long)none.attention_calls, (long long)calls);
            for (int kind = RECOMPUTE_NONE; kind <= RECOMPUTE_AUTO; kind++)
                for (int offload = 0; offload <= c.L; offload += c.L > 3 ? 3 : 1) {
                    bool delays = (i + kind + offload) % 2 == 1; // on another grid the other way
                    if (TEST_SANITIZED && !delays) continue;
                    snprintf(where, sizeof where, "L %d dp %d hp %d kind %d, %d layers offloaded%s", c.L, shape.dp, shape.hp, kind, offload,
                             delays ? ", delayed" : "");
                    setup.offload_layers = offload;
                    setup.offload_states = offload % 2 == 1 ? OFFLOAD_OPTIMIZER : OFFLOAD_NONE;
                    comm_test_delay(delays ? 100 : 0, 5);
                    outcome o = run_once(&c, shape, setup, (recompute_kind)kind, 2, world);
                    compare(&o, &none, units, 0, where);
                    if (kind == RECOMPUTE_SELECTIVE)
                        CHECK(o.attention_calls == calls, "%s: %lld attention calls", where, (long long)o.attention_calls);
                    if (kind == RECOMPUTE_FULL)
                        CHECK(o.attention_calls == 2 * calls, "%s: %lld attention calls", where, (long long)o.attention_calls);
                    if (kind == RECOMPUTE_AUTO) // every third layer is full
                        CHECK(o.attention_calls == calls + calls / c.L * (c.L / 3),
                              "%s: %lld attention calls", where, (long long)o.attention_calls);
                    free_outcome(&o, units);
                }
            comm_test_delay(0, 0);
            setup.offload_layers = 0;
            setup.offload_states = OFFLOAD_NONE;
            outcome untiled = run_once(&c, shape, setup, RECOMPUTE_NONE, 1, world); // one step: an update would amplify the rounding
            int64_t rows = setup.B * 32 * shape.dp / 4;
            const int64_t tiles[] = {1, 7, rows - 1, rows, rows + 1};
            for (int n = 0; n < 5; n++)
                for (int kind = RECOMPUTE_NONE; kind <= RECOMPUTE_FULL; kind++) {
                    if (TEST_SANITIZED && kind % 2 != n % 2) continue;
                    setup.mlp_tile = tiles[n];
                    setup.loss_tile = tiles[4 - n];
                    snprintf(where, sizeof where, "L %d dp %d hp %d kind %d, tiles %lld and %lld", c.L, shape.dp, shape.hp, kind,
                             (long long)tiles[n], (long long)tiles[4 - n]);
                    outcome o = run_once(&c, shape, setup, (recompute_kind)kind, 1, world);
                    compare(&o, &untiled, units, 1e-6, where); // sums over rows are split differently
                    free_outcome(&o, units);
                }
            free_outcome(&untiled, units);
            free_outcome(&none, units);
        }
    int status = test_finish("test_recompute", world);
    comm_finalize();
    return status;
}
