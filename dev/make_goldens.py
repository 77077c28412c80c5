#!/usr/bin/env python3
"""Makes the golden files: small Llama models of Hugging Face transformers with loss, logits and gradients (fp32, CPU, eager attention).

    python3 dev/make_goldens.py            writes test/golden/*.bin; twice on one machine gives the same bytes
    python3 dev/make_goldens.py --check    writes nothing; exits 1 unless it would write exactly the files in test/golden

Packages: dev/requirements.txt. test/golden.h reads the files.

The format: little-endian, no padding, in this order.
    char    magic[8]        "LLGOLD01"
    int32   header[16]      L, D, H, Hkv, HS, F, V, tied (0 or 1), rope kind (0 plain, 1 llama3, 2 linear, 3 yarn),
                            original_max_position_embeddings (0 if plain or linear), T, valid labels, 0, 0, 0, 0
    float64 header[8]       rms_norm_eps, rope theta, rope factor, low_freq_factor, high_freq_factor, beta_fast, beta_slow
                            (0 where the kind has none), 0
    int32   tokens[T]
    int32   labels[T]       already shifted: labels[t] is the token after tokens[t]; -100 = ignored
    float32 parameters:     embedding (V, D)
                            per layer: norm1 (D), wqkv ((H + 2 Hkv) HS, D) = rows of q, then k, then v; wo (D, H HS),
                                       norm2 (D), w_gate_up (2F, D) = rows of gate, then up; w_down (D, F)
                            final norm (D), and lm head (V, D) unless tied
    float64 loss            sum of token losses / number of valid labels
    float32 logits (T, V)
    float32 gradients of the loss, as the parameters (tied: the embedding's gradient is the sum of both uses)
"""
import argparse
import math
import os
import struct
import sys

# One thread and one instruction set, so that the order of sums is fixed.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["ATEN_CPU_CAPABILITY"] = "default"
os.environ["MKL_CBWR"] = "COMPATIBLE"

import torch
from transformers import LlamaConfig, LlamaForCausalLM

IGNORED = -100


def llama3(factor, original_max):
    return dict(rope_type="llama3", factor=factor, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=original_max)


def yarn(factor, original_max):  # betas for a context this short; attention_factor is left to transformers: 0.1 ln(factor) + 1
    return dict(rope_type="yarn", factor=factor, original_max_position_embeddings=original_max, beta_fast=2.0, beta_slow=0.25)


ROPE_NUMBERS = ["factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow"]

# name: sizes, rope, T, seed, scale of the matrices (0.2 if none). Small for the repository, uneven to find a transposed or assumed size.
CONFIGS = {
    "mha": dict(L=2, D=64, H=8, Hkv=8, HS=8, F=96, V=96, tied=False, eps=1e-5, theta=10000.0, rope=None, T=64, seed=1),
    "gqa_llama31": dict(L=3, D=32, H=8, Hkv=2, HS=16, F=64, V=112, tied=False, eps=1e-5, theta=5e5, rope=llama3(8.0, 48), T=80, seed=2),
    "tied_llama32": dict(L=2, D=64, H=4, Hkv=2, HS=16, F=128, V=128, tied=True, eps=1e-5, theta=5e5, rope=llama3(32.0, 40), T=72, seed=3),
    "odd_sizes": dict(L=2, D=60, H=6, Hkv=3, HS=10, F=100, V=131, tied=False, eps=1e-6, theta=10000.0, rope=None, T=53, seed=4),
    "linear": dict(L=2, D=48, H=4, Hkv=2, HS=12, F=80, V=98, tied=False, eps=1e-5, theta=10000.0,
                   rope=dict(rope_type="linear", factor=4.0), T=61, seed=6),
    "yarn": dict(L=2, D=48, H=4, Hkv=2, HS=16, F=80, V=99, tied=False, eps=1e-5, theta=10000.0, rope=yarn(4.0, 32), T=90, seed=7,
                 scale=0.17),  # YaRN sharpens attention by 1.3: with 0.2 transformers in bf16 misses its float gradient (cosine 0.9975)
    "mqa_wide_heads": dict(L=2, D=40, H=5, Hkv=1, HS=18, F=70, V=101, tied=False, eps=1e-6, theta=20000.0, rope=None, T=57, seed=5),
}


