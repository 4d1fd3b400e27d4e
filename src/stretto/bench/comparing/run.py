"""Runs a comparison: in each round every contestant in turn, alone, in a new process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

from stretto import hardware
from stretto.bench.comparing.contestants import Contestant, Found, Skipped
from stretto.bench.comparing.plan import SHORT, ComparePlan, Prompts
from stretto.bench.comparing.process import Failed, Process
from stretto.bench.comparing.results import Comparison, Standing
from stretto.errors import InvalidRequest
from stretto.loading.describe import open_tokenizer

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
