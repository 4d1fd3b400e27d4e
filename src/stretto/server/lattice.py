"""Parallel runs as answers: steps as events, and what their members attend to, in brief."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

import numpy as np

from stretto.llm import LLM
from stretto.parallel.options import ParallelParams
from stretto.parallel.render import ParallelText
from stretto.parallel.types import Attention, Member, ParallelStep
from stretto.server.errors import ApiError, body_of
from stretto.server.generation import Generation
from stretto.server.open_response import DONE, event
from stretto.text.tokenizer import Tokenizer

ATTENTION_BYTES = 256 << 20  # that the attention of a run may take, at most
ATTENTION_COLUMNS = 64  # of a step that are told
WATCHED_MEMBERS = 4096  # of a stream that may still be pruned


def check_attention(llm: LLM, prompt: str | list[int], options: dict[str, Any]) -> None:
    """Refuse a run whose attention may take too much memory, before anything is computed.

    A pass needs a number for each layer, head, member and cell; a step keeps one for each member and cell.
    """
    spec, length = llm.backend.spec, llm.context_length
    width = options.get("max_width", ParallelParams.max_width)
    steps = min(options.get("max_tokens", length), length)
    cells = min(len(prompt) + width * steps, len(llm.cells))
    need = 4 * width * cells * (spec.n_layer * spec.n_head + steps)
    if need > ATTENTION_BYTES:
        message = (
            f"attention of {steps} steps with up to {width} members takes up to {need >> 20} MiB, and "
            f"{ATTENTION_BYTES >> 20} are allowed: set max_tokens or max_width lower, or shorten the prompt"
        )
        raise ApiError(400, message, param="attention", code="over_limit")


def in_brief(attention: Attention, tokenizer: Tokenizer) -> dict[str, Any]:
    """The mean over layers and heads: the columns with the most weight, in order of position."""
    weights = attention.weights.mean((0, 1))  # float32[members, cells]
    most = np.sort(np.argsort(weights.max(0))[-ATTENTION_COLUMNS:])
    tokens = attention.tokens[most].tolist()
    return {
        "cells": attention.cells[most].tolist(),
        "positions": attention.positions[most].tolist(),
        "tokens": tokens,
        "pieces": [tokenizer.spelled(token) if token >= 0 else "" for token in tokens],
        "weights": [[round(float(weight), 5) for weight in row] for row in weights[:, most]],
    }


def as_dict(text: ParallelText, tokenizer: Tokenizer) -> dict[str, Any]:
    """A whole run, with the attention of its steps where it was measured."""
    answer = text.to_dict()
    for step, told in zip(text.steps, answer["steps"], strict=True):
        if step.attention is not None:
            told["attention"] = in_brief(step.attention, tokenizer)
    return answer


async def all_of(first: Any, others: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """The steps of a run of which the first has been taken."""
    if first is not None:
        yield first
        async for step in others:
            yield step


class StepEvents:
    """The steps as events, then the whole result.

    A step tells which members were pruned since the one before; the attention beside it is that of the step
    before, which has been computed by then.
    """

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._before: ParallelStep | None = None
        self._kept: deque[tuple[int, int, Member]] = deque(maxlen=WATCHED_MEMBERS)

    def more(self, step: ParallelStep) -> bytes:
        """A step."""
        pruned = [[at, number] for at, number, member in self._kept if not member.kept]
        self._kept = deque((entry for entry in self._kept if entry[2].kept), WATCHED_MEMBERS)
        self._kept.extend((step.index, number, member) for number, member in enumerate(step.members))
        told: dict[str, Any] = {
            "step": {
                "index": step.index,
                "position": step.position,
                "text": step.text,
                "chosen": step.chosen,
                "brackets": step.brackets,
                "threshold": step.threshold,
                "members": [asdict(member) for member in step.members],
                "edges": step.edges,
                "pruned": pruned,
            }
        }
        before, self._before = self._before, step
        if before is not None and before.attention is not None:
            tokenizer = self._generation.lease.llm.tokenizer
            told["attention"] = {"index": before.index, **in_brief(before.attention, tokenizer)}
        return event(told).encode()

    async def end(self) -> bytes:
        """The whole result."""
        text = (await self._generation.texts.result()).to_dict()
        text["timings"] = {**text["timings"], **self._generation.spent()}
        return event({"result": text}).encode() + DONE

    def failed(self, error: ApiError) -> bytes:
        """The error is an event too, and the last one."""
        return event(body_of(error, "/stretto/")).encode()
