// A GPT-2 in plain JavaScript: tokenizer, model with a cache, sampling. A classic script without modules, since a page that
// is opened from a file may load nothing else. All of it stands in one function, so that its own text can start a worker.
// nbs/52_alive.ipynb explains it and holds it against PyTorch.

// --- weights: a header (NAME.js) and parts (NAME.0.js and on) call these two; gpt2_book/alive.py writes them -----------------

globalThis.aliveModels = {};
globalThis.aliveModel = header => { aliveModels[header.name] = { header, parts: [] }; };
globalThis.alivePart = (name, i, base64) => {
  const binary = atob(base64), bytes = new Uint8Array(binary.length);
  for (let j = 0; j < binary.length; j++) bytes[j] = binary.charCodeAt(j);
  aliveModels[name].parts[i] = bytes;
};

globalThis.aliveEngine = function aliveEngine() {
  "use strict";

  // --- text to tokens and back -----------------------------------------------------------------------------------------------

  const CHUNKS = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;
  const latin = bytes => {  // bytes as a string of as many characters, which a Map can find
    let s = "";
    for (const b of bytes) s += String.fromCharCode(b);
    return s;
  };

  class Heap {  // of [rank, start, end]: the lowest rank first, of equals the leftmost
    constructor() { this.a = []; }
    before(i, j) { const p = this.a[i], q = this.a[j]; return p[0] < q[0] || (p[0] === q[0] && p[1] < q[1]); }
    swap(i, j) { [this.a[i], this.a[j]] = [this.a[j], this.a[i]]; }
    push(item) {
      let i = this.a.push(item) - 1;
      for (let up; i > 0 && this.before(i, up = (i - 1) >> 1); i = up) this.swap(i, up);
    }
    pop() {
      const top = this.a[0], last = this.a.pop();
      if (this.a.length) {
        this.a[0] = last;
        for (let i = 0, child; (child = 2 * i + 1) < this.a.length; i = child) {
          if (child + 1 < this.a.length && this.before(child + 1, child)) child++;
          if (!this.before(child, i)) break;
          this.swap(i, child);
        }
      }
      return top;
    }
  }

  class Tokenizer {
    constructor(tokens) {  // each token's bytes in base64, in the order of their ranks
      this.bytes = tokens.map(t => Uint8Array.from(atob(t), c => c.charCodeAt(0)));
      this.ranks = new Map(this.bytes.map((b, rank) => [latin(b), rank]));
      this.seen = new Map();
    }

    encode(text) {
      const ids = [], utf8 = new TextEncoder();
      for (const [chunk] of text.matchAll(CHUNKS)) {
        let found = this.seen.get(chunk);
        if (!found) {
          found = this.merge(latin(utf8.encode(chunk)));
          if (chunk.length <= 64 && this.seen.size < 65536) this.seen.set(chunk, found);
        }
        for (const id of found) ids.push(id);
      }
      return ids;
    }

    merge(chunk) {  // the pair with the lowest rank first, as long as there is one
      const n = chunk.length, after = [], before = [], heap = new Heap();
      const offer = (start, end) => {
        const rank = start >= 0 && end <= n ? this.ranks.get(chunk.slice(start, end)) : undefined;
        if (rank !== undefined) heap.push([rank, start, end]);
      };
      for (let i = 0; i <= n; i++) { after.push(i + 1); before.push(i - 1); }
      for (let i = 0; i + 2 <= n; i++) offer(i, i + 2);
      while (heap.a.length) {
        const [, start, end] = heap.pop(), middle = after[start];
        if (middle === undefined || after[middle] !== end) continue;  // one of the two has been merged meanwhile
        after[start] = end;
        after[middle] = undefined;  // nothing starts there any more
        before[end] = start;
        offer(before[start], end);
        if (end < n) offer(start, after[end]);
      }
      const ids = [];
      for (let i = 0; i < n; i = after[i]) {
        const id = this.ranks.get(chunk.slice(i, after[i]));
        if (id !== undefined) ids.push(id);  // a model of letters has no token for every byte
      }
      return ids;
    }

    lost(text) { return [...new Set(text)].filter(c => !this.encode(c).length); }  // characters that are left out

    // One merge after the other, the lowest rank of all chunks first: the rank, and then each chunk's parts as ids.
    merges(text) {
      const utf8 = new TextEncoder(), id = s => this.ranks.get(s);
      const chunks = Array.from(text.matchAll(CHUNKS), ([chunk]) => Array.from(latin(utf8.encode(chunk))));
      const steps = [], keep = rank => steps.push({ rank, chunks: chunks.map(parts => parts.map(id)) });
      keep(null);
      for (;;) {
        let best = [Infinity];
        for (const parts of chunks) {
          for (let i = 0; i + 1 < parts.length; i++) {
            const rank = id(parts[i] + parts[i + 1]);
            if (rank < best[0]) best = [rank, parts, i];
          }
        }
        const [rank, parts, i] = best;
        if (rank === Infinity) return steps;
        parts.splice(i, 2, parts[i] + parts[i + 1]);
        if (steps.at(-1).rank === rank) steps.pop();  // the same pair in another place
        keep(rank);
      }
    }

    decode(ids) {
      const bytes = [];
      for (const id of ids) bytes.push(...this.bytes[id]);
      return new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(bytes));
    }

    piece(id) {  // one token for the eye: bytes that are no character by themselves stand as <E2>
      try {
        return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(this.bytes[id]);
      } catch {
        return Array.from(this.bytes[id], b => `<${b.toString(16).toUpperCase().padStart(2, "0")}>`).join("");
      }
    }
  }

  // --- the model ---------------------------------------------------------------------------------------------------------------

  function half(bits) {  // float16 to a number
    const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
  }

  class Model {
    constructor(header, parts) {
      if (parts.length !== header.parts || parts.some(p => !p)) throw new Error(`${parts.filter(Boolean).length} of ${header.parts} parts are there`);
      const bytes = new Uint8Array(header.bytes);
      let at = 0;
      for (const part of parts) { bytes.set(part, at); at += part.length; }
      if (at !== header.bytes) throw new Error(`${at} of ${header.bytes} bytes are there`);
      this.config = header.config;
      this.tokenizer = new Tokenizer(header.tokens);
      this.tensors = {};
      for (const [name, rows, columns, kind, offset] of header.tensors) {
        const n = rows * columns;
        const tensor = this.tensors[name] = { rows, columns, factors: null };
        if (kind === "int8") {
          tensor.factors = new Float32Array(bytes.buffer, offset, rows);
          tensor.data = new Int8Array(bytes.buffer, offset + 4 * rows, n);
        } else if (kind === "float16") {
          tensor.data = Float32Array.from(new Uint16Array(bytes.buffer, offset, n), half);
        } else {
          tensor.data = new Float32Array(bytes.buffer, offset, n);
        }
      }
      const t = this.tensors, of = (name, part) => t[`${name}.${part}`];
      const both = name => ({ weight: of(name, "weight"), bias: of(name, "bias") });
      this.wte = t["transformer.wte.weight"];
      this.wpe = t["transformer.wpe.weight"];
      this.ln_f = both("transformer.ln_f");
      this.head = { weight: t["lm_head.weight"] || this.wte };
      this.blocks = Array.from({ length: this.config.n_layer }, (_, i) => Object.fromEntries(
        ["ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"].map(n => [n, both(`transformer.h.${i}.${n}`)])));
    }

    norm({ weight, bias }, x) {
      const n = x.length, out = new Float64Array(n);
      let mean = 0, variance = 0;
      for (let i = 0; i < n; i++) mean += x[i] / n;
      for (let i = 0; i < n; i++) variance += (x[i] - mean) ** 2 / n;
      const scale = 1 / Math.sqrt(variance + this.config.layer_norm_epsilon);
      for (let i = 0; i < n; i++) out[i] = (x[i] - mean) * scale * weight.data[i] + (bias ? bias.data[i] : 0);
      return out;
    }

    logits(x) { return linear(this.head, this.norm(this.ln_f, x)); }
  }

  function linear({ weight, bias }, x) {
    const { rows, columns, data, factors } = weight, out = new Float64Array(rows);
    for (let r = 0, at = 0; r < rows; r++) {
      // four sums at a time: no addition waits for the one before
      let a = 0, b = 0, c = 0, d = 0, i = 0;
      for (; i + 3 < columns; i += 4, at += 4) {
        a += data[at] * x[i];
        b += data[at + 1] * x[i + 1];
        c += data[at + 2] * x[i + 2];
        d += data[at + 3] * x[i + 3];
      }
      for (; i < columns; i++, at++) a += data[at] * x[i];
      out[r] = (a + b + (c + d)) * (factors ? factors[r] : 1) + (bias ? bias.data[r] : 0);
    }
    return out;
  }

  function row({ columns, data, factors }, r, x) {  // add a row of an embedding to x
    const f = factors ? factors[r] : 1;
    for (let i = 0; i < columns; i++) x[i] += data[r * columns + i] * f;
  }

  function gelu(x) {
    for (let i = 0; i < x.length; i++) x[i] = 0.5 * x[i] * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x[i] + 0.044715 * x[i] ** 3)));
    return x;
  }

  function softmax(z) {
    let largest = -Infinity, total = 0;
    for (const v of z) if (v > largest) largest = v;
    const p = Float64Array.from(z, v => Math.exp(v - largest));
    for (const v of p) total += v;
    return p.map(v => v / total);
  }

  // --- a text being read: everything that was computed for it stays, position by position ----------------------------------------

  class Session {
    constructor(model) {
      const { n_layer: L, n_head: H, n_embd: C, block_size: T } = this.config = model.config;
      this.model = model;
      this.ids = [];
      this.done = 0;  // positions that are computed
      this.off = new Uint8Array(L * H);  // heads that write nothing
      this.patch = null;  // { layer, at, x }: what the stream is after that many layers, at that position
      const make = n => Array.from({ length: n }, () => new Float64Array(T * C));
      [this.keys, this.values, this.stream] = [make(L), make(L), make(L + 1)];
      this.weights = Array.from({ length: L * H }, () => new Float32Array(T * T));
    }

    // Say what is to be read; return how many positions need not be computed again.
    read(ids, off = [], patch = null) {
      const same = this.off.every((o, i) => o === (off.includes(i) ? 1 : 0));
      let keep = Math.min(this.done, alike(this.ids, ids));
      if (!same) keep = 0;
      const [old, now] = [this.patch, patch];
      const samePatch = old && now && old.layer === now.layer && old.at === now.at && old.x.every((v, i) => v === now.x[i]);
      if (!samePatch) for (const p of [old, now]) if (p) keep = Math.min(keep, p.at);
      this.off.fill(0);
      for (const i of off) this.off[i] = 1;
      this.patch = now;
      this.ids = [...ids];
      return this.done = keep;
    }

    step() { for (const _ of this.layers()); }  // compute one position

    *layers() {  // and stop after each layer, where something else may come between
      const { model, done: t } = this, { n_layer: L, n_head: H, n_embd: C, block_size: T } = this.config, D = C / H;
      let x = new Float64Array(C);
      row(model.wte, this.ids[t], x);
      row(model.wpe, t, x);
      const keep = layer => {
        if (this.patch && this.patch.layer === layer && this.patch.at === t) x = Float64Array.from(this.patch.x);
        this.stream[layer].set(x, t * C);
      };
      keep(0);
      for (let l = 0; l < L; l++) {
        const block = model.blocks[l];
        const qkv = linear(block["attn.c_attn"], model.norm(block.ln_1, x));
        this.keys[l].set(qkv.subarray(C, 2 * C), t * C);
        this.values[l].set(qkv.subarray(2 * C), t * C);
        const y = new Float64Array(C);
        for (let h = 0; h < H; h++) this.attend(l, h, t, qkv, y, D);
        add(x, linear(block["attn.c_proj"], y));
        if (block["mlp.c_fc"].weight) {
          const hidden = gelu(linear(block["mlp.c_fc"], model.norm(block.ln_2, x)));
          add(x, linear(block["mlp.c_proj"], hidden));
        }
        keep(l + 1);
        yield;
      }
      this.done++;
    }

    attend(l, h, t, q, y, D) {  // position t looks at all up to itself; what it reads goes to y
      const { n_head: H, n_embd: C, block_size: T } = this.config, keys = this.keys[l], values = this.values[l];
      const scores = new Float64Array(t + 1);
      for (let s = 0; s <= t; s++) {
        let sum = 0;
        for (let i = h * D; i < (h + 1) * D; i++) sum += q[i] * keys[s * C + i];
        scores[s] = sum / Math.sqrt(D);
      }
      const p = softmax(scores);
      this.weights[l * H + h].set(p, t * T);
      if (this.off[l * H + h]) return;
      for (let s = 0; s <= t; s++) {
        for (let i = h * D; i < (h + 1) * D; i++) y[i] += p[s] * values[s * C + i];
      }
    }

    // The stream after `layer` layers at position t; all layers by default.
    at(t, layer = this.config.n_layer) {
      const C = this.config.n_embd;
      return this.stream[layer].subarray(t * C, (t + 1) * C);
    }

    logits(t = this.done - 1, layer = this.config.n_layer) { return this.model.logits(this.at(t, layer)); }
  }

  // How many tokens stand before the first that differs: these positions stay as they are.
  function alike(old, now) {
    let n = 0;
    while (n < old.length && n < now.length && now[n] === old[n]) n++;
    return n;
  }

  function add(x, y) { for (let i = 0; i < x.length; i++) x[i] += y[i]; }

  // --- sampling -----------------------------------------------------------------------------------------------------------------

  class Random {  // the Mersenne Twister, whose numbers are those of PyTorch's generator on the CPU (Matsumoto and Nishimura, 1998)
    constructor(seed) {
      this.s = new Uint32Array(624);
      this.s[0] = seed;
      for (let i = 1; i < 624; i++) this.s[i] = Math.imul(1812433253, this.s[i - 1] ^ (this.s[i - 1] >>> 30)) + i;
      this.i = 624;
    }
    uint32() {
      const s = this.s;
      if (this.i === 624) {
        for (let i = 0; i < 624; i++) {
          const y = (s[i] & 0x80000000) | (s[(i + 1) % 624] & 0x7fffffff);
          s[i] = s[(i + 397) % 624] ^ (y >>> 1) ^ (y & 1 ? 0x9908b0df : 0);
        }
        this.i = 0;
      }
      let y = s[this.i++];
      y ^= y >>> 11;
      y ^= (y << 7) & 0x9d2c5680;
      y ^= (y << 15) & 0xefc60000;
      return (y ^ (y >>> 18)) >>> 0;
    }
    uniform() {  // 53 bits of two draws, the high ones first
      const high = this.uint32() & 0x1fffff, low = this.uint32();
      return (high * 2 ** 32 + low) / 2 ** 53;
    }
  }

  // Each step of choosing a token: the probabilities before and after each filter, the number drawn, the token it falls on.
  function choose(logits, { temperature = 1, topK = null, topP = null, seed = 0, drawn = 0 } = {}) {
    const V = logits.length, order = Array.from(logits.keys()).sort((a, b) => logits[b] - logits[a] || a - b);
    const model = softmax(logits);
    if (temperature === 0) return { order, model, warm: null, kept: [1, 1], probs: model.map((_, i) => Number(i === order[0])), u: null, choice: order[0] };
    const z = logits.map(v => v / temperature), warm = softmax(z), kept = [V, V];
    if (topK !== null && topK < V) {  // and what ties with the last
      const least = z[order[topK - 1]];
      for (let i = 0; i < V; i++) if (z[i] < least) z[i] = -Infinity;
    }
    kept[0] = kept[1] = z.reduce((n, v) => n + (v > -Infinity), 0);
    if (topP !== null && topP < 1) {
      const p = softmax(z);
      let before = 0;
      kept[1] = 0;
      for (const i of order.slice(0, kept[0])) {
        if (before < topP) kept[1]++;
        else z[i] = -Infinity;
        before += p[i];
      }
    }
    const probs = softmax(z), random = new Random(seed);
    for (let i = 0; i < drawn; i++) random.uniform();
    const u = random.uniform(), sums = new Float64Array(V);
    let sum = 0;
    for (let i = 0; i < V; i++) sums[i] = sum += probs[i];
    let choice = 0;
    while (choice < V - 1 && sums[choice] < (1 - u) * sum) choice++;
    return { order, model, warm, kept, probs, u, choice };
  }

  // --- for a page: one question at a time, answered in slices, so that a newer one can take its place --------------------------------

  function serve(model, reply) {
    const { n_head: H, n_layer: L, n_embd: C, block_size: T } = model.config, tokenizer = model.tokenizer;
    const [base, changed, second] = [new Session(model), new Session(model), new Session(model)];
    let latest = 0;
    const { port1, port2 } = new MessageChannel(), waiting = [];  // a timer would wait four milliseconds each time
    port1.onmessage = () => waiting.shift()();
    const pause = () => new Promise(resolve => { waiting.push(resolve); port2.postMessage(null); });

    function* finish(sessions) {  // compute what is missing; say how far it is
      const total = sessions.reduce((n, s) => n + s.ids.length, 0);
      for (const session of sessions) {
        while (session.done < session.ids.length) {
          for (const _ of session.layers()) yield { done: sessions.reduce((n, s) => n + s.done, 0), total };
        }
      }
    }

    const told = (p, order, n) => order.slice(0, n).map(i => ({ id: i, piece: tokenizer.piece(i), p: p[i] }));

    function* lens(session, t) {  // what the model would say after each layer, if the later ones wrote nothing
      const next = session.ids[t + 1], rows = [];
      for (let layer = 0; layer <= L; layer++) {
        yield null;
        const p = softmax(session.logits(t, layer)), order = Array.from(p.keys()).sort((a, b) => p[b] - p[a] || a - b);
        rows.push({ top: told(p, order, 3), next: next === undefined ? null : { piece: tokenizer.piece(next), p: p[next], rank: order.indexOf(next) + 1 } });
      }
      return rows;
    }

    function* work(question) {  // a few milliseconds between one yield and the next
      const { id, text, look = {}, sampling = {} } = question;
      const all = question.ids || tokenizer.encode(text || "");
      const lost = question.ids ? [] : tokenizer.lost(text || "");
      if (!all.length) return reply({ id, kind: "empty", lost });
      const cut = Math.max(0, all.length - T), ids = all.slice(cut), off = question.off || [];
      let patch = null, other = [];
      if (question.patch) {
        other = tokenizer.encode(question.patch.text).slice(-T);
        if (!other.length) return reply({ id, kind: "empty", second: true, lost: tokenizer.lost(question.patch.text) });
        second.read(other);
        yield* finish([second]);
        const from = Math.min(question.patch.from, other.length - 1), at = Math.min(question.patch.at, ids.length - 1);
        patch = { layer: question.patch.layer, from, at, x: Float64Array.from(second.at(from, question.patch.layer)) };
      }
      const different = off.length > 0 || patch !== null, shown = different ? changed : base;
      const known = base.read(ids), kept = different ? changed.read(ids, off, patch) : known;
      yield* finish(different ? [base, changed] : [base]);
      const t = ids.length - 1, position = Math.min(look.position ?? t, t), layer = look.layer ?? 0, head = look.head ?? 0;
      const how = choose(shown.logits(t), sampling);
      const weights = new Float32Array(ids.length ** 2);
      for (let i = 0; i <= t; i++) weights.set(shown.weights[layer * H + head].subarray(i * T, i * T + i + 1), i * ids.length);
      const before = different ? softmax(base.logits(t)) : null;
      return reply({
        id, kind: "shown", ids: all, pieces: ids.map(i => tokenizer.piece(i)), text: tokenizer.decode(all), lost, cut, kept, computed: ids.length - kept,
        position, layer, head, weights, lens: yield* lens(shown, position), full: all.length >= T,
        vocabulary: how.model.length, kept_by: how.kept, u: how.u, choice: { id: how.choice, piece: tokenizer.piece(how.choice), p: how.probs[how.choice] },
        top: how.order.slice(0, 10).map(i => ({ id: i, piece: tokenizer.piece(i), model: how.model[i], warm: how.warm ? how.warm[i] : null, p: how.probs[i] })),
        change: before && [...new Set([...Array.from(before.keys()).sort((a, b) => before[b] - before[a] || a - b).slice(0, 5), ...how.order.slice(0, 5)])]
          .map(i => ({ piece: tokenizer.piece(i), before: before[i], after: how.model[i] })),
        second: other.map(i => tokenizer.piece(i)), patch: patch && { layer: patch.layer, from: patch.from, at: patch.at },
      });
    }

    return async function answer(question) {  // slices of eight milliseconds, until a newer question comes
      const { id } = question, began = performance.now();
      latest = id;
      await pause();
      let last = performance.now();
      const slices = work(question);
      while (latest === id) {
        const { value: far, done } = slices.next(), now = performance.now();
        if (done) return;
        if (now - last < 8) continue;
        if (far && now - began > 100) reply({ id, kind: "progress", ...far });
        await pause();
        last = performance.now();
      }
    };
  }

  return { Tokenizer, Model, Session, Random, alike, choose, softmax, serve };
};

// --- for the pages: alive.js and widgets.js ---------------------------------------------------------------------------------------

globalThis.alivePage = (() => {
  "use strict";

  const percent = p => (p >= 0.1 ? `${Math.round(100 * p)}%` : p >= 0.001 ? `${(100 * p).toFixed(1)}%` : p > 0 ? "<0.1%" : "0%");
  const seen = piece => piece.replace(/ /g, "·").replace(/\n/g, "↵").replace(/\t/g, "→").replace(/\r/g, "␍");
  const quoted = piece => `“${seen(piece)}”`;
  let ids = 0;  // for labels

  function el(tag, attributes = {}, ...children) {
    const e = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) e.addEventListener(key.slice(2), value);
      else if (value !== null && value !== false) e.setAttribute(key, value === true ? "" : value);
    }
    e.append(...children);
    return e;
  }

  const newId = () => `alive-${ids++}`;

  function field(words, input) {
    input.id = input.id || newId();
    return el("label", { for: input.id }, el("span", {}, words), input);
  }

  return { percent, seen, quoted, el, field, newId };
})();
