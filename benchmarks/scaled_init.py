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

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict

import torch
from common import RESULTS, describe_machine, name_of
from switches import HELD_OUT, VOCAB, batches, tokens, write_whole
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


def plan(steps: int) -> Iterator[dict]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", action="store_true", help="keep the results in results/, and go on from those that are there")
    parser.add_argument("--steps", type=int, default=STEPS, help="of each run")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds after which no run is begun")
    args = parser.parse_args()

    torch.set_num_threads(1)
    start, machine = time.monotonic(), describe_machine("gpt2_book")
    path = RESULTS / f"scaled-init-{name_of(machine)}.json"
    options = {"batch": BATCH, "stories": STORIES, "scored": SCORED, "std": STD, "config": asdict(CONFIG)}
    store = {"machine": machine, "options": options, "rows": []}
    if args.save and path.exists():
        old = json.loads(path.read_text(encoding="utf8"))
        if old["options"] != options or old["machine"] | {"date": None} != machine | {"date": None}:
            parser.error(f"{path} holds runs of another machine, other versions or other options: move it away to begin anew")
        store = old
    done = {key(row) for row in store["rows"]}
    for job in plan(args.steps):
        if key(job) in done:
            continue
        if time.monotonic() - start > args.budget:
            print("the budget is spent; run again to go on")
            break
        begun = time.monotonic()
        store["rows"].append(run(job))
        if args.save:
            write_whole(path, store)
        last = store["rows"][-1]
        print(f"{last['init']:8} rate {last['rate']:<6g} seed {last['seed']} {last['steps']:5} steps: {last['loss']:.4f} nats a token, "
              f"stream {last['stream'][0]:.2f} to {last['stream'][1]:.2f}, {time.monotonic() - begun:.1f} s", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
