"""`gemma4v`, Gemma 4: images of any shape, rotated by rows and columns; the mean over squares of patches.

In `transformers`: Gemma4ImageProcessorPil, Gemma4VisionModel, Gemma4MultimodalEmbedder.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from stretto.vision.decode import Pixels
from stretto.vision.families import base
from stretto.vision.families.base import Family, Floats, Operations, Part, Prepared, Run, Special
from stretto.vision.spec import CLAMP_ENDS, Clamp, Grid, Shape, VisionSpec
from stretto.weights.formats import READABLE
from stretto.weights.gguf import GGUF

MERGE = 3  # where the file does not say
TOKENS = 280  # of an image at most, where the file does not say
MAX_TOKENS = 1120
ROPE_BASE = 100.0
MATRIX = "mm.input_projection"


class Gemma4(Family):
    """Gemma 4."""

    name = "gemma4v"
    any_size = True

    def read(self, file: GGUF, spec: VisionSpec) -> VisionSpec:
        """One matrix; positions in two tables, for columns and for rows; limits of inputs and outputs."""
        merge = base.read_merge(file, "clip.vision.projector.scale_factor", spec, MERGE, any_size=True)
        spec = replace(spec, merge=merge)
        most = min(MAX_TOKENS, base.read_pixels(file, "clip.vision.image_max_pixels", TOKENS, spec))
        (red, green, blue), (reds, greens, blues) = spec.mean, spec.std
        out = base.read_outputs(file, f"{MATRIX}.weight")
        shapes: dict[str, Shape] = {f"{MATRIX}.weight": (out, spec.n_embd)}
        if "v.std_bias" in file.tensors:
            shapes |= {"v.std_bias": (spec.n_embd,), "v.std_scale": (spec.n_embd,)}
        return replace(
            spec,
            n_out=out,
            max_tokens=most,
            activation="silu" if spec.activation == "silu" else "gelu",  # files do not name it
            # Pixels from 0 to 1 become −1 to 1.
            mean=(red + reds / 2, green + greens / 2, blue + blues / 2),
            std=(reds / 2, greens / 2, blues / 2),
            positions="axes",
            position_shape=_tables(file, spec, most * merge),
            rope="quarters",
            rope_base=ROPE_BASE,
            rms_norm=True,
            qk_norm="head",
            value_norm=True,
            attention_scale=1.0,
            output_norms=True,
            clamps=tuple(_clamps(file, spec.n_layer)),
            projector_tensors=tuple(shapes.items()),
        )

    def prepare(self, pixels: Pixels, spec: VisionSpec) -> Prepared:
        """As large as its shape allows with so many tokens."""
        height, width = pixels.shape[:2]
        unit, most = spec.patch_size * spec.merge, spec.max_tokens
        factor = math.sqrt(most * unit**2 / (height * width))
        rows, columns = math.floor(factor * height / unit), math.floor(factor * width / unit)
        if not rows:
            rows, columns = 1, min(width // height, most)
        elif not columns:
            rows, columns = min(height // width, most), 1
        return Prepared(base.resize(pixels, rows * unit, columns * unit, "bicubic")[None])

    def project(self, run: Operations, x: Floats, grid: Grid) -> Floats:
        """The mean of each square, scaled and normalised."""
        pooled = base.squares(x, grid, run.spec.merge).mean(axis=2) * np.float32(run.spec.n_embd**0.5)
        bias, scale = run.vector("v.std_bias"), run.vector("v.std_scale")
        if bias is not None and scale is not None:
            pooled = (pooled - bias) * scale
        return run.multiply(run.norm(pooled, ""), MATRIX)

    def parts(self, prepared: Prepared, spec: VisionSpec, grid: Grid) -> Iterable[Part]:
        """Between two markers."""
        yield from (Special("<|image>"), Run(0, spec.count_tokens(grid)), Special("<image|>"))


def _tables(file: GGUF, spec: VisionSpec, least: int) -> Shape:
    name = "v.position_embd.weight"
    tensor = file.tensors.get(name)
    if tensor is None or len(tensor.shape) != 3 or tensor.shape[1] < least:
        raise file.error(f"tensor {name!r}", f"two tables of at least {least} positions are needed")
    return 2, tensor.shape[1], spec.n_embd


def _clamps(file: GGUF, n_layer: int) -> Iterable[tuple[str, Clamp]]:
    parts = ("attn_q", "attn_k", "attn_v", "attn_out", "ffn_gate", "ffn_up", "ffn_down")
    for name in (f"v.blk.{i}.{part}" for i in range(n_layer) for part in parts):
        if f"{name}.{CLAMP_ENDS[0]}" in file.tensors:
            low, high, low_out, high_out = (_scalar(file, f"{name}.{end}") for end in CLAMP_ENDS)
            yield name, (low, high, low_out, high_out)


def _scalar(file: GGUF, name: str) -> float:
    tensor = file.tensors.get(name)
    if tensor is None or tensor.shape != (1,) or tensor.format not in READABLE:
        raise file.error(f"tensor {name!r}", "one number is needed")
    value = float(tensor.dequantize()[0])
    if math.isnan(value):
        raise file.error(f"tensor {name!r}", "it is no number")
    return value
