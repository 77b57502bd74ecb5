"""Prepare and execute the book's notebooks: check the `#|` directives, turn them into what MyST-NB understands, run the
cells, and keep the outputs for as long as neither the code cells nor the package change.

    python tools/run_notebooks.py nbs/11_attention.ipynb    run these notebooks, and say what is wrong with them
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import sys
import tempfile
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

import narrow_figures
import nbformat
import warm_kernels
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from nbformat.v4 import new_output

DIRECTIVE = re.compile(r"^\s*#\s*\|\s*(.*?)\s*$")
ANSI = re.compile(r"\x1b\[[0-9;]*m")
WIDTH = 92  # columns of what a page shows at 1280 pixels
GAP = re.compile(r"\S {2,}\S.*\S {2,}\S")  # in a table
TIMEOUT = 600  # seconds a cell may take
SEVERAL = 4  # notebooks for which it pays to import once what most of them import
EMULATED = ("ATEN_CPU_CAPABILITY", "MKL_CBWR")  # another CPU's kernels
# the files of GPT-2's ranks in tiktoken's cache: hashes of the addresses that they come from
GPT2_RANKS = ("6c7ea1a7e38e3a7f062df639a5b80947f075ffe6", "6d1cbeee0f20b3d9449abfede4726ed8212e3aee")
COMPILES = re.compile(r"\btorch\.compile\(|\bcompile=(?:True|can_compile|has_compiler)|--compile\b")
TRAINS = re.compile(r"\.backward\(|\btrain\(|\bTrainer\(")
JAVASCRIPT = ("node", "nodejs", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
VERSIONS = ("torch", "numpy", "transformers", "tiktoken", "safetensors", "matplotlib")  # a new one runs the book again

# What a directive means on the page: the tag that MyST-NB (or, for skip-execution, nbclient) obeys.
FLAGS = {
    "hide": "remove-cell",
    "default_exp": "remove-cell",
    "hide_input": "remove-input",
    "hide_output": "remove-output",
    "export": "exported",
    "exporti": "exported",
    "test": "tested",
}
OPTIONS = {"fig-cap", "fig-alt", "label", "code-fold", "eval"}
EMPTY_REFERENCES = re.compile(r"^## References\s+```\{bibliography\}[^`]*```\s*", re.MULTILINE)
DRAWING = '<svg xmlns="http://www.w3.org/2000/svg" role="img" '  # as gpt2_book.diagrams shows its drawings


class BookError(Exception):
    """A notebook that cannot become a page. The message names the notebook and, where there is one, the cell."""


class Cell:
    """Where a problem is: prints as `nbs/11_attention.ipynb, cell 7 (def causal_mask(T, S):)`."""

    def __init__(self, path: Path, number: int, source: str):
        lines = [s.strip() for s in source.splitlines() if s.strip() and not DIRECTIVE.match(s)]
        self.text = f"nbs/{path.name}, cell {number}" + (f" ({lines[0][:60]})" if lines else "")

    def __str__(self) -> str:
        return self.text


def directives(source: str) -> tuple[list[str], str]:
    """Split a code cell into the directives on its first lines and the code that a reader sees."""
    lines = source.splitlines()
    n = 0
    while n < len(lines) and (not lines[n].strip() or DIRECTIVE.match(lines[n])):
        n += 1
    found = [m[1] for m in map(DIRECTIVE.match, lines[:n]) if m]
    return found, "\n".join(lines[n:]) if found else source


def _test_title(words: Sequence[str], code: str) -> str:
    """Return the line under which a test is folded: its name in words, those of a bare cell's tests, or what it defines."""
    names = list(words) or re.findall(r"^(?:async )?def test_(\w+)\(", code, re.M)
    if not names:
        defined = re.findall(r"^(?:class |(?:async )?def )?(\w+)(?=[(:]| = )", code, re.M)
        return f"For the tests: {_few(defined)}" if defined else "Imports of the tests" if _imports_only(code) else "For the tests"
    words = [name.replace("_", " ") for name in names]
    return f"Test: {words[0]}" if len(words) == 1 else f"{len(words)} tests: {_few(words)}"


