"""The built book as a reader meets it: in a browser, on a wide and a narrow screen, light and dark, served and from a file."""

from __future__ import annotations

import json
import re
from configparser import ConfigParser
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "_build" / "html"
_forwards = 'http-equiv="refresh"'  # a page under an old name, which sends its reader on
CHAPTERS = sorted(str(p.relative_to(HTML)) for p in HTML.glob("nbs/*.html") if _forwards not in p.read_text(encoding="utf-8"))
PAGES = [*CHAPTERS, *(name for name in ("api/index.html", "api/gpt2_book.model.html", "search.html") if (HTML / name).exists())]


class Parsed(HTMLParser):
    """What the link checks need of a page: its anchors, its links, its text line by line."""

    def __init__(self, path: Path):
        super().__init__()
        self.ids, self.links, self.text = set(), [], ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list) -> None:
        a = dict(attrs)
        self.text += "\n" * (tag == "pre")
        self.ids |= {a[k] for k in ("id", "name") if a.get(k)}
        self.links += [a[k] for k in ("href", "src") if a.get(k) and (tag, a.get("rel")) != ("link", "canonical")]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def parsed(html: Path) -> dict[Path, Parsed]:
    return {path: Parsed(path) for path in sorted(html.rglob("*.html")) if "_static" not in path.parts}


# --- without a browser --------------------------------------------------------------------------------------------------


