"""SmolLM2 as an ONNX folder, loaded by `stretto.load`, against exact answers of another implementation."""

import json
from pathlib import Path

import numpy as np
import pytest

import stretto

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from stretto.export.folder import export_onnx

pytestmark = pytest.mark.slow

ANSWERS = Path(__file__).parent.parent / "data" / "golden" / "smollm2-135m-instruct-q4_1.json"


@pytest.fixture(scope="module", params=["gqa", "cells"])
def llm(request, smollm2_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("smollm2") / "folder"
    export_onnx(smollm2_path, folder, precision="f32", form=request.param, context=512)
    with stretto.load(folder, cells=512) as llm:
        yield llm


@pytest.fixture(scope="module")
def answers():
    return json.loads(ANSWERS.read_text())


@pytest.mark.slow
@pytest.mark.golden
def test_scores_and_greedy_texts_are_exact(llm, answers):
    for answer in answers["score"].values():
        assert np.abs(llm.score(answer["ids"]) - answer["logprobs"]).max() <= 1e-3
        assert np.abs(llm.score(answer["ids"]) - answer["logprobs"]).mean() <= 1e-4
    for answer in answers["greedy"].values():
        n = len(answer["generated"])
        result = llm.generate(answer["ids"], temperature=0, max_tokens=n, ignore_eos=True)
        assert result.tokens == answer["generated"]
    assert getattr(llm.backend, "presents", None) is None or llm.backend.presents.n_gathered == 0


@pytest.mark.slow
def test_the_tokenizer_is_that_of_the_file(llm, answers):
    for case in answers["tokenize"]:
        assert llm.tokenizer.encode(case["text"]) == case["ids"]
        assert llm.tokenizer.encode(case["text"], special=True) == case["ids_special"]


@pytest.mark.slow
@pytest.mark.golden
def test_products_by_the_native_kernels_are_near_exact_ones(smollm2_path, answers, tmp_path):
    export_onnx(
        smollm2_path, tmp_path / "folder", precision="int4", form="gqa", context=512, external_data=True
    )
    with stretto.load(tmp_path / "folder", cells=512) as llm:
        assert llm.backend.packing.packed == llm.backend.packing.found == 121
        scores = [np.abs(llm.score(each["ids"]) - each["logprobs"]) for each in answers["score"].values()]
    assert np.concatenate(scores).mean() <= 0.065  # as tests/export/test_real_model.py has it
