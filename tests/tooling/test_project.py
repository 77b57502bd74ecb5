"""The rules of the house: what holds for every chapter, and what stands in one place only."""

import ast
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from configparser import ConfigParser
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from export import GENERATED, Notebook, Project, clean, export

ini = ConfigParser(delimiters=["="])
ini.read(ROOT / "settings.ini", encoding="utf-8")
SETTINGS = ini["DEFAULT"]
PROJECT = Project.read(ROOT)
NOTEBOOKS = {path.stem: path for path in PROJECT.notebooks()}
_files = sorted((ROOT / PROJECT.package).rglob("*.py"))
MODULES = {".".join(p.relative_to(ROOT / PROJECT.package).with_suffix("").parts): p for p in _files}
CHAPTERS = [
    name for name in NOTEBOOKS if re.match(r"[0-8]\d_", name) and not name.startswith("00_")
]  # not the appendices
EXPORTING = [name for name in NOTEBOOKS if Notebook.read(NOTEBOOKS[name], PROJECT.package).exports]
# what an exercise folds away: a hint, or where it is hard, steps
HELP = re.compile(r"^```\{dropdown\} (Hint|Steps)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LIMIT = 500_000  # bytes of a file in the repository


def cells(name: str, kind: str) -> list[str]:
    found = json.loads(NOTEBOOKS[name].read_text(encoding="utf-8"))["cells"]
    return ["".join(c["source"]) for c in found if c["cell_type"] == kind]


def files() -> list[Path]:
    """What belongs to the project: all that git knows, or would add."""
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        pytest.skip("not a git repository")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in names.split("\0") if name and (path := ROOT / name).is_file()]


def texts() -> dict[str, str]:
    found = {}
    for path in files():
        try:
            found[path.relative_to(ROOT).as_posix()] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
    return found


# --- a chapter's form -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_are_clean(name):
    text = NOTEBOOKS[name].read_text(encoding="utf-8")
    unchanged = text == clean(text, PROJECT.cell_metadata)
    assert unchanged, "outputs, counts or metadata: run `make export`"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_cell_has_an_id_of_its_own(name):
    """As the format of notebooks asks."""
    found = json.loads(NOTEBOOKS[name].read_text(encoding="utf-8"))["cells"]
    ids = Counter(cell.get("id") for cell in found)
    assert None not in ids
    assert [each for each, times in ids.items() if times > 1] == []


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_start_with_a_title_and_one_sentence(name):
    first = cells(name, "markdown")[0].splitlines()
    assert first[0].startswith("# ")
    quoted = [line for line in first if line.startswith(">")]
    assert len(quoted) == 1
    assert re.fullmatch(r"> \S.*[.?!]", quoted[0])


@pytest.mark.parametrize("name", CHAPTERS)
def test_chapters_end_with_exercises_a_summary_and_references(name):
    text = "\n".join(cells(name, "markdown"))
    headings = re.findall(r"^## (.+?)\s*$", text, re.MULTILINE)
    assert headings[-3:] == ["Exercises", "Summary", "References"]
    assert text.rstrip().endswith("```{bibliography}\n:filter: docname in docnames\n```")
    exercises = text[text.index("## Exercises") : text.index("## Summary")]
    helps = HELP.findall(exercises)
    assert 3 <= len(helps) <= 6 and len(helps) == exercises.count("{dropdown}"), "each a hint or steps"
    steps = [re.findall(r"^(\d)\. ", told, re.MULTILINE) for kind, told in helps if kind == "Steps"]
    assert len(steps) <= 2 and all(numbers in (list("123"), list("1234"), list("12345")) for numbers in steps)


@pytest.mark.parametrize("name", CHAPTERS)
def test_every_exercise_has_a_solution_that_runs(name):
    found = json.loads(NOTEBOOKS[name].read_text(encoding="utf-8"))["cells"]
    sources = ["".join(c["source"]) for c in found]
    start, end = (
        next(i for i, s in enumerate(sources) if re.search(rf"^## {heading}", s, re.MULTILINE))
        for heading in ("Exercises", "Summary")
    )
    solutions = [s for s in sources[start:end] if s.startswith("#| code-fold: true")]
    assert len(solutions) >= sum(len(HELP.findall(s)) for s in sources[start:end])
    assert not [s for s in solutions if "skip" in s or "eval: false" in s]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_install_the_package_where_it_is_missing(name):
    """In Colab the first cell that imports the package comes after one that installs it, the same in every chapter."""
    code = cells(name, "code")
    uses = (i for i, s in enumerate(code) if re.search(rf"^\s*(import|from) {PROJECT.package}\b", s, re.MULTILINE))
    assert installer() in code[: next(uses, len(code))]


