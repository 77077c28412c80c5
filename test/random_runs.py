#!/usr/bin/env python3
"""Trains small random models for three steps on random grids, with random ZeRO degrees, recompute, offload and documents, and compares losses, gradient
norms and validation losses with those of one rank. Some save their states, and another random grid goes on from one of these; in some, attention
sums few heads at a time.

    python3 test/random_runs.py [--binary build/cpu/train_llama] [--runs 100] [--seed 1] [--ranks 8] [--bf16]

--runs: how many pairs; a pair takes some two seconds. --ranks: the most ranks. --bf16: for a build that computes in bf16 (emulated, cuda), with wider
bounds. A pair that differs is printed with both commands and its model's folder, which stays; the exit status is then 1. Needs mpirun and Python; with
fewer cores than ranks, or as root, `source scripts/mpi_env.sh` first.
"""
import argparse
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile


def divisors(n):
    return [d for d in range(1, n + 1) if n % d == 0]


def random_model(rnd, folder):
    heads, kv_heads = rnd.choice([(4, 1), (4, 2), (4, 4), (6, 3), (8, 2), (8, 8)])
    config = {"model_type": "llama", "hidden_size": rnd.choice([32, 48]), "num_hidden_layers": rnd.randint(1, 5), "num_attention_heads": heads,
              "num_key_value_heads": kv_heads, "head_dim": rnd.choice([8, 16]), "intermediate_size": rnd.choice([40, 72]), "vocab_size": 256,
              "rms_norm_eps": 1e-5, "rope_theta": 1e4, "max_position_embeddings": 8192, "tie_word_embeddings": rnd.random() < 0.4}
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    return heads


def random_options(rnd):
    """Options that all runs of a model have."""
    length = rnd.choice([128, rnd.randint(70, 200)])  # 128: a whole tile of the attention engine
    options = ["--seq-len", length, "--lr", 3e-3, "--grad-clip", rnd.choice([0, 0.5, 1])]
    if rnd.random() < 0.4:
        options += [rnd.choice(["--document-end", "--document-begin"]), rnd.choice([10, 32])]
    return options


