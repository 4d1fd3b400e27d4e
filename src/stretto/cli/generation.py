"""Shared by `stretto run` and `stretto chat`: loading a model, and printing its text as it is generated."""

from __future__ import annotations

import json
import os
import signal
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from stretto.cli.output import clean, console
from stretto.errors import InvalidRequest
from stretto.weights import hub

if TYPE_CHECKING:
    from stretto.audio import Audio
    from stretto.llm import LLM, Parts
    from stretto.vision import Image

# A terminal obeys control characters; format characters reverse the direction of text. Lines and tabs may
# stay, and the joiners that emoji, Persian and Indic scripts are written with.
_OBEYED = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_HARMLESS = frozenset("\n\t\u200c\u200d")

_NOTHING = {
    "length": "no answer within the limit of tokens",
    "context": "no answer before the context was full",
    "repetition": "no answer: the reasoning repeats itself",
    "timeout": "no answer before the timeout",
    "cancelled": "stopped before there was an answer",
}
ENDS = {
    "length": "cut at the limit",
    "context": "cut by the end of the context",
    "repetition": "stopped because it repeats itself (--no-repeat-guard lets it)",
    "timeout": "cut by the timeout",
    "cancelled": "stopped",
}


def speed(n_tokens: int, tokens_per_second: float, first_token: float) -> list[str]:
    """How many tokens came, and how fast, as phrases; without what is too little to measure."""
    facts = [f"{n_tokens:,} token{'' if n_tokens == 1 else 's'}"]
    if tokens_per_second:
        facts.append(f"{tokens_per_second:.1f} tok/s")
    if first_token:
        facts.append(f"first token after {first_token:.2f} s")
    return facts


@dataclass(frozen=True)
class Answer:
    """The generated text, and its speed."""

    text: str
    n_tokens: int
    first_token: float  # seconds
    tokens_per_second: float  # 0 where there is too little to measure
    finish_reason: str
    reasoning: str = ""

    def __str__(self) -> str:
        facts = speed(self.n_tokens, self.tokens_per_second, self.first_token)
        if self.finish_reason in ENDS:
            facts.append(ENDS[self.finish_reason])
        return ", ".join(facts)

    @property
    def nothing(self) -> str | None:
        """Why there is no text, in a sentence; None if there is some."""
        if self.text:
            return None
        why = _NOTHING.get(self.finish_reason, "the model ended its answer at once, without a token of text")
        if self.reasoning:
            return f"{why}; it only reasoned, {self.n_tokens:,} tokens long (--reasoning shows it)"
        return f"{why}; another wording, a higher temperature or another model may help"


def open_media(images: Iterable[Path], sounds: Iterable[Path], vision: str | None) -> list[Image | Audio]:
    """Open files of images and sounds, before the model is loaded."""
    images, sounds = list(images), list(sounds)
    if not images and not sounds:
        return []
    from stretto.audio import Audio
    from stretto.vision import Image

    media: list[Image | Audio] = [Image.open(path.expanduser()) for path in images]
    media += [Audio.open(path.expanduser()) for path in sounds]
    if vision is None:
        raise InvalidRequest(
            "--image needs --vision, the mmproj file that lets the model see"
            if images
            else "--audio needs --vision, the mmproj file that lets the model hear"
        )
    return media


def open_llm(
    model: str, *, vision: str | None = None, server: bool = False, verb: str = "generate", **options: Any
) -> LLM:
    """Load a model that has a verb; one that is not here is fetched first. Both are shown on stderr.

    With `server` it may be one that a running server of this user has loaded in the same way.
    """
    from stretto.cli import remote
    from stretto.cli.pull import pull_missing

    options.setdefault("precision", hub.defaults(model).precision or "standard")

    def load_here() -> LLM:
        import stretto

        with _shown(f"loading {clean(model)}"):
            return stretto.load(model, vision=vision, **options)

    if server:
        with _shown(f"loading {clean(model)}"):  # which a server may have to do as well
            found = remote.find(model, vision=vision, open_here=load_here, **options)
        if found is not None:
            return found
    pull_missing(model, verb)
    return load_here()


