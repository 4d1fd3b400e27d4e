"""The llamacpp backend: llama.cpp's own logits, on models that Stretto does not read; the rest is refused."""

import numpy as np
import pytest

import stretto
from strange_models import deci, mamba
from stretto.backends import llama_library
from stretto.errors import ModelError, RouteWarning, Unsupported, UnsupportedModel
from stretto.loading.choose import check_download
from stretto.loading.open import survey
from stretto.weights.gguf import GGUF
from stretto.weights.writer import write_gguf

TEXT = "The quick brown fox"
FEW = {"cells": 128, "threads": 1}


@pytest.fixture(scope="session")
def strange(tmp_path_factory):
    """Files by name of architecture."""
    folder = tmp_path_factory.mktemp("strange")
    return {make.__name__: make(folder / f"{make.__name__}.gguf") for make in (deci, mamba)}


@pytest.fixture(scope="session")
def lc():
    return pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")


@pytest.fixture
def llm(lc, strange):
    with stretto.load(strange["deci"], backend="llamacpp", **FEW) as llm:
        yield llm


def direct(lc, path, *batches):
    """The logits of the last row of each batch of (token, position), by the low-level functions alone."""
    params = lc.llama_model_default_params()
    params.n_gpu_layers = 0
    model = lc.llama_model_load_from_file(str(path).encode(), params)
    settings = lc.llama_context_default_params()
    settings.n_ctx, settings.n_threads, settings.n_threads_batch = 512, 1, 1
    context = lc.llama_init_from_model(model, settings)
    n_vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(model))
    found, flat = [], lc.llama_batch_init(512, 0, 1)
    for rows in batches:
        flat.n_tokens = len(rows)
        for i, (token, position) in enumerate(rows):
            flat.token[i], flat.pos[i], flat.logits[i] = token, position, i == len(rows) - 1
            flat.n_seq_id[i], flat.seq_id[i][0] = 1, 0
        assert lc.llama_decode(context, flat) == 0
        found.append(np.ctypeslib.as_array(lc.llama_get_logits_ith(context, -1), (n_vocab,)).copy())
    lc.llama_batch_free(flat)
    lc.llama_free(context)
    lc.llama_model_free(model)
    return found


@pytest.mark.parametrize("name", ["deci", "mamba"])
def test_logits_are_its_own(lc, strange, name):
    with stretto.load(strange[name], backend="llamacpp", **FEW) as llm:
        ids = llm.tokenizer.encode(TEXT)
        with llm.sequence(ids) as sequence:
            first = sequence.logits.copy()
            sequence.append(7)
            second = sequence.logits.copy()
    prompt = list(zip(ids, range(len(ids)), strict=True))
    assert np.array_equal([first, second], direct(lc, strange[name], prompt, [(7, len(ids))]))


def test_a_model_that_both_read_has_its_logits_too(lc, smollm2_path):
    with stretto.load(smollm2_path, backend="llamacpp", **FEW) as llm:
        ids = llm.tokenizer.encode("The capital of France is")
        with llm.sequence(ids) as sequence:
            found = sequence.logits.copy()
    (expected,) = direct(lc, smollm2_path, list(zip(ids, range(len(ids)), strict=True)))
    assert np.array_equal(found, expected)


def test_auto_takes_it_for_what_others_cannot_run_and_says_so(lc, strange):
    with pytest.warns(RouteWarning, match=r"native on cpu .*'deci' is not .*llamacpp on cpu runs it"):
        llm = stretto.load(strange["deci"], **FEW)
    with llm:
        assert (llm.route.backend, llm.backend.name, llm.spec.n_layer) == ("llamacpp", "llamacpp", 2)
        assert {("native", "refused"), ("reference", "refused")} <= {
            (option.backend, option.state) for option in llm.route.others
        }
        assert len(llm.generate(TEXT, max_tokens=5, ignore_eos=True).tokens) == 5


def test_it_never_competes_with_the_native_backend(lc, smollm2_path):
    with stretto.load(smollm2_path, **FEW) as llm:
        assert llm.route.backend == "native"
        assert next(each for each in llm.route.others if each.backend == "llamacpp").state == "possible"


@pytest.mark.parametrize("name", ["deci", "mamba"])
def test_forks_edits_and_batches_are_what_one_text_alone_is(lc, strange, name):
    with stretto.load(strange[name], backend="llamacpp", **FEW) as llm:

        def alone(text):
            with llm.sequence(text) as sequence:
                return sequence.logits.copy()

        with llm.sequence("The quick") as a, a.fork() as b:
            a.append(" fox")
            b.append(" dog")
            assert np.allclose(
                llm.logits([a, b]), [alone("The quick fox"), alone("The quick dog")], atol=1e-4
            )
            b.truncate(4)
            b.append("end")
            assert np.allclose(b.logits, alone("The end"), atol=1e-4)
            assert np.allclose(a.logits, alone("The quick fox"), atol=1e-4)
        texts = ["one", "two words", "three more words"]
        together = [result.tokens for result in llm.generate(texts, max_tokens=6, temperature=0)]
        assert together == [llm.generate(text, max_tokens=6, temperature=0).tokens for text in texts]


