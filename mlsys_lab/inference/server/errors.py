"""Errors of the API: an HTTP status, and an object in OpenAI's format."""

from __future__ import annotations

from http import HTTPStatus

RETRY_AFTER = {"Retry-After": "1"}
"""Header of errors that may be gone in a second."""
ERROR_TYPES = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.INTERNAL_SERVER_ERROR: "server_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "server_error",
    HTTPStatus.GATEWAY_TIMEOUT: "timeout_error",
}
"""Error type by status; every other status is an "invalid_request_error"."""


class ApiError(Exception):
    """An HTTP status with a message; `param` names the invalid field, `code` identifies the error for programs."""

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
        """Body of the response."""
        error_type = ERROR_TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": error_type, "param": self.param, "code": self.code}}


def bad_request(message: str, param: str | None = None) -> ApiError:
    """Error 400: a request that is invalid, or asks for something unsupported."""
    return ApiError(HTTPStatus.BAD_REQUEST, message, param=param)


def unavailable(message: str, code: str) -> ApiError:
    """Error 503: the server cannot answer now."""
    return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, message, code=code, headers=RETRY_AFTER)
