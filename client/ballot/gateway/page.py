"""The playground's files: read once from the package, served with strict headers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
# Nothing from elsewhere, nothing inline, in no frame of another page.
HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
        "object-src 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


@dataclass(frozen=True)
class PageFile:
    """A file as it is served."""

    content: bytes
    content_type: str
    etag: str

    def respond(self, request: Request) -> Response:
        """Answer with the file, or 304 to a browser that has it."""
        headers = {**HEADERS, "etag": self.etag}
        if self.etag in _etags(request.headers.get("if-none-match", "")):
            return Response(status_code=304, headers=headers)
        headers["content-type"] = self.content_type
        return Response(self.content, headers=headers)


def page_files() -> dict[str, PageFile]:
    """Return the files by their path; `/` is `index.html`."""
    files = {
        f"/{entry.name}": _page_file(entry.name, entry.read_bytes())
        for entry in resources.files("ballot.gateway").joinpath("page").iterdir()
        if entry.is_file() and not entry.name.startswith(".")
    }
    if index := files.get("/index.html"):
        files["/"] = index
    return files


def _page_file(name: str, content: bytes) -> PageFile:
    suffix = f".{name.rpartition('.')[2]}"
    content_type = _TYPES.get(suffix, "application/octet-stream")
    return PageFile(content, content_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def _etags(header: str) -> list[str]:
    return [tag.strip().removeprefix("W/") for tag in header.split(",")]
