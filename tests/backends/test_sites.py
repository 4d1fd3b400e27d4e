"""Values at sites of tiny models, against transformers' forward hooks (scripts/make_inside_golden.py)."""

from pathlib import Path

import numpy as np
import pytest

from stretto import Capture
from stretto.backends.native import NativeBackend
from stretto.backends.reference import ReferenceBackend
from stretto.llm import LLM
from stretto.models import read_spec
from stretto.testing import byte_tokenizer
from stretto.weights.folder import Folder
from tiny_models import N_CELLS

DATA = Path(__file__).parent.parent / "data"
with np.load(DATA / "golden" / "inside.npz") as stored:
    SEEN = dict(stored)
NAMES = sorted({key.split("/")[0] for key in SEEN} - {"tokens"})
TOLERANCES = {ReferenceBackend: 1e-4, NativeBackend: 5e-3}  # of the norm of what a token has at a site

pytestmark = pytest.mark.golden


def new_backend(kind, file):
    spec = read_spec(file)
    if kind is ReferenceBackend:
        return ReferenceBackend(file, spec, N_CELLS, n_slots=4)
    return NativeBackend(file, spec, N_CELLS, 2, "f32", precision="high", n_slots=4)


@pytest.mark.parametrize("kind", TOLERANCES, ids=["reference", "native"])
@pytest.mark.parametrize("name", NAMES)
def test_values_are_those_of_forward_hooks(name, kind):
    expected = {key.split("/")[1]: rows for key, rows in SEEN.items() if key.startswith(f"{name}/")}
    assert any(site.endswith("residual") for site in expected)
    with Folder(DATA / "folders" / name) as file, LLM(new_backend(kind, file), byte_tokenizer()) as llm:
        capture = Capture(*expected, tokens="prompt")
        captured = llm.generate(
            SEEN["tokens"].tolist(), max_tokens=1, temperature=0, logit_bias={1: 1e6}, capture=capture
        ).captured
        for site, rows in expected.items():
            found = captured[site][-len(rows) :]
            away = np.linalg.norm(found - rows, axis=1) / np.linalg.norm(rows, axis=1)
            assert away.max() < TOLERANCES[kind], site
