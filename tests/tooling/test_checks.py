"""What .ci/run is made of: a command without a network, the oldest versions, what a page may show otherwise elsewhere."""

import asyncio
import os
import re
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import build_book
import export
import lower_bounds
import run_notebooks
import warm_kernels

# --- without a network ------------------------------------------------------------------------------------------------

LOOK = """
import os, socket, urllib.request
with socket.create_server(("127.0.0.1", 0)) as server:
    socket.create_connection(server.getsockname(), timeout=5).close()
try:
    urllib.request.urlopen("http://192.0.2.1/", timeout=5)  # an address for documentation, which nobody has
except OSError as e:
    print(os.environ["GPT2_BOOK_ALONE"], getattr(e, "reason", e))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a tool of the checks on Linux and macOS")
def test_a_command_alone_reaches_itself_and_nobody_else():
    alone = [sys.executable, ROOT / "tools" / "alone.py"]
    said = subprocess.run([*alone, sys.executable, "-c", LOOK], capture_output=True, text=True, check=True).stdout
    assert re.match(r"namespace .*unreachable|proxy .*refused", said), said
    assert subprocess.run([*alone, sys.executable, "-c", "raise SystemExit(7)"], check=False).returncode == 7


# --- the oldest versions ----------------------------------------------------------------------------------------------


def test_the_oldest_versions_are_those_of_settings_ini():
    ini = ConfigParser(delimiters=["="])
    ini.read(ROOT / "settings.ini", encoding="utf-8")
    found = lower_bounds.bounds(ROOT / "settings.ini", ["requirements"])
    for requirement in ini["DEFAULT"]["requirements"].split():
        name, _, least = requirement.partition(";")[0].partition(">=")
        assert found[name].startswith(f"{name}=={least}")
    assert found["tomli"].endswith(' ; python_version<"3.11"')


def test_a_requirement_without_a_lower_bound_is_refused(tmp_path):
    (tmp_path / "settings.ini").write_text("[DEFAULT]\none = numpy>=1\ntwo = numpy>=2\nthree = numpy\n", encoding="utf-8")
    with pytest.raises(ValueError, match="numpy==1, and numpy==2"):
        lower_bounds.bounds(tmp_path / "settings.ini", ["one", "two"])
    with pytest.raises(ValueError, match="numpy has no lower bound"):
        lower_bounds.bounds(tmp_path / "settings.ini", ["three"])


# --- what a page may show otherwise elsewhere -------------------------------------------------------------------------


def test_outputs_are_kept_apart_by_the_data_at_hand_and_the_kernels(tmp_path, monkeypatch):
    def seen() -> str:
        run_notebooks.surroundings.cache_clear()
        return run_notebooks.surroundings()

    for name in ("TIKTOKEN_CACHE_DIR", "GPT2_BOOK_CACHE", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    states = [seen()]
    for name in (f"TIKTOKEN_CACHE_DIR/{run_notebooks.GPT2_RANKS[0]}", "GPT2_BOOK_CACHE/a.txt", "HF_HUB_CACHE/models--gpt2/x"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
        states.append(seen())
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    states.append(seen())
    assert len(set(states)) == 5
    (tmp_path / "TIKTOKEN_CACHE_DIR" / ("0" * 40)).touch()  # another file that tiktoken keeps
    assert seen() == states[-1]
    run_notebooks.surroundings.cache_clear()


def test_a_notebook_that_compiles_runs_with_the_kernels_of_the_real_cpu():
    env = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1"}
    for source, compiles in (("torch.compile(f)", True), ("generate(idx, 3, compile=True)", True), ("re.compile(p)", False),
                             ("def f(compile=False): ...", False), ("!gpt2-book generate --compile", True)):  # fmt: skip
        nb = new_notebook(cells=[new_code_cell(source)])
        kept = run_notebooks._for_the_compiler(env, nb)
        assert kept == ({"OMP_NUM_THREADS": "1"} if compiles else env), source


def test_notebooks_run_by_name(tmp_path, capsys):
    path = tmp_path / "broken.ipynb"
    path.write_text(nbformat.writes(new_notebook(cells=[new_code_cell("1 / 0")])), encoding="utf-8")
    assert run_notebooks.main([str(path)]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run_notebooks.main([str(tmp_path / "none.ipynb")])


def test_notebooks_that_train_or_compile_come_first():
    """A cell of the text decides: what a class to keep or a folded test does, takes no time or little."""
    sources = {"first": "x = 1", "test": "#| test\nloss.backward()", "tells": "print('train the model')", "late": "train(model)"}
    sources |= {"fast": "step = torch.compile(f)"}
    sources |= {"kept": "#| export\ndef go():\n    loss.backward()", "loop": "for x in rows:\n    loss(x).backward()"}
    paths, notebooks = [Path(f"nbs/{name}.ipynb") for name in sources], {}
    for path in paths:
        notebook = new_notebook(cells=[new_code_cell(sources[path.stem])])
        notebooks[path] = run_notebooks.prepare(path, nbformat.writes(notebook))
    order = [path.stem for path in run_notebooks.longest_first(paths, notebooks)]
    assert order == ["loop", "fast", "late", "kept", "tells", "test", "first"]


def test_programs_that_a_notebook_starts_do_not_search_pytorch_for_garbage(monkeypatch):
    """Neither while it is imported nor at the end, where what is left is put aside before Python looks."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    code = "import atexit, gc; print(gc.get_threshold()[0]); atexit._run_exitfuncs(); print(gc.get_freeze_count())"
    env = run_notebooks._environment(ROOT, 1)
    threshold, frozen = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout.split()
    assert int(threshold) > 100_000 and int(frozen) > 1_000


