"""Unknown fields are refused with the name that they have here."""

import pytest

from stretto.server.generation.requests import ChatRequest, CompletionRequest
from stretto.server.http.bodies import validate
from stretto.server.http.errors import ApiError

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
COMPLETION = {"model": "m", "prompt": "Hi"}


@pytest.mark.parametrize(
    ("field", "right"),
    [
        ("max_new_tokens", "it is max_tokens here"),
        ("penalty_repeat", "it is repetition_penalty here"),
        ("eos_token_id", "did you mean stop_token_ids?"),
        ("lora_request", "it is lora here"),
        ("guided_decoding", "it is grammar here"),
        ("do_sample", "temperature 0"),
        ("temprature", "did you mean temperature?"),
        ("qqqq", "leave it out"),
    ],
)
@pytest.mark.parametrize(("model", "body"), [(ChatRequest, CHAT), (CompletionRequest, COMPLETION)])
def test_an_unknown_field_is_refused_with_the_right_name(model, body, field, right):
    with pytest.raises(ApiError) as caught:
        validate(model, {**body, field: 1})
    assert caught.value.param == field
    assert caught.value.code == "unknown_field"
    assert right in caught.value.message


def test_advice_names_only_fields_that_the_body_has():
    with pytest.raises(ApiError) as caught:
        validate(CompletionRequest, {**COMPLETION, "enable_thinking": False})
    assert caught.value.message.endswith("leave it out")
    with pytest.raises(ApiError) as caught:
        validate(ChatRequest, {**CHAT, "enable_thinking": False})
    assert "chat_template_kwargs" in caught.value.message
