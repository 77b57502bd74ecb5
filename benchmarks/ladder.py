"""Milliseconds of a training step, one remedy after another: from float32 by hand to everything that the chapter on speed has, 124M.

    python benchmarks/ladder.py --save              every rung, interleaved (some minutes on a GPU), kept in results/
    python benchmarks/ladder.py --batch 1 --length 64 --rounds 1 --steps 1    to see that it runs, also on a CPU

Each rung keeps what the rungs before it have. All train the same weights on the same batches, and their losses are compared.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from common import add_rows, describe_machine, memory, seconds
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from train import RATE, Batches, PlainGPT

from gpt2_book.model import GPT, GPTConfig
from gpt2_book.optim import decay_groups
from gpt2_book.speed import chunked_cross_entropy, peak_flops, training_flops


@dataclass(frozen=True)
class Rung:
    """What a step of training uses."""

    name: str
    tf32: bool = False
    bfloat16: bool = False
    flash: bool = False
    fused: bool = False
    compile: bool = False
    padded: bool = False
    chunk: int = 0  # rows of the loss, all at once with 0


def rungs(chunk: int) -> list[Rung]:
    """Return the ladder: each rung is the one before it with one thing more."""
    ladder = [Rung("float32, by hand")]
    remedies = {"TF32": "tf32", "bfloat16": "bfloat16", "flash attention": "flash", "fused optimizer": "fused",
                "compiled": "compile", "padded vocabulary": "padded"}  # fmt: skip
    for name, switch in remedies.items():
        ladder.append(replace(ladder[-1], name=name, **{switch: True}))
    return [*ladder, replace(ladder[-1], name="loss in chunks", chunk=chunk)]


def by_hand(q: Tensor, k: Tensor, v: Tensor, attn_mask=None, dropout_p: float = 0.0, is_causal: bool = True) -> Tensor:
    """Causal attention with all scores in memory; (B, H, T, D) to (B, H, T, D)."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))  # (B, H, T, T)
    allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    return scores.masked_fill(~allowed, -torch.inf).softmax(-1).to(v.dtype) @ v


class ChunkedGPT(PlainGPT):
    """PlainGPT, whose loss may see some rows at a time."""

    chunk = 0

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:
        if not self.chunk:
            return super().forward(idx, targets)
        return chunked_cross_entropy(self.hidden(idx), self.lm_head.weight, targets, chunk=self.chunk, compile=True)


def build(rung: Rung, device: str, shape: GPTConfig) -> ChunkedGPT:
    """Return a rung's model, with the same weights for all: rows that pad the vocabulary are zeros."""
    torch.manual_seed(0)
    source = GPT(shape)
    model = ChunkedGPT(replace(shape, vocab_size=64 * math.ceil(shape.vocab_size / 64)) if rung.padded else shape)
    model.chunk = rung.chunk
    with torch.no_grad():
        for name, p in model.named_parameters():
            given = source.get_parameter(name)
            p.zero_()[: len(given)].copy_(given)
    for block in model.transformer.h if not rung.flash else ():
        block.attn.attend = by_hand
    return model.to(device).train()


@contextmanager
def products(tf32: bool) -> Iterator[None]:
    """Let products of float32 round their inputs to TF32, or not, as long as this lasts."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def training(rung: Rung, batches: Batches, device: str, shape: GPTConfig) -> Iterator[float]:
    """Yield the loss of one update after another."""
    model = build(rung, device, shape)
    how = {"fused": True} if rung.fused else {"foreach": False, "fused": False}
    optimizer = torch.optim.AdamW(decay_groups(model, weight_decay=0.1), lr=RATE, betas=(0.9, 0.95), **how)
    run = torch.compile(model) if rung.compile else model
    while True:
        with products(rung.tf32):
            inputs, targets = batches.next_batch()
            with torch.autocast(device, dtype=torch.bfloat16, enabled=rung.bfloat16):
                loss = run(inputs, targets)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        yield loss.item()


def busy(run: Iterator[float]) -> dict:
    """Return how many kernels one update launches, and the milliseconds in which a GPU runs them."""
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities) as seen:
        next(run)
        torch.cuda.synchronize()
    on_gpu = [event for event in seen.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    kernels = [event for event in on_gpu if not event.is_user_annotation]
    return {"kernels": len(kernels), "kernel_ms": round(sum(event.time_range.elapsed_us() for event in kernels) / 1e3, 2)}


def compare(ladder: list[Rung], args: argparse.Namespace, device: str) -> list[dict]:
    """Time some updates of every rung in turn, ``args.rounds`` times round, after two that compile and allocate."""
    runs, losses, peaks, seen = {}, {}, {}, {}
    for rung in ladder:
        before = torch.cuda.memory_allocated() if device == "cuda" else 0
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        run = runs[rung.name] = training(rung, Batches(args.batch, args.length, device), device, GPTConfig())
        losses[rung.name] = [next(run) for _ in range(3)]
        peaks[rung.name] = (torch.cuda.max_memory_allocated() - before) / 1e6 if device == "cuda" else memory("VmHWM")
        seen[rung.name] = busy(run) if device == "cuda" else {}
        gc.collect()
        print(f"{rung.name}: ready", flush=True)
    spent: dict[str, list[float]] = {name: [] for name in runs}
    peak = 0.0
    for _ in range(args.rounds):
        peak = max(peak, peak_flops(device, "bfloat16"))
        for name, run in runs.items():
            next(run)
            spent[name].append(seconds(lambda run=run: [next(run) for _ in range(args.steps)]) / args.steps)
    work = args.batch * args.length * training_flops(GPT(GPTConfig()), args.length)
    rows = []
    for rung in ladder:
        best, name = min(spent[rung.name]), rung.name
        gap = max(abs(a - b) for a, b in zip(losses[name], losses[ladder[0].name]))
        row = {"way": name, "batch": args.batch, "length": args.length, "chunk": rung.chunk, "ms": round(1e3 * best, 2),
               "median_ms": round(1e3 * statistics.median(spent[name]), 2), "mfu": round(work / best / peak, 3),
               "peak_mb": round(peaks[name]), "largest_gap_of_losses": round(gap, 4), **seen[name]}  # fmt: skip
        rows.append(row)
        print("{way:20} {ms:9.2f} ms  MFU {mfu:5.1%}  {peak_mb:6} MB  gap {largest_gap_of_losses:.4f}".format(**row), seen[name], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=16, help="sequences (16)")
    parser.add_argument("--length", type=int, default=1024, help="tokens of each (1024)")
    parser.add_argument("--chunk", type=int, default=4096, help="rows of the last rung's loss (4096)")
    parser.add_argument("--rounds", type=int, default=4, help="times round, of which the best counts (4)")
    parser.add_argument("--steps", type=int, default=5, help="updates timed together (5)")
    parser.add_argument("--tolerance", type=float, default=0.02, help="largest difference of the losses (0.02)")
    parser.add_argument("--save", action="store_true", help="add the rows to results/ladder-MACHINE.json")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = compare(rungs(args.chunk), args, device)
    worst = max(row["largest_gap_of_losses"] for row in rows)
    assert worst <= args.tolerance, f"the losses differ by {worst}, more than {args.tolerance}: not the same work"
    if args.save:
        machine = describe_machine() | {"threads": torch.get_num_threads()}
        print("kept in", add_rows("ladder", machine, rows, ("batch", "length", "way")))


if __name__ == "__main__":
    main()
