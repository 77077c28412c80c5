#!/usr/bin/env python3
"""Text -> llm.c token files, with a Hugging Face tokenizer.

    python3 dev/tokenize_text.py --tokenizer LLAMA_FOLDER --out data/train books/*.txt notes.jsonl.gz

Writes data/train_000001.bin, ... which train_llama reads with --train-data 'data/train_*.bin'. They get these names when all is
done; a run that fails leaves none.
Each .txt file is one document; each line of a .jsonl file is one, in its field "text" (--field); .gz is unpacked on the way. Text is UTF-8.
The tokens are the tokenizer's for the whole text, or prompt and completion, or chat; a long text is cut where that changes nothing.
The tokenizer adds its own special tokens (Llama-3: <|begin_of_text|> before each document); --end adds its token after each. Special tokens
written in a text are text; with --special-tokens they are these tokens (and a text that begins with what the tokenizer adds has it once).

    python3 dev/tokenize_text.py --tokenizer LLAMA_FOLDER --out data/qa --prompt prompt --completion answer --end '<|end_of_text|>' qa.jsonl

For fine-tuning: each line is a document of a prompt and a completion. Beside each token file lies a loss mask, data/qa_000001.bin.mask,
with one byte per token: 1 for the tokens of completions and --end, which are learnt, 0 for those of prompts (a token of both is learnt).
For prompts that have the special tokens of a chat template written in them: --special-tokens.

    python3 dev/tokenize_text.py --tokenizer LLAMA_FOLDER --out data/chats --chat messages chats.jsonl

Each line is a document of messages, put into words by the folder's chat template. What the model would write is learnt: each message of
the assistant, up to the token that ends its turn (Llama-3: <|eot_id|>, which so cannot be --end, the end of documents), without white space
behind that. Of this, a template with {% generation %} ... {% endgeneration %} says which part is learnt, as transformers takes it.

    {"messages": [{"role": "user", "content": "6 x 7?"}, {"role": "assistant", "content": "42"}]}

A message with "weight": 0 is not learnt. Tools defined in "tools", and "tool_calls" of the assistant, go to the template as well;
a template that makes nothing of them is refused.

    python3 dev/tokenize_text.py --tokenizer LLAMA_FOLDER --out data/whole --sequence 128K --end '<|end_of_text|>' notes.jsonl

For samples of --seq-len 128K that cut no document which fits one: whole documents are put where least room is left. The rest of a sample is
filled with the token that separates documents, and masks say that it is not learnt.

    python3 dev/tokenize_text.py --tokenizer LLAMA_FOLDER --ids 'Once upon a time'

Prints the tokens of a text in the form that --sample-prompt accepts; special tokens that are written in it are these tokens.
Python 3.8 or newer; packages: pip install tokenizers, for --chat also jinja2
"""
import argparse
import array
import collections
import concurrent.futures
import contextlib
import glob
import gzip
import io
import json
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
import zlib

OPEN_SAMPLES = 64  # of --sequence: they wait for documents that fit
BATCH_BYTES = 1 << 20  # the text that a process gets at a time; a longer .txt document is cut, a longer JSON line is not
# Where a document can be cut: before a space, and behind a line end, that stand alone, unless behind what may end a special token (</s>,
# [/INST]), which may take them; and between a letter and the marks of Chinese and Japanese, whose texts have no spaces. There the patterns
# that cut a text into words before byte-level BPE (GPT-2's, Llama-3's) always cut it, and what is on one side does not change how they cut
# the other. BPE without words (Llama-2's) cuts at those of which no token of its vocabulary has one inside it: then it makes none of what
# stands on both sides.
CUT_PLACES = (r"(?<=[^\s>\]])(?= \S)", r"(?<=[^\s>\]]\n)(?=[^\s/])", r"(?<=[^\W_])(?=[。、])")
QUOTE = "\udfff"  # around special tokens written in a chat, until its template has been filled in: no text holds half a surrogate pair
LEARN, SKIP = "\udffd", "\udffe"  # around what templates mark as learnt, {% generation %}, as QUOTE
MARK = "\U0010ffff"  # begins the names of the special tokens that templates write: no character

tokenizer = None  # each process has its own, and what follows
before = after = None  # the tokens around a document
end_token = None
written = None  # finds special tokens in a text
fields = render = place = None  # of JSON lines, see `use`
marked = {}  # in chats: tokens whose names begin with MARK -> the special tokens that they stand for
known_characters, lost_characters = set(), set()  # those that have tokens, and those that have none