def installer() -> str:
    """Return the cell of the first chapter that installs the package."""
    return next(s for s in cells("00_quickstart", "code") if "find_spec" in s)


@pytest.mark.parametrize(
    "fails, asked", [([], 1), (["index"], 2), (["index", "repository"], 2)], ids=["index", "repository", "neither"]
)
def test_the_package_comes_from_the_index_or_else_from_the_repository(fails, asked, monkeypatch, capsys):
    calls = []

    def run(command):
        calls.append(command)
        place = "repository" if "git+" in command[-1] else "index"
        return subprocess.CompletedProcess(command, int(place in fails))

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("subprocess.run", run)
    if len(fails) == 2:
        with pytest.raises(RuntimeError, match="could not be installed"):
            exec(installer(), {})
    else:
        exec(installer(), {})
    assert [c[:5] for c in calls] == [[sys.executable, "-m", "pip", "install", "-q"]] * asked
    wanted = [f"{PROJECT.package}[notebook]", f"{PROJECT.package}[notebook] @ git+{SETTINGS['git_url']}"][:asked]
    assert [c[-1] for c in calls] == wanted
    assert all(w in capsys.readouterr().out for w in wanted[-1:])  # it says what it does


def test_an_installed_package_is_left_alone(monkeypatch):
    monkeypatch.setattr("subprocess.run", lambda command: pytest.fail(f"ran {command}"))
    exec(installer(), {})


def code_lines(source: str, node: ast.AST) -> int:
    """Count the lines of a cell, or of a function's body, that are neither blank nor docstring nor comment."""
    counted = {i for i, line in enumerate(source.splitlines(), 1) if line.strip() and line.strip()[0] != "#"}
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef | ast.ClassDef | ast.Module) and ast.get_docstring(inner) is not None:
            counted -= set(range(inner.body[0].lineno, inner.body[0].end_lineno + 1))
    if isinstance(node, ast.FunctionDef):
        counted &= set(range(node.body[0].lineno, node.end_lineno + 1))
    return len(counted)


@pytest.mark.parametrize("name", EXPORTING)
def test_exported_lines_fit(name):
    """What a page shows has at most 92 columns, which `make export` sees to; a folded cell may have 120."""
    cells = Notebook.read(NOTEBOOKS[name], PROJECT.package).exports
    assert [f"{cell}: {line.strip()}" for cell in cells for line in cell.code.splitlines() if len(line) > 120] == []


@pytest.mark.parametrize("name", EXPORTING)
def test_export_cells_hold_one_idea(name):
    """Functions of 25 lines and cells of 40; a class alone in its cell may have 60."""
    too_long = []
    for cell in Notebook.read(NOTEBOOKS[name], PROJECT.package).exports:
        tree = ast.parse(cell.code)
        limit = 60 if [type(node) for node in tree.body] == [ast.ClassDef] else 40
        if (length := code_lines(cell.code, tree)) > limit:
            too_long.append(f"{cell}: {length} lines of code, {limit} at most")
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            if (length := code_lines(cell.code, function)) > 25:
                too_long.append(f"{cell}: {function.name} has {length} lines of code, 25 at most")
    assert too_long == []


# --- one chapter, one module, one test file ---------------------------------------------------------------------------


def test_the_export_is_in_step(tmp_path):
    shutil.copy(ROOT / "settings.ini", tmp_path)
    for folder, pattern in ((PROJECT.nbs, "*.ipynb"), (PROJECT.package, "*.py"), ("tests", "test_*.py")):
        for path in (ROOT / folder).rglob(pattern):
            copy = tmp_path / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    assert export(tmp_path) == [], "run `make export`"


