// --calibrate: measures the planner's figures of a cluster on the machines at hand, and writes them as a cluster file.
// All ranks measure at once, so that what they share (cores, memory, links) is shared while it is measured; a figure is the mean over the
// ranks. Links need two ranks, links between nodes two nodes; what cannot be measured keeps its value from --cluster.
#ifndef CALIBRATE_H
#define CALIBRATE_H

#include "agreement.h" // defines: agree_on_number
#include "device/comm.h"
#include "device/ops.h"
#include "planner.h"  // defines: cluster, plan_cluster_name
#include "progress.h" // defines: progress_*

#define CALIBRATE_WINDOW 0.05 // s: longer than a time slice of ranks that share a core
#ifndef CALIBRATE_GPU_ROWS // tests over a fake of the libraries have fewer
#define CALIBRATE_GPU_ROWS 8192 // of an attention block and of the linear layers on a GPU, whose kernels need more rows to reach their rate
#define CALIBRATE_GPU_LINK_BYTES (64 << 20) // of a transfer between GPUs, whose links need more, too
#endif
enum {
    CALIBRATE_ROWS = 1024,                                       // of an attention block
    CALIBRATE_LITTLE = 64,                                       // rows of an attention block that takes little time
    CALIBRATE_LINEAR_ROWS = 256,                                 // of the linear layers
    CALIBRATE_WEIGHT_BYTES = 16 << 20,                           // at least, of the linear layers' gradients: more than a cache holds
    CALIBRATE_COPY_BYTES = 128 << 20,                            // of a copy: more than a cache holds
    CALIBRATE_PARAMETERS = CALIBRATE_COPY_BYTES / 16,            // of AdamW: four floats of each fill a copy's buffer
    CALIBRATE_LINK_BYTES = 1 << 20,                              // of a transfer
    CALIBRATE_AT_ONCE = 100,                                     // runs that a GPU may have in its queue
    CALIBRATE_MOST_SIZES = 3,                                    // of calibrate_sizes
};

// What the timed pieces of work use. All pointers to numbers are device memory.
typedef struct {
    comm *world;                        // the ranks that measure
    comm *lanes[2];                     // rings of the ranks of a node, whose transfers run side by side
    comm *alltoall, *gather, *scatter;  // the same ranks, with the kinds of transfer that they are for
    int D, H, Hkv, HS, F;
    int64_t rows;                     // of the linear layers
    int64_t layers, turn;             // the weights of `layers` layers are used in turn: as in a model, none is still in the cache
    int64_t T;                        // rows of an attention block
    size_t link_bytes, bytes;         // of a transfer: of a long one; of the one that is measured
    floatX *x, *w, *y, *norm;
    float *gradients;
    floatX *q, *kv, *out_x;
    float *out, *lse, *delta, *dq, *dkv;
    void *scratch;
    char *send, *recv;                // of a copy, two flows, or an alltoall
    char *host;                       // CALIBRATE_COPY_BYTES of a host slab
    device_copier *copier;
    char notes[1536]; // comment lines for the file: the measurements behind the figures
    size_t noted;     // characters of notes in use
    progress_note progress;
} calibration;
typedef void calibrate_work(calibration *c);

