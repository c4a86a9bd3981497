"""Adapters in PEFT: it opens what sluice saves, and has the same loss.

Ten steps of AdamW of PEFT's adapter are those that sluice takes of it. The goldens beside the models, tests/models/*/lora, hold
sluice to PEFT where there is no PEFT; their losses in tests/cli/test_fine_tuning.sh are printed here with --print.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

SOURCE, PROGRAM = os.environ["SLUICE_SOURCE_DIR"], os.environ["SLUICE_PROGRAM"]

try:
    import torch
    from peft import PeftModel
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)


def model_path(family, name=""):
    return os.path.join(SOURCE, "tests/models", family, name)


def open_adapted(family, adapter, trains):
    """The base with an adapter, without dropout."""
    base = AutoModelForCausalLM.from_pretrained(model_path(family), dtype=torch.float32, attn_implementation="eager")
    return PeftModel.from_pretrained(base, adapter, is_trainable=trains).eval()


def loss_of(model, golden):
    return model(golden["input_ids"], labels=golden["labels"]).loss


def losses_of_training(family):
    golden = load_file(model_path(family, "golden.safetensors"))
    model = open_adapted(family, model_path(family, "lora"), True)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = loss_of(model, golden)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def run(*words):
    return subprocess.run([PROGRAM, *words], check=True, capture_output=True, text=True).stdout


class Adapters(unittest.TestCase):
    def check_saved(self, family, *options):
        rows = model_path(family, "rows.jsonl")
        with tempfile.TemporaryDirectory() as directory:
            adapter = os.path.join(directory, "adapter")
            run("train", "--init", model_path(family), "--data", rows, "--batch-size", "2", "--epochs", "5", "--lr", "1e-2",
                "--lora", "--lora-rank", "4", *options, "--save", adapter, "--save-dir", directory + "/run", "--quiet")
            for saved in (adapter, directory + "/run/step-00000005"):
                found = json.loads(run("eval", "--init", model_path(family), "--adapter", saved, "--data", rows, "--json"))
                with torch.no_grad():
                    expected = loss_of(open_adapted(family, saved, False), load_file(model_path(family, "golden.safetensors")))
                self.assertAlmostEqual(found["loss"], expected.item(), delta=1e-5)

    def test_saved_adapters_open(self):
        for family in ("gpt2", "llama3"):
            for options in ((), ("--lora-targets", "all-linear"), ("--use-rslora",), ("--train-layers", "1")):
                with self.subTest(family=family, options=options):
                    self.check_saved(family, *options)

    def test_training_takes_the_same_steps(self):
        for family in ("gpt2", "llama3"):
            with tempfile.TemporaryDirectory() as directory:
                log = os.path.join(directory, "log")
                run("train", "--init", model_path(family), "--adapter", model_path(family, "lora"), "--data",
                    model_path(family, "rows.jsonl"), "--batch-size", "2", "--epochs", "10", "--dropout", "0", "--lr", "3e-3",
                    "--lr-schedule", "constant", "--weight-decay", "0.1", "--weight-decay-for", "all", "--clip", "0",
                    "--no-shuffle", "--log-json", log, "--quiet")
                with open(log, encoding="utf-8") as file:
                    records = [json.loads(line) for line in file]
            losses = [record["loss"] for record in records if record["record"] == "step"]
            for found, expected in zip(losses, losses_of_training(family), strict=True):
                self.assertAlmostEqual(found, expected, delta=1e-5 * expected)


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        for name in ("gpt2", "llama3"):
            print(name, *losses_of_training(name))
    else:
        unittest.main()
