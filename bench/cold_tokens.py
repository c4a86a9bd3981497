"""How long steps wait for the rows of a token file that is not in the page cache.

    python3 bench/cold_tokens.py [--build DIR] [--folder DIR] [--mib N] [-- OPTION...]

Writes a token file of random tokens to the disk of --folder, takes it out of the page cache, trains on it in random order,
and does the same again with the file in the page cache. The rows of the first step are waited for; those of later steps are
read while the step before is computed. Prints a table of these waits. OPTIONs go to sluice train.
"""
import argparse
import json
import os
import random
import statistics
import struct
import subprocess
import tempfile
from pathlib import Path

GPT2_MAGIC, TYPES, ROW = 20240520, 300, 512
TRAIN = ["--preset", "small", "--seq-len", str(ROW), "--batch-size", "16", "--max-batches", "20", "--epochs", "1", "--shuffle", "--quiet"]


def write_tokens(path, mib):
    """A file in llm.c's form, on the disk."""
    block = struct.pack(f"<{1 << 19}H", *(random.Random(1).randrange(TYPES) for _ in range(1 << 19)))
    with open(path, "wb") as file:
        file.write(struct.pack("<256i", GPT2_MAGIC, 1, mib << 19, *[0] * 253))
        for _ in range(mib):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())


def set_cached(path, cached):
    with open(path, "rb") as file:
        if not cached:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while cached and file.read(1 << 24):
            pass


def train(args, folder):
    """The steps of a run's log."""
    subprocess.run([args.build / "bin/sluice", "train", "--data", folder / "train.bin", "--tokenizer", folder / "tokenizer", *TRAIN,
                    "--log-json", folder / "log", *args.options], stdout=subprocess.DEVNULL, check=True)
    with open(folder / "log", encoding="utf-8") as file:
        return [record for record in map(json.loads, file) if record["record"] == "step"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=Path(__file__).resolve().parent.parent / "build", type=Path)
    parser.add_argument("--folder")
    parser.add_argument("--mib", default=1024, type=int)
    parser.add_argument("options", nargs="*")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        (folder / "text").write_text("".join(f"word{n} of a text\n" for n in range(2000)), encoding="utf-8")
        subprocess.run([args.build / "bin/sluice", "tokenizer", "train", "--vocab-size", str(TYPES), folder / "text", "-o",
                        folder / "tokenizer"], stdout=subprocess.DEVNULL, check=True)
        write_tokens(folder / "train.bin", args.mib)
        print(f"A file of {args.mib} MiB; sluice train {' '.join([*TRAIN, *args.options])}\n\n"
              "| page cache | first step waits | later ones wait, median | the longest | all of their time, % | a step, median |\n"
              "|---|---|---|---|---|---|")
        for cached in (False, True):
            set_cached(folder / "train.bin", cached)
            steps = train(args, folder)
            waits, times = [step["data_ms"] for step in steps], [step["ms"] for step in steps]
            print(f"| {'warm' if cached else 'cold'} | {waits[0]:.2f} ms | {statistics.median(waits[1:]):.3f} ms | {max(waits[1:]):.3f} ms | "
                  f"{100 * sum(waits[1:]) / sum(times[1:]):.3f} | {statistics.median(times):.0f} ms |", flush=True)


main()
