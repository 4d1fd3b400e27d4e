"""The native decoder without a backend around it: every format of matrices, and arguments of every kind.

Nothing that Python passes may end the process, so the decoder checks what the backend has checked already.
"""

import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from random_weights import random_weights
from stretto import _native
from stretto.backends.native import NativeBackend
from stretto.backends.native_weights import plain_spec
from stretto.models.spec import Attention, Dense, ModelSpec, Norm, Rope, plain_layer
from stretto.weights.formats import READABLE, Format, dequantize
from tiny_models import tiny_file, tiny_spec

KERNELS = _native.kernel_names()


@pytest.fixture(params=KERNELS)
def kernels(request):
    return request.param


# -- every format of matrices --

COLUMNS, ROWS = 256, 41  # rows that do not fill their last panel


def weights_of(fmt):
    """Bytes of a matrix [ROWS, COLUMNS] with finite, ordinary numbers."""
    return random_weights(fmt, ROWS, COLUMNS, seed=fmt.value, scale=(0.5, 2))


ROPE = Rope((1.0,) * 8, "halves")
MIXER = Attention(n_head=4, n_kv_head=2, head_size=16, scale=0.25, rope=ROPE)


def plain(mixer=None, ffn=None, **changes):
    """A spec as the decoder reads it: no layers, so that only a norm and the output matrix are left.

    With changes to a mixer or a feed-forward, as the decoder reads them, one layer.
    """
    spec = ModelSpec("test", ROWS, COLUMNS, 64, (), Norm("output_norm", 1e-5), tied=False)
    if mixer is None and ffn is None:
        return {**plain_spec(spec), **changes}
    found = plain_spec(replace(spec, layers=(plain_layer(MIXER, Dense(32), 1e-5),)))
    layer = found["layers"][0]
    for part, given in (("mixer", mixer), ("ffn", ffn)):
        layer[part] = {
            key: value for key, value in {**layer[part], **(given or {})}.items() if value is not REMOVED
        }
    return {**found, **changes}


REMOVED = object()


def int32(*values):
    return np.array(values, np.int32)


def output_decoder(fmt, kernels, packed=True, threads=1):
    """A decoder whose embeddings and output matrix are both of this format."""
    decoder = _native.Decoder(plain(), 64, "f16", threads, kernels)
    data = weights_of(fmt).reshape(-1)
    for matrix in ("token_embd", "output"):
        if packed:
            decoder.pack_rows(matrix, fmt.value, ROWS, COLUMNS, data, ROWS)
        else:
            decoder.set_unpacked(matrix, fmt.value, ROWS, COLUMNS, data)
    decoder.set_vector("output_norm.weight", np.linspace(0.5, 1.5, COLUMNS, dtype=np.float32))
    return decoder


def batch_arguments(n, n_cells=64, **changes):
    """The arguments of `Decoder.forward` for tokens 0 … n − 1 of one sequence."""
    cells = np.arange(n, dtype=np.int32)
    table = np.full(n_cells, -1, np.int32)
    table[:n] = cells
    arguments = {
        "tokens": cells.copy(),
        "positions": cells.copy(),
        "cells": cells,
        "views": [cells.copy()],
        "view_of": np.zeros(n, np.int32),
        "lengths": cells + np.int32(1),
        "table": table,
        "wanted": cells.copy(),
        "vectors": {},
        "hidden": False,
        "probes": int32(),
        "watched": int32(),
    }
    return {**arguments, **changes}


def as_int8(x):
    """Rows as the integer kernels see them: blocks of 32, each a scale times whole numbers up to 127."""
    blocks = x.reshape(len(x), -1, 32).astype(np.float64)
    scale = np.abs(blocks).max(axis=2, keepdims=True) / 127
    return (np.rint(blocks / scale) * scale).reshape(x.shape)


