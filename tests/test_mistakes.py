"""What Holdfast says to typical mistakes of a new user: what happened, and then the line to write.

Somebody who had read the docs, and no code, wrote down the mistakes, the errors that the docs promise, and the parts of
a text that would help. The numbers are those of that list. Where a case differs from it, a comment says why.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from pydantic import BaseModel

import holdfast.sync
from holdfast import (
    ChainFailed,
    Context,
    DuplicateTask,
    Holdfast,
    InvalidAddress,
    InvalidId,
    InvalidInput,
    InvalidSettings,
    JobNotFound,
    Misuse,
    NotMigrated,
    Retry,
    Settings,
    StatusConflict,
    Tasks,
    TransactionRequired,
    Unavailable,
    UnknownMethod,
    UnknownTask,
    WaitTimeout,
    WrongConnection,
    WrongTask,
)
from tests.conftest import SCHEMA
from tests.support.conditions import until
from tests.support.processes import forked

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NOBODY = "01980f00-6e1c-7000-8000-5a1c2f9e0b77"

tasks = Tasks()


class Order(BaseModel):
    """What is packed."""

    id: int
    item: str


class Basket:
    """What cannot be stored."""


@tasks.task(name="greet")
async def greet(name: str) -> str:
    """Take one argument."""
    return f"Hello, {name}"


@tasks.task(name="add")
async def add(a: int, b: int = 0) -> int:
    """Take two."""
    return a + b


@tasks.task(name="send_receipt")
def send_receipt(order_id: int) -> str:
    """Take a number."""
    return f"receipt {order_id}"


@tasks.task(name="charge")
async def charge(ctx: Context, order_id: int) -> str:
    """Take a context."""
    return f"{ctx.job.id} {order_id}"


@tasks.task(name="pack")
def pack(order: Order) -> None:
    """Take a model."""


@tasks.task(name="ship")
def ship(to: str, basket: Any) -> None:
    """Take anything."""


@tasks.task(name="price")
def price(amount: float) -> None:
    """Take a number that may not be one."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """What a person does, the errors that may answer it, and what the text says and does not say."""

    number: int
    title: str
    make: Callable[..., Any]
    errors: tuple[type[BaseException], ...]
    says: tuple[str, ...]
    never_says: tuple[str, ...] = ()


class Mistakes(list[Mistake]):
    """A group of mistakes that are made in the same surroundings; called, it is the decorator that adds one."""

    def __call__(
        self, number: int, title: str, *says: str, errors: Any = Misuse, never_says: tuple[str, ...] = ()
    ) -> Callable[[Callable[..., Any]], None]:
        kinds = errors if isinstance(errors, tuple) else (errors,)
        return lambda make: self.append(Mistake(number, title, make, kinds, says, never_says))

    @property
    def params(self) -> list[Any]:
        """The cases of a test."""
        return [pytest.param(each, id=f"{each.number} {each.title}") for each in self]


def check(text: str, says: tuple[str, ...], never_says: tuple[str, ...]) -> None:
    assert not [each for each in says if each not in text], text
    assert not [each for each in never_says if each in text], text


@pytest.fixture
async def hf(tmp_path: Path, migrated_file: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Holdfast]:
    """The shop's Holdfast, on a SQLite file."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(migrated_file, tmp_path / "shop.db")
    made = Holdfast(str(tmp_path / "shop.db"), tasks=[tasks])
    yield made
    await made.close()
    made.sync.close()


CALLING = Mistakes()
"""A. Calling tasks; B. Starting them."""


# the value is not shown: an argument may be private, and an error is often logged
@CALLING(1, "wrong argument type", "send_receipt(", "order_id", "integer", errors=InvalidInput)
def _(hf: Holdfast) -> Any:
    return send_receipt(order_id="seven")  # type: ignore[arg-type]


@CALLING(2, "missing argument", "greet(", "missing", "name", "greet(name=", errors=InvalidInput)
def _(hf: Holdfast) -> Any:
    return greet()  # type: ignore[call-arg]


@CALLING(3, "unknown argument, a near one", "greet(", "'nmae'", "did you mean name", errors=InvalidInput)
def _(hf: Holdfast) -> Any:
    return greet(nmae="Ada")  # type: ignore[call-arg]


@CALLING(4, "unknown argument", "greet(", "'colour'", "name: str", errors=InvalidInput, never_says=("did you mean",))
def _(hf: Holdfast) -> Any:
    return greet(name="Ada", colour="red")  # type: ignore[call-arg]


@CALLING(
    5, "an option as an argument", "greet(", "'delay'", "option", "hf.start(greet(name=", "delay=60",
    errors=InvalidInput,
)  # fmt: skip
def _(hf: Holdfast) -> Any:
    return greet(name="Ada", delay=60)  # type: ignore[call-arg]


@CALLING(6, "ctx passed by the caller", "charge(order_id=", "ctx", "the worker", errors=(InvalidInput, Misuse))
def _(hf: Holdfast) -> Any:
    return charge(None, order_id=7)  # type: ignore[call-arg, arg-type]


@CALLING(7, "a model without a field", "pack(", "order.item", "missing", "Order", errors=InvalidInput)
def _(hf: Holdfast) -> Any:
    return pack(order={"id": 7})  # type: ignore[arg-type]


@CALLING(8, "input that is not JSON", "basket", "Basket", "JSON", "pydantic", errors=InvalidInput)
def _(hf: Holdfast) -> Any:
    return ship(to="Ada", basket=Basket())


@CALLING(9, "input that is NaN", "amount", "nan", "JSON", errors=InvalidInput)
def _(hf: Holdfast) -> Any:
    return price(amount=float("nan"))


@CALLING(10, "input that is too large", "greet", "1 MiB", "pass its key", errors=InvalidInput)
def _(hf: Holdfast) -> Any:
    return greet(name="x" * 2_000_000)


# "runs nothing": we say that it only builds a call
@CALLING(11, "await on the call", "await hf.start(greet(", "greet.run(", "starts no job")
async def _(hf: Holdfast) -> Any:
    return await greet(name="Ada")  # type: ignore[misc]


