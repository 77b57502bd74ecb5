"""Everything that needs a GPU, in parts of at most eight minutes that can be run one by one and resumed.

    python benchmarks/gpu.py                 every part that has not passed yet on this GPU with this package
    python benchmarks/gpu.py --list          the parts, and which have passed
    python benchmarks/gpu.py decode-float32-1 tests  these parts, also where they have passed
    python benchmarks/gpu.py --jobs 8                eight parts at a time; those that look at the clock come last, one by one

Each part is a command of its own. What it says goes to `_build/gpu/PART.log`; whether it passed, and how long it took, to
`results/gpu-NAME-OF-THE-GPU.json`, with the machine. The benchmarks among them add their figures to `results/decode-NAME.json`
and `results/train-NAME.json`. Without a GPU this program says so and does nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from common import RESULTS, describe_machine, name_of, write_results

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "_build" / "gpu"
LIMIT = 480  # seconds a part may take

sys.path.insert(0, str(ROOT / "tools"))


@dataclass(frozen=True)
class Part:
    """A command, in words for Python's interpreter, and the variables it needs."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    timed: bool = False  # it looks at the clock, so nothing else may run

    def run(self, threads: int | None = None) -> dict:
        """Run it with so many threads, keep what it says, and return whether and how it ended. What it started is stopped
        with it."""
        LOGS.mkdir(parents=True, exist_ok=True)
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        env = os.environ | {"PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}
        env |= ({"OMP_NUM_THREADS": str(threads)} if threads else {}) | self.environment
        start, log = time.monotonic(), LOGS / f"{self.name}.log"
        with open(log, "w", encoding="utf-8") as file:
            process = subprocess.Popen(
                [sys.executable, *self.command], cwd=ROOT, env=env, stdout=file, stderr=file, start_new_session=True
            )
            try:
                code: int | None = process.wait(timeout=LIMIT)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL) if hasattr(
                        os, "killpg"
                    ) else process.kill()  # Windows has no groups
                    process.wait()
        said = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        ended = f"stopped after {LIMIT} s" if code is None else f"exit {code}"
        return {"passed": code == 0, "ended": ended, "seconds": round(time.monotonic() - start, 1),
                "last_line": said[-1] if said else ""}  # fmt: skip


def notebook_part(path: Path) -> Part:
    """One chapter, executed from a fresh kernel: it uses the GPU by itself."""
    return Part(f"notebook-{path.stem}", ("tools/run_notebooks.py", f"nbs/{path.name}"))


def all_parts() -> list[Part]:
    """Return the parts, the quick and telling ones first."""
    pytest = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short")
    parts = [
        Part("on-gpu", (*pytest, "tests/tooling/on_gpu.py")),
        Part("paths", (*pytest, "tests/tooling/on_second_device.py"), {"GPT2_BOOK_TEST_DEVICE": "cuda"}),
        Part("tests", (*pytest, "--ignore=tests/tooling", "-n", "4"), {"OMP_NUM_THREADS": "1"}),
    ]
    for dtype in ("bfloat16", "float16", "float32"):
        for batch in ("1", "8"):
            how = ("--dtype", dtype, "--batch", batch, "--save")
            parts.append(Part(f"decode-{dtype}-{batch}", ("benchmarks/decode.py", *how), timed=True))
    for precision in ("bfloat16", "float16"):
        how = ("--precision", precision, "--save")
        parts.append(Part(f"train-{precision}", ("benchmarks/train.py", *how), timed=True))
    parts.append(Part("ladder", ("benchmarks/ladder.py", "--save"), timed=True))
    notebooks = sorted((ROOT / "nbs").glob("*.ipynb"))
    return parts + [notebook_part(path) for path in notebooks]


def key() -> str:
    """Hash what the parts depend on: the package and its libraries, the notebooks, tests and benchmarks."""
    import hashlib

    from run_notebooks import package_key

    h = hashlib.sha256(package_key(ROOT).encode())
    files = [*(ROOT / "nbs").glob("*.ipynb"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    for file in sorted(files):
        h.update(file.read_bytes())
    return h.hexdigest()[:16]


def read(file: Path, current: str) -> dict:
    """Return what has run for this state of the project, by part."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return kept["parts"] if kept["key"] == current else {}


def run_parts(parts: Mapping[str, Part], names: list[str], jobs: int) -> Iterator[tuple[str, dict]]:
    """Run parts, ``jobs`` at a time and those that look at the clock one by one after them; yield each as it ends."""
    threads = max(1, (os.cpu_count() or 1) // jobs) if jobs > 1 else None
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(parts[name].run, threads): name for name in names if not parts[name].timed or jobs == 1}
        for done in as_completed(running):
            yield running[done], done.result()
    for name in names if jobs > 1 else ():
        if parts[name].timed:
            yield name, parts[name].run()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "parts", nargs="*", help="parts to run, whether or not they have passed; all that have not by default"
    )
    parser.add_argument("--list", action="store_true", help="write the parts and stop")
    parser.add_argument("--jobs", type=int, default=1, help="parts at a time, of those that do not look at the clock (1)")
    args = parser.parse_args()
    parts = {part.name: part for part in all_parts()}
    if unknown := [name for name in args.parts if name not in parts]:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(parts)}")
    import torch

    if not torch.cuda.is_available():
        print("No GPU that PyTorch can use here, so there is nothing to do.")
        return 0
    machine, current = describe_machine("transformers"), key()
    file = RESULTS / f"gpu-{name_of(machine)}.json"
    done = read(file, current)
    if args.list:
        for name in parts:
            print(f"{name:32} {'passed' if done.get(name, {}).get('passed') else 'to run'}")
        return 0
    names = args.parts or [n for n in parts if not done.get(n, {}).get("passed")]
    for name, done[name] in run_parts(parts, names, max(1, args.jobs)):
        print(f"{name:32} {'{ended}, {seconds} s: {last_line}'.format(**done[name])}"[:172], flush=True)
        write_results(file, {"machine": machine, "key": current, "parts": {n: done[n] for n in parts if n in done}})
    failed = [name for name in parts if name in done and not done[name]["passed"]]
    print(
        f"{sum(p['passed'] for p in done.values())} of {len(parts)} parts passed on {machine['gpu']}; see {file.relative_to(ROOT)}"
    )
    if failed:
        print(f"Failed: {', '.join(failed)}; what they said is in {LOGS.relative_to(ROOT)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
