"""Between a track and its file: which cells are read or written when, and what happens if something fails."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import numpy as np

from stretto.cache.cells import Cells
from stretto.cache.items import ImageToken
from stretto.cache.lags import rotated_positions, set_lags
from stretto.cache.snapshot import Bytes, Expected, SavedStates, Snapshot, SnapshotFile, write_snapshot
from stretto.cache.snapshot_parts import MAX_STATES, SavedImages
from stretto.engine.runner import Runner
from stretto.engine.track import Track
from stretto.errors import Unsupported
from stretto.sampling.sampler import RandomStream

Fingerprint = Callable[[], str]  # of the model's file
TextState = tuple[bytes, bool]  # of a detokenizer


class Saving:
    """A computed track on its way into a file: made under the lock, written without it.

    The file shares the track's cells while it is written, so the track may go on or be closed meanwhile.
    """

    def __init__(
        self, runner: Runner, track: Track, state: TextState, fingerprint: Fingerprint | None
    ) -> None:
        self._runner = runner
        self._cells = runner.cells.view(track.id).copy()
        self._slots = [] if runner.slots is None else runner.slots.views.get(track.id, [])[-MAX_STATES:]
        check_lags(runner, track)
        waiting, fresh = state
        self._snapshot = Snapshot(
            model=read_fingerprint(fingerprint),
            layout=runner.backend.cell_layout,
            tokens=np.array(track.tokens, np.int32),
            positions=runner.cells.sequence_positions(track.id),
            n_prompt=track.n_prompt,
            exact=track.exact,
            seed=track.random.seed,
            index=track.random.index,
            draws=track.random.draws,
            waiting=waiting,
            fresh=fresh,
            images=SavedImages.of(track.tokens) if track.has_images else None,
            states=self._saved_states(),
            adapters=runner.adapters.saved(track.mix),
        )
        states = self._snapshot.states
        # A sequence for each state: that of one in use is never evicted.
        ends: Sequence[int | None] = (None,) if states is None else states.positions
        self._holders = {runner.borrowed.take(self): end for end in ends}
        for holder, end in self._holders.items():
            runner.cells.copy(track.id, holder, 0, end)

    def _saved_states(self) -> SavedStates | None:
        slots = self._runner.slots
        if slots is None or not self._slots:
            return None
        return SavedStates(
            self._runner.backend.slot_layout, tuple(slots.positions[slot] for slot in self._slots)
        )

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file; other threads may step meanwhile."""
        runner = self._runner

        def read(first: int, last: int) -> Bytes:
            with runner.lock:
                runner.check_open()
                return runner.backend.read_cells(self._cells[first:last])

        def read_state(index: int) -> Bytes:
            with runner.lock:
                runner.check_open()
                return runner.backend.read_slots(np.array(self._slots[index : index + 1], np.int32))

        try:
            backend = runner.backend
            write_snapshot(path, self._snapshot, backend.cell_bytes, read, backend.slot_bytes, read_state)
        finally:
            with runner.lock:
                runner.borrowed.give_back(self, self._holders)


def restore(
    runner: Runner, track: Track, path: str | os.PathLike[str], fingerprint: Fingerprint | None
) -> TextState:
    """Fill an empty track from a file; return the state of its detokenizer.

    If it raises, close the track: it may have cells by then.
    """
    with SnapshotFile(path, expected_by(runner, fingerprint)) as file:
        saved = file.snapshot
        with runner.lock:
            runner.check_open()
            track.adapt(runner.adapters.restored(saved.adapters, file.path))
            runner.make_room(len(saved.tokens))
            track.running = True  # nothing else may change its cells meanwhile
            cells = runner.cells.place(saved.tokens, saved.positions, [(track.id,)] * len(saved.tokens))
            slots = [] if saved.states is None else _take_slots(runner, track, saved.states.positions)
        for slot, state in zip(slots, file.states(), strict=True):
            with runner.lock:
                runner.check_open()
                # A checkpoint may have been evicted meanwhile, and its slot be in use elsewhere.
                if slot is not None and runner.slots is not None and track.id in runner.slots.members[slot]:
                    runner.backend.write_slots(np.array([slot], np.int32), state)
        # Nothing reads these cells before the last piece is there and the checksum is known to be right.
        for first, data in file.pieces():
            with runner.lock:
                runner.check_open()
                runner.backend.write_cells(cells[first : first + len(data)], data)
    with runner.lock:  # from here on other tracks may share its prefix
        track.tokens = saved.tokens.tolist()
        if saved.images is not None:
            track.tokens = saved.images.put_into(track.tokens, runner.images)
            track.has_images = True
            set_lags(runner.cells, cells, count_lags(track.tokens, saved.positions.tolist()))
        track.n_prompt = saved.n_prompt
        track.random = RandomStream(saved.seed, saved.index, saved.draws)
        track.exact = saved.exact
        track.running = False
        runner.prefixes.trim_states()
    return saved.waiting, saved.fresh


def check_lags(runner: Runner, track: Track) -> None:
    """Raise if rotated positions do not follow from the tokens, as with an image that is gone."""
    lags, view = runner.cells.lags, runner.cells.view(track.id)
    if lags is None:
        return
    positions = runner.cells.sequence_positions(track.id).tolist()
    if lags[view].tolist() != count_lags(track.tokens, positions):
        raise Unsupported(
            "an image with rows and columns as positions was removed or cut in this sequence, and positions "
            "behind it cannot be saved; save before, or compute the text again in a new sequence"
        )


def count_lags(tokens: list[int], positions: list[int]) -> list[int]:
    """The lags of a sequence's tokens (cache/lags.py)."""
    places = {
        row: (token.index, token.columns)
        for row, token in enumerate(tokens)
        if isinstance(token, ImageToken) and token.columns
    }
    _, lags = rotated_positions(Cells(1), positions, [(0,)] * len(positions), places)
    found: list[int] = lags.tolist()
    return found


def expected_by(runner: Runner, fingerprint: Fingerprint | None) -> Expected:
    """What a file must be of, so that it can be restored here."""
    return Expected(
        model=read_fingerprint(fingerprint),
        layout=runner.backend.cell_layout,
        cell_bytes=runner.backend.cell_bytes,
        n_vocab=runner.spec.n_vocab,
        n_embd=runner.spec.n_vector,
        context_length=runner.context_length,
        state_layout=runner.backend.slot_layout,
        slot_bytes=runner.backend.slot_bytes,
    )


def _take_slots(runner: Runner, track: Track, positions: Sequence[int]) -> list[int | None]:
    """Slots for the states of a file; without room for all of them only for the last."""
    slots = runner.slots
    assert slots is not None
    if runner.prefixes.evict_states(len(positions)):
        return [slots.put(track.id, position) for position in positions]
    return [*([None] * (len(positions) - 1)), slots.put(track.id, positions[-1])]


def read_fingerprint(fingerprint: Fingerprint | None) -> str:
    """The fingerprint of a model; `Unsupported` if it has none."""
    if fingerprint is None:
        raise Unsupported(
            "this model has no fingerprint to tell its saved sequences from others'; "
            "load it with stretto.load, or give LLM a fingerprint"
        )
    return fingerprint()
