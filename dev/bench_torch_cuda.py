#!/usr/bin/env python3
"""The peer of the GPU benchmark: a whole training step of a Llama in PyTorch on one GPU (forward, loss, backward, AdamW), bf16.

    python3 dev/bench_torch_cuda.py --model llama3.2-1b --tokens 8192 --batch 4 --grad-accum 4 --steps 5
    python3 dev/bench_torch_cuda.py --model llama-8b-4-layers --tokens 131072 --steps 2

scripts/gpu_check.sh runs it with our steps' sizes, on the same GPU. It uses what PyTorch (2.6 or newer) offers without other packages,
at the trainer's precision:
  - torch.compile of the layer, cuDNN or flash SDPA, bf16 residuals, fused AdamW;
  - bf16 parameters; the optimizer keeps their float values and the float sums of their gradients (--autocast: float parameters, which are
    rounded again for each sequence: more memory traffic);
  - the loss in tiles of tokens, which computes its gradients in the same pass;
  - as many layers as the memory requires are recomputed in the backward pass, except for their attention.
Prints tokens/s, model TFLOP/s (causal attention counted half, recompute not at all) and the peak of memory; leaves no file.
`--device cpu --model small` only shows that it runs. Packages: dev/requirements.txt (torch alone is enough).
"""
import argparse
import functools
import os
import statistics
import sys
import tempfile
import time

# L, D, H, HKV, HS, F, V, tied
MODELS = {
    "llama3.2-1b": (16, 2048, 32, 8, 64, 8192, 128256, True),
    "llama-8b-4-layers": (4, 4096, 32, 8, 128, 14336, 128256, False),
    "small": (2, 64, 4, 2, 16, 96, 256, False),
}
parser = argparse.ArgumentParser(description="Times a training step of a Llama in PyTorch on one GPU.")
parser.add_argument("--model", choices=sorted(MODELS), default="llama3.2-1b")
parser.add_argument("--tokens", type=int, default=8192, help="sequence length (default: %(default)s)")
parser.add_argument("--batch", type=int, default=1, help="sequences at a time (default: %(default)s)")
parser.add_argument("--grad-accum", type=int, default=1, help="batches per step, one after the other (default: %(default)s)")
parser.add_argument("--steps", type=int, default=5, help="timed steps (default: %(default)s)")
parser.add_argument("--warmup", type=int, default=2, help="steps before them, two or more (default: %(default)s)")
parser.add_argument("--sdpa", choices=["auto", "flash", "cudnn"], default="auto",
                    help="attention kernel; auto: cuDNN on Hopper and Blackwell where it takes the shape, else flash "
                         "(default: %(default)s)")
parser.add_argument("--recompute", choices=["auto", "yes", "no"], default="auto",
                    help="recompute every layer except its attention; auto: as many layers as memory requires (default: %(default)s)")
parser.add_argument("--loss-tile", type=int, default=8192, help="tokens whose logits exist at a time (default: %(default)s)")
parser.add_argument("--autocast", action="store_true", help="bf16 autocast over float parameters")
parser.add_argument("--whole", action="store_true", help="compile the model as one graph; slower to start")
parser.add_argument("--eager", action="store_true", help="without torch.compile")
parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
args = parser.parse_args()

compiled_files = tempfile.TemporaryDirectory()
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", compiled_files.name)
os.environ.setdefault("TRITON_CACHE_DIR", compiled_files.name + "/triton")
if "PYTORCH_ALLOC_CONF" not in os.environ:  # the newer name: unknown before PyTorch 2.9, and 2.9 ignores it (PyTorch issue 183387)
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

L, D, H, HKV, HS, F, V, TIED = MODELS[args.model]
ATTENTION = [torch.ops.aten._scaled_dot_product_cudnn_attention.default, torch.ops.aten._scaled_dot_product_flash_attention.default,
             torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default]  # the results that recomputing keeps


def layers_recomputed():
    """The fewest layers to recompute for the activations to fit, with 15 % of the memory left for what one layer and the loss need
    while they run. If these are too few, the first step runs out of memory and main takes more."""
    if args.recompute != "auto" or args.device == "cpu":
        return L if args.recompute == "yes" else 0
    weights = L * (D * (H + 2 * HKV) * HS + H * HS * D + 3 * D * F) + V * D * (1 if TIED else 2)
    # Bytes of a layer that keeps all, and of one that is recomputed.
    kept, least = [2 * args.batch * args.tokens * n for n in (2 * D + 2 * (H + 2 * HKV) * HS + 2 * F, D + H * HS)]
    left = 0.85 * torch.cuda.mem_get_info()[1] - 18 * weights
    return next((n for n in range(L) if (L - n) * kept + n * least < left), L)


