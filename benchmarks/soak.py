"""Everything that users do to an engine, at random and at once, for some minutes; what must hold is checked.

    python benchmarks/soak.py --minutes 10 --model smollm2

It says what is wrong and exits with 1 if anything is.
"""

import argparse
import sys
from pathlib import Path

import stretto
from soaking import SoakPlan, soak
from stretto.backends.native import NativeBackend
from stretto.llm import LLM
from stretto.models import read_spec
from stretto.testing import byte_tokenizer
from stretto.weights.gguf import GGUF

TINY = Path(__file__).parent.parent / "tests" / "data" / "tiny" / "llama.gguf"
LIMITS = stretto.Limits(max_running=8, max_queue=12, max_tokens_per_step=64, max_step_ms=5.0)


def load(name, cells):
    """A model with few cells and a short queue, so that both are often full."""
    if name != "tiny":
        return stretto.load(name, cells=cells or 384, limits=LIMITS)
    file = GGUF(TINY)
    return LLM(NativeBackend(file, read_spec(file), cells or 192, 1), byte_tokenizer(), limits=LIMITS)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--model", default="tiny", help="tiny, smollm2, or any other")
    parser.add_argument("--cells", type=int)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with load(given.model, given.cells) as llm:
        report = soak(
            llm, SoakPlan(seconds=60 * given.minutes, seed=given.seed), lambda line: print(line, flush=True)
        )
    print(", ".join(f"{name} {n}" for name, n in sorted(report.done.items())))
    for problem in report.problems:
        print("wrong:", problem)
    sys.exit(1 if report.problems else 0)


if __name__ == "__main__":
    main()
