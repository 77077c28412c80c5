// Every operation the model needs, forward and backward. All tensors are row-major and live on the device.
// Names: T rows (tokens), D hidden, H query heads, Hkv key/value heads, HS head size, F feed-forward, V vocabulary.
// Convention: `+=` says that a buffer accumulates, `=` that it is overwritten. All buffers are the caller's. The size of `scratch` in bytes
// comes from the *_scratch function beside the operation (pure arithmetic, callable without a device). No operation allocates, except on
// CUDA for a moment at the first product of a shape (to time algorithms) and the first attention of a head size (to check cuDNN).
// No operation knows ranks, layers or options. Accumulators of gradients are float. A failure ends all ranks with a message.
#ifndef OPS_H
#define OPS_H

#include "device.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- embedding: x (T, D) = table[tokens]; table (V, D), tokens (T) in [0, V) ----
void op_embedding_forward(floatX *x, const int32_t *tokens, const floatX *table, int64_t T, int64_t D);
// dtable (V, D): row tokens[t] += row t of dx (T, D), in the order of t whatever the number of threads (deterministic).
void op_embedding_backward(float *dtable, const int32_t *tokens, const floatX *dx, int64_t T, int64_t D, void *scratch);
size_t op_embedding_backward_scratch(int64_t T);

// ---- RMSNorm: y (T, D) = x (T, D) * rstd * weight (D), rstd (T) = 1 / sqrt(mean(x^2) + eps) ----
void op_rmsnorm_forward(floatX *y, float *rstd, const floatX *x, const floatX *weight, int64_t T, int64_t D, float eps);
// dx (T, D) += gradient (`add`: dx is the residual stream's gradient) or = gradient (then dx may be x itself), dweight (D) += sum
// over rows; dy (T, D).
void op_rmsnorm_backward(floatX *dx, float *dweight, const floatX *dy, const floatX *x, const floatX *weight, const float *rstd, int64_t T,
                         int64_t D, bool add, void *scratch);
enum { NORM_PARTS_CPU = 64, NORM_PARTS_GPU = 528 }; // in which the rows are summed, at most; constants: no sum depends on the machine
size_t op_rmsnorm_backward_scratch(int64_t T, int64_t D); // bytes: D floats for each part

// ---- linear: x (T, in), w (out, in), y (T, out) ----
// y = x w^T, plus residual (T, out) if not NULL; residual may be y itself.
void op_linear_forward(floatX *y, const floatX *x, const floatX *w, const floatX *residual, int64_t T, int64_t in, int64_t out);
void op_linear_backward_input(floatX *dx, const floatX *dy, const floatX *w, int64_t T, int64_t in, int64_t out); // dx = dy w
// dw = or (add) += dy^T x
void op_linear_backward_weight(float *dw, const floatX *dy, const floatX *x, int64_t T, int64_t in, int64_t out, bool add);
// Workspace of the matrix products: op_linear_workspace bytes (0: none needed). It stays the caller's and is in use until the caller sets
// another. NULL, as at the start: the products allocate their own.
size_t op_linear_workspace(void);
#define DEVICE_LINEAR_WORKSPACE ((size_t)32 << 20) // on a GPU
void op_linear_use_workspace(void *workspace);

// ---- RoPE with the layout change for SeqAlltoAll ----
// How the heads of one token row of the fused projection, (H + 2 Hkv, HS) = [q heads | k heads | v heads], are distributed over `peers`
// head-parallel ranks. Peer p computes query heads [p Hq, (p+1) Hq) and holds `Hkv_local` key/value slots; its slot j holds
// head (p Hq + j group_local) / group (head_layout_slot), so a head needed by several peers is sent to each (KV replication).
typedef struct {
    int peers;       // hp
    int H, Hkv, HS;
    int Hq;          // H / hp
    int Hkv_local;   // Hq / group_local
    int group;       // H / Hkv: query heads per key/value head
    int group_local; // gcd(Hq, group): query heads per slot
} head_layout;
static inline head_layout head_layout_make(int peers, int H, int Hkv, int HS) { // needs H % peers == 0 and H % Hkv == 0
    head_layout l;
    l.peers = peers; l.H = H; l.Hkv = Hkv; l.HS = HS;
    l.Hq = H / peers;
    l.group = H / Hkv;
    l.group_local = (int)gcd_i64(l.Hq, l.group);
    l.Hkv_local = l.Hq / l.group_local;
    return l;
}
static inline int head_layout_slot(const head_layout *l, int peer, int slot) { return (peer * l->Hq + slot * l->group_local) / l->group; }

// Rows [first, first + rows) of q_send (peers, T, Hq, HS) and kv_send (peers, T, 2 Hkv_local, HS) = [k slots | v slots] from qkv
// (rows, H + 2 Hkv, HS). Query and key heads are rotated: pair (i, i + HS/2) by the angle whose cos and sin stand in table (T, HS/2, 2).
void op_rope_pack_forward(floatX *q_send, floatX *kv_send, const floatX *qkv, const float *table, int64_t T, head_layout heads,
                          int64_t first, int64_t rows);
