"""What each of four causes alone does to the time of a product: cores, instructions, the order of a matrix in memory, and calls.

    python benchmarks/causes.py --save              all of it (two minutes on two cores), kept in results/

In each pair one thing is changed and all else stays: the library (oneDNN), the numbers, the shape, the order, the threads. Both take turns,
round after round. Instructions can be held back only before a process starts, so there each round is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable

import torch
from common import RESULTS, describe_machine, in_fresh_process, name_of, seconds, write_results

from gpt2_book.workshop import kernels
from gpt2_book.workshop.packed import _PackedLinear

V, C, N = 3072, 768, 7  # seven such matrices in float32 are as many as a cache seldom holds
HOLD, LESS = "ONEDNN_MAX_CPU_ISA", {"AVX512": "AVX2", "AVX2": "SSE41"}


def product(rows: int, layers: list | None = None) -> Callable[[], None]:
    """Return a function that multiplies so many rows by all matrices with oneDNN."""
    layers = layers or [torch.nn.Linear(C, V, bias=False) for _ in range(N)]
    x = torch.ones(rows, layers[0].in_features)
    return lambda: [kernels.PRODUCTS["onednn"](x, layer.weight) for layer in layers]


def in_turns(first: Callable[[], float], second: Callable[[], float], rounds: int) -> list[list[float]]:
    """Return the times of two ways in ms, without the first round."""
    times = [[1e3 * way() for way in (first, second)] for _ in range(rounds + 1)]
    return [list(column) for column in zip(*times[1:])]


def by_cores(rounds: int) -> tuple[str, list[str], list[list[float]]]:
    work, most = product(1), os.cpu_count() or 1

    def with_threads(n: int) -> float:
        torch.set_num_threads(n)
        return seconds(work)

    times = in_turns(lambda: with_threads(1), lambda: with_threads(most), rounds)
    return "1 row, float32", ["1 thread", f"{most} threads"], times


def by_instructions(rounds: int) -> tuple[str, list[str], list[list[float]]]:
    less = LESS[torch.backends.cpu.get_cpu_capability()]

    def held(to: str) -> float:
        return in_fresh_process(__file__, "--child", environment={HOLD: to})["seconds"]

    return "64 rows, float32", [f"held to {less}", "all"], in_turns(lambda: held(less), lambda: held("DEFAULT"), max(1, rounds // 3))


def child() -> None:
    work = product(64)
    print(json.dumps({"seconds": statistics.median([seconds(work) for _ in range(10)][3:])}))


def by_order(rounds: int) -> tuple[str, list[str], list[list[float]]]:
    layers = [torch.nn.Linear(C, V, bias=False) for _ in range(N)]
    x, packed, by_rows = torch.ones(8, C), [_PackedLinear(layer) for layer in layers], product(8, layers=layers)
    times = in_turns(lambda: seconds(by_rows), lambda: seconds(lambda: [own(x) for own in packed]), rounds)
    return "8 rows, float32", ["by rows", "oneDNN's own"], times


def by_calls(rounds: int) -> tuple[str, list[str], list[list[float]]]:
    whole = torch.nn.Linear(64, V, bias=False)
    parts = [torch.nn.Linear(64, 64, bias=False) for _ in range(V // 64)]
    many, one = product(1, layers=parts), product(1, layers=[whole])
    times = in_turns(lambda: seconds(many), lambda: seconds(one), 20 * rounds)
    return f"1 row, float32, {V * 64 * 4 // 1000} kB", [f"{len(parts)} matrices", "one matrix"], times


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="samples of each figure (15)")
    parser.add_argument("--save", action="store_true", help="write results/causes-MACHINE.json")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child()
    if torch.backends.cpu.get_cpu_capability() not in LESS or not kernels.can_onednn(torch.float32):
        parser.error("needs an x86 CPU with AVX2 and a PyTorch with oneDNN")
    before, rows = os.getloadavg()[0], []
    for cause in (by_cores, by_instructions, by_order, by_calls):
        same, names, times = cause(args.rounds)
        rows.append({"cause": cause.__name__.removeprefix("by_"), "same": same, "ways": names,
                     "ms": [round(statistics.median(each), 4) for each in times],
                     "quickest": [round(min(each), 4) for each in times], "slowest": [round(max(each), 4) for each in times]})  # fmt: skip
        print(rows[-1], flush=True)
    machine = describe_machine() | {"load_before": round(before, 2), "load_after": round(os.getloadavg()[0], 2)}
    if args.save:
        write_results(RESULTS / f"causes-{name_of(machine)}.json", {"machine": machine, "rows": rows})


if __name__ == "__main__":
    main()
