// The CUDA runtime, cuBLASLt and NCCL without a GPU, as much of them as device/cuda uses: memory is the host's, products are BLAS, NCCL is
// MPI. test_cuda.sh links it with the real device_cuda.c, linear_cublaslt.c and comm_nccl.c and the emulated kernels (or nvcc's PTX,
// ptx_launch.cc), and trains.
//
// It is as unfriendly as a GPU may be. Kernels are run at once. Transfers are done as late as possible: when compute, work aside or the
// host waits for an event behind them. So a missing wait reads old numbers, and a buffer reused too early sends new ones. It also reports
// unordered accesses to memory, even where the numbers come out right. NCCL calls answer "in progress" first, as non-blocking communicators
// do. Arguments are checked as the libraries check them: sizes, leading dimensions, types, alignment; or should: which buffers may overlap.
//     FAKE_CUDA_EAGER=1          the opposite: all work is done when it is queued
//     FAKE_CUDA_STALL=RANK       that rank stops in its 100th transfer; with FAKE_CUDA_FAIL=1 its communicators then report an error
//     FAKE_CUDA_FORGET=N         the check of the order ignores the N-th wait of compute and work aside
//     FAKE_CUDA_SLOW=1           an event is not over before the host waits for it
//     FAKE_CUDA_FULL=1           no memory is left for the results of products that are only timed
//     FAKE_CUDA_PINS=N           no more than N pieces of host memory can be pinned
//     FAKE_CUDA_GPUS=N           a rank sees N GPUs (default 8); with FAKE_CUDA_OWN=1 each rank sees GPUs of its own
//     FAKE_CUDA_NAME=NAME        what the GPU is called
//     FAKE_CUDA_BOUND=near       the rank seems bound to four cores, which it must keep; far: they are not of the GPU's NUMA node, and it
//                                must leave them
//     FAKE_CUDA_POOR=RANK:KIB    that rank's GPU has only so much memory free, and is a card that no data sheet of ours has
//     FAKE_CUDA_APART=1          the host cannot touch the GPU's memory, nor managed memory before it has waited for kernels
//     FAKE_CUDA_STOPS=1          says at the end how often the host waited for compute
//     FAKE_CUDA_ORDER=1          all ranks must queue the same NCCL calls in the same order over all communicators: then no two can wait
//                                for each other; FAKE_CUDA_ORDER=forget: of rank 1 a call is not counted
//     FAKE_CUDA_DETERMINISTIC=1  what is asked of the libraries must be deterministic
#include "../common.h"

#include <cblas.h>
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <linux/mempolicy.h>
#include <mpi.h>
#include <nccl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void insist(bool good, const char *what) {
    if (good) return;
    fprintf(stderr, "fake CUDA: %s\n", what);
    fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static int job_rank(void) {
    int rank = 0, started;
    MPI_Initialized(&started); // bench_cuda does not start MPI
    if (started) MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
}

// FAKE_CUDA_DETERMINISTIC=1
static bool must_be_deterministic(void) {
    const char *wanted = getenv("FAKE_CUDA_DETERMINISTIC");
    return wanted != NULL && wanted[0] == '1';
}

// ---- streams and events ----

typedef enum { COPY, GROUP, ALL_GATHER, REDUCE_SCATTER } work_kind;
enum { MAX_MESSAGES = 64, MAX_WORK = 1024, MAX_STREAMS = 32, MAX_COMMS = 32 };
typedef struct {
    bool receives;
    int peer;
    void *data;
    size_t bytes;
} message;
typedef struct {
    work_kind kind;
    void *to;
    const void *from;
    size_t count; // bytes; floats of a reduce-scatter
    ncclComm_t comm;
    message messages[MAX_MESSAGES];
    int message_count;
    double done_at; // seconds
} work;
struct CUstream_st {
    bool compute, aside;  // aside: runs kernels beside compute
    int64_t queued, done; // work number n is ring[n % MAX_WORK]; aside: accesses and waits
    int64_t waited;       // up to this work the host has waited
    int64_t seen;         // compute_work when the last event of compute that this stream waits for was recorded
    int64_t seen_aside;   // the work aside before the last event that this stream waits for
    work ring[MAX_WORK];
};
struct CUevent_st {
    struct CUstream_st *stream; // NULL: not recorded, which counts as over for the host; no stream may wait for it
    int64_t position, compute_work;
    double recorded, product_milliseconds; // seconds; the clock of products at that moment
    bool timed;
};
struct ncclComm {
    MPI_Comm mpi;
    int rank, size, polls, number; // number: of the split that made it, the same on all ranks of the job
    int channels, channels_of_a_peer; // at most, in all and for a peer on another machine
    ncclComm_t child, *child_at; // a split under way: its result, and where to store it
    bool finalized;
    uint64_t connected; // a bit each for the ranks it has sent to, the ranks it has received from, and the kinds of collectives done
    int64_t syncs;      // compute_syncs when it was made
};

static struct CUstream_st *streams[MAX_STREAMS];
static int stream_count;

// ---- the GPU's memory ----

// FAKE_CUDA_APART=1: the GPU's memory is accessible only while a kernel or one of these libraries works. A host access ends in a
// segmentation fault, as on a GPU, and a system call on it in an error. Transfers then take only memory of the GPU (test_comm gives them
// the host's). Managed memory is accessible again when the host has waited for compute: before that, it would read old numbers.
static struct {
    char *at;
    size_t bytes;
    bool managed;
} gpu_memory[256];
static int gpu_memory_count;
static bool apart(void) { return getenv("FAKE_CUDA_APART") != NULL; }
static void protect(int i, bool open) {
    insist(mprotect(gpu_memory[i].at, gpu_memory[i].bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE) == 0, "mprotect");
}
static void gpu_works(bool begins) {
    static int depth;
    depth += begins ? 1 : -1;
    if (apart() && depth == (begins ? 1 : 0))
        for (int i = 0; i < gpu_memory_count; i++) protect(i, begins);
}
static __thread cudaError_t last_error; // what a call of this thread returned and cudaGetLastError has not yet
void emulation_runs(bool begins); // called by emulation.h
void emulation_runs(bool begins) {
    insist(last_error == cudaSuccess,
           "a kernel is launched after an error that nobody has cleared: the launch would be taken for its cause");
    gpu_works(begins);
}

// A thread that names no GPU is on the first, whoever's that is: its first call makes a context there, of some 500 MB.
static __thread int gpu_named = -1;
static int gpu_of_rank = -1; // that the first thread named
static void names_gpu(void) {
    insist(gpu_named >= 0, "a thread uses the GPU before it names it");
    insist(gpu_named == gpu_of_rank, "a thread uses another GPU than the first one");
}

