"""Tenants: their names, hosts and places, and the registry's row as lists show it.

A name that comes from outside is checked here first. What becomes part of SQL or of a path is the place, which follows
from the name by a rule: one that does not is never used, whoever has written it into the registry.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias, get_args

from holdfast.errors import InvalidInput, got

NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")
HOST = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")
NOT_NAMES = frozenset({"public", "information_schema"})
LONGEST_CONTROL = 20
OF_TENANT = "_t_"
"""Between the schema of the control place, whose name does not contain it, and the name of a tenant."""
LONGEST_PLACE = 54  # the channel of hints is `holdfast_` and the place, and an identifier has 63 bytes

TenantState: TypeAlias = Literal["creating", "active", "suspended", "dropping"]
TENANT_STATES: tuple[TenantState, ...] = get_args(TenantState)


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantInfo:
    """A tenant, as the registry has it."""

    name: str
    place: str
    """Where its tables are: a schema of PostgreSQL, or the name of a file."""
    host: str | None
    """The host name by which HTTP finds it."""
    state: TenantState
    """`creating` and `dropping` are what an interrupted call leaves behind: the same call goes on from there."""
    created_at: datetime
    changed_at: datetime
    """When its state last changed."""
    changed_by: str | None
    reason: str | None
    """Why it was changed."""
    trouble: str | None
    """Why workers leave it out at the moment; None if they do not."""
    trouble_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantsMigrated:
    """What `hf.tenants.migrate()` has done."""

    taken: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The steps that were taken, by tenant; none for one that was up to date."""
    failed: dict[str, str] = field(default_factory=dict)
    """Why a tenant could not be migrated; the same call tries these again."""


class MigrationProgress(NamedTuple):
    """How far `hf.tenants.migrate()` has come: the tenant that was just done, and the count."""

    name: str
    taken: tuple[str, ...]
    """The steps that were taken there."""
    failure: str | None
    """Why it could not be migrated; None if it could."""
    done: int
    of: int


def check_tenant_name(name: object) -> str:
    """Give *name*, or raise `InvalidInput` if no tenant can be called so."""
    if not isinstance(name, str) or not NAME.fullmatch(name) or name in NOT_NAMES or name.startswith("pg_"):
        raise InvalidInput(
            f"the name of a tenant begins with a letter from a to z and has at most 31 lower-case letters, digits and "
            f"_, {got(name)}; names that begin with pg_, public and information_schema are PostgreSQL's",
            "name",
        )
    return name


def check_host(host: object) -> str:
    """Give *host* as it is stored, in lower case and without a port; or raise `InvalidInput`."""
    if isinstance(host, str):
        bare = re.sub(r":[0-9]{1,5}\Z", "", host.lower()).removesuffix(".")
        if HOST.fullmatch(bare):
            return bare
    raise InvalidInput(
        f"host must be a host name such as acme.example.com, {got(host)}; write other alphabets as xn--…", "host"
    )


def schema_of(control: str, name: str) -> str:
    """Name the schema of a tenant beside the schema *control*."""
    return f"{control}{OF_TENANT}{check_tenant_name(name)}"


def file_of(name: str) -> str:
    """Name the file of a tenant, in the directory that `directory_of` names."""
    return f"{check_tenant_name(name)}.db"


def directory_of(control_file: str) -> str:
    """Name the directory of the tenants' files beside the file *control_file*.

    By its whole name: a copy such as `app.bak` must not share the tenants of `app.db`, and drop them.
    """
    return f"{control_file}.tenants"
