"""What can be combined: grammars, drafts, hooks, samples, beams, parallel tokens, sequences as prompts."""

import asyncio
import gc
import json
from pathlib import Path

import numpy as np
import pytest

import stretto
from stretto.engine.limits import Pace
from stretto.engine.params import PARALLEL, REFUSALS, combinations_as_markdown
from stretto.errors import ContextOverflow, InvalidRequest
from stretto.sampling.sampler import choose
from stretto.sampling.transforms import log_softmax, measure
from stretto.testing import MockBackend, byte_tokenizer, mock_llm

PERSON = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Ada", "Adam", "Bob"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
WILD = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


@pytest.fixture(scope="module")
def llm(smollm2_path):
    with stretto.load(smollm2_path, cells=2048) as llm:
        yield llm


def settled(llm):
    llm.cells.check()
    assert llm.cache.stats().held == 0


class Right:
    """Drafts a known continuation, with a wrong token now and then."""

    def __init__(self, known, wrong_every=0, most=6):
        self.known, self.wrong_every, self.most = known, wrong_every, most

    def begin(self, tokenizer):
        return self

    def propose(self, tokens, most):
        found = self.known[len(tokens) : len(tokens) + most]
        if self.wrong_every:
            found = [t if i % self.wrong_every else (t + 1) % 1000 for i, t in enumerate(found, 1)]
        return found

    def close(self):
        pass


# -- grammar with draft, hooks with draft --


@pytest.mark.parametrize("wrong_every", [0, 1, 3])
@pytest.mark.parametrize("options", [{"temperature": 0}, {"seed": 5}, {"seed": 6, "logprobs": 2}], ids=str)
def test_a_grammar_with_a_draft_is_the_grammar_alone(llm, options, wrong_every):
    prompt = llm.tokenizer.encode("A person as JSON: ")
    options = {"grammar": PERSON, "max_tokens": 60, **options}
    alone = llm.generate(prompt, **options)
    before = llm.metrics.accepted_tokens
    drafted = llm.generate(prompt, draft=Right(prompt + alone.tokens, wrong_every), **options)
    assert (drafted.tokens, drafted.text) == (alone.tokens, alone.text)
    assert (drafted.finish_reason, drafted.stop_reason) == (alone.finish_reason, alone.stop_reason)
    assert drafted.logprobs == alone.logprobs
    assert (llm.metrics.accepted_tokens > before) == (wrong_every != 1)
    settled(llm)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("wrong_every", [0, 1, 2, 4])
def test_hooks_with_a_draft_see_each_token_once(llm, wrong_every):
    seen = []

    def hook(logits, tokens):
        seen.append(len(tokens))
        logits[tokens[-1]] -= 3.0  # depends on what was accepted before

    prompt = llm.tokenizer.encode("One two three one two three one two")
    options = {"hooks": [hook], "max_tokens": 24, "seed": 3, "ignore_eos": True}
    alone = llm.generate(prompt, **options)
    expected, seen[:] = list(seen), []
    drafted = llm.generate(prompt, draft=Right(prompt + alone.tokens, wrong_every), **options)
    assert drafted.tokens == alone.tokens
    assert seen == expected == list(range(len(prompt), len(prompt) + 24))
    settled(llm)


def test_a_batch_hook_with_drafts(llm):
    class Hook:
        def __call__(self, logits, tokens):
            logits[tokens[-1]] -= 3.0

        def batch(self, logits, rows):
            for row, one in zip(logits, rows, strict=True):
                row[one.tokens[-1]] -= 3.0

    hook = Hook()
    prompts = [llm.tokenizer.encode(text) for text in ("One two one two", "A B C A B C")]
    options = {"hooks": [hook], "max_tokens": 16, "temperature": 0, "ignore_eos": True}
    alone = [llm.generate(prompt, **options).tokens for prompt in prompts]
    assert [r.tokens for r in llm.generate(prompts, draft="lookup", **options)] == alone


# -- grammar with several texts --


def test_a_grammar_with_n_and_best_of(llm):
    for how in ({"n": 3}, {"best_of": 3, "n": 2}):
        for result in llm.generate("A person: ", grammar=PERSON, max_tokens=60, seed=2, **how):
            assert set(json.loads(result.text)) == {"name", "age"}
    settled(llm)


