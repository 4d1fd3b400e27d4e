"""How long a start takes: imports, loading, and the first token with and without a running server.

    python benchmarks/start.py                # smollm2
    python benchmarks/start.py MODEL --runs 9

CPU seconds (user and system) of whole processes, since machines are busy; they run in turns, and a figure is
the median. The yardstick is `import numpy, typer`, without which no command could start.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

YARDSTICK = "import numpy, typer"
RUN = "from stretto.cli import main; main()"
# Installed packages have bytecode; without it a checkout would be compiled at each start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def spent(command: list[str]) -> tuple[float, float]:
    """CPU seconds and seconds on the clock of a process, which has to succeed."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--no-serving", action="store_true", help="only what needs no server")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stretto-start-", dir="/tmp") as folder:
        measure(given, Path(folder))


def measure(given: argparse.Namespace, folder: Path) -> None:
    """Run the commands in turns; their answers are not kept among the user's conversations."""
    (folder / "config.toml").write_text("logs = false\n")
    os.environ["STRETTO_CONFIG"] = str(folder / "config.toml")

    def python(code: str, *arguments: str) -> list[str]:
        return [sys.executable, "-c", code, *arguments]

    load = f"import stretto; stretto.load({given.model!r}"
    answer = ("run", "-m", given.model, "-n", "1", "--seed", "1", "Why is the sky blue?")
    commands = {
        YARDSTICK: python(YARDSTICK),
        "import stretto.llm": python("import stretto.llm"),
        "stretto.load(model, repack=False)": python(f"{load}, repack=False)"),
        "stretto.load(model)": python(f"{load})"),
    }
    server = None
    if given.no_serving:
        commands["stretto run, one token"] = python(RUN, *answer)
    else:
        commands["stretto run --no-server, one token"] = python(RUN, *answer, "--no-server")
        commands["stretto run with a server, one token"] = python(RUN, *answer)
        os.environ["XDG_RUNTIME_DIR"] = str(folder)
        serve = python(RUN, "serve", "-m", given.model, "--port", "0")
        server = subprocess.Popen(serve, stdout=subprocess.PIPE)
        assert server.stdout is not None
        server.stdout.readline()
        time.sleep(1)
    try:
        for command in commands.values():
            spent(command)  # files are read, bytecode is written, the server has loaded the model
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(given.runs):
            for name, command in commands.items():
                found[name].append(spent(command))
    finally:
        if server is not None:
            server.terminate()
            server.wait()
    base = median(cpu for cpu, _ in found[YARDSTICK])
    print("| | CPU s | × yardstick | s on the clock |\n|---|---|---|---|")
    for name, times in found.items():
        cpu, wall = median(one[0] for one in times), median(one[1] for one in times)
        print(f"| {name} | {cpu:.3f} | {cpu / base:.2f} | {wall:.2f} |")


if __name__ == "__main__":
    main()
