"""The queue of images to encode: several in one batch, a slice of the work at a time.

Tiles of all waiting images are encoded in batches of up to `BATCH_POSITIONS` positions, in order of arrival.
A batch can be interrupted between two slices and continued by the next call. Neither the batch nor the
slices change a bit of the result.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.audio import Audio
from stretto.cache.items import ImageVectors
from stretto.vision.cache import VectorCache
from stretto.vision.encoder import SLICE_ROWS, Encoder
from stretto.vision.families import FAMILIES
from stretto.vision.families.base import Prepared, fit, resize
from stretto.vision.families.qwen3vl import deepstack
from stretto.vision.families.whisper import neighbours
from stretto.vision.image import Image
from stretto.vision.spec import Grid, VisionSpec

# From an image to the patches that an encoder takes, as the models' own processors do it (`families/`).

MAX_EDGE_PIXELS = 4096  # a larger image is scaled down before anything else


def prepare(image: Image | Audio, spec: VisionSpec) -> Prepared:
    """The tiles of an image, resized but not yet normalised, or the windows of a sound."""
    if isinstance(image, Audio):
        return FAMILIES[spec.projector].prepare(image.samples, spec)
    pixels = image.pixels
    if max(pixels.shape[:2]) > MAX_EDGE_PIXELS:
        height, width = fit(pixels.shape[0], pixels.shape[1], MAX_EDGE_PIXELS)
        pixels = resize(pixels, height, width, "box")
    return FAMILIES[spec.projector].prepare(pixels, spec)


def find_grid(tiles: NDArray[Any], spec: VisionSpec) -> Grid:
    """Rows and columns of patches of each of some tiles."""
    if spec.mels:
        return 1, tiles.shape[-2] // 2  # two frames each, and one more behind them
    return tiles.shape[-3] // spec.patch_size, tiles.shape[-2] // spec.patch_size


def normalise(tiles: NDArray[Any], spec: VisionSpec) -> Floats:
    """float32[n, patches, 3 × patch × patch]: patches row by row, each channel by channel.

    Of a window of sound float32[n, frames, mels × 3]: each frame between its neighbours.
    """
    if spec.mels:
        return neighbours(tiles, 1)[:, :-1]
    n, (rows, columns), patch = len(tiles), find_grid(tiles, spec), spec.patch_size
    scaled: Floats = tiles.astype(np.float32) * np.float32(1 / 255)
    scaled -= np.array(spec.mean, np.float32)
    scaled /= np.array(spec.std, np.float32)
    parts = scaled.reshape(n, rows, patch, columns, patch, 3)
    return np.ascontiguousarray(parts.transpose(0, 1, 3, 5, 2, 4)).reshape(n, rows * columns, -1)


Floats = NDArray[np.float32]

BATCH_POSITIONS = 4096  # four tiles of SmolVLM's, one image of Gemma's
SHARED_SLICE_ROWS = 64  # of a slice while other requests run: some 20 ms on two slow cores, hardly slower


class EncodedImage:
    """An image of a prompt: its pixels, its digest, and its vectors while they are needed."""

    def __init__(self, queue: EncodingQueue, prepared: Prepared, digest: bytes, maker: object) -> None:
        self._queue = queue
        self.maker = maker
        self.prepared = prepared
        self.digest = digest
        self.whole = queue.encoder.spec.bidirectional
        self.error: Exception | None = None
        self.held: Floats | None = None

    @property
    def ready(self) -> bool:
        """Whether the image is encoded."""
        return self.held is not None

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of its vectors, those of all tiles concatenated."""
        spec, tiles = self._queue.encoder.spec, self.prepared.tiles
        return len(tiles) * spec.count_tokens(find_grid(tiles, spec)), spec.n_vector

    def vectors(self) -> Floats:
        """float32[n, n_vector]; encodes the image if that has not been done."""
        return self._queue.vectors(self) if self.held is None else self.held

    def release(self) -> None:
        """Free the vectors; the image cache may still have them."""
        self.held = None


class _Job:
    """One image that is being encoded, or several with the same digest."""

    def __init__(self, image: EncodedImage) -> None:
        self.images = [image]
        self.digest = image.digest
        self.tiles = image.prepared.tiles
        self.n_begun = 0  # tiles that are in a batch, or done
        self.parts: list[Floats] = []  # float32[tokens, n_vector] of each tile that is done
        self.cancelled = False


