"""Hints on PostgreSQL: one connection that LISTENs, in a thread of its own, and hears itself or is not trusted.

All schemas that one process uses on a server share that connection, each with a channel of its own.

Behind a transaction pooler LISTEN succeeds and what others send never comes. So the listener also listens on a channel
that only it knows, and sends itself a word there: at the beginning, and every ten seconds. Unless it hears that within
five it is deaf, those who listen go back to their short poll, and it connects anew. The same word, sent behind the
LISTEN of a channel, tells that this channel is heard from now on. That is told as a hint, so that who listens there
reads once more *after* the LISTEN.

A pooler does pass on what a server connection tells itself, for it is the answer to a statement. Where one stands
between (the server's process is another than the one we were told of when we connected), the first word that counts is
sent from elsewhere: one that pools sessions lets it through.

The connection is used as libpq gives it, without blocking: the one wait is the select below.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

import psycopg
from psycopg.pq import ExecStatus, TransactionStatus

from holdfast.database.dialect import READERS_ONLY
from holdfast.database.hints import Notify
from holdfast.database.postgres.address import Address
from holdfast.database.postgres.deadline import Deadline, wait
from holdfast.database.postgres.errors import first_line
from holdfast.database.postgres.pool import connect
from holdfast.logging import say
from holdfast.runtime import Runtime, Stepper

CONNECT_SECONDS = 5.0
BEAT_SECONDS = 10.0
DEAF_SECONDS = 5.0
SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 10.0
DEAF_PAUSE = 60.0  # a pooler stays one
WHO_IS_THERE = "SELECT pg_backend_pid()"
ELSEWHERE = "elsewhere"
MOST_CHANNELS = 200  # of one statement, whose text must fit into an empty socket

logger = logging.getLogger(__name__)


class Deaf(Exception):
    """What the listener sent to itself did not come back."""


class ListenSocket:
    """An open connection that listens on the channels that it is told, and on one of its own."""

    def __init__(self, address: Address, runtime: Runtime) -> None:
        self._monotonic = runtime.monotonic
        self._hosts = address.hosts()
        self._own = f"holdfast_{runtime.chance.getrandbits(64):016x}"  # a channel has at most 63 characters
        self._connection = connect(self._hosts, Deadline(self._monotonic, CONNECT_SECONDS))
        self.pgconn = self._connection.pgconn
        self._asked: float | None = None
        self._heard = self._monotonic()
        self.is_proven = False
        self._is_indirect = self._is_sent_from_elsewhere = False
        self._words = 0
        self._told: frozenset[str] = frozenset()
        """The channels that the server was told of, by statements that it may not have carried out yet."""
        self.channels: frozenset[str] = frozenset()
        """The channels that it surely hears."""
        self._send(f'LISTEN "{self._own}"', WHO_IS_THERE)

    def listen_on(self, wanted: Iterable[str]) -> None:
        """Tell the server of channels that are new, and of those that nobody wants any more; some at a time.

        While an answer of its own is awaited nothing is sent: whoever has heard that asks again.
        """
        if self._asked is not None or self.pgconn.transaction_status != TransactionStatus.IDLE:
            return
        wanted = frozenset(wanted)
        new, gone = sorted(wanted - self._told)[:MOST_CHANNELS], sorted(self._told - wanted)[:MOST_CHANNELS]
        if not (new or gone):
            return
        self._told = self._told.union(new).difference(gone)
        self.channels &= self._told
        self._send(*(f'LISTEN "{each}"' for each in new), *(f'UNLISTEN "{each}"' for each in gone))

    def due(self) -> float:
        """Say in how many seconds there is something to do, if nothing comes."""
        until = self._heard + BEAT_SECONDS if self._asked is None else self._asked + DEAF_SECONDS
        return max(0.0, until - self._monotonic())

    def receive(self) -> dict[str, set[str]]:
        """Take in what has come; give the words of the hints among it, by channel.

        A channel that is heard from now on has an empty word. Raises `Deaf` if our own word is overdue.
        """
        self.pgconn.consume_input()
        self._read_answers()
        hints: dict[str, set[str]] = {}
        while (notification := self.pgconn.notifies()) is not None:
            name, word = notification.relname.decode(), notification.extra.decode()
            if name != self._own:
                hints.setdefault(name, set()).add(word)
            elif word == (ELSEWHERE if self._is_indirect and not self.is_proven else str(self._words)):
                self._asked, self._heard, self.is_proven = None, self._monotonic(), True
                for each in self._told - self.channels:
                    hints.setdefault(each, set()).add("")
                self.channels = self._told
        self._keep_alive()
        return hints

    def close(self) -> None:
        """Say goodbye."""
        self._connection.close()

    def _read_answers(self) -> None:
        while not self.pgconn.is_busy() and (result := self.pgconn.get_result()) is not None:
            if result.status == ExecStatus.FATAL_ERROR:
                raise psycopg.OperationalError(result.get_error_message())
            if result.status == ExecStatus.TUPLES_OK:
                self._is_indirect = result.get_value(0, 0) != b"%d" % self.pgconn.backend_pid
        has_ended = self.pgconn.transaction_status == TransactionStatus.IDLE  # now a pooler hears for itself
        if self._is_indirect and has_ended and not self._is_sent_from_elsewhere:
            self._send_from_elsewhere()

    def _keep_alive(self) -> None:
        if self.due() > 0:
            return
        if self._asked is not None:
            raise Deaf
        self._send()

    def _send_from_elsewhere(self) -> None:
        self._asked, self._is_sent_from_elsewhere = self._monotonic(), True
        deadline = Deadline(self._monotonic, CONNECT_SECONDS)
        other = connect(self._hosts, deadline)
        try:
            other.pgconn.send_query(f"NOTIFY \"{self._own}\", '{ELSEWHERE}'".encode())
            other.pgconn.flush()
            while other.pgconn.is_busy():  # a pooler drops what a client has sent that is gone
                wait(other.pgconn.socket, selectors.EVENT_READ, deadline)
                other.pgconn.consume_input()
        finally:
            other.close()

    def _send(self, *statements: str) -> None:
        """Send *statements*, and a word to ourselves that comes back when they have been carried out."""
        self._asked = self._monotonic()
        self._words += 1
        text = "; ".join((*statements, f"NOTIFY \"{self._own}\", '{self._words}'"))
        self.pgconn.send_query(text.encode())
        self.pgconn.flush()  # a few bytes into an empty buffer


class Bell:
    """Ends the wait of a thread from another one."""

    def __init__(self) -> None:
        self._outside, self.inside = socket.socketpair()
        self._outside.setblocking(False)
        self.inside.setblocking(False)

    def ring(self) -> None:
        """Let the wait end."""
        with suppress(BlockingIOError):  # it rings already, for so many that nobody has taken
            self._outside.send(b"!")

    def take(self) -> None:
        """Let the next wait be one again."""
        with suppress(BlockingIOError):
            self.inside.recv(4096)

    def close(self) -> None:
        """Put it away."""
        self._outside.close()
        self.inside.close()


class SharedListener:
    """Keeps a line open while somebody listens on one of its channels."""

    def __init__(self, address: Address, runtime: Runtime) -> None:
        self._address = address
        self._runtime = runtime
        self._begin()

    def _begin(self) -> None:
        self._change = threading.Lock()
        self._channels: dict[str, tuple[Notify, ...]] = {}
        """Whom to call for each channel; replaced whole, for its thread reads it at any moment."""
        self._line: ListenSocket | None = None
        self._shell: Stepper | None = None
        self._bell: Bell | None = None
        self._failures = 0
        self._is_stopping = False

    def hears(self, channel: str) -> bool:
        """Tell whether what is sent on *channel* arrives."""
        line = self._line
        return line is not None and channel in line.channels

    def add(self, channel: str, notify: Notify) -> None:
        """Have *notify* called for what is sent on *channel*."""
        with self._change:
            self._channels = self._channels | {channel: (*self._channels.get(channel, ()), notify)}
            if self._shell is None:
                self._start()
            elif self._bell is not None:
                self._bell.ring()

    def remove(self, channel: str, notify: Notify) -> None:
        """Call *notify* no more; the last one to leave hangs up."""
        with self._change:
            left = tuple(each for each in self._channels.get(channel, ()) if each != notify)
            others = {name: whom for name, whom in self._channels.items() if name != channel}
            self._channels = others | ({channel: left} if left else {})
            if not self._channels:
                self._stop()
            elif self._bell is not None:
                self._bell.ring()

    def abandon(self) -> object:
        """Begin anew in a forked child: close our copy of the parent's socket, and say nothing on it.

        Whoever calls this keeps what it gives, so that no destructor says goodbye for the parent.
        """
        left = self._line, self._shell, self._bell
        if self._line is not None:
            with suppress(OSError, psycopg.OperationalError):
                os.close(self._line.pgconn.socket)
        self._begin()
        return left

    def _start(self) -> None:
        self._is_stopping = False
        self._failures = 0
        self._bell = Bell()
        self._shell = self._runtime.stepper(partial(self._step, self._bell), "holdfast-hints")
        self._shell.wake()

    def _stop(self) -> None:
        shell, self._shell = self._shell, None
        bell, self._bell = self._bell, None
        self._is_stopping = True
        if bell is not None and shell is not None:
            bell.ring()
            shell.stop()
            bell.close()
        self._hang_up()

    def _step(self, bell: Bell) -> float | None:
        """Listen until the line fails; answer when to try again."""
        try:
            self._line = ListenSocket(self._address, self._runtime)
            self._listen(self._line, bell)
            return None
        except Deaf:
            return self._after_failure(
                "it does not receive its own notification; if there is a pooler, set listen_url", DEAF_PAUSE
            )
        except (psycopg.Error, OSError) as error:
            reason = first_line(error) if isinstance(error, psycopg.Error) else str(error)
            return self._after_failure(self._address.scrub(reason), LONGEST_PAUSE)

    def _listen(self, line: ListenSocket, bell: Bell) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(line.pgconn.socket, selectors.EVENT_READ)
            selector.register(bell.inside, selectors.EVENT_READ)
            while not self._is_stopping:
                selector.select(line.due())
                bell.take()  # before the channels are read: who rings later is heard the next time
                was_proven = line.is_proven
                hints = line.receive()
                line.listen_on(self._channels)
                if line.is_proven and not was_proven:
                    self._note_success()
                for channel, words in hints.items():
                    self._tell(channel, of_log=words == {READERS_ONLY})

    def _tell(self, channel: str, *, of_log: bool) -> None:
        for notify in self._channels.get(channel, ()):
            notify(of_log=of_log)

    def _note_success(self) -> None:
        if self._failures:
            say(logger, "hints_again", failures=self._failures)
        self._failures = 0

    def _after_failure(self, reason: str, longest: float) -> float:
        heard = self._line.channels if self._line is not None else frozenset()
        self._hang_up()
        self._failures += 1
        if self._failures == 1:
            say(logger, "hints_lost", reason=reason)
        for each in heard:  # those who sleep long, by a line that is gone, shall look at their watches
            self._tell(each, of_log=False)
        pause = longest if longest == DEAF_PAUSE else min(longest, SHORTEST_PAUSE * 2.0 ** min(self._failures, 10))
        return pause * (0.5 + self._runtime.chance.random() / 2)

    def _hang_up(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()


class HintChannel:
    """The hints of one schema, over the line that all of them share."""

    def __init__(self, listener: SharedListener, channel: str, notify: Notify) -> None:
        self._listener = listener
        self._channel = channel
        self._notify = notify

    @property
    def is_listening(self) -> bool:
        return self._listener.hears(self._channel)

    def start(self) -> None:
        """Begin to listen."""
        self._listener.add(self._channel, self._notify)

    def stop(self) -> None:
        """Listen no more."""
        self._listener.remove(self._channel, self._notify)


class NoListener:
    """Where there is no line to listen on: all must poll."""

    is_listening = False
    _has_said = False

    def start(self) -> None:
        """Say so, once."""
        if not self._has_said:
            self._has_said = True
            say(logger, "hints_lost", reason="there is a pooler and no listen_url")

    def stop(self) -> None:
        """Do nothing."""
