"""What a run shares with ordinary requests: hooks, stops, callbacks, timeouts, cancelling, asyncio."""

import asyncio
import ctypes
import gc
import time
from dataclasses import fields

import numpy as np
import pytest

from stretto import Limits
from stretto.engine.branch import Branching
from stretto.engine.params import PARALLEL, REFUSALS, SAMPLING_NAMES
from stretto.errors import InvalidRequest, QueueFull
from stretto.hooks import Ban, Bias, Force, Guidance, HookRow, NativeHook, NoRepeat, Watcher
from stretto.options.keywords import Keywords, ParallelOptions
from stretto.parallel import ParallelStep
from stretto.parallel.output import HeldSteps
from stretto.testing import END, byte_tokenizer, mock_llm

END_ID = byte_tokenizer().specials[END]
HOOK = ctypes.CFUNCTYPE(
    None,
    ctypes.POINTER(ctypes.c_float),
    ctypes.c_int32,
    ctypes.POINTER(ctypes.c_int32),
    ctypes.c_int32,
    ctypes.c_void_p,
)
SETS = {"a": 0.6, "b": 0.3, "c": 0.1}, {"d": 1.0}, {"e": 0.5, "f": 0.4, "g": 0.1}, {"h": 0.7, "i": 0.3}


def row_of(options):
    row = np.full(258, -1e9, np.float32)
    for text, probability in options.items():
        row[END_ID if text == END else ord(text)] = np.log(probability)
    return row


def script(seen):
    """After the last "x" come the sets of `SETS`, then the end."""
    said = {chr(token) for token in seen[len(seen) - seen[::-1].index(ord("x")) :]}
    depth = sum(bool(said & set(options)) for options in SETS)
    return row_of(SETS[depth] if depth < len(SETS) else {END: 1.0})


def forever(seen):
    time.sleep(0.001)
    return row_of({"a": 0.6, "b": 0.4})


@pytest.fixture
def llm():
    with mock_llm(script) as llm:
        yield llm
        assert llm.cache.stats().held == 0
        llm.cells.check()


@pytest.fixture
def endless():
    with mock_llm(forever) as llm:
        yield llm
        llm.cells.check()


def freed(llm):
    """Whether all cells are given back within a moment, or a while on a busy machine."""
    for _ in range(3000):
        if llm.cache.stats().held == 0:
            return True
        time.sleep(0.01)
    return False


# -- hooks --


def test_a_hook_sees_the_next_distribution_and_the_best_path(llm):
    rows, paths = [], []

    def hook(logits, tokens):
        rows.append(np.exp(logits))
        paths.append((id(tokens), bytes(tokens).decode()))

    run = llm.parallel("yx", hooks=[hook])
    assert run.brackets == llm.parallel("yx").brackets == "[a/b]d[e/f][h/i]"
    assert len({which for which, _ in paths}) == 1  # the same list every time
    assert [path for _, path in paths] == ["yx", "yxa", "yxad", "yxade", "yxadeh"]
    assert rows[0][[97, 98, 99]] == pytest.approx([0.6, 0.3, 0.1])
    assert rows[1][ord("d")] == pytest.approx(1)  # the mixture after a and b


def test_a_hook_that_changes_nothing_changes_no_bit(llm):
    def probabilities(**options):
        run = llm.parallel("x", threshold=0.05, temperature=0.9, **options)
        return [[member.probability for member in step.members] for step in run.steps]

    assert probabilities(hooks=[lambda logits, tokens: None]) == probabilities()
    assert probabilities(hooks=[Watcher()], combine="best") == probabilities(combine="best")


def test_what_a_hook_changes_is_what_the_set_is_taken_from(llm):
    run = llm.parallel("x", threshold=0.3, hooks=[Ban([ord("a")])])
    assert [member.text for member in run.steps[0].members] == ["b"]
    assert run.steps[0].members[0].probability == pytest.approx(0.75)
    assert run.steps[0].edges == [pytest.approx([0.3])]  # edges are the model's own
    assert llm.parallel("x", hooks=[Bias({ord("c"): 9.0})], max_tokens=1).brackets == "c"
    assert llm.parallel("x", hooks=[Force([ord("c"), ord("z")])], max_tokens=3).brackets == "czd"
    assert llm.parallel("x", hooks=[NoRepeat(1), Ban([ord("e")])]).brackets == "[a/b]d[f/g][h/i]"
    with llm.sequence("x") as other:
        guided = llm.parallel("x", hooks=[Guidance(other, scale=1.0)])
        assert guided.brackets == "[a/b]d[e/f][h/i]"
        assert bytes(other.tokens).decode() == "xadeh"


