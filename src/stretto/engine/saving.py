"""Between a track and its file: which cells are read or written when, and what happens if something fails."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from stretto.cache.cells import Cells
from stretto.cache.items import ImageToken
from stretto.cache.lags import rotated_positions, set_lags
from stretto.cache.snapshot import Bytes, Expected, Snapshot, SnapshotFile, write_snapshot
from stretto.cache.snapshot_images import SavedImages
from stretto.engine.runner import Runner
from stretto.engine.track import Track
from stretto.errors import Unsupported
from stretto.sampling.rng import RandomStream

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
        check_lags(runner, track)
        waiting, fresh = state
        self._snapshot = Snapshot(
            model=known(fingerprint),
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
        )
        self._holder = runner.new_id()
        runner.cells.copy(track.id, self._holder)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file; other threads may step meanwhile."""
        runner = self._runner

        def read(first: int, last: int) -> Bytes:
            with runner.lock:
                runner.check_open()
                return runner.backend.read_cells(self._cells[first:last])

        try:
            write_snapshot(path, self._snapshot, runner.backend.cell_bytes, read)
        finally:
            with runner.lock:
                runner.cells.remove(self._holder)


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
            runner.make_room(len(saved.tokens))
            track.running = True  # nothing else may change its cells meanwhile
            cells = runner.cells.place(saved.tokens, saved.positions, [(track.id,)] * len(saved.tokens))
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
            set_lags(runner.cells, cells, lags_of(track.tokens, saved.positions.tolist()))
        track.n_prompt = saved.n_prompt
        track.random = RandomStream(saved.seed, saved.index, saved.draws)
        track.exact = saved.exact
        track.running = False
    return saved.waiting, saved.fresh


def check_lags(runner: Runner, track: Track) -> None:
    """Raise if rotated positions do not follow from the tokens, as with an image that is gone."""
    lags, view = runner.cells.lags, runner.cells.view(track.id)
    if lags is None:
        return
    positions = runner.cells.sequence_positions(track.id).tolist()
    if lags[view].tolist() != lags_of(track.tokens, positions):
        raise Unsupported(
            "an image with rows and columns as positions was removed or cut in this sequence, and positions "
            "behind it cannot be saved; save before, or compute the text again in a new sequence"
        )


def lags_of(tokens: list[int], positions: list[int]) -> list[int]:
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
        model=known(fingerprint),
        layout=runner.backend.cell_layout,
        cell_bytes=runner.backend.cell_bytes,
        n_vocab=runner.spec.n_vocab,
        n_embd=runner.spec.n_vector,
        context_length=runner.context_length,
    )


def known(fingerprint: Fingerprint | None) -> str:
    """The fingerprint of a model; `Unsupported` if it has none."""
    if fingerprint is None:
        raise Unsupported(
            "this model has no fingerprint to tell its saved sequences from others'; "
            "load it with stretto.load, or give LLM a fingerprint"
        )
    return fingerprint()
