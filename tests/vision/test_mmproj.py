"""`mmproj` files that are wrong: a `ModelError` that says where, before anything is allocated."""

import ast
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import stretto
from stretto.errors import ModelError, StrettoError
from stretto.vision.encoder import encode
from stretto.vision.native import NativeEncoder
from stretto.vision.reading import IGNORED, read_vision_spec
from stretto.weights.formats import Format
from stretto.weights.gguf import GGUF
from stretto.weights.writer import Quantized, write_gguf
from tiny_vision import FOLDER, NAMES, SHAPED, TILED, vectors, vision_answer, vision_file

FILES = [*NAMES, *TILED, *SHAPED, "qwen25vl"]


def changed(tmp_path, name, metadata=None, tensors=None, without=()):
    """A copy of a tiny file with some keys and tensors changed."""
    file = vision_file(name)
    keys = {**file.metadata, **(metadata or {})}
    arrays = {**file.tensors, **(tensors or {})}
    for gone in without:
        keys.pop(gone, None)
        arrays.pop(gone, None)
    types = {key: kind for key, kind in file.metadata.types.items() if key not in (metadata or {})}
    path = tmp_path / "changed.gguf"
    write_gguf(path, keys, arrays, types=types)
    return GGUF(path)


WRONG = [
    ("mlp", {"general.architecture": "llama"}, "general.architecture"),
    ("mlp", {"clip.has_vision_encoder": False}, "clip.has_vision_encoder"),
    ("mlp", {"clip.projector_type": "gemma3nv"}, "'gemma3nv' is not supported"),
    ("mlp", {"clip.vision.image_size": 0}, "image_size"),
    ("mlp", {"clip.vision.image_size": 1 << 30}, "image_size"),
    ("mlp", {"clip.vision.image_size": 25}, "no whole number of patches"),
    ("mlp", {"clip.vision.image_size": 6000, "clip.vision.patch_size": 1}, "patches"),
    ("mlp", {"clip.vision.patch_size": 0}, "patch_size"),
    ("mlp", {"clip.vision.embedding_length": 1 << 20}, "embedding_length"),
    ("mlp", {"clip.vision.attention.head_count": 5}, "evenly"),
    ("mlp", {"clip.vision.attention.head_count": 0}, "head_count"),
    ("mlp", {"clip.vision.block_count": 100_000}, "block_count"),
    ("mlp", {"clip.vision.block_count": 3}, r"v\.blk\.2\."),
    ("mlp", {"clip.vision.feature_layer": np.array([9], np.int32)}, "feature_layer"),
    ("mlp", {"clip.vision.feature_layer": np.array([1, 2], np.int32)}, "feature_layer"),
    ("mlp", {"clip.vision.attention.layer_norm_epsilon": float("nan")}, "epsilon"),
    ("mlp", {"clip.vision.image_std": np.array([1, 0, 1], np.float32)}, "image_std"),
    ("mlp", {"clip.vision.image_mean": np.array([1, 0], np.float32)}, "image_mean"),
    ("mlp", {"clip.use_silu": True, "clip.use_gelu": True}, "at once"),
    ("llava-next", {"clip.vision.image_grid_pinpoints": np.array([1, 2], np.int32)}, "multiples of 24"),
    ("llava-next", {"clip.vision.image_grid_pinpoints": np.array([24], np.int32)}, "multiples of 24"),
    ("llava-next", {"clip.vision.image_grid_pinpoints": np.array([240, 240], np.int32)}, "at most 64 tiles"),
    ("llava-next", {"clip.vision.mm_patch_merge_type": "spatial"}, "'spatial' is not supported"),
    ("llama4", {"clip.vision.preproc_max_tiles": 65}, "preproc_max_tiles"),
    (
        "llama4",
        {"clip.vision.image_size": 8192, "clip.vision.patch_size": 512, "clip.vision.preproc_max_tiles": 2},
        "134,217,728 pixels",
    ),
    (
        "qwen25vl",
        {"clip.vision.image_min_pixels": 1 << 28, "clip.vision.image_max_pixels": 4096},
        "4194304 tokens at least, and 64 at most",
    ),
    (
        "qwen2vl",
        {
            "clip.vision.image_size": 8192,
            "clip.vision.patch_size": 512,
            "clip.vision.image_max_pixels": 1 << 28,
        },
        "268,435,456 pixels",
    ),
    ("qwen25vl", {"clip.vision.n_wa_pattern": 0}, "n_wa_pattern"),
    ("qwen25vl", {"clip.vision.window_size": 7}, "at least 8 pixels"),
    ("gemma3", {"clip.vision.projector.scale_factor": 3}, "cannot be merged"),
    ("idefics3", {"clip.vision.projector.scale_factor": 0}, "scale_factor"),
    ("idefics3", {"clip.vision.preproc_image_size": 1 << 20}, "preproc_image_size"),
    ("idefics3", {"clip.vision.preproc_image_size": 8192}, "8192, but 1 to 1024"),
    ("mlp", {"clip.vision.image_size": 1 << 31}, "image_size"),
    ("mlp", {"clip.vision.image_size": np.int32(-24)}, "image_size"),
    ("mlp", {"clip.vision.image_size": 24.5}, "an integer"),
    ("mlp", {"clip.vision.image_size": "24"}, "an integer"),
    ("mlp", {"clip.vision.patch_size": np.uint64(2**63)}, "patch_size"),
    ("mlp", {"clip.vision.feed_forward_length": 65536}, "feed_forward_length"),
    ("mlp", {"clip.vision.feed_forward_length": 48}, r"ffn_(up|down).*shape"),
    (
        "mlp",
        {
            "clip.vision.image_size": 128,
            "clip.vision.patch_size": 1,
            "clip.vision.feed_forward_length": 32768,
        },
        "arrays of 536,903,680 numbers",
    ),
    ("mlp", {"clip.vision.attention.layer_norm_epsilon": -1e-6}, "epsilon"),
    ("mlp", {"clip.vision.attention.layer_norm_epsilon": float("inf")}, "epsilon"),
    ("mlp", {"clip.vision.attention.layer_norm_epsilon": "small"}, "epsilon"),
    ("mlp", {"clip.vision.image_std": np.array([1, np.nan, 1], np.float32)}, "image_std"),
    ("mlp", {"clip.vision.image_mean": ["a", "b", "c"]}, "image_mean"),
    ("mlp", {"clip.projector_type": 7}, "projector_type"),
    (
        "mlp",
        {"clip.projector_type": "MLP"},
        "'MLP' is not supported; supported are mlp, idefics3, gemma3",
    ),
    ("mlp", {"clip.projector_type": "gemma3"}, r"mm\.input_projection"),
]


