"""Python functions as tools: described by their names, docstrings and types, and called by name."""

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from stretto import InvalidRequest
from stretto.testing import mock_llm
from stretto.tools import call_grammar
from stretto.tools.check import describe_function

MESSAGES = [{"role": "user", "content": "Is it cold in Oslo?"}]


class Place(BaseModel):
    town: str
    title: str = "none"


def weather(town: Annotated[str, Field(description="Its name.")], unit: Literal["C", "F"] = "C") -> str:
    """The weather in a town."""
    return f"{town}: 3 °{unit}"


def test_a_function_is_described_by_its_types():
    assert describe_function(weather) == {
        "name": "weather",
        "description": "The weather in a town.",
        "parameters": {
            "type": "object",
            "properties": {
                "town": {"type": "string", "description": "Its name."},
                "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
            },
            "required": ["town"],
            "additionalProperties": False,
        },
    }


def test_a_property_called_title_stays():
    def visit(place: Place) -> None: ...

    parameters = describe_function(visit)["parameters"]
    assert set(parameters["$defs"]["Place"]["properties"]) == {"town", "title"}
    assert "title" not in parameters["$defs"]["Place"]


def test_a_function_is_called_by_name():
    llm = mock_llm('{"name": "weather", "arguments": {"town": "Oslo", "unit": "C"}}')
    for choice in (None, "required", "weather"):
        (call,) = llm.chat(MESSAGES, tools=[weather], tool_choice=choice, temperature=0).tool_calls
        assert weather(**call.arguments) == "Oslo: 3 °C"


def test_functions_and_descriptions_make_one_grammar():
    assert call_grammar([weather, {"name": "now"}]).kind == "json"


def test_functions_that_no_call_can_give_arguments_to_are_refused():
    class Opaque:
        pass

    def positional(a: int, /) -> None: ...

    def variable(*items: int) -> None: ...

    def opaque(a: Opaque) -> None: ...

    for function, reason in ((positional, "by name"), (variable, "by name"), (opaque, "no JSON schema")):
        with pytest.raises(InvalidRequest, match=reason) as caught:
            mock_llm("x").chat(MESSAGES, tools=[function])
        assert caught.value.param == "tools[0]"


def test_a_choice_of_no_tool_names_those_there_are():
    with pytest.raises(InvalidRequest, match="tools has weather"):
        mock_llm("x").chat(MESSAGES, tools=[weather], tool_choice="wether")
