// Communication between ranks by MPI. Every transfer is a set of MPI_Irecv and MPI_Isend that `*_start` posts and comm_finish
// waits for. Only the thread that called comm_init calls MPI, but any thread may call comm_abort (the watching thread of comm_nccl.c does).
//
// Transfers of one comm are told apart by their tag, which counts up from 1; the small blocking functions use tag 0.
// MPI cannot notice that a peer has stopped, so every wait has a limit: TRAIN_LLAMA_TIMEOUT seconds (default 600, 0 = no
// limit) after which the job ends with a message that names who waits for whom.
#include "../comm.h"
#include "launch.h" // defines: launch_is_single
#include <mpi.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>

enum {
    MAX_PENDING = 64,      // most transfers of one comm that are started and not finished
    TAG_SMALL = 0,         // the small blocking functions
    TAG_CYCLE = 30000,     // transfers use tags 1 to 30000 in turn; MPI promises tags up to 32767
    SUM_CHUNK = 4096,      // floats summed at a time: stays in the first-level cache
    PIECE_LIMIT = 1 << 30, // bytes of one MPI message, whose count is an int
};

typedef struct {
    bool receives; // else sends
    int peer;      // rank of the comm
    int bytes;
} mpi_piece; // one MPI message: a whole message, or a piece of one

typedef struct {
    const char *operation; // "sendrecv", "alltoall", ...
    int tag;
    int pieces, capacity; // used and allocated entries of the three arrays
    mpi_piece *piece;
    MPI_Request *request;
    MPI_Status *status;
    // What a reduce-scatter still has to add when its pieces have arrived; sum_to is NULL for other transfers.
    float *sum_to;        // (count)
    const float *own;     // (count), may be sum_to
    const float *arrived; // (size - 1, count), of the other ranks in their order
    size_t count;
} transfer;

struct comm {
    MPI_Comm mpi;
    comm_kind kind;
    int rank, size;
    int *world_rank;               // (size): ranks of this comm as ranks of the job, for messages to the user
    transfer pending[MAX_PENDING]; // transfer number n is entry n % MAX_PENDING
    int64_t started, finished;     // transfers so far
    transfer small;                // used by the small blocking functions
};

static comm *world, *machine; // NULL before comm_init and after comm_finalize
static comm_counters counters[COMM_KINDS];
static double timeout_seconds = 600;
static bool timeout_given; // by the user
static bool waits_for_files; // there is no limit for now
static size_t piece_limit = PIECE_LIMIT;
static int delay_microseconds;
static uint64_t delay_state;

// ---- Errors ----

void comm_abort(const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fflush(stdout);
    if (world == NULL) {
        fprintf(stderr, "%s\n", text);
        _exit(EXIT_FAILED);
    }
    fprintf(stderr, "rank %d: %s\n", world->rank, text);
    fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILED);
    _exit(EXIT_FAILED); // as host_alloc
}

// Ends the job when an MPI call failed. `p` is the message it was about, NULL if none.
static void check(int code, const comm *group, const char *operation, const mpi_piece *p) {
    if (code == MPI_SUCCESS) return;
    char reason[MPI_MAX_ERROR_STRING], message[128] = "";
    int length;
    if (MPI_Error_string(code, reason, &length) != MPI_SUCCESS) snprintf(reason, sizeof reason, "MPI error %d", code);
    if (p != NULL) {
        bool known = p->peer >= 0 && p->peer < group->size;
        int rank = known ? group->world_rank[p->peer] : p->peer;
        snprintf(message, sizeof message, "%d bytes %s rank %d: ", p->bytes, p->receives ? "from" : "to", rank);
    }
    comm_abort("%s %s (rank %d of %d in its group): %s%s", comm_kind_name(group->kind), operation, group->rank, group->size, message,
               reason);
}

