"""The ready-made hooks: each alone on rows of NumPy, and through generations."""

import doctest
from itertools import pairwise

import numpy as np
import pytest

import stretto
from stretto.errors import InvalidRequest
from stretto.hooks import Ban, Bias, Force, Guidance, HookRow, NoRepeat, Only, Watcher, base, ready
from stretto.sampling.transforms import log_softmax, softmax
from stretto.testing import mock_llm


def row(*values):
    return np.array(values, np.float32)


def ranked(*texts):
    """A script: at place i of the answer the characters of texts[i], the best first; then the end."""

    def script(seen):
        place = len(seen) - 1  # the prompt is one token
        logits = np.zeros(258, np.float32)
        for rank, character in enumerate(texts[place] if place < len(texts) else "\0"):
            logits[ord(character)] = 20.0 - rank
        return logits

    return script


def generate(script, hooks, prompt="p", **options):
    llm = mock_llm(script)
    result = llm.generate(prompt, **{"temperature": 0, "hooks": hooks, **options})
    llm.cells.check()
    return result


def test_the_examples_in_the_docstrings():
    tried = doctest.testmod(ready)
    assert tried.attempted > 10
    assert tried.failed == 0


def test_they_are_public():
    assert stretto.hooks.Ban is Ban
    assert stretto.NativeHook is stretto.hooks.NativeHook
    assert "hooks" in dir(stretto)


# -- Ban and Bias --


def test_ban():
    logits = row(1, 2, 3, 4)
    Ban([1, 3, 1])(logits, [])
    assert logits.tolist() == [1, -np.inf, 3, -np.inf]
    assert generate(ranked("ab", "cd"), [Ban([ord("a"), ord("c")])], max_tokens=2).text == "bd"


def test_only():
    logits = row(1, 2, 3, 4)
    Only([3, 1, 3])(logits, [])
    assert logits.tolist() == [-np.inf, 2, -np.inf, 4]
    assert generate(ranked("ab", "cd"), [Only([ord("b"), ord("d")])], max_tokens=2).text == "bd"
    with pytest.raises(InvalidRequest, match="give at least one"):
        Only([])


def test_bias():
    logits = row(1, 2, 3, 4)
    Bias({0: 1.5, 3: -np.inf, np.int64(1): np.float32(-1)})(logits, [])
    assert logits.tolist() == [2.5, 1, 3, -np.inf]
    assert generate(ranked("ab", "cd"), [Bias({ord("b"): 5, ord("d"): 0.5})], max_tokens=2).text == "bc"


@pytest.mark.parametrize("hook", [Ban([1, 5]), Ban([]), Only([2, 6]), Bias({0: 2.0, 6: -1.0}), Bias({})])
def test_a_batch_is_each_row_alone(hook):
    logits = np.random.default_rng(1).standard_normal((16, 7)).astype(np.float32)
    alone = logits.copy()
    rows = [HookRow([1, 2, number], number) for number in range(16)]
    hook.batch(logits, rows)
    for one, about in zip(alone, rows, strict=True):
        hook(one, about.tokens)
    assert np.array_equal(logits, alone)


# -- Force --


def test_force_and_let_go():
    assert generate(ranked(*"abcdef"), [Force(list(b"XY"))], max_tokens=5).text == "XYcde"
    assert generate(ranked(*"abcdef"), [Force(list(b"XY"), at=2)], max_tokens=5).text == "abXYe"
    assert generate(ranked(*"abcdef"), [Force(list(b"XY"))], max_tokens=1).text == "X"


def test_force_overrules_what_came_before():
    assert generate(ranked(*"abc"), [Ban([ord("X")]), Force(list(b"X"))], max_tokens=2).text == "Xb"


def test_one_force_for_many_requests():
    force = Force(list(b"Yes"))
    llm = mock_llm(lambda seen: seen[0])
    for prompts in (["a", "b", "c"], ["a", "a", "a"], ["d"], ["a", "ab", "abc"]):
        results = llm.generate(prompts, hooks=[force], temperature=0, max_tokens=5)
        assert [result.text for result in results] == ["Yes" + 2 * prompt[0] for prompt in prompts]


