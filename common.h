// Small things every file uses: memory that cannot fail silently, integer helpers, user errors.
#ifndef COMMON_H
#define COMMON_H

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TRAIN_LLAMA_VERSION "0.1.0"

#ifdef __cplusplus
#define RESTRICT __restrict__
#define NO_RETURN [[noreturn]]
#else
#define RESTRICT restrict
#define NO_RETURN _Noreturn
#endif

#ifdef __CUDACC__ // nvcc: what is so marked is called by kernels, too
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif

#ifdef __GNUC__
#define PRINTF_LIKE(format_at, args_at) __attribute__((format(printf, format_at, args_at)))
#else
#define PRINTF_LIKE(format_at, args_at)
#endif

// Exit statuses that a script which starts runs can rely on. 2: another attempt would not help (an error of the user, divergence).
enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USER_ERROR = 2 };

// The message of a user error: what is wrong and which values are legal, in one line.
// Functions that can fail take `error_text *error` and return false; the first message wins.
typedef struct {
    char text[1024]; // "" = no error
    int number;      // errno of the system call that failed; 0: none did; or ERROR_STOPPED
} error_text;
enum { ERROR_STOPPED = -1 }; // a signal ends the run, which is no failure

// Stores a message, with ": " and `suffix` behind it if that is not "", unless one is stored already.
static inline void error_store(error_text *error, int number, const char *suffix, const char *format, va_list args) {
    if (error->text[0] != '\0') return;
    vsnprintf(error->text, sizeof error->text, format, args);
    size_t length = strlen(error->text);
    if (suffix[0] != '\0') snprintf(error->text + length, sizeof error->text - length, ": %s", suffix);
    for (char *at = error->text; *at != '\0'; at++) // one line, whatever the names of files
        if ((unsigned char)*at < 32 || *at == 127) *at = '?';
    error->number = number;
}
// The three always return false, so that callers can `return error_set(...)`.
PRINTF_LIKE(2, 3) static inline bool error_set(error_text *error, const char *format, ...) {
    va_list args;
    va_start(args, format);
    error_store(error, 0, "", format, args);
    va_end(args);
    return false;
}
// The same where a system call has failed: what errno says is appended.
PRINTF_LIKE(2, 3) static inline bool error_set_errno(error_text *error, const char *format, ...) {
    int number = errno;
    va_list args;
    va_start(args, format);
    error_store(error, number, strerror(number), format, args);
    va_end(args);
    return false;
}
// The same where part of the work has failed: what it said, `why`, is appended.
PRINTF_LIKE(3, 4) static inline bool error_set_why(error_text *error, const error_text *why, const char *format, ...) {
    va_list args;
    va_start(args, format);
    error_store(error, why->number, why->text, format, args);
    va_end(args);
    return false;
}
// Cuts off the folder with which a message may begin, for one that has named it already.
static inline void error_cut_folder(error_text *error, const char *folder) {
    size_t n = strlen(folder);
    char *rest = strncmp(error->text, folder, n) == 0 ? error->text + n : NULL;
    if (rest == NULL || (*rest != '/' && strncmp(rest, ": ", 2) != 0)) return;
    rest += *rest == '/' ? 1 : 2;
    memmove(error->text, rest, strlen(rest) + 1);
}
// Whether the cause may be gone at another attempt: a disk or a network that does not answer, a full disk, a lack of memory, a lock.
static inline bool error_may_pass(const error_text *error) {
    static const int numbers[] = {EIO, EINTR, ESTALE, ETIMEDOUT, EWOULDBLOCK, ENOSPC, EDQUOT, EFBIG, ENOMEM, EMFILE, ENFILE,
                                  EHOSTDOWN, EHOSTUNREACH, ENOTCONN, ECONNRESET, EREMOTEIO};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (error->number == numbers[i]) return true;
    return false;
}

