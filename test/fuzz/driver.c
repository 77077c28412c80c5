// Runs a fuzz target without clang: on every file of a corpus, then on a fixed number of mutations of them, the same on every machine.
// Built with AddressSanitizer and UndefinedBehaviorSanitizer. An input that causes a finding is written to a file, whose name is printed.
//     fuzz_TARGET MUTATIONS FILE...      the files of the corpus; to repeat a finding: fuzz_TARGET 0 crash-fuzz_TARGET
#include "fuzz.h"
#include <sanitizer/common_interface_defs.h>
#include <signal.h>

enum { LARGEST = 8192, SECONDS = 20 }; // bytes of a mutated input; time limit of one input

static const uint8_t *input;
static size_t input_bytes;
static bool done;
static char crash_name[256];

static void report(void) { // at every exit
    fuzz_folder_remove();
    if (done || input == NULL) return;
    int fd = open(crash_name, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || write(fd, input, input_bytes) != (ssize_t)input_bytes) return;
    close(fd);
    fprintf(stderr, "the input is in %s\n", crash_name);
    done = true;
}
static void report_signal(int number) {
    fprintf(stderr, "%s\n", number == SIGALRM ? "takes too long" : "aborted");
    report();
    _exit(EXIT_FAILED);
}
static void report_exit(void) {
    if (!done) fprintf(stderr, "the target called exit\n");
    bool failed = !done;
    report();
    if (failed) _exit(EXIT_FAILED);
}

static uint64_t state = 0x9E3779B97F4A7C15ull; // xorshift64
static size_t draw(size_t n) {                 // 0 to n-1
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return n == 0 ? 0 : (size_t)(state >> 11) % n;
}

// Makes one change to the n bytes at x, which has room for LARGEST, and returns the new length. other: another input to take pieces from.
static size_t mutate(uint8_t *x, size_t n, const uint8_t *other, size_t other_bytes) {
    static const char *const pieces[] = {"0", "-1", "9999999999999999999", "1e400", "0.5", "null", "{}", "[", "]", "\"", ",", "\n", "--",
                                         "=", "\xff\xff\xff\xff", "\x7f", "\x80"};
    const size_t count = sizeof pieces / sizeof pieces[0];
    size_t at = draw(n + 1), length = 1 + draw(draw(4) == 0 ? 64 : 8);
    switch (draw(8)) {
    case 0:
        if (at < n) x[at] ^= (uint8_t)(1 << draw(8));
        return n;
    case 1:
        if (at < n) x[at] = (uint8_t)draw(256);
        return n;
    case 2: return draw(8) == 0 ? at : n; // cut the end off
    case 3:                               // remove a piece
        length = at + length > n ? n - at : length;
        memmove(x + at, x + at + length, n - at - length);
        return n - length;
    case 4: // a digit becomes another
        while (at < n && (x[at] < '0' || x[at] > '9')) at++;
        if (at < n) x[at] = (uint8_t)('0' + draw(10));
        return n;
    case 5: { // insert one of the pieces
        const char *piece = pieces[draw(count)];
        length = strlen(piece);
        if (n + length > LARGEST) return n;
        memmove(x + at + length, x + at, n - at);
        memcpy(x + at, piece, length);
        return n + length;
    }
    case 6: { // overwrite with a piece of the other input
        size_t from = draw(other_bytes + 1);
        length = from + length > other_bytes ? other_bytes - from : length;
        if (at + length > n) length = n - at;
        memcpy(x + at, other + from, length);
        return n;
    }
    default: { // insert a copy of a part of the input itself
        size_t from = draw(n + 1);
        uint8_t part[64];
        length = from + length > n ? n - from : length;
        if (n + length > LARGEST) return n;
        memcpy(part, x + from, length);
        memmove(x + at + length, x + at, n - at);
        memcpy(x + at, part, length);
        return n + length;
    }
    }
}

static void run(const uint8_t *data, size_t size) {
    uint8_t *exact = (uint8_t *)malloc(size > 0 ? size : 1); // of exactly this size, so that a read past its end is found
    memcpy(exact, data, size);
    input = exact;
    input_bytes = size;
    alarm(SECONDS);
    LLVMFuzzerTestOneInput(exact, size);
    alarm(0);
    input = NULL;
    free(exact);
}

int main(int argc, char **argv) {
    error_text error = no_error();
    int64_t files = argc - 2, mutations = argc < 3 ? -1 : strtoll(argv[1], NULL, 10);
    if (mutations < 0) {
        fprintf(stderr, "usage: %s MUTATIONS FILE...\n", argv[0]);
        return EXIT_USER_ERROR;
    }
    const char *name = strrchr(argv[0], '/') != NULL ? strrchr(argv[0], '/') + 1 : argv[0];
    snprintf(crash_name, sizeof crash_name, "crash-%s", name);
    fuzz_folder(); // its removal is registered first and so runs last
    atexit(report_exit);
    __sanitizer_set_death_callback(report);
    signal(SIGABRT, report_signal);
    signal(SIGALRM, report_signal);

    uint8_t **texts = HOST_NEW(uint8_t *, files), *changed = HOST_NEW(uint8_t, LARGEST);
    size_t *sizes = HOST_NEW(size_t, files);
    int64_t goods = 0;
    for (int64_t i = 0; i < files; i++) {
        struct stat entry;
        int fd = open(argv[i + 2], O_RDONLY);
        if (fd < 0 || fstat(fd, &entry) != 0) {
            perror(argv[i + 2]);
            return EXIT_USER_ERROR;
        }
        sizes[i] = (size_t)entry.st_size;
        texts[i] = HOST_NEW(uint8_t, sizes[i]);
        MUST(file_pread(fd, argv[i + 2], texts[i], sizes[i], 0, &error), "%s", error.text);
        close(fd);
        int64_t before = fuzz_accepted;
        run(texts[i], sizes[i]);
        const char *file = strrchr(argv[i + 2], '/') != NULL ? strrchr(argv[i + 2], '/') + 1 : argv[i + 2];
        bool good = strncmp(file, "good", 4) == 0;
        goods += good;
        MUST(!good || fuzz_accepted > before, "%s is refused: what stands behind is not fuzzed", argv[i + 2]);
    }
    MUST(goods > 0 || mutations == 0, "no good file: what stands behind may not be fuzzed");
    for (int64_t i = 0; i < mutations; i++) {
        size_t one = draw((size_t)files), two = draw((size_t)files), size = sizes[one] > LARGEST ? LARGEST : sizes[one];
        memcpy(changed, texts[one], size);
        for (size_t k = 1 + draw(4); k > 0; k--) size = mutate(changed, size, texts[two], sizes[two]);
        run(changed, size);
    }
    for (int64_t i = 0; i < files; i++) free(texts[i]);
    free(texts);
    free(sizes);
    free(changed);
    printf("%s: %lld files and %lld mutations: no finding\n", name, (long long)files, (long long)mutations);
    done = true;
    return EXIT_OK;
}
