"""One answer of a model: generated, shown as it comes, and kept with its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from stretto.cli import generation

if TYPE_CHECKING:
    from stretto.llm import LLM

N_ALTERNATIVES = 5  # of each token, for /tokens


class Screen(Protocol):
    """Shows text as it comes."""

    def show(self, text: str, is_reasoning: bool = False) -> None:
        """Show a piece of text."""

    def end(self) -> None:
        """Finish the text: whatever follows starts on a new line."""


class Piece(NamedTuple):
    """An event of an answer: a token (or None), the text that came with it, and what else was likely."""

    token: int | None
    text: str
    is_reasoning: bool = False
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()  # tokens and their log-probabilities


@dataclass(frozen=True)
class Answer:
    """What a model said to a prompt, token by token, and how fast."""

    prompt: tuple[int, ...]
    pieces: tuple[Piece, ...]
    ending: str  # its finish reason
    n_prompt: int = 0  # tokens before the first new one
    n_cached: int = 0  # of them in the cache already
    first_token: float = 0.0  # seconds
    tokens_per_second: float = 0.0  # 0 where there is too little to measure

    @property
    def text(self) -> str:
        """The answer, without reasoning."""
        return "".join(piece.text for piece in self.pieces if not piece.is_reasoning)

    @property
    def reasoning(self) -> str:
        """What the model thought first."""
        return "".join(piece.text for piece in self.pieces if piece.is_reasoning)

    @property
    def said(self) -> list[Piece]:
        """The pieces that are tokens."""
        return [piece for piece in self.pieces if piece.token is not None]

    @property
    def tokens(self) -> list[int]:
        """Its token ids."""
        return [piece.token for piece in self.pieces if piece.token is not None]

    def before(self, n: int) -> Answer:
        """The answer as it was when it had `n` tokens."""
        places = [index for index, piece in enumerate(self.pieces) if piece.token is not None]
        end = places[n] if n < len(places) else len(self.pieces)
        while (
            end and self.pieces[end - 1].token is None
        ):  # such a piece is the start of the next token's text
            end -= 1
        return replace(self, pieces=self.pieces[:end])

    def __str__(self) -> str:
        facts = generation.speed(len(self.tokens), self.tokens_per_second, self.first_token)
        if self.n_cached:
            facts.append(f"{self.n_cached:,} of {self.n_prompt:,} prompt tokens cached")
        if self.ending in generation.ENDS:
            facts.append(generation.ENDS[self.ending])
        return ", ".join(facts)


def generate(
    llm: LLM,
    prompt: Sequence[int],
    options: dict[str, Any],
    screen: Screen,
    stop: Callable[[], bool] = lambda: False,
    *,
    guard: bool = True,
    begun: Answer | None = None,
    first: int | None = None,
) -> Answer:
    """Answer a prompt; `stop()` is called after each token.

    `begun` is an answer to the same prompt that is to be continued, and `first` the token to go on with.
    """
    pieces: list[Piece] = [] if begun is None else list(begun.pieces)
    start = [piece.token for piece in pieces if piece.token is not None]
    options = {**options, "reasoning": True, "logprobs": N_ALTERNATIVES, "continues": len(start)}
    options["repeat_guard"] = guard
    if first is not None:
        options["hooks"] = (*options.get("hooks", ()), Forced(first))
    for piece in pieces:
        screen.show(piece.text, piece.is_reasoning)
    with llm.stream([*prompt, *start], **options) as stream:
        try:
            for event in stream:
                top = tuple((other.token, other.logprob) for other in event.top)
                ends = event.finish_reason == "stop" and event.id in llm.tokenizer.end_ids
                token = None if ends else event.id
                pieces.append(Piece(token, event.text, event.is_reasoning, event.logprob, top))
                screen.show(event.text, event.is_reasoning)
                if stop():
                    stream.cancel()
        except KeyboardInterrupt:  # a second Ctrl-C, which did not wait for the token: the others stay
            stream.cancel()
        finally:
            screen.end()
        result = stream.result
    return Answer(
        prompt=tuple(prompt),
        pieces=tuple(pieces),
        ending=result.finish_reason,
        n_prompt=result.usage.prompt_tokens,
        n_cached=result.usage.cached_tokens,
        first_token=result.timings.first_token,
        tokens_per_second=result.timings.tokens_per_second,
    )


class Forced:
    """A hook that leaves one token to choose, the first time it is called."""

    def __init__(self, token: int) -> None:
        self._token: int | None = token

    def __call__(self, logits: Any, tokens: Any) -> None:
        """Take the logits of all other tokens away."""
        if self._token is not None:
            logit = logits[self._token]
            logits[:] = -float("inf")
            logits[self._token] = logit
            self._token = None


def exact_prompt(llm: LLM, prompt: list[int], answers: Sequence[Answer | None]) -> list[int]:
    """A prompt in which earlier answers have the very tokens that the model chose.

    A tokenizer may cut the text of an answer in another way than the model did, and then nothing behind it
    would be found in the cache. Where the template has changed an answer, its tokens stay the template's.
    """
    for answer in answers:
        if answer is None or llm.tokenizer.decode(answer.tokens) != answer.text:  # it has thought, or was cut
            continue
        n, usual = len(answer.prompt), llm.tokenizer.encode_inside(answer.text)
        if prompt[:n] == list(answer.prompt) and prompt[n : n + len(usual)] == usual:
            prompt = [*prompt[:n], *answer.tokens, *prompt[n + len(usual) :]]
    return prompt
