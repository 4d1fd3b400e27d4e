"""Images: preprocessing, encoders and projectors, from the `mmproj` files of language models."""

from stretto.vision.image import Image
from stretto.vision.reading import read_vision_spec
from stretto.vision.spec import VisionSpec

__all__ = ["Image", "VisionSpec", "read_vision_spec"]
