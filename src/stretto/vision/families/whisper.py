"""`voxtral` and `qwen2a`, Voxtral and Qwen2-Audio: Whisper's encoder over windows of 30 seconds.

A tile is a window: the frames of its spectrogram, and the one behind them, or zeros.
In `transformers`: WhisperFeatureExtractor, VoxtralEncoder, Qwen2AudioEncoder.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from stretto.audio.mel import HOP, log_mel
from stretto.audio.sound import Samples
from stretto.models.common import positive
from stretto.vision.families import base
from stretto.vision.families.base import Family, Floats, Operations, Part, Prepared, Run, Special
from stretto.vision.spec import Grid, Shape, VisionSpec
from stretto.weights.gguf import GGUF

MAX_STACK = 64


class Whisper(Family):
    """What both have in common."""

    hears = True

    def prepare(self, pixels: Samples, spec: VisionSpec) -> Prepared:
        """float32[n, frames + 1, mels]: whole windows, with silence behind the sound."""
        n_frames = 2 * spec.max_patches
        n = -(-len(pixels) // (n_frames * HOP))
        windows = log_mel(pixels, spec.mels, n * n_frames).T.reshape(n, n_frames, spec.mels)
        return Prepared(np.pad(windows, ((0, 0), (0, 1), (0, 0))))

    def embed(self, run: Operations, patches: Floats) -> Floats:
        """Two convolutions over three frames; the second takes every other one."""
        x = run.multiply(patches, "v.patch_embd", "exact_gelu")
        return run.multiply(neighbours(x, 2), "v.conv1d.2", "exact_gelu")


class Voxtral(Whisper):
    """Voxtral, which hears."""

    name = "voxtral"

    def read(self, file: GGUF, spec: VisionSpec) -> VisionSpec:
        """Two matrices, without biases."""
        stack = positive(file, "clip.audio.projector.stack_factor", 4, most=MAX_STACK)
        out = base.read_outputs(file, "mm.a.mlp.2.weight")
        shapes: dict[str, Shape] = {
            "mm.a.mlp.1.weight": (out, stack * spec.n_embd),
            "mm.a.mlp.2.weight": (out, out),
        }
        if spec.max_tokens % stack:
            raise file.error(
                "clip.audio.projector.stack_factor", f"{spec.max_tokens} positions are no multiple of {stack}"
            )
        return replace(
            spec,
            n_out=out,
            stack=stack,
            max_tokens=spec.max_tokens // stack,
            post_norm=True,
            projector_tensors=tuple(shapes.items()),
        )

    def project(self, run: Operations, x: Floats, grid: Grid) -> Floats:
        """Positions side by side, two matrices."""
        n, length, width = x.shape
        x = x.reshape(n, length // run.spec.stack, run.spec.stack * width)
        return run.multiply(run.multiply(x, "mm.a.mlp.1", "exact_gelu"), "mm.a.mlp.2")

    def parts(self, prepared: Prepared, spec: VisionSpec, grid: Grid) -> Iterable[Part]:
        """A marker before it."""
        yield Special("[BEGIN_AUDIO]")
        yield Run(0, len(prepared.tiles) * spec.count_tokens(grid))


class Qwen2Audio(Whisper):
    """Qwen2-Audio, which hears."""

    name = "qwen2a"

    def read(self, file: GGUF, spec: VisionSpec) -> VisionSpec:
        """A matrix."""
        out = base.read_outputs(file, "mm.a.fc.weight")
        shapes: dict[str, Shape] = {"mm.a.fc.weight": (out, spec.n_embd), "mm.a.fc.bias": (out,)}
        norm: dict[str, Shape] = {f"a.post_ln.{kind}": (spec.n_embd,) for kind in ("weight", "bias")}
        if spec.max_tokens % 2:
            raise file.error("tensor 'a.position_embd.weight'", f"{spec.max_tokens} positions are no pairs")
        return replace(
            spec,
            n_out=out,
            stack=2,
            max_tokens=spec.max_tokens // 2,
            projector_tensors=tuple((norm | shapes).items()),
        )

    def prepare(self, pixels: Samples, spec: VisionSpec) -> Prepared:
        """Of a sound of one window the frames that it has; whole windows of a longer one."""
        tiles = super().prepare(pixels, spec).tiles
        if len(tiles) == 1:
            n_positions = max(2, -(-len(pixels) // (2 * HOP)))
            tiles = tiles[:, : 2 * n_positions + 1]
        return Prepared(np.ascontiguousarray(tiles))

    def project(self, run: Operations, x: Floats, grid: Grid) -> Floats:
        """The mean of each two positions."""
        n, length, width = x.shape
        pairs = x[:, : length // 2 * 2].reshape(n, length // 2, 2, width)
        return run.multiply(run.norm(pairs.mean(axis=2), "v.post_ln"), "mm.a.fc")

    def parts(self, prepared: Prepared, spec: VisionSpec, grid: Grid) -> Iterable[Part]:
        """Between two markers."""
        yield Special("<|audio_bos|>")
        yield Run(0, len(prepared.tiles) * spec.count_tokens(grid))
        yield Special("<|audio_eos|>")


def neighbours(x: Floats, step: int) -> Floats:
    """[n, length, width] → [n, length / step, width × 3]: every `step`-th row between its neighbours.

    There are zeros before the first row and behind the last one.
    """
    n, length, width = x.shape
    at = np.arange(0, length, step)[:, None] + np.arange(-1, 2)
    around = x[:, np.clip(at, 0, length - 1)]  # a copy, of arrays and tensors alike
    around[:, at < 0] = 0
    around[:, at == length] = 0
    return around.swapaxes(2, 3).reshape(n, len(at), 3 * width)
