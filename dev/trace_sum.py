#!/usr/bin/env python3
"""Sums a trace of train_llama --trace by track and name: how often, how long in all, and the share of the time that the
trace covers, from its first event to the end of its last.

    python3 dev/trace_sum.py [--last] trace.json [trace.json.rank1 ...]

--last: only what the GPU did in the last step, and how long it was idle (the first steps also choose algorithms and compile kernels).
A step goes from the update of the one before it to its own; an evaluation or a sample between them is counted, too.

The track "wait" is the exposed time of transfers; a track such as "kv_inner" has transfers from their start to the end of the wait, with
what compute hides (docs/one_step.md, "Names of transfers"); the track "kernels" (CUDA) has all kernels, products and attention calls.
Durations of nested events (a layer and its attention) are counted under each name. Needs nothing but Python.
"""
import collections
import json
import signal
import sys


def fail(text):
    print(f"error: {text}", file=sys.stderr)
    sys.exit(2)


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # its output may go to head
    if hasattr(sys.stdout, "reconfigure"):  # from Python 3.7 on: names of files may be no text, or not in the terminal's encoding
        sys.stdout.reconfigure(errors="backslashreplace")
    last = sys.argv[1:2] == ["--last"]
    paths = sys.argv[1 + last:]
    if not paths or paths[0].startswith("-"):
        sys.exit(__doc__)
    for path in paths:
        try:
            with open(path) as f:
                events = json.load(f)
        except OSError as e:
            fail(f"{path}: {e.strerror}")
        except ValueError:  # a run that was killed leaves an empty one
            events = None
        if not isinstance(events, list) or not all(isinstance(e, dict) for e in events):
            fail(f"{path}: not a trace of a run that has ended")
        tracks = {e["tid"]: e["args"]["name"] for e in events if e.get("ph") == "M" and e["name"] == "thread_name"}
        spans = [e for e in events if e.get("ph") == "X"]
        if not spans:
            fail(f"{path}: no events")
        if last:
            # An update begins when the host has the gradient's norm: then the GPU has done all that came before, and nothing of the update.
            updates = sorted(e["ts"] for e in spans if tracks.get(e["tid"]) == "compute" and e["name"] == "update")
            spans = [e for e in spans if tracks.get(e["tid"]) == "kernels"]
            if not spans:
                fail(f"{path}: no kernels (the trace is not of a CUDA device)")
            spans = [e for e in spans if len(updates) > 1 and updates[-2] <= e["ts"] < updates[-1]]
            if not spans:
                fail(f"{path}: --last needs a trace of two updates or more (--steps 2), with kernels between them")
        whole = max(e["ts"] + e["dur"] for e in spans) - min(e["ts"] for e in spans)
        sums = collections.defaultdict(lambda: [0, 0.0])
        for e in spans:
            s = sums[(e["tid"], e["name"])]
            s[0] += 1
            s[1] += e["dur"]
        between = f", {(whole - sum(e['dur'] for e in spans)) * 1e-3:.3f} ms of it between kernels" if last else ""
        print(f"{path}: {whole * 1e-3:.1f} ms{between}")
        for tid in sorted({t for t, _ in sums}):
            rows = sorted(((n, *s) for (t, n), s in sums.items() if t == tid), key=lambda row: -row[2])
            print(f"  {tracks.get(tid, tid)}")
            for name, count, total in rows:
                print(f"    {name:44} {count:7} x {total * 1e-3:11.3f} ms {100 * total / whole:6.2f} %")


main()
