"""Replacing weights in place: the model is then the one that was loaded from these weights, in every bit."""

import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import stretto
from stretto.backends.native import NativeBackend
from stretto.backends.reference import ReferenceBackend
from stretto.cache.disk import DiskStore
from stretto.errors import InvalidRequest, SnapshotError, Unsupported
from stretto.llm import LLM
from stretto.models import read_spec
from stretto.testing import byte_tokenizer
from stretto.weights.folder import Folder
from stretto.weights.formats import Format, dequantize, quantize
from tiny_models import N_CELLS

FOLDERS = Path(__file__).parent.parent / "data" / "folders"
PROMPT = [5, 17, 9, 33, 2, 40, 11, 3, 8, 8, 21, 7, 1, 30, 31, 32, 33, 34]
TEXT = {"max_tokens": 6, "temperature": 0, "ignore_eos": True, "logprobs": 2}
TYPES = {"BF16": Format.BF16, "F16": Format.F16, "F32": Format.F32}


def tensors_of(folder):
    """The head of a folder's file, and its numbers by name."""
    data = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    head, found = json.loads(data[8 : 8 + size]), {}
    for name, entry in head.items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            raw = np.frombuffer(data[8 + size + first : 8 + size + last], np.uint8)
            shape = entry["shape"]
            row = raw.reshape(*shape[:-1], -1) if shape else raw
            found[name] = dequantize(row, TYPES[entry["dtype"]]).reshape(shape)
    return data[: 8 + size], head, found


def changed(numbers, seed):
    rng = np.random.default_rng(seed)
    return {
        name: array * rng.uniform(0.8, 1.2, array.shape).astype(np.float32) for name, array in numbers.items()
    }


def write(folder, source, numbers):
    """A copy of a folder with other numbers."""
    shutil.copytree(source, folder)
    start, head, _ = tensors_of(source)
    parts = sorted((entry["data_offsets"], name) for name, entry in head.items() if name != "__metadata__")
    data = b"".join(quantize(numbers[name], TYPES[head[name]["dtype"]]).tobytes() for _, name in parts)
    (folder / "model.safetensors").write_bytes(start + data)
    return folder


def said(llm, prompt=PROMPT, **options):
    result = llm.generate(prompt, **TEXT, **options)
    return result.tokens, [(token.logprob, token.top) for token in result.logprobs]


