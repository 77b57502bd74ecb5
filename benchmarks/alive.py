"""Run the page's model (nbs/52_alive.ipynb) under Node.js and in Chromium: tokens a second of one core, over a full context.

    python benchmarks/alive.py [--rounds 4] [--page ...] [--ort ...] [--transformers ...] [--json benchmarks/results/alive-MACHINE.json]

Each round reads a full context, one position after the other, and chooses a token after each, as writing does. For Node.js the
processor's time counts, of all its threads, less that of a run of one round: neither the start nor the compiler counts, nor what
else the machine is doing. Chromium's helpers hide theirs, so there the clock counts, the best round of all, and what else runs
beside it makes it slower. Linux and macOS.

With --page, the built page of the chapter (_build/html/nbs/52_alive.html), the frames that Chromium draws are counted, with a
worker and without: while nothing happens, while the model writes, and while somebody walks through the attention.

With --ort, the folder `dist` of the npm package onnxruntime-web, the same page of the same Chromium also runs ONNX files of the model
on one thread, and the ways take turns: the file of 92_onnx, which has no cache and reads the whole text for each token, and one made
here that has a cache. With --transformers, the folder `dist` of @huggingface/transformers beside the onnxruntime-web that it asks for,
its `generate` writes from that file too. All write the likeliest token each time, from one token to a full context.
This needs playwright, and the last two onnx and onnxruntime.
"""

import argparse
import functools
import http.server
import json
import math
import os
import re
import resource
import shutil
import statistics
import subprocess
import tempfile
import threading
from pathlib import Path

from common import describe_machine, write_results

ENGINE = Path(__file__).resolve().parents[1] / "_assets" / "alive" / "engine.js"
MAIN = """
function main() {
  const E = aliveEngine(), { header, parts } = aliveModels.shakespeare, model = new E.Model(header, parts), T = model.config.block_size;
  let best = Infinity;  // milliseconds
  for (let round = 0; round < ROUNDS; round++) {
    const start = performance.now(), session = new E.Session(model);
    session.read(Array.from({ length: T }, (_, i) => (7 * i + round) % model.config.vocab_size));
    for (let t = 0; t < T; t++) { session.step(); E.choose(session.logits(), { temperature: 0.8, topK: 40, seed: t }); }
    best = Math.min(best, performance.now() - start);
  }
  return best;
}"""


# milliseconds between the frames that the browser asks the page for, and its tasks of more than 50 ms
METER = """() => {
  const meter = globalThis.meter = { gaps: [], tasks: [], from: performance.now() };
  let last = null;
  const frame = now => { if (last !== null) meter.gaps.push(now - last); last = now; if (meter === globalThis.meter) requestAnimationFrame(frame); };
  requestAnimationFrame(frame);
  new PerformanceObserver(list => { for (const e of list.getEntries()) if (e.startTime >= meter.from) meter.tasks.push(e.duration); }).observe({ type: "longtask" });
}"""
READ_METER = "() => { const { gaps, tasks } = globalThis.meter; globalThis.meter = null; return { gaps, tasks }; }"
LATE = 1000 / 60 + 1000 / 120  # milliseconds: a frame that is half a frame late was left out


