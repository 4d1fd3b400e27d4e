"""From a request's body to what routing looks at. Bodies are hostile, and nothing here raises.

Where the model's tokenizer is known, the keys are those of token blocks, as replicas report them. Elsewhere
they are hashes of the text, which the router remembers by itself: enough to send a conversation where it was
before, but not to know what has been evicted since.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from pydantic import ValidationError

from stretto.deploy.policy import Ask
from stretto.deploy.prefixes import KEY_BYTES, block_keys, chain, hash_tenant, saved_key, seed
from stretto.engine import Engine
from stretto.errors import InvalidRequest
from stretto.llm import LLM
from stretto.llm.prompts import conversation_ids, known_template
from stretto.server.anthropic import endpoints
from stretto.server.anthropic.schemas import MessagesRequest
from stretto.server.generation.chat import (
    as_message,
    find_thinking,
    fit_arguments,
    name_answers,
    replace_functions,
)
from stretto.server.generation.requests import ChatRequest, TextPart
from stretto.server.openai import responses_request
from stretto.server.openai.responses_request import ResponseRequest
from stretto.text.loading import load_gguf_template, load_gguf_tokenizer
from stretto.text.messages import thinking_arguments
from stretto.text.template import ChatTemplate
from stretto.text.tokenizer import Tokenizer
from stretto.tools.check import check_choice, check_tools
from stretto.weights.folder import open_weights

# A request's body as the token ids of its prompt, made without the model's weights.
#
#     model = TextModel.open(path)                     # tokenizer and chat template: megabytes, not gigabytes
#     model.tokens({"messages": [{"role": "user", "content": "Hello"}]})
#
# They are the ids that the server makes of the same body, by its own code. A router sees neither the path nor
# the headers of a request, so the protocol is told by the body's fields: OpenAI's, Anthropic's and Ollama's
# chats, OpenAI's responses, and plain prompts. What cannot be made (an image, a wrong field) ends the prompt
# or raises; the caller takes that as a prompt without known tokens.


MEMO_CHARACTERS = 4_000_000  # of texts whose ids are remembered
NEW_CHARACTERS = 12_000  # of a request that are encoded, beside those remembered: about 6 ms
MAX_TOKENS = 1 << 18
CUT_TOKENS = 16  # at the end of a text that is cut
CUT = -1  # in place of tokens that were not made

# The fields of a chat request that its prompt is made of.
PROMPT_FIELDS = (
    *("messages", "tools", "tool_choice", "functions", "function_call", "reasoning_effort"),
    *("chat_template_kwargs", "add_generation_prompt", "continue_final_message"),
)
OLLAMA_FIELDS = frozenset(("options", "keep_alive", "raw", "template", "context"))

Body = Mapping[str, Any]


class TextModel:
    """The tokenizer and the chat template of a model. For one thread at a time."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self.tokenizer = _Remembering(tokenizer)
        self._template = template
        self._engine = cast(
            Engine, SimpleNamespace(tokenizer=self.tokenizer, runner=SimpleNamespace(images=None))
        )

    @classmethod
    def open(cls, path: str | Path) -> TextModel:
        """Those of a model's file or folder."""
        with open_weights(Path(path)) as file:
            tokenizer = load_gguf_tokenizer(file)
            return cls(tokenizer, load_gguf_template(file, tokenizer))

    def tokens(self, body: Body) -> list[int]:
        """The ids of the prompt, up to its first image or sound, or as far as there is time for.

        Raises if there is no such prompt.
        """
        self.tokenizer.left = NEW_CHARACTERS
        found = self._all_tokens(body)
        return found[: found.index(CUT)] if CUT in found else found

    def _all_tokens(self, body: Body) -> list[int]:
        if "messages" in body:
            return self._messages(body)
        if "input" in body:
            request = ResponseRequest.model_validate(body)
            if request.previous_response_id is not None:
                raise InvalidRequest("the conversation is not in the body", param="previous_response_id")
            return self._chat(responses_request.as_chat(request, responses_request.list_items(request)))
        if OLLAMA_FIELDS.isdisjoint(body) or body.get("raw") is True:
            return self._plain(body.get("prompt"))
        said = [{"role": "user", "content": body.get("prompt") or ""}]
        if body.get("system"):
            said.insert(0, {"role": "system", "content": body["system"]})
        return self._chat(
            ChatRequest.model_validate({"model": "_", "messages": said}), think=body.get("think")
        )

    def _messages(self, body: Body) -> list[int]:
        """The ids of a chat of any protocol."""
        if "system" not in body:
            try:
                fields = {name: body[name] for name in PROMPT_FIELDS if name in body}
                request = ChatRequest.model_validate({"model": "_", **fields})
                return self._chat(request, think=body.get("think"))
            except ValidationError:
                pass  # another protocol's
        asked = MessagesRequest.model_validate(body)
        arguments = endpoints.thinking_arguments(asked, cast(LLM, self))
        return self._chat(endpoints.as_chat(asked), arguments)

    @property
    def template_variables(self) -> frozenset[str]:
        """The variables that the template reads, as `LLM.template_variables`."""
        return frozenset(known_template(self._template).variables)

    def thinking(self, think: bool | str) -> dict[str, Any]:
        """The template arguments for a wish to think, as `LLM.thinking` has them."""
        return thinking_arguments(known_template(self._template), think)

    def _plain(self, prompt: object) -> list[int]:
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
            prompt = prompt[0]
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, special=True)
        if isinstance(prompt, list) and len(prompt) <= MAX_TOKENS and all(type(one) is int for one in prompt):
            return prompt
        raise InvalidRequest("the prompt is neither a text nor ids", param="prompt")

    def _chat(
        self, body: ChatRequest, arguments: Mapping[str, Any] | None = None, think: object = None
    ) -> list[int]:
        body = replace_functions(body)
        ending: dict[str, Any] = {}
        if body.add_generation_prompt is False:
            ending["add_generation_prompt"] = False
        told = body.messages
        for at, message in enumerate(told):
            if isinstance(message.content, list) and any(
                not isinstance(p, TextPart) for p in message.content
            ):
                told, ending = told[:at], {"add_generation_prompt": False}
                break
        is_whole = len(told) == len(body.messages)
        messages = [as_message(message, index, {}) for index, message in enumerate(told)]
        name_answers(messages)
        return conversation_ids(
            self._engine,
            self._template,
            messages,
            self._arguments(body, arguments, think),
            {"tools": _shown(body), **ending},
            continue_final=bool(body.continue_final_message) and is_whole,
        )

    def _arguments(
        self, body: ChatRequest, arguments: Mapping[str, Any] | None, think: object
    ) -> dict[str, Any]:
        wish = body.reasoning_effort if think is None else think
        found, llm = dict(arguments or {}), cast(LLM, self)
        if arguments is None and isinstance(wish, (bool, str)):
            found = find_thinking(llm, wish, "reasoning_effort", _unheard)
        return found | fit_arguments(llm, body.chat_template_kwargs or {}, _unheard)


