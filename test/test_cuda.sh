#!/usr/bin/env bash
# The CUDA build, on a machine that need not have a GPU: it compiles for every target without a warning, its kernels spill no registers, the
# program starts without a driver for help, planning and errors, and cuDNN's support check takes the graphs that the trainer asks for.
# The device's host code (streams and events, cuBLASLt, NCCL) trains over a fake of the three libraries (fake_cuda.c), on 1 and on 4 ranks,
# with all transfers as late as the events allow and with all at once, and with every access of a kernel checked against the transfers in
# flight. The kernels also run as nvcc's PTX, launched by nvcc's own host code.
# Skipped, by name, where the CUDA toolkit, cuDNN or NCCL is missing.
source "$(dirname "$0")/shell.sh"
if ! make --no-print-directory DEVICE=cuda -n tests >"$dir/found" 2>&1; then
    missing=$(grep -o -m1 'DEVICE=cuda: [A-Za-z]* not found.*' "$dir/found") # also one that is too old; any other error is a failure
    [ -n "$missing" ] && echo "skipped: $missing" && exit 77
    cat "$dir/found"
    exit 1
fi
export OMP_NUM_THREADS=1 # for the fake's products: threads that wait for the next one would spin on the cores of other ranks
no_spills() { # ptxas -v names each kernel, then how much of it lies in local memory
    awk '/Compiling entry function/ { kernel = $0 }
         /bytes spill stores/ { seen++; if ($0 !~ / 0 bytes spill stores, 0 bytes spill loads/) { bad = 1; print kernel; print } }
         END { if (seen == 0) print "no kernel was compiled"; exit bad || seen == 0 }' "$1"
}

