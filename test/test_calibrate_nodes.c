// ranks: 4
// sanitize: no
// --calibrate on several nodes: four ranks of one machine pose as two nodes of two. Every figure that depends on links between nodes is
// measured and legal in a cluster file, and a node is taken to have two ranks. (test_calibrate.sh tests the command; real link rates need a
// real network.) test_cuda runs it over the fakes, too: the device's copies, products and transfers.
#define CALIBRATE_GPU_ROWS 256
#define CALIBRATE_GPU_LINK_BYTES (1 << 20)
#include "test.h"
#include "../calibrate.h"

// The rate that follows `line`, with its one or two numbers of rows, in the file's notes, in FLOP/s; 0 if it is not there.
static double noted(const char *text, const char *line, int rows, int keys) {
    char whole[128];
    snprintf(whole, sizeof whole, line, rows, keys);
    const char *at = text != NULL ? strstr(text, whole) : NULL;
    return at != NULL ? 1e9 * strtod(at + strlen(whole), NULL) : 0;
}

// The planner predicts the seconds that linear_efficiency and weight_bytes come from, also where weights or rows seem free by noise.
static void check_linear(void) {
    const double cases[][2] = {{3e-3, 5e-3}, {1e-3, 4.5e-3}, {4e-3, 4e-3}}; // seconds of 64 and of 256 rows
    const double expected[][2] = {{3e-3, 5e-3}, {4.5e-3 / 4, 4.5e-3}, {1e-3, 4e-3}}; // weights count 0 in the last two
    for (int i = 0; i < 3; i++) {
        cluster c;
        error_text error = {"", 0};
        CHECK(cluster_load(&c, "h100", &error), "%s", error.text);
        c.peak = 1e14;
        c.hbm_rate = 1e11;
        double DF = 1e6;
        calibrate_set_linear(&c, DF, 64, cases[i][0], 256, cases[i][1]);
        for (int k = 0; k < 2; k++) {
            double rows = k == 0 ? 64 : 256;
            double seconds = 18 * DF * rows / (c.linear_efficiency * c.peak) + 3 * DF * c.weight_bytes / c.hbm_rate;
            CHECK(fabs(seconds / expected[i][k] - 1) < 1e-9, "case %d: %g rows take %g s", i, rows, seconds);
        }
        CHECK(c.kinds[cluster_find("weight_bytes")] == FIGURE_MEASURED && c.kinds[cluster_find("linear_efficiency")] == FIGURE_MEASURED,
              "not measured");
    }
}

static const double digits = 6e-4; // the file's notes have 4 digits, which are up to 5e-4 off, and its figures 6
// The planner predicts what was measured, unless a figure stands at its limit.
static void check_prediction(const char *what, double measured, double predicted, bool at_limit) {
    if (at_limit) TEST_SKIP("%s: figures stand at their limits: measured %g s, predicted %g", what, measured, predicted);
    else CHECK(fabs(predicted / measured - 1) < digits, "%s: measured %g s, predicted %g", what, measured, predicted);
}

