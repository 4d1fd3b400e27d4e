"""The torch backend's loop makes the tokens of the engine's own, also when it runs ahead of the host."""

import ctypes

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

from parallel_oracle import tiny_llm  # noqa: E402
from stretto import Grammar  # noqa: E402
from stretto.backends.torch import loop as loops  # noqa: E402
from stretto.backends.torch.backend import TorchBackend  # noqa: E402
from stretto.backends.torch.sampler import WIDE  # noqa: E402
from stretto.engine.steps import FusedLoop  # noqa: E402
from stretto.errors import InvalidRequest  # noqa: E402
from stretto.sampling.sampler import WRONG, choose  # noqa: E402
from tiny_models import tiny_file, tiny_spec  # noqa: E402
from torch_backends import not_interpreted  # noqa: E402

pytestmark = not_interpreted
PROMPT = "12 + 34"
WAYS = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 1.5, "seed": 3},
    "penalised": {"temperature": 1.2, "seed": 4, "repetition_penalty": 1.4, "frequency_penalty": 0.3},
    "biased": {"temperature": 1.2, "seed": 4, "logit_bias": {5: 3.0, 9: -np.inf}},
}


class HostSampler:
    """The sampler of the device, in native code: rows are read where the device would."""

    wide = 0  # every so many tokens are left to another way

    def __init__(self, device, n_vocab, capacity, following):
        self._n, self._following, self._count = n_vocab, following, 0

    def queue(self, ask):
        row = np.array((ctypes.c_float * self._n).from_address(ask.address), np.float32)
        entries = ask.entries
        if entries is not None:
            x = row[entries.tokens]
            x = np.where(x > 0, x / entries.repetition, x * entries.repetition)
            row[entries.tokens] = x - entries.minus + entries.plus
        plain = type(ask.params)(
            *[getattr(ask.params, name) for name in ("temperature", "top_k", "top_p", "min_p")]
        )
        try:
            self._token = choose(row, plain, [], 0, ask.uniform, ask.mask)
        except InvalidRequest as error:
            self._token = next(code for code, text in WRONG.items() if text == str(error))
        self._count += 1
        if self.wide and self._count % self.wide == 0:
            self._token = WIDE
        self._following[0] = max(self._token, 0)

    def take(self):
        return self._token


def opened(name="llama"):
    spec = tiny_spec(name)
    return tiny_llm(
        TorchBackend(
            tiny_file(name), spec, 64, device="cpu", precision="high", n_slots=4 if spec.recurrent else 1
        )
    )


@pytest.fixture(params=["one by one", "ahead"])
def ahead(request, monkeypatch):
    if request.param == "ahead":
        monkeypatch.setattr(loops, "uses_kernels", lambda tensor: True)
        monkeypatch.setattr(loops, "Sampler", HostSampler)
    return request.param


def both(llm, **options):
    plain = llm.generate(PROMPT, loop="python", **options)
    fused = llm.generate(PROMPT, loop="fused", **options)
    return plain, fused


CASES = [("llama", way) for way in WAYS] + [("gemma3", "sampled"), ("lfm2", "sampled")]


@pytest.mark.parametrize(("name", "way"), CASES)
def test_the_tokens_are_the_same(ahead, name, way):
    plain, fused = both(opened(name), max_tokens=40, ignore_eos=True, **WAYS[way])
    assert (fused.tokens, fused.finish_reason) == (plain.tokens, "length")


@pytest.mark.parametrize("name", ["llama", "lfm2"])
def test_forced_tokens_are_computed_with_the_one_before_them(ahead, name):
    grammar = Grammar.regex(r"([0-4]{1,2} - 0000, ){9}")
    plain, fused = both(opened(name), max_tokens=50, grammar=grammar, temperature=1.5, seed=2)
    assert fused.tokens == plain.tokens
    assert " - 0000, " in fused.text


def test_rows_that_are_too_wide_are_sampled_otherwise(ahead, monkeypatch):
    monkeypatch.setattr(HostSampler, "wide", 3)
    plain, fused = both(opened(), max_tokens=20, ignore_eos=True, temperature=1.5, seed=1)
    assert fused.tokens == plain.tokens


def test_the_text_ends_where_it_ends_elsewhere_and_goes_on_from_there(ahead):
    llm = opened()
    options = {"temperature": 1.5, "seed": 3, "ignore_eos": True}
    tokens = llm.generate(PROMPT, max_tokens=30, loop="python", **options).tokens
    for stops in ({"stop_tokens": [tokens[7]]}, {"max_tokens": 9}, {"max_tokens": 1}):
        found = []
        for loop in ("python", "fused"):
            seq = llm.sequence(PROMPT)
            first = llm.generate(seq, loop=loop, **({"max_tokens": 30} | options | stops))
            logits = seq.logits.copy()
            found.append(
                (
                    first.tokens,
                    first.finish_reason,
                    logits.tolist(),
                    llm.generate(seq, max_tokens=5, **options).tokens,
                )
            )
        assert found[0] == found[1]


def test_a_callback_ends_it_at_its_token_and_an_error_leaves_the_model_usable(ahead):
    llm = opened()
    seen = []
    llm.generate(
        PROMPT,
        max_tokens=20,
        loop="fused",
        ignore_eos=True,
        callback=lambda t: seen.append(t) or len(seen) < 4,
    )
    assert len(seen) == 4
    with pytest.raises(InvalidRequest, match="excluded"):
        llm.generate(PROMPT, max_tokens=20, loop="fused", logit_bias=dict.fromkeys(range(96), -np.inf))
    plain, fused = both(llm, max_tokens=20, temperature=0, ignore_eos=True)
    assert fused.tokens == plain.tokens


@pytest.mark.parametrize("name", ["llama", "lfm2"])
def test_a_callback_may_compute_with_the_same_model(ahead, name):
    llm = opened(name)
    options = {"max_tokens": 8, "temperature": 1.2, "seed": 5, "ignore_eos": True}
    alone = llm.generate(PROMPT, loop="python", **options)
    with llm.sequence("987") as sequence:
        other = sequence.logits.copy()
    seen = []

    def compute(_):
        with llm.sequence("987") as sequence:
            seen.append(sequence.logits.copy())

    with llm.sequence(PROMPT) as sequence:
        found = llm.generate(sequence, loop="fused", callback=compute, **options)
        logits = sequence.logits.copy()
    assert found.tokens == alone.tokens
    np.testing.assert_allclose(seen, [other] * len(found.tokens), atol=1e-4)
    with llm.sequence([*llm.tokenizer.encode(PROMPT), *found.tokens]) as sequence:
        np.testing.assert_allclose(logits, sequence.logits, atol=1e-4)


def test_a_lone_request_runs_ahead_unasked_where_that_is_faster(ahead, monkeypatch):
    llm = opened()
    calls = []
    run = loops.Loop.run
    monkeypatch.setattr(loops.Loop, "run", lambda self, given: calls.append(1) or run(self, given))
    options = {"max_tokens": 12, "seed": 1, "ignore_eos": True}
    wanted = llm.generate(PROMPT, **options).tokens
    assert not calls, "not on a CPU"
    (loop,) = [form for form in llm.engine.forms if isinstance(form, FusedLoop)]
    loop.gains = True
    assert llm.generate(PROMPT, **options).tokens == wanted
    assert calls
    calls.clear()
    assert llm.generate(PROMPT, loop="python", **options).tokens == wanted
    assert llm.generate(PROMPT, logprobs=1, **options).tokens == wanted
    assert [token.id for token in llm.stream(PROMPT, **options)] == wanted
    assert not calls, "a stream's reader waits for each token"
