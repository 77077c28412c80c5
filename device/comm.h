// Communication between ranks. A `comm` is a group of ranks and one lane of ordered transfers; its kind names what it carries.
//
// Every transfer is started (`*_start`) and later finished (`comm_finish`). Between the two, neither buffer may be touched.
// Transfers on one comm complete in the order they were started; different comms are independent. All ranks of a comm call
// the same transfers in the same order. Buffers are the caller's, in device memory. A failing transfer ends all ranks and says why; so does
// one that a rank waits for longer than TRAIN_LLAMA_TIMEOUT seconds (an environment variable of rank 0; default 600, 0 = no limit).
// Reductions add in a fixed order: that of the comm's ranks, so that a result does not depend on which rank computes it; with NCCL, that of
// its ring. Byte counts are size_t: transfers above 2^31 bytes work.
#ifndef COMM_H
#define COMM_H

#include "device.h"

typedef enum {
    COMM_SEQ_ALLTOALL, // SeqAlltoAll of Q, K, V, out and their gradients (head parallel)
    COMM_KV_INNER,     // K and V to the next rank of the window
    COMM_KV_OUTER,     // K and V to the same place in the next window
    COMM_DKV_INNER,
    COMM_DKV_OUTER,
    COMM_KV_GATHER,    // --cp-comm allgather
    COMM_DKV_SCATTER,
    COMM_PARAM_GATHER, // hybrid ZeRO: parameters of a layer, before it computes
    COMM_GRAD_REDUCE,  // hybrid ZeRO: gradients of a layer to their shards and across replicas
    COMM_PARAM_UPDATE, // hybrid ZeRO: updated parameters from optimizer shards to parameter shards
    COMM_CONTROL,      // counts, losses, norms, agreement on errors: the small blocking functions only, NCCL refuses transfers
    COMM_KINDS
} comm_kind;
static inline const char *comm_kind_name(comm_kind kind) {
    static const char *const names[COMM_KINDS] = {"seq_alltoall", "kv_inner", "kv_outer", "dkv_inner", "dkv_outer", "kv_gather",
                                                  "dkv_scatter", "param_gather", "grad_reduce", "param_update", "control"};
    return names[kind];
}

typedef struct comm comm;

typedef struct {
    int64_t bytes_sent;  // bytes this rank sent to other ranks
    int64_t messages;    // messages this rank sent to other ranks; a message of 0 bytes is not sent
    double wait_seconds; // standing still in comm_finish (CPU: host time; CUDA: compute stream) and in the small, blocking functions
} comm_counters;

