"""Chat templates: a conversation becomes the text and the special tokens a model was trained on.

No message can forge a special token. Before a template is compiled, each special token in its own text is
replaced by a placeholder, a private-use character that occurs nowhere in the caller's data. After rendering,
the placeholders become token ids; all other text, whatever it looks like, stays text.

A template is compiled when it is first used, and Jinja is imported then.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from itertools import islice
from typing import TYPE_CHECKING, Any

from stretto.errors import InvalidRequest, ModelError, StrettoError, Unsupported, param_error
from stretto.hardware import fork_safety

if TYPE_CHECKING:
    from stretto.text.intake import Intake

_MAX_SPECIAL = 256  # characters of one special token
_OWN = frozenset(("bos_token", "eos_token", "messages", "tools", "add_generation_prompt"))  # set here

_DATES = {"date_string": "%d %b %Y", "datetime": "%b %d %Y"}  # of Llama 3, of Firefunction 2

# The roles from which a template may compose a special token, as in '<|' + role + '|>'. Any other role is
# the caller's own: it is rendered, but never becomes part of a special token.
_ROLES = "system developer user assistant model tool function ipython observation tool_response tool_results"


GENERATE_INSTEAD = "llm.generate continues a prompt of your own"  # the server names an endpoint


def no_template() -> Unsupported:
    """The error of a conversation with a model that has no chat template."""
    return Unsupported(f"this model has no chat template; {GENERATE_INSTEAD}", param="messages")


class ChatTemplate:
    """A model's chat template, ready to render conversations.

    `specials` maps the text of each control token to its id; `bos` and `eos` are the texts that the
    template knows as `bos_token` and `eos_token`. `with_tools` is a template for conversations with tools, in
    models that have one of their own. Threads may share one template.

    >>> template = ChatTemplate(
    ...     "{% for m in messages %}<|im_start|>{{ m.role }}\\n{{ m.content }}<|im_end|>{% endfor %}",
    ...     {"<|im_start|>": 1, "<|im_end|>": 2},
    ... )
    >>> template.parts([{"role": "user", "content": "Is <|im_end|> a token?"}])
    [1, 'user\\nIs <|im_end|> a token?', 2]
    """

    def __init__(
        self, source: str, specials: Mapping[str, int], *, bos: str = "", eos: str = "", with_tools: str = ""
    ) -> None:
        if not isinstance(source, str):
            kind = type(source).__name__
            raise ModelError(f"a {kind} where a text should be", field="tokenizer.chat_template")
        self.source = source
        self._finder = _Finder(specials)
        self._bos, self._eos = bos, eos
        self._with_tools = ChatTemplate(with_tools, specials, bos=bos, eos=eos) if with_tools else None
        self._compiled: _Compiled | None = None
        self._variables: frozenset[str] | None = None
        self._lock = fork_safety.lock()

    @property
    def tool_source(self) -> str:
        """The source of the template for conversations with tools, which is the same in most models."""
        return self.source if self._with_tools is None else self._with_tools.source

    @property
    def variables(self) -> frozenset[str]:
        """The variables that a caller may set: those the template reads beside the conversation.

        >>> ChatTemplate("{% if enable_thinking %}<think>{% endif %}", {}).variables
        frozenset({'enable_thinking'})
        """
        if self._variables is None:
            from stretto.text.guards import GLOBALS
            from stretto.text.sandbox import Program

            own = Program(self.source).variables() - _OWN - GLOBALS.keys()
            self._variables = own | (self._with_tools.variables if self._with_tools else frozenset())
        return self._variables

    def parts(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[str | int]:
        """Render a conversation as plain texts and special token ids, in order.

        The texts are to be encoded as they are, without looking for special tokens in them.
        """
        rendering = self._render(messages, tools, add_generation_prompt, variables)
        return list(rendering.parts())

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Render a conversation as one text, special tokens spelled out: for people, not for encoding.

        >>> ChatTemplate("{{ messages[0].content | upper }}!", {}).render([{"role": "user", "content": "hi"}])
        'HI!'
        """
        rendering = self._render(messages, tools, add_generation_prompt, variables)
        return rendering.restore(rendering.compiled.spell(rendering.text))

    def _render(
        self, messages: object, tools: object, add_generation_prompt: object, variables: Mapping[str, Any]
    ) -> _Rendering:
        if tools and self._with_tools is not None:
            return self._with_tools._render(messages, tools, add_generation_prompt, variables)
        from stretto.text.guards import GLOBALS
        from stretto.text.intake import check_messages

        check_messages(messages)
        if tools is not None and not isinstance(tools, (list, tuple)):
            raise param_error("tools", f"a {type(tools).__name__} is not a list of tool descriptions", tools)
        if not isinstance(add_generation_prompt, bool):
            raise param_error("add_generation_prompt", "takes True or False", add_generation_prompt)
        for name in variables.keys() & (_OWN | GLOBALS.keys()):
            raise param_error(name, "chat templates set this name themselves; choose another")
        data = {"documents": None, **self._expected(tools), **variables, "messages": messages, "tools": tools}
        if tools is not None:
            return self._rendering(data, add_generation_prompt)
        try:
            return self._rendering(data, add_generation_prompt)
        except InvalidRequest:
            with suppress(InvalidRequest):  # some templates can only do with a list, which may be empty
                return self._rendering({**data, "tools": []}, add_generation_prompt)
            raise

    def _expected(self, tools: object) -> dict[str, str]:
        """Variables that some templates expect from their callers: the date, and tools as JSON."""
        self._ready()  # raises for a template that is none, before its variables are looked for
        found = {name: date.today().strftime(_DATES[name]) for name in self.variables & _DATES.keys()}
        if "functions" in self.variables and not re.search(r"\btools\b", self.source):
            found["functions"] = json.dumps(tools, indent=2, ensure_ascii=False) if tools else ""
        return found

    def _rendering(self, values: Mapping[str, Any], add_generation_prompt: bool) -> _Rendering:
        from stretto.text.intake import Intake

        intake = Intake()
        data = {name: intake.plain(value, name) for name, value in values.items()}
        data["add_generation_prompt"] = add_generation_prompt
        return _Rendering(self._ready(), data, intake)

    def _ready(self) -> _Compiled:
        with self._lock:
            if self._compiled is None:
                self._compiled = _Compiled(self.source, self._finder, self._bos, self._eos)
            return self._compiled


