"""Images and sounds in chat messages: taken out before the template is rendered, put back in their places.

A template that supports images writes a marker of its own for each, a special token such as `<image>`, which
the image replaces. For any other template an image is one private-use character in the text of its message,
one that no text of the caller contains. A sound is an image of another type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from stretto.audio import Audio
from stretto.audio.clip import decode_base64
from stretto.cache.items import is_image, is_sound
from stretto.errors import InvalidRequest, param_error
from stretto.text.intake import check_messages
from stretto.text.messages import IMAGES, SOUNDS
from stretto.text.template import ChatTemplate
from stretto.vision.image import Image

MARKERS = (
    *("<image>", "<start_of_image>", "<image_soft_token>", "[IMG]", "<|image_pad|>", "<IMG_CONTEXT>"),
    *("<|image|>", "[AUDIO]", "<|AUDIO|>"),
)
AROUND = {  # which templates write, and images have
    "<|image_pad|>": ("<|vision_start|>", "<|vision_end|>"),
    "<|AUDIO|>": ("<|audio_bos|>", "<|audio_eos|>"),
}
MAX_IMAGES = 64  # of a prompt
MAX_DEPTH = 64
FIRST, LAST = 0xF0000, 0xFFFFD  # private characters

Message = Mapping[str, Any]


class ImageMessages:
    """Messages without their images.

    messages = ImageMessages(messages, template.source)
    parts = template.parts(messages.plain)          # texts and ids
    list(messages.resolve(parts, specials))         # texts, ids and images
    """

    def __init__(self, messages: Sequence[Message], source: str) -> None:
        self.images: list[Image | Audio] = []
        self.n_placed = 0  # of them, after `resolve`
        self._mark = ""
        check_count("messages", sum(_is_image(part) for message in messages for part in _parts(message)))
        split = [_split(message, i) for i, message in enumerate(messages)]
        for parts in split:
            self.images += [part for part in parts if not isinstance(part, str)]
        self.is_known = _knows(source, self.images)
        if self.is_known:
            self.plain = [_typed(m, parts) for m, parts in zip(messages, split, strict=True)]
        else:
            self._mark = _unused(messages)
            self.plain = [_flat(m, parts, self._mark) for m, parts in zip(messages, split, strict=True)]

    def resolve(
        self, parts: Sequence[str | int], specials: Mapping[str, int]
    ) -> Iterator[str | int | Image | Audio]:
        """The rendered parts, with the images in their places."""
        markers = {specials[text] for text in MARKERS if text in specials}
        waiting = iter(self.images)
        for part in _without_frames(parts, specials) if self.is_known else parts:
            if isinstance(part, int):
                if self.is_known and part in markers:
                    self.n_placed += 1
                    yield next(waiting, part)
                else:
                    yield part
                continue
            if not self._mark:
                yield part
                continue
            first, *rest = part.split(self._mark)
            if first:
                yield first
            for text in rest:
                self.n_placed += 1
                yield from islice(waiting, 1)
                if text:
                    yield text


def _without_frames(parts: Sequence[str | int], specials: Mapping[str, int]) -> list[str | int]:
    """Parts without the tokens around a marker that come with the image as well."""
    found = list(parts)
    for marker, frame in AROUND.items():
        if not all(text in specials for text in (marker, *frame)):
            continue
        middle, (before, after) = specials[marker], (specials[text] for text in frame)
        for i in range(len(found) - 3, -1, -1):
            if found[i : i + 3] == [before, middle, after]:
                found[i : i + 3] = [middle]
    return found


def check_count(name: str, n: int) -> None:
    """Raise for more images than a prompt may have."""
    if n > MAX_IMAGES:
        raise param_error(
            name, f"{n} images or sounds; at most {MAX_IMAGES} are taken: ask about fewer at a time", n
        )


def has_images(messages: object) -> bool:
    """Whether any message has an image or a sound among its parts."""
    if not isinstance(messages, (list, tuple)):
        return False
    contents = (message.get("content") for message in messages if isinstance(message, Mapping))
    return any(
        is_image(part) or (isinstance(part, Mapping) and part.get("type") in (*IMAGES, *SOUNDS))
        for content in contents
        for part in (content if isinstance(content, (list, tuple)) else (content,))
    )


def place_images(
    template: ChatTemplate,
    messages: Sequence[Message],
    specials: Mapping[str, int],
    variables: Mapping[str, Any],
) -> list[str | int | Image | Audio]:
    """A conversation rendered, as texts, ids and images in order."""
    check_messages([{**m, "content": ""} if isinstance(m, Mapping) else m for m in messages])
    taken = ImageMessages(messages, template.source)
    parts = list(taken.resolve(template.parts(taken.plain, **variables), specials))
    if taken.is_known and taken.n_placed != len(taken.images):  # it writes no marker for each
        taken = ImageMessages(messages, "")
        parts = list(taken.resolve(template.parts(taken.plain, **variables), specials))
    if taken.n_placed != len(taken.images):
        raise param_error(
            "messages",
            f"they have {len(taken.images)} images or sounds, the chat template shows {taken.n_placed}; give "
            "generate a tuple of texts and images instead",
        )
    return parts


def _parts(message: Message) -> Sequence[object]:
    content = message.get("content")
    return content if isinstance(content, (list, tuple)) else (content,)


def _is_image(part: object) -> bool:
    is_typed = isinstance(part, Mapping) and ("image" in str(part.get("type")) or part.get("type") in SOUNDS)
    return is_image(part) or is_typed


def _knows(source: str, images: Sequence[Image | Audio]) -> bool:
    """Whether a template may write a marker for each image and for each sound."""
    kinds = {"audio" if isinstance(image, Audio) else "image" for image in images}
    return bool(kinds) and all(kind in source for kind in kinds)


def _split(message: Message, index: int) -> list[str | Image | Audio]:
    """A message's content as texts, images and sounds."""
    split: list[str | Image | Audio] = []
    for i, part in enumerate(_parts(message)):
        where = f"messages[{index}].content[{i}]"
        if isinstance(part, str):
            split.append(part)
        elif is_sound(part):
            split.append(Audio.open(part))
        elif is_image(part):
            split.append(_image({"image": part}, where))
        elif isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
            split.append(part["text"])
        elif isinstance(part, Mapping) and part.get("type") in SOUNDS:
            split.append(_sound(part, where))
        elif isinstance(part, Mapping) and _is_image(part):
            split.append(_image(part, where))
        elif part is not None:
            raise param_error(
                where,
                f"besides images a part is text or {{'type': 'text', 'text': …}}, not {part!r:.80}",
                part,
            )
    return split


