// The page's side of the model in engine.js: what a reader types and sees. A classic script; every <div class="alive"
// data-model="NAME" data-path="FOLDER" data-size="4.0 MB"> comes alive on a click, and so does one with data-here="NAME", which
// holds the weights as JSON. All text goes in as text, never as HTML.
(() => {
  "use strict";

  const { percent, seen, quoted, el, field, newId } = alivePage;

  function put(e, attributes, text) {  // change what differs: the browser computes anew what is touched, even if it stays the same
    for (const [key, value] of Object.entries(attributes)) {
      if (value === null) e.removeAttribute(key);
      else if (e.getAttribute(key) !== String(value)) e.setAttribute(key, value);
    }
    if (text !== undefined && e.textContent !== text) e.textContent = text;
  }

  function addScript(src) {
    return new Promise((resolve, reject) => {
      document.head.append(el("script", { src, onload: resolve, onerror: () => reject(new Error(`${src} cannot be read`)) }));
    });
  }

  // The engine in a worker made of its own text; where a browser refuses that, on this thread, in slices of some milliseconds.
  function startEngine({ header, parts }, reply, useWorker) {
    const here = () => {
      const engine = aliveEngine(), answer = engine.serve(new engine.Model(header, parts), reply);
      return { ask: q => answer(q).catch(e => reply({ id: q.id, kind: "failed", message: String(e) })), where: "slices" };
    };
    if (!useWorker || typeof Worker === "undefined") return Promise.resolve(here());
    const body = `"use strict"; const engine = (${aliveEngine})(); let answer;
      onmessage = ({ data: q }) => {
        if (q.header) { answer = engine.serve(new engine.Model(q.header, q.parts), r => postMessage(r)); postMessage({ kind: "ready" }); }
        else answer(q).catch(e => postMessage({ id: q.id, kind: "failed", message: String(e) }));
      };`;
    return new Promise(resolve => {
      try {
        const worker = new Worker(URL.createObjectURL(new Blob([body], { type: "text/javascript" })));
        worker.onerror = () => { worker.terminate(); resolve(here()); };
        worker.onmessage = ({ data }) => {
          if (data.kind === "ready") resolve({ ask: q => worker.postMessage(q), where: "worker" });
          else reply(data);
        };
        worker.postMessage({ header, parts });
      } catch {
        resolve(here());
      }
    });
  }

  const held = new Map();  // the weights that an element brings along

  async function load(root) {
    const { model: name = root.dataset.here, path, size } = root.dataset;
    const bar = el("progress", { max: 1, value: 0, "aria-label": "Loading the model" }), says = el("p", { role: "status" }, `Loading ${size} …`);
    root.replaceChildren(bar, says);
    try {
      if (held.has(root)) {
        const { header, parts } = JSON.parse(held.get(root));
        aliveModel(header);
        parts.forEach((part, i) => alivePart(name, i, part));
      } else if (!aliveModels[name]) {
        await addScript(`${path}/${name}.js`);
      }
      const loaded = aliveModels[name], n = loaded.header.parts;
      for (let i = 0; i < n; i++) {
        if (!loaded.parts[i]) await addScript(`${path}/${name}.${i}.js`);
        bar.value = (i + 1) / n;
        says.textContent = `${i + 1} of ${n} parts, ${size} in all`;
      }
      await new Widget(root, loaded).start();
    } catch (error) {
      root.replaceChildren(el("p", { role: "alert" }, `The model did not load: ${error.message}. The figure below shows one text.`),
        el("button", { type: "button", onclick: () => load(root) }, "Try again"));
    }
  }

  class Widget {
    constructor(root, loaded) {
      this.root = root;
      this.loaded = loaded;
      this.config = loaded.header.config;
      this.shown = null;  // the engine's last answer
      this.state = { text: root.dataset.text || "", ids: null, off: [], patch: null, drawn: 0, position: null, layer: 0, head: 0 };
      this.cell = [0, 0];  // the grid's active cell: who looks, at whom
      this.asked = this.more = this.wanted = 0;  // questions so far; tokens still to write, and those asked for while a question was on its way
      this.said = null;  // by the fields, until one changes
      this.due = new Set();  // what shows an older answer than the last
    }

    async start() {
      this.engine = await startEngine(this.loaded, r => this.answered(r), this.root.dataset.worker !== "no");
      this.root.dataset.where = this.engine.where;
      this.build();
      if (typeof Worker === "undefined") this.root.append(el("p", {}, "This browser has no workers: the page itself computes, a few milliseconds at a time, and may answer later."));
      this.width = this.columns();
      new ResizeObserver(() => { if (this.columns() !== this.width) { this.width = this.columns(); if (this.shown) this.drawGrid(); } }).observe(this.root);
      this.ask();
      this.text.focus({ preventScroll: true });
    }

    columns() { return Math.max(6, Math.min(20, Math.floor((this.root.clientWidth - 96) / 27))); }

    build() {
      const { n_layer: L, n_head: H, vocab_size: V, block_size: T } = this.config;
      const number = (name, value, min, max, step) => {
        const input = el("input", { type: "number", name, value, min, max, step, inputmode: "decimal" });
        input.addEventListener("input", () => { this.state.drawn = 0; this.said = null; this.ask(); });
        return input;
      };
      const button = (words, onclick, more = {}) => el("button", { type: "button", onclick, ...more }, words);
      this.text = el("textarea", { rows: 3, spellcheck: "false", autocapitalize: "off", autocomplete: "off" });
      this.text.value = this.state.text;
      this.text.addEventListener("input", () => { Object.assign(this.state, { text: this.text.value, ids: null, drawn: 0, position: null }); this.more = this.wanted = 0; this.ask(); });
      this.status = el("p", { role: "status", class: "alive-status" });
      this.next = button("Continue", () => this.write(1));
      this.many = button("Continue by 20", () => { if (this.more) { this.more = 0; this.buttons(); } else this.write(20); });
      this.back = button("Step back", () => this.stepBack());
      this.tokens = el("div", { role: "group", "aria-label": "Tokens; the arrow keys walk, Enter selects", class: "alive-tokens" });
      this.tokens.addEventListener("keydown", e => this.walkTokens(e));
      this.inputs = { temperature: number("temperature", "0.8", 0, 10, 0.1), topK: number("top-k", "", 1, V, 1), topP: number("top-p", "", 0, 1, 0.05), seed: number("seed", "1", 0, 4294967295, 1) };
      this.inputs.topK.placeholder = this.inputs.topP.placeholder = "off";
      this.drawnWords = el("p", { class: "alive-drawn" });
      this.distribution = el("table", { class: "alive-next" });
      this.which = el("select", {}, ...Array.from({ length: L * H }, (_, i) => el("option", { value: i }, `layer ${Math.floor(i / H) + 1}, head ${i % H + 1}`)));
      this.which.addEventListener("input", () => { Object.assign(this.state, { layer: Math.floor(this.which.value / H), head: this.which.value % H }); this.ask(); });
      this.toggle = button("Switch this head off", () => this.switchHead());
      this.allOn = button("All heads on", () => { this.state.off = []; this.ask(); });
      this.offWords = el("p", {});
      this.grid = el("table", { role: "grid", class: "alive-grid" });
      this.grid.addEventListener("keydown", e => this.walkGrid(e));
      this.grid.addEventListener("click", e => { const c = e.target.closest("td[data-s]"); if (c) this.moveTo(+c.dataset.t, +c.dataset.s); });
      this.sentence = el("p", { "aria-live": "polite", class: "alive-sentence" });
      this.rows = el("ol");
      this.lensWords = el("p");
      this.lens = el("table", { class: "alive-lens" });
      this.other = el("input", { type: "text", autocomplete: "off", spellcheck: "false" });
      this.layer = el("select", {}, ...Array.from({ length: L + 1 }, (_, i) => el("option", { value: i }, i ? `after layer ${i}` : "at the embedding")));
      this.layer.value = Math.ceil(L / 2);
      [this.from, this.at] = [1, 2].map(() => el("input", { type: "number", min: 1, max: T, step: 1, placeholder: "last" }));
      for (const input of [this.other, this.layer, this.from, this.at]) input.addEventListener("input", () => { if (this.state.patch) this.patch(true); });
      this.patchButton = button("Patch", () => this.patch(!this.state.patch), { "aria-pressed": "false" });
      this.patchWords = el("p", { role: "status" });
      this.change = el("table", { class: "alive-change", hidden: true });
      const part = (title, ...children) => { const id = newId(); return el("section", { "aria-labelledby": id }, el("h3", { id }, title), ...children); };
      this.parts = el("div", {},
        part("Tokens", this.tokens),
        part("The next token", el("div", { class: "alive-fields" }, ...Object.entries(this.inputs).map(([k, input]) => field({ topK: "top-k", topP: "top-p" }[k] || k, input))), this.distribution, this.drawnWords),
        part("What has changed", this.change),
        part("Who looks at whom", el("div", { class: "alive-fields" }, field("Attention of", this.which), this.toggle, this.allOn), this.offWords, this.grid, this.sentence,
          el("details", { ontoggle: e => { if (e.target.open) this.drawRows(); } }, el("summary", {}, "Every row in words"), this.rows)),
        part("Layer by layer", this.lensWords, this.lens),
        part("Patch from a second text", el("div", { class: "alive-fields" }, field("second text", this.other), field("stream", this.layer), field("its token number", this.from), field("to token number", this.at), this.patchButton), this.patchWords));
      const setups = Object.entries(JSON.parse(this.root.dataset.setups || "{}")).map(([words, setup]) => button(words, () => this.setUp(setup)));
      if (setups.length) this.parts.lastChild.append(el("div", { class: "alive-buttons" }, ...setups));
      this.changed = this.change.parentElement;
      this.root.replaceChildren(field("Text", this.text), el("div", { class: "alive-buttons" }, this.next, this.many, this.back), this.status, this.parts);
    }

    // --- asking, and what comes back ------------------------------------------------------------------------------------------------

    settings() { return { ...this.said ??= this.readFields(), drawn: this.state.drawn }; }

    readFields() {  // what the four fields say, or the words for what is wrong with one; to look makes the browser lay out the page
      const { temperature, topK, topP, seed } = this.inputs;
      const read = input => (input.value.trim() === "" && !input.validity.badInput ? null : input.valueAsNumber);
      const s = { temperature: read(temperature), topK: read(topK), topP: read(topP), seed: read(seed) };
      const wrong = !(s.temperature !== null && s.temperature >= 0 && s.temperature <= 10) ? [temperature, "The temperature is a number from 0 to 10."]
        : s.topK !== null && !(Number.isInteger(s.topK) && s.topK >= 1) ? [topK, "top-k is a whole number from 1, or nothing."]
        : s.topP !== null && !(s.topP > 0 && s.topP <= 1) ? [topP, "top-p is a number above 0 and at most 1, or nothing."]
        : !(Number.isInteger(s.seed) && s.seed >= 0 && s.seed < 2 ** 32) ? [seed, "The seed is a whole number from 0 to 4294967295."] : null;
      for (const input of Object.values(this.inputs)) input.setAttribute("aria-invalid", String(Boolean(wrong && wrong[0] === input)));
      return wrong ? { words: wrong[1] } : s;
    }

    ask() {
      const sampling = this.settings(), { text, ids: tokens, off, patch, position, layer, head } = this.state;
      if (sampling.words) { this.more = this.wanted = 0; this.status.textContent = sampling.words; return; }
      const question = { id: ++this.asked, text, ids: tokens, off, patch, sampling, look: { layer, head } };
      if (position !== null) question.look.position = position;
      this.engine.ask(question);
    }

    answered(r) {
      if (r.id !== this.asked) return;  // a newer question is on its way
      if (r.kind === "progress") { this.status.textContent = `Reading: ${r.done} of ${r.total} positions …`; return; }
      if (r.kind === "failed") { this.more = this.wanted = 0; this.status.textContent = `That went wrong: ${r.message}`; return; }
      if (r.kind === "empty") {
        this.more = this.wanted = 0;
        const unknown = r.lost.length ? `None of these characters is a token of this model: ${r.lost.slice(0, 5).map(quoted).join(" ")}.` : "";
        if (r.second) { this.patchWords.textContent = unknown || "The second text is empty: write one to take something from."; this.state.patch = null; this.ask(); return; }
        this.shown = null;
        this.parts.hidden = true;
        this.status.textContent = unknown || "Nothing is written yet. The model says what follows a token, so it needs one to begin with.";
        return this.buttons();
      }
      this.shown = r;
      this.parts.hidden = false;
      if (this.state.ids) this.state.text = r.text;
      this.status.textContent = this.words(r);
      const last = r.pieces.length - 1;
      if (this.cell[0] > last || this.follow !== r.pieces.length) this.cell = [last, last];
      this.follow = r.pieces.length;
      for (const name of ["drawTokens", "drawNext", "drawAttention", "drawLens"]) this.due.add(name);
      if (this.more > 0 && !r.full) {
        this.more--;
        this.append();
        this.drawInTurn();
      } else {
        this.more = 0;
        while (this.due.size) this.drawOne();
      }
      this.buttons();
      const n = this.wanted;
      this.wanted = 0;
      if (n) this.write(n);
    }

    // While it writes, a part of the page in each frame, the one that has waited longest: a frame has no time for all of them.
    drawInTurn() {
      if (this.turn) return;
      this.turn = true;
      requestAnimationFrame(() => {
        this.turn = false;
        if (this.due.size) this.drawOne();
        if (this.due.size) this.drawInTurn();
      });
    }

    drawOne() {
      const [name] = this.due;
      this.due.delete(name);
      this[name]();
    }

    words(r) {
      const T = this.config.block_size, n = r.pieces.length, said = [];
      said.push(r.cut ? `The text has ${r.ids.length} tokens, the model ${T} positions: it reads the last ${T}.` : `${n} of ${T} positions.`);
      said.push(`${r.kept} kept from before, ${r.computed} computed.`);
      if (r.full) said.push("The context is full: step back or shorten the text to continue.");
      if (r.lost.length) said.push(`No token for ${r.lost.slice(0, 5).map(quoted).join(" ")}: left out.`);
      const strange = [...new Set(r.text)].filter(c => c > "\x7f" && !r.lost.includes(c) && !r.pieces.some(p => p.includes(c))).slice(0, 5);
      if (strange.length) said.push(`No token holds ${strange.join(" ")}: it stands as bytes, of which the model has read few or none.`);
      return said.join(" ");
    }

    buttons() {
      const r = this.shown;
      this.next.disabled = this.more > 0 || !r || r.full;
      this.many.disabled = !r || r.full;
      this.many.textContent = this.more > 0 ? "Stop" : "Continue by 20";
      this.back.disabled = this.more > 0 || !r || r.ids.length < 2;
    }

    write(n) {
      if (!this.shown || this.shown.full) return;
      if (this.shown.id !== this.asked) { this.wanted = n; return; }  // done when the answer is there
      this.more = n - 1;
      this.append();
      this.buttons();
    }

    append() {
      this.holdPatch(this.shown.ids.length + 1);
      Object.assign(this.state, { ids: [...this.shown.ids, this.shown.choice.id], drawn: this.state.drawn + 1, position: null });
      this.ask();
    }

    stepBack() {
      if (!this.shown || this.shown.ids.length < 2) return;
      this.holdPatch(this.shown.ids.length - 1);
      Object.assign(this.state, { ids: this.shown.ids.slice(0, -1), drawn: Math.max(0, this.state.drawn - 1), position: null });
      this.ask();
    }

    // The text is to have n tokens, by one more or less at its end: a patch keeps its place, which the fields then say, and without its token it goes.
    holdPatch(n) {
      const { patch, cut, id, ids } = this.shown;
      if (!this.state.patch || !patch || id !== this.asked) return;
      const at = patch.at + (n < ids.length && cut > 0 ? 1 : 0), stays = at < Math.min(n, this.config.block_size);
      this.state.patch = stays ? { ...this.state.patch, from: patch.from, at } : null;
      [this.from.value, this.at.value] = stays ? [patch.from + 1, at + 1] : ["", ""];
      if (!stays) this.patchWords.textContent = "The token with the patch is gone, and the patch with it.";
    }

    switchHead() {
      const { layer, head, off } = this.state, i = layer * this.config.n_head + head;
      this.state.off = off.includes(i) ? off.filter(o => o !== i) : [...off, i].sort((a, b) => a - b);
      this.ask();
    }

    patch(on) {
      const number = input => (input.value === "" ? Infinity : Math.max(0, input.valueAsNumber - 1 || 0));
      this.state.patch = on ? { text: this.other.value, layer: Number(this.layer.value), from: number(this.from), at: number(this.at) } : null;
      this.patchWords.textContent = "";
      this.ask();
    }

    setUp({ text, other, at = "", layer = this.layer.value }) {  // the two texts and the fields of a patch, which is not yet on
      Object.assign(this.state, { text, ids: null, off: [], patch: null, drawn: 0, position: null });
      this.more = this.wanted = 0;
      [this.text.value, this.other.value, this.from.value, this.at.value, this.layer.value] = [text, other, at, at, layer];
      this.patchWords.textContent = "";
      this.ask();
    }

    // --- drawing --------------------------------------------------------------------------------------------------------------------

    drawTokens() {  // what stands there already stays
      const { pieces, position } = this.shown, had = this.tokens.contains(document.activeElement), all = this.tokens.children;
      if (this.state.ids && this.text.value !== this.state.text) this.text.value = this.state.text;  // typed text is not overwritten
      while (all.length > pieces.length) this.tokens.lastChild.remove();
      pieces.forEach((p, i) => {
        if (!all[i]) this.tokens.append(el("button", { type: "button", onclick: () => { this.state.position = i; this.ask(); } }));
        put(all[i], { tabindex: i === position ? 0 : -1, "aria-pressed": String(i === position), "aria-label": `token ${i + 1}: ${quoted(p)}` }, seen(p));
      });
      if (had) all[position].focus();
    }

    walkTokens(e) {
      const all = [...this.tokens.children], i = all.indexOf(document.activeElement);
      const to = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: all.length - 1 }[e.key];
      if (to === undefined || !all[to]) return;
      e.preventDefault();
      all[i].tabIndex = -1;
      all[to].tabIndex = 0;
      all[to].focus();
    }

    table(table, caption, head, rows) {
      table.replaceChildren(el("caption", {}, caption), el("thead", {}, el("tr", {}, ...head.map(h => el("th", { scope: "col" }, h)))),
        el("tbody", {}, ...rows.map(([first, ...cells]) => el("tr", {}, el("th", { scope: "row" }, first), ...cells.map(c => el("td", {}, c))))));
    }

    drawNext() {
      const { top, vocabulary, kept_by: [byK, byP], u, choice } = this.shown, s = this.settings();
      const bar = p => { const b = el("span", { class: "alive-bar", "aria-hidden": "true" }); b.style.inlineSize = `${Math.max(0.5, 100 * p)}%`; return b; };
      const shareOf = p => { const d = el("span", {}, percent(p)); return el("div", { class: "alive-share" }, d, bar(p)); };
      this.table(this.distribution, "The ten likeliest", ["token", "model", `÷ ${s.temperature ?? ""}`, "drawn from"],
        top.map(t => [t.id === choice.id ? `${seen(t.piece)} ←` : seen(t.piece), percent(t.model), t.warm === null ? "–" : percent(t.warm), shareOf(t.p)]));
      this.drawnWords.textContent = u === null ? `Temperature 0 takes the likeliest: ${quoted(choice.piece)}.`
        : `Of ${vocabulary} tokens ${s.topK === null ? "" : `top-k leaves ${byK}, `}${s.topP === null ? "" : `top-p leaves ${byP}, `}${s.topK === null && s.topP === null ? "all may be drawn" : "and those may be drawn"}. Seed ${s.seed}, number ${s.drawn + 1}: ${u.toFixed(4)} falls on ${quoted(choice.piece)} (${percent(choice.p)}).`;
    }

    drawAttention() {
      this.drawHeads();
      this.drawGrid();
      this.drawRows();
    }

    drawHeads() {
      const { n_head: H } = this.config, { layer, head, off } = this.state, isOff = off.includes(layer * H + head);
      this.toggle.textContent = isOff ? "Switch this head on" : "Switch this head off";
      this.allOn.hidden = off.length === 0;
      this.offWords.textContent = off.length ? `Off: ${off.map(i => `layer ${Math.floor(i / H) + 1} head ${i % H + 1}`).join(", ")}. Where ${off.length > 1 ? "they" : "it"} would look is still shown.` : "";
    }

    weight(t, s) { return this.shown.weights[t * this.shown.pieces.length + s]; }

    rowInWords(t) {
      const { pieces } = this.shown, order = Array.from({ length: t + 1 }, (_, s) => s).sort((a, b) => this.weight(t, b) - this.weight(t, a)).slice(0, 3);
      return `${quoted(pieces[t])} (${t + 1}) looks at ${order.map(s => `${s === t ? "itself" : `${quoted(pieces[s])} (${s + 1})`} with ${percent(this.weight(t, s))}`).join(", ")}.`;
    }

    drawGrid(focus = this.grid.contains(document.activeElement)) {
      const { pieces, layer, head } = this.shown, n = pieces.length, W = Math.min(this.width, n), [t0, s0] = this.cell;
      const from = i => Math.max(0, Math.min(i - (W >> 1), n - W)), [top, left] = [from(t0), from(s0)];
      put(this.grid, { "aria-rowcount": n + 1, "aria-colcount": n + 1, "aria-label": `Attention of layer ${layer + 1}, head ${head + 1}: each row says where its token looks` });
      if (this.grid.rows.length !== W + 1) this.buildGrid(W);
      const [header, ...rows] = this.grid.rows;
      for (let j = 0; j < W; j++) {
        put(header.cells[j + 1], { "aria-colindex": left + j + 2 });
        put(header.cells[j + 1].firstChild, {}, seen(pieces[left + j]));
      }
      rows.forEach((row, i) => {
        const t = top + i;
        put(row, { "aria-rowindex": t + 2 });
        put(row.cells[0], {}, seen(pieces[t]));
        for (let j = 0; j < W; j++) {
          const cell = row.cells[j + 1], s = left + j, place = { "aria-colindex": s + 2 };
          if (s > t) put(cell, { ...place, class: "alive-never", tabindex: null, "data-t": null, "data-s": null, style: null, "aria-label": "later" });
          else {
            const p = this.weight(t, s);
            put(cell, { ...place, class: null, tabindex: t === t0 && s === s0 ? 0 : -1, "data-t": t, "data-s": s, style: `--p: ${p.toFixed(4)}`, "aria-label": `${quoted(pieces[t])} to ${quoted(pieces[s])}: ${percent(p)}` });
          }
        }
      });
      put(this.sentence, {}, this.rowInWords(t0));
      if (focus) this.grid.querySelector('[tabindex="0"]').focus({ preventScroll: false });
    }

    buildGrid(W) {  // its cells stay and are filled again: a table of hundreds takes longer than a frame to make
      const cells = make => Array.from({ length: W }, make);
      this.grid.replaceChildren(
        el("thead", { role: "rowgroup" }, el("tr", { role: "row", "aria-rowindex": 1 }, el("td", { role: "gridcell", "aria-colindex": 1 }), ...cells(() => el("th", { role: "columnheader" }, el("span"))))),
        el("tbody", { role: "rowgroup" }, ...cells(() => el("tr", { role: "row" }, el("th", { role: "rowheader", "aria-colindex": 1 }), ...cells(() => el("td", { role: "gridcell" }))))));
    }

    drawRows() { if (this.rows.parentElement.open) this.rows.replaceChildren(...this.shown.pieces.map((_, t) => el("li", {}, this.rowInWords(t)))); }

    moveTo(t, s) {
      this.cell = [t, Math.min(s, t)];
      this.drawGrid(true);
    }

    walkGrid(e) {
      if (!this.shown || !e.target.closest("td[data-s]")) return;
      const [t, s] = this.cell, last = this.shown.pieces.length - 1, far = this.width;
      const to = { ArrowRight: [t, s + 1], ArrowLeft: [t, s - 1], ArrowDown: [t + 1, s], ArrowUp: [t - 1, s], Home: e.ctrlKey ? [0, 0] : [t, 0], End: e.ctrlKey ? [last, last] : [t, t],
        PageDown: [Math.min(last, t + far), s], PageUp: [Math.max(0, t - far), s] }[e.key];
      if (!to) return;
      e.preventDefault();
      if (to[0] >= 0 && to[0] <= last && to[1] >= 0 && (to[1] <= to[0] || to[0] < t)) this.moveTo(...to);
    }

    drawLens() {
      const { pieces, position, lens } = this.shown, after = pieces[position + 1];
      this.lensWords.textContent = `What the model would say at ${quoted(pieces[position])} (${position + 1}) after each layer, if the later ones wrote nothing` + (after === undefined ? "." : `. What follows there is ${quoted(after)}.`);
      this.table(this.lens, "The lens", ["after", "the three likeliest", ...(after === undefined ? [] : [quoted(after)])],
        lens.map(({ top, next }, i) => [i ? `layer ${i}` : "embedding", el("div", {}, ...top.map(t => el("span", {}, `${seen(t.piece)} ${percent(t.p)} `))), ...(next ? [`${percent(next.p)}, place ${next.rank}`] : [])]));
      this.drawChange();
    }

    drawChange() {
      const { change, patch, pieces, second } = this.shown;
      this.changed.hidden = this.change.hidden = !change;
      this.patchButton.setAttribute("aria-pressed", String(Boolean(patch)));
      if (patch) this.patchWords.textContent = `${patch.layer ? `After layer ${patch.layer}` : "At the embedding"}, the stream at ${quoted(pieces[patch.at])} (${patch.at + 1}) is that of ${quoted(second[patch.from])} (${patch.from + 1}) in the second text.`;
      if (change) this.table(this.change, "The next token, before the filters", ["token", "as it was", "now"],
        change.sort((a, b) => Math.abs(b.after - b.before) - Math.abs(a.after - a.before)).map(c => [seen(c.piece), percent(c.before), percent(c.after)]));
    }
  }

  function offer(root) {
    if (typeof aliveEngine === "undefined" || typeof TextDecoder === "undefined" || typeof ResizeObserver === "undefined") {
      root.replaceChildren(el("p", {}, "This browser is too old for the model; the figure below shows one text."));
      return;
    }
    const { called = "the model", size, here } = root.dataset, data = root.querySelector('script[type="application/json"]');
    if (data) held.set(root, data.textContent);
    root.replaceChildren(el("p", {}, `${called[0].toUpperCase()}${called.slice(1)} comes with ${here ? "this page" : "the book"}: ${size}, read when you press the button. Nothing that you type leaves the page.`),
      el("button", { type: "button", onclick: () => load(root) }, `Load ${called} (${size})`));
  }

  const begin = () => document.querySelectorAll(".alive[data-model], .alive[data-here]").forEach(offer);
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
})();
