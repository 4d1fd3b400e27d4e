"""Where llama.cpp computes something else than the models' authors: what docs/reference/models.md says.

Stretto's answers for these models are those of transformers (test_architectures.py). Here llama.cpp is given
the same weights, and has to agree with Stretto only where Stretto is told to make llama.cpp's error.
"""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planted import layers, mixer, rope_everywhere
from stretto.backends.reference import ReferenceBackend
from stretto.models import read_spec
from stretto.models.spec import Experts
from stretto.weights.gguf import GGUF
from stretto.weights.writer import write_gguf
from tiny_models import answer, text_logits, tiny_file

pytest.importorskip("xllamacpp", reason="llama.cpp (the xllamacpp package) is not installed here")
pytestmark = pytest.mark.golden

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"
SAME, OTHER = 1e-3, 0.05  # log-probabilities
# llama.cpp ends the process on some errors, so it gets one of its own.
ASK = """
import json, os, sys
from pathlib import Path
import numpy as np
sys.path.insert(0, sys.argv[1])
from tiny.check_xllamacpp import log_probabilities, serve, with_vocabulary
source, target = Path(sys.argv[2]), Path(sys.argv[3])
with_vocabulary(source, target)
tokens = np.array(json.loads(sys.argv[4]))
print("RESULT", json.dumps(log_probabilities(serve(target), tokens, 96).tolist()), flush=True)
os._exit(0)
"""


def llama_cpp(path, tokens):
    """Its log-probabilities of the token behind a text; NaN for one that it leaves out."""
    target = path.with_suffix(".words.gguf")
    command = [sys.executable, "-c", ASK, SCRIPTS, path, target, json.dumps(tokens.tolist())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert lines, done.stderr[-2000:]
    return np.array(json.loads(lines[0].removeprefix("RESULT")))


def stretto(path, tokens, change=lambda spec: spec):
    """The reference backend's, with a changed spec."""
    file = GGUF(path)
    logits = text_logits(ReferenceBackend(file, change(read_spec(file, 64)), 64), tokens)[-1].astype(
        np.float64
    )
    return logits - np.logaddexp.reduce(logits)


def distance(one, other):
    return np.nanmax(np.abs(one - other))


def with_softmax(layer):
    if not isinstance(layer.ffn, Experts):
        return layer
    return replace(layer, ffn=replace(layer.ffn, routing=replace(layer.ffn.routing, weights="softmax")))


@pytest.mark.parametrize("name", ["deepseek3", "glm4-flash"])
def test_without_a_gating_function_llama_cpp_takes_a_softmax(name, tmp_path):
    file, tokens = tiny_file(name), answer(name, "tokens.0")
    metadata = {key: v for key, v in file.metadata.items() if not key.endswith("expert_gating_func")}
    assert len(metadata) == len(file.metadata) - 1
    path = tmp_path / "model.gguf"
    write_gguf(path, metadata, file.tensors)
    found, right = llama_cpp(path, tokens), stretto(path, tokens)
    assert distance(right, stretto(file.path, tokens)) == 0  # Stretto knows V3's rule by its correction
    assert distance(found, right) > OTHER
    assert distance(found, stretto(path, tokens, layers(with_softmax))) < SAME
    assert distance(llama_cpp(with_key(file, tmp_path), tokens), right) < SAME


def with_key(file, folder):
    """The file as it is, where its copy with words may be written."""
    path = folder / "whole.gguf"
    write_gguf(path, file.metadata, file.tensors)
    return path


def exaone4(n_layer, path):
    """The first layers of the tiny EXAONE 4, which has 64: windows of 6 tokens in three of four."""
    file = tiny_file("exaone4")
    metadata = dict(file.metadata) | {"exaone4.block_count": n_layer}
    pattern = "exaone4.attention.sliding_window_pattern"
    metadata[pattern] = [bool(narrow) for narrow in file.metadata[pattern][:n_layer]]
    tensors = {
        name: tensor
        for name, tensor in file.tensors.items()
        if not name.startswith("blk.") or int(name.split(".")[1]) < n_layer
    }
    write_gguf(path, metadata, tensors)
    return path


def all_global(spec):
    """No windows, and a rope in every layer."""
    return mixer(window=None)(rope_everywhere(spec))


def test_llama_cpp_reads_windows_of_an_exaone_4_with_64_layers_alone(tmp_path):
    tokens = answer("exaone4", "tokens.0")
    whole, short = exaone4(64, tmp_path / "64.gguf"), exaone4(8, tmp_path / "8.gguf")
    assert distance(llama_cpp(whole, tokens), stretto(whole, tokens)) < SAME
    found = llama_cpp(short, tokens)
    assert distance(found, stretto(short, tokens)) > OTHER
    assert distance(found, stretto(short, tokens, all_global)) < SAME
