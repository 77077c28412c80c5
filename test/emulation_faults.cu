// Kernels with one fault each, which device/cuda/emulation.h must reveal; test_emulated.sh builds this file and runs it with each of the
// names below, test_cuda.sh as nvcc's PTX (ptx_to_cc.py).
#include "../device/cuda/kernel.cuh"

#include <vector>

cudaStream_t device_compute_stream(void) { return nullptr; }
void comm_abort(const char *format, ...) {
    fprintf(stderr, "%s\n", format);
    abort();
}
#ifdef __CUDACC__
void cuda_launch_prepare(const void *, const char *, size_t) {}
void cuda_launch_check(const char *) {}
extern "C" size_t fake_cuda_shared_allowed(const void *) { return 48 * 1024; }
#endif

// Each thread takes the number of the next one through shared memory; with a fault, or without ("none").
enum fault {
    NONE, NO_BARRIER, HALF_A_BARRIER, LANE_LEFT, TOO_FAR, NO_WAIT, RUN_AHEAD, ONLY_SHUFFLE, OTHER_BLOCK, OTHER_BLOCK_READS, MATRIX_ROWS,
    LANES_APART, TWO_BARRIERS, TWO_LOADS, TWO_PRODUCTS, SHARED_STORE, GLOBAL_ROWS, COPY_BACK, NEVER_WAITS, BETWEEN_BARRIERS, UNWRITTEN,
    FAULTS
};
__global__ void pass_on_kernel(float *out, fault f) {
    DYN_SHARED(float, shared);
    int n = (int)blockDim.x, i = (int)threadIdx.x;
    if (f != OTHER_BLOCK) out += blockIdx.x * n; // without this both blocks write the first block's numbers
    out[i] = (float)i;
    copy_async<4>(shared + i, out + i);
    if (f != NO_WAIT) copy_async_wait();
    if (f == HALF_A_BARRIER && i >= n / 2) {
        out[i] = 0;
        return;
    }
    if (f != NO_BARRIER) __syncthreads();
    if (f == LANE_LEFT && i == 5) return;
    float next = f == TOO_FAR ? shared[i + 1] : shared[(i + 1) % n];
    out[i] = next + 0 * warp_sum(next);
    __syncthreads(); // all have read; below, each warp reads what another one writes
    shared[i] = out[i];
    __syncthreads();
    float other = warp_sum(i % 32 == 0 ? shared[n - 1 - i / 32 * 32] : 0.0f);
    if (f != RUN_AHEAD) __syncthreads(); // without it one warp overwrites what another has not read yet
    shared[i] = -1;
    if (f != ONLY_SHUFFLE) __syncwarp(); // a shuffle brings the lanes together, but orders no memory
    other += 0 * (warp_sum(other) + shared[i ^ 1]);
    if (f == LANES_APART && i % 2 == 0) other += 0 * warp_sum(other); // meanwhile the odd lanes are at the barrier below
    if (f == LANES_APART) __syncwarp();
    out[i] += 0 * shared[i] + (other < 0 ? 1 : 0);
    if (f == NEVER_WAITS) copy_async<4>(shared + i, out + i);
    if (f == NO_WAIT) copy_async_wait();
}

// All warps read a number; after a barrier one thread of the last block writes another one. other-block-reads: of both blocks, and the
// number that was read.
__global__ void read_then_write_kernel(float *x, fault f) {
    float seen = *x;
    __syncthreads();
    if (threadIdx.x == 0 && (f == OTHER_BLOCK_READS || blockIdx.x > 0)) x[f == OTHER_BLOCK_READS ? 0 : 1] = seen;
}
// Each thread takes the number of one of another warp, between barriers where it calls nothing: the emulation is compiled into the kernel.
template <bool BARRIER> __global__ void __attribute__((flatten)) neighbours_kernel(float *out) {
    DYN_SHARED(float, shared);
    int i = (int)threadIdx.x;
    __syncthreads();
    shared[i] = 1;
    if (BARRIER) __syncthreads();
    float other = shared[i ^ 32];
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] += 0 * other;
}
// Each lane writes one row of the matrices that its warp then loads.
__global__ void matrix_kernel(float *out, fault f) {
    DYN_SHARED(bf16, rows);
    bf16 *row = rows + threadIdx.x * 8;
    for (int i = 0; i < (f == UNWRITTEN ? 7 : 8); i++) row[i].bits = 0;
    float four[4] = {0, 0, 0, 0};
    if (f == SHARED_STORE) store<4>(reinterpret_cast<float *>(row), four);
    if (f == COPY_BACK) copy_async<4>(out, row);
    if (f != MATRIX_ROWS) __syncwarp();
    uint32_t r[4];
    float d[4] = {0, 0, 0, 0};
    if (f == TWO_LOADS && threadIdx.x % 2 == 0) load_matrices<true>(r, row);
    else load_matrices<false>(r, f == GLOBAL_ROWS ? (const void *)(out + threadIdx.x / 4 * 4) : row);
    if (f == TWO_PRODUCTS && threadIdx.x % 2 == 0) multiply_add(d, r, r[1], r[0]);
    else multiply_add(d, r, r[0], r[1]);
    if (f == TWO_BARRIERS && threadIdx.x < 32) {
        d[0] += d[1];
        __syncthreads();
    } else {
        __syncthreads();
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] += 0 * ((float)r[0] + d[0]);
}

int main(int argc, char **argv) {
    const char *names[FAULTS] = {"none", "no-barrier", "half-a-barrier", "lane-left", "too-far", "no-wait", "run-ahead", "only-shuffle",
                                 "other-block", "other-block-reads", "matrix-rows", "lanes-apart", "two-barriers", "two-loads",
                                 "two-products", "shared-store", "global-rows", "copy-back", "never-waits", "between-barriers",
                                 "unwritten"};
    int threads = 64;
    fault f = NONE;
    for (int i = 0; argc == 2 && i < FAULTS; i++)
        if (strcmp(argv[1], names[i]) == 0) f = (fault)i;
    if (argc == 2 && strcmp(argv[1], "too-many-threads") == 0) threads = 1056;
    std::vector<float> out((size_t)(2 * threads), -1.0f);
    float *to = out.data();
    for (int repeat = 0; repeat < 3; repeat++) LAUNCH(pass_on_kernel, 2, threads, sizeof(float) * (size_t)threads, to, f);
    auto neighbours_kernels = f == BETWEEN_BARRIERS ? neighbours_kernel<false> : neighbours_kernel<true>;
    LAUNCH(neighbours_kernels, 2, threads, sizeof(float) * (size_t)threads, to);
    LAUNCH(matrix_kernel, 2, threads, 16 * (size_t)threads, to, f);
    std::vector<float> numbers(2, 0.0f);
    float *number = numbers.data();
    LAUNCH(read_then_write_kernel, 2, threads, 0, number, f);
    int wrong = 0;
    for (int i = 0; i < 2 * threads; i++) wrong += !(out[(size_t)i] == (float)((i % threads + 1) % threads));
    printf("%d wrong\n", wrong);
    return wrong > 0;
}