def test_links_and_anchors_resolve(html: Path, parsed: dict[Path, Parsed]):
    broken = []
    for path, page in parsed.items():
        for link in page.links:
            url, anchor = urldefrag(link)
            parts = urlsplit(url)
            if parts.scheme in ("http", "https", "mailto", "data", "javascript"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                broken.append(f"{path.relative_to(html)}: {link} does not exist")
            elif anchor and target.suffix == ".html" and unquote(anchor) not in parsed[target].ids:
                broken.append(f"{path.relative_to(html)}: {link} has no such anchor")
    assert not broken, "\n".join(broken)


def test_no_directive_is_printed(html: Path, parsed: dict[Path, Parsed]):
    shown = [
        f"{path.relative_to(html)}: {m[0]}"
        for path, p in parsed.items()
        for m in re.finditer(r"^#\s?\|.*", p.text, re.M)
    ]
    shown = [s for s in shown if not s.startswith("_modules")]
    assert not shown, "\n".join(shown)


@pytest.mark.parametrize("name", CHAPTERS or [None])
def test_colab_edit_and_download_buttons(html: Path, parsed: dict[Path, Parsed], name: str):
    ini = ConfigParser(delimiters=["="])
    ini.read(ROOT / "settings.ini", encoding="utf-8")
    git_url, branch = ini["DEFAULT"]["git_url"], ini["DEFAULT"]["branch"]
    notebook = f"{name.removesuffix('.html')}.ipynb"
    links = parsed[html / name].links
    assert (
        git_url.replace("https://github.com", "https://colab.research.google.com/github") + f"/blob/{branch}/{notebook}"
        in links
    )
    assert f"{git_url}/edit/{branch}/{notebook}" in links
    assert f"../_sources/{notebook}" in links
    offered, own = (json.loads((root / notebook).read_text(encoding="utf-8"))["cells"] for root in (html / "_sources", ROOT))
    assert ["".join(c["source"]) for c in offered] == ["".join(c["source"]) for c in own]
    assert any(c.get("outputs") for c in offered) and not any(c.get("outputs") for c in own)


def test_every_module_is_on_the_api_page(html: Path, parsed: dict[Path, Parsed]):
    pages = [path for path in html.glob("api/*.html") if path.stem != "index"]
    assert len(pages) > 20 and [p.stem for p in pages if f"module-{p.stem}" not in parsed[p].ids] == []
    assert 'url=api/index.html' in (html / "api.html").read_text(encoding="utf-8")


# --- with a browser -----------------------------------------------------------------------------------------------------

# elements of the article that reach past the window and stand in no box that scrolls
CLIPPED = """() => [...document.querySelectorAll('article *, .bd-article *')].filter(el => {
  const r = el.getBoundingClientRect();
  if (r.right <= innerWidth + 1 || r.width < 2 || !el.checkVisibility({visibilityProperty: true})) return false;
  for (let e = el; e && e !== document.body; e = e.parentElement) {
    if (e.matches('svg, .katex-mathml, .visually-hidden, .sr-only')) return false;
    if (e !== el && ['auto', 'scroll'].includes(getComputedStyle(e).overflowX) && e.getBoundingClientRect().right <= innerWidth + 1) return false;
  }
  return true;
}).slice(0, 5).map(el => el.outerHTML.slice(0, 120))"""
OVERFLOW = "() => document.documentElement.scrollWidth - innerWidth"
# on a phone: display equations wider than their place, folded ones too, and tables that scroll without a shadow that says so
WIDE = """async () => {
  document.querySelectorAll('details').forEach(e => { e.open = true; });
  await document.fonts.ready;
  const wider = e => e.scrollWidth > e.clientWidth + 1;
  const opaque = e => !/^rgba\\(.*, 0(\\.\\d+)?\\)$/.test(getComputedStyle(e).backgroundColor);
  const tables = [...document.querySelectorAll('.bd-article table')].filter(t => {
    const box = t.closest('.pst-scrollable-table-container') || t.parentElement;
    return wider(box) && (getComputedStyle(box).backgroundImage === 'none' || [...t.rows].some(opaque));
  });
  return [...document.querySelectorAll('div.math > .formula')].filter(wider)
    .map(e => `${e.scrollWidth - e.clientWidth} pixels too wide: ` + e.querySelector('annotation').textContent.trim())
    .concat(tables.map(t => 'scrolls and does not show it: ' + t.innerText.trim().slice(0, 80)));
}"""
NO_ALT = """() => [...document.querySelectorAll('img')].filter(e => !(e.getAttribute('alt') || '').trim()).concat(
  [...document.querySelectorAll('svg')].filter(e => !e.closest('[aria-hidden="true"]') && !e.getAttribute('aria-label')
    && !e.getAttribute('aria-labelledby') && !e.querySelector('title') && !e.closest('button, a, label, summary')))
  .map(e => e.outerHTML.slice(0, 160))"""
MATH = """() => {
  const all = [...document.querySelectorAll('span.math, div.math > .formula')];
  const walk = document.createTreeWalker(document.querySelector('article, .bd-article') || document.body, NodeFilter.SHOW_TEXT);
  const raw = [];
  while (walk.nextNode()) {
    const t = walk.currentNode;
    if (!t.parentElement.closest('pre, code, .katex, script, style, .cell_output') && /\\\\[([]|\\\\[a-zA-Z]{2,}|\\$\\$/.test(t.data)) raw.push(t.data.slice(0, 80));
  }
  return {all: all.length, errors: [...document.querySelectorAll('.katex-error')].map(e => e.title),
    bare: all.filter(e => !e.querySelector('.katex-mathml math') || !e.querySelector('.katex-html')).map(e => e.textContent.slice(0, 80)), raw};
}"""
# the worst contrast between a letter and what lies behind it, in code, text and captions
CONTRAST = """() => {
  const rgba = s => { const m = s.match(/[\\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
  const behind = e => { for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor); if (c[3] > 0.9) return c; } return [255, 255, 255, 1]; };
  const light = c => { const [r, g, b] = c.map(v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const worst = [];
  for (const e of document.querySelectorAll('.bd-article :is(p, li, h2, figcaption p, code, pre, pre span, a.reference, summary, th, td)')) {
    if (!e.textContent.trim() || !e.checkVisibility() || e.closest('.katex')) continue;
    const [a, b] = [light(rgba(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
    worst.push([(a + 0.05) / (b + 0.05), e.outerHTML.slice(0, 100)]);
  }
  return worst.sort((x, y) => x[0] - y[0])[0] || [21, ''];
}"""


class Visit:
    """A page opened in the browser, with all that it asked for and complained about on the way."""

    def __init__(self, browser, url: str, *, width: int = 1280, dark: bool = False):
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light")
        self.page.set_default_timeout(60_000)
        self.requests, self.complaints = [], []
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.on("response", lambda r: r.status >= 400 and self.complaints.append(f"{r.status} {r.url}"))
        self.page.on("requestfailed", self._failed)
        self.page.on("console", lambda m: m.type == "error" and self.complaints.append(m.text))
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.goto(url, wait_until="load")

    def _failed(self, request) -> None:
        if request.failure != "net::ERR_ABORTED":  # by going on to the next page
            self.complaints.append(f"{request.failure}: {request.url}")

    def __enter__(self):
        return self

    def __exit__(self, *exc) -> None:
        self.page.close()

    def check(self, home: str) -> None:
        """No error, and nothing asked of anyone but `home`."""
        assert not self.complaints, "\n".join(self.complaints)
        elsewhere = [u for u in self.requests if not u.startswith((home, "data:", "blob:"))]
        assert not elsewhere, "\n".join(elsewhere)

    def check_math(self) -> int:
        math = self.page.evaluate(MATH)
        assert (math["errors"], math["bare"], math["raw"]) == ([], [], []), math
        return math["all"]


@pytest.mark.parametrize("name", PAGES or [None])
def test_page(browser, served: str, name: str):
    with Visit(browser, f"{served}/{name}") as v:
        for width in (1280, 390):
            v.page.set_viewport_size({"width": width, "height": 900})
            assert v.page.evaluate(OVERFLOW) <= 0, f"the page scrolls sideways at {width}"
            assert v.page.evaluate(CLIPPED) == [], f"cut off at {width}"
        assert v.page.evaluate(NO_ALT) == []
        for theme in ("light", "dark"):
            v.page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
            ratio, where = v.page.evaluate(CONTRAST)
            assert ratio >= 4.5, f"hard to read in the {theme} theme: {where}"
        v.check_math()
        v.check(served)


@pytest.mark.parametrize("name", [n for n in PAGES if re.search('class="formula"|<table', (HTML / n).read_text(encoding="utf-8"))] or [None])
def test_equations_and_tables_on_a_phone(browser, served: str, name: str):
    with Visit(browser, f"{served}/{name}", width=390) as v:
        wide = v.page.evaluate(WIDE)
        assert not wide, f"{name}: " + "\n".join(wide)


@pytest.mark.parametrize("name", CHAPTERS[:3] or [None])
def test_page_from_a_file(browser, html: Path, name: str):
    with Visit(browser, (html / name).as_uri()) as v:
        v.check_math()
        v.check("file://")


def test_mathematics_is_there_at_all(browser, served: str):
    with Visit(browser, f"{served}/nbs/11_attention.html") as v:
        assert v.check_math() > 10
        assert v.page.locator("div.math .eqno a.headerlink").count() > 0
        assert v.page.locator("article a.reference[href^='#equation-']").count() > 0


@pytest.mark.parametrize("kind", ["served", "file"])
@pytest.mark.parametrize(
    ("words", "chapter"),
    [("sinusoid", "10_positional_encoding"), ("permutation", "11_attention"), ("merges", "01_tokenization")],
)
def test_search_finds_the_chapter(browser, html: Path, served: str, kind: str, words: str, chapter: str):
    home = served if kind == "served" else html.as_uri()
    with Visit(browser, f"{home}/nbs/index.html") as v:
        v.page.keyboard.press("Control+k")
        v.page.keyboard.type(words)
        v.page.keyboard.press("Enter")
        v.page.wait_for_selector(f"#search-results a[href*='{chapter}']")
        v.check(home)


def test_dark_mode_button(browser, served: str):
    with Visit(browser, f"{served}/nbs/index.html") as v:
        background = "getComputedStyle(document.body).backgroundColor"
        seen = {v.page.evaluate("document.documentElement.dataset.theme"): v.page.evaluate(background)}
        for _ in range(2):  # automatic, light, dark
            v.page.locator(".theme-switch-button:visible").first.click()
            seen[v.page.evaluate("document.documentElement.dataset.theme")] = v.page.evaluate(background)
        assert set(seen) == {"light", "dark"} and len(set(seen.values())) == 2
        theme = v.page.evaluate("document.documentElement.dataset.theme")
        v.page.reload()
        assert v.page.evaluate("document.documentElement.dataset.theme") == theme, "the choice is forgotten"


def test_sliders_filter_as_the_package_does(browser, html: Path):
    """The sliders of the chapter on sampling, moved by keyboard on the page from a file, against `filter_logits`."""
    import torch

    from gpt2_book.sampling import filter_logits

    names = ("temperature", "top_k", "top_p", "min_p")
    with Visit(browser, (html / "nbs" / "22_sampling.html").as_uri()) as v:
        root = v.page.locator("#reshape")
        logits = torch.tensor(json.loads(root.get_attribute("data-logits")), dtype=torch.float64)
        start = root.inner_html()
        moves = [(0, "ArrowRight", 12), (2, "ArrowLeft", 10), (1, "ArrowLeft", 20), (3, "ArrowRight", 4),
                 (0, "ArrowLeft", 24), (3, "Home", 1), (2, "End", 1), (1, "Home", 1), (1, "End", 1)]  # fmt: skip
        for which, key, times in moves:
            root.locator("input").nth(which).focus()
            for _ in range(times):
                v.page.keyboard.press(key)
            said = root.locator("label output").all_inner_texts()
            how = {n: float(s) if n != "top_k" else int(s) for n, s in zip(names, said) if s != "off"}
            probs = filter_logits(logits, **how).softmax(-1)
            shown = [float(s.rstrip("%")) for s in root.locator(".share").all_text_contents()]
            assert shown == pytest.approx((100 * probs[: len(shown)]).tolist(), abs=0.0051), how
            kept = int((probs > 0).sum())
            assert root.locator(".says").inner_text().startswith(f"{kept} of {len(logits)} tokens kept")
            assert f"{kept} of" in root.locator("svg").get_attribute("aria-label")
        root.get_by_role("button", name="Reset").press("Enter")
        assert re.sub(r"[\d.]+%", "", root.inner_html()) == re.sub(r"[\d.]+%", "", start)  # what Python had drawn
        v.check("file://")


TYPE_AND_CONTINUE = """() => {
    const text = document.querySelector('.alive textarea')
    text.value = 'ROMEO: O, the'
    text.dispatchEvent(new Event('input'))
    for (const b of document.querySelectorAll('.alive button')) if (b.textContent === 'Continue') b.click()
}"""


@pytest.mark.parametrize("kind", ["served", "file"])
def test_the_model_lives_in_its_page(browser, html: Path, served: str, kind: str):
    """By keyboard alone, on a phone, in both themes; tests/tooling/test_alive_page.py holds what it says against PyTorch."""
    home = served if kind == "served" else html.as_uri()
    with Visit(browser, f"{home}/nbs/52_alive.html", width=390) as v:
        root = v.page.locator(".alive[data-model='shakespeare']")
        root.get_by_role("button", name="Load the model").press("Enter")
        v.page.wait_for_selector(".alive-tokens button")
        v.page.keyboard.press("Control+End")
        v.page.keyboard.type(" stars")
        v.page.wait_for_function("document.querySelector('.alive-tokens').textContent.includes('star')")
        root.get_by_role("button", name="Continue", exact=True).press("Enter")
        v.page.wait_for_function("!document.querySelector('.alive textarea').value.endsWith(' stars')")
        v.page.evaluate(TYPE_AND_CONTINUE)  # the button waits for the answer
        v.page.wait_for_function("document.querySelector('.alive textarea').value.length > 13")
        assert v.page.evaluate(OVERFLOW) <= 0
        assert v.page.evaluate(CLIPPED) == []
        for theme in ("light", "dark"):
            v.page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
            ratio, where = v.page.evaluate(CONTRAST)
            assert ratio >= 4.5, f"hard to read in the {theme} theme: {where}"
        v.check("http://127.0.0.1" if kind == "served" else "file://")


def tab_to(v: Visit, name: str) -> None:
    """Press Tab until the button of this name has the focus."""
    for _ in range(12):
        v.page.keyboard.press("Tab")
        if v.page.evaluate("document.activeElement.textContent") == name:
            return
    raise AssertionError(f"no {name!r} within 12 steps")


def use_merges(v: Visit, root) -> None:
    root.locator("textarea").focus()
    v.page.keyboard.press("Control+a")
    v.page.keyboard.type("the thesis")
    v.page.wait_for_function("e => /^2 chunks, 10 bytes/.test(e.textContent)", arg=root.get_by_role("status").element_handle())
    tab_to(v, "Next merge")
    v.page.keyboard.press("Enter")
    assert root.get_by_role("status").inner_text().startswith("Merge 1 of ")
    tab_to(v, "Last")
    v.page.keyboard.press("Enter")
    pieces = root.locator(".alive-chunk > span").all_text_contents()
    assert "".join(pieces) == "the·thesis" and len(pieces) < 10
    ids = [int(i) for i in root.inner_text().partition("The ids: ")[2].split()]
    assert ids == [int(e.get_attribute("data-id")) for e in root.locator(".alive-chunk > span").all()]


def use_query(v: Visit, root) -> None:
    sliders, said = root.locator("input[type=range]"), root.get_by_role("status")
    for i, key in ((0, "Home"), (1, "End")):
        before = said.inner_text(), root.locator("table").inner_text(), root.locator("circle").get_attribute("cx" if i == 0 else "cy")
        sliders.nth(i).focus()
        v.page.keyboard.press(key)
        after = said.inner_text(), root.locator("table").inner_text(), root.locator("circle").get_attribute("cx" if i == 0 else "cy")
        assert all(a != b for a, b in zip(before, after)), (before, after)
    assert root.locator("svg").get_attribute("aria-label").endswith("-3.00, 3.00")
    assert sum(float(s) for s in root.locator("tbody td:nth-of-type(2) span:first-child").all_text_contents()) == pytest.approx(1, abs=0.002)


def use_draws(v: Visit, root) -> None:
    drawn, fields = root.locator("ol li"), root.locator("input")
    found = {}
    for seed in ("5", "6", "5"):
        fields.last.focus()
        v.page.keyboard.press("Control+a")
        v.page.keyboard.type(seed)
        assert drawn.count() == 0
        tab_to(v, "Draw")
        v.page.keyboard.press("Enter")
        assert drawn.count() == 1 and root.get_by_role("status").inner_text().startswith(f"Number 1 of seed {seed}: ")
        tab_to(v, "Draw 20")
        v.page.keyboard.press("Enter")
        assert drawn.count() == 21
        assert found.setdefault(seed, drawn.all_text_contents()) == drawn.all_text_contents()
    assert found["5"] != found["6"]
    fields.nth(1).focus()  # top-k
    v.page.keyboard.type("1")
    assert root.get_by_role("status").inner_text().startswith("1 of ")


def use_cache(v: Visit, root) -> None:
    said = root.get_by_role("status")
    root.locator("textarea").focus()
    v.page.keyboard.press("Control+a")
    v.page.keyboard.type("My lord, the king")
    n = root.locator(".alive-chunk").count()
    v.page.keyboard.type(".")
    assert said.inner_text().startswith(f"{n} kept (dotted), 1 computed")
    v.page.keyboard.press("Home")
    v.page.keyboard.type("O")
    assert said.inner_text().startswith("0 kept (dotted)") and root.locator(".alive-kept").count() == 0


def use_induction(v: Visit, root) -> None:
    root.get_by_role("button").focus()
    v.page.keyboard.press("Enter")
    v.page.wait_for_selector(".alive-tokens button")
    string = "Zq7Rt2Wx"
    v.page.keyboard.press("Control+a")
    v.page.keyboard.type(2 * string + string[:3])
    v.page.wait_for_function("t => document.querySelector('.alive-tokens').textContent === t", arg=2 * string + string[:3])
    likely = [name.removesuffix(" ←") for name in root.locator("table.alive-next tbody th").all_inner_texts()]
    assert string[3] in likely[:3], "it has learned to go on with a string that repeats"
    tab_to(v, "Continue")
    v.page.keyboard.press("Enter")
    v.page.wait_for_function("n => document.querySelectorAll('.alive-tokens button').length === n", arg=2 * len(string) + 4)
    assert root.locator("textarea").input_value().startswith(2 * string + string[:3])


@pytest.mark.parametrize("kind", ["served", "file"])
@pytest.mark.parametrize(
    ("chapter", "part", "use"),
    [("01_tokenization", "[data-widget='merges']", use_merges), ("11_attention", "[data-widget='query']", use_query),
     ("22_sampling", "[data-widget='draws']", use_draws), ("23_kv_cache", "[data-widget='cache']", use_cache),
     ("51_induction", "[data-here='induction']", use_induction)],
)  # fmt: skip
def test_a_widget_in_its_chapter(browser, html: Path, served: str, kind: str, chapter: str, part: str, use):
    """With keys alone, on the built page; tests/tooling/test_widgets_page.py holds what each says against PyTorch."""
    home = served if kind == "served" else html.as_uri()
    with Visit(browser, f"{home}/nbs/{chapter}.html") as v:
        root = v.page.locator(f".alive{part}")
        assert root.count() == 1
        use(v, root)
        v.check(home if kind == "served" else "file://")
