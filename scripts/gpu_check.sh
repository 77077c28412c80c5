#!/usr/bin/env bash
# Checks everything that only a GPU can show, with one command on one machine of one GPU or several, in less than ten minutes: builds
# DEVICE=cuda for the GPUs at hand, runs the GPU tests, the points that stayed open without a GPU (test/gpu_points.c) and the benchmarks.
# Leaves one report file, and beside it a file of cuDNN's properties of the GPU.
#   scripts/gpu_check.sh [--report FILE] [--only WORD]...   --only: the steps whose name contains one of the words,
#                                                           and those that prepare them
#                        [--limit SECONDS]                  in all, instead of 580
#                                                           (the rest of ten minutes is for a killed step's log and the table)
#   scripts/gpu_check.sh --preflight                        says what is here and what is missing (status 0 or 2); runs nothing
#   scripts/gpu_check.sh --dry-run                          lists the steps, their time limits and commands; runs nothing
#   scripts/gpu_check.sh --rest REPORT [--rest REPORT]...   only the steps that did not pass in these reports (the later one counts);
#                                                           the new report begins with a copy of them
#   scripts/gpu_check.sh --pack [toolkit]                   on a connected machine (Debian, Ubuntu): fetches into gpu_check_pack/
#                                                           what a bare GPU machine may lack: make, Open MPI, cJSON, the CPU
#                                                           device's results and a compute-sanitizer without known errors
#                                                           (some 45 MB); toolkit: also CUDA, cuDNN and NCCL as wheels
#                                                           (2.3 GB). Copy the repository with this folder to the GPU machine;
#                                                           the check takes from it what the machine lacks
#   scripts/gpu_check.sh --rehearse                         the same steps without a GPU, with small sizes, over fakes of the
#                                                           libraries and the emulated kernels: proves that the script and the
#                                                           programs work, measures nothing
# GPU_CHECK_COMMIT=NAME: the commit that the report names if the sources come without .git.
# Needs: a GPU with its driver, gcc, g++, make. Without Open MPI (on the machine or in the pack) or NCCL the build is for one rank, and
# steps of several ranks are skipped; without cuDNN all attention is by hand. The report begins with what was missing.
# To carry to the GPU machine beside the tracked files: gpu_check_pack/ (git ignores it; made anew when test/compare_devices.c changed),
# and for --rest the earlier report.
# The steps that show most come first, so that a check that is cut short still shows the most; the report is written step by step.
# Of a step that failed it also holds what the driver says, where the step hung (by cuda-gdb, or gdb), where the GPU or the program
# faulted, and all that NCCL says.
# Closes with a table of the benchmarks and "N passed, N failed, N skipped".
# Exit status: 0 no step failed, 1 some did, 2 it could not start.
set -u
export LC_ALL=C # sort and awk would expect the decimal comma of some languages
from=$PWD
unset CDPATH # with it, cd may go elsewhere
cd "$(dirname "$0")/.." || exit 2
pack=$PWD/gpu_check_pack
report=gpu_check_report.txt mode=check preflight=0 only=() rest= pack_toolkit=0
total_limit=580 # seconds, from here
began=$SECONDS
while [ $# -gt 0 ]; do
    case $1 in
    --preflight) preflight=1 ;;
    --dry-run) mode=list ;;
    --pack) mode=pack
        [ "${2:-}" = toolkit ] && { pack_toolkit=1; shift; } ;;
    --rest) [[ ${2:-/} == /* ]] || set -- "$1" "$from/$2" "${@:3}"
        grep -qs -m1 '^gpu_check of ' "${2:-}" ||
            { echo "error: --rest: the value is missing or is not a report of this check" >&2; exit 2; }
        rest+=${rest:+$'\n\n'}$(cat "$2"); shift ;;
    --rehearse) mode=rehearse ;;
    --report) [ $# -ge 2 ] || { echo "error: --report: the value is missing; it must be a file name" >&2; exit 2; }
        report=$2; [[ $report == /* ]] || report=$from/$report
        shift ;;
    --only) [ $# -ge 2 ] || { echo "error: --only: the value is missing; it must be a part of a step's name" >&2; exit 2; }
        only+=("$2"); shift ;;
    --limit) [[ ${2:-} =~ ^[1-9][0-9]{0,5}$ ]] || { echo "error: --limit ${2:-}: legal values are 1 to 999999 seconds" >&2; exit 2; }
        total_limit=$2; shift ;;
    --help | -h) sed -n '2,/^set -u/{/^set -u/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) echo "error: unknown argument $1; legal arguments are --report FILE, --only WORD, --limit SECONDS, --rest REPORT," \
        "--preflight, --dry-run, --pack [toolkit], --rehearse, --help" >&2
        exit 2 ;;
    esac
    shift
done
cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc) # nproc obeys these, which some images set
have() { command -v "$1" >/dev/null 2>&1; }
shared_memory() { echo $((0 + $(df -k --output=avail /dev/shm 2>/dev/null | tail -1))); } # KiB that are free
open_mpi() { have mpirun && mpicc --showme:compile >/dev/null 2>&1; } # another MPI's mpicc does not know this
cjson() { echo '#include <cjson/cJSON.h>' | gcc -E - >/dev/null 2>&1; }

# ---- the pack ----

make_pack() {
    local packages=(make openmpi-bin libopenmpi-dev libcjson-dev) names lib needed file
    rm -rf "$pack"
    mkdir -p "$pack/debs" "$pack/debian" || return 1
    # All their dependencies, except what every machine with a compiler has, which must not be replaced.
    names=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances \
        "${packages[@]}" | grep -E '^[a-z0-9]' | grep -vE \
        -e '^(libc6|libc-|libc-dev|libcrypt|linux-libc|libgcc|libstdc|gcc|g\+\+|cpp|gfortran|libgfortran-|flang|libflang|libclang)' \
        -e '^(libllvm|libmlir|autoconf|automake|autotools|libasan|libtsan|liblsan|libubsan|libjs-|libpam|libselinux|libsemanage)' \
        -e '^(binutils|debconf|cdebconf|dpkg|perl|libperl|openssh|ssh|install-info|tar|coreutils|adduser|passwd|base-)' |
        sort -u | xargs apt-cache show --no-all-versions 2>/dev/null | sed -n 's/^Package: //p' | sort -u) # without the virtual ones
    echo "fetching $(wc -w <<<"$names") Debian packages"
    (cd "$pack/debs" && xargs apt-get download -qq <<<"$names") || { echo "error: the Debian packages cannot be fetched" >&2; return 1; }
    for deb in "$pack"/debs/*.deb; do dpkg -x "$deb" "$pack/debian" || return 1; done
    rm -rf "$pack/debs"
    [ -e "$pack/debian/usr/bin/orterun" ] ||
        { echo "error: Open MPI is not in the pack: no package openmpi-bin could be fetched" >&2; return 1; }
    # Of all that, keep only what Open MPI's programs, libraries and plugins load, so that nothing else hides the machine's own libraries.
    lib=$(dirname "$(find "$pack/debian/usr/lib" -maxdepth 2 -name 'libcjson.so*' | head -1)")
    needed=$(find "$pack/debian/usr/bin/orterun" "$pack/debian/usr/bin/orted" "$lib/openmpi" "$lib/pmix2" \
        "$lib"/libmpi.so* "$lib"/libcjson.so* -type f |
        LD_LIBRARY_PATH=$lib:$lib/openmpi/lib xargs ldd 2>/dev/null | sed -n "s|.*=> \($lib/[^ ]*\) .*|\1|p" | sort -u | xargs readlink -f)
    for file in "$lib"/*.so*; do [[ $file == */libcjson.* ]] || grep -qxF "$(readlink -f "$file")" <<<"$needed" || rm -f "$file"; done
    find "$pack/debian" -name '*.a' -delete
    for file in "$pack"/debian/* "$pack"/debian/usr/* "$lib"/* "$pack"/debian/usr/share/*; do
        case $file in
        */usr | */bin | */lib | */include | */share | "$lib" | "$lib"/openmpi | "$lib"/pmix2 | "$lib"/*.so* | \
            */share/openmpi | */share/pmix*) ;;
        *) rm -rf "$file" ;;
        esac
    done
    rm -rf "$pack/debian/bin" "$pack/debian/lib"
    if [ $pack_toolkit = 0 ]; then
        echo "note: without the toolkit: the GPU machine needs its own CUDA toolkit, cuDNN and NCCL (--pack toolkit fetches them)"
    elif have python3 && python3 -m pip --version >/dev/null 2>&1; then
        python3 -m pip install --quiet --no-deps --upgrade --target "$pack/wheels" nvidia-cuda-nvcc nvidia-cuda-crt nvidia-nvvm \
            nvidia-cuda-runtime nvidia-cuda-nvrtc nvidia-cuda-cccl nvidia-cublas nvidia-cudnn-cu13 nvidia-nccl-cu13 ||
            echo "note: the toolkit's wheels cannot be fetched; the GPU machine needs its own CUDA toolkit, cuDNN and NCCL"
    else
        echo "note: this machine has no pip: the GPU machine needs its own CUDA toolkit, cuDNN and NCCL"
    fi
    # racecheck of 2025.3 (CUDA 13.0) fails in cuBLAS's kernels; 2026.4 (CUDA 13.5) does not, under a driver for 13.0, too. Only what it
    # needs, and packed: 12 MB instead of 48.
    if have python3 && python3 -m pip --version >/dev/null 2>&1 &&
        python3 -m pip install --quiet --no-deps --target "$pack/wheel" 'nvidia-cuda-sanitizer-api>=13.5' &&
        (cd "$pack"/wheel/nvidia/*/compute-sanitizer && tar -czf "$pack/sanitizer.tar.gz" compute-sanitizer TreeLauncher* lib*.so); then :
    else echo "note: without compute-sanitizer, which is fetched with pip: the GPU machine needs its own"
    fi
    rm -rf "$pack/wheel"
    # The CPU device's results for compare_devices, so that the GPU machine needs no BLAS.
    make --no-print-directory DEVICE=cpu MPI=0 BUILD=build/cpu-pack build/cpu-pack/test/compare_devices >/dev/null &&
        build/cpu-pack/test/compare_devices write "$pack/reference" 1024 50 >/dev/null ||
        echo "note: the CPU device's results could not be made: the GPU machine needs OpenBLAS to make them"
    echo "packed: $pack, $(du -sh "$pack" | cut -f1). Copy the folder $PWD to the GPU machine and run scripts/gpu_check.sh there."
}
make_options=()
use_pack() { # takes from the pack what the machine lacks, piece by piece: other libraries of the pack would hide the machine's own
    local lib include
    [ -d "$pack/debian/usr" ] || return 0
    lib=$(dirname "$(find "$pack/debian/usr/lib" -maxdepth 2 -name 'libcjson.so*' | head -1)")
    include=$pack/debian/usr/include
    have make || export PATH=$PATH:$pack/debian/usr/bin
    if ! open_mpi; then
        mkdir -p "$pack/bin"
        printf '%s\n' '#!/bin/sh' 'case $1 in' \
            "--showme:compile) echo -I$lib/openmpi/include -I$lib/openmpi/include/openmpi ;;" \
            "*) echo -L$lib/openmpi/lib -L$lib -lmpi -Wl,-rpath,$lib -Wl,-rpath,$lib/openmpi/lib ;;" \
            'esac' >"$pack/bin/mpicc"
        printf '%s\n' '#!/bin/sh' "exec '$pack/debian/usr/bin/orterun' \"\$@\"" >"$pack/bin/mpirun"
        chmod +x "$pack"/bin/*
        export PATH=$pack/bin:$pack/debian/usr/bin:$PATH \
            OPAL_PREFIX=$pack/debian/usr OPAL_LIBDIR=$lib OPAL_PKGLIBDIR=$lib/openmpi/lib/openmpi
        export OPAL_PKGDATADIR=$pack/debian/usr/share/openmpi \
            OMPI_MCA_mca_base_component_path=$lib/openmpi/lib/openmpi3:$lib/openmpi/lib/openmpi
        export PMIX_INSTALL_PREFIX=$lib/pmix2
        have ssh || have rsh || export OMPI_MCA_plm=isolated # Open MPI wants ssh or rsh, to reach other machines
        export OMPI_MCA_mca_base_component_show_load_errors=0 # of plugins for networks that this machine lacks
        export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$lib:$lib/openmpi/lib # an empty entry would mean the working folder
    fi
    if ! cjson; then # in a folder of its own
        mkdir -p "$pack/cjson/include"
        cp -r "$include/cjson" "$pack/cjson/include" && cp -P "$lib"/libcjson.so* "$pack/cjson"
        export CPATH=$pack/cjson/include${CPATH:+:$CPATH} LIBRARY_PATH=$pack/cjson${LIBRARY_PATH:+:$LIBRARY_PATH}
        export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$pack/cjson
    fi
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

# Unless a daemon keeps the driver's state, the driver initializes every GPU anew for each program, one to three seconds a GPU.
# An open device file prevents that.
if [ $mode = check ]; then
    for device in /dev/nvidia[0-9]*; do [ -r "$device" ] && { exec {held}<"$device"; } 2>/dev/null; done
fi
gpus=$(nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader 2>/dev/null | grep -E ', *[0-9]+\.[0-9]+$')
archs=$(sed -nE 's/.*, *([0-9]+)\.([0-9]+)$/\1\2/p' <<<"$gpus" | awk '$1 >= 80' | sort -nu | xargs) # of all kinds of GPUs here that will do
gpu_total=$(grep -c . <<<"$gpus") # that programs see
[ -n "${CUDA_VISIBLE_DEVICES:-}" ] && gpu_total=$(tr , '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c .)
first_gpu=${CUDA_VISIBLE_DEVICES:-0} first_gpu=${first_gpu%%,*}
[ $mode = check ] || gpu_total=8
missing=()
outside=(env -u LD_LIBRARY_PATH -u LIBRARY_PATH -u CPATH) # PyTorch and its compiler: without the pack's libraries
for name in LD_LIBRARY_PATH LIBRARY_PATH CPATH; do [ -n "${!name:-}" ] && outside+=("$name=${!name}"); done
if [ $mode = rehearse ]; then archs=90
elif [ $mode = check ] && [ -z "$gpus" ]; then missing+=("a GPU that nvidia-smi lists (--rehearse runs the steps without one)"); fi
use_pack
for tool in gcc g++ make; do have $tool || missing+=("$tool"); done
source scripts/mpi_env.sh
mpi=1 cudnn=1 notes=()
open_mpi || { mpi=0 && notes+=('note: no Open MPI found; the build is for one rank'); }
two_ranks() { mpirun_says=$(timeout -k 5 30 mpirun -np 2 true 2>&1 </dev/null); }
# mpirun needs a loopback network, which root may switch on.
if [ $mpi = 1 ] && [ $mode = check ] && ! two_ranks && ! { ip link set lo up 2>/dev/null && two_ranks; }; then
    notes+=("note: mpirun does not start two programs here; the build is for one rank. mpirun says: $(tail -n 8 <<<"$mpirun_says")")
    mpi=0
fi
make_options+=("DEVICE=cuda")
makes() { why=$(make --no-print-directory -n "${make_options[@]}" "CUDA_ARCHS=${archs:-90}" "CUDNN=$cudnn" "MPI=$mpi" all 2>&1); }
# For a GPU that the toolkit does not know yet, the newest kernels that it can make: of their PTX the driver makes others, as after a plain
# `make`.
only_known_archs() {
    local nvcc known arch best chosen=
    nvcc=$(sed -nE 's/^CUDA [0-9.]+ \((.*)\) for sm .*/\1/p' <<<"$why" | head -1)
    known=$("$nvcc" --list-gpu-arch 2>/dev/null | sed -n 's/^compute_//p' | sort -n)
    for arch in $archs; do
        best=$(awk -v arch=$arch '$1 <= arch' <<<"$known" | tail -1)
        chosen+=" ${best:-$arch}"
        [ "${best:-$arch}" = $arch ] || notes+=("note: this toolkit does not know sm_$arch; the kernels are those of sm_$best")
    done
    chosen=$(xargs -n 1 <<<"$chosen" | sort -nu | xargs)
    [ "$chosen" = "$archs" ] || { archs=$chosen && makes; }
}
if [ ${#missing[@]} -eq 0 ] || [ $mode = list ]; then
    if have make; then
        makes || { grep -q 'CUDNN not found' <<<"$why" && cudnn=0 &&
            notes+=('note: no cuDNN of 9.10.2 or newer found; all attention is by hand'); }
        makes || { grep -q 'NCCL not found' <<<"$why" && mpi=0 &&
            notes+=('note: no NCCL of 2.26.5 or newer found; the build is for one rank'); }
        makes || missing+=("$(grep -o 'DEVICE=cuda: .*' <<<"$why" | head -1)")
        only_known_archs
    fi
    # A driver runs programs of its own CUDA version and of older ones.
    toolkit=$(sed -nE 's/^CUDA ([0-9]+)\..*/\1/p' <<<"${why:-}" | head -1)
    driver=$(nvidia-smi -q 2>/dev/null | sed -nE 's/^CUDA .*: *([0-9]+)\..*/\1/p' | head -1)
    [ $mode = check ] && [ "${driver:-99}" -lt "${toolkit:-0}" ] &&
        missing+=("a driver for CUDA $toolkit: this one knows CUDA $driver at most (CUDA_HOME=DIR names another toolkit)")
    cjson ||
        missing+=("cJSON's header (libcjson-dev, or scripts/gpu_check.sh --pack on a connected machine)")
fi
if [ ${#missing[@]} -gt 0 ]; then
    printf 'missing: %s\n' "${missing[@]}" >&2
    [ $mode = list ] || {
        echo "error: the check cannot start; scripts/gpu_check.sh --pack on a connected machine fetches libraries," \
            "--dry-run lists the steps" >&2
        exit 2
    }
fi
archs=${archs:-90}
build=build/cuda-check-${archs// /-}$([ $mpi = 1 ] || echo -single)$([ $cudnn = 1 ] || echo -no-cudnn)
make_options+=("CUDA_ARCHS=$archs" "CUDNN=$cudnn" "MPI=$mpi" "BUILD=$build")
[ ${#notes[@]} -gt 0 ] && printf '%s\n' "${notes[@]}"
if [ $preflight = 1 ]; then
    printf '%s\n' "$gpus" "$(grep '^CUDA ' <<<"$why")" 'the check can start'
    exit 0
fi

# ---- steps ----

passed=0 failed=0 skipped=0 names= # of all steps
properties=${report%.txt}_gpu.json # cuDNN's properties of the GPU, with which test_cudnn_graphs repeats its check on any machine
if [ $mode != list ]; then
    dir=$(mktemp -d) || exit 2
    [ ! -s "$report" ] || grep -q -m1 '^gpu_check of ' "$report" || {
        echo "error: --report $report: is a file of another kind, which would be lost; name another one" >&2
        exit 2
    }
    : >>"$report" || { echo "error: --report $report: cannot be written" >&2; exit 2; }
    rm -f "$properties"
    torch_job= monitor= step_job=
    # A monitor that is killed before it begins comes here, too.
    trap '[ $BASHPID = $$ ] && { kill $torch_job $monitor $step_job 2>/dev/null; rm -rf "$dir"; }' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    {
        [ -n "$rest" ] && printf '%s\n\n' "$rest"
        echo "gpu_check of $(date -u '+%Y-%m-%d %H:%M UTC')," \
            "commit ${GPU_CHECK_COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}, mode $mode"
        uname -sr
        sed -n 's/^model name[^:]*: /CPU: /p' /proc/cpuinfo | head -1
        sed -nE 's/^Mem(Total|Available): */Host memory, \1: /p' /proc/meminfo
        awk '/^Node/ { zone = $4 } $1 == "managed" { pages[zone] += $2 } # movable memory cannot be pinned
             END { for (zone in pages) printf "Host memory, zone %s: %.1f million pages\n", zone, pages[zone] / 1e6 }' /proc/zoneinfo
        echo "${gpus:-no GPU}"
        nvidia-smi --query-gpu=driver_version,memory.total,memory.used,clocks.max.sm,power.limit --format=csv 2>/dev/null
        nvidia-smi \
            --query-gpu=compute_mode,mig.mode.current,persistence_mode,ecc.mode.current,pcie.link.gen.max,pcie.link.width.current \
            --format=csv 2>/dev/null
        [ $gpu_total -gt 1 ] && nvidia-smi topo -m 2>/dev/null
        grep '^CUDA ' <<<"$why"
        echo "$cores cores, ulimit -l $(ulimit -l), memory limit $(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo unknown)," \
            "/dev/shm: $(shared_memory) KiB free, gcc $(gcc -dumpfullversion), $(mpirun --version 2>&1 | head -1)"
        env | grep -E '^(CUDA|CUBLAS|CUDNN|NCCL|NVIDIA|OMPI|OPAL|PRTE|PMIX|UCX|OMP|LD|TORCH|TRAIN_LLAMA)_[A-Za-z0-9_]*=' | sort
        [ ${#notes[@]} -gt 0 ] && printf '%s\n' "${notes[@]}"
        [ $mode = rehearse ] && echo 'REHEARSAL: no GPU, fakes and emulated kernels, small sizes. No figure below measures anything.'
    } >"$report"
else dir=TEMPORARY; fi
say() {
    echo "$1"
    [ $mode = list ] || echo "$1" >>"$report"
}
passed_before() { [[ -n $rest && $(grep -F "==== $1: status " <<<"$rest" | tail -1) == *": status 0,"* ]]; } # NAME
wanted() { # NAME: whether --only and --rest leave this step
    local word found=0
    names+=$1$'\n'
    if [ ${#only[@]} -gt 0 ]; then
        for word in build reference 'token file' 'models of' "${only[@]}"; do [[ $1 == *"$word"* ]] && found=1; done
        [ $found = 1 ] || return 1
    fi
    if passed_before "$1"; then # these prepare others, and the limits belong beside the steps of the same run
        case $1 in build* | reference* | 'token file'* | 'models of'* | 'point 6' | *'limits of the steps') ;; *) return 1 ;; esac
    fi
}
gpu_at_work() { # the clock and the power of a benchmark: figures taken at a lower clock are no measure of the program
    sort -n "$dir/clocks" | awk -F', *' '
        $5 >= 50 { clock[++n] = $1; watts += $2; if ($3 > hot) hot = $3; if (!seen[$4]++) reasons = reasons " " $4 }
        END {
            if (n == 0) print "GPU at work: never seen above 50 %; nvidia-smi: " $0
            else {
                printf "GPU at work, %d s: SM clock %d MHz at least, median %d; ", n, clock[1], clock[int((n + 1) / 2)]
                printf "power %.0f W on average; %d C at most; clock event reasons%s\n", watts / n, hot, reasons
            }
        }'
}
excerpt() { # FILE: all of it, or how it begins, where the reason may be, and how it ends
    local more=$(($(stat -c %s "$1") - 40000))
    if [ $more -le 0 ]; then cat "$1"; else head -c 20000 "$1"; printf '\n[... %d bytes ...]\n' $more; tail -c 20000 "$1"; fi
}
debugger=$(command -v cuda-gdb || ls /usr/local/cuda/bin/cuda-gdb 2>/dev/null || command -v gdb)
# Beside a step, while FILE is there. 20 seconds before the limit it asks what those of our programs are doing that still run, and have
# been silent for 15 seconds: on the GPU, too, if the debugger is CUDA's. 10 seconds after the limit it kills `timeout` itself, which
# would wait for a program that the driver holds, for ever.
watch_over() { # JOB LIMIT FILE LOG COMMAND
    local start=$SECONDS asked= exe
    [[ -n $debugger && $2 -ge 40 && $5 != *compute-sanitizer ]] || asked=never
    while sleep 1 && [ -e "$3" ] && [ $((SECONDS - start)) -lt $(($2 + 10)) ]; do
        [[ -z $asked && $((SECONDS - start)) -ge $(($2 - 20)) && -z $(find "$4" -mmin -0.25) ]] || continue
        asked=yes
        for exe in /proc/[0-9]*/exe; do
            [[ $(readlink "$exe" 2>/dev/null) == "$(pwd -P)"/build/* ]] || continue
            timeout -k 2 15 "$debugger" -p "$(tr -dc 0-9 <<<"$exe")" -batch -nx -ex 'info cuda kernels' -ex 'thread apply all bt 16'
        done
    done
    [ ! -e "$3" ] || kill -KILL "$1"
}
run() { # LIMIT LOG COMMAND...: sets $status. Beside the script, which a signal then ends at once, and the command with it
    local running
    running=$(mktemp -p "$dir")
    timeout -k 5 "$1" "${@:3}" >"$2" 2>&1 </dev/null &
    step_job=$!
    watch_over $step_job "$1" "$running" "$2" "$3" >"$dir/hangs" 2>&1 &
    wait $step_job
    status=$? step_job=
    rm "$running"
}
gpu_fault='illegal memory access|misaligned address|illegal instruction|unspecified launch failure|hardware stack error'
gpu_fault+='|invalid program counter|address space not'
# After a step that failed: whether the GPU answers, who is on it, what the driver logged; where it hung; and for a fault of the GPU,
# of NCCL or of one of our programs the step again, in a way that shows where that was.
explain() { # STATUS COMMAND...
    local was=$1 status left=$((total_limit - (SECONDS - began))) again=$dir/again
    shift
    [ $was -ne 124 ] || { echo "---- where it was shortly before its limit (${debugger:-no debugger here}):" && excerpt "$dir/hangs"; }
    if [ $mode = check ]; then
        run 10 "$again" bash -c '
            nvidia-smi --query-gpu=index,memory.used,utilization.gpu,temperature.gpu,ecc.errors.uncorrected.volatile.total --format=csv
            nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv
            dmesg 2>&1 | grep -E "NVRM|Xid|[Oo]ut of memory|not permitted" | tail -5'
        echo "---- the GPU, its users and the driver's messages afterwards: status $status"
        excerpt "$again"
    fi
    # Later failures have the reason of the first.
    [[ $failed -lt 3 && $left -ge 20 && " $*" == *" build/"* && $1 != *compute-sanitizer ]] || return 0
    [ $left -le 60 ] || left=60
    if grep -qaE "$gpu_fault" "$dir/log"; then
        rm -f "$dir"/core_*
        run $left "$again" env CUDA_LAUNCH_BLOCKING=1 CUDA_ENABLE_COREDUMP_ON_EXCEPTION=1 CUDA_ENABLE_LIGHTWEIGHT_COREDUMP=1 \
            CUDA_COREDUMP_SHOW_PROGRESS=1 "CUDA_COREDUMP_FILE=$dir/core_%p" \
            CUDA_COREDUMP_GENERATION_FLAGS=skip_nonrelocated_elf_images,skip_global_memory,skip_shared_memory,skip_local_memory "$@"
        echo "---- again, a kernel at a time and with a dump of the GPU: status $status"
        excerpt "$again"
        for core in "$dir"/core_*; do
            [ -s "$core" ] && [[ $debugger == *cuda-gdb ]] &&
                timeout -k 2 30 "$debugger" -batch -nx -ex "target cudacore $core" -ex 'info cuda kernels' -ex bt 2>&1
        done
    elif [[ " $* " == *" mpirun "* ]] && grep -qaE 'NCCL WARN|NCCL: |NCCL has not answered|not done after' "$dir/log"; then
        run $left "$again" env NCCL_DEBUG=INFO "$@"
        echo "---- again, with all that NCCL says: status $status"
        excerpt "$again"
    elif [[ $was -gt 128 && $was -ne 137 && -n $debugger && $1 == build/* ]]; then
        run $left "$again" "$debugger" -batch -nx -ex run -ex 'thread apply all bt 16' --args "$@"
        echo '---- again, under a debugger:'
        excerpt "$again"
    fi
}
# step NAME LIMIT COMMAND...: runs it for at most LIMIT seconds; status 77, or a reason in $skip, is "skipped".
step() {
    local name=$1 limit=$2 status at=$SECONDS left=$((total_limit - (SECONDS - began)))
    shift 2
    wanted "$name" || { skip=; return 0; }
    if [ $mode = list ]; then
        printf '%-52s %4d s   %s\n' "$name" "$limit" "${skip:+(skipped: $skip) }$*"
        skip=
        return 0
    fi
    [ $mode = rehearse ] && limit=$((10 * limit)) # may run on any machine, beside other work
    [ $mode = check ] && [ $left -lt 5 ] && skip="no time left of $total_limit s"
    local cut=
    [ $mode = check ] && [ $limit -gt $left ] && limit=$left cut=yes
    if [ -n "$skip" ]; then
        skipped=$((skipped + 1))
        say "skipped $name: $skip"
        skip=
        return 0
    fi
    printf '[%3d s] %s ...\n' $((SECONDS - began)) "$name"
    if [ $mode = check ] && [[ $name == benchmark* ]]; then
        stdbuf -oL nvidia-smi -i "$first_gpu" --query-gpu=clocks.sm,power.draw,temperature.gpu,clocks_event_reasons.active,utilization.gpu \
            --format=csv,noheader,nounits -l 1 >"$dir/clocks" 2>&1 &
        monitor=$!
        disown $monitor # never waited for: the driver may hold it
    fi
    run $limit "$dir/log" "$@"
    # A monitor that is killed before it begins may do what this script does at its end.
    [ -n "$monitor" ] && { [ $SECONDS -gt $at ] || sleep 0.3; kill $monitor; } 2>/dev/null
    { echo; echo "==== $name: status $status, $((SECONDS - at)) s: $*"; excerpt "$dir/log"; [ -n "$monitor" ] && gpu_at_work; } >>"$report"
    monitor=
    [ $status -eq 137 ] && [ $((SECONDS - at)) -ge $limit ] && status=124 # it did not heed the first signal
    # Some virtual machines and containers hide what compute-sanitizer needs, and racecheck of some versions fails by itself, which takes
    # nothing back of what it has found before.
    local fails_itself='Device not supported'
    [[ $name == *racecheck* ]] && ! grep -qaE 'Race reported|hazard detected' "$dir/log" && fails_itself+='|Internal Sanitizer Error'
    [[ $name == compute-sanitizer* ]] && grep -qaE "$fails_itself" "$dir/log" && status=77
    [[ $status -eq 0 || $status -eq 77 || ($status -eq 124 && -n $cut) ]] || explain $status "$@" >>"$report"
    if [ $status -eq 0 ]; then
        passed=$((passed + 1))
        say "ok      $name ($((SECONDS - at)) s)   $(grep -aE 'passed, |apart|^step ' "$dir/log" | tail -1)"
    elif [ $status -eq 124 ] && [ -n "$cut" ]; then
        skipped=$((skipped + 1))
        say "skipped $name: no time left of $total_limit s (stopped after $limit s)"
    elif [ $status -eq 77 ]; then
        skipped=$((skipped + 1))
        say "skipped $name: $(grep -aEm1 "$fails_itself" "$dir/log" || tail -1 "$dir/log")"
    else
        failed=$((failed + 1))
        say "FAILED  $name ($([ $status -eq 124 ] && echo "not done after $limit s" || echo "status $status"))"
        sed '/^-\{60,\}$/,/^-\{60,\}$/d' "$dir/log" | tail -5 | sed 's/^/        /' # without mpirun's notices, which stand below the reason
    fi
}
skip=
several() { # before steps of several ranks on the GPU. NCCL takes 33 MiB of /dev/shm for each rank and group: 4 ranks with 7 groups 0.9 GiB
    if [ $mode = check ]; then
        [ "$(nvidia-smi --query-gpu=compute_mode --format=csv,noheader 2>/dev/null | head -1)" = Exclusive_Process ] &&
            skip='the GPU is in exclusive-process mode: one process at a time'
        [ "$(shared_memory)" -ge 1200000 ] || mount -o remount,size=4G /dev/shm 2>/dev/null # root may
        [ "$(shared_memory)" -ge 1200000 ] ||
            skip="less than 1.2 GB free in /dev/shm, which NCCL needs here (a container's is 64 MB unless it is told another)"
    fi
    [ $mpi = 1 ] || skip='no Open MPI or no NCCL, so one rank only'
}
gpus_of_their_own() { # RANKS: before steps of so many ranks on as many GPUs
    [ $mode = list ] || [ $gpu_total -ge $1 ] || skip="needs $1 GPUs or more"
    [ $mpi = 1 ] || skip='no Open MPI or no NCCL, so one rank only'
}
gpu_only() { [ $mode = rehearse ] && skip='needs a GPU'; }          # before steps that have nothing to rehearse

suffix= small=() length=1024 curve=50 curve_shared=5 # where 4 ranks share a GPU, each of some 2500 transfers takes 10 ms or more
[ $mode = rehearse ] && suffix=-without-gpu small=(small) length=512 curve=8 total_limit=1000000
programs=($build/train_llama$suffix $build/test/{test_kernels,test_golden,compare_devices}$suffix)
if [ $mode = rehearse ]; then
    bench=build/emulated/test/bench_cuda points=build/emulated/test/gpu_points
    step 'build the emulated programs' 300 make -j"$cores" --no-print-directory DEVICE=emulated $bench $points
else
    bench=$build/test/bench_cuda points=$build/test/gpu_points
    programs+=($bench $points)
    [ $cudnn = 1 ] && programs+=($build/test/test_cudnn_graphs)
fi
programs+=($build/text_to_tokens)
torch=${TORCH_PYTHON:-python3}
if [ $mode = check ]; then # PyTorch's first import may read gigabytes for minutes: now, beside the build. Its compiler, too
    timeout -k 5 240 "${outside[@]}" "$torch" -c 'import torch, os, sysconfig, triton, torch._inductor.compile_fx
header = sysconfig.get_paths()["include"] + "/Python.h" # which what Triton compiles includes
print("yes" if torch.cuda.is_available() and os.path.exists(header) else "no GPU for PyTorch, or no " + header)' \
        >"$dir/torch" 2>"$dir/torch_log" </dev/null &
    torch_job=$!
fi
step 'build' 240 make -k -j"$cores" --no-print-directory "${make_options[@]}" "${programs[@]}"
[ $failed -eq 0 ] || step 'build where warnings are no errors' 240 \
    make -k -j"$cores" --no-print-directory "${make_options[@]}" WERROR=0 "${programs[@]}"
gpu_only
step 'build: the libraries that it loads' 10 bash -c "ldd '$build/train_llama' && ! ldd '$build/train_llama' | grep -q 'not found'"

# What later steps need of these: reference, data, models.
reference=$pack/reference
if [ $mode = rehearse ] || { [ ! -e "$reference" ] && [ $mode != list ]; }; then
    reference=$dir/reference
    writer=build/cpu-check/test/compare_devices
    echo '#include <cblas.h>' | gcc -E - >/dev/null 2>&1 || skip='no OpenBLAS here (libopenblas-dev), and no gpu_check_pack/'
    step 'reference of the CPU device' 120 \
        bash -c "make -j$cores --no-print-directory DEVICE=cpu MPI=$mpi WERROR=0 BUILD=build/cpu-check $writer &&
        $writer write '$reference' $length $curve"
fi
data=$dir/data.bin
step 'token file' 20 \
    bash -c "seq 1 $([ $mode = rehearse ] && echo 1000 || echo 400000) >'$dir/text' && $build/text_to_tokens '$data' '$dir/text'"
# For the benchmarks of steps, tokens at random, as PyTorch's are: where there are only digits, few embeddings sum up thousands of
# gradients each.
random=$dir/random.bin
step 'token file, random' 20 \
    bash -c '{ head -c 1024 "$1" && head -c $(($(stat -c %s "$1") - 1024)) /dev/urandom; } >"$2"' random "$data" "$random"
documents=$dir/documents.bin # token 0 ends a document: both of its bytes are 0 one time in 16384
step 'token file, documents' 20 \
    bash -c '{ head -c 1024 "$1" && tail -c +1025 "$1" | LC_ALL=C tr "\001" "\000"; } >"$2"' documents "$random" "$documents"
# Llama-3-8B with as few layers as PyTorch, too, can train at 128K in 80 GB; also on larger GPUs, so that their figures compare.
layers=4
shaped=$dir/llama-8b-$layers-layers
config='{"model_type":"llama","hidden_size":4096,"num_hidden_layers":'$layers',"num_attention_heads":32,"num_key_value_heads":8,'
config+='"intermediate_size":14336,"vocab_size":128256,"rms_norm_eps":1e-5,"rope_theta":500000,"max_position_embeddings":8192}'
step 'models of the step benchmark' 5 bash -c "mkdir -p '$shaped' && printf '%s' '$config' >'$shaped/config.json'"
one=($build/train_llama$suffix --model nano --from-scratch --train-data "$data" --seq-len 256 --steps)
tiny=("${one[@]}" 2)

# Several ranks share the GPU as if each were a machine of its own.
export CUDA_DEVICE_ORDER=PCI_BUS_ID # GPU 0 is the one that nvidia-smi names first
export TRAIN_LLAMA_TIMEOUT=60 NCCL_DEBUG=${NCCL_DEBUG:-WARN} # a failure in NCCL has its reason in the report
sharing=(env TRAIN_LLAMA_SHARE_GPU=1 CUDA_VISIBLE_DEVICES=$first_gpu FAKE_CUDA_GPUS=1)
points() { # N...: these points of gpu_points, each in a step of its own
    local point
    for point in "$@"; do
        case $point in
        1) step 'point 1 and 3' 90 $points "${small[@]}" 1 ;;
        5) step 'point 5' 90 $points "${small[@]}" 5 ;; # forward attention of 9e15 products alone
        6) gpu_only; step 'point 6' 60 $points "${small[@]}" 6 "$properties" ;;
        *) step "point $point" 60 $points "${small[@]}" $point ;;
        esac
    done
}
compares() { [ -e "$reference" ] || [ $mode = list ] || skip="the CPU device's results are missing"; }
point_7() { # RANKS
    several; compares
    step "point 7: $1 ranks on one GPU, NCCL_HOSTID per rank" 90 "${sharing[@]}" \
        mpirun -np $1 $build/test/compare_devices$suffix compare "$reference" $length $curve_shared
}
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
if [ $mode = check ] && [ -e "$pack/sanitizer.tar.gz" ]; then
    mkdir "$dir/sanitizer"
    tar -xzf "$pack/sanitizer.tar.gz" -C "$dir/sanitizer" && "$dir/sanitizer/compute-sanitizer" --version >/dev/null 2>&1 &&
        sanitizer=$dir/sanitizer/compute-sanitizer
fi
[ $mode = check ] && [ -n "$sanitizer" ] && say "compute-sanitizer: $sanitizer, $("$sanitizer" --version 2>&1 | grep -a Version)"
# Runs a command under memcheck or racecheck. memcheck does not report API errors: it would also count the libraries' failed
# queries to the driver (cuGetProcAddress of a function that is newer than the driver), and our programs report their own API errors.
# Neither covers cuBLAS's kernels: memcheck takes their cp.async of an incomplete tile for a read out of bounds (CUDA's release notes up
# to 13.4: false positives) and ends the context. racecheck covers our own kernels alone, because in others' it reports what their
# authors know. Those of cuDNN and cuBLAS are excluded by name, because they, too, may have _kernel in their names
# (cudnn_generated_..._kernel0_0, splitKreduce_kernel, gemm_kernel_nolb).
sanitized() { # TOOL NAME COMMAND...
    local tool=$1 name=$2 kernels=() part
    shift 2
    for part in cublas gemm gemv cutlass nvjet; do kernels+=(--kernel-name-exclude kns=$part); done
    [ $tool = racecheck ] && kernels+=(--kernel-name kns=_kernel --kernel-name-exclude kns=cudnn)
    [ -n "$sanitizer" ] || skip='no compute-sanitizer here'
    gpu_only
    step "compute-sanitizer $tool$name" 120 "${sanitizer:-compute-sanitizer}" --tool $tool --report-api-errors no \
        "${kernels[@]}" --error-exitcode 1 "$@"
}
export TORCHINDUCTOR_CACHE_DIR=$dir/inductor TRITON_CACHE_DIR=$dir/triton # what is compiled for one length is reused for the next
steps_of() { # MODEL K: a step of K x 1024 tokens, ours and right after it PyTorch's
    local model=$1 S=$2 name limit=120 steps=3 timed=2 trace=()
    local batch=$((S == 8 ? 4 : 1)) # 32K rows or more at a time: products of fewer are slower
    local accum=$((128 / S / batch)) # 128K tokens a step: with fewer, much of its time is the optimizer's, which is so in no real run
    name=$(basename "$model")
    [ $S = 128 ] && timed=1 limit=200 trace=(--trace "$dir/trace-$name-128K.json")
    passed_before "benchmark: PyTorch, $name, ${S}K" || # both, so that both are of the same run
        rest=${rest//"==== benchmark: step of $name, ${S}K: status 0,"/}
    gpu_only
    step "benchmark: step of $name, ${S}K" 75 $build/train_llama --model "$model" --from-scratch --train-data "$random" \
        --seq-len ${S}K --batch-size $batch --grad-accum $accum --steps $steps "${trace[@]}"
    if [ $mode = check ] && wanted "benchmark: PyTorch, $name, ${S}K"; then
        [ -n "$torch_job" ] && { wait $torch_job || echo "status $?" >>"$dir/torch_log"; }
        torch_job=
        [ "$(tail -1 "$dir/torch")" = yes ] || {
            skip="no PyTorch that compiles for a GPU (TORCH_PYTHON names another python3): $(cat "$dir/torch")"
            skip+=" $(tail -2 "$dir/torch_log" | tr '\n' ' ')"
        }
    fi
    gpu_only
    step "benchmark: PyTorch, $name, ${S}K" $limit "${outside[@]}" "$torch" dev/bench_torch_cuda.py \
        --model "$name" --tokens $((S * 1024)) --batch $batch --grad-accum $accum --steps $timed
}
exposed() { # WHAT: of a step that left a trace
    local trace=$dir/trace-${1//, /-}.json
    [ -e "$trace" ] || [ $mode = list ] || skip='no trace of this step'
    have python3 || skip='no python3'
    step "exposed time by name, $1" 20 python3 dev/trace_sum.py --last "$trace"
}

# The steps that show most come first.
step 'Hugging Face goldens, bf16' 60 $build/test/test_golden$suffix
compares; step 'curve and gradients beside the CPU device, 1 rank' 60 $build/test/compare_devices$suffix compare "$reference" $length $curve
points 1 6 2 4
point_7 2
point_7 4
several; step 'a rank that stops is named, 2 ranks on one GPU' 60 "${sharing[@]}" TRAIN_LLAMA_TIMEOUT=10 \
    test/gpu_stopped_rank.sh "${one[@]}" 1000000 --hp 2
step 'benchmark: kernels that move memory' 40 "$bench" "${small[@]:-kernels}"
step 'benchmark: limits of the steps' 120 "$bench" "${small[@]:-limits}"
steps_of "$shaped" 8
steps_of "$shaped" 32
steps_of "$shaped" 128
exposed "llama-8b-$layers-layers, 128K"
# Behind the first benchmarks: its tensors are managed memory, which on some machines can hang the GPU, and with it all that follows.
step 'kernels, cuBLASLt, cuDNN against double' 180 $build/test/test_kernels$suffix $([ $mode = rehearse ] || echo tell)
for ranks in 2 4; do # over NVLink, which ranks that share a GPU do not take
    gpus_of_their_own $ranks; compares
    step "curve and gradients beside the CPU device, $ranks GPUs" 90 \
        mpirun -np $ranks $build/test/compare_devices$suffix compare "$reference" $length $curve_shared
done
for grid in '--hp auto' "--hp 1 --cp $gpu_total"; do
    gpus_of_their_own 2; gpu_only
    step "benchmark: step of llama-8b-$layers-layers, 128K, all GPUs, ${grid/% $gpu_total/ N}" 90 \
        mpirun -np $gpu_total $build/train_llama --model "$shaped" --from-scratch --train-data "$random" \
        --seq-len 128K $grid --steps 4 --verify
done
gpus_of_their_own 2; gpu_only
step "benchmark: step of llama-8b-$layers-layers, 256K, documents of some 16K, all GPUs, --cp N" 120 \
    mpirun -np $gpu_total $build/train_llama --model "$shaped" --from-scratch --train-data "$documents" --document-end 0 \
    --seq-len 256K --hp 1 --cp $gpu_total --steps 5 --verify
sanitized memcheck '' "${one[@]}" 1
sanitized racecheck '' "${one[@]}" 1
sanitized memcheck ', attention by hand' $points small 1
sanitized racecheck ', attention by hand' $points races
step 'benchmark: beside held SMs' 60 "$bench" "${small[@]:-beside}"
steps_of llama3.2-1b 8
steps_of llama3.2-1b 128
exposed "llama3.2-1b, 128K"
steps_of llama3.2-1b 32
step 'benchmark: attention' 120 "$bench" "${small[@]:-attention}"
step 'benchmark and point 8: matrix products' 75 "$bench" "${small[@]:-products}"
gpu_only
step "benchmark: step of llama-8b-$layers-layers, 128K, selective" 75 $build/train_llama --model "$shaped" --from-scratch \
    --train-data "$random" --seq-len 128K --recompute selective --steps 3
gpu_only
step "benchmark: step of llama-8b-$layers-layers, 128K, documents of some 16K" 120 $build/train_llama --model "$shaped" --from-scratch \
    --train-data "$documents" --document-end 0 --seq-len 128K --steps 10 \
    --trace "$dir/trace-llama-8b-$layers-layers-128K-documents.json"
exposed "llama-8b-$layers-layers, 128K, documents"
points 5 9
step 'a small run' 60 "${tiny[@]}"
step 'a small run, --stochastic-rounding, --moments bf16' 60 "${tiny[@]}" --stochastic-rounding --moments bf16
hosted=(--offload-optimizer --offload-gradients --offload-parameters)
# A virtual machine may get memory as it uses it.
ls -d /sys/bus/virtio/drivers/virtio_{balloon,mem}/virtio* 2>/dev/null | grep -q . && hosted+=(--host-memory 64GiB)
step 'a small run, model states on the host' 60 "${tiny[@]}" "${hosted[@]}" --grad-accum 2 --verify
gpu_only
step 'benchmark: step of llama3.2-1b, 128K, model states on the host' 75 $build/train_llama --model llama3.2-1b --from-scratch \
    --train-data "$random" --seq-len 128K "${hosted[@]}" --steps 3
step 'deterministic: the same bits twice' 90 \
    bash -c '"${@:2}" --out "$1/a" && "${@:2}" --out "$1/b" && cmp "$1"/{a,b}/step-00000002/model.safetensors' \
    twice "$dir" "${tiny[@]}" --deterministic
gpu_only
step 'calibration of this machine for the planner' 75 \
    $([ $mpi = 1 ] && echo mpirun -np $gpu_total) $build/train_llama --calibrate --model "$shaped"
[ -e "$properties" ] || [ $mode = list ] || skip='point 6 left no properties of this GPU'
[ $cudnn = 1 ] || skip='no cuDNN'
step "point 6: cuDNN graphs, with this GPU's own properties" 120 $build/test/test_cudnn_graphs "$properties"
[ $cudnn = 1 ] || skip='no cuDNN'
gpu_only; step 'cuDNN graphs, support check without the device' 120 $build/test/test_cudnn_graphs

# ---- the benchmarks side by side ----

# The figures come from the steps' logs in the report: medians without the first two steps (of three steps: without the first).
# Tokens/s and model FLOPs are counted alike for both (PyTorch's MFU is ours times the ratio of tokens/s). Beside our step stands the
# time that its products and its attention took alone.
table() {
    awk '
        function median(list, n, from,   i, j, x) {
            for (i = from; i <= n; i++)
                for (j = i; j > from && list[j] < list[j - 1]; j--) { x = list[j]; list[j] = list[j - 1]; list[j - 1] = x }
            return (list[int((from + n) / 2)] + list[int((from + n + 1) / 2)]) / 2
        }
        function leave() {
            if (n > 0) {
                from = n > 3 ? 3 : n > 1 ? 2 : 1
                tgs[key] = median(rate, n, from)
                mfu[key] = median(part, n, from)
            }
            n = 0
        }
        /^==== / { leave(); key = ""; peer = /benchmark: PyTorch/ }
        /^==== benchmark: (step of|PyTorch,) / && /: status (0|124|137),/ { # all steps, or those before its time limit
            key = $0; sub(/^==== benchmark: (step of|PyTorch,) /, "", key); sub(/: status.*/, "", key)
            if (!peer && !(key in seen)) { seen[key] = 1; order[++keys] = key }
        }
        key != "" && !peer && /^step .*TGS/ {
            n++
            rate[n] = $0; sub(/.*TGS */, "", rate[n]); rate[n] += 0
            part[n] = $0; sub(/.*MFU */, "", part[n]); part[n] += 0
        }
        key != "" && !peer && /^recompute / { again[key] = $0; sub(/.*keep all, /, "", again[key]); again[key] += 0 }
        key != "" && !peer && /^memory measured/ { memory[key] = $3 " " $4; sub(/,$/, "", memory[key]) }
        key != "" && peer && /^median / { torch[key] = $4; torch_memory[key] = $(NF - 1) " GiB" }
        /^limit / { k = $2 ", " $3 / 1024 "K"; tokens[k] = $3; alone[k] = $5; one_more[k] = $12 }
        END {
            leave()
            if (keys == 0) exit
            printf "\n%-40s %10s %7s %10s   %10s %7s %10s   %7s   %9s\n",
                "a step", "tokens/s", "MFU", "memory", "PyTorch", "MFU", "memory", "ratio", "of limit"
            for (i = 1; i <= keys; i++) {
                k = base = order[i]
                sub(/, selective$/, "", base)
                printf "%-40s %10.0f %6.1f%% %10s   ", k, tgs[k], mfu[k], memory[k]
                if (torch[k] > 0 && tgs[k] > 0)
                    printf "%10.0f %6.1f%% %10s   %7.3f   ", torch[k], mfu[k] * torch[k] / tgs[k], torch_memory[k], tgs[k] / torch[k]
                else
                    printf "%10s %7s %10s   %7s   ", "-", "-", "-", "-"
                if (alone[base] > 0) printf "%8.1f%%", 100 * tgs[k] * (alone[base] + again[k] * one_more[base]) * 1e-3 / tokens[base]
                printf "%s\n", (again[k] > 0 ? "   " again[k] " layers recompute, as the limit does" : "")
            }
            print "goals: ratio 1.15, 92 % of the limit, MFU 60 % at 8K and 50 % at 128K"
        }' "$report"
}

say ''
for word in "${only[@]}"; do
    grep -qF -- "$word" <<<"$names" || { failed=$((failed + 1)) && say "FAILED  --only $word: no step has this in its name"; }
done
[ $mode = list ] && exit $((failed > 0))
say "$(table)"
echo "report: $report"
[ -e "$properties" ] &&
    say "properties of this GPU for cuDNN: $properties; they belong into the table of test/test_cudnn_graphs.c,"\
" or beside it as a file given to it"
say "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
