#!/usr/bin/env bash
# Mistakes of users: each run ends within seconds with status 2, one clear line that says what is legal, and nothing half-written. (F48)
source "$(dirname "$0")/shell.sh"

# refuse NAME RANKS PATTERN OPTION...: exit status 2, exactly one line with "error:" that matches PATTERN, at most 20 s, no log. (Open MPI 5
# may put it after an unfinished line of the standard output.)
refuse() {
    local name=$1 ranks=$2 pattern=$3 began=$SECONDS status lines
    shift 3
    local log=(--log "$dir/log.jsonl")
    case " $* " in *' --log '*) log=() ;; esac
    mpirun -np "$ranks" "$binary" "$@" "${log[@]}" >"$dir/out" 2>"$dir/err" </dev/null
    status=$?
    lines=$(grep -c 'error:' "$dir/err")
    if [ $status -eq 2 ] && [ "$lines" -eq 1 ] && grep -qE "error:.*$pattern" "$dir/err" &&
        [ $((SECONDS - began)) -le 20 ] && [ ! -e "$dir/log.jsonl" ]; then
        pass "$name"
    else
        fail "$name: status $status, $lines error lines, expected /$pattern/:"
        head -5 "$dir/err"
    fi
    rm -f "$dir/log.jsonl"
}

printf 'The quick brown fox jumps over the lazy dog. %.0s' $(seq 100) >"$dir/text"
build/cpu/text_to_tokens "$dir/good.bin" "$dir/text" >/dev/null || { echo "FAIL text_to_tokens"; exit 1; }
head -c 2000 "$dir/good.bin" >"$dir/truncated.bin"
head -c 600 "$dir/good.bin" >"$dir/short.bin"
: >"$dir/empty.bin"
{ printf 'GGUF'; tail -c +5 "$dir/good.bin"; } >"$dir/magic.bin"
base=(--model nano --from-scratch --steps 1 --seq-len 64)
data=(--train-data "$dir/good.bin")

refuse 'unknown option' 4 'seq-lenght.*--seq-len' "${base[@]}" "${data[@]}" --seq-lenght 5
refuse 'malformed number' 2 '--steps.*12x' "${base[@]:0:3}" "${data[@]}" --steps 12x
refuse 'number out of range' 2 '--batch-size' "${base[@]}" "${data[@]}" --batch-size 0
refuse 'missing value' 2 '--lr' "${base[@]}" "${data[@]}" --lr
refuse 'stray argument' 2 'please' "${base[@]}" "${data[@]}" please
refuse 'given twice' 2 '--hp' "${base[@]}" "${data[@]}" --hp 1 --hp 2
refuse 'not a choice' 2 'head-first.*context-first' "${base[@]}" "${data[@]}" --placement rows-first
refuse 'hp does not divide H' 3 '--hp 3.*1, 2, 4' "${base[@]}" "${data[@]}" --hp 3
refuse 'hp above H' 8 '--hp 8.*1, 2, 4' "${base[@]}" "${data[@]}" --hp 8
refuse 'w does not divide cp' 4 '--inner-ring 3.*1, 2, 4' "${base[@]}" "${data[@]}" --cp 4 --inner-ring 3
refuse 'degrees are not the ranks' 4 '4 ranks' "${base[@]}" "${data[@]}" --dp 1 --hp 2 --cp 1
refuse 'product does not divide the ranks' 4 '4 ranks' "${base[@]}" "${data[@]}" --hp 2 --cp 4
refuse 'ZeRO degree does not divide' 4 '--zero-params 3.*1, 2, 4' "${base[@]}" "${data[@]}" --zero-params 3
refuse 'ZeRO degrees not nested' 4 '--zero-grads 2.*--zero-params 4' "${base[@]}" "${data[@]}" --zero-params 4 --zero-grads 2
refuse 'rope scaling unknown' 2 '--rope-scaling: "ntk:factor=2" is not legal; legal values are llama3:.*none' \
    "${base[@]}" "${data[@]}" --rope-scaling ntk:factor=2
