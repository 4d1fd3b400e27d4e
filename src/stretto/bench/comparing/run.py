"""Runs a comparison: in each round every contestant in turn, alone, in a new process."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from threading import Timer
from types import TracebackType
from typing import Any

import stretto.bench.workers as workers
from stretto import hardware
from stretto.bench.comparing.contestants import Contestant, Found, Skipped
from stretto.bench.comparing.results import SHORT, ComparePlan, Comparison, Prompts, Standing
from stretto.errors import InvalidRequest, StrettoError
from stretto.loading.describe import open_tokenizer

# The other end of `workers/lines.py`: a process that loads a model and measures when it is asked.

PROGRAM = Path(workers.__file__).with_name("lines.py")
LOG_BYTES = 400  # of what a process said last, in an error


class Failed(StrettoError):
    """A contestant could not do what it was asked; the message is what it said."""


class Process:
    """`with Process(python, "worker_llamacpp", threads=2) as process: process.ask("load", model=…)`."""

    def __init__(self, python: str, worker: str, threads: int, seconds: float) -> None:
        self._command = [python, str(PROGRAM), worker]
        self._seconds = seconds
        counts = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        self._environment = {**os.environ, **dict.fromkeys(counts, str(threads))}

    def __enter__(self) -> Process:
        self._log = tempfile.TemporaryFile()
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=self._environment,
                encoding="utf-8",
            )
        except OSError as error:
            self._log.close()
            raise Failed(f"{self._command[0]} cannot be started: {error}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        for stream in (process.stdin, process.stdout):
            with suppress(OSError):  # it ended before it had read all
                stream.close()
        if kind is not None:
            process.kill()
        process.wait()
        self._log.close()

    def ask(self, what: str, **arguments: Any) -> dict[str, Any]:
        """The answer to a request; `Failed` if there is none in time."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        timer = Timer(self._seconds, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            raise Failed(f"its process ended at {what!r}: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Failed(str(answer["error"]))
        return answer

    def _last_words(self) -> str:
        code = self._process.wait()
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - LOG_BYTES))
        said = self._log.read().decode(errors="replace").strip().splitlines()
        return said[-1] if said else f"exit status {code}, after at most {self._seconds:.0f} seconds"


WARM_TOKENS = 4
SECONDS = 600.0  # a contestant may take for one answer
PAUSE_SECONDS = 0.2  # before each: threads of the last one have ended

Note = Callable[[str], None]


def compare(
    model: str,
    found: Found,
    plan: ComparePlan,
    note: Note = lambda text: None,
    seconds: float = SECONDS,
) -> Comparison:
    """Measure all contestants; one that fails is left out, with what it said."""
    if not found.contestants:
        reasons = "; ".join(f"{each.name}: {each.reason}" for each in found.skipped)
        raise InvalidRequest(f"nothing here can run {model}: {reasons}", param="model", value=model)
    machine = hardware.probe(measure=False)
    prompts = Prompts(open_tokenizer(found.contestants[0].model))
    standings = {each.name: Standing(each.name) for each in found.contestants}
    skipped = list(found.skipped)
    texts: dict[str, dict[str, Any]] = {}
    busy = _Busy()
    for number in range(plan.rounds):
        order = found.contestants[number % len(found.contestants) :]
        order += found.contestants[: number % len(found.contestants)]
        for each in order:
            if each.name not in standings:
                continue
            note(f"round {number + 1} of {plan.rounds}: {each.name}")
            time.sleep(PAUSE_SECONDS)
            try:
                answer = _measure(each, standings[each.name], plan, prompts, number, seconds)
            except Failed as error:
                del standings[each.name]
                skipped.append(Skipped(each.name, str(error)))
                continue
            texts.setdefault(each.name, answer)
    _agreement(list(standings.values()), texts, prompts)
    file = Path(found.contestants[0].model)
    return Comparison(
        model=str(model),
        nbytes=file.stat().st_size if file.is_file() else sum(f.stat().st_size for f in file.glob("*")),
        cpu=machine.cpu,
        kernels=machine.kernels,
        plan=plan,
        standings=list(standings.values()),
        skipped=skipped,
        others=busy.others(),
    )


