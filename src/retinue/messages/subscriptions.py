"""Subscriptions: send news of a task, or of an agent's capabilities, to a URL until they are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from retinue.core.call import new_id
from retinue.core.errors import BusyError
from retinue.messages.codec.envelope import Envelope
from retinue.messages.codec.payloads import PerformativeReply, accepted
from retinue.messages.tasks import MessageTask

MAX_SUBSCRIPTIONS = 500
SUBSCRIPTIONS_OF_A_CALLER = 50
MAX_FAILURES = 5
"""A subscription whose URL fails so often, one after the other, ends."""


Watch = Callable[[str, Callable[[], None]], Callable[[], None]]
"""Calls back when the skills of an agent may have changed; returns the function that ends it."""

Summarise = Callable[[], Awaitable[PerformativeReply]]
"""The agent's present summary: INFORM_CAPABILITIES, or the reason why there is none."""


@dataclass(slots=True, eq=False)
class Subscription:
    """News that go to a URL; ``stop`` ends their source."""

    owner: str
    request: Envelope
    agent: str
    id: str = field(default_factory=new_id)
    stop: Callable[[], None] = lambda: None
    failures: int = 0
    last: PerformativeReply | None = None

    def names(self) -> tuple[str, ...]:
        """The keys of a subscription."""
        ids = (self.id, self.request.message_id, self.request.reply_with)
        return tuple(dict.fromkeys(reference for reference in ids if reference is not None))


class Subscriptions:
    """The subscriptions of one process; ``send`` delivers one reply to the request of a subscription.

    ``save`` stores one, and may raise; ``forget`` removes it.
    """

    def __init__(
        self,
        send: Callable[[Envelope, PerformativeReply, str, Callable[[bool], None]], None],
        *,
        save: Callable[[Subscription], None] = lambda subscription: None,
        forget: Callable[[Subscription], None] = lambda subscription: None,
    ) -> None:
        self._send = send
        self._save = save
        self._forget = forget
        self._all: dict[tuple[str, str], Subscription] = {}

    def add(self, owner: str, request: Envelope, agent: str) -> Subscription:
        """A new subscription to news of ``agent``; raises BusyError when there are too many, of all or of
        this caller.
        """
        if (
            len({id(subscription) for (who, _), subscription in self._all.items() if who == owner})
            >= SUBSCRIPTIONS_OF_A_CALLER
        ):
            raise BusyError(f"{SUBSCRIPTIONS_OF_A_CALLER} subscriptions of {owner} are open", 60.0)
        if len({id(subscription) for subscription in self._all.values()}) >= MAX_SUBSCRIPTIONS:
            raise BusyError(f"{MAX_SUBSCRIPTIONS} subscriptions are open", 60.0)
        subscription = Subscription(owner, request, agent)
        self._save(subscription)
        for name in subscription.names():
            if (old := self._all.get((owner, name))) is not None:
                self.end(old)
            self._all[owner, name] = subscription
        return subscription

    def follow_task(self, owner: str, request: Envelope, task: MessageTask) -> PerformativeReply:
        """Tell of the progress of a task, and of its end, which ends the subscription."""
        subscription = self.add(owner, request, task.agent)

        def tell(task: MessageTask, reply: PerformativeReply) -> None:
            self.tell(subscription, reply)
            if reply.performative != "TASK_ACCEPT":
                self.end(subscription)

        task.observers.append(tell)
        subscription.stop = lambda: task.observers.remove(tell) if tell in task.observers else None
        if task.reply is not None:
            tell(task, task.reply)
        return accepted(subscription.id, f"news of task {task.id} go to callback_url")

    async def follow_capabilities(
        self, owner: str, request: Envelope, agent: str, watch: Watch, summarise: Summarise
    ) -> PerformativeReply:
        """Send an agent's capabilities whenever their summary has changed."""
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def note_change() -> None:
            # observers may be called in any thread
            loop.call_soon_threadsafe(changed.set)

        unwatch = watch(agent, note_change)
        try:
            first = await summarise()
            if first.performative != "INFORM_CAPABILITIES":
                unwatch()
                return first
            subscription = self.add(owner, request, agent)
        except BaseException:
            unwatch()
            raise
        subscription.last = first

        async def follow() -> None:
            while True:
                await changed.wait()
                changed.clear()
                news = await summarise()
                if news.performative == "INFORM_CAPABILITIES":
                    self.tell(subscription, news)

        following = asyncio.create_task(follow())

        def stop() -> None:
            unwatch()
            following.cancel()

        subscription.stop = stop
        return accepted(subscription.id, "changes of the capabilities go to callback_url")

    def find(self, reference: str, owner: str) -> Subscription | None:
        """The subscription of this owner that an id names."""
        return self._all.get((owner, reference))

    def tell(self, subscription: Subscription, reply: PerformativeReply) -> None:
        """Send news, unless they are the same as the last."""
        if subscription.last == reply:
            return
        subscription.last = reply

        def note(arrived: bool) -> None:
            subscription.failures = 0 if arrived else subscription.failures + 1
            if subscription.failures >= MAX_FAILURES:
                self.end(subscription)

        self._send(subscription.request, reply, subscription.agent, note)

    def end(self, subscription: Subscription) -> None:
        """End one subscription."""
        self._forget(subscription)
        self._stop(subscription)

    def tell_end(self, subscription: Subscription, reply: PerformativeReply) -> None:
        """Send the last news of a subscription, and forget it after the last attempt."""

        def note(arrived: bool) -> None:
            self._forget(subscription)

        self._stop(subscription)
        self._send(subscription.request, reply, subscription.agent, note)

    def _stop(self, subscription: Subscription) -> None:
        subscription.stop()
        for name in subscription.names():
            if self._all.get((subscription.owner, name)) is subscription:
                del self._all[subscription.owner, name]

    def close(self, reply_of: Callable[[Subscription], PerformativeReply]) -> None:
        """End all, and tell their receivers ``reply_of`` each."""
        for subscription in {id(kept): kept for kept in self._all.values()}.values():
            self.tell_end(subscription, reply_of(subscription))
