#!/usr/bin/env python3
"""Text -> llm.c token files, with a Hugging Face tokenizer.

    python3 dev/tokenize_text.py --tokenizer LLAMA_FOLDER --out data/train books/*.txt notes.jsonl.gz

Writes data/train_000001.bin, data/train_000002.bin, ... which train_llama reads with --train-data 'data/train_*.bin'.
Each .txt file is one document; each line of a .jsonl file is one, in its field "text" (--field); .gz is unpacked on the way.
The tokenizer adds its own special tokens (Llama-3: <|begin_of_text|> before each document, unless the text begins with it); --end adds its token after
each document.

    python3 dev/tokenize_text.py --tokenizer LLAMA_FOLDER --out data/tuning --prompt prompt --completion answer --end '<|end_of_text|>' pairs.jsonl

For fine-tuning: each line is a document of a prompt and a completion. Beside each token file it writes a loss mask, data/tuning_000001.bin.mask,
with one byte per token: 1 for the tokens of completions and --end, which are learnt, 0 for those of prompts. Both may hold special tokens.

    python3 dev/tokenize_text.py --tokenizer LLAMA_FOLDER --out data/chats --chat messages chats.jsonl

Each line is a document of messages, put into words by the chat template of the tokenizer's folder. What the model would write is learnt: each message of
the assistant, up to the token that ends its turn (Llama-3: <|eot_id|>, which so cannot be --end, the end of documents):

    {"messages": [{"role": "user", "content": "6 x 7?"}, {"role": "assistant", "content": "42"}]}

A message with "weight": 0 is not learnt. Tools that the line defines in "tools", and "tool_calls" of the assistant, go to the template as well; a template that
makes nothing of them is refused.

    python3 dev/tokenize_text.py --tokenizer LLAMA_FOLDER --out data/whole --sequence 131072 --end '<|end_of_text|>' notes.jsonl

For samples of --seq-len 131072 that cut no document which fits one: whole documents are put together where least room is left. The rest of a sample is
filled with the token that separates documents, and masks say that it is not learnt.

    python3 dev/tokenize_text.py --tokenizer LLAMA_FOLDER --ids 'Once upon a time'

Prints the tokens of a text in the form that --sample-prompt accepts.
Packages: pip install tokenizers, for --chat also jinja2
"""
import argparse
import array
import collections
import glob
import gzip
import json
import multiprocessing
import os
import sys
import time
import zlib

OPEN_SAMPLES = 64  # of --sequence: they wait for documents that fit
BATCH_BYTES = 1 << 20  # the text that a process gets at a time; a longer document is cut at a line end

tokenizer = None  # each process has its own
end_token = None
begin_token = None  # what the tokenizer puts before each text


def fail(text):
    print(f"error: {text}", file=sys.stderr)
    sys.exit(2)


def load(path):
    """The tokenizer without the truncation and padding that a folder's last user may have stored in it."""
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as e:
        fail(f"the package {e.name} is missing: pip install tokenizers")
    try:
        loaded = Tokenizer.from_file(path)
    except Exception as e:  # the package has no type of its own for it
        fail(f"{path}: not a tokenizer.json: {e}")
    loaded.no_truncation()
    loaded.no_padding()
    return loaded


def begins_with(tokenizer):
    """The token that the tokenizer puts before each text; None: none."""
    encoded = tokenizer.encode("A")
    return encoded.ids[0] if encoded.special_tokens_mask[:1] == [1] else None


def encode_whole(tokenizer, text):
    """The tokens of a text with the special ones that the tokenizer adds. A text that begins with the first of them, as chat templates do, has it once."""
    encoded = tokenizer.encode(text)
    ids = encoded.ids
    return ids[1:] if len(ids) > 1 and ids[0] == ids[1] and encoded.special_tokens_mask[:2] == [1, 0] else ids


def start(path, end):
    global tokenizer, end_token, begin_token
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer, end_token = load(path), end
    begin_token = begins_with(tokenizer)


