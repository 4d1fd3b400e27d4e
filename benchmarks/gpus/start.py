"""A process that loads a model and makes its first tokens: python start.py MODEL DEVICE. Seconds, as JSON."""

import json
import sys
import time
from itertools import pairwise


def main(path, device):
    marks = {"begun": time.perf_counter()}

    def mark(name):
        marks[name] = time.perf_counter()

    import stretto

    mark("import")
    llm = stretto.load(path, device=device, cells=32_768)
    mark("load")
    prompt = list(range(1, 100))
    llm.generate(prompt, max_tokens=4, ignore_eos=True)
    mark("first tokens")
    llm.generate([[i, *prompt[:8]] for i in range(1, 65)], max_tokens=4, ignore_eos=True)
    mark("a batch of 64")
    llm.close()
    names = list(marks)
    print(json.dumps({b: marks[b] - marks[a] for a, b in pairwise(names)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
