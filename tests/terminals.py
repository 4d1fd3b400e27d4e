"""A command in a terminal of its own: keys go in, and the screen is what a person would see."""

import os
import signal
import sys
import time

import pexpect
import pyte

WIDTH, HEIGHT = 80, 24
LEFT_OUT = ("NO_COLOR", "COLUMNS", "LINES")  # of the environment
SECONDS = 120  # a machine may be busy; nothing waits so long that works

CHAT = """
import sys
import stretto
from stretto.cli import main
from stretto.testing import mock_llm

{script}

stretto.load = lambda model, **options: mock_llm(script, **{model})
main(["chat", "--model", "mock.gguf", "--temperature", "0", *{arguments!r}])
"""


def stop(process):
    """Kill a program of pexpect that may still run, and wait until it is gone.

    `close(force=True)` gives a killed program a tenth of a second, which a busy machine may not have for it.
    """
    if process.isalive():
        process.kill(signal.SIGKILL)
        process.wait()
    process.close()


def finish(process):
    """Wait for the end of a program of pexpect that has closed its output: the exit code."""
    process.wait()
    process.close()
    return process.exitstatus


class Terminal:
    """A Python program in a pseudo-terminal, with an emulator that answers it as terminals do."""

    def __init__(self, arguments, width=WIDTH, height=HEIGHT, folder=None, **environment):
        environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if name not in ("NO_COLOR", "COLUMNS", "LINES")
            },
            "TERM": "xterm-256color",
            "PYTHONWARNINGS": "error",
            **environment,
        }
        self.raw = ""  # all that was written
        self.screen = pyte.HistoryScreen(width, height, history=10_000)
        self._stream = pyte.Stream(self.screen)
        self.process = pexpect.spawn(
            sys.executable,
            arguments,
            cwd=folder,
            env=environment,
            dimensions=(height, width),
            encoding="utf-8",
        )
        self.screen.write_process_input = self.process.send

    @property
    def text(self):
        """All lines, also those that have scrolled away, without space at their ends."""
        width = self.screen.columns
        above = ["".join(line[x].data for x in range(width)) for line in self.screen.history.top]
        return "\n".join(line.rstrip() for line in [*above, *self.screen.display]).rstrip()

    def until(self, text, n=1):
        """Read until a text is seen `n` times; return all that is seen."""
        end = time.monotonic() + SECONDS
        while self.text.count(text) < n:
            assert time.monotonic() < end, f"{text!r} did not come, but:\n{self.text}"
            assert self._read() or self.text.count(text) >= n, f"it ended without {text!r}:\n{self.text}"
        return self.text

    def prompt(self, n=None):
        """Read until the cursor stands behind an empty prompt, the `n`-th one if that is said."""
        end = time.monotonic() + SECONDS
        while not self._at_prompt() or (n is not None and self.n_prompts() < n):
            assert time.monotonic() < end, f"no prompt came, but:\n{self.text}"
            assert self._read(), f"it ended without a prompt:\n{self.text}"
        return self.text

    def n_prompts(self):
        return sum(line.startswith(">") for line in self.text.split("\n"))

    def _at_prompt(self):
        cursor = self.screen.cursor
        line = self.screen.display[cursor.y]
        return line.rstrip() == ">" and cursor.x == 2 and self.text.split("\n")[-1].startswith(" turn ")

    def _read(self):
        try:
            new = self.process.read_nonblocking(65536, timeout=1)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.raw += new
        self._stream.feed(new)
        return True

    def type(self, keys):
        self.process.send(keys)

    def say(self, line):
        """Type a line at an empty prompt, and read until the next one."""
        n = self.n_prompts()
        self.type(f"{line}\r")
        return self.prompt(n + 1)

    def end(self):
        """Read to the end: the exit code."""
        while self._read():
            pass
        return finish(self.process)


def chat(script, *arguments, model=None, **options):
    """A chat in a terminal with a scripted model; `script` is a text, or source that defines `script`."""
    source = script if "script" in script else f"script = {script!r}"
    program = CHAT.format(script=source, model=model or {}, arguments=list(map(str, arguments)))
    return Terminal(["-c", program], **options)
