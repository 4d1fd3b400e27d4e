"""A process that measures on request: a JSON object a line on stdin, an answer a line on stdout.

Between requests it waits for its stdin, and computes nothing. It needs nothing but Python.
"""

import json
import os
import sys
import time
from pathlib import Path


def serve(jobs):
    """Answer requests {"do": name, …} with what `jobs[name](…)` returns, until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints goes to stderr, not between the answers
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = jobs[request.pop("do")](**request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def resident_bytes():
    """Of this process, what it shares counted by its share: the proportional set size."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


class Stopwatch:
    """`with Stopwatch() as watch: …`, then `watch.answer` is what to answer."""

    def __enter__(self):
        self.begun = time.perf_counter()
        return self

    def __exit__(self, kind, error, trace):
        self.answer = {"seconds": time.perf_counter() - self.begun}
