"""A process that measures on request: a JSON object a line on stdin, an answer a line on stdout.

python lines.py worker_llamacpp

Between requests it waits for its stdin and computes nothing. It runs in any Python, so it imports nothing but
the standard library, and then the worker.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any


def serve(worker: Any) -> None:
    """Answer requests {"do": name, …} with what the worker's function of that name returns."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints goes to stderr, not between the answers
    for line in sys.stdin:
        request = json.loads(line)
        begun = time.perf_counter()
        try:
            answer = getattr(worker, request.pop("do"))(**request) or {}
            answer.setdefault("seconds", time.perf_counter() - begun)
            answer["memory_bytes"] = memory_bytes()
        except Exception as error:  # the other end decides what to do
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def memory_bytes() -> int | None:
    """The most memory that this process had, in bytes; None where the system does not tell."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    serve(import_module(sys.argv[1]).Worker())
