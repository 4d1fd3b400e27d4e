"""The native core's kernel sets: which this machine can run, and which one is used.

Each is written for an instruction set; `portable` runs everywhere. The best that the processor has and the
operating system allows is used, unless the environment variable STRETTO_KERNELS names another one. A wheel
has all sets, a build for one machine its best and the portable one (STRETTO_KERNEL_SETS in CMakeLists.txt).
Within one set a sequence's logits are the same bits in any batch, chunks and number of threads.
"""

from __future__ import annotations

import os

from stretto.errors import InvalidRequest

ENVIRONMENT_VARIABLE = "STRETTO_KERNELS"
NAMES = ("portable", "avx2", "avx512", "amx", "neon", "i8mm")


def version() -> str:
    """The version of the package, which has the kernel sets that it was built with."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("stretto")
    except PackageNotFoundError:  # run from a source tree
        return "0+source"


def available() -> tuple[str, ...]:
    """The sets that this build has and this machine can run, the best first.

    >>> available()
    ('avx512', 'avx2', 'portable')
    """
    from stretto import _native

    return tuple(_native.kernel_names())


def left_out() -> tuple[str, ...]:
    """The sets that this machine could run and this build does not have, the best first."""
    from stretto import _native

    here = available()
    return tuple(name for name in _native.kernel_names(compiled=False) if name not in here)


def select(here: tuple[str, ...] | None = None) -> str:
    """The set in use: what the environment asks for, or the best. Raises if it cannot run here."""
    wanted, here = os.environ.get(ENVIRONMENT_VARIABLE, ""), here or available()
    if not wanted:
        return here[0]
    if wanted in here:
        return wanted
    reason = "cannot run on this machine" if wanted in NAMES else f"is none of {', '.join(NAMES)}"
    if wanted in NAMES and wanted in left_out():
        reason = (
            "is not in this build, which was made for one machine: in a clone "
            "`STRETTO_KERNEL_SETS=all make chat` builds all kernel sets"
        )
    raise InvalidRequest(
        f"{ENVIRONMENT_VARIABLE}={wanted!r} {reason}; here it can be {', '.join(here)}, or be left unset",
        param=ENVIRONMENT_VARIABLE,
        value=wanted,
    )
