// text_to_tokens OUT.bin FILE...     any text files, one after the other -> one llm.c token file of bytes (uint16, vocabulary 256).
//
// For models with --model tiny and nano, which read bytes. Prints how many tokens there are and the entropy of single bytes in nats: the
// loss of a model that knows only how often each byte occurs. For real vocabularies: dev/tokenize_text.py.
// An OUT.bin that exists is replaced only if it is a token file, without a loss mask, and none of the inputs.
#include "../dataloader.h" // defines: TOKEN_*, token_file_check

static int fail(const char *out_part, const char *format, const char *name, const char *why) {
    fprintf(stderr, "error: ");
    fprintf(stderr, format, name, why);
    fprintf(stderr, "\n");
    if (out_part != NULL) unlink(out_part);
    return EXIT_USER_ERROR;
}

static bool is_token_file(const char *path) {
    int32_t magic = 0;
    FILE *f = fopen(path, "rb");
    bool read = f != NULL && fread(&magic, sizeof magic, 1, f) == 1;
    if (f != NULL) fclose(f);
    return read && (magic == TOKEN_MAGIC_16 || magic == TOKEN_MAGIC_32);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: %s OUT.bin FILE...\nwrites the bytes of the files as one token file (uint16, vocabulary 256)\n", argv[0]);
        return EXIT_USER_ERROR;
    }
    enum { BLOCK = 1 << 16 };
    static unsigned char text[BLOCK];
    static uint16_t tokens[BLOCK];
    int64_t counts[256] = {0}, total = 0, reported = 0;
    char part[4096];
    struct stat entry;
    if (stat(argv[1], &entry) == 0 && !S_ISREG(entry.st_mode)) return fail(NULL, "%s: %s", argv[1], "already exists and is not a file");
    if (path_exists(argv[1]) && !is_token_file(argv[1]))
        return fail(NULL, "%s: %s", argv[1], "exists and is not a token file; the first argument is the file to write");
    if (snprintf(part, sizeof part, "%s.mask", argv[1]) < (int)sizeof part && path_exists(part))
        return fail(NULL, "%s: %s", part, "the loss mask of other tokens would be taken for these tokens'; remove it");
    if (snprintf(part, sizeof part, "%s.part", argv[1]) >= (int)sizeof part)
        return fail(NULL, "%.60s...: %s", argv[1], "the name is too long");
    for (int i = 2; i < argc; i++) // as files, whatever their names
        if (path_leads_to_same(argv[i], argv[1]) || path_leads_to_same(argv[i], part))
            return fail(NULL, "%s: %s", argv[i], "is the file to write, or its .part, and an input");
    FILE *out = fopen(part, "wb"); // renamed when it is whole
    if (out == NULL) return fail(NULL, "%s: %s", part, strerror(errno));
    int32_t header[TOKEN_HEADER_BYTES / 4] = {TOKEN_MAGIC_16, TOKEN_VERSION_16, 0};
    if (fwrite(header, 1, sizeof header, out) != sizeof header) return fail(part, "%s: %s", part, strerror(errno));

    for (int i = 2; i < argc; i++) {
        FILE *in = fopen(argv[i], "rb");
        if (in == NULL) return fail(part, "%s: %s", argv[i], strerror(errno));
        size_t n;
        errno = 0;
        while ((n = fread(text, 1, BLOCK, in)) > 0) {
            for (size_t k = 0; k < n; k++) {
                tokens[k] = text[k];
                counts[text[k]]++;
            }
            if (fwrite(tokens, sizeof tokens[0], n, out) != n) return fail(part, "%s: %s", part, strerror(errno));
            total += (int64_t)n;
            if (total > INT32_MAX) return fail(part, "%s: %s", argv[i], "more than 2147483647 tokens in one file; write several files");
            if (total - reported >= 100000000) {
                reported = total;
                fprintf(stderr, "%lld M tokens, in %s\n", (long long)(total / 1000000), argv[i]);
            }
        }
        if (ferror(in)) return fail(part, "%s: %s", argv[i], strerror(errno));
        fclose(in);
    }
    if (total == 0) return fail(part, "%s: %s", argv[1], "the input files contain no text");
    header[2] = (int32_t)total;
    if (fseek(out, 0, SEEK_SET) != 0 || fwrite(header, 1, sizeof header, out) != sizeof header || fclose(out) != 0)
        return fail(part, "%s: %s", part, strerror(errno));
    if (rename(part, argv[1]) != 0) return fail(part, "%s: %s", argv[1], strerror(errno));

    token_file file;
    memset(&file, 0, sizeof file);
    error_text error = {"", 0};
    if (!token_file_check(argv[1], &file, &error) || file.count != total) return fail(NULL, "%s%s", error.text, "");
    double entropy = 0;
    for (int b = 0; b < 256; b++)
        if (counts[b] > 0) entropy -= (double)counts[b] / (double)total * log((double)counts[b] / (double)total);
    printf("%s: %lld tokens (bytes), entropy of single bytes %.4f nats\n", argv[1], (long long)total, entropy);
    return EXIT_OK;
}
