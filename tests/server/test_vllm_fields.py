"""The fields that vLLM adds to OpenAI's bodies."""

import json

import httpx
import pytest

from serving import HELLO, mock, visiting
from stretto.testing import END, byte_tokenizer, mock_llm

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
TEXT = {"prompt": "Say it: ", "temperature": 0, "max_tokens": 100}
PATHS = [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)]
END_ID = byte_tokenizer().specials[END]
OPEN = {"type": "object", "properties": {"n": {"enum": [7, 8]}}, "required": ["n"]}
SCHEMA = {**OPEN, "additionalProperties": False}


def text_of(answer):
    choice = answer["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"]


def posted(web, path, asked, **more):
    response = web.post(path, json={**asked, **more})
    assert response.status_code == 200, response.text
    return response.json()


def refused(web, path, asked, **more):
    response = web.post(path, json={**asked, **more})
    assert response.status_code == 400, response.text
    return response.json()["error"]["param"]


# -- stops --


@pytest.mark.parametrize(("path", "asked"), PATHS)
def test_stops_may_be_part_of_the_text(web, path, asked):
    assert text_of(posted(web, path, asked, stop="wor")) == "Hello "
    assert text_of(posted(web, path, asked, stop="wor", include_stop_str_in_output=True)) == "Hello wor"
    ids = {"stop_token_ids": [ord("w")]}
    answer = posted(web, path, asked, **ids)
    assert (text_of(answer), answer["choices"][0]["stop_reason"]) == ("Hello ", ord("w"))
    assert text_of(posted(web, path, asked, **ids, include_stop_str_in_output=True)) == "Hello w"


@pytest.mark.parametrize(("path", "asked"), PATHS)
def test_a_streamed_text_has_its_stop_too(web, path, asked):
    asked = {**asked, "stream": True, "stop": "wor", "include_stop_str_in_output": True}
    events = [line.removeprefix("data: ") for line in web.post(path, json=asked).text.split("\n\n")[:-2]]
    choices = [json.loads(one)["choices"][0] for one in events]
    texts = [one["text"] if "text" in one else one["delta"].get("content") or "" for one in choices]
    assert "".join(texts) == "Hello wor"


@pytest.mark.parametrize(("path", "asked"), PATHS)
def test_min_tokens(web, path, asked):
    assert posted(web, path, asked)["usage"]["completion_tokens"] == len(HELLO)
    answer = posted(web, path, asked, min_tokens=len(HELLO) + 3)
    assert answer["usage"]["completion_tokens"] >= len(HELLO) + 3
    assert refused(web, path, asked, min_tokens=9, max_tokens=3) == "min_tokens"


@pytest.mark.parametrize(("path", "asked"), PATHS)
def test_all_tokens_are_asked_for_by_minus_one(web, path, asked):
    asked = {**asked, "temperature": 5.0, "seed": 7, "max_tokens": 8, "min_p": 0, "top_p": 1}
    texts = [text_of(posted(web, path, asked, top_k=k)) for k in (-1, 0, 1)]
    assert texts[0] == texts[1] != texts[2]
    assert refused(web, path, asked, top_k=-2) == "top_k"


def test_special_tokens_are_shown_if_they_are_not_skipped():
    script = [65, END_ID, 66, END_ID]
    with visiting(lambda entry: mock_llm(script)) as (_, web):
        asked = {**TEXT, "ignore_eos": True, "max_tokens": 3}
        assert text_of(posted(web, "/v1/completions", asked)) == "AB"
        assert text_of(posted(web, "/v1/completions", asked, skip_special_tokens=True)) == "AB"
        assert text_of(posted(web, "/v1/completions", asked, skip_special_tokens=False)) == f"A{END}B"


def test_special_tokens_and_tools_do_not_go_together(web):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    found = refused(web, "/v1/chat/completions", CHAT, tools=tools, skip_special_tokens=False)
    assert found == "skip_special_tokens"


# -- prompts --


