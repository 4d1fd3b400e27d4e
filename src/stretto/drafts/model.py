"""A smaller model guesses for a larger one that has the same tokens."""

from __future__ import annotations

from typing import Any, Protocol

from stretto.cache.radix import common
from stretto.errors import CacheFull, ContextOverflow, InvalidRequest
from stretto.sampling.params import check_integer
from stretto.text.tokenizer import Tokenizer


class Model(Protocol):
    """What a draft needs of an `LLM`."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        ...

    def sequence(self, prompt: Any) -> Any:
        """A new sequence."""
        ...


class DraftModel:
    """Guesses with the most probable tokens of another model. Both must have the same tokenizer.

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

    def begin(self, tokenizer: Tokenizer) -> ModelGuesser:
        """A sequence of the small model for a new text."""
        if self._checked is not tokenizer:
            if not self._llm.tokenizer.same_as(tokenizer):
                raise InvalidRequest(
                    "the draft model has other tokens than the model; they must be the same", param="draft"
                )
            self._checked = tokenizer
        return ModelGuesser(self._llm)


class ModelGuesser:
    """A sequence of the small model that follows a text and runs ahead of it."""

    def __init__(self, llm: Model) -> None:
        self._llm = llm
        self._sequence: Any = None
        self._pictured = False

    def propose(self, tokens: list[int], most: int) -> list[int]:
        """The small model's own continuation; what it cannot hold it does not guess."""
        found: list[int] = []
        try:
            self._follow(tokens)
            for _ in range(most):
                step = self._sequence.step(temperature=0)
                if step.is_end:
                    break
                found.append(step.token)
        except (CacheFull, ContextOverflow):
            pass
        return found

    def _follow(self, tokens: list[int]) -> None:
        """Take back what was guessed wrong, and add what has come. Of images it sees the stand-ins only."""
        if self._sequence is None:
            self._pictured = any(type(token) is not int for token in tokens)
        if self._pictured:
            tokens = [int(token) for token in tokens]
        if self._sequence is None:
            self._sequence = self._llm.sequence(tokens)
            return
        same = common(self._sequence.history, tokens)
        if same < len(self._sequence):
            self._sequence.truncate(same)
        if same < len(tokens):
            self._sequence.append(tokens[same:])

    def close(self) -> None:
        """Let the sequence go."""
        if self._sequence is not None:
            self._sequence.close(park=False)
