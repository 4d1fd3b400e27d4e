"""Sampling on a device takes the tokens that the native sampler takes: kernels in Triton's interpreter."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")
pytest.importorskip("triton", reason="Triton is an extra")

from stretto.backends.base import Draw  # noqa: E402
from stretto.backends.torch.rows import RowSampler  # noqa: E402
from stretto.backends.torch.sampler import Ask  # noqa: E402
from stretto.errors import InvalidRequest  # noqa: E402
from stretto.sampling import SamplingParams  # noqa: E402
from stretto.sampling.sampler import RandomStream, choose  # noqa: E402
from stretto.sampling.transforms import allow, measure  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::RuntimeWarning"
)  # the interpreter's

N = 3000
OPEN = SamplingParams(temperature=0.7, top_k=0, top_p=1.0, min_p=0.0)


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    from stretto.backends.torch import device

    if not device.is_interpreting():
        pytest.skip("TRITON_INTERPRET=1 has to be set before Triton is imported")


def outcome(function, *arguments):
    try:
        return function(*arguments)
    except InvalidRequest as error:
        return str(error)


def same_tokens(logits, draws):
    """Whether rows sampled together have the native sampler's tokens; `draws` are arguments of `sample`."""
    sampler = RowSampler("cpu", logits.shape[1], 8)
    rows = sampler.rows(torch.from_numpy(logits))
    sampler.prepare([Draw(row, *draw) for row, draw in zip(rows, draws, strict=True)])
    assert all(row.prepared is not None for row in rows)
    ours = [outcome(row.sample, *draw) for row, draw in zip(rows, draws, strict=True)]
    assert np.array_equal(rows[0].logits.numpy(), logits[0], equal_nan=True), "rows are left as they were"
    return ours == [outcome(choose, row, *draw) for row, draw in zip(logits, draws, strict=True)]


def some_logits(seed, n_rows, n=N, scale=3.0):
    return (np.random.default_rng(seed).standard_normal((n_rows, n)) * scale).astype(np.float32)


def words(bits):
    return np.packbits(bits, bitorder="little").view(np.uint32)


def test_the_best_token_is_the_first_of_the_largest():
    logits = np.round(some_logits(1, 6))
    logits[2, [700, 2999]] = 99.0
    assert same_tokens(logits, [(SamplingParams(temperature=0), [], 0, 0.0, None)] * 6)


def test_few_candidates_with_parameters_of_their_own():
    logits = some_logits(2, 8)
    logits[3] = np.round(logits[3])
    uniforms = np.random.default_rng(2).random(8)
    params = [
        SamplingParams(top_k=k, temperature=t, top_p=p, min_p=m)
        for k, t, p, m in [
            (5, 0.8, 0.95, 0.05), (20, 1.0, 1.0, 0.0), (20, 1.7, 0.5, 0.0), (10, 0.3, 0.9, 0.01),
            (1, 1.0, 1.0, 0.0), (0, 0.3, 0.9, 0.0), (0, 0.5, 1.0, 0.1), (24, 0.7, 0.99, 1.0),
        ]
    ]  # fmt: skip
    draws = [(one, [], 0, float(u), None) for one, u in zip(params, uniforms, strict=True)]
    assert same_tokens(logits, draws)


def test_all_of_a_row_is_drawn_from_in_the_order_of_the_native_sampler():
    logits = some_logits(3, 6, scale=2.0)
    logits[1, ::2] = -np.inf
    uniforms = [0.0, 0.25, 0.5, 0.75, 0.999, 1 - 2**-53]
    assert same_tokens(logits, [(OPEN, [], 0, u, None) for u in uniforms])


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, top_k=1500, top_p=0.9, min_p=0.0),
        SamplingParams(temperature=1.7, top_k=0, top_p=0.9, min_p=0.0),
        SamplingParams(temperature=2.0, top_k=0, top_p=1.0, min_p=0.001),
    ],
)
def test_more_candidates_than_one_program_holds(params):
    logits = some_logits(4, 2, scale=0.5)
    logits[1] = np.round(logits[1])  # many equals at the cut
    assert same_tokens(logits, [(params, [], 0, u, None) for u in (0.3, 0.9)])


