"""Files that are no language model, or none that is supported: they say what they are, and what to do."""

import re
import struct

import numpy as np
import pytest

from stretto.errors import ModelError
from stretto.models import ARCHITECTURES, read_spec
from stretto.models.missing import (
    KNOWN_PARTS,
    NEEDS,
    OPERATIONS,
    OTHERS,
    UNLIKE,
    beyond_llama_cpp,
    list_lacks,
)
from stretto.weights.gguf import GGUF
from stretto.weights.writer import write_gguf
from tiny_models import ALL, tiny_file

WEIGHTS = {"some.weight": np.ones((2, 32), np.float32)}
LLAMA = {"general.architecture": "llama"}


def refusal(path, metadata, tensors=WEIGHTS):
    write_gguf(path, metadata, tensors)
    with GGUF(path) as file, pytest.raises(ModelError) as refused:
        read_spec(file)
    assert refused.value.path == str(path)
    return refused.value


@pytest.mark.parametrize(
    ("metadata", "field", "words"),
    [
        ({**LLAMA, "general.type": "adapter", "adapter.type": "lora"}, "general.type", "a LoRA adapter"),
        ({**LLAMA, "adapter.type": "lora"}, "adapter.type", "stretto merge"),
        ({"general.architecture": "clip"}, "general.architecture", "pass it as vision="),
        (
            {"general.type": "mmproj", "general.architecture": "clip"},
            "general.type",
            "an mmproj, the image encoder",
        ),
        ({"general.type": "imatrix", "imatrix.chunk_count": 8}, "general.type", "an importance matrix"),
        ({"general.architecture": "controlvector"}, "general.architecture", "a control vector"),
        ({"general.architecture": "eurobert"}, "general.architecture", "'eurobert' is an encoder"),
        ({"general.architecture": "flux"}, "general.architecture", "'flux' is a model that makes images"),
    ],
)
def test_other_kinds_of_files_say_what_they_are(tmp_path, metadata, field, words):
    error = refusal(tmp_path / "other.gguf", metadata)
    assert error.field == field
    assert words in str(error)


def test_a_vocabulary_without_weights_says_so(tmp_path):
    error = refusal(tmp_path / "vocab.gguf", {**LLAMA, "tokenizer.ggml.tokens": ["a", "b"]}, {})
    assert "a vocabulary without weights; load the file of the whole model" in str(error)


def test_an_importance_matrix_from_before_gguf_is_recognised(tmp_path):
    name = b"blk.0.attn_k.weight"
    path = tmp_path / "imatrix.dat"
    path.write_bytes(struct.pack("<ii", 224, len(name)) + name + bytes(400))
    with pytest.raises(ModelError, match="looks like an importance matrix, which is for quantising"):
        GGUF(path)


@pytest.mark.parametrize(
    ("magic", "words"), [(b"algg", "a LoRA adapter from before GGUF"), (b"lmgg", "whisper.cpp")]
)
def test_other_formats_are_recognised(tmp_path, magic, words):
    path = tmp_path / "old.bin"
    path.write_bytes(magic + bytes(60))
    with pytest.raises(ModelError, match=words):
        GGUF(path)


def test_a_known_architecture_says_what_it_would_need(tmp_path):
    error = refusal(tmp_path / "rwkv.gguf", {"general.architecture": "rwkv6"})
    assert "'rwkv6' is not supported yet: it would need RWKV 6's recurrent mixer; supported are" in str(error)
    assert error.field == "general.architecture"


def test_an_unknown_architecture_names_itself_and_those_that_are_supported(tmp_path):
    error = refusal(tmp_path / "new.gguf", {"general.architecture": "brand-new"})
    assert f"'brand-new' is not supported; supported are {', '.join(sorted(ARCHITECTURES))}" in str(error)


def test_no_supported_architecture_is_taken_for_another_kind():
    assert not OTHERS.keys() & ARCHITECTURES.keys()
    assert not OTHERS.keys() & NEEDS.keys()


def tensors(*parts, layers=(0, 1, 2, 5)):
    return {f"blk.{i}.{part}.weight": np.ones((2, 32), np.float32) for i in layers for part in parts}


def test_a_refused_file_says_which_layers_need_which_operation(tmp_path):
    path = tmp_path / "rwkv6.gguf"
    ends = {"token_embd.weight": np.ones((2, 32), np.float32)}
    given = (
        ends
        | tensors("attn_q", "ffn_up.3", layers=(3, 4))
        | tensors("time_mix_lerp_w", "channel_mix_receptance", "ssm_in")
    )
    write_gguf(path, {"general.architecture": "rwkv6"}, given)
    with GGUF(path) as file:
        words = "RWKV 6's mixer (WKV) (channel_mix_receptance, time_mix_lerp_w)"
        assert [str(lack) for lack in list_lacks(file)] == [f"layers 0 to 2, 5: {words}"]
        assert beyond_llama_cpp(file) == ""


def test_parts_that_nothing_names_are_listed_as_such(tmp_path):
    path = tmp_path / "new.gguf"
    given = tensors("attn_swirl", layers=(7,)) | {"enc.blk.0.attn_q.weight": np.ones((2, 32), np.float32)}
    write_gguf(path, {"general.architecture": "swirl"}, given)
    with GGUF(path) as file:
        assert [str(lack) for lack in list_lacks(file)] == [
            "layer 7: tensors that no supported architecture has (attn_swirl)",
            "layer 0: an encoder beside the decoder (enc.blk)",
        ]
        assert beyond_llama_cpp(file) == "llama.cpp has no architecture 'swirl' that this version knows of"


def test_a_layer_of_a_number_that_no_file_has_is_no_layer(tmp_path):
    path = tmp_path / "many.gguf"
    write_gguf(path, {"general.architecture": "swirl"}, tensors("attn_swirl", layers=("9" * 5000,)))
    with GGUF(path) as file:
        assert list_lacks(file) == []


def test_models_that_llama_cpp_does_not_continue_say_why(tmp_path):
    for name, words in (("dream", "diffusion"), ("gptj", "has its name, and no more")):
        write_gguf(tmp_path / f"{name}.gguf", {"general.architecture": name}, WEIGHTS)
        with GGUF(tmp_path / f"{name}.gguf") as file:
            assert words in beyond_llama_cpp(file)
    assert set(UNLIKE) <= set(NEEDS)


def test_no_part_of_a_supported_model_is_missing():
    for name in ALL:
        assert list_lacks(tiny_file(name)) == []
    assert not any(re.fullmatch(pattern, part) for pattern in OPERATIONS for part in KNOWN_PARTS)