grep '^CUDA ' "$dir/found"
build=build/cuda-check # a folder of its own, so that every kernel is compiled and reported
faked=($build/train_llama-without-gpu --model nano --from-scratch)
on_host=(--offload-optimizer --offload-gradients --offload-parameters)
rm -rf $build/device/cuda/*.o
check 'build for all targets without warnings' make -j2 --no-print-directory DEVICE=cuda BUILD=$build PTXAS='-Xptxas -v' \
    $build/train_llama $build/test/{test_cudnn_graphs,test_cudnn_calls,bench_cuda}
cp "$dir/why" "$dir/build.log"
check 'no warnings' bash -c "! grep -iE 'warning( |:|#)' '$dir/build.log'"
check 'no kernel spills registers' no_spills "$dir/build.log"
check 'calls of cuDNN, engines that do not run among them' $build/test/test_cudnn_calls
check 'properties of a GPU written' $build/test/test_cudnn_graphs write "$dir/gpu.json"
sed -i 's/NVIDIA H200/a GPU of a file/' "$dir/gpu.json"
check 'and read: cuDNN graphs of that GPU, and of the others of the table' $build/test/test_cudnn_graphs "$dir/gpu.json" table
cp "$dir/why" "$dir/graphs.log"
check 'it is the GPU of the file, and 3 others' [ "$(grep -c '^a GPU of a file: [1-9]\|^NVIDIA .*: [1-9]' "$dir/graphs.log")" -eq 4 ]
head -c 300 "$dir/gpu.json" >"$dir/cut.json"
echo '{"deviceName": "a GPU", "deviceVer": 900}' >"$dir/few.json"
check 'a broken file of properties is refused' ends_with 2 'cut.json: has no deviceName' $build/test/test_cudnn_graphs "$dir/cut.json"
check 'properties that cuDNN does not take are refused' ends_with 2 'few.json: cuDNN does not take' \
    $build/test/test_cudnn_graphs "$dir/few.json"
check 'a file that is not there is refused' ends_with 2 'none.json: cannot be opened' $build/test/test_cudnn_graphs "$dir/none.json"
check 'build over fake CUDA' make -j2 --no-print-directory DEVICE=cuda BUILD=$build $build/train_llama-without-gpu \
    $build/test/{compare_devices,test_comm,test_golden,test_kernels,test_calibrate_nodes,bench_cuda}-without-gpu
# Tests touch no memory of the GPU; test_kernels alone does, in managed memory, which it must not read before its kernels are done.
check 'test_golden over fake CUDA' $build/test/test_golden-without-gpu
check 'test_golden touches no memory of the GPU' env FAKE_CUDA_APART=1 $build/test/test_golden-without-gpu gqa_llama31
check 'test_kernels over fake CUDA' env FAKE_CUDA_APART=1 $build/test/test_kernels-without-gpu
full() { FAKE_CUDA_FULL=1 "$@" >"$dir/full" 2>&1; } # its notes go to $dir/full
check 'products without memory to time them' full $build/test/test_kernels-without-gpu products
check 'a note says so' grep -q 'not enough memory to time matrix products' "$dir/full"
check 'products that leave SMs to others, over fake CUDA, with the MFU of an H200' \
    ends_with 0 ', MFU ' $build/test/bench_cuda-without-gpu small
nameless() { # name of a GPU
    FAKE_CUDA_NAME="$1" $build/test/bench_cuda-without-gpu small >"$dir/nameless" &&
        grep -q '^limit ' "$dir/nameless" && ! grep ', MFU ' "$dir/nameless"
}
for name in 'NVIDIA RTX A1000' 'NVIDIA A100-SXM4-40GB MIG 3g.20gb' 'NVIDIA GeForce RTX 4090 D'; do
    check "the peak of an $name is not known" nameless "$name"
done
seq 1 2000 | tr '\n' ' ' >"$dir/numbers"
check 'tokens' bash -c "make -s DEVICE=cpu tools && build/cpu/text_to_tokens '$dir/numbers.bin' '$dir/numbers'"
comm=$build/test/test_comm-without-gpu
check 'transfers over fake NCCL, 8 ranks, behind the host' env FAKE_CUDA_SLOW=1 mpirun -np 8 $comm
check 'transfers without end are no reason to end' env TRAIN_LLAMA_TIMEOUT=2 mpirun -np 2 $comm busy
check 'a peer never answers' \
    ends_with 1 '^rank 0: kv_inner sendrecv number 2, 50 bytes, to rank 3, from rank 1: not done after 2 s' \
    env TRAIN_LLAMA_TIMEOUT=2 mpirun -np 4 $comm silent
check 'one of all never answers' ends_with 1 'kv_inner allgather number 2, 150 bytes, ranks 3 2 1 0: not done' \
    env TRAIN_LLAMA_TIMEOUT=2 mpirun -np 4 $comm silent-all
check 'of two that are never answered the first is named' ends_with 1 'kv_outer sendrecv number 2, 50 bytes, to .*: not done after 2 s' \
    env TRAIN_LLAMA_TIMEOUT=2 mpirun -np 2 $comm silent-two
check 'a rank of a run that stops is named, and the run ends' env TRAIN_LLAMA_TIMEOUT=8 test/gpu_stopped_rank.sh \
    $build/train_llama-without-gpu --model nano --from-scratch --train-data "$dir/numbers.bin" --seq-len 64 --steps 1000000 --hp 2
check 'too many transfers' ends_with 1 '256 transfers are already in flight' mpirun -np 2 $comm too-many
check 'a group freed with a transfer under way' ends_with 1 'kv_inner: comm_free with 1 unfinished' $comm free-early
check 'a finish without a start' ends_with 1 'kv_inner: comm_finish without a started transfer' $comm finish-early
check 'machines are calibrated over the fakes, 4 ranks on 2 nodes' mpirun -np 4 $build/test/test_calibrate_nodes-without-gpu
check 'build for the CPU device' make -j2 --no-print-directory DEVICE=cpu build/cpu/test/compare_devices
check 'reference on the CPU device' build/cpu/test/compare_devices write "$dir/reference"
check 'trains over fake CUDA, 1 rank, late transfers' $build/test/compare_devices-without-gpu compare "$dir/reference"
races=build/cuda-races/test/compare_devices-without-gpu
check 'build over fake CUDA, races' make -j2 --no-print-directory DEVICE=cuda SANITIZE=races $races
check 'reference of a step in whole tiles' build/cpu/test/compare_devices write "$dir/whole" 512 1
check 'reference of 2 steps' build/cpu/test/compare_devices write "$dir/short" 96 2
check 'trains over fake CUDA, 4 ranks, late transfers' \
    mpirun -np 4 $build/test/compare_devices-without-gpu compare "$dir/short" 96 2 # test_emulated: 20 steps
check 'trains over fake CUDA, 1 rank, early transfers' \
    env FAKE_CUDA_APART=1 FAKE_CUDA_EAGER=1 $build/test/compare_devices-without-gpu compare "$dir/short" 96 2 # 4: below
check 'no kernel touches what a transfer needs, 4 ranks' mpirun -np 4 $races compare "$dir/whole" 512 1
check 'nor from step to step' mpirun -np 4 $races compare "$dir/short" 96 2
check 'a forgotten wait is found' ends_with 1 'compute touches what a transfer under way needs' \
    env FAKE_CUDA_FORGET=20 mpirun -np 4 $races compare "$dir/whole" 512 1
trainer=build/cuda-races/train_llama-without-gpu
check 'build the program, races' make -j2 --no-print-directory DEVICE=cuda SANITIZE=races $trainer
mkdir "$dir/deep" # more layers than offload slots: otherwise nothing is copied to the host
sed 's/"num_hidden_layers": *[0-9]*/"num_hidden_layers": 6/' test/golden/folder_f32/config.json >"$dir/deep/config.json"
deep=($trainer --model "$dir/deep" --from-scratch --train-data "$dir/numbers.bin" --seq-len 64 --steps 2)
check 'predictions are for the GPU at hand' ends_with 0 'predicted for h200 (the default' "${deep[@]}"
check 'or for an H100, where it is none that is built in' \
    ends_with 0 'predicted for h100 (the default' env FAKE_CUDA_NAME='NVIDIA GeForce RTX 4090' "${deep[@]}"