def _image(part: Mapping[str, Any], where: str) -> Image:
    source = part.get("image_url", part.get("image"))
    if isinstance(source, Mapping):
        source = source.get("url")
    if isinstance(source, str) and source[:5].lower() != "data:":
        raise param_error(
            where,
            f"{source[:60]!r} is not opened for a message; give a data: URL, or a stretto.Image",
            source,
        )
    try:
        return Image.open(source)
    except InvalidRequest as error:
        raise InvalidRequest(f"{where}: {error}", param=where) from None


def _sound(part: Mapping[str, Any], where: str) -> Audio:
    """A sound: `input_audio` with base64 as OpenAI's API has it, a data: URL, or an Audio."""
    source = part.get(str(part["type"]), part.get("audio"))
    is_base64 = isinstance(source, Mapping) and "data" in source
    if isinstance(source, Mapping):
        source = source.get("data", source.get("url"))
    if isinstance(source, str) and not is_base64 and source[:5].lower() != "data:":
        raise param_error(
            where,
            f"{source[:60]!r} is not opened for a message; give a data: URL, or a stretto.Audio",
            source,
        )
    try:
        return Audio.open(decode_base64(source) if is_base64 and isinstance(source, str) else source)
    except InvalidRequest as error:
        raise InvalidRequest(f"{where}: {error}", param=where) from None


def _typed(message: Message, parts: list[str | Image | Audio]) -> Message:
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "audio" if isinstance(part, Audio) else "image"}
        for part in parts
    ]
    return {**message, "content": content}


def _flat(message: Message, parts: list[str | Image | Audio], mark: str) -> Message:
    if message.get("content") is None:
        return message
    return {**message, "content": "".join(part if isinstance(part, str) else mark for part in parts)}


def _unused(messages: Sequence[Message]) -> str:
    """A private-use character that no text of the messages contains."""
    taken: set[str] = set()

    def look(value: object, depth: int = 0) -> None:
        if isinstance(value, str):
            taken.update(value)
        elif depth < MAX_DEPTH:  # templates refuse deeper nesting
            items = (*value, *value.values()) if isinstance(value, Mapping) else value
            for item in items if isinstance(items, (list, tuple)) else ():
                look(item, depth + 1)

    look(messages)
    mark = next((chr(code) for code in range(LAST, FIRST, -1) if chr(code) not in taken), None)
    if mark is None:
        raise param_error("messages", "they use all private-use characters there are; leave out some")
    return mark
