// The communication of the CPU device (device/cpu/comm_mpi.c) with its names prefixed by host_: comm_nccl.c starts from it, and uses it for
// small messages in host memory. See device/comm.h for what each function does.
#ifndef COMM_HOST_H
#define COMM_HOST_H

#include "../comm.h"

typedef struct host_comm host_comm;

bool host_comm_init(int *argc, char ***argv, error_text *error);
void host_comm_finalize(void);
host_comm *host_comm_world(void);
host_comm *host_comm_machine(void);
host_comm *host_comm_split(host_comm *parent, int colour, int key, comm_kind kind);
void host_comm_free(host_comm *group);
int host_comm_rank(const host_comm *group);
int host_comm_size(const host_comm *group);
int host_comm_world_rank(const host_comm *group, int rank);
void host_comm_sum_double(host_comm *group, double *values, int count);
void host_comm_max_double(host_comm *group, double *values, int count);
void host_comm_sum_int64(host_comm *group, int64_t *values, int count);
void host_comm_broadcast(host_comm *group, void *host_data, size_t bytes, int root);
void host_comm_barrier(host_comm *group);
bool host_comm_agree(host_comm *group, error_text *error);
bool host_comm_agree_on_files(host_comm *group, error_text *error);
double host_comm_wait_at_least(double seconds);
comm_counters host_comm_count(comm_kind kind);
void host_comm_count_reset(void);

#endif