@pytest.mark.parametrize("beams", [1, 3])
def test_a_grammar_with_beams(llm, beams):
    results = llm.generate("A person: ", grammar=PERSON, max_tokens=60, beams=beams, n=beams)
    # Two may have one text in different tokens.
    assert len({tuple(result.tokens) for result in results}) == len(results)
    for result in results:
        assert result.stop_reason in ("grammar", *llm.tokenizer.end_ids) or result.finish_reason == "length"
        if result.finish_reason == "stop":
            assert json.loads(result.text)["name"] in ("Ada", "Adam", "Bob")
    assert [r.logprob for r in results] == sorted((r.logprob for r in results), reverse=True)
    settled(llm)


def test_beams_find_the_most_probable_text_that_fits():
    rows = {"p": {"a": 3.0, "b": 2.0, "c": 9.0}, "pa": {"x": 0.0, "y": 0.0}, "pb": {"x": 9.0, "y": 0.0}}

    def script(seen):
        row = np.full(258, -30.0, np.float32)
        for letter, logit in rows.get(bytes(seen).decode(), {"x": 0.0}).items():
            row[ord(letter)] = logit
        return row

    llm = mock_llm(script)
    grammar = stretto.Grammar.regex("[ab][xy]")
    best, second, *_ = llm.generate("p", beams=4, n=4, grammar=grammar, length_penalty=0.0)
    assert (best.text, second.text[0]) == ("ax", "a") or best.text == "bx"
    by_hand = {
        first + last: log_softmax(_masked(rows["p"], "ab"))[ord(first)]
        + log_softmax(_masked(rows["p" + first], "xy"))[ord(last)]
        for first in "ab"
        for last in "xy"
    }
    assert best.text == max(by_hand, key=by_hand.get)
    assert best.logprob == pytest.approx(by_hand[best.text], abs=1e-4)
    settled(llm)


def _masked(logits, allowed):
    row = np.full(258, -np.inf, np.float32)
    for letter in allowed:
        row[ord(letter)] = logits.get(letter, -30.0)
    return row


# -- grammar with parallel tokens --


def test_a_grammar_with_parallel_tokens(llm):
    run = llm.parallel("A person: ", grammar=PERSON, threshold=0.05, max_tokens=60)
    assert set(json.loads(run.text)) == {"name", "age"}
    assert run.stop_reason == "grammar"
    settled(llm)


def test_members_of_a_set_are_what_the_grammar_allows_there():
    def script(seen):
        row = np.full(258, -30.0, np.float32)
        row[[ord(letter) for letter in "abcd"]] = [2.0, 2.5, 3.0, 1.0]
        return row

    llm = mock_llm(script)
    run = llm.parallel("p", grammar=stretto.Grammar.regex("[ab]x[ac]"), threshold=0.1)
    assert run.brackets == "[b/a]x[c/a]"
    assert [[m.text for m in step.members] for step in run.steps] == [["b", "a"], ["x"], ["c", "a"]]


# -- a sequence as prompt --


@pytest.mark.parametrize("loop", ["python", "fused"])
def test_a_sequence_is_continued(llm, loop):
    greedy = {"temperature": 0, "ignore_eos": True}
    whole = llm.generate("The capital of France is", max_tokens=12, **greedy)
    with llm.sequence("The capital of France is") as seq:
        first = llm.generate(seq, max_tokens=5, loop=loop, **greedy)
        assert seq.tokens[-5:] == first.tokens
        assert seq.text.endswith(first.text)
        second = llm.generate(seq, max_tokens=7, loop=loop, **greedy)
        assert first.tokens + second.tokens == whole.tokens
        seq.step(temperature=0)  # it goes on
        assert seq.tokens[-13:-1] == whole.tokens
        llm.cells.check()


def test_edits_and_forks_of_a_continued_sequence_stay(llm):
    with llm.sequence("One, two, three, four, five, six") as seq:
        seq.logits  # noqa: B018
        seq.remove(2, 5)
        fork = seq.fork()
        before = fork.logits.copy()
        expected = [fork.step(temperature=0).token for _ in range(6)]
        assert llm.generate(seq, max_tokens=6, temperature=0, ignore_eos=True).tokens == expected
        fork.truncate(fork.position - 6)
        np.testing.assert_array_equal(fork.logits, before)
        fork.close()


