"""Calls that a schedule keeps and starts again and again: what is stored of one, and how it is read back.

Stored is only what the call says itself. What it leaves to its task, such as the queue, is asked for anew at each
start, so that a task may change it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from holdfast.errors import InvalidInput, Misuse, got
from holdfast.keywords import refuse_unknown
from holdfast.models import Unique
from holdfast.schedule_rules import ScheduleRule, make_rule
from holdfast.schedules import NewSchedule, ScheduleOptions, StoredCall, check_missed
from holdfast.tasks.calls import NAME_LENGTH, NO_OPTIONS, Call, check_milliseconds, check_own
from holdfast.tasks.task import Task

KEPT = ("delay_ms", "priority", "queue", "lane", "paused", "unique", "webhook", "tags", "attempts")
OF_ONE_JOB = {"id": "id", "run_at_ms": "run_at", "blockers": "blockers", "parent": "parent"}
"""What makes no sense for a call that is started again and again, by the fields of its options."""


class DeclaredSchedule(NamedTuple):
    """A schedule that code declares; with *for_tenants* each tenant has it, and not the control place."""

    schedule: NewSchedule
    for_tenants: bool
    place: str


def make_schedule(
    name: str, call: Call[Any], task: Task[..., Any] | None, verb: str, options: ScheduleOptions
) -> NewSchedule:
    """Check what *verb* was given, and take *call*, of *task* if its code is here, as used."""
    if isinstance(call, Call):
        call.consume()
    refuse_unknown(options, ScheduleOptions.__optional_keys__, verb)
    if not isinstance(call, Call):
        raise Misuse(f"{verb} takes a call, {got(call)}; write {verb[:-1]}{name!r}, task(argument=…), cron=…)")
    stored = write_call(call, task)
    if name == "":
        raise InvalidInput(f"give the schedule a name of 1 to {NAME_LENGTH} characters", "options.name")
    check_own("name", name)
    rule = rule_of(options)
    jitter_ms = check_milliseconds("jitter", options.get("jitter", 0), "for no jitter")
    return NewSchedule(name, stored, rule, check_missed(options.get("missed", "one")), jitter_ms)


def rule_of(options: ScheduleOptions) -> ScheduleRule:
    """Make the rule that is given; or raise `InvalidRule`."""
    return make_rule(options.get("cron"), options.get("every"), options.get("timezone"))


def call_without_arguments(task: Task[..., Any], options: ScheduleOptions) -> Call[Any]:
    """Call *task*, whose decorator has *options*, as its schedule does; raise `Misuse` if it needs arguments."""
    rule_of(options)  # first: timezone= alone makes no schedule, and then arguments are no fault
    try:
        return task()
    except InvalidInput as error:
        name = task.function_name
        raise Misuse(
            f"task {task.name!r} has cron= or every=, so it is started without arguments, and it needs some; give them "
            f"defaults, or write hf.schedule({name!r}, {name}(argument=…), cron=…)"
        ) from error


def write_call(call: Call[Any], task: Task[..., Any] | None) -> StoredCall:
    """Give what is stored of *call*; raise `InvalidInput` for options that only one job can have."""
    for field, option in OF_ONE_JOB.items():
        if getattr(call.chosen, field) != getattr(NO_OPTIONS, field):
            raise InvalidInput(
                f"a schedule starts many jobs, and {option}= is for one; leave it out of the call", f"options.{option}"
            )
    own = NO_OPTIONS if task is None else task.chosen
    said = {name: value for name in KEPT if (value := getattr(call.chosen, name)) != getattr(own, name)}
    if isinstance(unique := said.get("unique"), Unique):
        said["unique"] = asdict(unique)
    return StoredCall(call.task, call.arguments, json.dumps(said, sort_keys=True))


def read_call(stored: StoredCall, task: Task[..., Any] | None) -> Call[Any]:
    """Make the call again; its arguments are checked anew if the code of *task* is here. Raises `InvalidInput`."""
    said: dict[str, Any] = json.loads(stored.options)
    if strange := said.keys() - set(KEPT):
        raise InvalidInput(f"this release of Holdfast does not know the option {min(strange)!r} of the call", "options")
    if (unique := said.get("unique")) is not None:
        said["unique"] = Unique(**unique)
    if "tags" in said:
        said["tags"] = tuple(said["tags"])
    if task is None:
        return Call(stored.task, stored.input, replace(NO_OPTIONS, **said)).consume()
    return Call(task.name, task.check_input(stored.input), replace(task.chosen, **said)).consume()