def test_rows_are_as_the_model_gave_them(llm):
    stream = llm.parallel("x", stream=True, hooks=[Ban([ord("a")])], delay=0)
    next(stream)
    assert stream.run.decoder.source.rows[0].argmax() == ord("a")
    stream.cancel()


def test_a_hook_for_several_runs_and_requests_at_once(llm):
    calls = []

    class Together(Ban):
        def batch(self, logits, rows):
            assert all(isinstance(row, HookRow) for row in rows)
            calls.append((logits.shape, [bytes(row.tokens).decode() for row in rows]))
            super().batch(logits, rows)

    hook = Together([ord("b"), ord("e")])
    request = llm.stream("x", temperature=0, hooks=[hook])
    runs = llm.parallel(["x", "yx"], hooks=[hook])
    assert [run.brackets for run in runs] == ["ad[f/g][h/i]"] * 2
    assert request.result.text == "adfh"
    assert calls[1] == ((3, 258), ["xa", "xa", "yxa"])
    watcher = Watcher(top=2)
    llm.parallel(["x", "yx"], hooks=[watcher])
    assert [bytes(record.token for record in seen.records[:-1]) for seen in watcher.requests] == [b"adeh"] * 2


def test_native_hooks(llm):
    @HOOK
    def forbid(logits, n_vocab, tokens, n, state):
        logits[97 if n == 1 else 101] = -np.inf

    run = llm.parallel("x", hooks=[NativeHook(forbid)])
    assert run.brackets == llm.parallel("x", hooks=[Ban([97, 101])]).brackets == "[b/c]d[f/g][h/i]"


@pytest.mark.parametrize(
    ("value", "words"), [(np.nan, "NaN"), (-np.inf, "every token is excluded"), (np.inf, r"hold \+inf")]
)
def test_hooks_that_leave_no_distribution(llm, value, words):
    def spoil(logits, tokens):
        logits[:] = value

    good = llm.parallel("x", stream=True)
    with pytest.raises(InvalidRequest, match=words):
        llm.parallel("x", hooks=[spoil])
    assert good.result.text == "adeh"


def test_a_failing_hook_ends_its_run_alone(llm):
    def fail(logits, tokens):
        raise RuntimeError("mine")

    good = llm.parallel("x", stream=True)
    with pytest.raises(RuntimeError, match="mine"):
        llm.parallel("x", hooks=[fail])
    assert good.result.text == "adeh"


def test_an_interrupted_hook_is_called_again_with_the_row_as_it_was(llm):
    seen = []

    def hook(logits, tokens):
        seen.append(logits.copy())
        logits[:] = 0
        if len(seen) == 2:
            raise KeyboardInterrupt
        logits[:] = seen[-1]

    stream = llm.parallel("x", stream=True, hooks=[hook], delay=0)
    other = llm.stream("x", temperature=0)
    next(stream)
    with pytest.raises(KeyboardInterrupt):
        llm.engine.step()
    assert stream.result.brackets == "[a/b]d[e/f][h/i]"
    assert other.result.text == "adeh"
    np.testing.assert_array_equal(seen[1], seen[2])


# -- stops --


def test_stop_strings_end_the_best_path(llm):
    run = llm.parallel("x", stop="de")
    assert (run.text, run.brackets, run.raw) == ("a", "[a/b]", "ab")
    assert (run.finish_reason, run.stop_reason) == ("stop", "de")
    assert run.tokens == list(b"ade")
    assert [member.text for member in run.steps[2].members] == ["e", "f"]
    assert [step.cut for step in run.steps] == [False, True, True]
    assert llm.parallel("x", stop="bd").text == "adeh"  # of the best path only
    assert llm.parallel("x", stop=["zz", "h"]).brackets == "[a/b]d[e/f]"


def test_no_piece_of_a_stop_string_is_streamed(llm):
    stream = llm.parallel("x", stream=True, stop="deX")
    assert [step.brackets for step in stream] == ["[a/b]", "d", "[e/f]", "[h/i]"]
    stream = llm.parallel("x", stream=True, stop="deh")
    assert next(stream).brackets == "[a/b]"
    assert stream.so_far.brackets == "[a/b]"
    assert [step.brackets for step in stream] == ["", "", ""]
    assert stream.result.brackets == "[a/b]"
    stream = llm.parallel("x", stream=True, stop="hX")  # held back to the end, which is an end token
    assert [step.text for step in stream] == ["a", "d", "e", "h"]
    stream = llm.parallel("x", stream=True, stop="eX", max_tokens=3)
    assert [step.text for step in stream] == ["a", "d", "e"]


