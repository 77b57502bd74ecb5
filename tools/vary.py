"""Repeat a notebook with other seeds, thread counts and kernels, and say which of its assertions come close to failing.

python tools/vary.py nbs/31_training.ipynb                        five seeds, 1, 2 and 4 threads, two kinds of kernels
python tools/vary.py nbs/31_training.ipynb --seeds 3 --busy       fewer seeds; and once with every core taken
python tools/vary.py tests/test_sampling.py --threads 1,4         tests: as they are seeded, unless --seeds says otherwise

Each variation runs in a process of its own. What is measured of an assertion:
- of `a < b`, how far apart the sides are (the margin), as a part of the larger side, and how much that varies (the spread);
- of `assert_close`, `allclose`, `approx` and `x < 1e-5`, the largest part of the tolerance that was used.
`room` puts both on one scale: the smallest margin in spreads, or how often five times what was used fits into the tolerance.
Below 1 an assertion is close to failing. Of equalities and of integers that stay the same, only failures are reported.
With other seeds, what another process draws (`!gpt2-book`) stays as it is, and an assertion marked `# of this draw` is left out:
it guards a fact of the page's own texts or numbers, which the page tells as such, and no claim about others. A line marked
`# this very one` draws what it draws with its own seed: a page's example, which others are not like.
Under other kernels nothing is compiled: the compiler writes for the real CPU, so `torch.compile` runs its graph as it is, and a
failing cell that compiles is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
sys.path.insert(0, str(TOOLS))

import run_notebooks
from margins import FILE, SHIFT, TRACED, for_other_seeds

STEP = 7919  # between one variation's seeds and the next one's: larger than the seeds that a chapter counts through
KERNELS = {"default": "COMPATIBLE", "avx2": "AVX2", "avx512": "AVX512"}  # PyTorch's name -> MKL's
LEAST = 1e-6  # a margin below this part of the sides is none, even if it never varies


@dataclass(frozen=True)
class Variation:
    """One way to run everything again."""

    name: str
    shift: int = 0
    threads: int = 1
    kernels: str = ""
    busy: bool = False

    def environment(self, note: Path) -> dict[str, str]:
        env = {SHIFT: str(self.shift), FILE: str(note), "OMP_NUM_THREADS": str(self.threads)}
        env["MKL_NUM_THREADS"] = str(self.threads)
        if self.kernels:
            env |= {"ATEN_CPU_CAPABILITY": self.kernels, "MKL_CBWR": KERNELS[self.kernels], TRACED: "1"}
        return env


@dataclass
class Run:
    """What came of one variation of one file."""

    variation: Variation
    notes: list[dict] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)  # where, and how
    left_out: list[str] = field(default_factory=list)


def variations(seeds: int, threads: Sequence[int], kernels: Sequence[str], busy: bool) -> list[Variation]:
    first = threads[0]
    found = [Variation(f"as it is, {first} thread{'s' * (first > 1)}", threads=first)]
    found += [Variation(f"seeds +{STEP * i}", shift=STEP * i, threads=first) for i in range(1, seeds)]
    found += [Variation(f"{n} threads", threads=n) for n in threads[1:]]
    found += [Variation(f"kernels {k}", kernels=k, threads=first) for k in kernels]
    return found + [Variation("busy", threads=first, busy=True)] * busy


# --- running --------------------------------------------------------------------------------------------------------------


@contextmanager
def busy_cores(wanted: bool) -> Iterator[None]:
    """Take every core for as long as the block lasts."""
    command = [sys.executable, "-c", "while True: pass"]
    loops = [subprocess.Popen(command) for _ in range(run_notebooks.cores() * wanted)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run_notebook(path: Path, variation: Variation, root: Path) -> Run:
    """Run a notebook to its end, over failing cells as well."""
    from nbclient import NotebookClient
    from nbformat.v4 import new_code_cell

    run, nb = Run(variation), run_notebooks.prepare(path)
    for n, cell in enumerate(nb.cells, 1):
        if cell.cell_type == "code" and cell.source.strip():
            cell.source = (for_other_seeds(cell.source) if variation.shift else cell.source) + f"\n# cell {n}"
    begin = f"import sys; sys.path.append({str(TOOLS)!r}); import margins; margins.start(get_ipython())"
    nb.cells = [new_code_cell(begin), *nb.cells, new_code_cell("import margins; margins.save()")]
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "notes.json"
        env = run_notebooks._environment(root, variation.threads) | variation.environment(note)
        (place := Path(folder) / "place").mkdir()
        where = {"metadata": {"path": str(place)}}  # what a notebook writes goes with it
        client = NotebookClient(nb, timeout=3 * run_notebooks.TIMEOUT, kernel_name="python3", resources=where, allow_errors=True)
        os.environ.setdefault("JUPYTER_PREFER_ENV_PATH", "1")
        try:
            asyncio.run(client.async_execute(env=env, stderr=subprocess.DEVNULL))
        except Exception as e:
            run.failures.append((path.name, f"{type(e).__name__}: {str(e)[:300]}"))
        if note.exists():
            notes = json.loads(note.read_text(encoding="utf-8"))["notes"]
            run.notes = [n | {"where": f"cell {n['cell']}"} for n in notes]
    for number, cell in enumerate(nb.cells):
        for out in cell.get("outputs", []):
            if out.output_type == "error" and "raises-exception" not in cell.metadata.get("tags", []):
                _note_failure(run, cell.source, number, out)
    return run


def _note_failure(run: Run, source: str, number: int, out) -> None:
    if run.failures and out.ename == "NameError":
        return  # a cell before it would have made the name
    traceback = run_notebooks.ANSI.sub("", "\n".join(out.traceback))
    line = re.search(r"^-+> *(\d+) (.*)$", traceback, re.M)
    where = f"cell {number}" + (f", line {line[1]}: {line[2].strip()}" if line else "")
    if run.variation.kernels and "compile" in source:
        run.left_out.append(where)
    else:
        run.failures.append((where, f"{out.ename}: {out.evalue}".split("\n")[0][:200]))


def run_tests(path: Path, variation: Variation, root: Path) -> Run:
    run = Run(variation)
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "notes.json"
        env = run_notebooks._environment(root, variation.threads) | variation.environment(note)
        env["PYTHONPATH"] += os.pathsep + str(TOOLS)
        command = [sys.executable, "-m", "pytest", "-q", "--assert=plain", "-p", "margins", "-p", "no:cacheprovider", str(path)]
        done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True)
        if not note.exists():
            run.failures.append((path.name, (done.stdout + done.stderr).strip()[-500:]))
            return run
        kept = json.loads(note.read_text(encoding="utf-8"))
    run.notes = [n | {"where": Path(n["file"]).name} for n in kept["notes"]]
    for failed in kept["failed"]:
        if variation.kernels and failed["compiles"]:
            run.left_out.append(failed["test"])
        else:
            run.failures.append((f"{failed['test']}, line {failed['line']}", failed["error"]))
    return run


# --- the report -----------------------------------------------------------------------------------------------------------


@dataclass
class Measured:
    """One assertion over all variations."""

    where: str
    line: int
    text: str
    room: float
    how: str


def measure(runs: Sequence[Run]) -> list[Measured]:
    """Return every assertion that was measured, the one closest to failing first."""
    turns = defaultdict(list)
    for run in runs:
        for n in run.notes:
            turns[n["where"], n["line"], n["column"], n["text"], n["kind"], n["call"]].append(n)
    sites = defaultdict(list)
    for (where, line, column, text, kind, _), notes in turns.items():
        if found := _tolerance(notes) if kind == "tolerance" else _order(notes):
            sites[where, line, column, text].append(found)
    found = [Measured(w, line, text, *min(of)) for (w, line, _, text), of in sites.items()]
    return sorted(found, key=lambda m: m.room)


def _tolerance(notes: Sequence[dict]) -> tuple[float, str]:
    used = max(n["used"] for n in notes)
    return (0.2 / used if used else math.inf), f"{used:.3g} of the tolerance used"


def _order(notes: Sequence[dict]) -> tuple[float, str] | None:
    margins = [n["margin"] for n in notes]
    least, spread = min(margins), max(margins) - min(margins)
    if notes[0]["integer"] and not spread:
        return None
    size = next(n["size"] for n in notes if n["margin"] == least)
    part = least / size if size else 0.0
    room = least / spread if spread else math.inf
    room = max(0.0, min(room, part / LEAST))
    middle = statistics.median(margins)
    return room, f"margin {least:.3g} at least, {part:.1%} of {size:.3g}; median {middle:.3g}, spread {spread:.3g}"


def report(runs: Sequence[Run], shown: int) -> list[str]:
    """Return the lines of the report: what failed, then the assertions, closest to failing first."""
    lines, failed = [], defaultdict(list)
    for run in runs:
        for where, how in run.failures:
            failed[where].append((run.variation.name, how))
    for where, times in failed.items():
        lines += [f"FAILED  {where}", *(f"        {name}: {how}" for name, how in times)]
    for run in runs:
        lines += [f"left out, {run.variation.name}: {where} compiles" for where in run.left_out]
    measured = measure(runs)
    for m in measured[:shown]:
        word = "close" if m.room < 1 else "ok"
        room = "∞" if math.isinf(m.room) else f"{m.room:.2g}"
        lines += [f"{word:7} {m.where}, line {m.line}: {m.text}", f"        room {room}: {m.how}"]
    close = sum(m.room < 1 for m in measured)
    hidden = f" ({len(measured) - shown} more with --all)" if len(measured) > shown else ""
    lines.append(f"{len(measured)} assertions measured{hidden}, {close} close to failing, {len(failed)} failed "
                 f"in one of {len(runs)} variations")  # fmt: skip
    return lines


def integers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def kernels(text: str) -> list[str]:
    names = [part for part in text.split(",") if part]
    if strange := [name for name in names if name not in KERNELS]:
        raise argparse.ArgumentTypeError(f"{strange[0]}: known are {', '.join(KERNELS)}")
    return names


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path, help="notebooks, or files of tests")
    parser.add_argument("--seeds", type=int, help="seeds in all, 1 for those of the file (notebooks: 5, tests: 1)")
    parser.add_argument("--threads", type=integers, default=[1, 2, 4], help="(1,2,4) the first is that of all else")
    parser.add_argument("--kernels", type=kernels, default=["default", "avx2"], help=f"of {','.join(KERNELS)} (default,avx2)")
    parser.add_argument("--busy", action="store_true", help="also once with every core taken by another process")
    parser.add_argument("--tests", action="store_true", help="also the tests that a notebook exports")
    parser.add_argument("--all", action="store_true", help="every measured assertion, not only the twenty closest")
    parser.add_argument("--root", type=Path, default=TOOLS.parent, help="the project's folder")
    args = parser.parse_args(argv)
    if not args.threads or min(args.threads) < 1:
        parser.error("--threads takes one or more numbers from 1")
    if missing := [path for path in args.paths if not path.is_file()]:
        parser.error(f"no file {missing[0]}")
    bad = 0
    for path in _with_tests(args.paths, args.root) if args.tests else args.paths:
        notebook = path.suffix == ".ipynb"
        ways = variations(args.seeds or (5 if notebook else 1), args.threads, args.kernels, args.busy)
        print(f"== {path}: {len(ways)} variations", flush=True)
        runs = []
        for way in ways:
            begin = time.perf_counter()
            with busy_cores(way.busy):
                runs.append((run_notebook if notebook else run_tests)(path.resolve(), way, args.root.resolve()))
            print(f"   {way.name:24} {time.perf_counter() - begin:6.1f} s, {len(runs[-1].failures)} failed", flush=True)
        print(*report(runs, 10**9 if args.all else 20), sep="\n", flush=True)
        bad += any(run.failures for run in runs)
    return int(bad > 0)


def _with_tests(paths: Sequence[Path], root: Path) -> Iterator[Path]:
    from export import Notebook, Project

    for path in paths:
        yield path
        module = Notebook.read(path, Project.read(root).package).module if path.suffix == ".ipynb" else None
        if module and (tests := root / "tests" / f"test_{module}.py").exists():
            yield tests


if __name__ == "__main__":
    sys.exit(main())
