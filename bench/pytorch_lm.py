"""Steps the tutorials' language model under PyTorch's Pipe and prints one JSON line.

The counterpart of bench_step: the same model, data shape, chunks and checkpoint mode; two partitions
on the CPU, dropout 0.2, SGD, clipping at 0.5. compare_pytorch.py runs both in turn.
"""
import argparse
import json
import math
import os
import statistics
import tempfile
import time

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, ntokens, width, dropout, max_len=5000):
        super().__init__()
        self.scale = math.sqrt(width)
        self.encoder = nn.Embedding(ntokens, width)
        self.dropout = nn.Dropout(dropout)
        position = torch.arange(max_len).unsqueeze(1).float()
        frequency = torch.exp(torch.arange(0, width, 2).float() * (-math.log(10000.0) / width))
        table = torch.zeros(max_len, width)
        table[:, 0::2] = torch.sin(position * frequency)
        table[:, 1::2] = torch.cos(position * frequency)
        self.register_buffer("pe", table)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)

    def forward(self, ids):
        return self.dropout(self.encoder(ids) * self.scale + self.pe[: ids.size(1)])


class Layer(nn.Module):
    def __init__(self, width, heads, hidden, dropout):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(width, heads, hidden, dropout, batch_first=True)

    def forward(self, x):
        length = x.size(1)
        mask = torch.triu(torch.full((length, length), float("-inf")), diagonal=1)
        return self.layer(x, src_mask=mask)


class Decoder(nn.Module):
    def __init__(self, width, ntokens):
        super().__init__()
        self.decoder = nn.Linear(width, ntokens)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, x):
        return self.decoder(x)


def build(args):
    layers = [Layer(args.emsize, args.nhead, args.emsize, 0.2) for _ in range(args.nlayers)]
    modules = [Encoder(args.ntokens, args.emsize, 0.2), *layers, Decoder(args.emsize, args.ntokens)]
    if args.stages == 1:
        return nn.Sequential(*modules), False
    from torch.distributed import rpc
    from torch.distributed.pipeline.sync import Pipe

    options = rpc.TensorPipeRpcBackendOptions(init_method="file://" + tempfile.mktemp())
    rpc.init_rpc("worker", rank=0, world_size=1, rpc_backend_options=options)
    per_stage = (args.nlayers - 1) // args.stages + 1
    parts = []
    for stage in range(args.stages):
        part = layers[stage * per_stage : (stage + 1) * per_stage]
        if stage == 0:
            part = [modules[0], *part]
        if stage == args.stages - 1:
            part = [*part, modules[-1]]
        parts.append(nn.Sequential(*part))
    return Pipe(nn.Sequential(*parts), chunks=args.chunks, checkpoint=args.checkpoint), True


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("emsize", 200), ("nlayers", 2), ("nhead", 2), ("ntokens", 28782)):
        parser.add_argument("--" + name, type=int, default=default)
    for name, default in (("stages", 2), ("chunks", 4), ("batch", 20), ("bptt", 35), ("steps", 5)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--checkpoint", default="never")
    args = parser.parse_args()
    torch.manual_seed(0)
    model, piped = build(args)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ids = torch.randint(args.ntokens, (args.batch, args.bptt))
    targets = torch.randint(args.ntokens, (args.batch, args.bptt))
    seconds = []
    for step in range(args.steps + 1):
        start = time.perf_counter()
        optimizer.zero_grad()
        output = model(ids).local_value() if piped else model(ids)
        loss = nn.functional.cross_entropy(output.reshape(-1, args.ntokens), targets.reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if step > 0:
            seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds)
    print(json.dumps({"bench": "lm", "program": "pytorch " + torch.__version__,
                      "threads": torch.get_num_threads(), "stages": args.stages,
                      "emsize": args.emsize, "nlayers": args.nlayers, "chunks": args.chunks,
                      "checkpoint": args.checkpoint, "ms": round(1e3 * median, 2),
                      "tokens_per_s": round(args.batch * args.bptt / median, 1)}), flush=True)
    os._exit(0)  # rpc's threads would wait for peers that do not exist


if __name__ == "__main__":
    main()
