"""Hooks that need nothing but the row and the tokens so far; one object may serve any number of requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import log
from typing import Protocol

import numpy as np

from stretto.errors import InvalidRequest, wrong_value
from stretto.hooks.base import MAX_TOKENS, HookRow, Row, Rows, Trail, Trails, check_vocabulary, token_ids
from stretto.sampling.params import check_bias, check_integer, check_number


class Ban:
    """Excludes tokens.

    >>> logits = np.zeros(4, np.float32)
    >>> Ban([1, 2])(logits, [])
    >>> logits.tolist()
    [0.0, -inf, -inf, 0.0]
    """

    def __init__(self, tokens: Iterable[int]) -> None:
        self.tokens = tuple(sorted(set(token_ids("tokens", tokens))))
        self._ids = np.array(self.tokens, np.intp)
        self._highest = max(self.tokens, default=-1)

    def __call__(self, logits: Row, tokens: list[int]) -> None:
        """Exclude them from one row."""
        self.batch(logits[np.newaxis], [])

    def batch(self, logits: Rows, rows: list[HookRow]) -> None:
        """Exclude them from all rows."""
        check_vocabulary("Ban", self._highest, logits.shape[1])
        logits[:, self._ids] = -np.inf

    def __repr__(self) -> str:
        return f"Ban({list(self.tokens)})"


class Only:
    """Excludes all tokens but these.

    >>> logits = np.zeros(4, np.float32)
    >>> Only([1, 2])(logits, [])
    >>> logits.tolist()
    [-inf, 0.0, 0.0, -inf]
    """

    def __init__(self, tokens: Iterable[int]) -> None:
        self.tokens = tuple(sorted(set(token_ids("tokens", tokens))))
        if not self.tokens:
            raise InvalidRequest("tokens are empty; give at least one", param="tokens")
        self._ids = np.array(self.tokens, np.intp)

    def __call__(self, logits: Row, tokens: list[int]) -> None:
        """Exclude the others from one row."""
        self.batch(logits[np.newaxis], [])

    def batch(self, logits: Rows, rows: list[HookRow]) -> None:
        """Exclude the others from all rows."""
        check_vocabulary("Only", self.tokens[-1], logits.shape[1])
        kept = logits[:, self._ids]
        logits[:] = -np.inf
        logits[:, self._ids] = kept

    def __repr__(self) -> str:
        return f"Only({list(self.tokens)})"


class Bias:
    """Adds to the logits of single tokens; −inf excludes one.

    >>> logits = np.zeros(4, np.float32)
    >>> Bias({0: 1.5, 3: -2})(logits, [])
    >>> logits.tolist()
    [1.5, 0.0, 0.0, -2.0]
    """

    def __init__(self, bias: Mapping[int, float]) -> None:
        check_bias("bias", bias, MAX_TOKENS)
        self.bias = {int(token): float(value) for token, value in bias.items()}
        self._ids = np.fromiter(self.bias.keys(), np.intp)
        self._values = np.fromiter(self.bias.values(), np.float32)
        self._highest = max(self.bias, default=-1)

    def __call__(self, logits: Row, tokens: list[int]) -> None:
        """Add to one row."""
        self.batch(logits[np.newaxis], [])

    def batch(self, logits: Rows, rows: list[HookRow]) -> None:
        """Add to all rows."""
        check_vocabulary("Bias", self._highest, logits.shape[1])
        logits[:, self._ids] += self._values

    def __repr__(self) -> str:
        return f"Bias({self.bias})"


class NoRepeat:
    """Excludes tokens that would repeat an n-gram of the prompt or the answer.

    The tokens so far are searched anew each time, by a scan of the list: some twenty microseconds a thousand.

    >>> logits = np.zeros(4, np.float32)
    >>> NoRepeat(2)(logits, [0, 3, 1, 0])  # 0, 3 was there
    >>> logits.tolist()
    [0.0, 0.0, 0.0, -inf]
    """

    def __init__(self, n: int) -> None:
        check_integer("n", n, 1, MAX_TOKENS)
        self.n = int(n)

    def __call__(self, logits: Row, tokens: list[int]) -> None:
        """Exclude every token that would complete an n-gram for the second time."""
        if self.n == 1:
            logits[tokens] = -np.inf
        elif len(tokens) >= self.n:
            logits[self._followers(tokens)] = -np.inf

    def _followers(self, tokens: list[int]) -> list[int]:
        """The tokens after earlier occurrences of the last n − 1 tokens."""
        begin, end = tokens[1 - self.n :], len(tokens) - 1
        repeated: list[int] = []
        at = self.n - 3  # the last token of `begin` is searched after this index
        while True:
            try:
                at = tokens.index(begin[-1], at + 1, end)
            except ValueError:
                return repeated
            if tokens[at - self.n + 2 : at + 1] == begin:
                repeated.append(tokens[at + 1])

    def __repr__(self) -> str:
        return f"NoRepeat({self.n})"


# A hook that forces tokens.


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


# A hook for classifier-free guidance: steers away from the answer to another prompt.


def log_sum(logits: Row) -> float:
    """The logarithm of the sum of exponentials: the normaliser of logits."""
    highest = float(logits.max())
    if highest == -np.inf:
        return 0.0  # all tokens are excluded; the sampler raises
    return highest + log(np.exp(logits - highest).sum(dtype=np.float64))


class Guide(Protocol):
    """The part of `Sequence` that guidance needs."""

    @property
    def logits(self) -> Row:
        """For its next token."""
        ...

    @property
    def position(self) -> int:
        """Where its next token stands."""
        ...

    def append(self, what: list[int], /) -> None:
        """Add tokens."""
        ...

    def truncate(self, n: int, /) -> None:
        """Forget everything from a position on."""
        ...


class Guidance:
    """Classifier-free guidance: log-probabilities become negative + scale × (positive − negative).

        with llm.sequence("Be rude.") as rude:
            llm.generate("Be polite.", hooks=[Guidance(rude, scale=1.5)])

    The positive ones are those of the request, the negative ones those of `sequence`, which gets every token
    of the answer too. With `scale` 1 nothing changes, above 1 the difference is amplified, at 0 only the
    other prompt counts. Tokens that hooks before it excluded stay excluded.

    An object serves one request, since its sequence follows that request's tokens. It costs a forward pass
    and a cell a token; the sequence is the caller's to close.
    """

    def __init__(self, sequence: Guide, scale: float) -> None:
        if not hasattr(type(sequence), "logits") or not hasattr(type(sequence), "append"):
            raise wrong_value("sequence", sequence, "a Sequence, as llm.sequence makes it")
        check_number("scale", scale, 0.0, 100.0)
        self.sequence = sequence
        self.scale = float(scale)
        self._tokens: list[int] | None = None  # the request's tokens at the last call
        self._n_prompt = 0  # of these, how many there were at the first

    def __call__(self, logits: Row, tokens: list[int]) -> None:
        """Combine the row with that of the other sequence."""
        self._keep_up(tokens)
        other = self.sequence.logits
        if other.shape != logits.shape:
            raise InvalidRequest(
                f"sequence is of a model with {len(other)} tokens, and the request's has {len(logits)}",
                param="sequence",
            )
        positive, negative = logits - log_sum(logits), other - log_sum(other)
        with np.errstate(
            invalid="ignore", over="ignore"
        ):  # where one is −inf, the request's own is taken below
            combined = negative + self.scale * (positive - negative)
        both = (positive > -np.inf) & (negative > -np.inf)
        np.copyto(logits, np.where(both, combined, positive))

    def _keep_up(self, tokens: list[int]) -> None:
        """Append the new tokens to the other sequence; a parallel run may also change its last ones."""
        if self._tokens is None:
            self._tokens, self._n_prompt = list(tokens), len(tokens)
            return
        n = n_last = len(self._tokens)
        if tokens[:n] != self._tokens:
            n = next((i for i, (a, b) in enumerate(zip(tokens, self._tokens, strict=False)) if a != b), 0)
            if n < self._n_prompt or len(tokens) < n_last:
                raise InvalidRequest(
                    "a Guidance serves one request; make one for each, with its own sequence"
                )
            self.sequence.truncate(self.sequence.position - (n_last - n))
        if len(tokens) > n:
            self.sequence.append(tokens[n:])
            self._tokens[n:] = tokens[n:]

    def __repr__(self) -> str:
        return f"Guidance({self.sequence!r}, scale={self.scale:g})"


# A hook that records entropies and the most probable tokens, and changes nothing.

EXCLUDED = np.float32(-200.0)  # its exponential is 0 in float32, and 0 times it too
NEAR = np.float32(-7.0)  # most often the best are within a thousandth of the best one


@dataclass(frozen=True)
class Candidate:
    """A token and its probability."""

    token: int
    probability: float


@dataclass(frozen=True)
class Watched:
    """The candidates for one token of an answer.

    `token` is the one that came. It is known from the next call on, so the last one of an answer has None.
    """

    index: int  # in the answer, from 0
    entropy: float  # in nats: 0 where only one token is possible
    top: tuple[Candidate, ...]  # the most probable first
    token: int | None = None


@dataclass
class WatchedRequest:
    """One request: the length of its prompt, and a record for each token of its answer so far."""

    n_prompt: int
    records: list[Watched] = field(default_factory=list)


class Watcher:
    """Records for each token the entropy of the logits and the `top` most probable tokens.

        watcher = Watcher(top=3)
        llm.generate(prompt, hooks=[watcher])
        for record in watcher.records:
            print(record.entropy, record.top[0].token, record.token)

    It reads the row as the hooks before it left it, before temperature and cut-offs. `records` are those of
    the latest request and can be read while it runs; `requests` has one entry for each, in the order they
    began. A request with several sequences (beams) has a record for each at every place, and no `token`.

    >>> watcher = Watcher(top=1)
    >>> watcher(np.array([0, 0, -np.inf], np.float32), [7])
    >>> watcher.records
    [Watched(index=0, entropy=0.6931471805599453, top=(Candidate(token=0, probability=0.5),), token=None)]
    """

    def __init__(self, top: int = 5) -> None:
        check_integer("top", top, 0, 1000)
        self.top = int(top)
        self.requests: list[WatchedRequest] = []
        self._trails = Trails()
        self._request_of: dict[Trail, WatchedRequest] = {}

    @property
    def records(self) -> list[Watched]:
        """The records of the request that started last."""
        return self.requests[-1].records if self.requests else []

    def __call__(self, logits: Row, tokens: list[int]) -> None:
        """Record a row."""
        self._watch(logits, tokens, self._trails.of_tokens(tokens))

    def batch(self, logits: Rows, rows: list[HookRow]) -> None:
        """Record the rows of several requests."""
        for one, row in zip(logits, rows, strict=True):
            self._watch(one, row.tokens, self._trails.of_row(row))

    def _watch(self, logits: Row, tokens: list[int], trail: Trail) -> None:
        request = self._request_of.get(trail)
        if request is None:
            request = self._request_of[trail] = WatchedRequest(trail.n_prompt)
            self.requests.append(request)
        records, index = request.records, len(tokens) - trail.n_prompt
        if [record.index for record in records[-2:]] in ([index - 1], [index - 2, index - 1]):
            records[-1] = replace(records[-1], token=tokens[-1])
        entropy, top = self._measure(logits)
        records.append(Watched(index, entropy, top))

    def _measure(self, logits: Row) -> tuple[float, tuple[Candidate, ...]]:
        highest = logits.max()
        if highest == -np.inf:
            return 0.0, ()
        below = np.maximum(logits - highest, EXCLUDED)  # float32[n_vocab]
        weights = np.exp(below)
        total = float(weights.sum(dtype=np.float64))
        entropy = log(total) - float(weights @ below) / total
        best = find_best(below, self.top)
        return entropy, tuple(Candidate(i, float(weights[i]) / total) for i in best if weights[i] > 0)

    def __repr__(self) -> str:
        return f"Watcher(top={self.top})"


def find_best(below: Row, n: int) -> list[int]:
    """Indices of the n highest values, the best first, of equal ones the lower; the highest value is 0."""
    if n == 0:
        return []
    near = np.flatnonzero(below > NEAR)
    if len(near) < n:
        near = np.arange(len(below))
    if len(near) > n:
        values = below[near]
        near = near[values >= np.partition(values, len(values) - n)[len(values) - n]]
    best: list[int] = near[np.lexsort((near, -below[near]))][:n].tolist()
    return best
