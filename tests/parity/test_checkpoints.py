"""Checkpoints and weights in PyTorch, and models from PyTorch in sluice.

Every file of a checkpoint opens in Python's `safetensors`, in shards through the index; the model has
PyTorch's loss; a step that PyTorch takes from model and optimizer is the step that the run took. What
PyTorch saves, as one file and as shards with an index, sluice evaluates and trains on. Checksums are
compared with those of libxxhash's one function for all, or of `xxh128sum`. The example
pytorch_weights.py continues a text as `sluice generate` does, what it writes evaluates as the file
that it read, its logits are those of `sluice eval --logits`, and what it cannot read or write is one
sentence.
"""

import contextlib
import ctypes
import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE, PROGRAM = os.environ["SLUICE_SOURCE_DIR"], os.environ["SLUICE_PROGRAM"]

try:
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file
except ImportError as missing:
    other = os.environ.get("SLUICE_PYTHON") or os.path.join(SOURCE, ".venv/bin/python3")
    if os.environ.get("SLUICE_OTHER_PYTHON") or not os.access(other, os.X_OK):
        print(f"skipped: {missing}; scripts/test makes a Python that has it")
        sys.exit(77)
    os.environ["SLUICE_OTHER_PYTHON"] = "1"
    os.execv(other, [other, *sys.argv])

sys.path.insert(0, os.path.join(SOURCE, "examples"))
import pytorch_weights  # noqa: E402
from pytorch_weights import build  # noqa: E402

ROWS, EVAL_ROWS, BPTT, STEPS, LR, EPS, CLIP = 4, 6, 7, 6, 0.01, 1e-3, 0.5
TOLERANCE = 2e-5
TINY = (f"--emsize 16 --nhid 24 --nhead 2 --nlayers 2 --dropout 0 --epochs 1 --bptt {BPTT} "
        f"--batch-size {ROWS} --eval-batch-size {EVAL_ROWS} --max-batches {STEPS} --seed 3 "
        f"--optimizer adamw --lr {LR} --eps {EPS} --clip {CLIP} --quiet").split()


def sluice(*arguments):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(f"sluice {' '.join(arguments)}: {done.stderr}")
    return done.stdout


# ---- What Python sees of a checkpoint ---------------------------------------------------------


def read_part(directory, part):
    """A part's tensors, those of several files joined, and the metadata of its first file."""
    with open(os.path.join(directory, "state.json"), encoding="utf-8") as file:
        files = [file["name"] for file in json.load(file)["files"]
                 if file.get("part") == part and file["name"].endswith(".safetensors")]
    tensors, metadata = {}, []
    for name in files:
        with safe_open(os.path.join(directory, name), "pt") as file:
            metadata.append(file.metadata())
            tensors.update({key: file.get_tensor(key) for key in file.keys()})
    check_index(directory, part, files)
    for file in metadata:  # as docs/checkpoints.md says
        for name, shape in json.loads(file.get("sluice.segments", "{}")).items():
            segments = sorted((int(key.rpartition("@")[2]), key) for key in tensors
                              if key.rpartition("@")[0] == name)
            if segments:
                tensors[name] = torch.cat([tensors.pop(key) for _, key in segments]).reshape(shape)
    return tensors, metadata[0]


def check_index(directory, part, files):
    """Where there is an index, it has each tensor's file, and the bytes of all."""
    path = os.path.join(directory, part + ".safetensors.index.json")
    if not os.path.exists(path):
        return
    with open(path, encoding="utf-8") as file:
        index = json.load(file)
    where, total = {}, 0
    for name in files:
        with safe_open(os.path.join(directory, name), "pt") as file:
            for key in file.keys():
                where[key] = name
                tensor = file.get_tensor(key)
                total += tensor.numel() * tensor.element_size()
    if index["weight_map"] != where or index["metadata"]["total_size"] != total:
        raise AssertionError(f"{path}: {index}")


def checksum(path):
    if shutil.which("xxh128sum"):
        done = subprocess.run(["xxh128sum", path], capture_output=True, text=True, check=True)
        return done.stdout.split()[0]

    class Hash(ctypes.Structure):
        _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]

    library = ctypes.CDLL("libxxhash.so.0")
    library.XXH3_128bits.restype = Hash
    library.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    with open(path, "rb") as file:
        data = file.read()
    found = library.XXH3_128bits(data, len(data))
    return f"{found.high:016x}{found.low:016x}"


