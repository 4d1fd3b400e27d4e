"""Where the tensors of a model lie that are not in its file, for untrusted models.

A location is a path relative to the model's file. It must lead to a file in its folder or below it, as it is
written and once all links are followed. Downloads are often links to a folder of blobs, so a file there is
allowed if the model's own file lies there too.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath, PureWindowsPath
from stat import S_ISREG

from stretto.errors import ModelError
from stretto.weights.onnx.model import ExternalData

MAX_LOCATION_BYTES = 1024
REMEDY = "give a path within the model's folder, or save the model with its tensors inside"


class ExternalFiles:
    """The files beside a model that its tensors lie in: each is checked once."""

    def __init__(self, model: Path) -> None:
        self.model = model
        self.folder = model.parent
        self.roots = {self.folder.resolve(), model.resolve().parent}
        self.sizes: dict[Path, int] = {}  # by path, as given

    def find(self, entries: dict[str, str], nbytes: int, field: str) -> ExternalData:
        """The place that a tensor's entries give, where `nbytes` bytes are expected."""
        unknown = entries.keys() - {"location", "offset", "length", "checksum", "basepath"}
        if unknown:
            raise self._error(f"unknown entries {sorted(unknown)}", field)
        if "basepath" in entries:
            raise self._error(f"a base path {entries['basepath']!r}; {REMEDY}", field)
        path = self._path(entries.get("location", ""), field)
        offset = self._number(entries.get("offset", "0"), f"{field}.offset")
        length = self._number(entries.get("length", str(nbytes)), f"{field}.length")
        size = self._size(path, field)
        if length != nbytes:
            raise self._error(f"{length} bytes, but its shape and type take {nbytes}", f"{field}.length")
        if offset > size or length > size - offset:
            raise self._error(
                f"bytes {offset} to {offset + length}, but {path.name} has {size}; is the download complete?",
                f"{field}.offset",
            )
        return ExternalData(path, offset, length)

    def _path(self, location: str, field: str) -> Path:
        field = f"{field}.location"
        windows, posix = PureWindowsPath(location), PurePosixPath(location)
        if not location or "\0" in location or len(location.encode()) > MAX_LOCATION_BYTES:
            raise self._error(f"no path: {location!r:.100}; {REMEDY}", field)
        if "*" in location:  # ONNX Runtime's own marks for addresses in memory
            raise self._error(f"{location!r} is not a path of a file; {REMEDY}", field)
        if posix.is_absolute() or windows.drive or windows.root:
            raise self._error(f"the absolute path {location!r}; {REMEDY}", field)
        if ".." in posix.parts or ".." in windows.parts:
            raise self._error(f"{location!r} leads out of the model's folder; {REMEDY}", field)
        return self.folder / location

    def _size(self, path: Path, field: str) -> int:
        if path not in self.sizes:
            self.sizes[path] = self._checked_size(path, f"{field}.location")
        return self.sizes[path]

    def _checked_size(self, path: Path, field: str) -> int:
        try:
            real = path.resolve(strict=True)
            status = real.stat()
        except (OSError, RuntimeError, ValueError):
            raise self._error(f"{path.name!r} is not beside the model; fetch that file too", field) from None
        if not any(real.is_relative_to(root) for root in self.roots):
            raise self._error(
                f"{path.name!r} is a link to {real}, out of the model's folder; {REMEDY}", field
            )
        if not S_ISREG(status.st_mode):
            raise self._error(f"{path.name!r} is a folder, pipe or device; a file is needed", field)
        return status.st_size

    def _number(self, text: str, field: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise self._error(f"{text!r:.50} is not a number of bytes", field)
        return int(text)

    def _error(self, message: str, field: str) -> ModelError:
        return ModelError(message, path=self.model, field=field)