def frames_in_page(page: Path, chromium: str, rounds: int) -> dict:
    """Return how evenly the built page of the chapter draws, from its file, in each round: left alone, while its model writes
    a hundred tokens, and while somebody walks through the attention, thirty keys a second."""
    from playwright.sync_api import sync_playwright

    measured: dict[tuple[str, str], list[dict]] = {}
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for _ in range(rounds):
            for where in ("worker", "slices"):
                tab = browser.new_page(viewport={"width": 1280, "height": 900})
                tab.goto(page.resolve().as_uri())
                root = tab.locator(".alive[data-model='shakespeare']")
                root.evaluate("(e, where) => { e.dataset.worker = where === 'worker' ? 'yes' : 'no'; }", where)
                root.get_by_role("button").press("Enter")
                tab.wait_for_selector(".alive-tokens button")
                if root.get_attribute("data-where") != where:
                    raise RuntimeError(f"the page computes in {root.get_attribute('data-where')}, not in {where}")

                def positions(tab=tab):
                    return tab.locator(".alive-tokens button").count()

                def write(root=root, tab=tab):
                    for _ in range(5):
                        end = positions() + 20
                        root.get_by_role("button", name="Continue by 20").press("Enter")
                        tab.wait_for_function("n => document.querySelectorAll('.alive-tokens button').length === n", arg=end, polling=100)

                def walk(root=root, tab=tab):
                    root.locator("table[role=grid] td[tabindex='0']").focus()
                    for i in range(90):
                        tab.keyboard.press("ArrowLeft" if i % 2 else "ArrowUp")
                        tab.wait_for_timeout(1000 / 30)

                for doing, act in {"nothing": lambda tab=tab: tab.wait_for_timeout(2000), "writing": write, "walking": walk}.items():
                    tab.evaluate(METER)
                    act()
                    measured.setdefault((where, doing), []).append(tab.evaluate(READ_METER) | {"load": os.getloadavg()[0]})
                tab.close()
        version = browser.version
        browser.close()
    rows = []
    for (where, doing), found in measured.items():
        late = [sum(gap > LATE for gap in one["gaps"]) / len(one["gaps"]) for one in found]
        best = found[late.index(min(late))]
        gaps = sorted(best["gaps"])
        rows.append({"where": where, "doing": doing, "frames": len(gaps), "median_ms": statistics.median(gaps),
                     "p95_ms": gaps[math.ceil(0.95 * len(gaps)) - 1], "longest_ms": gaps[-1], "late": min(late),
                     "long_tasks": len(best["tasks"]), "longest_task_ms": max(best["tasks"], default=0), "load_average": best["load"], "late_in_each_round": late})  # fmt: skip
    return {"chromium": version, "rounds": rounds, "shown": "the round with the fewest late frames", "late_from_ms": LATE, "rows": rows}


BESIDE = """async ({ rounds, transformers }) => {
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmPaths = "/ort/";
  const E = aliveEngine(), { header, parts } = aliveModels.shakespeare, model = new E.Model(header, parts);
  const { block_size: T, vocab_size: V, n_layer: L, n_head: H, n_embd: C } = model.config;
  const [whole, cached] = await Promise.all(["whole", "onnx/model"].map(n => ort.InferenceSession.create(`/model/${n}.onnx`, { executionProviders: ["wasm"] })));
  const text = Array.from({ length: T }, (_, i) => (7 * i) % V), largest = x => x.reduce((best, v, i) => (v > x[best] ? i : best), 0);
  const tensor = ids => new ort.Tensor("int64", BigInt64Array.from(ids, BigInt), [1, ids.length]);
  const call = async (ids, past) => {
    const found = await (past ? cached : whole).run({ input_ids: tensor(ids), ...past });
    return { logits: found.logits.data.slice(-V), past: Object.fromEntries(Object.entries(found).filter(([n]) => n !== "logits").map(([n, x]) => [n.replace("present", "past_key_values"), x])) };
  };
  const nothing = () => Object.fromEntries(Array.from({ length: L }, (_, i) => ["key", "value"].map(n => [`past_key_values.${i}.${n}`, new ort.Tensor("float32", new Float32Array(0), [1, H, 0, C / H])])).flat());
  const grow = async next => {  // the likeliest token each time, from one token to a full context
    const ids = [0];
    while (ids.length < T) ids.push(largest(await next(ids)));
    return ids;
  };
  const ways = {
    "page writes": () => { const session = new E.Session(model); return grow(ids => { session.read(ids); session.step(); return session.logits(); }); },
    "ONNX Runtime Web writes": () => { let past = nothing(); return grow(async ids => { const found = await call(ids.slice(-1), past); past = found.past; return found.logits; }); },
    "ONNX Runtime Web writes without a cache": () => grow(async ids => (await call(ids)).logits),
  };
  if (transformers) {
    const { env, AutoModelForCausalLM, Tensor } = await import("/transformers/transformers.min.js");
    Object.assign(env, { allowRemoteModels: false, allowLocalModels: true, localModelPath: "/", useBrowserCache: false });
    Object.assign(env.backends.onnx.wasm, { numThreads: 1, wasmPaths: "/transformers/" });
    const gpt = await AutoModelForCausalLM.from_pretrained("model", { device: "wasm", dtype: "fp32" });
    ways["transformers.js writes"] = async () => {
      const inputs = { input_ids: new Tensor("int64", [0n], [1, 1]), attention_mask: new Tensor("int64", [1n], [1, 1]) };
      return Array.from((await gpt.generate({ ...inputs, do_sample: false, max_length: T, eos_token_id: null })).data, Number);
    };
  }
  ways["page reads"] = () => { const session = new E.Session(model); session.read(text); while (session.done < T) session.step(); return session.logits(); };
  ways["ONNX Runtime Web reads"] = async () => (await call(text)).logits;
  const best = {}, last = {};
  for (let round = 0; round <= rounds; round++) for (const [name, way] of Object.entries(ways)) {  // the first warms up
    if (name.includes("without") && round !== 1) continue;  // it takes a minute: once
    const start = performance.now();
    last[name] = await way();
    if (round) best[name] = Math.min(best[name] ?? Infinity, performance.now() - start);
  }
  let gap = 0;
  for (let i = 0; i < V; i++) gap = Math.max(gap, Math.abs(last["page reads"][i] - last["ONNX Runtime Web reads"][i]));
  const same = Object.entries(last).filter(([name]) => name.includes("writes")).map(([, ids]) => ids.length === T && ids.every((id, i) => id === last["page writes"][i]));
  return { best, gap, T, same: same.every(Boolean) };
}"""


