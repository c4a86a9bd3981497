"""A model that `sluice train --save MODEL` saved, in PyTorch, and back.

    python3 examples/pytorch_weights.py MODEL BACK the first words

builds the model that MODEL/config.json describes, continues the words greedily, as `sluice generate
--greedy` does, and writes a directory that sluice reads.

    python3 examples/pytorch_weights.py MODEL --logits LOGITS.safetensors

runs it on the batch that `sluice eval --logits` wrote, and says how far its logits are from sluice's,
and its loss. Needs torch and safetensors.
"""
import json
import math
import os
import shutil
import sys
from collections import OrderedDict
try:
    import torch
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import save_file
    from torch import nn
except ImportError as missing:
    sys.exit(f"{missing}: install torch and safetensors for this Python, {sys.executable}")


class PositionalEncoding(nn.Module):
    def __init__(self, emsize, max_len=5000):
        super().__init__()
        position = torch.arange(max_len).unsqueeze(1)
        rate = torch.exp(torch.arange(0, emsize, 2) * (-math.log(10000.0) / emsize))
        pe = torch.zeros(max_len, 1, emsize)
        pe[:, 0, 0::2] = torch.sin(position * rate)
        pe[:, 0, 1::2] = torch.cos(position * rate)
        self.register_buffer("pe", pe)


class Encoder(nn.Module):
    def __init__(self, ntokens, emsize):
        super().__init__()
        self.encoder = nn.Embedding(ntokens, emsize)
        self.pos_encoder = PositionalEncoding(emsize)

    def forward(self, ids):  # [N, T] -> [N, T, emsize]
        x = self.encoder(ids) * math.sqrt(self.encoder.embedding_dim)
        return x + self.pos_encoder.pe[: ids.size(1), 0]


class Layer(nn.TransformerEncoderLayer):
    causal = True

    def forward(self, x):
        later = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1)
        return super().forward(x, src_mask=later if self.causal else None)


def build(config):
    """The model that a config.json describes, for evaluation (so without dropout)."""
    ntokens, emsize = config["ntokens"], config["emsize"]
    layers = [Layer(emsize, config["nhead"], config["nhid"], activation=config["activation"],
                    batch_first=True, norm_first=config["pre_norm"]) for _ in range(config["nlayers"])]
    for layer in layers:
        layer.causal = config["mask"] == "causal"
    decoder = nn.Sequential(OrderedDict(decoder=nn.Linear(emsize, ntokens)))
    return nn.Sequential(Encoder(ntokens, emsize), *layers, decoder).eval()


def read(path):
    """All tensors of a safetensors file."""
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}
    except (SafetensorError, OSError) as error:
        sys.exit(f"{path}: it cannot be read: {error}")


def read_json(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        sys.exit(f"{path}: it cannot be read: {error}")


def read_model(path):
    config = read_json(os.path.join(path, "config.json"))
    weights = read(os.path.join(path, "model.safetensors"))
    try:
        model = build(config)
        model.load_state_dict(weights)
        return model, config
    except KeyError as key:
        sys.exit(f"{path}: its config.json does not say {key}: it was not saved by sluice")
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        sys.exit(f"{path}: config.json and tensors make no model: {' '.join(str(error).split())}")


def read_vocabulary(path):
    """The words' ids. The library tokenizers opens the file as well, and cuts texts into words."""
    return read_json(os.path.join(path, "tokenizer.json"))["model"]["vocab"]


def continue_text(path, back, words):
    model, _ = read_model(path)
    vocabulary = read_vocabulary(path)
    if not set(words) <= set(vocabulary):
        sys.exit(f"{path}: its vocabulary lacks {', '.join(set(words) - set(vocabulary))}")
    ids = [vocabulary[word] for word in words]
    with torch.no_grad():
        for _ in range(8):
            logits = model(torch.tensor([ids]))[0, -1]
            logits[0] = -math.inf  # never <unk>
            ids.append(int(logits.argmax()))
    try:
        os.makedirs(back, exist_ok=True)
        for name in ("config.json", "tokenizer.json"):
            shutil.copy(os.path.join(path, name), back)
        save_file(model.state_dict(), os.path.join(back, "model.safetensors"), metadata={"format": "pt"})
    except (SafetensorError, OSError) as error:
        sys.exit(f"{back}: it cannot be written: {error}")
    by_id = {number: word for word, number in vocabulary.items()}
    print(" ".join(by_id[each] for each in ids))


def compare_logits(path, written):
    (model, config), batch = read_model(path), read(written)
    if sorted(batch) != ["inputs", "logits", "targets"]:
        sys.exit(f"{written}: it was not written by sluice eval --logits")
    if batch["logits"].size(-1) != config["ntokens"]:
        sys.exit(f"{written}: its logits are of another model than {path}")
    with torch.no_grad():
        logits = model(batch["inputs"])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())
    print(f"largest difference {(logits - batch['logits']).abs().max():.1e} between logits of at most "
          f"{logits.abs().max():.1f}; loss {loss:.4f}")


def main(words):
    if len(words) == 3 and words[1] == "--logits":
        compare_logits(words[0], words[2])
    elif len(words) > 2 and not words[1].startswith("-"):
        continue_text(words[0], words[1], words[2:])
    else:
        sys.exit("pytorch_weights.py takes MODEL BACK WORD..., or MODEL --logits LOGITS")


if __name__ == "__main__":
    main(sys.argv[1:])
