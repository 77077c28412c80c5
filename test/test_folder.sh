#!/usr/bin/env bash
# Hugging Face folders: the first loss on folders that transformers wrote (test/golden, dev/make_golden_folder.py) is transformers' loss, on
# five grids; a folder read and exported again is bit-equal tensor by tensor; what is wrong with a folder is said in one line. (F51, F56)
source "$(dirname "$0")/shell.sh"
golden=test/golden
data=(--train-data $golden/folder_tokens.bin --seq-len 64 --threads 1)

cat >"$dir/tools.py" <<'PY'
import json, os, struct, sys
def tensors(folder):
    """name -> (dtype, shape, bytes), from one file or the index; every file in the folder must be named by the index."""
    index = os.path.join(folder, "model.safetensors.index.json")
    names = sorted(set(json.load(open(index))["weight_map"].values())) if os.path.exists(index) else ["model.safetensors"]
    found = {}
    for name in names:
        blob = open(os.path.join(folder, name), "rb").read()
        n = struct.unpack("<Q", blob[:8])[0]
        header = json.loads(blob[8:8 + n])
        assert n % 8 == 0 and header.pop("__metadata__")["format"] == "pt"
        for key, t in header.items():
            assert key not in found
            found[key] = (t["dtype"], t["shape"], blob[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]])
    return found
def write(folder, found):
    header, data = {}, b""
    for key, (dtype, shape, blob) in found.items():
        header[key] = dict(dtype=dtype, shape=shape, data_offsets=[len(data), len(data) + len(blob)])
        data += blob
    text = json.dumps(header).encode()
    open(os.path.join(folder, "model.safetensors"), "wb").write(struct.pack("<Q", len(text)) + text + data)
def floats(dtype, blob):
    if dtype == "F32": return blob
    if dtype == "BF16": return b"".join(b"\0\0" + blob[i:i + 2] for i in range(0, len(blob), 2))
    return struct.pack(f"<{len(blob) // 2}f", *struct.unpack(f"<{len(blob) // 2}e", blob))
if sys.argv[1] == "equal":
    a, b = tensors(sys.argv[2]), tensors(sys.argv[3])
    assert a == b, [k for k in set(a) | set(b) if a.get(k) != b.get(k)]
if sys.argv[1] == "widened":
    a, b = tensors(sys.argv[2]), tensors(sys.argv[3])
    assert a.keys() == b.keys()
    for k in a:
        assert b[k] == ("F32", a[k][1], floats(a[k][0], a[k][2])), k
# transformers' losses: ours, of other sums in float, have been seen to be 3e-8 of them away.
if sys.argv[1] == "loss":
    expected = json.load(open(sys.argv[2] + "/expected.json"))["loss"]
    got = json.loads(list(open(sys.argv[3]))[1])["loss"]
    assert abs(got - expected) <= 1e-6 * expected, (got, expected)
if sys.argv[1] == "stretched":
    expected = json.load(open(sys.argv[2] + "/expected.json"))["stretched"][sys.argv[4]]
    got = json.loads(list(open(sys.argv[3]))[1])["loss"]
    assert abs(got - expected) <= 1e-6 * expected, (got, expected)
if sys.argv[1] == "rope":  # SOURCE FOLDER: rope_parameters and length as given, all else as it was
    a, b = json.load(open(sys.argv[2] + "/config.json")), json.load(open(sys.argv[3] + "/config.json"))
    a["rope_parameters"], a["max_position_embeddings"] = json.loads(sys.argv[4]), int(sys.argv[5])
    assert a == b, (a, b)
    assert all(type(b["rope_parameters"][k]) is type(x) for k, x in a["rope_parameters"].items()), b
if sys.argv[1] == "config":
    a, b = json.load(open(sys.argv[2] + "/config.json")), json.load(open(sys.argv[3] + "/config.json"))
    a["dtype"] = sys.argv[4]
    assert a == b, (a, b)
# FOLDER LAYERS S: normal with deviation S, what adds to the residual stream S / sqrt(2 LAYERS); norms 1. Of 4096 numbers or more: 6 %
if sys.argv[1] == "begin":
    for k, (dtype, shape, blob) in tensors(sys.argv[2]).items():
        x = struct.unpack(f"<{len(blob) // 4}f", blob)
        expected = float(sys.argv[4]) / ((2 * int(sys.argv[3])) ** 0.5 if "o_proj" in k or "down_proj" in k else 1)
        if "norm" in k: assert set(x) == {1.0}, k
        else: assert abs((sum(v * v for v in x) / len(x)) ** 0.5 / expected - 1) < (0.06 if len(x) >= 4096 else 0.12), (k, expected)
