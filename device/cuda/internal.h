// What the files of device/cuda share. Two builds use them: DEVICE=cuda (device_cuda.c, linear_cublaslt.c, comm_nccl.c, comm_host.c,
// attention_cudnn.c with attention_graph.c, or attention_by_hand.c) and DEVICE=emulated (device_emulated.c, linear_emulated.c,
// attention_emulated.c and, of device/cpu, host_memory.c and the communication). The kernels (*.cu), their launchers and attention_blocks.c
// are the same in both.
#ifndef CUDA_INTERNAL_H
#define CUDA_INTERNAL_H

#include "../comm.h"
#include "../ops.h"

#ifdef DEVICE_EMULATED
typedef void *cudaStream_t;
#else
#include <cuda_runtime_api.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

cudaStream_t device_compute_stream(void); // of the operations issued now: between device_aside_begin and device_aside_end another one

#ifndef DEVICE_EMULATED
// Ends every rank when a call of the CUDA runtime failed. Prints `what` (what was being done) and CUDA's own error text.
void cuda_check(cudaError_t status, const char *what);
// Before and after every launch (LAUNCH in emulation.h): the kernel's span in the trace; lets it use more than 48 KiB of shared memory,
// which needs an opt-in; ends every rank when the launch fails.
void cuda_launch_prepare(const void *kernel, const char *name, size_t shared_bytes);
void cuda_launch_check(const char *name);
// Before and after work that is queued on the compute stream by other means: its name in the trace, if there is one (device_trace_start).
void cuda_span_begin(const char *name); // not copied: must stay valid
void cuda_span_end(void);
void linear_use_deterministic(void); // device_use_deterministic for matrix products
int device_compute_capability(void); // times 10: 80, 90, 100
#endif

// Memory of the device for op_sum_*: partial sums. REDUCTION_BLOCKS + 1 doubles.
enum { REDUCTION_BLOCKS = 512 };
double *device_reduction_scratch(void);
size_t device_shared_memory(void); // bytes that one block may have

// out (T, H, HS) and lse (H, T) = out_b (dense) and lse_b, or merged with them as op_attention_forward merges a block; strides as in the
// block.
void attention_merge(float *out, float *lse, const floatX *out_b, const float *lse_b, int64_t T, int H, int HS, int64_t stride,
                     int64_t lse_stride, int64_t lse_stride_b, bool merge);
// to (T, heads, HS), rows `stride` elements apart, = or += (add) from (T, heads, members, HS), summed over members in order.
void attention_sum_heads(float *to, const floatX *from, int64_t T, int heads, int members, int HS, int64_t stride, bool add);
// to (heads, rows) = for each head the first `known` of `from`, then 1e30, which makes e^(score - lse) 0: these rows add nothing to any
// gradient. Heads are to_stride and from_stride elements apart.
void attention_lse_copy(float *to, const float *from, int heads, int64_t rows, int64_t known, int64_t to_stride, int64_t from_stride);

// For tests: launchers that are free to choose use this many threads a block (a multiple of 32 up to 1024; 0 = their own choice).
void kernels_test_block_size(int threads);
void linear_test_sms_left(int sms); // for benchmarks: matrix products leave this many SMs to others (0: none)
void linear_test_elements(int64_t elements); // for tests: another limit of what an operand of a product may have (0: 2^31 - 1)

#ifdef __cplusplus
}
#endif
#endif
