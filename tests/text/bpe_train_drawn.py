"""Compares what `sluice tokenizer train` makes of drawn texts with what the library tokenizers makes of them.

Argument: the program. Exits with 77 where a package is missing.
"""
import json
import os
import random
import subprocess
import sys
import tempfile

try:
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
except ImportError:
    sys.exit(print("skipped: no tokenizers: scripts/test makes a Python with them") or 77)

CASES = int(os.environ.get("SLUICE_TEST_CASES") or 75)
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
LETTERS = ["a", "b", "ab", "abcd", "etaoin", "\u00e9\u00fc\u65e5a", "<|en>", "==--"]  # those of a case


def pre_tokenizer(splitter):
    if splitter == "gpt2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    first = (pre_tokenizers.Digits(individual_digits=True) if splitter == "smollm" else
             pre_tokenizers.Split(Regex(CL100K), "isolated"))
    return pre_tokenizers.Sequence(
        [first, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splitter == "smollm")])


def draw_line(draws, letters):
    words = ("".join(draws.choice(letters) for _ in range(int(draws.expovariate(.15))))
             for _ in range(draws.randrange(12)))
    return draws.choice([" ", "", "  ", " 12"]).join(words) + draws.choice(["\n", "\r\n", " \n", "\n\n"])


def draw_files(draws, folder):
    """With runs that are as long as a token can be, now and then; the last line may have no end."""
    letters = draws.choice(LETTERS)
    for number in range(draws.randrange(1, 4)):
        text = "a" + "".join(draw_line(draws, letters) for _ in range(draws.randrange(60)))
        if draws.random() < .2:
            text += letters[0] * draws.randrange(5000)
        path = os.path.join(folder, f"{number}.txt")
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        yield path


def check(program, draws, folder):
    splitter, size = draws.choice(["gpt2", "smollm", "cl100k"]), draws.randrange(258, draws.choice([280, 400, 3000]))
    special = draws.choice([["<|endoftext|>"], ["ab", "<s>"]])
    paths, out = list(draw_files(draws, folder)), os.path.join(folder, "out")
    words = [word for token in special for word in ("--special", token)]
    subprocess.run([program, "tokenizer", "train", "--vocab-size", str(size), "--splitter", splitter, *words, *paths,
                    "-o", out], stdout=subprocess.DEVNULL, check=True)
    expected = Tokenizer(models.BPE())
    expected.pre_tokenizer = pre_tokenizer(splitter)
    expected.train(paths, trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), min_frequency=0,
        max_token_length=1025, show_progress=False))
    written = os.path.join(out, "tokenizer.json")
    with open(written, encoding="utf-8") as file:
        model, other = json.load(file)["model"], json.loads(expected.to_str())["model"]
    for name in ("vocab", "merges"):
        if model[name] != other[name]:
            sys.exit(f"{paths}: another \"{name}\" with {splitter}, {size} tokens, {special}")
    text = "".join(open(path, encoding="utf-8", newline="").read() for path in paths)[:20000]
    if Tokenizer.from_file(written).encode(text).ids != expected.encode(text).ids:
        sys.exit(f"{paths}: other ids with {splitter}, {size} tokens, {special}")


def main():
    seed = int(os.environ.get("SLUICE_TEST_SEED") or random.randrange(10 ** 9))
    print("SLUICE_TEST_SEED", seed, flush=True)
    draws = random.Random(seed)
    for _ in range(CASES):
        with tempfile.TemporaryDirectory() as folder:
            check(sys.argv[1], draws, folder)


main()
