"""A blocking connect that ends by its deadline; psycopg's own counts whole seconds, at least two for each host."""

from __future__ import annotations

import selectors

import psycopg
from psycopg import pq
from psycopg.pq import ConnStatus, PollingStatus
from psycopg.pq.abc import PGconn

from holdfast.database.postgres.deadline import Deadline

EVENTS = {PollingStatus.READING: selectors.EVENT_READ, PollingStatus.WRITING: selectors.EVENT_WRITE}


def connect(hosts: list[str], deadline: Deadline) -> psycopg.Connection[tuple[object, ...]]:
    """Connect to the first of *hosts*, written as libpq wants them, that lets us; a silent one costs its share."""
    for left in range(len(hosts), 0, -1):
        try:
            return psycopg.Connection(establish(hosts[-left], deadline.share(left)))
        except psycopg.OperationalError:
            if left == 1:
                raise
    raise ValueError("no host to connect to")


def establish(host: str, deadline: Deadline) -> PGconn:
    """Have libpq connect, step by step."""
    pgconn = pq.PGconn.connect_start(host.encode())
    try:
        while (step := next_step(pgconn)) is not PollingStatus.OK:
            wait(pgconn.socket, EVENTS[step], deadline)
    except BaseException:
        pgconn.finish()
        raise
    pgconn.nonblocking = 1
    return pgconn


def next_step(pgconn: PGconn) -> PollingStatus:
    """Go as far as the server has answered; tell what to wait for next."""
    step = PollingStatus.FAILED
    if pgconn.status != ConnStatus.BAD:
        step = PollingStatus(pgconn.connect_poll())
    if step is PollingStatus.FAILED:
        raise psycopg.OperationalError(f"connection failed: {pgconn.get_error_message()}")
    return step


def wait(descriptor: int, event: int, deadline: Deadline) -> None:
    """Wait until the socket is ready."""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, event)
        if not selector.select(deadline.remaining()):
            raise psycopg.errors.ConnectionTimeout("the connection was not made in time")
