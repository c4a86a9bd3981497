"""Weights that `sluice train --save` wrote, in PyTorch, and back.

    python3 examples/pytorch_weights.py MODEL.safetensors BACK.safetensors the first words

builds the model that the file's metadata describe, continues the words greedily, as `sluice
generate --greedy` does, and writes a file that sluice reads. Needs torch and safetensors.
"""

import math
import shutil
import sys

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn


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


class Decoder(nn.Module):
    def __init__(self, emsize, ntokens):
        super().__init__()
        self.decoder = nn.Linear(emsize, ntokens)

    def forward(self, x):
        return self.decoder(x)


def build(about):
    """The model that a file's metadata describe, for evaluation (so without dropout)."""
    ntokens, emsize, nhid, nlayers, nhead = (
        int(about["sluice." + key]) for key in ("ntokens", "emsize", "nhid", "nlayers", "nhead"))
    layers = [Layer(emsize, nhead, nhid, activation=about["sluice.activation"], batch_first=True,
                    norm_first=about["sluice.pre_norm"] == "true") for _ in range(nlayers)]
    for layer in layers:
        layer.causal = about["sluice.mask"] == "causal"
    return nn.Sequential(Encoder(ntokens, emsize), *layers, Decoder(emsize, ntokens)).eval()


def vocabulary_of(path):
    return path.removesuffix(".safetensors") + ".vocab.txt"


def main(path, back, *words):
    with safe_open(path, "pt") as file:
        about = file.metadata()
        weights = {name: file.get_tensor(name) for name in file.keys()}
    model = build(about)
    model.load_state_dict(weights)
    with open(vocabulary_of(path), encoding="utf-8") as file:
        vocabulary = file.read().split("\n")  # a token's line, from 0, is its id
    ids = [vocabulary.index(word) for word in words]
    with torch.no_grad():
        for _ in range(8):
            logits = model(torch.tensor([ids]))[0, -1]
            logits[0] = -math.inf  # never <unk>
            ids.append(int(logits.argmax()))
    print(" ".join(vocabulary[each] for each in ids))
    save_file(model.state_dict(), back, metadata=about)
    shutil.copy(vocabulary_of(path), vocabulary_of(back))


if __name__ == "__main__":
    main(*sys.argv[1:])
