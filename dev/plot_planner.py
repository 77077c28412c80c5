#!/usr/bin/env python3
"""Plots the results of --plan-json and --dry-run: docs/plan_tgs.png, docs/plan_time.png, docs/plan_memory.png.

    python3 dev/plot_planner.py      needs matplotlib and a build (make DEVICE=cpu)

Llama-3-8B on 64 H100, for docs/planner.md. All of it is predicted, as the tables of docs/plans.md are.
"""
import os
import re
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from PIL import Image  # comes with matplotlib

from plan_tables import LENGTHS, ROOT, TOKENS_OF_A_STEP, dry_run, plan

MODEL, RANKS, CLUSTER = "llama3-8b", 64, "h100"
SHOWN = ["128K", "256K", "1M", "4M"]
NOTHING = "#e4e4e4"


def fastest_by_degrees(length, sequences=None):
    """{(hp, cp): choice}: the fastest that fits, over all placements, windows and kinds of cp-comm."""
    answer, _ = plan(MODEL, length, RANKS, CLUSTER, sequences)
    if isinstance(answer, str):
        raise SystemExit(answer)
    best = {}
    for c in answer["choices"]:  # sorted by time
        best.setdefault((c["hp"], c["cp"]), c)
    return best


def save(figure, name):
    path = os.path.join(ROOT, "docs", name)
    figure.savefig(path, dpi=110)
    Image.open(path).convert("RGB").quantize(224).save(path, optimize=True)
    print(f"wrote docs/{name}, {os.path.getsize(path) / 1024:.0f} KiB")


def draw_tgs():
    degrees_hp, degrees_cp = [1, 2, 4, 8, 16, 32], [1, 2, 4, 8, 16, 32, 64]
    figure, axes = plt.subplots(2, 2, figsize=(11, 7.6), layout="constrained")
    for axis, length in zip(axes.flat, SHOWN):
        best = fastest_by_degrees(length)
        top = max(c["tgs"] for c in best.values())
        picture = [[best[hp, cp]["tgs"] / top if (hp, cp) in best else float("nan") for cp in degrees_cp] for hp in degrees_hp]
        colours = plt.get_cmap("viridis").with_extremes(bad=NOTHING)
        image = axis.imshow(picture, cmap=colours, vmin=0.5, vmax=1, origin="lower", aspect="auto")
        for y, hp in enumerate(degrees_hp):
            for x, cp in enumerate(degrees_cp):
                c = best.get((hp, cp))
                if c is None:
                    if hp * cp <= RANKS:
                        axis.text(x, y, "does\nnot fit", ha="center", va="center", fontsize=7, color="#777777")
                    continue
                share = c["tgs"] / top
                offload = c["offload_activations"]
                how = ("offload" if offload else "") if c["recompute"] == "none" else c["recompute"] + ("*" if offload else "")
                axis.text(x, y, f"{c['tgs']:.{0 if c['tgs'] > 1000 else 1}f}\n{how}".strip(), ha="center", va="center",
                          fontsize=8, color="black" if share > 0.72 else "white", weight="bold" if share == 1 else "normal")
        axis.set_title(f"{length} tokens, {TOKENS_OF_A_STEP // LENGTHS[length]} sequences a step", fontsize=10)
        axis.set_xticks(range(len(degrees_cp)), degrees_cp)
        axis.set_yticks(range(len(degrees_hp)), degrees_hp)
        axis.set_xlabel("cp (ring)")
        axis.set_ylabel("hp (heads)")
    figure.colorbar(image, ax=axes, label="TGS relative to the best at this length", shrink=0.7, extend="min")
    figure.suptitle(f"Predicted tokens per second and GPU (TGS): {MODEL} on {RANKS} {CLUSTER.upper()}, dp = {RANKS} / (hp x cp). "
                    "Second line: how activations are kept, if not all on the GPU:\noffload = all on the host; "
                    f"selective = in part, the rest recomputed; * = that part on the host. Grey without text: hp x cp > {RANKS}",
                    fontsize=10)
    save(figure, "plan_tgs.png")