check 'layers that keep all and are offloaded: nor is a copy under way disturbed' \
    "${deep[@]}" --recompute none --offload-activations 1 "${on_host[@]}" --grad-accum 2
check 'nor gradients and parameters on their way to the host and back, of 2 ranks' \
    mpirun -np 2 "${deep[@]}" --recompute full --zero-params full "${on_host[@]}" --grad-accum 2
check 'nor where the update waits for the next forward pass, and its all-gather with it' \
    mpirun -np 2 "${deep[@]}" --recompute full --zero-optim full --offload-optimizer
check 'a wait that work aside forgets is found' ends_with 1 'two transfers, or one and work aside, need the same memory' \
    env FAKE_CUDA_FORGET=1 "${deep[@]}" --recompute full --offload-optimizer
check 'nor where layers are recomputed, which takes two slots' "${deep[@]}" --recompute selective --offload-activations 1
check 'nor with 4 ranks in SeqAlltoAll, where most buffers share places' mpirun -np 4 $trainer --model nano --from-scratch \
    --train-data "$dir/numbers.bin" --seq-len 512 --steps 1 --hp 4 --recompute selective --offload-activations 1
apart=(env FAKE_CUDA_APART=1 $build/train_llama-without-gpu --model test/golden/folder_f32 --train-data "$dir/numbers.bin"
    --val-data "$dir/numbers.bin" --seq-len 64 --eval-every 1 --eval-steps 1 --sample-every 1 --save-every 1 --out "$dir/apart" --resume
    --recompute none --offload-activations 1 "${on_host[@]}" --verify)
check 'the host touches no memory of the GPU' "${apart[@]}" --steps 1
check 'nor where it resumes and exports, with host memory pinned in pieces' \
    env TRAIN_LLAMA_TEST_PIECE=65536 "${apart[@]}" --steps 2 --export "$dir/apart-folder"
check 'nor of several ranks, whose transfers take no other, and are behind the host' \
    env FAKE_CUDA_APART=1 FAKE_CUDA_SLOW=1 mpirun -np 2 "${faked[@]}" \
    --train-data "$dir/numbers.bin" --seq-len 64 --steps 1 --hp 1 --cp 2 --document-end 32 --verify
