// make DEVICE=emulated SANITIZE=races: a race detector for the emulated kernels. With -fsanitize=thread the compiler calls one of the
// functions at the end of this file before every memory access. They replace ThreadSanitizer's and know CUDA's ordering rules instead of
// POSIX threads'. (A memcpy of more than 16 bytes is not seen; no kernel has one.)
//
// Two accesses to the same bytes in one launch, at least one of them a write, are a race unless
//     one thread does both, or
//     a __syncthreads of their block lies between them, or
//     a __syncwarp of their warp lies between them (a shuffle or an instruction of tensor cores orders no memory).
// Nor may a block read shared memory that it has not written. So blocks may share nothing that one of them writes. A copy_async may write
// at any time from its start to its wait. Only this order counts, not when the emulation happened to run the threads: one run stands for
// every run on a GPU with the same input.
// The first race ends the program. Of the reads since the last write three are remembered, from different threads and warps.
#include "emulation.h"

// test/fake_cuda.c has this: it is told of all but shared memory, and checks against the transfers in flight instead of other threads.
extern "C" void emulation_touched(const void *at, size_t bytes, bool writes) __attribute__((weak));

#include <dlfcn.h>
#include <unordered_map>

namespace emulation {

// Which thread touched a place, and how many barriers it had passed. block == 0: nobody.
struct access {
    uint32_t block, thread;
    uint32_t block_barriers, warp_barriers;
};
struct place {
    uint32_t block;         // of shared memory: the block that used it last
    access write, reads[3]; // the last ones; reads: by any thread, by another thread of that warp, by another warp
};
constexpr uintptr_t GRAIN = 2, PAGE = 1024; // bytes of a place, of a page
struct page {
    uint64_t launch;
    place places[PAGE / GRAIN];
};
// The page of an address, empty when this launch has not touched it.
static page *page_of(uintptr_t at) {
    static std::unordered_map<uintptr_t, page *> pages;
    static struct {
        uintptr_t number;
        page *p;
    } recent[256];
    uintptr_t number = at / PAGE;
    auto &entry = recent[number % 256];
    if (entry.p == nullptr || entry.number != number) {
        page *&known = pages[number];
        if (known == nullptr) known = new page();
        entry = {number, known};
    }
    if (entry.p->launch != m.launches) {
        memset((void *)entry.p, 0, sizeof *entry.p);
        entry.p->launch = m.launches;
    }
    return entry.p;
}

static bool ordered(const access &before, const access &now) {
    if (before.block == 0) return true;
    if (before.block != now.block) return false;
    return before.thread == now.thread || before.block_barriers < now.block_barriers ||
           (before.thread / WARP == now.thread / WARP && before.warp_barriers < now.warp_barriers);
}
static const char *access_text(char (&text)[128], const access &a, bool writes) {
    snprintf(text, sizeof text, "block %u, thread %u %s (after %u __syncthreads, %u __syncwarp)", a.block - 1, a.thread,
             writes ? "writes" : "reads", a.block_barriers, a.warp_barriers);
    return text;
}
[[noreturn]] static void report(uintptr_t at, const access &before, bool wrote, const access &now, bool writes, const void *code) {
    char first[128], second[128];
    Dl_info in;
    uintptr_t offset = at - (uintptr_t)m.shared;
    const char *one = before.block == 0 ? "nobody has written it" : access_text(first, before, wrote);
    const char *other = access_text(second, now, writes);
    fprintf(stderr, "emulation: race in %s at %s%#zx: %s; %s", m.kernel, offset < m.shared_bytes ? "shared memory + " : "",
            (size_t)(offset < m.shared_bytes ? offset : at), one, other);
    if (code != nullptr && dladdr(code, &in) != 0)
        fprintf(stderr, "; addr2line -e %s %#zx", in.dli_fname, (size_t)((uintptr_t)code - (uintptr_t)in.dli_fbase));
    fprintf(stderr, "\n");
    abort();
}

static void check_order(uintptr_t begin, size_t bytes, bool writes, bool shared, const void *code) {
    fiber *self = m.current;
    access now = {(uint32_t)m.block_number, self->warp * WARP + self->lane, m.barriers, m.warps[self->warp].barriers};
    page *p = nullptr;
    for (uintptr_t at = begin / GRAIN * GRAIN; at < begin + bytes; at += GRAIN) {
        if (p == nullptr || at % PAGE == 0) p = page_of(at);
        place &x = p->places[at % PAGE / GRAIN];
        if (shared && x.block != now.block) { // left over from another block
            memset((void *)&x, 0, sizeof x);
            x.block = now.block;
        }
        if (shared && !writes && x.write.block == 0) report(at, x.write, true, now, writes, code);
        if (!ordered(x.write, now)) report(at, x.write, true, now, writes, code);
        if (writes) {
            for (const access &read : x.reads)
                if (!ordered(read, now)) report(at, read, false, now, writes, code);
            x.write = now;
            memset((void *)x.reads, 0, sizeof x.reads);
            continue;
        }
        const access &last = x.reads[0];
        bool of_another_block = x.reads[2].block != 0 && x.reads[2].block != now.block; // kept: no later write can be ordered after it
        if (last.block != now.block || last.thread / WARP != now.thread / WARP) x.reads[2] = of_another_block ? x.reads[2] : last;
        else if (last.thread != now.thread) x.reads[1] = last;
        x.reads[0] = now;
    }
}
// Inline: most accesses end here.
static inline void touch_from(const void *memory, size_t bytes, bool writes, const void *code) {
    bool shared = (uintptr_t)memory - (uintptr_t)m.shared < m.shared_bytes;
    if (emulation_touched == nullptr) check_order((uintptr_t)memory, bytes, writes, shared, code);
    else if (!shared) emulation_touched(memory, bytes, writes);
}
void touch(const void *at, size_t bytes, bool writes) { touch_from(at, bytes, writes, nullptr); }
// Not checked: the thread's own stack, and the emulation's state.
static inline void of_kernel(const void *memory, size_t bytes, bool writes, const void *code) {
    uintptr_t at = (uintptr_t)memory;
    if (!m.in_kernel || at - (uintptr_t)m.current->stack < STACK_BYTES || at - (uintptr_t)m.current < sizeof *m.current ||
        at - (uintptr_t)&m < sizeof m)
        return;
    touch_from(memory, bytes, writes, code);
}

} // namespace emulation

#define ACCESS(name, bytes, writes)                                                                                              \
    extern "C" void __tsan_##name(void *at);                                                                                     \
    void __tsan_##name(void *at) { emulation::of_kernel(at, bytes, writes, __builtin_return_address(0)); }
#define ACCESSES(bytes)                                                                                                          \
    ACCESS(read##bytes, bytes, false)                                                                                            \
    ACCESS(write##bytes, bytes, true)
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
#undef ACCESS
#define ACCESS(name, bytes, writes)                                                                                              \
    extern "C" void __tsan_unaligned_##name(void *at);                                                                           \
    void __tsan_unaligned_##name(void *at) { emulation::of_kernel(at, bytes, writes, __builtin_return_address(0)); }
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
extern "C" void __tsan_read_range(void *at, size_t bytes);
extern "C" void __tsan_write_range(void *at, size_t bytes);
extern "C" void __tsan_init(void);
void __tsan_read_range(void *at, size_t bytes) { emulation::of_kernel(at, bytes, false, __builtin_return_address(0)); }
void __tsan_write_range(void *at, size_t bytes) { emulation::of_kernel(at, bytes, true, __builtin_return_address(0)); }
void __tsan_init(void) {}
