"""Whether `llama-cpp-python` is installed, without importing it: every load asks, so this module is small."""

from __future__ import annotations

from importlib.util import find_spec

PACKAGE = "llama_cpp"


def missing(device: str = "cpu") -> str:
    """What has to be installed, "" if nothing."""
    return "" if find_spec(PACKAGE) else "llama-cpp-python is not installed: pip install 'stretto[llamacpp]'"


def version() -> str:
    """As "llama-cpp-python 0.3.36"."""
    from importlib.metadata import version as version_of

    return f"llama-cpp-python {version_of('llama-cpp-python')}"
