"""The connection parameters that we add to the user's address, each with its reason.

What the address says itself is kept. Behind a transaction pooler nothing may be left on a connection, since
the next transaction runs on another one: there the server's settings travel with each BEGIN, in the same
round trip.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import conninfo

from holdfast.database.migrations import LOCK_MILLISECONDS
from holdfast.errors import InvalidSettings
from holdfast.settings import Settings

CLIENT_PARAMETERS = {
    "fallback_application_name": "holdfast",  # people find us in pg_stat_activity
    "client_encoding": "utf8",  # a JSON text holds any alphabet, whatever the server's default is
    "target_session_attrs": "read-write",  # primary only: a standby in the address is passed over
    # a peer that is silently gone is found in 4.4 s; with the defaults not in 25 s
    "keepalives": "1",
    "keepalives_idle": "2",
    "keepalives_interval": "1",
    "keepalives_count": "2",
    "tcp_user_timeout": "4000",
}
PER_HOST = ("host", "hostaddr", "port")  # comma-separated, if there are several

# the isolation is said each time, which costs nothing (93 µs either way): a role's default may be another
WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED"
VIEW = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
ALONE = ""  # no BEGIN: a statement is its own transaction; a single start took 360 µs instead of 650

PLANS = {"plan_cache_mode": "force_custom_plan"}  # plans made while a table was tiny: 772 ms instead of 2.7

# 25 schemas in one text take 70 ms to plan and 5 to run. A plan that was made while tables were empty must not read all
# of them once they are not
GLANCES = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "jit": "off",  # a table without any index for it is read all the same, and looks so dear that it took seconds
    "lock_timeout": "200",
}

READS_NULLS = {"array_nulls": "on"}  # off, a NULL in our lists would be the text "NULL"

# A block's statements are few, small and always the same: to plan each anew was a fifth of the server's time for a job.
# There the server keeps plans as it does for everybody, but not for long, for the tables may have grown since; to plan
# them all anew costs a connection 0.6 ms a second.
FORGET_PLANS = "DISCARD PLANS"
PLANS_SECONDS = 1.0

# Behind a pooler a request to cancel comes to nothing once its connection is cut. The pooler hangs up on the server;
# this has the server look, on systems where it can, whether anybody is still there while a statement runs.
SEE_WHO_IS_GONE = (
    "SELECT CASE WHEN strpos(version(), 'linux') > 0"
    " THEN set_config('client_connection_check_interval', '1000', true) END"
)

# gone with the transaction: so we see whether a user to whom the connection was lent has ended it himself
MARK = "SET LOCAL holdfast.block = 'open'"
READ_MARK = "SELECT current_setting('holdfast.block', true)"

FORGOTTEN = frozenset(("26000",))  # what was prepared is there no more; a user may have done that, by a function

MIGRATION_SECONDS = 600.0  # it may build an index
PATIENT_SECONDS = 60.0  # what it sends may be large, and the network slow
GIVES_WAY_SECONDS = 0.25
CREATED_TWICE = frozenset(("23505", "42P06", "42P07"))  # IF NOT EXISTS fails if another creates it just now


@dataclass(frozen=True, slots=True)
class Plan:
    """A kind of transaction: how it begins, and which errors there say that another did the same just now.

    One that begins with nothing is a single statement.
    """

    begin: str
    collisions: frozenset[str] = frozenset()
    writes: bool = True
    keeps_plans: bool = False
    """Whether its connection keeps the plans of statements, so that it must forget them now and then."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server is and how we talk to it."""

    parameters: dict[str, Any]
    password: str
    prepare_threshold: int | None
    write: Plan
    alone: Plan
    """For operations that write by one statement."""
    view: Plan
    migration: Plan
    patient: Plan
    """For operations that may take longer than others."""
    giving_way: Plan
    """For operations that do not wait long for a lock."""

    @classmethod
    def of(cls, settings: Settings) -> Address:
        """Read the address in *settings* and add what it leaves open."""
        return cls._with(settings, server_settings(settings.deadline_seconds))

    @classmethod
    def for_blocks(cls, settings: Settings) -> Address:
        """Do the same for blocks, where users' own statements run: no other setting of ours is for these."""
        address = cls._with(settings, READS_NULLS)
        if not settings.transaction_pooler:
            return address
        return replace(address, write=Plan(f"{address.write.begin}; {SEE_WHO_IS_GONE}"))

    @classmethod
    def for_glances(cls, settings: Settings) -> Address:
        """Do the same for statements about many schemas: planned once, by indexes alone, and they wait for nobody."""
        address = cls._with(settings, server_settings(settings.deadline_seconds) | GLANCES)
        return address if address.prepare_threshold is None else replace(address, prepare_threshold=0)

    @classmethod
    def _with(cls, settings: Settings, ours: Mapping[str, str]) -> Address:
        given = parse(settings.database)
        timeout = {"connect_timeout": connect_timeout(settings, given)}
        parameters: dict[str, Any] = CLIENT_PARAMETERS | timeout | given
        write, alone, view, threshold = *(with_settings(each, ours) for each in (WRITE, WRITE, VIEW)), None
        if not settings.transaction_pooler:
            write, alone, view, threshold = WRITE, ALONE, VIEW, 5
            parameters["options"] = f"{options(ours)} {given.get('options', '')}".strip()
        briefly = {"lock_timeout": str(LOCK_MILLISECONDS)}
        migration = Plan(with_settings(WRITE, server_settings(MIGRATION_SECONDS) | briefly), CREATED_TWICE)
        patient = Plan(with_settings(WRITE, server_settings(PATIENT_SECONDS)))
        soon = server_settings(min(settings.deadline_seconds, GIVES_WAY_SECONDS))["lock_timeout"]
        giving_way = Plan(with_settings(WRITE, server_settings(settings.deadline_seconds) | {"lock_timeout": soon}))
        plans = Plan(write), Plan(alone), Plan(view, writes=False), migration, patient, giving_way
        return cls(parameters, given.get("password", ""), threshold, *plans)

    def hosts(self) -> list[str]:
        """Write the parameters once for each host, as libpq reads them."""
        lists = {name: self.parameters[name].split(",") for name in PER_HOST if name in self.parameters}
        number = max((len(each) for each in lists.values()), default=1)
        each_host = ({name: at(values, n) for name, values in lists.items()} for n in range(number))
        return [conninfo.make_conninfo(**(self.parameters | own)) for own in each_host]

    def scrub(self, text: str) -> str:
        """Take the password out of *text*."""
        return text.replace(self.password, "***") if self.password else text


