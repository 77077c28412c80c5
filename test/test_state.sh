#!/usr/bin/env bash
# Training state: a resumed run is the run that never stopped, bit by bit on the same grid and to 1e-5 on another; damaged and half-written
# states are skipped; a killed rank, a full disk, a second run and signals lose only the steps since the last state. (F50, F51)
source "$(dirname "$0")/shell.sh"
export OMP_NUM_THREADS=1
seq 1 1000 | tokens_of data
seq 500 -2 1 | tokens_of other
# A mixture of 38 and 9 samples of 100 tokens, 4 a step: the epochs of the first source end inside step 14, those of the second every eighth
# step or so. Warm-up and cosine span all 24 steps.
common=(--model nano --from-scratch --train-data "$dir/data.bin:0.7,$dir/other.bin:0.3" --seq-len 100 --lr 3e-3 --warmup 5 --threads 1
    --steps 24)
on_host=(--offload-optimizer --offload-gradients --offload-parameters)
length=$((${#common[@]} - 1)) # the place of the number of steps in common
train() { # name ranks option...: the log goes to name.jsonl, the output to name.out and name.err
    local name=$1 ranks=$2
    shift 2
    timeout 120 mpirun -np "$ranks" "$binary" "${common[@]}" --log "$dir/$name.jsonl" "$@" >"$dir/$name.out" 2>"$dir/$name.err" </dev/null
}
cat >"$dir/compare.py" <<'PY'
import json, sys
def rows(path): # a step that was run twice counts as it was run last
    found = {}
    for line in open(path):
        row = json.loads(line)
        if "loss" in row: found[row["step"]] = row
    return found
a, b, bound, first, last = rows(sys.argv[1]), rows(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
for step in range(first, last + 1):
    for key in ("loss", "grad_norm", "lr", "samples"):
        assert abs(a[step][key] - b[step][key]) <= bound * abs(a[step][key]), (step, key, a[step][key], b[step][key])
PY
# On another grid sums are made in another order: losses and norms to 1e-5, where 24 steps have been seen to reach 2e-7.
compare() { python3 "$dir/compare.py" "$@"; }
tensors_equal() {
    cmp "$1/model.safetensors" "$2/model.safetensors" &&
        cmp "$1/optimizer/optimizer.safetensors" "$2/optimizer/optimizer.safetensors"
}
complete() { [ "$(find "$1" -maxdepth 1 -name 'unfinished-*' | wc -l)" -eq 0 ]; }

grid=(2 --cp 2 --batch-size 2 --grad-accum 2 --zero-params 1 --zero-grads 2)
train whole "${grid[@]}" --out "$dir/whole" --save-every 4 --keep 9
check 'states saved: every fourth' [ "$(cd "$dir/whole" && echo step-*)" = \
    'step-00000004 step-00000008 step-00000012 step-00000016 step-00000020 step-00000024' ]
check 'each says how long training waited and how long writing took' \
    [ "$(grep -cE '^saved .* training waited [0-9.]+ s, written in [0-9.]+ s$' "$dir/whole.out")" -eq 6 ]
saved='^\{"step":[0-9]+,"saved":true,"save_wait_ms":[0-9.]+,"save_write_ms":[0-9.]+\}$'
check 'and so does the log' [ "$(grep -cE "$saved" "$dir/whole.jsonl")" -eq 6 ]
train at_end "${grid[@]}" --out "$dir/at_end"
check 'a state written while training goes on is that of a run that saves at its end only' \
    tensors_equal "$dir/whole/step-00000024" "$dir/at_end/step-00000024"
common[length]=12
train at_12 "${grid[@]}" --out "$dir/at_12" --lr-schedule constant
common[length]=24
train at_24 "${grid[@]}" --out "$dir/at_24" --lr-schedule constant --save-every 12
check 'also one in the middle of the run' tensors_equal "$dir/at_24/step-00000012" "$dir/at_12/step-00000012"
check 'a state is a folder that --model reads' "$binary" --model "$dir/whole/step-00000012" --steps 0 --threads 1

# A step is AdamW as PyTorch's: from a state and the moments of the next one follow its parameters, and the gradient that these moments got,
# whose norm is that of the log, at most --grad-clip. All grids could be wrong together here: other tests compare them with one rank.
common[length]=6
for clip in 0 0.5 100; do
    "$binary" "${common[@]}" --grad-clip $clip --beta1 0.8 --beta2 0.9 --eps 1e-4 --weight-decay 0.3 --save-every 1 --keep 6 \
        --out "$dir/adamw-$clip" --log "$dir/adamw-$clip.jsonl" >"$dir/adamw.out" 2>&1
done
common[length]=24
cat >"$dir/adamw.py" <<'PY'
import array, json, struct, sys
def tensors(path):
    data = open(path, "rb").read()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:begin])
    return {name: array.array("f", data[begin + t["data_offsets"][0]:begin + t["data_offsets"][1]])
            for name, t in header.items() if name != "__metadata__"}
def state(step):
    folder = f"{sys.argv[1]}/step-0000000{step}/"
    return tensors(folder + "model.safetensors"), tensors(folder + "optimizer/optimizer.safetensors")
clip, rows = float(sys.argv[2]), [json.loads(line) for line in open(sys.argv[1] + ".jsonl")]
logged = {row["step"]: row for row in rows if "loss" in row}
# Bounds: what is computed here in double is there in float, of which 4e-7, 5e-7 and 6e-8 are seen.
for step in (2, 6):
    (p0, o0), (p1, o1), lr, squares = state(step - 1), state(step), logged[step]["lr"], 0
    for name in p0:
        decay = 0 if "norm" in name else 0.3
        m0, v0, m1, v1 = (o[name + key] for o in (o0, o1) for key in (".exp_avg", ".exp_avg_sq"))
        for i in range(len(p0[name])):
            g = (m1[i] - 0.8 * m0[i]) / (1 - 0.8)
            squares += g * g
            change = m1[i] / (1 - 0.8 ** step) / ((v1[i] / (1 - 0.9 ** step)) ** 0.5 + 1e-4)
            p = p0[name][i] - lr * (decay * p0[name][i] + change)
            assert abs(p - p1[name][i]) < 1e-5 * lr + 1e-7 * abs(p), (step, name, i, p0[name][i], p1[name][i], p)
            assert abs(v1[i] - 0.9 * v0[i] - 0.1 * g * g) < 1e-5 * (v1[i] + m1[i] * m1[i]) + 1e-20, (step, name, i, v0[i], v1[i], g)
    norm = logged[step]["grad_norm"]
    assert 0.5 < norm < 100 and abs(squares ** 0.5 / min(norm, clip or norm) - 1) < 1e-5, (step, squares ** 0.5, norm, clip)
PY
for clip in 0 0.5 100; do
    check "a step is PyTorch's AdamW, --grad-clip $clip" python3 "$dir/adamw.py" "$dir/adamw-$clip" $clip
done

# Stopped twice, in the first epoch by SIGUSR1 to mpirun (which passes it on), in the second by SIGTERM to a rank; then run to the end.
# Every save takes 0.1 s and more, so that a run lasts longer than its signal takes.
preload slow_saves <<'C'
#include <dlfcn.h>
#include <unistd.h>
int rename(const char *from, const char *to) {
    usleep(100000);
    return ((int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename"))(from, to);
}
C
for part in 1 2; do
    : >"$dir/stopped.out"
    LD_PRELOAD="$dir/slow_saves.so" mpirun -np "${grid[0]}" "$binary" "${common[@]}" "${grid[@]:1}" \
        --log "$dir/stopped.jsonl" --out "$dir/stopped" --resume --save-every 1 >"$dir/stopped.out" 2>"$dir/stopped.err" </dev/null &
    job=$!
    until_shown "^step *$((part * 7))/" "$dir/stopped.out"
    if [ $part -eq 1 ]; then kill -USR1 $job; else kill -TERM "$(pgrep -f "^$binary.*$dir/stopped.jsonl" | tail -1)"; fi
    wait $job
    check "signal $part: status 0" [ $? -eq 0 ]
    check "signal $part: says so" grep -q 'stopped by a signal after step' "$dir/stopped.out"
done
begins='^stopped by a signal before training; the same command with --resume begins it, or continues from the last state$'
# A signal is heeded before an evaluation that may take long, here after a step of seconds; where nothing can be saved, it ends the program.
signal_when() { # pattern: SIGTERM to the rank when slow.out shows it; $status: the rank's; before.jsonl: what slow.jsonl held before
    job=$!
    until_shown "$1" "$dir/slow.out"
    sleep 0.3
    cp "$dir/slow.jsonl" "$dir/before.jsonl" 2>/dev/null
    kill -TERM $job
    wait $job
    status=$?
}
: >"$dir/slow.out"
"$binary" "${common[@]}" --grad-accum 3000 --val-data "$dir/data.bin" \
    --eval-every 1 --sample-every 1 --out "$dir/early" >"$dir/slow.out" 2>&1 </dev/null &
signal_when '^eval  *0/24 | val loss'
check 'a signal comes before an evaluation: status 0' [ $status -eq 0 ]
check 'before the first step there was an evaluation' grep -q '^eval  *0/24 | val loss' "$dir/slow.out"
check 'the state is saved, and nothing is evaluated' bash -c "grep -q '^stopped by a signal after step 1' '$dir/slow.out' &&
    ! grep -q '^eval *1/\|^sample *1/' '$dir/slow.out' && [ -d '$dir/early/step-00000001' ]"
: >"$dir/slow.out"
for _ in $(seq 500); do seq 1 1000; done | tokens_of long
"$binary" "${common[@]}" --val-data "$dir/long.bin" --eval-every 2 --eval-steps 1000000 --out "$dir/unbegun" \
    >"$dir/slow.out" 2>&1 </dev/null &
signal_when '^  in all'
check 'a signal ends an evaluation' \
    [ "$status $(grep -c '^eval  *0/24 | ended by a signal$\|^step\|^saved' "$dir/slow.out")" = '0 1' ]
check 'and the run, of which there is nothing to tell' [ "$(tail -1 "$dir/slow.out")" = 'stopped by a signal before the first step' ]
: >"$dir/slow.out"
"$binary" "${common[@]}" --batch-size 500 --sample-every 1 --sample-tokens 90 \
    --save-every 1 --out "$dir/sampling" --log "$dir/slow.jsonl" >"$dir/slow.out" 2>&1 </dev/null &
signal_when '^saved  *1/24'
check 'a state is complete before a sample is, which a signal ends' \
    [ "$status $(grep -c '^sample  *1/24 | ended by a signal\|^saved\|^stopped by a signal after step 1;' "$dir/slow.out")" = '0 3' ]
check 'and in the log by then' grep -q '"step":1,"saved":true' "$dir/before.jsonl"
: >"$dir/slow.out"
"$binary" --model nano --from-scratch --seq-len 100 --threads 1 --resume --steps 0 --val-data "$dir/data.bin" --batch-size 500 \
    --sample-every 1 --sample-tokens 60 --out "$dir/early" >"$dir/slow.out" 2>&1 </dev/null &
signal_when '^  in all'
check 'a signal ends a sample where there is nothing to save' \
    [ "$status $(grep '^sample  *[01]/' "$dir/slow.out")" = '0 sample    1/1 | ended by a signal' ]
: >"$dir/slow.out"
preload told <<'C'
#include <dlfcn.h>
#include <signal.h>
typedef sighandler_t set(int number, sighandler_t handler);
sighandler_t signal(int number, sighandler_t handler) { // SIGTERM comes as soon as it is heeded
    sighandler_t before = ((set *)dlsym(RTLD_NEXT, "signal"))(number, handler);
    if (number == SIGTERM && handler != SIG_DFL) raise(SIGTERM);
    return before;
}
C
LD_PRELOAD="$dir/told.so" "$binary" "${common[@]}" --verify --out "$dir/unbegun" >"$dir/slow.out" 2>&1 </dev/null
status=$?
check 'a signal during the start ends the run after it, and saves nothing' \
    [ "$status $(grep -c "$begins\|^step\|^saved" "$dir/slow.out")" = '0 1' ]
# So it does while data are checked, here 2^31 - 1 tokens in a file of holes by many names.
: >"$dir/slow.out"
mkdir "$dir/holes"
head -c 1024 "$dir/data.bin" | { head -c 8 && printf '\377\377\377\177' && tail -c +5; } >"$dir/holes.bin"
truncate -s $((1024 + 2 * 2147483647)) "$dir/holes.bin"
for i in $(seq 100); do ln -s ../holes.bin "$dir/holes/$i.bin"; done
TRAIN_LLAMA_TEST_PROGRESS=1 timeout -k 1 20 "$binary" "${common[@]}" --val-data "$dir/holes/*.bin" --check-data --out "$dir/unbegun" \
    >"$dir/slow.out" 2>&1 </dev/null &
signal_when 'checking data'
check 'a signal ends a check of the data' [ "$status $(grep -c "$begins\|^step\|^saved\|error" "$dir/slow.out")" = '0 1' ]
check 'before it, progress shows that files are opened' grep -q '^note: opening token files: 50 % after' "$dir/slow.out"
# The time that is left is that of a step of this run, whatever the run before took.
mkdir "$dir/left" && cp -r "$dir/whole/step-00000012" "$dir/left"
: >"$dir/slow.out"
common[length]=1000000
"$binary" "${common[@]}" --batch-size 4 --out "$dir/left" --resume >"$dir/slow.out" 2>&1 </dev/null &
signal_when '^step'
common[length]=24
check 'resume: the time that is left' python3 - "$dir/slow.out" <<'PY'
import re, sys
steps = re.findall(r"^step +(\d+)/1000000 .* ([\d.]+) ms .* eta (\d+):(\d+):(\d+)$", open(sys.argv[1]).read(), re.M)
assert steps and steps[0][0] == "13", steps
spent = 0
for n, (step, ms, hours, minutes, seconds) in enumerate(steps[:5]):
    spent += 1e-3 * float(ms)
    eta = 3600 * int(hours) + 60 * int(minutes) + int(seconds)
    least = spent / (n + 1) * (1000000 - int(step)) # more, with what is done between steps
    assert 0.95 * least < eta < 20 * least, (step, eta, least)
PY
mkdir "$dir/fresh" "$dir/exports"
touch "$dir"/{fresh,exports}/seen-by-all-ranks-{killed,starts}
touch -d '2 hours ago' "$dir"/{fresh,exports}/seen-by-all-ranks-killed
train fresh 1 --batch-size 4 --out "$dir/fresh" --resume --export "$dir/exports/fresh"
check 'what runs that were killed at their start have left is removed, and nothing of those that start now' \
    [ "$(cd "$dir" && echo {fresh,exports}/seen-*)" = 'fresh/seen-by-all-ranks-starts exports/seen-by-all-ranks-starts' ]
check 'no state: starts afresh and says so' grep -q 'holds no state; starting from the beginning' "$dir/fresh.out"
check 'and trains from the start' compare "$dir/whole.jsonl" "$dir/fresh.jsonl" 1e-5 1 24
train stopped "${grid[@]}" --out "$dir/stopped" --resume
check 'resume: status 0' [ $? -eq 0 ]
check 'resume twice: every step is bit-equal to never having stopped' compare "$dir/whole.jsonl" "$dir/stopped.jsonl" 0 1 24
check 'and so are parameters and moments' tensors_equal "$dir/whole/step-00000024" "$dir/stopped/step-00000024"
check 'keep 2' [ "$(find "$dir/stopped" -maxdepth 1 -name 'step-*' | wc -l)" -eq 2 ]
train stopped "${grid[@]}" --out "$dir/stopped" --resume
check 'resume of a finished run: nothing to do, status 0' [ $? -eq 0 ]

# Another grid and ZeRO, offload, and back: the next 20 steps.
from4() { # name ranks option...
    local name=$1
    cp -r "$dir/whole/step-00000004" "$dir/four"
    mkdir "$dir/$name"
    mv "$dir/four" "$dir/$name/step-00000004"
    train "$@" --out "$dir/$name" --resume
    check "$name: status 0" [ $? -eq 0 ]
    check "$name: next 20 losses to 1e-5" compare "$dir/whole.jsonl" "$dir/$name.jsonl" 1e-5 5 24
}
from4 one 1 --batch-size 4
from4 full 4 --hp 2 --cp 1 --batch-size 1 --grad-accum 2 --zero-params full "${on_host[@]}"
from4 mixed 8 --hp 2 --cp 2 --batch-size 2 --zero-params 2 --zero-grads 4 --zero-optim 8 --offload-optimizer
from4 three 3 --cp 3 --batch-size 4 --zero-optim 3 --offload-optimizer --recompute selective
check 'steps as large as before: no word of it' bash -c "! grep -q '^note' '$dir/mixed.err'"
cp -r "$dir/whole/step-00000004" "$dir/four" && mkdir "$dir/larger" && mv "$dir/four" "$dir/larger/step-00000004"
check 'larger steps: a note' ends_with 0 '^note: so far a step had 4 sequences, and with this command it has 6' \
    "$binary" "${common[@]}" --resume --batch-size 6 --out "$dir/larger"
mkdir "$dir/back" # a state of a sharded grid is resumed on another one
mv "$dir/mixed/step-00000024" "$dir/back"
common[length]=25 # which also changes the schedule
train back 8 --hp 4 --cp 2 --batch-size 4 --placement context-first --zero-params 4 --out "$dir/back" --resume
check 'a state of dp 2 x hp 2 x cp 2 on hp 4 x cp 2: status 0' [ $? -eq 0 ]
cp "$dir/whole.jsonl" "$dir/longer.jsonl"
train longer "${grid[@]}" --out "$dir/whole" --resume --keep 9 --save-every 5 --keep-every 5
check 'more steps than before are noted' grep -q '^note: --steps was 24 so far and is 25 from now on' "$dir/longer.err"
check 'an option that was not given is said to be so' \
    grep -q '^note: --keep-every was not given so far and is 5 from now on' "$dir/longer.err"
check 'and its next loss' compare "$dir/longer.jsonl" "$dir/back.jsonl" 1e-5 25 25
common[length]=24

# Moments in bf16: the state holds them so, and resumes to the same bits, also with offload; one of float moments may go on with bf16, and
# the other way round: losses and norms that both have differ by the roundings of at most 20 small steps, which have reached 2e-4.
train narrow "${grid[@]}" --moments bf16 --out "$dir/narrow" --save-every 12
train narrow_host "${grid[@]}" --moments bf16 --out "$dir/narrow_host" --offload-optimizer
check 'bf16 moments: offload changes no bit' tensors_equal "$dir/narrow/step-00000024" "$dir/narrow_host/step-00000024"
check 'bf16 moments: another run than with float moments' \
    ends_with 1 differ cmp "$dir"/{narrow,whole}/step-00000024/model.safetensors
moments() { # state: their types and bytes in the state
    python3 -c "
import json, struct, sys
f = open(sys.argv[1] + '/optimizer/optimizer.safetensors', 'rb')
header = json.loads(f.read(struct.unpack('<Q', f.read(8))[0]))
tensors = [t for name, t in header.items() if name != '__metadata__']
print(*sorted({t['dtype'] for t in tensors}), max(t['data_offsets'][1] for t in tensors))" "$1"
}
check 'bf16 moments in the state: 4 bytes a parameter for both' [ "$(moments "$dir/narrow/step-00000024")" = "BF16 $((4 * 125248))" ]
check 'float moments in the state: 8 bytes' [ "$(moments "$dir/whole/step-00000024")" = "F32 $((8 * 125248))" ]
rm -r "$dir/narrow_host/step-00000024" && cp -r "$dir/narrow/step-00000012" "$dir/narrow_host"
train narrow_host "${grid[@]}" --moments bf16 --out "$dir/narrow_host" --resume
check 'bf16 moments, resumed: the same bits' tensors_equal "$dir/narrow/step-00000024" "$dir/narrow_host/step-00000024"
check 'bf16 moments, resumed: nothing is noted' bash -c "! grep '^note' '$dir/narrow_host.err'"
for to in bf16 f32; do # the states of step 12 and what they go on with; back is compared with the run whose state it is
    from=$([ $to = bf16 ] && echo f32 || echo bf16) source=$([ $to = bf16 ] && echo whole || echo narrow)
    mkdir "$dir/to_$to" && cp -r "$dir/$source/step-00000012" "$dir/to_$to"
    train to_$to "${grid[@]}" --moments $to --out "$dir/to_$to" --resume --save-every 1 --keep 99
    check "moments from $from to $to: noted, alone" \
        [ "$(grep '^note' "$dir/to_$to.err")" = "note: --moments was $from so far and is $to from now on" ]
    check "moments from $from to $to: the first loss is the same" compare "$dir/$source.jsonl" "$dir/to_$to.jsonl" 0 13 13
    check "moments from $from to $to: the others are near" compare "$dir/$source.jsonl" "$dir/to_$to.jsonl" 0.005 14 24
    check "moments from $from to $to: the next state holds them" \
        [ "$(moments "$dir/to_$to/step-00000013" | cut -d' ' -f1)" = $([ $to = bf16 ] && echo BF16 || echo F32) ]
done
mkdir "$dir/narrow_grid" && cp -r "$dir/narrow/step-00000012" "$dir/narrow_grid"
train narrow_grid 4 --hp 2 --cp 2 --batch-size 4 --zero-params full "${on_host[@]}" --moments bf16 --out "$dir/narrow_grid" --resume
check 'bf16 moments on another grid: next 12 losses to 1e-5' compare "$dir/narrow.jsonl" "$dir/narrow_grid.jsonl" 1e-5 13 24

# Damage: each kind is found, named and skipped; the older state resumes to the same curve.
damage() { # name pattern command...: the command runs in the folder of state 12
    local name=$1 pattern=$2
    shift 2
    rm -rf "$dir/damage" "$dir/damage.jsonl"
    mkdir "$dir/damage"
    cp -r "$dir/whole/step-00000004" "$dir/whole/step-00000012" "$dir/damage"
    (cd "$dir/damage/step-00000012" && "$@")
    train damage "${grid[@]}" --out "$dir/damage" --resume
    check "$name: status 0" [ $? -eq 0 ]
    check "$name: says /$pattern/, not $(tail -1 "$dir/damage.err")" \
        grep -qE "^note: skipping the damaged state [^:]*step-00000012: ([^/].*)?$pattern" "$dir/damage.err"
    check "$name: goes on from the older" compare "$dir/whole.jsonl" "$dir/damage.jsonl" 0 5 24
    check "$name: set aside" [ -d "$dir/damage/damaged-step-00000012" ]
}
flip() { python3 -c "
import sys
f = open(sys.argv[1], 'r+b'); f.seek(int(sys.argv[2])); b = f.read(1)[0]; f.seek(int(sys.argv[2])); f.write(bytes([b ^ 16]))" "$@"; }
damage 'a bit of a parameter' 'checksum of unit' flip model.safetensors 100000
damage 'a bit of a moment' 'unit 3, .lm_head..exp_avg_sq, is wrong' flip optimizer/optimizer.safetensors 1000001
damage 'truncated' 'truncated' truncate -s 300000 optimizer/optimizer.safetensors
damage 'a file is gone' 'training_state.json' rm training_state.json
damage 'config.json cut short' 'config.json: is not valid JSON' truncate -s 40 config.json
damage 'a digit of the samples' 'checksum is wrong' sed -i 's/"samples":48/"samples":49/' training_state.json
damage 'of another step' 'its step is 4' cp ../step-00000004/training_state.json .
mkdir "$dir/damage/unfinished-step-00000030"
cp -r "$dir/whole/step-00000012" "$dir/damage/step-99"
: >"$dir/damage/step-00000098"
ln -s nowhere "$dir/damage/step-00000097"
train damage "${grid[@]}" --out "$dir/damage" --resume
check 'a copy under another name, a file and a link to nothing: not taken for states' \
    [ $? -eq 0 -a "$(grep -c '^note: skipping' "$dir/damage.err")" -eq 0 ]
check 'half-written: removed' complete "$dir/damage"
rm -rf "$dir/none"
mkdir "$dir/none"
cp -r "$dir/whole/step-00000004" "$dir/none"
flip "$dir/none/step-00000004/model.safetensors" 100000
train none "${grid[@]}" --out "$dir/none" --resume
check 'only damaged states: status 2' [ $? -eq 2 ]
check 'and a message' grep -q 'error: --resume: none of the states' "$dir/none.err"

# What is refused.
refuse() { # name pattern option...
    local name=$1 pattern=$2
    shift 2
    timeout 60 mpirun -np 2 "$binary" "${common[@]}" "$@" >"$dir/out" 2>"$dir/err" </dev/null
    local status=$?
    check "$name: status 2, it was $status" [ $status -eq 2 ]
    check "$name: one line with /$pattern/, not $(head -1 "$dir/err")" \
        bash -c "[ \$(grep -c '^error:' '$dir/err') -eq 1 ] && grep -qE '$pattern' '$dir/err'"
}
refuse 'states, but no --resume' 'add --resume' --out "$dir/whole"
refuse 'another seed' 'trained with --seed 42' --out "$dir/whole" --resume --seed 7
common[4]="$dir/data.bin:0.6,$dir/other.bin:0.4"
refuse 'another mixture' 'another mixture of sources' --out "$dir/whole" --resume
common[4]="$dir/data.bin"
refuse 'fewer tokens' 'was trained on [0-9]* tokens, and --train-data holds [0-9]*; --new-data' --out "$dir/whole" --resume
common[4]="$dir/data.bin:0.7,$dir/other.bin:0.3"
refuse 'samples packed from now on' 'trained with --document-end none' --out "$dir/whole" --resume --document-end 32
refuse 'and with token 32 before each document' 'trained with --document-begin none; --new-data goes on' \
    --out "$dir/whole" --resume --document-begin 32
refuse 'another RoPE' '"rope_theta" is 10000 there and 1000000 here; the options of the run that was saved, or --new-data' \
    --out "$dir/whole" --resume --rope-theta 1e6
refuse 'both marks of documents' 'give only one' --document-end 32 --document-begin 32
refuse 'new data, but no --resume' 'requires --resume' --out "$dir/whole" --new-data
cp "$dir/data.bin" "$dir/kept.bin"
printf x | dd of="$dir/data.bin" bs=1 seek=1030 conv=notrunc 2>/dev/null
refuse 'other files of the same sizes' 'other files, or other loss masks' --out "$dir/whole" --resume
cp "$dir/kept.bin" "$dir/data.bin"
cp "$dir/other.bin" "$dir/kept.bin"
printf x | dd of="$dir/other.bin" bs=1 seek=1030 conv=notrunc 2>/dev/null
refuse 'and of the second source' 'other files, or other loss masks' --out "$dir/whole" --resume
cp "$dir/kept.bin" "$dir/other.bin"
mkdir "$dir/eps" && sed 's/"rms_norm_eps":[^,}]*/"rms_norm_eps": 0.01/' "$dir/whole/step-00000012/config.json" >"$dir/eps/config.json"
common[1]="$dir/eps"
refuse 'another model, also with new data' '"rms_norm_eps" is [0-9.e-]* there and 0.0099[0-9]* here$' \
    --out "$dir/whole" --resume --new-data
common[1]=nano
untrained=("$binary" --model nano --from-scratch --steps 0 --out "$dir/nothing" --resume)
check 'nothing to resume and nothing to train' ends_with 2 'holds no state to resume, and --steps 0 trains none' "${untrained[@]}"
check 'makes no folder' [ ! -e "$dir/nothing" ]
mkdir "$dir/nothing"
check 'nor does a folder without states' ends_with 2 'holds no state to resume, and --steps 0 trains none' "${untrained[@]}"
mkdir "$dir/older" && cp -r "$dir/whole/step-00000012" "$dir/older"
sed -i 's/"format":[0-9]*/"format":2/' "$dir/older/step-00000012/training_state.json"
refuse 'a state of another format' \
    'step-00000012 was written by another version of this program, in format 2 .*only its parameters can be used, by --model' \
    --out "$dir/older" --resume
check 'which stays where it is' [ -d "$dir/older/step-00000012" ]
refuse 'resume without a folder' 'require --out' --resume
refuse 'folder that cannot be made' 'cannot be created' --out "$dir/data.bin/such"
mkdir -p "$dir/locked/lock" && ln -s nowhere "$dir/locked/step-00000001" # the link is no state; looking at it fails for another reason
refuse 'lock that cannot be opened' 'cannot be written to: Is a directory' --out "$dir/locked"
common[1]=tiny
refuse 'another model' '"num_hidden_layers" is 2 there and 4' --out "$dir/whole" --resume
common[1]=nano
common[6]=50
refuse 'another length' 'trained with --seq-len 100' --out "$dir/whole" --resume
common[6]=100

cp -r "$dir/whole" "$dir/inside" # states are removed one by one, and with them the one that --model names
common[1]="$dir/inside/step-00000024"
refuse 'a state of --out as --model' 'is a state in this --out' --out "$dir/../$(basename "$dir")/inside" --resume
common[1]=nano

# New data: a run goes on from a state with its moments, longer sequences and another RoPE, and resumes that with the same command, which
# counts its samples from there.
for name in new new_twice; do mkdir "$dir/$name" && cp -r "$dir/whole/step-00000012" "$dir/$name"; done
longer=(2 --cp 2 --batch-size 2 --new-data --resume --rope-theta 1e6 --document-begin 32 --beta2 0.9)
common[6]=150
train new "${longer[@]}" --out "$dir/new" --save-every 6
check 'new data: it trains' [ $? -eq 0 ]
check 'new data: from their first sample' grep -q 'from step 12, 0 samples of this data done' "$dir/new.out"
check 'new data: a step of two sequences is its own matter' bash -c "! grep 'so far a step had' '$dir/new.err'"
note='^note: "rope_theta" was 10000 so far and is 1000000 from now on$'
note+='\|^note: new data from here on: the state was trained with --seq-len 100$'
check 'new data: what is new is noted' [ "$(grep -c "$note" "$dir/new.err")" -eq 2 ]
check 'new data: all of it' grep -q '^note: new data from here on: the state was trained with --document-begin none$' "$dir/new.err"
check 'new data: the same mixture is not' bash -c "! grep 'another mixture' '$dir/new.err'"
check 'new data: a changed option is noted' grep -q '^note: --beta2 was 0.95 so far and is 0.9 from now on' "$dir/new.err"
check 'new data: others are not' [ "$(grep -c '^note: --' "$dir/new.err")" -eq 1 ]
cp -r "$dir/new/step-00000018" "$dir/new_twice"
train new_twice "${longer[@]}" --out "$dir/new_twice"
check 'new data, resumed: its samples are counted' grep -q 'from step 18, 12 samples of this data done' "$dir/new_twice.out"
check 'new data, resumed: no option has changed' bash -c "! grep '^note: ' '$dir/new_twice.err'"
check 'new data, resumed: the same bits' tensors_equal "$dir/new/step-00000024" "$dir/new_twice/step-00000024"
# With --lr-restart, warm-up and cosine of a run of 12 steps stand in the place of steps 13 to 24, also when that is resumed.
restarted=(2 --cp 2 --batch-size 2 --new-data --resume --lr-restart)
rates() { sed -nE 's/.*"step":([0-9]+),.*"lr":([0-9.e-]+),.*/\1 \2/p' "$1" | tail -12 | awk -v add="$2" '{ print $1 + add, $2 }'; }
mkdir "$dir/restarted" && cp -r "$dir/whole/step-00000012" "$dir/restarted"
train restarted "${restarted[@]}" --out "$dir/restarted" --save-every 6
check 'schedule restarted: it trains' [ $? -eq 0 ]
rm -r "$dir/restarted/step-00000024"
cp "$dir/restarted.jsonl" "$dir/restarted_once.jsonl"
train restarted "${restarted[@]}" --out "$dir/restarted"
common[length]=12
train twelve 2 --cp 2 --batch-size 2
check 'schedule restarted: that of a run of the new steps alone' \
    [ "$(rates "$dir/restarted_once.jsonl" 0)" = "$(rates "$dir/twelve.jsonl" 12)" ]
check 'schedule restarted, resumed: the same' \
    [ "$(rates "$dir/restarted.jsonl" 0 | tail -6)" = "$(rates "$dir/twelve.jsonl" 12 | tail -6)" ]
common[length]=16
refuse 'a warm-up longer than the new steps' 'warmup 5 is longer than the 4 steps of the schedule' \
    --out "$dir/restarted" --resume --new-data --lr-restart
common[length]=24
stage=0
for tokens in 400 100 100; do # the model is for 384
    "$binary" --model test/golden/folder_f32 --train-data "$dir/data.bin" --threads 1 --seq-len $tokens --steps "$((++stage))" --lr 1e-4 \
        --out "$dir/longest" --resume --new-data >"$dir/out" 2>&1
done
check 'a state and those after it are for the longest context trained' \
    [ "$(grep -h '"max_position_embeddings"' "$dir"/longest/step-*/config.json | grep -c 400)" -eq 2 ]
common[6]=100
train done 2 --cp 2 --batch-size 6 --beta2 0.9 --out "$dir/whole" --resume
check 'nothing left to train: it says so' grep -q 'note: of --steps 24 none is left to train' "$dir/done.err"
check 'and nothing else' [ "$(grep -c '^note: ' "$dir/done.err")" -eq 1 ]
check 'its log names the run, at its step' [ "$(sed -n 's/.*"steps_done":\([0-9]*\).*/\1/p' "$dir/done.jsonl")" -ge 24 ]
evaluates=("$binary" --model nano --from-scratch --threads 1 --resume --steps 0 --val-data "$dir/data.bin" --eval-steps 1)
"${evaluates[@]}" --seq-len 100 --out "$dir/whole" >"$dir/only.out" 2>&1 </dev/null
check 'without training, another length beside the data is no matter' ends_with 0 '^eval' \
    "${evaluates[@]}" --train-data "$dir/data.bin" --seq-len 50 --out "$dir/whole"
check 'without training, no word of steps' bash -c "grep -q '^eval' '$dir/only.out' && ! grep '^note: ' '$dir/only.out'"
mkdir "$dir/still" && cp -r "$dir/whole/step-00000004" "$dir/whole/step-00000012" "$dir/still"
resumed() { ends_with "$1" "$2" "${evaluates[@]}" --seq-len 100 --out "$dir/still"; }
flip "$dir/still/step-00000012/model.safetensors" 100000
check 'without training, parameters are checked, too' resumed 0 'skipping the damaged state .*step-00000012: the checksum of unit'
rm -r "$dir/still/step-00000004/optimizer"
check 'but moments are not needed' resumed 0 'from step 4'

# --skip-spikes: the sample of step 224 holds bytes that occur nowhere else. What the steps before it had is part of the state.
seq 1 4000 | tokens_of spiky
python3 -c "
data = bytearray(open('$dir/spiky.bin', 'rb').read())
for i in range(64): data[1024 + 2 * (64 * 3 + i)] = 128 + (7 * i * i + 3) % 128
open('$dir/spiky.bin', 'wb').write(data)"
spiky() { # steps ranks option...
    timeout 120 mpirun -np "$2" "$binary" --model nano --from-scratch --train-data "$dir/spiky.bin" --seq-len 64 --lr 1e-3 \
        --lr-schedule constant --threads 1 --steps "$1" "${@:3}" >"$dir/spiky.out" 2>&1 </dev/null
}
spikes() { sed -n 's/^{"step":\([0-9]*\),.*"spike":true.*/\1/p' "$dir/$1.jsonl" | tr '\n' ' '; }
spiky 223 1 --skip-spikes 6 --out "$dir/spiky" --keep 3
spiky 224 1 --skip-spikes 6 --out "$dir/spiky" --keep 3 --resume
check 'a spike is named' grep -q '^step *224/224 .* a spike: no update$' "$dir/spiky.out"
check 'and counted' grep -q '^spikes: 1 of 1 steps' "$dir/spiky.out"
check 'it changes no parameter and no moment' tensors_equal "$dir/spiky/step-00000223" "$dir/spiky/step-00000224"
spiky 230 1 --skip-spikes 6 --out "$dir/spiky" --keep 3 --resume
spiky 230 1 --skip-spikes 6 --out "$dir/spiky-whole" --log "$dir/spiky1.jsonl"
check 'resumed twice, the same model' tensors_equal "$dir/spiky/step-00000230" "$dir/spiky-whole/step-00000230"
check 'the log names the step' grep -q '224 ' <(spikes spiky1)
spiky 231 1 --out "$dir/spiky" --keep 3 --resume
check 'without the option a state does not keep what earlier steps had' bash -c "cd '$dir/spiky' &&
    grep -q '\"losses\":' step-00000230/training_state.json && ! grep '\"losses\":' step-00000231/training_state.json"
spiky 231 1 --skip-spikes 6 --out "$dir/spiky-whole" --resume --new-data --seed 7
check 'with new data not what those on other data had' grep -q '"losses":\[[0-9.]*\],' "$dir/spiky-whole/step-00000231/training_state.json"
spiky 230 2 --cp 2 --skip-spikes 6 --log "$dir/spiky2.jsonl"
check 'two ranks leave out the same steps' [ "$(spikes spiky1)" = "$(spikes spiky2)" ]
spiky 230 1 --log "$dir/spiky0.jsonl"
check 'without the option none' [ "$(grep -c '"loss"' "$dir/spiky0.jsonl")-$(spikes spiky0)" = '230-' ]
last_loss() { sed -n 's/^{"step":230,"loss":\([0-9.]*\),.*/\1/p' "$dir/$1.jsonl"; }
check 'and the loss afterwards is another' \
    [ -n "$(last_loss spiky0)" -a -n "$(last_loss spiky1)" -a "$(last_loss spiky0)" != "$(last_loss spiky1)" ]

# A run that ends early keeps what it has learnt: bad data, a loss that is not finite.
python3 -c "
data = bytearray(open('$dir/data.bin', 'rb').read())
data[1024 + 2 * 1234:1026 + 2 * 1234] = b'\xff\xff'
open('$dir/bad.bin', 'wb').write(data)"
early=(--model nano --from-scratch --seq-len 100 --threads 1 --batch-size 4 --steps 24)
check 'bad data: status 2' ends_with 2 'error: .*bad.bin.* 65535' \
    "$binary" "${early[@]}" --train-data "$dir/bad.bin" --out "$dir/bad"
last=$(grep -c '^step' "$dir/shown")
check "bad data after step $last: the state of that step" [ "$last" -gt 0 -a "$(cd "$dir/bad" && echo step-*)" = "step-0000000$last" ]
diverges=("$binary" "${early[@]}" --train-data "$dir/data.bin" --lr 100 --grad-clip 0 --weight-decay 100)
check 'divergence: status 2' ends_with 2 'error: step .*not updated (try a lower' "${diverges[@]}" --out "$dir/diverged"
last=$(($(grep -c '^step' "$dir/shown") - 1))
check "divergence: the state of the step before, $last" [ "$last" -gt 0 -a -d "$dir/diverged/$(printf 'step-%08d' $last)" ]
"${diverges[@]}" --out "$dir/only" --keep 1 --save-every $((last - 1)) >"$dir/out" 2>&1
check 'but not in the place of the only state' [ "$(cd "$dir/only" && echo step-*)" = "$(printf 'step-%08d' $((last - 1)))" ]
preload unnamed <<'C' # the first state does not get its name
#include <errno.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>
int rename(const char *from, const char *to) {
    static int calls;
    return calls++ == 0 ? (errno = EIO, -1) : (int)syscall(SYS_rename, from, to);
}
C
LD_PRELOAD="$dir/unnamed.so" "${diverges[@]}" --out "$dir/first" --keep 1 --save-every $((last - 1)) >"$dir/out" 2>&1
check 'where that was not saved, there is none' [ "$(cd "$dir/first" && echo step-*)" = "$(printf 'step-%08d' $last)" ]
LD_PRELOAD="$dir/unnamed.so" "${diverges[@]}" --out "$dir/second" --save-every $last >"$dir/out" 2>&1
check 'a state of that step that was not saved is written again' [ "$(cd "$dir/second" && echo step-*)" = "$(printf 'step-%08d' $last)" ]
check 'it can be resumed' ends_with 2 "from step $last, $((4 * last)) samples" "${diverges[@]}" --out "$dir/diverged" --resume
check 'and then fails in its first step, which says what to do' grep -q \
    "the state that it began with is the cause; without .*$(printf 'step-%08d' $last) the state before it is continued" "$dir/shown"
check 'a validation loss that is not finite after the last step: status 2' ends_with 2 '^error: a validation loss is not finite' \
    "$binary" "${early[@]:0:9}" --train-data "$dir/data.bin" --lr 100 --lr-schedule constant --grad-clip 0 \
    --weight-decay 100 --steps $last --val-data "$dir/data.bin" --eval-steps 1 --out "$dir/overflows" --export "$dir/overflows-export"
check 'the state is saved, nothing is exported' [ -d "$dir/overflows/$(printf 'step-%08d' $last)" -a ! -e "$dir/overflows-export" ]

# A signal during the last evaluation: the next run makes up for it, and for the export, an evaluation and a sample that were due.
: >"$dir/slow.out"
final=("$binary" "${early[@]:0:9}" --train-data "$dir/data.bin" --steps 2 --val-data "$dir/long.bin" --out "$dir/final" --resume
    --export "$dir/final-export")
"${final[@]}" --eval-steps 1000000 >"$dir/slow.out" 2>&1 </dev/null &
signal_when '^saved  *2/2'
check 'a signal during the last evaluation' [ "$status $(grep -c \
    '^eval  *2/2 | ended by a signal$\|^stopped by a signal after step 2;\|^exported' "$dir/slow.out")" = '0 2' ]
check 'the next run evaluates and exports' bash -c "${final[*]} --eval-steps 1 | grep -c '^eval  *2/2 .* loss\|^exported' | grep -qx 2"
check 'a run that is killed after its export succeeds when it is started again' \
    ends_with 0 '^exported .*/final-export: is there already' "${final[@]}" --eval-steps 1
check 'one of another number type is in the way' \
    ends_with 2 '^error: --export .*/final-export: already exists' "${final[@]}" --eval-steps 1 --export-dtype bf16
check 'one of another RoPE, too' \
    ends_with 2 '^error: --export .*/final-export: already exists' "${final[@]}" --eval-steps 1 --new-data --rope-theta 500000
cp -r "$dir/final-export" "$dir/others-export"
check 'the export of another run, younger than the state, is in the way' \
    ends_with 2 '^error: --export .*/others-export: already exists' \
    "${final[@]:0:${#final[@]}-1}" "$dir/others-export" --eval-steps 1
damaged=("$binary" "${early[@]:0:9}" --train-data "$dir/data.bin" --steps 2 --save-every 1 --out "$dir/flipped" --resume
    --export "$dir/flipped-export")
check 'a run with an export' "${damaged[@]}"
printf X | dd of="$dir/flipped/step-00000002/model.safetensors" bs=1 seek=100000 conv=notrunc status=none
check 'an export of a state that has become damaged is in the way' \
    ends_with 2 '^error: --export .*/flipped-export: already exists, and the newest state that can be read is of step 1;' "${damaged[@]}"
check 'nothing is trained then' bash -c "! grep -q '^step' '$dir/shown'"
mkdir "$dir/held.unfinished"
check 'an export that another run is writing, and may soon have written' ends_with 1 '^error: --export .*/held: another run is writing it' \
    flock "$dir/held.unfinished" "$binary" --model nano --from-scratch --steps 0 --threads 1 --export "$dir/held"
check 'stays' [ -d "$dir/held.unfinished" -a ! -e "$dir/held" ]
check 'and is made when that run has gone' "$binary" --model nano --from-scratch --steps 0 --threads 1 --export "$dir/held"
check 'with nothing left' [ ! -e "$dir/held.unfinished" -a -e "$dir/held/config.json" ]
exports=("$binary" --model nano --from-scratch --steps 0 --threads 1 --export)
: >"$dir/late.out"
"$binary" "${early[@]:0:9}" --train-data "$dir/data.bin" --steps 2000 --lr 1e-5 --export "$dir/late" >"$dir/late.out" 2>&1 </dev/null &
job=$!
until_shown '^step *1/' "$dir/late.out"
mkdir "$dir"/late "$dir"/late-2.unfinished
exec 9<"$dir/late-2.unfinished" && flock 9
wait $job
check 'a name that is taken while the run trains: status 2' [ $? -eq 2 ]
exec 9<&-
check 'the model is beside it' grep -q "^error: --export .*/late: already exists by now; the model is in .*/late-3$" "$dir/late.out"
check 'and whole' "$binary" --model "$dir/late-3" --dry-run
check 'with nothing left of it' [ ! -e "$dir/late-3.unfinished" -a -z "$(ls "$dir/late")" ]
preload synced <<'C' # notes what is synced, and renamed, in $SYNCED
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
static void note(const char *what, const char *path) {
    FILE *f = fopen(getenv("SYNCED"), "a");
    fprintf(f, "%s %s\n", what, path);
    fclose(f);
}
int fsync(int fd) {
    char link[64], path[4096] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof path - 1) > 0) note("sync", path);
    return (int)syscall(SYS_fsync, fd);
}
int rename(const char *from, const char *to) {
    note("rename", from);
    return (int)syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to);
}
C
check 'a run that notes what is synced' env SYNCED="$dir/synced.log" mpirun -np 2 -x LD_PRELOAD="$dir/synced.so" "$binary" --model nano \
    --from-scratch --train-data "$dir/data.bin" --seq-len 50 --steps 1 --threads 1 --cp 2 --out "$dir/synced" --export "$dir/synced_model"
check 'each file of a state and an export is on disk before their folder has its name, and then the name' python3 -c "
import os
lines = [line.split() for line in open('$dir/synced.log')]
for before, after in ('$dir/synced/unfinished-step-00000001', '$dir/synced/step-00000001'), \
        ('$dir/synced_model.unfinished', '$dir/synced_model'):
    named = lines.index(['rename', before])
    synced = [path for what, path in lines[:named] if what == 'sync']
    for folder, _, files in os.walk(after):
        folder = before + folder[len(after):]
        assert folder in synced, folder
        for file in set(files) - {'exported_to'}: # by each rank that writes it
            assert synced.count(folder + '/' + file) == (2 if file.endswith('.safetensors') else 1), (file, synced)
    assert ['sync', os.path.dirname(after)] in lines[named:], after"
preload unsynced <<'C' # $UNSYNCED cannot be synced, and nothing in it removed
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
int fsync(int fd) {
    char link[64], path[4096] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof path - 1) > 0 && strcmp(path, getenv("UNSYNCED")) == 0) return errno = EIO, -1;
    return (int)syscall(SYS_fsync, fd);
}
int remove(const char *path) {
    if (strncmp(path, getenv("UNSYNCED"), strlen(getenv("UNSYNCED"))) == 0) return errno = EPERM, -1;
    return unlink(path) == 0 ? 0 : rmdir(path);
}
C
mkdir -p "$dir"/parent "$dir"/others/left.unfinished
unsynced() { env UNSYNCED="$1" LD_PRELOAD="$dir/unsynced.so" "${@:2}"; }
check 'an export whose name is not sure to be on disk: status 1' \
    ends_with 1 '^error: --export .*/parent/model: .*/parent: cannot be written' unsynced "$dir/parent" "${exports[@]}" "$dir/parent/model"