def _code_title(code: str, *, figure: bool) -> str:
    """Return the line under which code is folded: what it draws, defines, imports, prints or checks."""
    names = re.findall(r"^(?:class|(?:async )?def) (\w+)", code, re.M)
    if figure or names:
        return "Code of the figure" if figure else f"Code: {_few(names)}"
    body = _statements(code)
    imports = sum(isinstance(node, ast.Import | ast.ImportFrom) for node in body)
    if _imports_only(code) or 2 * imports > len(body):
        return "Imports" if _imports_only(code) else "Imports and settings"
    if re.search(r"^ *print\(", code, re.M) or (body and isinstance(body[-1], ast.Expr)):
        return "Code of the output"
    return "Check" if any(isinstance(node, ast.Assert) for node in body) else "Code"


def _few(names: Sequence[str]) -> str:
    return ", ".join([*names[:3], *["…"] * (len(names) > 3)])


def _obey(cell: NotebookNode, where: Cell, *, solution: bool) -> None:
    """Strip a code cell's directives and leave their meaning in its metadata."""
    found, code = directives(cell.source)
    if late := [line for line in code.splitlines() if line.lstrip().startswith("#|")]:
        raise BookError(f"{where}: `{late[0].strip()}` stands below code; a directive is one of the first lines")
    tags, options = list(cell.metadata.get("tags", [])), {}
    for d in found:
        key, colon, value = (s.strip() for s in d.partition(":"))
        name = key.split()[0] if key else ""
        if not colon and name == "test":
            options["test"] = _test_title(key.split()[1:], code)
        if colon and key in OPTIONS:
            if key in options:
                raise BookError(f"{where}: `{key}` is said twice")
            options[key] = value[1:-1] if len(value) > 1 and value[0] == value[-1] in "\"'" else value
        elif not colon and name in FLAGS:
            tags.append(FLAGS[name])
        else:
            raise BookError(f"{where}: unknown directive `#| {d}`; known are {', '.join([*FLAGS, *sorted(OPTIONS)])}")
    for key, allowed in (("code-fold", ("true", "false")), ("eval", ("true", "false"))):
        if options.get(key, allowed[0]) not in allowed:
            raise BookError(f"{where}: `{key}: {options[key]}`; it takes {' or '.join(allowed)}")
    if missing := [k for k in ("fig-cap", "fig-alt", "label") if k in options and not options[k]]:
        raise BookError(f"{where}: `{missing[0]}` is empty")
    if "label" in options and "fig-cap" not in options:
        raise BookError(f"{where}: `label` without a `fig-cap`: only a figure with a caption has a number to refer to")
    if options.get("eval") == "false":
        tags.append("skip-execution")
    meta = {}
    if "test" in options:  # the page folds every test under its name
        if "code-fold" in options:
            raise BookError(f"{where}: `code-fold` in a test, which is folded anyway")
        tags.append("hide-input")
        meta |= {"code_prompt_show": options["test"], "code_prompt_hide": options["test"]}
    elif options.get("code-fold") == "true":
        tags.append("hide-cell" if solution else "hide-input")  # a solution's outputs give it away as well
        title = "Show solution" if solution else _code_title(code, figure="fig-cap" in options)
        meta |= {"code_prompt_show": title, "code_prompt_hide": title.replace("Show", "Hide", 1)}
    elif "code-fold" not in options and _imports_only(code):
        tags.append("hide-input")
        title = "Imports of the package" if "exported" in tags else "Imports"
        meta |= {"code_prompt_show": title, "code_prompt_hide": title}
    if "fig-cap" in options:
        meta["figure"] = {"caption": options["fig-cap"]} | ({"name": options["label"]} if "label" in options else {})
    if "fig-alt" in options:
        meta["image"] = {"alt": options["fig-alt"]}
    if not code.strip():
        tags.append("remove-cell")
    cell.source = code
    if tags:
        cell.metadata["tags"] = list(dict.fromkeys(tags))
    if meta:
        cell.metadata["mystnb"] = meta