class _Batch:
    """Tiles of one size that are encoded together."""

    def __init__(self, encoder: Encoder, jobs: list[_Job]) -> None:
        self._encoder = encoder
        self._grid = find_grid(jobs[0].tiles, encoder.spec)
        self._taps: list[Floats] = []
        self.jobs = jobs  # of each tile
        self.done: list[Floats] = []  # float32[tokens, n_vector] of each encoded tile
        self.rows = SLICE_ROWS
        self._tiles = []
        for job in jobs:
            self._tiles.append(job.tiles[job.n_begun])
            job.n_begun += 1

    def slices(self) -> Iterator[None]:
        """Encode the tiles; yields between two slices."""
        encoder, spec, grid = self._encoder, self._encoder.spec, self._grid
        embedded = []
        for tile in self._tiles:
            embedded.append(encoder.embed(normalise(tile[None], spec), grid))
            yield
        x = encoder.join(embedded)
        del embedded
        for index in range(spec.n_layer):
            x = self._without_cancelled(x)
            yield from encoder.block(index, x, grid, lambda: self.rows)
            if index in spec.deepstack:
                self._taps.append(deepstack(encoder, index, x, grid))
                yield
        for i in range(len(x)):
            taps = [tap[i : i + 1] for tap in self._taps]
            self.done.append(encoder.project(x[i : i + 1], grid, taps)[0])
            yield

    def _without_cancelled(self, x: Floats) -> Floats:
        if not any(job.cancelled for job in self.jobs):
            return x
        remaining = [i for i, job in enumerate(self.jobs) if not job.cancelled]
        self.jobs = [self.jobs[i] for i in remaining]
        self._taps = [tap[remaining] for tap in self._taps]
        return x[remaining]


class EncodingQueue:
    """The images that are being encoded. `n_encoded` counts the tiles that have been."""

    def __init__(self, encoder: Encoder, cache: VectorCache) -> None:
        self.encoder = encoder
        self.n_encoded = 0
        self._cache = cache
        self.jobs: dict[bytes, _Job] = {}
        self.batch: _Batch | None = None
        self._slices: Iterator[None] = iter(())
        self._lock = RLock()

    def work(self, wanted: Iterable[ImageVectors], seconds: float, alone: bool) -> None:
        """Encode for about `seconds`, at least one slice; images that are not wanted any more are dropped."""
        until = time.perf_counter() + seconds
        with self._lock:
            self._update_jobs([image for image in wanted if isinstance(image, EncodedImage)])
            while self.jobs:
                self.run_slice(SLICE_ROWS if alone else SHARED_SLICE_ROWS)
                if time.perf_counter() >= until:
                    return

    def vectors(self, image: EncodedImage) -> Floats:
        """float32[n, n_vector] of one image, encoded before this returns; other jobs stay in the queue."""
        with self._lock:
            others = [other for job in self.jobs.values() for other in job.images]
            self._update_jobs([image, *others])
            while image.held is None:
                if image.error is not None:
                    error, image.error = image.error, None
                    raise error
                self.run_slice(SLICE_ROWS)
            return image.held

    def close(self) -> None:
        """Drop all jobs."""
        with self._lock:
            self.jobs.clear()
            self._drop_batch()

    def _update_jobs(self, wanted: list[EncodedImage]) -> None:
        """Make the jobs those of the wanted images: one for each digest that is not cached."""
        before, self.jobs = self.jobs, {}
        for image in wanted:
            if image.held is not None:
                continue
            key = image.digest
            if key in self.jobs:
                self.jobs[key].images.append(image)
            elif key in before:
                self.jobs[key] = before.pop(key)
                self.jobs[key].images = [image]
            else:
                image.held = self._cache.find(key, image.shape)
                if image.held is None:
                    self.jobs[key] = _Job(image)
        for job in before.values():
            job.cancelled = True
        if self.batch is not None and all(job.cancelled for job in self.batch.jobs):
            self._drop_batch()

    def run_slice(self, rows: int) -> None:
        """Encode the next slice of the current batch, or the first of a new one."""
        batch = self.batch
        if batch is None:
            batch = self.batch = self.next_batch()
            self._slices = batch.slices()
        batch.rows = rows
        try:
            for _ in self._slices:
                return
        except Exception as error:
            self._fail(batch, error)
            return
        except BaseException:  # Ctrl-C: the state of the batch is not known
            self._restart(batch)
            raise
        self._drop_batch()
        self._finish(batch)

    def next_batch(self) -> _Batch:
        """Tiles of one size of the first jobs, as many as fit in a batch."""
        spec, size = self.encoder.spec, next(iter(self.jobs.values())).tiles.shape[1:]
        jobs: list[_Job] = []
        for job in self.jobs.values():
            if job.tiles.shape[1:] == size:
                max_tiles = max(1, BATCH_POSITIONS // spec.count_positions(find_grid(job.tiles, spec)))
                jobs += [job] * min(max_tiles - len(jobs), len(job.tiles) - job.n_begun)
        return _Batch(self.encoder, jobs)

    def _finish(self, batch: _Batch) -> None:
        self.n_encoded += len(batch.done)
        for job, part in zip(batch.jobs, batch.done, strict=True):
            job.parts.append(part)
            if len(job.parts) == len(job.tiles) and not job.cancelled:
                vectors = np.concatenate(job.parts)
                vectors.flags.writeable = False
                for image in job.images:
                    image.held = vectors
                del self.jobs[job.digest]
                self._cache.keep(job.digest, vectors)

    def _fail(self, batch: _Batch, error: Exception) -> None:
        self._drop_batch()
        for job in batch.jobs:
            if self.jobs.get(job.digest) is job:
                del self.jobs[job.digest]
            for image in job.images:
                image.error = error

    def _restart(self, batch: _Batch) -> None:
        self._drop_batch()
        for job in batch.jobs:
            job.n_begun = len(job.parts)

    def _drop_batch(self) -> None:
        self.batch, self._slices = None, iter(())