// seconds (count) = seconds of one run of `work`, mean over the ranks, while all ranks of c->world run it, with *size set to each of
// `sizes` (count). A window repeats the work for CALIBRATE_WINDOW, or `times` times when all ranks must do the same number
// (transfers). The best of several windows counts, because other programs can only add time. The sizes alternate, so that a burst of
// other programs' work does not hit one alone. A GPU gets many runs into its queue before the host waits, as in a step: otherwise each
// would begin with a launch's time.
static inline void calibrate_sizes(calibration *c, calibrate_work *work, int times, int64_t *size, const int64_t *sizes, int count,
                                   double *seconds) {
    bool alone = comm_size(c->world) == 1 && device_is_host(); // shares no core: more and shorter windows, for as long in all
    double window = alone ? CALIBRATE_WINDOW / 25 : CALIBRATE_WINDOW, all = 0;
    for (int k = 0; k < count; k++) { // warms up, twice: the first time, a GPU's libraries choose their kernels
        *size = sizes[k];
        work(c);
        device_synchronize();
        double began = device_seconds();
        work(c);
        device_synchronize();
        seconds[k] = device_seconds() - began;
    }
    int at_once[CALIBRATE_MOST_SIZES];
    for (int k = 0; k < count; k++) {
        at_once[k] = device_is_host() ? 1 : times > 0 ? times : (int)fmax(1, fmin(CALIBRATE_AT_ONCE, window / 10 / seconds[k]));
        seconds[k] = INFINITY;
    }
    for (int round = 0; round < 4 || (alone && all < 4 * count * CALIBRATE_WINDOW); round++)
        for (int k = 0; k < count; k++) {
            *size = sizes[k];
            device_synchronize();
            comm_barrier(c->world);
            double began = device_seconds(), ended = began;
            int done = 0;
            while (times > 0 ? done < times : done == 0 || ended - began < window) {
                for (int i = 0; i < at_once[k]; i++) work(c);
                device_synchronize();
                done += at_once[k];
                ended = device_seconds();
            }
            double mean = (ended - began) / done;
            all += ended - began;
            comm_sum_double(c->world, &mean, 1);
            seconds[k] = fmin(seconds[k], mean / comm_size(c->world));
        }
    progress_show(&c->progress, 0, 0);
}
static inline double calibrate_seconds(calibration *c, calibrate_work *work, int times) {
    int64_t size = 0;
    double seconds;
    calibrate_sizes(c, work, times, &size, &size, 1, &seconds);
    return seconds;
}

// ---- the work ----

