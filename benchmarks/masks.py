"""Does a loss on the answers alone buy more than speed? Chats are learned with the mask and without it, for more and more steps.

    python benchmarks/masks.py --save                 everything (half an hour on one thread); a stored run is not repeated
    python benchmarks/masks.py --save --budget 600    no run is begun after ten minutes

The model of the stories learns the chats of `61_instructions`, as it does there: the same kinds of questions, rate and batches. Each number
of steps is a run of its own, with its own warm-up and cosine. A seed decides the chats and their order. What is counted are right answers
to questions that no seed's chats hold. One thread, float32. Results are written after every run.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from common import RESULTS, keep_runs

from gpt2_book import GPT
from gpt2_book.instructions import (
    KINDS,
    ChatLoader,
    ChatTemplate,
    add_special_tokens,
    encode_chat,
    exact_match,
    make_chats,
)
from gpt2_book.training import TrainConfig, train
from gpt2_book.workshop.tokenizer_files import load_tokenizer

MIX = ("add", "add", "sort", "sort", "sort", "spell", "read")
BATCH, RATE, CHATS = 16, 2e-3, 4800
STEPS, SEEDS, MOST = (100, 200, 300, 600, 1200), (0, 1, 2), 100
WAYS = ("answers", "all")  # which targets are learned


def plan(rows: list[dict], steps: int | None) -> Iterator[dict]:
    """Give the runs in order: short ones first, ways in turn."""
    for n in STEPS:
        for seed in SEEDS:
            for way in WAYS:
                yield {"way": way, "seed": seed, "steps": n}


def held_out(kind: str) -> list:
    """Return at most ``MOST`` chats that are never trained on, no two made of the same letters."""
    drawn = make_chats(4000, seed=7, kinds=[kind], held_out=True)
    return list({"".join(sorted(one[0]["content"])): one for one in drawn}.values())[:MOST]


def run(job: dict) -> dict:
    """Train one model and return its row."""
    torch.manual_seed(job["seed"])
    template = ChatTemplate()
    model, tokenizer = add_special_tokens(GPT.from_pretrained("stories"), load_tokenizer("stories"))
    rows = [encode_chat(tokenizer, template, one) for one in make_chats(CHATS, seed=job["seed"], kinds=MIX)]
    if job["way"] == "all":
        rows = [(tokens, [True] * len(tokens)) for tokens, _ in rows]
    loader = ChatLoader(rows, BATCH, model.config.block_size, seed=job["seed"])
    for _ in train(model, loader, TrainConfig(steps=job["steps"], learning_rate=RATE, warmup_steps=20)):
        pass
    asked = {kind: held_out(kind) for kind in KINDS}
    right = {kind: round(len(chats) * exact_match(model, tokenizer, template, chats)) for kind, chats in asked.items()}
    return job | {"right": right, "asked": {kind: len(chats) for kind, chats in asked.items()}}


def key(row: dict) -> tuple:
    return tuple(row[k] for k in ("way", "seed", "steps"))


def say(row: dict) -> str:
    shares = ", ".join(f"{kind} {row['right'][kind]} of {n}" for kind, n in row["asked"].items())
    return f"{row['steps']:5} steps, {row['way']:8} seed {row['seed']}: {shares}"


def main() -> None:
    options = {"mix": list(MIX), "batch": BATCH, "rate": RATE, "chats": CHATS}
    keep_runs("masks", __doc__.splitlines()[0], RESULTS, options, plan, run, key, say)


if __name__ == "__main__":
    main()
