"""The road from notebook to page: directives, figures, the kept outputs, and a small book that is really built."""

from __future__ import annotations

import ast
import json
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import zlib
from pathlib import Path

import api_pages
import build_pdf
import narrow_figures
import nbformat
import pytest
import run_notebooks
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from run_notebooks import BookError, Outputs, check_figures, prepare

ROOT = Path(__file__).resolve().parents[2]
FIGURE = """#| fig-cap: Two points on a line.
#| fig-alt: A line through two points.
#| label: fig-line
#| code-fold: true
from IPython.display import SVG
SVG('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><path d="M0 0L9 9"/></svg>')"""
CELLS = [
    new_markdown_cell(
        "# First chapter\n\n> What it holds.\n\nSee {eq}`eq-one`, {numref}`fig-line` and $a^2$, and `--out`.\n\n$$\na = b\n$$ (eq-one)"
    ),
    new_code_cell("#| default_exp first"),
    new_code_cell("#| hide\nsecret = 41"),
    new_code_cell("#| export\nimport gpt2_book\n\nanswer = gpt2_book.ANSWER"),
    new_code_cell("#| test it\nassert answer == 42\nanswer"),
    new_code_cell(FIGURE),
    new_markdown_cell("## Exercises\n\nWhat is one and one?"),
    new_code_cell("#| code-fold: true\nprint('the sum is', 1 + 1)"),
    new_markdown_cell("\\begin{align}\na &= b \\\\\n &= c\n\\end{align}"),
]


def write(path: Path, cells: list) -> Path:
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    nb = new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})
    path.parent.mkdir(exist_ok=True)
    nbformat.write(nb, path)
    return path


def one(tmp_path: Path, source: str, **metadata) -> nbformat.NotebookNode:
    """The only cell of a prepared notebook."""
    return prepare(write(tmp_path / "nbs" / "07_cells.ipynb", [new_code_cell(source, metadata=metadata)])).cells[0]


# --- directives ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "code", "tags"),
    [
        ("x = 1", "x = 1", []),
        ("#| hide\nx = 1", "x = 1", ["remove-cell"]),
        ("#| default_exp a", "", ["remove-cell"]),
        ("\n#| export\n#| hide_input\n\nx = 1", "x = 1", ["exported", "remove-input"]),
        ("# | test name\nx = 1\n# a comment", "x = 1\n# a comment", ["tested", "hide-input"]),
        ("#| eval: false\nx = 1", "x = 1", ["skip-execution"]),
        ("#| code-fold: true\nx = 1", "x = 1", ["hide-input"]),
        ("#| code-fold: false\nx = 1", "x = 1", []),
    ],
)
def test_directives_become_tags(tmp_path: Path, source: str, code: str, tags: list[str]):
    cell = one(tmp_path, source)
    assert (cell.source, cell.metadata.get("tags", [])) == (code, tags)


@pytest.mark.parametrize(
    ("source", "title"),
    [
        ("#| test equals_the_other\nx = 1", "Test: equals the other"),
        ("#| test\ndef test_one():\n    pass\n\n\ndef test_two_of_them():\n    pass", "2 tests: one, two of them"),
        ("#| test\n" + "\n".join(f"def test_{name}(): ..." for name in "abcd"), "4 tests: a, b, c, …"),
        ("#| test\nimport math", "Imports of the tests"),
        ("#| test\nimport math\n\nSIZES: tuple = (1, 2)\nx = math.pi\n\n\ndef one(x):\n    y = x", "For the tests: SIZES, x, one"),
        ("#| test\nimport math\n\nmath.pi", "For the tests"),
    ],
)
def test_a_test_is_folded_under_its_name(tmp_path: Path, source: str, title: str):
    meta = one(tmp_path, source).metadata
    assert "hide-input" in meta["tags"]
    assert meta["mystnb"]["code_prompt_show"] == meta["mystnb"]["code_prompt_hide"] == title


@pytest.mark.parametrize(
    ("code", "title"),
    [
        ("def draw(x):\n    return x\n\n\ndraw(1)", "Code: draw"),
        ("import math\n\nuse_book_style()", "Imports"),
        ("import math\nimport os\n\ndevice = 'cpu'", "Imports and settings"),
        ("import math\n\nx = math.pi\nfor y in (x,):\n    print(y)", "Code of the output"),
        ("x = 1\nx", "Code of the output"),
        ("x = 1\nassert x", "Check"),
        ("x = 1", "Code"),
        ("%timeit 1", "Code"),
    ],
)
def test_folded_code_says_what_it_is_for(tmp_path: Path, code: str, title: str):
    meta = one(tmp_path, f"#| code-fold: true\n{code}").metadata["mystnb"]
    assert meta["code_prompt_show"] == meta["code_prompt_hide"] == title


