"""`Vision`: from an image to the tokens of a prompt, and to the vectors behind them.

What stands around an image in a prompt is the model's own convention:

    mlp        nothing
    gemma3     two line breaks and a token for the beginning, a token for the end and two line breaks
    idefics3   tile by tile a token with its row and column, then the whole image
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from threading import RLock

import numpy as np
from numpy.typing import NDArray

from stretto.cache.items import ImageToken, Pixels
from stretto.errors import InvalidRequest, ModelError
from stretto.text.tokenizer import Tokenizer
from stretto.vision.encoder import Encoder, encode
from stretto.vision.image import Image
from stretto.vision.preprocess import Prepared, normalise, prepare
from stretto.vision.spec import VisionSpec

Floats = NDArray[np.float32]

STAND_INS = ("<image>", "<image_soft_token>")  # what an image's tokens are called in vocabularies
CACHE_BYTES = 64 << 20  # of vectors that are kept for images that come again


class EncodedImage:
    """An image of a prompt: its pixels until they are encoded, and what tells it from others."""

    def __init__(self, vision: Vision, prepared: Prepared, digest: bytes) -> None:
        self._vision = vision
        self.prepared = prepared
        self.digest = digest
        self.whole = vision.spec.sees_itself

    def vectors(self) -> Floats:
        """float32[n, n_out]: all tiles, one behind the other."""
        return self._vision.vectors(self)


class Vision:
    """An encoder with the conventions of its language model. `n_encoded` counts images and tiles encoded."""

    def __init__(self, encoder: Encoder, tokenizer: Tokenizer, fingerprint: Callable[[], str]) -> None:
        self.spec: VisionSpec = encoder.spec
        self.encoder = encoder
        self.n_encoded = 0
        self._tokenizer = tokenizer
        self._fingerprint = fingerprint
        self._found: OrderedDict[bytes, Floats] = OrderedDict()
        self._lock = RLock()
        named = (tokenizer.specials[text] for text in STAND_INS if text in tokenizer.specials)
        self._stand_in = next(named, tokenizer.eos_id or tokenizer.bos_id or 0)

    def tokens(self, image: Pixels) -> list[int]:
        """The tokens of an image, with those around them."""
        if not isinstance(image, Image):
            raise InvalidRequest(f"an image is a stretto.Image, not {type(image).__name__}; use Image.open")
        prepared = prepare(image, self.spec)
        head = f"{self._fingerprint()} {self.encoder.name}".encode()
        picture = EncodedImage(self, prepared, sha256(head + prepared.digest()).digest())
        if self.spec.projector == "idefics3":
            return self._tiled(picture)
        run = self._run(picture, 0)
        if self.spec.projector == "mlp":
            return run
        begin, end = self._special("<start_of_image>"), self._special("<end_of_image>")
        breaks = self._tokenizer.encode("\n\n")
        return [*breaks, begin, *run, end, *breaks]

    def vectors(self, picture: EncodedImage) -> Floats:
        """float32[n, n_out] of a picture: encoded, or found among those that were."""
        with self._lock:
            found = self._found.get(picture.digest)
            if found is None:
                tiles = picture.prepared.tiles
                parts = [encode(self.encoder, normalise(tile[None], self.spec)) for tile in tiles]
                found = np.concatenate(parts).reshape(-1, self.spec.n_out)
                self.n_encoded += len(tiles)
                self._found[picture.digest] = found
                while len(self._found) > 1 and sum(v.nbytes for v in self._found.values()) > CACHE_BYTES:
                    self._found.popitem(last=False)
            self._found.move_to_end(picture.digest)
            return found

    def close(self) -> None:
        """Free the encoder."""
        self.encoder.close()
        self._found.clear()

    def _run(self, picture: EncodedImage, tile: int) -> list[int]:
        """The tokens of one tile."""
        first = tile * self.spec.n_tokens
        stop = first + self.spec.n_tokens
        return [ImageToken(self._stand_in, picture, picture.digest, i, stop) for i in range(first, stop)]

    def _tiled(self, picture: EncodedImage) -> list[int]:
        around, whole = self._special("<fake_token_around_image>"), self._special("<global-img>")
        prepared, tokens = picture.prepared, []
        for row in range(prepared.rows):
            for column in range(prepared.columns):
                place = self._special(f"<row_{row + 1}_col_{column + 1}>")
                tokens += [around, place, *self._run(picture, row * prepared.columns + column)]
            last = row == prepared.rows - 1
            tokens += self._tokenizer.encode("\n\n" if last else "\n")
        return [*tokens, around, whole, *self._run(picture, len(prepared.tiles) - 1), around]

    def _special(self, text: str) -> int:
        ids = self._tokenizer.encode(text, special=True, bos=False)
        if len(ids) != 1:
            raise ModelError(
                f"the projector {self.spec.projector!r} needs the token {text!r}, which this language model "
                "does not have; give the mmproj file that belongs to it"
            )
        return ids[0]