@CALLING(16, "add.delay()", "'add'", "delay", "await hf.start(add(", "hf.sync.start(add(", "delay=60",
         errors=AttributeError)  # fmt: skip
def _(hf: Holdfast) -> Any:
    return add.delay(a=1)  # type: ignore[attr-defined]


@CALLING(17, "add.apply_async()", "apply_async", "await hf.start(add(", "delay=", "run_at=", errors=AttributeError)
def _(hf: Holdfast) -> Any:
    return add.apply_async(args=[1], countdown=60)  # type: ignore[attr-defined]


@CALLING(18, "add.enqueue()", "enqueue", "await hf.start(add(", "hf.sync.start(add(", errors=AttributeError)
def _(hf: Holdfast) -> Any:
    return add.enqueue(a=1)  # type: ignore[attr-defined]


@CALLING(19, "add.send()", "send", "await hf.start(add(", "hf.sync.start(add(", errors=AttributeError)
def _(hf: Holdfast) -> Any:
    return add.send(1)  # type: ignore[attr-defined]


@CALLING(20, "the task instead of a call", "takes a call", "the task 'add'", "hf.start(add(a=1))")
async def _(hf: Holdfast) -> Any:
    return await hf.start(add, a=1)  # type: ignore[call-overload, misc]


@CALLING(21, "the task alone", "takes a call", "the task 'add'", "hf.start(add(a=")
async def _(hf: Holdfast) -> Any:
    return await hf.start(add)  # type: ignore[arg-type, var-annotated]


@CALLING(22, "the name of the task", "takes a call", "'add'", "hf.start(add(a=1))", "hf.call(")
async def _(hf: Holdfast) -> Any:
    return await hf.start("add", a=1)  # type: ignore[call-overload, misc]


@CALLING(23, "a plain function", "plain", "not a task", "@hf.task", "hf.start(plain(a=1))")
async def _(hf: Holdfast) -> Any:
    def plain(a: int) -> int:
        return a

    return await hf.start(plain, a=1)  # type: ignore[call-overload, misc]


@CALLING(24, "a coroutine", "coroutine", "plain", "not a task", "@hf.task")
async def _(hf: Holdfast) -> Any:
    async def plain(a: int) -> int:
        return a

    running = plain(1)
    try:
        return await hf.start(running)  # type: ignore[arg-type]
    finally:
        running.close()


@CALLING(25, "a list given to start", "one call", "list", "hf.start_many(")
async def _(hf: Holdfast) -> Any:
    return await hf.start([greet(name="Ada").consume(), greet(name="Eve").consume()])  # type: ignore[arg-type]


@CALLING(26, "hf.enqueue()", "enqueue", "hf.start(", "hf.sync.start(", errors=AttributeError)
async def _(hf: Holdfast) -> Any:
    return await hf.enqueue(greet(name="Ada").consume())  # type: ignore[attr-defined]


# a Misuse, as for every unknown keyword
@CALLING(27, "unknown option of start", "'dealy'", "did you mean delay", "run_at")
async def _(hf: Holdfast) -> Any:
    return await hf.start(greet(name="Ada"), dealy=60)  # type: ignore[call-arg]


@CALLING(155, "job_id= of RQ", "'job_id'", "did you mean id?")
async def _(hf: Holdfast) -> Any:
    return await hf.start(greet(name="Ada"), job_id="7")  # type: ignore[call-arg]


@CALLING(156, "retry= of RQ", "'retry'", "attempts=4")
async def _(hf: Holdfast) -> Any:
    return await hf.start(greet(name="Ada"), retry=3)  # type: ignore[call-arg]


@CALLING(157, "a function without @hf.task was called", "got 5", "put `@hf.task` above the function")
async def _(hf: Holdfast) -> Any:
    return await hf.start(5)  # type: ignore[arg-type]


@CALLING(158, "a word for a time", "run_at", "'tomorrow'", "datetime.now(UTC)", errors=InvalidInput,
         never_says=("tzinfo",))  # fmt: skip
async def _(hf: Holdfast) -> Any:
    return await hf.start(greet(name="Ada"), run_at="tomorrow")  # type: ignore[arg-type]


@CALLING(159, "a text for seconds", "delay", "'60'", "write delay=60", errors=InvalidInput)
async def _(hf: Holdfast) -> Any:
    return await hf.start(greet(name="Ada"), delay="60")  # type: ignore[arg-type]


@CALLING(28, "countdown= of Celery", "'countdown'", "delay=60", "run_at=")
async def _(hf: Holdfast) -> Any:
    return await hf.start(greet(name="Ada"), countdown=60)  # type: ignore[call-arg]


@CALLING(29, "unknown name, a near one", "'gret'", "did you mean 'greet'", "regist", errors=UnknownTask)
async def _(hf: Holdfast) -> Any:
    return await hf.start(hf.call("gret", {"name": "Ada"}))


@CALLING(
    30, "unknown name", "'zzz'", "@hf.task", "hf.declare(", "import",
    errors=UnknownTask, never_says=("did you mean",),
)  # fmt: skip
async def _(hf: Holdfast) -> Any:
    return await hf.start(hf.call("zzz", {}))


@CALLING(31, "naive datetime", "run_at", "timezone-aware", "tzinfo", "delay=", errors=InvalidInput)
async def _(hf: Holdfast) -> Any:
    return await hf.start(greet(name="Ada"), run_at=datetime(2030, 1, 1))  # noqa: DTZ001


@CALLING(32, "run_at as a text", "run_at", "timezone-aware datetime", "'tomorrow'", "delay=", errors=InvalidInput)
async def _(hf: Holdfast) -> Any:
    return await hf.start(greet(name="Ada"), run_at="tomorrow")  # type: ignore[arg-type]


@CALLING(33, "delay and run_at", "delay", "run_at", "only one", errors=InvalidInput)
async def _(hf: Holdfast) -> Any:
    return await hf.start(greet(name="Ada"), delay=60, run_at=datetime.now(UTC))


@CALLING(34, "negative delay", "delay", "negative", "-5", "leave", errors=InvalidInput)
async def _(hf: Holdfast) -> Any:
    return await hf.start(greet(name="Ada"), delay=-5)


