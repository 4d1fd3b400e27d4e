"""Rotary frequencies: against transformers, and against the formulas written down a second time."""

import math

import numpy as np
import pytest

from stretto.errors import ModelError
from stretto.models import read_spec
from stretto.models.parts import Stretch
from stretto.models.rope import plain_frequencies, yarn
from stretto.models.spec import Rope
from stretto.weights.gguf import GGUF
from stretto.weights.writer import write_gguf
from tiny_encoders import file_of
from tiny_models import NAMES, answer, tiny_file, tiny_spec


@pytest.fixture
def rope_with(tmp_path):
    """The rope of the plain tiny llama (base 5000, heads of 16) with more keys or tensors in its file."""

    def rope(keys, tensors=None):
        file, path = tiny_file("llama"), tmp_path / "changed.gguf"
        keys = {f"llama.rope.{key}": value for key, value in keys.items()}
        write_gguf(path, {**file.metadata, **keys}, {**file.tensors, **(tensors or {})})
        return read_spec(GGUF(path)).layers[0].mixer.rope

    return rope


PLAIN = [5000 ** (-i / 8) for i in range(8)]


@pytest.mark.golden
@pytest.mark.parametrize("name", NAMES)
def test_as_in_transformers(name):
    layers = tiny_spec(name).layers
    wide = next(layer.mixer.rope for layer in layers if layer.mixer.window is None)
    np.testing.assert_allclose(wide.frequencies, answer(name, "frequencies"), rtol=1e-6)  # float32 there
    assert wide.magnitude == pytest.approx(float(answer(name, "magnitude")), rel=1e-12)
    near = [layer.mixer.rope for layer in layers if layer.mixer.window is not None]
    for rope in near:
        np.testing.assert_allclose(rope.frequencies, answer(name, "local_frequencies"), rtol=1e-6)
        assert rope.magnitude == 1.0
    assert bool(near) == name.startswith("gemma3")


def test_plain():
    np.testing.assert_allclose(plain_frequencies(5000.0, 16), PLAIN, rtol=1e-14)
    assert plain_frequencies(1e6, 2).tolist() == [1.0]


@pytest.mark.parametrize(
    "keys",
    [
        {"scaling.type": "linear", "scaling.factor": 4.0},
        {"scaling.factor": 4.0},  # linear is what a file means that does not say
        {"scale_linear": 4.0},
        {"scaling.type": "linear", "scale_linear": 4.0},
    ],
)
def test_linear(rope_with, keys):
    rope = rope_with(keys)
    np.testing.assert_allclose(rope.frequencies, np.array(PLAIN) / 4, rtol=1e-14)
    assert rope.magnitude == 1.0


@pytest.mark.parametrize(
    "keys", [{}, {"scaling.type": "none"}, {"scaling.type": "none", "scaling.factor": 4.0}]
)
def test_none(rope_with, keys):
    np.testing.assert_allclose(rope_with(keys).frequencies, PLAIN, rtol=1e-14)


def test_llama3_divides_by_a_tensor(rope_with):
    # As Llama 3.2 is: short waves stay, long ones are stretched, between them a mixture.
    original, factor, low, high = 32, 8.0, 1.0, 4.0
    expected = []
    for frequency in PLAIN:
        wave = 2 * math.pi / frequency
        smooth = (original / wave - low) / (high - low)
        if wave < original / high:
            expected.append(frequency)
        elif wave > original / low:
            expected.append(frequency / factor)
        else:
            expected.append((1 - smooth) * frequency / factor + smooth * frequency)
    factors = (np.array(PLAIN) / expected).astype(np.float32)
    assert factors[0] == 1.0  # all three kinds are there
    assert 1.0 < factors[1] < 8.0
    assert factors[2:].tolist() == [8.0] * 6
    rope = rope_with({}, {"rope_freqs.weight": factors})
    np.testing.assert_allclose(rope.frequencies, expected, rtol=1e-7)
    stored = tiny_file("llama-llama3").tensors["rope_freqs.weight"].dequantize()
    np.testing.assert_allclose(stored, factors, rtol=1e-6)


