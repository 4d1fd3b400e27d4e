"""Measures llama-cpp-python's grammars; `grammar.py` starts it in its environment.

A schema becomes a grammar by `LlamaGrammar.from_json_schema` and a sampler by
`llama_sampler_init_grammar`, as in `Llama.generate`. It is applied to all tokens before each one.
"""

import ctypes
import json
import time
from functools import cache

import llama_cpp
from lines import serve


@cache
def load(model, threads):
    return llama_cpp.Llama(model, n_ctx=64, vocab_only=True, verbose=False)


def about():
    return {"version": f"llama-cpp-python {llama_cpp.__version__}"}


def walk(model, threads, schema, text):
    """Compile a schema, and apply the grammar along a text: seconds of each."""
    llm = load(model, threads)
    vocab, n_vocab = llm._model.vocab, llm.n_vocab()
    begun = time.perf_counter()
    try:
        grammar = llama_cpp.LlamaGrammar.from_json_schema(json.dumps(schema), verbose=False)
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    sampler = llama_cpp.llama_sampler_init_grammar(vocab, grammar._grammar.encode(), b"root")
    seconds = time.perf_counter() - begun
    if not sampler:
        return {"refused": "its grammar cannot be parsed"}
    try:
        return {"compile": seconds, **_masks(sampler, llm.tokenize(text.encode(), add_bos=False), n_vocab)}
    finally:
        llama_cpp.llama_sampler_free(sampler)


def _masks(sampler, tokens, n_vocab):
    """Each token's logit is 0 before the grammar is applied, and −inf behind it where it may not come."""
    data = (llama_cpp.llama_token_data * n_vocab)()
    array = llama_cpp.llama_token_data_array(data=data, size=n_vocab, selected=-1, sorted=False)
    blank = (llama_cpp.llama_token_data * n_vocab)()
    for token in range(n_vocab):
        blank[token].id = token
    masks, pushes = [], []
    for token in tokens:
        ctypes.memmove(data, blank, ctypes.sizeof(data))
        array.size = n_vocab
        a = time.perf_counter()
        llama_cpp.llama_sampler_apply(sampler, ctypes.byref(array))
        b = time.perf_counter()
        if data[token].logit != 0.0:
            return {"refused": f"token {token}"}
        llama_cpp.llama_sampler_accept(sampler, token)
        masks.append(b - a)
        pushes.append(time.perf_counter() - b)
    return {"masks": masks, "pushes": pushes, "complete": True}


def close():
    load.cache_clear()
    return {}


if __name__ == "__main__":
    serve({function.__name__: function for function in (about, walk, close)})
