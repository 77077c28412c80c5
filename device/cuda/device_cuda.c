// The GPU as a device: memory, the compute stream, lanes for copies to and from the host. See device/device.h.
//
// All operations run on one non-blocking stream (device_compute_stream); those issued aside, on another one. Each lane of copies and each
// communicator (comm_nccl.c) has its own stream. Events order them: `start` makes the lane wait for the compute issued so far, `finish`
// makes later compute wait for the lane. Inside a step the host waits only in device_to_host, and where it is far ahead of the GPU: STAGED
// copies in device_from_host, RING transfers of one communicator (comm_nccl.c).
#include "../../progress.h"
#include "attention_call.h"

#include <ctype.h>
#include <errno.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

// Pinned memory that copies from the host pass through: slots, of which copy number n takes number n % STAGED.
enum { STAGED = 16, STAGED_BYTES = 1 << 20 };

static struct {
    bool started, deterministic;
    int index, ranks_sharing;
    struct cudaDeviceProp properties;
    char name[400];
    cudaStream_t compute; // of the operations issued now: while they are issued aside, the other one
    cudaStream_t other;
    cudaEvent_t aside_ready, aside_done;
    bool aside;
    double *reduction;
    char *staged;                 // (STAGED, STAGED_BYTES)
    cudaEvent_t has_left[STAGED]; // the newest copy from this slot is done
    int64_t copies;               // from the host, so far
    size_t pinned;                // bytes of host slabs
} gpu;

