#!/usr/bin/env bash
# Memory: what a run holds is within 5 % of the plan that --dry-run prints, for ten configurations; it does not grow over 100 steps; it is
# linear in the length of the sequence; doubling sp at a fixed number of tokens per rank leaves activations flat and divides states. (F41)
source "$(dirname "$0")/shell.sh"
seq 1 40000 | tr '\n' ' ' >"$dir/text"
build/cpu/text_to_tokens "$dir/data.bin" "$dir/text" >/dev/null
result() { # name ok(0/1) text
    if [ "$2" -eq 1 ]; then pass "$1"; else fail "$1: $3"; fi
}
number() { awk "BEGIN {exit !($1)}"; }

# Large enough that libraries' own buffers, a few MiB, are far below 5 %.
mkdir "$dir/model"
cat >"$dir/model/config.json" <<'JSON'
{"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 1536,
 "vocab_size": 8192, "rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "rope_theta": 10000.0}
JSON
within() { # name ranks option...
    local name=$1 ranks=$2 ratio planned dry
    shift 2
    mpirun -np "$ranks" "$binary" --model "$dir/model" --from-scratch --train-data "$dir/data.bin" --steps 1 "$@" >"$dir/out" 2>&1 </dev/null
    ratio=$(sed -n 's/^memory measured.*(\([0-9.]*\) of the plan)/\1/p' "$dir/out")
    planned=$(sed -n 's/^  in all *\([0-9.]* [A-Za-z]*\).*/\1/p' "$dir/out")
    dry=$("$binary" --model "$dir/model" --dry-run --ranks "$ranks" "$@" 2>&1 | sed -n 's/^  in all *\([0-9.]* [A-Za-z]*\).*/\1/p')
    result "$name" "$(number "${ratio:-0} > 0.95 && ${ratio:-0} < 1.05" && echo 1 || echo 0)" "measured ${ratio:-nothing} of the plan $(tail -2 "$dir/out")"
    result "$name: dry run" "$([ -n "$dry" ] && [ "$dry" = "$planned" ] && echo 1 || echo 0)" "dry run $dry, run $planned"
}
within 'one rank' 1 --seq-len 2048 --recompute none
within 'selective' 1 --seq-len 4096 --recompute selective
within 'full' 1 --seq-len 4096 --recompute full
within 'tiles' 1 --seq-len 4096 --recompute full --mlp-tile 256 --loss-tile 128
within 'offload' 1 --seq-len 4096 --recompute selective --offload-activations 1 --offload-optimizer
within 'head parallel' 2 --seq-len 4096 --hp 2 --recompute none
within 'ring' 2 --seq-len 4096 --cp 2 --recompute selective
within 'all-gather' 2 --seq-len 4096 --cp 2 --cp-comm allgather --recompute selective
within 'ZeRO full' 2 --seq-len 2048 --hp 2 --zero-params full --recompute full
within 'ZeRO optimizer, accumulation' 2 --seq-len 2048 --cp 2 --zero-grads 2 --grad-accum 2 --recompute selective

# No growth: resident memory after 3 and after 100 steps.
grown() {
    "$binary" --model nano --from-scratch --train-data "$dir/data.bin" --seq-len 256 --batch-size 8 --steps "$1" | sed -n 's/^memory measured \([0-9.]*\) MiB.*/\1/p'
}
few=$(grown 3) many=$(grown 100)
result 'no growth over 100 steps' "$(number "${many:-9} <= ${few:-0} * 1.02 + 0.5" && echo 1 || echo 0)" "$few MiB after 3 steps, $many after 100"

# Linear in T: no tensor of T x T. A line through 4K and 8K predicts 32K.
bytes() { "$binary" --model "$dir/model" --dry-run "$@" | sed -n 's/^bytes of a rank: device \([0-9]*\).*/\1/p'; }
measured() { "$binary" --model nano --from-scratch --train-data "$dir/data.bin" --steps 1 --recompute selective --seq-len "$1" | sed -n 's/^memory measured \([0-9.]*\) MiB.*/\1/p'; }
a=$(measured 4096) b=$(measured 8192) c=$(measured 16384) d=$(measured 32768)
result 'linear in T' "$(number "${d:-9e9} <= 1.1 * (${a:-0} + 7 * (${b:-0} - ${a:-0})) && ${c:-9e9} <= 1.1 * (${a:-0} + 3 * (${b:-0} - ${a:-0}))" && echo 1 || echo 0)" "$a $b $c $d MiB at 4K 8K 16K 32K"

# Doubling sp at a fixed length per rank: a rank's memory less its states stays flat, states halve.
category() { "$binary" --model "$dir/model" --dry-run --zero-params full --recompute selective "${@:2}" | awk -v c="$1" '$1 == c {print $2 * ($3 == "GiB" ? 1024 : $3 == "KiB" ? 1 / 1024 : 1)}'; }
for kind in activations optimizer; do
    x=$(category $kind --hp 2 --cp 2 --seq-len 16384) y=$(category $kind --hp 2 --cp 4 --seq-len 32768)
    if [ $kind = activations ]; then test="($y) < 1.01 * ($x) && ($y) > 0.99 * ($x)"; else test="($y) < 0.51 * ($x)"; fi
    result "doubling sp: $kind" "$(number "$test" && echo 1 || echo 0)" "$x MiB, then $y MiB"
done

closing_line