@CALLING(35, "unique=5", "unique", "text", "Unique(", "5", errors=InvalidInput)
async def _(hf: Holdfast) -> Any:
    return await hf.start(greet(name="Ada"), unique=5)  # type: ignore[arg-type]


@CALLING(36, "unique=True", "unique", "key", "True", 'unique="', errors=InvalidInput)
async def _(hf: Holdfast) -> Any:
    return await hf.start(greet(name="Ada"), unique=True)  # type: ignore[arg-type]


@CALLING(37, "priority out of range", "priority", "-100", "100", "1000", errors=InvalidInput)
async def _(hf: Holdfast) -> Any:
    return await hf.start(greet(name="Ada"), priority=1000)


@CALLING(38, "empty lane", "lane", "empty", "200", "leave", errors=InvalidInput)
async def _(hf: Holdfast) -> Any:
    return await hf.start(greet(name="Ada"), lane="")


@CALLING(39, "lane too long", "lane", "at most 200", "201", errors=InvalidInput)
async def _(hf: Holdfast) -> Any:
    return await hf.start(greet(name="Ada"), lane="x" * 201)


@CALLING(40, "tags as one text", "tags", "list", 'tags=["nightly"]', errors=InvalidInput)
async def _(hf: Holdfast) -> Any:
    return await hf.start(greet(name="Ada"), tags="nightly")


@CALLING(
    41, "webhook to http://", "http://example.com/", "not https", "https://", "webhook_http=True",
    errors=InvalidAddress, never_says=("s3cret",),
)  # fmt: skip
async def _(hf: Holdfast) -> Any:
    return await hf.start(greet(name="Ada"), webhook="http://example.com/hooks/s3cret")


@CALLING(
    42, "a secret instead of its name", "names", "whsec_…", "webhook_secrets=", 'secrets=["',
    errors=InvalidInput, never_says=("MfKQ9r8",),
)  # fmt: skip
async def _(hf: Holdfast) -> Any:
    return await hf.webhooks.subscribe("https://example.com/hooks", secrets=[SECRET])


@CALLING(152, "arguments after the task", "got the task 'add'", "hf.start(add(1, b=2))")
async def _(hf: Holdfast) -> Any:
    await hf.start(add, 1, b=2)  # type: ignore[call-arg, arg-type]


@CALLING(152, "the same, blocking", "got the task 'add'", "hf.start(add(1))")
def _(hf: Holdfast) -> Any:
    hf.sync.start(add, 1)  # type: ignore[arg-type]


@CALLING(152, "something after the call", "one call", "start_many(", "delay=60")
async def _(hf: Holdfast) -> Any:
    await hf.start(add(a=1), 60)  # type: ignore[arg-type]


@CALLING(153, "no attempts", "attempts must be", "got 0", "first run counts", errors=InvalidInput)
async def _(hf: Holdfast) -> Any:
    await hf.start(add(a=1), attempts=0)


@CALLING(154, "lock=", "'lock'", "did you mean lane")
async def _(hf: Holdfast) -> Any:
    await hf.start(add(a=1), lock="a")  # type: ignore[call-arg]


@CALLING(154, "depends_on=", "'depends_on'", "blockers=[chain]")
async def _(hf: Holdfast) -> Any:
    await hf.start(add(a=1), depends_on=[])  # type: ignore[call-arg]


@pytest.mark.parametrize("mistake", CALLING.params)
async def test_a_wrong_call_is_answered_with_the_line_to_write(mistake: Mistake, hf: Holdfast) -> None:
    await expect(mistake, hf)


async def expect(mistake: Mistake, *given: Any) -> None:
    with pytest.raises(mistake.errors) as caught:
        await make(mistake, *given)
    check(str(caught.value), mistake.says, mistake.never_says)


async def make(mistake: Mistake, *given: Any) -> None:
    made = mistake.make(*given)
    if isinstance(made, Awaitable):
        await made


CONNECTING = Mistakes()
"""C. Connections and blocks; D. Databases and settings."""


@CONNECTING(48, "sqlite3 without BEGIN", "no transaction is open", "BEGIN IMMEDIATE", errors=TransactionRequired)
def _(hf: Holdfast, place: Path) -> Any:
    with connected(place / "shop.db") as connection:
        hf.sync.start(greet(name="Ada"), connection=connection)


# the files are not named: on a server nobody knows them
@CONNECTING(49, "another database", "another database", "connection", errors=WrongConnection)
def _(hf: Holdfast, place: Path) -> Any:
    hf.sync.open()
    with connected(place / "other.db") as connection:
        connection.execute("BEGIN IMMEDIATE")
        hf.sync.start(greet(name="Ada"), connection=connection)


@CONNECTING(
    50, "an address as the connection", "open connection", "text", "Django",
    errors=WrongConnection, never_says=("s3cret",),
)  # fmt: skip
def _(hf: Holdfast, place: Path) -> Any:
    hf.sync.start(greet(name="Ada"), connection="postgresql://app:s3cret@db/shop")


@CONNECTING(
    50, "the same, where nobody uses Django", "open connection", "text", "psycopg.connect(", "Django alias",
    errors=WrongConnection, never_says=("s3cret",),
)  # fmt: skip
def _(hf: Holdfast, place: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "django", raising=False)
        hf.sync.start(greet(name="Ada"), connection="postgresql://app:s3cret@db/shop")


@CONNECTING(51, "require_connection", "require_connection=True", "pass connection=", errors=TransactionRequired)
def _(hf: Holdfast, place: Path) -> Any:
    strict = Holdfast(str(place / "shop.db"), tasks=[tasks], require_connection=True)
    strict.sync.start(greet(name="Ada"))


@CONNECTING(55, "one slash", "postgres:/", "did you mean", "postgresql://", errors=InvalidSettings)
def _(hf: Holdfast, place: Path) -> Any:
    Holdfast("postgres:/app@db/shop")


@CONNECTING(56, "mysql://", "mysql", "SQLite", "postgresql://", errors=InvalidSettings)
def _(hf: Holdfast, place: Path) -> Any:
    Holdfast("mysql://app@db/shop")


@CONNECTING(57, "an address of SQLAlchemy", "postgresql+asyncpg", "postgresql://app@db/shop", "Holdfast(engine)",
         errors=InvalidSettings)  # fmt: skip
