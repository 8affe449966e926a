"""`/api/openapi.json`: the table of endpoints as OpenAPI 3.1, with the schemas that pydantic gives their models.

Nothing of it is written by hand: paths, parameters, bodies, answers, problems and roles are those of the table.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias, cast

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from holdfast import errors
from holdfast.errors import HoldfastError
from holdfast.http import problems
from holdfast.http.endpoint import NOBODY, Endpoint, Inquiry, NoBody, NoQuery
from holdfast.http.problems import MEDIA_TYPE, TITLES, ProblemObject
from holdfast.version import VERSION

Document: TypeAlias = dict[str, Any]

REF = "#/components/schemas/{model}"
USUAL = (400, 401, 403, 406, 421, 429, 503)
"""The statuses of problems that every endpoint may answer."""
OF_BODIES = (408, 413, 415)
AGAIN = (429, 503)
"""Those that say when to ask again."""
DESCRIPTION = (
    "Start, follow and steer jobs. Instants are ISO 8601 in UTC with milliseconds, durations are seconds, and errors "
    "are `application/problem+json`."
)
IN_PATH = re.compile(r"{(\w+)}")


async def read(ask: Inquiry[NoQuery, NoBody]) -> Document:
    """Describe this API as OpenAPI 3.1."""
    return {**document(ask.service.endpoints), "servers": [{"url": ask.root or "/"}]}


@lru_cache(maxsize=8)
def document(endpoints: tuple[Endpoint, ...]) -> Document:
    """Describe a table of endpoints."""
    schemas = _Schemas(endpoints)
    paths: dict[str, dict[str, Any]] = {}
    for each in endpoints:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, schemas)
    statuses = sorted({status for each in endpoints for status in problems_of(each)})
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": VERSION, "description": DESCRIPTION},
        "security": [{"token": []}, {"session": []}],
        "tags": [{"name": name} for name in dict.fromkeys(map(tag_of, endpoints))],
        "paths": paths,
        "components": {
            "schemas": schemas.shown,
            "responses": {f"Problem{status}": _problem(status, schemas) for status in statuses},
            "headers": {
                "RequestId": {"description": "The id of the request.", "schema": {"type": "string"}},
                "RetryAfter": {"description": "In how many seconds to ask again.", "schema": {"type": "integer"}},
                "ETag": {"description": "For `If-None-Match`.", "schema": {"type": "string"}},
            },
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "A token of `holdfast token create`."},
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "holdfast",
                    "description": "The cookie of POST /api/session; its name goes on with a part of the database's.",
                },
            },
        },
    }


def tag_of(endpoint: Endpoint) -> str:
    """Name the resource of an endpoint: the file of its handler."""
    return endpoint.handler.__module__.rpartition(".")[2]


def problems_of(endpoint: Endpoint) -> list[int]:
    """Give the statuses of problems that an endpoint may answer."""
    usual = [each for each in USUAL if endpoint.role is not NOBODY or endpoint.takes is not None or each != 401]
    return sorted({*usual, *endpoint.problems, *(OF_BODIES if endpoint.is_act else ())})


def codes_of(status: int) -> list[str]:
    """Name the codes of the problems that have *status*."""
    found = {
        each.code
        for module in (errors, problems)
        for each in vars(module).values()
        if inspect.isclass(each) and issubclass(each, HoldfastError) and each.http_status == status
    }
    return sorted(found)


class _WithoutTitles(GenerateJsonSchema):
    """Gives fields no titles, which would only say their names again."""

    def field_title_should_be_set(self, schema: object) -> bool:
        """Say that there is none."""
        return False


class _Schemas:
    """The schemas of all models of a table, by pydantic; those of queries are parameters, and not shown."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        given = [(model, "serialization") for each in endpoints for model in (each.gives, *each.also.values())]
        taken = [(model, "validation") for each in endpoints for model in (each.takes, each.query)]
        kinds = {self._key(model): model for model, _ in (*given, *taken) if model is not None}
        kinds[self._key(ProblemObject)] = ProblemObject
        wanted = dict.fromkeys((self._key(model), mode) for model, mode in (*given, *taken) if model is not None)
        wanted[self._key(ProblemObject), "serialization"] = None
        made, rest = TypeAdapter.json_schemas(
            [(key, cast("Any", mode), TypeAdapter(kinds[key])) for key, mode in wanted],
            ref_template=REF,
            schema_generator=_WithoutTitles,
        )
        self._made = made
        self._all = cast("dict[str, Any]", rest.get("$defs", {}))
        queries = {self._name(each.query, "validation") for each in endpoints}
        self.shown = {name: each for name, each in sorted(self._all.items()) if name not in queries}

    @staticmethod
    def _key(model: Any) -> str:
        return f"{model.__module__}.{model.__qualname__}" if inspect.isclass(model) else repr(model)

    def of(self, model: Any, mode: str) -> Mapping[str, Any]:
        """Give the schema of *model*: where it stands, or the schema itself."""
        return cast("Mapping[str, Any]", self._made[cast("Any", (self._key(model), mode))])

    def whole(self, model: Any, mode: str) -> Mapping[str, Any]:
        """Give the schema of *model* itself."""
        name = self._name(model, mode)
        return cast("Mapping[str, Any]", self._all[name]) if name else self.of(model, mode)

    def _name(self, model: Any, mode: str) -> str:
        return str(self.of(model, mode).get("$ref", "")).rpartition("/")[2]


