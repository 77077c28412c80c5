// ranks: 1
// The safetensors reader and writer: every kind of bad file has its message and is never read out of bounds; all dtypes. (F51, F56)
#include "../safetensors.h"
#include "test.h"
#include <signal.h>
#include <sys/resource.h>

static char folder[] = "/tmp/test_safetensors.XXXXXX";

// Makes a file with this header and `data_bytes` zeros after it. length: what the file gives as the header's length; 0: the true one.
static void make_file(const char *name, const char *header, uint64_t length, size_t data_bytes) {
    size_t n = strlen(header), bytes = 8 + n + data_bytes;
    char *text = HOST_NEW(char, bytes);
    if (length == 0) length = n;
    memcpy(text, &length, 8);
    memcpy(text + 8, header, n);
    FILE *f = fopen(path_join(folder, name).text, "wb");
    CHECK(f != NULL && fwrite(text, 1, bytes, f) == bytes && fclose(f) == 0, "%s cannot be made", name);
    free(text);
}
static void expect_refused(const char *what, const char *pattern) {
    error_text error;
    error.text[0] = '\0';
    safetensors s = safetensors_none();
    bool ok = safetensors_open(&s, folder, "model", &error);
    CHECK(!ok && strstr(error.text, pattern) != NULL && strchr(error.text, '\n') == NULL && strstr(error.text, folder) != NULL,
          "%s: expected \"%s\", got %s \"%s\"", what, pattern, ok ? "no error" : "error", error.text);
    CHECK(s.tensors == NULL && s.files == NULL, "%s: not closed", what);
    safetensors_close(&s);
}
static void refuse(const char *what, const char *header, uint64_t length, size_t data_bytes, const char *pattern) {
    make_file("model.safetensors", header, length, data_bytes);
    expect_refused(what, pattern);
}
#define T_A "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}"

