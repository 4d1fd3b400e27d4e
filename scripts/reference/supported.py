"""docs/reference/supported.md: models, formats and backends, from the registries."""

from collections.abc import Iterator

from reference.markdown import MADE, plain, table
from reference.quotes import DECODERS, ENCODERS
from stretto.backends.registry import BUILT_IN
from stretto.models.missing import NEEDS, UNLIKE
from stretto.quantize import MIXES
from stretto.tools import format as calls
from stretto.vision.families import FAMILIES
from stretto.weights.folders import KINDS
from stretto.weights.formats import READABLE, WRITABLE, Format
from stretto.weights.hub.catalogue import CATALOGUE, PACKAGED

HEAD = f"""# Supported models and formats

What can be loaded, as the program itself lists it. [Models](models.md) says how models are named, fetched and
kept, and what each architecture was proven against.

{MADE}
"""
ARCHITECTURES_HEAD = """## Architectures

By `general.architecture` of a GGUF file, with the `model_type` of [Hugging Face folders](folders.md) that are
read as it; empty: GGUF files only. There are {decoders} decoders and {encoders} encoders.

### Decoders
"""
ENCODERS_HEAD = "\n### Encoders\n"
REFUSED_HEAD = """
### Not supported

These {count} names of decoders in llama.cpp's files are refused, for want of what is said here. Most run by
[llama.cpp](../explanation/routing.md#llamacpp), without what Stretto promises: `backend="llamacpp"`, with
`llama-cpp-python` installed.
[Add an architecture](../how-to/add-an-architecture.md) says how to make one run here.
"""
FORMATS_HEAD = """
## Number formats of GGUF files

A quantised tensor is stored in blocks of numbers that share a scale. Those that are "described only" can be
inspected, and not loaded. Q2_0 is read as Q4_0, which has the same numbers and takes twice the memory.
"""
MIXES_HEAD = """
## Mixes that `stretto quantize` writes

A mix gives each tensor a format by its role: {mixes}.
"""
IMAGES_HEAD = """
## Image encoders

By the projector of an `mmproj` file ([Images](images.md)).
"""
TOOLS_HEAD = """
## Formats of tool calls

By family: {names}. [Tools](tools.md) says how the format of another template is learned.
"""
BACKENDS_HEAD = """
## Backends

[Which backend runs a model](../explanation/routing.md) says how one is chosen.
"""
NAMES_HEAD = """
## Models by name

`stretto.load(name)` fetches these, after asking on a terminal. Sizes of models on the Hugging Face Hub:
`stretto models --catalogue`.
"""


def page() -> str:
    """The text of the page."""
    heading = ARCHITECTURES_HEAD.format(decoders=len(DECODERS), encoders=len(ENCODERS))
    columns = "architecture", "`model_type`"
    parts = [HEAD, heading, table(columns, _architectures(DECODERS))]
    parts += [ENCODERS_HEAD, table(columns, _architectures(ENCODERS))]
    parts += [REFUSED_HEAD.format(count=len(NEEDS)), table(("architecture", "needs", "use"), _refused())]
    parts += [FORMATS_HEAD, table(("format", "numbers in a block", "bits each", "written"), _formats())]
    parts += [MIXES_HEAD.format(mixes=", ".join(f"`{name}`" for name in MIXES))]
    parts += [IMAGES_HEAD, table(("projector", "models"), _encoders())]
    known = (*calls.DECLARED, *calls.AFTER_LEARNING)
    parts += [TOOLS_HEAD.format(names="; ".join(one.name for one in known))]
    parts += [BACKENDS_HEAD, table(("backend", "devices", "files"), _backends())]
    parts += [NAMES_HEAD, table(("name", "model", "from", "licence"), _names())]
    return "\n".join(parts).rstrip() + "\n"


def _architectures(names: list[str]) -> Iterator[tuple[str, str]]:
    for name in sorted(names):
        yield f"`{name}`", ", ".join(f"`{kind}`" for kind, one in KINDS.items() if one.arch == name)


def _refused() -> Iterator[tuple[str, str, str]]:
    for name, need in sorted(NEEDS.items()):
        yield f"`{name}`", plain(need), plain(UNLIKE.get(name, '`backend="llamacpp"`'))


def _formats() -> Iterator[tuple[str, str, str, str]]:
    for one in sorted(READABLE, key=lambda fmt: (fmt.block > 1, fmt.size / fmt.block, fmt.name)):
        yield _format(one, "yes" if one in WRITABLE else "")
    for one in Format:
        if one not in READABLE:
            yield _format(one, "as Q4_0" if one is Format.Q2_0 else "described only")


def _format(one: Format, written: str) -> tuple[str, str, str, str]:
    return f"`{one.name}`", str(one.block), f"{8 * one.size / one.block:g}", written


def _encoders() -> Iterator[tuple[str, str]]:
    for name, family in FAMILIES.items():
        yield f"`{name}`", plain((type(family).__doc__ or "").split("\n")[0].rstrip("."))


def _backends() -> Iterator[tuple[str, str, str]]:
    for entry in BUILT_IN:
        devices = ", ".join(f"`{one}`" for one in entry.devices)
        yield f"`{entry.name}`", devices, ", ".join(entry.files)


def _names() -> Iterator[tuple[str, str, str, str]]:
    for one in PACKAGED.values():
        yield f"`{one.name}`", plain(one.summary), "package index", f"[{one.license}]({one.license_url})"
    for name, model in sorted(CATALOGUE.items()):
        yield f"`{name}`", plain(model.summary), f"`{model.repo}`", f"[{model.licence}]({model.licence_url})"