// Names the messages still missing, at most 4, in `missing` (size bytes). Returns how many there are.
static int missing_messages(const comm *group, const transfer *t, char *missing, size_t size) {
    int named = 0, unfinished = 0;
    missing[0] = '\0';
    for (int i = 0; i < t->pieces; i++) {
        int done = 0;
        MPI_Request_get_status(t->request[i], &done, MPI_STATUS_IGNORE);
        if (done) continue;
        unfinished++;
        if (named == 4) continue;
        size_t used = strlen(missing);
        const mpi_piece *p = &t->piece[i];
        snprintf(missing + used, size - used, "%s%d bytes %s rank %d", named > 0 ? ", " : "", p->bytes, p->receives ? "from" : "to",
                 group->world_rank[p->peer]);
        named++;
    }
    if (unfinished > named) snprintf(missing + strlen(missing), size - strlen(missing), ", ...");
    return unfinished;
}
// The wait limit has passed: ends the job. Returns if nothing is missing: all arrived while this process itself was stopped.
static void end_timed_out(const comm *group, const transfer *t) {
    char missing[512];
    if (missing_messages(group, t, missing, sizeof missing) == 0) return;
    comm_abort("%s %s (rank %d of %d in its group) waited %g s for %s. That rank has stopped, is much slower, or is in other transfers; "
               "TRAIN_LLAMA_TIMEOUT=SECONDS sets the limit",
               comm_kind_name(group->kind), t->operation, group->rank, group->size, timeout_seconds, missing);
}
// Without a limit a rank that hangs in a file system would be waited for in silence. Returns after how many seconds in all to say it again.
static double note_slow_files(const comm *group, const transfer *t, double waited) {
    char missing[512];
    if (missing_messages(group, t, missing, sizeof missing) > 0)
        fprintf(stderr, "note: files are read or written: waiting for %s (%.0f s so far)\n", missing, waited);
    return 2 * waited;
}

// ---- Transfers ----

static void test_delay(void) {
    if (delay_microseconds == 0) return;
    delay_state = delay_state * 6364136223846793005ull + 1442695040888963407ull;
    long microseconds = (long)((delay_state >> 33) % (uint64_t)(delay_microseconds + 1));
    struct timespec pause = {microseconds / 1000000, microseconds % 1000000 * 1000};
    nanosleep(&pause, NULL);
}

static void copy_self(void *to, const void *from, size_t bytes) {
    if (bytes > 0 && to != from) memcpy(to, from, bytes);
}

static void begin(transfer *t, const char *operation, int tag) {
    t->operation = operation;
    t->tag = tag;
    t->pieces = 0;
    t->sum_to = NULL;
}

static transfer *start(comm *group, const char *operation) {
    test_delay();
    if (comm_pending(group) == MAX_PENDING)
        comm_abort("%s %s: %d transfers are already in flight, which is the limit", comm_kind_name(group->kind), operation, MAX_PENDING);
    transfer *t = &group->pending[group->started % MAX_PENDING];
    begin(t, operation, 1 + (int)(group->started % TAG_CYCLE));
    group->started++;
    return t;
}

static mpi_piece *add_piece(transfer *t, bool receives, int peer, size_t bytes) {
    if (t->pieces == t->capacity) {
        t->capacity = t->capacity == 0 ? 8 : 2 * t->capacity;
        t->piece = (mpi_piece *)realloc(t->piece, sizeof *t->piece * (size_t)t->capacity);
        t->request = (MPI_Request *)realloc(t->request, sizeof *t->request * (size_t)t->capacity);
        t->status = (MPI_Status *)realloc(t->status, sizeof *t->status * (size_t)t->capacity);
        if (t->piece == NULL || t->request == NULL || t->status == NULL) comm_abort("out of host memory for a list of transfers");
    }
    mpi_piece *p = &t->piece[t->pieces++];
    p->receives = receives;
    p->peer = peer;
    p->bytes = (int)bytes;
    return p;
}

// Posts the receives of `bytes` from rank `from`, in pieces. Receives of a transfer are posted before its sends.
static void post_receive(comm *group, transfer *t, void *to, size_t bytes, int from) {
    for (size_t at = 0; at < bytes; at += piece_limit) {
        mpi_piece *p = add_piece(t, true, from, bytes - at < piece_limit ? bytes - at : piece_limit);
        check(MPI_Irecv((char *)to + at, p->bytes, MPI_BYTE, from, t->tag, group->mpi, &t->request[t->pieces - 1]), group, t->operation, p);
    }
}

