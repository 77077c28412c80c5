// Communication between GPUs by NCCL. See device/comm.h. Ranks find each other through MPI (comm_host.h), which also carries small messages
// in host memory. A build without MPI uses device/cpu/comm_single.c instead of this file.
//
// A comm is an NCCL communicator and a stream. `start` makes that stream wait for the compute issued so far and queues one group of NCCL
// calls; `finish` makes the compute stream wait for that group. Neither blocks the host. One thread launches, in program order, which is
// the same on all ranks; NCCL_LAUNCH_ORDER_IMPLICIT makes the GPU follow that order too, so that several comms cannot deadlock.
// comm_split splits each communicator from one of all the parent's ranks and connects its peers by transfers of the comm's kind, so that
// nothing is set up inside a step.
// A second thread watches: an asynchronous error, or a transfer that is stuck for TRAIN_LLAMA_TIMEOUT seconds (default 600, 0: no limit),
// ends the job with a message that names the rank, the transfer, its number and its peers.
// A reduce-scatter adds in the order of NCCL's ring, which is fixed for a communicator and a count. Each sum is computed only once, so all
// ranks that gather it get the same bits.
//
// Test mode, TRAIN_LLAMA_SHARE_GPU=1: several ranks share a GPU. NCCL refuses that for ranks of one machine, so each rank claims to be a
// machine of its own (NCCL_HOSTID) and they talk through sockets: correct, but slow.
#include "comm_host.h"
#include "internal.h"

#include <nccl.h>
#include <pthread.h>
#include <signal.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#define NCCL_LEAST NCCL_VERSION(2, 26, 5)
#if NCCL_VERSION_CODE < NCCL_LEAST
#error "NCCL 2.26.5 or newer is needed: versions before 2.26 do not know NCCL_LAUNCH_ORDER_IMPLICIT"
#endif

enum {
    RING = 256,     // how many transfers of one comm the host may be ahead of the GPU
    MAX_COMMS = 128 // comms with an NCCL communicator at a time
};

typedef struct {
    const char *operation;
    int to, from; // ranks of the job; -1: all ranks of the comm
    size_t bytes;
    int64_t place; // in the order in which the transfers of all comms were started
    cudaEvent_t begun;  // on the comm's stream: the compute that the transfer waits for is done
    cudaEvent_t done;   // on the comm's stream: the transfer is done
    cudaEvent_t waited; // on the compute stream: it now waits for `done`
} transfer;

struct comm {
    host_comm *host;
    comm_kind kind;
    int rank, size;
    ncclComm_t nccl; // NULL: one rank, or for control only
    ncclComm_t whole; // of all its ranks, only for splitting comms from it, not for transfers; NULL before the first split
    cudaStream_t stream;
    cudaEvent_t ready; // compute issued before the newest transfer
    transfer ring[RING]; // transfer number n is entry n % RING
    int64_t started, finished, measured; // measured: done, and their waiting time counted
    // the watching thread's view
    int64_t watched; // transfers it has seen complete
    double watched_for; // seconds that the oldest unfinished one has had
};

static comm *world, *machine;
static comm *comms[MAX_COMMS]; // with an NCCL communicator
static int comm_total;
static int64_t places; // transfers started, of all comms
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // held while NCCL is called for one of `comms`, and while the list changes
static pthread_t watcher;
static bool watching, stop_watching;
static comm_counters counters[COMM_KINDS];
static _Atomic double timeout_seconds; // which the watcher reads, too
static int delay_microseconds;
static uint64_t delay_state;

// ---- errors ----

static const char *peers_text(const comm *group, const transfer *t, char *text, size_t size) {
    if (t->to >= 0) {
        snprintf(text, size, "to rank %d, from rank %d", t->to, t->from);
        return text;
    }
    int used = snprintf(text, size, "ranks");
    for (int r = 0; r < group->size && r < 16; r++) used += snprintf(text + used, size - (size_t)used, " %d", comm_world_rank(group, r));
    if (group->size > 16) snprintf(text + used, size - (size_t)used, " ... %d", comm_world_rank(group, group->size - 1));
    return text;
}

