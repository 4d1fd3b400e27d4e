"""Names of llama-cpp-python, transformers, vLLM and Ollama are answered with ours."""

import re

import pytest

import stretto
from stretto.engine.params import request_params, sampling_params
from stretto.errors import InvalidRequest
from stretto.options.generating import CHAT, GENERATE
from stretto.options.loading import LOAD
from stretto.options.names import ADVICE, CALLS, METHODS, OF_TOKENIZERS, OURS, SAME, unknown_name
from stretto.testing import mock_llm

NAMES = [option.name for option in GENERATE]


@pytest.mark.parametrize(
    ("given", "right"),
    [
        ("max_new_tokens", "it is max_tokens here"),
        ("num_predict", "it is max_tokens here"),
        ("max_length", "it is max_tokens here"),
        ("repeat_penalty", "it is repetition_penalty here"),
        ("num_beams", "it is beams here"),
        ("num_return_sequences", "it is n here"),
        ("stop_token_ids", "it is stop_tokens here"),
        ("guided_json", "it is grammar here"),
        ("logits_processor", "it is hooks here"),
        ("do_sample", "temperature=0"),
        ("stream", "llm.stream(prompt)"),
        ("guided_regex", "stretto.Grammar.regex"),
        ("n_ctx", "cells is an option of stretto.load"),
        ("tools", "tools is an option of llm.chat"),
        ("temprature", "did you mean 'temperature'?"),
        ("pad_token_id", "nothing is padded"),
        ("eos_token_id", "stop_tokens=[…] adds others"),
        ("response_format", "grammar={…} takes its JSON schema"),
        ("vocab_size", "llm.tokenizer.n_vocab"),
        ("use_tqdm", "llm.generate(prompts, progress=True)"),
    ],
)
def test_generate_names_the_right_option(given, right):
    with pytest.raises(InvalidRequest, match=re.escape(right)) as caught:
        request_params({given: 1}, 100)
    assert caught.value.param == given


@pytest.mark.parametrize(
    ("given", "right"),
    [
        ("n_ctx", "it is cells here"),
        ("num_ctx", "it is cells here"),
        ("max_model_len", "it is cells here"),
        ("n_threads", "it is threads here"),
        ("n_gpu_layers", 'device="cuda"'),
        ("device_map", 'device="cuda"'),
        ("load_in_4bit", "it is quantize here"),
        ("temperature", "temperature is an option of generate, stream and chat"),
        ("max_new_tokens", "max_tokens is an option of generate, stream and chat"),
        ("lora_path", "llm.load_adapter"),
        ("use_mmap", "repack=False reads weights from the mapped file"),
        ("cell", "did you mean 'cells'?"),
        ("nonsense", "there are model, backend, device"),
    ],
)
def test_load_names_the_right_option(given, right):
    with pytest.raises(InvalidRequest, match=re.escape(right)) as caught:
        stretto.load("no-such-model", **{given: 1})
    assert caught.value.param == given


def test_options_of_a_single_step_are_refused_the_same_way():
    with pytest.raises(InvalidRequest, match="it is repetition_penalty here"):
        sampling_params({"repeat_penalty": 1.1})


@pytest.mark.parametrize("arguments", [("smollm2",), ("model.gguf", 4096)])
def test_a_model_is_not_made_from_its_name(arguments):
    with pytest.raises(InvalidRequest, match=r"stretto\.load\("):
        stretto.LLM(*arguments)


def test_a_model_is_not_made_from_its_name_by_keyword():
    with pytest.raises(InvalidRequest, match=r"stretto\.load\('m\.gguf'\)"):
        stretto.LLM(model_path="m.gguf")


def test_classes_and_methods_of_other_libraries_are_answered_with_ours():
    llm = mock_llm("Hello")
    with pytest.raises(AttributeError, match=r"no attribute 'Llama'; stretto\.load"):
        _ = stretto.Llama
    with pytest.raises(AttributeError, match=r"llm\.chat\(messages\) does this"):
        llm.create_chat_completion([])
    with pytest.raises(AttributeError, match=r"has no attribute 'nonsense'$"):
        _ = llm.nonsense
    with pytest.raises(AttributeError, match=r"has no attribute 'nonsense'$"):
        _ = stretto.nonsense


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("vocab_size", "n_vocab is it"),
        ("eos_token_id", "eos_id is it"),
        ("pad_token_id", "nothing is padded"),
    ],
)
def test_attributes_of_other_libraries_are_answered_with_ours(name, right):
    llm = mock_llm("Hello")
    for owner in (llm, llm.tokenizer):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'; .*{right}"):
            getattr(owner, name)
    assert llm.tokenizer.eos_id in llm.tokenizer.end_ids
    assert not hasattr(llm.tokenizer, "nonsense")


def test_the_tables_name_each_name_once_and_only_what_exists():
    ours = {option.name for table in (GENERATE, CHAT, LOAD) for option in table} | {"model", "options"}
    assert set(SAME) <= ours
    assert sum(map(len, SAME.values())) == len(OURS)
    assert not OURS.keys() & (ours | ADVICE.keys())
    assert not CALLS.keys() & set(stretto.__all__)
    assert [name for name in METHODS if hasattr(stretto.LLM, name)] == []
    assert [name for name in OF_TOKENIZERS if hasattr(mock_llm("").tokenizer, name)] == []


def test_an_error_lists_no_name_twice():
    listed = unknown_name("qqq", NAMES).partition("there are ")[2].split(", ")
    assert listed == NAMES
    assert len(set(listed)) == len(listed)
    assert len(set(stretto.__all__)) == len(stretto.__all__)
    assert dir(stretto) == sorted(stretto.__all__)
