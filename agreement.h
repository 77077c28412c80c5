// Checks that all ranks of a job have the same command, model and data, and share a file system for what they write together. Several
// machines may not: old copies on one machine's local disk would raise no error and make the result wrong.
// Collective functions: every rank calls, and every rank gets the same answer and message.
#ifndef AGREEMENT_H
#define AGREEMENT_H

#include "device/comm.h" // defines: comm_agree, comm_broadcast, comm_max_double
#include "files.h"       // defines: hash_bytes, file_hash_places, path_exists
#include "options.h"     // defines: option_rows, option_format
#include <time.h>

// False with a message when some rank's number is not rank 0's. what: how the message begins, such as "--train-data: the files".
static inline bool agree_on_number(comm *all, uint64_t mine, const char *what, error_text *error) {
    uint64_t first = mine;
    comm_broadcast(all, &first, sizeof first, 0);
    if (mine != first) error_set(error, "%s differ from rank 0's; every machine needs the same", what);
    return comm_agree(all, error);
}

// Whether all ranks run the same program with the same value of every option. Paths are compared as they are written.
static inline bool agree_on_options(comm *all, const options *o, error_text *error) {
    uint64_t mine[OPTION_ROWS_MAX], first[OPTION_ROWS_MAX];
    char value[OPTION_TEXT_BYTES + 8];
    uint64_t program = HASH_EMPTY;
    struct stat entry; // a program compiled elsewhere may round differently, and replicas of the parameters would drift apart
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &entry) != 0) error_set_errno(error, "/proc/self/exe: cannot be opened");
    else file_hash_places(fd, "/proc/self/exe", (int64_t)entry.st_size, &program, error);
    if (fd >= 0) close(fd);
    if (!comm_agree(all, error) || !agree_on_number(all, program, "the bytes of the train_llama program", error)) return false;
    for (int i = 0; i < OPTION_ROWS; i++) {
        option_format(o, &option_rows[i], value, sizeof value);
        first[i] = mine[i] = hash_bytes(HASH_EMPTY, value, strlen(value));
    }
    comm_broadcast(all, first, sizeof *first * (size_t)OPTION_ROWS, 0);
    for (int i = 0; i < OPTION_ROWS; i++) {
        option_format(o, &option_rows[i], value, sizeof value);
        if (mine[i] != first[i])
            error_set(error, "--%s %s is not what rank 0 was started with; every rank needs the same command",
                      option_rows[i].name, printable(value).text);
    }
    return comm_agree(all, error);
}

// Notes it where ranks differ in NCCL's variables of the environment: two ranks may then divide a transfer in different ways, and wait for
// each other without end. Left out: names of hosts, which ranks that share a GPU have, and what NCCL logs. Collective.
static inline void note_nccl_variables(comm *all) {
    uint64_t mine = 0, first; // a sum: an environment has no order
    for (char **at = environ; *at != NULL; at++)
        if (strncmp(*at, "NCCL_", 5) == 0 && strncmp(*at, "NCCL_HOSTID=", 12) != 0 && strncmp(*at, "NCCL_DEBUG", 10) != 0)
            mine += hash_bytes(HASH_EMPTY, *at, strlen(*at));
    first = mine;
    comm_broadcast(all, &first, sizeof first, 0);
    double other = mine == first ? 0 : comm_rank(all);
    comm_max_double(all, &other, 1);
    if (comm_rank(all) == 0 && other > 0)
        fprintf(stderr, "note: rank %.0f has other NCCL_ variables in its environment than rank 0, so transfers may hang (mpirun passes to "
                        "other machines only those that -x names)\n", other);
}

#define AGREE_MARK "seen-by-all-ranks-" // begins the names of files that live for seconds
// Removes from a folder what agree_on_folder has left there where its run was killed. Younger ones may be of a run that starts now.
static inline void agree_remove_marks(const char *folder) {
    DIR *list = opendir(folder);
    struct stat entry;
    for (struct dirent *at; list != NULL && (at = readdir(list)) != NULL;) {
        path_text path = path_join(folder, at->d_name);
        bool mark = strncmp(at->d_name, AGREE_MARK, strlen(AGREE_MARK)) == 0;
        if (mark && lstat(path.text, &entry) == 0 && entry.st_mtime < time(NULL) - 3600) remove(path.text);
    }
    if (list != NULL) closedir(list);
}
// Opens a folder, from the top of its path down. NFS believes for up to a minute that what was not there, is not; for names in a
// folder that is opened, it asks.
static inline void agree_look_again(const char *folder) {
    path_text parent = path_parent(folder);
    if (strcmp(parent.text, folder) != 0) agree_look_again(parent.text); // else "/" or "."
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) close(fd);
}
// Whether every rank sees a file that rank 0 makes in `folder` (removed before the call returns) and may write there itself. what: how
// messages name the folder, such as "--out DIR".
static inline bool agree_on_folder(comm *all, const char *folder, const char *what, error_text *error) {
    enum { TRIES = 20 }; // 2 s: some network file systems show new files late
    path_text mark = path_join(folder, AGREE_MARK "XXXXXX");
    int fd = -1;
    if (comm_rank(all) == 0) {
        agree_remove_marks(folder);
        fd = mkostemp(mark.text, O_CLOEXEC);
        if (fd < 0) {
            error_set_errno(error, "%s: cannot be written to", what);
            mark.text[0] = '\0'; // nothing to look for
        }
    }
    error_text none = {"", 0};
    comm_agree_on_files(all, &none); // the folder may be slow
    comm_broadcast(all, mark.text, sizeof mark.text, 0);
    agree_look_again(folder);
    bool seen = path_exists(mark.text);
    for (int i = 0; i < TRIES && !seen && mark.text[0] != '\0'; i++) {
        usleep(100000);
        seen = path_exists(mark.text);
    }
    if (!seen && errno != ENOENT && errno != ENOTDIR)
        error_set_errno(error, "%s: a file that rank 0 wrote there cannot be looked up", what);
    if (!seen)
        error_set(error, "%s: a file that rank 0 wrote there is not visible; the folder must be on a file system that all machines share",
                  what);
    if (access(folder, W_OK) != 0) error_set_errno(error, "%s: cannot be written to", what);
    bool ok = comm_agree(all, error);
    if (fd >= 0) {
        close(fd);
        remove(mark.text);
    }
    return ok;
}

#endif