def _operation(endpoint: Endpoint, schemas: _Schemas) -> Document:
    described = inspect.cleandoc(endpoint.handler.__doc__ or "").partition("\n")[2].strip()
    operation: Document = {
        "operationId": endpoint.operation_id,
        "summary": endpoint.summary,
        **({"description": described} if described else {}),
        "tags": [tag_of(endpoint)],
        "x-role": "nobody" if endpoint.role is NOBODY else str(endpoint.role),
        **({"security": []} if endpoint.role is NOBODY else {}),
        "parameters": [*_of_path(endpoint.path), *_of_query(endpoint, schemas), *_of_headers(endpoint)],
        "responses": {**_answers(endpoint, schemas), **_problems(endpoint)},
    }
    if endpoint.takes is not None:
        whole = schemas.whole(endpoint.takes, "validation")
        content = {"application/json": {"schema": schemas.of(endpoint.takes, "validation")}}
        operation["requestBody"] = {"required": bool(whole.get("required")), "content": content}
    return operation


def _of_path(path: str) -> Iterable[Document]:
    for name in IN_PATH.findall(path):
        kind = {"type": "string", "format": "uuid"} if name == "id" else {"type": "string"}
        yield {"name": name, "in": "path", "required": True, "schema": kind}


def _of_query(endpoint: Endpoint, schemas: _Schemas) -> Iterable[Document]:
    whole = schemas.whole(endpoint.query, "validation")
    required = whole.get("required", ())
    for name, schema in whole.get("properties", {}).items():
        kind = _without_null(schema)
        if name.endswith("."):  # any name that begins so
            values = {f"^{re.escape(name)}.": {"type": "string"}}
            kind = {"type": "object", "patternProperties": values, "additionalProperties": False}
            yield {"name": name.removesuffix("."), "in": "query", "style": "form", "explode": True, "schema": kind}
        else:
            several = {"style": "form", "explode": True} if kind.get("type") == "array" else {}
            yield {"name": name, "in": "query", "required": name in required, **several, "schema": kind}


def _of_headers(endpoint: Endpoint) -> Iterable[Document]:
    for name, meaning in endpoint.headers.items():
        yield {"name": name, "in": "header", "required": False, "description": meaning, "schema": {"type": "string"}}


def _without_null(schema: Mapping[str, Any]) -> Document:
    """Leave out what a query cannot say."""
    kind = {name: each for name, each in schema.items() if name != "title" and (name, each) != ("default", None)}
    if "anyOf" in kind:
        others = [each for each in kind.pop("anyOf") if each != {"type": "null"}]
        return {**kind, **others[0]} if len(others) == 1 else {**kind, "anyOf": others}
    return kind


def _answers(endpoint: Endpoint, schemas: _Schemas) -> Document:
    found: Document = {}
    for status, model in {endpoint.status: endpoint.gives, **endpoint.also}.items():
        headers = {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}}
        if has_etag(endpoint) and status == 200:
            headers["ETag"] = {"$ref": "#/components/headers/ETag"}
        answer: Document = {"description": _said(status), "headers": headers}
        if model is not None:
            answer["content"] = {endpoint.media: {"schema": schemas.of(model, "serialization")}}
        elif endpoint.media != "application/json" and status == 200:
            answer["content"] = {endpoint.media: {"schema": {"type": "string"}}}
        found[str(status)] = answer
    if has_etag(endpoint):
        found["304"] = {"description": "The answer has not changed since the `ETag` in `If-None-Match`."}
    return found


def has_etag(endpoint: Endpoint) -> bool:
    """Tell whether an answer has an `ETag`."""
    return not (endpoint.is_act or endpoint.is_secret) and endpoint.gives not in (None, str)


def _said(status: int) -> str:
    return {200: "Done.", 201: "Made.", 202: "Begun.", 204: "Done; there is nothing to say."}.get(status, "Answered.")


def _problems(endpoint: Endpoint) -> Document:
    return {str(status): {"$ref": f"#/components/responses/Problem{status}"} for status in problems_of(endpoint)}


def _problem(status: int, schemas: _Schemas) -> Document:
    codes = codes_of(status)
    headers = {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}}
    if status in AGAIN:
        headers["Retry-After"] = {"$ref": "#/components/headers/RetryAfter"}
    return {
        "description": f"{TITLES.get(status, 'Error')}: {', '.join(f'`{each}`' for each in codes)}.",
        "headers": headers,
        "content": {MEDIA_TYPE: {"schema": schemas.of(ProblemObject, "serialization")}},
        "x-codes": codes,
    }