unpinned=(env FAKE_CUDA_PINS=2 TRAIN_LLAMA_TEST_PIECE=65536)
check 'host memory that cannot be pinned as a whole' \
    ends_with 1 'cannot be pinned, but only [1-9][0-9]*: a fake error (a container.*troubleshooting.md)$' \
    "${unpinned[@]}" "${faked[@]}" "${on_host[@]}" --train-data "$dir/numbers.bin" --seq-len 64 --steps 1
check 'of several ranks, each says which it is' ends_with 1 'cannot be pinned, but only .*troubleshooting.md) (rank 1)$' \
    "${unpinned[@]}" mpirun -np 2 "${faked[@]}" --offload-optimizer --train-data "$dir/numbers.bin" --seq-len 64 --steps 1
accumulates=(env FAKE_CUDA_STOPS=1 "${faked[@]}" --train-data "$dir/numbers.bin" --seq-len 64 --steps 2 --document-end 32 --grad-accum)
stops() { "${accumulates[@]}" 2 | grep '^the host waited' >"$dir/stops" && "${accumulates[@]}" 4 | grep -xf "$dir/stops"; }
check 'more micro-steps make the host wait no more often' stops
check 'with more copies of tokens under way than there are slots, none is overwritten' "${accumulates[@]}" 12
# Of 128 rows; the fake refuses products of one row, as some versions of cuBLAS do.
for tile in '--mlp-tile 127' '--loss-tile 127' '--mlp-tile 1'; do
    check "no product of one row, $tile" "${faked[@]}" --train-data "$dir/numbers.bin" --seq-len 100 --steps 1 $tile
done
check 'a rank that is bound to one core leaves it' \
    taskset -c 0 "${faked[@]}" --train-data "$dir/numbers.bin" --seq-len 64 --steps 1
for cores in near far; do
    if [ $cores = far ] && [ ! -e /sys/devices/system/node/node0/cpu0 ]; then
        skip 'a rank that is bound to cores far its GPU: this machine does not say which cores are near one'
        continue
    fi
    check "a rank that is bound to cores $cores its GPU" \
        env FAKE_CUDA_BOUND=$cores "${faked[@]}" --train-data "$dir/numbers.bin" --seq-len 64 --steps 1
done
check 'threads that a GPU has no use for are refused' \
    ends_with 2 'the legal value is 1' "${faked[@]}" --train-data "$dir/numbers.bin" --seq-len 64 --threads 2
compare=$build/test/compare_devices-without-gpu
check 'more ranks than GPUs are refused' ends_with 2 'start one rank per GPU' \
    env FAKE_CUDA_GPUS=1 mpirun -np 2 $compare compare "$dir/reference"
check 'a launcher may show each rank its own GPU alone' \
    env FAKE_CUDA_GPUS=1 FAKE_CUDA_OWN=1 mpirun -np 2 "${faked[@]}" --train-data "$dir/numbers.bin" --seq-len 64 --steps 1 --hp 2
check 'ranks share a GPU when asked to' \
    env FAKE_CUDA_GPUS=1 TRAIN_LLAMA_SHARE_GPU=1 TRAIN_LLAMA_TIMEOUT=0 mpirun -np 4 "${faked[@]}" --train-data "$dir/numbers.bin" \
    --seq-len 64 --steps 1 --hp 2 --cp 2
check 'a rank that stops ends the job with a reason' ends_with 1 'not done after 3 s' \
    env FAKE_CUDA_STALL=2 TRAIN_LLAMA_TIMEOUT=3 mpirun -np 4 $compare compare "$dir/reference"
check 'an error of NCCL does, too' ends_with 1 'NCCL: a fake error' \
    env FAKE_CUDA_STALL=2 FAKE_CUDA_FAIL=1 mpirun -np 4 $compare compare "$dir/reference"

