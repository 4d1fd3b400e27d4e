"""Encodes the same pictures with the same `mmproj` files here and in llama.cpp's multimodal library.

    python scripts/compare_mtmd.py [FILE.gguf …] > benchmarks/raw/vision-llamacpp.md

llama.cpp's library (mtmd) comes with the package xllamacpp and is called through ctypes. Without arguments
the tiny encoders of the tests are compared, as they are (float16) and with float32 weights, where its
products round nothing; its GELU is a table of half floats all the same.

For a LLaVA encoder with a class token it cannot be right: mtmd puts the token behind the patches, not before
them, and runs one block too few (ggml-org/llama.cpp#25814). Such files are compared without the token and
with the number of blocks written down.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from stretto.vision.encoder import encode
from stretto.vision.image import Image
from stretto.vision.native import NativeEncoder
from stretto.vision.preprocess import normalise, prepare
from stretto.vision.reading import read_vision_spec
from stretto.vision.reference import ReferenceEncoder
from stretto.weights.gguf import GGUF, Tensor
from stretto.weights.writer import write_gguf

NOTE = """\
Vectors have about unit spread. Where a picture is no square, llama.cpp pads it for gemma3 (with black) and
pads it after resizing for mlp; here it is treated as by the models' own processors. A class token it puts in
the wrong place (ggml-org/llama.cpp#25814), so mlp is compared without one too.
"""
DATA = Path(__file__).parent.parent / "tests" / "data"
IMAGE_CHUNK = 1
FLASH = 40  # bytes into mtmd_context_params: whether attention rounds K and V to half floats
MARKER = 32  # and where the marker's address stands, by which the layout is known again


class Struct(ctypes.Structure):
    """A struct of parameters that is passed by value; larger than any of them, its first bytes are theirs."""

    _fields_ = (("data", ctypes.c_uint8 * 512),)


class Text(ctypes.Structure):
    """mtmd_input_text."""

    _fields_ = (
        ("text", ctypes.c_char_p),
        ("length", ctypes.c_size_t),
        ("add_special", ctypes.c_bool),
        ("parse_special", ctypes.c_bool),
    )


class Mtmd:
    """llama.cpp's library with a tiny language model, for the embeddings of pictures."""

    def __init__(self, folder: Path) -> None:
        found = find_spec("xllamacpp.xllamacpp")
        if found is None or found.origin is None:
            raise SystemExit("xllamacpp is missing: pip install xllamacpp")
        self.lib = ctypes.CDLL(found.origin)
        for name, result in {
            "llama_model_default_params": Struct,
            "mtmd_context_params_default": Struct,
            "llama_model_load_from_file": ctypes.c_void_p,
            "mtmd_init_from_file": ctypes.c_void_p,
            "mtmd_input_chunks_init": ctypes.c_void_p,
            "mtmd_input_chunks_size": ctypes.c_size_t,
            "mtmd_input_chunks_get": ctypes.c_void_p,
            "mtmd_bitmap_init": ctypes.c_void_p,
            "mtmd_input_chunk_get_n_tokens": ctypes.c_size_t,
            "mtmd_get_output_embd": ctypes.POINTER(ctypes.c_float),
        }.items():
            getattr(self.lib, name).restype = result
        self._quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
        for name in ("llama_log_set", "mtmd_log_set", "mtmd_helper_log_set"):
            getattr(self.lib, name)(self._quiet, None)
        self.lib.llama_backend_init()
        self.folder = folder

    def vectors(self, mmproj: Path, image: Image, n_out: int) -> list[np.ndarray]:
        """float32[n, n_out] of each tile, in the order of the prompt."""
        lib = self.lib
        text = self.folder / f"text-{n_out}.gguf"
        if not text.exists():
            write_language_model(text, n_out)
        model = lib.llama_model_load_from_file(str(text).encode(), lib.llama_model_default_params())
        params = lib.mtmd_context_params_default()
        marker = ctypes.c_char_p.from_buffer(params, MARKER).value
        if marker != b"<__media__>":
            raise SystemExit("this version of xllamacpp has other parameters; look at mtmd_context_params")
        params.data[0] = 0  # no GPU
        ctypes.c_int.from_buffer(params, FLASH).value = 0
        context = lib.mtmd_init_from_file(str(mmproj).encode(), ctypes.c_void_p(model), params)
        if not context:
            raise SystemExit(f"llama.cpp does not open {mmproj}")
        pixels = np.ascontiguousarray(image.pixels)
        bitmap = lib.mtmd_bitmap_init(
            ctypes.c_uint32(image.width), ctypes.c_uint32(image.height), ctypes.c_void_p(pixels.ctypes.data)
        )
        chunks = lib.mtmd_input_chunks_init()
        prompt = Text(marker, len(marker), False, True)
        bitmaps = (ctypes.c_void_p * 1)(bitmap)
        code = lib.mtmd_tokenize(
            ctypes.c_void_p(context),
            ctypes.c_void_p(chunks),
            ctypes.byref(prompt),
            bitmaps,
            ctypes.c_size_t(1),
        )
        if code:
            raise SystemExit(f"mtmd_tokenize: {code}")
        found = []
        for i in range(lib.mtmd_input_chunks_size(ctypes.c_void_p(chunks))):
            chunk = ctypes.c_void_p(lib.mtmd_input_chunks_get(ctypes.c_void_p(chunks), ctypes.c_size_t(i)))
            if lib.mtmd_input_chunk_get_type(chunk) == IMAGE_CHUNK:
                if lib.mtmd_encode_chunk(ctypes.c_void_p(context), chunk):
                    raise SystemExit("mtmd_encode_chunk failed")
                n = lib.mtmd_input_chunk_get_n_tokens(chunk)
                data = lib.mtmd_get_output_embd(ctypes.c_void_p(context))
                found.append(np.ctypeslib.as_array(data, (n, n_out)).copy())
        lib.mtmd_free(ctypes.c_void_p(context))
        lib.llama_model_free(ctypes.c_void_p(model))
        return found


def write_language_model(path: Path, n_embd: int) -> None:
    """A language model of one layer, with the tokens that the projectors ask for."""
    specials = ["<image>", "<start_of_image>", "<end_of_image>", "<fake_token_around_image>", "<global-img>"]
    specials += [f"<row_{row}_col_{column}>" for row in range(1, 9) for column in range(1, 9)]
    tokens = [*"abcdefghijklmnopqrstuvwxyz_<>", "Ċ", "ĊĊ", "<end>", *specials]
    arch: dict[str, Any] = {
        "context_length": 128,
        "embedding_length": n_embd,
        "block_count": 1,
        "feed_forward_length": 32,
        "attention.head_count": 1,
        "attention.head_count_kv": 1,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": n_embd,
    }
    metadata = {"general.architecture": "llama"} | {f"llama.{key}": value for key, value in arch.items()}
    metadata |= {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(
            [3 if token[0] == "<" and len(token) > 1 else 1 for token in tokens], np.int32
        ),
        "tokenizer.ggml.merges": ["Ċ Ċ"],
        "tokenizer.ggml.eos_token_id": tokens.index("<end>"),
        "tokenizer.ggml.bos_token_id": tokens.index("<end>"),
    }
    shapes = {"attn_q": (n_embd, n_embd), "attn_k": (n_embd, n_embd), "attn_v": (n_embd, n_embd)}
    shapes |= {
        "attn_output": (n_embd, n_embd),
        "ffn_gate": (32, n_embd),
        "ffn_up": (32, n_embd),
        "ffn_down": (n_embd, 32),
    }
    tensors = {f"blk.0.{name}.weight": np.zeros(shape, np.float32) for name, shape in shapes.items()}
    tensors |= {f"blk.0.{name}.weight": np.ones(n_embd, np.float32) for name in ("attn_norm", "ffn_norm")}
    tensors |= {"token_embd.weight": np.zeros((len(tokens), n_embd), np.float32)}
    tensors |= {"output_norm.weight": np.ones(n_embd, np.float32)}
    write_gguf(path, metadata, tensors)


def variants(path: Path, folder: Path) -> list[tuple[str, Path]]:
    """The file itself, and copies of it that llama.cpp can be right about."""
    found = [(path.stem, path)]
    with GGUF(path) as file:
        spec = read_vision_spec(file)
        metadata: dict[str, Any] = dict(file.metadata)
        tensors: dict[str, Any] = dict(file.tensors)
        types = dict(file.metadata.types)
        label = path.stem
        if spec.class_token:
            label += " without class token"
            metadata["clip.vision.feature_layer"] = np.array([spec.n_layer], np.int32)
            positions = tensors["v.position_embd.weight"].dequantize()
            tensors["v.position_embd.weight"] = np.ascontiguousarray(positions[1:])
            del tensors["v.class_embd"]
            found.append((label, folder / f"{path.stem}-half.gguf"))
            write_gguf(found[-1][1], metadata, tensors, types=types)
        tensors = {name: t.dequantize() if isinstance(t, Tensor) else t for name, t in tensors.items()}
        found.append((f"{label}, float32", folder / f"{path.stem}-float.gguf"))
        write_gguf(found[-1][1], metadata, tensors, types=types)
    return found


def rows(mtmd: Mtmd, path: Path, label: str, pictures: list[np.ndarray]) -> list[str]:
    found = []
    with GGUF(path) as file:
        spec = read_vision_spec(file)
        ours = {"native": NativeEncoder(file, spec, 2), "reference": ReferenceEncoder(file, spec)}
        for pixels in pictures:
            image = Image.open(pixels)
            theirs = mtmd.vectors(path, image, spec.n_out)
            prepared = prepare(image, spec)
            for name, encoder in ours.items():
                mine = encode(encoder, normalise(prepared.tiles, spec))
                wanted = np.stack(theirs) if len(theirs) == len(mine) else None
                if wanted is None:
                    result = f"{len(mine)} tiles here, {len(theirs)} there | –"
                else:
                    gap = np.abs(mine - wanted)
                    result = f"{gap.max():.1e} | {gap.mean() / wanted.std():.1e}"
                shape = f"{len(mine)} × {mine.shape[1]}"
                found.append(f"| {label} | {image.width} × {image.height} | {name} | {shape} | {result} |")
    return found


def pictures() -> list[np.ndarray]:
    with np.load(DATA / "vision" / "golden.npz") as golden:
        square = golden["mlp/image.0"]
        wide = golden["mlp/image.1"]
    return [square, square[:24, :24], np.ascontiguousarray(wide)]


def main(names: list[str]) -> None:
    print("# The same pictures through the same files, here and in llama.cpp\n")
    print(f"`python scripts/compare_mtmd.py {' '.join(names)}`, xllamacpp {version('xllamacpp')}.\n")
    print(NOTE)
    print("| file | picture | here | tiles × vectors | largest difference | mean, of the spread |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        mtmd = Mtmd(Path(folder))
        for path in [Path(name) for name in names] or sorted((DATA / "vision").glob("*.gguf")):
            for label, file in variants(path, Path(folder)):
                print("\n".join(rows(mtmd, file, label, pictures())), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
