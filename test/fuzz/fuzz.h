// What the fuzz targets share. A target, fuzz_*.c, defines LLVMFuzzerTestOneInput(data, size), which takes any bytes as a user's file or
// command line. They must give a value or one line of error, never a crash, an exit, a leak or a read outside the file.
// `make fuzz` runs it under libFuzzer (clang), test_fuzz.sh under driver.c (gcc).
#ifndef FUZZ_H
#define FUZZ_H

#include "../../dataloader.h" // defines: TOKEN_*
#include "../../files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// A property that holds for every input. Where it does not, that is a finding, like a crash.
#define MUST(condition, ...)                                                                                                     \
    do {                                                                                                                         \
        if (!(condition)) {                                                                                                      \
            fprintf(stderr, "%s:%d: does not hold: %s: ", __FILE__, __LINE__, #condition);                                       \
            fprintf(stderr, __VA_ARGS__);                                                                                        \
            fprintf(stderr, "\n");                                                                                               \
            abort();                                                                                                             \
        }                                                                                                                        \
    } while (0)

int64_t fuzz_accepted __attribute__((weak)); // inputs of which a target accepted all, so that the last of its checks were reached
// Either ok, or one line that says why not, without control characters from the input.
static inline void must_be_clear(bool ok, const error_text *error) {
    MUST(ok == (error->text[0] == '\0'), "ok %d, message \"%s\"", ok, error->text);
    for (const char *at = error->text; *at != '\0'; at++) MUST((unsigned char)*at >= 32 && *at != 127, "\"%s\"", error->text);
}
static inline error_text no_error(void) {
    error_text error;
    error.text[0] = '\0';
    return error;
}

// A folder of this process, in memory where there is /dev/shm; removed when the process ends.
static char fuzz_folder_path[64];
static inline void fuzz_folder_remove(void) { folder_remove(fuzz_folder_path); }
static inline const char *fuzz_folder(void) {
    if (fuzz_folder_path[0] != '\0') return fuzz_folder_path;
    snprintf(fuzz_folder_path, sizeof fuzz_folder_path, "%s/train_llama_fuzz.XXXXXX", path_is_folder("/dev/shm") ? "/dev/shm" : "/tmp");
    if (mkdtemp(fuzz_folder_path) == NULL) {
        perror(fuzz_folder_path);
        exit(EXIT_FAILED);
    }
    atexit(fuzz_folder_remove);
    return fuzz_folder_path;
}
// Writes a file of exactly these bytes into that folder; returns its path.
static inline path_text fuzz_file(const char *name, const void *data, size_t size) {
    path_text path = path_join(fuzz_folder(), name);
    error_text error = no_error();
    int fd = open(path.text, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    MUST(fd >= 0 && file_pwrite(fd, path.text, data, size, 0, &error), "%s", error.text);
    close(fd);
    return path;
}
// Writes a good token file of uint16 into that folder: tokens 0, 1, ... count - 1, count <= 64.
static inline path_text fuzz_token_file(const char *name, int count) {
    struct {
        int32_t header[TOKEN_HEADER_BYTES / 4];
        uint16_t tokens[64];
    } file;
    memset(&file, 0, sizeof file);
    file.header[0] = TOKEN_MAGIC_16;
    file.header[1] = TOKEN_VERSION_16;
    file.header[2] = count;
    for (int i = 0; i < count; i++) file.tokens[i] = (uint16_t)i;
    return fuzz_file(name, &file, TOKEN_HEADER_BYTES + sizeof(uint16_t) * (size_t)count);
}

#endif