# --recompute auto where one GPU has less memory: all ranks choose the same recompute, because recompute repeats transfers.
printf '%0.sabcdefgh ' $(seq 2000) | tokens_of data
unequal() {
    env FAKE_CUDA_POOR=1:73200 TRAIN_LLAMA_TIMEOUT=20 mpirun -np 2 "${faked[@]}" --train-data "$dir/data.bin" --seq-len 1024 --steps 1 \
        --hp 2 >"$dir/unequal" &&
        grep -q '1 layers keep all, 1 selective' "$dir/unequal"
}
check 'ranks with unequal memory and peak, over fake CUDA' unequal
planned() { # --hp auto plans for the memory that the poorer GPU has, not for the cluster's
    env FAKE_CUDA_POOR=1:135000 TRAIN_LLAMA_TIMEOUT=20 mpirun -np 2 $build/train_llama-without-gpu --model tiny --from-scratch \
        --train-data "$dir/data.bin" --seq-len 1024 --steps 1 --hp auto >"$dir/unequal" &&
        grep -q '^planned for h200: .*optimizer offload' "$dir/unequal"
}
check '--hp auto plans for the memory at hand' planned
offloading=($build/train_llama-without-gpu --model tiny --from-scratch --train-data "$dir/data.bin" --seq-len 512 --steps 1
    "${on_host[@]}" --offload-activations 1 --recompute none)
check 'memory measured is that of the plan, the host'"'"'s, too' ends_with 0 '(1.000 of the plan)' "${offloading[@]}"

# --deterministic: what it asks of the libraries (the fake checks), what it refuses, and the same bits twice.
fixed=(mpirun -np 2 "${faked[@]}" --train-data "$dir/data.bin" --seq-len 256 --steps 2 --hp 2 --zero-optim full)
alone=("${faked[@]}" --train-data "$dir/data.bin" --seq-len 256 --steps 1)
for n in 1 2; do
    check "--deterministic over fake CUDA, run $n" \
        env FAKE_CUDA_DETERMINISTIC=1 FAKE_CUDA_EAGER=$((n - 1)) "${fixed[@]}" --deterministic --out "$dir/run$n"
done
check '--deterministic: the same bits' cmp "$dir"/run{1,2}/step-00000002/model.safetensors
hosted=("${on_host[@]}" --deterministic)
check 'model states on the host, 2 ranks' "${fixed[@]}" --zero-params full "${hosted[@]}" --out "$dir/hosted"
check 'model states on the host: the same bits' cmp "$dir"/{run1,hosted}/step-00000002/model.safetensors
check 'a state of one rank' "${alone[@]}" --deterministic --out "$dir/alone"
check 'model states on the host, one rank' "${alone[@]}" "${hosted[@]}" --out "$dir/alone-hosted"
check 'model states on the host, one rank: the same bits' cmp "$dir"/{alone,alone-hosted}/step-00000001/model.safetensors
check 'a step without memory to time additions' full "${fixed[@]}" --grad-accum 2
check 'they are done as the same products without addition: no note' bash -c "! grep 'not enough memory to time' '$dir/full'"
check 'more host memory than the machine has is refused' \
    ends_with 2 'of host memory but may use only .*--host-memory says' $build/train_llama-without-gpu --model llama3-8b --from-scratch \
    --train-data "$dir/numbers.bin" --seq-len 1000 --batch-size 100000 --recompute none --offload-activations 1 \
    --memory-budget 1000TiB --steps 1
check 'a trace over fake CUDA' env FAKE_CUDA_EAGER=0 "${fixed[@]}" --zero-params full "${hosted[@]}" --trace "$dir/trace.json"
check 'its kernels have names' bash -c "python3 dev/trace_sum.py '$dir'/trace.json.rank1 | grep -A40 kernels |
    grep -c 'linear backward weight\|seq_alltoall\|grad_reduce\|host copy\|work aside' | grep -qx 5"
