"""Train the model that the package carries, from Tiny Shakespeare, and write it to `gpt2_book/assets/shakespeare`.

    python tools/train_embedded.py [--out FOLDER] [--run FOLDER] [--steps N] [--seed N] [--device DEVICE]

The last tenth of the text is held out. The text is small enough to be learned by heart, so dropout is high and every
epoch cuts the text at other places. The run keeps its checkpoints and its log in `--run`; a run that was stopped goes on
from there. Beside the weights and the vocabulary, `training.json` keeps the settings, the loss curve, a sample and the bits
per byte on the held-out text, and the last three of the model that it replaces as well.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from gpt2_book import GPT, GPTConfig
from gpt2_book.data import SequentialLoader, ShuffledLoader, split_text
from gpt2_book.evaluation import evaluate_text
from gpt2_book.tokenizer import Tokenizer
from gpt2_book.training import TrainConfig, Trainer, evaluate
from gpt2_book.workshop.checkpoints import set_seed
from gpt2_book.workshop.corpora import tiny_shakespeare
from gpt2_book.workshop.runs import RunConfig, fit, read_log
from gpt2_book.workshop.tokenizer_files import load_tokenizer

ROOT = Path(__file__).resolve().parent.parent


class ShiftedLoader(ShuffledLoader):
    """A shuffled loader that starts cutting the text at another offset in every epoch."""

    def __init__(self, tokens: torch.Tensor, batch_size: int, block_size: int, *, seed: int, device: str):
        self.whole = tokens
        super().__init__(tokens[: len(tokens) - block_size], batch_size, block_size, seed=seed, device=device)

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        epoch = self.epoch + (self.step == len(self))
        offset = np.random.RandomState([self.seed, epoch, 1]).randint(self.block_size)
        self.tokens = self.whole[offset : offset + self.n_tokens].numpy()
        return super().next_batch()


def quality(model: GPT, tokenizer: Tokenizer, text: str) -> dict:
    """Score a text in windows that overlap by half, and write on from a fixed beginning with a fixed seed."""
    sampling = {"prompt": "ROMEO:\n", "temperature": 0.8, "seed": 0}
    start = torch.tensor([tokenizer.encode(sampling["prompt"])])
    drawn = torch.Generator().manual_seed(sampling["seed"])
    ids = model.generate(start, 120, temperature=sampling["temperature"], generator=drawn)[0].tolist()
    score = evaluate_text(model, tokenizer, text, stride=model.config.block_size // 2)
    return {"bits_per_byte": score.bits_per_byte, "parameters": sum(p.numel() for p in model.parameters()),
            "sampling": sampling, "sample": tokenizer.decode(ids)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "gpt2_book" / "assets" / "shakespeare")
    parser.add_argument("--run", type=Path, default=ROOT / "_build" / "train_embedded")
    parser.add_argument("--vocab-size", type=int, default=1024)
    parser.add_argument("--n-layer", type=int, default=6)
    parser.add_argument("--n-head", type=int, default=3)
    parser.add_argument("--n-embd", type=int, default=192)
    parser.add_argument("--block-size", type=int, default=256)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    train_text, val_text = split_text(tiny_shakespeare())
    tokenizer = Tokenizer.train(train_text, args.vocab_size)
    train_tokens, val_tokens = (torch.tensor(tokenizer.encode(text)) for text in (train_text, val_text))
    bytes_per_token = len(val_text.encode()) / len(val_tokens)
    config = GPTConfig(
        vocab_size=tokenizer.vocab_size, block_size=args.block_size, n_layer=args.n_layer, n_head=args.n_head,
        n_embd=args.n_embd, dropout=args.dropout,
    )  # fmt: skip
    plan = TrainConfig(
        steps=args.steps, learning_rate=args.learning_rate, warmup_steps=min(200, args.steps // 10), final_share=0.0,
        weight_decay=args.weight_decay, precision="auto" if args.device.startswith("cuda") else "bfloat16",
    )  # fmt: skip

    set_seed(args.seed)
    model = GPT(config).to(args.device)
    loader = ShiftedLoader(train_tokens, args.batch_size, args.block_size, seed=args.seed, device=args.device)
    val_loader = SequentialLoader(val_tokens, 8, args.block_size)
    val_batches = [val_loader.next_batch() for _ in range(len(val_loader))]
    trainer = Trainer(model, loader, plan)
    fit(trainer, args.run, RunConfig(eval_every=100, save_every=100), held_out=val_batches, progress=True)
    if trainer.step < plan.steps:
        return  # stopped on request; the same command goes on
    curve, recent = [], []
    for entry in read_log(args.run):
        recent.append(entry["loss"])
        if "held_out" in entry:
            curve.append({"step": entry["step"] + 1, "train": sum(recent) / len(recent), "held_out": entry["held_out"]})
            recent = []

    model.load_state_dict({name: tensor.half().float() for name, tensor in model.state_dict().items()})
    held_out = evaluate(model, val_batches)
    before = None
    if (args.out / "config.json").exists():
        before = quality(GPT.from_pretrained(args.out, mapped=False), load_tokenizer(args.out), val_text)
        before["curve"] = json.loads((args.out / "training.json").read_text())["curve"]
    now = quality(model.cpu().eval(), tokenizer, val_text)
    model.half().save_pretrained(args.out)
    tokenizer.save(args.out / "tokenizer.tiktoken")
    report = {
        "text": "Tiny Shakespeare, the last tenth held out",
        "config": asdict(config), "training": asdict(plan), "batch_size": args.batch_size, "seed": args.seed,
        "train_tokens": len(train_tokens), "held_out_tokens": len(val_tokens), "held_out_bytes": len(val_text.encode()),
        "held_out_nats_per_token": held_out,
        "held_out_bits_per_byte": held_out / math.log(2) / bytes_per_token,
        "torch": torch.__version__, "machine": platform.machine(),
        "device": args.device,
        "now": now, "before": before,
        "curve": curve,
    }  # fmt: skip
    path = args.out / "training.json"
    path.with_suffix(".tmp").write_text(json.dumps(report, indent=1) + "\n")
    os.replace(path.with_suffix(".tmp"), path)
    print(f"{held_out:.3f} nats per token, {report['held_out_bits_per_byte']:.3f} bits per byte held out")
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