@pytest.mark.parametrize("fmt", READABLE, ids=[fmt.name for fmt in READABLE])
def test_a_matrix_of_every_format(kernels, fmt):
    decoder = output_decoder(fmt, kernels)
    values = dequantize(weights_of(fmt), fmt)
    assert np.isfinite(values).all()
    # Its rows as embeddings, through the norm; nothing but float32's rounding is lost.
    hidden = decoder.forward(**batch_arguments(ROWS, hidden=True))
    exact = values.astype(np.float64)
    exact /= np.sqrt(np.mean(exact**2, axis=1, keepdims=True) + 1e-5)
    exact *= np.linspace(0.5, 1.5, COLUMNS)
    np.testing.assert_allclose(hidden, exact, rtol=2e-6, atol=1e-6)
    # The product: quantised formats multiply whole numbers.
    rng = np.random.default_rng(0)
    vectors = {row: rng.standard_normal(COLUMNS).astype(np.float32) for row in range(20)}
    hidden = decoder.forward(**batch_arguments(20, vectors=vectors, hidden=True))
    logits = decoder.forward(**batch_arguments(20, vectors=vectors))
    columns = hidden.astype(np.float64) if fmt.block == 1 else as_int8(hidden)
    product = columns @ values.astype(np.float64).T
    size = np.abs(columns) @ np.abs(values.astype(np.float64)).T
    # A number between two whole ones may go either way: one step of one column.
    assert (np.abs(logits - product) <= 1e-6 * size).mean() > 0.99
    assert (np.abs(logits - product) <= 2e-3 * size).all()


@pytest.mark.parametrize("fmt", READABLE, ids=[fmt.name for fmt in READABLE])
def test_a_format_gives_the_same_bits_in_any_batch(kernels, fmt):
    whole = output_decoder(fmt, kernels).forward(**batch_arguments(ROWS))
    assert np.unique(whole).size > ROWS
    for decoder in (
        output_decoder(fmt, kernels),
        output_decoder(fmt, kernels, threads=3),
        output_decoder(fmt, kernels, packed=False),
    ):
        for start, stop in [(0, 1), (1, 3), (3, 10), (10, 26), (26, 41), (40, 41)]:
            part = batch_arguments(stop - start, tokens=np.arange(start, stop, dtype=np.int32))
            np.testing.assert_array_equal(decoder.forward(**part), whole[start:stop])


def test_a_matrix_packed_in_pieces():
    fmt = Format.Q4_1
    data, pieces = weights_of(fmt), _native.Decoder(plain(), 64, "f16", 2, "")
    for matrix in ("token_embd", "output"):
        for start, stop in pairwise([0, 16, 16, 32, ROWS]):
            rows = np.ascontiguousarray(data[start:stop]).reshape(-1)
            pieces.pack_rows(matrix, fmt.value, ROWS, COLUMNS, rows, stop - start)
    pieces.set_vector("output_norm.weight", np.linspace(0.5, 1.5, COLUMNS, dtype=np.float32))
    whole = output_decoder(fmt, "").forward(**batch_arguments(ROWS))
    np.testing.assert_array_equal(pieces.forward(**batch_arguments(ROWS)), whole)


# -- arguments that nobody should pass --

REFUSED = (ValueError, TypeError, RuntimeError)


def tiny_decoder():
    return NativeBackend(tiny_file("llama"), tiny_spec("llama"), 64, 2).decoder


BAD_SPECS = {
    "a missing entry": ({"ffn": {"n_ff": REMOVED}}, (*REFUSED, KeyError)),
    "a size of 0": ({"n_embd": 0}, REFUSED),
    "a negative size": ({"n_vocab": -5}, REFUSED),
    "a size too large": ({"ffn": {"n_ff": 1 << 40}}, REFUSED),
    "a size beyond 64 bits": ({"ffn": {"n_ff": 1 << 70}}, REFUSED),
    "a size that is a text": ({"ffn": {"n_ff": "many"}}, REFUSED),
    "a feed-forward of no kind": ({"ffn": {"part": "Sparse"}}, REFUSED),
    "an activation that is none": ({"ffn": {"activation": "tanh"}}, REFUSED),
    "heads that do not divide": ({"mixer": {"n_head": 5}}, REFUSED),
    "a mixer of no kind": ({"mixer": {"part": "Mamba9"}}, REFUSED),
    "a rope wider than the head": ({"mixer": {"head_size": 14}}, REFUSED),
    "ropes that are none": ({"ropes": [3]}, REFUSED),
    "a layer with a rope that is not there": ({"mixer": {"rope": 1}}, REFUSED),
    "a layer with a negative rope": ({"mixer": {"rope": -1}}, REFUSED),
    "a negative window": ({"mixer": {"window": -1}}, REFUSED),
    "channel mixing behind attention": ({"ffn": {"shift": COLUMNS}}, REFUSED),
    "K and V of a layer that is not before it": ({"mixer": {"shared": 0}}, REFUSED),
    "half a layer": ({"layers": [{}]}, (*REFUSED, KeyError)),
    "a layer that is none": ({"layers": [3]}, REFUSED),
}


