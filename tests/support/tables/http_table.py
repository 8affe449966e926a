"""The tables of docs/reference/http.md, made from the document that the HTTP API gives of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.http.endpoint import NOBODY
from holdfast.http.endpoints import ENDPOINTS
from holdfast.http.openapi import OF_BODIES, USUAL, codes_of, document
from holdfast.http.problems import TITLES
from holdfast.metrics import METRICS

Table = Callable[[tuple[str, ...], Sequence[tuple[str, ...]]], str]
DOCUMENT: dict[str, Any] = document(ENDPOINTS)
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
OWN_ERRORS = frozenset({*USUAL, *OF_BODIES})


def resources_text() -> str:
    """Give every request: a section for each resource."""
    return "\n\n".join(_resource(each["name"]) for each in DOCUMENT["tags"])


def _resource(tag: str) -> str:
    shown = [
        _request(f"{method.upper()} {path}", operation)
        for path, methods in DOCUMENT["paths"].items()
        for method, operation in methods.items()
        if operation["tags"] == [tag]
    ]
    return "\n\n".join([f"## {tag.capitalize()}", *shown])


def _request(title: str, operation: Mapping[str, Any]) -> str:
    role = operation["x-role"]
    needed = "Needs no token." if role == NOBODY.value else f"Role: {role}."
    lines = [f"### `{title}`", "", f"{operation['summary']}. {needed}", ""]
    if parameters := [_parameter(each) for each in operation["parameters"] if each["in"] != "path"]:
        lines.append(f"- parameters: {', '.join(parameters)}")
    if body := operation.get("requestBody"):
        lines.append(f"- body: {_kind(body['content']['application/json']['schema'])}")
    for status, answer in operation["responses"].items():
        if status < "300":
            kinds = [_media(media, each["schema"]) for media, each in answer.get("content", {}).items()]
            lines.append(f"- {status}: {' or '.join(kinds) or 'nothing'}")
    own = [each for each in map(int, operation["responses"]) if each >= 400 and each not in OWN_ERRORS]
    if own:
        lines.append(f"- problems: {', '.join(map(str, own))}")
    return "\n".join(lines)


def _media(media: str, schema: Mapping[str, Any]) -> str:
    return _kind(schema) if media == "application/json" else f"`{media}`"


def _parameter(parameter: Mapping[str, Any]) -> str:
    name, schema = parameter["name"], parameter["schema"]
    if schema.get("type") == "object":
        return f"`{name}.<path>` (text)"
    if parameter["in"] == "header":
        return f"header `{name}`"
    needed = ", required" if parameter.get("required") else ""
    default = schema.get("default")
    said = "" if default in (None, [], "") else f", {_literal(default)} unless given"
    return f"`{name}` ({_kind(schema)}{needed}{said})"


def objects_text() -> str:
    """Give every object that is taken or given, with its keys."""
    return "\n\n".join(_object(name, schema) for name, schema in SCHEMAS.items())


def _object(name: str, schema: Mapping[str, Any]) -> str:
    meaning = " ".join(str(schema.get("description", "")).split())
    needed = schema.get("required", ())
    keys = [
        f"- `{key}`: {_kind(each)}{'' if key in needed or name.endswith('Object') else ' (may be left out)'}"
        for key, each in schema.get("properties", {}).items()
    ]
    return "\n".join([f"### {name}", "", meaning, "", *keys]).rstrip()


def _kind(schema: Mapping[str, Any]) -> str:
    """Say in words what a value is."""
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if several := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(map(_kind, several)))
    if "enum" in schema:
        return " or ".join(map(_literal, schema["enum"]))
    if "const" in schema:
        return _literal(schema["const"])
    match schema.get("type"):
        case "array":
            return f"list of {_kind(schema.get('items', {}))}"
        case "string":
            return {"date-time": "instant", "uuid": "id"}.get(str(schema.get("format")), "text")
        case "object" if isinstance(schema.get("additionalProperties"), dict):
            return f"object of {_kind(schema['additionalProperties'])}"
        case None:
            return "any JSON"
        case kind:
            return {"integer": "whole number", "boolean": "true or false", "null": "null"}.get(str(kind), str(kind))


def _literal(value: object) -> str:
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def problems_table(table: Table) -> str:
    """Give every status of a problem with its codes."""
    rows = [
        (str(status), TITLES[status], ", ".join(f"`{each}`" for each in codes_of(status)))
        for status in sorted(TITLES)
        if codes_of(status)
    ]
    return table(("status", "title", "codes"), rows)


def metrics_table(table: Table) -> str:
    """Give every metric."""
    return table(("name", "type", "labels", "meaning"), list(_metrics()))


def _metrics() -> Iterator[tuple[str, ...]]:
    for each in METRICS:
        total = "_total" if each.kind == "counter" else ""
        labels = ", ".join(f"`{label}`" for label in each.labels)
        yield f"`{each.name}{total}`", each.kind, labels or "-", each.meaning