def _imports_only(code: str) -> bool:
    """Whether a cell does nothing but import (and give the figures their style): the page folds it."""
    body = [node for outer in _statements(code) for node in (outer.body if _for_types(outer) else [outer])]
    rest = [node for node in body if not isinstance(node, ast.Import | ast.ImportFrom)]
    return len(body) > len(rest) and all(ast.unparse(node) == "use_book_style()" for node in rest)


def _statements(code: str) -> list[ast.stmt]:
    """Return the statements of a cell; none where it is no Python, but a magic."""
    try:
        return ast.parse(code).body
    except SyntaxError:
        return []


def _for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not node.orelse


def prepare(path: Path, text: str | None = None) -> NotebookNode:
    """Read a notebook as the book shows it: no `#|` line left, their meaning in the cells' tags and metadata."""
    nb = nbformat.reads(path.read_text(encoding="utf-8") if text is None else text, as_version=4)
    solution = False
    for number, cell in enumerate(nb.cells, 1):
        where = Cell(path, number, cell.source)
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            _obey(cell, where, solution=solution)
        elif cell.cell_type == "markdown":
            for heading in re.findall(r"^##? +(.*?)\s*$", cell.source, re.M):
                solution = heading.lower().startswith("exercise")
            if re.search(r"!\[\s*\]\(", cell.source):
                raise BookError(f"{where}: an image without alt text; say what it shows: ![here](picture.svg)")
    words = [cell for cell in nb.cells if cell.cell_type == "markdown"]
    if not any("{cite" in cell.source for cell in words):  # a page without papers has no empty list of them
        for cell in words:
            cell.source = EMPTY_REFERENCES.sub("", cell.source)
    return nb


def check_figures(nb: NotebookNode, path: Path) -> list[str]:
    """Return what is wrong with the figures of an executed notebook: none is shown without caption and alt text."""
    problems = []
    for number, cell in enumerate(nb.cells, 1):
        tags = set(cell.metadata.get("tags", []))
        if cell.cell_type != "code" or tags & {"remove-cell", "remove-output", "skip-execution"}:
            continue
        meta, where = cell.metadata.get("mystnb", {}), Cell(path, number, cell.source)
        shown = [o for o in cell.outputs if o.output_type in ("display_data", "execute_result")]
        images = [o for o in shown if any(k.startswith("image/") for k in o.data)]
        images += [o for o in shown if "".join(o.data.get("text/html", "")).startswith(DRAWING)]
        html = "".join("".join(o.data.get("text/html", "")) for o in shown)
        lacks = [k for k, there in (("fig-cap", "figure" in meta), ("fig-alt", "image" in meta)) if not there]
        if images and lacks:
            problems.append(f"{where}: a figure without {' and '.join(f'`#| {k}: ...`' for k in lacks)}")
        elif ("image" in meta and not images) or ("figure" in meta and not shown):
            problems.append(f"{where}: `fig-cap` or `fig-alt`, but the cell shows no figure")
        elif "figure" in meta and len([o for o in shown if set(o.data) != {"text/plain"}]) > 1:
            problems.append(f"{where}: more than one output under one caption; give each figure a cell of its own")
        if re.search(r"<img\b(?![^>]*\balt=.[^\"'>])", html):
            problems.append(f"{where}: an <img> without alt text")
        if re.search(r"<svg\b(?![^>]*\baria-(?:label|labelledby|hidden)=)", html):
            problems.append(f"{where}: an <svg> without aria-label (or aria-hidden, if it says nothing)")
    return problems


