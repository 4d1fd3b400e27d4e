"""Forked children: locks that work there, and models that say why they do not.

A child has the thread that forked and no other. A lock that another thread held stays locked there for ever,
and nobody runs what is given to a thread. So locks made by `lock()` and kin are fresh in a child, and owners
that registered themselves by `abandon_in_child` are told, and refuse from then on.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Protocol
from weakref import WeakSet

FORKED = (
    "the model was loaded before this process was forked, and its threads stayed in the parent; load it in "
    "the child (a server that forks workers: after the fork), or start the process by spawn"
)


class Owner(Protocol):
    """What cannot be used in a child."""

    def abandon(self) -> None:
        """Note that this is a forked child: refuse work, wait for no thread."""
        ...


_locks: WeakSet[Any] = WeakSet()
_owners: WeakSet[Any] = WeakSet()


def lock() -> threading.Lock:
    """A lock that is free in a forked child."""
    made = threading.Lock()
    _locks.add(made)
    return made


def recursive_lock() -> threading.RLock:
    """A recursive lock that is free in a forked child."""
    made = threading.RLock()
    _locks.add(made)
    return made


def condition() -> threading.Condition:
    """A condition that nobody holds or waits for in a forked child."""
    made = threading.Condition()
    _locks.add(made)
    return made


def abandon_in_child(owner: Owner) -> None:
    """Have `owner.abandon()` called in forked children."""
    _owners.add(owner)


def _after_fork() -> None:
    for one in list(_locks):
        one._at_fork_reinit()  # as the standard library does with its own
    for owner in list(_owners):
        owner.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
