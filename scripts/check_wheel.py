"""Tries out an installed Stretto: a tiny model generates with every kernel set of the machine.

python scripts/check_wheel.py               the Stretto that this Python has
python scripts/check_wheel.py --make        builds a wheel, installs it in a clean environment whose PATH
                                            holds no compiler, and tries it out there
python scripts/check_wheel.py --make --out dist     and keeps it there
python scripts/check_wheel.py --wheel FILE  the same with a wheel that is there
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
COMPILERS = ("cc", "gcc", "g++", "c++", "clang", "clang++", "cmake", "ninja", "make")


def try_out():
    sys.path.append(str(HERE.parent / "benchmarks"))
    import stretto
    from make_model import SHAPES, make
    from stretto import _native, kernels

    if not (Path(stretto.__file__).parent / "server" / "page" / "index.html").is_file():
        raise SystemExit("the page of the server is missing")
    from stretto.cli.docs import find

    find("first-five-minutes")  # raises if the pages are missing
    import stretto.server.serve

    texts = {}
    with tempfile.TemporaryDirectory() as folder:
        path = make(Path(folder) / "tiny.gguf", SHAPES["tiny"])
        for name in kernels.available():
            os.environ[kernels.ENVIRONMENT_VARIABLE] = name
            with stretto.load(path, cells=64, threads=2) as llm:
                result = llm.generate("Hello, my name is", max_tokens=16, temperature=0, ignore_eos=True)
            if len(result.tokens) != 16:
                raise SystemExit(f"{name}: {len(result.tokens)} tokens instead of 16")
            texts[name] = result.tokens
    print(f"stretto {stretto.__version__}, {_native.__file__}: 16 tokens with each of {', '.join(texts)}")


def build_wheel(folder):
    """Build a wheel into a folder, and show how far it is."""
    import build_progress

    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--verbose",
        "--no-deps",
        "-w",
        str(folder),
        str(HERE.parent),
    ]
    if code := build_progress.run(command):
        raise SystemExit(code)
    (path,) = folder.glob("*.whl")
    return path


def try_wheel(path, folder):
    """Install a wheel in a clean environment under a folder, and try it out without any compiler."""
    venv.create(folder / "env", with_pip=True)
    bin_folder = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
    python = bin_folder / "python"
    # No compiler can be found, and none could stand in for a missing binary.
    bare = {**os.environ, "PATH": str(bin_folder), "CC": "/nowhere", "CXX": "/nowhere"}
    for name in COMPILERS:
        if shutil.which(name, path=bare["PATH"]):
            raise SystemExit(f"{name} is on the path of the clean environment")
    install = [python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", str(path)]
    subprocess.run(install, check=True, env=bare)
    subprocess.run([python, "-I", str(HERE / "check_wheel.py")], check=True, env=bare, cwd=folder)
    for command in (["--version"], ["serve", "--help"], ["doctor", "--json"]):
        subprocess.run([bin_folder / "stretto", *command], check=True, env=bare, stdout=subprocess.DEVNULL)
    print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB, runs where there is no compiler")


def keep_wheel(path, out):
    """Put a wheel into a folder, and say what can be done with it there."""
    out.mkdir(parents=True, exist_ok=True)
    kept = out / path.name
    shutil.copyfile(path, kept)
    print(f"it is {kept}; take it with any of")
    for command in ("pip install", "pipx install", "uv tool install"):
        print(f"    {command} {kept}")
    print(f"    uvx --from {kept} stretto chat")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--make", action="store_true", help="build a wheel and try that one out")
    parser.add_argument("--wheel", type=Path, help="try out this wheel, in a clean environment")
    parser.add_argument("--out", type=Path, help="a folder to keep the wheel in")
    given = parser.parse_args()
    if not (given.make or given.wheel):
        try_out()
        sys.exit()
    with tempfile.TemporaryDirectory() as temporary:
        wheel = given.wheel or build_wheel(Path(temporary))
        try_wheel(wheel.resolve(), Path(temporary))
        if given.out is not None:
            keep_wheel(wheel, given.out)
