"""Errors for names of other libraries where Python itself would only say "unexpected keyword argument"."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from os import PathLike, fspath
from typing import Any, TypeVar, cast

from stretto.errors import InvalidRequest
from stretto.options.other_names import unknown_name

Function = TypeVar("Function", bound=Callable[..., Any])
Kind = TypeVar("Kind")

# Names of classes and functions elsewhere, and what to call here.
CALLS = {
    **dict.fromkeys(
        (
            "Llama",
            "AutoModelForCausalLM",
            "AutoModel",
            "AutoTokenizer",
            "pipeline",
            "Client",
            "from_pretrained",
        ),
        'stretto.load("smollm2") opens a model',
    ),
    **dict.fromkeys(
        ("generate", "chat", "stream", "embed"),
        'a model does it: stretto.load("smollm2")',
    ),
    **dict.fromkeys(
        ("LlamaGrammar", "GuidedDecodingParams", "StructuredOutputsParams"), "stretto.Grammar is it"
    ),
    **dict.fromkeys(("GenerationConfig",), "stretto.Options is it"),
}

# Names of a model's methods elsewhere, and what to call here.
METHODS = {
    "apply_chat_template": "llm.chat_prompt(messages) does this",
    "beam_search": "llm.generate(prompt, beams=4) does this",
    "complete": "llm.generate(prompt) does this",
    "completion": "llm.generate(prompt) does this",
    "create_chat_completion": "llm.chat(messages) does this",
    "create_completion": "llm.generate(prompt) does this",
    "create_embedding": "llm.embed(texts) does this",
    "decode": "llm.tokenizer.decode(ids) does this",
    "detokenize": "llm.tokenizer.decode(ids) does this",
    "encode": "llm.tokenizer.encode(text) gives tokens, llm.embed(texts) vectors",
    "eval": "seq = llm.sequence(prompt) holds tokens, and seq.logits is computed when read",
    "from_pretrained": 'stretto.load("smollm2") opens a model',
    "get_tokenizer": "llm.tokenizer is it",
    "invoke": "llm.generate(prompt) does this",
    "n_ctx": "llm.context_length is it",
    "predict": "llm.generate(prompt) does this",
    "reset": "llm.cache.clear() empties the prefix cache",
    "save_state": "seq.save(path) writes a sequence, and llm.restore(path) reads it",
    "stream_chat": "llm.chat(messages, stream=True) does this",
    "tokenize": "llm.tokenizer.encode(text) does this",
    "vocab_size": "llm.tokenizer.n_vocab is it",
    "eos_token_id": "llm.tokenizer.eos_id is it, and llm.tokenizer.end_ids are all tokens that end a text",
    "pad_token_id": "nothing is padded: prompts of one call may have any length",
}

# The same for its tokenizer.
OF_TOKENIZERS = {
    "vocab_size": "n_vocab is it",
    "eos_token_id": "eos_id is it, and end_ids are all tokens that end a text",
    "bos_token_id": "bos_id is it",
    "pad_token_id": "nothing is padded: prompts of one call may have any length",
    "pad_token": "nothing is padded: prompts of one call may have any length",
    "all_special_tokens": "specials has them, with their ids",
    "apply_chat_template": "llm.chat_prompt(messages) does this",
    "batch_decode": "decode(ids) does this for one text",
    "tokenize": "encode(text) gives ids, and decode([id]) the text of one",
}


def refusing_unknown(function: Function) -> Function:
    """A decorator: unknown keywords raise `InvalidRequest` with the right name."""
    known = tuple(name for name in inspect.signature(function).parameters if name != "self")

    @wraps(function)
    def checked(*args: Any, **keywords: Any) -> Any:
        for name in keywords:
            if name not in known:
                raise InvalidRequest(unknown_name(name, known), param=name, value=keywords[name])
        return function(*args, **keywords)

    return cast(Function, checked)


def refusing_unknown_fields(kind: type[Kind]) -> type[Kind]:
    """A decorator of dataclasses: unknown fields raise `InvalidRequest` with the right name."""
    setattr(kind, "__init__", refusing_unknown(kind.__init__))  # noqa: B010
    return kind


def check_model(model: object) -> None:
    """Raise unless it can be a model's name or path."""
    if not isinstance(model, (str, PathLike)) or not isinstance(fspath(model), str):
        raise InvalidRequest(
            f'model must be a name or a path, as "smollm2" or "models/mine.gguf", not {model!r:.100}',
            param="model",
            value=model,
        )
    if model == "":
        raise InvalidRequest(
            'model is empty; give a name or a path, as "smollm2" or "models/mine.gguf"',
            param="model",
            value=model,
        )


def check_backend(args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    """Raise for the arguments of `LLM` if they name a model, as those of other libraries' classes do."""
    named = (
        args[0]
        if args
        else next((keywords[name] for name in ("model", "model_path") if name in keywords), "")
    )
    if named and isinstance(named, (str, PathLike)):
        raise InvalidRequest(
            f"LLM takes a backend and a tokenizer; stretto.load({fspath(named)!r}) opens a model by its name",
            param="model",
            value=named,
        )


def no_attribute(owner: str, name: str, advice: dict[str, str]) -> AttributeError:
    """The error for a name that something lacks."""
    hint = f"; {advice[name]}" if name in advice else ""
    return AttributeError(f"{owner} has no attribute {name!r}{hint}")
