"""Steps the tutorials' language model, or one of transformers, under PyTorch and prints one line of JSON.

The counterpart of bench_step: the same model and data shape, dropout 0.2, SGD or AdamW, clipping at
0.5, on the CPU. With --stages 1: eager and compiled, in f32 and under autocast(bfloat16), on a GPU also
with products in TF32 (--device cuda, --modes); a step that takes longer than --limit ends the program, and its
mode has no figure. With --stages 2: PyTorch 1.13's Pipe. With --rank: a rank
of torch.distributed.pipelining. With --model, which needs transformers: a published model with drawn
weights, its attention by scaled_dot_product_attention, without dropout. compare_pytorch.py and cuda.sh
run it.
"""
import argparse
import contextlib
import json
import math
import os
import statistics
import tempfile
import threading
import time

import torch
from torch import nn

VERSION = tuple(int(number) for number in torch.__version__.split("+")[0].split(".")[:2])
# sluice's name, PyTorch's, the ranks of the stages
SCHEDULES = {
    "gpipe": ("ScheduleGPipe", [0, 1]),
    "1f1b": ("Schedule1F1B", [0, 1]),
    "interleaved": ("ScheduleInterleaved1F1B", [0, 1, 0, 1]),
    "zb-v": ("ScheduleZBVZeroBubble", [0, 1, 1, 0]),
}


# ---- The model --------------------------------------------------------------------------------


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
    def __init__(self, width, heads, hidden, dropout, length):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(width, heads, hidden, dropout, batch_first=True)
        mask = torch.triu(torch.full((length, length), float("-inf")), diagonal=1)
        self.register_buffer("mask", mask)
        # From 2.0 on, PyTorch chooses its fused attention by this word.
        self.words = {"is_causal": True} if VERSION >= (2, 0) else {}

    def forward(self, x):
        return self.layer(x, src_mask=self.mask, **self.words)


class Decoder(nn.Module):
    def __init__(self, width, ntokens):
        super().__init__()
        self.decoder = nn.Linear(width, ntokens)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, x):
        return self.decoder(x)


def build_stages(args, count, own=None):
    """Layers are spread evenly, the ends join the first and last stage. `own`: only these stages."""
    stages, each = [], -(-args.nlayers // count)
    for stage in range(count):
        if own is not None and stage not in own:
            continue
        layers = min(each, args.nlayers - stage * each)
        modules = [Layer(args.emsize, args.nhead, args.nhid, 0.2, args.bptt)
                   for _ in range(layers)]
        if stage == 0:
            modules.insert(0, Encoder(args.ntokens, args.emsize, 0.2))
        if stage == count - 1:
            modules.append(Decoder(args.emsize, args.ntokens))
        stages.append(nn.Sequential(*modules))
    return stages


def cross_entropy(output, targets):
    return nn.functional.cross_entropy(output.flatten(0, 1), targets.flatten())


def build_published(args):
    """The sizes of --model, as published; --nlayers changes how many layers."""
    import transformers

    config = {
        "gpt2": lambda: transformers.GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0),
        "smollm2-135m": lambda: transformers.LlamaConfig(
            vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
            num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True),
        "qwen3-0.6b": lambda: transformers.Qwen3Config(
            vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
            num_attention_heads=16, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True),
    }[args.model]()
    if args.nlayers:
        config.num_hidden_layers = args.nlayers
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:args.nlayers]
    config.use_cache = False
    args.ntokens = config.vocab_size
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return model, lambda ids: model(input_ids=ids).logits


# ---- In one process ---------------------------------------------------------------------------


class StepLimit:
    """Ends the program, after on_end, when a step takes longer than some seconds (0: never), in a compiled one from the last
    compilation on.

    A step of one operation after another may spend minutes in a single call of PyTorch, which no signal's handler
    interrupts; a thread can end the program at any time."""

    def __init__(self, seconds, on_end):
        self.seconds, self.on_end, self.timer = seconds, on_end, None
        if seconds:
            import torch._dynamo

            torch._dynamo.on_compile_start(lambda *_: self.stop())
            torch._dynamo.on_compile_end(lambda *_: self.start())

    def start(self):
        self.stop()
        if self.seconds:
            self.timer = threading.Timer(self.seconds, self.end)
            self.timer.daemon = True
            self.timer.start()

    def stop(self):
        if self.timer:
            self.timer.cancel()

    def end(self):
        self.on_end()
        os._exit(0)


