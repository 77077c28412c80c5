#!/usr/bin/env bash
# Memory: what a run holds is within 5 % of the plan that --dry-run prints, for sixteen configurations; it does not grow over 100 steps, and
# is linear in the sequence's length; doubling sp at a fixed number of tokens per rank halves the states and leaves the rest as it is; an
# allocation that fails ends the run, and no state lacks what there was no memory for; attention in slices of heads takes less. (F41, F51)
source "$(dirname "$0")/shell.sh"
seq 1 40000 | tokens_of data
result() { # name ok(0/1) text
    if [ "$2" -eq 1 ]; then pass "$1"; else fail "$1: $3"; fi
}
number() { awk "BEGIN {exit !($1)}"; }

# A model so large that the libraries' own buffers, a few MiB, are far below 5 %.
mkdir "$dir/model"
cat >"$dir/model/config.json" <<'JSON'
{"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4,
 "intermediate_size": 1536, "vocab_size": 8192, "rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "rope_theta": 10000.0}
JSON
mkdir "$dir/half" # half of each width
sed 's/512/256/; s/1536/768/; s/8192/4096/; s/_attention_heads": 8/_attention_heads": 4/; s/_value_heads": 4/_value_heads": 2/' \
    "$dir/model/config.json" >"$dir/half/config.json"
model=model
within() { # name ranks option...
    local name=$1 ranks=$2 ratio planned dry
    shift 2
    mpirun -np "$ranks" "$binary" --model "$dir/$model" --from-scratch --train-data "$dir/data.bin" --steps 1 "$@" \
        >"$dir/out" 2>&1 </dev/null
    ratio=$(sed -n 's/^memory measured.*(\([0-9.]*\) of the plan)/\1/p' "$dir/out")
    planned=$(sed -n 's/^  in all *\([0-9.]* [A-Za-z]*\).*/\1/p' "$dir/out")
    dry=$("$binary" --model "$dir/$model" --dry-run --ranks "$ranks" "$@" 2>&1 | sed -n 's/^  in all *\([0-9.]* [A-Za-z]*\).*/\1/p')
    result "$name" "$(number "${ratio:-0} > 0.95 && ${ratio:-0} < 1.05" && echo 1 || echo 0)" \
        "measured ${ratio:-nothing} of the plan $(tail -2 "$dir/out")"
    result "$name: dry run" "$([ -n "$dry" ] && [ "$dry" = "$planned" ] && echo 1 || echo 0)" "dry run $dry, run $planned"
}
within 'one rank' 1 --seq-len 2048 --recompute none
within 'selective' 1 --seq-len 2048 --recompute selective
within 'full' 1 --seq-len 2048 --recompute full
within 'moments in bf16' 1 --seq-len 2048 --recompute selective --moments bf16
within 'tiles' 1 --seq-len 4096 --recompute full --mlp-tile 256 --loss-tile 128
within 'offload' 1 --seq-len 2048 --recompute selective --offload-activations 1 \
    --offload-optimizer --offload-gradients --offload-parameters
model=half # with two ranks, the libraries' buffers are 1 % of it, with one they would be 3 %
within 'offload of gradients, accumulation' 2 --seq-len 2048 --cp 2 --zero-grads full --grad-accum 2 --recompute selective \
    --offload-optimizer --offload-gradients
within 'head parallel' 2 --seq-len 2048 --hp 2 --recompute none
within 'ring' 2 --seq-len 4096 --cp 2 --recompute selective
within 'all-gather' 2 --seq-len 2048 --cp 2 --cp-comm allgather --recompute selective
within 'ZeRO full' 2 --seq-len 2048 --hp 2 --zero-params full --recompute full
within 'a copy of the states while they are written' 2 --seq-len 2048 --hp 2 --save-every 1 --out "$dir/states"
within 'a copy of the states, moments in bf16, offload' 2 --seq-len 2048 --hp 2 --save-every 1 --out "$dir/narrow" \
    --moments bf16 --offload-optimizer
within 'ZeRO optimizer, accumulation' 2 --seq-len 2048 --cp 2 --zero-grads 2 --grad-accum 2 --recompute selective
model=model
within 'rings, dKV as bf16' 4 --seq-len 2048 --cp 4 --inner-ring 2 --dkv-wire bf16 --recompute selective
within "sixteen ranks: MPI's shared memory does not count" 16 --seq-len 2048 --cp 16 --inner-ring 4 --zero-params full --recompute selective

# No growth: resident memory after 3 and after 100 steps.
grown() {
    "$binary" --model nano --from-scratch --train-data "$dir/data.bin" --seq-len 256 --batch-size 8 --steps "$1" |
        sed -n 's/^memory measured \([0-9.]*\) MiB.*/\1/p'
}
few=$(grown 3) many=$(grown 100)
result 'no growth over 100 steps' "$(number "${many:-9} <= ${few:-0} * 1.02 + 0.5" && echo 1 || echo 0)" \
    "$few MiB after 3 steps, $many after 100"

# Linear in T, so there is no tensor of T x T: a line through 2K and 4K predicts 8K and 16K (of which a byte a pair would be 256 MiB).
bytes() { "$binary" --model "$dir/model" --dry-run "$@" | sed -n 's/^bytes of a rank: device \([0-9]*\).*/\1/p'; }
measured() { # length of the sequence
    "$binary" --model nano --from-scratch --train-data "$dir/data.bin" --steps 1 --recompute selective --seq-len "$1" |
        sed -n 's/^memory measured \([0-9.]*\) MiB.*/\1/p'
}
a=$(measured 2048) b=$(measured 4096) c=$(measured 8192) d=$(measured 16384)
result 'linear in T' "$(number "${d:-9e9} <= 1.1 * (${a:-0} + 7 * (${b:-0} - ${a:-0})) &&
    ${c:-9e9} <= 1.1 * (${a:-0} + 3 * (${b:-0} - ${a:-0}))" && echo 1 || echo 0)" "$a $b $c $d MiB at 2K 4K 8K 16K"

# Attention sums a slice of heads at a time. Runs of whole groups (4 heads here: 256 KiB of sums, where all heads take 1 MiB) change no bit.
mkdir "$dir/heads"
cat >"$dir/heads/config.json" <<'JSON'
{"model_type": "llama", "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 8,
 "intermediate_size": 128, "vocab_size": 256, "rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "rope_theta": 10000.0}
JSON
heads=(--model "$dir/heads" --seq-len 2048 --recompute full --mlp-tile 64 --loss-tile 64)
device_bytes() { "$binary" --dry-run "${heads[@]}" | sed -n 's/^bytes of a rank: device \([0-9]*\).*/\1/p'; }
losses() { # runs; prints losses and gradient norms
    "$binary" "${heads[@]}" --from-scratch --train-data "$dir/data.bin" --steps 2 --log "$dir/heads.jsonl" >"$dir/out" 2>&1
    grep -o '"loss":[^,]*,"grad_norm":[^,]*' "$dir/heads.jsonl"
    rm "$dir/heads.jsonl"
}
all=$(device_bytes) of_all=$(losses)
export TRAIN_LLAMA_TEST_SLICE_BYTES=262144
few=$(device_bytes) of_few=$(losses)
unset TRAIN_LLAMA_TEST_SLICE_BYTES
result 'slices of heads' "$([ $((${all:-0} - ${few:-0})) -ge 786432 ] &&
    [ "$(wc -l <<<"$of_all")" = 2 ] && [ "$of_all" = "$of_few" ] && echo 1 || echo 0)" \
    "$all bytes, $of_all; in slices $few bytes, $of_few"

# Doubling sp at a fixed length per rank, measured: the states (16 bytes a parameter in all: parameter, gradient and two moments) are
# divided by sp. The rest of what a rank holds (activations, buffers) stays as it is, except for the scratch of the gradient reduction,
# which is (sp - 1) / sp of the largest unit: here 4 MiB more. Hence the 5 %.
held() { # hp cp seq-len: MiB
    mpirun -np $(($1 * $2)) "$binary" --model "$dir/model" --from-scratch --train-data "$dir/data.bin" --steps 1 --zero-params full \
        --recompute selective --hp "$1" --cp "$2" --seq-len "$3" 2>&1 </dev/null | sed -n 's/^memory measured \([0-9.]*\) MiB.*/\1/p'
}
two=$(held 1 2 2048) four=$(held 1 4 4096)
states=$(awk 'BEGIN {D = 512; print 16 * (2 * 8192 * D + 4 * (D * (D + 2 * 256) + D * D + 3 * D * 1536)) / 1048576}') # MiB, of all ranks
rest=$(awk "BEGIN {print ${two:-0} - $states / 2}")
result 'doubling sp: states are halved, the rest is flat' "$(number "${four:-0} - $states / 4 < 1.05 * $rest &&
    ${four:-0} - $states / 4 > 0.95 * $rest" && echo 1 || echo 0)" "$two MiB, then $four; states $states"

# An allocation that fails ends the run, with status 1 and the reason: also one of cJSON, else a state that looks whole would lack a member.
preload scarce <<'C'
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
// Whether this is allocation number SCARCE_CALL of SCARCE_BYTES in the program or in cJSON; if it is no short one, also in libc.
static int fails(size_t bytes, void *caller) {
    static int calls;
    Dl_info from;
    if (bytes != (size_t)atol(getenv("SCARCE_BYTES")) || dladdr(caller, &from) == 0) return 0;
    int ours = strstr(from.dli_fname, "train_llama") || strstr(from.dli_fname, "cjson") ||
               (bytes > 100 && strstr(from.dli_fname, "libc.so"));
    if (!ours || ++calls != atoi(getenv("SCARCE_CALL"))) return 0;
    errno = ENOMEM;
    return 1;
}
__attribute__((destructor)) static void unload(void) { // another thread may be at work in what is unloaded
    if (strcmp(program_invocation_short_name, "train_llama") == 0) fputs("libraries are unloaded\n", stderr);
}
void *malloc(size_t bytes) { return fails(bytes, __builtin_return_address(0)) ? NULL : __libc_malloc(bytes); }
void *calloc(size_t count, size_t bytes) { return fails(count * bytes, __builtin_return_address(0)) ? NULL : __libc_calloc(count, bytes); }
int posix_memalign(void **to, size_t align, size_t bytes) {
    if (fails(bytes, __builtin_return_address(0))) return ENOMEM;
    return ((int (*)(void **, size_t, size_t))dlsym(RTLD_NEXT, "posix_memalign"))(to, align, bytes);
}
C
scarce() { # bytes, call, options
    SCARCE_BYTES=$1 SCARCE_CALL=$2 LD_PRELOAD="$dir/scarce.so" "$binary" --model nano --from-scratch \
        --seq-len 100 --steps 1 --threads 1 "${@:3}"
}
for call in 100 250 400; do # 64 bytes: a member of a JSON text
    check "no memory for member $call: status 1" ends_with 1 '^error: out of host memory: 64 bytes asked for$' \
        scarce 64 $call --train-data "$dir/data.bin" --out "$dir/scarce" --resume
done
check 'while other threads work, nothing is taken apart under them' bash -c "! grep -a 'libraries are unloaded' '$dir/shown'"
check 'no state is taken for whole' [ -z "$(ls -d "$dir"/scarce/step-* 2>/dev/null)" ]
name=$(printf '%0200d' 0)
cp "$dir/data.bin" "$dir/$name"
check 'no memory to look for data: status 1' \
    ends_with 1 '^error: --train-data: .*: searching for files of this pattern failed: Cannot allocate memory$' \
    scarce 201 1 --train-data "$dir/$name"
bytes=$("$binary" --dry-run --model nano --from-scratch --seq-len 100 --train-data "$dir/data.bin" |
    sed -n 's/^bytes of a rank: device \([0-9]*\) .*/\1/p')
check 'the memory that was counted on is taken by others: status 1' \
    ends_with 1 "^error: not enough memory: a rank needs $bytes bytes on the device" scarce "$bytes" 1 --train-data "$dir/data.bin"

closing_line
