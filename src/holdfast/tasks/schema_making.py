"""Makes the JSON Schemas that are written down of a task, and marks in them what takes more than they say.

A stranger judges by them (`tasks/schemas`), and must never refuse what the task's own types take. Pydantic does not say
which validators run before a type's own, which other names a field has, or what a serializer has made of a type.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any, Literal

from pydantic import PydanticUserError, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from holdfast.tasks.schemas import TAKES_MORE

PLAIN = (str, int, float, type(None))
BEFORE = frozenset({"function-before", "function-wrap", "function-plain"})
UNSAID = frozenset({"complex", "generator"})
"""Types that take numbers, or all that can be gone through, where the schema says a text or an array."""
UNSAID_OF_OUTPUTS = frozenset({"decimal", "json", "chain"})
"""Types that are written otherwise than they are read."""


def schema_of(adapter: TypeAdapter[Any], mode: Literal["validation", "serialization"]) -> str:
    """Write the schema of a type as JSON; an empty one for a type that JSON Schema has no words for."""
    try:
        schema = adapter.json_schema(mode=mode, schema_generator=_MarkingSchema)
    except PydanticUserError:
        schema = {}
    return json.dumps(schema, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


class _MarkingSchema(GenerateJsonSchema):
    """Marks what takes more than its schema says."""

    # a default without JSON form is left out of the schema; nobody can act on a warning about it
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - as the parent has it

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._configs: list[Mapping[str, Any]] = [{}]

    def generate_inner(self, schema: Any) -> dict[str, Any]:
        """Make the schema of one type within another."""
        with self._config_of(schema):
            made = super().generate_inner(schema)
            if not _takes_more(schema, self._configs[-1], is_output=self.mode == "serialization"):
                return made
        if "ref" in schema and (definition := self.get_schema_from_definitions(made.get("$ref", ""))) is not None:
            definition[TAKES_MORE] = True  # others refer to it as well
        return {**made, TAKES_MORE: True}

    @contextmanager
    def _config_of(self, schema: Mapping[str, Any]) -> Iterator[None]:
        owner = schema.get("cls")
        own = getattr(owner, "model_config", getattr(owner, "__pydantic_config__", schema.get("config")))
        self._configs.append(own if isinstance(own, Mapping) else self._configs[-1])
        try:
            yield
        finally:
            self._configs.pop()


def _takes_more(schema: Mapping[str, Any], config: Mapping[str, Any], *, is_output: bool) -> bool:
    kind = schema["type"]
    if kind in UNSAID or (is_output and kind in UNSAID_OF_OUTPUTS):
        return True
    if kind in BEFORE and (is_output or "json_schema_input_schema" not in schema):
        return True
    if is_output and str(schema.get("serialization", {}).get("type", "")).startswith(("function", "format", "to-str")):
        return True
    match kind:
        case "str":
            return bool(schema.get("coerce_numbers_to_str", config.get("coerce_numbers_to_str")))
        case "enum":
            return _finds_more(schema["cls"]) or not all(isinstance(each.value, PLAIN) for each in schema["members"])
        case "literal":
            return not all(isinstance(each, (*PLAIN, Enum)) for each in schema["expected"])
        case "model":
            return bool(schema.get("custom_init"))
        case "list":
            return "on_error" in schema.get("items_schema", {})
        case "default":
            return bool(schema.get("on_error", "raise") != "raise")
        case "model-fields" | "typed-dict":
            return any(_has_other_names(each, config, is_output) for each in schema["fields"].values())
        case "dataclass-args":
            return any(_has_other_names(each, config, is_output) for each in schema["fields"])
    return False


def _finds_more(kind: type[Enum]) -> bool:
    """Tell whether an enum finds members itself for values that are none of theirs."""
    return getattr(kind._missing_, "__func__", None) is not getattr(Enum._missing_, "__func__", None)


def _has_other_names(field: Mapping[str, Any], config: Mapping[str, Any], is_output: bool) -> bool:
    """Tell whether a field is read by a name that the schema does not have, or need not be there."""
    read, written = field.get("validation_alias"), field.get("serialization_alias")
    if is_output and (read != written or config.get("json_schema_serialization_defaults_required")):
        return True
    by_name = config.get("populate_by_name") or config.get("validate_by_name")
    return (read is not None and bool(by_name)) or not isinstance(read, str | None)