def fail(text):
    print(f"error: {text}", file=sys.stderr)
    sys.exit(2)


KILLED = "a process has been killed; if memory is short, give fewer --processes"


def watch(pool, shards):
    """Ends the program some seconds after a process was killed: where it was writing a result, the pool would wait for the rest."""
    while not any(process.exitcode for process in list((getattr(pool, "_processes", None) or {}).values())):
        time.sleep(1)
    time.sleep(5)
    print(f"error: {KILLED}", file=sys.stderr)
    shards.remove()
    os._exit(2)


def load(path):
    """The tokenizer without the truncation and padding that a folder's last user may have stored in it."""
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as e:
        fail(f"the package {e.name} is missing: pip install tokenizers")
    if not hasattr(Tokenizer, "encode_special_tokens"):  # one can set it all the same, without effect
        fail("the package tokenizers is older than 0.15.1: pip install -U tokenizers")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there are processes; some versions warn of both
    try:
        loaded = Tokenizer.from_file(path)
        loaded.encode("A")
    except Exception as e:  # the package has no type of its own for it
        fail(f"{path}: not a tokenizer.json that can be used: {e}")
    loaded.no_truncation()
    loaded.no_padding()
    return loaded


def around(tokenizer):
    """The tokens that the tokenizer puts before each text, and those that it puts after it."""
    encoded = tokenizer.encode("A")
    ids, special = encoded.ids, encoded.special_tokens_mask
    text = special.index(0) if 0 in special else len(ids)
    return ids[:text], ids[len(ids) - special[::-1].index(0) :] if 0 in special else []


def without(ids, before):
    """The tokens of a text. If it begins with what the tokenizer puts before it, as chat templates' do, then without that."""
    return ids[len(before) :] if before and ids[: len(before)] == before else ids


