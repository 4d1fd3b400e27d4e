"""Tools that a model may call.

check.py            the tools and the choice of a request, checked
functions.py        Python functions as tools
format.py           what a format of calls is; formats.py: those of known families
learning.py         a format learned from a template, by letting it write calls
finding.py          which of them a model has
parsing.py          the parser of calls, for all formats (source.py, json_reading.py, tag_reading.py)
following.py        an answer followed token by token; reading.py: read as a whole
grammar.py          grammars for calls, in a format or as plain JSON (argument_rules.py, lark.py)
history.py          calls and their answers in conversations, as a template takes them (writing.py)
plan.py             all of it for one chat
"""

from stretto.engine.types import ToolCall
from stretto.tools.following import read_call
from stretto.tools.grammar import call_grammar

__all__ = ["ToolCall", "call_grammar", "read_call"]
