"""Time per generated token: ours against Hugging Face's `generate`, plain and compiled, and a loop without a cache, 124M, one run.

    python benchmarks/decode.py --save             all of it (20 minutes on two cores), kept in results/
    python benchmarks/decode.py --batch 1 --prompt 16 --dtype float32 --tokens 16
"""

from __future__ import annotations

import argparse
import gc
from statistics import median

import torch
from common import Bandwidth, add_rows, describe_machine, seconds
from transformers import CompileConfig, GPT2Config, GPT2LMHeadModel

from gpt2_book.decoding import int8
from gpt2_book.model import GPT, GPTConfig
from gpt2_book.workshop.int4 import int4
from gpt2_book.workshop.kernels import can_onednn
from gpt2_book.workshop.packed import packed

PEER = "Hugging Face, generate"
COMPILED = "Hugging Face, compiled static cache"


def build(dtype: torch.dtype, device: str) -> tuple[GPT, GPT2LMHeadModel]:
    """Return our model and Hugging Face's, of the 124M shape and with the same random weights."""
    torch.manual_seed(0)
    theirs = GPT2LMHeadModel(GPT2Config()).eval()
    ours = GPT(GPTConfig()).eval()
    shapes = {name: p.shape for name, p in ours.named_parameters()}
    with torch.no_grad():
        for name, p in theirs.named_parameters():
            own = ours.get_parameter(name)
            own.copy_(p.T if p.ndim == 2 and "transformer.h." in name else p)
    assert shapes.keys() == {name for name, _ in theirs.named_parameters()}
    return ours.to(device, dtype), theirs.to(device, dtype)


def ways(dtype: torch.dtype, device: str) -> dict:
    """Return the ways to generate, each a function of a prompt and a number of tokens."""
    ours, theirs = build(dtype, device)
    small = int8(ours)
    greedy = {"temperature": 0.0}
    theirs.generation_config.update(eos_token_id=None, pad_token_id=0, do_sample=False)
    mode = "reduce-overhead" if device == "cuda" else "default"  # CUDA graphs, as is their own default
    static = {"cache_implementation": "static", "compile_config": CompileConfig(fullgraph=False, mode=mode)}
    static["compile_config"]._compile_all_devices = True  # they compile on a GPU only, unless they are told
    on_cpu = {}
    if device == "cpu":  # both are for a CPU alone
        smaller = int4(ours)
        on_cpu["ours, int4, compile"] = lambda idx, n: smaller.generate(idx, n, compile=True, **greedy)
    if device == "cpu" and can_onednn(dtype):
        fast = packed(ours)
        on_cpu["ours, packed"] = lambda idx, n: fast.generate(idx, n, **greedy)
        on_cpu["ours, packed, compile"] = lambda idx, n: fast.generate(idx, n, compile=True, **greedy)
    return {
        PEER: lambda idx, n: theirs.generate(idx, max_new_tokens=n),
        COMPILED: lambda idx, n: theirs.generate(idx, max_new_tokens=n, **static),
        "no cache": lambda idx, n: ours.generate(idx, n, cache=False, **greedy),
        "ours": lambda idx, n: ours.generate(idx, n, **greedy),
        "ours, compile": lambda idx, n: ours.generate(idx, n, compile=True, **greedy),
        "ours, int8, compile": lambda idx, n: small.generate(idx, n, compile=True, **greedy),
    } | on_cpu


class Clock:
    """The time of a token after the first, which carries the prompt: a long run less a short one, both a later call's.

    Beside each long run, before it and after it, the bandwidth is read: what a shared machine gives changes by the minute.
    """

    def __init__(self, generate, idx: torch.Tensor, n: int, bandwidth: Bandwidth):
        self.generate, self.idx, self.n, self.bandwidth = generate, idx, n, bandwidth
        self.long, self.short, self.read = [], [], []  # seconds, seconds, bytes of a second; of each round
        generate(idx, 3)  # compiles, allocates

    def sample(self) -> None:
        before = self.bandwidth.sample(8)
        self.long.append(seconds(lambda: self.generate(self.idx, self.n + 1)))
        self.read.append((before + self.bandwidth.sample(8)) / 2)
        self.short.append(seconds(lambda: self.generate(self.idx, 1)))

    @property
    def per_token(self) -> list[float]:
        """The seconds of a token in each round."""
        short = median(self.short)
        if min(self.long) <= short:
            raise RuntimeError(f"{self.n} tokens more took {min(self.long) - short:.3f} s more: the prompt's time varies by more "
                               "than the steps take; ask for more --tokens or --repeats")  # fmt: skip
        return [(long - short) / self.n for long in self.long]


