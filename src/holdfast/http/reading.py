"""What a request says: its query and its body, read as the models of its endpoint; what is wrong is said part by part.

A list in a query is repeated (`status=failed&status=paused`) or has commas (`status=failed,paused`). A name that ends
in a dot, such as `input.`, takes all parameters that begin with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, TypeVar, get_origin

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from holdfast.errors import did_you_mean, shown
from holdfast.http.limits import Limits
from holdfast.http.problems import MOST_ERRORS, InvalidRequest, SlowRequest, TooLarge, UnsupportedMediaType

M = TypeVar("M", bound=BaseModel)

JSON_TYPES = ("application/json",)
MOST_PARAMETERS = 200
LONGEST_LENGTH = 20
LONGEST_PATH = 200
TIMES = ("datetime_", "timezone_")
"""How the errors of what is no instant begin."""


def read_query(model: type[M], parameters: Sequence[tuple[str, str]]) -> M:
    """Read the parameters of a query."""
    if len(parameters) > MOST_PARAMETERS:
        raise InvalidRequest(f"the query has {len(parameters)} parameters; the limit is {MOST_PARAMETERS}")
    given: dict[str, Any] = {}
    lists, beginnings = _kinds(model)
    for name, value in parameters:
        beginning = next((each for each in beginnings if name.startswith(each)), None)
        inner = {} if beginning is None else given.setdefault(beginning, {})
        if name in lists:
            given.setdefault(name, []).extend(value.split(","))
        elif name in given or (beginning is not None and name.removeprefix(beginning) in inner):
            raise _invalid([(name, "it is given twice; give it once")])
        elif beginning is not None:
            inner[name.removeprefix(beginning)] = value
        else:
            given[name] = value
    return _validated(model, given)


@cache
def _kinds(model: type[BaseModel]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Name the parameters that take several values, and the beginnings of those that take any name."""
    names = {each.alias or name: each.annotation for name, each in model.model_fields.items()}
    lists = {name for name, kind in names.items() if get_origin(kind) in (list, tuple)}
    return frozenset(lists), tuple(name for name in names if name.endswith("."))


async def read_body(model: type[M], request: Request, limits: Limits) -> M:
    """Read the body; an empty one is an empty object, for an endpoint that needs nothing of it."""
    if request.headers.get("content-length", "") not in ("", "0") or "transfer-encoding" in request.headers:
        refuse_other_media(request)  # before any of it is read
    body = await _received(request, limits)
    if not body:
        return _validated(model, {})
    refuse_other_media(request)  # HTTP/2 has bodies that no header tells of
    value = limits.read_json(body)
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object, such as {}; put the values under their names")
    try:
        return model.model_validate_json(body, strict=True)
    except ValidationError as error:
        raise invalid(error, model) from None


def refuse_other_media(request: Request) -> None:
    """Raise `UnsupportedMediaType` if the body is not said to be JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in JSON_TYPES:
        raise UnsupportedMediaType(
            f"the body is {shown(kind) if kind else 'of no type'}; send JSON with Content-Type: application/json"
        )


async def _received(request: Request, limits: Limits) -> bytes:
    said = request.headers.get("content-length", "0")
    if said.isdecimal() and (len(said) > LONGEST_LENGTH or int(said) > limits.body_bytes):
        raise _too_large(limits)
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for piece in request.stream():
                size += len(piece)
                if size > limits.body_bytes:
                    raise _too_large(limits)
                pieces.append(piece)
    except TimeoutError:
        raise SlowRequest(
            f"the body was not there after {limits.body_seconds} s; send it faster, or less of it",
            headers={"Connection": "close"},
        ) from None
    except ClientDisconnect:
        raise InvalidRequest("the body broke off") from None
    return b"".join(pieces)


def _too_large(limits: Limits) -> TooLarge:
    return TooLarge(
        f"the body has more than {limits.body_bytes:,} bytes; send less at a time", headers={"Connection": "close"}
    )


def _validated(model: type[M], given: dict[str, Any]) -> M:
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise invalid(error, model) from None


def invalid(error: ValidationError, model: type[BaseModel]) -> InvalidRequest:
    """Say what is wrong; a name that is not known is answered with the nearest one."""
    known = [each.alias or name for name, each in model.model_fields.items()]
    return _invalid(_parts(error, known), error.error_count())


def _parts(error: ValidationError, known: Sequence[str]) -> Iterable[tuple[str, str]]:
    found = error.errors(include_url=False, include_input=False, include_context=False)
    for each in found[:MOST_ERRORS]:  # there may be a hundred thousand
        path = ".".join(map(str, each["loc"]))[:LONGEST_PATH]
        if each["type"] == "extra_forbidden":
            name = str(each["loc"][-1])
            near = did_you_mean(name, known) if len(each["loc"]) == 1 else ""
            named = [f"{name}<path>" if name.endswith(".") else name for name in known]
            there = f"; there are: {', '.join(named)}" if len(each["loc"]) == 1 and known else ""
            yield path, f"there is no {shown(name)} here{near or there}"
        elif each["type"].startswith(TIMES):
            yield path, "it must be a time with its zone, such as 2026-05-04T12:00:00Z"
        else:
            message = each["msg"].removeprefix("Value error, ")
            yield path, message[:1].lower() + message[1:]


def _invalid(parts: Iterable[tuple[str, str]], count: int = 1) -> InvalidRequest:
    found = list(parts)
    path, message = found[0]
    more = f" (and {count - 1} more)" if count > 1 else ""
    return InvalidRequest(f"{path or 'the body'}: {message}{more}", errors=found)
