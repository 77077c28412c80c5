#!/usr/bin/env python3
"""Compares the planner's order of step times with the measured order: 20 configurations of one problem on 1 to 8 ranks of this machine.

    dev/bench_planner.py [--rounds 3] [--steps 4] [--seq-len 1024] [--global-batch 8] [--model tiny]
    dev/two_machines.sh 200mbit dev/bench_planner.py --nodes 4       # 20 configurations of 8 ranks, 4 on each of two machines

Runs --calibrate on each number of ranks first. Prints each configuration, Spearman's rank correlation, and the regret: how much slower the
configuration with the best prediction is than the fastest. Configurations take turns, so that a machine that is busy for a while slows all
of them; the median of the rounds counts. About 10 minutes. Packages: dev/requirements.txt (scipy is enough).
"""
import argparse
import json
import os
import statistics
import struct
import subprocess
import tempfile

from scipy.stats import spearmanr

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
BINARY = os.environ.get("TRAIN_LLAMA", os.path.join(ROOT, "build/cpu/train_llama"))
CONFIGURATIONS = [  # ranks, options
    (1, "--recompute none"),
    (1, "--recompute selective"),
    (1, "--recompute full"),
    (2, "--dp 2 --recompute none"),
    (2, "--hp 2 --recompute none"),
    (2, "--cp 2 --recompute full"),
    (2, "--cp 2 --cp-comm allgather --recompute none"),
    (2, "--dp 2 --zero-params full --recompute selective"),
    (4, "--dp 4 --recompute none"),
    (4, "--hp 4 --recompute none"),
    (4, "--cp 4 --inner-ring 1 --recompute none"),
    (4, "--hp 2 --cp 2 --recompute full"),
    (4, "--dp 2 --hp 2 --zero-params full --recompute none"),
    (4, "--cp 4 --cp-comm allgather --zero-params full --recompute selective"),
    (8, "--dp 8 --recompute none"),
    (8, "--hp 8 --recompute none"),
    (8, "--cp 8 --inner-ring 1 --recompute none"),
    (8, "--hp 2 --cp 4 --inner-ring 2 --recompute full"),
    (8, "--cp 8 --inner-ring 2 --zero-params full --recompute selective"),
    (8, "--dp 2 --hp 4 --zero-params full --recompute full"),
]
BETWEEN_NODES = [  # options on all 2N ranks; N: ranks of a node
    "--dp 2N --recompute none",
    "--dp 2N --zero-params N --recompute none",
    "--dp 2N --zero-params full --recompute selective",
    "--hp 2N --recompute none",
    "--hp 2N --recompute selective",
    "--cp 2N --inner-ring 1 --recompute none",
    "--cp 2N --inner-ring 2 --recompute none",
    "--cp 2N --inner-ring N --recompute none",
    "--cp 2N --inner-ring N --recompute full",
    "--cp 2N --cp-comm allgather --recompute none",
    "--hp N --cp 2 --placement head-first --recompute none",
    "--hp N --cp 2 --placement context-first --recompute none",
    "--hp 2 --cp N --inner-ring 1 --placement head-first --recompute none",
    "--hp 2 --cp N --inner-ring 2 --placement head-first --recompute none",
    "--hp 2 --cp N --inner-ring 1 --placement context-first --recompute none",
    "--hp 2 --cp N --inner-ring 2 --placement context-first --recompute full",
    "--dp 2 --hp N --recompute none",
    "--dp 2 --cp N --inner-ring 1 --recompute none",
    "--dp 2 --hp N --zero-params full --recompute none",
    "--dp 2 --hp 2 --cp 2 --zero-grads full --recompute none",
]


def run(ranks, options, hosts=()):
    command = ["mpirun", *hosts, "-np", str(ranks), BINARY, *options]
    done = subprocess.run(["bash", "-c", 'source scripts/mpi_env.sh && exec "$@"', "bash", *command],
                          capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--global-batch", type=int, default=8)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--nodes", type=int, metavar="N", help="two nodes of N ranks, nodea and nodeb (two_machines.sh)")
    parser.add_argument("--keep", metavar="DIR", help="keep the cluster files here")
    args = parser.parse_args()
    configurations, hosts, node = CONFIGURATIONS, [], []
    if args.nodes:
        all_ranks = 2 * args.nodes
        configurations = [(all_ranks, c.replace("2N", str(all_ranks)).replace("N", str(args.nodes))) for c in BETWEEN_NODES]
        hosts = ["--host", f"nodea:{args.nodes},nodeb:{args.nodes}"]
        node = ["--gpus-per-node", str(args.nodes), "--nics-per-node", "1"]
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or scratch
        data, log = os.path.join(scratch, "data.bin"), os.path.join(scratch, "log.jsonl")
        tokens = args.seq_len * args.global_batch * 2 + 1
        with open(data, "wb") as f:
            f.write(struct.pack("<256i", 20240520, 1, tokens, *[0] * 253))
            f.write(struct.pack(f"<{tokens}H", *[(i * 7919 + i // 251) % 251 for i in range(tokens)]))
        for ranks in sorted({r for r, _ in configurations}):
            run(ranks, ["--calibrate", "--model", args.model, "--cluster-out", os.path.join(folder, f"{ranks}.txt")], hosts)
        measured, predicted = [[] for _ in configurations], [0.0] * len(configurations)
        for _ in range(args.rounds):
            for i, (ranks, options) in enumerate(configurations):
                run(ranks, ["--model", args.model, "--from-scratch", "--train-data", data, "--seq-len", str(args.seq_len),
                            "--global-batch", str(args.global_batch), "--steps", str(args.steps),
                            "--cluster", os.path.join(folder, f"{ranks}.txt"), "--log", log, *node, *options.split()], hosts)
                rows = [json.loads(line) for line in open(log)][1:]
                measured[i].append(statistics.median(r["step_ms"] for r in rows[1:]))
                predicted[i] = rows[0]["predicted_ms"]
        times, least = [statistics.median(m) for m in measured], [min(m) for m in measured]
        for i in sorted(range(len(times)), key=lambda i: times[i]):
            ranks, options = configurations[i]
            print(f"{ranks} ranks {options:<70} measured {times[i]:8.1f} ms  predicted {predicted[i]:8.1f} ms   "
                  f"({' '.join(f'{m:.0f}' for m in measured[i])})")
        chosen = min(range(len(times)), key=lambda i: predicted[i])
        print(f"{len(times)} configurations, {args.model}, {args.global_batch} x {args.seq_len} tokens, {args.rounds} rounds")
        for what, values in (("median of the rounds", times), ("best of the rounds", least)):
            print(f"{what:<22} Spearman {spearmanr(predicted, values).statistic:.3f}, "
                  f"regret of the best prediction {100 * (values[chosen] / min(values) - 1):.1f} %")


if __name__ == "__main__":
    main()
