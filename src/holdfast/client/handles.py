"""Lanes, queues and webhooks as people hold them: `hf.lane(key)`, `hf.queue(name)`, `hf.webhooks`, in both colours.

What is done to a whole lane or queue, or to subscriptions, is done in a short transaction of our own, never in a
caller's: the engine needs these rows for everybody's jobs, and every job that ends reads the subscriptions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, ParamSpec, TypeAlias, TypeVar, Unpack
from uuid import UUID

from holdfast import current_block
from holdfast.client import insight
from holdfast.client.list_options import PageOptions, page_of
from holdfast.client.starter import Starter
from holdfast.client.verbs import asked_by
from holdfast.database.tx import Operation, Runner, drive
from holdfast.errors import InvalidId, InvalidInput, SubscriptionNotFound, got, near_and_all, shown
from holdfast.ids import Target, target_id
from holdfast.models import DEFAULT_TRIGGERS, TRIGGERS, Delivery, Job, LaneInfo, Page, Subscription, Trigger
from holdfast.signing_keys import SECRET_PREFIX
from holdfast.store import lanes, webhooks
from holdfast.store.webhooks import NewSubscription
from holdfast.tasks.calls import check_own, is_name
from holdfast.tasks.decoder import Decoder
from holdfast.times import milliseconds_of

P = ParamSpec("P")
R = TypeVar("R")

Subscriptions: TypeAlias = list[Subscription]  # where a method is called list, the word means that

MOST_NAMES = 100


async def write_alone(runner: Runner, verb: str, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run *operation* in a transaction of our own; *verb* is named if a block of a handler is open here."""
    current_block.refuse_alone(verb)
    return await runner.run(operation, *args, **kwargs)


class LaneHandle:
    """A lane, by its key; made by `hf.lane(key)`, which reads and changes nothing."""

    def __init__(self, key: str, runner: Runner, decoder: Decoder) -> None:
        self.key = key
        self._runner = runner
        self._decoder = decoder

    async def pause(self, *, by: str | None = None, why: str | None = None, if_head: Target | None = None) -> None:
        """Claim none of its jobs until it is resumed; a running one is left to finish."""
        asked, head = asked_by(by, why), _head(if_head)
        await write_alone(self._runner, "hf.lane(…).pause", lanes.pause_lane, self.key, asked, head)

    async def resume(self, *, by: str | None = None, why: str | None = None, if_head: Target | None = None) -> bool:
        """Claim its jobs again; tell whether it was paused. A job that halts it still does."""
        asked, head = asked_by(by, why), _head(if_head)
        return await write_alone(self._runner, "hf.lane(…).resume", lanes.resume_lane, self.key, asked, head)

    async def skip(
        self, *, by: str | None = None, why: str | None = None, if_head: Target | None = None
    ) -> UUID | None:
        """Set aside the failed or paused job that halts it, as it is; return its id, or None if none does.

        With *if_head*, the job that halts it as you have seen it, this and the others raise `HeadConflict` if another
        halts it now, or none. Raises `LaneNotFound` if there is no such lane.
        """
        asked, head = asked_by(by, why), _head(if_head)
        return await write_alone(self._runner, "hf.lane(…).skip", lanes.skip, self.key, asked, head)

    async def info(self) -> LaneInfo:
        """Tell how many jobs stand in it, who halts it and why, and whether it is paused."""
        return await self._runner.read(lanes.lane_info, self.key)

    async def jobs(self, **page: Unpack[PageOptions]) -> Page[Job]:
        """List the jobs that stand in it: the one whose turn it is, then the others in the order of their turns."""
        return await insight.list_lane_jobs(self._runner, self._decoder, self.key, page)


