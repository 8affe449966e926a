"""docs/reference/openapi.json: what the HTTP API was when it was last looked at, and what a change would break.

`python -m tests.test_docs` writes it anew, unless clients would break by a change that CHANGELOG.md does not name: it
names one by the words that `breaking` gives, in backticks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.access import Role
from holdfast.http.endpoints import ENDPOINTS
from holdfast.http.openapi import document

ROOT = Path(__file__).resolve().parents[3]
FILE = ROOT / "docs" / "reference" / "openapi.json"
CHANGELOG = ROOT / "CHANGELOG.md"

Document = Mapping[str, Any]


def text() -> str:
    """Give the document as the file has it."""
    return _folded(document(ENDPOINTS), 3) + "\n"


def _folded(value: object, depth: int) -> str:
    """Write JSON with a line for each operation and each schema, so that differences can be read."""
    if depth == 0 or not isinstance(value, dict) or not value:
        return json.dumps(value, ensure_ascii=False)
    lines = [f"{json.dumps(name)}: {_folded(each, depth - 1)}" for name, each in value.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


def unnamed(old: Document, new: Document, changelog: str) -> list[str]:
    """Give what would break clients, and is not named in *changelog*."""
    return [each for each in breaking(old, new) if f"`{each}`" not in changelog]


def write() -> None:
    """Write the file anew; raise for a break that CHANGELOG.md does not name."""
    if FILE.exists():
        found = unnamed(json.loads(FILE.read_text("utf-8")), document(ENDPOINTS), CHANGELOG.read_text("utf-8"))
        if found:
            raise SystemExit(
                f"clients would break; name it in CHANGELOG.md: {', '.join(f'`{each}`' for each in found)}"
            )
    FILE.write_text(text(), "utf-8")


def breaking(old: Document, new: Document) -> list[str]:
    """Say what of *new* breaks who has used *old*: what is gone, what is needed now, and who may not any more."""
    return list(dict.fromkeys(_breaking(old, new)))


def _breaking(old: Document, new: Document) -> Iterator[str]:
    for path, methods in old["paths"].items():
        for method, before in methods.items():
            title = f"{method.upper()} {path}"
            after = new["paths"].get(path, {}).get(method)
            if after is None:
                yield title
                continue
            if _rank(after["x-role"]) > _rank(before["x-role"]):
                yield f"{title} x-role"
            yield from _of_parameters(title, before["parameters"], after["parameters"])
            taken = _schema(before.get("requestBody"), old), _schema(after.get("requestBody"), new)
            yield from _of_taken(title, *taken, old, new)
            for status, answer in before["responses"].items():
                if status >= "300":
                    continue
                if status not in after["responses"]:
                    yield f"{title} {status}"
                else:
                    given = _schema(answer, old), _schema(after["responses"][status], new)
                    yield from _of_given(f"{title} {status}", *given, old, new, ())


def _rank(role: str) -> int:
    return [*Role].index(Role(role)) if role in list(Role) else -1


def _of_parameters(title: str, old: list[Any], new: list[Any]) -> Iterator[str]:
    before, after = ({each["name"]: each for each in several} for several in (old, new))
    yield from (f"{title}?{name}" for name in before.keys() - after.keys())
    for name, each in after.items():
        if each.get("required") and not before.get(name, {}).get("required"):
            yield f"{title}?{name}"


def _of_taken(title: str, old: Document, new: Document, before: Document, after: Document) -> Iterator[str]:
    known, now = _keys(old, before), _keys(new, after)
    yield from (f"{title} {name}" for name in known.keys() - now.keys())
    yield from (f"{title} {name}" for name in set(new.get("required", ())) - set(old.get("required", ())))


def _of_given(
    place: str, old: Document, new: Document, before: Document, after: Document, above: tuple[str, ...]
) -> Iterator[str]:
    known, now = _keys(old, before), _keys(new, after)
    for name, each in known.items():
        if name not in now:
            yield f"{place} {'.'.join((*above, name))}"
        elif len(above) < 4:
            inner = _inner(each, before), _inner(now[name], after)
            yield from _of_given(place, *inner, before, after, (*above, name))


def _schema(part: Document | None, document: Document) -> Document:
    contents = list((part or {}).get("content", {}).values())
    return _resolved(contents[0]["schema"], document) if contents else {}


def _keys(schema: Document, document: Document) -> Document:
    """Give the keys of an object; of several kinds of objects those of all."""
    found: dict[str, Any] = {}
    for each in (schema, *schema.get("anyOf", ()), *schema.get("oneOf", ())):
        found.update(_resolved(each, document).get("properties", {}))
    return found


def _inner(schema: Document, document: Document) -> Document:
    """Give what stands in a list, or the schema itself."""
    found = _resolved(schema, document)
    return _resolved(found["items"], document) if "items" in found else found


def _resolved(schema: Document, document: Document) -> Document:
    if "$ref" not in schema:
        return schema
    found: Document = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return found
