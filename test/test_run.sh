#!/usr/bin/env bash
# The binary as users run it: help, dry run, a short training on several grids with one loss curve, log, trace, evaluation, a killed rank.
# (F29, F47, F52, F54)
source "$(dirname "$0")/shell.sh"
seq 1 20000 | tokens_of data
nano=(--model nano --from-scratch --seq-len 100)
model=("${nano[@]}" --train-data "$dir/data.bin")
on_host=(--offload-optimizer --offload-gradients --offload-parameters)
common=("${model[@]}" --val-data "$dir/data.bin" --steps 12 --lr 3e-3 --warmup 3 --eval-every 6 --eval-steps 2)

# --help lists the parser's table, so every option; every flag that the README, the docs and the scripts name must be in it.
"$binary" --help >"$dir/help" 2>&1
check 'help exits 0 and lists options' grep -q -- '--inner-ring' "$dir/help"
named=$(grep -ohE '(^|[ `])--[a-z][a-z0-9-]+' README.md scripts/demo.sh scripts/run_*.sh docs/*.md | tr -d ' `' | sort -u)
check 'these name flags' [ "$(wc -l <<<"$named")" -ge 60 ] # of 80 that there are, beside those of other programs
for flag in $named; do
    case $flag in # flags of other programs
    --sequence | --special-tokens | --keys | --tokenizer | --end | --ids | --prompt | --completion | --chat | --pack | --rehearse | \
        --rest | --preflight | --requeue | --open-mode | --signal | --mpi | --job-name | --nodes | --ntasks-per-node | --exclusive | \
        --mem | --time | --cpu-bind | --gpu-bind | --gpus-per-task | --hostfile | --exclude | --label | --output | --tag-output | \
        --local-dir | --max-model-len | --terminal | --only | --show | --no-print-directory | --check | --shm-size | --ipc | \
        --bind-to | --map-by | --ulimit | --propagate) continue ;;
    esac
    [[ $flag == *- ]] || flag+=' ' # --offload-*, for instance, is the beginning of a flag
    check "documented flag $flag" grep -q -- "^  $flag" "$dir/help"
done
check 'a ~ that the shell has left is no folder' ends_with 2 'left the ~ of "~/runs" as it is' "$binary" "${model[@]}" --out=~/runs
check 'version' bash -c "'$binary' --version | grep -q '^train_llama [0-9]'"

# One global batch of 8 sequences on seven grids: the same losses, norms and evaluation. Here and below, what is sums of floats in another
# order may differ by 1e-5 of it; after the steps of these runs 3e-8 and less was seen, for 5 tokens 3e-7.
train() { # name ranks option...
    local name=$1 ranks=$2
    shift 2
    mpirun -np "$ranks" "$binary" "${common[@]}" --log "$dir/$name.jsonl" "$@" >"$dir/$name.out" 2>&1 </dev/null
}
train one 1 --batch-size 8
train again 1 --batch-size 8 --verify "${on_host[@]}"
train dp 4 --batch-size 1 --grad-accum 2 --cp-comm allgather --zero-params full --zero-grads full --zero-optim full "${on_host[@]}" --verify
train hp 4 --hp 4 --batch-size 4 --grad-accum 2 --recompute selective --placement context-first
train cp 6 --cp 3 --batch-size 2 --grad-accum 2 --inner-ring 1 --recompute full --zero-optim 2
train both 8 --hp 2 --cp 2 --batch-size 4 --cp-comm allgather --zero-params 2 --zero-grads 4 --zero-optim 8 --offload-optimizer --verify
train windows 4 --cp 4 --inner-ring 2 --gpus-per-node 4 --nics-per-node 2 --batch-size 8
train tiles 2 --cp 2 --batch-size 8 --mlp-tile 37 --loss-tile 50 --offload-activations 1 --recompute auto
cat >"$dir/compare.py" <<'PY'
import json, sys
def rows(path):
    return [json.loads(line) for line in open(path)][1:] # the first line is the run's
a, b, bound = rows(sys.argv[1]), rows(sys.argv[2]), float(sys.argv[3])
ranks = json.loads(open(sys.argv[2]).readline())["run"]["ranks"]
assert len(a) == len(b) == 15 and a[0]["step"] == 0 and b[0]["val_loss"] > a[7]["val_loss"], (len(a), len(b), a[0])
for x, y in zip(a, b):
    for key in ("loss", "grad_norm", "val_loss", "lr", "tokens", "samples"):
        if key in x:
            assert abs(x[key] - y[key]) <= bound * abs(x[key]), (x["step"], key, x[key], y[key])
for key in ("step", "loss", "grad_norm", "lr", "step_ms", "tokens", "tgs", "mfu", "hfu", "mem_bytes", "comm_bytes"):
    assert key in a[1], key
# Bytes are as predicted. (An evaluation leaves two layers gathered for the next step, and has gathered what the update made.)
for r in b[2:7]:
    if "comm_bytes" in r:
        assert abs(r["tgs"] * ranks * r["step_ms"] / 1000 / r["tokens"] - 1) < 1e-5, r
        sent, most = sum(n for kind, n in r["comm_bytes"].items() if kind != "control"), r["predicted_comm_bytes"]
        assert sent < most if "packed" in sys.argv[2] else sent == most, r # packed: what is predicted is the most
        assert r["predicted_ms"] > 0 and r["mem_used_bytes"] > 0, r
assert a[-2]["loss"] < a[1]["loss"] - 0.5, (a[1]["loss"], a[-2]["loss"])
PY
mkdir "$dir/wide"
echo '{"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
    "intermediate_size": 16, "vocab_size": 2000, "rms_norm_eps": 1e-5, "max_position_embeddings": 4096}' >"$dir/wide/config.json"
bytes=("$binary" --from-scratch --train-data "$dir/data.bin" --seq-len 256 --batch-size 64 --steps 1 --model)
check 'tokens that are not of the model'"'"'s tokenizer are noted' \
    ends_with 0 "^note: of 16384 tokens none is above 57, of a vocabulary of 2000" "${bytes[@]}" "$dir/wide"
check 'the grid is verified when asked to' \
    [ "$(cat "$dir"/*.out | grep -c '^verified    a step of 2 layers and [0-9]* tokens on this grid agrees with one rank')" -eq 3 ]
check 'cp 1 gathers no KV, whatever --cp-comm says' [ "$(grep -h '^grid ' "$dir"/{dp,both}.out | grep -c 'all-gather of KV')" -eq 1 ]
check 'what --mlp-tile has computed again is not said to be kept' \
    grep -q '^recompute   2 layers keep all but gate and up, 0 selective' "$dir/tiles.out"
check 'two runs of one seed are equal' python3 "$dir/compare.py" "$dir/one.jsonl" "$dir/again.jsonl" 0
for name in dp hp cp both windows tiles; do
    check "grid $name has the curve of one rank" python3 "$dir/compare.py" "$dir/one.jsonl" "$dir/$name.jsonl" 1e-5
done
check 'how the ranks form windows is said' grep -q '^grid .* cp 4, windows of 2, interleaved$' "$dir/windows.out"
check 'tiles are those that were asked for' grep -qx 'tiles       MLP 37 rows, loss 50 rows' "$dir/tiles.out"
check 'random models and options have the losses of one rank' python3 test/random_runs.py --binary "$binary" --runs 12

# Packed documents (token 48, the character 0, ends one) and a loss mask: the same on every grid, and another run than with the mask alone.
cp "$dir/data.bin" "$dir/masked.bin"
python3 -c "
import os
n = os.path.getsize('$dir/data.bin') - 1024
open('$dir/masked.bin.mask', 'wb').write(bytes(i % 7 != 3 for i in range(n // 2)))"
packed() { # name ranks option...
    local name=$1 ranks=$2
    shift 2
    mpirun -np "$ranks" "$binary" "${nano[@]}" --train-data "$dir/masked.bin" --val-data "$dir/data.bin" --steps 12 --lr 3e-3 --warmup 3 \
        --eval-every 6 --eval-steps 2 --log "$dir/$name.jsonl" "$@" >"$dir/$name.out" 2>&1 </dev/null
}
packed masked 1 --batch-size 8
packed packed1 1 --document-end 48 --batch-size 8
packed packed6 6 --document-end 48 --hp 2 --cp 3 --batch-size 4 --grad-accum 2 --recompute selective
packed packed4 4 --document-end 48 --cp 4 --inner-ring 2 --batch-size 2 --grad-accum 4 --recompute full --placement context-first
for name in packed6 packed4; do
    check "packed documents with a loss mask, $name" python3 "$dir/compare.py" "$dir/packed1.jsonl" "$dir/$name.jsonl" 1e-5
done
check 'packed is another run: a token fewer to predict for each document, and less to see' python3 -c "
import json
whole, packed = ([json.loads(line) for line in open('$dir/%s.jsonl' % name)][1:] for name in ('masked', 'packed1'))
assert len(whole) == len(packed) == 15
for x, y in zip(whole, packed):
    if 'loss' in x: assert y['labels'] < x['labels'] and abs(y['loss'] - x['loss']) > 1e-4 * x['loss'], (x, y)"
sed -E 's/^(peak +)[^ ]+/\11e6/; s/^(linear_efficiency +)[^ ]+/\10.001/' clusters/cpu.txt >"$dir/slow.txt" # a step of hours
waits=(mpirun -np 2 "$binary" --model nano --from-scratch --train-data "$dir/data.bin" --seq-len 64
    --steps 1 --threads 1 --cluster "$dir/slow.txt")
# (mpirun may put the note into the middle of another line.)
check 'dp ranks may wait for one with longer documents' ends_with 0 'note: a transfer may wait [1-9][0-9]* s before the job ends' \
    "${waits[@]}" --document-end 48
check 'but not longer than TRAIN_LLAMA_TIMEOUT' lacks 'may wait' env TRAIN_LLAMA_TIMEOUT=100 "${waits[@]}" --document-end 48
check 'nor without documents' lacks 'may wait' "${waits[@]}"
check 'nor in a single group' lacks 'may wait' "${waits[@]}" --document-end 48 --cp 2
# Two samples of one document and two of ten a step: each of two dp ranks gets one of either, so its ring sends as much in every step.
{ yes abcdefghij | head -n 10; yes abcdefghi0 | head -n 20; yes abcdefghij | head -n 10; } | tr -d '\n' | tokens_of unequal
mpirun -np 4 "$binary" "${nano[@]}" --train-data "$dir/unequal.bin" --steps 12 --document-end 48 --cp 2 --grad-accum 2 --threads 1 \
    --log "$dir/dealt.jsonl" >"$dir/dealt.out" 2>&1
check 'long and short documents are dealt out to dp ranks' python3 -c "
import json
sent = [json.loads(line)['comm_bytes']['kv_inner'] for line in open('$dir/dealt.jsonl') if 'comm_bytes' in line]
assert len(sent) == 12 and len(set(sent)) == 1, sent"
check 'the table names the documents' grep -q 'documents   end with token 48' "$dir/packed1.out"
check 'and the mask' grep -q 'loss masks for 1 of 1 files' "$dir/packed1.out"
check 'blocks without anything to see are counted' grep -qE 'documents: [1-9][0-9]* of [0-9]+ attention blocks' "$dir/packed4.out"

# MFU and HFU count what attention sees: with documents of 25 tokens, 25 of 100. HFU counts attention at 3.5 times the forward pass, because
# backward recomputes the scores; MFU at 3 times.
yes abcdefghijklmnopqrstuvwx0 | head -n 400 | tr -d '\n' | tokens_of short
for run in 'none auto' '48 auto' 'none 37'; do
    set -- $run
    echo '{"run":"another"}' >"$dir/flops-$1-$2.jsonl" # must be replaced
    "$binary" "${nano[@]}" --batch-size 2 --steps 5 --recompute none --document-end "$1" --mlp-tile "$2" --train-data "$dir/short.bin" \
        --log "$dir/flops-$1-$2.jsonl" >"$dir/flops-$1-$2.out" 2>&1
done
check 'MFU and HFU count what is seen' python3 -c "
import json
L, D, kv, F, V = 2, 64, 32, 176, 256
matrices = 2 * (L * (D * (D + 2 * kv) + D * D + 3 * D * F) + D * V)
for run, seen, again in ('none-auto', 100, 0), ('48-auto', 25, 0), ('none-37', 100, 2 * L * 2 * D * F): # a tile asked for keeps no gate_up
    first, *_, last = [json.loads(line) for line in open('$dir/flops-' + run + '.jsonl')]
    attention = L * 2 * seen * D
    expected = (3 * matrices + 3.5 * attention + again) / (3 * matrices + 3 * attention)
    assert abs(last['hfu'] / last['mfu'] - expected) < 1e-6, (run, last)
    flops = last['mfu'] * 1e12 * first['run']['peak_tflops'] / last['tgs']
    assert abs(flops / (3 * matrices + 3 * attention) - 1) < 1e-6, (run, flops)"
cat >"$dir/shown.py" <<'PY'
import json, re, statistics, sys
text, rows = open(sys.argv[1] + ".out").read(), [json.loads(line) for line in open(sys.argv[1] + ".jsonl")][1:]
def same(shown, value, what):
    step = 10 ** -len(shown.partition(".")[2]) # the last digit that is shown
    assert abs(float(shown) - value) <= 0.51 * step, (what, shown, value)
for row in rows:
    line = re.search("^step +%d/5 .*$" % row["step"], text, re.M)[0]
    for name, value in (("loss", row["loss"]), ("norm", row["grad_norm"]), ("TGS", row["tgs"]), ("MFU", 100 * row["mfu"])):
        same(re.search(name + r" +([\d.]+)", line)[1], value, name)
    same(re.search(r"([\d.]+) ms", line)[1], row["step_ms"], "ms")
    same(re.search(r"mem +([\d.]+) MiB", line)[1], row["mem_bytes"] / 2**20, "mem")
line, fourth = re.search("^predicted for .*$", text, re.M)[0], rows[3] # after four steps
for shown, value in ((r"([\d.]+) ms a step", fourth["predicted_ms"]),
                     (r"ms a step, measured ([\d.]+)", statistics.median(row["step_ms"] for row in rows[1:4])),
                     (r"memory.* measured ([\d.]+) MiB", fourth["mem_used_bytes"] / 2**20)):
    same(re.search(shown, line)[1], value, line)
PY
check 'a step is shown as it is logged, and the first ones beside their prediction' python3 "$dir/shown.py" "$dir/flops-none-auto"
mpirun -np 2 "$binary" "${nano[@]}" --hp 2 --batch-size 2 --steps 5 --recompute none --document-begin 97 --train-data "$dir/short.bin" \
    --log "$dir/flops-begin.jsonl" >"$dir/begin.out" 2>&1
check 'documents that begin with an a are those that end with a 0, also on two ranks' python3 -c "
import json
end, begin = ([json.loads(line) for line in open('$dir/flops-' + name + '.jsonl')][1:] for name in ('48-auto', 'begin'))
assert len(end) == len(begin) == 5
for x, y in zip(end, begin):
    assert x['labels'] == y['labels'] == 192 and abs(x['loss'] - y['loss']) < 1e-5, (x, y)
    assert abs(x['hfu'] / x['mfu'] - y['hfu'] / y['mfu']) < 1e-6, (x, y)"
check 'the table names the token before documents' grep -q 'documents   begin with token 97' "$dir/begin.out"
check 'and there is no word of a token that is not there' [ "$(grep -c 'nowhere inside' "$dir/begin.out")" = 0 ]
for mark in end begin; do
    check "a token that $mark""s no document is noted" \
        ends_with 0 "note: token 122 (--document-$mark) is nowhere inside the samples" mpirun -np 2 "$binary" "${nano[@]}" \
        --cp 2 --batch-size 2 --steps 1 --document-$mark 122 --train-data "$dir/short.bin"
done
# loss by position within documents, on a rank that does not hold the first rows; cp: where documents of 20 tokens and more are segments
for grid in hp cp; do
    check "positions count from the beginning of documents, $grid" env TRAIN_LLAMA_TEST_LONG_DOCUMENT=20 mpirun -np 2 "$binary" \
        --model nano --from-scratch --seq-len 6600 --$grid 2 --steps 0 --document-end 48 --val-data "$dir/short.bin" --eval-steps 1 \
        --log "$dir/position-$grid.jsonl"
    check 'which are short' grep -q '"val_loss_by_position":{"0-1K":[0-9.]*}}' "$dir/position-$grid.jsonl"
done

# Which samples a step takes: sample n of 12 has n + 1 labels. Every epoch takes each once, in an order of its own; on two dp ranks that
# accumulate, a step takes four of that order.
seq 1 200 | head -c $((12 * 32 + 1)) | tokens_of counted
python3 -c "
open('$dir/counted.bin.mask', 'wb').write(b'\0' + b''.join(bytes(i <= n for i in range(32)) for n in range(12)))"
counted=("$binary" --model nano --from-scratch --train-data "$dir/counted.bin" --seq-len 32 --threads 1)
"${counted[@]}" --steps 24 --log "$dir/counted1.jsonl" >"$dir/out" 2>&1
mpirun -np 2 "${counted[@]}" --dp 2 --grad-accum 2 --steps 6 --log "$dir/counted2.jsonl" >"$dir/out" 2>&1
check 'each sample once an epoch' python3 -c "
import json
one, two = ([json.loads(line)['labels'] for line in list(open('$dir/counted%d.jsonl' % n))[1:]] for n in (1, 2))
assert sorted(one[:12]) == sorted(one[12:]) == list(range(1, 13)) and one[:12] != one[12:] and one[:12] != sorted(one[:12]), one
assert two == [sum(one[i:i + 4]) for i in range(0, 24, 4)], (one, two)"
# --seed: of the parameters, and of the order.
for seed in 1 2; do
    "$binary" --model nano --from-scratch --steps 0 --threads 1 --seed $seed --export "$dir/seed$seed" >"$dir/out" 2>&1
    "${counted[@]}" --steps 12 --seed $seed --log "$dir/order$seed.jsonl" >"$dir/out" 2>&1
done
check 'another seed: other parameters' ends_with 1 differ cmp "$dir"/seed{1,2}/model.safetensors
check 'and another order' python3 -c "
import json
one, two = ([json.loads(line)['labels'] for line in list(open('$dir/order%d.jsonl' % seed))[1:]] for seed in (1, 2))
assert sorted(one) == sorted(two) == list(range(1, 13)) and one != two, (one, two)"

# Evaluation leaves nothing behind: with one after every step, and needles and samples, training is bit-equal to a run without. (F54)
both=(--document-end 48 --steps 6 --lr 3e-3 --warmup 3 --hp 2 --cp 2 --batch-size 2 --grad-accum 2 --zero-params full --zero-grads full
    --recompute selective --offload-activations 1)
mpirun -np 4 "$binary" "${model[@]}" "${both[@]}" --log "$dir/quiet.jsonl" >"$dir/quiet.out" 2>&1 </dev/null
TRAIN_LLAMA_TEST_PROGRESS=1 mpirun -np 4 "$binary" "${model[@]}" "${both[@]}" --val-data "$dir/data.bin" --eval-every 1 --eval-steps 2 \
    --eval-needles 1 --sample-every 4 --sample-tokens 2 --log "$dir/evaluated.jsonl" --export "$dir/evaluated" \
    >"$dir/evaluated.out" 2>&1 </dev/null
check 'evaluation leaves nothing behind' python3 -c "
import json
a, b = ([json.loads(line) for line in open('$dir/' + name + '.jsonl')][1:] for name in ('quiet', 'evaluated'))
assert len(a) == 6 and len(b) == 15 and sum('val_loss' in r for r in b) == 7, (len(a), len(b))
for x, y in zip(a, [r for r in b if 'loss' in r]):
    for key in ('step', 'loss', 'grad_norm', 'lr', 'tokens', 'samples'): assert x[key] == y[key], (key, x, y)"

# Long work shows progress, on rank 0 (here all work counts as long).
for line in 'drawing parameters: 25 %' 'step: 50 %' 'evaluation: 25 %' 'needles: 40 %' 'sample: 50 %' 'writing parameters: 75 %'; do
    check "progress: $line" [ "$(grep -c "^note: $line after [0-9]:[0-5][0-9]:[0-5][0-9]" "$dir/evaluated.out")" -ge 1 ]
done
check 'one rank shows progress' [ "$(grep -c '^note: writing parameters: 75' "$dir/evaluated.out")" -eq 1 ]
check 'short work shows none' bash -c "! grep -q '^note: .* after ' '$dir/quiet.out'"

# --eval-steps: the number of batches of a validation set; no sample counts twice.
seq 1 600 | tokens_of small # 22 samples
for steps in 1 6 7; do
    "$binary" "${nano[@]}" --batch-size 4 --steps 0 --val-data "$dir/small.bin" \
        --eval-steps $steps --log "$dir/eval$steps.jsonl" >"$dir/eval.out" 2>&1
done
check 'evaluation takes each sample once, and no more than asked for' python3 -c "
import json
few, all_of_them, more = (json.loads(list(open('$dir/eval%d.jsonl' % steps))[-1])['val_loss'] for steps in (1, 6, 7))
assert few != all_of_them and all_of_them == more, (few, all_of_them, more)"

# --eval-tokens: the same samples whatever the batch and the grid; more than there are: all of them.
run=0
for grid in '1 --eval-tokens 401 --batch-size 4' '2 --eval-tokens 500 --dp 2 --batch-size 3' '1 --eval-steps 5' \
    '1 --eval-tokens 1M --batch-size 4'; do
    mpirun -np ${grid%% *} "$binary" "${nano[@]}" --steps 0 --val-data "$dir/small.bin" ${grid#* } --log "$dir/tokens$((run++)).jsonl" \
        >"$dir/eval.out" 2>&1
done
check 'tokens to evaluate on: the same whatever the batch' python3 -c "
import json
read = lambda name: json.loads(list(open('$dir/%s.jsonl' % name))[-1])['val_loss']
loss = [read('tokens%d' % run) for run in range(4)]
assert abs(loss[1] / loss[0] - 1) < 1e-6 and abs(loss[2] / loss[0] - 1) < 1e-6 and loss[3] == read('eval7') != loss[0], loss"

cp "$dir/small.bin" "$dir/unlearnt.bin"
head -c 10000 /dev/zero | head -c $((($(stat -c %s "$dir/small.bin") - 1024) / 2)) >"$dir/unlearnt.bin.mask"
check 'a set without labels' ends_with 0 'val loss: no label in the samples that are evaluated (loss masks, document boundaries)' \
    "$binary" --model nano --from-scratch --seq-len 1100 --steps 0 --val-data "$dir/unlearnt.bin" --eval-steps 1
check 'has no loss by position either' [ "$(grep -c 'by position' "$dir/shown")" -eq 0 ]

check 'more sequences than can be counted are refused' ends_with 2 '^error: --steps and --eval-steps of 16777216 sequences each' \
    "$binary" --model nano --from-scratch --seq-len 1 --batch-size 16 --grad-accum 1M --steps 0 --val-data "$dir/small.bin" \
    --eval-steps 1000000000000
python3 - "$dir/small.bin" "$dir/beyond.bin" <<'PY'
import sys
data = bytearray(open(sys.argv[1], "rb").read())
data[1024 + 2 * 150] = data[1024 + 2 * 150 + 1] = 255 # a token of the second sample
open(sys.argv[2], "wb").write(data)
PY
check 'a token that the vocabulary lacks' ends_with 2 '65535' \
    "$binary" "${nano[@]}" --steps 0 --val-data "$dir/beyond.bin" --log "$dir/beyond.jsonl"
check 'leaves no log' [ ! -e "$dir/beyond.jsonl" ]

# --steps 0 has no buffers for a backward pass, on any grid. New memory of rank 3 is not zero (0x5a); the last grid has no samples for most
# of its batch. Documents of 20 tokens and more are segments.
grids=0
for grid in '1 --hp 1' '4 --hp 2 --cp 2' '4 --cp 4 --inner-ring 2' '2 --cp 2 --cp-comm allgather' '4 --dp 2 --cp 2 --batch-size 3'; do
    TRAIN_LLAMA_TEST_LONG_DOCUMENT=20 TRAIN_LLAMA_TIMEOUT=20 mpirun -np ${grid%% *} \
        bash -c '[ $OMPI_COMM_WORLD_RANK != 3 ] || export MALLOC_PERTURB_=165; exec "$@"' _ "$binary" "${nano[@]}" --steps 0 \
        --document-end 32 --val-data "$dir/small.bin" --eval-tokens 200 ${grid#* } --log "$dir/only$((grids++)).jsonl" >"$dir/eval.out" 2>&1
done
check 'an evaluation alone is the same on every grid' python3 -c "
import json
losses = [json.loads(list(open('$dir/only%d.jsonl' % i))[-1])['val_loss'] for i in range(5)]
assert max(losses) - min(losses) < 1e-5, losses" # float sums in another order

# Fewer tokens than chunks: some ranks hold padding only, which counts nowhere. (F23)
short() { # name ranks option...
    mpirun -np "$2" "$binary" --model nano --from-scratch --train-data "$dir/data.bin" --seq-len 5 --steps 4 --lr 3e-3 "${@:3}" \
        --log "$dir/$1.jsonl" >"$dir/$1.out" 2>&1 </dev/null
}
short five 1 --batch-size 2
short padded 8 --cp 8 --inner-ring 4 --batch-size 2 --zero-params full
short padded2 8 --hp 2 --cp 4 --batch-size 2 --cp-comm allgather --recompute selective
for name in padded padded2; do
    check "5 tokens on 8 ranks, $name" python3 -c "
import json
a, b = ([json.loads(line) for line in open('$dir/' + name + '.jsonl')][1:] for name in ('five', '$name'))
assert len(a) == len(b) == 4
for x, y in zip(a, b):
    assert x['tokens'] == y['tokens'] == 10, (x['tokens'], y['tokens'])
    for key in ('loss', 'grad_norm'): assert abs(x[key] - y[key]) <= 1e-5 * x[key], (key, x[key], y[key])"
done

# A mixture of two sources and two validation sets by name: the same on every grid, in the log by name, and in the plot.
seq 7000 -3 1 | tokens_of other
mixture=(--train-data "up=$dir/data.bin:0.7,$dir/other.bin:0.3" --val-data "up=$dir/data.bin,down=$dir/other.bin" --eval-every 2
    --eval-steps 2 --eval-needles 2 --sample-every 2 --sample-tokens 5 --sample-prompt '12 "13')
mix() { # name ranks option...
    local name=$1 ranks=$2
    shift 2
    mpirun -np "$ranks" "$binary" --model nano --from-scratch --seq-len 1100 --steps 4 "${mixture[@]}" \
        --log "$dir/$name.jsonl" "$@" >"$dir/$name.out" 2>&1 </dev/null
}
mix mix1 1 --batch-size 8
mix mix4 4 --batch-size 2 --grad-accum 2 --cp 2
check 'a mixture and named validation sets are the same on 4 ranks' python3 -c "
import json
a, b = ([json.loads(line) for line in open('$dir/' + name)][1:] for name in ('mix1.jsonl', 'mix4.jsonl'))
assert len(a) == len(b) == 9
samples = [[x['sample_tokens'] for x in rows if 'sample_tokens' in x] for rows in (a, b)]
assert samples[0] == samples[1] and [len(x) for x in samples[0]] == [5, 5], samples
for x, y in zip(a, b):
    for key in ('loss', 'grad_norm'):
        if key in x: assert abs(x[key] - y[key]) <= 1e-5 * x[key], (key, x[key], y[key])
    if 'val_loss' not in x: continue
    assert list(x['val_loss']) == ['up', 'down'] and x['val_loss']['up'] != x['val_loss']['down']
    assert x['needle_accuracy'] == y['needle_accuracy']
    for name, loss in x['val_loss'].items():
        parts, others = x['val_loss_by_position'][name], y['val_loss_by_position'][name]
        assert list(parts) == ['0-1K', '1K-1100']
        assert abs(parts['0-1K'] * 1024 + parts['1K-1100'] * 76 - loss * 1100) < 1e-4 # of numbers of 9 digits: 7e-6 seen
        assert all(abs(parts[k] - others[k]) <= 1e-5 * parts[k] for k in parts) and abs(loss - y['val_loss'][name]) <= 1e-5 * loss
    assert list(x['needle_loss']) == ['0%', '25%', '50%', '75%', '100%']
    assert all(abs(x['needle_loss'][k] - y['needle_loss'][k]) <= 1e-5 * x['needle_loss'][k] for k in x['needle_loss'])
assert sum('val_loss' in x for x in a) == 3"
check 'tokens that the model draws, with their text' grep -q '^sample    4/4 | text "12 \\"13" -> "' "$dir/mix4.out"
check 'shares and epochs are printed' grep -q '^data        up: share 0.7, .* the run draws 23 (0.23 epochs)' "$dir/mix4.out"
check 'tokens of each set are logged' grep -q '"val_tokens":{"up":17600,"down":11000}' "$dir/mix4.jsonl"
check 'and printed' grep -q '^eval .* val loss up *[0-9.]* of 17600 tokens$' "$dir/mix4.out"
check 'samples that an evaluation takes' grep -q '^validation  up: .*; evaluations take 16$' "$dir/mix4.out"
check 'validation sets and buckets in the plot' bash -c "
    python3 dev/plot.py --terminal --keys val_loss,val_loss_by_position,needle_loss '$dir/mix4.jsonl' |
        grep -c 'jsonl down: \|down/1K-1100: \|75%: ' | grep -qx 3"
printf '%s\n' '{"step": NaN, "loss": 3}' '{"step": 4, "loss": 2.5}' '{"step": 5, "loss": 2}' >"$dir/odd.jsonl"
check 'waits of each transfer in the plot' \
    bash -c "python3 dev/plot.py --terminal --keys exposed_ms '$dir/mix4.jsonl' | grep -q 'kv_inner: '"
check 'tokens and times have no logarithmic axis' \
    bash -c "[ \$(python3 dev/plot.py --terminal --log-scale --keys loss,mfu '$dir/mix4.jsonl' | grep -c '(log scale)') -eq 1 ]"
if python3 -c 'import matplotlib' 2>/dev/null; then
    "$binary" "${nano[@]}" --steps 0 --val-data "$dir/data.bin" --eval-steps 1 --log "$dir/_a\$x\\y\$.jsonl" >"$dir/out" 2>&1
    check 'a picture of an evaluation, whose log has an odd name' ends_with 0 '^wrote .*/picture.png$' \
        python3 -W error dev/plot.py -o "$dir/picture" "$dir/_a\$x\\y\$.jsonl"
    check 'is there' [ -s "$dir/picture.png" ]
else
    skip 'a picture of an evaluation: the package matplotlib is not here'
fi
check 'and its head, without a complaint' \
    bash -c "python3 dev/plot.py --terminal --height 4000 '$dir/mix4.jsonl' 2>'$dir/plot.err' | head -1; [ ! -s '$dir/plot.err' ]"
cp "$dir/mix4.jsonl" "$dir/l"$'\344'"uft.jsonl" # no UTF-8
check 'a log whose name is no text' ends_with 0 'l.udce4uft.jsonl loss: ' python3 dev/plot.py --terminal "$dir/l"$'\344'"uft.jsonl"
old_python() { # tool argument...: with an output as Python 3.6 has it
    python3 - "$@" <<'PY'
import io, runpy, sys
class Output(io.TextIOBase):
    encoding, write, flush = "UTF-8", sys.stdout.write, sys.stdout.flush
sys.stdout, sys.argv = Output(), sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
PY
}
check 'an old Python plots' ends_with 0 'loss: 2.5 at step 4, 2 at step 5' old_python dev/plot.py --terminal "$dir/odd.jsonl"
check 'a step that is no number is not in the plot' ends_with 0 'loss: 2.5 at step 4, 2 at step 5' \
    python3 dev/plot.py --terminal "$dir/odd.jsonl"
printf '{"step":\nnone\n' >>"$dir/odd.jsonl"
check 'nor lines that are no JSON, which take one to say' ends_with 0 'odd.jsonl:4: not JSON, skipped, and 1 more' \
    python3 dev/plot.py --terminal "$dir/odd.jsonl"
# A run to step 40; one that goes on from step 20 to 25, on another branch; evaluations of models of steps 0 and 30.
python3 - >"$dir/branch.jsonl" <<'PY'
import json
for first, last, loss in (0, 40, 4), (0, 0, 9), (20, 25, 3), (30, 30, 9):
    print(json.dumps(dict(run=dict(steps_done=first, options=dict(steps=str(last) if last > first else "0")))))
    for step in range(first + (last > first), last + 1):
        print(json.dumps(dict(step=step, loss=loss) if last > first else dict(step=step, val_loss=loss)))
        if step % 10 == 0 or step == last: print(json.dumps(dict(step=step, val_loss=loss)))
PY
check 'a run that was resumed ends where it ended' ends_with 0 'loss: 4 at step 1, 3 at step 25$' \
    python3 dev/plot.py --terminal "$dir/branch.jsonl"
check 'its validation, too, without what evaluates other models' ends_with 0 'validation loss: 4 at step 10, 3 at step 25$' \
    python3 dev/plot.py --terminal "$dir/branch.jsonl"
check 'the lines that count' bash -c "PYTHONPATH=dev python3 -c \"
import plot
kept = plot.entries('$dir/branch.jsonl')
assert [e['step'] for e in kept if 'loss' in e] == list(range(1, 26)), kept
assert [(e['step'], e['val_loss']) for e in kept if 'val_loss' in e] == [(10, 4), (20, 4), (25, 3)], kept\""
tail -2 "$dir/branch.jsonl" >"$dir/alone.jsonl"
check 'an evaluation alone' ends_with 0 'validation loss: 9 at step 30, ' python3 dev/plot.py --terminal "$dir/alone.jsonl"

# Trace: valid JSON with the events of compute and of transfers; waits are the ends of transfers, and times are those of the log.
mpirun -np 2 "$binary" "${model[@]}" --cp 2 --steps 4 --trace "$dir/trace.json" --log "$dir/traced.jsonl" >"$dir/traced.out" 2>&1
check 'trace' python3 -c "
import json
for rank in 1, 0:
    events = json.load(open('$dir/trace.json.rank%d' % rank))
    assert {'layer forward', 'layer backward', 'KV inner', 'dKV inner'} <= {e['name'] for e in events}, 'names'
    tracks = {e['tid']: e['args']['name'] for e in events if e['name'] == 'thread_name'}
    events = [{**e, 'end': e['ts'] + e['dur'], 'track': tracks[e['tid']]} for e in events if e['ph'] == 'X']
    assert all(e['dur'] >= 0 for e in events)
    waits, transfers = [e for e in events if e['track'] == 'wait'], [e for e in events if e['track'] not in ('compute', 'wait')]
    assert len(waits) == len(transfers) > 0
    for wait, transfer in zip(waits, transfers):
        assert (wait['name'], wait['args']) == (transfer['name'], transfer['args']), (wait, transfer)
        assert abs(wait['end'] - transfer['end']) < 0.01 and transfer['ts'] <= wait['ts'], (wait, transfer)
        if wait['name'] == 'KV inner': assert transfer['ts'] < wait['ts'], (wait, transfer)
rows = [row for row in map(json.loads, open('$dir/traced.jsonl')) if 'loss' in row]
steps = [e for e in events if e['name'] == 'step']
assert [(e['track'], e['args']['index']) for e in steps] == [('compute', n) for n in (1, 2, 3, 4)], steps
assert all(e['dur'] > 1000 * row['step_ms'] - 0.01 for e, row in zip(steps, rows)), (steps, rows)
assert all(sum(s['ts'] <= e['ts'] and e['end'] <= s['end'] for s in steps) == 1 for e in events if e['name'] != 'step')
assert max(e['end'] for e in events) > 1000 * sum(row['step_ms'] for row in rows[:3])
assert sum(e['dur'] for e in events if e['track'] == 'wait') < 1000 * sum(row['step_ms'] for row in rows)
line = next(line for line in open('$dir/traced.out') if line.startswith('waited for transfers, ms a step:')).split(':')[1].split()
for kind, waited in zip(line[::2], line[1::2]):
    logged = sum(row['exposed_ms'][kind] for row in rows) / 4
    assert abs(logged - float(waited)) < 0.052, (kind, waited, logged)
times = [row['compute_ms'] for row in rows]
assert all(t['mean'] <= t['slowest'] <= row['step_ms'] and t['rank'] in (0, 1) for t, row in zip(times, rows)), times
assert 'kv_inner' in line and all(sum(row['exposed_ms'].values()) < row['step_ms'] for row in rows), line"

# The last step of a trace of a GPU: from one update to the next, with 3 products of 10 ms; what came before and comes behind is none of it.
cat >"$dir/kernels.py" <<'PY'
import json, sys
updates, products = ([int(n) for n in argument.split()] for argument in sys.argv[1:])
names = [dict(ph="M", name="thread_name", tid=n, args=dict(name=name)) for n, name in enumerate(("compute", "kernels"))]
events = [dict(ph="X", name="update", tid=0, ts=1e3 * t, dur=100) for t in updates]
print(json.dumps(names + events + [dict(ph="X", name="product", tid=1, ts=1e3 * t, dur=1e4) for t in products]))
PY
last_step() { python3 dev/trace_sum.py --last "$dir/kernels.json"; }
python3 "$dir/kernels.py" '50 100 150' '0 20 60 80 100 120 135 150 200 300' >"$dir/kernels.json"
check 'the last step of a trace' ends_with 0 'kernels.json: 45.0 ms, 15.000 ms of it between kernels' last_step
check 'its kernels' ends_with 0 '^ *product  *3 x  *30.000 ms  *66.67 %$' last_step
check 'an old Python sums' ends_with 0 '^ *product  *10 x  *100.000 ms ' old_python dev/trace_sum.py "$dir/kernels.json"
python3 "$dir/kernels.py" 50 '0 20 60' >"$dir/kernels.json"
check 'a trace that cannot be cut into steps' ends_with 2 '^error: .*kernels.json: --last needs a trace of two updates' last_step

# A rank that computes longer than the others is named: rank 1, which is stopped most of the time, also where a sleep takes longer.
stopped='(while kill -STOP $$; do sleep 0.15; kill -CONT $$; sleep 0.01; done) >/dev/null 2>&1 & exec "$@"'
long=("$binary" "${model[@]}" --dp 2 --batch-size 8 --log "$dir/slow.jsonl" --steps)
mpirun -np 1 "${long[@]}" 40 : -np 1 bash -c "$stopped" slow "${long[@]}" 40 >"$dir/slow.out" 2>&1
check 'the slowest rank is named' \
    grep -Eq '^computed, ms a step: [0-9.]+ in the mean of all ranks, [0-9.]+ on rank 1 \([^ ]+\), the slowest$' "$dir/slow.out"
logged="
import json
rows = [row['compute_ms'] for row in map(json.loads, open('$dir/slow.jsonl')) if 'loss' in row]
mean, slowest = (sum(row[key] for row in rows) / len(rows) for key in ('mean', 'slowest'))
named = [sum(row['slowest'] for row in rows if row['rank'] == rank) for rank in (0, 1)] # a busy machine may delay rank 0 for a step
assert slowest > 1.1 * mean and named[1] > 2 * named[0], (mean, slowest, rows)"
check 'and logged' python3 -c "$logged"
# So is one whose disk is slow: the others wait for it where data is read.
preload reads <<'C'
#include <dlfcn.h>
#include <unistd.h>
ssize_t pread(int f, void *to, size_t n, off_t at) {
    usleep(10000);
    return ((ssize_t (*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread"))(f, to, n, at);
}
C
mpirun -np 1 "${long[@]}" 10 : -np 1 env LD_PRELOAD="$dir/reads.so" "${long[@]}" 10 >"$dir/slow.out" 2>&1
check 'and one whose disk is slow' python3 -c "$logged"

# An OpenBLAS that does not know the CPU takes its oldest kernels; the program then starts itself anew with others (device/cpu/blas.c).
preload older <<'C'
char *openblas_get_corename(void) { static char core[] = "Prescott"; return core; }
C
kernels=Prescott
grep -qw avx2 /proc/cpuinfo && kernels='Prescott (OPENBLAS_CORETYPE=Haswell is set)'
grep -qw avx512vl /proc/cpuinfo && kernels='Prescott (OPENBLAS_CORETYPE=SkylakeX is set)'
older() { # expected environment...
    env -u OPENBLAS_CORETYPE LD_PRELOAD="$dir/older.so" "${@:2}" mpirun -np 2 "$binary" --model nano --from-scratch --steps 0 --threads 1 |
        grep -qF "OpenBLAS $1"
}
check 'an OpenBLAS that is older than the CPU is told which kernels it can run' older "$kernels"
check 'what is set stays' older 'Prescott (OPENBLAS_CORETYPE=Prescott is set)' OPENBLAS_CORETYPE=Prescott

# Dry run: on a single process, it prints the longest sequence.
check 'dry run' bash -c "'$binary' --model llama3-8b --dry-run --hp 8 --cp 8 --seq-len 1M --zero-params full --recompute selective \
    --memory-budget 80GiB | grep -q 'longest sequence'"

# A killed rank ends the job.
mpirun -np 4 "$binary" "${model[@]}" --steps 100000 --hp 2 --cp 2 >"$dir/killed.out" 2>&1 &
job=$!
until_shown '^step' "$dir/killed.out" || kill $job
began=$SECONDS
pkill -9 -n -f "^$binary .*$dir/data.bin"
wait $job
status=$?
check 'a killed rank ends the job with a non-zero status' [ $status -ne 0 ]
check 'within seconds' [ $((SECONDS - began)) -le 20 ]
check 'and says so' grep -qi 'signal 9\|killed' "$dir/killed.out"

mpirun -np 2 "$binary" "${nano[@]}" --cp 2 --steps 0 --val-data "$dir/data.bin" --eval-steps 2 --sample-every 1 --sample-tokens 5 \
    --log "$dir/only.jsonl" >"$dir/only.out" 2>&1 </dev/null
seen="$? $(grep -c '^eval  *0/0 \|^sample  *0/0 | tokens' "$dir/only.out") $(grep -c 'val_loss\|sample_tokens' "$dir/only.jsonl")"
check 'nothing to train: evaluates, samples, logs' [ "$seen" = '0 2 2' ]
first=$(od -An -v -tu2 -j1024 -N64 "$dir/data.bin" | xargs) # tokens, after the header
check 'without a prompt the data are one' grep -qx "sample      5 tokens after $first" "$dir/only.out"

rm -f "$dir/none.jsonl"
long=$(printf '%0250d' 0)
check 'an export whose name is too long is refused at once' ends_with 2 '^error: --export .*its name is longer than 241 bytes' \
    "$binary" "${model[@]}" --steps 1 --export "$dir/$long"
check 'a log that cannot be written, too' ends_with 2 '^error: --log .*/no/such/log: cannot be written: No such file' \
    "$binary" "${model[@]}" --steps 1 --out "$dir/no_log" --log "$dir/no/such/log"
check 'and leaves nothing' [ ! -e "$dir/no_log" ]
for option in --log --trace; do
    check "nor can $option be written below what --out makes" \
        ends_with 2 "^error: $option .*/no_log/below/file: cannot be written: No such file" \
        "$binary" "${model[@]}" --steps 1 --out "$dir/no_log" $option "$dir/no_log/below/file"
    check 'which leaves nothing either' [ ! -e "$dir/no_log" ]
done
check 'a trace and a log in a folder that --out makes' "$binary" "${model[@]}" --steps 1 --out "$dir/with_trace" \
    --trace "$dir/with_trace/t.json" --log "$dir/with_trace/l.jsonl"
check 'nothing to evaluate either: --log names the run' bash -c "
    '$binary' --model nano --from-scratch --steps 0 --export '$dir/none' --log '$dir/none.jsonl' && grep -q '^{\"run\":' '$dir/none.jsonl'"
"$binary" "${model[@]}" --steps 1 --out "$dir/finished" >"$dir/finished.out" 2>&1
check 'a finished run that is resumed writes its trace' bash -c "
    '$binary' ${model[*]} --steps 1 --out '$dir/finished' --resume --trace '$dir/finished.json' &&
    python3 -m json.tool '$dir/finished.json'"
check 'gradients that are not sent are not sent as bf16' lacks 'dKV sent as bf16' "$binary" "${model[@]}" --steps 1 --dkv-wire bf16
core=$(taskset -cp $$ | sed 's/.*: \([0-9]*\).*/\1/') # the first that this test may use
check 'a binding to one core that is not mpirun'"'"'s stays' \
    ends_with 0 '^device .*, 1 thread,' taskset -c "$core" "$binary" "${model[@]}" --steps 1

# The script that makes data touches no other file, whatever its name, also where its input is one of its own outputs.
mkdir "$dir/own data"
seq 1 200000 >"$dir/own data/text.txt"
cp "$dir/own data/text.txt" "$dir/own data/train.txt"
echo mine >"$dir/own data/val.txt"
check 'data from a text of one'"'"'s own' scripts/prepare_text.sh "$dir/own data" "$dir/own data/text.txt"
check 'the same from another file' scripts/prepare_text.sh "$dir/own data" "$dir/own data/train.txt"
gzip -c README.md >"$dir/text.gz"
check 'a text whose name begins with -' bash -c '
    cp "$1/own data/text.txt" "$1/-text" && script=$PWD/scripts/prepare_text.sh && cd "$1" && "$script" "own data" -text' _ "$dir"
printf 'a text of thirty letters, a bit\n' >"$dir/short"
printf 'too short\n' >"$dir/shorter"
check 'a short text' ends_with 0 '32 bytes of text from 1 file; vocabulary 256' scripts/prepare_text.sh "$dir/short data" "$dir/short"
check 'one too short to be divided' ends_with 2 '10 bytes; at least 20 are needed' \
    scripts/prepare_text.sh "$dir/shorter data" "$dir/shorter"
check 'a packed text is none' ends_with 2 "^error: $dir/text.gz: not a text but packed or binary" \
    scripts/prepare_text.sh "$dir/packed" "$dir/text.gz"
check 'and other files are as before' bash -c "cd '$dir/own data' &&
    cmp text.txt train.txt && [ \"\$(cat val.txt)\" = mine ] && [ \"\$(ls | wc -l)\" -eq 6 ]"

# text_to_tokens replaces token files, and nothing else: not an input, and no other file, as where OUT was forgotten.
to_tokens() { ends_with "$1" "$2" build/cpu/text_to_tokens "${@:3}"; }
printf 'First' >"$dir/a.txt"
printf 'Second' >"$dir/b.txt"
ln "$dir/a.txt" "$dir/link.txt"
check 'the file to write was forgotten' \
    to_tokens 2 "^error: $dir/a.txt: exists and is not a token file; the first argument is the file to write$" "$dir/a.txt" "$dir/b.txt"
check 'and the text is as before' [ "$(cat "$dir/a.txt") $(ls "$dir"/a.txt*)" = "First $dir/a.txt" ]
check 'a token file is made' to_tokens 0 '6 tokens' "$dir/b.bin" "$dir/b.txt"
check 'it is not its own input' to_tokens 2 "^error: $dir/b.bin: is the file to write" "$dir/b.bin" "$dir/a.txt" "$dir/b.bin"
ln "$dir/a.txt" "$dir/b.bin.part"
check 'nor is its .part, under any name' to_tokens 2 "^error: $dir/link.txt: is the file to write, or its .part" \
    "$dir/b.bin" "$dir/link.txt"
rm "$dir/b.bin.part"
check 'and it is replaced by others' to_tokens 0 '5 tokens' "$dir/b.bin" "$dir/a.txt"

# What goes wrong late does not cost the model. Exit statuses: 1 for an incomplete log or trace, 2 where another attempt would find the
# export in its way; 2 for bad validation data, which is found early, and divergence, which would happen again.
python3 -c "
data = bytearray(open('$dir/data.bin', 'rb').read())
data[1024 + 2 * 50:1024 + 2 * 50 + 2] = (999).to_bytes(2, 'little')
open('$dir/beyond.bin', 'wb').write(data)
data[1024 + 2 * 50:1024 + 2 * 50 + 2] = data[1026:1028]
data[1024 + 2 * 810:1024 + 2 * 810 + 2] = (999).to_bytes(2, 'little')
open('$dir/later.bin', 'wb').write(data)
open('$dir/unlearnt.bin', 'wb').write(open('$dir/data.bin', 'rb').read())
open('$dir/unlearnt.bin.mask', 'wb').write(bytes((len(data) - 1024) // 2))"
ln -s /dev/full "$dir/full" # what removes it by mistake removes the link alone
check 'a log on a full disk: a warning and status 1' ends_with 1 'warning: --log .*/full' \
    "$binary" "${model[@]}" --steps 2 --log "$dir/full"
check 'beside an export: status 2' ends_with 2 'warning: --log .*/full' \
    "$binary" "${model[@]}" --steps 2 --log "$dir/full" --export "$dir/exported"
check 'and the export' [ -e "$dir/exported/model.safetensors" ]
check 'the last update, of states on the host, is done before the export' \
    "$binary" "${model[@]}" --steps 2 --offload-optimizer --export "$dir/hosted"
check 'which is the same' cmp "$dir"/{exported,hosted}/model.safetensors
cp -r "$dir/exported" "$dir/broken"
python3 -c "
f = open('$dir/broken/model.safetensors', 'r+b')
f.seek(-4, 2)
f.write(b'\\x00\\x00\\xc0\\xff')"
check 'an evaluation that is not a number: status 2' ends_with 2 'error: a validation loss is not finite' mpirun -np 2 \
    "$binary" --model "$dir/broken" --seq-len 100 --cp 2 --steps 0 --val-data "$dir/data.bin" --eval-steps 1
check 'it is nan, without a sign' [ "$(grep -c 'val loss .* nan' "$dir/shown") $(grep -c -- -nan "$dir/shown")" = '1 0' ]
check 'an export in a new folder of states' bash -c "
    '$binary' ${model[*]} --steps 2 --out '$dir/together' --resume --export '$dir/together/hf' &&
    cmp '$dir/together/hf/model.safetensors' '$dir/exported/model.safetensors'"
check 'in a folder that is there already, too' \
    "$binary" "${model[@]}" --steps 2 --out "$dir/together" --resume --export "$dir/together/again"
check 'a trace on a full disk: a warning with the reason' \
    ends_with 1 '^warning: --trace .*/full: cannot be written: No space left on device' \
    "$binary" "${model[@]}" --steps 2 --trace "$dir/full"
check 'bad validation data: status 2' ends_with 2 'is 999' \
    mpirun -np 2 "$binary" "${model[@]}" --cp 2 --steps 2 --val-data "good=$dir/data.bin,bad=$dir/beyond.bin" --eval-steps 1
check 'before the first step, although the evaluation is after the last' bash -c "! grep '^step' '$dir/shown'"
check 'also in what needles alone read' ends_with 2 'is 999' \
    "$binary" "${model[@]}" --steps 2 --val-data "$dir/later.bin" --eval-steps 1 --eval-needles 9
check 'data that no evaluation reads does not count' "$binary" "${model[@]}" --steps 2 --val-data "$dir/later.bin" --eval-steps 1
check 'divergence: status 2' ends_with 2 'error: step .*: loss .* lower --lr' \
    "$binary" "${model[@]}" --steps 30 --lr 100 --grad-clip 0 --weight-decay 100
check 'nan has no sign' [ "$(grep -cw nan "$dir/shown") $(grep -c -- -nan "$dir/shown")" = '2 0' ]
check 'no label at all: a warning' ends_with 0 'warning: step 1: none of its tokens is a label' \
    "$binary" "${nano[@]}" --train-data "$dir/unlearnt.bin" --steps 2 --log "$dir/unlearnt.jsonl"
check 'once' [ "$(grep -c 'none of its tokens is a label' "$dir/shown")" -eq 1 ]
check 'the log names the program, the device and the size of the model' python3 -c "
import json
r = json.loads(open('$dir/unlearnt.jsonl').readline())['run']
assert r['version'] and r['device'], r
assert r['parameters'] == 2 * 256 * 64 + 64 + 2 * (2 * 64 + 64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 176), r"
check 'and no loss' [ "$(grep -c '"loss":null' "$dir/unlearnt.jsonl")" = 2 ]

# Steps without a label, here every other one or so, change nothing, wherever the states are.
python3 -c "
n = len(open('$dir/data.bin', 'rb').read()) - 1024 >> 1
open('$dir/half.bin', 'wb').write(open('$dir/data.bin', 'rb').read())
open('$dir/half.bin.mask', 'wb').write(bytes(n // 2) + b'\1' * (n - n // 2))"
half=(--model nano --from-scratch --train-data "$dir/half.bin" --seq-len 100 --steps 8)
for ranks in 1 2; do
    sharded=(mpirun -np $ranks "$binary" "${half[@]}" --cp $ranks --zero-params full)
    "${sharded[@]}" --log "$dir/half.jsonl" --export "$dir/half$ranks" >"$dir/out" 2>&1 </dev/null
    "${sharded[@]}" "${on_host[@]}" --export "$dir/half$ranks-hosted" >"$dir/out" 2>&1 </dev/null
    check "steps without a label, $ranks ranks: the same model with all states on the host" \
        cmp "$dir/half$ranks/model.safetensors" "$dir/half$ranks-hosted/model.safetensors"
done
check 'some steps have labels, some have none' python3 -c "
import json
run, *rows = [json.loads(line) for line in open('$dir/half.jsonl')]
run = run['run']
assert run['parameters'] == 2 * 256 * 64 + 64 + 2 * (2 * 64 + 64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 176), run
assert run['ranks'] == 2 and run['options']['cp'] == '2' and run['options']['lr'] == '0.0003' and run['steps_done'] == 0, run
none = [row['labels'] == 0 for row in rows]
assert any(none) and not all(none) and all((row['loss'] is None) == empty for row, empty in zip(rows, none)), rows"
check 'a step without a label' "$binary" "${nano[@]}" --train-data "$dir/unlearnt.bin" --steps 2 --export "$dir/unchanged"
check 'and the model without it' "$binary" --model nano --from-scratch --steps 0 --export "$dir/untrained"
check 'are the same' cmp "$dir/unchanged/model.safetensors" "$dir/untrained/model.safetensors"

# --log is one run's at a time; a run that trains from the beginning replaces it, an evaluation appends.
cp "$dir/half.jsonl" "$dir/kept.jsonl"
check 'an evaluation appends to a log' "$binary" "${nano[@]}" --steps 0 --val-data "$dir/data.bin" --log "$dir/kept.jsonl"
check 'with the number of its tokens' bash -c "[ \$(wc -l <'$dir/kept.jsonl') -eq 11 ] &&
    tail -1 '$dir/kept.jsonl' | grep -q '\"val_loss\":[0-9.]*,\"val_tokens\":1000}'"
check 'however it is locked' ends_with 2 'another run writes it' flock -s "$dir/kept.jsonl" "$binary" "${half[@]}" --log "$dir/kept.jsonl"
check 'what is no file is for all' flock /dev/null "$binary" "${model[@]}" --steps 1 --log /dev/null
cp "$dir/data.bin" "$dir/precious.bin"
cp "$dir/data.bin" "$dir/worse.bin"
for option in --log --trace; do
    check "$option does not replace a token file" \
        ends_with 2 "^error: $option .*/precious.bin: is a file of another kind, which would be lost" \
        "$binary" "${model[@]}" --steps 1 $option "$dir/precious.bin"
done
echo '{"model_type": "llama"}' >"$dir/precious.json"
cp "$dir/precious.json" "$dir/kept.json"
check 'nor a config.json' ends_with 2 '^error: --log .*/precious.json: is a file of another kind' \
    "$binary" "${model[@]}" --steps 1 --log "$dir/precious.json"
plan=("$binary" --model tiny --plan --cluster cpu --ranks)
check '--plan-json neither, another JSON file' ends_with 2 '^error: --plan-json .*/precious.json: is a file of another kind' \
    "${plan[@]}" 2 --plan-json "$dir/precious.json"
check 'that is as before, too' cmp "$dir/kept.json" "$dir/precious.json"
for n in 1 2; do check "a plan replaces a plan, $n" "${plan[@]}" 2 --plan-json "$dir/replaced.json"; done
check 'a plan on a full disk: status 1' ends_with 1 '^error: --plan-json /dev/full: cannot be written: No space left on device' \
    "${plan[@]}" 2 --plan-json /dev/full
check 'that is no file, and stays' [ -c /dev/full ]
cp "$dir/replaced.json" "$dir/before.json"
check 'a plan over another one on a full disk: status 1' \
    ends_with 1 '^error: --plan-json .*/replaced.json: cannot be written: No space left on device' \
    on_full_disk "${plan[@]}" 4 --plan-json "$dir/replaced.json"
check 'which stays' cmp "$dir/before.json" "$dir/replaced.json"
check 'and nothing of the new one' [ ! -e "$dir/replaced.json.unfinished" ]
check 'a plan replaces another one' "${plan[@]}" 4 --plan-json "$dir/replaced.json"
check 'whole' bash -c "python3 -m json.tool '$dir/replaced.json' &&
    ! cmp -s '$dir/before.json' '$dir/replaced.json' && [ ! -e '$dir/replaced.json.unfinished' ]"
ln -s replaced.json "$dir/link.json"
check 'through a link, which stays' bash -c "
    ${plan[*]} 2 --plan-json '$dir/link.json' && [ -L '$dir/link.json' ] && cmp '$dir/before.json' '$dir/replaced.json'"
full_output() { "$@" >/dev/full; }
lost='^error: standard output cannot be written: No space left on device$'
check 'a help that is lost: status 1' ends_with 1 "$lost" full_output "$binary" --help
check 'a plan that is lost, too' ends_with 1 "$lost" full_output "${plan[@]}" 2
check 'and a dry run' ends_with 1 "$lost" full_output "$binary" --model nano --dry-run
check 'and what a run prints' ends_with 1 "$lost" full_output "$binary" "${model[@]}" --steps 2 --export "$dir/unseen"
check 'which is done' [ -e "$dir/unseen/model.safetensors" ]
check 'a user error is one all the same' ends_with 2 '^error: unknown option --nothing' full_output "$binary" --nothing
for n in 1 2; do check "a trace replaces a trace, $n" "$binary" "${model[@]}" --steps 1 --trace "$dir/replaced.trace"; done
check 'one file for log and trace' ends_with 2 '^error: --log .*/twice is a file of --trace, too' \
    "$binary" "${model[@]}" --steps 1 --log "$dir/twice" --trace "$dir/twice"
touch "$dir/thrice"
ln -s thrice "$dir/thrice_link"
check 'by a link, too' ends_with 2 '^error: --log .*/thrice_link is a file of --trace, too' \
    "$binary" "${model[@]}" --steps 1 --log "$dir/thrice_link" --trace "$dir/thrice"
check 'both to one pipe' bash -c "'$binary' ${model[*]} --steps 1 --log /dev/stderr --trace /dev/stdout 2>&1 | grep -q '\"loss\"'"
check 'and of one rank' ends_with 2 '^error: --log .*/twice.rank1 is a file' \
    mpirun -np 2 "$binary" "${model[@]}" --hp 2 --steps 1 --log "$dir/twice.rank1" --trace "$dir/twice"
check 'nor for a trace and an export' ends_with 2 '^error: --export .*/twice.rank1 is a file of --trace, too' \
    mpirun -np 2 "$binary" "${model[@]}" --hp 2 --steps 1 --export "$dir/twice.rank1" --trace "$dir/twice"
check 'neither is written' [ -z "$(ls "$dir"/twice* 2>/dev/null)" ]
check '--plan-json replaces no token file' ends_with 2 '^error: --plan-json .*/precious.bin: is a file of another kind' \
    "${plan[@]}" 2 --plan-json "$dir/precious.bin"
check 'nor does a log go where the standard output goes' ends_with 2 '^error: --log .*/shown: standard output goes to this file, too' \
    "$binary" "${model[@]}" --steps 1 --log "$dir/shown"
check 'nor a plan' ends_with 2 '^error: --plan-json /dev/stdout: standard output goes to this file, too' \
    "${plan[@]}" 2 --plan-json /dev/stdout
check '--cluster-out neither, before anything is measured' ends_with 2 '^error: --cluster-out .*/precious.bin: is a file of another kind' \
    "$binary" --calibrate --cluster-out "$dir/precious.bin"
check 'it is as before' cmp "$dir/data.bin" "$dir/precious.bin"
mkdir "$dir/elsewhere"
ln -s "$dir/elsewhere/linked.jsonl" "$dir/linked.jsonl"
check 'a log by a link to what is not there yet' "$binary" "${model[@]}" --steps 1 --log "$dir/linked.jsonl"
check 'is written there' [ -L "$dir/linked.jsonl" -a -s "$dir/elsewhere/linked.jsonl" ]
cp "$dir/kept.jsonl" "$dir/cut.jsonl"
truncate -s -100 "$dir/cut.jsonl"
check 'what is appended to a log that was cut' "$binary" "${nano[@]}" --steps 0 --val-data "$dir/data.bin" --log "$dir/cut.jsonl"
check 'begins a line' [ "$(tail -2 "$dir/cut.jsonl" | grep -c '^{"run":\|^{"step":')" -eq 2 ]
check 'a log of an evaluation alone: why it cannot be written' \
    ends_with 1 '^warning: --log /dev/full: not all of it could be written: No space left on device' \
    "$binary" "${nano[@]}" --steps 0 --val-data "$dir/data.bin" --log /dev/full
check 'a log that cannot be written: status 1' \
    ends_with 1 '^warning: --log /dev/full: not all of it could be written: No space left on device' \
    "$binary" "${model[@]}" --steps 3 --log /dev/full
said=$(grep '^warning: --log /dev/full: cannot be written any more: No space left\|^step *2/3' "$dir/shown" | sed 's/ .*//' | xargs)
check 'it was said before the second step, once' [ "$said" = 'warning: step' ]
preload full_from <<'C'
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int fflush(FILE *f) {
    static int lines;
    int (*next)(FILE *) = (int (*)(FILE *))dlsym(RTLD_NEXT, "fflush");
    char link[64], path[4096] = "";
    if (f != NULL && snprintf(link, sizeof link, "/proc/self/fd/%d", fileno(f)) > 0 && readlink(link, path, sizeof path - 1) > 0 &&
        strstr(path, "/full.jsonl") != NULL && ++lines == atoi(getenv("FULL_FROM_LINE")))
        dup2(open("/dev/full", O_WRONLY), fileno(f));
    return next(f);
}
C
full_at_end() { # how the last line of its log begins, command...: the disk is full for this line alone, so that no later one says so
    "${@:2}" --log "$dir/full.jsonl" >"$dir/shown" 2>&1 </dev/null
    local line=$(wc -l <"$dir/full.jsonl")
    check "the last line of a log begins with $1" grep -q "^$1" <(tail -1 "$dir/full.jsonl")
    rm -rf "$dir/full-states"
    check 'a disk that is full for it: status 1' \
        ends_with 1 '^warning: --log .*/full.jsonl: not all of it could be written: No space left on device' \
        env LD_PRELOAD="$dir/full_from.so" FULL_FROM_LINE=$line "${@:2}" --log "$dir/full.jsonl"
    check 'it was said when it was lost' grep -q '^warning: --log .*/full.jsonl: cannot be written any more: No space left' "$dir/shown"
}
full_at_end '{"run":' "$binary" "${nano[@]}" --steps 0
full_at_end '{"step":1,"saved":' "$binary" "${model[@]}" --steps 1 --out "$dir/full-states"
full_at_end '{"step":1,"val_loss":' "$binary" "${model[@]}" --steps 1 --val-data "$dir/data.bin"
full_at_end '{"step":1,"sample_tokens":' "$binary" "${model[@]}" --steps 1 --sample-every 1
cp "$dir/cut.jsonl" "$dir/before.jsonl"
printf '\377\377' | dd of="$dir/worse.bin" bs=1 seek=1100 conv=notrunc 2>/dev/null
check 'bad validation data, read at the first evaluation' ends_with 2 'worse.bin: ' \
    "$binary" "${model[@]}" --steps 3 --val-data "$dir/worse.bin" --eval-every 1 --log "$dir/cut.jsonl"
check 'leaves the log as it was' cmp "$dir/before.jsonl" "$dir/cut.jsonl"
mkdir "$dir"/{learnt,validated}
for folder in learnt validated; do
    cp "$dir/other.bin" "$dir/$folder/a.bin" && ln -s "$dir/data.bin" "$dir/$folder/b.bin" && cp "$dir/other.bin" "$dir/$folder/c.bin"
done
check 'training data that is validated on is noted' \
    ends_with 0 '^note: --train-data holds .*/validated/b.bin, on which --val-data evaluates$' "$binary" "${nano[@]}" --steps 1 \
    --train-data "$dir/other.bin:0.3,$dir/learnt/*.bin:0.7" --val-data "one=$dir/validated/a.bin,all=$dir/validated/*.bin" --eval-steps 1
check 'a log that another run writes is refused' ends_with 2 'another run writes it' \
    flock "$dir/kept.jsonl" "$binary" "${half[@]}" --log "$dir/kept.jsonl"
check 'and not touched' [ "$(wc -l <"$dir/kept.jsonl")" -eq 11 ]
mkfifo "$dir/fifo"
timeout 60 cat "$dir/fifo" >"$dir/piped.jsonl" &
check 'a log through a pipe with a name' timeout 60 "$binary" "${half[@]}" --log "$dir/fifo"
wait $!
check 'arrives whole' [ "$(wc -l <"$dir/piped.jsonl")" -eq 9 ]
timeout 60 head -2 "$dir/fifo" >/dev/null & # the pipe takes 64 KB more, some 70 steps
check 'whose reader ends: a warning, and status 1' ends_with 1 '^warning: --log .*/fifo: not all of it could be written: Broken pipe' \
    timeout 60 "$binary" "${model[@]}" --steps 200 --log "$dir/fifo"
check 'after the last step' grep -q '^step *200/200' "$dir/shown"
wait $!
limited() { (ulimit -f 16 && "$@"); } # KB
check 'a log that is too large: status 1' ends_with 1 '^warning: --log .*/large.jsonl: not all of it could be written: File too large' \
    limited "$binary" "${model[@]}" --steps 30 --log "$dir/large.jsonl"
check 'holds whole lines, to which later ones may be added' python3 -c "
import json
rows = [json.loads(line) for line in open('$dir/large.jsonl')]
assert 3 < len(rows) < 31 and open('$dir/large.jsonl').read().endswith('}\n'), len(rows)"

# What the user of a pretrained model may have forgotten is noted; what was given is not.
pretrained=("$binary" --model test/golden/folder_f32 --train-data "$dir/data.bin" --seq-len 400 --steps 1)
check 'a longer context and the default rate are noted' \
    ends_with 0 'note: 400 tokens are more than the 384 that the model was made for, and its RoPE' "${pretrained[@]}"
check 'the latter, too' grep -q 'note: --lr 0.0003 is for training from random parameters' "$dir/shown"
check 'none of what was given' ends_with 0 '^step *1/1' "${pretrained[@]}" --lr 1e-5 --rope-theta 1e6
check 'is noted' [ "$(grep -c '^note: ' "$dir/shown")" -eq 0 ]
quiet() { ends_with 0 '' "$@" && [ "$(grep -c '^note: ' "$dir/shown")" -eq 0 ]; }
check 'no note: RoPE was given' quiet "${pretrained[@]}" --lr 1e-5 --rope-scaling linear:factor=2
check 'yarn for fewer tokens than a sequence has: a note' \
    ends_with 0 '^note: --rope-scaling yarn:factor=4,original=99 is for 396 tokens, and --seq-len is 400$' \
    "${pretrained[@]}" --lr 1e-5 --rope-scaling yarn:factor=4,original=99
check 'no note: it is for as many' quiet "${pretrained[@]}" --lr 1e-5 --rope-scaling yarn:factor=4,original=100
check 'no note: the length that the model was made for' quiet "${pretrained[@]:0:6}" 384 --steps 1 --lr 1e-5
check 'no note: no training' quiet "${pretrained[@]:0:3}" --seq-len 384 --steps 0 --export "$dir/quiet"
check 'nothing to do: a note' ends_with 0 '^note: --steps 0 without ' "${pretrained[@]:0:3}" --steps 0
check 'no note: a dry run' quiet "${pretrained[@]:0:3}" --seq-len 384 --dry-run
check 'no note: a plan' quiet "${pretrained[@]:0:3}" --seq-len 400 --plan --ranks 1 --cluster h100
check 'no note: from random parameters' quiet "${pretrained[@]}" --from-scratch
check 'no note: a preset' quiet "$binary" --model nano --dry-run --seq-len 1M
check 'a note of one rank' bash -c "mpirun -np 2 ${pretrained[*]} --cp 2 2>&1 | grep -c '^note: --lr' | grep -qx 1"
python3 -c "
data = bytearray(open('$dir/data.bin', 'rb').read())
for i in range(1024 + 2 * 100, len(data), 2): data[i] ^= 1
open('$dir/first.bin', 'wb').write(data)"
for name in data first; do
    for end in none 48; do
        "$binary" "${nano[@]}" --steps 0 --document-end $end --val-data "$dir/$name.bin" --eval-steps 1 --eval-needles 1 \
            --log "$dir/needles-$name-$end.jsonl" >"$dir/out" 2>&1
    done
done
check 'a haystack is one document, and the same for each depth' \
    [ "$(sed -n 's/.*"needle_accuracy"/"needle_accuracy"/p' "$dir"/needles-*.jsonl | sort | uniq -c | awk '{print $1}')" = 4 ]
for name in data first; do # which differ from the second sample on
    "$binary" "${nano[@]}" --steps 0 --val-data "$dir/$name.bin" --eval-steps 1 --eval-needles 2 --log "$dir/second-$name.jsonl" \
        >"$dir/out" 2>&1
done
check 'the second needle at each depth is in the second sample' \
    [ "$(sed -n 's/.*"needle_loss"/"needle_loss"/p' "$dir"/second-*.jsonl | sort -u | wc -l)" = 2 ]
for end in none 48; do # documents of 20 tokens and more are segments
    TRAIN_LLAMA_TEST_LONG_DOCUMENT=20 mpirun -np 2 "$binary" "${nano[@]}" --cp 2 --steps 0 --document-end $end --val-data "$dir/data.bin" \
        --eval-steps 1 --eval-needles 1 --sample-every 1 --sample-tokens 60 --log "$dir/alone-$end.jsonl" >"$dir/out" 2>&1
done
check 'also where samples have segments, and so is the text that is drawn' python3 -c "
import json
(a, drawn), (b, also) = ([json.loads(line) for line in open('$dir/alone-%s.jsonl' % end)][1:] for end in ('none', '48'))
assert len(drawn['sample_tokens']) == 60 and drawn == also, (drawn, also)
assert a['val_loss'] != b['val_loss'] and a['needle_accuracy'] == b['needle_accuracy']
for depth, loss in a['needle_loss'].items(): assert abs(loss - b['needle_loss'][depth]) < 1e-5, (a, b)"
check 'samples of two steps, after one token' "$binary" "${model[@]}" --steps 2 --lr 1e-30 \
    --sample-every 1 --sample-prompt 7 --sample-tokens 20 --sample-temperature 10 --log "$dir/drawn.jsonl"
check 'are two draws, and so are their tokens' python3 -c "
import json
drawn = [row['sample_tokens'] for row in map(json.loads, open('$dir/drawn.jsonl')) if 'sample_tokens' in row]
assert len(drawn) == 2 and drawn[0] != drawn[1] and all(len(set(tokens)) > 10 for tokens in drawn), drawn"
used() { # option...: trains with it and prints the last loss
    "$binary" "${model[@]}" --steps 3 --lr 3e-3 --warmup 2 --log "$dir/used.jsonl" "$@" >"$dir/out" 2>&1 &&
        tail -1 "$dir/used.jsonl" | sed 's/.*"loss":\([0-9.]*\).*/\1/'
}
plain=$(used)
check 'the first rate of a warm-up of 2 steps, then all of it' \
    [ "$(sed -n 's/^{"step".*"lr":\([0-9.e-]*\).*/\1/p' "$dir/used.jsonl" | head -2 | xargs)" = '0.0015 0.003' ]
for option in '--beta1 0.5' '--beta2 0.9' '--eps 1e-3' '--weight-decay 10' '--grad-clip 0.01'; do
    loss=$(used $option)
    check "$option is used" [ -n "$loss" -a "$loss" != "$plain" ]
done
for decay in 0 100; do
    "$binary" "${model[@]}" --steps 1 --lr 1e-3 --lr-schedule constant --weight-decay $decay --export "$dir/decay$decay" >"$dir/out" 2>&1
done
check 'all matrices decay, by a tenth here, and no norm' python3 -c "
import array, json, statistics, struct
def tensors(path):
    data = open(path, 'rb').read()
    n = struct.unpack('<Q', data[:8])[0]
    return {name: array.array('f', data[8 + n + t['data_offsets'][0]:8 + n + t['data_offsets'][1]])
            for name, t in json.loads(data[8:8 + n]).items() if name != '__metadata__'}
none, some = (tensors('$dir/decay%d/model.safetensors' % decay) for decay in (0, 100))
for name, x in none.items():
    if 'norm' in name: assert some[name] == x, name
    else: assert abs(statistics.pstdev(some[name]) / statistics.pstdev(x) - 0.9) < 0.01, name
assert len(none) == 21, len(none)"
check 'random parameters: no two tensors alike, 0.02, less where layers add up' python3 -c "
import array, json, statistics, struct
data = open('$dir/untrained/model.safetensors', 'rb').read()
n = struct.unpack('<Q', data[:8])[0]
seen = set()
for name, t in json.loads(data[8:8 + n]).items():
    if name == '__metadata__': continue
    x = array.array('f', data[8 + n + t['data_offsets'][0]:8 + n + t['data_offsets'][1]])
    if 'norm' in name: assert set(x) == {1}, name; continue
    assert tuple(x[:9]) not in seen, name
    seen.add(tuple(x[:9]))
    deviation = statistics.pstdev(x)
    assert abs(deviation / (0.01 if 'o_proj' in name or 'down_proj' in name else 0.02) - 1) < 0.05, (name, deviation)"
check '--verify without training' ends_with 0 '^verified ' \
    "$binary" "${nano[@]}" --steps 0 --val-data "$dir/data.bin" --eval-steps 1 --verify
for steps in 0 1; do
    "$binary" --model tiny --from-scratch --train-data "$dir/unlearnt.bin" --val-data "$dir/data.bin" --seq-len 100 \
        --eval-steps 2 --steps $steps --log "$dir/eval-of-$steps.jsonl" >"$dir/out" 2>&1
    check "4 layers, --steps $steps" [ $? -eq 0 ]
done
check 'the same evaluation with and without memory for training' \
    [ "$(grep -ho '"val_loss":.*' "$dir"/eval-of-?.jsonl | sort | uniq -c | awk '{print $1}')" = 2 ]
build/cpu/text_to_tokens "$dir/five.bin" "$dir/a.txt" >"$dir/out"
check 'tokens that are in no sample' ends_with 0 '; no sample holds the last 1 token$' \
    "$binary" --model nano --from-scratch --train-data "$dir/five.bin" --seq-len 2 --steps 1
python3 -c "import struct; open('$dir/wide.bin', 'wb').write(struct.pack('<3i', 20240801, 7, 1) + bytes(1012 + 4))"
check 'token files of 32 bits are replaced, too' ends_with 0 '5 tokens' build/cpu/text_to_tokens "$dir/wide.bin" "$dir/a.txt"
touch "$dir/wide.bin.mask"
check 'those with a loss mask are not: it would be taken for that of the new tokens' \
    to_tokens 2 'wide.bin.mask: the loss mask of other tokens' "$dir/wide.bin" "$dir/a.txt"

check '--deterministic: the CPU device always is' bash -c "
    $binary --model nano --from-scratch --train-data '$dir/data.bin' --seq-len 64 --steps 1 --deterministic | grep -q 'repeatable  yes'"
closing_line