static void post_send(comm *group, transfer *t, const void *from, size_t bytes, int to) {
    for (size_t at = 0; at < bytes; at += piece_limit) {
        mpi_piece *p = add_piece(t, false, to, bytes - at < piece_limit ? bytes - at : piece_limit);
        check(MPI_Isend((const char *)from + at, p->bytes, MPI_BYTE, to, t->tag, group->mpi, &t->request[t->pieces - 1]), group,
              t->operation, p);
    }
    if (bytes > 0) {
        counters[group->kind].bytes_sent += (int64_t)bytes;
        counters[group->kind].messages++;
    }
}

// Waits until all pieces are sent and received. MPI_Testall yields the core between polls (mpi_yield_when_idle, set in
// comm_init); a sched_yield of our own on top of that doubles the time of small messages when ranks outnumber cores.
static void wait_for(const comm *group, transfer *t) {
    double waited = 0, last = MPI_Wtime(), note_after = timeout_seconds > 0 ? timeout_seconds / 10 : 60;
    for (;;) {
        int done = 0;
        int code = MPI_Testall(t->pieces, t->request, &done, t->status);
        if (code == MPI_ERR_IN_STATUS) {
            for (int i = 0; i < t->pieces; i++)
                if (t->status[i].MPI_ERROR != MPI_ERR_PENDING) check(t->status[i].MPI_ERROR, group, t->operation, &t->piece[i]);
        }
        check(code, group, t->operation, NULL);
        if (done) break;
        double now = MPI_Wtime();
        waited += fmin(now - last, 1); // while the job is paused, by a batch system or a debugger, nobody is late
        last = now;
        if (timeout_seconds > 0 && !waits_for_files && waited > timeout_seconds) end_timed_out(group, t);
        if (waits_for_files && group->rank <= 1 && waited > note_after) note_after = note_slow_files(group, t, waited); // rank 1: of rank 0
    }
    for (int i = 0; i < t->pieces; i++) {
        int bytes = 0;
        if (!t->piece[i].receives) continue;
        check(MPI_Get_count(&t->status[i], MPI_BYTE, &bytes), group, t->operation, &t->piece[i]);
        if (bytes != t->piece[i].bytes)
            comm_abort("%s %s: rank %d sent %d bytes where %d were expected", comm_kind_name(group->kind), t->operation,
                       group->world_rank[t->piece[i].peer], bytes, t->piece[i].bytes);
    }
}

void comm_sendrecv_start(comm *group, const void *send, size_t send_bytes, int to, void *recv, size_t recv_bytes, int from) {
    transfer *t = start(group, "sendrecv");
    if (to == group->rank && from == group->rank) {
        copy_self(recv, send, send_bytes);
        return;
    }
    post_receive(group, t, recv, recv_bytes, from);
    post_send(group, t, send, send_bytes, to);
}

// In step k every rank sends to the rank k places after it and receives from the rank k places before it, so that no rank is everyone's
// first target.
static int rank_after(const comm *group, int k) { return (group->rank + k) % group->size; }
static int rank_before(const comm *group, int k) { return (group->rank + group->size - k) % group->size; }

void comm_alltoall_start(comm *group, const void *send, void *recv, size_t bytes_per_rank) {
    transfer *t = start(group, "alltoall");
    const char *from = (const char *)send;
    char *to = (char *)recv;
    for (int k = 1; k < group->size; k++)
        post_receive(group, t, to + (size_t)rank_before(group, k) * bytes_per_rank, bytes_per_rank, rank_before(group, k));
    for (int k = 1; k < group->size; k++)
        post_send(group, t, from + (size_t)rank_after(group, k) * bytes_per_rank, bytes_per_rank, rank_after(group, k));
    copy_self(to + (size_t)group->rank * bytes_per_rank, from + (size_t)group->rank * bytes_per_rank, bytes_per_rank);
}

