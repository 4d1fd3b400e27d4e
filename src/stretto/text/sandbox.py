"""A Jinja environment for untrusted templates.

A chat template comes out of a model file, so it may be anything. Here it can compute text from the data it
is given, by the means listed in `guards` and `filters`, within a `Budget`; it can do nothing else. What the
sandbox of Jinja2 leaves open (loops, `~`, comparisons, slices, literals) is closed by rewriting the parsed
template before it is compiled: each of these becomes a call that is counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial, reduce
from typing import Any, NoReturn

from jinja2 import meta, nodes
from jinja2.environment import Template
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError, UndefinedError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS as JINJA_TESTS
from jinja2.utils import Namespace, pass_context
from jinja2.visitor import NodeTransformer

from stretto.errors import ModelError, StrettoError, param_error
from stretto.text import guards
from stretto.text.guards import (
    MAX_DEPTH,
    NUMBERS,
    Budget,
    Function,
    List,
    binary,
    compare,
    concat,
    current,
    cut,
    each,
    join_all,
    measure,
    pack,
    pack_sized,
    percent,
    replace,
    strip,
    to_text,
    word,
)

# The filters and tests a chat template may use, each within the budget.
#
# Some are Jinja's own, fed with counted items: they reach attributes and other filters through the sandbox.

MAX_FLOAT_CHARACTERS = 800
_WORD = re.compile(r"\w+")
_INDENT = 32  # columns; wider ones would multiply the size of a text


def _kept(run: Callable[..., Any]) -> Callable[..., Any]:
    """Count a filter's call and its result; lazy results are computed at once."""

    def guarded(*args: Any, **options: Any) -> Any:
        budget = current.get()
        budget.tick()
        result = run(*args, **options)
        if isinstance(result, Iterator):
            result = list(budget.each(result))
        return budget.keep(result)

    return guarded


def _of_context(name: str) -> Callable[..., Any]:
    """Jinja's own filter, over items that are counted; it reaches items and other filters by our rules."""
    run = _kept(JINJA_FILTERS[name])

    @pass_context
    def guarded(context: Context, values: Any, *args: Any, **options: Any) -> Any:
        # As in Jinja, nothing (none, an empty text) has no items here.
        return run(context, each(values) if values else values, *args, **options)

    return guarded


def _of_environment(name: str) -> Callable[..., Any]:
    run = _kept(JINJA_FILTERS[name])

    @pass_context
    def guarded(context: Context, values: Any, *args: Any, **options: Any) -> Any:
        return run(context.environment, each(values), *args, **options)

    return guarded


