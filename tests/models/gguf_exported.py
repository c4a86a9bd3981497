"""What `sluice export --gguf` writes: arguments are the program and tests/models.

The small models' tensors, by names, shapes and bytes, are what the package gguf makes of those in model.safetensors; and
where there is transformers, it opens the file and computes the same logits. A tokenizer's special ids are those of its
template, and what a file cannot hold is refused.
Exits with 77 where a package is missing.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

try:
    import gguf
    import numpy as np
    from gguf.quants import quantize
    from safetensors.numpy import load_file, save_file
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


def check_refused(sentence, *words):
    ended = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if ended.returncode != 1 or sentence not in ended.stderr:
        sys.exit(f"{words}: {ended.returncode}, {ended.stderr}")


def check_range(program, models):
    """Numbers that an f16 rounds to infinity, and NaN in q8_0."""
    with tempfile.TemporaryDirectory() as to:
        folder = shutil.copytree(os.path.join(models, "gpt2"), os.path.join(to, "model"))
        weights = os.path.join(folder, "model.safetensors")
        tensors = load_file(weights)
        name = "transformer.h.1.mlp.c_fc.weight"
        stored = name if name in tensors else name.removeprefix("transformer.")
        blocks = {"q8_0"} if tensors[stored].shape[0] % 32 == 0 else set()  # [in, out]: other rows are f16
        for value, kinds in ((65519, set()), (65520, {"f16"} | {"q8_0"} - blocks), (65521 * 127, {"f16", "q8_0"}),
                             (np.nan, blocks)):
            tensors[stored] = tensors[stored].copy()
            tensors[stored][1, 2] = value
            save_file(tensors, weights, metadata={"format": "pt"})
            for kind in TYPES:
                words = (program, "export", "--init", folder, "--gguf", os.path.join(to, "x.gguf"), "--gguf-type", kind)
                if kind in kinds:
                    check_refused(f"{name}: {kind if kind in blocks else 'f16'} cannot hold ", *words)
                else:
                    run(*words)


CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def template_of(first, last):
    special = {text: {"id": text, "ids": [number], "tokens": [text]} for text, number in first + last}
    before, behind = ([{"SpecialToken": {"id": text, "type_id": 0}} for text, _ in side] for side in (first, last))
    return {"type": "TemplateProcessing", "single": [*before, {"Sequence": {"id": "A", "type_id": 0}}, *behind],
            "pair": [], "special_tokens": special}


def write_model(folder, models, rows):
    """The small llama with another number of rows, and without special ids."""
    with open(os.path.join(models, "llama3", "config.json")) as file:
        config = json.load(file)
    tensors = load_file(os.path.join(models, "llama3", "model.safetensors"))
    for name, array in tensors.items():
        if array.shape[0] == config["vocab_size"]:
            tensors[name] = np.zeros((rows, *array.shape[1:]), array.dtype)
    config = {key: value for key, value in config.items() if not key.endswith("_token_id")} | {"vocab_size": rows}
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)


def check_special_tokens(folder, tokenizer, words, path):
    ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    begin, end = [("<s>", ids["<s>"])], [("</s>", ids["</s>"])]
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": CL100K}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}
    for first, last, whole in ((begin, [], True), (begin, end, False), ([], [], False), (begin + end, [], False)):
        tokenizer["post_processor"] = template_of(first, last)
        tokenizer["model"]["ignore_merges"] = whole
        with open(os.path.join(folder, "tokenizer.json"), "w") as file:
            json.dump(tokenizer, file)
        if len(first) > 1:
            check_refused("the tokenizer's template has 2 and 0", *words)
            continue
        run(*words)
        fields = gguf.GGUFReader(path).fields
        found = {key: fields[f"tokenizer.ggml.{key}"].contents()
                 for key in ("pre", "add_bos_token", "add_eos_token", "bos_token_id") if f"tokenizer.ggml.{key}" in fields}
        wanted = {"pre": "llama-bpe" if whole else "dbrx", "add_bos_token": bool(first), "add_eos_token": bool(last)}
        if first:
            wanted["bos_token_id"] = ids["<s>"]
        if found != wanted:
            sys.exit(f"{first} {last} {whole}: {found} instead of {wanted}")
        if last and fields["tokenizer.ggml.eos_token_id"].contents() != ids["</s>"]:
            sys.exit("eos_token_id is not that of the template")


def check_tokenizers(program, models):
    with tempfile.TemporaryDirectory() as to:
        text, folder, path = (os.path.join(to, name) for name in ("text", "model", "x.gguf"))
        with open(text, "w") as file:
            file.write("the cat sat on the mat, and the cat ran\n" * 9)
        run(program, "tokenizer", "train", "--vocab-size", "270", "--special", "<s>", "--special", "</s>", text, "-o", folder)
        words = (program, "export", "--init", folder, "--gguf", path)
        written = os.path.join(folder, "tokenizer.json")
        with open(written) as file:
            tokenizer = json.load(file)
        write_model(folder, models, 270)
        check_special_tokens(folder, tokenizer, words, path)
        with open(written, "w") as file:
            json.dump({"model": {"type": "Unigram", "vocab": []}}, file)
        check_refused("Unigram", *words)


def main():
    program, models = sys.argv[1:]
    for family in ARCHITECTURES:
        check_family(program, models, family)
    check_range(program, models)
    check_tokenizers(program, models)
    if not torch:
        print("no Python with transformers: no logits")


main()
