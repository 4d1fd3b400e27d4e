"""docs/reference/errors.md: every exception, from stretto.errors, and the HTTP answers that they become."""

import inspect
from collections.abc import Iterator

from reference.markdown import MADE, plain, table
from stretto import errors
from stretto.server.http.errors import translate

HEAD = f"""# Errors

Every exception that Stretto raises is a `stretto.StrettoError`. Its message says what was wrong, where, and
what to do; programs read the same from its fields. Nothing is silently dropped, cut or replaced.

```python
import stretto

llm = stretto.load("smollm2")
try:
    llm.generate("Hello", temperature=-1)
except stretto.InvalidRequest as error:
    print(error.param, error.value)      # temperature -1
    print(error)                         # what it takes instead
```

{MADE}
"""
TREE = """## The tree

```text
{tree}
```
"""
FIELDS = """## Fields

Every exception has `param` and `value`: the parameter that is wrong and what was given for it, where it is
about one parameter.
"""
STATUS = """
## Over HTTP

The server answers with these statuses and codes, in the shape of the protocol that was asked
([The server](server.md)). `Retry-After` is set where trying again may help.
"""


def page() -> str:
    """The text of the page."""
    names = list(_all())
    rows = [(f"`{one.__name__}`", _fields(one), plain(inspect.getdoc(one) or "")) for one in names]
    parts = [HEAD, TREE.format(tree="\n".join(_tree(errors.StrettoError))), FIELDS]
    parts += [table(("exception", "fields of its own", "when"), rows), STATUS]
    parts += [table(("exception", "status", "code"), _statuses(names)), "\n## In detail\n"]
    parts += [f"::: stretto.{one.__name__}\n" for one in (*names, errors.RouteWarning)]
    return "\n".join(parts).rstrip() + "\n"


def _all(root: type[BaseException] = errors.StrettoError) -> Iterator[type[BaseException]]:
    """An exception and all below it that stretto.errors defines."""
    yield root
    for one in root.__subclasses__():
        if one.__module__ == errors.__name__:
            yield from _all(one)


def _tree(root: type[BaseException], before: str = "") -> Iterator[str]:
    yield f"{before}{root.__name__}"
    for one in root.__subclasses__():
        if one.__module__ == errors.__name__:
            yield from _tree(one, f"    {before}")


def _fields(error: type[BaseException]) -> str:
    names = inspect.signature(error).parameters
    own = [name for name in names if name not in ("message", "param", "value")]
    return ", ".join(f"`{name}`" for name in own)


def _statuses(names: list[type[BaseException]]) -> Iterator[tuple[str, str, str]]:
    for one in names[1:]:
        answer = translate(one("what was wrong"))
        again = ", may be tried again" if answer.retry_after is not None else ""
        yield f"`{one.__name__}`", f"{answer.status}{again}", f"`{answer.code}`" if answer.code else ""
