#!/usr/bin/env bash
# The CUDA device on the CPU: every hand-written kernel against double precision (bf16 and float, plain and with sanitizers), the emulation
# on faulty kernels, the real training loop on 1 and 4 ranks against the CPU device, and the Hugging Face goldens through the CUDA kernels.
source "$(dirname "$0")/shell.sh"
export ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0 UBSAN_OPTIONS=print_stacktrace=1
build() { check "build $*" make -j2 --no-print-directory "$@"; }

# Kernels.
build DEVICE=emulated \
    build/emulated/test/{test_kernels,test_rounding,test_ring_precision,test_golden,compare_devices,bench_cuda,gpu_points} \
    build/emulated/train_llama
build DEVICE=emulated FLOATX=float build/emulated-float/test/{test_kernels,compare_devices,test_golden,test_documents}
build DEVICE=emulated SANITIZE=1 build/emulated-sanitize/test/test_kernels
build DEVICE=emulated SANITIZE=races build/emulated-races/test/test_kernels
build DEVICE=cpu build/cpu/test/compare_devices
check 'kernels, bf16, last first' build/emulated/test/test_kernels last-first # first first: the builds below, and test_cuda's
check 'kernels, float' build/emulated-float/test/test_kernels
check 'kernels, bf16, sanitizers' build/emulated-sanitize/test/test_kernels
check 'kernels, bf16, races' build/emulated-races/test/test_kernels

# The emulation reveals faults, with both ways of switching stacks.
for switch in '' -DEMULATION_UCONTEXT; do
    compile=(g++ -x c++ -std=c++17 -D_GNU_SOURCE -g -O1 -Wall -Wextra -Werror -Wno-unknown-pragmas
        -DDEVICE_EMULATED -DDEVICE_BF16 $switch test/emulation_faults.cu)
    check "build faulty kernels $switch" "${compile[@]}" -o "$dir/faults"
    check "build faulty kernels, sanitizers $switch" \
        "${compile[@]}" -fsanitize=address,undefined -fno-sanitize-recover=all -o "$dir/faults-sanitize"
    faults_found "$dir/faults" "$dir/faults-sanitize" 1 'heap-buffer-overflow'
    check "a launch that no GPU takes is refused $switch" ends_with 134 'cannot launch pass_on_kernel: a block has 1 to 1024' \
        "$dir/faults" too-many-threads
done
check 'build faulty kernels, races' make --no-print-directory DEVICE=emulated SANITIZE=races build/emulated-races/test/emulation_faults
for order in 0 1; do
    export EMULATION_REVERSE=$order
    check "no race, order $order" build/emulated-races/test/emulation_faults none
    for fault in no-barrier no-wait run-ahead only-shuffle other-block other-block-reads matrix-rows between-barriers unwritten; do
        check "a race is found, order $order: $fault" ends_with 134 'race in [a-z_]*_kernel' \
            build/emulated-races/test/emulation_faults $fault
    done
done
unset EMULATION_REVERSE

check 'sums of a ring are float, bf16' mpirun -np 8 build/emulated/test/test_ring_precision

# Training.
check 'CPU device' build/cpu/test/compare_devices write "$dir/reference"
for floatX in '' -float; do
    check "emulated$floatX beside the CPU device, 1 rank" build/emulated$floatX/test/compare_devices compare "$dir/reference"
    check "emulated$floatX beside the CPU device, 4 ranks" mpirun -np 4 build/emulated$floatX/test/compare_devices compare "$dir/reference"
done
check 'packed documents on every grid of 1 and 2 ranks, emulated-float' mpirun -np 2 build/emulated-float/test/test_documents
check 'the GPU benchmark runs on tiny sizes' build/emulated/test/bench_cuda small
check 'the GPU points run on tiny sizes' build/emulated/test/gpu_points small
check 'and, for racecheck, on tinier ones' ends_with 0 'heads 2 on 1 of 128, causal, documents: dq' build/emulated/test/gpu_points races
check 'a point that cannot be seen is none that passes' ends_with 77 '^point 6: not possible' build/emulated/test/gpu_points small 6
check 'they fail where the library computes nothing' ends_with 1 'fail: .* did not compute the backward pass' \
    env TRAIN_LLAMA_TEST_NO_ENGINE=1 build/emulated/test/gpu_points small 1
check 'and the benchmark says so' ends_with 0 'has computed no block' \
    env TRAIN_LLAMA_TEST_NO_ENGINE=1 build/emulated/test/bench_cuda small
check 'Hugging Face goldens, emulated, bf16' mpirun -np 4 build/emulated/test/test_golden
check 'Hugging Face goldens, emulated-float' mpirun -np 4 build/emulated-float/test/test_golden

# Models and states with bf16 parameters: float folders and states keep every bit, because the master weights do.
emulated=build/emulated/train_llama
small=(--model nano --from-scratch --train-data "$dir/data.bin" --seq-len 64 --steps 4 --threads 1)
on_host=(--offload-optimizer --offload-gradients --offload-parameters)
seq 1 500 | tr '\n' ' ' >"$dir/text"
check 'tokens' bash -c "make -s DEVICE=cpu tools && build/cpu/text_to_tokens '$dir/data.bin' '$dir/text'"
check 'bf16: a float folder in and out, 2 ranks' \
    mpirun -np 2 $emulated --model test/golden/folder_f32 --steps 0 --threads 1 --zero-optim 2 --export "$dir/one"