def test_every_chapter_has_its_module_and_its_tests():
    chapters = [Notebook.read(NOTEBOOKS[name], PROJECT.package) for name in EXPORTING]
    assert {p for p in MODULES if "__" not in p} == {c.module for c in chapters}
    modules = {c.topic for c in chapters}
    generated = [p for p in (ROOT / "tests").glob("test_*.py") if GENERATED.search(p.read_text(encoding="utf-8"))]
    assert {p.stem.removeprefix("test_") for p in generated} == modules


def test_every_notebook_is_in_the_list_of_changes():
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert [name for name in NOTEBOOKS if f"`{name}`" not in changes] == []


def test_the_first_page_leads_to_every_chapter():
    index = NOTEBOOKS["index"].read_text(encoding="utf-8")
    assert [name for name in NOTEBOOKS if name != "index" and f"({name}.ipynb)" not in index] == []


def test_modules_import_one_another_in_one_direction():
    """Also within functions. What only notebooks import, no module imports."""
    graph = {}
    for module, path in MODULES.items():
        if path.stem == "__init__":
            continue
        package = [PROJECT.package, *module.split(".")[:-1]]
        nodes = [n for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.ImportFrom)]
        graph[module] = set()
        for node in nodes:
            home = [*package[: len(package) + 1 - node.level], node.module] if node.level else [node.module]
            home = ".".join(filter(None, home)).removeprefix(PROJECT.package).removeprefix(".")
            graph[module] |= {home, *(f"{home}.{alias.name}".removeprefix(".") for alias in node.names)}
    assert graph["model"] >= {"block", "embedding"} and graph["workshop.cli"] >= {"workshop.shell"}  # or nothing would be seen
    for figures in ("plots", "diagrams"):  # for notebooks, and for each other
        assert {m for m, needs in graph.items() if figures in needs} <= {"diagrams"}
    assert "model" not in graph["pretrained"] | graph["sampling"]
    while graph:  # take away what needs nothing that is left
        free = {module for module, needs in graph.items() if not needs & graph.keys()}
        assert free, f"a circle in {graph}"
        graph = {module: needs for module, needs in graph.items() if module not in free}


# --- said once --------------------------------------------------------------------------------------------------------


def test_the_address_of_the_repository_is_in_settings_ini_alone():
    """And in the cell that installs the package, which a reader has without the rest (its test compares the two)."""
    address = re.compile(
        rf"github(?:\.com)?/{SETTINGS['user']}\b|{SETTINGS['user']}\.github\.io|github\.com/[\w-]+/{SETTINGS['repo']}\b"
    )
    assert re.search(address, SETTINGS["git_url"])
    installs = f"git+{SETTINGS['git_url']}"
    others = {name: text.replace(installs, "") for name, text in texts().items() if name != "settings.ini"}
    assert [name for name, text in others.items() if address.search(text)] == []


def test_the_citation_names_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (cited["version"], cited["title"]) == (SETTINGS["version"], SETTINGS["title"])
    assert cited["license"] == {"apache2": "Apache-2.0"}[SETTINGS["license"]]
    assert cited["authors"] == [{"name": SETTINGS["author"]}]


def test_no_path_of_a_machine():
    path = re.compile(r"/(?:home|Users)/(?!runner\b)\w+/|[A-Z]:\\\\?Users\\|/root/")
    own = Path(__file__).relative_to(ROOT).as_posix()
    assert {name: m[0] for name, text in texts().items() if name != own and (m := path.search(text))} == {}


def test_links_between_chapters_lead_somewhere():
    """The book refuses a broken link as well, but only once all of its notebooks have run."""
    links = {(name, link) for name in NOTEBOOKS for s in cells(name, "markdown") for link in re.findall(r"\]\(([\w./]+)\.ipynb\b", s)}
    assert len(links) > 300
    assert sorted((name, link) for name, link in links if link not in NOTEBOOKS) == []


def test_a_label_stands_for_one_thing():
    labels = [m for name in NOTEBOOKS for s in cells(name, "code") for m in re.findall(r"^#\| label: (\S+)", s, re.MULTILINE)]
    labels += [m for name in NOTEBOOKS for s in cells(name, "markdown") for m in re.findall(r"^\$\$ \(([\w-]+)\)|^\(([\w-]+)\)=$", s, re.MULTILINE)]
    assert len(labels) > 200
    assert [label for label, n in Counter(labels).items() if n > 1] == []