def test_edited_logits_of_a_sequence_count(llm):
    with llm.sequence("The capital of France is") as seq:
        seq.logits[:] = -np.inf
        seq.logits[260] = 0.0
        assert llm.generate(seq, max_tokens=3, temperature=0).tokens[0] == 260


def test_a_sequence_is_streamed_and_awaited(llm):
    options = {"max_tokens": 4, "temperature": 0, "ignore_eos": True}

    async def collect(seq):
        return [token.id async for token in llm.astream(seq, **options)]

    expected = llm.generate("Hello", **options).tokens
    with llm.sequence("Hello") as seq:
        assert [token.id for token in llm.stream(seq, **options)] == expected
        assert seq.tokens[-4:] == expected
    with llm.sequence("Hello") as seq:
        assert asyncio.run(collect(seq)) == expected
        assert seq.tokens[-4:] == expected


def test_several_texts_of_a_sequence_come_from_forks(llm):
    with llm.sequence("Hello", seed=5) as seq:
        n = len(seq)
        options = {"n": 2, "max_tokens": 8, "ignore_eos": True, **WILD}  # two texts are never the same
        results = llm.generate(seq, **options)
        assert len(seq) == n
        assert results[0].tokens != results[1].tokens
        assert [r.tokens for r in results] == [r.tokens for r in llm.generate("Hello", seed=5, **options)]
    settled(llm)


def test_a_sequence_belongs_to_its_request_meanwhile():
    llm = mock_llm(lambda seen: ord("x"))
    with llm.sequence("abc") as seq:
        stream = llm.stream(seq, max_tokens=8, temperature=0)
        next(stream)
        for use in (
            lambda: seq.append("d"),
            lambda: seq.truncate(1),
            lambda: seq.step(),
            lambda: seq.fork(),
            lambda: seq.save("never.safetensors"),
            lambda: llm.generate(seq),
        ):
            with pytest.raises(InvalidRequest, match=f"sequence {seq.id} .* request that is running"):
                use()
        stream.cancel()
        assert seq.text == "abcx"
        seq.append("d")
        assert seq.step(temperature=0).text == "x"
    settled(llm)


def test_closing_a_sequence_cancels_what_continues_it():
    llm = mock_llm(lambda seen: ord("x"))
    with llm.sequence("abc") as seq:
        stream = llm.stream(seq, max_tokens=8, temperature=0)
        next(stream)
    assert seq.closed
    assert stream.result.finish_reason == "cancelled"
    settled(llm)


def test_a_sequence_that_only_its_request_holds():
    llm = mock_llm(lambda seen: ord("x"))
    stream = llm.stream(llm.sequence("abc"), max_tokens=8, temperature=0)
    gc.collect()
    assert stream.result.text == "x" * 8
    settled(llm)


def test_a_failing_request_gives_the_sequence_back():
    llm = mock_llm(lambda seen: ord("x"))

    def callback(token):
        raise ZeroDivisionError

    with llm.sequence("abc") as seq:
        with pytest.raises(ZeroDivisionError):
            llm.generate(seq, callback=callback)
        assert seq.step(temperature=0).text == "x"
    settled(llm)


def test_a_conversation_as_a_sequence(llm):
    messages, options = [{"role": "user", "content": "Say hello."}], {"temperature": 0, "ignore_eos": True}
    expected = llm.chat(messages, max_tokens=8, **options)
    with llm.sequence(llm.chat_prompt(messages)) as seq:
        answer = llm.chat(seq, max_tokens=8, **options)
        assert answer.tokens == expected.tokens
        assert seq.tokens[-8:] == answer.tokens
    awaited = asyncio.run(llm.achat(messages, max_tokens=8, **options))
    assert awaited.text == expected.text


def test_a_conversation_as_an_async_stream(llm):
    messages = [{"role": "user", "content": "Say hello."}]
    expected = llm.chat(messages, max_tokens=8, temperature=0)

    async def streamed(**options):
        stream = llm.achat(messages, max_tokens=8, temperature=0, stream=True, **options)
        text = "".join([token.text async for token in stream])
        return text, await stream.result()

    text, result = asyncio.run(streamed())
    assert (text, result.text) == (expected.text, expected.text)
    with pytest.raises(InvalidRequest, match="no tools"):
        asyncio.run(streamed(tool_choice="required"))