@pytest.mark.skipif(not warm_kernels.POSSIBLE, reason="kernels are forked on Linux alone")
def test_forked_kernels_are_as_fresh_as_others_and_say_as_well_why_they_end(tmp_path, monkeypatch):
    """Each a process of its own, in a folder of its own, that has imported and done nothing else."""
    tell = "import os, sys; print(os.getppid(), os.getpid(), os.listdir(), 'colorsys' in sys.modules, 'left' in globals())"
    sources = {
        "one": tell + "; left = open('left', 'w').close()",
        "two": tell + "; left = open('left', 'w').close()",
        "dead": "import os; os.write(2, b'its last words'); os._exit(3)",
        "slow": "import time; time.sleep(60)",
        "compiled": "import os; print(os.getppid()); 'torch.compile(f)'",  # wants another environment
    }
    paths = [tmp_path / f"{name}.ipynb" for name in sources]
    for path, source in zip(paths, sources.values(), strict=True):
        path.write_text(nbformat.writes(new_notebook(cells=[new_code_cell(source)])), encoding="utf-8")
    monkeypatch.setattr(warm_kernels, "IMPORTS", ("colorsys",))  # nobody else imports it
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    monkeypatch.setattr(run_notebooks, "TIMEOUT", 3)
    problems = run_notebooks.execute(paths, tmp_path, prune=False, say=lambda text: None)
    slow, dead = sorted(problems, key=lambda text: "slow" not in text)
    assert "slow.ipynb, cell 1" in slow and "took longer than 3 s" in slow
    assert "DeadKernelError" in dead and "its last words" in dead
    store, printed = run_notebooks.Outputs(tmp_path), {}
    for path in paths:
        nb = run_notebooks.prepare(path)
        if store.fill(nb, path):
            printed[path.stem] = nb.cells[0].outputs[0].text.split(maxsplit=2)
    (server, one, *rest), (same, two, *others) = printed["one"], printed["two"]
    assert server == same != printed["compiled"][0] == str(os.getpid())
    assert one != two and rest == others == ["[] True False\n"]
    with pytest.raises(ProcessLookupError):
        os.kill(int(server), 0)  # gone with those who asked it


# --- other systems ----------------------------------------------------------------------------------------------------


def test_cores_are_counted_where_there_is_no_affinity(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert run_notebooks.cores() == 3
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert run_notebooks.cores() == 1


def test_windows_gets_the_event_loop_that_zeromq_needs(monkeypatch):
    class Selectors:
        pass

    chosen = []
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(asyncio, "WindowsSelectorEventLoopPolicy", Selectors, raising=False)
    monkeypatch.setattr(asyncio, "set_event_loop_policy", chosen.append)
    run_notebooks.use_selectors()
    assert [type(policy) for policy in chosen] == [Selectors]
    monkeypatch.setattr(sys, "platform", "linux")
    run_notebooks.use_selectors()
    assert len(chosen) == 1


def test_generated_files_end_their_lines_alike_on_every_system(tmp_path, monkeypatch):
    """As on Windows, where a text file's lines end in two characters unless it is told otherwise."""
    real = open

    def windows_open(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, *args, **how):
        newline = "\r\n" if newline is None and "w" in mode and "b" not in mode else newline
        return real(file, mode, buffering, encoding, errors, newline, *args, **how)

    monkeypatch.setattr("io.open", windows_open)
    (tmp_path / "plain").write_text("a\n", encoding="utf-8")
    assert (tmp_path / "plain").read_bytes() == b"a\r\n", "the patch does not reach pathlib"
    export._replace(tmp_path / "module.py", "x = 1\n")
    assert (tmp_path / "module.py").read_bytes() == b"x = 1\n"


def test_warnings_name_files_as_this_system_writes_them(monkeypatch):
    monkeypatch.setattr(build_book, "ROOT", "C:\\book")
    monkeypatch.setattr(build_book.os, "sep", "\\")
    assert build_book.readable("C:\\book\\nbs\\a.ipynb:120001: bad\n") == ["nbs\\a.ipynb, cell 12: bad"]
