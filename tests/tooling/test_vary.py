"""tools/vary.py: an assertion that another seed or kernel would fail is found, and its margin is computed right."""

import ast
import sys
from pathlib import Path

import nbformat
import pytest
import torch
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import margins
import vary
from vary import Run, Variation, measure, report

AS_IT_IS, OTHER = Variation("as it is"), Variation("seeds +7919", shift=7919)


@pytest.fixture
def recorder(monkeypatch):
    recorder = margins.Recorder()
    monkeypatch.setattr(margins.builtins, margins.NAME, recorder, raising=False)
    return recorder


def execute(source: str, **names) -> None:
    exec(compile(margins.Instrument().visit(ast.parse(source)), "a_test.py", "exec"), names)


def test_both_sides_of_each_comparison_are_noted(recorder):
    execute("assert a < b and c >= 1.5 and len('ab') == 2\nassert all(x < 2 for x in (0.5, 1.5))\nassert 0 < a < 2",
            a=1.0, b=torch.tensor([4.0, 3.0]).min(), c=2.0)  # fmt: skip
    found = [(n["line"], n["kind"], n["margin"], n["size"], n["call"]) for n in recorder.notes]
    assert found == [
        (1, "order", 2.0, 3.0, 0), (1, "order", 0.5, 2.0, 0), (2, "order", 1.5, 2.0, 0), (2, "order", 0.5, 2.0, 1),
        (3, "order", 1.0, 1.0, 0), (3, "order", 1.0, 2.0, 0),
    ]  # fmt: skip
    with pytest.raises(AssertionError):
        execute("assert a < 0.5", a=1.0)


def test_tensors_are_compared_where_they_are_closest(recorder):
    execute("assert (a < 1).all()\nassert torch.all(a > b)", a=torch.tensor([0.5, 0.75]), b=torch.tensor([0.0, 0.5]), torch=torch)
    assert [n["margin"] for n in recorder.notes] == [0.25, 0.25]


def test_what_is_meant_to_fail_is_left_alone(recorder):
    execute("with pytest.raises(AssertionError):\n    assert a < 0.5\ntry:\n    assert a < 0.5\nexcept AssertionError:\n    pass",
            a=1.0, pytest=pytest)  # fmt: skip
    assert recorder.notes == []


def test_the_part_of_a_tolerance_that_is_used(recorder):
    execute("assert gap < 1e-5\nassert value == pytest.approx(0.2, abs=0.1)", gap=4e-6, value=0.25, pytest=pytest)
    assert [n["used"] for n in recorder.notes] == [pytest.approx(0.4), pytest.approx(0.5)]
    ones = torch.ones(3, dtype=torch.float64)
    assert margins.used_of_tolerance(ones + 3e-4, ones, rtol=0, atol=1e-3) == pytest.approx(0.3)
    assert margins.used_of_tolerance({"a": [ones, ones + 1e-8]}, {"a": [ones, ones]}, None, None) == pytest.approx(0.05, rel=0.01)
    assert margins.used_of_tolerance(ones, ones, rtol=0, atol=0) == 0
    assert margins.used_of_tolerance(0.1, 0.1, None, None) == 0


def runs(*values: float, **what) -> list[Run]:
    note = {"where": "cell 2", "line": 1, "column": 0, "text": "a < b", "call": 0, "kind": "order", "integer": False}
    return [Run(AS_IT_IS, [note | {"margin": v, "size": 2.0} | what]) for v in values]


def test_margin_and_spread_make_the_room():
    (m,) = measure(runs(0.5, 0.9, 0.7))
    assert m.room == pytest.approx(0.5 / 0.4)
    assert m.how == "margin 0.5 at least, 25.0% of 2; median 0.7, spread 0.4"
    assert measure(runs(-0.1, 0.9))[0].room == 0
    assert measure(runs(0.5, 0.5))[0].room > 1000
    assert measure(runs(1e-9, 1e-9))[0].room < 1  # never varies, and is next to nothing
    assert measure(runs(3.0, 3.0, integer=True)) == []
    assert len(measure(runs(3.0, 4.0, integer=True))) == 1
    assert measure(runs(0, 0, kind="tolerance", used=0.4))[0].room == pytest.approx(0.5)


def test_the_closest_comes_first_and_failures_before_all():
    near, far = runs(0.1, 0.3), runs(1.0, 1.1, line=7)
    near[1].failures = [("cell 3, line 4: assert x", "AssertionError: ")]
    lines = report([Run(a.variation, a.notes + b.notes, a.failures) for a, b in zip(near, far)], shown=20)
    assert lines[0] == "FAILED  cell 3, line 4: assert x"
    assert [line.split(":")[0] for line in lines if line[0] != " "][1:3] == ["close   cell 2, line 1", "ok      cell 2, line 7"]
    assert lines[-1] == "2 assertions measured, 1 close to failing, 1 failed in one of 2 variations"


