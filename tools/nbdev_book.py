"""The book's Sphinx extension: executed nbdev notebooks as pages, the repository's address, mathematics without a CDN."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from html import escape
from pathlib import Path

import nbformat
from docutils import nodes
from myst_nb.sphinx_ import HideCodeCellNode
from pybtex.database import Entry
from pybtex.plugin import register_plugin
from pybtex.style.formatting.alpha import Style as AlphaStyle
from pybtex.style.labels import BaseLabelStyle
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment
from sphinx.environment.collectors.toctree import TocTreeCollector
from sphinx.errors import SphinxError
from sphinx.locale import _
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.logging import getLogger
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

sys.path.insert(0, str(Path(__file__).parent))
import api_pages  # noqa: E402  (beside this file)
import run_notebooks  # noqa: E402

# --- notebooks ------------------------------------------------------------------------------------------------------------


def read_notebook(app: Sphinx, docname: str, source: list[str]) -> None:
    """Give Sphinx the executed notebook, its directives obeyed, in place of the one in the repository."""
    path = Path(app.env.doc2path(docname))
    if path.suffix != ".ipynb":
        return
    root = Path(app.srcdir)
    try:
        nb = run_notebooks.prepare(path, source[0])
    except run_notebooks.BookError as e:
        raise SphinxError(str(e)) from e
    store = run_notebooks.Outputs(root)
    if not store.fill(nb, path):  # tools/build_book.py has run them all; a bare `jupyter-book build .` comes here
        if problems := run_notebooks.execute([path], root, jobs=1, prune=False):
            raise SphinxError("\n".join(problems))
        store.fill(nb, path)
    run_notebooks.arrange_figures(nb)
    run_notebooks.fold_lines(nb)
    for name, drawing in run_notebooks.take_narrow(nb).items():
        narrow_file(app, name).parent.mkdir(parents=True, exist_ok=True)
        narrow_file(app, name).write_text(drawing, encoding="utf-8")
    nb.metadata["language_info"] = {
        "name": "python",
        "pygments_lexer": "ipython3",
    }  # colors `!gpt2-book` and `%pip` as well
    source[0] = nbformat.writes(nb)


# --- figures: a narrow page has the panels of a figure below each other --------------------------------------------------------


def narrow_file(app: Sphinx, name: str) -> Path:
    """Return where a figure's drawing for narrow pages is kept: where MyST-NB keeps the figures."""
    return Path(app.outdir).parent / "jupyter_execute" / f"{name}.narrow.svg"


def visit_image(self, node: nodes.image) -> None:
    """Let the browser choose between a figure's two drawings by the width of the page."""
    file = narrow_file(self.builder.app, Path(node["uri"]).stem)
    if file.exists():
        target = Path(self.builder.outdir) / self.builder.imagedir / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
        source = f"{self.builder.imgpath}/{file.name}"
        self.body.append(f'<picture><source media="(max-width: {PHONE}px)" srcset="{source}" />')
    wide = file.with_name(file.name.replace(".narrow.svg", ".svg"))
    broad = not file.exists() and wide.exists() and _size(wide)[0] * PIXELS > PHONE
    if broad:  # a table of numbers or words: on a phone it keeps its size, and scrolls
        self.body.append(f'<div class="broad" tabindex="0" style="--broad: {_size(wide)[0] * PIXELS:.0f}px">')
    HTML5Translator.visit_image(self, node)
    if broad:
        self.body.append("</div>")
    if file.exists():
        self.body.append("</picture>")
        words = node.parent.astext().lower()
        sides = {"left", "right"} <= set(re.findall(r"\w+", words)) or re.search(r"\bon the (left|right)\b", words)
        if sides and _tall(file) > 1.7 * _tall(wide):
            self.body.append(f'<p class="stacked">{STACKED}</p>')


STACKED = "The panels stand below each other, from the left one to the right one."
PIXELS = 4 / 3  # of a point
PHONE = 576  # pixels: a page that is narrower takes a figure's other drawing


