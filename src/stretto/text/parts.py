"""The parts of a message's content: those that nothing here reads are refused by name.

A template that only writes texts would show a list of parts as Python does, brackets and all, so texts are
joined for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from stretto.errors import InvalidRequest

IMAGES = frozenset({"image", "image_url", "input_image"})
INSTEAD = {
    "audio": "sound is not heard by language models here; stretto transcribe writes down speech",
    "video": "films are not taken; give some of their frames as images",
    "file": "files are not opened for a message; give their text as a text part",
}
_KINDS = {
    **dict.fromkeys(("audio", "input_audio", "audio_url"), "audio"),
    **dict.fromkeys(("video", "input_video", "video_url"), "video"),
    **dict.fromkeys(("file", "input_file", "document"), "file"),
}
_KNOWS_TYPES = re.compile(r"""\.type\b|\[\s*['"]type['"]\s*\]|get\(\s*['"]type['"]""")


def with_known_parts(messages: Sequence[Any], source: str) -> Sequence[Any]:
    """Messages that a template can write; `InvalidRequest` names the part that it cannot.

    >>> with_known_parts([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "{{ content }}")
    [{'role': 'user', 'content': 'Hi'}]
    """
    if not isinstance(messages, (list, tuple)) or not any(map(_has_parts, messages)):
        return messages
    knows_types = _KNOWS_TYPES.search(source) is not None
    changed = []
    for index, message in enumerate(messages):
        if _has_parts(message):
            parts = message["content"]
            for i, part in enumerate(parts):
                _check(part, f"messages[{index}].content[{i}]", source)
            texts = [_text(part) for part in parts]
            if not knows_types and all(text is not None for text in texts):
                message = {**message, "content": "\n".join(filter(None, texts))}
        changed.append(message)
    return changed


def _has_parts(message: Any) -> bool:
    return isinstance(message, Mapping) and isinstance(message.get("content"), (list, tuple))


def _text(part: Any) -> str | None:
    """The text of a part that is nothing else."""
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    return None


def _check(part: Any, where: str, source: str) -> None:
    """Raise for a part with a type that is not taken; what has no type is checked elsewhere."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str) or kind in IMAGES or kind == "text":
        return
    if kind in _KINDS:
        raise InvalidRequest(f"{where}: {kind!r}: {INSTEAD[_KINDS[kind]]}", param=where, value=kind)
    if not re.search(rf"['\"]{re.escape(kind)}['\"]", source):
        raise InvalidRequest(
            f"{where}: the model's chat template knows no parts of type {kind!r:.60}; "
            "give 'text', or 'image_url' to a model that sees",
            param=where,
            value=kind,
        )