void comm_allgather_start(comm *group, const void *send, void *recv, size_t bytes_per_rank) {
    transfer *t = start(group, "allgather");
    char *to = (char *)recv;
    for (int k = 1; k < group->size; k++)
        post_receive(group, t, to + (size_t)rank_before(group, k) * bytes_per_rank, bytes_per_rank, rank_before(group, k));
    for (int k = 1; k < group->size; k++) post_send(group, t, send, bytes_per_rank, rank_after(group, k));
    copy_self(to + (size_t)group->rank * bytes_per_rank, send, bytes_per_rank);
}

size_t comm_reduce_scatter_scratch(int ranks, size_t count_per_rank) { return (size_t)(ranks - 1) * count_per_rank * sizeof(float); }

// Every rank receives the blocks that it is to sum from all others; reduce_sum adds them when they have arrived.
void comm_reduce_scatter_start(comm *group, const float *send, float *recv, size_t count_per_rank, void *scratch) {
    transfer *t = start(group, "reduce_scatter");
    size_t bytes = count_per_rank * sizeof(float);
    t->sum_to = recv;
    t->own = send + (size_t)group->rank * count_per_rank;
    t->arrived = (const float *)scratch;
    t->count = count_per_rank;
    for (int k = 1; k < group->size; k++) {
        int from = rank_before(group, k), place = from < group->rank ? from : from - 1;
        post_receive(group, t, (char *)scratch + (size_t)place * bytes, bytes, from);
    }
    for (int k = 1; k < group->size; k++)
        post_send(group, t, send + (size_t)rank_after(group, k) * count_per_rank, bytes, rank_after(group, k));
}

// sum_to = ((block of rank 0 + block of rank 1) + block of rank 2) + ..., this rank's own block at its place in the order.
static void reduce_sum(const comm *group, const transfer *t) {
    int64_t chunks = ceil_div((int64_t)t->count, SUM_CHUNK);
#pragma omp parallel for schedule(static) if (chunks >= 16)
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
        size_t first = (size_t)chunk * SUM_CHUNK;
        size_t n = t->count - first < SUM_CHUNK ? t->count - first : SUM_CHUNK;
        float sum[SUM_CHUNK];
        for (int r = 0; r < group->size; r++) {
            int place = r < group->rank ? r : r - 1;
            const float *block = (r == group->rank ? t->own : t->arrived + (size_t)place * t->count) + first;
            if (r == 0) memcpy(sum, block, n * sizeof *sum);
            else
                for (size_t i = 0; i < n; i++) sum[i] += block[i];
        }
        memcpy(t->sum_to + first, sum, n * sizeof *sum); // after the last read: sum_to may be own
    }
}

static void wait_for_counted(comm *group, transfer *t) {
    double began = MPI_Wtime();
    wait_for(group, t);
    counters[group->kind].wait_seconds += MPI_Wtime() - began;
}
void comm_finish(comm *group) {
    if (comm_pending(group) == 0) comm_abort("%s: comm_finish without a started transfer", comm_kind_name(group->kind));
    test_delay();
    transfer *t = &group->pending[group->finished % MAX_PENDING];
    wait_for_counted(group, t);
    if (t->sum_to != NULL) reduce_sum(group, t);
    group->finished++;
}

int comm_pending(const comm *group) { return (int)(group->started - group->finished); }

// ---- Small and blocking ----

static void broadcast_small(comm *group, const char *operation, void *data, size_t bytes, int root) {
    transfer *t = &group->small;
    begin(t, operation, TAG_SMALL);
    if (group->rank == root) {
        for (int r = 0; r < group->size; r++)
            if (r != root) post_send(group, t, data, bytes, r);
    } else {
        post_receive(group, t, data, bytes, root);
    }
    wait_for_counted(group, t);
}

