"""Whether transformers opens what sluice saves, and computes the same: arguments are the program and tests/models.

Each family's small model is trained for a step and saved; the loss that `sluice eval` gives is that of transformers.
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


def main():
    program, models = sys.argv[1:]
    for family in ("gpt2", "llama3", "qwen2", "qwen3"):
        data = os.path.join(models, family, "rows.jsonl")
        with open(data) as file:
            rows = [json.loads(line) for line in file]
        with tempfile.TemporaryDirectory() as folder:
            saved = os.path.join(folder, "saved")
            subprocess.run([program, "train", "--init", os.path.join(models, family), "--data", data, "--batch-size", "2",
                            "--lr", "1e-2", "--quiet", "--save", saved], check=True)
            printed = subprocess.run([program, "eval", "--init", saved, "--data", data, "--json"], check=True,
                                     stdout=subprocess.PIPE).stdout
            expected = loss_by_transformers(saved, rows)
        loss = json.loads(printed.splitlines()[-1])["loss"]
        if abs(loss - expected) > 1e-5 * expected:
            sys.exit(f"{family}: the loss is {loss}, expected {expected}")


main()
