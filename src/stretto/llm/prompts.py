"""From what a caller gives (text, ids, images, a conversation) to token ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Sequence as Seq
from typing import Any, cast
from weakref import WeakKeyDictionary

from stretto.cache.items import ImageLike, is_image
from stretto.engine import Engine
from stretto.errors import InvalidRequest, StrettoError
from stretto.text.messages import FIELDS, check_arguments, with_known_parts, with_reasoning
from stretto.text.reasoning import find_format
from stretto.text.template import ChatTemplate, no_template
from stretto.text.tokenizer import Tokenizer

# Conversations that end within a message of the assistant: the model goes on where its text ends.
#
# The text gets a mark at its end, and what the template writes from the mark on is left out. So whatever a
# template does with the text before it (reasoning, white space), the prompt is what the model has seen
# there.

MARK = "\u2063stretto\u2063end\u2063"  # between invisible separators; the last one found is ours


def with_end(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages, with a mark at the end of the last one's text, or of its reasoning if it has no text."""
    last = messages[-1] if isinstance(messages, (list, tuple)) and messages else None
    text = last.get("content") if isinstance(last, Mapping) else None
    name = begun_reasoning(messages)
    if isinstance(last, Mapping) and name and _is_answer(last):
        return [*messages[:-1], {**last, "content": "", name: last[name] + MARK}]
    if not isinstance(last, Mapping) or not isinstance(text, str) or not _is_answer(last):
        raise InvalidRequest(
            "the last message cannot be continued: it has to be one of the assistant, with a text and "
            "without tool calls",
            param="messages",
        )
    return [*messages[:-1], {**last, "content": text + MARK}]


def begun_reasoning(messages: Sequence[Mapping[str, Any]]) -> str:
    """The field of the reasoning with which a conversation ends; empty if it ends with anything else."""
    last = messages[-1] if isinstance(messages, (list, tuple)) and messages else None
    if not isinstance(last, Mapping) or last.get("content"):
        return ""
    return next((name for name in FIELDS if last.get(name) and isinstance(last[name], str)), "")


