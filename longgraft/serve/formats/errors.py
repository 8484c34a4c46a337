"""Errors in the form of OpenAI's API: {"error": {"message", "type", "param", "code"}}, with short messages."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from longgraft.acceptance.constraints import DeadEnd
from longgraft.runtime.limited_process import NoTime
from longgraft.serve.refusals import Busy, Closing, Failed

LOG = logging.getLogger(__name__)
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    501: "not_supported_error",
}
SENTENCES = {
    404: "There is nothing at {path}. Known: {known}.",
    405: "{path} does not take {method}; it takes {allowed}.",
}


# Characters of an error: the names and values that it repeats may be as long as a body.
MOST_MESSAGE = 600
MOST_PARAM = 120
# A recursion has thousands of frames, and an exception's own text may have the whole request.
MOST_FRAMES = 30
MOST_LINES = 120
MOST_WIDTH = 500


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """The body of every error response."""

    error: ErrorDetail


class ApiError(HTTPException):
    """An API error response.

    Attributes:
        param: The wrong field.
        code: An error code that programs can read.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, shortened(message, MOST_MESSAGE), dict(headers or {}))
        self.param = param and shortened(param, MOST_PARAM)
        self.code = code

    @classmethod
    def of(cls, error: Exception) -> ApiError:
        """Returns the response to an exception.

        An unexpected one is a bug of the server, and goes to the log.
        """
        if isinstance(error, ApiError):
            return error
        if isinstance(error, Busy):
            return cls(429, str(error), code="queue_full", headers={"Retry-After": str(error.retry_after)})
        if isinstance(error, Closing):
            return cls(503, str(error), code="shutting_down", headers={"Retry-After": "5"})
        if isinstance(error, NoTime):
            return cls(503, str(error), code="overloaded", headers={"Retry-After": "10"})
        if isinstance(error, Failed):
            return cls(500, str(error))
        LOG.error("a request failed\n%s", traceback_of(error))
        return cls(500, "The server failed; its log says why.")

    def renamed(self, names: Mapping[str, str]) -> ApiError:
        """Returns the error about a field by its name in another API.

        Args:
            names: Names there, by the names here.
        """
        old = re.split(r"\W", self.param or "")[0]
        new = names.get(old, old)
        if not old or new == old:
            return self
        message = re.sub(rf"\b{old}\b", new, self.detail, count=1)
        return ApiError(self.status_code, message, new + (self.param or "")[len(old) :], self.code, self.headers)

    @property
    def body(self) -> dict[str, Any]:
        otherwise = "server_error" if self.status_code >= 500 else "invalid_request_error"
        kind = TYPES.get(self.status_code, otherwise)
        # A client's own text or key may have half a surrogate pair, which UTF-8 cannot encode.
        message = self.detail.encode("utf-8", "replace").decode()
        param = self.param and self.param.encode("utf-8", "replace").decode()
        return {"error": {"message": message, "type": kind, "param": param, "code": self.code}}

    def body_at(self, path: str) -> dict[str, Any]:
        """Returns the body for a path; Anthropic's API has a further field, and the same names of errors."""
        body = self.body
        if path.removeprefix("/v1").startswith("/messages"):
            body["type"] = "error"
        return body

    def response(self) -> JSONResponse:
        return JSONResponse(self.body, self.status_code, self.headers)


def shortened(text: str, most: int) -> str:
    """Returns a text of at most about `most` characters, without its middle if it is longer."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]} ... {text[-(most // 2) :]}"


def traceback_of(error: BaseException) -> str:
    """Returns an exception for the log: the innermost frames, in lines of bounded number and length."""
    lines = "".join(traceback.format_exception(error, limit=-MOST_FRAMES)).splitlines()
    if len(lines) > MOST_LINES:
        lines[MOST_LINES // 2 : -MOST_LINES // 2] = [f"... {len(lines) - MOST_LINES:,} lines ..."]
    return "\n".join(shortened(line, MOST_WIDTH) for line in lines)


@contextmanager
def client_errors(param: str | None = None, constraint: str | None = None) -> Iterator[None]:
    """Turns a ValueError into a 400.

    Args:
        param: The field that the error is about.
        constraint: The field that a DeadEnd is about.
    """
    try:
        yield
    except ValueError as error:
        field = param
        if isinstance(error, DeadEnd):
            field = constraint
        raise ApiError(400, " ".join(str(error).split()), field) from error


def install_handlers(app: FastAPI) -> None:
    """Makes the application answer all exceptions in this form."""
    for kind in (ApiError, Busy, Closing, NoTime, Failed, Exception):
        app.add_exception_handler(kind, _answer_exception)
    app.add_exception_handler(HTTPException, _answer_http_exception)
    app.add_exception_handler(RequestValidationError, _answer_invalid_body)


def _answer_exception(request: Request, error: Exception) -> JSONResponse:
    return _response(request, ApiError.of(error))


def _answer_http_exception(request: Request, error: Any) -> JSONResponse:
    """Answers the framework's own errors: an unknown path or method."""
    facts = {
        "path": request.url.path,
        "method": request.method,
        "known": ", ".join(request.app.openapi()["paths"]),
        "allowed": (error.headers or {}).get("Allow", "others"),
    }
    detail = str(error.detail).rstrip(".")
    message = SENTENCES.get(error.status_code, "{detail}.").format(**facts, detail=detail)
    return _response(request, ApiError(error.status_code, message, headers=error.headers))


def _answer_invalid_body(request: Request, error: Any) -> JSONResponse:
    """Answers FastAPI's own validation error: the body is empty, or of another type."""
    message = "The body must be a JSON object, sent with Content-Type: application/json."
    return _response(request, ApiError(400, message))


def _response(request: Request, error: ApiError) -> JSONResponse:
    body = error.body_at(request.url.path)
    if of_anthropic(request):
        body["type"] = "error"
    return JSONResponse(body, error.status_code, error.headers)


def of_anthropic(request: Request) -> bool:
    """Returns True for a request of Anthropic's clients, which send this header with all of them."""
    return "anthropic-version" in request.headers
