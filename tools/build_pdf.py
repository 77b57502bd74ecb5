"""Print the built book as one PDF with headless Chromium: a title page, the contents, all pages in order.

python tools/build_pdf.py [FILE]     from `_build/html` to `_build/gpt2_book.pdf`, or to FILE
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from html import escape
from pathlib import Path
from urllib.parse import urldefrag

from bs4 import BeautifulSoup, Tag

ROOT = Path(__file__).resolve().parent.parent
HTML = ROOT / "_build" / "html"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
STYLE = """
@page { size: A4; margin: 18mm 16mm; }
html { font-size: 80%; --book-measure: 100%; }
body { display: block; }
.front, article.page { break-before: page; }
.front h1 { margin-top: 30vh; font-size: 3rem; } .front ol { list-style: none; padding: 0; } .front li { margin: 0.1rem 0; }
article.page h1 { break-before: avoid; } h1, h2, h3 { break-after: avoid; }
figure, table, .formula, img, svg.diagram { break-inside: avoid; }
.cell_input, .cell_output .output, div.highlight { break-inside: avoid; } /* with its ground, or a page ends in an empty one */
.bd-article pre, .bd-article .cell_output pre { white-space: pre-wrap; overflow-wrap: anywhere; }
.page h1, .front h1 { display: block !important; }
.headerlink, .copybtn, aside.margin .headerlink { display: none; }
"""


def order(root: Path = ROOT) -> list[str]:
    """Return the names of the pages in reading order, the package's pages after their index."""
    from sphinx_external_toc.parsing import parse_toc_yaml

    names = [name.removesuffix(".ipynb").removesuffix(".md") for name in parse_toc_yaml(root / "_toc.yml")]
    return names + sorted(f"api/{path.stem}" for path in (root / "api").glob("gpt2_book*.md"))


def anchor(page: str, name: str = "") -> str:
    """Return what a place of a page is called in the one document."""
    return f"{page.replace('/', '-')}--{name}" if name else page.replace("/", "-")


def article(html: Path, page: str, pages: set[str]) -> tuple[str, str]:
    """Return a page's title and its text, with links that stay within the document."""
    soup = BeautifulSoup((html / f"{page}.html").read_text(encoding="utf-8"), "html.parser")
    body = soup.select_one("article.bd-article")
    for gone in body.select("script, .headerlink, .sd-d-none"):
        gone.decompose()
    for fold in body.select("details"):
        if not fold.decomposed:
            keep_fold(fold)
    for tag in body.select("[id]"):
        tag["id"] = anchor(page, tag["id"])
    for link in body.select("a[href]"):
        target, place = urldefrag(link["href"])
        other = (html / page).parent.joinpath(target).resolve() if target else html / page
        inside = other.with_suffix("").relative_to(html).as_posix() if html in other.parents and ":" not in target else ""
        if not target or inside in pages:
            link["href"] = f"#{anchor(inside or page, place)}"
        elif ":" not in target:
            del link["href"]
    title = body.select_one("h1").get_text(" ", strip=True)
    return title, f'<article class="page bd-article" id="{anchor(page)}">{body.decode_contents()}</article>'


def keep_fold(fold: Tag) -> None:
    """Open a hint or a solution; leave out folded code and tests, which the pages and the notebooks have."""
    said = fold.summary.get_text(" ", strip=True) if fold.summary else ""
    if "hide" in fold.get("class", []) and "solution" not in said:
        fold.decompose()
    else:
        fold["open"] = ""


def document(html: Path, names: list[str], title: str) -> str:
    """Return all pages as one document, which lies one folder deep, as the pages do."""
    found = [(name, *article(html, name, set(names))) for name in names]
    head = BeautifulSoup((html / f"{names[0]}.html").read_text(encoding="utf-8"), "html.parser").head
    links = "".join(str(tag) for tag in head.select('link[rel="stylesheet"]'))
    scripts = "".join(
        f'<script src="../_static/{name}"></script>' for name in ("katex/katex.min.js", "math.js"))  # fmt: skip
    links += '<link rel="stylesheet" href="../_static/katex/katex.min.css">'
    contents = "".join(f'<li><a href="#{anchor(name)}">{escape(text)}</a></li>' for name, text, _ in found)
    front = f'<div class="front bd-article"><h1>{escape(title)}</h1></div>'
    front += f'<div class="front bd-article"><h2>Contents</h2><ol>{contents}</ol></div>'
    return (
        f'<!doctype html><html lang="en" data-theme="light" data-mode="light"><head><meta charset="utf-8"><title>{escape(title)}'
        f"</title>{links}<style>{STYLE}</style>{scripts}</head><body><main class='bd-main'><div class='bd-content'>"
        f"<div class='bd-article-container'>{front}{''.join(text for *_, text in found)}</div></div></main></body></html>"
    )


def browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not found:
        raise SystemExit(f"no browser to print with: install one of {', '.join(BROWSERS)}")
    return found


def print_pdf(page: Path, out: Path) -> None:
    """Have the browser print a page, once its mathematics stands."""
    out.parent.mkdir(parents=True, exist_ok=True)
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--allow-file-access-from-files"]
    flags += ["--no-pdf-header-footer", "--generate-pdf-document-outline", "--virtual-time-budget=30000", "--timeout=600000"]
    command = [browser(), *flags, f"--print-to-pdf={out}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=1200)


def build(html: Path, out: Path, title: str, names: list[str]) -> None:
    if missing := [name for name in names if not (html / f"{name}.html").exists()]:
        raise SystemExit(f"{html} has no page {missing[0]}: run `make book` first")
    page = html / "nbs" / "whole_book.html"
    try:
        page.write_text(document(html, names, title), encoding="utf-8")
        print_pdf(page, out)
    finally:
        page.unlink(missing_ok=True)


def main() -> None:
    import yaml

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path, default=ROOT / "_build" / "gpt2_book.pdf")
    out, start = parser.parse_args().file, time.perf_counter()
    title = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["title"]
    build(HTML, out, title, order())
    print(f"{out} ({out.stat().st_size / 1e6:.1f} MB, {time.perf_counter() - start:.0f} s)")


if __name__ == "__main__":
    sys.exit(main())
