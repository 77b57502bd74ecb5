"""The package as its users get it: what importing it costs, and what the wheel brings into an empty environment."""

import ast
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from configparser import ConfigParser
from email.parser import Parser
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "gpt2_book"
_files = sorted(p.relative_to(PACKAGE) for p in PACKAGE.rglob("[a-z]*.py"))
MODULES = {".".join(p.with_suffix("").parts): PACKAGE / p for p in _files}
ASSETS = sorted(p for p in (PACKAGE / "assets").rglob("*") if p.is_file())
# what no user needs: the book, its tools, its figures, and the independent references that the tests compare with
UNWANTED = (
    "transformers",
    "matplotlib",
    "jupyter",
    "IPython",
    "ipykernel",
    "nbdev",
    "fastcore",
    "hypothesis",
    "pytest",
    "onnx",
    "onnxruntime",
    "onnxscript",
)

ini = ConfigParser(delimiters=["="])
ini.read(ROOT / "settings.ini", encoding="utf-8")
SETTINGS = ini["DEFAULT"]


def requirements(key: str) -> dict[str, Requirement]:
    return {canonicalize_name(r.name): r for r in map(Requirement, SETTINGS[key].split())}


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | env
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout


# --- importing --------------------------------------------------------------------------------------------------------


def test_importing_costs_nothing(tmp_path):
    """Not even PyTorch is imported before a name of the package is used."""
    code = "import sys\nbefore = set(sys.modules)\nimport gpt2_book\nprint(*sys.modules.keys() - before)"
    standard = set(sys.stdlib_module_names)
    brought = {name.partition(".")[0] for name in run(sys.executable, "-c", code, cwd=tmp_path).split()}
    assert brought - standard == {"gpt2_book"}


def test_importing_brings_in_nothing_of_the_book(tmp_path):
    modules = [m for m in MODULES if m not in ("plots", "diagrams")]
    steps = ["import gpt2_book", "from gpt2_book import *", *(f"import gpt2_book.{m}" for m in modules)]
    look = "for m in sys.modules.keys() & unwanted:\n    found.setdefault(m, {!r})"
    code = "\n".join(f"{step}\n{look.format(step)}" for step in steps)
    code = f"import sys\nunwanted, found = {set(UNWANTED)}, {{}}\n{code}\nprint(found)"
    assert run(sys.executable, "-c", code, cwd=tmp_path) == "{}\n"


def test_the_public_names_are_the_ones_of_their_modules():
    import gpt2_book
    from gpt2_book import GPT, GPTConfig, Tokenizer
    from gpt2_book.model import GPT as MODEL
    from gpt2_book.tokenizer import Tokenizer as TOKENIZER

    assert (GPT, Tokenizer) == (MODEL, TOKENIZER)
    assert GPTConfig.__module__ == "gpt2_book.model"
    assert {"GPT", "GPTConfig", "Tokenizer"} <= set(gpt2_book.__all__) <= set(dir(gpt2_book))
    assert all(hasattr(gpt2_book, name) for name in gpt2_book.__all__)
    with pytest.raises(AttributeError, match=r"module 'gpt2_book' has no attribute 'GTP'"):
        _ = gpt2_book.GTP


def test_there_is_one_version():
    import gpt2_book

    assert version("gpt2_book") == SETTINGS["version"], "installed before the version changed: pip install -e ."
    assert gpt2_book.__version__ == SETTINGS["version"]


# --- what it depends on -----------------------------------------------------------------------------------------------


def imported(path: Path) -> set[str]:
    """The packages that a module imports anywhere, without the standard library and its own, and not for types alone."""
    found, tree = set(), ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module.split(".")[0])
    outside = found - set(sys.stdlib_module_names) - {PACKAGE.name, "tomllib"}  # which Python 3.10 does not have
    return {canonicalize_name({"yaml": "pyyaml"}.get(name, name)) for name in outside}


def test_what_the_package_imports_is_what_it_requires():
    """What an extra brings is imported within the functions that need it alone."""
    used = set().union(*(imported(path) for m, path in MODULES.items() if m != "plots"))
    extras = [key for key in SETTINGS if key.endswith("_requirements")]
    assert used - set().union(*map(requirements, extras)) | {"torch"} == set(requirements("requirements"))


def test_the_figures_need_what_a_notebook_needs():
    assert imported(PACKAGE / "plots.py") <= set(requirements("requirements") | requirements("notebook_requirements"))


def test_requirements_have_lower_bounds_and_no_upper_ones():
    for name, requirement in requirements("requirements").items():
        assert [s.operator for s in requirement.specifier] == [">="], name


def test_the_proven_versions_are_exact_and_fit_what_is_required():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"==[0-9.]+(\.?post\d+)?", str(p.specifier)) for p in pins)
    assert "torch==2.13.0" in lines
    proven = {canonicalize_name(p.name): str(p.specifier).removeprefix("==") for p in pins}
    assert len(proven) == len(pins), "a package is named twice"
    assert not proven.keys() & {"pip", "setuptools", canonicalize_name(SETTINGS["lib_name"])}
    for key in ("requirements", "onnx_requirements", "datasets_requirements", "bert_requirements", "dev_requirements", "book_requirements"):
        for name, requirement in requirements(key).items():
            assert name == "setuptools" or requirement.specifier.contains(proven[name]), f"{key}: {requirement}"


