#!/usr/bin/env bash
# scripts/gpu_check.sh itself, without a GPU: nvidia-smi, make, gcc and the programs are scripts. (`--rehearse`, by hand, runs real steps.)
source "$(dirname "$0")/shell.sh"
mkdir -p "$dir/bin" "$dir/scripts" "$dir/test"
cp scripts/{gpu_check,mpi_env}.sh "$dir/scripts"
cp "$(type -P true)" "$dir/test/gpu_stopped_rank.sh"
replace() { # NAME SCRIPT
    printf '%s\n' '#!/bin/bash' "$2" >"$dir/bin/$1" && chmod +x "$dir/bin/$1"
}
replace nvidia-smi '[[ $* == *compute_cap* ]] && echo "NVIDIA H100 80GB HBM3, 9.0" || echo 81559'
replace make 'for file; do
    case $file in
    build/*/train_llama | build/*/test/* | build/*/text_to_tokens) mkdir -p "$(dirname "$file")"; cp bin/program "$file" ;;
    esac
    [[ $file == build/*/train_llama ]] && cp "$(type -P true)" "$file" # a program whose libraries are found
done
echo "CUDA 13.0 (of the test)"'
replace gcc '! grep -q "${NO_HEADER:-none}" || [[ ${CPATH:-} == */gpu_check_pack/* ]]' # a header of this name is only found in the pack
replace program 'case $0 in
*text_to_tokens) head -c 4096 /dev/zero >"$1" ;;
*cpu-check/*/compare_devices) : >"$2" ;; # the results of the CPU device
*gpu_points) [ "$1" != 6 ] || : >"$2" ;; # the properties of the GPU
*"${HANGS:-none}") [ -z "${STUBBORN:-}" ] || trap "" TERM
    echo $$ >hanging; cp "$(type -P sleep)" "$0-sleeps"; exec "$0-sleeps" 100 ;;
*"${FAILS:-none}") echo the first line # of 2 ranks
    if [ -z "${FAULT:-}" ]; then
        yes | head -c 50000
    else
        echo "$FAULT; core dump: ${CUDA_ENABLE_COREDUMP_ON_EXCEPTION:-0}, NCCL: $NCCL_DEBUG"
    fi
    [ -z "${CRASH:-}" ] || kill -SEGV $$
    echo 3 passed, 1 failed; exit 1 ;;
esac'
replace python3 'echo "${TORCH:-yes}"'
replace timeout '[[ "$*" == *"${HELD:-none}"* ]] && exec sleep 50
exec '"$(type -P timeout)"' "$@"' # HELD: by the driver
replace cuda-gdb 'echo "the debugger: $*"'
replace cmp true # of states that the program above does not write
gpu_check() { env PATH="$dir/bin:$PATH" "$@"; }
checked=("$dir/scripts/gpu_check.sh" --report "$dir/report.txt")
says() { check "it says: $1" grep -q -- "$1" "$dir/report.txt"; }

# Beside the other checks, because they take 20 to 40 seconds.
beside() { # NAME OPTION...: the check with these options, by a copy of the script in a folder of its own
    mkdir "$dir/$1" && cp -r "$dir"/{bin,scripts,test} "$dir/$1"
    gpu_check "$dir/$1/scripts/gpu_check.sh" --report "$dir/$1/report.txt" "${@:2}" >"$dir/$1/shown" 2>&1 </dev/null
}
HELD='seq 1' beside held --only 'a small run' &
HANGS=bench_cuda beside hangs --only 'that move memory' &
HANGS=test_golden beside limited --limit 20 &
HANGS=test_golden STUBBORN=1 beside stubborn --limit 20 &

mkdir "$dir/a folder"
check 'all steps pass, also where paths have spaces' gpu_check TMPDIR="$dir/a folder" \
    "$dir/scripts/gpu_check.sh" --report "$dir/a folder/report.txt"