@pytest.mark.parametrize(("changes", "errors"), BAD_SPECS.values(), ids=BAD_SPECS)
def test_bad_specs(changes, errors):
    with pytest.raises(errors):
        _native.Decoder(plain(**changes), 64, "f16", 1, "")


def test_time_mixing_needs_a_first_layer_whose_values_others_take():
    spec = tiny_spec("rwkv7")
    for layers in (spec.layers[1:], (*spec.layers, spec.layers[0])):
        with pytest.raises(REFUSED, match="but the first take its values"):
            _native.Decoder(plain_spec(replace(spec, layers=layers)), 64, "f16", 1, "")


@pytest.mark.parametrize(
    "arguments",
    [
        (0, "f16", 1, ""),
        (-1, "f16", 1, ""),
        (1 << 40, "f16", 1, ""),
        (1.5, "f16", 1, ""),
        (64, "f64", 1, ""),
        (64, 16, 1, ""),
        (64, "f16", 0, ""),
        (64, "f16", -2, ""),
        (64, "f16", 1025, ""),
        (64, "f16", 1 << 40, ""),
        (64, "f16", 1, "mmx"),
        (64, "f16", 1, None),
        (64, "f16"),
    ],
    ids=str,
)
def test_bad_decoders(arguments):
    with pytest.raises(REFUSED):
        _native.Decoder(plain(), *arguments)


F32_BYTES = np.zeros(ROWS * COLUMNS * 4, np.uint8)

BAD_MATRICES = {
    "unknown name": ("lm_head", 0, ROWS, COLUMNS, F32_BYTES),
    "empty name": ("", 0, ROWS, COLUMNS, F32_BYTES),
    "a layer that is not there": ("blk.0.attn_q", 0, ROWS, COLUMNS, F32_BYTES),
    "a layer beyond all numbers": ("blk.99999999999999999999.attn_q", 0, ROWS, COLUMNS, F32_BYTES),
    "a very long name": ("blk.0." + "x" * 100_000, 0, ROWS, COLUMNS, F32_BYTES),
    "unknown format": ("output", 99, ROWS, COLUMNS, F32_BYTES),
    "negative format": ("output", -1, ROWS, COLUMNS, F32_BYTES),
    "a byte less": ("output", 0, ROWS, COLUMNS, F32_BYTES[1:]),
    "no bytes": ("output", 0, ROWS, COLUMNS, F32_BYTES[:0]),
    "another format's bytes": ("output", 2, ROWS, COLUMNS, F32_BYTES),
    "no rows": ("output", 0, 0, COLUMNS, F32_BYTES[:0]),
    "no columns": ("output", 0, ROWS, 0, F32_BYTES[:0]),
    "negative rows": ("output", 0, -ROWS, COLUMNS, F32_BYTES),
    "columns that are no whole blocks": ("output", 12, ROWS, 255, F32_BYTES),
    "floats for bytes": ("output", 0, ROWS, COLUMNS, np.zeros((ROWS, COLUMNS), np.float32)),
    "two dimensions": ("output", 0, ROWS, COLUMNS, F32_BYTES.reshape(ROWS, -1)),
    "every second byte": ("output", 0, ROWS, COLUMNS, np.zeros(2 * len(F32_BYTES), np.uint8)[::2]),
    "no array": ("output", 0, ROWS, COLUMNS, None),
}


@pytest.mark.parametrize("arguments", BAD_MATRICES.values(), ids=BAD_MATRICES)
def test_bad_matrices(arguments):
    decoder = _native.Decoder(plain(), 64, "f16", 1, "")
    with pytest.raises(REFUSED):
        decoder.pack_rows(*arguments, arguments[2])
    with pytest.raises(REFUSED):
        decoder.set_unpacked(*arguments)
    with pytest.raises(ValueError, match="incomplete"):
        decoder.forward(**batch_arguments(1))


