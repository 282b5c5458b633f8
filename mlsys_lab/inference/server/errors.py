"""What a client is told when something is wrong: a status, and an object in OpenAI's form."""

from __future__ import annotations

from http import HTTPStatus

RETRY = {"Retry-After": "1"}
"""Header of answers to requests that may succeed in a second."""
KINDS = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.INTERNAL_SERVER_ERROR: "server_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "server_error",
    HTTPStatus.GATEWAY_TIMEOUT: "timeout_error",
}
"""Type of error by status; all others are "invalid_request_error"."""


class ApiError(Exception):
    """An HTTP status with a message; `param` names the field at fault, `code` the case for programs."""

    def __init__(
        self,
        status: HTTPStatus,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.headers = status, message, param, code, headers

    @property
    def body(self) -> dict[str, object]:
        """Object that is sent, as JSON can hold it."""
        kind = KINDS.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def bad_request(message: str, param: str | None = None) -> ApiError:
    """Error 400 of a request that is not understood, or asks for what is not offered."""
    return ApiError(HTTPStatus.BAD_REQUEST, message, param=param)


def unavailable(message: str, code: str) -> ApiError:
    """Error 503 of a server that cannot answer now."""
    return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, message, code=code, headers=RETRY)