@pytest.mark.parametrize(
    ("source", "folded"),
    [
        ("import os\n\nfrom torch import nn\n\nuse_book_style()", True),
        ("#| export\nfrom __future__ import annotations\n\nimport torch", True),
        ("from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from os import PathLike", True),
        ("import torch\n\ndevice = 'cpu'", False),
        ("#| code-fold: false\nimport torch", False),
        ("1 + 1", False),
        ("%matplotlib inline", False),
    ],
)
def test_imports_alone_are_folded(tmp_path: Path, source: str, folded: bool):
    meta = one(tmp_path, source).metadata
    assert ("hide-input" in meta.get("tags", [])) == folded
    title = "Imports of the package" if source.startswith("#| export") else "Imports"
    assert (meta.get("mystnb", {}).get("code_prompt_show") == title) == folded


def test_tags_of_the_cell_stay(tmp_path: Path):
    assert one(tmp_path, "#| hide\nx", tags=["raises-exception"]).metadata.tags == ["raises-exception", "remove-cell"]


def test_figure_directives(tmp_path: Path):
    meta = one(tmp_path, FIGURE).metadata["mystnb"]
    assert meta["figure"] == {"caption": "Two points on a line.", "name": "fig-line"}
    assert meta["image"] == {"alt": "A line through two points."}
    assert meta["code_prompt_show"] == "Code of the figure"


@pytest.mark.parametrize(("text", "listed"), [("See {cite:p}`who`.", True), ("No paper.", False)])
def test_a_page_without_papers_has_no_list_of_them(tmp_path: Path, text: str, listed: bool):
    end = "## Summary\n\n- It is so.\n\n## References\n\n```{bibliography}\n:filter: docname in docnames\n```"
    nb = prepare(write(tmp_path / "nbs" / "a.ipynb", [new_markdown_cell(text), new_markdown_cell(end)]))
    assert nb.cells[1].source == (end if listed else "## Summary\n\n- It is so.\n\n")


def test_code_is_folded_under_what_it_defines(tmp_path: Path):
    named = "#| code-fold: true\nclass One: ...\n\n\ndef two(): ..."
    assert one(tmp_path, named).metadata["mystnb"]["code_prompt_show"] == "Code: One, two"


def test_a_fold_below_exercises_is_a_solution(tmp_path: Path):
    fold = "#| code-fold: true\n1 + 1"
    cells = [
        new_code_cell(fold),
        new_markdown_cell("## Exercises"),
        new_code_cell(fold),
        new_markdown_cell("## Summary"),
        new_code_cell(fold),
    ]
    made = [c.metadata for c in prepare(write(tmp_path / "nbs" / "a.ipynb", cells)).cells if c.cell_type == "code"]
    assert [m["mystnb"]["code_prompt_show"] for m in made] == ["Code of the output", "Show solution", "Code of the output"]
    assert [m["tags"] for m in made] == [["hide-input"], ["hide-cell"], ["hide-input"]]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("#| exprot\nx = 1", "unknown directive `#| exprot`"),
        ("#| fig-caption: A line\nx = 1", "unknown directive"),
        ("#| export: x\nx = 1", "unknown directive"),
        ("x = 1\n#| export", "stands below code"),
        ("#| test a\n#| code-fold: true\nx = 1", "`code-fold` in a test"),
        ("#| label: fig-a\nx = 1", "`label` without a `fig-cap`"),
        ("#| fig-alt:\nx = 1", "`fig-alt` is empty"),
        ("#| fig-alt: a\n#| fig-alt: b\nx = 1", "said twice"),
        ("#| code-fold: yes\nx = 1", "`code-fold: yes`; it takes true or false"),
    ],
)
def test_a_wrong_directive_is_refused_by_name(tmp_path: Path, source: str, reason: str):
    with pytest.raises(BookError, match=re.escape(reason)) as e:
        one(tmp_path, source)
    assert str(e.value).startswith("nbs/07_cells.ipynb, cell 1 (x = 1)")


def test_a_markdown_image_needs_alt_text(tmp_path: Path):
    with pytest.raises(BookError, match=r"nbs/a\.ipynb, cell 1.*alt text"):
        prepare(write(tmp_path / "nbs" / "a.ipynb", [new_markdown_cell("![](picture.svg)")]))


