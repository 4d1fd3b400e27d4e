"""Several texts from one prompt: samples, the best of several, beams; checked against brute force."""

from itertools import product

import numpy as np
import pytest

from stretto.errors import InvalidRequest
from stretto.llm.texts import new_branches
from stretto.testing import END, byte_tokenizer, mock_llm

END_ID = byte_tokenizer().specials[END]
LETTERS = [*b"abc", END_ID]


def logprobs_after(seen):
    """log-probabilities of a, b, c and the end, a fixed function of what was seen."""
    rng = np.random.default_rng(list(seen))
    weights = rng.random(4) ** 3 + 1e-3
    return np.log(weights / weights.sum())


def script(seen):
    row = np.full(258, -np.inf, np.float32)
    row[LETTERS] = logprobs_after(seen)
    return row


def brute_force(prompt, length, penalty):
    """(score, text) of every text of up to `length` letters that ends or is as long; the best first."""
    found = []
    for n in range(length + 1):
        for letters in product(b"abc", repeat=n):
            total, seen = 0.0, list(prompt)
            for letter in letters:
                total += logprobs_after(seen)[LETTERS.index(letter)]
                seen.append(letter)
            if n == length:
                found.append((total / n**penalty, bytes(letters).decode()))
            else:
                end = total + logprobs_after(seen)[3]
                found.append((end / (n + 1) ** penalty, bytes(letters).decode()))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("prompt", ["x", "yz", "q"])
def test_wide_beams_find_what_brute_force_finds(prompt, penalty):
    llm = mock_llm(script)
    found = llm.generate(prompt, beams=100, n=5, length_penalty=penalty, max_tokens=4)
    expected = brute_force(prompt.encode(), 4, penalty)[:5]
    assert [result.text for result in found] == [text for _, text in expected]
    assert [result.logprob for result in found] == pytest.approx([score for score, _ in expected], abs=1e-5)
    assert llm.cache.stats().held == 0


def reference_beams(prompt, width, length):
    """A plain beam search over texts, without any cache; length penalty 0."""
    beams, ended = [(0.0, b"")], []
    for _ in range(length):
        candidates = sorted(
            (
                (score + logprobs_after([*prompt, *text])[i], text, letter)
                for score, text in beams
                for i, letter in enumerate(LETTERS)
            ),
            key=lambda c: -c[0],
        )
        for rank, (score, text, letter) in enumerate(candidates):
            if letter == END_ID and rank < width:
                ended.append((score, text))
        beams = [(s, text + bytes([letter])) for s, text, letter in candidates if letter != END_ID][:width]
    return sorted(ended + beams, reverse=True)


@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_narrow_beams_are_a_beam_search(width):
    for prompt in ("x", "hello", "abc"):
        llm = mock_llm(script)
        best = llm.generate(prompt, beams=width, length_penalty=0.0, max_tokens=6)
        score, text = reference_beams(prompt.encode(), width, 6)[0]
        assert (best.text, best.logprob) == (text.decode(), pytest.approx(score, abs=1e-5))
        assert llm.cache.stats().held == 0
        llm.cells.check()


def test_beams_compute_the_prompt_once_and_share_steps():
    llm = mock_llm(script)
    prompt = "p" * 50
    other = llm.stream("q" * 10, max_tokens=5, ignore_eos=True, seed=1)
    next(other)
    llm.backend.batches.clear()
    llm.generate(prompt, beams=4, max_tokens=5)
    assert max(len(tokens) for tokens in llm.backend.batches) <= 51
    assert sum(len(tokens) for tokens in llm.backend.batches) <= 50 + 4 * 4 + 5


def test_hooks_stop_strings_and_bias_work_in_beams():
    llm = mock_llm(script)

    def no_a(logits, tokens):
        logits[ord("a")] = -np.inf

    assert "a" not in llm.generate("x", beams=3, max_tokens=6, hooks=[no_a]).text
    assert "b" not in llm.generate("x", beams=3, max_tokens=6, logit_bias={ord("b"): -np.inf}).text
    for result in llm.generate("x", beams=30, n=30, max_tokens=3, stop=["ab"]):
        assert "ab" not in result.text


