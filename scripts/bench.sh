#!/usr/bin/env bash
# Measures ours and the peers side by side on this machine's CPU: `make bench`. Prints tables; benchmarks/cpu.md keeps a copy with hardware.
#   1. operations: linear layers beside the best OpenBLAS rate of the same shapes, attention in % of the measured FMA peak
#   2. a whole training step of a 125M Llama at T 512 and 4096, alternating with PyTorch (python3 with torch, or TORCH_PYTHON=...)
#   3. many ranks on few cores: 8 ranks x 1 thread against 2 ranks x 1 thread, the same work
#   4. import and export of a folder in memory (/dev/shm), beside cp of its file: the rate of the page cache
#   5. how long training waits while its state is saved, beside the copy to host memory that it must wait for
# Takes about 15 minutes on 2 cores. RUNS=n repeats parts 2 and 3 n times (default 3), and part 4 six times as often.
set -euo pipefail
export LC_ALL=C # sort, awk and printf would expect the decimal comma of some languages
case ${1:-} in
"") ;;
--help | -h) sed -n '2,/^set -e/s/^#//p' "$0"; exit 0 ;;
*) echo "error: unknown argument $1; RUNS=n and TORCH_PYTHON=... are given in the environment" >&2; exit 2 ;;
esac
unset CDPATH # with it, cd may go elsewhere
cd "$(dirname "$0")/.."
source scripts/mpi_env.sh
runs=${RUNS:-3}
threads=$(nproc)
make --no-print-directory DEVICE=cpu build/cpu/train_llama tools build/cpu/test/bench_ops
dir=$(mktemp -d)
memory=$(mktemp -d -p /dev/shm)
trap 'rm -rf "$dir" "$memory"' EXIT
python3 - "$dir/data.bin" <<'PY'
import array, random, struct, sys
random.seed(1)
n = 200000
with open(sys.argv[1], "wb") as f:
    f.write(struct.pack("<256i", 20240520, 1, n, *[0] * 253))
    array.array("H", [random.randrange(32000) for _ in range(n)]).tofile(f)
PY
median() { sort -n | awk '{a[NR]=$1} END {print (NR % 2) ? a[(NR+1)/2] : (a[NR/2]+a[NR/2+1])/2}'; }
best() { sort -n | head -1; }
step_ms() { sed -n 's/^step.*| *\([0-9.]*\) ms.*/\1/p' "$1" | tail -n +2 | median; } # the first step warms up
ours() { # ranks threads out option...
    local ranks=$1 n=$2 out=$3
    shift 3
    OMP_NUM_THREADS=$n mpirun -np "$ranks" build/cpu/train_llama --model benchmarks/llama-125m --from-scratch --train-data "$dir/data.bin" \
        --threads "$n" "$@" >"$out" 2>&1 || { tail -5 "$out"; exit 1; }
}

cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)
echo "== $cpu, $threads cores, $(uname -sr), commit $(git rev-parse --short HEAD 2>/dev/null) =="
echo; echo "== 1. operations, 1 rank x $threads threads =="
OMP_NUM_THREADS=$threads build/cpu/test/bench_ops | tee "$dir/ops"

echo; echo "== 2. a training step, fp32, 124.7 M parameters, 1 rank x $threads threads =="
python=${TORCH_PYTHON:-python3}
if "$python" -c 'import torch' 2>/dev/null; then has_torch=1; else
    has_torch=0
    echo "no torch in $python: our side only (pip install -r dev/requirements.txt)"
fi
for T in 512 4096; do
    steps=$([ $T -le 512 ] && echo 8 || echo 4)
    : >"$dir/ours"; : >"$dir/torch"
    for ((i = 0; i < runs; i++)); do
        ours 1 "$threads" "$dir/out" --seq-len $T --steps $steps --recompute none
        step_ms "$dir/out" >>"$dir/ours"
        if [ $has_torch = 1 ]; then
            "$python" dev/bench_torch.py --tokens $T --steps $steps --threads "$threads" >"$dir/out" 2>&1 || { tail -5 "$dir/out"; exit 1; }
            sed -n 's/.*median \([0-9.]*\) ms.*/\1/p' "$dir/out" | tail -1 >>"$dir/torch"
        fi
    done
    a=$(median <"$dir/ours")
    printf 'T %-5d train_llama %8.1f ms %7.1f tokens/s' $T "$a" "$(awk "BEGIN {print 1e3 * $T / $a}")"
    if [ $has_torch = 1 ]; then
        b=$(median <"$dir/torch")
        printf '   PyTorch %8.1f ms %7.1f tokens/s   ratio %.2f' \
            "$b" "$(awk "BEGIN {print 1e3 * $T / $b}")" "$(awk "BEGIN {print $b / $a}")"
    fi
    printf '   (runs: %s)\n' "$(paste -sd' ' "$dir/ours")"
