"""The route of a model: what was chosen to run it, what else was possible, and why not.

print(llm.route)
    native on cpu: the only backend that competes for this model
      reference on cpu: possible; slow, for comparisons; chosen only if nothing else can run the model
      llamacpp on cpu: not possible: pip install 'stretto[llamacpp]'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

State = Literal["chosen", "possible", "refused"]


@dataclass(frozen=True)
class Option:
    """A backend on a device: whether it could run the model, and why it was chosen or was not.

    `tokens_per_second` is the decode speed by the best step of a short probe, None if it was not measured;
    `distance` is how far its log-probabilities are from the most exact candidate's, on average.
    """

    backend: str
    device: str
    state: State
    reason: str
    tokens_per_second: float | None = None
    distance: float | None = None

    @property
    def name(self) -> str:
        """As "native on cpu"."""
        return f"{self.backend} on {self.device}"

    def __str__(self) -> str:
        words = {"chosen": "", "possible": "possible; ", "refused": "not possible: "}[self.state]
        speed = "" if self.tokens_per_second is None else f" ({self.tokens_per_second:.1f} tokens a second)"
        return f"{self.name}{speed}: {words}{self.reason}"


@dataclass(frozen=True)
class Route:
    """The options for a model, the chosen one among them.

    >>> llm.route.backend, llm.route.reason
    ('native', 'the only backend that competes for this model')
    """

    options: tuple[Option, ...]

    @property
    def chosen(self) -> Option:
        """The option that runs the model."""
        return next(option for option in self.options if option.state == "chosen")

    @property
    def others(self) -> tuple[Option, ...]:
        """All options but the chosen one."""
        return tuple(option for option in self.options if option.state != "chosen")

    @property
    def backend(self) -> str:
        """The chosen backend."""
        return self.chosen.backend

    @property
    def device(self) -> str:
        """The chosen device."""
        return self.chosen.device

    @property
    def reason(self) -> str:
        """Why it was chosen."""
        return self.chosen.reason

    def as_data(self) -> list[dict[str, Any]]:
        """The options as plain data, for JSON."""
        return [dict(vars(option)) for option in self.options]

    def __str__(self) -> str:
        return "\n  ".join(map(str, (self.chosen, *self.others)))