refuse 'tile of nothing' 2 '--mlp-tile' "${base[@]}" "${data[@]}" --mlp-tile 0
refuse 'budget that nothing fits in' 2 'needs .* but may use only' "${base[@]}" "${data[@]}" --memory-budget 1MiB --recompute auto
refuse 'stochastic rounding of float parameters' 2 'stores parameters in float.*bf16' "${base[@]}" "${data[@]}" --stochastic-rounding
refuse 'a trace that cannot be written' 2 '--trace .*nowhere/trace.* cannot be written' \
    "${base[@]}" "${data[@]}" --trace "$dir/nowhere/trace"
refuse 'a trace of nothing' 2 '--trace cannot be combined with --steps 0' "${base[@]:0:3}" --steps 0 "${data[@]}" --trace "$dir/trace"
refuse 'states of nothing' 2 '--out cannot be combined with --steps 0' "${base[@]:0:3}" --steps 0 "${data[@]}" --out "$dir/states"
refuse 'no data' 2 '--train-data' "${base[@]}"
refuse 'missing file' 4 'nowhere' "${base[@]}" --train-data "$dir/nowhere.bin"
refuse 'truncated file' 4 'truncated' "${base[@]}" --train-data "$dir/truncated.bin"
refuse 'file shorter than a header' 2 'header' "${base[@]}" --train-data "$dir/short.bin"
refuse 'empty file' 2 'header' "${base[@]}" --train-data "$dir/empty.bin"
refuse 'wrong magic' 4 'magic' "${base[@]}" --train-data "$dir/magic.bin"
refuse 'weight of nothing' 2 'not a weight; legal values are numbers from 0.000001' "${base[@]}" --train-data "$dir/good.bin:0"
refuse 'one source of a mixture without files' 2 'no file matches' "${base[@]}" --train-data "$dir/good.bin:1,$dir/nowhere*:2"
refuse 'validation sets without names' 2 'NAME=GLOB,NAME=GLOB' "${base[@]}" "${data[@]}" --val-data "$dir/good.bin,$dir/good.bin"
refuse 'a validation set twice' 2 'x is used twice' "${base[@]}" "${data[@]}" --val-data "x=$dir/good.bin,x=$dir/good.bin"
refuse 'more tokens than are counted' 2 'at most 1099511627776 tokens' --model nano --dry-run --seq-len 1048576M --batch-size 2
refuse 'document begin above the vocabulary' 2 'document-begin 256 .*none, and 0 to 255' "${base[@]}" "${data[@]}" --document-begin 256
refuse 'needles without text' 2 '--eval-needles require --val-data' "${base[@]}" "${data[@]}" --eval-needles 1
refuse 'needles in nothing' 2 '64 or more' "${base[@]:0:5}" --seq-len 63 "${data[@]}" --val-data "$dir/good.bin" --eval-needles 1
refuse 'no needles' 2 '--eval-needles.*whole numbers from 1' "${base[@]}" "${data[@]}" --val-data "$dir/good.bin" --eval-needles 0
refuse 'prompt without samples' 2 'require --sample-every' "${base[@]}" "${data[@]}" --sample-prompt x
refuse 'prompt above the vocabulary' 2 '"256" is not a token; legal values are numbers from 0 to 255' \
    "${base[@]}" "${data[@]}" --sample-every 1 --sample-prompt 1,256
refuse 'samples beyond the sequence' 2 'does not fit in --seq-len 64' \
    "${base[@]}" "${data[@]}" --sample-every 1 --sample-prompt 1,2 --sample-tokens 63
refuse 'sequence longer than the data' 4 'largest legal length' --model nano --from-scratch --steps 1 --seq-len 1M "${data[@]}"
refuse 'unknown model' 2 'presets are' --model llama4 --from-scratch "${data[@]}"
refuse 'preset without --from-scratch' 2 '--from-scratch' --model nano "${data[@]}"
refuse 'log that cannot be written' 2 '--log .*no/such/folder/log: cannot be written' \
    "${base[@]}" "${data[@]}" --log "$dir/no/such/folder/log"