def encode(batch):
    """batch: [(text, first piece of its document, last piece, learnt)] -> (token ids as bytes of uint32, their mask, bytes of text, how often end_token
    and begin_token occur inside the texts, where documents end)"""
    ids, mask, ends, begins, stops = array.array("I"), bytearray(), 0, 0, []
    for text, first, last, learnt in batch:
        if first:
            piece = encode_whole(tokenizer, text)
        else:  # the middle of a document: no special tokens are added
            piece = tokenizer.encode(text, add_special_tokens=False).ids
        ends += piece.count(end_token)
        begins += piece.count(begin_token) - (1 if first and begin_token is not None else 0)
        ids.extend(piece)
        if last and end_token is not None:
            ids.append(end_token)
        mask.extend((b"\1" if learnt else b"\0") * (len(ids) - len(mask)))
        if last:
            stops.append(len(ids))
    return ids.tobytes(), bytes(mask), sum(len(item[0].encode()) for item in batch), ends, begins, stops


def pieces(text_lines):
    """The lines of one document -> pieces (text, first, last, learnt) of at most about BATCH_BYTES, cut at line ends."""
    piece, size, first = [], 0, True
    for line in text_lines:
        if size > 0 and size + len(line) > BATCH_BYTES:
            yield "".join(piece), first, False, True
            piece, size, first = [], 0, False
        piece.append(line)
        size += len(line)
    if size > 0:
        yield "".join(piece), first, True, True


def chat_template(folder):
    """The chat template of a Hugging Face folder: a function of messages, of tools (None: none), and of whether the prompt for an answer follows. A date in it
    is its default."""
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ModuleNotFoundError as e:
        fail(f"the package {e.name} is missing: pip install jinja2")

    def raise_exception(text):
        raise TemplateError(text)

    def render(messages, tools, prompt=False):
        try:
            return template.render(messages=messages, tools=tools, add_generation_prompt=prompt, **special)
        except (TemplateError, TypeError) as e:
            raise ValueError(f"the chat template says: {e}")

    config, own = os.path.join(folder, "tokenizer_config.json"), os.path.join(folder, "chat_template.jinja")
    try:
        settings = json.load(open(config, encoding="utf-8")) if os.path.isfile(config) else {}
        source = open(own, encoding="utf-8").read() if os.path.isfile(own) else settings.get("chat_template")
        if isinstance(source, list):  # several, by name
            source = {item["name"]: item["template"] for item in source}.get("default")
        if source is None:
            fail(f"{folder}: no chat template in chat_template.jinja or tokenizer_config.json")
        special = {name: settings[name] for name in ("bos_token", "eos_token") if settings.get(name) is not None}
        special = {name: token["content"] if isinstance(token, dict) else token for name, token in special.items()}
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        environment.globals["raise_exception"] = raise_exception
        environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
        template = environment.from_string(source)
    except (AttributeError, KeyError, OSError, TypeError, ValueError, TemplateError) as e:
        fail(f"{folder}: the chat template cannot be read: {e}")
    return render