check 'it has no name' [ ! -e "$dir/parent/model" ]
check 'and the next attempt succeeds' "${exports[@]}" "$dir/parent/model"
preload killed_beside <<'C' # the name is taken when the export begins, and the run killed while it writes the model beside it
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
int mkdir(const char *path, mode_t mode) {
    if (strstr(path, "beside-2.unfinished") != NULL) raise(SIGKILL);
    return (int)syscall(SYS_mkdir, path, mode);
}
C
beside=("$binary" "${early[@]:0:9}" --train-data "$dir/data.bin" --steps 1000 --lr 1e-5 --out "$dir/beside-out" --resume
    --export "$dir/beside")
: >"$dir/beside.out"
LD_PRELOAD="$dir/killed_beside.so" "${beside[@]}" >"$dir/beside.out" 2>&1 </dev/null &
job=$!
until_shown '^step *1/' "$dir/beside.out"
mkdir "$dir/beside"
wait $job 2>/dev/null
check 'a run that is killed while it writes its model beside a name that was taken' [ $? -eq 137 ]
check 'is not taken for one that has exported' ends_with 2 '^error: --export .*/beside: already exists' "${beside[@]}"
preload taken <<'C' # the name is taken when a whole export is about to get it: by a folder, or a file; killed: before it gets the next one
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
int rename(const char *from, const char *to) {
    char inside[4096];
    int folder = strcmp(getenv("RACED"), "file") != 0;
    if (strcmp(getenv("RACED"), "killed") == 0 && strcmp(strrchr(to, '/'), "/raced-2") == 0) raise(SIGKILL);
    if (strcmp(strrchr(to, '/'), "/raced") == 0) {
        if (folder) mkdir(to, 0777);
        snprintf(inside, sizeof inside, "%s%s", to, folder ? "/other" : "");
        close(open(inside, O_CREAT | O_WRONLY, 0666));
    }
    return (int)syscall(SYS_rename, from, to);
}
C
for kind in folder file; do
    rm -rf "$dir"/raced*
    raced=("$binary" "${early[@]:0:9}" --train-data "$dir/data.bin" --steps 1 --out "$dir/raced-out" --resume --export "$dir/raced")
    check "a name that a $kind takes while the model is written: it is beside it" \
        ends_with 2 '^error: --export .*/raced: already exists by now; the model is in .*/raced-2$' \
        env RACED=$kind LD_PRELOAD="$dir/taken.so" "${raced[@]}"
    check 'it is whole' "$binary" --model "$dir/raced-2" --dry-run
    check 'with nothing left of it' [ -z "$(ls -d "$dir"/raced*.unfinished 2>/dev/null)" ]
    check "and the $kind is not taken for it" ends_with 2 '^error: --export .*/raced: already exists' "${raced[@]}"
