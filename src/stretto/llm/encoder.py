"""`Encoder`: a model that makes vectors, scores or classes of texts.

    encoder = stretto.load("minilm")
    encoder.embed(["a cat", "a dog"])               # float32[2, 384]
    encoder.rerank("a cat", ["a dog", "a kitten"])  # best first

Texts go through the engine's scheduler, whole, several in a pass. A text's vector has the same bits alone, in
any list and with any number of threads.
"""

from __future__ import annotations

import re
from collections.abc import Sequence as Seq
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Backend, Head, Pooling
from stretto.engine import Engine, Limits, Request
from stretto.engine.passes import complete, embed_request, embedding_head, normalized, states_request
from stretto.errors import InvalidRequest
from stretto.llm.base import EngineModel
from stretto.models import ModelSpec
from stretto.sampling.params import check_integer
from stretto.tasks.results import Classification, Ranking
from stretto.text.tokenizer import Tokenizer

# A text, or a query and a document, as the tokens that an encoder reads.
#
# Nothing in a text can become a special token.

DOUBLED = ("unigram", "roberta")  # kinds and names of tokenizers that put two separators between texts
PLACES = re.compile(r"(\{query\}|\{document\})")  # of a template


class Pairs:
    """The special tokens around texts: [CLS] query [SEP] document [SEP], or as a template says."""

    def __init__(self, tokenizer: Tokenizer, spec: ModelSpec, template: str = "") -> None:
        self._tokenizer = tokenizer
        self._has_types = spec.token_types > 1
        self._template = template
        known = sorted(map(re.escape, tokenizer.specials), key=len, reverse=True)
        # Texts, and the special tokens between them.
        self._pieces = re.split(f"({'|'.join(known)})", template) if known else [template]
        self._start = list(tokenizer.prefix_ids) if tokenizer.add_bos else []
        self._end = list(tokenizer.suffix_ids) if tokenizer.add_eos else []
        doubled = tokenizer.kind in DOUBLED or tokenizer.name.startswith(DOUBLED)
        self._between = self._end * (2 if doubled else 1)

    def one(self, text: str, most: int | None) -> list[int]:
        """The tokens of a text, of which the last are left out beyond `most`."""
        ids = self._tokenizer.encode(text)
        if most is not None:
            ids = ids[: max(1, most - len(self._start) - len(self._end))]
        return [*self._start, *ids, *self._end]

    def two(self, query: str, document: str, most: int | None) -> tuple[list[int], list[int]]:
        """The tokens of a pair and their types; the document's last are left out beyond `most`."""
        if self._template:
            return self._filled(query, document, most)
        first = [*self._start, *self._tokenizer.encode(query), *self._between]
        ids = self._tokenizer.encode(document)
        if most is not None:
            ids = ids[: max(1, most - len(first) - len(self._end))]
        second = [*ids, *self._end]
        return first + second, [0] * len(first) + [int(self._has_types)] * len(second)

    def _filled(self, query: str, document: str, most: int | None) -> tuple[list[int], list[int]]:
        """A template with `{query}` and `{document}`; a document is cut beyond `most`."""
        ids = self._fill(query, document)
        if most is not None and len(ids) > most:
            kept = self._tokenizer.encode(document)
            while len(ids) > most and kept:
                del kept[min(len(kept) - 1, max(0, len(kept) - (len(ids) - most))) :]
                ids = self._fill(query, self._tokenizer.decode(kept).rstrip("\ufffd"))
        return ids, [0] * len(ids)

    def _fill(self, query: str, document: str) -> list[int]:
        """The tokens of a filled template. Only its own text may have special tokens.

        Text between two of them is encoded as a whole, as in training: a word of the query may share a token
        with the template's space before it.
        """
        ids: list[int] = []
        specials = self._tokenizer.specials
        for i, piece in enumerate(self._pieces):
            if i % 2:
                ids.append(specials[piece])
            elif piece:
                texts = {"{query}": query, "{document}": document}
                parts = PLACES.split(piece)
                ids += self._tokenizer.encode("".join(texts.get(part, part) for part in parts))
        return ids


