"""Questions about a scene, with their answers, in phrasings for training and others for the test.

    ask(scene, rng)                     # [Question("colour", "What color is the shape?", "red"), …]

`every_text()` has all questions and answers that can ever come up, so that they can be tokenised beforehand.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import permutations, product
from typing import NamedTuple

import numpy as np
from scenes import COLOURS, MORE_WORDS, PLACES, SHAPES, SIZES, WORDS, Scene, Thing

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six")
ARTICLE = {"orange": "an"}


class Question(NamedTuple):
    """A question of a type, and the one right answer."""

    kind: str
    text: str
    answer: str


# {c} a color, {s} a shape, {a} "a" or "an"; {d} another color, {t} another shape.
TRAIN = {
    "colour": (
        "What color is the shape?",
        "What colour is the shape?",
        "Which color is it?",
        "What is the color of the object?",
        "What color is this?",
        "Name the color of the shape.",
        "Tell me the color.",
        "The shape in the picture has which color?",
        "What is the colour of the figure?",
        "Look at the image. What color do you see?",
        "What color does the object have?",
        "In what color is the shape drawn?",
        "Say the color of the shape in one word.",
        "What color is the {s}?",
        "Which colour does the {s} have?",
        "Name the color of the {s}.",
    ),
    "shape": (
        "What shape is this?",
        "Which shape is shown?",
        "What shape do you see?",
        "Name the shape.",
        "What kind of shape is in the image?",
        "What figure is drawn here?",
        "What is the shape of the object?",
        "Tell me which shape it is.",
        "Look at the picture. What shape is it?",
        "The object has what shape?",
        "What geometric figure do you see?",
        "Say the name of the shape in one word.",
        "What shape is the {c} object?",
        "Which shape is {c}?",
    ),
    "size": (
        "Is the shape small or large?",
        "Is it large or small?",
        "How big is the {s}, small or large?",
        "Is the {s} small or large?",
        "What is the size of the shape, small or large?",
        "Tell me if the object is small or large.",
    ),
    "place": (
        "Where is the shape?",
        "Where in the picture is the {s}?",
        "In which part of the image is the shape?",
        "What is the position of the {s}?",
        "Where is the object located?",
        "Tell me where the shape is.",
        "Which part of the picture holds the {s}?",
    ),
    "count": (
        "How many shapes are there?",
        "How many objects do you see?",
        "Count the shapes.",
        "What is the number of shapes in the image?",
        "How many figures are in the picture?",
        "Tell me how many shapes are shown.",
        "Count the objects in the picture.",
    ),
    "colour of": (
        "What color is the {s}?",
        "Which color does the {s} have?",
        "What is the color of the {s}?",
        "Name the color of the {s}.",
        "Tell me the color of the {s}.",
        "The {s} has which color?",
    ),
    "shape of": (
        "What shape is the {c} object?",
        "Which shape is {c}?",
        "What is the shape of the {c} object?",
        "Name the {c} shape.",
        "Tell me which shape is {c}.",
        "The {c} one has what shape?",
    ),
    "side": (
        "Is the {s} to the left or to the right of the {t}?",
        "On which side of the {t} is the {s}, left or right?",
        "Left or right: where is the {s}, seen from the {t}?",
        "Is the {c} shape to the left or to the right of the {d} one?",
        "Left or right: where is the {c} shape, seen from the {d} one?",
        "Is the {s} left or right of the {t}?",
        "Do you see the {s} left or right of the {t}?",
        "Tell me if the {s} is left or right of the {t}.",
        "Is the {s} on the left or on the right of the {t}?",
    ),
    "height": (
        "Is the {s} above or below the {t}?",
        "Above or below: where is the {s}, seen from the {t}?",
        "Is the {c} shape above or below the {d} one?",
        "Above or below: where is the {c} shape, seen from the {d} one?",
        "Do you see the {s} above or below the {t}?",
        "Tell me if the {s} is above or below the {t}.",
    ),
    "is there": (
        "Is there {a} {c} {s}?",
        "Do you see {a} {c} {s}?",
        "Does the image show {a} {c} {s}?",
        "Is {a} {c} {s} in the picture?",
        "Yes or no: is there {a} {c} {s}?",
    ),
    "word": (
        "What word is written?",
        "Which word do you see?",
        "Read the word.",
        "What does it say?",
        "What does the text say?",
        "What is written in the image?",
        "Read the text in the picture.",
        "Tell me the word.",
        "What can you read here?",
        "Please read the word in this picture.",
        "Which text is shown?",
    ),
    "number": (
        "What number is shown?",
        "Which number do you see?",
        "Read the number.",
        "What number is written?",
        "Tell me the number in the picture.",
        "What is the number in the image?",
        "Please read the number in this picture.",
        "What number can you read?",
    ),
    "caption": (
        "Describe the image.",
        "What is in the picture?",
        "What do you see?",
        "What is this?",
        "Describe what you see.",
        "What does the image show?",
        "Describe this.",
        "Please say what you see.",
        "Give a short description of the image.",
        "Can you describe what is shown?",
        "Describe the picture in one sentence.",
        "Write a caption for this image.",
        "Please tell me what this is.",
        "Describe the drawing.",
    ),
}
TEST = {
    "colour": (
        "What's the color of the thing in this picture?",
        "Can you tell me which color the shape is?",
        "Please give the color of the {s}.",
        "Which color was used to draw the object?",
    ),
    "shape": (
        "What's the name of this shape?",
        "Can you tell me what shape this is?",
        "Please name the figure in this picture.",
        "Which geometric shape does the image contain?",
    ),
    "size": ("Would you call the shape small or large?", "Small or large: which is the {s}?"),
    "place": ("Can you say where the shape is placed?", "At which position do you find the {s}?"),
    "count": ("How many of them can you count?", "What's the total number of objects here?"),
    "colour of": ("Can you tell me which color the {s} is?", "Please give the color of the {s}."),
    "shape of": ("Can you tell me what shape the {c} thing is?", "Please name the {c} figure."),
    "side": ("Does the {s} stand left or right of the {t}?",),
    "height": ("Does the {s} stand above or below the {t}?",),
    "is there": ("Can you see {a} {c} {s} here?", "Does this picture contain {a} {c} {s}?"),
    "word": ("Can you read what is written here?", "Which word does this picture show?"),
    "number": ("Can you read the number here?", "Which number does this picture show?"),
    "caption": ("Please describe this picture.",),
}


def ask(
    scene: Scene, rng: np.random.Generator, phrasings: dict[str, tuple[str, ...]] = TRAIN
) -> list[Question]:
    """All that can be asked about a scene, each in one phrasing, in random order, a description last."""
    found = [_phrased(kind, phrasings, rng, answer, **fills) for kind, answer, fills in _facts(scene, rng)]
    found = [found[i] for i in rng.permutation(len(found))]
    return [q for q in found if q.kind != "caption"] + [q for q in found if q.kind == "caption"]


def _phrased(
    kind: str, phrasings: dict[str, tuple[str, ...]], rng: np.random.Generator, answer: str, **fills: str
) -> Question:
    fitting = [text for text in phrasings[kind] if _names_in(text) <= fills.keys()]
    return Question(kind, fitting[int(rng.integers(len(fitting)))].format(**fills), answer)


@cache
def _names_in(text: str) -> frozenset[str]:
    return frozenset(name for name in "csdta" if f"{{{name}}}" in text)


def _facts(scene: Scene, rng: np.random.Generator) -> Iterator[tuple[str, str, dict[str, str]]]:
    """(type, answer, what a phrasing may name)"""
    if scene.kind in ("word", "number"):
        yield scene.kind, scene.text, {}
        return
    things = scene.things
    yield "count", NUMBERS[len(things)], {}
    named = all(thing.colour for thing in things)
    if named:
        yield _is_there(scene, rng)
    if len(things) == 1:
        (thing,) = things
        yield "shape", thing.shape, {"c": thing.colour} if named else {}
        if named:
            yield "colour", thing.colour, {"s": thing.shape}
        if thing.size in ("small", "large") and scene.kind == "single":
            yield "size", thing.size, {"s": thing.shape}
        if thing.size == "small":
            yield "place", thing.place, {"s": thing.shape}
        if named:
            yield "caption", _caption(things), {}
        return
    shapes, colours = [t.shape for t in things], [t.colour for t in things]
    for thing in things:
        if shapes.count(thing.shape) == 1:
            yield "colour of", thing.colour, {"s": thing.shape}
        if colours.count(thing.colour) == 1:
            yield "shape of", thing.shape, {"c": thing.colour}
    yield from _relations(things)
    if len(things) == 2 and scene.kind == "several":
        yield "caption", _caption(things), {}


def _is_there(scene: Scene, rng: np.random.Generator) -> tuple[str, str, dict[str, str]]:
    there = {(thing.colour, thing.shape) for thing in scene.things}
    if rng.random() < 0.5:
        colour, shape = sorted(there)[int(rng.integers(len(there)))]
    else:
        while True:  # half of them right: a color or a shape that is there, in another company
            thing = scene.things[int(rng.integers(len(scene.things)))]
            colour = thing.colour if rng.random() < 0.5 else str(rng.choice(list(COLOURS)))
            shape = thing.shape if rng.random() < 0.5 else str(rng.choice(SHAPES))
            if (colour, shape) not in there:
                break
    answer = "yes" if (colour, shape) in there else "no"
    return "is there", answer, {"c": colour, "s": shape, "a": ARTICLE.get(colour, "a")}


def _relations(things: tuple[Thing, ...]) -> Iterator[tuple[str, str, dict[str, str]]]:
    shapes, colours = [t.shape for t in things], [t.colour for t in things]
    for a, b in permutations(things, 2):
        fills: dict[str, str] = {}
        if shapes.count(a.shape) == 1 == shapes.count(b.shape):
            fills |= {"s": a.shape, "t": b.shape}
        if colours.count(a.colour) == 1 == colours.count(b.colour):
            fills |= {"c": a.colour, "d": b.colour}
        if "s" not in fills:
            continue
        if abs(a.x - b.x) > 0.2:
            yield "side", "left" if a.x < b.x else "right", fills
        if abs(a.y - b.y) > 0.2:
            yield "height", "above" if a.y < b.y else "below", fills


def _caption(things: tuple[Thing, ...]) -> str:
    if len(things) == 1:
        (thing,) = things
        size = "" if thing.size == "medium" else f"{thing.size} "
        article = ARTICLE.get(thing.colour, "a") if not size else "a"
        return f"{article.capitalize()} {size}{thing.colour} {thing.shape}."
    names = [
        f"{ARTICLE.get(t.colour, 'a')} {t.colour} {t.shape}" for t in sorted(things, key=lambda t: (t.y, t.x))
    ]
    text = " and ".join(names) + "."
    return text[0].upper() + text[1:]


def every_text() -> list[str]:
    """All questions and answers that can come up, each once."""
    texts = {*NUMBERS, *COLOURS, *SHAPES, *SIZES, *PLACES, *WORDS, *MORE_WORDS, *map(str, range(1000))}
    texts |= {"yes", "no", "left", "right", "above", "below"}
    pairs = [Thing(s, c, size, "", 0, 0, 0) for c, s, size in product(COLOURS, SHAPES, SIZES)]
    texts |= {_caption((thing,)) for thing in pairs}
    small = [thing for thing in pairs if thing.size == "small"]
    texts |= {_caption(both) for both in permutations(small, 2)}
    for templates in (*TRAIN.values(), *TEST.values()):
        for text in templates:
            texts |= set(_filled(text))
    return sorted(texts)


def _filled(text: str) -> Iterator[str]:
    """A phrasing with everything that can stand in it."""
    names = [name for name in "csdt" if f"{{{name}}}" in text]
    for values in product(*(COLOURS if name in "cd" else SHAPES for name in names)):
        fills = dict(zip(names, values, strict=True))
        yield text.format(**fills, a=ARTICLE.get(fills.get("c", ""), "a"))
