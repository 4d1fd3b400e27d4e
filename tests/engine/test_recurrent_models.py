"""Tiny models with recurrent layers in the engine: by any path the logits of a computation from scratch."""

from pathlib import Path

import numpy as np
import pytest

from stretto import Limits
from stretto.backends.native import NativeBackend
from stretto.backends.reference import ReferenceBackend
from stretto.llm import LLM
from stretto.testing import byte_tokenizer
from tiny_models import tiny_file, tiny_spec

FOLDER = Path(__file__).parent.parent / "data" / "tiny"
KINDS = (
    "qwen35",
    "qwen35moe",
    "qwen3next",
    "lfm2",
    "lfm2moe",
    "granitehybrid",
    "nemotron_h",
    "falcon-h1",
    "mamba2",
    "mamba",
    "jamba",
    "kimi-linear",
    "rwkv7",
)
NAMES = [name for name in KINDS if (FOLDER / f"{name}.gguf").exists()]
PROMPT = [7 + i * i % 61 for i in range(75)]
GREEDY = {"temperature": 0, "ignore_eos": True}
# The sums of the reference backend depend on the shape of a batch; the native one has the same bits.
TOLERANCE = {"reference": 1e-4, "native": 0.0}


def recurrent_llm(name, n_slots=16, **options):
    name, kind = name
    if kind == "native":
        backend = NativeBackend(tiny_file(name), tiny_spec(name), 256, 2, n_slots=n_slots)
    else:
        backend = ReferenceBackend(tiny_file(name), tiny_spec(name), 256, n_slots)
    return LLM(backend, byte_tokenizer(), fingerprint=lambda: name, **options)


@pytest.fixture(params=[(name, kind) for name in NAMES for kind in TOLERANCE], ids=" ".join)
def name(request):
    return request.param


@pytest.fixture
def plain(name):
    """Logits from scratch, by tokens."""
    with recurrent_llm(name, prefix_cache=False) as llm:

        def logits(tokens):
            with llm.sequence(list(tokens)) as seq:
                return seq.logits.copy()

        yield logits


@pytest.fixture
def near(name):
    def is_near(found, expected):
        return np.abs(found - expected).max() <= TOLERANCE[name[1]] * max(1.0, expected.std())

    return is_near


def test_forks_truncations_and_cached_prefixes(name, plain, near):
    with recurrent_llm(name, limits=Limits(max_tokens_per_step=24)) as llm:
        seq = llm.sequence(PROMPT)
        assert near(seq.logits, plain(PROMPT))
        twin = seq.fork()
        twin.append([65, 66])
        seq.append([67])
        for found, tokens in zip(llm.logits([seq, twin]), (seq.tokens, twin.tokens), strict=True):
            assert near(found, plain(tokens))
        twin.truncate(50)
        assert near(twin.logits, plain(PROMPT[:50]))
        seq.close()
        again = llm.sequence([*PROMPT, 68])
        assert near(again.logits, plain([*PROMPT, 68]))
        assert again.n_cached > 0
        llm.cells.check()


def test_drafts_beams_and_samples(name, plain):
    with recurrent_llm(name) as llm, recurrent_llm(name, prefix_cache=False) as scratch:
        expected = scratch.generate(PROMPT, max_tokens=12, **GREEDY).tokens
        for options in ({}, {"draft": "lookup"}, {}):
            assert llm.generate(PROMPT, max_tokens=12, **options, **GREEDY).tokens == expected
        beams = {"beams": 3, "n": 3, "max_tokens": 6}
        found = [text.logprob for text in llm.generate(PROMPT, **beams)]
        assert np.allclose(found, [text.logprob for text in scratch.generate(PROMPT, **beams)], atol=1e-3)
        several = llm.generate(PROMPT, n=4, max_tokens=4, temperature=1.0, seed=1)
        assert several[0].tokens == scratch.generate(PROMPT, max_tokens=4, temperature=1.0, seed=1).tokens
        llm.cells.check()


def test_few_slots_and_files(name, plain, near, tmp_path):
    with recurrent_llm(name, n_slots=3, limits=Limits(checkpoint_bytes=0)) as llm:
        prompts = [PROMPT[:n] for n in range(20, 26)]
        results = llm.generate(prompts, max_tokens=3, **GREEDY)
        assert [len(result.tokens) for result in results] == [3] * 6
        seq = llm.sequence(PROMPT)
        seq.save(tmp_path / "saved.safetensors")
        restored = llm.restore(tmp_path / "saved.safetensors")
        restored.append([70])
        assert near(restored.logits, plain([*PROMPT, 70]))
        assert np.array_equal(
            llm.backend.read_cells(llm.cells.view(seq.id)),
            llm.backend.read_cells(llm.cells.view(restored.id)[:-1]),
        )
