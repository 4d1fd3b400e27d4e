"""Drafts by a model's own layer (MTP): the text of a plain request, whatever the layer says."""

import numpy as np
import pytest

from stretto.backends.base import Batch
from stretto.backends.next_layer import find_next_head
from stretto.backends.reference import ReferenceBackend
from stretto.backends.reference.layer import rms_norm
from stretto.cache.cells import Cells
from stretto.cache.slots import Slots
from stretto.engine import next_tokens
from stretto.errors import Unsupported
from stretto.llm import LLM
from stretto.models.next_tokens import read_next_layer
from stretto.models.sites import list_sites
from stretto.testing import byte_tokenizer, mock_llm
from stretto.weights.tensor import Tensor
from tiny_heads import CELLS, OPTIONS, PROMPT, native, reference
from tiny_models import tiny_file, tiny_spec


def opened(make=native, name="glm4moe", file=None):
    file = file or tiny_file(name)
    backend = make(file, tiny_spec(name), CELLS)
    backend.next_head = find_next_head(file, backend.spec, make)
    return backend


def language_model(*args, **options):
    return LLM(opened(*args, **options), byte_tokenizer())


def number(file, name, values):
    """Give a tensor of an open file other values."""
    old = file.tensors[name]
    data = np.ascontiguousarray(values, np.float32)
    assert data.shape == old.shape
    file.tensors[name] = Tensor(name, old.shape, type(old.format).F32, 0, data.view(np.uint8))


def obvious(name="glm4moe"):
    """A model whose next token depends on the last one alone, which its layer for drafts knows too."""
    file = tiny_file(name)
    n = tiny_spec(name).n_embd
    for tensor in list(file.tensors):
        if (
            tensor.startswith("blk.")
            and ".nextn." not in tensor
            and tensor.endswith(
                ("attn_output.weight", "ffn_down.weight", "ffn_down_exps.weight", "ffn_down_shexp.weight")
            )
        ):
            number(file, tensor, np.zeros(file.tensors[tensor].shape))
    prefix = next(tensor for tensor in file.tensors if "nextn.eh_proj" in tensor).partition("nextn")[0]
    number(file, "output.weight", 50 * file.tensors["output.weight"].dequantize())  # it is sure
    number(file, f"{prefix}nextn.eh_proj.weight", np.eye(n, 2 * n))
    number(file, f"{prefix}nextn.enorm.weight", np.ones(n))
    number(file, f"{prefix}nextn.shared_head_norm.weight", file.tensors["output_norm.weight"].dequantize())
    return file


@pytest.mark.parametrize("name", ["glm4moe", "qwen35"])
def test_the_layer_computes_what_it_should(name):
    """Logits of the reference backend against the formula, written out for a text as a whole."""
    file, spec = tiny_file(name), tiny_spec(name)
    layer = read_next_layer(file, spec)
    backend = opened(ReferenceBackend, name)
    head = backend.next_head
    head.open(CELLS)
    rng = np.random.default_rng(1)
    states = rng.standard_normal((len(PROMPT), spec.n_embd)).astype(np.float32)
    weights = {at: file.tensors[at].dequantize() for at in layer.names.values()}
    eps = spec.output_norm.eps
    number_ = spec.n_layer
    embedded = file.tensors["token_embd.weight"].dequantize()[PROMPT]
    both = np.concatenate(
        [
            rms_norm(embedded, file.tensors[f"blk.{number_}.nextn.enorm.weight"].dequantize(), eps),
            rms_norm(states, file.tensors[f"blk.{number_}.nextn.hnorm.weight"].dequantize(), eps),
        ],
        axis=1,
    )
    joined = both @ weights[f"blk.{number_}.nextn.eh_proj.weight"].T
    assert np.allclose(head.join(PROMPT, states), joined, atol=1e-5)
    batch = Batch()
    for position, vector in enumerate(joined):
        batch.add_vector(vector, position, (0,), logits=True)
    batch.place(Cells(CELLS))
    logits, made = head.forward(batch)
    shown = batch.taps[-1]
    normed = rms_norm(shown.values, weights[f"blk.{number_}.nextn.shared_head_norm.weight"], eps)
    assert np.allclose(made, normed, atol=1e-5)
    output = file.tensors["token_embd.weight" if spec.tied else "output.weight"].dequantize()
    assert np.allclose(logits, normed @ output.T, atol=1e-4)
    backend.close()