static inline void calibrate_gemm(calibration *c) { op_linear_forward(c->y, c->x, c->w, NULL, c->rows, c->D, c->F); }
// Matrices, norm and activation of an MLP, forward and backward: what linear layers reach together with the operations around them.
static inline void calibrate_linear(calibration *c) {
    int64_t n = c->rows, D = c->D, F = c->F, at = c->turn++ % c->layers * 3 * F * D;
    floatX *up = c->w + at, *down = up + 2 * F * D;
    float *dup = c->gradients + at, *ddown = dup + 2 * F * D;
    op_rmsnorm_forward(c->out_x, c->lse, c->x, c->norm, n, D, 1e-5f);
    op_linear_forward(c->y, c->out_x, up, NULL, n, D, 2 * F);
    op_swiglu_forward(c->q, c->y, n, F);
    op_linear_forward(c->x, c->q, down, NULL, n, F, D);
    op_linear_backward_input(c->q, c->out_x, down, n, F, D);
    op_swiglu_backward(c->y, c->q, c->q, c->y, n, F);
    op_linear_backward_weight(ddown, c->out_x, c->q, n, F, D, false);
    op_linear_backward_weight(dup, c->y, c->out_x, n, D, 2 * F, false);
    op_linear_backward_input(c->x, c->y, up, n, D, 2 * F);
}
// A ring step: all queries with half of the keys, merged into earlier results.
static inline attention_block calibrate_block(const calibration *c) {
    int64_t width = (int64_t)c->H * c->HS;
    return (attention_block){.Tq = c->T, .Tk = max_i64(1, c->T / 2), .Hq = c->H, .Hkv = c->Hkv, .HS = c->HS, .q_stride = width,
                             .sum_stride = width, .kv_stride = (int64_t)2 * c->Hkv * c->HS, .lse_stride = c->T,
                             .scale = 1 / sqrtf((float)c->HS)};
}
static inline void calibrate_forward(calibration *c) {
    op_attention_forward(c->out, c->lse, c->q, c->kv, c->kv + c->Hkv * c->HS, calibrate_block(c), true, c->scratch);
}
static inline void calibrate_backward(calibration *c) {
    int64_t v = (int64_t)c->Hkv * c->HS;
    op_attention_backward(c->dq, c->dkv, c->dkv + v, c->q, c->kv, c->kv + v, c->out_x, c->out_x, c->lse, c->delta, calibrate_block(c),
                          true, false, c->scratch);
}
// What a ring step does with dKV besides attention.
static inline void calibrate_merge(calibration *c) {
    int64_t n = c->T * 2 * c->Hkv * c->HS;
    device_zero(c->dkv, sizeof(float) * (size_t)(n / 2)); // the half of the rows that no query sees
    op_add_float(c->dkv, c->dkv + n, n);
}
// What an attention operation does once, whatever the number of ring steps.
static inline void calibrate_around(calibration *c) {
    int64_t width = (int64_t)c->H * c->HS;
    op_cast_rows(c->out_x, width, c->out, c->T, width);
    op_attention_delta(c->delta, c->out_x, c->q, calibrate_block(c));
    op_cast_rows(c->q, width, c->dq, c->T, width);
}
static inline void calibrate_copy(calibration *c) { device_copy(c->recv, c->send, CALIBRATE_COPY_BYTES); }
static inline void calibrate_host_copy(calibration *c) {
    device_copy_finish(c->copier, device_copy_start(c->copier, c->recv, c->host, CALIBRATE_COPY_BYTES));
}
static inline void calibrate_adamw(calibration *c) {
    adamw_args args = {.lr = 1e-9f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .grad_scale = 1, .step = 1};
    int64_t n = CALIBRATE_PARAMETERS;
    float *states = (float *)(void *)c->send;
    op_adamw((floatX *)(void *)c->recv, sizeof(floatX) == sizeof(float) ? NULL : states, states + n, states + 2 * n, states + 3 * n, n,
             args);
}
static inline void calibrate_hop_start(calibration *c, int lane) {
    int n = comm_size(c->lanes[lane]), me = comm_rank(c->lanes[lane]);
    size_t at = (size_t)lane * c->bytes;
    comm_sendrecv_start(c->lanes[lane], c->send + at, c->bytes, (me + 1) % n, c->recv + at, c->bytes, (me + n - 1) % n);
}
static inline void calibrate_one_flow(calibration *c) {
    calibrate_hop_start(c, 0);
    comm_finish(c->lanes[0]);
}
static inline void calibrate_two_flows(calibration *c) {
    calibrate_hop_start(c, 0);
    calibrate_hop_start(c, 1);
    comm_finish(c->lanes[0]);
    comm_finish(c->lanes[1]);
}
static inline void calibrate_overlapped(calibration *c) {
    calibrate_hop_start(c, 0);
    calibrate_gemm(c);
    comm_finish(c->lanes[0]);
}
// A little attention, as between two transfers of a step: ranks that share a core then have to wait for each other.
static inline void calibrate_little(calibration *c) {
    c->T = CALIBRATE_LITTLE;
    calibrate_forward(c);
}
static inline void calibrate_little_hop(calibration *c) {
    calibrate_hop_start(c, 0);
    calibrate_little(c);
    comm_finish(c->lanes[0]);
}
// Like SeqAlltoAll: Q, KV and out, a third of the volume each.
static inline void calibrate_alltoall(calibration *c) {
    for (int i = 0; i < 3; i++) {
        comm_alltoall_start(c->alltoall, c->send, c->recv, c->bytes / 3);
        comm_finish(c->alltoall);
    }
}
static inline void calibrate_little_alltoall(calibration *c) {
    calibrate_little(c);
    calibrate_alltoall(c);
}
static inline void calibrate_collectives(calibration *c) { // the same volume by all-gather and by reduce-scatter
    int n = comm_size(c->gather);
    comm_allgather_start(c->gather, c->send, c->recv, c->bytes / (size_t)n);
    comm_finish(c->gather);
    comm_reduce_scatter_start(c->scatter, (const float *)(void *)c->send, (float *)(void *)c->recv,
                              c->bytes / sizeof(float) / (size_t)n, c->scratch);
    comm_finish(c->scatter);
}
static inline size_t calibrate_alltoall_bytes(const calibration *c) { // to each rank; three aligned exchanges
    return c->link_bytes / 8 / 768 * 768;
}

// ---- the figures ----

PRINTF_LIKE(2, 3) static inline void calibrate_note(calibration *c, const char *format, ...) {
    va_list values;
    va_start(values, format);
    int n = vsnprintf(c->notes + c->noted, sizeof c->notes - c->noted, format, values);
    va_end(values);
    c->noted = (size_t)min_i64((int64_t)sizeof c->notes - 1, (int64_t)c->noted + max_i64(0, n));
}

