"""Options as a value: checked once, passed around, combined with keywords."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from stretto.engine.branch import branching
from stretto.engine.params import per_prompt, request_params
from stretto.errors import InvalidRequest
from stretto.options.documenting import documented
from stretto.options.generating import OPTIONS
from stretto.text.arguments import check_mapping

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from stretto.options.keywords import OptionKeywords

MAX_TOKEN = 1 << 31  # a token id that any vocabulary could have; the model itself checks the rest


@documented(OPTIONS)
class Options(Mapping[str, Any]):
    """Options of `generate`, `stream` and `chat`, as a value. Keywords of a call win over it.

        opts = stretto.Options(temperature=0.2, stop=["\\n"])
        llm.generate("Hi", opts, seed=7)
        colder = opts | {"temperature": 0}

    Names and values are checked when it is made.
    """

    def __init__(self, **options: Unpack[OptionKeywords]) -> None:
        self._options: dict[str, Any] = dict(options)
        _, rest = branching(self._options)
        if (arguments := rest.pop("template", None)) is not None:
            check_mapping(arguments)
        request_params(rest, MAX_TOKEN)

    def __getitem__(self, name: str) -> Any:
        return self._options[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._options)

    def __len__(self) -> int:
        return len(self._options)

    def __or__(self, other: Mapping[str, Any]) -> Options:
        return Options(**{**self._options, **other})

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self._options.items())
        return f"Options({inside})"


def combined(options: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a call: those of a value, if one was given, under its keywords."""
    if options is None:
        return dict(keywords)
    if isinstance(options, (list, tuple)):
        raise InvalidRequest(
            f"options must be one stretto.Options, for all prompts, not a {type(options).__name__}; "
            + per_prompt("llm.stream(prompt, options)"),
            param="options",
            value=options,
        )
    if not isinstance(options, Options):
        raise InvalidRequest(
            f"options must be a stretto.Options, not {type(options).__name__}; pass others by name",
            param="options",
            value=options,
        )
    return {**options, **keywords}
