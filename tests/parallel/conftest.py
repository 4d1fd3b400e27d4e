"""What several files about parallel tokens need."""

import pytest

import stretto
from stretto.backends import native
from stretto.models import read_spec
from stretto.weights.gguf import GGUF


@pytest.fixture(scope="module")
def llm(smollm2_path):
    with stretto.load(smollm2_path, cells=1024) as found:
        yield found


@pytest.fixture(scope="module")
def again(smollm2_path):
    """Another copy, by one thread, to compute runs again."""
    file = GGUF(smollm2_path)
    backend = native.NativeBackend(file, read_spec(file), 512, 1)  # or another one in its place
    yield backend
    backend.close()
