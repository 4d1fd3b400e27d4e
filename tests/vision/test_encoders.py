"""Tiny random encoders of every projector, against transformers: pixels, then vectors.

Both sides compute in float32, and vectors have about unit variance. An error of any constant or piece must
show at ten times the tolerance.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from stretto import _native
from stretto.vision import preprocess
from stretto.vision.encoder import encode
from stretto.vision.native import NativeEncoder
from stretto.vision.preprocess import normalise, prepare
from stretto.vision.reference import ReferenceEncoder
from tiny_vision import NAMES, PICTURES, patches, picture, vectors, vision_answer, vision_file, vision_spec

pytestmark = pytest.mark.golden

TOLERANCE = 5e-5


def reference(name, spec=None):
    return ReferenceEncoder(vision_file(name), spec or vision_spec(name))


def native(name, spec=None, threads=2, kernels=""):
    return NativeEncoder(vision_file(name), spec or vision_spec(name), threads, kernels)


def difference(encoder, i=1):
    return np.abs(vectors(encoder, i) - vision_answer(encoder.spec.projector, f"vectors.{i}")).max()


def test_every_projector_is_there():
    assert {vision_spec(name).projector for name in NAMES} == {"mlp", "idefics3", "gemma3"}


@pytest.mark.parametrize("i", PICTURES)
@pytest.mark.parametrize("name", NAMES)
def test_pixels(name, i):
    spec = vision_spec(name)
    wanted = vision_answer(name, f"pixels.{i}")  # [n, 3, size, size]
    found = normalise(prepare(picture(i), spec).tiles, spec)
    side, patch = spec.n_side, spec.patch_size
    whole = found.reshape(-1, side, side, 3, patch, patch).transpose(0, 3, 1, 4, 2, 5).reshape(wanted.shape)
    np.testing.assert_allclose(whole, wanted, atol=2e-6)


@pytest.mark.parametrize("i", PICTURES)
def test_the_grid_of_tiles(i):
    prepared = prepare(picture(i), vision_spec("idefics3"))
    assert [prepared.rows, prepared.columns] == vision_answer("idefics3", f"grid.{i}").tolist()
    assert len(prepared.tiles) == prepared.rows * prepared.columns + 1


@pytest.mark.parametrize("make", [reference, native])
@pytest.mark.parametrize("i", PICTURES)
@pytest.mark.parametrize("name", NAMES)
def test_vectors(name, i, make):
    assert 0.3 < vision_answer(name, f"vectors.{i}").std() < 3
    assert difference(make(name), i) < TOLERANCE


@pytest.mark.parametrize("kernels", _native.kernel_names())
@pytest.mark.parametrize("name", NAMES)
def test_every_kernel_set(name, kernels):
    assert difference(native(name, kernels=kernels)) < TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_the_same_bits_in_any_company(name):
    """Alone or with others, with one thread or three."""
    encoder, both = native(name, threads=1), np.concatenate([patches(name, i) for i in PICTURES])
    together = encode(native(name, threads=3), both)
    alone = [encode(encoder, patch[None])[0] for patch in both]
    assert (together == np.stack(alone)).all()


@pytest.mark.parametrize("make", [reference, native])
@pytest.mark.parametrize("name", NAMES)
def test_the_same_bits_in_any_pieces(name, make):
    """However many rows a piece has, and wherever it ends: also in the middle of an image."""
    encoder, both = make(name), np.concatenate([patches(name, i) for i in PICTURES])
    sizes, n_pieces = itertools.cycle([1, 7, 64, 3, 16]), 0
    x = encoder.embed(both)
    for index in range(encoder.spec.n_layer):
        for _ in encoder.block(index, x, lambda: next(sizes)):
            n_pieces += 1
    assert n_pieces == 2 * encoder.spec.n_layer if make is reference else n_pieces > 10
    assert (encoder.project(x) == encode(encoder, both)).all()


def test_pieces_that_are_wrong():
    encoder = native("mlp")
    x = encoder.embed(patches("mlp", 0))
    seen = [np.empty_like(x) for _ in "qkv"]
    for first, last in ((0, 0), (3, 2), (0, x.shape[1] + 1)):
        with pytest.raises(ValueError, match="out of range"):
            encoder._open.look("v.blk.0.", x, *seen, first, last)
    with pytest.raises(ValueError, match="wrong size"):
        encoder._open.mix("v.blk.0.", x, *seen[:2], np.empty((1, 1, 4), np.float32), 0, 1)
    with pytest.raises(ValueError, match="incomplete"):
        encoder._open.mix("v.blk.9.", x, *seen, 0, 1)


# -- planted errors --

SPEC_ERRORS = {
    "eps at its usual value": (NAMES, lambda s: replace(s, norm_eps=1e-6)),
    "another activation": (NAMES, lambda s: replace(s, activation="silu")),
    "gelu for quick gelu": (["mlp"], lambda s: replace(s, activation="gelu")),
    "the last block missing": (NAMES, lambda s: replace(s, n_layer=s.n_layer - 1)),
    "no norm behind the blocks": (["idefics3", "gemma3"], lambda s: replace(s, post_norm=False)),
    "no norm before the blocks": (["mlp"], lambda s: replace(s, pre_norm=False)),
    "no class token": (["mlp"], lambda s: replace(s, class_token=False)),
    "biases ignored": (NAMES, lambda s: replace(s, biases=frozenset())),
    "heads of another size": (NAMES, lambda s: replace(s, n_head=2)),
    "mean ignored": (NAMES, lambda s: replace(s, mean=(0.5, 0.5, 0.5))),
    "std ignored": (NAMES, lambda s: replace(s, std=(0.5, 0.5, 0.5))),
}


@pytest.mark.parametrize("make", [reference, native])
@pytest.mark.parametrize(("name", "error"), [(n, e) for e, (names, _) in SPEC_ERRORS.items() for n in names])
def test_a_wrong_spec_shows(name, error, make):
    spec = SPEC_ERRORS[error][1](vision_spec(name))
    encoder = make(name, spec)
    if error == "no class token":
        encoder = Shortened(encoder)
    assert difference(encoder) > 10 * TOLERANCE


class Shortened:
    """An encoder that forgets the position of the class token too, so that shapes fit."""

    def __init__(self, encoder):
        self.spec, self._encoder = encoder.spec, encoder
        for name in ("weights", "_positions"):
            found = getattr(encoder, name, None)
            if isinstance(found, dict):
                found["v.position_embd.weight"] = found["v.position_embd.weight"][1:]
            elif found is not None:
                setattr(encoder, name, found[1:])

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
@pytest.mark.parametrize("name", NAMES)
def test_wrong_pixels_show(name, error):
    encoder = native(name)
    tiles = PIXEL_ERRORS[error](prepare(picture(1), encoder.spec).tiles)
    found = encode(encoder, normalise(tiles, encoder.spec))
    assert np.abs(found - vision_answer(name, "vectors.1")).max() > 10 * TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_filter_shows(name, monkeypatch):
    resize = preprocess._resize
    monkeypatch.setattr(preprocess, "_resize", lambda p, h, w, _: resize(p, h, w, "nearest"))
    assert difference(native(name)) > 10 * TOLERANCE


def test_channels_in_another_order_show():
    """Patches pixel by pixel, as a picture lies in memory, where channel by channel is meant."""
    encoder = native("mlp")
    numbers = patches("mlp", 1)
    mixed = numbers.reshape(*numbers.shape[:2], 3, -1).swapaxes(2, 3).reshape(numbers.shape)
    found = encode(encoder, np.ascontiguousarray(mixed))
    assert np.abs(found - vision_answer("mlp", "vectors.1")).max() > 10 * TOLERANCE


def test_exact_gelu_is_not_the_tanh_form(monkeypatch):
    from stretto.vision import reference as module

    monkeypatch.setattr(module, "exact_gelu", module.gelu)
    assert difference(reference("mlp")) > 2 * TOLERANCE
