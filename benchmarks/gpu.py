"""Stretto on a GPU, beside gpt-fast's design under torch.compile and transformers: one command, one run.

    python benchmarks/gpu.py                           # all parts, about 15 minutes on an H200
    python benchmarks/gpu.py --only decode,rows        # some of them, each under 4 minutes
    python benchmarks/gpu.py --table FILE.json …       # the table again, of runs that were stored

All get the same shapes and random weights (shapes.py), which are written once, into memory where there is
room. Each contestant has a process of its own, as its users have it. They take turns, each sample right after
a moment of other work on the GPU, so that no clock sleeps; the first turn warms up, and medians of the others
count. `llm.generate` is the public API, with sampling and detokenizing; bare steps are the backend's forward
passes without sampling.

| part | |
|---|---|
| decode | Llama-3-8B's shape in bf16, one row, depths 512 and 4,096, with the same bits and exact=False |
| quant | the same in Q4_0, Q8_0 and Q4_K |
| rows | 16, 64 and 256 rows at depth 512, 64 forks of 2,000 tokens |
| prefill | a prompt of 2,048 tokens; first tokens |
| small | the shapes of Qwen3-0.6B and SmolLM2-135M |
| start | a process without compiled kernels and the next one; loading from page cache |
| server | `stretto serve` with 1, 8, 32, 128 and 256 streaming clients |
"""

import argparse
import json
import sys
import time
from pathlib import Path

from gpus.report import markdown

RAW = Path(__file__).parent / "raw"


def machine():
    """The GPU, the versions, and how fast it reads memory."""
    import torch

    found = {"torch": torch.__version__, "gpu": "no GPU", "read_tb_s": 0.0}
    try:
        import triton

        found["triton"] = triton.__version__
    except ImportError:
        found["triton"] = "missing"
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
        found["driver_cuda"] = torch.version.cuda
        block = torch.zeros(1 << 29, dtype=torch.int64, device="cuda")
        seconds = []
        for _ in range(5):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            block.max()
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begun)
        found["read_tb_s"] = block.nbytes / min(seconds) / 1e12
        del block
        torch.cuda.empty_cache()
    return found


def measure(args):
    from gpus.files import folder
    from gpus.parts import PARTS, Run

    def say(text):
        print(text, file=sys.stderr, flush=True)

    run = Run(folder(args.cache), args.rounds, args.tokens, say, args.device, args.layers, not args.no_peers)
    document = {"command": command(args), "machine": machine(), "seconds": {}, "figures": []}
    for name in args.only or PARTS:
        begun = time.monotonic()
        say(f"-- {name}")
        document["figures"] += [figure.as_data() for figure in PARTS[name](run)]
        document["seconds"][name] = round(time.monotonic() - begun, 1)
        say(f"-- {name}: {document['seconds'][name]} s")
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(document, indent=1) + "\n")  # after each part: a later one may hang
    return document


def command(args):
    words = ["python benchmarks/gpu.py", f"--rounds {args.rounds}", f"--tokens {args.tokens}"]
    words += [f"--only {','.join(args.only)}"] if args.only else []
    words += [f"--layers {args.layers}"] if args.layers else []
    return " ".join(words + ["--no-peers"] * args.no_peers)


def joined(paths):
    """One document of several runs, parts of later ones in place of those of earlier ones."""
    first, *others = [json.loads(path.read_text()) for path in paths]
    for other in others:
        parts = {figure["part"] for figure in other["figures"]}
        first["figures"] = [each for each in first["figures"] if each["part"] not in parts] + other["figures"]
    return first


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", type=lambda text: text.split(","), help="parts, with commas between them")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128, help="of a sample")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, help="of all models, for a trial")
    parser.add_argument("--no-peers", action="store_true", help="measure Stretto alone")
    parser.add_argument("--cache", type=Path, help="where model files go (default: into memory)")
    parser.add_argument("--out", type=Path, default=RAW / "gpu.json", help="where all samples go")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="print stored figures")
    args = parser.parse_args()
    if not args.table and args.only:
        from gpus.parts import PARTS

        if unknown := [name for name in args.only if name not in PARTS]:
            parser.error(f"--only takes {', '.join(PARTS)}, not {unknown[0]!r}")
    print("\n".join(markdown(joined(args.table) if args.table else measure(args))))


if __name__ == "__main__":
    main()
