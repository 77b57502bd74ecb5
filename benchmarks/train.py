"""Tokens per second and peak memory of training: ours against Hugging Face's model and a plain loop as nanoGPT has it, 124M, one run.

python benchmarks/train.py --save          every way, interleaved (a quarter of an hour on two cores), kept in results/
python benchmarks/train.py --batch 1 --length 256 --rounds 1 --ways ours "plain loop"
python benchmarks/train.py --save --precision float32 --batch 4 --length 256 --rounds 5 \\
    --ways "Hugging Face" "plain loop, fused" "plain loop, fused, compile" "ours, as it is"
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F
from common import add_rows, describe_machine, in_fresh_process, memory, seconds
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from gpt2_book.model import GPT, GPTConfig
from gpt2_book.speed import peak_flops, training_flops
from gpt2_book.training import TrainConfig, Trainer, autocast

RATE, WARMUP = 6e-4, 10
PEERS = ("Hugging Face", "plain loop", "plain loop, fused", "plain loop, fused, compile")
# ours holds so many rows of logits as --chunk says; the last is Trainer as it is
WAYS = (*PEERS, "ours, all logits", "ours", "ours, as it is")


class PlainAttention(nn.Module):
    """Attention as nanoGPT writes it: one product for queries, keys and values, then PyTorch's kernel."""

    attend = staticmethod(F.scaled_dot_product_attention)

    def __init__(self, C: int, heads: int):
        super().__init__()
        self.c_attn, self.c_proj, self.heads = nn.Linear(C, 3 * C), nn.Linear(C, C), heads

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = (z.view(B, T, self.heads, C // self.heads).transpose(1, 2) for z in self.c_attn(x).split(C, dim=2))
        y = self.attend(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=True)  # (B, H, T, D)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class PlainBlock(nn.Module):
    def __init__(self, C: int, heads: int):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(C), PlainAttention(C, heads), nn.LayerNorm(C)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(C, 4 * C), "gelu": nn.GELU(), "c_proj": nn.Linear(4 * C, C)})

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp["c_proj"](self.mlp["gelu"](self.mlp["c_fc"](self.ln_2(x))))


class PlainGPT(nn.Module):
    """nanoGPT's operations in nanoGPT's order: exact GELU, all logits at once, the head tied to the embedding."""

    def __init__(self, c: GPTConfig):
        super().__init__()
        blocks = nn.ModuleList(PlainBlock(c.n_embd, c.n_head) for _ in range(c.n_layer))
        parts = {"wte": nn.Embedding(c.vocab_size, c.n_embd), "wpe": nn.Embedding(c.block_size, c.n_embd)}
        self.transformer = nn.ModuleDict({**parts, "h": blocks, "ln_f": nn.LayerNorm(c.n_embd)})
        self.lm_head = nn.Linear(c.n_embd, c.vocab_size, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def hidden(self, idx: Tensor) -> Tensor:
        parts = self.transformer
        x = parts.wte(idx) + parts.wpe(torch.arange(idx.size(1), device=idx.device))
        for block in parts.h:
            x = block(x)
        return parts.ln_f(x)  # (B, T, C)

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:
        logits = self.lm_head(self.hidden(idx))  # (B, T, V)
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-100)


class HuggingFace(nn.Module):
    """GPT2LMHeadModel with the loss that it computes when it is given labels, which it shifts itself."""

    def __init__(self):
        super().__init__()
        self.model = GPT2LMHeadModel(GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False))

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:
        return self.model(input_ids=idx, labels=idx, shift_labels=targets).loss


class Batches:
    """The same batches for everyone, made beforehand: runs of words that repeat, so that there is something to learn."""

    def __init__(self, batch: int, length: int, device: str, number: int = 16):
        generator = torch.Generator().manual_seed(1)
        texts = (torch.rand(batch, length + 1, generator=generator).pow(8).mul(50257).long() for _ in range(number))
        pairs = [(ids[:, :-1].contiguous(), ids[:, 1:].contiguous()) for ids in texts]
        if device == "cuda":  # copied while the GPU computes
            pairs = [(inputs.pin_memory(), targets.pin_memory()) for inputs, targets in pairs]
        self.pairs, self.device = itertools.cycle(pairs), device

    def next_batch(self) -> tuple[Tensor, Tensor]:
        inputs, targets = next(self.pairs)
        return inputs.to(self.device, non_blocking=True), targets.to(self.device, non_blocking=True)