def arrange_figures(nb: NotebookNode) -> None:
    """Give a drawing its alt text, and leave the caption to the figure alone: other values are printed below it."""
    for cell in nb.cells:
        meta = cell.metadata.get("mystnb", {}) if cell.cell_type == "code" else {}
        for out in cell.get("outputs", []) if "image" in meta else []:
            html = "".join(out.get("data", {}).get("text/html", ""))
            if html.startswith(DRAWING):
                own = re.match(rf"{DRAWING}aria-label=(\"[^\"]*\"|'[^']*')", html)[1]
                out.data["text/html"] = html.replace(own, quoteattr(meta["image"]["alt"]), 1)
        if "figure" in meta:
            values = [o for o in cell.outputs if set(o.get("data", [])) == {"text/plain"}]
            if len(values) < sum("data" in o for o in cell.outputs):
                rest = [o for o in cell.outputs if o not in values]
                cell.outputs = rest + [
                    new_output("stream", name="stdout", text=o.data["text/plain"] + "\n") for o in values
                ]


def take_narrow(nb: NotebookNode) -> dict[str, str]:
    """Take the drawings for narrow pages out of the outputs; return each under the name of the file of its wide one."""
    drawings = {}
    for cell in nb.cells:
        for out in cell.get("outputs", []):
            if drawing := out.get("data", {}).pop(narrow_figures.MIME, None):
                wide = os.linesep.join("".join(out.data["image/svg+xml"]).splitlines())
                drawings[hashlib.sha256(wide.encode()).hexdigest()] = "".join(drawing)  # as MyST-NB names it
    return drawings


def check_widths(nb: NotebookNode, path: Path) -> list[str]:
    """Return which tables a page of 1280 pixels would cut off; a wide line of prose is folded."""
    problems = []
    for number, cell in enumerate(nb.cells, 1):
        if cell.cell_type != "code" or {"remove-cell", "remove-output"} & set(cell.metadata.get("tags", [])):
            continue
        for text in _printed(cell):
            wide = [(i, line) for i, line in enumerate(text.splitlines(), 1) if len(line) > WIDTH and GAP.search(line)]
            for i, line in wide[:1]:
                where = Cell(path, number, cell.source)
                problems.append(f"{where}: line {i} of its output has {len(line)} columns; a page shows {WIDTH}: {line[:40]}...")
    return problems


def _printed(cell: NotebookNode) -> list[str]:
    """Return the texts that a cell has printed, and the value that it ends in."""
    texts = [out.text for out in cell.outputs if out.output_type == "stream"]
    return texts + ["".join(out.data["text/plain"]) for out in cell.outputs if set(out.get("data", [])) == {"text/plain"}]


def fold_lines(nb: NotebookNode) -> None:
    """Break the wide lines of what was printed, between words, as a terminal would."""
    for cell in nb.cells:
        for out in cell.get("outputs", []):
            if out.output_type == "stream":
                out.text = _fold(out.text)
            elif set(out.get("data", [])) == {"text/plain"}:
                out.data["text/plain"] = _fold("".join(out.data["text/plain"]))


def _fold(text: str) -> str:
    lines = []
    for line in text.splitlines(keepends=True):
        body = line.rstrip("\n")
        if len(body) > WIDTH:
            indent = " " * (len(body) - len(body.lstrip(" ")) + 2)
            body = "\n".join(textwrap.wrap(body, WIDTH, subsequent_indent=indent, break_on_hyphens=False))
        lines.append(body + line[len(line.rstrip("\n")) :])
    return "".join(lines)


