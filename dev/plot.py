#!/usr/bin/env python3
"""Plots the logs of train_llama (--log FILE.jsonl): loss, validation loss, gradient norm, TGS, MFU, memory, bytes sent.

    python3 dev/plot.py --terminal run.jsonl              the loss as text, in the terminal; needs nothing but Python 3
    python3 dev/plot.py -o run.png run.jsonl other.jsonl  all of the above as a picture; needs matplotlib

A line of a log is one JSON object with "step"; keys that are absent or null are left out of their plot. With several logs every
plot shows all of them. A run that is resumed goes on from a state: what its log has of later steps was given up, and does not count.
"""
import argparse
import json
import math
import os
import shutil
import signal
import sys

# What can be plotted: key, title, factor from the log's unit.
QUANTITIES = [
    ("loss", "loss", 1.0),
    ("val_loss", "validation loss", 1.0),
    ("val_loss_by_position", "validation loss by position", 1.0),
    ("needle_accuracy", "needles found by depth", 1.0),
    ("needle_loss", "loss of needles by depth", 1.0),
    ("grad_norm", "gradient norm", 1.0),
    ("lr", "learning rate", 1.0),
    ("tgs", "tokens / s / device", 1.0),
    ("mfu", "MFU, %", 100.0),
    ("step_ms", "step, ms", 1.0),
    ("mem_bytes", "memory, GiB", 1.0 / 2**30),
    ("comm_bytes", "bytes sent a step, MiB", 1.0 / 2**20),
    ("exposed_ms", "waited for transfers, ms a step", 1.0),
]
LOGARITHMIC = ("loss", "val_loss", "grad_norm")  # with --log-scale
# Validation loss goes into the loss plot.
PICTURE = ["loss", "val_loss_by_position", "needle_accuracy", "grad_norm", "tgs", "mfu", "mem_bytes", "comm_bytes"]


def number(x):
    return isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x)


def flat(value, name):
    """The numbers inside an object with their paths: {"a": {"b": 1}} under "key" is ("key/a/b", 1)."""
    for key, part in value.items():
        yield from flat(part, f"{name}/{key}") if isinstance(part, dict) else [(f"{name}/{key}", part)]


def entries(path):
    """The lines of a log that tell of steps, without those that were given up, as a later run went on from a state before them, and those
    of runs that only evaluate (--steps 0) behind one that trains: their step is that of the model, which may be another one."""
    kept, skipped, trains, counts = [], [], False, True
    with open(path, encoding="utf-8", errors="replace") as f:
        for line_number, line in enumerate(f, 1):
            if not line.strip():
                continue
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                skipped.append(line_number)  # a killed run may end within a line
                continue
            if not isinstance(entry, dict):
                continue
            if isinstance(entry.get("run"), dict):  # a run begins
                done, options = entry["run"].get("steps_done"), entry["run"].get("options")
                evaluates = isinstance(options, dict) and options.get("steps") == "0"
                trains = trains or not evaluates
                counts = not evaluates or not trains
                if not evaluates and number(done):
                    kept = [earlier for earlier in kept if earlier["step"] <= done]
            elif counts and number(entry.get("step")):
                kept.append(entry)
    if skipped:
        print(f"{path}:{skipped[0]}: not JSON, skipped" + (f", and {len(skipped) - 1} more" if len(skipped) > 1 else ""), file=sys.stderr)
    return kept


def read_log(path):
    """{key: [(step, value), ...]} in order of steps; an object becomes one series per member: "comm_bytes/KIND", "val_loss/SET"."""
    values = {}
    for entry in entries(path):
        for key, factor in ((q[0], q[2]) for q in QUANTITIES):
            value = entry.get(key)
            for name, part in (flat(value, key) if isinstance(value, dict) else [(key, value)]):
                if number(part):
                    values.setdefault(name, {})[entry["step"]] = part * factor
    return {key: sorted(points.items()) for key, points in values.items()}


def label(value):
    text = f"{value:.4g}"
    return f"{value:.2e}" if len(text) > 8 else text


# ---- terminal: braille has 2 x 4 dots a character; ASCII one mark a character ----
BRAILLE_BITS = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]]  # [x in the cell][y in the cell, downwards]
ASCII_MARKS = "*+ox#@%&"


