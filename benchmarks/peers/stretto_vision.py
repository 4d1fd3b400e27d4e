"""Measures Stretto with images, through its public calls; `vision.py` starts it."""

import platform
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
from lines import Stopwatch, serve
from pixels import picture

import stretto
from stretto import Image
from stretto.vision.encoder import encode as encode_all
from stretto.vision.native import NativeEncoder
from stretto.vision.queue import normalise, prepare
from stretto.vision.reading import read_vision_spec
from stretto.weights.gguf import GGUF

QUESTIONS = ("Its size?", "A colour?")  # nine tokens each, where every byte is one
CASES = ("cold", "memory", "disk", "k/v")
folder = tempfile.TemporaryDirectory()


def about():
    return {"version": f"stretto {stretto.__version__}, Python {platform.python_version()}", "cases": CASES}


@cache
def load(model, mmproj, threads):
    """The model, with a folder of its own for what it makes of images."""
    kept = Path(folder.name, Path(mmproj).stem)
    return stretto.load(model, vision=mmproj, threads=threads, cells=2048, image_cache=kept)


def first_token(model, mmproj, threads, size, seed, case):
    """Seconds from a picture's pixels and a question to the first token, by what is there already:

    cold      nothing
    memory    the picture's vectors; it stands elsewhere in the prompt, so no K and V of it are there
    disk      the same after a new start: the vectors are read from their file
    k/v       all of the prompt but the question
    """
    llm, image = load(model, mmproj, threads), Image.open(picture(size, seed))

    def ask(before, question):
        options = {"max_tokens": 1, "temperature": 0, "ignore_eos": True}
        with Stopwatch() as watch:
            result = llm.generate((before, image, question), **options)
        return watch.answer, result.usage

    llm.cache.clear()
    if case != "cold":
        ask("A", QUESTIONS[0])
    if case == "disk":
        llm.vision.cache.clear(disk=False)
    n_encoded = llm.vision.n_encoded
    answer, usage = ask("A" if case == "k/v" else "B", QUESTIONS[1])
    n_encoded = llm.vision.n_encoded - n_encoded
    least = usage.prompt_tokens - 20 if case == "k/v" else 0
    if bool(n_encoded) != (case == "cold") or bool(usage.cached_tokens) != bool(least):
        raise RuntimeError(f"{case}: {n_encoded} encoded, {usage.cached_tokens} tokens found")
    return {**answer, "tokens": usage.prompt_tokens, "cached": usage.cached_tokens}


@cache
def encoder(mmproj, threads):
    with GGUF(mmproj) as file:
        return NativeEncoder(file, read_vision_spec(file), threads)


def encode(model, mmproj, threads, size, seed):
    """Seconds for the vectors of one tile, from its pixels on."""
    found = encoder(mmproj, threads)
    tiles = prepare(Image.open(picture(size, seed)), found.spec).tiles[-1:]
    with Stopwatch() as watch:
        vectors = encode_all(found, normalise(tiles, found.spec))[0]
    return {**watch.answer, "vectors": len(vectors), "norms": norms(vectors)}


def norms(vectors):
    """Lengths of the first vectors, to compare with the other side's."""
    return np.linalg.norm(vectors[:8], axis=1).round(4).tolist()


if __name__ == "__main__":
    serve({"about": about, "first_token": first_token, "encode": encode})
