"""Sounds in prompts: tiny models that hear, against transformers, through every call and backend."""

import base64
import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest

import stretto
from stretto import InvalidRequest, ModelError
from stretto.cache.items import ImageToken
from stretto.cli import logs, main
from stretto.errors import UnsupportedModel
from stretto.loading.images import is_hearing
from stretto.testing import mock_llm
from stretto.vision.queue import normalise, prepare
from stretto.vision.reading import read_vision_spec
from stretto.weights.folder import open_encoder
from stretto.weights.gguf import GGUF
from tiny_sounds import FOLDER, hearing_llm, samples, sound, sound_answers, wav
from tiny_vision import picture, seeing_llm

NAMES = ["voxtral", "qwen2audio"]
SOUNDS = [(name, i) for name in NAMES for i in range(4) if (name, i) != ("qwen2audio", 1)]
AROUND = {
    "voxtral": ("<s>[INST]A", "B?[/INST]"),
    "qwen2audio": ("<|im_start|>A", "B?"),
}
TOLERANCE = 1e-4
GREEDY = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}

pytestmark = pytest.mark.golden


def prompt(name, i):
    before, after = AROUND[name]
    return (before, sound(name, i), after)


def heard(llm, i, name):
    """float32[n, n_embd]: the vectors of a sound in a prompt."""
    tokens = [token for token in llm.sequence(prompt(name, i)).tokens if isinstance(token, ImageToken)]
    return np.stack([token.image.vectors()[token.index] for token in tokens])


