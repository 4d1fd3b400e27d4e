"""The sampling parameters of a request, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

import numpy as np

from stretto.errors import InvalidRequest
from stretto.options.documenting import documented
from stretto.options.generating import SAMPLING
from stretto.options.option import check_integer, check_number

__all__ = ["SamplingParams", "check_integer", "check_number"]  # the checks serve other parameters too

NO_BIAS: Mapping[int, float] = MappingProxyType({})


@documented(SAMPLING)
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
        bias = NO_BIAS if self.logit_bias is None else self.logit_bias
        if not isinstance(bias, Mapping):
            raise InvalidRequest(
                f"logit_bias must map token ids to numbers, not be {bias!r}", param="logit_bias", value=bias
            )
        for token, value in bias.items():
            check_integer("a token of logit_bias", token, 0, 1 << 31, param="logit_bias")
            if (
                isinstance(value, bool)
                or not isinstance(value, (int, float))
                or value != value
                or value == np.inf
            ):
                raise InvalidRequest(
                    f"logit_bias of token {token} must be a number or −inf, not {value!r}",
                    param="logit_bias",
                    value=value,
                )

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
