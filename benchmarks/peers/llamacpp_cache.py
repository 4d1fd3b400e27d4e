"""What llama-cpp-python's users have of a cache, measured in its own environment; `cache.py` starts it."""

import time

import llama_cpp
from lines import serve

models = {}


def model_of(path, threads):
    if path not in models:
        models[path] = llama_cpp.Llama(
            path, n_ctx=4096, n_threads=threads, n_threads_batch=threads, flash_attn=True, verbose=False
        )
    return models[path]


def clocked(work):
    begun = time.perf_counter()
    result = work()
    return time.perf_counter() - begun, result


def about():
    return {"version": f"llama-cpp-python {llama_cpp.__version__}"}


def cache(model, threads, prompt):
    """Evaluating a text, one token more behind it, its `save_state` and `load_state`."""
    llm, n = model_of(model, threads), len(prompt)
    llm.reset()
    found = {"recompute": clocked(lambda: llm.eval(prompt))[0]}
    llm.reset()
    llm.eval(prompt[:-1])
    found["go on"] = clocked(lambda: llm.eval(prompt[-1:]))[0]
    found["save"], state = clocked(llm.save_state)
    llm.reset()
    llm.eval(prompt[:1])
    found["restore"] = clocked(lambda: llm.load_state(state))[0]
    assert llm.n_tokens == n
    return {"seconds": found}


def prefix(model, threads, system, question):
    """The first token of a prompt, and of another that begins alike."""
    llm = model_of(model, threads)
    llm.reset()
    cold = clocked(lambda: next(llm.generate(system + question, temp=0.0)))[0]
    warm = clocked(lambda: next(llm.generate(system + question[::-1], temp=0.0)))[0]
    return {"seconds": {"first token, new": cold, "first token, prefix cached": warm}}


if __name__ == "__main__":
    serve({"about": about, "cache": cache, "prefix": prefix})
