"""Which learning rate is best at which width: one std and one rate for all widths, stds by the width, and μP, which scales both.

    python benchmarks/widths.py --save                 everything; a run that is already stored is not repeated
    python benchmarks/widths.py --save --budget 600    no run is begun after ten minutes
    python benchmarks/widths.py --steps 20

The model is gpt2_book's GPT with two blocks and heads 16 wide. At the base width, 64, the three ways are one and the same model, with the
standard deviation that gives it GPT-2's gain. Adam without decay, warm-up and a cosine. Stories, tokens and order are those of
benchmarks/switches.py. A seed decides the weights and the order in which windows are read, each at most once. One thread, float32. Ways,
widths, rates and seeds take turns; results are written after every run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from common import RESULTS, keep_runs
from scaled_init import held_out_loss
from switches import VOCAB, batches

from gpt2_book import GPT, GPTConfig
from gpt2_book.initialization import init_gpt2_
from gpt2_book.mup import init_mup_, mup_groups
from gpt2_book.optim import warmup_cosine

BASE, HEAD, LAYERS, T = 64, 16, 2, 32
STD = 0.02 * math.sqrt(768 / BASE)  # GPT-2's gain at the base width
BATCH, STEPS, STORIES = 16, 300, 6000
WAYS = ("one std", "std by width", "mup")
WIDTHS, SEEDS = (64, 128, 256, 512), (0, 1)
RATES = tuple(2.0**k for k in range(-11, -4))


def make(way: str, width: int, rate: float, seed: int) -> tuple[GPT, torch.optim.Adam]:
    """Return a new model and its optimizer."""
    torch.manual_seed(seed)
    model = GPT(GPTConfig(block_size=T, vocab_size=VOCAB, n_layer=LAYERS, n_head=width // HEAD, n_embd=width, tie_weights=False))
    if way == "mup":
        init_mup_(model, base_width=BASE, std=STD)
        groups = mup_groups(model, base_width=BASE, learning_rate=rate)
    else:
        init_gpt2_(model, n_layer=LAYERS, std=STD)
        if way == "std by width":
            with torch.no_grad():
                for p in (model.lm_head.weight, *(p for p in model.transformer.h.parameters() if p.dim() == 2)):
                    p.mul_(math.sqrt(BASE / width))
        groups = [{"params": [*model.parameters()], "lr": rate}]
    return model, torch.optim.Adam(groups, betas=(0.9, 0.95), fused=True)


def plan(rows: list[dict], steps: int) -> Iterator[dict]:
    """Give the runs in order. At the base width the ways are the same, so there is one."""
    for seed in SEEDS:
        for rate in RATES:
            for width in WIDTHS:
                for way in WAYS if width > BASE else WAYS[-1:]:
                    yield {"way": way, "width": width, "rate": rate, "seed": seed, "steps": steps}


def run(job: dict) -> dict:
    """Train one model and return its row."""
    steps = job["steps"]
    model, optimizer = make(job["way"], job["width"], job["rate"], job["seed"])
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: warmup_cosine(done + 1, peak=1.0, warmup=steps / 10, end=steps))
    for x, y in batches(job["seed"], steps, BATCH, T, STORIES):
        loss = model(x, y)[1]
        model.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return job | {"loss": held_out_loss(model), "parameters": sum(p.numel() for p in model.parameters())}


def key(row: dict) -> tuple:
    return tuple(row[k] for k in ("way", "width", "rate", "seed", "steps"))


def say(row: dict) -> str:
    return "{way:12} width {width:3} rate {rate:.6f} seed {seed}: {loss:.4f} nats a token".format(**row)


def main() -> None:
    options = {"base": BASE, "head": HEAD, "layers": LAYERS, "context": T, "vocab": VOCAB, "std": STD, "batch": BATCH, "stories": STORIES}
    keep_runs("widths", __doc__.splitlines()[0], RESULTS, options, plan, run, key, say, steps=STEPS)


if __name__ == "__main__":
    main()
