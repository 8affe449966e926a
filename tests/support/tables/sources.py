"""The lines of the three systems that Holdfast unites, and what shows that each is to be had here.

The phase queue (PQ), job chains (JC), the target queue (TQ), and the defects of all three that we do not copy (DF).
A test shows a line if it is marked with it: `@pytest.mark.source("JC-38")`, on the test, its class or its module
(`pytestmark`). What no test shows is planned, or has its reason here. docs/internals/sources.md is made of both.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

from tests.support.tables.numbered import ROOT

PHASE_QUEUE = {
    "PQ-1": "any number of workers share a queue, by leases; one of them is the single process",
    "PQ-2": 'opening resets nothing; lost work is found by its lease, on SQLite at once; `on_lost="fail"` fails it',
    "PQ-3": "a job that failed by a crash keeps its phases and results, so a retry is a partial one",
    "PQ-4": "the parts have one face in front of them",
    "PQ-5": "start, retry, cancel, get, list, listen, stream, stop",
    "PQ-6": "phases belong to a task; a task without any has one, `run`, when it first reports progress",
    "PQ-7": "the first run counts as an attempt; defaults of retries and retention",
    "PQ-8": "a job can run later, and has a webhook address of its own",
    "PQ-9": "what a job's record holds",
    "PQ-10": "what a phase's record holds, and its states",
    "PQ-11": "a start commits the job and its first event together",
    "PQ-12": "a claim is one batch: admission, attempt, token and lease",
    "PQ-13": "cancelling a waiting job cancels its unfinished phases, and its handler is never called",
    "PQ-14": "the end of the last phase completes the job",
    "PQ-15": "a recoverable error with attempts left makes the job wait; finished phases stay",
    "PQ-16": "a fatal error, or the last attempt, fails the job",
    "PQ-17": "cancelling a running job is a request; after its commit this run cannot complete",
    "PQ-18": 'a lost worker fails the job, under `on_lost="fail"`',
    "PQ-19": "stale is an overlay; the outcome stays",
    "PQ-20": "what has been stale for long enough is deleted",
    "PQ-21": "a failed, cancelled or stale job can be retried; only unfinished phases run again",
    "PQ-22": "a worker takes what is due while it has room, then sleeps until the next due time",
    "PQ-23": "hints, due times and a poll below them wake a worker",
    "PQ-24": "each attempt has its own signal and context",
    "PQ-25": "phases run in order; a finished one answers its stored result",
    "PQ-26": "later phases read earlier results, by name or all",
    "PQ-27": "progress: the first report at once, then four a second at most, and the last one",
    "PQ-28": "overall progress is made of the phases' progress",
    "PQ-29": "the retry policy sees the error and the job",
    "PQ-30": "fixed, linear and exponential delays",
    "PQ-31": "every retry begins at the first unfinished phase",
    "PQ-32": "a cancel between two phases is announced once",
    "PQ-33": "a handler that ignores its signal is fenced off, and killed in a child process",
    "PQ-34": "nobody sees an event before its state: both are one commit",
    "PQ-35": "`job:enqueued` and `job:started`, with the whole job",
    "PQ-36": "`job:progress` and `job:phase:completed`, with the whole job",
    "PQ-37": "`job:completed`, `job:failed`, `job:cancelled`: once for each run, with the whole job",
    "PQ-38": "`job:retrying`, with the new time",
    "PQ-39": "`job:stale` with the whole job, `job:deleted` with the id alone",
    "PQ-40": "`job:webhook:delivered` and `job:webhook:failed`, after the event that they deliver",
    "PQ-41": "a stream pings",
    "PQ-42": "listeners in every process follow the log",
    "PQ-43": "a stream begins with a snapshot and goes on from it without a gap",
    "PQ-44": "every message of a stream has an id, and a reader resumes behind it",
    "PQ-45": "a reader that leaves a stream leaves nothing behind",
    "PQ-46": "which events make webhooks, and which address gets them",
    "PQ-47": "webhooks are signed, in two ways",
    "PQ-48": "5xx, 429 and transport failures are retried; other 4xx are final",
    "PQ-49": "a delivery is recorded after the event that it delivers",
    "PQ-50": "a delivery bears that its job was deleted meanwhile",
    "PQ-51": "retention has two stages, with hooks, beside the work",
    "PQ-52": "a pass of retention touches nothing that is open, in use or undelivered",
    "PQ-53": "a stop claims nothing more, waits for the grace time, then interrupts",
    "PQ-54": "a stop ends, whatever its handlers do, and cleans up",
    "PQ-55": "deliveries that a stop leaves unfinished stay jobs",
    "PQ-56": "Python 3.11 or newer, on Linux and macOS; typed",
    "PQ-57": "a retry by hand begins its attempts anew; a completed job is not retried",
    "PQ-58": "a retry by hand appends `job:resumed`, a job that its crash failed `job:failed`",
    "PQ-59": "stale counts from the end of a job, deleted from being stale",
    "PQ-60": "a hook of retention that raises postpones",
    "PQ-61": "a job that a stop interrupted is given back, and how often is shown",
    "PQ-62": "due jobs run in one order without ties",
    "PQ-63": "single parts can be used alone: `holdfast.parts`",
    "PQ-64": "a completed job is run again as a new chain: `start_again`",
    "PQ-65": "the name of an event decides the type that its listener gets",
    "PQ-66": "a job's own webhook takes the place of the queue's",
    "PQ-67": "a release needs a green run of its very commit",
    "PQ-68": "the architecture has drawings that do not drift",
    "PQ-69": "a job may have a budget of attempts of its own",
    "PQ-70": "the list of phases is there from the start on",
    "PQ-71": "the queue's webhook is configuration, and saying it twice is saying it once",
}

JOB_CHAINS = {
    "JC-1": "a job commits with the application's change, at its start and at its end",
    "JC-2": "the first job is the chain; status and output of a chain are its last job's",
    "JC-3": "a job has at most one successor",
    "JC-4": "the states; a task may retry for ever",
    "JC-5": "`delay=` or `run_at=`, never both; blocked until its blockers are counted",
    "JC-6": "a claim takes what is due and known; attempt, token and lease in one statement",
    "JC-7": "a completion stores who completed; the nonce stays, so that a lost COMMIT can be resolved",
    "JC-8": "an attempt that raised waits for its delay, with its error stored",
    "JC-9": "a lost lease makes a job ready at once; the third crash fails it as `poison`",
    "JC-10": "the last open blocker lets a job go",
    "JC-11": "any open job can be completed from outside",
    "JC-12": "whole chains are deleted",
    "JC-13": "one object starts, reads, completes and makes workers",
    "JC-14": "the calls of a client",
    "JC-15": "waiting for a result goes by hints and a poll, with or without a time limit",
    "JC-16": "a call takes the caller's transaction, or makes its own",
    "JC-17": "what a handler gets: signal, typed input, attempt, last error, blockers, blocks",
    "JC-18": "`ctx.prepare()` reads in a short transaction under the lease",
    "JC-19": "`ctx.atomic()` prepares and completes in one transaction",
    "JC-20": "a block is opened once",
    "JC-21": "an attempt has an idempotency key",
    "JC-22": "`ctx.complete()`: the handler's writes, output or successor and all that follows are one commit",
    "JC-23": "a handler that opens no block completes by its return value",
    "JC-24": "raising in a block undoes all of it; a broken transaction cannot be committed",
    "JC-25": "time-outs for each task; hard ones in a child process",
    "JC-26": "why an attempt was told to stop",
    "JC-27": "every write of an attempt is guarded by its token",
    "JC-28": "defaults of workers, leases and retries can be set for all tasks",
    "JC-29": "a task's own lease and retry beat the defaults",
    "JC-30": "a worker reaps, waits, runs, and goes on after an error of its own",
    "JC-31": "slots for each worker, processes on top, child processes for what computes",
    "JC-32": "a claim takes the first due job among all tasks of the worker, and no others",
    "JC-33": "hints, due times and polls wake; all are right without hints",
    "JC-34": "a lease has one owner, is renewed in time, and is taken over when its owner dies",
    "JC-35": "an attempt learns that it lost its job",
    "JC-36": "an expired lease that nobody has taken is still held",
    "JC-37": "delays grow from 10 s to 300 s, with jitter",
    "JC-38": "`Reschedule` chooses the time, keeps its cause and uses up no attempt",
    "JC-39": "a lost attempt writes nothing; an end that cannot be written is left to the lease",
    "JC-40": "every worker reaps, in bounded batches, what it does not know too",
    "JC-41": "a stop waits for the grace time, then gives work back; `grace=None` waits",
    "JC-42": "middleware wraps every attempt, the first outermost",
    "JC-43": "a unique key belongs to its task",
    "JC-44": "the scope of a unique key: open chains, or any",
    "JC-45": "the window of a unique key",
    "JC-46": "a start that meets its twin returns it and changes nothing",
    "JC-47": "equal keys in one call are one chain",
    "JC-48": "a handler can hand its own key to its successor",
    "JC-49": "of two continuations at once one wins",
    "JC-50": "blockers are given at start or continuation; the handler sees their outputs in order",
    "JC-51": "the commit that closes a blocker lets its dependents go",
    "JC-52": "a start misses no blocker that closes at the same time",
    "JC-53": "what a failed blocker does: fail, wait or ignore; its retry blocks again",
    "JC-54": "completion from outside locks the chain's current job, and names its task",
    "JC-55": "completion from outside may look first, and take several steps",
    "JC-56": "looking alone changes nothing",
    "JC-57": "which states can be completed from outside",
    "JC-58": "a running handler learns that its job was completed from outside",
    "JC-59": "a completion from outside is checked as a worker's is, and rolls back whole",
    "JC-60": "approval: a delayed job that is completed earlier",
    "JC-61": "`trigger` makes a waiting job due now; a list is all or nothing",
    "JC-62": "a handler starts its own successor again and again",
    "JC-63": "a delete is refused while somebody outside depends on the chain",
    "JC-64": "a cascade deletes what the chain depends on, once",
    "JC-65": "hints may all be lost or doubled",
    "JC-66": "nobody is woken in vain; there is no wake budget",
    "JC-67": "a listener that raises hurts no other; closing twice is closing once",
    "JC-68": "a log and telemetry, each optional",
    "JC-69": "what a log entry holds",
    "JC-70": "entries about workers",
    "JC-71": "entries about jobs",
    "JC-72": "entries about attempts",
    "JC-73": "entries about chains and the store",
    "JC-74": "the order of entries",
    "JC-75": "what rolled back is not reported",
    "JC-76": "counters",
    "JC-77": "histograms and gauges",
    "JC-78": "spans",
    "JC-79": "attributes of spans, joined over processes",
    "JC-80": "the tables",
    "JC-81": "the indexes",
    "JC-82": "an operation is a constant number of statements, whatever its list",
    "JC-83": "PostgreSQL and SQLite; hints by LISTEN, the file's log and polling",
    "JC-84": "slots are filled while there is work; a worker reaps nothing that it runs",
    "JC-85": "names of workers are checked, and their ids differ",
    "JC-86": "which setting wins: the call's, the task's, the registry's, the object's, the library's",
    "JC-87": "many starts in one call, results in order",
    "JC-88": "a caller's own id is checked before any write",
    "JC-89": "reads: job, chain with its task, lists, blockers both ways",
    "JC-90": "pages with opaque cursors that are stable",
    "JC-91": "filters of lists",
    "JC-92": "a time in the past counts as now",
    "JC-93": "`require_connection=True` refuses every change without a transaction",
    "JC-94": "side effects after the commit",
    "JC-95": "arguments, outputs and continuations are validated",
    "JC-96": "tasks in several modules are merged; a duplicate or unknown name is an error with names",
    "JC-97": "middleware of a worker, a registry or a task",
    "JC-98": "what is stored of an error: traceback and own attributes, bounded",
    "JC-99": "typed errors",
    "JC-100": "a dashboard",
    "JC-101": "an HTTP API",
    "JC-102": "migrations: named, recorded, repeatable; the schema names the oldest code that fits",
    "JC-103": "what ended long ago is cleaned up",
    "JC-104": "one contract for all stores",
    "JC-105": "priorities that age",
    "JC-106": "published speed",
    "JC-107": "cancel, pause, failed, attempts, time-outs, retention, lanes",
    "JC-108": "a producer starts jobs without their code: declared tasks, starts by name",
    "JC-109": "a task's lease holds for every renewal, by whoever renews",
    "JC-110": "a signal to look at, to wait for and to combine with a timer",
    "JC-111": "partial completion: one step by hand, the next by a worker",
    "JC-112": "blockers completed first, in the same outside completion",
    "JC-113": "every log record of a handler has its job",
    "JC-114": "a lease is no hard limit of a handler; `timeout=` is",
    "JC-115": "an id of its own for a continuation; storage parameters; reads from replicas",
}

TARGET_QUEUE = {
    "TQ-1": "tenants: a schema or a file each",
    "TQ-2": "the tenant of a request, by host; a key for each tenant",
    "TQ-3": "one job at a time for each lane; lanes go on independently",
    "TQ-4": "what a job's record holds",
    "TQ-5": "the states, and which are final",
    "TQ-6": "a start is one commit; `paused=True` waits for a person",
    "TQ-7": "a claim takes the first job of a lane that nothing holds or halts",
    "TQ-8": "a claim sets owner and lease, and forgets old requests",
    "TQ-9": "two claims never take two jobs of one lane",
    "TQ-10": "slots for each tenant",
    "TQ-11": "tenants take turns, and one that is broken stops no other",
    "TQ-12": "how often an idle worker looks",
    "TQ-13": "a lease is renewed while its handler runs, and no longer",
    "TQ-14": "cancel and pause requests are seen within two seconds",
    "TQ-15": "a handler waits for its target, then pauses",
    "TQ-16": "an append-only journal that a resumed job goes on from",
    "TQ-17": "a log of typed entries with an age of its own",
    "TQ-18": "a claim, then renewals",
    "TQ-19": "a pause of a running job, seen within seconds; the reason says who",
    "TQ-20": "a stop pauses, with the reason `shutdown`",
    "TQ-21": "a handler pauses its own job for a person",
    "TQ-22": "an error fails the job",
    "TQ-23": 'a lost lease fails the job, under `on_lost="fail"`, in one guarded statement',
    "TQ-24": "a result completes the job",
    "TQ-25": "a resumed job keeps its place in its lane",
    "TQ-26": "a person completes a paused or failed job",
    "TQ-27": "cancel of what waits, at once",
    "TQ-28": "interrupting what does not run halts nothing",
    "TQ-29": "no automatic retry, as a setting",
    "TQ-30": "a paused or failed job halts its lane, and only that",
    "TQ-31": "who halts a lane, and why, is shown",
    "TQ-32": "a drain claims nothing more and waits for the grace time",
    "TQ-33": "what still runs after the grace time is interrupted; twice is once",
    "TQ-34": "no leader: every worker does the upkeep",
    "TQ-35": "its routes: jobs and targets",
    "TQ-36": "its routes: actions, logs, exchanges",
    "TQ-37": "its errors over HTTP",
    "TQ-38": "events and streams instead of polling",
    "TQ-39": "what crosses processes goes through the database",
    "TQ-40": "who interrupted decides the end: `ctx.fail` beats a pause",
    "TQ-41": "its shorter route to resume",
    "TQ-42": "its text of an interrupted job",
    "TQ-43": "a worker inside the web server, drained by its shutdown",
    "TQ-44": "a job as a conversation: the journal",
}

DEFECTS = {
    "DF-1": "a claim costs the same whatever waits",
    "DF-2": "two blockers that close at once release their dependent once",
    "DF-3": "two starts with one key at once are one chain",
    "DF-4": "a key is held while its chain is open, also when it has continued",
    "DF-5": "a cascade finds the blockers of every step",
    "DF-6": "a chain cannot wait for itself, in any form",
    "DF-7": "an old attempt of the same worker cannot complete",
    "DF-8": "what kills its worker is failed as `poison` at its third crash",
    "DF-9": "the end of a lease wakes",
    "DF-10": "the handler of a deleted job learns of it within seconds",
    "DF-11": "only entering a block counts",
    "DF-12": "a stop is bounded and tells handlers",
    "DF-13": "nothing is announced that did not commit; the dashboard is guarded",
    "DF-14": "what cannot run yet wakes nobody; a retry is run when due by another worker",
    "DF-15": "asking for the next due time is an index read without locks",
    "DF-16": "two migrations at once both succeed",
    "DF-17": "retries are spread",
    "DF-18": "a crashed attempt is in the history",
    "DF-19": "a batch runs in its order",
    "DF-20": "long handlers hold no connection",
    "DF-21": "a running job is seen as running, and can be cancelled, while its block is open",
    "DF-22": "many processes share a SQLite file",
    "DF-23": "values come back as they were, or are refused by a typed error",
    "DF-24": "a continued job is called so; open chains are listed in bounded time",
    "DF-25": "only the database's clock decides",
    "DF-26": "depth and age of what waits",
    "DF-27": "no two jobs of a lane run at once",
    "DF-28": "a locked lane hides no other",
    "DF-29": "a worker that lost its lease cannot write",
    "DF-30": "a lease outlives a short outage; a handler is stopped before the lease ends",
    "DF-31": "an expiry is one guarded statement",
    "DF-32": "dead worker processes are started again",
    "DF-33": "a waiting job that is interrupted halts nothing; final states are refused",
    "DF-34": "a deploy halts no lane; the reason of a pause by shutdown says so",
    "DF-35": "a start is there or not, wherever it crashes",
    "DF-36": "times are UTC by the database; a move clears what no longer holds",
    "DF-37": "a blocked event loop loses no lease; idle tenants cost little",
    "DF-38": "deliveries survive a kill, one for each event",
    "DF-39": "a stream has no gap; a stalled reader costs nothing",
    "DF-40": "the outcome of a stale job is kept",
    "DF-41": "a second process fails nothing of the first",
    "DF-42": "a claim of many is one write",
    "DF-43": "a replayed webhook can be told; private addresses are refused",
    "DF-44": "what the phase queue had repaired stays repaired",
}

SOURCES = PHASE_QUEUE | JOB_CHAINS | TARGET_QUEUE | DEFECTS

INSIGHT = "planned: why a job does not run, lists and figures, the journal"
HTTP = "planned: the HTTP API"
TELEMETRY = "planned: telemetry"

NOT_SHOWN = {
    "JC-68": TELEMETRY,
    "JC-69": TELEMETRY,
    "JC-72": TELEMETRY,
    "JC-73": TELEMETRY,
    "JC-74": TELEMETRY,
    "JC-75": TELEMETRY,
    "JC-76": TELEMETRY,
    "JC-77": TELEMETRY,
    "JC-78": TELEMETRY,
    "JC-79": TELEMETRY,
    "JC-94": "not needed: events are rows of the same commit",
    "JC-100": "planned: the dashboard",
    "JC-101": HTTP,
    "JC-106": "docs/benchmarks.md has our own, measured beside others",
    "DF-26": INSIGHT,
}
"""The lines that no test shows, and why."""


class Line(NamedTuple):
    """One line of the sources: its *tests*, as pytest names them, and why there are none, "" if there are."""

    id: str
    words: str
    tests: tuple[str, ...]
    reason: str


def lines() -> Iterator[Line]:
    """Go through all lines."""
    found = find_marked()
    for id_, words in SOURCES.items():
        yield Line(id_, words, found.get(id_, ()), NOT_SHOWN.get(id_, ""))


@cache
def find_marked() -> dict[str, tuple[str, ...]]:
    """Give for each line the tests that are marked with it, or the files of which all tests are."""
    found: dict[str, list[str]] = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        text = file.read_text(encoding="utf-8")
        if "mark.source(" in text:  # to parse the others would take a second
            for id_, test in _marked(ast.parse(text).body, str(file.relative_to(ROOT))):
                found.setdefault(id_, []).append(test)
    return {id_: tuple(tests) for id_, tests in found.items()}


def _marked(body: list[ast.stmt], name: str) -> Iterator[tuple[str, str]]:
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id="pytestmark")]):
                yield from ((id_, name) for id_ in _ids(node.value))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                inner = f"{name}::{node.name}"
                yield from ((id_, inner) for each in node.decorator_list for id_ in _ids(each))
            case ast.ClassDef():
                inner = f"{name}::{node.name}"
                yield from ((id_, inner) for each in node.decorator_list for id_ in _ids(each))
                yield from _marked(node.body, inner)


def _ids(mark: ast.expr) -> Iterator[str]:
    """Read the lines out of a decorator or of a list of marks."""
    for node in ast.walk(mark):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "source":
            yield from (str(each.value) for each in node.args if isinstance(each, ast.Constant))


MOST_NAMED = 3
"""How many tests the page names of a line; the rest are counted."""


def rows(family: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Give for each line of *family* its id, what it is, and what shows it."""
    return [(line.id, line.words, line.reason or _named(line.tests)) for line in lines() if line.id in family]


def _named(tests: tuple[str, ...]) -> str:
    more = f", and {len(tests) - MOST_NAMED} more" if len(tests) > MOST_NAMED else ""
    return ", ".join(f"`{test}`" for test in tests[:MOST_NAMED]) + more