def export_with_cache(model, path: Path) -> None:
    """Write a model as transformers.js wants it: new tokens, and the past's keys and values, to logits and all of them."""
    import numpy as np
    import onnxruntime
    import torch

    from gpt2_book.workshop.onnx import _silence

    class Layer:  # where the model's attention leaves its keys and values
        def __init__(self, *past):
            self.past = past

        def append(self, *new):
            self.kept = [torch.cat(pair, dim=2) for pair in zip(self.past, new)]  # 2 of (B, H, S, D)
            return self.kept

    class Forward(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gpt = model

        def forward(self, input_ids, past):
            layers = [Layer(*past[i : i + 2]) for i in range(0, len(past), 2)]
            where = past[0].size(2) + torch.arange(input_ids.size(1))  # (T,)
            allowed = torch.arange(past[0].size(2) + input_ids.size(1)) <= where[:, None]  # (T, S)
            x = self.gpt.run(input_ids, where, allowed, layers)
            return (self.gpt.lm_head(x), *(x for layer in layers for x in layer.kept))

    c, Dim = model.config, torch.export.Dim
    shape = (c.n_head, 3, c.n_embd // c.n_head)
    pieces = [f"{i}.{kind}" for i in range(c.n_layer) for kind in ("key", "value")]
    ids, past = torch.zeros(2, 5, dtype=torch.long), [torch.zeros(2, *shape) for _ in pieces]
    free = {0: Dim("batch_size"), 2: Dim("past_sequence_length")}  # transformers.js looks for the first name
    with _silence(model):
        program = torch.onnx.export(
            Forward().eval(), (ids, past), dynamo=True, verbose=False, dynamic_shapes=({0: Dim("batch_size"), 1: Dim("sequence_length")}, [free] * len(pieces)),
            input_names=["input_ids", *(f"past_key_values.{p}" for p in pieces)], output_names=["logits", *(f"present.{p}" for p in pieces)])  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    program.save(path, external_data=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    idx = torch.randint(c.vocab_size, (1, 12), generator=torch.Generator().manual_seed(0))
    held = {f"past_key_values.{p}": np.zeros((1, c.n_head, 0, shape[2]), np.float32) for p in pieces}
    with torch.no_grad():
        expected = model(idx)[0]
    for part, wanted in zip(idx.split(6, 1), expected.split(6, 1)):  # six tokens without a past, and six with one
        logits, *kept = session.run(None, {"input_ids": part.numpy(), **held})
        held = dict(zip(held, kept))
        np.testing.assert_allclose(logits, wanted.numpy(), atol=1e-3)


def beside_others(model, scripts: dict[str, str], ort: Path, transformers: Path | None, chromium: str, rounds: int) -> dict:
    """Return tokens a second of the page's engine, of ONNX Runtime Web and of transformers.js, in one page on one thread."""
    from playwright.sync_api import sync_playwright

    from gpt2_book.workshop.onnx import export_onnx

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        model.save_pretrained(place / "model")  # config.json
        export_onnx(model, place / "model" / "whole.onnx")
        export_with_cache(model, place / "model" / "onnx" / "model.onnx")
        shutil.copytree(ort, place / "ort", ignore=lambda _, names: [n for n in names if not re.fullmatch(r"ort\.wasm\.min\.js|ort-wasm-simd-threaded\.(mjs|wasm)", n)])
        if transformers:
            runtime = transformers.parents[2] / "onnxruntime-web" / "dist"  # of the version that it asks for
            for source in (*transformers.glob("transformers.min.js"), *runtime.glob("ort-wasm-*")):
                (place / "transformers").mkdir(exist_ok=True)
                shutil.copy(source, place / "transformers")
        files = {"engine.js": ENGINE.read_text(encoding="utf-8"), **scripts}
        for name, text in files.items():
            (place / name).write_text(text, encoding="utf-8")
        page = "".join(f'<script src="{name}"></script>' for name in ("ort/ort.wasm.min.js", *files))
        (place / "index.html").write_text(f'<meta charset="utf-8">{page}', encoding="utf-8")
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            with sync_playwright() as p:
                browser = p.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
                tab = browser.new_page()
                tab.goto(f"http://127.0.0.1:{server.server_port}/")
                found = tab.evaluate(BESIDE, {"rounds": rounds, "transformers": bool(transformers)})
                version = browser.version
                browser.close()
            server.shutdown()
    versions = {"chromium": version, "onnxruntime-web": package_version(ort)}
    if transformers:
        versions |= {"transformers.js": package_version(transformers), "its onnxruntime-web": package_version(runtime)}
    speeds = {name: 1000 * found["T"] / ms for name, ms in found["best"].items()}
    return {"versions": versions, "rounds": rounds, "shown": "the best round, of the way without a cache the only one; all take turns in one page, on one thread",
            "largest_difference": found["gap"], "same_tokens_written": found["same"], "tokens_per_second": speeds}  # fmt: skip


def package_version(dist: Path) -> str:
    return json.loads((dist.parent / "package.json").read_text(encoding="utf-8"))["version"]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args) -> None:
        pass


def processor_time(run, rounds: int) -> float:
    """Return the seconds of processor that the process begun by ``run`` took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(rounds)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4, help="contexts read by each, after one to warm up")
    parser.add_argument("--page", type=Path, help="the built page of the chapter, to count its frames")
    parser.add_argument("--ort", type=Path, help="the folder dist of onnxruntime-web, to run beside it")
    parser.add_argument("--transformers", type=Path, help="the folder dist of @huggingface/transformers, with --ort")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    args = parser.parse_args()

    from gpt2_book import GPT
    from gpt2_book.alive import page_scripts, run_javascript
    from gpt2_book.workshop.tokenizer_files import load_tokenizer

    model, tokenizer = GPT.from_pretrained("shakespeare"), load_tokenizer("shakespeare")
    programs = {n: p for n in ("node", "chromium") if (p := shutil.which(n))}
    engine, rows = ENGINE.read_text(encoding="utf-8"), []
    for dtype in ("int8", "float16"):
        scripts = page_scripts(model, tokenizer, "shakespeare", dtype=dtype)
        for name, program in programs.items():

            def run(rounds, program=program, scripts=scripts):
                return run_javascript(engine, *scripts.values(), MAIN.replace("ROUNDS", str(rounds)), program=program)

            n, node = args.rounds, name == "node"
            spent = (processor_time(run, 1 + n) - processor_time(run, 1)) / n if node else run(1 + n) / 1000  # of a round
            said = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
            size = sum(map(len, scripts.values())) / 1e6
            rows.append({"program": name, "version": re.search(r"\d[\d.]+", said)[0], "dtype": dtype, "megabytes": size,
                         "tokens_per_second": model.config.block_size / spent, "by": "processor's time" if node else "clock"})  # fmt: skip
            print(f"{name:10} {dtype:8} {rows[-1]['tokens_per_second']:8.0f} tokens a second, by the {rows[-1]['by']}")
    results = {"machine": describe_machine("gpt2_book"), "options": {"rounds": args.rounds}, "rows": rows}
    if args.page:
        results["frames"] = frames_in_page(args.page, programs["chromium"], args.rounds)
        for row in results["frames"]["rows"]:
            print(f"{row['where']:8}{row['doing']:10}{row['median_ms']:6.1f} ms from frame to frame, 95th percentile {row['p95_ms']:6.1f}, {row['late']:6.1%} late")
    if args.ort:
        scripts = page_scripts(model, tokenizer, "shakespeare", dtype="float16")
        results["beside"] = beside_others(model, scripts, args.ort, args.transformers, programs["chromium"], args.rounds)
        for name, speed in results["beside"]["tokens_per_second"].items():
            print(f"{name:42} {speed:8.0f} tokens a second, by the clock")
    if args.json:
        write_results(args.json, results)


if __name__ == "__main__":
    main()
