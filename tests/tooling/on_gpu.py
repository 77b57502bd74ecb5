"""What only a GPU can show. `python benchmarks/gpu.py` runs this file where there is one; elsewhere every test of it skips."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file

from gpt2_book import GPT, GPTConfig
from gpt2_book.data import ShuffledLoader
from gpt2_book.training import TrainConfig, Trainer, choose_precision
from gpt2_book.workshop.checkpoints import set_seed

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU of NVIDIA's")

T4 = mock.patch("torch.cuda.get_device_capability", return_value=(7, 5))  # no arithmetic in bfloat16


def losses(precision: str, steps: int = 60, **settings) -> list[float]:
    """Train a small model on tokens that repeat, and return the loss of each step."""
    set_seed(0)
    tokens = torch.arange(50).repeat(200).numpy()
    model = GPT(GPTConfig(n_layer=2, n_head=2, n_embd=64, vocab_size=97, block_size=32)).cuda()
    loader = ShuffledLoader(tokens, 8, 32, seed=1, device="cuda")
    config = TrainConfig(steps=steps, warmup_steps=10, learning_rate=3e-3, precision=precision, **settings)
    trainer = Trainer(model, loader, config)
    assert trainer.scaler.is_enabled() == (trainer.precision == "float16")
    found = [step.loss for step in trainer]
    assert all(p.isfinite().all() and p.dtype == torch.float32 for p in model.parameters())
    return found


def test_a_t4_trains_in_float16_with_a_scaler():
    with T4:
        assert choose_precision("auto", "cuda") == "float16"
        half = losses("auto")
    full = losses("float32")
    assert math.log(97) - 0.5 < full[0] < math.log(97) + 0.5
    assert full[-1] < 0.5 * full[0]
    assert max(abs(a - b) for a, b in zip(half, full)) < 0.1


def test_bfloat16_follows_float32():
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("this GPU emulates bfloat16")
    assert choose_precision("auto", "cuda") == "bfloat16"
    assert max(abs(a - b) for a, b in zip(losses("auto"), losses("float32"))) < 0.1


@pytest.mark.parametrize("chunk", [0, 100])
def test_a_compiled_loss_is_the_loss(chunk):
    """Its head is padded, in chunks and without, and what is padded does not count."""
    plain = losses("float32", steps=20)
    assert max(abs(a - b) for a, b in zip(losses("float32", steps=20, compile=True, chunk=chunk), plain)) < 1e-3


def test_a_hundred_calls_compile_once():
    """Each call records and compiles nothing, once the first two have."""
    from torch._dynamo.utils import counters

    torch.manual_seed(0)
    model = GPT(GPTConfig(n_layer=2, n_head=2, n_embd=64, vocab_size=64, block_size=64)).cuda().double().eval()
    idx = torch.randint(64, (1, 5), device="cuda")
    expected = model.generate(idx, 12, temperature=0)
    for _ in range(2):
        assert torch.equal(model.generate(idx, 12, temperature=0, compile=True), expected)
    graphs, memory = counters["stats"]["unique_graphs"], torch.cuda.memory_allocated()
    for _ in range(100):
        assert torch.equal(model.generate(idx, 12, temperature=0, compile=True), expected)
    assert counters["stats"]["unique_graphs"] == graphs
    assert torch.cuda.memory_allocated() <= memory


def test_a_draw_on_a_graph_is_a_draw():
    """One graph for all settings, and the tokens are those of the plain way."""
    from torch._dynamo.utils import counters

    torch.manual_seed(0)
    model = GPT(GPTConfig(n_layer=2, n_head=2, n_embd=64, vocab_size=1000, block_size=64)).cuda().double().eval()
    idx, graphs = torch.randint(1000, (3, 5), device="cuda"), set()
    for how in ({}, {"top_k": 20}, {"top_p": 0.7}, {"min_p": 0.5, "temperature": 2.0}, {"top_k": 90, "top_p": 0.8, "temperature": 0.6}):
        for _ in range(2):
            text = model.generate(idx, 30, compile=True, generator=torch.Generator().manual_seed(1), **how)
            plain = model.generate(idx, 30, generator=torch.Generator().manual_seed(1), **how)
            assert torch.equal(text, plain), how
        graphs.add(counters["stats"]["unique_graphs"])
    assert len(graphs) == 1


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_one_process_with_nccl_trains_like_none(parallel, tmp_path):
    text = "\n\n".join(f"{a} times {b} is {a * b}, as one knows." for a in range(30) for b in range(12))
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    small = {
        "text": "text.txt", "batch_size": 4, "eval_batches": 2, "sample_tokens": 5, "device": "cuda",
        "model": {"vocab_size": 270, "n_embd": 16, "n_head": 2, "n_layer": 1, "block_size": 16, "dropout": 0.0},
        "training": {"steps": 6, "warmup_steps": 2, "precision": "float32"}, "run": {"save_every": 3, "eval_every": 3},
    }  # fmt: skip
    (tmp_path / "small.json").write_text(json.dumps(small), encoding="utf-8")
    train = ["-c", "from gpt2_book.workshop.cli import main; main()", "train", "--config", "small.json", "--parallel", parallel]
    spread = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "--no-python", sys.executable]
    for before, out in ((spread, "one"), ([], "none")):
        words = train if before else train[:-2]
        done = subprocess.run(
            [sys.executable, *before, *words, "--out", out], cwd=tmp_path, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stderr
    one, none = (load_file(tmp_path / out / "model" / "model.safetensors") for out in ("one", "none"))
    for name, tensor in none.items():
        torch.testing.assert_close(one[name].float(), tensor.float(), rtol=1e-2, atol=1e-3, msg=name)
