// Input: a cluster file. All figures of a file that is accepted are finite, for 1 rank and for 16.
#include "../../cluster.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    error_text error = no_error();
    cluster c;
    path_text path = fuzz_file("cluster.txt", data, size);
    bool ok = cluster_load(&c, path.text, &error);
    must_be_clear(ok, &error);
    if (!ok) return 0;
    char basis[128];
    cluster_basis(&c, basis, sizeof basis);
    for (int ranks = 1; ranks <= 16; ranks *= 16) {
        cluster shared = c;
        cluster_share(&shared, ranks);
        for (int i = 0; i < CLUSTER_FIGURES; i++)
            MUST(isfinite(*cluster_value(&shared, &cluster_figures[i])), "%s", cluster_figures[i].key);
    }
    fuzz_accepted++;
    return 0;
}
