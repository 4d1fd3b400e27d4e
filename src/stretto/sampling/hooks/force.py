"""A hook that forces tokens."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from stretto.errors import InvalidRequest
from stretto.sampling.hooks.row import HookRow, Row, Rows, check_vocabulary, token_ids
from stretto.sampling.hooks.trails import Trails
from stretto.sampling.params import check_integer


class Force:
    """Forces these tokens at the start of the answer, or from its token `at` on.

        llm.generate(prompt, hooks=[Force(llm.tokenizer.encode('{"name": "'))])

    The answer begins where the tokens end when a request first calls. One object may serve several requests,
    also at once. In a loop of your own, make one for each sequence, unless you call it with `seq.history`.

    >>> force = Force([2, 0])
    >>> for tokens in ([7], [7, 2], [7, 2, 0]):
    ...     logits = np.ones(3, np.float32)
    ...     force(logits, tokens)
    ...     print(logits.tolist())
    [-inf, -inf, 0.0]
    [0.0, -inf, -inf]
    [1.0, 1.0, 1.0]
    """

    def __init__(self, tokens: Iterable[int], at: int = 0) -> None:
        self.tokens = tuple(token_ids("tokens", tokens))
        if not self.tokens:
            raise InvalidRequest("tokens must hold at least one id to force", param="tokens")
        check_integer("at", at, 0, 1 << 31)
        self.at = int(at)
        self._trails = Trails()

    def __call__(self, logits: Row, tokens: list[int]) -> None:
        """Exclude all tokens but the forced one, if there is one."""
        self._force(logits, len(tokens) - self._trails.of_tokens(tokens).n_prompt)

    def batch(self, logits: Rows, rows: list[HookRow]) -> None:
        """As `__call__`, for the rows of several requests."""
        for one, row in zip(logits, rows, strict=True):
            self._force(one, len(row.tokens) - self._trails.of_row(row).n_prompt)

    def _force(self, logits: Row, index: int) -> None:
        """`index` is that of the next token in its answer."""
        check_vocabulary("Force", max(self.tokens), len(logits))
        place = index - self.at
        if 0 <= place < len(self.tokens):
            logits.fill(-np.inf)
            logits[self.tokens[place]] = 0.0

    def __repr__(self) -> str:
        return f"Force({list(self.tokens)}, at={self.at})"
