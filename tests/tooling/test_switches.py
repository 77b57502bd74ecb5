"""The benchmark of the switches (benchmarks/switches.py) trains what it says: GPT-2, Llama, and each change between them."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from gpt2_book import GPT, GPTConfig
from gpt2_book.modern import Llama, LlamaConfig

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def switches(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import switches

    return switches


def small(switches, **fields):
    """A small model of a shape, all of whose vectors are drawn too, and tokens for it."""
    torch.manual_seed(0)
    shape = replace(switches.Shape(), n_layer=2, n_embd=16, n_hidden=24, vocab_size=40, block_size=20, **fields)
    model = switches.Model(shape)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model.double(), torch.randint(40, (2, 20))


def test_without_a_switch_it_is_the_books_gpt2(switches):
    model, idx = small(switches)
    model.s = replace(model.s, n_hidden=64)
    wide = switches.Model(model.s).double()
    book = GPT(GPTConfig(block_size=20, vocab_size=40, n_layer=2, n_head=4, n_embd=16)).double()
    given = book.state_dict()
    for name, p in wide.state_dict().items():
        name = name.replace("mlp.up", "mlp.c_fc")
        if ".attn." in name and ".c_proj" not in name:
            front, part, kind = name.rsplit(".", 2)
            p.copy_(given[f"transformer.{front}.c_attn.{kind}"].chunk(3)["qkv".index(part)])
        else:
            p.copy_(given[name if name.startswith("lm_head") else f"transformer.{name}"])
    assert_close(wide(idx), book(idx)[0], rtol=1e-9, atol=1e-9)
    assert switches.parameters(model.s) == sum(p.numel() for p in book.parameters())


def test_with_all_of_them_it_is_the_books_llama(switches):
    model, idx = small(switches, **switches.LLAMA, qk_norm=True, window=7)
    config = LlamaConfig(block_size=20, vocab_size=40, n_layer=2, n_head=4, n_kv_head=2, n_embd=16, n_hidden=24, head_size=4,
                         rope_theta=1e4, rope_scaling=None, qk_norm=True, window=7)  # fmt: skip
    book = Llama(config).double()
    names = {"wte": "model.embed_tokens", "h.": "model.layers.", "ln_f": "model.norm", "ln_1": "input_layernorm", "mlp.gate": "mlp.gate_proj",
             "ln_2": "post_attention_layernorm", "mlp.up": "mlp.up_proj", "mlp.c_proj": "mlp.down_proj", "attn.c_proj": "attn.o_proj",
             "attn.norms.0": "attn.q_norm", "attn.norms.1": "attn.k_norm", "attn.q.": "attn.q_proj.", "attn.k.": "attn.k_proj.",
             "attn.v.": "attn.v_proj.", "attn.": "self_attn."}  # fmt: skip
    theirs = {}
    for name, p in model.state_dict().items():
        for a, b in names.items():
            name = name.replace(a, b)
        theirs[name] = p
    book.load_state_dict(theirs)
    assert_close(model(idx), book(idx)[0], rtol=1e-6, atol=1e-6)


def test_a_sink_takes_a_share_and_a_window_hides(switches):
    from torch.nn import functional as F

    model, idx = small(switches, sink=True, window=5)
    attn, x = model.h[0]["attn"], torch.randn(2, 20, 16, dtype=torch.float64)
    q, k, v = (f(x).view(2, 20, 4, 4).transpose(1, 2) for f in (attn.q, attn.k, attn.v))
    back = torch.arange(20)[:, None] - torch.arange(20)
    scores = (q @ k.mT / 2).masked_fill((back < 0) | (back >= 5), -math.inf).exp()
    weights = scores / (scores.sum(-1, keepdim=True) + attn.sink["bias"].exp()[:, None, None])
    expected = F.linear((weights @ v).transpose(1, 2).flatten(2), attn.c_proj.weight, attn.c_proj.bias)
    assert_close(attn(x, None), expected, rtol=1e-9, atol=1e-9)
    model(idx).sum().backward()
    assert attn.sink["bias"].grad.abs().min() > 0


def test_every_switch_keeps_the_number_of_weights_and_learns(switches):
    n = switches.parameters(switches.Shape())
    for name, fields in switches.SWITCHES.items():
        shape = switches.as_large_as(replace(switches.Shape(), **fields), n)
        assert abs(switches.parameters(shape) / n - 1) < 0.005, name
        model = switches.Model(shape)
        idx = torch.randint(shape.vocab_size, (1, 32), generator=torch.Generator().manual_seed(0))
        torch.nn.functional.cross_entropy(model(idx)[0], idx[0]).backward()
        for part, p in model.named_parameters():  # the first row of positions is all that some parts need
            assert p.grad is not None and p.grad.abs().sum() > 0 or part.endswith("k.bias"), f"{name}: {part}"


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary"])
def test_stretched_positions_are_those_between(switches, positions):
    model, idx = small(switches, positions=positions)
    assert_close(model(idx, stretch=1.0), model(idx))
    if positions == "rotary":
        assert not torch.allclose(model(idx, theta=1e5), model(idx))
    else:
        table = model.positions(20, 1.0)
        assert_close(model.positions(39, 2.0)[::2], table)
        assert_close(model.positions(39, 2.0)[1::2], (table[1:] + table[:-1]) / 2)
    assert model(idx.repeat(1, 4)).shape == (2, 80, 40)  # also beyond the trained length


def test_seeds_share_their_order_and_read_nothing_twice(switches, monkeypatch):
    monkeypatch.setattr(switches, "STORIES", 20)
    first, again, other = ([x for x, _ in switches.batches(seed, 4, T=64)] for seed in (0, 0, 1))
    assert all(map(torch.equal, first, again)) and not torch.equal(first[0], other[0])
    assert len({tuple(row.tolist()) for x in first for row in x}) == 4 * switches.BATCH
    with pytest.raises(ValueError, match="but there are only"):
        next(switches.batches(0, 10**6))


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="Muon is of torch 2.9")
def test_a_stopped_benchmark_goes_on_where_it_was(switches, monkeypatch, tmp_path, capsys):
    for name, value in {"STORIES": 60, "TUNING_STEPS": 2, "HELD_OUT": 12, "SCORED": 1024, "RATES": (1e-2,), "SEEDS": (0,), "RESULTS": tmp_path,
                        "SWITCHES": {"GPT-2": {}, "SwiGLU": {"network": "swiglu"}}}.items():  # fmt: skip
        monkeypatch.setattr(switches, name, value)
    switches.tokens.cache_clear()
    ran, plain = [], switches.run
    monkeypatch.setattr(switches, "run", lambda job: ran.append(job["name"]) or plain(job))
    monkeypatch.setattr(sys, "argv", ["switches.py", "--save", "--steps", "2", "--budget", "0"])
    switches.main()
    assert not ran and "run again" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["switches.py", "--save", "--steps", "2"])
    switches.main()
    courses = [f"{kind}, {name} positions" for kind in ("AdamW", "Muon") for name in ("learned", "rotary")]
    assert ran == ["AdamW at 0.01", "Muon at 0.01", "GPT-2", "SwiGLU", "Muon", *courses]
    switches.main()
    assert len(ran) == 9
    (path,) = tmp_path.iterdir()
    rows = json.loads(path.read_text(encoding="utf8"))["rows"]
    assert [row["name"] for row in rows] == ran and all(0 < row["loss"] < 10 for row in rows)
    assert {tuple(r["shape"].items()): r for r in rows}[()]["parameters"] == switches.parameters(switches.Shape())
    assert len(rows[2]["lengths"]) == 5 and "lengths" not in rows[3] and "course" not in rows[3]
    assert [step for step, _ in rows[5]["course"]] == [1, 2]
    assert rows[5]["loss"] == rows[5]["course"][-1][1] == rows[2]["loss"], "to look on the way changes nothing"
    monkeypatch.setattr(switches, "SCORED", 512)
    with pytest.raises(SystemExit):
        switches.main()
    assert "move it away" in capsys.readouterr().err and json.loads(path.read_text(encoding="utf8"))["rows"] == rows
    switches.tokens.cache_clear()


@pytest.fixture
def sizes(switches, monkeypatch, tmp_path):
    import sizes

    for name, value in {"STORIES": 60, "SIZES": ((1, 16, 2), (2, 16, 2)), "BUDGETS": (1e9, 2e9), "RATES": (1e-2, 1e-3), "SEEDS": (0,),
                        "HELD_OUT": 12, "RESULTS": tmp_path}.items():  # fmt: skip
        monkeypatch.setattr(sizes, name, value)
    for name, value in {"HELD_OUT": 12, "SCORED": 1024}.items():
        monkeypatch.setattr(switches, name, value)
    switches.tokens.cache_clear()
    yield sizes
    switches.tokens.cache_clear()


def test_every_size_spends_its_budget_and_the_rate_is_the_best_of_all(sizes, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "argv", ["sizes.py", "--save"])
    sizes.main()
    (path,) = tmp_path.iterdir()
    found = json.loads(path.read_text(encoding="utf8"))
    tried, rows = ([r for r in found["rows"] if r["experiment"] == kind] for kind in ("rates", "sizes"))
    assert len(tried) == len(rows) == 4 and {r["budget"] for r in tried} == {2e9}
    mean = {rate: sum(r["loss"] for r in tried if r["rate"] == rate) for rate in sizes.RATES}
    assert {r["rate"] for r in rows} == {min(mean, key=mean.get)}
    for r in rows:
        shape = sizes.shape(tuple(r["size"]))
        assert r["parameters"] == sizes.parameters(shape) and r["tokens"] == r["steps"] * 4 * 128
        one_step = sizes.training_flops(shape) * 4 * 128
        assert r["flops"] == r["steps"] * one_step and abs(r["flops"] - r["budget"]) <= one_step / 2
    assert 0.1 < found["entropy"] < min(r["loss"] for r in rows)
    ran = []
    monkeypatch.setattr(sizes, "run", lambda job: ran.append(job))
    sizes.main()
    assert not ran and json.loads(path.read_text(encoding="utf8")) == found
    monkeypatch.setattr(sizes, "STORIES", 61)
    with pytest.raises(SystemExit):
        sizes.main()
    assert "move it away" in capsys.readouterr().err and json.loads(path.read_text(encoding="utf8")) == found
