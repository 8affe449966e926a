"""What Holdfast keeps true, in plain words, by the numbers that tests and mutants name.

A test that would turn red if one of these were broken says its number in its docstring.
`tests/support/tables/guarantees.py` makes the table of docs/guarantees.md of that.
"""

from __future__ import annotations

from typing import NamedTuple


class Invariant(NamedTuple):
    """One claim that a test can refute; *comes_with* names the part that it is about, if that is not built yet."""

    number: str
    words: str
    comes_with: str | None = None


class Group(NamedTuple):
    """Claims about one thing."""

    title: str
    claims: tuple[Invariant, ...]


INVARIANTS = (
    Group(
        "Starting, and what lasts",
        (
            Invariant("I-01", "A start that returned, or whose caller's COMMIT did, survives kill -9 of everything."),
            Invariant("I-02", "What a caller rolls back, wholly or to a savepoint, nobody ever sees."),
            Invariant("I-03", "No job is claimed before its start is committed."),
            Invariant("I-04", "Any number of starts with one id make one job, and all callers get it."),
            Invariant("I-05", "At most one open chain has a unique key; whoever races gets that chain."),
            Invariant("I-06", "A value that one database takes the other takes too, and reads back equal."),
            Invariant("I-07", "An output or error that cannot be stored strands no job."),
        ),
    ),
    Group(
        "Your transaction, blocks, borrowed connections",
        (
            Invariant("I-60", "A caller's transaction only inserts, and nobody of ours waits for it."),
            Invariant("I-61", "A job that may run is admitted within one poll, once, whatever the order of commits."),
            Invariant("I-53", "On your connection we issue no COMMIT, ROLLBACK or close."),
            Invariant("I-68", "A connection that cannot be used is refused before anything is written."),
            Invariant("I-65", "Inside a block a verb without connection= is refused, and names what to write."),
            Invariant("I-66", "A block commits whole, or raises and rolls back whole."),
            Invariant("I-67", "On SQLite a block may write for some seconds, and nobody loses a lease to it."),
        ),
    ),
    Group(
        "States and cancel",
        (
            Invariant("I-08", "Only the moves of the law of states occur, each by an UPDATE with its guard."),
            Invariant("I-09", "A running job has a worker, a lease, an attempt and a nonce; the database checks it."),
            Invariant("I-10", "The number of an attempt only grows, and no two claims have equal tokens."),
            Invariant("I-11", "Completed is final; failed and cancelled are left only by what people decide."),
            Invariant("I-12", "A move, its event, its webhooks, its successor and its lane are one commit."),
            Invariant("I-76", "A verb given the id of a job that has continued acts on its chain's current job."),
            Invariant("I-31", "A cancel has one of three answers, and an accepted request is never forgotten."),
            Invariant("I-32", "After a cancel request that run can no longer complete its job."),
            Invariant("I-33", "A handler learns of a cancel within a second, within three if every hint is lost."),
            Invariant("I-34", "A handler that ignores it is killed in a child; elsewhere it is named."),
            Invariant("I-35", "Cancelling a job cancels each of its unfinished phases in the same commit."),
        ),
    ),
    Group(
        "Batches and locked rows",
        (
            Invariant("I-62", "Settling, claiming and renewing take as many statements for 100 jobs as for 1."),
            Invariant("I-63", "A row that somebody has locked costs nobody else."),
            Invariant("I-64", "Of a group that fails in part, each caller hears what became of its own."),
            Invariant("I-56", "What a batch completes is seen nowhere before its commit."),
        ),
    ),
    Group(
        "Leases and fencing",
        (
            Invariant("I-13", "Every write by a worker carries its token; a lost one changes nothing."),
            Invariant("I-14", "A completion commits only under a lease that is held at that commit."),
            Invariant("I-15", "At most one attempt of a job is open at any time."),
            Invariant("I-16", "A job is taken back only if its lease is over, or its worker proved dead, right then."),
            Invariant("I-17", "A wrong clock on a worker's host changes nothing on PostgreSQL."),
            Invariant("I-18", "A step of the database's clock delays or repeats work, never more."),
            Invariant("I-19", "Renewal goes on while a handler blocks the event loop."),
            Invariant("I-20", "A worker that cannot renew stops its handlers before their leases are over."),
            Invariant("I-21", "No error ends the renewal, and it goes on to an attempt's last commit."),
            Invariant("I-22", "After an outage nobody is taken for dead before it could renew."),
            Invariant("I-75", "A worker keeps a job whose row somebody had locked past the lease."),
            Invariant("I-23", "A process never runs two attempts of one job at once."),
            Invariant("I-24", "A job that crashes its process is found out and convicted alone."),
            Invariant("I-25", "A dead worker's job moves on within lease and period, by cancel, pause or policy."),
            Invariant("I-69", "On SQLite the lock on a worker's file proves its death, and nothing else does."),
        ),
    ),
    Group(
        "Lanes and the claim",
        (
            Invariant("I-26", "In a lane one job runs at a time."),
            Invariant("I-27", "Nothing of a halted or paused lane is claimed, and who lets it go on does so at once."),
            Invariant("I-28", "A job keeps its place in its lane from when it could first run."),
            Invariant("I-29", "A claim reads as many rows as it gives, whatever else is in the table."),
            Invariant("I-72", "Every hot statement keeps its index, also in a table that was never analysed."),
            Invariant("I-73", "Larger priority first, and nobody waits for ever."),
            Invariant("I-30", "Shutdown, kill or reap leave no lane halted that does not say so."),
        ),
    ),
    Group(
        "Chains, blockers, phases, retries",
        (
            Invariant("I-36", "A job has one successor at most, and its chain closes with its last job."),
            Invariant("I-37", "A worker and somebody outside complete a job once, and the other is told."),
            Invariant("I-38", "A blocked job is let go once, when its last blocker has closed."),
            Invariant("I-39", "A blocker that ends otherwise moves its dependents by their policy."),
            Invariant("I-40", "A phase whose result is committed is never run again."),
            Invariant("I-41", "The delay of a retry stays within its bounds for any number of attempts."),
            Invariant("I-42", "No more attempts are used than the task allows; shutdown uses none."),
        ),
    ),
    Group(
        "Events, watching, webhooks",
        (
            Invariant("I-43", "Who has seen an event of a job finds the job at least as far."),
            Invariant("I-44", "Who comes back with a cursor gets every later event once, or is told of a gap."),
            Invariant("I-71", "No open transaction of anybody holds events up."),
            Invariant("I-45", "With every hint lost a job waits for one poll longer."),
            Invariant("I-46", "A reader that stalls costs a bounded amount and slows nobody."),
            Invariant("I-47", "A wanted event and its outbox row are one commit; each delivery is posted until taken."),
            Invariant("I-48", "Webhooks of a job arrive in order; a bad receiver delays nobody else."),
            Invariant("I-70", "There is no delivery of a delivery."),
        ),
    ),
    Group(
        "Retention, shutdown, resources, operation",
        (
            Invariant("I-49", "Retention takes away nothing that is open, awaited or not yet delivered."),
            Invariant("I-50", "After the first signal nothing is claimed, and the process ends in time."),
            Invariant("I-51", "Memory, descriptors, threads and connections stay flat, and no row outlives its jobs."),
            Invariant("I-52", "No statement for one tenant touches another.", "tenants"),
            Invariant("I-54", "Both databases and both faces give the same states, events and errors."),
            Invariant("I-55", "A COMMIT whose answer was lost is found out, never guessed."),
            Invariant("I-57", "For every open job there is a reason why it does not run, and it is true."),
            Invariant("I-58", "A delete takes all of it or nothing."),
            Invariant("I-59", "An idle process issues less than one statement a second."),
            Invariant("I-74", "The release before works on the migrated database; older code is refused."),
        ),
    ),
    Group(
        "Schedules",
        (
            Invariant("I-83", "A tick and its one job are one commit, after crashes and steps of the clock, too."),
            Invariant("I-84", "A schedule that cannot start delays no other."),
        ),
    ),
    Group(
        "Tenants",
        (
            Invariant("I-85", "200 idle tenants cost less than two statements a second; a broken one stops no other."),
        ),
    ),
    Group(
        "Insight",
        (
            Invariant("I-86", "What `explain` says is true of one snapshot, and takes ten statements at most."),
            Invariant("I-87", "`bulk` acts on no job newer than `upto`, and a dry run counts what it would act on."),
        ),
    ),
)  # fmt: skip
"""All of them, in the order of the page."""
