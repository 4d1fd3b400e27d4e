"""Prefixes on disk: parked cells go to files in the background, and come back before a prompt is queued.

Reading: what a new prompt can share with no sequence in memory is looked up on disk, block after block. The
blocks become a parked sequence, from which the prompt starts as from any other. Other requests run
meanwhile.

Writing: a thread looks for parked sequences with blocks that have no files yet, soon after one is parked.
What is evicted before is copied to main memory first, within a limit. Cells are read block by block under
the engine's lock, with pauses, so that requests that run hardly notice.
"""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from weakref import WeakSet

import numpy as np

from stretto.cache.disk import BLOCK_TOKENS, Bytes, DiskStore, DiskUsage, Root
from stretto.cache.lags import set_lags
from stretto.cache.prefix import CacheKey, Domain, Parked
from stretto.engine.runner import Runner
from stretto.engine.saving import count_lags
from stretto.engine.track import TAIL_TOKENS, Track
from stretto.errors import CacheFull
from stretto.hardware import fork_safety

GATHER_SECONDS = 0.25  # from the end of a request to the first write, so that several go together
SPREAD_SECONDS = 2.5  # over which all blocks that are new are written while requests run
PAUSE_SECONDS = 0.05  # between two blocks then, at most
IDLE_SECONDS = 5.0  # without anything to write, after which the thread ends
RESCUED_BYTES = 128 << 20  # of evicted blocks that wait for being written, at most
READ_AHEAD = 4  # blocks that are read while one is put into its cells
READERS = 2  # threads that read and check blocks

Lock = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class DiskStats:
    """What a model has read and written since it was loaded, and what the folder holds."""

    tokens_read: int
    blocks_written: int
    bytes_written: int
    usage: DiskUsage


@dataclass(frozen=True)
class _Block:
    """A block without a file, or the states behind one."""

    root: Root
    key: bytes
    depth: int  # its place in the chain
    has_states: bool = False


_open: WeakSet[StoredPrefixes] = WeakSet()


@atexit.register
def _finish_all() -> None:
    """Write what is left when the interpreter ends and nobody has closed the model."""
    for stored in list(_open):
        stored.finish()


