"""The part of Go's templates that is understood."""

import pytest

from stretto.errors import InvalidRequest
from stretto.server.ollama.endpoints import render

CHATML = """{{- if .System }}<|im_start|>system
{{ .System }}<|im_end|>
{{ end }}{{ if .Prompt }}<|im_start|>user
{{ .Prompt }}<|im_end|>
{{ end }}<|im_start|>assistant
{{ .Response }}<|im_end|>
"""


def test_fields_and_conditions():
    text = render(CHATML, {"System": "", "Prompt": "Hi"})
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert "<|im_start|>system\nBe brief." in render(CHATML, {"System": "Be brief.", "Prompt": "Hi"})


def test_else_and_trimming():
    template = "a  {{- if .System }} yes {{- else }} no {{- end -}}  b"
    assert render(template, {"System": "", "Prompt": ""}) == "a nob"
    assert render(template, {"System": "x", "Prompt": ""}) == "a yesb"


@pytest.mark.parametrize(
    "template", ["{{ range .Messages }}", "{{ .Tools }}", "{{ if .System }}", "{{ end }}"]
)
def test_what_is_not_understood_is_refused(template):
    with pytest.raises(InvalidRequest, match="template"):
        render(template, {"System": "", "Prompt": ""})