# --- figures ------------------------------------------------------------------------------------------------------------


def problems(tmp_path: Path, source: str, *outputs: dict) -> list[str]:
    path = write(tmp_path / "nbs" / "07_cells.ipynb", [new_code_cell(source)])
    nb = prepare(path)
    nb.cells[0].outputs = [new_output("display_data", data) for data in outputs]
    return check_figures(nb, path)


SVG, TEXT = {"image/svg+xml": "<svg/>"}, {"text/plain": "Text(0, 0, 'x')"}
DIAGRAM = {"text/html": f'{run_notebooks.DRAWING}aria-label="x, y" class="diagram"/>', "text/plain": "<Diagram>"}
CAP, ALT = "#| fig-cap: c\n", "#| fig-alt: a\n"


@pytest.mark.parametrize(
    ("source", "outputs", "reason"),
    [
        ("plot()", [SVG], "without `#| fig-cap: ...` and `#| fig-alt: ...`"),
        (CAP + "plot()", [SVG], "without `#| fig-alt: ...`"),
        (ALT + "plot()", [SVG], "without `#| fig-cap: ...`"),
        (CAP + ALT + "plot()", [], "shows no figure"),
        (CAP + ALT + "plot()", [SVG, SVG], "more than one output under one caption"),
        ("show()", [{"text/html": '<p><img src="a.png"></p>'}], "<img> without alt text"),
        ("show()", [{"text/html": '<img alt="" src="a.png">'}], "<img> without alt text"),
        ("show()", [{"text/html": "<svg viewBox='0 0 1 1'/>"}], "<svg> without aria-label"),
        ("show()", [DIAGRAM], "without `#| fig-cap: ...` and `#| fig-alt: ...`"),
    ],
)
def test_a_figure_that_says_nothing_is_refused(tmp_path: Path, source: str, outputs: list, reason: str):
    (problem,) = problems(tmp_path, source, *outputs)
    assert reason in problem and problem.startswith("nbs/07_cells.ipynb, cell 1 (")


@pytest.mark.parametrize(
    ("source", "outputs"),
    [
        (CAP + ALT + "plot()", [SVG]),
        (CAP + ALT + "show()", [DIAGRAM]),
        (CAP + ALT + "plot()\n1 + 1", [TEXT, SVG]),
        ("#| hide\nplot()", [SVG]),
        ("1 + 1", [TEXT]),
        ("show()", [{"text/html": '<img src="a.png" alt="a line"><svg aria-hidden="true"/>'}]),
    ],
)
def test_a_figure_with_caption_and_alt_text_is_fine(tmp_path: Path, source: str, outputs: list):
    assert problems(tmp_path, source, *outputs) == []


def test_a_value_beside_a_figure_is_printed_below_it(tmp_path: Path):
    path = write(tmp_path / "nbs" / "a.ipynb", [new_code_cell(CAP + ALT + "plot()"), new_code_cell("1 + 1")])
    nb = prepare(path)
    for cell in nb.cells:
        cell.outputs = [new_output("execute_result", TEXT), new_output("display_data", SVG)]
    run_notebooks.arrange_figures(nb)
    assert [o.output_type for o in nb.cells[0].outputs] == ["display_data", "stream"]
    assert nb.cells[0].outputs[1].text == "Text(0, 0, 'x')\n"
    assert [o.output_type for o in nb.cells[1].outputs] == ["execute_result", "display_data"], (
        "no caption, nothing to mend"
    )


def test_a_diagram_says_what_its_alt_text_says(tmp_path: Path):
    nb = prepare(write(tmp_path / "nbs" / "a.ipynb", [new_code_cell('#| fig-cap: c\n#| fig-alt: a < "b"\nshow()')]))
    nb.cells[0].outputs = [new_output("execute_result", DIAGRAM)]
    run_notebooks.arrange_figures(nb)
    assert nb.cells[0].outputs[0].data["text/html"].endswith("""aria-label='a &lt; "b"' class="diagram"/>""")


