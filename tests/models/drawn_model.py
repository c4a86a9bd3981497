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


def draw_gpt2(draw, layers, tied):
    heads = draw.choice([1, 2, 3])
    width = heads * draw.choice([4, 6])
    rate = draw.choice([0, 0.2])
    config = {"n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": POSITIONS, "attn_pdrop": rate,
              "embd_pdrop": rate, "resid_pdrop": rate}
    shapes = {"transformer.wte.weight": [VOCABULARY, width], "transformer.wpe.weight": [POSITIONS, width]}
    for i in range(layers):
        for name, shape in {"attn.c_attn": [width, 3 * width], "attn.c_proj": [width, width],
                            "mlp.c_fc": [width, 4 * width], "mlp.c_proj": [4 * width, width],
                            "ln_1": [width], "ln_2": [width]}.items():
            shapes[f"transformer.h.{i}.{name}.weight"] = shape
            shapes[f"transformer.h.{i}.{name}.bias"] = shape[-1:]
    shapes.update({"transformer.ln_f.weight": [width], "transformer.ln_f.bias": [width]})
    if not tied:
        shapes["lm_head.weight"] = [VOCABULARY, width]
    return config, shapes


def draw_llama(draw, family, layers, tied):
    keys = draw.choice([1, 2])
    heads = keys * draw.choice([2, 3])
    head = draw.choice([4, 6])
    width = draw.choice([8, 10, 12]) if family == "qwen3" else heads * head
    hidden = draw.choice([9, 16, 20])
    config = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "head_dim": head,
              "num_key_value_heads": keys, "intermediate_size": hidden, "max_position_embeddings": POSITIONS,
              "rope_theta": 10000.0, "hidden_act": "silu", "rms_norm_eps": 1e-6}
    shapes = {"model.embed_tokens.weight": [VOCABULARY, width], "model.norm.weight": [width]}
    for i in range(layers):
        layer = {"input_layernorm": [width], "post_attention_layernorm": [width], "mlp.gate_proj": [hidden, width],
                 "mlp.up_proj": [hidden, width], "mlp.down_proj": [width, hidden],
                 "self_attn.q_proj": [heads * head, width], "self_attn.k_proj": [keys * head, width],
                 "self_attn.v_proj": [keys * head, width], "self_attn.o_proj": [width, heads * head]}
        if family == "qwen3":
            layer.update({"self_attn.q_norm": [head], "self_attn.k_norm": [head]})
        for name, shape in layer.items():
            shapes[f"model.layers.{i}.{name}.weight"] = shape
            if family == "qwen2" and name[-6:] in ("q_proj", "k_proj", "v_proj"):
                shapes[f"model.layers.{i}.{name}.bias"] = shape[:1]
    if not tied:
        shapes["lm_head.weight"] = [VOCABULARY, width]
    return config, shapes


def write_tensors(draw, shapes, path):
    header, data, offset = {}, [], 0
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        mean = 1 if len(shape) == 1 and name.endswith("weight") else 0
        data.append(struct.pack(f"<{count}f", *(draw.gauss(mean, 0.1) for _ in range(count))))
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
    config, shapes = draw_gpt2(draw, layers, tied) if family == "gpt2" else draw_llama(draw, family, layers, tied)
    config.update({"model_type": family, "vocab_size": VOCABULARY, "tie_word_embeddings": tied})
    os.makedirs(folder, exist_ok=True)
    os.makedirs(rows, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
    write_tensors(draw, shapes, os.path.join(folder, "model.safetensors"))
    for split, count in ROWS.items():
        with open(os.path.join(rows, split + ".jsonl"), "w") as file:
            for _ in range(count):
                ids = [draw.randrange(VOCABULARY) for _ in range(draw.randint(2, POSITIONS))]
                print(json.dumps({"input_ids": ids}), file=file)
    print(f"{family}, {'tied' if tied else 'not tied'}: {json.dumps(config)}")


if __name__ == "__main__":
    main()