class StoredPrefixes:
    """The disk store of one model: between its parked sequences and the files.

    `identity` names all but the tokens that the bits of a cell depend on; `lock` is the engine's, asked for
    as an arriving request does.
    """

    def __init__(self, runner: Runner, store: DiskStore, identity: Callable[[], str], lock: Lock) -> None:
        self._runner, self.store = runner, store
        self._identity, self._lock = identity, lock
        self._identity_text: str | None = None
        self._loading = fork_safety.lock()  # held while blocks are read: equal prompts read them once
        self._writing = fork_safety.lock()  # held while blocks are written
        self._filing = fork_safety.lock()  # held for a moment: of what is rescued, and what is forgotten
        self._forgotten: set[bytes] = set()  # blocks that may have been read before they were
        self._changed = fork_safety.condition()
        self._has_news = self._closed = False
        self._thread: threading.Thread | None = None
        self._done: dict[int, int] = {}  # how many items of a parked sequence have been looked at
        self._rescued: deque[tuple[_Block, Bytes]] = deque()
        self._blocks_written = 0
        runner.on_park, runner.prefixes.on_evict = self._wake, self._rescue
        _open.add(self)
        fork_safety.abandon_in_child(self)

    def stats(self) -> DiskStats:
        """What was read and written so far, and what the folder holds."""
        metrics = self._runner.metrics
        usage = self.store.usage()
        return DiskStats(metrics.stored_tokens, self._blocks_written, metrics.stored_bytes, usage)

    # -- reading --

    def load(self, track: Track) -> None:
        """Bring the longest prefix of a track that is on disk into cells, if that is more than cells have.

        Nothing is raised for what cannot be read or has no room: then it is computed.
        """
        runner, (items, domain) = self._runner, track.cache_key
        n = (len(items) - 1) // BLOCK_TOKENS
        if self._closed or n < 1 or not domain.is_common:
            return
        if track.checkpoints is not None:  # a state that can be kept, behind the last whole block
            track.checkpoints.want((len(items) - TAIL_TOKENS) // BLOCK_TOKENS * BLOCK_TOKENS)
        if track.n_placed:  # it takes no other cells
            return
        root = self._root(domain)
        keys = self._find(root, items, n)
        if not keys or not self._loading.acquire(blocking=not self._is_inside):
            return
        try:
            with self._lock():
                if runner.closed or (match := runner.lookup(track)) is None or track.domain != domain:
                    return
            if len(keys) * BLOCK_TOKENS > match.n:
                self._load(track, domain, root, keys)
            for depth, key in enumerate(keys[: match.n // BLOCK_TOKENS]):  # in use, though not read
                self.store.touch(root, key, depth)
        except CacheFull:
            return
        finally:
            self._loading.release()

    @property
    def _is_inside(self) -> bool:
        """Whether this thread holds the engine's lock: others may wait for it, so it waits for none."""
        return bool(self._runner.lock._is_owned())  # type: ignore[attr-defined]  # conditions use it too

    def _find(self, root: Root, items: Sequence[object], n: int) -> list[bytes]:
        """The keys of the first blocks that are there, n at most; with recurrent layers up to a state."""
        keys: list[bytes] = []
        for key in self.store.chain(root, items, n):
            if not self.store.has(root, key):
                break
            keys.append(key)
        if self._runner.slots is not None:
            while keys and not self.store.has(root, self.store.state_key(keys[-1])):
                keys.pop()
        return keys

    def _load(self, track: Track, domain: Domain, root: Root, keys: list[bytes]) -> None:
        """Read blocks into cells that a holder has meanwhile, and park those that were sound."""
        runner, slots = self._runner, self._runner.slots
        with self._lock():
            runner.check_open()
            match, holder = runner.lookup(track), runner.borrowed.take(self)
            start = 0 if match is None or slots is not None else match.n // BLOCK_TOKENS
            stop = self._fitting(track, start, len(keys))
            try:
                if start and match is not None and match.source is not None:
                    runner.cells.copy(match.source, holder, 0, start * BLOCK_TOKENS)
                cells = self._place(track, holder, start, stop)
            except BaseException:
                runner.borrowed.give_back(self, [holder])
                raise
        n = start
        try:
            for first, data in self._read_ahead(root, keys, start, stop):
                with self._lock():
                    runner.check_open()
                    place = cells[(first - start) * BLOCK_TOKENS :][:BLOCK_TOKENS]
                    runner.backend.write_cells(place, data.reshape(len(place), -1))
                n = first + 1
            runner.metrics.stored_tokens += (n - start) * BLOCK_TOKENS
        finally:
            with self._lock():
                if not runner.closed:
                    self._park(track, domain, root, keys, holder, n, stop)

    def _fitting(self, track: Track, start: int, stop: int) -> int:
        """How many blocks find cells that running requests do not need, and end no image in its middle."""
        runner = self._runner
        others = [other for other in runner.tracks.values() if other.running and other is not track]
        pending = sum([other.n_pending for other in others])
        room = (runner.n_available() - pending) // BLOCK_TOKENS
        if start + room < stop:
            if runner.slots is not None:
                return start  # there is one state, behind all of them
            stop = max(start, start + room)
        while stop > start and track.whole_images(stop * BLOCK_TOKENS) != stop * BLOCK_TOKENS:
            stop -= 1
        return stop

    def _place(self, track: Track, holder: int, start: int, stop: int) -> np.ndarray:
        """Cells for blocks, of a sequence that nothing reads from yet."""
        runner, n = self._runner, (stop - start) * BLOCK_TOKENS
        runner.make_room(n)
        first = start * BLOCK_TOKENS
        tokens, positions = track.tokens[first : first + n], list(range(first, first + n))
        cells = runner.cells.place(tokens, positions, [(holder,)] * n)
        if track.has_images:
            lags = count_lags(track.tokens[: first + n], list(range(first + n)))
            set_lags(runner.cells, cells, lags[first:])
        return cells

    def _read_ahead(
        self, root: Root, keys: Sequence[bytes], start: int, stop: int
    ) -> Iterator[tuple[int, Bytes]]:
        """Blocks in order, up to the first that is not sound; the next ones are read meanwhile."""
        nbytes = BLOCK_TOKENS * self._runner.backend.cell_bytes
        with ThreadPoolExecutor(READERS) as pool:
            coming: deque[Future[Bytes | None]] = deque()
            asked = start

            def ask() -> None:
                nonlocal asked
                with suppress(RuntimeError):  # no thread can be started now: it is asked for again
                    while asked < stop and len(coming) <= READ_AHEAD:
                        coming.append(pool.submit(self.store.read, root, keys[asked], nbytes, asked))
                        asked += 1

            for i in range(start, stop):
                ask()
                data = coming.popleft().result() if coming else None
                if data is None:
                    return
                yield i, data

    def _park(
        self, track: Track, domain: Domain, root: Root, keys: Sequence[bytes], holder: int, n: int, stop: int
    ) -> None:
        """Park the first n blocks of a holder, with the states behind them; under the lock."""
        runner, slots = self._runner, self._runner.slots
        try:
            if slots is not None:
                n = n if n == stop and self._put_state(root, keys, holder, n) else 0
            runner.cells.remove(holder, n * BLOCK_TOKENS)
            if n:
                items = track.cache_key.items[: n * BLOCK_TOKENS]
                runner.park(holder, CacheKey(items, domain), None, keep_id=True)
        finally:
            runner.borrowed.give_back(self, [holder])

    def _put_state(self, root: Root, keys: Sequence[bytes], holder: int, n: int) -> bool:
        """Give a holder the states behind its n blocks."""
        runner, slots = self._runner, self._runner.slots
        assert slots is not None
        if not n:
            return False
        state = self.store.read(root, self.store.state_key(keys[n - 1]), runner.backend.slot_bytes, n)
        if state is None or not runner.prefixes.evict_states(1):
            return False
        slot = slots.put(holder, n * BLOCK_TOKENS)
        runner.backend.write_slots(np.array([slot], np.int32), state.reshape(1, -1))
        return True

    def forget(self, items: Sequence[object], domain: Domain) -> None:
        """Remove the blocks of a text from disk."""
        root = self._root(domain)
        keys = set(self.store.chain(root, items))
        keys |= {self.store.state_key(key) for key in keys}
        with self._filing:
            self._forgotten |= keys
            self._rescued = deque([one for one in list(self._rescued) if one[0].key not in keys])
        self.store.remove(root, keys)

    # -- writing --

    def _wake(self) -> None:
        """A sequence was parked: have the thread look for what is new."""
        with self._changed:
            self._has_news = True
            if not self._closed and (self._thread is None or not self._thread.is_alive()):
                thread = threading.Thread(target=self._work, name="stretto-disk", daemon=True)
                with suppress(RuntimeError):  # no thread can be started now: the next text tries again
                    thread.start()
                    self._thread = thread
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._has_news:
                    self._changed.wait(IDLE_SECONDS)
                if self._closed or not self._has_news:
                    self._thread = None
                    return
                self._changed.wait_for(lambda: self._closed, GATHER_SECONDS)
                self._has_news = False
            self._write_new()

    def _write_new(self, at_once: bool = False) -> None:
        """Write the blocks of parked sequences that have no files, those used last first."""
        if not self._writing.acquire(blocking=not self._is_inside):
            return
        try:
            if not self._write_rescued():
                return
            with self._lock():
                if self._runner.closed:
                    return
                entries = list(self._runner.prefixes.entries())
                with self._filing:
                    self._forgotten.clear()  # what is parked by now was not
                done = {entry.id: self._done.get(entry.id, 0) for entry in entries}
                self._done = {number: n for number, n in done.items() if n}
                new = [
                    (entry.id, entry.items, entry.domain)
                    for entry in reversed(entries)
                    if len(entry.items) != done[entry.id] and entry.domain.is_common
                ]
            missing = [self._missing(number, items, domain) for number, items, domain in new]
            pause = min(PAUSE_SECONDS, SPREAD_SECONDS / max(1, sum(map(len, missing))))
            for (number, items, _), blocks in zip(new, missing, strict=True):
                for block in blocks:
                    data = self._read_parked(number, items, block)
                    if data is None:  # evicted meanwhile
                        break
                    if not self._write(block, data):
                        return
                    if not at_once and self._runner.metrics.running and self._wait(pause):
                        return
                self._done[number] = len(items)
        finally:
            self._writing.release()

    def _wait(self, seconds: float) -> bool:
        """Let others run for a while; return whether the model is being closed."""
        with self._changed:
            return bool(self._changed.wait_for(lambda: self._closed, seconds))

    def _missing(self, number: int, items: Sequence[object], domain: Domain) -> list[_Block]:
        """The blocks of a sequence without a file; with recurrent layers up to its last state behind one."""
        root, slots = self._root(domain), self._runner.slots
        keys = list(self.store.chain(root, items))
        states: list[int] = []  # how many blocks are before each
        if slots is not None:
            with self._lock():
                positions = [slots.positions[slot] for slot in slots.views.get(number, ())]
            states = [at // BLOCK_TOKENS for at in positions if not at % BLOCK_TOKENS and at <= len(items)]
            keys = keys[: max(states, default=0)]
        blocks = [_Block(root, key, depth) for depth, key in enumerate(keys)]
        blocks += [_Block(root, self.store.state_key(keys[n - 1]), n, has_states=True) for n in states if n]
        missing = [block for block in blocks if not self.store.has(root, block.key)]
        if missing:  # what is before them is in use too
            for block in blocks[: missing[0].depth]:
                self.store.touch(root, block.key, block.depth)
        return missing

    def _read_parked(self, number: int, items: Sequence[object], block: _Block) -> Bytes | None:
        """A copy of a block's cells or states, if the sequence that has them is still parked."""
        with self._lock():
            entry = self._runner.prefixes.find_entry(number)
            if self._runner.closed or entry is None or entry.items != items[: len(entry.items)]:
                return None
            return self._read_block(entry, block)

    def _read_block(self, entry: Parked, block: _Block) -> Bytes | None:
        """A copy of a block's cells or states; None if they are gone. Under the lock."""
        runner, slots = self._runner, self._runner.slots
        if block.has_states:
            assert slots is not None
            at = block.depth * BLOCK_TOKENS
            found = [slot for slot in slots.views.get(entry.id, ()) if slots.positions[slot] == at]
            return runner.backend.read_slots(np.array(found, np.int32)) if found else None
        first = block.depth * BLOCK_TOKENS
        if len(entry.items) < first + BLOCK_TOKENS:
            return None
        return runner.backend.read_cells(runner.cells.view(entry.id)[first : first + BLOCK_TOKENS].copy())

    def _write(self, block: _Block, data: Bytes) -> bool:
        if self._is_forgotten(block) or self.store.has(block.root, block.key):
            return True
        if not self.store.write(block.root, block.key, data, block.depth):
            return False
        if self._is_forgotten(block):  # while it was written
            self.store.remove(block.root, [block.key])
        self._blocks_written += 1
        self._runner.metrics.stored_bytes += data.nbytes
        return True

    def _is_forgotten(self, block: _Block) -> bool:
        with self._filing:
            return block.key in self._forgotten

    def _rescue(self, entry: Parked) -> None:
        """Copy what a sequence that is about to be evicted has and no file; called under the lock."""
        if self._closed or not entry.domain.is_common or self._done.get(entry.id) == len(entry.items):
            return
        waiting = sum([data.nbytes for _, data in list(self._rescued)])
        for block in self._missing(entry.id, entry.items, entry.domain):
            data = self._read_block(entry, block) if waiting < RESCUED_BYTES else None
            if data is None:
                break
            self._rescued.append((block, data))
            waiting += data.nbytes
        self._done[entry.id] = len(entry.items)
        self._wake()

    def _write_rescued(self) -> bool:
        """Write the blocks that were copied at eviction; False if nothing more can be kept."""
        while True:
            with self._filing:
                if not self._rescued:
                    return True
                block, data = self._rescued.popleft()
            if not self._write(block, data):
                self._rescued.clear()
                return False

    # -- the end --

    def finish(self) -> None:
        """Write what is left, and do nothing from now on; the thread ends. Called before the model closes."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        self._write_new(at_once=True)
        self._runner.on_park = self._runner.prefixes.on_evict = None
        _open.discard(self)

    def abandon(self) -> None:
        """Do nothing from now on: this is a forked child."""
        self._closed, self._thread = True, None
        _open.discard(self)

    def _root(self, domain: Domain) -> Root:
        if self._identity_text is None:
            self._identity_text = self._identity()
        identity = f"{self._identity_text}, adapters {domain.adapter!r}"
        return self.store.root(
            f"{identity}, weights {domain.weights}" if domain.weights else identity, domain.salt
        )
