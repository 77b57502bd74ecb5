"""Fixtures for the tests of the tools: a small book of its own to build, and the built book in a browser."""

from __future__ import annotations

import functools
import gc
import http.server
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
HTML = ROOT / "_build" / "html"
# settings.ini's [book] and [dev] bring what these tests need; with this variable set, a missing browser or book is an error
REQUIRED = bool(os.environ.get("GPT2_BOOK_REQUIRE_BROWSER"))
# no window, no updates, no calls home
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip

if str(ROOT / "tools") not in sys.path:
    sys.path.insert(0, str(ROOT / "tools"))


def pytest_collection_finish() -> None:
    """Leave what was imported, which stays, out of every later search for garbage, those of all tests."""
    gc.freeze()


def _lacking(reason: str) -> None:
    (pytest.fail if REQUIRED else pytest.skip)(reason)


def _sources(notebook: Path) -> list[str]:
    """The cells of a notebook, without the outputs that the book's copy has."""
    return ["".join(cell["source"]) for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]]


@pytest.fixture(scope="session")
def html() -> Path:
    """The built book's folder."""
    if not (HTML / "index.html").exists():
        _lacking("no built book in _build/html: run `make book` first")
    for notebook in sorted((ROOT / "nbs").glob("*.ipynb")):
        shown = HTML / "_sources" / "nbs" / notebook.name
        if not shown.exists() or _sources(shown) != _sources(notebook):
            _lacking(f"the book in _build/html is older than {notebook.name}: run `make book` first")
    return HTML


@pytest.fixture(scope="module")  # its event loop must not run beside the notebooks'
def browser():
    """A headless Chromium."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    executable = next(filter(None, map(shutil.which, names)), None)
    if executable is None:
        _lacking("no Chromium on the path (Debian: apt-get install chromium)")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _lacking("no playwright: pip install playwright")
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=executable, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def _serving(folder: Path) -> Iterator[str]:
    """A server of this machine for a folder; its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="session")
def serve() -> Iterator[Callable[[Path], str]]:
    """Serve a folder to the end of the session; what is called returns its address."""
    with ExitStack() as servers:
        yield lambda folder: servers.enter_context(_serving(folder))


@pytest.fixture(scope="session")
def served(html: Path, serve: Callable[[Path], str]) -> str:
    """The built book's address."""
    return serve(html)
