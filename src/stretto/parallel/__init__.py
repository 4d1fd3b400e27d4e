"""Tokens that share a position: at each step every token that is probable enough is kept, as one set.

    run = llm.parallel("My favourite colour is", max_tokens=20)
    print(run.brackets)                     # blue[./,] and I['m/'ve] been tasked with …

stretto docs explanation/parallel says what that means exactly.
"""

from stretto.options.keywords import ParallelOptions
from stretto.parallel.options import Bezier, Cosine, Linear, ParallelParams, parallel_params
from stretto.parallel.render import Loop, ParallelText
from stretto.parallel.run import ParallelStream, Run, new_run, run_all
from stretto.parallel.types import Attention, Member, ParallelStep

__all__ = [
    "Attention",
    "Bezier",
    "Cosine",
    "Linear",
    "Loop",
    "Member",
    "ParallelOptions",
    "ParallelParams",
    "ParallelStep",
    "ParallelStream",
    "ParallelText",
    "Run",
    "new_run",
    "parallel_params",
    "run_all",
]