def _size(file: Path) -> tuple[float, float]:
    """Return the width and the height of matplotlib's drawing, in points; no width for a drawing that names none."""
    found = re.search(r'viewBox="\S+ \S+ (\S+) (\S+)"', file.read_text(encoding="utf-8"))
    return (float(found[1]), float(found[2])) if found else (0.0, 0.0)


def _tall(file: Path) -> float:
    """Return the height of a drawing whose width is one."""
    width, height = _size(file)
    return height / width


def depart_image(self, node: nodes.image) -> None:
    HTML5Translator.depart_image(self, node)


# --- folds: a line that says what it opens, and one line for a run of tests ------------------------------------------------------

RUN = 4  # so many tests in a row stand on the page by themselves


def visit_fold(self, node: HideCodeCellNode) -> None:
    """Name a fold by its words alone. (MyST-NB's `aria-label` hides them from a screen reader.)"""
    words = [f'<p class="{kind} admonition-title">{self.encode(node[f"prompt_{key}"])}</p>' for kind, key in FOLDS]
    self.body.append(f'<details class="admonition hide {" ".join(node["classes"])}"><summary>{"".join(words)}</summary>')


def depart_fold(self, node: HideCodeCellNode) -> None:
    self.body.append("</details>")


FOLDS = (("collapsed", "show"), ("expanded", "hide"))


class FoldRunsOfTests(SphinxPostTransform):
    """Put more than `RUN` tests in a row, or tests and what they use, below one line, `9 tests`; each keeps its own within."""

    default_priority = 198  # before MyST-NB folds the cells
    formats = ("html",)

    def run(self, **kwargs) -> None:
        for section in list(self.document.findall(nodes.section)):
            runs: list[list[nodes.Node]] = [[]]
            for child in section.children:
                if isinstance(child, nodes.container) and "tag_tested" in child["classes"]:
                    runs[-1].append(child)
                elif not isinstance(child, nodes.comment) and runs[-1]:
                    runs.append([])
            for run in runs:
                tests = [cell["prompt_show"] for cell in run if not cell["prompt_show"].startswith(HELP)]
                if len(run) > RUN or 0 < len(tests) < len(run):
                    _fold_together(section, run, tests)


HELP = ("For the tests", "Imports of the tests")  # as run_notebooks names the cells that hold no test


def _fold_together(section: nodes.section, run: list[nodes.Node], tests: list[str]) -> None:
    n = sum(int(many[1]) if (many := re.match(r"(\d+) tests: ", title)) else 1 for title in tests)
    title = tests[0] if len(tests) == 1 else f"{n} tests"
    place = section.index(run[0])
    for cell in run:
        section.remove(cell)
    fold = HideCodeCellNode(prompt_show=title, prompt_hide=title)
    fold["classes"] += ["above-input", "tests"]
    fold.extend(run)
    section.insert(place, nodes.container("", fold, classes=["cell", "tag_tested"]))


# --- mathematics: TeX in the page, rendered by KaTeX when it is opened (_assets/math.js) -------------------------------------


def visit_math(self, node: nodes.math) -> None:
    self.body.append(self.starttag(node, "span", "", CLASS="math") + self.encode(node.astext()) + "</span>")
    raise nodes.SkipNode


def visit_math_block(self, node: nodes.math_block) -> None:
    tex = node.astext().strip()
    if node.get("nowrap"):  # an amsmath environment: the book numbers equations, KaTeX does not
        tex = re.sub(
            r"\\(begin|end)\{(align|alignat|equation|gather)\}", r"\\\1{\2*}", re.sub(r"\\label\{[^}]*\}", "", tex)
        )
    elif re.search(r"\\\\(?![^{}]*\\end)", tex) and not tex.startswith(r"\begin"):
        tex = rf"\begin{{split}}{tex}\end{{split}}"
    self.body.append(self.starttag(node, "div", CLASS="math"))
    self.body.append(f'<div class="formula" tabindex="0">{self.encode(tex)}</div>')
    if node.get("number"):
        self.body.append(f'<span class="eqno">({get_node_equation_number(self, node)})')
        self.add_permalink_ref(node, _("Link to this equation"))
        self.body.append("</span>")
    self.body.append("</div>\n")
    raise nodes.SkipNode