@pytest.fixture(scope="module")
def notebook(tmp_path_factory) -> Path:
    """Its second and third assertions hold with the seed that it has, and the second says so."""
    cells = [
        new_markdown_cell("# Two draws"),
        new_code_cell("#| hide\nimport torch\n\ng = torch.Generator().manual_seed(0)\nx = torch.rand((), generator=g).item()"),
        new_code_cell("assert -1 < x\nopen('drawn.txt', 'w').write(str(x));"),
        new_code_cell("y = 1\nassert round(x, 4) == 0.4963  # of this draw\nassert abs(x - 0.4962565898895264) < 0.001, 'another draw'"),
        new_code_cell("torch.testing.assert_close(torch.tensor(1.0), torch.tensor(1.0 + 2**-20), rtol=0, atol=2**-18)"),
    ]
    path = tmp_path_factory.mktemp("vary") / "draws.ipynb"
    path.write_text(nbformat.writes(new_notebook(cells=cells)), encoding="utf-8")
    return path


def test_an_assertion_that_hangs_on_the_seed_is_found(notebook):
    both = [vary.run_notebook(notebook, way, notebook.parent) for way in (AS_IT_IS, OTHER)]
    assert both[0].failures == []
    assert [file.name for file in notebook.parent.iterdir()] == [notebook.name]  # what it writes does not stay beside it
    assert [where for where, _ in both[1].failures] == ["cell 4, line 3: assert abs(x - 0.4962565898895264) < 0.001, 'another draw'"]
    found = {m.where: m for m in measure(both)}
    assert {where: m.room > 1 for where, m in found.items()} == {"cell 3": True, "cell 4": False, "cell 5": False}
    assert found["cell 5"].how == "0.25 of the tolerance used"
    assert found["cell 5"].text.startswith("torch.testing.assert_close(")


TESTS = """
import torch

def test_one():
    x = torch.rand((), generator=torch.Generator().manual_seed(0)).item()
    assert 0.49 < x < 0.5

def test_two():
    assert torch.rand((), generator=torch.Generator().manual_seed(0)).lt(0.4963).item()  # of this draw
    torch.testing.assert_close(torch.tensor(1.0), torch.tensor(1.0 + 2**-20), rtol=0, atol=2**-18)

def test_three():
    assert torch is None and torch.compile(torch.relu)
"""


def test_a_file_of_tests(tmp_path):
    path = tmp_path / "test_draws.py"
    path.write_text(TESTS, encoding="utf-8")
    kernels = vary.run_tests(path, Variation("kernels default", kernels="default", shift=7919), tmp_path)
    assert [where.partition(",")[0] for where, _ in kernels.failures] == ["test_draws.py::test_one"]
    assert kernels.left_out == ["test_draws.py::test_three"]
    plain = vary.run_tests(path, AS_IT_IS, tmp_path)
    assert len(plain.failures) == 1
    assert [(n["line"], n["kind"]) for n in plain.notes] == [(6, "order"), (6, "order"), (10, "tolerance")]


def test_a_fact_of_the_draw_is_left_out_and_nothing_moves():
    code = "if x:\n    assert a < b  # of this draw\nassert (c <\n        d)  # of this draw\nassert e < f"
    assert margins.for_other_seeds(code) == "if x:\n    pass\npass\n\nassert e < f"
    assert margins.for_other_seeds("!ls\nassert a") == "!ls\nassert a"


def test_an_example_is_drawn_with_its_own_seed(tmp_path):
    cell = new_code_cell("""import random, torch

def drawn():
    return random.Random("one").random()  # this very one

first, other = drawn(), random.Random("one").random()
g = torch.Generator().manual_seed(0)  # this very one
assert abs(first - 0.9399342226745768) < 1e-9 and abs(torch.rand((), generator=g).item() - 0.4962565898895264) < 1e-7
assert abs(other - 0.9399342226745768) < 1e-9, 'another one'""")
    path = tmp_path / "one.ipynb"
    path.write_text(nbformat.writes(new_notebook(cells=[cell])), encoding="utf-8")
    both = [vary.run_notebook(path, way, path.parent) for way in (AS_IT_IS, OTHER)]
    assert both[0].failures == []
    assert [where.partition(":")[0] for where, _ in both[1].failures] == ["cell 1, line 9"]


def test_wrong_options_are_refused(capsys):
    for wrong in (["nothing.ipynb"], [__file__, "--threads", "0"], [__file__, "--kernels", "mmx"]):
        with pytest.raises(SystemExit):
            vary.main(wrong)
    assert "mmx: known are default, avx2, avx512" in capsys.readouterr().err
