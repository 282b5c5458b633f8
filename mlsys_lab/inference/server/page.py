"""The page at `/`: static files, with headers that restrict the browser to this server."""

from __future__ import annotations

from http import HTTPStatus
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from mlsys_lab.inference.server.errors import ApiError

MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
CONTENT_SECURITY_POLICY = {
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
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in CONTENT_SECURITY_POLICY.items()),
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Page:
    """The page, its style sheet and its modules, read once."""

    def __init__(self) -> None:
        folder = files("mlsys_lab.inference.server").joinpath("site")
        self.files = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}

    async def send_file(self, request: Request) -> Response:
        """Send the page, or one of its files by name; ApiError (404) if there is none."""
        name = request.path_params.get("name", "index.html")
        if name not in self.files:
            raise ApiError(HTTPStatus.NOT_FOUND, "no such file of the page")
        return Response(self.files[name], media_type=MEDIA_TYPES[name.rpartition(".")[2]], headers=HEADERS)
