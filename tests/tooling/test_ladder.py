"""The benchmark of the remedies (benchmarks/ladder.py): each rung is the one before it with one thing more, and all learn the same."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from gpt2_book import GPTConfig

ROOT = Path(__file__).resolve().parents[2]
SHAPE = GPTConfig(block_size=16, vocab_size=97, n_layer=2, n_head=2, n_embd=32)


@pytest.fixture
def ladder(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import ladder

    return ladder


class Tokens:
    """The same random batches each time."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(0)

    def next_batch(self):
        rows = torch.randint(SHAPE.vocab_size, (2, 17), generator=self.generator)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def curve(ladder, rung, steps=6):
    run = ladder.training(rung, Tokens(), "cpu", SHAPE)
    return torch.tensor([next(run) for _ in range(steps)])


def test_each_rung_adds_one_thing(ladder):
    rungs = ladder.rungs(8)
    for before, rung in pairwise(rungs):
        changed = {name for name, value in asdict(rung).items() if value != asdict(before)[name]}
        assert len(changed) == 2 and "name" in changed
    assert rungs[-1].chunk == 8 and not any(value for name, value in asdict(rungs[0]).items() if name != "name")


def test_attention_by_hand_is_the_kernels(ladder):
    q, k, v = torch.randn(3, 2, 2, 9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(ladder.by_hand(q, k, v), expected, rtol=0, atol=1e-12)


def assert_learns_the_same(ladder, rung):
    plain = curve(ladder, ladder.rungs(8)[0])
    assert plain[0] != plain[-1]
    extra = math.log(128 / 97) if rung.padded else 0.0  # of rows of zeros, at the start
    gap = (curve(ladder, replace(rung, compile=False)) - plain - extra).abs().max()
    assert gap < (0.05 if rung.padded else 0.01 if rung.bfloat16 else 1e-5), rung.name


def test_all_rungs_learn_the_same(ladder):
    for rung in ladder.rungs(8)[1:-1]:
        assert_learns_the_same(ladder, rung)


@pytest.mark.compiles  # its loss always is
def test_the_loss_in_chunks_learns_the_same(ladder):
    assert_learns_the_same(ladder, ladder.rungs(8)[-1])


def test_a_wrong_attention_is_seen(ladder, monkeypatch):
    monkeypatch.setattr(ladder, "by_hand", lambda q, k, v, **how: F.scaled_dot_product_attention(q, k, v))  # no mask
    first, _, _, flash, *_ = ladder.rungs(8)
    gap = (curve(ladder, first) - curve(ladder, replace(flash, bfloat16=False))).abs().max()
    assert gap > 1e-4
