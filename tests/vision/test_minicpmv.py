"""MiniCPM-V: all of an image and slices of another size, and queries that read each of them."""

from dataclasses import replace

import numpy as np
import pytest

from stretto.cache.items import ImageToken
from stretto.errors import ModelError
from stretto.vision.encoder import attended, encode, position_rows
from stretto.vision.image import Image
from stretto.vision.native import NativeEncoder
from stretto.vision.queue import find_grid, normalise, prepare
from stretto.vision.reading import read_vision_spec
from stretto.vision.reference import ReferenceEncoder
from stretto.vision.vision import Vision
from stretto.weights.gguf import GGUF
from stretto.weights.writer import write_gguf
from tiny_vision import FOLDER, SPECIALS, picture, small_tokenizer, vision_file, vision_spec

MARKERS = "<image>", "</image>", "<slice>", "</slice>"
TOLERANCE = 5e-5


@pytest.fixture(scope="module")
def answers():
    with np.load(FOLDER / "minicpmv.npz", allow_pickle=False) as stored:
        return dict(stored)


def shown(numbers, grid, patch):
    """float32[n, 3, height, width] of patches."""
    parts = numbers.reshape(-1, *grid, 3, patch, patch).transpose(0, 3, 1, 4, 2, 5)
    return parts.reshape(len(numbers), 3, grid[0] * patch, grid[1] * patch)


def encoders():
    file, spec = vision_file("minicpmv"), vision_spec("minicpmv")
    return ReferenceEncoder(file, spec), NativeEncoder(file, spec, 2)


@pytest.mark.golden
@pytest.mark.parametrize("i", [0, 1])
def test_slices_and_vectors(i, answers):
    spec = vision_spec("minicpmv")
    prepared = prepare(picture(i), spec)
    for name, part in (("whole", prepared.whole), ("slices", prepared)):
        numbers, grid = normalise(part.tiles, spec), find_grid(part.tiles, spec)
        found = shown(numbers, grid, spec.patch_size)
        np.testing.assert_allclose(found, answers[f"pixels.{name}.{i}"], atol=2e-6)
        for encoder in encoders():
            vectors = encode(encoder, numbers, grid)
            assert np.abs(vectors - answers[f"vectors.{name}.{i}"]).max() < TOLERANCE
            alone = [encode(encoder, one[None], grid)[0] for one in numbers[:2]]
            assert isinstance(encoder, ReferenceEncoder) or (vectors[:2] == alone).all()


@pytest.mark.golden
@pytest.mark.parametrize(
    "change", [{"positions": "bilinear"}, {"image_size": 20}, {"norm_eps": 0.01}, {"n_head": 2}]
)
def test_a_wrong_number_is_seen(change, answers):
    spec = replace(vision_spec("minicpmv"), **change)
    tiles = prepare(picture(1), spec).whole.tiles
    found = encode(
        ReferenceEncoder(vision_file("minicpmv"), spec), normalise(tiles, spec), find_grid(tiles, spec)
    )
    assert np.abs(found - answers["vectors.whole.1"]).max() > 10 * TOLERANCE


def test_attention_of_several_heads():
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(0, 1, shape).astype(np.float32) for shape in ((1, 3, 8), (2, 5, 8), (2, 5, 8)))
    found = attended(q, k, v, 2)
    for i in range(2):
        for part in (slice(0, 4), slice(4, 8)):
            weights = np.exp(q[0, :, part] @ k[i, :, part].T / 2)
            wanted = weights / weights.sum(axis=1, keepdims=True) @ v[i, :, part]
            np.testing.assert_allclose(found[i, :, part], wanted, atol=1e-6)


def test_positions_are_those_of_the_nearest_place_before():
    spec = replace(vision_spec("minicpmv"), n_embd=1)
    table = np.arange(49, dtype=np.float32)[:, None]
    assert position_rows(table, spec, (7, 7))[:, 0].tolist() == table[:, 0].tolist()
    assert position_rows(table, spec, (2, 3))[:, 0].tolist() == [0, 2, 4, 21, 23, 25]


def test_markers_around_all_of_an_image_and_its_slices():
    specials = (*MARKERS, *(name for name in SPECIALS if name not in MARKERS))[: len(SPECIALS)]
    tokenizer = small_tokenizer(specials)
    vision = Vision(encoders()[1], tokenizer, lambda: "")

    def layout(image):
        tokens, found, last = vision.tokens(image), [], None
        for token in tokens:
            if not isinstance(token, ImageToken):
                found.append(tokenizer.decode([token], special=True))
            elif last is not token.image or found[-1] in MARKERS:
                found.append(f"{token.index}")
            last = getattr(token, "image", None)
        return found, len({token.digest for token in tokens if isinstance(token, ImageToken)})

    found, n_images = layout(picture(0))
    slices = [["<slice>", str(5 * i), "</slice>"] for i in range(4)]
    assert found == ["<image>", "0", "</image>", *slices[0], *slices[1], "\n", *slices[2], *slices[3]]
    assert n_images == 2
    small = Image.open(np.zeros((20, 25, 3), np.uint8))
    assert layout(small) == (["<image>", "0", "</image>"], 1)
    tokens = vision.tokens(picture(0))
    vectors = {token.digest: token.image.vectors() for token in tokens if isinstance(token, ImageToken)}
    assert sorted(len(each) for each in vectors.values()) == [5, 20]


@pytest.mark.parametrize(
    ("keys", "tensors", "named"),
    [
        ({"clip.minicpmv_version": 2}, {}, "clip.minicpmv_version"),
        ({"clip.minicpmv_version": None}, {}, "clip.minicpmv_version"),
        ({"clip.minicpmv_query_num": 6}, {}, "resampler.query"),
        ({"clip.minicpmv_query_num": 1 << 20}, {}, "clip.minicpmv_query_num"),
        ({}, {"resampler.attn.q.bias": None}, "resampler.attn.q.bias"),
        ({}, {"resampler.kv.weight": np.zeros((96, 32), np.float32)}, "resampler.kv.weight"),
        ({}, {"v.position_embd.weight": np.zeros((48, 32), np.float32)}, "v.position_embd.weight"),
        ({}, {"resampler.further": np.zeros(3, np.float32)}, "resampler.further"),
    ],
)
def test_hostile_files(tmp_path, keys, tensors, named):
    file = vision_file("minicpmv")
    metadata = {k: v for k, v in {**file.metadata, **keys}.items() if v is not None}
    kept = {k: v for k, v in {**file.tensors, **tensors}.items() if v is not None}
    write_gguf(tmp_path / "changed.gguf", metadata, kept)
    with pytest.raises(ModelError, match=named), GGUF(tmp_path / "changed.gguf") as changed:
        read_vision_spec(changed)