class BlockingLaneHandle:
    """A lane, by its key; made by `hf.sync.lane(key)`, which reads and changes nothing."""

    def __init__(self, key: str, runner: Runner, decoder: Decoder) -> None:
        self.key = key
        self._runner = runner
        self._decoder = decoder

    def pause(self, *, by: str | None = None, why: str | None = None, if_head: Target | None = None) -> None:
        """Claim none of its jobs until it is resumed; a running one is left to finish."""
        asked, head = asked_by(by, why), _head(if_head)
        drive(write_alone(self._runner, "hf.lane(…).pause", lanes.pause_lane, self.key, asked, head))

    def resume(self, *, by: str | None = None, why: str | None = None, if_head: Target | None = None) -> bool:
        """Claim its jobs again; tell whether it was paused. A job that halts it still does."""
        asked, head = asked_by(by, why), _head(if_head)
        return drive(write_alone(self._runner, "hf.lane(…).resume", lanes.resume_lane, self.key, asked, head))

    def skip(self, *, by: str | None = None, why: str | None = None, if_head: Target | None = None) -> UUID | None:
        """Set aside the failed or paused job that halts it, as it is; return its id, or None if none does.

        With *if_head*, the job that halts it as you have seen it, this and the others raise `HeadConflict` if another
        halts it now, or none. Raises `LaneNotFound` if there is no such lane.
        """
        asked, head = asked_by(by, why), _head(if_head)
        return drive(write_alone(self._runner, "hf.lane(…).skip", lanes.skip, self.key, asked, head))

    def info(self) -> LaneInfo:
        """Tell how many jobs stand in it, who halts it and why, and whether it is paused."""
        return drive(self._runner.read(lanes.lane_info, self.key))

    def jobs(self, **page: Unpack[PageOptions]) -> Page[Job]:
        """List the jobs that stand in it: the one whose turn it is, then the others in the order of their turns."""
        return drive(insight.list_lane_jobs(self._runner, self._decoder, self.key, page))


class QueueHandle:
    """A queue, by its name; made by `hf.queue(name)`, which reads and changes nothing."""

    def __init__(self, name: str, runner: Runner) -> None:
        self.name = name
        self._runner = runner

    async def pause(self, *, until: datetime | None = None, by: str | None = None, why: str | None = None) -> None:
        """Claim none of its jobs until it is resumed, or until then; what runs is left to finish."""
        await write_alone(
            self._runner,
            "hf.queue(…).pause",
            lanes.pause_queue,
            self.name,
            None if until is None else milliseconds_of(until, "until"),
            asked_by(by, why),
        )

    async def resume(self, *, by: str | None = None, why: str | None = None) -> bool:
        """Claim its jobs again; tell whether it was paused."""
        return await write_alone(self._runner, "hf.queue(…).resume", lanes.resume_queue, self.name, asked_by(by, why))


class BlockingQueueHandle:
    """A queue, by its name; made by `hf.sync.queue(name)`, which reads and changes nothing."""

    def __init__(self, name: str, runner: Runner) -> None:
        self.name = name
        self._runner = runner

    def pause(self, *, until: datetime | None = None, by: str | None = None, why: str | None = None) -> None:
        """Claim none of its jobs until it is resumed, or until then; what runs is left to finish."""
        drive(
            write_alone(
                self._runner,
                "hf.queue(…).pause",
                lanes.pause_queue,
                self.name,
                None if until is None else milliseconds_of(until, "until"),
                asked_by(by, why),
            )
        )

    def resume(self, *, by: str | None = None, why: str | None = None) -> bool:
        """Claim its jobs again; tell whether it was paused."""
        return drive(write_alone(self._runner, "hf.queue(…).resume", lanes.resume_queue, self.name, asked_by(by, why)))


class WebhooksHandle:
    """The subscriptions, and the deliveries that were made for them and for jobs with a webhook of their own."""

    def __init__(self, runner: Runner, starter: Starter) -> None:
        self._verbs = WebhookVerbs(runner, starter)

    async def subscribe(
        self,
        url: str,
        *,
        events: Sequence[Trigger] = DEFAULT_TRIGGERS,
        tasks: Sequence[str] | None = None,
        secrets: Sequence[str] = (),
        name: str | None = None,
    ) -> Subscription:
        """Have *url* told of *events* of all jobs, or of those of *tasks* only, from now on.

        With a *name* you may repeat the call: there is one subscription of this name, and the call changes it if
        something is different. Without, each call makes another one.

        *secrets* are names out of the setting `webhook_secrets`; without, `webhook_secret` says which one signs. A job
        that has a `webhook=` of its own, or `webhook=None`, is told to no subscription. Raises `InvalidAddress`.
        """
        return await self._verbs.subscribe(url, events, tasks, secrets, name)

    async def list(self) -> Subscriptions:
        """List all subscriptions, the oldest first."""
        return await self._verbs.list_all()

    async def get(self, subscription: Target) -> Subscription:
        """Read a subscription, or raise `SubscriptionNotFound`."""
        return await self._verbs.get(subscription)

    async def remove(self, subscription: Target) -> None:
        """Forget a subscription, or raise `SubscriptionNotFound`; deliveries that exist are still tried."""
        await self._verbs.remove(subscription)

    async def disable(self, subscription: Target, *, why: str | None = None) -> Subscription:
        """Tell a subscription of nothing until it is enabled; deliveries that exist are still tried."""
        return await self._verbs.disable(subscription, why)

    async def enable(self, subscription: Target) -> Subscription:
        """Tell a subscription again, of what happens from now on; one whose receiver was gone has been disabled."""
        return await self._verbs.enable(subscription)

    async def deliveries(
        self, *, job: Target | None = None, subscription: Target | None = None, **page: Unpack[PageOptions]
    ) -> Page[Delivery]:
        """List deliveries a page at a time, newest first: all, those about *job*, or those for *subscription*.

        Raises `JobNotFound`. A delivery is kept for two days after its end unless retention is set otherwise; what is
        known of it goes with the job that it is about, too.
        """
        return await self._verbs.deliveries(job, subscription, page)

    async def redeliver(self, delivery: Target, *, by: str | None = None, why: str | None = None) -> Delivery:
        """Deliver once more what a delivery that has ended was to deliver: the same body, under the same `webhook-id`.

        So a receiver that has lost it takes it, and one that has it can tell. Raises `DeliveryNotFound`, and
        `StatusConflict` for one that is still tried: `hf.trigger(delivery)` has it tried now.
        """
        return await self._verbs.redeliver(delivery, by, why)


