"""Images: preprocessing, encoders and projectors, from the `mmproj` files of language models."""

from stretto.vision.image import Image
from stretto.vision.spec import VisionSpec, read_vision_spec

__all__ = ["Image", "VisionSpec", "read_vision_spec"]
