"""Models that think, by script: short templates with the markers of real ones, and what such a model says."""

from pathlib import Path
from typing import NamedTuple

import vocabularies
from stretto.llm import LLM
from stretto.testing import MockBackend
from stretto.text.bpe import BPETokenizer
from stretto.text.template import ChatTemplate

FOLDER = Path(__file__).parent / "data" / "templates"
GREEDY = {"temperature": 0}
CHATML = ("<|im_start|>", "<|im_end|>")

_TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
_SWITCH = "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
_OPEN = _SWITCH.replace("{% endif %}", "{% else %}<think>\n{% endif %}")
_ASK = "{% if add_generation_prompt %}<|im_start|>assistant\n"
_HARMONY = (
    "<|start|>system<|message|>Reasoning: {{ reasoning_effort or 'medium' }}<|end|>"
    "{% if tools %}<|start|>developer<|message|>{{ tools | tojson }}<|end|>{% endif %}"
    "{% for m in messages %}<|start|>{{ m.role }}{% if m.tool_calls %}"
    "{% set call = m.tool_calls[0].function %}{% if m.tool_calls | length > 1 %}"
    "{{ raise_exception('one call a turn') }}{% endif %}"
    " to=functions.{{ call.name }}<|channel|>commentary json<|message|>{{ call.arguments | tojson }}<|call|>"
    "{% else %}"
    "{% if m.role == 'assistant' %}{% if m.thinking %}<|channel|>analysis<|message|>{{ m.thinking }}<|end|>"
    "<|start|>assistant{% endif %}<|channel|>final{% endif %}<|message|>{{ m.content }}<|end|>"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)


class Kind(NamedTuple):
    """A family of models: its template, its special tokens, and an answer with its reasoning."""

    template: str
    says: str
    reasoning: str = "Hm < 3.\n\nSo: yes."
    text: str = "Yes > no.\n<b>"
    specials: tuple[str, ...] = CHATML
    user: tuple[str, ...] = ()


THINK = "<think>\nHm < 3.\n\nSo: yes.\n</think>\n\nYes > no.\n<b>"
INSIDE = THINK.removeprefix("<think>\n")
BLOCK = ("<think>", "</think>")
HARMONY = ("<|return|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>")

