"""The parts of the benchmark: each opens its models, measures by turns, and gives figures with goals."""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gpus.clock import Figure, attempt, turns
from gpus.compiled import Compiled
from gpus.files import file_of
from gpus.hugging import Hugging
from gpus.ours import Bare, Public
from gpus.worker import Worker
from shapes import DENSE

HERE = Path(__file__).parent
PUBLIC_SHARE = 0.95  # of a goal, through the public API with sampling
PEER_TOKENS = 32  # of the slow peer
EXACT, FAST = "same bits", "exact=False"
OPTIONS = {EXACT: {}, FAST: {"exact": False}}


@dataclass(frozen=True)
class Run:
    """What all parts get: where files are, how much is measured, and what is left out."""

    where: Path
    rounds: int
    tokens: int
    say: object
    device: str = "cuda"
    layers: int | None = None  # of all models, for a trial
    peers: bool = True

    def shape(self, name):
        return replace(DENSE[name], n_layer=self.layers or DENSE[name].n_layer)

    def file(self, name, fmt="BF16"):
        return file_of(self.where, name, fmt, self.layers)

    def open(self, kind, path, cells, way=EXACT):
        return Worker(kind, path, cells, device=self.device, **OPTIONS[way])


class Contest:
    """Contestants of one test after the other; those with a key stay open until all tests are done.

    A failure to open one is a figure without samples.
    """

    def __init__(self, run, part):
        self.run, self.part = run, part
        self.kept, self.opened, self.figures, self.failed = {}, [], {}, []

    def add(self, key, make, *tests):
        """Open a contestant; each test is (test, who, goal, function of it that gives a sample)."""
        try:
            model = self.kept.get(key) or make()
        except Exception as error:
            text = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            self.run.say(f"{tests[0][1]} could not be opened: {text}")
            self.failed += [
                Figure(self.part, test, who, "tok/s", goal, error=text) for test, who, goal, _ in tests
            ]
            return
        if key is None:
            self.opened.append(model)
        else:
            self.kept[key] = model
        for test, who, goal, sample in tests:
            figure = Figure(self.part, test, who, "tok/s", goal)
            self.figures[figure] = lambda model=model, sample=sample: sample(model)

    def results(self):
        """Figures of the tests so far; the next ones may be added."""
        found = turns(self.figures, self.run.rounds, self.run.say) + self.failed
        close(self.opened)
        self.figures, self.failed = {}, []
        return found

    def close(self):
        close(list(self.kept.values()))
        self.kept = {}


def close(models):
    for model in models:
        model.close()
    models.clear()


def both(contest, path, cells, test, goal, rows, depth, way=EXACT, forks=False):
    """Stretto's figures of a test: bare steps, and the public API with both samplers."""
    run = contest.run
    sizes = {"rows": rows, "depth": depth, "tokens": run.tokens, "forks": forks}
    public = None if goal is None else PUBLIC_SHARE * goal
    contest.add(
        ("bare", way),
        lambda: run.open(Bare, path, cells, way),
        (test, f"bare steps, {way}", goal, lambda model: model.decode(**sizes)),
    )
    contest.add(
        ("public", way),
        lambda: run.open(Public, path, cells, way),
        *(
            (test, f"llm.generate {name}, {way}", public, sampled(sizes, name))
            for name in ("greedy", "default sampler")
        ),
    )


def sampled(sizes, sampling):
    return lambda model: model.decode(sampling=sampling, **sizes)


def peers(contest, name, test, rows, depth):
    run = contest.run
    if not run.peers:
        return
    contest.add(
        None,
        lambda: Worker(Compiled, run.shape(name), rows, depth, run.tokens, run.device),
        (test, "gpt-fast's design, torch.compile", None, lambda model: model.decode()),
    )
    contest.add(
        "transformers",
        lambda: Worker(Hugging, run.shape(name), run.device),
        (test, "transformers", None, lambda model: model.decode(rows, depth, min(PEER_TOKENS, run.tokens))),
    )


def decode(run):
    """One row of Llama-3-8B in bf16."""
    figures, path, contest = [], run.file("llama-3-8b"), Contest(run, "decode")
    for depth, goals in ((512, {EXACT: 230, FAST: 250}), (4096, {EXACT: None, FAST: 235})):
        test = f"8B bf16, depth {depth:,}"
        for way, goal in goals.items():
            both(contest, path, 4096 + 4 * run.tokens + 64, test, goal, 1, depth, way)
        peers(contest, "llama-3-8b", test, 1, depth)
        figures += contest.results()
    contest.close()
    return figures


def quant(run):
    """One row of Llama-3-8B in quantised formats."""
    figures = []
    for fmt, goal in (("Q4_0", 550), ("Q8_0", 380), ("Q4_K", 450)):
        contest, path = Contest(run, "quant"), run.file("llama-3-8b", fmt)
        for way in OPTIONS:
            both(contest, path, 512 + 4 * run.tokens + 64, f"8B {fmt}, depth 512", goal, 1, 512, way)
        figures += contest.results()
        contest.close()
        path.unlink()  # each is read once, and memory may not hold them all
    return figures