def test_tokens_are_removed_from_the_middle(llm):
    with llm.sequence(TEXT) as sequence:
        before = sequence.logits.copy()
        sequence.remove(2, 6)
        sequence.append("x")
        assert sequence.logits.shape == before.shape
        assert len(sequence.positions) == len(sequence.tokens) == len(TEXT) - 4 + 1 - TEXT.count("th")


def test_hidden_states_make_vectors(llm):
    vectors = llm.embed(["a cat", "a cat", "something else"])
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1)
    assert np.allclose(vectors[0], vectors[1], atol=1e-5)
    assert vectors[0] @ vectors[2] < 0.999
    assert np.isfinite(llm.score(TEXT)).all()


def test_everything_else_is_refused_by_name(llm, tmp_path):
    with llm.sequence(TEXT) as sequence:
        calls = {
            "saving a sequence": lambda: sequence.save(tmp_path / "state.safetensors"),
            "'shift'": lambda: sequence.remove(1, 3, close=True),
            "'merge'": lambda: llm.parallel("The", threshold=0.001, max_tokens=3),
            "'fused'": lambda: llm.generate("a", loop="fused"),
        }
        for words, call in calls.items():
            with pytest.raises(Unsupported, match=words):
                call()
    assert not list(tmp_path.iterdir())
    assert len(llm.generate(TEXT, max_tokens=3, ignore_eos=True).tokens) == 3  # nothing is broken


def test_high_precision_is_refused(lc, strange):
    with pytest.raises(Unsupported, match="no precision='high'"):
        stretto.load(strange["deci"], backend="llamacpp", precision="high", **FEW)


def test_a_file_that_it_cannot_load_says_what_it_said(lc, strange, tmp_path):
    with GGUF(strange["deci"]) as file:
        tensors = {
            name: tensor.dequantize() for name, tensor in file.tensors.items() if "blk.1.ffn_up" not in name
        }
        metadata = dict(file.metadata) | {
            "tokenizer.ggml.tokens": list(file.metadata["tokenizer.ggml.tokens"])
        }
        metadata["tokenizer.ggml.merges"] = ["t h"]
        write_gguf(tmp_path / "damaged.gguf", metadata, tensors)
    with pytest.raises(ModelError, match=r"llama.cpp cannot load it: .*blk.1.ffn_up"):
        stretto.load(tmp_path / "damaged.gguf", backend="llamacpp", **FEW)


def test_a_cache_that_does_not_fit_is_refused_before_it_is_made(lc, strange, monkeypatch):
    monkeypatch.setattr("stretto.loading.open.free_memory", lambda: 200 << 20)
    with pytest.raises(stretto.InvalidRequest, match="ask for fewer cells"):
        stretto.load(strange["deci"], backend="llamacpp", cells=1 << 20)


def test_without_the_package_it_is_named(strange, smollm2_path, monkeypatch):
    monkeypatch.setattr(llama_library, "find_spec", lambda name: None)
    with pytest.raises(Unsupported, match=r"pip install 'stretto\[llamacpp\]'"):
        stretto.load(smollm2_path, backend="llamacpp", **FEW)
    with pytest.raises(UnsupportedModel, match=r"'deci' is not supported.*pip install 'stretto\[llamacpp\]'"):
        stretto.load(strange["deci"], **FEW)
    with pytest.raises(UnsupportedModel, match=r"'deci' is not supported.*llama-cpp-python is not installed"):
        stretto.load(strange["deci"], backend="llamacpp", **FEW)
    with pytest.raises(UnsupportedModel, match=r"llama-cpp-python is not installed"):
        check_download(strange["deci"])
    with stretto.load(smollm2_path, **FEW) as llm:
        refused = next(each for each in llm.route.others if each.backend == "llamacpp")
        assert (refused.state, "pip install" in refused.reason) == ("refused", True)


def test_its_log_does_not_reach_the_terminal(lc, strange, capfd):
    stretto.load(strange["deci"], backend="llamacpp", **FEW).close()
    assert capfd.readouterr() == ("", "")


def test_a_survey_shows_how_fast_it_is(lc, strange):
    route = survey(strange["mamba"], threads=1, cells=64)
    assert route.backend == "llamacpp"
    assert route.chosen.tokens_per_second > 1
