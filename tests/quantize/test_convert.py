"""Folders as GGUF files: the same logits and tokens, the formats of a mix, what is refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from stretto.backends.native import NativeBackend
from stretto.errors import InvalidRequest, ModelError
from stretto.models import read_spec
from stretto.quantize import convert_folder
from stretto.quantize.folder import tokenizer_keys
from stretto.text.loading import load_tokenizer, load_tokenizer_folder
from stretto.weights.formats import Format
from stretto.weights.gguf import GGUF
from stretto.weights.metadata import make_metadata
from tiny_models import text_logits

DATA = Path(__file__).parent.parent / "data"
ANSWERS = {path.parent.name: dict(np.load(path)) for path in sorted((DATA / "folders").glob("*/answers.npz"))}
DECODERS = [name for name, found in ANSWERS.items() if "logits" in found]
TOKENIZERS = [path.name for path in sorted((DATA / "tokenizers").iterdir()) if path.is_dir()]


def add_tokenizer(folder, n=64):
    """Give a folder a vocabulary of n word pieces."""
    specials = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
    letters = [chr(ord("a") + i) for i in range(26)]
    texts = [*specials, *letters, *(f"##{letter}" for letter in letters), *(f"##{i}" for i in range(n))][:n]
    described = {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": text, "special": True} for i, text in enumerate(specials)],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "cls": ["[CLS]", 2], "sep": ["[SEP]", 3]},
        "model": {
            "type": "WordPiece",
            "vocab": {text: token for token, text in enumerate(texts)},
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(described))
    roles = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(roles))


@pytest.fixture
def copied(tmp_path):
    def copy(name):
        folder = tmp_path / name
        shutil.copytree(DATA / "folders" / name, folder)
        if not (folder / "tokenizer.json").exists():
            add_tokenizer(folder)
        return folder

    return copy


@pytest.mark.parametrize("name", DECODERS)
def test_a_converted_folder_gives_transformers_logits(copied, tmp_path, name):
    convert_folder(copied(name), tmp_path / "out.gguf", "f32", threads=1)
    with GGUF(tmp_path / "out.gguf") as file:
        assert file.metadata["general.file_type"] == 0
        backend = NativeBackend(file, read_spec(file), 64, 1, "f32", n_slots=2)
        tokens, expected = ANSWERS[name]["tokens"].reshape(-1), ANSWERS[name]["logits"]
        found = text_logits(backend, tokens)
        backend.close()
    assert np.abs(found - expected.reshape(found.shape)).max() < 1e-3


def test_formats_follow_the_mix_and_norms_are_float32(copied, tmp_path):
    written = convert_folder(copied("llama"), tmp_path / "out.gguf", "q8_0", threads=1)
    assert set(written.formats) == {"F32", "F16"}  # rows of 16 are too short for blocks
    with GGUF(tmp_path / "out.gguf") as file:
        assert file.tensors["blk.0.attn_norm.weight"].format is Format.F32
        assert file.metadata["general.architecture"] == "llama"
        assert isinstance(file.metadata["tokenizer.chat_template"], str)
    same = convert_folder(tmp_path / "llama", tmp_path / "own.gguf", threads=1)
    assert set(same.formats) == {"F32", "BF16"}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizers_keep_their_tokens(name):
    folder = DATA / "tokenizers" / name
    wanted = load_tokenizer_folder(folder)
    keys = tokenizer_keys(folder, wanted.n_vocab + 3)
    made = load_tokenizer(make_metadata(keys, folder))
    assert made.n_vocab == wanted.n_vocab + 3
    for text in ("Hello world, it's 12345 o'clock.", "def f(x):\n\treturn x ** 2\n", "naïve café 你好"):
        assert made.encode(text, special=True) == wanted.encode(text, special=True)


def test_a_tokenizer_that_no_file_can_describe_is_refused(copied):
    folder = copied("llama")
    described = json.loads((folder / "tokenizer.json").read_text())
    described["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "[aeiou]"}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False, "trim_offsets": True},
        ],
    }
    (folder / "tokenizer.json").write_text(json.dumps(described))
    with pytest.raises(ModelError, match="no tokenizer of a GGUF file gives the same tokens"):
        convert_folder(folder, folder.parent / "out.gguf", "f16")
    assert not (folder.parent / "out.gguf").exists()


def test_what_is_no_folder_or_has_too_many_tokens_is_refused(copied, tmp_path):
    (tmp_path / "file.gguf").write_bytes(b"GGUF")
    with pytest.raises(InvalidRequest, match="is no folder; stretto quantize is for GGUF files"):
        convert_folder(tmp_path / "file.gguf", tmp_path / "out.gguf")
    folder = copied("qwen3")
    add_tokenizer(folder, 100)
    with pytest.raises(ModelError, match="100 tokens, but embeddings for 64"):
        convert_folder(folder, tmp_path / "out.gguf", "f16")