if sys.argv[1] == "edit":  # SOURCE DESTINATION EXPRESSION on `t`, the tensors
    t = tensors(sys.argv[2])
    exec(sys.argv[4])
    write(sys.argv[3], t)
PY
tools() { python3 "$dir/tools.py" "$@"; }

grids=('1' '2 --hp 2 --zero-params full' '4 --hp 2 --cp 2 --zero-params 2 --zero-grads 4 --offload-optimizer' '3 --cp 3 --zero-optim 3'
    '8 --hp 4 --cp 2 --zero-params full')
for name in f32 bf16 tied_f16 mistral; do
    source=$golden/folder_$name
    dtype=$(python3 -c "import json; print(json.load(open('$source/config.json'))['dtype'])")
    for g in "${!grids[@]}"; do
        read -r -a options <<<"${grids[$g]}"
        run=(mpirun -np "${options[0]}" "$binary" --model $source "${data[@]}" "${options[@]:1}")
        "${run[@]}" --batch-size 2 --steps 1 --log "$dir/log" >"$dir/out" 2>&1
        check "$name: first loss is transformers', grid ${grids[$g]}" tools loss $source "$dir/log"
        "${run[@]}" --steps 0 --export "$dir/$name.$g" >"$dir/out" 2>&1
        check "$name: in and out again, grid ${grids[$g]}" tools equal $source "$dir/$name.$g"
    done
    check "$name: config.json" tools config $source "$dir/$name.0" "$dtype"
    check "$name: companions are copied" cmp $source/tokenizer_config.json "$dir/$name.0/tokenizer_config.json"
    check "$name: nothing else is left" [ "$(ls "$dir" | grep -c unfinished)" -eq 0 ]
    "$binary" --model $source --steps 0 --threads 1 --export "$dir/$name.wide" --export-dtype f32 >"$dir/out" 2>&1
    check "$name: F32 out is exact" tools widened $source "$dir/$name.wide"
    check "$name: its config.json says so" tools config $source "$dir/$name.wide" float32
    "$binary" --model "$dir/$name.wide" --steps 0 --threads 1 --export "$dir/$name.back" --export-dtype "${dtype/loat/}" >"$dir/out" 2>&1
    check "$name: and narrows again to the same bits" tools equal $source "$dir/$name.back"
done
# A Mistral's window is not supported, but one that no sequence is longer than hides nothing.
cp -r $golden/folder_mistral "$dir/window"
sed -i 's/"sliding_window": null/"sliding_window": 64/' "$dir/window/config.json"
"$binary" --model "$dir/window" "${data[@]}" --batch-size 2 --steps 1 --log "$dir/window.jsonl" >"$dir/out" 2>&1
check 'a window as long as the sequence: loss is that of none' tools loss $golden/folder_mistral "$dir/window.jsonl"
check 'a shorter one' ends_with 2 'sliding window of 64 tokens, .*; legal values of --seq-len are 1 to 64' \
    "$binary" --model "$dir/window" --steps 0 --seq-len 65

# Memory that is not zero when a run gets it (0x5a): the moments of AdamW begin at 0.
for filled in 0 165; do
    env MALLOC_PERTURB_=$filled "$binary" --model $golden/folder_f32 "${data[@]}" --batch-size 2 --steps 3 \
        --log "$dir/filled$filled" >"$dir/out" 2>&1
done
check 'moments begin at 0' python3 -c "
import json
steps = [[json.loads(line)['loss'] for line in list(open('$dir/filled' + n))[1:4]] for n in ('0', '165')]
assert steps[0] == steps[1] and len(steps[0]) == 3, steps"

# A single file counts more than an index beside it, which transformers leaves there when it saves over a folder of several files.
cp -r $golden/folder_tied_f16 "$dir/stale"
cp $golden/folder_f32/model.safetensors.index.json "$dir/stale"
"$binary" --model "$dir/stale" "${data[@]}" --batch-size 2 --steps 1 --log "$dir/log" >"$dir/out" 2>&1
check 'a single file beside an index: loss is transformers'"'" tools loss $golden/folder_tied_f16 "$dir/log"