class BlockingWebhooksHandle:
    """The subscriptions, and the deliveries that were made for them and for jobs with a webhook of their own."""

    def __init__(self, runner: Runner, starter: Starter) -> None:
        self._verbs = WebhookVerbs(runner, starter)

    def subscribe(
        self,
        url: str,
        *,
        events: Sequence[Trigger] = DEFAULT_TRIGGERS,
        tasks: Sequence[str] | None = None,
        secrets: Sequence[str] = (),
        name: str | None = None,
    ) -> Subscription:
        """Have *url* told of *events* of all jobs, or of those of *tasks* only, from now on.

        With a *name* you may repeat the call: there is one subscription of this name, and the call changes it if
        something is different. Without, each call makes another one.

        *secrets* are names out of the setting `webhook_secrets`; without, `webhook_secret` says which one signs. A job
        that has a `webhook=` of its own, or `webhook=None`, is told to no subscription. Raises `InvalidAddress`.
        """
        return drive(self._verbs.subscribe(url, events, tasks, secrets, name))

    def list(self) -> Subscriptions:
        """List all subscriptions, the oldest first."""
        return drive(self._verbs.list_all())

    def get(self, subscription: Target) -> Subscription:
        """Read a subscription, or raise `SubscriptionNotFound`."""
        return drive(self._verbs.get(subscription))

    def remove(self, subscription: Target) -> None:
        """Forget a subscription, or raise `SubscriptionNotFound`; deliveries that exist are still tried."""
        drive(self._verbs.remove(subscription))

    def disable(self, subscription: Target, *, why: str | None = None) -> Subscription:
        """Tell a subscription of nothing until it is enabled; deliveries that exist are still tried."""
        return drive(self._verbs.disable(subscription, why))

    def enable(self, subscription: Target) -> Subscription:
        """Tell a subscription again, of what happens from now on; one whose receiver was gone has been disabled."""
        return drive(self._verbs.enable(subscription))

    def deliveries(
        self, *, job: Target | None = None, subscription: Target | None = None, **page: Unpack[PageOptions]
    ) -> Page[Delivery]:
        """List deliveries a page at a time, newest first: all, those about *job*, or those for *subscription*.

        Raises `JobNotFound`. A delivery is kept for two days after its end unless retention is set otherwise; what is
        known of it goes with the job that it is about, too.
        """
        return drive(self._verbs.deliveries(job, subscription, page))

    def redeliver(self, delivery: Target, *, by: str | None = None, why: str | None = None) -> Delivery:
        """Deliver once more what a delivery that has ended was to deliver: the same body, under the same `webhook-id`.

        So a receiver that has lost it takes it, and one that has it can tell. Raises `DeliveryNotFound`, and
        `StatusConflict` for one that is still tried: `hf.trigger(delivery)` has it tried now.
        """
        return drive(self._verbs.redeliver(delivery, by, why))


