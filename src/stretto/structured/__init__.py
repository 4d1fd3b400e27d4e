"""Texts that fit a grammar: JSON schemas, regular expressions, Lark grammars, lists of choices.

    grammar.py    what a text has to look like: a value, compared by content
    checks.py     what is refused before anything is compiled, and where in a schema it stands
    rewrite.py    conditions in a schema, rewritten for the parser: negation, overlap, array_rules,
                  object_rules, unevaluated; closed.py closes objects, places.py follows references
    unique.py     arrays whose items must differ, checked as they are written by scanner.py
    compiler.py   compiles grammars to matchers, and caches them
    workers.py    the threads that do it, which callers share, with a limit on processor time
    guide.py      where one text stands in its grammar: what may come next, what has to
    after.py      the same for the answer of a model that thinks first

The parsing is done by the `llguidance` library.
"""

from stretto.structured.compiler import Compiled, Compiler
from stretto.structured.grammar import Grammar, as_grammar
from stretto.structured.guide import Constraint, Guide, limit_reasoning, make_constraint

__all__ = [
    "Compiled",
    "Compiler",
    "Constraint",
    "Grammar",
    "Guide",
    "as_grammar",
    "limit_reasoning",
    "make_constraint",
]