def test_a_wide_line_is_folded_and_a_wide_table_refused(tmp_path: Path):
    path = write(tmp_path / "nbs" / "07_cells.ipynb", [new_code_cell("print()")])
    nb = prepare(path)
    table = "name   first   second" + " 1" * 40
    nb.cells[0].outputs = [new_output("stream", name="stdout", text=f"short\n{'word ' * 30}\nend\n")]
    assert run_notebooks.check_widths(nb, path) == []
    run_notebooks.fold_lines(nb)
    text = nb.cells[0].outputs[0].text
    assert text.split() == ["short", *["word"] * 30, "end"] and text.endswith("\nend\n")
    assert max(map(len, text.splitlines())) <= run_notebooks.WIDTH
    nb.cells[0].outputs = [new_output("execute_result", {"text/plain": f"a\n{table}"})]
    (problem,) = run_notebooks.check_widths(nb, path)
    assert problem.startswith("nbs/07_cells.ipynb, cell 1 (print()): line 2 of its output has 101 columns")


def test_the_diagrams_of_the_package_are_known_as_such():
    from gpt2_book.diagrams import Diagram

    assert Diagram()._repr_html_().startswith(f"{run_notebooks.DRAWING}aria-label=")


def test_what_is_printed_piece_by_piece_is_one_text():
    pieces = (("stdout", "RO"), ("stderr", "w\n"), ("stdout", "MEO"), ("stdout", "RO"))
    outputs = [new_output("stream", name=name, text=text) for name, text in pieces]
    outputs.insert(3, new_output("execute_result", TEXT))
    cell = new_code_cell("print()", outputs=outputs)
    assert run_notebooks._finish(new_notebook(cells=[cell])) == ["w"]
    assert [o.get("text") for o in cell.outputs] == ["ROMEO", None, "RO"]


# --- kept outputs -------------------------------------------------------------------------------------------------------


def test_outputs_are_kept_by_code_and_package(tmp_path: Path):
    package = tmp_path / "gpt2_book"
    package.mkdir()
    (package / "a.py").write_text("x = 1\n")
    path = write(tmp_path / "nbs" / "a.ipynb", [new_markdown_cell("Text"), new_code_cell("1 + 1")])

    def name() -> str:
        return Outputs(tmp_path).file(prepare(path), path).name

    first = name()
    write(path, [new_markdown_cell("Other text"), new_code_cell("#| code-fold: true\n1 + 1")])
    assert name() == first, "prose and how a cell is shown do not matter"
    write(path, [new_markdown_cell("Text"), new_code_cell("1 + 2")])
    assert name() != first, "code does"
    write(path, [new_markdown_cell("Text"), new_code_cell("#| eval: false\n1 + 1")])
    assert name() != first, "and so does whether it runs"
    write(path, [new_markdown_cell("Text"), new_code_cell("1 + 1")])
    seen = {name()}
    (package / "a.py").write_text("x = 2\n")
    seen.add(name())
    (package / "assets").mkdir()
    (package / "assets" / "model.bin").write_bytes(b"1")
    seen.add(name())
    (package / "assets" / "model.bin").rename(package / "assets" / "other.bin")
    seen.add(name())
    assert len(seen) == 4, "a module, an asset and its name each count"


def test_half_a_file_of_outputs_is_none(tmp_path: Path):
    path = write(tmp_path / "nbs" / "a.ipynb", [new_code_cell("1 + 1")])
    store, nb = Outputs(tmp_path), prepare(path)
    nb.cells[0].outputs = [new_output("display_data", TEXT)]
    store.keep(nb, path)
    assert store.fill(prepare(path), path)
    file = store.file(nb, path)
    file.write_text(file.read_text()[:-9])
    assert not store.fill(prepare(path), path)


def test_a_slow_cell_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_notebooks, "TIMEOUT", 1)
    path = write(tmp_path / "nbs" / "a.ipynb", [new_code_cell("1"), new_code_cell("import time; time.sleep(30)")])
    (problem,) = run_notebooks.execute([path], tmp_path, say=lambda text: None)
    assert problem.startswith("nbs/a.ipynb") and "longer than 1 s" in problem and "cell 2" in problem


# --- a small book -------------------------------------------------------------------------------------------------------


class Book:
    """A copy of the project's tools around two chapters and a package of one constant."""

    def __init__(self, root: Path):
        self.root, self.html = root, root / "_build" / "html"
        for name in ("tools", "_assets"):
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("_config.yml", "settings.ini", "references.bib"):
            shutil.copy(ROOT / name, root)
        (root / "_toc.yml").write_text("format: jb-book\nroot: nbs/index\nchapters:\n  - file: nbs/01_first\n")
        (root / "gpt2_book").mkdir()
        self.package("42")
        write(root / "nbs" / "index.ipynb", [new_markdown_cell("# The book\n\nTwo pages.")])
        self.chapter(CELLS)

    def package(self, answer: str) -> None:
        (self.root / "gpt2_book" / "__init__.py").write_text(f"ANSWER = {answer}\n")

    def chapter(self, cells: list) -> None:
        write(self.root / "nbs" / "01_first.ipynb", cells)

    def build(self, *args: str) -> tuple[int, str]:
        command = [sys.executable, "tools/build_book.py", *args]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, timeout=300)
        return done.returncode, done.stdout + done.stderr

    def page(self, name: str = "nbs/01_first.html") -> str:
        return (self.html / name).read_text()


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Book:
    return Book(tmp_path_factory.mktemp("book"))


