"""The parts of `make gpu`, on a machine that only says it has one: what passed is kept, what failed is run again."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MACHINE = {"cpu": "a CPU", "gpu": "NVIDIA H200 (test)", "cores": 2, "date": "2026-01-01", "versions": {"torch": "2"}}


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    """The module, with a few quick parts, and results in a folder of its own."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.syspath_prepend(ROOT / "tools")
    for name in ("gpu", "common"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import common
    import gpu

    program = (
        "import pathlib; p = pathlib.Path({!r}); p.write_text(p.read_text() + 'x' if p.exists() else 'x'); print({!r})"
    )
    parts = [
        gpu.Part("good", ("-c", program.format(str(tmp_path / "good"), "3 passed"))),
        gpu.Part("bad", ("-c", f"import pathlib, sys; sys.exit(0 if pathlib.Path({str(tmp_path / 'mended')!r}).exists() else 'broken')")),
        gpu.Part("slow", ("-c", "import time; time.sleep(60)")),
    ]  # fmt: skip
    monkeypatch.setattr(gpu, "all_parts", lambda: parts)
    monkeypatch.setattr(gpu, "LIMIT", 2)
    monkeypatch.setattr(gpu, "LOGS", tmp_path / "_build" / "gpu")
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    monkeypatch.setattr(gpu, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(common, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(gpu, "key", lambda: "a state")
    monkeypatch.setattr(gpu, "describe_machine", lambda *packages: MACHINE)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    return gpu


def run(gpu, monkeypatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["gpu.py", *words])
    return gpu.main()


def test_without_a_gpu_it_says_so_and_does_nothing(gpu, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert run(gpu, monkeypatch) == 0
    assert "No GPU" in capsys.readouterr().out
    assert not (tmp_path / "results").exists()
    assert not (tmp_path / "good").exists()


def test_parts_are_kept_and_resumed(gpu, monkeypatch, capsys, tmp_path):
    assert run(gpu, monkeypatch) == 1
    out, err = capsys.readouterr()
    assert "1 of 3 parts passed on NVIDIA H200 (test)" in out
    assert "Failed: bad, slow" in err
    file = tmp_path / "results" / "gpu-nvidia-h200-test.json"
    kept = json.loads(file.read_text())
    assert kept["machine"] == MACHINE
    assert kept["parts"]["good"]["last_line"] == "3 passed"
    assert [kept["parts"][n]["ended"] for n in ("good", "bad", "slow")] == ["exit 0", "exit 1", "stopped after 2 s"]
    assert "broken" in (tmp_path / "_build" / "gpu" / "bad.log").read_text()
    (tmp_path / "mended").touch()
    assert run(gpu, monkeypatch, "bad") == 1  # the slow one has not passed
    assert run(gpu, monkeypatch, "--list") == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()[-3:]] == ["passed", "passed", "to"]
    assert (tmp_path / "good").read_text() == "x"  # once
    monkeypatch.setattr(gpu, "key", lambda: "another state")
    run(gpu, monkeypatch, "good")
    assert json.loads(file.read_text())["parts"].keys() == {"good"}
    assert (tmp_path / "good").read_text() == "xx"


def test_parts_side_by_side_and_those_with_a_clock_alone(gpu, monkeypatch, tmp_path):
    log = tmp_path / "log"
    program = (
        "import pathlib, time; log = pathlib.Path({!r}); log.open('a').write('+')\n"
        "while log.read_text().count('+') < {}: time.sleep(0.05)\n"  # until so many have begun
        "log.open('a').write('-')"
    )
    parts = [gpu.Part(f"p{i}", ("-c", program.format(str(log), 1 if i < 2 else 2)), timed=i < 2) for i in range(4)]
    monkeypatch.setattr(gpu, "all_parts", lambda: parts)
    monkeypatch.setattr(gpu, "LIMIT", 60)
    assert run(gpu, monkeypatch, "--jobs", "2") == 0
    assert log.read_text() == "++--+-+-", "two at once, then one after the other"
    log.unlink()
    assert run(gpu, monkeypatch, "p0", "p2", "p1", "p3") == 0, "the second finds two signs: one at a time, in the order asked for"
    assert log.read_text() == "+-" * 4


def test_an_unknown_part_is_named(gpu, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run(gpu, monkeypatch, "good", "nonsense")
    assert "no such part: nonsense; there are good, bad, slow" in capsys.readouterr().err


def test_every_notebook_and_benchmark_is_a_part(gpu, monkeypatch):
    monkeypatch.undo()
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    names = [part.name for part in gpu.all_parts()]
    assert len(names) == len(set(names))
    assert {f"notebook-{p.stem}" for p in (ROOT / "nbs").glob("*.ipynb")} < set(names)
    for part in gpu.all_parts():
        for word in part.command:
            assert not word.endswith(".py") or (ROOT / word).is_file(), word


def test_rows_of_one_machine_are_added_up(gpu):
    from common import add_rows

    row = {"dtype": "float32", "batch": 1, "ms": 3.0}
    path = add_rows("decode", MACHINE, [row], ("dtype", "batch"))
    assert path.name == "decode-nvidia-h200-test.json"
    add_rows("decode", MACHINE | {"date": "later"}, [row | {"batch": 8}, row | {"ms": 2.0}], ("dtype", "batch"))
    assert json.loads(path.read_text())["rows"] == [row | {"batch": 8}, row | {"ms": 2.0}]
    add_rows("decode", MACHINE | {"versions": {"torch": "3"}}, [row], ("dtype", "batch"))
    assert json.loads(path.read_text())["rows"] == [row]
    cpus = [{"cpu": "A CPU(R) @ 2 GHz", "instructions": "AVX2"}, {"cpu": "A CPU(R) @ 2 GHz", "instructions": "AVX512"}]
    files = [add_rows("decode", MACHINE | {"gpu": None} | cpu, [row], ("dtype",)) for cpu in cpus]
    assert [f.name for f in files] == ["decode-a-cpu-2-ghz-avx2-2-cores.json", "decode-a-cpu-2-ghz-avx512-2-cores.json"]
    assert all(json.loads(f.read_text())["rows"] == [row] for f in files), "side by side"