static inline void calibrate_set_kind(cluster *machines, const char *key, double value, figure_kind kind) {
    int i = cluster_find(key);
    const cluster_figure *f = &cluster_figures[i];
    *cluster_value(machines, f) = fmin(fmax(value, f->low), f->high);
    machines->kinds[i] = kind;
}
static inline void calibrate_set(cluster *machines, const char *key, double value) {
    calibrate_set_kind(machines, key, value, FIGURE_MEASURED);
}

// The slope of seconds = constant + slope x through two measurements, neither term below 0: noise can make one so.
static inline double calibrate_slope(double x0, double seconds0, double x1, double seconds1) {
    double slope = (seconds1 - seconds0) / (x1 - x0), most = seconds1 / x1;
    return slope > 0 ? fmin(slope, most) : most;
}

// Measures an attention block of T rows (2 flop T^2 H HS FLOP; flop = 1 for forward) at two lengths, and sets *launch and *quadratic such
// that launch + quadratic T^2 is its seconds. Returns FLOP/s at the longer length.
static inline double calibrate_attention(calibration *c, const char *name, double flop, calibrate_work *work, double *launch,
                                         double *quadratic) {
    const int64_t lengths[2] = {c->T / 4, c->T};
    double seconds[2], squares[2], rate = 0;
    calibrate_sizes(c, work, 0, &c->T, lengths, 2, seconds);
    for (int i = 0; i < 2; i++) {
        squares[i] = (double)(lengths[i] * lengths[i]);
        rate = 2 * flop * squares[i] * c->H * c->HS / seconds[i];
        calibrate_note(c, "# %s: blocks of %lld rows x %lld keys at %.4g GFLOP/s a rank\n", name, (long long)lengths[i],
                       (long long)lengths[i] / 2, 1e-9 * rate);
    }
    *quadratic = calibrate_slope(squares[0], seconds[0], squares[1], seconds[1]);
    *launch = fmax(0, seconds[0] - *quadratic * squares[0]);
    return rate;
}

// From seconds of calibrate_linear with matrices of DF elements, at two numbers of rows: weights + per_row rows, the cost of reading the
// weights and the rate of the products. hbm_rate and peak are set.
static inline void calibrate_set_linear(cluster *machines, double DF, double rows0, double seconds0, double rows1, double seconds1) {
    double per_row = calibrate_slope(rows0, seconds0, rows1, seconds1), weights = fmax(0, seconds1 - rows1 * per_row);
    calibrate_set(machines, "linear_efficiency", 18 * DF / per_row / machines->peak);
    calibrate_set(machines, "weight_bytes", weights * machines->hbm_rate / (3 * DF));
}

