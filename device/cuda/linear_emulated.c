// DEVICE=emulated: the products that cuBLASLt computes on a GPU, by BLAS in float on the stored (bf16) numbers. See device/ops.h.
#include "internal.h"

#include <cblas.h>

// x (if not NULL) as float, in a buffer that is kept and grows: slot 0, 1, 2 for the two factors and the result.
static float *working_copy(int slot, const floatX *x, int64_t n) {
    static float *copies[3];
    static int64_t sizes[3];
    if (n > sizes[slot]) {
        free(copies[slot]);
        copies[slot] = HOST_NEW(float, n);
        sizes[slot] = n;
    }
    if (x != NULL) op_cast_to_float(copies[slot], x, n);
    return copies[slot];
}

void linear_test_sms_left(int sms) { (void)sms; }
void linear_test_elements(int64_t elements) { (void)elements; }

void op_linear_forward(floatX *y, const floatX *x, const floatX *w, const floatX *residual, int64_t T, int64_t in, int64_t out) {
    if (T == 0) return;
    float *xs = working_copy(0, x, T * in), *ws = working_copy(1, w, in * out), *ys = working_copy(2, residual, T * out);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)T, (int)out, (int)in, 1, xs, (int)in, ws, (int)in, residual != NULL ? 1 : 0,
                ys, (int)out);
    op_cast_from_float(y, ys, T * out);
}
void op_linear_backward_input(floatX *dx, const floatX *dy, const floatX *w, int64_t T, int64_t in, int64_t out) {
    if (T == 0) return;
    float *dys = working_copy(0, dy, T * out), *ws = working_copy(1, w, in * out), *dxs = working_copy(2, NULL, T * in);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)T, (int)in, (int)out, 1, dys, (int)out, ws, (int)in, 0, dxs, (int)in);
    op_cast_from_float(dx, dxs, T * in);
}
void op_linear_backward_weight(float *dw, const floatX *dy, const floatX *x, int64_t T, int64_t in, int64_t out, bool add) {
    if (T == 0 && !add) device_zero(dw, sizeof(float) * (size_t)(in * out));
    if (T == 0) return;
    float *dys = working_copy(0, dy, T * out), *xs = working_copy(1, x, T * in);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)out, (int)in, (int)T, 1, dys, (int)out, xs, (int)in,
                add ? 1 : 0, dw, (int)in);
}
size_t op_linear_workspace(void) { return 0; }
void op_linear_use_workspace(void *workspace) { (void)workspace; }
