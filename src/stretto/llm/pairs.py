"""A text, or a query and a document, as the tokens that an encoder reads.

Nothing in a text can become a special token.
"""

from __future__ import annotations

from stretto.models import ModelSpec
from stretto.text.tokenizer import Tokenizer

DOUBLED = ("unigram", "roberta")  # kinds and names of tokenizers that put two separators between texts


class Pairs:
    """The special tokens around texts: [CLS] query [SEP] document [SEP], or as a template says."""

    def __init__(self, tokenizer: Tokenizer, spec: ModelSpec, template: str = "") -> None:
        self._tokenizer = tokenizer
        self._has_types = spec.token_types > 1
        self._template = template
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
        """A template with `{query}` and `{document}`; only its own text may have special tokens."""
        encode = self._tokenizer.encode
        before, _, after = self._template.partition("{document}")
        head, _, tail = before.partition("{query}")
        first = encode(head, special=True, bos=False) + encode(query) + encode(tail, special=True, bos=False)
        last, ids = encode(after, special=True, bos=False), encode(document)
        if most is not None:
            ids = ids[: max(1, most - len(first) - len(last))]
        whole = [*first, *ids, *last]
        return whole, [0] * len(whole)
