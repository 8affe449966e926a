"""What readers of the log and receivers of webhooks were given."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from holdfast.models import INTERNAL_QUEUE
from tests.torture.history import Line
from tests.torture.rules import Findings, Known, Rules


class StreamRules(Rules):
    """Each reader and each message, beside the events that there were."""

    def __init__(self, known: Known, findings: Findings) -> None:
        super().__init__(known, findings)
        self._deliveries: list[dict[str, Any]] = []

    def take_delivery(self, line: Line) -> None:
        """Remember a message that is to be sent."""
        self._deliveries.append(line.row)

    def conclude(self) -> None:
        """Look at all that was given."""
        self._look_at_streams()
        self._look_at_made_hooks()
        self._look_at_taken_hooks()
        self._look_at_order_of_hooks()

    def _look_at_streams(self) -> None:
        """I-43, I-44, I-71: every event once, in the order of its job, and none ahead of the job's state."""
        expected = {
            job: [(name, version) for _, name, version in sorted(events)]
            for job, events in self._known.events.items()
            if self._known.queues.get(job) != INTERNAL_QUEUE
        }
        for way, lines in self._history.streams.items():
            given: dict[str, list[tuple[str, int | None]]] = defaultdict(list)
            for line in lines:
                if line["name"] == "reset":
                    self._say("I-44", f"reader {way} could not go on where it was, though nothing was removed")
                    continue
                given[line.get("job") or ""].append((line["name"], line["version"] if line.get("job") else None))
                if line.get("queue") == INTERNAL_QUEUE:
                    self._say("I-70", f"reader {way} was told of a delivery")
                if line["version"] is not None and line.get("job") and line["job_version"] < line["version"]:
                    self._say("I-43", f"reader {way}: {line['name']} is of version {line['version']}, its job older")
            for job in expected.keys() | given.keys():
                self._look_at_stream(way, job, expected.get(job, []), given.get(job, []))

    def _look_at_stream(self, way: str, job: str, expected: list[Any], given: list[Any]) -> None:
        if job == "":  # of lanes: they have no job, and no order among them
            expected, given = sorted(name for name, _ in expected), sorted(name for name, _ in given)
        if job in self._known.gone:  # whoever reads later than it goes is told of that alone
            expected = expected[: len(given)]
        if expected != given:
            missed = Counter(expected) - Counter(given)
            twice = Counter(given) - Counter(expected)
            self._say("I-44", f"reader {way}, job {job}: missed {dict(missed)}, too much {dict(twice)}, of {expected}")

    def _look_at_made_hooks(self) -> None:
        """I-47: a message is made of each event that is to be told, and of no other."""
        ids = self._known.ids
        made = Counter((ids[row["target"]], row["event"]) for row in self._deliveries)
        wanted = self._wanted_hooks()
        for key in made.keys() | wanted.keys():
            if made[key] != wanted[key]:
                self._say("I-47", f"{wanted[key]} messages are to be sent of {key}, and {made[key]} were made")

    def _wanted_hooks(self) -> Counter[tuple[str, str]]:
        facts, known = self._history.facts, self._known
        if not facts["webhooks"]:
            return Counter()
        return Counter(
            (job, name)
            for job, events in known.events.items()
            for _, name, _ in events
            if name in facts["subscribed"]
            and job in known.jobs
            and known.jobs[job].task in facts["subscribed_tasks"]
            and known.webhooks[job] is None
        )

    def _look_at_taken_hooks(self) -> None:
        """I-47, I-70: each message comes until it is taken, always the same, and no other."""
        sent = {self._known.ids[row["job"]] for row in self._deliveries}
        bodies: dict[str, set[str]] = defaultdict(set)
        for line in self._history.hooks:
            bodies[line["message"]].add(line["body"])
        self._reached["webhook arrived"] += len(bodies)
        self._reached["webhook arrived again"] += len(self._history.hooks) - len(bodies)
        for message in bodies.keys() - sent:
            self._say("I-70", f"message {message} came, and there is no such delivery")
        for message in sent - {line["message"] for line in self._history.hooks if line["answer"] == "take"}:
            self._say("I-47", f"message {message} was never taken")
        for message, several in bodies.items():
            if len(several) > 1:
                self._say("I-47", f"message {message} came with {len(several)} bodies")

    def _look_at_order_of_hooks(self) -> None:
        """I-48: the messages of a job come in order, each for the first time."""
        arrived: dict[str, int] = {}
        for number, line in enumerate(self._history.hooks):
            arrived.setdefault(line["message"], number)
        by_target: dict[int, list[int]] = defaultdict(list)
        for row in sorted(self._deliveries, key=lambda row: row["job"]):
            message = self._known.ids[row["job"]]
            if message in arrived:
                by_target[row["target"]].append(arrived[message])
        for target, numbers in by_target.items():
            if numbers != sorted(numbers):
                self._say("I-48", f"the messages of job {target} came in the order {numbers}")
