"""Whether sluice computes what transformers does for models of drawn sizes: the argument is the program.

Of each case transformers draws a small model of a family, and computes with it (eager, f32); sluice opens its directory. Compared
are the loss of rows, logits, all gradients (from the weights after a step of SGD at a large rate), ten losses of AdamW and of SGD,
and the weights after AdamW; in bf16 the loss and all gradients. Each case prints its seed: SLUICE_TEST_SEED is the first one, SLUICE_TEST_CASES the number of cases.
Exits with 77 where a package is missing.
"""
from base64 import b64encode
import copy
import json
import os
import random
import subprocess
import sys
import tempfile

try:
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError:
    sys.exit(print("skipped: no Python with transformers") or 77)

BYTES = 256  # a tokenizer's tokens, one for each byte
STEPS = 10
FAMILIES = {"gpt2": "GPT2", "llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "smollm3": "SmolLM3"}


# ---- Drawing ----


def draw_rope(draw):
    rope = {"rope_type": draw.choice(["default", "linear", "llama3"]), "rope_theta": draw.choice([100.0, 1e4, 5e5])}
    if rope["rope_type"] != "default":
        rope["factor"] = draw.choice([2.0, 8.0])
    if rope["rope_type"] == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": draw.choice([16, 32, 64])}
    return rope


def draw_members(draw, family, positions):
    """Of the config: heads of any width, odd ones too where no positions rotate; one key head, as many as heads, or between."""
    keys = draw.choice([1, 1, 2, 3])
    heads = keys * draw.choice([1, 2, 3])
    layers = draw.randint(1, 3)
    vocabulary = BYTES + draw.randint(0, 9)
    both = {"vocab_size": vocabulary, "bos_token_id": 1, "eos_token_id": 2}
    tie = draw.random() < 0.5
    if family == "gpt2":
        width = heads * draw.randint(2, 9)
        return both | {"n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": positions,
                       "n_inner": draw.choice([None, draw.randint(1, 40)]), "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0,
                       "activation_function": draw.choice(["gelu_new", "gelu", "relu"]), "tie_word_embeddings": tie}
    head = 2 * draw.randint(1 if heads > 3 else 4, 9)
    members = both | {
        "hidden_size": heads * head, "intermediate_size": draw.randint(1, 70), "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": keys, "max_position_embeddings": positions,
        "rms_norm_eps": draw.choice([1e-5, 1e-6]), "tie_word_embeddings": tie, "rope_parameters": draw_rope(draw)}
    if family == "mistral":
        members |= {"sliding_window": None}
    if family in ("llama", "mistral", "qwen3"):  # Llama's width is a multiple of its heads
        members |= {"hidden_size": heads * draw.randint(4, 20) if family == "llama" else draw.randint(8, 60), "head_dim": head}
    if family in ("llama", "smollm3"):
        members |= {"attention_bias": draw.random() < 0.5}
    if family == "smollm3":
        members |= {"num_hidden_layers": layers + 1, "no_rope_layer_interval": draw.choice([2, 4]), "pad_token_id": None}
    return members


def draw_model(draw, family, positions):
    config = getattr(transformers, FAMILIES[family] + "Config")(**draw_members(draw, family, positions))
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    torch.manual_seed(draw.getrandbits(30))
    for name, parameter in model.named_parameters():  # weights that matter, and norms that are not 1
        is_norm = ("norm" in name or "ln_" in name) and name.endswith("weight")
        torch.nn.init.normal_(parameter, 1.0 if is_norm else 0.0, 0.1 if is_norm else 0.15)
    return model.eval()


def draw_rows(draw, vocabulary, longest):
    """Rows of several lengths, the first the longest, some of whose labels have no loss."""
    rows = []
    for index in range(draw.randint(1, 4)):
        ids = [draw.randrange(vocabulary) for _ in range(longest if index == 0 else draw.randint(2, longest))]
        labels = [-100 if draw.random() < 0.2 else token for token in ids]
        rows.append({"input_ids": ids, "labels": labels[:-1] + ids[-1:]})
    return rows


def draw_text(draw, count):
    return "".join(draw.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(count))


# ---- What transformers computes ----


def padded(rows):
    longest = max(len(row["input_ids"]) for row in rows)
    return {key: torch.tensor([row[key] + [filler] * (longest - len(row[key])) for row in rows])
            for key, filler in (("input_ids", 0), ("labels", -100))}


def loss_of(model, batch):
    logits = model(input_ids=batch["input_ids"]).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())