done
rm -rf "$dir"/raced*
RACED=killed LD_PRELOAD="$dir/taken.so" "${raced[@]}" >"$dir/out" 2>&1 </dev/null
check 'a run that is killed before its model has the other name' [ $? -eq 137 ]
check 'has not exported it, either' ends_with 2 '^error: --export .*/raced: already exists' "${raced[@]}"
check 'what a killed export left and cannot be removed: refused' ends_with 2 \
    '^error: --export .*/left: what a killed export has left in .*/left.unfinished cannot be removed' \
    unsynced "$dir/others" "${exports[@]}" "$dir/others/left"
touch "$dir/file"
check 'a file, with a slash' ends_with 2 '^error: --export .*/file/: already exists' "${exports[@]}" "$dir/file/"
for path in file/model file/folder/model; do
    check "a file for a folder above it, $path" ends_with 2 '^error: --export .*: its parent .*/file.* is not an existing folder' \
        "${exports[@]}" "$dir/$path"
done
mkdir "$dir/cached"
check 'a file of an export that is not sure to be on disk: status 1' \
    ends_with 1 '^error: --export .*/model.safetensors: cannot be written' \
    unsynced "$dir/cached/model.unfinished/model.safetensors" "${exports[@]}" "$dir/cached/model"
check 'and has no name' [ ! -e "$dir/cached/model" ]
preload log_signal <<'C' # a signal when the second file, the log, is locked
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>
int flock(int fd, int how) {
    static int calls;
    if (++calls == 2) raise(SIGUSR1);
    return (int)syscall(SYS_flock, fd, how);
}
C
check 'a signal before an export alone' ends_with 0 '^stopped by a signal; --export was not written: the same command does it$' \
    env LD_PRELOAD="$dir/log_signal.so" "${exports[@]}" "$dir/unwritten" --out "$dir/first" --resume \
        --log "$dir/unwritten.jsonl"