static inline void calibrate_kernels(calibration *c, cluster *machines) {
    const int64_t sizes[3] = {c->rows / 4, c->rows / 2, c->rows};
    double width = (double)c->H * c->HS, D = c->D, F = c->F, rows = (double)c->rows;
    double flop = 18 * D * F; // of a row in calibrate_linear
    double gemm = calibrate_seconds(c, calibrate_gemm, 0), linear[3], launch[2], quadratic[2];
    calibrate_sizes(c, calibrate_linear, 0, &c->rows, sizes, 3, linear);
    calibrate_note(c, "# one product: %lld rows at %.4g GFLOP/s a rank\n", (long long)c->rows, 2e-9 * rows * D * F / gemm);
    for (int i = 0; i < 3; i++)
        calibrate_note(c, "# linear layers: %lld rows at %.4g GFLOP/s a rank\n", (long long)sizes[i],
                       1e-9 * flop * (double)sizes[i] / linear[i]);
    double hbm = 2.0 * CALIBRATE_COPY_BYTES / calibrate_seconds(c, calibrate_copy, 0);
    calibrate_set(machines, "hbm_rate", hbm);
    calibrate_set(machines, "host_link_rate", CALIBRATE_COPY_BYTES / calibrate_seconds(c, calibrate_host_copy, 0));
    calibrate_set(machines, "optimizer_efficiency",
                  (double)CALIBRATE_PARAMETERS * (28 + sizeof(floatX)) / calibrate_seconds(c, calibrate_adamw, 0) / hbm);
    double forward = calibrate_attention(c, "attention forward", 1, calibrate_forward, &launch[0], &quadratic[0]);
    double backward = calibrate_attention(c, "attention backward", 2.5, calibrate_backward, &launch[1], &quadratic[1]);
    // A CPU's peak is in no data sheet: it is the best rate measured. (Not extrapolated from two sizes: noise could make that any number.)
    double best = fmax(fmax(2 * rows * D * F / gemm, flop * rows / linear[2]), fmax(forward, backward));
    double sheet = device_peak_flops(), peak = sheet > 0 ? sheet : best;
    calibrate_set_kind(machines, "peak", peak, sheet > 0 ? FIGURE_DATASHEET : FIGURE_MEASURED);
    calibrate_set_linear(machines, D * F, (double)sizes[0], linear[0], rows, linear[2]);
    calibrate_set(machines, "attention_forward_efficiency", 2 * width / quadratic[0] / peak);
    calibrate_set(machines, "attention_backward_efficiency", 5 * width / quadratic[1] / peak);
    calibrate_set_kind(machines, "softmax_width", 0, FIGURE_ESTIMATE); // a part of both, which hold for heads of this size
    calibrate_set(machines, "merge_bytes", calibrate_seconds(c, calibrate_merge, 0) / (double)c->T * hbm / width);
    calibrate_set(machines, "step_launch", launch[0] + launch[1]);
    c->T = 16; // so few rows that only the constant cost counts
    calibrate_set(machines, "attention_launch", calibrate_seconds(c, calibrate_around, 0));
}

static inline void calibrate_links(calibration *c, cluster *machines) {
    enum { TIMES = 10 };
    c->bytes = c->link_bytes;
    double one = calibrate_seconds(c, calibrate_one_flow, TIMES), two = calibrate_seconds(c, calibrate_two_flows, TIMES);
    double both = calibrate_seconds(c, calibrate_overlapped, TIMES), gemm = calibrate_seconds(c, calibrate_gemm, TIMES);
    double others = comm_size(c->lanes[0]) - 1, collectives = calibrate_seconds(c, calibrate_collectives, TIMES);
    double collective_rate = 2 * (double)c->bytes * others / (others + 1) / collectives;
    double link = fmax(collective_rate, fmax(2 * (double)c->bytes / two, (double)c->bytes / one));
    calibrate_set(machines, "p2p_rate", (double)c->bytes / one);
    calibrate_set(machines, "nvlink_rate", link);
    calibrate_set(machines, "overlap_cost", (both - gemm) / one);
    calibrate_set(machines, "collective_efficiency", collective_rate / link);
    double little = calibrate_seconds(c, calibrate_little, 10 * TIMES);
    c->bytes = 256;
    calibrate_set(machines, "hop_latency", calibrate_seconds(c, calibrate_little_hop, 10 * TIMES) - little);
    double volume[2], seconds[2];
    for (int i = 0; i < 2; i++) { // two sizes give a constant and a rate
        c->bytes = i == 0 ? 3 * 256 : calibrate_alltoall_bytes(c);
        volume[i] = (double)c->bytes * (others + 1);
        seconds[i] = calibrate_seconds(c, calibrate_little_alltoall, 10 * TIMES) - little;
    }
    calibrate_note(c, "# links: one flow a rank %.4g GB/s, two at once %.4g GB/s; "
                      "alltoall of %.0f bytes a rank %.4g us, of %.0f bytes %.4g us\n",
                   1e-9 * (double)c->link_bytes / one, 2e-9 * (double)c->link_bytes / two, volume[0], 1e6 * seconds[0], volume[1],
                   1e6 * seconds[1]);
    double per_byte = fmax(0, (seconds[1] - seconds[0]) / (volume[1] - volume[0]));
    calibrate_set(machines, "alltoall_pack", per_byte);
    calibrate_set(machines, "alltoall_latency", seconds[0] - per_byte * volume[0]);
}

