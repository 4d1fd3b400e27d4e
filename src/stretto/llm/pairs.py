"""A text, or a query and a document, as the tokens that an encoder reads.

Nothing in a text can become a special token.
"""

from __future__ import annotations

import re

from stretto.models import ModelSpec
from stretto.text.tokenizer import Tokenizer

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
