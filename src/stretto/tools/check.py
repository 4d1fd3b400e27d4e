"""The tools and the choice among them that a request names, checked."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stretto.errors import InvalidRequest, param_error, wrong_value
from stretto.structured.checks import check_schema
from stretto.structured.rewrite import close_objects

# Python functions as tools: their descriptions by their names, docstrings and types.


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
        raise param_error(
            where, f"the types of {name} have no JSON schema ({reason}); describe it by a dict"
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
            raise param_error(
                where,
                f"{name} has the parameter {str(parameter)!r}; calls give arguments by name, "
                "so name each of them, or describe the function by a dict",
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


Tools = Sequence[Mapping[str, Any] | Callable[..., Any]]
Choice = str | Mapping[str, Any]

MAX_TOOLS = 256
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True)
class Tool:
    """A function the model may call; `schema` is the text of the JSON schema of its arguments."""

    name: str
    schema: str
    description: Mapping[str, Any]  # as templates want it: {"type": "function", "function": …}


def check_tools(tools: Tools) -> list[Tool]:
    """The tools of a request; `InvalidRequest` names the one that is wrong."""
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Sequence):
        raise wrong_value("tools", tools, "a list of functions or descriptions")
    if not 1 <= len(tools) <= MAX_TOOLS:
        raise InvalidRequest(f"tools has {len(tools)} entries; there may be 1 to {MAX_TOOLS}", param="tools")
    checked = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools)]
    names = [tool.name for tool in checked]
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequest(
                f"tools has two functions called {name!r}; names tell them apart", param="tools", value=name
            )
    return checked


def check_choice(choice: Choice | None, tools: list[Tool]) -> tuple[str, list[Tool]]:
    """The mode of the choice ("auto", "none" or "required"), and the tools to choose from."""
    if choice is None or choice in ("auto", "none", "required"):
        return (choice if isinstance(choice, str) else "auto"), tools
    if isinstance(choice, str) and any(tool.name == choice for tool in tools):
        choice = {"type": "function", "name": choice}
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        function = choice.get("function")
        name = function.get("name") if isinstance(function, Mapping) else choice.get("name")
        for tool in tools:
            if tool.name == name:
                return "required", [tool]
        names = ", ".join(tool.name for tool in tools)
        raise InvalidRequest(
            f"tool_choice names the function {name!r}; tools has {names}", param="tool_choice", value=choice
        )
    raise InvalidRequest(
        'tool_choice must be "auto", "none", "required" or a function by name, '
        f"not {choice!r:.100}; tools has {', '.join(tool.name for tool in tools)}",
        param="tool_choice",
        value=choice,
    )


def _tool(tool: Any, where: str) -> Tool:
    if not isinstance(tool, Mapping):
        if not callable(tool):
            raise wrong_value(where, tool, "a function or a dict")
        tool = describe_function(tool, where)
    kind = tool.get("type", "function")
    if kind != "function":
        raise InvalidRequest(
            f'{where} has the type {kind!r}; only "function" is supported', param=where, value=kind
        )
    function = tool.get("function", tool)
    if not isinstance(function, Mapping):
        raise InvalidRequest(
            f"{where} has a function that is no dict: {function!r:.100}", param=where, value=function
        )
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{where} has the name {name!r:.100}; a name has 1 to 64 letters, digits, _ . -",
            param=where,
            value=name,
        )
    parameters = function.get("parameters")
    if parameters is None:
        parameters = {"type": "object", "properties": {}}
    if not isinstance(parameters, Mapping):
        raise InvalidRequest(
            f"{where} ({name}) has parameters that are no JSON schema: {parameters!r:.100}",
            param=where,
            value=parameters,
        )
    try:
        schema = check_schema(_closed(parameters))
        if function.get("strict") is True:
            schema = check_schema(close_objects(json.loads(schema)))
    except InvalidRequest as error:
        raise InvalidRequest(f"{where} ({name}): {error}", param=where) from None
    described = {"description": "", **function, "parameters": parameters}
    return Tool(name, schema, {"type": "function", "function": described})


def _closed(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A schema of arguments: an object without additional properties, unless it allows them."""
    closed = {"type": "object", **parameters}
    if "$ref" not in closed and "patternProperties" not in closed:
        closed.setdefault("additionalProperties", False)
    return closed