class Canvas:
    def __init__(self, width, height, braille):
        self.width, self.height, self.braille = width, height, braille
        self.dots_x, self.dots_y = (2, 4) if braille else (1, 1)
        self.cells = [[0] * width for _ in range(height)]

    def dot(self, x, y, mark):  # x from the left, y from the top, in dots
        column, row = x // self.dots_x, y // self.dots_y
        if self.braille:
            self.cells[row][column] |= BRAILLE_BITS[x % 2][y % 4]
        else:
            self.cells[row][column] = ord(ASCII_MARKS[mark % len(ASCII_MARKS)])

    def line(self, x0, y0, x1, y1, mark):
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        for i in range(steps + 1):
            self.dot(round(x0 + (x1 - x0) * i / steps), round(y0 + (y1 - y0) * i / steps), mark)

    def rows(self):
        if self.braille:
            return ["".join(chr(0x2800 + c) if c else " " for c in row) for row in self.cells]
        return ["".join(chr(c) if c else " " for c in row) for row in self.cells]


def chart(title, series, width, height, braille, log_scale):
    """Text of one plot. series: [(name, [(step, value), ...]), ...]."""
    scale = math.log10 if log_scale else (lambda v: v)
    series = [(name, [(s, v) for s, v in points if not log_scale or v > 0]) for name, points in series]
    series = [(name, points) for name, points in series if points]
    if not series:
        return ""
    steps = [s for _, points in series for s, _ in points]
    heights = [scale(v) for _, points in series for _, v in points]
    left, right, low, high = min(steps), max(steps), min(heights), max(heights)
    if right == left:
        right = left + 1
    if high == low:
        low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)

    margin = 10
    canvas = Canvas(max(width - margin - 2, 10), max(height, 3), braille)
    across, down = canvas.width * canvas.dots_x - 1, canvas.height * canvas.dots_y - 1
    for mark, (_, points) in enumerate(series):
        at = [(round((s - left) / (right - left) * across), round((high - scale(v)) / (high - low) * down)) for s, v in points]
        canvas.dot(*at[0], mark)
        for (x0, y0), (x1, y1) in zip(at, at[1:]):
            canvas.line(x0, y0, x1, y1, mark)

    upright, corner, flat = ("│", "└", "─") if braille else ("|", "+", "-")
    text = [f"{title}{' (log scale)' if log_scale else ''}"]
    for row, cells in enumerate(canvas.rows()):
        value = high - (high - low) * row / (canvas.height - 1)
        shown = label(10**value if log_scale else value) if row % 4 == 0 or row == canvas.height - 1 else ""
        text.append(f"{shown:>{margin}} {upright}{cells}")
    first, last = f"step {left}", str(right)
    text.append(" " * (margin + 1) + corner + flat * canvas.width)
    text.append(" " * (margin + 2) + first + last.rjust(canvas.width - len(first)))
    for mark, (name, points) in enumerate(series):
        sign = "" if braille else ASCII_MARKS[mark % len(ASCII_MARKS)] + " "
        ends = ", ".join(f"{label(value)} at step {step}" for step, value in (points[0], points[-1]))
        text.append(" " * (margin + 2) + f"{sign}{name}: {ends}")
    return "\n".join(text)


def short_names(paths):
    names = [os.path.basename(p) for p in paths]
    return names if len(set(names)) == len(names) else list(paths)


def legend_text(name):
    """A name as it is: to matplotlib $ begins a formula, and _ a curve that is left out."""
    text = name.encode(errors="backslashreplace").decode().replace("$", r"\$")
    return " " + text if text.startswith("_") else text


def plot_terminal(paths, logs, keys, args):
    encoding = (sys.stdout.encoding or "").lower()
    braille = not args.ascii and "utf" in encoding
    width = args.width or min(shutil.get_terminal_size((100, 24)).columns, 120)
    titles = {q[0]: q[1] for q in QUANTITIES}
    drawn = 0
    for key in keys:
        series = []
        for name, log in zip(short_names(paths), logs):
            for have in log:
                if have == key or have.startswith(key + "/"):
                    series.append((f"{name} {have.partition('/')[2] or titles[key]}", log[have]))
        # Braille dots of several logs cannot be told apart: one chart per log, one below the other.
        groups = [[s] for s in series] if braille else [series]
        for group in groups:
            text = chart(titles[key], group, width, args.height, braille, args.log_scale and key in LOGARITHMIC)
            if text:
                print(text, end="\n\n")
                drawn += 1
    if drawn == 0:
        sys.exit(f"error: nothing to plot: no line of {', '.join(paths)} has a number under {', '.join(keys)}")