// Backward: dqkv (rows, H + 2 Hkv, HS) = those rows of dq_recv and dkv_recv (shaped like q_send and kv_send), rotated back. The gradients
// of the copies of a key/value head are summed in the order of peers.
void op_rope_unpack_backward(floatX *dqkv, const floatX *dq_recv, const floatX *dkv_recv, const float *table, int64_t T, head_layout heads,
                             int64_t first, int64_t rows);
// out (T, H, HS) = out_recv (peers, T, Hq, HS); op_heads_pack is the inverse.
void op_heads_unpack(floatX *out, const floatX *out_recv, int64_t T, head_layout heads);
void op_heads_pack(floatX *out_send, const floatX *out, int64_t T, head_layout heads);

// ---- attention on one (queries, keys) block: softmax(scale q k^T) v per query head; head h uses key/value head h / (Hq / Hkv) ----

// Packed documents: a query sees no key before its document's first token. Key rows [0, split) stand at positions at[0], at[0] + 1, ... of
// the sequence, rows [split, Tk) at at[1], at[1] + 1, ..., all after the positions of the first part.
typedef struct {
    const int64_t *first; // (Tq) on the device, ascending: position of the first token of query row i's document; NULL: one document
    const int64_t *host;  // (Tq) the same on the host, where a block may be cut at document boundaries
    int64_t at[2], split; // split <= Tk
} attention_documents;
// The documents of what remains of a block without its first `queries` query rows and first `keys` key rows.
static inline attention_documents attention_documents_from(attention_documents d, int64_t queries, int64_t keys) {
    int64_t cut = min_i64(keys, d.split);
    d.first += queries;
    d.host += queries;
    d.split -= cut;
    d.at[0] += cut;
    d.at[1] += keys - cut;
    return d;
}
// The first of Tk key rows that stands at or after position `first`; Tk if none does.
static HOST_DEVICE inline int64_t attention_first_key(const attention_documents *d, int64_t first, int64_t Tk) {
    return max_i64(0, min_i64(first - d->at[0], d->split)) + max_i64(0, min_i64(first - d->at[1], Tk - d->split));
}

typedef struct {
    int64_t Tq, Tk;    // rows of q and of k, v in this call
    int Hq, Hkv, HS;   // Hq % Hkv == 0
    int64_t q_stride;  // elements from one row of q (and of dout, and in the backward pass of out) to the next, >= Hq HS
    int64_t sum_stride; // elements from one row of what is summed in float, the forward pass's out and dq, to the next, >= Hq HS
    int64_t kv_stride; // elements from one row of k and v (and of dk, dv) to the next, >= Hkv HS
    int64_t lse_stride; // lse and delta are (Hq, lse_stride): elements from one head to the next, >= Tq
    float scale;
    bool causal;       // query row i sees key rows <= i; otherwise all
    attention_documents documents; // and no key row before its document
} attention_block;
// out (Tq, Hq, HS) float, lse (Hq, Tq) float, natural logarithm of the sum of exponentials of scaled scores;
// q (Tq, Hq, HS), k and v (Tk, Hkv, HS).
// merge false: out, lse = this block. merge true: out and lse hold earlier blocks, and this block is merged in:
//   m = max(lse, lse_b);  out = (e^(lse-m) out + e^(lse_b-m) out_b) / (e^(lse-m) + e^(lse_b-m));  lse = m + log(...)
// (LoongTrain Alg. 2 line 9). lse = -inf means "no key seen yet" and is legal on either side; a row that sees no key has out_b = 0.
void op_attention_forward(float *out, float *lse, const floatX *q, const floatX *k, const floatX *v, attention_block block, bool merge,
                          void *scratch);
// delta (Hq, T) = sum over HS of out * dout, from the *merged* out. Strides as in the block (Tk, causal unused).
void op_attention_delta(float *delta, const floatX *out, const floatX *dout, attention_block block);
// dq (Tq, Hq, HS) float = or (add_dq) +=; dk and dv (Tk, Hkv, HS) float = or (add_dkv) +=. dout (Tq, Hq, HS); out (Tq, Hq, HS), lse and
// delta (Hq, Tq): those of all blocks merged.
void op_attention_backward(float *dq, float *dk, float *dv, const floatX *q, const floatX *k, const floatX *v, const floatX *out,
                           const floatX *dout, const float *lse, const float *delta, attention_block block, bool add_dq, bool add_dkv,
                           void *scratch);
// A block of all that its queries see, without documents: where nothing is to be merged or summed, an engine's results are final as they
// are. out, or dq, (Tq, Hq, HS) floatX, rows q_stride apart; dq may be q itself. An engine computes its own delta. False: nothing was done,
// and the functions above must.
bool op_attention_forward_alone(floatX *out, float *lse, const floatX *q, const floatX *k, const floatX *v, attention_block block,
                                void *scratch);
bool op_attention_backward_alone(floatX *dq, float *dk, float *dv, const floatX *q, const floatX *k, const floatX *v, const floatX *out,
                                 const floatX *dout, const float *lse, attention_block block, bool add_dkv, void *scratch);
