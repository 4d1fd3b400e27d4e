"""Word error rates of the models that write speech down, on the recordings of the package moonshine-voice.

    pip download --no-deps moonshine-voice==0.0.65 && unzip moonshine_voice*.whl 'moonshine_voice/assets/*'
    python benchmarks/speech.py moonshine_voice/assets
    python benchmarks/speech.py moonshine_voice/assets --reference REFERENCE/bin/python

They are read from Samuel Beckett's “Worstward Ho” and Charles Dickens's “A Tale of Two Cities”. Case and
punctuation do not count. “long” is both, twice, with silence between them.

REFERENCE has openai-whisper, which gets the same weights and samples: each piece between pauses by its
`decode`, and each recording as a whole by its `transcribe`, greedily and without the text before as a prompt.
Texts and times of segments are compared, and the word error rate of `transcribe` as it is by default stands
beside.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import stretto
from stretto.audio.sound import RATE, open_sound
from stretto.tasks.speech.voice import Voice, cut_speech
from stretto.weights import hub

SAID = {
    "beckett.wav": "Ever tried. Ever failed. No matter. Try again. Fail again. Fail better.",
    "two_cities.wav": (
        "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of "
        "foolishness, it was the epoch of belief, it was the epoch of incredulity, it was the season of "
        "Light, it was the season of Darkness, it was the spring of hope, it was the winter of despair, we "
        "had everything before us, we had nothing before us, we were all going direct to Heaven, we were all "
        "going direct the other way—in short, the period was so far like the present period, that some of "
        "its noisiest authorities insisted on its being received, for good or for evil, in the superlative "
        "degree of comparison only."
    ),
}
PAUSE_SECONDS = (0, 7, 3, 12)  # before each recording of the long one
REFERENCE = """
import json, sys, numpy as np, torch, whisper
folder, language = sys.argv[1], sys.argv[2] or None
torch.set_num_threads(2)
with np.load(f"{folder}/weights.npz") as stored:
    found = {name: torch.tensor(stored[name]).float() for name in stored.files}
take = lambda name: found[f"{name}/weight"]
layers = {side: 1 + max(int(n.split("/")[1][6:]) for n in found if n.startswith(f"{side}/layer_")
          and n.split("/")[1][6:].isdigit()) for side in ("encoder", "decoder")}