def special_tokens(tokenizer):
    """A pattern of all special tokens, as they are written."""
    names = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special and token.content}
    return re.compile("|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)) or "(?!)")


def mark_special(tokenizer):
    """Adds to the tokenizer a token MARK + NAME for each special token NAME, which takes spaces as that does -> {token: special token}"""
    from tokenizers import AddedToken
    known = {id: token for id, token in tokenizer.get_added_tokens_decoder().items() if token.special and token.content}
    tokenizer.add_tokens([AddedToken(MARK + token.content, single_word=token.single_word, lstrip=token.lstrip, rstrip=token.rstrip,
                                     normalized=token.normalized) for token in known.values()])
    return {tokenizer.token_to_id(MARK + token.content): id for id, token in known.items()}


def cut_places(tokenizer):
    """A pattern of the CUT_PLACES at which documents can be cut: no token has one inside it."""
    tokens = tokenizer.decode_batch([[id] for id in tokenizer.get_vocab(with_added_tokens=True).values()], skip_special_tokens=False)
    return re.compile("|".join(place for place in CUT_PLACES if not any(re.search(place, token) for token in tokens)) or "(?!)")


def use(path, end, special, chats=False, names=(), places=None):
    """Loads the tokenizer that `encode` uses. end: the token after each document, or None. special: special tokens that are written in the
    texts are these tokens. names: the field of JSON lines that holds a text, or those of a prompt and a completion, or, of chats, that of
    messages. places: where their texts may be cut."""
    global tokenizer, before, after, end_token, written, marked, fields, render, place
    tokenizer, end_token, fields, place = load(path), end, names, places
    render = chat_template(os.path.dirname(path)) if chats else None
    before, after = around(tokenizer)
    if end is not None and after[-1:] != [end]:
        after.append(end)
    written = special_tokens(tokenizer)
    tokenizer.encode_special_tokens = not special
    marked = mark_special(tokenizer) if chats and not special else {}


def start(*what):
    """Begins a process that uses this."""
    for ended in signal.SIGINT, signal.SIGHUP:  # the first process ends the others
        signal.signal(ended, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    first = multiprocessing.parent_process()
    threading.Thread(target=lambda: (first.join(), os._exit(1)), daemon=True).start()  # and if it is killed, they end, too
    use(*what)


def lost(text):
    """How often each character occurs in the text for which the tokenizer has no token, or only that of the unknown."""
    characters = set(text)
    for character in characters - known_characters - lost_characters:
        ids = tokenizer.encode(character, add_special_tokens=False).ids
        unknown = getattr(tokenizer.model, "unk_token", None)
        gone = not ids or (unknown is not None and tokenizer.token_to_id(unknown) in ids)
        (lost_characters if gone and not character.isspace() else known_characters).add(character)
    return {character: text.count(character) for character in characters & lost_characters}


def encode(batch):
    """batch: [what `documents` yields] -> (token ids as bytes of uint32, their mask, bytes of text, Counter of the tokens "end" and "begin"
    inside the texts, of "special" ones that are written there and are text, of characters without a token, and of "empty" documents, where
    documents end)"""
    ids, mask, counts, stops, size = array.array("I"), bytearray(), collections.Counter(), [], 0
    for context, text, learnt, last in batch_pieces(batch, counts):
        encoded = tokenizer.encode(context + text, add_special_tokens=False)
        piece = encoded.ids[len(tokenizer.encode(context, add_special_tokens=False).ids) if context else 0 :]
        piece = [marked.get(token, token) for token in piece] if marked else piece
        if not context:
            piece = without(piece, before)
            ids.extend(before)
            mask.extend((b"\1" if learnt is None else b"\0") * len(before))
        if learnt is None:
            mask.extend(b"\1" * len(piece))
        else:  # a token is learnt if one of its characters is; that of spaces alone may end where it begins, and before them
            for begin, end in encoded.offsets[len(encoded.ids) - len(piece) :]:
                mask.append(learnt.find(1, max(min(begin, end - 1), 0), max(end, 1)) >= 0)
        counts["end"] += piece.count(end_token)
        counts["begin"] += piece.count(before[0]) if before else 0
        said = text.replace(MARK, "") if marked else text
        if tokenizer.encode_special_tokens:
            counts["special"] += len(written.findall(text)) - (len(text) - len(said))
        counts.update(lost(said))
        size += len(said.encode())
        ids.extend(piece)
        if last:
            ids.extend(after)
            mask.extend((b"\1" if learnt is None else learnt[-1:]) * len(after))
            stops.append(len(ids))
    return ids.tobytes(), bytes(mask), size, counts, stops


def cut(file, place):
    """The text of a file -> texts of BATCH_BYTES characters, or more up to the next `place`."""
    text, searched = "", 0
    while part := file.read(BATCH_BYTES):
        text += part
        while found := place.search(text, max(searched, BATCH_BYTES)):
            yield text[: found.start()]
            text, searched = text[found.start() :], 0
        searched = len(text) - 1  # what follows decides whether a place is there
    if text:
        yield text


def pieces(texts, learnt=None):
    """A document that is cut in texts, and whether each of its characters and what follows it is learnt, in bytes of 0 and 1 (None: all) ->
    [(context, text, learnt, last)]. Context: what is before the text, "" where a document begins; `learnt` is of both and what follows."""
    context, at, waiting = "", 0, None
    for text in texts:
        if waiting is not None:
            yield *waiting, False
        waiting = context, text, learnt and learnt[at - len(context) : at + len(text) + 1]
        context, at = text[-1:], at + len(text)
    if waiting is not None:
        yield *waiting, True


class TemplateFailed(ValueError):
    pass


class Arguments(dict):
    """Those of a call that were JSON in a text. Where a template writes them as a text, it would write Python's notation."""

    def __str__(self):
        raise TypeError("it writes the arguments of a call as a text")


def chat_template(folder):
    """The chat template of a Hugging Face folder: a function of messages, tools (None: none), whether the prompt for an answer follows, and
    whether LEARN and SKIP mark what is learnt (None then: the template does not say it). A date in it is its default."""
    try:
        from jinja2 import StrictUndefined, TemplateError
        from jinja2.ext import Extension
        from jinja2.nodes import Output, Scope, TemplateData
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ModuleNotFoundError as e:
        fail(f"the package {e.name} is missing: pip install jinja2")

    class Generation(Extension):
        """{% generation %} ... {% endgeneration %}: with these, templates say what is learnt, as transformers takes it."""
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            inside = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            begin, end = (Output([TemplateData(mark)]).set_lineno(line) for mark in (LEARN, SKIP))
            return Scope([begin, *inside, end]).set_lineno(line)

    def raise_exception(text):
        raise TemplateError(text)

    def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):  # as in transformers
        text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
        return re.sub(f"[^\0-\x7f{QUOTE}]", lambda found: json.dumps(found[0])[1:-1], text) if ensure_ascii else text  # QUOTEs stay

    def read(name):
        path = os.path.join(folder, name)
        return json.load(open(path, encoding="utf-8")) if os.path.isfile(path) else {}

    def render(messages, tools, prompt=False, marks=False):
        name = "tool_use" if tools is not None and "tool_use" in templates else "default"
        if marks and not re.search(r"{%[-+]?\s*generation\s*[-+]?%}", sources[name]):
            return None
        try:
            text = templates[name].render(messages=messages, tools=tools, add_generation_prompt=prompt, **special)
            return text if marks else text.replace(LEARN, "").replace(SKIP, "")
        except Exception as e:  # a template is a program
            raise TemplateFailed(f"the chat template says: {e}")

    try:
        settings = {**read("special_tokens_map.json"), **read("tokenizer_config.json")}  # older folders have special tokens in the first
        sources = settings.get("chat_template")  # one, or several by name: as in transformers, "tool_use" is for chats with tools
        sources = {item["name"]: item["template"] for item in sources} if isinstance(sources, list) else {"default": sources}
        files = {}
        for name, path in ("default", "chat_template.jinja"), ("tool_use", "additional_chat_templates/tool_use.jinja"):
            if os.path.isfile(os.path.join(folder, path)):
                files[name] = open(os.path.join(folder, path), encoding="utf-8").read()
        sources = files if "default" in files else {**sources, **files}  # beside that file, those of tokenizer_config.json do not count
        if sources.get("default") is None:
            fail(f"{folder}: no chat template in chat_template.jinja or tokenizer_config.json")
        # A template that writes a special token that is unknown fails.
        special = {name: settings.get(name, StrictUndefined(name=name)) for name in ("bos_token", "eos_token")}
        special = {name: token["content"] if isinstance(token, dict) else token for name, token in special.items() if token is not None}
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                    extensions=["jinja2.ext.loopcontrols", Generation])
        environment.globals["raise_exception"] = raise_exception
        environment.filters["tojson"] = to_json
        templates = {name: environment.from_string(sources[name]) for name in ("default", "tool_use") if name in sources}
    except (AttributeError, KeyError, OSError, TypeError, ValueError, TemplateError) as e:
        fail(f"{folder}: the chat template cannot be read: {e}")
    return render