@pytest.mark.parametrize(("name", "metadata", "message"), WRONG)
def test_wrong_metadata(tmp_path, name, metadata, message):
    with pytest.raises(ModelError, match=message):
        read_vision_spec(changed(tmp_path, name, metadata))


def test_wrong_tensors(tmp_path):
    with pytest.raises(ModelError, match=r"mm\.2\.bias.*missing"):
        read_vision_spec(changed(tmp_path, "mlp", without=["mm.2.bias"]))
    with pytest.raises(ModelError, match="the projector's matrix is missing"):
        read_vision_spec(changed(tmp_path, "idefics3", without=["mm.model.fc.weight"]))
    wrong = {"v.position_embd.weight": np.zeros((5, 32), np.float32)}
    with pytest.raises(ModelError, match=r"position_embd.*\(5, 32\)"):
        read_vision_spec(changed(tmp_path, "mlp", tensors=wrong))
    with pytest.raises(ModelError, match="no place"):
        read_vision_spec(changed(tmp_path, "mlp", tensors={"v.norm_embd.weight": np.zeros(3, np.float32)}))


def of_one_block(name):
    """The names of all tensors of a file, those of its blocks once."""
    names = vision_file(name).tensors
    return [tensor for tensor in names if not tensor.startswith("v.blk.1") and tensor not in IGNORED]