def same_weights(model: nn.Module, source: GPT) -> None:
    """Copy the source's weights by name; Hugging Face stores the blocks' matrices transposed."""
    given = dict(source.named_parameters())
    with torch.no_grad():
        for name, p in model.named_parameters():
            other = given.pop(name.removeprefix("model."))
            transposed = isinstance(model, HuggingFace) and p.ndim == 2 and ".h." in name
            p.copy_(other.T if transposed else other)
    assert not given, f"not copied: {list(given)}"


def usual_loop(
    model: nn.Module, batches: Batches, config: TrainConfig, device: str, *, fused: bool, compile: bool
) -> Iterator[float]:
    """Train as nanoGPT's loop and most others do: autocast, backward, clip, AdamW, zero_grad.

    nanoGPT asks for a fused AdamW on GPUs only, and advises against compiling on a CPU. ``fused`` gives it one
    everywhere, as Hugging Face's trainer does.
    """
    decay = [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": config.weight_decay},
             {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]  # fmt: skip
    optimizer = torch.optim.AdamW(decay, lr=config.learning_rate, betas=config.betas, fused=fused or device == "cuda")
    run, step = torch.compile(model) if compile else model, 0
    scaler = torch.amp.GradScaler(device, enabled=config.precision == "float16")
    while True:
        for group in optimizer.param_groups:
            group["lr"] = config.rate(step)
        inputs, targets = batches.next_batch()
        with autocast(torch.device(device), config.precision):
            loss = run(inputs, targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        yield loss.item()


def prepare(way: str, batch: int, length: int, chunk: int, precision: str, device: str) -> Iterator[float]:
    """Return a generator that makes one update each time it is asked, and gives its loss."""
    torch.manual_seed(0)
    source, batches = GPT(GPTConfig()), Batches(batch, length, device)
    options = {"steps": 1000, "learning_rate": RATE, "warmup_steps": WARMUP, "precision": precision}
    if way in WAYS[len(PEERS) :]:
        config = TrainConfig(**options, compile=way != "ours, as it is", chunk=chunk if way == "ours" else 0)
        return (record.loss for record in Trainer(source.to(device), batches, config))
    model = HuggingFace() if way == "Hugging Face" else PlainGPT(GPTConfig())
    same_weights(model, source)
    del source
    gc.collect()
    how = {"fused": way != "plain loop", "compile": "compile" in way}
    return usual_loop(model.to(device).train(), batches, TrainConfig(**options), device, **how)


def peak_memory(device: str) -> float:
    """Return the most memory so far in MB: of the GPU, or of this process."""
    return torch.cuda.max_memory_allocated() / 1e6 if device == "cuda" else memory("VmHWM")


def alone(way: str, batch: int, length: int, chunk: int, precision: str, steps: int, device: str) -> None:
    """Train in this process, which does nothing else, and print losses and peak memory as JSON."""
    run = prepare(way, batch, length, chunk, precision, device)
    print(json.dumps({"losses": [next(run) for _ in range(steps)], "peak": peak_memory(device)}))


def together(ways: list[str], args: argparse.Namespace, device: str) -> tuple[dict, float]:
    """Time one update of every way in turn, ``args.rounds`` times round, after two that compile and allocate.

    Returns the seconds of each way, and the best rate of a product on the way, the peak to compare with.
    """
    runs = {way: prepare(way, args.batch, args.length, args.chunk, args.precision, device) for way in ways}
    for _ in range(2):
        for run in runs.values():
            next(run)
    spent: dict[str, list[float]] = {way: [] for way in ways}
    peak = 0.0
    for _ in range(args.rounds):
        peak = max(peak, peak_flops(device, args.precision))
        for way, run in runs.items():
            spent[way].append(seconds(lambda run=run: next(run)))
    for way, took in spent.items():
        print(f"{way:26} {1e3 * min(took):8.1f} ms an update at best, {1e3 * statistics.median(took):8.1f} in the middle", flush=True)
    return spent, peak


def compare(ways: list[str], args: argparse.Namespace, device: str) -> list[dict]:
    """Measure speed side by side and memory in fresh processes; check that all curves are one."""
    n, rows = args.batch * args.length, []
    spent, peak = together(ways, args, device)
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    rest = ["--batch", str(args.batch), "--length", str(args.length), "--chunk", str(args.chunk),
            "--precision", args.precision]  # fmt: skip

    def run_alone(way: str) -> dict:
        return in_fresh_process(__file__, "--alone", way, "--steps", str(args.steps), *rest)

    with ThreadPoolExecutor(len(ways) if device == "cuda" else 1) as pool:  # a GPU counts each process's memory by itself
        lone = dict(zip(ways, pool.map(run_alone, ways)))
    fastest = min(min(spent[way]) for way in PEERS if way in ways) if set(PEERS) & set(ways) else float("nan")
    work = n * training_flops(GPT(GPTConfig()), args.length) / peak
    for way in ways:
        best, found = min(spent[way]), lone[way]
        gap = max(abs(a - b) for a, b in zip(found["losses"], lone[ways[0]]["losses"]))
        rows.append({"way": way, "precision": args.precision, "batch": args.batch, "length": args.length, "tokens_per_second": round(n / best, 1),
                     "median_tokens_per_second": round(n / statistics.median(spent[way]), 1),
                     "times_fastest_peer": round(fastest / best, 2), "mfu": round(work / best, 3),
                     "peak_mb": round(found["peak"]), "losses": [round(x, 4) for x in found["losses"]],
                     "largest_gap_of_losses": round(gap, 4)})  # fmt: skip
        print("{way:22} {tokens_per_second:9.1f} tokens/s  {times_fastest_peer:5.2f} x the fastest peer  MFU {mfu:.0%}  "
              "{peak_mb:6} MB  loss {last:.3f}, gap {largest_gap_of_losses:.4f}".format(last=found["losses"][-1], **rows[-1]),
              flush=True)  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--batch", type=int, default=None, help="sequences (2, on a GPU 32)")
    parser.add_argument("--length", type=int, default=1024, help="tokens of each (1024)")
    parser.add_argument("--precision", default="bfloat16", choices=["bfloat16", "float16", "float32"], help="of the forward pass")
    parser.add_argument("--chunk", type=int, default=None, help="rows of our cross-entropy (1024, on a GPU 16384)")
    parser.add_argument(
        "--rounds", type=int, default=None, help="updates timed, of which the best counts (3, on a GPU 20)"
    )
    parser.add_argument("--steps", type=int, default=5, help="updates of which the losses are compared (5)")
    parser.add_argument("--tolerance", type=float, default=0.02, help="largest difference of the losses (0.02)")
    parser.add_argument("--save", action="store_true", help="add the rows to results/train-MACHINE.json")
    parser.add_argument("--alone", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    defaults = (
        {"batch": 2, "chunk": 1024, "rounds": 3} if device == "cpu" else {"batch": 32, "chunk": 16384, "rounds": 20}
    )
    for name, value in defaults.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if args.alone:
        alone(args.alone, args.batch, args.length, args.chunk, args.precision, args.steps, device)
        return
    rows = compare(args.ways, args, device)
    worst = max(row["largest_gap_of_losses"] for row in rows)
    assert worst <= args.tolerance, f"the losses differ by {worst}, more than {args.tolerance}: not the same work"
    if args.save:
        machine = describe_machine("transformers") | {"threads": torch.get_num_threads()}
        print("kept in", add_rows("train", machine, rows, ("precision", "batch", "length", "way")))


if __name__ == "__main__":
    main()