@pytest.fixture
def book(shelf: Book) -> Book:
    """A book to change, as it stood before any test; what was built of it may be another test's."""
    shelf.package("42")
    shelf.chapter(CELLS)
    return shelf


@pytest.fixture
def built(book: Book) -> Book:
    """The same, built as it stands."""
    rc, said = book.build()
    assert rc == 0, said
    return book


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Book:
    """A built book of its own, for the tests that only read it."""
    book = Book(tmp_path_factory.mktemp("finished"))
    rc, said = book.build()
    assert rc == 0, said
    return book


def test_the_page_shows_what_the_directives_say(finished: Book):
    page = finished.page()
    assert "#|" not in page and "secret" not in page and "default_exp" not in page
    assert 'alt="A line through two points."' in page
    assert re.search(
        r'<span class="caption-number">Fig\. 1\.1 </span><span class="caption-text">Two points on a line\.', page
    )
    assert page.count("Code of the figure<") == 2 and page.count("Show solution") == 1
    assert "tag_exported" in page and "tag_tested" in page
    assert '<span class="pre whole">--out</span>' in page
    assert '<span class="section-number">1. </span>First chapter' in page, "a chapter's number is its notebook's"


def test_a_fold_says_its_name_to_a_screen_reader(finished: Book):
    page = finished.page()
    assert "Toggle hidden content" not in page
    assert re.search(r'<summary><p class="collapsed[^>]*>Test: it</p>', page)


def test_many_tests_in_a_row_take_one_line(book: Book):
    few, many = ([new_code_cell(f"#| test {word}_{i}\nassert {i} < 9") for i in range(n)] for word, n in (("few", 4), ("many", 5)))
    used = [new_code_cell("#| test\nimport math"), new_code_cell("#| test math\nassert math.pi > 3")]
    book.chapter([*CELLS, *(c for n, run in (("Few", few), ("Many", many), ("Used", used)) for c in (new_markdown_cell(f"## {n}"), *run))])
    rc, said = book.build()
    assert rc == 0, said
    few, many = book.page().split('id="few"')[1].split('id="many"')
    many, used = many.split('id="used"')
    assert few.count("<summary>") == 4
    assert re.findall(r'<summary><p class="collapsed[^>]*>([^<]*)', used) == ["Test: math", "Imports of the tests", "Test: math"]
    assert many.count("<summary>") == 6 and re.search(r'<summary><p class="collapsed[^>]*>5 tests</p>', many)


def test_a_page_has_a_description_for_search_engines(finished: Book):
    assert '<meta name="description" content="What it holds." />' in finished.page()


def test_a_page_that_moved_sends_its_reader_on_and_a_lost_one_home(book: Book):
    tool = book.root / "tools" / "build_book.py"
    text = tool.read_text()
    tool.write_text(text.replace("MOVED = {", 'MOVED = {"nbs/00_old.html": "01_first.html", "nbs/00_gone.html": "99_never.html", '))
    try:
        rc, said = book.build()
        assert rc == 0, said
    finally:
        tool.write_text(text)
    page = book.page("404.html")
    assert 'href="https://' in page and "no such page" in page
    assert 'content="0; url=01_first.html"' in book.page("nbs/00_old.html")
    assert not (book.html / "nbs" / "00_gone.html").exists()


def test_the_whole_book_is_one_pdf_with_an_outline(finished: Book, tmp_path: Path):
    if not any(map(shutil.which, build_pdf.BROWSERS)):
        pytest.skip("no browser to print with")
    out = tmp_path / "book.pdf"
    build_pdf.build(finished.html, out, "A small book", ["nbs/index", "nbs/01_first"])
    pdf = out.read_bytes()
    said = pdf + b"".join(map(inflated, re.split(rb"stream\r?\n", pdf)))
    assert pdf.startswith(b"%PDF")
    for title in ("A small book", "The book", "First chapter", "Exercises"):
        assert title.encode() in said or title.encode("utf-16-be") in said, title
    assert not (finished.html / "nbs" / "whole_book.html").exists()


