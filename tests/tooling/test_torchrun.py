"""`gpt2-book train` behind torchrun: two processes make one model, and one of them speaks."""

import importlib.util
import json
import subprocess
import sys

import pytest

SMALL = {
    "batch_size": 4, "eval_batches": 2, "sample_tokens": 5, "device": "cpu",  # a GPU's bfloat16 is not equal to 1e-4
    "model": {"vocab_size": 270, "n_embd": 16, "n_head": 2, "n_layer": 1, "block_size": 16, "dropout": 0.0},
    "training": {"steps": 6, "warmup_steps": 2}, "run": {"save_every": 3, "eval_every": 3},
}  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="gloo between processes of Linux")
@pytest.mark.skipif(importlib.util.find_spec("gpt2_book.distributed") is None, reason="no gpt2_book.distributed")
def test_two_processes_train_the_model_of_one(tmp_path):
    import torch
    from safetensors.torch import load_file

    text = "\n\n".join(f"{a} times {b} is {a * b}, as one knows." for a in range(30) for b in range(12))
    (tmp_path / "text.txt").write_text(text)
    (tmp_path / "small.json").write_text(json.dumps({**SMALL, "text": "text.txt"}))
    alone = [sys.executable, "-c", "from gpt2_book.workshop.cli import main; main()", "train", "--config", "small.json"]
    spread = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    said = []
    for command in ([*alone, "--out", "one"], [*spread, *alone, "--out", "two"]):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said[1].count("held-out loss  ") == said[1].count("two/model\n") - 2 == 1, said[1]
    one, two = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("one", "two"))
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=0, atol=1e-4)
