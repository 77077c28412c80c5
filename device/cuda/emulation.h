// One kernel source, two compilers: under nvcc the names below are CUDA's; under g++ this header runs the kernels on the CPU.
//
//     LAUNCH(kernel, grid, block, shared_bytes, arguments...)    kernel<<<grid, block, shared_bytes, compute stream>>>(arguments...)
//     DYN_SHARED(type, name)                                     the block's shared memory; the only kind that kernels may use
//
// Emulated, a block's threads are fibers on one thread of the host. A fiber runs CUDA threads one after another to their end; one that
// reaches a barrier or a shuffle stands still until all its partners are there. What the emulation shows that a GPU may hide:
//     a thread that never reaches a barrier its block waits at    "deadlock" with the kernel's name and who waits where, then abort
//     reading shared memory that nobody has written               NaN: shared memory is filled with NaN before every block
//     a missing barrier                                           threads run in order, so one side reads NaN or an old value;
//                                                                 EMULATION_REVERSE=1 starts blocks and threads from the last
//     addresses outside a buffer, shared memory included          AddressSanitizer, which knows the fibers' stacks
//     a launch that no GPU would take                             "cannot launch" with the limit
// What it cannot show: races inside one instruction, missing fences between blocks, speed.
// Kernels keep to full warps: blocks are multiples of 32 threads, and every lane takes part in a shuffle.
#ifndef EMULATION_H
#define EMULATION_H

#include "internal.h"

#ifdef __CUDACC__

