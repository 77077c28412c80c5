#!/usr/bin/env bash
# Llama-3-8B to a context of 1M tokens, on 4 nodes of 8 H100 80 GB with 8 NICs of 400 Gb/s.
#
#   tokens    16.8 M a step (16 sequences of 1048576), 8.39 G in 500 steps
#   FLOPs     7.30e+21 by the model's count (causal attention half, recompute not counted)
#   rope      theta 3.23e+08 = 8e6 (S / 65536)^(4/3): ProLong's values for this model, 8e6 for 64K, 1.28e8 for 512K; ROPE_THETA
#             overrides. Others: "NTK-aware" scaling 6.91e+07; Gradient's models have 2.07e8 for 256K, 1.06e9 for 512K, 2.80e9 for 1M.
#   documents attention stays within a document, which begins with token 128000 (<|begin_of_text|>); DOCUMENTS='' lets them see each other
#   grid      dp 2 x hp 8 x cp 2; ZeRO 8/8/32; recompute selective
#   memory    52.8 GiB of a GPU by the dry run, 23 GiB of host memory a node, 22 of them for the state that is being saved
#   expected  TGS 527, MFU 46.4 %, 994 s a step, 138.1 h in all: predicted by --plan for the cluster h100, whose
#             figures are 6 measured, 8 datasheet, 15 estimate. No such run was measured. For whole sequences: documents take less time.
#
#   one machine, or an allocation that mpirun knows:  MODEL=Meta-Llama-3-8B DATA='data/long*.bin' scripts/run_llama3_8b_1m.sh
#   Slurm:                                            MODEL=... DATA=... sbatch scripts/run_llama3_8b_1m.sh
#   on 8 nodes, with more dp:                      MODEL=... DATA=... NODES=8 scripts/..., or sbatch --nodes=8 scripts/...
# MODEL is a Hugging Face folder, DATA are token files; docs/finetune.md has every step before and after. Options after the script's name,
# such as --export DIR, are added to the command; to change one of those below, edit a copy. LAUNCH=show prints the command, to be pasted,
# and starts nothing. States go to OUT (default llama3-8b-1m). A run that ends early continues from the newest state: this script makes
# up to 20 attempts, one right after the other; Ctrl-C ends them. After the end of an allocation, which Slurm announces by SIGUSR1 a step
# and 10 minutes ahead (give sbatch a --time), give the same command again.
# Made by dev/plan_tables.py from the plan; test/test_plan.sh compares.
#SBATCH --job-name=llama3-8b-1m
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=USR1@1620
set -euo pipefail
case ${1:-} in --help | -h) sed -n '2,/^# Made by/s/^#//p' "$0"; exit 0 ;; esac
unset CDPATH # with it, cd may go elsewhere
cd "$(dirname "$0")/.."
[ -e train_llama.cu ] || cd "${SLURM_SUBMIT_DIR:-.}" # sbatch runs a copy, which lies elsewhere
out=${OUT:-llama3-8b-1m}
launcher='srun --mpi=pmix --ntasks-per-node=8'
if [ -z "${SLURM_JOB_ID:-}" ]; then # to other machines mpirun passes only the variables that -x names
    launcher="mpirun -np $((8 * ${NODES:-4})) --map-by ppr:8:node --bind-to none"
    for name in ${!FI_@} ${!NCCL_@} ${!TRAIN_LLAMA_@} ${!UCX_@}; do launcher+=" -x $name"; done
fi
show() { printf '%q ' $launcher "$@" && echo; }
if [ -z "${MODEL:-}" ] || [ -z "${DATA:-}" ]; then
    echo "error: MODEL must be a Hugging Face folder of Llama-3-8B, and DATA token files, such as 'data/long*.bin' (--help says more)" >&2
    exit 2
fi
if [ -z "${LAUNCH:-}" ] && [ ! -x train_llama ]; then
    echo "error: $PWD has no ./train_llama; make DEVICE=cuda builds it" >&2
    exit 2
fi

trap 'exit 130' INT
for attempt in {1..20}; do
    status=0
    ${LAUNCH:-$launcher} ./train_llama --model "$MODEL" --train-data "$DATA" \
        --seq-len 1M --batch-size 1 --global-batch 16 --steps 500 \
        --hp 8 --cp 2 --inner-ring 1 --placement head-first --zero-params 8 --zero-grads 8 --zero-optim 32 --recompute selective \
        --rope-theta "${ROPE_THETA:-3.23e+08}" --lr 2e-5 --lr-schedule cosine --warmup 20 --weight-decay 0.1 --cluster h100 \
        ${DOCUMENTS---document-begin 128000} \
        --log "${out%/}.jsonl" --out "$out" --save-every 5 --resume "$@" || status=$?
    if [ $status -eq 0 ] || [ $status -eq 2 ]; then exit $status; fi # 0: done, or stopped by a signal; 2: another attempt would not help
    echo "attempt $attempt ended with status $status" >&2
    sleep "${PAUSE:-10}"
done
exit $status
