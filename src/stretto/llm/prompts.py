"""From what a caller gives (text, ids, images, a conversation) to token ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from typing import Any, cast

from stretto.cache.items import ImageLike, is_image
from stretto.engine import Engine
from stretto.errors import InvalidRequest
from stretto.llm.final import before_end, begun_reasoning, with_end
from stretto.text.arguments import check_arguments, with_reasoning
from stretto.text.parts import with_known_parts
from stretto.text.reasoning import find_format
from stretto.text.systems import fit_system
from stretto.text.template import ChatTemplate, no_template
from stretto.text.tokenizer import Tokenizer

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
                f"a prompt's parts are texts and images, not {type(part).__name__}; "
                "an image is a stretto.Image, a PIL image, an array, bytes of a file or a pathlib.Path",
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
    messages = with_known_parts(with_reasoning(messages, template), template.source)
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
