// DEVICE=emulated: the emulated kernels run on the CPU. The rest of this device: device/cpu/host_memory.c.
#include "attention_call.h"

#include <cblas.h>
#include <unistd.h>

bool device_start(int threads, error_text *error) {
    (void)error;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    // The kernels themselves run on one thread.
    openblas_set_num_threads(threads > 0 ? threads : (int)max_i64(1, cores / comm_local_ranks()));
    return true;
}
void device_use_deterministic(void) { attention_use_deterministic(); }
const char *device_name(void) {
    return sizeof(floatX) == 2 ? "emulated: the CUDA kernels on the CPU, bf16 (proof, not speed)"
                               : "emulated: the CUDA kernels on the CPU, float (proof, not speed)";
}

double device_measure_gemm(void) { return 0; } // proof, not speed: no rate is claimed, and no MFU

void *device_alloc(size_t bytes) {
    void *p = NULL;
    if (posix_memalign(&p, 256, bytes > 0 ? bytes : 1) != 0) return NULL;
    memset(p, 0xff, bytes); // NaN: reads of unwritten memory show
    return p;
}
bool device_is_host(void) { return false; }

cudaStream_t device_compute_stream(void) { return NULL; }
size_t device_shared_memory(void) { return (size_t)99 << 10; } // as much as the emulation lets a kernel have
double *device_reduction_scratch(void) {
    static double partial[REDUCTION_BLOCKS + 1];
    return partial;
}