def test_an_async_stream_has_the_calls_of_tools():
    tools = [{"name": "look", "parameters": {"type": "object", "properties": {}}}]
    llm = mock_llm('{"name": "look", "arguments": {}}')

    async def called():
        messages = [{"role": "user", "content": "Look."}]
        return await llm.achat(messages, temperature=0, tools=tools, stream=True).result()

    (call,) = asyncio.run(called()).tool_calls
    assert call.name == "look"


def test_sequences_that_cannot_be_continued(llm):
    foreign = mock_llm("Hi").sequence("p")
    with pytest.raises(InvalidRequest, match="not a sequence of this model"):
        llm.generate(foreign)
    with pytest.raises(InvalidRequest, match="empty"):
        llm.generate(llm.sequence())
    short = mock_llm("x", context_length=8)
    with pytest.raises(ContextOverflow) as caught:
        short.generate(short.sequence("12345678"))
    assert (caught.value.n_tokens, caught.value.limit) == (8, 8)


# -- logits, log-probabilities --


def test_logits_of_several_sequences_in_one_pass():
    llm = mock_llm(lambda seen: seen[-1] + 1)
    several = [llm.sequence(text) for text in ("ab", "xyz", "q")]
    n = len(llm.backend.batches)
    rows = llm.logits(several)
    assert rows.shape == (3, 258)
    assert rows.argmax(axis=1).tolist() == [ord("c"), ord("{"), ord("r")]
    assert len(llm.backend.batches) == n + 1
    for row, seq in zip(rows, several, strict=True):
        np.testing.assert_array_equal(row, seq.logits)
    rows[:] = 0  # a copy
    assert several[0].logits.argmax() == ord("c")
    assert llm.logits([]).shape == (0, 258)
    with pytest.raises(InvalidRequest, match="in the list twice"):
        llm.logits([several[0], several[0]])


def test_steps_and_results_tell_log_probabilities(llm):
    with llm.sequence("The capital of France is", seed=3) as seq:
        for _ in range(4):
            expected = log_softmax(seq.logits.copy())
            step = seq.step()
            assert step.logprob == pytest.approx(expected[step.token], abs=1e-5)
    result = llm.generate("The capital of France is", max_tokens=6, seed=3, logprobs=1)
    assert result.logprob == pytest.approx(np.mean([token.logprob for token in result.logprobs]), abs=1e-6)
    assert llm.generate("Hi", max_tokens=2).logprob is None


# -- options as a value --


def test_options_are_a_value(llm):
    opts = stretto.Options(temperature=0, max_tokens=4)
    expected = llm.generate("Hello", temperature=0, max_tokens=4)
    assert llm.generate("Hello", opts).tokens == expected.tokens
    assert llm.stream("Hello", opts).result.tokens == expected.tokens
    assert len(llm.generate("Hello", opts, max_tokens=2, ignore_eos=True).tokens) == 2  # keywords win
    assert asyncio.run(llm.agenerate("Hello", opts)).tokens == expected.tokens
    assert dict(opts | {"temperature": 0.5}) == {"temperature": 0.5, "max_tokens": 4}
    assert repr(opts) == "Options(temperature=0, max_tokens=4)"
    assert len(llm.generate("Hello", stretto.Options(n=2, max_tokens=2))) == 2


def test_options_are_checked_when_they_are_made(llm):
    with pytest.raises(InvalidRequest, match="did you mean 'temperature'") as caught:
        stretto.Options(temprature=0.5)
    assert caught.value.param == "temprature"
    with pytest.raises(InvalidRequest, match="temperature"):
        stretto.Options(temperature=-1)
    with pytest.raises(InvalidRequest, match="do not go together"):
        stretto.Options(loop="fused", logprobs=2)
    with pytest.raises(InvalidRequest, match="options must be a stretto"):
        llm.generate("Hello", {"temperature": 0})


# -- what has no meaning together --

