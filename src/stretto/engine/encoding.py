"""Images that tracks wait for, encoded in slices between forward passes.

A track goes as far as its next image without vectors, and waits there while others go on. An image that no
track waits for any more, because its request was cancelled say, is given up.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from stretto.cache.items import ImageToken, ImageVectors
from stretto.engine.runner import Runner
from stretto.engine.track import Track

ALONE_MS = 100.0  # of a slice while nothing else runs: between two, newcomers and timeouts are looked at

ImagesById = dict[int, ImageVectors]  # by identity, in the order in which they are needed


class Encoding:
    """The images of pending tokens."""

    def __init__(self, runner: Runner, max_step_ms: float) -> None:
        self._runner = runner
        self._max_step_ms = max_step_ms
        self._wanted: ImagesById = {}  # by the tracks of the last step
        self._failed: dict[int, Exception] = {}  # in the last slice
        self._at_work = False  # something was being encoded in the last slice

    @property
    def is_busy(self) -> bool:
        """Whether images of earlier steps are encoded or have to be released."""
        return bool(self._wanted) or self._at_work

    @property
    def has_failed(self) -> bool:
        """Whether an image could not be encoded in the last slice."""
        return bool(self._failed)

    def n_ready(self, track: Track) -> int:
        """How many of its pending tokens can be computed: those before the first image without vectors."""
        return self._look(track, {})

    def step(self, tracks: Iterable[Track], alone: bool) -> None:
        """Encode for a while what these tracks wait for; give up what no track needs any more.

        `alone`: no request can go on before that.
        """
        wanted = self._images_of([track for track in tracks if not track.closed])
        if not (wanted or self._wanted or self._at_work):
            return
        for key, image in self._wanted.items():
            if key not in wanted:
                image.release()
        self._wanted = wanted
        self._slice(wanted, alone)

    @contextmanager
    def of(self, tracks: Iterable[Track], everything: bool = False) -> Iterator[None]:
        """Encode the images of all pending tokens (`everything`: of all tokens); keep them meanwhile."""
        mine = self._images_of(tracks, everything)
        try:
            while not all(image.ready for image in mine.values()):
                self._slice({**mine, **self._wanted}, alone=True)
                if error := next((self._failed[key] for key in mine if key in self._failed), None):
                    raise error
            yield
        finally:
            for key in mine.keys() - self._wanted.keys():
                mine[key].release()

    def find_error(self, track: Track) -> Exception | None:
        """Why an image that a track waits for could not be encoded in the last slice."""
        if not self._failed or not track.has_images:
            return None
        waiting: ImagesById = {}
        self._look(track, waiting)
        return next((self._failed[key] for key in waiting if key in self._failed), None)

    def _images_of(self, tracks: Iterable[Track], everything: bool = False) -> ImagesById:
        found: ImagesById = {}
        for track in tracks:
            if track.has_images:
                self._look(track, found, everything)
        return found

    def _slice(self, wanted: ImagesById, alone: bool) -> None:
        runner, self._failed = self._runner, {}
        missing = [image for image in wanted.values() if not image.ready]
        if runner.images is None or runner.closed or not (missing or self._at_work):
            return
        begun = time.perf_counter()
        runner.images.work(missing, 1e-3 * (ALONE_MS if alone else self._max_step_ms), alone)
        runner.metrics.encoding += time.perf_counter() - begun
        for image in missing:
            if image.error is not None:
                self._failed[id(image)], image.error = image.error, None
        self._at_work = bool(missing)

    def _look(self, track: Track, images: ImagesById, everything: bool = False) -> int:
        """Note the images of its pending tokens; return how many tokens are before the first unready one."""
        tokens, ready = track.tokens, track.n_missing
        first = 0 if everything else track.n_placed
        last: ImageVectors | None = None
        for index in range(first, len(tokens)):
            token = tokens[index]
            if type(token) is ImageToken and token.image is not last and token.image is not None:
                last = token.image
                images[id(last)] = last
                if not last.ready:
                    ready = min(ready, index - first)
        return ready