// Waits for a call to complete: NCCL is asynchronous (blocking = 0), so a call may still be in progress on return. nccl: its communicator.
static void nccl_wait_for(ncclComm_t nccl, const comm *group, ncclResult_t status, const char *what) {
    double last = device_seconds(), waited = 0;
    while (status == ncclInProgress) {
        ncclResult_t asked = nccl == NULL ? ncclInvalidUsage : ncclCommGetAsyncError(nccl, &status);
        if (asked != ncclSuccess) status = asked;
        double now = device_seconds();
        waited += fmin(now - last, 1); // a machine that was suspended has not waited
        last = now;
        if (timeout_seconds > 0 && waited > timeout_seconds)
            comm_abort("%s %s (rank %d of %d in its group): NCCL has not answered for %g s. A rank has stopped, "
                       "or the ranks cannot reach each other (NCCL_DEBUG=INFO says more; NCCL_SOCKET_IFNAME names the network)",
                       comm_kind_name(group->kind), what, group->rank, group->size, timeout_seconds);
        if (status == ncclInProgress) sched_yield();
    }
    if (status != ncclSuccess)
        comm_abort("%s %s (rank %d of %d in its group): NCCL: %s: %s", comm_kind_name(group->kind), what, group->rank, group->size,
                   ncclGetErrorString(status), ncclGetLastError(nccl));
}
static void nccl_wait(const comm *group, ncclResult_t status, const char *what) { nccl_wait_for(group->nccl, group, status, what); }

static bool is_over(const comm *group, cudaEvent_t event) {
    cudaError_t status = cudaEventQuery(event);
    if (status != cudaSuccess && status != cudaErrorNotReady)
        comm_abort("%s (rank %d of %d in its group): the GPU has failed: %s", comm_kind_name(group->kind), group->rank, group->size,
                   cudaGetErrorString(status));
    if (status == cudaErrorNotReady) cudaGetLastError(); // otherwise the check of the next launch might take it for an error
    return status == cudaSuccess;
}
static const transfer *oldest(const comm *group) { return &group->ring[group->watched % RING]; } // of the unfinished ones
// Called with the lock held, `passed` seconds after the last call. Returns for how long the oldest transfer has been in progress, or 0 if
// none is. Ends the job when one has failed.
static double seconds_in_progress(comm *group, double passed) {
    ncclResult_t status = ncclSuccess;
    if (ncclCommGetAsyncError(group->nccl, &status) == ncclSuccess && status != ncclSuccess && status != ncclInProgress)
        comm_abort("%s (rank %d of %d in its group): NCCL: %s: %s", comm_kind_name(group->kind), group->rank, group->size,
                   ncclGetErrorString(status), ncclGetLastError(group->nccl));
    int64_t before = group->watched;
    if (group->watched < group->started - RING) group->watched = group->started - RING;
    while (group->watched < group->started && is_over(group, oldest(group)->done)) group->watched++;
    // The clock of a transfer starts when the compute before it is done.
    group->watched_for += passed;
    if (group->watched != before || group->watched == group->started || !is_over(group, oldest(group)->begun)) group->watched_for = 0;
    return group->watched_for;
}
// Called with the lock held. Ends the job when a transfer is stuck for too long, and names the first of all that are in progress: those
// that were started later may only wait for its end.
static void watch(double passed) {
    const comm *group = NULL;
    double most = 0;
    char peers[256];
    for (int i = 0; i < comm_total; i++) {
        double seconds = seconds_in_progress(comms[i], passed);
        most = fmax(most, seconds);
        if (seconds > 0 && (group == NULL || oldest(comms[i])->place < oldest(group)->place)) group = comms[i];
    }
    if (timeout_seconds == 0 || most <= timeout_seconds) return;
    const transfer *t = oldest(group);
    comm_abort("%s %s number %lld, %zu bytes, %s: not done after %g s. A rank has stopped, is much slower, or is in other transfers; "
               "TRAIN_LLAMA_TIMEOUT=SECONDS sets the limit",
               comm_kind_name(group->kind), t->operation, (long long)group->watched, t->bytes, peers_text(group, t, peers, sizeof peers),
               timeout_seconds);
}
// The driver may block the watching thread together with the one that it watches. Then nobody sets the alarm anew: this handler of SIGALRM
// ends the rank, and mpirun the others.
static char stuck_message[160]; // the message, formatted before the alarm is set: a signal handler must not call snprintf
static volatile sig_atomic_t alarm_rang;
static void driver_is_stuck(int signal_number) {
    (void)signal_number;
    if (!alarm_rang) { // the whole job may have been paused: the watching thread has another minute
        alarm_rang = 1;
        alarm(60);
        return;
    }
    ssize_t written = write(STDERR_FILENO, stuck_message, strlen(stuck_message));
    (void)written; // nothing is left to do about it
    _exit(EXIT_FAILED);
}
static void *watch_all(void *device) {
    cudaSetDevice((int)(intptr_t)device);
    snprintf(stuck_message, sizeof stuck_message,
             "error: rank %d: the GPU's driver or NCCL has not answered for more than twice TRAIN_LLAMA_TIMEOUT seconds\n", world->rank);
    signal(SIGALRM, driver_is_stuck);
    for (double last = device_seconds();;) {
        struct timespec pause = {0, 200000000};
        nanosleep(&pause, NULL);
        // While the job is paused, by a batch system or a debugger, nobody is late.
        double now = device_seconds(), passed = fmin(now - last, 1);
        last = now;
        alarm_rang = 0;
        if (timeout_seconds > 0) alarm((unsigned)fmin(2 * timeout_seconds + 1, 1e9));
        pthread_mutex_lock(&lock);
        bool stop = stop_watching;
        if (!stop) watch(passed);
        pthread_mutex_unlock(&lock);
        if (!stop) continue;
        alarm(0);
        return NULL;
    }
}
static void start_watching(void) {
    if (watching) return;
    int device;
    cuda_check(cudaGetDevice(&device), "the watching thread");
    stop_watching = false;
    if (pthread_create(&watcher, NULL, watch_all, (void *)(intptr_t)device) != 0)
        comm_abort("the thread that watches transfers could not be started");
    watching = true;
}