static cudaError_t gpu_memory_take(void **p, size_t bytes, bool managed) {
    names_gpu();
    insist(gpu_memory_count < 256, "too many pieces of memory");
    size_t alignment = apart() ? 4096 : 256; // whole pages
    if (alignment == 4096) bytes = (bytes + 4095) / 4096 * 4096;
    if (posix_memalign(p, alignment, bytes) != 0) return last_error = cudaErrorMemoryAllocation;
    memset(*p, 0xff, bytes); // NaN
    gpu_memory[gpu_memory_count].at = (char *)*p;
    gpu_memory[gpu_memory_count].bytes = bytes;
    gpu_memory[gpu_memory_count].managed = managed;
    if (apart() && !managed) protect(gpu_memory_count, false);
    gpu_memory_count++;
    return cudaSuccess;
}
cudaError_t cudaMalloc(void **p, size_t bytes) { return gpu_memory_take(p, bytes, false); }
cudaError_t cudaMallocManaged(void **p, size_t bytes, unsigned flags) {
    (void)flags;
    return gpu_memory_take(p, bytes, true);
}
static int temporary; // pieces of memory of cudaMallocAsync
cudaError_t cudaMallocAsync(void **p, size_t bytes, cudaStream_t s) {
    (void)s;
    if (getenv("FAKE_CUDA_FULL") != NULL) return last_error = cudaErrorMemoryAllocation;
    insist(temporary++ == 0, "temporary memory of one product is not freed before the next one's");
    return cudaMalloc(p, bytes);
}
cudaError_t cudaFree(void *p) {
    int i = 0;
    if (p == NULL) return cudaSuccess;
    while (i < gpu_memory_count && gpu_memory[i].at != p) i++;
    insist(i < gpu_memory_count, "memory is freed that is not the GPU's");
    if (apart()) protect(i, true);
    free(p);
    gpu_memory[i] = gpu_memory[--gpu_memory_count];
    return cudaSuccess;
}
cudaError_t cudaFreeAsync(void *p, cudaStream_t s) {
    (void)s;
    temporary--;
    return cudaFree(p);
}
static bool is_gpu_memory(const void *at, size_t bytes) {
    for (int i = 0; i < gpu_memory_count; i++)
        if ((const char *)at >= gpu_memory[i].at && (const char *)at + bytes <= gpu_memory[i].at + gpu_memory[i].bytes) return true;
    return false;
}
// Whether the address is on the stack of the thread that launches: kernels read their arguments there.
static bool is_argument(const void *at) {
    static void *stack;
    static size_t bytes;
    pthread_attr_t attributes;
    if (stack == NULL)
        insist(pthread_getattr_np(pthread_self(), &attributes) == 0 && pthread_attr_getstack(&attributes, &stack, &bytes) == 0, "no stack");
    return (const char *)at >= (const char *)stack && (const char *)at < (const char *)stack + bytes;
}

// ---- what transfers in flight forbid ----
// Work on a lane is in flight from when it is queued until compute, or the host, waits for it. During that time compute must not touch what
// it writes nor write what it reads; the same holds between two lanes. And it must wait for all compute before it. The order is checked,
// not the results. The same holds for work aside. A transfer that it has waited for counts as its own from then on: it is in flight until
// compute waits for work aside. Compute's accesses are known from its library calls and, in a build with SANITIZE=races, from its kernels
// (device/cuda/races.cc).

typedef struct {
    const char *at;
    size_t bytes;
    bool writes;
    const struct CUstream_st *lane;
    int64_t position;
} memory_range;
static memory_range under_way[MAX_STREAMS * MAX_MESSAGES];
static int under_way_count;
static int64_t compute_work, compute_syncs;
static bool connected_late;
static double product_milliseconds; // that all products so far took, by the clock of this fake
static bool host_memory_in_use; // by a copy on the compute stream that the host has not waited for

static void no_conflict(const struct CUstream_st *lane, const void *at, size_t bytes, bool writes) {
    for (int i = 0; i < under_way_count; i++) {
        const memory_range *r = &under_way[i];
        if (lane != NULL && r->lane->aside && r->position < lane->seen_aside) continue;
        if (bytes > 0 && r->lane != lane && (r->writes || writes) && (const char *)at < r->at + r->bytes &&
            r->at < (const char *)at + bytes)
            insist(false, lane == NULL ? "compute touches what a transfer under way needs"
                                       : "two transfers, or one and work aside, need the same memory");
    }
}
static void compute_touches(const void *at, size_t bytes, bool writes) {
    compute_work++;
    insist(!host_memory_in_use, "the host goes on while a copy may still use its memory");
    no_conflict(NULL, at, bytes, writes);
}
// Neighbouring accesses become one range.
static void aside_touches(struct CUstream_st *s, const void *at, size_t bytes, bool writes) {
    insist(s->seen == compute_work, "work aside does not wait for the compute before it");
    no_conflict(s, at, bytes, writes);
    int64_t position = s->queued++;
    s->done++;
    for (int i = 0; i < under_way_count; i++) {
        memory_range *r = &under_way[i];
        if (r->lane != s || r->writes != writes || (const char *)at + bytes < r->at || r->at + r->bytes < (const char *)at) continue;
        const char *end = (const char *)at + bytes > r->at + r->bytes ? (const char *)at + bytes : r->at + r->bytes;
        if ((const char *)at < r->at) r->at = (const char *)at;
        r->bytes = (size_t)(end - r->at);
        r->position = position;
        return;
    }
    insist(under_way_count < (int)(sizeof under_way / sizeof under_way[0]), "too much is under way");
    under_way[under_way_count++] = (memory_range){(const char *)at, bytes, writes, s, position};
}
cudaStream_t device_compute_stream(void); // device_cuda.c: where operations are issued now
void emulation_touched(const void *at, size_t bytes, bool writes); // called by races.cc
void emulation_touched(const void *at, size_t bytes, bool writes) {
    insist(is_gpu_memory(at, bytes) || is_argument(at), "a kernel touches memory that is not the GPU's");
    if (!device_compute_stream()->aside) compute_touches(at, bytes, writes);
    else if (!is_argument(at)) aside_touches(device_compute_stream(), at, bytes, writes);
}

