"""Writes a small model of a family as a directory of Hugging Face, drawn from a seed, and rows of ids for it.

    drawn_model.py SEED LAYERS DIR ROWS

DIR gets config.json and model.safetensors, ROWS train.jsonl, valid.jsonl and test.jsonl. Needs nothing beside Python.
"""
import json
import os
import random
import struct
import sys

FAMILIES = ["llama", "mistral", "qwen3", "gpt2", "qwen2", "smollm3"]
VOCABULARY, POSITIONS = 61, 24
ROWS = {"train": 140, "valid": 20, "test": 20}


def draw_gpt2(draw):
    heads = draw.choice([1, 2, 3])
    width = heads * draw.choice([4, 6])
    rate = draw.choice([0, 0.2])
    return {"n_embd": width, "n_head": heads, "n_positions": POSITIONS, "attn_pdrop": rate, "embd_pdrop": rate, "resid_pdrop": rate}


def draw_llama(draw, family):
    keys = draw.choice([1, 2])
    heads = keys * draw.choice([2, 3])
    head = draw.choice([4, 6])
    width = draw.choice([8, 10, 12]) if family == "qwen3" else heads * head
    return {"hidden_size": width, "num_attention_heads": heads, "head_dim": head, "num_key_value_heads": keys,
            "intermediate_size": draw.choice([9, 16, 20]), "max_position_embeddings": POSITIONS, "rope_theta": 10000.0,
            "hidden_act": "silu", "rms_norm_eps": 1e-6}


def gpt2_shapes(config):
    width = config["n_embd"]
    shapes = {"transformer.wte.weight": [config["vocab_size"], width], "transformer.wpe.weight": [config["n_positions"], width]}
    for i in range(config["n_layer"]):
        for name, shape in {"attn.c_attn": [width, 3 * width], "attn.c_proj": [width, width],
                            "mlp.c_fc": [width, 4 * width], "mlp.c_proj": [4 * width, width],
                            "ln_1": [width], "ln_2": [width]}.items():
            shapes[f"transformer.h.{i}.{name}.weight"] = shape
            shapes[f"transformer.h.{i}.{name}.bias"] = shape[-1:]
    shapes.update({"transformer.ln_f.weight": [width], "transformer.ln_f.bias": [width]})
    return shapes


def llama_shapes(config):
    width, hidden, head, family = (config[name] for name in ("hidden_size", "intermediate_size", "head_dim", "model_type"))
    queries, keys = (head * config[name] for name in ("num_attention_heads", "num_key_value_heads"))
    shapes = {"model.embed_tokens.weight": [config["vocab_size"], width], "model.norm.weight": [width]}
    for i in range(config["num_hidden_layers"]):
        layer = {"input_layernorm": [width], "post_attention_layernorm": [width], "mlp.gate_proj": [hidden, width],
                 "mlp.up_proj": [hidden, width], "mlp.down_proj": [width, hidden], "self_attn.q_proj": [queries, width],
                 "self_attn.k_proj": [keys, width], "self_attn.v_proj": [keys, width], "self_attn.o_proj": [width, queries]}
        if family == "qwen3":
            layer.update({"self_attn.q_norm": [head], "self_attn.k_norm": [head]})
        for name, shape in layer.items():
            shapes[f"model.layers.{i}.{name}.weight"] = shape
            if family == "qwen2" and name[-6:] in ("q_proj", "k_proj", "v_proj"):
                shapes[f"model.layers.{i}.{name}.bias"] = shape[:1]
    return shapes


def shapes_of(config):
    """{name: shape} of the tensors of such a model."""
    shapes = gpt2_shapes(config) if config["model_type"] == "gpt2" else llama_shapes(config)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = [config["vocab_size"], config["n_embd" if config["model_type"] == "gpt2" else "hidden_size"]]
    return shapes


def write_tensors(shapes, path, make):
    """`make(count)` gives the bytes of so many f32 numbers around 0; weights of norms are 1 more."""
    header, data, offset = {}, [], 0
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        values = make(count)
        if len(shape) == 1 and name.endswith("weight"):
            values = struct.pack(f"<{count}f", *(1 + value for value in struct.unpack(f"<{count}f", values)))
        data.append(values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + 4 * count]}
        offset += 4 * count
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data))


def main():
    seed, layers, folder, rows = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    draw = random.Random(seed)
    family = FAMILIES[seed % len(FAMILIES)]
    tied = draw.random() < 0.5
    config = dict(draw_gpt2(draw), n_layer=layers) if family == "gpt2" else dict(draw_llama(draw, family), num_hidden_layers=layers)
    config.update({"model_type": family, "vocab_size": VOCABULARY, "tie_word_embeddings": tied})
    os.makedirs(folder, exist_ok=True)
    os.makedirs(rows, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
    write_tensors(shapes_of(config), os.path.join(folder, "model.safetensors"),
                  lambda count: struct.pack(f"<{count}f", *(draw.gauss(0, 0.1) for _ in range(count))))
    for split, count in ROWS.items():
        with open(os.path.join(rows, split + ".jsonl"), "w") as file:
            for _ in range(count):
                ids = [draw.randrange(VOCABULARY) for _ in range(draw.randint(2, POSITIONS))]
                print(json.dumps({"input_ids": ids}), file=file)
    print(f"{family}, {'tied' if tied else 'not tied'}: {json.dumps(config)}")


if __name__ == "__main__":
    main()
