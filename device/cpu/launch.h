// Whether a launcher (mpirun, srun) started this process as one of several ranks.
#ifndef LAUNCH_H
#define LAUNCH_H

#include "../../common.h"

// For a process that knows of no other rank: false with a message when a launcher started several. They would all train
// the same and overwrite each other's files. `why` ends the message: the likely reason, and what to do.
static inline bool launch_is_single(const char *why, error_text *error) {
    // Slurm: only a step (srun) counts. A batch script is a single process, whatever SLURM_NTASKS says.
    static const struct {
        const char *launcher, *ranks;
    } known[] = {
        {"Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE"},
        {"the mpirun of MPICH or Intel MPI", "PMI_SIZE"},
        {"the mpirun of MVAPICH", "MV2_COMM_WORLD_SIZE"},
        {"srun", "SLURM_STEP_NUM_TASKS"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const char *value = getenv(known[i].ranks);
        long ranks = value != NULL ? strtol(value, NULL, 10) : 1;
        if (ranks > 1)
            return error_set(error, "%s started %ld ranks, but each runs as if it were alone: %s", known[i].launcher, ranks, why);
        if (i == 0 && value != NULL) return true; // this mpirun may be in a step of several tasks: srun --ntasks=8 --pty bash
    }
    return true;
}

#endif
