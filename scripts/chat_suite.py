"""Counts how llama.cpp's cases of tool calls fare: `python scripts/chat_suite.py LLAMA.CPP [TEMPLATE]`.

The folder is a checkout of llama.cpp: `tests/test-chat.cpp` has answers of models with the calls in them, and
`models/templates` has the templates. Answers that break off are left out. A case is "read" if the names and
the arguments of all calls are right, "refused" if an error says why not, and "misread" otherwise.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import vocabularies
from stretto.errors import StrettoError
from stretto.llm import LLM
from stretto.testing import MockBackend
from stretto.text.bpe import BPETokenizer
from stretto.text.template import ChatTemplate

SPECIAL = re.compile(
    r"<\|[^<>|\s]*\|?>|<[^<>|/\s]*\|>|<｜[^<>｜/]*｜>|\[/?[A-Z_]{3,}\]|<\|\"\|>|<\|/?[a-z_]+\|>|</?s>"
)
LEXEME = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"([^()\s\\"]*)\((.*?)\)\1"|"((?:\\.|[^"\\])*)"|[A-Za-z_:][\w:]*|\S', re.DOTALL
)
NAMED = ("common_chat_tool", "common_chat_msg", "*", "std::string", "auto")  # before the name of a variable
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\n": ""}


class Text(str):
    """A string literal."""


class Case(NamedTuple):
    """An answer, and what llama.cpp finds in it."""

    template: str
    line: int
    answer: str
    methods: dict[str, Any]

    @property
    def calls(self) -> list[Any]:
        """Pairs of a name and the text of the arguments."""
        return [call[:2] for call in self.methods["calls"]]


def lexemes(source: str) -> list[tuple[str, int]]:
    """The words of C++ without comments; adjacent literals are not joined."""
    found: list[tuple[str, int]] = []
    for match in LEXEME.finditer(source):
        word, line = match.group(), source.count("\n", 0, match.start()) + 1
        if word.startswith(("//", "/*")):
            continue
        if word.startswith('R"') and match.group(2) is not None:
            found.append((Text(match.group(2)), line))
        elif match.group(3) is not None:
            text = re.sub(r"\\(x[0-9a-fA-F]{2}|.)", _escape, match.group(3), flags=re.DOTALL)
            found.append((Text(text), line))
        else:
            found.append((word, line))
    return found


def _escape(match: re.Match[str]) -> str:
    text = match.group(1)
    return chr(int(text[1:], 16)) if text[0] == "x" and len(text) == 3 else ESCAPES.get(text, text)


class Reader:
    """Expressions of literals, braces, and calls of the file's helpers."""

    def __init__(self, words: list[tuple[str, int]], names: dict[str, Any]) -> None:
        self.words, self.names, self.at = words, names, 0

    def value(self) -> Any:
        """The value of the expression at the present place."""
        made = self._single()
        while self.words[self.at][0] == "+" or isinstance(self.words[self.at][0], Text):
            self.at += self.words[self.at][0] == "+"
            made = Text(made + self._single())
        return made

    def _single(self) -> Any:
        word = self.words[self.at][0]
        self.at += 1
        if isinstance(word, Text):
            return word
        if word == "{":
            return self.items("}")
        if word == "(":
            return self.items(")")[0]
        if word in ("true", "false"):
            return word == "true"
        if self.words[self.at][0] in ("(", "{"):
            closing = ")" if self.words[self.at][0] == "(" else "}"
            self.at += 1
            return made(word, self.items(closing), self.names)
        if word in self.names:
            return self.names[word]
        if word.startswith("COMMON_") or word == "-" or word.isdigit():
            return word
        raise KeyError(word)

    def items(self, closing: str) -> list[Any]:
        """Values up to a closing bracket."""
        found = []
        while self.words[self.at][0] != closing:
            found.append(self.value())
            if self.words[self.at][0] == ",":
                self.at += 1
        self.at += 1
        return found


def made(name: str, given: list[Any], names: dict[str, Any]) -> Any:
    """What a helper of the file makes: a message with calls, a tool, a string."""
    if name == "simple_assist_msg":
        content, reasoning, tool, arguments, *_ = [*given, "", "", "", ""]
        return {"content": content, "reasoning": reasoning, "calls": [(tool, arguments)] if tool else []}
    if name == "message_with_tool_calls":
        return made("simple_assist_msg", ["", "", *given], names)
    if name == "message_with_tool_calls_and_reasoning":
        return made("simple_assist_msg", ["", given[2], *given[:2]], names)
    if name == "message_with_content_and_tool_call":
        return made("simple_assist_msg", [given[0], "", *given[1:]], names)
    if name == "message_with_reasoning_and_tool_call":
        return made("simple_assist_msg", ["", *given], names)
    if name == "message_with_reasoning_content_and_multiple_tool_calls":
        return {"content": given[1], "reasoning": given[0], "calls": [tuple(one) for one in given[2]]}
    if name in ("std::string", "common_chat_tool", "common_chat_tool_call"):
        return given[0] if name == "std::string" else given
    raise KeyError(name)