refuse 'document end above the vocabulary' 4 '--document-end 256.*none, and 0 to 255' "${base[@]}" "${data[@]}" --document-end 256
refuse 'document end that is no number' 2 '--document-end.*eot.*none, and token numbers' "${base[@]}" "${data[@]}" --document-end eot
cp "$dir/good.bin" "$dir/masked.bin"
head -c 4499 /dev/zero >"$dir/masked.bin.mask"
refuse 'loss mask of another length' 4 'masked.bin.mask: has 4499 bytes, but the token file has 4500 tokens' \
    "${base[@]}" --train-data "$dir/masked.bin"
head -c 4500 "$dir/text" >"$dir/masked.bin.mask"
refuse 'loss mask of other bytes' 4 'masked.bin.mask: byte [0-9]+ is [0-9]+; legal values are 0 and 1' \
    "${base[@]}" --train-data "$dir/masked.bin"
# Bytes that a run of one step does not read, the last ones of the third rank's part and of the fourth's; --check-data reads all.
{ head -c 3374 /dev/zero && printf '\2' && head -c 1125 /dev/zero; } >"$dir/masked.bin.mask"
check 'a loss mask whose end is not used' "$binary" "${base[@]}" --train-data "$dir/good.bin,$dir/masked.bin"
refuse 'loss mask of other bytes, in all of it' 4 'masked.bin.mask: byte 3374 is 2; legal values are 0 and 1' \
    "${base[@]}" --train-data "$dir/good.bin,$dir/masked.bin" --check-data
head -c 4500 /dev/zero >"$dir/masked.bin.mask"
refuse 'loss masks that are 0 everywhere, of one source' 4 '--train-data: .*masked.bin: none of its tokens is a label' \
    "${base[@]}" --train-data "$dir/good.bin,$dir/masked.bin" --check-data
{ head -c 4400 /dev/zero && printf '\1' && head -c 99 /dev/zero; } >"$dir/masked.bin.mask"
check 'a single label is enough' ends_with 0 '^checked     9000 tokens of data' \
    mpirun -np 4 "$binary" "${base[@]}" --train-data "$dir/good.bin,$dir/masked.bin" --hp 2 --cp 2 --check-data
refuse 'a pattern that loss masks match, too' 2 'masked.bin.mask: magic number .*a loss mask is found beside its token file' \
    "${base[@]}" --train-data "$dir/masked*"
cp "$dir/good.bin" "$dir/tail.bin"
printf '\377\377' | dd of="$dir/tail.bin" bs=1 seek=$((1024 + 2 * 4499)) conv=notrunc 2>/dev/null # its last token
check 'a token above the vocabulary that is not used' ends_with 0 '^step ' \
    "$binary" "${base[@]}" "${data[@]}" --val-data "$dir/tail.bin" --eval-steps 1
check 'a file of as many tokens is another one' [ "$(grep -c '^note: --train-data holds' "$dir/shown")" = 0 ]
refuse 'token above the vocabulary, in all of the validation data' 4 'tail.bin: token 4499 .byte 10022. is 65535' \
    "${base[@]}" "${data[@]}" --val-data "$dir/tail.bin" --eval-steps 1 --check-data
check 'all data is good' ends_with 0 '^checked     9000 tokens of data' \
    mpirun -np 4 "$binary" "${base[@]}" "${data[@]}" --val-data "$dir/good.bin" --hp 2 --cp 2 --check-data
refuse 'a check without a run' 1 '--check-data reads data, which --dry-run does not' \
    --model nano --dry-run --train-data "$dir/good.bin" --check-data
refuse 'a check of nothing' 2 '--check-data requires --train-data or --val-data' \
    --model nano --from-scratch --steps 0 --export "$dir/nothing" --check-data
