// The device: its memory, its number type, its order of work.
//
// Work is issued in program order and the compute of a rank runs in that order. Only transfers (device/comm.h and the copies
// below) run beside it: each is started early, and finished where its result is first needed. On the CPU device operations
// run when called; on CUDA they are queued on the compute stream, and start/finish become event waits between streams.
// The host waits for the device in device_synchronize and device_to_host only.
#ifndef DEVICE_H
#define DEVICE_H

#include "../common.h"

// The upper half of a float.
typedef struct {
    uint16_t bits;
} bf16;
// floatX: parameters and activations as stored. The host never looks inside one that lives on a device.
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

// The largest head and hidden size of a model that the operations take (4096 and 2^18: all that config.h takes). On a GPU a row of a head lies in
// registers, and RMSNorm's sums over rows, D floats, in the shared memory of a block: 99 KiB on the smallest that we know.
#if defined(DEVICE_BF16) || defined(DEVICE_EMULATED)
enum { DEVICE_HEAD_SIZE_MAX = 256, DEVICE_HIDDEN_SIZE_MAX = 24576 };
#else
enum { DEVICE_HEAD_SIZE_MAX = 4096, DEVICE_HIDDEN_SIZE_MAX = 1 << 18 };
#endif

#ifdef __cplusplus
extern "C" {
#endif

// Picks and starts the device of this rank. `local_rank` of `local_ranks` ranks share the machine; `threads` = CPU threads of
// this rank, 0 = share the cores among the local ranks. Call once, after comm_init, before any operation.
// Returns false with a message when there is no usable device, or, on a GPU, for more than one thread.
bool device_start(int local_rank, int local_ranks, int threads, error_text *error);
void device_stop(void);
// From now on an operation gives the same bits whenever it is given the same numbers, on GPUs of one model with the same libraries. Call
// before the first operation and before scratch is sized. A CPU always does.
void device_use_deterministic(void);
const char *device_determinism(void); // "yes: ..." or "no: ..." and why, for the start-up print
const char *device_name(void);        // "CPU: AMD EPYC, 2 threads, OpenBLAS Cooperlake" or the GPU's name
int device_threads(void);             // CPU threads that this rank uses
double device_peak_flops(void);       // dense peak in FLOP/s of floatX from the data sheet; 0 if not known
double device_measure_gemm(void);     // FLOP/s of a rank in a large square GEMM when all local ranks compute; let one measure alone (0.1 s)
size_t device_memory_total(void);     // bytes a rank could take now, at most (CPU: physical memory / local ranks)
size_t device_memory_used(void);      // bytes in use now (CPU: resident in this process and not shared; CUDA: allocated on the device)

// Memory. device_alloc returns 256-byte aligned memory, NULL when there is not enough; host slabs are pinned on CUDA.
void *device_alloc(size_t bytes);
void device_free(void *p, size_t bytes);
void *device_host_slab(size_t bytes);
void device_host_slab_free(void *p, size_t bytes);

bool device_is_host(void); // device memory is host memory (CPU): the host may read and write it as it is

// In order with compute.
void device_zero(void *p, size_t bytes);
void device_copy(void *to, const void *from, size_t bytes); // device to device; the two do not overlap
void device_from_host(void *to, const void *from, size_t bytes); // `from` may be reused on return
void device_to_host(void *to, const void *from, size_t bytes);   // waits for the compute issued so far
void device_synchronize(void);

// A copy between device memory and a host slab beside compute. One `device_copier` is one lane (a stream of its own).
typedef struct device_copier device_copier;
device_copier *device_copier_new(void);
void device_copier_free(device_copier *lane);
// Starts after the compute issued so far; neither buffer may be touched before device_copy_finish of the same ticket.
int64_t device_copy_start(device_copier *lane, void *to, const void *from, size_t bytes); // returns a ticket > 0
void device_copy_finish(device_copier *lane, int64_t ticket);                            // later compute sees the copy done

double device_seconds(void); // monotonic clock of the host

// What ran on the device and when, for the trace: from device_trace_start on every kernel, product and attention call, and every wait of compute
// for a transfer (by the transfer's kind), in order. device_trace_spans waits for the device; the spans stay the device's. A CPU has none: its
// operations run when called.
typedef struct {
    const char *name;
    double begin, end; // device_seconds
} device_span;
void device_trace_start(void);
int64_t device_trace_spans(const device_span **spans);

#ifdef __cplusplus
}
#endif
#endif
