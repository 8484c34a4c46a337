"""Parses request bodies into pydantic models off the event loop.

One sentence describes a body's first mistake.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable, Coroutine, Iterable
from math import isfinite
from typing import Any, TypeVar

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from longgraft.files.data_files import json_problem
from longgraft.serve.formats.errors import ApiError
from longgraft.serve.refusals import Busy, Closing

T = TypeVar("T")
Path = tuple[int | str, ...]
"""The keys and indices that lead to a place in a JSON value."""
# Only a body that matches may have half a character, or a number that is not finite.
UNSENDABLE = re.compile(rb"\\u[dD][89a-fA-F]|NaN|Infinity|\d[eE]\+?\d|\d{300}")
HALF_CHARACTER = re.compile("[\ud800-\udfff]")


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
        task = asyncio.ensure_future(pool.run(self.size, _done, work, *args, constrained=constrained))
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


def _done(work: Callable[..., T], *args: Any) -> T:
    """Does `work`, and raises an ordinary exception in place of one that ends a future or the event loop.

    A future takes no StopIteration, so the client would wait for ever. A panic of a library in Rust, or an
    exit, is no Exception.
    """
    try:
        return work(*args)
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise
        raise RuntimeError(f"{type(error).__name__} where a request was read: {error}") from error


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
            except (HTTPException, RequestValidationError):
                raise
            except Exception as error:  # the HTTP server would log all of it again
                raise ApiError.of(error) from None
            finally:
                request.app.state.longgraft.pool.trim_later(body_request.size)

        return handle


async def disconnected(request: Request) -> None:
    """Returns when the client has disconnected; the body must have been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def parse(model: type[BaseModel], body: bytes) -> BaseModel:
    """Parses a body; raises ApiError if it is not JSON in UTF-8 or does not fit the model."""
    problem = json_problem(body)
    if problem:
        raise ApiError(400, f"The body's JSON {problem}")
    try:
        value = json.loads(body.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ApiError(400, f"The body is not UTF-8: byte {error.start:,} does not belong there.") from error
    except json.JSONDecodeError as error:
        raise ApiError(400, f"The body is no JSON: {error.msg.lower()} at character {error.pos:,}.") from error
    except ValueError as error:
        raise ApiError(
            400, f"The body has a number of more than {sys.get_int_max_str_digits():,} digits. Shorten it."
        ) from error
    if UNSENDABLE.search(body):
        found = _unsendable(value)
        if found is not None:
            name = _name(found[0])
            raise ApiError(400, f"{name or 'The body'} {found[1]}", name or None)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        refusal = invalid(error, value)
    raise refusal  # raised out here, it has no context that would keep the whole parsed body in memory


def _unsendable(value: Any) -> tuple[Path, str] | None:
    """Returns the place of the first text or number that cannot be sent back, and what is wrong with it, or None.

    No tokenizer encodes half a surrogate pair, and JSON has no number that is not finite.
    """
    if isinstance(value, str):
        half = HALF_CHARACTER.search(value)
        if half is None:
            return None
        return (), f"has half a character at place {half.start():,}: an emoji was cut in two. Cut the text elsewhere."
    if isinstance(value, float) and not isfinite(value):
        return (), f"is {value}; it must be a finite number."
    items: Iterable[tuple[int | str, Any]] = ()
    if isinstance(value, list):
        items = enumerate(value)
    elif isinstance(value, dict):
        items = value.items()
    for key, item in items:
        found = (isinstance(key, str) and _unsendable(key)) or _unsendable(item)
        if found:  # only now: the places of all values take far more memory than the body
            place, fault = found
            return (key, *place), fault
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
        if detail["type"] == "literal_error":
            reason = reason.replace("False", "false")  # as JSON writes it
        if detail["type"] == "model_type":
            reason = "be a JSON object"
        if reason not in reasons:
            reasons.append(reason)
    return ApiError(400, f"{name} must {', or '.join(reasons).replace(', or be ', ', or ')}.", name)


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
    if missing and isinstance(place[-1], str):
        path.append(place[-1])
    return tuple(path)
