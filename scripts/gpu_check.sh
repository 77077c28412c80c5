#!/usr/bin/env bash
# Everything that only a GPU can show, in one command on one GPU machine, in less than ten minutes: builds DEVICE=cuda for the GPU that is
# here, runs the GPU tests, the points that were open without a GPU (test/gpu_points.c) and the benchmarks, and leaves one report file, and
# cuDNN's properties of the GPU beside it.
#   scripts/gpu_check.sh [--report FILE] [--only WORD]...   only: steps whose name contains one of the words, and what prepares them
#   scripts/gpu_check.sh --dry-run                          lists the steps, their time limits and commands; runs nothing
#   scripts/gpu_check.sh --pack                             on a connected machine (Debian, Ubuntu): fetches into gpu_check_pack/ what a bare GPU
#                                                           machine may lack (Open MPI, cJSON, OpenBLAS; toolkit, cuDNN, NCCL as wheels). Copy this
#                                                           folder with it; the check takes from it what the machine does not have
#   scripts/gpu_check.sh --rehearse                         the same steps without a GPU, on small sizes, over fakes of the libraries and the
#                                                           emulated kernels: proves the script and the programs, measures nothing
# Needs: a GPU with its driver, gcc, g++, make. Without Open MPI (here or in the pack) the build is for one rank, and steps of several are skipped.
# Closes with "N passed, N failed, N skipped". Exit status: 0 no step failed, 1 some did, 2 it could not start.
set -u
cd "$(dirname "$0")/.." || exit 2
pack=$PWD/gpu_check_pack
report=gpu_check_report.txt mode=check only=()
total_limit=600
while [ $# -gt 0 ]; do
    case $1 in
    --dry-run) mode=list ;;
    --pack) mode=pack ;;
    --rehearse) mode=rehearse ;;
    --report) [ $# -ge 2 ] || { echo "error: --report: the value is missing; legal is a file name" >&2; exit 2; }
        report=$2; shift ;;
    --only) [ $# -ge 2 ] || { echo "error: --only: the value is missing; legal is a part of a step's name" >&2; exit 2; }
        only+=("$2"); shift ;;
    --help | -h) sed -n '2,/^set -u/{/^set -u/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) echo "error: unknown argument $1; legal are --report FILE, --only WORD, --dry-run, --pack, --rehearse, --help" >&2; exit 2 ;;
    esac
    shift
done
have() { command -v "$1" >/dev/null 2>&1; }

# ---- the pack ----

