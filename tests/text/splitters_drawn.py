"""Compares how `sluice tokenize` splits texts drawn at random with the library tokenizers.

Of each text a rank file is made that has its pieces, as that library splits it, as tokens: the ids must be those of the
pieces. Argument: the program. Exits with 77 where a package is missing.
"""
import base64
import os
import random
import sys
import tempfile
import unicodedata

from bpe_drawn import HEAD, TAIL, draw_string, tokenize
from tokenizers import Regex, pre_tokenizers

STRINGS = 10000  # for each splitter, as one text
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
PREFIX, BLANKS = r"[^\r\n\p{L}\p{N}]?", r"|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PATTERNS = {
    "gpt2": GPT2, "smollm": GPT2, "cl100k": HEAD + r"\p{N}{1,3}" + TAIL, "qwen2": HEAD + r"\p{N}" + TAIL,
    "qwen3.5": CONTRACTIONS + "|" + PREFIX + r"[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + BLANKS,
    "o200k": (f"{PREFIX}{UPPER}*{LOWER}+{CONTRACTIONS}?|{PREFIX}{UPPER}+{LOWER}*{CONTRACTIONS}?"
              r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + BLANKS)}
COMPOSING = ("qwen2", "qwen3.5")


def pre_tokenizer(splitter):
    split = pre_tokenizers.Split(Regex(PATTERNS[splitter]), "isolated")
    return (pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), split]) if splitter == "smollm" else
            split)


def write_ranks(pieces, draws, path):
    """{piece: id}, in an order that is drawn; the bytes come first."""
    tokens = [bytes([byte]) for byte in range(256)]
    others = sorted({piece for piece in pieces if len(piece) > 1})
    draws.shuffle(others)
    with open(path, "w", encoding="ascii") as file:
        for rank, token in enumerate(tokens + others):
            file.write(f"{base64.b64encode(token).decode()} {rank}\n")
    return {token: rank for rank, token in enumerate(tokens + others)}


def check(program, draws, splitter, path):
    """Python's Unicode composes as sluice's; the Unicode of Digits has digits that are newer than all others'."""
    text = "".join(draw_string(draws, splitter in COMPOSING or splitter == "smollm") for _ in range(STRINGS))
    composed = unicodedata.normalize("NFC", text) if splitter in COMPOSING else text
    pieces = [composed[begin:end].encode() for _, (begin, end) in pre_tokenizer(splitter).pre_tokenize_str(composed)]
    ids = write_ranks(pieces, draws, path)
    words = [program, "tokenize", "--tokenizer", path, "--splitter", splitter, "--print"]
    got, expected = [int(word) for word in tokenize(words, text.encode()).split()], [ids[piece] for piece in pieces]
    if got != expected:
        at = next(i for i, pair in enumerate(zip(got + [-1], expected + [-1])) if pair[0] != pair[1])
        sys.exit(f"{splitter}: piece {at} differs, expected {pieces[at:at + 1]}, near {pieces[max(0, at - 3):at + 4]}")


def main():
    seed = int(os.environ.get("SLUICE_TEST_SEED") or random.randrange(10 ** 9))
    print("SLUICE_TEST_SEED", seed, flush=True)
    draws = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        for splitter in PATTERNS:
            check(sys.argv[1], draws, splitter, os.path.join(folder, "ranks"))


if __name__ == "__main__":
    main()