check 'which is not written' [ ! -e "$dir/unwritten" -a -s "$dir/unwritten.jsonl" ]
check 'folders in an --out that is yet to be made, written otherwise' "$binary" "${early[@]:0:9}" --train-data "$dir/data.bin" --steps 1 \
    --out "$dir/new/out/" --export "$dir/./new/out/model" --log "$dir/new//out/log"
check 'are there' [ -s "$dir/new/out/log" -a -s "$dir/new/out/model/config.json" -a -d "$dir/new/out/step-00000001" ]
mv "$dir/final-export" "$dir/moved"
check 'an export that was moved away is made again' ends_with 0 '^exported .*/final-export (' "${final[@]}" --eval-steps 1
check 'the same' cmp "$dir"/{moved,final-export}/model.safetensors
check 'an evaluation and a sample that were due at the state' bash -c "
    '$binary' ${early[*]:0:9} --train-data '$dir/data.bin' --steps 4 --val-data '$dir/long.bin' --out '$dir/final' --resume \
        --eval-every 2 --eval-steps 1 --sample-every 2 --sample-tokens 2 | grep -o '^eval  *[24]/4\|^sample  *[24]/4 | tokens' | xargs |
        grep -qx 'eval 2/4 sample 2/4 | tokens eval 4/4 sample 4/4 | tokens'"