// ---- transfers ----

static void test_delay(void) {
    if (delay_microseconds == 0) return;
    delay_state = delay_state * 6364136223846793005ull + 1442695040888963407ull;
    usleep((useconds_t)((delay_state >> 33) % (uint64_t)(delay_microseconds + 1)));
}

// Adds up how long the compute stream stalled for transfers: from `waited` to `done`. Counts the finished transfers (comm_finish) in order,
// up to the first that the GPU has not completed; the host waits for the first `at_least` of them.
static void measure(comm *group, int64_t at_least) {
    for (int64_t i = 0; group->measured < group->finished; i++) {
        transfer *t = &group->ring[group->measured % RING];
        if (i < at_least) {
            cuda_check(cudaEventSynchronize(t->waited), "measuring transfers");
            cuda_check(cudaEventSynchronize(t->done), "measuring transfers");
        } else if (!is_over(group, t->waited) || !is_over(group, t->done)) {
            return;
        }
        float milliseconds = 0;
        cuda_check(cudaEventElapsedTime(&milliseconds, t->waited, t->done), "measuring transfers");
        if (milliseconds > 0) counters[group->kind].wait_seconds += 1e-3 * (double)milliseconds;
        group->measured++;
    }
}

static void make_stream(comm *group) {
    if (group->stream != NULL) return;
    int least, most; // higher priority: lower number
    cuda_check(cudaDeviceGetStreamPriorityRange(&least, &most), "the stream of a communicator");
    // A transfer that is ready gets the next free SMs, before the remaining blocks of a matrix product or of attention: other ranks wait
    // for it. One priority for all communicators: with several, CUDA might start transfers in another order than all ranks launch them.
    cuda_check(cudaStreamCreateWithPriority(&group->stream, cudaStreamNonBlocking, most), "the stream of a communicator");
    cuda_check(cudaEventCreateWithFlags(&group->ready, cudaEventDisableTiming), "the stream of a communicator");
    for (int i = 0; i < RING; i++) {
        cuda_check(cudaEventCreateWithFlags(&group->ring[i].begun, cudaEventDisableTiming), "the stream of a communicator");
        cuda_check(cudaEventCreate(&group->ring[i].done), "the stream of a communicator");
        cuda_check(cudaEventCreate(&group->ring[i].waited), "the stream of a communicator");
    }
}

