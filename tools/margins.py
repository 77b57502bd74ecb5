"""What `tools/vary.py` puts into a notebook's kernel or a run of pytest: other seeds, and a note of what each assertion compared.

`start` reads the three variables below and leaves a recorder, `save` writes what it noted. As a plugin of pytest
(`-p margins`) the module does both by itself.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import importlib.machinery
import inspect
import json
import linecache
import math
import operator
import os
import re
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path

SHIFT, TRACED, FILE = "VARY_SHIFT", "VARY_TRACED", "VARY_FILE"  # added to seeds; whether nothing is compiled; where to
NAME = "__margins__"  # of the recorder, which every module sees
DRAWN = "# of this draw"  # at the end of an assertion that is left out with other seeds
CHOSEN = "# this very one"  # at the end of a line that draws with its own seed also then
SMALL = 0.01  # a float that must stay below a literal up to this stays within a tolerance
CALLS = 200  # of one comparison, told apart: in a loop each turn has a margin of its own
COMPARISONS: dict[type, tuple[str, Callable]] = {
    ast.Lt: ("<", operator.lt), ast.LtE: ("<=", operator.le), ast.Gt: (">", operator.gt), ast.GtE: (">=", operator.ge),
    ast.Eq: ("==", operator.eq), ast.NotEq: ("!=", operator.ne),
}  # fmt: skip
BY_SIGN = dict(COMPARISONS.values())


# --- assertions -----------------------------------------------------------------------------------------------------------


class Instrument(ast.NodeTransformer):
    """Have each comparison of an assertion done by the recorder, which notes its two sides."""

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        node.test = self.watched(node.test)
        return ast.fix_missing_locations(node)

    def visit_With(self, node: ast.With) -> ast.With:
        fails = any("raises" in ast.unparse(item.context_expr) for item in node.items)
        return node if fails else self.generic_visit(node)  # an assertion that is meant to fail is no one's concern

    def visit_Try(self, node: ast.Try) -> ast.Try:
        return node if node.handlers else self.generic_visit(node)

    def watched(self, test: ast.expr) -> ast.expr:
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            test.values = [self.watched(value) for value in test.values]
        elif isinstance(test, ast.Compare) and all(type(op) in COMPARISONS for op in test.ops):
            return self.handed_over(test)
        elif isinstance(test, ast.Call) and ast.unparse(test.func) in ("all", "np.all", "torch.all") and test.args:
            test.args[0] = self.watched(test.args[0])
        elif isinstance(test, ast.Call) and isinstance(test.func, ast.Attribute) and test.func.attr in ("all", "item"):
            test.func.value = self.watched(test.func.value)
        elif isinstance(test, ast.GeneratorExp | ast.ListComp):
            test.elt = self.watched(test.elt)
        return test

    def handed_over(self, test: ast.Compare) -> ast.Call:
        sides = [test.left, *test.comparators]
        signs = [COMPARISONS[type(op)][0] for op in test.ops]
        literal = [isinstance(s, ast.Constant) and isinstance(s.value, float) for s in sides]
        place = [test.lineno, test.col_offset, ast.unparse(test), signs, literal]
        handed = [ast.parse(repr(p), mode="eval").body for p in place]
        function = ast.Attribute(ast.Name(NAME, ast.Load()), "compare", ast.Load())
        return ast.copy_location(ast.Call(function, [*handed, *sides], []), test)


def for_other_seeds(code: str) -> str:
    """Return a cell with `pass` in place of each assertion marked `# of this draw`, and with the seeds as they stand in each
    line marked `# this very one`; every other line where it was.
    """
    lines = code.split("\n")
    if not any(line.endswith((DRAWN, CHOSEN)) for line in lines):
        return code
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Assert) and lines[node.end_lineno - 1].endswith(DRAWN):
            lines[node.lineno - 1 : node.end_lineno] = [" " * node.col_offset + "pass", *[""] * (node.end_lineno - node.lineno)]
    kept = rf"\1with __import__('builtins').{NAME}.seeds_as_they_stand(): "
    return "\n".join(re.sub(r"^( *)", kept, line) if line.endswith(CHOSEN) else line for line in lines)


def numbers(value: object):
    """Return a float64 array of a number, an array or a tensor, and whether it holds integers; None for anything else."""
    import numpy as np

    if type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach"):
        import torch

        value = value.detach().cpu()
        value = value.to(torch.float64) if value.is_floating_point() else value
    if isinstance(value, bool) or not (isinstance(value, int | float) or hasattr(value, "__array__")):
        return None
    array = np.asarray(value)
    if array.dtype.kind not in "iuf" or not array.size:
        return None
    return array.astype(np.float64), array.dtype.kind in "iu"


class Recorder:
    """Notes, for every comparison of every assertion, how far it was from failing.

    A note of kind `order` has the distance of the two sides and the larger of them, one of kind `tolerance` the part of
    the tolerance that was used.
    """

    def __init__(self) -> None:
        self.notes: list[dict] = []
        self.calls: dict[tuple, int] = {}
        self.cells: dict[str, int] = {}  # a cell's file in the kernel -> its number in the notebook
        self.still = False  # no seed is moved

    @contextlib.contextmanager
    def seeds_as_they_stand(self):
        self.still = True
        try:
            yield
        finally:
            self.still = False

    def compare(self, line: int, column: int, text: str, signs: Sequence[str], literal: Sequence[bool], *sides: object):
        file = sys._getframe(1).f_code.co_filename
        for i, sign in enumerate(signs):
            left, right = sides[i], sides[i + 1]
            bound = len(signs) == 1 and literal[0 if sign in (">", ">=") else 1]  # an interval's end is no tolerance
            self.note((file, line, column + i, text), sign, left, right, bound)
            result = BY_SIGN[sign](left, right)
            if i + 1 < len(signs) and not result:
                break
        return result

    def note(self, place: tuple, sign: str, left: object, right: object, bound: bool) -> None:
        if sign in (">", ">="):
            left, right = right, left
        if type(right).__name__ == "ApproxScalar" and sign == "==" and isinstance(left, int | float):
            self.tolerance(place, abs(left - right.expected) / right.tolerance if right.tolerance else 0.0)
            return
        a, b = numbers(left), numbers(right)
        if sign in ("==", "!=") or a is None or b is None:
            return
        import numpy as np

        try:
            a_, b_ = np.broadcast_arrays(a[0], b[0])
        except ValueError:
            return
        margins = b_ - a_
        at = np.unravel_index(np.argmin(np.where(np.isnan(margins), -np.inf, margins)), margins.shape)
        if bound and abs(b_[at]) <= SMALL and a_[at] >= 0:
            self.tolerance(place, float(a_[at] / b_[at]) if b_[at] else math.inf)
        else:
            size = float(max(abs(a_[at]), abs(b_[at])))
            self.add(place, kind="order", margin=float(margins[at]), size=size, integer=a[1] and b[1])

    def tolerance(self, place: tuple, used: float) -> None:
        self.add(place, kind="tolerance", used=used)

    def add(self, place: tuple, **what: object) -> None:
        call = self.calls[place] = self.calls.get(place, -1) + 1
        file, line, column, text = place
        if call < CALLS:
            self.notes.append({"file": file, "line": line, "column": column, "text": text, "call": call} | what)


def used_of_tolerance(actual: object, expected: object, rtol: float | None, atol: float | None) -> float:
    """Return the largest difference as a part of what `torch.testing.assert_close` allows."""
    import torch

    if isinstance(expected, dict):
        pairs = [(actual[key], expected[key]) for key in expected]
    elif isinstance(expected, Sequence) and not isinstance(expected, str):
        pairs = list(zip(actual, expected))
    else:
        a, b = (torch.tensor(x, dtype=torch.float64) if isinstance(x, float) else torch.as_tensor(x) for x in (actual, expected))
        a, b = a.detach(), b.detach()
        if rtol is None or atol is None:
            known = [torch.testing._comparison.default_tolerances(x) for x in (a, b)]
            rtol, atol = max(k[0] for k in known), max(k[1] for k in known)
        wide = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
        a, b = a.cpu().to(wide), b.cpu().to(wide)
        used = (a - b).abs() / (atol + rtol * b.abs())
        return used[a != b].nan_to_num(nan=math.inf).max().item() if bool((a != b).any()) else 0.0
    return max((used_of_tolerance(a, b, rtol, atol) for a, b in pairs), default=0.0)


def _watch_tolerances(recorder: Recorder) -> None:
    """Have `assert_close` and `allclose` note how much of their tolerance was used where the notebook or test calls them."""
    import torch

    def watched(function: Callable, rtol: float | None, atol: float | None) -> Callable:
        @functools.wraps(function)
        def call(actual, expected, *args, **how):
            result = function(actual, expected, *args, **how)
            given = dict(zip(("rtol", "atol"), args)) | how
            if result is not False:  # where it fails or raises, that is what the cell or the test makes of it
                file, line = sys._getframe(1).f_code.co_filename, sys._getframe(1).f_lineno
                used = used_of_tolerance(actual, expected, given.get("rtol", rtol), given.get("atol", atol))
                recorder.tolerance((file, line, 0, linecache.getline(file, line).strip()), used)
            return result

        return call

    torch.testing.assert_close = watched(torch.testing.assert_close, None, None)
    torch.allclose = watched(torch.allclose, 1e-5, 1e-8)


# --- seeds ----------------------------------------------------------------------------------------------------------------


def shift_seeds(by: int) -> None:
    """Add `by` to every seed that this process sets from here on, in PyTorch, NumPy and Python."""
    import random

    import numpy as np
    import torch

    def moved(seed):
        if getattr(getattr(builtins, NAME, None), "still", False):
            return seed
        if isinstance(seed, int | np.integer):
            return (int(seed) + by) % 2**32 if 0 <= seed < 2**32 else int(seed) + by
        if isinstance(seed, str):
            return f"{seed}+{by}"
        return [moved(seed[0]), *seed[1:]] if isinstance(seed, list | tuple) and seed else seed

    def shifted(function: Callable) -> Callable:
        return functools.wraps(function)(lambda seed=None, *args, **how: function(moved(seed), *args, **how))

    class Generator(torch.Generator):
        def manual_seed(self, seed: int) -> Generator:
            super().manual_seed(moved(seed))
            return self

    class Random(random.Random):
        def seed(self, a=None, version=2) -> None:
            super().seed(moved(a), version)

    class RandomState(np.random.RandomState):
        def __init__(self, seed=None) -> None:
            super().__init__(moved(seed))

    torch.manual_seed = torch.random.manual_seed = shifted(torch.manual_seed)
    torch.Generator = Generator
    np.random.default_rng, np.random.seed = shifted(np.random.default_rng), shifted(np.random.seed)
    np.random.RandomState = RandomState
    random.seed, random.Random = shifted(random.seed), Random
    _hold_nothing_against_records()


def _hold_nothing_against_records() -> None:
    """A record was made with the seeds as they stand."""
    try:
        from gpt2_book import plots
    except ImportError:
        return
    kept = plots.recorded

    def recorded(name, compute, **how):
        return kept(name, None, **how) if compute is None else json.loads(json.dumps(compute()))

    plots.recorded = functools.wraps(kept)(recorded)


def trace_only() -> None:
    """Have `torch.compile` run the graph as it is: the compiler writes for the real CPU, whatever the kernels are said to be."""
    import torch

    torch.compile = functools.partial(torch.compile, backend="eager")


# --- where it runs --------------------------------------------------------------------------------------------------------


def start(shell: object = None) -> None:
    """Shift, trace and record as the environment says; `shell` is the IPython of a kernel.

    Each cell says its number in its last line, a comment `# cell 7`.
    """
    import torch

    recorder = Recorder()
    setattr(builtins, NAME, recorder)
    _watch_tolerances(recorder)
    if by := int(os.environ.get(SHIFT, 0)):
        shift_seeds(by)
        torch.manual_seed(0)  # also for what never sets one
    if os.environ.get(TRACED):
        trace_only()
    if shell is not None:
        shell.ast_transformers.append(Instrument())
        shell.events.register("pre_run_cell", lambda info: _remember_cell(recorder, shell, info.raw_cell))


def _remember_cell(recorder: Recorder, shell: object, source: str) -> None:
    if number := re.search(r"\n# cell (\d+)$", source):
        recorder.cells[shell.compile.get_code_name(source, source, shell.execution_count)] = int(number[1])


def save() -> None:
    """Write what was noted where the environment says."""
    recorder = getattr(builtins, NAME)
    notes = [n | {"cell": recorder.cells.get(n["file"])} for n in recorder.notes]
    Path(os.environ[FILE]).write_text(json.dumps({"notes": notes, "failed": FAILED}), encoding="utf-8")


FAILED: list[dict] = []  # tests
COMPILING: set[str] = set()  # tests that mention the compiler


def _instrumented(data: bytes, path: str) -> types.CodeType:
    code = data.decode()
    if int(os.environ.get(SHIFT, 0)):
        code = for_other_seeds(code)
    return compile(Instrument().visit(ast.parse(code)), path, "exec", dont_inherit=True)


def pytest_configure(config: object) -> None:
    start()
    before = importlib.machinery.SourceFileLoader.get_code

    def get_code(self, name):  # neither reads nor leaves compiled code: what is kept of the tests has no recorder in it
        path = self.get_filename(name)
        return _instrumented(self.get_data(path), path) if Path(path).name.startswith("test_") else before(self, name)

    importlib.machinery.SourceFileLoader.get_code = get_code


def pytest_collection_modifyitems(items: Sequence) -> None:
    COMPILING.update(item.nodeid for item in items if "compile" in inspect.getsource(item.function))


def pytest_runtest_logreport(report: object) -> None:
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        FAILED.append({
            "test": report.nodeid, "line": crash.lineno if crash else 0,
            "error": crash.message.splitlines()[0] if crash and crash.message else str(report.longrepr)[-300:],
            "compiles": report.nodeid in COMPILING,
        })  # fmt: skip


def pytest_collectreport(report: object) -> None:
    pytest_runtest_logreport(report)


def pytest_sessionfinish() -> None:
    save()


