"""Whether transformers opens what sluice saves, and computes the same: arguments are the program and tests/models.

Each family's small model is trained for a step and saved, in f32 and in bf16; the loss that `sluice eval` gives is that of
transformers, which by itself opens it in the type that it was saved in.
Exits with 77 where a package is missing.
"""
import json
import os
import subprocess
import sys
import tempfile

try:
    import torch
    from transformers import AutoModelForCausalLM
except ImportError:
    sys.exit(print("skipped: no Python with transformers") or 77)


def loss_by_transformers(path, rows):
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager", dtype=torch.float32)
    total = count = 0
    for row in rows:
        labels = torch.tensor([row["labels"]])
        targets = int((labels[:, 1:] != -100).sum())
        with torch.no_grad():
            total += targets * model(torch.tensor([row["input_ids"]]), labels=labels).loss.item()
        count += targets
    return total / count


def check(program, models, family, dtype):
    data = os.path.join(models, family, "rows.jsonl")
    with open(data) as file:
        rows = [json.loads(line) for line in file]
    with tempfile.TemporaryDirectory() as folder:
        saved = os.path.join(folder, "saved")
        subprocess.run([program, "train", "--init", os.path.join(models, family), "--data", data, "--batch-size", "2",
                        "--lr", "1e-2", "--quiet", "--save", saved, "--save-dtype", dtype], check=True)
        printed = subprocess.run([program, "eval", "--init", saved, "--data", data, "--json"], check=True,
                                 stdout=subprocess.PIPE).stdout
        expected = loss_by_transformers(saved, rows)
        found = AutoModelForCausalLM.from_pretrained(saved).dtype
    if found != {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]:
        sys.exit(f"{family}: transformers opens it in {found}, not {dtype}")
    loss = json.loads(printed.splitlines()[-1])["loss"]
    if abs(loss - expected) > 1e-5 * expected:
        sys.exit(f"{family} in {dtype}: the loss is {loss}, expected {expected}")


def main():
    program, models = sys.argv[1:]
    for family in ("gpt2", "llama3", "qwen2", "qwen3"):
        for dtype in ("f32", "bf16"):
            check(program, models, family, dtype)


main()