// A transfer consists of the calls queued on group->stream between `begin` and `end`.
static transfer *begin(comm *group, const char *operation, int to, int from, size_t bytes) {
    test_delay();
    make_stream(group);
    if (group->size > 1 && group->nccl == NULL)
        comm_abort("%s %s: this communicator is for control only", comm_kind_name(group->kind), operation);
    measure(group, group->started - group->measured == RING ? 1 : 0); // a full ring: the host waits for the oldest
    if (group->started - group->measured == RING)
        comm_abort("%s %s: %d transfers are already in flight, which is the limit", comm_kind_name(group->kind), operation, RING);
    transfer *t = &group->ring[group->started % RING];
    t->operation = operation;
    t->to = to;
    t->from = from;
    t->bytes = bytes;
    t->place = places++;
    cuda_check(cudaEventRecord(group->ready, device_compute_stream()), operation);
    cuda_check(cudaStreamWaitEvent(group->stream, group->ready, 0), operation);
    cuda_check(cudaEventRecord(t->begun, group->stream), operation);
    pthread_mutex_lock(&lock); // until `end`
    return t;
}
static void end(comm *group, transfer *t, int messages) {
    cuda_check(cudaEventRecord(t->done, group->stream), t->operation);
    if (t->bytes > 0) {
        counters[group->kind].bytes_sent += (int64_t)t->bytes;
        counters[group->kind].messages += messages;
    }
    group->started++;
    pthread_mutex_unlock(&lock);
}
static void copy_self(comm *group, void *to, const void *from, size_t bytes) {
    if (bytes > 0 && to != from)
        cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, group->stream), "a rank's copy to itself");
}
// Of a call in a group: it is in progress until the group ends.
static void check_call(const comm *group, ncclResult_t status, const char *operation) {
    if (status != ncclInProgress) nccl_wait(group, status, operation);
}

void comm_sendrecv_start(comm *group, const void *send, size_t send_bytes, int to, void *recv, size_t recv_bytes, int from) {
    bool alone = to == group->rank && from == group->rank;
    transfer *t = begin(group, "sendrecv", comm_world_rank(group, to), comm_world_rank(group, from), alone ? 0 : send_bytes);
    if (alone) {
        copy_self(group, recv, send, send_bytes);
    } else if (send_bytes > 0 || recv_bytes > 0) { // send and receive in one group, or two ranks that send to each other wait forever
        check_call(group, ncclGroupStart(), "sendrecv");
        if (send_bytes > 0) check_call(group, ncclSend(send, send_bytes, ncclUint8, to, group->nccl, group->stream), "sendrecv");
        if (recv_bytes > 0) check_call(group, ncclRecv(recv, recv_bytes, ncclUint8, from, group->nccl, group->stream), "sendrecv");
        nccl_wait(group, ncclGroupEnd(), "sendrecv");
    }
    end(group, t, 1);
}

void comm_alltoall_start(comm *group, const void *send, void *recv, size_t bytes_per_rank) {
    transfer *t = begin(group, "alltoall", -1, -1, bytes_per_rank * (size_t)(group->size - 1));
    const char *from = (const char *)send;
    char *to = (char *)recv;
    size_t own = (size_t)group->rank * bytes_per_rank;
    if (group->size > 1 && bytes_per_rank > 0) {
        check_call(group, ncclGroupStart(), "alltoall");
        for (int k = 1; k < group->size; k++) {
            int next = (group->rank + k) % group->size, before = (group->rank + group->size - k) % group->size;
            check_call(group, ncclSend(from + (size_t)next * bytes_per_rank, bytes_per_rank, ncclUint8, next, group->nccl, group->stream),
                       "alltoall");
            check_call(group, ncclRecv(to + (size_t)before * bytes_per_rank, bytes_per_rank, ncclUint8, before, group->nccl, group->stream),
                       "alltoall");
        }
        nccl_wait(group, ncclGroupEnd(), "alltoall");
    }
    copy_self(group, to + own, from + own, bytes_per_rank);
    end(group, t, group->size - 1);
}

