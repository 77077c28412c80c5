// Files and folders: reads and writes of whole ranges, folders that appear complete or not at all. Every message names the file.
#ifndef FILES_H
#define FILES_H

#include "common.h"
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

// A path by value; "" when it would be too long: no call opens that.
typedef struct {
    char text[4096];
} path_text;
static inline path_text path_join(const char *folder, const char *name) {
    path_text p;
    int n = snprintf(p.text, sizeof p.text, "%s/%s", folder, name);
    if (n < 0 || n >= (int)sizeof p.text) p.text[0] = '\0';
    return p;
}
static inline bool path_exists(const char *path) { // false with another errno than ENOENT: that cannot be known now
    struct stat entry;
    return lstat(path, &entry) == 0;
}
static inline bool path_is_folder(const char *path) { // false with another errno than ENOENT and ENOTDIR: that cannot be known now
    struct stat entry;
    if (stat(path, &entry) != 0) return false;
    errno = ENOTDIR;
    return S_ISDIR(entry.st_mode);
}
// The parent folder of `path`.
static inline path_text path_parent(const char *path) {
    path_text p;
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    while (n > 0 && path[n - 1] != '/') n--;
    while (n > 1 && path[n - 1] == '/') n--;
    int length = snprintf(p.text, sizeof p.text, "%.*s", n > 0 ? (int)n : 1, n > 0 ? path : ".");
    if (length < 0 || length >= (int)sizeof p.text) p.text[0] = '\0';
    return p;
}
// The last part of `path`: "b" of "a/b/".
static inline path_text path_last(const char *path) {
    path_text p;
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    snprintf(p.text, sizeof p.text, "%.*s", (int)(end - begin), path + begin);
    return p;
}
// `path` without "." parts, doubled slashes, and slashes at its end (with one, a file or a link that leads nowhere is not seen).
static inline path_text path_plain(const char *path) {
    path_text p;
    size_t n = 0;
    if (path[0] == '/') p.text[n++] = '/';
    for (size_t length; path[0] != '\0'; path += length) {
        length = strcspn(path, "/");
        bool none = length == 0 || (length == 1 && path[0] == '.');
        if (length == 0) length = strspn(path, "/");
        if (none || n + length + 2 > sizeof p.text) continue;
        if (n > 0 && p.text[n - 1] != '/') p.text[n++] = '/';
        memcpy(p.text + n, path, length);
        n += length;
    }
    if (n == 0) p.text[n++] = '.';
    p.text[n] = '\0';
    return p;
}
// Where a folder is until it is whole: beside it.
static inline path_text path_unfinished(const char *path) {
    path_text p = path_plain(path);
    size_t n = strlen(p.text);
    snprintf(p.text + n, sizeof p.text - n, ".unfinished");
    return p;
}
// Whether two paths lead to one file (no terminal or pipe) or folder, which exists.
static inline bool path_leads_to_same(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && (S_ISREG(x.st_mode) || S_ISDIR(x.st_mode)) && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}
// Whether two paths are one, whether or not it exists: the same last part in the same folder, or another name of what exists.
static inline bool path_same(const char *a, const char *b) {
    return strcmp(path_plain(a).text, path_plain(b).text) == 0 || path_leads_to_same(a, b) ||
           (path_leads_to_same(path_parent(a).text, path_parent(b).text) && strcmp(path_last(a).text, path_last(b).text) == 0);
}
// Whether `path` lies in `folder`, at any depth; neither need exist.
static inline bool path_within(const char *path, const char *folder) {
    path_text above = path_parent(path);
    if (strcmp(above.text, path) == 0) return false; // "/" or "."
    return path_same(above.text, folder) || path_within(above.text, folder);
}
// Bytes that are free in a folder's file system; infinity where that cannot be known.
static inline double file_system_room(const char *folder) {
    struct statvfs disk;
    return statvfs(folder, &disk) == 0 ? (double)disk.f_bavail * (double)disk.f_frsize : INFINITY;
}

static inline uint64_t hash_mix(uint64_t x) { // a bijection of 64-bit numbers that mixes well (the finaliser of MurmurHash3)
    x ^= x >> 33;
    x *= 0xFF51AFD7ED558CCDull;
    x ^= x >> 33;
    x *= 0xC4CEB9FE1A85EC53ull;
    return x ^ (x >> 33);
}
// FNV-1a, continued from `hash`, so that several pieces can be hashed one after the other. Start from HASH_EMPTY.
#define HASH_EMPTY 0xCBF29CE484222325ull
static inline uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) hash = (hash ^ (uint64_t)((const unsigned char *)bytes)[i]) * 0x100000001B3ull;
    return hash;
}

