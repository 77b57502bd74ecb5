"""How fast each way to multiply a few rows reads the matrices of the smallest GPT-2, in float32 and bfloat16: one row with one thread and
with all, more rows with all.

    python benchmarks/products.py --save            all of it (two minutes on two cores), kept in results/

The ways are those of gpt2_book.workshop.kernels, and the packed matrices of gpt2_book.workshop.packed. For each shape as many random
matrices as a measurement there reads, one after the other, so that most come from memory. Ways and numbers of threads take turns, round
after round, so that what else the machine does strikes all of them alike. Each figure is the median of the rounds, with the quickest and
the slowest beside it. Bandwidth is sampled between the rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics

import torch
from common import RESULTS, Bandwidth, describe_machine, name_of, seconds, write_results

from gpt2_book import GPT, GPTConfig
from gpt2_book.workshop import kernels
from gpt2_book.workshop.packed import _PackedLinear

DTYPES = (torch.float32, torch.bfloat16)
ROWS = (1, 2, 4, 8, 16, 32, 64)


def ways(dtype: torch.dtype, layers: list[torch.nn.Linear], own: dict, rows: int) -> dict:
    """Return each way to multiply so many rows by all matrices, a function of the rows (rows, 1, C)."""

    def by(product):
        def multiply(x):
            for layer in layers:
                product(layer, x)

        return multiply

    named = {name: kernels._by(name, False) for name in kernels.products(dtype, compiled=False, rows=rows)}
    if rows <= kernels.MOST_ROWS:
        named["loop"] = kernels._by_compiled("loop", False)
    found = {way: by(product) for way, product in named.items()}
    if kernels.can_onednn(dtype):
        found["onednn"] = by(lambda layer, x: kernels.PRODUCTS["onednn"](x, layer.weight.detach()))
        found["packed"] = by(lambda layer, x: own[layer](x))
    return found


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="samples of each figure (15)")
    parser.add_argument("--save", action="store_true", help="write results/products-MACHINE.json")
    args = parser.parse_args()
    before, cores, rows = os.getloadavg()[0], os.cpu_count() or 1, []
    with torch.device("meta"):
        shapes = kernels.matrices_alike(m for m in GPT(GPTConfig()).modules() if type(m) is torch.nn.Linear)
    threads = sorted({1, cores})
    bandwidth = {n: Bandwidth("cpu", 2**28) for n in threads}
    for dtype in DTYPES:
        for (V, C), same in shapes.items():
            n_read = min(len(same), max(1, kernels.MOST_READ // (V * C * dtype.itemsize)))
            torch._dynamo.reset()  # or each call of the loop would look through all that was compiled before
            layers = [torch.nn.Linear(C, V, bias=False).to(dtype) for _ in range(n_read)]
            own = {layer: _PackedLinear(layer) for layer in layers} if kernels.can_onednn(dtype) else {}
            samples: dict = {}
            for n in threads:
                torch.set_num_threads(n)
                for R in ROWS if n == cores else (1,):
                    x = torch.ones(R, 1, C, dtype=dtype)
                    samples |= {(n, R, way): (multiply, x, []) for way, multiply in ways(dtype, layers, own, R).items()}
            for i in range(args.rounds + 1):
                for (n, _, _), (multiply, x, times) in samples.items():
                    torch.set_num_threads(n)
                    took = seconds(lambda multiply=multiply, x=x: multiply(x))
                    if i:  # the first run compiles and allocates
                        times.append(took)
                for n in threads:
                    torch.set_num_threads(n)
                    bandwidth[n].sample(4)
            for (n, R, way), (*_, times) in samples.items():
                rows.append({"dtype": str(dtype).removeprefix("torch."), "shape": [V, C], "of": len(same), "matrices": n_read,
                             "rows": R, "threads": n, "way": way,
                             "bytes": n_read * V * C * dtype.itemsize, "ms": round(1e3 * statistics.median(times), 3),
                             "quickest": round(1e3 * min(times), 3), "slowest": round(1e3 * max(times), 3)})  # fmt: skip
                print("{dtype:8} {rows:2} x {shape[0]:5} x {shape[1]:4}, {threads} thread(s), {way:7} {ms:8.2f} ms ({quickest:.2f} to {slowest:.2f}), "
                      .format(**rows[-1]) + f"{rows[-1]['bytes'] / rows[-1]['ms'] / 1e6:5.1f} GB/s", flush=True)  # fmt: skip
    machine = describe_machine() | {"load_before": round(before, 2), "load_after": round(os.getloadavg()[0], 2)}
    result = {"machine": machine, "bandwidth_gb_per_s": {str(n): round(read.best / 1e9, 1) for n, read in bandwidth.items()}, "rows": rows}
    print(result["bandwidth_gb_per_s"])
    if args.save:
        write_results(RESULTS / f"products-{name_of(machine)}.json", result)


if __name__ == "__main__":
    main()
