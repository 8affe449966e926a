"""The settings: every knob with its unit, default and meaning; nobody else reads the environment."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias, TypedDict

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from holdfast.errors import InvalidSettings, InvalidSignature, did_you_mean, near_and_all, shown
from holdfast.models import DEFAULT_TRIGGERS, TRIGGERS, Trigger
from holdfast.retention import DAY, DEFAULTS, LONGEST
from holdfast.signing_keys import SECRET_PREFIX, secret_key
from holdfast.tenancy import LONGEST_CONTROL, OF_TENANT

SCHEMA_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")

NOT_FOR_TENANTS = "not_for_tenants"

OF_HOLDFAST = ("lease", "retry", "tasks", "transactions")
"""The keywords of `Holdfast` that are objects, and so no settings."""

EXAMPLES = {
    "webhook_events": '["job:failed"]',
    "webhook_secrets": '{"shop": "whsec_…"}',
    "webhook_ports": "[443, 8443]",
    "webhook_hosts": '["hooks.example.com"]',
    "webhook_private_addresses": '["10.1.0.0/16"]',
}
"""The settings that are no plain text or number: in the environment they are JSON."""

Network: TypeAlias = IPv4Network | IPv6Network


def masked(address: str) -> str:
    """Write an *address* without its password and its parameters."""
    scheme, _, rest = address.partition("://")
    # a password may hold any character, so only what follows the last @ is surely none of it
    credentials, at, place = rest.rpartition("@")
    user, colon, _ = credentials.partition(":")
    return f"{scheme}://{user}{':***' if colon else ''}{at}{place.partition('?')[0]}"


def address_complaint(database: str) -> str | None:
    """Say what is wrong with an address that is neither PostgreSQL's nor the path of a file."""
    if database.startswith((":memory:", "file:")):
        return f'{database!r} cannot be shared between threads and processes; give the path of a file, e.g. "jobs.db"'
    if begin := re.match(r"postgres(?:ql)?(?::/?(?!/)|//)", database):
        meant = masked(f"postgresql://{database[begin.end() :]}")
        return f"{begin[0]!r} does not begin an address of PostgreSQL; did you mean {meant!r}?"
    if re.search(r"\b(host|dbname|user|password)=", database):
        return "the database is a list of key=value; write postgresql://user:password@host:port/name"
    scheme, separator, rest = database.partition("://")
    dialect = scheme.partition("+")[0]
    if not separator:
        return None
    if dialect == "sqlite":
        return f"{scheme}:/// is a URL of SQLAlchemy; give the path alone: Holdfast({json.dumps(rest[1:])})"
    if dialect in ("postgresql", "postgres"):
        plain = masked(f"postgresql://{rest}")
        return f"{scheme}:// is a URL of SQLAlchemy; write {plain!r}, or pass the engine: Holdfast(engine)"
    return f"Holdfast does not support {scheme}; give the path of a SQLite file, or a postgresql:// address"


