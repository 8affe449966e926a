"""The settings: every knob with its unit, default and meaning; nobody else reads the environment."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Any, Literal, Self, TypeAlias, TypedDict

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator

from holdfast.errors import InvalidSettings, InvalidSignature
from holdfast.retention import DEFAULTS, LONGEST

SECRET_PREFIX = "whsec_"  # noqa: S105 - it marks one
LEAST_SECRET_BYTES, MOST_SECRET_BYTES = 24, 64
SCHEMA_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")

Network: TypeAlias = IPv4Network | IPv6Network


def secret_key(secret: str) -> bytes:
    """Read the key out of *secret*, which signs webhooks, or raise `InvalidSignature`, which does not repeat it.

    A plain text is refused: what another system has as one is written `whsec_` and its base64, and signs as before.
    """
    text = secret.removeprefix(SECRET_PREFIX)
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True) if text != secret else b""
    except ValueError:
        key = b""
    if not LEAST_SECRET_BYTES <= len(key) <= MOST_SECRET_BYTES:
        raise InvalidSignature("secret")
    return key


class Settings(BaseModel):
    """All settings of one `Holdfast`; each can also come from `HOLDFAST_<NAME>` by `Settings.from_environment()`.

    >>> Settings(database="jobs.db").synchronous
    'full'
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

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
    retention: bool = Field(
        default=True,
        description="Workers: mark what has ended long ago as stale, and delete it later; hf.retain() does so when "
        "called.",
    )
    stale_after_seconds: Annotated[float, Field(ge=0, le=LONGEST)] | None = Field(
        default=DEFAULTS.stale,
        description="How long after its end a chain becomes stale, unless its task says otherwise; None, in the "
        "environment `never`: it does not.",
    )
    delete_after_seconds: Annotated[float, Field(ge=0, le=LONGEST)] | None = Field(
        default=DEFAULTS.delete,
        description="How long after it became stale a chain is deleted, unless its task says otherwise; None, in the "
        "environment `never`: it is not.",
    )
    webhook_secrets: dict[str, tuple[SecretStr, ...]] = Field(
        default={},
        description="Workers: the secrets that sign webhooks, by the names that subscriptions use; each `whsec_…`, or "
        "a list of them while one is rotated. In the environment it is JSON.",
        repr=False,
    )
    webhook_secret: str = Field(
        default="default",
        description="Workers: the name of the secret that signs where none is named, as for a job's own webhook; if "
        "there is no such secret, nothing is signed.",
    )
    webhook_compatible_signature: bool = Field(
        default=True,
        description="Workers: send the header X-JobQueue-Signature too, which does not protect against replay.",
    )
    webhook_http: bool = Field(
        default=False, description="Let webhooks go to http:// addresses: anybody on the way can read them."
    )
    webhook_ports: tuple[Annotated[int, Field(ge=1, le=65_535)], ...] | None = Field(
        default=(443, 80), description="The ports that webhooks may go to; None, in the environment null, allows all."
    )
    webhook_hosts: tuple[str, ...] = Field(
        default=(),
        description="The hosts that webhooks may go to, such as hooks.example.com or *.example.com; none allows all.",
    )
    webhook_private_addresses: bool | tuple[Network, ...] = Field(
        default=False,
        description="Let webhooks go to addresses that are not public: True, for development, or a list of networks "
        "such as 10.1.0.0/16.",
    )
    webhook_attempts: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=12, description="Workers: how often a webhook is tried, the first time included."
    )
    webhook_retry_seconds: Annotated[float, Field(gt=0, le=14_400)] = Field(
        default=5.0,
        description="Workers: how long the second try waits for; each later one waits three times as long, up to 4 h.",
    )

    @field_validator("webhook_secret")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if name.startswith(SECRET_PREFIX):
            raise ValueError("it is the name of a secret, and this is one; put it into webhook_secrets")
        return name

    @field_validator("webhook_secrets", mode="before")
    @classmethod
    def _as_lists(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {name: (each,) if isinstance(each, str | SecretStr) else each for name, each in value.items()}

    @field_validator("webhook_secrets", "webhook_ports", "webhook_hosts", "webhook_private_addresses", mode="before")
    @classmethod
    def _from_json(cls, value: object) -> object:
        """Read what comes from the environment, where all is text; of what is done before, the last comes first."""
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError:
            raise ValueError("in the environment it is written as JSON") from None

    @field_validator("webhook_secrets")
    @classmethod
    def _are_secrets(cls, value: dict[str, tuple[SecretStr, ...]]) -> dict[str, tuple[SecretStr, ...]]:
        try:
            for secret in [one for several in value.values() for one in several]:
                secret_key(secret.get_secret_value())
        except InvalidSignature as error:
            raise ValueError(str(error)) from None
        if not all(value.values()):
            raise ValueError("a name without a secret signs nothing; leave it out")
        return value

    @field_validator("schema_name")
    @classmethod
    def _is_plain(cls, name: str) -> str:
        if not SCHEMA_NAME.fullmatch(name) or name.startswith("pg_") or name == "information_schema":
            raise ValueError("a schema is named by lower-case letters, digits and _, and not pg_…")
        return name

    @field_validator("stale_after_seconds", "delete_after_seconds", mode="before")
    @classmethod
    def _may_be_never(cls, value: object) -> object:
        return None if value == "never" else value

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
    retention: bool
    stale_after_seconds: float | None
    delete_after_seconds: float | None
    webhook_secrets: Mapping[str, str | Sequence[str]]
    webhook_secret: str
    webhook_compatible_signature: bool
    webhook_http: bool
    webhook_ports: Sequence[int] | None
    webhook_hosts: Sequence[str]
    webhook_private_addresses: bool | Sequence[str | Network]
    webhook_attempts: int
    webhook_retry_seconds: float