void cuda_check(cudaError_t status, const char *what) {
    if (status != cudaSuccess) comm_abort("%s: %s (%s)", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

// ---- start and stop ----

// Dense bf16 FLOP/s with float accumulation, from NVIDIA's data sheets. The first entry whose name occurs in the GPU's
// name counts, but not as part of a longer number: an RTX A1000 is no A100.
static const struct {
    const char *name;
    double flops;
} peaks[] = {
    {"GB300", 2500e12},       {"GB200", 2500e12},       {"B300", 2250e12},        {"B200", 2250e12},        {"B100", 1750e12},
    {"GH200", 989.4e12},      {"H200 NVL", 835.5e12},   {"H200", 989.4e12},       {"H100 PCIe", 756e12},    {"H100 NVL", 835e12},
    {"H100", 989.4e12},       {"H800 PCIe", 756e12},    {"H800", 989.4e12},       {"H20", 148e12},          {"A100", 312e12},
    {"A800", 312e12},         {"A30", 165e12},          {"A40", 149.7e12},        {"A10G", 70e12},          {"A10", 125e12},
    {"L40S", 362e12},         {"L40", 181e12},          {"L4", 121e12},           {"RTX A6000", 155e12},    {"RTX 6000 Ada", 364e12},
    {"RTX 5090", 209.5e12},   {"RTX 4090", 165.2e12},   {"RTX 3090", 71e12},
};

// Ranks on this GPU, this one included. Counted by UUID, because a launcher may show each rank only its own GPU. All ranks of a machine
// call it, also those without a GPU.
static int ranks_on_this_gpu(void) {
    comm *machine = comm_machine();
    if (machine == NULL) return 1; // a program without communication
    int size = comm_size(machine), same = 0;
    int64_t *ids = HOST_NEW(int64_t, 2 * size), *own = ids + 2 * comm_rank(machine);
    memcpy(own, gpu.properties.uuid.bytes, sizeof gpu.properties.uuid.bytes);
    comm_sum_int64(machine, ids, 2 * size);
    for (int r = 0; r < size; r++) same += memcmp(ids + 2 * r, own, sizeof gpu.properties.uuid.bytes) == 0;
    free(ids);
    return same;
}

// mpirun binds each of one or two ranks to one core, where threads of CUDA and NCCL (one for each call of ours) and the one that writes a
// state would wait for the one that launches.
static void leave_single_core(void) {
    cpu_set_t given, all;
    if (sched_getaffinity(0, sizeof given, &given) != 0 || CPU_COUNT(&given) >= 4) return;
    memset(&all, 0xff, sizeof all);
    sched_setaffinity(0, sizeof all, &all); // of these, what the job may use
}
static int numa_node(void) { // of the GPU; -1: not known
    int node = -1;
    if (cudaDeviceGetAttribute(&node, cudaDevAttrHostNumaId, gpu.index) != cudaSuccess) cudaGetLastError();
    return node;
}
// mpirun binds more than two ranks to NUMA nodes in turn (Open MPI 4.1.4: of two nodes, rank r to node r % 2), whichever is nearest to the
// rank's GPU. NCCL would then keep its threads, and host memory that transfers pass through, on a far one (topo.cc: "empty, ignoring"). A
// rank without a core in its GPU's node takes those that are there, if it may.
static void leave_far_cores(void) {
    cpu_set_t given, near;
    int node = numa_node();
    if (node < 0 || sched_getaffinity(0, sizeof given, &given) != 0) return;
    CPU_ZERO(&near);
    for (int i = 0; i < CPU_SETSIZE; i++) {
        char core[80];
        snprintf(core, sizeof core, "/sys/devices/system/node/node%d/cpu%d", node, i);
        if (access(core, F_OK) == 0) CPU_SET((size_t)i, &near);
    }
    CPU_AND(&given, &given, &near);
    if (CPU_COUNT(&given) == 0 && CPU_COUNT(&near) > 0) sched_setaffinity(0, sizeof near, &near);
}

bool device_start(int threads, error_text *error) {
    leave_single_core();
    if (threads > 1) return error_set(error, "--threads %d: a rank on a GPU computes with one host thread; the legal value is 1", threads);
    int count = 0;
    cudaError_t counted = cudaGetDeviceCount(&count), status = counted;
    if (counted == cudaSuccess && count > 0) {
        gpu.index = comm_local_rank() % count;
        leave_far_cores();
        status = cudaSetDevice(gpu.index);
        if (status == cudaSuccess) status = cudaGetDeviceProperties(&gpu.properties, gpu.index);
    }
    gpu.ranks_sharing = ranks_on_this_gpu();
    if (counted != cudaSuccess)
        return error_set(error, "no usable GPU: %s (%s); make DEVICE=cpu builds for a machine without one", cudaGetErrorString(status),
                         cudaGetErrorName(status));
    if (count == 0)
        return error_set(error, "no GPU is visible (CUDA_VISIBLE_DEVICES=%s)",
                         getenv("CUDA_VISIBLE_DEVICES") == NULL ? "" : getenv("CUDA_VISIBLE_DEVICES"));
    if (status != cudaSuccess) return error_set(error, "GPU %d could not be started: %s", gpu.index, cudaGetErrorString(status));
    const char *share = getenv("TRAIN_LLAMA_SHARE_GPU");
    if (gpu.ranks_sharing > 1 && (share == NULL || strcmp(share, "1") != 0))
        return error_set(error,
                         "%d ranks share a GPU (the machine has %d ranks, this one sees %d GPUs); start one rank per GPU "
                         "(for a test of correctness, TRAIN_LLAMA_SHARE_GPU=1 lets ranks share a GPU)",
                         gpu.ranks_sharing, comm_local_ranks(), count);
    if (gpu.properties.major < 8)
        return error_set(error, "GPU %d is a %s of compute capability %d.%d; bf16 needs 8.0 or more", gpu.index, gpu.properties.name,
                         gpu.properties.major, gpu.properties.minor);
    attention_use_blackwell(gpu.properties.major >= 10);
    cuda_check(cudaStreamCreateWithFlags(&gpu.compute, cudaStreamNonBlocking), "creating the compute stream");
    cuda_check(cudaStreamCreateWithFlags(&gpu.other, cudaStreamNonBlocking), "creating the stream of work aside");
    cuda_check(cudaEventCreateWithFlags(&gpu.aside_ready, cudaEventDisableTiming), "creating the stream of work aside");
    cuda_check(cudaEventCreateWithFlags(&gpu.aside_done, cudaEventDisableTiming), "creating the stream of work aside");
    cuda_check(cudaMalloc((void **)&gpu.reduction, sizeof(double) * (REDUCTION_BLOCKS + 1)), "allocating the sums' scratch");
    cuda_check(cudaMallocHost((void **)&gpu.staged, (size_t)STAGED * STAGED_BYTES), "pinning memory for copies from the host");
    for (int i = 0; i < STAGED; i++)
        cuda_check(cudaEventCreateWithFlags(&gpu.has_left[i], cudaEventDisableTiming), "pinning memory for copies from the host");
    char sharing[64] = "";
    if (gpu.ranks_sharing > 1) snprintf(sharing, sizeof sharing, ", shared by %d ranks (test mode)", gpu.ranks_sharing);
    snprintf(gpu.name, sizeof gpu.name, "%s, %.1f GiB, compute capability %d.%d%s", gpu.properties.name,
             (double)gpu.properties.totalGlobalMem / (double)(1 << 30), gpu.properties.major, gpu.properties.minor, sharing);
    gpu.started = true;
    return true;
}
void device_use_deterministic(void) {
    gpu.deterministic = true;
    attention_use_deterministic();
    linear_use_deterministic();
}
const char *device_determinism(void) {
    return gpu.deterministic ? "yes: cuBLASLt's first proposal without atomics, attention's backward pass by our own kernels, NCCL's ring"
                             : "no: the fastest algorithms; attention's backward pass adds in varying order";
}
void device_stop(void) {
    if (!gpu.started) return;
    cuda_check(cudaDeviceSynchronize(), "stopping the device");
    cuda_check(cudaFree(gpu.reduction), "stopping the device");
    for (int i = 0; i < STAGED; i++) cuda_check(cudaEventDestroy(gpu.has_left[i]), "stopping the device");
    cuda_check(cudaFreeHost(gpu.staged), "stopping the device");
    cuda_check(cudaEventDestroy(gpu.aside_ready), "stopping the device");
    cuda_check(cudaEventDestroy(gpu.aside_done), "stopping the device");
    cuda_check(cudaStreamDestroy(gpu.other), "stopping the device");
    cuda_check(cudaStreamDestroy(gpu.compute), "stopping the device");
    gpu.started = false;
}
const char *device_name(void) { return gpu.started ? gpu.name : "GPU (not started)"; }
double device_peak_flops(void) {
    // Another chip, or a part of one, under the same name.
    static const char *const others[] = {"Laptop", " MIG ", "RTX 5090 D", "RTX 4090 D", "RTX 3090 Ti"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strstr(gpu.properties.name, others[i]) != NULL) return 0;
    for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++) {
        const char *at = strstr(gpu.properties.name, peaks[i].name);
        if (at != NULL && !isdigit((unsigned char)at[strlen(peaks[i].name)])) return peaks[i].flops / gpu.ranks_sharing;
    }
    return 0;
}
// What is free now, minus a reserve for what the libraries take later: NCCL for the groups of ZeRO (a buffer per channel and peer, some
// 100 MB a group), kernels that cuDNN compiles, the algorithms of matrix products.
size_t device_memory_total(void) {
    size_t free_bytes = 0, total = 0, reserve = (size_t)2 << 30;
    cuda_check(cudaMemGetInfo(&free_bytes, &total), "querying the GPU's memory");
    return (free_bytes > 2 * reserve ? free_bytes - reserve : free_bytes / 2) / (size_t)gpu.ranks_sharing;
}
size_t device_memory_used(void) {
    size_t free_bytes = 0, total = 0;
    cuda_check(cudaMemGetInfo(&free_bytes, &total), "querying the GPU's memory");
    return total - free_bytes + gpu.pinned;
}
cudaStream_t device_compute_stream(void) { return gpu.compute; }
double *device_reduction_scratch(void) { return gpu.reduction; }
size_t device_shared_memory(void) { return gpu.properties.sharedMemPerBlockOptin; }
int device_compute_capability(void) { return 10 * gpu.properties.major + gpu.properties.minor; }

double device_measure_gemm(void) {
    const int64_t n = 8192;
    floatX *x = (floatX *)device_alloc(sizeof(floatX) * 3 * n * n);
    if (x == NULL) return 0;
    op_init_normal(x, 1, 0, 0, 2 * n * n, 1); // products of zeros would run at a higher clock
    cudaEvent_t began, ended;
    cuda_check(cudaEventCreate(&began), "measuring products");
    cuda_check(cudaEventCreate(&ended), "measuring products");
    op_linear_forward(x + 2 * n * n, x, x + n * n, NULL, n, n, n); // chooses its algorithm
    const int products = 40; // about 0.1 s at 500 TFLOP/s
    cuda_check(cudaEventRecord(began, gpu.compute), "measuring products");
    for (int i = 0; i < products; i++) op_linear_forward(x + 2 * n * n, x, x + n * n, NULL, n, n, n);
    cuda_check(cudaEventRecord(ended, gpu.compute), "measuring products");
    cuda_check(cudaEventSynchronize(ended), "measuring products");
    float milliseconds = 0;
    cuda_check(cudaEventElapsedTime(&milliseconds, began, ended), "measuring products");
    cuda_check(cudaEventDestroy(began), "measuring products");
    cuda_check(cudaEventDestroy(ended), "measuring products");
    device_free(x);
    return 2.0 * (double)n * (double)n * (double)n * products / (1e-3 * (double)milliseconds);
}

// ---- the trace: an event before and one after each piece of work ----

typedef struct {
    const char *name;
    cudaEvent_t begin, end;
} traced_work;
static struct {
    bool on;
    cudaEvent_t zero;
    double zero_seconds;
    traced_work *work;
    device_span *spans;
    int64_t count, capacity;
} trace;

static cudaEvent_t event_now(void) {
    cudaEvent_t event;
    cuda_check(cudaEventCreate(&event), "the trace");
    cuda_check(cudaEventRecord(event, gpu.compute), "the trace");
    return event;
}
void device_trace_start(void) {
    trace.zero = event_now();
    cuda_check(cudaEventSynchronize(trace.zero), "the trace");
    trace.zero_seconds = device_seconds();
    trace.on = true;
}
void cuda_span_begin(const char *name) {
    if (!trace.on || gpu.aside) return; // aside: not in the order of the other spans
    if (trace.count == trace.capacity) {
        trace.capacity = trace.capacity == 0 ? 4096 : 2 * trace.capacity;
        trace.work = (traced_work *)realloc(trace.work, sizeof *trace.work * (size_t)trace.capacity);
        if (trace.work == NULL) comm_abort("out of host memory for the trace");
    }
    trace.work[trace.count].name = name;
    trace.work[trace.count].begin = event_now();
}
void cuda_span_end(void) {
    if (trace.on && !gpu.aside) trace.work[trace.count++].end = event_now();
}
int64_t device_trace_spans(const device_span **spans) {
    device_synchronize();
    free(trace.spans);
    trace.spans = HOST_NEW(device_span, trace.count);
    cudaEvent_t before = trace.zero;
    double now = trace.zero_seconds;
    for (int64_t i = 0; i < trace.count; i++) { // from one event to the next: a float of minutes cannot hold microseconds
        const traced_work *w = &trace.work[i];
        float idle = 0, busy = 0; // milliseconds
        cuda_check(cudaEventElapsedTime(&idle, before, w->begin), "the trace");
        cuda_check(cudaEventElapsedTime(&busy, w->begin, w->end), "the trace");
        trace.spans[i].name = w->name;
        trace.spans[i].begin = now + 1e-3 * (double)idle;
        trace.spans[i].end = now = trace.spans[i].begin + 1e-3 * (double)busy;
        before = w->end;
    }
    *spans = trace.spans;
    return trace.count;
}

// ---- launches ----

void cuda_launch_prepare(const void *kernel, const char *name, size_t shared_bytes) {
    enum { KERNELS = 64 };
    static struct {
        const void *kernel;
        size_t bytes;
    } allowed[KERNELS]; // set so far; not set again, because each call may wait for copies in flight
    cuda_span_begin(name);
    if (shared_bytes <= 48 * 1024) return;
    int i = 0;
    while (i < KERNELS - 1 && allowed[i].kernel != NULL && allowed[i].kernel != kernel) i++;
    if (allowed[i].kernel == kernel && allowed[i].bytes >= shared_bytes) return;
    allowed[i].kernel = kernel;
    allowed[i].bytes = shared_bytes;
    cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
    if (status != cudaSuccess) comm_abort("%s needs %zu bytes of shared memory: %s", name, shared_bytes, cudaGetErrorString(status));
}
void cuda_launch_check(const char *name) {
    cuda_span_end();
    cudaError_t status = cudaGetLastError();
    if (status != cudaSuccess) comm_abort("launching %s: %s", name, cudaGetErrorString(status));
}

// ---- memory ----

// TRAIN_LLAMA_TEST_MANAGED=1: managed memory, for tests that read tensors on the host (test_kernels).
void *device_alloc(size_t bytes) {
    void *p = NULL;
    const char *managed = getenv("TRAIN_LLAMA_TEST_MANAGED");
    bool shared = managed != NULL && strcmp(managed, "1") == 0;
    if (bytes == 0) bytes = 256;
    cudaError_t status = shared ? cudaMallocManaged(&p, bytes, cudaMemAttachGlobal) : cudaMalloc(&p, bytes);
    if (status == cudaErrorMemoryAllocation) {
        cudaGetLastError(); // clear it: the caller reports what is missing
        return NULL;
    }
    cuda_check(status, "cudaMalloc");
    return p;
}
void device_free(void *p) { cuda_check(cudaFree(p), "cudaFree"); }

// Prefers memory of the GPU's NUMA node, so that no launcher need bind the rank to it. Best effort: containers may forbid it.
static void near_the_gpu(void *p, size_t bytes) {
    int node = numa_node();
    unsigned long nodes = node >= 0 && node < 64 ? 1ul << node : 0;
    // The kernel uses one bit less than it is told.
    if (nodes != 0) (void)syscall(SYS_mbind, p, bytes, MPOL_PREFERRED, &nodes, 8 * sizeof nodes + 1, 0);
}
// Drivers from 580 on pin less than 512 GiB in one call (NVIDIA/open-gpu-kernel-modules pull request 1234), and a copy should not reach
// over two pieces that were pinned apart. So pinning and copies are cut where an address is a multiple of 64 GiB (for tests: of
// TRAIN_LLAMA_TEST_PIECE bytes). Returns how many of the bytes from p on are in the same piece.
static size_t piece_of(const void *p, size_t bytes) {
    const char *test = getenv("TRAIN_LLAMA_TEST_PIECE");
    size_t piece = test != NULL ? (size_t)strtoull(test, NULL, 10) : (size_t)64 << 30, left = piece - (size_t)((uintptr_t)p % piece);
    return left < bytes ? left : bytes;
}
static void unpin(void *p, size_t bytes) {
    for (size_t at = 0, n; at < bytes; at += n) {
        n = piece_of((char *)p + at, bytes - at);
        cuda_check(cudaHostUnregister((char *)p + at), "cudaHostUnregister");
    }
}
typedef struct {
    char *begin, *end;
} page_range;
static void *touch_pages(void *pages) {
    const page_range *range = (const page_range *)pages;
    for (volatile char *p = range->begin; p < range->end; p += sysconf(_SC_PAGESIZE)) *p = 0;
    return NULL;
}
// Has the kernel provide, and zero, the pages of a piece, by this rank's share of the cores: pinning them would do so with one.
static void touch(char *p, size_t bytes) {
    enum { THREADS = 16 };
    cpu_set_t cores;
    int64_t given = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1; // perhaps its share already
    int64_t count = min_i64(given, sysconf(_SC_NPROCESSORS_ONLN) / comm_local_ranks());
    int64_t threads = max_i64(1, min_i64(count, THREADS)), started = 0;
    int64_t part = round_up(ceil_div((int64_t)bytes, threads), (int64_t)2 << 20);
    pthread_t thread[THREADS];
    page_range pages[THREADS];
    for (int64_t i = 0; i < threads && i * part < (int64_t)bytes; i++) {
        pages[i].begin = p + i * part;
        pages[i].end = p + min_i64((int64_t)bytes, (i + 1) * part);
        if (pthread_create(&thread[started], NULL, touch_pages, &pages[i]) == 0) started++; // else pinning provides these pages
    }
    for (int64_t i = 0; i < started; i++) pthread_join(thread[i], NULL);
}
// Huge pages where possible, pinned in few calls: pinning costs time per page.
void *device_host_slab(size_t bytes) {
    if (bytes == 0) bytes = 1;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        comm_note("error: %zu bytes of host memory cannot be taken: %s", bytes, strerror(errno));
        return NULL;
    }
    madvise(p, bytes, MADV_HUGEPAGE); // best effort
    near_the_gpu(p, bytes);
    progress_note note = progress_start("pinning host memory");
    for (size_t at = 0, n; at < bytes; at += n) {
        n = piece_of((char *)p + at, bytes - at);
        touch((char *)p + at, n);
        cudaError_t status = cudaHostRegister((char *)p + at, n, cudaHostRegisterDefault);
        progress_show(&note, (int64_t)(at + n), (int64_t)bytes);
        if (status == cudaSuccess) continue;
        cudaGetLastError();
        unpin(p, at);
        munmap(p, bytes);
        comm_note("error: %zu bytes of host memory cannot be pinned, but only %zu: %s (a container's limit, or memory that Linux keeps "
                  "movable: docs/troubleshooting.md)", bytes, at, cudaGetErrorString(status));
        return NULL;
    }
    gpu.pinned += bytes;
    return p;
}
void device_host_slab_free(void *p, size_t bytes) {
    if (p == NULL) return;
    if (bytes == 0) bytes = 1;
    unpin(p, bytes);
    munmap(p, bytes);
    gpu.pinned -= bytes;
}
bool device_is_host(void) { return false; }

