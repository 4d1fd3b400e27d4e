"""The image encoder of a model: beside its backend, on the same device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path

from stretto import vision
from stretto.backends.base import BackendOptions
from stretto.errors import ModelError
from stretto.hardware import kernel_sets
from stretto.loading.choose import Route
from stretto.loading.describe import Model
from stretto.models.spec import ModelSpec
from stretto.text.tokenizer import Tokenizer
from stretto.vision.cache import ImageCache
from stretto.vision.encoder import Encoder
from stretto.vision.native import NativeEncoder
from stretto.vision.reading import read_vision_spec, takes_sounds
from stretto.vision.reference import ReferenceEncoder
from stretto.vision.spec import VisionSpec
from stretto.vision.vision import Vision
from stretto.weights import hub
from stretto.weights.folder import open_encoder
from stretto.weights.gguf import GGUF

BUNDLED_ENCODERS = {"sketch": Path(vision.__path__[0]) / "sketch.gguf"}


def find_encoder(name: Model) -> Path:
    """The `mmproj` file of an encoder, or the folder of its model, downloaded if necessary."""
    return BUNDLED_ENCODERS.get(str(name)) or hub.resolve(name)


def is_hearing(name: Model) -> bool:
    """Whether an encoder is one of sounds, and not of images."""
    with open_encoder(find_encoder(name)) as file:
        return takes_sounds(file)


@dataclass(frozen=True)
class ImageEncoder:
    """The file or folder of an encoder, and the cache of the images that it encodes."""

    path: Path
    cache: ImageCache

    @property
    def files(self) -> list[Path]:
        """All files that its vectors may depend on."""
        return sorted(filter(Path.is_file, self.path.iterdir())) if self.path.is_dir() else [self.path]

    def nbytes(self, precision: str) -> int:
        """The bytes that it takes on a GPU: its weights, and the largest image while it is encoded."""
        with open_encoder(self.path) as file:
            spec = read_vision_spec(file)
            numbers = sum(prod(shape) for shape in spec.tensors().values())
        rows = spec.max_patches * (2 * spec.n_ff + 8 * spec.n_embd)
        return (4 if precision == "high" else 2) * numbers + 4 * rows

    def open(self, spec: ModelSpec, tokenizer: Tokenizer, route: Route, setup: BackendOptions) -> Vision:
        """Open it for a language model; `ModelError` if they do not belong together."""
        with open_encoder(self.path) as file:
            vision_spec = read_vision_spec(file)
            check_pair(vision_spec, spec, file.path)
            if spec.windowed_images:
                vision_spec = replace(vision_spec, bidirectional=True)
            encoder: Encoder
            if route.backend == "reference":
                encoder = ReferenceEncoder(file, vision_spec)
            elif route.backend == "torch":
                encoder = _torch_encoder(file, vision_spec, route.device, setup.precision)
            else:
                encoder = NativeEncoder(
                    file, vision_spec, setup.threads, kernel_sets.select(), setup.precision
                )
            return Vision(encoder, tokenizer, file.fingerprint(), self.cache)


def _torch_encoder(file: GGUF, spec: VisionSpec, device: str, precision: str) -> Encoder:
    from stretto.backends.torch.memory import device_memory
    from stretto.vision.torch import TorchEncoder

    return TorchEncoder(file, spec, device, precision, partial(device_memory, device=device))


def check_pair(vision: VisionSpec, spec: ModelSpec, path: Path) -> None:
    """Raise unless an encoder's vectors are what a language model takes."""
    remedy = "give the mmproj file that belongs to it"
    if vision.n_out != spec.n_embd:
        raise ModelError(
            f"it makes vectors of {vision.n_out} numbers, and the language model takes {spec.n_embd}; "
            f"{remedy}",
            path=path,
        )
    if vision.grid_positions and not spec.has_grid_positions:
        raise ModelError(
            f"its images have rows and columns as positions, and {spec.architecture} has none; {remedy}",
            path=path,
        )
    if len(vision.deepstack) != spec.deepstack:
        raise ModelError(
            f"it has features for {len(vision.deepstack)} early layers (deepstack), and the language model "
            f"takes them in {spec.deepstack}; {remedy}",
            path=path,
        )
