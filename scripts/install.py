"""Installs Stretto into this Python's environment, and fetches a model while the native core is compiled.

python scripts/install.py               dependencies, then the native core and the commands, editable
python scripts/install.py --pull        and beside compiling the model of STRETTO_MODEL, or the default one
python scripts/install.py --extra test  only what an extra of pyproject.toml asks for: nothing is compiled

The build's own requirements stay in the environment, so that the next build has the same paths and compiles
only what has changed. A download that fails leaves the build as it is, and the other way round.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

from build_progress import Progress, run

ROOT = Path(__file__).resolve().parent.parent
PIP = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
LEAST_CMAKE = (3, 18)


def project():
    """The content of pyproject.toml, read with what every Python that we support has."""
    try:
        import tomllib
    except ImportError:  # 3.10
        from pip._vendor import tomli as tomllib
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def of_extra(name, extras):
    """The requirements of an extra, with those of the extras that it names."""
    found = []
    for requirement in extras[name]:
        own = re.fullmatch(r"stretto\[([\w,]+)\]", requirement)
        found += [r for other in own[1].split(",") for r in of_extra(other, extras)] if own else [requirement]
    return found


def tools():
    """What the build needs besides its requirements: CMake and Ninja, unless the system has them."""
    try:
        said = subprocess.run(["cmake", "--version"], capture_output=True, text=True, check=True).stdout
        version = tuple(map(int, re.search(r"(\d+)\.(\d+)", said).groups()))
    except (OSError, subprocess.CalledProcessError, AttributeError):
        version = (0, 0)
    needed = [] if version >= LEAST_CMAKE else ["cmake>=3.18"]
    return needed + ([] if any(map(shutil.which, ("ninja", "ninja-build", "samu"))) else ["ninja>=1.5"])


class Download:
    """A model that is fetched by a process of its own, which says in JSON how far it is."""

    def __init__(self, command):
        self.text = ""  # how far it is; "" once it has ended
        self.errors = ""
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, env=environment()
        )
        self._readers = [threading.Thread(target=read) for read in (self._read, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read(self):
        for line in self._process.stdout:
            try:
                said = json.loads(line)
                done, total, name = said["done"], said["total"], said["model"]
            except (ValueError, KeyError, TypeError):
                continue
            part = f"{100 * done // total} % of " if total else ""
            self.text = f"{name}: {part}{(total or done) / 1e9:.1f} GB"
        self.text = ""

    def _read_errors(self):
        self.errors = self._process.stderr.read()

    def running(self):
        return self._process.poll() is None

    def wait(self, seconds=None):
        """The exit code, or None if it still runs after so many seconds."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        for reader in self._readers:
            reader.join()
        self._process.stdout.close()
        self._process.stderr.close()
        return code

    def stop(self):
        """End it; parts that have come are kept."""
        if self.running():
            self._process.terminate()
            self.wait()


def environment():
    """Ours, with the sources in reach: the commands that fetch need no native core."""
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


def begin_download():
    """Ask which model it is, if nobody has said so, and begin to fetch it; None for a file that is here."""
    named = os.environ.get("STRETTO_MODEL", "")
    if not named:
        command = [sys.executable, "-m", "stretto", "models", "--default"]
        asked = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment())
        named = asked.stdout.strip()
    if not named or Path(named).exists():
        return None
    return Download([sys.executable, "-m", "stretto", "pull", "--json", "--", named])


def compile_core(download):
    """Build and install the package; the line shows how far both are."""
    command = [*PIP, "--no-deps", "--no-build-isolation", "--editable", str(ROOT), "--verbose"]
    code = run(command, beside=(lambda: download.text) if download else None)
    if download and code:
        download.stop()
    if not download or code:
        return code
    progress = Progress(sys.stderr)
    while (fetched := download.wait(0.25)) is None:
        progress.show(download.text or "fetching the model")
    progress.end()
    if fetched:
        sys.stderr.write(f"{download.errors.strip()}\nthe model is fetched again when it is used\n")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--extra", action="append", default=[], help="only the requirements of this extra")
    parser.add_argument("--pull", action="store_true", help="fetch the model that is used while compiling")
    given = parser.parse_args()
    file = project()
    if given.extra:
        wanted = [r for name in given.extra for r in of_extra(name, file["project"]["optional-dependencies"])]
        return run([*PIP, "--verbose", *wanted], begin="fetching packages")
    wanted = [*file["build-system"]["requires"], *tools(), *file["project"]["dependencies"]]
    if code := run([*PIP, "--verbose", *wanted], begin="fetching packages"):
        return code
    download = begin_download() if given.pull else None
    try:
        return compile_core(download)
    finally:
        if download:
            download.stop()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
