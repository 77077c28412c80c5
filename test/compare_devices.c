// Trains one model on two devices and compares; test_emulated.sh and test_cuda.sh run it:
//     build/cpu/test/compare_devices write FILE [LENGTH [STEPS]]         loss curve and gradients of the first step, CPU device, one rank
//     build/emulated/test/compare_devices compare FILE [LENGTH [STEPS]]  the same on this device, on 1, 2 or 4 ranks (hybrid ZeRO, every
//                                                                        kind of recompute, offload), against the file
// 2 ranks are hp 2 for the first model below and cp 2 for the second; 4 ranks are hp 2 x cp 2, one window for one model and two for the
// other, from length 512 on the other way round.
// LENGTH (default 96) is that of the sequences. At 512 each block has whole tiles of 128 rows, which go to the attention engine (cuDNN).
// Two models: heads of 16 on whole sequences; and heads of 64 on packed documents, at most 5 steps. The hand-written tensor-core kernels
// compute the second model's attention; from length 512 on, where documents are 8 times as long, the attention engine computes part of it.
// Bounds when this device stores bf16: a stored number is off by up to 2^-8 of itself. The loss is a mean over many of them: the curves
// stay within 2^-8 of the loss at the start, which falls by 8 times that or more in 5 steps. A gradient is a sum of products of such
// numbers with independent errors: cosine 0.999 or more, norm within 1 %. When the device stores float, only the order of sums differs:
// losses within 2e-5 of the first loss, cosine within 1e-6 of 1, norm within 1e-4.
#include "model_fixture.h"
#if defined(DEVICE_EMULATED) || defined(DEVICE_BF16)
#include "../device/cuda/attention_call.h"
#endif

enum { STEPS_MOST = 50, UNITS = 6 };
static int steps = 20, length = 96;

typedef struct {
    double losses[STEPS_MOST];
    float *gradients[UNITS]; // of step 1, whole units
    int64_t counts[UNITS];   // without padding
} record;

static model_config config_of(bool packed) {
    return fixture_config(UNITS - 2, 64, packed ? 8 : 4, packed ? 4 : 2, packed ? 64 : 16, 120, 250, false);
}
static int steps_of(bool packed) { return packed && steps > 5 ? 5 : steps; }

// Documents of 37 tokens (from length 512 on: 296) in every other sample and of 20 (160) in the others; in the second micro-step the other
// way round. The longer ones are segments (cp 2).
static void documents_make(fixture *f) {
    for (int64_t b = 0; b < f->m.setup.grad_accum * f->m.setup.B; b++) {
        int64_t n = ((b % f->m.setup.B + b / f->m.setup.B) % 2 == 0 ? 37 : 20) * (f->S >= 512 ? 8 : 1);
        sequence_shard shard = fixture_cut(f, b, n);
        for (int64_t e = 0; e < f->m.entries; e++) {
            sequence_span span = sequence_shard_entry(&shard, e);
            f->m.batch_documents[b * f->m.entries + e] = min_i64(span.position, span.end - 1) / n * n;
        }
    }
}

static record train(comm *world, bool packed) {
    record r;
    fixture f;
    memset(&r, 0, sizeof r);
    model_config c = config_of(packed);
    grid_shape shape = {.dp = 1, .hp = 1, .cp = 1, .w = 1};
    model_setup setup = fixture_setup(length == 512 ? 1 : 2, packed ? 2 : 1); // 512: for test_cuda, with a race detector
    if (packed) setup.attention_bytes = 1; // slices of one head, in a ring of one group
    if (comm_size(world) == 2) {
        if (packed) shape.cp = shape.w = 2;
        else shape.hp = 2;
        setup.zp = setup.zg = setup.zo = 2;
        setup.offload_states = OFFLOAD_PARAMETERS;
    } else if (comm_size(world) == 4) {
        shape.hp = shape.cp = 2;
        if (packed == (length >= 512)) shape.w = 2; // an inner ring; otherwise an outer one
        setup.zp = 2; setup.zg = 2; setup.zo = 4;
        setup.offload_layers = UNITS - 2; // one more than there are slots
        setup.offload_states = OFFLOAD_OPTIMIZER;
    }
    setup.packed = packed;
    fixture_long_document = length >= 512 ? 200 : 30;
    fixture_make(&f, &c, shape, world, setup, RECOMPUTE_AUTO, length);
    if (packed) documents_make(&f);
    for (int step = 0; step < steps_of(packed); step++) {
        fixture_batch(&f, step % 4 * 2); // four batches in turn
        adamw_args args = fixture_adamw(step + 1);
        args.lr = step < 10 ? 3e-3f : 3e-2f / (float)(step + 1); // later steps would drift apart by rounding alone
        r.losses[step] = model_step(&f.m, args, 1.0).loss;
        for (int u = 0; step == 0 && u < UNITS; u++) {
            const zero_unit *unit = &f.m.units[u];
            const zero_tensor *last = &unit->tensors[unit->tensor_count - 1];
            r.gradients[u] = fixture_gradient(&f, u);
            r.counts[u] = last->offset + last->count;
        }
    }
    fixture_free(&f);
    return r;
}

