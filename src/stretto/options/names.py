"""Names that options have in llama-cpp-python, transformers, vLLM and Ollama, and ours for them.

Errors about unknown names use it: those of `generate` and `load`, and of the server's fields.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from os import PathLike, fspath
from typing import Any, TypeVar, cast

from stretto.errors import InvalidRequest, wrong_value
from stretto.options.generating import CHAT, GENERATE, OPTIONS, PARALLEL_OWN
from stretto.options.loading import LOAD

_OF_CALLS = {  # names of what is no option
    "options": ("sampling_params", "generation_config", "params"),
    "model": ("model_path", "model_id", "model_name", "repo_id", "pretrained_model_name_or_path", "path"),
}
SAME = {option.name: option.aka for option in (*OPTIONS, *LOAD) if option.aka} | _OF_CALLS
"""Our name, and others that mean the same."""
OURS = {other: ours for ours, others in SAME.items() for other in others}

_HOOK = "a hook can do it: it gets the logits (stretto docs control)"
_GPU = 'device="cuda" runs the whole model on a GPU, device="cpu" none of it'
_FILE = "the model's file says it"
_PROMPT = 'a prompt with images is a tuple: ("What is this?", stretto.Image.open("cat.jpg"))'
_THINKING = "llm.chat(messages, template=llm.thinking(False)) turns thinking off"
_MAPPED = "repack=False reads weights from the mapped file, repack=True packs them in memory"
_NOTHING = "leave it out: nothing needs it"
_BAR = "llm.generate(prompts, progress=True) shows a bar; callback= is called with each token"
_UNPADDED = "leave it out: prompts of one call may have any length, and nothing is padded"

_SAMPLERS = (
    *("typical_p", "tfs_z", "top_n_sigma", "epsilon_cutoff", "dynatemp_range"),
    *("mirostat", "mirostat_mode", "mirostat_tau", "mirostat_eta"),
    *("xtc_probability", "xtc_threshold", "dry_multiplier"),
)

# What to do instead, where another name is not the whole answer.
ADVICE = {
    **dict.fromkeys(_SAMPLERS, _HOOK),
    "do_sample": "temperature=0 always takes the most probable token",
    "guided_choice": "grammar=stretto.Grammar.choices([…]) does this",
    "guided_grammar": "grammar=stretto.Grammar.lark(…) does this",
    "guided_regex": "grammar=stretto.Grammar.regex(…) does this",
    "format": "grammar={…} takes a JSON schema",
    "schema": "grammar={…} takes a JSON schema",
    "stream": "llm.stream(prompt) gives tokens one by one; llm.chat takes stream=True",
    "streaming": "llm.stream(prompt) gives tokens one by one",
    "messages": "llm.chat(messages) answers a conversation",
    "system": 'llm.chat takes a message {"role": "system", "content": …}',
    "system_prompt": 'llm.chat takes a message {"role": "system", "content": …}',
    "images": _PROMPT,
    "image": _PROMPT,
    "multi_modal_data": _PROMPT,
    "prompt_token_ids": "a prompt may be a list of token ids: llm.generate([1, 2, 3])",
    "input_ids": "a prompt may be a list of token ids: llm.generate([1, 2, 3])",
    "enable_thinking": _THINKING,
    "think": _THINKING,
    "thinking": _THINKING,
    "reasoning_effort": 'llm.chat(messages, template=llm.thinking("low")) sets the effort',
    "functions": "llm.chat(messages, tools=[…]) takes functions",
    "function_call": 'llm.chat(messages, tools=[…], tool_choice="name") calls one',
    "echo": "llm.prompt_logprobs scores a prompt; results never repeat it",
    "prompt_logprobs": "llm.prompt_logprobs(prompts) gives them",
    "suffix": "filling in the middle is not supported",
    "past_key_values": "llm.sequence(prompt) is a prompt that keeps its KV cache",
    "use_cache": "the KV cache is always used",
    "no_repeat_ngram_size": "hooks=[stretto.hooks.NoRepeat(…)] does this",
    "repeat_last_n": "the repetition penalty counts the whole text; " + _HOOK,
    "penalty_last_n": "the repetition penalty counts the whole text; " + _HOOK,
    "bad_words": "logit_bias={token: -inf} excludes tokens",
    "bad_words_ids": "logit_bias={token: -inf} excludes tokens",
    "suppress_tokens": "logit_bias={token: -inf} excludes tokens",
    "allowed_token_ids": "a grammar or a hook allows certain tokens only (stretto docs control)",
    "forced_bos_token_id": "hooks=[stretto.hooks.Force(…)] forces tokens",
    "guidance_scale": "hooks=[stretto.hooks.Guidance(…)] does this",
    "negative_prompt_ids": "hooks=[stretto.hooks.Guidance(…)] does this",
    "skip_special_tokens": "special=True makes special tokens part of the text",
    "detokenize": "results have both text and tokens",
    **dict.fromkeys(("use_tqdm", "show_progress", "show_progress_bar", "tqdm", "progress"), _BAR),
    "eos_token_id": "the model's own end tokens are known; stop_tokens=[…] adds others",
    **dict.fromkeys(("pad_token_id", "pad_token", "padding", "attention_mask"), _UNPADDED),
    "response_format": "grammar={…} takes its JSON schema, and grammar={'type': 'object'} is any object",
    "vocab_size": "llm.tokenizer.n_vocab is the number of tokens; it is the model's",
    "verbose": "nothing is printed; leave it out",
    "early_stopping": _NOTHING,
    "keep_alive": "llm.close() frees a model; until then it stays",
    "n_gpu_layers": _GPU,
    "num_gpu": _GPU,
    "gpu_layers": _GPU,
    "device_map": _GPU,
    "main_gpu": "a model runs on one device, which device= names",
    "tensor_split": "a model runs on one device",
    "tensor_parallel_size": "a model runs on one device",
    "gpu_memory_utilization": 'cells="auto" takes the GPU memory that is free',
    "dtype": "weights stay as the file has them; quantize= changes them, precision= how they are used",
    "torch_dtype": "weights stay as the file has them; quantize= changes them, precision= how they are used",
    "lora_path": "llm.load_adapter(name, path) loads an adapter",
    "enable_lora": "llm.load_adapter(name, path) loads an adapter",
    "chat_format": _FILE + "; llm.chat uses its chat template",
    "chat_template": "stretto.load takes it: a chat template in place of the model's own",
    "chat_handler": "vision= takes the mmproj file of a model that sees images",
    "tokenizer": _FILE,
    "rope_scaling": _FILE,
    "rope_freq_base": _FILE,
    "rope_freq_scale": _FILE,
    "filename": 'name both: stretto.load("hf:org/repo/file.gguf")',
    "revision": 'it is part of the name: stretto.load("hf:org/repo/file.gguf@revision")',
    "trust_remote_code": "no code of a model is ever run; leave it out",
    "logits_all": "llm.score(text) and logprobs= of generate need no preparation; leave it out",
    "embedding": "llm.embed(texts) needs no preparation; leave it out",
    "embeddings": "llm.embed(texts) needs no preparation; leave it out",
    "flash_attn": _NOTHING,
    "attn_implementation": _NOTHING,
    "enforce_eager": _NOTHING,
    "offload_kqv": _NOTHING,
    "numa": _NOTHING,
    "low_vram": _GPU,
    "no_mmap": _MAPPED,
    "use_mlock": _MAPPED,
    "use_mmap": _MAPPED,
}
_HOMES = (
    ("generate, stream and chat", GENERATE),
    ("llm.chat", CHAT),
    ("llm.parallel", PARALLEL_OWN),
    ("stretto.load", LOAD),
)


def unknown_name(name: str, known: Collection[str]) -> str:
    """The message for a name that is none of `known`: what to write instead, as far as that can be told.

    >>> unknown_name("max_new_tokens", ["max_tokens"])
    "there is no parameter 'max_new_tokens'; it is max_tokens here"
    """
    return f"there is no parameter {name!r}; {remedy(name, known) or 'there are ' + ', '.join(known)}"


def check_names(given: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise `InvalidRequest` for the first parameter that is not known, with what to write instead."""
    for name, value in given.items():
        if name not in known:
            raise InvalidRequest(unknown_name(name, known), param=name, value=value)


