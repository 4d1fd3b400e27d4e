"""Generation end to end on a scripted backend: what ends it, what comes out, what is given back."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from stretto import Grammar, Options
from stretto.engine import output, request
from stretto.errors import CacheFull, ContextOverflow, InvalidRequest, Unsupported
from stretto.testing import END, byte_tokenizer, mock_llm

END_ID = byte_tokenizer().specials[END]


def generate(script, prompt="p", **options):
    llm = mock_llm(script)
    result = llm.generate(prompt, **{"temperature": 0, **options})
    assert llm.cache.stats().held == 0  # whatever happened, nothing is kept
    llm.cells.check()
    return result


def endless(seen):
    return ord("x")


# -- what is made --


def test_events_are_made_where_somebody_sees_them(monkeypatch):
    made = []
    token = output.Token

    def counted(*args, **options):
        made.append(token(*args, **options))
        return made[-1]

    monkeypatch.setattr(output, "Token", counted)
    plain = generate(endless, max_tokens=4)
    assert (plain.text, made) == ("xxxx", [])
    assert [each.text for each in mock_llm(endless).stream("p", max_tokens=4)] == ["x"] * 4
    assert len(made) == 4
    seen = []
    assert generate(endless, max_tokens=4, callback=seen.append).text == "".join(each.text for each in seen)
    assert len(generate(endless, max_tokens=4, logprobs=1).logprobs) == 4


# -- what ends a generation --


def test_an_end_token_ends_it_and_gives_no_text():
    result = generate("Hello")
    assert (result.text, result.finish_reason, result.stop_reason) == ("Hello", "stop", END_ID)
    assert result.tokens == list(b"Hello")
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (1, 5)


def test_ignore_eos_goes_on():
    result = generate([65, END_ID, 66, END_ID], ignore_eos=True, max_tokens=3)
    assert (result.text, result.tokens, result.finish_reason) == ("AB", [65, END_ID, 66], "length")


def test_min_tokens_excludes_end_tokens_until_there_are_so_many():
    script = [65, END_ID, 66, END_ID]

    def wants_end(seen):
        return script[len(seen) - 1]

    assert generate(wants_end).tokens == [65]
    result = generate(wants_end, min_tokens=3)
    assert result.tokens[0] == 65
    assert END_ID not in result.tokens
    assert (len(result.tokens), result.finish_reason) == (3, "stop")


def test_stop_strings_end_nothing_before_min_tokens():
    assert generate("abcabcabc", stop="bc").text == "a"
    result = generate("abcabcabc", stop="bc", min_tokens=4)
    assert (result.text, result.stop_reason) == ("abca", "bc")
    result = generate("abcabcabc", stop="bc", min_tokens=5)  # one that began before may end behind
    assert (result.text, result.stop_reason) == ("abca", "bc")
    assert generate("abcabcabc", stop="bc", min_tokens=7).text == "abcabca"


@pytest.mark.parametrize("options", [{"max_tokens": 2}, {"loop": "fused"}, {"beams": 2}])
def test_min_tokens_is_checked(options):
    options = {"temperature": None, **options} if "beams" in options else options
    with pytest.raises(InvalidRequest, match="min_tokens"):
        mock_llm("Hi").generate("p", min_tokens=3, **{k: v for k, v in options.items() if v is not None})


def test_the_stop_may_be_part_of_the_text():
    result = generate("Hello world", stop="lo w", include_stop=True)
    assert (result.text, result.stop_reason) == ("Hello w", "lo w")
    result = generate("Hello world", stop_tokens=[ord("o")], stop="ozz", include_stop=True)
    assert (result.text, result.tokens, result.stop_reason) == ("Hello", list(b"Hell"), ord("o"))
    assert generate("Hello", include_stop=True).text == "Hello"  # an end token without text


def test_special_tokens_are_part_of_the_text_if_wanted():
    assert generate([65, END_ID, 66], ignore_eos=True, max_tokens=3, special=True).text == f"A{END}B"
    assert generate([65, 66, END_ID], special=True).text == "AB"
    assert generate([65, 66, END_ID], special=True, include_stop=True).text == f"AB{END}"


def test_max_tokens():
    result = generate("Hello", max_tokens=3)
    assert (result.text, result.finish_reason, result.stop_reason) == ("Hel", "length", None)


def test_to_the_end_of_the_context():
    llm = mock_llm(endless, context_length=20)
    result = llm.generate("12345", temperature=0)
    assert result.finish_reason == "length"
    assert len(result.tokens) == 16  # the last one needs no cell: nothing comes after it
    assert llm.cache.stats().held == 0


@pytest.mark.parametrize("stop", ["lo w", ["zzz", "lo w"], ("lo w", "world")])
def test_a_stop_string_across_tokens_is_never_emitted(stop):
    result = generate("Hello world", stop=stop)
    assert (result.text, result.finish_reason, result.stop_reason) == ("Hel", "stop", "lo w")
    assert result.tokens == list(b"Hello w")


def test_text_held_back_for_a_stop_string_comes_in_the_end():
    assert generate("Hello", stop="lo!").text == "Hello"
    assert generate("Hello", stop="lo!", max_tokens=4).text == "Hell"


def test_a_stop_function_gets_the_text_so_far():
    seen = []

    def stop(text):
        seen.append(text)
        return text.endswith("ll")

    result = generate("Hello", stop=stop)
    assert (result.text, result.stop_reason) == ("Hell", "stop function")
    assert seen == ["H", "He", "Hel", "Hell"]


def test_stop_tokens():
    result = generate("Hello", stop_tokens=[ord("l")])
    assert (result.text, result.finish_reason, result.stop_reason) == ("He", "stop", ord("l"))


def test_options_of_several_prompts_are_read_once():
    results = generate("Hello", ["one", "two"], stop_tokens=iter([ord("l")]))
    assert [result.text for result in results] == ["He", "He"]
    with pytest.raises(InvalidRequest, match="max_tokens"):
        generate("Hello", [], max_tokens=0)


def test_timeout_returns_what_is_there(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(request, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def slow(seen):
        clock[0] += 0.1
        return ord("x")

    result = generate(slow, timeout=0.75)
    assert result.finish_reason == "timeout"
    assert 1 <= len(result.tokens) <= 8
    assert result.text == "x" * len(result.tokens)


def test_a_callback_that_returns_false_stops():
    tokens = []

    def callback(token):
        tokens.append(token)
        return len(tokens) < 3

    result = generate("Hello", callback=callback)
    assert (result.text, result.finish_reason, result.stop_reason) == ("Hel", "stop", "callback")
    assert [token.text for token in tokens] == ["H", "e", "l"]


def test_a_callback_that_returns_nothing_goes_on():
    assert generate("Hello", callback=lambda token: None).text == "Hello"


def test_an_exception_in_a_callback_propagates_and_frees():
    llm = mock_llm("Hello")

    def callback(token):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        llm.generate("p", callback=callback)
    assert llm.cache.stats().held == 0
    assert llm.generate("p", temperature=0).text == "Hello"


def test_ctrl_c_in_the_middle_frees():
    llm = mock_llm(endless)

    def callback(token):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b"], callback=callback)
    assert llm.cache.stats().held == 0
    with pytest.raises(KeyboardInterrupt):
        list(llm.stream("a", callback=callback))
    assert llm.cache.stats().held == 0


def test_a_callback_may_compute_sequences():
    llm = mock_llm("abc")
    inner = []

    def callback(token):
        with llm.sequence("q") as seq:
            inner.append("".join(seq.step(temperature=0).text for _ in range(3)))

    outer = llm.generate("p", temperature=0, callback=callback)
    assert outer.text == "abc"
    assert inner == ["abc"] * 4


# -- the cells run out --


def test_a_prompt_longer_than_the_context():
    llm = mock_llm("x", context_length=8)
    with pytest.raises(ContextOverflow, match="the prompt has 9 tokens and the context 8"):
        llm.generate("123456789")
    with pytest.raises(ContextOverflow, match="9 tokens at position 0 do not fit into a context of 8"):
        llm.sequence("123456789")


def test_cells_limit_the_context():
    llm = mock_llm(endless, cells=10, context_length=100)
    assert llm.context_length == 10
    assert llm.generate("123", temperature=0).finish_reason == "length"


def test_cells_held_by_others():
    llm = mock_llm(endless, cells=16)
    held = llm.sequence("x" * 12)
    assert held.logits.shape == (258,)
    result = llm.generate("12", temperature=0)
    assert (result.finish_reason, result.stop_reason, len(result.tokens)) == ("length", "cache full", 3)
    with pytest.raises(CacheFull, match="3 cells are needed and 2 of 16 are free; 14 are held by 2 seq"):
        llm.generate("12345")
    held.close()
    assert llm.cache.stats().held == 0
    assert llm.generate("12345", max_tokens=2, temperature=0).text == "xx"


def test_many_prompts_in_few_cells_all_finish_as_if_alone():
    def script(seen):
        return END_ID if len(seen) >= 12 else 97 + (sum(seen) % 26)

    prompts = [f"prompt{i}" for i in range(6)]
    alone = [mock_llm(script).generate(prompt, temperature=0) for prompt in prompts]
    llm = mock_llm(script, cells=30)
    together = llm.generate(prompts, temperature=0)
    assert [r.text for r in together] == [r.text for r in alone]
    assert llm.cache.stats().held == 0


# -- batches --


def test_a_list_runs_in_one_batch_each_with_its_own_end():
    def script(seen):
        text = bytes(seen).decode()
        return END_ID if len(text) >= 2 * text.index(":") + 1 else ord(text[len(text) - text.index(":") - 1])

    llm = mock_llm(script)
    results = llm.generate(["a:", "bcd:", "ef:"], temperature=0)
    assert [result.text for result in results] == ["a", "bcd", "ef"]
    assert len(llm.backend.batches) == 4  # the longest decides, not the sum
    assert llm.backend.batches[0] == list(b"a:bcd:ef:")
    assert [len(batch) for batch in llm.backend.batches[1:]] == [3, 2, 1]


def test_a_list_of_options_is_refused_with_the_way_to_give_each_prompt_its_own():
    llm = mock_llm(endless)
    with pytest.raises(
        InvalidRequest, match=r"temperature must be one value.*\[llm\.stream\(prompt"
    ) as raised:
        llm.generate(["a", "b"], temperature=[0, 1])
    assert (raised.value.param, raised.value.value) == ("temperature", [0, 1])
    with pytest.raises(InvalidRequest, match=r"max_tokens must be one value.*max_tokens=…\) for …\]"):
        llm.generate(["a", "b"], max_tokens=(1, 2))
    several = [Options(max_tokens=1), Options(max_tokens=2)]
    with pytest.raises(
        InvalidRequest, match=r"options must be one stretto.Options.*\[llm\.stream\("
    ) as raised:
        llm.generate(["a", "b"], several)
    assert raised.value.param == "options"
    streams = [llm.stream("p", options) for options in several]
    assert [stream.result.text for stream in streams] == ["x", "xx"]


def test_a_list_of_one_is_a_list():
    assert [r.text for r in mock_llm("Hi").generate(["p"], temperature=0)] == ["Hi"]
    assert [r.text for r in mock_llm("Hi").generate([[1, 2]], temperature=0)] == ["Hi"]
    assert mock_llm("Hi").generate([1, 2], temperature=0).text == "Hi"


def test_a_seed_gives_the_same_alone_and_in_a_batch():
    def flat(seen):
        return np.zeros(258, np.float32)

    options = {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "max_tokens": 12,
        "ignore_eos": True,
    }
    alone = mock_llm(flat).generate("abc", seed=5, **options)
    again, other = mock_llm(flat).generate(["abc", "abcdef"], seed=5, **options)
    assert alone.tokens == again.tokens == other.tokens  # one seed, one stream, whatever the neighbours
    assert alone.seed == 5
    assert mock_llm(flat).generate("abc", seed=6, **options).tokens != alone.tokens
    fresh = mock_llm(flat).generate("abc", **options)
    assert mock_llm(flat).generate("abc", seed=fresh.seed, **options).tokens == fresh.tokens


# -- streams --


def test_a_stream_gives_tokens_then_a_result():
    llm = mock_llm("Héllo")
    stream = llm.stream("p", temperature=0)
    tokens = list(stream)
    assert "".join(token.text for token in tokens) == "Héllo"
    assert [token.text for token in tokens[:4]] == ["H", "", "é", "l"]  # never half a character
    assert [token.finish_reason for token in tokens] == [None] * 6 + ["stop"]
    assert tokens[-1].id == END_ID
    assert stream.result.text == "Héllo"
    assert list(stream) == []


def test_result_runs_the_rest():
    stream = mock_llm("Hello").stream("p", temperature=0)
    assert next(stream).text == "H"
    assert stream.text == "H"
    assert stream.result.text == "Hello"


def test_cancel_frees_at_once_and_keeps_the_text():
    llm = mock_llm(endless)
    stream = llm.stream("p", temperature=0)
    next(stream), next(stream)
    assert llm.cache.stats().held > 0
    stream.cancel()
    assert llm.cache.stats().held == 0
    assert [token.finish_reason for token in stream] == ["cancelled"]
    assert (stream.result.finish_reason, stream.result.text) == ("cancelled", "xx")


def test_a_forgotten_stream_gives_its_cells_back():
    llm = mock_llm(endless)
    stream = llm.stream("p", temperature=0)
    next(stream)
    del stream
    assert llm.cache.stats().held == 0
    with llm.stream("p", temperature=0) as stream:
        next(stream)
    assert llm.cache.stats().held == 0


def test_streams_move_together():
    llm = mock_llm("ab")
    first, second = llm.stream("p", temperature=0), llm.stream("q", temperature=0)
    assert [next(first).text, next(second).text] == ["a", "a"]
    assert len(llm.backend.batches) == 1


def test_threads_share_one_engine():
    llm = mock_llm("Hello world")
    texts = []

    def work():
        texts.append(llm.generate("p", temperature=0).text)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert texts == ["Hello world"] * 8
    assert llm.cache.stats().held == 0


# -- what else comes out --


def test_logprobs():
    def script(seen):
        row = np.full(258, -30.0, np.float32)
        row[[65, 66, 67]] = np.log([0.5, 0.3, 0.2])
        return row

    result = generate(script, max_tokens=2, logprobs=2)
    assert [t.id for t in result.logprobs] == [65, 65]
    first = result.logprobs[0]
    assert first.logprob == pytest.approx(np.log(0.5), abs=1e-5)
    assert [(top.token, round(float(np.exp(top.logprob)), 4)) for top in first.top] == [(65, 0.5), (66, 0.3)]
    assert generate(script, max_tokens=2).logprobs is None


def test_logprobs_after_the_samplers():
    def script(seen):
        row = np.full(258, -30.0, np.float32)
        row[[65, 66, 67]] = np.log([0.5, 0.3, 0.2])
        return row

    def tops(**options):
        result = mock_llm(script).generate("x", max_tokens=1, logprobs=3, sampled_logprobs=True, **options)
        (token,) = result.logprobs
        chances = {top.token: round(float(np.exp(top.logprob)), 4) for top in token.top}
        assert chances[token.id] == pytest.approx(np.exp(token.logprob), abs=1e-4)
        return chances

    assert tops(temperature=1, top_k=2, top_p=1, min_p=0) == {65: 0.625, 66: 0.375}
    assert tops(temperature=1, top_k=0, top_p=0.6, min_p=0) == {65: 0.625, 66: 0.375}
    assert tops(temperature=0.5, top_k=2, top_p=1, min_p=0) == {65: 0.7353, 66: 0.2647}
    assert tops(temperature=1, logit_bias={65: float("-inf")}, top_p=1) == {66: 0.6, 67: 0.4}
    assert tops(temperature=0) == {65: 1.0}


def test_logprobs_of_certain_tokens():
    def script(seen):
        row = np.full(258, -30.0, np.float32)
        row[[65, 66, 67]] = np.log([0.5, 0.3, 0.2])
        return row

    def chances(**options):
        result = mock_llm(script).generate("x", max_tokens=1, logprobs=1, temperature=0, **options)
        return [(one.token, round(float(np.exp(one.logprob)), 4)) for one in result.logprobs[0].top]

    assert chances(logprob_tokens=[67, 9, 66]) == [(67, 0.2), (9, 0.0), (66, 0.3)]
    assert chances(logprob_tokens=[67, 65], sampled_logprobs=True) == [(67, 0.0), (65, 1.0)]
    assert chances(logprob_tokens=[67, 66], grammar=Grammar.regex("B")) == [(67, 0.0), (66, 1.0)]
    for wrong in ({"logprob_tokens": [258], "logprobs": 1}, {"logprob_tokens": [1]}):
        with pytest.raises(InvalidRequest, match="logprob_tokens"):
            mock_llm(script).generate("x", max_tokens=1, **wrong)


def test_timings_and_seed_are_told():
    result = generate("Hello")
    assert result.timings.n_decoded == 4
    assert result.timings.first_token >= 0
    assert result.timings.tokens_per_second > 0
    assert isinstance(result.seed, int)
    assert str(result) == "Hello"


def test_hooks_see_and_change_logits():
    seen = []

    def hook(logits, tokens):
        seen.append(list(tokens))
        logits[ord("e")] = -np.inf
        logits[ord("z")] = 5.0

    result = generate("Hex", hooks=[hook], max_tokens=2)
    assert result.text[:2] == "Hz"
    assert seen == [[ord("p")], [ord("p"), ord("H")]]


def test_a_failing_hook_ends_only_its_request():
    llm = mock_llm("Hello")

    def hook(logits, tokens):
        raise RuntimeError("hook")

    good = llm.stream("p", temperature=0)
    bad = llm.stream("q", hooks=[hook])
    with pytest.raises(RuntimeError, match="hook"):
        list(bad)
    assert good.result.text == "Hello"
    assert llm.cache.stats().held == 0


def test_logits_that_are_nan():
    with pytest.raises(InvalidRequest, match="NaN"):
        generate(lambda seen: np.full(258, np.nan))


# -- chat --


def test_chat_uses_the_template():
    llm = mock_llm("Hi")
    messages = [{"role": "user", "content": "<|end|>"}]
    ids = llm.chat_prompt(messages)
    assert ids == [256, *b"user\n", *b"<|end|>", 257, 256, *b"assistant\n"]
    assert llm.chat(messages, temperature=0).text == "Hi"
    assert "".join(t.text for t in llm.chat(messages, stream=True, temperature=0)) == "Hi"
    with pytest.raises(InvalidRequest):
        llm.chat([])
    assert llm.chat("<|end|>", temperature=0).text == "Hi"  # one message of the user's


def test_chat_without_a_template():
    llm = mock_llm("Hi")
    llm.template = None
    with pytest.raises(Unsupported, match=r"no chat template; llm\.generate continues"):
        llm.chat([{"role": "user", "content": "x"}])


# -- bad input --


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temprature": 1}, "no parameter 'temprature'; did you mean 'temperature'"),
        ({"zzzzzz": 1}, "no parameter 'zzzzzz'; there are temperature"),
        ({"max_tokens": 0}, "max_tokens must be an integer from 1"),
        ({"max_tokens": -3}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"temperature": float("nan")}, "temperature"),
        ({"max_tokens": -1}, "leave max_tokens out to generate to the end of the context"),
        ({"seed": -1}, "leave seed out for a fresh one"),
        ({"top_k": -1}, "top_k=0 samples among all tokens"),
        ({"stop": None}, "leave stop out for the default"),
        ({"temperature": None}, "leave temperature out for the default"),
        ({"seed": 1.0}, "seed"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": float("inf")}, "timeout"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"stop": [""]}, "a stop string is empty; leave it out"),
        ({"stop": ""}, "a stop string is empty; leave it out"),
        ({"stop": 5}, "stop must be a list"),
        ({"stop": ["a"] * 65}, "stop has 65 entries"),
        ({"stop": ["a" * 4097] * 2}, "stop has 8,194 characters in all"),
        ({"stop_tokens": [258]}, "stop_tokens must be an integer from 0 to 257, not 258"),
        ({"stop_tokens": 5}, "stop_tokens must be a list"),
        ({"stop_tokens": ["a"]}, "stop_tokens"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"hooks": [3]}, "hooks must hold functions, not 3"),
        ({"callback": 3}, "callback must be a function, not 3"),
        ({"loop": "fast"}, "loop must be"),
        ({"logit_bias": {258: 1.0}}, "logit_bias"),
    ],
)
def test_bad_options_name_the_parameter(options, message):
    with pytest.raises(InvalidRequest, match=message):
        generate("Hello", **options)


def test_what_is_not_supported_says_so():
    with pytest.raises(Unsupported):
        generate("Hello", loop="fused")


@pytest.mark.parametrize(
    "prompt", ["", None, 5, [258], [-1], [1.5], [True], ["a", 3], ["a", ""], b"bytes", {"a": 1}]
)
def test_bad_prompts(prompt):
    with pytest.raises(InvalidRequest):
        generate("Hello", prompt)


def test_parts_of_a_prompt():
    llm = mock_llm("Hello")
    assert llm.sequence(("ab", "c")).tokens == llm.sequence("abc").tokens
    with pytest.raises(InvalidRequest, match="parts are texts, images and sounds, not object"):
        llm.generate(("ab", object()))


def test_a_closed_model():
    llm = mock_llm("Hello")
    sequence = llm.sequence("p")
    stream = llm.stream("p")
    with llm:
        pass
    llm.close()
    for use in (
        lambda: llm.generate("p"),
        lambda: llm.stream("p"),
        lambda: sequence.step(),
        lambda: llm.score("ab"),
    ):
        with pytest.raises(InvalidRequest, match="closed"):
            use()
    assert [token.finish_reason for token in stream] == ["cancelled"]
