"""What `sluice export --gguf` writes: arguments are the program and tests/models.

The small models' tensors, by names, shapes and bytes, are what the package gguf makes of those in model.safetensors; and
where there is transformers, it opens the file and computes the same logits.
Exits with 77 where a package is missing.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

try:
    import gguf
    import numpy as np
    from gguf.quants import quantize
    from safetensors.numpy import load_file
except ImportError:
    sys.exit(print("skipped: no Python with gguf and safetensors: scripts/test makes one") or 77)
try:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
except ImportError:
    torch = None

TYPES = {"f32": gguf.GGMLQuantizationType.F32, "f16": gguf.GGMLQuantizationType.F16,
         "bf16": gguf.GGMLQuantizationType.BF16, "q8_0": gguf.GGMLQuantizationType.Q8_0}
ARCHITECTURES = {"gpt2": "GPT2", "llama3": "LLAMA", "qwen2": "QWEN2", "qwen3": "QWEN3"}


def run(*words):
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def expected_tensors(folder, family, config):
    """{GGUF's name: array}, by gguf's own table of names."""
    architecture = gguf.MODEL_ARCH[ARCHITECTURES[family]]
    layers = config.get("n_layer") or config["num_hidden_layers"]
    names = gguf.get_tensor_name_map(architecture, layers)
    found = {}
    for name, array in load_file(os.path.join(folder, "model.safetensors")).items():
        if name.endswith((".attn.bias", ".attn.masked_bias")):
            continue
        if family == "gpt2" and re.search(r"\.c_\w+\.weight$", name):
            array = array.T
        if family == "llama3" and (part := re.search(r"\.([qk])_proj\.", name)):
            heads = config["num_attention_heads" if part[1] == "q" else "num_key_value_heads"]
            array = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:]).swapaxes(1, 2) \
                .reshape(array.shape)
        to = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if to is None:
            sys.exit(f"{family}: gguf has no name for {name}")
        found[to] = np.ascontiguousarray(array, dtype=np.float32)
    return found


def scaling_of(config):
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def rope_divisors(config):
    """As convert_hf_to_gguf.py."""
    scaling = scaling_of(config)
    theta = scaling.get("rope_theta") or config["rope_theta"]
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    found = []
    for i in range(0, width, 2):
        wave = 2 * np.pi * theta ** (i / width)
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        old, factor = scaling["original_max_position_embeddings"], scaling["factor"]
        if wave < old / high:
            found.append(1)
        elif wave > old / low:
            found.append(factor)
        else:
            smooth = (old / wave - low) / (high - low)
            found.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(found, dtype=np.float32)


def check_tensors(family, kind, path, expected):
    left = dict(expected)
    for tensor in gguf.GGUFReader(path).tensors:
        array = left.pop(tensor.name)
        wanted = TYPES[kind]
        if array.ndim < 2 or tensor.name == "position_embd.weight":
            wanted = TYPES["f32"]
        elif kind == "q8_0" and array.shape[-1] % 32:
            wanted = TYPES["f16"]
        if tensor.tensor_type != wanted or list(tensor.shape[::-1]) != list(array.shape):
            sys.exit(f"{family} {kind}: {tensor.name} is {tensor.tensor_type.name} {tensor.shape[::-1]}")
        if tensor.name == "rope_freqs.weight":
            np.testing.assert_allclose(tensor.data, array, rtol=1e-6)
        elif tensor.data.tobytes() != quantize(array, wanted).tobytes():
            sys.exit(f"{family} {kind}: {tensor.name} has other numbers")
    if left:
        sys.exit(f"{family} {kind}: {', '.join(left)} missing")


def logits(folder, ids, **words):
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32, **words)
    with torch.no_grad():
        return model.eval()(torch.tensor([ids])).logits


def check_family(program, models, family):
    folder = os.path.join(models, family)
    with open(os.path.join(folder, "config.json")) as file:
        config = json.load(file)
    expected = expected_tensors(folder, family, config)
    if scaling_of(config).get("rope_type") == "llama3":
        expected["rope_freqs.weight"] = rope_divisors(config)
    with open(os.path.join(folder, "rows.jsonl")) as file:
        ids = json.loads(file.readline())["input_ids"]
    with tempfile.TemporaryDirectory() as to:
        for kind in TYPES:
            path = os.path.join(to, f"{kind}.gguf")
            run(program, "export", "--init", folder, "--gguf", path, "--gguf-type", kind)
            check_tensors(family, kind, path, expected)
        if torch:  # of the sizes transformers reads a few alone, and no llama3 scaling: they are the config's
            found = logits(to, ids, gguf_file="f32.gguf", config=AutoConfig.from_pretrained(folder))
            wanted = logits(folder, ids)
            difference = ((found - wanted).abs().max() / wanted.abs().max()).item()
            if difference > 1e-5:
                sys.exit(f"{family}: transformers computes logits that differ by {difference}")


def main():
    program, models = sys.argv[1:]
    for family in ARCHITECTURES:
        check_family(program, models, family)
    if not torch:
        print("no Python with transformers: no logits")


main()
