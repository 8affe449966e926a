"""What a run has done and reached, in numbers: how much was injected, what came of it, how soon it was put right."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from bench.report import grid
from holdfast.models import INTERNAL_QUEUE
from holdfast.worker.upkeep.reaper import PERIOD_SECONDS
from tests.torture.checker import check
from tests.torture.history import History, deaths_of

PERIOD = 1.1 * PERIOD_SECONDS

FAULTS = {
    "SIGKILL": "kill -9",
    "SIGSTOP": "stop",
    "SIGTERM": "drain",
    "restart server": "server restart",
    "cut": "cut",
    "cut before commit": "cut before COMMIT",
    "cut after commit": "cut after COMMIT",
    "silence": "silence",
    "slowness": "slowness",
    "open writer": "stranger's transaction left open",
    "lock rows": "rows locked by a stranger",
    "hold file": "file held by a stranger",
}
TROUBLES = ("restart server", "silence", "hold file")
"""What keeps everybody from taking back what is lost, and for a lease afterwards."""
MUST_REACH = ("reaped", "given back", "cancel while running", "pause while running", "lane halted", "unblocked",
              "prepared", "continued", "poison", "suspect run", "webhook arrived again", "explained",
              "completed outside while it ran")  # fmt: skip
"""What every long run comes by; one that does not is too tame to prove anything."""
MUST_REACH_ON = {"sqlite": ("proved dead",), "postgres": ("unknown commit", "fenced")}


class Recovery(NamedTuple):
    """How many seconds after the death of its worker a job was taken back, and ran again."""

    taken: float
    running: float


@dataclass(frozen=True, slots=True)
class Report:
    """The verdict on a history, and its numbers."""

    history: History
    violations: list[str]
    injected: Counter[str]
    reached: Counter[str]
    recoveries: list[Recovery]

    @property
    def missing(self) -> list[str]:
        """What a long run should have reached, and did not."""
        wanted = (*MUST_REACH, *MUST_REACH_ON[self.history.facts["database"]])
        return [name for name in wanted if not self.reached[name]]

    def table(self) -> str:
        """Write it all down."""
        facts = self.history.facts
        title = f"{facts['database']}, seed {facts['seed']}, {facts['seconds']:g} s"
        lines = [("injected", name, str(count)) for name, count in sorted(self.injected.items())]
        lines += [("reached", name, str(count)) for name, count in sorted(self.reached.items())]
        lines += [("recovered", name, f"{seconds:.2f} s") for name, seconds in self.recovery().items()]
        return grid((title, "", "times"), lines, ("times",))

    def recovery(self) -> dict[str, float]:
        """Tell how long it took until jobs of a dead worker ran again, beside how long it may take."""
        quiet = next((line["seconds"] for line in self.history.harm if line["what"] == "done"), float("nan"))
        times = {"all done after the last fault": quiet}
        for what, seconds in (
            ("taken back after its worker's death", [each.taken for each in self.recoveries]),
            ("running again after its worker's death", [each.running for each in self.recoveries]),
        ):
            times |= {f"{what}, median": median(seconds), f"{what}, longest": max(seconds)} if seconds else {}
        return times | {"lease and period, by which it is to be taken back": self.limit}

    @property
    def limit(self) -> float:
        """How many seconds after its worker's death a job is taken back at the latest, if nothing else is wrong."""
        return float(self.history.facts["lease"] + PERIOD)


def report(history: History) -> Report:
    """Check *history*, and count."""
    findings = check(history)
    injected = Counter(FAULTS[line["what"]] for line in history.harm if line["what"] in FAULTS)
    reached = findings.reached + more(history)
    return Report(history, findings.violations, injected, reached, recoveries(history))


def more(history: History) -> Counter[str]:
    """Count what is not told by the audit."""
    reached: Counter[str] = Counter()
    for run in history.runs:
        if run["what"] == "end" and run["reason"] in ("taken_by_another_worker", "error"):
            reached["fenced"] += 1
        if run["what"] == "abort":
            reached["process aborted by its job"] += 1
    for line in history.audit:
        if line.what == "job" and line.old is None:
            reached["jobs"] += 1
            reached["continued"] += line.row["chain_index"] > 0
        if line.what == "job" and line.new is not None and line.old is not None:
            reached["completed"] += line.change.completes
        reached["events"] += line.what == "event"
    for call in history.calls:
        reached[f"calls {call.end}"] += 1
    reached["unknown commit"] += reached["calls unknown"] + sum(row["said"] for row in history.final["doubts"])
    return reached


def recoveries(history: History) -> list[Recovery]:
    """Tell for each job whose worker died how soon it was put right, unless the store was in trouble, too.

    To be taken back is what is promised; when it runs again depends on what else waits, and whether it must run alone.
    """
    died, workers = deaths_of(history), {row["id"]: row["process"] for row in history.final["worker"]}
    troubles = [history.wall_ms(line["at"]) for line in history.harm if line["what"] in TROUBLES]
    lease_ms = history.facts["lease"] * 1000
    waiting: dict[str, tuple[float, int]] = {}
    found = []
    for line in history.audit:
        if line.what != "job" or line.new is None or line.old is None or line.new["queue"] == INTERNAL_QUEUE:
            continue
        each = line.change
        death = died.get(workers.get(each.old_worker or "", 0))
        if each.old_status == "running" and each.crashes > each.old_crashes and death is not None and death < each.at:
            waiting[each.id] = (death, each.at)
        elif each.status == "running" and each.old_status == "pending" and each.id in waiting:
            since, taken_at = waiting.pop(each.id)
            if not any(since - lease_ms < trouble < taken_at for trouble in troubles):
                found.append(Recovery((taken_at - since) / 1000, (each.at - since) / 1000))
        elif each.status != "pending":
            waiting.pop(each.id, None)
    return found
