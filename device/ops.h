// Every operation the model needs, forward and backward. All tensors are row-major and live on the device.
// Names: T rows (tokens), D hidden, H query heads, Hkv key/value heads, HS head size, F feed-forward, V vocabulary.
// Convention: `+=` says that a buffer accumulates, `=` that it is overwritten. No operation allocates; scratch is the caller's
// and its size comes from the *_scratch function beside the operation (pure arithmetic, callable without a device).
// No operation knows ranks, layers or options. Accumulators of gradients are float.
#ifndef OPS_H
#define OPS_H

#include "device.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- embedding: x (T, D) = table[tokens]; table (V, D), tokens (T) in [0, V) ----
void op_embedding_forward(floatX *x, const int32_t *tokens, const floatX *table, int64_t T, int64_t D);
// dtable (V, D) += rows of dx (T, D), in token order for each row whatever the number of threads (deterministic).
void op_embedding_backward(float *dtable, const int32_t *tokens, const floatX *dx, int64_t T, int64_t D, void *scratch);
size_t op_embedding_backward_scratch(int64_t T);

// ---- RMSNorm: y = x * rstd * weight, rstd (T) = 1 / sqrt(mean(x^2) + eps) ----
void op_rmsnorm_forward(floatX *y, float *rstd, const floatX *x, const floatX *weight, int64_t T, int64_t D, float eps);
// dx (T, D) += gradient (dx is the residual stream's gradient), dweight (D) += sum over rows.
void op_rmsnorm_backward(floatX *dx, float *dweight, const floatX *dy, const floatX *x, const floatX *weight, const float *rstd, int64_t T,
                         int64_t D, void *scratch);
size_t op_rmsnorm_backward_scratch(int64_t T, int64_t D);

// ---- linear: x (T, in), w (out, in), y (T, out) ----
// y = x w^T, plus residual (T, out) if not NULL; residual may be y itself.
void op_linear_forward(floatX *y, const floatX *x, const floatX *w, const floatX *residual, int64_t T, int64_t in, int64_t out);
void op_linear_backward_input(floatX *dx, const floatX *dy, const floatX *w, int64_t T, int64_t in, int64_t out); // dx = dy w
void op_linear_backward_weight(float *dw, const floatX *dy, const floatX *x, int64_t T, int64_t in, int64_t out, bool add); // dw = or += dy^T x
// Memory that products may work in: op_linear_workspace bytes (0: none is wanted), the caller's, until it names other memory. NULL: their own.
size_t op_linear_workspace(void);
void op_linear_use_workspace(void *workspace);