check 'bf16: and again, offloaded' $emulated --model "$dir/one" --steps 0 --threads 1 "${on_host[@]}" --export "$dir/two"
check 'bf16: both are equal' cmp "$dir/one/model.safetensors" "$dir/two/model.safetensors"
check 'bf16: and as the CPU device writes it' bash -c "make -s DEVICE=cpu build/cpu/train_llama &&
    build/cpu/train_llama --model test/golden/folder_f32 --steps 0 --threads 1 --export '$dir/three' &&
    cmp '$dir/one/model.safetensors' '$dir/three/model.safetensors'"
mkdir "$dir/large" # its embedding is read and written in three pieces (VALUES_CHUNK)
sed 's/"vocab_size": *[0-9]*/"vocab_size": 70000/' test/golden/folder_f32/config.json >"$dir/large/config.json"
pieces=(--steps 0 --threads 1 --val-data "$dir/data.bin" --seq-len 64 --eval-steps 2)
check 'bf16: large tensors out' \
    $emulated --model "$dir/large" --from-scratch "${pieces[@]}" --log "$dir/large1.jsonl" --export "$dir/large1"
check 'bf16: and in and out again, 2 ranks' \
    mpirun -np 2 $emulated --model "$dir/large1" "${pieces[@]}" --cp 2 --zero-optim 2 --export "$dir/large2"
check 'bf16: and in again' $emulated --model "$dir/large2" "${pieces[@]}" --log "$dir/large2.jsonl"
check 'bf16: master weights and parameters are the same' bash -c "cmp '$dir/large1/model.safetensors' '$dir/large2/model.safetensors' &&
    cmp <(grep val_loss '$dir/large1.jsonl') <(grep val_loss '$dir/large2.jsonl') && grep -q val_loss '$dir/large1.jsonl'"
check 'bf16: a run saves its states' $emulated "${small[@]}" --out "$dir/states" --save-every 2
mkdir "$dir/resumed"
cp -r "$dir/states/step-00000002" "$dir/resumed"
check 'bf16: resumes, offloaded' $emulated "${small[@]}" --out "$dir/resumed" --resume "${on_host[@]}"
for file in model.safetensors optimizer/optimizer.safetensors; do
    check "bf16: the same $file" cmp "$dir/states/step-00000004/$file" "$dir/resumed/step-00000004/$file"
done
loss_of() { sed -n 's/.*"val_loss":\([^,}]*\).*/\1/p' "$1"; }
evaluated=("${small[@]/#4/0}" --out "$dir/states" --resume --val-data "$dir/data.bin" --eval-steps 1)
check 'bf16: a state evaluated without master weights' $emulated "${evaluated[@]}" --log "$dir/read.jsonl"
check 'bf16: and with them' $emulated "${evaluated[@]}" --log "$dir/written.jsonl" --export "$dir/written"
check 'bf16: the same loss' [ -n "$(loss_of "$dir/read.jsonl")" -a "$(loss_of "$dir/read.jsonl")" = "$(loss_of "$dir/written.jsonl")" ]
check 'bf16: a run with stochastic rounding' $emulated "${small[@]}" --stochastic-rounding --out "$dir/drawn" --save-every 2
check 'bf16: stochastic rounding is another run' \
    ends_with 1 differ cmp "$dir"/{states,drawn}/step-00000004/model.safetensors
seq 1 30 | tokens_of single # one sample, which has no other order; the second step takes the rounded parameters of the first
for seed in 1 2; do
    for rounding in '' --stochastic-rounding; do
        $emulated --model test/golden/folder_f32 --train-data "$dir/single.bin" --seq-len 64 --steps 2 --threads 1 $rounding --seed $seed \
            --out "$dir/seed$seed$rounding" >"$dir/out" 2>&1
    done
done
check 'bf16: another seed is the same run of such a model' cmp "$dir"/seed{1,2}/step-00000002/model.safetensors
check 'bf16: but for stochastic rounding' ends_with 1 differ cmp "$dir"/seed{1,2}--stochastic-rounding/step-00000002/model.safetensors
mkdir "$dir/drawn-resumed"
cp -r "$dir/drawn/step-00000002" "$dir/drawn-resumed"
check 'bf16: resumes with the parameters as they were rounded' \
    $emulated "${small[@]}" --stochastic-rounding --out "$dir/drawn-resumed" --resume
check 'bf16: the same model' cmp "$dir/drawn/step-00000004/model.safetensors" "$dir/drawn-resumed/step-00000004/model.safetensors"
# Moments in bf16 beside float master weights.
check 'bf16: a run with bf16 moments' $emulated "${small[@]}" --stochastic-rounding --moments bf16 --out "$dir/narrow" --save-every 2
check 'bf16: bf16 moments are another run' \
    ends_with 1 differ cmp "$dir"/{drawn,narrow}/step-00000004/model.safetensors
