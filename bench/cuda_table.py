"""The figures of cuda.sh as a table in Markdown, and as JSON.

    python3 bench/cuda_table.py FIGURES RESULTS.json    reads lines of JSON, prints the table
    python3 bench/cuda_table.py --peak                  measures the GPU's rate of bf16 products
"""
import json
import sys


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
            yield (line["case"], line["name"], figures["ms"], 1e9 * figures["gflops"],
                   figures["peak_bytes"])


def print_table(lines):
    peak = next((line["peak_flops"] for line in lines if "peak_flops" in line), 0)
    rows = list(rows_of(lines))
    # sluice counts the operations; PyTorch's step has as many.
    flop = {case: milliseconds * rate for case, _, milliseconds, rate, _ in rows if rate}
    print(f"Products of bf16 matrices of 8192 x 8192: {1e-12 * peak:.0f} TFLOP/s\n")
    print("| model and batch | program | ms a step | tokens/s | TFLOP/s | of the products' | peak GB |")
    print("|---|---|---|---|---|---|---|")
    for case, program, milliseconds, _, size in rows:
        batch, length = map(int, case.split("-layers-")[1].split("-x-"))
        rate = flop.get(case, 0) / milliseconds
        ratio = f"{rate / peak:.2f}" if peak else ""
        print(f"| {case.replace('-', ' ')} | {program} | {milliseconds:.2f} "
              f"| {1e3 * batch * length / milliseconds:.0f} | {1e-12 * rate:.1f} | {ratio} "
              f"| {1e-9 * size:.1f} |")


def main():
    if sys.argv[1:] == ["--peak"]:
        print(json.dumps({"peak_flops": measure_peak()}))
        return
    with open(sys.argv[1], encoding="utf-8") as file:
        lines = [json.loads(line) for line in file if line.strip()]
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(lines, file, indent=1)
    print_table(lines)


if __name__ == "__main__":
    main()
