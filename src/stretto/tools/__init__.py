"""Tools that a model may call.

    check.py      the tools and the choice of a request, checked
    format.py     how a chat template writes calls, learned by letting it write some
    grammar.py    grammars for calls: in the template's format, or plain JSON
    reading.py    calls found in a text
    plan.py       all of it for one chat

For models whose template has no tools, `call_grammar` and `read_call` do the same with JSON.
"""

from stretto.engine.types import ToolCall
from stretto.tools.grammar import call_grammar
from stretto.tools.reading import read_call

__all__ = ["ToolCall", "call_grammar", "read_call"]
