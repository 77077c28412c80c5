// One call of an attention engine, and how a block of op_attention_* is cut into calls (attention_blocks.c). The engine is cuDNN on a GPU
// (attention_cudnn.c) and the hand-written kernels in float in the emulated build (attention_emulated.c); everything above this interface
// is the same in both. A CUDA build without cuDNN has no engine (attention_by_hand.c).
#ifndef ATTENTION_CALL_H
#define ATTENTION_CALL_H

#include "internal.h"

// As in attention_block. Results, lse and delta are dense: (Tq or Tk, Hq, HS), and (Hq, Tq), as cuDNN's A100 kernels assume before 9.26.
typedef struct {
    bool backward, causal;
    int64_t Tq, Tk;
    int Hq, Hkv, HS;
    int64_t q_stride, kv_stride;
} attention_shape;

// The tensors of a call. All are on the device and in bf16 (floatX), except where marked. The engine's results are, too: cuDNN's kernels
// store nothing wider. Its support check takes float for them, but for Hopper it then compiles the very kernels that it compiles for bf16
// (byte for byte, 9.10.2 to 9.28), and its sums of dq are converted to 16 bits on every GPU.
enum {
    ATTENTION_Q = 1, ATTENTION_K, ATTENTION_V,
    ATTENTION_OUT,
    ATTENTION_LSE,            // float
    ATTENTION_SCALE,          // float, on the host
    ATTENTION_MINUS_INFINITY, // float, on the host: -infinity (causal)
    ATTENTION_ONE,            // float, on the host: 1 (backward)
    ATTENTION_DOUT,
    ATTENTION_DQ,
    ATTENTION_DK, ATTENTION_DV, // one per query head: its contribution to its key/value head's
    ATTENTION_DQ_SUM,         // float, (Hq, Tq, HS) dense: the engine's accumulator
    ATTENTION_DELTA,          // float, (Hq, Tq): the engine writes rowsum(dout out)
    ATTENTION_TENSORS
};

#ifdef __cplusplus
extern "C" {
#endif

bool attention_call_possible(void); // false: this build has no engine, and hand-written kernels compute everything, without scratch
// Runs a call: out and lse = ..., or dq, dk, dv = (not +=). tensors[id]: the device tensors that the shape uses; the engine supplies those
// on the host. False: the engine does not take this shape (a note says why, once), and the caller uses the hand-written kernels.
bool attention_call(attention_shape shape, void *const tensors[ATTENTION_TENSORS], float scale, void *workspace);
// Bytes of workspace reserved for a call: enough for cuDNN on all our GPUs (test_cudnn_graphs). Pure arithmetic.
size_t attention_call_workspace(attention_shape shape);

// Does a pass of the engine agree with the hand-written kernels in float for this head size (documents: also when asked for more rows than
// are wanted)? Both are checked once, on a small problem, with a warning when one does not: the hand-written kernels then compute that pass
// (documents: of packed documents).
bool attention_engine_agrees(int HS, bool documents, bool backward);
attention_block attention_checked_block(int HS, bool causal); // the two blocks on which that is checked

// The heads of a call: `kv` neighbouring key/value heads and `members` query heads of each: its whole group or (kv == 1) part of it. Both
// divide those of the block.
typedef struct {
    int kv, members;
} attention_part;
// The shape of a call on all rows of a block for the heads of `part`.
attention_shape attention_call_shape(attention_block block, bool backward, attention_part part);
bool attention_shape_equal(attention_shape a, attention_shape b);

// A block is cut into square tiles of rows and parts of its heads, so that no call spans more than 2^31 - 1 elements of a tensor and none
// needs more than DEVICE_ATTENTION_SCRATCH. Within that a call takes as many rows and heads as it can, to keep all of the GPU busy. A
// backward call writes dk and dv of each query head separately: cuDNN would round the sums of a group, too. All sums, over calls, heads of
// a group and blocks, are in float.
int64_t attention_tile_rows(attention_block block);
attention_part attention_call_part(bool backward, int64_t Tq, int64_t Tk, int Hq, int Hkv, int HS); // the largest that one call takes
// On Blackwell tiles have at most 65536 rows, and K and V of a head 32 MiB: before 9.21.1 causal forward calls "could hang with extremely
// long sequence lengths" (release notes, which name no length). On sm_103 a call of 131072 keys hung with 16 heads of 128, and not with 8
// heads of 64 (TransformerEngine issue 3285).
void attention_use_blackwell(bool yes);
// device_use_deterministic for attention: the hand-written kernels compute the backward pass. cuDNN's, asked to be deterministic, takes no
// memory for a fixed order in these graphs, so there is no sign that it has one.
void attention_use_deterministic(void);
void attention_test_limits(int64_t elements, int64_t scratch_bytes);                      // for tests: other limits; 0: those above
// Packed documents: whether a document's share of a block, of so many queries and keys, is worth the engine's calls and kernels compiled
// for it: if it is 2^33 products or more (visible query-key pairs x heads x HS; 2048 rows on the diagonal with 32 heads of 128; on an H100
// cuDNN is more than 1.3 times as fast there as the hand-written kernels on documents of 1024 to 4096 rows) and has 512 rows or more on
// both sides. For tests: `rows` in place of 512, however little the work; 0: these limits.
bool attention_document_is_long(attention_block b, int64_t queries, int64_t keys);
void attention_test_documents(int64_t rows);
int64_t attention_test_engine_tiles(void); // tiles that the engine has computed, in part at least, since start, forward and backward

// The hand-written kernels (attention.cu): any head size up to 256. Forward merges into out and lse if asked to; backward reads delta and
// sets dq, dk and dv, or adds to them.
void attention_kernel_forward(float *out, float *lse, const floatX *q, const floatX *k, const floatX *v, attention_block block, bool merge);
void attention_kernel_backward(float *dq, float *dk, float *dv, const floatX *q, const floatX *k, const floatX *v, const floatX *dout,
                               const float *lse, const float *delta, attention_block block, bool add_dq, bool add_dkv);
// The same on tensor cores (attention_mma.cu): bf16, head size 64 or 128, rows and heads aligned to 16 bytes, fewer than 2^31 - 256 rows.
// For other shapes they do nothing and return false. Weights are rounded to bf16, as cuDNN does.
bool attention_mma_forward(float *out, float *lse, const floatX *q, const floatX *k, const floatX *v, attention_block block, bool merge);
bool attention_mma_backward(float *dq, float *dk, float *dv, const floatX *q, const floatX *k, const floatX *v, const floatX *dout,
                            const float *lse, const float *delta, attention_block block, bool add_dq, bool add_dkv);

#ifdef __cplusplus
}
#endif
#endif
