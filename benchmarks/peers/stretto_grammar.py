"""Measures Stretto with grammars; `grammar.py` starts it."""

import platform
import random
import time
from contextlib import ExitStack
from functools import cache

from lines import serve

import stretto
from stretto.structured import Compiler

opened = ExitStack()
ENDLESS = {
    "text": stretto.Grammar.json({"type": "string", "minLength": 100_000}),
    "digits": stretto.Grammar.regex("[0-9]{10000}"),
    "records": stretto.Grammar.json(
        {
            "type": "array",
            "minItems": 10_000,
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 30},
                    "age": {"type": "integer", "minimum": 0, "maximum": 120},
                    "state": {"enum": ["open", "pending", "closed"]},
                },
                "required": ["name", "age", "state"],
                "additionalProperties": False,
            },
        }
    ),
}


@cache
def load(model, threads):
    return opened.enter_context(stretto.load(model, threads=threads, cells=2048, prefix_cache=False))


def about():
    import llguidance

    version = f"stretto {stretto.__version__}, llguidance {llguidance.__version__}"
    return {"version": f"{version}, Python {platform.python_version()}"}


def decode(model, threads, tokens, seed, grammar, loop):
    """Seconds, steps and tokens of an answer that never ends by itself."""
    llm = load(model, threads)
    options = {"grammar": ENDLESS[grammar]} if grammar != "none" else {"ignore_eos": True}
    if grammar != "none":
        llm.guide(ENDLESS[grammar])  # compiled beforehand
    start = [random.Random(seed).randrange(1000, llm.spec.n_vocab)]
    before, begun = llm.metrics.steps, time.perf_counter()
    result = llm.generate(start, temperature=0, max_tokens=tokens, loop=loop, **options)
    seconds = time.perf_counter() - begun
    assert len(result.tokens) == tokens
    return {"seconds": seconds, "tokens": tokens, "steps": llm.metrics.steps - before}


def walk(model, threads, schema, text):
    """Compile a schema, and take the masks along a text: seconds of each."""
    llm = load(model, threads)
    compiler = _compiler(model, threads)
    begun = time.perf_counter()
    try:
        compiled = compiler.compile(stretto.Grammar.json(schema))
    except stretto.InvalidRequest as error:
        return {"refused": str(error)}
    seconds = time.perf_counter() - begun
    guide, masks, pushes = compiled.guide(), [], []
    tokens, forced = llm.tokenizer.encode_inside(text), 0
    # What has to come is not skipped here: there is a mask for every token of the text, as on the other side.
    matcher = guide._matcher
    matcher.compute_ff_tokens()
    for token in tokens:
        a = time.perf_counter()
        guide.mask  # noqa: B018
        b = time.perf_counter()
        guide._known = False
        fits = matcher.consume_token(token)
        ahead = len(matcher.compute_ff_tokens())
        c = time.perf_counter()
        if not fits:
            return {"refused": f"token {token} of {text!r}"}
        forced += ahead > 0
        masks.append(b - a)
        pushes.append(c - b)
    return {
        "compile": seconds,
        "masks": masks,
        "pushes": pushes,
        "complete": guide.accepting,
        "forced": forced,
    }


@cache
def _compiler(model, threads):
    llm = load(model, threads)
    compiler = Compiler(llm.tokenizer, llm.spec.n_vocab)
    compiler.compile(stretto.Grammar.regex("a"))  # the vocabulary is taken over once
    return compiler


def close():
    _compiler.cache_clear()
    load.cache_clear()
    opened.close()
    return {}


if __name__ == "__main__":
    serve({function.__name__: function for function in (about, decode, walk, close)})
