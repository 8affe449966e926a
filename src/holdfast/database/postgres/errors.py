"""What a driver's error means to us: what to do about it, and what to tell the caller."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

import psycopg

from holdfast.errors import Busy, MissingRight, StoreError, Unavailable


class Trouble(StrEnum):
    """The kinds of trouble that a database can give us; each says what a store may do about it."""

    COLLISION = "collision"
    """Rolled back in favour of somebody else: the same operation again."""
    LOST = "lost"
    """This connection is of no use, another may be: the same operation again, on a fresh one."""
    REFUSED = "refused"
    """The server does not want us; again would not help."""
    LOCKED = "locked"
    """Somebody held what we need for too long."""
    EXHAUSTED = "exhausted"
    """Out of time, disk or memory."""
    FORBIDDEN = "forbidden"
    """Our role has not the right; again would not help."""
    OTHER = "other"
    """The statement was refused for what it says."""
    MISTAKE = "mistake"
    """Our own SQL is wrong: shown as it is."""


BY_STATE = {
    "40001": Trouble.COLLISION,  # serialization_failure
    "40P01": Trouble.COLLISION,  # deadlock_detected
    "25006": Trouble.LOST,  # read_only_sql_transaction: it was the primary, and is no longer
    "25P03": Trouble.LOST,  # idle_in_transaction_session_timeout
    "57014": Trouble.EXHAUSTED,  # query_canceled, by statement_timeout
    "55P03": Trouble.LOCKED,  # lock_not_available, by lock_timeout
    "53300": Trouble.LOST,  # too_many_connections
    "3D000": Trouble.REFUSED,  # invalid_catalog_name
    "42501": Trouble.FORBIDDEN,  # insufficient_privilege
}
BY_CLASS = {
    "08": Trouble.LOST,  # connection_exception
    "57": Trouble.LOST,  # admin_shutdown, crash_shutdown, cannot_connect_now, database_dropped
    "53": Trouble.EXHAUSTED,  # disk_full, out_of_memory
    "28": Trouble.REFUSED,  # invalid_authorization, invalid_password
    "42": Trouble.MISTAKE,  # syntax_error, undefined_table
}

# A connection that is refused has no SQLSTATE, only a text. If the server speaks another language, we try until
# the deadline and then show what it said.
REFUSAL = re.compile(
    r"password|authentication failed|does not exist|no such (?:user|database)|pg_hba\.conf|not permitted"
    r"|permission denied|unsupported startup parameter"
)


def diagnose(error: psycopg.Error) -> Trouble:
    """Find the kind of trouble that *error* is."""
    if state := error.sqlstate:
        return diagnose_state(state)
    if isinstance(error, psycopg.OperationalError):
        return Trouble.REFUSED if REFUSAL.search(str(error)) else Trouble.LOST
    if isinstance(error, psycopg.InternalError):  # two answers to one COMMIT: the server's farewell, and a pooler's
        return Trouble.LOST
    return Trouble.MISTAKE if isinstance(error, psycopg.ProgrammingError) else Trouble.OTHER


def diagnose_state(state: str) -> Trouble:
    """Find the kind of trouble that an SQLSTATE stands for, whichever driver has told it."""
    return BY_STATE.get(state) or BY_CLASS.get(state[:2], Trouble.OTHER)


def no_answer(seconds: float) -> Unavailable:
    """Tell the caller that the deadline was missed, and nothing else is known."""
    return Unavailable(
        f"the database did not answer within {seconds:g} s: it is busy or away, or the network is too slow for this "
        "much data; try again"
    )


def failure(trouble: Trouble, text: str) -> StoreError:
    """Tell the caller of *trouble*, in whose words *text* is."""
    match trouble:
        case Trouble.LOCKED:
            return Busy(f"another transaction holds a lock that this needs ({text}); try again")
        case Trouble.COLLISION:
            return Busy(f"other transactions collided with this one at each try ({text}); try again")
        case Trouble.LOST:
            return Unavailable(
                f"the database cannot be reached ({text}); try again when it is back, or check the host and port in "
                "the address"
            )
        case Trouble.REFUSED:
            return Unavailable(f"the database refuses the connection ({text}); {_advice(text)}")
        case Trouble.EXHAUSTED:
            return Unavailable(f"the database ran out of time, disk or memory ({text}); try again")
        case Trouble.FORBIDDEN:
            return MissingRight(f"the user of the database lacks a right ({text}); grant it, or use another user")
        case _:
            return StoreError(f"the database refused a statement ({text})")


def _advice(refusal: str) -> str:
    if "password" in refusal:
        return "check the user and the password in the address, or in HOLDFAST_DATABASE"
    if re.search("database .* does not exist", refusal):
        return "create it, for example with `createdb`, or correct its name in the address"
    return "check the address and the rights of the user; behind a pooler set transaction_pooler=True"


@contextmanager
def translated() -> Iterator[None]:
    """Raise errors of ours for the driver's, around statements on a caller's connection; repeat nothing."""
    try:
        yield
    except psycopg.Error as error:
        if (trouble := diagnose(error)) is Trouble.MISTAKE:
            raise
        raise failure(trouble, first_line(error)) from error


def first_line(error: psycopg.Error) -> str:
    """Shorten what *error* says to its first line; the rest quotes SQL and values."""
    return (error.diag.message_primary or str(error)).strip().partition("\n")[0]
