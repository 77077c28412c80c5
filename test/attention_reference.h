// Attention and its gradients in double precision, written in the plainest way: what test_ops, test_kernels and test_attention compare
// with. test_ops checks its gradients against differences.
#ifndef ATTENTION_REFERENCE_H
#define ATTENTION_REFERENCE_H

#include "../device/ops.h"
#include "test.h"

// Tensors of a block, laid out as op_attention_forward and op_attention_backward take them (ops.h). All results are overwritten.
typedef struct {
    const double *q, *k, *v, *dout;
    double *out, *lse, *delta, *dq, *dk, *dv; // delta: or NULL
} attention_doubles;

static inline int64_t key_position(attention_block b, int64_t j) {
    return j < b.documents.split ? b.documents.at[0] + j : b.documents.at[1] + j - b.documents.split;
}
// stored: rounds out to what delta is computed from; NULL: nothing is rounded. Of the documents, `host` is read.
static inline NOT_SANITIZED void attention_reference(attention_block b, attention_doubles x, double (*stored)(double)) {
    int HS = b.HS;
    double *p = HOST_NEW(double, b.Tk + 1), scale = (double)b.scale; // p: of one query
    for (int64_t i = 0; i < b.Tk * b.Hkv * HS; i++) {
        int64_t at = i / (b.Hkv * HS) * b.kv_stride + i % (b.Hkv * HS);
        x.dk[at] = x.dv[at] = 0;
    }
    for (int h = 0; h < b.Hq; h++) {
        int64_t kv_at = (int64_t)(h / (b.Hq / b.Hkv)) * HS;
        for (int64_t i = 0; i < b.Tq; i++) {
            int64_t from = 0, to = b.causal ? min_i64(i + 1, b.Tk) : b.Tk; // the keys that it sees
            while (b.documents.host != NULL && from < to && key_position(b, from) < b.documents.host[i]) from++;
            const double *q = x.q + i * b.q_stride + (int64_t)h * HS, *dout = x.dout + i * b.q_stride + (int64_t)h * HS;
            double *out = x.out + i * b.sum_stride + (int64_t)h * HS, *dq = x.dq + i * b.sum_stride + (int64_t)h * HS, largest = -INFINITY;
            double sum = 0, delta = 0;
            for (int64_t j = from; j < to; j++) {
                const double *k = x.k + j * b.kv_stride + kv_at;
                p[j] = 0;
                for (int d = 0; d < HS; d++) p[j] += q[d] * k[d];
                p[j] *= scale;
                if (p[j] > largest) largest = p[j]; // fmax is a call
            }
            for (int64_t j = from; j < to; j++) sum += p[j] = exp(p[j] - largest);
            x.lse[h * b.lse_stride + i] = to > from ? largest + log(sum) : -INFINITY;
            for (int d = 0; d < HS; d++) out[d] = dq[d] = 0;
            for (int64_t j = from; j < to; j++) {
                const double *v = x.v + j * b.kv_stride + kv_at;
                p[j] /= sum;
                for (int d = 0; d < HS; d++) out[d] += p[j] * v[d];
            }
            for (int d = 0; d < HS; d++) delta += (stored == NULL ? out[d] : stored(out[d])) * dout[d];
            if (x.delta != NULL) x.delta[h * b.lse_stride + i] = delta;
            for (int64_t j = from; j < to; j++) {
                const double *k = x.k + j * b.kv_stride + kv_at, *v = x.v + j * b.kv_stride + kv_at;
                double *dk = x.dk + j * b.kv_stride + kv_at, *dv = x.dv + j * b.kv_stride + kv_at, dp = 0;
                for (int d = 0; d < HS; d++) dp += dout[d] * v[d];
                double ds = p[j] * (dp - delta) * scale;
                for (int d = 0; d < HS; d++) {
                    dq[d] += ds * k[d];
                    dk[d] += ds * q[d];
                    dv[d] += p[j] * dout[d];
                }
            }
        }
    }
    free(p);
}

#endif
