"""The page at `/`: files of this package, sent with headers that let a browser ask nobody but this server."""

from __future__ import annotations

from http import HTTPStatus
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from mlsys_lab.inference.server.errors import ApiError

KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    "img-src": "data:",
    "form-action": "'none'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
}
HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in POLICY.items()),
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Page:
    """The page and its style sheet and modules, read once."""

    def __init__(self) -> None:
        folder = files("mlsys_lab.inference.server").joinpath("site")
        self.files = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}

    async def show(self, request: Request) -> Response:
        """Send a file of the page, or the page itself; ApiError (404) for another name."""
        name = request.path_params.get("name", "index.html")
        if name not in self.files:
            raise ApiError(HTTPStatus.NOT_FOUND, "no such file of the page")
        return Response(self.files[name], media_type=KINDS[name.rpartition(".")[2]], headers=HEADERS)