// `values` of every rank (numbers of 8 bytes) become what `combine` makes of those of all ranks, in the order of ranks: rank 0 gathers and
// combines them and sends the result. combine NULL: only a barrier.
static void reduce_small(comm *group, const char *operation, void *values, size_t bytes, void (*combine)(void *to, const void *from)) {
    transfer *t = &group->small;
    char *all = group->rank == 0 ? HOST_NEW(char, (size_t)group->size * bytes) : NULL; // (size, bytes): block r from rank r
    begin(t, operation, TAG_SMALL);
    if (group->rank > 0) post_send(group, t, values, bytes, 0);
    else
        for (int r = 1; r < group->size; r++) post_receive(group, t, all + (size_t)r * bytes, bytes, r);
    wait_for_counted(group, t);
    if (group->rank == 0 && combine != NULL)
        for (int r = 1; r < group->size; r++)
            for (size_t at = 0; at < bytes; at += 8) combine((char *)values + at, all + (size_t)r * bytes + at);
    free(all);
    broadcast_small(group, operation, values, bytes, 0);
}

static void add_double(void *to, const void *from) { *(double *)to += *(const double *)from; }
static void add_int64(void *to, const void *from) { *(int64_t *)to += *(const int64_t *)from; }
static void min_int64(void *to, const void *from) { *(int64_t *)to = min_i64(*(int64_t *)to, *(const int64_t *)from); }
static void max_double(void *to, const void *from) { // NaN counts as larger than everything, so that it cannot get lost
    double value = *(const double *)from;
    if (value > *(double *)to || isnan(value)) *(double *)to = value;
}

void comm_sum_double(comm *group, double *values, int count) {
    reduce_small(group, "sum", values, sizeof *values * (size_t)count, add_double);
}
void comm_sum_int64(comm *group, int64_t *values, int count) {
    reduce_small(group, "sum", values, sizeof *values * (size_t)count, add_int64);
}
void comm_max_double(comm *group, double *values, int count) {
    reduce_small(group, "max", values, sizeof *values * (size_t)count, max_double);
}
void comm_broadcast(comm *group, void *host_data, size_t bytes, int root) { broadcast_small(group, "broadcast", host_data, bytes, root); }
void comm_barrier(comm *group) {
    char here = 0;
    reduce_small(group, "barrier", &here, 1, NULL);
}

bool comm_agree(comm *group, error_text *error) {
    int64_t lowest = error->text[0] != '\0' ? group->rank : group->size; // the rank, if it holds an error
    reduce_small(group, "agreement", &lowest, sizeof lowest, min_int64);
    if (lowest == group->size) return true;
    if (lowest == group->rank && lowest > 0) { // rank 0 does not have it: say where it is
        char machine[MPI_MAX_PROCESSOR_NAME];
        size_t length = strlen(error->text);
        int n;
        MPI_Get_processor_name(machine, &n);
        snprintf(error->text + length, sizeof error->text - length, " (rank %d, on %s)", group->world_rank[lowest], machine);
    }
    broadcast_small(group, "agreement", error, sizeof *error, (int)lowest);
    return false;
}
bool comm_agree_on_files(comm *group, error_text *error) {
    waits_for_files = true;
    bool ok = comm_agree(group, error);
    waits_for_files = false;
    return ok;
}

// ---- Groups ----

// Takes ownership of `mpi`, a communicator that nothing else uses.
static comm *wrap(MPI_Comm mpi, comm_kind kind) {
    comm *group = HOST_NEW(comm, 1);
    group->mpi = mpi;
    group->kind = kind;
    MPI_Comm_set_errhandler(mpi, MPI_ERRORS_RETURN);
    MPI_Comm_rank(mpi, &group->rank);
    MPI_Comm_size(mpi, &group->size);
    group->world_rank = HOST_NEW(int, group->size);
    int *ranks = HOST_NEW(int, group->size);
    for (int r = 0; r < group->size; r++) ranks[r] = r;
    MPI_Group here, everywhere;
    MPI_Comm_group(mpi, &here);
    MPI_Comm_group(MPI_COMM_WORLD, &everywhere);
    MPI_Group_translate_ranks(here, group->size, ranks, everywhere, group->world_rank);
    MPI_Group_free(&here);
    MPI_Group_free(&everywhere);
    free(ranks);
    return group;
}