def inflated(data: bytes) -> bytes:
    try:
        return zlib.decompressobj().decompress(data)
    except zlib.error:
        return b""


def test_links_of_the_pdf_stay_within_it_and_solutions_are_open(tmp_path: Path):
    (tmp_path / "nbs").mkdir()
    text = """<article class="bd-article"><h1 id="top">One</h1><a href="two.html#x">a</a><a href="#top">b</a><a href="other.html">c</a>
    <a href="https://host/">d</a><details class="admonition hide"><summary>Show code</summary>left out</details>
    <details class="admonition hide"><summary>Show solution</summary>kept</details></article>"""
    (tmp_path / "nbs" / "one.html").write_text(text)
    title, made = build_pdf.article(tmp_path.resolve(), "nbs/one", {"nbs/one", "nbs/two"})
    assert title == "One" and "left out" not in made and "kept" in made and 'open=""' in made
    assert re.findall(r'href="([^"]*)"', made) == ["#nbs-two--x", "#nbs-one--top", "https://host/"]


PANELS = """#| fig-cap: Two lines, on the left and on the right.
#| fig-alt: A line up and a line down.
import matplotlib.pyplot as plt
from matplotlib_inline.backend_inline import set_matplotlib_formats
set_matplotlib_formats("svg")
figure, axes = plt.subplots(1, 2, sharey=True, figsize=(8, 3))
for ax, title in zip(axes, ("left", "right")):
    ax.plot([1, 2])
    ax.set(title=title, ylabel="loss" if title == "left" else "")"""


def test_a_narrow_page_has_panels_below_each_other(book: Book):
    book.chapter([*CELLS, new_code_cell(PANELS)])
    rc, said = book.build()
    assert rc == 0, said
    found = re.search(r'<picture><source media="[^"]*" srcset="([^"]*)" /><img alt="A line up and a line down."[^>]*src="([^"]*)"', book.page())
    wide, narrow = ((book.html / "nbs" / found[i]).read_text() for i in (2, 1))
    assert book.page().count('<p class="stacked">') == 1, "the page says where the caption's left and right are"
    shapes = [tuple(map(float, re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups())) for svg in (wide, narrow)]
    assert shapes[0][0] > 2 * shapes[0][1] and shapes[1][0] < shapes[1][1]
    assert wide.count("<!-- loss -->") == 1 and narrow.count("<!-- loss -->") == 2, "a shared axis is labelled again"
    downloaded = (book.html / "_sources" / "nbs" / "01_first.ipynb").read_text()
    assert "image/svg+xml" in downloaded and narrow_figures.MIME not in downloaded


def test_a_table_of_numbers_keeps_its_size_on_a_narrow_page(book: Book):
    table = PANELS[: PANELS.index("figure, axes")] + "plt.subplots(figsize=(8, 3))[1].imshow([[1, 2]], aspect='auto'); plt.text(0, 0, '1')"
    book.chapter([*CELLS, new_code_cell(table)])
    rc, said = book.build()
    assert rc == 0, said
    (broad,) = re.findall(r'<div class="broad" tabindex="0" style="--broad: (\d+)px"><img alt="A line up', book.page())
    assert 576 < int(broad) < 8 * 96 and "<picture>" not in book.page()


def test_a_figure_is_as_before_once_its_panels_were_stacked():
    plt = pytest.importorskip("matplotlib.pyplot")
    figure, axes = plt.subplots(2, 2, sharex=True, sharey=True, figsize=(8, 5))
    column, small = plt.subplots(2, 1, figsize=(7, 5))[0], plt.subplots(figsize=(4, 3))[0]
    places = [ax.get_subplotspec() for ax in axes.flat]
    labels = [(ax.xaxis.get_tick_params()["labelbottom"], ax.yaxis.get_tick_params()["labelleft"]) for ax in axes.flat]
    assert set(narrow_figures.narrow(figure)) == {narrow_figures.MIME}
    assert [ax.get_subplotspec() for ax in axes.flat] == places and tuple(figure.get_size_inches()) == (8, 5)
    assert [(ax.xaxis.get_tick_params()["labelbottom"], ax.yaxis.get_tick_params()["labelleft"]) for ax in axes.flat] == labels
    assert set(narrow_figures.narrow(column)) == {narrow_figures.MIME} and tuple(column.get_size_inches()) == (7, 5)
    assert narrow_figures.narrow(small) == {}
    uneven = plt.subplots(2, 2, height_ratios=[2, 1])[0]
    assert narrow_figures.side_by_side(figure) and not narrow_figures.side_by_side(uneven), "its columns belong together"
    plt.close("all")


