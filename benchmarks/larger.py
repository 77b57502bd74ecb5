"""What a larger model of the stories understands: four sizes, one number of tokens, on a GPU side by side.

    python benchmarks/larger.py --save            everything: 98 million tokens for each size, some minutes on a large GPU
    python benchmarks/larger.py --steps 20        to see that it runs, also on a CPU

The program tells the stories once, in as many processes as there are cores, with the vocabulary of the package's model of stories. Every
size then reads the same tokens in the same order, each token once, in a process of its own; all of them share the device. On the way and
at the end a model gets the marks of the chapter on coherence, on stories that were not told for training: its bits per byte, beside the
program's own; the questions about the end that it answers, one by one, so that any part of them can be counted later; as many questions
for each answer to who knows; and how far its own stories go before they say what cannot be.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from common import RESULTS, describe_machine, in_fresh_process, name_of, write_results

from gpt2_book import GPT, GPTConfig
from gpt2_book.coherence import _choose_ending, end_questions, knowledge_question, story_losses
from gpt2_book.data import SequentialLoader
from gpt2_book.multiple_choice import MultipleChoice
from gpt2_book.training import TrainConfig, Trainer, choose_device
from gpt2_book.workshop.checkpoints import set_seed
from gpt2_book.workshop.stories import tell_story
from gpt2_book.workshop.story_bits import first_impossible
from gpt2_book.workshop.tokenizer_files import load_tokenizer

FOLDER = Path(__file__).resolve().parent.parent / "_build" / "larger"
BATCH, LENGTH, STEPS, SEED = 64, 512, 3000, 1337
MARKED, EACH, WRITTEN = 100, 25, 20  # stories that are asked about, questions for each answer, stories of its own


@dataclass(frozen=True)
class Size:
    """Layers, heads and width, and the rate: about inversely to the width, not searched for."""

    n_layer: int
    n_head: int
    n_embd: int
    learning_rate: float


SIZES = {"0.3M": Size(2, 2, 64, 6e-3), "1.1M": Size(4, 4, 128, 4e-3), "5.4M": Size(6, 4, 256, 2e-3), "26M": Size(8, 8, 512, 1e-3)}


def tell(numbers: range) -> np.ndarray:
    """Tell stories in this process; return their tokens."""
    text = "".join(tell_story(i).text for i in numbers)
    return np.array(load_tokenizer("stories").encode(text), dtype=np.uint16)


def tell_all(n_tokens: int) -> np.ndarray:
    """Tell as many stories as give so many tokens, in all cores."""
    parts, found = [], 0
    numbers = (range(i, i + 500) for i in range(0, 10**9, 500))
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        while found < n_tokens:
            wave = [next(numbers) for _ in range(4 * (os.cpu_count() or 1))]
            parts += pool.map(tell, wave, chunksize=1)
            found = sum(map(len, parts))
    return np.concatenate(parts)[:n_tokens]


def evenly(each: int) -> list[MultipleChoice]:
    """Return as many questions about who knows for each of the four answers, those of one answer in a row."""
    found: dict[int, list[MultipleChoice]] = {label: [] for label in range(4)}
    for i in range(10**6):
        question = knowledge_question(tell_story(i, split="held out"))
        if len(found[question.label]) < each:
            found[question.label].append(question)
        if min(map(len, found.values())) == each:
            return sum(found.values(), [])
    raise RuntimeError(f"fewer than {each} stories for an answer")


class Marks:
    """The marks of a model, on the same stories for each."""

    def __init__(self, n: int, each: int, written: int):
        self.tokenizer, self.written = load_tokenizer("stories"), written
        self.stories = [tell_story(i, split="held out") for i in range(n)]
        self.where = [question for story in self.stories for question in end_questions(story)]
        self.knows, self.even = [knowledge_question(story) for story in self.stories], evenly(each)

    def right(self, model: GPT, questions: list[MultipleChoice]) -> str:
        """Return a 1 for each question that is answered, a 0 for each other."""
        return "".join("01"[_choose_ending(model, self.tokenizer, q) == q.label] for q in questions)

    def __call__(self, model: GPT) -> dict:
        model.eval()
        nats = sum(story_losses(model, self.tokenizer, story).sum().item() for story in self.stories)
        n_bytes = sum(len(story.text) for story in self.stories)
        start = torch.tensor([self.tokenizer.encode("\n")] * self.written, device=next(model.parameters()).device)
        rows = model.generate(start, 450, generator=torch.Generator().manual_seed(0))[:, 1:].tolist()
        told = ["".join(self.tokenizer.decode(row).partition("\n")[:2]) for row in rows]
        ends = [len(text) if (at := first_impossible(text)) is None else at for text in told]
        return {
            "bits_per_byte": nats / math.log(2) / n_bytes,
            "entropy_bits_per_byte": sum(story.bits for story in self.stories) / n_bytes,
            "where": self.right(model, self.where), "knows": self.right(model, self.knows),
            "even": self.right(model, self.even), "possible": sum(ends) / sum(map(len, told)),
            "whole": sum(end == len(text) for end, text in zip(ends, told)), "told": len(told), "sample": told[0],
        }  # fmt: skip


def course(name: str, tokens: np.ndarray, steps: int, marks: Marks, device: torch.device) -> Iterator[dict]:
    """Train one size, and yield its marks after an eighth, a quarter and a half of the steps, and after all."""
    size = SIZES[name]
    set_seed(SEED)
    shape = {"n_layer": size.n_layer, "n_head": size.n_head, "n_embd": size.n_embd}
    model = GPT(GPTConfig(vocab_size=marks.tokenizer.vocab_size, block_size=LENGTH, dropout=0.0, **shape)).to(device)
    plan = TrainConfig(
        steps=steps, learning_rate=size.learning_rate, warmup_steps=steps // 15, final_share=0.0, weight_decay=0.1,
        compile=device.type == "cuda",
    )  # fmt: skip
    trainer = Trainer(model, SequentialLoader(tokens, BATCH, LENGTH, device=device), plan)
    looks, spent, recent = {steps // 8, steps // 4, steps // 2, steps}, 0.0, []
    for _ in range(steps):
        start = time.perf_counter()
        recent.append(trainer.update().loss)
        spent += time.perf_counter() - start
        if trainer.step in looks:
            yield {"size": name, "parameters": sum(p.numel() for p in model.parameters()), "step": trainer.step,
                   "tokens": trainer.step * BATCH * LENGTH, "seconds": round(spent, 1),
                   "train_nats": sum(recent[-100:]) / len(recent[-100:]), **marks(model)}  # fmt: skip


def alone(name: str, steps: int) -> None:
    """Train one size in this process; print its rows as JSON."""
    tokens = np.load(FOLDER / "tokens.npy", mmap_mode="r")
    marks = Marks(MARKED, EACH, WRITTEN) if steps > 100 else Marks(2, 1, 2)
    print(json.dumps({"rows": list(course(name, tokens, steps, marks, choose_device()))}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=SIZES)
    parser.add_argument("--steps", type=int, default=STEPS, help=f"updates of {BATCH * LENGTH} tokens each ({STEPS})")
    parser.add_argument("--save", action="store_true", help="write results/larger-MACHINE.json")
    parser.add_argument("--alone", choices=SIZES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.steps < 8:
        parser.error(f"--steps must be at least 8, not {args.steps}")
    if args.alone:
        return alone(args.alone, args.steps)
    FOLDER.mkdir(parents=True, exist_ok=True)
    np.save(FOLDER / "tokens.npy", tell_all(args.steps * BATCH * LENGTH + 1))

    def run(name: str) -> list[dict]:
        return in_fresh_process(__file__, "--alone", name, "--steps", str(args.steps))["rows"]

    with ThreadPoolExecutor() as several:
        rows = sum(several.map(run, args.sizes), [])
    for row in rows:
        where, even = (row[name].count("1") / len(row[name]) for name in ("where", "even"))
        print(f"{row['size']:>5} {row['tokens'] / 1e6:6.1f} million tokens {row['bits_per_byte']:.4f} bits per byte of at least "
              f"{row['entropy_bits_per_byte']:.4f}  where {where:.2f}  even {even:.2f}  possible {row['possible']:.2f}")  # fmt: skip
    if args.save:
        machine = describe_machine("gpt2_book")
        options = {"batch": BATCH, "length": LENGTH, "steps": args.steps, "seed": SEED, "marked": MARKED, "each": EACH}
        path = RESULTS / f"larger-{name_of(machine)}.json"
        write_results(path, {"machine": machine, "options": options, "rows": rows})
        print("kept in", path)


if __name__ == "__main__":
    main()