def remedy(name: str, known: Collection[str]) -> str:
    """What to write instead of a name, or "" if nothing is like it."""
    ours = OURS.get(name, name)
    if ours in known:
        return f"it is {ours} here"
    if name in ADVICE:
        return ADVICE[name]
    for home, table in _HOMES:
        if any(option.name == ours for option in table):
            return f"{ours} is an option of {home}"
    from difflib import get_close_matches

    near = get_close_matches(name, known, 1)
    return f"did you mean {near[0]!r}?" if near else ""


# Errors for names of other libraries where Python itself would only say "unexpected keyword argument".

Function = TypeVar("Function", bound=Callable[..., Any])
Kind = TypeVar("Kind")

# Names of classes and functions elsewhere, and what to call here.
_AUTO = ("AutoModelForCausalLM", "AutoModel", "AutoTokenizer")
_GRAMMARS = ("LlamaGrammar", "GuidedDecodingParams", "StructuredOutputsParams")
CALLS = {
    **dict.fromkeys(
        ("Llama", *_AUTO, "pipeline", "Client", "from_pretrained"), 'stretto.load("smollm2") opens a model'
    ),
    **dict.fromkeys(("generate", "chat", "stream", "embed"), 'a model does it: stretto.load("smollm2")'),
    **dict.fromkeys(_GRAMMARS, "stretto.Grammar is it"),
    "GenerationConfig": "stretto.Options is it",
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
        check_names(keywords, known)
        return function(*args, **keywords)

    return cast(Function, checked)


def refusing_unknown_fields(kind: type[Kind]) -> type[Kind]:
    """A decorator of dataclasses: unknown fields raise `InvalidRequest` with the right name."""
    setattr(kind, "__init__", refusing_unknown(kind.__init__))  # noqa: B010
    return kind


def check_model(model: object) -> None:
    """Raise unless it can be a model's name or path."""
    if not isinstance(model, (str, PathLike)) or not isinstance(fspath(model), str):
        raise wrong_value("model", model, 'a name or a path, as "smollm2" or "models/mine.gguf"')
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