// Bytes: enough for every call with Tq and Tk up to the block's. On a GPU 14 bytes for each element of dq (bf16: dq, dk and dv of every
// query head; float: the library's sum of dq, and its own), but at most DEVICE_ATTENTION_SCRATCH, because larger blocks are cut
// (attention_call.h).
size_t op_attention_scratch(attention_block block, bool backward);
#define DEVICE_ATTENTION_SCRATCH ((int64_t)900 << 20) // backward calls of four heads of 128 with 128K rows, of two with 256K, one with 512K
int64_t op_attention_calls(void); // calls of op_attention_forward by this rank since start (for tests)
int64_t op_attention_tiles(void); // tiles of scores since start, both directions, without those that documents skip; CUDA: not counted, 0
const char *op_attention_engine(bool documents); // for the start-up print: what computes a block (documents: one with a boundary in it)

// ---- SwiGLU: act (T, F) = silu(gate) * up, gate_up (T, 2F) = [gate | up] a row ----
void op_swiglu_forward(floatX *act, const floatX *gate_up, int64_t T, int64_t F);
// dgate_up (T, 2F) from dact (T, F), and act (T, F) recomputed, bit-equal to forward's: the gradient of the weights needs it, and one pass
// makes both. dgate_up may be gate_up, act may be dact.
void op_swiglu_backward(floatX *dgate_up, floatX *act, const floatX *dact, const floatX *gate_up, int64_t T, int64_t F);

// ---- cross-entropy on a tile of logits (T, V), labels (T); a label below 0, such as -100: ignored (loss 0, gradient 0) ----
// losses (T) = -log softmax(logits)[label]. If backward: logits = (softmax - onehot) * scale, in place.
void op_cross_entropy(float *losses, floatX *logits, const int32_t *labels, int64_t T, int64_t V, float scale, bool backward);

// ---- numbers ----
void op_cast_from_float(floatX *to, const float *from, int64_t n); // round to nearest even; to == from allowed when floatX is float
// The same into rows that lie to_stride >= width apart; and a copy of rows that lie from_stride apart into others.
void op_cast_rows(floatX *to, int64_t to_stride, const float *from, int64_t rows, int64_t width);
void op_copy_rows(floatX *to, int64_t to_stride, const floatX *from, int64_t from_stride, int64_t rows, int64_t width);
void op_cast_to_float(float *to, const floatX *from, int64_t n);
void op_add_float(float *to, const float *from, int64_t n);        // to +=
void op_bf16_from_float(bf16 *to, const float *from, int64_t n);   // for transfers, whatever floatX is: to nearest even, NaN stays NaN
void op_add_bf16(float *to, const bf16 *from, int64_t n);          // to +=, in float
double op_sum_float(const float *x, int64_t n);                    // sum in double, fixed order; waits for the device
void op_sum_squares(double *sum, const float *x, int64_t n);       // device memory: the sum of squares in double, fixed order
// to (n) = elements [first, first + n) of a tensor drawn from Gaussian(0, sigma) (sigma == 0: all 1). An element depends on (seed, tensor,
// index) alone, so that any shard of any grid draws the same numbers.
void op_init_normal(floatX *to, uint64_t seed, uint64_t tensor, int64_t first, int64_t n, float sigma);
// How stored parameters are rounded: to nearest even, or stochastically, up or down such that the mean is the number itself. The draw
// depends on (seed, tensor, step, element) alone: any shard of any grid, and every replica, rounds alike. A number that floatX represents
// is not changed. The draw is the low 16 bits of a hash; the next 16 are m's, and 16 more v's, where moments are bf16 (op_adamw).
typedef struct {
    bool stochastic;
    uint64_t seed, tensor;
    int64_t step, first; // first: index in the tensor of the call's element 0
} rounding_rule;
// Of all draws of a call; element i's is mix_bits(key ^ i).
static inline uint64_t rounding_key(rounding_rule how, int64_t step) {
    return mix_bits(mix_bits(mix_bits(how.seed) ^ how.tensor) ^ (uint64_t)step);
}
void op_round(floatX *to, const float *from, int64_t n, rounding_rule how); // floatX float: a copy
// AdamW (decoupled weight decay), bias-corrected, on n elements; grad is scaled by grad_scale first. master NULL: param itself is the
// master. m, v: n floats, or with bf16_moments n bf16, which this step computes with as floats and then rounds stochastically: to nearest,
// v would stay where it is once it changes by less than 2^-9 of itself a step, as it does with beta2 = 0.999.
typedef struct {
    float lr, beta1, beta2, eps, weight_decay, grad_scale;
    int64_t step; // 1, 2, ...
    // Of param where floatX is not float; its step is ignored, `step` counts. Its seed, tensor and first are also the moments'.
    rounding_rule rounding;
    bool bf16_moments;
} adamw_args;
void op_adamw(floatX *param, float *master, void *m, void *v, const float *grad, int64_t n, adamw_args args);

#ifdef __cplusplus
}
#endif
#endif
