"""Grammars in GBNF, llama.cpp's notation, as Lark grammars. Used by `Grammar.gbnf`."""

from __future__ import annotations

import re

from stretto.errors import InvalidGrammar
from stretto.structured.checks import MAX_LARK_CHARACTERS, check_size

_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|.)", re.DOTALL)
_SYNTAX = '"\\[]^-\n\r\t'  # characters that mean something within a text or a class


def gbnf_to_lark(text: str) -> str:
    """The same language in Lark's notation; raises for a grammar that is no GBNF.

    >>> gbnf_to_lark('root ::= "a"{3}').split()[-1]
    '"a"{3}'
    """
    check_size(text, "a GBNF grammar", "text", MAX_LARK_CHARACTERS)
    from llguidance.gbnf_to_lark import gbnf_to_lark as converted

    try:
        made: str = converted(_ESCAPE.sub(_written_out, text))
        return made
    except InvalidGrammar:
        raise
    except RecursionError:
        raise InvalidGrammar("the GBNF grammar is nested too deeply", param="text") from None
    except Exception as error:  # the converter raises plain ones
        raise InvalidGrammar(f"the GBNF grammar cannot be read: {error}", param="text", value=text) from None


def _written_out(escape: re.Match[str]) -> str:
    r"""The character of `\u` and `\U`, which the converter misreads; other escapes stay."""
    digits = escape[1] or escape[2]
    if digits is None:
        return escape[0]
    code = int(digits, 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise InvalidGrammar(f"the GBNF grammar has {escape[0]}, which is no character", param="text")
    if code < 0x20 or chr(code) in _SYNTAX:
        return f"\\x{code:02X}"
    return chr(code)
