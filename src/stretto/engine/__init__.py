"""The engine: sequences, requests, and the step that moves them all forward.

runner.py      cells, backend and prefix cache; computes tracks      track.py       the record of one sequence
scheduler.py   plans the next step                                   engine.py      applies the plan: the step
request.py     a decoder on its way through the queue                decoders/      ways of decoding
output.py      tokens become text and events                         branch.py      the texts of a prompt
sequence.py    the caller's handle on a track                        passes.py      scores, embeddings, logits
stream.py, aio.py, many.py, worker.py    the edges: iterators, asyncio, the thread that steps for it
"""

from stretto.engine.engine import Engine
from stretto.engine.limits import Limits
from stretto.engine.request import Request
from stretto.engine.sequence import Sequence
from stretto.engine.types import Edit, Result, Step, Timings, Token, Usage

__all__ = ["Edit", "Engine", "Limits", "Request", "Result", "Sequence", "Step", "Timings", "Token", "Usage"]