def test_a_long_prompt_is_cut_on_the_side_that_is_asked_for(web):
    asked = {**TEXT, "prompt": ["abcdef", "xy"], "max_tokens": 2, "return_token_ids": True}

    def prompts(**more):
        choices = posted(web, "/v1/completions", asked, **more)["choices"]
        return [bytes(each["prompt_token_ids"]) for each in choices]

    assert prompts() == [b"abcdef", b"xy"]
    assert prompts(truncate_prompt_tokens=4) == [b"cdef", b"xy"]
    assert prompts(truncate_prompt_tokens=4, truncation_side="right") == [b"abcd", b"xy"]
    assert prompts(truncate_prompt_tokens=-1) == [b"abcdef", b"xy"]
    assert refused(web, "/v1/completions", asked, truncate_prompt_tokens=0) == "truncate_prompt_tokens"


def test_a_prompt_longer_than_the_context_is_cut_to_leave_room():
    with visiting(mock("yes", context_length=32)) as (_, web):
        asked = {**TEXT, "prompt": "a" * 40 + "z" * 10, "max_tokens": 5}
        assert web.post("/v1/completions", json=asked).status_code == 400
        usage = posted(web, "/v1/completions", asked, truncate_prompt_tokens=-1)["usage"]
        assert usage["prompt_tokens"] == 27
        many = {**CHAT, "messages": [{"role": "user", "content": "a" * 50}], "max_completion_tokens": 5}
        usage = posted(web, "/v1/chat/completions", many, truncate_prompt_tokens=-1)["usage"]
        assert usage["prompt_tokens"] == 27


def test_texts_without_special_tokens_before_them():
    def opener(entry):
        llm = mock_llm("yes")
        llm.tokenizer.add_bos, llm.tokenizer.prefix_ids = True, (END_ID,)
        return llm

    with visiting(opener) as (_, web):
        asked = {**TEXT, "prompt": "ab", "return_token_ids": True}
        (choice,) = posted(web, "/v1/completions", asked)["choices"]
        (without,) = posted(web, "/v1/completions", asked, add_special_tokens=False)["choices"]
        assert choice["prompt_token_ids"] == [END_ID, 97, 98]
        assert without["prompt_token_ids"] == [97, 98]
        assert refused(web, "/v1/chat/completions", CHAT, add_special_tokens=True) == "add_special_tokens"


# -- log-probabilities --


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_whose_log_probabilities_are_asked_for(web, stream):
    wanted = [ord(one) for one in "zHa"]
    asked = {**CHAT, "logprobs": True, "top_logprobs": 1, "logprob_token_ids": wanted, "max_tokens": 2}
    if stream:
        text = web.post("/v1/chat/completions", json={**asked, "stream": True}).text
        chunks = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n")[:-2]]
        found = [
            one for chunk in chunks for one in (chunk["choices"][0]["logprobs"] or {}).get("content", ())
        ]
    else:
        found = posted(web, "/v1/chat/completions", asked)["choices"][0]["logprobs"]["content"]
    assert [one["token"] for one in found[0]["top_logprobs"]] == ["z", "H", "a"]
    assert found[0]["top_logprobs"][1]["logprob"] == pytest.approx(found[0]["logprob"], abs=1e-6)
    assert found[0]["top_logprobs"][0]["logprob"] < found[0]["logprob"]
    assert found[1]["token"] == "e"
    assert [one["token"] for one in found[1]["top_logprobs"]] == ["z", "H", "a", "e"]  # with the sampled one


def test_named_log_probabilities_of_texts(web):
    answer = posted(web, "/v1/completions", TEXT, logprobs=1, logprob_token_ids=[ord("z"), ord("q")])
    (first, *_) = answer["choices"][0]["logprobs"]["top_logprobs"]
    assert set(first) == {"z", "q", "H"}
    assert refused(web, "/v1/completions", TEXT, logprob_token_ids=[1]) == "logprob_token_ids"
    assert refused(web, "/v1/chat/completions", CHAT, logprob_token_ids=[1]) == "logprob_token_ids"
    far = {"logprobs": True, "logprob_token_ids": [1 << 20]}
    assert web.post("/v1/chat/completions", json={**CHAT, **far}).status_code == 400


