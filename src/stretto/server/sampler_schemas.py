"""Fields of samplers as llama-server's clients send them, on every endpoint that generates.

They send all that they know: those of samplers that Stretto lacks are accepted while they are off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator, Field

from stretto.server.schema_base import NEUTRAL, ForModel, Number, Text, within

OFF = "Accepted while it is off."


def _only(off: float) -> Callable[[float], float]:
    """A check for the value at which a sampler changes nothing."""

    def check(value: float) -> float:
        if value != off:
            raise ValueError(f"this sampler is not supported; leave it out, or give {off:g}")
        return value

    return check


OffAtZero = Annotated[
    Number, AfterValidator(_only(0)), Field(description=OFF, json_schema_extra={"minimum": 0, "maximum": 0})
]
OffAtOne = Annotated[
    Number, AfterValidator(_only(1)), Field(description=OFF, json_schema_extra={"minimum": 1, "maximum": 1})
]
Unused = Annotated[Number, Field(description=f"{NEUTRAL} Its sampler is off.")]
Words = Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=64)]


class LlamaSamplers(ForModel):
    """The fields of samplers that llama-server's clients send to every endpoint that generates."""

    repeat_penalty: Annotated[Number, within("repetition_penalty")] | None = Field(
        None, description="As repetition_penalty."
    )
    repeat_last_n: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = Field(
        None, description="-1 with a repeat_penalty, which looks at the whole text; 0 turns it off."
    )
    samplers: Annotated[Words | Text, Field(description=NEUTRAL)] | None = None
    min_keep: Annotated[int, Field(ge=0, description=NEUTRAL)] | None = None
    backend_sampling: Annotated[bool, Field(description=NEUTRAL)] | None = None
    typical_p: OffAtOne | None = None
    typ_p: OffAtOne | None = None
    mirostat: OffAtZero | None = None
    mirostat_tau: Unused | None = None
    mirostat_eta: Unused | None = None
    dynatemp_range: OffAtZero | None = None
    dynatemp_exponent: Unused | None = None
    xtc_probability: OffAtZero | None = None
    xtc_threshold: Unused | None = None
    dry_multiplier: OffAtZero | None = None
    dry_base: Unused | None = None
    dry_allowed_length: Unused | None = None
    dry_penalty_last_n: Unused | None = None
    dry_sequence_breakers: Annotated[Words, Field(description=NEUTRAL)] | None = None
    adaptive_target: Annotated[Number, Field(lt=0, description=OFF)] | None = None
    adaptive_decay: Unused | None = None
    top_n_sigma: Annotated[Number, Field(le=0, description=OFF)] | None = None
