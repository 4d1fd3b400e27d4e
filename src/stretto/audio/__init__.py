"""Sound: files and samples, and the spectrograms that models take."""

from stretto.audio.clip import Audio

__all__ = ["Audio"]
