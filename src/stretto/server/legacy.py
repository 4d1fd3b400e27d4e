"""`functions` and `function_call`, which OpenAI's clients sent before there were tools."""

from __future__ import annotations

from typing import Any

from stretto import Result, Token
from stretto.server.calls import openai_calls
from stretto.server.errors import ApiError, dumps
from stretto.server.schemas import ChatRequest, Message, NamedFunction, NamedTool, Tool, ToolCall
from stretto.server.shapes import ChatShape, Shape, quoted, text_fields


def with_tools(body: ChatRequest) -> ChatRequest:
    """A chat request whose functions, and the messages about them, are those of tools."""
    messages = _messages(body.messages)
    if body.functions is None:
        if body.function_call is not None:
            raise ApiError(400, "function_call needs functions", param="function_call", code="invalid_value")
        return body if messages is body.messages else body.model_copy(update={"messages": messages})
    if body.tools is not None or body.tool_choice is not None:
        raise ApiError(400, "functions and tools say the same; give tools", param="functions")
    choice: Any = body.function_call
    if isinstance(choice, NamedFunction):
        choice = NamedTool(type="function", function=choice)
    tools = [Tool(type="function", function=function) for function in body.functions]
    changed = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": False}
    changed |= {"functions": None, "function_call": None}
    return body.model_copy(update={**changed, "messages": messages})


def _messages(messages: list[Message]) -> list[Message]:
    """Messages with calls and results as those of tools; the ids that connect them are made here."""
    if not any(message.role == "function" or message.function_call for message in messages):
        return messages
    found: list[Message] = []
    last: dict[str, str] = {}  # the id of the last call of each function
    for number, message in enumerate(messages):
        if (call := message.function_call) is not None:
            last[call.name] = name = f"call{number:05}"
            tool_call = ToolCall(id=name, type="function", function=call)
            message = message.model_copy(update={"tool_calls": [tool_call], "function_call": None})
        elif message.role == "function":
            answered = last.get(message.name or "")
            if answered is None:
                param = f"messages[{number}].name"
                raise ApiError(
                    400,
                    f"{param} names no function that was called before",
                    param=param,
                    code="invalid_value",
                )
            message = message.model_copy(update={"role": "tool", "tool_call_id": answered})
        found.append(message)
    return found


class FunctionShape(ChatShape):
    """The shape of answers to a request with `functions`: one call at most, and it has no id."""

    streams_arguments = False

    def reason(self, index: int, result: Result) -> str:
        """A text with a call ends with it, unless it was cut behind it."""
        reason = super().reason(index, result)
        return "function_call" if reason == "tool_calls" else reason

    def choice(self, index: int, result: Result) -> dict[str, Any]:
        """A whole message."""
        found = super().choice(index, result)
        if calls := found["message"].pop("tool_calls", None):
            found["message"]["function_call"] = calls[0]["function"]
        return found

    def piece(self, index: int, token: Token) -> str:
        """A token as the fields of a chunk's choice; a call comes at the end."""
        if self._plan.reader is not None:
            token = token._replace(text=self._watcher(index).push(token))
        if not token.text or (token.is_reasoning and self.hides_reasoning):
            return ""
        logprobs = "null" if self.tops is None else dumps(self.logprobs([token]))
        said = text_fields(quoted(token.text), token.is_reasoning)
        return f'"delta":{{{said}}},"logprobs":{logprobs}{self.piece_ids(token)}'

    def ending(self, index: int, result: Result) -> list[str]:
        """The text that was held back, the call, and the last chunk."""
        if self._plan.reader is None:
            return Shape.ending(self, index, result)
        rest, result = self._watcher(index).end(result)
        deltas: list[dict[str, Any]] = [{"content": rest}] if rest else []
        if calls := openai_calls(result):
            deltas.append({"function_call": calls[0]["function"]})
        fields = {"logprobs": None, "finish_reason": None}
        choices = [{"index": index, "delta": delta, **fields} for delta in deltas]
        return [*(dumps({"choices": [one]})[1:] for one in choices), *Shape.ending(self, index, result)]
