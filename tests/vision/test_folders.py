"""Hugging Face folders of models that see: transformers' vectors and log-probabilities, and hostile folders.

tests/data/sighted has tiny ones of each family, as transformers saves them (scripts/make_sighted_folders.py).
"""

import json
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from stretto.errors import ModelError, UnsupportedModel
from stretto.vision.reading import read_vision_spec
from stretto.weights.folder import Folder, open_encoder
from stretto.weights.folders.towers import TOWERS
from tiny_vision import LLAMA4_SPECIALS, SPECIALS, logits_behind, picture, seeing_llm

DATA = Path(__file__).parent.parent / "data" / "sighted"
CASES = sorted(path.parent.name for path in DATA.glob("*/answers.npz"))
IMAGES = {"one": (1,), "two": (2, 1)}  # of the prompts with answers
AFTER = [8, 2, 60, 41, 7]  # tokens behind the last image


@cache
def answers(name):
    with np.load(DATA / name / "answers.npz") as stored:
        return dict(stored)


def sighted(name, backend="native", folder=None, **options):
    """The model of a folder, with the tests' tokenizer."""
    folder = folder or DATA / name
    specials = LLAMA4_SPECIALS if name == "llama4" else SPECIALS
    if backend == "native":
        options.setdefault("kv", "f32")
    eyes, text = Folder(folder, encoder=True), Folder(folder)
    return seeing_llm(eyes, backend, text=text, cells=512, specials=specials, **options)


def test_every_family_has_a_folder():
    kinds = {json.loads((DATA / name / "config.json").read_text())["model_type"] for name in CASES}
    same = {"idefics3", "qwen3_5", "qwen3_5_moe", "qwen3_vl_moe"}  # the entries of others
    assert kinds == set(TOWERS) - same


@pytest.mark.golden
@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("name", CASES)
def test_vectors_and_log_probabilities(name, backend):
    """Behind one image and two of other shapes; markers stand where the model's processor has them."""
    with sighted(name, backend) as llm:
        for i in (1, 2):
            wanted = answers(name)[f"vectors.{i}"]
            tokens = [token for token in llm.vision.tokens(picture(i)) if hasattr(token, "image")]
            found = np.stack([token.image.vectors()[token.index] for token in tokens])
            assert 0.2 < wanted.std() < 5
            assert np.abs(found - wanted).max() < 1e-4
        for key, images in IMAGES.items():
            parts = [[5, 17, 33], *[part for i in images for part in (picture(i), [3, 11])]][:-1]
            ids = answers(name)[f"ids-{key}"].tolist()
            tokens = [token for part in parts for token in as_tokens(llm, part)]
            both = list(zip(tokens, ids[: -len(AFTER)], strict=True))
            assert len({theirs for ours, theirs in both if hasattr(ours, "image")}) == 1
            assert all(ours == theirs for ours, theirs in both if not hasattr(ours, "image"))
            wanted, found = (scores(rows) for rows in (answers(name)[key], logits_behind(llm, parts, AFTER)))
            assert wanted.std() > 0.2
            assert np.abs(found - wanted).max() < 1e-3


def as_tokens(llm, part):
    return part if isinstance(part, list) else llm.vision.tokens(part)


def scores(rows):
    """Log-probabilities."""
    rows = rows.astype(np.float64)
    return rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("name", ["llama4", "llava_next", "qwen2_5_vl"])
def test_the_same_bits_from_the_cache_and_from_a_saved_sequence(name, tmp_path):
    options = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
    parts = ("ab", picture(1), "cd", picture(2), "ef")
    with sighted(name) as llm:
        wanted = llm.generate(parts, **options).tokens
        n_encoded = llm.vision.n_encoded
        again = llm.generate(parts, **options)
        assert (again.tokens, llm.vision.n_encoded) == (wanted, n_encoded)
        assert again.usage.cached_tokens == again.usage.prompt_tokens - 1
        seq = llm.sequence(parts[0])
        for part in parts[1:]:
            seq.append(part)
        seq.logits  # noqa: B018  # compute it
        seq.save(tmp_path / "state.safetensors")
    with sighted(name) as llm:
        seq = llm.restore(tmp_path / "state.safetensors")
        assert [seq.step(temperature=0).token for _ in wanted] == wanted


def test_a_folder_is_taken_for_the_encoder():
    from stretto.backends.base import BackendOptions
    from stretto.loading.choose import Alternative, Route
    from stretto.loading.images import ImageEncoder
    from stretto.models import read_spec
    from stretto.vision.cache import ImageCache
    from tiny_vision import small_tokenizer

    route = Route((Alternative("native", "cpu", "chosen", "it was asked for"),))
    encoder = ImageEncoder(DATA / "llava", ImageCache(disk=0))
    with Folder(DATA / "llava") as text:
        spec = read_spec(text)
    vision = encoder.open(spec, small_tokenizer(), route, BackendOptions("cpu", 64, 1))
    assert vision.spec.projector == "mlp"
    assert encoder.nbytes("high") > encoder.nbytes("standard") > 0
    vision.close()


