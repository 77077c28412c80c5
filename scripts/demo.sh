#!/usr/bin/env bash
# The first ten minutes: installs what is missing, builds, prepares a real text, and trains a small Llama on 4 ranks with 2D-Attention
# (hp 2 x cp 2) on the CPU. `make demo` runs it. Options after the script's name, such as --trace demo/trace.json, are added to the command;
# to change one of those below, edit a copy.
#   tokens    150 steps x 8 sequences x 512 bytes = 0.6 M of the text's bytes (vocabulary 256)
#   FLOPs     3.0 M parameters: about 1.3e13 in all
#   hardware  2 CPU cores, 1 GB; 2 minutes
set -euo pipefail
case ${1:-} in --help | -h) sed -n '2,/^set -e/s/^#//p' "$0"; exit 0 ;; esac
unset CDPATH # with it, cd may go elsewhere
cd "$(dirname "$0")/.."
scripts/setup.sh
make --no-print-directory DEVICE=cpu build/cpu/train_llama tools
[ -e train_llama ] || ln -sf build/cpu/train_llama train_llama # for the commands after this one; that of another build stays
scripts/prepare_text.sh data/demo
source scripts/mpi_env.sh
mkdir -p demo
echo "--- training: 4 ranks = hp 2 x cp 2 (log: demo/log.jsonl) ---"
mpirun -np 4 build/cpu/train_llama --model tiny --from-scratch --train-data data/demo/train.bin --val-data data/demo/val.bin \
    --seq-len 512 --batch-size 4 --grad-accum 2 --steps 150 --hp 2 --cp 2 --lr 3e-3 --warmup 15 --eval-every 50 --eval-steps 2 \
    --sample-every 150 --sample-tokens 48 --log demo/log.jsonl "$@"
python3 dev/plot.py --terminal --keys loss,val_loss demo/log.jsonl || true
echo "The entropy of single bytes of this text (a model that learns nothing but their frequencies):" \
    "$(cat data/demo/unigram_entropy.txt) nats."