def plot_picture(paths, logs, keys, args):
    try:
        import matplotlib
    except ImportError:
        sys.exit("error: matplotlib is not installed (pip install -r dev/requirements.txt); --terminal plots without it")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    titles = {q[0]: q[1] for q in QUANTITIES}
    there = {have.partition("/")[0] for log in logs for have in log}
    shown = [k for k in keys if k in there or (k == "loss" and "val_loss" in there)]
    if not shown:
        sys.exit(f"error: nothing to plot: no line of {', '.join(paths)} has a number under {', '.join(keys)}")
    columns = min(len(shown), 2)
    rows = -(-len(shown) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(7 * columns, 3.6 * rows), squeeze=False, constrained_layout=True)
    for axis in list(axes.flat)[len(shown):]:
        axis.set_visible(False)
    for axis, key in zip(axes.flat, shown):
        for color, (name, log) in enumerate(zip(map(legend_text, short_names(paths)), logs)):
            kinds = [have for have in log if have.startswith(key + "/")]
            if key in ("comm_bytes", "exposed_ms"):  # without the kinds of transfers that the run did not have
                kinds = [kind for kind in kinds if any(value for _, value in log[kind])] or kinds[-1:]
            for dash, kind in enumerate(kinds):
                style = ["-", "--", ":", "-."][dash % 4]
                axis.plot(*zip(*log[kind]), style, color=f"C{color if len(logs) > 1 else dash}", label=f"{name} {kind.partition('/')[2]}")
            if key in log:
                axis.plot(*zip(*log[key]), color=f"C{color}", linewidth=1, label=name)
            for mark, have in enumerate(h for h in log if key == "loss" and (h == "val_loss" or h.startswith("val_loss/"))):
                axis.plot(*zip(*log[have]), "osv^Dx"[mark % 6] + "--", color=f"C{color}", markersize=4,
                          label=f"{name} validation {have[9:]}".rstrip())
        axis.set_title(titles[key])
        axis.set_xlabel("step")
        axis.grid(alpha=0.3)
        if args.log_scale and key in LOGARITHMIC:
            axis.set_yscale("log")
        if key in ("tgs", "mfu", "mem_bytes", "comm_bytes"):
            axis.set_ylim(bottom=0)
        axis.legend(fontsize="small").set_in_layout(False)  # of many curves it would take the place of the plots
    output = args.output if os.path.splitext(args.output)[1] else args.output + ".png"
    try:
        figure.savefig(output, dpi=110)
    except (OSError, ValueError) as e:  # no such folder; a format that matplotlib does not know
        sys.exit(f"error: --output {output}: {e}")
    print(f"wrote {output}")


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # its output may go to head
    if hasattr(sys.stdout, "reconfigure"):  # from Python 3.7 on: names of files may be no text, or not in the terminal's encoding
        sys.stdout.reconfigure(errors="backslashreplace")
    keys = [q[0] for q in QUANTITIES]
    parser = argparse.ArgumentParser(description="Plots logs of train_llama.", usage="plot.py [OPTION ...] FILE.jsonl ..., or --help")
    parser.add_argument("logs", nargs="+", metavar="FILE.jsonl")
    parser.add_argument("-o", "--output", default="train_llama.png", help="image to write (default: %(default)s)")
    parser.add_argument("--terminal", action="store_true", help="plot as text instead; needs no packages")
    parser.add_argument("--keys", help=f"what to plot: of {','.join(keys)} (default: {','.join(PICTURE)}; --terminal: loss,val_loss)")
    parser.add_argument("--log-scale", action="store_true", help="plot losses and gradient norm on a logarithmic axis")
    parser.add_argument("--ascii", action="store_true", help="--terminal: ASCII instead of braille dots")
    parser.add_argument("--width", type=int, default=0, help="--terminal: columns (default: the terminal's)")
    parser.add_argument("--height", type=int, default=14, help="--terminal: rows of a plot (default: %(default)s)")
    args = parser.parse_args()
    wanted = args.keys.split(",") if args.keys is not None else ["loss", "val_loss"] if args.terminal else PICTURE
    for key in wanted:
        if key not in keys:
            parser.error(f"--keys {key}: unknown; legal values are {', '.join(keys)}")
    try:
        logs = [read_log(path) for path in args.logs]
    except OSError as e:
        sys.exit(f"error: cannot read {e.filename}: {e.strerror}")
    if args.terminal:
        plot_terminal(args.logs, logs, wanted, args)
    else:
        plot_picture(args.logs, logs, wanted, args)


if __name__ == "__main__":
    main()