void device_zero(void *p, size_t bytes) {
    if (bytes > 0) cuda_check(cudaMemsetAsync(p, 0, bytes, gpu.compute), "device_zero"); // 0: a unit of matrices only has no gaps to zero
}
void device_copy(void *to, const void *from, size_t bytes) {
    cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, gpu.compute), "device_copy");
}
static void copy_pieces(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream, const char *what) {
    for (size_t at = 0, n; at < bytes; at += n) {
        n = piece_of((char *)to + at, piece_of((const char *)from + at, bytes - at));
        cuda_check(cudaMemcpyAsync((char *)to + at, (const char *)from + at, n, kind, stream), what);
    }
}
// Through pinned memory. From other memory cudaMemcpyAsync may wait for all that is queued (CUDA's "API synchronization behavior": "the
// driver may synchronize with the stream"), or, where the GPU accesses such memory itself, return before it has read `from`.
void device_from_host(void *to, const void *from, size_t bytes) {
    for (size_t at = 0, n; at < bytes; at += n) {
        int64_t slot = gpu.copies++ % STAGED;
        char *staged = gpu.staged + slot * STAGED_BYTES;
        n = bytes - at < STAGED_BYTES ? bytes - at : STAGED_BYTES;
        cuda_check(cudaEventSynchronize(gpu.has_left[slot]), "device_from_host");
        memcpy(staged, (const char *)from + at, n);
        cuda_check(cudaMemcpyAsync((char *)to + at, staged, n, cudaMemcpyHostToDevice, gpu.compute), "device_from_host");
        cuda_check(cudaEventRecord(gpu.has_left[slot], gpu.compute), "device_from_host");
    }
}
void device_to_host(void *to, const void *from, size_t bytes) {
    copy_pieces(to, from, bytes, cudaMemcpyDeviceToHost, gpu.compute, "device_to_host");
    device_synchronize();
}
void device_synchronize(void) { cuda_check(cudaStreamSynchronize(gpu.compute), "waiting for the GPU"); }

