// hold_sms for bench_cuda: blocks that keep SMs from other kernels, as those of NCCL's transfers do (640 threads that may use all
// registers of an SM).
#include "../device/cuda/internal.h"

enum { THREADS = 640, MOST = 64 };

// host: pinned; [0] becomes 1: end. [1 + block]: 1 while it runs. After a minute or so it ends by itself, whatever the host does.
__global__ void __launch_bounds__(THREADS) hold_kernel(volatile int *host) {
    if (threadIdx.x == 0) {
        host[1 + blockIdx.x] = 1;
        __threadfence_system();
        long long began = clock64();
        while (host[0] == 0 && clock64() - began < 100000000000ll) __nanosleep(1000);
        if (host[0] == 0) host[1 + blockIdx.x] = 0;
    }
    __syncthreads();
}

extern "C" double hold_sms(int sms) {
    static volatile int *host;
    static cudaStream_t stream;
    static int held;
    size_t shared = device_shared_memory(); // all that an SM has: nothing that uses any fits beside it
    if (host == nullptr) {
        int least = 0, most = 0;
        cuda_check(cudaMallocHost((void **)&host, sizeof(int) * (1 + MOST)), "holding SMs");
        cuda_check(cudaDeviceGetStreamPriorityRange(&least, &most), "holding SMs");
        cuda_check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, most), "holding SMs");
        cuda_check(cudaFuncSetAttribute(hold_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared), "holding SMs");
    }
    for (int i = 0; i < held; i++)
        if (host[1 + i] == 0) comm_abort("the figures beside held SMs are wrong: these were held for more than a minute, and then let go");
    host[0] = 1;
    cuda_check(cudaStreamSynchronize(stream), "holding SMs");
    held = sms < MOST ? sms : MOST;
    if (held == 0) return 0;
    for (int i = 0; i <= held; i++) host[i] = 0;
    double began = device_seconds();
    hold_kernel<<<(unsigned)held, THREADS, shared, stream>>>(host);
    cuda_check(cudaGetLastError(), "holding SMs");
    for (int i = 0; i < held; i++)
        while (host[1 + i] == 0) cuda_check(cudaPeekAtLastError(), "holding SMs");
    return device_seconds() - began;
}
