"""What comparisons with a peer have in common: where samples go, what is being done, who else was busy."""

import json
import os
import re
import sys
import time
from pathlib import Path

from peers.process import busy_seconds, own_seconds

RAW = Path(__file__).parent.parent / "raw"


def note(text):
    """Show what is being done, where somebody looks."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def raw_file(name, cpu):
    """Where all samples of a comparison go, by processor."""
    slug = re.sub(r"\W+", "-", re.sub(r"\(.*?\)", "", cpu)).strip("-").lower()
    return RAW / f"{name}-{slug}.json"


class Others:
    """`others = Others()`, and later `others.share()`: what all else used of the processors."""

    def __init__(self):
        self._begun = time.monotonic(), busy_seconds() - own_seconds()

    def share(self):
        """From 0 to 1, since it was made; ask when the processes of the comparison have ended."""
        wall, busy = time.monotonic() - self._begun[0], busy_seconds() - own_seconds() - self._begun[1]
        return max(0.0, busy / (wall * (os.cpu_count() or 1)))


def finish(document, others, out, markdown, indent=1):
    """The end of a comparison: all of it goes to a file, and what `markdown` makes of it to stdout."""
    note("")
    document["others"] = others.share()
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document, indent=indent) + "\n")
    print("\n".join(markdown(document)))
