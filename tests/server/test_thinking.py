"""Models that think: reasoning beside the answer, whole and streamed, for OpenAI's clients and Ollama's."""

import json
from contextlib import contextmanager

import ollama
import openai
import pytest

import tool_models
from serving import serving, visiting
from thinking import HELLO, KINDS, make

NAMES = ["qwen3", "qwen3.5", "smollm3", "gpt-oss", "gemma4", "mistral", "command"]
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "now"}}]
CHAT = "/v1/chat/completions"
ASKED = {"model": "mock", "messages": HELLO, "temperature": 0}


def client_of(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@contextmanager
def ollama_client(server):
    client = ollama.Client(host=server.url)
    yield client
    client.close()


def streamed(client, **asked):
    """The reasoning, the content and the calls of a streamed answer; reasoning comes first."""
    thoughts, content, calls = "", "", []
    with client.chat.completions.create(**asked, stream=True) as stream:
        for chunk in stream:
            for choice in chunk.choices:
                new = getattr(choice.delta, "reasoning_content", None) or ""
                assert new == (getattr(choice.delta, "reasoning", None) or "")  # vLLM's and OpenRouter's name
                assert not (new and content), "reasoning after the answer has begun"
                thoughts += new
                content += choice.delta.content or ""
                calls += choice.delta.tool_calls or []
    return thoughts, content, [call.function.name for call in calls if call.function.name]


@pytest.mark.parametrize("name", NAMES)
def test_openai_clients_get_reasoning_content(name):
    kind = KINDS[name]
    with serving(lambda entry: make(name)) as server, client_of(server) as client:
        whole = client.chat.completions.create(**ASKED)
        message = whole.choices[0].message
        assert (message.reasoning_content, message.content) == (kind.reasoning, kind.text)
        assert message.reasoning == kind.reasoning
        details = whole.usage.completion_tokens_details
        assert 0 < details.reasoning_tokens < whole.usage.completion_tokens
        assert streamed(client, **ASKED) == (kind.reasoning, kind.text, [])
        assert streamed(client, **ASKED, logprobs=True) == (kind.reasoning, kind.text, [])
        short = client.chat.completions.create(**ASKED, max_tokens=17).choices[0]
        assert (short.message.content, short.finish_reason) == ("", "length")
        assert kind.reasoning.startswith(short.message.reasoning_content)


def test_reasoning_is_left_out_where_nobody_wants_it():
    kind = KINDS[NAMES[0]]
    with serving(lambda entry: make(NAMES[0])) as server, client_of(server) as client:
        asked = {**ASKED, "extra_body": {"include_reasoning": False}}
        whole = client.chat.completions.create(**asked)
        assert not {"reasoning_content", "reasoning"} & whole.choices[0].message.model_dump().keys()
        assert whole.choices[0].message.content == kind.text
        assert whole.usage.completion_tokens_details.reasoning_tokens > 0
        assert streamed(client, **asked) == ("", kind.text, [])


@pytest.mark.parametrize("name", NAMES)
def test_ollama_clients_get_thinking(name):
    kind = KINDS[name]
    asked = {"model": "mock", "messages": HELLO, "options": {"temperature": 0}}
    with serving(lambda entry: make(name)) as server, ollama_client(server) as client:
        message = client.chat(**asked).message
        assert (message.thinking, message.content) == (kind.reasoning, kind.text)
        parts = [part.message for part in client.chat(**asked, stream=True)]
        assert "".join(part.thinking or "" for part in parts) == kind.reasoning
        assert "".join(part.content or "" for part in parts) == kind.text
        answer = client.generate(model="mock", prompt="Is it?", options={"temperature": 0})
        assert (answer.thinking, answer.response) == (kind.reasoning, kind.text)
        pieces = list(client.generate(model="mock", prompt="Is it?", stream=True, options={"temperature": 0}))
        assert "".join(piece.thinking or "" for piece in pieces) == kind.reasoning
        assert "".join(piece.response for piece in pieces) == kind.text


def test_calls_beside_reasoning():
    says = f"<think>\nI want {CALL}\n</think>\n\nSo. {CALL}"
    with serving(lambda entry: make("qwen3", says)) as server, client_of(server) as client:
        thoughts, content, calls = streamed(client, **ASKED, tools=TOOLS)
        assert (thoughts, content.strip(), calls) == (f"I want {CALL}", "So.", ["now"])
        message = client.chat.completions.create(**ASKED, tools=TOOLS).choices[0].message
        assert (message.reasoning_content, len(message.tool_calls)) == (f"I want {CALL}", 1)
    with serving(lambda entry: make("qwen3", says)) as server, ollama_client(server) as client:
        asked = {"model": "mock", "messages": HELLO, "tools": TOOLS, "options": {"temperature": 0}}
        parts = list(client.chat(**asked, stream=True))
        assert "".join(part.message.thinking or "" for part in parts) == f"I want {CALL}"
        assert [call.function.name for part in parts for call in part.message.tool_calls or ()] == ["now"]


def test_calls_in_channels():
    says = (
        "<|channel|>analysis<|message|>Time.<|end|><|start|>assistant"
        "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>"
    )
    with serving(lambda entry: make("gpt-oss", says)) as server, client_of(server) as client:
        assert streamed(client, **ASKED, tools=TOOLS) == ("Time.", "", ["now"])


def test_template_arguments():
    with visiting(lambda entry: make("qwen3", "Yes.")) as (server, web):

        def n_prompt(**fields):
            answer = web.post("/v1/chat/completions", json={**ASKED, **fields})
            assert answer.status_code == 200, answer.text
            return answer.json()["usage"]["prompt_tokens"]

        thinking = n_prompt()
        off = server.llm().chat_prompt(HELLO, template={"enable_thinking": False})
        assert thinking < len(off)
        assert n_prompt(chat_template_kwargs={"enable_thinking": False}) == len(off)
        assert n_prompt(chat_template_kwargs={"enable_thinking": True}) == thinking
        assert n_prompt(reasoning_effort="none") == len(off)
        assert n_prompt(reasoning_effort="high") == thinking
        asked = {"model": "mock", "messages": HELLO, "stream": False}
        for think, expected in ((False, len(off)), (True, thinking), (None, thinking), ("low", thinking)):
            answer = web.post("/api/chat", json={**asked, "think": think}).json()
            assert (answer["prompt_eval_count"], answer["message"]["content"]) == (expected, "Yes.")


def test_a_switch_as_in_anthropics_messages():
    with visiting(lambda entry: make("qwen3", "Yes.")) as (_, web):
        off = web.post(CHAT, json={**ASKED, "reasoning_effort": "none"}).json()["usage"]["prompt_tokens"]
        for kind, is_off in (("disabled", True), ("enabled", False), ("adaptive", False)):
            answer = web.post(CHAT, json={**ASKED, "thinking": {"type": kind}})
            assert (answer.json()["usage"]["prompt_tokens"] == off) is is_off


def test_effort_reaches_a_template_that_reads_it():
    with visiting(lambda entry: make("gpt-oss", "<|channel|>final<|message|>Yes.")) as (server, web):
        for path, body in (
            ("/v1/chat/completions", {**ASKED, "reasoning_effort": "high"}),
            ("/api/chat", {"model": "mock", "messages": HELLO, "think": "high", "stream": False}),
        ):
            assert web.post(path, json=body).status_code == 200
            prompt = server.llm().backend.batches[0]
            server.llm().backend.batches.clear()
            server.llm().cache.clear()
            assert "Reasoning: high" in server.llm().tokenizer.decode(prompt)


@pytest.mark.parametrize(
    ("path", "fields", "param", "words"),
    [
        (CHAT, {"chat_template_kwargs": {"nothing": 1}}, "chat_template_kwargs", "reads no"),
        (CHAT, {"chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs", "reads no"),
        (CHAT, {"reasoning_effort": "none"}, "reasoning_effort", "cannot be turned off"),
        (CHAT, {"reasoning_effort": "very"}, "reasoning_effort", ""),
        ("/api/chat", {"think": False}, None, "cannot be turned off"),
    ],
)
def test_what_a_model_cannot_do_is_refused(path, fields, param, words):
    with visiting(lambda entry: make("r1")) as (_, web):
        answer = web.post(path, json={"model": "mock", "messages": HELLO, **fields})
        assert answer.status_code == 400
        assert words in answer.text
        if param is not None:
            assert answer.json()["error"]["param"] == param


def test_reasoning_of_earlier_turns_reaches_the_template():
    turns = {
        "/v1/chat/completions": ("reasoning_content", "reasoning"),
        "/api/chat": ("thinking",),
    }
    with visiting(lambda entry: make("gpt-oss", "<|channel|>final<|message|>Yes.")) as (server, web):
        for path, names in turns.items():
            for name in names:
                turn = {"role": "assistant", "content": "Yes.", name: f"I wonder {name}"}
                body = {"model": "mock", "messages": [*HELLO, turn, *HELLO], "stream": False}
                assert web.post(path, json=body).status_code == 200
                (prompt, *_) = server.llm().backend.batches
                server.llm().backend.batches.clear()
                server.llm().cache.clear()
                assert f"I wonder {name}" in server.llm().tokenizer.decode(prompt)


def test_raw_prompts_and_completions_are_left_alone():
    with visiting(lambda entry: make("smollm3")) as (_, web):
        body = {"model": "mock", "prompt": "x", "max_tokens": 400, "temperature": 0}
        said = web.post("/v1/completions", json=body).json()["choices"][0]["text"]
        assert said == KINDS["smollm3"].says
        raw = {"model": "mock", "prompt": "x", "raw": True, "stream": False, "options": {"temperature": 0}}
        answer = web.post("/api/generate", json=raw).json()
        assert (answer["response"], "thinking" in answer) == (KINDS["smollm3"].says, False)
        assert web.post("/api/generate", json={**raw, "think": True}).status_code == 400


def test_a_schema_is_for_the_answer():
    says = '<think>\nHm.\n</think>{"ok": true}'
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    shaped = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with serving(lambda entry: make("qwen3", says)) as server, client_of(server) as client:
        message = client.chat.completions.create(**ASKED, response_format=shaped).choices[0].message
        assert (message.reasoning_content, json.loads(message.content)) == ("Hm.", {"ok": True})


def test_a_message_may_be_nothing_but_reasoning():
    messages = [
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "reasoning_content": "Greet them."},
    ]
    with visiting(lambda entry: tool_models.make("qwen3", "Hi.")) as (_, web):
        answer = web.post("/v1/chat/completions", json={"messages": messages})
        assert answer.status_code == 200, answer.text
        item = {
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Greet them."}],
        }
        asked = {"input": [{"type": "message", "role": "user", "content": "Hello."}, {"id": "rs_1", **item}]}
        assert web.post("/v1/responses", json=asked).json()["status"] == "completed"


BUDGETS = {
    "/v1/chat/completions": {"messages": HELLO, "thinking_budget_tokens": 9},
    "/v1/chat/completions ": {"messages": HELLO, "thinking_token_budget": 9},
    "/chat/completions": {"messages": HELLO, "thinking": {"type": "enabled", "budget_tokens": 9}},
    "/v1/messages": {"messages": HELLO, "thinking": {"type": "enabled", "budget_tokens": 9}},
}


@pytest.mark.parametrize("path", BUDGETS)
def test_budgets_are_kept(path):
    asked = {"model": "mock", "temperature": 0, "max_tokens": 50, **BUDGETS[path]}
    said = "<think>\n" + "h" * 100
    with visiting(lambda entry: make("qwen3", said)) as (_, web):
        answer = web.post(path.strip(), json=asked)
        assert answer.status_code == 200, answer.text
        streamed = web.post(path.strip(), json={**asked, "stream": True})
    body = answer.json()
    if "choices" in body:
        thoughts = body["choices"][0]["message"]["reasoning_content"]
        n_thought = body["usage"]["completion_tokens_details"]["reasoning_tokens"]
    else:
        thoughts, n_thought = body["content"][0]["thinking"], streamed.text.count("thinking_delta")
    assert (thoughts, 8 <= n_thought <= 12) == ("h" * 8, True)  # a line break counts, and so do markers
    names = ('"reasoning_content":"h"', '"thinking":"h"')
    assert sum(streamed.text.count(name) for name in names) == 8


def test_efforts_that_cannot_be_set_are_told():
    with visiting(lambda entry: make("r1")) as (_, web):
        answer = web.post(CHAT, json={**ASKED, "reasoning_effort": "high"})
    assert answer.status_code == 200
    assert "cannot be set" in answer.headers["x-stretto-warning"]


WISHES = {  # for a model that does not think
    "/v1/chat/completions": [
        {"reasoning_effort": "high"},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"chat_template_kwargs": {"reasoning_effort": "low"}},
    ],
    "/v1/responses": [{"reasoning": {"effort": "high"}}],
    "/v1/messages": [{"thinking": {"type": "enabled", "budget_tokens": 1024}}],
    "/api/chat": [{"think": True}, {"think": "high"}],
    "/api/generate": [{"think": True}, {"think": "high"}],
}
REFUSALS = {  # which any such model grants
    "/v1/chat/completions": [
        {"reasoning_effort": "none"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"chat_template_kwargs": {"enable_thinking": None, "reasoning_effort": None}},
        {"thinking": {"type": "disabled"}},
        {"thinking_budget_tokens": 5},
        {"thinking_budget_tokens": -1},
    ],
    "/v1/responses": [{"reasoning": {"effort": "none"}}],
    "/v1/messages": [{"thinking": {"type": "disabled"}}, {"thinking": {"type": "adaptive"}}],
    "/api/chat": [{"think": False}],
    "/api/generate": [{"think": False}, {"think": False, "raw": True}],
}
BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50},
    "/api/chat": {"messages": [{"role": "user", "content": "Hi"}], "stream": False},
    "/api/generate": {"prompt": "Hi", "stream": False},
}


