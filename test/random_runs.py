#!/usr/bin/env python3
"""Runs small random models on random grids, with random ZeRO degrees, recompute, offload, data and evaluations, and compares what the log
says of the model with one rank. A run trains three steps, or only evaluates; some go on from the 128 steps that --skip-spikes needs. Then
another grid may resume the state, go on from it with new data, evaluate the state or the export, train the export, or export the state:
the same bytes. Some grids are the planner's (--hp auto). On random ranks, new memory is not zero. The table of a rank's memory must be
that of --dry-run.

    python3 test/random_runs.py [--binary build/cpu/train_llama] [--runs 100] [--seed 1] [--ranks 8] [--bf16]

--runs: how many pairs; a pair takes some two seconds. --ranks: the most ranks; more than 8: 9 to so many. --bf16: for a build that computes
in bf16 (emulated, cuda), with wider bounds. A pair that differs is printed with its commands, and its folder stays; the status is then 1.
Needs mpirun and Python; with fewer cores than ranks, or as root, `source scripts/mpi_env.sh` first.
"""
import argparse
import filecmp
import json
import math
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

TRAINED = ("loss", "grad_norm", "spike", "lr", "tokens", "labels", "samples")
EVALUATED = ("val_loss", "val_tokens", "val_loss_by_position", "needle_loss", "needle_accuracy", "sample_tokens")


def bounds_of(bf16, wire):
    """Relative; numbers without a bound must be equal. wire: --dkv-wire bf16."""
    # Float: sums in another order, three steps of AdamW. wire: 7e-5, 2e-3 in 40 pairs. bf16: two digits, gradients that nearly cancel,
    # another arg max.
    loss, norm = (3e-3, 6e-2) if bf16 else (3e-4, 1e-2) if wire else (2e-5, 3e-4)
    needle = max(loss, 1e-3) if wire else loss  # of a few digits; wire: 4.4e-4 in one of 80 pairs, and 2e-7 with the same pair in float
    others = {"needle_accuracy": math.inf, "sample_tokens": math.inf} if bf16 or wire else {}
    return {"loss": loss, "val_loss": loss, "val_loss_by_position": loss, "needle_loss": needle, "grad_norm": norm, **others}


def apart(one, here, bounds):
    """The numbers that differ, with their names."""
    both = [(key, one.get(key, "missing"), here.get(key, "missing")) for key in sorted(one.keys() | here.keys(), key=str)]
    near = lambda x, y, bound: {type(x), type(y)} <= {int, float} and abs(y - x) <= bound * max(abs(x), 1e-9)
    return [(key, x, y) for key, x, y in both if x != y and not near(x, y, bounds.get(key[1], 0))]


def divisors(n):
    return [d for d in range(1, n + 1) if n % d == 0]


def write_tokens(rnd, path, count, masked):
    """llm.c's format: magic number, version, count, then uint16. masked: a loss mask beside it, with runs of 0 and 1."""
    tokens = rnd.choices(range(256), weights=[1 + 40 * (t in (10, 32)) + t % 7 for t in range(256)], k=count)
    with open(path, "wb") as f:
        f.write(b"".join(n.to_bytes(4, "little") for n in [20240520, 1, count] + [0] * 253))
        f.write(b"".join(t.to_bytes(2, "little") for t in tokens))
    if masked:
        with open(path + ".mask", "wb") as f:
            f.write(b"".join(bytes([rnd.randint(0, 1)]) * rnd.randint(1, 60) for _ in range(count))[:count])
    return path


def random_model(rnd, folder, most_ranks):
    few, many = [(4, 1), (4, 2), (4, 4), (6, 1), (6, 2), (6, 3), (8, 2), (8, 8), (9, 3), (12, 3), (12, 4)], [
        (4, 2), (6, 3), (10, 5), (12, 3), (16, 1), (16, 4), (16, 16), (24, 8)]
    heads, kv_heads = rnd.choice(few if most_ranks <= 8 else many)
    config = {"model_type": rnd.choice(["llama", "mistral"]), "hidden_size": rnd.choice([32, 48, 56]),
              "num_hidden_layers": rnd.choice([1, 2, 3, 4, 5, 7]), "num_attention_heads": heads, "num_key_value_heads": kv_heads,
              "head_dim": rnd.choice([2, 6, 8, 8, 12, 16, 16, 40]), "intermediate_size": rnd.choice([8, 40, 72, 300]),
              "vocab_size": rnd.choice([256, 256, 257, 301]), "sliding_window": None, "rms_norm_eps": rnd.choice([1e-5, 1e-3]),
              "rope_theta": rnd.choice([1e4, 300.0]), "max_position_embeddings": 8192, "tie_word_embeddings": rnd.random() < 0.4}
    if rnd.random() < 0.3:
        config["rope_scaling"] = rnd.choice([
            {"rope_type": "llama3", "factor": 4, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 64},
            {"rope_type": "linear", "factor": 2.5}, {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 50}])
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    return heads


