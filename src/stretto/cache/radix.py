"""A radix tree of lists: finds the stored list that shares the longest prefix with a given one.

Each edge holds a run of items, so a tree of a few long lists has a few nodes. Items are compared, not hashed:
there are no false hits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

V = TypeVar("V")
Items = tuple[object, ...]


class Radix(Generic[V]):
    """Values by lists of items.

    >>> tree = Radix()
    >>> tree.insert((1, 2, 3, 4), "a")
    >>> tree.longest((1, 2, 9))
    (2, 'a')
    """

    def __init__(self) -> None:
        self._root: _Node[V] = _Node((), None)

    def __bool__(self) -> bool:
        return bool(self._root.children)

    def insert(self, items: Sequence[object], value: V) -> None:
        """Store a value under a list, in place of an older one."""
        rest, node = tuple(items), self._root
        while rest:
            child = node.children.get(rest[0])
            if child is None:
                node.children[rest[0]] = _Node(rest, value)
                return
            n = common(child.items, rest)
            if n < len(child.items):  # the edge splits
                middle: _Node[V] = _Node(child.items[:n], None)
                child.items = child.items[n:]
                middle.children[child.items[0]] = child
                node.children[rest[0]] = child = middle
            node, rest = child, rest[n:]
        node.value = value

    def remove(self, items: Sequence[object]) -> None:
        """Forget the value of a list; `KeyError` if it has none."""
        rest, node, above = tuple(items), self._root, []
        while rest:
            child = node.children.get(rest[0])
            if child is None or child.items != rest[: len(child.items)]:
                raise KeyError(items)
            above.append(node)
            node, rest = child, rest[len(child.items) :]
        if node.value is None:
            raise KeyError(items)
        node.value = None
        if above and not node.children:
            del above[-1].children[node.items[0]]
            node = above.pop()
        if node.value is None and len(node.children) == 1 and node is not self._root:
            (child,) = node.children.values()  # an edge that needs no node in the middle
            node.items += child.items
            node.children, node.value = child.children, child.value

    def longest(self, items: Sequence[object]) -> tuple[int, V | None]:
        """Length of the longest prefix shared with a stored list, and that list's value, or (0, None)."""
        n, node = 0, self._root
        rest = tuple(items)
        while rest and (child := node.children.get(rest[0])) is not None:
            shared = common(child.items, rest)
            n, node, rest = n + shared, child, rest[shared:]
            if shared < len(child.items):
                break
        if not n:
            return 0, None
        while node.value is None:  # a leaf always has a value
            node = next(iter(node.children.values()))
        return n, node.value

    def prefixes(self, items: Sequence[object]) -> Iterator[V]:
        """The values of stored lists that are prefixes of `items`, the shortest first."""
        rest, node = tuple(items), self._root
        while rest and (child := node.children.get(rest[0])) is not None:
            if child.items != rest[: len(child.items)]:
                return
            node, rest = child, rest[len(child.items) :]
            if node.value is not None:
                yield node.value


class _Node(Generic[V]):
    __slots__ = ("children", "items", "value")

    def __init__(self, items: Items, value: V | None) -> None:
        self.items = items  # of the edge that leads here
        self.value = value
        self.children: dict[object, _Node[V]] = {}


def common(a: Sequence[object], b: Sequence[object]) -> int:
    """Length of the longest common prefix of two lists.

    >>> common([1, 2, 3], [1, 2, 4, 5])
    2
    """
    most = min(len(a), len(b))
    if a[:most] == b[:most]:
        return most
    low, high = 0, most  # a[:low] == b[:low] and a[:high] != b[:high]
    while high - low > 16:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return next(n for n in range(low, high) if a[n] != b[n])