def _(hf: Holdfast, place: Path) -> Any:
    Holdfast("postgresql+asyncpg://app@db/shop")


@CONNECTING(58, "sqlite:///", "sqlite:///", "path", 'Holdfast("shop.db")', errors=InvalidSettings)
def _(hf: Holdfast, place: Path) -> Any:
    Holdfast("sqlite:///shop.db")


@CONNECTING(59, ":memory:", "':memory:'", "file", errors=InvalidSettings)
def _(hf: Holdfast, place: Path) -> Any:
    Holdfast(":memory:")


# the words in brackets are the driver's
@CONNECTING(61, "the server is down", "127.0.0.1", "onnection refused", "host and port", errors=Unavailable)
async def _(hf: Holdfast, place: Path) -> Any:
    async with Holdfast("postgresql://app@127.0.0.1:1/shop", deadline_seconds=0.5):
        pass


@CONNECTING(63, "no such directory", "/srv/nosuch/jobs.db", "directory", "does not exist", "mkdir",
         errors=(Unavailable, InvalidSettings))  # fmt: skip
def _(hf: Holdfast, place: Path) -> Any:
    Holdfast("/srv/nosuch/jobs.db").sync.open()


@CONNECTING(64, "a file of another kind", "not a SQLite", errors=(Unavailable, InvalidSettings))
def _(hf: Holdfast, place: Path) -> Any:
    (place / "notes.txt").write_text("hello " * 100)
    Holdfast(str(place / "notes.txt")).sync.open()


# an error, where the list accepts a warning: a database that nobody has named is made by accident
@CONNECTING(65, "Holdfast(None)", "HOLDFAST_DATABASE", "no database is given", 'Holdfast("', errors=InvalidSettings)
def _(hf: Holdfast, place: Path) -> Any:
    Holdfast(None)


@CONNECTING(66, "unknown setting", "'pool_sise'", "did you mean pool_size", errors=InvalidSettings)
def _(hf: Holdfast, place: Path) -> Any:
    Holdfast("shop.db", pool_sise=4)  # type: ignore[call-arg]


# the value is not shown: a setting may be a secret
@CONNECTING(67, "a setting with a wrong value", "pool_size", "greater than or equal to 1", errors=InvalidSettings)
def _(hf: Holdfast, place: Path) -> Any:
    Holdfast("shop.db", pool_size=0)


@CONNECTING(75, "with hf:", "async with hf:", "with hf.sync:", errors=(Misuse, TypeError))
def _(hf: Holdfast, place: Path) -> Any:
    with hf:  # type: ignore[attr-defined]
        pass


def connected(path: Path) -> Any:
    from contextlib import closing

    return closing(sqlite3.connect(path, isolation_level=None))


