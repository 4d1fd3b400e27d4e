"""Types and base classes of schemas of bodies. Types are not converted, and unknown fields are refused."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from fastapi import Query
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema

from stretto.options.generating import OPTIONS
from stretto.options.option import taken_by
from stretto.options.parallel import OWN

Text = Annotated[str, Field(max_length=1 << 24)]
Name = Annotated[str, Field(min_length=1, max_length=256)]
ModelName = Annotated[str, Query(min_length=1, max_length=256)]
Number = Annotated[float, Field(allow_inf_nan=False)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
Tokens = Annotated[list[TokenId], Field(min_length=1, max_length=1 << 20)]
Mixed = Annotated[list[TokenId | Text], Field(min_length=1, max_length=1 << 16)]
AdapterName = Annotated[str, Field(min_length=1, max_length=64)]
AdapterScale = Annotated[float, Field(allow_inf_nan=False, ge=-1000, le=1000)]
Stop = Annotated[str, Field(min_length=1, max_length=1000)]

LABEL = "Accepted and only logged."
NEUTRAL = "Accepted, and changes nothing here."


OPTION = {option.name: option for option in (*OWN, *OPTIONS)}


def within(name: str, **own: Any) -> Any:
    """The range of a field that sets an option; `own` is what its protocol says otherwise, or besides.

    >>> within("min_p").metadata
    [Ge(ge=0), Le(le=1)]
    """
    option = OPTION[name]
    above = {} if "ge" in own else {"gt" if option.above else "ge": option.low}
    return Field(**{**above, "le": option.high, **own})


def fail_fast(schema: Any) -> None:
    """Make every list of a schema fail at its first wrong value."""
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            schema["fail_fast"] = True
        for inner in schema.values():
            fail_fast(inner)
    elif isinstance(schema, (list, tuple)):
        for inner in schema:
            fail_fast(inner)


class Body(BaseModel):
    """A body, or an object in one. Its lists fail at their first wrong value, so that errors are few."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The schema of the fields, with every list made to fail fast."""
        schema = handler(source)
        fail_fast(schema)
        return schema


class ThinkingSwitch(Body):
    """Whether the model thinks, where its template has a switch; "adaptive" leaves it to the model."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: (
        Annotated[
            int, Field(ge=1, lt=1 << 31, description="So many tokens of thinking at most; then comes text.")
        ]
        | None
    ) = None


class NumberedAdapter(Body):
    """An adapter by its number, as llama-server's clients name them."""

    id: Annotated[int, Field(ge=0, lt=1024)] = Field(description="Its place among the model's adapters.")
    scale: AdapterScale = Field(description="0 leaves it out.")


NumberedAdapters = Annotated[list[NumberedAdapter], Field(max_length=16)]
ServedName = Annotated[
    str, BeforeValidator(lambda given: "" if given is None else given), Field(max_length=256)
]


class ForModel(Body):
    """A body that names a model, or means the first one that has the verb (`lean.py` fills the name in)."""

    verb: ClassVar[str] = "generate"

    model: ServedName = Field("", description="Name of a model; without it, the first that can do this.")


PLAIN = tuple(option.name for option in taken_by(OPTIONS, "request"))


def plain_options(body: Body) -> dict[str, Any]:
    """The options that a body has fields of the same name and meaning for, as far as they are given."""
    return {name: value for name in PLAIN if (value := getattr(body, name, None)) is not None}