void comm_allgather_start(comm *group, const void *send, void *recv, size_t bytes_per_rank) {
    transfer *t = begin(group, "allgather", -1, -1, bytes_per_rank * (size_t)(group->size - 1));
    if (group->size == 1) copy_self(group, recv, send, bytes_per_rank);
    else if (bytes_per_rank > 0)
        nccl_wait(group, ncclAllGather(send, recv, bytes_per_rank, ncclUint8, group->nccl, group->stream), "allgather");
    end(group, t, group->size - 1);
}

size_t comm_reduce_scatter_scratch(int ranks, size_t count_per_rank) {
    (void)ranks;
    (void)count_per_rank;
    return 0; // NCCL uses its own memory
}
void comm_reduce_scatter_start(comm *group, const float *send, float *recv, size_t count_per_rank, void *scratch) {
    (void)scratch;
    size_t bytes = count_per_rank * sizeof(float);
    transfer *t = begin(group, "reduce_scatter", -1, -1, bytes * (size_t)(group->size - 1));
    if (group->size == 1) copy_self(group, recv, send, bytes);
    else if (bytes > 0)
        nccl_wait(group, ncclReduceScatter(send, recv, count_per_rank, ncclFloat32, ncclSum, group->nccl, group->stream), "reduce_scatter");
    end(group, t, group->size - 1);
}

void comm_finish(comm *group) {
    if (comm_pending(group) == 0) comm_abort("%s: comm_finish without a started transfer", comm_kind_name(group->kind));
    test_delay();
    transfer *t = &group->ring[group->finished % RING];
    cuda_check(cudaEventRecord(t->waited, device_compute_stream()), "comm_finish");
    cuda_span_begin(comm_kind_name(group->kind));
    cuda_check(cudaStreamWaitEvent(device_compute_stream(), t->done, 0), "comm_finish");
    cuda_span_end();
    group->finished++;
}
int comm_pending(const comm *group) { return (int)(group->started - group->finished); }

// ---- groups ----

static comm *wrap(host_comm *host, comm_kind kind) {
    comm *group = HOST_NEW(comm, 1);
    group->host = host;
    group->kind = kind;
    group->rank = host_comm_rank(host);
    group->size = host_comm_size(host);
    return group;
}

static bool is_ring(comm_kind kind) {
    return kind == COMM_KV_INNER || kind == COMM_KV_OUTER || kind == COMM_DKV_INNER || kind == COMM_DKV_OUTER;
}

// SMs that a communicator may take from compute, one per channel. Compute waits for SeqAlltoAll, so it gets many. A ring step need only
// keep up with a block of attention, but NCCL divides the channels among all ranks (scheduleP2pTasksToPlan: a transfer between two ranks
// starts with channels / ranks, a power of two, and inside a machine gets more only beyond 16 MB per channel). With four channels in all
// a step would run on one or two, at some 10 GB/s each over NVLink (NCCL uses two per link of a GPU). A transfer occupies only the
// channels that it is given.
static int most_ctas(comm_kind kind, int size) {
    if (is_ring(kind)) return size < 4 ? 8 * size : 32;
    return kind == COMM_SEQ_ALLTOALL ? 32 : 8;
}

// Runs the comm's kind of transfer with `bytes` per rank, which makes NCCL connect the peers and load its kernels.
static void warm_up(comm *group, size_t bytes) {
    char *buffer = (char *)device_alloc(2 * bytes * (size_t)group->size);
    if (buffer == NULL) comm_abort("not enough memory to connect the ranks of a %s group", comm_kind_name(group->kind));
    char *other = buffer + bytes * (size_t)group->size;
    int next = (group->rank + 1) % group->size, before = (group->rank + group->size - 1) % group->size;
    device_zero(buffer, 2 * bytes * (size_t)group->size);
    comm_counters kept = counters[group->kind];
    switch (group->kind) {
    case COMM_SEQ_ALLTOALL: comm_alltoall_start(group, buffer, other, bytes); break;
    case COMM_KV_GATHER: case COMM_PARAM_GATHER: case COMM_PARAM_UPDATE: comm_allgather_start(group, buffer, other, bytes); break;
    case COMM_DKV_SCATTER: // --dkv-wire f32, and bf16
        comm_reduce_scatter_start(group, (float *)buffer, (float *)other, bytes / sizeof(float), NULL);
        comm_finish(group);
        comm_alltoall_start(group, buffer, other, bytes);
        break;
    case COMM_GRAD_REDUCE:
        comm_reduce_scatter_start(group, (float *)buffer, (float *)other, bytes / sizeof(float), NULL);
        comm_finish(group);
        comm_allgather_start(group, buffer, other, bytes);
        break;
    default: comm_sendrecv_start(group, buffer, bytes, next, other, bytes, before);
    }
    comm_finish(group);
    device_synchronize();
    measure(group, INT64_MAX);
    counters[group->kind] = kept;
    device_free(buffer);
}

