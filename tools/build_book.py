"""Build the book: execute the notebooks, render the pages to `_build/html`, fail with the reason on any error or warning.

python tools/build_book.py [jobs]     build, `jobs` notebooks at a time (2)
python tools/build_book.py --serve    open the built book on localhost; builds nothing
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import http.server
import importlib.metadata
import io
import json
import os
import re
import shutil
import sys
import time
from configparser import ConfigParser, SectionProxy
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "_build"
HTML = OUT / "html"
STAMP = OUT / "book.json"  # what the last good build was made from, and the files it made
# pages that have another name now: a link to the old one is sent on
MOVED = {
    "nbs/91_figures.html": "93_figures.html",
    "nbs/92_benchmarks.html": "94_benchmarks.html",
    "nbs/40_seq2seq.html": "41_seq2seq.html",
    "nbs/41_encoder_decoder.html": "42_encoder_decoder.html",
    "nbs/42_bert.html": "43_bert.html",
    "nbs/43_bert_training.html": "44_bert_training.html",
    "nbs/43_gpt3.html": "45_gpt3.html",
    "nbs/44_gpt3.html": "45_gpt3.html",
    "nbs/44_tour.html": "46_tour.html",
    "nbs/45_tour.html": "46_tour.html",
    "api.html": "api/index.html",
}

sys.path.insert(0, str(Path(__file__).parent))
import api_pages  # noqa: E402  (beside this file)


def say(text: str) -> None:
    print(text, flush=True)


def toc_documents() -> tuple[str, list[Path]]:
    """Return the name of the book's first page, and the files of all its pages."""
    from sphinx_external_toc.parsing import parse_toc_yaml

    site = parse_toc_yaml(ROOT / "_toc.yml")
    files = []
    for name in site:
        found = [f for suffix in (".ipynb", ".md") if (f := ROOT / f"{name.removesuffix(suffix)}{suffix}").exists()]
        if not found:
            raise SystemExit(f"_toc.yml lists `{name}`, but there is no such notebook or page")
        files.append(found[0])
    return site.root.docname.removesuffix(".ipynb"), files