def open_llm(folder, **options):
    return stretto.load(folder, **{"backend": "native", "threads": 2, "cells": 256, **options})


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A folder of the same model with other weights, and these."""
    numbers = changed(tensors_of(FOLDERS / "llama")[2], 1)
    return write(tmp_path_factory.mktemp("weights") / "other", FOLDERS / "llama", numbers), numbers


def tiny_llm(folder, kind, n_cells=N_CELLS):
    """One without a tokenizer of its own."""
    with Folder(folder) as file:
        spec = replace(read_spec(file, N_CELLS), context_length=1024)
        more = (2,) if kind is NativeBackend else ()
        return LLM(kind(file, spec, n_cells, *more, n_slots=4), byte_tokenizer(), path=folder)


@pytest.mark.parametrize("kind", [NativeBackend, ReferenceBackend], ids=["native", "reference"])
@pytest.mark.parametrize("name", ["qwen3moe", "gpt2", "gemma3", "mamba2"])
def test_a_model_becomes_the_one_that_its_new_weights_make(tmp_path, name, kind):
    numbers = tensors_of(FOLDERS / name)[2]
    first, second = changed(numbers, 1), changed(numbers, 2)
    with tiny_llm(write(tmp_path / "other", FOLDERS / name, second), kind) as fresh:
        expected = said(fresh)
    with tiny_llm(FOLDERS / name, kind) as llm:
        before = said(llm)
        llm.update_weights(first)
        assert said(llm) not in (before, expected)
        llm.update_weights(second)
        assert said(llm) == expected
        assert llm.weights_version == "2"
        llm.update_weights(FOLDERS / name, version="first")
        assert (said(llm), llm.weights_version) == (before, "first")
        llm.update_weights(tmp_path / "other")
        assert said(llm) == expected


@pytest.mark.parametrize("options", [{"quantize": "Q8_0"}, {"precision": "high"}])
def test_weights_are_rounded_as_those_that_are_loaded(other, options):
    folder, numbers = other
    with open_llm(folder, **options) as fresh, open_llm(FOLDERS / "llama", **options) as llm:
        llm.update_weights(numbers)
        assert said(llm) == said(fresh)


def test_tensors_that_are_left_out_stay(tmp_path):
    _, _, numbers = tensors_of(FOLDERS / "llama")
    some = {name: array for name, array in changed(numbers, 3).items() if "layers.1.self_attn" in name}
    folder = write(tmp_path / "some", FOLDERS / "llama", numbers | some)
    with open_llm(folder) as fresh, open_llm(FOLDERS / "llama") as llm:
        llm.update_weights(some)
        assert said(llm) == said(fresh)


def test_nothing_of_the_old_weights_is_used_again(other):
    folder, numbers = other
    with open_llm(folder) as fresh, open_llm(FOLDERS / "llama") as llm, llm.sequence(PROMPT) as sequence:
        expected, logits = said(fresh), fresh.sequence(PROMPT).logits.copy()
        said(llm)
        assert not np.array_equal(sequence.logits, logits)
        assert said(llm) == said(llm)
        llm.update_weights(numbers)
        assert llm.cache.stats().parked == 0
        result = llm.generate(PROMPT, **TEXT)
        assert result.usage.cached_tokens == 0
        assert said(llm) == expected
        assert llm.generate(PROMPT, **TEXT).usage.cached_tokens == len(PROMPT) - 1
        assert np.array_equal(sequence.logits, logits)
        assert np.array_equal(llm.score(PROMPT), fresh.score(PROMPT))


def test_prompts_on_disk_belong_to_their_weights(other, tmp_path):
    long = PROMPT * 8

    def open_stored():
        llm = tiny_llm(FOLDERS / "llama", NativeBackend, 512)
        llm.engine.keep_on_disk(DiskStore(tmp_path / "cache"), lambda: "model")
        return llm

    with open_stored() as llm:
        before = said(llm, long)
        llm.update_weights(other[1])
        after = said(llm, long)
        assert after != before
    for weights, expected in [(None, before), (other[1], after)]:
        with open_stored() as llm:
            if weights is not None:
                llm.update_weights(weights)
            assert said(llm, long) == expected
            assert llm.cache.disk().tokens_read == (128 if weights else 0)


def test_saved_sequences_are_those_of_their_weights(other, tmp_path):
    with open_llm(FOLDERS / "llama") as llm:
        with llm.sequence(PROMPT) as sequence:
            sequence.save(tmp_path / "text.safetensors")
        llm.update_weights(other[1])
        with pytest.raises(SnapshotError, match="another model"):
            llm.restore(tmp_path / "text.safetensors")


@pytest.mark.parametrize("running", ["finish", "stop"])
def test_requests_that_run_end_with_the_weights_they_began_with(other, running):
    folder, numbers = other
    options = {**TEXT, "max_tokens": 40}
    with open_llm(folder) as fresh, open_llm(FOLDERS / "llama") as llm:
        plain, later = llm.generate(PROMPT, **options), fresh.generate(PROMPT[:5], **options)
        stream = llm.stream(PROMPT, **options)
        next(iter(stream))
        llm.update_weights(numbers, running=running)
        result = stream.result
        assert result.finish_reason == ("length" if running == "finish" else "cancelled")
        assert result.tokens == plain.tokens[: len(result.tokens)]
        assert llm.generate(PROMPT[:5], **options).tokens == later.tokens


def test_requests_of_other_threads_have_one_version_each(other):
    folder, numbers = other
    texts, errors, ended = [], [], threading.Event()
    with open_llm(folder) as fresh, open_llm(FOLDERS / "llama") as llm:
        old, new = said(llm), said(fresh)

        def ask():
            try:
                while not ended.is_set():
                    texts.append(said(llm))
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for weights in (numbers, FOLDERS / "llama", numbers):
            llm.update_weights(weights)
        ended.set()
        for thread in threads:
            thread.join(60)
        assert errors == []
        assert all(text in (old, new) for text in texts)
        assert said(llm) == new


def test_a_callback_replaces_nothing(other):
    with open_llm(FOLDERS / "llama") as llm, pytest.raises(InvalidRequest, match="hook or callback"):
        llm.generate(PROMPT, callback=lambda token: llm.update_weights(other[1]), **TEXT)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({}, "at least one tensor"),
        ({"model.norm.weight": np.full(16, np.nan)}, "NaN or infinity"),
        ({"model.norm.weight": np.full(16, 1e300)}, "NaN or infinity"),
        ({"model.norm.weight": np.ones(31)}, r"has the shape \[31\], and the model \[16\]"),
        ({"model.norm.weight": "ones"}, "holds no numbers"),
        ({"model.norm.bias": np.ones(16)}, "no tensor 'model.norm.bias'"),
        (FOLDERS / "qwen2", "is another model"),
    ],
)
def test_weights_that_do_not_fit_change_nothing(weights, message):
    with open_llm(FOLDERS / "llama") as llm:
        before = said(llm)
        with pytest.raises(InvalidRequest, match=message):
            llm.update_weights(weights)
        assert (said(llm), llm.weights_version) == (before, "")


def test_what_cannot_be_computed_again_is_named(other):
    with open_llm(FOLDERS / "llama") as llm, llm.sequence(PROMPT) as sequence:
        sequence.logits  # noqa: B018
        sequence.remove(2, 4, close=True)
        with pytest.raises(InvalidRequest, match="was edited"):
            llm.update_weights(other[1])
        sequence.close()
        batch = stretto.Batch()
        batch.add(3, 0, [999])
        llm.forward(batch)
        with pytest.raises(InvalidRequest, match=r"llm.forward or llm.cells"):
            llm.update_weights(other[1])
        llm.cells.clear()
        llm.update_weights(other[1])
    with open_llm(FOLDERS / "llama", repack=False) as llm, pytest.raises(Unsupported, match="repack=True"):
        llm.update_weights(other[1])