#define LAUNCH(kernel, grid, block, shared_bytes, ...)                                                                           \
    do {                                                                                                                         \
        auto launch_kernel = kernel;                                                                                             \
        cuda_launch_prepare((const void *)launch_kernel, #kernel, shared_bytes);                                                 \
        launch_kernel<<<grid, block, shared_bytes, device_compute_stream()>>>(__VA_ARGS__);                                      \
        cuda_launch_check(#kernel);                                                                                              \
    } while (0)
#define DYN_SHARED(type, name)                                                                                                   \
    extern __shared__ __align__(16) unsigned char dynamic_shared_memory[];                                                       \
    type *name = reinterpret_cast<type *>(dynamic_shared_memory)

#else // emulated

#include <sys/mman.h>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__) || defined(EMULATION_UCONTEXT) // any CPU; on x86-64 the switch below is 20 times faster
#define EMULATION_PORTABLE_SWITCH 1
#include <ucontext.h>
#endif

#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

namespace emulation {

constexpr unsigned WARP = 32, MAX_THREADS = 1024;
constexpr size_t MAX_SHARED = 163 * 1024; // of a block on sm_80, the least of our targets
#ifdef __SANITIZE_ADDRESS__
constexpr size_t STACK_BYTES = 512 << 10;
#else
constexpr size_t STACK_BYTES = 64 << 10;
#endif

// A stack of its own. `where` and `warp` belong to the CUDA thread that it runs at the moment.
struct fiber {
#ifdef EMULATION_PORTABLE_SWITCH
    ucontext_t context;
#else
    void *stack_pointer;
#endif
    char *stack;
    void *sanitizer_stack;
    dim3 where;
    unsigned lane, warp;
    unsigned shuffles; // done by this thread: its parity picks the exchange buffer
};

struct warp_state {
    unsigned lanes, arrived;
    uint64_t exchange[2][WARP];
    std::vector<fiber *> waiting;
};

// The one block that runs at a time.
struct machine {
    const char *kernel;
    void (*body)(void *);
    void *arguments;
    dim3 grid, block, block_index;
    unsigned threads, started, ended, arrived, at_warp;
    bool reverse;
    fiber *current;
    fiber scheduler;
    std::vector<fiber *> idle, waiting, ready;
    warp_state warps[MAX_THREADS / WARP];
    unsigned char *shared;
    const void *scheduler_stack;
    size_t scheduler_stack_bytes;
};
inline machine m;

// ---- switching stacks ----

#ifdef EMULATION_PORTABLE_SWITCH
inline void switch_stacks(fiber *from, fiber *to) { swapcontext(&from->context, &to->context); }
#else
// Saves the registers that a call preserves on the old stack, stores its address in *save, continues on `to`.
extern "C" void emulation_switch(void **save, void *to);
__asm__(".text\n.weak emulation_switch\n.type emulation_switch,@function\nemulation_switch:\n"
        "    push %rbp\n    push %rbx\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n"
        "    mov %rsp,(%rdi)\n    mov %rsi,%rsp\n"
        "    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbx\n    pop %rbp\n    ret\n"
        ".size emulation_switch,.-emulation_switch\n");
inline void switch_stacks(fiber *from, fiber *to) { emulation_switch(&from->stack_pointer, to->stack_pointer); }
#endif

// AddressSanitizer keeps the bounds of the stack in use: it is told before and after each switch.
inline void switch_fibers(fiber *from, fiber *to) {
#ifdef __SANITIZE_ADDRESS__
    const void *bottom = to == &m.scheduler ? m.scheduler_stack : to->stack;
    size_t bytes = to == &m.scheduler ? m.scheduler_stack_bytes : STACK_BYTES;
    __sanitizer_start_switch_fiber(&from->sanitizer_stack, bottom, bytes);
    switch_stacks(from, to);
    __sanitizer_finish_switch_fiber(from->sanitizer_stack, nullptr, nullptr);
#else
    switch_stacks(from, to);
#endif
}
inline void stand_still() { switch_fibers(m.current, &m.scheduler); }

// ---- threads of a block ----

inline void wake(std::vector<fiber *> &waiting) {
    m.ready.insert(m.ready.end(), waiting.begin(), waiting.end());
    waiting.clear();
}

// What every fiber does: take the block's next thread and run it to its end, until none is left to start; then wait for another block.
inline void fiber_main() {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(nullptr, &m.scheduler_stack, &m.scheduler_stack_bytes);
#endif
    for (;;) {
        fiber *self = m.current;
        while (m.started < m.threads) {
            unsigned t = m.started++;
            if (m.reverse) t = m.threads - 1 - t;
            self->where = dim3(t % m.block.x, t / m.block.x % m.block.y, t / (m.block.x * m.block.y));
            self->lane = t % WARP;
            self->warp = t / WARP;
            self->shuffles = 0;
            m.body(m.arguments);
            m.ended++;
        }
        m.idle.push_back(self);
        stand_still();
    }
}

inline fiber *fiber_new() {
    fiber *f = new fiber();
    void *stack = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) device_fail("emulation: no memory for the stack of a thread");
    mprotect(stack, 4096, PROT_NONE); // a thread that needs more stack faults here
    f->stack = (char *)stack;
#ifdef EMULATION_PORTABLE_SWITCH
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = stack;
    f->context.uc_stack.ss_size = STACK_BYTES;
    f->context.uc_link = nullptr;
    makecontext(&f->context, fiber_main, 0);
#else
    static unsigned count = 0; // stacks start at different offsets, or all would compete for the same cache sets
    void **top = (void **)(f->stack + STACK_BYTES - 128 - (count++ % 64) * 192);
    top[6] = (void *)fiber_main; // below it: six registers; after the return address the stack is 8 off 16, as after a call
    f->stack_pointer = top;
#endif
    return f;
}

[[noreturn]] inline void report_deadlock() {
    fprintf(stderr,
            "emulation: deadlock in %s, block (%u, %u, %u): of %u threads %u have ended, %u wait at __syncthreads, %u at a shuffle or "
            "__syncwarp\n",
            m.kernel, m.block_index.x, m.block_index.y, m.block_index.z, m.threads, m.ended, (unsigned)m.waiting.size(), m.at_warp);
    for (size_t i = 0; i < m.waiting.size() && i < 4; i++)
        fprintf(stderr, "emulation:     at __syncthreads: thread (%u, %u, %u)\n", m.waiting[i]->where.x, m.waiting[i]->where.y,
                m.waiting[i]->where.z);
    for (unsigned w = 0; w < (m.threads + WARP - 1) / WARP; w++)
        if (!m.warps[w].waiting.empty())
            fprintf(stderr, "emulation:     warp %u: %u of %u lanes at a shuffle or __syncwarp, the first is lane %u\n", w,
                    m.warps[w].arrived, m.warps[w].lanes, m.warps[w].waiting[0]->lane);
    abort();
}

inline void run_block() {
    m.started = m.ended = m.arrived = m.at_warp = 0;
    for (unsigned w = 0; w * WARP < m.threads; w++) {
        m.warps[w].lanes = m.threads - w * WARP < WARP ? m.threads - w * WARP : WARP;
        m.warps[w].arrived = 0;
    }
    size_t head = 0; // of m.ready
    while (m.ended < m.threads) {
        if (head < m.ready.size()) {
            m.current = m.ready[head++];
        } else if (m.started < m.threads) {
            if (m.idle.empty()) m.idle.push_back(fiber_new());
            m.current = m.idle.back();
            m.idle.pop_back();
        } else {
            report_deadlock();
        }
        if (head == m.ready.size()) {
            m.ready.clear();
            head = 0;
        }
        switch_fibers(&m.scheduler, m.current);
    }
}

[[noreturn]] inline void refuse(const char *why) {
    fprintf(stderr, "emulation: cannot launch %s: %s\n", m.kernel, why);
    abort();
}

inline void launch_blocks(const char *kernel, dim3 grid, dim3 block, size_t shared_bytes, void (*body)(void *), void *arguments) {
    m.kernel = kernel;
    m.body = body;
    m.arguments = arguments;
    m.grid = grid;
    m.block = block;
    m.threads = block.x * block.y * block.z;
    const char *reverse = getenv("EMULATION_REVERSE");
    m.reverse = reverse != nullptr && reverse[0] == '1';
    if (m.threads == 0 || m.threads > MAX_THREADS) refuse("a block has 1 to 1024 threads");
    if (m.threads % WARP != 0) refuse("our blocks are whole warps of 32 threads");
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
        refuse("a grid is 1 to 2^31 - 1 blocks in x, 1 to 65535 in y and z");
    if (shared_bytes > MAX_SHARED) refuse("a block has at most 163 KiB of shared memory");
    void *shared = nullptr; // exactly as large as asked for, so that AddressSanitizer sees its end
    if (posix_memalign(&shared, 16, shared_bytes > 0 ? shared_bytes : 1) != 0) refuse("out of memory");
    m.shared = (unsigned char *)shared;
    uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    for (uint64_t i = 0; i < blocks; i++) {
        uint64_t b = m.reverse ? blocks - 1 - i : i;
        m.block_index = dim3((unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y), (unsigned)(b / grid.x / grid.y));
        memset(m.shared, 0xff, shared_bytes); // NaN in every width
        run_block();
    }
    free(m.shared);
}

template <class F> inline void launch(const char *kernel, dim3 grid, dim3 block, size_t shared_bytes, F body) {
    launch_blocks(kernel, grid, block, shared_bytes, [](void *f) { (*(F *)f)(); }, &body);
}

// ---- barriers and shuffles ----

inline void block_barrier() {
    fiber *self = m.current;
    if (++m.arrived == m.threads) { // the last one wakes the others and goes on
        m.arrived = 0;
        wake(m.waiting);
        return;
    }
    m.waiting.push_back(self);
    stand_still();
}
inline void warp_barrier() {
    fiber *self = m.current;
    warp_state &w = m.warps[self->warp];
    if (++w.arrived == w.lanes) {
        w.arrived = 0;
        m.at_warp -= (unsigned)w.waiting.size();
        wake(w.waiting);
        return;
    }
    w.waiting.push_back(self);
    m.at_warp++;
    stand_still();
}
// Two buffers taken in turn: a lane can write for the next shuffle while another still reads from this one.
template <class T> inline T shuffle(T value, unsigned from_lane) {
    static_assert(sizeof(T) <= 8, "shuffles move up to 8 bytes");
    fiber *self = m.current;
    uint64_t *buffer = m.warps[self->warp].exchange[self->shuffles++ % 2];
    memcpy(&buffer[self->lane], &value, sizeof(T));
    warp_barrier();
    T result;
    memcpy(&result, &buffer[from_lane % WARP], sizeof(T));
    return result;
}

} // namespace emulation

#define LAUNCH(kernel, grid, block, shared_bytes, ...)                                                                           \
    emulation::launch(#kernel, grid, block, shared_bytes, [&] { kernel(__VA_ARGS__); })
#define DYN_SHARED(type, name) type *name = (type *)emulation::m.shared

#define threadIdx (emulation::m.current->where)
#define blockIdx (emulation::m.block_index)
#define blockDim (emulation::m.block)
#define gridDim (emulation::m.grid)

static inline void __syncthreads() { emulation::block_barrier(); }
static inline void __syncwarp() { emulation::warp_barrier(); }
template <class T> static inline T __shfl_xor_sync(unsigned, T value, int mask) {
    return emulation::shuffle(value, emulation::m.current->lane ^ (unsigned)mask);
}
template <class T> static inline T __shfl_sync(unsigned, T value, int lane) { return emulation::shuffle(value, (unsigned)lane); }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }

#endif
#endif