def add_katex(app: Sphinx, pagename: str, templatename: str, context: dict, doctree) -> None:
    if app.env.get_domain("math").data["has_equations"].get(pagename):
        app.add_css_file("katex/katex.min.css", priority=400)
        app.add_js_file("katex/katex.min.js", loading_method="defer")
        app.add_js_file("math.js", loading_method="defer")


def describe(app: Sphinx, pagename: str, templatename: str, context: dict, doctree: nodes.document | None) -> None:
    """Tell search engines what a page is about: the sentence below its title."""
    quote = next(doctree.findall(nodes.block_quote), None) if doctree is not None else None
    if quote is not None:
        text = escape(" ".join(quote.astext().split()), quote=True)
        context["metatags"] = context.get("metatags", "") + f'<meta name="description" content="{text}" />'


def keep_words(app: Sphinx, pagename: str, templatename: str, context: dict, doctree: nodes.document | None) -> None:
    """Mark the words of inline code that fit a phone's line: `--out` is not broken behind its dashes."""
    if "body" in context:
        context["body"] = re.sub(r'<span class="pre">(?=[^<]{1,24}</span>)', '<span class="pre whole">', context["body"])


# --- chapter numbers: a chapter carries its notebook's number, so nbs/11_attention.ipynb is chapter 11, with figure 11.1 ------


def number_chapters(collector: TocTreeCollector, env: BuildEnvironment) -> list[str]:
    """Take the place of Sphinx's counting from one: number each page by its file, and none of its sections."""
    env.toc_secnumbers = {}
    for docname, toc in env.tocs.items():
        if match := re.match(r"nbs/(\d+)_", docname):
            number = (int(match[1]),)
            headings = list(toc.findall(nodes.reference))
            env.toc_secnumbers[docname] = {h["anchorname"]: None for h in headings} | {"": number}
            headings[0]["secnumber"] = env.titles[docname]["secnumber"] = number
    return []


# --- references: listed under the names by which the text cites them -----------------------------------------------------------


class AuthorYearLabels(BaseLabelStyle):
    """Label a paper as a citation in the text does: `Vaswani et al., 2017`."""

    def format_labels(self, sorted_entries: list[Entry]) -> Iterator[str]:
        for entry in sorted_entries:
            people = entry.persons.get("author") or entry.persons.get("editor") or []
            names = [" ".join(str(part) for part in p.rich_prelast_names + p.rich_last_names) for p in people]
            name = (
                f"{names[0]} et al." if len(names) > 2 else " and ".join(names) or entry.fields.get("title", entry.key)
            )
            yield f"{name}, {entry.fields.get('year', 'n.d.')}"


class AuthorYearStyle(AlphaStyle):
    default_label_style = AuthorYearLabels


register_plugin("pybtex.style.formatting", "author_year_labels", AuthorYearStyle)

# --- models: a page that runs one finds its weights beside the scripts (_assets/alive) -------------------------------------------


def write_models(app: Sphinx, exception: Exception | None) -> None:
    """Write the weights of each model that a page names, as scripts (nbs/52_alive.ipynb). A page may bring a small one along."""
    pages = sorted(Path(app.outdir).glob("nbs/*.html")) if exception is None else ()
    texts = [page.read_text(encoding="utf-8") for page in pages]
    held = {m[1]: json.loads(m[2]) for text in texts for m in BROUGHT_ALONG.finditer(text)}
    for name in sorted({name for text in texts for name in re.findall(r'data-model="(\w+)"', text)}):
        from gpt2_book.alive import as_scripts, page_model
        from gpt2_book.model import GPT
        from gpt2_book.workshop.hub import embedded_models
        from gpt2_book.workshop.tokenizer_files import load_tokenizer

        if name not in held and name not in embedded_models():  # only a part of the book was built
            getLogger(__name__).warning("no page of this build brings the model %r along", name)
            continue
        page = held[name] if name in held else page_model(GPT.from_pretrained(name), load_tokenizer(name), name)
        folder = Path(app.outdir) / "_static" / "alive"
        folder.mkdir(parents=True, exist_ok=True)
        for file, script in as_scripts(page).items():
            (folder / file).write_text(script, encoding="utf-8", newline="\n")


