"""Batches for training: pictures, conversations about them as tokens, and what the second teacher asks.

Processes of their own draw and write them; nothing here needs torch.
"""

from __future__ import annotations

import json
import multiprocessing as mp
from dataclasses import dataclass
from queue import Empty, Queue
from threading import Thread

import numpy as np
from questions import TEST, TRAIN, Question, ask
from scenes import COLOURS, SHAPES, Scene, draw, make_scene

IMAGE = -1  # in a list of tokens: a token of the image
IGNORED = -100  # a label that is none
TURNS = 3  # questions about one picture, at most
LETTERS = 6
ALPHABET = "-abcdefghijklmnopqrstuvwxyz0123456789"
SIDE = 8  # patches along each side
N_COUNTS = 7


@dataclass
class Texts:
    """All texts as tokens, and what stands around them in the model's chat format."""

    texts: dict[str, list[int]]
    around: dict[str, list[int]]
    end: int
    n_image: int

    @classmethod
    def read(cls, head: np.ndarray, n_image: int) -> Texts:
        """From what prepare.py wrote."""
        found = json.loads(head.tobytes())
        return cls(found["texts"], found["around"], found["config"]["end"], n_image)

    def conversation(
        self, questions: list[Question], rng: np.random.Generator
    ) -> tuple[list[int], list[int], list[int]]:
        """Tokens, the label of each (itself in an answer), and the number of the question that it answers."""
        image = [IMAGE] * self.n_image
        first = self.texts[questions[0].text]
        if rng.random() < 0.12:  # not in the chat format: the image, the question, the answer
            tokens = [*image, *first, *self.around["line"]]
            questions = questions[:1]
        else:
            both = (first, image) if rng.random() < 0.1 else (image, first)
            tokens = [*self.around["begin"], *both[0], *both[1], *self.around["answer"]]
        labels, which = [IGNORED] * len(tokens), [-1] * len(tokens)
        for i, question in enumerate(questions):
            if i:
                more = [*self.around["next"], *self.texts[question.text], *self.around["answer"]]
                tokens, labels, which = (
                    tokens + more,
                    labels + [IGNORED] * len(more),
                    which + [-1] * len(more),
                )
            answer = [*self.texts[question.answer], self.end]
            tokens, labels, which = tokens + answer, labels + answer, which + [i] * len(answer)
        return tokens, labels, which


@dataclass
class Batch:
    """Arrays of n examples; `kinds` are the types of their questions."""

    pixels: np.ndarray  # uint8[n, 128, 128, 3]
    tokens: np.ndarray  # int32[n, length], IMAGE where the image goes
    labels: np.ndarray  # int32[n, length]
    which: np.ndarray  # int8[n, length]: the question that a label belongs to
    colours: np.ndarray  # int64[n, 64]: the color of the thing at each patch, 0 for none; IGNORED: no name
    shapes: np.ndarray  # int64[n, 64]: its shape
    counts: np.ndarray  # int64[n]
    letters: np.ndarray  # int64[n, LETTERS]
    kinds: list[list[str]]


def pictures(n: int, rng: np.random.Generator, *, unseen: bool = False) -> list[tuple[Scene, np.ndarray]]:
    """Scenes, drawn."""
    return [(scene, draw(scene, rng)) for scene in (make_scene(rng, unseen=unseen) for _ in range(n))]


def make_batch(texts: Texts, n: int, rng: np.random.Generator, *, test: bool = False) -> Batch:
    """Examples; with `test` of what is not seen in training, one question each."""
    drawn = pictures(n, rng, unseen=test)
    rows, kinds = [], []
    for scene, _ in drawn:
        questions = _chosen(ask(scene, rng, TEST if test else TRAIN), 1 if test else TURNS, rng)
        rows.append(texts.conversation(questions, rng))
        kinds.append([question.kind for question in questions])
    length = -(-max(len(tokens) for tokens, _, _ in rows) // 16) * 16
    return Batch(
        pixels=np.stack([image for _, image in drawn]),
        tokens=_padded([tokens for tokens, _, _ in rows], length, 0, np.int32),
        labels=_padded([labels for _, labels, _ in rows], length, IGNORED, np.int32),
        which=_padded([which for _, _, which in rows], length, -1, np.int8),
        colours=np.stack([_at_patches(scene)[0] for scene, _ in drawn]),
        shapes=np.stack([_at_patches(scene)[1] for scene, _ in drawn]),
        counts=np.array([len(scene.things) for scene, _ in drawn], np.int64),
        letters=np.stack([_letters(scene) for scene, _ in drawn]),
        kinds=kinds,
    )


def _chosen(questions: list[Question], n: int, rng: np.random.Generator) -> list[Question]:
    """Up to `n` of them, no two of one type; a description of everything comes last."""
    kinds = sorted({question.kind for question in questions})
    picked = [kinds[i] for i in rng.permutation(len(kinds))[:n]]
    picked.sort(key=lambda kind: kind == "caption")
    return [next(question for question in questions if question.kind == kind) for kind in picked]


def _padded(rows: list[list[int]], length: int, filler: int, dtype: type) -> np.ndarray:
    found = np.full((len(rows), length), filler, dtype)
    for i, row in enumerate(rows):
        found[i, : len(row)] = row
    return found


def _at_patches(scene: Scene) -> tuple[np.ndarray, np.ndarray]:
    """What stands at each patch: color and shape apart, so that unseen pairs are nothing new."""
    middle = (np.arange(SIDE) + 0.5) / SIDE
    colours, shapes = np.zeros((SIDE, SIDE), np.int64), np.zeros((SIDE, SIDE), np.int64)
    for thing in scene.things:
        near = np.hypot(middle[None, :] - thing.x, middle[:, None] - thing.y) < max(thing.radius, 0.09)
        colours[near] = 1 + list(COLOURS).index(thing.colour) if thing.colour else IGNORED
        shapes[near] = 1 + SHAPES.index(thing.shape)
    return colours.ravel(), shapes.ravel()


def _letters(scene: Scene) -> np.ndarray:
    text = scene.text[:LETTERS].ljust(LETTERS, "-")
    return np.array([ALPHABET.index(letter) for letter in text], np.int64)


class Source:
    """Batches without end, made by `workers` processes: by a seed the same, in no certain order."""

    def __init__(self, texts: Texts, n: int, seed: int, workers: int) -> None:
        context = mp.get_context("fork")  # before anyone touches a GPU
        self._queue: mp.Queue[Batch] = context.Queue(maxsize=3 * workers)
        self._processes = [
            context.Process(target=_work, args=(self._queue, texts, n, [seed, i]), daemon=True)
            for i in range(workers)
        ]
        for process in self._processes:
            process.start()
        self._ready: Queue[Batch] = Queue(maxsize=4)
        Thread(target=self._fetch, daemon=True).start()

    def next(self) -> Batch:
        """A batch."""
        while True:
            try:
                return self._ready.get(timeout=60)
            except Empty:
                if not any(process.is_alive() for process in self._processes):
                    raise RuntimeError("all processes that draw have ended") from None

    def _fetch(self) -> None:
        while True:
            self._ready.put(self._queue.get())

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.terminate()


def _work(queue: mp.Queue[Batch], texts: Texts, n: int, seed: list[int]) -> None:
    rng = np.random.default_rng(seed)
    while True:
        queue.put(make_batch(texts, n, rng))
