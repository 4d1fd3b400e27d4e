"""Hooks of MkDocs: the navigation, pages for files outside docs/, links and pictures of the site alone."""

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

sys.path.insert(0, str(Path(__file__).parent))

import outside
from order import navigation

NAME_CELL = re.compile(r"<td><code>([\w.]+)</code></td>")
ANCHOR = re.compile(r'<h\d id="(stretto[\w.]*)"')
PAGE_PICTURE = re.compile(r"(!\[[^]]*\]\((?:\.\./)*pictures/page-[\w-]+)\.png\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the navigation: the order of order.py, then pages that it does not name."""
    config.nav = navigation(Path(config.docs_dir))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside docs/ that pages link to."""
    pages = {f"docs/{file.src_uri}": file.content_string for file in files.documentation_pages()}
    for path, text in outside.closure(pages).items():
        page = outside.page_of(path) or path
        files.append(File.generated(config, page, content=text, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Mend the links of a page that lead out of docs/; screenshots have the colours of the site."""
    return outside.rewritten(with_dark_twins(markdown), page.file.src_uri)


def on_page_content(html: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Link the tables of names in the reference to what is said of each name below."""
    return with_links_to_names(html) if page.file.src_uri.startswith("reference/api/") else html


def with_links_to_names(html: str) -> str:
    """A page of names whose table leads to the names, where they are described on it."""
    anchors = ANCHOR.findall(html)

    def link(cell: re.Match[str]) -> str:
        name = cell[1]
        found = next((one for one in anchors if one == name or one.endswith(f".{name}")), None)
        return f'<td><a href="#{found}"><code>{name}</code></a></td>' if found else cell[0]

    return NAME_CELL.sub(link, html)


def with_dark_twins(markdown: str) -> str:
    """A page with the dark picture beside each light screenshot; the stylesheet shows one of them."""
    return PAGE_PICTURE.sub(r"\1.png#only-light)\1-dark.png#only-dark)", markdown)