mv "$dir/a folder/report.txt" "$dir"
says '^[1-9][0-9]* passed, 0 failed'
says "^ok      point 6: cuDNN graphs, with this GPU's own properties"
runs_of() { grep -c "^==== $1: " "$dir/report.txt"; } # with those of the reports that it begins with
ours_and_limits() { echo "$(runs_of 'benchmark: step of llama3.2-1b, 8K') $(runs_of 'benchmark: limits of the steps')"; }
mv "$dir/report.txt" "$dir/passed.txt"
check 'the rest of a report where all passed' gpu_check "${checked[@]}" --rest "$dir/passed.txt" --only 8K --only limits
check 'has no step beside PyTorch again, but their limits' [ "$(ours_and_limits)" = '1 2' ]
rm "$dir/report.txt"
check 'no OpenBLAS, and PyTorch that compiles nothing' gpu_check NO_HEADER=cblas TORCH='no Python.h' "${checked[@]}"
says 'skipped reference of the CPU device: no OpenBLAS'
says "skipped curve and gradients beside the CPU device, 1 rank: the CPU device's results are missing"
says 'skipped benchmark: PyTorch, llama3.2-1b, 8K: no PyTorch that compiles .*no Python.h'
check 'the rest of a report without PyTorch' gpu_check "${checked[@]}" --rest "$dir/report.txt" --only 8K --only limits
check 'has our steps again, beside it' [ "$(ours_and_limits)" = '2 2' ]
rm "$dir/report.txt"
hanging_ends() { for ((i = 0; i < 100; i++)); do kill -0 "$(cat "$dir/hanging")" 2>/dev/null && sleep 0.1 || return 0; done && return 1; }
for ending in 'INT 130' 'TERM 143'; do # the script gets it from timeout, which does not ignore SIGINT in the background, as bash does
    rm -f "$dir/hanging" "$dir/report.txt"
    env PATH="$dir/bin:$PATH" HANGS=test_golden timeout -k 20 200 "${checked[@]}" >"$dir/ended" 2>&1 </dev/null &
    job=$!
    until_shown . "$dir/hanging"
    kill -${ending% *} $job
    wait $job # bash may say last that a program was terminated
    check "SIG${ending% *} during a step ends the check" \
        [ "$? $(grep -v '^Terminated$' "$dir/ended" | tail -1 | grep -o 'Hugging Face goldens')" = "${ending#* } Hugging Face goldens" ]
    check 'and the step' hanging_ends
done
rm "$dir/report.txt"
failing=("${checked[@]}" --only kernels,)
check 'a step that crashes' ends_with 1 'FAILED  kernels, .*(status 139)' gpu_check FAILS=test_kernels CRASH=1 "${failing[@]}"
says '^the debugger: -batch -nx -ex run .*build/.*/test_kernels tell'
check 'a fault of the GPU' ends_with 1 'FAILED  kernels, .*(status 1)' \
    gpu_check FAILS=test_kernels FAULT='an illegal memory access was encountered' "${failing[@]}"
says '^an illegal memory access .*core dump: 1'
check 'a fault of NCCL' ends_with 1 'FAILED  point 7: 2 ranks .*(status 1)' \
    gpu_check FAILS=90/test/compare_devices FAULT='NCCL: unhandled system error' "${checked[@]}" --only '7: 2 ranks'
says '^NCCL: unhandled system error.*NCCL: INFO'
check 'a step that fails is the status' ends_with 1 'FAILED  kernels, .*(status 1)' gpu_check FAILS=test_kernels "${failing[@]}"
says '^the first line'
says '^\[... [0-9]* bytes ...\]'
cp "$dir/report.txt" "$dir/failed.txt"
check 'the rest: what did not pass' gpu_check "${checked[@]}" --rest "$dir/report.txt" --only kernels,
says '^ok      kernels,'
for order in 'passed failed' 'failed passed'; do
    check "the rest of two reports: $order" \
        gpu_check "${checked[@]}" --rest "$dir/${order% *}.txt" --rest "$dir/${order#* }.txt" --only kernels,
    check 'of which the later one counts' [ "$(runs_of 'kernels, .*')" = $([ "$order" = 'passed failed' ] && echo 3 || echo 2) ]
done
replace compute-sanitizer 'echo "========= Error: Device not supported. Please refer to its documentation"
echo "error: no usable GPU"; exit 2'
check 'compute-sanitizer that does not support the device is no failure' gpu_check "${checked[@]}" --only memcheck
says '^skipped compute-sanitizer memcheck: .*Device not supported'
replace compute-sanitizer 'echo "========= Error: Race reported between Write access at a_kernel and Read access at a_kernel [4 hazards]"
echo "========= Internal Sanitizer Error: The Sanitizer failed to handle a hardware exception."; exit 1'
check 'a race that racecheck has found before it failed by itself' ends_with 1 '^FAILED  compute-sanitizer racecheck' \
    gpu_check "${checked[@]}" --only racecheck
replace compute-sanitizer 'echo "========= Internal Sanitizer Error: The Sanitizer failed to handle a hardware exception."; exit 1'
check 'is one, but without a race there is no failure' gpu_check "${checked[@]}" --only racecheck
says '^skipped compute-sanitizer racecheck: .*Internal Sanitizer Error'