// ---- RoPE with the layout change for SeqAlltoAll ----
// How the heads of one token row of the fused projection, (H + 2 Hkv, HS) = [q heads | k heads | v heads], are dealt to `peers`
// head-parallel ranks. Peer p computes query heads [p Hq, (p+1) Hq) and holds `Hkv_local` key/value slots; its slot j holds
// head (p Hq + j group_local) / group (head_layout_slot), so a head needed by several peers is sent to each (KV replication).
typedef struct {
    int peers;       // hp
    int H, Hkv, HS;
    int Hq;          // H / hp
    int Hkv_local;   // Hq / group_local
    int group;       // H / Hkv: query heads to a key/value head
    int group_local; // gcd(Hq, group): query heads to a slot
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

// q_send (peers, T, Hq, HS) and kv_send (peers, T, 2 Hkv_local, HS) = [k slots | v slots] from qkv (T, H + 2 Hkv, HS).
// Query and key heads are rotated: pair (i, i + HS/2) of a head by the angle whose cos and sin stand in table (T, HS/2, 2).
void op_rope_pack_forward(floatX *q_send, floatX *kv_send, const floatX *qkv, const float *table, int64_t T, head_layout heads);
// The inverse: dqkv (T, H + 2 Hkv, HS) = rotated back; gradients of the copies of a key/value head are summed in the order of peers.
void op_rope_unpack_backward(floatX *dqkv, const floatX *dq_recv, const floatX *dkv_recv, const float *table, int64_t T, head_layout heads);
// The same of one peer, from float sums that nobody has to send: dq (T, H, HS), dkv (T, 2 Hkv, HS).
void op_rope_unpack_backward_float(floatX *dqkv, const float *dq, const float *dkv, const float *table, int64_t T, head_layout heads);
// out (T, H, HS) = out_recv (peers, T, Hq, HS), heads gathered; and the way back.
void op_heads_unpack(floatX *out, const floatX *out_recv, int64_t T, head_layout heads);
void op_heads_pack(floatX *out_send, const floatX *out, int64_t T, head_layout heads);

// ---- attention on one (queries, keys) block: softmax(scale q k^T) v per query head; head h uses key/value head h / (Hq / Hkv) ----

// Packed documents: a query sees no key before its document's first token. Key rows [0, split) stand at positions at[0], at[0] + 1, ... of
// the sequence, rows [split, Tk) at at[1], at[1] + 1, ..., all of them after the first part's.
typedef struct {
    const int64_t *first; // (Tq) on the device, ascending: position of the first token of query row i's document; NULL: all see all keys
    const int64_t *host;  // the same on the host: a block may be cut by it
    int64_t at[2], split; // split <= Tk
} attention_documents;
// The documents of the block without its first rows of queries and of keys.
static inline attention_documents attention_documents_from(attention_documents d, int64_t queries, int64_t keys) {
    int64_t cut = min_i64(keys, d.split);
    d.first += queries;
    d.host += queries;
    d.split -= cut;
    d.at[0] += cut;
    d.at[1] += keys - cut;
    return d;
}
// The first key row of Tk at or after the position `first`; Tk: none.
static inline int64_t attention_first_key(const attention_documents *d, int64_t first, int64_t Tk) {
    return max_i64(0, min_i64(first - d->at[0], d->split)) + max_i64(0, min_i64(first - d->at[1], Tk - d->split));
}

typedef struct {
    int64_t Tq, Tk;    // rows of q and of k, v in this call
    int Hq, Hkv, HS;   // Hq % Hkv == 0
    int64_t q_stride;  // elements from one row of q (and of out, dout, dq) to the next, >= Hq HS
    int64_t kv_stride; // elements from one row of k and v (and of dk, dv) to the next, >= Hkv HS
    int64_t lse_stride; // lse and delta are (Hq, lse_stride): elements from one head to the next, >= Tq
    float scale;
    bool causal;       // query row i sees key rows <= i; otherwise all
    attention_documents documents; // and none before its document
} attention_block;
// out (Tq, Hq, HS) float, lse (Hq, Tq) float, natural logarithm of the sum of exponentials of scaled scores.
// merge false: out, lse = this block. merge true: out and lse hold earlier blocks, and this block is merged in:
//   m = max(lse, lse_b);  out = (e^(lse-m) out + e^(lse_b-m) out_b) / (e^(lse-m) + e^(lse_b-m));  lse = m + log(...)
// (LoongTrain Alg. 2 line 9). lse = -inf means "no key seen yet" and is legal on either side; rows that see no key give out = 0.
void op_attention_forward(float *out, float *lse, const floatX *q, const floatX *k, const floatX *v, attention_block block, bool merge,
                          void *scratch);
// The merge alone: out, lse of (T, H, HS) and (H, T) merged with out_b, lse_b of the same strides.
void op_attention_merge(float *out, float *lse, const float *out_b, const float *lse_b, int64_t T, int H, int HS, int64_t stride,
                        int64_t lse_stride);
// delta (Hq, T) = sum over HS of out * dout, from the *merged* out. Strides as in the block (Tk, causal unused).
void op_attention_delta(float *delta, const floatX *out, const floatX *dout, attention_block block);
// dq (Tq, Hq, HS) float = or += (add), dk and dv (Tk, Hkv, HS) float =, with the merged out, lse and delta of all blocks.
void op_attention_backward(float *dq, float *dk, float *dv, const floatX *q, const floatX *k, const floatX *v, const floatX *out,
                           const floatX *dout, const float *lse, const float *delta, attention_block block, bool add, void *scratch);
size_t op_attention_scratch(attention_block block, bool backward); // the larger of all calls with Tq, Tk up to the block's
int64_t op_attention_calls(void); // attention kernels run forward by this rank since start (tests count them)
int64_t op_attention_tiles(void); // tiles of scores computed since start, forward and backward: documents skip theirs (0: not counted, on CUDA)
const char *op_attention_engine(bool documents); // what computes a block; documents: one that holds the boundary of two documents

// ---- SwiGLU: act (T, F) = silu(gate) * up, gate_up (T, 2F) = [gate | up] a row ----
void op_swiglu_forward(floatX *act, const floatX *gate_up, int64_t T, int64_t F);
// dact (T, F) -> dgate_up (T, 2F), and act once more, the same bits: the weights' gradient wants it, and one pass makes both. dgate_up may be
// gate_up, act may be dact.
void op_swiglu_backward(floatX *dgate_up, floatX *act, const floatX *dact, const floatX *gate_up, int64_t T, int64_t F);

// ---- cross-entropy on a tile of logits (T, V), labels (T); label -100: ignored (loss 0, gradient 0) ----
// losses (T) = -log softmax(logits)[label]. If backward: logits = (softmax - onehot) * scale, in place.
void op_cross_entropy(float *losses, floatX *logits, const int32_t *labels, int64_t T, int64_t V, float scale, bool backward);

// ---- numbers ----
void op_cast_from_float(floatX *to, const float *from, int64_t n); // round to nearest even; to == from allowed when floatX is float
void op_cast_to_float(float *to, const floatX *from, int64_t n);
void op_add_float(float *to, const float *from, int64_t n);        // to +=
void op_bf16_from_float(bf16 *to, const float *from, int64_t n);   // for the wire, whatever floatX is: round to nearest even, a NaN stays one
void op_add_bf16(float *to, const bf16 *from, int64_t n);          // to +=, in float
double op_sum_float(const float *x, int64_t n);                    // sum in double, fixed order; waits for the device
double op_sum_squares(const float *x, int64_t n);                  // sum of squares in double, fixed order; waits for the device
// Gaussian(0, sigma) (sigma == 0: `fill`) for elements [first, first + n) of a tensor, from (seed, tensor, index) alone, so that any
// shard of any grid draws the same numbers.
void op_init_normal(floatX *to, uint64_t seed, uint64_t tensor, int64_t first, int64_t n, float sigma, float fill);
// How stored parameters are rounded: to nearest even, or up or down at random with a mean that is the number itself. The draw depends on
// (seed, tensor, step, element) alone: any shard of any grid, and every replica, rounds alike. What floatX represents stays as it is.
typedef struct {
    bool stochastic;
    uint64_t seed, tensor;
    int64_t step, first; // first: the tensor's element that element 0 of the call is
} rounding_rule;
void op_round(floatX *to, const float *from, int64_t n, rounding_rule how); // floatX float: a copy
// AdamW (decoupled weight decay), bias-corrected; grad is scaled by grad_scale first. master NULL: param itself is the master.
typedef struct {
    float lr, beta1, beta2, eps, weight_decay, grad_scale;
    int64_t step; // 1, 2, ...
    rounding_rule rounding; // of param where floatX is not float; its step is the one above
} adamw_args;
void op_adamw(floatX *param, float *master, float *m, float *v, const float *grad, int64_t n, adamw_args args);

#ifdef __cplusplus
}
#endif
#endif