// Creates parent->whole, for which the ranks must find each other; the parent's comms are split from it.
static void make_whole(comm *parent) {
    ncclUniqueId id;
    int version = 0;
    if (ncclGetVersion(&version) == ncclSuccess && version < NCCL_LEAST) // the library loaded may differ from the one built against
        comm_abort("NCCL %d.%d.%d was loaded; 2.26.5 or newer is needed", version / 10000, version / 100 % 100, version % 100);
    if (version < NCCL_VERSION(2, 28, 9) && parent->rank == 0 && parent->size > comm_local_ranks()) // release notes: "hangs at large scale"
        fprintf(stderr, "note: NCCL before 2.28.9 may hang on many machines\n");
    // "may experience hangs": NVIDIA's documentation of cuBLASMp, known issues. Several ranks of a machine in one group, over InfiniBand.
    if (version >= NCCL_VERSION(2, 29, 7) && version < NCCL_VERSION(2, 30, 7) && parent->rank == 0 && parent->size > comm_local_ranks())
        fprintf(stderr, "note: NCCL 2.29.7 to 2.30.6 may hang on several machines with InfiniBand; NCCL_PXN_DISABLE=1 avoids it\n");
#ifdef __aarch64__
    if (version < NCCL_VERSION(2, 29, 3) && parent->rank == 0) fprintf(stderr, "note: NCCL before 2.29.3 may hang on ARM\n");
#endif
    if (cudaDriverGetVersion(&version) == cudaSuccess && version < 12030 && parent->rank == 0)
        fprintf(stderr, "note: the driver supports CUDA %d.%d; before 12.3, transfers of different groups wait for each other\n",
                version / 1000, version % 1000 / 10);
    memset(&id, 0, sizeof id);
    if (parent->rank == 0) nccl_wait(parent, ncclGetUniqueId(&id), "start");
    host_comm_broadcast(parent->host, &id, sizeof id, 0);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclResult_t status = ncclCommInitRankConfig(&parent->whole, parent->size, id, parent->rank, &config);
    nccl_wait_for(parent->whole, parent, status, "start");
}
// All ranks of the parent call it; group NULL: this rank is in no new comm.
static void split_whole(comm *parent, comm *group, int colour, int key, comm_kind kind) {
    ncclComm_t nccl = NULL;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.maxCTAs = most_ctas(kind, group == NULL ? 1 : group->size);
    // From Hopper on NCCL's default is clusters of four blocks, on neighbouring SMs. Beside compute, SMs become free one at a time.
    config.cgaClusterSize = 1;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
    // A rank of a ring has two peers. NCCL plans for all ranks: one or two channels per peer, at some 14 GB/s each over the network.
    if (is_ring(kind)) config.nChannelsPerNetPeer = 4;
#endif
    bool member = group != NULL && group->size > 1;
    ncclResult_t status = ncclCommSplit(parent->whole, member ? colour : NCCL_SPLIT_NOCOLOR, key, &nccl, &config);
    // "success" means that the split has begun: the parent's communicator knows when it is done.
    if (status == ncclSuccess) status = ncclInProgress;
    nccl_wait_for(parent->whole, parent, status, "split"); // `nccl` is filled only now (NCCL issue 1472)
    if (!member) return;
    if (nccl == NULL) comm_abort("%s split: NCCL gave no communicator", comm_kind_name(kind));
    group->nccl = nccl;
    nccl_wait(group, ncclInProgress, "start");
}
static void free_nccl(const comm *group, ncclComm_t nccl) {
    if (nccl == NULL) return;
    nccl_wait_for(nccl, group, ncclCommFinalize(nccl), "end");
    ncclCommDestroy(nccl);
}

