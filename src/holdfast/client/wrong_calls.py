"""What to write instead, for those who start jobs as other libraries do: `hf.start(add, a=1)`, `add.delay(…)`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import Misuse, UnknownMethod, got, shown
from holdfast.tasks.calls import Call
from holdfast.tasks.task import START_METHODS, Task

WORKER = "a worker is async; write `async with hf, hf.worker(): …`, or run `holdfast worker shop.jobs:hf` in a terminal"
BY_NAME = 'write `await hf.start(hf.call("name", {…}))`'
RESULT = "write `chain.result(timeout=10)`, in async code with `await`"
STATE = "write `hf.get_job(chain).state`, or `chain.status` for what it was when it was read"

OF_HOLDFAST = {
    "configure": "give the settings to `Holdfast(database, …)`, and the options of a job to `hf.start(task(…), …)`",
    "configure_task": BY_NAME,
    "periodic": "it is not built yet; start the jobs from cron, with a `unique` key for each turn",
    "run_worker": WORKER,
    "run_worker_async": WORKER,
    "send_task": BY_NAME,
    "worker": WORKER,
}
OF_CHAIN = {
    "get": RESULT,
    "get_status": STATE,
    "ready": "write `not hf.get_chain(chain).is_open`, in async code with `await`",
    "return_value": RESULT,
    "revoke": "write `hf.cancel(chain)`",
    "state": STATE,
}
"""What other libraries have, and what to write here."""


def check_call(given: object, options: Mapping[str, Any], more: Sequence[object] = ()) -> None:
    """Raise `Misuse` unless *given* is a call, and all; *more* and *options* are probably the arguments it lacks."""
    if not isinstance(given, Call):
        arguments = [*map(shown, more), *(f"{name}={shown(value)}" for name, value in options.items())]
        raise Misuse(f"hf.start() takes {_instead(given, ', '.join(arguments))}")
    if more:
        for call in (given, *more):
            if isinstance(call, Call):
                call.consume()  # this error is enough; no warning follows that they were not started
        raise Misuse(
            f"hf.start() takes one call, and then keywords, but after the call {got(more[0])}; write `await "
            "hf.start_many([…])` for several calls, or the option's name, e.g. delay=60"
        )


def _instead(given: object, arguments: str) -> str:
    match given:
        case Task():
            call = f"{given.function_name}({arguments or given.signature.binding.example})"
            return f"a call, but got the task {given.name!r}; write `await hf.start({call})`"
        case str():
            named = f"hf.call({shown(given)}, {{…}})"
            text = f"{given.rpartition('.')[2]}({arguments or '…'})"
            return f"a call, but got the text {shown(given)}; write `await hf.start({text})`, or `hf.start({named})`"
        case list() | tuple():
            return f"one call, but {got(given)}; write `await hf.start_many([…])`"
    if inspect.iscoroutine(given):
        name = given.__name__
        return f"a call, but got a coroutine of {name}, which is not a task; put `@hf.task` above `async def {name}`"
    if inspect.isfunction(given):
        name = given.__name__
        return (
            f"a call, but got the function {name}, which is not a task; put `@hf.task` above it and write "
            f"`await hf.start({name}({arguments or '…'}))`"
        )
    return (
        f"a call, but {got(given)}; put `@hf.task` above the function, without which a call runs it, and write "
        "`await hf.start(function(argument=…))`"
    )


def no_attribute(owner: object, name: str) -> AttributeError:
    """Make the error for an attribute that *owner*, a Holdfast of either colour, does not have."""
    if name in OF_HOLDFAST:
        return UnknownMethod(f"{type(owner).__name__} has no method {name}(); {OF_HOLDFAST[name]}")
    if name in START_METHODS:
        return UnknownMethod(
            f"Holdfast has no method {name}(); write `await hf.start(task(argument=…))`, or `hf.sync.start(…)` in "
            "blocking code"
        )
    return AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}", name=name, obj=owner)


def not_of_chain(owner: object, name: str) -> AttributeError:
    """Make the error for an attribute that *owner*, a chain, does not have."""
    if name in OF_CHAIN:
        return UnknownMethod(f"a chain has no {name}; {OF_CHAIN[name]}")
    return AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}", name=name, obj=owner)
