#!/usr/bin/env bash
# dev/tokenize_text.py: text, JSON lines and gzip become token files that the trainer reads, the same with any number of processes.
# Documents end with a token, prompts and what others say in chats are masked, files are cut at --shard-tokens.
# Skipped where the packages tokenizers and jinja2 are neither installed nor can be.
source "$(dirname "$0")/shell.sh"
python=python3
if ! $python -c 'import tokenizers, jinja2' 2>"$dir/why"; then # into build/, once
    python=build/tokenizers/bin/python3
    if ! $python -c 'import tokenizers, jinja2' 2>"$dir/why"; then
        rm -rf build/tokenizers
        if ! { timeout 60 python3 -m venv build/tokenizers && timeout 120 $python -m pip install -q --disable-pip-version-check \
            $(grep -E '^(tokenizers|jinja2)=' dev/requirements.txt); } >"$dir/why" 2>&1; then
            echo "no Python packages tokenizers and jinja2, and they cannot be installed: $(tail -1 "$dir/why")"
            exit 77
        fi
    fi
fi
cat >"$dir/expect.py" <<'PY'
"""make FILE: a tokenizer of single characters that begins a document with token 96, and knows <end>, token 97
   check WHAT PREFIX: the token files, and masks, of what stands in main below"""
import array, glob, gzip, json, sys
if sys.argv[1] == "make":
    vocabulary = {chr(c) if c > 32 else chr(256 + c): c for c in range(96)}
    level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=False, use_regex=False)
    special = [dict(id=96 + i, content=t, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
               for i, t in enumerate(("<begin>", "<end>"))]
    begin = dict(SpecialToken=dict(id="<begin>", type_id=0))
    first, second = (dict(Sequence=dict(id=text, type_id=0)) for text in "AB")
    post = dict(type="TemplateProcessing", single=[begin, first], pair=[begin, first, second],
                special_tokens={"<begin>": dict(id="<begin>", ids=[96], tokens=["<begin>"])})
    # What the last user left there.
    truncation = dict(direction="Right", max_length=16, strategy="LongestFirst", stride=0)
    padding = dict(strategy=dict(Fixed=16), direction="Right", pad_to_multiple_of=None, pad_id=97, pad_type_id=0, pad_token="<end>")
    model = dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=False,
                 byte_fallback=False, vocab=vocabulary, merges=[])
    json.dump(dict(version="1.0", truncation=truncation, padding=padding, added_tokens=special, normalizer=None, pre_tokenizer=level,
                   post_processor=post, decoder=level, model=model), open(sys.argv[2], "w"))
    sys.exit()
what, folder = sys.argv[2], sys.argv[3]
encode = lambda text: list(text.encode())
ids, mask = [], []
def document(prompt, completion):
    global ids, mask
    learnt = encode(completion) + [97]
    mask += [0 if prompt is not None else 1] * (1 + len(prompt or "")) + [1] * len(learnt)
    ids += [96] + encode(prompt or "") + learnt
if what == "pairs":
    for line in open(folder + "/pairs.jsonl"):
        pair = json.loads(line)
        document(pair["prompt"], pair["answer"])
else:
    document(None, open(folder + "/long.txt").read())
    for line in gzip.open(folder + "/lines.jsonl.gz", "rt"):
        document(None, json.loads(line)["text"])
got, got_mask = [], []
for path in sorted(glob.glob(sys.argv[4] + "_*.bin")):
    data = open(path, "rb").read()
    header = array.array("i", data[:1024])
    tokens = array.array("H", data[1024:])
    assert list(header[:3]) == [20240520, 1, len(tokens)] and len(tokens) <= int(sys.argv[5]), (path, header[:3], len(tokens))
    got += tokens
    if what == "pairs":
        got_mask += open(path + ".mask", "rb").read()
assert got == ids, (len(got), len(ids), [i for i, (a, b) in enumerate(zip(got, ids)) if a != b][:3])
assert what != "pairs" or got_mask == mask, "mask"
PY
$python "$dir/expect.py" make "$dir/tokenizer.json"
seq 1 110000 | awk '{print "LINE " $1}' >"$dir/long.txt" # 1.2 MB: more than a process is given at a time
seq 1 500 | awk '{printf "{\"id\": %d, \"text\": \"A %d\\nB\"}\n", $1, $1}' | gzip >"$dir/lines.jsonl.gz"
seq 1 50 | awk '{printf "{\"prompt\": \"SAY %d:\", \"answer\": \"%d!\"}\n", $1, $1 * $1}' >"$dir/pairs.jsonl"
tokenize() { # name option...
    local name=$1
    shift
    $python dev/tokenize_text.py --tokenizer "$dir/tokenizer.json" --out "$dir/$name" --end '<end>' --processes 1 "$@"
}
for processes in 1 3; do
    check "text and lines, $processes processes" \
        tokenize "all$processes" --processes $processes --shard-tokens 1000000 "$dir/long.txt" "$dir/lines.jsonl.gz"
    check "they are the characters, $processes processes" $python "$dir/expect.py" check all "$dir" "$dir/all$processes" 1000000
done
pairs=(--prompt prompt --completion answer)
check 'prompts and completions, in one file' tokenize pairs1 "${pairs[@]}" "$dir/pairs.jsonl"
check 'prompts and completions' tokenize pairs "${pairs[@]}" --shard-tokens 100 "$dir/pairs.jsonl"
cp "$dir/why" "$dir/pairs.out"
check 'they are the characters, and completions are learnt' $python "$dir/expect.py" check pairs "$dir" "$dir/pairs" 100
check 'the trainer reads both' "$binary" --model tiny --from-scratch --threads 1 --steps 1 --seq-len 256 --document-end 97 \
    --train-data "$dir/pairs_*.bin:0.5,$dir/all3_*.bin:0.5"
# --sequence: whole documents in samples of 50 tokens. One of 50, one of 120 (two samples, and <begin> with 20), short ones.
printf '%s\n' "$(printf 'A%.0s' $(seq 48))" "$(printf 'B%.0s' $(seq 118))" \
    $(for n in $(seq 40 -1 1); do printf 'C%.0s' $(seq $n); echo; done) |
    awk '{printf "{\"prompt\": \"%s\", \"answer\": \"%s\"}\n", substr($0, 1, 1), substr($0, 2)}' >"$dir/lengths.jsonl"
