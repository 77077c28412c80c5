// hold_sms for bench_cuda: blocks that keep SMs from other kernels, as those of NCCL's transfers do (640 threads that may use all
// registers of an SM).
#include "../device/cuda/internal.h"
#include "hold_sms.h"

enum { THREADS = 640, MOST = 64 };

// end: pinned memory of the host or memory of the device; becomes 1: end. running (blocks): pinned; 1 while a block runs. After a minute or
// so it ends by itself, whatever the host does.
__global__ void __launch_bounds__(THREADS) hold_kernel(volatile int *end, volatile int *running) {
    if (threadIdx.x == 0) {
        running[blockIdx.x] = 1;
        __threadfence_system();
        long long began = clock64();
        while (*end == 0 && clock64() - began < 100000000000ll) __nanosleep(1000);
        if (*end == 0) running[blockIdx.x] = 0;
    }
    __syncthreads();
}

static volatile int *host; // [0]: end; [1 + block]: running; [GATE]: end of what hop_launch has put before compute
enum { GATE = 1 + MOST };
static int *device; // end: a copy of host[0]
static cudaStream_t high, low, messages;
static cudaEvent_t opened, before, arrived, done; // of a hop
static size_t shared; // all that an SM has: nothing that uses any fits beside it
static void start_holding() {
    int least = 0, most = 0;
    if (host != nullptr) return;
    shared = device_shared_memory();
    cuda_check(cudaMallocHost((void **)&host, sizeof(int) * (2 + MOST)), "holding SMs");
    cuda_check(cudaMalloc((void **)&device, sizeof(int)), "holding SMs");
    cuda_check(cudaDeviceGetStreamPriorityRange(&least, &most), "holding SMs");
    cuda_check(cudaStreamCreateWithPriority(&high, cudaStreamNonBlocking, most), "holding SMs");
    cuda_check(cudaStreamCreateWithPriority(&low, cudaStreamNonBlocking, least), "holding SMs");
    cuda_check(cudaStreamCreateWithPriority(&messages, cudaStreamNonBlocking, most), "holding SMs");
    cuda_check(cudaFuncSetAttribute(hold_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared), "holding SMs");
    cuda_check(cudaEventCreate(&opened), "holding SMs");
    cuda_check(cudaEventCreateWithFlags(&before, cudaEventDisableTiming), "holding SMs");
    cuda_check(cudaEventCreate(&arrived), "holding SMs");
    cuda_check(cudaEventCreate(&done), "holding SMs");
}

extern "C" double hold_sms(int sms, hold_kind kind) {
    static int held;
    start_holding();
    for (int i = 0; i < held; i++)
        if (host[1 + i] == 0) comm_abort("the figures beside held SMs are wrong: these were held for more than a minute, and then let go");
    host[0] = 1;
    cuda_check(cudaMemcpyAsync(device, (const void *)host, sizeof(int), cudaMemcpyHostToDevice, messages), "holding SMs");
    cuda_check(cudaStreamSynchronize(high), "holding SMs");
    cuda_check(cudaStreamSynchronize(low), "holding SMs");
    held = sms < MOST ? sms : MOST;
    if (held == 0) return 0;
    for (int i = 0; i <= held; i++) host[i] = 0;
    cuda_check(cudaMemcpyAsync(device, (const void *)host, sizeof(int), cudaMemcpyHostToDevice, messages), "holding SMs");
    cuda_check(cudaStreamSynchronize(messages), "holding SMs");
    double began = device_seconds();
    volatile int *end = kind == HOLD_ASKS_HOST ? host : (volatile int *)device;
    unsigned threads = kind == HOLD_ONE_WARP ? 32 : THREADS;
    hold_kernel<<<(unsigned)held, threads, kind == HOLD_NO_SHARED ? 0 : shared, kind == HOLD_LOW_PRIORITY ? low : high>>>(end, host + 1);
    cuda_check(cudaGetLastError(), "holding SMs");
    for (int i = 0; i < held; i++)
        while (host[1 + i] == 0) cuda_check(cudaPeekAtLastError(), "holding SMs");
    return device_seconds() - began;
}

extern "C" void hop_launch(int sms, bool first) {
    cudaStream_t compute = device_compute_stream();
    start_holding();
    host[0] = 1;
    host[GATE] = 0;
    hold_kernel<<<1, 32, 0, compute>>>(host + GATE, host + 1); // until all that follows has been issued
    cuda_check(cudaEventRecord(opened, compute), "a hop");
    cuda_check(cudaStreamWaitEvent(high, opened, 0), "a hop");
    if (first) {
        cuda_check(cudaEventRecord(before, high), "a hop");
        cuda_check(cudaStreamWaitEvent(compute, before, 0), "a hop");
    }
    hold_kernel<<<(unsigned)sms, THREADS, shared, high>>>(host, host + 1);
    cuda_check(cudaGetLastError(), "a hop");
    cuda_check(cudaEventRecord(arrived, high), "a hop");
}
extern "C" hop_times hop_waited(void) {
    float hop = 0, compute = 0;
    cuda_check(cudaEventRecord(done, device_compute_stream()), "a hop");
    host[GATE] = 1;
    cuda_check(cudaEventSynchronize(arrived), "a hop");
    cuda_check(cudaEventSynchronize(done), "a hop");
    cuda_check(cudaEventElapsedTime(&hop, opened, arrived), "a hop");
    cuda_check(cudaEventElapsedTime(&compute, opened, done), "a hop");
    return {1e-3 * (double)hop, 1e-3 * (double)compute};
}