// Links between nodes of `local` ranks each, after calibrate_links: first every rank sends to the same local rank of the next node, then
// one rank per NIC does; last an alltoall of all ranks. The number of NICs is the cluster's, at most one per rank.
static inline void calibrate_nodes(calibration *c, cluster *machines, int local) {
    enum { TIMES = 10 };
    comm *world = c->world, *inside = c->lanes[0], *inside_alltoall = c->alltoall;
    int n = comm_size(world), me = comm_rank(world) % local, nics = (int)fmin(machines->nics_per_node, local);
    bool first = me == 0 || me * nics / local != (me - 1) * nics / local; // of the ranks that share its NIC
    comm *across = comm_split(world, me, comm_rank(world), COMM_KV_OUTER);
    comm *firsts = comm_split(world, first ? 0 : -1, comm_rank(world), COMM_CONTROL);
    comm *all = comm_split(world, 0, comm_rank(world), COMM_SEQ_ALLTOALL);
    c->bytes = c->link_bytes;
    c->lanes[0] = across;
    double together = calibrate_seconds(c, calibrate_one_flow, TIMES), one = 0;
    c->world = firsts;
    if (first) one = calibrate_seconds(c, calibrate_one_flow, TIMES);
    c->world = world;
    comm_broadcast(world, &one, sizeof one, 0);
    double bytes = (double)c->bytes, share = (double)local / nics, rate = fmax(bytes * share / together, bytes / one);
    if (nics < machines->nics_per_node) calibrate_set(machines, "nics_per_node", nics); // the others have no rank and carry nothing
    calibrate_set(machines, "nic_rate", rate);
    calibrate_set(machines, "nic_efficiency", bytes / one / rate);
    // planner_alltoall, solved for its efficiency
    c->alltoall = all;
    c->bytes = calibrate_alltoall_bytes(c);
    double volume = (double)c->bytes * n, alltoall = calibrate_seconds(c, calibrate_alltoall, TIMES);
    grid_shape shape = planner_shape(machines, 1, n, 1, 1, PLACEMENT_HEAD_FIRST);
    cluster ideal = *machines;
    ideal.alltoall_efficiency = INFINITY;
    double inside_node = planner_alltoall(&ideal, &shape, volume);
    ideal.alltoall_efficiency = 1;
    double wire = planner_alltoall(&ideal, &shape, volume) - inside_node;
    calibrate_set(machines, "alltoall_efficiency", wire / fmax(alltoall - inside_node, alltoall / 100));
    calibrate_note(c, "# nodes: one flow a NIC %.4g GB/s, all ranks at once %.4g GB/s a NIC; "
                      "alltoall of all, %.0f bytes a rank, %.4g us\n",
                   1e-9 * bytes / one, 1e-9 * bytes * share / together, volume, 1e6 * alltoall);
    c->lanes[0] = inside;
    c->alltoall = inside_alltoall;
    comm_free(across);
    comm_free(firsts);
    comm_free(all);
}

// Writes the cluster as a file that cluster_load reads. comment: where it was measured; notes (comment lines): what its figures come from.
static inline void calibrate_write(FILE *f, const cluster *machines, const char *comment, const char *notes) {
    cluster copy = *machines;
    fprintf(f, "# Written by train_llama --calibrate: %s.\n%s\n", comment, notes);
    for (int i = 0; i < CLUSTER_FIGURES; i++) {
        const cluster_figure *figure = &cluster_figures[i];
        fprintf(f, "%-29s %-12.6g # %s:%s\n", figure->key, *cluster_value(&copy, figure), figure_kind_name(machines->kinds[i]),
                machines->kinds[i] == FIGURE_MEASURED ? " here" : " not measured here");
    }
}

// Sets *local to the ranks per node. Collective; false with a message when nodes differ in it, or the ranks of a node are not consecutive.
static inline bool calibrate_local_ranks(comm *world, int *local, error_text *error) {
    *local = comm_local_ranks();
    if (!agree_on_number(world, (uint64_t)*local, "--calibrate: the numbers of ranks per machine", error)) return false;
    if (comm_rank(world) % *local != comm_local_rank())
        error_set(error, "--calibrate: the ranks of a machine are not consecutive; start them in mpirun's default order (--map-by slot)");
    return comm_agree(world, error);
}

