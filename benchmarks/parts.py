"""Where the time of a training step goes, by PyTorch's profiler: products, attention, the loss, the optimizer and the rest, 124M.

    python benchmarks/parts.py --save              a few minutes on two cores or a GPU, kept in results/
"""

from __future__ import annotations

import argparse
import re

import torch
from common import add_rows, describe_machine
from torch.profiler import ProfilerActivity, profile
from train import prepare

# the first pattern that is found in an operation's name decides; what they call is counted with them only where it is named
OPERATIONS = {
    "attention": "attention",
    "products": r"(^|::)(mm|bmm|addmm|_mkl_linear|_linear_pointwise)$",
    "optimizer": "adam|norm_|_foreach",
    "loss": "log_softmax|nll_loss|cross_entropy",
    "embedding": "embedding|index",
    "norm, GELU, sums, copies": ".",
}
# the same for what a GPU runs: kernels of libraries, and those that the compiler has named by what they fuse
KERNELS = OPERATIONS | {
    "attention": "attention|sdpa|flash|fmha|dot_do_o|convert_dq",
    "products": "nvjet|gemm|cutlass|splitk",
    "optimizer": "multi_tensor_apply",
    "loss": "log_?softmax|nll_loss|cross_entropy|logsumexp|expm1",
}
SHAPES = {"cpu": ["4x256", "2x1024"], "cuda": ["32x1024"]}
WAYS = {"cpu": ["plain loop, fused", "ours"], "cuda": ["plain loop, fused", "plain loop, fused, compile", "ours, all logits"]}


def part_of(name: str, patterns: dict[str, str]) -> str:
    """Return which part an operation belongs to; what the compiler has written says in its name what it fuses."""
    return next(part for part, pattern in patterns.items() if re.search(pattern, name, re.IGNORECASE))


def measure(way: str, batch: int, length: int, device: str) -> dict:
    """Profile one step after two that compile and allocate; return the seconds of each part, on the CPU that leads or of the
    kernels of a GPU."""
    run = prepare(way, batch, length, 1024, "bfloat16", device)
    for _ in range(2):
        next(run)
    with profile(activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * (device == "cuda")]) as seen:
        next(run)
    if device == "cuda":
        kernels = [event for event in seen.events() if event.device_type == torch.autograd.DeviceType.CUDA]
        took = [(event.name, event.time_range.elapsed_us()) for event in kernels if not event.is_user_annotation]
    else:
        took = [(event.key, event.self_cpu_time_total) for event in seen.key_averages()]
    patterns = KERNELS if device == "cuda" else OPERATIONS
    spent = dict.fromkeys(patterns, 0.0)
    for name, microseconds in took:
        spent[part_of(name, patterns)] += microseconds / 1e6
    return {"way": way, "batch": batch, "length": length, "seconds": {part: round(s, 5) for part, s in spent.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", default=None, help="batch and length (4x256 2x1024, on a GPU 32x1024)")
    parser.add_argument("--save", action="store_true", help="keep the rows in results/parts-MACHINE.json")
    args = parser.parse_args()
    device, rows = "cuda" if torch.cuda.is_available() else "cpu", []
    for shape in args.shapes or SHAPES[device]:
        for way in WAYS[device]:
            rows.append(measure(way, *map(int, shape.split("x")), device))
            total = sum(rows[-1]["seconds"].values())
            said = ", ".join(f"{part} {s / total:.0%}" for part, s in rows[-1]["seconds"].items())
            print(f"{way} at {shape}, {total:.3f} s: {said}", flush=True)
    if args.save:
        machine = describe_machine() | {"threads": torch.get_num_threads()}
        print("kept in", add_rows("parts", machine, rows, ("way", "batch", "length")))


if __name__ == "__main__":
    main()