def test_force_in_a_conversation():
    """The prompt of the next turn begins with all of the last one."""
    force, llm = Force(list(b">")), mock_llm(lambda seen: 257 if len(seen) % 2 else ord("x"))
    prompt = list(b"a")
    for turn in range(4):
        result = llm.generate(prompt, hooks=[force], temperature=0, max_tokens=2 + turn % 2)
        assert result.tokens[0] == ord(">")
        prompt += [*result.tokens, 257, ord("u")]


@pytest.mark.parametrize("prompts", [[[1], [2], [3]], [[1], [1, 1], [1, 1, 1]], [[4], [4], [4]]])
def test_force_in_a_batch(prompts):
    """Requests are told apart by their numbers, whatever their tokens are and whether lists are copied."""
    force, histories = Force([7, 8]), [list(prompt) for prompt in prompts]
    for step in range(4):
        logits = np.zeros((len(prompts), 9), np.float32)
        force.batch(logits, [HookRow(list(tokens), number) for number, tokens in enumerate(histories)])
        assert [one.argmax() for one in logits] == [(7, 8, 0, 0)[step]] * len(prompts)
        for tokens, one in zip(histories, logits, strict=True):
            tokens.append(int(one.argmax()))


def test_force_with_copies_of_the_tokens():
    force, tokens = Force([2, 1]), [5, 5]
    force(row(0, 0, 0), [5])  # something else
    force = Force([2, 1])
    for expected in (2, 1, None, None):
        logits = row(0, 0, 0)
        force(logits, list(tokens))
        assert (np.flatnonzero(logits == 0).tolist() == [expected]) == (expected is not None)
        tokens.append(0 if expected is None else expected)
    for _ in range(2):  # shorter again: a new request, asked twice
        logits = row(0, 0, 0)
        force(logits, [5, 5])
        assert logits.argmax() == 2


def test_an_edited_history_is_a_new_request():
    force, tokens = Force([1]), [4, 4, 4]
    force(row(0, 0), tokens)
    tokens.append(1)
    del tokens[1:3]
    logits = row(0, 0)
    force(logits, tokens)
    assert logits.tolist() == [-np.inf, 0]


def test_only_so_many_requests_are_remembered(monkeypatch):
    monkeypatch.setattr(base, "MAX_REQUESTS", 3)
    found, lists = base.Trails(), [[number] for number in range(4)]
    for tokens in lists:
        assert found.of_tokens(tokens).n_prompt == found.of_row(HookRow(tokens, tokens[0])).n_prompt == 1
        tokens.append(9)
    assert [found.of_tokens(tokens).n_prompt for tokens in reversed(lists)] == [1, 1, 1, 2]
    numbers = [found.of_row(HookRow(tokens, tokens[0])).n_prompt for tokens in reversed(lists)]
    assert numbers == [1, 1, 1, 2]


# -- NoRepeat --


def by_definition(tokens, n, n_vocab):
    there = {tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)}
    end = tokens[len(tokens) - n + 1 :] if n > 1 else []
    return [token for token in range(n_vocab) if len(end) == n - 1 and (*end, token) in there]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
def test_no_repeat_on_random_histories(n):
    rng, hook = np.random.default_rng(n), NoRepeat(n)
    for length in range(60):  # shorter and longer ones by turns, as of several requests
        tokens = rng.integers(0, 3, length if length % 2 else 60 - length).tolist()
        logits = np.zeros(3, np.float32)
        hook(logits, tokens)
        assert np.flatnonzero(logits == -np.inf).tolist() == by_definition(tokens, n, 3)