def test_rows_that_do_not_follow_each_other():
    decoder = _native.Decoder(plain(), 64, "f16", 1, "")
    row = COLUMNS * 4
    for count in (-1, ROWS + 1, 1 << 40):
        with pytest.raises(REFUSED):
            decoder.pack_rows("output", 0, ROWS, COLUMNS, F32_BYTES, count)
    decoder.pack_rows("output", 0, ROWS, COLUMNS, F32_BYTES[: 16 * row], 16)
    for rows, columns, count in [(ROWS, COLUMNS, 5), (ROWS, COLUMNS, 26), (57, COLUMNS, 16), (ROWS, 2, 16)]:
        with pytest.raises(REFUSED):
            decoder.pack_rows("output", 0, rows, columns, np.zeros(count * columns * 4, np.uint8), count)
    with pytest.raises(REFUSED):  # another format
        decoder.pack_rows("output", 1, ROWS, COLUMNS, np.zeros(16 * COLUMNS * 2, np.uint8), 16)


@pytest.mark.parametrize(
    ("vector", "data"),
    [
        ("nothing.weight", np.ones(COLUMNS, np.float32)),
        ("blk.0.attn_norm.weight", np.ones(COLUMNS, np.float32)),
        ("output_norm.weight", np.ones(COLUMNS)),
        ("output_norm.weight", np.ones((1, COLUMNS), np.float32)),
        ("output_norm.weight", [1.0] * COLUMNS),
        (None, np.ones(COLUMNS, np.float32)),
    ],
    ids=["unknown", "no such layer", "float64", "two dimensions", "a list", "no name"],
)
def test_bad_vectors(vector, data):
    with pytest.raises(REFUSED):
        _native.Decoder(plain(), 64, "f16", 1, "").set_vector(vector, data)


def test_an_incomplete_model_does_not_run():
    decoder = _native.Decoder(plain(mixer={}), 64, "f16", 1, "")
    with pytest.raises(ValueError, match=r"incomplete: token_embd$"):
        decoder.forward(**batch_arguments(1))
    decoder.pack_rows("token_embd", 0, ROWS, COLUMNS, F32_BYTES, ROWS)
    with pytest.raises(ValueError, match=r"incomplete: output$"):
        decoder.forward(**batch_arguments(1))
    decoder.pack_rows("output", 0, ROWS, COLUMNS, F32_BYTES[: 16 * COLUMNS * 4], 16)  # a part of it
    with pytest.raises(ValueError, match=r"incomplete: output$"):
        decoder.forward(**batch_arguments(1))
    decoder.set_unpacked("output", 0, ROWS, COLUMNS, F32_BYTES)
    decoder.set_vector("output_norm.weight", np.ones(COLUMNS - 1, np.float32))  # one too few
    with pytest.raises(ValueError, match=r"incomplete: output_norm\.weight"):
        decoder.forward(**batch_arguments(1))
    decoder.set_vector("output_norm.weight", np.ones(COLUMNS, np.float32))
    with pytest.raises(ValueError, match=r"incomplete: blk\.0\.attn_norm\.weight"):
        decoder.forward(**batch_arguments(1))


def test_a_matrix_of_another_shape_makes_the_model_incomplete():
    decoder = output_decoder(Format.F32, "")
    assert decoder.forward(**batch_arguments(1)).shape == (1, ROWS)
    decoder.set_unpacked("output", 0, ROWS - 1, COLUMNS, F32_BYTES[COLUMNS * 4 :])
    with pytest.raises(ValueError, match="incomplete"):
        decoder.forward(**batch_arguments(1))