VALUES = {
    "hooks": [lambda logits, tokens: None],
    "logprobs": 1,
    "draft": "lookup",
    "best_of": 2,
    "beams": 2,
    "grammar": {"type": "integer"},
    "ignore_eos": True,
    "callback": print,
    "stop functions": ("stop", [lambda text: False]),
    "loop='fused'": ("loop", "fused"),
    "overflow='shift'": ("overflow", "shift"),
    "loop": "python",
    "overflow": "error",
    "logit_bias": {1: 1.0},
    "top_k": 5,
    "n": 1,
    "keep": 0,
}


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: f"{refusal.first}-{refusal.second}")
def test_every_refusal_of_the_table(refusal):
    llm, options = mock_llm("Hi"), {}
    for name in (refusal.first, refusal.second):
        if name != PARALLEL:
            value = VALUES.get(name, 0.5 if name != "seed" else 3)
            key, value = value if isinstance(value, tuple) else (name, value)
            options[key] = value
    run = llm.parallel if refusal.first == PARALLEL else llm.generate
    with pytest.raises(InvalidRequest, match="do not go together") as caught:
        run("p", **options)
    assert caught.value.param == refusal.param
    settled(llm)


# -- a row that stays on a device --


class DeviceRows:
    """Makes the rows of a mock backend ones that are elsewhere, and counts who looks at them."""

    def __init__(self, llm):
        self.n_fetched = self.n_sampled = self.n_measured = self.n_together = 0
        self.draws = None  # those of a step, where the backend prepares them
        forward, counts = llm.backend.forward, self

        class Row:
            def __init__(self, row):
                self._row = row

            def numpy(self):
                counts.n_fetched += 1
                return self._row

            def fetch(self, others):
                counts.n_together += 1

            def sample(self, params, tokens, n_prompt, uniform, mask):
                counts.n_sampled += 1
                assert counts.draws is None or counts.draws.pop(0).is_for(
                    params, tokens, n_prompt, uniform, mask
                )
                return choose(self._row, params, tokens, n_prompt, uniform, mask)

            def measure(self, token, n_top, mask):
                counts.n_measured += 1
                return measure(self._row, token, n_top)

            def copy(self):
                return Row(self._row.copy())

        llm.backend.forward = lambda batch: [Row(row) for row in forward(batch)]


def test_rows_come_to_the_host_only_when_somebody_looks():
    llm = mock_llm("Hello world")
    rows = DeviceRows(llm)
    assert llm.generate(["a", "b"], temperature=0)[0].text == "Hello world"
    assert (rows.n_fetched, rows.n_sampled) == (0, 2 * len("Hello world!"))
    sampled = rows.n_sampled
    assert llm.generate("a", temperature=0, hooks=[lambda logits, tokens: None]).text == "Hello world"
    assert (rows.n_fetched, rows.n_sampled) == (len("Hello world!"), sampled)
    with llm.sequence("a") as seq:
        assert seq.logits is seq.logits
        assert chr(seq.step(temperature=0).token) == "H"
    assert llm.parallel("a").text == "Hello world"
    assert llm.generate("a", temperature=0, draft="lookup").text == "Hello world"
    assert llm.generate("a", beams=2).text == "Hello world"
    assert llm.score("aH").shape == (1,)


def test_a_batch_on_a_device_that_asks_for_no_logits():
    llm = mock_llm("Hello world")
    rows = DeviceRows(llm)
    batch = stretto.Batch()
    batch.extend([97, 98], 0, [5])
    assert llm.forward(batch).shape == (0, llm.spec.n_vocab)
    assert rows.n_fetched == 0


def test_rows_of_a_step_are_sampled_together(monkeypatch):
    steps = []

    def prepare(backend, draws):
        assert not rows.draws, "all that was prepared has been asked for"
        rows.draws = list(draws)
        steps.append(len(draws))

    def flat(seen):
        logits = np.zeros(byte_tokenizer().n_vocab, np.float32)
        logits[ord("a") : ord("z")] = 5.0
        return logits

    options = {"max_tokens": 9, "seed": 5, "temperature": 1.5, "logprobs": 2}
    several = {**options, "n": 3, "frequency_penalty": 0.5}
    expected = mock_llm(flat)
    monkeypatch.setattr(MockBackend, "prepare", prepare, raising=False)
    llm = mock_llm(flat)
    rows = DeviceRows(llm)
    for ask in (options, several, {**options, "draft": "lookup", "logprobs": 0}):
        steps.clear()
        ours, theirs = llm.generate(["p", "q"], **ask), expected.generate(["p", "q"], **ask)
        assert [r.tokens for r in _flat(ours)] == [r.tokens for r in _flat(theirs)]
        assert [r.logprob for r in _flat(ours)] == [r.logprob for r in _flat(theirs)]
        assert max(steps) >= 2 * ask.get("n", 1)
    with llm.sequence("p") as one, llm.sequence("q") as two:
        steps.clear()
        assert len(llm.step([one, two], temperature=0.5)) == steps[0] == 2
    assert rows.n_fetched == 0
    assert rows.n_measured