def test_the_bibliography_has_what_is_cited_and_nothing_else():
    entries = re.findall(r"^@\w+\{\s*([^,\s]+)", (ROOT / "references.bib").read_text(encoding="utf-8"), re.MULTILINE)
    assert [key for key, count in Counter(entries).items() if count > 1] == []
    text = "\n".join(s for name in NOTEBOOKS for s in cells(name, "markdown"))
    text += "\n".join(p.read_text(encoding="utf-8") for p in ROOT.glob("*.md"))
    roles = [
        re.sub(r"\{[^}]*\}", "", keys) for keys in re.findall(r"\{cite(?::\w+)?\}`([^`]+)`", text)
    ]  # {p. 3} is no key
    cited = {key.strip() for keys in roles for key in keys.split(",")}
    assert sorted(cited - set(entries)) == [], "cited, but not in references.bib"
    assert sorted(set(entries) - cited) == [], "in references.bib, but not cited"


def test_no_large_files():
    known = re.compile(r"_assets/katex/|gpt2_book/assets/[^/]+/model\.safetensors$")
    sizes = {path.relative_to(ROOT).as_posix(): path.stat().st_size for path in files()}
    assert {name: size for name, size in sizes.items() if size > LIMIT and not known.match(name)} == {}
    assert sum(size for name, size in sizes.items() if name.endswith(".safetensors")) <= 10 * 1024**2


# --- how large the package is -----------------------------------------------------------------------------------------

LINES, PUBLIC = 400, 150  # of a module at most, and public names of the package
UNUSED = 13  # what only its own chapter uses, and is shown there, without being public: there may only be less


def top_level(path: Path) -> tuple[set[str], list[str]]:
    """Return the names that a module defines for others, and those that it makes public."""
    defined, public = set(), []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        for target in node.targets if isinstance(node, ast.Assign) else ():
            defined |= {name.id for name in ast.walk(target) if isinstance(name, ast.Name)}
            if getattr(target, "id", "") == "__all__":
                public = ast.literal_eval(node.value)
    return {name for name in defined if not name.startswith("_")}, public


@pytest.mark.parametrize("module", MODULES)
def test_a_module_is_read_in_one_sitting(module):
    n = len(MODULES[module].read_text(encoding="utf-8").splitlines())
    assert n <= LINES, f"{n} lines, {LINES} at most"


def test_the_model_with_its_parts_is_less_than_a_thousand_lines():
    """As the README and the book's first page say."""
    parts = {"attention", "block", "embedding", "feed_forward", "initialization", "layer_norm", "model", "positional"}
    assert parts <= MODULES.keys()
    assert sum(len(MODULES[part].read_text(encoding="utf-8").splitlines()) for part in parts) < 1000


def test_the_public_interface_is_small():
    public = [f"{module}.{name}" for module, path in MODULES.items() for name in top_level(path)[1] if module != "__init__"]
    assert len(public) <= PUBLIC, f"{len(public)} public names, {PUBLIC} at most"


def test_a_name_without_an_underscore_is_public_or_used_outside_its_module():
    said = {path: set(re.findall(r"\w+", text)) for path, text in texts().items() if path.endswith((".py", ".ipynb", ".md", ".ini"))}
    unused = []
    for module, path in MODULES.items():
        own = path.relative_to(ROOT).as_posix()
        notebook = re.search(r"File to edit: \S*(nbs/\w+\.ipynb)", path.read_text(encoding="utf-8"))
        mine = {own, f"tests/test_{path.stem}.py", notebook and notebook[1]}
        others = set().union(*(words for place, words in said.items() if place not in mine))
        names, public = top_level(path)
        unused += [f"{module}.{name}" for name in sorted(names - others - set(public))]
    assert len(unused) <= UNUSED, f"{len(unused)} names, {UNUSED} at most: {unused}"


def test_the_readme_lists_every_chapter_with_its_module():
    rows = dict(re.findall(r"^\| `(\w+)` \| (?:`([\w.]+)`)? *\|", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    modules = {}
    for module, path in MODULES.items():
        if made := re.search(r"File to edit: \S*nbs/(\w+)\.ipynb", path.read_text(encoding="utf-8")):
            modules[made[1]] = module
    assert rows == {name: modules.get(name, "") for name in NOTEBOOKS if name not in ("index", "00_quickstart")}