@pytest.mark.parametrize("mistake", CONNECTING.params)
async def test_a_wrong_connection_or_address_is_answered_with_the_right_one(
    mistake: Mistake, hf: Holdfast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_DATABASE", raising=False)
    await expect(mistake, hf, tmp_path)


ON_POSTGRES = Mistakes()
"""Mistakes that need a server."""


@ON_POSTGRES(45, "async connection given to hf.sync", "is async", "await hf.start(", "connection=",
         errors=WrongConnection)  # fmt: skip
async def _(url: str) -> Any:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        Holdfast(url, schema_name=SCHEMA, tasks=[tasks]).sync.start(greet(name="Ada"), connection=connection)


@ON_POSTGRES(46, "blocking connection given to hf", "is blocking", "hf.sync.start(", "connection=",
         errors=WrongConnection)  # fmt: skip
async def _(url: str) -> Any:
    with psycopg.connect(url) as connection:
        await Holdfast(url, schema_name=SCHEMA, tasks=[tasks]).start(greet(name="Ada"), connection=connection)


@ON_POSTGRES(47, "autocommit", "no transaction is open", "with connection.transaction():", errors=TransactionRequired)
def _(url: str) -> Any:
    with psycopg.connect(url, autocommit=True) as connection:
        Holdfast(url, schema_name=SCHEMA, tasks=[tasks]).sync.start(greet(name="Ada"), connection=connection)


@ON_POSTGRES(53, "no migration", "schema 0", "needs ", "holdfast migrate", errors=NotMigrated)
def _(url: str) -> Any:
    open_it(Holdfast(url, schema_name="nobody_migrated"))


@ON_POSTGRES(60, "wrong password", "password", '"nobody"', "HOLDFAST_DATABASE", errors=Unavailable,
         never_says=("wr0ng",))  # fmt: skip
def _(url: str) -> Any:
    server = urlsplit(url)
    open_it(Holdfast(f"postgresql://nobody:wr0ng@{server.hostname}:{server.port}{server.path}"))


@ON_POSTGRES(62, "no such database", "shpo", "createdb", "address", errors=Unavailable)
def _(url: str) -> Any:
    open_it(Holdfast(urlsplit(url)._replace(path="/shpo").geturl(), deadline_seconds=1))


def open_it(hf: Holdfast) -> None:
    try:
        hf.sync.open()
    finally:
        hf.sync.close()


@pytest.mark.parametrize("mistake", ON_POSTGRES.params)
async def test_a_mistake_with_a_server_is_answered_with_the_line_to_write(mistake: Mistake, empty_url: str) -> None:
    await expect(mistake, empty_url)


DEFINING = Mistakes()
"""E. Defining tasks."""


@DEFINING(77, "a lambda", "<lambda>", "cannot be a task", "def")
def _(hf: Holdfast) -> Any:
    hf.task(lambda url: None)


@DEFINING(78, "inside a function, for a child process", "inner", "child process", "module", 'run_in="process"')
def _(hf: Holdfast) -> Any:
    @hf.task(run_in="process")
    def inner(a: int) -> int:
        return a


@DEFINING(79, "a lambda for a child process", "<lambda>", "cannot be a task", "def")
def _(hf: Holdfast) -> Any:
    hf.task(run_in="process")(lambda a: a)


@DEFINING(80, "no annotation", "greet2", "name", "no annotation", "name: str")
def _(hf: Holdfast) -> Any:
    @hf.task
    def greet2(to: str, name) -> None:  # type: ignore[no-untyped-def]
        pass


@DEFINING(81, "ctx without its type", "charge2", "ctx: Context", "from holdfast import Context")
def _(hf: Holdfast) -> Any:
    @hf.task
    async def charge2(ctx, order_id: int) -> None:  # type: ignore[no-untyped-def]
        pass


@DEFINING(82, "the async context in a plain handler", "charge3", "holdfast.sync", "Context", "async def")
def _(hf: Holdfast) -> Any:
    @hf.task
    def charge3(ctx: Context, order_id: int) -> None:
        pass


@DEFINING(83, "ctx is not first", "charge4", "first", "ctx")
def _(hf: Holdfast) -> Any:
    @hf.task
    async def charge4(order_id: int, ctx: Context) -> None:
        pass


@DEFINING(84, "*args", "total", "*args", "by name", "list[")
def _(hf: Holdfast) -> Any:
    @hf.task
    def total(*args: int) -> None:
        pass


@DEFINING(85, "a method", "send", "method", "function")
def _(hf: Holdfast) -> Any:
    class Mailer:
        @hf.task
        def send(self, to: str) -> None:
            pass

    return Mailer


@DEFINING(86, "a generator", "pages", "generator", "return")
def _(hf: Holdfast) -> Any:
    @hf.task
    def pages(n: int) -> Iterator[int]:
        yield n


@DEFINING(87, "a name twice", "'greet'", "test_mistakes.py:", "name=", errors=DuplicateTask)
def _(hf: Holdfast) -> Any:
    @hf.task(name="greet")
    def hello(name: str) -> None:
        pass


@DEFINING(88, "an unknown option", "'retries'", "did you mean retry", "Retry(attempts=", errors=(Misuse, InvalidInput))
def _(hf: Holdfast) -> Any:
    hf.task(retries=3)  # type: ignore[call-overload]


@DEFINING(89, "retry=3", "retry", "got 3", "Retry(attempts=3)", errors=(Misuse, InvalidInput))
def _(hf: Holdfast) -> Any:
    @hf.task(retry=3)  # type: ignore[arg-type]
    def pay(order_id: int) -> None:
        pass


@DEFINING(90, "no attempts", "attempts", "at least 1", "got 0", "Retry.never()", errors=InvalidSettings)
def _(hf: Holdfast) -> Any:
    Retry(attempts=0)


@DEFINING(91, "a timeout that is a text", "timeout", "seconds", "'5'", "timeout=5", errors=(Misuse, InvalidInput))
def _(hf: Holdfast) -> Any:
    @hf.task(timeout="5")  # type: ignore[arg-type]
    def slow(n: int) -> None:
        pass


# as the other options of a worker: InvalidSettings, which is a UsageError as well
@DEFINING(92, "middleware=None", "middleware", "list", "None", "leave it out", errors=InvalidSettings)
def _(hf: Holdfast) -> Any:
    hf.worker(middleware=None)  # type: ignore[arg-type]


@DEFINING(92, "middleware=None of a task", "middleware", "list", "None", "leave it out", errors=InvalidInput)
def _(hf: Holdfast) -> Any:
    @hf.task(middleware=None)  # type: ignore[arg-type]
    def slow(n: int) -> None:
        pass


@DEFINING(93, "one function as middleware", "middleware", "list", "middleware=[", errors=InvalidSettings)
def _(hf: Holdfast) -> Any:
    hf.worker(middleware=print)  # type: ignore[arg-type]


@DEFINING(95, "phases as one text", "phases", "list", '("download",)', errors=(Misuse, InvalidInput))
def _(hf: Holdfast) -> Any:
    @hf.task(phases="download")
    def fetch(ctx: holdfast.sync.Context) -> None:
        pass


@DEFINING(107, "queues as one text", "queues", "list", "queues=['email']", errors=InvalidSettings)
def _(hf: Holdfast) -> Any:
    hf.worker(queues="email")


@DEFINING(108, "an option of a worker", "'concurency'", "did you mean concurrency")
def _(hf: Holdfast) -> Any:
    hf.worker(concurency=5)  # type: ignore[call-arg]


@DEFINING(109, "no slots", "concurrency", "1", "got 0", errors=InvalidSettings)
def _(hf: Holdfast) -> Any:
    hf.worker(concurrency=0)


@DEFINING(160, "acks_late= of Celery", "'acks_late'", "leave it out", never_says=("did you mean",))
def _(hf: Holdfast) -> Any:
    hf.task(acks_late=True)  # type: ignore[call-overload]


@DEFINING(161, "time_limit= of Celery", "'time_limit'", "did you mean timeout?")
def _(hf: Holdfast) -> Any:
    hf.task(time_limit=60)  # type: ignore[call-overload]


@DEFINING(147, "Retry(max=3)", "Retry() has no option 'max'", "attempts=4", "first, jitter")
def _(hf: Holdfast) -> Any:
    Retry(max=3)  # type: ignore[call-arg]


@DEFINING(147, "Retry(interval=…)", "'interval'", "did you mean first")
def _(hf: Holdfast) -> Any:
    Retry(interval=10)  # type: ignore[call-arg]


@DEFINING(147, "a misspelt field of Retry", "'atempts'", "did you mean attempts")
def _(hf: Holdfast) -> Any:
    Retry(atempts=10)  # type: ignore[call-arg]


@DEFINING(148, "bind=True", "'bind'", "ctx: Context")
def _(hf: Holdfast) -> Any:
    hf.task(bind=True)  # type: ignore[call-overload]


@DEFINING(149, "Settings(retry=…)", "retry is no setting", "Holdfast(database, retry=", errors=InvalidSettings)
def _(hf: Holdfast) -> Any:
    Settings(retry=Retry.never())  # type: ignore[call-arg]


@DEFINING(149, "a misspelt keyword of Holdfast", "'retrys'", "did you mean retry", errors=InvalidSettings)
def _(hf: Holdfast) -> Any:
    Holdfast("shop.db", retrys=3)  # type: ignore[call-arg]


@DEFINING(150, "a misspelt event in the settings", "webhook_events", "'job:faild'", "did you mean job:failed",
         errors=InvalidSettings, never_says=("at least 1 item",))  # fmt: skip
def _(hf: Holdfast) -> Any:
    Holdfast("shop.db", webhook_events=["job:faild"])  # type: ignore[list-item]


@DEFINING(150, "one event in the settings", 'write webhook_events=["job:failed"]', errors=InvalidSettings)
def _(hf: Holdfast) -> Any:
    Holdfast("shop.db", webhook_events="job:failed")  # type: ignore[arg-type]


@DEFINING(150, "one secret in the settings", 'write webhook_secrets={"shop": ', errors=InvalidSettings,
         never_says=(SECRET,))  # fmt: skip
def _(hf: Holdfast) -> Any:
    Holdfast("shop.db", webhook_secrets=SECRET)  # type: ignore[arg-type]


@pytest.mark.parametrize("mistake", DEFINING.params)
async def test_a_wrong_task_or_worker_is_answered_with_the_line_to_write(mistake: Mistake, hf: Holdfast) -> None:
    await expect(mistake, hf)


STEERING = Mistakes()
"""F. Results; G. Reading and steering."""


@STEERING(102, "no worker runs", "still pending after 0.05 s", "no worker", "holdfast worker", "not been cancelled",
         errors=WaitTimeout)  # fmt: skip
async def _(hf: Holdfast) -> Any:
    await (await hf.start(greet(name="Ada"))).result(timeout=0.05)


@STEERING(111, "a list given to cancel", "one job", "list", "hf.cancel_many(", errors=InvalidInput)
async def _(hf: Holdfast) -> Any:
    await hf.cancel([NOBODY, NOBODY])  # type: ignore[arg-type]


@STEERING(112, "unknown filter", "'taks'", "did you mean task", "queue")
async def _(hf: Holdfast) -> Any:
    await hf.list_jobs(taks="greet")  # type: ignore[call-arg]


@STEERING(113, "list_jobs(tags=…)", "'tags'", "did you mean tag")
async def _(hf: Holdfast) -> Any:
    await hf.list_jobs(tags="nightly")  # type: ignore[call-arg]


@STEERING(112, "unknown filter of chains", "'taks'", "did you mean task", "roots_only")
async def _(hf: Holdfast) -> Any:
    await hf.list_chains(taks="greet")  # type: ignore[call-arg]


@STEERING(112, "unknown filter of events", "'taks'", "did you mean tasks", "names")
def _(hf: Holdfast) -> Any:
    hf.events(taks="greet")  # type: ignore[call-arg]


@STEERING(112, "a filter of the jobs of a chain", "list_chain_jobs() has no option 'status'", "cursor, limit")
async def _(hf: Holdfast) -> Any:
    await hf.list_chain_jobs(NOBODY, status="failed")  # type: ignore[call-arg]


@STEERING(112, "a filter of dependents", "list_blocked_by() has no option 'status'", "cursor, limit")
async def _(hf: Holdfast) -> Any:
    await hf.list_blocked_by(NOBODY, status="failed")  # type: ignore[call-arg]


@STEERING(112, "a filter of a timeline", "timeline() has no option 'names'", "cursor, limit")
async def _(hf: Holdfast) -> Any:
    await hf.timeline(NOBODY, names=["job:failed"])  # type: ignore[call-arg]


@STEERING(112, "a filter of deliveries", "deliveries() has no option 'status'", "cursor, limit")
async def _(hf: Holdfast) -> Any:
    await hf.webhooks.deliveries(status="failed")  # type: ignore[call-arg]


@STEERING(114, "unknown status", "'done'", "completed", "scheduled", errors=InvalidInput)
async def _(hf: Holdfast) -> Any:
    await hf.list_jobs(status="done")


# subscriptions and deliveries have ids as well, so it is not called the id of a job
@STEERING(115, "an id that is none", "'42'", "not an id", "UUID", "chain.id", errors=InvalidId)
async def _(hf: Holdfast) -> Any:
    await hf.get_job("42")


@STEERING(116, "None as an id", "None", "not an id", "UUID", errors=InvalidId)
async def _(hf: Holdfast) -> Any:
    await hf.get_job(None)  # type: ignore[arg-type]


@STEERING(117, "a job that was rolled back", "no job", "rolled back", "not committed", "deleted", "connection=",
         errors=JobNotFound)  # fmt: skip
async def _(hf: Holdfast) -> Any:
    await hf.get_job(NOBODY)


@STEERING(118, "retry of a completed job", "is completed", "failed or cancelled", "start_again(",
         errors=StatusConflict)  # fmt: skip
async def _(hf: Holdfast) -> Any:
    chain = await hf.start(greet(name="Ada"))
    await hf.complete(greet, chain, "Hello")
    await hf.retry(chain)


@STEERING(119, "resume of a pending job", "is pending", "only paused jobs", errors=StatusConflict)
async def _(hf: Holdfast) -> Any:
    await hf.resume(await hf.start(greet(name="Ada")))


@STEERING(120, "complete with the wrong task", "'add'", "'greet'", errors=WrongTask)
async def _(hf: Holdfast) -> Any:
    await hf.complete(greet, await hf.start(add(a=1)), "x")


# from here on: what somebody met who used Holdfast for the first time, after other libraries
@STEERING(138, "a worker of the blocking face", "no method worker()", "async with hf, hf.worker()", "holdfast worker",
         errors=UnknownMethod)  # fmt: skip
def _(hf: Holdfast) -> Any:
    hf.sync.worker()  # type: ignore[attr-defined]


@STEERING(139, "run_worker", "no method run_worker()", "hf.worker()", "holdfast worker", errors=UnknownMethod)
def _(hf: Holdfast) -> Any:
    hf.run_worker()  # type: ignore[attr-defined]


@STEERING(140, "send_task", "no method send_task()", "hf.start(hf.call(", errors=UnknownMethod)
def _(hf: Holdfast) -> Any:
    hf.sync.send_task("greet")  # type: ignore[attr-defined]


@STEERING(141, "hf.configure", "no method configure()", "Holdfast(database", errors=UnknownMethod)
def _(hf: Holdfast) -> Any:
    hf.configure()  # type: ignore[attr-defined]


@STEERING(142, "task.configure", "no method configure()", "hf.start(greet(", "lane=", errors=UnknownMethod)
def _(hf: Holdfast) -> Any:
    greet.configure(lock="a")  # type: ignore[attr-defined]


@STEERING(143, "chain.get", "no get", "chain.result(timeout=", errors=UnknownMethod)
async def _(hf: Holdfast) -> Any:
    (await hf.start(greet(name="Ada"))).get()  # type: ignore[attr-defined]


@STEERING(144, "chain.state", "no state", "hf.get_job(chain).state", "chain.status", errors=UnknownMethod)
async def _(hf: Holdfast) -> Any:
    return (await hf.start(greet(name="Ada"))).state  # type: ignore[attr-defined]


@STEERING(145, "a misspelt event", "'job:faild'", "did you mean job:failed", "job:stale", errors=InvalidInput)
async def _(hf: Holdfast) -> Any:
    await hf.webhooks.subscribe("https://example.com/", events=["job:faild"])  # type: ignore[list-item]


@STEERING(146, "an empty name", "name must not be empty", "1 to 200", errors=InvalidInput)
async def _(hf: Holdfast) -> Any:
    await hf.webhooks.subscribe("https://example.com/", name="")


@STEERING(146, "a long name", "name must have at most 200 characters", "got 300", errors=InvalidInput)
async def _(hf: Holdfast) -> Any:
    await hf.webhooks.subscribe("https://example.com/", name="a" * 300)


@STEERING(146, "an id as a name", "name must not be an id", NOBODY, errors=InvalidInput)
async def _(hf: Holdfast) -> Any:
    await hf.webhooks.subscribe("https://example.com/", name=NOBODY)


@pytest.mark.parametrize("mistake", STEERING.params)
async def test_a_wrong_question_is_answered_with_the_right_one(mistake: Mistake, hf: Holdfast) -> None:
    await expect(mistake, hf)


def test_a_call_that_nobody_starts_warns() -> None:  # 12; "name=" is not known when it warns
    with pytest.warns(RuntimeWarning) as caught:
        greet(name="Ada")

    check(str(caught[0].message), ("never started", "await hf.start(greet(", "hf.sync.start("), ("Ada",))


async def test_a_start_that_nobody_awaits_warns(hf: Holdfast) -> None:  # 14; the first warning is Python's own
    texts: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_, **__: texts.append(str(message))
        hf.start(greet(name="Ada"))  # type: ignore[unused-coroutine]

    check(" ".join(texts), ("never awaited", "never started", "await hf.start(", "hf.sync.start("), ())


@dataclass(frozen=True, slots=True)
class Wrong:
    """A handler that goes wrong, and what the error of its job says."""

    number: int
    handler: Callable[..., Any]
    says: tuple[str, ...]


def returns_object() -> Any:
    return object()


def returns_another_type() -> int:
    return "many"  # type: ignore[return-value]


async def forgets_return(ctx: Context) -> str:
    ctx.continue_with(greet(name="Ada"))
    return "done"


async def returns_call() -> Any:
    return greet(name="Ada")


async def starts_in_block(ctx: Context) -> None:
    async with ctx.complete():
        await SHOP["hf"].start(greet(name="Ada"))


async def enters_no_block(ctx: Context) -> None:
    await ctx.complete().execute("SELECT 1")  # type: ignore[attr-defined]


async def runs_strange_phase(ctx: Context) -> None:
    await ctx.phase("uplaod", print)


SHOP: dict[str, Holdfast] = {}
WRONG = [
    Wrong(44, starts_in_block, ("inside ctx.complete()", "tx.start(", "hf.start()", "commits")),
    Wrong(52, enters_no_block, ("execute", "async with ctx.", "as tx")),  # which block it was is plain to see
    Wrong(94, runs_strange_phase, ("'uplaod'", "wrong", "download, encode", "phases=(")),
    Wrong(96, returns_object, ("wrong", "returned", "JSON", "pydantic")),
    Wrong(97, returns_another_type, ("wrong", "int", "annotation")),
    Wrong(98, forgets_return, ("did not return", "return ctx.continue_with(")),
    Wrong(99, returns_call, ("returned the call", "return ctx.continue_with(greet(")),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda each: f"{each.number} {each.handler.__name__}")
async def test_the_error_of_a_job_says_what_to_write_in_its_handler(
    wrong: Wrong, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SHOP, "hf", hf)
    phases = ("download", "encode") if wrong.number == 94 else ()
    task = hf.task(name="wrong", retry=Retry.never(), phases=phases)(wrong.handler)

    async with hf.worker():
        with pytest.raises(ChainFailed) as caught:
            await (await hf.start(task())).result(timeout=20)

    check(str(caught.value), wrong.says, ())


async def test_a_job_whose_arguments_no_longer_fit_says_so(hf: Holdfast) -> None:  # 100
    await hf.start(hf.call("greet", {"name": "Ada"}))
    later = Holdfast(hf.settings.database)

    @later.task(name="greet")
    async def changed(first: str, last: str) -> str:
        return first + last

    async with later, later.worker():
        job = (await later.list_jobs()).items[0]
        await until(lambda: later.sync.get_job(job.id).error is not None, "an attempt has failed", 20)

    # it is tried again, for an older worker may still have the code
    error = later.sync.get_job(job.id).error
    later.sync.close()
    check(str(error), ("greet", "signature", "first", "retry("), ())


async def test_the_error_of_a_failed_chain_says_what_failed_and_how_to_run_it_again(hf: Holdfast) -> None:  # 101
    @hf.task(name="pay", retry=Retry.never())
    async def pay() -> None:
        raise ValueError("no such order")

    async with hf.worker():
        with pytest.raises(ChainFailed) as caught:
            await (await hf.start(pay())).result(timeout=20)

    check(str(caught.value), ("failed", "ValueError: no such order", "retry("), ())


async def test_a_wait_in_a_queue_that_nobody_serves_says_which_ones_are_served(hf: Holdfast) -> None:  # 103
    async with hf.worker(queues=["email"]):
        await until(lambda: b"email" in served(hf), "the worker has said that it is there", 20)
        with pytest.raises(WaitTimeout) as caught:
            await (await hf.start(greet(name="Ada"), queue="emial")).result(timeout=0.05)

    says = ("still pending after 0.05 s", "'emial'", "'email'", "--queues", "not been cancelled")
    check(str(caught.value), says, ())


def served(hf: Holdfast) -> bytes:
    with connected(Path(hf.settings.database)) as connection:
        return str(connection.execute("SELECT facts FROM holdfast_worker").fetchall()).encode()


async def test_a_wait_for_a_slow_job_says_that_it_runs(hf: Holdfast) -> None:  # 105
    go_on = asyncio.Event()

    @hf.task(name="slow")
    async def slow() -> None:
        go_on.set()
        await asyncio.Event().wait()

    async with hf.worker(grace=0):
        chain = await hf.start(slow())
        await go_on.wait()
        with pytest.raises(WaitTimeout) as caught:
            await chain.result(timeout=0.05)

    check(str(caught.value), ("still running after 0.05 s", "timeout=", "not been cancelled"), ())


@dataclass(frozen=True, slots=True)
class Typed:
    """A command line, its exit code, and what it says on stderr."""

    number: int
    line: str
    code: int
    says: tuple[str, ...]
    never_says: tuple[str, ...] = ("Traceback",)


COMMANDS = [
    Typed(
        43,
        f"webhooks add https://example.com/hooks --database shop.db --secret {SECRET}",
        2,
        ("--secret", "name", "HOLDFAST_WEBHOOK_SECRETS"),
        ("MfKQ9r8",),
    ),
    Typed(121, "worker app", 2, ("'app'", "colon", "holdfast worker app:hf")),
    Typed(121, "worker app.hf", 2, ("'app.hf'", "colon", "holdfast worker app:hf`")),
    Typed(121, "worker holdfast.app", 2, ("colon", "holdfast worker holdfast.app:hf`")),
    Typed(122, "worker nosuch:hf", 2, ("'nosuch'", "no module", "director")),
    Typed(123, "worker app:nosuch", 2, ("'nosuch'", "did you mean app:hf")),
    Typed(124, "worker app:main", 2, ("app:main", "not a Holdfast object", "app:hf")),
    Typed(125, "worker shop/jobs.py", 2, ("shop/jobs.py", "import path", "holdfast worker shop.jobs:hf")),
    # the traceback of the module follows
    Typed(126, "worker broken:hf", 2, ("'broken'", "ZeroDivisionError", "broken.py", "line 1"), ()),
    Typed(127, "worker", 2, ("APP", "issing", "holdfast worker --help")),  # the help has the example
    Typed(128, "wroker app:hf", 2, ("'wroker'", "id you mean", "worker", "holdfast --help")),
    Typed(129, "worker app:hf --concurency 5", 2, ("--concurency", "id you mean '--concurrency'")),
    # exit code 2 and no file, as the list would prefer
    Typed(130, "migrate", 2, ("HOLDFAST_DATABASE", "no database is given", "--database")),
    Typed(131, "webhooks list", 2, ("--database", "HOLDFAST_DATABASE")),
    Typed(132, "migrate mysql://app@db/shop", 2, ("mysql", "SQLite", "postgresql://")),
    Typed(133, "watch 42 --database shop.db", 2, ("'42'", "not an id", "UUID")),
    Typed(134, f"watch {NOBODY} --database shop.db", 3, ("no job", "shop.db", "deleted")),
    Typed(151, "jobs", 2, ("'jobs'", "list_jobs(status=", "hf.sync.retry(id)", "holdfast watch")),
    Typed(151, "retry 42", 2, ("'retry'", "hf.sync.retry(id)")),
    Typed(137, "health /srv/health.json", 1, ("/srv/health.json", "o such file", "--health-file")),
]


@pytest.mark.parametrize("typed", COMMANDS, ids=lambda each: f"{each.number} {each.line[:40]}")
def test_a_wrong_command_line_is_answered_with_the_right_one(typed: Typed, tmp_path: Path, migrated_file: Path) -> None:
    write_shop(tmp_path, migrated_file)

    told = run(tmp_path, *typed.line.split())

    assert told.returncode == typed.code, told.stderr
    check(told.stderr, typed.says, typed.never_says)


def test_blanks_between_the_names_of_queues_are_answered_with_commas(tmp_path: Path, migrated_file: Path) -> None:
    write_shop(tmp_path, migrated_file)

    told = run(tmp_path, "worker", "app:hf", "--queues", "mail, a b")

    assert told.returncode == 2
    check(told.stderr, ("blanks", "--queues mail,a,b"), ("Traceback",))


def write_shop(directory: Path, migrated_file: Path) -> None:
    shutil.copy(migrated_file, directory / "shop.db")
    (directory / "app.py").write_text(APP)
    (directory / "broken.py").write_text("1 / 0\n")


APP = """
import time

from holdfast import Holdfast

hf = Holdfast("shop.db")

def main() -> None:
    pass

@hf.task(name="sleep")
def sleep() -> None:
    print("sleeps", flush=True)
    time.sleep(60)
"""


def run(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return forked.run(
        [forked.COMMAND, *words], cwd=directory, env=outside(), capture_output=True, text=True, timeout=60
    )


def outside() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}


def test_ctrl_c_twice_ends_a_worker_at_once_without_a_traceback(tmp_path: Path, migrated_file: Path) -> None:  # 136
    write_shop(tmp_path, migrated_file)
    start = "import app; app.hf.sync.start(app.sleep())"
    forked.run([sys.executable, "-c", start], cwd=tmp_path, env=outside(), timeout=60, check=True)

    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with forked.Popen([forked.COMMAND, "worker", "app:hf"], cwd=tmp_path, env=outside(), **pipes) as worker:
        try:
            assert worker.stdout.readline() == "sleeps\n"
            worker.send_signal(signal.SIGINT)
            first = next(line for line in worker.stderr if "drain" in line)
            worker.send_signal(signal.SIGINT)
            _, rest = worker.communicate(timeout=20)
        finally:
            worker.kill()

    assert worker.returncode == 130
    assert "Traceback" not in first + rest
    assert "A second signal came: the worker ends at once with exit code 130" in rest
