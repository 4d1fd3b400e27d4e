"""A draft model: a smaller model with the same tokenizer."""

from __future__ import annotations

from typing import Any, Protocol

from stretto.cache.radix import common
from stretto.errors import CacheFull, ContextOverflow, InvalidRequest
from stretto.sampling.params import check_integer
from stretto.text.tokenizer import Tokenizer


class Model(Protocol):
    """The part of `LLM` that drafting needs."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        ...

    @property
    def spec(self) -> Any:
        """Its shape."""
        ...

    def sequence(self, prompt: Any) -> Any:
        """A new sequence."""
        ...


class DraftModel:
    """Drafts the most probable tokens of another model. Both must have the same tokenizer.

    small = stretto.load("smollm2")
    large.generate(prompt, draft=stretto.DraftModel(small, most=4))
    """

    def __init__(self, llm: Model, most: int = 4) -> None:
        if not hasattr(llm, "sequence") or not hasattr(llm, "tokenizer"):
            raise InvalidRequest(f"DraftModel takes a loaded model, not {llm!r}", param="llm", value=llm)
        check_integer("most", most, 1, 256)
        self.most = int(most)
        self._llm = llm
        self._checked: Tokenizer | None = None

    def begin(self, tokenizer: Tokenizer) -> ModelProposer:
        """A sequence of the small model for a new text."""
        if self._checked is not tokenizer:
            if not self._llm.tokenizer.same_as(tokenizer):
                raise InvalidRequest(
                    "the draft model has other tokens than the model; they must be the same", param="draft"
                )
            self._checked = tokenizer
        return ModelProposer(self._llm)


class ModelProposer:
    """A sequence of the small model that follows a text and runs ahead of it."""

    def __init__(self, llm: Model) -> None:
        self._llm = llm
        self._sequence: Any = None
        self._has_images = False
        # Recurrent layers forget a rejected token only by a replay: a fork makes the draft, and is closed.
        self._forks = bool(getattr(getattr(llm, "spec", None), "recurrent", ""))

    def propose(self, tokens: list[int], most: int) -> list[int]:
        """The small model's greedy continuation; shorter, or empty, where its context or cache is full."""
        draft: list[int] = []
        fork: Any = None
        try:
            self._follow(tokens)
            fork = self._sequence.fork() if self._forks else self._sequence
            for _ in range(most):
                step = fork.step(temperature=0)
                if step.is_end:
                    break
                draft.append(step.token)
        except (CacheFull, ContextOverflow):
            pass
        finally:
            if self._forks and fork is not None:
                fork.close(park=False)
        return draft

    def _follow(self, tokens: list[int]) -> None:
        """Roll back rejected tokens and append new ones. Of images it gets the placeholder tokens only."""
        if self._sequence is None:
            self._has_images = any(type(token) is not int for token in tokens)
        if self._has_images:
            tokens = [int(token) for token in tokens]
        if self._sequence is None:
            self._sequence = self._llm.sequence(tokens)
            return
        n_common = common(self._sequence.history, tokens)
        if n_common < len(self._sequence):
            self._sequence.truncate(n_common)
        if n_common < len(tokens):
            self._sequence.append(tokens[n_common:])

    def close(self) -> None:
        """Close the sequence."""
        if self._sequence is not None:
            self._sequence.close(park=False)