#ifdef __cplusplus
extern "C" {
#endif

// Joins the job; argc and argv are main's. Every rank calls it, before everything else here. Sets what makes many ranks on few cores run
// well (comm_mpi.c). Returns false with a message when MPI does not start, or when this process is one of several but cannot reach the
// others (a build without MPI, the mpirun of another MPI). A bad TRAIN_LLAMA_TIMEOUT: rank 0 prints an error and every rank exits with
// status 2. Where MPI's own start takes longer than that limit, and than 60 s, ranks print an error and exit with status 1.
bool comm_init(int *argc, char ***argv, error_text *error);
void comm_finalize(void); // leaves the job and frees the world; every rank calls
// Makes the order of sums in later reductions the same in every run. Call before the first comm_split. False with a message when NCCL_ALGO
// or NCCL_PROTO in the environment forbids it (NCCL only).
bool comm_use_deterministic(error_text *error);
// Ends every rank of the job now, with status EXIT_FAILED and this message (and the rank): for failures that no caller can recover from.
NO_RETURN void comm_abort(const char *format, ...) PRINTF_LIKE(1, 2);

comm *comm_world(void);   // all ranks of the job, kind COMM_CONTROL; NULL before comm_init and after comm_finalize
comm *comm_machine(void); // the ranks on this machine, otherwise the same

// A new comm of the ranks of `parent` that gave the same colour >= 0, ordered by key (ties by rank). All ranks of the parent
// call. colour < 0: not a member, returns NULL. The caller frees it with comm_free (all its ranks call; pending transfers end the job).
// comm_free(NULL) is a no-op; the world is freed by comm_finalize only.
comm *comm_split(comm *parent, int colour, int key, comm_kind kind);
void comm_free(comm *group);
int comm_rank(const comm *group);
int comm_size(const comm *group);
comm_kind comm_kind_of(const comm *group);
int comm_world_rank(const comm *group, int rank); // of the comm, as a rank of the job
static inline int comm_local_rank(void) { return comm_machine() != NULL ? comm_rank(comm_machine()) : 0; }
static inline int comm_local_ranks(void) { return comm_machine() != NULL ? comm_size(comm_machine()) : 1; }
// The rank that says what one rank is to say.
static inline bool comm_speaks(void) { return comm_world() == NULL || comm_rank(comm_world()) == 0; }
// Prints a line on stderr that may be true of this rank alone: with its number where there are several, and in one piece, because others
// may print at the same moment.
PRINTF_LIKE(1, 2) static inline void comm_note(const char *format, ...) {
    char text[1024], rank[32] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (comm_world() != NULL && comm_size(comm_world()) > 1) snprintf(rank, sizeof rank, " (rank %d)", comm_rank(comm_world()));
    fprintf(stderr, "%s%s\n", text, rank);
}

// Sends `send` to rank `to` and receives `recv` from rank `from` (of the comm; to == from == self copies). recv_bytes: what `from` sends.
void comm_sendrecv_start(comm *group, const void *send, size_t send_bytes, int to, void *recv, size_t recv_bytes, int from);
// send and recv are (size, bytes_per_rank): block r of send goes to rank r, block r of recv comes from rank r. Not in-place.
void comm_alltoall_start(comm *group, const void *send, void *recv, size_t bytes_per_rank);
// recv (size, bytes_per_rank): block r is rank r's send (bytes_per_rank). `send` may be this rank's own block of recv.
void comm_allgather_start(comm *group, const void *send, void *recv, size_t bytes_per_rank);
// send is (size, count_per_rank) floats on every rank; recv (count_per_rank) = the sum over all ranks of block number `this rank`.
// recv may be this rank's own block of send. scratch: comm_reduce_scatter_scratch bytes of device memory, untouched until finished.
void comm_reduce_scatter_start(comm *group, const float *send, float *recv, size_t count_per_rank, void *scratch);
size_t comm_reduce_scatter_scratch(int ranks, size_t count_per_rank); // bytes; pure arithmetic: the comm need not exist yet
// Finishes the oldest unfinished transfer of the comm: compute issued from here on sees its result. No pending transfer: ends all ranks.
void comm_finish(comm *group);
int comm_pending(const comm *group); // transfers started and not finished; more than 64 (NCCL: 256) end all ranks

// Small, blocking, in place on host memory; all ranks of the comm call. Allowed while transfers are pending. Sums are in rank order: the
// same bits on every rank. A maximum with a NaN is NaN. What they send counts under the comm's kind (NCCL: only COMM_CONTROL's is counted).
void comm_sum_double(comm *group, double *values, int count);
void comm_max_double(comm *group, double *values, int count);
void comm_sum_int64(comm *group, int64_t *values, int count);
void comm_broadcast(comm *group, void *host_data, size_t bytes, int root);
void comm_barrier(comm *group);
// True if no rank of the comm holds an error. Otherwise false, and every rank's *error becomes that of the lowest rank that holds one;
// unless it is rank 0, " (rank R, on MACHINE)" is appended.
bool comm_agree(comm *group, error_text *error);
// comm_agree after reading or writing files: waits without a limit, because a rank whose disk is slow may be later than a transfer ever is.
bool comm_agree_on_files(comm *group, error_text *error);

// A transfer that waits longer than a limit ends all ranks: 600 s, or what TRAIN_LLAMA_TIMEOUT says. Raises it to `seconds`, the same on
// all ranks, unless the user has set it; returns the limit in seconds (0 = none; a build without MPI waits for nobody and has none).
double comm_wait_at_least(double seconds);

comm_counters comm_count(comm_kind kind); // this rank's since the last reset, over all comms of a kind; CUDA: waits for finished transfers
void comm_count_reset(void);

// For tests: every comm_finish and every start sleeps a pseudo-random time up to this many microseconds (0 = off).
void comm_test_delay(int max_microseconds, uint64_t seed);
// For tests: the largest single message in bytes (0 = the default, 2^30); the same on all ranks. Longer ones go in pieces. NCCL ignores it.
void comm_test_piece_limit(size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