def chat_texts(render, messages, tools):
    """Messages, and the tools that they may use (None: none) -> [(text, learnt)]. Learnt is what the template makes of a message of the assistant, behind the
    prompt that the messages before it make."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) and "role" in message for message in messages):
        raise ValueError("it holds no list of messages with roles")
    tools = (json.loads(tools) if isinstance(tools, str) else tools) or None
    messages = [{key: value for key, value in message.items() if value is not None} for message in messages]  # null: as if it were not there
    for i, message in enumerate(messages, 1):
        calls = message.get("tool_calls", [])
        for call in calls:  # templates take the arguments as an object, and would quote JSON in a text once more
            function = call.get("function", call)
            if isinstance(function.get("arguments"), str):
                function["arguments"] = json.loads(function["arguments"])
        if calls:
            message.setdefault("content", "")
        # Templates make Python's notation of what is no text, such as a list of parts.
        if message["role"] in ("system", "user", "assistant") and not isinstance(message.get("content"), str):
            raise ValueError(f"the content of message {i} is not a text")
        if message["role"] == "assistant" and not message["content"].strip() and not calls:
            raise ValueError(f"message {i}, of the assistant, is empty")
    texts, done = [], ""

    def ignores(i, name, nothing):
        """Whether the template makes the same text of message i with nothing in place of this part of it."""
        try:
            return render(messages[:i] + [{**messages[i], name: nothing}], tools) == render(messages[: i + 1], tools)
        except ValueError:  # it is missed
            return False

    def add(whole, learnt):
        nonlocal done
        if not whole.startswith(done):
            raise ValueError("the chat template changes earlier messages when later ones follow: their text was never a prompt")
        if whole != done:
            texts.append((whole[len(done) :], learnt))
        done = whole

    for i, message in enumerate(messages):
        if message["role"] == "assistant":
            add(render(messages[:i], tools, True), False)
            add(render(messages[: i + 1], tools), message.get("weight") != 0)
        for name, nothing in (("tool_calls", []), ("content", "")):
            if message.get("tool_calls") and str(message[name]).strip() and ignores(i, name, nothing):
                raise ValueError(f"the chat template makes nothing of {name} in message {i + 1}")
    if not any(learnt for _, learnt in texts):
        raise ValueError("no message of the assistant is there to be learnt")
    add(render(messages, tools), False)
    if tools is not None and done == render(messages, None):
        raise ValueError("the chat template makes nothing of the tools")
    return texts


def documents(paths, fields, render):
    """The pieces of all documents. fields: the field of a text, or those of a prompt and a completion; or, with a chat template, that of messages"""
    for path in paths:
        opener = gzip.open if path.endswith(".gz") else open
        with opener(path, "rt", encoding="utf-8", errors="strict", newline="") as f:
            try:
                if not path.removesuffix(".gz").endswith(".jsonl"):
                    yield from pieces(f)
                    continue
                for number, line in enumerate(f, 1):
                    if not line.strip():
                        continue
                    try:
                        item = json.loads(line)
                        if render is not None:
                            texts = chat_texts(render, item[fields[0]], item.get("tools"))
                        else:
                            texts = [(item[field], i == len(fields) - 1) for i, field in enumerate(fields)]
                        "".join(text for text, _ in texts).encode()  # an error if one is not text, or holds half a surrogate pair
                    except (AttributeError, ValueError, KeyError, TypeError) as e:
                        names = '" and "'.join(fields)
                        holds = "a text" if render is None else "a chat"
                        why = f": {e}" if render is not None and isinstance(e, ValueError) else ""
                        fail(f'{path}:{number}: not a JSON object with {holds} in "{names}" (see --help){why}')
                    if len(texts) == 1:
                        yield from pieces(texts[0][0].splitlines(keepends=True))
                        continue
                    for i, (text, learnt) in enumerate(texts):
                        yield text, i == 0, i == len(texts) - 1, learnt
            except UnicodeDecodeError as e:
                fail(f"{path}: not UTF-8 text: {e}")
            except (EOFError, OSError, zlib.error) as e:
                fail(f"{path}: cannot be read: {e}")


def batches(items):
    batch, size = [], 0
    for item in items:
        batch.append(item)
        size += len(item[0])
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class Samples:
    """--sequence: whole documents in samples of `length` tokens, each where least room is left, filled up with `filler`. A document that is longer than a
    sample has samples of its own, and its rest is placed as a document. The first token of a piece is not learnt: what is before it is not its text."""

    def __init__(self, shards, length, filler):
        self.shards, self.length, self.filler, self.filled = shards, length, filler, 0
        self.open = []  # (ids, mask) with room left
        self.ids, self.mask = array.array("I"), bytearray()  # of the document that is being read

    def write(self, ids, mask, stops):
        at = 0
        for i, stop in enumerate(stops + [len(ids)]):  # behind the last stop: the beginning of a document
            self.ids.extend(ids[at:stop])
            self.mask.extend(mask[at:stop])
            while len(self.ids) >= self.length:
                self.mask[0] = 0
                self.shards.write(self.ids[: self.length], self.mask[: self.length])
                del self.ids[: self.length], self.mask[: self.length]
            if i < len(stops) and len(self.ids) > 0:
                self.place()
            at = stop

    def place(self):
        self.mask[0] = 0
        fitting = [i for i, (ids, _) in enumerate(self.open) if len(ids) + len(self.ids) <= self.length]
        if not fitting and len(self.open) == OPEN_SAMPLES:
            self.finish(max(range(OPEN_SAMPLES), key=lambda i: len(self.open[i][0])))
        if not fitting:
            self.open.append((array.array("I"), bytearray()))
        best = max(fitting, key=lambda i: len(self.open[i][0]), default=len(self.open) - 1)
        ids, mask = self.open[best]
        ids.extend(self.ids)
        mask.extend(self.mask)
        self.ids, self.mask = array.array("I"), bytearray()
        if len(ids) == self.length:
            self.finish(best)

    def finish(self, i):
        ids, mask = self.open.pop(i)
        room = self.length - len(ids)
        self.filled += room
        self.shards.write(ids + array.array("I", [self.filler]) * room, mask + bytes(room))

    def close(self):
        while self.open:
            self.finish(0)
        self.shards.close()


class Shards:
    """Token files of at most `most` tokens each; a file gets its final name when it is complete."""

    def __init__(self, prefix, width, most, masked):
        self.prefix, self.width, self.most, self.masked = prefix, width, most, masked
        self.count, self.file, self.files = 0, None, 0

    def write(self, ids, mask, _stops=None):
        while len(ids) > 0:
            if self.file is None:
                self.path = f"{self.prefix}_{self.files + 1:06d}.bin"
                self.file, self.count = open(self.path + ".part", "wb"), 0
                self.file.write(bytes(1024))
                self.mask = open(self.path + ".mask", "wb") if self.masked else None
            part = ids[: self.most - self.count]
            ids = ids[len(part):]
            if self.mask is not None:
                self.mask.write(mask[: len(part)])
                mask = mask[len(part):]
            part = array.array("H" if self.width == 2 else "I", part)
            if sys.byteorder == "big":
                part.byteswap()
            part.tofile(self.file)
            self.count += len(part)
            if self.count == self.most:
                self.close()

    def close(self):
        if self.file is None:
            return
        magic, version = (20240520, 1) if self.width == 2 else (20240801, 7)
        self.file.seek(0)
        for number in (magic, version, self.count):
            self.file.write(number.to_bytes(4, "little"))
        self.file.close()
        if self.mask is not None:
            self.mask.close()
        os.replace(self.path + ".part", self.path)
        self.file, self.files = None, self.files + 1


def main():
    parser = argparse.ArgumentParser(description="Text files -> llm.c token files, with a Hugging Face tokenizer.")
    parser.add_argument("files", nargs="*", help=".txt, .jsonl, or either with .gz")
    parser.add_argument("--tokenizer", required=True, help="tokenizer.json, or the folder that holds it")
    parser.add_argument("--out", metavar="PREFIX", help="write PREFIX_000001.bin, ...")
    parser.add_argument("--ids", metavar="TEXT", help="print the tokens of TEXT, for --sample-prompt, and write nothing")
    parser.add_argument("--field", default="text", help="field of a JSON line that holds the text [text]")
    parser.add_argument("--prompt", metavar="FIELD", help="field of a JSON line with text that is not trained on; with --completion, in place of --field")
    parser.add_argument("--completion", metavar="FIELD", help="field of a JSON line with text that is trained on")
    parser.add_argument("--chat", metavar="FIELD", help="field of a JSON line with messages; those of the assistant are trained on")
    parser.add_argument("--end", metavar="TOKEN", help="token after each document, such as '<|end_of_text|>'")
    parser.add_argument("--sequence", type=int, metavar="N", help="samples of N tokens (--seq-len) that cut no document which fits one")
    parser.add_argument("--shard-tokens", type=int, default=100_000_000, metavar="N", help="tokens per file [100000000]")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), metavar="N", help="[number of cores]")
    args = parser.parse_args()
    if not 1 <= args.shard_tokens < 1 << 31 or args.processes < 1:
        parser.error("--shard-tokens must be from 1 to 2147483647, and --processes 1 or more")
    if args.sequence is not None and not 2 <= args.sequence <= args.shard_tokens:
        parser.error("--sequence must be from 2 to --shard-tokens")
    if (args.prompt is None) != (args.completion is None):
        parser.error("--prompt and --completion must be given together")
    if args.chat is not None and args.prompt is not None:
        parser.error("--chat takes neither --prompt nor --completion")
    for path in args.files:
        if not os.path.isfile(path):
            parser.error(f"{path}: no such file")
        if path.removesuffix(".gz").endswith(".json"):
            parser.error(f"{path}: is not read as plain text; JSON lines are .jsonl")
        if (args.prompt or args.chat) is not None and not path.removesuffix(".gz").endswith(".jsonl"):
            parser.error(f"{path}: {'--chat is a field' if args.chat else '--prompt and --completion are fields'} of JSON lines; give .jsonl files")
    path = os.path.join(args.tokenizer, "tokenizer.json") if os.path.isdir(args.tokenizer) else args.tokenizer
    if not os.path.isfile(path):
        parser.error(f"{path}: no such file; a model's Hugging Face folder contains it")
    if args.ids is not None:
        if args.files or args.out:
            parser.error("--ids takes neither files nor --out")
        print(",".join(map(str, encode_whole(load(path), args.ids))))
        return
    if not args.files or args.out is None:
        parser.error("files and --out are missing (or give --ids TEXT)")
    if glob.glob(glob.escape(args.out) + "_[0-9]*.bin*"):
        parser.error(f"{args.out}_*.bin or its mask: already exists; remove the files or give another --out")
    known = load(path)
    end = known.token_to_id(args.end) if args.end else None
    if args.end and end is None:
        parser.error(f"--end {args.end}: not a token of {path}")
    vocabulary = 1 + max(known.get_vocab(with_added_tokens=True).values())
    width = 2 if vocabulary <= 1 << 16 else 4
    os.makedirs(os.path.dirname(args.out) or ".", exist_ok=True)

    fields = [args.chat] if args.chat is not None else [args.prompt, args.completion] if args.prompt is not None else [args.field]
    render = chat_template(os.path.dirname(path)) if args.chat is not None else None
    begin = begins_with(known)
    if args.sequence is not None and end is None and begin is None:
        parser.error("--sequence needs a token between documents: the tokenizer puts none before them, so give --end")
    length = args.sequence or 1
    shards = Shards(args.out, width, args.shard_tokens // length * length, (args.chat or args.prompt or args.sequence) is not None)
    samples = shards if args.sequence is None else Samples(shards, length, begin if end is None else end)
    tokens, read, began, shown, waiting = 0, 0, time.time(), 0.0, collections.deque()
    ends = begins = 0

    def take():  # the oldest batch: results come in the order of the files
        nonlocal tokens, read, shown, ends, begins
        data, mask, size, batch_ends, batch_begins, stops = waiting.popleft().get()
        ends, begins = ends + batch_ends, begins + batch_begins
        ids = array.array("I")
        ids.frombytes(data)
        samples.write(ids, mask, stops)
        tokens, read, seconds = tokens + len(ids), read + size, time.time() - began
        if seconds - shown > 2:
            shown = seconds
            print(f"{read / 1e6:.1f} MB of text, {tokens / 1e6:.2f} M tokens, {read / 1e6 / seconds:.1f} MB/s", file=sys.stderr, flush=True)

    with multiprocessing.Pool(args.processes, start, (path, end)) as pool:
        for batch in batches(documents(args.files, fields, render)):
            waiting.append(pool.apply_async(encode, (batch,)))
            if len(waiting) > 2 * args.processes:  # files may be larger than memory
                take()
        while waiting:
            take()
    samples.close()
    if tokens == 0:
        fail("the input files contain no text")
    for count, token, does in ((ends, end, "end"), (begins if begin != end else 0, begin, "begin")):
        if count > 0:
            print(f"warning: tokens {token} ({known.id_to_token(token)}) inside the texts: {count}; with --document-{does} {token} each would {does} a document",
                  file=sys.stderr)
    print(f"{args.out}_*.bin: {tokens} tokens of {width} bytes in {shards.files} files, vocabulary {vocabulary}, {read / 1e6:.1f} MB of text"
          + (f", and {samples.filled} to fill up samples of {length}" if args.sequence is not None else ""))


if __name__ == "__main__":
    try:
        main()
    except OSError as e:  # a folder that cannot be written, a full disk
        fail(f"{e.filename}: {e.strerror}" if e.filename else f"--out: {e.strerror}")
