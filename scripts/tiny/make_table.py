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
from safetensors.numpy import load_file, save_file

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent.parent / "tests"))

from stretto.backends.reference import ReferenceBackend
from stretto.errors import StrettoError
from stretto.models import read_spec
from stretto.weights.folder import open_weights
from stretto.weights.formats import Format
from stretto.weights.gguf import GGUF
from stretto.weights.writer import write_gguf
from tiny.base import LENGTHS, VOCABULARY, randomize, run
from tiny.check_converter import converted
from tiny.check_xllamacpp import difference, serve, with_vocabulary
from tiny.names import randomize_buffers
from tiny.table import FURTHER, HEADS, HIDDEN, IN_FLOAT32, KV_HEADS, OWN, SEEDS, STAND_INS, TABLE
from tiny_models import text_logits

DATA = Path(__file__).parent.parent.parent / "tests" / "data"
N_CELLS = 64
HEAD = HIDDEN // HEADS


def prepared(name: str, rng: np.random.Generator) -> Any:
    """A model with random weights that float16 has."""
    model = TABLE[name]().eval().float()
    one_more = model.config.model_type in ("nemotron",)  # norms to whose weights one is added
    randomize(model, rng, special, norms_at_zero=lambda _: one_more)
    randomize_buffers(model, rng)
    if name == "bailingmoe":  # which has no correction of its choice
        for key, values in model.named_parameters():
            values.data *= float("correction_bias" not in key)
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
    seed = zlib.crc32(name.encode())
    rng = np.random.default_rng([seed, SEEDS[name]] if name in SEEDS else seed)
    model = prepared(name, rng)
    logits, answers = run(model), {}
    for i, length in enumerate(LENGTHS):
        tokens = rng.integers(0, VOCABULARY, length)
        answers |= {f"tokens.{i}": tokens.astype(np.int32), f"logits.{i}": logits(tokens)}
    file, folder = DATA / "tiny" / f"{name}.gguf", DATA / "folders" / name
    with tempfile.TemporaryDirectory() as temporary:
        saved = Path(temporary) / "saved"
        (model if name in IN_FLOAT32 else model.half()).save_pretrained(saved)
        (saved / "generation_config.json").unlink(missing_ok=True)
        config = saved / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | FURTHER.get(name, {}), indent=1))
        if name in STAND_INS:
            disguised(name, saved, Path(temporary) / "model.gguf")
        elif name in OWN:
            written(saved, Path(temporary) / "model.gguf")
        else:
            kind = "ALL_F32" if name in IN_FLOAT32 else "MOSTLY_F16"
            converted(saved, Path(temporary) / "model.gguf", kind)
        with_vocabulary(Path(temporary) / "model.gguf", Path(temporary) / "words.gguf")
        try:
            server = serve(Path(temporary) / "words.gguf")
            gaps = [difference(server, answers[f"tokens.{i}"], answers[f"logits.{i}"][-1]) for i in range(2)]
            theirs = f"{max(gaps):.1e}"
        except (KeyError, RuntimeError, ValueError) as error:
            theirs = repr(error)
        shutil.copy(Path(temporary) / "model.gguf", file)
        shutil.rmtree(folder, ignore_errors=True)
        if name in FOLDERS:
            FOLDERS[name](saved)
        if name in FOLDERS or name not in STAND_INS:
            shutil.copytree(saved, folder)
    np.savez_compressed(file.with_suffix(".npz"), **answers)
    ours = [gap(file, answers), "none"]
    if folder.exists():
        np.savez_compressed(folder / "answers.npz", tokens=answers["tokens.0"], logits=answers["logits.0"])
        ours[1] = gap(folder, answers)
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


