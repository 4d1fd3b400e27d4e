"""Captions for all pictures of a folder, several at a time, with a progress bar: caption_folder.py FOLDER"""

import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageOps
from rich.progress import Progress

import stretto

folder = Path(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp())
for colour in () if sys.argv[1:] else ("red", "green", "blue"):  # without a folder: three squares
    ImageOps.expand(Image.new("RGB", (64, 64), colour), 32, "white").save(folder / f"{colour}.png")

with stretto.load("smollm2", vision="sketch", cells=8192) as llm, Progress() as progress:
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    task = progress.add_task("captions", total=len(paths))
    for first in range(0, len(paths), 16):
        streams = {}
        for path in paths[first : first + 16]:
            try:
                message = {"role": "user", "content": [stretto.Image.open(path), "What do you see?"]}
                streams[path] = llm.chat([message], stream=True, max_tokens=32, temperature=0)
            except stretto.InvalidRequest as error:  # no picture, a damaged or too large one
                print(f"{path.name}: left out, {error}")
                progress.advance(task)
        for path, stream in streams.items():
            print(f"{path.name}: {stream.result.text.strip()}")
            progress.advance(task)
