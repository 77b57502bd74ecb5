"""The benchmark of the smaller c_proj (benchmarks/scaled_init.py) compares models that differ in nothing else."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def scaled_init(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import scaled_init
    import switches

    monkeypatch.setattr(scaled_init, "CONFIG", replace(scaled_init.CONFIG, n_layer=3))
    for name, value in {"STORIES": 40, "HELD_OUT": 12, "SCORED": 1024, "RATES": (1e-2, 1e-3), "SEEDS": (0,), "RESULTS": tmp_path, "PARTS": 2}.items():
        monkeypatch.setattr(scaled_init, name, value)
    switches.tokens.cache_clear()
    yield scaled_init
    switches.tokens.cache_clear()


def test_a_pair_differs_in_what_writes_into_the_stream(scaled_init):
    scaled, unscaled = (scaled_init.make_model(init, 1) for init in scaled_init.INITS)
    for (name, p), q in zip(scaled.named_parameters(), unscaled.parameters()):
        larger = math.sqrt(2 * 3) if name.endswith("c_proj.weight") else 1.0
        assert_close(larger * p, q)
    assert abs(unscaled.transformer.h[0].mlp.c_proj.weight.std() / scaled_init.STD - 1) < 0.05
    idx = torch.arange(16)[None]
    assert scaled_init.stream_end(unscaled, idx) > 1.5 * scaled_init.stream_end(scaled, idx)
    logits = scaled(idx)[0]
    x = scaled.transformer.wte(idx) + scaled.transformer.wpe(torch.arange(16))
    for block in scaled.transformer.h:
        x = block(x)
    assert_close(scaled.lm_head(scaled.transformer.ln_f(x)), logits)
    assert scaled_init.stream_end(scaled, idx) == x.std().item()


def test_the_benchmark_pairs_its_runs_and_goes_on_where_it_was(scaled_init, monkeypatch, tmp_path, capsys):
    ran, plain = [], scaled_init.run
    monkeypatch.setattr(scaled_init, "run", lambda job: ran.append((job["rate"], job["init"])) or plain(job))
    monkeypatch.setattr(sys, "argv", ["scaled_init.py", "--save", "--steps", "2", "--budget", "0"])
    scaled_init.main()
    assert not ran and "run again" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["scaled_init.py", "--save", "--steps", "2"])
    scaled_init.main()
    assert ran == [(rate, init) for rate in (1e-2, 1e-3, 1e-3) for init in scaled_init.INITS]
    (path,) = tmp_path.iterdir()
    found = json.loads(path.read_text(encoding="utf8"))
    assert path.name.startswith("scaled-init-") and found["machine"]["versions"]["torch"] == torch.__version__
    assert [row["steps"] for row in found["rows"]] == [2] * 4 + [8] * 2, "the second round is longer"
    for row in found["rows"]:
        assert 3 < row["loss"] < 10 and len(row["course"]) == 2 and 0 <= row["clipped"] <= 1
    scaled_init.main()
    assert len(ran) == 6 and json.loads(path.read_text(encoding="utf8")) == found
    monkeypatch.setattr(scaled_init, "SCORED", 512)
    with pytest.raises(SystemExit):
        scaled_init.main()
    assert "move it away" in capsys.readouterr().err and json.loads(path.read_text(encoding="utf8")) == found


def test_the_stored_runs_are_pairs():
    """Every seed and rate has both models, after as many steps."""
    for path in (ROOT / "benchmarks" / "results").glob("scaled-init-*.json"):
        rows = json.loads(path.read_text(encoding="utf8"))["rows"]
        pairs = [{(r["rate"], r["seed"], r["steps"]) for r in rows if r["init"] == init} for init in ("scaled", "unscaled")]
        assert pairs[0] == pairs[1] and 2 * len(pairs[0]) == len(rows)
