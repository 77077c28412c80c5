#!/usr/bin/env python3
"""Writes the results of the planner and the dry run into the repository: docs/plans.md, docs/memory.md, scripts/run_llama3_8b_*.sh.

    dev/plan_tables.py            all of it (about two minutes, most of it starting the program)
    dev/plan_tables.py scripts    the scripts only

Needs a build (make DEVICE=cpu); test/test_plan.sh checks the scripts against the planner.
"""
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
BINARY = os.environ.get("TRAIN_LLAMA", os.path.join(ROOT, "build/cpu/train_llama"))
LENGTHS = {"128K": 131072, "256K": 262144, "512K": 524288, "1M": 1048576, "2M": 2097152, "4M": 4194304}
TOKENS_OF_A_STEP = 16 << 20
GIB = 1 << 30


def ask(*options):
    """Runs the program: its standard output, why nothing fits or "", and the seconds it took. Another error ends this program."""
    began = time.monotonic()
    done = subprocess.run([BINARY, *map(str, options)], capture_output=True, text=True)
    if done.returncode != 0 and not re.search("fits in memory|but may use only", done.stderr):
        sys.exit(f"{' '.join(done.args)}: {done.stderr.strip()}")
    return done.stdout, done.stderr.strip(), time.monotonic() - began


def plan(model, length, ranks, cluster, sequences=None, more=()):
    """The plan as JSON with its command, or why there is none, as text; and the seconds it took. sequences: of a step (16 Mi tokens).
    more: options that take memory, too."""
    with tempfile.NamedTemporaryFile(suffix=".json") as f:
        out, error, seconds = ask("--plan", "--model", model, "--ranks", ranks, "--cluster", cluster, "--seq-len", length,
                                  "--global-batch", sequences or TOKENS_OF_A_STEP // LENGTHS[length], "--plan-json", f.name, *more)
        if error:
            return error, seconds
        answer = json.load(open(f.name))
    answer["command"] = out.splitlines()[-1]
    return answer, seconds


def grid_text(c):
    ring = ("" if c["cp"] == 1 else " all-gather" if c["cp_comm"] == "allgather" else " ring" if c["inner_ring"] == 1 else
            f" w {c['inner_ring']}")
    placement = "" if c["hp"] == 1 or c["cp"] == 1 else f" {c['placement']}"
    return f"{c['dp']} x {c['hp']} x {c['cp']}{ring}{placement}"


def zero_text(c):
    return f"{c['zero_params']}/{c['zero_grads']}/{c['zero_optim']}"


def recompute_text(c):
    part = c["offload_activations"]
    offload = "" if part == 0 else ", offload" if part == 1 else f", offload {part:g}"
    states = (", offload of all states" if c["offload_parameters"] else ", optimizer and gradient offload" if c["offload_gradients"] else
              ", optimizer offload" if c["offload_optimizer"] else "")
    return c["recompute"] + offload + states


def unfit_text(error):
    fits = re.search(r"up to (\d+) tokens fit", error)
    return "does not fit" + (f"; up to {fits[1]} tokens" if fits else ", at any length")


def write(path, text):
    with open(os.path.join(ROOT, path), "w") as f:
        f.write(text)
    print("wrote", path)


def plans():
    slowest = 0
    text = """# Which degrees should I use

Made by `dev/plan_tables.py` with one `--plan` per row. These are predictions for machines that were not at hand. The kernels of
an H100 and an H200 were measured, on one GPU each; links are described by data sheets and estimates (`clusters/h100.txt` and
`clusters/h200.txt` say which figure is which). Read the tables as an order of configurations, not as promises; plans less than 2 % apart
are ties. `--calibrate` measures your own machine, whose figures then replace these.

Every row: 16 Mi tokens a step, bf16 with fp32 master weights, nodes with 8 GPUs, 8 NICs and 2 TB of host memory, 80 GB (H100) or
141 GB (H200) a GPU.

- Grid: dp x hp x cp; "ring" is one ring of all cp ranks, "w 2" a double ring with windows of 2. Windows pay off where there are fewer
  NICs than GPUs, or many KV heads ([planner.md](planner.md)), and in long rings with hp 1 or 2; of the best choices below only three
  have them.
- ZeRO: the number of ranks that parameters / gradients / optimizer states are sharded over.
- Recompute: "auto (24 selective)" is selective in 24 layers and full in the others, "auto (40 none)" selective in the others. Offload:
  all activations that are kept lie on the host.
- TGS: tokens per second and GPU.
- MFU: model FLOPs, causal attention counted half, recompute not counted.
- Runner-up: its step takes this much longer than the first's. With a minus it is faster, but has more recompute or offload than its gain
  is worth ([planner.md](planner.md)).

What the tables say, in short:

1. Shard heads up to a node (hp 8, the number of key/value heads of these models): it is the best choice, or within 1 % of it.
2. Grow the ring (cp) where every activation then fits, when one node cannot hold a sequence, or when there are not enough sequences for
   more dp.
3. Activations go to the host where that saves more than 2 %; else they are recomputed (selective), or fit on more ranks.
4. One GPU is enough for 512K tokens of Llama-3-8B, if the machine has the host memory: model states wait there, and long sequences leave
   the time to move them.

Plots of the same results, over (hp, cp), by kind of time and by kind of memory: [planner.md](planner.md).

What the planner prints (the time of a single ring stands under "outer ring"):

    $ ./train_llama --plan --model llama3-8b --seq-len 1M --global-batch 16 --ranks 64 --cluster h100
"""
    quoted, _, _ = ask("--plan", "--model", "llama3-8b", "--seq-len", "1M", "--global-batch", 16, "--ranks", 64, "--cluster", "h100")
    text += "".join(f"    {line}\n" for line in quoted.splitlines())
    gpus = (8, 16, 32, 64, 128, 256, 512)
    for model, sizes in (("llama3-8b", gpus), ("llama3-70b", gpus), ("llama3.1-405b", (64, 128, 256, 512, 1024))):
        for cluster in ("h100", "h200"):
            text += (f"\n## {model} on {cluster.upper()}\n\n"
                     "| S | GPUs | grid | ZeRO | recompute | GiB a GPU | host GiB a node | step s | TGS | MFU | runner-up |\n"
                     "|---|---|---|---|---|---|---|---|---|---|---|\n")
            for length in LENGTHS:
                for ranks in sizes:
                    answer, seconds = plan(model, length, ranks, cluster)
                    slowest = max(slowest, seconds)
                    if isinstance(answer, str):
                        text += f"| {length} | {ranks} | {unfit_text(answer)} | | | | | | | | |\n"
                        continue
                    c, other = answer["choices"][0], answer["choices"][1:2]
                    gap = f"{grid_text(other[0])}, {100 * other[0]['slower_than_best']:+.1f} %" if other else ""
                    text += (f"| {length} | {ranks} | {grid_text(c)} | {zero_text(c)} | {recompute_text(c)} | "
                             f"{c['memory_bytes'] / GIB:.1f} | {c['host_bytes_of_node'] / GIB:.0f} | {c['step_s']:.1f} | "
                             f"{c['tgs']:.1f} | {100 * c['mfu']:.1f} % | {gap} |\n")
    text += """
## Few GPUs: one, two or four H100

Where little is sharded, model states go to the host, too. "Offload of all states": optimizer states, gradients and parameters, which come
to the GPU one layer at a time.

| model | S | GPUs | grid | recompute | GiB a GPU | host GiB a node | TGS | MFU |
|---|---|---|---|---|---|---|---|---|
"""
    for model in ("llama3-8b", "llama3-70b"):
        for length in ("128K", "256K", "512K", "1M"):
            for ranks in (1, 2, 4):
                answer, _ = plan(model, length, ranks, "h100")
                if isinstance(answer, str):
                    text += f"| {model} | {length} | {ranks} | {unfit_text(answer)} | | | | | |\n"
                    continue
                c = answer["choices"][0]
                text += (f"| {model} | {length} | {ranks} | {grid_text(c)} | {recompute_text(c)} | {c['memory_bytes'] / GIB:.1f} | "
                         f"{c['host_bytes_of_node'] / GIB:.0f} | {c['tgs']:.1f} | {100 * c['mfu']:.1f} % |\n")
    small = ("--model", "llama3-8b", "--ranks", 1, "--seq-len", "128K", "--memory-budget", "22GiB", "--cluster", "h100",
             "--recompute", "full", "--offload-activations", 1, "--offload-optimizer", "--offload-gradients", "--offload-parameters")
    out, _, _ = ask("--dry-run", *small)
    longest, host = int(re.search(r"options.*: (\d+) tokens", out)[1]), int(re.search(r" host (\d+)", out)[1])
    alone = [plan(model, "128K", ranks, "h100", sequences=1)[0]["choices"][0]["mfu"]
             for model, ranks in (("llama3-8b", 1), ("llama3-70b", 8))]
    single = {(model, ranks): int(re.search(r"up to (\d+) tokens fit", plan(model, "64M", ranks, "h100", sequences=1)[0])[1]) // 1024
              for model in ("llama3-8b", "llama3-70b") for ranks in (1, 8)}
    text += f"""
These steps have 16M tokens in several sequences, and adding up their gradients takes memory. With one sequence a step longer ones fit:
Llama-3-8B up to {single["llama3-8b", 1]}K tokens on one GPU and {single["llama3-8b", 8]}K on eight,
Llama-3-70B up to {single["llama3-70b", 1]}K and {single["llama3-70b", 8]}K. (`--plan` with `--seq-len 64M`, which fits nowhere,
prints these, to within 1 %.)

In a step of one sequence of 128K the update of states on the host counts, though the next forward pass hides most of it:
Llama-3-8B on one GPU reaches an MFU of {100 * alone[0]:.1f} %, Llama-3-70B on eight one of {100 * alone[1]:.1f} %.

A GPU of 24 GB, of which 22 GiB are ours, holds Llama-3-8B with up to {longest // 1024}K tokens;
with 128K it takes {host / GIB:.0f} GiB of host memory:

    ./train_llama --dry-run {" ".join(map(str, small))}
"""
    write("docs/plans.md", text)
    print(f"the slowest plan took {slowest:.2f} s")


def dry_run(length, ranks, cluster):
    """The rows of the memory table in GiB (device, host), the choice and the longest length; None: does not fit."""
    out, error, _ = ask("--dry-run", "--hp", "auto", "--model", "llama3-8b", "--ranks", ranks, "--cluster", cluster, "--seq-len", length,
                        "--global-batch", TOKENS_OF_A_STEP // LENGTHS[length])
    if error:
        return None
    unit = {"B": 1 / GIB, "KiB": 1 / (1 << 20), "MiB": 1 / 1024, "GiB": 1, "TiB": 1024}
    rows = {m[1].strip(): (float(m[2]) * unit[m[3]], float(m[4]) * unit[m[5]])
            for m in re.finditer(r"^  (.+?) +([\d.]+) (\w+) +([\d.]+) (\w+)", out, re.M)}
    return rows, re.search(r"^planned for \w+: (.*): ", out, re.M)[1], int(re.search(r"options.*: (\d+) tokens", out)[1])


MORE_FITS = (("", "parameters and gradients are on every rank; optimizer states are shared among all ranks (ZeRO-1)"),
             ("--zero-params full", "parameters and gradients are shared, too (ZeRO-3, FSDP)"),
             ("--offload-activations 1", "what layers keep for the backward pass lies on the host"),
             ("--offload-optimizer", "so do the optimizer states (12 bytes a parameter)"),
             ("--offload-gradients", "gradients, too (4)"),
             ("--offload-parameters", "and parameters (2)"),
             ("--moments bf16", "the optimizer states take 8 bytes a parameter in place of 12, wherever they are"))


def longest_of(ranks, *options):
    """The longest sequence of Llama-3-8B on so many H100 with these options."""
    out, _, _ = ask("--dry-run", "--model", "llama3-8b", "--cluster", "h100", "--ranks", ranks, "--hp", ranks, *options)
    tokens = int(re.search(r"^longest .*: (\d+) tokens", out, re.M)[1])
    return f"{tokens // 1024}K" if tokens > 0 else "does not fit"


def memory():
    names = ["parameters", "gradients", "optimizer", "activations", "workspace", "attention rings"]
    text = """# Memory

## What makes more fit

`--dry-run` prints the memory of a rank without a device; with `--cluster NAME` or `--memory-budget BYTES` also the longest sequence that
fits. For example Llama-3-8B on H100 80 GB, each row with the options of the rows before it:

| option | what it does | longest, 8 GPUs (`--hp 8`) | longest, 1 GPU |
|---|---|---|---|
"""
    options = []
    for option, what in MORE_FITS:
        options += option.split()
        longest = " | ".join(longest_of(ranks, *options) for ranks in (8, 1))
        text += f"| {f'`{option}`' if option else 'none'} | {what} | {longest} |\n"
    text += """
- `--recompute auto`, the default, keeps the activations that fit, layer by layer. The longest sequences above are those of `full`, which
  keeps one tensor a layer and computes the rest again. `selective` also keeps the output of attention, which is dear to compute.
- More ranks for a sequence (`--hp`, `--cp`) divide its activations; with `--zero-params full` more ranks also divide the model states.
- Offload needs host memory. In the last three rows that of the node with 8 GPUs (2 TB) is full, so parameters on the host leave less for
  the sequence. `--host-memory BYTES` says how much of a machine a run on GPUs may take. On CPUs host and device are the same memory,
  and offload saves nothing.
- `--hp auto` and `--plan` choose all of these by time, as far as they must, but not `--moments`.

## Llama-3-8B

Made by `dev/plan_tables.py` with one `--dry-run --hp auto` per row: the fastest choice of the planner that fits, at 16 Mi tokens a
step. The rows are those of [plans.md](plans.md), up to 1M tokens and 64 GPUs. None of these was run. One H100 and one H200
took the memory that was planned, to 0.1 %, in all the steps of `benchmarks/gpu_h100.md` and `gpu_h200.md`. On the CPU device the plan is
within 5 % of the measured memory, from some 50 MB on (`test/test_memory.sh`); while a state is written, a run takes some MB more.

- All categories are in GiB of one GPU, for bf16 with fp32 gradients, moments and master weights. The scratch memory of attention,
  at most 900 MiB, is that of cuDNN for Hopper; other GPUs need no more.
- GPU: 78e9 or 141e9 bytes, which leaves 7 GB or more of the real device to the driver, the libraries, and NCCL (2.6 GiB for SeqAlltoAll
  of 8 GPUs alone).
- In all: the sum, with data and the scratch of ZeRO. Memory that buffers share at different times counts once, for the first of them.
- Host: GiB of one rank.
- Longest: the number of tokens up to which the same choice fits, also in the 2e12 bytes of host memory of a node.
- `--moments bf16` takes 4 bytes a parameter less where the optimizer states are: on one H200 (141 GB), parameters, gradients, master
  weights and moments are 16 + 32 + 32 + 32 = 112 GB, and not 16 + 32 + 32 + 64 = 144 GB, which do not fit. A state on the disk, and its
  copy while it is written, take 8 bytes a parameter in place of 12.

| S | GPUs | GPU | choice | """ + " | ".join(names) + " | in all | host | longest |\n" + "|---" * (len(names) + 7) + "|\n"
    for length in ("128K", "256K", "512K", "1M"):
        for ranks in (8, 16, 32, 64):
            for cluster, size in (("h100", "80 GB"), ("h200", "141 GB")):
                answer = dry_run(length, ranks, cluster)
                if answer is None:
                    text += f"| {length} | {ranks} | {size} | does not fit |" + " |" * (len(names) + 3) + "\n"
                    continue
                rows, choice, longest = answer
                cells = [f"{rows.get(n, (0, 0))[0]:.1f}" for n in names]
                text += (f"| {length} | {ranks} | {size} | {choice} | " + " | ".join(cells) +
                         f" | {rows['in all'][0]:.1f} | {rows['in all'][1]:.1f} | {longest} |\n")
    write("docs/memory.md", text)


SCRIPT = """#!/usr/bin/env bash
# Llama-3-8B to a context of {length} tokens, on {nodes} node{s} of 8 H100 80 GB with 8 NICs of 400 Gb/s.
#
#   tokens    {step_tokens:.1f} M a step ({batch} sequences of {S}), {total_tokens:.2f} G in {steps} steps
#   FLOPs     {flops:.2e} by the model's count (causal attention half, recompute not counted)
#   rope      theta {theta:.2e} = 8e6 (S / 65536)^(4/3): ProLong's values for this model, 8e6 for 64K, 1.28e8 for 512K; ROPE_THETA
#             overrides. Others: "NTK-aware" scaling {ntk:.2e}; Gradient's models have 2.07e8 for 256K, 1.06e9 for 512K, 2.80e9 for 1M.
#   documents attention stays within a document, which begins with token 128000 (<|begin_of_text|>); DOCUMENTS='' lets them see each other
#   grid      dp {dp} x hp {hp} x cp {cp}; ZeRO {zero}; recompute {recompute}
#   memory    {memory:.1f} GiB of a GPU by the dry run{host}
#   expected  TGS {tgs:.0f}, MFU {mfu:.1f} %, {step:.0f} s a step, {hours:.1f} h in all: predicted by --plan for the cluster h100, whose
#             figures are {figures}. No such run was measured. For whole sequences: documents take less time.
#
#   one machine, or an allocation that mpirun knows:  MODEL=Meta-Llama-3-8B DATA='data/long*.bin' scripts/run_llama3_8b_{name}.sh
#   Slurm:                                            MODEL=... DATA=... sbatch scripts/run_llama3_8b_{name}.sh
#   on {more} nodes, with more dp:                      MODEL=... DATA=... NODES={more} scripts/..., or sbatch --nodes={more} scripts/...
# MODEL is a Hugging Face folder, DATA are token files; docs/finetune.md has every step before and after. Options after the script's name,
# such as --export DIR, are added to the command; to change one of those below, edit a copy. LAUNCH=show prints the command, to be pasted,
# and starts nothing. States go to OUT (default llama3-8b-{name}). A run that ends early continues from the newest state: this script makes
# up to 20 attempts, one right after the other; Ctrl-C ends them. After the end of an allocation, which Slurm announces by SIGUSR1 a step
# and 10 minutes ahead (give sbatch a --time), give the same command again.
# Made by dev/plan_tables.py from the plan; test/test_plan.sh compares.
#SBATCH --job-name=llama3-8b-{name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=USR1@{notice}
set -euo pipefail
case ${{1:-}} in --help | -h) sed -n '2,/^# Made by/s/^#//p' "$0"; exit 0 ;; esac
unset CDPATH # with it, cd may go elsewhere
cd "$(dirname "$0")/.."
[ -e train_llama.cu ] || cd "${{SLURM_SUBMIT_DIR:-.}}" # sbatch runs a copy, which lies elsewhere
out=${{OUT:-llama3-8b-{name}}}
launcher='srun --mpi=pmix --ntasks-per-node=8'
if [ -z "${{SLURM_JOB_ID:-}}" ]; then # to other machines mpirun passes only the variables that -x names
    launcher="mpirun -np $((8 * ${{NODES:-{nodes}}})) --map-by ppr:8:node --bind-to none"
    for name in ${{!FI_@}} ${{!NCCL_@}} ${{!TRAIN_LLAMA_@}} ${{!UCX_@}}; do launcher+=" -x $name"; done
fi
show() {{ printf '%q ' $launcher "$@" && echo; }}
if [ -z "${{MODEL:-}}" ] || [ -z "${{DATA:-}}" ]; then
    echo "error: MODEL must be a Hugging Face folder of Llama-3-8B, and DATA token files, such as 'data/long*.bin' (--help says more)" >&2
    exit 2
fi
if [ -z "${{LAUNCH:-}}" ] && [ ! -x train_llama ]; then
    echo "error: $PWD has no ./train_llama; make DEVICE=cuda builds it" >&2
    exit 2
fi

trap 'exit 130' INT
for attempt in {{1..20}}; do
    status=0
    ${{LAUNCH:-$launcher}} ./train_llama --model "$MODEL" --train-data "$DATA" \\
        --seq-len {length} --batch-size 1 --global-batch {batch} --steps {steps} \\
        {flags} \\
        --rope-theta "${{ROPE_THETA:-{theta:.2e}}}" --lr 2e-5 --lr-schedule cosine --warmup 20 --weight-decay 0.1 --cluster h100 \\
        ${{DOCUMENTS---document-begin 128000}} \\
        --log "${{out%/}}.jsonl" --out "$out" --save-every 5 --resume "$@" || status=$?
    if [ $status -eq 0 ] || [ $status -eq 2 ]; then exit $status; fi # 0: done, or stopped by a signal; 2: another attempt would not help
    echo "attempt $attempt ended with status $status" >&2
    sleep "${{PAUSE:-10}}"
done
exit $status
"""


# As the scripts: a copy of the states lies in host memory while it is written, and rows know their documents.
TAKEN = ("--out", "states", "--save-every", 5, "--document-begin", 128000)


def scripts():
    for length, ranks in (("128K", 8), ("256K", 8), ("512K", 16), ("1M", 32)):
        answer, _ = plan("llama3-8b", length, ranks, "h100", more=TAKEN)
        c, S, steps, name = answer["choices"][0], LENGTHS[length], 500, length.lower()
        tokens = TOKENS_OF_A_STEP * steps
        flops = c["mfu"] * 989e12 / c["tgs"] * tokens  # 989e12: the peak of clusters/h100.txt
        # the choice is what follows --dp in the plan's command; without it, dp is what the ranks suffice for
        flags = re.search(r"--dp \d+ (.*)$", answer["command"])[1]
        host, saved = c["host_bytes_of_node"] / GIB, 12 * 8.03e9 / GIB / (ranks // 8)
        on_host = f", {host:.0f} GiB of host memory a node, {saved:.0f} of them for the state that is being saved" if host else ""
        figures = ", ".join(f"{n} {kind}" for kind, n in answer["figures"].items())
        write(f"scripts/run_llama3_8b_{name}.sh", SCRIPT.format(
            length=length, name=name, nodes=ranks // 8, more=ranks // 4, s="" if ranks == 8 else "s", ranks=ranks, S=S, steps=steps,
            batch=answer["global_batch"], step_tokens=TOKENS_OF_A_STEP / 1e6, total_tokens=tokens / 1e9, flops=flops,
            dp=c["dp"], hp=c["hp"], cp=c["cp"], zero=zero_text(c), recompute=recompute_text(c),
            memory=c["memory_bytes"] / GIB, host=on_host,
            tgs=c["tgs"], mfu=100 * c["mfu"], step=c["step_s"], hours=c["step_s"] * steps / 3600, figures=figures, flags=flags,
            theta=8e6 * (S / 65536) ** (4 / 3), ntk=500000 * (S / 8192) ** (128 / 126),
            notice=60 * math.ceil(c["step_s"] / 60 + 10)))  # time to finish a step, and 10 min to save
        os.chmod(os.path.join(ROOT, f"scripts/run_llama3_8b_{name}.sh"), 0o755)


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["scripts"]):
        sys.exit(__doc__)
    scripts()
    if sys.argv[1:] != ["scripts"]:
        memory()
        plans()