def parameters_in_order(model, tied):
    modules = [model.model.embed_tokens]
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        modules += [layer.input_layernorm, attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj,
                    layer.post_attention_layernorm, mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    modules += [model.model.norm] if tied else [model.model.norm, model.lm_head]
    return [module.weight for module in modules]


def check_rope(model, c):
    """A scaled rope tests something only if some frequencies are kept, some smoothed and some divided; a linear one divides all."""
    if c["rope"] is None:
        return
    plain = [c["theta"] ** (-2.0 * i / c["HS"]) for i in range(c["HS"] // 2)]
    ratios = [have / want for have, want in zip(model.model.rotary_emb.inv_freq.tolist(), plain)]
    factor = c["rope"]["factor"]
    kept = sum(abs(r - 1) < 1e-5 for r in ratios)
    divided = sum(abs(r * factor - 1) < 1e-5 for r in ratios)
    smoothed = len(ratios) - kept - divided
    if c["rope"]["rope_type"] == "linear":
        assert divided == len(ratios), (kept, smoothed, divided)
        return
    assert kept > 0 and smoothed > 0 and divided > 0, (kept, smoothed, divided)
    assert c["T"] > c["rope"]["original_max_position_embeddings"]
    if c["rope"]["rope_type"] == "yarn":
        assert abs(model.model.rotary_emb.attention_scaling - (0.1 * math.log(factor) + 1)) < 1e-12


def make_model(c, random):
    config = LlamaConfig(
        num_hidden_layers=c["L"], hidden_size=c["D"], num_attention_heads=c["H"], num_key_value_heads=c["Hkv"], head_dim=c["HS"],
        intermediate_size=c["F"], vocab_size=c["V"], tie_word_embeddings=c["tied"], rms_norm_eps=c["eps"],
        rope_parameters=dict(c["rope"] or dict(rope_type="default"), rope_theta=c["theta"]), max_position_embeddings=128,
        attention_bias=False, mlp_bias=False, attention_dropout=0.0, hidden_act="silu", use_cache=False,
        pad_token_id=None, bos_token_id=None, eos_token_id=None, attn_implementation="eager")
    model = LlamaForCausalLM(config).float().train()
    with torch.no_grad():
        for p in model.parameters():
            gauss = torch.randn(p.shape, generator=random)
            # Matrices large enough that attention is far from uniform; norm weights around one. All are exact in bf16, as in real folders,
            # so a device that stores bf16 trains this very model.
            p.copy_((c.get("scale", 0.2) * gauss if p.dim() == 2 else 1.0 + 0.2 * gauss).bfloat16())
    check_rope(model, c)
    return model


def floats(tensors):
    return b"".join(t.detach().contiguous().numpy().astype("<f4").tobytes() for t in tensors)


def golden(c):
    random = torch.Generator().manual_seed(c["seed"])
    model = make_model(c, random)
    T = c["T"]
    tokens = torch.randint(0, c["V"], (T + 1,), generator=random)
    labels = tokens[1:].clone()
    tokens = tokens[:T]
    for t in (3, T // 2, T // 2 + 1, T - 2):  # the last label counts
        labels[t] = IGNORED
    valid = int((labels != IGNORED).sum())

    logits = model(input_ids=tokens[None]).logits[0]
    losses = torch.nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")
    (losses.sum() / valid).backward()
    loss = float(losses.detach().double().sum()) / valid

    parameters = parameters_in_order(model, c["tied"])
    assert len(parameters) == len(list(model.parameters()))
    gradients = [p.grad for p in parameters]
    assert math.isfinite(loss) and all(float(g.abs().max()) > 1e-4 for g in gradients)

    rope = c["rope"] or dict(rope_type="plain")
    kind = ["plain", "llama3", "linear", "yarn"].index(rope["rope_type"])
    data = b"LLGOLD01"
    data += struct.pack("<16i", c["L"], c["D"], c["H"], c["Hkv"], c["HS"], c["F"], c["V"], int(c["tied"]), kind,
                        rope.get("original_max_position_embeddings", 0), T, valid, 0, 0, 0, 0)
    data += struct.pack("<8d", c["eps"], c["theta"], *[rope.get(key, 0.0) for key in ROPE_NUMBERS], 0)
    data += struct.pack(f"<{T}i", *tokens.tolist()) + struct.pack(f"<{T}i", *labels.tolist())
    data += floats(parameters) + struct.pack("<d", loss) + floats([logits]) + floats(gradients)
    return data, loss


def main():
    parser = argparse.ArgumentParser(description="Makes test/golden/*.bin from Hugging Face transformers.")
    parser.add_argument("--check", action="store_true", help="compare with the files that are there instead of writing")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "test", "golden")
    os.makedirs(folder, exist_ok=True)
    different = 0
    for name, c in CONFIGS.items():
        data, loss = golden(c)
        path = os.path.join(folder, name + ".bin")
        if args.check:
            same = os.path.exists(path) and open(path, "rb").read() == data
            different += not same
            print(f"{name:15} loss {loss:.6f} {'same' if same else 'DIFFERENT'}")
        else:
            with open(path, "wb") as f:
                f.write(data)
            print(f"{name:15} loss {loss:.6f} {len(data)} bytes")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