def _measure(
    contestant: Contestant,
    standing: Standing,
    plan: ComparePlan,
    prompts: Prompts,
    number: int,
    seconds: float,
) -> dict[str, Any]:
    """One round of a contestant; returns its continuation of the short prompt."""
    threads = plan.n_threads
    with Process(contestant.python, contestant.worker, threads, seconds) as process:
        about = process.ask("about")
        loaded = process.ask(
            "load", model=contestant.model, threads=threads, cells=plan.cells, **contestant.options
        )
        standing.version = loaded.get("version") or about.get("version", "")
        standing.notes = loaded.get("notes") or about.get("notes", "")
        standing.threads = None if contestant.is_remote else threads

        def generate(lengths: list[int], tokens: int, test: int) -> dict[str, Any]:
            made = [prompts.make(length, 100 * number + 10 * test + i) for i, length in enumerate(lengths)]
            return process.ask("generate", prompts=made, tokens=tokens)

        first = generate([SHORT], 1, 0)
        standing.add("first token", 1e3 * first["seconds"])
        generate([SHORT], WARM_TOKENS, 1)
        standing.add("prefill", plan.prompt / generate([plan.prompt], 1, 2)["seconds"])
        decoded = generate([SHORT], plan.tokens, 3)
        count = _counts(decoded)[0]
        if count > 1 and decoded["seconds"] > decoded["first"]:
            standing.add("decode", (count - 1) / (decoded["seconds"] - decoded["first"]))
        last = decoded
        if plan.sequences > 1:
            last = generate([plan.batch_prompt] * plan.sequences, plan.tokens, 4)
            standing.add("batch", sum(_counts(last)) / last["seconds"])
        if not contestant.is_remote:
            standing.add("load", loaded["seconds"])
            if last["memory_bytes"]:
                standing.add("memory", last["memory_bytes"] / 1e6)
    return decoded


def _counts(answer: dict[str, Any]) -> list[int]:
    """How many tokens each text has."""
    counts: list[int] = answer.get("counts") or [len(ids) for ids in answer["ids"]]
    return counts


def _agreement(standings: list[Standing], texts: dict[str, dict[str, Any]], prompts: Prompts) -> None:
    """How many first tokens are those of the first contestant that gives tokens."""
    base = next((texts[each.name]["ids"][0] for each in standings if "ids" in texts[each.name]), None)
    for each in standings if base else ():
        assert base is not None
        answer = texts[each.name]
        each.compared = len(base)
        if "ids" in answer:
            same = takewhile(lambda pair: pair[0] == pair[1], zip(base, answer["ids"][0], strict=False))
            each.agreed = len(list(same))
        else:
            each.compared = min(len(base), answer["counts"][0])
            parts = (prompts.tokenizer.decode(base[: n + 1]) for n in range(each.compared))
            each.agreed = sum(answer["texts"][0].startswith(part) for part in parts)


class _Busy:
    """How busy the machine was with everything else."""

    def __init__(self) -> None:
        self._begun = time.monotonic(), self._seconds()

    def others(self) -> float | None:
        """From 0 to 1, since it was made; None where the system does not tell."""
        if self._begun[1] is None or (now := self._seconds()) is None:
            return None
        wall = time.monotonic() - self._begun[0]
        return max(0.0, (now - self._begun[1]) / (wall * (os.cpu_count() or 1)))

    @staticmethod
    def _seconds() -> float | None:
        """Processor time of the machine less that of this process and of those it started and waited for."""
        try:
            user, nice, system, _, _, irq, soft, steal = Path("/proc/stat").read_text().split()[1:9]
        except (OSError, ValueError):
            return None
        total = sum(map(int, (user, nice, system, irq, soft, steal))) / os.sysconf("SC_CLK_TCK")
        return total - sum(os.times()[:4])
