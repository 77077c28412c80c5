// The launches of nvcc's host code come here instead of to CUDA's runtime, and run the kernels that ptx_to_cc.py made. Linked with
// fake_cuda.c. PTX_RAN=FILE: at exit, adds a line to FILE for each kernel that ran: its name and the threads of its largest block.
#include "ptx.h"

#include <string>
#include <unordered_map>

struct CUstream_st;
extern "C" size_t fake_cuda_shared_allowed(const void *kernel); // fake_cuda.c

static std::unordered_map<const void *, std::string> &names() { // of kernels, by the addresses of their host functions
    static std::unordered_map<const void *, std::string> all;   // filled before main
    return all;
}
static ptx_kernel *kernel_of(const void *host) {
    static std::unordered_map<const void *, ptx_kernel *> known;
    ptx_kernel *&k = known[host];
    if (k != nullptr) return k;
    for (k = ptx_kernel::first; k != nullptr && names()[host] != k->name; k = k->next) {}
    if (k == nullptr) comm_abort("ptx: no kernel %s", names()[host].c_str());
    return k;
}

static struct report {
    ~report() {
        const char *path = getenv("PTX_RAN");
        FILE *file = path != nullptr ? fopen(path, "a") : nullptr;
        if (file == nullptr) return;
        setvbuf(file, nullptr, _IOFBF, 1 << 16); // one write: several ranks add to the file
        for (ptx_kernel *k = ptx_kernel::first; k != nullptr; k = k->next)
            if (k->threads > 0) fprintf(file, "%s %u\n", k->name, k->threads);
        fclose(file);
    }
} at_the_end;

static struct {
    dim3 grid, block;
    size_t shared_bytes;
    CUstream_st *stream;
} configured; // by <<<...>>>, for the launch that follows

extern "C" {

void **__cudaRegisterFatBinary(void *) {
    static void *none;
    return &none;
}
void __cudaRegisterFatBinaryEnd(void **) {}
void __cudaUnregisterFatBinary(void **) {}
void __cudaRegisterFunction(void **, const char *host, char *, const char *name, int, void *, void *, void *, void *, int *) {
    names()[host] = name;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, CUstream_st *stream) {
    configured = {grid, block, shared_bytes, stream};
    return 0;
}
int __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, CUstream_st **stream) {
    *grid = configured.grid;
    *block = configured.block;
    *shared_bytes = configured.shared_bytes;
    *stream = configured.stream;
    return 0;
}
int cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **arguments, size_t shared_bytes, CUstream_st *stream) {
    ptx_kernel *k = kernel_of(host);
    unsigned threads = block.x * block.y * block.z;
    if (stream != (CUstream_st *)device_compute_stream()) comm_abort("ptx: %s: not on the compute stream", k->name);
    if (threads > k->most_threads) comm_abort("ptx: %s: a block of %u threads, where %u were announced", k->name, threads, k->most_threads);
    if (shared_bytes > fake_cuda_shared_allowed(host))
        comm_abort("ptx: %s: %zu bytes of shared memory that were not asked for", k->name, shared_bytes);
    if (threads > k->threads) k->threads = threads;
    emulation::launch(k->name, grid, block, shared_bytes, [=] { k->body(arguments); });
    return 0;
}
int __cudaGetKernel(const void **kernel, const void *host) { // from CUDA 13 on
    *kernel = host;
    return 0;
}
int __cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared_bytes, CUstream_st *stream) {
    return cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}
}
