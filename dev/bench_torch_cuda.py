#!/usr/bin/env python3
"""The peer of the GPU benchmark: a whole training step of a Llama in PyTorch on one GPU (forward, loss, backward, AdamW), bf16, batch 1.

    python3 dev/bench_torch_cuda.py --model llama3.2-1b --tokens 8192 --steps 5
    python3 dev/bench_torch_cuda.py --model llama-8b-8-layers --tokens 131072 --steps 2

The shapes of scripts/gpu_check.sh: same sizes, same GPU. torch.compile, flash or cuDNN SDPA, bf16 autocast over float parameters, fused AdamW, layers
checkpointed and the loss in pieces of tokens where the length asks for it. Prints tokens/s, model TFLOP/s (causal attention counted half, recompute
not at all) and the peak of memory. `--device cpu --model small` only shows that it runs. Packages: dev/requirements.txt (torch alone is enough).
"""
import argparse
import statistics
import sys
import time

# L, D, H, HKV, HS, F, V, tied
MODELS = {
    "llama3.2-1b": (16, 2048, 32, 8, 64, 8192, 128256, True),
    "llama-8b-8-layers": (8, 4096, 32, 8, 128, 14336, 128256, False),
    "small": (2, 64, 4, 2, 16, 96, 256, False),
}
parser = argparse.ArgumentParser(description="Times a training step of a Llama in PyTorch on one GPU.")
parser.add_argument("--model", choices=sorted(MODELS), default="llama3.2-1b")
parser.add_argument("--tokens", type=int, default=8192, help="sequence length, batch 1 (default: %(default)s)")
parser.add_argument("--steps", type=int, default=5, help="timed steps (default: %(default)s)")
parser.add_argument("--warmup", type=int, default=2, help="steps before them (default: %(default)s)")
parser.add_argument("--sdpa", choices=["flash", "cudnn"], default="flash", help="attention kernel (default: %(default)s)")
parser.add_argument("--recompute", choices=["auto", "yes", "no"], default="auto", help="checkpoint every layer; auto: above 16384 tokens (default: %(default)s)")
parser.add_argument("--loss-tile", type=int, default=8192, help="tokens whose logits exist at a time (default: %(default)s)")
parser.add_argument("--eager", action="store_true", help="without torch.compile")
parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
args = parser.parse_args()

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

L, D, H, HKV, HS, F, V, TIED = MODELS[args.model]
RECOMPUTE = args.recompute == "yes" or (args.recompute == "auto" and args.tokens > 16384)


def rotate(x, cos, sin):  # x (1, heads, T, HS), cos and sin (T, HS / 2)
    a, b = x[..., : HS // 2], x[..., HS // 2 :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(D, eps=1e-5), nn.RMSNorm(D, eps=1e-5)
        self.qkv, self.out = nn.Linear(D, (H + 2 * HKV) * HS, bias=False), nn.Linear(H * HS, D, bias=False)
        self.gate_up, self.down = nn.Linear(D, 2 * F, bias=False), nn.Linear(F, D, bias=False)

    def forward(self, x, cos, sin):  # x (1, T, D)
        T = x.shape[1]
        q, k, v = self.qkv(self.norm1(x)).split([H * HS, HKV * HS, HKV * HS], dim=-1)
        q, k, v = [t.view(1, T, -1, HS).transpose(1, 2) for t in (q, k, v)]
        y = functional.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(1, T, H * HS))
        gate, up = self.gate_up(self.norm2(x)).split(F, dim=-1)
        return x + self.down(functional.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(V, D)
        self.layers = nn.ModuleList(Layer() for _ in range(L))
        self.norm, self.head = nn.RMSNorm(D, eps=1e-5), nn.Linear(D, V, bias=False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)
        if TIED:
            self.head.weight = self.embedding.weight

    def tile_loss(self, x, labels):
        return functional.cross_entropy(self.head(x).float(), labels, reduction="sum")

    def forward(self, tokens, labels, cos, sin):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, cos, sin, use_reentrant=False) if RECOMPUTE else layer(x, cos, sin)
        x, labels, total = self.norm(x)[0], labels[0], 0.0
        for at in range(0, x.shape[0], args.loss_tile):
            piece = x[at : at + args.loss_tile], labels[at : at + args.loss_tile]
            whole = x.shape[0] <= args.loss_tile
            total = total + (self.tile_loss(*piece) if whole else checkpoint(self.tile_loss, *piece, use_reentrant=False))
        return total / x.shape[0]


def flops_per_step(T):
    """Products of matrices, forward and backward; causal attention counted half."""
    weights = L * (D * (H + 2 * HKV) * HS + H * HS * D + 3 * D * F) + V * D
    return 6 * weights * T + 6 * L * H * HS * T * T


def main():
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("error: torch sees no GPU (--device cpu --model small shows only that this runs)")
    device, T, cuda = torch.device(args.device), args.tokens, args.device == "cuda"
    torch.manual_seed(1)
    with device:
        model = Llama()
        angles = torch.arange(T)[:, None] * (500000.0 ** (-torch.arange(0, HS, 2) / HS))[None]
        cos, sin = angles.cos(), angles.sin()
        tokens = torch.randint(0, V, (1, T + 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=cuda)
    step_loss = model if args.eager else torch.compile(model)
    name = torch.cuda.get_device_name() if cuda else "CPU"
    print(f"torch {torch.__version__}, {name}, {args.model}, {sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters, bf16, T {T}, "
          f"sdpa {args.sdpa}, recompute {RECOMPUTE}, compile {not args.eager}", flush=True)
    backend = SDPBackend.FLASH_ATTENTION if args.sdpa == "flash" else SDPBackend.CUDNN_ATTENTION
    times = []
    with sdpa_kernel(backend if cuda else SDPBackend.MATH):
        for step in range(-args.warmup, args.steps):
            start = time.perf_counter()
            with torch.autocast(args.device, dtype=torch.bfloat16):
                loss = step_loss(tokens[:, :-1], tokens[:, 1:], cos, sin)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            shown = loss.item()  # waits for the GPU
            if cuda:
                torch.cuda.synchronize()
            ms = (time.perf_counter() - start) * 1000
            if step >= 0:
                times.append(ms)
            print(f"step {step:3} | loss {shown:.4f} | {ms:.1f} ms | {T / ms * 1000:.0f} tok/s{' | warm-up' if step < 0 else ''}", flush=True)
    median, least = statistics.median(times), min(times)
    peak = torch.cuda.max_memory_allocated() / 2**30 if cuda else 0
    print(f"median {median:.1f} ms {T / median * 1000:.1f} tok/s {flops_per_step(T) / median / 1e9:.1f} TFLOP/s | min {least:.1f} ms | "
          f"{len(times)} steps | {peak:.1f} GiB")


main()