static void connect_ranks(comm *group) {
    make_stream(group);
    group->watched_for = 0;
    pthread_mutex_lock(&lock);
    if (comm_total == MAX_COMMS) comm_abort("more than %d communicators", MAX_COMMS);
    comms[comm_total++] = group;
    pthread_mutex_unlock(&lock);
    start_watching();
    warm_up(group, 64); // NCCL connects peers when it first uses an algorithm, and uses another one for small messages
    warm_up(group, (size_t)round_up(ceil_div(1 << 24, group->size), 64)); // 16 MB in all
    host_comm_barrier(group->host);
}

comm *comm_split(comm *parent, int colour, int key, comm_kind kind) {
    host_comm *host = host_comm_split(parent->host, colour, key, kind);
    comm *group = host == NULL ? NULL : wrap(host, kind);
    if (parent->size == 1 || kind == COMM_CONTROL) return group;
    if (parent->whole == NULL) make_whole(parent);
    split_whole(parent, group, colour, key, kind);
    if (group != NULL && group->size > 1) connect_ranks(group);
    return group;
}

void comm_free(comm *group) {
    if (group == NULL) return;
    if (comm_pending(group) > 0)
        comm_abort("%s: comm_free with %d unfinished transfers", comm_kind_name(group->kind), comm_pending(group));
    if (group->stream != NULL) {
        cuda_check(cudaStreamSynchronize(group->stream), "comm_free");
        measure(group, INT64_MAX);
    }
    if (group->nccl != NULL) {
        pthread_mutex_lock(&lock);
        for (int i = 0; i < comm_total; i++)
            if (comms[i] == group) comms[i--] = comms[--comm_total];
        pthread_mutex_unlock(&lock);
        free_nccl(group, group->nccl);
    }
    free_nccl(group, group->whole);
    if (group->stream != NULL) {
        for (int i = 0; i < RING; i++) {
            cudaEventDestroy(group->ring[i].begun);
            cudaEventDestroy(group->ring[i].done);
            cudaEventDestroy(group->ring[i].waited);
        }
        cudaEventDestroy(group->ready);
        cudaStreamDestroy(group->stream);
    }
    host_comm_free(group->host);
    free(group);
}

int comm_rank(const comm *group) { return group->rank; }
int comm_size(const comm *group) { return group->size; }
comm_kind comm_kind_of(const comm *group) { return group->kind; }
comm *comm_world(void) { return world; }
comm *comm_machine(void) { return machine; }
int comm_world_rank(const comm *group, int rank) { return host_comm_world_rank(group->host, rank); }

// ---- small and blocking, on the host ----

void comm_sum_double(comm *group, double *values, int count) { host_comm_sum_double(group->host, values, count); }
void comm_max_double(comm *group, double *values, int count) { host_comm_max_double(group->host, values, count); }
void comm_sum_int64(comm *group, int64_t *values, int count) { host_comm_sum_int64(group->host, values, count); }
void comm_broadcast(comm *group, void *host_data, size_t bytes, int root) { host_comm_broadcast(group->host, host_data, bytes, root); }
void comm_barrier(comm *group) { host_comm_barrier(group->host); }
bool comm_agree(comm *group, error_text *error) { return host_comm_agree(group->host, error); }
bool comm_agree_on_files(comm *group, error_text *error) { return host_comm_agree_on_files(group->host, error); }

// ---- start and end ----

static void set_unless_set(const char *name, const char *value) { setenv(name, value, 0); }