@contextmanager
def _shown(text: str) -> Iterator[None]:
    """Show a line on stderr meanwhile, in a terminal; without rich, which takes time itself."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield
        return
    sys.stderr.write(f"\r{text} …")
    sys.stderr.flush()
    try:
        yield
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def add_defaults(
    model: str, system: str | None, settings: dict[str, Any], tells: bool
) -> tuple[str | None, dict[str, Any]]:
    """The system message and the settings of an answer: options, then the configuration, then the catalogue.

    An empty message is none. What neither says is the model's own (GGUF's general.sampling.…, a folder's
    generation_config.json), or the usual. With `tells`, a terminal is told a message that nobody asked for,
    once for each model.
    """
    from stretto.cli import config_file
    from stretto.cli.first_run import is_first

    chosen, known = config_file.read(), hub.defaults(model)
    given = chosen.system if system is None else system
    if given is None and known.system and tells and wants_stats(None):
        entry = hub.look_up(model)
        if entry is not None and is_first(f"told-{entry.name}"):
            note(f"system: {known.system} (--system '' for none)")
    message = known.system if given is None else given
    return message or None, {**known.sampling, **chosen.sampling, **settings}


def say(
    llm: LLM,
    prompt: str | list[int] | Parts,
    options: dict[str, Any],
    show_reasoning: bool = False,
) -> Answer:
    """Generate, and write the text to stdout as it comes; reasoning goes to stderr, if it is to be shown."""
    screen = PlainScreen(show_reasoning)
    with llm.stream(prompt, **options) as stream:
        try:
            for token in stream:
                screen.show(token.text, token.is_reasoning)
        finally:
            screen.end()
        result = stream.result
    return Answer(
        text=result.text,
        n_tokens=result.usage.completion_tokens,
        first_token=result.timings.first_token,
        tokens_per_second=result.timings.tokens_per_second,
        finish_reason="context" if result.stop_reason == "context" else result.finish_reason,
        reasoning=result.reasoning,
    )


class PlainScreen:
    """Text on stdout as it is; reasoning on stderr, set off from it, if it is to be shown."""

    def __init__(self, show_reasoning: bool) -> None:
        self._show_reasoning = show_reasoning
        self._has_thought = False
        self._last = "\n"

    def show(self, text: str, is_reasoning: bool = False) -> None:
        """Show a piece of text."""
        if not text or (is_reasoning and not self._show_reasoning):
            return
        if is_reasoning:
            console(stderr=True).print(printable(text), style="dim", end="", soft_wrap=True)
            self._has_thought = True
            return
        self._end_thought()
        sys.stdout.write(text := printable(text))
        sys.stdout.flush()
        self._last = text

    def end(self) -> None:
        """Finish the text."""
        self._end_thought()
        if not self._last.endswith("\n"):
            sys.stdout.write("\n")
            sys.stdout.flush()
        self._last = "\n"

    def _end_thought(self) -> None:
        """Leave an empty line behind reasoning."""
        if self._has_thought:
            console(stderr=True).print("\n")
            self._has_thought = False


def template_arguments(given: Iterable[str] | None) -> dict[str, Any]:
    """The arguments of a chat template, from NAME=VALUE or JSON objects.

    >>> template_arguments(["enable_thinking=false", "reasoning_effort=high"])
    {'enable_thinking': False, 'reasoning_effort': 'high'}
    """
    arguments: dict[str, Any] = {}
    for text in given or ():
        if text.lstrip().startswith("{"):
            try:
                arguments |= json.loads(text)
            except (ValueError, RecursionError) as error:
                raise InvalidRequest(f"--template-arg: not JSON: {error}") from None
            continue
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise InvalidRequest(f"--template-arg takes NAME=VALUE or a JSON object, not {text!r}")
        try:
            arguments[name] = json.loads(value)
        except (ValueError, RecursionError):
            arguments[name] = value
    return arguments


@contextmanager
def catch_ctrl_c() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a flag, so that no step is interrupted; a second one interrupts as usual."""
    pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    try:
        previous = signal.signal(signal.SIGINT, press)
    except ValueError:  # not in the main thread, where signals do not arrive anyway
        yield lambda: False
        return
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, previous)


def printable(text: str) -> str:
    r"""`text` with its lines and tabs, and everything else escaped that a terminal might obey.

    >>> printable("a\tb\n\x1b[2J")
    'a\tb\n\\x1b[2J'
    """
    return "".join(
        clean(char) if unicodedata.category(char) in _OBEYED and char not in _HARMLESS else char
        for char in text
    )


def check_text(text: str) -> str:
    """`text`, which has to be real text: a shell or a file can hold any bytes."""
    try:
        text.encode("utf-8")
    except UnicodeError as error:
        raise InvalidRequest(f"the text is not UTF-8: {error}") from None
    return text


def note(text: str) -> None:
    """Print a line on stderr, set off from the model's text; without rich, which takes time to import."""
    is_dim = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    print(f"\x1b[2m{printable(text)}\x1b[0m" if is_dim else printable(text), file=sys.stderr)


def wants_stats(asked: bool | None) -> bool:
    """Whether to show something on stderr: as the option says, else if it is a terminal."""
    return sys.stderr.isatty() if asked is None else asked
