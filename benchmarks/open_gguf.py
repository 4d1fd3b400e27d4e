"""How long it takes to open a model file: ours beside PyPI's `gguf`, in turns, in one run.

    python benchmarks/open_gguf.py smollm2 gemma3-270m [--json]

"open" reads metadata and tensor table; "+ vocabulary" also decodes every token string.
"""

import argparse
import json
import statistics
import time

import gguf

from stretto.weights import hub
from stretto.weights.gguf import GGUF


def opened(path):
    with GGUF(path) as file:
        return len(file.tensors)


def with_vocabulary(path):
    with GGUF(path) as file:
        return len(file.metadata.strings("tokenizer.ggml.tokens"))


def peer(path):
    return len(gguf.GGUFReader(path).tensors)


def timed(function, path):
    start = time.perf_counter()
    assert function(path) > 0
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["smollm2", "gemma3-270m"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    for name in args.models:
        path = hub.resolve(name)
        opened(path)  # the file is in the page cache for everyone
        samples = {"open": [], "+ vocabulary": [], "gguf": []}
        for _ in range(args.rounds):
            samples["open"].append(timed(opened, path))
            samples["+ vocabulary"].append(timed(with_vocabulary, path))
            samples["gguf"].append(timed(peer, path))
        rows.append({"model": name, "seconds": samples})
    if args.json:
        print(json.dumps(rows))
        return
    print(f"{'model':<14}{'open, ms':>10}{'+ vocabulary, ms':>18}{'gguf, ms':>10}{'ratio':>8}")
    for row in rows:
        ours, words, theirs = (
            1e3 * statistics.median(row["seconds"][key]) for key in ("open", "+ vocabulary", "gguf")
        )
        print(f"{row['model']:<14}{ours:>10.1f}{words:>18.1f}{theirs:>10.0f}{theirs / ours:>7.0f}×")


if __name__ == "__main__":
    main()