def test_a_folder_is_served():
    from stretto.server.http.served_model import make_served
    from stretto.server.settings import ModelEntry, Settings

    entries = ModelEntry.with_vision((ModelEntry.parse(f"llava={DATA / 'llava'}"),), (str(DATA / "llava"),))
    facts = make_served(entries[0], Settings(entries, port=0), 1 << 40).facts
    assert (facts["vision"], facts["audio"]) == (True, False)


# -- hostile folders --


def changed(tmp_path, name, file="config.json", **values):
    """A copy of a folder with other settings of the model, or of another file; None removes one."""
    folder = tmp_path / name
    shutil.copytree(DATA / name, folder)
    path = folder / file
    settings = json.loads(path.read_text())
    for key, value in values.items():
        at, last = settings, key.split("__")[-1]
        for part in key.split("__")[:-1]:
            at = at[part]
        at.pop(last, None)
        if value is not None:
            at[last] = value
    path.write_text(json.dumps(settings))
    return folder


WRONG = [
    ("llava", {"vision_config": None}, "vision_config"),
    ("llava", {"model_type": "blip"}, "'blip' are not supported"),
    ("llava", {"vision_config__hidden_act": "relu"}, "hidden_act.*'relu' is not supported"),
    ("llava", {"vision_config__patch_size": "6"}, "patch_size.*must be an integer"),
    ("llava", {"vision_config__image_size": 1 << 30}, "image_size"),
    ("llava", {"vision_config__num_hidden_layers": 5}, "missing"),
    ("llava", {"vision_feature_layer": [1, 2]}, "vision_feature_layer"),
    ("llava_next", {"image_grid_pinpoints": [24, 48]}, "image_grid_pinpoints"),
    ("llava_next", {"image_grid_pinpoints": [[24, 49]]}, "multiples of 24"),
    ("llava_next", {"image_grid_pinpoints": [[24, [48]]]}, "image_grid_pinpoints.*pairs"),
    ("llava", {"vision_config__num_hidden_layers": 1 << 31}, "num_hidden_layers"),
    ("qwen3_vl", {"vision_config__depth": 1 << 31}, "depth.*1 to 1024 is possible"),
    ("qwen2_5_vl", {"vision_config__fullatt_block_indexes": [0]}, "fullatt_block_indexes"),
    ("qwen2_5_vl", {"vision_config__fullatt_block_indexes": ["a"]}, "fullatt_block_indexes"),
    ("qwen2_5_vl", {"vision_config__spatial_merge_size": 0}, "spatial_merge_size"),
    ("internvl", {"downsample_ratio": 0.3}, "downsample_ratio"),
    ("internvl", {"vision_config__image_size": [24, 28]}, "image_size"),
    ("gemma3", {"mm_tokens_per_image": 1 << 30}, "scale_factor"),
]


@pytest.mark.parametrize(("name", "values", "message"), WRONG)
def test_wrong_settings(tmp_path, name, values, message):
    with pytest.raises((ModelError, UnsupportedModel), match=message):
        read_vision_spec(open_encoder(changed(tmp_path, name, **values)))


def test_wrong_processors(tmp_path):
    folder = changed(tmp_path, "smolvlm", "preprocessor_config.json", max_image_size={"longest_edge": 64})
    with pytest.raises(ModelError, match="max_image_size"):
        open_encoder(folder)
    for wrong in ([None] * 3, ["a", "b", "c"], [[1]], [True] * 3):
        shutil.rmtree(folder)
        changed(tmp_path, "smolvlm", "preprocessor_config.json", image_mean=wrong)
        with pytest.raises(ModelError, match=r"image_mean.*three numbers"):
            open_encoder(folder)
    (folder / "preprocessor_config.json").write_text("[]")
    with pytest.raises(ModelError, match="must hold an object"):
        open_encoder(folder)
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(ModelError, match=r"preprocessor_config\.json"):
        open_encoder(folder)


def test_tensors_missing_and_left_over(tmp_path):
    folder, name = changed(tmp_path, "llava"), b"multi_modal_projector.linear_2.bias"
    whole = (folder / "model.safetensors").read_bytes()
    assert whole.count(name) == 1
    ignored = b"language_model.".ljust(len(name), b"x")
    (folder / "model.safetensors").write_bytes(whole.replace(name, ignored))
    with pytest.raises(ModelError, match=r"mm\.2\.bias"):
        read_vision_spec(open_encoder(folder))
    (folder / "model.safetensors").write_bytes(whole.replace(name, name.replace(b"_2", b"_3")))
    with pytest.raises(ModelError, match=r"linear_3\.bias.*no place"):
        open_encoder(folder)
