"""Files that `sluice export --gguf` writes, opened by llama.cpp, which PyPI's cyllama has built; arguments are the program,
tests/models, and a directory of SmolLM2-135M-Instruct.

The small models' losses of a row are sluice's, also with an adapter merged into one; SmolLM2's tokens, greedy text and template of
conversations are as well. Exits with 77 where the package is missing.
"""
import json
import math
import os
import subprocess
import sys
import tempfile

try:
    from cyllama.llama import llama_cpp
except ImportError:
    sys.exit(print("skipped: no Python with cyllama") or 77)

F32 = 0  # of ggml's types
# of the loss; ggml takes GELU from a table of f16 numbers
BOUNDS = {"gpt2": 1e-3, "llama3": 1e-5, "qwen2": 1e-5, "qwen3": 1e-5}
TEXTS = ("The history of pipelines is the history of waiting.", "it's 12,345.67 \u00bd \u2014 'S\u00fcd' \u4e2d\u6587\n\n\n  end ",
         "<|im_start|>user\nHello<|im_end|>\n", "tabs\tand  spaces   \r\n\U0001F600 na\u00efve")


def run(*words):
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


class Named(llama_cpp.LlamaModel):
    @property
    def n_vocab(self):  # which the package's own contexts ask for
        return self.get_vocab().n_vocab


class Model:
    """With keys, values and everything else in f32."""

    def __init__(self, path):
        self.model = Named(path_model=path, params=llama_cpp.LlamaModelParams(), verbose=False)
        params = llama_cpp.LlamaContextParams()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_threads = 512, 512, 512, 1
        params.type_k = params.type_v = F32
        params.flash_attn_type = 0
        self.context = llama_cpp.LlamaContext(model=self.model, params=params, verbose=False)
        self.vocab = self.model.get_vocab()

    def logits(self, ids):
        """Of each position."""
        self.context.kv_cache_clear()
        batch = llama_cpp.LlamaBatch(n_tokens=len(ids), embd=0, n_seq_max=1)
        batch.set_batch(ids, n_past=0, logits_all=True)
        self.context.decode(batch)
        return [self.context.get_logits_ith(i) for i in range(len(ids))]


def loss_of(model, ids):
    total = 0
    for logits, target in zip(model.logits(ids), ids[1:]):
        largest = max(logits)
        total += largest + math.log(sum(math.exp(x - largest) for x in logits)) - logits[target]
    return total / (len(ids) - 1)


def check_loss(program, what, path, bound, *words):
    with tempfile.TemporaryDirectory() as to:
        with open(words[1] + "/rows.jsonl", encoding="ascii") as file:
            ids = json.loads(file.readline())["input_ids"]
        rows = os.path.join(to, "row.jsonl")
        with open(rows, "w", encoding="ascii") as file:
            json.dump({"input_ids": ids}, file)
        ours = json.loads(run(program, "eval", *words, "--data", rows, "--eval-batch-size", "1", "--json").splitlines()[-1])["loss"]
    theirs = loss_of(Model(path), ids)
    if abs(ours - theirs) > bound * ours:
        sys.exit(f"{what}: the loss is {ours} by sluice, {theirs} by llama.cpp")


def check_family(program, folder, family, to):
    words, path = ("--init", folder), os.path.join(to, family + ".gguf")
    run(program, "export", *words, "--gguf", path, "--gguf-type", "f32")
    check_loss(program, family, path, BOUNDS[family], *words)
    adapter = os.path.join(folder, "lora")
    if os.path.exists(adapter):
        words += ("--adapter", adapter)
        run(program, "export", *words, "--merge", "--gguf", path, "--gguf-type", "f32")
        check_loss(program, family + " with its adapter", path, BOUNDS[family], *words)


def greedy(model, ids, count):
    ids = list(ids)
    for _ in range(count):
        logits = model.logits(ids)[-1]
        ids.append(max(range(len(logits)), key=logits.__getitem__))
    return ids


def check_smollm2(program, folder, to):
    path = os.path.join(to, "smollm2.gguf")
    run(program, "export", "--init", folder, "--gguf", path, "--gguf-type", "f32")
    model = Model(path)
    for text in TEXTS:
        ours = subprocess.run((program, "tokenize", "--tokenizer", folder, "--print"), check=True, input=text.encode(),
                              stdout=subprocess.PIPE).stdout.split()
        theirs = model.vocab.tokenize(text, add_special=False, parse_special=False)
        if [int(id_) for id_ in ours] != list(theirs):
            sys.exit(f"{text!r}: sluice has the tokens {ours}, llama.cpp {theirs}")
    ids = model.vocab.tokenize(TEXTS[0], add_special=False, parse_special=False)
    ours = run(program, "generate", "--init", folder, "--prompt-ids", ",".join(map(str, ids)), "--tokens", "12", "--greedy")
    theirs = greedy(model, ids, 12)
    if [int(id_) for id_ in ours.split()] != theirs:
        sys.exit(f"sluice goes on with {ours}, llama.cpp with {theirs}")
    if "<|im_start|>" not in (model.model.get_default_chat_template() or ""):
        sys.exit("llama.cpp finds no template of conversations")


def main():
    program, models, smollm2 = sys.argv[1:]
    with tempfile.TemporaryDirectory() as to:
        for family in BOUNDS:
            check_family(program, os.path.join(models, family), family, to)
        check_smollm2(program, smollm2, to)


main()
