"""Fetches libraries of the page from npm, checks them, and writes them as modules into page/vendor.

python scripts/page_vendor.py        needs npm and a network; the files it writes are kept in the repository
"""

import hashlib
import subprocess
import tarfile
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "src" / "stretto" / "server" / "page" / "vendor"
PACKAGES = {  # with the SHA-256 of what npm sends
    "markdown-it@15.0.3": "98a7453983ab0e268c17dbd5260bf7190ba46b4cca912327fc1c1a2578e4b56d",
    "entities@8.1.0": "e9a27d66db0d0a6f2d76454219d94f5729ae2a29f08ab06c92e5f6eaa37cbe68",
    "linkify-it@6.1.0": "780a9e8232ea7e4c9f04348e2e2a567485c34abed805a15cfff8fff2029076b8",
    "mdurl@2.1.0": "23fc27c3d70e776c3aa40ec019c2be21ef43ed33b73f8476ada8715c5aabd11d",
    "punycode.js@2.3.1": "8768d89aa6359164220014ba575e1464e3ddff11bedff1cc268e39a21f7324a8",
    "uc.micro@3.0.0": "23a2704905d2f7a773f89c97be1102a4a2eb3a69b58c0e8c326a649c75552981",
    "prismjs@1.30.0": "ac16a9106a28c53b6a6313993c816a3a02525fdfefd7614fc1703df915a9fc11",
    "temml@0.13.5": "bca5b76dd26d1d6c81f8d817f6cc8bf0f0a1a7787512e281d5c22b986f8ae582",
}
INSIDE = {  # what each file holds, for the licences
    "markdown-it.js": ["markdown-it", "entities", "linkify-it", "mdurl", "punycode.js", "uc.micro"],
    "prism.js": ["prismjs"],
    "temml.js": ["temml"],
}
LANGUAGES = """
markup css clike javascript typescript python bash json c cpp java rust go sql yaml toml diff csharp kotlin
ruby lua swift ini latex haskell r
"""
FIRST = "==== markdown-it"  # of the licences that this script writes


def fetch(package: str, sha256: str, folder: Path) -> Path:
    """The folder of an unpacked package."""
    name = subprocess.run(
        ["npm", "pack", package], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.split()[-1]
    content = (folder / name).read_bytes()
    if (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise SystemExit(f"{package} is not what it was: its SHA-256 is {found}, not {sha256}")
    target = folder / package.rsplit("@", 1)[0]
    with tarfile.open(folder / name) as archive:
        archive.extractall(target, filter="data")
    return next(target.iterdir())


def without_maps(script: str) -> str:
    """A script that names no source map, which is not served."""
    return "\n".join(line for line in script.splitlines() if not line.startswith("//# sourceMappingURL"))


def write_modules(found: dict[str, Path]) -> None:
    """Scripts for pages as modules that export what they define; none may see a global of another."""
    umd = without_maps((found["markdown-it"] / "dist" / "browser" / "markdown-it.umd.min.js").read_text())
    begin, end = "const module = {exports: {}}, exports = module.exports;", "export default module.exports;"
    (FOLDER / "markdown-it.js").write_text(f"{begin}\n{umd}\n{end}\n")
    parts = [
        found["prismjs"] / "components" / f"prism-{name}.min.js" for name in ("core", *LANGUAGES.split())
    ]
    code = "\n".join(part.read_text() for part in parts)
    # Without a document in its window it neither looks for code in the page nor starts workers.
    (FOLDER / "prism.js").write_text(f"const window = {{}};\n{code}\nexport default Prism;\n")
    math = (found["temml"] / "dist" / "temml.min.js").read_text()
    (FOLDER / "temml.js").write_text(f"{math}\nexport default temml;\n")


def write_licences(found: dict[str, Path]) -> None:
    """Their licences, behind those of what the page had before."""
    path = FOLDER / "LICENSES.txt"
    kept = path.read_text().split(FIRST)[0].rstrip()
    versions = dict(package.rsplit("@", 1) for package in PACKAGES)
    for file, names in INSIDE.items():
        for name in names:
            (licence,) = [one for one in found[name].iterdir() if one.name.upper().startswith("LICENSE")]
            kept += (
                f"\n\n\n==== {name} {versions[name]}, in vendor/{file} ====\n\n{licence.read_text().strip()}"
            )
    path.write_text(kept + "\n")


def main() -> None:
    """Write the modules and their licences."""
    with tempfile.TemporaryDirectory() as folder:
        found = {
            package.rsplit("@", 1)[0]: fetch(package, sha256, Path(folder))
            for package, sha256 in PACKAGES.items()
        }
        write_modules(found)
        write_licences(found)


if __name__ == "__main__":
    main()
