"""Texts that fit a grammar: JSON schemas, regular expressions, Lark grammars, lists of choices.

    grammar.py    what a text has to look like: a value, compared by content
    checks.py     what is refused before anything is compiled, and where in a schema it stands
    compiler.py   compiles grammars to matchers, in a worker with limits, and caches them
    guide.py      where one text stands in its grammar: what may come next, what has to
    after.py      the same for the answer of a model that thinks first

The parsing is done by the `llguidance` library.
"""

from stretto.structured.after import Constraint, constraint
from stretto.structured.compiler import Compiled, Compiler
from stretto.structured.grammar import Grammar, as_grammar
from stretto.structured.guide import Guide

__all__ = ["Compiled", "Compiler", "Constraint", "Grammar", "Guide", "as_grammar", "constraint"]