def random_options(rnd, many, masked, few, bf16):
    """What is read and trained on, and other options that all runs of a model have."""
    length = rnd.choice([128, rnd.randint(1, 40), rnd.randint(70, 200), rnd.randint(70, 200),  # 128: a whole tile of attention
                         rnd.randint(70, 200) if rnd.random() < 0.85 else 1100])
    data = ["--seq-len", length, "--seed", rnd.randint(1, 9), "--train-data", rnd.choice([many, masked, f"x={many}:0.7,y={masked}:0.3"])]
    options = ["--lr", 3e-3, "--grad-clip", rnd.choice([0, 0.5, 1]), "--eval-every", rnd.randint(1, 3),
               "--val-data", rnd.choice([many, masked, few, f"x={few},y={masked}"])]
    options += ["--eval-steps", rnd.randint(1, 2)] if rnd.random() < 0.4 else ["--eval-tokens", rnd.randint(1, rnd.choice([400, 2000]))]
    drawn = rnd.randint(1, max(1, min(4, length - 1)))  # tokens of a sample, after its prompt
    prompt = ",".join(str(rnd.randrange(256)) for _ in range(rnd.randint(1, max(1, min(40, length - drawn)))))
    for chance, more in [(0.2 * (length >= 64), ["--eval-needles", rnd.randint(1, 3)]),
                         (0.25 * (length > 1), ["--sample-every", rnd.randint(1, 2), "--sample-tokens", drawn, "--sample-prompt", prompt]),
                         (0.1, ["--rope-scaling", rnd.choice(["linear:factor=3", "none", "yarn:factor=2,original=64"])]),
                         (0.1, ["--rope-theta", 500]), (0.2, ["--weight-decay", rnd.choice([0, 5])]), (0.1, ["--warmup", 2]),
                         (0.1, ["--lr-schedule", rnd.choice(["wsd", "constant"])]), (0.1, ["--beta1", 0.5]),
                         (0.5, [rnd.choice(["--document-end", "--document-begin"]), rnd.choice([0, 10, 32])]),  # 0 is rare
                         (0.3 * bf16, ["--stochastic-rounding"]), (0.2, ["--moments", "bf16"])]:
        options += more if rnd.random() < chance else []
    return data, options


