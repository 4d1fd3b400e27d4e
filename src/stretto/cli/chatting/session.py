"""`Chat`: a conversation with a model, turn by turn. It knows no commands and no keyboard."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stretto.cli.chatting.answers import Answer, Screen, exact_prompt, generate
from stretto.cli.chatting.conversation import Conversation, Turn, join_text
from stretto.cli.chatting.screen import note
from stretto.cli.generation import ENDS, PlainScreen, catch_ctrl_c
from stretto.cli.output import clean
from stretto.errors import ContextOverflow, InvalidRequest, Unsupported
from stretto.weights import hub

if TYPE_CHECKING:
    from stretto.cli.chatting.conversation import Content
    from stretto.cli.logs import Keeper
    from stretto.llm import LLM
    from stretto.vision import Image


# Images by path anywhere in a line: typed, completed with Tab, or dropped onto the terminal.

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")

# A word: in quotes, or with spaces behind backslashes, as terminals write the files that are dropped on them.
_WORD = re.compile(r'"[^"\n]+"|\'[^\'\n]+\'|(?:\\.|[^\s\\"\'])+')
_AROUND = ".,;:?!)]}("


def find_images(line: str) -> list[tuple[int, int, Path]]:
    """Where a line names files that are images: start, end and path of each."""
    found = []
    for match in _WORD.finditer(line):
        for start, end in _candidates(line, match.start(), match.end()):
            if (path := _image_path(line[start:end])) is not None:
                found.append((start, end, path))
                break
    return found


def _candidates(line: str, start: int, end: int) -> list[tuple[int, int]]:
    """The word as it is, and without the punctuation around it."""
    word = line[start:end]
    inner = word.lstrip("([{").rstrip(_AROUND)
    offset = word.find(inner) if inner else 0
    return [(start, end), (start + offset, start + offset + len(inner))]


def unquote(word: str) -> str:
    """A path as it is, from one in quotes or with backslashes before its spaces."""
    is_quoted = len(word) > 1 and word[0] in "\"'" and word[0] == word[-1]
    return word[1:-1] if is_quoted else re.sub(r"\\(.)", r"\1", word)


def _image_path(word: str) -> Path | None:
    text = unquote(word)
    if not text.lower().endswith(SUFFIXES):
        return None
    try:
        path = Path(text).expanduser()
        return path if path.is_file() else None
    except (OSError, ValueError, RuntimeError):  # too long, a null character, no home
        return None


def with_images(line: str) -> list[str | Image]:
    """The texts and images of a line, in order; a line without images is one text."""
    from stretto.vision import Image

    parts: list[str | Image] = []
    done = 0
    for start, end, path in find_images(line):
        parts += [line[done:start], Image.open(path)]
        done = end
    parts.append(line[done:])
    return [part for part in parts if not isinstance(part, str) or part.strip()]


class Chat:
    """A conversation, the model that answers, and how answers are made and shown."""

    def __init__(
        self,
        llm: LLM,
        model: str,
        conversation: Conversation,
        settings: dict[str, Any],
        *,
        stats: bool = False,
        arguments: dict[str, Any] | None = None,
        screen: Screen | None = None,
        guard: bool = True,
        open_model: Callable[[str], LLM] | None = None,
        keeper: Keeper | None = None,
    ) -> None:
        self.conversation = conversation
        self.settings = settings
        self.stats = stats
        self.arguments = arguments or {}  # of the chat template
        self.screen = PlainScreen(show_reasoning=False) if screen is None else screen
        self.guard = guard
        self.images: list[Image] = []  # of the next turn
        self.draft = ""  # what the next prompt starts with
        self.waiting = ""  # a message that had no room
        self.n_generated = 0
        self.last: Answer | None = None
        self.n_failed = 0
        self.open_model, self._keeper = open_model, keeper
        self.tells_ends = False  # that an answer was stopped or cut
        # Around an answer, so that typed keys do not show in it.
        self.quiet: Callable[[], AbstractContextManager[None]] = nullcontext
        self._use: tuple[Any, int] = (None, 0)
        self.llm, self.model = llm, model
        self._check(llm, model)

    def _check(self, llm: LLM, model: str) -> None:
        try:
            self.prompt(self.conversation.path, "?", llm)
        except Unsupported:
            raise Unsupported(f"{model} has no chat template; continue texts with: stretto run") from None

    def prompt(self, turns: Sequence[Turn], question: Content | None, llm: LLM | None = None) -> list[int]:
        """The tokens of some turns and a question, up to where the answer begins."""
        model = self.llm if llm is None else llm
        messages = self.conversation.make_messages(turns, question)
        if not messages:
            return []
        ids = model.chat_prompt(messages, template=self.arguments, add_generation_prompt=question is not None)
        return exact_prompt(model, ids, [turn.record for turn in turns])

    # -- turns --

    def say(self, line: str) -> Turn:
        """Send a line, in which image files may be named, and show the answer."""
        question: Content = line
        if find_images(line):
            if self.llm.vision is None:
                note("this model sees no images, so the path is all it gets; stretto chat --vision FILE")
            else:
                question = with_images(line)
        if self.images:
            question = [*self.images, *([question] if isinstance(question, str) else question)]
        turn = self.ask(question)
        self.images = []
        return turn

    def ask(self, question: Content) -> Turn:
        """Ask, and add the turn to the conversation if there was an answer."""
        conversation = self.conversation
        siblings = conversation.roots if conversation.head is None else conversation.head.children
        n_asked = sum(turn.question == question for turn in siblings)
        try:
            answer = self.generate(self.prompt(conversation.path, question), n_asked)
        except ContextOverflow:
            self.waiting = join_text(question)
            raise
        except KeyboardInterrupt:
            self.draft = join_text(question)
            raise
        return self._add(question, answer)

    def choose(self, turn: Turn, n: int, token: int) -> Turn:
        """Answer again with the first `n` tokens of an answer, then `token`, then what the model says."""
        if turn.record is None or turn.question is None:
            raise InvalidRequest(f"the tokens of turn {turn.number} are not known; /retry makes new ones")
        begun = turn.record.before(n)
        answer = self.generate(list(begun.prompt), begun=begun, first=token)
        self.conversation.head = turn.parent
        return self._add(turn.question, answer)

    def generate(
        self,
        prompt: list[int],
        n_before: int = 0,
        *,
        begun: Answer | None = None,
        first: int | None = None,
        max_tokens: int | None = None,
    ) -> Answer:
        """Answer a prompt on the screen. With a seed, answer number `n_before` of a question has its own."""
        options = dict(self.settings)
        if options.get("seed") is not None:
            options["seed"] += n_before
        if max_tokens is not None:
            options["max_tokens"] = max_tokens
        with catch_ctrl_c() as stopped, self.quiet():
            answer = generate(
                self.llm, prompt, options, self.screen, stopped, guard=self.guard, begun=begun, first=first
            )
        if not answer.tokens and answer.ending == "cancelled":
            raise KeyboardInterrupt
        self.n_generated += len(answer.tokens) - (0 if begun is None else len(begun.tokens))
        self.last = answer
        return answer

    def _add(self, question: Content, answer: Answer) -> Turn:
        turn = self.conversation.add(question, answer.text, answer.reasoning, answer)
        if self.stats:
            note(str(answer))
        elif answer.ending == "repetition" or (answer.ending in ENDS and self.tells_ends):
            note(ENDS[answer.ending])
        if self._keeper is not None:
            self._keeper.keep(self.conversation.messages, self.model, turn.path[0])
        return turn

    # -- the model --

    def switch(self, model: str) -> None:
        """Go on with another model; the one before stays if that fails."""
        if self.open_model is None:
            raise InvalidRequest("another model cannot be loaded here")
        llm = self.open_model(model)
        try:
            self._check(llm, model)
        except BaseException:
            llm.close()
            raise
        self.llm.close()
        self._use_defaults_of(model)
        self.llm, self.model = llm, model
        self.conversation.forget_records()

    def _use_defaults_of(self, model: str) -> None:
        """Exchange what the model before had from the catalogue; the user's own settings stay."""
        before, after = hub.defaults(self.model), hub.defaults(model)
        if self.conversation.system == before.system:
            self.conversation.system = after.system
        kept = {k: v for k, v in self.settings.items() if k not in before.sampling or v != before.sampling[k]}
        self.settings = {**after.sampling, **kept}

    def __enter__(self) -> Chat:
        return self

    def __exit__(self, *_: object) -> None:
        self.llm.close()

    # -- figures --

    @property
    def n_used(self) -> int:
        """How many tokens of the context the conversation takes."""
        conversation = self.conversation
        key = (self.llm, conversation.head, conversation.system)
        if self._use[0] != key:
            self._use = key, len(self.prompt(conversation.path, None)) if conversation.head else 0
        return self._use[1]

    @property
    def is_full(self) -> bool:
        """Whether the last answer ended because the context did."""
        last = self.last
        if last is None or last.ending != "length":
            return False
        return len(last.prompt) + len(last.tokens) >= self.llm.context_length - 1

    def summary(self) -> str:
        """The number of tokens and the speed."""
        n_turns = len(self.conversation.path)
        line = (
            f"{n_turns} turn{'' if n_turns == 1 else 's'} in {self.n_used:,} of "
            f"{self.llm.context_length:,} tokens; {self.n_generated:,} generated in all"
        )
        return line if self.last is None else f"{line}; the last answer: {self.last}"

    def status(self) -> list[tuple[str, str]]:
        """The status line: pieces of text, each with its class of style."""
        size, last = self.llm.context_length, self.last
        used = min(self.n_used, size)
        share = used / size
        use = "full" if share > 0.9 else "much" if share > 0.75 else "some"
        pieces = [
            ("turn", f"turn {0 if self.conversation.head is None else self.conversation.head.number}"),
            (use, f"{used:,}/{size:,} tokens ({share:.0%})"),
        ]
        if last is not None and last.tokens_per_second:
            pieces.append(("speed", f"{last.tokens_per_second:.1f} tok/s"))
        if last is not None and last.n_cached:
            pieces.append(("cached", f"{last.n_cached:,}/{last.n_prompt:,} cached"))
        if self.images:
            pieces.append(
                ("images", f"{len(self.images)} image{'s' if len(self.images) > 1 else ''} to show")
            )
        return [*pieces, ("model", clean(Path(self.model).name))]