width = take("decoder/embeddings").shape[1]
dims = whisper.model.ModelDimensions(
    n_mels=take("encoder/conv1").shape[1], n_audio_ctx=1500, n_audio_state=width, n_audio_head=width // 64,
    n_audio_layer=layers["encoder"], n_vocab=take("decoder/embeddings").shape[0], n_text_ctx=448,
    n_text_state=width, n_text_head=width // 64, n_text_layer=layers["decoder"])
model, state = whisper.model.Whisper(dims), {}
def put(theirs, ours, *names):
    for kind in ("weight", "bias"):
        for name, part in zip(names, found[f"{ours}/{kind}"].chunk(len(names))):
            if not (kind == "bias" and name.endswith("key")):
                state[f"{theirs}{name}.{kind}"] = part
def put_norm(theirs, ours):
    state[f"{theirs}.weight"], state[f"{theirs}.bias"] = found[f"{ours}/gamma"], found[f"{ours}/beta"]
for side, last in (("encoder", "ln_post"), ("decoder", "ln")):
    state[f"{side}.positional_embedding"] = found[f"{side}/position_encodings/encodings"]
    put_norm(f"{side}.{last}", f"{side}/layer_norm")
    for i in range(layers[side]):
        theirs, ours = f"{side}.blocks.{i}.", f"{side}/layer_{i}"
        put(theirs, f"{ours}/self_attention/linear_0", "attn.query", "attn.key", "attn.value")
        put(theirs, f"{ours}/self_attention/linear_1", "attn.out")
        put_norm(f"{theirs}attn_ln", f"{ours}/self_attention/layer_norm")
        if side == "decoder":
            put(theirs, f"{ours}/attention/linear_0", "cross_attn.query")
            put(theirs, f"{ours}/attention/linear_1", "cross_attn.key", "cross_attn.value")
            put(theirs, f"{ours}/attention/linear_2", "cross_attn.out")
            put_norm(f"{theirs}cross_attn_ln", f"{ours}/attention/layer_norm")
        put(theirs, f"{ours}/ffn/linear_0", "mlp.0")
        put(theirs, f"{ours}/ffn/linear_1", "mlp.2")
        put_norm(f"{theirs}mlp_ln", f"{ours}/ffn/layer_norm")
put("encoder.", "encoder/conv1", "conv1")
put("encoder.", "encoder/conv2", "conv2")
state["decoder.token_embedding.weight"] = take("decoder/embeddings")
missing = model.load_state_dict(state, strict=False).missing_keys
assert not missing, missing
model.eval()
if len(sys.argv) > 3:  # the checkpoint itself
    model = whisper.load_model(sys.argv[3], "cpu")
sounds, made = np.load(f"{folder}/sounds.npz"), {}
for name in sounds.files:
    samples = sounds[name]
    if name.startswith("piece"):
        mel = whisper.log_mel_spectrogram(whisper.pad_or_trim(samples), dims.n_mels)
        options = whisper.DecodingOptions(temperature=0.0, language=language, fp16=False)
        one = whisper.decode(model, mel, options)
        silent = one.no_speech_prob > 0.6 and one.avg_logprob <= -1.0
        made[name] = "" if silent else one.text, one.language
        continue
    greedy = {"temperature": 0.0, "condition_on_previous_text": False}
    for kind, options in (("greedy", greedy), ("default", {})):
        one = whisper.transcribe(model, samples, fp16=False, language=language, **options)
        parts = [[part["start"], part["end"], part["text"].strip()] for part in one["segments"]]
        made[f"{kind} {name}"] = [part for part in parts if part[2]], one["language"]
print(json.dumps(made))
"""


def words(text: str) -> list[str]:
    """Words in lower case."""
    return re.findall(r"[a-z']+", text.lower().replace("—", " "))


def errors(found: list[str], said: list[str]) -> int:
    """The least number of words to insert, delete and replace."""
    row = list(range(len(said) + 1))
    for i, one in enumerate(found, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(said, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (one != other))
    return row[-1]


def measure(name: str, folder: Path) -> None:
    """Print a model's word error rates."""
    with stretto.load(name) as model:
        for file, text in SAID.items():
            for vad in (True, False):
                start = time.process_time()
                try:
                    found = model.transcribe(folder / file, vad=vad)
                except stretto.InvalidRequest:
                    continue  # too long for one piece
                seconds = time.process_time() - start
                wrong, n = errors(words(found.text), words(text)), len(words(text))
                cut = "pieces" if vad else "whole"
                print(
                    f"{name:16} {file:15} {cut:7} {wrong:3} of {n:3} words wrong, CPU {seconds:.1f} s",
                    flush=True,
                )
                print(f"    {found.text}", flush=True)


def long_sound(sounds: dict[str, np.ndarray]) -> np.ndarray:
    """All recordings twice, with silence before them."""
    parts = [
        part
        for seconds, one in zip(PAUSE_SECONDS, 2 * list(sounds.values()), strict=True)
        for part in (np.zeros(seconds * RATE, np.float32), one)
    ]
    return np.concatenate(parts)


def compare(name: str, folder: Path, python: str, chosen: list[str]) -> None:
    """Print where a model's texts differ from those of OpenAI's package."""
    sounds = {file: np.concatenate(list(open_sound(folder / file, None).at_16_khz())) for file in SAID}
    sounds["long"] = long_sound(sounds)
    sounds = {file: sounds[file] for file in chosen}
    said = SAID | {"long": " ".join(2 * list(SAID.values()))}
    with stretto.load(name) as model, tempfile.TemporaryDirectory() as place:
        given = {f"whole {file}": one for file, one in sounds.items()}
        for file in (file for file in SAID if file in chosen):
            pieces = cut_speech([sounds[file]], Voice(model._voice), model._rules)
            given |= {f"piece {file} {i}": piece.samples for i, piece in enumerate(pieces)}
        np.savez(f"{place}/sounds.npz", **given)
        np.savez(f"{place}/weights.npz", **model._model._weights)
        known = "" if len(model.languages) > 1 else "en"
        checkpoints = [str(path) for path in [hub.resolve(name)] if path.suffix == ".pt"]
        done = subprocess.run(
            [python, "-c", REFERENCE, place, known, *checkpoints], capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(done.stderr[-2000:])
        theirs = json.loads(done.stdout.splitlines()[-1])
        same = []
        for key in (key for key in given if key.startswith("piece")):
            language, segments = model._write(given[key], None)
            ours = " ".join(one.text for one in segments)
            same.append((ours, language) == (" ".join(theirs[key][0].split()), theirs[key][1]))
            if not same[-1]:
                print(f"  {key}: {ours!r} ({language}), there {theirs[key][0]!r} ({theirs[key][1]})")
        print(f"{name}: {sum(same)} of {len(same)} pieces have the same text", flush=True)
        for file, one in sounds.items():
            found = model.transcribe(one, sample_rate=RATE, vad=False)
            ours = [[part.start, part.end, part.text] for part in found]
            seconds = len(one) / RATE  # theirs may end behind the sound
            parts = [
                [min(start, seconds), min(end, seconds), text]
                for start, end, text in theirs[f"greedy whole {file}"][0]
            ]
            texts = [part[2] for part in ours] == [part[2] for part in parts]
            times = len(ours) == len(parts) and all(
                abs(a[0] - b[0]) < 0.011 and abs(a[1] - b[1]) < 0.011
                for a, b in zip(ours, parts, strict=True)
            )
            pieces = model.transcribe(one, sample_rate=RATE)
            by_default = " ".join(part[2] for part in theirs[f"default whole {file}"][0])
            wrong = [
                errors(words(text), words(said[file]))
                for text in (pieces.text, found.text, " ".join(part[2] for part in parts), by_default)
            ]
            print(
                f"{name} {file}: {len(ours)} segments, the same texts: {texts}, the same times: {times}; of "
                f"{len(words(said[file]))} words wrong: {wrong[0]} in pieces, {wrong[1]} as a whole; there "
                f"{wrong[2]}, by default {wrong[3]}",
                flush=True,
            )
            if not (texts and times):
                for a, b in zip(ours, parts, strict=False):
                    if a[2] != b[2] or abs(a[0] - b[0]) > 0.011 or abs(a[1] - b[1]) > 0.011:
                        print(f"    {a}\n    {b}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--models", nargs="*", default=["moonshine", "moonshine-base", "whisper-tiny.en", "whisper-base"]
    )
    parser.add_argument("--reference", metavar="PYTHON")
    parser.add_argument("--recordings", nargs="*", default=[*SAID, "long"], help="those to compare")
    arguments = parser.parse_args()
    for name in arguments.models:
        if arguments.reference is None:
            measure(name, arguments.folder)
        elif name.startswith("whisper"):
            compare(name, arguments.folder, arguments.reference, arguments.recordings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
