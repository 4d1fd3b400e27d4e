"""`llm.cache`: what stays in the cells for prompts to come."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace
from types import TracebackType
from typing import NamedTuple

from stretto.cache.prefix import COMMON, CacheStats, Domain
from stretto.engine.engine import Engine
from stretto.engine.runner import Runner
from stretto.engine.sequence import Sequence, track_in
from stretto.engine.stored import DiskStats
from stretto.errors import InvalidRequest


class Held(NamedTuple):
    """Tokens whose cells other prompts can share, or soon can: of a parked sequence, or an open one's prompt.

    `adapter` is the name of one that it was computed with, at scale 1.
    """

    id: int
    tokens: tuple[object, ...]
    salt: str | None
    adapter: str | None


class Pin:
    """A prefix that stays in the cache until it is released; a context manager."""

    def __init__(self, runner: Runner, sequence: int, n_tokens: int) -> None:
        self._runner = runner
        self._sequence: int | None = sequence
        self.n_tokens = n_tokens

    def release(self) -> None:
        """Allow it to be evicted. Releasing twice is fine."""
        with self._runner.lock:
            if self._sequence is not None and not self._runner.closed:
                self._runner.prefixes.unpin(self._sequence)
            self._sequence = None

    def __enter__(self) -> Pin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class ParkedSequences:
    """The parked sequences: those that are closed or finished, kept until their cells are needed.

    llm.cache.stats().tokens_saved
    pin = llm.cache.pin(llm.sequence(system_prompt))    # stays, whatever else comes
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def stats(self) -> CacheStats:
        """Cells free, held and parked; lookups, hits and tokens saved; slots, if there are any."""
        with self._engine.lock:
            self._engine.scheduler.sweep()
            self._engine.runner.tidy()
            self._engine.runner.prefixes.trim_states()
            stats = self._engine.runner.prefixes.stats()
            return replace(stats, slot_bytes=self._engine.backend.slot_bytes)

    def disk(self) -> DiskStats | None:
        """Tokens read from disk, bytes written, and what the folder holds; None without `cache="disk"`."""
        stored = self._engine.stored
        return None if stored is None else stored.stats()

    def held(self) -> list[Held]:
        """What prompts could share, the most recently used first; nothing that shares with its forks alone.

        Mixtures of adapters are left out: they have no name.
        """
        runner = self._engine.runner
        with self._engine.lock:
            names = {
                mix.key: name for name in runner.adapters if (mix := runner.adapters.mix(((name, 1.0),)))
            }

            def shared(number: int, tokens: tuple[object, ...], domain: Domain) -> list[Held]:
                if not domain.is_common or (domain.adapter is not None and domain.adapter not in names):
                    return []
                adapter = None if domain.adapter is None else names[domain.adapter]
                return [Held(number, tokens, domain.salt, adapter)]

            found: list[Held] = []
            if runner.prefix_cache:
                for track in reversed(list(runner.tracks.values())):
                    if not track.n_edits:
                        found += shared(track.id, tuple(track.tokens[: track.n_prompt]), track.domain)
                for entry in reversed(list(runner.prefixes.entries())):
                    found += shared(entry.id, entry.items, entry.domain)
            return found

    def pin(self, sequence: Sequence) -> Pin:
        """Keep what a sequence has now for good; the sequence itself goes on as it likes."""
        engine, runner = self._engine, self._engine.runner
        if not isinstance(sequence, Sequence):
            raise InvalidRequest(f"{sequence!r} is not a sequence of this model", param="sequence")
        with engine.lock:
            track = track_in(engine, sequence)
            if not runner.prefix_cache:
                raise InvalidRequest(
                    "there is nothing to pin to: the model was loaded with prefix_cache=False"
                )
            if track.domain.private:
                raise InvalidRequest(
                    "a restored sequence shares with no other, so a pin would be of no use; restore it with "
                    "share=True"
                )
            engine.compute([track])
            n = len(track.exact_tokens())
            items = track.cache_key.items[: n if runner.slots is None else runner.slots.nearest(track.id, n)]
            if not items:
                raise InvalidRequest("only an unedited prefix can be pinned, and here nothing is left of it")
            parked = runner.new_id()
            runner.cells.copy(track.id, parked, 0, len(items))
            return Pin(runner, runner.prefixes.park(parked, items, pins=1, domain=track.domain), len(items))

    def pin_cached(self, tokens: Seq[int], domain: Domain = COMMON) -> Pin | None:
        """Keep what is cached of a text until the pin is released, computing nothing; None if nothing is."""
        runner = self._engine.runner
        with self._engine.lock:
            domain = domain._replace(weights=runner.weights)
            self._engine.scheduler.sweep()
            runner.tidy()
            find = runner.prefixes.find if runner.slots is None else runner.prefixes.find_state
            source, n = find(tokens, domain)
            if source is None or not n or not runner.prefix_cache:
                return None
            parked = runner.new_id()
            runner.cells.copy(source, parked, 0, n)
            return Pin(runner, runner.prefixes.park(parked, tokens[:n], pins=1, domain=domain), n)

    def forget(self, tokens: list[int], *, cache_salt: str | None = None) -> int:
        """Free the cells of parked sequences that begin with `tokens`, or that `tokens` begins with.

        Cells that others share, and those of pinned sequences, stay. Blocks on disk go, even those that
        others begin with. Returns how many cells are free again.
        """
        runner, text = self._engine.runner, tuple(tokens)
        stored = self._engine.stored
        with self._engine.lock:
            domain = Domain(salt=cache_salt, weights=runner.weights)
            self._engine.scheduler.sweep()
            runner.tidy()
            n_free = runner.cells.n_free
            for entry in list(runner.prefixes.entries()):
                n = min(len(entry.items), len(text))
                is_same = entry.domain._replace(is_edited=False) == domain and entry.items[:n] == text[:n]
                if is_same and not entry.pins:
                    if stored is not None:
                        stored.forget(entry.items, domain)
                    runner.prefixes.drop(entry)
            if stored is not None:
                stored.forget(text, domain)
            return runner.cells.n_free - n_free

    def clear(self) -> None:
        """Free all parked cells that are not pinned."""
        with self._engine.lock:
            self._engine.runner.tidy()
            self._engine.runner.prefixes.clear()
