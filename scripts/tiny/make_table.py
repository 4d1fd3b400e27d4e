"""Makes the tiny models of table.py: tests/data/tiny/CASE.gguf and .npz, and tests/data/folders/CASE.

    python scripts/tiny/make_table.py LLAMA_CPP [CASE …]

LLAMA_CPP is a checkout of llama.cpp, whose convert_hf_to_gguf makes the file of what transformers saved; so
neither its keys nor its names are ours. For each case: the largest differences between transformers' and
Stretto's logits, from the file and from the folder, and between transformers' and llama.cpp's
log-probabilities. Weights are numbers that float16 has. Needs torch, transformers, gguf, xllamacpp.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent.parent / "tests"))

from stretto.backends.reference import ReferenceBackend
from stretto.errors import StrettoError
from stretto.models import read_spec
from stretto.weights.folder import open_weights
from stretto.weights.writer import write_gguf
from tiny.base import LENGTHS, VOCABULARY, randomize, run
from tiny.check_converter import converted
from tiny.check_xllamacpp import difference, serve, with_vocabulary
from tiny.names import randomize_buffers
from tiny.table import FURTHER, OWN, TABLE
from tiny_models import text_logits

DATA = Path(__file__).parent.parent.parent / "tests" / "data"
N_CELLS = 64


def prepared(name: str, rng: np.random.Generator) -> Any:
    """A model with random weights that float16 has."""
    model = TABLE[name]().eval().float()
    one_more = model.config.model_type in ("nemotron",)  # norms to whose weights one is added
    randomize(model, rng, special, norms_at_zero=lambda _: one_more)
    randomize_buffers(model, rng)
    biases = [buffer for name_of, buffer in model.named_buffers() if name_of.endswith("correction_bias")]
    for values in (*model.parameters(), *biases):
        values.data = values.data.half().float()
    return model


def special(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray | None:
    """Weights of norms under names that do not say so, and the numbers of xIELU."""
    if "ln_" in name and name.endswith("weight"):
        return rng.uniform(0.5, 1.5, shape)
    if "layernorm.norms" in name and name.endswith("weight"):
        return rng.uniform(0.5, 1.5, shape)
    if "act_fn.alpha" in name:
        return rng.uniform(-0.5, 1.5, shape)
    return None


def make(name: str) -> str:
    """Make one case, and say how near it is."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    model = prepared(name, rng)
    logits, answers = run(model), {}
    for i, length in enumerate(LENGTHS):
        tokens = rng.integers(0, VOCABULARY, length)
        answers |= {f"tokens.{i}": tokens.astype(np.int32), f"logits.{i}": logits(tokens)}
    file, folder = DATA / "tiny" / f"{name}.gguf", DATA / "folders" / name
    with tempfile.TemporaryDirectory() as temporary:
        saved = Path(temporary) / "saved"
        model.half().save_pretrained(saved)
        (saved / "generation_config.json").unlink(missing_ok=True)
        config = saved / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | FURTHER.get(name, {}), indent=1))
        if name in OWN:
            written(saved, Path(temporary) / "model.gguf")
        else:
            converted(saved, Path(temporary) / "model.gguf", "MOSTLY_F16")
        with_vocabulary(Path(temporary) / "model.gguf", Path(temporary) / "words.gguf")
        try:
            server = serve(Path(temporary) / "words.gguf")
            gaps = [difference(server, answers[f"tokens.{i}"], answers[f"logits.{i}"][-1]) for i in range(2)]
            theirs = f"{max(gaps):.1e}"
        except (RuntimeError, ValueError) as error:
            theirs = str(error)
        shutil.copy(Path(temporary) / "model.gguf", file)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(saved, folder)
    np.savez_compressed(file.with_suffix(".npz"), **answers)
    np.savez_compressed(folder / "answers.npz", tokens=answers["tokens.0"], logits=answers["logits.0"])
    ours = [gap(path, answers) for path in (file, folder)]
    spread = answers["logits.0"].std()
    return f"file {ours[0]}, folder {ours[1]}, llama.cpp {theirs}; logits vary by {spread:.2f}"


def written(folder: Path, target: Path) -> None:
    """Write a folder as a file, by its keys and tensors."""
    with open_weights(folder) as file:
        vocabulary = {
            "tokenizer.ggml.model": "none",
            f"{file.metadata['general.architecture']}.vocab_size": VOCABULARY,
        }
        tensors = {  # as llama.cpp has them: norms and biases in float32
            name: tensor
            if len(tensor.shape) > 1 and "norm" not in name
            else tensor.dequantize().astype(np.float32).reshape(tensor.shape)
            for name, tensor in file.tensors.items()
        }
        write_gguf(target, dict(file.metadata) | vocabulary, tensors)


def gap(path: Path, answers: dict[str, np.ndarray]) -> str:
    """The largest difference between our logits and transformers'."""
    try:
        with open_weights(path) as weights:
            backend = ReferenceBackend(weights, read_spec(weights, N_CELLS), N_CELLS)
            found = text_logits(backend, answers["tokens.0"])
    except StrettoError as error:
        return str(error)
    return f"{np.abs(found - answers['logits.0']).max():.1e}"


def main(llama_cpp: str, names: list[str]) -> None:
    """Make the named cases, or all."""
    sys.path[:0] = [llama_cpp, str(Path(llama_cpp) / "gguf-py")]
    torch.set_num_threads(1)
    for name in names or TABLE:
        print(f"{name}: {make(name)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
