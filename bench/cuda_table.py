"""The figures of cuda.sh as a table in Markdown, and as JSON.

    python3 bench/cuda_table.py FIGURES RESULTS.json    reads lines of JSON, prints the table
    python3 bench/cuda_table.py --peak                  measures the GPU's rate of bf16 products
    python3 bench/cuda_table.py --kernels NCU.csv       sums ncu's times of two equal steps by kernel
"""
import collections
import csv
import json
import sys


NAMES = {
    "sluice-bf16": "sluice bf16",
    "sluice-tf32": "sluice tf32",
    "sluice-f32": "sluice f32",
    "sluice-bf16-chunks": "sluice bf16, 4 micro-batches",
    "sluice-bf16-stages": "sluice bf16, 4 micro-batches, 2 stages",
}


def measure_peak():
    """FLOP/s of the best of ten products of random matrices, by PyTorch."""
    import torch

    size = 8192
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    milliseconds = []
    for _ in range(13):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.matmul(a, b)
        end.record()
        end.synchronize()
        milliseconds.append(begin.elapsed_time(end))
    return 2 * size**3 / (1e-3 * min(milliseconds[3:]))


def rows_of(lines):
    """(case, program, milliseconds, FLOP/s or 0, peak bytes or 0), in the order of the cases."""
    for line in lines:
        if "case" not in line:
            continue
        figures = line["figures"]
        if isinstance(figures["ms"], dict):
            for mode, milliseconds in figures["ms"].items():
                yield (line["case"], "PyTorch " + mode, milliseconds, 0,
                       figures.get("peak_bytes", {}).get(mode, 0))
        else:
            yield (line["case"], NAMES.get(line["name"], line["name"]), figures["ms"], 1e9 * figures["gflops"],
                   figures["peak_bytes"])


def print_table(lines):
    peak = next((line["peak_flops"] for line in lines if "peak_flops" in line), 0)
    rows = list(rows_of(lines))
    # sluice counts the operations; PyTorch's step has as many.
    flop = {case: milliseconds * rate for case, _, milliseconds, rate, _ in rows if rate}
    print(f"Products of bf16 matrices of 8192 x 8192: {1e-12 * peak:.0f} TFLOP/s\n")
    print("| model and batch | program | a step | tokens/s | TFLOP/s | of the products' | peak GB |")
    print("|---|---|---|---|---|---|---|")
    for case, program, milliseconds, _, size in rows:
        batch, length = map(int, case.split("-layers-")[1].split("-x-"))
        rate = flop.get(case, 0) / milliseconds
        ratio = f"{rate / peak:.2f}" if peak else ""
        print(f"| {case.replace('-', ' ')} | {program} | {milliseconds:.2f} ms "
              f"| {1e3 * batch * length / milliseconds:.0f} | {1e-12 * rate:.1f} | {ratio} "
              f"| {1e-9 * size:.1f} |")


# What kernels are for, by what their names begin with.
KINDS = {
    "products, by cuBLASLt": ("nvjet", "cutlass", "cublasLt", "splitK"),
    "attention": ("attend", "grad_", "multiply_out", "round_heads"),
    "norms, residual sums and dropout": ("add_norm", "add_dropout", "sum_rows<norm"),
    "activations and gradients of biases": ("epilogue", "sum_rows<epilogue", "add_ranges"),
    "conversions, also of weights": ("convert",),
    "the loss": ("cross_entropy",),
    "the optimizer and the gradients' norm": ("sgd", "adamw", "reduce_range"),
    "embedding": ("embed", "add_to_table", "sort_spans", "compare_keys", "merge_spans"),
}


def kind_of(name):
    return next((kind for kind, starts in KINDS.items() if name.startswith(starts)), "other")


def print_kernels(path):
    """Kernels and what else ncu times, by what they are for and by name, the longest first, for one step of two."""
    with open(path, encoding="utf-8") as file:
        lines = [line for line in file if line.startswith('"')]
    unit_ms = {"ns": 1e-6, "nsecond": 1e-6, "us": 1e-3, "usecond": 1e-3, "ms": 1, "msecond": 1}
    times = collections.defaultdict(list)
    for row in csv.DictReader(lines):
        time = float(row["Metric Value"].replace(",", "")) * unit_ms[row["Metric Unit"]]
        if not row["Kernel Name"].startswith("initialize"):
            times[row["Kernel Name"].removeprefix("void ")].append(time)
    total = sum(map(sum, times.values()))
    kinds = collections.defaultdict(float)
    for name, each in times.items():
        kinds[kind_of(name)] += sum(each) / 2
    print(f"| kernels for | ms a step, of {total / 2:.2f} | % |\n|---|---|---|")
    for kind, time in sorted(kinds.items(), key=lambda item: -item[1]):
        print(f"| {kind} | {time:.2f} | {200 * time / total:.0f} |")
    print()
    print(f"| kernel | launches | ms a step, of {total / 2:.2f} | % |\n|---|---|---|---|")
    for name, each in sorted(times.items(), key=lambda item: -sum(item[1])):
        print(f"| {name[:90]} | {len(each) / 2:g} | {sum(each) / 2:.3f} | {100 * sum(each) / total:.1f} |")


def main():
    if sys.argv[1:] == ["--peak"]:
        print(json.dumps({"peak_flops": measure_peak()}))
        return
    if sys.argv[1] == "--kernels":
        print_kernels(sys.argv[2])
        return
    with open(sys.argv[1], encoding="utf-8") as file:
        lines = [json.loads(line) for line in file if line.strip()]
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(lines, file, indent=1)
    print_table(lines)


if __name__ == "__main__":
    main()
