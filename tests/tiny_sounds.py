"""The tiny models that hear, of tests/data/sounds (scripts/make_tiny_sounds.py), and ways to run them."""

import io
import wave
from functools import cache
from pathlib import Path

import numpy as np

import stretto

FOLDER = Path(__file__).parent / "data" / "sounds"


@cache
def sound_answers(name):
    """What transformers made: mels.I, vectors.I, logits.I, and the sound.I that it heard."""
    with np.load(FOLDER / name / "answers.npz", allow_pickle=False) as stored:
        return dict(stored)


def samples(name, i):
    """float32[n], 16,000 a second."""
    base = sound_answers(name)[f"sound.{i}"]
    return ((np.repeat(base, 8).astype(np.float32) - 128) / 128)[: len(base) * 8 - 3]


def sound(name, i):
    return stretto.Audio(samples(name, i))


def wav(name, i):
    """The bytes of a file of 16 bits."""
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(2)
        written.setframerate(16_000)
        written.writeframes((samples(name, i) * 2**15).astype("<i2").tobytes())
    return file.getvalue()


def hearing_llm(name="voxtral", backend="native", encoder="mmproj.gguf", **options):
    """A tiny language model that hears, with the encoder of a file in its folder, or, ".", of the folder."""
    folder = FOLDER / name
    options = {"image_cache": stretto.ImageCache(disk=0), "cells": 512, "threads": 2, "kv": "f32"} | options
    return stretto.load(folder, vision=folder / encoder, backend=backend, **options)
