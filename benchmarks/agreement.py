"""Multiple choice item by item: Stretto beside transformers and llama.cpp, on the same weights and prompts.

    python benchmarks/agreement.py qwen2.5-coder-0.5b --peer PEER/bin/python

PEER has torch, transformers, accelerate and gguf; transformers runs the file's weights dequantised to
float32. llama.cpp is shown if llama-cpp-python is installed here (`backend="llamacpp"`). All engines get the
same tokens, and `stretto eval`'s scoring. Answers are kept in a folder (--answers): a run that was
interrupted goes on.
"""

import argparse
import json
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import stretto
from peers.process import Process
from stretto.backends.llama_library import missing
from stretto.evaluation.harness import make_settings, run_benchmark
from stretto.evaluation.statistics import share
from stretto.text.loading import load_tokenizer
from stretto.weights import hub
from stretto.weights.gguf import GGUF

HERE = Path(__file__).parent
TASKS = {"hellaswag": 400, "arc_easy": 200, "arc_challenge": 200}
SEED, REFERENCE = 0, "transformers"
ENGINES = {
    "standard": {},
    "high": {"precision": "high"},
    "llama.cpp": {"backend": "llamacpp"},
}


@contextmanager
def open_engine(name, model, arguments):
    """What answers questions, and what its answers depend on."""
    if name != REFERENCE:
        with stretto.load(model, cells=4096, threads=arguments.threads, **ENGINES[name]) as llm:
            yield llm, lambda task: make_settings(llm, task, model)
        return
    path = hub.resolve(model)
    with GGUF(path) as file:
        tokenizer = load_tokenizer(file.metadata)
    with Process([arguments.peer, str(HERE / "peers" / "transformers_worker.py")]) as peer:
        peer.ask({"do": "load", "path": str(path), "threads": arguments.threads, "dtype": arguments.dtype})

        async def score(prefix, rests):
            found = peer.ask({"do": "score", "prefix": prefix, "rests": rests})
            return [np.array(row, np.float32) for row in found["scores"]]

        llm = SimpleNamespace(tokenizer=tokenizer, context_length=4096, ascore=score)
        yield (
            llm,
            lambda task: {
                "benchmark": task,
                "model": model,
                "dtype": arguments.dtype,
                "chat": False,
            },
        )


def ask(name, model, tasks, arguments):
    """Answer what has no answer yet."""

    def show(done, total):
        print(f"\r{name} {task}: {done} of {total}", end="", file=sys.stderr, flush=True)

    with open_engine(name, model, arguments) as (llm, settings):
        for task in tasks:
            path = answers_of(name, model, task, arguments)
            run_benchmark(
                llm,
                task,
                path,
                settings(task),
                limit=TASKS[task],
                seed=SEED,
                items=slice(arguments.limit),
                progress=show,
            )


def answers_of(name, model, task, arguments):
    return arguments.answers / f"agreement-{model}-{name}-{task}.jsonl"


def read_answers(path):
    """Answers by the number of their question."""
    lines = path.read_text("utf-8").splitlines()[1:] if path.exists() else []
    return {one["item"]: one for one in map(json.loads, lines)}


def compare(found, reference):
    """Shares of questions with the same choice, by either figure, and distances of log-likelihoods."""
    pairs = [(one, reference[item]) for item, one in found.items()]
    far = np.abs(np.concatenate([np.subtract(a["scores"], b["scores"]) for a, b in pairs]))
    same = [sum(a["picked"][figure] == b["picked"][figure] for a, b in pairs) for figure in (0, 1)]
    return len(pairs), same, float(far.mean()), float(far.max())


def lead(answer):
    """How far the best choice is ahead of the second, as a log-likelihood."""
    second, best = sorted(answer["scores"])[-2:]
    return best - second


def report(model, arguments):
    print(
        f"\n{model}\n| questions | engine | accuracy | per character "
        f"| same as {REFERENCE} | per character | distance |"
    )
    print("|---|---|---|---|---|---|---|")
    for task in arguments.tasks:
        reference = read_answers(answers_of(REFERENCE, model, task, arguments))
        for name in (*ENGINES, REFERENCE):
            answers = read_answers(answers_of(name, model, task, arguments))
            found = {item: one for item, one in answers.items() if item in reference}
            if not found:
                continue
            right = [share(sum(one["right"][figure] for one in found.values()), len(found)).value
                     for figure in ("accuracy", "accuracy_norm")]  # fmt: skip
            shown = [f"{value:.1%}" for value in right]
            if name != REFERENCE:
                n, same, mean, most = compare(found, reference)
                shown += [*(f"{k} of {n}, {k / n:.1%}" for k in same), f"{mean:.4f}, at most {most:.3f}"]
            print(f"| {task} | {name} | {' | '.join(shown)} |")
            for item in sorted(found) if arguments.show else ():
                if found[item]["picked"][0] != reference[item]["picked"][0]:
                    leads = lead(reference[item]), lead(found[item])
                    print(f"  item {item}: ahead by {leads[0]:.4f} there, {leads[1]:.4f} here")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--peer", default=sys.executable)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="float32", help="of transformers")
    parser.add_argument("--answers", type=Path, default=Path(tempfile.gettempdir()), help="a folder")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--engines", nargs="*", default=[*ENGINES, REFERENCE], choices=[*ENGINES, REFERENCE])
    parser.add_argument("--limit", type=int, default=400, help="only the first ones of each, in this run")
    parser.add_argument("--show", action="store_true", help="print where choices differ")
    arguments = parser.parse_args()
    if missing():
        arguments.engines = [name for name in arguments.engines if name != "llama.cpp"]
    for name in arguments.engines:
        ask(name, arguments.model, arguments.tasks, arguments)
    report(arguments.model, arguments)


if __name__ == "__main__":
    main()