def test_no_repeat_in_a_generation():
    result = generate(lambda seen: np.arange(258) // 255, [NoRepeat(2)], max_tokens=20, ignore_eos=True)
    tokens = [ord("p"), *result.tokens]
    pairs = list(pairwise(tokens))
    assert len(set(pairs)) == len(pairs) == 20
    assert len(set(tokens)) < 12


# -- Guidance --


class Scripted:
    """Stands in for a sequence."""

    def __init__(self, *rows):
        self.rows, self.tokens = list(rows), []

    @property
    def logits(self):
        return self.rows[len(self.tokens)]

    def append(self, tokens):
        self.tokens += tokens


def test_guidance_by_hand():
    positive, negative = row(0.5, 1.0, -2.0, 0.0), row(1.0, -1.0, 0.0, 0.25)
    guide = Scripted(negative, negative)
    hook = Guidance(guide, 2.5)
    logits = positive.copy()
    hook(logits, [7])
    p, q = log_softmax(positive), log_softmax(negative)
    assert np.allclose(logits, q + 2.5 * (p - q), atol=1e-6)
    assert guide.tokens == []  # the prompt is its own
    hook(logits, [7, 2])
    assert guide.tokens == [2]


@pytest.mark.parametrize(("scale", "which"), [(1.0, 0), (0.0, 1)])
def test_scales_that_take_one_side(scale, which):
    rows = row(0.5, 1.0, -2.0), row(1.0, -1.0, 0.0)
    logits = rows[0].copy()
    Guidance(Scripted(rows[1]), scale)(logits, [7])
    assert np.allclose(softmax(logits), softmax(rows[which]), atol=1e-6)


@pytest.mark.parametrize("scale", [0.0, 1.0, 3.0])
def test_excluded_tokens_stay_excluded(scale):
    logits = row(0.5, -np.inf, -2.0, -np.inf)
    Guidance(Scripted(row(1.0, 2.0, -np.inf, -np.inf)), scale)(logits, [7])
    assert np.flatnonzero(logits == -np.inf).tolist() == [1, 3]
    assert not np.isnan(logits).any()
    nothing = np.full(4, -np.inf, np.float32)
    Guidance(Scripted(row(1.0, 2.0, 0.0, 0.0)), scale)(nothing, [7])
    assert np.all(nothing == -np.inf)


def test_guidance_in_a_generation():
    """The prompt says a or b, the other prompt mostly a: guidance takes b."""

    def script(seen):
        logits = np.zeros(258, np.float32)
        logits[[ord("a"), ord("b")]] = (10.0, 9.0) if seen[0] == ord("p") else (10.0, 6.0)
        return logits

    llm = mock_llm(script)
    for scale, text in ((1.0, "aaaa"), (1.2, "aaaa"), (2.0, "bbbb")):
        with llm.sequence("q") as other:
            result = llm.generate("p", hooks=[Guidance(other, scale)], temperature=0, max_tokens=4)
            assert result.text == text
            assert other.text == "q" + text[:3]  # nothing came after the last token
    llm.cells.check()


def test_a_guidance_serves_one_request():
    llm = mock_llm("Hello")
    with llm.sequence("q") as other:
        guidance = Guidance(other, 1.5)
        llm.generate("p", hooks=[guidance], temperature=0)
        for prompt in ("p", "r", "Hello Hello"):
            with pytest.raises(InvalidRequest, match="a Guidance serves one request"):
                llm.generate(prompt, hooks=[guidance], temperature=0)
        with pytest.raises(InvalidRequest, match="a Guidance serves one request"):
            llm.generate(["a", "b"], hooks=[Guidance(other, 1.5)], temperature=0)
    llm.cells.check()


def test_a_guide_of_another_model():
    with pytest.raises(InvalidRequest, match="of a model with 3 tokens"):
        Guidance(Scripted(row(1, 2, 3)), 2.0)(row(1, 2), [7])


# -- Watcher --


def test_what_a_watcher_sees():
    logits = row(2.0, -np.inf, 1.0, 2.0, -3.0)
    before = logits.copy()
    watcher = Watcher(top=3)
    assert watcher.records == []
    watcher(logits, [7])
    assert np.array_equal(logits, before)
    (record,) = watcher.records
    p = softmax(logits)
    assert record.entropy == pytest.approx(-sum(x * np.log(x) for x in p if x))
    assert [candidate.token for candidate in record.top] == [0, 3, 2]
    assert [candidate.probability for candidate in record.top] == pytest.approx(p[[0, 3, 2]])
    assert (record.index, record.token) == (0, None)


def test_a_watcher_of_certain_things():
    watcher = Watcher()
    watcher(row(-np.inf, 3.0), [7])
    watcher(row(-np.inf, -np.inf), [7, 1])
    assert watcher.records[0].entropy == 0
    assert [(c.token, c.probability) for c in watcher.records[0].top] == [(1, 1.0)]
    assert watcher.records[1].top == ()
    assert Watcher(top=0).top == 0


def test_a_watcher_in_a_generation():
    watcher, llm = Watcher(top=2), mock_llm(ranked("ab", "cd", "ef"))
    stream = llm.stream("p", hooks=[Ban([ord("c")]), watcher], temperature=0, max_tokens=3)
    next(stream)
    assert len(watcher.records) == 1
    assert stream.result.text == "ade"
    assert [record.index for record in watcher.records] == [0, 1, 2]
    assert [record.token for record in watcher.records] == [*b"ad", None]
    assert [record.top[0].token for record in watcher.records] == [*b"ade"]


def test_a_watcher_of_beams():
    watcher = Watcher(top=1)
    for tokens in ([5, 1], [5, 2]), ([5, 1, 0], [5, 1, 2]):
        watcher.batch(np.zeros((2, 3), np.float32), [HookRow(one, 7) for one in tokens])
    assert [(record.index, record.token) for record in watcher.records] == [(0, None)] * 2 + [(1, None)] * 2


def test_a_watcher_of_several_requests():
    watcher, llm = Watcher(top=1), mock_llm(lambda seen: seen[0])
    llm.generate(["a", "bb", "a"], hooks=[watcher], temperature=0, max_tokens=3)
    llm.generate("c", hooks=[watcher], temperature=0, max_tokens=2)
    assert [request.n_prompt for request in watcher.requests] == [1, 2, 1, 1]
    assert [[r.top[0].token for r in request.records] for request in watcher.requests] == [
        [*b"aaa"],
        [*b"bbb"],
        [*b"aaa"],
        [*b"cc"],
    ]
    assert watcher.records is watcher.requests[-1].records


# -- wrong arguments --


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Ban("ab"), "tokens must be a list of ids, not 'ab'"),
        (lambda: Ban(5), "tokens must be a list"),
        (lambda: Ban([-1]), "a token of tokens must be an integer from 0"),
        (lambda: Ban([1.0]), "a token of tokens"),
        (lambda: Ban([True]), "a token of tokens"),
        (lambda: Bias([1]), "bias must map"),
        (lambda: Bias({-1: 1.0}), "a token of bias"),
        (lambda: Bias({1: np.inf}), "bias of token 1"),
        (lambda: Bias({1: float("nan")}), "bias of token 1"),
        (lambda: Bias({1: "x"}), "bias of token 1"),
        (lambda: Force([]), "tokens must hold at least one id"),
        (lambda: Force([1], at=-1), "at must be an integer from 0"),
        (lambda: NoRepeat(0), "n must be an integer from 1"),
        (lambda: NoRepeat(2.0), "n must be"),
        (lambda: Guidance([1, 2], 2.0), "sequence must be a Sequence"),
        (lambda: Guidance(Scripted(), -1), "scale must be a number from 0"),
        (lambda: Guidance(Scripted(), float("nan")), "scale must be"),
        (lambda: Watcher(top=-1), "top must be an integer from 0"),
        (lambda: Watcher(top=1001), "top must be"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(InvalidRequest, match=message):
        make()


@pytest.mark.parametrize("hook", [Ban([258]), Bias({258: 1.0}), Force([258])])
def test_tokens_that_the_vocabulary_does_not_have(hook):
    with pytest.raises(InvalidRequest, match="names token 258; the vocabulary ends at 257"):
        generate("Hello", [hook])
    if hasattr(hook, "batch"):
        with pytest.raises(InvalidRequest, match="names token 258"):
            hook.batch(np.zeros((2, 258), np.float32), [HookRow([1], 0), HookRow([1], 1)])