def rotate(x, cos, sin):  # x (B, heads, T, HS), cos and sin (T, HS / 2)
    a, b = x[..., : HS // 2], x[..., HS // 2 :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class Norm(nn.RMSNorm):
    def forward(self, x):  # PyTorch's kernel wants the weight in x's type
        return functional.rms_norm(x, (D,), self.weight.to(x.dtype), 1e-5)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = Norm(D), Norm(D)
        self.qkv, self.out = nn.Linear(D, (H + 2 * HKV) * HS, bias=False), nn.Linear(H * HS, D, bias=False)
        self.gate_up, self.down = nn.Linear(D, 2 * F, bias=False), nn.Linear(F, D, bias=False)

    def compute(self, x, cos, sin):  # x (B, T, D)
        B, T = x.shape[:2]
        q, k, v = self.qkv(self.norm1(x)).split([H * HS, HKV * HS, HKV * HS], dim=-1)
        q, k, v = [t.view(B, T, -1, HS).transpose(1, 2) for t in (q, k, v)]
        y = functional.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, H * HS))
        gate, up = self.gate_up(self.norm2(x)).split(F, dim=-1)
        return x + self.down(functional.silu(gate) * up)

    def forward(self, x, cos, sin, recompute):
        if not recompute:
            return self.compute(x, cos, sin)
        keep = functools.partial(create_selective_checkpoint_contexts, ATTENTION)
        return checkpoint(self.compute, x, cos, sin, use_reentrant=False, context_fn=keep)


class TiledLoss(torch.autograd.Function):
    """Mean cross-entropy of x w^T, x (B T, D) in bf16, over the sequences of a step. The forward pass also computes the gradients, so the
    logits are computed only once."""

    @staticmethod
    def forward(ctx, x, weight, labels):
        w, total, dx, dw, count = weight.to(x.dtype), 0.0, [], None, x.shape[0] * args.grad_accum
        for at in range(0, x.shape[0], args.loss_tile):
            tile, label = x[at : at + args.loss_tile], labels[at : at + args.loss_tile, None]
            logits = (tile @ w.t()).float()
            lse = logits.logsumexp(-1, keepdim=True)
            total = total + (lse - logits.gather(1, label)).sum()
            dlogits = (((logits - lse).exp() - (torch.arange(V, device=x.device) == label).float()) / count).to(x.dtype)
            part = (dlogits.t() @ tile).float()
            dw = part if dw is None else dw + part
            dx.append(dlogits @ w)
        ctx.save_for_backward(torch.cat(dx), dw)
        return total / count

    @staticmethod
    def backward(ctx, one):  # nothing comes after the loss, so its gradient is 1
        dx, dw = ctx.saved_tensors
        return dx, dw, None


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(V, D)
        self.layers = nn.ModuleList(Layer() for _ in range(L))
        self.norm, self.head = Norm(D), nn.Linear(D, V, bias=False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)
        if TIED:
            self.head.weight = self.embedding.weight

    def loss(self, x, labels):
        return TiledLoss.apply(self.norm(x).flatten(0, 1), self.head.weight, labels.flatten())

    def forward(self, tokens, labels, cos, sin, recomputed):
        x = self.embedding(tokens).bfloat16()
        for i, layer in enumerate(self.layers):
            x = layer(x, cos, sin, i < recomputed)
        return self.loss(x, labels)


def flops_per_sequence(T):
    """FLOPs of the matrix products, forward and backward; causal attention counted half."""
    weights = L * (D * (H + 2 * HKV) * HS + H * HS * D + 3 * D * F) + V * D
    return 6 * weights * T + 6 * L * H * HS * T * T


def add_to(master, p):  # called as soon as p has the gradient of a sequence
    master.grad = p.grad.float() if master.grad is None else master.grad.add_(p.grad)
    p.grad = None


