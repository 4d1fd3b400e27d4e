"""The tokens that end a generation, family by family, and those that separate the parts of an answer."""

import pytest

from stretto.text.loading import load_tokenizer
from vocabularies import bpe, metadata


def load(values):
    return load_tokenizer(metadata(values))


@pytest.mark.parametrize(
    ("family", "tokens", "named", "ends"),
    [
        ("gpt-oss", "<|start|> <|end|> <|message|> <|channel|> <|return|> <|call|>", {"eos": "<|return|>"},
         "<|return|> <|call|>"),
        ("gemma4", "<bos> <eos> </s> <|turn> <turn|> <|tool_response> <tool_response|>", {"eos": "<turn|>"},
         "<eos> <turn|> <|tool_response>"),
        ("gemma2", "<bos> <eos> <start_of_turn> <end_of_turn>", {"eos": "<eos>"}, "<eos> <end_of_turn>"),
        ("granite", "<|start_of_role|> <|end_of_role|> <|end_of_text|>", {"eos": "<|end_of_text|>"},
         "<|end_of_text|>"),
        ("command-r", "<|START_OF_TURN_TOKEN|> <|END_OF_TURN_TOKEN|>", {"eos": "<|END_OF_TURN_TOKEN|>"},
         "<|END_OF_TURN_TOKEN|>"),
        ("glm4", "<|endoftext|> [gMASK] <|user|> <|observation|> <|assistant|>",
         {"eos": "<|endoftext|>", "eot": "<|user|>", "eom": "<|observation|>"},
         "<|endoftext|> <|user|> <|observation|>"),
        ("phi3", "<|user|> <|assistant|> <|end|> <|endoftext|>", {"eos": "<|endoftext|>"},
         "<|end|> <|endoftext|>"),
        ("deepseek2", "<｜User｜> <｜Assistant｜> <｜end▁of▁sentence｜>", {"eos": "<｜end▁of▁sentence｜>"},
         "<｜end▁of▁sentence｜>"),
        ("kimi", "<|im_user|> <|im_end|> [BOS] [EOS] [EOT]", {"eos": "[EOS]"}, "<|im_end|> [EOS] [EOT]"),
        ("exaone4", "[|user|] [|endofturn|]", {"eos": "[|endofturn|]"}, "[|endofturn|]"),
        ("seed_oss", "<seed:bos> <seed:eos> <seed:think>", {"eos": "<seed:eos>"}, "<seed:eos>"),
        ("starcoder2", "<|endoftext|> <fim_prefix> <fim_pad> <file_sep>",
         {"eos": "<|endoftext|>", "fim_sep": "<file_sep>"}, "<|endoftext|> <fim_pad> <file_sep>"),
        ("hunyuan", "<｜hy_place▁holder▁no▁2｜> <｜hy_User｜>", {"eos": "<｜hy_place▁holder▁no▁2｜>"},
         "<｜hy_place▁holder▁no▁2｜>"),
    ],
)  # fmt: skip
def test_generation_ends_where_the_family_ends_it(family, tokens, named, ends):
    values = bpe(specials=tokens.split())
    values |= {f"{name}_token_id": values["tokens"].index(text) for name, text in named.items()}
    tokenizer = load(values)
    assert {tokenizer.piece(token) for token in tokenizer.end_ids} == set(ends.split())


def test_a_tag_of_html_is_text_in_gemma_4():
    values = bpe(specials=["<|tool_response>"], user=["</s>"])
    tokenizer = load(values)
    assert tokenizer.decode(tokenizer.encode("a</s>b")) == "a</s>b"
    assert "</s>" not in tokenizer.specials


def test_the_parts_of_a_harmony_answer_are_told_apart_in_its_text():
    marks = "<|start|> <|end|> <|message|> <|channel|> <|return|> <|call|>"
    tokenizer = load(bpe(specials=marks.split(" ")))
    text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi<|return|>"
    ids = tokenizer.encode(text, special=True)
    assert tokenizer.decode(ids) == text.removesuffix("<|return|>")
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(text)) > len(ids)  # a message cannot forge them