for option in --log --trace --export; do
    refuse "$option in a state" "^error: $option .*/step-00000012/file.*: lies in a state of --out" \
        --out "$dir/whole" --resume $option "$dir/whole/step-00000012/file"
done
refuse 'a state in place of its folder' '^error: --out .*/step-00000012: is a state; give the folder that it lies in' \
    --out "$dir/whole/step-00000012" --resume
check 'in which nothing is left' [ ! -e "$dir/whole/step-00000012/lock" ]
# Two runs on one folder.
common[length]=100000
timeout 120 "$binary" "${common[@]}" --out "$dir/two" >"$dir/two.out" 2>&1 &
job=$!
until_shown '^step' "$dir/two.out"
check 'two runs on one folder: status 1, for the other may end' ends_with 1 '^error: --out .*another run writes' \
    timeout 60 mpirun -np 2 "$binary" "${common[@]}" --out "$dir/two" --resume
timeout 60 "$binary" "${common[@]}" --out "$dir/two" >"$dir/late.out" 2>&1 &
late=$!
sleep 1 # it waits for the lock
kill -USR1 "$(pgrep -P $job)"
wait $job
check 'the first goes on, and stops when asked' [ $? -eq 0 ]
wait $late
check 'one that waited for its end sees the states that it left' \
    [ "$? $(grep -c '^error: --out .*: holds states of an earlier run' "$dir/late.out")" = '2 1' ]