check 'samples of whole documents' tokenize samples "${pairs[@]}" --sequence 50 --shard-tokens 170 "$dir/lengths.jsonl"
check 'the same from 3 processes' tokenize samples3 --processes 3 "${pairs[@]}" --sequence 50 --shard-tokens 170 "$dir/lengths.jsonl"
check 'byte by byte' bash -c "cat '$dir'/samples_*.bin | cmp - <(cat '$dir'/samples3_*.bin)"
check 'no document is cut that fits, none is lost, what fills up is not learnt' $python - "$dir" <<'PY'
import array, glob, sys
tokens, mask = array.array("H"), b""
for path in sorted(glob.glob(sys.argv[1] + "/samples_*.bin")):
    data = open(path, "rb").read()[1024:]
    assert len(data) in (300, 200, 100), (path, len(data)) # 150 tokens a file, and the rest
    tokens.frombytes(data)
    mask += open(path + ".mask", "rb").read()
samples, lengths, filled = [tokens[i : i + 50].tolist() for i in range(0, len(tokens), 50)], [], 0
for n, sample in enumerate(samples):
    start = 0
    for i, token in enumerate(sample):
        if token != 97 and i < 49: continue
        piece, learnt = sample[start : i + 1], list(mask[50 * n + start : 50 * n + i + 1])
        unlearnt = 2 if piece[0] == 96 else 1 # <begin> and the prompt, or the rest's first token; where a long document goes on, its first
        assert piece[0] == 96 or start == 0 or piece == [97], (n, piece) # with --document-begin it would belong to the piece before it
        assert learnt == [0] * min(unlearnt, len(piece)) + [1] * (len(piece) - unlearnt), (n, piece, learnt)
        if piece == [97]: filled += 1
        else: lengths.append(len(piece))
        start = i + 1
assert sorted(lengths) == sorted([50, 50, 50, 21] + [n + 2 for n in range(1, 41)]), lengths
assert filled == 50 * len(samples) - sum(lengths) and filled < 50 * len(samples) / 20, (len(samples), filled)
PY
check 'lengths with a suffix' ends_with 0 'to fill up samples of 1024$' tokenize suffix "${pairs[@]}" --sequence 1K "$dir/lengths.jsonl"
check 'the trainer reads them' "$binary" --model tiny --from-scratch --threads 1 --steps 1 --seq-len 50 --document-end 97 \
    --train-data "$dir/samples_*.bin"
refused() { # text option...
    local text=$1
    shift
    tokenize "$@" >"$dir/shown" 2>&1
    [ $? -eq 2 ] && grep -q -- "$text" "$dir/shown"
}
check 'files that are there stay' refused 'already exists' pairs "${pairs[@]}" "$dir/pairs.jsonl"
echo '{"text": "A\ud83dB"}' >"$dir/half.jsonl"
check 'half a surrogate pair is named, too' refused 'half.jsonl:1: not a JSON object with a text in "text"' other "$dir/half.jsonl"
check 'a field that is missing is named, with its line' refused 'pairs.jsonl:1: not a JSON object with a text in "text"' \
    other "$dir/pairs.jsonl"
cp "$dir/pairs.jsonl" "$dir/pairs.json"
check 'JSON that is not lines' refused 'pairs.json: is not read as plain text; JSON lines are .jsonl' other "$dir/pairs.json"
gzip -k "$dir/pairs.json"
head -c 40 "$dir/pairs.json.gz" >"$dir/cut.jsonl.gz"
check 'a file that was cut' refused 'cut.jsonl.gz: cannot be read: ' other "$dir/cut.jsonl.gz"
check 'nor with .gz' refused 'pairs.json.gz: is not read as plain text; JSON lines are .jsonl' other "$dir/pairs.json.gz"
{ echo 'A<end>B' && head -c 1200000 "$dir/long.txt"; } >"$dir/early.txt" # more than one process gets at a time
check 'what the first part of a text holds is counted, too' ends_with 0 'tokens 97 (<end>) inside the texts: 1;' \
    tokenize early --special-tokens "$dir/early.txt"
$python -c "import json
tokenizer = json.load(open('$dir/tokenizer.json'))
tokenizer['post_processor'] = None
json.dump(tokenizer, open('$dir/plain.json', 'w'))"
check 'a tokenizer that adds nothing takes nothing away' \
    test "$($python dev/tokenize_text.py --tokenizer "$dir/plain.json" --ids AAB)" = 65,65,66
check 'an unknown --end' refused 'not a token of' other --end '<no>' "$dir/long.txt"
# Texts that hold special tokens themselves: a template that begins with <begin> has it once, and what would separate documents is counted.
printf '%s\n' '{"prompt": "<begin>A<end>", "answer": "B<end>"}' '{"prompt": "<begin><begin>A", "answer": "B"}' >"$dir/chat.jsonl"
check 'a prompt that begins with what the tokenizer adds' \
    ends_with 0 'tokens 97 (<end>) inside the texts: 2; with --document-end 97 each would end a document' \
    tokenize chat --special-tokens "${pairs[@]}" "$dir/chat.jsonl"
check 'and one that does so twice' \
    grep -q 'tokens 96 (<begin>) inside the texts: 1; with --document-begin 96 each would begin a document' "$dir/shown"
check 'its tokens' [ "$(tail -c +1025 "$dir/chat_000001.bin" | od -An -v -tu2 -w100 | xargs)" = '96 65 97 66 97 97 96 96 65 66 97' ]
check 'and their mask' [ "$(od -An -v -tu1 -w100 "$dir/chat_000001.bin.mask" | xargs)" = '0 0 0 1 1 1 0 0 0 1 1' ]
check 'texts without such tokens: no warning' bash -c "! grep -qE 'warning|note' '$dir/pairs.out'"
characters() { tail -c +1025 "$dir/$1_000001.bin" | od -An -v -tu2 -w2 | awk '{ printf "%c", $1 }'; } # of a token file
# The same tokenizer with special tokens whose characters have tokens, too.
sed 's/<begin>/<BEGIN>/g; s/<end>/<END>/g' "$dir/tokenizer.json" >"$dir/upper.json"
upper() { # name option...
    local name=$1
    shift
    $python dev/tokenize_text.py --tokenizer "$dir/upper.json" --out "$dir/$name" --end '<END>' --processes 1 "$@"
}
echo '{"text": "<BEGIN>A<END>"}' >"$dir/written.jsonl"
check 'special tokens that a text has written in it are text' \
    ends_with 0 'note: special tokens that are written in the texts: 2; they are text' upper written "$dir/written.jsonl"
