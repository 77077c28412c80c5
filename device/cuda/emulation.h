// One kernel source, two compilers: under nvcc the names below are CUDA's; under g++ this header runs the kernels on the CPU.
//
//     LAUNCH(kernel, grid, block, shared_bytes, arguments...)    kernel<<<grid, block, shared_bytes, compute stream>>>(arguments...)
//     DYN_SHARED(type, name)                                     the block's shared memory; the only kind that kernels may use
//     load_matrices, multiply_add, copy_async...                 tensor cores (mma.sync), async copies to shared memory, wide stores
//
// Under emulation a block's threads are fibers on one host thread. A fiber runs CUDA threads to their end, one after another; when one
// reaches a barrier or a shuffle, its fiber is suspended until all partners have arrived. Errors that it shows and a GPU may hide:
//     a thread that never reaches a barrier its block waits at    "deadlock" with the kernel's name and who waits where, then abort
//     lanes of a warp at a shuffle and at a barrier               "lanes of one warp are at ..."
//     threads at two __syncthreads, lanes at two multiply_add...  "threads are at different instructions" (undefined on a GPU)
//     reading shared memory that nobody has written               NaN: shared memory is filled with NaN before every block
//     a missing barrier                                           threads run in order, so one side reads NaN or an old value;
//                                                                 EMULATION_REVERSE=1 starts blocks and threads from the last, and lets
//                                                                 one warp run far ahead of the others
//     addresses outside a buffer, shared memory included          AddressSanitizer, which knows the fibers' stacks
//     shared memory where an instruction takes global, or global  "an address of ..."
//     a launch that no GPU would take                             "cannot launch" with the limit
//     copies to shared memory used before they were waited for    copies are done as late as allowed; at once with EMULATION_REVERSE=1
//     copies that are never waited for                            "a thread ends before copies ..."
//     unordered accesses to one place, at least one a write       "race" with the kernel's name and both threads, then abort: in the
//                                                                 build SANITIZE=races (races.cc), whatever order they ran in here
// What it cannot show: speed, behaviour on other inputs, and what nvcc makes of the kernels (test/ptx_to_cc.py runs its PTX on the same
// threads). Kernels use full warps only: blocks are multiples of 32 threads, and every lane takes part in a shuffle.
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