common[length]=24

# A file system without locks: the run goes on without.
preload lockless <<'C'
#include <errno.h>
int flock(int fd, int how) {
    (void)fd, (void)how;
    errno = ENOSYS;
    return -1;
}
C
check 'without locks' env LD_PRELOAD="$dir/lockless.so" "$binary" "${common[@]}" --out "$dir/lockless"
mkdir "$dir/unlocked.unfinished" # as an export that was killed leaves it
check 'an export, too' env LD_PRELOAD="$dir/lockless.so" "${exports[@]}" "$dir/unlocked"

# A disk with room for the states that a run adds, and one byte less; nano has 125248 parameters.
preload small <<'C'
#include <stdlib.h>
#include <sys/statvfs.h>
int statvfs(const char *path, struct statvfs *disk) {
    (void)path;
    disk->f_frsize = 1;
    disk->f_bavail = (fsblkcnt_t)atoll(getenv("SMALL_DISK"));
    return 0;
}
C
state=$((12 * 125248))
small() { # bytes that are free, option...: the number of notes of a run that ends well
    SMALL_DISK=$1 LD_PRELOAD="$dir/small.so" "$binary" "${common[@]}" "${@:2}" --out "$dir/small" --resume >"$dir/noted" 2>&1 </dev/null &&
        grep -c '^note: --out .* GB more .* GB are free$' "$dir/noted"
}
check 'a state at the end: a byte too little' [ "$(small $((state - 1)))" = 1 ]
check 'in GB' grep -q 'will take 0.0015 GB more (--keep 2 and one that is written), and 0.0015 GB are free$' "$dir/noted"
rm -r "$dir/small"
check 'enough for it' [ "$(small $state)" = 0 ]
rm -r "$dir/small"
check 'with moments in bf16: a byte too little' [ "$(small $((8 * 125248 - 1)) --moments bf16)" = 1 ]
rm -r "$dir/small"
check 'enough for it' [ "$(small $((8 * 125248)) --moments bf16)" = 0 ]
rm -r "$dir/small"
common[length]=6
check 'the two of a run of two: a byte too little' [ "$(small $((2 * state - 1)) --save-every 3 --keep 9)" = 1 ]
common[length]=24
rm -r "$dir/small"
check 'nine and one that is written: a byte too little' [ "$(small $((10 * state - 1)) --save-every 1 --keep 9)" = 1 ]
rm -r "$dir/small"
check 'enough for them' [ "$(small $((10 * state)) --save-every 1 --keep 9)" = 0 ]
rm -r "$dir/small"
check 'three, of which one stays, two more that do, and one that is written: enough' \
    [ "$(small $((6 * state)) --save-every 1 --keep 3 --keep-every 7)" = 0 ]
rm -r "$dir/small"
check 'of every second: two, two that stay and one that is written: a byte too little' \
    [ "$(small $((5 * state - 1)) --save-every 2 --keep 2 --keep-every 8)" = 1 ]
rm -r "$dir/small"
check 'four and two that stay: a byte too little' [ "$(small $((6 * state - 1)) --save-every 1 --keep 3 --keep-every 10)" = 1 ]
check 'every tenth stays, and the newest three' \
    [ "$(ls "$dir/small" | xargs)" = 'lock step-00000010 step-00000020 step-00000022 step-00000023 step-00000024' ]
export_notes() { # bytes that are free, option...: the number of notes of a run that ends well
    rm -rf "$dir/exported"
    SMALL_DISK=$1 LD_PRELOAD="$dir/small.so" "$binary" "${@:2}" --threads 1 --export "$dir/exported" >"$dir/noted" 2>&1 </dev/null &&
        grep -c '^note: --export .*/exported: will take .* GB, and .* GB are free' "$dir/noted"
}
one_step=(--model nano --from-scratch --train-data "$dir/data.bin" --seq-len 100 --steps 1)
check 'an export: a byte too little' [ "$(export_notes $((4 * 125248 - 1)) "${one_step[@]}")" = 1 ]
check 'in GB' grep -q 'will take 0.000501 GB, and 0.000501 GB are free' "$dir/noted"
check 'enough for it' [ "$(export_notes $((4 * 125248)) "${one_step[@]}")" = 0 ]
rm -r "$dir/small"
check 'beside the state of the run: a byte too little' \
    [ "$(export_notes $((4 * 125248 + state - 1)) "${one_step[@]}" --out "$dir/small")" = 1 ]
