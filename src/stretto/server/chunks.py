"""Answers of OpenAI's endpoints as server-sent events."""

from __future__ import annotations

from collections import Counter

from stretto import Result, Token
from stretto.engine.types import PromptStep
from stretto.server.errors import ApiError, body_of, dumps
from stretto.server.generation import progress_field
from stretto.server.open_response import DONE, event
from stretto.server.schemas import StreamOptions
from stretto.server.shapes import TAIL, Shape

END = "}\n\n"  # of a chunk


class Chunks:
    """An answer as server-sent events. The constant parts of a text's chunks are formatted once."""

    def __init__(
        self, shape: Shape, options: StreamOptions | None, n_prompts: int, timings_per_token: bool = False
    ) -> None:
        include_usage = options is not None and options.include_usage
        self._shape = shape
        self._timed = timings_per_token
        self._n_tokens = 0
        self._texts = shape.generation.texts
        self._follows = self._texts.follows_prompts
        self._usage = include_usage
        self._counts = bool(include_usage and options and options.continuous_usage_stats)
        self._n_each: Counter[int] = Counter()  # tokens of each text so far
        self._n_prompt = 0
        self._n_prompts = n_prompts
        none = ',"usage":null' if include_usage and not self._counts else ""
        self._head = f"data: {dumps(shape.head(shape.chunk_kind))[:-1]}{none},"
        self._heads: dict[int, str] = {}  # of the texts that have begun
        self._results: dict[int, Result] = {}  # of those that have ended

    def more(self, news: list[tuple[int, Token]]) -> bytes:
        """The chunks of some tokens."""
        out = [self._progress(*step) for step in self._texts.prompt_steps()] if self._follows else []
        for index, token in news:
            begin = len(out)
            head = self._heads.get(index)
            if head is None:
                head = self._heads[index] = f'{self._head}"choices":[{{"index":{index},'
                if opening := self._shape.opening(index):
                    first = f"{head}{opening}{self._shape.opening_end()}"
                    out.append(self._counted(first, index) if self._counts else first)
                    begin = len(out)  # its count is none
            if piece := self._shape.piece(index, token):
                out.append(f"{head}{piece}{self._timed_tail() if self._timed else TAIL}")
            if token.finish_reason is not None:
                result = self._results[index] = self._texts.result(index)
                self._shape.generation.check(result)
                out += [f"{self._head}{last}\n\n" for last in self._shape.ending(index, result)]
            if self._counts:
                self._n_each[index] += 1
                out[begin:] = [self._counted(chunk, index) for chunk in out[begin:]]
        return "".join(out).encode()

    def _progress(self, index: int, step: PromptStep) -> str:
        """The chunk of a step that has computed a part of a prompt."""
        generation = self._shape.generation
        chunk = {
            **self._shape.head(self._shape.chunk_kind),
            "choices": [{"index": index, **self._shape.empty(), "finish_reason": None}],
            "prompt_progress": progress_field(generation, step),
        }
        return event({**chunk, "timings": generation.prompt_timings(step)} if self._timed else chunk)

    def _counted(self, chunk: str, index: int) -> str:
        """A chunk of a text, with the numbers of its tokens so far and of those of all prompts."""
        n_text, n_prompt = self._n_each[index], self._shape.generation.progress.prompt_tokens
        if (result := self._results.get(index)) is not None:
            n_text, n_prompt = result.usage.completion_tokens, max(n_prompt, result.usage.prompt_tokens)
        n_prompt = self._n_prompt = max(n_prompt, self._n_prompt)
        counts = {"prompt_tokens": n_prompt, "completion_tokens": n_text, "total_tokens": n_prompt + n_text}
        return f'{chunk.removesuffix(END)},"usage":{dumps(counts)}{END}'

    def _timed_tail(self) -> str:
        """The end of a token's chunk, with the timings so far."""
        self._n_tokens += 1
        timings = self._shape.generation.timings_now(self._n_tokens)
        return f',"finish_reason":null}}],"timings":{dumps(timings)}}}\n\n'

    async def end(self) -> bytes:
        """The usage, if it was asked for, and the last event."""
        if not self._usage:
            return DONE
        results = [self._results[index] for index in sorted(self._results)]
        last = {
            **self._shape.head(self._shape.chunk_kind),
            "choices": [],
            "usage": self._shape.usage(results, self._n_prompts),
            "timings": self._shape.generation.timings(results),
        }
        return event(last).encode() + DONE

    def failed(self, error: ApiError) -> bytes:
        """The error is an event too, and the last one."""
        return event(body_of(error, "/v1/")).encode()
