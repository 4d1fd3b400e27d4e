"""Perplexity and divergence equal what NumPy makes of the reference backend's logits."""

import math
from xml.etree import ElementTree

import numpy as np
import pytest

from recurrent_mock import recurrent_llm
from stretto.backends.native import NativeBackend
from stretto.errors import ContextOverflow, InvalidRequest, ModelError
from stretto.evaluation import half_scored_windows, perplexity, plot_windows, strided_windows
from stretto.evaluation.statistics import bootstrap_quantiles, clustered_mean, share, student95
from stretto.llm import LLM
from stretto.testing import byte_tokenizer, mock_llm
from tiny_models import text_logits, tiny_backend, tiny_file, tiny_spec


@pytest.fixture(scope="module")
def llm():
    with LLM(tiny_backend("llama"), byte_tokenizer()) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def ids(llm):
    return np.random.default_rng(3).integers(3, llm.spec.n_vocab, 70).tolist()


def logs(tokens):
    rows = text_logits(tiny_backend("llama"), tokens).astype(np.float64)
    return rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))


def nlls(tokens, first):
    """Negative log-likelihoods of the tokens from `first` on."""
    rows = logs(tokens)
    return np.array([-rows[at - 1, tokens[at]] for at in range(first, len(tokens))])


def with_bos(llm, piece):
    return [llm.tokenizer.bos_id, *piece[1:]] if llm.tokenizer.add_bos else piece


def test_half_scored_windows_are_those_of_llama_cpp():
    windows = half_scored_windows(list(range(10, 30)), 8, bos=1)
    assert [window.ids[:2] for window in windows] == [[1, 11], [1, 19]]
    assert [(len(window.ids), window.first) for window in windows] == [(8, 5), (8, 5)]  # 8 - 4 - 1 tokens
    assert half_scored_windows(list(range(9)), 9, None)[0].n_scored == 9 - 9 // 2 - 1


@pytest.mark.parametrize(("length", "stride"), [(8, 3), (8, 8), (5, 1), (40, 7), (4, 2)])
def test_strided_windows_score_each_token_once(length, stride):
    ids = list(range(30))
    scored = [
        token for window in strided_windows(ids, length, stride) for token in window.ids[window.first :]
    ]
    unscored = set(ids[::length]) if stride == length else {0}
    assert scored == [token for token in ids if token not in unscored]


def test_perplexity_by_windows_equals_numpy(llm, ids):
    report = perplexity(llm, ids, window=16)
    pieces = [nlls(with_bos(llm, ids[at : at + 16]), 9) for at in (0, 16, 32, 48)]
    every = np.concatenate(pieces)
    assert report.perplexity.value == pytest.approx(math.exp(every.mean()), rel=1e-6)
    assert report.windows == pytest.approx([piece.mean() for piece in pieces], rel=1e-6)
    error = math.sqrt(every.var() / (len(every) - 1)) * math.exp(every.mean())
    assert report.token_error == pytest.approx(error, rel=1e-5)
    assert (report.n_tokens, report.n_scored) == (70, 4 * 7)
    assert report.perplexity.low < report.perplexity.value < report.perplexity.high


def test_strided_perplexity_equals_numpy(llm, ids):
    report = perplexity(llm, ids, window=24, stride=10)
    windows = strided_windows(ids, 24, 10)
    every = np.concatenate([nlls(window.ids, window.first) for window in windows])
    assert report.n_scored == len(ids) - 1
    assert report.perplexity.value == pytest.approx(math.exp(every.mean()), rel=1e-6)


def native():
    return LLM(NativeBackend(tiny_file("llama"), tiny_spec("llama"), 64, 1), byte_tokenizer())


def test_windows_share_passes_without_changing_a_bit(ids, monkeypatch):
    with native() as llm:
        together = perplexity(llm, ids, window=8)
        monkeypatch.setattr("stretto.evaluation.reading.PASS_TOKENS", 3)
        assert perplexity(llm, ids, window=8) == together
        assert not llm.cells.sequences


def test_a_recurrent_model_reads_windows_with_few_slots(ids):
    with recurrent_llm(slots=3) as llm:
        report = perplexity(llm, ids, window=16)
        scores = [llm.score(ids[at : at + 16])[8:] for at in (0, 16, 32, 48)]
    assert report.windows == pytest.approx([-float(score.mean()) for score in scores], rel=1e-5)


