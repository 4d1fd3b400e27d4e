"""Small vocabularies made by hand, as the metadata of a file that does not exist."""

import numpy as np

from stretto.text.bpe import ALPHABET
from stretto.weights.metadata import LENGTH, Metadata, Strings, ValueType

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def metadata(values):
    """`values` as a file's metadata; keys may leave out `tokenizer.ggml.`."""
    values = {
        key if "." in key else f"tokenizer.ggml.{key}": _value(value)
        for key, value in values.items()
        if value is not None
    }
    return Metadata(values, {key: _type(value) for key, value in values.items()}, "made.gguf")


def bpe(pre="gpt-2", merges=("h e", "l l", "he ll", "hell o"), specials=(), user=(), **changes):
    """All bytes, the results of the merges, then control tokens and user-defined ones."""
    plain = [*ALPHABET, *(line.replace(" ", "") for line in merges)]
    types = [NORMAL] * len(plain) + [CONTROL] * len(specials) + [USER_DEFINED] * len(user)
    values = {
        "model": "gpt2",
        "pre": pre,
        "tokens": [*plain, *specials, *user],
        "token_type": np.array(types, np.int32),
        "merges": list(merges),
    }
    return {**values, **changes}


PIECES = "▁ h e l o w r d he ll hell hello ▁hello wo rl worl world ▁world ▁▁"


def spm(pieces=PIECES, specials=("<|end|>",), user=("<tool>", "\n\n"), **changes):
    """Unknown, BOS, EOS, all bytes, the pieces with falling scores, control and user-defined tokens."""
    pieces = pieces.split(" ")
    heads = ["<unk>", "<s>", "</s>"]
    plain = [f"<0x{byte:02X}>" for byte in range(256)]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces)
    types += [CONTROL] * len(specials) + [USER_DEFINED] * len(user)
    tokens = [*heads, *plain, *pieces, *specials, *user]
    values = {
        "model": "llama",
        "tokens": tokens,
        "token_type": np.array(types, np.int32),
        "scores": -np.arange(len(tokens), dtype=np.float32),
    }
    return {**values, **changes}


def _value(value):
    if isinstance(value, (list, tuple)):
        packed = b"".join(LENGTH.pack(len(text.encode())) + text.encode() for text in value)
        return Strings(memoryview(packed), 0, len(value), "made")
    return value


def _type(value):
    kinds = {bool: ValueType.BOOL, int: ValueType.UINT32, float: ValueType.FLOAT32, str: ValueType.STRING}
    return kinds.get(type(value), ValueType.ARRAY)