def yarn_by_hand(base, size, factor, original, fast, slow):
    def pair(turns):  # the pair, not whole, that turns this often in the original context
        return size / 2 * math.log(original / (2 * math.pi * turns), base)

    low, high = max(math.floor(pair(fast)), 0), min(math.ceil(pair(slow)), size - 1)
    found = []
    for i in range(size // 2):
        frequency = base ** (-2 * i / size)
        stretched = min(max((i - low) / (high - low or 0.001), 0.0), 1.0)
        found.append(frequency * ((1 - stretched) + stretched / factor))
    return found


@pytest.mark.parametrize(
    ("base", "size", "factor", "original", "fast", "slow"),
    [
        (10_000.0, 128, 16.0, 4096, 32.0, 1.0),  # Llama 2 stretched to 64k
        (1_000_000.0, 128, 4.0, 32768, 32.0, 1.0),  # Qwen 2.5 and 3 as their cards say
        (5000.0, 16, 4.0, 32, 32.0, 1.0),
        (5000.0, 16, 4.0, 32, 4.0, 0.25),
        (10_000.0, 64, 8.0, 2048, 1.0, 1.0),  # a step instead of a ramp
    ],
)
def test_yarn(base, size, factor, original, fast, slow):
    found = yarn(plain_frequencies(base, size), base, factor, original, fast, slow)
    np.testing.assert_allclose(found, yarn_by_hand(base, size, factor, original, fast, slow), rtol=1e-12)


def test_yarn_keeps_short_waves_and_stretches_long_ones():
    plain = plain_frequencies(10_000.0, 128)
    kept = yarn(plain, 10_000.0, 16.0, 4096, 32.0, 1.0) / plain
    assert kept[0] == 1.0
    assert kept[-1] == pytest.approx(1 / 16)
    assert (np.diff(kept) <= 0).all()


def test_yarn_in_a_file(rope_with):
    keys = {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 32}
    rope = rope_with(keys)
    np.testing.assert_allclose(rope.frequencies, yarn_by_hand(5000, 16, 4, 32, 32, 1), rtol=1e-12)
    assert rope.magnitude == pytest.approx(1 + 0.1 * math.log(4))
    rope = rope_with(keys | {"scaling.yarn_beta_fast": 4.0, "scaling.yarn_beta_slow": 0.25})
    np.testing.assert_allclose(rope.frequencies, yarn_by_hand(5000, 16, 4, 32, 4, 0.25), rtol=1e-12)
    assert rope_with(keys | {"scaling.attn_factor": 0.5}).magnitude == pytest.approx(
        0.5 * (1 + 0.1 * math.log(4))
    )
    # Without an original context, the file's own is meant (here 128).
    del keys["scaling.original_context_length"]
    np.testing.assert_allclose(rope_with(keys).frequencies, yarn_by_hand(5000, 16, 4, 128, 32, 1), rtol=1e-12)


def test_yarn_with_a_magnitude_of_its_own(rope_with):
    keys = {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 32}
    assert rope_with(keys | {"scaling.yarn_attn_factor": 1.25}).magnitude == 1.25
    # The usual one divided by that of another factor of the logarithm, so that 1 leaves nothing.
    assert rope_with(keys | {"scaling.yarn_log_multiplier": 1.0}).magnitude == 1.0
    halved = rope_with(keys | {"scaling.yarn_log_multiplier": 0.5}).magnitude
    assert halved == pytest.approx((1 + 0.1 * math.log(4)) / (1 + 0.05 * math.log(4)))


def test_longrope_divides_by_tensors_chosen_by_the_context(rope_with):
    factors = np.arange(1, 9, dtype=np.float32)
    tensors = {"rope_factors_short.weight": factors, "rope_factors_long.weight": 2 * factors}
    rope = rope_with({"scaling.original_context_length": 100, "scaling.attn_factor": 1.25}, tensors)
    long, short = np.array(PLAIN) / (2 * factors), np.array(PLAIN) / factors
    np.testing.assert_allclose(rope.frequencies, long, rtol=1e-14)  # the model's context is 128
    np.testing.assert_allclose(rope.within(101).frequencies, long, rtol=1e-14)
    np.testing.assert_allclose(rope.within(100).frequencies, short, rtol=1e-14)
    assert rope.magnitude == rope.within(100).magnitude == 1.25


@pytest.mark.parametrize("missing", ["short", "long"])
def test_longrope_needs_both_tensors(rope_with, missing):
    there = {"short": "long", "long": "short"}[missing]
    keys = {"scaling.original_context_length": 100, "scaling.type": "longrope"}
    with pytest.raises(ModelError, match=f"rope_factors_{missing}"):
        rope_with(keys, {f"rope_factors_{there}.weight": np.ones(8, np.float32)})


def test_a_context_changes_only_a_rope_that_depends_on_it():
    spec = tiny_spec("llama-yarn")
    assert spec.within(3) == spec
    phi = read_spec(tiny_file("phi3-short"))
    assert phi.within(1024) != phi == phi.within(1025) == phi.within(1 << 30)
    # Cells of one do not fit the other.
    assert phi.kv_layout == "2 layers, 2 heads of 16, rope beyond 1024 tokens"
    assert phi.within(1024).kv_layout == "2 layers, 2 heads of 16, rope up to 1024 tokens"


def test_a_part_of_a_head_is_rotated(rope_with):
    rope = rope_with({"dimension_count": 8})
    np.testing.assert_allclose(rope.frequencies, [5000 ** (-i / 4) for i in range(4)], rtol=1e-14)


def test_angles():
    rope = Rope((1.0, 0.5), "halves")
    assert rope.angles(np.array([0, 3])).tolist() == [[0.0, 0.0], [3.0, 1.5]]


@pytest.mark.parametrize(
    ("keys", "stretch", "context"),
    [
        ({"context_length": 2048}, Stretch(2048, 2.0), 8192),  # as converters write it
        ({"context_length": 512}, None, 512),
        ({"context_length": 2048, "rope.scaling.type": "none"}, None, 2048),
        (
            {
                "context_length": 4096,
                "rope.scaling.type": "dynamic",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 512,
            },
            Stretch(512, 4.0),
            4096,
        ),
    ],
)
def test_nomics_rope_stretches_beyond_what_it_was_trained_for(keys, stretch, context, tmp_path):
    file, path = file_of("nomic-bert"), tmp_path / "changed.gguf"
    keys = {f"nomic-bert.{name}": value for name, value in keys.items()}
    write_gguf(path, {**file.metadata, **keys}, file.tensors)
    spec = read_spec(GGUF(path))
    assert spec.layers[0].attention.rope.stretch == stretch
    assert spec.context_length == context
    assert spec.unstretched().context_length == (context if stretch is None else stretch.length)


def test_a_rope_of_one_pair_cannot_stretch(tmp_path):
    file, path = file_of("nomic-bert"), tmp_path / "changed.gguf"
    keys = {"nomic-bert.context_length": 2048, "nomic-bert.rope.dimension_count": 2}
    write_gguf(path, {**file.metadata, **keys}, file.tensors)
    with pytest.raises(ModelError, match="one pair cannot stretch"):
        read_spec(GGUF(path))
