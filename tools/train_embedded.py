"""Train a model that the package carries, and write it to `gpt2_book/assets`.

    python tools/train_embedded.py {shakespeare,stories} [--out FOLDER] [--run FOLDER] [--steps N] [--seed N] [--device DEVICE]

`shakespeare`: Tiny Shakespeare, of which the last tenth is held out. The text is small enough to be learned by heart, so
dropout is high and every epoch cuts the text at other places.
`stories`: those of `gpt2_book.workshop.stories`, of which none is read twice. The first third has few words, so that who has
what is most of what there is to learn; then come all. Others are held out, and what the choices of the program cost is what
the best possible model would need for them.

The run keeps its checkpoints and its log in `--run`; a run that was stopped goes on from there. Beside the weights and the
vocabulary, `training.json` keeps the settings, the loss curve, a sample and the bits per byte on the held-out text; for the
play also the last three of the model that it replaces, and for the stories what the checkpoints knew on the way.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from gpt2_book import GPT, GPTConfig
from gpt2_book.coherence import end_questions, knowledge_question, share_right, story_losses
from gpt2_book.data import SequentialLoader, ShuffledLoader, split_text
from gpt2_book.evaluation import evaluate_text
from gpt2_book.tokenizer import Tokenizer
from gpt2_book.training import TrainConfig, Trainer, evaluate
from gpt2_book.workshop.checkpoints import Checkpoints, set_seed
from gpt2_book.workshop.corpora import tiny_shakespeare
from gpt2_book.workshop.runs import RunConfig, fit, read_log
from gpt2_book.workshop.stories import tell_story
from gpt2_book.workshop.story_bits import first_impossible
from gpt2_book.workshop.tokenizer_files import load_tokenizer

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Recipe:
    """The sizes and settings of an embedded model."""

    vocab_size: int
    block_size: int
    n_layer: int
    n_head: int
    n_embd: int
    dropout: float
    batch_size: int
    steps: int
    learning_rate: float
    eval_every: int
    save_every: int
    keep: int
    weight_decay: float = 0.1
    seed: int = 1337
    few: int = 0
    few_share: float = 0.0


RECIPES = {
    "shakespeare": Recipe(1024, 256, 6, 3, 192, 0.2, 16, 3000, 3e-3, eval_every=100, save_every=100, keep=2),
    "stories": Recipe(2048, 512, 4, 4, 128, 0.0, 8, 9000, 3e-3, eval_every=500, save_every=500, keep=18,
                      few=8, few_share=1 / 3),  # fmt: skip
}


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


class Play:
    """Tiny Shakespeare, read many times."""

    about = "Tiny Shakespeare, the last tenth held out"

    def __init__(self, recipe: Recipe):
        train_text, self.held_out = split_text(tiny_shakespeare())
        self.tokenizer = Tokenizer.train(train_text, recipe.vocab_size)
        self.tokens = torch.tensor(self.tokenizer.encode(train_text))

    def loader(self, recipe: Recipe, device: str) -> ShiftedLoader:
        return ShiftedLoader(self.tokens, recipe.batch_size, recipe.block_size, seed=recipe.seed, device=device)

    def quality(self, model: GPT, tokenizer: Tokenizer) -> dict:
        """Score the text in windows that overlap by half, and write on from a fixed beginning with a fixed seed."""
        sampling = {"prompt": "ROMEO:\n", "temperature": 0.8, "seed": 0}
        start = torch.tensor([tokenizer.encode(sampling["prompt"])])
        drawn = torch.Generator().manual_seed(sampling["seed"])
        ids = model.generate(start, 120, temperature=sampling["temperature"], generator=drawn)[0].tolist()
        score = evaluate_text(model, tokenizer, self.held_out, stride=model.config.block_size // 2)
        return {"bits_per_byte": score.bits_per_byte, "parameters": sum(p.numel() for p in model.parameters()),
                "sampling": sampling, "sample": tokenizer.decode(ids)}  # fmt: skip

    def report(self, model: GPT, run: Path, out: Path) -> dict:
        before = None
        if (out / "config.json").exists():
            before = self.quality(GPT.from_pretrained(out, mapped=False), load_tokenizer(out))
            before["curve"] = json.loads((out / "training.json").read_text())["curve"]
        return {"now": self.quality(model, self.tokenizer), "before": before}


class Stories:
    """Stories told by a program, each read once, in their order: those with few words first."""

    about = "stories told by gpt2_book.workshop.stories, others held out"

    def __init__(self, recipe: Recipe):
        self.stories = [tell_story(i, split="held out") for i in range(300)]  # ASCII: a character is a byte
        self.held_out = "".join(story.text for story in self.stories)
        self.tokenizer = Tokenizer.train("".join(tell_story(i).text for i in range(3000)), recipe.vocab_size)
        wanted = recipe.steps * recipe.batch_size * recipe.block_size + 1
        ids, n_tokens, self.n_stories = [], 0, 0
        while n_tokens < wanted:
            few = recipe.few if n_tokens < recipe.few_share * wanted else None
            numbers = range(self.n_stories, self.n_stories + 1000)
            text = "".join(tell_story(i, few=few).text for i in numbers)
            ids.append(np.array(self.tokenizer.encode(text), dtype=np.int64))
            n_tokens, self.n_stories = n_tokens + len(ids[-1]), numbers.stop
        self.tokens = torch.from_numpy(np.concatenate(ids)[:wanted])

    def loader(self, recipe: Recipe, device: str) -> SequentialLoader:
        return SequentialLoader(self.tokens, recipe.batch_size, recipe.block_size, device=device)

    def quality(self, model: GPT) -> dict:
        """Measure the distance from the best possible model, and ask who has what."""
        asked = self.stories[:100]
        nats = sum(story_losses(model, self.tokenizer, story).sum().item() for story in asked)
        where = [question for story in asked for question in end_questions(story)]
        knows = [knowledge_question(story) for story in asked]
        found = {"bits_per_byte": nats / math.log(2) / sum(len(story.text) for story in asked)}
        found |= {name: asdict(share_right(model, self.tokenizer, questions, block=len(questions) // len(asked)))
                  for name, questions in (("where", where), ("knows", knows))}  # fmt: skip
        start = torch.tensor([self.tokenizer.encode("\n")] * 8)
        drawn = torch.Generator().manual_seed(0)
        rows = model.generate(start, 450, generator=drawn)[:, 1:].tolist()
        told = ["".join(self.tokenizer.decode(row).partition("\n")[:2]) for row in rows]
        ends = [len(text) if (at := first_impossible(text)) is None else at for text in told]
        return {**found, "possible": sum(ends) / sum(map(len, told)), "sample": told[0]}

    def report(self, model: GPT, run: Path, out: Path) -> dict:
        learning, on_the_way = [], GPT(model.config).eval()
        for n, path in enumerate(Checkpoints(run / "checkpoints").all(), start=1):
            if n // (n & -n) not in (1, 3):  # 1, 2, 3, 4, 6, 8, 12, 16: even on a logarithmic axis
                continue
            weights = load_file(path / "tensors.safetensors")
            with torch.no_grad():
                for name, parameter in on_the_way.named_parameters():
                    parameter.copy_(weights[f"model.{name}"])
            learning.append({"step": int(path.name[5:]), **self.quality(on_the_way)})
        entropy = sum(story.bits for story in self.stories) / len(self.held_out)
        return {"entropy_bits_per_byte": entropy, "stories": self.n_stories, "now": self.quality(model), "learning": learning}


TEXTS = {"shakespeare": Play, "stories": Stories}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=RECIPES)
    parser.add_argument("--out", type=Path, help="default: the package's folder for this model")
    parser.add_argument("--run", type=Path, help="default: a folder in _build")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for field in fields(Recipe):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=float if "float" in field.type else int)
    args = parser.parse_args()
    given = {field.name: getattr(args, field.name) for field in fields(Recipe) if getattr(args, field.name) is not None}
    recipe = replace(RECIPES[args.name], **given)
    out, run = args.out or ROOT / "gpt2_book" / "assets" / args.name, args.run or ROOT / "_build" / "embedded" / args.name

    text = TEXTS[args.name](recipe)
    val_tokens = torch.tensor(text.tokenizer.encode(text.held_out))
    bytes_per_token = len(text.held_out.encode()) / len(val_tokens)
    config = GPTConfig(
        vocab_size=text.tokenizer.vocab_size, block_size=recipe.block_size, n_layer=recipe.n_layer, n_head=recipe.n_head,
        n_embd=recipe.n_embd, dropout=recipe.dropout,
    )  # fmt: skip
    plan = TrainConfig(
        steps=recipe.steps, learning_rate=recipe.learning_rate, warmup_steps=min(200, recipe.steps // 10), final_share=0.0,
        weight_decay=recipe.weight_decay, precision="auto" if args.device.startswith("cuda") else "bfloat16",
    )  # fmt: skip

    set_seed(recipe.seed)
    model = GPT(config).to(args.device)
    loader = text.loader(recipe, args.device)
    val_loader = SequentialLoader(val_tokens, 8, recipe.block_size)
    val_batches = [val_loader.next_batch() for _ in range(len(val_loader))]
    trainer = Trainer(model, loader, plan)
    how = RunConfig(eval_every=recipe.eval_every, save_every=recipe.save_every, keep=recipe.keep)
    fit(trainer, run, how, held_out=val_batches, progress=True)
    if trainer.step < plan.steps:
        return  # stopped on request; the same command goes on
    curve, recent = [], []
    for entry in read_log(run):
        recent.append(entry["loss"])
        if "held_out" in entry:
            curve.append({"step": entry["step"] + 1, "train": sum(recent) / len(recent), "held_out": entry["held_out"]})
            recent = []

    model.load_state_dict({name: tensor.half().float() for name, tensor in model.state_dict().items()})
    held_out = evaluate(model, val_batches)
    measured = text.report(model.cpu().eval(), run, out)
    model.half().save_pretrained(out)
    text.tokenizer.save(out / "tokenizer.tiktoken")
    report = {
        "text": text.about,
        "config": asdict(config), "training": asdict(plan), "batch_size": recipe.batch_size, "seed": recipe.seed,
        **({"few": recipe.few, "few_share": recipe.few_share} if recipe.few else {}),
        "train_tokens": len(text.tokens), "held_out_tokens": len(val_tokens), "held_out_bytes": len(text.held_out.encode()),
        "held_out_nats_per_token": held_out,
        "held_out_bits_per_byte": held_out / math.log(2) / bytes_per_token,
        "torch": torch.__version__, "machine": platform.machine(),
        "device": args.device,
        **measured,
        "curve": curve,
    }  # fmt: skip
    path = out / "training.json"
    path.with_suffix(".tmp").write_text(json.dumps(report, indent=1) + "\n")
    os.replace(path.with_suffix(".tmp"), path)
    print(f"{held_out:.3f} nats per token, {report['held_out_bits_per_byte']:.3f} bits per byte held out")
    print(f"written to {out}")


if __name__ == "__main__":
    main()