static void test_format_errors(void) {
    refuse("header of 2^60 bytes", "{}", (uint64_t)1 << 60, 0, "1152921504606846976 bytes");
    refuse("header of 2^64-1 bytes", "{}", UINT64_MAX, 0, "18446744073709551615 bytes");
    refuse("header of one byte", "{", 0, 0, "has 1 bytes");
    refuse("header longer than the file", "{" T_A "}", 100, 24, "truncated: the header has 100 bytes");
    refuse("header is no JSON", "{" T_A, 0, 24, "not valid JSON at byte");
    refuse("text after the JSON", "{" T_A "} x", 0, 24, "not valid JSON");
    refuse("header is a list", "[1, 2]", 0, 0, "not a JSON object");
    refuse("nested beyond sense", "[[[[[[[[[[[[", 0, 0, "not valid JSON");
    refuse("tensor that is no object", "{\"a\":3}", 0, 0, "not described by an object");
    refuse("no dtype", "{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 0, 4, "has no \"dtype\"");
    refuse("dtype unknown", "{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[4],\"data_offsets\":[0,4]}}", 0, 4,
           "\"F8_E4M3\"; legal values are F32, F16, BF16");
    refuse("dtype a number", "{\"a\":{\"dtype\":32,\"shape\":[1],\"data_offsets\":[0,4]}}", 0, 4, "has no \"dtype\"");
    refuse("no shape", "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 0, 4, "has no \"shape\"");
    refuse("size of -1", "{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 0, 4, "not a whole number");
    refuse("size of 1.5", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}", 0, 4, "not a whole number");
    refuse("sizes whose product overflows", "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}",
           0, 0, "more than 2^53");
    refuse("five sizes", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1],\"data_offsets\":[0,4]}}", 0, 4, "at most 4 dimensions");
    refuse("no offsets", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 0, 4, "no \"data_offsets\"");
    refuse("three offsets", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 0, 4, "no \"data_offsets\"");
    refuse("offsets that are no list", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":{\"b\":0,\"e\":4}}}", 0, 4,
           "no \"data_offsets\"");
    refuse("offset below 0", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 0, 4, "no \"data_offsets\"");
    refuse("offset 1e300", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,1e300]}}", 0, 4, "no \"data_offsets\"");
    refuse("end before begin", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 0, 4, "hold -4 bytes");
    refuse("shape and offsets differ", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,24]}}", 0, 24,
           "hold 24 bytes, but its shape in F32 needs 16");
    refuse("offsets beyond the file",
           "{\"a\":{\"dtype\":\"F32\",\"shape\":[6],\"data_offsets\":[1000000,1000024]}}", 0, 24, "out of range");
    refuse("data truncated", "{" T_A "}", 0, 23, "truncated");
    refuse("data left over", "{" T_A "}", 0, 25, "the last 1 bytes belong to no tensor");
    refuse("overlap", "{" T_A ",\"b\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[20,24]}}", 0, 24, "inside the tensor before it");
    refuse("hole", "{" T_A ",\"b\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[28,32]}}", 0, 32, "the 4 bytes before tensor \"b\"");
    refuse("same name twice", "{" T_A ",\"a\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[24,28]}}", 0, 28,
           "appears twice in the header");
    refuse("same key twice", "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,4]}}", 0, 4,
           "\"dtype\" appears twice");
    refuse("NUL in the header", "{}      ", 9, 1, "NUL byte");
    refuse("control characters in a name", "{\"a\\u0007\\n\":3}", 0, 0, "tensor \"a??\"");
    CHECK(truncate(path_join(folder, "model.safetensors").text, 7) == 0, "truncate");
    expect_refused("file of 7 bytes", "has 7 bytes");
    remove(path_join(folder, "model.safetensors").text);
    expect_refused("no file", "does not exist, nor does model.safetensors.index.json");

    // Every prefix of a good file, and the file with each bit flipped: no crash; the sanitizers watch the reads.
    make_file("good.safetensors",
              "{\"__metadata__\":{\"format\":\"pt\"}," T_A ",\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[24,28]}}", 0, 28);
    char bytes[512];
    FILE *f = fopen(path_join(folder, "good.safetensors").text, "rb");
    size_t n = f == NULL ? 0 : fread(bytes, 1, sizeof bytes, f);
    if (f != NULL) fclose(f);
    int64_t refused = 0;
    int fd = open(path_join(folder, "model.safetensors").text, O_RDWR | O_CREAT, 0600);
    for (size_t i = 0; i < n * 9; i++) {
        error_text error;
        error.text[0] = '\0';
        char changed[512];
        memcpy(changed, bytes, n);
        size_t length = i < n ? i : n;
        if (i >= n) changed[(i - n) / 8] = (char)(changed[(i - n) / 8] ^ (1 << (i - n) % 8));
        CHECK(ftruncate(fd, 0) == 0 && file_pwrite(fd, "model", changed, length, 0, &error), "%s", error.text);
        safetensors s = safetensors_none();
        if (!safetensors_open(&s, folder, "model", &error)) refused++;
        safetensors_close(&s);
    }
    close(fd);
    CHECK(n > 150 && refused > (int64_t)n * 4, "%lld of %zu refused", (long long)refused, n * 9);
    remove(path_join(folder, "model.safetensors").text);
    remove(path_join(folder, "good.safetensors").text);
}

