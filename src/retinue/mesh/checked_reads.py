"""Checks a read of a resource, a prompt or a completion: policies and guards, then the approval.

The dispatch path does the same for calls. The source of a read calls `read_checked`, because it knows which
agent has the item.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from retinue.core.call import Answer, Call
from retinue.core.errors import RetinueError
from retinue.core.record import Listing, Prompt, Resource, Skill
from retinue.mesh.channel import Channel
from retinue.mesh.dispatch import Approve, Dispatcher, Guards, PermittedCall, use_permission
from retinue.mesh.guard.trace_guard import AdmittedCall
from retinue.mesh.reading import Completion, PromptText, Read, ReadRequest


async def read_checked(
    checks: Dispatcher,
    listing: Listing,
    request: ReadRequest,
    call: Call,
    admitted: AdmittedCall,
    channel: Channel,
    read: Callable[[ReadRequest, Call, Channel], Awaitable[Read]],
) -> Read:
    """What ``read`` gives of the agent of a listing, where the policies and guards of ``checks`` let it.

    Raises PolicyDeniedError, ApprovalNeededError, and what ``read`` raises.
    """
    guards = checks.guards
    if guards is not None and not guards.concern(listing.name):
        guards = None
    if checks.check_read is None and guards is None:
        return await read(request, call, channel)
    item = item_of(request)
    permitted = PermittedCall()
    if checks.check_read is not None:
        permitted = await checks.check_read(call, listing, item, admitted, channel)
        admitted.policy = permitted.note
        call = replace(call, trace=admitted.trace)
        if permitted.add_guards is not None:
            guards = permitted.add_guards(guards)
    skill, asked_channel = _as_skill(item), channel
    ask: Approve | None = None
    if guards is not None:
        call, ask = await guards.before(call, listing, skill)
        request = _with_arguments(request, call.arguments)
        channel = guards.watch(channel, call, listing, skill)
    approved = await use_permission(permitted, ask, asked_channel, admitted, listing.name, skill.id)
    if approved is not None:
        admitted.policy = approved.note
    try:
        value = await read(request, call, channel)
    except RetinueError as error:
        if guards is not None:
            await guards.clean_error(call, listing, skill, error)
        raise
    return value if guards is None else await _guard(guards, call, listing, skill, value)


def item_of(request: ReadRequest) -> Resource | Prompt:
    """The resource or the prompt that is read, or whose argument is completed, by its name alone."""
    return Prompt(request.name) if request.is_of_prompt else Resource(request.name, request.name)


def _as_skill(item: Resource | Prompt) -> Skill:
    """The item as guards see it: they look at skills."""
    return Skill(f"prompt {item.name}" if isinstance(item, Prompt) else f"resource {item.uri}")


def _with_arguments(request: ReadRequest, arguments: Mapping[str, Any]) -> ReadRequest:
    """The request with the arguments that guards have left; the value to complete is one of them."""
    if not request.argument:
        return replace(request, arguments=arguments)
    others = {name: value for name, value in arguments.items() if name != request.argument}
    return replace(request, arguments=others, value=str(arguments.get(request.argument, "")))


async def _guard(guards: Guards, call: Call, listing: Listing, skill: Skill, value: Read) -> Read:
    """What guards leave of a read; raises PolicyDeniedError."""
    if isinstance(value, Completion):
        answer = await guards.after(call, listing, skill, Answer(list(value.values)))
        return replace(value, values=tuple(map(str, answer.value)))
    if isinstance(value, PromptText):
        parts = tuple(message.part for message in value.messages)
        answer = await guards.after(call, listing, skill, Answer(value.description, parts))
        messages = (
            replace(message, part=part) for message, part in zip(value.messages, answer.parts, strict=True)
        )
        return PromptText(tuple(messages), str(answer.value))
    return (await guards.after(call, listing, skill, Answer(parts=value))).parts
