// The whole test framework: CHECK and TEST_SKIP count, test_finish reports. A test program is one C file; its first line says how it runs:
//     // ranks: 8            mpirun -np 8 (1 = no mpirun), and no other number
//     // ranks: up to 8      mpirun -np 8; with fewer it tests what they can
// Every check counts once per rank; a failing check prints what it saw (at most 20 per rank) and the program exits 1.
#ifndef TEST_H
#define TEST_H

#include "../common.h"
#include "../device/comm.h"
#include "../device/device.h"

// SANITIZE=1: a case costs ten times as much, and most cases of a long product use memory in the same way. Such products are thinned: every
// value of every factor still occurs, but not every combination. The plain run covers those.
#ifdef __SANITIZE_ADDRESS__
enum { TEST_SANITIZED = 1 };
#else
enum { TEST_SANITIZED = 0 };
#endif

// A reference of the test's own, which would take half of a sanitized program's time.
#define NOT_SANITIZED __attribute__((no_sanitize("address"), no_sanitize("undefined")))

static int64_t test_passed, test_failed, test_skipped;

static inline void test_fail_print(const char *file, int line, const char *format, ...) PRINTF_LIKE(3, 4);
static inline void test_fail_print(const char *file, int line, const char *format, ...) {
    if (test_failed > 20) return;
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    printf("FAILED %s:%d: %s\n", file, line, text);
    fflush(stdout);
}
// CHECK(condition, "what was seen, with %d values", ...)
#define CHECK(condition, ...)                                                                                                    \
    do {                                                                                                                         \
        if (condition) {                                                                                                         \
            test_passed++;                                                                                                       \
        } else {                                                                                                                 \
            test_failed++;                                                                                                       \
            test_fail_print(__FILE__, __LINE__, __VA_ARGS__);                                                                    \
        }                                                                                                                        \
    } while (0)
// TEST_SKIP("what cannot be checked here, and why, with %d values", ...): counted, so that nobody takes it for checked.
#define TEST_SKIP(...)                                                                                                           \
    do {                                                                                                                         \
        test_skipped++;                                                                                                          \
        printf("skip ");                                                                                                         \
        printf(__VA_ARGS__);                                                                                                     \
        printf("\n");                                                                                                            \
        fflush(stdout);                                                                                                          \
    } while (0)

// Starts communication and a device of one thread per rank; all ranks call. Exits with a message if either does not start, or if the number
// of ranks is not that of the test's first line (TEST_RANKS, which the Makefile reads there).
static inline comm *test_start(int *argc, char ***argv) {
    error_text error = {"", 0};
    if (!comm_init(argc, argv, &error) || !device_start(1, &error)) {
        fprintf(stderr, "error: %s\n", error.text);
        exit(EXIT_USER_ERROR);
    }
#ifdef TEST_RANKS
    if (comm_size(comm_world()) != TEST_RANKS) {
        if (comm_rank(comm_world()) == 0)
            fprintf(stderr, "error: runs on %d ranks, not on %d: mpirun -np %d %s\n", TEST_RANKS, comm_size(comm_world()),
                    TEST_RANKS, (*argv)[0]);
        exit(EXIT_USER_ERROR);
    }
#endif
    return comm_world();
}

// Prints "<name>: N passed, N failed" (, N skipped) over all ranks of `group` (NULL: this process alone) and returns the exit status.
static inline int test_finish(const char *name, comm *group) {
    int64_t counts[3] = {test_passed, test_failed, test_skipped};
    if (group != NULL) comm_sum_int64(group, counts, 3);
    if (group == NULL || comm_rank(group) == 0) {
        printf("%s: %lld passed, %lld failed", name, (long long)counts[0], (long long)counts[1]);
        if (counts[2] > 0) printf(", %lld skipped", (long long)counts[2]);
        printf("\n");
        fflush(stdout);
    }
    if (counts[0] + counts[1] == 0) return EXIT_FAILED; // a test that checks nothing is a failure
    return counts[1] == 0 ? EXIT_OK : EXIT_FAILED;
}

// The larger of two errors; one that is not a number is infinite.
static inline double test_worse(double worst, double error) { return error <= worst ? worst : isnan(error) ? INFINITY : error; }

// splitmix64: the hash from which op_init_normal and stochastic rounding draw, written once more than on each device.
static inline uint64_t test_mix(uint64_t z) {
    z += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}
// A number from -1 to 1 that depends on seed and index alone, so that every rank makes the same tensors.
static inline double test_random(uint64_t seed, uint64_t index) {
    uint64_t z = seed * 0x9E3779B97F4A7C15ull + index + 0x632BE59BD9B4E019ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    return (double)(int64_t)z / 9223372036854775808.0;
}
static inline void test_fill(float *x, int64_t n, uint64_t seed, double scale) {
    for (int64_t i = 0; i < n; i++) x[i] = (float)(scale * test_random(seed, (uint64_t)i));
}
// max |a - b| / max |b|; NaN anywhere gives infinity.
static inline double test_difference_double(const float *a, const double *b, int64_t n) {
    double largest = 0, worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - b[i]);
        if (!(d <= 1e300)) return INFINITY;
        if (d > worst) worst = d;
        if (fabs(b[i]) > largest) largest = fabs(b[i]);
    }
    return largest > 0 ? worst / largest : (worst > 0 ? INFINITY : 0);
}
static inline double test_difference(const float *a, const float *b, int64_t n) {
    double *exact = HOST_NEW(double, n), difference;
    for (int64_t i = 0; i < n; i++) exact[i] = b[i];
    difference = test_difference_double(a, exact, n);
    free(exact);
    return difference;
}
// How many rows of x (peers, T) of so many bytes are wrong: from row `first` on they must be whole's, before it untouched (0xff).
static inline int64_t test_wrong_rows(const void *x, const void *whole, int peers, int64_t T, size_t bytes, int64_t first) {
    int64_t wrong = 0;
    for (int64_t row = 0; row < peers * T; row++) {
        const char *found = (const char *)x + (size_t)row * bytes;
        bool untouched = found[0] == (char)0xff && memcmp(found, found + 1, bytes - 1) == 0;
        wrong += !(row % T < first ? untouched : memcmp(found, (const char *)whole + (size_t)row * bytes, bytes) == 0);
    }
    return wrong;
}
static inline bool test_one_line(const char *text) { // as messages must be
    for (const char *at = text; *at != '\0'; at++)
        if ((unsigned char)*at < 32) return false;
    return text[0] != '\0';
}

#endif