mkdir "$dir/narrow-resumed"
cp -r "$dir/narrow/step-00000002" "$dir/narrow-resumed"
check 'bf16: bf16 moments, resumed, offloaded' \
    $emulated "${small[@]}" --stochastic-rounding --moments bf16 --out "$dir/narrow-resumed" --resume "${on_host[@]}"
for file in model.safetensors optimizer/optimizer.safetensors; do
    check "bf16: bf16 moments, the same $file" cmp "$dir/narrow/step-00000004/$file" "$dir/narrow-resumed/step-00000004/$file"
done
# Steps without labels change no parameter: rounded parameters are those of an earlier step. (The mask is 0 for every other sample.)
cp "$dir/data.bin" "$dir/half.bin"
python3 -c "
import os
n = (os.path.getsize('$dir/half.bin') - 1024) // 2
open('$dir/half.bin.mask', 'wb').write(bytes((i - 1) // 64 % 2 for i in range(n)))" # labels are the tokens after
half=(--model nano --from-scratch --train-data "$dir/half.bin" --seq-len 64 --threads 1 --steps 6 --stochastic-rounding)
check 'bf16: a run with steps without labels' ends_with 0 'none of its tokens is a label' \
    $emulated "${half[@]}" --out "$dir/half" --save-every 1 --keep 9
for step in 1 2 3 4 5; do
    mkdir "$dir/half-$step" && cp -r "$dir/half/step-0000000$step" "$dir/half-$step"
    check "bf16: resumes after step $step" $emulated "${half[@]}" --out "$dir/half-$step" --resume
    check "bf16: as it would have gone on after step $step" \
        cmp "$dir/half/step-00000006/model.safetensors" "$dir/half-$step/step-00000006/model.safetensors"
done
mkdir "$dir/wide"
sed 's/"head_dim": *[0-9]*/"head_dim": 512/' test/golden/folder_f32/config.json >"$dir/wide/config.json"
check 'larger heads than the kernels take are refused at the start' ends_with 2 'head size 512 .* up to 256' \
    $emulated --model "$dir/wide" --from-scratch --train-data "$dir/data.bin" --seq-len 64

# A dry run for CPUs counts what the CPU build counts, except that the scratch of attention depends on the number of threads.
for ring in '--inner-ring 2' '--cp-comm allgather'; do
    for build in cpu emulated; do
        build/$build/train_llama --dry-run --model llama3-8b --cluster cpu --ranks 8 --hp 2 --cp 4 --seq-len 9000 --grad-accum 2 \
            --zero-params 2 --zero-grads 4 --zero-optim full --memory-budget 999GiB $ring >"$dir/counted" 2>&1
        grep -vE '^(on|  workspace|  in all|bytes|longest) ' "$dir/counted" >"$dir/lines-$build"
        sed -n 's/^bytes of a rank: device \([0-9]*\) .*/\1/p' "$dir/counted" >"$dir/bytes-$build"
    done
    check "bf16: a dry run for CPUs, $ring: the CPU build's lines" diff "$dir/lines-cpu" "$dir/lines-emulated"
    check "bf16: a dry run for CPUs, $ring: its bytes within 0.1 %" \
        awk 'NR == FNR { here = $1; next } END { exit !(NR == 2 && $1 > 0.999 * here && $1 < 1.001 * here) }' "$dir"/bytes-{cpu,emulated}
done
# And the CPU build counts for GPUs what a GPU build counts, up to the scratch of attention in a single call, in several, and for cut rows.
# One rank: here reductions over several take scratch, which a GPU's library has of its own. The emulated build lacks the 32 MiB of
# workspace of a GPU's products.
for length in 2K 128K 2M; do
    for build in cpu emulated; do
        build/$build/train_llama --dry-run --model llama3-8b --cluster h100 --ranks 1 --seq-len $length --recompute full \
            --memory-budget 999GiB 2>&1 | sed -n 's/^bytes of a rank: device \([0-9]*\) .*/\1/p' >"$dir/bytes-$build"
    done
    check "a dry run for GPUs, $length: the GPU build's bytes within 0.01 %" awk '
        NR == FNR { here = $1 - 33554432; next }
        END { exit !(NR == 2 && $1 > 0.9999 * here && $1 < 1.0001 * here) }' "$dir"/bytes-{cpu,emulated}
done
check 'a plan for GPUs with other host memory than usual' ends_with 0 "^mpirun -np 2 .*--host-memory 107374182400 " \
    build/emulated/train_llama --plan --model tiny --ranks 2 --host-memory 100GiB
check 'the host memory of a machine is for all of its ranks' ends_with 2 'of host memory but may use only 512.0 KiB' \
    mpirun -np 2 build/emulated/train_llama --model nano --from-scratch --train-data "$dir/data.bin" --seq-len 64 --steps 1 \
    --offload-optimizer --host-memory 1MiB
check 'stochastic rounding, 4 ranks' mpirun -np 4 build/emulated/test/test_rounding

closing_line
