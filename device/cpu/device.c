// The CPU as a device: its cores and threads, its memory. What it shares with DEVICE=emulated: host_memory.c. See device/device.h.
#include "../comm.h"
#include "../ops.h"

#include <cblas.h>
#include <omp.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

static char name[256] = "CPU (not started)";
static int cores_here = 1; // on this machine, or on the part of it that the job was given

// Physical cores among the CPUs this process may use: only the first hardware thread of a core counts.
static int allowed_cores(void) {
    cpu_set_t set;
    int cores = 0;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return (int)sysconf(_SC_NPROCESSORS_ONLN);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &set)) continue;
        char path[128];
        int first = cpu;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
        FILE *f = fopen(path, "r");
        if (f != NULL) {
            if (fscanf(f, "%d", &first) != 1) first = cpu;
            fclose(f);
        }
        if (first == cpu || !CPU_ISSET(first, &set)) cores++;
    }
    return cores > 0 ? cores : 1;
}

// "model name" of the first processor.
static void cpu_model(char *model, size_t size) {
    snprintf(model, size, "unknown processor");
    FILE *f = fopen("/proc/cpuinfo", "r");
    if (f == NULL) return;
    char line[256];
    while (fgets(line, sizeof line, f) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || colon == NULL) continue;
        snprintf(model, size, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        break;
    }
    fclose(f);
}

bool device_start(int threads, error_text *error) {
    (void)error;
    // With one or two ranks mpirun binds each to a single core. Count the cores that the job may use in all, and return to the given
    // binding if it is wide enough for the threads of this rank. A binding that is not mpirun's stays.
    cpu_set_t given, all;
    bool known = getenv("OMPI_COMM_WORLD_SIZE") != NULL && sched_getaffinity(0, sizeof given, &given) == 0;
    memset(&all, 0xff, sizeof all);
    if (known) sched_setaffinity(0, sizeof all, &all);
    cores_here = allowed_cores();
    if (threads == 0) threads = (int)max_i64(1, cores_here / comm_local_ranks());
    if (known && CPU_COUNT(&given) >= threads) sched_setaffinity(0, sizeof given, &given);

    openblas_set_num_threads(threads); // builds of it without OpenMP have their own threads
    omp_set_dynamic(0);
    omp_set_num_threads(threads);
    char model[128];
    cpu_model(model, sizeof model);
    const char *forced = getenv("OPENBLAS_CORETYPE");
    snprintf(name, sizeof name, "CPU: %s, %d thread%s, OpenBLAS %s%s%s%s", model, threads, plural(threads), openblas_get_corename(),
             forced != NULL ? " (OPENBLAS_CORETYPE=" : "", forced != NULL ? forced : "", forced != NULL ? " is set)" : "");
    return true;
}
void device_use_deterministic(void) {}
const char *device_name(void) { return name; }

double device_measure_gemm(void) {
    // A millisecond: on a busy machine, some end before it is another program's turn.
    const int64_t n = round_up((int64_t)(384 * cbrt(omp_get_max_threads())), 64);
    float *x = (float *)device_alloc(sizeof(float) * 3 * n * n);
    if (x == NULL) return 0;
    for (int64_t i = 0; i < 2 * n * n; i++) x[i] = (float)(i % 7) - 3;
    double best = 0, began = device_seconds();
    do {
        double from = device_seconds();
        op_linear_forward(x + 2 * n * n, x, x + n * n, NULL, n, n, n);
        double rate = 2.0 * (double)(n * n * n) / (device_seconds() - from);
        if (rate > best) best = rate;
    } while (device_seconds() - began < 0.1);
    device_free(x);
    double busy = (double)comm_local_ranks() * omp_get_max_threads();
    return busy > cores_here ? best * cores_here / busy : best; // more threads than cores: each rank gets its share
}

// Does not touch the memory: the kernel maps pages when they are first written. Large allocations ask for huge pages.
void *device_alloc(size_t bytes) {
    const size_t huge = (size_t)2 << 20;
    void *p = NULL;
    if (posix_memalign(&p, bytes >= 2 * huge ? huge : 256, bytes > 0 ? bytes : 1) != 0) return NULL;
    if (bytes >= 2 * huge) madvise(p, bytes / huge * huge, MADV_HUGEPAGE);
    return p;
}
bool device_is_host(void) { return true; }