def disguised(name: str, folder: Path, target: Path) -> None:
    """Write a folder as a file of another architecture that computes the same."""
    written(folder, target)
    file = GGUF(target)
    metadata = {key.replace(f"{STAND_INS[name]}.", f"{name}."): value for key, value in file.metadata.items()}
    metadata["general.architecture"] = name
    tensors: dict[str, Any] = {key: dequantized(tensor) for key, tensor in file.tensors.items()}
    for key, array in list(tensors.items()):
        if name == "exaone" and key.endswith(("attn_q.weight", "attn_k.weight")):
            tensors[key] = array.reshape(-1, HEAD // 2, 2, HIDDEN).swapaxes(1, 2).reshape(array.shape)
        if name == "bailingmoe" and "exp_probs_b" in key:
            del tensors[key]  # zeros: it chooses by its weights
        if name == "bailingmoe2" and "post_attention_norm" in key:
            tensors[key.replace("post_attention_norm", "ffn_norm")] = tensors.pop(key)
        if name in ("qwen", "bailingmoe2") and ".attn_q." in key:
            parts = [tensors.pop(key.replace("attn_q", part)) for part in ("attn_q", "attn_k", "attn_v")]
            tensors[key.replace("attn_q", "attn_qkv")] = np.concatenate(parts)
    if name == "bailingmoe":
        metadata["bailingmoe.expert_weights_norm"] = True
    if name == "qwen":
        metadata["qwen.feed_forward_length"] *= 2
    write_gguf(target.with_suffix(".other"), metadata, tensors)
    file.close()
    target.with_suffix(".other").replace(target)


def dequantized(tensor: Any) -> np.ndarray:
    """A tensor's numbers, as the file has them."""
    numbers = tensor.dequantize().reshape(tensor.shape)
    return numbers.astype(np.float16) if tensor.format == Format.F16 else numbers.copy()


def internlm2_folder(folder: Path) -> None:
    """Give a Llama's folder the names of InternLM 2, and q, k and v in one matrix, head by head."""
    change_config(folder, "internlm2")
    names = {
        "self_attn.o_proj": "attention.wo",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
        "model.embed_tokens": "model.tok_embeddings",
        "lm_head": "output",
    }
    path = folder / "model.safetensors"
    tensors = renamed(load_file(path), names)
    for key in [key for key in tensors if "q_proj" in key]:
        q, k, v = (tensors.pop(key.replace("q_proj", f"{which}_proj")) for which in "qkv")
        groups = [part.reshape(KV_HEADS, -1, HEAD, q.shape[1]) for part in (q, k, v)]
        joined = np.concatenate(groups, axis=1).reshape(-1, q.shape[1])
        tensors[key.replace("self_attn.q_proj", "attention.wqkv")] = np.ascontiguousarray(joined)
    save_file(tensors, path)


def exaone_folder(folder: Path) -> None:
    """Give a Llama's folder the names of EXAONE 3."""
    change_config(folder, "exaone", num_hidden_layers="num_layers", rms_norm_eps="layer_norm_epsilon")
    names = {
        "self_attn.o_proj": "attn.attention.out_proj",
        "self_attn": "attn.attention",
        "mlp.gate_proj": "mlp.c_fc_0",
        "mlp.up_proj": "mlp.c_fc_1",
        "mlp.down_proj": "mlp.c_proj",
        "input_layernorm": "ln_1",
        "post_attention_layernorm": "ln_2",
        "model.embed_tokens": "transformer.wte",
        "model.norm": "transformer.ln_f",
        "model.layers": "transformer.h",
    }
    path = folder / "model.safetensors"
    save_file(renamed(load_file(path), names), path)


def fuse_rows(tensors: dict[str, np.ndarray], name: str, halved: bool = False) -> None:
    """Put q, k and v of all layers one below the other, under the name of a module of attention.

    `halved`: the rows of heads whose pairs are adjacent become first all first ones, then all second ones.
    """
    for key in [key for key in tensors if "self_attn.q_proj" in key]:
        parts = [tensors.pop(key.replace("q_proj", f"{which}_proj")) for which in "qkv"]
        if halved:
            parts[:2] = [
                part.reshape(-1, HEAD // 2, 2, HIDDEN).swapaxes(1, 2).reshape(part.shape)
                for part in parts[:2]
            ]
        tensors[key.replace("self_attn.q_proj", name)] = np.concatenate(parts)


def baichuan_folder(folder: Path) -> None:
    """Give a Llama's folder the names of Baichuan, and q, k and v in one matrix."""
    change_config(folder, "baichuan", max_position_embeddings="model_max_length")
    path = folder / "model.safetensors"
    tensors = load_file(path)
    fuse_rows(tensors, "self_attn.W_pack")
    save_file(tensors, path)


BAILING = {
    "self_attn.o_proj": "attention.dense",
    "self_attn.q_norm": "attention.query_layernorm",
    "self_attn.k_norm": "attention.key_layernorm",
    "embed_tokens": "word_embeddings",
    "e_score_correction_bias": "expert_bias",
}


def bailing_folder(folder: Path) -> None:
    """Give a folder of ERNIE's or GLM's experts the names of Ling, and q, k and v in one matrix."""
    settings = {
        "moe_num_experts": "num_experts",
        "n_routed_experts": "num_experts",
        "moe_k": "num_experts_per_tok",
        "moe_num_shared_experts": "num_shared_experts",
        "n_shared_experts": "num_shared_experts",
    }
    change_config(folder, "bailing_moe", **settings)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    is_first = any("moe_statics" in key for key in tensors)
    fuse_rows(tensors, "attention.query_key_value", halved=is_first)
    tensors = {key: array for key, array in renamed(tensors, BAILING).items() if "moe_statics" not in key}
    save_file(tensors, path)


def renamed(tensors: dict[str, np.ndarray], names: dict[str, str]) -> dict[str, np.ndarray]:
    """Tensors by other names."""
    found = {}
    for key, array in tensors.items():
        for part, other in names.items():
            key = key.replace(part, other)
        found[key] = array
    return found


def change_config(folder: Path, kind: str, **names: str) -> None:
    """Change the kind of a configuration, and names of its settings."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config = {names.get(key, key): value for key, value in config.items()} | {"model_type": kind}
    path.write_text(json.dumps(config, indent=1))


FOLDERS = {
    "baichuan": baichuan_folder,
    "bailingmoe": bailing_folder,
    "bailingmoe2": bailing_folder,
    "exaone": exaone_folder,
    "internlm2": internlm2_folder,
}


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
