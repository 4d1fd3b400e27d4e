"""Calls that max_tokens cuts: in every protocol, whole or streamed, they come once or not at all."""

import json
from itertools import product

import httpx
import pytest

from serving import serving, visiting
from tool_models import OSLO, SAID, make

PARAMETERS = {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}
FUNCTIONS = [{"name": "weather", "description": "x", "parameters": PARAMETERS}, {"name": "now"}]
TOOLS = [{"type": "function", "function": one} for one in FUNCTIONS]
EMPTY = {"type": "object", "properties": {}}
HELLO = [{"role": "user", "content": "Is it cold?"}]
NESTED = '{"name": "weather", "arguments": {"town": {"name": "now", "arguments": {}}, "x": "Oslo"}}'
MODELS = {
    "tags": ("chatml-tools", SAID["chatml-tools"]),
    "list": ("mistral-nemo", SAID["mistral-nemo"]),
    "bare JSON": ("smollm2", "Well. " + OSLO + "}"),
    "nested": ("smollm2", "Well. " + NESTED),
}


def events(answer):
    """The objects of a stream of server-sent events."""
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def openai_body(most):
    return {"messages": HELLO, "tools": TOOLS, "max_tokens": most, "temperature": 0}


def openai_whole(answer):
    (choice,) = answer.json()["choices"]
    functions = [call["function"] for call in choice["message"].get("tool_calls", ())]
    calls = [(one["name"], one["arguments"]) for one in functions]
    return choice["message"]["content"] or "", calls, choice["finish_reason"]


def openai_streamed(answer):
    text, calls, reason = "", {}, None
    for event in events(answer):
        for choice in event["choices"]:
            text += choice["delta"].get("content") or ""
            reason = choice["finish_reason"] or reason
            for call in choice["delta"].get("tool_calls", ()):
                name, arguments = calls.get(call["index"], (call["function"].get("name"), ""))
                calls[call["index"]] = name, arguments + call["function"]["arguments"]
    return text, list(calls.values()), reason


def functions_body(most):
    return {"messages": HELLO, "functions": FUNCTIONS, "max_tokens": most, "temperature": 0}


def functions_whole(answer):
    (choice,) = answer.json()["choices"]
    call = choice["message"].get("function_call")
    calls = [(call["name"], call["arguments"])] if call else []
    return choice["message"]["content"] or "", calls, choice["finish_reason"]


def functions_streamed(answer):
    text, calls, reason = "", [], None
    for event in events(answer):
        (choice,) = event["choices"]
        text += choice["delta"].get("content") or ""
        reason = choice["finish_reason"] or reason
        if call := choice["delta"].get("function_call"):
            calls.append((call["name"], call["arguments"]))
    return text, calls, reason


def anthropic_body(most):
    tools = [{"name": one["name"], "input_schema": one.get("parameters", EMPTY)} for one in FUNCTIONS]
    return {"messages": HELLO, "tools": tools, "max_tokens": most, "temperature": 0}


def anthropic_whole(answer):
    message = answer.json()
    text = "".join(block["text"] for block in message["content"] if block["type"] == "text")
    used = [block for block in message["content"] if block["type"] == "tool_use"]
    return text, [(one["name"], json.dumps(one["input"])) for one in used], message["stop_reason"]


def anthropic_streamed(answer):
    text, calls, reason = "", [], None
    for event in events(answer):
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
            calls.append((event["content_block"]["name"], ""))
        delta = event.get("delta", {})
        text += delta.get("text", "")
        if "partial_json" in delta:
            calls[-1] = calls[-1][0], calls[-1][1] + delta["partial_json"]
        reason = delta.get("stop_reason") or reason
    return text, calls, reason


def ollama_body(most):
    return {"messages": HELLO, "tools": TOOLS, "options": {"num_predict": most, "temperature": 0}}


def ollama_streamed(answer):
    text, calls, reason = "", [], None
    for line in map(json.loads, answer.text.splitlines()):
        text += line["message"]["content"]
        told = [call["function"] for call in line["message"].get("tool_calls", ())]
        calls += [(one["name"], json.dumps(one["arguments"])) for one in told]
        reason = line.get("done_reason") or reason
    return text, calls, reason


def responses_body(most):
    tools = [{"type": "function", "parameters": None, "strict": None, **one} for one in FUNCTIONS]
    return {"input": "Is it cold?", "tools": tools, "max_output_tokens": most, "temperature": 0}


def response(made):
    text = "".join(item["content"][0]["text"] for item in made["output"] if item["type"] == "message")
    functions = [item for item in made["output"] if item["type"] == "function_call"]
    for item in functions:
        assert item["status"] == ("completed" if is_json(item["arguments"]) else "incomplete")
    return text, [(one["name"], one["arguments"]) for one in functions], made["status"]


def is_json(text):
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def responses_streamed(answer):
    last = response(events(answer)[-1]["response"])
    done = [one for one in events(answer) if one["type"] == "response.function_call_arguments.done"]
    assert all(is_json(one["arguments"]) for one in done)
    return last


