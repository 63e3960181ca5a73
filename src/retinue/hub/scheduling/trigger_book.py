"""Adds, lists and changes triggers for callers of the hub; access is as in `book`."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from retinue.core.call import Principal
from retinue.core.errors import InvalidParametersError, InvalidRequestError, Problem
from retinue.hub.run_access import reject_limited
from retinue.hub.scheduling.book import Change
from retinue.hub.scheduling.firing import Firing, own
from retinue.hub.scheduling.rows import (
    PAUSED_BY,
    RowBook,
    find_problem,
    make_name,
    read_rule,
    refuse_ended,
    render_last,
)
from retinue.hub.scheduling.signatures import check_secret, new_secret
from retinue.mesh.permissions import matches
from retinue.workflows.definitions.definition import Definition
from retinue.workflows.definitions.starts import TRIGGERS, Triggers
from retinue.workflows.triggers import StoredTrigger, TriggerProgress

if TYPE_CHECKING:  # with the database libraries, which a process without runs does not load
    from retinue.workflows.durable.tables.revised import RevisedTable

Json = dict[str, Any]

HOOKS_PATH = "/webhooks"

NEW_SECRET = "new"  # noqa: S105 - the word that asks for one


class TriggerBook(RowBook[StoredTrigger]):
    """The triggers of a mesh. ``exists`` = whether there may be any, ``url`` is the address of this hub.

    ``list_agents`` gives the state of each agent, by name.
    """

    def __init__(
        self,
        open_table: Callable[[], Awaitable[RevisedTable[StoredTrigger]]],
        firing: Firing,
        *,
        exists: Callable[[], bool] = lambda: True,
        url: str | None = None,
        list_agents: Callable[[], Mapping[str, str]] = dict,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(open_table, firing, exists)
        self._url = (url or "").rstrip("/")
        self._list_agents = list_agents
        self._clock = clock

    async def add(
        self,
        principal: Principal,
        workflow: str,
        name: str | None,
        on: Json | str | None,
        secret: str | None,
    ) -> Json:
        """Add a trigger, or replace one of this name; ``on`` replaces keys of the workflow's own one.

        A webhook keeps its address and secret if the same caller adds it again; a new secret is in the answer
        and is never shown again. Raises InvalidParametersError, NotAllowedError, UnknownWorkflowError,
        DefinitionError.
        """
        owner = own(principal)
        loaded = await self._firing.starter.library.get(workflow)
        name = make_name(workflow, name)
        rule = _make_rule(loaded.definition, on)
        if secret not in (None, NEW_SECRET):
            secret = check_secret(secret or "")
        digest = await self._firing.digest(loaded)
        table = await self._open_table()
        now = self._clock()
        trigger = StoredTrigger(
            id=self._access.stored_id(name, principal),
            workflow=workflow,
            rule=rule,
            owner=owner,
            digest=digest,
            home=await table.read_home(),
            added_at=now,
        )
        shown: Json = {}
        if rule.agent is not None:
            # of the agents that are here already none joins
            glob, states = (rule.agent.name,), self._list_agents()
            known = {agent: state for agent, state in states.items() if matches(agent, glob)}
            trigger = replace(trigger, progress=TriggerProgress(agents=known))
        if rule.webhook is not None:
            before = await table.find(trigger.id)
            is_kept = before is not None and before.hook is not None and before.owner.id == owner.id
            hook = before.hook if before is not None and is_kept else token_hex(16)
            kept = before.secret if before is not None and is_kept and secret is None else ""
            value = kept or (new_secret() if secret in (None, NEW_SECRET) else secret or "")
            trigger = replace(trigger, hook=hook, secret=value)
            shown = {} if kept else {"secret": value}
        elif secret is not None:
            raise InvalidParametersError([Problem("secret", "field 'secret' is for webhooks only")])
        await table.put(trigger)
        return await self._render(trigger, principal) | shown

    async def change(self, principal: Principal, name: str, change: Change) -> Json:
        """Pause, resume or remove a trigger; raises UnknownScheduleError, InvalidRequestError."""
        reject_limited(principal)
        table = await self._open_table()
        trigger = await self._get(table, principal, name)
        if change == "remove":
            await table.remove(trigger.id)
            return {"schedule": name, "status": "removed"}
        if change == "run_now":
            raise InvalidRequestError(
                f"{name} starts a run for each {trigger.kind} event, which brings the input",
                remedy=f"start the workflow itself: retinue run {trigger.workflow} --input JSON",
            )
        if change == "resume":
            refuse_ended(self._firing, trigger)
            await self._firing.load(trigger)
        while True:
            paused = f"{PAUSED_BY}{principal.id}" if change == "pause" else ""
            progress: TriggerProgress = replace(trigger.progress, paused=paused, broken="", waiting=())
            if await table.change(trigger, progress):
                return await self._render(replace(trigger, progress=progress), principal)
            trigger = await self._get(table, principal, name)

    async def _render(self, trigger: StoredTrigger, principal: Principal, *, home: str = "") -> Json:
        progress = trigger.progress
        problem = progress.broken
        if not progress.paused and trigger.home == home:
            problem = await find_problem(self._firing, trigger)
        row: Json = {
            "schedule": self._access.shown_id(trigger.id, principal),
            "workflow": trigger.workflow,
            "owner": trigger.owner.id,
            "status": "paused" if progress.paused else "broken" if problem else "active",
            "on": trigger.kind,
            **trigger.options.model_dump(mode="json", exclude_none=True),
        }
        if trigger.hook is not None:
            row["url"] = f"{self._url}{HOOKS_PATH}/{trigger.hook}"
        if reason := progress.paused or problem:
            row["reason"] = reason
        if progress.last is not None:
            at = datetime.fromtimestamp(progress.last.scheduled_at, UTC).isoformat(timespec="seconds")
            row["last"] = {"at": at} | await render_last(self._firing, progress.last, principal)
        return row


def _make_rule(definition: Definition, rule_keys: Json | str | None) -> Triggers:
    """The trigger of a definition with the keys that were given; raises InvalidParametersError."""
    own_rule = {} if definition.on is None else definition.on.model_dump(exclude_defaults=True)
    if rule_keys is None:
        keys: Mapping[str, Any] = own_rule
    elif isinstance(rule_keys, str):
        keys = {rule_keys: own_rule.get(rule_keys, {})}
    else:
        keys = {
            kind: {**own_rule.get(kind, {}), **(options if isinstance(options, Mapping) else {})}
            for kind, options in rule_keys.items()
        }
    if len(keys) != 1:
        raise InvalidParametersError(
            [Problem("on", f"field 'on' has one kind of event: give one of {', '.join(TRIGGERS)}")]
        )
    return read_rule(Triggers, keys, "on")
