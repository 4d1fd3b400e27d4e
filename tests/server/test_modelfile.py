"""Modelfiles of Ollama's older clients."""

import pytest

from serving import visiting
from stretto.server.http.errors import ApiError
from stretto.server.ollama.create import parse_modelfile

FILE = '''# a comment
FROM mock
system """You are "Mario".
From Super Mario Bros."""

PARAMETER temperature 0.5
PARAMETER num_predict 5
PARAMETER stop "AI:"
PARAMETER stop user:
PARAMETER penalize_newline true
TEMPLATE "{{ .System }} {{ .Prompt }}"
MESSAGE user Hi there
MESSAGE assistant """Yo"""
LICENSE MIT'''


def test_instructions_are_fields():
    assert parse_modelfile(FILE) == {
        "from": "mock",
        "system": 'You are "Mario".\nFrom Super Mario Bros.',
        "parameters": {
            "temperature": 0.5,
            "num_predict": 5,
            "stop": ["AI:", "user:"],
            "penalize_newline": True,
        },
        "template": "{{ .System }} {{ .Prompt }}",
        "messages": [{"role": "user", "content": "Hi there"}, {"role": "assistant", "content": "Yo"}],
        "license": "MIT",
    }


@pytest.mark.parametrize(
    "text",
    ["", "SYSTEM x", "FROM", "FROM a\nADAPTER b", "FROM a\n!", "FROM a\nPARAMETER", 'FROM a\nSYSTEM """b\nc'],
)
def test_what_is_no_modelfile_is_refused(text):
    with pytest.raises(ApiError, match="modelfile: "):
        parse_modelfile(text)


def test_a_model_is_made_of_a_modelfile(tmp_path, monkeypatch):
    monkeypatch.setenv("STRETTO_HOME", str(tmp_path))
    with visiting() as (_, web):
        text = "FROM mock\nSYSTEM You are Mario.\nPARAMETER num_predict 3"
        made = web.post("/api/create", json={"model": "mario", "modelfile": text, "stream": False})
        assert made.json() == {"status": "success"}
        shown = web.post("/api/show", json={"model": "mario"}).json()
        assert shown["system"] == "You are Mario."
        answer = web.post("/api/generate", json={"model": "mario", "prompt": "Hi", "stream": False}).json()
        assert answer["eval_count"] == 3
        for wrong in ({"modelfile": "FROM other"}, {"modelfile": "FROM mock\nPARAMETER bogus 1"}, {}):
            assert web.post("/api/create", json={"model": "luigi", **wrong}).status_code in (400, 404)
