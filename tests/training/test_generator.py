"""The pictures and questions that "sketch" is trained on."""

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parent.parent.parent / "training"


@pytest.fixture(scope="module")
def generator():
    sys.path.insert(0, str(FOLDER))
    try:
        import questions
        import scenes

        yield scenes, questions
    finally:
        sys.path.remove(str(FOLDER))
        for name in ("scenes", "questions"):
            sys.modules.pop(name, None)


def test_every_text_is_known_beforehand(generator):
    scenes, questions = generator
    known, kinds = set(questions.every_text()), Counter()
    rng = np.random.default_rng(1)
    for i in range(600):
        scene = scenes.make_scene(rng, unseen=i % 3 == 0)
        for phrasings in (questions.TRAIN, questions.TEST):
            for question in questions.ask(scene, rng, phrasings):
                assert {question.text, question.answer} <= known
                kinds[question.kind] += 1
    assert kinds.keys() == questions.TRAIN.keys() == questions.TEST.keys()
    for kind, phrasings in questions.TEST.items():
        assert not set(phrasings) & set(questions.TRAIN[kind])


def test_what_is_unseen_is_not_drawn_in_training(generator):
    scenes, _ = generator
    rng = np.random.default_rng(2)
    for _ in range(500):
        scene, other = scenes.make_scene(rng), scenes.make_scene(rng, unseen=True)
        assert not {(t.colour, t.shape) for t in scene.things} & scenes.UNSEEN_PAIRS
        if other.things:
            assert (other.things[0].colour, other.things[0].shape) in scenes.UNSEEN_PAIRS
        for one, unseen in ((scene, False), (other, True)):
            if one.kind == "word":
                assert (one.text in scenes.UNSEEN_WORDS) == unseen
            if one.kind == "number":
                assert (int(one.text) in scenes.UNSEEN_NUMBERS) == unseen


def test_the_same_seed_draws_the_same(generator):
    scenes, _ = generator

    def drawn(seed):
        rng = np.random.default_rng(seed)
        return np.stack([scenes.draw(scenes.make_scene(rng), rng) for _ in range(20)])

    assert (drawn(3) == drawn(3)).all()
    assert (drawn(3) != drawn(4)).any()
    assert drawn(3).shape == (20, 128, 128, 3)


def test_answers_are_true_of_the_pixels(generator):
    """A large plain thing has its colour in the middle, and a small one where it is said to be."""
    scenes, questions = generator
    rng, checked = np.random.default_rng(5), 0
    for _ in range(530):
        scene = scenes.make_scene(rng, kind="single")
        (thing,) = scene.things
        image = scenes.draw(scene, rng).astype(float)
        answers = {q.kind: q.answer for q in questions.ask(scene, rng)}
        assert answers.get("colour", scenes.NAMELESS) == thing.colour
        assert answers["shape"] == thing.shape
        x, y = round(thing.x * 128), round(thing.y * 128)
        middle = image[y - 2 : y + 3, x - 2 : x + 3].mean(axis=(0, 1))
        if thing.colour == scenes.NAMELESS:
            assert not {"colour", "is there", "caption"} & answers.keys()
            continue
        nearest = min(scenes.COLOURS, key=lambda name: np.linalg.norm(middle - scenes.COLOURS[name]))
        checked += nearest == thing.colour
        if "place" in answers:
            row, column = divmod(scenes.PLACES.index(answers["place"]), 3)
            assert (int(thing.y * 3), int(thing.x * 3)) == (row, column)
    assert checked > 280  # outlined things show the ground there