make_pack() {
    local packages=(openmpi-bin libopenmpi-dev libopenblas-openmp-dev libcjson-dev) names
    mkdir -p "$pack/debs" "$pack/debian" "$pack/wheels" || return 1
    # Everything they depend on but what every machine with a compiler has; that must not be replaced.
    names=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances "${packages[@]}" |
        grep -E '^[a-z0-9]' | grep -vE '^(libc6|libc-|libc-dev|libcrypt|linux-libc|libgcc|libstdc|gcc|g\+\+|cpp|gfortran|libgfortran-|flang|libflang|libclang|libllvm|libmlir|autoconf|automake|autotools|libasan|libtsan|liblsan|libubsan|libjs-|libpam|libselinux|libsemanage|binutils|debconf|cdebconf|dpkg|perl|libperl|openssh|ssh|install-info|tar|coreutils|adduser|passwd|base-)' |
        sort -u | xargs apt-cache show --no-all-versions 2>/dev/null | sed -n 's/^Package: //p' | sort -u) # without the virtual ones
    echo "fetching $(wc -w <<<"$names") Debian packages"
    (cd "$pack/debs" && xargs apt-get download -qq <<<"$names") || { echo "error: the Debian packages cannot be fetched" >&2; return 1; }
    for deb in "$pack"/debs/*.deb; do dpkg -x "$deb" "$pack/debian" || return 1; done
    rm -rf "$pack/debs"
    [ -e "$pack/debian/usr/bin/orterun" ] || { echo "error: Open MPI is not in the pack: no package openmpi-bin could be fetched" >&2; return 1; }
    if have python3 && python3 -m pip --version >/dev/null 2>&1; then
        python3 -m pip install --quiet --no-deps --upgrade --target "$pack/wheels" nvidia-cuda-nvcc nvidia-cuda-crt nvidia-nvvm nvidia-cuda-runtime nvidia-cuda-nvrtc \
            nvidia-cuda-cccl nvidia-cublas nvidia-cudnn-cu13 nvidia-nccl-cu13 || echo "note: the toolkit's wheels cannot be fetched; the GPU machine needs its own CUDA toolkit, cuDNN and NCCL"
    else echo "note: no pip here: the GPU machine needs its own CUDA toolkit, cuDNN and NCCL"; fi
    # What the CPU device computes for compare_devices, so that the GPU machine needs no BLAS.
    make --no-print-directory DEVICE=cpu MPI=0 ARCH=x86-64-v2 BUILD=build/cpu-pack build/cpu-pack/test/compare_devices >/dev/null &&
        build/cpu-pack/test/compare_devices write "$pack/reference" 1024 50 >/dev/null || echo "note: no reference of the CPU device: the GPU machine needs OpenBLAS to make one"
    echo "packed: $pack, $(du -sh "$pack" | cut -f1). Copy the folder $PWD to the GPU machine and run scripts/gpu_check.sh there."
}
make_options=()
use_pack() { # takes from it what the machine lacks
    local lib include
    [ -d "$pack/debian/usr" ] || return 0
    lib=$(dirname "$(find "$pack/debian/usr/lib" -maxdepth 2 -name 'libcjson.so*' | head -1)")
    include=$pack/debian/usr/include
    if ! have mpicc || ! have mpirun; then
        mkdir -p "$pack/bin"
        printf '%s\n' '#!/bin/sh' "case \$1 in --showme:compile) echo -I$lib/openmpi/include -I$lib/openmpi/include/openmpi ;; *) echo -L$lib/openmpi/lib -L$lib -lmpi -Wl,-rpath,$lib -Wl,-rpath,$lib/openmpi/lib ;; esac" >"$pack/bin/mpicc"
        printf '%s\n' '#!/bin/sh' "exec '$pack/debian/usr/bin/orterun' \"\$@\"" >"$pack/bin/mpirun"
        chmod +x "$pack"/bin/*
        export PATH=$pack/bin:$pack/debian/usr/bin:$PATH OPAL_PREFIX=$pack/debian/usr OPAL_LIBDIR=$lib OPAL_PKGLIBDIR=$lib/openmpi/lib/openmpi
        export OPAL_PKGDATADIR=$pack/debian/usr/share/openmpi OMPI_MCA_mca_base_component_path=$lib/openmpi/lib/openmpi3:$lib/openmpi/lib/openmpi
        export PMIX_INSTALL_PREFIX=$lib/pmix2
        have ssh || have rsh || export OMPI_MCA_plm=isolated # it wants one of them, for other machines
    fi
    export CPATH=$include:$include/$(basename "$lib"):$include/$(basename "$lib")/openblas-openmp:${CPATH:-} LIBRARY_PATH=$lib:$lib/openblas-openmp:${LIBRARY_PATH:-}
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$lib:$lib/openmpi/lib:$lib/openblas-openmp
    if ! have nvcc && [ ! -x /usr/local/cuda/bin/nvcc ]; then
        local home
        home=$(dirname "$(dirname "$(find "$pack/wheels" -name nvcc -type f 2>/dev/null | head -1)")")
        [ -x "$home/bin/nvcc" ] || return 0
        make_options+=("CUDA_HOME=$home" "CUDA_PLACES=$home $(echo "$pack"/wheels/nvidia/*)")
    fi
}
if [ $mode = pack ]; then
    have apt-get && have dpkg || { echo "error: --pack needs apt-get and dpkg (Debian or Ubuntu)" >&2; exit 2; }
    make_pack
    exit $?
fi

# ---- what is here ----

gpus=$(nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader 2>/dev/null | grep -E ', *[0-9]+\.[0-9]+$')
arch=$(head -1 <<<"$gpus" | sed -nE 's/.*, *([0-9]+)\.([0-9]+)$/\1\2/p')
missing=()
if [ $mode = rehearse ]; then arch=90
elif [ $mode = check ] && [ -z "$gpus" ]; then missing+=("a GPU that nvidia-smi lists (--rehearse runs the steps without one)"); fi
use_pack
for tool in gcc g++ make; do have $tool || missing+=("$tool"); done
mpi=1
have mpicc && have mpirun || mpi=0
make_options+=("DEVICE=cuda" "MPI=$mpi" "CUDA_ARCHS=${arch:-90}")
build=build/cuda-check-${arch:-90}
make_options+=("BUILD=$build")
if [ ${#missing[@]} -eq 0 ] || [ $mode = list ]; then
    if have make && ! why=$(make --no-print-directory -n "${make_options[@]}" $build/train_llama 2>&1); then missing+=("$(grep -o 'DEVICE=cuda: .*' <<<"$why" | head -1)"); fi
    echo '#include <cjson/cJSON.h>' | gcc -E - >/dev/null 2>&1 || missing+=("cJSON's header (libcjson-dev, or scripts/gpu_check.sh --pack on a connected machine)")
fi
if [ ${#missing[@]} -gt 0 ]; then
    printf 'missing: %s\n' "${missing[@]}" >&2
    [ $mode = list ] || { echo "error: the check cannot start; scripts/gpu_check.sh --pack on a connected machine fetches libraries, --dry-run lists the steps" >&2; exit 2; }
fi
source scripts/mpi_env.sh

# ---- steps ----

began=$SECONDS passed=0 failed=0 skipped=0 lines=()
properties=${report%.txt}_gpu.json # cuDNN's properties of the GPU: test_cudnn_graphs checks with them on any machine
if [ $mode != list ]; then
    dir=$(mktemp -d) || exit 2
    rm -f "$properties"
    trap 'rm -rf "$dir"' EXIT
    {
        echo "gpu_check of $(date -u '+%Y-%m-%d %H:%M UTC'), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), mode $mode"
        uname -sr; sed -n 's/^model name[^:]*: /CPU: /p' /proc/cpuinfo | head -1; echo "${gpus:-no GPU}"
        nvidia-smi --query-gpu=driver_version,memory.total,clocks.max.sm,power.limit --format=csv 2>/dev/null
        make --no-print-directory -n "${make_options[@]}" $build/train_llama 2>/dev/null | grep '^CUDA '
        [ $mode = rehearse ] && echo 'REHEARSAL: no GPU, fakes and emulated kernels, small sizes. No figure below measures anything.'
    } >"$report"
else dir=TEMPORARY; fi
say() {
    echo "$1"
    [ $mode = list ] || echo "$1" >>"$report"
}
# step NAME LIMIT COMMAND...: runs it for at most LIMIT seconds; status 77, or a reason in $skip, is "skipped".
step() {
    local name=$1 limit=$2 status at=$SECONDS left=$((total_limit - (SECONDS - began))) word found=0
    shift 2
    if [ ${#only[@]} -gt 0 ]; then
        for word in build reference 'token file' 'models of' "${only[@]}"; do [[ $name == *"$word"* ]] && found=1; done
        [ $found = 1 ] || { skip=; return 0; }
    fi
    if [ $mode = list ]; then
        printf '%-52s %4d s   %s\n' "$name" "$limit" "${skip:+(skipped: $skip) }$*"
        skip=
        return 0
    fi
    [ $mode = check ] && [ $left -lt 5 ] && skip="no time left of $total_limit s"
    [ $mode = check ] && [ $limit -gt $left ] && limit=$left
    if [ -n "$skip" ]; then
        skipped=$((skipped + 1))
        say "skipped $name: $skip"
        skip=
        return 0
    fi
    printf '[%3d s] %s ...\n' $((SECONDS - began)) "$name"
    timeout -k 5 "$limit" "$@" >"$dir/log" 2>&1 </dev/null
    status=$?
    { echo; echo "==== $name: status $status, $((SECONDS - at)) s: $*"; tail -c 20000 "$dir/log"; } >>"$report"
    if [ $status -eq 0 ]; then
        passed=$((passed + 1))
        say "ok      $name ($((SECONDS - at)) s)   $(grep -aE 'passed, |apart|^step ' "$dir/log" | tail -1)"
    elif [ $status -eq 77 ]; then
        skipped=$((skipped + 1))
        say "skipped $name: $(tail -1 "$dir/log")"
    else
        failed=$((failed + 1))
        say "FAILED  $name ($([ $status -eq 124 ] && echo "not done after $limit s" || echo "status $status"))"
        tail -5 "$dir/log" | sed 's/^/        /'
    fi
}
skip=
several() { [ $mpi = 1 ] || skip='no Open MPI, so one rank only'; } # before steps of several ranks
gpu_only() { [ $mode = rehearse ] && skip='needs a GPU'; }          # before steps that have nothing to rehearse

suffix= small=() length=1024 curve=50 curve_shared=8 # where ranks share a GPU, each transfer takes some 10 ms
[ $mode = rehearse ] && suffix=-without-gpu small=(small) length=512 curve=8 total_limit=1000000
jobs=$(nproc)
programs=($build/train_llama$suffix $build/test/{test_kernels,test_golden,compare_devices}$suffix)
if [ $mode = rehearse ]; then
    bench=build/emulated/test/bench_cuda points=build/emulated/test/gpu_points
    step 'build the emulated programs' 300 make -j"$jobs" --no-print-directory DEVICE=emulated $bench $points
else
    bench=$build/test/bench_cuda points=$build/test/gpu_points
    programs+=($bench $points $build/test/test_cudnn_graphs)
fi
step 'build' 240 make -j"$jobs" --no-print-directory "${make_options[@]}" "${programs[@]}" $build/text_to_tokens

# Correctness. Tests that look into tensors use managed memory; several ranks share the GPU as if each were a machine of its own.
export TRAIN_LLAMA_TIMEOUT=60
managed=(env TRAIN_LLAMA_TEST_MANAGED=1) sharing=(env TRAIN_LLAMA_TEST_MANAGED=1 TRAIN_LLAMA_SHARE_GPU=1 FAKE_CUDA_GPUS=1)
step 'kernels, cuBLASLt, cuDNN against double' 180 "${managed[@]}" $build/test/test_kernels$suffix
step 'Hugging Face goldens, bf16' 60 "${managed[@]}" $build/test/test_golden$suffix
reference=$pack/reference
if [ $mode = rehearse ] || { [ ! -e "$reference" ] && [ $mode != list ]; }; then
    reference=$dir/reference
    step 'reference of the CPU device' 120 bash -c "make -j$jobs --no-print-directory DEVICE=cpu MPI=$mpi BUILD=build/cpu-check build/cpu-check/test/compare_devices && build/cpu-check/test/compare_devices write '$reference' $length $curve"
fi
step 'curve and gradients beside the CPU device, 1 rank' 60 "${managed[@]}" $build/test/compare_devices$suffix compare "$reference" $length $curve
for ranks in 2 4; do
    several
    step "point 7: $ranks ranks on one GPU, NCCL_HOSTID per rank" 90 "${sharing[@]}" mpirun -np $ranks $build/test/compare_devices$suffix compare "$reference" $length $curve_shared
done
gpu_only; step 'cuDNN graphs, support check without the device' 60 $build/test/test_cudnn_graphs
for point in 1 2 4 5 6 9; do
    [ $mode = rehearse ] && [ $point = 6 ] && gpu_only
    step "point $point$([ $point = 1 ] && echo ' and 3')" 60 $points "${small[@]}" $point $([ $point = 6 ] && echo "$properties")
done
[ -e "$properties" ] || [ $mode = list ] || skip='point 6 left no properties of this GPU'
step "point 6: cuDNN graphs, with this GPU's own properties" 60 $build/test/test_cudnn_graphs "$properties"

# A small step: the programs' own data and model.
data=$dir/data.bin
step 'token file' 20 bash -c "seq 1 $([ $mode = rehearse ] && echo 1000 || echo 400000) >'$dir/text' && $build/text_to_tokens '$data' '$dir/text'"
one=($build/train_llama$suffix --model nano --from-scratch --train-data "$data" --seq-len 256 --steps)
tiny=("${one[@]}" 2)
step 'a small run' 60 "${tiny[@]}"
step 'a small run, --stochastic-rounding' 60 "${tiny[@]}" --stochastic-rounding
twice="'${tiny[0]}' ${tiny[*]:1} --deterministic --out"
step 'deterministic: the same bits twice' 90 bash -c "$twice '$dir/a' && $twice '$dir/b' && cmp '$dir/a/step-00000002/model.safetensors' '$dir/b/step-00000002/model.safetensors'"
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
for tool in memcheck racecheck; do
    [ -n "$sanitizer" ] || skip='no compute-sanitizer here'
    gpu_only
    step "compute-sanitizer $tool" 60 "${sanitizer:-compute-sanitizer}" --tool $tool --error-exitcode 1 "${one[@]}" 1
    [ -n "$sanitizer" ] || skip='no compute-sanitizer here'
    gpu_only
    step "compute-sanitizer $tool, attention by hand" 60 "${sanitizer:-compute-sanitizer}" --tool $tool --error-exitcode 1 $points small 1
done

# Benchmarks.
step 'benchmark: attention' 60 "$bench" "${small[@]:-attention}"
step 'benchmark: kernels that move memory' 40 "$bench" "${small[@]:-kernels}"
step 'benchmark and point 8: matrix products' 60 "$bench" "${small[@]:-products}"
step 'models of the step benchmark' 5 bash -c "mkdir -p '$dir/llama-8b-8-layers' && printf '%s' '{\"model_type\":\"llama\",\"hidden_size\":4096,\"num_hidden_layers\":8,\"num_attention_heads\":32,\"num_key_value_heads\":8,\"intermediate_size\":14336,\"vocab_size\":128256,\"rms_norm_eps\":1e-5,\"rope_theta\":500000,\"max_position_embeddings\":8192}' >'$dir/llama-8b-8-layers/config.json'"
torch=${TORCH_PYTHON:-python3}
export TORCHINDUCTOR_CACHE_DIR=$dir/inductor TRITON_CACHE_DIR=$dir/triton # what one length compiles serves the next
for S in 8 32 128; do
    accum=$([ $S = 8 ] && echo 4 || echo 1) # at 8K a step of one sequence spends a tenth of its time in the optimizer, which no real run does
    for model in llama3.2-1b "$dir/llama-8b-8-layers"; do
        gpu_only
        step "benchmark: step of $(basename "$model"), ${S}K" 60 $build/train_llama --model "$model" --from-scratch --train-data "$data" --seq-len ${S}K --grad-accum $accum $([ $S = 128 ] && echo --steps 3 --trace "$dir/trace-128K.json" || echo --steps 6)
        "$torch" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null || skip='no PyTorch with CUDA (TORCH_PYTHON names another python3)'
        gpu_only
        step "benchmark: PyTorch, $(basename "$model"), ${S}K" $([ $S = 128 ] && echo 90 || echo 60) "$torch" dev/bench_torch_cuda.py --model "$(basename "$model")" --tokens $((S * 1024)) --grad-accum $accum \
            $([ $S = 128 ] && echo --warmup 1 --steps 2 || echo --warmup 2 --steps 5)
    done
done
[ -e "$dir/trace-128K.json" ] || skip='no trace of a step at 128K'
[ $mode = list ] && skip=
step 'exposed time by name, 128K' 20 python3 dev/trace_sum.py "$dir/trace-128K.json"

say ''
[ $mode = list ] && exit 0
echo "report: $report"
[ -e "$properties" ] && say "properties of this GPU for cuDNN: $properties; they belong into the table of test/test_cudnn_graphs.c, or beside it as a file given to it"
say "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