def at(values: list[str], place: int) -> str:
    """Take the value for one host; a single one is for all."""
    return values[place] if len(values) > 1 else values[0]


def server_settings(seconds: float) -> dict[str, str]:
    """Name the server's settings for transactions that have *seconds* to end."""
    milliseconds = max(10, int(seconds * 1000))  # 0 would mean for ever
    return {
        "statement_timeout": str(milliseconds),  # nothing runs on for a client that has given up
        "lock_timeout": str(milliseconds * 9 // 10),  # a little sooner: a lock is `Busy`, not `Unavailable`
        "idle_in_transaction_session_timeout": str(milliseconds * 2),  # a stopped process lets go
        "default_transaction_isolation": "read committed",  # for who says no BEGIN; a role's default may be another
        **PLANS,
        **READS_NULLS,
    }


def block_plan(address: Address, lease_seconds: float) -> Plan:
    """Begin a block; a process that stands still in it lets go of it with its lease."""
    milliseconds = max(10, int(lease_seconds * 1000))
    begin = f"{address.write.begin}; SET LOCAL idle_in_transaction_session_timeout = {milliseconds}; {MARK}"
    return Plan(begin, FORGOTTEN, keeps_plans=address.prepare_threshold is not None)


def options(settings: Mapping[str, str]) -> str:
    """Write *settings* for the start of a connection: they cost no round trip."""
    escaped = {name: value.replace(" ", "\\ ") for name, value in settings.items()}
    return " ".join(f"-c {name}={value}" for name, value in escaped.items())


def with_settings(begin: str, settings: Mapping[str, str]) -> str:
    """Let *settings* hold for the one transaction that *begin* begins."""
    if not settings:
        return begin
    calls = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in settings.items())
    return f"{begin}; SELECT {calls}"


def connect_timeout(settings: Settings, given: Mapping[str, str]) -> str:
    """Leave time for the second host of two, if the first is silent (the driver knows no less than 2 s)."""
    hosts = 1 + given.get("host", "").count(",")
    return str(max(2, int(settings.deadline_seconds / hosts)))


def parse(address: str) -> dict[str, str]:
    """Take *address* apart; what is wrong with it is told without showing it, for it may hold a password."""
    try:
        found = conninfo.conninfo_to_dict(address)
    except psycopg.ProgrammingError:
        raise InvalidSettings(
            "the address of the database cannot be parsed; write postgresql://user:password@host:port/name, and "
            "percent-encode special characters of the password"
        ) from None
    return {name: str(value) for name, value in found.items() if value is not None}
