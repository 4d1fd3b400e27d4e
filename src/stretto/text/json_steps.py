"""The normaliser and pre-tokenizer of a tokenizer.json: checked, and changed for fragments inside a text.

Both are descriptions of steps that the `tokenizers` library takes. Known kinds are let through, with bounds
on their texts, so that a file can neither blow a text up nor reach code not made for untrusted data.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from typing import Any

import tokenizers

from stretto.errors import ModelError
from stretto.text.unigram import check_charsmap
from stretto.weights.json_file import Fields

Step = dict[str, Any]

MAX_STEPS = 64
MAX_PATTERN = 8192  # characters of a pattern
MAX_GROWTH = 64  # of a text by all replacements together
_NORMALIZERS = (
    "Sequence BertNormalizer NFC NFD NFKC NFKD Nmt Strip StripAccents Lowercase Replace Prepend Precompiled "
    "ByteLevel"
)
_PRE_TOKENIZERS = (
    "Sequence BertPreTokenizer ByteLevel CharDelimiterSplit Digits FixedLength Metaspace Punctuation Split "
    "UnicodeScripts Whitespace WhitespaceSplit"
)
_CHILDREN = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}
_EMPTY = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}


class Steps:
    """The steps before the vocabulary comes in: `normalizer` and `pre_tokenizer`, flat lists."""

    def __init__(self, described: Fields) -> None:
        self.normalizer = _flat(described, "normalizer", _NORMALIZERS)
        self.pre_tokenizer = _flat(described, "pre_tokenizer", _PRE_TOKENIZERS)
        growth = 1
        for step in self.normalizer:
            if step["type"] == "Replace":
                growth *= max(1, len(_text(described, step, "content")))
            elif step["type"] == "Prepend":
                _text(described, step, "prepend", 16)
            elif step["type"] == "Precompiled":
                _check_precompiled(described, step)
        if growth > MAX_GROWTH:
            raise described.error("normalizer", f"its replacements may make a text {growth} times as long")
        self.path = described.path

    @property
    def is_bytelevel(self) -> bool:
        """Whether text is spelled in the alphabet of bytes."""
        return any(step["type"] == "ByteLevel" for step in (*self.normalizer, *self.pre_tokenizer))

    @property
    def prefix(self) -> str:
        """Where a space is put in front: "always" (of each fragment), "first" (of a text) or "never"."""
        if any(step["type"] == "Prepend" for step in self.normalizer):
            return "always"
        for step in self.pre_tokenizer:
            if step["type"] == "Metaspace":
                return _scheme(step)
            if step["type"] == "ByteLevel" and step.get("add_prefix_space"):
                return "always"
        return "never"

    def engine(self, model: tokenizers.models.Model, where: str) -> tokenizers.Tokenizer:
        """The library's tokenizer for a fragment: at the start (`first`), after a special token (`inner`), or
        in the middle of a text, where no space is put in front (`inside`)."""
        normalizer, pre_tokenizer = self.normalizer, self.pre_tokenizer
        if where == "inner":
            pre_tokenizer = [_without_first(step) for step in pre_tokenizer]
        elif where == "inside":
            normalizer, pre_tokenizer = _without_prefix(normalizer, pre_tokenizer)
        described = {
            **_EMPTY,
            "normalizer": {"type": "Sequence", "normalizers": normalizer} if normalizer else None,
            "pre_tokenizer": (
                {"type": "Sequence", "pretokenizers": pre_tokenizer} if pre_tokenizer else None
            ),
        }
        try:
            parts = tokenizers.Tokenizer.from_str(json.dumps(described))
        except Exception as error:
            raise ModelError(f"tokenizers does not accept its steps: {error}", path=self.path) from None
        engine = tokenizers.Tokenizer(model)
        if parts.normalizer is not None:
            engine.normalizer = parts.normalizer
        if parts.pre_tokenizer is not None:
            engine.pre_tokenizer = parts.pre_tokenizer
        return engine


def _flat(described: Fields, name: str, known: str) -> list[Step]:
    if name not in described:
        return []
    steps: list[Step] = []
    for step in _walk(described, name, described[name], 0):
        kind = step.get("type")
        if kind not in known.split():
            raise described.error(name, f"steps of type {kind!r} are not supported")
        if name == "pre_tokenizer" and kind == "Split":
            _text(described, step, "pattern")
        steps.append(step)
        if len(steps) > MAX_STEPS:
            raise described.error(name, f"more than {MAX_STEPS} steps")
    return steps


def _walk(described: Fields, name: str, step: Any, depth: int) -> Iterator[Step]:
    if not isinstance(step, dict) or depth > 4:
        raise described.error(name, "must be an object with a type, at most 4 deep")
    if step.get("type") != "Sequence":
        yield step
        return
    children = step.get(_CHILDREN[name])
    if not isinstance(children, list):
        raise described.error(f"{name}.{_CHILDREN[name]}", "must be an array")
    for child in children:
        yield from _walk(described, name, child, depth + 1)


def _text(described: Fields, step: Step, name: str, most: int = MAX_PATTERN) -> str:
    """A text of a step: plain, or a pattern as {"String": …} or {"Regex": …}."""
    value = step.get(name)
    if isinstance(value, dict) and len(value) == 1:
        value = next(iter(value.values()))
    if not isinstance(value, str) or len(value) > most:
        raise described.error(f"{step['type']}.{name}", f"must be a text of at most {most} characters")
    return value


def _check_precompiled(described: Fields, step: Step) -> None:
    field = "normalizer.precompiled_charsmap"
    try:
        data = base64.b64decode(step.get("precompiled_charsmap") or "", validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise described.error(field, "must be a text in base64") from None
    check_charsmap(data, field)


def _scheme(step: Step) -> str:
    """The prepend scheme of a Metaspace; older files have a flag instead."""
    if "prepend_scheme" in step:
        return str(step["prepend_scheme"])
    return "always" if step.get("add_prefix_space", True) else "never"


def _metaspace(step: Step, scheme: str) -> Step:
    kept: Step = {name: step[name] for name in ("type", "replacement", "split") if name in step}
    return {**kept, "prepend_scheme": scheme}


def _without_first(step: Step) -> Step:
    return _metaspace(step, "never") if step["type"] == "Metaspace" and _scheme(step) == "first" else step


def _without_prefix(normalizer: list[Step], pre_tokenizer: list[Step]) -> tuple[list[Step], list[Step]]:
    """The steps for the middle of a text. Where each word gets its space in front, runs of white space become
    the space of the next word."""
    normalizer = [step for step in normalizer if step["type"] != "Prepend"]
    kinds = [step["type"] for step in pre_tokenizer]
    if "WhitespaceSplit" in kinds and "Metaspace" in kinds:
        pre_tokenizer = [step for step in pre_tokenizer if step["type"] != "WhitespaceSplit"]
        normalizer = [
            *normalizer,
            {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
            {"type": "Strip", "strip_left": False, "strip_right": True},
        ]
    changed = []
    for step in pre_tokenizer:
        if step["type"] == "Metaspace":
            step = _metaspace(step, "never")
        elif step["type"] == "ByteLevel":
            step = {**step, "add_prefix_space": False}
        changed.append(step)
    return normalizer, changed
