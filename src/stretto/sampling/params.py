"""The sampling parameters of a request, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from stretto.errors import InvalidRequest
from stretto.options.documenting import document_options
from stretto.options.generating import SAMPLING
from stretto.options.option import check_integer, check_number

__all__ = [
    "SamplingParams",
    "check_bias",
    "check_integer",
    "check_number",
]  # the checks serve other parameters too

MAX_TOKEN = 1 << 31


def check_bias(name: str, bias: object, most: int = MAX_TOKEN) -> None:
    """Raise unless it is a mapping of token ids, up to `most`, to numbers or −inf."""
    if not isinstance(bias, Mapping):
        raise InvalidRequest(f"{name} must map token ids to numbers, not be {bias!r}", param=name, value=bias)
    for token, value in bias.items():
        check_integer(f"a token of {name}", token, 0, most, param=name)
        is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        if not is_number or value != value or value == np.inf:
            message = f"{name} of token {token} must be a number or −inf, not {value!r}"
            raise InvalidRequest(message, param=name, value=value)


@document_options(SAMPLING)
@dataclass(frozen=True)
class SamplingParams:
    """Parameters of the sampling chain.

    >>> SamplingParams(temperature=0.7, top_p=0.9).top_k
    40
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        for option in SAMPLING:
            option.check(getattr(self, option.name))
        if self.logit_bias is not None:
            check_bias("logit_bias", self.logit_bias)

    @cached_property
    def penalizes(self) -> bool:
        """Whether any penalty is set."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)

    @cached_property
    def numbers(self) -> tuple[float, int, float, float, float, float, float]:
        """The numbers of the chain, in the order of the native code."""
        return (
            self.temperature,
            self.top_k,
            self.top_p,
            self.min_p,
            self.repetition_penalty,
            self.presence_penalty,
            self.frequency_penalty,
        )
