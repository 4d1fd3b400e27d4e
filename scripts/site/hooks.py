"""Hooks of MkDocs: the navigation, made from the folders, and pages for files outside docs/."""

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

sys.path.insert(0, str(Path(__file__).parent))

import outside
from order import navigation, page_list

LIST = re.compile(r"<!-- pages: (.+?) -->")


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
    """Mend the links of a page that lead out of docs/, and list pages where a comment asks for them."""
    listed = LIST.sub(lambda part: page_list(Path(config.docs_dir), part[1]), markdown)
    return outside.rewritten(listed, page.file.src_uri)