// Lays out the buffers in `memory`; only counts while it has no base. The other fields of *c, such as its sizes, are set.
static inline void calibrate_layout(calibration *c, arena *memory, int local) {
    int64_t width = (int64_t)c->H * c->HS, wide = max_i64(c->D, max_i64(2 * c->F, width));
    int64_t Tq = c->T * width, Tkv = c->T * 2 * c->Hkv * c->HS, matrices = 3 * c->layers * c->F * c->D;
    // Two flows, or an alltoall of all ranks.
    int64_t link = max_i64(CALIBRATE_COPY_BYTES, (int64_t)c->link_bytes * max_i64(2, ceil_div(comm_size(c->world), 8)));
    int64_t forward = (int64_t)op_attention_scratch(calibrate_block(c), false);
    int64_t backward = (int64_t)op_attention_scratch(calibrate_block(c), true);
    int64_t reduce = (int64_t)comm_reduce_scatter_scratch(local, c->link_bytes / sizeof(float) / (size_t)local);
    memory->used = 0;
    c->x = ARENA_TAKE_X(memory, MEM_WORKSPACE, c->rows * wide);
    c->y = ARENA_TAKE_X(memory, MEM_WORKSPACE, c->rows * wide);
    c->w = ARENA_TAKE_X(memory, MEM_WORKSPACE, matrices);
    c->norm = ARENA_TAKE_X(memory, MEM_WORKSPACE, c->D);
    c->gradients = ARENA_TAKE(memory, MEM_WORKSPACE, float, matrices);
    c->q = ARENA_TAKE_X(memory, MEM_WORKSPACE, max_i64(Tq, c->rows * wide));
    c->out_x = ARENA_TAKE_X(memory, MEM_WORKSPACE, max_i64(Tq, c->rows * c->D));
    c->kv = ARENA_TAKE_X(memory, MEM_WORKSPACE, Tkv);
    c->out = ARENA_TAKE(memory, MEM_WORKSPACE, float, Tq);
    c->dq = ARENA_TAKE(memory, MEM_WORKSPACE, float, Tq);
    c->dkv = ARENA_TAKE(memory, MEM_WORKSPACE, float, 2 * Tkv);
    c->lse = ARENA_TAKE(memory, MEM_WORKSPACE, float, c->T * c->H);
    c->delta = ARENA_TAKE(memory, MEM_WORKSPACE, float, c->T * c->H);
    c->scratch = ARENA_TAKE(memory, MEM_WORKSPACE, char, max_i64(reduce, max_i64(forward, backward)));
    c->send = ARENA_TAKE(memory, MEM_WORKSPACE, char, link);
    c->recv = ARENA_TAKE(memory, MEM_WORKSPACE, char, link);
}

// Random numbers, as large as in a model: a GPU's products of zeros take less power and run at a higher clock. Weights of the norm are 1,
// so that repeating calibrate_linear on its own results neither grows nor vanishes.
static inline void calibrate_draw(calibration *c) {
    floatX *numbers[] = {c->x, c->w, c->q, c->kv, c->out_x, c->norm};
    int64_t counts[] = {c->rows * c->D, 3 * c->layers * c->F * c->D, c->T * c->H * c->HS, c->T * 2 * c->Hkv * c->HS,
                        c->T * c->H * c->HS, c->D};
    for (int i = 0; i < 6; i++)
        op_init_normal(numbers[i], 1, (uint64_t)i, 0, counts[i], numbers[i] == c->norm ? 0 : numbers[i] == c->w ? 0.02f : 1);
}

