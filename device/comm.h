// Communication between ranks. A `comm` is a group of ranks and one lane of ordered transfers; its kind names what it carries.
//
// Every transfer is started (`*_start`) and later finished (`comm_finish`). Between the two, neither buffer may be touched.
// Transfers on one comm complete in the order they were started; different comms are independent. All ranks of a comm call
// the same transfers in the same order. Buffers are device memory. A failing transfer ends all ranks with its reason; so does one
// that a rank waits for longer than TRAIN_LLAMA_TIMEOUT seconds (an environment variable of rank 0; default 600, 0 = no limit).
// Reductions add in one order, the comm's ranks' (NCCL: its ring's), so that a result does not depend on which rank computes it.
// Byte counts are size_t: transfers above 2^31 bytes work.
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
    COMM_CONTROL,      // counts, losses, norms, agreement on errors
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
    int64_t messages;    // messages this rank sent to other ranks; one of 0 bytes is not sent
    double wait_seconds; // time this rank stood still in comm_finish (CPU: host time; CUDA: compute stream stalled)
} comm_counters;

#ifdef __cplusplus
extern "C" {
#endif

// Joins the job. Sets the launch settings that make many ranks on few cores run well (one place: comm_mpi.c).
// A build without communication started as several ranks: returns false with a message (every rank exits 2). A bad TRAIN_LLAMA_TIMEOUT: rank 0
// says so, every rank exits 2.
bool comm_init(int *argc, char ***argv, error_text *error);
void comm_finalize(void);
// Sums of transfers that start later have one order. Call before the first comm_split. False when the environment forbids it.
bool comm_use_deterministic(error_text *error);
// Ends every rank of the job now, with `status` and this message (printed with the rank's number).
void comm_abort(int status, const char *format, ...) PRINTF_LIKE(2, 3);

comm *comm_world(void);
int comm_local_rank(void);  // place among the ranks on this machine
int comm_local_ranks(void); // ranks on this machine

// A new comm of the ranks of `parent` that gave the same colour >= 0, ordered by key (ties by rank). All ranks of the parent
// call. colour < 0: not a member, returns NULL. The caller frees with comm_free (never the world), with nothing pending.
comm *comm_split(comm *parent, int colour, int key, comm_kind kind);
void comm_free(comm *group);
int comm_rank(const comm *group);
int comm_size(const comm *group);

// Sends `send` to rank `to` and receives `recv` from rank `from` (ranks of the comm; to == from == self copies). recv_bytes: what `from` sends.
void comm_sendrecv_start(comm *group, const void *send, size_t send_bytes, int to, void *recv, size_t recv_bytes, int from);
// Block r of send (bytes each) goes to rank r; block r of recv came from rank r.
void comm_alltoall_start(comm *group, const void *send, void *recv, size_t bytes_per_rank);
// recv = (size, bytes_per_rank), block r from rank r. `send` may be recv's own block.
void comm_allgather_start(comm *group, const void *send, void *recv, size_t bytes_per_rank);
// recv (count_per_rank floats) = sum over the ranks of block `rank` of their send (size * count_per_rank floats).
// recv may be send's own block. scratch: comm_reduce_scatter_scratch bytes, untouched until finished.
void comm_reduce_scatter_start(comm *group, const float *send, float *recv, size_t count_per_rank, void *scratch);
size_t comm_reduce_scatter_scratch(int ranks, size_t count_per_rank); // bytes; pure arithmetic: the comm need not exist yet
// Finishes the oldest unfinished transfer of the comm: compute issued from here on sees its result.
void comm_finish(comm *group);
int comm_pending(const comm *group); // transfers started and not finished; more than 64 (NCCL: 256) end all ranks

// Small, blocking, on host memory, also while transfers are pending. Sums in rank order: the same bits on every rank. What they send
// counts under the comm's kind.
void comm_sum_double(comm *group, double *values, int count);
void comm_max_double(comm *group, double *values, int count);
void comm_sum_int64(comm *group, int64_t *values, int count);
void comm_broadcast(comm *group, void *host_data, size_t bytes, int root);
void comm_barrier(comm *group);
// True if no rank of the comm holds an error; otherwise every rank gets the message of the lowest rank that does, and behind it which one on
// which machine, but for rank 0.
bool comm_agree(comm *group, error_text *error);
// comm_agree after reading or writing files: waits without a limit, because a rank whose disk is slow may be late by more than any transfer.
bool comm_agree_on_files(comm *group, error_text *error);

comm_counters comm_count(comm_kind kind); // since the last reset, all comms of this kind
void comm_count_reset(void);

// For tests: every comm_finish and every start sleeps a pseudo-random time up to this many microseconds (0 = off).
void comm_test_delay(int max_microseconds, uint64_t seed);
// For tests: the largest single message in bytes (0 = the default, 2^30); the same on all ranks. Longer ones go in pieces.
void comm_test_piece_limit(size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
