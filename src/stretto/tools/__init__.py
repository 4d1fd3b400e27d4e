"""Tools that a model may call.

check.py            the tools and the choice of a request, checked; Python functions as tools
format.py           what a format of calls is; those of known families are in formats.json
finding.py          which of them a model has, or the one that its template shows when it writes calls
parsing.py          the parser of calls, for all formats (json_reading.py, tag_reading.py)
following.py        an answer followed token by token, or read as a whole
grammar.py          grammars for calls, in a format or as plain JSON
history.py          calls and their answers in conversations, as a template takes them
plan.py             all of it for one chat
"""

from stretto.engine.types import ToolCall
from stretto.tools.following import read_call
from stretto.tools.grammar import call_grammar

__all__ = ["ToolCall", "call_grammar", "read_call"]