def _unheard(param: str, message: str) -> None:
    """Warnings are the server's to give."""


class _Remembering:
    """A tokenizer that remembers the ids of texts: each turn of a conversation repeats those before it.

    Of texts that are new it encodes `left` characters; `CUT` stands for the rest.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._known: OrderedDict[tuple[str, bool, int | None], list[int]] = OrderedDict()
        self.size = 0
        self.left = NEW_CHARACTERS

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def encode(self, text: str, special: bool = False, after: int | None = None) -> list[int]:
        """As the tokenizer does."""
        key = (text, special, after)
        ids = self._known.get(key)
        if ids is None:
            if len(text) > self.left:
                return self._begun(text, special, after)
            self.left -= len(text)
            ids = self._known[key] = self.tokenizer.encode(text, special, after=after)
            self.size += len(text)
            while self.size > MEMO_CHARACTERS:
                (old, *_), _ = self._known.popitem(last=False)
                self.size -= len(old)
        else:
            self._known.move_to_end(key)
        return ids

    def _begun(self, text: str, special: bool, after: int | None) -> list[int]:
        """The ids of a text's beginning; the last ones may depend on what follows, and are left out."""
        head = text[: self.left]
        self.left = 0
        return [*self.tokenizer.encode(head, special, after=after)[:-CUT_TOKENS], CUT]


