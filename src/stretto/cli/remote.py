"""A model in a running server, as `run` and `chat` use one; `stretto.server.sockets` says how it is asked.

Whatever cannot be asked there (images, hooks, options that are no plain values) loads the model here, and so
does a server that refuses: then everything goes on with that one. Nothing heavy is imported before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from stretto.errors import StrettoError
from stretto.server.sockets import Connection, Gone, loading, restore_error, servers, sockets

if TYPE_CHECKING:
    from stretto.llm import LLM


class Unavailable(Exception):
    """The server cannot answer this; the model has to be loaded here."""


class Candidate(NamedTuple):
    """A token and its log-probability."""

    token: int
    logprob: float


class RemoteToken(NamedTuple):
    """As `stretto.Token`."""

    id: int | None
    text: str
    logprob: float | None
    top: tuple[Candidate, ...]
    finish_reason: str | None
    is_reasoning: bool


def find(model: str, *, vision: str | None, open_here: Callable[[], LLM], **options: Any) -> LLM | None:
    """The model in a server of this user that has loaded it in the same way; None if there is none."""
    from stretto.weights import hub

    if vision is not None or not sockets():
        return None
    try:
        wanted = loading(hub.resolve(model, pull=False), **options)
    except StrettoError:  # which loading it says too
        return None
    if wanted is None:
        return None
    for connection in servers():
        try:
            for found in connection.about["models"]:
                if found["loading"] == wanted:
                    facts = connection.ask({"verb": "open", "model": found["name"]})
                    if "error" not in facts:
                        llm: Any = RemoteLLM(connection, found["name"], facts, open_here)
                        return llm  # type: ignore[no-any-return]  # what run and chat use of one
        except (Gone, KeyError, TypeError):
            pass
        connection.close()
    return None


class RemoteLLM:
    """The part of `stretto.LLM` that `run` and `chat` use."""

    vision = None

    def __init__(
        self, connection: Connection, name: str, facts: Mapping[str, Any], open_here: Callable[[], LLM]
    ) -> None:
        self.connection, self._name, self._open_here = connection, name, open_here
        self._here: LLM | None = None  # once it had to be loaded
        self.has_template = bool(facts["has_template"])
        self.context_length = int(facts["context_length"])
        self.backend = SimpleNamespace(name=facts["backend"], placement=facts["placement"])
        self.tokenizer = _RemoteTokenizer(self, frozenset(facts["end_ids"]))

    def chat_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        template: Mapping[str, Any] | None = None,
        **variables: Any,
    ) -> list[int]:
        """As `LLM.chat_prompt`."""
        request = {"verb": "prompt", "messages": messages, "template": template, "variables": variables}
        try:
            return _tokens(self._ask(request))
        except Unavailable:
            return self.here.chat_prompt(messages, template=template, **variables)

    def stream(self, prompt: Any, **options: Any) -> Any:
        """As `LLM.stream`."""
        try:
            if not isinstance(prompt, (str, list)):
                raise Unavailable
            return RemoteStream(self.connection, self._sent("stream", prompt=prompt, options=_plain(options)))
        except Unavailable:
            return self.here.stream(prompt, **options)

    def generate(self, prompt: Any, **options: Any) -> Any:
        """As `LLM.generate`."""
        with self.stream(prompt, **options) as stream:
            return stream.result

    @property
    def here(self) -> LLM:
        """The model, loaded in this process from now on."""
        if self._here is None:
            self.connection.close()
            self._here = self._open_here()
        return self._here

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.here, name)

    def close(self) -> None:
        """Leave the server, or free the model."""
        self.connection.close()
        if self._here is not None:
            self._here.close()

    def __enter__(self) -> RemoteLLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sent(self, verb: str, **fields: Any) -> dict[str, Any]:
        """The first line of the answer to a request; `Unavailable` if it has to be asked here."""
        if self._here is not None:
            raise Unavailable
        request = {"verb": verb, "model": self._name, **fields}
        try:
            answer = self.connection.ask(request)
        except (Gone, TypeError, ValueError, RecursionError):  # the latter ones: values without JSON
            raise Unavailable from None
        if "error" in answer:
            if answer["error"].get("unavailable"):
                raise Unavailable
            raise restore_error(answer["error"])
        return answer

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._sent(request.pop("verb"), **request)


class RemoteStream:
    """As `stretto.engine.stream.TextStream`: iterate it for tokens; `result` is the whole."""

    def __init__(self, connection: Connection, first: Mapping[str, Any]) -> None:
        self.connection = connection
        self._line: Mapping[str, Any] | None = first
        self._result: Any = None

    def __iter__(self) -> Iterator[RemoteToken]:
        while self._result is None:
            line, self._line = self._line, None
            try:
                line = self.connection.receive() if line is None else line
            except Gone as error:
                raise StrettoError(
                    f"the answer was cut: {error}; ask again, or with --no-server, which needs none"
                ) from None
            if "error" in line:
                raise restore_error(line["error"])
            if "token" in line:
                token, text, logprob, top, reason, is_reasoning = line["token"]
                yield RemoteToken(
                    token, text, logprob, tuple(Candidate(*one) for one in top), reason, is_reasoning
                )
            else:
                self._result = _result(line["result"])

    @property
    def result(self) -> Any:
        """As `stretto.Result`."""
        for _ in self:
            pass
        return self._result

    def cancel(self) -> None:
        """End it within one step; what was made until then still comes."""
        if self._result is None:
            self.connection.send({"verb": "cancel"})

    def __enter__(self) -> RemoteStream:
        return self

    def __exit__(self, *_: object) -> None:
        if self._result is None:  # by an exception: nobody reads the rest
            self.connection.close()


class _RemoteTokenizer:
    """The tokenizer of a model in a server."""

    def __init__(self, llm: RemoteLLM, end_ids: frozenset[int]) -> None:
        self._llm, self.end_ids = llm, end_ids

    def encode_inside(self, text: str) -> list[int]:
        """As the tokenizer's."""
        try:
            return _tokens(self._llm._sent("encode", text=text))
        except Unavailable:
            return self._llm.here.tokenizer.encode_inside(text)

    def decode(self, ids: Sequence[int]) -> str:
        """As the tokenizer's."""
        try:
            return str(self._llm._sent("decode", tokens=list(ids))["text"])
        except Unavailable:
            return self._llm.here.tokenizer.decode(list(ids))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm.here.tokenizer, name)


def _tokens(answer: Mapping[str, Any]) -> list[int]:
    return list(answer["tokens"])


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as JSON has them; `Unavailable` for one that it has not."""
    plain: dict[str, Any] = {}
    for name, value in options.items():
        if name == "grammar" and value is not None:
            plain[name] = {"kind": value.kind, "text": value.text, "options": value.options}
        elif isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value):
            plain[name] = list(value)
        elif value is None or isinstance(value, (bool, int, float, str)) or value == {}:
            plain[name] = value  # None too: it may stand against a default of the model
        else:
            raise Unavailable
    return plain


def _result(found: Mapping[str, Any]) -> SimpleNamespace:
    usage, timings = SimpleNamespace(**found["usage"]), SimpleNamespace(**found["timings"])
    usage.total_tokens = usage.prompt_tokens + usage.completion_tokens
    timings.tokens_per_second = timings.n_decoded / timings.decode if timings.decode > 0 else 0.0
    return SimpleNamespace(**{**found, "usage": usage, "timings": timings})