def log_probabilities(logits):
    highest = logits.max(axis=-1, keepdims=True)
    return logits - highest - np.log(np.exp(logits - highest).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize(("name", "i"), SOUNDS)
def test_spectrograms(name, i):
    spec = read_vision_spec(GGUF(FOLDER / name / "mmproj.gguf"))
    tiles = prepare(sound(name, i), spec).tiles
    wanted = sound_answers(name)[f"mels.{i}"].transpose(0, 2, 1)
    n = tiles.shape[1] - 1
    np.testing.assert_allclose(tiles[:, :n], wanted[:, :n], atol=1e-5)
    assert normalise(tiles, spec).shape == (len(tiles), n, 3 * spec.mels)


@pytest.mark.parametrize(
    ("backend", "encoder"), [("reference", "."), ("native", "."), ("native", "mmproj.gguf")]
)
@pytest.mark.parametrize("name", NAMES)
def test_vectors_and_log_probabilities(name, backend, encoder):
    """Short, of several windows, of one, and of odd lengths; of a folder and of a file."""
    with hearing_llm(name, backend, encoder) as llm:
        for i in (i for other, i in SOUNDS if other == name):
            wanted = sound_answers(name)[f"vectors.{i}"]
            assert 0.3 < wanted.std() < 3
            np.testing.assert_allclose(heard(llm, i, name), wanted, atol=TOLERANCE)
            ours = log_probabilities(llm.sequence(prompt(name, i)).logits)
            theirs = log_probabilities(sound_answers(name)[f"logits.{i}"][-1])
            np.testing.assert_allclose(ours, theirs, atol=TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_bits_alone_and_with_others(name):
    together = ("A", sound(name, 0), "B", sound(name, 3), "C?")
    with hearing_llm(name) as one, hearing_llm(name, threads=1) as other:
        several = one.generate([together, prompt(name, 0), prompt(name, 2)], **GREEDY)
        alone = [other.generate(each, **GREEDY) for each in (together, prompt(name, 0), prompt(name, 2))]
        assert [each.tokens for each in several] == [each.tokens for each in alone]
        first, second = (llm.sequence(together).logits for llm in (one, other))
        assert (first == second).all()


def test_a_sound_is_encoded_once():
    with hearing_llm() as llm:
        first = llm.sequence(prompt("voxtral", 1)).logits.copy()
        encoded = llm.vision.n_encoded
        assert encoded == 3  # windows
        again = llm.sequence((*prompt("voxtral", 1), "D"))
        assert llm.sequence(prompt("voxtral", 1)).logits.tolist() == first.tolist()
        again.close()
        assert llm.vision.n_encoded == encoded
        llm.sequence(prompt("voxtral", 0)).logits.tolist()
        assert llm.vision.n_encoded == encoded + 1


def chat_ids(llm, content):
    return llm.chat_prompt([{"role": "user", "content": content}])


def shown(llm, ids):
    """Tokens as one reads them: those of a sound as one #."""
    found = ["#" if isinstance(i, ImageToken) else llm.tokenizer.decode([i], special=True) for i in ids]
    return "".join(text for at, text in enumerate(found) if text != "#" or found[at - 1] != "#")


def input_audio(data):
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": "wav"}}


def test_sounds_of_messages_stand_where_the_template_or_the_text_has_them():
    text = {"type": "text", "text": "B?"}
    with hearing_llm("voxtral") as llm:
        ids = chat_ids(llm, [input_audio(wav("voxtral", 0)), text, sound("voxtral", 3)])
        assert shown(llm, ids) == "<s>[INST][BEGIN_AUDIO]#B?[BEGIN_AUDIO]#[/INST]"
    with hearing_llm("qwen2audio") as llm:
        ids = chat_ids(llm, [input_audio(wav("qwen2audio", 0)), sound("qwen2audio", 3), text])
        one, two = ("Audio N: <|audio_bos|>#<|audio_eos|>\n".replace("N", n) for n in "12")
        assert shown(llm, ids) == f"<|im_start|>user\n{one}{two}B?<|im_end|>\n<|im_start|>assistant\n"


def test_every_form_of_a_sound_is_the_same_prompt(tmp_path):
    data = wav("voxtral", 0)
    path = tmp_path / "sound.wav"
    path.write_bytes(data)
    url = "data:audio/wav;base64," + base64.b64encode(data).decode()
    opened = stretto.Audio.open(data)
    assert opened.seconds == len(samples("voxtral", 0)) / 16_000
    with hearing_llm() as llm:
        wanted = llm.sequence(("A", opened)).tokens
        array = stretto.Audio.open(samples("voxtral", 0), sample_rate=16_000)
        for form in (data, path, array):
            assert llm.sequence(("A", form)).tokens == wanted
        whole = chat_ids(llm, [opened])
        for part in (
            input_audio(data),
            {"type": "audio", "audio": opened},
            {"type": "audio_url", "audio_url": {"url": url}},
        ):
            assert chat_ids(llm, [part]) == whole
        result = llm.chat([{"role": "user", "content": [input_audio(data), "B?"]}], **GREEDY)
        assert len(result.tokens) == 6


def test_a_model_says_what_it_does_not_take():
    part = input_audio(wav("voxtral", 0))
    with mock_llm("ok") as deaf, hearing_llm() as hears, seeing_llm("mlp") as sees:
        for llm in (deaf, sees):
            with pytest.raises(InvalidRequest, match=r"messages\[0\]\.content\[0\]: .*hears no sound; load"):
                chat_ids(llm, [part])
            with pytest.raises(InvalidRequest, match="hears no sound; load") as error:
                llm.generate(("A", sound("voxtral", 0)))
            assert error.value.param == "audio"
        with pytest.raises(InvalidRequest, match="hears sounds and sees no images"):
            hears.generate(("A", picture(0)))


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (input_audio(b"no sound"), "it is no WAV file"),
        (input_audio(b""), "it is no WAV file"),
        ({"type": "input_audio", "input_audio": {"data": "?", "format": "wav"}}, "not base64"),
        ({"type": "input_audio", "input_audio": "talk.wav"}, "is not opened for a message"),
        ({"type": "audio", "audio": None}, "not NoneType"),
        ({"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64"}}, "the comma is missing"),
    ],
)
def test_bad_sounds_are_refused_by_place(part, said):
    with hearing_llm() as llm, pytest.raises(InvalidRequest, match=rf"messages\[0\]\.content\[1\].*{said}"):
        chat_ids(llm, ["A", part])


def test_long_and_empty_sounds_are_refused():
    second = np.zeros(16_000, np.float32)
    with pytest.raises(InvalidRequest, match="lasts more than 2 seconds; cut it"):
        stretto.Audio.open((second for _ in range(10**9)), sample_rate=16_000, max_seconds=2)
    with pytest.raises(InvalidRequest, match="has no samples"):
        stretto.Audio.open(second[:0], sample_rate=16_000)
    with pytest.raises(InvalidRequest, match="sample_rate must be"):
        stretto.Audio.open(second)


def test_the_encoder_of_another_model_is_refused():
    with pytest.raises(ModelError, match="numbers"):
        stretto.load(FOLDER / "voxtral", vision="sketch")