check 'and times: those of the fake, in which what is between two of them takes 0.25 ms, with a product up to 0.04 more' python3 -c "
import json
spans = [e for e in json.load(open('$dir/trace.json.rank1')) if e['ph'] == 'X']
spans = [e for e in spans if e['tid'] == max(e['tid'] for e in spans)]
assert len(spans) > 100 and all(-0.01 < e['dur'] - 250 < 40.01 for e in spans)
assert all(abs(b['ts'] - a['ts'] - a['dur'] - 250) < 0.01 for a, b in zip(spans, spans[1:]))"
check 'without it NCCL chooses' ends_with 1 'NCCL may choose' env FAKE_CUDA_DETERMINISTIC=1 "${fixed[@]}"
check 'and products are chosen by time' ends_with 1 'a product that is chosen by time' env FAKE_CUDA_DETERMINISTIC=1 "${alone[@]}"
check '--deterministic: they are not' env FAKE_CUDA_DETERMINISTIC=1 "${alone[@]}" --deterministic
check 'ranks are connected before the first step: SeqAlltoAll, replicas' mpirun -np 4 "${alone[@]}" --hp 4
check 'and all-gather of KV, shards' mpirun -np 2 "${alone[@]}" --cp 2 --cp-comm allgather \
    --dkv-wire bf16 --zero-params full --zero-grads full
in_order() { FAKE_CUDA_ORDER=$1 mpirun -np 4 "${faked[@]}" --train-data "$dir/data.bin" --seq-len 128 --steps 1 "${@:2}"; }
check 'all ranks start their transfers in one order: double ring, stages of ZeRO' \
    in_order 1 --cp 4 --inner-ring 2 --grad-accum 2 --zero-params 2 --zero-optim 4 --recompute full
check 'with dp, evaluations, samples and --verify, too' \
    in_order 1 --hp 2 --cp 1 --global-batch 2 --zero-grads 2 --offload-optimizer --recompute selective --val-data "$dir/data.bin" \
    --eval-every 1 --eval-steps 1 --sample-every 1 --verify
check 'a rank that leaves one out is found' ends_with 1 'a rank has queued other NCCL calls' in_order forget --cp 4
check '--deterministic: another NCCL_ALGO is refused' ends_with 2 'NCCL_ALGO=Tree.*Ring' \
    env NCCL_ALGO=Tree "${fixed[@]}" --deterministic
check 'and when machines are calibrated for it' ends_with 2 'NCCL_ALGO=Tree.*Ring' \
    env NCCL_ALGO=Tree mpirun -np 2 $build/train_llama-without-gpu --calibrate --deterministic
binary=$build/train_llama
check 'help without a driver' "$binary" --help
check 'dry run without a driver' "$binary" --model llama3-8b --from-scratch --train-data none \
    --seq-len 131072 --hp 8 --dry-run --ranks 8
same_memory() { # option...: the CPU build's dry run for GPUs says what the CUDA build's does
    local asked=(--model llama3-8b --from-scratch --cluster h100 "$@" --dry-run)
    diff <("$binary" "${asked[@]}" 2>&1) <(build/cpu/train_llama "${asked[@]}" 2>&1)
}
for shape in '--seq-len 4K --ranks 8 --hp 8' '--seq-len 128K --ranks 8 --hp 4 --cp 2 --recompute selective' \
    '--seq-len 6K --ranks 2 --cp 2 --recompute full' '--seq-len 200 --ranks 1 --mlp-tile 127'; do
    check "the CPU build counts a GPU's memory alike, $shape" same_memory $shape
done
check 'errors without a driver' ends_with 2 'legal values' "$binary" --model llama3-8b --hp none
if ! nvidia-smi -L >"$dir/gpus" 2>&1; then
    trains=("$binary" --model nano --from-scratch --train-data "$dir/data.bin" --seq-len 100 --steps 1)
    check 'without a GPU it says so' ends_with 2 'no usable GPU' "${trains[@]}"
    check 'all ranks leave with status 2' ends_with 2 'no usable GPU' mpirun -np 2 "${trains[@]}" --cp 2
else
    skip 'without a GPU it says so, and all ranks leave with status 2: a GPU is here'
