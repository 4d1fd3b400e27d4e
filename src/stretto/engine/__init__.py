"""The engine: sequences, requests, and the step that moves them all forward."""

from stretto.engine.engine import Engine
from stretto.engine.request import Request
from stretto.engine.scheduler import Limits
from stretto.engine.sequence import Sequence
from stretto.engine.types import Result, Step, Timings, Token, Usage

__all__ = ["Engine", "Limits", "Request", "Result", "Sequence", "Step", "Timings", "Token", "Usage"]