def _shown(body: ChatRequest) -> list[Mapping[str, Any]] | None:
    """The tools that the template gets."""
    if not body.tools:
        return None
    tools = check_tools([tool.model_dump(exclude_none=True) for tool in body.tools])
    choice = body.tool_choice
    mode, _ = check_choice(
        choice if choice is None or isinstance(choice, str) else choice.model_dump(), tools
    )
    return None if mode == "none" else [tool.description for tool in tools]


MAX_EXACT_BYTES = 256 << 10  # of a body whose tokens are made; they take about 1 ms for each 10 KB
MAX_PARSED_BYTES = 2 << 20  # of a body that is parsed at all
BLOCK_BYTES = 256  # of text, in a block
MAX_NAME = 256  # characters of a model, a session
TEXT_FIELDS = ("tools", "functions", "system", "instructions", "messages", "prompt", "input", "query", "text")

Models = Mapping[str, TextModel]


def read_ask(data: bytes, models: Models, session: str = "", tenant: bytes = b"") -> Ask:
    """What routing looks at in a body."""
    session = session[:MAX_NAME]
    try:
        body = _parsed(data)
    except Exception:
        body = None
    if body is None:  # no JSON, or the beginning of a body that is longer than HAProxy's buffer
        session = session or _digest_text(data[:4096])
        return Ask(_byte_keys(data, "", tenant), session, is_exact=False)
    saved = _saved(body)
    model = body.get("model")
    name = model[:MAX_NAME] if isinstance(model, str) else ""
    if len(data) <= MAX_EXACT_BYTES and not body.get("lora"):
        try:
            keys = _exact(body, name, models, tenant)
        except Exception:
            keys = None  # the replica will say what is wrong with it
        if keys is not None:
            return Ask(keys, session, saved)
    try:
        keys = _text_keys(body, name, tenant)
    except Exception:
        keys = []
    return Ask(keys, session or _own_session(body), saved, is_exact=False)


def bearer(authorization: str) -> bytes:
    """The tenant of an Authorization header."""
    scheme, _, key = authorization.partition(" ")
    return hash_tenant(key.strip()) if scheme.lower() == "bearer" and key.strip() else b""


def _parsed(data: bytes) -> dict[str, Any] | None:
    if not data or len(data) > MAX_PARSED_BYTES:
        return None
    body = json.loads(data)
    return body if isinstance(body, dict) else None


def _exact(body: dict[str, Any], name: str, models: Models, tenant: bytes) -> list[int] | None:
    """The keys of the prompt's tokens; None if the model's tokenizer is not known."""
    base, adapter = name, ""
    if base not in models:
        base, _, adapter = name.rpartition(":")
    model = models.get(base)
    if model is None:
        return None
    return chain(seed(base, adapter, tenant), model.tokens(body))


def _text_keys(body: dict[str, Any], name: str, tenant: bytes) -> list[int]:
    """A chain of hashes over the text of the fields that a prompt is made of."""
    pieces: list[str] = []
    for field in TEXT_FIELDS:
        value = body.get(field)
        if isinstance(value, str):
            pieces.append(value)
        elif isinstance(value, list):
            pieces += (one if isinstance(one, str) else json.dumps(one) for one in value)
        elif value is not None:
            pieces.append(json.dumps(value))
    return _byte_keys("\0".join(pieces).encode("utf-8", "replace"), name, tenant)


def _byte_keys(data: bytes, name: str, tenant: bytes) -> list[int]:
    start = blake2b(seed(name, "", tenant), digest_size=KEY_BYTES, person=b"text").digest()
    return block_keys(start, data, BLOCK_BYTES)


def _saved(body: dict[str, Any]) -> int | None:
    name = body.get("previous_response_id")
    return saved_key(name[:MAX_NAME]) if isinstance(name, str) and name else None


def _own_session(body: dict[str, Any]) -> str:
    """A name for the conversation that the body itself gives."""
    for field in ("prompt_cache_key", "session_id"):
        if isinstance(name := body.get(field), str) and name:
            return name[:MAX_NAME]
    return ""


def _digest_text(data: bytes) -> str:
    return blake2b(data, digest_size=KEY_BYTES).hexdigest() if data else ""
