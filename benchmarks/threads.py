"""Time per generated token with one thread and with two, on an idle machine and with one core taken; small models and a large one.

    python benchmarks/threads.py --save            all of it (some five minutes on two cores), kept in results/

Everything that is compared is sampled in turns, round after round, so that what else the machine does strikes all of it alike.
Each figure is the median of the rounds, with the quickest and the slowest beside it: how noisy it was.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from contextlib import contextmanager

import torch
from common import RESULTS, describe_machine, name_of, seconds, write_results

from gpt2_book.model import GPT, GPTConfig
from gpt2_book.workshop import reading

SHAPES = {
    "embedded": {"n_layer": 6, "n_head": 3, "n_embd": 192, "vocab_size": 1024, "block_size": 256},
    "medium": {"n_layer": 6, "n_head": 6, "n_embd": 384, "vocab_size": 8192, "block_size": 256},
    "gpt2": {"block_size": 256},
}


@contextmanager
def taken(cores: int):
    """So many programs that do nothing else but compute."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def per_token(model: GPT, rows: int, threads: int | None, n: int) -> float:
    """Time a token; ``threads`` None leaves the choice to the model."""
    idx, small = torch.zeros(rows, 8, dtype=torch.long), reading.SMALL
    torch.set_num_threads(threads or os.cpu_count() or 1)
    reading.SMALL = small if threads is None else 0
    try:
        return seconds(lambda: model.generate(idx, n, temperature=0)) / n
    finally:
        reading.SMALL = small


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=24, help="tokens of one sample (24)")
    parser.add_argument("--rounds", type=int, default=7, help="samples of each figure (7)")
    parser.add_argument("--save", action="store_true", help="write results/threads-MACHINE.json")
    args = parser.parse_args()
    before, rows = os.getloadavg()[0], []
    torch.manual_seed(0)
    for name, shape in SHAPES.items():
        model = GPT(GPTConfig(**shape)).eval()
        numbers = sum(p.numel() for p in model.parameters())
        for batch in (1, 8) if name == "embedded" else (1,):
            cases = [(cores, threads) for cores in (0, 1) for threads in (1, os.cpu_count(), None)]
            samples: dict = {case: [] for case in cases}
            for _ in range(args.rounds):
                for cores in (0, 1):
                    with taken(cores):
                        for case in (case for case in cases if case[0] == cores):
                            samples[case].append(1e3 * per_token(model, batch, case[1], args.tokens))
            for (cores, threads), times in samples.items():
                rows.append({"model": name, "numbers": numbers, "batch": batch, "cores_taken": cores,
                             "threads": threads or "chosen by the model",
                             "ms_per_token": round(statistics.median(times), 2),
                             "quickest": round(min(times), 2), "slowest": round(max(times), 2)})  # fmt: skip
                print("{model:9} batch {batch}, {cores_taken} core(s) taken, threads {threads!s:20} {ms_per_token:8.2f} ms "
                      "({quickest:.2f} to {slowest:.2f})".format(**rows[-1]), flush=True)  # fmt: skip
    if args.save:
        machine = describe_machine() | {"load_before": round(before, 2), "load_after": round(os.getloadavg()[0], 2)}
        write_results(RESULTS / f"threads-{name_of(machine)}.json", {"machine": machine, "rows": rows})


if __name__ == "__main__":
    main()