rm -r "$dir/small"
check 'enough for both' [ "$(export_notes $((4 * 125248 + state)) "${one_step[@]}" --out "$dir/small")" = 0 ]
check 'in bf16, as its folder is: a byte too little' [ "$(export_notes $((2 * 21664 - 1)) --model test/golden/folder_bf16 --steps 0)" = 1 ]
check 'enough for it' [ "$(export_notes $((2 * 21664)) --model test/golden/folder_bf16 --steps 0)" = 0 ]
check 'in f16, unlike its folder: a byte too little' \
    [ "$(export_notes $((2 * 21664 - 1)) --model test/golden/folder_f32 --steps 0 --export-dtype f16)" = 1 ]
check 'enough for it' [ "$(export_notes $((2 * 21664)) --model test/golden/folder_f32 --steps 0 --export-dtype f16)" = 0 ]
rm -r "$dir/small"
check 'enough for six' [ "$(small $((6 * state)) --save-every 1 --keep 3 --keep-every 10)" = 0 ]
common[length]=30
check 'where three and those that stay are, enough for the one that is written' \
    [ "$(small $state --save-every 1 --keep 3 --keep-every 10)" = 0 ]
rm -r "$dir"/small/step-000000{28,29}
common[length]=36
check 'where only such that stay are, four: a byte too little' [ "$(small $((4 * state - 1)) --save-every 1 --keep 3 --keep-every 10)" = 1 ]
common[length]=24
rm -r "$dir/small"
small 0 --save-every 1 --keep 9 >"$dir/out"
common[length]=30
check 'where nine are, enough for the one that is written' [ "$(small $state --save-every 1 --keep 9)" = 0 ]
# A full disk (here: a limit on the size of files, above what Open MPI itself needs) costs only the save.
limited='ulimit -f 8192; exec "$@"' # KB; a state of tiny has 12 MB of parameters
common[1]=tiny common[length]=5 common[10]=0
timeout 120 mpirun -np 2 bash -c "$limited" - "$binary" "${common[@]}" --cp 2 --save-every 2 --out "$dir/disk" \
    --export "$dir/disk_export" --export-dtype bf16 >"$dir/out" 2>"$dir/err" </dev/null
check 'full disk: status 2, for the last state is not saved, and another attempt would find the export in its way' [ $? -eq 2 ]
check 'full disk: the model is exported' "$binary" --model "$dir/disk_export" --dry-run
check 'full disk: the run goes to its end' grep -q '^step *5/5' "$dir/out"
check 'full disk: and says so at its end' grep -q '^error: the last state was not saved' "$dir/err"
check 'full disk: each save that failed is named' \
    [ "$(grep -c '^warning: the state of step .* was not saved: .*cannot be written' "$dir/err")" -eq 3 ]
check 'full disk: nothing is left' [ "$(ls "$dir/disk")" = lock ]
# Where --keep has become less, states beyond it are removed before the next one is written: it may need their room.
common[length]=4
train fewer 1 --save-every 1 --keep 3 --out "$dir/fewer"
check 'three states are kept' [ "$(ls -d "$dir"/fewer/step-* | wc -l)" -eq 3 ]
common[length]=5
timeout 120 mpirun -np 2 bash -c "$limited" - "$binary" "${common[@]}" --cp 2 --batch-size 2 --keep 1 --resume --out "$dir/fewer" \
    >"$dir/out" 2>"$dir/err" </dev/null
check 'then one, though a save has failed' [ "$? $(ls "$dir/fewer" | xargs)" = '1 lock step-00000004' ]
common[1]=nano common[length]=24 common[10]=5

# A file that cannot be read now: a state is not damaged by that, and a run may be tried again. EIO stands for a broken disk.
preload unread <<'C'
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#define NEXT(call, arguments, result) ((result(*) arguments)dlsym(RTLD_NEXT, #call))
ssize_t pread(int fd, void *to, size_t bytes, off_t at) {
    static int calls;
    size_t least = (size_t)atoll(getenv("UNREAD_FROM")), beyond = (size_t)atoll(getenv("UNREAD_TO"));
    if (bytes >= least && bytes < beyond && ++calls == atoi(getenv("UNREAD_CALL"))) {
        errno = atoi(getenv("UNREAD_NUMBER"));
        return -1;
    }
    return NEXT(pread, (int, void *, size_t, off_t), ssize_t)(fd, to, bytes, at);
}
static int unknown(const char *variable, const char *path) { // whether the path ends in what the variable says
    const char *end = getenv(variable);
    if (strlen(path) < strlen(end) || strcmp(path + strlen(path) - strlen(end), end) != 0) return 0;
    errno = atoi(getenv("UNREAD_NUMBER"));
    return 1;
}
DIR *opendir(const char *path) { return unknown("UNREAD_FOLDER", path) ? NULL : NEXT(opendir, (const char *), DIR *)(path); }
int stat(const char *path, struct stat *entry) {
    return unknown("UNREAD_PATH", path) ? -1 : NEXT(stat, (const char *, struct stat *), int)(path, entry);
}
int lstat(const char *path, struct stat *entry) {
    if (getenv("UNREAD_MARK") && strstr(path, getenv("UNREAD_MARK"))) return errno = atoi(getenv("UNREAD_NUMBER")), -1;
    if (unknown(getenv("UNREAD_LSTAT") ? "UNREAD_LSTAT" : "UNREAD_PATH", path)) return -1;
    return NEXT(lstat, (const char *, struct stat *), int)(path, entry);
}
int fstat(int fd, struct stat *entry) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = '\0';
    return unknown("UNREAD_FSTAT", path) ? -1 : NEXT(fstat, (int, struct stat *), int)(fd, entry);
}
FILE *fopen(const char *path, const char *mode) { // /proc/self/mem: a file whose first byte cannot be read
    if (getenv("UNREAD_END") && strcmp(mode, "r") == 0 && unknown("UNREAD_END", path)) return NULL;
    if (getenv("UNREAD_STREAM") && unknown("UNREAD_STREAM", path)) path = "/proc/self/mem";
    return NEXT(fopen, (const char *, const char *), FILE *)(path, mode);
}
int open(const char *path, int flags, ...) {
    return unknown("UNREAD_PATH", path) ? -1 : NEXT(open, (const char *, int, ...), int)(path, flags, 0666);
}
C
unread() { # from bytes, to bytes, call, errno, command...
    env UNREAD_FROM=$1 UNREAD_TO=$2 UNREAD_CALL=$3 UNREAD_NUMBER=$4 UNREAD_PATH=/- UNREAD_FSTAT=/- UNREAD_FOLDER=/- \
        LD_PRELOAD="$dir/unread.so" "${@:5}"
}
unknown() { # end of a file's path, end of a folder's that is listed, command...
    env UNREAD_FROM=1 UNREAD_TO=0 UNREAD_PATH=$1 UNREAD_FSTAT=${size_of:-/-} UNREAD_FOLDER=$2 UNREAD_NUMBER=$stale \
        LD_PRELOAD="$dir/unread.so" "${@:3}"
}
stale=116 io=5
resumes=("$binary" "${common[@]}" --batch-size 4 --out "$dir/unread" --resume)
reads=("$binary" --model "$dir/source" --steps 0 --threads 1)
cp -r "$dir/whole" "$dir/unread"
check 'a state that cannot be read now: status 1' ends_with 1 '^error: --resume: .*/unread/step-000000[0-9]*: .*Stale file handle' \
    unread 16384 99999999 2 $stale "${resumes[@]}"
check 'nor one that may not be read' ends_with 2 '^error: --resume: .*/unread/step-000000[0-9]*: .*Permission denied' \
    unread 16384 99999999 2 13 "${resumes[@]}"
newest=$(cd "$dir/whole" && ls -d step-* | tail -1)
for path in config.json training_state.json model.safetensors optimizer/optimizer.safetensors; do
    check "not even whether $path is there is known: status 1" ends_with 1 '^error: --resume: .*/unread/step-.*: .*Stale file handle' \
        unknown $newest/$path /- "${resumes[@]}"
    size_of=$newest/$path check "nor what $path is: status 1" ends_with 1 '^error: --resume: .*/unread/step-.*: .*Stale file handle' \
        unknown /- /- "${resumes[@]}"
done
check 'nor whether a state is a folder: status 1' ends_with 1 "^error: .*/unread/$newest: cannot be read: Stale file handle" \
    unknown "/unread/$newest" /- "${resumes[@]}"
check 'nor which states are: status 1' ends_with 1 '^error: --out .*/unread: cannot be read: Stale file handle' \
    unknown /- /unread "${resumes[@]}"
broken='.*Input/output error; if its disk is broken there, move this state away: an older one is then used$'
check 'nor where a part of it cannot be read for a while: status 1' ends_with 1 "^error: --resume: .*/unread/$newest: $broken" \
    unread 16384 99999999 2 $io "${resumes[@]}"
for path in config.json optimizer/optimizer.safetensors; do
    stale=$io check "nor where $path cannot be opened for a while: status 1" \
        ends_with 1 '^error: --resume: .*/unread/step-.*: .*Input/output error' unknown $newest/$path /- "${resumes[@]}"
done
check 'no state is set aside' \
    [ "$(cd "$dir/unread" && echo step-*)" = "$(cd "$dir/whole" && echo step-*)" -a -z "$(ls -d "$dir"/unread/damaged-* 2>/dev/null)" ]
cp -r "$dir/whole/$newest" "$dir/source" && touch "$dir/source/tokenizer.json"
check 'nor whether there is a model: status 1' ends_with 1 '^error: model folder ".*/source" cannot be opened: Stale file handle' \
    unknown /source /- "${reads[@]}"
