"""Steps of LoRA by sluice beside peft and transformers: SmolLM2-360M's shape with drawn weights, in bf16, 1 x 1024 tokens.

    python3 bench/compare_peft.py [--rounds 3] [--steps 4] [--layers 32] [--tokens 1024] [--types bf16,f32] [--limit 5]

Both programs train the same adapter (rank 8, alpha 16, q_proj and v_proj) of the same directory, whose weights are of bf16, on the
same rows with AdamW, one after the other with all cores. The first step's losses must agree, since an adapter begins as nothing.
PyTorch's products of bf16 are slow on processors that have none, so peft runs in f32 as well, or, with --types f32, in f32 alone. With --limit N,
peft is ended where a step takes longer than N of sluice's: its line says "more than", and its memory is what it had by then. A step
is the median of those after the first one; memory is the most that the program had in memory, as the system counts it,
with everything that it has loaded. Lines give the median and the range of the rounds, and of each round's ratio to sluice. peft, transformers and PyTorch come from
PyPI into a virtual environment (--venv, default: peft in the build folder), which is made where none works there.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve()
PACKAGES = ["torch", "transformers", "peft", "numpy"]
VOCABULARY = 49152
SHAPE = {"hidden_size": 960, "intermediate_size": 2560, "num_attention_heads": 15, "num_key_value_heads": 5,
         "vocab_size": VOCABULARY, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 100000.0,
         "tie_word_embeddings": True}
THEIRS = {"bf16": "bfloat16", "f32": "float32"}
LOSS_TOLERANCE = 0.01  # of the loss: products of bf16 are added in other orders

# ---- By peft: in the virtual environment ------------------------------------------------------


def make_model(folder, layers):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    LlamaForCausalLM(LlamaConfig(num_hidden_layers=layers, **SHAPE)).to(torch.bfloat16).save_pretrained(folder)


def train_theirs(folder, rows, dtype, limit):
    """Prints the losses and the milliseconds of a step for each row; those until a step takes longer than `limit` seconds."""
    import torch
    from pytorch_lm import StepLimit
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"]))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    model.train()
    losses, times = [], []

    def say(ended):
        print(json.dumps({"losses": losses, "ms": times, "ended": ended}), flush=True)

    clock = StepLimit(limit, lambda: say(True))
    with open(rows, encoding="ascii") as file:
        for line in file:
            ids = torch.tensor([json.loads(line)["input_ids"]])
            clock.start()
            start = time.perf_counter()
            optimizer.zero_grad()
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            times.append(1e3 * (time.perf_counter() - start))
            clock.stop()
    say(False)


# ---- Both -------------------------------------------------------------------------------------


def run(command):
    """(what the program prints, the most bytes that it had in memory)."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with subprocess.Popen([str(word) for word in command], stdout=out, stderr=err, text=True) as program:
            _, status, usage = os.wait4(program.pid, 0)
            program.returncode = os.waitstatus_to_exitcode(status)
        if program.returncode != 0:
            err.seek(0)
            sys.exit(f"{command[0]} failed with {program.returncode}: {err.read()[-2000:]}")
        out.seek(0)
        return out.read(), 1024 * usage.ru_maxrss


def run_sluice(args, folder, rows, log):
    _, peak = run([args.build / "bin" / "sluice", "train", "--init", folder, "--data", rows, "--lora", "--precision", "bf16",
                   "--batch-size", "1", "--seq-len", args.tokens, "--chunks", "1", "--lr", "1e-4", "--lr-schedule", "constant",
                   "--clip", "0", "--weight-decay", "0.01", "--betas", "0.9,0.999", "--no-shuffle", "--epochs", "1", "--quiet",
                   "--log-json", log])
    with open(log, encoding="utf-8") as file:
        steps = [record for record in map(json.loads, file) if record["record"] == "step"]
    return {"losses": [step["loss"] for step in steps], "ms": step_milliseconds([step["ms"] for step in steps]),
            "peak": peak, "ended": False}