class WebhookVerbs:
    """What both handles do, written once: over a blocking runner nothing suspends."""

    def __init__(self, runner: Runner, starter: Starter) -> None:
        self._runner = runner
        self._starter = starter

    async def subscribe(
        self,
        url: str,
        events: Sequence[str],
        tasks: Sequence[str] | None,
        secrets: Sequence[str],
        name: str | None,
    ) -> Subscription:
        """Check what is given, and make a subscription, or change that of its name."""
        self._starter.addresses.check(url)
        wanted = _words("events", events)
        if not wanted:
            raise InvalidInput(f"events must name at least one of {', '.join(TRIGGERS)}", "events")
        if strange := [each for each in wanted if each not in TRIGGERS]:
            near = near_and_all(strange[0], TRIGGERS, "the events are")
            raise InvalidInput(f"webhooks have no event {shown(strange[0])}{near}", "events")
        only = None if tasks is None else _words("tasks", tasks)
        if only == ():
            raise InvalidInput("tasks is empty, so nothing would be sent; leave tasks out to subscribe to all", "tasks")
        signing = _words("secrets", secrets)
        if any(each.startswith(SECRET_PREFIX) for each in signing):
            raise InvalidInput(
                "secrets takes the names of secrets, but this looks like a secret itself (whsec_…); put it into the "
                'settings, webhook_secrets={"shop": …} or HOLDFAST_WEBHOOK_SECRETS, and pass its name: '
                'secrets=["shop"], or --secret shop',
                "secrets",
            )
        _check_name(name)
        asked = NewSubscription(self._starter.new_id(), url, wanted, only, signing, name)
        return await write_alone(self._runner, "hf.webhooks.subscribe", webhooks.subscribe, asked)

    async def list_all(self) -> list[Subscription]:
        """List all subscriptions."""
        return await self._runner.read(webhooks.list_subscriptions)

    async def get(self, subscription: Target) -> Subscription:
        """Read one."""
        return await self._runner.read(webhooks.get_subscription, _subscription_key(subscription))

    async def remove(self, subscription: Target) -> None:
        """Forget one."""
        key = _subscription_key(subscription)
        if not await write_alone(self._runner, "hf.webhooks.remove", webhooks.unsubscribe, key):
            raise SubscriptionNotFound(key)

    async def enable(self, subscription: Target) -> Subscription:
        """Tell one again."""
        return await write_alone(self._runner, "hf.webhooks.enable", webhooks.enable, _subscription_key(subscription))

    async def disable(self, subscription: Target, why: str | None) -> Subscription:
        """Tell one nothing."""
        key, reason = _subscription_key(subscription), asked_by(None, why).why
        return await write_alone(self._runner, "hf.webhooks.disable", webhooks.disable, key, reason)

    async def deliveries(self, job: Target | None, subscription: Target | None, page: PageOptions) -> Page[Delivery]:
        """List deliveries."""
        about = None if job is None else target_id(job)
        receiver = None if subscription is None else await self._id_of(subscription)
        return await self._runner.read(webhooks.list_deliveries, about, receiver, page_of(page, "deliveries()"))

    async def _id_of(self, subscription: Target) -> UUID:
        return (await self.get(subscription)).id if _is_name(subscription) else target_id(subscription)

    async def redeliver(self, delivery: Target, by: str | None, why: str | None) -> Delivery:
        """Deliver once more."""
        said = asked_by(by, why).said()
        new_id = self._starter.new_id()
        return await write_alone(
            self._runner, "hf.webhooks.redeliver", webhooks.redeliver, target_id(delivery), new_id, said
        )


def _head(if_head: Target | None) -> UUID | None:
    return None if if_head is None else target_id(if_head)


def _check_name(name: str | None) -> None:
    if name is None:
        return
    check_own("name", name)
    if not _is_name(name):
        raise InvalidInput(f"name must not be an id, {got(name)}; choose a word, e.g. name='billing'", "name")


def _subscription_key(subscription: Target) -> str:
    """Give the name of a subscription if it is named so, or else its id as a text."""
    if not _is_name(subscription):
        return str(target_id(subscription))
    if not is_name(subscription):
        raise InvalidInput("pass the id of a subscription, or its name: a text of printable characters", "subscription")
    return subscription


def _is_name(subscription: Target) -> bool:
    """Tell whether this is the name of a subscription, and not its id."""
    if not isinstance(subscription, str):
        return False
    try:
        target_id(subscription)
    except InvalidId:
        return True
    return False


def _words(option: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise InvalidInput(f"{option} must be a list; write {option}=[…]", option)
    words = tuple(dict.fromkeys(value))
    if not all(map(is_name, words)) or len(words) > MOST_NAMES:
        raise InvalidInput(f"{option} must be a list of at most {MOST_NAMES} names", option)
    return words