def test_steps_that_wait():
    held = HeldSteps()
    first, second = ParallelStep(0, 5, [], text="one "), ParallelStep(1, 6, [], text="two")
    assert held.add(first, certain=2) == []
    assert held.add(second, certain=1) == []
    assert len(held) == 2
    assert held.cut() == [first, second]
    assert (first.text, first.cut, second.text, second.cut) == ("one", True, "", True)
    assert len(held) == 0


def test_stop_tokens_and_functions(llm):
    run = llm.parallel("x", stop_tokens=[ord("e")])
    assert (run.brackets, run.finish_reason, run.stop_reason) == ("[a/b]d", "stop", ord("e"))
    assert llm.parallel("x", stop_tokens=[ord("f")]).brackets == "[a/b]de[h/i]"  # dropped, not the best
    seen = []
    run = llm.parallel("x", stop=lambda text: seen.append(text) or text.endswith("e"))
    assert (run.brackets, run.stop_reason) == ("[a/b]d[e/f]", "stop function")
    assert seen == ["a", "ad", "ade"]


def test_callbacks(llm):
    seen = []
    run = llm.parallel("x", callback=lambda step: seen.append(step.brackets) or len(seen) < 2)
    assert seen == ["[a/b]", "d"]
    assert (run.finish_reason, run.stop_reason, run.brackets) == ("stop", "callback", "[a/b]d")

    def fail(step):
        raise RuntimeError(step.brackets)

    with pytest.raises(RuntimeError, match="a/b"):
        llm.parallel("x", callback=fail)
    seen.clear()
    llm.parallel("x", callback=lambda step: seen.append(step.text), stop="hX")
    assert seen == ["a", "d", "e", "h"]


def test_a_callback_that_cancels_or_uses_the_model(llm):
    stream = llm.parallel("x", stream=True, callback=lambda step: stream.cancel())
    assert stream.result.finish_reason == "cancelled"
    tokens = []
    run = llm.parallel("x", callback=lambda step: tokens.append(llm.sequence("yx").step(temperature=0).text))
    assert (run.text, tokens) == ("adeh", ["a"] * 4)


# -- the end from outside --


def test_timeouts(endless):
    begun = time.monotonic()
    run = endless.parallel("x", timeout=0.5)
    assert time.monotonic() - begun >= 0.5
    assert run.finish_reason == "timeout"
    assert run.steps
    assert run.brackets == "[a/b]" * len(run.steps)
    assert endless.cache.stats().held == 0
    waiting = mock_llm(forever, limits=Limits(max_running=1))
    first = waiting.parallel("x", stream=True)
    next(first)
    assert waiting.parallel("x", timeout=0.05).steps == []  # it never got to run
    first.cancel()


def test_cancelling(endless):
    stream = endless.parallel("x", stream=True, mode="isolated")
    next(stream)
    stream.cancel()
    assert endless.cache.stats().held == 0
    assert stream.result.finish_reason == "cancelled"
    assert stream.result.brackets.startswith("[a/b]")
    with endless.parallel("x", stream=True) as stream:
        next(stream)
    assert stream.result.finish_reason == "cancelled"
    stream = endless.parallel("x", stream=True)
    next(stream)
    del stream
    gc.collect()
    assert endless.generate("y", max_tokens=1, temperature=0).text == "a"  # a step tidies up
    assert endless.cache.stats().held == 0


