"""The image encoder in torch: near transformers, the same in any batch, and beside a model in torch."""

import itertools

import numpy as np
import pytest

from stretto.errors import InvalidRequest, ModelError
from stretto.vision.encoder import encode
from stretto.vision.families.qwen3vl import deepstack
from stretto.vision.queue import find_grid, normalise, prepare
from tiny_vision import (
    ENCODERS,
    FOLDER,
    PICTURES,
    patches,
    picture,
    seeing_llm,
    vectors,
    vision_answer,
    vision_file,
    vision_spec,
)

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'stretto[cuda]'")

from stretto.vision.torch import TorchEncoder  # noqa: E402
from torch_backends import DEVICE, not_interpreted  # noqa: E402

TOLERANCE = 5e-5


def encoder(name, precision="high", **options):
    return TorchEncoder(vision_file(name), vision_spec(name), DEVICE, precision, **options)


def several(name):
    """Images or tiles of one size, and their grid."""
    numbers, grid = patches(name, 1)
    return np.concatenate((numbers, numbers[:, ::-1], numbers * np.float32(0.5))), grid


@pytest.mark.parametrize("i", PICTURES)
@pytest.mark.parametrize("name", ENCODERS)
def test_vectors_are_those_of_transformers(name, i):
    found = vectors(encoder(name), name, i)
    assert found.dtype == np.float32
    assert np.abs(found - vision_answer(name, f"vectors.{i}")).max() < TOLERANCE


@pytest.mark.parametrize("part", ["whole", "slices"])
def test_vectors_of_minicpmv(part):
    spec = vision_spec("minicpmv")
    prepared = prepare(picture(1), spec)
    tiles = (prepared.whole if part == "whole" else prepared).tiles
    found = encode(encoder("minicpmv"), normalise(tiles, spec), find_grid(tiles, spec))
    with np.load(FOLDER / "minicpmv.npz", allow_pickle=False) as answers:
        assert np.abs(found - answers[f"vectors.{part}.1"]).max() < TOLERANCE


@pytest.mark.parametrize("name", ENCODERS)
def test_standard_precision_is_near(name):
    found, expected = vectors(encoder(name, "standard"), name, 1), vision_answer(name, "vectors.1")
    assert 0 < np.abs(found - expected).mean() < 0.02 * expected.std()


@pytest.mark.parametrize("precision", ["standard", "high"])
@pytest.mark.parametrize("name", ENCODERS)
def test_the_same_bits_in_any_batch(name, precision):
    made, (both, grid) = encoder(name, precision), several(name)
    alone = [encode(made, patch[None], grid)[0] for patch in both]
    assert (encode(made, both, grid) == np.stack(alone)).all()


@pytest.mark.parametrize("name", ["qwen3vl", "mlp"])
def test_images_that_are_joined_and_left_out(name):
    made, (both, grid) = encoder(name, "standard"), several(name)
    sizes, taps = itertools.cycle([1, 7, 64]), []
    x = made.join([made.embed(one[None], grid) for one in both])
    for index in range(made.spec.n_layer):
        if index == 1:
            x, taps = x[[0, 2]], [tap[[0, 2]] for tap in taps]
        assert len(list(made.block(index, x, grid, lambda: next(sizes)))) == len(x)
        if index in made.spec.deepstack:
            taps.append(deepstack(made, index, x, grid))
    found = [made.project(x[i : i + 1], grid, [tap[i : i + 1] for tap in taps])[0] for i in range(2)]
    assert (np.stack(found) == encode(made, both, grid)[[0, 2]]).all()


def test_precisions_have_names_of_their_own():
    assert encoder("mlp").name == encoder("mlp", "standard").name + " high"
    assert torch.__version__ in encoder("mlp").name


def test_a_closed_encoder_says_so():
    made = encoder("mlp")
    made.close()
    with pytest.raises(InvalidRequest, match="closed"):
        vectors(made, "mlp", 0)


def test_memory_that_runs_out_names_the_work(monkeypatch):
    from functools import partial

    from stretto.backends.torch.memory import device_memory

    made = encoder("mlp", guard=partial(device_memory, device=DEVICE))
    expected = vectors(made, "mlp", 0)

    def full(*args, **options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", full)
        with pytest.raises(ModelError, match="ran out while encoding an image"):
            vectors(made, "mlp", 0)
    assert (vectors(made, "mlp", 0) == expected).all()


@not_interpreted
@pytest.mark.parametrize("name", ["gemma3", "idefics3"])
def test_a_language_model_sees_through_it(name):
    found = []
    for backend, options in (("reference", {}), ("torch", {"device": DEVICE})):
        with seeing_llm(name, backend, cells=512, **options) as llm:
            prompts = [("AB", picture(i), "?") for i in PICTURES[:2]]
            results = llm.generate(prompts, max_tokens=4, temperature=0, ignore_eos=True)
            found.append([result.tokens for result in results])
    assert found[0] == found[1]


@pytest.mark.parametrize(("backend", "kind"), [("torch", "TorchEncoder"), ("reference", "ReferenceEncoder")])
def test_the_encoder_is_on_the_device_of_the_language_model(backend, kind):
    from stretto.backends.base import BackendOptions
    from stretto.loading.choose import Alternative, Route
    from stretto.loading.images import ImageEncoder
    from stretto.vision.cache import ImageCache
    from tiny_models import tiny_spec
    from tiny_vision import FOLDER, small_tokenizer

    device = DEVICE if backend == "torch" else "cpu"
    path, route = FOLDER / "gemma3.gguf", Route((Alternative(backend, device, "chosen", "it was asked for"),))
    setup = BackendOptions(device, 64, 1, precision="high")
    encoder = ImageEncoder(path, ImageCache(disk=0))
    vision = encoder.open(tiny_spec("gemma3"), small_tokenizer(), route, setup)
    assert type(vision.encoder).__name__ == kind
    assert (
        np.abs(vectors(vision.encoder, "gemma3", 0) - vision_answer("gemma3", "vectors.0")).max() < TOLERANCE
    )
    assert encoder.nbytes("high") > encoder.nbytes("standard") > path.stat().st_size / 4
    vision.close()
