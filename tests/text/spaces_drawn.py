"""The ids of drawn texts, by tokenizers of SentencePiece's kind (byte fallback, U+2581 for white space), by sluice and by
the library tokenizers, which trains them.

    PYTHON spaces_drawn.py PROGRAM

Each is trained on the same few words: with tokens that begin at spaces, and with some that reach across them; and has
its white space as Llama 2 (Prepend and Replace) and as later files (Metaspace, with each prepend_scheme) have it.
"""
import json
import os
import random
import subprocess
import sys
import tempfile

from bpe_drawn import compare, draw_character, tokenize
from own_tokenizer import OwnTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXTS, STRINGS = 12, 250
WORDS = ["the", "pipe", " pipe", "  ", " ", "\n", "\n\n", "water", "waters", "▁", "▁▁", "pipe line", "a b a b", "é",
         "naïve", "<s>", "</s>", "<tool>", "word", "X", "Y", "<0x41>", "\t", "1", "23", "...", "日本"]
SPACE = "▁"


def model(crosses):
    """With tokens of all bytes, which the trainer does not make."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always", split=not crosses)
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    lines = ["the water in the pipe line flows  and the waters flow a b a b a b", "word by word the pipe naïve 日本"] * 5
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=420, special_tokens=names, show_progress=False, initial_alphabet=[SPACE]))
    return {**json.loads(tokenizer.to_str())["model"], "byte_fallback": True, "fuse_unk": True}


def make(base, scheme, split, normalized):
    """A tokenizer of a model; `scheme` "prepend": of the normalizer."""
    tokenizer = Tokenizer(models.BPE(
        base["vocab"], [tuple(pair) for pair in base["merges"]], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if scheme == "prepend":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=scheme, split=split)
    strip = [decoders.Strip(" ", 1, 0)] if scheme != "never" else []
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.add_special_tokens([AddedToken(name, normalized=normalized, special=True)
                                  for name in ("<unk>", "<s>", "</s>")])
    return tokenizer


def draw_text(draws):
    return "".join(draw_character(draws, True) if draws.random() < .2 else draws.choice(WORDS)
                   for _ in range(draws.randrange(STRINGS)))


def check(program, draws, tokenizer, what, decodes):
    """Not `decodes`: the library gives the text of a normalized added token with the space that Prepend gave it."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tokenizer.json")
        tokenizer.save(path)
        with OwnTokenizer(program, path) as own:
            for special in TEXTS * (False, True):
                text = draw_text(draws)
                tokenizer.encode_special_tokens = not special
                ids = own.encode(text, special)
                compare(what, tokenizer, ids, tokenizer.encode(text, add_special_tokens=special).ids)
                decoded, expected = own.decode(ids).decode(), tokenizer.decode(ids, skip_special_tokens=False)
                if decodes and decoded != expected:
                    sys.exit(f"{what}: decoding gives {decoded!r}, expected {expected!r}")


def check_long(program, tokenizer):
    """A text that is encoded in parts."""
    text = " ".join(WORDS) * 30000
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tokenizer.json")
        tokenizer.save(path)
        with open(os.path.join(folder, "text"), "w", encoding="utf-8") as file:
            file.write(text)
        tokenizer.encode_special_tokens = True
        expected = tokenizer.encode(text, add_special_tokens=False).ids
        printed = tokenize([program, "tokenize", "--tokenizer", path, "--print"], text.encode())
        compare("a long text", tokenizer, [int(word) for word in printed.split()], expected)
        subprocess.run([program, "tokenize", "--tokenizer", path, os.path.join(folder, "text"), "-o",
                        os.path.join(folder, "text.bin")], check=True, stdout=subprocess.DEVNULL)
        with open(os.path.join(folder, "text.bin"), "rb") as file:
            found = memoryview(file.read()[1024:]).cast("H").tolist()
        compare("a long file", tokenizer, found, [*expected, 2])


def main():
    program, seed = sys.argv[1], int(os.environ.get("SLUICE_TEST_SEED") or random.randrange(10 ** 9))
    print("SLUICE_TEST_SEED", seed, flush=True)
    draws = random.Random(seed)
    for crosses in (False, True):
        base = model(crosses)
        for scheme in ("prepend", "first", "always", "never"):
            for split in (False, True) if scheme != "prepend" else (False,):
                for normalized in (False, True):
                    tokenizer = make(base, scheme, split, normalized)
                    what = f"crosses {crosses}, {scheme}, split {split}, normalized {normalized}"
                    decodes = scheme != "prepend" or not normalized
                    check(program, draws, tokenizer, what, decodes)
                    tokenizer.add_tokens([AddedToken("<tool>", normalized=normalized),
                                          AddedToken("X", single_word=True, normalized=False),
                                          AddedToken("Y", lstrip=True, rstrip=True, normalized=False)])
                    check(program, draws, tokenizer, what + ", added tokens", decodes)
    check_long(program, make(model(False), "prepend", False, False))
    check_long(program, make(model(False), "first", False, False))


if __name__ == "__main__":
    main()