def median_step(args, model, loss_of, precision, limit):
    """Milliseconds of a step; the first two, in which PyTorch compiles, do not count."""
    kind = torch.optim.AdamW if args.optimizer == "adamw" else torch.optim.SGD
    optimizer = kind(model.parameters(), lr=0.01)
    batch = torch.randint(args.ntokens, (2, args.batch, args.bptt)).to(args.device)
    ids, targets = batch.unbind()
    if VERSION >= (2, 0):
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    seconds = []
    for _ in range(args.steps + 2):
        limit.start()
        start = time.perf_counter()
        optimizer.zero_grad()
        with (torch.autocast(args.device, dtype=torch.bfloat16) if precision == "bf16"
              else contextlib.nullcontext()):
            loss = loss_of(ids, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if args.device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        limit.stop()
    return round(1e3 * statistics.median(seconds[2:]), 2)


def print_result(result):
    print(json.dumps({"version": torch.__version__, **result}), flush=True)


def run_model(args):
    """The milliseconds of each mode, None of one whose step took longer than --limit; and on a GPU, the
    bytes of its tensors at the peak."""
    with torch.device(args.device) if VERSION >= (2, 0) else contextlib.nullcontext():
        if args.model:
            model, logits_of = build_published(args)
        else:
            model = logits_of = build_stages(args, 1)[0]
    model.train()

    def loss_of(ids, targets):
        return cross_entropy(logits_of(ids), targets)

    times, bytes_of = {}, {}
    result = {"ms": times, "parameters": sum(p.numel() for p in model.parameters())}
    limit = StepLimit(args.limit, lambda: print_result(result))
    for mode in args.modes.split(","):
        way, precision = mode.split()
        times[mode] = None
        if args.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        times[mode] = median_step(args, model, torch.compile(loss_of) if way == "compiled"
                                  else loss_of, precision, limit)
        if args.device == "cuda":
            bytes_of[mode] = torch.cuda.max_memory_allocated()
    return {**result, "peak_bytes": bytes_of} if bytes_of else result


def run_pipe(args):
    from torch.distributed import rpc
    from torch.distributed.pipeline.sync import Pipe

    options = rpc.TensorPipeRpcBackendOptions(init_method="file://" + tempfile.mktemp())
    rpc.init_rpc("worker", rank=0, world_size=1, rpc_backend_options=options)
    pipe = Pipe(nn.Sequential(*build_stages(args, args.stages)), chunks=args.chunks,
                checkpoint=args.recompute).train()

    def loss_of(ids, targets):
        return cross_entropy(pipe(ids).local_value(), targets)

    return {"ms": {"eager": median_step(args, pipe, loss_of, "f32", StepLimit(0, None))}}


# ---- A rank of several ------------------------------------------------------------------------


def step_seconds(args, schedule, stages, placement, batch):
    """Seconds of one step, from when both ranks are ready until both are done."""
    import torch.distributed as dist

    ids, targets = batch
    parameters = [p for stage in stages for p in stage.submod.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    seconds = []
    for _ in range(args.steps + 1):
        dist.barrier()
        start = time.perf_counter()
        optimizer.zero_grad()
        inputs = [ids] if placement[0] == args.rank else []
        wanted = {"target": targets} if placement[-1] == args.rank else {}
        schedule.step(*inputs, **wanted)
        square = nn.utils.get_total_norm([p.grad for p in parameters]) ** 2
        dist.all_reduce(square)
        nn.utils.clip_grads_with_norm_(parameters, 0.5, square.sqrt())
        optimizer.step()
        dist.barrier()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def run_rank(args):
    """Milliseconds of a step; on rank 0."""
    import torch.distributed as dist
    from torch.distributed import pipelining

    torch.set_num_threads(1)
    torch.manual_seed(args.rank)
    dist.init_process_group("gloo", init_method="file://" + args.meeting, rank=args.rank,
                            world_size=2)
    name, placement = SCHEDULES[args.schedule]
    own = [stage for stage, rank in enumerate(placement) if rank == args.rank]
    stages = [pipelining.PipelineStage(modules, stage, len(placement), torch.device("cpu"))
              for stage, modules in zip(own, build_stages(args, len(placement), own))]
    schedule = getattr(pipelining, name)(stages if len(own) > 1 else stages[0], args.chunks,
                                         loss_fn=cross_entropy)
    torch.manual_seed(0)
    batch = torch.randint(args.ntokens, (2, args.batch, args.bptt)).unbind()
    seconds = step_seconds(args, schedule, stages, placement, batch)
    dist.destroy_process_group()
    return {"ms": 1e3 * seconds} if args.rank == 0 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("emsize", 200), ("nlayers", None), ("nhead", 2), ("ntokens", 28782),
                          ("stages", 2), ("chunks", 4), ("batch", 20), ("bptt", 35), ("steps", 5),
                          ("nhid", None), ("rank", None)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--model", choices=("gpt2", "smollm2-135m", "qwen3-0.6b"))
    parser.add_argument("--recompute", default="never")
    parser.add_argument("--schedule", choices=SCHEDULES)
    parser.add_argument("--optimizer", choices=("sgd", "adamw"), default="sgd")
    parser.add_argument("--meeting")
    parser.add_argument("--limit", type=float, default=0, help="seconds of a step; 0: none")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--modes", default="eager f32,compiled f32,eager bf16,compiled bf16")
    args = parser.parse_args()
    args.nhid = args.nhid or args.emsize
    args.nlayers = args.nlayers or (None if args.model else 2)
    torch.manual_seed(0)
    if args.rank is not None:
        result = run_rank(args)
    else:
        result = run_model(args) if args.stages == 1 else run_pipe(args)
    if result:
        print_result(result)
    if args.stages > 1 and args.rank is None:
        os._exit(0)  # rpc's threads would wait for peers that do not exist


if __name__ == "__main__":
    main()