def test_a_chapter_runs_in_a_folder_of_its_own(book: Book):
    book.chapter([*CELLS, new_code_cell('from pathlib import Path\nPath("left_over.txt").write_text("x")')])
    rc, said = book.build()
    assert rc == 0, said
    assert not list(book.root.rglob("left_over.txt"))


def test_a_downloaded_notebook_has_its_outputs(finished: Book):
    nb = nbformat.read(finished.html / "_sources" / "nbs" / "01_first.ipynb", as_version=4)
    printed = "".join(o.get("text", "") for c in nb.cells if c.cell_type == "code" for o in c.outputs)
    assert "the sum is 2" in printed
    assert nb.cells[1].source == "#| default_exp first"  # the notebook, not the page


def test_mathematics_is_left_to_katex(finished: Book):
    page = finished.page()
    assert '<span class="math">a^2</span>' in page
    assert re.search(
        r'<div class="math" id="equation-eq-one">\s*<div class="formula"[^>]*>a = b</div><span class="eqno">\(1\.1\)',
        page,
    )
    assert "\\begin{align*}" in page and "\\begin{align}" not in page, "KaTeX must not number equations as well"
    assert "katex/katex.min.js" in page and "katex" not in finished.page("nbs/index.html"), (
        "only where there is mathematics"
    )


def test_pages_name_no_other_host_but_in_links(finished: Book):
    for page in (finished.page(), finished.page("nbs/index.html"), finished.page("search.html")):
        assert re.findall(r'<(?:script|img|iframe)\b[^>]*\bsrc="(?:https?:)?//[^"]*"', page) == []
        assert re.findall(r'<link\b(?![^>]*rel="canonical")[^>]*\bhref="(?:https?:)?//[^"]*"', page) == []
        assert "thebe" not in page


def test_the_address_comes_from_settings(book: Book):
    config = (book.root / "_config.yml").read_text()
    assert "github.com" not in config.replace("colab.research.google.com", "")
    ini = book.root / "settings.ini"
    text = ini.read_text()
    ini.write_text(re.sub(r"^(user|branch) *=.*$", r"\1 = somebody", text, flags=re.M))
    try:
        rc, said = book.build()
        assert rc == 0, said
        assert (
            "https://colab.research.google.com/github/somebody/gpt2_book/blob/somebody/nbs/01_first.ipynb"
            in book.page()
        )
    finally:
        ini.write_text(text)


def test_an_unchanged_book_is_not_built_again(built: Book):
    start = time.perf_counter()
    rc, said = built.build()
    assert rc == 0 and "Nothing has changed" in said and "_build/html" in said
    assert time.perf_counter() - start < 20
    (built.html / "nbs" / "01_first.html").unlink()
    rc, said = built.build()
    assert rc == 0 and "to run: 0" in said and (built.html / "nbs" / "01_first.html").exists()


def test_a_change_of_the_package_runs_the_notebooks_again(built: Book):
    old = set((built.root / "_build" / "outputs").iterdir())
    built.package("42  # the same, said differently")
    rc, said = built.build()
    assert rc == 0 and "to run: 2" in said, said
    assert not old & set((built.root / "_build" / "outputs").iterdir()), "outputs of another package are pruned"
    built.package("43")
    rc, said = built.build()
    assert rc == 1 and "nbs/01_first.ipynb, cell 5 (assert answer == 42): AssertionError" in said, said


def test_an_error_fails_every_time(book: Book):
    book.chapter([*CELLS, new_code_cell("def f():\n    return 1 / 0\n\nf()")])
    for _ in range(2):
        rc, said = book.build()
        assert rc == 1, said
        assert "nbs/01_first.ipynb, cell 10 (def f():): ZeroDivisionError: division by zero" in said
        assert "----> 2     return 1 / 0" in said and "\x1b[" not in said
        assert "The book was not built: 1 problem(s)" in said


def test_a_broken_reference_fails_every_time(book: Book):
    book.chapter([*CELLS, new_markdown_cell("See {numref}`fig-nowhere`.")])
    for _ in range(2):
        rc, said = book.build()
        assert rc == 1 and "nbs/01_first.ipynb, cell 10: WARNING:" in said and "fig-nowhere" in said, said