def _is_answer(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "assistant" and not message.get("tool_calls")


def before_end(parts: Sequence[Any]) -> list[Any]:
    """The parts of a rendered conversation before the mark."""
    for at in range(len(parts) - 1, -1, -1):
        if isinstance(part := parts[at], str) and MARK in part:
            text = part[: part.rindex(MARK)]
            return [*parts[:at], *([text] if text else [])]
    raise InvalidRequest(
        "this model's chat template does not write the last message as it is, so it cannot be continued",
        param="messages",
    )


# System messages that a template drops or refuses: they become part of the first turn of the user.
#
# Found by rendering a short conversation with a system message, once for each template.

Messages = Sequence[Mapping[str, Any]]

SYSTEM = ("system", "developer")
_MARK = "stretto_system_text"
_takes: WeakKeyDictionary[ChatTemplate, dict[tuple[str, bool], bool]] = WeakKeyDictionary()


def fit_system(template: ChatTemplate, messages: Messages, has_tools: bool = False) -> Messages:
    """Messages in which no system message is lost.

    A developer's message is a system message where the template knows no developers.
    """
    if not isinstance(messages, (list, tuple)) or not any(map(_is_system, messages)):
        return messages
    if not _takes_role(template, "developer", has_tools):
        messages = [{**message, "role": "system"} if _is_system(message) else message for message in messages]
    if _takes_role(template, "system", has_tools) and not _loses_after_tools(template, messages, has_tools):
        return messages
    return merge_system(messages)


def merge_system(messages: Messages) -> Messages:
    """Messages with each system message at the start of the next turn of the user.

    >>> merge_system([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
    [{'role': 'user', 'content': 'Be brief.\\n\\nHi'}]
    """
    found: list[Mapping[str, Any]] = []
    waiting: list[str] = []
    for message in messages:
        if _is_system(message):
            waiting.append(_text(message.get("content")))
        elif waiting and message.get("role") == "user":
            found.append({**message, "content": _after("\n\n".join(waiting), message.get("content"))})
            waiting = []
        else:
            found.append(message)
    if waiting:  # nobody speaks after it
        found.append({"role": "user", "content": "\n\n".join(waiting)})
    return found


def _takes_role(template: ChatTemplate, role: str, has_tools: bool) -> bool:
    """Whether a template writes a message of a role."""
    known = _takes.setdefault(template, {})
    if (role, has_tools) not in known:
        messages = [{"role": role, "content": _MARK}, {"role": "user", "content": "x"}]
        tools = [{"type": "function", "function": _FUNCTION}] if has_tools else None
        try:
            known[role, has_tools] = _MARK in template.render(messages, tools=tools)
        except StrettoError:
            known[role, has_tools] = False
    return known[role, has_tools]


_FUNCTION = {"name": "f", "description": "x", "parameters": {"type": "object", "properties": {}}}


def _loses_after_tools(template: ChatTemplate, messages: Messages, has_tools: bool) -> bool:
    """Whether a template that takes system messages drops them where a tool has spoken last."""
    if messages[-1].get("role") != "tool":
        return False
    known = _takes.setdefault(template, {})
    if ("tool", has_tools) not in known:
        call = {"id": "Stretto01", "type": "function", "function": {"name": "f", "arguments": {}}}
        turns: list[dict[str, Any]] = [
            {"role": "system", "content": _MARK},
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": "f", "tool_call_id": "Stretto01", "content": "x"},
        ]
        tools = [{"type": "function", "function": _FUNCTION}] if has_tools else None
        try:
            known["tool", has_tools] = _MARK not in template.render(turns, tools=tools)
        except StrettoError:
            known["tool", has_tools] = False
    return known["tool", has_tools]


def _is_system(message: object) -> bool:
    return isinstance(message, Mapping) and message.get("role") in SYSTEM


def _text(content: Any) -> str:
    if isinstance(content, (list, tuple)):
        parts = [part.get("text", "") if isinstance(part, Mapping) else part for part in content]
        return "\n".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _after(text: str, content: Any) -> Any:
    """The content of a message with a text before it."""
    if isinstance(content, (list, tuple)):
        return [{"type": "text", "text": f"{text}\n\n"}, *content]
    return f"{text}\n\n{content}" if content else text


Parts = tuple[str | ImageLike, ...]
OnePrompt = str | list[int] | Parts
Prompt = str | Seq[int] | Parts
Message = Mapping[str, Any]


def prompt_ids(engine: Engine, prompt: Prompt, salt: str | None = None, param: str = "prompt") -> list[int]:
    """The token ids of a prompt; text gets the BOS token if the model asks for one. `salt` is for images.

    `param` is the parameter that holds it, for errors.
    """
    if isinstance(prompt, str):
        return engine.tokenizer.encode(prompt, special=True)
    if isinstance(prompt, tuple) and prompt:
        return _part_ids(engine, prompt, salt)
    _check_kind(prompt, param)
    return engine.runner.check_tokens(cast(Seq[int], prompt), param)


def _check_kind(prompt: object, param: str) -> None:
    """Raise for what cannot be token ids, with the call that takes it where there is one."""
    is_list = isinstance(prompt, list)
    first = prompt[0] if isinstance(prompt, list) and prompt else prompt
    if is_list and isinstance(first, int):
        return
    if isinstance(first, Mapping):
        hint = "; llm.chat takes a list of messages"
    elif is_list and isinstance(first, str):
        hint = "; a list of prompts is for llm.generate, and each of them can have a stream of its own"
    elif isinstance(first, bytes):
        hint = "; decode bytes to a text first, or give those of an image in a tuple"
    elif is_image(first):
        hint = '; a text and images are a tuple: ("What is this?", image)'
    elif not isinstance(prompt, Iterable):
        hint = ""
    else:
        return
    raise InvalidRequest(
        f"{param} must be a text, a list of token ids, or a tuple of texts and images, "
        f"not {prompt!r:.100}{hint}",
        param=param,
        value=prompt,
    )


def _part_ids(engine: Engine, parts: tuple[object, ...], salt: str | None) -> list[int]:
    """The tokens of texts and images, one behind the other."""
    from stretto.vision.chat import check_count

    check_count("prompt", sum(map(is_image, parts)))
    tokenizer = engine.tokenizer
    ids = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    for part in parts:
        if isinstance(part, str):
            ids += tokenizer.encode(part, special=True, bos=False)
        elif is_image(part):
            ids += engine.runner.image_tokens(part, salt)
        else:
            raise InvalidRequest(
                f"a prompt's parts are texts, images and sounds, not {type(part).__name__}; "
                "an image is a stretto.Image, a PIL image, an array, bytes of a file or a pathlib.Path, a "
                "sound a stretto.Audio",
                param="prompt",
            )
    return ids


def conversation_ids(
    engine: Engine,
    template: ChatTemplate | None,
    messages: Seq[Message],
    arguments: Mapping[str, Any] | None,
    variables: Mapping[str, Any],
    salt: str | None = None,
    continue_final: bool = False,
) -> list[int]:
    """The ids of a conversation, as the model's template writes it with these arguments.

    With `continue_final` they end where the text of the last message does, for the model to go on with it.
    """
    template, given = known_template(template), messages
    if continue_final:
        messages, variables = with_end(messages), {**variables, "add_generation_prompt": False}
    if arguments:
        variables = {**variables, **check_arguments(template, arguments)}
    tokenizer = engine.tokenizer
    hears = engine.runner.images is not None and engine.runner.images.hears
    messages = with_known_parts(with_reasoning(messages, template), template.source, hears)
    tools, has_any = variables.get("tools"), False
    if tools or not _are_texts(messages):
        from stretto.tools.history import fit_calls
        from stretto.vision.chat import has_images, place_images

        messages, tools = fit_calls(template, tokenizer, messages, tools)
        has_any = has_images(messages)
    messages = fit_system(template, messages, bool(tools))
    variables = {**variables, "tools": tools}
    parts: Iterable[str | int | ImageLike]
    if has_any:
        parts = place_images(template, messages, tokenizer.specials, variables)
    elif continue_final and begun_reasoning(given):
        parts = _within_reasoning(template, tokenizer, messages, given, variables)
    else:
        parts = template.parts(messages, **variables)
    if continue_final and not begun_reasoning(given):
        parts = before_end(list(parts))
    ids: list[int] = []
    for part in parts:
        if isinstance(part, int):
            ids.append(part)
        elif isinstance(part, str):
            ids += tokenizer.encode(part, after=ids[-1] if ids else None)
        else:
            ids += engine.runner.image_tokens(part, salt)
    return ids


def _are_texts(messages: object) -> bool:
    """Whether messages hold nothing but texts: neither images nor calls, whose modules are large."""
    return isinstance(messages, (list, tuple)) and all(
        isinstance(message, Mapping)
        and isinstance(message.get("content"), str)
        and not message.get("tool_calls")
        and message.get("role") != "tool"
        for message in messages
    )


def _within_reasoning(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Seq[Message],
    given: Seq[Message],
    variables: Mapping[str, Any],
) -> list[str | int]:
    """The parts of a conversation up to the end of the reasoning in its last message.

    Where the template leaves that out, it is written behind the prompt, as the model would.
    """
    try:
        return before_end(template.parts(messages, **variables))
    except InvalidRequest:
        layout = find_format(template.source)
        if layout is None or not layout.blocks:
            raise
    options = {**variables, "add_generation_prompt": True}
    prompt = template.parts(messages[:-1], **options)
    opening = layout.blocks[0][0]
    if not template.render(messages[:-1], **options).rstrip().endswith(opening):
        prompt += tokenizer.encode(opening, special=True, bos=False)
    return [*prompt, str(given[-1][begun_reasoning(given)])]


def known_template(template: ChatTemplate | None) -> ChatTemplate:
    """The model's chat template; raises if it has none."""
    if template is None:
        raise no_template()
    return template