# A preset exported and read back; the same parameters on another grid.
mkdir "$dir/nano.unfinished" # as an export leaves it that was killed
touch "$dir/nano.unfinished/model.safetensors.index.json"
"$binary" --model nano --from-scratch --steps 0 --threads 1 --export "$dir/nano//" >"$dir/out" 2>&1
check 'preset: export' [ "$(cd "$dir/nano" && echo *)" = 'config.json model.safetensors' ]
check 'preset: parameters as they begin' tools begin "$dir/nano" 2 0.02
mpirun -np 4 "$binary" --model "$dir/nano" --steps 0 --threads 1 --zero-params full --export "$dir/nano2" >"$dir/out" 2>&1
check 'preset: in and out again' tools equal "$dir/nano" "$dir/nano2"
mkdir "$dir/own"
cp "$dir/nano/config.json" "$dir/own"
check 'from scratch, a config.json alone is a model' "$binary" --model "$dir/own" --from-scratch --steps 0 --threads 1 --export "$dir/nano3"
check 'of the same numbers as the preset' tools equal "$dir/nano" "$dir/nano3"
mkdir "$dir/ranged"
sed 's/{/{"initializer_range": 0.05,/' "$dir/nano/config.json" >"$dir/ranged/config.json"
check 'with the deviation that it asks for' \
    "$binary" --model "$dir/ranged" --from-scratch --steps 0 --threads 1 --export "$dir/nano4"
check 'its parameters begin so' tools begin "$dir/nano4" 2 0.05

# Context extension: the first loss with another RoPE is transformers'. States and exports hold the new RoPE; exports need no options then.
stretch=(--rope-scaling yarn:factor=4,original=40,beta_fast=3,beta_slow=0.5 --rope-theta 40000)
long=(--train-data $golden/folder_tokens.bin --seq-len 64 --threads 1 --batch-size 2)
for option in "${stretch[1]}" linear:factor=2.5 llama3:factor=16,low=1,high=3,original=40 none; do
    mpirun -np 4 "$binary" --model $golden/folder_f32 "${long[@]}" --hp 2 --cp 2 --rope-theta 40000 --rope-scaling "$option" --steps 1 \
        --log "$dir/log" >"$dir/out" 2>&1
    check "--rope-scaling $option: first loss is transformers'" tools stretched $golden/folder_f32 "$dir/log" "$option"
done
rope='{"rope_theta": 40000.0, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 40,'
rope+=' "beta_fast": 3.0, "beta_slow": 0.5}'
"$binary" --model $golden/folder_f32 --steps 0 --threads 1 "${stretch[@]}" --export "$dir/yarn" >"$dir/out" 2>&1
check 'export: config.json says yarn' tools rope $golden/folder_f32 "$dir/yarn" "$rope" 384
check 'export: a note says what some transformers make of it' grep -q \
    "^note: what is saved has 384 positions, more than yarn's 160; transformers 4.51 to 4.56 will take 9.6 " "$dir/out"
check 'export: its tensors are the same' tools equal $golden/folder_f32 "$dir/yarn"
"$binary" --model nano --from-scratch --steps 0 --rope-scaling yarn:factor=1000000,original=16M --export "$dir/yarn_long" >"$dir/out" 2>&1
check 'export: of no more positions than can be read' "$binary" --model "$dir/yarn_long" --dry-run
"$binary" --model "$dir/yarn" "${long[@]}" --steps 1 --log "$dir/log" >"$dir/out" 2>&1
check 'export: read again, it is yarn' tools stretched $golden/folder_f32 "$dir/log" "${stretch[1]}"
cp -r $golden/folder_f32 "$dir/short_config"
sed -i 's/"max_position_embeddings": 384/"max_position_embeddings": 48/' "$dir/short_config/config.json"
printf '{"a": [1e30, "\\u00e9"],\n "model_max_length" : 40, "b": 48}' >"$dir/short_config/tokenizer_config.json"
companions='LICENSE USE_POLICY.md added_tokens.json chat_template.jinja generation_config.json merges.txt special_tokens_map.json
    tokenizer.json tokenizer.model vocab.json'
for name in $companions README.md; do { echo "$name" && seq 20000; } >"$dir/short_config/$name"; done # of 100 KB
mkdir "$dir/short_config/tokenizer.d" # neither is a file
ln -s nowhere "$dir/short_config/tokenizer.lost"
printf '{\n  "max_length": 48,\n  "max_new_tokens": 8\n}' >"$dir/short_config/generation_config.json"
"$binary" --model "$dir/short_config" "${long[@]}" --steps 1 --lr 0 "${stretch[@]}" --out "$dir/yarn_states" \
    --export "$dir/yarn2" >"$dir/out" 2>&1