def test_a_model_does_not_diverge_from_itself(ids):
    with native() as llm, native() as twin:
        found = perplexity(llm, ids, window=16, reference=twin).comparison
    assert (found.kl_mean.value, found.kl_max, found.same_top.value, found.log_ratio.value) == (0, 0, 1, 0)


def test_divergence_equals_numpy():
    generator = np.random.default_rng(5)
    ours, theirs = generator.normal(size=(2, 258, 258))
    model, reference = mock_llm(lambda seen: ours[seen[-1]]), mock_llm(lambda seen: theirs[seen[-1]])
    text = "The quick brown fox jumps over the lazy dog, and then it sleeps."
    report = perplexity(model, text, window=16, reference=reference)
    ids = model.tokenizer.encode(text)
    inputs = [ids[at] for start in range(0, len(ids) - 15, 16) for at in range(start + 8, start + 15)]
    p, q = (
        rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
        for rows in (theirs[inputs].astype(np.float32).astype(float), ours[inputs].astype(np.float32))
    )
    kl = (np.exp(p) * (p - q)).sum(axis=1)
    found = report.comparison
    assert found.kl_mean.value == pytest.approx(kl.mean(), rel=1e-6)
    assert found.kl_median.value == pytest.approx(np.median(kl), rel=1e-6)
    assert found.kl_99.value == pytest.approx(np.quantile(kl, 0.99), rel=1e-6)
    assert found.kl_max == pytest.approx(kl.max(), rel=1e-6)
    assert found.same_top.value == pytest.approx((p.argmax(axis=1) == q.argmax(axis=1)).mean())
    assert found.kl_mean.low < found.kl_mean.value < found.kl_mean.high


@pytest.mark.parametrize(
    ("text", "options", "param"),
    [
        ("", {}, "text"),
        ("short", {}, "window"),
        ("short", {"window": 2}, "window"),
        ("long enough", {"window": 8, "stride": 9}, "stride"),
        ("long enough", {"window": 8, "stride": 0}, "stride"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name(text, options, param):
    with pytest.raises(InvalidRequest) as refused:
        perplexity(mock_llm("x"), text, **options)
    assert refused.value.param == param


def test_a_window_beyond_the_context_is_refused():
    with pytest.raises(ContextOverflow, match="window is 200 and the context 100"):
        perplexity(mock_llm("x", cells=100), "x" * 400, window=200)


def test_logits_that_are_no_numbers_are_refused():
    broken = mock_llm(lambda seen: np.full(258, np.nan))
    with pytest.raises(ModelError, match="logits give nan"):
        perplexity(broken, "x" * 20, window=8)
    assert not broken.cells.sequences


def test_a_reference_with_another_vocabulary_is_refused(llm):
    with pytest.raises(InvalidRequest, match="tokens and the reference"):
        perplexity(mock_llm("x"), "x" * 20, window=8, reference=llm)


def test_one_loaded_model_is_not_its_own_reference(llm, ids):
    with pytest.raises(InvalidRequest, match="load it a second time"):
        perplexity(llm, ids, window=8, reference=llm)


def test_errors_allow_for_dependence_within_a_window():
    alike = [np.full(50, value) for value in (1.0, 2.0, 3.0)]  # 150 tokens that are worth three
    estimate = clustered_mean(alike)
    assert estimate.value == 2
    assert estimate.error == pytest.approx(1 / math.sqrt(3))
    assert estimate.high - 2 == pytest.approx(student95(2) * estimate.error)
    (median,) = bootstrap_quantiles(alike, (0.5,))
    assert (median.value, median.low, median.high) == (2, 1, 3)


def test_an_interval_is_cut_to_what_is_possible():
    estimate = clustered_mean([np.array([1.0, 1.0]), np.array([1.0, 0.0])])
    assert estimate.high > 1
    assert (estimate.within(0, 1).low, estimate.within(0, 1).high) == (0, 1)


def test_a_single_window_has_no_interval():
    assert clustered_mean([np.arange(5.0)]).low is None


def test_a_share_has_an_interval_within_0_and_1():
    assert share(10, 10).low == pytest.approx(0.7225, abs=1e-4)
    assert share(0, 10).low == 0
    assert share(10, 10).high == pytest.approx(1)


def test_a_plot_is_well_formed_and_has_a_point_for_each_window(llm, ids):
    svg = plot_windows(perplexity(llm, ids, window=16), "<b> & co")
    root = ElementTree.fromstring(svg)
    names = [element.tag.rpartition("}")[2] for element in root]
    assert names.count("circle") == 4
    assert "<b> & co" in [element.text for element in root]
