"""Pictures on their way through the encoder: several at once, and a piece at a time.

Tiles of all pictures that wait go through the encoder together, up to `TOGETHER` positions; those that came
first go first. Between two pieces it may stop, and go on with the next call. Neither company nor pieces
change a bit of what comes out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from threading import RLock

import numpy as np
from numpy.typing import NDArray

from stretto.cache.items import ImageVectors
from stretto.vision.encoder import ROWS, Encoder
from stretto.vision.kept import KeptVectors
from stretto.vision.preprocess import Prepared, normalise

Floats = NDArray[np.float32]

TOGETHER = 4096  # positions of a batch: four tiles of SmolVLM's, one image of Gemma's
FEW_ROWS = 64  # of a piece while somebody waits: some 20 ms on two slow cores, and hardly slower than all


class EncodedImage:
    """An image of a prompt: its pixels, what tells it from others, and its vectors while they are needed."""

    def __init__(self, queue: EncodingQueue, prepared: Prepared, digest: bytes, maker: object) -> None:
        self._queue = queue
        self.maker = maker
        self.prepared = prepared
        self.digest = digest
        self.whole = queue.encoder.spec.sees_itself
        self.error: Exception | None = None
        self.held: Floats | None = None

    @property
    def ready(self) -> bool:
        """Whether its vectors are at hand."""
        return self.held is not None

    @property
    def shape(self) -> tuple[int, int]:
        """Of its vectors: those of all tiles, one behind the other."""
        spec = self._queue.encoder.spec
        return len(self.prepared.tiles) * spec.n_tokens, spec.n_out

    def vectors(self) -> Floats:
        """float32[n, n_out]; encoded now, if they are not at hand."""
        return self._queue.vectors(self) if self.held is None else self.held

    def release(self) -> None:
        """Let go of the vectors; they may be among those that are kept."""
        self.held = None


class _Job:
    """A picture, or several that are the same, on the way."""

    def __init__(self, picture: EncodedImage) -> None:
        self.pictures = [picture]
        self.digest = picture.digest
        self.tiles = picture.prepared.tiles
        self.n_begun = 0  # tiles that are in a batch, or done
        self.parts: list[Floats] = []  # float32[n_tokens, n_out] of each tile that is done
        self.given_up = False


class _Batch:
    """Tiles that go through the encoder together."""

    def __init__(self, encoder: Encoder, jobs: list[_Job]) -> None:
        self._encoder = encoder
        self.jobs = jobs  # of each tile
        self.done: list[Floats] = []  # float32[n_tokens, n_out] of each tile, in the end
        self.rows = ROWS
        self._tiles = []
        for job in jobs:
            self._tiles.append(job.tiles[job.n_begun])
            job.n_begun += 1

    def pieces(self) -> Iterator[None]:
        """Do it, and stop between any two pieces."""
        encoder, spec = self._encoder, self._encoder.spec
        x = np.empty((len(self._tiles), spec.n_positions, spec.n_embd), np.float32)
        for i, tile in enumerate(self._tiles):
            x[i] = encoder.embed(normalise(tile[None], spec))[0]
            yield
        for index in range(spec.n_layer):
            x = self._without_given_up(x)
            yield from encoder.block(index, x, lambda: self.rows)
        for i in range(len(x)):
            self.done.append(encoder.project(x[i : i + 1])[0])
            yield

    def _without_given_up(self, x: Floats) -> Floats:
        if not any(job.given_up for job in self.jobs):
            return x
        left = [i for i, job in enumerate(self.jobs) if not job.given_up]
        self.jobs = [self.jobs[i] for i in left]
        return np.ascontiguousarray(x[left])


class EncodingQueue:
    """What is being encoded. `n_encoded` counts the tiles that have gone through the encoder."""

    def __init__(self, encoder: Encoder, kept: KeptVectors) -> None:
        self.encoder = encoder
        self.n_encoded = 0
        self._kept = kept
        self._jobs: dict[bytes, _Job] = {}
        self._batch: _Batch | None = None
        self._pieces: Iterator[None] = iter(())
        self._lock = RLock()

    def work(self, wanted: Iterable[ImageVectors], seconds: float, alone: bool) -> None:
        """Encode for so long, about, and at least one piece; what is not wanted any more is given up."""
        until = time.perf_counter() + seconds
        with self._lock:
            self._look_at([picture for picture in wanted if isinstance(picture, EncodedImage)])
            while self._jobs:
                self._piece(ROWS if alone else FEW_ROWS)
                if time.perf_counter() >= until:
                    return

    def vectors(self, picture: EncodedImage) -> Floats:
        """float32[n, n_out] of one picture, now; what else is being encoded stays where it is."""
        with self._lock:
            others = [other for job in self._jobs.values() for other in job.pictures]
            self._look_at([picture, *others])
            while picture.held is None:
                if picture.error is not None:
                    error, picture.error = picture.error, None
                    raise error
                self._piece(ROWS)
            return picture.held

    def close(self) -> None:
        """Give everything up."""
        with self._lock:
            self._jobs.clear()
            self._drop_batch()

    def _look_at(self, wanted: list[EncodedImage]) -> None:
        """Bring the jobs into line with what is wanted: a job for each picture that was not kept."""
        before, self._jobs = self._jobs, {}
        for picture in wanted:
            if picture.held is not None:
                continue
            key = picture.digest
            if key in self._jobs:
                self._jobs[key].pictures.append(picture)
            elif key in before:
                self._jobs[key] = before.pop(key)
                self._jobs[key].pictures = [picture]
            else:
                picture.held = self._kept.find(key, picture.shape)
                if picture.held is None:
                    self._jobs[key] = _Job(picture)
        for job in before.values():
            job.given_up = True
        if self._batch is not None and all(job.given_up for job in self._batch.jobs):
            self._drop_batch()

    def _piece(self, rows: int) -> None:
        """The next piece of the batch, or of a new one."""
        batch = self._batch
        if batch is None:
            batch = self._batch = self._next_batch()
            self._pieces = batch.pieces()
        batch.rows = rows
        try:
            for _ in self._pieces:
                return
        except Exception as error:
            self._fail(batch, error)
            return
        except BaseException:  # Ctrl-C: how far it came is not known
            self._restart(batch)
            raise
        self._drop_batch()
        self._finish(batch)

    def _next_batch(self) -> _Batch:
        room = max(1, TOGETHER // self.encoder.spec.n_positions)
        jobs: list[_Job] = []
        for job in self._jobs.values():
            jobs += [job] * min(room - len(jobs), len(job.tiles) - job.n_begun)
        return _Batch(self.encoder, jobs)

    def _finish(self, batch: _Batch) -> None:
        self.n_encoded += len(batch.done)
        for job, part in zip(batch.jobs, batch.done, strict=True):
            job.parts.append(part)
            if len(job.parts) == len(job.tiles) and not job.given_up:
                vectors = np.concatenate(job.parts)
                vectors.flags.writeable = False
                for picture in job.pictures:
                    picture.held = vectors
                del self._jobs[job.digest]
                self._kept.keep(job.digest, vectors)

    def _fail(self, batch: _Batch, error: Exception) -> None:
        self._drop_batch()
        for job in batch.jobs:
            if self._jobs.get(job.digest) is job:
                del self._jobs[job.digest]
            for picture in job.pictures:
                picture.error = error

    def _restart(self, batch: _Batch) -> None:
        self._drop_batch()
        for job in batch.jobs:
            job.n_begun = len(job.parts)

    def _drop_batch(self) -> None:
        self._batch, self._pieces = None, iter(())
