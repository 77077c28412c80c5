// Communication of a build without MPI: one rank, whose transfers are copies to itself. Refuses to start as one of several ranks.
#include "../comm.h"
#include "launch.h" // defines: launch_is_single
#include <unistd.h>

enum { MAX_PENDING = 64 }; // as in comm_mpi.c, so that a program that runs here also runs there

struct comm {
    comm_kind kind;
    int pending;
};

static comm *world;                       // NULL before comm_init and after comm_finalize
static comm_counters counters[COMM_KINDS]; // a single rank sends nothing: always 0

void comm_abort(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fflush(stdout);
    fprintf(stderr, "rank 0: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    _exit(EXIT_FAILED); // as host_alloc
}

bool comm_init(int *argc, char ***argv, error_text *error) {
    (void)argc, (void)argv;
    if (!launch_is_single("this build has no MPI (MPI=0); build with MPI=1, or start one rank", error)) {
        // One message is enough: ranks other than 0 sleep before they return. mpirun takes a second to end them once rank 0 has exited;
        // where no launcher ends them, they print the message too. Each launcher has its own name for the rank's number.
        const char *names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID"};
        for (int i = 0; i < 4; i++)
            if (getenv(names[i]) != NULL && strcmp(getenv(names[i]), "0") != 0) {
                sleep(3);
                break;
            }
        return false;
    }
    world = HOST_NEW(comm, 1);
    world->kind = COMM_CONTROL;
    return true;
}

bool comm_use_deterministic(error_text *error) { // there are no sums
    (void)error;
    return true;
}
void comm_finalize(void) {
    free(world);
    world = NULL;
}

comm *comm_world(void) { return world; }
comm *comm_machine(void) { return world; }

comm *comm_split(comm *parent, int colour, int key, comm_kind kind) {
    (void)parent, (void)key;
    if (colour < 0) return NULL;
    comm *group = HOST_NEW(comm, 1);
    group->kind = kind;
    return group;
}
void comm_free(comm *group) {
    if (group != NULL && group->pending > 0)
        comm_abort("%s: comm_free with %d unfinished transfers", comm_kind_name(group->kind), group->pending);
    free(group);
}
int comm_rank(const comm *group) {
    (void)group;
    return 0;
}
int comm_size(const comm *group) {
    (void)group;
    return 1;
}
comm_kind comm_kind_of(const comm *group) { return group->kind; }
int comm_world_rank(const comm *group, int rank) {
    (void)group;
    return rank;
}

static void start(comm *group, void *to, const void *from, size_t bytes) {
    if (group->pending == MAX_PENDING)
        comm_abort("%s: %d transfers are already in flight, which is the limit", comm_kind_name(group->kind), MAX_PENDING);
    group->pending++;
    if (bytes > 0 && to != from) device_copy(to, from, bytes); // device memory, on any device
}

void comm_sendrecv_start(comm *group, const void *send, size_t send_bytes, int to, void *recv, size_t recv_bytes, int from) {
    (void)recv_bytes;
    if (to != 0 || from != 0) comm_abort("%s sendrecv: to rank %d, from rank %d, of one rank", comm_kind_name(group->kind), to, from);
    start(group, recv, send, send_bytes);
}
void comm_alltoall_start(comm *group, const void *send, void *recv, size_t bytes_per_rank) { start(group, recv, send, bytes_per_rank); }
void comm_allgather_start(comm *group, const void *send, void *recv, size_t bytes_per_rank) { start(group, recv, send, bytes_per_rank); }
size_t comm_reduce_scatter_scratch(int ranks, size_t count_per_rank) { return (size_t)(ranks - 1) * count_per_rank * sizeof(float); }
void comm_reduce_scatter_start(comm *group, const float *send, float *recv, size_t count_per_rank, void *scratch) {
    (void)scratch;
    start(group, recv, send, count_per_rank * sizeof(float));
}

void comm_finish(comm *group) {
    if (group->pending == 0) comm_abort("%s: comm_finish without a started transfer", comm_kind_name(group->kind));
    group->pending--;
}
int comm_pending(const comm *group) { return group->pending; }

void comm_sum_double(comm *group, double *values, int count) { (void)group, (void)values, (void)count; }
void comm_max_double(comm *group, double *values, int count) { (void)group, (void)values, (void)count; }
void comm_sum_int64(comm *group, int64_t *values, int count) { (void)group, (void)values, (void)count; }
void comm_broadcast(comm *group, void *host_data, size_t bytes, int root) { (void)group, (void)host_data, (void)bytes, (void)root; }
void comm_barrier(comm *group) { (void)group; }
bool comm_agree(comm *group, error_text *error) {
    (void)group;
    return error->text[0] == '\0';
}
bool comm_agree_on_files(comm *group, error_text *error) { return comm_agree(group, error); }

double comm_wait_at_least(double seconds) {
    (void)seconds;
    return 0;
}

comm_counters comm_count(comm_kind kind) { return counters[kind]; }
void comm_count_reset(void) {}

void comm_test_delay(int max_microseconds, uint64_t seed) { (void)max_microseconds, (void)seed; } // nothing here can be late
void comm_test_piece_limit(size_t bytes) { (void)bytes; }
