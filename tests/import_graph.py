"""The graph of imports between the modules of a package, read from its source without running it."""

import ast
from graphlib import CycleError, TopologicalSorter


def import_graph(package):
    """{module: the modules it imports}, for every file of the package in the folder `package`.

    Imports under TYPE_CHECKING and inside functions count like those at the top. The package's own
    `__init__.py` imports lazily, so it is no node: a name taken from it counts as the module it lives in.
    """
    files = {_name(path, package): path for path in package.rglob("*.py")}
    root = files.pop(package.name)
    homes = {name: home for home, name in _imports(root) if name is not None}
    graph = {}
    for module, path in files.items():
        graph[module] = set()
        for base, name in _imports(path):
            if f"{base}.{name}" in files:
                base = f"{base}.{name}"  # from package import module
            elif base == package.name:
                base = homes.get(name)  # from package import a name that is imported lazily
            if base in files and base != module:
                graph[module].add(base)
    return graph


def find_cycle(graph):
    """Modules that import each other, the first one again at the end; None if there are none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1][::-1]  # graphlib lists each module behind the one that it imports
    return None


def _name(path, package):
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(path):
    """(module, name) for each `from module import name`, (module, None) for each `import module`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)