// Tensor cores, sm_80 on: see "mma.m16n8k16", "ldmatrix" and "cp.async" in the PTX ISA. All lanes of a warp take part in the first two.
// Loads four 8 x 8 matrices of 16-bit numbers from shared memory. Lane n points to row n % 8 (16 bytes, 16-byte aligned) of matrix n / 8.
// In r[i] it gets row n / 4, columns 2 (n % 4) and the next, of matrix i (TRANSPOSED: of its transpose), the first in the lower half.
template <bool TRANSPOSED> static __device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void *row) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
// d (16, 8) += a (16, 16) b (16, 8), bf16 factors, float sums. With g = lane / 4, t = 2 (lane % 4) a lane holds
//     d: (g, t), (g, t + 1), (g + 8, t), (g + 8, t + 1)
//     a: columns t, t + 1 of (g, 0), (g + 8, 0), (g, 8), (g + 8, 8);  b: rows t, t + 1 of (0, g), (8, g)
static __device__ __forceinline__ void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Starts a copy of BYTES (4 or 16) to shared memory. copy_async_wait waits for all copies of this thread.
template <int BYTES> static __device__ __forceinline__ void copy_async(void *to_shared, const void *from) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to_shared);
    if constexpr (BYTES == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
}
static __device__ __forceinline__ void copy_async_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Makes the copies since the last call a group. copy_async_wait_but waits for this thread's groups but the last `left` ones, 0 to 3.
static __device__ __forceinline__ void copy_async_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
static __device__ __forceinline__ void copy_async_wait_but(int left) { // a constant, where the loop around it is unrolled
    if (left == 3) asm volatile("cp.async.wait_group 3;" ::: "memory");
    else if (left == 2) asm volatile("cp.async.wait_group 2;" ::: "memory");
    else if (left == 1) asm volatile("cp.async.wait_group 1;" ::: "memory");
    else asm volatile("cp.async.wait_group 0;" ::: "memory");
}
// Stores w at `to`, in global memory and aligned to the size of w, with one instruction; nvcc may split an assignment (13.0 for sm_90 did).
static __device__ __forceinline__ void store_words(void *to, const uint32_t (&w)[4]) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory");
}
static __device__ __forceinline__ void store_words(void *to, const uint32_t (&w)[2]) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(w[0]), "r"(w[1]) : "memory");
}
// Prefetches the 128 bytes around an address to the L2 cache.
static __device__ __forceinline__ void prefetch(const void *at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

#else // emulated

#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__) || defined(EMULATION_UCONTEXT) // any CPU; on x86-64 the switch below is 20 times faster
#define EMULATION_PORTABLE_SWITCH 1
#include <ucontext.h>
#endif

#define NOT_SANITIZED __attribute__((no_sanitize("address", "undefined", "thread")))
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

extern "C" void emulation_runs(bool begins) __attribute__((weak)); // test/fake_cuda.c, if linked: told when kernels run

namespace emulation {

constexpr unsigned WARP = 32, MAX_THREADS = 1024;
constexpr size_t MAX_SHARED = 99 * 1024; // of a block on sm_86, 89 and 120, which run what is compiled for our targets
#ifdef __SANITIZE_ADDRESS__
constexpr size_t STACK_BYTES = 512 << 10;
#else
constexpr size_t STACK_BYTES = 64 << 10;
#endif

struct pending_copy {
    void *to;
    const void *from;
    size_t bytes;
    unsigned group;
    bool done;
};
// A stack. The fields from `where` on belong to the CUDA thread that runs on it at the moment.
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
    std::vector<pending_copy> copies; // oldest first
    unsigned groups;                  // of copies, made by this thread
};

struct product_operands {
    float *d;
    const uint32_t *a;
    uint32_t b[2];
};
struct warp_state {
    unsigned lanes, arrived, barriers;
    const char *what; // what the lanes that have arrived wait at
    unsigned line;    // and where it stands, if all must be at the same one
    uint64_t exchange[2][WARP];
    product_operands operands[WARP];
    std::vector<fiber *> waiting;
};

// The launch and its running block; only one block runs at a time. Launches, blocks and barriers are counted for races.cc.
struct machine {
    const char *kernel;
    void (*body)(void *);
    void *arguments;
    dim3 grid, block, block_index;
    uint64_t launches, block_number; // from 1
    unsigned threads, started, ended, arrived, at_warp, barriers;
    unsigned barrier_line; // where the __syncthreads stands that the threads that have arrived wait at
    bool reverse, in_kernel;
    fiber *current;
    fiber scheduler; // starts blocks, and goes on when the last thread has ended
    size_t ready_head; // of the queue
    std::vector<fiber *> idle, waiting, ready;
    warp_state warps[MAX_THREADS / WARP];
    unsigned char *shared;
    size_t shared_bytes;
    const void *scheduler_stack;
    size_t scheduler_stack_bytes;
};
inline machine m;

// While one exists, accesses are the emulation's own, not the kernel's. Those that it makes for the kernel it reports through touch.
struct aside {
    bool before = m.in_kernel;
    aside() { set(false); }
    ~aside() { set(before); }
    // To the compiler the kernel's accesses read nothing (races.cc does, for each): without this it drops what they do not need.
    void set(bool value) {
        m.in_kernel = value;
        __asm__ volatile("" ::: "memory");
    }
};
#ifdef EMULATION_RACES
void touch(const void *at, size_t bytes, bool writes); // races.cc
#else
inline void touch(const void *, size_t, bool) {}
#endif

// ---- switching stacks ----

#ifdef EMULATION_PORTABLE_SWITCH
inline void switch_stacks(fiber *from, fiber *to) { swapcontext(&from->context, &to->context); }
#else
// Pushes the callee-saved registers on the old stack, stores its stack pointer in *save and continues on the stack `to`.
extern "C" void emulation_switch(void **save, void *to);
__asm__(".text\n.weak emulation_switch\n.type emulation_switch,@function\nemulation_switch:\n"
        "    push %rbp\n    push %rbx\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n"
        "    mov %rsp,(%rdi)\n    mov %rsi,%rsp\n"
        "    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbx\n    pop %rbp\n    ret\n"
        ".size emulation_switch,.-emulation_switch\n");
inline void switch_stacks(fiber *from, fiber *to) { emulation_switch(&from->stack_pointer, to->stack_pointer); }
#endif

// AddressSanitizer tracks the bounds of the current stack, so it is told before and after each switch.
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

// ---- threads of a block ----

inline void wake(std::vector<fiber *> &waiting) {
    m.ready.insert(m.ready.end(), waiting.begin(), waiting.end());
    waiting.clear();
}

inline void fiber_main();
inline fiber *fiber_new() {
    fiber *f = new fiber();
    size_t page = (size_t)sysconf(_SC_PAGESIZE); // up to 64 KiB on arm
    void *stack = mmap(nullptr, page + STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) comm_abort("emulation: no memory for the stack of a thread");
    mprotect(stack, page, PROT_NONE); // a thread that needs more stack faults here
    f->stack = (char *)stack + page;
#ifdef EMULATION_PORTABLE_SWITCH
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK_BYTES;
    f->context.uc_link = nullptr;
    makecontext(&f->context, fiber_main, 0);
#else
    static unsigned count = 0; // stacks start at different offsets, or all would compete for the same cache sets
    void **top = (void **)(f->stack + STACK_BYTES - 128 - (count++ % 64) * 192);
    top[6] = (void *)fiber_main; // below it: six registers; past the return address the stack is 8 off 16 bytes, as at a function's entry
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

// Whose turn is next: threads that were woken, then those that are still to start, in the end the scheduler's.
inline fiber *next_fiber() {
    fiber *next;
    if (m.ended == m.threads) return &m.scheduler;
    if (m.ready_head == m.ready.size()) {
        m.ready.clear();
        m.ready_head = 0;
        if (m.started == m.threads) report_deadlock();
        if (m.idle.empty()) return fiber_new();
        next = m.idle.back();
        m.idle.pop_back();
    } else if (m.reverse) { // last woken, first run: one warp runs far ahead, to the block's next barrier
        next = m.ready.back();
        m.ready.pop_back();
    } else { // first woken, first run: the warps keep in step
        next = m.ready[m.ready_head++];
    }
    return next;
}
inline void stand_still() {
    fiber *self = m.current;
    m.current = next_fiber();
    switch_fibers(self, m.current);
}

// What every fiber does: take the block's next thread and run it to its end, until none is left to start; then wait for another block.
inline void fiber_main() {
#ifdef __SANITIZE_ADDRESS__
    bool first = m.scheduler_stack == nullptr; // then it is the scheduler that was left
    __sanitizer_finish_switch_fiber(nullptr, first ? &m.scheduler_stack : nullptr, first ? &m.scheduler_stack_bytes : nullptr);
#endif
    for (;;) {
        fiber *self = m.current;
        while (m.started < m.threads) {
            unsigned t = m.started++;
            if (m.reverse) t = m.threads - 1 - t;
            self->where = dim3(t % m.block.x, t / m.block.x % m.block.y, t / (m.block.x * m.block.y));
            self->lane = t % WARP;
            self->warp = t / WARP;
            self->shuffles = self->groups = 0;
            m.in_kernel = true;
            m.body(m.arguments);
            m.in_kernel = false;
            if (!self->copies.empty()) comm_abort("emulation: %s: a thread ends before copies that it started", m.kernel);
            m.ended++;
        }
        m.idle.push_back(self);
        stand_still();
    }
}

inline void run_block() {
    m.started = m.ended = m.arrived = m.at_warp = m.barriers = 0;
    for (unsigned w = 0; w * WARP < m.threads; w++) {
        m.warps[w].lanes = m.threads - w * WARP < WARP ? m.threads - w * WARP : WARP;
        m.warps[w].arrived = m.warps[w].barriers = 0;
    }
    m.current = &m.scheduler;
    stand_still();
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
    if (strstr(kernel, "_kernel") == nullptr) refuse("a launch goes by the name of its kernel, or nobody knows it in a trace");
    if (m.threads == 0 || m.threads > MAX_THREADS) refuse("a block has 1 to 1024 threads");
    if (m.threads % WARP != 0) refuse("our blocks are whole warps of 32 threads");
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
        refuse("a grid is 1 to 2^31 - 1 blocks in x, 1 to 65535 in y and z");
    if (shared_bytes > MAX_SHARED) refuse("a block has at most 99 KiB of shared memory on the smallest GPUs");
    void *shared = nullptr; // exactly as large as asked for, so that AddressSanitizer sees its end
    if (posix_memalign(&shared, 16, shared_bytes > 0 ? shared_bytes : 1) != 0) refuse("out of memory");
    m.shared = (unsigned char *)shared;
    m.shared_bytes = shared_bytes;
    m.launches++;
    uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    if (emulation_runs != nullptr) emulation_runs(true);
    for (uint64_t i = 0; i < blocks; i++) {
        uint64_t b = m.reverse ? blocks - 1 - i : i;
        m.block_index = dim3((unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y), (unsigned)(b / grid.x / grid.y));
        memset(m.shared, 0xff, shared_bytes); // NaN in every width
        m.block_number = b + 1;
        run_block();
    }
    if (emulation_runs != nullptr) emulation_runs(false);
    free(m.shared);
}

template <class F> inline void launch(const char *kernel, dim3 grid, dim3 block, size_t shared_bytes, F body) {
    launch_blocks(kernel, grid, block, shared_bytes, [](void *f) { (*(F *)f)(); }, &body);
}

// ---- barriers and shuffles ----

inline void touch_copy(const pending_copy &c) {
    touch(c.from, c.bytes, false);
    touch(c.to, c.bytes, true);
}
inline void touch_copies() { // this thread's, in flight: they may write now as well as when they were started
    for (const pending_copy &c : m.current->copies) touch_copy(c);
}
// An instruction that is .aligned in PTX: all threads must be at the same one, or its result is undefined.
[[noreturn]] inline void report_lines(const char *what, unsigned line, unsigned other) {
    comm_abort("emulation: %s: threads are at different instructions, %s in lines %u and %u", m.kernel, what, line, other);
}
inline void block_barrier(unsigned line) { // bar.sync
    aside here;
    if (m.arrived == 0) m.barrier_line = line;
    if (m.barrier_line != line) report_lines("__syncthreads", m.barrier_line, line);
    if (++m.arrived == m.threads) { // the last one wakes the others and goes on
        m.arrived = 0;
        m.barriers++;
        wake(m.waiting);
    } else {
        m.waiting.push_back(m.current);
        stand_still();
    }
    touch_copies();
}
// orders_memory: __syncwarp does; shuffles and tensor cores do not. line: of an .aligned instruction; 0: any one of its kind will do.
inline void warp_barrier(const char *what, bool orders_memory, unsigned line = 0) {
    aside here;
    warp_state &w = m.warps[m.current->warp];
    if (w.arrived > 0 && w.what != what && strcmp(w.what, what) != 0)
        comm_abort("emulation: %s: lanes of one warp are at %s and at %s", m.kernel, w.what, what);
    if (w.arrived > 0 && w.line != line) report_lines(what, w.line, line);
    w.what = what;
    w.line = line;
    if (++w.arrived == w.lanes) {
        w.arrived = 0;
        w.barriers += orders_memory;
        m.at_warp -= (unsigned)w.waiting.size();
        wake(w.waiting);
    } else {
        w.waiting.push_back(m.current);
        m.at_warp++;
        stand_still();
    }
    if (orders_memory) touch_copies();
}
// Two buffers used in turn: a lane can write for the next shuffle while another still reads from this one.
template <class T> inline T shuffle(T value, unsigned from_lane) {
    static_assert(sizeof(T) <= 8, "shuffles move up to 8 bytes");
    aside here;
    fiber *self = m.current;
    uint64_t *buffer = m.warps[self->warp].exchange[self->shuffles++ % 2];
    memcpy(&buffer[self->lane], &value, sizeof(T));
    warp_barrier("a shuffle", false);
    T result;
    memcpy(&result, &buffer[from_lane % WARP], sizeof(T));
    return result;
}

// ---- tensor cores and copies ----

// Their instructions take addresses of one memory alone; with one of the other they would touch some other place.
inline bool is_shared(const void *at) { return (uintptr_t)at - (uintptr_t)m.shared < m.shared_bytes; }
inline void insist_memory(const void *at, bool shared) {
    if (is_shared(at) != shared)
        comm_abort("emulation: %s: an address of %s memory where one of the other is needed", m.kernel, shared ? "global" : "shared");
}
inline void load_matrices(uint32_t (&r)[4], const void *row, bool transposed, unsigned line) {
    aside here;
    fiber *self = m.current;
    uint64_t *rows = m.warps[self->warp].exchange[self->shuffles++ % 2];
    if ((uintptr_t)row % 16 != 0) comm_abort("emulation: %s: a row of a matrix is not on 16 bytes", m.kernel);
    insist_memory(row, true);
    rows[self->lane] = (uint64_t)(uintptr_t)row;
    warp_barrier("load_matrices", false, line);
    for (unsigned i = 0; i < 4; i++) {
        unsigned g = self->lane / 4, t = self->lane % 4 * 2, low, high;
        const uint16_t *first = (const uint16_t *)(uintptr_t)rows[8 * i + (transposed ? t : g)];
        const uint16_t *second = (const uint16_t *)(uintptr_t)rows[8 * i + (transposed ? t + 1 : g)];
        first += transposed ? g : t;
        second += transposed ? g : t + 1;
        touch(first, 2, false); // rows that other lanes passed: not ordered with the latest writes of those lanes
        touch(second, 2, false);
        low = *first;
        high = *second;
        r[i] = low | high << 16;
    }
}
NOT_SANITIZED inline float half_of(uint32_t pair, unsigned half) { // as bf16
    uint32_t bits = half == 0 ? pair << 16 : pair & 0xffff0000u;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
// For all lanes: d (16, 8) += a (16, 16) b (16, 8), a row at a time. The lanes' registers are no buffers that a kernel could miss.
NOT_SANITIZED inline void multiply_add_lanes(const product_operands (&of)[WARP]) {
    typedef float row __attribute__((vector_size(32)));
    float A[16][16];
    row B[16], D[16];
    for (unsigned lane = 0; lane < WARP; lane++) {
        unsigned g = lane / 4, t = lane % 4 * 2;
        for (unsigned half = 0; half < 2; half++) {
            for (unsigned i = 0; i < 4; i++) A[g + i % 2 * 8][t + half + i / 2 * 8] = half_of(of[lane].a[i], half);
            for (unsigned i = 0; i < 2; i++) B[t + half + i * 8][g] = half_of(of[lane].b[i], half);
            for (unsigned i = 0; i < 2; i++) D[g + i * 8][t + half] = of[lane].d[2 * i + half];
        }
    }
    for (unsigned r = 0; r < 16; r++)
        for (unsigned k = 0; k < 16; k++) D[r] += A[r][k] * B[k];
    for (unsigned lane = 0; lane < WARP; lane++)
        for (unsigned i = 0; i < 4; i++) of[lane].d[i] = D[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
}
inline void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, unsigned line) {
    aside here;
    fiber *self = m.current;
    warp_state &w = m.warps[self->warp];
    w.operands[self->lane] = product_operands{d, a, {b0, b1}};
    if (w.arrived + 1 == w.lanes) multiply_add_lanes(w.operands); // the last lane to arrive computes for all of them
    warp_barrier("multiply_add", false, line);
}
inline void finish_copies(size_t count) { // the oldest ones
    aside here;
    std::vector<pending_copy> &copies = m.current->copies;
    for (size_t i = 0; i < count; i++) {
        touch_copy(copies[i]);
        if (!copies[i].done) memcpy(copies[i].to, copies[i].from, copies[i].bytes);
    }
    copies.erase(copies.begin(), copies.begin() + (int64_t)count);
}
inline void copy_async_wait() { finish_copies(m.current->copies.size()); }
inline void copy_async_group() { m.current->groups++; }
inline void copy_async_wait_but(int left) {
    aside here;
    size_t done = 0;
    for (const pending_copy &c : m.current->copies) done += c.group + (unsigned)left < m.current->groups;
    finish_copies(done);
}
inline void copy_async(void *to, const void *from, size_t bytes) { // it may write at once, or at the last moment
    aside here;
    if ((uintptr_t)to % bytes != 0 || (uintptr_t)from % bytes != 0)
        comm_abort("emulation: %s: a copy of %zu bytes is not on %zu bytes", m.kernel, bytes, bytes);
    insist_memory(to, true);
    insist_memory(from, false);
    m.current->copies.push_back(pending_copy{to, from, bytes, m.current->groups, m.reverse});
    touch_copy(m.current->copies.back());
    if (m.reverse) memcpy(to, from, bytes);
}

} // namespace emulation

#define LAUNCH(kernel, grid, block, shared_bytes, ...)                                                                           \
    emulation::launch(#kernel, grid, block, shared_bytes, [&] { kernel(__VA_ARGS__); })
#define DYN_SHARED(type, name) type *name = (type *)emulation::m.shared

#define threadIdx (emulation::m.current->where)
#define blockIdx (emulation::m.block_index)
#define blockDim (emulation::m.block)
#define gridDim (emulation::m.grid)

// line: the caller's
static inline void __syncthreads(unsigned line = __builtin_LINE()) { emulation::block_barrier(line); }
static inline void __syncwarp() { emulation::warp_barrier("__syncwarp", true); }
template <class T> static inline T __shfl_xor_sync(unsigned, T value, int mask) {
    return emulation::shuffle(value, emulation::m.current->lane ^ (unsigned)mask);
}
template <bool TRANSPOSED> static inline void load_matrices(uint32_t (&r)[4], const void *row, unsigned line = __builtin_LINE()) {
    emulation::load_matrices(r, row, TRANSPOSED, line);
}
static inline void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, unsigned line = __builtin_LINE()) {
    emulation::multiply_add(d, a, b0, b1, line);
}
template <int BYTES> static inline void copy_async(void *to_shared, const void *from) { emulation::copy_async(to_shared, from, BYTES); }
static inline void copy_async_wait() { emulation::copy_async_wait(); }
static inline void copy_async_group() { emulation::copy_async_group(); }
static inline void copy_async_wait_but(int left) { emulation::copy_async_wait_but(left); }
template <int N> static inline void store_words(void *to, const uint32_t (&w)[N]) {
    struct alignas(4 * N) words {
        uint32_t w[N];
    } all;
    emulation::insist_memory(to, false);
    memcpy(&all, w, sizeof all);
    *(words *)to = all;
}
static inline void prefetch(const void *at) {
    emulation::aside here; // not an access of the kernel: no thread sees what is read
    (void)*(const volatile char *)at;
}
static inline int min(int a, int b) { return a < b ? a : b; }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }

#endif
#endif
