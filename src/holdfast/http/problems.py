"""Errors as `application/problem+json` (RFC 9457), by the codes of `errors`; and the errors that only HTTP has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import BaseModel
from starlette.responses import Response

from holdfast.errors import HoldfastError, InvalidInput, InvalidOutput, StoreError
from holdfast.http.redacting import NOTHING_SHOWN, Shown
from holdfast.models import Job
from holdfast.times import instant_text
from holdfast.wire.json_text import json_bytes

MEDIA_TYPE = "application/problem+json"
AGAIN_SECONDS = 1
MOST_ERRORS = 10


class ProblemError(BaseModel):
    """What is wrong with one part of what was sent."""

    path: str
    """Where, such as `arguments.order.id`; empty for the whole."""
    message: str


class ProblemObject(BaseModel):
    """Why a request was not done."""

    type: str
    """`urn:holdfast:` and the code."""
    title: str
    status: int
    detail: str
    """What happened, and what to do."""
    code: str
    facts: dict[str, Any]
    errors: list[ProblemError]
    """What is wrong with the input, part by part."""
    instance: str
    """The id of the request, which is also in `X-Request-Id`."""


class HttpError(HoldfastError):
    """What is wrong with a request, whatever it asks for; *headers* go with the answer."""

    code = "bad_request"
    http_status = 400

    def __init__(
        self, message: str, *, headers: Mapping[str, str] | None = None, errors: Sequence[tuple[str, str]] = ()
    ) -> None:
        super().__init__(message)
        self.headers = headers or {}
        self.problems = tuple(errors)


class InvalidRequest(HttpError):
    """The query or the body is not what the endpoint takes."""

    code = "invalid_input"


class Unauthenticated(HttpError):
    """Nobody knows who asks."""

    code = "unauthenticated"
    http_status = 401

    def __init__(self, message: str) -> None:
        super().__init__(message, headers={"WWW-Authenticate": 'Bearer realm="holdfast"'})


class Forbidden(HttpError):
    """Whoever asks may not do it."""

    code = "forbidden"
    http_status = 403


class CrossSite(HttpError):
    """Another site may have sent it."""

    code = "cross_site"
    http_status = 403


class HttpsRequired(HttpError):
    """A cookie is given over TLS only, or on this machine."""

    code = "https_required"
    http_status = 403


class NoSuchRoute(HttpError):
    """There is no such path."""

    code = "no_such_route"
    http_status = 404


class NoSuchTask(HttpError):
    """No program has recorded a task of this name."""

    code = "task_not_found"
    http_status = 404


class MethodNotAllowed(HttpError):
    """The path has no such method."""

    code = "method_not_allowed"
    http_status = 405


class NotAcceptable(HttpError):
    """The client takes nothing that there is."""

    code = "not_acceptable"
    http_status = 406


class SlowRequest(HttpError):
    """The body came too slowly."""

    code = "slow_request"
    http_status = 408


class IdempotencyConflict(HttpError):
    """The `Idempotency-Key` was used for another request."""

    code = "idempotency_conflict"
    http_status = 409


class TooLarge(HttpError):
    """The body is too large."""

    code = "too_large"
    http_status = 413


class UnsupportedMediaType(HttpError):
    """The body is no JSON."""

    code = "unsupported_media_type"
    http_status = 415


class WrongHost(HttpError):
    """The `Host` is none that is served."""

    code = "wrong_host"
    http_status = 421


class TooManyRequests(HttpError):
    """There were too many requests, or there are too many streams; again after some seconds."""

    code = "too_many_requests"
    http_status = 429

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message, headers={"Retry-After": str(max(1, round(seconds + 0.5)))})


class NoStream(HttpError):
    """A stream cannot be held here."""

    code = "no_stream"
    http_status = 501


class ServerStopping(HttpError):
    """This server is stopping; another, or the same in a moment, takes the stream."""

    code = "server_stopping"
    http_status = 503

    def __init__(self) -> None:
        super().__init__("this server is stopping; ask again in a moment", headers={"Retry-After": "1"})


class RefusedByApplication(HttpError):
    """The application's own `auth=` has refused it, with a status of its own."""

    code = "refused"

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None) -> None:
        super().__init__(message, headers=headers)
        self.http_status = status  # type: ignore[misc]  # the others say it for all of their kind


class InternalError(HttpError):
    """Something is broken here."""

    code = "internal_error"
    http_status = 500


TITLES = {
    400: "Bad request",
    401: "Not authenticated",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    406: "Not acceptable",
    408: "Request timeout",
    409: "Conflict",
    412: "The state has changed",
    413: "Too large",
    415: "Unsupported media type",
    421: "Wrong host",
    429: "Too many requests",
    500: "Internal error",
    501: "Not implemented",
    503: "The database could not do it",
}
"""What a problem of each status is called."""

HIDDEN_DETAIL = "the database cannot be used at the moment; try again, or look into the log of the server"
NOT_FACTS = frozenset({"headers", "problems", "path"})


def problem_object(error: HoldfastError, request_id: str, shown: Shown) -> dict[str, Any]:
    """Write *error* as a problem, with what who asks may see."""
    return {
        "type": f"urn:holdfast:{error.code}",
        "title": TITLES.get(error.http_status, "Error"),
        "status": error.http_status,
        "detail": detail_of(error, shown),
        "code": error.code,
        "facts": _facts(error, shown),
        "errors": _errors(error),
        "instance": request_id,
    }


def detail_of(error: HoldfastError, shown: Shown) -> str:
    """Say what happened, but no names of hosts and users of the database to somebody who may be anybody."""
    return HIDDEN_DETAIL if isinstance(error, StoreError) and shown is NOTHING_SHOWN else str(error)


def problem(error: HoldfastError, request_id: str, shown: Shown) -> Response:
    """Answer with what is wrong."""
    headers = dict(getattr(error, "headers", {}))
    if isinstance(error, StoreError):
        headers["Retry-After"] = str(AGAIN_SECONDS)
    body = json_bytes(problem_object(error, request_id, shown))
    return Response(body, error.http_status, headers, MEDIA_TYPE)


def _errors(error: HoldfastError) -> list[dict[str, str]]:
    found = list(getattr(error, "problems", ()))[:MOST_ERRORS]
    if not found and isinstance(error, InvalidInput | InvalidOutput) and error.path:
        found = [(error.path, str(error))]
    return [{"path": path, "message": message} for path, message in found]


def _facts(error: HoldfastError, shown: Shown) -> dict[str, Any]:
    """Give the attributes of *error* that can be written; what a newer one has besides is left out."""
    given = {name: value for name, value in vars(error).items() if not name.startswith("_") and name not in NOT_FACTS}
    written = {name: _written(value, shown) for name, value in given.items()}
    return {name: value for name, value in written.items() if value is not LEFT_OUT}


LEFT_OUT = object()


def _written(value: object, shown: Shown) -> object:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case UUID():
            return str(value)
        case datetime():
            return instant_text(value)
        case Job():
            return shown.job(value)
        case list() | tuple() | set() | frozenset():
            several = [_written(each, shown) for each in value]
            return [each for each in several if each is not LEFT_OUT]
        case _:
            return LEFT_OUT
