// Makes OpenBLAS use kernels for this CPU. It chooses them by the CPU's model number, before main, and takes its oldest, those of Prescott
// (SSE3), for a model that is newer than the library: 0.3.21 (Debian 12) on Intel's Emerald Rapids, which then multiplies matrices at a
// fifth of its speed. The choice can be made only by OPENBLAS_CORETYPE, before the library is loaded. So the program starts itself anew,
// here, while nothing has begun: MPI allows no exec later. A value that the user has set stays.
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cblas.h>

#if defined(__x86_64__) && defined(__GLIBC__) // which passes the arguments to constructors
__attribute__((constructor)) static void blas_choose_kernels(int argc, char **argv) {
    (void)argc;
    if (getenv("OPENBLAS_CORETYPE") != NULL || strcmp(openblas_get_corename(), "Prescott") != 0) return;
    __builtin_cpu_init(); // constructors of libgcc may run later
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (!avx2 || setenv("OPENBLAS_CORETYPE", avx512 ? "SkylakeX" : "Haswell", 1) != 0) return;
    char program[4096]; // by its path, whose last part is its name among the processes
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = '\0';
    execv(program, argv); // where it fails, the program goes on, slower
    unsetenv("OPENBLAS_CORETYPE");
}
#endif