fi
# What nvcc makes of the kernels, run on this CPU: its PTX as C++ (ptx_to_cc.py), launched by nvcc's own host code.
export PTX_RAN="$dir/ran"
fits_registers() { # every block that was launched, by the registers that ptxas -v reported: rounded up to eights per thread, 65536 in all
    awk 'FNR == NR { if ($2 > threads[$1]) threads[$1] = $2; next }
         /Compiling entry function/ { split($0, part, "\047"); kernel = part[2] }
         match($0, /Used [0-9]+ registers/) {
             seen++
             if (int((substr($0, RSTART + 5) + 7) / 8) * 8 * threads[kernel] > 65536) { bad = 1; print kernel, $0, threads[kernel] }
         }
         END { exit bad || seen == 0 }' "$PTX_RAN" "$dir/build.log"
}
ptx() { check "build of PTX for sm_$1: ${*:2}" make -j2 --no-print-directory DEVICE=cuda BUILD=$build PTX_ARCH=$1 "${@:2}"; }
ptx 90 $build/test/{test_kernels,compare_devices}-ptx90
check 'kernels, as PTX for sm_90' $build/test/test_kernels-ptx90
check 'trains, as PTX for sm_90, 4 ranks, early transfers' \
    env FAKE_CUDA_EAGER=1 mpirun -np 4 $build/test/compare_devices-ptx90 compare "$dir/short" 96 2