static HOST_DEVICE inline int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static HOST_DEVICE inline int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t round_up(int64_t a, int64_t multiple) { return ceil_div(a, multiple) * multiple; }
static HOST_DEVICE inline float float_of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static HOST_DEVICE inline uint32_t bits_of_float(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
// bf16 is the upper half of a float. Rounds to nearest, ties to even; a NaN stays a NaN. Without branches, for vector code.
static HOST_DEVICE inline float float_of_bf16(uint16_t h) { return float_of_bits((uint32_t)h << 16); }
static HOST_DEVICE inline uint16_t bf16_of_float(float x) {
    uint32_t bits = bits_of_float(x), high = bits >> 16;
    uint32_t nan = (high & 0x7f) != 0 ? high : high | 0x40, rounded = (bits + 0x7fffu + (high & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}
static HOST_DEVICE inline uint64_t mix_bits(uint64_t z) { // 64 well mixed bits of a counter (the finaliser of splitmix64)
    z += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}
static inline const char *plural(int64_t n) { return n == 1 ? "" : "s"; } // the end of the word behind n
static inline int64_t gcd_i64(int64_t a, int64_t b) { return b == 0 ? a : gcd_i64(b, a % b); }

// Host memory for set-up, zeroed. Ends the process with a message when there is none; the caller frees.
static inline void *host_alloc(size_t bytes) {
    void *p = calloc(1, bytes > 0 ? bytes : 1);
    if (p == NULL) {
        fprintf(stderr, "error: out of host memory: %zu bytes asked for\n", bytes);
        fflush(stdout);
        _exit(EXIT_FAILED); // not exit: it takes libraries apart, in which another thread may be at work (training_state.h)
    }
    return p;
}
#define HOST_NEW(type, count) ((type *)host_alloc(sizeof(type) * (size_t)(count)))
static inline char *text_copy(const char *text) { // the caller frees
    size_t bytes = strlen(text) + 1;
    return (char *)memcpy(host_alloc(bytes), text, bytes);
}

// Whether a word stands in a list such as " one two ".
static inline bool word_listed(const char *list, const char *word) {
    char spaced[64];
    int n = snprintf(spaced, sizeof spaced, " %s ", word);
    return n < (int)sizeof spaced && strchr(word, ' ') == NULL && strstr(list, spaced) != NULL;
}

// Bytes of the UTF-8 character with which `text` (left bytes, 1 or more) begins; 0: with none.
static inline int utf8_length(const char *text, int64_t left) {
    const uint8_t *at = (const uint8_t *)text;
    int length = at[0] < 0x80 ? 1 : at[0] < 0xC2 ? 0 : at[0] < 0xE0 ? 2 : at[0] < 0xF0 ? 3 : at[0] < 0xF5 ? 4 : 0;
    if (length > left) return 0;
    for (int i = 1; i < length; i++)
        if ((at[i] & 0xC0) != 0x80) return 0;
    if ((at[0] == 0xE0 && at[1] < 0xA0) || (at[0] == 0xF0 && at[1] < 0x90)) return 0; // too long for its number
    if ((at[0] == 0xED && at[1] >= 0xA0) || (at[0] == 0xF4 && at[1] >= 0x90)) return 0; // half a surrogate pair, above U+10FFFF
    return length;
}

// Texts by value, for use inside an expression: printable(name).text.
typedef struct {
    char text[96];
} short_text;
typedef struct {
    char text[256];
} list_text;

// A copy of foreign text that is safe inside a one-line message: control characters become '?', long text is cut.
static inline short_text printable(const char *s) {
    short_text t;
    size_t n = 0;
    for (; s[n] != '\0' && n < sizeof t.text - 4; n++) t.text[n] = (unsigned char)s[n] < 32 || s[n] == 127 ? '?' : s[n];
    if (s[n] != '\0') {
        while (n > 0 && ((unsigned char)s[n] & 0xC0) == 0x80) n--; // do not cut inside a UTF-8 character
        memcpy(t.text + n, "...", 3);
        n += 3;
    }
    t.text[n] = '\0';
    return t;
}

// Hours, minutes and seconds, such as 1:02:03.
static inline short_text duration_text(double seconds) {
    short_text t;
    int64_t s = (int64_t)(seconds + 0.5);
    snprintf(t.text, sizeof t.text, "%lld:%02lld:%02lld", (long long)(s / 3600), (long long)(s / 60 % 60), (long long)(s % 60));
    return t;
}
// Such as 1.5 GiB.
static inline short_text bytes_text(double bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    short_text t;
    int u = 0;
    for (; u < 4 && bytes >= 1024; u++) bytes /= 1024;
    snprintf(t.text, sizeof t.text, u == 0 ? "%.0f %s" : "%.1f %s", bytes, units[u]);
    return t;
}

// Bytes of memory of this machine, or the limit of this process's control groups if that is lower (containers, Slurm's --mem; cgroup v1 and
// v2). root: "", or in tests a folder that holds proc and sys.
static inline size_t machine_memory(const char *root) {
    unsigned long long least = (unsigned long long)sysconf(_SC_PHYS_PAGES) * (unsigned long long)sysconf(_SC_PAGESIZE), limit;
    char line[4096], path[8192];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *groups = fopen(path, "r");
    while (groups != NULL && fgets(line, sizeof line, groups) != NULL) { // "0::/a/b" is version 2, "4:memory:/a/b" version 1
        line[strcspn(line, "\n")] = '\0';
        char *v1 = strstr(line, ":memory:"), *v2 = strncmp(line, "0::", 3) == 0 ? line + 3 : NULL;
        char *group = v1 != NULL ? v1 + strlen(":memory:") : v2;
        while (group != NULL) { // the group and its ancestors
            snprintf(path, sizeof path, "%s/sys/fs/cgroup%s%s/%s", root, v1 != NULL ? "/memory" : "", group,
                     v1 != NULL ? "memory.limit_in_bytes" : "memory.max");
            FILE *f = fopen(path, "r");
            if (f != NULL && fscanf(f, "%llu", &limit) == 1 && limit < least) least = limit; // "max": no limit
            if (f != NULL) fclose(f);
            char *last = strrchr(group, '/');
            if (last == NULL) break;
            *last = '\0';
        }
    }
    if (groups != NULL) fclose(groups);
    return (size_t)least;
}

// What the ranks of this machine may take of it together. The rest is for the system, and what programs take beside what they plan.
static inline size_t machine_memory_usable(void) { return machine_memory("") / 100 * 95; }

#endif
