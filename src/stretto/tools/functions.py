"""Python functions as tools: their descriptions by their names, docstrings and types."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from stretto.errors import InvalidRequest


def describe_function(function: Callable[..., Any], where: str = "tools") -> dict[str, Any]:
    """The description of a function: its docstring, and a JSON schema of its parameters by their types.

    `Annotated[str, pydantic.Field(description=…, max_length=…)]` says more about a parameter.

    >>> def add(a: int, b: int = 0) -> int:
    ...     "Add two numbers."
    ...     return a + b
    >>> describe_function(add)["parameters"]["required"]
    ['a']
    """
    name = getattr(function, "__name__", type(function).__name__)
    _check_parameters(function, name, where)
    from pydantic import PydanticUserError, TypeAdapter  # here: chats without such tools do not need it

    try:
        signature: Any = function  # pydantic makes types of signatures, which its own types do not say
        schema = TypeAdapter(signature).json_schema()
    except (PydanticUserError, NameError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidRequest(
            f"{where}: the types of {name} have no JSON schema ({reason}); describe it by a dict", param=where
        ) from None
    return {
        "name": name,
        "description": inspect.getdoc(function) or "",
        "parameters": _without_titles(schema),
    }


def _check_parameters(function: Callable[..., Any], name: str, where: str) -> None:
    """Raise unless all parameters can be given by name, as a call gives them."""
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InvalidRequest(
                f"{where}: {name} has the parameter {str(parameter)!r}; calls give arguments by name, "
                "so name each of them, or describe the function by a dict",
                param=where,
            )


def _without_titles(schema: Any) -> Any:
    """A schema without the titles that pydantic adds: they repeat names, and cost tokens of the prompt."""
    if isinstance(schema, list):
        return [_without_titles(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {}
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            found[key] = {name: _without_titles(one) for name, one in value.items()}
        elif key in ("default", "enum", "const", "examples"):
            found[key] = value
        elif key != "title":
            found[key] = _without_titles(value)
    return found