done

echo; echo "== 3. 8 ranks x 1 thread against 2 ranks x 1 thread, T 4096 =="
: >"$dir/two"; : >"$dir/eight"
for ((i = 0; i < runs; i++)); do
    ours 2 1 "$dir/out" --seq-len 4096 --steps 3 --hp 2 --recompute none
    step_ms "$dir/out" >>"$dir/two"
    ours 8 1 "$dir/out" --seq-len 4096 --steps 3 --hp 2 --cp 4 --zero-params full --recompute none
    step_ms "$dir/out" >>"$dir/eight"
done
a=$(median <"$dir/two") b=$(median <"$dir/eight")
printf '2 ranks (hp 2) %.1f ms   8 ranks (hp 2 x cp 4, ZeRO full) %.1f ms   ratio %.2f\n' "$a" "$b" "$(awk "BEGIN {print $b / $a}")"

echo; echo "== 4. import and export, 124.7 M parameters, 1 rank x $threads threads, in /dev/shm, the best of the runs =="
convert() { # option...: makes or reads a model and exports it to $memory/out
    rm -rf "$memory/out"
    OMP_NUM_THREADS=$threads build/cpu/train_llama --steps 0 --threads $threads --export "$memory/out" "$@" >"$dir/out" 2>&1 ||
        { tail -5 "$dir/out"; exit 1; }
}
for dtype in f32 bf16 f16; do
    convert --model benchmarks/llama-125m --from-scratch --export-dtype $dtype
    mv "$memory/out" "$memory/model"
    mb=$(($(stat -c %s "$memory/model/model.safetensors") / 1000000))
    : >"$dir/cp"; : >"$dir/import"; : >"$dir/export"
    # Alternating; many times, because memory that a virtual machine gets anew from its host costs several times the copy.
    for ((i = 0; i < 6 * runs; i++)); do
        convert --model "$memory/model"
        cmp "$memory/model/model.safetensors" "$memory/out/model.safetensors"
        sed -n 's/^read .* \([0-9.]*\) s$/\1/p' "$dir/out" >>"$dir/import"
        sed -n 's/^exported .*(\([0-9.]*\) s)$/\1/p' "$dir/out" >>"$dir/export"
        rm -rf "$memory/out"
        began=$(date +%s.%N)
        cp "$memory/model/model.safetensors" "$memory/copy"
        awk "BEGIN {print $(date +%s.%N) - $began}" >>"$dir/cp"
        rm "$memory/copy"
    done
    awk -v dtype=$dtype -v mb=$mb -v c="$(best <"$dir/cp")" -v i="$(best <"$dir/import")" -v e="$(best <"$dir/export")" 'BEGIN {
        printf "%-4s %4d MB   cp %5.0f MB/s   ", dtype, mb, mb / c
        printf "import %5.0f MB/s, ratio %.2f   export %5.0f MB/s, ratio %.2f\n", mb / i, c / i, mb / e, c / e }'
    rm -rf "$memory/model"
done

echo; echo "== 5. saving: 124.7 M parameters and both moments, 1.50 GB, to $dir while training goes on, 1 rank x $threads threads, T 512 =="
ours 1 "$threads" "$dir/out" --seq-len 512 --steps 38 --recompute none --save-every 10 --out "$dir/states"
copy=$(sed -n 's/^copy to the host: [0-9.]*\/\([0-9.]*\).*/\1/p' "$dir/ops")
sed -n '/^saved/p' "$dir/out" | head -3 # during the last save nothing trains
sed -n 's/^saved.*waited \([0-9.]*\) s.*/\1/p' "$dir/out" | head -3 | median | awk -v copy="$copy" '{
    printf "training waited %.3f s (median); a copy of 1.50 GB takes %.3f s: ratio %.2f\n", $1, 1.497 / copy, $1 * copy / 1.497 }'
