"""Transcripts as subtitles, in SubRip's and WebVTT's formats."""

from __future__ import annotations

from stretto.tasks.results import Segment, Transcript


def srt(transcript: Transcript) -> str:
    """SubRip: numbered blocks, a comma before the milliseconds."""
    blocks = [f"{number}\n{_block(one, ',')}" for number, one in enumerate(transcript.segments, 1)]
    return "\n".join(blocks)


def vtt(transcript: Transcript) -> str:
    """WebVTT: blocks below a heading, a point before the milliseconds."""
    return "\n".join(["WEBVTT\n", *(_block(one, ".") for one in transcript.segments)])


def _block(segment: Segment, point: str) -> str:
    text = " ".join(segment.text.split())  # an empty line would end the block
    return f"{_clock(segment.start, point)} --> {_clock(segment.end, point)}\n{text}\n"


def _clock(seconds: float, point: str) -> str:
    """Hours, minutes, seconds and milliseconds.

    >>> _clock(3661.5, ",")
    '01:01:01,500'
    """
    whole = round(seconds * 1000)
    hours, minutes = divmod(whole // 60_000, 60)
    return f"{hours:02}:{minutes:02}:{whole // 1000 % 60:02}{point}{whole % 1000:03}"
