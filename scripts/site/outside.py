"""Files outside docs/ that pages link to: they become pages of the site, below project/.

For the hooks of the site. A link keeps the form that works in the repository (`../../benchmarks/RESULTS.md`);
on the site it leads to a copy of that file.
"""

import os
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(?<=\]\()([^()\s]+)(?=\))")
CODE = {".py": "python", ".sh": "bash", ".toml": "toml", ".yml": "yaml", ".cpp": "cpp", ".h": "cpp"}


def source_of(src_uri: str) -> str:
    """The path in the repository of a page of the site."""
    if not src_uri.startswith("project/"):
        return f"docs/{src_uri}"
    path = src_uri.removeprefix("project/")
    return path.removesuffix(".md") if path.endswith(tuple(f"{end}.md" for end in CODE)) else path


def page_of(path: str) -> str | None:
    """The page that a path of the repository becomes, or None where nothing is there."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/") if (ROOT / path).is_file() else None
    if (ROOT / path).is_dir():
        return f"project/{path}/index.md"
    if not (ROOT / path).is_file():
        return None
    return f"project/{path}.md" if Path(path).suffix in CODE else f"project/{path}"


def targets(text: str, source: str) -> dict[str, str]:
    """Links of a page that leave docs/: the path in the repository of each."""
    inside = source.startswith("docs/")
    found = {}
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:|#|/", link):
            continue
        path = os.path.normpath(os.path.join(os.path.dirname(source), link.split("#")[0]))  # noqa: PTH118, PTH120
        if not path.startswith("..") and not (inside and path.startswith("docs/")):
            found[link] = path
    return found


def rewritten(text: str, src_uri: str) -> str:
    """The text of a page with its links to other files of the repository as links of the site."""
    source = source_of(src_uri)
    paths = targets(text, source)

    def replace(match: re.Match[str]) -> str:
        page = page_of(paths[match[0]]) if match[0] in paths else None
        if page is None:
            return match[0]
        anchor = match[0].partition("#")[2]
        return os.path.relpath(page, os.path.dirname(src_uri)) + (f"#{anchor}" if anchor else "")  # noqa: PTH120

    return LINK.sub(replace, text)


def text_of(path: str) -> str:
    """The Markdown of a file or folder outside docs/."""
    file = ROOT / path
    if file.is_dir():
        names = sorted(one.name for one in file.iterdir() if one.suffix in (".md", ".py"))
        return "\n".join([f"# {path}", "", *(f"- [{name}]({name})" for name in names), ""])
    text = file.read_text("utf-8")
    return f"# {path}\n\n```{CODE[file.suffix]}\n{text}```\n" if file.suffix in CODE else text


def closure(pages: dict[str, str]) -> dict[str, str]:
    """All files outside docs/ that pages lead to, also by way of each other: path and text."""
    found: dict[str, str] = {}
    waiting = list(pages.items())
    while waiting:
        source, text = waiting.pop()
        for path in set(targets(text, source).values()):
            if path not in found and page_of(path) and not path.startswith("docs/"):
                found[path] = text_of(path)
                waiting.append((f"{path}/index.md" if (ROOT / path).is_dir() else path, found[path]))
    return found
