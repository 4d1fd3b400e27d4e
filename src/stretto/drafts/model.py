"""A draft model: a smaller model with the same tokenizer."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from stretto.cache.radix import common
from stretto.drafts.lookup import Suffixes, SuffixLookup
from stretto.errors import CacheFull, ContextOverflow, InvalidRequest
from stretto.sampling.params import check_integer, check_number
from stretto.sampling.transforms import measure
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

    def logits(self, sequences: Any) -> Any:
        """The logits of several sequences, computed in one pass."""
        ...


class DraftModel:
    """Drafts the most probable tokens of another model. Both must have the same tokenizer.

    small = stretto.load("smollm2")
    large.generate(prompt, draft=stretto.DraftModel(small, most=4))

    A draft of one line ends before a token to which the small model gives a probability below `least`. With
    `draft_branches` it divides instead where the small model is uncertain: at each token that is not its
    first choice and has at least the probability `split`.
    """

    def __init__(self, llm: Model, most: int = 4, split: float = 0.1, least: float = 0.3) -> None:
        if not hasattr(llm, "sequence") or not hasattr(llm, "tokenizer"):
            raise InvalidRequest(f"DraftModel takes a loaded model, not {llm!r}", param="llm", value=llm)
        check_integer("most", most, 1, 256)
        check_number("split", split, 0.0, 1.0)
        check_number("least", least, 0.0, 1.0)
        self.most, self.split, self.least = int(most), float(split), float(least)
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
        return ModelProposer(self._llm, self.split, self.least)


class NextTokenDrafts:
    """Drafts by the layer that the model itself has for that (MTP, `nextn`), as GLM 4.5 and Qwen3.5 have."""

    def __init__(self, most: int = 3) -> None:
        check_integer("most", most, 1, 256)
        self.most = int(most)

    def begin(self, tokenizer: Tokenizer) -> ModelProposer:
        """The engine makes its proposers: they need the hidden states of passes."""
        raise InvalidRequest("draft='mtp' is for requests of the model that has the layer", param="draft")


class HeadDrafts:
    """Drafts by an EAGLE-3 head that was trained for the model: a Hugging Face folder or a GGUF file.

    llm.generate(prompt, draft="path/to/head")                        # the same as
    llm.generate(prompt, draft=stretto.drafts.HeadDrafts("path/to/head"))
    """

    def __init__(self, path: str | os.PathLike[str], most: int = 4) -> None:
        check_integer("most", most, 1, 256)
        self.most = int(most)
        self.path = Path(path).expanduser().resolve()
        if not self.path.exists():
            raise InvalidRequest(f"there is no head for drafts at {self.path}", param="draft", value=path)

    def begin(self, tokenizer: Tokenizer) -> ModelProposer:
        """The engine makes its proposers: they need the hidden states of passes."""
        raise InvalidRequest("heads are for requests of the model that they were made for", param="draft")


class AutoDrafts:
    """Drafts where they pay: by the text and cached ones, and by the model's own layer or a head.

    llm.generate(prompt, draft="auto")                                         # the same as
    llm.generate(prompt, draft=stretto.drafts.AutoDrafts())
    llm.generate(prompt, draft=stretto.drafts.AutoDrafts("path/to/head"))

    Each request learns how often drafts of a kind are right, and the engine what rows of a pass cost. A draft
    is as long as promises the most tokens a second, and left out where it promises none.
    """

    def __init__(self, head: str | os.PathLike[str] | None = None, most: int = 16) -> None:
        check_integer("most", most, 1, 256)
        self.most = int(most)
        self.head = None if head is None else HeadDrafts(head)
        self.suffix = SuffixLookup(most=self.most)

    def begin(self, tokenizer: Tokenizer) -> Suffixes:
        """The engine makes its proposers: they need the costs of passes."""
        raise InvalidRequest("draft='auto' is for requests", param="draft")


class ModelProposer:
    """A sequence of the small model that follows a text and runs ahead of it."""

    def __init__(self, llm: Model, split: float = 0.1, least: float = 0.0) -> None:
        self._llm = llm
        self._log_split = math.log(split) if split else -math.inf
        self._least = least
        self._sequence: Any = None
        self._has_images = False
        self._ends = frozenset(llm.tokenizer.end_ids)
        # Recurrent layers forget a rejected token only by a replay: a fork makes the draft, and is closed.
        self._forks = bool(getattr(getattr(llm, "spec", None), "recurrent", ""))

    def propose(self, tokens: list[int], most: int) -> list[int]:
        """The small model's greedy continuation, as far as it is probable and context and cache suffice."""
        draft: list[int] = []
        fork: Any = None
        try:
            self._follow(tokens)
            fork = self._sequence.fork() if self._forks else self._sequence
            for _ in range(most):
                row = fork.logits
                token = int(row.argmax())
                if token in self._ends:
                    break
                if self._least and np.exp(row - row[token]).sum() * self._least > 1:
                    break
                draft.append(token)
                fork.append(token)
        except (CacheFull, ContextOverflow):
            pass
        finally:
            if self._forks and fork is not None:
                fork.close(park=False)
        return draft

    def propose_branches(self, tokens: list[int], most: int, branches: int) -> list[list[int]]:
        """Its greedy continuation, and others that leave it where a second token is probable enough.

        All of them run ahead side by side, one pass of the small model for each depth.
        """
        drafts: list[list[int]] = [[]]
        forks: list[Any] = []
        try:
            self._follow(tokens)
            forks.append(self._sequence.fork() if self._forks else self._sequence)
            growing = [0]  # drafts that have not come to an end
            for _ in range(most):
                if not growing:
                    break
                rows = self._llm.logits([forks[i] for i in growing])
                growing = [
                    grown
                    for i, row in zip(growing, rows, strict=True)
                    for grown in self._grow(i, row, drafts, forks, branches)
                ]
        except (CacheFull, ContextOverflow):
            pass
        finally:
            for fork in forks[not self._forks :]:
                fork.close(park=False)
        return [draft for draft in drafts if draft]

    def _grow(self, i: int, row: Any, drafts: list[list[int]], forks: list[Any], branches: int) -> list[int]:
        """Append the best token to a draft, and the next best ones to new drafts; those that grew."""
        _, best = measure(row, 0, branches - len(drafts) + 1)
        grown = []
        for rank, (token, logprob) in enumerate(best):
            if token in self._ends or (rank and logprob < self._log_split):
                break
            if rank:
                forks.append(forks[i].fork())
                drafts.append(drafts[i][:-1])
            at = len(drafts) - 1 if rank else i
            drafts[at].append(token)
            grown.append(at)
        for at in grown:
            forks[at].append(drafts[at][-1])
        return grown

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
