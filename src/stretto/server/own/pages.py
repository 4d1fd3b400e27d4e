"""The page at `/`: static files from a table made at start, under a policy without inline code.

The files are hand-written modules in the folder `page`, and published libraries in `page/vendor`. A request
names an entry of the table, never a path of the disk. Comments are for readers of the source, and not sent.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

COMMENT_LINES = re.compile(rb"^ *(//.*|/\*.*\*/)$", re.MULTILINE)  # of scripts and styles

FOLDER = Path(__file__).parent.parent / "page"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "media-src 'self' blob:",
        "connect-src 'self'",
        "manifest-src 'self'",
        "worker-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
    "vary": "accept-encoding",
}

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True)
class PageFile:
    """A file as it is sent."""

    type: str
    content: bytes
    compressed: bytes
    tag: str  # the ETag


@cache
def files() -> dict[str, PageFile]:
    """All files by their URL paths."""
    table: dict[str, PageFile] = {}
    for path in sorted(FOLDER.rglob("*")):
        if path.suffix in TYPES:
            name = path.relative_to(FOLDER).as_posix()
            table["/" if name == "index.html" else f"/page/{name}"] = _read(path)
    return table


def _read(path: Path) -> PageFile:
    content = path.read_bytes()
    if path.suffix in (".css", ".js") and path.parent == FOLDER:
        content = COMMENT_LINES.sub(b"", content)  # empty lines stay, so that browsers count as editors do
    tag = f'W/"{hashlib.sha256(content).hexdigest()[:20]}"'  # weak: one for both encodings
    return PageFile(TYPES[path.suffix], content, gzip.compress(content, 9, mtime=0), tag)


@router.api_route("/", methods=["GET", "HEAD"])
@router.api_route("/page/{name:path}", methods=["GET", "HEAD"])
async def page(request: Request) -> Response:
    """A file of the page."""
    file = files().get(request.url.path)
    if file is None:
        raise HTTPException(404)
    headers = {**HEADERS, "etag": file.tag}
    if file.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    content = file.content
    if "gzip" in request.headers.get("accept-encoding", "") and len(file.compressed) < len(content):
        content, headers["content-encoding"] = file.compressed, "gzip"
    headers["content-length"] = str(len(content))
    return Response(b"" if request.method == "HEAD" else content, headers=headers, media_type=file.type)