check 'export after training: no such note' bash -c "! grep -q '^note: what is saved' '$dir/out'"
check 'export after training: as long as yarn makes it' tools rope $golden/folder_f32 "$dir/yarn2" "$rope" 160
check 'and so says its tokenizer' [ "$(cat "$dir/yarn2/tokenizer_config.json")" = \
    "$(printf '{"a": [1e30, "\\u00e9"],\n "model_max_length" : 160, "b": 48}')" ]
"$binary" --model "$dir/yarn2" --steps 0 --threads 1 --export "$dir/yarn3" >"$dir/out" 2>&1
check 'and the defaults of generation' [ "$(cat "$dir/yarn2/generation_config.json")" = \
    "$(printf '{\n  "max_length": 160,\n  "max_new_tokens": 8\n}')" ]
for name in ${companions/generation_config.json/}; do
    check "export: $name is copied whole" cmp "$dir/short_config/$name" "$dir/yarn2/$name"
done
check 'export: and nothing else' [ "$(ls "$dir/yarn2" | grep -v safetensors | wc -l)" -eq 12 ]
check 'a length that did not change stays' cmp "$dir/yarn2/tokenizer_config.json" "$dir/yarn3/tokenizer_config.json"
cp -r "$dir/short_config" "$dir/shorter_said"
sed -i 's/48/40/' "$dir/shorter_said/generation_config.json"
"$binary" --model "$dir/shorter_said" --steps 0 --threads 1 --export "$dir/said" >"$dir/out" 2>&1
check 'nor one less than that of a model that stays as long' cmp "$dir"/{shorter_said,said}/tokenizer_config.json
check 'in neither file' cmp "$dir"/{shorter_said,said}/generation_config.json
check 'a state says the same' tools rope $golden/folder_f32 "$dir/yarn_states/step-00000001" "$rope" 160
"$binary" --model "$dir/short_config" "${long[@]}" --steps 2 --out "$dir/yarn_states" --resume >"$dir/out" 2>&1
check 'resume without the options: refused' [ $? -eq 2 ]
check 'and says which differs' grep -q \
    'holds another model: "rope_theta" is [0-9]* there and [0-9]* here; the options of the run that was saved, or --new-data' "$dir/out"
"$binary" --model "$dir/short_config" "${long[@]}" --steps 2 "${stretch[@]}" --out "$dir/yarn_states" --resume >"$dir/out" 2>&1
check 'resume with them: status 0' [ $? -eq 0 ]
"$binary" --model "$dir/short_config" --threads 1 "${stretch[@]}" --steps 0 --out "$dir/yarn_states" --resume \
    --export "$dir/yarn4" >"$dir/out" 2>&1
check 'the newest state exported, without its data: status 0' [ $? -eq 0 ]
check 'and it is the newest' grep -q 'from step 2,' "$dir/out"
check 'and the export is as long as yarn makes it' tools rope $golden/folder_f32 "$dir/yarn4" "$rope" 160
"$binary" --model nano --from-scratch --steps 0 --threads 1 --rope-scaling linear:factor=8 --rope-theta 1e6 \
    --export "$dir/linear" >"$dir/out" 2>&1
check 'preset: config.json says linear' python3 -c "
import json
c = json.load(open('$dir/linear/config.json'))
assert c['rope_scaling'] == dict(rope_type='linear', factor=8.0) and c['rope_theta'] == 1e6, c"

# What states and exports take from the folder is read before training: it may be gone when they are written.
cp -r $golden/folder_bf16 "$dir/gone"
cp "$dir/short_config/tokenizer.json" "$dir/gone"
mkfifo "$dir/held" # the run waits here for a reader, when all of the folder has been read
: >"$dir/out"
mpirun -np 2 "$binary" --model "$dir/gone" "${long[@]}" --cp 2 --steps 2 --save-every 1 --log "$dir/held" --out "$dir/gone_states" \
    --export "$dir/gone_export" >"$dir/out" 2>"$dir/err" </dev/null &