def draw_time():
    kinds = [("attention kernels", "#4477aa"), ("matrices", "#66ccee"), ("launches and merging", "#bbbbbb"), ("optimizer", "#777777"),
             ("SeqAlltoAll", "#228833"), ("inner ring exposed", "#ccbb44"), ("outer ring exposed", "#ee6677"),
             ("gathering exposed", "#aa3377"), ("reducing exposed", "#882255"),
             ("parameter update", "#332288"), ("offload exposed", "#000000")]
    figure, axes = plt.subplots(1, 3, figsize=(11, 4.4), layout="constrained")
    for axis, length in zip(axes, ("32K", "128K", "1M")):
        best = fastest_by_degrees(length, 1)
        rows = sorted(best.items())
        drawn = set()
        for y, ((hp, cp), c) in enumerate(rows):
            left = 0
            for kind, colour in kinds:
                seconds = c["seconds"].get(kind, 0)
                axis.barh(y, seconds, left=left, color=colour, label=kind if kind not in drawn else None)
                drawn.add(kind)
                left += seconds
        axis.set_yticks(range(len(rows)), [f"{hp} x {cp}, {'all-gather' if c['cp_comm'] == 'allgather' else 'w ' + str(c['inner_ring'])}" +
                                           ("" if c["recompute"] == "none" else f"\n{c['recompute']}") for (hp, cp), c in rows], fontsize=8)
        axis.set_xlim(0, 1.04 * max(c["step_s"] for c in best.values()))
        axis.set_xlabel("seconds a step")
        axis.set_title(f"{length} tokens, one sequence a step", fontsize=10)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    figure.suptitle(f"Predicted time of a step by kind: {MODEL} on {RANKS} {CLUSTER.upper()}; rows: hp x cp, how KV is exchanged",
                    fontsize=10)
    save(figure, "plan_time.png")


def draw_memory():
    kinds = [("parameters", "#4477aa"), ("gradients", "#66ccee"), ("optimizer", "#228833"), ("activations", "#ccbb44"),
             ("workspace", "#ee6677"), ("attention rings", "#aa3377")]
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained", sharey=True)
    for axis, ranks in zip(axes, (8, 64)):
        names = []
        for x, length in enumerate(LENGTHS):
            answer = dry_run(length, ranks, CLUSTER)
            if answer is None:
                axis.text(x, 3, "does not\nfit", ha="center", fontsize=8, color="#888888")
                names.append(length)
                continue
            rows, choice, _ = answer
            bottom = 0
            for kind, colour in kinds:
                height = rows.get(kind, (0, 0))[0]
                axis.bar(x, height, bottom=bottom, color=colour, width=0.62, label=kind if x == 0 else None)
                bottom += height
            host = f"\nhost {rows['in all'][1]:.0f}" if rows["in all"][1] > 0 else ""
            grid, zero, *how = choice.split(", ")
            short = " x ".join(re.match(r"dp (\d+) hp (\d+) cp (\d+)", grid).groups())
            names.append(f"{length}\n{short}\n{zero.replace('ZeRO ', '')}\n{how[0].replace('recompute ', '')}{host}")
        axis.axhline(78e9 / 2**30, color="black", linestyle="--", linewidth=1, label="78 GB")
        axis.set_xticks(range(len(names)), names, fontsize=8)
        axis.set_xlim(-0.6, len(names) - 0.4)
        axis.set_title(f"{ranks} {CLUSTER.upper()}", fontsize=10)
        axis.set_ylim(0, 84)
    axes[0].set_ylabel("GiB per GPU")
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=8, fontsize=8)
    figure.suptitle(f"Predicted memory of a GPU: {MODEL}, the planner's choice at each length. "
                    "Below a bar: dp x hp x cp; ZeRO of parameters/gradients/optimizer;\nrecompute; GiB of host memory per rank",
                    fontsize=10)
    save(figure, "plan_memory.png")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(__doc__)
    draw_tgs()
    draw_time()
    draw_memory()
