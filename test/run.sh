#!/usr/bin/env bash
# Runs every test on this machine: `make test`. Each test is one program (test_*.c, its first line says on how many ranks) or one shell
# script (test_*.sh). All programs run on the CPU device, then again with sanitizers, except those marked `// sanitize: no`; the scripts
# also run the CUDA kernels under emulation. First come the programs of several ranks, one at a time, because ranks that share the cores
# with a compiler wait for each other (test_zero: 4 s alone, 100 s beside nvcc); then scripts and programs of one rank, two at a time.
#   test/run.sh [NAME ...]     only the tests whose name contains one of these
# Ends with "N passed, N failed" (, N skipped). These count programs, scripts and builds; each test prints its own number of checks. Single
# checks that a test cannot make on this machine (`skip` in shell.sh) are counted and listed before.
set -u
unset CDPATH # with it, cd may go elsewhere
cd "$(dirname "$0")/.."
for name in "$@"; do
    # test_emulated.sh and test_cuda.sh run the others.
    ls test/test_*.sh $(grep -L '^// device: ' test/test_*.c) | sed 's,.*/,,; s/\.[a-z]*$//' | grep -qF -- "$name" && continue
    echo "error: no test has '$name' in its name"
    exit 2
done
scripts/setup.sh
source scripts/mpi_env.sh
# Open MPI itself leaks. With detection of use after return, gcc 13 does not align 64-byte registers on the stack (gcc bug 110027).
export UBSAN_OPTIONS=print_stacktrace=1 ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0
# Two tests share the cores: OpenMP threads that have nothing to do sleep. By default they spin a while, on cores the other test could use.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
# All ranks are on this machine: Open MPI need not look for networks, which takes every rank 0.2 s.
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=^ofi
logs=build/test-logs
mkdir -p "$logs"
results=$logs/results # a line per test: ok, failed or skipped, and the name
begun=$logs/begun     # a folder for each script, and program of one rank, that has been started
: >"$results"
rm -rf "$begun" && mkdir "$begun"
started=$SECONDS