OPTIONAL = ("bias", "v.class_embd", "v.pre_ln.weight", "v.post_ln.weight")
# Without one of these the encoder has no such part, and the others of its kind have no place.
DECIDING = (
    "ls1.weight",
    "attn_q_norm.weight",
    "ffn_gate.weight",
    "attn_qkv.weight",
    "input_min",
    "merger.weight",
)


@pytest.mark.parametrize("name", FILES)
def test_every_tensor_is_needed_as_it_is(tmp_path, name):
    """Missing, of another shape, of numbers that cannot be used: each of them, each way."""
    for tensor in of_one_block(name):
        if not tensor.endswith(OPTIONAL):
            with pytest.raises(ModelError, match=None if tensor.endswith(DECIDING) else re.escape(tensor)):
                read_vision_spec(changed(tmp_path, name, without=[tensor]))
        shape = vision_file(name).tensors[tensor].shape
        for wrong in ((*shape[:-1], shape[-1] + 1), (*shape[:-1], 2 * shape[-1]), (1, *shape)[:4]):
            zeros = {tensor: np.zeros(wrong, np.float32)}
            if wrong != shape and (tensor != "mm.input_projection.weight" or wrong[0] != shape[0]):
                with pytest.raises(ModelError):
                    read_vision_spec(changed(tmp_path, name, tensors=zeros))
        with pytest.raises(ModelError, match=rf"{re.escape(tensor)}.*(I32 is not supported|one number)"):
            read_vision_spec(changed(tmp_path, name, tensors={tensor: np.zeros(shape, np.int32)}))


ABSURD = (
    *(0, 1, 2, 3, 5, 7, 255, 1 << 15, (1 << 15) + 1, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1),
    *(np.uint64(1 << 63), np.uint64((1 << 64) - 1), np.int32(-1), np.int64(-(1 << 63))),
    *(0.0, -1.0, 1e-45, 3e38, float("nan"), float("inf"), True, "", "x" * 1000),
    *(np.zeros(0, np.float32), np.full(3, np.nan, np.float32), np.full(3, 3e38, np.float32), ["a"] * 3),
)


def outcomes_of_absurd_values(folder):
    """How many values of how many keys leave an encoder that runs, and how many are refused.

    Every value is given to every key, in the first file that has it; the other files take turns with a third.
    """
    outcomes, tried = {"runs": 0, "refused": 0}, Counter()
    for name in FILES:
        for key in (key for key in vision_file(name).metadata if key.startswith("clip.")):
            values = ABSURD[tried[key] % 3 :: 3] if tried[key] else ABSURD
            tried[key] += 1
            for value in values:
                try:
                    with changed(folder, name, {key: value}) as file:
                        spec = read_vision_spec(file)
                        encoder = NativeEncoder(file, spec, 1)
                        encode(encoder, np.zeros((1, spec.n_patches, spec.patch_numbers), np.float32))
                    outcomes["runs"] += 1
                except StrettoError:
                    outcomes["refused"] += 1
    return outcomes