@pytest.mark.parametrize("name", ["glm4moe", "qwen35"])
def test_each_draft_is_of_the_states_of_its_own_text(name, monkeypatch):
    """Whatever was drafted, accepted or taken back before: as from the whole text at once.

    Not so behind a cached prefix, where the layer does without the state of the last cached token.
    """
    proposed, plain_propose = [], next_tokens.NextTokens.propose

    def propose(self, tokens, most):
        draft = plain_propose(self, tokens, most)
        proposed.append((list(tokens), draft))
        return draft

    monkeypatch.setattr(next_tokens.NextTokens, "propose", propose)
    monkeypatch.setattr(next_tokens, "LEAST", 0.0)
    with LLM(opened(reference, name), byte_tokenizer()) as llm:
        llm.generate([PROMPT, PROMPT[:4]], temperature=1, seed=2, draft="mtp", max_tokens=12, ignore_eos=True)
        llm.generate([9, 8, *PROMPT], temperature=1, seed=3, draft="mtp", max_tokens=6, ignore_eos=True)
    backend = opened(reference, name)
    head, site = (
        backend.next_head,
        list_sites(backend.spec)[f"layers.{backend.spec.n_layer - 1}.residual"],
    )
    head.open(CELLS)
    drafts = [(tokens, draft) for tokens, draft in proposed if draft]
    assert len(drafts) > 5
    for tokens, draft in drafts:
        batch = Batch()
        batch.extend(tokens, 0, (0,))
        shown = batch.tap(site, range(len(tokens)))
        batch.place(Cells(CELLS, Slots(8)) if backend.spec.recurrent else Cells(CELLS))
        backend.clear_slots(np.arange(8))
        backend.forward(batch)
        normed = head.fuse(shown.values)
        before = np.concatenate([np.zeros_like(normed[:1]), normed[:-1]])
        batch = Batch()
        for position, vector in enumerate(head.join(tokens, before)):
            batch.add_vector(vector, position, (0,), logits=position == len(tokens) - 1)
        batch.place(Cells(CELLS))
        assert head.forward(batch)[0][0].argmax() == draft[0], (tokens, draft)
    backend.close()


@pytest.mark.parametrize("make", [native, ReferenceBackend])
def test_drafts_of_a_layer_that_knows_are_accepted(make):
    with language_model(make, file=obvious()) as llm:
        plain = llm.generate(PROMPT, temperature=0, **OPTIONS)
        steps = llm.metrics.steps
        llm.cache.clear()
        drafted = llm.generate(PROMPT, temperature=0, draft="mtp", **OPTIONS)
        assert drafted.tokens == plain.tokens
        assert drafted.usage.accepted_tokens == drafted.usage.drafted_tokens > 20
        assert llm.metrics.steps - steps < 20


@pytest.mark.parametrize(
    "options", [{"temperature": 0}, {"seed": 3, "temperature": 50}, {"seed": 4, "logprobs": 2}]
)
@pytest.mark.parametrize("name", ["glm4moe", "qwen35"])
def test_the_same_text(name, options, monkeypatch):
    monkeypatch.setattr(next_tokens, "LEAST", 0.0)  # it drafts what it does not believe in, too
    with language_model(name=name) as llm:
        prompts = [PROMPT, PROMPT[:3], [*PROMPT, 9, 9]]
        plain = llm.generate(prompts, **options, **OPTIONS)
        llm.cache.clear()
        drafted = llm.generate(prompts, draft="mtp", **options, **OPTIONS)
        assert [one.tokens for one in drafted] == [one.tokens for one in plain]
        assert sum(one.usage.drafted_tokens for one in drafted) > 20
        assert [one.logprobs for one in drafted] == [one.logprobs for one in plain]
        again = llm.generate([*PROMPT, 9, 9], draft="mtp", **options, **OPTIONS)
        assert again.tokens == plain[2].tokens
        assert llm.cache.stats().held == 0
        llm.cells.check()


def test_forks_and_truncated_sequences_go_on():
    with language_model(file=obvious()) as llm:
        sequence = llm.sequence(PROMPT)
        options = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
        first = llm.generate(sequence, draft="mtp", **options).tokens
        fork = sequence.fork()
        fork.truncate(len(PROMPT) + 4)
        again = llm.generate(fork, draft="mtp", **{**options, "max_tokens": 8}).tokens
        assert again == first[4:]
        assert llm.generate(PROMPT, draft="mtp", n=2, seed=1, max_tokens=9)[0].tokens == (
            llm.generate(PROMPT, n=2, seed=1, max_tokens=9)[0].tokens
        )


def test_models_without_the_layer_say_so():
    with mock_llm("abc") as llm, pytest.raises(Unsupported, match="draft"):
        llm.generate("a", draft="mtp")
    backend = native(tiny_file("llama"), tiny_spec("llama"), CELLS)
    backend.next_head = find_next_head(tiny_file("llama"), backend.spec, native)
    with LLM(backend, byte_tokenizer()) as llm, pytest.raises(Unsupported, match="no layer for drafts"):
        llm.generate([1, 2], draft="mtp")
