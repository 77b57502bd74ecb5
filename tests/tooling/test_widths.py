"""The benchmark of widths (benchmarks/widths.py) compares three ways that are one at the base width."""

import json
import sys
from itertools import product
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def widths(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import scaled_init
    import switches
    import widths

    for name, value in {"STORIES": 40, "RATES": (1e-2,), "WIDTHS": (64, 128), "SEEDS": (0,), "RESULTS": tmp_path}.items():
        monkeypatch.setattr(widths, name, value)
    for name, value in {"HELD_OUT": 12, "SCORED": 1024}.items():
        monkeypatch.setattr(scaled_init, name, value)
    switches.tokens.cache_clear()
    yield widths
    switches.tokens.cache_clear()


def test_the_ways_are_one_at_the_base_width_and_differ_beyond_it(widths):
    made = {(way, width): widths.make(way, width, 1e-2, seed=0) for way, width in product(widths.WAYS, (64, 256))}
    for (way, width), (model, optimizer) in made.items():
        plain = made["one std", width][0]
        rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
        assert len(rates) == len([*model.parameters()])
        for (name, p), q in zip(model.named_parameters(), plain.parameters()):
            head, matrix = name == "lm_head.weight", ".h." in name and p.dim() == 2
            smaller = {"one std": 1, "std by width": 2 if head or matrix else 1, "mup": 4 if head else 2 if matrix else 1}[way]
            assert_close(p * (smaller if width == 256 else 1), q)
            assert rates[id(p)] == (1e-2 / 4 if (way, width) == ("mup", 256) and (head or matrix) else 1e-2)


def test_the_benchmark_goes_on_where_it_was(widths, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "argv", ["widths.py", "--save", "--steps", "2", "--budget", "0"])
    widths.main()
    assert not [*tmp_path.iterdir()] and "run again" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["widths.py", "--save", "--steps", "2"])
    widths.main()
    (path,) = tmp_path.iterdir()
    found = json.loads(path.read_text(encoding="utf8"))
    assert path.name.startswith("widths-") and found["machine"]["versions"]["torch"] == torch.__version__
    assert [(r["way"], r["width"]) for r in found["rows"]] == [("mup", 64), *((way, 128) for way in widths.WAYS)]
    assert all(3 < r["loss"] < 10 and r["steps"] == 2 for r in found["rows"])
    monkeypatch.setattr(widths, "run", lambda job: pytest.fail("it is stored"))
    widths.main()
    assert json.loads(path.read_text(encoding="utf8")) == found


def test_every_rate_was_run_with_every_width_way_and_seed():
    for path in (ROOT / "benchmarks" / "results").glob("widths-*.json"):
        rows = json.loads(path.read_text(encoding="utf8"))["rows"]
        runs = [tuple(r[k] for k in ("way", "width", "rate", "seed")) for r in rows]
        ways, sizes, rates, seeds = (sorted({run[i] for run in runs}) for i in range(4))
        wide = set(product(ways, sizes[1:], rates, seeds))
        assert set(runs) == wide | set(product(["mup"], sizes[:1], rates, seeds)) and len(runs) == len(set(runs))
