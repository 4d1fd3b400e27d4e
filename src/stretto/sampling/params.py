"""The sampling parameters of a request, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from types import MappingProxyType

import numpy as np

from stretto.errors import InvalidRequest
from stretto.options.documenting import documented
from stretto.options.generating import SAMPLING
from stretto.options.other_values import value_remedy

MIN_TEMPERATURE = 1e-6  # smaller numbers overflow when logits are divided by them as floats

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
        check_temperature(self.temperature)
        check_integer("top_k", self.top_k, 0, 1 << 31)
        check_number("top_p", self.top_p, 0.0, 1.0, open_low=True)
        check_number("min_p", self.min_p, 0.0, 1.0)
        check_number("repetition_penalty", self.repetition_penalty, MIN_TEMPERATURE, 100.0)
        check_number("presence_penalty", self.presence_penalty, -100.0, 100.0)
        check_number("frequency_penalty", self.frequency_penalty, -100.0, 100.0)
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


def check_temperature(value: float) -> None:
    """Raise `InvalidRequest` unless `value` is a temperature that can be divided by, or 0."""
    check_number("temperature", value, 0.0, 100.0)
    if 0 < value < MIN_TEMPERATURE:
        raise InvalidRequest(
            f"temperature must be 0 or at least {MIN_TEMPERATURE:g}, not {value!r}",
            param="temperature",
            value=value,
        )


def check_number(
    name: str, value: float, low: float, high: float, *, open_low: bool = False, param: str | None = None
) -> None:
    """Raise `InvalidRequest` unless `value` is a finite number in [low, high], or (low, high]."""
    fine = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not fine or not isfinite(value) or not low <= value <= high or (open_low and value == low):
        above = f"above {low:g}" if open_low else f"from {low:g}"
        raise InvalidRequest(
            f"{name} must be a number {above} to {high:g}, not {value!r}{value_remedy(name, value)}",
            param=param or name,
            value=value,
        )


def check_integer(name: str, value: int, low: int, high: int, *, param: str | None = None) -> None:
    """Raise `InvalidRequest` unless `value` is an integer in [low, high].

    `name` is how the message calls it; `param` the parameter it belongs to, if that is another one.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
        raise InvalidRequest(
            f"{name} must be an integer from {low} to {high}, not {value!r}{value_remedy(name, value)}",
            param=param or name,
            value=value,
        )
