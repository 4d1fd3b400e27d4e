"""`Encoder`: vectors, ranks and classes of texts."""

import asyncio

import numpy as np
import pytest

import stretto
from stretto import Limits
from stretto.errors import ContextOverflow, InvalidRequest, ModelError, Unsupported
from stretto.llm.encoder import Encoder
from stretto.models import read_spec
from stretto.testing import byte_tokenizer
from stretto.weights.gguf import GGUF
from stretto.weights.writer import write_gguf
from tiny_encoders import (
    CLS,
    FOLDER,
    SEP,
    answers,
    hidden_of,
    ids,
    native,
    reference,
    text_of,
    with_words,
)
from tiny_models import FOLDER as DECODERS
from tiny_models import answer


@pytest.fixture(scope="module", params=["native", "reference"])
def bert(request, tmp_path_factory):
    path = with_words("bert", tmp_path_factory.mktemp("bert") / "bert.gguf")
    with stretto.load(path, backend=request.param, threads=2, cells=128) as encoder:
        yield encoder


def test_a_vector_is_the_pooled_and_normalised_hidden_state(bert):
    (vector,) = bert.embed(["the cat runs"])
    rows = hidden_of(reference("bert"), (ids("the", "cat", "runs"), [0] * 5))
    expected = rows[0] / np.linalg.norm(rows[0])  # this file says "cls"
    assert np.abs(vector - expected).max() < 1e-4
    mean = bert.embed(["the cat runs"], pooling="mean", normalize=False)[0]
    assert np.abs(mean - rows.mean(0)).max() < 1e-3
    last = bert.embed("the cat runs", pooling="last", normalize=False)[0]
    assert np.abs(last - rows[-1]).max() < 1e-3


def test_ids_are_texts_too_and_special_words_in_a_text_are_plain(bert):
    assert np.abs(bert.embed([ids("cat")]) - bert.embed(["cat"])).max() < 1e-5
    with_special = bert.tokenizer.encode("cat [SEP] dog")
    assert SEP not in with_special


def test_dimensions_are_the_first_numbers_normalised_again(bert):
    whole, some = bert.embed(["a dog"], normalize=False), bert.embed(["a dog"], dimensions=8)
    assert some.shape == (1, 8)
    assert np.abs(some[0] - whole[0, :8] / np.linalg.norm(whole[0, :8])).max() < 1e-6
    with pytest.raises(InvalidRequest, match="dimensions"):
        bert.embed(["a dog"], dimensions=33)


def test_nothing_is_a_list_of_no_vectors(bert):
    assert bert.embed([]).shape == (0, 32)
    assert len(bert.rerank("cat", [])) == 0
    assert bert.classify([]) == []


def test_classes_are_those_of_transformers(bert):
    tokens = answers("bert")["tokens.0"].tolist()
    found = bert.classify([tokens])[0]
    scores = np.exp(answers("bert")["scores.0"].astype(np.float64))
    names = ("no", "maybe", "yes")
    shares = dict(zip(names, scores / scores.sum(), strict=True))
    assert [label.name for label in found] == sorted(names, key=shares.__getitem__, reverse=True)
    assert all(label.score == pytest.approx(shares[label.name], abs=1e-3) for label in found)
    assert bert.classify("a cat", top=1).best.name in names


def test_a_cross_encoder_reads_query_and_document_together_with_their_types(bert):
    documents = ["the dog sleeps", "a bird", "the cat runs fast"]
    ranking = bert.rerank("cat", documents)
    backend = reference("bert")
    scores = []
    for document in documents:
        first, second = ids("cat"), ids(*document.split())[1:]
        rows = hidden_of(backend, (first + second, [0] * len(first) + [1] * len(second)))
        made = backend.project("cls.output", backend.project("cls", rows[:1]))[0].astype(np.float64)
        scores.append(np.exp(made[2]) / np.exp(made).sum())
    assert [item.index for item in ranking] == np.argsort(-np.array(scores)).tolist()
    assert [item.score for item in ranking] == pytest.approx(sorted(scores, reverse=True), abs=1e-3)
    assert len(bert.rerank("cat", documents, top=2)) == 2


