"""Sparse autoencoders at a site: what features values have, and runs with some of them set."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from stretto.engine.inside import Patch
from stretto.errors import InvalidRequest, wrong_value
from stretto.probing.common import Floats
from stretto.weights.safetensors import read_floats

PARTS = "W_enc", "b_enc", "W_dec", "b_dec"


@dataclass(frozen=True)
class SparseAutoencoder:
    """Features of the values at a site: relu((x − b_dec) W_enc + b_enc), and back by W_dec + b_dec.

    With `threshold`, float32[features], a feature that is not above its own is 0 (jump ReLU); with `k` only
    the k largest of a token are kept. `centred`: whether b_dec is taken off before the encoder.
    """

    W_enc: Floats  # [width, features]
    b_enc: Floats  # [features]
    W_dec: Floats  # [features, width]
    b_dec: Floats  # [width]
    threshold: Floats | None = None
    k: int | None = None
    centred: bool = False

    def __post_init__(self) -> None:
        width, n = np.shape(self.W_enc) if np.ndim(self.W_enc) == 2 else (0, 0)
        shapes = {"b_enc": (n,), "W_dec": (n, width), "b_dec": (width,)}
        shapes |= {} if self.threshold is None else {"threshold": (n,)}
        for name, shape in shapes.items():
            if not n or np.shape(getattr(self, name)) != shape:
                raise InvalidRequest(
                    f"{name} has the shape {list(np.shape(getattr(self, name)))}, and W_enc "
                    f"{list(np.shape(self.W_enc))}; W_enc is [width, features], W_dec the other way round",
                    param=name,
                )
        if self.k is not None and (type(self.k) is not int or not 1 <= self.k <= n):
            raise wrong_value("k", self.k, f"a number from 1 to {n}")

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, k: int | None = None, centred: bool = False
    ) -> SparseAutoencoder:
        """One of a safetensors file with W_enc, b_enc, W_dec, b_dec, and perhaps threshold."""
        found = read_floats(Path(path))
        if missing := [name for name in PARTS if name not in found]:
            raise InvalidRequest(
                f"{path} has no tensor {missing[0]!r}, only {', '.join(found)}", param="path"
            )
        parts = [found[name] for name in PARTS]
        return cls(parts[0], parts[1], parts[2], parts[3], found.get("threshold"), k, centred)

    @property
    def n_features(self) -> int:
        """How many features there are."""
        return int(self.W_enc.shape[1])

    def encode(self, values: Floats) -> Floats:
        """float32[n, features] of values float32[n, width].

        >>> autoencoder.encode(result.captured["layers.9.residual"]).argmax(axis=1)
        """
        found = (values - self.b_dec if self.centred else values) @ self.W_enc + self.b_enc
        least = 0.0 if self.threshold is None else np.maximum(self.threshold, 0)
        found = np.where(found > least, found, 0).astype(np.float32)
        if self.k is not None and self.k < found.shape[1]:
            dropped = np.argpartition(-found, self.k - 1, axis=1)[:, self.k :]
            np.put_along_axis(found, dropped, 0, axis=1)
        return found

    def decode(self, features: Floats) -> Floats:
        """float32[n, width] of features."""
        made: Floats = (features @ self.W_dec + self.b_dec).astype(np.float32)
        return made

    def patch(
        self,
        site: str,
        clamp: Mapping[int, float] | None = None,
        *,
        tokens: Literal["all", "prompt", "generated"] | Iterable[int] = "all",
        keep_error: bool = True,
    ) -> Patch:
        """A patch that sets features of a site's values; what the autoencoder does not explain stays.

        With `keep_error=False` values become what it makes of their features: how much it loses.

        >>> llm.generate(prompt, patch=autoencoder.patch("layers.9.residual", {1234: 8.0}))
        """
        numbers = dict(clamp or {})
        if not all(type(one) is int and 0 <= one < self.n_features for one in numbers):
            raise wrong_value("clamp", list(numbers), f"numbers of features from 0 to {self.n_features - 1}")

        def change(values: Floats, places: list[int]) -> Floats:
            before = self.encode(values)
            features = before.copy()
            for feature, value in numbers.items():
                features[:, feature] = value
            if not keep_error:
                return self.decode(features)
            made: Floats = (values + (features - before) @ self.W_dec).astype(np.float32)
            return made

        return Patch(site, change, tokens=tokens)