static void lane_touches(const struct CUstream_st *lane, const void *at, size_t bytes, bool writes) {
    insist(under_way_count < (int)(sizeof under_way / sizeof under_way[0]), "too much is under way");
    no_conflict(lane, at, bytes, writes);
    under_way[under_way_count++] = (memory_range){(const char *)at, bytes, writes, lane, lane->queued};
}
// NCCL connects two ranks at the first transfer between them. comm_nccl.c has that done when a communicator is made, by two warm-up
// transfers, each of them followed by a wait of the host for compute. A connection that comes later is noted here, and the next matrix
// product refuses it.
static void connect_ranks(const work *w) {
    uint64_t needs = w->kind == GROUP ? 0 : (uint64_t)1 << (w->kind == ALL_GATHER ? 62 : 63);
    for (int i = 0; i < w->message_count; i++) needs |= (uint64_t)1 << (w->messages[i].peer % 31 + (w->messages[i].receives ? 31 : 0));
    if (compute_syncs >= w->comm->syncs + 2 && (needs & ~w->comm->connected) != 0) connected_late = true;
    w->comm->connected |= needs;
}
static uint64_t order; // of the NCCL calls so far
static void next_in_order(const work *w) {
    static int calls;
    const char *wanted = getenv("FAKE_CUDA_ORDER");
    if (++calls == 20 && job_rank() == 1 && wanted != NULL && strcmp(wanted, "forget") == 0) return;
    order = mix_bits(order ^ (uint64_t)(w->comm->number * 4 + (int)w->kind));
}
static void all_in_one_order(void) { // at the end of a run
    uint64_t first = order;
    if (getenv("FAKE_CUDA_ORDER") == NULL) return;
    MPI_Bcast(&first, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    insist(order == first && order != 0, "a rank has queued other NCCL calls than rank 0, or in another order");
}
static void lane_takes(const struct CUstream_st *lane, const work *w) {
    const struct CUstream_st *issuer = device_compute_stream();
    insist(lane->seen == compute_work, "a transfer does not wait for the compute before it");
    insist(!issuer->aside || lane->seen_aside == issuer->queued, "a transfer does not wait for the work aside before it");
    for (int i = 0; i < w->message_count; i++) lane_touches(lane, w->messages[i].data, w->messages[i].bytes, w->messages[i].receives);
    if (w->kind != COPY) {
        connect_ranks(w);
        next_in_order(w);
    }
    if (w->kind == GROUP) return;
    size_t unit = w->kind == REDUCE_SCATTER ? sizeof(float) : 1, ranks = w->kind == COPY ? 1 : (size_t)w->comm->size;
    size_t from = unit * w->count * (w->kind == REDUCE_SCATTER ? ranks : 1), to = unit * w->count * (w->kind == ALL_GATHER ? ranks : 1);
    lane_touches(lane, w->from, from, false);
    lane_touches(lane, w->to, to, true);
}
static void is_waited_for(const struct CUstream_st *lane, int64_t position) {
    for (int i = 0; i < under_way_count;)
        if (under_way[i].lane == lane && under_way[i].position < position) under_way[i] = under_way[--under_way_count];
        else i++;
}

// ---- doing the work ----

static volatile bool failed;
static void stall_if_asked(void) {
    static int transfers;
    const char *stall = getenv("FAKE_CUDA_STALL");
    if (stall != NULL && (int)strtol(stall, NULL, 10) == job_rank() && ++transfers == 100) {
        failed = getenv("FAKE_CUDA_FAIL") != NULL;
        for (;;) pause();
    }
}

static void same_everywhere(const work *w) { // kind and size of a collective
    int64_t most[4] = {w->kind, -(int64_t)w->kind, (int64_t)w->count, -(int64_t)w->count};
    MPI_Allreduce(MPI_IN_PLACE, most, 4, MPI_INT64_T, MPI_MAX, w->comm->mpi);
    insist(most[0] == -most[1] && most[2] == -most[3], "ranks are in different collectives, or in one with different sizes");
}
static void do_work(work *w) {
    if (w->kind != COPY) stall_if_asked();
    gpu_works(true);
    if (w->kind == COPY) {
        memmove(w->to, w->from, w->count);
    } else if (w->kind == GROUP) {
        MPI_Request requests[MAX_MESSAGES];
        MPI_Status statuses[MAX_MESSAGES];
        for (int receives = 1; receives >= 0; receives--)
            for (int i = 0; i < w->message_count; i++) {
                message *m = &w->messages[i];
                if (m->receives != (receives == 1)) continue;
                if (m->receives) MPI_Irecv(m->data, (int)m->bytes, MPI_BYTE, m->peer, 1, w->comm->mpi, &requests[i]);
                else MPI_Isend(m->data, (int)m->bytes, MPI_BYTE, m->peer, 1, w->comm->mpi, &requests[i]);
            }
        MPI_Waitall(w->message_count, requests, statuses);
        for (int i = 0; i < w->message_count; i++) {
            int bytes = 0;
            if (w->messages[i].receives) MPI_Get_count(&statuses[i], MPI_BYTE, &bytes);
            insist(!w->messages[i].receives || bytes == (int)w->messages[i].bytes, "a message is shorter than its receiver expects");
        }
    } else if (w->kind == ALL_GATHER) {
        same_everywhere(w);
        char *all = HOST_NEW(char, w->count * (size_t)w->comm->size); // the send buffer may lie in the receive buffer
        MPI_Allgather(w->from, (int)w->count, MPI_BYTE, all, (int)w->count, MPI_BYTE, w->comm->mpi);
        memcpy(w->to, all, w->count * (size_t)w->comm->size);
        free(all);
    } else { // a reduce-scatter: adds in the order of ranks
        same_everywhere(w);
        float *all = HOST_NEW(float, w->count * (size_t)w->comm->size);
        MPI_Alltoall(w->from, (int)w->count, MPI_FLOAT, all, (int)w->count, MPI_FLOAT, w->comm->mpi);
        for (size_t i = w->count; i < w->count * (size_t)w->comm->size; i++) all[i % w->count] += all[i];
        memcpy(w->to, all, sizeof(float) * w->count);
        free(all);
    }
    gpu_works(false);
}
static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
static void do_until(struct CUstream_st *s, int64_t position) {
    while (s->done < position) {
        work *w = &s->ring[s->done % MAX_WORK];
        do_work(w);
        w->done_at = seconds_now();
        __atomic_add_fetch(&s->done, 1, __ATOMIC_RELEASE);
    }
}
static void aside_waits(struct CUstream_st *aside, const struct CUstream_st *lane, int64_t position) {
    for (int i = 0; i < under_way_count; i++) {
        if (under_way[i].lane != lane || under_way[i].position >= position) continue;
        under_way[i].lane = aside;
        under_way[i].position = aside->queued;
    }
    aside->queued++;
    aside->done++;
}
static void wait_until(struct CUstream_st *s, int64_t position) { // whatever is issued from now on comes after that work
    do_until(s, position);
    is_waited_for(s, position);
}
static void queue(struct CUstream_st *s, const work *w) {
    const char *eager = getenv("FAKE_CUDA_EAGER");
    insist(s->queued - s->done < MAX_WORK, "too much work queued on a stream");
    insist(!s->aside, "a transfer on the stream of work aside");
    if (s->compute) {
        insist(w->kind == COPY, "a transfer on the compute stream");
        compute_touches(w->from, w->count, false);
        compute_touches(w->to, w->count, true);
    } else {
        lane_takes(s, w);
    }
    s->ring[s->queued++ % MAX_WORK] = *w;
    if (s->compute || (eager != NULL && eager[0] == '1')) do_until(s, s->queued);
}
static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    return (const char *)a < (const char *)b + b_bytes && (const char *)b < (const char *)a + a_bytes;
}
static void queue_copy(cudaStream_t s, void *to, const void *from, size_t bytes) {
    names_gpu();
    insist(!overlap(to, bytes, from, bytes), "a copy onto itself");
    work *w = HOST_NEW(work, 1);
    w->kind = COPY;
    w->to = to;
    w->from = from;
    w->count = bytes;
    queue(s, w);
    free(w);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    names_gpu();
    insist(flags == cudaStreamNonBlocking, "a stream that waits for the default stream");
    insist(stream_count < MAX_STREAMS, "too many streams");
    *stream = (cudaStream_t)host_alloc(sizeof(struct CUstream_st));
    (*stream)->compute = stream_count == 0; // device_cuda.c makes these two first
    (*stream)->aside = stream_count == 1;
    streams[stream_count++] = *stream;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *most) {
    *least = 0;
    *most = -5;
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    insist(priority == -5, "a stream of transfers that is not urgent");
    return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    insist(s->waited == s->queued, "a stream is destroyed before the host has waited for its work");
    for (int i = 0; i < stream_count; i++)
        if (streams[i] == s) streams[i] = streams[--stream_count];
    free(s);
    return cudaSuccess;
}
// The first work of a stream that may still be under way when the host has not waited for it, whatever compute has.
static int64_t not_waited_for(const struct CUstream_st *s) {
    if (s->aside) return s->queued; // it has kernels alone
    return s->queued - s->waited > MAX_WORK ? s->queued - MAX_WORK : s->waited;
}
static int64_t host_stops, waited_work; // how often the host waited for compute that it had not yet waited for, and up to which
static void host_waits(cudaStream_t s, int64_t position, int64_t work) { // work: compute_work at that position of the compute stream
    wait_until(s, position);
    if (position > s->waited) s->waited = position;
    if (!s->compute) return;
    host_stops += work > waited_work;
    if (work > waited_work) waited_work = work;
    if (work < compute_work) return;
    host_memory_in_use = false;
    for (int i = 0; i < gpu_memory_count && apart(); i++)
        if (gpu_memory[i].managed) protect(i, true);
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    names_gpu();
    compute_syncs += s->compute;
    host_waits(s, s->queued, compute_work);
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) {
    all_in_one_order();
    for (int i = 0; i < stream_count; i++) host_waits(streams[i], streams[i]->queued, compute_work);
    if (getenv("FAKE_CUDA_STOPS") != NULL) printf("the host waited for compute %lld times\n", (long long)host_stops);
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    names_gpu();
    *event = (cudaEvent_t)host_alloc(sizeof(struct CUevent_st));
    (*event)->timed = (flags & cudaEventDisableTiming) == 0;
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    free(event);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t s) {
    names_gpu();
    event->position = s->queued;
    event->stream = s;
    event->compute_work = s->aside ? s->seen : compute_work;
    event->recorded = seconds_now();
    event->product_milliseconds = product_milliseconds;
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t event, unsigned flags) {
    (void)flags;
    insist(event->stream != NULL, "a wait for an event that nobody has recorded");
    bool kernels = event->stream->compute || event->stream->aside;
    if (s->compute || (s->aside && !kernels)) {
        static int64_t waits;
        const char *forgotten = getenv("FAKE_CUDA_FORGET");
        bool forgets = forgotten != NULL && strtoll(forgotten, NULL, 10) == ++waits;
        do_until(event->stream, event->position);
        if (!forgets && s->compute) is_waited_for(event->stream, event->position);
        if (!forgets && s->aside) aside_waits(s, event->stream, event->position);
        return cudaSuccess;
    }
    insist(kernels, "a lane waits for another lane");
    if (event->compute_work > s->seen) s->seen = event->compute_work;
    if (event->stream->aside && event->position > s->seen_aside) s->seen_aside = event->position;
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    if (event->stream != NULL) host_waits(event->stream, event->position, event->compute_work);
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) { // the watching thread calls it, too: no work is done here
    names_gpu();
    bool slow = event->stream != NULL && event->position > event->stream->waited && getenv("FAKE_CUDA_SLOW") != NULL;
    bool over = event->stream == NULL || (!slow && __atomic_load_n(&event->stream->done, __ATOMIC_ACQUIRE) >= event->position);
    return over ? cudaSuccess : (last_error = cudaErrorNotReady);
}
static double event_seconds(cudaEvent_t event) { // when it was over
    const work *last = &event->stream->ring[(event->position + MAX_WORK - 1) % MAX_WORK];
    return event->stream->compute ? event->recorded : fmax(event->recorded, last->done_at);
}
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to) {
    insist(from->timed && to->timed && from->stream != NULL && to->stream != NULL, "time between events that have none");
    insist(cudaEventQuery(from) == cudaSuccess && cudaEventQuery(to) == cudaSuccess, "time between events that are not over");
    *milliseconds = (float)(0.25 + to->product_milliseconds - from->product_milliseconds);
    if (!to->stream->compute) *milliseconds = (float)(1e3 * (event_seconds(to) - event_seconds(from)));
    return cudaSuccess;
}

