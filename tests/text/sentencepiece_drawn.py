"""The ids of drawn texts by SentencePiece's own files, by sluice and by the package sentencepiece, which trains them.

    PYTHON sentencepiece_drawn.py PROGRAM

Each is a BPE with byte fallback, as Llama 2's tokenizer.model: with and without a space before a text, with pieces that
reach across spaces, with digits alone, with another bos, and with scores of which some are equal.
Exits with 77 where the package is missing.
"""
import json
import os
import random
import subprocess
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models"))

try:
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2
except ImportError:
    sys.exit(print("skipped: no Python with sentencepiece: scripts/test makes one") or 77)

import drawn_model
from bpe_drawn import draw_character, tokenize
from own_tokenizer import OwnTokenizer
from spaces_drawn import WORDS

TEXTS, STRINGS = 25, 200
KINDS = [{}, {"add_dummy_prefix": False}, {"split_by_whitespace": False}, {"split_digits": True},
         {"bos_id": 0, "unk_id": 2, "eos_id": 1}, {"bos_id": -1, "control_symbols": ["<pipe>", "▁x y"]}]


def train(folder, number, options):
    text = os.path.join(folder, "text")
    with open(text, "w", encoding="utf-8") as file:
        file.write("the water in the pipe line flows  and the waters flow a b a b a b\nword by word the pipe naïve 日本 1 23\n"
                   * 20)
    prefix = os.path.join(folder, f"kind{number}")
    sentencepiece.SentencePieceTrainer.train(**{
        "input": text, "model_prefix": prefix, "model_type": "bpe", "vocab_size": 360, "byte_fallback": True,
        "normalization_rule_name": "identity", "remove_extra_whitespaces": False, "character_coverage": 1.0,
        "hard_vocab_limit": False, "minloglevel": 2, **options})
    return prefix + ".model"


def make_scores_equal(path):
    """Every second piece gets the score of the one before it."""
    model = sentencepiece_model_pb2.ModelProto()
    with open(path, "rb") as file:
        model.ParseFromString(file.read())
    for i in range(1, len(model.pieces), 2):
        model.pieces[i].score = model.pieces[i - 1].score
    with open(path, "wb") as file:
        file.write(model.SerializeToString())


def draw_text(draws):
    return "".join(draw_character(draws, True) if draws.random() < .2 else draws.choice(WORDS)
                   for _ in range(draws.randrange(STRINGS))).replace("\0", "")


def check(program, path, texts, what):
    expected = sentencepiece.SentencePieceProcessor(model_file=path)
    with OwnTokenizer(program, path) as own:
        for text in texts:
            ids = own.encode(text)
            if ids != expected.encode(text):
                sys.exit(f"{what}: {text!r}: sluice has {ids}, sentencepiece {expected.encode(text)}")
            decoded = own.decode(ids).decode()
            if decoded != expected.decode(ids):
                sys.exit(f"{what}: decoding gives {decoded!r}, sentencepiece {expected.decode(ids)!r}")


def check_specials(program, path, what):
    """A text of its own begins with bos, where there is one, and control pieces are found in it."""
    processor, special = sentencepiece.SentencePieceProcessor(model_file=path), ["tokenize", "--special", "--print"]
    printed = tokenize([program, *special, "--tokenizer", path], f"a{processor.id_to_piece(processor.eos_id())}".encode())
    begin = [processor.bos_id()] if processor.bos_id() >= 0 else []
    if [int(word) for word in printed.split()] != [*begin, *processor.encode("a"), processor.eos_id()]:
        sys.exit(f"{what}: --special gives {printed}")


def check_directory(program, path):
    """A directory that has the file alone, whose tokenizer_config.json says how a text begins and ends."""
    with tempfile.TemporaryDirectory() as folder:
        os.link(path, os.path.join(folder, "tokenizer.model"))
        with open(os.path.join(folder, "tokenizer_config.json"), "w") as file:
            json.dump({"add_bos_token": False, "add_eos_token": True}, file)
        processor = sentencepiece.SentencePieceProcessor(model_file=path)
        printed = tokenize([program, "tokenize", "--special", "--print", "--tokenizer", folder], b"the pipe")
        if [int(word) for word in printed.split()] != [*processor.encode("the pipe"), processor.eos_id()]:
            sys.exit(f"a directory: {printed}")


def check_model(program, path, folder):
    """The tokenizer of a model, which is saved as a tokenizer.json; the words in it are plain, so that no ties matter."""
    base, saved, text = (os.path.join(folder, name) for name in ("base", "saved", "rows"))
    drawn_model.VOCABULARY = sentencepiece.SentencePieceProcessor(model_file=path).vocab_size()
    sys.argv[1:] = ["1", "2", base, text]
    drawn_model.main()
    os.link(path, os.path.join(base, "tokenizer.model"))
    for split in drawn_model.ROWS:
        os.remove(os.path.join(text, split + ".jsonl"))
        with open(os.path.join(text, split + ".txt"), "w", encoding="utf-8") as file:
            file.write("word by word the water in the pipe line flows\n" * 30)
    subprocess.run([program, "train", "--init", base, "--data", text, "--batch-size", "2", "--max-batches", "2", "--quiet",
                    "--save", saved], check=True, stdout=subprocess.DEVNULL)
    check(program, path, ["word by word the pipe"], "its own file")
    words = "  word by word, the pipé 123 \n waters"
    ids = [tokenize([program, "tokenize", "--print", "--tokenizer", name], words.encode()) for name in (path, saved)]
    if ids[0] != ids[1]:
        sys.exit(f"saved: {ids}")
    tokenize([program, "generate", "--init", saved, "--prompt", "the pipe", "--tokens", "2"], b"")


def check_refused(program, folder):
    for options, message in (({"model_type": "unigram"}, "it is of unigram"),
                             ({"normalization_rule_name": "nfkc"}, "precompiled_charsmap"),
                             ({"remove_extra_whitespaces": True}, "remove_extra_whitespaces"),
                             ({"treat_whitespace_as_suffix": True}, "treat_whitespace_as_suffix"),
                             ({"byte_fallback": False}, "no byte_fallback"),
                             ({"user_defined_symbols": ["<tool>"]}, "user-defined")):
        path = train(folder, 99, options)
        ran = subprocess.run([program, "tokenize", "--tokenizer", path, "--print"], input=b"", capture_output=True, check=False)
        if ran.returncode != 1 or message not in ran.stderr.decode():
            sys.exit(f"{options}: {ran}")


def main():
    program, seed = sys.argv[1], int(os.environ.get("SLUICE_TEST_SEED") or random.randrange(10 ** 9))
    print("SLUICE_TEST_SEED", seed, flush=True)
    draws = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        for number, options in enumerate(KINDS):
            path = train(folder, number, options)
            for equal in (False, True):
                if equal:
                    make_scores_equal(path)
                check(program, path, [draw_text(draws) for _ in range(TEXTS)], f"{options}, equal {equal}")
                check_specials(program, path, f"{options}")
        check_directory(program, train(folder, 0, {}))
        check_model(program, train(folder, 0, {}), folder)
        check_refused(program, folder)


if __name__ == "__main__":
    main()