UNREAD_LSTAT=/model.safetensors check 'nor whether it is in one file: status 1, not that this one does not exist' \
    ends_with 1 '^error: .*folder_f32: model.safetensors: cannot be opened: Stale file handle' \
    unknown /- /- "$binary" --model test/golden/folder_f32 --steps 0 --threads 1
check 'a tokenizer of which that is not known is not left out of an export' \
    ends_with 1 '^error: .*/source/tokenizer.json: cannot be opened: Stale file handle' \
    unknown /tokenizer.json /- "${reads[@]}" --export "$dir/source-export"
stale=4 check 'what a signal interrupts may be tried again: status 1' \
    ends_with 1 '^error: .*/source/tokenizer.json: cannot be opened: Interrupted system call' \
    unknown /tokenizer.json /- "${reads[@]}" --export "$dir/source-export"
UNREAD_MARK=seen-by-all-ranks- check 'a folder that a rank cannot look into now is not one that it does not share: status 1' \
    ends_with 1 '^error: --out .*/unread: a file that rank 0 wrote there cannot be looked up: Stale file handle' \
    unknown /- /- "${resumes[@]}"
mkdir "$dir/only_one" && cp -r "$dir/whole/step-00000004" "$dir/only_one"
check 'a broken disk, and no other state: status 1' ends_with 1 '^error: --resume: .*/step-00000004: .*Input/output error' \
    unread 16384 99999999 2 $io "$binary" "${common[@]}" --batch-size 4 --out "$dir/only_one" --resume
echo '{"run":{}}' >"$dir/unread.jsonl"
check 'a log of which it is not known whether it is there: status 1' \
    ends_with 1 '^error: --log .*/unread.jsonl: cannot be written: Stale file handle' \
    unknown /unread.jsonl /- "$binary" "${common[@]}" --log "$dir/unread.jsonl"
UNREAD_STREAM=/unread.jsonl check 'or what it is' ends_with 1 '^error: --log .*/unread.jsonl: cannot be read: Input/output error' \
    unknown /- /- "$binary" "${common[@]}" --log "$dir/unread.jsonl"
check 'is not removed' grep -q '{"run":{}}' "$dir/unread.jsonl"
printf '{"step":1,"lo' >>"$dir/unread.jsonl" && cp "$dir/unread.jsonl" "$dir/cut.jsonl"
stale=$io UNREAD_END=/unread.jsonl check 'a log whose last line may be cut: status 1' \
    ends_with 1 '^error: --log .*/unread.jsonl: cannot be read: Input/output error' unknown /- /- \
    "$binary" --model nano --from-scratch --steps 0 --seq-len 100 --threads 1 --val-data "$dir/data.bin" --log "$dir/unread.jsonl"
check 'and nothing is joined to it' cmp "$dir/cut.jsonl" "$dir/unread.jsonl"
for path in "$(basename "$dir")" unread-export; do
    check "an export of which $path cannot be looked up: status 1" \
        ends_with 1 '^error: --export .*/unread-export: .*cannot be looked up: Stale file handle' \
        unknown "/$path" /- "${reads[@]}" --export "$dir/unread-export"
done
check 'tokens that cannot be read: status 1' ends_with 1 '^error: .*data.bin: cannot be read at byte .*Input/output error' \
    unread 200 203 9 $io "$binary" "${common[@]}" --out "$dir/unread_data"
check 'what was learnt is saved, and goes on' \
    bash -c "ls -d '$dir'/unread_data/step-* && '$binary' ${common[*]} --out '$dir/unread_data' --resume"

# A disk so slow on one rank that the other one waits longer than any transfer may take, and says so.
preload slow <<'C'
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void once(int *slept) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (rank != NULL && strcmp(rank, getenv("SLOW_RANK")) == 0 && !(*slept)++) sleep(6);
}
int fsync(int fd) {
    static int slept;
    once(&slept);
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
}
ssize_t pread(int fd, void *to, size_t bytes, off_t at) {
    static int slept[3];
    if (bytes == 1024) once(&slept[0]);     // the header of a token file
    if (bytes == 50) once(&slept[1]);       // the tokens of a step, a quarter of a sequence
    if (bytes >= 1 << 14) once(&slept[2]);  // a state
    return ((ssize_t (*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread"))(fd, to, bytes, at);
}
C
slow() { # rank option...: the output goes to $dir/out
    SLOW_RANK=$1 TRAIN_LLAMA_TIMEOUT=4 timeout 120 mpirun -np 2 -x LD_PRELOAD="$dir/slow.so" "$binary" "${@:2}" --cp 2 --out "$dir/slow" \
        >"$dir/out" 2>&1 </dev/null
}
named() { grep -q "^note: files are read or written: waiting for 8 bytes from rank $1 (" "$dir/out"; } # rank
check 'slow disk: data are read, and the last state is written' slow 1 "${common[@]}"
check 'slow disk: rank 1 is named' named 1
check 'slow disk: a state is read, and an export written' \
    slow 0 --model nano --from-scratch --threads 1 --steps 0 --resume --export "$dir/slow_export"
check 'slow disk: rank 0 is named' named 0
check 'slow disk: it was slow both times' \
    [ "$(grep -E '^(read|exported) ' "$dir/out" | grep -cE '[ (]([6-9]|1.)\.[0-9]+ s\)?$')" -eq 2 ]

# Removing states that are no longer kept takes longer than a transfer may: the other rank waits.
preload remove <<'C'
#include <dlfcn.h>
#include <unistd.h>
int remove(const char *path) {
    usleep(400000);
    return ((int (*)(const char *))dlsym(RTLD_NEXT, "remove"))(path);
}
C
mkdir "$dir/many" && cp -r "$dir"/whole/step-000000{04,08,12} "$dir/many"
common[length]=13
check 'removing old states is slow' env TRAIN_LLAMA_TIMEOUT=2 timeout 120 mpirun -np 2 -x LD_PRELOAD="$dir/remove.so" \
    "$binary" "${common[@]}" "${grid[@]:1}" --keep 1 --resume --out "$dir/many"
check 'and they are removed' [ "$(ls "$dir/many" | xargs)" = 'lock step-00000013' ]
# A signal that comes while libraries start is heeded, if there is --out.
preload early $(mpicc --showme:compile) <<'C'
#include <mpi.h>
#include <signal.h>
int MPI_Init_thread(int *argc, char ***argv, int wanted, int *given) {
    raise(SIGUSR1);
    return PMPI_Init_thread(argc, argv, wanted, given);
}
C
: >"$dir/empty.bin"
check 'an early signal: stopped before training, and before token files are opened' ends_with 0 '^stopped by a signal before training' \
    env LD_PRELOAD="$dir/early.so" "$binary" "${common[@]}" --val-data "$dir/empty.bin" --out "$dir/early" --resume
LD_PRELOAD="$dir/early.so" "$binary" "${common[@]}" >"$dir/out" 2>&1
check 'without --out it ends the run' [ $? -eq 138 ]
# Numbers of RoPE that take 17 digits are read back as they were.
check 'a state with such a number' "$binary" "${common[@]}" --rope-theta 500000.00000000006 --out "$dir/digits"
common[length]=14
check 'is resumed' ends_with 0 '^step *14/14' "$binary" "${common[@]}" --rope-theta 500000.00000000006 --out "$dir/digits" --resume
# A folder with new data alone starts a schedule again.
check 'no new data: no new schedule' ends_with 0 '^note: --lr-restart changes nothing here' \
    "$binary" "${common[@]/#14/15}" --rope-theta 1e6 --out "$dir/digits" --resume --new-data --lr-restart
common[length]=24

# kill -9 of a random rank at random moments (by default 50), most of them during a save. The run is too long to end by itself.
RANDOM=${TEST_SEED:-17}
kills=${KILLS:-50} ended=0
common[length]=100000 common+=(--lr-schedule constant) # which does not depend on the number of steps
for _ in $(seq "$kills"); do
    : >"$dir/killed.out" # otherwise the loop below sees the steps of the job before, and there is no rank yet to kill
    mpirun -np 2 "$binary" "${common[@]}" "${grid[@]:1}" --log "$dir/killed.jsonl" --out "$dir/killed" --save-every 1 --resume \
        >"$dir/killed.out" 2>&1 </dev/null &
    job=$!
    until_shown '^step' "$dir/killed.out" || kill $job
    sleep "0.0$((RANDOM % 90 + 10))"
    mapfile -t ranks < <(pgrep -P $job)
    [ ${#ranks[@]} -eq 2 ] && kill -9 "${ranks[$((RANDOM % 2))]}" 2>/dev/null
    wait $job && break # it ended normally: the kill missed
    pgrep -P $job >/dev/null && break
    grep -q 'signal 9 (Killed)' "$dir/killed.out" || break
    ended=$((ended + 1))
done
check "$kills killed ranks end the job on all ranks, with the reason (${ended} did)" [ $ended -eq "$kills" ]
last=$(cd "$dir/killed" && ls -d step-* | tail -1)
common[length]=$((10#${last#step-} + 5)) # the warm-up fits
train killed "${grid[@]}" --out "$dir/killed" --resume
check 'after the kills: the last state loads, status 0' [ $? -eq 0 ]
check 'and nothing was damaged' \
    bash -c "! grep -q damaged '$dir/killed.err' '$dir/killed.out' && ! ls -d '$dir'/killed/damaged-*"
train unkilled "${grid[@]}" --out "$dir/unkilled"
check 'the curve is the one of a run that was never killed' compare "$dir/unkilled.jsonl" "$dir/killed.jsonl" 0 1 ${common[length]}
last=step-$(printf %08d ${common[length]})
check 'and the state too' tensors_equal "$dir/unkilled/$last" "$dir/killed/$last"
check 'nothing half-written is left' complete "$dir/killed"

closing_line