PROTOCOLS = {
    "openai": ("/v1/chat/completions", openai_body, openai_whole, openai_streamed, "length"),
    "functions": ("/v1/chat/completions", functions_body, functions_whole, functions_streamed, "length"),
    "anthropic": ("/v1/messages", anthropic_body, anthropic_whole, anthropic_streamed, "max_tokens"),
    "ollama": ("/api/chat", ollama_body, ollama_streamed, ollama_streamed, "length"),
    "responses": (
        "/v1/responses",
        responses_body,
        lambda answer: response(answer.json()),
        responses_streamed,
        "incomplete",
    ),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", MODELS)
def test_a_cut_call_comes_once_or_not_at_all(name):
    model, said = MODELS[name]
    llm = make(model, said)
    n_tokens = len(llm.tokenizer.encode(said, special=True, bos=False))
    llm.close()
    with visiting(lambda entry: make(model, said)) as (_, web):
        for protocol, most, stream in product(PROTOCOLS, range(4, n_tokens + 1, 5), (False, True)):
            path, body, whole, streamed, cut = PROTOCOLS[protocol]
            asked = {"model": "mock", "stream": stream, **body(most)}
            answer = web.post(path, json=asked)
            assert answer.status_code == 200, answer.text
            text, calls, reason = (streamed if stream else whole)(answer)
            case = protocol, most, stream, text, calls
            if not stream:
                same = calls, text.strip()
            assert calls != same[0] or text.strip() == same[1], case
            everything = text + "".join(name + arguments for name, arguments in calls)
            for word in ("Oslo", "weather", "Well", "now"):
                assert everything.count(word) <= 1, case
            assert reason == cut, case
            pieces = [arguments for _, arguments in calls]
            assert all(map(is_json, pieces[:-1])), case
            if protocol in ("anthropic", "ollama"):  # whose arguments are objects
                assert all(map(is_json, pieces)), case
                assert "{}" not in [arguments for name, arguments in calls if name == "weather"]


def test_arguments_of_eager_tools_come_as_they_are_written():
    asked = {"model": "mock", "stream": True, **anthropic_body(70)}
    with serving(lambda entry: make("chatml-tools")) as server:
        late = anthropic_streamed(httpx.post(f"{server.url}/v1/messages", json=asked, timeout=60))
        asked["tools"][0]["eager_input_streaming"] = True
        soon = anthropic_streamed(httpx.post(f"{server.url}/v1/messages", json=asked, timeout=60))
    assert (late[1], late[0].count("weather")) == ([], 1)
    assert (soon[1][0][0], soon[0].count("weather")) == ("weather", 0)
    assert not is_json(soon[1][0][1])


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_whole_calls_end_an_answer(path):
    body = (openai_body if "chat" in path else anthropic_body)(500)
    with serving(lambda entry: make("chatml-tools")) as server:
        answer = httpx.post(f"{server.url}{path}", json={"model": "mock", **body}).json()
    reason = answer["choices"][0]["finish_reason"] if "choices" in answer else answer["stop_reason"]
    assert reason in ("tool_calls", "tool_use")


def test_a_call_that_cannot_be_read_comes_once():
    broken = SAID["chatml-tools"].replace('"Oslo"', "oops")
    with serving(lambda entry: make("chatml-tools", broken)) as server:
        asked = {"model": "mock", "stream": True, **openai_body(500)}
        text, calls, _ = openai_streamed(httpx.post(f"{server.url}/v1/chat/completions", json=asked))
    everything = text + "".join(name + arguments for name, arguments in calls)
    for word in ("weather", "town", "oops", "now"):
        assert everything.count(word) == 1, everything


def with_stop(protocol, stop):
    _, body, *_ = PROTOCOLS[protocol]
    asked = {"model": "mock", **body(500)}
    if protocol == "ollama":
        asked["options"]["stop"] = [stop]
    else:
        asked["stop_sequences" if protocol == "anthropic" else "stop"] = [stop]
    return asked


def test_no_protocol_shows_a_stop_string_within_or_behind_a_call():
    said = SAID["chatml-tools"] + "\nSo long, and thanks."
    first, second = ("weather", '{"town": "Oslo"}'), ("now", "{}")
    text = "Let me < see.\n"
    stops = {  # what comes before, and the calls
        "Oslo": (text + '<tool_call>\n{"name": "weather", "arguments": {"town": "', []),
        "now": (text + '<tool_call>\n{"name": "', [first]),  # within the second call
        "and thanks": (text + "\nSo long,", [first, second]),
        "}\n</tool": (text, [first]),  # a call is whole with it
    }
    with visiting(lambda entry: make("chatml-tools", said)) as (_, web):
        for stop, protocol in product(stops, PROTOCOLS.keys() - {"responses"}):
            path, _, whole, streamed, _ = PROTOCOLS[protocol]
            before, calls = stops[stop]
            for read, stream in ((whole, False), (streamed, True)):
                answer = web.post(path, json={**with_stop(protocol, stop), "stream": stream})
                found, called, _ = read(answer)
                assert found.rstrip() == before.rstrip(), (stop, protocol, stream)
                assert called == (calls[:1] if protocol == "functions" else calls), (stop, protocol, stream)
