// ranks: 4
// sanitize: no
// --calibrate on several nodes: ranks of one machine that are taken for two nodes of two. All that links between nodes give is measured, in
// figures that a cluster file may have, and the node is one of two ranks. (test_calibrate.sh: the command; how fast a link is only its network knows.)
#include "test.h"
#include "../calibrate.h"

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
        static const char *const keys[] = {"gpus_per_node", "nic_rate", "nic_efficiency", "alltoall_efficiency", "p2p_rate", "nvlink_rate"};
        cluster machines;
        CHECK(cluster_load(&machines, file, &error), "%s", error.text);
        CHECK(machines.gpus_per_node == 2 && machines.ranks_sharing == 2, "nodes of %g ranks", machines.gpus_per_node);
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            for (int i = 0; i < CLUSTER_FIGURES; i++)
                if (strcmp(cluster_figures()[i].key, keys[k]) == 0) CHECK(machines.kinds[i] == FIGURE_MEASURED, "%s is not measured", keys[k]);
        char *text = config_read_file(file, &error);
        CHECK(text != NULL && strstr(text, "\n# nodes: one flow a NIC ") != NULL, "the file does not say what its figures come from");
        free(text);
        close(fd);
        remove(file);
    }
    int status = test_finish("test_calibrate_nodes", world);
    comm_finalize();
    return status;
}