// ---- device and memory ----

// These two stand in for the C library's, from cudaGetDeviceCount on: other libraries ask before.
static bool bound, left_cores; // the rank seems to be; those that it seemed bound to
static bool bound_far(void) { return getenv("FAKE_CUDA_BOUND") != NULL && strcmp(getenv("FAKE_CUDA_BOUND"), "far") == 0; }
int sched_getaffinity(pid_t process, size_t bytes, cpu_set_t *cores) {
    memset(cores, 0, bytes);
    if (!bound || left_cores) return syscall(SYS_sched_getaffinity, process, bytes, cores) < 0 ? -1 : 0;
    for (size_t i = 0; i < 4; i++) CPU_SET(bound_far() ? CPU_SETSIZE - 1 - i : i, cores);
    return 0;
}
int sched_setaffinity(pid_t process, size_t bytes, const cpu_set_t *cores) {
    left_cores = bound;
    return (int)syscall(SYS_sched_setaffinity, process, bytes, cores);
}

static int gpus_seen(void) {
    const char *gpus = getenv("FAKE_CUDA_GPUS");
    return gpus != NULL ? (int)strtol(gpus, NULL, 10) : 8;
}
cudaError_t cudaGetDeviceCount(int *count) {
    cpu_set_t given, all;
    memset(&all, 0xff, sizeof all);
    insist(sched_getaffinity(0, sizeof given, &given) == 0 && sched_setaffinity(0, sizeof all, &all) == 0 &&
           sched_getaffinity(0, sizeof all, &all) == 0, "what CPUs are there?");
    insist(CPU_COUNT(&given) >= 4 || CPU_EQUAL(&given, &all), "the threads of the driver would share one core with the rank");
    bound = getenv("FAKE_CUDA_BOUND") != NULL;
    *count = gpus_seen();
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= gpus_seen()) return cudaErrorInvalidDevice;
    insist(getenv("FAKE_CUDA_BOUND") == NULL || left_cores == bound_far(),
           bound_far() ? "a rank stays on cores that are far from its GPU" : "a rank leaves cores that are near its GPU");
    gpu_named = device;
    if (gpu_of_rank < 0) gpu_of_rank = device;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
    *device = gpu_named;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    memset(p, 0, sizeof *p);
    const char *poor = getenv("FAKE_CUDA_POOR"), *name = getenv("FAKE_CUDA_NAME");
    if (name == NULL) name = poor != NULL && strtol(poor, NULL, 10) == job_rank() ? "NVIDIA RTX A1000" : "NVIDIA H200";
    snprintf(p->name, sizeof p->name, "%s", name);
    p->uuid.bytes[15] = (char)(getenv("FAKE_CUDA_OWN") != NULL ? job_rank() : device);
    p->major = 9;
    p->totalGlobalMem = (size_t)16 << 30;
    p->sharedMemPerBlockOptin = (size_t)99 << 10; // as much as the emulation lets a kernel have
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    (void)device;
    insist(attribute == cudaDevAttrMultiProcessorCount || attribute == cudaDevAttrHostNumaId, "an unknown attribute of a device");
    *value = attribute == cudaDevAttrHostNumaId ? 0 : 132;
    return cudaSuccess;
}
const char *cudaGetErrorString(cudaError_t status) { return status == cudaSuccess ? "no error" : "a fake error"; }
const char *cudaGetErrorName(cudaError_t status) { return cudaGetErrorString(status); }
cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}
static struct {
    const void *kernel;
    int bytes;
} shared_allowed[64];
size_t fake_cuda_shared_allowed(const void *kernel); // called by ptx_launch.cc
size_t fake_cuda_shared_allowed(const void *kernel) {
    for (int i = 0; i < 64; i++)
        if (shared_allowed[i].kernel == kernel) return (size_t)shared_allowed[i].bytes;
    return 48 * 1024;
}
cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value) {
    names_gpu();
    insist(attribute == cudaFuncAttributeMaxDynamicSharedMemorySize && value <= 99 * 1024,
           "an attribute of a kernel that no GPU of ours takes");
    int i = 0;
    while (shared_allowed[i].kernel != NULL && shared_allowed[i].kernel != function) insist(++i < 64, "too many kernels");
    shared_allowed[i].kernel = function;
    shared_allowed[i].bytes = value;
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    names_gpu();
    const char *poor = getenv("FAKE_CUDA_POOR");
    *free_bytes = *total = (size_t)16 << 30;
    for (int i = 0; i < gpu_memory_count; i++) *free_bytes -= gpu_memory[i].bytes;
    if (poor != NULL && strtol(poor, NULL, 10) == job_rank() && strchr(poor, ':') != NULL)
        *free_bytes = (size_t)strtol(strchr(poor, ':') + 1, NULL, 10) << 10;
    return cudaSuccess;
}
static struct {
    const char *at;
    size_t bytes;
} pinned[4096];
static int pinned_count;
static bool is_pinned(const void *p) {
    for (int i = 0; i < pinned_count; i++)
        if ((const char *)p >= pinned[i].at && (const char *)p < pinned[i].at + pinned[i].bytes) return true;
    return false;
}
static bool in_one_piece(const void *p, size_t bytes) { // or in none
    for (int i = 0; i < pinned_count; i++)
        if ((const char *)p < pinned[i].at + pinned[i].bytes && (const char *)p + bytes > pinned[i].at)
            return (const char *)p >= pinned[i].at && (const char *)p + bytes <= pinned[i].at + pinned[i].bytes;
    return true;
}
cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags) {
    (void)flags;
    names_gpu();
    insist(bytes < (size_t)512 << 30, "more memory pinned in one call than drivers from 580 on take");
    int policy;
    unsigned long nodes = 0;
    if (syscall(SYS_get_mempolicy, &policy, &nodes, 8 * sizeof nodes, p, MPOL_F_ADDR) == 0) // it fails where it is forbidden
        insist(policy == MPOL_PREFERRED && nodes == 1, "pinned memory that may be far from the GPU");
    insist(pinned_count < 4096, "too many pinned pieces of memory");
    const char *most = getenv("FAKE_CUDA_PINS");
    static long pieces;
    if (most != NULL && ++pieces > strtol(most, NULL, 10)) return last_error = cudaErrorInvalidValue;
    pinned[pinned_count].at = (const char *)p;
    pinned[pinned_count++].bytes = bytes;
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void *p) {
    int i = 0;
    while (i < pinned_count && pinned[i].at != (const char *)p) i++;
    insist(i < pinned_count, "memory that is not pinned");
    for (int k = 0; k < stream_count; k++)
        for (int64_t n = not_waited_for(streams[k]); n < streams[k]->queued; n++) {
            const work *w = &streams[k]->ring[n % MAX_WORK];
            insist(w->kind != COPY ||
                   (!overlap(p, pinned[i].bytes, w->to, w->count) && !overlap(p, pinned[i].bytes, w->from, w->count)),
                   "host memory is given back that a copy may still use");
        }
    pinned[i] = pinned[--pinned_count];
    return cudaSuccess;
}
cudaError_t cudaMallocHost(void **p, size_t bytes) {
    names_gpu();
    insist(pinned_count < 4096, "too many pinned pieces of memory");
    *p = host_alloc(bytes);
    pinned[pinned_count].at = (const char *)*p;
    pinned[pinned_count++].bytes = bytes;
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void *p) {
    cudaHostUnregister(p);
    free(p);
    return cudaSuccess;
}
// A copy from pinned memory on the compute stream: the host has just written there, as it may once earlier copies from there are over.
static void is_read(const struct CUstream_st *s, const void *from, size_t bytes) {
    static struct {
        const char *at;
        size_t bytes;
        int64_t position;
    } read[256];
    static int next;
    for (int i = 0; i < 256; i++)
        insist(read[i].position < s->waited || (const char *)from >= read[i].at + read[i].bytes || read[i].at >= (const char *)from + bytes,
               "pinned memory is written while a copy may still read it");
    read[next].at = (const char *)from;
    read[next].bytes = bytes;
    read[next].position = s->queued;
    next = (next + 1) % 256;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t s) {
    insist(kind != cudaMemcpyDefault || is_pinned(to) || is_pinned(from), "a copy beside compute from or to memory that is not pinned");
    insist(in_one_piece(to, bytes) && in_one_piece(from, bytes), "a copy over two pieces of memory that were pinned apart");
    bool to_gpu = is_gpu_memory(to, bytes), from_gpu = is_gpu_memory(from, bytes);
    bool either = kind == cudaMemcpyDefault && (to_gpu || from_gpu);
    if (apart())
        insist(either || ((to_gpu || kind == cudaMemcpyDeviceToHost) && (from_gpu || kind == cudaMemcpyHostToDevice)),
               "a copy of memory that is not the GPU's");
    bool in_use = host_memory_in_use, with_host = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToHost;
    bool staged = kind == cudaMemcpyHostToDevice && is_pinned(from);
    if (with_host) host_memory_in_use = false; // the next piece of a copy
    if (staged) is_read(s, from, bytes);
    queue_copy(s, to, from, bytes);
    if (with_host) host_memory_in_use = in_use || !staged; // memory that is not pinned may be read after the call has returned
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s) {
    insist(bytes > 0, "a fill of nothing");
    insist(s->compute && is_gpu_memory(p, bytes), "memory set on a lane, or that is not the GPU's");
    compute_touches(p, bytes, true);
    gpu_works(true);
    memset(p, value, bytes);
    gpu_works(false);
    return cudaSuccess;
}