job=$!
until_shown '^  in all' "$dir/out"
rm -r "$dir/gone"
timeout 60 cat "$dir/held" >"$dir/held.jsonl"
wait $job
check 'the folder of the model vanishes during training: status 0' [ $? -eq 0 ]
check 'it did so before the first step' [ "$(grep -c '"loss"' "$dir/held.jsonl")" -eq 2 ]
for folder in gone_states/step-00000002 gone_export; do
    check "$folder has its tokenizer" cmp "$dir/short_config/tokenizer.json" "$dir/$folder/tokenizer.json"
    check "$folder is a model" "$binary" --model "$dir/$folder" --steps 0 --threads 1
done
check 'the export has its number types' grep -q 'dtype":\s*"bfloat16"' "$dir/gone_export/config.json"

# A rank reads only what its shard holds: on 4 ranks a quarter of the file, apart from the padding.
mpirun -np 4 "$binary" --model "$dir/nano" --steps 0 --threads 1 --zero-params full >"$dir/out" 2>&1
check 'a rank reads only its shards' python3 -c "
import re
read, whole = map(float, re.search(r'^read .*: ([0-9.]+) of ([0-9.]+) MB', open('$dir/out').read(), re.M).groups())
assert 0 < read <= 0.26 * whole, (read, whole)"

# refuse NAME PATTERN EXPRESSION: the folder ($base, by default the F32 one) with its tensors t changed by EXPRESSION is refused: on 2
# ranks, in one line, with status 2.
refuse() {
    rm -rf "$dir/bad"
    mkdir "$dir/bad"
    cp "${base:-$golden/folder_f32}/config.json" "$dir/bad"
    tools edit "${base:-$golden/folder_f32}" "$dir/bad" "$3" || echo "FAIL $1: edit"
    refuse_folder "$1" "$2" "$dir/bad"
}
refuse_folder() { # name pattern folder
    mpirun -np 2 "$binary" --model "$3" --steps 0 --threads 1 --export "$dir/never" >"$dir/out" 2>"$dir/err"
    local status=$?
    check "$1: status 2, it was $status" [ $status -eq 2 ]
    check "$1: one line" [ "$(grep -c '^error:' "$dir/err")" -eq 1 ]
    check "$1: says /$2/, not $(head -1 "$dir/err")" grep -qE "$2" "$dir/err"
    check "$1: nothing is exported" [ ! -e "$dir/never" ]
}
refuse 'missing tensor' 'model.layers.1.mlp.up_proj.weight" is missing' 'del t["model.layers.1.mlp.up_proj.weight"]'
refuse 'unknown tensor' 'q_proj.bias" is unknown' 't["model.layers.0.self_attn.q_proj.bias"] = ("F32", [32], bytes(128))'
refuse 'layer beyond config.json' 'model.layers.2.input_layernorm.weight" is unknown' \
    't["model.layers.2.input_layernorm.weight"] = ("F32", [32], bytes(128))'
refuse 'another shape' 'k_proj.weight" has the wrong shape .2 dimensions, 32, 16.; config.json says .16, 32.' \
    'k = "model.layers.0.self_attn.k_proj.weight"; t[k] = ("F32", [32, 16], t[k][2])'
refuse 'a matrix of another width' 'k_proj.weight" has the wrong shape .2 dimensions, 16, 16.; config.json says .16, 32.' \
    'k = "model.layers.0.self_attn.k_proj.weight"; t[k] = ("F32", [16, 16], t[k][2][:1024])'
refuse 'a matrix for a vector' 'model.norm.weight" has the wrong shape' \
    't["model.norm.weight"] = ("F32", [32, 1], t["model.norm.weight"][2])'
refuse 'dtype that is none of ours' '"I32"; legal values are F32, F16, BF16' \
    't["model.norm.weight"] = ("I32", [32], t["model.norm.weight"][2])'
refuse 'no lm_head, not tied' 'lm_head.weight" is missing' 'del t["lm_head.weight"]'
refuse 'no embedding, not tied' 'model.embed_tokens.weight" is missing' 'del t["model.embed_tokens.weight"]'
base=$golden/folder_tied_f16
refuse 'tied, lm_head of fewer rows' 'have different shapes, but config.json ties them' \
    'e = t["model.embed_tokens.weight"]; t["lm_head.weight"] = (e[0], [e[1][0] - 1, e[1][1]], e[2][:-2 * e[1][1]])'
