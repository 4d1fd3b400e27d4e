"""The tree of lists finds what a search through all lists finds."""

import random

import pytest

from stretto.cache.radix import Radix, common


@pytest.mark.one_in(3)
@pytest.mark.parametrize("letters", [2, 4, 50])
def test_against_a_plain_dict(letters):
    rng = random.Random(letters)
    tree, model = Radix(), {}
    for number in range(4000):
        items = tuple(rng.randrange(letters) for _ in range(rng.randrange(1, 12)))
        if model and rng.random() < 0.3:
            items = rng.choice(list(model)) + items[: rng.randrange(3)]
        action = rng.random()
        if action < 0.5:
            tree.insert(items, number)
            model[items] = number
        elif action < 0.75 and model:
            gone = rng.choice(list(model))
            tree.remove(gone)
            del model[gone]
        n, value = tree.longest(items)
        best = max((common(key, items) for key in model), default=0)
        assert n == best
        if n:
            assert any(common(key, items) == n and found == value for key, found in model.items())
        else:
            assert value is None
        prefixes = sorted((key for key in model if items[: len(key)] == key), key=len)
        assert list(tree.prefixes(items)) == [model[key] for key in prefixes]


def test_what_is_not_there_cannot_be_removed():
    tree = Radix()
    tree.insert((1, 2, 3), "a")
    for items in ((1, 2), (1, 2, 3, 4), (2,), ()):
        with pytest.raises(KeyError):
            tree.remove(items)
    tree.remove((1, 2, 3))
    assert tree.longest((1, 2, 3)) == (0, None)


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 100, 1000])
def test_common(n):
    a = list(range(1000))
    b = [*range(n), -1, *range(5)]
    assert common(a, b) == common(b, a) == n
    assert common(a[:n], a) == n
