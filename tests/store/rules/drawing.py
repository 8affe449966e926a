"""What the rule machine draws: options of starts, ends of attempts, and jobs, claims and lanes of the run itself.

Three of four times what is drawn suits the rule, else anything that ever was: a job that is gone, a claim that was lost
long ago. Few lanes, keys and jobs at a time, so that steps have to do with each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from uuid import UUID

from hypothesis import strategies as st

from tests.law.moves import HALTING
from tests.store.rules.continuing import INHERITED
from tests.store.rules.world import MINUTE, Lane, Token, World

OWN, COMMITTED, ROLLED_BACK = "own connection", "caller commits", "caller rolls back"
LANES = ("red", "blue")

hows = st.sampled_from((OWN, OWN, COMMITTED, ROLLED_BACK))
tasks = st.sampled_from(("print", "mail", "build"))
lanes = st.sampled_from((None, "red", "red", "blue"))
keys = st.sampled_from((None, None, None, "k1", "k2"))
more_keys = st.sampled_from((None, "k1", "k2"))
scopes = st.sampled_from((("open", None), ("open", None), ("any", None), ("open", 90_000), ("any", 90_000)))
delays = st.sampled_from((0, 0, 0, MINUTE))
priorities = st.sampled_from((0, 1))
tags = st.sampled_from(((), (), ("a",), ("a", "ü")))
rarely = st.sampled_from((False, False, False, True))
counts = st.sampled_from((1, 1, 2))
policies = st.sampled_from(("fail", "wait", "ignore"))
forms = st.sampled_from(("finish", "finish", "continue", "continue", "continue and finish", "look"))
other_tasks = st.sampled_from((None,) * 7 + ("mail",))
workers = st.sampled_from(("ann", "bob"))
ends = st.sampled_from(
    ("complete", "complete", "an error", "a fatal error", "pause", "reschedule", "give back", "cancel")
)
texts = st.sampled_from(("", "", "a", "ü", '"', "\\", "\u2028", "%s :now $now", "😀", "\0", "a\ud800"))
messages = st.sampled_from((None, "", "half", "ü"))
batches = st.lists(st.tuples(tasks, lanes, keys, delays, priorities), min_size=2, max_size=4)
times = st.sampled_from((1_000, 11_000, 31_000, 61_000, 3_600_000))


class Run(Protocol):
    """What is drawn from: a run so far."""

    world: World
    ids: dict[str, UUID]
    tokens: dict[str, Token]


def mostly(likely: list[str], others: list[str]) -> st.SearchStrategy[str]:
    """Draw three of four times what is *likely*, if anything is."""
    return st.sampled_from(likely * max(1, 3 * len(others) // len(likely)) + others if likely else others)


def jobs_that_are(*statuses: str) -> st.SearchStrategy[str]:
    """Name a job, most often one in such a status."""

    def choose(run: Run) -> st.SearchStrategy[str]:
        fit = [
            name for name, id_ in run.ids.items() if id_ in run.world.jobs and run.world.current(id_).status in statuses
        ]
        return mostly(fit, [name for name in run.ids if name not in fit])

    return st.runner().flatmap(choose)


def _claims(run: Run) -> st.SearchStrategy[str]:
    """Name a claim, most often of a job that runs, by this claim or by a later one: so there are zombies."""
    running = {id_ for id_, job in run.world.jobs.items() if job.status == "running"}
    live = [name for name, token in run.tokens.items() if token.job in running]
    return mostly(live, [name for name in run.tokens if name not in live])


def lanes_that(fit: Callable[[Lane], bool]) -> st.SearchStrategy[str]:
    """Name a lane, most often one that fits."""

    def choose(run: Run) -> st.SearchStrategy[str]:
        likely = [key for key, lane in run.world.lanes.items() if fit(lane)]
        return mostly(likely, [key for key in LANES if key not in likely])

    return st.runner().flatmap(choose)


anybody = jobs_that_are()
likely_blockers = jobs_that_are("pending", "blocked", "running", "failed")
nexts = st.fixed_dictionaries(
    {
        "task": tasks,
        "lane": st.sampled_from((INHERITED, INHERITED, INHERITED, None, "red", "blue")),
        "queue": st.sampled_from((None, None, "default", "other")),
        "priority": st.sampled_from((None, None, 0, 1)),
        "tags": st.sampled_from((None, None, (), ("b",))),
        "delay": delays,
        "paused": rarely,
        "names": st.one_of(st.just([]), st.just([]), st.lists(likely_blockers, min_size=1, max_size=2)),
        "on_blocker_failure": policies,
    }
)
claims = st.runner().flatmap(_claims)


# ---- when a rule makes sense

MOST_JOBS, MOST_WITH_WAITING, MOST_STEPS = 6, 8, 12


def has_room(run: Run) -> bool:
    """Allow a rule that starts a job."""
    return len(run.world.chains()) < MOST_JOBS


def has_room_for_one_that_waits(run: Run) -> bool:
    """Allow a rule that starts a job which waits for others."""
    return len(run.world.chains()) < MOST_WITH_WAITING


def may_go_on(run: Run) -> bool:
    """Allow a rule that continues chains once something was claimed."""
    return bool(run.tokens) and len(run.world.jobs) < MOST_STEPS


def may_be_completed(run: Run) -> bool:
    """Allow a rule that completes, and perhaps continues, a job without a worker."""
    return len(run.world.jobs) < MOST_STEPS


def some(*statuses: str) -> Callable[[Run], bool]:
    """Allow a rule while a job is in one of *statuses*."""
    return lambda run: any(job.status in statuses for job in run.world.jobs.values())


def some_lane(fits: Callable[[Lane], bool]) -> Callable[[Run], bool]:
    """Allow a rule while a lane *fits*."""
    return lambda run: any(map(fits, run.world.lanes.values()))


def some_claim(run: Run) -> bool:
    """Allow a rule once something was claimed."""
    return bool(run.tokens)


def some_suspect(run: Run) -> bool:
    """Allow a rule while a job has been claimed whose handler has not begun."""
    return any(job.status == "running" and not job.has_begun for job in run.world.jobs.values())


def is_paused(lane: Lane) -> bool:
    """Tell whether somebody has paused a lane."""
    return lane.is_paused


def is_moving(lane: Lane) -> bool:
    """Tell whether nobody has."""
    return not lane.is_paused


def is_halted(lane: Lane) -> bool:
    """Tell whether a job halts a lane."""
    return lane.head is not None and lane.head.status in HALTING


class EveryRule:
    """Stands in for Hypothesis' choice of the rules that an example does without: it does without none."""

    def is_enabled(self, name: str) -> bool:
        """Say yes."""
        return True