BROUGHT_ALONG = re.compile(r'<div class="alive" [^>]*data-here="(\w+)"[^>]*>.*?<script type="application/json">(.*?)</script>', re.DOTALL)


# --- configuration ----------------------------------------------------------------------------------------------------------


def configure(app: Sphinx, config: Config) -> None:
    """Take the repository's address from settings.ini, its only home, and see that nothing switches `-j` off."""
    ini = ConfigParser(delimiters=["="])
    ini.read(Path(app.srcdir) / "settings.ini", encoding="utf-8")
    s = ini["DEFAULT"]
    config.html_baseurl = s["doc_host"] + s["doc_baseurl"]
    config.html_theme_options |= {"repository_url": s["git_url"], "repository_branch": s["branch"], "path_to_docs": ""}
    sys.path.insert(0, str(app.srcdir))  # autodoc shows the package of this tree
    TocTreeCollector.assign_section_numbers = number_chapters  # after sphinx_multitoc_numbering has put its own there
    for name in ("sphinx_multitoc_numbering", "sphinx_jupyterbook_latex"):  # safe in parallel, but they never say so
        if extension := app.extensions.get(name):
            extension.parallel_read_safe = True


def drop_thebe(app: Sphinx) -> None:
    """Jupyter Book always loads sphinx_thebe, which puts a script of another host on every page."""
    for name, listeners in app.events.listeners.items():
        app.events.listeners[name] = [x for x in listeners if getattr(x.handler, "__module__", "") != "sphinx_thebe"]
    app.registry.css_files[:] = [c for c in app.registry.css_files if "thebe" not in c[0]]


def edit_at_the_source(app: Sphinx, pagename: str, templatename: str, context: dict, doctree) -> None:
    """Let the button of a page that is written from a module lead to the module's notebook."""
    if pagename.startswith("api/"):
        home = api_pages.sources(Path(app.srcdir)).get(pagename, "tools/api_pages.py")
        for button in (b for group in context.get("header_buttons", ()) for b in group.get("buttons", ())):
            if button["label"] == "source-edit-button":
                button["url"] = button["url"].replace(f"{pagename}.md", home)


def leave_unlinked(app: Sphinx, env: BuildEnvironment, node: nodes.Element, text: nodes.TextElement) -> nodes.Node | None:
    """Show a type of the package that no page describes, since only its own modules use it, without a link."""
    module, _, name = str(node.get("reftarget")).rpartition(".")
    module = module or str(node.get("py:module"))
    if node.get("refdomain") == "py" and node.get("reftype") in ("class", "obj") and module.startswith("gpt2_book"):
        try:
            there = importlib.import_module(module)  # whoever read the page may have been another process
        except ModuleNotFoundError:  # a class and its method
            return None
        if hasattr(there, name) and name not in getattr(there, "__all__", ()):
            return text
    return None


def setup(app: Sphinx) -> dict:
    drop_thebe(app)
    app.add_html_math_renderer("katex", (visit_math, None), (visit_math_block, None))
    app.connect("config-inited", configure, priority=100)
    app.connect("source-read", read_notebook)
    app.connect("html-page-context", add_katex)
    app.connect("html-page-context", describe)
    app.connect("html-page-context", keep_words)
    app.connect("html-page-context", edit_at_the_source, priority=900)  # once the theme has made its buttons
    app.connect("missing-reference", leave_unlinked)
    app.connect("build-finished", write_models)
    app.add_node(nodes.image, override=True, html=(visit_image, depart_image))
    app.add_node(HideCodeCellNode, override=True, html=(visit_fold, depart_fold))
    app.add_post_transform(FoldRunsOfTests)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
