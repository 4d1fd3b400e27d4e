"""Mixes, by llama.cpp's names: a format for most matrices of a model, and others for some.

>>> find_mix("q4_k_m").format.name, find_mix("Q4_K").name
('Q4_K', 'q4_k_m')
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.errors import InvalidRequest
from stretto.weights.formats import WRITABLE, Format

VERSION = 2  # of the quantised formats, for general.quantization_version


@dataclass(frozen=True)
class Mix:
    """A mix: its name, its number in `general.file_type`, and the format of most matrices."""

    name: str
    file_type: int
    format: Format

    @property
    def is_plain(self) -> bool:
        """Whether its format is a plain float, which all matrices get."""
        return self.format.block == 1


_ALL = (
    Mix("f32", 0, Format.F32),
    Mix("f16", 1, Format.F16),
    Mix("bf16", 32, Format.BF16),
    Mix("q8_0", 7, Format.Q8_0),
    Mix("q6_k", 18, Format.Q6_K),
    Mix("q5_k_m", 17, Format.Q5_K),
    Mix("q5_k_s", 16, Format.Q5_K),
    Mix("q5_1", 9, Format.Q5_1),
    Mix("q5_0", 8, Format.Q5_0),
    Mix("q4_k_m", 15, Format.Q4_K),
    Mix("q4_k_s", 14, Format.Q4_K),
    Mix("q4_1", 3, Format.Q4_1),
    Mix("q4_0", 2, Format.Q4_0),
    Mix("iq4_nl", 25, Format.IQ4_NL),
    Mix("iq4_xs", 30, Format.IQ4_XS),
    Mix("mxfp4_moe", 38, Format.MXFP4),
    Mix("q3_k_l", 13, Format.Q3_K),
    Mix("q3_k_m", 12, Format.Q3_K),
    Mix("q3_k_s", 11, Format.Q3_K),
    Mix("q2_k", 10, Format.Q2_K),
    Mix("q2_k_s", 21, Format.Q2_K),
    Mix("iq3_m", 27, Format.IQ3_S),
    Mix("iq3_s", 26, Format.IQ3_S),
    Mix("iq3_xs", 22, Format.IQ3_S),
    Mix("iq3_xxs", 23, Format.IQ3_XXS),
    Mix("iq2_m", 29, Format.IQ2_S),
    Mix("iq2_s", 28, Format.IQ2_XS),
    Mix("iq2_xs", 20, Format.IQ2_XS),
    Mix("iq2_xxs", 19, Format.IQ2_XXS),
    Mix("iq1_m", 31, Format.IQ1_M),
    Mix("iq1_s", 24, Format.IQ1_S),
    Mix("tq1_0", 36, Format.TQ1_0),
    Mix("tq2_0", 37, Format.TQ2_0),
)
MIXES = {mix.name: mix for mix in _ALL if mix.format in WRITABLE}
ALIASES = {"q3_k": "q3_k_m", "q4_k": "q4_k_m", "q5_k": "q5_k_m"}


def find_mix(name: str, param: str = "mix") -> Mix:
    """The mix of that name, in small or capital letters; `InvalidRequest` lists those there are."""
    lower = name.lower() if isinstance(name, str) else ""
    found = MIXES.get(ALIASES.get(lower, lower))
    if found is None:
        unwritable = any(mix.name == lower for mix in _ALL)
        reason = "can be read, but not written" if unwritable else "is not known"
        what = "the mix" if param == "mix" else f"{param}: the mix"
        raise InvalidRequest(
            f"{what} {name!r} {reason}; use one of {', '.join(MIXES)}", param=param, value=name
        )
    return found


def find_format(name: str) -> Format:
    """The format of that name, if it can be written; `InvalidRequest` lists those that can."""
    fmt = Format.__members__.get(name.upper())
    if fmt is None or fmt not in WRITABLE:
        known = ", ".join(fmt.name.lower() for fmt in sorted(WRITABLE))
        raise InvalidRequest(
            f"cannot write the format {name!r}; use one of {known}", param="format", value=name
        )
    return fmt
