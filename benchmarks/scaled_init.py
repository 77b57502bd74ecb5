"""GPT-2's smaller c_proj, with and without: what the 1/√(2N) on what writes into the stream does to the loss of a deep, narrow GPT.

    python benchmarks/scaled_init.py --save                 everything; a run that is already stored is not repeated
    python benchmarks/scaled_init.py --save --budget 600    no run is begun after ten minutes
    python benchmarks/scaled_init.py --steps 20

The model is gpt2_book's GPT. A seed decides the weights and the order in which windows of the program's stories are read, each at most
once. The two models of a pair have one seed and one rate: they begin with the same random numbers, but that c_proj is √(2N) times
larger in one of them, and read the same windows. Widths other than 768 have the standard deviation that gives them GPT-2's gain.
Stories, tokens and order are those of benchmarks/switches.py. One thread, float32. Pairs, rates and seeds take turns; results are
written after every run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict

import torch
from common import RESULTS, keep_runs
from switches import HELD_OUT, VOCAB, batches, tokens
from torch import Tensor, nn

from gpt2_book import GPT, GPTConfig
from gpt2_book.initialization import init_gpt2_
from gpt2_book.optim import make_optimizer, set_learning_rate, warmup_cosine

CONFIG = GPTConfig(block_size=32, vocab_size=VOCAB, n_layer=12, n_head=4, n_embd=64)
STD = 0.02 * math.sqrt(768 / CONFIG.n_embd)  # GPT-2's at its own width
BATCH, STEPS, STORIES, SCORED = 16, 400, 6000, 2**16
INITS = ("scaled", "unscaled")
RATES, SEEDS = (1e-3, 4e-3, 16e-3), (0, 1, 2)
LONGER = 4  # times as many steps for the rate in the middle, in a second round
PARTS = 20  # of a run, for each of which the mean loss of training is kept


def make_model(init: str, seed: int) -> GPT:
    """Return a new model; without the scaling its c_proj is the same but √(2N) times as large."""
    torch.manual_seed(seed)
    model = init_gpt2_(GPT(CONFIG), n_layer=CONFIG.n_layer, std=STD)
    if init == "unscaled":
        with torch.no_grad():
            for name, p in model.named_parameters():
                if name.endswith("c_proj.weight"):
                    p.mul_(math.sqrt(2 * CONFIG.n_layer))
    return model


@torch.no_grad()
def stream_end(model: GPT, idx: Tensor) -> float:
    """Return the standard deviation of the residual stream after the last block."""
    parts = model.transformer
    x = parts.wte(idx) + parts.wpe(torch.arange(idx.size(1)))  # (B, T, C)
    for block in parts.h:
        x = block(x)
    return x.std().item()


@torch.no_grad()
def held_out_loss(model: GPT) -> float:
    """Return the mean loss over the held-out tokens, in nats."""
    (ids, _), T = tokens("held out", HELD_OUT), model.config.block_size
    x, y = ids[:SCORED].view(-1, T), ids[1 : SCORED + 1].view(-1, T)
    parts = [model(x[i : i + 128], y[i : i + 128])[1].item() * len(x[i : i + 128]) for i in range(0, len(x), 128)]
    return sum(parts) / len(x)


def plan(rows: list[dict], steps: int) -> Iterator[dict]:
    """Give the runs in order: both models of a pair one after the other, then the next rate, then the next seed; then longer runs."""
    for rates, n in ((RATES, steps), (RATES[1:2], LONGER * steps)):
        for seed in SEEDS:
            for rate in rates:
                for init in INITS:
                    yield {"init": init, "rate": rate, "seed": seed, "steps": n}


def run(job: dict) -> dict:
    """Train one model and return its row."""
    steps, rate, T = job["steps"], job["rate"], CONFIG.block_size
    model = make_model(job["init"], job["seed"])
    probe = tokens("held out", HELD_OUT)[0][: 64 * T].view(-1, T)
    optimizer, losses, norms, begins = make_optimizer(model, learning_rate=rate), [], [], stream_end(model, probe)
    for step, (x, y) in enumerate(batches(job["seed"], steps, BATCH, T, STORIES), start=1):
        loss = model(x, y)[1]
        model.zero_grad()
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        set_learning_rate(optimizer, warmup_cosine(step, peak=rate, warmup=steps / 10, end=steps))
        optimizer.step()
        losses.append(loss.item())
    size = max(1, steps // PARTS)
    course = [sum(losses[i : i + size]) / size for i in range(0, steps - size + 1, size)]
    return job | {
        "loss": held_out_loss(model), "course": course, "clipped": sum(n > 1 for n in norms) / steps,
        "stream": [begins, stream_end(model, probe)],
    }  # fmt: skip


def key(row: dict) -> tuple:
    return tuple(row[k] for k in ("init", "rate", "seed", "steps"))


def say(row: dict) -> str:
    return (f"{row['init']:8} rate {row['rate']:<6g} seed {row['seed']} {row['steps']:5} steps: {row['loss']:.4f} nats a token, "
            f"stream {row['stream'][0]:.2f} to {row['stream'][1]:.2f}")  # fmt: skip


def main() -> None:
    options = {"batch": BATCH, "stories": STORIES, "scored": SCORED, "std": STD, "config": asdict(CONFIG)}
    keep_runs("scaled-init", __doc__.splitlines()[0], RESULTS, options, plan, run, key, say, steps=STEPS)


if __name__ == "__main__":
    main()