static void refuse_index(const char *what, const char *index, const char *pattern) {
    error_text error;
    error.text[0] = '\0';
    file_write(path_join(folder, "model.safetensors.index.json").text, index, strlen(index), &error);
    expect_refused(what, pattern);
}
static void test_index_errors(void) {
    make_file("x.safetensors", "{" T_A "}", 0, 24);
    make_file("y.safetensors", "{\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 0, 4);
    make_file("z.safetensors", "{" T_A "}", 0, 24);
    refuse_index("index is no JSON", "{\"weight_map\":", "not valid JSON");
    refuse_index("no weight_map", "{\"a\": 1}", "no \"weight_map\"");
    refuse_index("path out of the folder", "{\"weight_map\":{\"a\":\"../x.safetensors\"}}", "must be a plain file name in this folder");
    refuse_index("absolute path", "{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "must be a plain file name in this folder");
    refuse_index("a number for a file", "{\"weight_map\":{\"a\":7}}", "must be a plain file name in this folder");
    refuse_index("no name", "{\"weight_map\":{\"a\":\"\"}}", "must be a plain file name in this folder");
    refuse_index("the folder above", "{\"weight_map\":{\"a\":\"..\"}}", "must be a plain file name in this folder");
    refuse_index("file missing", "{\"weight_map\":{\"a\":\"w.safetensors\"}}", "w.safetensors: cannot be opened");
    refuse_index("tensor in no file", "{\"weight_map\":{\"a\":\"x.safetensors\",\"c\":\"x.safetensors\"}}", "\"c\" is in no file");
    refuse_index("tensor not in the index", "{\"weight_map\":{\"b\":\"y.safetensors\",\"bb\":\"x.safetensors\"}}",
                 "\"a\" is in a file, but not in");
    refuse_index("tensor in the other file", "{\"weight_map\":{\"a\":\"y.safetensors\",\"b\":\"x.safetensors\"}}", "not in the file that");
    refuse_index("tensor in two files", "{\"weight_map\":{\"a\":\"x.safetensors\",\"d\":\"z.safetensors\"}}", "\"a\" is in two files");
    refuse_index("named twice", "{\"weight_map\":{\"a\":\"x.safetensors\",\"a\":\"x.safetensors\"}}", "twice");
    make_file("y.safetensors", "{\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}", 0, 4);
    refuse_index("bad shard", "{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"y.safetensors\"}}", "y.safetensors: tensor \"b\"");
    remove(path_join(folder, "model.safetensors.index.json").text);
    const char *const stems[] = {"model", "optimizer"};
    for (int i = 0; i < 2; i++) { // a model may be there in another form, moments of a state not
        safetensors s = safetensors_none();
        error_text error = {"", 0};
        CHECK(!safetensors_open(&s, folder, stems[i], &error) && strstr(error.text, "does not exist, nor does") != NULL &&
              (strstr(error.text, "pytorch_model.bin") != NULL) == (i == 0), "no %s: %s", stems[i], error.text);
    }
}

// F16 and BF16 widen exactly and come back. Numbers between two neighbours round to the nearest, ties to even.
static void test_numbers(void) {
    int64_t wrong = 0;
    for (uint32_t h = 0; h < 65536; h++) {
        float x = float_of_f16((uint16_t)h), y = float_of_bf16((uint16_t)h);
        int e = (int)(h >> 10 & 31), m = (int)(h & 1023);
        double expected = e == 0 ? ldexp(m, -24) : ldexp(1024 + m, e - 25);
        if (e < 31 && (double)fabsf(x) != expected) wrong++;
        if (e < 31 && (signbit(x) != 0) != (h >> 15 != 0)) wrong++;
        if (e == 31 && (m == 0) != (isinf(x) != 0)) wrong++;
        if (f16_of_float(x) != h || bf16_of_float(y) != h) wrong++; // NaNs too, bit by bit
    }
    CHECK(wrong == 0, "%lld values of 16 bits do not come back", (long long)wrong);
    wrong = 0;
    for (uint32_t i = 0; i < 200000; i++) { // between neighbours h and h + 1: the nearer one; in the middle the even one
        uint32_t h = i * 2654435761u >> 17, b = i * 2246822519u >> 17; // 15 bits
        if (h >= 0x7bff || b >= 0x7f7f) continue;
        double low = float_of_f16((uint16_t)h), high = float_of_f16((uint16_t)(h + 1)), at = test_random(5, i) * 0.5 + 0.5;
        float x = (float)(i % 4 == 0 ? (low + high) / 2 : low + at * (high - low));
        uint32_t nearest = x - low < high - x ? h : x - low > high - x ? h + 1 : h + (h & 1);
        if (f16_of_float(x) != nearest || f16_of_float(-x) != (nearest | 0x8000)) wrong++;
        low = float_of_bf16((uint16_t)b);
        high = float_of_bf16((uint16_t)(b + 1));
        x = (float)(i % 4 == 0 ? (low + high) / 2 : low + at * (high - low));
        nearest = x - low < high - x ? b : x - low > high - x ? b + 1 : b + (b & 1);
        if (bf16_of_float(x) != nearest || bf16_of_float(-x) != (nearest | 0x8000)) wrong++;
    }
    CHECK(wrong == 0, "%lld roundings are wrong", (long long)wrong);
    CHECK(f16_of_float(65519.9f) == 0x7bff && f16_of_float(65520.0f) == 0x7c00 && f16_of_float(1e-8f) == 0, "ends of F16");
    CHECK(bf16_of_float(3.4e38f) == 0x7f80, "top of BF16: %x", bf16_of_float(3.4e38f));
}

static float value_of(int tensor, int64_t i) { return (float)test_random((uint64_t)tensor + 1, (uint64_t)i); }

// What is written reads back: all dtypes, one file and shards, ranges in any order, two writers.
static void test_round_trip(int64_t limit, int files) {
    error_text error;
    error.text[0] = '\0';
    static const int64_t shapes[5][2] = {{300, 7}, {1, 1}, {40000, 2}, {64, 64}, {5, 0}};
    safetensors w = safetensors_none(), second = safetensors_none(), r = safetensors_none();
    for (int k = 0; k < 10; k++) {
        char name[32];
        snprintf(name, sizeof name, "tensor.%d", k);
        safetensors_add(&w, name, (safetensors_dtype)(k % 3), k == 3 ? 1 : 2, shapes[k % 5]);
        safetensors_add(&second, name, (safetensors_dtype)(k % 3), k == 3 ? 1 : 2, shapes[k % 5]);
    }
    remove(path_join(folder, "round.safetensors").text); // of the round before; it would count more than an index
    CHECK(safetensors_lay_out(&w, folder, "round", limit, true, &error), "%s", error.text);
    CHECK(safetensors_lay_out(&second, folder, "round", limit, false, &error), "%s", error.text);
    CHECK(w.file_count == files, "%d files, expected %d", w.file_count, files);
    float *x = HOST_NEW(float, 80000), *y = HOST_NEW(float, 80000);
    for (int k = 0; k < 10; k++) {
        int64_t n = w.tensors[k].count, half = n / 3;
        for (int64_t i = 0; i < n; i++) x[i] = value_of(k, i);
        CHECK(safetensors_write(&second, &second.tensors[k], half, n - half, x + half, &error), "%s", error.text);
        CHECK(safetensors_write(&w, &w.tensors[k], 0, half, x, &error), "%s", error.text);
    }
    CHECK(safetensors_sync(&w, &error) && safetensors_sync(&second, &error), "%s", error.text);
    CHECK(safetensors_open(&r, folder, "round", &error), "%s", error.text);
    int64_t bytes = 0;
    for (int k = 0; k < 10; k++) {
        char name[32];
        snprintf(name, sizeof name, "tensor.%d", k);
        const safetensor *t = safetensors_find(&r, name);
        CHECK(t != NULL && t->count == w.tensors[k].count && t->dims == w.tensors[k].dims, "%s", name);
        if (t == NULL) continue;
        bytes += t->count * (k % 3 == 0 ? 4 : 2);
        int64_t cut = t->count * 2 / 5, wrong = 0;
        CHECK(safetensors_read(&r, t, cut, t->count - cut, y + cut, &error) && safetensors_read(&r, t, 0, cut, y, &error),
              "%s", error.text);
        for (int64_t i = 0; i < t->count; i++) {
            float v = value_of(k, i), e = k % 3 == 0 ? v : k % 3 == 1 ? float_of_f16(f16_of_float(v)) : float_of_bf16(bf16_of_float(v));
            wrong += memcmp(&e, &y[i], 4) != 0;
        }
        CHECK(wrong == 0, "%s: %lld values differ", name, (long long)wrong);
        error_text why;
        why.text[0] = '\0';
        CHECK(!safetensors_read(&r, t, 1, t->count, y, &why) && strstr(why.text, "asked for") != NULL, "read outside: %s", why.text);
        why.text[0] = '\0';
        CHECK(!safetensors_read(&r, t, -1, 1, y, &why), "read before the tensor");
    }
    CHECK(safetensors_bytes(&r) == bytes, "%lld bytes in place of %lld", (long long)safetensors_bytes(&r), (long long)bytes);
    CHECK(safetensors_find(&r, "tensor.10") == NULL, "a tensor that is not there");
    CHECK(error.text[0] == '\0', "%s", error.text);
    float big = 70000.0f;
    CHECK(!safetensors_write(&w, &w.tensors[7], 79999, 1, &big, &error) &&
          strstr(error.text, "element 79999 of \"tensor.7\" is 70000, beyond the largest number of F16") != NULL, "F16: %s", error.text);
    uint64_t before = 0, after = 0; // the hash covers the last bytes of the last file
    error.text[0] = '\0';
    CHECK(safetensors_hash(&r, &before, &error) && safetensors_write(&w, &w.tensors[8], 64 * 64 - 1, 1, &big, &error) &&
          safetensors_hash(&r, &after, &error) && before != after, "%s", error.text);
    if (files > 1) {
        char total[64], *index = file_read_text(path_join(folder, "round.safetensors.index.json").text, CONFIG_BYTES, &error);
        snprintf(total, sizeof total, "\"total_size\":\t%lld\n", (long long)bytes);
        CHECK(index != NULL && strstr(index, total) != NULL, "%s is not in %s", total, index != NULL ? index : error.text);
        free(index);
    }
    for (int i = 0; i < r.file_count; i++) CHECK(truncate(r.files[i].path, 64) == 0, "truncate %s", r.files[i].path);
    for (int k = 0; k < 10; k++) { // every dtype, one chunk and several
        const safetensor *t = &r.tensors[k];
        error.text[0] = '\0';
        bool ok = safetensors_read(&r, t, 0, t->count, y, &error), said = strstr(error.text, "it has become shorter") != NULL;
        CHECK(t->count == 0 ? ok : !ok && said, "%s of a file that has shrunk: \"%s\"", t->name, error.text);
    }
    safetensors_close(&w);
    safetensors_close(&second);
    safetensors_close(&r);
    free(x);
    free(y);
}

// A limit on the size of files: the writer reports it.
static void test_no_space(void) {
    struct rlimit before, small;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 4096;
    setrlimit(RLIMIT_FSIZE, &small);
    error_text error;
    error.text[0] = '\0';
    safetensors w = safetensors_none();
    int64_t shape[2] = {100, 100};
    safetensors_add(&w, "a", DTYPE_F32, 2, shape);
    CHECK(!safetensors_lay_out(&w, folder, "small", 1 << 30, true, &error) && strstr(error.text, "cannot be written") != NULL,
          "%s", error.text);
    // Of 1, 3, 5 KiB, in place and beside: what does not fit is not left there, also not in part, and costs no file.
    for (int k = 0; k < 6; k++) {
        path_text path = path_join(folder, "plan"), beside = path;
        FILE *f = k < 3 ? fopen(path.text, "w") : file_open_beside(path.text, &beside);
        struct stat entry = {0};
        error = (error_text){"", 0};
        fprintf(f, "%*d", 1024 + 2048 * (k % 3), 1);
        bool whole = file_finish("--plan-json", path.text, beside.text, f, &error);
        int64_t bytes = stat(path.text, &entry) == 0 ? (int64_t)entry.st_size : 0;
        CHECK(whole == (k % 3 < 2) && bytes == (whole ? 1024 + 2048 * (k % 3) : k < 3 ? 0 : 3072),
              "file %d: %lld bytes, %s", k, (long long)bytes, error.text);
        CHECK(!path_exists(path_join(folder, "plan.unfinished").text), "file %d is left beside", k);
        CHECK(whole || (error.number == EFBIG && error_may_pass(&error) && strstr(error.text, "--plan-json ") == error.text),
              "%d: %s", error.number, error.text);
    }
    char name[251] = "";
    memset(name, 'n', sizeof name - 1);
    path_text path = path_join(folder, name), beside;
    for (int k = 0; k < 2; k++) { // beside which none can be: in place
        FILE *f = file_open_beside(path.text, &beside);
        error = (error_text){"", 0};
        if (f != NULL) fprintf(f, "%d", k);
        CHECK(file_finish("--plan-json", path.text, beside.text, f, &error), "a long name: %s", error.text);
    }
    setrlimit(RLIMIT_FSIZE, &before);
    safetensors_close(&w);
    error.text[0] = '\0'; // a disk that is full when the data comes: runs and exports then end with status 1, by the number
    CHECK(!file_write("/dev/full", "x", 1, &error) && error.number == ENOSPC &&
          strstr(error.text, "/dev/full: cannot be written: No space left") != NULL, "%s", error.text);
}

// More tensors than there is space for at first, in one file and in several.
static void test_many(int64_t limit) {
    enum { TENSORS = 300 };
    static const int64_t shape[1] = {3};
    error_text error;
    error.text[0] = '\0';
    safetensors w = safetensors_none(), r = safetensors_none();
    char name[32];
    for (int k = 0; k < TENSORS; k++) {
        snprintf(name, sizeof name, "tensor.%d", k);
        safetensors_add(&w, name, DTYPE_F32, 1, shape);
    }
    remove(path_join(folder, "many.safetensors").text);
    CHECK(safetensors_lay_out(&w, folder, "many", limit, true, &error), "%s", error.text);
    for (int k = 0; k < TENSORS; k++) {
        float x[3] = {(float)k, (float)k + 0.25f, (float)k + 0.5f};
        CHECK(safetensors_write(&w, &w.tensors[k], 0, 3, x, &error), "%s", error.text);
    }
    CHECK(safetensors_sync(&w, &error) && safetensors_open(&r, folder, "many", &error) && r.tensor_count == TENSORS, "%s", error.text);
    for (int k = 0; k < TENSORS; k++) {
        snprintf(name, sizeof name, "tensor.%d", k);
        const safetensor *t = safetensors_find(&r, name);
        float x[3] = {0};
        CHECK(t != NULL && safetensors_read(&r, t, 0, 3, x, &error) && x[0] == (float)k && x[2] == (float)k + 0.5f,
              "%s: %g %g, %s", name, x[0], x[2], error.text);
    }
    safetensors_close(&w);
    safetensors_close(&r);
}

int main(int argc, char **argv) {
    (void)argc;
    (void)argv;
    if (mkdtemp(folder) == NULL) return EXIT_FAILED;
    test_format_errors();
    test_index_errors();
    test_numbers();
    test_round_trip(1 << 30, 1);
    test_round_trip(20000, 5);
    test_many(1 << 30);
    test_many(1000);
    test_no_space();
    error_text error;
    error.text[0] = '\0';
    path_text deep = path_join(folder, "a//b/c/");
    CHECK(folder_make(deep.text, &error) && folder_make(deep.text, &error) && path_is_folder(path_join(folder, "a/b/c").text),
          "a folder in folders that are not there: %s", error.text);
    folder_remove(folder);
    return test_finish("test_safetensors", NULL);
}
