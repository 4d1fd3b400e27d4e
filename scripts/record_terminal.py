"""Records sessions in a real pseudo-terminal as SVG, for the README.

python scripts/record_terminal.py [chat] [run] [--folder docs/pictures]

Needs pexpect and pyte, of the test extra, and the default model. What is drawn is what the commands wrote.
"""

import argparse
import os
import re
import sys
import tempfile
import time
from pathlib import Path

import pexpect
import pyte

from terminal_svg import draw, lines_of

WIDTH, HEIGHT = 90, 16
SECONDS = 120
PROMPT = "$ "

# A session: a title, and (what is typed, what is waited for behind it: a text and how often it is there).
SESSIONS = {
    "run": (
        "stretto run",
        [
            ('stretto run "In one sentence: why is the sky blue?" --temperature 0', "tok/s", 1),
            ('stretto run -c "And at sunset?" --temperature 0 -n 60', "tok/s", 2),
            (
                'echo "Ada, born in 1815." | stretto run "Which year?" --regex "[0-9]{4}" --temperature 0',
                "tok/s",
                3,
            ),
        ],
    ),
    "chat": (
        "stretto chat",
        [
            ("stretto chat --temperature 0 --max-tokens 90", "/help for help", 1),
            ("What is 2+2?", "turn 1", 1),
            ("Write three lines about the sea.", "turn 2", 1),
        ],
    ),
}


class Recorder:
    """A shell in a terminal of its own, with an emulator that keeps what it shows."""

    def __init__(self, home):
        here = str(Path(sys.executable).parent)
        kept = {
            name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")
        }
        environment = {
            **kept,
            "PATH": f"{here}{os.pathsep}{os.environ['PATH']}",
            "TERM": "xterm-256color",
            "PS1": PROMPT,
            "HISTFILE": str(home / "history"),
        }
        self.screen = pyte.HistoryScreen(WIDTH, HEIGHT, history=1000)
        self._stream = pyte.Stream(self.screen)
        self.shell = pexpect.spawn(
            "bash",
            ["--norc", "--noprofile", "-i"],
            env=environment,
            dimensions=(HEIGHT, WIDTH),
            encoding="utf-8",
        )
        self.screen.write_process_input = self.shell.send

    @property
    def text(self):
        above = ["".join(line[x].data for x in range(WIDTH)) for line in self.screen.history.top]
        return "\n".join([*above, *self.screen.display])

    def read(self, seconds=0.2):
        """Take what has been written; the emulator knows no dim text, so that is grey."""
        try:
            data = self.shell.read_nonblocking(65536, timeout=seconds)
        except (pexpect.TIMEOUT, pexpect.EOF):
            return
        data = re.sub(r"\x1b\[2m", "\x1b[90m", data)
        self._stream.feed(re.sub(r"\x1b\[2;(\d+)m", "\x1b[\\1m", data))

    def until(self, text, n):
        end = time.monotonic() + SECONDS
        while self.text.count(text) < n:
            if time.monotonic() > end:
                raise SystemExit(f"{text!r} did not come {n} times, but:\n{self.text}")
            self.read()

    def rest(self, in_shell):
        """Read until nothing more comes, and until the shell asks for the next command."""
        before, end = None, time.monotonic() + SECONDS
        while before != self.text or (in_shell and not self.text.rstrip().endswith(f"\n{PROMPT.strip()}")):
            if time.monotonic() > end:
                raise SystemExit(f"the command did not end:\n{self.text}")
            before = self.text
            time.sleep(0.4)
            self.read()


def record(name, home):
    """The SVG of a session."""
    title, steps = SESSIONS[name]
    recorder = Recorder(home)
    recorder.until(PROMPT.strip(), 1)
    for typed, waited, n in steps:
        recorder.shell.send(typed + "\r")
        recorder.until(waited, n)
        recorder.rest(in_shell=name == "run")
    rows = lines_of(recorder.screen)
    recorder.shell.close(force=True)
    return draw(rows, WIDTH, title)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sessions", nargs="*", help=f"{', '.join(SESSIONS)}; all of them by default")
    parser.add_argument("--folder", type=Path, default=Path("docs/pictures"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for one in given.sessions or SESSIONS:
            path = given.folder / f"{one}.svg"
            path.write_text(record(one, Path(folder)), encoding="utf-8")
            print(path)
