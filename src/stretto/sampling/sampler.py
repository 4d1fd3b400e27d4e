"""From logits to one token: penalties → bias → temperature → top-k → top-p → min-p. The seeded stream."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stretto import _native
from stretto.errors import InvalidRequest, wrong_value
from stretto.options.documenting import document_options
from stretto.options.generating import SAMPLING
from stretto.sampling import transforms
from stretto.sampling.params import SamplingParams, check_integer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from stretto.options.keywords import SamplingOptions

Row = NDArray[np.float32]

WRONG = {
    -1: "logits hold NaN; a hook, a bias or the model file is broken",
    -2: "every token is excluded (all logits are −inf); relax logit_bias or the hook",
    -3: "logits hold +inf; to force a token, set the others to −inf",
}

MAX_DRAWS = 1 << 63  # of a stream


class RandomStream:
    """Uniform numbers from the counter-based generator Philox, keyed by seed and index: those of NumPy's.

    Two requests never share a stream, so other requests cannot change its numbers. With
    `draws` it continues after so many of them, in constant time. Each is computed when it is asked for:
    a stream costs nothing to make, as when a call starts many texts in one step.

    >>> RandomStream(7).uniform() == RandomStream(7).uniform()
    True
    """

    def __init__(self, seed: int | None = None, index: int = 0, draws: int = 0) -> None:
        if seed is None:
            seed = int.from_bytes(os.urandom(8), "little") >> 1
        check_integer("seed", seed, 0, (1 << 64) - 1)
        check_integer("draws", draws, 0, MAX_DRAWS)
        self.seed = int(seed)
        self.index = index
        self.draws = draws  # how many numbers have been taken

    def uniform(self) -> float:
        """The next number, from 0 up to but not including 1."""
        number = _native.uniform(self.seed, self.index, self.draws)
        self.draws += 1
        return number

    def peek(self, n: int = 0) -> float:
        """The number that comes after the next n; none is taken."""
        return _native.uniform(self.seed, self.index, self.draws + n)

    def skip_to(self, draws: int) -> None:
        """Skip numbers that the native loop has taken."""
        self.draws = draws

    def fork(self) -> RandomStream:
        """A copy that continues with the same numbers."""
        return RandomStream(self.seed, self.index, self.draws)


@document_options(SAMPLING)
def sample(
    logits: ArrayLike,
    *,
    tokens: Sequence[int] = (),
    n_prompt: int = 0,
    rng: np.random.Generator | RandomStream | int | None = None,
    **options: Unpack[SamplingOptions],
) -> int:
    """Sample a token from `logits`: the sampler of `generate` as a function.

    `tokens` are those so far (for penalties), the first `n_prompt` of them the prompt. `rng` is a seed, a
    generator of NumPy's, or nothing for fresh randomness.

    >>> sample([0.0, 1.0, 5.0], temperature=0)
    2
    """
    params = SamplingParams(**options)
    row = np.asarray(logits)
    if row.ndim != 1 or not row.size or not np.issubdtype(row.dtype, np.number):
        raise InvalidRequest(
            f"logits must be one row of numbers, not {row.dtype} of shape {row.shape}", param="logits"
        )
    for token in tokens:
        if not 0 <= token < row.size:
            raise InvalidRequest(
                f"token {token} in tokens is not one of the {row.size} that have logits",
                param="tokens",
                value=token,
            )
    if isinstance(rng, np.random.Generator):
        uniform = rng.random()
    elif isinstance(rng, RandomStream):
        uniform = rng.uniform()
    elif rng is None or (isinstance(rng, (int, np.integer)) and not isinstance(rng, bool)):
        uniform = RandomStream(rng).uniform()
    else:
        raise wrong_value("rng", rng, "a seed, a numpy Generator or None")
    return choose(row.astype(np.float32), params, tokens, n_prompt, uniform)


def choose(
    logits: Row,
    params: SamplingParams,
    tokens: Sequence[int],
    n_prompt: int,
    uniform: float,
    mask: NDArray[np.uint32] | None = None,
) -> int:
    """The chain in native code; `uniform` is the random number it may use.

    With a mask, uint32[n_vocab / 32], only tokens whose bits are set may come; the lowest bit is the first.
    """
    if params.penalizes or params.logit_bias:
        biased, bias = bias_arrays(params, len(logits))
        past = history(params, tokens)
        token = _native.sample(logits, uniform, *params.numbers, past, n_prompt, biased, bias, mask)
    elif mask is None:
        token = _native.sample(logits, uniform, *params.numbers)
    else:
        token = _native.sample(logits, uniform, *params.numbers, mask=mask)
    if token < 0:
        raise InvalidRequest(WRONG[token])
    return token


def log_probability(logits: Row, token: int) -> float:
    """The log-probability of a token in the distribution of a row of logits."""
    return _native.log_probability(logits, token)


def history(params: SamplingParams, tokens: Sequence[int]) -> NDArray[np.int32] | None:
    """The tokens so far, if a penalty needs them."""
    return np.asarray(tokens, np.int32) if params.penalizes else None


def bias_arrays(params: SamplingParams, n_vocab: int) -> tuple[NDArray[np.int32], Row] | tuple[None, None]:
    """The biased tokens and their biases, if there are any."""
    if not params.logit_bias:
        return None, None
    worst = max(params.logit_bias)
    if worst >= n_vocab:
        raise InvalidRequest(
            f"logit_bias names token {worst}; the vocabulary ends at {n_vocab - 1}",
            param="logit_bias",
            value=worst,
        )
    tokens = np.fromiter(params.logit_bias.keys(), np.int32)
    return tokens, np.fromiter(params.logit_bias.values(), np.float32)


def choose_by_definition(
    logits: Row, params: SamplingParams, tokens: Sequence[int], n_prompt: int, uniform: float
) -> int:
    """`choose` by the plain functions of `transforms`: slow; the reference in tests."""
    row = shaped(logits, params, tokens, n_prompt)
    return int(row.argmax()) if params.temperature == 0 else transforms.draw(row, uniform)


def shaped(logits: Row, params: SamplingParams, tokens: Sequence[int], n_prompt: int) -> Row:
    """The logits that a token is drawn from: after all steps of the chain; −inf for excluded tokens."""
    row = logits
    if params.penalizes:
        row = transforms.penalize(row, tokens, n_prompt, *params.numbers[4:])
    if params.logit_bias:
        row = transforms.add_bias(row, params.logit_bias)
    if params.temperature == 0:
        return transforms.keep_top_k(row, 1)
    if params.temperature != 1.0:
        row = transforms.temper(row, params.temperature)
    if params.top_k > 0:
        row = transforms.keep_top_k(row, params.top_k)
    if params.top_p < 1.0:
        row = transforms.keep_top_p(row, params.top_p)
    if params.min_p > 0.0:
        row = transforms.keep_min_p(row, params.min_p)
    return row
