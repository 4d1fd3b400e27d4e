"""Image state is never computed twice and never stale: counted at the encoder and at `forward`."""

import io
import random

import numpy as np
import PIL.Image
import pytest

from stretto import CacheFull, ImageCache
from stretto.cache.disk import DiskStore
from stretto.vision.image import Image
from tiny_vision import NAMES, picture, seeing_llm, vision_spec

GREEDY = {"temperature": 0, "max_tokens": 3, "ignore_eos": True}


class Counts:
    """Tiles that go into an encoder, and tokens that are computed, since the last look."""

    def __init__(self, llm):
        self._llm, self._tiles, self._tokens = llm, 0, 0
        embed = llm.vision.encoder.embed

        def counted_embed(patches, grid):
            self._tiles += len(patches)
            return embed(patches, grid)

        llm.vision.encoder.embed = counted_embed

    def look(self):
        """(tiles, tokens)"""
        metrics = self._llm.metrics
        tokens = metrics.prompt_tokens + metrics.decoded_tokens
        found = self._tiles, tokens - self._tokens
        self._tiles, self._tokens = 0, tokens
        return found


def image_of_pixels(seed, size=24):
    """As large as the encoder takes it, so that every pixel counts."""
    return np.random.default_rng(seed).integers(0, 256, (size, size, 3), np.uint8)


def n_tokens(llm, prompt):
    with llm.sequence(prompt) as sequence:
        return len(sequence)


@pytest.mark.parametrize("name", NAMES)
def test_a_second_question_costs_the_question(name):
    with seeing_llm(name) as llm:
        counts = Counts(llm)
        n, tiles = n_tokens(llm, (picture(0),)), len(_prepared(llm, picture(0)).tiles)
        llm.generate((picture(0), "AB"), **GREEDY)
        assert counts.look() == (tiles, n + 2 + 2)  # the prompt, and all tokens of the answer but the last
        llm.generate((picture(0), "CD"), **GREEDY)
        assert counts.look() == (0, 2 + 2)
        llm.generate((picture(0), "ABCD"), **GREEDY)
        assert counts.look()[0] == 0
        llm.cache.clear()  # K and V are gone, the vectors are not
        llm.generate((picture(0), "AB"), **GREEDY)
        assert counts.look() == (0, n + 2 + 2)
        llm.cache.clear()
        llm.vision.cache.clear()
        llm.generate((picture(0), "AB"), **GREEDY)
        assert counts.look() == (tiles, n + 2 + 2)


def _prepared(llm, image):
    with llm.sequence((image,)) as sequence:
        return next(token.image.prepared for token in sequence.tokens if hasattr(token, "image"))


def test_the_same_image_by_many_paths(tmp_path):
    pixels = image_of_pixels(1)
    file = tmp_path / "a.png"
    PIL.Image.fromarray(pixels).save(file)
    (tmp_path / "other.name").write_bytes(file.read_bytes())
    lossless = io.BytesIO()
    PIL.Image.fromarray(pixels).save(lossless, "WEBP", lossless=True)
    ways = [
        file,
        tmp_path / "other.name",
        file.read_bytes(),
        lossless.getvalue(),
        pixels,
        PIL.Image.open(file),
    ]
    with seeing_llm("mlp") as llm:
        counts, answers = Counts(llm), []
        for way in ways:
            answers.append(llm.generate((Image.open(way), "AB"), **GREEDY).tokens)
        assert counts.look()[0] == 1
        assert llm.cache.stats().hits == len(ways) - 1
        assert all(answer == answers[0] for answer in answers)


@pytest.mark.parametrize("where", ["vectors", "cells"])
def test_one_changed_pixel(where):
    """By one level of one channel, wherever it is."""
    pixels, rng = image_of_pixels(2), random.Random(1)
    with seeing_llm("mlp", prefix_cache=where == "cells") as llm:
        counts = Counts(llm)
        llm.generate((Image.open(pixels), "AB"), **GREEDY)
        before = counts.look()
        for _ in range(20):
            changed = pixels.copy()
            row, column, channel = rng.randrange(24), rng.randrange(24), rng.randrange(3)
            changed[row, column, channel] ^= 1
            llm.generate((Image.open(changed), "AB"), **GREEDY)
            assert counts.look() == before
        llm.generate((Image.open(pixels), "AB"), **GREEDY)
        assert counts.look()[0] == 0