def test_an_answer_begins_with_the_message_that_it_continues(web):
    begun = [*CHAT["messages"], {"role": "assistant", "content": "Well: "}]
    asked = {**CHAT, "messages": begun, "continue_final_message": True, "add_generation_prompt": False}
    assert text_of(posted(web, "/v1/chat/completions", asked)) == HELLO
    assert text_of(posted(web, "/v1/chat/completions", asked, echo=True)) == f"Well: {HELLO}"
    assert text_of(posted(web, "/v1/chat/completions", CHAT, echo=True)) == HELLO
    both = posted(web, "/v1/chat/completions", asked, echo=True, n=2)["choices"]
    assert [one["message"]["content"] for one in both] == [f"Well: {HELLO}"] * 2
    text = web.post("/v1/chat/completions", json={**asked, "echo": True, "stream": True}).text
    chunks = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n")[:-2]]
    assert "".join(one["choices"][0]["delta"].get("content") or "" for one in chunks) == f"Well: {HELLO}"


def test_prompts_have_log_probabilities(web):
    asked = {**TEXT, "prompt": ["abc", "de"], "n": 2, "max_tokens": 2}
    choices = posted(web, "/v1/completions", asked, prompt_logprobs=2)["choices"]
    found = [choice["prompt_logprobs"] for choice in choices]
    assert [len(one) for one in found] == [3, 3, 2, 2]
    assert [one[0] for one in found] == [None] * 4
    entries = found[0][1]
    assert next(iter(entries)) == str(ord("b"))
    assert 2 <= len(entries) <= 3
    assert {entry["rank"] for entry in entries.values()} >= {1, 2}
    assert all(entry["logprob"] <= 0 for entry in entries.values())
    assert entries["98"]["decoded_token"] == "b"
    assert "prompt_logprobs" not in posted(web, "/v1/completions", asked)["choices"][0]
    alone = posted(web, "/v1/completions", asked, prompt_logprobs=0)["choices"][0]["prompt_logprobs"]
    assert [list(one) for one in alone[1:]] == [["98"], ["99"]]
    assert alone[1]["98"]["logprob"] == entries["98"]["logprob"]


def test_they_are_the_same_as_with_echo(web):
    asked = {**TEXT, "prompt": "abc", "echo": True, "logprobs": 1, "max_tokens": 2}
    choice = posted(web, "/v1/completions", asked, prompt_logprobs=1)["choices"][0]
    vllm = [None, *(one[str(ord(c))]["logprob"] for one, c in zip(choice["prompt_logprobs"][1:], "bc"))]  # noqa: B905
    assert choice["logprobs"]["token_logprobs"][:3] == vllm
    plain = {**asked, "echo": False}
    assert (
        len(posted(web, "/v1/completions", plain, prompt_logprobs=1)["choices"][0]["logprobs"]["tokens"]) == 2
    )


def test_a_conversation_has_them_beside_its_choices(web):
    answer = posted(web, "/v1/chat/completions", CHAT, prompt_logprobs=1, return_token_ids=True)
    assert len(answer["prompt_logprobs"]) == len(answer["prompt_token_ids"]) > 2
    assert [int(next(iter(one))) for one in answer["prompt_logprobs"][1:]] == answer["prompt_token_ids"][1:]
    assert answer["choices"][0]["logprobs"] is None


@pytest.mark.parametrize(("path", "asked"), PATHS)
def test_they_are_not_streamed(web, path, asked):
    assert refused(web, path, asked, prompt_logprobs=1, stream=True) == "prompt_logprobs"
    assert refused(web, path, asked, prompt_logprobs=-1) == "prompt_logprobs"