// ---- NCCL ----

static struct {
    int depth;
    work *open; // of the group under way
    cudaStream_t stream;
} group;

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) { // the caller's rank in the job, and a number
    static int next;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "%d %d", job_rank(), 1000 + next++);
    return ncclSuccess;
}
static int communicators;
static bool is_set(const char *name, const char *value) { return getenv(name) != NULL && strcmp(getenv(name), value) == 0; }
ncclResult_t ncclCommInitRankConfig(ncclComm_t *result, int size, ncclUniqueId id, int rank, ncclConfig_t *config) {
    int root, tag, me = job_rank(), *members = HOST_NEW(int, size);
    insist(config->blocking == 0, "a blocking communicator");
    if (must_be_deterministic()) insist(is_set("NCCL_ALGO", "Ring") && is_set("NCCL_PROTO", "Simple"), "NCCL may choose its algorithm");
    insist(is_set("NCCL_LAUNCH_ORDER_IMPLICIT", "1") && is_set("CUDA_DEVICE_MAX_CONNECTIONS", "32") && is_set("NCCL_NVLS_ENABLE", "0") &&
           is_set("NCCL_PAT_ENABLE", "0"), "settings of NCCL that are not made");
#ifdef __aarch64__
    insist(is_set("NCCL_LL128_C2C", "0"), "a protocol of NCCL that loses data on Grace");
#endif
    const char *gpus = getenv("FAKE_CUDA_GPUS"), *host = getenv("NCCL_HOSTID");
    // NCCL refuses two ranks of one machine on one GPU.
    if (gpus != NULL && strtol(gpus, NULL, 10) < size && getenv("FAKE_CUDA_OWN") == NULL)
        insist(host != NULL && strlen(host) > 1 && strtol(host + strlen(host) - 1, NULL, 10) == me && is_set("NCCL_SOCKET_IFNAME", "lo") &&
               is_set("NCCL_IB_DISABLE", "1") && is_set("NCCL_NET", "Socket"), "ranks that share a GPU are not machines of their own");
    insist(sscanf(id.internal, "%d %d", &root, &tag) == 2, "an id that no rank made");
    insist(++communicators < MAX_COMMS, "too many communicators");
    if (rank == 0) {
        members[0] = me;
        for (int i = 1; i < size; i++) {
            int place[2]; // rank of the group, of the job
            MPI_Recv(place, 2, MPI_INT, MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            members[place[0]] = place[1];
        }
        for (int i = 1; i < size; i++) MPI_Send(members, size, MPI_INT, members[i], tag, MPI_COMM_WORLD);
    } else {
        int place[2] = {rank, me};
        MPI_Send(place, 2, MPI_INT, root, tag, MPI_COMM_WORLD);
        MPI_Recv(members, size, MPI_INT, root, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    ncclComm_t comm = (ncclComm_t)host_alloc(sizeof(struct ncclComm));
    MPI_Group everyone, here;
    MPI_Comm_group(MPI_COMM_WORLD, &everyone);
    MPI_Group_incl(everyone, size, members, &here);
    MPI_Comm_create_group(MPI_COMM_WORLD, here, tag, &comm->mpi);
    MPI_Group_free(&everyone);
    MPI_Group_free(&here);
    free(members);
    comm->rank = rank;
    comm->size = size;
    comm->polls = 2;
    *result = comm;
    return ncclInProgress;
}
// Like NCCL it answers "success" at once, and fills *result later, when it is asked whether the parent is ready.
ncclResult_t ncclCommSplit(ncclComm_t parent, int colour, int key, ncclComm_t *result, ncclConfig_t *config) {
    insist(config->blocking == 0, "a blocking communicator");
    insist(parent->polls == 0 && parent->child == NULL, "a split of a communicator that is busy");
    insist(colour >= 0 || colour == NCCL_SPLIT_NOCOLOR, "a negative colour");
    static int splits;
    MPI_Comm mpi;
    splits++;
    MPI_Comm_split(parent->mpi, colour == NCCL_SPLIT_NOCOLOR ? MPI_UNDEFINED : colour, key, &mpi);
    parent->polls = 2;
    *result = NULL;
    if (mpi == MPI_COMM_NULL) return ncclSuccess;
    parent->child = (ncclComm_t)host_alloc(sizeof(struct ncclComm));
    parent->child->mpi = mpi;
    MPI_Comm_size(mpi, &parent->child->size);
    MPI_Comm_rank(mpi, &parent->child->rank);
    parent->child->polls = 2;
    parent->child->number = splits;
    parent->child->syncs = compute_syncs;
    insist(parent->child->size > 1, "a communicator of one rank");
    insist(++communicators < MAX_COMMS, "too many communicators");
    insist(config->maxCTAs <= 32 && config->cgaClusterSize == 1, "what a communicator may take from compute");
    parent->child->channels = config->maxCTAs;
    parent->child->channels_of_a_peer = config->nChannelsPerNetPeer;
    parent->child_at = result;
    return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *status) {
    insist(group.depth == 0, "a question inside a group");
    *status = failed ? ncclRemoteError : comm->polls > 0 ? ncclInProgress : ncclSuccess;
    if (comm->polls > 0) comm->polls--;
    if (*status == ncclSuccess && comm->child != NULL) {
        *comm->child_at = comm->child;
        comm->child = NULL;
    }
    return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    insist(!comm->finalized && comm->polls == 0 && comm->child == NULL, "a communicator is finalized that is busy, or twice");
    for (int k = 0; k < stream_count; k++)
        for (int64_t n = not_waited_for(streams[k]); n < streams[k]->queued; n++)
            insist(streams[k]->ring[n % MAX_WORK].comm != comm, "a communicator is finalized while its transfers may be under way");
    comm->polls = 1;
    comm->finalized = true;
    return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    insist(comm->finalized && comm->polls == 0, "a communicator is destroyed that is not finalized");
    communicators--;
    MPI_Comm_free(&comm->mpi);
    free(comm);
    return ncclSuccess;
}
ncclResult_t ncclGetVersion(int *version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}
const char *ncclGetErrorString(ncclResult_t status) { return status == ncclSuccess ? "no error" : "a fake error"; }
const char *ncclGetLastError(ncclComm_t comm) {
    (void)comm;
    return "";
}
ncclResult_t ncclGroupStart(void); // nccl.h leaves out `void`
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclGroupStart(void) {
    insist(group.depth++ == 0, "a group in a group");
    group.open = HOST_NEW(work, 1);
    group.open->kind = GROUP;
    return ncclSuccess;
}
static ncclResult_t add_message(bool receives, void *data, size_t bytes, int peer, ncclComm_t comm, cudaStream_t s) {
    insist(group.depth == 1, "a send or receive alone: with non-blocking peers it may wait forever");
    insist(group.open->comm == NULL || group.open->comm == comm, "two communicators in one group");
    insist(group.open->message_count < MAX_MESSAGES && peer >= 0 && peer < comm->size, "a message to nobody");
    insist(comm->polls == 0, "a call while the one before is in progress");
    insist(!apart() || is_gpu_memory(data, bytes), "a transfer of memory that is not the GPU's");
    message *m = &group.open->messages[group.open->message_count++];
    m->receives = receives;
    m->data = data;
    m->bytes = bytes;
    m->peer = peer;
    group.open->comm = comm;
    group.stream = s;
    return ncclInProgress;
}
ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t s) {
    insist(type == ncclUint8, "a send of other things than bytes");
    return add_message(false, (void *)(uintptr_t)data, count, peer, comm, s);
}
ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t s) {
    insist(type == ncclUint8, "a receive of other things than bytes");
    return add_message(true, data, count, peer, comm, s);
}
// Channels of a message of up to 16 MB inside a machine (scheduleP2pTasksToPlan and addP2pToPlan in NCCL's enqueue.cc, 2.26 to 2.30).
static int channels_of_a_message(ncclComm_t comm) {
    int all = 1, channels;
    while (all < comm->channels) all *= 2;
    for (channels = all; channels > 1 && channels * comm->size > all;) channels /= 2;
    return channels;
}
ncclResult_t ncclGroupEnd(void) {
    insist(group.depth-- == 1, "a group ends that has not begun");
    ncclComm_t comm = group.open->comm;
    if (group.open->message_count == 2 && comm->size > 2 && comm->size <= 8)
        insist(channels_of_a_message(comm) >= 4 && comm->channels_of_a_peer == 4, "a message on less than four of NCCL's channels");
    for (int i = 0; i < group.open->message_count; i++)
        for (int k = 0; k < i; k++) {
            const message *a = &group.open->messages[i], *b = &group.open->messages[k];
            insist((!a->receives && !b->receives) || !overlap(a->data, a->bytes, b->data, b->bytes),
                   "a message is received where another one of its group is");
        }
    queue(group.stream, group.open);
    free(group.open);
    comm->polls = 2;
    return ncclInProgress;
}
static ncclResult_t collective(work_kind kind, const void *from, void *to, size_t count, ncclComm_t comm, cudaStream_t s) {
    insist(comm->polls == 0, "a call while the one before is in progress");
    size_t own = kind == REDUCE_SCATTER ? sizeof(float) * count : count, all = own * (size_t)comm->size;
    insist(!apart() || is_gpu_memory(from, kind == REDUCE_SCATTER ? all : own), "a transfer of memory that is not the GPU's");
    insist(!apart() || is_gpu_memory(to, kind == REDUCE_SCATTER ? own : all), "a transfer of memory that is not the GPU's");
    const void *whole = kind == REDUCE_SCATTER ? from : to, *part = kind == REDUCE_SCATTER ? to : from;
    insist(!overlap(part, own, whole, all) || part == (const char *)whole + (size_t)comm->rank * own,
           "a rank's part of a collective overlaps the whole, but is not in its place there");
    work *w = HOST_NEW(work, 1);
    w->kind = kind;
    w->from = from;
    w->to = to;
    w->count = count;
    w->comm = comm;
    queue(s, w);
    free(w);
    comm->polls = 2;
    return ncclInProgress;
}
ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t s) {
    insist(type == ncclUint8, "an all-gather of other things than bytes");
    return collective(ALL_GATHER, from, to, count, comm, s);
}
ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t s) {
    insist(type == ncclFloat32 && op == ncclSum, "a reduction that is no sum of floats");
    return collective(REDUCE_SCATTER, from, to, count, comm, s);
}