def test_two_images_in_another_order():
    first, second = picture(0), picture(1)
    with seeing_llm("mlp") as llm:
        counts = Counts(llm)
        llm.generate((first, second, "A"), **GREEDY)
        assert counts.look()[0] == 2
        result = llm.generate((second, first, "A"), **GREEDY)
        assert counts.look() == (0, 33 + 2)
        assert result.usage.cached_tokens == 0
        result = llm.generate((first, second, "B"), **GREEDY)
        assert counts.look() == (0, 1 + 2)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_with_the_caches_off(name, tmp_path):
    prompts = [(picture(i), text) for i in (0, 1, 0) for text in ("AB", "AC", "D")]
    on = seeing_llm(name, cells=512, image_cache=ImageCache(folder=tmp_path))
    off = seeing_llm(name, cells=512, prefix_cache=False, image_cache=ImageCache(memory=0, disk=0))
    with on, off:
        counts, none = Counts(on), Counts(off)
        for prompt in prompts:
            ours, theirs = on.sequence(prompt), off.sequence(prompt)
            assert (ours.logits == theirs.logits).all()
            assert on.generate(prompt, **GREEDY).tokens == off.generate(prompt, **GREEDY).tokens
            ours.close()
            theirs.close()
        tiles = [len(_prepared(on, image).tiles) for image, _ in prompts]
        assert counts.look()[0] == tiles[0] + tiles[3]  # each picture once
        assert none.look()[0] == 2 * sum(tiles)  # every time


# -- never a stale picture --


class Oracle:
    """Logits behind a prompt by a model that keeps nothing, worked out once for each prompt."""

    def __init__(self, name):
        self._llm = seeing_llm(name, prefix_cache=False, image_cache=ImageCache(memory=0, disk=0))
        self._known = {}

    def logits(self, parts, images):
        if parts not in self._known:
            with self._llm.sequence(prompt_of(parts, images)) as sequence:
                self._known[parts] = sequence.logits.copy()
        return self._known[parts]

    def close(self):
        self._llm.close()


def prompt_of(parts, images):
    return tuple(images[part] if isinstance(part, int) else part for part in parts)


