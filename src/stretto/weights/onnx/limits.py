"""What a model file in ONNX format may have; anything beyond is refused before a runtime opens it."""

from __future__ import annotations

from dataclasses import dataclass

MAX_PROTOBUF_BYTES = 2 << 30  # no protobuf library reads more
DOMAINS = ("ai.onnx", "ai.onnx.ml", "com.microsoft")  # of operators that ONNX Runtime has built in
OWN_DOMAIN = "ai.stretto"  # of operators that Stretto puts into graphs itself; files may not have them


@dataclass(frozen=True)
class OnnxLimits:
    """The bounds of a file. The defaults are far above any real model.

    `domains` are those of operators beside the built-in ones that a caller trusts; `loops` allows `Loop` and
    `Scan`, whose bodies may run for as long as the file says.

    >>> read_onnx("detector.onnx", OnnxLimits(loops=True))
    """

    protobuf_bytes: int = MAX_PROTOBUF_BYTES
    weight_bytes: int = 256 << 30  # of all tensors together, in the file and beside it
    nodes: int = 200_000  # with subgraphs, and with functions where they are called
    tensors: int = 200_000
    fields: int = 5_000_000  # of the protobuf, so that a file of tiny fields cannot take long
    text_bytes: int = 64 << 20  # of names and metadata together
    depth: int = 4  # of subgraphs within subgraphs
    domains: tuple[str, ...] = ()
    loops: bool = False
