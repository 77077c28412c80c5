#!/usr/bin/env python3
"""Makes small Hugging Face folders, as transformers writes them, with the loss and logits that it computes, for test/test_folder.sh.

    python3 dev/make_golden_folder.py           writes test/golden/folder_{f32,bf16,tied_f16,mistral} and folder_tokens.bin
    python3 dev/make_golden_folder.py --check DIR
                                                loads with transformers a folder that train_llama wrote from one of these: prints loss and
                                                logits beside the stored ones; exits 1 if they differ

Packages: dev/requirements.txt. Each holds config.json, safetensors (sharded with an index, the tied one a single file) and expected.json:
    loss     mean over sequences 0 and 1 (of S tokens each) of the token file's stream; the label of a token is the next token of the stream
    logits   the first 16, of the last position of sequence 0
    stretched   the loss when --rope-scaling and --rope-theta replace what config.json says
All are computed in fp32, whatever dtype the file has.
"""
import argparse
import json
import os
import shutil
import struct
import sys

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["ATEN_CPU_CAPABILITY"] = "default"

import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, MistralConfig

S, SEQUENCES = 64, 2
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=48)
STRETCHED = {  # value of --rope-scaling, with --rope-theta 40000: rope_parameters
    "yarn:factor=4,original=40,beta_fast=3,beta_slow=0.5": dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=40,
                                                                beta_fast=3.0, beta_slow=0.5),
    "linear:factor=2.5": dict(rope_type="linear", factor=2.5),
    "llama3:factor=16,low=1,high=3,original=40": dict(rope_type="llama3", factor=16.0, low_freq_factor=1.0, high_freq_factor=3.0,
                                                     original_max_position_embeddings=40),
    "none": dict(rope_type="default"),
}
FOLDERS = {
    "folder_f32": dict(dtype=torch.float32, tied=False, shard="40KB", seed=11),
    "folder_bf16": dict(dtype=torch.bfloat16, tied=False, shard="30KB", seed=12),
    "folder_tied_f16": dict(dtype=torch.float16, tied=True, shard="1GB", seed=13),
    "folder_mistral": dict(dtype=torch.bfloat16, tied=False, shard="30KB", seed=14, config=MistralConfig, more=dict(sliding_window=None)),
}


def tokens():
    generator = torch.Generator().manual_seed(5)
    return torch.randint(0, 96, (S * SEQUENCES + 1,), generator=generator)


def results(folder, rope=None):
    config = AutoConfig.from_pretrained(folder)
    if rope is not None:
        config.rope_parameters = dict(rope, rope_theta=40000.0)
    model = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32, attn_implementation="eager").eval()
    stream = tokens()
    with torch.no_grad():
        logits = model(stream[:-1].view(SEQUENCES, S)).logits
    loss = torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]).double(), stream[1:])
    return dict(loss=loss.item(), logits=[round(x, 9) for x in logits[0, -1, :16].double().tolist()])


def make(root):
    with open(os.path.join(root, "folder_tokens.bin"), "wb") as f:
        stream = tokens().tolist()
        f.write(struct.pack("<256i", 20240520, 1, len(stream), *[0] * 253))
        f.write(struct.pack(f"<{len(stream)}H", *stream))
    for name, f in FOLDERS.items():
        torch.manual_seed(f["seed"])
        config = f.get("config", LlamaConfig)(
            vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            head_dim=8, max_position_embeddings=384, rms_norm_eps=1e-5, rope_parameters=dict(LLAMA3), tie_word_embeddings=f["tied"],
            bos_token_id=1, eos_token_id=2, **f.get("more", {}))
        model = AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():  # larger than the usual initial values, so that every tensor matters to the loss
            parameter.data = torch.randn_like(parameter) * (0.2 if parameter.dim() > 1 else 0.3) + (0 if parameter.dim() > 1 else 1)
        if f["tied"]:
            model.tie_weights()
        folder = os.path.join(root, name)
        shutil.rmtree(folder, ignore_errors=True)
        model.to(f["dtype"]).save_pretrained(folder, max_shard_size=f["shard"])
        with open(os.path.join(folder, "tokenizer_config.json"), "w") as t:
            t.write('{"note": "a companion that an export copies"}\n')
        with open(os.path.join(folder, "expected.json"), "w") as e:
            stretched = {option: results(folder, rope)["loss"] for option, rope in STRETCHED.items()}
            json.dump(dict(results(folder), stretched=stretched), e, indent=1)
        print(name, sum(os.path.getsize(os.path.join(folder, x)) for x in os.listdir(folder)), "bytes", sorted(os.listdir(folder)))


def check(root, folder, name):
    with open(os.path.join(root, name, "expected.json")) as f:
        expected = json.load(f)
    got = results(folder)
    worst = max(abs(a - b) for a, b in zip(got["logits"], expected["logits"]))
    print(f"{folder}: loss {got['loss']:.9f}, stored {expected['loss']:.9f}; logits differ by {worst:.1e}")
    return abs(got["loss"] - expected["loss"]) < 1e-6 and worst < 1e-5


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", metavar="DIR", help="a folder written by train_llama --steps 0 --export")
    parser.add_argument("--of", default="folder_f32", choices=list(FOLDERS), help="which folder it was made from")
    args = parser.parse_args()
    golden = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "test", "golden")
    if args.check:
        sys.exit(0 if check(golden, args.check, args.of) else 1)
    make(golden)
