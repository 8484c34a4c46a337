"""Parses request bodies into pydantic models off the event loop.

One sentence describes a body's first mistake.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable, Coroutine
from math import isfinite
from typing import Any, TypeVar

from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from longgraft.serve.formats.errors import ApiError
from longgraft.serve.refusals import Busy, Closing

T = TypeVar("T")
Path = tuple[int | str, ...]
"""The keys and indices that lead to a place in a JSON value."""
# Limits of an answer, for which some clients send -1.
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")
NO_LIMIT = "For as many as are allowed, give a large number."
# Only a body that matches may have half a character, or a number that is not finite.
UNSENDABLE = re.compile(rb"\\u[dD][89a-fA-F]|NaN|Infinity|\d[eE]\+?\d|\d{300}")


class BodyRequest(Request):
    """A request whose body is parsed and processed in the server's encoding pool."""

    def __init__(self, request: Request, model: type[BaseModel]) -> None:
        super().__init__(request.scope, request.receive)
        self._model = model
        self.size = 0  # bytes of the body, once it is read

    async def json(self) -> Any:
        """Returns an instance of the model, which FastAPI's own validation leaves as it is."""
        return await self.run(parse, self._model, await self.body())

    async def run(self, work: Callable[..., T], *args: Any, constrained: bool = False) -> T:
        """Runs `work` in a thread of the pool (`EncodingPool.run`).

        Raises:
            ApiError: 429 if the pool is full, 499 if the client has disconnected; work that has not begun by
                then never runs.
        """
        self.size = len(await self.body())
        pool = self.app.state.longgraft.pool
        task = asyncio.ensure_future(pool.run(self.size, work, *args, constrained=constrained))
        gone = asyncio.create_task(disconnected(self))
        try:
            await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ApiError(499, "The client closed the connection.")
            return task.result()
        except (Busy, Closing) as error:  # FastAPI would report any other exception as a body that cannot be parsed
            raise ApiError.of(error) from error
        finally:
            gone.cancel()
            task.cancel()


class BodyRoute(APIRoute):
    """A route that reads its body through a `BodyRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Returns FastAPI's handler, called with a `BodyRequest`."""
        handler = super().get_route_handler()
        if self.body_field is None:
            return handler
        model: Any = self.body_field.field_info.annotation

        async def handle(request: Request) -> Response:
            body_request = BodyRequest(request, model)
            try:
                return await handler(body_request)
            finally:
                request.app.state.longgraft.pool.trim_later(body_request.size)

        return handle


async def disconnected(request: Request) -> None:
    """Returns when the client has disconnected; the body must have been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def parse(model: type[BaseModel], body: bytes) -> BaseModel:
    """Parses a body; raises ApiError if it is not JSON in UTF-8 or does not fit the model."""
    try:
        value = json.loads(body.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ApiError(400, f"The body is not UTF-8: byte {error.start:,} does not belong there.") from error
    except json.JSONDecodeError as error:
        raise ApiError(400, f"The body is no JSON: {error.msg.lower()} at character {error.pos:,}.") from error
    except RecursionError as error:
        raise ApiError(400, "The body's JSON is nested too deeply. Send fewer brackets within brackets.") from error
    except ValueError as error:
        raise ApiError(
            400, f"The body has a number of more than {sys.get_int_max_str_digits():,} digits. Shorten it."
        ) from error
    if UNSENDABLE.search(body):
        _check_sendable(value)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        refusal = invalid(error, value)
    raise refusal  # raised out here, it has no context that would keep the whole parsed body in memory


def _check_sendable(body: Any) -> None:
    """Raises ApiError about the first text with half a surrogate pair, which no tokenizer encodes, or the first
    number that is not finite, which JSON cannot send back.
    """
    waiting: list[tuple[str, Any]] = [("", body)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, str):
            place = _half_character(value)
            if place is not None:
                raise ApiError(
                    400,
                    f"{name or 'The body'} has half a character at place {place:,}: an emoji "
                    "was cut in two. Cut the text elsewhere.",
                    name or None,
                )
        elif isinstance(value, float) and not isfinite(value):
            raise ApiError(400, f"{name or 'The body'} is {value}; it must be a finite number.", name or None)
        elif isinstance(value, list):
            for index in reversed(range(len(value))):
                waiting.append((f"{name}[{index}]", value[index]))
        elif isinstance(value, dict):
            for key, item in reversed(value.items()):
                inner = f"{name}.{key}".removeprefix(".")
                waiting += [(inner, item), (inner, key)]


def _half_character(text: str) -> int | None:
    """Returns the place of the first half of a surrogate pair, or None."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None


def invalid(error: ValidationError, value: Any) -> ApiError:
    """Returns the error about the first wrong field.  value: the body

    If a field has several types, the type that fits the value furthest is taken as the intended one.
    """
    errors = error.errors(include_url=False, include_input=False)
    first = [detail for detail in errors if detail["loc"][:1] == errors[0]["loc"][:1]]
    paths = [_path(detail["loc"], value, detail["type"] == "missing") for detail in first]
    deepest = max(paths, key=_depth)
    if not deepest:
        return ApiError(400, "The body must be a JSON object, sent with Content-Type: application/json.")
    meant = [detail for detail, path in zip(first, paths, strict=True) if path == deepest]
    name = _name(deepest)
    if meant[0]["type"] == "missing":
        return ApiError(400, f"{name} is missing. Give it.", name)
    if meant[0]["type"] == "extra_forbidden":
        return ApiError(400, f"{name} is not known here. Leave it out.", name)
    if meant[0]["type"] == "value_error":
        return ApiError(400, str(meant[0]["ctx"]["error"]), name)
    reasons = list[str]()
    for detail in meant:
        reason = re.sub(r"^\w+ should | after validation", "", detail["msg"])
        if detail["type"] == "model_type":
            reason = "be a JSON object"
        if reason not in reasons:
            reasons.append(reason)
    message = f"{name} must {', or '.join(reasons).replace(', or be ', ', or ')}."
    if deepest[-1] in LIMITS:
        message = f"{message} {NO_LIMIT}"
    return ApiError(400, message, name)


def _depth(path: Path) -> tuple[int, list[int]]:
    """Returns what orders paths: their length, and then their indices."""
    return len(path), [part for part in path if isinstance(part, int)]


def _name(path: Path) -> str:
    """Returns a path as JavaScript writes it."""
    name = ""
    for part in path:
        name += f"[{part}]" if isinstance(part, int) else f".{part}"
    return name.removeprefix(".")


def _path(place: Path, value: Any, missing: bool) -> Path:
    """Returns the keys and indices that lead to a place in a value: pydantic's, without the names of union types."""
    path: list[int | str] = []
    for part in place:
        if isinstance(part, int):
            path.append(part)
            inside = isinstance(value, list) and part < len(value)
            value = value[part] if inside else None
        elif isinstance(value, dict) and part in value:
            path.append(part)
            value = value[part]
    if missing:
        path.append(place[-1])
    return tuple(path)
