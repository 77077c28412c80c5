# Launch settings for scripts, which mpirun reads before any rank runs: `source scripts/mpi_env.sh`. Values that are already set stay,
# except the two of OpenBLAS below.
# Settings that a rank can still make for itself are in comm_init (device/cpu/comm_mpi.c), so a plain
# `mpirun -np 8 --oversubscribe ./train_llama` runs well, too.

if [ "$(id -u)" -eq 0 ]; then # mpirun refuses root without both
    export OMPI_ALLOW_RUN_AS_ROOT="${OMPI_ALLOW_RUN_AS_ROOT:-1}" OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="${OMPI_ALLOW_RUN_AS_ROOT_CONFIRM:-1}"
fi
# Allow more ranks than cores (--oversubscribe), and many cores for a rank (--bind-to none): Open MPI 4's names, then Open MPI 5's.
export OMPI_MCA_rmaps_base_oversubscribe="${OMPI_MCA_rmaps_base_oversubscribe:-1}"
export OMPI_MCA_hwloc_base_binding_policy="${OMPI_MCA_hwloc_base_binding_policy:-none}"
export PRTE_MCA_rmaps_default_mapping_policy="${PRTE_MCA_rmaps_default_mapping_policy:-:oversubscribe}"
export PRTE_MCA_hwloc_default_binding_policy="${PRTE_MCA_hwloc_default_binding_policy:-none}"

# These two make OpenBLAS use the kernels or block sizes of another CPU, which halves its speed. It reads them before main.
if [ -n "${OPENBLAS_CORETYPE:-}${OPENBLAS_L2_SIZE:-}" ]; then
    echo "note: unsetting OPENBLAS_CORETYPE=${OPENBLAS_CORETYPE:-} OPENBLAS_L2_SIZE=${OPENBLAS_L2_SIZE:-}," \
        "so that OpenBLAS, or the program (device/cpu/blas.c), chooses for this CPU" >&2
    unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE
fi