BAD_BATCHES = {
    "empty": batch_arguments(0),
    "a token too large": {"tokens": int32(0, 1, 96)},
    "a negative token": {"tokens": int32(0, -1, 2)},
    "a token less": {"tokens": int32(0, 1)},
    "tokens of 64 bits": {"tokens": np.arange(3)},
    "tokens as floats": {"tokens": np.arange(3, dtype=np.float32)},
    "tokens in two dimensions": {"tokens": np.zeros((3, 1), np.int32)},
    "tokens with gaps": {"tokens": np.zeros(6, np.int32)[::2]},
    "a negative position": {"positions": int32(0, 1, -2)},
    "a position less": {"positions": int32(0, 1)},
    "a cell too large": {"cells": int32(0, 1, 64)},
    "a negative cell": {"cells": int32(0, 1, -1)},
    "a cell more": {"cells": int32(0, 1, 2, 3)},
    "no view": {"views": []},
    "a view that is none": {"views": [None]},
    "a view with a cell too large": {"views": [int32(0, 1, 64)]},
    "a view with a negative cell": {"views": [int32(0, 1, -7)]},
    "a view in two dimensions": {"views": [np.zeros((3, 3), np.int32)]},
    "an empty view": {"views": [int32()]},
    "a view that is not there": {"view_of": int32(0, 1, 0)},
    "a negative view": {"view_of": int32(0, -1, 0)},
    "view_of of another length": {"view_of": int32(0)},
    "lengths beyond the view": {"lengths": int32(1, 2, 4)},
    "lengths far beyond": {"lengths": int32(1, 2, (1 << 31) - 1)},
    "a length of 0": {"lengths": int32(0, 1, 2)},
    "a negative length": {"lengths": int32(1, -1, 2)},
    "a length less": {"lengths": int32(1, 2)},
    "a short table": {"table": np.zeros(63, np.int32)},
    "a long table": {"table": np.zeros(65, np.int32)},
    "an unknown row wanted": {"wanted": int32(0, 3)},
    "a negative row wanted": {"wanted": int32(-1)},
    "a row wanted twice": {"wanted": int32(1, 1)},
    "rows wanted out of order": {"wanted": int32(2, 1)},
    "a vector for no row": {"vectors": {3: np.zeros(32, np.float32)}},
    "a vector for row −1": {"vectors": {-1: np.zeros(32, np.float32)}},
    "a short vector": {"vectors": {0: np.zeros(31, np.float32)}},
    "a long vector": {"vectors": {0: np.zeros(33, np.float32)}},
    "a vector in two dimensions": {"vectors": {0: np.zeros((1, 32), np.float32)}},
    "a vector for a text": {"vectors": {"a": np.zeros(32, np.float32)}},
    "a text for a vector": {"vectors": {0: "a"}},
    "vectors that are a list": {"vectors": []},
    "tokens that are none": {"tokens": None},
    "a probe too large": {"probes": int32(0, 64)},
    "a negative probe": {"probes": int32(-1)},
    "probes of 64 bits": {"probes": np.arange(2)},
    "a watched row too large": {"watched": int32(0, 3)},
    "a negative watched row": {"watched": int32(-1)},
    "hidden that is no bool": {"hidden": "yes"},
}


@pytest.mark.parametrize("changes", BAD_BATCHES.values(), ids=BAD_BATCHES)
def test_bad_batches(changes):
    decoder = tiny_decoder()
    good = decoder.forward(**batch_arguments(3))
    with pytest.raises(REFUSED):
        decoder.forward(**batch_arguments(3, **changes))
    np.testing.assert_array_equal(decoder.forward(**batch_arguments(3)), good)


def test_bad_cells_to_copy_and_turn():
    decoder = tiny_decoder()
    for source, target in [
        (int32(64), int32(0)),
        (int32(0), int32(64)),
        (int32(-1), int32(0)),
        (int32(0), int32(-1)),
        (int32(0, 1), int32(0)),
        (np.arange(2), np.arange(2)),
        (None, int32(0)),
        (int32(0).reshape(1, 1), int32(0)),
    ]:
        with pytest.raises(REFUSED):
            decoder.copy_cells(source, target)
    for cells, delta in [
        (int32(64), 1),
        (int32(-1), 1),
        (np.arange(2), 1),
        (int32(0), 1 << 40),
        (int32(0), 0.5),
        (int32(0), None),
    ]:
        with pytest.raises(REFUSED):
            decoder.rotate_cells(cells, delta)


