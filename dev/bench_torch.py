#!/usr/bin/env python3
"""The peer of the CPU benchmark: a whole training step of a 124.7M Llama in PyTorch on the CPU (forward, loss, backward, AdamW).

    python3 dev/bench_torch.py --tokens 512 --steps 8
    python3 dev/bench_torch.py --tokens 4096 --steps 5

12 layers, D 768, 12 heads, 4 key/value heads of 64, F 2048, V 32000 untied, fp32, batch 1, random weights and tokens. The defaults
are the fastest settings found (benchmarks/peers_cpu.md); options switch them one at a time. Nothing else should run on the machine.
Packages: dev/requirements.txt (torch alone is enough).
"""
import argparse
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

L, D, H, HKV, HS, F, V = 12, 768, 12, 4, 64, 2048, 32000


def parse():
    parser = argparse.ArgumentParser(description="Times a training step of a 124.7M Llama in PyTorch on the CPU.")
    parser.add_argument("--tokens", type=int, default=512, help="sequence length, batch 1 (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=8, help="timed steps (default: %(default)s)")
    parser.add_argument("--warmup", type=int, default=2, help="steps before them (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="(default: all, %(default)s)")
    parser.add_argument("--blas", default="mkl-avx512", metavar="mkl|mkl-avx512|PATH",
                        help="mkl: the wheel as it is, which uses only AVX2 on AMD; mkl-avx512: a preloaded one-line library "
                             "(built with cc) makes MKL treat the CPU as Intel's; PATH: preload this libopenblas.so "
                             "(default: %(default)s)")
    parser.add_argument("--sdpa", choices=["flash", "math"], default="flash", help="attention kernel (default: %(default)s)")
    parser.add_argument("--kv", choices=["expand", "gqa"], default="expand",
                        help="key/value heads repeated before attention, or enable_gqa (default: %(default)s)")
    parser.add_argument("--eager", action="store_true", help="without torch.compile (which needs a C++ compiler)")
    parser.add_argument("--fused-qkv", action="store_true", help="one product for q, k, v and one for gate, up")
    parser.add_argument("--unfused-adamw", action="store_true", help="AdamW(fused=False)")
    parser.add_argument("--keep-malloc", action="store_true", help="leave glibc's malloc and the thread placement at their defaults")
    return parser.parse_args()


# glibc and OpenMP read these when a process starts, so the process restarts itself with them.
ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 40),  # big tensors from the heap, which stays mapped: no page faults each step
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(256 << 20),
    "OMP_PROC_BIND": "true",
}


def preloaded_library(blas):
    """The library to preload for --blas. MKL uses AVX2 code on CPUs that are not Intel's, at half the speed of AVX-512; the library
    that is built here tells it that the CPU is Intel's."""
    if blas == "mkl":
        return ""
    if blas != "mkl-avx512":
        if not os.path.exists(blas):
            sys.exit(f"error: --blas {blas}: no such file; legal values are mkl, mkl-avx512 or the path of a libopenblas.so")
        return blas
    library = os.path.join(tempfile.gettempdir(), f"mkl_avx512_{os.getuid()}.so")
    source = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"
    subprocess.run(["cc", "-x", "c", "-shared", "-fPIC", "-o", library, "-"], input=source.encode(), check=True)
    return library


def restart_with_environment(args):
    if "BENCH_TORCH_STARTED" in os.environ:
        return
    wanted = {"BENCH_TORCH_STARTED": "1", "OMP_NUM_THREADS": str(args.threads), "LD_PRELOAD": preloaded_library(args.blas)}
    if not args.keep_malloc:
        wanted.update(ENVIRONMENT)
    os.environ.update(wanted)
    os.execv(sys.executable, [sys.executable] + sys.argv)


args = parse()
restart_with_environment(args)

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel


class Attention(nn.Module):
    def __init__(self, fused):
        super().__init__()
        sizes = [H * HS, HKV * HS, HKV * HS]
        self.projections = nn.ModuleList(nn.Linear(D, n, bias=False) for n in ([sum(sizes)] if fused else sizes))
        self.out = nn.Linear(H * HS, D, bias=False)
        self.sizes = sizes

    def forward(self, x, cos, sin):  # x (1, T, D)
        T = x.shape[1]
        if len(self.projections) == 1:
            q, k, v = self.projections[0](x).split(self.sizes, dim=-1)
        else:
            q, k, v = [p(x) for p in self.projections]
        q, k, v = [t.view(1, T, -1, HS).transpose(1, 2) for t in (q, k, v)]
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if args.kv == "expand":
            k, v = k.repeat_interleave(H // HKV, dim=1), v.repeat_interleave(H // HKV, dim=1)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).reshape(1, T, H * HS))


def rotate(x, cos, sin):  # x (1, heads, T, HS), cos and sin (T, HS / 2)
    a, b = x[..., : HS // 2], x[..., HS // 2 :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class MLP(nn.Module):
    def __init__(self, fused):
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(D, n, bias=False) for n in ([2 * F] if fused else [F, F]))
        self.down = nn.Linear(F, D, bias=False)

    def forward(self, x):
        gate, up = self.up[0](x).split(F, dim=-1) if len(self.up) == 1 else [u(x) for u in self.up]
        return self.down(functional.silu(gate) * up)


class Layer(nn.Module):
    def __init__(self, fused):
        super().__init__()
        self.norm1, self.attention = nn.RMSNorm(D, eps=1e-5), Attention(fused)
        self.norm2, self.mlp = nn.RMSNorm(D, eps=1e-5), MLP(fused)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    def __init__(self, fused):
        super().__init__()
        self.embedding = nn.Embedding(V, D)
        self.layers = nn.ModuleList(Layer(fused) for _ in range(L))
        self.norm, self.head = nn.RMSNorm(D, eps=1e-5), nn.Linear(D, V, bias=False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, labels, cos, sin):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return functional.cross_entropy(self.head(self.norm(x)).view(-1, V), labels.view(-1))


def flops_per_step(T):
    """FLOPs of the matrix products, forward and backward; causal attention counted half."""
    weights = L * (D * (H + 2 * HKV) * HS + H * HS * D + 3 * D * F) + V * D
    return 6 * weights * T + 6 * L * H * HS * T * T


def main():
    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    T = args.tokens
    model = Llama(args.fused_qkv)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=not args.unfused_adamw)
    angles = torch.arange(T)[:, None] * (500000.0 ** (-torch.arange(0, HS, 2) / HS))[None]
    cos, sin = angles.cos(), angles.sin()
    tokens = torch.randint(0, V, (1, T + 1))
    step_loss = model if args.eager else torch.compile(model)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}, "
          f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters, fp32, T {T}, blas {args.blas}, sdpa {args.sdpa}, "
          f"kv {args.kv}, compile {not args.eager}, fused-qkv {args.fused_qkv}", flush=True)

    times = []
    backend = SDPBackend.FLASH_ATTENTION if args.sdpa == "flash" else SDPBackend.MATH
    with sdpa_kernel(backend):
        for step in range(-args.warmup, args.steps):
            start = time.perf_counter()
            loss = step_loss(tokens[:, :-1], tokens[:, 1:], cos, sin)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            shown = loss.item()
            ms = (time.perf_counter() - start) * 1000
            if step >= 0:
                times.append(ms)
            assert math.isfinite(shown)
            print(f"step {step:3} | loss {shown:.4f} | {ms:.1f} ms | {T / ms * 1000:.0f} tok/s{' | warm-up' if step < 0 else ''}",
                  flush=True)
    median, least = statistics.median(times), min(times)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"median {median:.1f} ms {T / median * 1000:.1f} tok/s {flops_per_step(T) / median / 1e6:.0f} GFLOP/s | "
          f"min {least:.1f} ms {T / least * 1000:.1f} tok/s | {len(times)} steps | {peak:.1f} GiB")


main()