check 'character by character' test "$(characters written)" = '`<BEGIN>A<END>a'
# Odd files: a byte order mark is no text, line ends stay as they are, JSON lines end at a line feed only, blank lines are none, empty
# documents are counted.
printf '\xef\xbb\xbfA\r\nB\rC' >"$dir/odd.txt"
printf '\xef\xbb\xbf{"text": "D"}\r\n\n{"text": "",\r"text": "E"}\n \n{"text": ""}\n{"text": "F"}' >"$dir/odd.NDJSON"
: >"$dir/empty.txt"
check 'odd files' ends_with 0 ' 4 documents, .*; empty documents, left out: 2$' \
    tokenize odd "$dir/odd.txt" "$dir/empty.txt" "$dir/odd.NDJSON"
check 'their tokens' test "$(characters odd | tr '\r\n' rn)" = '`ArnBrCa`Da`Ea`Fa'
{ cat "$dir/long.txt" && printf 'A\nB\377\n'; } >"$dir/bad.txt"
check 'a fault at the end, by line' refused 'bad.txt:110002: not UTF-8 text' bad --shard-tokens 100000 "$dir"/{long,long,long,bad}.txt
check 'a length that is no number' refused "'1G' is not legal; legal values are whole numbers (K = 1024" bad --sequence 1G "$dir/long.txt"
check 'no files: what is missing is named' refused 'missing: files (or give' bad
check 'leaves no file' test -z "$(ls "$dir" | grep '^bad_')"
head -c 100000 /dev/zero | tr '\0' '[' >"$dir/deep.jsonl"
check 'JSON of 100000 levels' refused 'deep.jsonl:1: not a JSON object' other "$dir/deep.jsonl"
check 'a folder' refused 'is not a file (of a folder, give the files: ' other "$dir"
echo '{"text": "A\u00e9B\u00e9"}' >"$dir/lost.jsonl"
check 'characters that the tokenizer has no token for' ends_with 0 'no token, lost or unknown: 2, such as U+00E9' \
    tokenize lost "$dir/lost.jsonl"
$python - "$dir" <<'PY'
import json, sys
t = json.load(open(sys.argv[1] + "/tokenizer.json"))
t["post_processor"]["single"].append(dict(SpecialToken=dict(id="<end>", type_id=0)))
t["post_processor"]["special_tokens"]["<end>"] = dict(id="<end>", ids=[97], tokens=["<end>"])
json.dump(t, open(sys.argv[1] + "/both.json", "w"))
PY
check 'a tokenizer that ends documents itself' \
    $python dev/tokenize_text.py --tokenizer "$dir/both.json" --out "$dir/both" --end '<end>' "${pairs[@]}" "$dir/pairs.jsonl"
check 'does so once, behind the completion' cmp "$dir/both_000001.bin" "$dir/pairs1_000001.bin"
# As many processes as cores that it may use, on machines with two or more.
on_one_core() {
    taskset -c "$(taskset -cp $$ | grep -oE '[0-9]+' | tail -1)" $python - "$dir" <<'PY'
import concurrent.futures, sys
sys.path.insert(0, "dev")
import tokenize_text
def count(processes, **_): sys.exit(f"processes: {processes}")
concurrent.futures.ProcessPoolExecutor = count
folder = sys.argv[1]
sys.argv[1:] = ["--tokenizer", folder + "/tokenizer.json", "--out", folder + "/cores", folder + "/odd.txt"]
tokenize_text.main()
PY
}
check 'a process on one core starts one more' ends_with 1 '^processes: 1$' on_one_core
processes() { pgrep -g $job -f '^[^ ]*python[^ ]* '; } # the first one, and those that it starts: timeout has made a group of them
kill_one() { # head (the first) or tail (the last), once they have written
    timeout -k 5 60 $python dev/tokenize_text.py --tokenizer "$dir/tokenizer.json" --out "$dir/killed" --processes 2 \
        "$dir"/{long,long,long,long}.txt >"$dir/killed" 2>&1 &
    job=$!
    until [ -s "$dir/killed_000001.bin.part" ] || ! kill -0 $job; do sleep 0.02; done
    if [ "${2:-}" = writing ]; then # the first one reads no result, so one of the others stands still in the middle of one
        kill -STOP "$(processes | head -1)"
        sleep 3
        kill -9 $(processes | tail -n +2) || return 1
    else kill -9 "$(processes | "$1" -1)" || return 1; fi
    [ "${2:-}" != writing ] || kill -CONT "$(processes | head -1)"
    wait $job
    echo "status $?" >>"$dir/killed"
    for ((i = 0; i < 1000; i++)); do processes >"$dir/left" && sleep 0.05 || break; done
    [ ! -s "$dir/left" ]
}
check 'the first process is killed: the others end' kill_one head
check 'its file stays in the way, and is named' refused 'killed_000001.bin.part: already exists' killed "$dir/long.txt"
rm -f "$dir"/killed_*
check 'another one is killed: all end' kill_one tail
check 'with a message' test "$(tail -2 "$dir/killed" | sed 's/;.*//' | xargs)" = 'error: a process has been killed status 2'
check 'and leaves no file' test -z "$(ls "$dir" | grep '^killed_')"
check 'one is killed in the middle of a result: all end' kill_one others writing
check 'with the message' test "$(tail -2 "$dir/killed" | sed 's/;.*//' | xargs)" = 'error: a process has been killed status 2'
check 'and without a file' test -z "$(ls "$dir" | grep '^killed_')"
# A closed terminal: all processes get a signal once they have written; the first one gets it twice, as timeout passes it on.
hang_up() { # status, command before the first process
    timeout 60 "${@:2}" $python dev/tokenize_text.py --tokenizer "$dir/tokenizer.json" --out "$dir/closed" --processes 2 \
        "$dir"/{long,long,long,long}.txt >"$dir/shown" 2>&1 </dev/null &
    local job=$!
    until [ -s "$dir/closed_000001.bin.part" ] || ! kill -0 $job; do sleep 0.02; done
    kill -HUP -- -$job
    wait $job
    local status=$?
    [ $status -eq "$1" ] || { echo "status $status" && cat "$dir/shown" && return 1; }
}
check 'a closed terminal ends it' hang_up 129
check 'without a file' test -z "$(ls "$dir" | grep '^closed_')"
preload in_write <<'C'
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
ssize_t write(int fd, const void *bytes, size_t n) {
    ssize_t (*next)(int, const void *, size_t) = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    char link[64], path[4096] = "";
    if (snprintf(link, sizeof link, "/proc/self/fd/%d", fd) > 0 && readlink(link, path, sizeof path - 1) > 0 &&
        strstr(path, "/interrupted_") != NULL)
        raise(SIGHUP);
    return next(fd, bytes, n);
}
C
LD_PRELOAD="$dir/in_write.so" $python dev/tokenize_text.py --tokenizer "$dir/tokenizer.json" --out "$dir/interrupted" --processes 2 \
    "$dir/long.txt" >"$dir/shown" 2>&1
