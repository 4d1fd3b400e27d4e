"""Tiny models of all architectures on the torch backend: near the reference, in any pieces the same."""

from dataclasses import replace

import numpy as np
import pytest

from stretto.backends.base import host_rows
from stretto.backends.batch import Batch, Decoding
from stretto.backends.reference import ReferenceBackend
from stretto.cache.cells import Cells
from stretto.errors import Unsupported
from stretto.models.feed_forward import Experts
from tiny_models import answer, text_batch, text_logits, tiny_file, tiny_spec, with_mixers
from torch_backends import (
    EVERY,
    INTERPRETED,
    MODELS,
    REFUSED,
    in_pieces,
    near,
    not_interpreted,
    run,
    same,
    torch_backend,
)

# Of activations in bfloat16, which have 8 bits, beside logits with about unit variance; rounding grows with
# the layers, and a token that gets another expert is far away.
STANDARD, WITH_EXPERTS = 0.04, 0.12


@pytest.fixture(params=MODELS)
def name(request):
    return request.param


def tokens_of(name, text=0, n=None):
    """A text, or its beginning; a short one in the interpreter."""
    return answer(name, f"tokens.{text}").tolist()[: min(9, n or 9) if INTERPRETED else n]


def reference(name, spec=None):
    return ReferenceBackend(tiny_file(name), spec or tiny_spec(name), 64)


@pytest.mark.parametrize("name", EVERY)
def test_logits_in_float32(name):
    tokens = tokens_of(name)
    near(text_logits(torch_backend(name), tokens), text_logits(reference(name), tokens))


@pytest.mark.parametrize("name", REFUSED)
def test_layers_that_it_lacks_are_named(name):
    with pytest.raises(Unsupported, match="device='cpu' has"):
        text_logits(torch_backend(name), tokens_of(name))


@not_interpreted  # it has no bfloat16
@pytest.mark.parametrize("kv", ["f16", "q8"])
@pytest.mark.parametrize("name", EVERY)
def test_logits_in_standard_precision(name, kv):
    tokens, spec = tokens_of(name, n=24), tiny_spec(name)
    exact = text_logits(reference(name), tokens)
    found = text_logits(torch_backend(name, kv=kv, precision="standard"), tokens)
    assert np.isfinite(found).all()
    distance = np.abs(found - exact).mean(axis=1) / max(1.0, exact.std())
    routed = any(isinstance(layer.ffn, Experts) for layer in spec.layers)
    assert np.median(distance) < (WITH_EXPERTS if routed else STANDARD) * max(1.0, spec.n_layer / 10)


@pytest.mark.parametrize("precision", ["high"] if INTERPRETED else ["high", "standard"])
def test_a_text_in_pieces(name, precision):
    kv = "f32" if precision == "high" else "f16"
    tokens, tolerance = tokens_of(name, n=30), {} if precision == "high" else {"tolerance": 0.25}
    whole = text_logits(torch_backend(name, kv=kv, precision=precision), tokens)
    n = len(tokens)
    for sizes in ([1] * (3 if INTERPRETED else 12), [n // 4, 1, n - 1 - n // 4]):
        backend = torch_backend(name, kv=kv, precision=precision)
        same(in_pieces(backend, tokens, sizes), whole[: sum(sizes)], **tolerance)


def test_a_text_beside_another(name):
    tokens, other = tokens_of(name, n=20), tokens_of(name, 1)
    batch = text_batch(other[:5], 0, [1])
    for position, token in enumerate(tokens):
        batch.add(token, position, [0], logits=True)
    found = run(torch_backend(name), Cells(64), batch, [2] * 5 + [0] * len(tokens))
    same(found[5:], text_logits(torch_backend(name), tokens))
    same(found[:5], text_logits(torch_backend(name), other[:5]))


def decoded(backend, cells, tokens, sequences, slots):
    """float32[n, n_vocab] of a decode step: one token at the end of each sequence."""
    batch = Decoding(cells, tokens, sequences)
    batch.slots = slots if backend.spec.recurrent else []
    return host_rows(backend.forward(batch))


def test_decode_steps_of_several_forks(name):
    """Forks share the cells of a prompt and go on each by itself; another text is between them."""
    prompt, other = tokens_of(name, n=12), tokens_of(name, 1, n=5)
    endings = [[3, 7, 9], [11, 4, 2], [3, 8, 1]]
    backend, cells = torch_backend(name, n_slots=5), Cells(64)
    run(backend, cells, text_batch(prompt), [0] * len(prompt))
    run(backend, cells, text_batch(other, 0, [9]), [4] * len(other))
    for fork in (1, 2):
        cells.copy(0, fork)
        if backend.n_slots:
            backend.copy_slots(np.array([0], np.int32), np.array([fork], np.int32))
    found = [
        decoded(backend, cells, [*ids, other[i]], [0, 1, 2, 9], [0, 1, 2, 4])
        for i, ids in enumerate(zip(*endings, strict=True))
    ]
    for fork, ending in enumerate(endings):
        whole = text_logits(torch_backend(name), [*prompt, *ending])
        same(np.stack([rows[fork] for rows in found]), whole[len(prompt) :])
    same(np.stack([rows[3] for rows in found]), text_logits(torch_backend(name), [*other, *other[:3]])[5:])


@not_interpreted
def test_a_kept_prefix(name):
    """What stays of a text that was longer, with another ending."""
    if tiny_spec(name).recurrent:
        pytest.skip("states cannot go back; see test_states.py")
    tokens = tokens_of(name, n=24)
    backend, cells = torch_backend(name), Cells(64)
    run(backend, cells, text_batch(tokens))
    cells.remove(0, 10)
    found = run(backend, cells, text_batch(tokens_of(name, 1, n=8), 10))
    same(found, text_logits(torch_backend(name), tokens[:10] + tokens_of(name, 1, n=8))[10:])


@not_interpreted
def test_final_hidden_states(name):
    tokens, found = tokens_of(name, n=12), []
    for backend in (torch_backend(name), reference(name)):
        batch = text_batch(tokens)
        batch.place(Cells(64))
        if backend.spec.recurrent:
            batch.placed(replace(batch.placement, slots=np.zeros(len(tokens), np.int32)))
        found.append(backend.hidden(batch))
    near(*found)


@not_interpreted
@pytest.mark.parametrize("changes", [{"cap": 1.5}, {"logit_cap": 0.7}], ids=str)
def test_caps(changes):
    spec = tiny_spec("llama")
    spec = with_mixers(spec, **changes) if "cap" in changes else replace(spec, **changes)
    tokens = tokens_of("llama", n=30)
    found = text_logits(torch_backend("llama", spec=spec), tokens)
    near(found, text_logits(reference("llama", spec), tokens))
    assert np.abs(found - text_logits(reference("llama"), tokens)).max() > 0.1


@not_interpreted
def test_only_wanted_rows_come_back():
    tokens, batch = tokens_of("llama", n=10), Batch()
    for position, token in enumerate(tokens):
        batch.add(token, position, [0], logits=position in (3, 9))
    found = run(torch_backend("llama"), Cells(64), batch)
    same(found, text_logits(torch_backend("llama"), tokens)[[3, 9]])
