"""A model's file of llm.c, by the definition in its train_gpt2.py (write_model, write_tensors), with numpy alone.

`llmc_file.py write DIR FILE [bf16]` writes the GPT-2 of a directory as such a file; `llmc_file.py equal DIR FILE [bf16]`
holds each number of FILE against those of the directory.
Exits with 77 where a package is missing.
"""
import json
import os
import sys

try:
    import numpy as np
    from safetensors.numpy import load_file
except ImportError:
    sys.exit(print("skipped: no Python with numpy and safetensors: scripts/test makes one") or 77)

MAGIC = 20240326
LAYER_TENSORS = ["ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight",
                 "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight",
                 "mlp.c_proj.bias"]


def as_bf16(array):
    """The upper 16 bits, rounded to nearest, halves to even."""
    bits = array.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def list_tensors(tensors, layers, padded):
    """The arrays in the file's order. llm.c's own model has torch's Linear, [out, in]: a published GPT-2 has [in, out]."""
    wte = tensors["transformer.wte.weight"]
    yield np.pad(wte, ((0, padded - wte.shape[0]), (0, 0)))
    yield tensors["transformer.wpe.weight"]
    for kind in LAYER_TENSORS:
        for i in range(layers):
            array = tensors[f"transformer.h.{i}.{kind}"]
            yield array.T if ".c_" in kind and array.ndim == 2 else array
    yield tensors["transformer.ln_f.weight"]
    yield tensors["transformer.ln_f.bias"]


def make_file(folder, is_bf16):
    with open(os.path.join(folder, "config.json")) as file:
        config = json.load(file)
    header = np.zeros(256, dtype=np.int32)
    padded = (config["vocab_size"] + 127) // 128 * 128
    header[:8] = [MAGIC, 5 if is_bf16 else 3, config["n_positions"], config["vocab_size"], config["n_layer"],
                  config["n_head"], config["n_embd"], padded]
    tensors = load_file(os.path.join(folder, "model.safetensors"))
    made = [header.tobytes()]
    for array in list_tensors(tensors, config["n_layer"], padded):
        array = np.ascontiguousarray(array, dtype=np.float32)
        made.append((as_bf16(array) if is_bf16 else array).tobytes())
    return b"".join(made)


def main():
    what, folder, path = sys.argv[1:4]
    made = make_file(folder, sys.argv[4:] == ["bf16"])
    if what == "write":
        with open(path, "wb") as file:
            file.write(made)
        return
    with open(path, "rb") as file:
        found = file.read()
    if found != made:
        first = next((i for i in range(min(len(found), len(made))) if found[i] != made[i]), "none")
        sys.exit(f"{path} has {len(found)} bytes, expected {len(made)}; the first other byte is {first}")


main()
