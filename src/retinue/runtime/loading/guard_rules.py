"""Makes the guards of ``[guards]``: those that are built in, and those of installed packages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from retinue.approvals.records import OF_GUARDS
from retinue.core.call import Call
from retinue.core.errors import InvalidSettingError, PolicyDeniedError
from retinue.core.record import Listing
from retinue.core.text import suggest
from retinue.mesh.channel import Channel
from retinue.mesh.dispatch import Approve, ApprovedCall, PolicyLimits
from retinue.plugins import find_plugin, list_plugins
from retinue.settings_tables import GuardTable

if TYPE_CHECKING:
    from retinue.guards.call_guards import AskPerson, CallGuards
    from retinue.guards.guard import Guard
    from retinue.policies.approving import OpenApprovals

BUILT_IN = ("sensitive", "instructions")


def make_guards(tables: Mapping[str, GuardTable], ask: AskPerson | None = None) -> CallGuards | None:
    """The guards in the order of their tables, None without any; raises InvalidSettingError.

    ``ask`` makes the question of a guard to a person.
    """
    enabled = {name: table for name, table in tables.items() if table.enabled}
    if not enabled:
        return None
    # imported here, because most processes have no guards
    from retinue.guards.call_guards import CallGuards, GuardRule

    return CallGuards(
        [
            GuardRule(f"guards.{name}", _make_guard(name, table), table.skills, table.timeout_s)
            for name, table in enabled.items()
        ],
        ask,
    )


def ask_person(
    open_approvals: OpenApprovals | None,
    call: Call,
    listing: Listing,
    skill: str,
    asking: Sequence[tuple[str, str]],
) -> Approve:
    """What uses the yes of a person about a call that guards ask about."""
    # imported here, because few guards ask
    from retinue.policies.approving import AskingGuard, CallQuestion

    names = [name for name, _ in asking]
    if open_approvals is None:

        async def refuse(channel: Channel, limits: PolicyLimits | None) -> ApprovedCall:
            raise PolicyDeniedError(
                f"{listing.name}/{skill} needs the approval of a person, and this process cannot ask",
                policies=names,
                remedy="call it through the hub, which keeps approvals",
            )

        return refuse
    note = {"verdict": "approve", "ids": names, "watched": False}
    guards = tuple(AskingGuard(name, reason) for name, reason in asking)
    question = CallQuestion.of(call, listing, skill, guards, OF_GUARDS, note)
    return partial(question.use_answer, open_approvals, None)


def _make_guard(name: str, table: GuardTable) -> Guard:
    from retinue.guards.guard import GUARDS_GROUP, InstructionGuard, SensitiveGuard

    use = table.use or name
    if use == "sensitive":
        _refuse_options(name, table)
        return SensitiveGuard(table.kinds, table.arguments or "off", table.results or "redact", table.exempt)
    if use == "instructions":
        _refuse_options(name, table)
        if table.arguments not in (None, "off"):
            raise InvalidSettingError(
                f"guards.{name}.arguments",
                "the guard looks at results of foreign agents only",
                remedy="leave it out",
            )
        return InstructionGuard(table.results or "deny")
    plugin = find_plugin(GUARDS_GROUP, use)
    if plugin is None:
        names = [*BUILT_IN, *(plugin.name for plugin in list_plugins(GUARDS_GROUP))]
        near = suggest(use, names)
        raise InvalidSettingError(
            f"guards.{name}.use",
            f"no guard {use!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
            remedy=f"use one of {', '.join(names)}, or install the package that has the guard",
        )
    guard: Any = plugin.load(GUARDS_GROUP)
    if isinstance(guard, type) or (callable(guard) and not _looks(guard)):
        guard = guard(dict(table.options))
    if not _looks(guard):
        raise InvalidSettingError(
            f"guards.{name}.use",
            f"{plugin.target} of {plugin.distribution} has neither before(call) nor after(call, value)",
            remedy="give the entry point an object with one of the two functions",
        )
    return guard  # type: ignore[no-any-return]


def _looks(guard: Any) -> bool:
    return callable(getattr(guard, "before", None)) or callable(getattr(guard, "after", None))


def _refuse_options(name: str, table: GuardTable) -> None:
    if table.options:
        raise InvalidSettingError(
            f"guards.{name}.options",
            "a guard that is built in has no options",
            remedy="set kinds, arguments, results, exempt, skills or timeout_s",
        )
