"""The engine: sequences, requests, and the step that moves them all forward."""

from stretto.engine.engine import Engine
from stretto.engine.request import Request
from stretto.engine.sequence import Sequence
from stretto.engine.types import Result, Step, Timings, Token, Usage

__all__ = ["Engine", "Request", "Result", "Sequence", "Step", "Timings", "Token", "Usage"]
