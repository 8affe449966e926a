"""The table of endpoints, and what OpenAPI says of it: the same routes, a valid document, and nothing taken away.

What is really answered is held against the table by `api`, in every test that asks.
"""

from __future__ import annotations

import json
import re
from copy import deepcopy
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.http.app import asgi
from holdfast.http.endpoint import NOBODY
from holdfast.http.endpoints import ENDPOINTS
from holdfast.http.openapi import document
from tests.http.api import api
from tests.support.tables.openapi_file import CHANGELOG, FILE, breaking, text, unnamed

DOCUMENT: dict[str, Any] = document(ENDPOINTS)
WITHOUT_IDENTITY = {("POST", "/api/session"), ("GET", "/healthz"), ("GET", "/readyz")}


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method.upper(), path, operation)
        for path, methods in DOCUMENT["paths"].items()
        for method, operation in methods.items()
    ]


def test_the_document_is_openapi() -> None:
    from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR  # half a second, for each that collects

    OPENAPI_31_VALIDATOR.validate(json.loads(json.dumps(DOCUMENT)))


def test_what_is_referred_to_is_there() -> None:
    for kind, name in re.findall(r'"\$ref": "#/components/(\w+)/(\w+)"', json.dumps(DOCUMENT)):
        assert name in DOCUMENT["components"][kind]


async def test_the_routes_are_those_of_the_table_and_of_the_document(hf: Holdfast) -> None:
    table = {(each.method, each.path) for each in ENDPOINTS}

    assert {route.path for route in asgi(hf).routes} == {path for _, path in table}
    assert {(method, path) for method, path, _ in operations()} == table
    assert len(table) == len(ENDPOINTS)


def test_every_operation_has_a_name_of_its_own_and_a_summary() -> None:
    names = [operation["operationId"] for *_, operation in operations()]

    assert len(names) == len(set(names))
    assert [operation["operationId"] for *_, operation in operations() if not operation["summary"]] == []


def test_nobody_but_on_a_closed_list_is_served_without_an_identity() -> None:
    assert {(each.method, each.path) for each in ENDPOINTS if each.role is NOBODY} == WITHOUT_IDENTITY
    assert {(method, path) for method, path, each in operations() if each.get("security") == []} == WITHOUT_IDENTITY


def test_a_body_is_of_an_act() -> None:
    assert [each.path for each in ENDPOINTS if each.takes is not None and not each.is_act] == []


def test_every_problem_names_its_codes() -> None:
    assert [name for name, each in DOCUMENT["components"]["responses"].items() if not each["x-codes"]] == []


async def test_it_is_served_with_where_it_is_mounted(hf: Holdfast) -> None:
    async with api(hf) as client:
        found = (await client.get("/api/openapi.json")).json()

    assert found == json.loads(json.dumps(DOCUMENT)) | {"servers": [{"url": "/"}]}


def test_the_file_says_what_is_served() -> None:
    assert FILE.read_text("utf-8") == text(), "write it anew: .venv/bin/python -m tests.test_docs"


def test_a_release_breaks_no_client_without_saying_so() -> None:
    old = json.loads(FILE.read_text("utf-8"))

    assert unnamed(old, DOCUMENT, CHANGELOG.read_text("utf-8")) == []


def changed(path: str, method: str = "get") -> tuple[dict[str, Any], dict[str, Any]]:
    new = deepcopy(DOCUMENT)
    return new, new["paths"][path][method]


def without_a_path() -> dict[str, Any]:
    new = deepcopy(DOCUMENT)
    del new["paths"]["/api/workers"]
    return new


def without_a_parameter() -> dict[str, Any]:
    new, operation = changed("/api/lanes")
    operation["parameters"] = [each for each in operation["parameters"] if each["name"] != "prefix"]
    return new


def with_a_needed_parameter() -> dict[str, Any]:
    new, operation = changed("/api/lanes")
    operation["parameters"].append({"name": "why", "in": "query", "required": True, "schema": {"type": "string"}})
    return new


def with_another_role() -> dict[str, Any]:
    new, operation = changed("/api/workers")
    operation["x-role"] = "admin"
    return new


def without_a_key_of_an_answer() -> dict[str, Any]:
    new = deepcopy(DOCUMENT)
    del new["components"]["schemas"]["LaneObject"]["properties"]["depth"]
    return new


def with_a_needed_key_in_a_body() -> dict[str, Any]:
    new = deepcopy(DOCUMENT)
    new["components"]["schemas"]["LaneBody"]["required"] = ["if_head"]
    return new


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        (without_a_path, "GET /api/workers"),
        (without_a_parameter, "GET /api/lanes?prefix"),
        (with_a_needed_parameter, "GET /api/lanes?why"),
        (with_another_role, "GET /api/workers x-role"),
        (without_a_key_of_an_answer, "GET /api/lanes 200 items.depth"),
        (with_a_needed_key_in_a_body, "POST /api/lane/skip if_head"),
    ],
)
def test_what_would_break_a_client_is_found(change: Any, broken: str) -> None:
    new = change()

    assert broken in breaking(DOCUMENT, new)
    assert broken not in unnamed(DOCUMENT, new, f"- `{broken}` is not there any more")
    assert breaking(DOCUMENT, DOCUMENT) == []


def test_what_is_new_breaks_nobody() -> None:
    new, operation = changed("/api/workers")
    new["paths"]["/api/new"] = {"get": operation}
    new["components"]["schemas"]["LaneObject"]["properties"]["new"] = {"type": "string"}
    operation["parameters"].append({"name": "queue", "in": "query", "required": False, "schema": {"type": "string"}})

    assert breaking(DOCUMENT, new) == []
