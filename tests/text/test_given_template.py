"""A chat template in place of the model's own."""

from pathlib import Path

import pytest

import stretto
from stretto.errors import InvalidRequest, StrettoError
from stretto.testing import byte_tokenizer
from stretto.text.loading import NAMED, make_template, template_source
from stretto.text.template import ChatTemplate

FOLDERS = Path(__file__).parent.parent / "data" / "folders"


def test_a_template_is_given_as_text_or_as_a_file(tmp_path):
    text = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
    file = tmp_path / "mine.jinja"
    file.write_text(text)
    for given in (text, file, str(file)):
        assert template_source(given) == text
    with stretto.load(FOLDERS / "llama", chat_template=file, backend="native", cells=64, threads=1) as llm:
        ids = llm.chat_prompt([{"role": "user", "content": "Hi"}])
        assert llm.tokenizer.decode(ids, special=True).endswith("[user] Hi")


@pytest.mark.parametrize("given", ["no-such-file.jinja", "just words"])
def test_what_is_no_template_is_refused(given):
    with pytest.raises(InvalidRequest, match="chat_template") as caught:
        template_source(given)
    assert caught.value.param == "chat_template"


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "empty").touch()
    with pytest.raises(InvalidRequest, match="empty"):
        template_source(tmp_path / "empty")


def test_a_given_template_is_sandboxed_as_any():
    with pytest.raises(StrettoError):
        make_template("{{ ''.__class__.__mro__ }}", "", byte_tokenizer()).render([])


TURNS = [("system", "Be brief."), ("user", "Hi "), ("assistant", "Yes?"), ("user", "Bye")]
RENDERED = {  # as llama.cpp renders them, with the BOS that its tokenizer puts before
    "chatml": "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <|im_end|>\n"
    "<|im_start|>assistant\nYes?<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
    "llama2": "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi  [/INST]Yes?</s><s>[INST] Bye [/INST]",
    "llama3": "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    "Yes?<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "mistral-v3": "<s>[INST] Be brief.\n\nHi [/INST] Yes?</s>[INST] Bye[/INST]",
    "mistral-v7": "<s>[SYSTEM_PROMPT] Be brief.[/SYSTEM_PROMPT][INST] Hi [/INST] Yes?</s>[INST] Bye[/INST]",
    "gemma": "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nYes?<end_of_turn>\n"
    "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n",
    "phi3": "<|system|>\nBe brief.<|end|>\n<|user|>\nHi <|end|>\n<|assistant|>\nYes?<|end|>\n"
    "<|user|>\nBye<|end|>\n<|assistant|>\n",
    "phi4": "<|im_start|>system<|im_sep|>Be brief.<|im_end|><|im_start|>user<|im_sep|>Hi <|im_end|>"
    "<|im_start|>assistant<|im_sep|>Yes?<|im_end|><|im_start|>user<|im_sep|>Bye<|im_end|>"
    "<|im_start|>assistant<|im_sep|>",
    "zephyr": "<|system|>\nBe brief.</s>\n<|user|>\nHi </s>\n<|assistant|>\nYes?</s>\n<|user|>\nBye</s>\n"
    "<|assistant|>\n",
    "vicuna": "<s>Be brief.\n\nUSER: Hi \nASSISTANT: Yes?</s>\nUSER: Bye\nASSISTANT:",
    "command-r": "<s><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>Be brief.<|END_OF_TURN_TOKEN|>"
    "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Hi<|END_OF_TURN_TOKEN|>"
    "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>Yes?<|END_OF_TURN_TOKEN|>"
    "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Bye<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
}


@pytest.mark.parametrize("name", NAMED)
def test_a_template_has_a_name(name):
    template = ChatTemplate(template_source(name), {}, bos="<s>", eos="</s>")
    assert template.render([{"role": role, "content": text} for role, text in TURNS]) == RENDERED[name]
