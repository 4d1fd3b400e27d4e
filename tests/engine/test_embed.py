"""`llm.embed`: the model's final hidden states, pooled."""

import asyncio
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest

from stretto import LLM, Limits, Token
from stretto.backends.batch import Batch
from stretto.backends.native import NativeBackend
from stretto.cache.cells import Cells
from stretto.engine.aio import AsyncTexts
from stretto.errors import ContextOverflow, InvalidRequest, Unsupported
from stretto.testing import byte_tokenizer, mock_llm
from tiny_models import tiny_backend, tiny_file, tiny_spec

TEXTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [2]]


def tiny_llm(**options):
    backend = NativeBackend(tiny_file("llama"), tiny_spec("llama"), 64, 1)
    return LLM(backend, byte_tokenizer(), **options)


@pytest.fixture(scope="module")
def llm():
    with tiny_llm() as llm:
        yield llm


def states(tokens):
    """float32[n, n_embd] of a text alone, by the reference backend."""
    backend, batch = tiny_backend("llama"), Batch()
    for position, token in enumerate(tokens):
        batch.add(token, position, (0,), logits=True)
    batch.place(Cells(backend.n_cells))
    return backend.hidden(batch)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_vectors_are_the_pooled_final_states(llm, pooling):
    found = llm.embed(TEXTS, pooling=pooling, normalize=False)
    for vector, tokens in zip(found, TEXTS, strict=True):
        rows = states(tokens)
        np.testing.assert_allclose(vector, rows.mean(0) if pooling == "mean" else rows[-1], atol=0.05)


def test_vectors_do_not_depend_on_what_else_is_asked(llm):
    together = llm.embed(TEXTS)
    assert all((llm.embed([text])[0] == row).all() for text, row in zip(TEXTS, together, strict=True))


def test_a_long_text_comes_in_pieces(llm):
    tokens = [1 + i % 9 for i in range(50)]
    with tiny_llm(limits=Limits(max_tokens_per_step=7)) as slow:
        np.testing.assert_allclose(slow.embed([tokens]), llm.embed([tokens]), atol=1e-6)


def test_vectors_are_one_long_and_leave_no_cells_behind(llm):
    before = llm.cells.n_used
    assert np.linalg.norm(llm.embed(TEXTS), axis=1) == pytest.approx(1.0)
    assert llm.cells.n_used == before


def test_what_cannot_be_embedded_is_refused(llm):
    with pytest.raises(ContextOverflow, match="text 1 has 65 tokens and the context 64"):
        llm.embed([[1], [1] * 65])
    with pytest.raises(InvalidRequest, match="text 0 is empty"):
        llm.embed([[]])
    with pytest.raises(InvalidRequest, match="pooling must be"):
        llm.embed([[1]], pooling="max")
    with pytest.raises(InvalidRequest, match="texts must be a list"):
        llm.embed("a text")
    with pytest.raises(Unsupported), mock_llm("x") as mock:
        mock.embed(["a"])


def test_many_texts_come_as_they_would_alone(llm):
    prompts, options = [[1, 2, 3], [4, 5]], {"max_tokens": 6, "seed": 3, "ignore_eos": True}

    async def run():
        texts, found = llm.astream_many(prompts, n=2, **options), {}
        async for news in texts:
            for index, token in news:
                found.setdefault(index, []).append(token.id)
        return found, await texts.results()

    found, results = asyncio.run(run())
    alone = [result for prompt in prompts for result in llm.generate(prompt, n=2, **options)]
    assert [result.tokens for result in results] == [result.tokens for result in alone]
    assert [found[index] for index in range(4)] == [result.tokens for result in alone]


@pytest.mark.parametrize(
    ("last", "comes_early"),
    [
        (Token(8, "!", finish_reason="length"), True),
        (Token(8, "", finish_reason="length"), False),  # it shows nothing
        (Token(8, "!", -0.5, finish_reason="length"), False),  # its log-probability belongs to it
        (Token(8, "!", finish_reason="stop"), False),
    ],
)
def test_a_last_token_need_not_wait_for_the_end(last, comes_early):
    request = SimpleNamespace(
        output=SimpleNamespace(events=deque([Token(7, "a"), last])), finished=False, error=None
    )
    texts = AsyncTexts(None, None, [])
    texts.requests = [request]
    request.abandon = lambda: None
    texts.splits_ends = True
    found = texts.take()
    assert found == [(0, Token(7, "a"))] + [(0, Token(8, "!"))] * comes_early
    assert texts.take() == []  # not before it has ended
    request.finished = True
    assert texts.take() == [(0, Token(None, "", finish_reason="length") if comes_early else last)]


def test_texts_that_are_left_free_their_cells(llm):
    async def run():
        texts = llm.astream_many([[1, 2, 3]], n=3, ignore_eos=True)
        await anext(texts)
        texts.cancel()
        return await texts.results()

    results = asyncio.run(run())
    assert {result.finish_reason for result in results} == {"cancelled"}
    assert llm.cache.stats().held == 0


def test_one_that_fails_ends_the_others(llm):
    def hook(logits, tokens):
        if tokens[0] == 4 and len(tokens) > 4:
            raise RuntimeError("enough")

    async def run():
        texts = llm.astream_many([[1, 2, 3], [4, 5]], hooks=[hook], ignore_eos=True)
        async for _ in texts:
            pass

    with pytest.raises(RuntimeError, match="enough"):
        asyncio.run(run())
    assert llm.cache.stats().held == 0