wanted() { # name
    [ ${#only[@]} -eq 0 ] && return 0
    for pattern in "${only[@]}"; do [[ $1 == *$pattern* ]] && return 0; done
    return 1
}
only=("$@")

report() { # name status seconds log
    if [ "$2" -eq 0 ]; then
        echo "ok $1" >>"$results"
        printf 'ok      %-34s %4d s   %s\n' "$1" "$3" "$(grep -aE '[0-9]+ passed, [0-9]+ failed' "$4" | tail -1)"
    elif [ "$2" -eq 77 ]; then
        echo "skipped $1: $(tail -1 "$4")" >>"$results"
        printf 'skipped %-34s %4d s   %s\n' "$1" "$3" "$(tail -1 "$4")"
    else
        echo "failed $1" >>"$results"
        printf 'FAILED  %-34s %4d s   exit status %d, %s:\n%s\n' "$1" "$3" "$2" "$4" \
            "$({ grep -a -m20 -A15 '^FAIL' "$4" || tail -25 "$4"; } | sed 's/^/        /')"
    fi
}
stop() {
    kill $(jobs -p) 2>/dev/null
    wait
    exit 130
}
trap stop INT TERM
run() { # name ranks command...
    local name=$1 ranks=$2 log="$logs/$1.log" began=$SECONDS
    shift 2
    if [ "$ranks" -gt 1 ]; then set -- mpirun -np "$ranks" "$@"; fi
    timeout 1800 "$@" >"$log" 2>&1 </dev/null & # which has a process group of its own, where Ctrl-C does not reach it
    wait $!
    report "$name" $? $((SECONDS - began)) "$log"
}
build() { # make arguments; a build that fails is a failed test
    local log="$logs/build-$1.log" began=$SECONDS
    local name=$1
    shift
    make -j2 --no-print-directory "$@" >"$log" 2>&1
    report "build $name" $? $((SECONDS - began)) "$log"
}

programs() { # alone (those of several ranks) or together (those of one rank that have not been started yet), suffix folder name...
    local how=$1 suffix=$2 folder=$3 name ranks
    shift 3
    for name in "$@"; do
        ranks=$(sed -n 's|^// ranks: \(up to \)\?\([0-9]*\).*|\2|p' "test/$name.c" | head -1)
        if [ "${ranks:-1}" -gt 1 ]; then
            [ "$how" = alone ] && run "$name$suffix" "$ranks" "$folder/test/$name"
        elif [ "$how" = together ]; then
            mkdir "$begun/$name$suffix" 2>/dev/null && run "$name$suffix" 1 "$folder/test/$name"
        fi
    done
}
two_at_a_time() { # runs the scripts and programs that have not been started yet, the longest first
    local script name
    trap stop INT TERM # a subshell does not inherit it
    for script in test/test_{cuda,emulated,memory,plan,state,folder}.sh test/test_*.sh; do
        name=$(basename "$script" .sh)
        wanted "$name" && mkdir "$begun/$name" 2>/dev/null && run "$name" 1 bash "$script"
    done
    programs together '' build/cpu "${all[@]}"
    programs together -sanitize build/cpu-sanitize "${sanitized[@]}"
}

# The programs on the CPU device, as built for users and under AddressSanitizer and UndefinedBehaviorSanitizer.
all=() sanitized=()
for source in test/test_*.c; do
    name=$(basename "$source" .c)
    grep -q '^// device: ' "$source" && continue # test_emulated.sh or test_cuda.sh builds and runs it
    wanted "$name" || continue
    all+=("$name")
    grep -q '^// sanitize: no' "$source" || sanitized+=("$name")
done
build cpu DEVICE=cpu build/cpu/train_llama tools "${all[@]/#/build/cpu/test/}"
[ -e train_llama ] || ln -sf build/cpu/train_llama train_llama # that of another build stays
if [ ${#sanitized[@]} -gt 0 ]; then
    build sanitize DEVICE=cpu SANITIZE=1 build/cpu-sanitize/train_llama "${sanitized[@]/#/build/cpu-sanitize/test/}"
fi
# By default glibc gives a large buffer back when it is freed, and the kernel clears each page of the next one: of test_recompute a third.
export MALLOC_TOP_PAD_=33554432
programs alone '' build/cpu "${all[@]}"
programs alone -sanitize build/cpu-sanitize "${sanitized[@]}"
unset MALLOC_TOP_PAD_ # test_memory measures what programs hold
if wanted test_cuda || wanted test_emulated; then # built before they start, because both need these and run side by side
    build emulated DEVICE=emulated build/emulated/train_llama
    build emulated-races DEVICE=emulated SANITIZE=races build/emulated-races/test/test_kernels
    build compare_devices DEVICE=cpu build/cpu/test/compare_devices
fi
# Ranks that wait for each other ask again and again. With a lower priority they leave the cores to the other test, which has work to do.
mkdir -p build/test-bin
printf '#!/bin/bash\nexport PATH=${PATH//"%s:"/}\nexec nice -n 10 mpirun "$@"\n' "$PWD/build/test-bin" >build/test-bin/mpirun
chmod +x build/test-bin/mpirun
PATH=$PWD/build/test-bin:$PATH
two_at_a_time &
two_at_a_time
wait
for name in $(basename -s .sh test/test_*.sh); do wanted "$name" && all+=("$name"); done
for name in "${all[@]}" "${sanitized[@]/%/-sanitize}"; do # where memory is short, the kernel may kill what runs a test, too
    grep -qE "^[a-z]+ $name(:|\$)" "$results" || echo "failed $name: no result" >>"$results"
done

echo
grep -E '^(failed|skipped) ' "$results" | sed 's/ /: /'
unmade=0
for name in $(sed -n 's/^ok \(test_\)/\1/p; s/^failed \(test_[^:]*\)$/\1/p' "$results"); do
    n=$(sed -nE 's/^test_[a-z_]*: [0-9]+ passed, [0-9]+ failed, ([0-9]+) skipped$/\1/p' "$logs/$name.log")
    [ -n "$n" ] && unmade=$((unmade + n)) && grep -a '^skip ' "$logs/$name.log" | sort -u | sed "s/^skip/    $name:/"
done >"$logs/unmade"
[ $unmade -eq 0 ] || { echo "$unmade single checks were skipped:" && cat "$logs/unmade"; }
count() { grep -c "^$1 " "$results"; }
nvidia-smi -L >/dev/null 2>&1 && echo "nothing ran on the GPU of this machine: scripts/gpu_check.sh tests it"
echo "in $((SECONDS - started)) s"
skipped=$(count skipped)
echo "$(count ok) passed, $(count failed) failed$([ "$skipped" -eq 0 ] || echo ", $skipped skipped")"
[ "$(count failed)" -eq 0 ] && [ "$(count ok)" -gt 0 ]