def cases(folder: Path) -> list[Case]:
    """All cases with calls whose values are written in the file."""
    words = lexemes((folder / "tests" / "test-chat.cpp").read_text())
    names: dict[str, Any] = {}
    templates: list[str] = []
    found = []
    callers: dict[str, list[str]] = {}
    for i, (word, _) in enumerate(words):
        bracket, given = (one for one, _ in words[i + 1 : i + 3]) if i + 2 < len(words) else ("", "")
        if bracket == "(" and isinstance(given, Text) and given.endswith(".jinja"):
            callers.setdefault(word, []).append(given)
    for i, (word, line) in enumerate(words):
        if word in NAMED and re.fullmatch(r"\w+", words[i + 1][0]):
            is_plain = words[i + 2][0] in ("{", "=")
            if not is_plain or isinstance(words[i + 1][0], Text):
                continue
            reader = Reader(words, names)
            reader.at = i + 2 + (words[i + 2][0] == "=")
            try:
                names[words[i + 1][0]] = reader.value()
            except (KeyError, IndexError, TypeError):
                names.pop(words[i + 1][0], None)
        elif word == "tools" and words[i - 1][0] == ">" and words[i + 1][0] == "{":
            reader = Reader(words, names)
            reader.at = i + 1
            names["tools"] = reader.value()
        elif word == "void" and words[i + 2][0] == "(":
            function = words[i + 1][0]
        elif word == "peg_tester" and words[i + 1][0] == "(":
            given = words[i + 2][0]
            templates = [given] if isinstance(given, Text) else callers.get(function, [])
        elif word == "tst" and [one[0] for one in words[i + 1 : i + 4]] == [".", "test", "("]:
            reader = Reader(words, names)
            reader.at = i + 4
            methods: dict[str, Any] = {"content": "", "reasoning": "", "calls": []}
            try:
                (answer,) = reader.items(")")
                while reader.words[reader.at][0] == "." and reader.words[reader.at + 1][0] != "run":
                    name = reader.words[reader.at + 1][0]
                    reader.at += 3
                    given = reader.items(")")
                    if name == "expect":
                        methods.update(given[0])
                    else:
                        name = {"expect_tool_calls": "calls"}.get(name, name.removeprefix("expect_"))
                        methods[name] = given[0] if given else True
            except (KeyError, IndexError, TypeError, ValueError) as error:
                print("not understood: line", line, repr(error))
                continue
            if methods["calls"] and not methods.get("is_partial"):
                found += [Case(template, line, answer, methods) for template in templates]
    return found


def model(source: str, answer: str) -> LLM:
    """A model with a template that says an answer."""
    found = [*SPECIAL.findall(source), *SPECIAL.findall(answer)]
    specials = list(dict.fromkeys(["<|im_start|>", "<|im_end|>", *found]))
    values = vocabularies.bpe(specials=specials)
    tokenizer = BPETokenizer(
        vocabularies.metadata({**values, "eos_token_id": values["tokens"].index("<|im_end|>")})
    )
    script = [*tokenizer.encode(answer, special=True, bos=False), tokenizer.eos_id]
    template = ChatTemplate(source, tokenizer.specials)
    return LLM(MockBackend(script, tokenizer.n_vocab, 32768, 32768), tokenizer, template)


def outcome(folder: Path, case: Case) -> tuple[str, str]:
    """One of "read", "refused" and "misread", and what was found instead."""
    tools = [
        {"name": name, "description": text, "parameters": json.loads(schema) if schema else {}}
        for name, text, schema, *_ in ([*tool, ""] for tool in case.methods.get("tools", []))
    ]
    source, thinks = (folder / case.template).read_text(), case.methods.get("enable_thinking")
    has_switch = thinks is not None and "enable_thinking" in source
    options = {"template": {"enable_thinking": thinks}} if has_switch else {}
    try:
        with model(source, case.answer) as llm:
            hello = [{"role": "user", "content": "Hey there!"}]
            result = llm.chat(hello, tools=tools, temperature=0, max_tokens=4000, **options)
    except StrettoError as error:
        return "refused", str(error)[:300]
    found = [(call.name, call.arguments) for call in result.tool_calls]
    expected = [(name, json.loads(arguments or "{}")) for name, arguments in case.calls]
    if found == expected:
        return "read", ""
    return "misread", f"{found} instead of {expected}; text: {result.text[:200]!r}"


def main(folder: str, only: str = "") -> None:
    total: Counter[str] = Counter()
    for case in cases(Path(folder)):
        if only not in case.template:
            continue
        found, why = outcome(Path(folder), case)
        total[found] += 1
        if found != "read":
            print(f"{found}: line {case.line}, {Path(case.template).name}: {case.answer[:160]!r}: {why}")
    print(dict(total))


if __name__ == "__main__":
    main(*sys.argv[1:])