kernels() { # those of PTX, but for the faulty ones, which an earlier run leaves
    sed -nE 's/^static ptx_kernel [^"]*"([^"]*)".*/\1/p' $(ls $build/ptx-90/*.cc | grep -v emulation_faults) | sort
}
check 'every kernel has run' diff <(cut -d' ' -f1 "$PTX_RAN" | sort -u) <(kernels)
check 'no block has more registers than there are' fits_registers
unset PTX_RAN
faults=$build/test/emulation_faults-ptx90
ptx 90 $faults
faults_found $faults $faults 134 'ptx: '
if grep -q '^CUDA .* 100,' "$dir/found"; then
    ptx 100 $build/test/test_kernels-ptx100
    check 'kernels, as PTX for sm_100, last first' $build/test/test_kernels-ptx100 last-first
else
    skip 'kernels, as PTX for sm_100: this toolkit does not make it'
fi
check 'PTX that is not known is refused' ends_with 1 'not known: vadd.s32' \
    test/ptx_to_cc.py <(printf '.visible .entry f(\n)\n{\n\tvadd.s32 %%r1, %%r2, %%r3;\n}\n')

# Libraries that are too old: another place's are taken, header and library both, or they are named.
mkdir -p "$dir"/{old,new,better,other}/{bin,include,lib64} "$dir"/{nvrtc/lib,conda/{bin,targets/x86_64-linux}}
ln -s "$(sed -nE 's/^CUDA [0-9.]+ \(([^)]*)\).*/\1/p' "$dir/found")" "$dir/old/bin/nvcc"
touch "$dir"/old/include/{cuda_runtime_api,cublasLt}.h "$dir"/{old,new,better}/include/cudnn_graph.h \
    "$dir"/old/lib64/lib{cudart,cublasLt,cudnn,nccl}.so "$dir"/{new,better}/lib64/libcudnn.so.9 "$dir"/other/lib64/libnccl.so.2 \
    "$dir"/nvrtc/lib/libnvrtc.so.13
printf '#define CUDNN_%s\n' 'MAJOR 9' 'MINOR 9' 'PATCHLEVEL 3' >"$dir/old/include/cudnn_version.h"
printf '#define CUDNN_%s\n' 'MAJOR 9' 'MINOR 11' 'PATCHLEVEL 0' >"$dir/new/include/cudnn_version.h"
printf '#define CUDNN_%s\n' 'MAJOR 9' 'MINOR 15' 'PATCHLEVEL 1' >"$dir/better/include/cudnn_version.h"
printf '#define NCCL_%s\n' 'MAJOR 2' 'MINOR 26' 'PATCH 2' >"$dir/old/include/nccl.h"
printf '#define NCCL_%s\n' 'MAJOR 2' 'MINOR 26' 'PATCH 5' >"$dir/other/include/nccl.h"
of_places() { make -n DEVICE=cuda CUDA_HOME="$dir/old" "$@" --eval 'of_places: ; $(info $(CUDA_INCLUDES))$(info $(CUDA_LIBS))' of_places; }
check 'cuDNN that is too old is named' \
    ends_with 2 'CUDNN not found: .*/old/include/cudnn_graph.h is version 9.9.3. cuDNN 9.10.2 or newer' of_places CUDA_PLACES="$dir/old"
check 'NCCL that is too old is named' \
    ends_with 2 'NCCL not found: .*/old/include/nccl.h is version 2.26.2. NCCL 2.26.5 or newer' of_places CUDA_PLACES="$dir/old" CUDNN=0
all="$dir/old $dir/new $dir/other $dir/nvrtc"
check 'newer ones of another place are taken' \
    ends_with 0 'cuDNN 9.11.0 (.*/new/lib64/libcudnn.so.9), NCCL 2.26.5 (.*/other/lib64/libnccl.so.2)' of_places CUDA_PLACES="$all"
check 'a later cuDNN with fewer known errors is taken' \
    ends_with 0 'cuDNN 9.15.1 (.*/better/lib64/libcudnn.so.9)' of_places CUDA_PLACES="$all $dir/better"
check 'unless DEPS names one' \
    ends_with 0 'cuDNN 9.11.0 (.*/new/lib64/libcudnn.so.9)' of_places CUDA_PLACES="$all $dir/better" DEPS="$dir/new"
mkdir -p "$dir"/wheels/nvidia/{cudnn,nccl} "$dir/wheels/nvidia_cudnn_cu1-9.19.dist-info"
wheels() { make -n DEVICE=cuda WHEELS="$dir/wheels/nvidia" --eval 'places: ; $(info $(CUDA_PLACES) )' places; }
check 'no cuDNN of pip that is for another CUDA' \
    bash -c "$(declare -f wheels); dir='$dir'; wheels | grep nvidia/nccl && ! wheels | grep nvidia/cudnn"
mkdir "$dir/wheels/nvidia_cudnn_cu$(sed -nE 's/^CUDA ([0-9]+).*/\1/p' "$dir/found")-9.19.dist-info"
check 'but one that is for this' bash -c "$(declare -f wheels); dir='$dir'; wheels | grep nvidia/cudnn"
check 'their headers first' \
    ends_with 0 '^-isystem .*/other/include/ -isystem .*/new/include/ -isystem .*/old/include/$' of_places CUDA_PLACES="$all"
check 'and their folders, where programs look for libraries' \
    ends_with 0 '-rpath,.*/other/lib64 -Wl,-rpath,.*/new/lib64 -Wl,-rpath,.*/old/lib64 -Wl,-rpath,.*/nvrtc/lib ' \
    of_places CUDA_PLACES="$all"
check 'and NVRTC, which cuDNN compiles with' \
    ends_with 0 '-Wl,--no-as-needed .*/nvrtc/lib/libnvrtc.so.13 ' of_places CUDA_PLACES="$all"
ln -s "$(readlink "$dir/old/bin/nvcc")" "$dir/conda/bin/nvcc"
check 'nvcc of conda has them in targets' ends_with 0 '/conda/targets/x86_64-linux ' \
    make -n DEVICE=cuda CUDA_HOME="$dir/conda" --eval 'places: ; $(info $(CUDA_PLACES) )' places
check 'and the folders of the system last' ends_with 0 '^/b/ /a/ /usr/include/ /usr/lib/x86_64-linux-gnu/$' make -n DEVICE=cuda --eval \
    'order: ; $(info $(strip $(call in_order,/usr/include/ /b/ /usr/lib/x86_64-linux-gnu/ /a/ /b/)))' order
rm "$dir/new/lib64/libcudnn.so.9"
check 'a header without a library is no cuDNN' \
    ends_with 2 'CUDNN not found: .*/old/include/cudnn_graph.h is version 9.9.3' of_places CUDA_PLACES="$all"

# Without cuDNN, with the hand-written kernels alone. Last, because this build replaces the program.
rm -f "$binary"
kernels=(device/cuda/*.cu) # the same with and without it: not compiled anew
check 'build without cuDNN' make -j2 --no-print-directory DEVICE=cuda CUDNN=0 BUILD=$build \
    $(printf -- "-o $build/%s.o " "${kernels[@]%.cu}") "$binary"
check 'it starts without cuDNN' "$binary" --help
check 'it needs no cuDNN' lacks cudnn ldd "$binary"
rm -f "$binary"
closing_line
