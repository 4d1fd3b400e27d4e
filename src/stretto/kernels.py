"""The native core's kernel sets: which this machine can run, and which one is used.

Each is written for an instruction set; `portable` runs everywhere. The best that the processor has and the
operating system allows is used, unless the environment variable STRETTO_KERNELS names another one. Within one
set a sequence's logits are the same bits in any batch, in any chunks and with any number of threads.
"""

from __future__ import annotations

import os

from stretto.errors import InvalidRequest

ENVIRONMENT_VARIABLE = "STRETTO_KERNELS"
NAMES = ("portable", "avx2", "avx512", "amx", "neon", "i8mm")


def available() -> tuple[str, ...]:
    """The sets that this machine can run, the best first.

    >>> available()
    ('avx512', 'avx2', 'portable')
    """
    from stretto import _native

    return tuple(_native.kernel_names())


def chosen(here: tuple[str, ...] | None = None) -> str:
    """The set in use: what the environment asks for, or the best. Raises if it cannot run here."""
    wanted, here = os.environ.get(ENVIRONMENT_VARIABLE, ""), here or available()
    if not wanted:
        return here[0]
    if wanted in here:
        return wanted
    reason = "cannot run on this machine" if wanted in NAMES else f"is none of {', '.join(NAMES)}"
    raise InvalidRequest(
        f"{ENVIRONMENT_VARIABLE}={wanted!r} {reason}; here it can be {', '.join(here)}, or be left unset",
        param=ENVIRONMENT_VARIABLE,
        value=wanted,
    )