def test_bad_cells_to_read_and_write():
    decoder = tiny_decoder()
    size = decoder.cell_bytes
    decoder.forward(**batch_arguments(3))
    good = decoder.read_cells(np.arange(64, dtype=np.int32))
    two = np.zeros((2, size), np.uint8)
    for cells in (
        int32(64),
        int32(-1),
        int32(0, 1 << 30),
        np.arange(2),
        int32(*[0] * 65),
        None,
        [0, 1],
        int32(0)[None],
    ):
        with pytest.raises(REFUSED):
            decoder.read_cells(cells)
    for cells, data in [
        (int32(0, 64), two),
        (int32(-1, 0), two),
        (np.arange(2), two),
        (int32(0), two),
        (int32(0, 1, 2), two),
        (int32(0, 1), two[:, 1:].copy()),
        (int32(0, 1), np.zeros((2, size + 1), np.uint8)),
        (int32(0, 1), np.zeros((2, 2 * size), np.uint8)[:, ::2]),
        (int32(0, 1), two.T),
        (int32(0, 1), two.reshape(-1)),
        (int32(0, 1), two.astype(np.float32)),
        (int32(0, 1), two.view(np.int8)),
        (int32(0, 1), None),
        (None, two),
    ]:
        with pytest.raises(REFUSED):
            decoder.write_cells(cells, data)
    np.testing.assert_array_equal(decoder.read_cells(np.arange(64, dtype=np.int32)), good)


def test_cells_read_and_written_twice_or_not_at_all():
    decoder = tiny_decoder()
    size = decoder.cell_bytes
    assert decoder.read_cells(int32()).shape == (0, size)
    decoder.write_cells(int32(), np.zeros((0, size), np.uint8))
    rows = np.random.default_rng(0).integers(0, 256, (100, size), np.uint8)
    cells = np.arange(100, dtype=np.int32) % 64
    decoder.write_cells(cells, rows)  # of two for one cell, the later one stays
    np.testing.assert_array_equal(decoder.read_cells(int32(63, 5, 5)), rows[[63, 69, 69]])
    found = decoder.read_cells(int32(7))
    found[:] = 0  # a copy
    np.testing.assert_array_equal(decoder.read_cells(int32(7)), rows[[71]])


PRELUDE = """
import sys
import numpy as np
from stretto import _native

def int32(*values):
    return np.array(values, np.int32)

from stretto.backends.native_weights import plain_spec
from stretto.models.spec import Attention, Dense, ModelSpec, Norm, plain_layer

def decoder(n_cells=64, threads=1, **changes):
    usual = {"n_head": 4, "n_kv_head": 2, "head_size": 16, "scale": 0.25, "rope": None}
    mixer = Attention(**{**usual, **changes})
    layers = (plain_layer(mixer, Dense(32), 1e-5),)
    spec = ModelSpec("test", 8, 32, 64, layers, Norm("output_norm", 1e-5))
    return _native.Decoder(plain_spec(spec), n_cells, "f16", threads, "")

huge = {"n_head": 1 << 31, "n_kv_head": 1 << 31, "head_size": 1 << 16}
nothing = np.zeros(0, np.uint8)

def attack():
"""

NASTY = {
    # 2^31 rows of 2^31 floats are 2^64 bytes: as many as none.
    "a matrix whose bytes overflow": (
        'decoder().pack_rows("token_embd", 0, 1 << 31, 1 << 31, nothing, 1 << 31)'
    ),
    "an unpacked matrix whose bytes overflow": (
        'decoder().set_unpacked("token_embd", 0, 1 << 31, 1 << 31, nothing)'
    ),
    "a cache whose bytes overflow, copied": "decoder(1 << 31, **huge).copy_cells(int32(5), int32(1 << 30))",
    "a cache whose bytes overflow, turned": "decoder(1 << 31, **huge).rotate_cells(int32(1 << 30), 1)",
    "a cache beyond all memory": "decoder(1 << 31, head_size=1 << 16)",
    "a decoder that was never made": "_native.Decoder.__new__(_native.Decoder).rotate_cells(int32(0), 1)",
    "a decoder of another kind": "_native.Decoder.rotate_cells(object(), int32(0), 1)",
}


