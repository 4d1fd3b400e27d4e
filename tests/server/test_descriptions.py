"""Every field in the OpenAPI document says what it is."""

import pytest
from starlette.testclient import TestClient

from stretto.options.documenting import MEANINGS
from stretto.server.app import create_app
from stretto.server.settings import ModelEntry, Settings


@pytest.fixture(scope="module")
def document():
    app = create_app(Settings((ModelEntry.parse("smollm2"),)))
    return TestClient(app, base_url="http://127.0.0.1").get("/openapi.json").json()


def test_every_field_has_a_description(document):
    schemas = document["components"]["schemas"]
    fields = {
        f"{name}.{field}": about.get("description")
        for name, schema in schemas.items()
        for field, about in schema.get("properties", {}).items()
    }
    assert len(fields) > 200
    assert [name for name, text in fields.items() if not text] == []


def test_every_parameter_of_a_url_has_a_description(document):
    parameters = [
        (path, parameter["name"], parameter["description"])
        for path, methods in document["paths"].items()
        for operation in methods.values()
        for parameter in operation.get("parameters", ())
    ]
    assert len(parameters) > 10
    assert [(path, name) for path, name, text in parameters if not text] == []


def test_an_option_of_the_library_is_described_in_the_librarys_words(document):
    fields = document["components"]["schemas"]["ChatRequest"]["properties"]
    for name in ("temperature", "top_p", "presence_penalty", "max_tokens"):
        assert fields[name]["description"] == MEANINGS[name]


def test_errors_are_listed_in_the_shape_that_they_have(document):
    assert "HTTPValidationError" not in document["components"]["schemas"]
    assert all(
        "422" not in operation["responses"]
        for methods in document["paths"].values()
        for operation in methods.values()
    )
