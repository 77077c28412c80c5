// ranks: 4
// sanitize: no
// --calibrate on several nodes: four ranks of one machine pose as two nodes of two. Every figure that depends on links between nodes is measured and
// legal in a cluster file, and a node is taken to have two ranks. (test_calibrate.sh tests the command; real link rates need a real network.)
#include "test.h"
#include "../calibrate.h"

// The rate that follows `line` in the file's notes, in FLOP/s; 0 if it is not there.
static double noted(const char *text, const char *line) {
    const char *at = text != NULL ? strstr(text, line) : NULL;
    return at != NULL ? 1e9 * strtod(at + strlen(line), NULL) : 0;
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
    CHECK(calibrate(&o, config_preset("nano"), world, 2, &error), "%s", error.text);
    if (comm_rank(world) == 0) {
        static const char *const keys[] = {"gpus_per_node", "nic_rate", "nic_efficiency", "alltoall_efficiency", "p2p_rate", "nvlink_rate", "memory", "host_memory"};
        cluster machines;
        CHECK(cluster_load(&machines, file, &error), "%s", error.text);
        CHECK(machines.gpus_per_node == 2 && machines.ranks_sharing == 2, "nodes of %g ranks", machines.gpus_per_node);
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) CHECK(machines.kinds[cluster_find(keys[k])] == FIGURE_MEASURED, "%s is not measured", keys[k]);
        char *text = config_read_file(file, &error);
        const char *note = text != NULL ? strstr(text, "\n# nodes: one flow a NIC ") : NULL;
        double one = 0, together = 0, bytes = 0, microseconds = 0;
        int found = note == NULL ? 0 : sscanf(note, "\n# nodes: one flow a NIC %lf GB/s, all ranks at once %lf GB/s a NIC; alltoall of all, %lf bytes a rank, %lf us", &one, &together, &bytes, &microseconds);
        CHECK(found == 4, "the file does not say what its figures come from");
        // The planner predicts what was measured, unless a figure stands at its limit.
        grid_shape shape = planner_shape(&machines, 1, 4, 1, 1, PLACEMENT_HEAD_FIRST);
        double predicted = 1e6 * planner_alltoall(&machines, &shape, bytes);
        CHECK(fabs(machines.nic_rate / (1e9 * fmax(one, together)) - 1) < 1e-3, "a NIC of %g B/s, measured %g and %g GB/s", machines.nic_rate, one, together);
        CHECK(fabs(predicted / microseconds - 1) < 0.02 || machines.alltoall_efficiency == 4, "alltoall: measured %g us, predicted %g", microseconds, predicted);
        double linear = noted(text, "# linear layers: 256 rows at "), forward = noted(text, "# attention forward: blocks of 1024 rows x 512 keys at ");
        double backward = noted(text, "# attention backward: blocks of 1024 rows x 512 keys at "), DF = 64 * 176, width = 64, T2 = 1024.0 * 1024.0; // of nano
        CHECK(machines.peak > 0.999 * fmax(linear, fmax(forward, backward)), "a peak of %g FLOP/s below what was reached: %g, %g, %g", machines.peak, linear, forward, backward);
        double measured = 18 * 256 * DF / linear, again = 18 * 256 * DF / (machines.linear_efficiency * machines.peak) + 3 * DF * machines.weight_bytes / machines.hbm_rate;
        CHECK(fabs(again / measured - 1) < 2e-3 || machines.linear_efficiency == 1, "linear layers: measured %g s, predicted %g", measured, again);
        measured = 2 * T2 * width / forward + 5 * T2 * width / backward;
        again = T2 * width / machines.peak * (2 / machines.attention_forward_efficiency + 5 / machines.attention_backward_efficiency) + machines.step_launch;
        CHECK(fabs(again / measured - 1) < 2e-3 || machines.attention_forward_efficiency == 1 || machines.attention_backward_efficiency == 1, "attention: measured %g s, predicted %g", measured, again);
        free(text);
        close(fd);
        remove(file);
    }
    int status = test_finish("test_calibrate_nodes", world);
    comm_finalize();
    return status;
}