comm *comm_split(comm *parent, int colour, int key, comm_kind kind) {
    MPI_Comm mpi;
    comm_barrier(parent); // it has the wait limit, which MPI_Comm_split lacks
    check(MPI_Comm_split(parent->mpi, colour < 0 ? MPI_UNDEFINED : colour, key, &mpi), parent, "split", NULL);
    return mpi == MPI_COMM_NULL ? NULL : wrap(mpi, kind);
}

static void transfer_free(transfer *t) {
    free(t->piece);
    free(t->request);
    free(t->status);
}

void comm_free(comm *group) {
    if (group == NULL) return;
    if (comm_pending(group) > 0) comm_abort("%s: comm_free with %d unfinished transfers", comm_kind_name(group->kind), comm_pending(group));
    for (int i = 0; i < MAX_PENDING; i++) transfer_free(&group->pending[i]);
    transfer_free(&group->small);
    free(group->world_rank);
    MPI_Comm_free(&group->mpi);
    free(group);
}

comm *comm_world(void) { return world; }
comm *comm_machine(void) { return machine; }
int comm_rank(const comm *group) { return group->rank; }
int comm_size(const comm *group) { return group->size; }
comm_kind comm_kind_of(const comm *group) { return group->kind; }
int comm_world_rank(const comm *group, int rank) { return group->world_rank[rank]; }

// ---- Start and end ----

// The calls that start MPI have no wait limit of their own, and wait for ever where a network does not lead to a rank. A handler of SIGALRM
// says so after half a minute, and at the limit ends this rank, and the launcher the others.
static char start_messages[2][320]; // formatted before the alarm is set: a signal handler must not call snprintf
static unsigned start_left;         // seconds between both
static volatile sig_atomic_t start_rang;
static void start_is_slow(int signal_number) {
    (void)signal_number;
    const char *message = start_messages[start_rang];
    ssize_t written = write(STDERR_FILENO, message, strlen(message));
    (void)written; // nothing is left to do about it
    if (start_rang) _exit(EXIT_FAILED);
    start_rang = 1;
    alarm(start_left);
}
// limit: seconds, 0: none. TRAIN_LLAMA_TEST_START: for tests, another one.
static void limit_start(double limit) {
    const char *test = getenv("TRAIN_LLAMA_TEST_START"), *rank = getenv("PMIX_RANK");
    const char *cause = "ranks do not reach each other, or one has not started. "
                        "A network of one machine alone, such as docker0 or virbr0, is a usual cause: "
                        "OMPI_MCA_btl_tcp_if_exclude=lo,docker0,virbr0 (docs/troubleshooting.md)";
    bool first = rank == NULL || strcmp(rank, "0") == 0; // the others say nothing unless that rank does not
    limit = test != NULL ? strtod(test, NULL) : fmin(limit, 1e9);
    if (!(limit > 0)) return;
    unsigned soon = (unsigned)ceil(fmin(limit / 2, 30));
    start_left = (unsigned)ceil(limit) - soon + (first ? 0 : 4);
    if (first) snprintf(start_messages[0], sizeof start_messages[0], "note: MPI has not started after %u s: %s\n", soon, cause);
    snprintf(start_messages[1], sizeof start_messages[1], "error: MPI has not started within %g s: %s\n", limit, cause);
    signal(SIGALRM, start_is_slow);
    alarm(soon);
}
static void end_limit_of_start(void) {
    alarm(0);
    signal(SIGALRM, SIG_DFL);
}

