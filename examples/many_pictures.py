"""Many pictures in one batch: requests with and without pictures run in the same steps."""

from PIL import Image, ImageDraw

import stretto

COLOURS = {"red": (215, 30, 35), "green": (35, 150, 55), "blue": (40, 75, 215), "yellow": (245, 220, 45)}


def square(colour: tuple[int, int, int]) -> stretto.Image:
    """A picture of one."""
    drawn = Image.new("RGB", (128, 128), "white")
    ImageDraw.Draw(drawn).rectangle((36, 36, 92, 92), fill=colour)
    return stretto.Image.open(drawn)


with stretto.load("smollm2", vision="sketch") as llm:
    contents = [[square(colour), "What color is the shape?"] for colour in COLOURS.values()]
    contents.append([square(COLOURS["red"]), "What shape is this?"])  # its picture is there already
    contents.append("How many legs has a spider?")
    prompts = [llm.chat_prompt([{"role": "user", "content": content}]) for content in contents]
    results = llm.generate(prompts, max_tokens=16, temperature=0)
    for name, result in zip([*COLOURS, "again", "none"], results, strict=True):
        print(f"{name:>6}: {result.text!r}")
    print(f"{len(prompts)} answers in {llm.metrics.steps} steps")