def train(model, batch, start, optimizer):
    """The losses, the first gradients, and the parameters after the last step."""
    model.load_state_dict(start)
    losses, first = [], None
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        first = first or {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
        losses.append(loss.item())
        optimizer.step()
    return torch.tensor(losses), first, {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def in_f64(model):
    """The same model, of which nothing is computed in f32 but the angles."""
    wide = copy.deepcopy(model).double()
    wide.set_attn_implementation("sdpa")
    for module in wide.modules():
        if "RMSNorm" in type(module).__name__:
            module.forward = lambda x, own=module: own.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + own.variance_epsilon)
    return wide


# ---- What sluice computes ----


class Case:
    def __init__(self, program, folder, what):
        self.program, self.folder, self.what = program, folder, what

    def path(self, name):
        return os.path.join(self.folder, name)

    def run(self, *words):
        done = subprocess.run([self.program, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(f"{self.what}: {' '.join(words)}: {done.stderr}")
        return done.stdout

    def trained(self, rows, epochs, name, *options):
        """The losses, and the tensors that are saved."""
        log = self.path(name + ".log")
        self.run("train", "--init", self.path("model"), "--data", self.path("rows.jsonl"), "--batch-size", str(len(rows)),
                 "--epochs", str(epochs), "--no-shuffle", "--dropout", "0", "--lr-schedule", "constant", "--clip", "0",
                 "--weight-decay-for", "all", "--quiet", "--log-json", log, "--save", self.path(name), *options)
        with open(log) as file:
            records = [json.loads(line) for line in file]
        return (torch.tensor([record["loss"] for record in records if record["record"] == "step"]),
                load_file(os.path.join(self.path(name), "model.safetensors")))

    def close(self, name, found, expected, wide, bound, where=1, terms=0):
        """Within `bound` of the largest, of the numbers that `where` has. Numbers that cancel may be as far as a rounding of the
        largest of their terms, or 10 times as far from transformers' f32 as its f64 is."""
        if found.shape != expected.shape:
            sys.exit(f"{self.what}: {name} is {tuple(found.shape)}, expected {tuple(expected.shape)}")
        expected, far = expected.double(), (found.double() - expected.double()).abs() * where
        rounding = ((wide - expected).abs() * where).max()
        if not far.max() <= max(bound * expected.abs().max(), 10 * rounding, terms * 2.0 ** -22):
            at = int(far.argmax())
            sys.exit(f"{self.what}: {name}: number {at} is {found.flatten()[at]:.9g}, expected {expected.flatten()[at]:.9g} "
                     f"(within {bound:g} of {expected.abs().max():.9g}; {rounding:.3g} are of rounding)")


def moves_by_more_than_rounding(name, gradient, largest):
    """Where AdamW's steps show more than the rounding of a gradient: not where a gradient is far below the model's largest, and not in
    keys' biases, which softmax takes away, all but what positions rotate."""
    matters = gradient.abs() > torch.maximum(1e-5 * gradient.abs().max(), 1e-4 * largest)
    if name.endswith("k_proj.bias"):
        matters[:] = False
    if name.endswith("c_attn.bias"):
        matters.chunk(3)[1][:] = False
    return matters


def check_logits(case, model, draw, length):
    rows = draw.randint(1, 3)
    os.mkdir(case.path("text"))
    for split in ("train", "valid", "test"):
        with open(case.path(f"text/{split}.txt"), "w") as file:
            file.write(draw_text(draw, rows * (length + 1) + 5))
    with open(case.path("ranks"), "w") as file:
        file.writelines(f"{b64encode(bytes([byte])).decode()} {byte}\n" for byte in range(BYTES))
    case.run("eval", "--init", case.path("model"), "--tokenizer", case.path("ranks"), "--splitter", "gpt2", "--data",
             case.path("text"), "--split", "valid", "--eval-batch-size", str(rows), "--bptt", str(length),
             "--logits", case.path("logits.safetensors"))
    written = load_file(case.path("logits.safetensors"))
    with torch.no_grad():
        case.close("logits", written["logits"], model(written["inputs"]).logits, in_f64(model)(written["inputs"]).logits, 1e-5)


def check_training(case, model, rows):
    batch, start, wide = padded(rows), {name: value.clone() for name, value in model.state_dict().items()}, in_f64(model)
    models = model, wide
    adamw = [train(one, batch, start, torch.optim.AdamW(one.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1))
             for one in models]
    sgd = [train(one, batch, start, torch.optim.SGD(one.parameters(), lr=0.1)) for one in models]
    model.load_state_dict(start)
    loss = model(**batch).loss  # as transformers itself shifts labels
    printed = case.run("eval", "--init", case.path("model"), "--data", case.path("rows.jsonl"), "--json")
    case.close("the loss", torch.tensor(json.loads(printed.splitlines()[-1])["loss"]), loss.detach(), adamw[1][0][0], 1e-5)
    rate = 2.0 ** 20  # so large that no digit of a gradient is lost in the weight
    _, stepped = case.trained(rows, 1, "stepped", "--optimizer", "sgd", "--lr", str(rate), "--weight-decay", "0")
    largest = max(gradient.abs().max() for gradient in adamw[0][1].values())
    for name, gradient in adamw[0][1].items():
        case.close("the gradient of " + name, (start[name] - stepped[name]) / rate, gradient, adamw[1][1][name], 1e-5, terms=largest)
    losses, after = case.trained(rows, STEPS, "adamw", "--optimizer", "adamw", "--lr", "3e-3", "--betas", "0.9,0.95",
                                 "--weight-decay", "0.1")
    case.close("losses of AdamW", losses, adamw[0][0], adamw[1][0], 1e-5)
    for name, gradient in adamw[0][1].items():
        case.close(name + " after AdamW", after[name], adamw[0][2][name], adamw[1][2][name], 1e-4,
                   moves_by_more_than_rounding(name, gradient, largest))
    saved = transformers.AutoModelForCausalLM.from_pretrained(case.path("adamw"), attn_implementation="eager", dtype=torch.float32)
    model.load_state_dict(after, strict=False)  # a tied head is not there
    with torch.no_grad():
        expected = model(input_ids=batch["input_ids"]).logits
        case.close("logits of what is saved", saved.eval()(input_ids=batch["input_ids"]).logits, expected, expected, 1e-6)
    model.load_state_dict(start)
    losses, _ = case.trained(rows, STEPS, "sgd", "--optimizer", "sgd", "--lr", "0.1", "--weight-decay", "0")
    case.close("losses of SGD", losses, sgd[0][0], sgd[1][0], 1e-5)


def check_bf16(case, model, rows):
    """About as far from f32 as torch.autocast: the loss, and each gradient beside the model's largest."""
    batch, start = padded(rows), {name: value.clone() for name, value in model.state_dict().items()}
    still = torch.optim.SGD(model.parameters(), lr=0)
    losses, gradients, _ = train(model, batch, start, still)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, rounded, _ = train(model, batch, start, still)
    rate = 2.0 ** 20
    loss, stepped = case.trained(rows, 1, "bf16", "--precision", "bf16", "--optimizer", "sgd", "--lr", str(rate), "--weight-decay", "0")
    if not abs(loss[0] / losses[0] - 1) < 0.005:
        sys.exit(f"{case.what}: the loss in bf16 is {loss[0]}, in f32 {losses[0]}")
    largest = max(gradient.abs().max() for gradient in gradients.values())
    for name, gradient in gradients.items():
        far, theirs = (((one - gradient).abs().max() / largest).item()
                       for one in ((start[name] - stepped[name]) / rate, rounded[name]))
        if not far < max(0.02, 3 * theirs):
            sys.exit(f"{case.what}: the gradient of {name} in bf16 is {far:.3g} of the largest from f32's, torch.autocast's {theirs:.3g}")


def check(program, seed):
    draw = random.Random(seed)
    family = list(FAMILIES)[seed % len(FAMILIES)]
    length = draw.choice([1, 2, draw.randint(3, 63), draw.randint(65, 140)])
    model = draw_model(draw, family, 256)
    print(f"seed {seed}: {length} positions, {type(model).__name__}: {model.config.to_diff_dict()}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        case = Case(program, folder, f"seed {seed} ({family})")
        model.save_pretrained(case.path("model"))
        rows = draw_rows(draw, model.config.vocab_size, length + 1)
        with open(case.path("rows.jsonl"), "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        check_logits(case, model, draw, length)
        check_training(case, model, rows)
        check_bf16(case, model, rows)


def main():
    first = int(os.environ.get("SLUICE_TEST_SEED", "0"))
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for seed in range(first, first + int(os.environ.get("SLUICE_TEST_CASES", "12"))):
        check(sys.argv[1], seed)


main()