class Life:
    """A model with small caches and some sequences; each operation checks what it sees."""

    def __init__(self, name, rng, images, oracle, folder):
        memory, disk = rng.choice([0, 5000, 1 << 20]), rng.choice([0, 12_000, 1 << 20])
        cache = ImageCache(memory=memory, disk=disk, folder=folder)
        self.llm = seeing_llm(name, cells=rng.choice([80, 110, 200]), image_cache=cache)
        self._rng, self._images, self._oracle, self._folder = rng, images, oracle, folder
        self._open = []  # (parts, sequence)

    def parts(self):
        """Some images and texts, often the same ones."""
        rng = self._rng
        start = (rng.randrange(len(self._images)),)
        middle = rng.choice([(), (), ("A",), (rng.randrange(len(self._images)),), ("AB", 0)])
        return (*start, *middle, rng.choice(["A", "B", "AB", "ABC"]))

    def check(self, parts, logits):
        np.testing.assert_array_equal(logits, self._oracle.logits(parts, self._images), str(parts))

    def ask(self):
        parts = self.parts()
        with self.llm.sequence(prompt_of(parts, self._images)) as sequence:
            self.check(parts, sequence.logits)

    def ask_many(self):
        several = [self.parts() for _ in range(self._rng.randrange(2, 4))]
        prompts = [prompt_of(parts, self._images) for parts in several]
        for parts, result in zip(several, self.llm.generate(prompts, logprobs=3, **GREEDY), strict=True):
            best = self._oracle.logits(parts, self._images)
            assert result.tokens[0] == int(best.argmax())

    def cancel(self):
        stream = self.llm.stream(prompt_of(self.parts(), self._images), **GREEDY)
        for _ in range(self._rng.randrange(3)):
            self.llm.engine.step()
        stream.cancel()

    def keep_open(self):
        parts = self.parts()
        self._open.append((parts, self.llm.sequence(prompt_of(parts, self._images))))
        if len(self._open) > 2:
            self.close_one()

    def look(self):
        if self._open:
            parts, sequence = self._rng.choice(self._open)
            self.check(parts, sequence.logits)

    def go_on(self):
        if self._open:
            index = self._rng.randrange(len(self._open))
            parts, sequence = self._open[index]
            if len(parts) < 6:
                more = self._rng.choice([self._rng.randrange(len(self._images)), "C"])
                sequence.append(self._images[more] if isinstance(more, int) else more)
                self._open[index] = (*parts, more), sequence

    def fork(self):
        if self._open:
            parts, sequence = self._rng.choice(self._open)
            with sequence.fork() as twin:
                twin.append("D")
                self.check((*parts, "D"), twin.logits)

    def close_one(self):
        if self._open:
            self._open.pop(self._rng.randrange(len(self._open)))[1].close(park=self._rng.random() < 0.8)

    def forget(self):
        self._rng.choice([self.llm.cache.clear, lambda: self.llm.vision.cache.clear(disk=False)])()

    def damage(self):
        """Somebody writes into the folder."""
        files = sorted(self._folder.glob("*.safetensors"))
        if files:
            file = self._rng.choice(files)
            data = bytearray(file.read_bytes())
            data[self._rng.randrange(len(data))] ^= 255
            file.write_bytes(data)

    def save(self):
        if self._open:
            parts, sequence = self._rng.choice(self._open)
            path = self._folder / "saved"
            sequence.save(path)
            with self.llm.restore(path) as restored:
                self.check(parts, restored.logits)

    def run(self, n):
        actions = [self.ask] * 6 + [self.ask_many] * 2 + [self.keep_open, self.look, self.go_on, self.fork]
        actions += [self.cancel, self.close_one, self.forget, self.damage, self.save]
        for _ in range(n):
            try:
                self._rng.choice(actions)()
            except CacheFull:  # its own sequences are in the way
                self.close_one()
        self.llm.engine.cells.check()
        self.llm.close()


@pytest.mark.parametrize(("name", "n"), [("mlp", 700), ("gemma3", 300)])
def test_never_a_stale_picture(name, n, tmp_path):
    """A thousand operations in models that come and go over one folder, with caches of all sizes."""
    rng, size = random.Random(n), vision_spec(name).image_size
    pixels = [image_of_pixels(i, size) for i in range(3)]
    nearly = pixels[0].copy()
    nearly[3, 4, 1] ^= 1
    images = [Image.open(one) for one in (*pixels, nearly)]
    oracle = Oracle(name)
    for _ in range(n // 50):
        Life(name, rng, images, oracle, tmp_path).run(50)
    oracle.close()


@pytest.mark.parametrize(("name", "text"), [(name, None) for name in NAMES])
def test_on_disk_an_image_is_that_image_and_no_other(name, text, tmp_path):
    def seeing():
        llm = seeing_llm(name, text=text)
        llm.engine.keep_on_disk(DiskStore(tmp_path / "prefixes"), lambda: name)
        return llm

    before, between = ("ABCD", "ABCD") if name == "idefics3" else ("ABCD" * 6, "ABCD" * 8)
    prompt = (before, picture(0), between, picture(1), before)  # the first block ends in no image of gemma3
    with seeing_llm(name, text=text) as plain, plain.sequence(prompt) as sequence:
        wanted, n = sequence.logits.copy(), len(sequence)
    with seeing() as first:
        first.generate(prompt, **GREEDY)
    with seeing() as second, second.sequence(prompt) as sequence:
        assert (sequence.logits == wanted).all()
        assert 0 < second.cache.disk().tokens_read <= n
        second.cells.check()
    other = (prompt[0], picture(2), *prompt[2:])
    with seeing_llm(name, text=text) as plain, plain.sequence(other) as sequence:
        wanted = sequence.logits.copy()
    with seeing() as third, third.sequence(other) as sequence:
        assert (sequence.logits == wanted).all()
        assert third.cache.disk().tokens_read == 0