bool comm_init(int *argc, char ***argv, error_text *error) {
    // Read when CUDA and NCCL start, which a CUDA-aware MPI does in MPI_Init. CUDA_DEVICE_MAX_CONNECTIONS: hardware queues for streams (8
    // by default, 32 at most). Where two streams share a queue, one may wait for the other; with NCCL's own, a full grid has some 40.
    // Kernels are loaded at their first launch (CUDA_MODULE_LOADING's default), which may wait for earlier transfers. That cannot deadlock:
    // all ranks launch in the same order, so the rank that is furthest behind can always go on.
    set_unless_set("CUDA_DEVICE_MAX_CONNECTIONS", "32");
    set_unless_set("NCCL_LAUNCH_ORDER_IMPLICIT", "1");
    // NVLS (sums and multicast in NVLink's switches) is set up for each communicator, used or not. Where that fails (containers, no fabric
    // manager) the communicator fails or, in 2.27 and 2.28, may hang (NCCL documentation, NCCL_NVLS_ENABLE). PAT, for small messages,
    // would take hundreds of MB of buffers per communicator.
    set_unless_set("NCCL_NVLS_ENABLE", "0");
    set_unless_set("NCCL_PAT_ENABLE", "0");
    // A service for diagnosis that listens on a socket; its thread has crashed jobs (NCCL issue 1996). We have our own time limit.
    set_unless_set("NCCL_RAS_ENABLE", "0");
#ifdef __aarch64__
    // Grace: a card's writes reach the GPU over NVLink-C2C, where the protocol LL128 was seen to read data too early over HPE's Slingshot:
    // wrong sums, without an error (NCCL issue 2001, pull request 2053). Left out between machines; large transfers do not use it.
    set_unless_set("NCCL_LL128_C2C", "0");
#endif
    if (!host_comm_init(argc, argv, error)) return false;
    const char *share = getenv("TRAIN_LLAMA_SHARE_GPU");
    timeout_seconds = host_comm_wait_at_least(0);
    if (share != NULL && strcmp(share, "1") == 0) {
        char id[32];
        snprintf(id, sizeof id, "train_llama_rank_%d", host_comm_rank(host_comm_world()));
        set_unless_set("NCCL_HOSTID", id);
        set_unless_set("NCCL_SOCKET_IFNAME", "lo");
        set_unless_set("NCCL_IB_DISABLE", "1");
        set_unless_set("NCCL_MNNVL_ENABLE", "0"); // else a GPU that names a cluster of NVLinks would tell that the machines are one
        set_unless_set("NCCL_NET", "Socket");
        set_unless_set("NCCL_MAX_CTAS", "2");
        set_unless_set("NCCL_PROTO", "Simple");
    }
    world = wrap(host_comm_world(), COMM_CONTROL);
    machine = wrap(host_comm_machine(), COMM_CONTROL);
    return true;
}
double comm_wait_at_least(double seconds) { return timeout_seconds = host_comm_wait_at_least(seconds); }
// NCCL reads these when it is first used. A ring with one protocol adds in an order that depends only on the communicator and the count.
// Trees, NVLS and the tuner's choice among them for a size may differ from one version or network to the next.
bool comm_use_deterministic(error_text *error) {
    static const char *const settings[2][2] = {{"NCCL_ALGO", "Ring"}, {"NCCL_PROTO", "Simple"}};
    for (int i = 0; i < 2; i++) {
        const char *name = settings[i][0], *value = settings[i][1], *now = getenv(name);
        if (now != NULL && strcasecmp(now, value) != 0)
            return error_set(error, "%s=%s in the environment: a deterministic run needs %s; set it to that or leave it unset", name, now,
                             value);
        setenv(name, value, 1);
    }
    return true;
}
void comm_finalize(void) {
    if (world == NULL) return;
    if (watching) {
        pthread_mutex_lock(&lock);
        stop_watching = true;
        pthread_mutex_unlock(&lock);
        pthread_join(watcher, NULL);
        watching = false;
    }
    free_nccl(world, world->whole);
    free(machine);
    free(world);
    machine = world = NULL;
    host_comm_finalize();
}

// ---- counters and tests ----

comm_counters comm_count(comm_kind kind) {
    for (int i = 0; i < comm_total; i++)
        if (comms[i]->kind == kind) measure(comms[i], INT64_MAX);
    return kind == COMM_CONTROL ? host_comm_count(kind) : counters[kind];
}
void comm_count_reset(void) {
    for (int i = 0; i < comm_total; i++) measure(comms[i], INT64_MAX);
    memset(counters, 0, sizeof counters);
    host_comm_count_reset();
}
void comm_test_delay(int max_microseconds, uint64_t seed) {
    delay_microseconds = max_microseconds;
    delay_state = seed * 1000003u + (uint64_t)world->rank;
}
void comm_test_piece_limit(size_t bytes) { (void)bytes; } // NCCL takes 64-bit counts: no pieces
