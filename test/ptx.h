// What the C++ that ptx_to_cc.py generates is made of: the results of instructions, as the PTX ISA defines them, and memory access.
// Threads, barriers, shuffles and tensor cores are the emulation's.
#ifndef PTX_H
#define PTX_H

#define DEVICE_EMULATED 1
#include "../device/cuda/emulation.h"

#include <cmath>
#include <type_traits>

// A kernel by its name in PTX; arguments[i] points to its i-th parameter. All kernels of a program are in one list.
struct ptx_kernel {
    const char *name;
    void (*body)(void **arguments);
    unsigned most_threads, threads; // per block: the most that it accepts; the most that it was launched with
    ptx_kernel *next;
    static inline ptx_kernel *first;
    ptx_kernel(const char *name_, void (*body_)(void **), unsigned most_threads_)
        : name(name_), body(body_), most_threads(most_threads_), threads(0), next(first) { first = this; }
};

namespace emulation {

// ---- registers: an instruction sees the low bits of an operand in its own type, and extends what it writes to the register's width ----

template <class T, class X> static inline T as(X x) {
    static_assert(sizeof(T) <= sizeof(X), "an operand is narrower than its instruction");
    if constexpr (std::is_same_v<T, X>) return x;
    if constexpr (sizeof(T) < sizeof(X)) return (T)(uint64_t)x; // integers only
    T t;
    memcpy(&t, &x, sizeof t);
    return t;
}
template <class R, class X> static inline void put(R &r, X x) {
    static_assert(sizeof(X) <= sizeof(R), "a result is wider than its register");
    if constexpr (sizeof(X) < sizeof(R)) r = (R)x;
    else memcpy(&r, &x, sizeof r);
}

// ---- arithmetic ----

template <class T> static inline T least(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) return std::fmin(a, b);
    else return a < b ? a : b;
}
template <class T> static inline T most(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) return std::fmax(a, b);
    else return a > b ? a : b;
}
static inline bool inverse(bool a) { return !a; }
template <class T> static inline T inverse(T a) { return (T)~a; }
template <class T> static inline bool differ(T a, T b) { return a < b || a > b; }
static inline uint32_t high(uint32_t a, uint32_t b) { return (uint32_t)((uint64_t)a * b >> 32); }
static inline int32_t high(int32_t a, int32_t b) { return (int32_t)((int64_t)a * b >> 32); }
static inline uint64_t high(uint64_t a, uint64_t b) { return (uint64_t)((unsigned __int128)a * b >> 64); }
template <class T> static inline T left(T a, uint32_t by) { return by >= 8 * sizeof(T) ? (T)0 : (T)(a << by); }
template <class T> static inline T right(T a, uint32_t by) {
    constexpr uint32_t LAST = 8 * sizeof(T) - 1;
    if (by <= LAST) return (T)(a >> by);
    return std::is_signed_v<T> ? (T)(a >> LAST) : (T)0;
}
template <class T> static inline T insert(T bits, T into, uint32_t at, uint32_t count) { // bfi
    T mask = left((T)(left((T)1, count) - 1), at);
    return (left(bits, at) & mask) | (into & ~mask);
}
static inline uint32_t add_carry(uint32_t a, uint32_t b, unsigned in, unsigned &out) {
    uint64_t sum = (uint64_t)a + b + in;
    out = (unsigned)(sum >> 32);
    return (uint32_t)sum;
}
static inline uint32_t sub_borrow(uint32_t a, uint32_t b, unsigned in, unsigned &out) {
    uint64_t difference = (uint64_t)a - b - in;
    out = (unsigned)(difference >> 63);
    return (uint32_t)difference;
}
static inline float fma_down(float a, float b, float c) { // rounded towards -infinity; where a b + c is exact in double, or nearly
    float nearest = std::fma(a, b, c);
    return (double)nearest > std::fma((double)a, (double)b, (double)c) ? std::nextafter(nearest, -INFINITY) : nearest;
}
static inline float normal(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; } // ftz
static inline float saturated(float x) { return x > 0 ? std::fmin(x, 1.0f) : 0.0f; }
static inline double rcp_rough(double x) { // takes and returns the upper 32 bits alone
    double inverse = 1 / as<double>(as<uint64_t>(x) & 0xffffffff00000000u);
    return as<double>(as<uint64_t>(inverse) & 0xffffffff00000000u);
}
static inline float rcp_rough(float x) { return normal(1 / normal(x)); }
static inline uint16_t to_bf16(float x) {
    uint32_t bits = as<uint32_t>(x);
    return std::isnan(x) ? 0x7fff : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// ---- memory: addresses are the host's; those of shared memory are offsets from the block's first byte ----

[[noreturn]] static inline void memory_fault(const char *what, uint64_t at) {
    comm_abort("ptx: %s: %s at %#llx", m.kernel, what, (unsigned long long)at);
}
static inline uint64_t aligned(uint64_t at, size_t bytes) {
    if (at % bytes != 0) memory_fault("an access that is not on its own size", at);
    return at;
}
static inline uint64_t shared_at(uint32_t at, size_t bytes) {
    if ((size_t)at + bytes > m.shared_bytes) memory_fault("an access beyond the shared memory", at);
    return (uint64_t)(uintptr_t)m.shared + at;
}
static inline uint64_t global_at(uint64_t at) {
    insist_memory((const void *)(uintptr_t)at, false);
    return at;
}
static inline uint64_t from_shared(uint64_t at) { return (uint64_t)(uintptr_t)m.shared + at; }
static inline uint64_t to_shared(uint64_t at) { return at - (uint64_t)(uintptr_t)m.shared; }
static inline uint32_t shuffle_xor(uint32_t value, uint32_t mask, uint32_t within, uint32_t lanes) {
    if (within != 31 || lanes != 0xffffffff) comm_abort("ptx: %s: a shuffle of a part of a warp", m.kernel);
    return shuffle(value, m.current->lane ^ mask);
}
static inline void touched(uint64_t at) { // prefetch
    aside here;
    (void)*(const volatile char *)(uintptr_t)at;
}

} // namespace emulation

#endif
