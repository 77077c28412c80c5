// DEVICE=emulated: the emulated kernels run on the CPU; device memory is host memory, and work runs when issued, in program order.
#include "attention_call.h"

#include <cblas.h>
#include <unistd.h>

static int64_t tickets;

bool device_start(int local_rank, int local_ranks, int threads, error_text *error) {
    (void)local_rank;
    (void)error;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    openblas_set_num_threads(threads > 0 ? threads : (int)max_i64(1, cores / max_i64(1, local_ranks))); // the kernels themselves run on one thread
    return true;
}
void device_use_deterministic(void) { attention_use_deterministic(); }
const char *device_determinism(void) { return "yes: this device adds up every sum in a fixed order"; }
void device_stop(void) {}
const char *device_name(void) {
    return sizeof(floatX) == 2 ? "emulated: the CUDA kernels on the CPU, bf16 (proof, not speed)"
                               : "emulated: the CUDA kernels on the CPU, float (proof, not speed)";
}
double device_peak_flops(void) { return 0; }

double device_measure_gemm(void) { // through op_linear, so casts are included: the real rate of this device
    const int64_t n = 512;
    const size_t bytes = sizeof(floatX) * 3 * n * n;
    floatX *x = (floatX *)device_alloc(bytes);
    if (x == NULL) device_fail("not enough memory to measure the speed of a product: %zu bytes", bytes);
    op_init_normal(x, 1, 0, 0, 2 * n * n, 1, 0);
    op_linear_forward(x + 2 * n * n, x, x + n * n, NULL, n, n, n);
    double began = device_seconds(), seconds = 0;
    int products = 0;
    while (seconds < 0.05) {
        op_linear_forward(x + 2 * n * n, x, x + n * n, NULL, n, n, n);
        products++;
        seconds = device_seconds() - began;
    }
    device_free(x, bytes);
    return 2.0 * (double)n * (double)n * (double)n * products / seconds;
}
size_t device_memory_total(void) { return machine_memory_usable() / (size_t)max_i64(1, comm_local_ranks()); }
size_t device_memory_used(void) { return process_memory(); }

void *device_alloc(size_t bytes) {
    void *p = NULL;
    if (posix_memalign(&p, 256, bytes > 0 ? bytes : 1) != 0) return NULL;
    memset(p, 0xff, bytes); // NaN: reads of unwritten memory show
    return p;
}
void device_free(void *p, size_t bytes) {
    (void)bytes;
    free(p);
}
void *device_host_slab(size_t bytes) { return device_alloc(bytes); }
void device_host_slab_free(void *p, size_t bytes) { device_free(p, bytes); }
bool device_is_host(void) { return false; }

void device_zero(void *p, size_t bytes) { memset(p, 0, bytes); }
void device_copy(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
void device_from_host(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
void device_to_host(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
void device_synchronize(void) {}

device_copier *device_copier_new(void) { return (device_copier *)host_alloc(1); }
void device_copier_free(device_copier *lane) { free(lane); }
int64_t device_copy_start(device_copier *lane, void *to, const void *from, size_t bytes) {
    (void)lane;
    memcpy(to, from, bytes);
    return ++tickets;
}
void device_copy_finish(device_copier *lane, int64_t ticket) {
    (void)lane;
    (void)ticket;
}
void device_aside_begin(void) {}
void device_aside_end(void) {}
void device_aside_wait(void) {}

cudaStream_t device_compute_stream(void) { return NULL; }
size_t device_shared_memory(void) { return (size_t)99 << 10; } // as much as the emulation lets a kernel have
double *device_reduction_scratch(void) {
    static double partial[REDUCTION_BLOCKS + 1];
    return partial;
}
void device_trace_start(void) {}
int64_t device_trace_spans(const device_span **spans) {
    *spans = NULL;
    return 0;
}
