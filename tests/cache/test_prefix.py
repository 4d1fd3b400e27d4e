"""Parked sequences: what is found, what is kept, and who goes first."""

import random

import pytest

from stretto.cache.cells import Cells
from stretto.cache.prefix import MIN_EVICTED_CELLS, Domain, PrefixCache
from stretto.cache.radix import common


@pytest.fixture
def cells():
    return Cells(1000)


@pytest.fixture
def prefixes(cells):
    return PrefixCache(cells)


def park(cells, prefixes, sequence, items, **options):
    """A sequence with a cell for each item, which is then parked."""
    cells.place([0] * len(items), range(len(items)), [(sequence,)] * len(items))
    return prefixes.park(sequence, items, **options)


def test_the_longest_match(cells, prefixes):
    park(cells, prefixes, 1, [1, 2, 3, 4])
    park(cells, prefixes, 2, [1, 2, 9])
    assert prefixes.match([1, 2, 3, 5]) == (1, 3)
    assert prefixes.match([1, 2, 9, 9]) == (2, 3)
    assert prefixes.match([1, 7])[1] == 1
    assert prefixes.match([7]) == (None, 0)
    assert prefixes.match([]) == (None, 0)


def test_a_longer_one_takes_the_place_of_a_shorter_one(cells, prefixes):
    park(cells, prefixes, 1, [1, 2])
    assert park(cells, prefixes, 2, [1, 2, 3]) == 2
    assert 2 in prefixes
    assert (len(prefixes), cells.n_used) == (1, 3)
    assert park(cells, prefixes, 3, [1, 2]) == 2  # all of it is there
    assert (len(prefixes), cells.n_used) == (1, 3)


def test_domains_find_nothing_of_each_other(cells, prefixes):
    ours, theirs = Domain(salt="a"), Domain(salt="b")
    park(cells, prefixes, 1, [1, 2, 3], domain=ours)
    for other in (theirs, Domain(), Domain(adapter="a"), Domain(salt="a", private=1)):
        assert prefixes.match([1, 2, 3], other) == (None, 0)
    assert park(cells, prefixes, 2, [1, 2, 3], domain=theirs) == 2  # cells of its own
    assert (prefixes.match([1, 2, 4], ours), prefixes.match([1, 2, 4], theirs)) == ((1, 2), (2, 2))
    domains = {entry.id: entry.domain for entry in prefixes.entries()}
    assert (domains[1], domains.get(3)) == (ours, None)


def test_a_domain_leaves_nothing_behind(cells, prefixes):
    for number in range(200):  # each has a salt of its own, and most are evicted
        park(cells, prefixes, number, [1] * 100, domain=Domain(salt=str(number)))
        prefixes.evict(500)
    assert len(prefixes.trees) == len(prefixes) <= 5


def test_what_is_behind_the_items_becomes_free(cells, prefixes):
    cells.place([0] * 5, range(5), [(1,)] * 5)
    prefixes.park(1, [7, 8, 9])
    assert cells.count(1) == 3
    cells.place([0] * 5, range(5), [(2,)] * 5)
    prefixes.park(2, [])
    assert cells.count(2) == 0


def test_the_least_recently_used_goes_first(cells, prefixes):
    for sequence in range(10):
        park(cells, prefixes, sequence, [sequence] * 100)
    prefixes.match([0] * 50)
    assert prefixes.evict(150)
    assert prefixes.match([0] * 100) == (0, 100)
    assert prefixes.match([1] * 100) == (None, 0)
    assert prefixes.match([2] * 100) == (2, 100 - MIN_EVICTED_CELLS)  # only as much as was needed
    assert prefixes.match([3] * 100) == (3, 100)


def test_pinned_ones_stay(cells, prefixes):
    park(cells, prefixes, 1, [1] * 400, pins=1)
    park(cells, prefixes, 2, [2] * 400)
    assert prefixes.n_evictable() == 400
    assert not prefixes.evict(700)
    assert cells.n_free == 600
    prefixes.clear()
    assert prefixes.match([1] * 10) == (1, 10)
    prefixes.unpin(1)
    assert prefixes.evict(1000)
    prefixes.unpin(1)  # gone: nothing to undo


def test_pinned_twice_is_unpinned_twice(cells, prefixes):
    assert park(cells, prefixes, 1, [1, 2, 3], pins=1) == 1
    assert park(cells, prefixes, 2, [1, 2, 3], pins=1) == 1
    assert park(cells, prefixes, 3, [1, 2], pins=1) == 3  # a part of the other, with a pin of its own
    prefixes.unpin(1)
    assert prefixes.n_evictable() == 0
    prefixes.unpin(1)
    assert prefixes.n_evictable() == 3
    prefixes.clear()
    assert prefixes.match([1, 2, 3]) == (3, 2)


def test_shared_cells_are_free_only_when_nobody_has_them(cells, prefixes):
    cells.place([0] * 100, range(100), [(1,)] * 100)
    cells.copy(1, 2)
    prefixes.park(1, list(range(100)))
    assert prefixes.n_evictable() == 0
    assert not prefixes.evict(950)
    assert cells.count(2) == 100


def test_random_life(cells, prefixes):
    """Whatever happens, the table is sound and a match is a true one."""
    rng = random.Random(0)
    keys = {}
    for number in range(3000):
        items = tuple(rng.randrange(3) for _ in range(rng.randrange(1, 30)))
        action = rng.random()
        if action < 0.5 and cells.n_free >= len(items):
            source, n = prefixes.match(items[:-1])
            if n:
                cells.copy(source, number, 0, n)
            rest = len(items) - n
            cells.place([0] * rest, range(n, len(items)), [(number,)] * rest)
            keys[prefixes.park(number, items)] = None
        elif action < 0.7:
            prefixes.evict(rng.randrange(1000))
        elif action < 0.72:
            prefixes.clear()
        else:
            source, n = prefixes.match(items)
            assert (source is None) == (n == 0)
            assert source is None or cells.count(source) >= n
        if number % 100 == 0:
            cells.check()
            assert prefixes.stats().held == 0
    assert common((), ()) == 0