def inputs_key(pages: list[Path]) -> str:
    """Hash everything that the book is made from, the installed packages included."""
    from run_notebooks import surroundings

    h = hashlib.sha256("\n".join(sorted(f"{d.name}=={d.version}" for d in importlib.metadata.distributions())).encode())
    h.update(surroundings().encode())
    files = [ROOT / n for n in ("_toc.yml", "_config.yml", "references.bib", "settings.ini")] + pages
    for folder in ("gpt2_book", "_assets", "tools"):
        files += [f for f in sorted((ROOT / folder).rglob("*")) if f.is_file() and "__pycache__" not in f.parts]
    for file in files:
        h.update(f"{file.relative_to(ROOT).as_posix()}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return h.hexdigest()


def pages_key() -> str:
    """Hash the names and sizes of the built files: a page deleted or half written is built again."""
    files = sorted(f for f in HTML.rglob("*") if f.is_file())
    return hashlib.sha256("\n".join(f"{f.relative_to(HTML).as_posix()} {f.stat().st_size}" for f in files).encode()).hexdigest()


def readable(warnings: str) -> list[str]:
    """Turn Sphinx's warnings into one problem each, with the cell for the notebooks' five-digit line numbers."""
    from run_notebooks import ANSI

    text = re.sub(r"(\.ipynb):(\d+)\d{4}:", r"\1, cell \2:", ANSI.sub("", warnings).replace(f"{ROOT}{os.sep}", ""))
    return [line for line in text.splitlines() if line.strip()]


def render(first: str, jobs: int) -> list[str]:
    """Render the pages from nothing, so that no warning goes unsaid the second time; return the warnings."""
    from jupyter_book.sphinx import build_sphinx

    for folder in (HTML, OUT / ".doctrees", OUT / "jupyter_execute"):
        shutil.rmtree(folder, ignore_errors=True)
    warnings = io.StringIO()
    overrides = {"external_toc_path": str(ROOT / "_toc.yml"), "latex_individualpages": False}
    gc.disable()  # the objects of a book stay until it is written: to search them takes a third of the time
    with contextlib.redirect_stderr(warnings):
        result = build_sphinx(
            str(ROOT), str(HTML), path_config=ROOT / "_config.yml", noconfig=True, confoverrides=overrides,
            warningiserror=True, keep_going=True, jobs=jobs + 1, quiet=True,  # Sphinx writes pages with one process less
        )  # fmt: skip
    gc.freeze()
    gc.enable()
    said = readable(warnings.getvalue())
    if result == 0:
        (HTML / ".nojekyll").touch()  # GitHub Pages leaves out folders such as _static without it
        if first != "index":
            write_page("index.html", f'<a href="{first}.html">The book</a>', forward=f"{first}.html")
        for old, new in MOVED.items():
            if (HTML / old).parent.joinpath(new).exists():
                write_page(old, f'This page is now <a href="{new}">here</a>.', forward=new)
        base = settings()["doc_host"] + settings()["doc_baseurl"]  # the page stands in for one of any depth
        write_page("404.html", f'There is no such page. <a href="{base}">The book</a> begins here.')
        return []
    return said or [f"Sphinx failed: {result}"]


def settings() -> SectionProxy:
    ini = ConfigParser(delimiters=["="])
    ini.read(ROOT / "settings.ini", encoding="utf-8")
    return ini["DEFAULT"]


def write_page(name: str, text: str, *, forward: str = "") -> None:
    """Write a page of one sentence into the built book, which may send its reader on."""
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>GPT-2 from scratch</title>'
    if forward:
        head += f'<meta http-equiv="refresh" content="0; url={forward}">'
    style = "<style>:root{color-scheme:light dark}body{font:1.2rem/1.6 sans-serif;margin:4rem auto;max-width:34rem}</style>"
    page = f'<!doctype html><html lang="en"><head>{head}{style}</head><body><main><p>{text}</p></main></body></html>\n'
    (HTML / name).write_text(page, encoding="utf-8", newline="\n")


def keep_outputs(pages: list[Path]) -> None:
    """Put the outputs into the notebooks that a page offers for download."""
    import nbformat
    import run_notebooks

    store = run_notebooks.Outputs(ROOT)
    for path in pages:
        if path.suffix == ".ipynb":
            nb = nbformat.read(path, as_version=4)
            executed = run_notebooks.prepare(path)
            assert store.fill(executed, path), f"{path.name} has no outputs, and was run"
            run_notebooks.take_narrow(executed)
            for cell, done in zip(nb.cells, executed.cells, strict=True):
                if cell.cell_type == "code":
                    cell.outputs = done.outputs
            nbformat.write(nb, HTML / "_sources" / path.relative_to(ROOT))


def build(jobs: int) -> int:
    start = time.perf_counter()
    api_pages.write(ROOT)
    first, pages = toc_documents()
    key = inputs_key(pages)
    try:
        unchanged = json.loads(STAMP.read_text(encoding="utf-8")) == {"inputs": key, "pages": pages_key()}
    except (OSError, ValueError):
        unchanged = False
    if unchanged:
        say("Nothing has changed since the book was built.")
    else:
        import run_notebooks

        STAMP.unlink(missing_ok=True)
        problems = run_notebooks.execute([p for p in pages if p.suffix == ".ipynb"], ROOT, jobs=jobs, say=say)
        if not problems:
            say("Rendering the pages")
            problems = render(first, jobs)
        if not problems:
            keep_outputs(pages)
        if problems:
            rule = "-" * 100
            print(
                rule,
                *problems,
                rule,
                f"The book was not built: {len(problems)} problem(s), above.",
                sep="\n",
                file=sys.stderr,
            )
            return 1
        STAMP.write_text(json.dumps({"inputs": key, "pages": pages_key()}), encoding="utf-8")
    say(f"The book is in {HTML.relative_to(ROOT)} ({len(pages)} pages, {time.perf_counter() - start:.0f} s).")
    say(f"Open {(HTML / 'index.html').as_uri()}, or run `make serve`.")
    return 0


def serve(port: int) -> int:
    if not (HTML / "index.html").exists():
        print("There is no book to serve yet: run `make book` first.", file=sys.stderr)
        return 1

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, directory=str(HTML), **kwargs)

        def log_message(self, *args) -> None:
            pass

    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as e:
        print(
            f"Port {port} is taken ({e.strerror}); choose another: python tools/build_book.py --serve --port {port + 1}",
            file=sys.stderr,
        )
        return 1
    say(f"The book is at http://localhost:{port}/  (Ctrl+C ends it)")
    with server, contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("jobs", nargs="?", type=int, default=2, help="notebooks to run at a time (2)")
    parser.add_argument("--serve", action="store_true", help="serve the built book on localhost, build nothing")
    parser.add_argument("--port", type=int, default=8000, help="port for --serve (8000)")
    args = parser.parse_args()
    return serve(args.port) if args.serve else build(args.jobs)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("Stopped.")