class Outputs:
    """The executed cells' outputs, one file for each notebook, named by a hash of all that they depend on."""

    def __init__(self, root: Path):
        self.root, self.folder = root, root / "_build" / "outputs"
        self.package = package_key(root) + surroundings()

    def file(self, nb: NotebookNode, path: Path) -> Path:
        cells = [[c.source, "skip-execution" in c.metadata.get("tags", [])] for c in nb.cells if c.cell_type == "code"]
        if any("_assets" in source for source, _ in cells):
            cells.append([scripts_key(self.root), False])
        key = hashlib.sha256((json.dumps(cells) + self.package).encode()).hexdigest()[:16]
        return self.folder / f"{path.stem}-{key}.json"

    def fill(self, nb: NotebookNode, path: Path) -> bool:
        """Put the kept outputs into `nb`; return whether there were any."""
        try:
            kept = json.loads(self.file(nb, path).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        for cell, outputs in zip((c for c in nb.cells if c.cell_type == "code"), kept["outputs"], strict=True):
            cell.outputs = [nbformat.from_dict(o) for o in outputs]
        return True

    def keep(self, nb: NotebookNode, path: Path) -> None:
        file = self.file(nb, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        part.write_text(
            json.dumps({"outputs": [c.outputs for c in nb.cells if c.cell_type == "code"]}), encoding="utf-8"
        )
        part.replace(file)  # never half a file

    def prune(self, current: Sequence[Path]) -> None:
        """Delete every file but the `current` ones."""
        for file in set(self.folder.glob("*")) - set(current):
            file.unlink()


def package_key(root: Path) -> str:
    """Hash what every notebook depends on besides itself: the package, its assets, and the libraries below it."""
    h = hashlib.sha256(sys.version.encode() + Path(narrow_figures.__file__).read_bytes())
    for name in VERSIONS:
        try:
            h.update(f"{name} {importlib.metadata.version(name)}".encode())
        except importlib.metadata.PackageNotFoundError:
            h.update(name.encode())
    for file in sorted((root / "gpt2_book").rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            h.update(file.relative_to(root).as_posix().encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return h.hexdigest()


def scripts_key(root: Path) -> str:
    """Hash the scripts of the pages, which a notebook may run, and say whether anything here runs JavaScript."""
    h = hashlib.sha256(json.dumps([name for name in JAVASCRIPT if shutil.which(name)]).encode())
    for file in sorted((root / "_assets").rglob("*.js")):
        h.update(file.relative_to(root).as_posix().encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return h.hexdigest()


@functools.cache  # what a build downloads, the next one sees
def surroundings() -> str:
    """Say what a page may show otherwise elsewhere: which data are at hand, whether there is a GPU, whose kernels run."""
    tiktoken = Path(os.environ.get("TIKTOKEN_CACHE_DIR") or Path(tempfile.gettempdir()) / "data-gym-cache")
    hub = os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or "~/.cache/huggingface") / "hub"
    data = [[(tiktoken / name).exists() for name in GPT2_RANKS]]
    data += [_names(_texts(), "*.txt"), _names(Path(hub).expanduser(), "models--*")]
    gpu = [bool(shutil.which("nvidia-smi")), os.environ.get("CUDA_VISIBLE_DEVICES")]
    return json.dumps([data, gpu, [os.environ.get(name) for name in EMULATED]])


def _texts() -> Path:
    """The folder of downloaded texts, as `gpt2_book.workshop.corpora.cache_folder` has it, without importing PyTorch."""
    if folder := os.environ.get("GPT2_BOOK_CACHE"):
        return Path(folder).expanduser()
    import pooch

    return Path(pooch.os_cache("gpt2_book"))


def _names(folder: Path, pattern: str) -> list[str]:
    return sorted(p.name for p in folder.glob(pattern)) if folder.is_dir() else []


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _environment(root: Path, threads: int) -> dict[str, str]:
    """Say what a kernel needs: this tree's package and this environment's commands, its share of the cores, no bars or colors."""
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH"), str(Path(__file__).parent)]))
    commands = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    quiet = {
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TQDM_DISABLE": "1",
        "NO_COLOR": "1",
    }
    # a cell that asks for more threads than there are quiet cores waits asleep, not spinning
    share = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    # the C library of Linux keeps what a step frees for the next one, instead of asking the system for it anew
    keep = {"MALLOC_MMAP_THRESHOLD_": "1073741824", "MALLOC_TRIM_THRESHOLD_": "1073741824"}
    return os.environ | {"PYTHONPATH": path, "PATH": commands} | share | keep | quiet


def _for_the_compiler(env: dict[str, str], nb: NotebookNode) -> dict[str, str]:
    """Leave out what says that the CPU is another one where a notebook compiles: the compiler writes for the real CPU."""
    compiles = any(c.cell_type == "code" and COMPILES.search(c.source) for c in nb.cells)
    return {k: v for k, v in env.items() if k not in EMULATED} if compiles else env


def use_selectors() -> None:
    """Have asyncio use the event loop that knows sockets as ZeroMQ needs them; Windows has another one by default."""
    if sys.platform == "win32" and sys.version_info < (3, 16):
        asyncio.set_event_loop_policy(asyncio.WindowsSelectorEventLoopPolicy())


def _describe(error: BaseException, nb: NotebookNode, path: Path) -> str:
    """Say which cell failed and how, so that it can be read in a terminal or a CI log."""
    for number, cell in enumerate(nb.cells, 1):
        for out in cell.get("outputs", []):
            if out.output_type == "error" and "raises-exception" not in cell.metadata.get("tags", []):
                where = Cell(path, number, cell.source)
                if isinstance(error, CellTimeoutError):  # the kernel was interrupted
                    return f"{where}: took longer than {TIMEOUT} s"
                return f"{where}: {out.ename}: {out.evalue}\n" + ANSI.sub("", "\n".join(out.traceback)).strip()
    last = max((n for n, c in enumerate(nb.cells, 1) if c.get("execution_count")), default=0)
    return f"nbs/{path.name}, in or after cell {last}: {type(error).__name__}: {error}"


class _Client(NotebookClient):
    """Jupyter's, which runs the cells behind a gate: the next kernel may start, and the last one end, while others compute."""

    gate: asyncio.Semaphore
    spent = 0.0  # seconds behind the gate

    @contextlib.asynccontextmanager
    async def async_setup_kernel(self, **how: object) -> AsyncIterator[None]:
        async with super().async_setup_kernel(**how), self.gate:
            start = time.perf_counter()
            try:
                yield
            finally:
                self.spent = time.perf_counter() - start


async def _execute(
    nb: NotebookNode, env: dict[str, str], kernels: type[AsyncKernelManager], gate: asyncio.Semaphore
) -> float:
    """Run the cells, and return how many seconds they took."""
    os.environ.setdefault(
        "JUPYTER_PREFER_ENV_PATH", "1"
    )  # this environment's kernel, not another one's of the same name
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryFile() as log:
        client = _Client(
            nb,
            timeout=TIMEOUT,
            kernel_name="python3",
            kernel_manager_class=kernels,
            resources={"metadata": {"path": place}},  # its own, since two chapters may give a file the same name
            extra_arguments=["--InteractiveShellApp.extensions=narrow_figures"],  # a file beside this one
        )
        client.gate = gate
        try:
            await client.async_execute(env=env, stderr=log)  # what the kernel says is of interest only when it dies
            return client.spent
        except DeadKernelError as e:
            log.seek(0)
            raise DeadKernelError(f"{e}\n{log.read().decode(errors='replace')[-2000:]}") from e


def _finish(nb: NotebookNode) -> list[str]:
    """Take from the outputs what no page shows (stderr, live widgets), join what was printed; return what stderr said."""
    said = []
    for cell in nb.cells:
        outputs = []
        for out in cell.get("outputs", []):
            if out.output_type == "stream" and out.name == "stderr":
                said += [line for line in ANSI.sub("", out.text).splitlines() if line.strip()]
            elif out.output_type == "stream" and outputs and outputs[-1].get("name") == out.name:
                outputs[-1].text += out.text  # printed piece by piece, shown as one text
            else:
                out.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)
                outputs.append(out)
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = outputs, None
        cell.metadata.pop("execution", None)
    nb.metadata.pop("widgets", None)
    return said


def longest_first(paths: Sequence[Path], notebooks: Mapping[Path, NotebookNode]) -> list[Path]:
    """Return the notebooks that train or compile before the others, and of each kind the later ones first: they take longest."""

    def rank(place: int) -> tuple[bool, int]:
        shown = [cell for cell in notebooks[paths[place]].cells if not {"tested", "exported"} & {*cell.metadata.get("tags", [])}]
        code = [cell.source for cell in shown if cell.cell_type == "code"]
        return not any(TRAINS.search(source) or COMPILES.search(source) for source in code), -place

    return [paths[place] for place in sorted(range(len(paths)), key=rank)]


def execute(
    paths: Sequence[Path], root: Path, *, jobs: int = 2, prune: bool = True, say: Callable[[str], None] = print
) -> list[str]:
    """Execute the notebooks whose outputs are not kept, `jobs` at a time, and return all problems found.

    With `prune` and no problem, forget the outputs of everything but `paths`.
    """
    store = Outputs(root)
    problems, notebooks, current, todo = [], {}, [], []
    for path in paths:
        try:
            notebooks[path] = nb = prepare(path)
        except BookError as e:
            problems.append(str(e))
            continue
        current.append(store.file(nb, path))
        if store.fill(nb, path):
            problems += check_figures(nb, path) + check_widths(nb, path)
        else:
            todo.append(path)
    threads = max(1, cores() // max(1, min(jobs, len(todo))))
    plural = "s" * (threads > 1)
    say(f"Notebooks: {len(paths)}, unchanged since they ran: {len(notebooks) - len(todo)}, to run: {len(todo)}"
        + (f", {min(jobs, len(todo))} at a time with {threads} thread{plural} each" if todo else ""))  # fmt: skip
    env = _environment(root, threads)

    async def run(path: Path, places: asyncio.Semaphore, gate: asyncio.Semaphore) -> None:
        async with places:
            nb = notebooks[path]
            try:
                seconds = await _execute(nb, _for_the_compiler(env, nb), kernels, gate)
            except Exception as e:
                problems.append(_describe(e, nb, path))
                say(f"  {path.stem:28} FAILED")
                return
            if said := _finish(nb):
                say(f"  {path.stem}: {len(said)} line(s) on stderr, not on the page; the first: {said[0][:200]}")
            problems.extend(check_figures(nb, path) + check_widths(nb, path))
            store.keep(nb, path)
            say(f"  {path.stem:28} {seconds:5.1f} s")

    def complain(loop: asyncio.AbstractEventLoop, context: dict) -> None:
        task = str(context.get("future") or context.get("task"))
        if "_async_poll_kernel_alive" not in task:  # nbclient may look once more after a kernel that has ended
            loop.default_exception_handler(context)

    def no_handler(*args: object) -> None:
        raise RuntimeError("nbclient would take Ctrl+C to mean one kernel, and go on with the next notebook")

    async def run_all() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(complain)
        loop.add_signal_handler = loop.remove_signal_handler = no_handler
        places, gate = asyncio.Semaphore(jobs + 2), asyncio.Semaphore(jobs)  # kernels, and those that compute
        await asyncio.gather(*(run(path, places, gate) for path in longest_first(todo, notebooks)))

    use_selectors()
    several = warm_kernels.POSSIBLE and len(todo) >= SEVERAL
    with warm_kernels.warm(env) if several else contextlib.nullcontext(AsyncKernelManager) as kernels:
        asyncio.run(run_all())
    problems.sort()
    if prune and not problems:
        store.prune(current)
    return problems


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run notebooks from fresh kernels; fail with what a cell raises.")
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--jobs", type=int, default=1, help="notebooks to run at a time (1)")
    parser.add_argument("--again", action="store_true", help="also those whose outputs are kept")
    args = parser.parse_args(argv)
    root, paths = Path(__file__).resolve().parent.parent, [path.resolve() for path in args.notebooks]
    if missing := [path for path in paths if not path.is_file()]:
        parser.error(f"no file {missing[0]}")
    if args.again:
        store = Outputs(root)
        for path in paths:
            store.file(prepare(path), path).unlink(missing_ok=True)
    problems = execute(paths, root, jobs=args.jobs, prune=False)
    print(*problems, sep="\n", end="\n" * bool(problems), file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