def test_stderr_is_reported_and_not_shown_and_commands_are_found(book: Book):
    book.chapter(
        [
            *CELLS,
            new_code_cell(
                "import sys; print('mind the step', file=sys.stderr)\n!python -c 'import sys; print(sys.prefix)'"
            ),
        ]
    )
    rc, said = book.build()
    assert rc == 0 and "stderr, not on the page; the first: mind the step" in said
    assert book.page().count("mind the step") == 1, "in the code, not below it"
    assert sys.prefix in book.page(), "a command of a cell is this environment's"


def test_a_missing_page_is_named(book: Book):
    toc = book.root / "_toc.yml"
    text = toc.read_text()
    toc.write_text(text + "  - file: nbs/02_second\n")
    try:
        rc, said = book.build()
        assert rc == 1 and "_toc.yml lists `nbs/02_second`" in said
    finally:
        toc.write_text(text)


def test_serving_the_book(finished: Book, tmp_path: Path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "tools/build_book.py", "--serve", "--port", str(port)],
        cwd=finished.root,
        stdout=subprocess.PIPE,
    )
    try:
        assert f"http://localhost:{port}/".encode() in server.stdout.readline()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as reply:
            assert b"nbs/index.html" in reply.read()
        rc, said = finished.build("--serve", "--port", str(port))
        assert rc == 1 and "choose another" in said
    finally:
        server.terminate()
        server.wait(10)
    shutil.copytree(finished.root / "tools", tmp_path / "tools")
    done = subprocess.run(
        [sys.executable, "tools/build_book.py", "--serve"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and "run `make book` first" in done.stderr


# --- the project's own book ---------------------------------------------------------------------------------------------


def test_every_notebook_is_in_the_table_of_contents():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    listed = [toc["root"], *(c["file"] for part in toc["parts"] for c in part["chapters"])]
    there = sorted(f"nbs/{p.stem}" for p in (ROOT / "nbs").glob("*.ipynb"))
    assert sorted(x for x in listed if x.startswith("nbs/")) == there
    assert [x for x in listed if not x.startswith("nbs/")] == ["api/index"]  # which tools/api_pages.py writes
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("path", sorted((ROOT / "nbs").glob("*.ipynb")), ids=lambda p: p.stem)
def test_every_notebook_can_become_a_page(path: Path):
    nb = prepare(path)
    assert nb.cells[0].source.startswith("# ")
    assert json.loads(path.read_text())["nbformat"] == 4


def test_every_public_name_has_a_place_on_the_pages_of_the_package(tmp_path: Path):
    for name in ("gpt2_book", "nbs"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "_toc.yml", tmp_path)
    (tmp_path / "api").mkdir()
    (tmp_path / "api" / "gpt2_book.gone.md").write_text("# of a module that is gone")
    pages = {path.stem: path.read_text(encoding="utf-8") for path in api_pages.write(tmp_path)}
    assert {path.stem for path in (tmp_path / "api").iterdir()} == pages.keys()
    package, first = ROOT / "gpt2_book", pages.pop("index")
    for path in package.rglob("[a-z]*.py"):
        module, names = ".".join(path.relative_to(ROOT).with_suffix("").parts), public_names(path)
        place = rf"^\.\. (?:auto(?:class|function):: {re.escape(module)}\.|py:data:: )(\w+)$"
        assert sorted(re.findall(place, pages.get(module, ""), re.M)) == sorted(names), module
        assert all(f"`~{module}.{name}`" in first for name in names), module
    called = re.findall(r":: gpt2_book\.tokenizer\.(\w+)", pages["gpt2_book.tokenizer"])
    assert called[0] == "Tokenizer"


def test_a_page_of_the_package_is_edited_in_its_notebook():
    from types import SimpleNamespace

    import nbdev_book

    for page, home in (("gpt2_book.attention", "nbs/11_attention.ipynb"), ("index", "tools/api_pages.py")):
        edit = {"label": "source-edit-button", "url": f"https://host/edit/main/api/{page}.md"}
        context = {"header_buttons": [{"label": "fullscreen"}, {"buttons": [edit]}]}
        nbdev_book.edit_at_the_source(SimpleNamespace(srcdir=ROOT), f"api/{page}", "", context, None)
        assert edit["url"] == f"https://host/edit/main/{home}"


def public_names(path: Path) -> list[str]:
    found = re.search(r"^__all__ = (\[.*?\])", path.read_text(encoding="utf-8"), re.M | re.S)
    return ast.literal_eval(found[1]) if found else []