def test_samples_are_those_of_single_requests():
    llm = mock_llm(script)
    options = {"seed": 7, "max_tokens": 12, "temperature": 1.0, "ignore_eos": True}
    samples = llm.generate("prompt", n=5, **options)
    assert len({result.text for result in samples}) > 1
    assert samples[0].text == llm.generate("prompt", **options).text
    assert [result.text for result in llm.generate("prompt", n=5, **options)] == [r.text for r in samples]
    assert {result.seed for result in samples} == {7}
    assert llm.cache.stats().held == 0


def test_samples_compute_the_prompt_once():
    llm = mock_llm(script)
    llm.generate("p" * 100, n=8, max_tokens=4, ignore_eos=True)
    assert sum(len(tokens) for tokens in llm.backend.batches) == 100 + 8 * 3


def test_best_of_is_the_most_probable_of_the_samples():
    llm = mock_llm(script)
    options = {"seed": 3, "max_tokens": 6, "temperature": 1.0, "ignore_eos": True}
    samples = llm.generate("x", n=6, **options)

    def mean(result):
        seen, total = list(b"x"), 0.0
        for token in result.tokens:
            total += logprobs_after(seen)[LETTERS.index(token)]
            seen.append(token)
        return total / len(result.tokens)

    ranked = sorted(samples, key=mean, reverse=True)
    best = llm.generate("x", best_of=6, **options)
    assert best.text == ranked[0].text
    assert best.logprob == pytest.approx(mean(ranked[0]), abs=1e-5)
    two = llm.generate("x", best_of=6, n=2, **options)
    assert [result.text for result in two] == [result.text for result in ranked[:2]]


def test_lists_of_prompts_give_lists_of_lists():
    llm = mock_llm("Hi")
    found = llm.generate(["a", "b"], n=2, temperature=0)
    assert [[result.text for result in results] for results in found] == [["Hi", "Hi"], ["Hi", "Hi"]]


def test_a_failing_prompt_fails_its_siblings():
    def script(seen):
        raise MemoryError("no")

    llm = mock_llm(script)
    with pytest.raises(MemoryError):
        llm.generate("x", n=3)
    assert llm.cache.stats().held == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "n must be"),
        ({"n": True}, "n must be"),
        ({"best_of": 2, "n": 3}, "n is 3, which is more than best_of=2"),
        ({"beams": 2, "n": 3}, "n is 3, which is more than beams=2"),
        ({"beams": 2, "best_of": 3}, "give one of them"),
        ({"length_penalty": 2.0}, "length_penalty is for beams"),
        ({"beams": 2, "temperature": 0.5}, "beams and temperature do not go together"),
        ({"beams": 2, "seed": 5}, "beams and seed do not go together"),
        ({"beams": 2, "overflow": "shift"}, "beams and overflow='shift'"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(InvalidRequest, match=message):
        mock_llm("Hi").generate("x", **options)


def test_a_stream_gives_one_text():
    with pytest.raises(InvalidRequest, match="a stream gives one text"):
        mock_llm("Hi").stream("x", n=2)


def test_preempted_beams_come_back_with_what_they_share():
    """Three hypotheses of 48 tokens fit into 128 cells only because they share their prompt."""
    prompt, how = "p" * 48, {"beams": 3, "max_tokens": 6}
    expected = mock_llm(script).generate(prompt, **how).tokens
    llm = mock_llm(script, cells=128)
    engine, older = llm.engine, llm.stream("q", max_tokens=40, ignore_eos=True)
    next(older)
    branches = new_branches(engine, prompt, how)
    (search,) = branches.requests
    engine.add(search)
    engine.step_until(lambda: len(search.sources) == 3)
    search.decoder.preempt()
    engine.scheduler.requeue(search)
    llm.cache.clear()  # nothing is left of it
    engine.step_until(lambda: branches.finished)
    assert branches.results().tokens == expected
    assert branches.results().stop_reason is None
