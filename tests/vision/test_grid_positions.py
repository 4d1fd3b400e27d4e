"""Rows and columns of images as positions (M-RoPE), and features of images in early layers (deepstack)."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from stretto import _native
from stretto.backends.base import host_rows
from stretto.backends.batch import Batch
from stretto.backends.native import NativeBackend
from stretto.backends.reference import ReferenceBackend
from stretto.cache.cells import Cells
from stretto.cache.lags import reach
from stretto.errors import InvalidRequest, ModelError
from stretto.models import read_spec
from tiny_models import tiny_file
from tiny_vision import logits_behind, picture, seeing_llm, vision_answer, vision_file, vision_spec

TEXT = "qwen3vl-text"
ROWS, COLUMNS = 6, 10  # tokens of the picture
START, END = 93, 94
N_CELLS = 192


@cache
def text_spec():
    return read_spec(vision_file(TEXT), N_CELLS)


def backend(name, spec=None, **options):
    spec = spec or text_spec()
    if name == "reference":
        return ReferenceBackend(vision_file(TEXT), spec, N_CELLS)
    return NativeBackend(vision_file(TEXT), spec, N_CELLS, 2, **options)


def rows(vectors=None):
    """Tokens of the golden prompt; those of the picture are vectors and their places."""
    before, after = (vision_answer("qwen3vl", key).tolist() for key in ("before", "after"))
    vectors = vision_answer("qwen3vl", "vectors.1")[0] if vectors is None else vectors
    image = [(vector, (i, COLUMNS)) for i, vector in enumerate(vectors)]
    return [*before, START, *image, END, *after]


def logits(runs, pieces=(1000,), found=None, vectors=None):
    """float32[n, n_vocab] of the golden prompt, computed in pieces of so many rows."""
    cells, waiting, at, parts = Cells(N_CELLS), rows(vectors), 0, []
    sizes = list(pieces)
    while waiting:
        n = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        batch = Batch()
        for item in waiting[:n]:
            if isinstance(item, tuple):
                batch.add_vector(item[0], at, [0], token=95, place=item[1], logits=True)
            else:
                batch.add(item, at, [0], logits=True)
            at += 1
        waiting = waiting[n:]
        batch.place(cells)
        parts.append(host_rows(runs.forward(batch)))
        if found is not None:
            found.append(batch.placement.rotated)
    return np.concatenate(parts)


def difference(found):
    wanted = vision_answer("qwen3vl", "logits")
    assert found.shape == wanted.shape
    return np.abs(found - wanted).max()


@pytest.mark.golden
def test_logits_are_those_of_transformers():
    assert vision_answer("qwen3vl", "logits").std() > 1
    assert difference(logits(backend("reference"))) < 1e-4


@pytest.mark.golden
@pytest.mark.parametrize("kernels", _native.kernel_names())
def test_native_logits_are_near(kernels, monkeypatch):
    monkeypatch.setattr("stretto.hardware.kernel_sets.select", lambda: kernels)
    assert difference(logits(backend("native"))) < 0.05


@pytest.mark.parametrize("pieces", [(1,), (7,), (3, 30, 50), (40, 1)])
def test_the_same_bits_in_any_pieces(pieces):
    """Also where a batch ends in the middle of the image, and one token at a time."""
    assert (logits(backend("native"), pieces) == logits(backend("native"))).all()


def changed_rope(**changes):
    spec = text_spec()
    mixer = spec.layers[0].mixer
    rope = replace(mixer.rope, **changes)
    layers = tuple(replace(layer, mixer=replace(layer.mixer, rope=rope)) for layer in spec.layers)
    return replace(spec, layers=layers)


@pytest.mark.parametrize("name", ["reference", "native"])
@pytest.mark.parametrize("error", ["no axes", "rows and columns swapped", "no rotation by columns"])
def test_wrong_axes_show(name, error):
    axes = text_spec().layers[0].mixer.rope.axes
    assert axes == (0, 1, 2, 0, 1, 2, 0, 0)
    wrong = {
        "no axes": None,
        "rows and columns swapped": tuple((0, 2, 1)[axis] for axis in axes),
        "no rotation by columns": tuple(axis % 2 for axis in axes),
    }
    assert difference(logits(backend(name, changed_rope(axes=wrong[error])))) > 0.1


@pytest.mark.parametrize("name", ["reference", "native"])
def test_features_of_early_layers_show(name):
    for part in (slice(32, 64), slice(64, 96)):
        vectors = vision_answer("qwen3vl", "vectors.1")[0].copy()
        vectors[:, part] = 0
        assert difference(logits(backend(name), vectors=vectors)) > 0.1


def test_positions_of_an_image():
    """As get_rope_index of transformers has them: text goes on behind the longer side."""
    found = []
    logits(backend("reference"), found=found)
    (rotated,) = found
    assert rotated[:4].tolist() == [[i] * 3 for i in range(4)]
    image = rotated[4 : 4 + ROWS * COLUMNS]
    assert (image[:, 0] == 4).all()
    assert image[:, 1].tolist() == [4 + i // COLUMNS for i in range(ROWS * COLUMNS)]
    assert image[:, 2].tolist() == [4 + i % COLUMNS for i in range(ROWS * COLUMNS)]
    assert rotated[4 + ROWS * COLUMNS :].tolist() == [[4 + COLUMNS + i] * 3 for i in range(6)]


@pytest.mark.parametrize("columns", [1, 3, 8])
def test_reach(columns):
    for index in range(20):
        places = [divmod(i, columns) for i in range(index + 1)]
        assert reach(index, columns) == max(max(place) for place in places)


def test_text_alone_has_no_other_positions():
    cells, batch = Cells(8), Batch()
    batch.extend([1, 2, 3], 0, [0])
    batch.place(cells)
    assert batch.placement.rotated is None
    assert cells.lags is None


def test_wrong_places():
    batch = Batch()
    for place in ((-1, 3), (0, 0), (1 << 40, 2), (0, 1 << 40), (0.5, 2)):
        with pytest.raises(InvalidRequest, match=r"place|an integer"):
            batch.add_vector(np.zeros(4), 0, [0], place=place)
    batch = Batch()
    batch.add_vector(np.zeros(4), 0, [0], place=(5, 3))
    with pytest.raises(InvalidRequest, match="first tokens are not there"):
        batch.place(Cells(8))


# -- in sequences --


def sighted(backend="native", name="qwen3vl", **options):
    texts = {"qwen3vl": TEXT, "qwen2vl": "qwen2vl-text", "qwen25vl": "qwen2vl-text"}
    text = vision_file(texts[name]) if name in texts else tiny_file("qwen35")
    return seeing_llm(name, backend, text=text, cells=N_CELLS, **options)


def table(llm):
    return llm.engine.runner.cells


GREEDY = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}


@pytest.mark.golden
@pytest.mark.parametrize(("backend", "tolerance"), [("reference", 2e-4), ("native", 0.06)])
@pytest.mark.parametrize("name", ["qwen3vl", "qwen25vl", "qwen35"])
def test_logits_behind_an_image_in_a_sequence(name, backend, tolerance):
    """Encoder and language model, also with recurrent layers, token by token behind the image."""
    before, after = (vision_answer("qwen3vl", key).tolist() for key in ("before", "after"))
    wanted = vision_answer(name, "logits")[-len(after) - 1 :]
    assert 0.5 < wanted.std() < 10
    with sighted(backend, name) as llm:
        seq = llm.sequence(before)
        seq.append(picture(1))
        found = [seq.logits.copy()]
        for token in after:
            seq.append(token)
            found.append(seq.logits.copy())
    assert np.abs(np.stack(found) - wanted).max() < tolerance


@pytest.mark.golden
@pytest.mark.parametrize(("backend", "tolerance"), [("reference", 2e-4), ("native", 0.06)])
@pytest.mark.parametrize("name", ["qwen3vl", "qwen25vl"])
def test_logits_behind_two_images(name, backend, tolerance):
    """Text behind the first begins behind its longer side, as does the second image."""
    before, after = (vision_answer("qwen3vl", key).tolist() for key in ("before", "after"))
    wanted = vision_answer(name, "logits-two")
    with sighted(backend, name) as llm:
        found = logits_behind(llm, (before, picture(2), [3, 11], picture(1)), after)
    assert np.abs(found - wanted).max() < tolerance


@pytest.mark.parametrize("name", ["qwen3vl", "qwen25vl", "qwen35"])
@pytest.mark.parametrize("loop", ["python", "fused"])
def test_many_ways_to_the_same_bits(loop, name):
    """By the Python loop or the fused one, from the cache, forked, token by token."""
    prompt = ("ab", picture(1), "cd")
    with sighted(name=name) as llm:
        wanted = llm.generate(prompt, **GREEDY).tokens
    with sighted(name=name) as llm:
        llm.generate(prompt[:2], **GREEDY)
        again = llm.generate(prompt, loop=loop, **GREEDY)
        assert again.usage.cached_tokens > 40  # of recurrent layers up to a checkpoint in the image
        assert again.tokens == wanted
        seq = llm.sequence("ab")
        seq.append(picture(1))
        seq.append("cd")
        twin = seq.fork()
        for one in (seq, twin):
            assert [one.step(temperature=0).token for _ in wanted] == wanted


@pytest.mark.parametrize("name", ["qwen3vl", "qwen25vl", "qwen35"])
def test_many_at_once(name):
    prompts = [("ab", picture(1), "cd"), "ab cd", (picture(0), "ab"), "cd"]
    with sighted(name=name) as llm:
        together = [result.tokens for result in llm.generate(prompts, **GREEDY)]
    for prompt, wanted in zip(prompts, together, strict=True):
        with sighted(name=name) as llm:
            assert llm.generate(prompt, **GREEDY).tokens == wanted


@pytest.mark.parametrize("name", ["qwen3vl", "qwen25vl", "qwen35"])
def test_a_saved_sequence(tmp_path, name):
    with sighted(name=name) as llm:
        seq = llm.sequence("ab")
        seq.append(picture(1))
        seq.append("cd")
        seq.save(tmp_path / "state.safetensors")
        wanted = [seq.step(temperature=0).token for _ in range(6)]
    with sighted(name=name) as llm:
        seq = llm.restore(tmp_path / "state.safetensors")
        assert [seq.step(temperature=0).token for _ in range(6)] == wanted


def test_text_behind_an_image_that_was_cut_or_removed():
    """What is left has the positions it had; what comes goes on behind the highest."""
    with sighted() as llm:
        seq = llm.sequence("ab")
        seq.append(picture(1))
        seq.append("cd")
        first = seq.logits.copy()
        start = 3  # the first token of the image, behind two of text and a marker
        assert table(llm).lags[table(llm).view(seq.id)[-1]] == ROWS * COLUMNS - COLUMNS
        fork = seq.fork()
        fork.truncate(start + 2 * COLUMNS + 1)
        lag = table(llm).lags[table(llm).view(fork.id)[-1]]
        assert lag == 2 * COLUMNS + 1 - COLUMNS  # three rows begun, ten columns reached
        seq.remove(start, start + ROWS * COLUMNS)
        seq.append("e")
        assert np.isfinite(seq.logits).all()
        assert not (seq.logits == first).all()
        assert table(llm).lags[table(llm).view(seq.id)[-1]] == ROWS * COLUMNS - COLUMNS


def test_closing_the_hole_of_an_image():
    """Text behind it moves by as many positions as the image had, and is where it would be without."""
    with sighted("reference") as llm:
        seq = llm.sequence("ab")
        seq.append(picture(1))
        seq.append("cd")
        seq.logits  # noqa: B018  # compute it
        seq.remove(2, 2 + 1 + ROWS * COLUMNS + 1, close=True)  # with its markers
        assert seq.position == 4
        cells = table(llm).view(seq.id)
        assert (table(llm).lags[cells] == 0).all()
        plain = llm.sequence("abcd")
        plain.logits  # noqa: B018
        ours, theirs = (llm.backend.keys[0][table(llm).view(one.id)] for one in (seq, plain))
        np.testing.assert_allclose(ours, theirs, atol=1e-5)  # the first layer's keys know nothing of the past


def test_files_that_do_not_belong_together(tmp_path):
    from stretto.loading.images import check_pair

    spec = text_spec()
    check_pair(vision_spec("qwen3vl"), spec, tmp_path)
    with pytest.raises(ModelError, match="features for 0 early layers"):
        check_pair(vision_spec("qwen35"), spec, tmp_path)
    plain = replace(changed_rope(axes=None), deepstack=2)
    with pytest.raises(ModelError, match="rows and columns as positions"):
        check_pair(vision_spec("qwen3vl"), plain, tmp_path)
    with pytest.raises(ModelError, match="vectors of 32 numbers"):
        check_pair(vision_spec("qwen3vl"), replace(spec, n_embd=64), tmp_path)
