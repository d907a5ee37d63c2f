"""`/dashboard`: the page and its files. They tell nothing of the cluster; what is shown comes by the feed."""

from __future__ import annotations

import hashlib
import string
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from protocol import __version__
from protocol.errors import ClusterError, ErrorCode

_STATIC = Path(__file__).with_name("static")
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_PAGE = "page.html"

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",  # a picture that the user chose is shown before it is sent
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",  # no text becomes markup, whatever a script does
    )
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


class Page:
    """Holds the files as they are sent."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[bytes, dict[str, str]]] = {}
        for path in sorted(_STATIC.iterdir()):
            body = path.read_bytes()
            if path.name == _PAGE:
                body = string.Template(body.decode()).substitute(version=__version__).encode()
            tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            headers = {**_HEADERS, "content-type": _TYPES[path.suffix], "etag": tag}
            self._files[path.name] = body, headers

    async def page(self, request: Request) -> Response:
        return self._told(_PAGE, request)

    async def file(self, request: Request) -> Response:
        name = request.path_params["file"]
        if name == _PAGE or name not in self._files:
            message = f"the dashboard has no file {name[:100]!r}; it is at /dashboard"
            raise ClusterError(ErrorCode.UNKNOWN_URL, message)
        return self._told(name, request)

    def _told(self, name: str, request: Request) -> Response:
        body, headers = self._files[name]
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers)


def routes(page: Page) -> list[Route]:
    """Paths as `middleware.plain_path` leaves them."""
    return [Route("/dashboard", page.page), Route("/dashboard/{file}", page.file)]
