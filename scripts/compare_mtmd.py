"""Encodes the same pictures with the same `mmproj` files here and in llama.cpp's multimodal library.

    python scripts/compare_mtmd.py [FILE.gguf …] > benchmarks/raw/vision-llamacpp.md

llama.cpp's library (mtmd) comes with the package xllamacpp and is called through ctypes. Without arguments
the tiny encoders of the tests are compared, as they are (float16) and with float32 weights, where its
products round nothing; its GELU is a table of half floats all the same.

For a LLaVA encoder with a class token it cannot be right: mtmd puts the token behind the patches, not before
them, and runs one block too few (ggml-org/llama.cpp#25814). Such files are compared without the token and
with the number of blocks written down; InternVL's, which must have one, with the positions moved along.

Images that keep their shape are compared in sizes that need no resizing, as the two resize differently.
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
from stretto.vision.queue import find_grid, normalise, prepare
from stretto.vision.reading import read_vision_spec
from stretto.vision.reference import ReferenceEncoder
from stretto.vision.spec import VisionSpec
from stretto.weights.gguf import GGUF, Tensor
from stretto.weights.writer import write_gguf

NOTE = """\
Vectors have about unit spread. Where a picture is no square, llama.cpp pads it for gemma3 (with black) and
pads it after resizing for mlp; here it is treated as by the models' own processors. A class token it puts in
the wrong place (ggml-org/llama.cpp#25814), so mlp is compared without one too, and internvl with a file for
llama.cpp whose positions are moved along. Images that keep their shape have sizes that need no resizing.
Where models have an exact GELU (pixtral, qwen3vl, internvl) llama.cpp takes the tanh form.
"""
DATA = Path(__file__).parent.parent / "tests" / "data"
# A language model, and an encoder that llama.cpp knows by its size only, and runs as another one.
LEFT_OUT = {DATA / "vision" / f"{name}.gguf" for name in ("qwen3vl-text", "internvl-6b")}
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

    def vectors(self, mmproj: Path, image: Image, spec: VisionSpec) -> list[np.ndarray]:
        """float32[n, n_vector] of each tile, in the order of the prompt."""
        lib = self.lib
        n_out, taps = spec.n_out, len(spec.deepstack) if spec.grid_positions else None
        text = self.folder / f"text-{n_out}-{taps}.gguf"
        if not text.exists():
            write_language_model(text, n_out, taps)
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
                found.append(np.ctypeslib.as_array(data, (n, spec.n_vector)).copy())
        lib.mtmd_free(ctypes.c_void_p(context))
        lib.llama_model_free(ctypes.c_void_p(model))
        return found


def write_language_model(path: Path, n_embd: int, taps: int | None) -> None:
    """A language model of one layer, with the tokens that projectors ask for; with `taps` one of Qwen's."""
    specials = ["<image>", "<start_of_image>", "<end_of_image>", "<fake_token_around_image>", "<global-img>"]
    specials += [f"<row_{row}_col_{column}>" for row in range(1, 9) for column in range(1, 9)]
    specials += [
        "<|vision_start|>",
        "<|image_pad|>",
        "<|vision_end|>",
        "<img>",
        "</img>",
        "<|image>",
        "<image|>",
    ]
    specials += ["[IMG]", "[IMG_BREAK]", "[IMG_END]"]
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
    name = "llama" if taps is None else "qwen3vl"
    if taps is not None:
        sections = np.array([n_embd // 2 - 2, 1, 1, 0], np.int32)
        arch |= {"n_deepstack_layers": taps, "rope.dimension_sections": sections}
    metadata = {"general.architecture": name} | {f"{name}.{key}": value for key, value in arch.items()}
    metadata |= {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(
            [3 if token[0] in "<[" and len(token) > 1 else 1 for token in tokens], np.int32
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
    if taps is not None:
        tensors |= {f"blk.0.attn_{part}_norm.weight": np.ones(n_embd, np.float32) for part in "qk"}
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
        if spec.class_token and spec.projector == "internvl":
            label += ", positions moved"
            positions = tensors["v.position_embd.weight"].dequantize()
            tensors["v.position_embd.weight"] = np.roll(positions, -1, axis=0)
            found = [(label, folder / f"{path.stem}-moved.gguf")]
            write_gguf(found[-1][1], metadata, tensors, types=types)
        elif spec.class_token:
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


def rows(mtmd: Mtmd, path: Path, original: Path, label: str, pictures: list[np.ndarray]) -> list[str]:
    """Lines of the table; `original` is the file for us, where llama.cpp has to have a changed one."""
    found = []
    with GGUF(original if "moved" in label else path) as file:
        spec = read_vision_spec(file)
        ours = {"native": NativeEncoder(file, spec, 2), "reference": ReferenceEncoder(file, spec)}
        for pixels in shaped(pictures, spec):
            image = Image.open(pixels)
            theirs = without_breaks(mtmd.vectors(path, image, spec), pixels, spec)
            tiles = pixels[None] if spec.max_tokens else prepare(image, spec).tiles
            for name, encoder in ours.items():
                mine = encode(encoder, normalise(tiles, spec), find_grid(tiles, spec))
                wanted = np.stack(theirs) if len(theirs) == len(mine) else None
                if wanted is None:
                    result = f"{len(mine)} tiles here, {len(theirs)} there | –"
                else:
                    gap = np.abs(mine - wanted)
                    result = f"{gap.max():.1e} | {gap.mean() / wanted.std():.1e}"
                shape = f"{len(mine)} × {mine.shape[1]}"
                found.append(f"| {label} | {image.width} × {image.height} | {name} | {shape} | {result} |")
    return found


def shaped(pictures: list[np.ndarray], spec: VisionSpec) -> list[np.ndarray]:
    """The pictures, in sizes that need no resizing where the family has no size of its own."""
    unit = spec.patch_size * spec.merge
    if spec.projector == "internvl":
        return [np.ascontiguousarray(pictures[0][: spec.image_size, : spec.image_size])]
    if not spec.max_tokens:
        return pictures
    if spec.projector == "gemma4v":  # llama.cpp takes 252 to 280 tokens
        return [np.tile(pictures[2], (4, 3, 1))[: 16 * unit, : 16 * unit]]
    return [
        np.ascontiguousarray(picture[: picture.shape[0] // unit * unit, : picture.shape[1] // unit * unit])
        for picture in (pictures[0], pictures[2][:, :80])
    ]


def without_breaks(theirs: list[np.ndarray], pixels: np.ndarray, spec: VisionSpec) -> list[np.ndarray]:
    """Vectors without those of [IMG_BREAK], which are tokens here."""
    if spec.projector != "pixtral":
        return theirs
    columns = pixels.shape[1] // (spec.patch_size * spec.merge)
    return [part[np.arange(len(part)) % (columns + 1) < columns] for part in theirs]


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
        for path in [Path(name) for name in names] or sorted(
            set((DATA / "vision").glob("*.gguf")) - LEFT_OUT
        ):
            for label, file in variants(path, Path(folder)):
                print("\n".join(rows(mtmd, file, path, label, pictures())), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
