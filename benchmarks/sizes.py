"""Loss against compute: Llamas of several sizes, each trained once for every budget of floating-point operations.

    python benchmarks/sizes.py --save                 everything; a run that is already stored is not repeated
    python benchmarks/sizes.py --save --budget 600    no run is begun after ten minutes

A run is one of benchmarks/switches.py, whose models, stories, tokens and held-out score these are: a seed decides the weights and the
order in which windows of the program's stories are read, each at most once. It takes as many steps as its budget pays for, and its rate
falls to a tenth within just these, so every point is a run of its own. All sizes have one rate: the best of four in the mean over the
sizes, at the second budget and with a seed of its own. One thread, float32. Results are written after every run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict

from common import RESULTS, keep_runs
from switches import (
    BATCH,
    HELD_OUT,
    LENGTH,
    LLAMA,
    SCORED,
    Shape,
    parameters,
    position_losses,
    tokens,
    train,
    training_flops,
)

from gpt2_book.workshop.stories import tell_story

SIZES = ((2, 24, 2), (2, 32, 2), (3, 48, 4), (4, 64, 4), (5, 96, 4))  # layers, width, heads
BUDGETS = (2e11, 4e11, 8e11, 1.6e12)  # floating-point operations of a run
RATES = (4e-3, 8e-3, 16e-3, 32e-3)
SEEDS, TUNING_SEED, STORIES = (0, 1, 2), 100, 16_000


def shape(size: tuple[int, int, int]) -> Shape:
    """Return a small Llama with a key head for every two heads."""
    L, C, H = size
    return Shape(**LLAMA | {"n_layer": L, "n_embd": C, "n_head": H, "n_kv_head": H // 2, "n_hidden": round(8 * C / 3)})


def plan(rows: list[dict], steps: None = None) -> Iterator[dict]:
    """Give the runs in order: every rate with every size first, then every size at every budget, seed after seed."""

    def one(experiment: str, size: tuple[int, int, int], budget: float, seed: int, rate: float) -> dict:
        steps = round(budget / training_flops(shape(size)) / (BATCH * LENGTH))
        return {"experiment": experiment, "size": list(size), "budget": budget, "seed": seed, "rate": rate, "steps": steps}

    for size in SIZES:
        for rate in RATES:
            yield one("rates", size, BUDGETS[1], TUNING_SEED, rate)
    tried = [r for r in rows if r["experiment"] == "rates"]
    best = min(RATES, key=lambda rate: sum(r["loss"] for r in tried if r["rate"] == rate))
    for seed in SEEDS:
        for budget in BUDGETS:
            for size in reversed(SIZES):  # the quickest first
                yield one("sizes", size, budget, seed, best)


def key(row: dict) -> tuple:
    return tuple(str(row[k]) for k in ("experiment", "size", "budget", "seed", "rate", "steps"))


def run(job: dict) -> dict:
    """Do one run and return its row."""
    s = shape(tuple(job["size"]))
    model = train(s, **{k: job[k] for k in ("seed", "steps", "rate")}, stories=STORIES)
    read = job["steps"] * BATCH * s.block_size
    return job | {
        "parameters": parameters(s), "tokens": read, "flops": training_flops(s) * read,
        "loss": position_losses(model, s.block_size).mean().item(),
    }  # fmt: skip


def entropy() -> float:
    """Return the information of the held-out stories in nats per token: no model that reads whole stories can have a lower loss."""
    ids, _ = tokens("held out", HELD_OUT)
    return sum(tell_story(i, split="held out").bits for i in range(HELD_OUT)) * math.log(2) / len(ids)


def say(row: dict) -> str:
    return (f"{row['experiment']:6} {row['size']!s:12} {row['budget']:.1e} operations, seed {row['seed']:3}, rate {row['rate']:<6g} "
            f"{row['steps']:6} steps: {row['loss']:.4f} nats a token")  # fmt: skip


def main() -> None:
    options = {"batch": BATCH, "stories": STORIES, "scored": SCORED, "shape": asdict(Shape(**LLAMA))}
    keep_runs("sizes", __doc__.splitlines()[0], RESULTS, options, plan, run, key, say, more={"entropy": entropy()})


if __name__ == "__main__":
    main()
