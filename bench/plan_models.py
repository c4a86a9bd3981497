"""Models that bench/plan_accuracy.py draws: the tutorials' on its text, and small ones of families, with drawn weights, on rows of ids."""
import array
import json
import os
import random
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "models"))
import drawn_model  # noqa: E402

FAMILIES = ["gpt2", "llama", "qwen2", "qwen3", "smollm3"]
ROWS = {"train": 1000, "valid": 20, "test": 20}
WEIGHTS = 1 << 16  # drawn ones, which repeat


class Tutorials:
    """As the preset, but for the sizes."""

    def __init__(self, emsize, nhid, nlayers, nhead, *more):
        sizes = {"emsize": emsize, "nhid": nhid, "nlayers": nlayers, "nhead": nhead}
        self.options = [word for name, value in sizes.items() for word in (f"--{name}", str(value))] + list(more)
        self.text = " ".join(self.options)

    def words(self, text, folder):
        return ["--data", text, *self.options]

    def planned_words(self, folder, ntokens):
        """Those of a command that has no data."""
        return [*self.options, "--ntokens", str(ntokens)]


class Family:
    """A directory of config.json, weights, and rows of so many ids."""

    def __init__(self, family, heads, layers, vocabulary, row, tied=True, heads_of_a_key=1, hidden=2):
        width = 64 * heads
        self.row = row
        self.config = {"model_type": family, "vocab_size": vocabulary, "tie_word_embeddings": tied}
        if family == "gpt2":
            self.config.update(n_embd=width, n_layer=layers, n_head=heads, n_positions=2 * row)
        else:
            self.config.update(hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, head_dim=64,
                               num_key_value_heads=heads // heads_of_a_key, intermediate_size=hidden * width,
                               max_position_embeddings=2 * row, rope_theta=10000.0, hidden_act="silu", rms_norm_eps=1e-6)
        self.text = f"{family}, {layers} layers of {width}, {vocabulary:,} tokens" + (", tied" if tied else "")

    def write(self, folder):
        draw = random.Random(self.text)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(self.config), encoding="ascii")
        shapes = drawn_model.shapes_of(self.config)
        values = array.array("f", [draw.gauss(0, 0.02) for _ in range(WEIGHTS)]).tobytes()
        drawn_model.write_tensors(shapes, folder / "model.safetensors",
                                  lambda count: (values * (count // WEIGHTS + 1))[:4 * count])
        for split, count in ROWS.items():
            with open(folder / f"{split}.jsonl", "w", encoding="ascii") as file:
                for _ in range(count):
                    print(json.dumps({"input_ids": draw.choices(range(self.config["vocab_size"]), k=self.row)}), file=file)

    def write_once(self, folder):
        path = Path(folder) / re.sub("[^a-z0-9]+", "-", self.text)
        if not path.exists():
            child = os.fork()  # what this process takes counts as the most of the programs that it starts
            if child == 0:
                status = 1
                try:
                    self.write(path)
                    status = 0
                finally:
                    os._exit(status)
            if os.waitpid(child, 0)[1] != 0:
                sys.exit(f"{path} cannot be written")
        return str(path)

    def words(self, text, folder):
        path = self.write_once(folder)
        return ["--data", path, "--init", path]

    def planned_words(self, folder, ntokens):
        return ["--init", self.write_once(folder)]


def draw_model(draw, row):
    heads, layers = draw.choice([2, 4]), draw.randint(2, 6)
    if draw.random() < 0.5:
        return Family(draw.choice(FAMILIES), 2 * heads, layers, draw.choice([4096, 16384]), row, draw.random() < 0.5,
                      draw.choice([1, 2]), draw.choice([2, 3]))
    return Tutorials(64 * heads * draw.choice([1, 2]), draw.choice([256, 512, 1024]), layers, heads, "--activation",
                     draw.choice(["relu", "gelu"]), *draw.choice([[], ["--pre-norm"]]))


def smallest_like(model, row):
    """A model of next to no size, with the same kind of data."""
    return Tutorials(16, 16, 1, 2) if isinstance(model, Tutorials) else Family("gpt2", 1, 1, 256, row)
