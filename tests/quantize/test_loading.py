"""Models that are quantised while they are loaded, and importance that is measured by running them."""

from pathlib import Path

import numpy as np
import pytest

import stretto
from small_llama import N_EMBD, metadata, tensors
from stretto.backends.native import NativeBackend
from stretto.errors import InvalidRequest
from stretto.models import read_spec
from stretto.quantize import ImportanceMatrix, collect_importance, quantize_model
from stretto.quantize.model import QuantisedFile
from stretto.weights.formats import Format
from stretto.weights.gguf import GGUF
from stretto.weights.writer import write_gguf
from tiny_models import text_logits, tiny_file

FOLDERS = Path(__file__).parent.parent / "data" / "folders"


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source.gguf"
    write_gguf(path, metadata(), tensors())
    return path


def logits(file):
    backend = NativeBackend(file, read_spec(file), 64, 1, "f32")
    found = text_logits(backend, np.arange(24) * 5 % 96)
    backend.close()
    return found


def test_loading_gives_the_logits_of_the_written_file(source, tmp_path):
    quantize_model(source, tmp_path / "out.gguf", "q4_k", threads=1)
    with GGUF(tmp_path / "out.gguf") as written, QuantisedFile(GGUF(source), "q4_k", 1) as made:
        assert made.tensors["blk.0.ffn_up.weight"].format is Format.Q4_K
        assert made.quantised_as == "q4_k_m"
        assert np.array_equal(logits(made), logits(written))


def test_the_fingerprint_names_the_mix(source):
    prints = {GGUF(source).fingerprint()()}
    prints |= {QuantisedFile(GGUF(source), mix, 1).fingerprint()() for mix in ("q8_0", "q4_0", "Q4_0")}
    assert len(prints) == 3
    assert all(len(one) == 64 for one in prints)


def test_folders_load_quantised():
    with stretto.load(FOLDERS / "llama", quantize="q8_0", backend="native", cells=128, threads=1) as llm:
        assert llm.generate("a", max_tokens=2, temperature=0).tokens
        assert "llamacpp" not in {llm.route.backend}


def test_wrong_names_and_quantised_files_are_refused(source, tmp_path):
    with pytest.raises(InvalidRequest, match="quantize: the mix 'q5' is not known; use one of") as caught:
        stretto.load(FOLDERS / "llama", quantize="q5")
    assert (caught.value.param, caught.value.value) == ("quantize", "q5")
    quantize_model(source, tmp_path / "q8.gguf", "q8_0", threads=1)
    with pytest.raises(
        InvalidRequest, match=r"is Q8_0 already.* leave quantize out; `stretto quantize"
    ) as caught:
        stretto.load(tmp_path / "q8.gguf", quantize="q4_0")
    assert caught.value.param == "quantize"
    assert "allow_requantize=" not in str(caught.value)


class Reader:
    """A model that reads tokens as they are."""

    verbs = ("score",)

    def __init__(self, file, n=64):
        self.backend = NativeBackend(file, read_spec(file), n, 2, "f32", n_slots=2)
        self.tokenizer = self
        self.bos_id, self.add_bos = 1, True

    def encode(self, text):
        return [ord(letter) % 90 for letter in text]

    def score(self, ids):
        text_logits(self.backend, np.array(ids))


def test_importance_is_the_mean_square_of_inputs(source):
    with GGUF(source) as file:
        reader = Reader(file)
        seen = []
        found = collect_importance(
            reader,
            source,
            "some text that is long enough " * 4,
            chunk_tokens=32,
            progress=lambda *at: seen.append(at),
        )
        assert not reader.backend.collected()
        reader.backend.close()
    assert (found.chunks, found.chunk_tokens, seen[-1]) == (3, 32, (3, 3))
    assert len(found.inputs) == 14
    assert all(one.counts.tolist() == [96.0] for one in found.inputs.values())
    first = found.inputs["blk.0.attn_q.weight"].sums
    assert np.array_equal(first, found.inputs["blk.0.attn_v.weight"].sums)
    # The first norm has weights of one: the squares of a row add up to its length.
    assert first.sum() == pytest.approx(96 * N_EMBD, rel=1e-2)


def test_importance_of_experts_stands_in_one_tensor(tmp_path):
    file = tiny_file("qwen3moe")
    reader = Reader(file)
    found = collect_importance(reader, file.path, "abcdefgh" * 8, chunk_tokens=32)
    reader.backend.close()
    inputs = found.inputs["blk.0.ffn_down_exps.weight"]
    tensor = file.tensors["blk.0.ffn_down_exps.weight"]
    assert inputs.sums.shape == (tensor.shape[0], tensor.shape[2])
    assert inputs.counts.sum() == 64 * file.metadata["qwen3moe.expert_used_count"]
    found.write(tmp_path / "imatrix.gguf")
    assert ImportanceMatrix.read(tmp_path / "imatrix.gguf").weights_for(tensor).shape == inputs.sums.shape


def test_collecting_changes_no_logits(source):
    with GGUF(source) as file:
        backend = NativeBackend(file, read_spec(file), 64, 2, "f32")
        tokens = np.arange(20)
        before = text_logits(backend, tokens)
        backend.collect(True)
        assert np.array_equal(text_logits(backend, tokens), before)
        backend.close()


def test_short_texts_are_refused(source):
    with GGUF(source) as file:
        reader = Reader(file)
        with pytest.raises(InvalidRequest, match="fewer than two tokens"):
            collect_importance(reader, source, "a")
        reader.backend.close()