def main():
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("error: torch sees no GPU (--device cpu --model small shows only that this runs)")
    device, T, cuda = torch.device(args.device), args.tokens, args.device == "cuda"
    sequences = args.batch * args.grad_accum  # of a step
    recomputed = layers_recomputed()
    torch.manual_seed(1)
    with device:
        model = Llama()
        angles = torch.arange(T)[:, None] * (500000.0 ** (-torch.arange(0, HS, 2) / HS))[None]
        cos, sin = angles.cos(), angles.sin()
    parameters = list(model.parameters())
    if not args.autocast:
        masters = [p.detach().clone() for p in parameters]
        model.bfloat16()
        for p, master in zip(parameters, masters):
            p.register_post_accumulate_grad_hook(functools.partial(add_to, master))
    optimizer = torch.optim.AdamW(parameters if args.autocast else masters, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=cuda)
    compiled = "no" if args.eager else "whole" if args.whole else "by layer"
    if compiled == "whole":
        model.compile(dynamic=False)
    elif compiled == "by layer":  # all layers use the code of the first
        for layer in model.layers:
            layer.compile(dynamic=False)
        model.loss = torch.compile(model.loss, dynamic=False)
    backends = {"cudnn": [SDPBackend.CUDNN_ATTENTION], "flash": [SDPBackend.FLASH_ATTENTION]}
    prefers_cudnn = cuda and torch.cuda.get_device_capability()[0] in (9, 10)
    backends["auto"] = (backends["cudnn"] if prefers_cudnn else []) + backends["flash"]
    times = []
    with sdpa_kernel(backends[args.sdpa], set_priority=True):
        q, kv = [torch.empty((args.batch, heads, T, HS), device=device, dtype=torch.bfloat16, requires_grad=True) for heads in (H, HKV)]
        chosen = SDPBackend(torch._fused_sdp_choice(q, kv, kv, is_causal=True, enable_gqa=True)).name
        del q, kv
        on = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}" if cuda else "CPU"
        print(f"torch {torch.__version__}, {on}, {args.model}, "
              f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters, bf16{' autocast' if args.autocast else ''}, "
              f"T {T} x {args.batch} x {args.grad_accum}, {chosen}, recomputes {recomputed} of {L} layers, compiled {compiled}", flush=True)

        def whole_step():
            shown = 0
            for _ in range(args.grad_accum):  # new tokens each time: on memorized ones a GPU draws less power and clocks higher
                tokens = torch.randint(0, V, (args.batch, T + 1), device=device)
                with torch.autocast(args.device, dtype=torch.bfloat16, enabled=args.autocast):
                    loss = model(tokens[:, :-1], tokens[:, 1:], cos, sin, recomputed)
                loss.backward()
                shown = shown + loss.detach()
            torch.nn.utils.clip_grad_norm_(parameters if args.autocast else masters, 1.0)
            optimizer.step()
            if not args.autocast:
                with torch.no_grad():
                    torch._foreach_copy_(parameters, masters)
            optimizer.zero_grad(set_to_none=True)
            shown = shown.item()  # waits for the GPU
            if cuda:
                torch.cuda.synchronize()
            return shown

        def first_step():  # None: out of memory
            try:
                return whole_step()
            except RuntimeError as error:  # of PyTorch's allocator, or of a library's
                if args.recompute != "auto" or not any(text in str(error) for text in ("out of memory", "ALLOC_FAILED")):
                    raise
                if recomputed == L:
                    print(f"PyTorch runs out of memory even where all {L} layers are recomputed", flush=True)
                    sys.exit(77)  # nothing to compare with, which is no failure
            return None

        while first_step() is None or first_step() is None:  # only the second has the optimizer's states beside the activations
            recomputed = min(L, recomputed + max(1, L // 8))
            optimizer.zero_grad(set_to_none=True)
            model.zero_grad(set_to_none=True)
            optimizer.state.clear()  # it may hold a part of them
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            print(f"out of memory; recomputes {recomputed} of {L} layers", flush=True)
        for step in range(min(0, 2 - max(1, args.warmup)), args.steps):
            start = time.perf_counter()
            shown = whole_step()
            ms = (time.perf_counter() - start) * 1000
            print(f"step {step:3} | loss {shown:.4f} | {ms:.1f} ms | {sequences * T / ms * 1000:.0f} tok/s"
                  f"{' | warm-up' if step < 0 else ''}", flush=True)
            if step >= 0:  # after every step: a run that is cut short has a result, too
                times.append(ms)
                median, least = statistics.median(times), min(times)
                peak = torch.cuda.max_memory_allocated() / 2**30 if cuda else 0
                print(f"median {median:.1f} ms {sequences * T / median * 1000:.1f} tok/s "
                      f"{sequences * flops_per_sequence(T) / median / 1e9:.1f} TFLOP/s | "
                      f"min {least:.1f} ms | {len(times)} steps | {peak:.1f} GiB", flush=True)


main()