int main(int argc, char **argv) {
    comm *world = test_start(&argc, &argv);
    error_text error;
    error.text[0] = '\0';
    char file[] = "/tmp/test_calibrate_nodes.XXXXXX";
    int fd = comm_rank(world) == 0 ? mkstemp(file) : -1;
    options o;
    options_default(&o);
    o.cluster_out = file;
    check_linear();
    CHECK(calibrate(&o, config_preset("nano"), world, 2, &error), "%s", error.text);
    // Bytes that this rank sent: 42 runs of everything with long transfers; 402 with short ones, of SeqAlltoAll at two sizes.
    int64_t link = device_is_host() ? CALIBRATE_LINK_BYTES : CALIBRATE_GPU_LINK_BYTES, each = link / 8 / 768 * 768;
    bool first = comm_rank(world) % 2 == 0 || !device_is_host(); // of the ranks that share a NIC; GPUs have one each
    const struct {
        comm_kind kind;
        int64_t sent;
    } transfers[] = {{COMM_SEQ_ALLTOALL, 402 * (768 + each) + 42 * 3 * each}, // of the two ranks of a node, then of all four
                     {COMM_KV_INNER, 3 * 42 * link + 402 * 256},              // one flow: alone, one of two, beside a product; a short hop
                     {COMM_DKV_INNER, 42 * link},                             // the other of two
                     {COMM_KV_OUTER, (first ? 2 : 1) * 42 * link},            // all ranks together, then one per NIC
                     {COMM_PARAM_GATHER, 42 * link / 2},
                     {COMM_GRAD_REDUCE, 42 * link / 2}};
    for (size_t k = 0; k < sizeof transfers / sizeof *transfers; k++) {
        int64_t sent = comm_count(transfers[k].kind).bytes_sent;
        CHECK(sent == transfers[k].sent, "%s: %lld bytes sent, not %lld", comm_kind_name(transfers[k].kind), (long long)sent,
              (long long)transfers[k].sent);
    }
    if (comm_rank(world) == 0) {
        static const char *const keys[] = {"gpus_per_node", "nic_rate", "nic_efficiency", "alltoall_efficiency", "p2p_rate", "nvlink_rate",
                                           "memory", "host_memory"};
        cluster machines;
        CHECK(cluster_load(&machines, file, &error), "%s", error.text);
        CHECK(machines.gpus_per_node == 2 && machines.ranks_sharing == (device_is_host() ? 2 : 0),
              "nodes of %g ranks", machines.gpus_per_node);
        CHECK(machines.nics_per_node == (device_is_host() ? 1 : 2), "%g NICs: no more than ranks", machines.nics_per_node);
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            CHECK(machines.kinds[cluster_find(keys[k])] == FIGURE_MEASURED, "%s is not measured", keys[k]);
        char *text = file_read_text(file, CONFIG_BYTES, &error);
        const char *note = text != NULL ? strstr(text, "\n# nodes: one flow a NIC ") : NULL;
        double one = 0, together = 0, bytes = 0, microseconds = 0;
        int found = note == NULL ? 0 : sscanf(note, "\n# nodes: one flow a NIC %lf GB/s, all ranks at once %lf GB/s a NIC; "
                                                    "alltoall of all, %lf bytes a rank, %lf us", &one, &together, &bytes, &microseconds);
        CHECK(found == 4, "the file does not say what its figures come from");
        double flow = 0, two = 0; // inside a node
        note = text != NULL ? strstr(text, "\n# links: ") : NULL;
        found = note == NULL ? 0 : sscanf(note, "\n# links: one flow a rank %lf GB/s, two at once %lf GB/s;", &flow, &two);
        CHECK(found == 2, "the file does not say what the links reached");
        CHECK(fabs(machines.p2p_rate / (1e9 * flow) - 1) < digits, "%g B/s of one flow, measured %g GB/s", machines.p2p_rate, flow);
        CHECK(machines.nvlink_rate > (1 - digits) * 1e9 * fmax(flow, two),
              "a link of %g B/s, measured were %g and %g GB/s", machines.nvlink_rate, flow, two);
        bool emulated = !device_is_host(); // then figures far from a GPU's stand at their limits
        grid_shape shape = planner_shape(&machines, 1, 4, 1, 1, PLACEMENT_HEAD_FIRST);
        // On a busy machine, measured inside a node may be more than all of it.
        cluster ideal = machines;
        ideal.alltoall_efficiency = INFINITY;
        double inside = 1e6 * planner_alltoall(&ideal, &shape, bytes);
        bool at_limit = emulated || machines.alltoall_efficiency == 4 || inside > 0.98 * microseconds;
        check_prediction("alltoall", 1e-6 * microseconds, planner_alltoall(&machines, &shape, bytes), at_limit);
        CHECK(fabs(machines.nic_rate / (1e9 * fmax(one, together)) - 1) < digits,
              "a NIC of %g B/s, measured %g and %g GB/s", machines.nic_rate, one, together);
        int rows = device_is_host() ? CALIBRATE_LINEAR_ROWS : CALIBRATE_GPU_ROWS;
        int T = device_is_host() ? CALIBRATE_ROWS : CALIBRATE_GPU_ROWS;
        double linear = noted(text, "# linear layers: %d rows at ", rows, 0);
        double forward = noted(text, "# attention forward: blocks of %d rows x %d keys at ", T, T / 2);
        double backward = noted(text, "# attention backward: blocks of %d rows x %d keys at ", T, T / 2);
        double DF = 64 * 176, width = 64, T2 = (double)T * T; // of nano
        double product = noted(text, "# one product: %d rows at ", rows, 0), best = fmax(fmax(product, linear), fmax(forward, backward));
        CHECK(product > 0 && machines.peak > (1 - digits) * best && (emulated || machines.peak < (1 + digits) * best),
              "a peak of %g FLOP/s, reached were %g, %g, %g, %g", machines.peak, product, linear, forward, backward);
        double measured = 18 * rows * DF / linear;
        double again = 18 * rows * DF / (machines.linear_efficiency * machines.peak) + 3 * DF * machines.weight_bytes / machines.hbm_rate;
        check_prediction("linear layers", measured, again, emulated || machines.linear_efficiency == 1);
        measured = 2 * T2 * width / forward + 5 * T2 * width / backward;
        again = T2 * width / machines.peak * (2 / machines.attention_forward_efficiency + 5 / machines.attention_backward_efficiency) +
                machines.step_launch;
        at_limit = emulated || machines.attention_forward_efficiency == 1 || machines.attention_backward_efficiency == 1;
        check_prediction("attention", measured, again, at_limit);
        free(text);
        close(fd);
        remove(file);
    }
    int status = test_finish("test_calibrate_nodes", world);
    comm_finalize();
    return status;
}
