"""Where the time of a training step goes, by PyTorch's profiler: products, attention, the loss, the optimizer and the rest, 124M.

    python benchmarks/parts.py --save              a few minutes on two cores, kept in results/
"""

from __future__ import annotations

import argparse
import re

import torch
from common import add_rows, describe_machine
from torch.profiler import ProfilerActivity, profile
from train import prepare

# the first pattern that is found in an operation's name decides; what they call is counted with them only where it is named
PARTS = {
    "attention": "attention",
    "products": r"(^|::)(mm|bmm|addmm|_mkl_linear|_linear_pointwise)$",
    "optimizer": "adam|norm_|_foreach",
    "loss": "log_softmax|nll_loss|cross_entropy",
    "embedding": "embedding|index",
    "norm, GELU, sums, copies": ".",
}


def part_of(name: str) -> str:
    """Return which part an operation belongs to; what the compiler has written says in its name what it fuses."""
    return next(part for part, pattern in PARTS.items() if re.search(pattern, name, re.IGNORECASE))


def measure(way: str, batch: int, length: int) -> dict:
    """Profile one step after two that compile and allocate; return the seconds of each part on the CPU that leads."""
    run = prepare(way, batch, length, 1024, "bfloat16", "cpu")
    for _ in range(2):
        next(run)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        next(run)
    spent = dict.fromkeys(PARTS, 0.0)
    for event in seen.key_averages():
        spent[part_of(event.key)] += event.self_cpu_time_total / 1e6
    return {"way": way, "batch": batch, "length": length, "seconds": {part: round(s, 3) for part, s in spent.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", default=["4x256", "2x1024"], help="batch and length")
    parser.add_argument("--save", action="store_true", help="keep the rows in results/parts-MACHINE.json")
    args = parser.parse_args()
    rows = []
    for shape in args.shapes:
        for way in ("plain loop, fused", "ours"):
            rows.append(measure(way, *map(int, shape.split("x"))))
            total = sum(rows[-1]["seconds"].values())
            said = ", ".join(f"{part} {s / total:.0%}" for part, s in rows[-1]["seconds"].items())
            print(f"{way} at {shape}, {total:.2f} s: {said}", flush=True)
    if args.save:
        machine = describe_machine() | {"threads": torch.get_num_threads()}
        print("kept in", add_rows("parts", machine, rows, ("way", "batch", "length")))


if __name__ == "__main__":
    main()
