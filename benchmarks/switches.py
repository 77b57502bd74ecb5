"""What each change after GPT-2 does to the loss of a small model of stories: one switch at a time, optimizers, lengths.

    python benchmarks/switches.py --save                 everything; a run that is already stored is not repeated
    python benchmarks/switches.py --save --budget 600    no run is begun after ten minutes
    python benchmarks/switches.py --steps 20

Every run reads windows of the program's stories (gpt2_book.workshop.stories) in an order that its seed alone decides, each at most
once, and is then scored on the same tokens of held-out stories. Tokens are those of the model of stories, cut to its first merges, so
that the head is a small part of a small model. "Equal parameters" means: the hidden layer of the feed-forward network is as wide as
brings the number of weights next to GPT-2's. One thread, float32. Results are written after every run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache

import torch
import torch.nn.functional as F
from common import RESULTS, keep_runs
from torch import Tensor, nn

from gpt2_book.initialization import init_gpt2_
from gpt2_book.layer_norm import LayerNorm, RMSNorm
from gpt2_book.modern import rope_frequencies, rotate
from gpt2_book.optim import make_optimizer, set_learning_rate, warmup_cosine
from gpt2_book.positional import sinusoidal_encoding
from gpt2_book.tokenizer import BytePairEncoding
from gpt2_book.workshop.stories import tell_story
from gpt2_book.workshop.tokenizer_files import load_tokenizer

VOCAB, LENGTH, BATCH, STEPS, THETA = 512, 128, 4, 700, 1e4
SEEDS, TUNING_SEED, TUNING_STEPS = (0, 1, 2), 100, 900
RATES = (4e-3, 8e-3, 16e-3)
STORIES, HELD_OUT, SCORED = 6000, 300, 2**16  # told for training, told for scoring, and tokens that are scored
LOOKS, LOOKED = 14, 2**14  # on the way of a run whose course is kept, and held-out tokens that are scored there


@dataclass(frozen=True)
class Shape:
    """GPT-2 by default, and one field for each switch."""

    n_layer: int = 3
    n_embd: int = 48
    n_head: int = 4
    n_hidden: int = 192
    vocab_size: int = VOCAB
    block_size: int = LENGTH
    bias: bool = True
    norm: str = "layer"  # or "rms"
    positions: str = "learned"  # or "sinusoidal", "rotary"
    network: str = "gelu"  # or "relu2", "swiglu"
    n_kv_head: int = 4
    qk_norm: bool = False
    tied: bool = True
    window: int = 0  # keys that a query may see, 0 for all
    sink: bool = False


LLAMA = {"bias": False, "norm": "rms", "positions": "rotary", "network": "swiglu", "n_kv_head": 2}
ROTARY = {"positions": "rotary"}  # the other switches are turned with it: without, so short a run learns too little to tell
SWITCHES: dict[str, dict] = {
    "GPT-2": {}, "rotary positions": ROTARY, "sinusoids": {"positions": "sinusoidal"}, "all of Llama": LLAMA,
    "SwiGLU": ROTARY | {"network": "swiglu"}, "ReLU²": ROTARY | {"network": "relu2"}, "grouped queries": ROTARY | {"n_kv_head": 2},
    "norms on q and k": ROTARY | {"qk_norm": True}, "window of 32": ROTARY | {"window": 32}, "RMSNorm": ROTARY | {"norm": "rms"},
    "no biases": ROTARY | {"bias": False}, "untied head": ROTARY | {"tied": False}, "sink": ROTARY | {"sink": True},
}  # fmt: skip
FIRST = 9  # of the switches are run with every seed before the others are begun


class Attention(nn.Module):
    """Causal attention with every switch that concerns it."""

    def __init__(self, s: Shape):
        super().__init__()
        C, D = s.n_embd, s.n_embd // s.n_head
        self.D, self.s = D, s
        self.q, self.k, self.v = (nn.Linear(C, n * D, bias=s.bias) for n in (s.n_head, s.n_kv_head, s.n_kv_head))
        self.c_proj = nn.Linear(C, C, bias=s.bias)
        self.norms = nn.ModuleList(RMSNorm(D) for _ in range(2)) if s.qk_norm else None
        self.sink = nn.ParameterDict({"bias": nn.Parameter(torch.zeros(s.n_head))}) if s.sink else None

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor] | None) -> Tensor:
        (B, T, _), s = x.shape, self.s
        q, k, v = (f(x).view(B, T, -1, self.D).transpose(1, 2) for f in (self.q, self.k, self.v))  # (B, H or G, T, D)
        if self.norms is not None:
            q, k = self.norms[0](q), self.norms[1](k)
        if turn is not None:
            q, k = rotate(q, *turn), rotate(k, *turn)
        k, v = (z.repeat_interleave(s.n_head // s.n_kv_head, dim=1) for z in (k, v))  # (B, H, T, D)
        mask = None
        if s.window or self.sink is not None:
            back = torch.arange(T, device=x.device)[:, None] - torch.arange(T, device=x.device)  # (T, T)
            mask = (back >= 0) & (back < (s.window or T))
        if self.sink is not None:  # a key more, which scores as learned and has a value of zeros
            k, v = (F.pad(z, (0, 0, 0, 1)) for z in (k, v))
            seen = torch.zeros(1, s.n_head, T, T, dtype=x.dtype, device=x.device).masked_fill(~mask, -math.inf)
            mask = torch.cat([seen, self.sink["bias"][None, :, None, None].expand(1, -1, T, 1)], dim=-1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.c_proj(y.transpose(1, 2).flatten(2))  # (B, T, C)


class Network(nn.Module):
    """The feed-forward network: GPT-2's, squares in place of GELU, or with a gate."""

    def __init__(self, s: Shape):
        super().__init__()
        self.kind = s.network
        self.gate = nn.Linear(s.n_embd, s.n_hidden, bias=s.bias) if s.network == "swiglu" else None
        self.up = nn.Linear(s.n_embd, s.n_hidden, bias=s.bias)
        self.c_proj = nn.Linear(s.n_hidden, s.n_embd, bias=s.bias)

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x)
        if self.gate is not None:
            return self.c_proj(F.silu(self.gate(x)) * h)
        return self.c_proj(F.relu(h).square() if self.kind == "relu2" else F.gelu(h, approximate="tanh"))


