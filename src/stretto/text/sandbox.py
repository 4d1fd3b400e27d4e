"""A Jinja environment for untrusted templates.

A chat template comes out of a model file, so it may be anything. Here it can compute text from the data it
is given, by the means listed in `guards` and `filters`, within a `Budget`; it can do nothing else. What the
sandbox of Jinja2 leaves open (loops, `~`, comparisons, slices, literals) is closed by rewriting the parsed
template before it is compiled: each of these becomes a call that is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from jinja2 import meta, nodes
from jinja2.environment import Template
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError, UndefinedError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from stretto.errors import InvalidRequest, ModelError, StrettoError
from stretto.text import filters, guards
from stretto.text.budget import MAX_DEPTH, Budget, List, current, packed

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
        self.filters = dict(filters.FILTERS)
        self.tests = dict(filters.TESTS)
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
    return guards.text_of(value)


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
        name: packed(list(value), value.size) if isinstance(value, List) else value
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
    raise InvalidRequest(
        f"messages: the model's chat template cannot render them ({_reason(error)}); give each message the "
        "fields and types that this model's template reads, as a rule a text for 'content'",
        param="messages",
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