class _Finder:
    """Finds special tokens in a text: leftmost first, and of those that start together the longest."""

    def __init__(self, specials: Mapping[str, int]) -> None:
        self.specials = {text: token for text, token in specials.items() if text}
        self.lengths = sorted({len(text) for text in self.specials}, reverse=True)
        if self.lengths and self.lengths[0] > _MAX_SPECIAL:
            raise ModelError(
                f"a special token of {self.lengths[0]} characters; the limit is {_MAX_SPECIAL}",
                field="tokenizer.ggml.tokens",
            )
        firsts = "".join(sorted({re.escape(text[0]) for text in self.specials}))
        self.start = re.compile(f"[{firsts}]" if firsts else "(?!)")

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the spans of special tokens."""
        at = 0
        while match := self.start.search(text, at):
            begin = match.start()
            at = begin + 1
            for length in self.lengths:
                if text[begin : begin + length] in self.specials:
                    at = begin + length
                    yield begin, at
                    break


class _Compiled:
    """A compiled template and its placeholders; one of them, `blank`, is for no token."""

    def __init__(self, source: str, finder: _Finder, bos: str, eos: str) -> None:
        from stretto.text.intake import PRIVATE
        from stretto.text.sandbox import Program

        self.program = Program(source)
        self.finder = finder
        literals = self.program.literals
        tokens = {text[a:b] for text in literals for a, b in finder.spans(text)}
        tokens.update(text for text in (bos, eos) if text in finder.specials)
        self.private = set(PRIVATE.findall("".join((source, bos, eos, *literals, *finder.specials))))
        self.reserved = _unused(self.private, len(tokens) + 1)
        if len(self.reserved) <= len(tokens):
            raise ModelError("it uses all private-use characters there are", field="tokenizer.chat_template")
        self.blank = self.reserved[-1]
        marks = dict(zip(sorted(tokens), self.reserved, strict=False))
        self.tokens = {mark: finder.specials[text] for text, mark in marks.items()}
        self.collision = re.compile(f"[{''.join(self.reserved)}]")
        self._spelling = {ord(mark): text for text, mark in marks.items()}
        self.variables = {"bos_token": marks.get(bos, bos), "eos_token": marks.get(eos, eos)}
        self.program.compile(lambda text: self._marked(text, marks))

    def _marked(self, text: str, marks: Mapping[str, str]) -> str:
        pieces: list[str] = []
        last = 0
        for begin, end in self.finder.spans(text):
            pieces += text[last:begin], marks[text[begin:end]]
            last = end
        return "".join((*pieces, text[last:]))

    def spell(self, text: str) -> str:
        """Return the text with its placeholders spelled out."""
        return text if text.isascii() else text.translate(self._spelling)

    def run(self, data: Mapping[str, Any], extra: int) -> str:
        """Render plain data; special tokens are placeholders in the result."""
        from stretto.text.guards import Budget

        return self.program.render({**data, **self.variables}, Budget(extra, spell=self.spell))


def _unused(taken: set[str], count: int) -> list[str]:
    """Return `count` private-use characters that are not taken, or all that are left."""
    free = (chr(c) for plane in (0xF0000, 0x100000) for c in range(plane, plane + 0xFFFE))
    return list(islice((c for c in free if c not in taken), count))


class _Rendering:
    """One conversation rendered: the text with placeholders, and their tokens."""

    def __init__(self, compiled: _Compiled, data: dict[str, Any], intake: Intake) -> None:
        self.compiled = compiled
        self.extra = intake.characters + intake.items
        self._back: dict[int, str] = {}
        if clashes := intake.private.intersection(compiled.reserved):
            data = self._without(clashes, data, intake.private)
        self.data = data
        self.text = compiled.run(self.data, self.extra)

    def _without(self, clashes: set[str], data: dict[str, Any], private: set[str]) -> dict[str, Any]:
        """Replace our placeholders in the data by other private-use characters while rendering."""
        from stretto.text.intake import walk

        free = _unused(private.union(self.compiled.private, self.compiled.reserved), len(clashes))
        if len(free) < len(clashes):
            raise param_error("messages", "they use all private-use characters there are; leave out some")
        self._back = {ord(new): old for new, old in zip(free, clashes, strict=True)}
        there = {ord(old): chr(new) for new, old in self._back.items()}
        return {name: walk(value, lambda text, key: text.translate(there)) for name, value in data.items()}

    def restore(self, text: str) -> str:
        """Return a text with the caller's own private-use characters."""
        return text.translate(self._back) if self._back else text

    def parts(self) -> Iterator[str | int]:
        """Yield plain texts and token ids."""
        last = 0
        for begin, end, token in self._tokens():
            if begin > last:
                yield self.restore(self.text[last:begin])
            yield token
            last = end
        if last < len(self.text):
            yield self.restore(self.text[last:])

    def _tokens(self) -> list[tuple[int, int, int]]:
        marks = [
            (match.start(), match.end(), self.compiled.tokens[match[0]])
            for match in self.compiled.collision.finditer(self.text)
        ]
        finder = self.compiled.finder
        spans = list(finder.spans(self.text))
        if spans:
            marks += [(a, b, finder.specials[self.text[a:b]]) for a, b in self._composed(spans)]
        return sorted(marks)

    def _composed(self, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Choose the special tokens that the template made from pieces, as in `'<|' + role + '|>'`.

        The rest came from a message and is text. To tell them apart, render once more with the caller's
        words blanked out, letter by letter: what is still there was the template's.
        """
        from stretto.text.intake import walk

        texts = {self.text[a:b] for a, b in spans}
        try:
            twin = self.compiled.run(self._blanked(texts), self.extra)
        except StrettoError:
            twin = ""
        blank = self.compiled.blank
        if len(twin) == len(self.text) and all(
            self.text.startswith(match[0], match.start()) for match in re.finditer(f"[^{blank}]+", twin)
        ):
            return [(a, b) for a, b in spans if blank not in twin[a:b]]
        sources: list[str] = []

        def note(text: str, key: object) -> str:
            sources.append(text)
            return text

        walk(self.data, note)
        if all(any(text in source for source in sources) for text in texts):
            return []  # the messages explain all of them
        raise param_error(
            "messages",
            f"the chat template makes special tokens such as {min(texts)!r} out of pieces, and it "
            "cannot be decided which of them a message has forged; leave such texts out of the messages",
        )

    def _blanked(self, texts: set[str]) -> dict[str, Any]:
        from stretto.text.intake import walk

        program, blank = self.compiled.program, self.compiled.blank
        # Text that JSON escapes keeps its length only as it is; it is removed too if such a token holds it.
        wanted = re.escape("".join(sorted({c for text in texts for c in text})))
        ink = re.compile(rf'[^\s"\\\x00-\x1f]|[{wanted}]')
        is_tagged = not any(text[0].isalnum() or text[-1].isalnum() for text in texts)

        def change(text: str, key: str) -> str:
            # Words that the template's logic depends on stay: known roles, and literals of its comparisons.
            if (key == "role" and text in _ROLES.split()) or (
                text.isidentifier() and text in program.literals
            ):
                return text
            if key == "*" and (text in program.names or (is_tagged and _is_apart(text, texts))):
                return text  # blanked, two keys of the same length would be one
            return ink.sub(blank, text)

        # The variables' own names are not data: the template looks them up.
        return {name: walk(value, change, name) for name, value in self.data.items()}


def _is_apart(key: str, texts: set[str]) -> bool:
    """Whether a key can be no part of special tokens, which begin and end with other signs."""
    return key.isidentifier() and not any(key in text or text in key for text in texts)
