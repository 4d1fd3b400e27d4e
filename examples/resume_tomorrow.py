"""Resume tomorrow: save a sequence, close the model, and go on later as if nothing had happened."""

from pathlib import Path
from tempfile import TemporaryDirectory

import stretto


def go_on(sequence: stretto.Sequence) -> list[int]:
    """Twelve tokens more, drawn from the sequence's own random numbers."""
    return [sequence.step(temperature=0.9).token for _ in range(12)]


with TemporaryDirectory() as folder:
    file = Path(folder) / "story.safetensors"

    with stretto.load("smollm2") as llm:
        story = llm.sequence("On a rainy night the old captain said:", seed=5)
        go_on(story)
        story.save(file)
        print(f"saved {len(story)} tokens in {file.stat().st_size / 1e6:.1f} MB")
        expected = go_on(story)

    with stretto.load("smollm2") as llm:  # tomorrow, or in another process
        story = llm.restore(file)
        print(f"restored: …{story.text[-40:]!r}")
        print("the same tokens as without the break:", go_on(story) == expected)