# ---- The text -----------------------------------------------------------------------------------


def read_ids(path, vocabulary):
    with open(path, encoding="utf-8") as file:
        tokens = re.sub(r"([.,()!?'])", r" \1 ", file.read().lower()).split()
    return torch.tensor([vocabulary.get(token, 0) for token in tokens])


def blocks(ids, rows):
    columns = ids[: len(ids) // rows * rows].reshape(rows, -1)
    for start in range(0, columns.shape[1] - 1, BPTT):
        length = min(BPTT, columns.shape[1] - 1 - start)
        yield columns[:, start : start + length], columns[:, start + 1 : start + 1 + length]


def loss_of(model, inputs, targets, reduction="mean"):
    logits = model(inputs)
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]),
                                             targets.reshape(-1), reduction=reduction)


def mean_loss(model, ids):
    total, count = 0.0, 0
    with torch.no_grad():
        for inputs, targets in blocks(ids, EVAL_ROWS):
            total += loss_of(model, inputs, targets, "sum").item()
            count += targets.numel()
    return total / count


class Checkpoints(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="sluice-checkpoints-")
        cls.addClassCleanup(shutil.rmtree, cls.root)
        cls.text = cls.path("text")
        sluice("data", "--synthetic", cls.text, "--tokens", "4000")
        cls.train("saved", "--pp", "2")
        cls.train("zero", "--dp", "2", "--zero", "--devices", "cpu,cpu")
        sluice("checkpoint", "convert", cls.step("saved", STEPS), cls.path("cut"), "--shard-size",
               "20K")
        sluice("checkpoint", "convert", cls.step("zero", STEPS), cls.path("whole"))
        cls.vocabulary = pytorch_weights.read_vocabulary(cls.path("cut"))

    @classmethod
    def path(cls, *names):
        return os.path.join(cls.root, *names)

    @classmethod
    def train(cls, name, *layout):
        sluice("train", "--data", cls.text, *TINY, *layout, "--save-dir", cls.path(name),
               "--save-every", "1", "--keep", "0", "--log-json", cls.path(name + ".log"))

    @classmethod
    def step(cls, name, step):
        return cls.path(name, f"step-{step:08d}")

    def ids(self, split):
        return read_ids(os.path.join(self.text, split + ".txt"), self.vocabulary)

    def load(self, directory):
        """The model in double precision."""
        tensors, _ = read_part(directory, "model")
        model = build(pytorch_weights.read_json(os.path.join(directory, "config.json")))
        model.load_state_dict(tensors)
        return model.double()

    def logged(self, name, split):
        with open(self.path(name + ".log"), encoding="utf-8") as file:
            return [record["loss"] for record in map(json.loads, file)
                    if record["record"] == "eval" and record["split"] == split][0]

    def assert_close(self, got, expected, what):
        off = (got - expected).norm().item() / max(expected.norm().item(), 1e-30)
        self.assertLess(off, TOLERANCE, what)

    def test_model_has_the_runs_loss(self):
        ids = self.ids("valid")
        for directory, log in ((self.step("saved", STEPS), "saved"), (self.path("cut"), "saved"),
                               (self.step("zero", STEPS), "zero")):
            got, expected = mean_loss(self.load(directory), ids), self.logged(log, "valid")
            self.assertLess(abs(got / expected - 1), 1e-6, directory)

    def test_shards_are_the_whole_tensors(self):
        for part in ("model", "optimizer"):
            for one, many in ((self.step("saved", STEPS), self.path("cut")),
                              (self.path("whole"), self.step("zero", STEPS))):
                whole, cut = read_part(one, part)[0], read_part(many, part)[0]
                self.assertEqual(whole.keys(), cut.keys())
                for name, tensor in whole.items():
                    self.assertTrue(torch.equal(tensor, cut[name]), f"{name} of {many}")
        names = os.listdir(self.step("zero", STEPS))
        self.assertIn("optimizer-00002-of-00002.safetensors", names)
        about = read_part(self.step("zero", STEPS), "optimizer")[1]
        self.assertIn("sluice.segments", about, "no tensor was cut")
        self.assertTrue(os.path.exists(os.path.join(self.path("cut"), "model.safetensors.index.json")))

    def test_pytorch_takes_the_runs_next_step(self):
        """From each checkpoint's model and optimizer to the next one's."""
        batches = list(blocks(self.ids("train"), ROWS))
        for step in range(1, STEPS):
            model, state = self.load(self.step("saved", step)), None
            state = read_part(self.step("saved", step), "optimizer")[0]
            optimizer = torch.optim.AdamW(model.parameters(), LR, eps=EPS, weight_decay=0)
            for name, parameter in model.named_parameters():
                optimizer.state[parameter] = {
                    "step": torch.tensor(float(step)),
                    **{key: state[f"{name}.{key}"].double() for key in ("exp_avg", "exp_avg_sq")},
                }
            loss_of(model, *batches[step]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            after, _ = read_part(self.step("saved", step + 1), "model")
            averages, _ = read_part(self.step("saved", step + 1), "optimizer")
            for name, parameter in model.named_parameters():
                self.assert_close(parameter.detach(), after[name].double(), f"{step}: {name}")
                for key in ("exp_avg", "exp_avg_sq"):
                    if averages[f"{name}.{key}"].norm() > 1e-6:  # else it is rounding alone
                        self.assert_close(optimizer.state[parameter][key],
                                          averages[f"{name}.{key}"].double(), f"{step}: {name}.{key}")

    def test_checksums_are_xxh128s(self):
        for directory in (self.step("saved", 1), self.step("zero", STEPS), self.path("cut")):
            with open(os.path.join(directory, "state.json"), encoding="utf-8") as file:
                files = json.load(file)["files"]
            self.assertEqual({file["name"] for file in files} | {"state.json"},
                             set(os.listdir(directory)))
            for file in files:
                path = os.path.join(directory, file["name"])
                self.assertEqual(checksum(path), file["xxh128"], path)
                self.assertEqual(os.path.getsize(path), file["bytes"])

    # ---- From PyTorch ---------------------------------------------------------------------------

    def new_model(self):
        """Another one than any run's, and its loss on the test split."""
        torch.manual_seed(1)
        model = build(pytorch_weights.read_json(self.path("cut", "config.json")))
        return model, mean_loss(model.double(), self.ids("test"))

    def save_shards(self, model, *others):
        """As Hugging Face's tools do, of three files; with copies of the other files of `cut`."""
        directory = tempfile.mkdtemp(dir=self.root)
        state = {name: tensor.float() for name, tensor in model.state_dict().items()}
        names, where = sorted(state), {}
        for i in range(3):
            file = f"model-{i + 1:05d}-of-00003.safetensors"
            mine = names[i::3]
            save_file({name: state[name] for name in mine}, os.path.join(directory, file), {"format": "pt"})
            where.update({name: file for name in mine})
        total = sum(tensor.numel() * 4 for tensor in state.values())
        index = os.path.join(directory, "model.safetensors.index.json")
        with open(index, "w", encoding="utf-8") as file:
            json.dump({"metadata": {"total_size": total}, "weight_map": where}, file)
        for name in others:
            shutil.copy(self.path("cut", name), directory)
        return directory, index

    def check_sluice_takes(self, init, expected):
        said = sluice("eval", "--init", init, "--data", self.text, "--eval-batch-size",
                      str(EVAL_ROWS), "--bptt", str(BPTT))
        self.assertLess(abs(float(said.split()[2]) - expected), 6e-5, said)

    def test_sluice_evaluates_what_pytorch_saved(self):
        model, expected = self.new_model()
        directory, index = self.save_shards(model, "config.json", "tokenizer.json")
        self.check_sluice_takes(directory, expected)
        self.check_sluice_takes(index, expected)
        one = self.path("from_pytorch")
        os.mkdir(one)
        save_file({name: value.float() for name, value in model.state_dict().items()},
                  os.path.join(one, "model.safetensors"))
        for name in ("config.json", "tokenizer.json"):
            shutil.copy(os.path.join(directory, name), one)
        self.check_sluice_takes(one, expected)

    def test_sluice_trains_on_what_pytorch_saved(self):
        model, _ = self.new_model()
        _, index = self.save_shards(model)  # tensors alone
        log = self.path("init.log")
        sluice("train", "--data", self.text, *TINY, "--init", index, "--log-json", log)
        first = loss_of(model, *next(blocks(self.ids("train"), ROWS))).item()
        with open(log, encoding="utf-8") as file:
            got = [record["loss"] for record in map(json.loads, file)
                   if record["record"] == "step"][0]
        self.assertTrue(math.isclose(got, first, rel_tol=1e-6), f"{got} where PyTorch has {first}")


# ---- The example --------------------------------------------------------------------------------


def example(*words):
    """What it prints, without the line's end."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        pytorch_weights.main(list(words))
    return out.getvalue().rstrip("\n")


class Example(unittest.TestCase):
    def setUp(self):
        folder = tempfile.mkdtemp(prefix="sluice-pytorch-weights-")
        self.addCleanup(shutil.rmtree, folder)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder)
        sluice("data", "--synthetic", "text", "--tokens", "20000")

    def train(self, *layer):
        sluice("train", "--data", "text", "--emsize", "32", "--nhid", "48", "--epochs", "1", "--pp",
               "2", "--chunks", "4", "--quiet", "--save", "model", *layer)

    def check_there_and_back(self, *layer):
        self.train(*layer)
        self.assertEqual(example("model", "back", "the"),
                         sluice("generate", "--init", "model", "--prompt", "the", "--greedy", "--tokens",
                                "8").rstrip("\n"))
        evaluated = [sluice("eval", "--init", name, "--data", "text") for name in ("model", "back")]
        self.assertEqual(*evaluated)
        said = sluice("eval", "--init", "model", "--data", "text", "--split", "valid",
                      "--bptt", "9", "--eval-batch-size", "6", "--eval-max-batches", "1",
                      "--logits", "logits.safetensors")
        found = example("model", "--logits", "logits.safetensors")
        self.assertEqual(found.split()[-1], re.search(r" loss ([0-9.]+)", said)[1])
        self.assertLess(float(re.search(r"largest difference (\S+) ", found)[1]), 1e-5, found)

    def test_weights_go_to_pytorch_and_back(self):
        self.check_there_and_back()
        self.check_there_and_back("--pre-norm", "--activation", "gelu", "--mask", "none")

    def change(self, path, key, value):
        """Gives a member of a JSON object another value; None: removes it."""
        with open(path, encoding="utf-8") as file:
            members = {**json.load(file), key: value}
        with open(path, "w", encoding="utf-8") as file:
            json.dump({name: each for name, each in members.items() if each is not None}, file)

    def refused(self, pattern, *words):
        with self.assertRaisesRegex(SystemExit, "^" + pattern) as caught:
            example(*words)
        self.assertNotIn("\n", str(caught.exception))

    def test_what_cannot_be_read_or_written_is_one_sentence(self):
        self.train()
        model, back, cut = "model", "back", "cut"
        example(model, back, "the")
        sluice("eval", "--init", model, "--data", "text", "--eval-max-batches", "1", "--logits",
               "logits.safetensors")
        self.refused(".*takes MODEL BACK WORD", model)
        self.refused("none/config.json: it cannot be read: .*No such file", "none", back, "the")
        self.refused("text/config.json: it cannot be read: ", "text", back, "the")
        shutil.copytree(model, cut)
        os.truncate("cut/model.safetensors", 3000)
        self.refused("cut/model.safetensors: it cannot be read: ", cut, back, "the")
        shutil.copy("model/model.safetensors", cut)
        for nhid, problem in ((47, ".*linear1"), ("4x", "")):
            self.change("cut/config.json", "nhid", nhid)
            self.refused("cut: config.json and tensors make no model: " + problem, cut, back, "the")
        self.change("cut/config.json", "nhid", None)
        self.refused("cut: its config.json does not say 'nhid'", cut, back, "the")
        self.refused("model: its vocabulary lacks Zebra$", model, back, "the", "Zebra")
        self.refused("model/config.json: it cannot be written: ", model, "model/config.json", "the")
        self.refused("back/model.safetensors: it was not written by sluice eval", model, "--logits",
                     "back/model.safetensors")
        os.remove("model/tokenizer.json")
        self.refused("model/tokenizer.json: it cannot be read: ", model, back, "the")

    def test_python_without_torch_is_told_what_to_install(self):
        os.mkdir("without")
        with open("without/torch.py", "w", encoding="utf-8") as file:
            file.write('raise ImportError("No module named torch")\n')
        done = subprocess.run([sys.executable, pytorch_weights.__file__, "model", "back", "the"],
                              env={**os.environ, "PYTHONPATH": "without"}, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1))
        self.assertRegex(done.stderr, "^No module named torch: install torch and safetensors")


if __name__ == "__main__":
    unittest.main(verbosity=2)