echo "status $?" >>"$dir/shown"
check 'in the middle of a write, too, without a word' test "$(cat "$dir/shown")" = 'status 129'
check 'and without a file' test -z "$(ls "$dir" | grep '^interrupted_')"
check 'but not under nohup' hang_up 0 nohup
check 'which writes its file' test -s "$dir/closed_000001.bin"
# Chats: what the template makes of the assistant's messages is learnt, with the token that ends the turn.
mkdir "$dir/chatty"
cp "$dir/tokenizer.json" "$dir/chatty"
template="{{ bos_token }}{% for m in messages %}"
template+="{% if m.role == 'system' and not loop.first %}{{ raise_exception('SYSTEM COMES FIRST') }}{% endif %}"
template+="[{{ m['role'] | upper }}]{{ m['content'] | trim }}*{% endfor %}{% if add_generation_prompt %}[ASSISTANT]{% endif %}"
printf '{"bos_token": {"content": "<begin>"}, "chat_template": "%s"}' "$template" >"$dir/chatty/tokenizer_config.json"
cat >"$dir/messages.jsonl" <<END
{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": " A "}, {"role": "assistant", "content": " B"}, \
{"role": "user", "content": "C"}, {"role": "assistant", "content": "DE"}]}
{"messages": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}, {"role": "user", "content": "C"}]}
END
# Not learnt, learnt, ...: tokens are characters, 96 and 97 are <begin> and <end>.
said=('`[SYSTEM]S*[USER]A*[ASSISTANT]' 'B*' '[USER]C*[ASSISTANT]' 'DE*a' '`[USER]A*[ASSISTANT]' 'B*' '[USER]C*a')
printf '%s' "${said[@]}" >"$dir/said"
for ((i = 0; i < ${#said[@]}; i++)); do printf "%${#said[i]}s" '' | tr ' ' "\\$((i % 2))"; done >"$dir/said.mask"
chats() { # folder name file option...
    $python dev/tokenize_text.py --tokenizer "$dir/$1" --out "$dir/$2" --end '<end>' --processes 1 --chat messages "${@:3}"
}
check 'chats' chats chatty chats "$dir/messages.jsonl"
check 'they are what the template says' cmp <(characters chats) "$dir/said"
check 'and what the assistant says is learnt' cmp "$dir/chats_000001.bin.mask" "$dir/said.mask"
# Many chats, and a line that is none: by other processes, in the order of the file.
for ((i = 0; i < 20000; i++)); do echo "{\"messages\": [{\"role\": \"user\", \"content\": \"$i?\"}, \
{\"role\": \"assistant\", \"content\": \"$((i * i))\"}]}"; done >"$dir/many.jsonl"
for n in 1 3; do check "many chats, $n processes" chats chatty many$n "$dir/many.jsonl" --processes $n; done
check 'the same from 3 processes' cmp "$dir"/many{1,3}_000001.bin
check 'and masks' cmp "$dir"/many{1,3}_000001.bin.mask
sed '12000s/.*/{/; 18000s/.*/{/' "$dir/many.jsonl" >"$dir/line.jsonl"
check 'the first line that is no chat is named' ends_with 2 'line.jsonl:12000: not a JSON object with a chat' \
    chats chatty other "$dir/line.jsonl" --processes 3
check 'the first process leaves chats to others' $python - "$dir" <<'PY'
import multiprocessing, os, sys
sys.path.insert(0, "dev")
import tokenize_text
multiprocessing.set_start_method("fork")
folder, first, chat_texts = sys.argv[1], os.getpid(), tokenize_text.chat_texts
def elsewhere(*what):
    assert os.getpid() != first
    return chat_texts(*what)
tokenize_text.chat_texts = elsewhere
sys.argv[1:] = ["--tokenizer", folder + "/chatty", "--out", folder + "/left", "--chat", "messages", folder + "/messages.jsonl"]
tokenize_text.main()
PY
# What only the template may say, in a message.
mkdir "$dir/written" && cp "$dir/upper.json" "$dir/written/tokenizer.json"
sed 's/<begin>/<BEGIN>/' "$dir/chatty/tokenizer_config.json" >"$dir/written/tokenizer_config.json"
echo '{"messages": [{"role": "user", "content": "A<BEGIN>"}, {"role": "assistant", "content": "<END>"}]}' >"$dir/written.jsonl"
check 'special tokens that a message has written in it are text' \
    ends_with 0 'note: special tokens that are written in the texts: 2; they are text' \
    upper said --chat messages --tokenizer "$dir/written" "$dir/written.jsonl"
check 'character by character' test "$(characters said)" = '`[USER]A<BEGIN>*[ASSISTANT]<END>*a'
check 'and learnt as such' test "$(od -An -v -tu1 -w100 "$dir/said_000001.bin.mask" | tr -d ' ')" = "$(printf '%027d' 0)1111111"
check 'or these tokens' upper meant --chat messages --tokenizer "$dir/written" --special-tokens "$dir/written.jsonl"
check 'if so asked' test "$(characters meant)" = '`[USER]A`*[ASSISTANT]a*a'
cp -r "$dir/written" "$dir/ascii"
echo '{% for m in messages %}{{ m.content | tojson(ensure_ascii=true) | upper }}*{% endfor %}' >"$dir/ascii/chat_template.jinja"
echo '{"messages": [{"role": "user", "content": "\u00e9<END>\ud83d\ude00"}, {"role": "assistant", "content": "A"}]}' >"$dir/line.jsonl"
check 'also where the template escapes letters' upper ascii --chat messages --tokenizer "$dir/ascii" "$dir/line.jsonl"
check 'all others' test "$(characters ascii)" = '`"\U00E9<END>\UD83D\UDE00"*"A"*a'
# A line end behind the token that ends a turn is not learnt; that of a message is, also behind a special token that is text.
cp -r "$dir/written" "$dir/lines"
printf '%s' "{{ bos_token }}{% for m in messages %}[{{ m.role | upper }}]{{ m.content }}{% if not m.open %}<END>{% endif %}{{ '\n' }}" \
    "{% endfor %}{% if add_generation_prompt %}[ASSISTANT]{% endif %}" >"$dir/lines/chat_template.jinja"
echo '{"messages": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B\n"}, {"role": "user", "content": "C"}, '\
'{"role": "assistant", "open": true, "content": "<END>"}]}' >"$dir/line.jsonl"
check 'a line end behind a turn' upper lines --chat messages --tokenizer "$dir/lines" "$dir/line.jsonl"
check 'is there' test "$(characters lines | tr '\n' n)" = '`[USER]Aan[ASSISTANT]Bnan[USER]Can[ASSISTANT]<END>na'
check 'and not learnt, but that of a message' test "$(od -An -v -tu1 -w100 "$dir/lines_000001.bin.mask" | tr -d ' ')" = \
    "$(printf '%021d1110%020d1111111' 0 0)"
check 'nor where special tokens in texts are none' \
    upper meant_lines --chat messages --tokenizer "$dir/lines" --special-tokens "$dir/line.jsonl"
check 'as which they end a turn' test "$(od -An -v -tu1 -w100 "$dir/meant_lines_000001.bin.mask" | tr -d ' ')" = \
    "$(printf '%021d1110%020d100' 0 0)"
for folder in own anew wrong; do mkdir "$dir/$folder" && cp "$dir/chatty/"* "$dir/$folder"; done
printf '%s' "${template//'*'/+}" >"$dir/own/chat_template.jinja"
check 'a template in a file of its own' chats own own "$dir/messages.jsonl"
check 'is the one that counts' cmp <(characters own) <(tr '*' '+' <"$dir/said")
echo '{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}' >"$dir/anew/chat_template.jinja"
check 'a template that changes what was said before' \
    ends_with 2 'messages.jsonl:1: not a JSON object with a chat in "messages" (see --help): the chat template changes earlier' \
    chats anew other "$dir/messages.jsonl"
# Templates that do not know add_generation_prompt. Llama-3's first one: a prompt behind each chat, which would be learnt.
for folder in always moves; do mkdir "$dir/$folder" && cp "$dir/chatty/"* "$dir/$folder"; done
echo '{{ bos_token }}{% for m in messages %}[{{ m.role | upper }}]{{ m.content | trim }}*{% endfor %}[ASSISTANT]' \
    >"$dir/always/chat_template.jinja"
echo '{"messages": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}]}' >"$dir/one.jsonl"
for chat in one messages; do
    check "a template that writes a prompt behind each chat, $chat" ends_with 2 \
        "$chat.jsonl:1: .*prompt of an answer behind each chat.*{% if add_generation_prompt %}" chats always other "$dir/$chat.jsonl"
done
# Mistral's: what the system says is in the last message of the user.
printf '%s' "{% if messages[0].role == 'system' %}{% set s = messages[0].content %}{% set messages = messages[1:] %}{% endif %}" \
    "{% set users = messages | selectattr('role', 'equalto', 'user') | list %}" \
    "{{ bos_token }}{% for m in messages %}{% if m == users[-1] %}{{ s }}:{% endif %}{{ m.content }}" \
    "{% if m.role == 'assistant' %}*{% endif %}{% endfor %}" >"$dir/moves/chat_template.jinja"
echo '{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}]}' \
    >"$dir/line.jsonl"
check 'one that writes none' chats moves moves "$dir/line.jsonl"
check 'the answer is learnt' test "$(characters moves) $(od -An -v -tu1 "$dir/moves_000001.bin.mask" | tr -d ' ')" = '`S:AB*a 0000111'
mkdir "$dir/older" && cp "$dir/tokenizer.json" "$dir/older"
printf '%s' "{{ bos_token }}{% for m in messages %}[{{ m['role'] | upper }}]{% generation %}{{ m['content'] | trim }}*{% endgeneration %}" \
    "{% endfor %}{% if add_generation_prompt %}[ASSISTANT]{% endif %}" >"$dir/older/chat_template.jinja"
check 'a template that writes a special token which the folder does not name' \
    ends_with 2 "the chat template says: 'bos_token' is undefined" chats older other "$dir/messages.jsonl"
echo '{"bos_token": {"content": "<begin>"}}' >"$dir/older/special_tokens_map.json"
check 'special tokens in a file of their own, and a template that says what is learnt' \
    chats older older "$dir/messages.jsonl"
check 'the same as without' cmp "$dir/older_000001.bin" "$dir/chats_000001.bin"
# Part of an answer, a line end behind a turn, and what no assistant says.
cp -r "$dir/written" "$dir/part"
printf '%s' "{{ bos_token }}{% for m in messages %}[{{ m.role | upper }}]{% if m.role == 'assistant' %}{{ m.thought }}" \
    "{%- generation %}{{ m.content }}<END>{{ '\n' }}{% endgeneration %}{% else %}{%- generation -%}{{ m.content }}{%- endgeneration -%}" \
    "{% endif %}{% endfor %}{% if add_generation_prompt %}[ASSISTANT]{% endif %}" >"$dir/part/chat_template.jinja"
echo '{"messages": [{"role": "user", "content": "A"}, {"role": "assistant", "thought": "HM", "content": "B"}, '\
'{"role": "assistant", "thought": "HM", "content": "C", "weight": 0}, {"role": "assistant", "thought": "", "content": "D"}]}' \
    >"$dir/line.jsonl"
check 'a template that says what part is learnt' upper part --chat messages --tokenizer "$dir/part" "$dir/line.jsonl"
check 'its text' test "$(characters part | tr '\n' n)" = '`[USER]A[ASSISTANT]HMBan[ASSISTANT]HMCan[ASSISTANT]Dana'
check 'that part is learnt' test "$(od -An -v -tu1 -w100 "$dir/part_000001.bin.mask" | tr -d ' ')" = "$(printf '%021d111%027d1111' 0 0)"
echo '{{ bos_token }}{% for m in messages %}{% generation %}{% endgeneration %}{{ m.content }}*{% endfor %}' \
    >"$dir/part/chat_template.jinja"
check 'one that says that nothing is' ends_with 2 'the chat template says what is learnt ({% generation %}), and that is nothing' \
    upper other --chat messages --tokenizer "$dir/part" "$dir/line.jsonl"
echo '{% if %}' >"$dir/wrong/chat_template.jinja"
check 'a template that is none' ends_with 2 'wrong: the chat template cannot be read: ' chats wrong other "$dir/messages.jsonl"
check 'no template' ends_with 2 'no chat template in chat_template.jinja or tokenizer_config.json' \
    chats tokenizer.json other "$dir/messages.jsonl"
user='{"role": "user", "content": "A"}'
while IFS='|' read -r text line; do
    echo "$line" >"$dir/line.jsonl"
    check "a chat that is refused: $text" ends_with 2 "^error: .*line.jsonl:1: .*$text" chats chatty other "$dir/line.jsonl"
done <<END
the chat template says: SYSTEM COMES FIRST$|{"messages": [$user, {"role": "system", "content": "B"}, {"role": "assistant", "content": "C"}]}
no message of the assistant is there to be learnt$|{"messages": [$user]}
no message of the assistant is there to be learnt$|{"messages": [$user, {"role": "assistant", "content": "B", "weight": 0}]}
the weight of message 2 is neither 0 nor 1$|{"messages": [$user, {"role": "assistant", "content": "B", "weight": "0"}]}
it holds no list of messages with roles$|{"messages": ["A"]}
the content of message 2 is not a text$|{"messages": [$user, {"role": "assistant", "content": null}]}
the content of message 1 is not a text$|{"messages": [{"role": "user", "content": [{"type": "text", "text": "A"}]}, \
{"role": "assistant", "content": "B"}]}
a chat in "messages" (see --help)$|{"text": "A"}
message 2, of the assistant, is empty$|{"messages": [$user, {"role": "assistant", "content": " "}]}
message 2, of the assistant, is empty$|{"messages": [$user, {"role": "assistant", "content": "", "tool_calls": []}]}
the chat template makes nothing of the tools$|{"tools": [{"function": {"name": "F"}}], "messages": [$user, \
{"role": "assistant", "content": "B"}]}
the chat template makes nothing of tool_calls in message 2$|{"messages": [$user, \
{"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "F", "arguments": "{}"}}]}]}
a chat in "messages" (see --help)$|{"messages": [$user, {"role": "assistant", "tool_calls": "F"}]}
surrogates not allowed$|{"messages": [$user, \
{"role": "assistant", "tool_calls": [{"function": {"name": "F", "arguments": "{\"X\": \"\\\\ud83d\"}"}}]}]}
END
# Tools: their definitions are in the prompt, the assistant's calls are learnt; arguments may be an object or JSON, as may the definitions.
mkdir "$dir/tools" && cp "$dir/chatty/"* "$dir/tools"
printf '%s' "{{ bos_token }}{% for t in tools or [] %}[TOOL]{{ t.function.name }}*{% endfor %}" \
    "{% for m in messages %}[{{ m['role'] | upper }}]" \
    "{% if m.tool_calls is defined and m.tool_calls | length != 1 %}{{ raise_exception('ONE CALL') }}{% endif %}" \
    "{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.name }}({{ c.function.arguments.X | tojson(ensure_ascii=false) }})" \
    "{% endfor %}" \
    "{% else %}{{ m['content'] }}{% endif %}*{% endfor %}" \
    "{% if add_generation_prompt %}[ASSISTANT]{% endif %}" >"$dir/tools/chat_template.jinja"
call='{"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "F", "arguments": %s}}]}'
tools='{"tools": %s, "messages": [{"role": "user", "content": "A", "tool_calls": null}, '"$call"', '
tools+='{"role": "tool", "content": "B"}, {"role": "assistant", "content": "C", "tool_calls": [], "weight": %s}]}\n'
printf "$tools" '[{"function": {"name": "F"}}]' '{"X": 1}' 1 '"[{\"function\": {\"name\": \"F\"}}]"' '"{\"X\": 1}"' 0 \
    null '{"X": 1}' null >"$dir/tools.jsonl"
said=('`[TOOL]F*[USER]A*[ASSISTANT]' 'F(1)*' '[TOOL]B*[ASSISTANT]' 'C*a' '`[TOOL]F*[USER]A*[ASSISTANT]' 'F(1)*'
    '[TOOL]B*[ASSISTANT]C*a`[USER]A*[ASSISTANT]' 'F(1)*' '[TOOL]B*[ASSISTANT]' 'C*a')
printf '%s' "${said[@]}" >"$dir/said"
for ((i = 0; i < ${#said[@]}; i++)); do printf "%${#said[i]}s" '' | tr ' ' "\\$((i % 2))"; done >"$dir/said.mask"
check 'tools' chats tools tools "$dir/tools.jsonl"
check 'are what the template says' cmp <(characters tools) "$dir/said"
check 'and calls are learnt, messages of weight 0 are not' cmp "$dir/tools_000001.bin.mask" "$dir/said.mask"
# Templates that write arguments as a text: as it was.
printf "$tools" '[{"function": {"name": "F"}}]' '"{\"X\":  1}"' 1 >"$dir/as_text.jsonl"
for sign in + '~'; do
    mkdir "$dir/text$sign" && cp "$dir/tools/"* "$dir/text$sign"
    sed "s/{{ c.function.name }}(.*) }})/{{ c.function.name + '(' $sign c.function.arguments $sign ')' }}/" \
        "$dir/tools/chat_template.jinja" >"$dir/text$sign/chat_template.jinja"
    check "a template that takes arguments as a text, $sign" chats text$sign text$sign "$dir/as_text.jsonl"
    check "gets the text, $sign" test "$(characters text$sign)" = '`[TOOL]F*[USER]A*[ASSISTANT]F("X":  1)*[TOOL]B*[ASSISTANT]C*a'
done
# A template for chats with tools, and one for the others: in two files, or in a list.
cp -r "$dir/tools" "$dir/uses" && mkdir "$dir/uses/additional_chat_templates"
mv "$dir/uses/chat_template.jinja" "$dir/uses/additional_chat_templates/tool_use.jinja"
cp -r "$dir/uses" "$dir/lists" && rm -r "$dir/lists/additional_chat_templates"
$python - "$dir" <<'PY'
import json, sys
folder = sys.argv[1]
settings = json.load(open(folder + "/uses/tokenizer_config.json"))
templates = dict(tool_use=open(folder + "/uses/additional_chat_templates/tool_use.jinja").read(), default=settings["chat_template"])
settings["chat_template"] = [dict(name=name, template=template) for name, template in templates.items()]
json.dump(settings, open(folder + "/lists/tokenizer_config.json", "w"))
PY
{ head -1 "$dir/tools.jsonl" && tail -1 "$dir/messages.jsonl"; } >"$dir/with_tools.jsonl"
for folder in uses lists; do
    check "a template for chats with tools, $folder" chats $folder $folder "$dir/with_tools.jsonl"
    check "is for these, $folder" test "$(characters $folder)" = \
        '`[TOOL]F*[USER]A*[ASSISTANT]F(1)*[TOOL]B*[ASSISTANT]C*a`[USER]A*[ASSISTANT]B*[USER]C*a'
done
printf '%s' "{{ bos_token }}{% for m in messages %}[{{ m['role'] | upper }}]{{ m['content'] }}*{% endfor %}" \
    "{% if add_generation_prompt %}[ASSISTANT]{% endif %}" >"$dir/uses/additional_chat_templates/tool_use.jinja"
echo '{"tools": [{"function": {"name": "F"}}], "messages": [{"role": "user", "content": " A"}, {"role": "assistant", "content": "B"}]}' \
    >"$dir/line.jsonl"
check 'that must make something of the tools' ends_with 2 'the chat template makes nothing of the tools$' \
    chats uses other "$dir/line.jsonl"
cp "$dir/uses/additional_chat_templates/tool_use.jinja" "$dir/lists/chat_template.jinja"
check 'beside chat_template.jinja a list does not count' ends_with 2 'the chat template makes nothing of the tools$' \
    chats lists other "$dir/line.jsonl"
cp -r "$dir/written" "$dir/keys"
printf '%s' "{% for m in messages %}{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}" \
    "{% endfor %}{% endfor %}*{% endfor %}" >"$dir/keys/chat_template.jinja"
printf '{"messages": [{"role": "user", "content": "A"}, '"$call"']}\n' '"{\"<BEGIN>\": \"\\u003cEND>\"}"' >"$dir/keys.jsonl"
check 'special tokens in JSON within JSON are text, too' upper keys --chat messages --tokenizer "$dir/keys" "$dir/keys.jsonl"
check 'in names and values' test "$(characters keys)" = '`*<BEGIN>=<END>*a'
printf '{"tools": "", "messages": [{"role": "user", "content": "A"}, '"$call"']}\n' '""' >"$dir/line.jsonl"
check 'no tools and no arguments, as empty texts' ends_with 2 'the chat template makes nothing of tool_calls in message 2$' \
    upper other --chat messages --tokenizer "$dir/keys" "$dir/line.jsonl"
printf '{"messages": [{"role": "user", "content": "A"}, '"${call/null/\"B\"}"']}\n' '{"X": 1}' >"$dir/line.jsonl"
check 'a text beside a call that the template leaves out' ends_with 2 'the chat template makes nothing of content in message 2$' \
    chats tools other "$dir/line.jsonl"
check 'a field that is prompt and completion is learnt once' tokenize same --prompt answer --completion answer "$dir/pairs.jsonl"
check 'the second time' [ "$(head -c 6 "$dir/same_000001.bin.mask" | od -An -tu1 | xargs)" = '0 0 0 1 1 1' ]
one='of --field, --prompt with --completion, and --chat only one'
check 'a field that would not be read' refused "$one" other --field text --chat messages "$dir/messages.jsonl"
check 'a chat beside a prompt' refused "$one" other --chat messages "${pairs[@]}" "$dir/messages.jsonl"
ids() { $python dev/tokenize_text.py --tokenizer "$dir/tokenizer.json" --ids "$1"; }
check 'the tokens of a prompt' test "$(ids 'A B!')" = 96,65,32,66,33
check 'the trainer takes them' bash -c "'$binary' --model tiny --from-scratch --threads 1 --steps 0 --seq-len 256 \
    --val-data '$dir/pairs_*.bin' --sample-every 1 --sample-tokens 2 --sample-prompt '$(ids 'A B!')' | grep -q 'after 96 65 32 66 33$'"
check 'a prompt that begins with what the tokenizer adds' test "$(ids '<begin>A')" = 96,65
# Tokens are those of the whole text, encoded at once, with tokenizers like Llama-3's, and Llama-2's, which has no words and puts a space
# before a text: also behind special tokens (legacy), or not.
cat >"$dir/whole.py" <<'PY'
"""Makes these tokenizers, checks that random texts are cut where that changes no token, and writes what chats and pairs must become."""
import array, io, random, sys
sys.path.insert(0, "dev")
import tokenize_text
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
folder = sys.argv[1]
def make(space, letters, more, **settings):
    merges = [(space, "A"), (space, space), ("A", "A"), ("1", "2"), ("12", "1"), (space + "A", "A"), (space + space, space + space)]
    merges += [("A", ".")] + more
    tokens = ["<unk>", "<s>", "</s>"] + letters + [a + b for a, b in merges]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges, **settings))
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in tokens[:3] + ["§", "[S]"]])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer
def llama2(more=[]):
    letters = [f"<0x{i:02X}>" for i in range(256)] + [chr(i) for i in range(33, 127)] + ["▁"]
    tokenizer = make("▁", letters, more, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizers = {"llama3": make("Ġ", letters, [("Ċ", "Ċ"), (".", "Ċ")]), "legacy": llama2(), "llama2": llama2()}
words = Regex(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
tokenizers["llama3"].pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(words, "isolated"), level])
tokenizers["llama3"].decoder = decoders.ByteLevel()
tokenizers["legacy"].normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
tokenizers["llama2"].pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
random.seed(1)
parts = list(" \n\r\t/>.,'1Aé你😀\u0301\u3000") + ["\n\n", "  ", " A", "A。", "、", "\r\n", "A A", "12", "'s", "A.\n", "</s>", "[S]"]
texts = ["".join(random.choices(parts, k=random.randint(1, 100))) for _ in range(300)]
tokenize_text.BATCH_BYTES, cuts = 20, 0
for name, tokenizer in tokenizers.items():
    tokenizer.save(f"{folder}/{name}.json")
    place = tokenize_text.cut_places(tokenizer)
    assert place.pattern.split("|") == list(tokenize_text.CUT_PLACES), name
    for i, text in enumerate(texts):
        if i % 150 == 0: # special tokens that are written in a text: for half of them these tokens, then text
            tokenize_text.use(f"{folder}/{name}.json", None, i == 0, False)
        pieces = list(tokenize_text.pieces(tokenize_text.cut(io.StringIO(text, newline=""), place)))
        cuts += len(pieces) - 1
        assert array.array("I", tokenize_text.encode(pieces)[0]).tolist() == tokenize_text.tokenizer.encode(text).ids, (name, text, pieces)
assert cuts > 1500, cuts
assert not tokenize_text.cut_places(llama2([("A", "▁A")])).search("A A"), "a token of two words"
assert tokenize_text.cut_places(llama2([("A", "▁A")])).search("A。"), "cuts elsewhere"
begin = {name: " ".join(tokenizer.encode("<s>[", add_special_tokens=False).tokens[:-1]) # older versions: a space for llama2, too
         for name, tokenizer in tokenizers.items()}
said = [("[ I N S T ] ▁A ▁ < / s > <0xC2> <0xA7> ▁ 12 ▁ [ / I N S T ]", 0), ("▁A 12 ▁ </s>", 1)]
for name, what, stretches in (("legacy", "chats", [(begin["legacy"], 0)] + said), ("llama2", "chats", [(begin["llama2"], 0)] + said),
                              ("llama2", "pairs", [("<s> ▁", 0), ("121 ▁A </s>", 1)]),
                              ("llama3", "pairs", [("<s>", 0), ("121 ĠA </s>", 1)])):
    numbers = [(tokenizers[name].token_to_id(token), learnt) for tokens, learnt in stretches for token in tokens.split()]
    lines = (" ".join(map(str, column)) + "\n" for column in zip(*numbers))
    open(f"{folder}/{name}-{what}.ids", "w").write("".join(lines))
PY
check 'long texts are cut where that changes no token' $python "$dir/whole.py" "$dir"
echo '{"chats": [{"role": "user", "content": "A </s>§ 12"}, {"role": "assistant", "content": "A12"}]}' >"$dir/chats.jsonl"
echo '{"prompt": "12", "answer": "1 A"}' >"$dir/whole.jsonl"
whole() { # name, chats or pairs, option...: these become the tokens that whole.py says
    mkdir -p "$dir/whole-$1" && cp "$dir/$1.json" "$dir/whole-$1/tokenizer.json" || return
    printf '{"bos_token": "<s>", "eos_token": "</s>"}' >"$dir/whole-$1/tokenizer_config.json"
    local template="{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    echo "$template{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}" >"$dir/whole-$1/chat_template.jinja"
    $python dev/tokenize_text.py --tokenizer "$dir/whole-$1" --out "$dir/$1-$2" --processes 1 "${@:3}" || return
    { tail -c +1025 "$dir/$1-$2_000001.bin" | od -An -v -tu2 -w200 | xargs; od -An -v -tu1 -w100 "$dir/$1-$2_000001.bin.mask" | xargs; } |
        diff - "$dir/$1-$2.ids"
}
for name in legacy llama2; do
    check "chats are encoded at once, also around special tokens that are text, $name" whole $name chats --chat chats "$dir/chats.jsonl"
done
for name in llama2 llama3; do
    check "and prompts with completions, $name" whole $name pairs --end '</s>' "${pairs[@]}" "$dir/whole.jsonl"
done
mkdir "$dir/none"
echo 'raise ModuleNotFoundError(name="tokenizers")' >"$dir/none/tokenizers.py"
check 'without the package: status 2' ends_with 2 '^error: the package tokenizers is missing: pip install tokenizers$' \
    env PYTHONPATH="$dir/none" $python dev/tokenize_text.py --tokenizer "$dir/tokenizer.json" --ids A
check 'and one line' [ "$(wc -l <"$dir/shown")" = 1 ]
mkdir "$dir/before"
echo 'class Tokenizer: pass' >"$dir/before/tokenizers.py"
check 'a package that cannot take special tokens as text' ends_with 2 '^error: the package tokenizers is older than 0.15.1: ' \
    env PYTHONPATH="$dir/before" $python dev/tokenize_text.py --tokenizer "$dir/tokenizer.json" --ids A
$python -c "import json
tokenizer = json.load(open('$dir/tokenizer.json'))
tokenizer['model'] = dict(type='WordLevel', vocab=dict(A=0), unk_token='<none>')
json.dump(tokenizer, open('$dir/words.json', 'w'))"
check 'a tokenizer that fails' ends_with 2 'words.json: the tokenizer says: ' \
    $python dev/tokenize_text.py --tokenizer "$dir/words.json" --out "$dir/words" "$dir/odd.txt"
check '--help needs none' env PYTHONPATH="$dir/none" $python dev/tokenize_text.py --help
check 'a prompt beside files' refused 'takes neither files nor other options' other --ids A "$dir/long.txt"
check 'a prompt with an option that has no effect' ends_with 2 'takes neither files nor other options' \
    $python dev/tokenize_text.py --tokenizer "$dir/tokenizer.json" --ids A --end '<end>'
closing_line
