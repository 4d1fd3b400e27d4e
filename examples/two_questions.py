"""Two questions about one picture: the second one finds the picture in the cache, already read."""

from PIL import Image, ImageDraw

import stretto

QUESTIONS = ("What shape is this?", "What color is the shape?")

drawn = Image.new("RGB", (128, 128), "white")
ImageDraw.Draw(drawn).ellipse((32, 32, 96, 96), fill=(215, 30, 35))

with stretto.load("smollm2", vision="sketch") as llm:  # or a model of your own and its mmproj file
    picture = stretto.Image.open(drawn)  # also a path, bytes, an array, a data: URL
    for question in QUESTIONS:
        message = {"role": "user", "content": [picture, question]}
        answer = llm.chat([message], max_tokens=16, temperature=0)
        usage = answer.usage
        print(f"{question} {answer.text!r}")
        print(f"  {usage.cached_tokens} of {usage.prompt_tokens} tokens were there already")