def test_an_interrupted_pass_takes_nothing_along(llm, monkeypatch):
    stream = llm.parallel("x", stream=True, delay=0)
    next(stream)
    forward = llm.backend.forward

    def interrupted(batch):
        raise KeyboardInterrupt

    monkeypatch.setattr(llm.backend, "forward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.engine.step()
    monkeypatch.setattr(llm.backend, "forward", forward)
    llm.cells.check()
    assert stream.result.brackets == "[a/b]d[e/f][h/i]"


@pytest.mark.parametrize("method", ["look", "give", "drop_lanes"])
def test_interrupted_books_are_put_in_order(llm, monkeypatch, method):
    stream = llm.parallel("x", stream=True, delay=0)
    next(stream)
    kept = stream.run.decoder.source

    def interrupted(*_):
        delattr(kept, method)
        raise KeyboardInterrupt

    setattr(kept, method, interrupted)
    if method == "drop_lanes":  # the second call, when the set has been computed
        original = type(kept).drop_lanes
        setattr(kept, method, lambda: original(kept) or setattr(kept, method, interrupted))
    with pytest.raises(KeyboardInterrupt):
        llm.engine.step()
    assert stream.result.brackets == "[a/b]d[e/f][h/i]"


def test_priorities():
    with mock_llm(script, limits=Limits(max_running=1)) as llm:
        order = []
        first = llm.parallel("x", stream=True, callback=lambda step: order.append("first"))
        streams = [
            llm.parallel("x", stream=True, priority=priority, callback=lambda s, p=priority: order.append(p))
            for priority in (0, 5)
        ]
        assert [stream.result.text for stream in (first, *streams)] == ["adeh"] * 3
        assert list(dict.fromkeys(order)) == [5, "first", 0]


# -- what has no meaning --


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"top_k": 5}, "llm.parallel and top_k do not go together: max_width"),
        ({"top_p": 0.5}, "threshold says"),
        ({"seed": 1}, "nothing is drawn"),
        ({"logit_bias": {1: 2}}, r"hooks=\[stretto.hooks.Bias"),
        ({"repetition_penalty": 1.1}, "NoRepeat"),
        ({"loop": "fused"}, "sets are chosen in Python"),
        ({"overflow": "shift"}, "ends at the end of the context"),
        ({"n": 2}, "list of prompts"),
        ({"beams": 2}, "max_width"),
        ({"draft": "lookup"}, "leave it out"),
        ({"logprobs": 1}, "every member has its probability"),
        ({"stop": [3]}, "stop must hold strings or functions, not 3"),
        ({"stop_tokens": [999]}, "stop_tokens"),
        ({"hooks": [3]}, "hooks must hold functions"),
        ({"callback": 3}, "callback must be a function"),
        ({"timeout": 0}, "timeout"),
        ({"priority": "high"}, "priority"),
        ({"ignore_eos": 1}, "ignore_eos"),
    ],
)
def test_what_is_refused(llm, options, words):
    with pytest.raises(InvalidRequest, match=words):
        llm.parallel("x", **options)


def test_every_option_of_generate_is_taken_or_refused_with_a_remedy():
    known = set(Keywords.__annotations__) | set(SAMPLING_NAMES) | {field.name for field in fields(Branching)}
    refused = {refusal.second for refusal in REFUSALS if refusal.first == PARALLEL}
    assert known == refused | (known & set(ParallelOptions.__annotations__))
    assert not refused & set(ParallelOptions.__annotations__)


# -- asyncio --


def test_async_results_and_streams(llm):
    async def main():
        assert (await llm.aparallel("x")).brackets == "[a/b]d[e/f][h/i]"
        assert [run.text for run in await llm.aparallel(["x", "yx"])] == ["adeh", "adeh"]
        stream = llm.aparallel("x", stream=True)
        assert [step.brackets async for step in stream] == ["[a/b]", "d", "[e/f]", "[h/i]"]
        assert (await stream.result()).finish_reason == "stop"
        with llm.sequence("x") as seq:
            assert (await llm.aparallel(seq)).text == "adeh"
        runs = await asyncio.gather(
            *(llm.aparallel("x") for _ in range(8)), llm.agenerate("x", temperature=0)
        )
        assert [run.text for run in runs] == ["adeh"] * 9
        llm.backend.batches.clear()
        assert [run.text for run in await llm.aparallel(["x"] * 4)] == ["adeh"] * 4
        assert [len(tokens) for tokens in llm.backend.batches] == [4, 8, 4, 8, 8]

    asyncio.run(main())


def test_leaving_and_cancelling_async_runs(endless):
    async def main():
        async for step in endless.aparallel("x", stream=True):
            assert step.brackets == "[a/b]"
            break
        gc.collect()
        assert await asyncio.to_thread(freed, endless)
        async with endless.aparallel("x", stream=True) as stream:
            await anext(stream)
        assert (await stream.result()).finish_reason == "cancelled"
        for what in (endless.aparallel("x"), endless.aparallel(["x", "y"])):
            task = asyncio.ensure_future(what)
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await asyncio.to_thread(freed, endless)
        assert (await endless.aparallel("x", timeout=0.05)).finish_reason == "timeout"

    asyncio.run(main())


def test_wrong_options_and_a_full_queue_async():
    async def main():
        with mock_llm(forever, limits=Limits(max_running=1, max_queue=0)) as llm:
            with pytest.raises(InvalidRequest, match="threshold"):
                await llm.aparallel("x", threshold=2)
            with pytest.raises(InvalidRequest, match="one run"):
                llm.aparallel(["x"], stream=True)
            stream = llm.aparallel("x", stream=True)
            await anext(stream)
            with pytest.raises(QueueFull):
                await llm.aparallel("x")
            await stream.aclose()

    asyncio.run(main())
