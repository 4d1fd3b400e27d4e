"""Tiny random encoders of every projector, against transformers: pixels, then vectors.

Both sides compute in float32, and vectors have about unit variance. An error of any constant or piece must
show at ten times the tolerance.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from stretto import _native
from stretto.vision.encoder import encode
from stretto.vision.families import FAMILIES, base
from stretto.vision.families.base import squares
from stretto.vision.families.qwen3vl import deepstack
from stretto.vision.native import NativeEncoder
from stretto.vision.queue import find_grid, normalise, prepare
from stretto.vision.reference import ReferenceEncoder
from tiny_vision import (
    ENCODERS,
    NAMES,
    PICTURES,
    PROJECTORS,
    SHAPED,
    TILED,
    patches,
    picture,
    vectors,
    vision_answer,
    vision_file,
    vision_spec,
)

pytestmark = pytest.mark.golden

TOLERANCE = 5e-5
APART = ("resampler",)  # test_minicpmv.py


def reference(name, spec=None):
    return ReferenceEncoder(vision_file(name), spec or vision_spec(name))


def native(name, spec=None, threads=2, kernels=""):
    return NativeEncoder(vision_file(name), spec or vision_spec(name), threads, kernels)


def difference(encoder, name, i=1):
    return np.abs(vectors(encoder, name, i) - vision_answer(name, f"vectors.{i}")).max()


def test_every_projector_is_there():
    assert {vision_spec(name).projector for name in ENCODERS} == {
        name for name, family in FAMILIES.items() if not family.hears and name not in APART
    }
    for name in ENCODERS:
        assert vision_spec(name).projector == PROJECTORS.get(name, name.split("-")[0])


@pytest.mark.parametrize("i", PICTURES)
@pytest.mark.parametrize("name", [*NAMES, *TILED, *SHAPED])
def test_pixels(name, i):
    spec = vision_spec(name)
    wanted = vision_answer(name, f"pixels.{i}")  # [n, 3, height, width]
    found, (rows, columns) = patches(name, i)
    patch = spec.patch_size
    whole = found.reshape(-1, rows, columns, 3, patch, patch).transpose(0, 3, 1, 4, 2, 5)
    whole = whole.reshape(-1, 3, rows * patch, columns * patch)
    assert whole.shape == wanted.shape
    np.testing.assert_allclose(whole, wanted, atol=2e-6)


@pytest.mark.parametrize("i", PICTURES)
def test_the_grid_of_tiles(i):
    prepared = prepare(picture(i), vision_spec("idefics3"))
    assert [prepared.rows, prepared.columns] == vision_answer("idefics3", f"grid.{i}").tolist()
    assert len(prepared.tiles) == prepared.rows * prepared.columns + 1


@pytest.mark.parametrize("make", [reference, native])
@pytest.mark.parametrize("i", PICTURES)
@pytest.mark.parametrize("name", ENCODERS)
def test_vectors(name, i, make):
    assert 0.3 < vision_answer(name, f"vectors.{i}").std() < 3
    assert difference(make(name), name, i) < TOLERANCE


@pytest.mark.parametrize("kernels", _native.kernel_names())
@pytest.mark.parametrize("name", ENCODERS)
def test_every_kernel_set(name, kernels):
    assert difference(native(name, kernels=kernels), name) < TOLERANCE


def several(name):
    """Images or tiles of one size, and their grid."""
    numbers, grid = patches(name, 1)
    return np.concatenate((numbers, numbers[:, ::-1], numbers * np.float32(0.5))), grid


@pytest.mark.parametrize("name", ENCODERS)
def test_the_same_bits_in_any_company(name):
    """Alone or with others, with one thread or three."""
    encoder, (both, grid) = native(name, threads=1), several(name)
    together = encode(native(name, threads=3), both, grid)
    alone = [encode(encoder, patch[None], grid)[0] for patch in both]
    assert (together == np.stack(alone)).all()


@pytest.mark.parametrize("make", [reference, native])
@pytest.mark.parametrize("name", ENCODERS)
def test_the_same_bits_in_any_pieces(name, make):
    """However many rows a piece has, and wherever it ends: also in the middle of an image."""
    encoder, (both, grid) = make(name), several(name)
    sizes, n_pieces, taps = itertools.cycle([1, 7, 64, 3, 16]), 0, []
    x = encoder.embed(both, grid)
    for index in range(encoder.spec.n_layer):
        for _ in encoder.block(index, x, grid, lambda: next(sizes)):
            n_pieces += 1
        if index in encoder.spec.deepstack:
            taps.append(deepstack(encoder, index, x, grid))
    assert n_pieces == 2 * encoder.spec.n_layer if make is reference else n_pieces > 10
    assert (encoder.project(x, grid, taps) == encode(encoder, both, grid)).all()


def test_pieces_that_are_wrong():
    encoder = native("mlp")
    x = encoder.embed(*patches("mlp", 0))
    seen, none = [np.empty_like(x) for _ in "qkv"], np.empty((0, 0, 2), np.float32)
    windows = np.array([x.shape[1]], np.int32)
    for first, last in ((0, 0), (3, 2), (0, x.shape[1] + 1)):
        with pytest.raises(ValueError, match="out of range"):
            encoder.native.look("v.blk.0.", x, *seen, none, first, last)
    with pytest.raises(ValueError, match="wrong size"):
        encoder.native.mix("v.blk.0.", x, *seen[:2], np.empty((1, 1, 4), np.float32), windows, 0, 1)
    for ends in ([], [3], [3, 3, x.shape[1]], [-1, x.shape[1]], [x.shape[1] + 1]):
        with pytest.raises(ValueError, match="windows"):
            encoder.native.mix("v.blk.0.", x, *seen, np.array(ends, np.int32), 0, 1)
    with pytest.raises(ValueError, match="incomplete"):
        encoder.native.mix("v.blk.9.", x, *seen, windows, 0, 1)
    rotated = native("pixtral")
    x = rotated.embed(*patches("pixtral", 0))
    with pytest.raises(ValueError, match="rotation of the wrong size"):
        rotated.native.look("v.blk.0.", x, *(np.empty_like(x) for _ in "qkv"), none, 0, 1)
    with pytest.raises(ValueError, match="not in a head"):
        rotated.native.set_attention(1.0, False, np.array([[0, 8]], np.int32))


# -- planted errors --

OTHER = {"silu": "gelu"}


def without(*names):
    """Encoders for which a spec can be wrong in that way."""
    return [other for other in ENCODERS if other not in names]


ROTATED = [*SHAPED, "pixtral-12b", "qwen35", "qwen2vl", "qwen25vl", "llama4"]


SPEC_ERRORS = {
    "eps at its usual value": (ENCODERS, lambda s: replace(s, norm_eps=1e-6)),
    "another activation": (ENCODERS, lambda s: replace(s, activation=OTHER.get(s.activation, "silu"))),
    "gelu for quick gelu": (["mlp"], lambda s: replace(s, activation="gelu")),
    "the last block missing": (without("qwen3vl"), lambda s: replace(s, n_layer=s.n_layer - 1)),
    "no norm behind the blocks": (["idefics3", "gemma3"], lambda s: replace(s, post_norm=False)),
    "no norm before the blocks": (["mlp"], lambda s: replace(s, pre_norm=False)),
    "no class token": (["mlp"], lambda s: replace(s, class_token=False)),
    "the class token's position first": (["llama4"], lambda s: replace(s, class_last=False)),
    "no windows": (["qwen25vl"], lambda s: replace(s, window=0)),
    "windows of another size": (["qwen25vl"], lambda s: replace(s, window=4)),
    "windows in all blocks": (["qwen25vl"], lambda s: replace(s, global_blocks=frozenset())),
    "windows in other blocks": (["qwen25vl"], lambda s: replace(s, global_blocks=frozenset({0}))),
    "biases ignored": (NAMES, lambda s: replace(s, biases=frozenset())),
    "heads of another size": (without("gemma4v"), lambda s: replace(s, n_head=2)),
    "mean ignored": (NAMES, lambda s: replace(s, mean=(0.5, 0.5, 0.5))),
    "std ignored": (NAMES, lambda s: replace(s, std=(0.5, 0.5, 0.5))),
    "pixels from 0 to 1": (["gemma4v"], lambda s: replace(s, mean=(0.0,) * 3, std=(1.0,) * 3)),
    "no rotation": (ROTATED, lambda s: replace(s, rope="")),
    "other pairs": (["pixtral", "pixtral-12b", "gemma4v", "llama4"], lambda s: replace(s, rope="halves")),
    "rows first in the rotation": (["llama4"], lambda s: replace(s, rope="adjacent")),
    "pairs side by side": (["qwen3vl", "gemma4v"], lambda s: replace(s, rope="adjacent")),
    "rows and columns swapped in the rotation": (
        ["qwen3vl", "qwen25vl"],
        lambda s: replace(s, rope="quarters"),
    ),
    "another base": ([*SHAPED, "qwen25vl", "llama4"], lambda s: replace(s, rope_base=500.0)),
    "no positions": (["qwen3vl", "gemma4v"], lambda s: replace(s, positions="")),
    "one frame": (["qwen3vl", "qwen35", "qwen2vl"], lambda s: replace(s, two_frames=False)),
    "no gate": (["pixtral", "gemma4v", "qwen25vl"], lambda s: replace(s, gated=False)),
    "tanh GELU": (["internvl", "llama4"], lambda s: replace(s, activation="gelu")),
    "exact GELU": (["qwen3vl", "gemma4v"], lambda s: replace(s, activation="exact_gelu")),
    "Q and K not normalised": (["internvl-6b", "gemma4v"], lambda s: replace(s, qk_norm="")),
    "V not normalised": (["gemma4v"], lambda s: replace(s, value_norm=False)),
    "scores scaled": (["gemma4v"], lambda s: replace(s, attention_scale=0.0)),
    "scales of layers ignored": (["internvl"], lambda s: replace(s, layer_scale=False)),
    "outputs not normalised": (["gemma4v"], lambda s: replace(s, output_norms=False)),
    "no limits": (["gemma4v"], lambda s: replace(s, clamps=())),
}
# Errors that are small by nature: two forms of GELU.
SMALL = {"tanh GELU": 1, "exact GELU": 1}


@pytest.mark.parametrize("make", [reference, native])
@pytest.mark.parametrize(("name", "error"), [(n, e) for e, (names, _) in SPEC_ERRORS.items() for n in names])
def test_a_wrong_spec_shows(name, error, make):
    spec = SPEC_ERRORS[error][1](vision_spec(name))
    encoder = make(name, spec)
    if error == "no class token":
        encoder = Shortened(encoder)
    assert difference(encoder, name) > SMALL.get(error, 10) * TOLERANCE


class Shortened:
    """An encoder that forgets the position of the class token too, so that shapes fit."""

    def __init__(self, encoder):
        self.spec, self._encoder = encoder.spec, encoder
        found = getattr(encoder, "weights", None) or encoder.kept
        found["v.position_embd.weight"] = found["v.position_embd.weight"][1:]

    def __getattr__(self, name):
        return getattr(self._encoder, name)


def turned(tiles):
    return np.ascontiguousarray(tiles.swapaxes(1, 2))


PIXEL_ERRORS = {
    "blue and red swapped": lambda tiles: tiles[..., ::-1],
    "rows and columns swapped": turned,
    "upside down": lambda tiles: tiles[:, ::-1],
    "one row off": lambda tiles: np.roll(tiles, 1, axis=1),
}


@pytest.mark.parametrize("error", PIXEL_ERRORS)
@pytest.mark.parametrize("name", ENCODERS)
def test_wrong_pixels_show(name, error):
    encoder = native(name)
    tiles = PIXEL_ERRORS[error](prepare(picture(1), encoder.spec).tiles)
    found = encode(encoder, normalise(tiles, encoder.spec), find_grid(tiles, encoder.spec))
    assert np.abs(found - vision_answer(name, "vectors.1")).max() > 10 * TOLERANCE


@pytest.mark.parametrize("name", ENCODERS)
def test_a_wrong_filter_shows(name, monkeypatch):
    resize = base.resize
    monkeypatch.setattr(base, "resize", lambda p, h, w, _: resize(p, h, w, "nearest"))
    assert difference(native(name), name) > 10 * TOLERANCE


def test_channels_in_another_order_show():
    """Patches pixel by pixel, as a picture lies in memory, where channel by channel is meant."""
    encoder = native("mlp")
    numbers, _ = patches("mlp", 1)
    mixed = numbers.reshape(*numbers.shape[:2], 3, -1).swapaxes(2, 3).reshape(numbers.shape)
    found = encode(encoder, np.ascontiguousarray(mixed))
    assert np.abs(found - vision_answer("mlp", "vectors.1")).max() > 10 * TOLERANCE


def test_squares_merged_patch_by_patch_show(monkeypatch):
    """Mistral 3 merges them channel by channel."""
    encoder = native("pixtral")
    monkeypatch.setattr(base, "squares", lambda *args: squares(*args).swapaxes(2, 3))
    assert difference(encoder, "pixtral") > 10 * TOLERANCE


def test_exact_gelu_is_not_the_tanh_form(monkeypatch):
    from stretto.vision import reference as module

    monkeypatch.setitem(module.ACTIVATIONS, "exact_gelu", module.gelu)
    assert difference(reference("mlp"), "mlp") > 2 * TOLERANCE
