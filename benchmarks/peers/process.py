"""The other end of `lines.serve`: a process that stays alive and measures when it is asked."""

import json
import os
import subprocess
import time
from pathlib import Path

PAUSE = 0.1  # seconds before a measurement: threads of the other process that still spin fall asleep


class Process:
    """`with Process([python, script]) as process: process.ask({"do": …})`."""

    def __init__(self, command):
        self.command = command

    def __enter__(self):
        self._process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
        )
        self.ask({"do": "about"})  # it is there when it has answered
        return self

    def __exit__(self, kind, error, trace):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def restart(self):
        """A new process in place of this one."""
        self.__exit__(None, None, None)
        self.__enter__()

    def ask(self, request, idle=None):
        """The answer to a request; with `idle`, also the processor time that process used meanwhile."""
        if idle:
            time.sleep(PAUSE)
        before = idle.cpu_seconds() if idle else 0.0
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.command} ended with status {self._process.wait()} at {request}")
        answer = json.loads(line)
        if "error" in answer:
            raise SystemExit(f"{self.command} failed at {request}: {answer['error']}")
        return {**answer, "idle_cpu": idle.cpu_seconds() - before} if idle else answer

    def cpu_seconds(self):
        """The processor time it has used so far, 0 where the system does not tell."""
        try:
            # The name, in parentheses, may hold spaces; what follows are numbers.
            words = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def busy_seconds():
    """The processor time that the whole machine has used, 0 where the system does not tell."""
    try:
        user, nice, system, _, _, irq, soft, steal = Path("/proc/stat").read_text().split()[1:9]
    except (OSError, ValueError):
        return 0.0
    return sum(map(int, (user, nice, system, irq, soft, steal))) / os.sysconf("SC_CLK_TCK")


def own_seconds():
    """The processor time of this process and of those it started that have ended."""
    return sum(os.times()[:4])
