"""The disk of the store: free space, error messages, syncing."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stretto.errors import PullError


def require_space(path: Path, nbytes: int) -> None:
    """Raise `PullError` unless `nbytes` are free where `path` is."""
    import shutil

    free = shutil.disk_usage(path).free
    if free < nbytes:
        raise PullError(
            f"{nbytes / 1e6:,.0f} MB are needed and {free / 1e6:,.0f} MB are free; "
            "make room or set STRETTO_HOME to a folder on another disk",
            path=path,
        )


def explain(error: OSError, home: Path) -> PullError:
    """An error of the operating system as a `PullError` with a remedy."""
    remedy = "set STRETTO_HOME to a folder"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return PullError(f"the disk is full; make room or {remedy} on another disk", path=home)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return PullError(f"no permission to write there; check its owner or {remedy} of yours", path=home)
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return PullError(f"not a folder that models can be kept in; {remedy}", path=home)
    return PullError(f"cannot be used: {error}", path=home)


@contextmanager
def explained(home: Path) -> Iterator[None]:
    """Turn the block's errors of the operating system into `PullError`."""
    try:
        yield
    except BrokenPipeError:  # the caller's progress bar, not the disk
        raise
    except OSError as error:
        raise explain(error, home) from error


def discard(path: Path) -> None:
    """Remove `path`, never the target of a link; on failure the next pull removes it."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            import shutil

            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until `path` is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
