"""`Vision`: from an image to the tokens of a prompt, and to the vectors behind them.

Image markers are added automatically, by the model's own convention (`families/`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256

from stretto.audio import Audio
from stretto.cache.items import ImageLike, ImageToken, ImageVectors, is_picture, is_sound
from stretto.errors import InvalidRequest, ModelError
from stretto.text.messages import INSTEAD
from stretto.text.tokenizer import Tokenizer
from stretto.vision.cache import ImageCache, VectorCache
from stretto.vision.encoder import Encoder
from stretto.vision.families import FAMILIES
from stretto.vision.families.base import Part, Run, Special, Text
from stretto.vision.image import Image
from stretto.vision.queue import EncodedImage, EncodingQueue, find_grid, prepare
from stretto.vision.spec import VisionSpec

# names of the tokens of images and sounds in vocabularies
PLACEHOLDERS = (
    *("<image>", "<image_soft_token>", "[IMG]", "<|image_pad|>", "<IMG_CONTEXT>", "<|patch|>", "<|image|>"),
    *("[AUDIO]", "<|AUDIO|>"),
)


class Vision:
    """An encoder with the conventions of its language model.

    `cache` holds the vectors of encoded images: as `ImageCache` says, by default in memory only.
    """

    def __init__(
        self,
        encoder: Encoder,
        tokenizer: Tokenizer,
        fingerprint: Callable[[], str],
        cache: ImageCache | None = None,
    ) -> None:
        self.spec: VisionSpec = encoder.spec
        self.hears = self.spec.mels > 0  # it encodes sounds, and not images
        self.encoder = encoder
        self.cache = VectorCache(cache or ImageCache(disk=0))
        self.queue = EncodingQueue(encoder, self.cache)
        self.tokenizer = tokenizer
        self.fingerprint = fingerprint
        named = (tokenizer.specials[text] for text in PLACEHOLDERS if text in tokenizer.specials)
        self.placeholder: int | None = next(named, None)
        self._placeholder = self.placeholder or tokenizer.eos_id or tokenizer.bos_id or 0

    def tokens(self, image: ImageLike, salt: str | None = None) -> list[int]:
        """The tokens of an image, with the markers around them; caches know it by its pixels and its salt.

        Those of a sound, if the encoder hears.
        """
        prepared = prepare(self._opened(image), self.spec)
        head = f"{self.fingerprint()} {self.encoder.name}".encode()
        if salt:
            head += sha256(salt.encode("utf-8", "surrogatepass")).digest()
        images = [
            EncodedImage(self.queue, part, sha256(head + part.digest()).digest(), self)
            for part in (prepared, prepared.whole)
            if part is not None
        ]
        grid = find_grid(prepared.tiles, self.spec)
        tokens: list[int] = []
        for part in FAMILIES[self.spec.projector].parts(prepared, self.spec, grid):
            tokens += self._part(images[isinstance(part, Run) and part.of_whole], part)
        return tokens

    def work(self, wanted: Iterable[ImageVectors], seconds: float, alone: bool) -> None:
        """Encode images for about `seconds`; images that are not wanted any more are dropped."""
        self.queue.work(wanted, seconds, alone)

    @property
    def n_encoded(self) -> int:
        """Number of images and tiles that have been encoded."""
        return self.queue.n_encoded

    def close(self) -> None:
        """Free the encoder."""
        self.queue.close()
        self.encoder.close()
        self.cache.clear(disk=False)

    def _opened(self, source: ImageLike) -> Image | Audio:
        if not self.hears:
            if is_sound(source):
                raise InvalidRequest(INSTEAD["audio"], param="audio")
            return Image.open(source)
        if is_picture(source):
            raise InvalidRequest("this model hears sounds and sees no images; leave them out", param="images")
        return Audio.open(source)

    def _part(self, image: EncodedImage, part: Part) -> list[int]:
        if isinstance(part, Text):
            return self.tokenizer.encode(part.text)
        if isinstance(part, Special):
            return [self._special(part.text)]
        return [
            ImageToken(self._placeholder, image, image.digest, index, part.stop, part.columns)
            for index in range(part.first, part.stop)
        ]

    def _special(self, text: str) -> int:
        ids = self.tokenizer.encode(text, special=True, bos=False)
        if len(ids) != 1:
            raise ModelError(
                f"the projector {self.spec.projector!r} needs the token {text!r}, which this language model "
                "does not have; give the mmproj file that belongs to it"
            )
        return ids[0]
