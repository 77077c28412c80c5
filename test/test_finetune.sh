#!/usr/bin/env bash
# docs/finetune.md, command by command as it stands there, with other values in its first block: a tiny folder, 2 ranks, the CPU device. A
# rank is killed during the training. Without the package tokenizers, characters become tokens directly, as the tokenizer made here would
# have it; without transformers, the last block is not run. (F48, F50, F56)
source "$(dirname "$0")/shell.sh"
mkdir "$dir/text" "$dir/checkout"
ln -s "$PWD"/* "$dir/checkout" # the document's make sets ./train_llama: there, and not the user's
rm -f "$dir/checkout/train_llama" && cd "$dir/checkout" || exit 1
cp -r test/golden/folder_f32 "$dir/model" # 96 tokens: characters below 96
for part in train val; do
    seq 1 2000 | awk -v part=$part '{print (part == "val" ? "LINE " : "THE LINE ") $1 % 97 " OF " $1 % 13}' >"$dir/text/$part.txt"
done
python3 - "$dir/model/tokenizer.json" <<'PY'
import json, sys
vocabulary = {chr(c) if c > 32 else chr(256 + c): c for c in range(96)} # as the byte-level alphabet writes them: a blank is U+0120
level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=False, use_regex=False)
model = dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=False,
             byte_fallback=False, vocab=vocabulary, merges=[])
json.dump(dict(version="1.0", truncation=None, padding=None, added_tokens=[], normalizer=None, pre_tokenizer=level, post_processor=None,
               decoder=level, model=model), open(sys.argv[1], "w"))
PY
has() { command python3 -c "import $1" 2>"$dir/why"; }

# The blocks of the document are runs of indented lines: block N goes to $dir/block-N, without the indentation.
awk -v at="$dir/block-" '/^    / {if (!inside) n++; inside = 1; print substr($0, 5) >(at n)} !/^    / {inside = 0}' docs/finetune.md
blocks=$(ls "$dir"/block-* | wc -l)
check 'the document has 9 blocks' [ "$blocks" -eq 9 ]

# The first block with small values: every name of the document, and no other.
cat >"$dir/names" <<NAMES
MODEL=$dir/model
TRAIN_TEXT='$dir/text/train*.txt'
VAL_TEXT='$dir/text/val*.txt'
RUN=$dir/run
DEVICE=cpu CLUSTER=cpu RANKS=2
SEQ_LEN=512 GLOBAL_BATCH=4 STEPS=150 SAVE_EVERY=20
ROPE='--rope-theta 2e6'
DOCUMENTS='--document-end 10'
GRID='--dp 1 --hp 1 --cp 2 --zero-optim 2'
NAMES
names() { grep -oE '\b[A-Z_]+=' "$1" | sort; }
check 'the names are those of the document' [ "$(names "$dir/names")" = "$(names "$dir/block-1")" ]

# The commands run in this shell, so these functions take the place of programs that the machine may lack, and make a run lose a rank.
trainings=0
python3() {
    if [ "$1" = dev/tokenize_text.py ] && ! has tokenizers; then
        build/cpu/text_to_tokens "$5_000001.bin" "${@:6}"
    else
        command python3 "$@"
    fi
}
mpirun() { # the first training loses a rank
    case $* in *--out*) trainings=$((trainings + 1)) ;; *) command mpirun "$@"; return ;; esac
    if [ $trainings -gt 1 ]; then command mpirun "$@"; return; fi
    command mpirun "$@" >"$dir/killed" 2>&1 </dev/null &
    local job=$!
    while kill -0 $job 2>/dev/null && ! ls -d "$RUN"/states/step-* >/dev/null 2>&1; do sleep 0.02; done
    kill -9 "$(pgrep -P $job | head -1)"
    wait $job
}
sleep() { command sleep 0.05; }
source "$dir/names"
ended_well() { [ $status -eq 0 ] || { cat "$dir/out" && return 1; } }
for number in $(seq 2 8); do
    if [ "$number" -eq 6 ]; then # in this shell itself, for the counter of trainings
        source "$dir/block-6" >"$dir/why" 2>&1
        check 'block 6: the training ends well' [ $? -eq 0 -a -d "$dir/run/model" ]
    else
        (set -e && source "$dir/block-$number") >"$dir/out" 2>&1 # not under an if, where set -e has no effect
        status=$?
        check "block $number: $(head -1 "$dir/block-$number" | cut -c1-60)" ended_well
    fi
done
check 'the training was started twice' [ $trainings -eq 2 ]
check 'because a rank was killed' grep -q 'signal 9' "$dir/killed"
check 'the text became tokens, characters' \
    cmp <(tail -c +1025 "$dir/run/val_000001.bin" | od -An -v -tu2 -w2 | awk '{printf "%c", $1}') "$dir/text/val.txt"
check 'losses and folder' command python3 - "$dir" <<'PY'
import json, sys
run = sys.argv[1] + "/run/"
rows = {name: [json.loads(line) for line in open(run + name + ".jsonl")] for name in ("before", "log", "after")}
val = {name: [r["val_loss"] for r in row if "val_loss" in r][-1] for name, row in rows.items()}
steps = [r["step"] for r in rows["log"] if "loss" in r]
assert val["after"] < val["before"] - 0.2, val
assert val["after"] == val["log"], val # the same float parameters on the same grid
assert steps[-1] == 150 and set(steps) == set(range(1, 151)) and steps.count(1) == 1, (len(steps), "the second run went on from a state")
c = json.load(open(run + "model/config.json"))
theta = c.get("rope_theta") or c["rope_parameters"]["rope_theta"]
assert c["max_position_embeddings"] >= 512 and theta == 2e6 and json.load(open(run + "model/tokenizer.json"))["model"]["type"] == "BPE", c
PY
# The commands of docs/troubleshooting.md about a log.
sed -n 's/^      \(.*python3 -c .*\)/\1/p' docs/troubleshooting.md | sed "s|'LOG'|'$dir/run/log.jsonl'|" >"$dir/about_logs"
slow() {
    command python3 -c "
import ast, sys
ranks = ast.literal_eval(sys.argv[1])
assert {r for r, n in ranks} <= {0, 1} and sum(n for r, n in ranks) >= 150, ranks" "$(sed -n 1p "$dir/about_logs" | bash)"
}
best() {
    command python3 -c "
import json, sys
rows = {e['step']: e['val_loss'] for e in map(json.loads, open(sys.argv[2])) if 'val_loss' in e}
assert eval(sys.argv[1]) == min((loss, step) for step, loss in rows.items()) and len(rows) >= 4, (sys.argv[1], rows)" \
        "$(sed -n 2p "$dir/about_logs" | bash)" "$dir/run/log.jsonl"
}
check 'which rank is slow' slow
check 'which state is best' best
if has transformers; then
    check 'block 9: transformers' source "$dir/block-9"
else
    skip 'block 9: the package transformers is not here'
fi
has tokenizers || skip 'text becomes tokens by the tokenizer of the model: the package tokenizers is not here'
closing_line
