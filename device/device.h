// The device: its memory, its number type, its order of work.
//
// Work is issued in program order and the compute of a rank runs in that order. Only transfers (device/comm.h and the copies
// below), and what is issued aside, overlap with it: each is started early, and finished where its result is first needed. On the
// CPU device operations run when called; on CUDA they are queued on the compute stream, and start/finish are event waits between streams.
// Inside a step the host waits for the device only in device_synchronize, device_to_host and op_sum_float; device_from_host may wait, too,
// and on CUDA the start of a transfer, where the host is 256 transfers of one communicator ahead of the GPU.
// Sizes are bytes. Where no error is named, a failure ends all ranks with a message.
#ifndef DEVICE_H
#define DEVICE_H

#include "../common.h"

#include <time.h>

// The upper 16 bits of a float.
typedef struct {
    uint16_t bits;
} bf16;
// floatX: the type in which parameters and activations are stored. The host never reads a floatX in device memory.
#ifdef DEVICE_BF16
typedef bf16 floatX;
#else
typedef float floatX;
#endif

// Local tokens of a rank are padded to a multiple of this: cuDNN's attention kernels want whole tiles of 128 rows.
#if defined(DEVICE_BF16) && !defined(DEVICE_EMULATED)
enum { DEVICE_ROW_MULTIPLE = 128 };
#else
enum { DEVICE_ROW_MULTIPLE = 1 };
#endif

// The largest head size and hidden size that the operations take (4096 and 2^18: all that config.h accepts). On a GPU, attention keeps a
// row of a head in registers, and RMSNorm's sums over rows, D floats, lie in a block's shared memory: 99 KiB on the smallest GPU known.
#if defined(DEVICE_BF16) || defined(DEVICE_EMULATED)
enum { DEVICE_HEAD_SIZE_MAX = 256, DEVICE_HIDDEN_SIZE_MAX = 24576 };
#else
enum { DEVICE_HEAD_SIZE_MAX = 4096, DEVICE_HIDDEN_SIZE_MAX = 1 << 18 };
#endif

// Tokens from which on a packed document is cut over all cp ranks of a ring (sequence_shard.h), with Hq query heads a rank. A chunk of it
// is so long that its blocks of attention are work enough: on a GPU, two chunks are 256 tiles of 128 rows of a head. And so long that they
// hide most of a hop of its KV, all of which travels: on an H100, with 4 query heads a KV head, from some 700 rows on within a node, from
// some 2700 on at 50 GB/s between nodes (both where 550 TFLOP/s are reached).
static inline int64_t device_long_document(int cp, int Hq, bool gpu) { return (int64_t)2 * cp * (gpu ? max_i64(1024, 16384 / Hq) : 64); }

#ifdef __cplusplus
extern "C" {
#endif

// Picks and starts the device of this rank. `threads` = CPU threads of this rank, 0 = share the cores among the machine's ranks. Every
// rank calls it once, after comm_init, before any operation. Returns false with a message when there is no usable device; on a GPU also
// for more than one thread, and when several ranks share a GPU unasked (TRAIN_LLAMA_SHARE_GPU=1).
bool device_start(int threads, error_text *error);
void device_stop(void);
// From now on an operation on the same inputs gives the same bits, on GPUs of one model with the same libraries. Call before the first
// operation and before scratch is sized. A CPU is always deterministic.
void device_use_deterministic(void);
const char *device_determinism(void); // "yes: ..." or "no: ..." and why, for the start-up print
const char *device_name(void);        // "CPU: AMD EPYC, 2 threads, OpenBLAS Cooperlake" or the GPU's name
double device_peak_flops(void);       // dense peak of a rank in FLOP/s of floatX, from the data sheet; 0 if not known
// FLOP/s of a rank in a large square GEMM when all local ranks compute (0.1 s; 0: not known); call on one while the others wait
double device_measure_gemm(void);
size_t device_memory_total(void);     // bytes a rank could take now, at most (CPU: the machine's or container's memory / local ranks)
size_t device_memory_used(void);      // bytes in use now (CPU: by this process, not shared; CUDA: allocated on the device, and host slabs)

// Memory. Both return memory aligned to 256 bytes with undefined contents, or NULL when there is not enough (a slab that cannot be pinned
// prints why). The caller frees it with the matching function, a slab with the same `bytes`. Host slabs are host memory, pinned on CUDA.
void *device_alloc(size_t bytes);
void device_free(void *p);
void *device_host_slab(size_t bytes);
void device_host_slab_free(void *p, size_t bytes);

bool device_is_host(void); // device memory is host memory (CPU): the host may read and write it directly

// In order with compute.
void device_zero(void *p, size_t bytes);
void device_copy(void *to, const void *from, size_t bytes); // device to device; the two do not overlap
void device_from_host(void *to, const void *from, size_t bytes); // `from` may be reused on return
void device_to_host(void *to, const void *from, size_t bytes);   // waits for the compute issued so far
void device_synchronize(void);                                   // the same without a copy

// Copies between device memory and a host slab that overlap with compute. One `device_copier` is one lane (a stream of its own); its copies
// run in order. The caller frees it.
typedef struct device_copier device_copier;
device_copier *device_copier_new(void);
void device_copier_free(device_copier *lane);
// Starts after the compute issued so far; neither buffer may be touched before device_copy_finish of the same ticket.
int64_t device_copy_start(device_copier *lane, void *to, const void *from, size_t bytes); // returns a ticket > 0
void device_copy_finish(device_copier *lane, int64_t ticket);                            // compute issued from here on sees the result

// What is issued between device_aside_begin and device_aside_end, operations without scratch and copies with their waits, starts after the
// compute issued before, in its own order, and overlaps with later compute. device_aside_wait: compute from here on sees the results.
void device_aside_begin(void);
void device_aside_end(void);
void device_aside_wait(void);

static inline double device_seconds(void) { // monotonic clock of the host
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// What ran on the device and when, for the trace: every kernel, product and attention call since device_trace_start but those aside, and
// every wait of compute for a transfer (named by the transfer's kind), for a copy from or to the host, or for work aside, in order.
// device_trace_spans waits for the device and returns the number of spans; the array stays the device's, valid until the next call. A CPU
// has none: its operations run when called.
typedef struct {
    const char *name;
    double begin, end; // seconds, on the clock of device_seconds
} device_span;
void device_trace_start(void);
int64_t device_trace_spans(const device_span **spans);

#ifdef __cplusplus
}
#endif
#endif