// Reads all of [offset, offset + bytes) of a file; false with a message.
static inline bool file_pread(int fd, const char *path, void *to, size_t bytes, int64_t offset, error_text *error) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pread(fd, (char *)to + done, bytes - done, (off_t)(offset + (int64_t)done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return error_set_errno(error, "%s: cannot be read at byte %lld", path, (long long)offset);
        if (n == 0)
            return error_set(error, "%s: ends before byte %lld; it has become shorter since it was opened",
                             path, (long long)(offset + (int64_t)done));
        done += (size_t)n;
    }
    return true;
}
// Reads a text file of at most `limit` bytes: NUL-terminated, no NUL inside; the caller frees. NULL with a message without the file's name.
static inline char *file_read_text(const char *path, size_t limit, error_text *error) {
    struct stat entry;
    char *text = NULL;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); // O_NONBLOCK: a pipe is refused, not waited for
    if (fd < 0 || fstat(fd, &entry) != 0) error_set_errno(error, "cannot be opened for reading");
    else if (!S_ISREG(entry.st_mode)) error_set(error, "is not a file");
    else if (entry.st_size == 0) error_set(error, "is empty");
    else if ((size_t)entry.st_size > limit) error_set(error, "is larger than %zu bytes, the limit for such a file", limit);
    else {
        text = HOST_NEW(char, entry.st_size + 1);
        if (file_pread(fd, "its text", text, (size_t)entry.st_size, 0, error) && strlen(text) != (size_t)entry.st_size)
            error_set(error, "contains a NUL byte and is not JSON text");
    }
    if (fd >= 0) close(fd);
    if (error->text[0] == '\0') return text;
    free(text);
    return NULL;
}
// Continues *hash with the file's size and 4 KiB from each of four places, the first and the last bytes among them. Tells regenerated files
// apart for four small reads.
static inline bool file_hash_places(int fd, const char *path, int64_t bytes, uint64_t *hash, error_text *error) {
    enum { PLACE = 4096, PLACES = 4 };
    char place[PLACE];
    size_t n = (size_t)min_i64(PLACE, bytes);
    *hash = hash_bytes(*hash, &bytes, sizeof bytes);
    for (int i = 0; i < PLACES; i++) {
        if (!file_pread(fd, path, place, n, (bytes - (int64_t)n) * i / (PLACES - 1), error)) return false;
        *hash = hash_bytes(*hash, place, n);
    }
    return true;
}
static inline bool file_pwrite(int fd, const char *path, const void *from, size_t bytes, int64_t offset, error_text *error) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pwrite(fd, (const char *)from + done, bytes - done, (off_t)(offset + (int64_t)done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return error_set_errno(error, "%s: cannot be written", path);
        if (n == 0) return error_set(error, "%s: cannot be written: no bytes accepted", path);
        done += (size_t)n;
    }
    return true;
}

// Checks, before long work, that a file can be written, and that one that is there begins as such files do: a slip of the hand must not
// cost a token file, weights or a config.json. Leaves no new file behind. False with a message that begins with the option.
static inline bool file_writable(const char *option, const char *path, const char *begins, error_text *error) {
    struct stat entry, output;
    bool there = stat(path, &entry) == 0;
    if (!there && errno != ENOENT) return error_set_errno(error, "%s %s: cannot be written", option, path);
    bool full = there && S_ISREG(entry.st_mode) && entry.st_size > 0;
    bool new_name = !there && !path_exists(path) && errno == ENOENT; // not: a link to nothing
    if (there && S_ISFIFO(entry.st_mode)) return true; // its reader would take this for the end
    if (there && S_ISREG(entry.st_mode) && fstat(STDOUT_FILENO, &output) == 0 && entry.st_dev == output.st_dev &&
        entry.st_ino == output.st_ino)
        return error_set(error, "%s %s: standard output goes to this file, too, and each would overwrite the other; name another one",
                         option, path);
    FILE *f = fopen(path, full ? "r+" : "a");
    if (f == NULL) return error_set_errno(error, "%s %s: cannot be written", option, path);
    char first[64] = "";
    bool ok = !full || fread(first, 1, sizeof first - 1, f) > 0 || ferror(f) == 0 ||
              error_set_errno(error, "%s %s: cannot be read", option, path);
    bool other = full && strncmp(first, begins, strlen(begins)) != 0;
    fclose(f);
    if (new_name) remove(path);
    return ok && (!other || error_set(error, "%s %s: is a file of another kind, which would be lost; name another one", option, path));
}

