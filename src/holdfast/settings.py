"""The settings: every knob with its unit, default and meaning; nobody else reads the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self, TypedDict

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from holdfast.errors import InvalidSettings

SCHEMA_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")


class Settings(BaseModel):
    """All settings of one `Holdfast`; each can also come from `HOLDFAST_<NAME>` by `Settings.from_environment()`.

    >>> Settings(database="jobs.db").synchronous
    'full'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    database: str = Field(
        default="holdfast.db",
        description="A SQLite file's path, or a postgresql:// address.",
        min_length=1,
        repr=False,  # it may hold a password
    )
    schema_name: str = Field(
        default="public", description="PostgreSQL: the schema that holds our tables. SQLite: not used."
    )
    synchronous: Literal["full", "normal"] = Field(
        default="full",
        description="SQLite: 'full' loses nothing at a power cut; 'normal' may lose the last commits, and is faster.",
    )
    deadline_seconds: Annotated[float, Field(gt=0, le=3600)] = Field(
        default=5.0, description="How long a start or a read may take before it raises; nothing waits for ever."
    )
    transaction_seconds: Annotated[float, Field(gt=0, le=3600)] = Field(
        default=5.0,
        description="SQLite: how long a block (prepare, complete, atomic) may keep the right to write before it is "
        "rolled back; the file's other writers wait for it.",
    )
    pool_size: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=8,
        description="PostgreSQL: how many connections each face may open, and as many again for blocks of handlers.",
    )
    transaction_pooler: bool = Field(
        default=False,
        description="PostgreSQL: the address leads to a transaction pooler such as PgBouncer; nothing is kept on the "
        "connection: no prepared statements, and time-outs are set in each transaction.",
    )
    listen_url: str | None = Field(
        default=None,
        description="PostgreSQL: an address that leads past a transaction pooler, for the one connection that listens; "
        "without it a process behind a pooler polls every 2 s.",
        repr=False,
    )
    require_connection: bool = Field(
        default=False, description="Refuse a start without connection=: every job commits with the caller's data."
    )

    @field_validator("schema_name")
    @classmethod
    def _is_plain(cls, name: str) -> str:
        if not SCHEMA_NAME.fullmatch(name) or name.startswith("pg_") or name == "information_schema":
            raise ValueError("a schema is named by lower-case letters, digits and _, and not pg_…")
        return name

    @property
    def is_postgres(self) -> bool:
        """Tell whether the database is a PostgreSQL address rather than a file."""
        return self.database.startswith(("postgresql://", "postgres://"))

    @classmethod
    def of(cls, **values: object) -> Self:
        """Check *values*; raise `InvalidSettings` that names every wrong one."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
            raise InvalidSettings(f"settings do not fit: {wrong}") from None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ, /, **values: object) -> Self:
        """Read `HOLDFAST_<NAME>` for every setting that *values* does not give."""
        found = {
            name: environment[f"HOLDFAST_{name.upper()}"]
            for name in cls.model_fields
            if f"HOLDFAST_{name.upper()}" in environment
        }
        return cls.of(**(found | values))


class SettingsOptions(TypedDict, total=False):
    """The settings as keywords of `Holdfast(database, …)`."""

    schema_name: str
    synchronous: Literal["full", "normal"]
    deadline_seconds: float
    transaction_seconds: float
    pool_size: int
    transaction_pooler: bool
    listen_url: str | None
    require_connection: bool