// ---- cuBLASLt: matrices are column-major, as in the library ----

typedef struct {
    cublasOperation_t a, b;
    bool timed;     // proposals that are not the first have been run
    int runs, slow; // products; since then by others than the fastest
} operation;
typedef struct {
    cudaDataType_t type;
    int rows, columns, leading;
} layout;

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    *handle = (cublasLtHandle_t)host_alloc(1);
    return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion(void) { return 130300; }
const char *cublasLtGetStatusString(cublasStatus_t status) { return status == CUBLAS_STATUS_SUCCESS ? "success" : "a fake error"; }
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t compute, cudaDataType_t scale) {
    insist(compute == CUBLAS_COMPUTE_32F && scale == CUDA_R_32F, "products that are not summed in float");
    operation *o = HOST_NEW(operation, 1);
    o->a = o->b = CUBLAS_OP_N;
    *d = (cublasLtMatmulDesc_t)(void *)o;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t name, const void *value,
                                              size_t bytes) {
    operation *o = (operation *)(void *)d;
    if (name == CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET) {
        int32_t sms = 0;
        insist(bytes == sizeof sms, "an attribute of a product of the wrong size");
        memcpy(&sms, value, bytes);
        insist(sms > 0 && sms <= 132, "a product on more SMs than there are, or none");
        return CUBLAS_STATUS_SUCCESS;
    }
    insist(bytes == sizeof o->a && (name == CUBLASLT_MATMUL_DESC_TRANSA || name == CUBLASLT_MATMUL_DESC_TRANSB),
           "an unknown attribute of a product");
    memcpy(name == CUBLASLT_MATMUL_DESC_TRANSA ? &o->a : &o->b, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType_t type, uint64_t rows, uint64_t columns,
                                          int64_t leading) {
    layout *mine = HOST_NEW(layout, 1);
    insist(leading >= (int64_t)rows, "a leading dimension below the rows");
    mine->type = type;
    mine->rows = (int)rows;
    mine->columns = (int)columns;
    mine->leading = (int)leading;
    *l = (cublasLtMatrixLayout_t)(void *)mine;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p) {
    *p = (cublasLtMatmulPreference_t)host_alloc(2 * sizeof(uint32_t)); // how the parts of a split sum are added; the alignment of addresses
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t name,
                                                    const void *value, size_t bytes) {
    insist(bytes == (name == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? 8 : 4), "a preference of the wrong size");
    if (name == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) memcpy((void *)p, value, 4); // 0: not set
    else if (bytes == 4) memcpy((uint32_t *)(void *)p + 1, value, 4); // the same alignment for all four matrices
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
    free(p);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t result,
                                              cublasLtMatmulPreference_t p, int asked, cublasLtMatmulHeuristicResult_t *proposals,
                                              int *count) {
    (void)h, (void)d, (void)a, (void)b, (void)c;
    uint32_t scheme = *(uint32_t *)(void *)p;
    const layout *of = (const layout *)(void *)result;
    if (of->rows == 1 || of->columns == 1) return CUBLAS_STATUS_NOT_SUPPORTED; // as cuBLAS 13.5.1 to 13.6.0 may
    insist(scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE || scheme == CUBLASLT_REDUCTION_SCHEME_NONE,
           "parts of products that are not added in float, or in any order");
    *count = asked < 4 ? asked : 4;
    memset(proposals, 0, sizeof *proposals * (size_t)*count);
    if (*count == 4) proposals[3].state = CUBLAS_STATUS_NOT_SUPPORTED; // its other fields are meaningless
    for (int i = 0; i < *count && i < 3; i++) {
        proposals[i].algo.data[1] = 1;
        proposals[i].algo.data[2] = (uint64_t)i;
        proposals[i].algo.data[3] = ((uint32_t *)(void *)p)[1];
    }
    proposals[0].algo.data[0] = 66; // the algorithm that loses terms, with the sum split into three parts
    proposals[0].algo.data[1] = 3;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algorithm, cublasLtMatmulAlgoConfigAttributes_t name,
                                                    void *value, size_t bytes, size_t *written) {
    insist(bytes == 4 && (name == CUBLASLT_ALGO_CONFIG_ID || name == CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
           "an unknown attribute of an algorithm");
    insist(algorithm->data[1] > 0, "an algorithm of a proposal that is none");
    int32_t is = (int32_t)algorithm->data[name == CUBLASLT_ALGO_CONFIG_ID ? 0 : 1];
    memcpy(value, &is, bytes);
    *written = bytes;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t h, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t result, const cublasLtMatmulAlgo_t *algorithm,
                                       cublasLtMatmulHeuristicResult_t *needs) {
    (void)h, (void)d, (void)a, (void)b, (void)c, (void)result, (void)algorithm;
    memset(needs, 0, sizeof *needs);
    return CUBLAS_STATUS_SUCCESS;
}
static void matrix_touched(const void *x, const layout *l, bool writes) {
    const char *most = getenv("FAKE_CUDA_ELEMENTS"); // of a test that has set as low a limit (linear_test_elements)
    insist((int64_t)l->rows * l->columns <= (most == NULL ? INT32_MAX : strtol(most, NULL, 10)),
           "a product of more elements than cuBLAS is asked for");
    size_t unit = l->type == CUDA_R_16BF ? 2 : 4;
    insist(is_gpu_memory(x, unit * (size_t)l->columns * (size_t)l->leading), "a product of memory that is not the GPU's");
    for (int c = 0; c < l->columns; c++)
        compute_touches((const char *)x + unit * (size_t)c * (size_t)l->leading, unit * (size_t)l->rows, writes);
}
// x (rows, columns) as floats with leading dimension = rows.
static float *floats_of(const void *x, const layout *l) {
    float *f = HOST_NEW(float, (int64_t)l->rows * l->columns);
    for (int c = 0; c < l->columns; c++)
        for (int r = 0; r < l->rows; r++) {
            int64_t at = (int64_t)c * l->leading + r;
            uint32_t bits = l->type == CUDA_R_16BF ? (uint32_t)((const uint16_t *)x)[at] << 16 : ((const uint32_t *)x)[at];
            memcpy(&f[(int64_t)c * l->rows + r], &bits, 4);
        }
    return f;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t d, const void *alpha, const void *A,
                              cublasLtMatrixLayout_t a_layout, const void *B, cublasLtMatrixLayout_t b_layout, const void *beta,
                              const void *C, cublasLtMatrixLayout_t c_layout, void *D, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t workspace_bytes, cudaStream_t s) {
    operation *o = (operation *)(void *)d;
    const layout *a = (const layout *)(void *)a_layout, *b = (const layout *)(void *)b_layout, *c = (const layout *)(void *)c_layout;
    const layout *result = (const layout *)(void *)d_layout;
    int m = o->a == CUBLAS_OP_N ? a->rows : a->columns, k = o->a == CUBLAS_OP_N ? a->columns : a->rows;
    int n = o->b == CUBLAS_OP_N ? b->columns : b->rows, k_of_b = o->b == CUBLAS_OP_N ? b->rows : b->columns;
    insist(handle != NULL && algorithm != NULL && workspace != NULL && workspace_bytes > 0 && s->compute,
           "a product without its surroundings");
    insist((uintptr_t)workspace % 256 == 0, "a workspace of products that is not aligned");
    insist(algorithm->data[0] != 66 || k % (int)algorithm->data[1] == 0, "a product by an algorithm that loses terms");
    // The third proposal is tried only when timing chooses.
    insist(!must_be_deterministic() || algorithm->data[2] < 2, "a product that is chosen by time");
    // The second proposal is the fastest; the first eight runs are slow, as if beside a transfer. Timing runs all in turn, four times.
    int proposal = (int)algorithm->data[2];
    product_milliseconds += (proposal == 1 ? 0.01 : 0.02) + (++o->runs <= 8 ? 0.02 : 0);
    o->timed |= proposal > 0;
    insist(proposal == 1 || !o->timed || ++o->slow <= 3 + 4, "a product by an algorithm that was timed and is not the fastest");
    insist(algorithm->data[3] > 0 && ((uintptr_t)A | (uintptr_t)B | (uintptr_t)C | (uintptr_t)D) % algorithm->data[3] == 0,
           "a product by an algorithm for addresses of another alignment");
    insist(k == k_of_b && result->rows == m && result->columns == n && c->rows == m && c->columns == n,
           "sizes of a product that do not fit");
    insist(a->type == CUDA_R_16BF && b->type == CUDA_R_16BF && c->type == result->type, "types of a product");
    insist(!connected_late, "ranks are connected inside a step");
    matrix_touched(A, a, false);
    matrix_touched(B, b, false);
    if (*(const float *)beta != 0) matrix_touched(C, c, false);
    matrix_touched(D, result, true);
    compute_touches(workspace, workspace_bytes, true);
    gpu_works(true);
    float *fa = floats_of(A, a), *fb = floats_of(B, b), scale = *(const float *)beta,
          *fc = scale != 0 ? floats_of(C, c) : HOST_NEW(float, (int64_t)m *n);
    cblas_sgemm(CblasColMajor, o->a == CUBLAS_OP_N ? CblasNoTrans : CblasTrans, o->b == CUBLAS_OP_N ? CblasNoTrans : CblasTrans, m, n, k,
                *(const float *)alpha, fa, a->rows, fb, b->rows, scale, fc, m);
    for (int column = 0; column < n; column++)
        for (int row = 0; row < m; row++) {
            int64_t at = (int64_t)column * result->leading + row;
            uint32_t bits;
            memcpy(&bits, &fc[(int64_t)column * m + row], 4);
            if (result->type == CUDA_R_16BF) ((uint16_t *)D)[at] = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
            else ((uint32_t *)D)[at] = bits;
        }
    gpu_works(false);
    free(fa);
    free(fb);
    free(fc);
    return CUBLAS_STATUS_SUCCESS;
}