// ---- lanes of copies ----

enum { LANE_EVENTS = 64 };

struct device_copier {
    cudaStream_t stream;
    cudaEvent_t ready; // compute issued before the newest copy
    // Ticket t has done[t % LANE_EVENTS]. When a later ticket has reused the event, waiting for that one is enough.
    cudaEvent_t done[LANE_EVENTS];
    int64_t tickets;
};

device_copier *device_copier_new(void) {
    device_copier *lane = HOST_NEW(device_copier, 1);
    cuda_check(cudaStreamCreateWithFlags(&lane->stream, cudaStreamNonBlocking), "a lane of copies");
    cuda_check(cudaEventCreateWithFlags(&lane->ready, cudaEventDisableTiming), "a lane of copies");
    for (int i = 0; i < LANE_EVENTS; i++) cuda_check(cudaEventCreateWithFlags(&lane->done[i], cudaEventDisableTiming), "a lane of copies");
    return lane;
}
void device_copier_free(device_copier *lane) {
    cuda_check(cudaStreamSynchronize(lane->stream), "a lane of copies");
    for (int i = 0; i < LANE_EVENTS; i++) cuda_check(cudaEventDestroy(lane->done[i]), "a lane of copies");
    cuda_check(cudaEventDestroy(lane->ready), "a lane of copies");
    cuda_check(cudaStreamDestroy(lane->stream), "a lane of copies");
    free(lane);
}
int64_t device_copy_start(device_copier *lane, void *to, const void *from, size_t bytes) {
    int64_t ticket = ++lane->tickets;
    cuda_check(cudaEventRecord(lane->ready, gpu.compute), "device_copy_start");
    cuda_check(cudaStreamWaitEvent(lane->stream, lane->ready, 0), "device_copy_start");
    copy_pieces(to, from, bytes, cudaMemcpyDefault, lane->stream, "device_copy_start");
    cuda_check(cudaEventRecord(lane->done[ticket % LANE_EVENTS], lane->stream), "device_copy_start");
    return ticket;
}
void device_copy_finish(device_copier *lane, int64_t ticket) {
    cuda_span_begin("host copy");
    cuda_check(cudaStreamWaitEvent(gpu.compute, lane->done[ticket % LANE_EVENTS], 0), "device_copy_finish");
    cuda_span_end();
}

// ---- work aside ----

static void aside_switch(void) {
    cudaStream_t now = gpu.other;
    gpu.other = gpu.compute;
    gpu.compute = now;
    gpu.aside = !gpu.aside;
}
void device_aside_begin(void) {
    cuda_check(cudaEventRecord(gpu.aside_ready, gpu.compute), "device_aside_begin");
    cuda_check(cudaStreamWaitEvent(gpu.other, gpu.aside_ready, 0), "device_aside_begin");
    aside_switch();
}
void device_aside_end(void) {
    cuda_check(cudaEventRecord(gpu.aside_done, gpu.compute), "device_aside_end");
    aside_switch();
}
void device_aside_wait(void) {
    cuda_span_begin("work aside");
    cuda_check(cudaStreamWaitEvent(gpu.compute, gpu.aside_done, 0), "device_aside_wait");
    cuda_span_end();
}