def test_without_a_class_head_documents_are_ranked_by_cosine(tmp_path):
    path = with_words("nomic-bert", tmp_path / "nomic.gguf")
    documents = ["the dog sleeps", "the cat runs", "a bird"]
    with stretto.load(path, threads=1, cells=128) as encoder:
        best = encoder.rerank("the cat runs", documents)[0]
        assert (best.index, best.text) == (1, "the cat runs")
        assert best.score == pytest.approx(1.0, abs=1e-6)
        assert encoder.verbs == ("embed", "rerank")
        with pytest.raises(Unsupported, match="cannot classify; it can embed, rerank"):
            encoder.classify("cat")
        with pytest.raises(Unsupported, match="cannot generate"):
            encoder.generate("cat")


def test_long_texts_are_refused_or_cut(bert):
    long = "cat " * 200
    with pytest.raises(ContextOverflow, match="202 tokens and the context 128"):
        bert.embed([long])
    cut = bert.embed([long], truncate=True)
    assert np.abs(cut - bert.embed([[CLS, *[4] * 126, SEP]])).max() < 1e-5
    assert len(bert.rerank(long[:40], [long], truncate=True)) == 1


def some_texts(count):
    rng = np.random.default_rng(5)
    return [rng.integers(1, 96, rng.integers(1, 60)).tolist() for _ in range(count)]


@pytest.mark.parametrize("name", ["bert", "gemma-embedding", "jina-bert-v2", "modern-bert", "nomic-bert"])
def test_a_vector_has_the_same_bits_alone_in_any_batch_and_with_any_threads(name):
    texts = some_texts(12)
    with Encoder(native(name, 1), byte_tokenizer()) as encoder:
        alone = np.concatenate([encoder.embed([text]) for text in texts])
        assert (encoder.embed(texts) == alone).all()
        assert (encoder.embed(texts[::-1])[::-1] == alone).all()
    for threads, most in ((2, 64), (3, 512)):
        with Encoder(
            native(name, threads), byte_tokenizer(), limits=Limits(max_tokens_per_step=most)
        ) as other:
            assert (other.embed(texts) == alone).all()


def test_requests_of_several_callers_share_the_engine():
    texts = some_texts(6)
    with Encoder(native("bert"), byte_tokenizer()) as encoder:
        alone = encoder.embed(texts)

        async def both():
            return await asyncio.gather(encoder.aembed(texts), encoder.aembed(texts[:2]))

        whole, part = asyncio.run(both())
    assert (whole == alone).all()
    assert (part == alone[:2]).all()


def decoder_with(tmp_path, tensors=None, **metadata):
    """The tiny Qwen 3, with what makes an embedder or a cross-encoder of it."""
    file = GGUF(DECODERS / "qwen3.gguf")
    path = tmp_path / "qwen3.gguf"
    added = {f"qwen3.{key.replace('__', '.')}": value for key, value in metadata.items()}
    write_gguf(path, dict(file.metadata) | added, {**file.tensors, **(tensors or {})})
    return GGUF(path)


def test_a_decoder_with_a_pooling_is_an_embedder(tmp_path):
    from stretto.backends.native import NativeBackend

    file = decoder_with(tmp_path, pooling_type=3)
    spec = read_spec(file)
    assert spec.causal
    assert spec.embedder.pooling == "last"
    tokens = answer("qwen3", "tokens.0").tolist()
    with Encoder(NativeBackend(file, spec, 128, 2), byte_tokenizer()) as encoder:
        last = encoder.embed([tokens])
        assert (last == encoder.embed([tokens], pooling="last")).all()
        assert (last != encoder.embed([tokens], pooling="mean")).any()


def test_a_decoder_that_the_file_makes_two_way_is_one(tmp_path):
    spec = read_spec(decoder_with(tmp_path, attention__causal=False))
    assert not spec.causal
    assert spec.embedder.pooling == "mean"


def test_labels_that_do_not_fit_are_refused(tmp_path):
    n_embd = GGUF(DECODERS / "qwen3.gguf").tensors["token_embd.weight"].shape[1]
    head = {"cls.output.weight": np.zeros((2, n_embd), np.float32)}
    with pytest.raises(ModelError, match="3 labels for 2 scores"):
        read_spec(decoder_with(tmp_path, head, classifier__output_labels=["a", "b", "c"]))
    spec = read_spec(decoder_with(tmp_path, head, classifier__output_labels=["yes", "no"], pooling_type=4))
    assert spec.classifier.labels == ("yes", "no")
    assert spec.classifier.pooling == "last"


def test_text_that_has_types_is_the_same_in_both_backends():
    text = text_of("bert", 1)
    assert np.abs(hidden_of(native("bert"), text) - hidden_of(reference("bert"), text)).max() < 1e-4
    assert (FOLDER / "bert.gguf").exists()