# The pack.
pack=$dir/gpu_check_pack
mkdir -p "$pack"/debian/usr/{bin,include/cjson,lib/machine/openmpi/lib} "$dir"/{own,none}
touch "$pack"/debian/usr/{include/cjson/cJSON.h,lib/machine/lib{cjson.so.1,mpi.so.40}}
printf '%s\n' '#!/bin/bash' 'exec "${@:3}"' | tee "$dir/own/mpirun" >"$pack/debian/usr/bin/orterun"
printf '%s\n' '#!/bin/bash' '[[ $1 == --showme:* ]]' >"$dir/own/mpicc"
printf '%s\n' '#!/bin/bash' false >"$dir/none/mpicc"
chmod +x "$dir"/{own,none}/* "$pack/debian/usr/bin/orterun"
with_pack() { # FOLDER: of Open MPI's commands
    env -u LD_LIBRARY_PATH -u LIBRARY_PATH -u CPATH PATH="$dir/$1:$dir/bin:$PATH" NO_HEADER=cJSON "${checked[@]}" \
        --only 'point 7: 2 ranks'
}
check 'where the machine has Open MPI, the pack' with_pack own
says "^ok      point 7: 2 ranks"
says "^LD_LIBRARY_PATH=$pack/cjson\$"
check 'gives cJSON alone' [ "$(cd "$pack" && echo cjson/*)" = 'cjson/include cjson/libcjson.so.1' ]
check 'where it has none, the pack gives that, too' with_pack none
says "^ok      point 7: 2 ranks"
says "^LD_LIBRARY_PATH=$pack/debian/usr/lib/machine:$pack/debian/usr/lib/machine/openmpi/lib:$pack/cjson\$"
rm -r "$pack/debian"
for status in 0 1; do # of compute-sanitizer --version
    printf '%s\n' '#!/bin/bash' "echo Version of the pack; exit $status" >"$dir/none/compute-sanitizer"
    chmod +x "$dir/none/compute-sanitizer"
    tar -C "$dir/none" -czf "$pack/sanitizer.tar.gz" compute-sanitizer
    check "a compute-sanitizer in the pack, status $status" gpu_check "${checked[@]}" --only racecheck
    says "^$([ $status = 0 ] && echo 'ok     ' || echo skipped) compute-sanitizer racecheck"
done
rm -r "$pack"
# GPUs of several kinds, and a toolkit that does not know one of them.
cp -r "$dir/bin" "$dir/kinds"
replace ../kinds/nvidia-smi '[[ $* == *compute_cap* ]] || exec echo 81559
printf "%s\n" "a new GPU, 12.0" "an old GPU, 7.5" "an A100, 8.0" "a new GPU, 12.0"'
replace ../kinds/make 'echo "CUDA 12.4 ('"$dir"'/kinds/nvcc) for sm $(sed -E "s|.*CUDA_ARCHS=([0-9 ]*[0-9]).*|\1|" <<<"$*")"'
replace ../kinds/nvcc 'printf "compute_%s\n" 50 80 86 90'
kinds() { env PATH="$dir/kinds:$PATH" "$dir/scripts/gpu_check.sh" --preflight; }
check 'the newest kernels that the toolkit can make' ends_with 0 'for sm 80 90$' kinds
check 'and a note' ends_with 0 '^note: this toolkit does not know sm_120; the kernels are those of sm_90' kinds
replace ../kinds/nvcc 'printf "compute_%s\n" 80 90 100 120'
check 'all kinds of GPUs that will do, each once' ends_with 0 'for sm 80 120$' kinds
check 'a word that no step has in its name' ends_with 1 'FAILED  --only kernals: no step has this' gpu_check "${checked[@]}" --only kernals
check 'a report that is none' ends_with 2 '^error: --rest: .* not a report of this check' scripts/gpu_check.sh --rest scripts/gpu_check.sh
check 'cJSON is named where it is missing' ends_with 2 "missing: cJSON's header" gpu_check NO_HEADER=cJSON "${checked[@]}"
if nvidia-smi -L >"$dir/gpus" 2>&1; then skip 'a GPU that is missing is named: one is here'; else
    check 'a GPU that is missing is named' ends_with 2 'missing: a GPU' scripts/gpu_check.sh
fi
check 'its steps are listed' bash -c "scripts/gpu_check.sh --dry-run | grep -q 'benchmark and point 8'"
check 'the build uses all cores, whatever OMP_NUM_THREADS says' bash -c "
    OMP_NUM_THREADS=123 scripts/gpu_check.sh --dry-run | grep 'make ' | grep -q -- '-j$(env -u OMP_NUM_THREADS nproc) '"
for wrong in '--limit 0' '--limit' '--limit 10s' '--limit 1000000'; do
    check "refused: $wrong" ends_with 2 'legal values are 1 to 999999' scripts/gpu_check.sh $wrong
done
wait
for name in limited stubborn; do # of which one does not heed the first signal
    check "a step that hangs, at the limit of the whole check, $name" \
        grep -q '^skipped Hugging Face goldens, bf16: no time left of 20 s (stopped after [0-9]* s)' "$dir/$name/report.txt"
    check 'those after it are skipped' grep -q '^skipped point 2: no time left of 20 s' "$dir/$name/report.txt"
    check 'and none has failed' grep -q '^[1-9][0-9]* passed, 0 failed' "$dir/$name/report.txt"
done
check 'a step that hangs is not done at its limit' \
    grep -q '^FAILED  benchmark: kernels that move memory (not done after 40 s)' "$dir/hangs/report.txt"
check 'and where it hung' grep -q '^the debugger: -p [0-9]* .*info cuda kernels' "$dir/hangs/report.txt"
check 'nor one that the driver does not let go' grep -q '^FAILED  token file (not done after 20 s)' "$dir/held/report.txt"
check 'after which the check goes on' grep -q '^ok      a small run' "$dir/held/report.txt"
closing_line