// --calibrate, after device_start, on nodes of `local` ranks, with the shapes of the model (NULL: tiny). Collective; false with a message.
static inline bool calibrate(const options *o, const model_config *model, comm *world, int local, error_text *error) {
    cluster machines;
    if (comm_rank(world) == 0) cluster_load(&machines, plan_cluster_name(o), error);
    if (comm_rank(world) == 0 && o->cluster_out != NULL && error->text[0] == '\0')
        file_writable("--cluster-out", o->cluster_out, "# Written by train_llama --calibrate", error);
    if (!comm_agree(world, error)) return false;
    // Of rank 0: other machines may lack the file or differ in it, and it decides which ranks send.
    comm_broadcast(world, &machines, sizeof machines, 0);
    cluster_share(&machines, local); // what is not measured is that of these ranks
    const model_config *m = model != NULL ? model : config_preset("tiny");
    int ranks = comm_size(world);
    calibration c;
    memset(&c, 0, sizeof c);
    c.world = world;
    c.progress = progress_start("calibration");
    comm **groups[] = {&c.lanes[0], &c.lanes[1], &c.alltoall, &c.gather, &c.scatter};
    static const comm_kind kinds[] = {COMM_KV_INNER, COMM_DKV_INNER, COMM_SEQ_ALLTOALL, COMM_PARAM_GATHER, COMM_GRAD_REDUCE};
    for (int i = 0; i < 5; i++) *groups[i] = comm_split(world, comm_rank(world) / local, comm_rank(world), kinds[i]);
    c.D = m->D; c.H = m->H; c.Hkv = m->Hkv; c.HS = m->HS; c.F = m->F;
    c.rows = device_is_host() ? CALIBRATE_LINEAR_ROWS : CALIBRATE_GPU_ROWS;
    c.T = device_is_host() ? CALIBRATE_ROWS : CALIBRATE_GPU_ROWS;
    c.link_bytes = device_is_host() ? CALIBRATE_LINK_BYTES : CALIBRATE_GPU_LINK_BYTES;
    c.layers = ceil_div(CALIBRATE_WEIGHT_BYTES, (int64_t)sizeof(float) * 3 * m->F * m->D);
    size_t memory_total = device_memory_total(); // before any is allocated here
    arena memory;
    memset(&memory, 0, sizeof memory);
    calibrate_layout(&c, &memory, local); // counts
    memory.base = (char *)device_alloc(memory.peak);
    c.host = (char *)device_host_slab(CALIBRATE_COPY_BYTES);
    if (memory.base == NULL || c.host == NULL)
        error_set(error, "--calibrate: not enough memory: a rank needs %zu bytes on the device and %d on the host",
                  memory.peak, CALIBRATE_COPY_BYTES);
    if (!comm_agree(world, error)) return false;
    calibrate_layout(&c, &memory, local);
    device_zero(memory.base, memory.peak);
    calibrate_draw(&c);
    memset(c.host, 1, CALIBRATE_COPY_BYTES); // touches the pages
    c.copier = device_copier_new();
    calibrate_kernels(&c, &machines);
    if (local > 1) calibrate_links(&c, &machines);
    calibrate_set(&machines, "element_bytes", sizeof(floatX));
    calibrate_set(&machines, "gpus_per_node", local);
    calibrate_set(&machines, "memory", (double)memory_total);
    calibrate_set(&machines, "host_memory", (double)machine_memory_usable());
    if (machines.ranks_sharing > 0) {
        calibrate_set(&machines, "ranks_sharing", local);
        calibrate_set(&machines, "nics_per_node", 1);
    }
    if (ranks > local) calibrate_nodes(&c, &machines, local);
    device_copier_free(c.copier);
    device_free(memory.base);
    device_host_slab_free(c.host, CALIBRATE_COPY_BYTES);
    for (int i = 0; i < 5; i++) comm_free(*groups[i]);
    if (comm_rank(world) == 0) {
        char comment[512];
        snprintf(comment, sizeof comment, "%d rank%s at once on %s, %d a node, shapes of %s",
                 ranks, plural(ranks), device_name(), local, m->name);
        path_text beside;
        FILE *f = o->cluster_out != NULL ? file_open_beside(o->cluster_out, &beside) : stdout;
        if (f != NULL) calibrate_write(f, &machines, comment, c.notes);
        if (o->cluster_out != NULL && file_finish("--cluster-out", o->cluster_out, beside.text, f, error))
            printf("wrote %s; --plan --cluster %s uses it\n", o->cluster_out, o->cluster_out);
    }
    return comm_agree(world, error);
}

#endif
