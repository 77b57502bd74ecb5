"""The model that runs in a page: typed into by keyboard alone, from a file and served, with no network, wide and narrow."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gpt2_book.alive import page_scripts, round_matrices
from gpt2_book.model import GPT
from gpt2_book.sampling import filter_logits, sample_token
from gpt2_book.workshop.tokenizer_files import load_tokenizer

ROOT = Path(__file__).resolve().parents[2]
ASSETS = ROOT / "_assets" / "alive"
PAGE = """<!doctype html><html lang="en" data-theme="light"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Alive</title><link rel="icon" href="data:,"><link rel="stylesheet" href="alive.css"><style>html {{ --pst-color-background: #fff; }}
html[data-theme="dark"] {{ --pst-color-background: #121212; background: #121212; color: #dde3ea; }}</style>
<main><div class="alive" data-model="shakespeare" data-path="." data-size="4.0 MB" data-text="To be, or not to" data-worker="{worker}"><p>no scripts</p></div></main>
<script defer src="engine.js"></script><script defer src="alive.js"></script></html>"""


def test_the_chapter_shows_lines_of_the_engine():
    engine = (ASSETS / "engine.js").read_text(encoding="utf-8")
    cells = json.loads((ROOT / "nbs" / "52_alive.ipynb").read_text(encoding="utf-8"))["cells"]
    shown = [s for c in cells for s in re.findall(r"```javascript\n(.*?)```", "".join(c["source"]), re.S)]
    assert len(shown) >= 3 and [s for s in shown if s not in engine] == []


def test_the_book_writes_the_weights_of_the_models_that_its_pages_name(tmp_path, tokenizer):
    import nbdev_book

    page = tmp_path / "nbs" / "a.html"
    page.parent.mkdir()
    page.write_text('<div class="alive" data-model="shakespeare"></div>', encoding="utf-8")
    (tmp_path / "nbs" / "b.html").write_text("<p>data-model=&quot;another&quot;</p>", encoding="utf-8")
    nbdev_book.write_models(SimpleNamespace(outdir=tmp_path), RuntimeError("a failed build"))
    assert not (tmp_path / "_static").exists()
    nbdev_book.write_models(SimpleNamespace(outdir=tmp_path), None)
    written = {p.name: p.read_text(encoding="utf-8") for p in (tmp_path / "_static" / "alive").iterdir()}
    assert written == page_scripts(GPT.from_pretrained("shakespeare"), tokenizer, "shakespeare")


def test_a_notebook_that_runs_scripts_runs_again_when_they_change(tmp_path, monkeypatch):
    import nbformat
    from run_notebooks import Outputs

    (tmp_path / "gpt2_book").mkdir()
    (tmp_path / "_assets").mkdir()
    script, path = tmp_path / "_assets" / "engine.js", tmp_path / "nbs" / "a.ipynb"

    def name(source: str) -> str:
        nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
        return Outputs(tmp_path).file(nb, path).name

    uses, other = "open('_assets/engine.js')", "1 + 1"
    script.write_text("1")
    before = name(uses), name(other)
    script.write_text("2")
    after = name(uses), name(other)
    assert (before[0] != after[0], before[1] == after[1]) == (True, True)
    monkeypatch.setenv("PATH", "")  # nothing that runs JavaScript
    assert name(uses) != after[0]


@pytest.fixture(scope="module")
def model():
    model = GPT.from_pretrained("shakespeare").eval()
    round_matrices(model)
    return model.double()


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("shakespeare")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer) -> Path:
    """A page with the model beside it."""
    place = tmp_path_factory.mktemp("alive")
    scripts = page_scripts(GPT.from_pretrained("shakespeare"), tokenizer, "shakespeare")
    for name in ("engine.js", "alive.js", "alive.css"):
        scripts[name] = (ASSETS / name).read_text(encoding="utf-8")
    for worker in ("yes", "no"):
        scripts[f"{worker}.html"] = PAGE.format(worker=worker)
    for name, text in scripts.items():
        (place / name).write_text(text, encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def address(folder, serve) -> str:
    return serve(folder)


class Reader:
    """Somebody at the page who has a keyboard and nothing else."""

    def __init__(self, browser, url: str, **how):
        self.context = browser.new_context(viewport={"width": how.pop("width", 1280), "height": 900}, **how)
        self.page = self.context.new_page()
        self.page.set_default_timeout(60_000)
        self.complaints, self.requests = [], []
        self.page.on("console", lambda m: m.type == "error" and self.complaints.append(m.text))
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.goto(url, wait_until="load")

    def __enter__(self):
        return self

    def __exit__(self, *exc) -> None:
        self.context.close()

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def tab_to(self, words: str, *, back: bool = False) -> None:
        """Press Tab until what has the focus is called ``words``."""
        for _ in range(60):
            if words in self.focus():
                return
            self.press("Shift+Tab" if back else "Tab")
        raise AssertionError(f"no {words!r} within 60 steps; the last is {self.focus()!r}")

    def focus(self) -> str:
        return self.page.evaluate("""() => { const e = document.activeElement;
          return e === document.body ? '' : e.getAttribute('aria-label') || (e.labels && e.labels[0] ? e.labels[0].textContent : e.textContent.slice(0, 80)); }""")

    def load(self) -> None:
        self.tab_to("Load the model")
        self.press("Enter")
        self.page.wait_for_selector(".alive-tokens button")

    def status(self, pattern: str) -> str:
        """Wait until the line below the text matches."""
        self.page.wait_for_function(
            "p => new RegExp(p).test(document.querySelector('.alive-status').textContent)", arg=pattern)
        return self.page.locator(".alive-status").inner_text()

    def shows(self, text: str) -> None:
        """Wait until the tokens are those of ``text``."""
        self.page.wait_for_function(
            "t => document.querySelector('.alive-tokens').textContent === t", arg=text.replace(" ", "·"))

    def text(self) -> str:
        return self.page.locator("textarea").input_value()

    def row(self, table: str) -> list[list[str]]:
        return self.page.evaluate(
            "c => [...document.querySelectorAll(`table.${c} tbody tr`)].map(r => [...r.children].map(x => x.textContent))", table)


@pytest.fixture(params=["file", "http"])
def home(request, folder, address) -> str:
    return folder.as_uri() if request.param == "file" else address


@pytest.mark.parametrize("worker", ["yes", "no"])
def test_written_by_keyboard_alone_without_a_network(browser, home, worker, model, tokenizer):
    """A sampled continuation is PyTorch's own with the same seed; a step back and on finds the same token."""
    with Reader(browser, f"{home}/{worker}.html") as reader:
        reader.load()
        assert reader.page.locator(".alive").get_attribute("data-where") == ("worker" if worker == "yes" else "slices")
        reader.context.set_offline(True)
        asked = len(reader.requests)
        reader.status("of 256 positions")
        assert "Text" in reader.focus()  # one can type at once
        reader.tab_to("temperature")
        reader.press("Control+a")
        reader.page.keyboard.type("0.7")
        reader.tab_to("top-k")
        reader.page.keyboard.type("30")
        reader.tab_to("top-p")
        reader.page.keyboard.type("0.9")
        ids = tokenizer.encode("To be, or not to")
        generator = torch.Generator().manual_seed(1)
        reader.tab_to("Continue", back=True)
        if "by 20" in reader.focus():
            reader.press("Shift+Tab")
        for _ in range(5):
            with torch.no_grad():
                logits = model(torch.tensor([ids]))[0][:, -1]
            ids.append(sample_token(logits, temperature=0.7, top_k=30, top_p=0.9, generator=generator).item())
            reader.status(rf"^{len(ids) - 1} of 256")
            reader.press("Enter")
            reader.status(rf"^{len(ids)} of 256 positions\. {len(ids) - 1} kept from before, 1 computed")
            reader.tab_to("Continue", back=True)
            while "by 20" in reader.focus():
                reader.press("Shift+Tab")
        assert reader.text() == tokenizer.decode(ids)
        reader.tab_to("Step back")
        reader.press("Enter")
        reader.status(rf"^{len(ids) - 1} of 256")
        assert reader.text() == tokenizer.decode(ids[:-1])
        reader.tab_to("Continue by 20", back=True)
        reader.press("Enter")
        reader.status(rf"^{len(ids) + 19} of 256")
        assert reader.text().startswith(tokenizer.decode(ids))
        with torch.no_grad():
            before = tokenizer.encode(reader.text())
            shown = model(torch.tensor([before]))[0][0, -1]
        kept = filter_logits(shown, temperature=0.7, top_k=30, top_p=0.9).softmax(-1)
        best = reader.row("alive-next")[0]
        assert abs(float(best[1].rstrip("%")) - 100 * shown.softmax(-1).max().item()) < 0.51
        assert abs(float(re.search(r"[\d.]+", best[3])[0]) - 100 * kept.max().item()) < 0.51
        assert reader.requests[asked:] == [u for u in reader.requests[asked:] if u.startswith("blob:")]
        assert reader.complaints == []


def test_an_edit_in_the_middle_keeps_what_stands_before_it(browser, folder, tokenizer):
    with Reader(browser, f"{folder.as_uri()}/yes.html") as reader:
        reader.load()
        old, new = "To be, or not to", "To be, so not to"
        reader.press("End", *["ArrowLeft"] * 7, "Backspace", "Backspace")
        reader.page.keyboard.type("so")
        assert reader.text() == new
        a, b = tokenizer.encode(old), tokenizer.encode(new)
        same = next(i for i, (x, y) in enumerate(zip(a, b)) if x != y)
        assert same > 2
        reader.shows(new)
        kept = int(re.search(r"(\d+) kept", reader.status(rf"^{len(b)} of 256"))[1])
        assert kept >= same
        assert reader.complaints == []


def test_the_grid_is_walked_with_arrow_keys_and_says_what_pytorch_computes(browser, folder, model, tokenizer):
    with Reader(browser, f"{folder.as_uri()}/yes.html") as reader:
        reader.load()
        ids = tokenizer.encode("To be, or not to")
        seen = []

        def look(q, k, v, **how):
            scores = (q @ k.mT) / q.size(-1) ** 0.5
            weights = scores.masked_fill(torch.ones(len(ids), len(ids)).triu(1).bool(), -torch.inf).softmax(-1)
            seen.append(weights[0])
            return weights @ v

        old = [block.attn.attend for block in model.transformer.h]
        for block in model.transformer.h:
            block.attn.attend = look
        with torch.no_grad():
            model(torch.tensor([ids]))
        for block, kernel in zip(model.transformer.h, old):
            block.attn.attend = kernel
        reader.tab_to("Attention of")
        reader.press("ArrowDown", "ArrowDown", "ArrowDown", "ArrowDown")  # layer 2, head 2
        reader.page.wait_for_selector("table[aria-label^='Attention of layer 2, head 2']")
        reader.tab_to(" to “")
        grid = reader.page.locator("table[role=grid]")
        assert grid.get_attribute("aria-rowcount") == str(len(ids) + 1)
        cells = [(len(ids) - 1, len(ids) - 1)]
        for key, (dt, ds) in [("ArrowLeft", (0, -1)), ("ArrowUp", (-1, 0)), ("ArrowUp", (-1, 0)), ("ArrowLeft", (0, -1))]:
            t, s = cells[-1]
            reader.press(key)
            cells.append((t + dt, min(s + ds, t + dt)))
            weight = seen[1][1][cells[-1]].item()
            said = reader.focus()
            assert said.startswith(f"“{tokenizer.decode([ids[cells[-1][0]]]).replace(' ', '·')}” to")
            share = float(re.search(r": <?([\d.]+)%$", said)[1])
            assert abs(share - 100 * weight) < 0.51
            sentence = reader.page.locator(".alive-sentence").inner_text()
            most = int(seen[1][1][cells[-1][0]].argmax())
            assert ("itself" if most == cells[-1][0] else f"({most + 1})") in sentence.split(" with ")[0]
        reader.press("Control+Home")
        assert reader.page.evaluate("document.activeElement.dataset.t") == "0"
        reader.press("ArrowRight", "ArrowUp")  # nothing there
        assert reader.page.evaluate("[document.activeElement.dataset.t, document.activeElement.dataset.s]") == ["0", "0"]
        assert reader.page.locator("table[role=grid] td[tabindex='0']").count() == 1
        assert reader.complaints == []


def test_a_head_switched_off_and_a_patched_stream_change_what_pytorch_says(browser, folder, model, tokenizer):
    ids = tokenizer.encode("To be, or not to")

    def probabilities():
        with torch.no_grad():
            return model(torch.tensor([ids]))[0][0, -1].softmax(-1)

    def shown_now(reader):
        return {name: float(now.lstrip("<").rstrip("%")) for name, _, now in reader.row("alive-change")}

    def agree(shown, expected):
        wanted = {tokenizer.decode([i]).replace(" ", "·").replace("\n", "↵"): 100 * p for i, p in enumerate(expected.tolist())}
        assert len(shown) >= 5
        assert all(abs(wanted[name] - p) < 0.51 for name, p in shown.items())

    before = probabilities()
    with Reader(browser, f"{folder.as_uri()}/no.html") as reader:
        reader.load()
        reader.tab_to("Attention of")
        reader.press("ArrowDown")  # layer 1, head 2
        reader.tab_to("Switch this head off")
        reader.press("Enter")
        reader.page.wait_for_selector("table.alive-change:not([hidden])")
        D, projection = model.config.n_embd // model.config.n_head, model.transformer.h[0].attn.c_proj

        def silence(module, args):
            y = args[0].clone()
            y[..., D : 2 * D] = 0
            return y

        hook = projection.register_forward_pre_hook(silence)
        agree(shown_now(reader), probabilities())
        hook.remove()
        reader.tab_to("All heads on")
        reader.press("Enter")
        reader.page.wait_for_selector("table.alive-change", state="hidden")

        reader.tab_to("second text")
        reader.page.keyboard.type("My lord, the king")
        reader.tab_to("Patch")
        reader.press("Enter")
        reader.page.wait_for_selector("table.alive-change:not([hidden])")
        taken = []
        layer = int(reader.page.evaluate("[...document.querySelectorAll('select')].at(-1).value"))
        block = model.transformer.h[layer - 1]
        hook = block.register_forward_hook(lambda m, a, y: taken.append(y[0, -1]))
        with torch.no_grad():
            model(torch.tensor([tokenizer.encode("My lord, the king")]))
        hook.remove()
        hook = block.register_forward_hook(lambda m, a, y: torch.cat([y[:, :-1], taken[0][None, None]], 1))
        patched = probabilities()
        hook.remove()
        assert (patched - before).abs().max() > 0.01
        agree(shown_now(reader), patched)
        assert reader.complaints == []


def test_a_patch_keeps_its_place_while_the_text_grows_and_goes_with_its_token(browser, folder, model, tokenizer):
    ids, other = (tokenizer.encode(text) for text in ("To be, or not to", "My lord, the king"))
    with Reader(browser, f"{folder.as_uri()}/yes.html") as reader:
        reader.load()
        reader.tab_to("second text")
        reader.page.keyboard.type("My lord, the king")
        reader.tab_to("Patch")
        reader.press("Enter")
        reader.page.wait_for_selector("table.alive-change:not([hidden])")
        words = reader.page.locator(".alive p[role=status]").last

        def press(name, n):
            reader.page.get_by_role("button", name=name, exact=True).click()
            reader.status(rf"^{n} of 256")

        for more in (1, 2):
            press("Continue", len(ids) + more)
            assert f"({len(ids)}) is that of" in words.inner_text()
        assert reader.page.get_by_label("to token number").input_value() == str(len(ids))
        assert reader.page.get_by_label("its token number").input_value() == str(len(other))

        layer = int(reader.page.get_by_label("stream").input_value())
        taken, written = [], tokenizer.encode(reader.text())
        assert written[: len(ids)] == ids and len(written) == len(ids) + 2
        hook = model.transformer.h[layer - 1].register_forward_hook(lambda m, a, y: taken.append(y[:, -1:]))
        with torch.no_grad():
            model(torch.tensor([other]))
        hook.remove()
        hook = model.transformer.h[layer - 1].register_forward_hook(
            lambda m, a, y: torch.cat([y[:, : len(ids) - 1], taken[0], y[:, len(ids) :]], 1))
        with torch.no_grad():
            patched = model(torch.tensor([written]))[0][0, -1].softmax(-1)
        hook.remove()
        names = [tokenizer.decode([i]).replace(" ", "·").replace("\n", "↵") for i in range(len(patched))]
        for name, _, now in reader.row("alive-change"):
            assert abs(100 * patched[names.index(name)].item() - float(now.lstrip("<").rstrip("%"))) < 0.51

        press("Step back", len(ids) + 1)
        press("Step back", len(ids))
        assert f"({len(ids)}) is that of" in words.inner_text()
        press("Step back", len(ids) - 1)
        assert words.inner_text() == "The token with the patch is gone, and the patch with it."
        assert reader.page.locator("table.alive-change").is_hidden()
        assert [reader.page.get_by_label(label).input_value() for label in ("its token number", "to token number")] == ["", ""]
        assert reader.complaints == []


def test_a_button_sets_an_experiment_up(browser, folder):
    setups = {"Set up A": {"text": "O Romeo", "other": "My lord"}, "Set up B": {"text": "O Romeo", "other": "O king", "at": 2, "layer": 0}}
    with Reader(browser, f"{folder.as_uri()}/no.html") as reader:
        reader.page.evaluate("s => { document.querySelector('.alive').dataset.setups = s; }", json.dumps(setups))
        reader.load()
        reader.tab_to("Switch this head off")
        reader.press("Enter")
        reader.page.wait_for_selector("table.alive-change:not([hidden])")
        filled = "() => [...document.querySelectorAll('.alive section:last-child :is(input, select)')].map(e => e.value)"
        layer = reader.page.get_by_label("stream").input_value()
        for name, fields in [("Set up A", ["My lord", layer, "", ""]), ("Set up B", ["O king", "0", "2", "2"])]:
            reader.tab_to(name)
            reader.press("Enter")
            reader.shows("O Romeo")
            reader.page.wait_for_selector("table.alive-change", state="hidden")  # every head on, and no patch
            assert (reader.text(), reader.page.evaluate(filled)) == ("O Romeo", fields)
            reader.tab_to("Patch", back=True)
            reader.press("Enter")
            reader.page.wait_for_selector("table.alive-change:not([hidden])")
        assert reader.page.locator(".alive p[role=status]").last.inner_text().startswith("At the embedding, the stream at ")
        assert reader.complaints == []


COUNTED = """() => {  // the engine tells what it was asked and what it answered
  const made = globalThis.aliveEngine;
  globalThis.aliveEngine = () => {
    const engine = made();
    const serve = (model, reply) => {
      const answer = engine.serve(model, r => { reply(r); if (r.kind === 'shown') { globalThis.answered = r.id; } });
      return q => { globalThis.asked = q.id; return answer(q); };
    };
    return { ...engine, serve };
  };
}"""


def test_a_page_without_a_worker_hears_stop_between_two_tokens(browser, folder):
    """It computes in slices: what a reader presses comes before the next token, and all parts show the last one."""
    with Reader(browser, f"{folder.as_uri()}/no.html") as reader:
        reader.page.evaluate(COUNTED)
        reader.load()
        reader.status("of 256 positions")
        begun = reader.page.locator(".alive-tokens button").count()
        reader.tab_to("Continue by 20")
        reader.page.evaluate("""() => { const b = document.activeElement, first = asked;
          b.click(); setTimeout(() => { globalThis.said = b.textContent; globalThis.heard = asked - first; b.click(); }); }""")
        # no clock decides: the answer to the last question is awaited, and it is the one that was on its way at the stop
        reader.page.wait_for_function("globalThis.said && asked === answered")
        said, heard, button = reader.page.evaluate("[said, heard, document.activeElement.textContent]")
        assert (said, button) == ("Stop", "Continue by 20")
        written = int(reader.status(r"^\d+ of 256").split()[0])
        assert written == begun + heard < begun + 20
        assert reader.page.locator(".alive-tokens button").count() == written
        assert reader.page.locator("table[role=grid]").get_attribute("aria-rowcount") == str(written + 1)
        assert f"({written}) after each layer" in reader.page.locator(".alive").inner_text()
        assert reader.complaints == []


def test_what_is_drawn_again_is_what_a_fresh_page_draws(browser, folder):
    """Tokens and grid keep their elements: after longer and shorter texts they say the same as new ones."""
    drawn = """() => [...document.querySelectorAll('.alive-tokens, .alive-tokens *, .alive-grid, .alive-grid *')].map(e =>
      [e.tagName, e.children.length ? '' : e.textContent, ...[...e.attributes].map(a => `${a.name}=${a.value}`).sort()].join(' '))"""
    texts = ["O", "O Romeo, Romeo! wherefore art thou Romeo? Deny thy father and refuse thy name", "My lord, the", "My lord, the king is"]
    with Reader(browser, f"{folder.as_uri()}/yes.html") as reader:
        reader.load()
        for i, text in enumerate(texts):
            reader.tab_to("Text", back=True)
            reader.press("Control+a")
            reader.page.keyboard.insert_text(text)
            reader.shows(text)
            with Reader(browser, f"{folder.as_uri()}/yes.html") as fresh:
                fresh.page.evaluate("t => { document.querySelector('.alive').dataset.text = t; }", text)
                fresh.load()
                fresh.shows(text)
                assert reader.page.evaluate(drawn) == fresh.page.evaluate(drawn)
            if i == 1:  # the window moves, and stays until the text changes
                reader.tab_to(" to “")
                reader.press("Control+Home", "PageDown", "ArrowRight")
        assert reader.complaints == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_fits_a_phone_and_nothing_moves(browser, folder, theme):
    with Reader(browser, f"{folder.as_uri()}/yes.html", width=390, reduced_motion="reduce") as reader:
        reader.page.evaluate("t => { document.documentElement.dataset.theme = t }", theme)
        reader.load()
        reader.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
        assert reader.page.evaluate("document.documentElement.scrollWidth") <= 390
        assert reader.page.evaluate("document.getAnimations().length") == 0
        small = reader.page.evaluate("""() => [...document.querySelectorAll('.alive button, .alive input, .alive select, .alive textarea')]
          .filter(e => !(e.getAttribute('aria-label') || e.textContent.trim() || (e.labels && e.labels.length))).map(e => e.outerHTML)""")
        assert small == []  # everything has a name
        wheel = reader.page.evaluate("""() => { const e = new WheelEvent('wheel', {cancelable: true, bubbles: true, deltaY: 100});
          return [...document.querySelectorAll('.alive *')].every(x => x.dispatchEvent(e)); }""")
        assert wheel  # nobody keeps the wheel
        assert reader.complaints == []


def test_clear_words_for_what_cannot_be_read(browser, folder):
    with Reader(browser, f"{folder.as_uri()}/yes.html") as reader:
        reader.load()
        reader.press("Control+a", "Delete")
        reader.status("Nothing is written yet")
        assert reader.page.get_by_role("button", name="Continue", exact=True).is_disabled()
        reader.page.keyboard.insert_text("snow ☃ <b>bold</b>")
        assert "☃" in reader.status("No token holds")
        assert reader.page.locator(".alive-tokens b").count() == 0  # text, never HTML
        reader.tab_to("top-p")
        reader.page.keyboard.type("7")
        reader.status("top-p is a number above 0")
        reader.press("Backspace")
        reader.status("of 256 positions")
        reader.tab_to("Text", back=True)
        reader.press("Control+a")
        reader.page.keyboard.insert_text("O no, " * 200)
        words = reader.status("reads the last 256.*The context is full")
        assert "it reads the last 256" in words
        assert reader.page.get_by_role("button", name="Continue", exact=True).is_disabled()
        reader.tab_to("second text")
        reader.tab_to("Patch")
        reader.press("Enter")
        reader.page.wait_for_function("document.querySelector('.alive').textContent.includes('The second text is empty')")
        assert reader.complaints == []


def test_without_scripts_and_without_weights(browser, folder, tmp_path):
    with Reader(browser, f"{folder.as_uri()}/yes.html", java_script_enabled=False) as reader:
        assert reader.page.locator(".alive").inner_text() == "no scripts"
    for name in ("yes.html", "engine.js", "alive.js", "alive.css", "shakespeare.js"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with Reader(browser, f"{tmp_path.as_uri()}/yes.html") as reader:
        reader.tab_to("Load the model")
        reader.press("Enter")
        reader.page.wait_for_selector(".alive [role=alert]")
        assert "did not load" in reader.page.locator(".alive").inner_text()
        assert "Try again" in reader.page.locator(".alive").inner_text()
