"""Models with templates that know tools; they say a text with two calls, another text, or noise."""

from pathlib import Path

import numpy as np

import vocabularies
from stretto import LLM
from stretto.testing import MockBackend
from stretto.text.bpe import BPETokenizer
from stretto.text.template import ChatTemplate

TEMPLATES = Path(__file__).parent / "data" / "templates"
SPECIALS = {
    "chatml-tools": ["<|im_start|>", "<|im_end|>", "<|endoftext|>"],
    "mistral-nemo": [
        *("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
        *("[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
    ],
    "smollm2": ["<|im_start|>", "<|im_end|>", "<|endoftext|>"],
    "qwen3": ["<|im_start|>", "<|im_end|>", "<|endoftext|>"],  # its markers of reasoning are plain text here
}
OSLO = '{"name": "weather", "arguments": {"town": "Oslo"}'
SAID = {  # an answer with two calls, as the template's model writes it
    "chatml-tools": f"Let me < see.\n<tool_call>\n{OSLO}}}\n</tool_call>\n"
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "mistral-nemo": f'[TOOL_CALLS][{OSLO}, "id": "abcdefghi"}}, '
    '{"name": "now", "arguments": {}, "id": "123456789"}]',
}


def make(name, say=""):
    """A model that says a text (with two calls, if it is empty), or noise if that is None."""
    specials = SPECIALS[name]
    values = vocabularies.bpe(specials=specials)
    end = values["tokens"].index(specials[1])
    tokenizer = BPETokenizer(vocabularies.metadata({**values, "eos_token_id": end}))
    source = (TEMPLATES / f"{name}.jinja").read_text()
    template = ChatTemplate(source, tokenizer.specials, bos=specials[0], eos=specials[1])

    def noise(seen):
        return np.random.default_rng(sum(seen)).standard_normal(tokenizer.n_vocab).astype(np.float32)

    script = noise if say is None else said(tokenizer, say or SAID[name], end)
    return LLM(MockBackend(script, tokenizer.n_vocab, 8192, 4096), tokenizer, template)


def said(tokenizer, text, end):
    """A script: the text's tokens, then the end."""
    return [*tokenizer.encode(text, special=True, bos=False), end]
