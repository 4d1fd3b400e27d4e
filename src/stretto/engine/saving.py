"""Between a sequence and its file: who takes cells, who reads them, and what happens if something fails."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from stretto.cache.snapshot import Bytes, Expected, Snapshot, SnapshotFile, write_snapshot
from stretto.cache.snapshot_images import SavedImages
from stretto.errors import Unsupported
from stretto.sampling.rng import RandomStream

if TYPE_CHECKING:
    from stretto.engine.engine import Engine
    from stretto.engine.sequence import Sequence


def save(sequence: Sequence, path: str | os.PathLike[str]) -> None:
    """Compute what is pending, then write the sequence to a file. Others may step meanwhile."""
    engine = sequence._engine
    model = _fingerprint(engine)
    with engine.lock, engine.encoding.of([sequence], everything=True):
        sequence.check_open()
        engine.compute([sequence])
        cells = engine.cells.view(sequence.id).copy()
        waiting, fresh = sequence._detokenizer.state
        snapshot = Snapshot(
            model=model,
            layout=engine.backend.cell_layout,
            tokens=np.array(sequence.history, np.int32),
            positions=engine.cells.sequence_positions(sequence.id),
            n_prompt=sequence.n_prompt,
            exact=sequence._exact,
            seed=sequence.random.seed,
            index=sequence.random.index,
            draws=sequence.random.draws,
            waiting=waiting,
            fresh=fresh,
            images=SavedImages.of(sequence.history) if sequence.pictured else None,
        )
        holder = engine.new_id()  # shares the cells, so that they stay as they are while they are written
        engine.cells.copy(sequence.id, holder)

    def read(first: int, last: int) -> Bytes:
        with engine.lock:
            engine.alive()
            return engine.backend.read_cells(cells[first:last])

    try:
        write_snapshot(path, snapshot, engine.backend.cell_bytes, read)
    finally:
        with engine.lock:
            engine.cells.remove(holder)


def restore(sequence: Sequence, path: str | os.PathLike[str]) -> None:
    """Fill an empty sequence from a file. If it raises, close the sequence: it may have cells by then."""
    engine = sequence._engine
    with SnapshotFile(path, expected_by(engine)) as file:
        saved = file.snapshot
        with engine.lock:
            engine.alive()
            engine.make_room(len(saved.tokens))
            sequence.running = True  # nobody else may change its cells meanwhile
            cells = engine.cells.place(saved.tokens, saved.positions, [(sequence.id,)] * len(saved.tokens))
        # Nobody looks into these cells before the last piece has come and the checksum is known to be right.
        for first, data in file.pieces():
            with engine.lock:
                engine.alive()
                engine.backend.write_cells(cells[first : first + len(data)], data)
    with engine.lock:  # from here on others may share its beginning
        sequence._tokens = saved.tokens.tolist()
        if saved.images is not None:
            sequence._tokens = saved.images.put_into(sequence._tokens, engine.images)
            sequence.pictured = True
        sequence.n_prompt = saved.n_prompt
        sequence.random = RandomStream(saved.seed, saved.index, saved.draws)
        sequence._exact = saved.exact
        sequence._detokenizer.state = saved.waiting, saved.fresh
        sequence.running = False


def expected_by(engine: Engine) -> Expected:
    """What a file must be of, so that an engine can go on with it."""
    return Expected(
        model=_fingerprint(engine),
        layout=engine.backend.cell_layout,
        cell_bytes=engine.backend.cell_bytes,
        n_vocab=engine.spec.n_vocab,
        n_embd=engine.spec.n_embd,
        context_length=engine.context_length,
    )


def _fingerprint(engine: Engine) -> str:
    if engine.fingerprint is None:
        raise Unsupported(
            "this model has no fingerprint to tell its saved sequences from others'; "
            "load it with stretto.load, or give LLM a fingerprint"
        )
    return engine.fingerprint()
