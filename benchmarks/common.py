"""What every benchmark needs: the machine in words, runs in fresh processes, clocks, and a file for the results."""

import argparse
import json
import math
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def describe_machine(*packages: str) -> dict:
    """Describe the machine and the versions that a result depends on, torch's and those of ``packages``."""
    import torch

    cpu, memory = platform.processor() or platform.machine(), None
    if sys.platform == "linux":
        cpu = next(iter(re.findall(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())), cpu)
        memory = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    versions = {}
    for package in ("torch", *packages):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "memory": memory,
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions,
        "date": date.today().isoformat(),
    }


def in_fresh_process(script: str | os.PathLike, *arguments: str, environment: dict[str, str] | None = None) -> dict:
    """Run a script in a process of its own and return the JSON object of its last line."""
    command = [sys.executable, str(script), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ | (environment or {}))
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{result.stderr}")
    return json.loads(result.stdout.splitlines()[-1])


def memory(field: str) -> float | None:
    """Return a field of this process's memory in MB: ``VmRSS`` now, ``VmHWM`` at most, ``RssAnon`` its own. Linux only."""
    if sys.platform != "linux":
        return None
    return int(re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024 / 1e6


def seconds(work: Callable[[], object]) -> float:
    """Time one call, the GPU's work included."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


class Bandwidth:
    """How many bytes a second this machine reads while a benchmark lasts: dot products of two long vectors.

    Take a sample between the things that are compared: what a shared machine gives changes by the minute.
    """

    def __init__(self, device: str, n_bytes: int = 2**29):
        import torch

        self.a, self.b = (torch.ones(n_bytes // 8, device=device) for _ in range(2))
        self.best = 0.0

    def sample(self, times: int = 16) -> float:
        """Return the bytes of a second; the best of all samples is kept."""
        spent = seconds(lambda: [self.a.dot(self.b) for _ in range(times)])
        speed = times * 2 * self.a.nbytes / spent
        self.best = max(self.best, speed)
        return speed


def name_of(machine: dict) -> str:
    """Return what the files of a machine's results are called after, in small letters: its GPU, or its CPU, the
    instructions that PyTorch uses there, and how many cores.

    So results of several CPUs stand side by side.
    """
    instructions = machine.get("instructions", "")  # which older results do not tell
    words = machine["gpu"] or f"{machine['cpu']} {instructions} {machine['cores']} cores"
    return re.sub(r"(\(r\)|\(tm\)|[^a-z0-9])+", "-", words.lower()).strip("-")


def add_rows(kind: str, machine: dict, rows: list[dict], keys: tuple[str, ...]) -> Path:
    """Write rows to ``results/KIND-MACHINE.json``, so that a benchmark can be run in parts; return the file's path.

    Rows of the same machine and libraries that differ in any of ``keys`` stay; those of another one go. Date and system
    are those of the latest part.
    """
    path, kept = RESULTS / f"{kind}-{name_of(machine)}.json", []
    if path.exists():
        old = json.loads(path.read_text(encoding="utf8"))
        latest = {name: machine[name] for name in ("date", "os") if name in machine}
        if old["machine"] | latest == machine:
            new = {tuple(row[k] for k in keys) for row in rows}
            kept = [row for row in old["rows"] if tuple(row.get(k) for k in keys) not in new]
    write_results(path, {"machine": machine, "rows": [*kept, *rows]})
    return path


def write_results(path: str | os.PathLike, results: dict) -> None:
    """Write results as JSON, readable in a diff, beside their place and move them there: a file is never half written."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(results, indent=2) + "\n", encoding="utf8")
    os.replace(beside, path)


def keep_runs(
    kind: str, about: str, folder: Path, options: dict, plan: Callable[[list[dict], int | None], Iterable[dict]],
    run: Callable[[dict], dict], key: Callable[[dict], tuple], say: Callable[[dict], str], *,
    steps: int | None = None, more: dict | None = None,
) -> None:  # fmt: skip
    """Do the runs of a plan on one thread, and keep each in ``FOLDER/KIND-MACHINE.json``; what is stored is not repeated.

    Args:
        about: what ``--help`` says.
        options: what all runs share; a file with others is refused, and so is one of another machine.
        plan: gives jobs, from the rows so far and the number of steps; each is asked for when it is needed.
        run: returns the row of a job. ``key`` tells rows and jobs apart, and ``say`` puts a row in words.
        steps: of a run, which ``--steps`` changes; without it there is no such option.
        more: kept beside the options.
    """
    import torch

    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--save", action="store_true", help="keep the results in results/, and go on from those that are there")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds after which no run is begun")
    if steps is not None:
        parser.add_argument("--steps", type=int, default=steps, help="of each run")
    args = parser.parse_args()

    torch.set_num_threads(1)
    start, machine = time.monotonic(), describe_machine("gpt2_book")
    path = folder / f"{kind}-{name_of(machine)}.json"
    store: dict = {"machine": machine, "options": options, **(more or {}), "rows": []}
    if args.save and path.exists():
        old = json.loads(path.read_text(encoding="utf8"))
        if old["options"] != options or old["machine"] | {"date": None} != machine | {"date": None}:
            parser.error(f"{path} holds runs of another machine, other versions or other options: move it away to begin anew")
        store = old
    done = {key(row) for row in store["rows"]}
    for job in plan(store["rows"], getattr(args, "steps", None)):
        if key(job) in done:
            continue
        if time.monotonic() - start > args.budget:
            print("the budget is spent; run again to go on")
            break
        begun = time.monotonic()
        store["rows"].append(run(job))
        if args.save:
            write_results(path, store)
        print(f"{say(store['rows'][-1])}, {time.monotonic() - begun:.1f} s", flush=True)
