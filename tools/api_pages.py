"""Write the pages of the package, `api/`, from the modules: one with all of them, and one for each, what a user calls first on top.

python tools/api_pages.py     write them; the build of the book does so by itself
"""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "api"
LONG = 100  # letters of a constant's value, beyond which its page leaves it out
INDEX = """# The package

> Everything that the chapters export, module by module.

Each module is made from one chapter, which says why its code is the way it is. Its page begins with what a user calls
first; *[source]* shows the code. The axes of every shape are `B` batch, `T` query time, `S` key time, `C` embedding, `H` heads,
`D` head size and `V` vocabulary.

```python
from gpt2_book import GPT, GPTConfig

model = GPT(GPTConfig())  # the shape of the small GPT-2, with its initialization
```
"""


@dataclass
class Module:
    """What the pages tell of a module: its dotted name, its chapter, its sentence, and its public names with their kinds."""

    name: str
    chapter: str
    sentence: str
    names: list[tuple[str, str, str]]  # name, kind, a constant's value


def read_module(path: Path, root: Path) -> Module:
    """Read a module without importing it."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    public, found = _public(tree), []
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in public:
            kind = "class" if isinstance(node, ast.ClassDef) else "function"
            found.append((node.name, kind, ""))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name) and target.id in public:
                    value = ast.unparse(node.value) if node.value else ""
                    found.append((target.id, "data", value if len(value) <= LONG else ""))
    known = {entry[0] for entry in found}
    found += [(name, "data", "") for name in public if name not in known]  # one of several that one line sets
    found.reverse()  # what is built, then what it is built of
    chapter = re.search(r"File to edit: \S*nbs/(\w+)\.ipynb", text)
    name = ".".join(path.relative_to(root).with_suffix("").parts)
    found = list({entry[0]: entry for entry in found}.values())  # a function may have several signatures
    return Module(name, chapter[1] if chapter else "", " ".join((ast.get_docstring(tree) or "").split()), found)


def _public(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value)
    return []


def _imported(notebook: str) -> set[str]:
    """Return the names that a notebook imports from the package."""
    lists = re.findall(r"from gpt2_book[\w.]* import (\([^)]*\)|[^\n(]*)", notebook.replace(r"\n", "\n"))
    return {name for names in lists for name in re.findall(r"\w+", names)}


def modules(root: Path) -> list[Module]:
    """Read every module that has public names, in the order of the chapters; what most chapters call comes first."""
    package = root / "gpt2_book"
    top = _public(ast.parse((package / "__init__.py").read_text(encoding="utf-8")))
    imported = {path.stem: _imported(path.read_text(encoding="utf-8")) for path in (root / "nbs").glob("*.ipynb")}
    found = [read_module(path, root) for path in package.rglob("*.py")]
    for m in found:
        calls = {name: sum(name in names for names in imported.values()) for name, *_ in m.names}
        m.names.sort(key=lambda entry: (entry[0] not in top, entry[1] == "data", -calls[entry[0]]))
    return sorted((m for m in found if m.chapter and m.names), key=lambda m: m.chapter)


@functools.cache
def sources(root: Path) -> dict[str, str]:
    """Return the notebook from which each page comes in the end."""
    return {f"{FOLDER}/{m.name}": f"nbs/{m.chapter}.ipynb" for m in modules(root)}


def page(module: Module) -> str:
    """Return the page of a module."""
    text = f"# {module.name.removeprefix('gpt2_book.')}\n\n> {module.sentence}\n\nFrom the chapter [](../nbs/{module.chapter}.ipynb).\n\n"
    text += f"```{{eval-rst}}\n.. py:module:: {module.name}\n\n"
    for name, kind, value in module.names:
        text += f".. py:data:: {name}\n" if kind == "data" else f".. auto{kind}:: {module.name}.{name}\n"
        text += f"   :value: {value}\n" * bool(value) + "   :members:\n" * (kind == "class") + "\n"
    return text + "```\n"


def index(found: list[Module], root: Path) -> str:
    """Return the first page: the modules by the parts of the book, each with its names."""
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    text, chapters = INDEX, {m.chapter: m for m in found}
    for part in toc["parts"]:
        here = [chapters[name] for c in part["chapters"] if (name := c["file"].removeprefix("nbs/")) in chapters]
        if here:
            text += f"\n## {part['caption']}\n\n"
        for m in here:
            names = ", ".join(f"{{py:obj}}`~{m.name}.{name}`" for name, *_ in m.names)
            text += f"[`{m.name}`]({m.name}.md)\n: {m.sentence}\n\n  {names}\n\n"
    return text


def write(root: Path = ROOT) -> list[Path]:
    """Write the pages that are not there as they should be, delete those of modules that are gone; return all."""
    if not (found := modules(root)):
        return []
    pages = {"index.md": index(found, root)} | {f"{m.name}.md": page(m) for m in found}
    folder = root / FOLDER
    folder.mkdir(exist_ok=True)
    for old in set(folder.glob("*.md")) - {folder / name for name in pages}:
        old.unlink()
    for name, text in pages.items():
        if not (file := folder / name).exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8", newline="\n")
    return sorted(folder / name for name in pages)


if __name__ == "__main__":
    print(*(path.relative_to(ROOT).as_posix() for path in write()), sep="\n")
