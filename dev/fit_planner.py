#!/usr/bin/env python3
"""Fits the planner's constants to LoongTrain's tables and writes clusters/a100-4nic.txt.

    python3 dev/fit_planner.py            fits and prints the accuracy; writes nothing
    python3 dev/fit_planner.py --write    also writes the file

The model is the product's own: time_model.h, compiled here as a shared library. The fit starts from clusters/a100-4nic-datasheet.txt. It
fits 14 figures to 80 times and, at a lower weight, to the SeqAlltoAll column of 20 of those cells (test/paper_tables.h,
paper_cell_fitted); all other cells are held out. Needs gcc; packages: dev/requirements.txt.
"""
import argparse
import ctypes
import os
import re
import subprocess
import sys
import tempfile

import numpy as np
from scipy.optimize import least_squares

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
START = "a100-4nic-datasheet"
ALLTOALL_WEIGHT = 0.5  # SeqAlltoAll is a small part of a step's time, and its column is noisier

# figure, lower and upper bound; fitted on a logarithmic scale between them
FITTED = [
    ("attention_forward_efficiency", 0.4, 0.95),
    ("attention_backward_efficiency", 0.3, 0.95),
    ("merge_bytes", 5, 200),
    ("step_launch", 0.02e-3, 2e-3),
    ("attention_launch", 0.2e-3, 20e-3),
    ("overlap_cost", 0.005, 0.5),
    ("nic_efficiency", 0.5, 1),
    ("p2p_rate", 20e9, 300e9),
    ("alltoall_latency", 0.05e-3, 3e-3),
    ("alltoall_pack", 1e-12, 30e-12),
    ("alltoall_efficiency", 0.4, 2),
    ("alltoall_congestion", 0.005, 0.5),
    ("linear_efficiency", 0.3, 0.95),
    ("collective_efficiency", 0.2, 1),
]


def build(folder):
    path = os.path.join(folder, "planner.so")
    source = os.path.join(ROOT, "dev/planner_library.c")
    subprocess.run(["make", "-C", ROOT, "-s", "build/cluster_texts.h"], check=True)
    subprocess.run(["gcc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-I", os.path.join(ROOT, "build"), "-fPIC", "-shared", "-o", path, source,
                    "-lcjson", "-lm"], check=True)
    return ctypes.CDLL(path)


class Model:
    def __init__(self, library):
        self.library = library
        library.planner_set.argtypes = [ctypes.c_char_p, ctypes.c_double]
        library.planner_predict.argtypes = [ctypes.POINTER(ctypes.c_double)]
        n = library.planner_open(os.path.join(ROOT, "test/paper_tables").encode(), START.encode())
        if n == 0:
            sys.exit("fit_planner: no tables")
        text, rows = ctypes.create_string_buffer(128), []
        for i in range(n):
            library.planner_row(i, text, len(text))
            rows.append(text.value.decode().split(" ", 4))
        table, alltoall, fitted, measured, self.label = zip(*rows)
        self.table, self.alltoall, self.fitted = np.array(table, int), np.array(alltoall) == "1", np.array(fitted) == "1"
        self.measured = np.array(measured, float)
        self.buffer = (ctypes.c_double * n)()

    def predict(self, values):
        """Predicted seconds of every cell, with these values of the fitted figures."""
        for (key, _, _), value in zip(FITTED, values):
            if not self.library.planner_set(key.encode(), float(value)):
                sys.exit(f"fit_planner: cluster.h has no figure '{key}'")
        self.library.planner_predict(self.buffer)
        return np.array(self.buffer)


def start_values():
    text = open(os.path.join(ROOT, "clusters", START + ".txt"), encoding="utf-8").read()
    found = dict(re.findall(r"^(\w+)\s+([-+.\deE]+)", text, re.M))
    low, high = np.array([f[1] for f in FITTED]), np.array([f[2] for f in FITTED])
    return np.clip(np.array([float(found[key]) for key, _, _ in FITTED]), low * 1.001, high * 0.999)


def fit(model):
    """Least squares of log(predicted / measured), with a soft loss: a few cells (w = 8) follow no known formula."""
    weight = np.where(model.alltoall, ALLTOALL_WEIGHT, 1.0)[model.fitted]

    def residuals(x):
        return weight * np.log(model.predict(np.exp(x))[model.fitted] / model.measured[model.fitted])

    low, high = np.log([f[1] for f in FITTED]), np.log([f[2] for f in FITTED])
    result = least_squares(residuals, np.log(start_values()), bounds=(low, high), loss="soft_l1", f_scale=0.02, x_scale=0.1, max_nfev=400)
    return np.array([float(f"{v:.4g}") for v in np.exp(result.x)])


def report(model, values):
    error = model.predict(values) / model.measured - 1
    print(f"{'cells':<22}{'n':>4}{'MAPE':>8}{'worst':>8}{'bias':>8}     (a2a: the SeqAlltoAll column)")
    for table, alltoall in ((4, False), (4, True), (5, False), (6, False), (2, False)):
        for fitted in (True, False):
            chosen = np.flatnonzero((model.table == table) & (model.alltoall == alltoall) & (model.fitted == fitted))
            if len(chosen) == 0:
                continue
            e = error[chosen]
            worst = chosen[np.argmax(np.abs(e))]
            name = f"table {table}{'a2a' if alltoall else '   '} {'fitted' if fitted else 'held out'}"
            print(f"{name:<22}{len(e):>4}{100 * np.mean(np.abs(e)):>7.2f}%{100 * error[worst]:>+7.1f}%{100 * np.mean(e):>+7.2f}%"
                  f"   worst: {model.label[worst]}")


def write(values):
    new = {key: f"{value:.4g}" for (key, _, _), value in zip(FITTED, values)}
    lines = [
        "# LoongTrain's cluster: nodes of 8 Ampere GPUs (as A100 80 GB) and 4 NICs. Kernel and network figures: fitted to its tables by",
        "# dev/fit_planner.py (which writes this file), so they describe LoongTrain's kernels; the rest is that of a100-4nic-datasheet.txt."
    ]
    for line in open(os.path.join(ROOT, "clusters", START + ".txt"), encoding="utf-8").read().splitlines()[2:]:
        key = line.split(" ")[0]
        if key in new:
            comment = re.sub(r"^.*?# \w+: ", "", line).split(";")[0]
            line = f"{key:<30}{new[key]:<10}# measured: fitted; {comment}"
        lines.append(line)
    with open(os.path.join(ROOT, "clusters", "a100-4nic.txt"), "w", encoding="utf-8") as f:
        f.write("\n".join(lines) + "\n")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--write", action="store_true", help="write clusters/a100-4nic.txt")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = Model(build(folder))
        print("nothing fitted (clusters/" + START + ".txt, all cells count as held out):")
        report(model, start_values())
        values = fit(model)
        print("\nfitted:")
        for (key, low, high), value in zip(FITTED, values):
            print(f"  {key:<30}{value:.4g}{'   at its bound' if value < 1.01 * low or value > 0.99 * high else ''}")
        report(model, values)
    if options.write:
        write(values)


if __name__ == "__main__":
    main()