LIMITED = """
import os, resource, sys
os.fsync = lambda descriptor: None  # thousands of files, for a moment each
sys.path[:0] = sys.argv[2:]
from pathlib import Path
from test_mmproj import outcomes_of_absurd_values
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20),) * 2)
print(outcomes_of_absurd_values(Path(sys.argv[1])))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a process can be kept from having more memory there")
@pytest.mark.slow
def test_absurd_values_take_no_memory(tmp_path):
    """Every number of the metadata lies, one at a time, in a process that gets no more than 300 MB."""
    here = Path(__file__).parent
    command = [sys.executable, "-W", "ignore", "-c", LIMITED, str(tmp_path), str(here), str(here.parent)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    outcomes = ast.literal_eval(done.stdout)
    assert outcomes["refused"] > 1000
    assert outcomes["runs"] > 50  # keys that mean nothing here, other epsilons and means


@pytest.mark.parametrize("name", FILES)
def test_truncated_files(tmp_path, name):
    whole, path = (FOLDER / f"{name}.gguf").read_bytes(), tmp_path / "short.gguf"
    for end in [*range(0, len(whole) - 64, 1009), len(whole) - 33]:
        path.write_bytes(whole[:end])
        with pytest.raises(ModelError), GGUF(path) as file:
            read_vision_spec(file)


def test_the_layer_that_a_file_names(tmp_path):
    """All blocks are run where it does not say, and fewer where it does."""
    assert read_vision_spec(vision_file("mlp")).n_layer == 2
    named = {"clip.vision.feature_layer": np.array([1], np.int32)}
    assert read_vision_spec(changed(tmp_path, "mlp", named)).n_layer == 1


def test_old_files_with_the_feed_forward_swapped(tmp_path):
    names = [name for name in vision_file("gemma3").tensors if ".ffn_" in name]
    other = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
    tensors = {
        ".".join(other.get(p, p) for p in n.split(".")): vision_file("gemma3").tensors[n] for n in names
    }
    file = changed(tmp_path, "gemma3", tensors=tensors)
    spec = read_vision_spec(file)
    assert spec.swapped
    found = vectors(NativeEncoder(file, spec, 2), "gemma3", 0)
    np.testing.assert_allclose(found, vision_answer("gemma3", "vectors.0"), atol=5e-5)


@pytest.mark.parametrize("fmt", [Format.Q8_0, Format.F32])
@pytest.mark.parametrize("name", FILES)
def test_other_formats(tmp_path, name, fmt):
    """Quantised encoders are near what they were made from."""
    file = vision_file(name)
    wide = {n: t for n, t in file.tensors.items() if ".blk." in n and len(t.shape) == 2}
    tensors = {n: Quantized(t.dequantize(), fmt) for n, t in wide.items()}
    other = changed(tmp_path, name, tensors=tensors)
    found = vectors(NativeEncoder(other, read_vision_spec(other), 2), name, 1)
    gap = np.abs(found - vision_answer(name, "vectors.1"))
    assert gap.mean() < (5e-5 if fmt is Format.F32 else 0.05)


@pytest.mark.parametrize("name", FILES)
def test_damaged_files(tmp_path, name):
    """Whatever a byte says: an encoder that runs, or an error of ours."""
    whole = (FOLDER / f"{name}.gguf").read_bytes()
    generator, path = random.Random(name), tmp_path / "damaged.gguf"
    outcomes = {"runs": 0, "refused": 0}
    head = 3072  # what stands before the tensors
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(generator.randint(1, 3)):
            data[generator.randrange(head)] = generator.choice(
                (0, 1, 127, 128, 255, generator.randrange(256))
            )
        path.write_bytes(data[: generator.randrange(len(data)) if generator.random() < 0.1 else None])
        try:
            with GGUF(path) as file:
                spec = read_vision_spec(file)
                encoder = NativeEncoder(file, spec, 1)
                shape = (1, spec.n_patches, spec.patch_numbers)
                assert encode(encoder, np.zeros(shape, np.float32)).shape == (1, spec.n_tokens, spec.n_vector)
            outcomes["runs"] += 1
        except StrettoError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 5, outcomes


def test_the_wrong_file_for_the_model(smollm2_path):
    with pytest.raises(ModelError, match="no image encoder"):
        stretto.load(smollm2_path, vision=FOLDER.parent / "tiny" / "llama.gguf")
    with pytest.raises(ModelError, match="vectors of 32 numbers, and the language model takes 576"):
        stretto.load(smollm2_path, vision=FOLDER / "mlp.gguf")