def python(code, **options):
    """Run code in a Python of its own."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300, **options
    )


def refused(attack):
    """Whether Python lives on after an attack, which must raise."""
    done = python(
        f"{PRELUDE}    {attack}\n"
        "try:\n    attack()\n"
        "except (ValueError, TypeError, RuntimeError, MemoryError) as error:\n"
        "    print('refused by', type(error).__name__)\n"
        "else:\n    print('accepted')\n"
    )
    assert done.returncode == 0, f"died with {done.returncode}: {done.stderr[-400:]}"
    return done.stdout.startswith("refused")


@pytest.mark.parametrize("attack", NASTY.values(), ids=NASTY)
def test_no_argument_ends_the_process(attack):
    assert refused(attack)


@pytest.mark.skipif(sys.platform != "linux", reason="limits a process's memory as Linux does")
def test_more_threads_than_the_system_gives():
    done = python(
        f"{PRELUDE}    decoder(threads=1000)\n"
        "import resource, os\n"
        "now = int(open('/proc/self/statm').read().split()[0]) * os.sysconf('SC_PAGE_SIZE')\n"
        "resource.setrlimit(resource.RLIMIT_AS, (now + (1 << 30), resource.RLIM_INFINITY))\n"
        "import faulthandler; faulthandler.dump_traceback_later(120, exit=True)\n"
        "try:\n    attack()\n"
        "except (RuntimeError, MemoryError) as error:\n    print('refused')\n"
        "faulthandler.cancel_dump_traceback_later()\n"
        "import time\n"
        "for _ in range(100):  # the system forgets a finished thread a moment after it was joined\n"
        "    if len(os.listdir('/proc/self/task')) == 1:\n        break\n"
        "    time.sleep(0.05)\n"
        "print(len(os.listdir('/proc/self/task')), 'thread left')\n"
    )
    assert done.returncode == 0, done.stderr[-400:]
    assert done.stdout == "refused\n1 thread left\n"


# -- a step of decoding --


def step_arguments(**changes):
    """One token of a sequence that has one cell already."""
    arguments = {
        "tokens": [1], "positions": [1], "cells": [1], "views": [np.array([0, 1, 99], np.int32)],
        "lengths": [2], "table": np.array([0, 1, -1, -1], np.int32),
    }  # fmt: skip
    return {**arguments, **changes}


def test_a_step_is_a_batch_of_single_rows(tiny_step):
    decoder = tiny_step
    views = [np.array([0, 1], np.int32), np.array([2, 3], np.int32)]
    table = np.array([0, 1, 0, 1], np.int32)
    numbers = {"cells": [1, 3], "views": views, "lengths": [2, 2], "table": table}
    step = decoder.decode(tokens=[5, 6], positions=[1, 1], **numbers)
    arrays = {name: np.array(numbers[name], np.int32) for name in ("cells", "lengths")}
    whole = decoder.forward(
        tokens=np.array([5, 6], np.int32), positions=np.array([1, 1], np.int32), views=views,
        view_of=np.array([0, 1], np.int32), table=numbers["table"], wanted=np.array([0, 1], np.int32),
        vectors={}, hidden=False, probes=np.empty(0, np.int32), watched=np.empty(0, np.int32), **arrays,
    )  # fmt: skip
    np.testing.assert_array_equal(step, whole)


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": []},
        {"tokens": [-1]},
        {"tokens": [1 << 20]},
        {"positions": [-1]},
        {"positions": [0, 1]},
        {"cells": [4]},
        {"cells": [-1]},
        {"lengths": [0]},
        {"lengths": [4]},
        {"lengths": [3]},  # the third entry of the view is no cell
        {"views": []},
        {"table": np.zeros(3, np.int32)},
    ],
)
def test_a_step_that_does_not_fit_together_is_refused(tiny_step, changes):
    with pytest.raises(ValueError, match=r"range|different lengths"):
        tiny_step.decode(**step_arguments(**changes))


def test_a_step_of_an_incomplete_model_is_refused():
    decoder = _native.Decoder(plain(), 4, "f16", 1, "")
    with pytest.raises(ValueError, match="incomplete: token_embd"):
        decoder.decode(**step_arguments())


@pytest.fixture(scope="module")
def tiny_step():
    return NativeBackend(tiny_file("llama"), tiny_spec("llama"), 4, 1).decoder
