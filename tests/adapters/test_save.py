"""Saved sequences name their adapters, and are restored with the very same ones only."""

import json

import pytest

from stretto.backends.native import NativeBackend
from stretto.cache.snapshot_head import adapters_from
from stretto.errors import SnapshotError
from stretto.llm import LLM
from stretto.testing import byte_tokenizer
from tiny_adapters import matrices, random_pairs, write_adapter
from tiny_models import tiny_file, tiny_spec

GREEDY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
PROMPT = [5, 17, 9, 33, 2, 40, 11]


@pytest.fixture
def llm(tmp_path):
    backend = NativeBackend(tiny_file("llama"), tiny_spec("llama", 256), 256, 1)
    with LLM(backend, byte_tokenizer(), fingerprint=lambda: "tiny") as found:
        for seed, name in enumerate(("one", "two"), 1):
            pairs = random_pairs(matrices("llama"), seed=seed, size=0.2)
            found.load_adapter(name, write_adapter(tmp_path / f"{name}.gguf", "llama", pairs))
        yield found


def test_a_saved_sequence_goes_on_with_its_adapters(llm, tmp_path):
    expected = llm.generate(PROMPT, **GREEDY, adapter={"one": 0.75, "two": -0.5}).tokens
    with llm.sequence(PROMPT, adapter={"one": 0.75, "two": -0.5}) as sequence:
        sequence.save(tmp_path / "s.safetensors")
    llm.cache.clear()
    with llm.restore(tmp_path / "s.safetensors") as restored:
        assert llm.generate(restored, **GREEDY).tokens == expected
    plain = llm.generate(PROMPT, **GREEDY)
    assert plain.usage.cached_tokens == 0
    assert plain.tokens != expected


def test_one_without_an_adapter_has_none_when_it_is_restored(llm, tmp_path):
    with llm.sequence(PROMPT) as sequence:
        sequence.save(tmp_path / "s.safetensors")
    with llm.restore(tmp_path / "s.safetensors") as restored:
        assert llm.generate(restored, **GREEDY).tokens == llm.generate(PROMPT, **GREEDY).tokens


def test_an_adapter_that_is_not_there_or_another_is_refused_by_name(llm, tmp_path):
    with llm.sequence(PROMPT, adapter="one") as sequence:
        sequence.save(tmp_path / "s.safetensors")
    llm.unload_adapter("one")
    with pytest.raises(SnapshotError, match="with the adapter 'one', which is not loaded"):
        llm.restore(tmp_path / "s.safetensors")
    llm.load_adapter("one", tmp_path / "two.gguf")
    with pytest.raises(SnapshotError, match="another adapter 'one' than the one of that name here"):
        llm.restore(tmp_path / "s.safetensors")
    llm.unload_adapter("one")  # nothing that failed uses it


@pytest.mark.parametrize(
    "value",
    [
        "nonsense",
        "[" * 2000,
        [],
        [["one", 1.0]],
        [["one", True]],
        [["x" * 65, 1.0, "0" * 64]],
        [["one", float("inf"), "0" * 64]],
        [["one", 1.0, "not a fingerprint"]],
        [["one", 1.0, "0" * 64]] * 17,
    ],
)
def test_a_damaged_list_of_adapters_is_refused(value, tmp_path):
    text = value if isinstance(value, str) else json.dumps(value)
    with pytest.raises(SnapshotError, match="names no adapters"):
        adapters_from(text, tmp_path / "s.safetensors")
