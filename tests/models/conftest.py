"""What the tests of specs share."""

import pytest

from stretto.weights.gguf import GGUF
from stretto.weights.writer import write_gguf
from tiny_models import tiny_file


@pytest.fixture
def changed(tmp_path):
    """A tiny file with keys or tensors changed; None takes one out. ".key" is one of its architecture's."""

    def change(name, keys=None, tensors=None):
        file, path = tiny_file(name), tmp_path / "changed.gguf"
        arch = file.metadata.text("general.architecture")
        keys = {arch + key if key[0] == "." else key: value for key, value in (keys or {}).items()}
        metadata = {key: value for key, value in {**file.metadata, **keys}.items() if value is not None}
        kept = {key: value for key, value in {**file.tensors, **(tensors or {})}.items() if value is not None}
        write_gguf(path, metadata, kept)
        return GGUF(path)

    return change