def bytes_per_token(way: str, dtype: torch.dtype, batch: int, length: int) -> int:
    """Count what one step has to read: every matrix once, and the keys and values of every row."""
    config, size = GPTConfig(), dtype.itemsize
    matrices = 12 * config.n_layer * config.n_embd**2 + config.vocab_size * config.n_embd
    cached = 2 * batch * length * config.n_layer * config.n_embd * size
    return round(matrices * (1 if "int8" in way else 0.625 if "int4" in way else size)) + cached


def compare(dtype: torch.dtype, batches: list[int], prompts: list[int], n: int, repeats: int, device: str) -> list[dict]:
    """Measure every way in turn, ``repeats`` times round; return the medians, of ratios too, with the least and the most."""
    rows, fns = [], ways(dtype, device)
    for batch in batches:
        for prompt in prompts:
            torch.compiler.reset()  # each as in a program of its own: a second shape would leave both open
            idx = torch.randint(50257, (batch, prompt), device=device)
            slow = batch * prompt > 100
            bandwidth = Bandwidth(device)
            clocks = {way: Clock(generate, idx, 2 if way == "no cache" and slow else n, bandwidth) for way, generate in fns.items()}
            for _ in range(repeats):
                for clock in clocks.values():
                    clock.sample()
            for way, clock in clocks.items():
                times, peers = clock.per_token, clocks[PEER].per_token
                time, needed = median(times), bytes_per_token(way, dtype, batch, prompt + n // 2)
                shares = [needed / t / speed for t, speed in zip(times, clock.read, strict=True)]
                rows.append({"dtype": str(dtype).removeprefix("torch."), "batch": batch, "prompt": prompt, "way": way,
                             "ms_per_step": round(1e3 * time, 2), "ms_range": [round(1e3 * f(times), 2) for f in (min, max)],
                             "ms_to_first_token": round(1e3 * median(clock.short), 2),
                             "tokens_per_second": round(batch / time, 1),
                             "times_hugging_face": round(median(p / t for p, t in zip(peers, times, strict=True)), 2),
                             "gb_per_second": round(needed / time / 1e9, 1),
                             "bandwidth": round(median(clock.read) / 1e9, 1), "share_of_bandwidth": round(median(shares), 3),
                             "share_range": [round(f(shares), 3) for f in (min, max)]})  # fmt: skip
                print("{dtype:9} batch {batch} prompt {prompt:4}  {way:34} {ms_per_step:8.2f} ms  "
                      "{times_hugging_face:6.2f} x Hugging Face  first token {ms_to_first_token:6.1f} ms  "
                      "{share_of_bandwidth:6.1%} of {bandwidth} GB/s, {share_range[0]:.0%} to {share_range[1]:.0%}"
                      .format(**rows[-1]), flush=True)  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--prompt", nargs="+", type=int, default=[16, 512])
    parser.add_argument("--tokens", type=int, default=32, help="tokens to time (32)")
    parser.add_argument("--repeats", type=int, default=5, help="rounds, of which the middle one counts (5)")
    parser.add_argument("--save", action="store_true", help="add the rows to results/decode-MACHINE.json")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = []
    for name in args.dtype:
        rows += compare(getattr(torch, name), args.batch, args.prompt, args.tokens, args.repeats, device)
        gc.collect()
    if args.save:
        machine = describe_machine("transformers") | {"threads": torch.get_num_threads()}
        print("kept in", add_rows("decode", machine, rows, ("dtype", "batch", "prompt", "way")))


if __name__ == "__main__":
    main()