class Settings(BaseModel):
    """All settings of one `Holdfast`; each can also come from `HOLDFAST_<NAME>` by `Settings.from_environment()`.

    >>> Settings(database="jobs.db").synchronous
    'full'
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    database: str = Field(
        default="",  # there is none: whoever makes a store of it refuses, see `require_database`
        description="Required: the path of a SQLite file, or a postgresql:// address. A relative path belongs to the "
        "directory in which the process was started.",
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
        description="PostgreSQL: how many connections `hf` and `hf.sync` may each open, and as many again for blocks "
        "of handlers.",
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
    tenants: bool = Field(
        default=False,
        description="Have tenants: a schema or a file for each, beside this database, which keeps the list of them.",
    )
    migrations_url: str | None = Field(
        default=None,
        description="PostgreSQL: the address by which tables and schemas are made, changed and removed, with a role "
        "that may do so; without it `database` is used. The role of `database` is then granted what it needs.",
        repr=False,
    )
    require_connection: bool = Field(
        default=False,
        description="Refuse every verb on jobs that writes without connection=: it commits with the caller's data.",
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
    delete_journal_after_seconds: Annotated[float, Field(ge=0, le=LONGEST)] | None = Field(
        default=None,
        description="How long after its last entry the journal of a job is deleted whose chain has ended; None, in the "
        "environment `never`: it goes with its job.",
    )
    delete_audit_after_seconds: Annotated[float, Field(ge=0, le=LONGEST)] | None = Field(
        default=400 * DAY,
        description="How long entries of the audit are kept, of what is done by `hf.acting(…)`; None, in the "
        "environment `never`: for ever.",
    )
    webhook: str | None = Field(
        default=None,
        description="The address that events of all jobs are posted to: the subscription `holdfast.settings`, which is "
        "written when a program with another address opens. An empty text removes it; None leaves it as it is.",
        max_length=2_000,
        repr=False,  # it may hold what only the receiver may know
    )
    webhook_events: Annotated[tuple[Trigger, ...], Field(min_length=1)] = Field(
        default=DEFAULT_TRIGGERS, description="The events that are posted to `webhook`. In the environment it is JSON."
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

    if not TYPE_CHECKING:  # type checkers know the fields

        def __init__(self, **values: object) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise InvalidSettings("; ".join(map(self._complaint, error.errors()))) from None

    @field_validator("webhook_secret")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if name.startswith(SECRET_PREFIX):
            raise ValueError("it must be the name of a secret, and this is a secret; put it into webhook_secrets")
        return name

    @field_validator("webhook_secrets", mode="before")
    @classmethod
    def _as_lists(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {name: (each,) if isinstance(each, str | SecretStr) else each for name, each in value.items()}

    @field_validator("webhook_events", mode="before")
    @classmethod
    def _are_events(cls, value: Any) -> Any:
        """Name the event that there is none of, before pydantic counts the others."""
        for each in value if isinstance(value, list | tuple) else ():
            if isinstance(each, str) and each not in TRIGGERS:
                raise ValueError(f"there is no event {shown(each)}{near_and_all(each, TRIGGERS, 'the events are')}")
        return value

    @field_validator(*EXAMPLES, mode="before")
    @classmethod
    def _from_json(cls, value: object, info: ValidationInfo) -> object:
        """Read what comes from the environment, where all is text; of what is done before, the last comes first."""
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError:
            example = EXAMPLES[str(info.field_name)]
            raise ValueError(f"write {info.field_name}={example}, and in the environment the same as JSON") from None

    @field_validator("webhook_secrets")
    @classmethod
    def _are_secrets(cls, value: dict[str, tuple[SecretStr, ...]]) -> dict[str, tuple[SecretStr, ...]]:
        try:
            for secret in [one for several in value.values() for one in several]:
                secret_key(secret.get_secret_value())
        except InvalidSignature as error:
            raise ValueError(str(error)) from None
        if not all(value.values()):
            raise ValueError("a name has no secret; remove the name")
        return value

    @field_validator("schema_name")
    @classmethod
    def _is_plain(cls, name: str) -> str:
        if not SCHEMA_NAME.fullmatch(name) or name.startswith("pg_") or name == "information_schema":
            raise ValueError("the name of a schema has lower-case letters, digits and _, and does not begin with pg_")
        return name

    @field_validator("tenants")
    @classmethod
    def _leaves_room_for_their_names(cls, tenants: bool, info: ValidationInfo) -> bool:
        # the value that is wrong is that of another setting than this one
        schema_name = info.data.get("schema_name", "")
        if tenants and len(schema_name) > LONGEST_CONTROL:
            raise PydanticCustomError(
                NOT_FOR_TENANTS, f"with tenants it has at most {LONGEST_CONTROL} characters; shorten it"
            )
        if tenants and OF_TENANT in f"{schema_name}_":  # the tenant of another schema may have the same place
            raise PydanticCustomError(
                NOT_FOR_TENANTS, f"with tenants it neither contains {OF_TENANT} nor ends in _t; choose another"
            )
        return tenants

    @field_validator(
        "stale_after_seconds",
        "delete_after_seconds",
        "delete_journal_after_seconds",
        "delete_audit_after_seconds",
        mode="before",
    )
    @classmethod
    def _may_be_never(cls, value: object) -> object:
        return None if value == "never" else value

    @property
    def is_postgres(self) -> bool:
        """Tell whether the database is a PostgreSQL address rather than a file."""
        return self.database.startswith(("postgresql://", "postgres://"))

    @property
    def shown_database(self) -> str:
        """Where the database is, for people: the whole path of a file, or an address without its password."""
        return masked(self.database) if "://" in self.database else os.path.abspath(self.database)  # noqa: PTH100

    def require_database(self, advice: str = "") -> Self:
        """Raise `InvalidSettings` if no database is given; *advice* says where else a caller can name one."""
        if self.database:
            return self
        where = advice or 'pass its address, e.g. Holdfast("jobs.db") or Holdfast("postgresql://user@host/name")'
        raise InvalidSettings(f"no database is given; {where}, or set the environment variable HOLDFAST_DATABASE")

    @classmethod
    def of(cls, **values: object) -> Self:
        """Check *values*; raise `InvalidSettings` that names every wrong one."""
        return cls.model_validate(values)

    @classmethod
    def _complaint(cls, details: ErrorDetails) -> str:
        """Say what is wrong with one setting, without its value, which may be a secret."""
        name = "schema_name" if details["type"] == NOT_FOR_TENANTS else ".".join(map(str, details["loc"]))
        if details["type"] == "extra_forbidden":
            if name in OF_HOLDFAST:
                return f"{name} is no setting, but a keyword of Holdfast; write Holdfast(database, {name}=…)"
            return f"there is no setting {shown(name)}{did_you_mean(name, [*cls.model_fields, *OF_HOLDFAST])}"
        text = details["msg"].removeprefix("Value error, ")
        return f"the setting {name} has a wrong value: {text[:1].lower()}{text[1:]}"

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
    tenants: bool
    migrations_url: str | None
    require_connection: bool
    retention: bool
    stale_after_seconds: float | None
    delete_after_seconds: float | None
    delete_journal_after_seconds: float | None
    delete_audit_after_seconds: float | None
    webhook: str | None
    webhook_events: Sequence[Trigger]
    webhook_secrets: Mapping[str, str | Sequence[str]]
    webhook_secret: str
    webhook_compatible_signature: bool
    webhook_http: bool
    webhook_ports: Sequence[int] | None
    webhook_hosts: Sequence[str]
    webhook_private_addresses: bool | Sequence[str | Network]
    webhook_attempts: int
    webhook_retry_seconds: float