def rows(run):
    """Many rows of Llama-3-8B, and forks that share their prompt."""
    run = replace(run, tokens=min(run.tokens, 64))
    figures, path, contest = [], run.file("llama-3-8b"), Contest(run, "rows")
    cells = 256 * (512 + 2 * run.tokens + 64)
    for count, depth, forks, goal in (
        (16, 512, False, 3200),
        (64, 512, False, 10_000),
        (256, 512, False, 20_000),
        (64, 2000, True, 10_000),
    ):
        test = f"8B bf16, {count} forks of {depth:,}" if forks else f"8B bf16, {count} rows, depth {depth:,}"
        both(contest, path, cells, test, goal, count, depth, forks=forks)
        if count == 64 and not forks:
            peers(contest, "llama-3-8b", test, count, depth)
        figures += contest.results()
    contest.close()
    return figures


def prefill(run):
    """Prompts of Llama-3-8B: tokens a second, and the first token."""
    path, length, contest = run.file("llama-3-8b"), 2048, Contest(run, "prefill")
    test = f"8B bf16, prompt of {length:,}"

    def speed(model):
        return length / model.prompt_seconds(length)

    contest.add("bare", lambda: run.open(Bare, path, 4096), (test, "bare pass, same bits", 40_000, speed))
    contest.add(
        "public",
        lambda: run.open(Public, path, 65_536),
        (test, "llm.generate, same bits", PUBLIC_SHARE * 40_000, speed),
        *(
            (f"8B bf16, first token of {n:,}", "llm.generate, same bits", None, first_token(n))
            for n in (16, 512, length)
        ),
    )
    if run.peers:
        shape = run.shape("llama-3-8b")
        contest.add(
            "transformers", lambda: Worker(Hugging, shape, run.device), (test, "transformers", None, speed)
        )
    for figure in contest.figures:
        if "first token" in figure.test:
            figure.unit = "ms"
    figures = contest.results()
    contest.close()
    return figures


def first_token(length):
    return lambda model: 1e3 * model.prompt_seconds(length)


def small(run):
    """Small models, bound by latency."""
    figures = []
    for name, goal in (("qwen3-0.6b", 1300), ("smollm2-135m", 2000)):
        contest, path, test = Contest(run, "small"), run.file(name), f"{name} bf16, depth 512"
        for way in OPTIONS:
            both(contest, path, 512 + 4 * run.tokens + 64, test, goal, 1, 512, way)
        peers(contest, name, test, 1, 512)
        figures += contest.results()
        contest.close()
    return figures


def start(run):
    """Processes that load Llama-3-8B from page cache: without compiled kernels, then with them."""
    path, figures = run.file("llama-3-8b"), []
    with fresh_cache() as environment:
        found = {}
        for what in ("cold", "second"):
            command = [sys.executable, str(HERE / "start.py"), str(path), run.device]
            figure = Figure("start", f"8B bf16, {what} start", "import, load and first tokens", "s")

            def total(command=command, what=what):
                done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
                if done.returncode:
                    raise RuntimeError(done.stderr.strip().splitlines()[-1])
                found[what] = json.loads(done.stdout.splitlines()[-1])
                return sum(found[what].values())

            figures.append(attempt(figure, total, run.say))
            for name, seconds in found.get(what, {}).items():
                goal = 10 if name == "load" else None
                figures.append(Figure("start", f"8B bf16, {what} start", name, "s", goal, [seconds]))
                run.say(f"  {name}: {seconds:.2f} s")
        if len(found) == 2:
            cost = [sum(found["cold"].values()) - sum(found["second"].values())]
            figures.append(Figure("start", "8B bf16, cold start", "kernels compiled", "s", 12, cost))
    return figures


@contextmanager
def fresh_cache():
    """An environment whose processes compile all kernels, and find them in the next process."""
    with tempfile.TemporaryDirectory() as folder:
        yield {**os.environ, "TRITON_CACHE_DIR": folder, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}


def server(run):
    """`stretto serve` with streaming clients, by benchmarks/serve.py."""
    path = run.file("llama-3-8b")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "serve.json")
        options = {"model": path, "device": run.device, "cells": 131_072, "clients": "1,8,32,128,256"}
        options |= {"requests": 24, "tokens": min(128, run.tokens), "rounds": 1, "out": out}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        command = [sys.executable, str(HERE.parent / "serve.py"), *words]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=230)
        run.say(done.stderr[-3000:])
        if not out.exists():
            error = (done.stderr.strip().splitlines() or ["no output"])[-1][:200]
            return [Figure("server", "8B bf16", "stretto serve", error=error)]
        results = json.loads(out.read_text())["results"]
    figures = []
    for one in results:
        test = f"8B bf16, {one['clients']} clients"
        problem = one["first_error"] or "" if one["errors"] else ""
        figures.append(
            Figure("server", test, "stretto serve", samples=[one["tokens_per_second"]], error=problem)
        )
        figures.append(Figure("server", test, "first token, median", "ms", samples=[one["first_ms"][0]]))
        figures.append(Figure("server", test, "between tokens, median", "ms", samples=[one["between_ms"][0]]))
    return figures


PARTS = {each.__name__: each for each in (decode, quant, rows, prefill, small, start, server)}