@pytest.mark.parametrize("path", WISHES)
def test_models_that_do_not_think_answer_and_say_so(path):
    with visiting() as (_, web):
        for wish in REFUSALS[path]:
            answer = web.post(path, json={"model": "mock", **BODIES[path], **wish})
            assert (answer.status_code, answer.headers.get("x-stretto-warning")) == (200, None), answer.text
        for wish in WISHES[path]:
            answer = web.post(path, json={"model": "mock", **BODIES[path], **wish})
            assert answer.status_code == 200, answer.text
            assert "does not think" in answer.headers["x-stretto-warning"]
            body = answer.json()
            (warning,) = body.get("usage", body)["warnings"]
            assert "does not think" in warning
            stream = web.post(path, json={"model": "mock", **BODIES[path], **wish, "stream": True})
            assert "x-stretto-warning" in stream.headers
        wrong = {"model": "mock", **BODIES[path], "chat_template_kwargs": {"enable_thinkin": False}}
        assert web.post(path, json=wrong).status_code == 400


def test_warnings_are_errors_for_a_strict_server():
    with visiting(strict=True) as (_, web):
        for path, wishes in WISHES.items():
            for wish in wishes:
                answer = web.post(path, json={"model": "mock", **BODIES[path], **wish})
                assert answer.status_code == 400, path
                assert "does not think" in answer.text


def test_warnings_are_logged(caplog):
    with caplog.at_level("INFO", "stretto.server"), visiting(log="json") as (_, web):
        web.post(CHAT, json={"model": "mock", **BODIES[CHAT], "reasoning_effort": "low"})
    facts = [record.facts for record in caplog.records if hasattr(record, "facts")]
    assert any("does not think" in str(one.get("warnings")) for one in facts)
