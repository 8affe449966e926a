"""Tasks and their registry: names, calls, declarations, merging and what a stranger is told."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, BeforeValidator
from typing_extensions import TypedDict

from holdfast import Holdfast, Retry
from holdfast.errors import DuplicateTask, InvalidInput, InvalidOutput, Misuse, UnknownTask
from holdfast.tasks.calls import Call, Options
from holdfast.tasks.registry import Tasks
from holdfast.tasks.task import Policy, Task
from holdfast.worker.attempts.context import Context


class ChargeInput(BaseModel):
    order_id: int
    note: str = ""


NUMBERS = count(1)
NextNumber = Annotated[int, BeforeValidator(lambda given: next(NUMBERS) if given is None else given)]


@dataclass
class Receipt:
    number: int


class Letter(TypedDict):
    to: str


@pytest.fixture
def tasks() -> Tasks:
    return Tasks()


@pytest.fixture
def greet(tasks: Tasks) -> Task[..., str]:
    @tasks.task(name="mail.greet")
    async def greet(name: str, times: int = 1) -> str:
        """Greet somebody."""
        return name * times

    return greet


def arguments_of(call: Call[Any]) -> Any:
    return json.loads(call.consume().arguments)


def test_calling_a_task_builds_a_call_with_defaults_applied(greet: Task[..., str]) -> None:
    call = greet("Ada").consume()

    assert (call.task, call.arguments) == ("mail.greet", '{"name":"Ada","times":1}')


def test_arguments_are_converted_to_their_types(greet: Task[..., str]) -> None:
    assert arguments_of(greet(name="Ada", times="3")) == {"name": "Ada", "times": 3}


def test_a_missing_argument_is_named_with_its_task(greet: Task[..., str]) -> None:
    with pytest.raises(
        InvalidInput, match=r"^arguments\.name: it is missing; write greet\(name=…\) \(task mail\.greet"
    ):
        greet(times=1)


@pytest.mark.source("JC-95")
def test_a_wrong_argument_is_named_with_its_task(greet: Task[..., str]) -> None:
    with pytest.raises(InvalidInput, match=r"^arguments\.times: .* \(task mail\.greet\(name: str"):
        greet("Ada", times="many")


def test_an_argument_that_nobody_takes_is_named(greet: Task[..., str]) -> None:
    with pytest.raises(
        InvalidInput,
        match=r"^greet\(\) has no argument 'nmae'; did you mean name\? Its arguments are: name: str, times",
    ):
        greet(nmae="Ada")


def test_a_default_that_can_change_is_copied_for_each_call(tasks: Tasks) -> None:
    @tasks.task
    def collect(into: list[int] = [1]) -> None: ...  # noqa: B006 - the point

    tasks.get(collect.name).decode_input(collect().consume().arguments).into.append(2)

    assert arguments_of(collect()) == {"into": [1]}


@pytest.mark.parametrize("name", ["json", "copy", "self", "model_config", "schema", "_private", "cls", "given"])
def test_a_parameter_may_have_any_name(tasks: Tasks, name: str) -> None:
    namespace: dict[str, Any] = {"__name__": "anything"}
    exec(f"def f(first: int, {name}: int) -> None: ...", namespace)
    task = tasks.task(namespace["f"])

    assert arguments_of(task(first=1, **{name: 2})) == {"first": 1, name: 2}


def test_the_context_is_no_argument(tasks: Tasks) -> None:
    @tasks.task
    async def charge(ctx: Context, order_id: int) -> str:
        return f"{ctx} {order_id}"

    assert arguments_of(charge(1)) == {"order_id": 1}


def test_stored_arguments_are_read_as_attributes(greet: Task[..., str]) -> None:
    arguments = greet.decode_input('{"name":"Ada","times":2}')

    assert (arguments.name, arguments.times) == ("Ada", 2)


def test_stored_arguments_that_fit_no_more_are_refused(greet: Task[..., str]) -> None:
    with pytest.raises(InvalidInput, match=r"^arguments\.colour: "):
        greet.decode_input('{"name":"Ada","colour":"red"}')


def test_an_output_is_stored_and_read_as_its_type(tasks: Tasks) -> None:
    @tasks.task
    def charge(order_id: int) -> Receipt:
        return Receipt(order_id)

    assert charge.decode_output(charge.encode_output(Receipt(7))) == Receipt(7)


def test_an_output_of_another_type_is_refused(greet: Task[..., str]) -> None:
    with pytest.raises(InvalidOutput, match=r"^output: .* \(task mail\.greet: compare what was returned"):
        greet.encode_output(7)


def test_no_output_is_null_where_the_type_has_it_and_refused_each_time_where_it_has_not(
    tasks: Tasks, greet: Task[..., str]
) -> None:
    @tasks.task
    def silent(x: int) -> None:
        """Return nothing."""

    assert [silent.encode_output(None) for _ in range(2)] == ["null", "null"]
    for _ in range(2):
        with pytest.raises(InvalidOutput):
            greet.encode_output(None)


def test_no_output_is_written_as_its_type_makes_it_anew_each_time(tasks: Tasks) -> None:
    @tasks.task
    def counted(x: int) -> NextNumber:
        return x

    first, second = (int(counted.encode_output(None)) for _ in range(2))

    assert second > first


def test_an_output_without_a_type_must_survive_json(tasks: Tasks) -> None:
    @tasks.task
    def silent(x: int):  # type: ignore[no-untyped-def]
        return x

    with pytest.raises(InvalidOutput, match=r"output\[0\]: a tuple would come back as a list"):
        silent.encode_output([(1, 2)])


async def test_run_runs_an_async_function_here(greet: Task[..., str]) -> None:
    assert await greet.run("Ada", times=2) == "AdaAda"


def test_run_runs_a_plain_function_here(tasks: Tasks) -> None:
    @tasks.task
    def double(x: int) -> int:
        return 2 * x

    assert double.run(21) == 42


def test_a_task_keeps_the_documentation_of_its_function(greet: Task[..., str]) -> None:
    assert (greet.__doc__, greet.__name__) == ("Greet somebody.", "greet")  # type: ignore[attr-defined]


def test_the_policy_of_a_task_is_under_the_options_of_a_call(tasks: Tasks) -> None:
    @tasks.task(queue="mail", priority=5, history=False)
    def send(to: str) -> None: ...

    call = send(to="Ada").options(priority=9).consume()

    assert call.chosen == Options(queue="mail", priority=9, history=False)


def test_a_task_without_a_policy_has_the_default_one(greet: Task[..., str]) -> None:
    assert greet("Ada").consume().chosen == Options(queue="default", priority=0, history=True)


def test_options_without_a_function_make_a_registrar_that_can_be_refined(tasks: Tasks) -> None:
    mail_task = tasks.task(queue="mail", priority=1)

    @mail_task(priority=7)
    def send(to: str) -> None: ...

    assert send.policy == Policy(queue="mail", priority=7)


@pytest.mark.parametrize("name", ["holdfast.deliver", "holdfast.mine"])
def test_the_names_of_the_engines_own_tasks_are_refused(tasks: Tasks, name: str) -> None:
    def send(to: str) -> None: ...

    with pytest.raises(Misuse, match="Holdfast keeps"):
        tasks.task(name=name)(send)
    with pytest.raises(Misuse, match="Holdfast keeps"):
        tasks.task(aliases=[name])(send)
    with pytest.raises(Misuse, match="Holdfast keeps"):
        tasks.declare(name, Letter, None)
    with pytest.raises(UnknownTask):
        tasks.call(name, {})


@pytest.mark.parametrize(
    "options",
    [{"priority": 101}, {"queue": "a\nb"}, {"queue": None}, {"queue": "holdfast.internal"}, {"history": "no"}],
)
def test_a_policy_that_cannot_be_is_refused(tasks: Tasks, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):

        @tasks.task(**options)
        def f(x: int) -> None: ...


def test_a_task_option_that_does_not_exist_is_refused_with_those_that_do(tasks: Tasks) -> None:
    with pytest.raises(
        Misuse,
        match=r"@hf.task has no option 'retries'; did you mean retry\?.* The options are: aliases, .*, tenants, time",
    ):
        tasks.task(retries=3)  # type: ignore[call-overload]


def test_a_task_is_called_after_its_module_and_function(tasks: Tasks) -> None:
    @tasks.task
    def here(x: int) -> None: ...

    assert here.name == f"{__name__}.here"


def test_a_script_goes_by_the_name_of_its_file(tmp_path: Path) -> None:
    script = tmp_path / "shop.py"
    script.write_text(
        "from holdfast.tasks.registry import Tasks\n"
        "tasks = Tasks()\n"
        "@tasks.task\n"
        "def sell(x: int) -> None: ...\n"
        "print(sell.name)\n"
    )

    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)

    assert ran.stdout == "shop.sell\n"


@pytest.mark.parametrize("name", ["", "a b", "größe", "x" * 201, "a/b", "a\n", 7])
def test_a_name_that_cannot_be_is_refused(tasks: Tasks, name: Any) -> None:
    with pytest.raises(Misuse, match="a task cannot be called"):
        tasks.declare(name, ChargeInput, str)


def test_aliases_are_a_list(tasks: Tasks) -> None:
    with pytest.raises(Misuse, match=r"write aliases=\['old'\]"):

        @tasks.task(aliases="old")
        def f(x: int) -> None: ...


def test_a_type_that_pydantic_does_not_know_is_refused_when_the_task_is_defined(tasks: Tasks) -> None:
    class Opaque: ...

    with pytest.raises(Misuse, match=r"the arguments of task .*Opaque.*use types that pydantic knows"):

        @tasks.task
        def f(x: Opaque) -> None: ...


def test_a_refused_function_leaves_the_registry_as_it_was(tasks: Tasks) -> None:
    with pytest.raises(Misuse):
        tasks.task(lambda: None)

    assert list(tasks) == []


@pytest.mark.parametrize(
    ("input_type", "given", "stored"),
    [
        (ChargeInput, {"order_id": 1}, {"order_id": 1, "note": ""}),
        (Receipt, {"number": 1}, {"number": 1}),
        (Letter, {"to": "Ada"}, {"to": "Ada"}),
    ],
)
def test_a_declared_task_is_called_with_the_fields_of_its_input(
    tasks: Tasks, input_type: Callable[..., Any], given: dict[str, Any], stored: dict[str, Any]
) -> None:
    task = tasks.declare("billing.charge", input_type, str)

    assert arguments_of(task(**given)) == stored


def test_a_declared_task_reads_its_input_as_declared(tasks: Tasks) -> None:
    charge = tasks.declare("billing.charge", ChargeInput, Receipt)

    assert charge.decode_input('{"order_id":1}') == ChargeInput(order_id=1)


def test_a_declared_task_refuses_an_argument_that_its_input_lacks(tasks: Tasks) -> None:
    charge = tasks.declare("billing.charge", ChargeInput, Receipt)

    with pytest.raises(InvalidInput, match=r"has no argument 'nota'"):
        charge(order_id=1, nota="x")  # type: ignore[call-arg]


def test_a_declared_task_leaves_queue_and_priority_to_the_owner_of_its_code(tasks: Tasks) -> None:
    charge = tasks.declare("billing.charge", ChargeInput, Receipt)

    assert charge(order_id=1).consume().chosen == Options()


def test_a_declared_task_may_have_a_queue_of_its_own(tasks: Tasks) -> None:
    charge = tasks.declare("billing.charge", ChargeInput, Receipt, queue="billing")

    assert charge(order_id=1).consume().chosen == Options(queue="billing")


def test_a_declared_task_cannot_run_here(tasks: Tasks) -> None:
    charge = tasks.declare("billing.charge", ChargeInput, Receipt)

    with pytest.raises(Misuse, match="only declared here"):
        charge.run(order_id=1)


def test_a_call_by_name_is_validated_if_the_task_is_known(tasks: Tasks, greet: Task[..., str]) -> None:
    with pytest.raises(InvalidInput, match=r"arguments\.name: it is missing"):
        tasks.call(greet.name, {})


def test_a_call_by_alias_has_the_name_of_the_task(tasks: Tasks) -> None:
    @tasks.task(name="new", aliases=["old"])
    def f(x: int) -> None: ...

    assert tasks.call("old", {"x": 1}).consume().task == "new"


def test_a_call_of_an_unknown_task_is_only_checked_to_be_storable(tasks: Tasks) -> None:
    call = tasks.call("elsewhere.charge", {"order": [1, {"a": None}]}).consume()

    assert (call.arguments, call.chosen) == ('{"order":[1,{"a":null}]}', Options())


@pytest.mark.parametrize("arguments", [{"a": "\0"}, {"a": (1,)}, {1: 2}, [1], None, "text"])
def test_arguments_of_an_unknown_task_that_cannot_be_stored_are_refused(tasks: Tasks, arguments: Any) -> None:
    with pytest.raises(InvalidInput):
        tasks.call("elsewhere.charge", arguments)


def test_a_name_that_no_task_can_have_is_unknown(tasks: Tasks) -> None:
    with pytest.raises(UnknownTask):
        tasks.call("drop table; --", {})


def test_a_task_is_found_by_name_and_by_alias(tasks: Tasks) -> None:
    @tasks.task(name="new", aliases=["old", "older"])
    def f(x: int) -> None: ...

    assert (tasks.get("new"), tasks.get("older")) == (f, f)


@pytest.mark.source("JC-96")
def test_an_unknown_task_is_answered_with_the_names_that_are_near(tasks: Tasks, greet: Task[..., str]) -> None:
    with pytest.raises(UnknownTask) as caught:
        tasks.get("mail.gret")

    assert caught.value.known == (greet.name,)


def test_a_registry_counts_and_lists_a_task_once_whatever_its_aliases(tasks: Tasks) -> None:
    @tasks.task(name="new", aliases=["old"])
    def f(x: int) -> None: ...

    assert (len(tasks), list(tasks), "old" in tasks) == (1, [f], True)


def test_a_second_task_of_the_same_name_is_refused_with_both_places(tasks: Tasks, greet: Task[..., str]) -> None:
    with pytest.raises(DuplicateTask) as caught:

        @tasks.task(name="mail.greet")
        def other(x: int) -> None: ...

    assert caught.value.names == ("mail.greet",)
    assert caught.value.places[0].count(__file__) == 2


def test_an_alias_that_another_task_has_is_refused(tasks: Tasks, greet: Task[..., str]) -> None:
    with pytest.raises(DuplicateTask):

        @tasks.task(name="fresh", aliases=["mail.greet"])
        def other(x: int) -> None: ...

    assert "fresh" not in tasks


def test_registries_merge(tasks: Tasks, greet: Task[..., str]) -> None:
    both = Tasks()

    both.merge(tasks, tasks)

    assert list(both) == [greet]


@pytest.mark.source("JC-96")
def test_a_merge_names_all_clashes_and_takes_nothing(tasks: Tasks) -> None:
    others = Tasks()
    for registry in (tasks, others):
        registry.declare("a", ChargeInput, str)
        registry.declare("b", ChargeInput, str)
    others.declare("c", ChargeInput, str)

    with pytest.raises(DuplicateTask) as caught:
        tasks.merge(others)

    assert (caught.value.names, len(tasks)) == (("a", "b"), 2)


def test_a_record_tells_a_stranger_policy_and_schemas(tasks: Tasks) -> None:
    @tasks.task(name="charge", queue="billing")
    def charge(order_id: int, note: str = "") -> Receipt:
        return Receipt(order_id)

    record = charge.record()

    policy = json.loads(record.policy)
    assert (policy["queue"], policy["priority"], policy["lease"], policy["attempts"]) == ("billing", 0, 30.0, 20)
    assert json.loads(record.input_schema)["required"] == ["order_id"]
    assert json.loads(record.output_schema)["properties"]["number"]["type"] == "integer"


def test_a_record_tells_a_stranger_what_is_hidden_and_says_nothing_where_nothing_is(tasks: Tasks) -> None:
    async def fetch(ctx: Context, card: dict[str, str]) -> str:
        return "done"

    hidden = tasks.pipeline("pay", fetch, redact=["card.number", "*.iban"])
    plain = tasks.declare("plain", ChargeFields, int)

    assert json.loads(hidden.record().policy)["redact"] == ["card.number", "*.iban"]
    assert "redact" not in json.loads(plain.record().policy)


def test_the_version_of_a_record_changes_with_policy_or_schema_only() -> None:
    def version(task: Task[..., Any]) -> str:
        return task.record().version

    first, second, third = Tasks(), Tasks(), Tasks()
    same = [version(each.declare("a", ChargeInput, str)) for each in (first, second)]

    assert same[0] == same[1]
    assert same[0] != version(third.declare("a", ChargeInput, str, queue="other"))
    assert same[0] != version(third.declare("b", ChargeInput, int))


def test_a_type_without_a_json_schema_has_an_empty_one(tasks: Tasks) -> None:
    @tasks.task
    def f(x: Callable[[], int]) -> None: ...

    assert f.record().input_schema == "{}"


def test_a_default_without_json_form_is_left_out_of_the_schema(tasks: Tasks) -> None:
    @dataclass
    class Odd:
        x: Any = field(default=object())

    task = tasks.declare("odd", Odd, str)

    assert "default" not in task.record().input_schema


def test_a_declared_task_takes_every_option_of_a_task() -> None:
    tasks = Tasks()

    charge = tasks.declare("billing.charge", ChargeFields, int, lease=5, queue="billing", halts_lane=False)

    assert (charge.policy.lease, charge.policy.queue, charge.policy.halts_lane) == (5, "billing", False)
    assert charge(order_id=1).consume().chosen.queue == "billing"
    assert charge(order_id=1).consume().chosen.priority is None


@pytest.mark.parametrize(
    ("option", "wrong", "says"),
    [
        ("lease", "3", "lease must be 1 to 86400 seconds"),
        ("lease", None, "lease must be 1 to 86400 seconds"),
        ("lease", True, "lease must be 1 to 86400 seconds"),
        ("lease", 0.5, "lease must be 1 to 86400 seconds"),
        ("lease", float("nan"), "lease must be 1 to 86400 seconds"),
        ("timeout", "3", "timeout must be seconds above 0"),
        ("timeout", 0, "timeout must be seconds above 0"),
        ("retry", 3, "write retry=Retry(attempts=3)"),
        ("on_lost", "fial", "'retry' or 'fail' or 'pause'"),
        ("on_interrupt", "retry", "'give_back' or 'pause'"),
        ("cancel_running", True, "'cancel' or 'pause'"),
        ("redact", "card.number", 'write redact=("card.number",)'),
        ("redact", None, "redact must be a list of paths"),
        ("redact", ["card..number"], "with a dot between them"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_with_what_to_write(option: str, wrong: Any, says: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        Tasks().declare("billing.charge", ChargeFields, int, **{option: wrong})

    assert says in str(refusal.value)
    assert refusal.value.path == f"options.{option}"


@dataclass
class ChargeFields:
    order_id: int


def test_a_call_remembers_what_was_said_of_its_place_by_its_task_or_by_itself() -> None:
    tasks = Tasks()

    @tasks.task(name="pinned", queue="mail")
    async def pinned() -> None: ...

    @tasks.task(name="free")
    async def free() -> None: ...

    assert pinned().consume().chosen.given == {"queue"}
    assert free().consume().chosen.given == frozenset()
    assert free().options(lane=None).options(tags=["a"]).consume().chosen.given == {"lane", "tags"}


# ---- what a registry chooses for all its tasks


def nothing() -> None: ...


QUICK, PATIENT, STEADY = Retry(attempts=2), Retry(attempts=None), Retry(backoff="fixed")


@pytest.mark.source("JC-86", "JC-28")
def test_the_task_goes_before_its_registry_the_application_and_the_library() -> None:
    tasks = Tasks(retry=QUICK)
    plain, own = tasks.task(name="plain")(nothing), tasks.task(name="own", retry=STEADY)(nothing)
    other = Tasks()
    bare = other.task(name="bare")(nothing)

    hf = Holdfast("jobs.db", tasks=[tasks, other], retry=PATIENT, lease=90)
    here = hf.task(name="here")(nothing)

    chosen = {each.name: (each.policy.retry, each.policy.lease) for each in hf.tasks}
    assert chosen == {"plain": (QUICK, 90), "own": (STEADY, 90), "bare": (PATIENT, 90), "here": (PATIENT, 90)}
    assert [each.policy.lease for each in (plain, own, bare, here)] == [30, 30, 30, 90]


def test_two_applications_of_one_registry_have_their_own_defaults() -> None:
    tasks = Tasks()
    task = tasks.task(name="task", aliases=["former"])(nothing)
    task.record()

    patient, quick, usual = (Holdfast("jobs.db", tasks=[tasks], retry=retry) for retry in (PATIENT, QUICK, None))

    assert [each.tasks.get("former").policy.retry for each in (patient, quick, usual)] == [PATIENT, QUICK, Retry()]
    assert [json.loads(each.tasks.get("task").record().policy)["attempts"] for each in (patient, quick)] == [None, 2]
    assert usual.tasks.get("task") is task


def test_a_task_that_was_given_defaults_is_no_duplicate_of_itself() -> None:
    tasks = Tasks()
    tasks.task(name="task")(nothing)
    hf = Holdfast("jobs.db", tasks=[tasks], lease=90)

    hf.tasks.merge(tasks, hf.tasks)

    assert len(hf.tasks) == 1


@pytest.mark.parametrize("wrong", [{"lease": 0}, {"lease": "30"}, {"retry": 3}])
def test_defaults_that_no_task_can_have_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Tasks(**wrong)
    with pytest.raises(InvalidInput):
        Holdfast("jobs.db", **wrong)