cp "$dir/good.bin" "$dir/linked.bin"
ln -s "$dir/nowhere" "$dir/linked.bin.mask"
refuse 'loss mask that leads nowhere' 2 'linked.bin.mask: cannot be opened' "${base[@]}" --train-data "$dir/linked.bin"
ln -s loop "$dir/loop"
refuse 'folder that cannot be read' 2 'a folder that may hold such files cannot be read: Too many levels of symbolic links' \
    "${base[@]}" --train-data "$dir/loop/*.bin"
refuse 'file that cannot be looked up' 2 'loop/good.bin: cannot be looked up: Too many levels of symbolic links' \
    "${base[@]}" --train-data "$dir/loop/good.bin"
cp "$dir/truncated.bin" "$dir/two"$'\n'"lines.bin"
refuse 'file whose name has two lines' 2 'two[?]lines.bin: is truncated' "${base[@]}" --train-data "$dir/two*.bin"
for name in 'a[b].bin' 'a\b.bin'; do
    cp "$dir/good.bin" "$dir/$name"
    refuse "file whose name is a pattern, $name" 2 'no file matches .*where \[ and \\ do not stand for themselves: write [?] for each' \
        "${base[@]}" --train-data "$dir/$name"
done
cp "$dir/good.bin" "$dir/a,b.bin"
refuse 'file with a comma in its name' 2 '--train-data \(write [?] for each comma and = in a file.s name\): no file matches .*/a$' \
    "${base[@]}" --train-data "$dir/a,b.bin"
refuse 'export and log of one name' 2 '--log .*/./one: --export will be there' \
    "${base[@]}" "${data[@]}" --export "$dir/one" --log "$dir/./one"
refuse 'trace where the export begins' 2 '--trace .*/one.unfinished: --export will be there' \
    "${base[@]}" "${data[@]}" --export "$dir/one/" --trace "$dir/one.unfinished"
cp -r test/golden/folder_f32 "$dir/source.unfinished"
refuse 'model where the export begins' 2 '--model .*/source.unfinished/: --export is written there until it is whole' \
    --model "$dir/source.unfinished/" --steps 0 --export "$dir/source"
refuse 'trace and states of one name' 2 '--trace .*/states: --out will be there' \
    "${base[@]}" "${data[@]}" --trace "$dir/states" --out "$dir/states"
for name in lock step-00000001 unfinished-step-00000001 damaged-1; do
    refuse "log named $name in --out" 2 "--log .*/out/$name: in the folder of --out, names such as this are those of states" \
        "${base[@]}" "${data[@]}" --out "$dir/out" --log "$dir/out/$name"
done
refuse 'export of a long name in a new --out' 2 '--export .*: its name is longer than 241 bytes' \
    "${base[@]}" "${data[@]}" --out "$dir/out" --export "$dir/out/$(printf '%0250d' 0)"
refuse 'more tokens than a step may have' 2 \
    '1073741824 sequences a step x --seq-len 1048576 is too large; a step may have at most 1099511627776 tokens' \
    --dry-run --model nano --seq-len 1M --global-batch 1073741824
mkdir "$dir/folder"
cat >"$dir/folder/config.json" <<'JSON'
{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 256,
 "rms_norm_eps": 1e-5, "max_position_embeddings": 128, "rope_scaling": {"rope_type": "longrope", "factor": 4.0}}
JSON
refuse 'unknown rope_scaling' 4 'longrope.*llama3' --model "$dir/folder" --from-scratch --steps 1 --seq-len 64 "${data[@]}"
sed -i 's/"rope_type": "longrope"/"rope_type": "linear"/; s/"vocab_size": 256/"vocab_size": 100/' "$dir/folder/config.json"
refuse 'token above the vocabulary' 4 'legal values are 0 to 99' --model "$dir/folder" --from-scratch --steps 1 --seq-len 64 "${data[@]}"
refuse 'folder without weights' 2 'model.safetensors: does not exist' --model "$dir/folder" --steps 1 --seq-len 64 "${data[@]}"

closing_line