bool comm_init(int *argc, char ***argv, error_text *error) {
    // Launch settings of Open MPI that still take effect here; what mpirun itself reads is in scripts/mpi_env.sh. A value that the
    // user set wins. With more ranks than cores a waiting rank must yield its core: 8 ranks on 2 cores then exchange 4 bytes in
    // 13 us instead of 27 ms. Copies through shared memory are no slower than by process_vm_readv, which containers often forbid.
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
    // A process that no launcher started needs neither a daemon nor networks: Open MPI's search for them takes 0.2 to 0.4 s. Nor a folder
    // in /tmp, which would be the same for all such processes: where two start or end at once, one in 100 then failed.
    error_text several = {"", 0};
    if (launch_is_single("", &several) && getenv("PMIX_RANK") == NULL) {
        setenv("OMPI_MCA_ess_singleton_isolated", "1", 0);
        setenv("OMPI_MCA_pml", "ob1", 0);
        setenv("OMPI_MCA_btl", "self", 0);
        setenv("OMPI_MCA_orte_create_session_dirs", "0", 0);
        unsetenv("SLURM_NODELIST"); // by it Open MPI 4 takes a process in a shell of salloc or srun --pty for a task of srun, and ends it
    }
    // On one machine Open MPI 5 needs no IPv6, over which it would report for every pair of ranks that it finds no route between them.
    const char *all = getenv("OMPI_COMM_WORLD_SIZE"), *here = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    if (all != NULL && here != NULL && strcmp(all, here) == 0) setenv("OMPI_MCA_btl_tcp_disable_family", "6", 0);
    struct rlimit files; // MPI, NCCL and CUDA open descriptors for each peer and buffer
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    const char *limit = getenv("TRAIN_LLAMA_TIMEOUT"); // rank 0's counts: mpirun does not pass its environment to other machines
    timeout_given = limit != NULL;
    char *end = NULL;
    double given = limit != NULL ? strtod(limit, &end) : timeout_seconds;
    bool legal = limit == NULL || (end != limit && *end == '\0' && given >= 0);
    // A limit of its own: rank 0's is not known yet. 60 s: programs load, on busy machines.
    limit_start(legal && given == 0 ? 0 : fmax(60, legal ? given : timeout_seconds));
    int provided;
    if (MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) return error_set(error, "MPI could not be started");
    MPI_Comm mpi, local;
    MPI_Comm_dup(MPI_COMM_WORLD, &mpi);
    world = wrap(mpi, COMM_CONTROL);
    MPI_Comm_split_type(mpi, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local);
    machine = wrap(local, COMM_CONTROL);
    end_limit_of_start();
    if (world->rank == 0) {
        timeout_seconds = given;
        if (!legal) error_set(error, "TRAIN_LLAMA_TIMEOUT=%s: not a number of seconds; it must be 0 (no limit) or more", limit);
    }
    if (!comm_agree(world, error)) {
        if (world->rank == 0) fprintf(stderr, "error: %s\n", error->text); // before any rank ends, as mpirun then ends the others
        comm_finalize();
        exit(EXIT_USER_ERROR);
    }
    comm_broadcast(world, &timeout_given, sizeof timeout_given, 0);
    comm_broadcast(world, &timeout_seconds, sizeof timeout_seconds, 0);
    comm_count_reset();
    const char *why = "that launcher belongs to another MPI than this program; "
                      "use the mpirun of the MPI it was built with, or with Slurm srun --mpi=pmix";
    if (world->size == 1 && !launch_is_single(why, error)) {
        comm_finalize();
        return false;
    }
    return true;
}

double comm_wait_at_least(double seconds) {
    if (!timeout_given && timeout_seconds < seconds) timeout_seconds = seconds;
    return timeout_seconds;
}

bool comm_use_deterministic(error_text *error) { // sums always have one order here
    (void)error;
    return true;
}
void comm_finalize(void) {
    if (world == NULL) return;
    comm_barrier(world); // it has the wait limit, which MPI_Finalize lacks
    comm_free(machine);
    comm_free(world);
    machine = world = NULL;
    MPI_Finalize();
}

// ---- Counters and tests ----

comm_counters comm_count(comm_kind kind) { return counters[kind]; }
void comm_count_reset(void) { memset(counters, 0, sizeof counters); }

void comm_test_delay(int max_microseconds, uint64_t seed) {
    delay_microseconds = max_microseconds;
    prctl(PR_SET_TIMERSLACK, 1ul); // otherwise each delay takes 50 us more
    delay_state = seed * 1000003u + (uint64_t)world->rank; // each rank has its own delays
}
void comm_test_piece_limit(size_t bytes) { piece_limit = bytes > 0 ? bytes : PIECE_LIMIT; }
