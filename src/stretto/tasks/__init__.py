"""Models that do not generate: they embed, rank, classify, detect, segment, read and transcribe.

    import stretto

    stretto.load("minilm").embed(["a cat", "a dog"])
    stretto.load("centernet").detect("street.jpg").draw("street.jpg").save("out.png")

`stretto.load` opens them by name or by path; results are values that print, go to JSON and draw themselves.
"""

from stretto.tasks.model import TaskModel
from stretto.tasks.results import (
    Box,
    Classification,
    Detection,
    Detections,
    Label,
    Line,
    Ranked,
    Ranking,
    Reading,
    Result,
    Segment,
    Segmentation,
    Transcript,
)

__all__ = [
    "Box",
    "Classification",
    "Detection",
    "Detections",
    "Label",
    "Line",
    "Ranked",
    "Ranking",
    "Reading",
    "Result",
    "Segment",
    "Segmentation",
    "TaskModel",
    "Transcript",
]