def random_grid(rnd, heads, most_ranks):
    """The number of ranks, dp, and the options of a run on the grid."""
    ranks = rnd.choice([n for n in (1, 1, 2, 2, 3, 4, 4, 6, 8) if n <= most_ranks])
    hp = rnd.choice([h for h in divisors(ranks) if heads % h == 0])
    cp = rnd.choice(divisors(ranks // hp))
    grid = ["--hp", hp, "--cp", cp]
    if cp > 1:
        grid += ["--cp-comm", "allgather"] if rnd.random() < 0.3 else ["--inner-ring", rnd.choice(divisors(cp))]
    if hp > 1 and cp > 1:
        grid += ["--placement", rnd.choice(["head-first", "context-first"])]
    states = rnd.randint(0, 3)  # how many kinds of model states lie on the host
    zp = ranks if states == 3 else rnd.choice(divisors(ranks))
    zg = ranks if states >= 2 else rnd.choice([z for z in divisors(ranks) if z % zp == 0])
    zo = ranks if states >= 2 else rnd.choice([z for z in divisors(ranks) if z % zg == 0])
    grid += ["--zero-params", zp, "--zero-grads", zg, "--zero-optim", zo, *["--offload-optimizer", "--offload-gradients", "--offload-parameters"][:states]]
    grid += ["--recompute", rnd.choice(["none", "selective", "full"]), "--offload-activations", rnd.choice([0, 0, 0.5, 1])]
    if rnd.random() < 0.3:
        grid += ["--mlp-tile", rnd.randint(5, 60), "--loss-tile", rnd.randint(5, 60)]
    return ranks, ranks // hp // cp, grid


def with_batch(rnd, grid, dp, batch):
    return [*grid, "--batch-size", rnd.choice(divisors(batch // dp)), "--global-batch", batch]


def train(binary, ranks, options, log, run_bytes=0):
    """The numbers of a run by step and name, its command, and its output if it failed. run_bytes: of a run of attention's heads; 0: all heads."""
    command = [str(word) for word in ["env", f"TRAIN_LLAMA_TEST_RUN_BYTES={run_bytes}", "mpirun", "-np", ranks, binary, "--threads", 1, "--log", log, *options]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        return {}, command, "not done after 300 s"
    if done.returncode != 0:
        return {}, command, done.stdout[-500:] + done.stderr[-1000:]
    with open(log) as f:
        rows = [json.loads(line) for line in f]
    os.unlink(log)
    return {(row["step"], key): row[key] for row in rows for key in ("loss", "grad_norm", "val_loss") if key in row}, command, ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/cpu/train_llama")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--bf16", action="store_true")
    ask = parser.parse_args()
    # Float: sums in another order, three steps of AdamW. bf16: two digits, and gradients that nearly cancel.
    bounds = {"loss": 3e-3, "val_loss": 3e-3, "grad_norm": 6e-2} if ask.bf16 else {"loss": 2e-5, "val_loss": 2e-5, "grad_norm": 3e-4}
    rnd, failed = random.Random(ask.seed), 0
    home = tempfile.mkdtemp(prefix="random_runs_")
    data = os.path.join(home, "data.bin")
    tokens = rnd.choices(range(256), weights=[1 + 40 * (t in (10, 32)) + t % 7 for t in range(256)], k=20000)
    with open(data, "wb") as f: # llm.c's format: magic number, version, count, then uint16
        f.write(b"".join(n.to_bytes(4, "little") for n in [20240520, 1, len(tokens)] + [0] * 253) + b"".join(t.to_bytes(2, "little") for t in tokens))
    for run in range(ask.runs):
        folder = tempfile.mkdtemp(dir=home)
        heads = random_model(rnd, folder)
        common = ["--model", folder, "--from-scratch", "--train-data", data, "--val-data", data, "--eval-every", 2, "--eval-steps", 2, "--steps", 3]
        common += random_options(rnd)
        ranks, dp, grid = random_grid(rnd, heads, ask.ranks)
        batch = dp * rnd.choice([1, 2, 4])
        one, alone, why = train(ask.binary, 1, common + ["--global-batch", batch], os.path.join(folder, "one.jsonl"))
        saves = rnd.random() < 0.3
        states = os.path.join(folder, "states")
        runs = [(ranks, with_batch(rnd, grid, dp, batch) + (["--out", states, "--save-every", 1, "--keep", 3] if saves else []))]
        if saves:  # and another grid goes on from one of its states
            ranks, dp, grid = random_grid(rnd, heads, ask.ranks)
            while batch % dp != 0:
                ranks, dp, grid = random_grid(rnd, heads, ask.ranks)
            runs.append((ranks, with_batch(rnd, grid, dp, batch) + ["--out", states, "--resume"]))
        faults = [] if one else [why]
        first = 0  # step that the run begins with
        for ranks, options in runs:
            here, command, why = train(ask.binary, ranks, common + options, os.path.join(folder, "here.jsonl"), rnd.choice([0, 1, 1 << 14]))
            expected = {key: x for key, x in one.items() if key[0] >= first and (first == 0 or key[1] == "val_loss" or key[0] > first)}
            apart = [(key, x, here.get(key)) for key, x in expected.items() if not abs(here.get(key, math.inf) - x) <= bounds[key[1]] * abs(x)]
            if why or apart or len(here) != len(expected):
                faults.append(f"{apart}{why}\n  {' '.join(command)}")
            first = rnd.randint(1, 2)
            for step in range(first + 1, 4):
                shutil.rmtree(os.path.join(states, f"step-{step:08d}"), ignore_errors=True)
        if faults:
            failed += 1
            print(f"FAIL run {run}: {' '.join(alone)}", *faults, sep="\n  ", flush=True)
        else:
            shutil.rmtree(folder)
    print(f"random_runs: {ask.runs - failed} passed, {failed} failed (seed {ask.seed})")
    if failed == 0:
        shutil.rmtree(home)
    sys.exit(failed > 0)


main()
