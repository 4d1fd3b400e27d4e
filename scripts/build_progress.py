"""Runs pip and shows how far the native core's build is, in one line; what pip says comes if it fails.

python scripts/build_progress.py -m pip install --editable .

The arguments are those of this Python. Where stderr is no terminal, lines come every so often.
"""

import re
import subprocess
import sys
import threading
import time
from collections import deque

STEP = re.compile(r"^\s*\[(\d+)/(\d+)\] (?:Building|Linking)")  # as Ninja and Make report their steps
STAGES = (
    ("Collecting", "fetching packages"),
    ("Installing build dependencies", "fetching what the build needs"),
    ("Preparing editable metadata", "preparing the build"),
    ("Preparing metadata", "preparing the build"),
    ("*** Configuring CMake", "configuring"),
    ("*** Making wheel", "packing"),
    ("Installing collected packages", "installing"),
)
KEPT_LINES = 400
PLAIN_SECONDS = 15.0  # between lines where there is no terminal
BESIDE_SECONDS = 0.5  # between looks at what goes on beside it
WIDTH = 78


class Progress:
    """One line in a terminal; elsewhere a line now and then."""

    def __init__(self, stream):
        self._stream = stream
        self._live = stream.isatty()
        self._shown = ""
        self._at = 0.0

    def show(self, text):
        if text == self._shown:
            return
        if self._live:
            self._stream.write(f"\r{text[:WIDTH]:<{WIDTH}}")
        elif self._at and time.monotonic() - self._at < PLAIN_SECONDS:
            return
        else:
            self._stream.write(f"{text}\n")
        self._stream.flush()
        self._shown, self._at = text, time.monotonic()

    def end(self):
        if self._live and self._shown:
            self._stream.write(f"\r{'':<{WIDTH}}\r")
            self._stream.flush()


def stage(line):
    """What a line of pip's says about the build; None if nothing."""
    if step := STEP.match(line):
        return f"compiling the native core: {step[1]} of {step[2]}"
    return next((said for begin, said in STAGES if line.strip().startswith(begin)), None)


def run(command, stream=None, begin="building, which takes a minute or two", beside=None):
    """Run a command that reports as pip does, and return its exit code.

    `beside` returns in words how far something else is that goes on at the same time, or "".
    """
    progress = Progress(stream or sys.stderr)
    kept = deque(maxlen=KEPT_LINES)
    said, lock, ended = begin, threading.Lock(), threading.Event()

    def show():
        with lock:
            progress.show(" · ".join(filter(None, [said, beside() if beside else ""])))

    def look_beside():
        while not ended.wait(BESIDE_SECONDS):
            show()

    show()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        looking = threading.Thread(target=look_beside, daemon=True)
        if beside:
            looking.start()
        try:
            for line in process.stdout:
                kept.append(line)
                if found := stage(line):
                    said = found
                    show()
        except BaseException:  # an interrupt ends both
            process.terminate()
            raise
        finally:
            ended.set()
            if beside:
                looking.join()
            progress.end()
    if process.returncode:
        (stream or sys.stderr).writelines(kept)
    return process.returncode


if __name__ == "__main__":
    sys.exit(run([sys.executable, *sys.argv[1:], "--verbose"]))