KINDS = {
    "qwen3": Kind((FOLDER / "qwen3.jinja").read_text(), THINK, user=BLOCK),
    "qwen3.5": Kind(f"{_TURNS}{_ASK}{_OPEN}{{% endif %}}", INSIDE, user=BLOCK),
    "smollm3": Kind(f"{_TURNS}{_ASK}{_SWITCH}{{% endif %}}", THINK),  # the markers are plain text
    "exaone": Kind(f"{_TURNS}{_ASK}{_SWITCH}{{% endif %}}", THINK, specials=(*CHATML, *BLOCK)),
    "r1": Kind(
        "{{ bos_token }}{% for m in messages %}<｜User｜>{{ m.content.split('</think>')[-1] }}{% endfor %}"
        "{% if add_generation_prompt %}<｜Assistant｜><think>\n{% endif %}",
        INSIDE,
        specials=("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
        user=("<｜User｜>", "<｜Assistant｜>", *BLOCK),
    ),
    "gpt-oss": Kind(
        _HARMONY,
        "<|channel|>analysis<|message|>Hm < 3.\n\nSo: yes.<|end|><|start|>assistant"
        "<|channel|>final<|message|>Yes > no.\n<b>",
        specials=HARMONY,
    ),
    "gemma4": Kind(
        "{{ bos_token }}{% for m in messages %}<|turn>{{ m.role }}\n{{ m.content }}<turn|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|turn>model\n"
        "{% if not enable_thinking | default(true) %}<|channel>thought\n<channel|>{% endif %}{% endif %}",
        "<|channel>thought\nHm < 3.\n\nSo: yes.<channel|>Yes > no.\n<b>",
        specials=("<bos>", "<turn|>", "<|turn>", "<|channel>", "<channel|>"),
    ),
    "mistral": Kind(
        "{{ bos_token }}{% for m in messages %}[INST]{{ m.content }}[/INST]{% endfor %}"
        "{# past turns: [THINK]…[/THINK] #}",
        "[THINK]Hm < 3.\n\nSo: yes.[/THINK]Yes > no.\n<b>",
        specials=("<s>", "</s>", "[INST]", "[/INST]", "[THINK]", "[/THINK]"),
    ),
    "seed": Kind(
        "{% for m in messages %}<seed:bos>{{ m.role }}\n{{ m.content }}<seed:eos>{% endfor %}"
        "<seed:bos>assistant\n{# <seed:think> #}",
        "<seed:think>Hm < 3.\n\nSo: yes.</seed:think>Yes > no.\n<b>",
        specials=("<seed:bos>", "<seed:eos>"),
        user=("<seed:think>", "</seed:think>"),
    ),
    "command": Kind(
        "{% for m in messages %}<|START_OF_TURN_TOKEN|><|USER_TOKEN|>{{ m.content }}<|END_OF_TURN_TOKEN|>"
        "{% endfor %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{# <|START_THINKING|> #}",
        "<|START_THINKING|>Hm < 3.\n\nSo: yes.<|END_THINKING|><|START_RESPONSE|>Yes > no.\n<b>"
        "<|END_RESPONSE|>",
        specials=(
            *("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>"),
            *("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        ),
    ),
    "granite": Kind(
        f"{_TURNS}{{% if thinking %}}{{# <think></think> <response> #}}{{% endif %}}{_ASK}{{% endif %}}",
        "<think>Hm < 3.\n\nSo: yes.</think>\n\n<response>Yes > no.\n<b></response>",
    ),
    "hunyuan": Kind(
        f"{_TURNS}{_ASK}{_SWITCH}{{% endif %}}{{# <answer> #}}",
        "<think>\nHm < 3.\n\nSo: yes.\n</think>\n<answer>\nYes > no.\n<b></answer>",
    ),
    "kimi k3": Kind(
        "{% for m in messages %}<|open|>message role={{ m.role }}<|sep|>{{ m.content }}"
        "<|close|>message<|sep|><|end_of_msg|>{% endfor %}"
        "{% if add_generation_prompt %}<|open|>message role=assistant<|sep|>"
        "<|open|>{{ 'response' if thinking is defined and not thinking else 'think' }}<|sep|>{% endif %}",
        "Hm < 3.\n\nSo: yes.<|close|>think<|sep|><|open|>response<|sep|>Yes > no.\n<b>"
        "<|close|>response<|sep|><|close|>message<|sep|>",
        specials=("<|open|>", "<|end_of_msg|>", "<|close|>", "<|sep|>"),
    ),
    "apriel": Kind(
        f"{_TURNS}{_ASK}Here are my reasoning steps:\n{{% endif %}}{{# [BEGIN FINAL RESPONSE] #}}",
        "Hm < 3.\n\nSo: yes.\n[BEGIN FINAL RESPONSE]\nYes > no.\n<b>\n[END FINAL RESPONSE]",
        text="Yes > no.\n<b>\n",
    ),
    "apertus": Kind(
        f"{_TURNS}{_ASK}{{% endif %}}{{# <|inner_prefix|> #}}",
        "<|inner_prefix|>Hm < 3.\n\nSo: yes.<|inner_suffix|>Yes > no.\n<b>",
        specials=(*CHATML, "<|inner_prefix|>", "<|inner_suffix|>"),
    ),
    "kimi": Kind(
        f"{_TURNS}{_ASK}{{% endif %}}{{# ◁think▷ #}}", "◁think▷Hm < 3.\n\nSo: yes.◁/think▷Yes > no.\n<b>"
    ),
}
HELLO = [{"role": "user", "content": "Is it? </think> <think> ◁think▷"}]


def make(kind, says=None, cells=4096):
    """A model of a family that says a text, in which special tokens are parsed, and ends."""
    kind = KINDS[kind] if isinstance(kind, str) else kind
    values = vocabularies.bpe(specials=kind.specials, user=kind.user)
    bos, eos = kind.specials[:2] if kind.specials != HARMONY else ("", "<|return|>")
    tokenizer = BPETokenizer(vocabularies.metadata({**values, "eos_token_id": values["tokens"].index(eos)}))
    template = ChatTemplate(kind.template, tokenizer.specials, bos=bos, eos=eos)
    script = says if callable(says) else said(tokenizer, kind.says if says is None else says)
    return LLM(MockBackend(script, tokenizer.n_vocab, cells, cells), tokenizer, template)


def said(tokenizer, text):
    """A script: the text's tokens, then the end."""
    return [*tokenizer.encode(text, special=True, bos=False), tokenizer.eos_id]
