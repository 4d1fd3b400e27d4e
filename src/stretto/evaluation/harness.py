"""Runs a benchmark on a model: many questions at once, each answer kept in a file, so that runs add up.

    report = run_benchmark(llm, "hellaswag", Path("answers.jsonl"), limit=400)
    report.metrics["accuracy_norm"].value

The file has a JSON object a line: first what was asked of which model, then an answer for each question. A
run that was interrupted, or one of the next questions, goes on from there.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stretto.errors import InvalidRequest
from stretto.evaluation.benchmarks import BENCHMARKS, Answer, Item, read_items
from stretto.evaluation.sandbox import require_sandbox
from stretto.evaluation.statistics import Estimate, share
from stretto.llm import LLM

VERSION = 1  # of the prompts and the scoring: answers of others are not continued
BATCH = 16
FIRST = b'{"benchmark": "'  # how a file of answers begins


@dataclass(frozen=True)
class BenchmarkReport:
    """The figures of the questions that have been answered, by this run and by those before it.

    `how` says how the model was asked; `seconds` are of this run, which answered `n_now` questions.
    """

    name: str
    how: str
    metrics: Mapping[str, Estimate]
    n_items: int
    n_answered: int
    n_now: int
    seconds: float
    answers: Path

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        fields = {**asdict(self), "answers": str(self.answers)}
        return {"benchmark": fields.pop("name"), "interval": "Wilson's, 95 %", **fields}


def make_settings(
    llm: LLM, name: str, model: str, chat: bool | None = None, kv: str = "f16"
) -> dict[str, Any]:
    """What the answers depend on, the first line of their file; without a backend it is the native one."""
    benchmark = BENCHMARKS[name]
    if chat is None:
        chat = benchmark.prefers_chat and llm.has_template
    fingerprint = llm.engine.fingerprint  # that of saved sequences
    settings = {
        "benchmark": name,
        "version": VERSION,
        "data": "stretto" if benchmark.data is None else benchmark.data.source,
        "model": model,
        "fingerprint": hashlib.sha256((fingerprint() if fingerprint else "").encode()).hexdigest()[:16],
        "precision": llm.precision,
        "kv": kv,
        "chat": chat,
    }
    backend = llm.engine.backend.name
    return settings if backend == "native" else {**settings, "backend": backend}


def run_benchmark(
    llm: LLM,
    name: str,
    answers: Path,
    settings: Mapping[str, Any],
    *,
    limit: int | None = None,
    seed: int | None = None,
    items: slice = slice(None),
    resume: bool = True,
    allow_code: bool = False,
    batch: int = BATCH,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> BenchmarkReport:
    """Ask the questions that have no answer yet, `batch` at a time, and count.

    `limit` takes the first questions, or with a `seed` so many random ones, always the same; `items` only
    some of these, by their place among them. The report counts all those that have an answer.

    >>> run_benchmark(llm, "arc_easy", Path("a.jsonl"), make_settings(llm, "arc_easy", "smollm2"), limit=100)
    """
    benchmark = BENCHMARKS[name]
    if benchmark.runs_code:
        check_allowed(name, allow_code)
    chat = bool(settings["chat"])
    questions = read_items(name, chat)
    order = list(range(len(questions)))
    if seed is not None:
        random.Random(seed).shuffle(order)
    chosen = order[:limit]
    file = AnswersFile(answers, settings, resume)
    missing = [number for number in chosen[items] if number not in file.answers]
    started = time.monotonic()
    total = len(chosen[items])
    progress(total - len(missing), total)

    def keep(number: int, answer: Answer) -> None:
        file.append(number, questions[number].id, answer)
        progress(sum(one in file.answers for one in chosen[items]), total)

    asyncio.run(_answer(llm, [(number, questions[number]) for number in missing], batch, keep))
    found = [file.answers[number]["right"] for number in chosen if number in file.answers]
    if not found:
        raise InvalidRequest("no question is chosen; items takes BEGIN:END", param="items")
    return BenchmarkReport(
        name,
        benchmark.chat if chat else benchmark.how,
        {
            metric: share(sum(judged), len(judged))
            for metric in benchmark.metrics
            if (judged := [one[metric] for one in found if metric in one])
        },
        len(chosen),
        len(found),
        len(missing),
        time.monotonic() - started,
        answers,
    )


def check_allowed(name: str, allow_code: bool) -> None:
    """Raise unless generated programs may be run, and there is a sandbox for them."""
    if not allow_code:
        raise InvalidRequest(
            f"{name} runs programs that the model writes, in a sandbox without network and files "
            "(stretto docs evaluation); --allow-code allows it",
            param="allow_code",
        )
    require_sandbox()


async def _answer(
    llm: LLM, items: Sequence[tuple[int, Item]], batch: int, keep: Callable[[int, Answer], None]
) -> None:
    """Ask all questions, `batch` at a time; the next one starts when one has its answer."""
    waiting = iter(items)

    async def ask_next(waiting: Iterator[tuple[int, Item]]) -> None:
        for number, item in waiting:
            keep(number, await item.answer(llm))

    tasks = [asyncio.ensure_future(ask_next(waiting)) for _ in range(min(batch, len(items)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


class AnswersFile:
    """The answers by the number of their question, in a file that only grows.

    A line is written at once and is on the disk before the next one; the rest of one that was cut off, by a
    crash or a full disk, is dropped when the file is read again. A file of another kind is never changed.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], resume: bool) -> None:
        self.path = path
        self.answers: dict[int, Answer] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        if lines and not lines[0].startswith(FIRST[: len(lines[0])]):
            raise self._damaged("does not begin with the settings of a run")
        cut = [line for line in lines[-1:] if not line.endswith(b"\n")]
        whole = lines[: len(lines) - len(cut)]
        if not resume:
            path.unlink(missing_ok=True)
            whole = cut = []
        if whole:
            self._read(whole, settings)
        if cut:
            os.truncate(path, sum(map(len, whole)))
        if not whole:
            self._write(settings)

    def _read(self, lines: Sequence[bytes], settings: Mapping[str, Any]) -> None:
        """Take the answers of whole lines, if they are of a run with the same settings."""
        found, *answers = (self._object(line, number) for number, line in enumerate(lines, 1))
        if found != dict(settings):
            other = [name for name in {**found, **settings} if found.get(name) != settings.get(name)]
            raise InvalidRequest(
                f"{self.path} has the answers of another run ({', '.join(other)} differ); --no-resume "
                "begins anew, --answers takes another file",
                param="answers",
            )
        for number, answer in enumerate(answers, 2):
            item, right = answer.get("item"), answer.get("right")
            if (
                type(item) is not int
                or not isinstance(right, dict)
                or not all(isinstance(one, bool) for one in right.values())
            ):
                raise self._damaged(f"line {number} is no answer with its item and what is right")
            self.answers[item] = answer

    def _object(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._damaged(f"line {number} is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise self._damaged(f"line {number} is no JSON object")
        return found

    def _damaged(self, what: str) -> InvalidRequest:
        return InvalidRequest(
            f"{self.path} has no answers that can be read: {what}; take another file (--answers), or move "
            "this one away",
            param="answers",
        )

    def append(self, number: int, name: str, answer: Answer) -> None:
        """Keep an answer."""
        self.answers[number] = {"item": number, "id": name, **answer}
        self._write(self.answers[number])

    def _write(self, value: Mapping[str, Any]) -> None:
        line = (json.dumps(value) + "\n").encode()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            while line:
                line = line[os.write(descriptor, line) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
