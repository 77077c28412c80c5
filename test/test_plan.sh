#!/usr/bin/env bash
# --plan, --hp auto and --dry-run --cluster as users run them: what is printed, valid JSON, the time they take, what is refused; and that
# scripts/run_*.sh and docs/plans.md agree with the planner.
source "$(dirname "$0")/shell.sh"
# refuse NAME PATTERN OPTION...: exit status 2 and one line that matches
refuse() {
    local name=$1 pattern=$2
    shift 2
    "$binary" "$@" >"$dir/out" 2>"$dir/err" </dev/null
    local seen="$? $(grep -c . "$dir/err") $(grep -cE "^error:.*$pattern" "$dir/err")"
    check "$name" bash -c "[ '$seen' = '2 1 1' ] || { cat '$dir/err' && exit 1; }"
}
seq 1 20000 | tokens_of data

# A plan: the parts of the answer, the command last, JSON that agrees with it.
plan() { "$binary" --plan "$@" --plan-json "$dir/plan.json" >"$dir/plan" 2>"$dir/err"; }
# A model with one head, so cp gets all ranks and, where GPUs share NICs, windows are interleaved; its embedding is tied.
mkdir "$dir/it's"
cat >"$dir/it's/config.json" <<'JSON'
{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 1, "intermediate_size": 96, "vocab_size": 256,
 "rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "tie_word_embeddings": true}
JSON
for case in 'llama3-8b 8 h100 128K 128 1' 'llama3-8b 64 a100-4nic 1M 16 1' 'llama3-70b 512 h200 4M 4 1' "$dir/it's 16 a100-4nic 64K 2 2"; do
    set -- $case
    asked=(--model "$1" --from-scratch --ranks "$2" --cluster "$3" --seq-len "$4" --global-batch "$5" --batch-size "$6")
    TIMEFORMAT='%U %S' # processor time: the machine may be busy with other things
    { time plan "${asked[@]}"; } 2>"$dir/time"
    check "plan $case" plan "${asked[@]}"
    check "plan $case under 5 s" awk '{ok = $1 + $2 < 5} END {exit !ok}' "$dir/time"
    check "plan $case: figures" grep -q "^figures of the cluster: [0-9]* measured, [0-9]* datasheet, [0-9]* estimate" "$dir/plan"
    check "plan $case: choice" grep -qE '^   step [0-9.]+ s  TGS [0-9.]+  MFU [0-9.]+%  HFU [0-9.]+%  memory [0-9.]+ [GM]iB' "$dir/plan"
    check "plan $case: exposed" grep -qE '^   exposed ms: SeqAlltoAll .*inner ring .*outer ring .*gather .*reduce' "$dir/plan"
    check "plan $case: reason and runner-up" grep -qE '^why 1: .*the runner-up is [0-9.]+ % (slower|faster)' "$dir/plan"
    check "plan $case: JSON" python3 - "$dir/plan.json" "$dir/plan" "$2" "$1" <<'PY'
import json, shlex, sys
plan, lines = json.load(open(sys.argv[1])), open(sys.argv[2]).read().splitlines()
command = shlex.split(lines[-1])
assert command[:4] == ["mpirun", "-np", sys.argv[3], "./train_llama"], command
flags = dict(zip(command, command[1:]))
best = plan["choices"][0]
assert len(plan["choices"]) >= 5
assert len({tuple(c[k] for k in ("hp", "cp", "inner_ring", "placement", "cp_comm")) for c in plan["choices"]}) == len(plan["choices"])
def cost(c): # of two choices that are as fast to within 2 %, the one with less offload, and all layers alike
    more = c["offload_optimizer"] + c["offload_gradients"] + c["offload_parameters"] + (c["recompute"] == "auto")
    return c["step_s"] * 1.02 ** (more + (c["offload_activations"] > 0) + (0 < c["offload_activations"] < 1))
assert best["slower_than_best"] == 0 and sorted(map(cost, plan["choices"])) == list(map(cost, plan["choices"]))
for key in ("dp", "hp", "cp", "zero_params", "zero_grads", "zero_optim"):
    flag = flags["--" + key.replace("_", "-")]
    assert int(flag) == best[key], (key, flag, best[key])
assert flags["--recompute"] == best["recompute"] and flags["--model"] == sys.argv[4] and command.count("--from-scratch") == 1
assert flags.get("--cp-comm", "ring") == best["cp_comm"]
assert best["cp"] == 1 or best["cp_comm"] == "allgather" or int(flags["--inner-ring"]) == best["inner_ring"]
assert flags.get("--placement", "head-first") == best["placement"]
assert float(flags.get("--offload-activations", 0)) == best["offload_activations"]
if "it's" in sys.argv[4]: assert best["inner_ring"] == 4 and flags["--gpus-per-node"] == "8" and flags["--nics-per-node"] == "4", command
assert best["dp"] * best["hp"] * best["cp"] == plan["ranks"] == int(sys.argv[3])
assert abs(sum(best["seconds"].values()) / best["step_s"] - 1) < 1e-9
for i, c in enumerate(plan["choices"][:5]): # what is printed is what is in the file
    at, s = next(k for k, line in enumerate(lines) if line.startswith(f"{i + 1}. dp {c['dp']} hp {c['hp']} cp {c['cp']}")), c["seconds"]
    speed = f" step {c['step_s']:.3f} s  TGS {c['tgs']:.1f}  MFU {100 * c['mfu']:.1f}%  HFU {100 * c['hfu']:.1f}% "
    assert c["mfu"] < c["hfu"] and speed in lines[at + 1], (lines[at + 1], c)
    assert lines[at + 1].endswith("(a tie with 1)") == (i > 0 and c["slower_than_best"] <= 0.02), (lines[at + 1], c)
    assert abs(c["step_s"] / best["step_s"] - 1 - c["slower_than_best"]) < 1e-9, (lines[at + 1], c)
    parts = (("SeqAlltoAll",) * 2, ("inner ring", "inner ring exposed"), ("outer ring", "outer ring exposed"),
             ("gather", "gathering exposed"), ("reduce", "reducing exposed"),
             ("update", "parameter update"), ("offload", "offload exposed"))
    assert lines[at + 2] == "   exposed ms: " + ", ".join(f"{name} {1e3 * s[key]:.1f}" for name, key in parts), (lines[at + 2], s)
name, seconds = max(best["seconds"].items(), key=lambda part: part[1])
assert any(line.startswith(f"why 1: its step is {name} {100 * seconds / best['step_s']:.0f} %") for line in lines), (name, seconds)
assert abs(best["tgs"] * best["step_s"] * plan["ranks"] / (plan["seq_len"] * plan["global_batch"]) - 1) < 1e-9
PY
    # The parser takes the plan's command, and its dry run has the plan's memory.
    command=$(tail -1 "$dir/plan")
    eval "set -- ${command#mpirun -np * ./train_llama}"
    check "plan $case: the command's dry run has the plan's memory" bash -c '
        bytes=$("$1" --dry-run "${@:4}" | sed -n "s/^bytes of a rank: device //p")
        planned=$(python3 -c "import json, sys; plan = json.load(open(sys.argv[1])); c = plan[\"choices\"][0]
print(c[\"memory_bytes\"], \"host\", c[\"host_bytes_of_node\"] // 8)" "$2")
        [ -n "$bytes" ] && [ "$bytes" = "$planned" ] && { [ "${bytes#* host }" = 0 ] || grep -q "of host memory a node$" "$3"; }
        ' _ "$binary" "$dir/plan.json" "$dir/plan" "$@"
done

plan --model tiny --seq-len 1K --ranks 2 --log=--it\'s --sample-every 5 --sample-prompt=--
command=$(tail -1 "$dir/plan")
check 'values that look like options are printed as values' \
    bash -c "$(printf '%q' "$binary") --dry-run ${command#mpirun -np 2 ./train_llama}"

# --hp auto trains with the plan's choice and has the loss of any other grid.
small=(--model nano --from-scratch --train-data "$dir/data.bin" --seq-len 128)
mpirun -np 4 "$binary" "${small[@]}" --hp auto --steps 3 \
    --batch-size 2 --global-batch 16 --log "$dir/auto.jsonl" >"$dir/auto" 2>&1 </dev/null
"$binary" "${small[@]}" --steps 3 --global-batch 16 --log "$dir/one.jsonl" >"$dir/one" 2>&1 </dev/null
plan --model nano --seq-len 128 --batch-size 2 --global-batch 16 --ranks 4
check '--hp auto says what it chose' grep -q '^planned for cpu: dp [0-9]* hp [0-9]* cp [0-9]*' "$dir/auto"
check '--hp auto with --grad-accum' mpirun -np 2 "$binary" "${small[@]}" --hp auto --steps 1 --grad-accum 2
# Sums in another order: 2e-9 of the loss has been seen.
check '--hp auto trains, and is predicted what was planned' python3 - "$dir/auto.jsonl" "$dir/one.jsonl" "$dir/plan.json" <<'PY'
import json, sys
a, b = ([json.loads(line) for line in open(path)][1:] for path in sys.argv[1:3])
best = json.load(open(sys.argv[3]))["choices"][0]
assert len(a) == len(b) == 3
for x, y in zip(a, b):
    assert abs(x["loss"] - y["loss"]) < 1e-5 * x["loss"] and x["tokens"] == y["tokens"] == 2048, (x, y)
    assert abs(x["predicted_ms"] / (1e3 * best["step_s"]) - 1) < 1e-6, (x, best)
PY
# Half of the four layers stay in slots on the device; of four, one is copied.
for part in 0 0.5 1; do
    "$binary" "${small[@]:2}" --model tiny --recompute none --offload-activations $part --steps 1 \
        --log "$dir/$part.jsonl" >"$dir/out" 2>&1 </dev/null
done
check 'a prediction for layers of two kinds' python3 - "$dir"/{0,0.5,1}.jsonl <<'PY'
import json, sys
none, half, all_ = (json.loads(list(open(path))[1])["predicted_ms"] for path in sys.argv[1:])
assert none == half < all_, (none, half, all_)
PY
for more in '' --offload-optimizer '--offload-optimizer --moments=bf16'; do
    "$binary" "${small[@]}" $more --steps 1 --log "$dir/states$more.jsonl" >"$dir/out" 2>&1 </dev/null
done
check 'a prediction for states on the host' python3 - "$dir"/states{,--offload-optimizer,'--offload-optimizer --moments=bf16'}.jsonl <<'PY'
import json, sys
here, host, narrow = (json.loads(list(open(path))[1])["predicted_ms"] for path in sys.argv[1:])
assert host > 1.001 * here and host > 1.001 * narrow, (here, host, narrow)
PY
# --dkv-wire: a run sends the bytes predicted, with bf16 half of dKV's; the plan's command keeps the option, and its step is faster. Of the
# loss after one small step, gradients rounded to bf16 have been seen to change 7e-7.
for ring in '--inner-ring 2' '--cp-comm allgather'; do
    for wire in f32 bf16; do
        mpirun -np 4 "$binary" "${small[@]:2}" --model "$dir/it's" --cp 4 $ring --dkv-wire $wire --grad-accum 2 --zero-params full \
            --steps 2 --log "$dir/$wire.jsonl" >"$dir/wire" 2>&1 </dev/null
    done
    check "--dkv-wire with $ring: bytes and loss" python3 - "$dir/f32.jsonl" "$dir/bf16.jsonl" <<'PY'
import json, sys
a, b = ([json.loads(line) for line in open(path)][1:] for path in sys.argv[1:])
assert len(a) == len(b) == 2
for x, y in zip(a, b):
    for z in (x, y):
        assert sum(n for kind, n in z["comm_bytes"].items() if kind != "control") == z["predicted_comm_bytes"], z
    for kind, n in x["comm_bytes"].items():
        if kind != "control":
            assert y["comm_bytes"][kind] == (n / 2 if kind.startswith("dkv") else n), (kind, n, y["comm_bytes"][kind])
    assert abs(x["loss"] - y["loss"]) < 1e-5 * x["loss"] and (x["step"] == 1 or x["loss"] != y["loss"]), (x, y)
PY
done
for wire in f32 bf16; do
    plan --model llama2-7b --ranks 64 --cluster a100-4nic --seq-len 128K --global-batch 1 --dkv-wire $wire &&
        cp "$dir/plan.json" "$dir/$wire.json"
done
check '--dkv-wire in a plan' python3 - "$dir/f32.json" "$dir/bf16.json" "$dir/plan" <<'PY'
import json, sys
a, b = (json.load(open(path)) for path in sys.argv[1:3])
assert (a["dkv_wire"], b["dkv_wire"]) == ("f32", "bf16") and b["choices"][0]["step_s"] < a["choices"][0]["step_s"]
assert " --dkv-wire bf16 " in open(sys.argv[3]).read().splitlines()[-1]
PY
# Packed documents: numbers of one to five digits, each with a space. A plan and a run's prediction count what is visible; a plan without
# data to look at says so.
packed=(--model nano --seq-len 2K --document-end 32) # the space
plan "${packed[@]}" --ranks 4 --global-batch 2 --train-data "$dir/data.bin" && cp "$dir/plan.json" "$dir/seen.json"
seen='documents: on average a token sees as many tokens as in one document of [5-6] tokens'
check 'a plan of packed documents says what is seen' grep -qxE "$seen \(the run.s first 16 samples\)" "$dir/plan"
plan "${packed[@]}" --ranks 4 --global-batch 2
check 'a plan without data says so' grep -qx 'documents: without --train-data, a sample is assumed to be one document' "$dir/plan"
"$binary" "${packed[@]}" --from-scratch --train-data "$dir/data.bin" --steps 1 --log "$dir/packed.jsonl" >"$dir/out" 2>&1 </dev/null
"$binary" "${packed[@]:0:4}" --from-scratch --train-data "$dir/data.bin" --steps 1 --log "$dir/whole.jsonl" >"$dir/out" 2>&1 </dev/null
check 'packed documents are planned and predicted by what is seen' \
    python3 - "$dir/seen.json" "$dir/plan.json" "$dir/packed.jsonl" "$dir/whole.jsonl" <<'PY'
import json, sys
seen, whole = (json.load(open(path)) for path in sys.argv[1:3])
assert seen["attended_length"] in (5, 6) and whole["attended_length"] == 2048
kind = lambda c: tuple(c[k] for k in ("hp", "cp", "inner_ring", "cp_comm", "recompute"))
best = seen["choices"][0]
seen, whole = best["seconds"], {kind(c): c for c in whole["choices"]}[kind(best)]["seconds"]
assert 2048 / 6.01 < whole["attention kernels"] / seen["attention kernels"] < 2048 / 4.99 and whole["matrices"] == seen["matrices"]
packed, plain = (json.loads(list(open(path))[1]) for path in sys.argv[3:])
assert packed["predicted_ms"] < 0.5 * plain["predicted_ms"], (packed, plain)
PY
printf 'x' >"$dir/short.bin"
refuse 'a plan of packed documents reads them' 'short.bin' "${packed[@]}" --plan --ranks 4 --train-data "$dir/short.bin"
check 'and of documents that begin with a token' bash -c "'$binary' ${packed[*]:0:4} --document-begin 32 --plan --ranks 4 --cluster cpu \
    --global-batch 2 --train-data '$dir/data.bin' | grep -qxE '$seen .*'"
check '--hp auto in a dry run' \
    bash -c "'$binary' --dry-run --model llama3-8b --hp auto --ranks 64 --seq-len 1M --cluster h100 | grep -q '^bytes of a rank'"

# Bytes of a parameter, its gradient and optimizer states: 2 + 4 + 12 in bf16 with float master weights (GPU), 4 + 4 + 8 in float (CPU).
bytes() {
    "$binary" --dry-run --model llama3-8b --ranks 8 --hp 8 --zero-optim replica --seq-len 8K "$@" |
        awk -v c="$category" '$1 == c {print $2 * ($3 == "MiB" ? 1 / 1024 : 1)}'
}
near() { # number, what it must be to 1 %, and so on for another one
    awk "BEGIN {exit !($1 >= 0.99 * $2 && $1 <= 1.01 * $2 && $3 >= 0.99 * $4 && $3 <= 1.01 * $4)}"
}
on_gpu=(--cluster h100 --memory-budget 999GiB)
for case in 'parameters 14.96 29.91' 'gradients 29.91 29.91' 'optimizer 89.74 59.83'; do # 8030 M parameters x 2, 4, 12; x 4, 4, 8; in GiB
    read -r category gpu cpu <<<"$case"
    check "$category of a GPU and of the CPU" near "$(bytes "${on_gpu[@]}")" $gpu "$(bytes)" $cpu
done

check 'optimizer states of a GPU and of the CPU, moments in bf16' \
    near "$(bytes "${on_gpu[@]}" --moments bf16)" 59.83 "$(bytes --moments bf16)" 29.91 # x 8; x 4
# In two windows, of a 16th of the head's 128256 x 4096.
check 'on the host, too, and in two windows on the device' ends_with 0 '^  optimizer  *501.0 MiB  *59.8 GiB$' \
    "$binary" --dry-run --model llama3-8b --cluster h100 --ranks 1 --offload-optimizer --moments bf16 --seq-len 8K
# 8B on one H200, whose optimizer states are 8030 M x 12 bytes, 96 GB, else: with its parameters and gradients 144 GB.
whole=(--model llama3-8b --ranks 1 --cluster h200 --seq-len 8K --recompute full)
check '8B on one H200: model states do not fit, and what helps is said' \
    ends_with 2 'a rank needs .* to reduce it: .*--moments bf16' "$binary" --dry-run "${whole[@]}"
check 'with moments in bf16 they do' ends_with 0 '^longest sequence in' "$binary" --dry-run "${whole[@]}" --moments bf16
"$binary" --plan --model llama3-8b --ranks 1 --cluster h200 --seq-len 8K --moments bf16 >"$dir/narrow"
check 'and the plan offloads none of them' bash -c "grep '^mpirun .* --moments bf16 ' '$dir/narrow' | grep -v -- --offload-optimizer"
# 8030 M of them at 80 % of 4.8 TB/s are 46 ms of 0.79 s.
check 'whose update is 22 bytes a parameter, not 30' grep -q '^why 1: .* optimizer 6 %' "$dir/narrow"

says() { local text=$1; shift; "$binary" --dry-run "$@" | grep -qF "$text"; }
# --steps 0: parameters and, on a GPU that is to export them, master weights; activations of two layers, 2 bytes for each of 8K / 8 x 4096;
# no gradients but 66 sums of their squares.
for case in 'parameters 14.96 29.91' 'optimizer 29.91 0' 'activations 0.0156 0.0312'; do
    read -r category gpu cpu <<<"$case"
    check "$category without training" \
        near "$(bytes --cluster h100 --steps 0 --export "$dir/none")" $gpu "0$(bytes --steps 0)" $cpu
done
no_training='--model llama3-8b --steps 0 --ranks 1 --cluster h100 --seq-len'
for offload in '' '--offload-optimizer --offload-gradients --offload-parameters'; do
    check "no master weights to evaluate, nor windows for them $offload" \
        lacks optimizer "$binary" --dry-run $no_training 8K $offload
done
check 'numbers of the build are named' says 'this build: float' --model llama3-8b --ranks 8 --memory-budget 80GiB
check 'no master weights to evaluate: it says so' says ' a rank, bf16' $no_training 8K
check "nor buffers of a ring's backward pass" lacks rings "$binary" --dry-run $no_training 8K
check '--hp auto without training: nothing is offloaded that fits' \
    bash -c "'$binary' --dry-run $no_training 128K --hp auto | grep '^planned' | grep -v offload"
untrained() { "$binary" --dry-run --model tiny --ranks 4 --hp 2 --cp 2 --steps 0 "$@" | sed -n 's/^bytes of a rank: //p'; }
for option in '--recompute none' '--zero-grads full' "--out $dir/o --resume --save-every 1"; do
    check "$option without training" [ -n "$(untrained)" -a "$(untrained $option)" = "$(untrained)" ]
done
check 'nor transfers of gradients' lacks 'ZeRO transfers' "$binary" --dry-run --model tiny --ranks 4 --hp 2 --cp 2 --steps 0
check 'nor host memory, but for tokens and labels' [ "$(untrained | sed 's/.* //')" = 2048 ]
check 'a plan is of training' ends_with 2 '^error: --plan plans training, and --steps 0 trains nothing' \
    "$binary" --plan --model llama3-8b --ranks 8 --cluster h100 --steps 0
check 'no gradients without training' says 'gradients                 512 B' --model llama3-8b --ranks 8 --hp 8 --seq-len 8K --steps 0

# What a dry run counts: a node's memory divided among its ranks, a budget in place of the machine's memory, offloaded layers rounded to a
# whole number, rows padded as the machine's kernels need them, 8 bytes for packed documents per row and per chunk, and a copy of the states
# where training continues during a save.
for question in --dry-run --plan; do
    check "$question: a budget above the memory of a GPU is noted" \
        ends_with 0 '^note: --memory-budget is 107 GB, and a rank on h100 has 78 GB' \
        "$binary" $question --model nano --cluster h100 --ranks 1 --memory-budget 100GiB
done
check 'host memory of a machine, for its ranks' says 'longest sequence in 1.0 GiB and 256.0 GiB of host memory a rank' \
    --model nano --cluster h200 --ranks 2 --memory-budget 1GiB --host-memory 512GiB
less_host=(--plan --model llama3-8b --cluster h100 --ranks 8 --seq-len 1M --global-batch 16 --plan-json "$dir/host.json")
for bytes in 512GiB 2TiB; do
    check "a plan in $bytes of host memory" "$binary" "${less_host[@]}" --host-memory $bytes
    tail -1 "$dir/why" >"$dir/command"
    check 'keeps to it, and uses what it has' python3 -c "
import json
used = json.load(open('$dir/host.json'))['choices'][0]['host_bytes_of_node'] / 2**30
assert 0 < used <= 512 if '$bytes' == '512GiB' else 1000 < used <= 2048, used"
done
check 'its command says so, too' grep -q -- '--host-memory 2199023255552 ' "$dir/command"
check 'rounding of floats' ends_with 2 '^error: --stochastic-rounding: parameters on cpu are stored in float' \
    "$binary" --plan --model tiny --cluster cpu --ranks 2 --stochastic-rounding
check 'host memory of the CPUs of a run, whatever predictions are for' ends_with 2 '^error: --host-memory is for GPUs' \
    "$binary" "${small[@]}" --steps 1 --cluster h100 --host-memory 1GiB
check '--hp auto counts the numbers of this build, whatever predictions are for' mpirun -np 2 "$binary" --model tiny --from-scratch \
    --train-data "$dir/data.bin" --seq-len 2K --steps 1 --hp auto --cluster h100 --memory-budget 60MiB
check 'host memory of CPUs' ends_with 2 '^error: --host-memory is for GPUs; on CPUs, --memory-budget' \
    "$binary" --plan --model tiny --cluster cpu --ranks 2 --host-memory 1GiB
check 'two ranks of a node, a budget' \
    says 'longest sequence in 1.0 GiB and 931.3 GiB of host memory a rank' --model nano --cluster h200 --ranks 2 --memory-budget 1GiB
check 'those of 8 nodes' \
    says 'longest sequence in 1.0 GiB and 232.8 GiB of host memory a rank' --model nano --cluster h200 --ranks 64 --memory-budget 1GiB
check 'none beside that of a CPU' lacks 'host memory' "$binary" --dry-run --model nano --cluster cpu --ranks 2 --memory-budget 1GiB
check '0.4 of 4 layers are 2' says '; 2 offloaded, of which 0 are copied to the host' --model tiny --offload-activations 0.4
memory_of() { # recompute, part of the layers that is offloaded
    "$binary" --dry-run --model tiny --cluster h100 --recompute "$1" --offload-activations "$2" |
        sed -n 's/^bytes of a rank: device \([0-9]*\) .*/\1/p'
}
for kind in none selective full; do
    check "$kind: as many layers offloaded as slots take no more memory than none" [ "$(memory_of $kind 0.5)" -eq "$(memory_of $kind 0)" ]
    check "$kind: fewer, neither" [ "$(memory_of $kind 0.25)" -eq "$(memory_of $kind 0)" ]
    check "$kind: all of them, less" [ "$(memory_of $kind 1)" -lt "$(memory_of $kind 0)" ]
done
tiled() { # cluster, rows of a tile of the MLP, and of the loss
    "$binary" --dry-run --model llama3.2-1b --seq-len 4K --cluster "$1" --mlp-tile "$2" --loss-tile "$3" 2>/dev/null |
        sed -n 's/^bytes of a rank: //p'
}
check 'tiles of a GPU have an even number of rows' \
    [ -n "$(tiled h100 4K 64)" -a "$(tiled h100 4095 64)$(tiled h100 64 4095)" = "$(tiled h100 4K 64)$(tiled h100 64 4K)" ]
check 'those of a CPU as many as are asked for' \
    [ "$(tiled cpu 4095 64)" != "$(tiled cpu 4K 64)" -a "$(tiled cpu 64 4095)" != "$(tiled cpu 64 4K)" ]
check 'and no tile more than there are' [ "$(tiled cpu 4K 64)$(tiled cpu 64 4K)" = "$(tiled cpu 1M 64)$(tiled cpu 64 1M)" ]
check 'rows of a GPU' says ', 512 tokens a rank' --model nano --cluster h100 --seq-len 1000 --cp 2
check 'and of a CPU' says ', 500 tokens a rank' --model nano --cluster cpu --seq-len 1000 --cp 2
check 'two of the eight ranks that share a machine' says 'on cpu: 32 GB a rank, float' --model nano --cluster cpu --ranks 2
device=$("$binary" --dry-run --model nano --hp 2 | sed -n 's/^bytes of a rank: device \([0-9]*\) .*/\1/p')
check 'packed documents' says "device $((8 * 1024 + 256 + device)) host 12544" --model nano --hp 2 --document-end 0
check 'the tokens, labels and documents of all micro-steps' says " host $((4 * 8 * 512 + 4 * 8 * (2 * 512 + 2) + 192))" \
    --model nano --hp 2 --document-end 0 --grad-accum 4
# 6 sequences of 526 rows, in 10 segments: 4 bytes for a token or label, 8 for a row and for each of 4 chunks of a segment, 16 for a
# segment; multiples of 256.
check 'and their segments' says " host $((2 * 12800 + 27392 + 1280))" \
    --model nano --ranks 2 --cp 2 --document-end 0 --batch-size 2 --grad-accum 3
check 'states at the end only' says ' host 8192' --model nano --out x
check 'states on the way' says " host $((8192 + 1502976))" --model nano --out x --save-every 1 # 125,248 parameters, 12 bytes each
check 'with moments in bf16' says " host $((8192 + 1001984))" --model nano --out x --save-every 1 --moments bf16 # 8
# --recompute auto fills the memory and no more: with layers that keep all beside selective ones, and with selective ones beside full ones.
for length in 256K 1200K; do
    check "--recompute auto, half of the layers offloaded, $length" bash -c "
        '$binary' --dry-run --model llama3-8b --cluster h100 --ranks 8 --hp 8 --zero-params full --zero-grads full --zero-optim full \
            --offload-activations 0.5 --seq-len $length |
            awk '/^recompute:/ {kinds = \$2 * \$8 == 0 && \$2 + \$6 + \$8 == 32} # of 32 layers
                 /^bytes of a rank/ {ok = kinds && \$6 > 0.96 * 78e9 && \$6 <= 78e9}
                 END {exit !ok}'"
done

# scripts/run_*.sh: their grid, and the memory and speed in their headers, are what --plan says now; test_run checks that their flags exist.
mkdir "$dir/checkout" && ln -s "$(realpath "$binary")" "$dir/checkout/train_llama" # ./train_llama may be another build, or not there
mkdir "$dir/spool" && cp scripts/run_*.sh "$dir/spool" # where sbatch runs its copy
for script in scripts/run_llama3_8b_*.sh; do
    check "$script" bash -n "$script"
    check "$script --help" ends_with 0 "^   Slurm: .* sbatch $script" "$script" --help
    check "$script agrees with the plan (else: dev/plan_tables.py)" python3 - "$script" "$binary" "$dir/run.json" "$dir" <<'PY'
import json, os, re, shlex, subprocess, sys
script, binary, path, folder = sys.argv[1:]
text = open(script).read()
ours = ("SLURM_", "NODES", "FI_", "NCCL_", "TRAIN_LLAMA_", "UCX_") # an allocation, and what the script passes on
outside = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
given = {**outside, "LAUNCH": "show", "MODEL": "a 'm'", "DATA": "a*.bin b"}
command = subprocess.run([script], env=given, capture_output=True, text=True, check=True).stdout
nodes = re.search(r"#SBATCH --nodes=(\d+)", text)[1]
ranks = str(8 * int(nodes))
# The command can be pasted.
launcher = ["mpirun", "-np", ranks, "--map-by", "ppr:8:node", "--bind-to", "none"]
assert shlex.split(command)[:12] == [*launcher, "./train_llama", "--model", "a 'm'", "--train-data", "a*.bin b"], command
asked = re.search(r"--seq-len (\S+) .*--global-batch (\d+) --steps (\d+) (.*) --rope-theta (\S+) --lr ", command)
length, batch, steps, chosen, theta = asked.groups()
assert "#SBATCH --ntasks-per-node=8\n" in text and "srun" in text and "sbatch " + script in text
planner = [binary, "--plan", "--model", "llama3-8b", "--cluster", "h100", "--ranks", ranks, "--seq-len", length, "--global-batch", batch,
           "--out", "states", "--save-every", "5", "--document-begin", "128000", "--plan-json", path]
plan = subprocess.run(planner, capture_output=True, text=True, check=True).stdout
best = json.load(open(path))["choices"][0]
assert chosen in re.sub(" --dp \\d+", "", plan.splitlines()[-1]), (chosen, plan.splitlines()[-1])
S = int(length[:-1]) << (20 if length[-1] == "M" else 10)
tokens, steps = S * int(batch), int(steps)
header = {line[4:13].strip(): line[14:] for line in text.splitlines() if line.startswith("#   ")}
assert header["tokens"] == f"{tokens / 1e6:.1f} M a step ({batch} sequences of {S}), {tokens * steps / 1e9:.2f} G in {steps} steps", header
# The model's count (docs/planner.md): 6 per parameter of the matrices and token, and causal attention.
L, D, F, V, Hkv, H = 32, 4096, 14336, 128256, 8, 32
flops = 6 * (L * (D * D * 2 + 2 * D * D * Hkv // H + 3 * D * F) + D * V) + 6 * L * D * S
assert abs(float(header["FLOPs"].split()[0]) / (flops * tokens * steps) - 1) < 0.01, (header["FLOPs"], flops * tokens * steps)
assert f"{best['step_s']:.0f} s a step, {best['step_s'] * steps / 3600:.1f} h in all" in header["expected"], header
assert abs(float(theta) / (8e6 * (S / 65536) ** (4 / 3)) - 1) < 0.01 and theta in header["rope"], theta
assert "--document-begin 128000 " in command
assert int(re.search(r"USR1@(\d+)", text)[1]) >= best["step_s"] + 600
# The dry run of the very command.
given = {**os.environ, "LAUNCH": "env", "MODEL": "llama3-8b", "DATA": "d", "SLURM_SUBMIT_DIR": folder + "/checkout"}
spooled = os.path.join(folder, "spool", os.path.basename(script))
dry = subprocess.run([spooled, "--dry-run", "--ranks", ranks], env=given, capture_output=True, text=True, check=True).stdout
device, host = re.search(r"^  in all +(\S+) GiB +(\S+) GiB", dry, re.M).groups()
assert device + " GiB of a GPU by the dry run" in header["memory"], (header["memory"], dry)
node = float(re.search(r", (\d+) GiB of host memory a node", header["memory"])[1])
assert abs(node - 8 * float(host)) < 1, (node, host)
# On twice the nodes, more dp, with no more memory.
more = subprocess.run([script], env={**outside, "LAUNCH": "show", "MODEL": "m", "DATA": "d", "NODES": str(2 * int(nodes))}, text=True,
                      capture_output=True, check=True).stdout
assert more.split()[:3] == ["mpirun", "-np", str(2 * int(ranks))] and f"NODES={2 * int(nodes)} " in text, more
dry = subprocess.run([spooled, "--dry-run", "--ranks", str(2 * int(ranks))], env=given, capture_output=True, text=True, check=True).stdout
assert f" on dp {2 * best['dp']} x " in dry, dry
assert float(re.search(r"^  in all +(\S+) GiB", dry, re.M)[1]) <= float(device), dry
assert f"{best['memory_bytes'] / 2**30:.1f} GiB of a GPU" in text and f"TGS {best['tgs']:.0f}, MFU {100 * best['mfu']:.1f} %" in text, best
PY
done
# The loop of such a script: after a failure it tries again; after a user's error or a success it does not.
printf '#!/bin/sh\necho >>"%s/attempts"\n[ $(wc -l <"%s/attempts") -ge 3 ] && exit ${LAST:-0}\nexit 1\n' "$dir" "$dir" >"$dir/launch"
chmod +x "$dir/launch"
attempts() { # last status of the launcher, expected status of the script, expected number of attempts
    rm -f "$dir/attempts"
    PAUSE=0 LAST=$1 LAUNCH=$dir/launch MODEL=m DATA=d scripts/run_llama3_8b_128k.sh
    [ "$? $(wc -l <"$dir/attempts")" = "$2 $3" ]
}
check 'two failures, then the end' attempts 0 0 3
check 'two failures, then an error of the user' attempts 2 2 3
check 'nothing but failures' attempts 1 1 20
printf '#!/bin/sh\necho >>"%s/attempts"\nkill -INT $PPID\nexit 1\n' "$dir" >"$dir/launch" # as Ctrl-C does, on its way to mpirun
interrupted() { # the signal is ignored in what make test starts in the background
    rm -f "$dir/attempts"
    env --default-signal=INT PAUSE=0 LAUNCH="$dir/launch" MODEL=m DATA=d "$1"
    [ "$? $(wc -l <"$dir/attempts")" = '130 1' ]
}
for script in scripts/run_*.sh; do
    check "variables of NCCL and networks go to other machines, $script" \
        ends_with 0 ' -x FI_PROVIDER.* -x NCCL_PXN_DISABLE.* -x TRAIN_LLAMA_TIMEOUT.* -x UCX_TLS.* ./train_llama ' \
        env -u SLURM_JOB_ID LAUNCH=show MODEL=m DATA=d FI_PROVIDER=efa NCCL_PXN_DISABLE=1 TRAIN_LLAMA_TIMEOUT=99 UCX_TLS=rc "$script"
    check "Ctrl-C, $script" interrupted "$script"
    check "no data: an error of the user, $script" ends_with 2 "^error: MODEL must be " env LAUNCH=show MODEL=m DATA= "$script"
    check "no program, $script" ends_with 2 "^error: $dir has no ./train_llama" \
        env SLURM_SUBMIT_DIR="$dir" MODEL=m DATA=d "$dir/spool/${script#*/}"
    check "salloc was given elsewhere, $script" ends_with 0 "^$PWD$" \
        env SLURM_SUBMIT_DIR="$dir" SLURM_JOB_ID=1 LAUNCH=pwd MODEL=m DATA=d "$script"
    check "a log for each OUT, $script" ends_with 0 ' --log a/b.jsonl --out a/b/ ' env LAUNCH=show OUT=a/b/ MODEL=m DATA=d "$script"
    check "no model, $script" ends_with 2 "^error: MODEL must be " env -u MODEL LAUNCH=show DATA=d "$script"
done

# docs/plans.md quotes the choices and the command that the planner prints.
quoted() { grep -E '^[0-9]+\. dp |^mpirun ' "$@"; }
sed -n 's/^    //p' docs/plans.md | quoted >"$dir/quoted"
"$binary" $(sed -n 's/^    \$ \.\/train_llama //p' docs/plans.md) | quoted >"$dir/printed"
check 'docs/plans.md quotes the plan (else: dev/plan_tables.py)' bash -c "[ -s '$dir/quoted' ] && diff '$dir/quoted' '$dir/printed'"

# README.md and docs/plans.md say what one sequence a step may be long on one H100 and on eight: as the planner, to within 1 %.
longest_of() { # model ranks
    "$binary" --plan --model "$1" --cluster h100 --ranks "$2" --seq-len 64M 2>&1 | sed -n 's/.* up to \([0-9]*\) tokens fit.*/\1/p'
}
check 'the longest sequences in README.md and docs/plans.md' python3 - \
    "$(longest_of llama3-8b 1)" "$(longest_of llama3-8b 8)" "$(longest_of llama3-70b 1)" "$(longest_of llama3-70b 8)" <<'PY'
import re, sys
planned = [int(n) for n in sys.argv[1:]]
size = lambda text: float(text[:-1]) * {"K": 1 << 10, "M": 1 << 20}[text[-1]]
def said_in(file, text, order): return re.search(text, " ".join(open(file).read().split())).group(*order)
readme = said_in("README.md", r"Llama-3-8B on (\S+) tokens and Llama-3-70B on (\S+), a node of 8 trains them on (\S+) and (\S+) ",
                 (1, 3, 2, 4))
plans = said_in("docs/plans.md", r"Llama-3-8B up to (\S+) tokens on one GPU and (\S+) on eight, Llama-3-70B up to (\S+) and (\S+)\. ",
                (1, 2, 3, 4))
for said in (readme, plans):
    for text, n in zip(said, planned, strict=True): assert abs(size(text) / n - 1) < 0.01, (text, n)
PY

check 'the longest sequences in docs/comparison.md' python3 - "$binary" <<'PY'
import re, subprocess, sys
text = open("docs/comparison.md").read()
command = re.search(r"^    \./train_llama (--dry-run .*?)\n\n", text, re.M | re.S)[1].replace("\\\n", " ").split()
rows = re.findall(r"^\| train_llama \| (.*?) \|(.*?)\|(.*?)\|(.*?)\|$", text, re.M)
assert [row[0] for row in rows] == ["nothing", "optimizer states", "optimizer states, gradients", "optimizer states, gradients, parameters"]
for offloaded, row in enumerate(rows):
    options = command[:len(command) - 3 + offloaded] # its last three are --offload-optimizer, -gradients, -parameters
    for ranks, said in zip(("1", "8", "32"), row[1:]):
        options[options.index("--ranks") + 1] = options[options.index("--cp") + 1] = ranks
        out = subprocess.run([sys.argv[1], *options], capture_output=True, text=True).stdout
        longest = int(re.search(r"options: (\d+) tokens", out)[1])
        assert int(re.sub(r"\D", "", said) or 0) == longest, (row[0], ranks, said, longest)
with_heads = re.search(r"our first row would be (\S+) and (\S+):", text)
on_four = re.search(r"there ours plans (\S+) \(36 GiB of each, all states on the host, cp 4\)", text)
others = " ".join(command).replace("--ranks 8 --cp 8 ", "").split() # than those of the grid
for said, options in ((with_heads[1], others[:-3] + "--ranks 8 --hp 8".split()),
                      (with_heads[2], others[:-3] + "--ranks 32 --hp 8 --cp 4".split()),
                      (on_four[1], others + "--ranks 4 --cp 4 --memory-budget 36GiB".split())):
    out = subprocess.run([sys.argv[1], *options], capture_output=True, text=True).stdout
    longest = int(re.search(r"options: (\d+) tokens", out)[1])
    assert int(said.replace(",", "")) == longest, (options, said, longest)
PY

check 'docs/memory.md has the tables of today (else: dev/plan_tables.py)' env TRAIN_LLAMA="$binary" PYTHONPATH=dev python3 -c '
import plan_tables, sys
plan_tables.write = lambda path, text: sys.exit(open(path).read() != text)
plan_tables.memory()
sys.exit("it writes nothing")'

check 'dev/plan_tables.py takes no other error for what does not fit' ends_with 1 "cluster 'none': neither a known cluster" \
    env TRAIN_LLAMA="$binary" PYTHONPATH=dev python3 -c 'import plan_tables; plan_tables.plan("llama3-8b", "128K", 8, "none")'

# What is impossible.
big=(--model llama3-8b --plan --cluster h100)
refuse 'a length nothing fits' 'on these ranks up to [0-9]+ tokens fit; 16 ranks fit 8388608 tokens' "${big[@]}" --ranks 8 --seq-len 8M
longest=$(sed -n 's/.* up to \([0-9]*\) tokens fit;.*/\1/p' "$dir/err")
check 'the length that is said to fit' "$binary" "${big[@]}" --ranks 8 --seq-len "${longest:-none}"
refuse 'and nothing 1 % longer' 'on these ranks up to [0-9]+ tokens fit' \
    "${big[@]}" --ranks 8 --seq-len $((${longest:-1} / 100 * 101))
full_zero=(--zero-params full --zero-grads full --zero-optim full)
offloaded=(--dry-run --model llama3-8b --cluster h200 --ranks 8 --hp 8 --recompute none --offload-activations 1 "${full_zero[@]}")
less='a smaller --offload-activations, --recompute selective, full or auto, more ranks .*; --host-memory says that a machine has more\)$'
refuse 'more host memory than a node has' "of host memory but may use only 232.8 GiB; to reduce it: $less" "${offloaded[@]}" --seq-len 1000K
longest=$("$binary" "${offloaded[@]}" --seq-len 512K | sed -n 's/^longest .*: \([0-9]*\) tokens$/\1/p')
check 'the longest sequence fits the host, too' "$binary" "${offloaded[@]}" --seq-len "$longest"
refuse 'and none that is 1 % longer' 'of host memory' "${offloaded[@]}" --seq-len $((longest / 100 * 101))
fits=(--dry-run --model llama3.2-1b --cluster h100 --ranks 8 --cp 8 --batch-size 2 --zero-grads full --zero-optim full
    --offload-activations 1 --offload-optimizer --recompute none --memory-budget 10GiB)
refuse 'a length whose tiles do not fit' 'a rank needs' "${fits[@]}" --seq-len 96K
check 'a longer one whose smaller tiles do fits, and is not longer than what fits' \
    bash -c "'$binary' ${fits[*]} --seq-len 99000 | grep -q 'with these options: 99000 tokens$'"
check '--recompute auto keeps what the host holds, too' bash -c "'$binary' ${offloaded[*]/none/auto} --seq-len 1000K |
    sed -n 's/^bytes .* host //p' | awk '{print} END {exit !(\$1 > 200 * 2^30 && \$1 <= 250e9)}'"
check 'a dry run shows the table of what does not fit' \
    bash -c "'$binary' ${offloaded[*]} --seq-len 1000K 2>/dev/null | grep -q '^  activations  .* GiB  .* GiB'"
takes=$("$binary" --dry-run --model nano --recompute none | awk '/^bytes of a rank/ {print $6 + $8}')
check 'a budget of exactly what is taken' "$binary" --dry-run --model nano --recompute none --memory-budget "$takes"
refuse 'and of a byte less' 'a rank needs' --dry-run --model nano --recompute none --memory-budget $((takes - 1))
check 'nothing is offloaded, and nothing said of it' ends_with 0 ' 0 full; 0 offloaded$' "$binary" --dry-run --model nano
for budget in '' '--memory-budget 1GiB'; do
    check "without training, nothing is said of --recompute $budget" \
        lacks 'recompute [af]u' "$binary" --dry-run --model nano --steps 0 $budget
done
check 'sequences of 2^38 tokens are looked for' bash -c "
    '$binary' --dry-run --model nano --memory-budget 1024TiB | awk '/^longest/ {tokens = \$(NF - 1)} END {exit !(tokens >= 2 ^ 38)}'"
refuse 'CPUs: what is offloaded lies in the same memory' 'needs 7.8 GiB but may use only 7.5 GiB' --dry-run \
    --model tiny --cluster cpu --ranks 8 --cp 8 --seq-len 1250K --recompute none --offload-activations 1
one_billion=(--dry-run --model llama3.2-1b --memory-budget)
refuse 'without a cluster, too' 'needs 69.7 GiB but may use only 30.0 GiB' \
    "${one_billion[@]}" 30GiB --seq-len 32K --recompute none --offload-activations 1 --offload-optimizer
refuse 'a copy of the states, too, and the message says so' 'full, --moments bf16, no --save-every, smaller' \
    "${one_billion[@]}" 30GiB --out none --save-every 5
refuse 'but not moments in bf16, when they are' '--zero-optim full, no --save-every, smaller' \
    "${one_billion[@]}" 20GiB --out none --save-every 5 --moments bf16
for kind in none selective; do
    refuse "or when there are none, nor activations of --recompute $kind" \
        'reduce it: more ranks, --zero-params, --zero-grads and --zero-optim full, smaller' \
        "${one_billion[@]}" 4GiB --steps 0 --ranks 2 --dp 2 --recompute $kind
done
refuse 'moments in bf16, where what is offloaded lies in the same memory' '--zero-optim full, --moments bf16, smaller' \
    "${one_billion[@]}" 30GiB --seq-len 256K --offload-optimizer
host=(--dry-run --model llama3-8b --cluster h100 --ranks 8 --hp 8 --host-memory 40GiB)
refuse 'moments in bf16, where they are on the host' 'host memory .* reduce it: no --offload-optimizer, --moments bf16, more ranks' \
    "${host[@]}" --offload-optimizer
refuse 'or a copy of them' 'host memory .* reduce it: --moments bf16, no --save-every, more ranks' \
    "${host[@]}" "${full_zero[@]}" --out none --save-every 5
refuse 'not when they are already' 'host memory .* reduce it: no --offload-optimizer, more ranks' \
    "${host[@]}" --offload-optimizer --moments bf16
nothing='no --offload-parameters, no --offload-gradients, no --offload-optimizer'
refuse 'all that is offloaded' "reduce it: $nothing, more ranks .--dry-run prints the memory by category.\$" \
    "${host[@]}" "${full_zero[@]}" --offload-optimizer --offload-gradients --offload-parameters --moments bf16 --recompute none
refuse 'without training, too' "reduce it: $nothing, more ranks" \
    "${host[@]:0:9}" --host-memory 10GiB "${full_zero[@]}" --offload-optimizer --offload-gradients --offload-parameters \
    --steps 0 --export none
refuse 'what a GPU can do is said' '--zero-optim full, --offload-activations 1, --offload-gradients, --offload-parameters, smaller' \
    --dry-run --model llama3-8b --cluster h100 --ranks 1 --recompute full --offload-optimizer --seq-len 2M
refuse 'what selective recompute keeps, and no copy of the states, which is on the host' \
    'reduce it: --recompute full or auto, more ranks, --zero-params, .* --moments bf16, smaller' \
    --dry-run --model llama3-8b --cluster h100 --ranks 8 --hp 8 --recompute selective --zero-optim full --zero-grads full --seq-len 4M \
    --out none --save-every 5
refuse 'and not what is done already' 'reduce it: more ranks, smaller' \
    --dry-run --model llama3-8b --cluster h100 --ranks 8 --hp 8 --recompute full --offload-activations 1 \
    --offload-optimizer --offload-gradients --offload-parameters "${full_zero[@]}" --seq-len 8M
refuse 'a batch, and ranks that could share the sequences' \
    'to reduce it: a smaller --batch-size, more ranks, a larger --cp in place of dp, --zero-params.*--hp auto chooses grid, ZeRO degrees' \
    --dry-run --model llama3-8b --cluster h100 --ranks 64 --hp 8 --batch-size 2 --seq-len 1M
refuse 'a model nothing fits' '; 4 ranks fit 589824 tokens' --model llama3-70b --plan --cluster h100 --ranks 1 --seq-len 576K
refuse 'and the default cluster is named' \
    'no configuration for 1024 tokens on 1 rank of cpu fits in memory .*--cluster NAME assumes other machines' \
    --model llama3-70b --plan --ranks 1 --seq-len 1K
best_of() { # text option...: it is in what --plan prints
    "$binary" --plan --cluster h100 "${@:2}" | grep -q -- "$1"
}
check 'unless the optimizer is offloaded' \
    best_of '^mpirun .* --offload-optimizer$' --model llama3-70b --ranks 8 --seq-len 128K
check 'and gradients for longer sequences' \
    best_of '^mpirun .* --offload-optimizer --offload-gradients$' --model llama3-70b --ranks 8 --seq-len 640K
check '8B at 512K on one GPU' best_of '^1\. .* optimizer and gradient offload$' --model llama3-8b --ranks 1 --seq-len 512K
"$binary" "${big[@]}" --ranks 8 --seq-len 4M >"$dir/mixed"
check 'layers of two kinds where neither alone is best' grep -q '^1\. .* recompute auto (24 selective), offload' "$dir/mixed"
check 'the run of that plan fits, with as many such layers or more' bash -c "
    '$binary' --dry-run --ranks 8 \$(sed -n \"s/^mpirun -np 8 .\/train_llama//p\" '$dir/mixed' | tr -d \"'\") |
        awk '/^recompute:/ { selective = \$6 } /^bytes of a rank/ { bytes = \$6 } END { exit !(selective >= 24 && bytes <= 78e9) }'"
check 'a part of the layers on the host, where it has no room for all' \
    best_of '^mpirun .* --recompute full --offload-activations 0.75 ' --model llama3-70b --ranks 8 --seq-len 740K
check 'one rank may have a token alone' best_of '^mpirun -np 1 .* --seq-len 1 ' --model tiny --ranks 1 --seq-len 1
refuse 'ranks that no grid divides' 'no legal grid' "${big[@]}" --ranks 67 --seq-len 100
refuse 'an unknown cluster' "neither a known cluster .*h100" --model llama3-8b --plan --cluster h1000
sed 's/^peak .*//' clusters/h100.txt >"$dir/missing.txt"
sed 's/^peak .*/peak -1e15 # estimate: x/' clusters/h100.txt >"$dir/negative.txt"
refuse 'a cluster file with a missing figure' "'peak' is missing" --model llama3-8b --plan --cluster "$dir/missing.txt"
refuse 'a cluster file with a negative figure' "'peak' is '-1e15'; it must be a number from" \
    --model llama3-8b --dry-run --cluster "$dir/negative.txt"
for given in 'dp 1' 'cp 2' 'inner-ring 1' 'placement head-first' 'cp-comm ring' 'gpus-per-node 8' 'nics-per-node 8' 'zero-params 1' \
    'zero-grads 1' 'zero-optim 1' 'recompute full' 'offload-activations 1'; do
    refuse "--$given beside --plan" "--${given% *} is chosen by --plan" "${big[@]}" --$given
done
refuse 'a degree beside --hp auto' '--zero-params is chosen by --hp auto' \
    --model nano --from-scratch --train-data "$dir/data.bin" --hp auto --zero-params 1
refuse 'a plan of what a run refuses' '--warmup 50 is longer than the 10 steps of the schedule' \
    "${big[@]}" --ranks 8 --seq-len 8K --steps 10 --warmup 50
refuse 'a batch that is no whole number of micro-batches' '--global-batch 3 is not a multiple of --batch-size 2' \
    "${big[@]}" --ranks 8 --seq-len 8K --global-batch 3 --batch-size 2
refuse '--plan and --dry-run' 'are two questions; give only one of them' "${big[@]}" --ranks 8 --seq-len 8K --dry-run
refuse 'more ranks than the planner takes' '1048577 ranks: the planner takes up to 1048576' "${big[@]}" --ranks 1048577
refuse '--hp beside --plan' '--hp 4 with --plan' "${big[@]}" --hp 4
refuse '--plan-json alone' '--plan-json is legal only with --plan' --model nano --dry-run --plan-json "$dir/x"
refuse '--global-batch beside --grad-accum' 'give only one of them' --model nano --dry-run --global-batch 4 --grad-accum 2
refuse '--global-batch that dp does not divide' 'multiples of 3' --model nano --dry-run --dp 3 --global-batch 4
refuse 'a cluster that is not known' 'neither a known cluster (.*) nor a readable file: No such file or directory$' \
    --model tiny --plan --ranks 2 --cluster nowhere
refuse 'a folder as a cluster' 'cluster .clusters.: cannot be read: Is a directory$' --model tiny --plan --ranks 2 --cluster clusters
check 'a cluster on a broken disk: status 1' ends_with 1 '^error: cluster .*: cannot be read: Input/output error$' \
    "$binary" --model tiny --plan --ranks 2 --cluster /proc/self/mem
refuse '--plan-json that cannot be written' 'cannot be written' "${big[@]}" --ranks 8 --plan-json "$dir/no/such/folder"

closing_line
