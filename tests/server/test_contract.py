"""The OpenAPI document against the server: whatever fits it, or nearly does, gets an answer below 500."""

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis import GenerationMode

from serving import serving, until
from stretto.testing import mock_llm

EXAMPLES = 5  # of each operation
ENDLESS = ("/stretto/live",)  # tested in test_live.py


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRETTO_HOME", str(tmp_path_factory.mktemp("home")))  # files are kept there
        with serving(lambda entry: mock_llm("Hello", context_length=256, cells=512)) as running:
            yield running


@pytest.fixture(scope="module")
def document(server):
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def statuses_of(operation, mode):
    """The statuses of answers to what fits an operation, or does not."""
    found = set()

    @hypothesis.settings(
        max_examples=EXAMPLES,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def send(case):
        for place in (case.body, case.query):  # a made-up name would get no further than 404
            if isinstance(place, dict) and isinstance(place.get("model"), str):
                place["model"] = "mock"
        answer = case.call(timeout=60)
        found.add(answer.status_code)
        assert answer.status_code < 500, (operation.label, case.body, answer.text)

    send()
    return found


@pytest.mark.slow
def test_nothing_that_fits_or_does_not_breaks_the_server(server, document):
    found = {}
    for result in document.get_all_operations():
        operation = result.ok()
        if operation.path in ENDLESS:
            continue
        for mode in GenerationMode:
            try:
                found[operation.label, mode] = statuses_of(operation, mode)
            except (hypothesis.errors.Unsatisfiable, schemathesis.errors.SchemathesisError):
                assert operation.body.items == []  # what takes nothing can be given nothing wrong
    n_operations = sum(len(methods) for methods in document.raw_schema["paths"].values())
    assert len({label for label, _ in found}) == n_operations - len(ENDLESS)
    for path in (
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/messages",
        "/v1/responses",
        "/api/chat",
        "/stretto/parallel",
    ):
        assert 400 in found[f"POST {path}", GenerationMode.NEGATIVE]
    until(lambda: not server.state.generations)
    until(lambda: server.state.traffic.active == 0)


@pytest.mark.parametrize(
    ("path", "needed"),
    [
        ("/v1/chat/completions", "messages"),
        ("/v1/completions", "prompt"),
        ("/v1/embeddings", "input"),
        ("/v1/messages", "messages"),
        ("/v1/responses", "input"),
        ("/api/chat", "model"),
    ],
)
def test_the_document_says_what_a_body_takes(document, path, needed):
    schema = document.raw_schema
    reference = schema["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    body = schema["components"]["schemas"][reference.rsplit("/", 1)[-1]]
    assert body["additionalProperties"] is False
    assert "model" in body["properties"]
    assert needed in body["required"]
