"""Measures llama.cpp in the environment of `llama-cpp-python`; `vs_llamacpp.py` starts it.

Its C functions are called as its own llama-bench calls them: no sampling, no text, nothing between passes.
That is the most it can do.
"""

import ctypes
import random
from functools import cache

import llama_cpp as lc
import numpy as np
from lines import Stopwatch, resident_bytes, serve

TYPES = {"f16": lc.GGML_TYPE_F16, "q8": lc.GGML_TYPE_Q8_0}
BATCH, MICRO_BATCH = 2048, 512  # its defaults

quiet = lc.llama_log_callback(lambda level, text, data: None)
lc.llama_log_set(quiet, ctypes.c_void_p(0))
lc.llama_backend_init()


class Context:
    """A context on a model, with K and V for `n_ctx` tokens of each sequence."""

    def __init__(self, model, threads, flash, kv, n_ctx, sequences=1):
        params = lc.llama_context_default_params()
        params.n_ctx, params.n_seq_max = n_ctx * sequences, sequences
        params.n_batch, params.n_ubatch = BATCH, MICRO_BATCH
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = int(flash)
        params.type_k = params.type_v = TYPES[kv]
        params.kv_unified = False  # sequences that share nothing are faster apart
        self.handle = lc.llama_init_from_model(model, params)
        if not self.handle:
            raise RuntimeError(f"llama.cpp refuses flash={flash}, kv={kv}")
        self.memory = lc.llama_get_memory(self.handle)
        self.n_vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(model))
        self.flat = lc.llama_batch_init(BATCH, 0, 1)
        self.prefilled = False

    def ids(self, count, seed):
        return random.Random(seed).choices(range(self.n_vocab), k=count)

    def run(self, rows):
        """One pass over rows of (token, position, sequence, whether logits are wanted)."""
        flat = self.flat
        flat.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            flat.token[i], flat.pos[i], flat.logits[i] = token, position, wanted
            flat.n_seq_id[i], flat.seq_id[i][0] = 1, sequence
        if lc.llama_decode(self.handle, flat):
            raise RuntimeError("llama_decode failed")
        lc.llama_synchronize(self.handle)

    def prompt(self, tokens, sequence=0):
        for start in range(0, len(tokens), BATCH):
            part = enumerate(tokens[start : start + BATCH], start)
            self.run([(token, i, sequence, i == len(tokens) - 1) for i, token in part])

    def close(self):
        lc.llama_batch_free(self.flat)
        lc.llama_free(self.handle)


def load_model(path):
    params = lc.llama_model_default_params()
    model = lc.llama_model_load_from_file(path.encode(), params)
    if not model:
        raise RuntimeError(f"llama.cpp cannot load {path}")
    return model


models = {}
contexts = []


@cache
def context(path, *settings):
    if path not in models:
        models[path] = load_model(path)
    contexts.append(Context(models[path], *settings))
    return contexts[-1]


def about():
    return {
        "version": f"llama-cpp-python {lc.__version__}",
        "system": lc.llama_print_system_info().decode().strip(" |"),
    }


def quantize(model, to):
    """Its own re-quantisation to Q4_0, the format that it has its fastest kernels for."""
    params = lc.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = lc.LLAMA_FTYPE_MOSTLY_Q4_0, True
    if lc.llama_model_quantize(model.encode(), to.encode(), ctypes.byref(params)):
        raise RuntimeError(f"llama.cpp cannot quantise {model}")
    return {}


def prefill(model, threads, prompt, seed, flash=False, kv="f16", warm=False):
    c = context(model, threads, flash, kv, prompt + 1)
    lc.llama_memory_clear(c.memory, True)
    tokens = c.ids(min(prompt, 64) if warm else prompt, seed)
    with Stopwatch() as watch:
        c.prompt(tokens)
    return watch.answer


def decode(model, threads, tokens, seed, depth=0, flash=False, kv="f16", warm=False):
    c = context(model, threads, flash, kv, depth + tokens)
    return behind(c, 1, depth, min(4, tokens) if warm else tokens, seed)


def batch(model, threads, sequences, prompt, tokens, seed, flash=False, kv="f16", warm=False):
    c = context(model, threads, flash, kv, prompt + tokens, sequences)
    return behind(c, sequences, prompt, min(4, tokens) if warm else tokens, seed)


def mixed(model, threads, requests, seed, flash=False, kv="f16"):
    """Requests of mixed lengths: all prompts, then passes over those that have not finished."""
    c = context(model, threads, flash, kv, max(prompt + tokens for prompt, tokens in requests), len(requests))
    lc.llama_memory_clear(c.memory, True)
    texts = [c.ids(prompt, seed + i) for i, (prompt, _) in enumerate(requests)]
    token = c.ids(1, seed)[0]
    with Stopwatch() as watch:
        for sequence, text in enumerate(texts):
            c.prompt(text, sequence)
        for turn in range(max(tokens for _, tokens in requests) - 1):  # the prompt gave the first token
            rows = [
                (token, prompt + turn, sequence, True)
                for sequence, (prompt, tokens) in enumerate(requests)
                if turn < tokens - 1
            ]
            c.run(rows)
    return watch.answer


def behind(c, sequences, length, tokens, seed):
    """Decode behind prefixes: `tokens` passes over all sequences. The prefixes stay for the next round."""
    if not c.prefilled:
        for sequence in range(sequences if length else 0):
            c.prompt(c.ids(length, sequence), sequence)
        c.prefilled = True
    for sequence in range(sequences):
        lc.llama_memory_seq_rm(c.memory, sequence, length, -1)
    chosen = c.ids(sequences * tokens, seed)
    with Stopwatch() as watch:
        for i in range(tokens):
            part = chosen[i * sequences : (i + 1) * sequences]
            c.run([(token, length + i, sequence, True) for sequence, token in enumerate(part)])
    return watch.answer


def first_token(model, threads, text, seed, flash=False, warm=False):
    """From nothing to the first token, in a process that has loaded nothing before."""
    with Stopwatch() as watch:
        loaded = load_model(model)
        c = Context(loaded, threads, flash, "f16", 8192)
        data, ids = text.encode(), (lc.llama_token * 64)()
        count = lc.llama_tokenize(lc.llama_model_get_vocab(loaded), data, len(data), ids, 64, True, True)
        c.prompt(list(ids[:count]))
        logits = lc.llama_get_logits_ith(c.handle, -1)
        best = int(np.ctypeslib.as_array(logits, (c.n_vocab,)).argmax())
    nbytes = resident_bytes()
    c.close()
    lc.llama_model_free(loaded)
    return {**watch.answer, "token": best, "bytes": nbytes}


def load_only(model, threads, seed, flash=False, warm=False):
    """From nothing to a model and a context that take calls."""
    with Stopwatch() as watch:
        loaded = load_model(model)
        c = Context(loaded, threads, flash, "f16", 8192)
    c.close()
    lc.llama_model_free(loaded)
    return watch.answer


def close():
    context.cache_clear()
    while contexts:
        contexts.pop().close()
    while models:
        lc.llama_model_free(models.popitem()[1])
    return {}


if __name__ == "__main__":
    jobs = (about, quantize, prefill, decode, batch, mixed, first_token, load_only, close)
    serve({function.__name__: function for function in jobs})