def test_penalties_bias_and_masks():
    logits, rng = some_logits(5, 6), np.random.default_rng(5)
    mask = words(rng.random(-(-N // 32) * 32) < 0.3)
    tokens = rng.integers(0, N, 30).tolist() * 2
    penalties = SamplingParams(
        repetition_penalty=1.3, presence_penalty=0.7, frequency_penalty=0.4, top_k=10, temperature=1.5
    )
    bias = {int(logits[2].argmax()): -np.inf, tokens[0]: 9.0, tokens[40]: 2.5, 11: 8.0}
    biased = SamplingParams(repetition_penalty=0.8, logit_bias=bias, top_k=10)
    draws = [
        (penalties, tokens, 20, 0.4, None),
        (penalties, tokens, 20, 0.4, mask),
        (biased, tokens, 50, 0.7, None),
        (SamplingParams(logit_bias=bias, temperature=0), [], 0, 0.0, mask),
        (SamplingParams(temperature=0), [], 0, 0.0, mask),
        (OPEN, [], 0, 0.6, mask),
    ]
    assert same_tokens(logits, draws)


def test_what_is_wrong_with_a_row_is_said_in_the_same_words():
    logits = some_logits(6, 5)
    logits[0, 1000] = np.nan
    logits[1] = -np.inf
    logits[2, 7] = np.inf
    logits[3, 64] = np.nan  # not where the mask allows
    mask = np.zeros(N + 8, bool)
    mask[[128, 256]] = True
    nowhere = np.zeros(-(-N // 32), np.uint32)
    draws = [
        (SamplingParams(top_k=5), [], 0, 0.5, which) for which in (None, None, None, words(mask), nowhere)
    ]
    assert same_tokens(logits, draws)
    row = RowSampler("cpu", N).rows(torch.from_numpy(logits))[0]
    with pytest.raises(InvalidRequest, match="NaN"):
        row.sample(SamplingParams(), [], 0, 0.5, None)
    with pytest.raises(InvalidRequest, match="vocabulary ends at 2999"):
        row.sample(SamplingParams(logit_bias={5000: 1.0}), [], 0, 0.5, None)


def test_two_draws_from_one_row_do_not_see_each_others_penalties():
    logits = some_logits(7, 1)
    sampler = RowSampler("cpu", N)
    (row,) = sampler.rows(torch.from_numpy(logits))
    best, twin = int(logits.argmax()), row.copy()
    punished = SamplingParams(temperature=0, logit_bias={best: -np.inf})
    plain = SamplingParams(temperature=0)
    sampler.prepare([Draw(row, punished, [], 0, 0.0, None), Draw(twin, plain, [], 0, 0.0, None)])
    assert row.sample(punished, [], 0, 0.0, None) == int(np.argsort(logits[0])[-2])
    assert twin.sample(plain, [], 0, 0.0, None) == best


def test_a_row_that_was_looked_at_is_sampled_on_the_host():
    logits = some_logits(8, 1)
    sampler = RowSampler("cpu", N)
    (row,) = sampler.rows(torch.from_numpy(logits))
    row.numpy()[17] = 99.0
    draw = (SamplingParams(temperature=0), [], 0, 0.0, None)
    sampler.prepare([Draw(row, *draw)])
    assert row.prepared is None
    assert row.sample(*draw) == row.copy().sample(*draw) == 17


@pytest.mark.parametrize("masked", [False, True])
def test_log_probabilities_are_those_of_the_host(masked):
    logits, rng = some_logits(9, 2), np.random.default_rng(9)
    mask = words(rng.random(-(-N // 32) * 32) < 0.5) if masked else None
    sampler = RowSampler("cpu", N)
    rows = sampler.rows(torch.from_numpy(logits))
    draw = (SamplingParams(top_k=5), [], 0, 0.5, mask)
    sampler.prepare([Draw(row, *draw, n_top) for row, n_top in zip(rows, (0, 5), strict=True)])
    for row, n_top, numbers in zip(rows, (0, 5), logits, strict=True):
        token = row.sample(*draw)
        ours, best = row.measure(token, n_top, mask)
        host, host_best = measure(numbers if mask is None else allow(numbers, mask), token, n_top)
        assert ours == pytest.approx(host, abs=1e-9)
        assert [i for i, _ in best] == [i for i, _ in host_best]
        assert [x for _, x in best] == pytest.approx([x for _, x in host_best], abs=1e-9)
    assert rows[0].is_on_device


def test_random_numbers_are_made_on_the_device():
    logits = some_logits(10, 1)
    row = torch.from_numpy(logits)
    params = SamplingParams(top_k=20, temperature=2.0, top_p=1.0, min_p=0.0)
    sampler = RowSampler("cpu", N).buffers
    following = torch.zeros(1, dtype=torch.int32)
    for seed, index, draws in ((7, 0, 0), ((1 << 64) - 1, 3, 5), (123456789, 1, 1 << 40)):
        stream = RandomStream(seed, index, draws)
        sampler.write([Ask(row.data_ptr(), params, stream=stream)], 1)
        sampler.upload(1)
        for step in range(5):
            sampler.steps.fill_(step)
            sampler.launch(1, whole=False, following=following)
            assert int(following) == choose(logits[0], params, [], 0, stream.peek(step))


def test_parameters_that_stay_are_written_once(monkeypatch):
    logits = some_logits(12, 5, 200)
    sampler = RowSampler("cpu", 200, 8)
    rows = sampler.rows(torch.from_numpy(logits))
    params = [SamplingParams(top_k=k) for k in (1, 5, 20, 40)] + [SamplingParams(temperature=0)]
    write, written = sampler.buffers.write, []
    monkeypatch.setattr(sampler.buffers, "write", lambda *given: written.append(1) or write(*given))
    for i in range(3):
        uniforms = np.random.default_rng(i).random(5).tolist()
        expected = [choose(*each[:2], [], 0, each[2]) for each in zip(logits, params, uniforms, strict=True)]
        assert sampler.sample(rows, params, uniforms) == expected
        if i == 1:  # something else is sampled between
            assert len(written) == 1
            assert rows[0].sample(OPEN, [], 0, 0.5, None) == choose(logits[0], OPEN, [], 0, 0.5)
    assert len(written) == 3


@pytest.mark.parametrize("n", [17, 130, 1030])
def test_vocabularies_of_any_size(n):
    logits = some_logits(n, 4, n)
    draws = [(SamplingParams(), [], 0, 0.3, None), (SamplingParams(temperature=0), [], 0, 0.0, None)]
    draws += [(OPEN, [], 0, 0.9, None), (SamplingParams(top_k=3), [], 0, 0.9, None)]
    assert same_tokens(logits, draws)


def test_without_kernels_rows_are_sampled_by_the_native_sampler(monkeypatch):
    monkeypatch.setattr("stretto.backends.torch.rows.uses_kernels", lambda tensor: False)
    logits = some_logits(11, 2)
    sampler = RowSampler("cpu", N)
    rows = sampler.rows(torch.from_numpy(logits))
    draw = (SamplingParams(), [], 0, 0.5, None)
    sampler.prepare([Draw(row, *draw) for row in rows])
    assert [row.sample(*draw) for row in rows] == [choose(row, *draw) for row in logits]
    assert rows[0].measure(3, 0, None)[0] == measure(logits[0], 3, 0)[0]
