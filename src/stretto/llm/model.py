"""A loaded model: what one does with it, each in a line or two."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Backend, Batch
from stretto.engine import Engine, Limits, Request, Sequence, Step
from stretto.engine.adapters import AdapterInfo, adapter_parts
from stretto.engine.metrics import StepLog
from stretto.engine.params import Options, merge_options, sampling_params
from stretto.engine.parked import ParkedSequences
from stretto.engine.passes import (
    complete,
    compute_activations,
    compute_all,
    compute_logits,
    embed_request,
    embedding_head,
    logits_request,
    states_request,
)
from stretto.engine.sequence import new_sequence, restored_sequence, step_all
from stretto.engine.table import CellTable
from stretto.errors import InvalidRequest
from stretto.llm.base import EngineModel
from stretto.llm.prompts import Prompt, prompt_ids
from stretto.llm.scoring import Adapter, Scoring
from stretto.llm.texts import Texts, is_list, new_runs
from stretto.llm.updating import Updating
from stretto.loading.choose import Route
from stretto.models.sites import Site, list_sites
from stretto.options.documenting import document_options
from stretto.options.generating import CACHE_SALT, PARALLEL, SAMPLING
from stretto.sampling.sampler import RandomStream
from stretto.text.reasoning import find_reasoning
from stretto.text.template import ChatTemplate
from stretto.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from stretto.backends.base import Pooling
    from stretto.options.keywords import ParallelOptions, SamplingOptions
    from stretto.parallel import ParallelStream, ParallelText
    from stretto.parallel.run import AsyncParallelStream
    from stretto.structured import Compiled, Grammar, Guide
    from stretto.vision.vision import Vision

Floats = NDArray[np.float32]

ONE_STREAM = "a stream is of one run; make one for each prompt, and take steps in turns"


class LLM(Texts, Scoring, Updating, EngineModel):
    """A model, ready to generate. Make one with `stretto.load`; close it, or use it in a `with`."""

    verbs = "generate", "stream", "chat", "score", "embed", "parallel"

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        template: ChatTemplate | None = None,
        *,
        fingerprint: Callable[[], str] | None = None,
        prefix_cache: bool = True,
        limits: Limits | None = None,
        vision: Vision | None = None,
        route: Route | None = None,
        defaults: Mapping[str, Any] | None = None,
        path: Path | None = None,
    ) -> None:
        super().__init__(Engine(backend, tokenizer, limits, prefix_cache, fingerprint), tokenizer)
        self._engine.runner.images = self.vision = vision  # what encodes images, or None
        self._engine.reasoning = None if template is None else find_reasoning(template.source, tokenizer)
        self.template = template
        self.defaults = Options(**(defaults or {}))  # for options that a call does not name
        self._path = path  # of the file or folder that it was loaded from
        self.route = route  # what runs the model, what else could, and why not; None if it was not loaded
        self.cells = CellTable(self._engine)  # copy, remove, keep, clear by `seq.id`
        self.cache = ParkedSequences(self._engine)  # parked sequences, the prefix cache

    @property
    def precision(self) -> str:
        """How products are computed: "standard", "high", or "exact" by the reference backend."""
        return self._engine.backend.precision

    @property
    def steps(self) -> StepLog:
        """The last steps of the engine: tokens, requests, seconds. Reading them needs no lock."""
        return self._engine.events

    # -- passes --

    def embed(
        self, texts: list[str] | list[list[int]], *, pooling: Pooling | None = None, normalize: bool = True
    ) -> Floats:
        """float32[n_texts, n_embd]: a vector for each text, from the final hidden states of its tokens.

        `pooling="mean"` is their mean, "cls" the first token's, "last" the last one's; None is what the file
        says, or else the mean. With `normalize` vectors are L2-normalised, so that their dot product is the
        cosine between them.

        >>> cat, dog = llm.embed(["a cat", "a dog"])
        """
        return cast(Floats, complete(self._engine, self._embedding(texts, pooling, normalize)))

    async def aembed(
        self, texts: list[str] | list[list[int]], *, pooling: Pooling | None = None, normalize: bool = True
    ) -> Floats:
        """As `embed`, to await; cancelling the task cancels it."""
        from stretto.engine.aio import finished_pass

        make = partial(self._embedding, texts, pooling, normalize)
        return cast(Floats, await finished_pass(self._worker, make))

    def token_vectors(self, texts: list[str] | list[list[int]]) -> list[Floats]:
        """float32[n_tokens, n_embd] of each text: the final hidden states of its tokens, as they are.

        >>> [states] = llm.token_vectors(["a cat"])
        """
        return cast("list[Floats]", complete(self._engine, self._states(texts)))

    async def atoken_vectors(self, texts: list[str] | list[list[int]]) -> list[Floats]:
        """As `token_vectors`, to await; cancelling the task cancels it."""
        from stretto.engine.aio import finished_pass

        return cast("list[Floats]", await finished_pass(self._worker, partial(self._states, texts)))

    def _states(self, texts: Any) -> Request[Any]:
        return states_request(self._engine, self._all_ids(texts))

    def _embedding(self, texts: Any, pooling: Pooling | None, normalize: bool) -> Request[Any]:
        head = embedding_head(self._engine, pooling)
        return embed_request(self._engine, self._all_ids(texts), head, normalize)

    def _all_ids(self, texts: Any) -> list[list[int]]:
        if not isinstance(texts, list):
            raise InvalidRequest(f"texts must be a list, not {type(texts).__name__}", param="texts")
        return [prompt_ids(self._engine, text, param="texts") for text in texts]

    @overload
    def parallel(
        self,
        prompt: str | list[int] | Sequence,
        options: Options | None = None,
        *,
        stream: Literal[False] = False,
        **keywords: Unpack[ParallelOptions],
    ) -> ParallelText: ...
    @overload
    def parallel(
        self,
        prompt: str | list[int] | Sequence,
        options: Options | None = None,
        *,
        stream: Literal[True],
        **keywords: Unpack[ParallelOptions],
    ) -> ParallelStream: ...
    @overload
    def parallel(
        self,
        prompt: list[str] | list[list[int]] | list[Sequence],
        options: Options | None = None,
        *,
        stream: Literal[False] = False,
        **keywords: Unpack[ParallelOptions],
    ) -> list[ParallelText]: ...
    @document_options(PARALLEL)
    def parallel(
        self, prompt: Any, options: Options | None = None, *, stream: bool = False, **keywords: Any
    ) -> ParallelText | list[ParallelText] | ParallelStream:
        """Keep every probable token, several at one position (stretto docs explanation/parallel).

        A prompt is text, token ids, or a sequence, from a fork of which the run goes on; a list of them is
        run in one batch. With `stream=True` steps come one by one.

        >>> llm.parallel("My favourite colour is", max_tokens=20).brackets
        """
        from stretto.parallel import ParallelStream, run_all

        whole = is_list(prompt)
        if whole and stream:
            raise InvalidRequest(ONE_STREAM, param="prompt")
        runs = new_runs(self._engine, prompt if whole else [prompt], merge_options(options, keywords))
        if stream:
            return ParallelStream(self._engine, runs[0])
        texts = run_all(self._engine, runs)
        return texts if whole else texts[0]

    @overload
    def aparallel(
        self,
        prompt: Any,
        options: Options | None = None,
        *,
        stream: Literal[False] = False,
        **keywords: Unpack[ParallelOptions],
    ) -> Awaitable[Any]: ...
    @overload
    def aparallel(
        self,
        prompt: str | list[int] | Sequence,
        options: Options | None = None,
        *,
        stream: Literal[True],
        **keywords: Unpack[ParallelOptions],
    ) -> AsyncParallelStream: ...
    @document_options(PARALLEL)
    def aparallel(
        self, prompt: Any, options: Options | None = None, *, stream: bool = False, **keywords: Any
    ) -> Awaitable[ParallelText | list[ParallelText]] | AsyncParallelStream:
        """As `parallel`, to await; with `stream=True` for `async for`. Leaving or cancelling it ends it."""
        from stretto.parallel.run import AsyncParallelStream, outcomes

        whole, engine, chosen = is_list(prompt), self._engine, merge_options(options, keywords)
        if not stream:
            prompts = prompt if whole else [prompt]
            return outcomes(self._worker, lambda: new_runs(engine, prompts, chosen), whole)
        if whole:
            raise InvalidRequest(ONE_STREAM, param="prompt")
        return AsyncParallelStream(self._worker, lambda: new_runs(engine, [prompt], chosen)[0])

    # -- tokens --

    def sequence(
        self,
        prompt: Prompt = (),
        seed: int | None = None,
        *,
        cache_salt: str | None = None,
        adapter: Adapter | None = None,
    ) -> Sequence:
        """A sequence in your own hands: logits, sample, step, append, fork, truncate, remove.

        It shares cached prefixes with sequences and prompts of the same `cache_salt` alone. All its tokens,
        and those of its forks, are computed with `adapter`, as in `generate`. Special tokens spelt out in a
        text are parsed; for a text that you do not trust, give `llm.tokenizer.encode(text)`.
        """
        CACHE_SALT.check(cache_salt)
        ids, parts = prompt_ids(self._engine, prompt, cache_salt), adapter_parts(adapter)
        return new_sequence(self._engine, ids, RandomStream(seed), cache_salt, parts)

    def guide(self, grammar: Grammar | Mapping[str, Any]) -> Guide:
        """A guide through a grammar, for a loop of your own: allowed and forced tokens.

        >>> guide = llm.guide(stretto.Grammar.choices(["yes", "no"]))
        >>> seq.sample(logits=guide.masked(seq.logits))
        """
        from stretto.structured import as_grammar

        return self._engine.grammars.compile(as_grammar(grammar)).guide()

    async def compile_grammar(self, grammar: Grammar | Callable[[], Grammar], caller: str = "") -> Compiled:
        """A grammar, or the one that a function makes, compiled for the option `grammar`.

        The event loop goes on meanwhile. Callers of a server share the threads that compile: a caller's slow
        grammars delay its own alone.
        """
        return await self._engine.grammars.acompile(grammar, caller)

    def restore(
        self, path: str | os.PathLike[str], *, share: bool = False, cache_salt: str | None = None
    ) -> Sequence:
        """The sequence that `seq.save` wrote: the same tokens, K and V, and random numbers to come.

        Anything but a whole file of this very model and kind of cache raises `SnapshotError`. Other prompts
        do not take its cells, unless `share` says that the file is to be trusted: nobody can tell whether K
        and V of a file are those of its tokens. Its forks share them in any case.

        >>> seq.save("story.safetensors")
        >>> llm.restore("story.safetensors").step()
        """
        CACHE_SALT.check(cache_salt)
        return restored_sequence(self._engine, path, share, cache_salt)

    @document_options(SAMPLING)
    def step(self, sequences: Iterable[Sequence], **options: Unpack[SamplingOptions]) -> list[Step]:
        """Move several sequences on by one token each, with one forward pass for all.

        Where an end token was drawn, `Step.is_end` says so and nothing is appended: leave that sequence out
        of the next call.
        """
        params = sampling_params(options)
        several = _several(sequences)
        with self._engine.lock:
            compute_all(self._engine, several)
            return step_all(self._engine, several, params)

    def logits(self, sequences: Iterable[Sequence]) -> Floats:
        """float32[n, n_vocab]: the logits of several sequences, in one forward pass and without sampling.

        It is a copy: change `seq.logits` to change what a sequence samples from.

        >>> llm.logits([seq, alt]).argmax(axis=1)
        """
        return compute_logits(self._engine, _several(sequences))

    async def alogits(self, sequences: Iterable[Sequence]) -> Floats:
        """As `logits`, to await: what is pending is computed together with the requests that run."""
        import asyncio

        from stretto.engine.aio import finished_pass

        several = _several(sequences)
        await finished_pass(self._worker, partial(logits_request, self._engine, several))
        return await asyncio.to_thread(compute_logits, self._engine, several)

    def forward(self, batch: Batch) -> Floats:
        """Run a batch you built: float32[n_wanted, n_vocab], a row for each token that wanted logits."""
        if not isinstance(batch, Batch):
            raise InvalidRequest(f"forward takes a stretto.Batch, not {type(batch).__name__}", param="batch")
        return self.cells.forward(batch)

    # -- adapters --

    @property
    def adapters(self) -> Mapping[str, AdapterInfo]:
        """The loaded adapters by name: path, rank, how many matrices, fingerprint."""
        return self._engine.runner.adapters

    def load_adapter(self, name: str, path: str | os.PathLike[str]) -> AdapterInfo:
        """Load a LoRA adapter, a GGUF file or PEFT folder, for requests by name (stretto docs adapters).

        One of another model, or one that changes what adapters cannot change, raises `ModelError`.

        >>> llm.load_adapter("pirate", "pirate.gguf")
        >>> llm.generate("Hello", adapter="pirate")
        """
        from stretto.models.summary import make_target
        from stretto.weights.adapters import read_adapter

        adapters = self._engine.runner.adapters
        adapters.able()
        adapters.check_free(name)
        lora = read_adapter(path, make_target(self.spec))
        with self._engine.arrivals.arriving(), self._engine.lock:
            self._engine.runner.check_open()
            adapters.load(name, lora)
        return adapters[name]

    def load_steering(self, name: str, vectors: Mapping[int, Any]) -> AdapterInfo:
        """Load vectors that are added to the residual stream at the end of layers, as an adapter.

        >>> llm.load_steering("calm", {12: direction})
        >>> llm.generate("Hello", adapter={"calm": 4.0})
        """
        from stretto.models.summary import make_target
        from stretto.weights.adapters.steering import make_steering

        adapters = self._engine.runner.adapters
        adapters.able()
        made = make_steering(vectors, make_target(self.spec))
        with self._engine.arrivals.arriving(), self._engine.lock:
            self._engine.runner.check_open()
            adapters.load(name, made)
        return adapters[name]

    def save_steering(self, path: str | os.PathLike[str], vectors: Mapping[int, Any]) -> None:
        """Write vectors by layer as a GGUF file, which `load_adapter` and llama.cpp read."""
        from stretto.models.summary import make_target
        from stretto.weights.adapters.steering import write_steering

        write_steering(path, vectors, make_target(self.spec))

    def activations(
        self, text: str | Seq[int], layers: Seq[int], *, adapter: Adapter | None = None
    ) -> Floats:
        """float32[layers, tokens, n_embd]: the residual stream of each token at the end of layers.

        >>> llm.activations("I am calm.", [12])[0, -1]
        """
        ids = prompt_ids(self._engine, text, param="text")
        return compute_activations(self._engine, ids, list(layers), adapter)

    def sites(self) -> dict[str, Site]:
        """The places in the layers of this model whose values can be captured and changed, by name.

        >>> llm.sites()["layers.3.attn.heads"].heads
        9
        """
        return list_sites(self.spec)

    def unload_adapter(self, name: str) -> None:
        """Free an adapter; while a sequence or a request uses it, that raises `InvalidRequest`."""
        with self._engine.arrivals.arriving(), self._engine.lock:
            self._engine.scheduler.sweep()
            self._engine.runner.adapters.unload(name)

    # -- the end --

    def close(self) -> None:
        """Cancel what runs and free everything."""
        super().close()
        if self._engine.fingerprint is not None:
            self._engine.fingerprint = _closed  # the file's own would keep it mapped


def _closed() -> str:
    raise InvalidRequest("the model is closed; load it again")


def _several(sequences: Iterable[Sequence]) -> list[Sequence]:
    if isinstance(sequences, Sequence):
        raise InvalidRequest(
            "sequences must be a list of sequences, not one; write [seq], or use the sequence's own methods",
            param="sequences",
        )
    return list(sequences)