@pytest.mark.parametrize("name", NAMES)
def test_the_encoder_of_a_folder_is_that_of_the_file(name):
    with open_encoder(FOLDER / name) as folder, GGUF(FOLDER / name / "mmproj.gguf") as file:
        ours, theirs = read_vision_spec(folder), read_vision_spec(file)
        assert replace(ours, norm_eps=theirs.norm_eps) == theirs
        assert ours.norm_eps == pytest.approx(theirs.norm_eps)
        assert folder.tensors.keys() == file.tensors.keys()
        for tensor in file.tensors.values():
            assert (folder.tensors[tensor.name].dequantize() == tensor.dequantize()).all(), tensor.name
    assert is_hearing(FOLDER / name)


WRONG = [
    ({"audio_config": None}, "no vision_config and no audio_config"),
    ({"model_type": "whisper"}, "'whisper' are not supported, only those of qwen2_audio, voxtral"),
    ({"activation_function": "relu"}, "only 'gelu' is supported"),
    ({"projector_hidden_act": "relu"}, "only 'gelu' is supported"),
    ({"scale_embedding": True}, "scale_embedding"),
    ({"num_hidden_layers": 2}, r"layers\.2.*no place"),
    ({"num_hidden_layers": 4}, "missing"),
    ({"num_hidden_layers": "3"}, "num_hidden_layers.*must be an integer"),
    ({"hidden_size": 0}, "hidden_size"),
]


def changed(tmp_path, **settings):
    """A copy of Voxtral's folder with other settings; None removes one."""
    folder = tmp_path / "changed"
    shutil.copytree(FOLDER / "voxtral", folder, ignore=shutil.ignore_patterns("*.gguf", "*.npz"))
    config = json.loads((folder / "config.json").read_text())
    for name, value in settings.items():
        inner = name != "model_type" and name in config["audio_config"]
        home = config["audio_config"] if inner else config
        home[name] = value
        if value is None:
            del home[name]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(("settings", "said"), WRONG)
def test_wrong_settings_of_a_folder(tmp_path, settings, said):
    with pytest.raises((ModelError, UnsupportedModel), match=said):
        read_vision_spec(open_encoder(changed(tmp_path, **settings)))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"feature_size": 80}, "feature_size.*only 16"),
        ({"hop_length": 320}, "hop_length"),
        ({"nb_max_frames": 3000}, "nb_max_frames.*takes 80"),
    ],
)
def test_other_spectrograms_are_refused(tmp_path, settings, said):
    folder = changed(tmp_path)
    usual = {"feature_size": 16, "hop_length": 160, "n_fft": 400, "sampling_rate": 16_000}
    usual["nb_max_frames"] = 80
    (folder / "preprocessor_config.json").write_text(json.dumps(usual))
    read_vision_spec(open_encoder(folder))
    (folder / "preprocessor_config.json").write_text(json.dumps(usual | settings))
    with pytest.raises(ModelError, match=said):
        open_encoder(folder)


def test_a_saved_sound_is_the_same_again(tmp_path):
    with hearing_llm() as llm:
        sequence = llm.sequence(prompt("voxtral", 1))
        wanted = sequence.logits.copy()
        sequence.save(tmp_path / "sound.seq")
        assert (llm.restore(tmp_path / "sound.seq").logits == wanted).all()


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["run", "--model", "m.gguf", "--temperature", "0", "-n", "4", *map(str, arguments)])
    return ended.value.code


def test_sounds_on_the_command_line(tmp_path, monkeypatch, capsys):
    path, loaded = tmp_path / "talk.wav", []
    path.write_bytes(wav("voxtral", 0))

    with hearing_llm() as llm:
        question = {"role": "user", "content": [stretto.Audio.open(path), stretto.Audio.open(path), "B?"]}
        wanted = llm.chat([question], temperature=0, max_tokens=4).text
    opened = hearing_llm()

    def load(model, **options):
        loaded.append(options["vision"])
        return opened

    monkeypatch.setattr(stretto, "load", load)
    monkeypatch.setattr(sys, "stdin", None)
    assert run("--vision", "mm.gguf", "--chat", "--audio", path, "--audio", path, "B?") == 0
    assert capsys.readouterr().out.rstrip("\n") == wanted.rstrip("\n")
    assert loaded == ["mm.gguf"]
    assert logs.last().messages[0]["content"] == "[sound of 0.3 s]\n[sound of 0.3 s]\nB?"
    assert run("--audio", path, "B?") != 0
    assert "--audio needs --vision" in capsys.readouterr().err
    for name, reason in (("nowhere.wav", "nowhere.wav"), (__file__, "no WAV file")):
        assert run("--vision", "mm.gguf", "--audio", name, "B?") != 0
        assert reason in capsys.readouterr().err
    assert loaded == ["mm.gguf"]
