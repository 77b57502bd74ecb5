"""Load the 124M shape with random weights, by this package and by Hugging Face, each in fresh processes.

    python benchmarks/load.py [--dtype float32] [--repeats 5] [--threads N] [--json benchmarks/results/load.json]

Reported are medians. Hugging Face's loader keeps the weights mapped to their file, and the first pass through the model
reads them; so does ours. With `mapped=False` ours reads them at once into memory of its own, with the matrices
transposed, which is more work. `peak` is the most memory that the process held until then, mapped files included,
above what it held after its imports; `own` is what is left of it that is not mapped to a file (Linux).
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median

from common import describe_machine, in_fresh_process, memory, write_results

PEER = "hugging face"


def child(who: str, folder: str, dtype: str, threads: int) -> dict:
    """Measure one loader, in this process."""
    begin = time.perf_counter()
    import torch

    if who != PEER:
        from gpt2_book.model import GPT as model_class

        how = {"dtype": getattr(torch, dtype), "mapped": who == "ours"}
    else:
        import transformers
        from transformers import GPT2LMHeadModel as model_class

        new = int(transformers.__version__.split(".")[0]) >= 5
        how = {"dtype" if new else "torch_dtype": getattr(torch, dtype)}
    if threads:
        torch.set_num_threads(threads)
    token = torch.zeros(1, 1, dtype=torch.long)
    before, own, start = memory("VmRSS"), memory("RssAnon"), time.perf_counter()
    model = model_class.from_pretrained(folder, **how).eval()
    loaded = time.perf_counter()
    with torch.inference_mode():
        model(token)
    done = time.perf_counter()
    return {
        "call, s": loaded - start,
        "to the first logits, s": done - start,
        "with imports, s": done - begin,
        "peak, MB": memory("VmHWM") - before if before else None,
        "own, MB": memory("RssAnon") - own if before else None,
        "weights, MB": sum(p.numel() * p.element_size() for p in model.parameters()) / 1e6,
    }


def make_weights(folder: str) -> None:
    """Write a random 124M model."""
    import torch

    from gpt2_book.model import GPT, GPTConfig

    torch.manual_seed(0)
    GPT(GPTConfig()).save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--repeats", type=int, default=5, help="processes for each of the two, taken in turns")
    parser.add_argument("--threads", type=int, default=0, help="PyTorch's threads; its own choice by default")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--child", nargs=2, metavar=("WHO", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(child(*args.child, args.dtype, args.threads)))
        return
    runs: dict[str, list[dict]] = {"ours": [], "copied": [], PEER: []}
    options = ["--dtype", args.dtype, "--threads", str(args.threads)]
    with tempfile.TemporaryDirectory() as folder:
        make_weights(folder)
        for _ in range(args.repeats):
            for who in runs:
                offline = {"HF_HUB_OFFLINE": "1"}
                runs[who].append(in_fresh_process(__file__, "--child", who, folder, *options, environment=offline))
    results = {who: {key: median(r[key] for r in found) for key in found[0] if found[0][key] is not None}
               for who, found in runs.items()}  # fmt: skip
    ratios = {who: {key: results[who][key] / theirs for key, theirs in results[PEER].items()} for who in runs}
    print(f"{args.dtype:24}" + "".join(f"{who:>16}{'ratio':>8}" for who in runs))
    for key in results[PEER]:
        print(f"{key:24}" + "".join(f"{results[who][key]:>16.3f}{ratios[who][key]:>8.2f}" for who in runs))
    if peak := results["ours"].get("peak, MB"):
        print(f"our peak is {peak / results['ours']['weights, MB']:.3f} of the weights")
    if args.json:
        machine = describe_machine("gpt2_book", "transformers", "safetensors", "huggingface_hub")
        options = {"dtype": args.dtype, "repeats": args.repeats, "threads": args.threads}
        write_results(
            args.json, {"machine": machine, "options": options, "results": results, "ratios": ratios, "runs": runs}
        )


if __name__ == "__main__":
    main()
