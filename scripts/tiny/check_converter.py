"""Converts tiny models with llama.cpp's own converter; compares transformers, Stretto and llama.cpp.

    python scripts/tiny/check_converter.py LLAMA_CPP [CASE …]

LLAMA_CPP is a checkout of llama.cpp, for its convert_hf_to_gguf. The makers of the other tiny models write
each file's keys themselves; here they are those that the converter finds in a folder that transformers saved.
For each case: the largest differences between the log-probabilities of the next token behind two texts. Where
llama.cpp is known to compute something else (`OTHERWISE`), Stretto is also run with a spec that says so, and
has to agree with llama.cpp then: nothing else is different. Needs torch, transformers and xllamacpp.
"""

from __future__ import annotations

import json
import sys
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent.parent / "tests"))

from stretto.backends.reference import ReferenceBackend
from stretto.models import read_spec
from stretto.models.spec import Attention, Experts, ModelSpec
from stretto.weights.gguf import GGUF
from tiny import base, dense_norms
from tiny.base import LENGTHS, VOCABULARY, Case, Floats
from tiny.check_xllamacpp import log_probabilities, serve, with_vocabulary
from tiny.make import cases
from tiny_models import text_logits

N_CELLS = 64
models: list[Any] = []  # that cases have made


def remember(model: Any) -> Callable[[Floats], Floats]:
    """As `base.run`, and keep the model."""
    models.append(model)
    return base.run(model)


def softmax_routers(spec: ModelSpec) -> ModelSpec:
    """Without `expert_gating_func`, llama.cpp takes a softmax of the router's scores: V2's rule, not V3's."""
    layers = (
        replace(layer, ffn=replace(layer.ffn, routing=replace(layer.ffn.routing, weights="softmax")))
        if isinstance(layer.ffn, Experts)
        else layer
        for layer in spec.layers
    )
    return replace(spec, layers=tuple(layers))


def without_windows(spec: ModelSpec) -> ModelSpec:
    """llama.cpp reads windows of an EXAONE 4 with 64 layers alone; else all are global and have a rope."""
    mixers = [layer.mixer for layer in spec.layers]
    rope = next(m.rope for m in mixers if isinstance(m, Attention) and m.rope)
    layers = (
        replace(layer, mixer=replace(layer.mixer, window=None, rope=rope))
        if isinstance(layer.mixer, Attention)
        else layer
        for layer in spec.layers
    )
    return replace(spec, layers=tuple(layers))


# Keys of a configuration that transformers does not save, and real models have.
FURTHER: dict[str, dict[str, int]] = {"glm4-flash": {"first_k_dense_replace": 1}}
OTHERWISE: dict[str, Callable[[ModelSpec], ModelSpec]] = {
    "deepseek3": softmax_routers,
    "glm4-flash": softmax_routers,
    "exaone4-short": without_windows,
}


def exaone4_short(rng: np.random.Generator) -> base.Made:
    """EXAONE 4 with windows, and other than 64 layers."""
    return dense_norms.exaone4(rng, n_layer=8)


def converted(folder: Path, target: Path, kind_of_file: str = "ALL_F32") -> None:
    """A folder as the GGUF file that llama.cpp's converter makes of it, without words."""
    import gguf
    from conversion import ModelBase, ModelType, TextModel, get_model_architecture, get_model_class

    kind = get_model_class(get_model_architecture(ModelBase.load_hparams(folder, False), ModelType.TEXT))
    named = type(
        kind.__name__, (kind,), {"set_vocab": TextModel._set_vocab_none, "model_arch": kind.model_arch}
    )
    with torch.inference_mode():
        named(folder, gguf.LlamaFileType[kind_of_file], target).write()


def differences(name: str, case: Case, folder: Path) -> dict[str, float]:
    """What differs from what in one case, and by how much."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    made = case(rng)
    models[-1].save_pretrained(folder)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | FURTHER.get(name, {})))
    bare, path = folder / "bare.gguf", folder / "model.gguf"
    converted(folder, bare)
    with_vocabulary(bare, path)
    file, server = GGUF(path), serve(path)
    spec = read_spec(file, N_CELLS)
    specs = {"Stretto": spec}
    if name in OTHERWISE:
        specs[OTHERWISE[name].__name__] = OTHERWISE[name](spec)
    found: dict[str, float] = {}
    for length in LENGTHS:
        tokens = rng.integers(0, VOCABULARY, length)
        answers = {"transformers": made.logits(tokens)[-1]}
        for label, variant in specs.items():
            answers[label] = text_logits(ReferenceBackend(file, variant, N_CELLS), tokens)[-1]
        answers = {label: _normalised(row) for label, row in answers.items()} | {
            "llama.cpp": log_probabilities(server, tokens, VOCABULARY)
        }
        pairs = [("Stretto", "transformers"), ("llama.cpp", "transformers")]
        pairs += [("llama.cpp", label) for label in specs if label != "Stretto"]
        for one, other in pairs:
            gap = float(np.nanmax(np.abs(answers[one] - answers[other])))
            found[f"{one} and {other}"] = max(gap, found.get(f"{one} and {other}", 0.0))
    return found


def _normalised(logits: Floats) -> Floats:
    """Logits as log-probabilities."""
    shifted = logits.astype(np.float64) - logits.max()
    normalised: Floats = shifted - np.log(np.exp(shifted).sum())
    return normalised


def main(llama_cpp: str, names: list[str]) -> None:
    """Compare the named cases, or those that llama.cpp is known to compute otherwise."""
    sys.path[:0] = [llama_cpp, str(Path(llama_cpp) / "gguf-py")]
    torch.set_num_threads(1)
    known = cases() | {"exaone4-short": exaone4_short}
    for module in [module for key, module in sys.modules.items() if key.startswith("tiny.")]:
        if module is not base and getattr(module, "run", None) is base.run:
            module.run = remember  # type: ignore[attr-defined]
    for name in names or OTHERWISE:
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = differences(name, known[name], Path(folder))
            except (KeyError, NotImplementedError, RuntimeError, ValueError) as error:
                print(f"{name}: {error!r}", flush=True)
            else:
                print(f"{name}: " + ", ".join(f"{pair} {gap:.1e}" for pair, gap in found.items()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
