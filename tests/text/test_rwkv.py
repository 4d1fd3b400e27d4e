"""RWKV's tokenizer: the longest token, over bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.errors import InvalidRequest
from stretto.text.loading import load_tokenizer
from stretto.text.rwkv import unescape_bytes
from vocabularies import CONTROL, NORMAL, metadata

WORDS = [b"he", b"hello", b" world", b"\n\n", b"\xe2\x98\x83", b"\xe2\x98", b"'\"", b"\\x"]


def made(words=WORDS, **changes):
    """The control token, all bytes, then longer tokens, spelled as Python spells bytes."""
    plain = [repr(bytes([byte]))[2:-1] for byte in range(256)] + [repr(word)[2:-1] for word in words]
    types = np.array([CONTROL] + [NORMAL] * len(plain), np.int32)
    values = {"model": "rwkv", "tokens": ["<s>", *plain], "token_type": types, "eos_token_id": 0}
    return load_tokenizer(metadata({**values, **changes}))


RWKV = made()


def test_the_longest_token_is_taken():
    ids = RWKV.encode("hello world")
    assert [RWKV.token_bytes(token) for token in ids] == [b"hello", b" world"]
    assert [RWKV.token_bytes(token) for token in RWKV.encode("hell")] == [b"he", b"l", b"l"]


def test_tokens_may_be_parts_of_characters():
    assert [RWKV.token_bytes(token) for token in RWKV.encode("☃☄")] == [b"\xe2\x98\x83", b"\xe2\x98", b"\x84"]


def test_escapes_in_the_file():
    assert [RWKV.token_bytes(token) for token in RWKV.encode("\n\n'\"\\x")] == [b"\n\n", b"'\"", b"\\x"]
    assert unescape_bytes("\\'\\t\\xff") == b"'\t\xff"


def test_control_tokens_are_text_unless_asked_for():
    assert RWKV.encode("<s>", special=True) == [0]
    assert 0 not in RWKV.encode("<s>")
    assert 0 in RWKV.end_ids


@given(st.text())
def test_every_text_comes_back(text):
    assert RWKV.decode(RWKV.encode(text)) == text


def test_a_byte_without_a_token_is_refused():
    values = {"tokens": ["<s>", "a"], "token_type": np.array([CONTROL, NORMAL], np.int32)}
    with pytest.raises(InvalidRequest, match="0x62"):
        made(**values).encode("ab")
