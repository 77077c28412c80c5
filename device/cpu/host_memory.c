// What the CPU device and DEVICE=emulated have in common: device memory is host memory, and work runs when it is issued, in program order.
#include "../comm.h"

void device_stop(void) {}
const char *device_determinism(void) { return "yes: this device adds up every sum in a fixed order"; }
double device_peak_flops(void) { return 0; } // not known: clock and vector units vary too much between CPUs; see device_measure_gemm
size_t device_memory_total(void) { return machine_memory_usable() / (size_t)comm_local_ranks(); }
size_t device_memory_used(void) { // without shared pages: those that MPI uses for messages grow with the ranks on the machine
    long resident = 0, shared = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f != NULL && fscanf(f, "%*s %ld %ld", &resident, &shared) != 2) resident = shared = 0;
    if (f != NULL) fclose(f);
    return (size_t)(resident - shared) * (size_t)sysconf(_SC_PAGESIZE);
}

void device_free(void *p) { free(p); }
void *device_host_slab(size_t bytes) { return device_alloc(bytes); }
void device_host_slab_free(void *p, size_t bytes) {
    (void)bytes;
    free(p);
}

// In pieces of 1 MiB, so that all threads move memory.
enum { PIECE = 1 << 20 };
void device_zero(void *p, size_t bytes) {
#pragma omp parallel for schedule(static) if (bytes > PIECE)
    for (size_t at = 0; at < bytes; at += PIECE) memset((char *)p + at, 0, bytes - at < PIECE ? bytes - at : PIECE);
}
void device_copy(void *to, const void *from, size_t bytes) {
#pragma omp parallel for schedule(static) if (bytes > PIECE)
    for (size_t at = 0; at < bytes; at += PIECE) memcpy((char *)to + at, (const char *)from + at, bytes - at < PIECE ? bytes - at : PIECE);
}
void device_from_host(void *to, const void *from, size_t bytes) { device_copy(to, from, bytes); }
void device_to_host(void *to, const void *from, size_t bytes) { device_copy(to, from, bytes); }
void device_synchronize(void) {}

struct device_copier {
    int64_t started; // tickets given out
};
device_copier *device_copier_new(void) { return HOST_NEW(device_copier, 1); }
void device_copier_free(device_copier *lane) { free(lane); }
int64_t device_copy_start(device_copier *lane, void *to, const void *from, size_t bytes) {
    device_copy(to, from, bytes);
    return ++lane->started;
}
void device_copy_finish(device_copier *lane, int64_t ticket) {
    if (ticket > 0 && ticket <= lane->started) return;
    fprintf(stderr, "error: device_copy_finish: ticket %lld was never given (the last is %lld)\n", (long long)ticket,
            (long long)lane->started);
    abort();
}

void device_aside_begin(void) {}
void device_aside_end(void) {}
void device_aside_wait(void) {}

void device_trace_start(void) {}
int64_t device_trace_spans(const device_span **spans) {
    *spans = NULL;
    return 0;
}