refuse 'tied, lm_head of another width' 'have different shapes, but config.json ties them' \
    'e = t["model.embed_tokens.weight"]; t["lm_head.weight"] = (e[0], [e[1][0], e[1][1] // 2], e[2][:len(e[2]) // 2])'
refuse 'tied, lm_head of three dimensions' 'have different shapes, but config.json ties them' \
    'e = t["model.embed_tokens.weight"]; t["lm_head.weight"] = (e[0], e[1] + [1], e[2])'
refuse 'tied, lm_head differs' 'differ, but config.json ties them' \
    'e = t["model.embed_tokens.weight"]; t["lm_head.weight"] = (e[0], e[1], e[2][:-1] + b"\x07")'
check 'of 5 ranks, which do not divide its elements, each part is compared' \
    ends_with 2 'differ, but config.json ties them' mpirun -np 5 "$binary" --model "$dir/bad" --steps 0 --threads 1
mkdir "$dir/tied"
cp $base/config.json "$dir/tied"
tools edit $base "$dir/tied" 't["lm_head.weight"] = t["model.embed_tokens.weight"]
t["model.layers.0.self_attn.rotary_emb.inv_freq"] = ("F32", [4], bytes(16))'
check 'tied, lm_head equal, inv_freq of old folders' mpirun -np 2 "$binary" --model "$dir/tied" --steps 0 --threads 1
tools edit $base "$dir/tied" 't["lm_head.weight"] = t.pop("model.embed_tokens.weight")'
mpirun -np 2 "$binary" --model "$dir/tied" "${data[@]}" --cp 2 --batch-size 2 --steps 1 --lr 0 --log "$dir/log" --export "$dir/tied_out" \
    >"$dir/out" 2>&1
check 'tied, under the name of lm_head alone: the loss' tools loss $base "$dir/log"
check 'and out again under the other name, in its number type' tools equal $base "$dir/tied_out"
cp -r $golden/folder_f32 "$dir/short"
truncate -s -4 "$dir/short/model-00002-of-00003.safetensors"
refuse_folder 'truncated shard' 'model-00002-of-00003.safetensors: .*truncated' "$dir/short"
rm "$dir/short/model-00002-of-00003.safetensors"
mkfifo "$dir/short/model-00002-of-00003.safetensors"
refuse_folder 'a pipe for a shard' 'model-00002-of-00003.safetensors: is not a file' "$dir/short"
rm "$dir/short/model-00002-of-00003.safetensors"
refuse_folder 'missing shard' 'model-00002-of-00003.safetensors: cannot be opened' "$dir/short"
cp -r $golden/folder_f32 "$dir/huge"
printf '\0\0\0\0\0\0\0\x10' | dd of="$dir/huge/model-00001-of-00003.safetensors" conv=notrunc 2>/dev/null
refuse_folder 'header of 2^60 bytes' '1152921504606846976 bytes' "$dir/huge"

# Exports that cannot be made.
mkdir "$dir/there"
"$binary" --model nano --from-scratch --steps 0 --threads 1 --export "$dir/there" >"$dir/out" 2>&1
check 'export into a folder that is there: refused at the start' [ $? -eq 2 ]
"$binary" --model nano --from-scratch --steps 0 --threads 1 --export "$dir/no/such" >"$dir/out" 2>&1
check 'export without a parent folder: refused at the start' [ $? -eq 2 ]
mkdir "$dir/large"
cp $golden/folder_f32/config.json "$dir/large"
tools edit $golden/folder_f32 "$dir/large" 'n = t["model.norm.weight"]
t["model.norm.weight"] = (n[0], n[1], b"\x00\x50\xc3\x47" + n[2][4:])' # 100000
check 'what float16 cannot hold: another attempt would not help' ends_with 2 'model.norm.weight' \
    "$binary" --model "$dir/large" --steps 0 --threads 1 --export "$dir/never" --export-dtype f16
limited='ulimit -f 8192; exec "$@"' # KB: below the 12 MB of the model, above the shared memory files of Open MPI
timeout 60 mpirun -np 2 bash -c "$limited" - "$binary" --model tiny --from-scratch --steps 0 --threads 1 \
    --export "$dir/full" >"$dir/out" 2>"$dir/err"
check 'a full disk ends with status 1' [ $? -eq 1 ]
check 'and a message' grep -q 'error: --export .*cannot be written' "$dir/err"
check 'and nothing half-written' [ ! -e "$dir/full" -a ! -e "$dir/full.unfinished" ]

closing_line