def test_the_workflows_test_the_versions_that_the_package_index_shows():
    versions = SETTINGS["python_versions"].split()
    workflow = (ROOT / ".github/workflows/test.yml").read_text()
    assert re.findall(r'"(3\.\d+)"', re.search(r"python: \[(.*)\]", workflow)[1]) == versions
    assert SETTINGS["min_python"] == versions[0]
    assert f'target-version = "py{versions[0].replace(".", "")}"' in (ROOT / "pyproject.toml").read_text()


# --- the wheel --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, Path]:
    """An sdist of a copy of the project, and the wheel made from that."""
    copy, out = tmp_path_factory.mktemp("source") / "copy", tmp_path_factory.mktemp("dist")
    skip = shutil.ignore_patterns(".*", "_build", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, copy, ignore=skip)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, copy, cwd=out)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory) -> tuple[Path, Path]:
    """The wheel alone in an environment that borrows its dependencies from this one: its programs, an empty folder."""
    folder = tmp_path_factory.mktemp("empty")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    programs = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        programs / "python",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        built[1],
        cwd=folder,
    )
    (packages,) = (folder / "venv").rglob("site-packages")
    here = [p for p in [*site.getsitepackages(), sysconfig.get_path("purelib")] if Path(p).exists()]
    (packages / "borrowed.pth").write_text("\n".join(dict.fromkeys(here)) + "\n")  # an editable install is not followed
    (folder / "elsewhere").mkdir()
    return programs, folder / "elsewhere"


def test_the_wheel_holds_the_package_and_its_assets_and_nothing_else(built):
    with zipfile.ZipFile(built[1]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        modes = {name: wheel.getinfo(name).external_attr >> 16 & 0o777 for name in names}
    expected = [*PACKAGE.rglob("*.py"), PACKAGE / "py.typed", *ASSETS]  # py.typed: its annotations are for its users too
    assert names == {p.relative_to(ROOT).as_posix() for p in expected}
    assert {name: oct(mode) for name, mode in modes.items() if mode != 0o644} == {}
    assert {"config.json", "model.safetensors"} <= {p.name for p in ASSETS}


def test_the_sdist_can_be_built_from_and_leaves_the_book_at_home(built):
    with tarfile.open(built[0]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"settings.ini", "setup.py", "pyproject.toml", "README.md", "LICENSE"} <= names
    assert {p.relative_to(ROOT).as_posix() for p in ASSETS} <= names
    assert not [n for n in names if n.startswith(("nbs", "tests", "tools", "_assets", "_build", "benchmarks"))]


def test_the_wheel_says_what_settings_ini_says(built):
    with zipfile.ZipFile(built[1]) as wheel:
        (name,) = (n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
        meta = Parser().parsestr(wheel.read(name).decode())
    said = {"Name": "lib_name", "Version": "version", "Summary": "description", "Author": "author"}
    assert {key: meta[key] for key in said} == {key: SETTINGS[value] for key, value in said.items()}
    assert meta["Requires-Python"] == f">={SETTINGS['min_python']}"
    assert meta["License-Expression"] == "Apache-2.0"
    assert meta["Description-Content-Type"] == "text/markdown"
    assert SETTINGS["git_url"] in {meta["Home-page"], *(u.split(", ")[1] for u in meta.get_all("Project-URL"))}
    links = re.findall(r"\]\(([^)]+)\)", shown := meta.get_payload())
    pages = [link for link in links if not link.startswith("https://")]
    assert pages == [], "a link of the README that the package index cannot follow"
    assert f"[CHANGELOG.md]({SETTINGS['git_url']}/blob/{SETTINGS['branch']}/CHANGELOG.md)" in shown
    assert all((ROOT / link).exists() for link in re.findall(r"/blob/[^/]+/([^)#]+)\)", shown))
    required = [Requirement(r) for r in meta.get_all("Requires-Dist")]
    assert {str(r) for r in required if "extra" not in str(r.marker)} == {str(r) for r in requirements("requirements").values()}
    assert set(meta.get_all("Provides-Extra")) == {"notebook", "onnx", "eval", "lens", "serve", "trl", "mup", "datasets", "bert", "book", "dev"}


def test_the_wheel_works_from_another_folder_without_the_books_tools(installed):
    programs, elsewhere = installed
    code = f"""
import sys
sys.modules.update(dict.fromkeys({UNWANTED}))  # importing one of them is an error now
import torch
import gpt2_book
from gpt2_book import GPT, GPTConfig
assert gpt2_book.__file__.startswith({str(elsewhere.parent)!r}), gpt2_book.__file__
assert gpt2_book.__version__ == {SETTINGS["version"]!r}
model = GPT(GPTConfig(block_size=8, vocab_size=11, n_layer=1, n_head=2, n_embd=4))
print(tuple(model(torch.zeros(2, 5, dtype=torch.long))[0].shape))
"""
    assert run(programs / "python", "-c", code, cwd=elsewhere) == "(2, 5, 11)\n"


def test_the_command_works_from_another_folder(installed):
    programs, elsewhere = installed
    text = run(programs / "gpt2-book", "--help", cwd=elsewhere)
    assert "generate" in text
    assert "info" in text
    words = ("generate", "ROMEO:", "--max-new-tokens", "5", "--seed", "1")
    ways = ((programs / "gpt2-book",), (programs / "python", "-m", "gpt2_book"))
    texts = {run(*way, *words, cwd=elsewhere, HF_HUB_OFFLINE="1") for way in ways}
    assert len(texts) == 1 and texts.pop().startswith("ROMEO:")