def random_grid(rnd, heads, most_ranks, batch):
    """The number of ranks, dp, and the options of a run on the grid."""
    ranks = rnd.choice([n for n in (1, 2, 2, 3, 4, 4, 6, 8) if n <= most_ranks] if most_ranks <= 8 else range(9, most_ranks + 1))
    grids = [(hp, cp) for hp in divisors(ranks) for cp in divisors(ranks // hp) if heads % hp == 0 and batch % (ranks // hp // cp) == 0]
    both = [(hp, cp) for hp, cp in grids if hp > 1 and cp > 1]  # few, and with the most to go wrong
    hp, cp = rnd.choice(both if both and rnd.random() < 0.4 else grids)
    grid = ["--hp", hp, "--cp", cp]
    if cp > 1:
        double = divisors(cp)[1:-1] if rnd.random() < 0.5 else []
        grid += ["--cp-comm", "allgather"] if rnd.random() < 0.2 else ["--inner-ring", rnd.choice(double or divisors(cp))]
        if rnd.random() < 0.3:  # windows may be interleaved (grid_weave)
            grid += ["--gpus-per-node", 8, "--nics-per-node", rnd.choice([1, 2, 4])]
    if hp > 1 and cp > 1:
        grid += ["--placement", rnd.choice(["head-first", "context-first"])]
    states = rnd.choice([0, 0, 0, 1, 1, 2, 3])  # how many kinds of model states lie on the host
    chains = [(zp, zg, zo) for zo in divisors(ranks) for zg in divisors(zo) for zp in divisors(zg)
              if states < 2 or (zg == ranks and (states < 3 or zp == ranks))]
    zp, zg, zo = rnd.choice(chains)
    offload = ["--offload-optimizer", "--offload-gradients", "--offload-parameters"][:states]
    grid += ["--zero-params", zp, "--zero-grads", zg, "--zero-optim", zo, *offload]
    grid += ["--recompute", rnd.choice(["none", "selective", "full", "auto"])]
    grid += ["--offload-activations", rnd.choice([0, 0, 0.3, 0.5, 0.7, 1])]
    for chance, more in [(0.3, ["--mlp-tile", rnd.choice([1, 2, rnd.randint(5, 60), 9999])]),
                         (0.3, ["--loss-tile", rnd.choice([1, 2, rnd.randint(5, 60), 9999])]),
                         (0.1, ["--verify"]), (0.1, ["--deterministic"]), (0.1, ["--dp", ranks // hp // cp])]:
        grid += more if rnd.random() < chance else []
    return ranks, ranks // hp // cp, grid


def leaves(value, *key):
    """The numbers of a value in a log, each with the names and places that lead to it."""
    if not isinstance(value, (dict, list)):
        return [(key, value)]
    return [leaf for name, part in (value.items() if isinstance(value, dict) else enumerate(value)) for leaf in leaves(part, *key, name)]


def table_of(printed):
    """The lines of the table of a rank's memory."""
    return re.findall(r"^(?:memory of a rank| {2}[a-zA-Z ]+ \d).*$", printed, re.MULTILINE)


def dry_run(ask, environment, ranks, options):
    """What --dry-run prints of a rank: the table, and its bytes that --memory-budget covers."""
    words = ["env", *environment, ask.binary, *options, "--dry-run", "--ranks", ranks]
    done = subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    found = re.search(r"^bytes of a rank: device (\d+) host (\d+)$", done.stdout, re.MULTILINE)
    device, host = map(int, found.groups()) if found else (0, 0)
    return table_of(done.stdout) or done.stderr, device + (0 if ask.bf16 else host)


def budget_between(ask, rnd, environment, ranks, options, grid):
    """--memory-budget with which the layers of --recompute auto may differ; [] where the least there is, 1 MiB, is enough for all."""
    least, most = [max(1 << 20, dry_run(ask, environment, ranks, [*options, *(kind if word == "auto" else word for word in grid)])[1])
                   for kind in ("full", "none")]
    return ["--memory-budget", rnd.randint(least, most)] if least < most else []


def from_step(numbers, step):
    """What a run logs that resumes the state of a step."""
    return {key: x for key, x in numbers.items() if key[0] > step or (key[0] == step and key[1] in EVALUATED)}


def pair(ask, rnd, files, folder):
    """Runs one rank and grids; returns what differs, with the commands."""
    kinds = {"evaluate": 30, "train": 35, "spikes": 3, "resume": 7, "new data": 7,
             "evaluate state": 6, "evaluate export": 6, "train export": 6, "export state": 6, "auto": 6}  # with their weights
    kind = rnd.choices(list(kinds), kinds.values())[0]
    states, export, faults = os.path.join(folder, "states"), os.path.join(folder, "export"), []
    heads, (data, common) = random_model(rnd, folder, ask.ranks), random_options(rnd, *files, ask.bf16)
    batch = 2 if kind == "spikes" or 1100 in data else rnd.choice([1, 2, 3, 4, 6, 8, 16])  # the first two are slow
    wire = ["--dkv-wire", "bf16"] if rnd.random() < 0.1 else []
    bounds = bounds_of(ask.bf16, wire)

    def run(one, ranks, options, not_zero=0, environment=(), planned=None):
        """What the log says, by step and name. not_zero: ranks whose new memory is 0x5a, as bits. planned: the table of memory."""
        log = os.path.join(folder, "log.jsonl")
        memory = ["bash", "-c", '(($0 >> OMPI_COMM_WORLD_RANK & 1)) && export MALLOC_PERTURB_=165; exec "$@"', not_zero]
        command = ["env", "TRAIN_LLAMA_TIMEOUT=100", *environment, "timeout", "--foreground", 600, "mpirun", "-np", ranks, *memory,
                   ask.binary, "--threads", 1, "--log", log, *options]
        done, here = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True), {}
        if done.returncode == 0:
            with open(log) as f:
                rows = [json.loads(line) for line in f]
            os.unlink(log)
            here = {key: x for row in rows for name in TRAINED + EVALUATED if name in row
                    for key, x in leaves(row[name], row.get("step"), name)}
        why = (apart(here if one is None else one, here, bounds) if here else
               f"status {done.returncode}: {done.stdout[-300:]}{done.stderr[-2000:]}")
        if not why and planned not in (None, table_of(done.stdout)):
            why = f"memory {table_of(done.stdout)}, but with --dry-run {planned}"
        faults.extend([f"{why}\n  {shlex.join(map(str, command))}"] if why else [])
        return here

    def alone(*options):
        return run(None, 1, [*options, "--global-batch", batch])

    def on_grid(one, *options):
        ranks, dp, grid = random_grid(rnd, heads, ask.ranks, batch)
        any_batch = "--eval-tokens" in options and options[-2:] == ("--steps", 0)
        batches = (["--batch-size", rnd.randint(1, 6)] if any_batch else
                   ["--batch-size", rnd.choice(divisors(batch // dp)), "--global-batch", batch])
        # bytes of a slice of attention's heads, 0: all; tokens of a document that all ranks of a ring share
        environment = [f"TRAIN_LLAMA_TEST_SLICE_BYTES={rnd.choice([0, 1, 1 << 14])}",
                       f"TRAIN_LLAMA_TEST_LONG_DOCUMENT={rnd.choice([1, 12, 40, 9999])}"]
        options = [*batches, *wire, *options]
        grid += budget_between(ask, rnd, environment, ranks, options, grid) if "auto" in grid else []
        planned = dry_run(ask, environment, ranks, [*options, *grid])[0] if rnd.random() < 0.3 else None
        run(one, ranks, [*options, *grid], rnd.getrandbits(8), environment, planned)

    start = ["--model", folder, "--from-scratch", *common]
    if kind == "auto":
        options = [*start, *data, "--steps", 3]
        machines = ["--cluster", rnd.choice(["cpu", "h100"])]
        ranks = rnd.randint(1, max(1, min(ask.ranks, data[1] // 2)))  # with less than two tokens a rank there may be no plan
        run(alone(*options), ranks, [*options, "--hp", "auto", "--global-batch", batch, *machines], rnd.getrandbits(8))
    elif kind == "evaluate":
        options = [*start, *data[:4], "--steps", 0]
        on_grid(alone(*options), *options)
    elif kind == "spikes":
        options = [*start, *data, "--steps", 131, "--skip-spikes", 0.3, "--out", states]
        one = alone(*options, "--save-every", 128)
        shutil.rmtree(os.path.join(states, "step-00000131"), ignore_errors=True)
        on_grid(from_step(one, 128), *options, "--resume")
    else:
        options, first = [*start, *data, "--steps", 3], rnd.randint(1, 2)  # first: the step that is resumed
        one = alone(*options)
        keep = ([] if kind == "train" else ["--export", export, "--export-dtype", rnd.choice(["auto", "f32"])]
                if kind in ("evaluate export", "train export") else ["--out", states, "--save-every", 1, "--keep", 3])
        on_grid(one, *options, *keep)
        for step in range(first + 1, 4) if kind in ("resume", "new data") else []:
            shutil.rmtree(os.path.join(states, f"step-{step:08d}"), ignore_errors=True)
    if faults:
        pass
    elif kind == "resume":
        on_grid(from_step(one, first), *options, "--out", states, "--resume")
    elif kind == "new data":
        copy, data = shutil.copytree(states, os.path.join(folder, "copy")), [0, 0]
        while data[1] < 70:  # room for a needle or a sample
            data = random_options(rnd, *files, ask.bf16)[0]
        options = [*start, *data, "--steps", 4, "--resume", "--new-data"]
        on_grid(alone(*options, "--out", copy), *options, "--out", states)
    elif kind == "train export":
        options = ["--model", export, *common, *data, "--steps", 3]
        on_grid(alone(*options), *options)
    elif kind == "export state":
        options = ["--model", os.path.join(states, "step-00000003"), *common, *data[:4], "--export-dtype",
                   rnd.choice(["auto", "f32", "bf16", "f16"]), "--steps", 0]
        two = os.path.join(folder, "two")
        on_grid(alone(*options, "--export", export), *options[:-2], "--export", two, *options[-2:])
        if not faults and filecmp.cmpfiles(export, two, {*os.listdir(export), *os.listdir(two)}, shallow=False)[1:] != ([], []):
            faults.append(f"exports differ: {export} {two}")
    elif kind in ("evaluate state", "evaluate export"):
        model = os.path.join(states, "step-00000003") if kind == "evaluate state" else export
        on_grid({(0, *key[1:]): x for key, x in from_step(one, 3).items()}, "--model", model, *common, *data[:4], "--steps", 0)
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/cpu/train_llama")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--bf16", action="store_true")
    ask = parser.parse_args()
    rnd, failed = random.Random(ask.seed), 0
    home = tempfile.mkdtemp(prefix="random_runs_")
    files = [write_tokens(rnd, os.path.join(home, name + ".bin"), count, name == "masked")
             for name, count in (("many", 20000), ("masked", 6000), ("few", 1500))]
    for run in range(ask.runs):
        folder = tempfile.mkdtemp(dir=home)
        faults = pair(ask, rnd, files, folder)
        if faults:
            failed += 1
            print(f"FAIL run {run}:", *faults, sep="\n  ", flush=True)
        else:
            shutil.rmtree(folder)
        if sys.stderr.isatty():
            print(f"\r{run + 1} of {ask.runs} ", end="\n" if run + 1 == ask.runs else "", file=sys.stderr, flush=True)
    print(f"random_runs: {ask.runs - failed} passed, {failed} failed (seed {ask.seed})")
    if failed == 0:
        shutil.rmtree(home)
    sys.exit(failed > 0)


main()