class Model(nn.Module):
    """A language model of a :class:`Shape`: (B, T) to logits (B, T, V)."""

    def __init__(self, s: Shape):
        super().__init__()
        self.s, C = s, s.n_embd
        norm = (lambda: RMSNorm(C)) if s.norm == "rms" else (lambda: LayerNorm(C, bias=s.bias))
        self.wte, self.lm_head = nn.Embedding(s.vocab_size, C), nn.Linear(C, s.vocab_size, bias=False)
        self.wpe = nn.Embedding(s.block_size, C) if s.positions == "learned" else None
        self.h = nn.ModuleList(nn.ModuleDict({"ln_1": norm(), "attn": Attention(s), "ln_2": norm(), "mlp": Network(s)})
                               for _ in range(s.n_layer))  # fmt: skip
        self.ln_f = norm()
        if s.tied:
            self.lm_head.weight = self.wte.weight
        self.std = 0.02 * math.sqrt(768 / C)  # GPT-2's at its own width
        init_gpt2_(self, n_layer=s.n_layer, std=self.std)

    def positions(self, T: int, stretch: float) -> Tensor:
        """Return what is added for positions 0, 1/stretch, 2/stretch, ...: (T, C)."""
        if self.s.positions == "sinusoidal":
            return math.sqrt(2) * self.std * _between(sinusoidal_encoding(T, self.s.n_embd), T, stretch)
        table, lacking = self.wpe.weight, math.ceil(T / stretch) - self.s.block_size
        if lacking > 0:  # rows that training has never seen are as they were drawn
            g = torch.Generator().manual_seed(0)
            table = torch.cat([table, self.std * torch.randn(lacking, self.s.n_embd, generator=g)])
        return _between(table, T, stretch)

    def forward(self, idx: Tensor, stretch: float = 1.0, theta: float = THETA) -> Tensor:
        T, turn, x = idx.size(1), None, self.wte(idx)  # (B, T, C)
        if self.s.positions == "rotary":
            angle = torch.outer(torch.arange(T) / stretch, rope_frequencies(self.s.n_embd // self.s.n_head, theta))
            turn = angle.cos().to(x), angle.sin().to(x)
        else:
            x = x + self.positions(T, stretch)
        for block in self.h:
            x = x + block["attn"](block["ln_1"](x), turn)
            x = x + block["mlp"](block["ln_2"](x))
        return self.lm_head(self.ln_f(x))


def _between(table: Tensor, T: int, stretch: float) -> Tensor:
    """Read a table at 0, 1/stretch, 2/stretch, ... by straight lines between its rows."""
    where = torch.arange(T) / stretch
    low = where.long()
    high, share = (low + 1).clamp(max=len(table) - 1), (where - low)[:, None]
    return table[low] * (1 - share) + table[high] * share


def parameters(s: Shape) -> int:
    """Count the weights of a shape."""
    with torch.random.fork_rng(devices=[]):
        return sum(p.numel() for p in Model(s).parameters())


def as_large_as(s: Shape, n: int) -> Shape:
    """Return the shape whose hidden layer brings the number of weights next to ``n``."""
    one, two = (parameters(replace(s, n_hidden=i)) for i in (1, 2))
    return replace(s, n_hidden=1 + round((n - one) / (two - one)))


def training_flops(s: Shape) -> int:
    """Count operations per token of training: products with matrices, and attention to all keys that a query may see."""
    with torch.random.fork_rng(devices=[]):
        matrices = sum(m.weight.numel() for m in Model(s).modules() if isinstance(m, nn.Linear))
    return 3 * (2 * matrices + 4 * min(s.window or s.block_size, s.block_size) * s.n_embd * s.n_layer)


@cache
def tokens(split: str, n: int) -> tuple[Tensor, float]:
    """Return the tokens of the first ``n`` stories of a split, and the bytes that one stands for on the average."""
    ranks = load_tokenizer("stories").ranks
    coder = BytePairEncoding({token: rank for token, rank in ranks.items() if rank < VOCAB})
    text = "".join("\n" + tell_story(i, split=split).text for i in range(n))
    ids = torch.tensor(coder.encode_ordinary(text))
    return ids, len(text.encode()) / len(ids)


def batches(seed: int, steps: int, batch: int = BATCH, T: int = LENGTH, stories: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Give windows of the training stories in the seed's order, each at most once."""
    ids, _ = tokens("train", stories or STORIES)
    n = (len(ids) - 1) // T
    if steps * batch > n:
        raise ValueError(f"{steps} steps of {batch} windows, but there are only {n}")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    for chosen in order[: steps * batch].view(steps, batch):
        window = ids[chosen[:, None] * T + torch.arange(T + 1)]  # (B, T + 1)
        yield window[:, :-1], window[:, 1:]


def make_optimizers(model: nn.Module, rate: float, kind: str) -> list[torch.optim.Optimizer]:
    """Return AdamW for everything, or Muon for the blocks' matrices and AdamW for the rest."""
    if kind == "AdamW":
        return [make_optimizer(model, learning_rate=rate)]
    inside = {id(p): p for p in model.h.parameters() if p.ndim == 2}
    rest = nn.ParameterList(p for p in model.parameters() if id(p) not in inside)
    muon = torch.optim.Muon(inside.values(), lr=rate, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    return [muon, make_optimizer(rest, learning_rate=rate)]


def train(
    s: Shape, *, seed: int, steps: int, rate: float, optimizer: str = "AdamW", stories: int | None = None,
    look: Callable[[int, Model], None] | None = None,
) -> Model:  # fmt: skip
    """Train a new model; the seed decides its weights and what it reads. ``look`` is given each step's number and the model after it."""
    torch.manual_seed(seed)
    model = Model(s)
    optimizers = make_optimizers(model, rate, optimizer)
    for step, (x, y) in enumerate(batches(seed, steps, T=s.block_size, stories=stories), start=1):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for each in optimizers:
            set_learning_rate(each, warmup_cosine(step, peak=rate, warmup=steps / 10, end=steps))
            each.step()
        if look is not None:
            look(step, model)
    return model


@torch.no_grad()
def position_losses(model: Model, T: int, *, scored: int | None = None, **how: float) -> Tensor:
    """Return the mean loss at each of ``T`` positions, over the same held-out tokens for every ``T``."""
    (ids, _), n = tokens("held out", HELD_OUT), scored or SCORED
    x, y = ids[:n].view(-1, T), ids[1 : n + 1].view(-1, T)
    total = torch.zeros(T, dtype=torch.float64)
    for i in range(0, len(x), 32):
        logits = model(x[i : i + 32], **how).transpose(1, 2)  # (B, V, T)
        total += F.cross_entropy(logits, y[i : i + 32], reduction="none").double().sum(0)
    return total / len(x)


def by_length(model: Model) -> list[dict]:
    """Score a model at one, two and four times the trained length, with its positions as they are and stretched."""
    T, D, rows = model.s.block_size, model.s.n_embd // model.s.n_head, []
    for times in (1, 2, 4):
        ways = {"as trained": {}}
        if times > 1:
            ways["stretched"] = {"stretch": float(times)}
            if model.s.positions == "rotary":
                ways["larger base"] = {"theta": THETA * times ** (D / (D - 2))}
        for way, how in ways.items():
            found = position_losses(model, T * times, **how)
            rows.append({"times": times, "way": way, "loss": found.mean().item(), "by_position": found.view(-1, T // 8).mean(1).tolist()})
    return rows


def plan(rows: list[dict], steps: int) -> Iterator[dict]:
    """Give the runs in order; what follows from stored runs, such as the best rate, is looked up when it is needed."""
    base, size = Shape(), parameters(Shape())

    def best(kind: str) -> float:
        tried = [r for r in rows if r["experiment"] == "rates" and r["optimizer"] == kind]
        return min(tried, key=lambda r: r["loss"])["rate"]

    def one(experiment: str, name: str, seed: int, s: Shape = base, **how) -> dict:
        return {"experiment": experiment, "name": name, "seed": seed, "steps": steps, "optimizer": "AdamW", "shape": s} | how

    for kind in ("AdamW", "Muon"):
        for rate in RATES:
            yield one("rates", f"{kind} at {rate:g}", TUNING_SEED, rate=rate, optimizer=kind, steps=TUNING_STEPS)
    names = list(SWITCHES)
    turns = [(name, seed) for seed in SEEDS for name in [*names[:FIRST], "Muon"]]
    for name, seed in [*turns, *((name, seed) for name in names[FIRST:] for seed in SEEDS)]:
        if name == "Muon":
            yield one("optimizers", name, seed, rate=best(name), optimizer=name)
        else:
            yield one("switches", name, seed, as_large_as(replace(base, **SWITCHES[name]), size), rate=best("AdamW"))
    for seed in SEEDS:  # the same runs again, looked at on their way
        for kind in ("AdamW", "Muon"):
            for name, fields in {"learned positions": {}, "rotary positions": ROTARY}.items():
                s = as_large_as(replace(base, **fields), size)
                yield one("courses", f"{kind}, {name}", seed, s, rate=best(kind), optimizer=kind)


def key(row: dict) -> tuple:
    return tuple(row.get(k) for k in ("experiment", "name", "seed", "steps"))


def run(job: dict) -> dict:
    """Do one run and return its row."""
    s, how = job["shape"], {k: job[k] for k in ("seed", "steps", "rate", "optimizer")}
    course: list[tuple[int, float]] = []

    def look(step: int, model: Model) -> None:
        if job["experiment"] == "courses" and step % max(1, job["steps"] // LOOKS) == 0:
            course.append((step, position_losses(model, s.block_size, scored=min(LOOKED, SCORED)).mean().item()))

    model = train(s, **how, look=look)
    loss = position_losses(model, s.block_size).mean().item()
    row = {k: v for k, v in job.items() if k != "shape"} | {
        "shape": {k: v for k, v in asdict(s).items() if v != getattr(Shape(), k)}, "parameters": parameters(s),
        "flops": training_flops(s) * job["steps"] * BATCH * s.block_size, "tokens": job["steps"] * BATCH * s.block_size,
        "loss": loss, "bits_per_byte": loss / math.log(2) / tokens("held out", HELD_OUT)[1],
    }  # fmt: skip
    if job["experiment"] == "switches" and job["name"] in ("GPT-2", "rotary positions", "sinusoids"):
        row["lengths"] = by_length(model)
    return row | ({"course": course} if course else {})


def say(row: dict) -> str:
    return (f"{row['experiment']:10} {row['name']:18} seed {row['seed']:3} {row['parameters']:8,} weights, {row['steps']:5} steps: "
            f"{row['loss']:.4f} nats a token")  # fmt: skip


def main() -> None:
    options = {"batch": BATCH, "stories": STORIES, "scored": SCORED, "shape": asdict(Shape())}
    keep_runs("switches", __doc__.splitlines()[0], RESULTS, options, plan, run, key, say, steps=STEPS)


if __name__ == "__main__":
    main()
