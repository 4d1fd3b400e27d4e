"""Captions for all pictures of a folder, several at a time, with a progress bar: caption_folder.py FOLDER"""

import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageOps
from rich.progress import Progress

import stretto

TOGETHER = 16
folder = Path(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp())
if not sys.argv[1:]:
    for colour in ("red", "green", "blue"):
        ImageOps.expand(Image.new("RGB", (64, 64), colour), 32, "white").save(folder / f"{colour}.png")

with stretto.load("smollm2", vision="sketch", cells=8192) as llm, Progress() as progress:
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    for first in progress.track(range(0, len(paths), TOGETHER), description="captions"):
        streams = {}
        for path in paths[first : first + TOGETHER]:
            try:
                message = {"role": "user", "content": [stretto.Image.open(path), "What do you see?"]}
                streams[path] = llm.chat([message], stream=True, max_tokens=32, temperature=0)
            except stretto.InvalidRequest as error:  # no picture, a damaged or too large one
                print(f"{path.name}: left out, {error}")
        for path, stream in streams.items():
            print(f"{path.name}: {stream.result.text.strip()}")
