"""The native backend runs all that a spec says, or refuses it."""

from dataclasses import dataclass

import numpy as np
import pytest

from stretto import _native
from stretto.backends.batch import Batch
from stretto.backends.native import NativeBackend
from stretto.backends.native_weights import plain_spec
from stretto.backends.reference import ReferenceBackend
from stretto.cache.cells import Cells
from stretto.errors import Unsupported
from stretto.hardware import kernel_sets
from stretto.models import read_spec
from stretto.models.spec import Dense
from stretto.weights.formats import Format
from stretto.weights.gguf import GGUF
from stretto.weights.writer import Quantized, write_gguf
from tiny_models import answer, text_batch, text_logits, tiny_file, tiny_spec, with_layers

# Together they have every part.
MODELS = ["deepseek3", "glm-dsa", "gemma3n", "gemma4-moe", "gpt-oss", "mistral3", "qwen2moe"]


def parts(value, path=()):
    """The path of every dictionary."""
    if isinstance(value, dict):
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield from parts(each, (*path, key))


def at(value, path):
    for key in path:
        value = value[key]
    return value


def decoder(spec):
    return _native.Decoder(spec, 16, "f16", 1, kernel_sets.select(), "standard")


@pytest.mark.parametrize("name", MODELS)
def test_fields_that_are_not_known_are_refused(name):
    spec = tiny_spec(name)
    assert decoder(plain_spec(spec)).cell_bytes > 0
    paths = list(parts(plain_spec(spec)))
    assert len(paths) > spec.n_layer
    for path in paths:
        changed = plain_spec(spec)
        at(changed, path)["novelty"] = None
        with pytest.raises(ValueError, match="novelty"):
            decoder(changed)


@pytest.mark.parametrize("part", ["mixer", "ffn"])
def test_parts_that_are_not_known_are_refused(part):
    changed = plain_spec(tiny_spec("gemma4"))
    changed["layers"][0][part]["part"] = "Novelty"
    with pytest.raises(ValueError, match="Novelty"):
        decoder(changed)


@pytest.mark.parametrize(
    ("name", "path", "changes", "reason"),
    [
        ("gemma3n", ("layers", 1, "streams"), {"n": 3}, "same streams"),
        ("gemma3n", ("layers", 0, "streams"), {"n": 17}, "too many streams"),
        ("gemma3n", ("layers", 0, "input"), {"size": 8}, "input does not fit"),
        ("gemma3n", ("layers", 0), {"mixer": None}, "beside a mixer"),
        ("gemma3n", ("layers", 0, "ffn"), {"cutoff": 1.0, "gated": False}, "cutoff"),
        ("gemma3n", ("layers", 0, "low_rank"), {"norm": None}, "norm is missing"),
        ("gemma4-e", (), {"per_layer": None}, "input does not fit"),
        ("deepseek3", ("layers", 0), {"parallel": True}, "latent attention"),
        ("deepseek3", ("layers", 0, "mixer"), {"kv_norm": None}, "kv_norm is missing"),
        ("glm-dsa", ("layers", 0, "mixer", "indexer"), {"top_k": 0}, "top_k is out of range"),
        ("glm-dsa", ("layers", 0, "mixer", "indexer"), {"rope": None}, "compressed queries and a rope"),
        ("glm-dsa", ("layers", 1, "mixer"), {"chosen_by": 1}, "the last one before it"),
        ("glm-dsa", ("layers", 2, "mixer"), {"chosen_by": 0}, "the last one before it"),
        ("hunyuan-dense", ("layers", 0, "mixer", "k_norm"), {"over": "all"}, "after the rope"),
    ],
)
def test_what_does_not_fit_together_is_refused(name, path, changes, reason):
    changed = plain_spec(tiny_spec(name))
    at(changed, path).update(changes)
    with pytest.raises(ValueError, match=reason):
        decoder(changed)


@dataclass(frozen=True)
class Novelty(Dense):
    """A feed-forward that only its own file knows."""

    twist: float = 1.0


def test_loading_what_cannot_be_run_names_the_backend_that_may():
    spec = with_layers(tiny_spec("gemma4"), ffn=Novelty(32, "gelu"))
    with pytest.raises(Unsupported, match=r"Novelty.*reference"):
        NativeBackend(tiny_file("gemma4"), spec, 16, 1)


@pytest.mark.parametrize("name", ["gemma3n", "gemma4-e"])
def test_vectors_are_tokens_with_row_0_of_the_table_for_each_layer(name):
    tokens = [5, 0, 9, 0, 0, 7]
    embeddings = tiny_file(name).tensors["token_embd.weight"].dequantize()
    vector = embeddings[0] * np.float32(tiny_spec(name).embedding_scale)
    batch = Batch()
    for i, token in enumerate(tokens):
        if token:
            batch.add(token, i, [0], logits=True)
        else:
            batch.add_vector(vector, i, [0], logits=True)
    batch.place(Cells(64))
    backends = [NativeBackend(tiny_file(name), tiny_spec(name), 64, 2) for _ in range(2)]
    assert (backends[0].forward(batch) == text_logits(backends[1], tokens)).all()


def half_size(tensor):
    """A tensor in 8 bits where its rows allow it, else in half floats; vectors as they are."""
    numbers = tensor.dequantize()
    if numbers.ndim == 1:
        return numbers
    return Quantized(numbers, Format.F16 if numbers.shape[-1] % 32 else Format.Q8_0)


@pytest.mark.parametrize("name", ["gemma3n", "gemma4-e", "gemma4-moe", "deepseek2-lite-old"])
def test_quantised_weights(name, tmp_path):
    """Near the reference, and the same bits token by token and without packing."""
    source, path = tiny_file(name), tmp_path / "m.gguf"
    tensors = {key: half_size(tensor) for key, tensor in source.tensors.items()}
    write_gguf(path, source.metadata, tensors, types=source.metadata.types)
    file = GGUF(path)
    spec, tokens = read_spec(file, 64), answer(name, "tokens.1").tolist()
    expected = text_logits(ReferenceBackend(file, spec, 64), tokens)
    exact = text_logits(NativeBackend(file, spec, 64, 2, "f32", precision="high"), tokens)
    assert np.abs(exact - expected).max() < 0.02
    whole = text_logits(NativeBackend(file, spec, 64, 2), tokens)
    assert np.sqrt(np.mean(np.square(whole - expected))) < 0.2
    assert (text_logits(NativeBackend(file, spec, 64, 1, repack=False), tokens) == whole).all()
    backend, cells = NativeBackend(file, spec, 64, 4), Cells(64)
    for i, token in enumerate(tokens):
        batch = text_batch([token], i)
        batch.place(cells)
        assert (backend.forward(batch)[0] == whole[i]).all()
