"""How soon a command writes: `gpt2-book generate` and a script with Hugging Face's library beside a bare `import torch`.

    python benchmarks/start.py --save            some minutes; kept in results/start-MACHINE.json
    python benchmarks/start.py --rounds 3        a quick look

Each is a process of its own, they take turns, and the time runs from the start of the process to its first byte on
standard output, and to its end. Both load the same folder (the shape named, random weights, a small tokenizer, so that
nothing is downloaded) and write one token greedily. Reported are medians with the lowest and the highest.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from statistics import median

from common import RESULTS, describe_machine, name_of, write_results

ALONE, OURS, PEER = "import torch", "gpt2-book generate", "hugging face"
SCRIPT = """
import sys
from transformers import AutoTokenizer, GPT2LMHeadModel
tokenizer, model = AutoTokenizer.from_pretrained(sys.argv[1]), GPT2LMHeadModel.from_pretrained(sys.argv[1])
asked = tokenizer(sys.argv[2], return_tensors="pt")
new = model.generate(**asked, max_new_tokens=1, do_sample=False, pad_token_id=0)[0, asked["input_ids"].size(1):]
print(tokenizer.decode(new), flush=True)
"""
# the layers of the 124M shape, and a small model; both with as many tokens as the tokenizer has
SHAPES = {"87M": {"vocab_size": 1024}, "11M": {"n_layer": 6, "n_head": 6, "n_embd": 384, "vocab_size": 1024}}


def commands(folder: str) -> dict[str, list[str]]:
    how = ["--model", folder, "--temperature", "0", "--max-new-tokens", "1", "--no-echo", "--device", "cpu"]
    return {
        ALONE: ["-c", "import torch; print(flush=True)"],
        OURS: ["-m", "gpt2_book", "generate", "ROMEO:", *how],
        PEER: ["-c", SCRIPT, folder, "ROMEO:"],
    }


def timed(arguments: list[str]) -> tuple[float, float]:
    """Run Python; return the seconds to its first byte and to its end."""
    start = time.perf_counter()
    with subprocess.Popen([sys.executable, *arguments], stdout=-1, stderr=-1, bufsize=0,
                          env=os.environ | {"HF_HUB_OFFLINE": "1"}) as process:  # fmt: skip
        process.stdout.read(1)
        first = time.perf_counter() - start
        process.stdout.read()
        errors = process.stderr.read()
    if process.returncode:
        raise RuntimeError(f"{' '.join(arguments)} failed:\n{errors.decode()}")
    return first, time.perf_counter() - start


def measure(shape: str, rounds: int) -> list[dict]:
    """Let the three take turns; return a row for each."""
    import torch

    from gpt2_book import GPT, GPTConfig
    from gpt2_book.workshop.tokenizer_files import load_tokenizer

    torch.manual_seed(0)
    times: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        GPT(GPTConfig(**SHAPES[shape])).save_pretrained(folder, tokenizer=load_tokenizer("shakespeare"))
        for i in range(rounds + 1):  # the first round only warms up
            for way, arguments in commands(folder).items():
                found = timed(arguments)
                times.setdefault(way, []).extend([found] if i else [])
    rows = []
    for way, found in times.items():
        firsts, ends = zip(*found)
        after = [first - alone for first, (alone, _) in zip(firsts, times[ALONE])]
        rows.append({
            "shape": shape, "way": way, "rounds": rounds, "s_to_first_token": median(firsts), "lowest": min(firsts),
            "highest": max(firsts), "s_after_import_torch": median(after), "s_to_the_end": median(ends),
        })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", action="store_true", help="write results/start-MACHINE.json")
    parser.add_argument("--rounds", type=int, default=11, help="processes of each kind, taken in turns (11)")
    args = parser.parse_args()
    rows = []
    for shape in SHAPES:
        rows += measure(shape, args.rounds)
    for row in rows:
        print("{shape:6}{way:20} first token {s_to_first_token:6.2f} s ({lowest:.2f} to {highest:.2f}), "
              "{s_after_import_torch:5.2f} s after import torch, end {s_to_the_end:5.2f} s".format(**row))  # fmt: skip
    if args.save:
        machine = describe_machine("transformers")
        write_results(RESULTS / f"start-{name_of(machine)}.json", {"machine": machine, "rows": rows})


if __name__ == "__main__":
    main()