Floats = NDArray[np.float32]
Ids = list[int]
Given = str | list[int]

RELEVANT = ("yes", "relevant", "true", "1", "LABEL_1")  # labels of a document that answers a query


class Encoder(EngineModel):
    """A model for texts that generates nothing. Close it, or use it in a `with`."""

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        *,
        name: str = "",
        terms: str = "",
        limits: Limits | None = None,
        rerank_template: str = "",
    ) -> None:
        super().__init__(Engine(backend, tokenizer, limits, prefix_cache=False), tokenizer)
        self._pairs = Pairs(tokenizer, backend.spec, rerank_template)
        self.name, self.license = name, terms
        classes = () if self.spec.classifier is None else ("classify",)
        self.verbs = ("embed", "rerank", *classes)

    # -- vectors --

    def embed(
        self,
        texts: Seq[Given] | str,
        *,
        normalize: bool = True,
        pooling: Pooling | None = None,
        dimensions: int | None = None,
        truncate: bool = False,
    ) -> Floats:
        """float32[n, size]: a vector for each text (or list of token ids); a single text is a list of one.

        `pooling` is "mean", "cls" (the first token), "last", or None for what the file says. `dimensions`
        keeps the first numbers only, for models that were trained for it. With `normalize` vectors have
        length 1, so that their dot product is the cosine between them. A text that is longer than the
        context raises `ContextOverflow`, or loses its end with `truncate`.

        >>> cat, dog = encoder.embed(["a cat", "a dog"])
        """
        keep = self._checked_dimensions(dimensions)
        request = self._embedding(texts, pooling, normalize and keep is None, truncate)
        return _cut(cast(Floats, complete(self._engine, request)), keep, normalize)

    async def aembed(
        self,
        texts: Seq[Given] | str,
        *,
        normalize: bool = True,
        pooling: Pooling | None = None,
        dimensions: int | None = None,
        truncate: bool = False,
    ) -> Floats:
        """As `embed`, to await; cancelling the task cancels it."""
        from stretto.engine.aio import finished_pass

        keep = self._checked_dimensions(dimensions)
        make = partial(self._embedding, texts, pooling, normalize and keep is None, truncate)
        return _cut(cast(Floats, await finished_pass(self._worker, make)), keep, normalize)

    def token_vectors(self, texts: Seq[Given] | str, *, truncate: bool = False) -> list[Floats]:
        """float32[n_tokens, n_embd] of each text: the final hidden states of its tokens, as they are."""
        return cast("list[Floats]", complete(self._engine, self._states(texts, truncate)))

    async def atoken_vectors(self, texts: Seq[Given] | str, *, truncate: bool = False) -> list[Floats]:
        """As `token_vectors`, to await; cancelling the task cancels it."""
        from stretto.engine.aio import finished_pass

        make = partial(self._states, texts, truncate)
        return cast("list[Floats]", await finished_pass(self._worker, make))

    def _states(self, texts: Any, truncate: bool) -> Request[Any]:
        return states_request(self._engine, self._all_ids(texts, truncate))

    def _checked_dimensions(self, dimensions: int | None) -> int | None:
        if dimensions is None:
            return None
        size = embedding_head(self._engine, None).n_out(self.spec.n_embd)
        check_integer("dimensions", dimensions, 1, size)
        return dimensions

    def _embedding(
        self, texts: Any, pooling: Pooling | None, normalize: bool, truncate: bool
    ) -> Request[Any]:
        head = embedding_head(self._engine, pooling)
        return embed_request(self._engine, self._all_ids(texts, truncate), head, normalize)

    def _all_ids(self, texts: Any, truncate: bool) -> list[Ids]:
        given = [texts] if isinstance(texts, str) else list(texts)
        return [self._text_ids(text, truncate) for text in given]

    def _text_ids(self, text: Given, truncate: bool) -> Ids:
        if isinstance(text, str):
            return self._pairs.one(text, self.context_length if truncate else None)
        return self._engine.runner.check_tokens(text)

    # -- scores --

    def rerank(
        self, query: str, documents: Seq[str], *, top: int | None = None, truncate: bool = False
    ) -> Ranking:
        """Documents by how well they answer a query, best first; `top` keeps only so many.

        A cross-encoder reads query and document together, and a score is its probability; other models
        compare their vectors, and a score is the cosine.

        >>> encoder.rerank("fast animals", ["a snail", "a cheetah"])[0].text
        """
        if isinstance(documents, str) or not all(isinstance(text, str) for text in documents):
            raise InvalidRequest("documents must be a list of texts", param="documents")
        if top is not None:
            check_integer("top", top, 1, 1 << 30)
        head = self.spec.classifier
        texts: list[Ids] = []
        if not documents:
            scores = np.empty(0, np.float32)
        elif head is None:
            texts = self._all_ids([query, *documents], truncate)
            vectors = self.embed(texts)
            scores = (vectors[1:].astype(np.float64) * vectors[0]).sum(axis=1)
        else:
            most = self.context_length if truncate else None
            pairs = [self._pairs.two(query, text, most) for text in documents]
            texts = [ids for ids, _ in pairs]
            scores = _relevance(head, self._scores(texts, [types for _, types in pairs]))
        n_tokens = sum(map(len, texts))
        return Ranking.of(documents, scores, top, n_tokens, model=self.name, license=self.license)

    def classify(self, texts: str | Seq[str], *, top: int = 5, truncate: bool = False) -> Any:
        """The best labels of a text with their probabilities, a `Classification`; of a list, a list of them.

        >>> encoder.classify("What a film!").best
        """
        head = self.spec.classifier
        if head is None:
            self._lacks("classify")
        check_integer("top", top, 1, 1 << 30)
        several = [texts] if isinstance(texts, str) else list(texts)
        scores = self._scores([self._text_ids(text, truncate) for text in several], None)
        made = [self._labels(head, row, top) for row in _probabilities(scores)] if several else []
        return made[0] if isinstance(texts, str) else made

    def _labels(self, head: Head, row: Floats, top: int) -> Classification:
        names = head.labels or tuple(f"LABEL_{i}" for i in range(len(row)))
        return Classification.of(names, row, top, model=self.name, license=self.license)

    def _scores(self, ids: list[Ids], types: list[Ids] | None) -> Floats:
        """float32[n, n_labels]: what the class head says, before any softmax."""
        head = self.spec.classifier
        assert head is not None
        request = embed_request(self._engine, ids, head, False, types)
        return cast(Floats, complete(self._engine, request))


def _cut(vectors: Floats, dimensions: int | None, normalize: bool) -> Floats:
    """The first numbers of each vector."""
    if dimensions is None:
        return vectors
    kept = np.ascontiguousarray(vectors[:, :dimensions])
    return normalized(kept) if normalize else kept


def _probabilities(scores: Floats) -> Floats:
    """A softmax of each row, or a sigmoid where there is one score only."""
    wide = scores.astype(np.float64)
    if wide.shape[1] == 1:
        sigmoid: Floats = (1 / (1 + np.exp(-wide))).astype(np.float32)
        return sigmoid
    wide = np.exp(wide - wide.max(axis=1, keepdims=True))
    shares: Floats = (wide / wide.sum(axis=1, keepdims=True)).astype(np.float32)
    return shares


def _relevance(head: Head, scores: Floats) -> Floats:
    """The probability that a document answers its query: of the label that says so, or the last one."""
    found = [i for i, label in enumerate(head.labels) if label in RELEVANT]
    return _probabilities(scores)[:, found[0] if found else -1]
