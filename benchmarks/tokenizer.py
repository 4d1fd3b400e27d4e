"""How fast tokenizers load, encode and decode English, on one core.

    python benchmarks/tokenizer.py smollm2 gemma3-270m [--json]

The text is about 2 MB of prose from Python's own documentation. "load" is from opening the file to the
ready tokenizer. The figures are medians of several rounds, in seconds of processor time: all of it is one
thread's work, and so the neighbours on a shared machine count less.
"""

import argparse
import json
import os
import statistics
import time
from pydoc_data.topics import topics

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the tokenizers library would take all cores
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

from stretto.text.loading import load_tokenizer
from stretto.weights import hub
from stretto.weights.gguf import GGUF


def english(size=2_000_000):
    text = "\n".join(topics.values())
    return (text * (size // len(text) + 1))[:size]


def timed(function, *args):
    start = time.process_time()
    result = function(*args)
    return time.process_time() - start, result


def load(path):
    return load_tokenizer(GGUF(path).metadata)


def measure(name, text, rounds):
    path = hub.resolve(name)
    load(path)  # the file is in the page cache
    seconds = {"load": [], "encode": [], "decode": []}
    for _ in range(rounds):
        taken, tokenizer = timed(load, path)
        seconds["load"].append(taken)
        taken, ids = timed(tokenizer.encode, text)
        seconds["encode"].append(taken)
        taken, back = timed(tokenizer.decode, ids)
        seconds["decode"].append(taken)
        assert back == text
    megabytes = len(text.encode()) / 1e6
    load_s, encode_s, decode_s = (statistics.median(values) for values in seconds.values())
    return {
        "model": name,
        "load_s": load_s,
        "encode_mb_s": megabytes / encode_s,
        "decode_mb_s": megabytes / decode_s,
        "tokens": len(ids),
        "seconds": seconds,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["smollm2", "gemma3-270m"], help="names or paths")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    text = english()
    rows = [measure(name, text, args.rounds) for name in args.models]
    if args.json:
        print(json.dumps(rows))
        return
    print(f"{'model':<14}{'load, s':>9}{'encode, MB/s':>14}{'decode, MB/s':>14}{'tokens':>10}")
    for row in rows:
        print(
            f"{row['model']:<14}{row['load_s']:>9.2f}{row['encode_mb_s']:>14.2f}"
            f"{row['decode_mb_s']:>14.1f}{row['tokens']:>10}"
        )


if __name__ == "__main__":
    main()
