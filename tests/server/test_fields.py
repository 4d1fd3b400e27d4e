"""The tables of docs/reference/server.md: what becomes of each field is what the schemas say, and true."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SPEC = importlib.util.spec_from_file_location("server_fields", ROOT / "scripts" / "server_fields.py")
server_fields = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(server_fields)
MESSAGES = [{"role": "user", "content": "Hi"}]
ASKED = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 3},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 3},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 3},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 3},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/completion": {"prompt": "Hi", "n_predict": 3},
}
OFF = ("dynatemp_range", "dry_multiplier", "mirostat", "xtc_probability", "top_n_sigma")
NUMBERS = (
    *("mirostat_tau", "mirostat_eta", "dynatemp_exponent", "xtc_threshold", "typical_p", "typ_p"),
    "dry_base",
    *("dry_allowed_length", "dry_penalty_last_n", "n_keep", "n_discard", "n_indent", "min_keep"),
    *("t_max_prompt_ms", "id_slot", "adaptive_decay"),
)
VALUES = {  # of fields that are accepted; texts otherwise
    **dict.fromkeys(OFF, 0),
    **dict.fromkeys(NUMBERS, 1),
    "adaptive_target": -1,
    "cache_prompt": True,
    "spaces_between_special_tokens": True,
    "dry_sequence_breakers": ["."],
    "return_progress": True,
    "client_metadata": {},
    "context_management": {},
    "metadata": {},
    "stream_options": {},
    "max_tool_calls": 1,
    "prediction": {"type": "content", "content": "x"},
    "prompt_cache_retention": "24h",
    "service_tier": "auto",
    "store": True,
    "backend_sampling": True,
    "verbosity": "low",
}


def fields(fate):
    return [
        (path, name)
        for bodies in server_fields.TABLES
        for path, model in bodies.items()
        if path in ASKED
        for name, found in server_fields.fates(path, model).items()
        if found == fate
    ]


def test_the_page_has_the_tables_of_the_schemas():
    text = server_fields.PAGE.read_text()
    assert server_fields.START + server_fields.tables() + server_fields.END in text


def test_what_is_refused_is_named(web):
    for path, name in fields("refused"):
        answer = web.post(path, json={"model": "mock", **ASKED[path], name: {"x": 1}})
        assert answer.status_code == 400, (path, name)
        assert name in answer.json()["error"]["message"]
        for empty in (None, [], {}):  # which asks for nothing
            answer = web.post(path, json={"model": "mock", **ASKED[path], name: empty})
            assert answer.status_code == 200, (path, name, answer.text)


def test_what_is_accepted_changes_nothing(web):
    found = fields("accepted")
    assert len(found) > 15
    for path, name in found:
        answer = web.post(path, json={"model": "mock", **ASKED[path], name: VALUES.get(name, "x")})
        assert answer.status_code == 200, (path, name, answer.text)


@pytest.mark.parametrize(
    ("path", "name", "fate"),
    [
        ("/v1/chat/completions", "tools", "honoured"),
        ("/v1/chat/completions", "user", "accepted"),
        ("/v1/chat/completions", "modalities", "only `text`"),
        ("/v1/responses", "background", "honoured"),
        ("/v1/responses", "conversation", "refused"),
        ("/v1/messages", "cache_control", "honoured"),
    ],
)
def test_what_becomes_of_some_fields(path, name, fate):
    models = {path: model for bodies in server_fields.TABLES for path, model in bodies.items()}
    assert server_fields.fates(path, models[path])[name] == fate