def chat_texts(render, messages, tools, quotes, parse):
    """Messages, and the tools that they may use (None: none) -> [(text, learnt)]. Learnt is what the template makes of a message of the
    assistant, behind the prompt that the messages before it make, but no white space behind the token that ends the turn, which nobody
    waits for. `quotes` finds special tokens in messages and tools that are text: others, which the template writes, have MARK before them.
    parse: arguments of calls that are JSON in a text become an object."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) and "role" in message for message in messages):
        raise ValueError("it holds no list of messages with roles")
    tools = (json.loads(tools or "null") if isinstance(tools, str) else tools) or None
    messages = [{key: value for key, value in message.items() if value is not None and (key, value) != ("tool_calls", [])}
                for message in messages]  # null, and no calls: as if not there (Llama-3.1's template wants one call where this is)
    for i, message in enumerate(messages, 1):
        calls = message.get("tool_calls", [])
        for call in calls:
            function = call.get("function", call)
            if isinstance(function.get("arguments"), str):
                arguments = json.loads(function["arguments"] or "{}")
                if parse:
                    function["arguments"] = Arguments(arguments) if isinstance(arguments, dict) else arguments
        if calls:
            message.setdefault("content", "")
        # Templates make Python's notation of what is no text, such as a list of parts.
        if message["role"] in ("system", "user", "assistant") and not isinstance(message.get("content"), str):
            raise ValueError(f"the content of message {i} is not a text")
        if message.get("weight", 1) not in (0, 1):
            raise ValueError(f"the weight of message {i} is neither 0 nor 1")
        if message["role"] == "assistant" and not message["content"].strip() and not calls:
            raise ValueError(f"message {i}, of the assistant, is empty")
    messages, tools = quoted(messages, quotes), quoted(tools, quotes)
    special = re.compile(f"{QUOTE}({quotes.pattern}){QUOTE}|{QUOTE}|({quotes.pattern})")
    behind_turn = re.compile(rf"(?:{written.pattern})(\s+)\Z")
    done, mask, marks = "", bytearray(), render(messages, tools, marks=True)

    def same(chat, *less):
        """Whether the template makes the same text of this chat and of less: of another one, and its tools."""
        try:
            return render(chat, tools) == render(*less)
        except ValueError:  # it is missed
            return False

    def add(whole, learnt):
        nonlocal done
        if not whole.startswith(done):
            raise ValueError("the chat template changes earlier messages when later ones follow: their text was never a prompt")
        mask.extend(bytes([learnt]) * (len(whole) - len(done)))
        behind = behind_turn.search(whole, len(done)) if learnt and marks is None else None
        if behind:
            mask[behind.start(1) :] = bytes(len(behind[1]))
        done = whole

    def prompts_unasked(chat):
        """Whether the template writes the prompt of the next answer behind this chat: what it does behind the answer is the same when it is
        asked for one, and gone when a user goes on. (Some do not know the word. Mistral's moves what is in front of an answer then.)"""
        whole = render(chat, tools)
        if whole != render(chat, tools, True):
            return False
        try:
            later = render(chat + [{"role": "user", "content": "A"}], tools)
        except ValueError:  # no user may speak here
            return False
        return later.startswith(done) and not later.startswith(whole)

    for i, message in enumerate(messages):
        if message["role"] == "assistant":
            add(render(messages[:i], tools, True), False)
            if 1 not in mask and prompts_unasked(messages[: i + 1]):
                raise ValueError("the chat template writes the prompt of an answer behind each chat, asked for or not: put that between "
                                 "{% if add_generation_prompt %} and {% endif %} in chat_template.jinja")
            add(render(messages[: i + 1], tools), message.get("weight") != 0)
        for name, nothing in (("tool_calls", []), ("content", "")):
            less = messages[:i] + [{**message, name: nothing}]
            if message.get("tool_calls") and str(message[name]).strip() and same(messages[: i + 1], less, tools):
                raise ValueError(f"the chat template makes nothing of {name} in message {i + 1}")
    if 1 not in mask:
        raise ValueError("no message of the assistant is there to be learnt")
    add(render(messages, tools), False)
    at = 0
    for i, part in enumerate(re.split(f"[{LEARN}{SKIP}]", marks or "")):  # every second one is between marks
        if i % 2 == 0:
            mask[at : at + len(part)] = bytes(len(part))
        at += len(part)
    if 1 not in mask:
        raise ValueError("the chat template says what is learnt ({% generation %}), and that is nothing")
    if tools is not None and same(messages, messages, []):
        raise ValueError("the chat template makes nothing of the tools")
    return [(special.sub(lambda found: MARK + found[2] if found[2] else found[1] or "", done[run.start() : run.end()]), run[0][0] == 1)
            for run in re.finditer(rb"\x00+|\x01+", mask)]


def number(text):
    """"128K" -> 131072, as for train_llama."""
    if re.fullmatch("[0-9]+[KM]?", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not legal; legal values are whole numbers (K = 1024, M = 1048576)")
    return int(text.rstrip("KM")) * {"K": 1 << 10, "M": 1 << 20}.get(text[-1], 1)


def is_lines(path):
    return path.lower().endswith((".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz"))


def quoted(value, written):
    """What JSON holds, with each special token in its texts between two QUOTEs. Names that a template may ask for stay as they are."""
    if isinstance(value, str):
        value.encode()  # an error if it holds half a surrogate pair
        if MARK in value:
            raise ValueError("a text holds U+10FFFF, which is no character")
        return written.sub(lambda found: QUOTE + found[0] + QUOTE, value)
    if isinstance(value, list):
        return [quoted(item, written) for item in value]
    if isinstance(value, dict):
        items = value.items()
        return type(value)({name if name.isidentifier() else quoted(name, written): quoted(item, written) for name, item in items})
    return value


def text_of(line):
    """A JSON line -> (text, learnt), as in pieces. ValueError, KeyError, ... if it is no such line."""
    item = json.loads(line)
    if render is not None:
        quotes = written if tokenizer.encode_special_tokens else re.compile("(?!)")
        try:  # most templates take arguments of calls as an object, and would quote JSON in a text once more
            texts = chat_texts(render, item[fields[0]], item.get("tools"), quotes, True)
        except TemplateFailed as e:  # others only as a text: Functionary's
            item = json.loads(line)
            try:
                texts = chat_texts(render, item[fields[0]], item.get("tools"), quotes, False)
            except ValueError:
                raise e from None
    else:
        texts = [(item[field], i == len(fields) - 1) for i, field in enumerate(fields)]
    text = "".join(text for text, _ in texts)
    text.encode()  # an error if it holds half a surrogate pair
    if render is None and len(fields) == 1:
        return text, None
    return text, b"".join(bytes([learnt]) * len(text) for text, learnt in texts) + bytes([texts[-1][1]])


class BadLine(Exception):
    pass


def batch_pieces(batch, counts):
    """The pieces of what `documents` yields. JSON lines are read here, so that many processes do. Counts those without text, "empty"."""
    for item in batch:
        if len(item) == 4:
            yield item
            continue
        path, line, number = item
        try:
            text, learnt = text_of(line)
        except (AttributeError, ValueError, KeyError, TypeError, RecursionError) as e:
            names = '" and "'.join(fields)
            holds = "a text" if render is None else "a chat"
            why = f": {e}" if render is not None and isinstance(e, ValueError) else ""
            raise BadLine(f'{path}:{number}: not a JSON object with {holds} in "{names}" (see --help){why}') from None
        if text or learnt is not None:
            yield from pieces(cut(io.StringIO(text), place) if text else [""], learnt)
        else:
            counts["empty"] += 1


def documents(paths, place, counts):
    """The pieces of .txt files, and (path, line, number) of JSON lines. Counts files without text, "empty"."""
    for path in paths:
        opener = gzip.open if path.lower().endswith(".gz") else open
        with opener(path, "rt", encoding="utf-8-sig", errors="strict", newline="" if not is_lines(path) else "\n") as f:
            try:
                if is_lines(path):
                    yield from ((path, line, number) for number, line in enumerate(f, 1) if line.strip())
                    continue
                has_text = False
                for piece in pieces(cut(f, place)):
                    has_text = True
                    yield piece
                counts["empty"] += not has_text
            except UnicodeDecodeError as e:
                fail(f"{path}:{bad_line(opener, path)}: not UTF-8 text ({e.reason}); .txt, .jsonl, and either with .gz are read")
            except (EOFError, OSError, zlib.error) as e:
                fail(f"{path}: cannot be read: {e}")


def bad_line(opener, path):
    """The number of the first line that is not UTF-8: the decoder counts from where it last read."""
    with opener(path, "rb") as f:
        for number, line in enumerate(f, 1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
    return number


def batches(items):
    batch, size = [], 0
    for item in items:
        batch.append(item)
        size += len(item[1])
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class Samples:
    """--sequence: whole documents in samples of `length` tokens, each where least room is left, filled up with `filler`. A longer document
    has its own samples; its rest is placed as a document, behind `begin`, the token that the tokenizer puts before documents (None: none),
    or with --document-begin it would continue the one before it. What precedes the first token of a piece is not its text: that token is
    not learnt."""

    def __init__(self, shards, length, begin, filler):
        self.shards, self.length, self.begin, self.filler, self.filled = shards, length, begin, filler, 0
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
        if self.begin not in (None, self.ids[0]):  # a rest
            self.ids.insert(0, self.begin)
            self.mask.insert(0, 0)
            self.filled += 1
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
    """Token files of at most `most` tokens, and their masks. A `with` gives them their names at its end, or removes them if it fails."""

    def __init__(self, prefix, width, most, masked):
        self.prefix, self.width, self.most, self.masked = prefix, width, most, masked
        self.count, self.file, self.mask, self.files, self.names = 0, None, None, 0, []

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            for name in self.names:
                os.replace(name + ".part", name)
            return
        self.remove()
        for file in self.file, self.mask:
            with contextlib.suppress(AttributeError, OSError):  # none is open; the disk is full
                file.close()

    def remove(self):
        """Removes the files. Also where a signal comes in the middle of a write, in which Python lets no handler close its file."""
        for name in self.names:
            with contextlib.suppress(FileNotFoundError):  # a signal before it was opened, or while they got their names
                os.unlink(name + ".part")

    def open(self, name):
        self.names.append(name)
        return open(name + ".part", "wb")

    def write(self, ids, mask, _stops=None):
        while len(ids) > 0:
            if self.file is None:
                name = f"{self.prefix}_{self.files + 1:06d}.bin"
                self.mask = self.open(name + ".mask") if self.masked else None
                self.file, self.count = self.open(name), 0
                self.file.write(bytes(1024))
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
        """Ends the file that is being written, if there is one."""
        if self.file is None:
            return
        magic, version = (20240520, 1) if self.width == 2 else (20240801, 7)
        self.file.seek(0)
        for number in (magic, version, self.count):
            self.file.write(number.to_bytes(4, "little"))
        self.file.close()
        if self.mask is not None:
            self.mask.close()
        self.file, self.mask, self.files = None, None, self.files + 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     usage="tokenize_text.py --tokenizer FOLDER --out PREFIX [OPTION ...] FILE ..., or --help")
    parser.add_argument("files", nargs="*", help=".txt, .jsonl, or either with .gz")
    parser.add_argument("--tokenizer", required=True, help="tokenizer.json, or the folder that holds it")
    parser.add_argument("--out", metavar="PREFIX", help="write PREFIX_000001.bin, ...")
    parser.add_argument("--ids", metavar="TEXT", help="print the tokens of TEXT, for --sample-prompt, and write nothing")
    parser.add_argument("--field", help="field of a JSON line that holds the text [text]")
    parser.add_argument("--prompt", metavar="FIELD",
                        help="field of a JSON line with text that is not trained on; with --completion, in place of --field")
    parser.add_argument("--completion", metavar="FIELD", help="field of a JSON line with text that is trained on")
    parser.add_argument("--chat", metavar="FIELD", help="field of a JSON line with messages; those of the assistant are trained on")
    parser.add_argument("--end", metavar="TOKEN", help="token after each document, such as '<|end_of_text|>'")
    parser.add_argument("--special-tokens", action="store_true",
                        help="special tokens that are written in the texts are these tokens, not text")
    parser.add_argument("--sequence", type=number, metavar="N",
                        help="samples of N tokens (--seq-len, such as 128K) that cut no document which fits one")
    parser.add_argument("--shard-tokens", type=number, default=100_000_000, metavar="N", help="tokens per file [100000000]")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()  # a batch job has some of a machine's
    parser.add_argument("--processes", type=int, default=cores, metavar="N", help="[the cores that this process may use]")
    args = parser.parse_args()
    if not 1 <= args.shard_tokens < 1 << 31 or args.processes < 1:
        parser.error("--shard-tokens must be from 1 to 2147483647, and --processes 1 or more")
    if args.sequence is not None and not 2 <= args.sequence <= args.shard_tokens:
        parser.error("--sequence must be from 2 to --shard-tokens")
    if (args.prompt is None) != (args.completion is None):
        parser.error("--prompt and --completion must be given together")
    if [args.field, args.prompt, args.chat].count(None) < 2:
        parser.error("of --field, --prompt with --completion, and --chat only one can be given")
    for path in args.files:
        if not os.path.isfile(path):
            parser.error(f"{path}: {'is not a file (of a folder, give the files: DIR/*.txt)' if os.path.exists(path) else 'no such file'}")
        if path.lower().endswith((".json", ".json.gz")):
            parser.error(f"{path}: is not read as plain text; JSON lines are .jsonl")
        if (args.prompt or args.chat) is not None and not is_lines(path):
            what = "--chat is a field" if args.chat else "--prompt and --completion are fields"
            parser.error(f"{path}: {what} of JSON lines; give .jsonl files")
    path = os.path.join(args.tokenizer, "tokenizer.json") if os.path.isdir(args.tokenizer) else args.tokenizer
    if not os.path.isfile(path):
        parser.error(f"{path}: no such file; a model's Hugging Face folder contains it")
    if args.ids is not None:
        others = [name for name in vars(args) if name not in ("files", "ids", "tokenizer")]
        if args.files or any(getattr(args, name) != parser.get_default(name) for name in others):
            parser.error("--ids takes neither files nor other options than --tokenizer")
        known = load(path)
        first, last = around(known)
        print(",".join(map(str, first + without(known.encode(args.ids, add_special_tokens=False).ids, first) + last)))
        return
    if not args.files or not args.out:
        missing = " and ".join(["files"] * (not args.files) + ["--out PREFIX"] * (not args.out))
        parser.error(f"missing: {missing} (or give --ids TEXT)")
    there = sorted(glob.glob(glob.escape(args.out) + "_[0-9]*.bin*"))
    if there:
        parser.error(f"{there[0]}: already exists; remove the files or give another --out")
    known = load(path)
    end = known.token_to_id(args.end) if args.end is not None else None
    if args.end is not None and end is None:
        parser.error(f"--end {args.end}: not a token of {path}")
    vocabulary = 1 + max(known.get_vocab(with_added_tokens=True).values())
    width = 2 if vocabulary <= 1 << 16 else 4
    os.makedirs(os.path.dirname(args.out) or ".", exist_ok=True)

    names = [args.chat] if args.chat is not None else [args.prompt, args.completion] if args.prompt is not None else [args.field or "text"]
    if args.chat is not None:
        chat_template(os.path.dirname(path))  # an error before there are other processes
    begin = (around(known)[0] or [None])[0]
    if args.sequence is not None and end is None and begin is None:
        parser.error("--sequence needs a token between documents: the tokenizer puts none before them, so give --end")
    length = args.sequence or 1
    masked = (args.chat or args.prompt or args.sequence) is not None
    places = cut_places(known)
    tokens, read, texts, began, shown, waiting = 0, 0, 0, time.time(), 0.0, collections.deque()
    counts = collections.Counter()

    def take():  # the oldest batch: results come in the order of the files
        nonlocal tokens, read, texts, shown
        data, mask, size, batch_counts, stops = waiting.popleft().result()
        counts.update(batch_counts)
        ids = array.array("I")
        ids.frombytes(data)
        samples.write(ids, mask, stops)
        tokens, read, texts, seconds = tokens + len(ids), read + size, texts + len(stops), time.time() - began
        if seconds - shown > 2:
            shown = seconds
            print(f"{read / 1e6:.1f} MB of text, {tokens / 1e6:.2f} M tokens, {read / 1e6 / seconds:.1f} MB/s", file=sys.stderr, flush=True)

    pool = concurrent.futures.ProcessPoolExecutor(args.processes, initializer=start,
                                                  initargs=(path, end, args.special_tokens, args.chat is not None, names, places))

    def stop(number, _):  # at once: waiting for the other processes can be disturbed by a second signal, and they end with this one
        for ended in signal.SIGTERM, signal.SIGHUP:
            signal.signal(ended, signal.SIG_IGN)
        shards.remove()
        os._exit(128 + number)

    with Shards(args.out, width, args.shard_tokens // length * length, masked) as shards:
        for ended in signal.SIGTERM, signal.SIGHUP:
            if signal.getsignal(ended) != signal.SIG_IGN:  # nohup
                signal.signal(ended, stop)
        threading.Thread(target=watch, args=(pool, shards), daemon=True).start()
        samples = shards if args.sequence is None else Samples(shards, length, begin, begin if end is None else end)
        try:
            for batch in batches(documents(args.files, places, counts)):
                waiting.append(pool.submit(encode, batch))
                if len(waiting) > 2 * args.processes:  # files may be larger than memory
                    take()
            while waiting:
                take()
        except concurrent.futures.BrokenExecutor:
            fail(KILLED)
        except BadLine as e:
            fail(str(e))
        except Exception as e:
            if type(e) is not Exception:  # of the package tokenizers
                raise
            fail(f"{path}: the tokenizer says: {e}")
        finally:
            for future in waiting:
                future.cancel()
            pool.shutdown()
        samples.close()
        if tokens == 0:
            fail("the input files contain no text")
        for ended in signal.SIGTERM, signal.SIGHUP:  # from here on all files get their names
            signal.signal(ended, signal.SIG_IGN)

    as_text, ends, begins, empty = (counts.pop(name, 0) for name in ("special", "end", "begin", "empty"))
    if counts:
        shown_characters = " ".join(f"U+{ord(character):04X} ({character})" for character, _ in counts.most_common(5))
        print(f"warning: characters for which the tokenizer has no token, lost or unknown: {sum(counts.values())}, "
              f"such as {shown_characters}", file=sys.stderr)
    for count, token, does in ((ends, end, "end"), (begins if begin != end else 0, begin, "begin")):
        if count > 0:
            print(f"warning: tokens {token} ({known.id_to_token(token)}) inside the texts: {count}; "
                  f"with --document-{does} {token} each would {does} a document", file=sys.stderr)
    if as_text > 0:
        print(f"note: special tokens that are written in the texts: {as_text}; they are text "
              "(--special-tokens: they are these tokens)", file=sys.stderr)
    print(f"{args.out}_*.bin: {tokens} tokens of {width} bytes in {shards.files} files, vocabulary {vocabulary}, {texts} documents, "
          f"{read / 1e6:.1f} MB of text"
          + (f", and {samples.filled} to fill up samples of {length}" if args.sequence is not None else "")
          + (f"; empty documents, left out: {empty}" if empty else ""))


if __name__ == "__main__":
    try:
        main()
    except OSError as e:  # a folder that cannot be written, a full disk
        fail(f"{e.filename}: {e.strerror}" if e.filename else f"--out: {e.strerror}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