def run_theirs(python, folder, rows, dtype, limit):
    """limit: milliseconds of a step, after which the program ends."""
    printed, peak = run([python, HERE, "--train", folder, rows, dtype, limit / 1e3])
    figures = json.loads(printed.splitlines()[-1])
    return {**figures, "ms": limit if figures["ended"] else step_milliseconds(figures["ms"]), "peak": peak}


def step_milliseconds(steps):
    return statistics.median(steps[1:])


def write_rows(path, count, tokens):
    draw = random.Random(7)
    with open(path, "w", encoding="ascii") as file:
        for _ in range(count):
            file.write(json.dumps({"input_ids": [draw.randrange(VOCABULARY) for _ in range(tokens)]}) + "\n")


def figure(values, unit):
    return f"{statistics.median(values):,.0f} {unit} ({min(values):,.0f} to {max(values):,.0f})"


def ratio(values):
    return f"{statistics.median(values):.2f} times ({min(values):.2f} to {max(values):.2f})"


def report(rounds):
    """rounds: {program's name: [figures of a round]}."""
    steps = {name: [one["ms"] for one in runs] for name, runs in rounds.items()}
    peaks = {name: [one["peak"] / 2**20 for one in runs] for name, runs in rounds.items()}
    print("| | a step | beside sluice | memory | beside sluice |\n|---|---|---|---|---|")
    for name, runs in rounds.items():
        more = "more than " if any(one["ended"] for one in runs) else ""
        beside = [more + ratio([one / ours for one, ours in zip(of[name], of["sluice"])]) if name != "sluice" else ""
                  for of in (steps, peaks)]
        print(f"| {name} | {more}{figure(steps[name], 'ms')} | {beside[0]} | {more}{figure(peaks[name], 'MiB')} | {beside[1]} |")


def check_losses(ours, theirs, name):
    """Of the first step, which a program that was ended may not have."""
    if theirs and abs(ours[0] - theirs[0]) > LOSS_TOLERANCE * theirs[0]:
        sys.exit(f"the first step's loss is {ours[0]} by sluice, {theirs[0]} by {name}: they do not compute the same")


def compare(args, python, folder):
    model, rows = folder / "model", folder / "train.jsonl"
    run([python, HERE, "--make", model, str(args.layers)])
    write_rows(rows, args.steps + 1, args.tokens)
    theirs = {f"peft, {name}": THEIRS[name] for name in args.types.split(",")}
    rounds = {"sluice": [], **{name: [] for name in theirs}}
    for _ in range(args.rounds):
        ours = run_sluice(args, model, rows, folder / "log")
        rounds["sluice"].append(ours)
        for name, dtype in theirs.items():
            rounds[name].append(run_theirs(python, model, rows, dtype, args.limit * ours["ms"]))
            check_losses(ours["losses"], rounds[name][-1]["losses"], name)
    report(rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=HERE.parent.parent / "build", type=Path)
    parser.add_argument("--rounds", default=3, type=int)
    parser.add_argument("--steps", default=4, type=int, help="that are timed, of each run")
    parser.add_argument("--layers", default=32, type=int)
    parser.add_argument("--tokens", default=1024, type=int)
    parser.add_argument("--types", default="bf16,f32", help="in which peft computes")
    parser.add_argument("--limit", default=0, type=float, help="of sluice's steps, after which one of peft is ended; 0: none")
    parser.add_argument("--venv", type=Path)
    parser.add_argument("--train", nargs=4, metavar=("MODEL", "ROWS", "TYPE", "SECONDS"), help=argparse.SUPPRESS)
    parser.add_argument("--make", nargs=2, metavar=("MODEL", "LAYERS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.make:
        make_model(args.make[0], int(args.make[1]))
        return
    if args.train:
        train_theirs(*args.train[:3], float(args.train[3]))
        return
    print(f"runs: {args.rounds} runs of each program in turn\n")
    python = make_environment(args.venv or args.build / "peft", PACKAGES)
    with tempfile.TemporaryDirectory() as folder:
        compare(args, python, Path(folder))


if __name__ == "__main__":
    main()