def _flat(results):
    return [one for each in results for one in (each if isinstance(each, list) else [each])]


def test_the_documents_print_the_table():
    page = Path(__file__).parents[2] / "docs" / "reference" / "combinations.md"
    assert combinations_as_markdown() in page.read_text()


# -- a sequence comes back whole --


def test_a_cancelled_draft_leaves_no_cells_behind(llm):
    prompt = llm.tokenizer.encode("One two three one two three one two three one two")
    known = prompt + llm.generate(prompt, max_tokens=60, temperature=0, ignore_eos=True).tokens
    with llm.sequence(prompt) as seq:
        stream = llm.stream(seq, draft=Right(known), max_tokens=60, temperature=0, ignore_eos=True)
        for _ in range(12):
            next(stream)
        stream.cancel()
        assert llm.cells.positions(seq.id).tolist() == list(range(len(seq) - seq.n_pending))
        assert seq.tokens == known[: len(seq)]
        assert seq.step(temperature=0).token == known[len(seq) - 1]


@pytest.mark.parametrize("how", ["list", "async", "stream", "n"])
def test_a_refused_request_gives_the_sequence_back(how):
    llm = mock_llm(lambda seen: ord("x"), limits=stretto.Limits(max_running=1, max_queue=1))
    with llm.sequence("abc") as seq:
        if how == "stream":
            first = llm.stream("a", max_tokens=20)
            next(first)
            second = llm.stream("b", max_tokens=20)
            with pytest.raises(stretto.QueueFull):
                llm.stream(seq)
            first.cancel(), second.cancel()
        elif how == "async":
            with pytest.raises(InvalidRequest, match="empty"):
                asyncio.run(llm.agenerate([seq, ""]))
        else:
            with pytest.raises(InvalidRequest, match="empty"):
                llm.generate([seq, ""], n=2 if how == "n" else None)
        assert seq.step(temperature=0).text == "x"
    settled(llm)


def test_a_dropped_stream_gives_the_sequence_back():
    llm = mock_llm(lambda seen: ord("x"))
    with llm.sequence("abc") as seq:
        stream = llm.stream(seq, max_tokens=20, temperature=0)
        next(stream)
        del stream
        gc.collect()
        assert seq.step(temperature=0).text == "x"
        assert seq.text == "abcxx"
    settled(llm)


def test_ready_made_hooks_with_a_draft_know_their_request(llm):
    prompt = llm.tokenizer.encode("One two three one two three one two three")
    options = {"max_tokens": 16, "temperature": 0, "ignore_eos": True}
    plain, drafted = stretto.hooks.Watcher(3), stretto.hooks.Watcher(3)
    alone = llm.generate(prompt, hooks=[plain], **options)
    found = llm.generate(prompt, hooks=[drafted], draft=Right(prompt + alone.tokens, 3), **options)
    assert found.tokens == alone.tokens
    assert [len(r.records) for r in drafted.requests] == [len(r.records) for r in plain.requests] == [16]


class SteadyPace(Pace):
    """A token a millisecond, on any machine."""

    def tokens_in(self, milliseconds):
        return int(milliseconds)


def test_embeddings_are_paced_while_a_stream_decodes(smollm2_path):
    with stretto.load(smollm2_path, cells=1024) as llm:
        llm.engine.scheduler.pace = SteadyPace()
        with llm.stream("Once", max_tokens=200, ignore_eos=True) as stream:
            next(stream)
            before = llm.steps.since()[-1].number
            llm.embed([list(range(100, 400))])
            widths = [event.n_tokens for event in llm.steps.since(before + 1)]
            assert max(widths) <= 46  # 45 ms of them, and the stream's token
