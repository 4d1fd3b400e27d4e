"""The reference backend on real models, against exact answers of another implementation."""

import json
from pathlib import Path

import numpy as np
import pytest

from stretto.backends.batch import Batch
from stretto.backends.reference import ReferenceBackend
from stretto.cache.cells import Cells
from stretto.models import read_spec
from stretto.weights.gguf import GGUF
from tiny_models import text_logits

GOLDEN = Path(__file__).parent.parent / "data" / "golden"


class Real:
    """A real model and its golden answers."""

    def __init__(self, path, answers, close):
        file = GGUF(path)
        self.backend = ReferenceBackend(file, read_spec(file), n_cells=192)
        self.answers = json.loads((GOLDEN / answers).read_text())
        self.close = close


@pytest.fixture(scope="module", params=["smollm2", pytest.param("gemma3", marks=pytest.mark.slow)])
def real(request):
    path = request.getfixturevalue(f"{request.param}_path")
    answers = {"smollm2": "smollm2-135m-instruct-q4_1.json", "gemma3": "gemma-3-270m-q4_k_m.json"}
    # How near the mean of the differences really is; the promise is 0.002. What is left with Gemma is the
    # answers' own rounding: this backend in float64 gives what it gives in float32 within 3e-6.
    close = {"smollm2": 1e-4, "gemma3": 1e-3}
    found = Real(path, answers[request.param], close[request.param])
    yield found
    found.backend.close()


def log_probabilities(row):
    """float64 of one row of logits."""
    row = row.astype(np.float64)
    row -= row.max()
    return row - np.log(np.exp(row).sum())


@pytest.mark.golden
@pytest.mark.parametrize("name", ["prose", "code", "chat"])
def test_log_probabilities(real, name):
    golden = real.answers["score"][name]
    ids = golden["ids"]
    rows = text_logits(real.backend, ids)
    scores = [log_probabilities(row)[token] for row, token in zip(rows[:-1], ids[1:], strict=True)]
    differences = np.abs(np.array(scores) - golden["logprobs"])
    assert differences.mean() <= 0.002
    assert differences.mean() <= real.close
    assert differences.max() <= 10 * real.close

    last = log_probabilities(rows[-1])
    top, values = zip(*golden["last_top20"], strict=True)
    np.testing.assert_allclose(last[list(top)], values, atol=10 * real.close)
    order = np.argsort(-last)[:20].tolist()
    gaps = -np.diff(values)
    for i, token in enumerate(top):  # where neighbours are clearly apart, the order is the same
        clear = (i == 0 or gaps[i - 1] > 0.01) and i < 19 and gaps[i] > 0.01
        assert order[i] == token or not clear


UNSURE = 0.01  # a margin under which the two best tokens are as good as equal


@pytest.mark.golden
@pytest.mark.parametrize("name", ["story", "fact", "list"])
def test_every_step_of_the_greedy_continuations(real, name):
    golden = real.answers["greedy"][name]
    ids, wanted = golden["ids"], golden["generated"]
    # All steps in one pass: each sees what greedy decoding had seen, so one that is unsure spoils no other.
    rows = text_logits(real.backend, ids + wanted[:-1])[len(ids) - 1 :]
    sure = np.array(golden["margin"]) > UNSURE
    assert sure.sum() >= 45
    assert rows.argmax(axis=1)[sure].tolist() == np.array(wanted)[sure].tolist()
    best = np.sort(rows, axis=1)[:, -2:]
    np.testing.assert_allclose(best[:, 1] - best[:, 0], golden["margin"], atol=10 * real.close + 5e-4)


@pytest.mark.golden
def test_greedy_decoding(real):
    texts = list(real.answers["greedy"].values())
    cells, batch = Cells(real.backend.n_cells), Batch()
    for sequence, text in enumerate(texts):
        batch.extend(text["ids"], 0, [sequence], logits=True)
    going, compared = list(range(len(texts))), 0
    for step in range(12):
        batch.place(cells)
        chosen = real.backend.forward(batch).argmax(axis=1).tolist()
        batch = Batch()
        for sequence, token in zip(list(going), chosen, strict=True):
            if token == texts[sequence]["generated"][step]:
                compared += 1
                batch.add(token, cells.end(sequence), [sequence], logits=True)
            else:  # from here on it is another text
                assert texts[sequence]["margin"][step] <= UNSURE, (
                    f"step {step} of {texts[sequence]['text']!r}"
                )
                going.remove(sequence)
        if not going:
            break
    assert compared >= 0.75 * 12 * len(texts)