@pytest.mark.parametrize(("path", "asked"), PATHS)
def test_every_event_has_the_numbers_of_tokens_so_far(web, path, asked):
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = web.post(path, json={**asked, "stream": True, "stream_options": options, "max_tokens": 4}).text
    *chunks, last = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: {")]
    counts = [chunk["usage"] for chunk in chunks]
    opening = [0] if "messages" in asked else []  # the event of the role
    assert [one["completion_tokens"] for one in counts] == [*opening, 1, 2, 3, 4, 4]
    assert {one["prompt_tokens"] for one in counts} == {last["usage"]["prompt_tokens"]}
    assert all(one["total_tokens"] == one["prompt_tokens"] + one["completion_tokens"] for one in counts)
    assert counts[-1]["total_tokens"] == last["usage"]["total_tokens"]


def test_a_streamed_conversation_begins_with_the_ids_of_its_prompt(web):
    asked = {**CHAT, "stream": True, "return_token_ids": True}
    first = web.post("/v1/chat/completions", json=asked).text.split("\n\n")[0]
    first = json.loads(first.removeprefix("data: "))
    assert first["prompt_token_ids"] == first["choices"][0]["prompt_token_ids"]


def test_tokens_as_ids(web):
    more = {"return_tokens_as_token_ids": True, "max_tokens": 2}
    found = posted(web, "/v1/completions", TEXT, logprobs=1, **more)["choices"][0]["logprobs"]
    ids = [f"token_id:{ord(letter)}" for letter in HELLO[:2]]
    assert found["tokens"] == ids
    assert [next(iter(one)) for one in found["top_logprobs"]] == ids
    found = posted(web, "/v1/chat/completions", CHAT, logprobs=True, **more)["choices"][0]["logprobs"]
    assert [one["token"] for one in found["content"]] == ids
    assert [bytes(one["bytes"]) for one in found["content"]] == [b"H", b"e"]


# -- structured outputs --


@pytest.mark.parametrize(("path", "asked"), PATHS)
@pytest.mark.parametrize(
    ("name", "value", "written"),
    [
        ("json", SCHEMA, '{"n": 7}'),
        ("json", json.dumps(SCHEMA), '{"n": 7}'),
        ("regex", "[xyz]{3}", "xxx"),
        ("choice", ["red", "green"], "green"),
        ("grammar", 'root ::= "a" "b"', "ab"),
        ("grammar", 'start: "c" "d"', "cd"),
    ],
)
def test_structured_outputs(path, asked, name, value, written, structured):
    asked = {**asked, "max_tokens": 20}
    assert text_of(posted(structured, path, asked, structured_outputs={name: value})) == written
    assert text_of(posted(structured, path, asked, **{f"guided_{name}": value})) == written


@pytest.fixture(scope="module")
def structured():
    """A model that wants the lowest byte."""
    with visiting(mock("")) as (_, web):
        yield web


def test_the_form_of_json(structured):
    asked = {**TEXT, "max_tokens": 20}

    def written(**form):
        return text_of(posted(structured, "/v1/completions", asked, structured_outputs=form))

    assert written(json=SCHEMA, disable_any_whitespace=True) == '{"n":7}'
    assert written(json=OPEN, disable_additional_properties=True) == '{"n": 7}'
    assert written(json_object=True, disable_any_whitespace=True).startswith("{")
    assert written(json=SCHEMA, whitespace_pattern="[ ]{2}") == '{  "n"  :  7  }'


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_regex"),
        ({"guided_regex": "a", "grammar": "root ::= [a]"}, "guided_regex"),
        ({"guided_json": {"type": "nothing"}}, "guided_json"),
        ({"guided_regex": "a", "guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(web, fields, param):
    assert refused(web, "/v1/completions", TEXT, **fields) == param


def test_one_form_besides_response_format(web: httpx.Client):
    fields = {"guided_regex": "a", "response_format": {"type": "json_object"}}
    assert refused(web, "/v1/chat/completions", CHAT, **fields) == "guided_regex"


# -- tokens --


@pytest.mark.parametrize(("path", "asked"), PATHS)
def test_only_some_tokens_may_be_sampled(web, path, asked):
    asked = {**asked, "max_tokens": 4, "ignore_eos": True}
    assert set(text_of(posted(web, path, asked, allowed_token_ids=[ord("l"), ord("o")]))) <= set("lo")
    assert text_of(posted(web, path, asked, allowed_token_ids=[ord("x")])) == "xxxx"
    assert refused(web, path, asked, allowed_token_ids=[]) == "allowed_token_ids"
    for stream in (False, True):
        fields = {"allowed_token_ids": [ord("x"), 10**6], "stream": stream}
        assert refused(web, path, asked, **fields) == "allowed_token_ids"


def test_the_tokenizer_is_described(web):
    found = web.get("/tokenizer_info").json()
    tokenizer = byte_tokenizer()
    assert (found["eos_token"], found["bos_token"]) == (END, None)
    assert found["added_tokens_decoder"][str(END_ID)] == {"content": END, "special": True}
    assert END in found["additional_special_tokens"]
    assert (found["vocab_size"], found["tokenizer_class"]) == (tokenizer.n_vocab, type(tokenizer).__name__)
    assert found["model_max_length"] == web.post("/tokenize", json={"prompt": "a"}).json()["max_model_len"]
    assert web.get("/tokenizer_info", params={"model": "none"}).status_code == 404
