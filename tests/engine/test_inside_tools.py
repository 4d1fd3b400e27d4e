"""The tools on captures and patches: what they show is what the model does."""

import numpy as np
import pytest

from stretto import Patch, inside
from stretto.backends.native import NativeBackend
from stretto.errors import InvalidRequest
from stretto.llm import LLM
from stretto.testing import byte_tokenizer
from tiny_models import N_CELLS, tiny_file, tiny_spec

CLEAN = [5, 17, 9, 33, 2, 40]
CORRUPTED = [5, 17, 21, 33, 2, 40]
MEASURED = {"max_tokens": 1, "temperature": 0, "ignore_eos": True, "logprobs": 1, "logprob_tokens": [7, 9]}


@pytest.fixture(scope="module")
def llm():
    backend = NativeBackend(tiny_file("llama"), tiny_spec("llama"), N_CELLS, 2, "f32")
    with LLM(backend, byte_tokenizer()) as found:
        yield found


def difference(llm, prompt, **options):
    first, second = llm.generate(prompt, **MEASURED, **options).logprobs[0].top
    return np.float32(first.logprob - second.logprob)


def test_the_lens_of_the_last_layer_is_the_model(llm):
    lens = inside.logit_lens(llm, CLEAN, top=3)
    assert lens.tokens.shape == lens.logprobs.shape == (llm.spec.n_layer, len(CLEAN), 3)
    for place in range(len(CLEAN)):
        [event] = llm.generate(
            CLEAN[: place + 1], **{**MEASURED, "logprobs": 3, "logprob_tokens": ()}
        ).logprobs
        assert lens.tokens[-1, place].tolist() == [one.token for one in event.top]
        np.testing.assert_allclose(lens.logprobs[-1, place], [one.logprob for one in event.top], atol=1e-5)
    assert (lens.tokens[0] != lens.tokens[-1]).any()
    assert len(str(lens).splitlines()) == 1 + llm.spec.n_layer


def test_a_grid_patches_each_layer_at_each_token(llm):
    grid = inside.patching_grid(llm, CLEAN, CORRUPTED, 7, 9)
    assert grid.values.shape == (llm.spec.n_layer, len(CLEAN))
    assert (np.float32(grid.plain), np.float32(grid.clean)) == (
        difference(llm, CORRUPTED),
        difference(llm, CLEAN),
    )
    assert grid.restored[-1, -1] == 1  # the whole stream behind the last token is the clean one's
    assert not grid.restored[:, :2].any()  # tokens before the change have the same values
    assert not grid.restored[-1, :-1].any()  # nobody reads the last layer of earlier tokens
    assert len(str(grid).splitlines()) == 1 + llm.spec.n_layer


def test_ablated_heads_are_patched_requests(llm):
    grid = inside.ablate_heads(llm, CLEAN, 7, 9)
    assert np.float32(grid.plain) == difference(llm, CLEAN)
    patch = Patch("layers.1.attn.heads", 0.0, heads=[1])
    assert grid.values[1, 1] == difference(llm, CLEAN, patch=patch)
    with pytest.raises(InvalidRequest, match="nothing to restore"):
        grid.restored  # noqa: B018


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda llm: inside.patching_grid(llm, CLEAN, [5, 17], 7), "has 6 tokens and the corrupted one 2"),
        (
            lambda llm: inside.patching_grid(llm, CLEAN, CORRUPTED, 7, part="hook_z"),
            "no layer has a site 'hook_z'",
        ),
        (lambda llm: inside.ablate_heads(llm, CLEAN, ""), "an answer is empty"),
        (lambda llm: inside.logit_lens(llm, CLEAN, top=0), "top must be from 1"),
    ],
)
def test_wrong_values_are_named(llm, call, message):
    with pytest.raises(InvalidRequest, match=message):
        call(llm)