// Opens a file to be written, and says in *beside where that is until it is whole: beside one that is there, which a full disk must not
// cost; else, and where `path` is a link or no file, such as /dev/stdout, or its folder takes no file of that name, in its place. NULL,
// with errno: it cannot be opened.
static inline FILE *file_open_beside(const char *path, path_text *beside) {
    struct stat entry;
    int n = snprintf(beside->text, sizeof beside->text, "%s.unfinished", path);
    bool apart = n > 0 && n < (int)sizeof beside->text && lstat(path, &entry) == 0 && S_ISREG(entry.st_mode);
    FILE *f = apart ? fopen(beside->text, "w") : NULL;
    if (f != NULL || (apart && errno != EACCES && errno != EPERM && errno != EROFS && errno != ENAMETOOLONG)) return f;
    snprintf(beside->text, sizeof beside->text, "%s", path);
    return fopen(path, "w");
}
// Closes f, to which the whole file has been written at `beside` (path, or as file_open_beside says; f NULL: it could not be opened), and
// gives it its name. False with a message that begins with the option, if not all of it is there: then what was written is removed.
static inline bool file_finish(const char *option, const char *path, const char *beside, FILE *f, error_text *error) {
    struct stat entry;
    bool ok = (f != NULL && fflush(f) == 0 && ferror(f) == 0) || error_set_errno(error, "%s %s: cannot be written", option, path);
    if (f != NULL && fclose(f) != 0 && ok) ok = error_set_errno(error, "%s %s: cannot be written", option, path);
    if (ok && strcmp(beside, path) != 0 && rename(beside, path) != 0) ok = error_set_errno(error, "%s %s: cannot be written", option, path);
    if (!ok && f != NULL && lstat(beside, &entry) == 0 && S_ISREG(entry.st_mode)) remove(beside); // not: what is no file
    return ok;
}
// Creates or replaces a file with these bytes, which are on disk when the call returns.
static inline bool file_write(const char *path, const void *from, size_t bytes, error_text *error) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return error_set_errno(error, "%s: cannot be created", path);
    bool ok = file_pwrite(fd, path, from, bytes, 0, error);
    if (ok && fsync(fd) != 0) ok = error_set_errno(error, "%s: cannot be written", path);
    if (close(fd) != 0 && ok) ok = error_set_errno(error, "%s: cannot be written", path);
    return ok;
}
// Syncs a folder: the names in it are on disk when the call returns, but in a folder that may not be read, which cannot be synced.
static inline bool folder_sync(const char *path, error_text *error) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == EACCES) return true;
    if (fd < 0) return error_set_errno(error, "%s: cannot be opened", path);
    bool ok = fsync(fd) == 0 || errno == EINVAL; // EINVAL: this file system has no such sync
    if (!ok) error_set_errno(error, "%s: cannot be written", path);
    close(fd);
    return ok;
}
static inline int folder_remove_entry(const char *path, const struct stat *entry, int kind, struct FTW *at) {
    (void)entry;
    (void)kind;
    (void)at;
    return remove(path);
}
// Removes a folder and all in it; links are removed, not followed. A folder that does not exist is no error.
static inline bool folder_remove(const char *path) {
    return nftw(path, folder_remove_entry, 16, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT;
}

// Makes a folder and its missing parents; true when it exists.
static inline bool folder_make(const char *path, error_text *error) {
    path_text parent = path_parent(path);
    if (parent.text[0] != '\0' && !path_exists(parent.text) && !folder_make(parent.text, error)) return false;
    if (mkdir(path, 0777) == 0 || (errno == EEXIST && path_is_folder(path))) return true;
    return error_set_errno(error, "%s: the folder cannot be created", path);
}
// Renames a complete temporary folder to its final name. True: it is whole and on disk under that name. False with a message: it has the
// temporary name, again if need be.
static inline bool folder_publish(const char *temporary, const char *path, error_text *error) {
    if (!folder_sync(temporary, error)) return false;
    if (rename(temporary, path) != 0) return error_set_errno(error, "%s: cannot be renamed to %s", temporary, path);
    if (folder_sync(path_parent(path).text, error)) return true;
    rename(path, temporary);
    return false;
}

#endif