@pass_context
def _join_filter(context: Context, values: Any, d: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        values = JINJA_FILTERS["map"](context, values, attribute=attribute)
    return join_all(to_text(d), [to_text(value) for value in each(values)])


def _default(value: Any, default_value: Any = "", boolean: bool = False) -> Any:
    return default_value if isinstance(value, Undefined) or (boolean and not value) else value


def _length(value: Any) -> int:
    return len(current.get().spell(value)) if isinstance(value, str) else len(value)


def _indent(value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    text = to_text(value)
    columns = width if isinstance(width, int) else len(width)
    _check_indent(columns)
    current.get().expect(len(text) + columns * (text.count("\n") + 1))
    return str(JINJA_FILTERS["indent"](text, width, first, blank))


def _check_indent(columns: int) -> None:
    if columns > _INDENT:
        raise SecurityError(f"an indentation of more than {_INDENT} columns")


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Serialise as the reference renderer does: no HTML escapes, non-ASCII letters as they are."""
    size = measure(value)
    columns = indent if isinstance(indent, int) else len(indent or "")
    _check_indent(columns)
    room = columns * size.depth + sum(map(len, separators or ()))
    current.get().expect(size.characters + size.items * room)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _items(value: Any) -> list[Any]:
    if isinstance(value, Undefined):
        return []
    if not isinstance(value, dict):
        raise TypeError("Can only get item pairs from a mapping.")
    return list(value.items())


def _reverse(value: Any) -> Any:
    return value[::-1] if isinstance(value, str) else list(each(value))[::-1]


def _first(value: Any) -> Any:
    return next(each(value), Undefined("No first item, sequence was empty."))


def _last(value: Any) -> Any:
    return _first(_reverse(value))


def _int(value: Any, default: int = 0, base: int = 10) -> Any:
    if isinstance(value, str) and len(value) > 80:
        return default
    return word(JINJA_FILTERS["int"](value, default, base))


def _float(value: Any, default: float = 0.0) -> Any:
    if isinstance(value, str) and len(value) > MAX_FLOAT_CHARACTERS:  # the exact value of more takes long
        return default
    return JINJA_FILTERS["float"](value, default)


def _sum(values: Any, start: Any = 0) -> Any:
    return reduce(partial(binary, "+"), each(values), start)


def _round(value: Any, precision: int = 0, method: str = "common") -> Any:
    if abs(precision) > 20:
        raise SecurityError("rounding to more than 20 places")
    return JINJA_FILTERS["round"](value, precision, method)


def _truncate(
    value: Any, length: int = 255, killwords: bool = False, end: str = "...", leeway: int | None = None
) -> str:
    """A text cut to a length, as Jinja does: a few characters more are let through, and words stay whole."""
    text, end = to_text(value), to_text(end)
    if length < len(end) or (leeway or 0) < 0:
        raise ValueError(f"truncate to {length} characters, of which {len(end)} are the end")
    if len(text) <= length + (5 if leeway is None else leeway):
        return text
    text = text[: length - len(end)]
    return (text if killwords else text.rsplit(" ", 1)[0]) + end


FILTERS: dict[str, Callable[..., Any]] = {
    **{
        name: _kept(run)
        for name, run in {
            "abs": abs,
            "capitalize": lambda value: to_text(value).capitalize(),
            "count": _length,
            "d": _default,
            "default": _default,
            "first": _first,
            "float": _float,
            "format": lambda value, *values: percent(to_text(value), *values),
            "indent": _indent,
            "int": _int,
            "items": _items,
            "last": _last,
            "length": _length,
            "list": lambda value: list(each(value)),
            "lower": lambda value: to_text(value).lower(),
            "replace": lambda value, old, new, count=-1: replace(
                to_text(value), to_text(old), to_text(new), count
            ),
            "reverse": _reverse,
            "round": _round,
            "safe": to_text,  # nothing is escaped here, so everything is safe
            "string": to_text,
            "sum": _sum,
            "title": lambda value: JINJA_FILTERS["title"](to_text(value)),
            "tojson": to_json,
            "truncate": _truncate,
            "wordcount": lambda value: sum(1 for _ in _WORD.finditer(to_text(value))),
            "trim": lambda value, chars=None: strip(to_text(value), chars),
            "upper": lambda value: to_text(value).upper(),
            "dictsort": JINJA_FILTERS["dictsort"],
        }.items()
    },
    **{name: _of_context(name) for name in ("map", "select", "selectattr", "reject", "rejectattr")},
    **{name: _of_environment(name) for name in ("sort", "unique", "min", "max")},
    "join": _join_filter,
    # Syntax is compiled to these; a template cannot spell their names.
    "~each": each,
    "~pack": pack,
    "~compare": compare,
    "~concat": concat,
    "~cut": cut,
}


# Tests


def _jinja_test(name: str) -> Callable[..., Any]:
    test: Any = JINJA_TESTS[name]
    return partial(test)


def _whole(run: Callable[..., Any]) -> Callable[..., Any]:
    """Take numbers only: Jinja's own tests use `%`, which on a string would be formatting."""

    def guarded(*values: Any) -> Any:
        if not all(isinstance(value, NUMBERS) for value in values):
            raise SecurityError("a test for numbers on something else")
        return run(*values)

    return guarded


_TYPE_TESTS = """
    defined undefined none boolean true false integer float number string mapping iterable sequence sameas
"""
_NAMES = {"eq": "equalto ==", "ne": "!=", "lt": "lessthan <", "gt": "greaterthan >", "ge": ">=", "le": "<="}
_SYMBOLS = {"ge": "gteq", "le": "lteq"}
TESTS: dict[str, Callable[..., Any]] = {
    **{name: _jinja_test(name) for name in _TYPE_TESTS.split()},
    **{name: _whole(_jinja_test(name)) for name in ("odd", "even", "divisibleby")},
    **{
        alias: partial(lambda symbol, left, right: compare(left, symbol, right), _SYMBOLS.get(name, name))
        for name, aliases in _NAMES.items()
        for alias in (name, *aliases.split())
    },
    "escaped": lambda value: False,  # nothing is escaped here
    "callable": lambda value: isinstance(value, (Function, Macro)),
    "filter": lambda name: name in FILTERS and not name.startswith("~"),
    "in": lambda left, right: compare(left, "in", right),
    "lower": lambda value: to_text(value).islower(),
    "test": lambda name: name in TESTS,
    "upper": lambda value: to_text(value).isupper(),
}


MAX_SOURCE_CHARACTERS = 256 * 1024  # the largest templates in use have 20,000
MAX_NODES = 20_000  # and 1,300 of these

_LOOP = "index index0 first last length revindex revindex0 depth depth0 previtem nextitem"
_KINDS: tuple[type, ...] = (str, dict, list, tuple, bool, int, float, type(None))
_INDEXED = (*_KINDS, range, Undefined)


class _Generation(Extension):
    """`{% generation %}` marks the assistant's part for training; for inference it is a plain block."""

    tags = {"generation"}  # noqa: RUF012 (Jinja declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment in which chat templates are compiled and run."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # nothing is computed while compiling, where there is no budget
            autoescape=False,
            loader=None,
            finalize=_print,
            extensions=[_Generation, loopcontrols],
        )
        self.filters = dict(FILTERS)
        self.tests = dict(TESTS)
        self.globals = dict(guards.GLOBALS)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Look up `obj.attribute`: an allowed method, else an item."""
        current.get().tick()
        return self._lookup(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Look up `obj[argument]`: an item, else an allowed method."""
        current.get().tick()
        if isinstance(obj, _INDEXED):
            try:
                return obj[argument]  # type: ignore[index]  # of an undefined value, this says what is undefined
            except (TypeError, LookupError):
                if not isinstance(argument, str):
                    return self.undefined(obj=obj, name=argument)
        return self._lookup(obj, argument)

    def _lookup(self, obj: Any, name: Any) -> Any:
        if not isinstance(name, str) or name.startswith("_"):
            raise SecurityError(f"attribute {str(name)[:100]!r}")
        if isinstance(obj, Undefined):
            return getattr(obj, name)  # says what is undefined
        if isinstance(obj, LoopContext) and name in _LOOP.split():
            return getattr(obj, name)
        if isinstance(obj, LoopContext) and name in ("cycle", "changed"):
            return guards.Function(name, getattr(obj, name))
        if isinstance(obj, Namespace):
            return getattr(obj, name, self.undefined(obj=obj, name=name))
        for kind in _KINDS:
            if isinstance(obj, kind):
                if method := guards.bound(obj, kind, name):
                    return method
                if isinstance(obj, dict) and name in obj:
                    return obj[name]
                if not hasattr(kind, name):
                    return self.undefined(obj=obj, name=name)
                break
        raise SecurityError(f"attribute {name!r} of a {type(obj).__name__}")

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a macro of the template, or a function or method that is allowed."""
        kwargs.pop("_loop_vars", None)  # Jinja's own bookkeeping
        kwargs.pop("_block_vars", None)
        budget = current.get()
        budget.tick()
        if isinstance(kwargs.get("caller"), Macro) and not isinstance(obj, Macro):
            raise SecurityError("a call block around something that is no macro")
        if isinstance(obj, guards.Function):
            return budget.keep(obj.run(*args, **kwargs))
        if not isinstance(obj, Macro):
            name = getattr(obj, "_undefined_name", None) or type(obj).__name__
            raise SecurityError(f"a call of {name!r}, which is no function of chat templates")
        budget.calls += 1
        if budget.calls > MAX_DEPTH:
            raise SecurityError(f"macros nested deeper than {MAX_DEPTH} calls")
        try:
            return obj(*args, **kwargs)
        finally:
            budget.calls -= 1

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an arithmetic operator within the budget."""
        return guards.binary(operator, left, right)

    def concat(self, pieces: Iterable[str]) -> str:
        """Join the output of a macro or of a `{% set %}` block within the budget."""
        return guards.join_all("", list(pieces))


def _print(value: Any) -> str:
    if type(value) is str and current.get(None) is None:
        return value  # a constant, while compiling
    current.get().tick()
    return guards.to_text(value)


_ALLOWED = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.For, nodes.If, nodes.Continue, nodes.Break),
    *(nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.With, nodes.Scope),
    *(nodes.Assign, nodes.AssignBlock),
    *(nodes.Name, nodes.NSRef, nodes.Const, nodes.Tuple, nodes.List, nodes.Dict, nodes.Pair, nodes.Keyword),
    *(nodes.CondExpr, nodes.Filter, nodes.Test, nodes.Call, nodes.Getitem, nodes.Getattr, nodes.Slice),
    *(nodes.Concat, nodes.Compare, nodes.Operand, nodes.BinExpr, nodes.UnaryExpr),
)