static bool record_move(record *r, FILE *f, bool write) {
    bool ok = true;
    for (int part = 0; part <= UNITS; part++) {
        void *p = part == 0 ? (void *)r->losses : (void *)r->gradients[part - 1];
        size_t bytes = part == 0 ? sizeof r->losses : sizeof(float) * (size_t)r->counts[part - 1];
        ok = ok && (write ? fwrite(p, 1, bytes, f) : fread(p, 1, bytes, f)) == bytes;
    }
    return ok;
}

static void compare(const record *here, const record *there, bool packed) {
    bool bf16 = sizeof(floatX) == 2;
    int last = steps_of(packed) - 1;
    double bound = there->losses[0] * (bf16 ? 1.0 / 256 : 2e-5), worst = 0, worst_cosine = 0, worst_norm = 0;
    for (int i = 0; i <= last; i++) {
        double d = fabs(here->losses[i] - there->losses[i]);
        CHECK(d <= bound, "step %d: loss %.6f, on the CPU device %.6f, more than %.1e apart", i + 1, here->losses[i], there->losses[i],
              bound);
        worst = fmax(worst, d);
    }
    if (last >= 4)
        CHECK(here->losses[last] < (1 - 8.0 / 256) * here->losses[0],
              "the loss does not fall: %.4f to %.4f", here->losses[0], here->losses[last]);
    for (int u = 0; u < UNITS; u++) {
        model_config c = config_of(packed);
        model m;
        memset(&m, 0, sizeof m);
        m.c = c;
        model_describe_units(&m);
        for (int t = 0; t < m.units[u].tensor_count; t++) {
            const zero_tensor *tensor = &m.units[u].tensors[t];
            const float *a = here->gradients[u] + tensor->offset, *b = there->gradients[u] + tensor->offset;
            double ab = 0, aa = 0, bb = 0;
            for (int64_t i = 0; i < tensor->count; i++) {
                ab += (double)a[i] * (double)b[i];
                aa += (double)a[i] * (double)a[i];
                bb += (double)b[i] * (double)b[i];
            }
            double cosine = ab / sqrt(aa * bb), norm = sqrt(aa / bb);
            CHECK(cosine >= 1 - (bf16 ? 1e-3 : 1e-6) && fabs(norm - 1) <= (bf16 ? 1e-2 : 1e-4),
                  "gradient of unit %d %s: cosine %.7f, norm %.6f of the CPU's", u, tensor->name, cosine, norm);
            worst_cosine = fmax(worst_cosine, 1 - cosine);
            worst_norm = fmax(worst_norm, fabs(norm - 1));
        }
        free(m.units);
    }
    printf("%s: loss %.4f to %.4f; from the CPU device: losses %.1e apart (bound %.1e), gradients 1 - cosine %.1e, norm %.1e\n",
           packed ? "packed documents, heads of 64" : "whole sequences, heads of 16", here->losses[0], here->losses[last], worst, bound,
           worst_cosine, worst_norm);
}

int main(int argc, char **argv) {
    error_text error = {"", 0};
    if (!comm_init(&argc, &argv, &error) || !device_start(1, &error)) {
        fprintf(stderr, "error: %s\n", error.text);
        return EXIT_USER_ERROR;
    }
    if (argc > 3) length = (int)strtol(argv[3], NULL, 10);
    if (argc > 4) steps = (int)strtol(argv[4], NULL, 10);
    if (argc < 3 || argc > 5 || length < 8 || steps < 1 || steps > STEPS_MOST) {
        fprintf(stderr, "usage: %s write|compare FILE [LENGTH >= 8 [STEPS 1 to %d]]\n", argv[0], STEPS_MOST);
        return EXIT_USER_ERROR;
    }
#if defined(DEVICE_EMULATED)
    attention_test_documents(16); // short documents go to the engine, too
#elif defined(DEVICE_BF16)
    attention_test_documents(128);
#endif
    bool write = strcmp(argv[1], "write") == 0;
    comm *world = comm_world();
    FILE *f = comm_rank(world) == 0 ? fopen(argv[2], write ? "wb" : "rb") : NULL;
    for (int packed = 0; packed < 2; packed++) {
        record here = train(world, packed == 1);
        if (comm_rank(world) != 0) continue;
        record there = here;
        for (int u = 0; !write && u < UNITS; u++) there.gradients[u] = HOST_NEW(float, here.counts[u]);
        bool ok = f != NULL && record_move(&there, f, write);
        CHECK(ok, "%s: cannot be %s", argv[2], write ? "written" : "read");
        if (ok && !write) compare(&here, &there, packed == 1);
    }
    if (f != NULL && fclose(f) != 0) CHECK(false, "%s: cannot be closed", argv[2]);
    char name[64];
    snprintf(name, sizeof name, "compare devices, %d ranks", comm_size(world));
    int status = test_finish(name, world);
    device_stop();
    comm_finalize();
    return status;
}