def _check(tree: nodes.Template) -> None:
    """Raise for nodes that chat templates do not need, and for trees too large or too deep to compile."""
    level: list[nodes.Node] = [tree]
    count = depth = 0
    while level:
        count, depth = count + len(level), depth + 1
        if count > MAX_NODES or depth > 2 * MAX_DEPTH:
            raise SecurityError(f"over {MAX_NODES} parts, or parts nested deeper than {2 * MAX_DEPTH} levels")
        for node in level:
            name = node.name if isinstance(node, nodes.Name) and node.ctx == "load" else ""
            if not isinstance(node, _ALLOWED) or (isinstance(node, nodes.For) and node.recursive):
                raise SecurityError(f"line {node.lineno}: the {type(node).__name__!r} statement")
            if name in ("self", "varargs", "kwargs"):
                raise SecurityError(f"line {node.lineno}: the name {name!r}")
            if isinstance(node, nodes.Const) and isinstance(node.value, int) and abs(node.value) > 2**64:
                raise SecurityError(f"line {node.lineno}: a number of more than 64 bits")
        level = [child for node in level for child in node.iter_child_nodes()]


class _Guard(NodeTransformer):
    """Turns syntax that the sandbox cannot intercept into counted calls, and rewrites literal text."""

    def __init__(self, rewrite: Callable[[str], str]) -> None:
        self.rewrite = rewrite

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (Jinja's naming)
        self.generic_visit(node)
        node.iter = _counted("~each", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _counted("~concat", *node.nodes)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        left: nodes.Expr = node.expr
        result: nodes.Expr | None = None
        for operand in node.ops:  # `a < b < c` is `a < b and b < c`
            step = _counted("~compare", left, nodes.Const(operand.op), operand.expr)
            left, result = operand.expr, step if result is None else nodes.And(result, step)
        return result or node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = (node.arg.start, node.arg.stop, node.arg.step)
        return _counted("~cut", node.node, *(bound or nodes.Const(None) for bound in bounds))

    def _literal(self, node: nodes.Tuple | nodes.List | nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return node if getattr(node, "ctx", "load") == "store" else _counted("~pack", node)

    visit_Tuple = visit_List = visit_Dict = _literal  # noqa: N815

    def visit_Const(self, node: nodes.Const) -> nodes.Node:  # noqa: N802
        if isinstance(node.value, str):
            node.value = self.rewrite(node.value)
        return node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:  # noqa: N802
        node.data = self.rewrite(node.data)
        return node


def _counted(name: str, first: nodes.Node, *rest: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(first, name, list(rest), [], None, None)


class Program:
    """A parsed template; compiled once, with its literal text rewritten, then rendered any number of times.

    >>> program = Program("{% for x in items %}[{{ x }}]{% endfor %}")
    >>> program.compile()
    >>> program.render({"items": [1, 2]}, Budget())
    '[1][2]'
    """

    def __init__(self, source: str) -> None:
        if len(source) > MAX_SOURCE_CHARACTERS:
            raise _fault(f"{len(source)} characters, over the limit of {MAX_SOURCE_CHARACTERS}")
        self._sandbox = Sandbox()
        self._template: Template | None = None
        try:
            self._tree = self._sandbox.parse(source)
            _check(self._tree)
        except Exception as error:
            raise _fault(_reason(error)) from None
        #: every piece of literal text, and every attribute the template asks for
        self.literals = {node.value for node in self._tree.find_all(nodes.Const) if type(node.value) is str}
        self.literals.update(node.data for node in self._tree.find_all(nodes.TemplateData))
        self.names = {node.attr for node in self._tree.find_all(nodes.Getattr)}

    def variables(self) -> frozenset[str]:
        """The variables that the template reads and does not set; for a template that is not compiled yet."""
        return frozenset(meta.find_undeclared_variables(self._tree))

    def compile(self, rewrite: Callable[[str], str] = str) -> None:
        """Compile, with `rewrite` applied to all literal text."""
        try:
            tree = _Guard(rewrite).visit(self._tree)
            tree.set_environment(self._sandbox).set_lineno(1)
            code = self._sandbox.compile(tree)
            self._template = Template.from_code(self._sandbox, code, self._sandbox.make_globals(None))
        except Exception as error:
            raise _fault(_reason(error)) from None

    def render(self, variables: Mapping[str, Any], budget: Budget) -> str:
        """Render within the budget; raises `ModelError` for a bad template, `InvalidRequest` for bad data."""
        if self._template is None:
            self.compile()
        assert self._template is not None
        token = current.set(budget)
        pieces: list[str] = []
        length = 0
        try:
            for piece in self._template.root_render_func(self._template.new_context(_copied(variables))):
                length += len(piece)
                budget.expect(length)
                pieces.append(piece)
        except Exception as error:
            _raise(error)
        finally:
            current.reset(token)
        return "".join(pieces)


def _copied(variables: Mapping[str, Any]) -> dict[str, Any]:
    """The caller's data; lists that the template may change are copies."""
    return {
        name: pack_sized(list(value), value.size) if isinstance(value, List) else value
        for name, value in variables.items()
    }


def _raise(error: Exception) -> NoReturn:
    """Raise our own exception: for an error of the template, or of its data."""
    if isinstance(error, StrettoError):
        raise error
    if isinstance(error, (TemplateError, RecursionError, MemoryError)) and not isinstance(
        error, UndefinedError
    ):
        raise _fault(_reason(error)) from None
    raise param_error(
        "messages",
        f"the model's chat template cannot render them ({_reason(error)}); give each message the fields "
        "and types that this model's template reads, as a rule a text for 'content'",
    ) from None


def _reason(error: Exception) -> str:
    text = str(error)[:300]
    if isinstance(error, SecurityError):
        return f"it uses what a chat template may not use: {text}"
    if isinstance(error, TemplateSyntaxError):
        return f"{text} (line {error.lineno})"
    return f"{type(error).__name__}: {text}"


def _fault(reason: str) -> ModelError:
    return ModelError(
        f"the chat template cannot be used: {reason}; give another template", field="tokenizer.chat_template"
    )
