"""Runs the guards of a process on a call: before its skill runs, and before the caller gets the result.

A guard that fails, or that takes longer than its limit, denies. What comes before the result is looked at as
well: streamed text is withheld, because a guard sees whole texts only, and messages pass the guards.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import structlog

from retinue.core.call import Answer, Call, Part, TextPiece
from retinue.core.errors import PolicyDeniedError, RetinueError
from retinue.core.record import Listing, Skill
from retinue.core.trust import Trust
from retinue.guards.guard import Guard, GuardedCall, InstructionGuard, MaskGuard, SensitiveGuard, Verdict
from retinue.mesh.channel import Capability, Channel, LogLevel, Root
from retinue.mesh.dispatch import Approve
from retinue.mesh.permissions import matches
from retinue.mesh.schema.checks import check_input, check_output, compile_schema

_log = structlog.get_logger("retinue.guards")

Stage = Literal["before", "after"]

_ACTIONS = ("deny", "redact", "ask")

_ANSWER = "answer"
"""The name of an answer of a caller that is no object, where guards look for arguments."""

AskPerson = Callable[[Call, Listing, str, Sequence[tuple[str, str]]], Approve]
"""Makes the question about a call of a skill: the names of the guards that ask, with their reasons."""

LARGE_CHARACTERS = 64_000
"""Larger values are looked at in a thread, because a guard must not hold up other calls."""


@dataclass(frozen=True, slots=True)
class GuardRule:
    """A guard with the skills that it looks at (globs ``AGENT/SKILL``) and its time limit in seconds."""

    name: str
    guard: Guard
    skills: Sequence[str] = ("*/*",)
    timeout_s: float = 1.0

    def concerns(self, agent: str, skill: str) -> bool:
        return any(
            matches(agent, [glob.partition("/")[0]]) and matches(skill, [glob.partition("/")[2] or "*"])
            for glob in self.skills
        )

    async def run(self, stage: Stage, call: GuardedCall, *values: Any) -> Verdict | None:
        """The verdict about arguments, or about a value of the result; a failure of the guard denies."""
        look: Callable[..., Any] | None = getattr(self.guard, stage, None)
        if look is None:
            return None
        begun = time.monotonic()
        try:
            async with asyncio.timeout(self.timeout_s):
                if inspect.iscoroutinefunction(look):
                    verdict = await look(call, *values)
                elif _is_small(self.guard, values[0] if values else call.arguments):
                    verdict = look(call, *values)
                else:
                    verdict = await asyncio.to_thread(look, call, *values)
        except TimeoutError:
            return Verdict("deny", f"the guard took longer than {self.timeout_s:g} s")
        except Exception as error:  # noqa: BLE001  # whatever a guard raises denies, and says so
            _log.warning("guard failed", guard=self.name, error=f"{type(error).__name__}: {error}")
            return Verdict("deny", f"the guard failed ({type(error).__name__})")
        if time.monotonic() - begun > self.timeout_s:  # what never waits is not cut off
            return Verdict("deny", f"the guard took longer than {self.timeout_s:g} s")
        if isinstance(verdict, Verdict) and verdict.action == "ask" and stage == "after":
            return Verdict("deny", f"{verdict.reason}; nobody is asked about results")
        if verdict is None or (isinstance(verdict, Verdict) and verdict.action in _ACTIONS):
            return verdict
        return Verdict("deny", f"the guard returned {type(verdict).__name__}, not a Verdict or None")


class CallGuards:
    """The guards of a process, in their order; each sees what the ones before it have left.

    ``ask`` makes the question to a person; without it, a guard that asks denies.
    """

    def __init__(self, rules: Sequence[GuardRule], ask: AskPerson | None = None) -> None:
        self._rules = tuple(rules)
        self._ask = ask

    def and_then(self, rules: Sequence[GuardRule]) -> CallGuards:
        """These guards, and others that see what they leave."""
        return CallGuards((*self._rules, *rules), self._ask)

    def concern(self, agent: str) -> bool:
        """Whether a guard looks at any skill of an agent."""
        return any(matches(agent, [glob.partition("/")[0]]) for rule in self._rules for glob in rule.skills)

    async def before(self, call: Call, listing: Listing, skill: Skill) -> tuple[Call, Approve | None]:
        """The call with the arguments that the guards leave, and what uses the yes of a person they ask for.

        Raises PolicyDeniedError.
        """
        rules = self._find(listing, skill)
        changed = call
        asking: list[tuple[str, str]] = []
        for rule in rules:
            facts = _describe(changed, listing, skill)
            verdict = await rule.run("before", facts)
            if verdict is not None:
                _report(rule, verdict, facts)
                if verdict.action == "deny":
                    raise _deny(rule, verdict, facts, "is denied")
                if verdict.action == "redact":
                    changed = replace(changed, arguments=verdict.value)
                elif self._ask is None:
                    raise _deny(rule, verdict, facts, "needs the approval of a person")
                else:
                    asking.append((rule.name, verdict.reason))
        if changed is not call and skill.input_schema is not None:
            check_input(skill, changed)
        approve = self._ask(call, listing, skill.id, asking) if asking and self._ask is not None else None
        return changed, approve

    def watch(self, channel: Channel, call: Call, listing: Listing, skill: Skill) -> Channel:
        """The channel for the skill, which hands on what the guards leave."""
        rules = self._find(listing, skill)
        return GuardedChannel(channel, self, call, listing, skill) if rules else channel

    async def after(self, call: Call, listing: Listing, skill: Skill, answer: Answer) -> Answer:
        """The answer that the guards leave; raises PolicyDeniedError, also where that breaks the schema."""
        if not self._find(listing, skill):
            return answer
        value = await self.look(call, listing, skill, answer.value)
        guarded = replace(
            answer,
            value=value,
            parts=tuple([await self._look_at_part(call, listing, skill, part) for part in answer.parts]),
            warnings=tuple([await self.look(call, listing, skill, text) for text in answer.warnings]),
            meta=await self.look(call, listing, skill, answer.meta) if answer.meta else answer.meta,
        )
        if value is not answer.value and skill.output_schema is not None:
            try:
                check_output(skill, value)
            except RetinueError as error:
                raise PolicyDeniedError(
                    f"the result of {listing.name}/{skill.id} is withheld: without what guards removed, it "
                    "does not fit the skill's schema",
                    policies=[rule.name for rule in self._find(listing, skill)],
                    remedy=_REMEDY,
                ) from error
        return guarded

    async def look_at_answer(self, call: Call, listing: Listing, skill: Skill, value: Any) -> Any:
        """What the guards leave of an answer that the caller gives the skill; raises PolicyDeniedError."""
        rules = self._find(listing, skill)
        answer = value if isinstance(value, Mapping) else {_ANSWER: value}
        for rule in rules:
            facts = replace(_describe(call, listing, skill), arguments=answer)
            verdict = await rule.run("before", facts)
            if verdict is not None:
                _report(rule, verdict, facts)
                if verdict.action != "redact":
                    raise _deny(rule, verdict, facts, "gets no answer of its caller")
                answer = verdict.value
        return answer if isinstance(value, Mapping) else answer[_ANSWER]

    async def clean_error(self, call: Call, listing: Listing, skill: Skill, error: RetinueError) -> None:
        """Change the texts and the data that an error holds to what the guards leave."""
        if not self._find(listing, skill):
            return
        for name, value in list(vars(error).items()):
            if name.startswith("__") or not isinstance(value, str | dict | list | tuple):
                continue
            try:
                cleaned = await self.look(call, listing, skill, value)
            except PolicyDeniedError as denied:
                cleaned = f"[withheld: {denied.message}]" if isinstance(value, str) else type(value)()
            if cleaned is not value:
                setattr(error, name, type(value)(cleaned))
        error.args = (error.message,)

    async def look(self, call: Call, listing: Listing, skill: Skill, value: Any) -> Any:
        """One value of a result as the guards leave it; raises PolicyDeniedError."""
        if value is None:
            return None
        facts = _describe(call, listing, skill)
        for rule in self._find(listing, skill):
            verdict = await rule.run("after", facts, value)
            if verdict is not None:
                _report(rule, verdict, facts)
                if verdict.action == "deny":
                    raise _deny(rule, verdict, facts, "gives no result")
                value = verdict.value
        return value

    async def _look_at_part(self, call: Call, listing: Listing, skill: Skill, part: Part) -> Part:
        """The part as the guards leave it; text within a file counts, images and sounds do not."""
        name = await self.look(call, listing, skill, part.name)
        text = _text_of_file(part)
        if text is not None:
            value = await self.look(call, listing, skill, text)
            value = part.value if value is text else b64encode(str(value).encode()).decode()
        elif part.kind == "resource" and isinstance(part.value, Mapping) and "text" in part.value:
            text = await self.look(call, listing, skill, part.value["text"])
            value = await self.look(call, listing, skill, {**part.value, "text": text})
        elif part.kind in ("text", "data", "resource"):
            value = await self.look(call, listing, skill, part.value)
        else:
            value = part.value
        return part if value is part.value and name is part.name else replace(part, value=value, name=name)

    def _find(self, listing: Listing, skill: Skill) -> tuple[GuardRule, ...]:
        return tuple(rule for rule in self._rules if rule.concerns(listing.name, skill.id))


class GuardedChannel:
    """The channel of a call whose result guards look at."""

    def __init__(
        self, channel: Channel, guards: CallGuards, call: Call, listing: Listing, skill: Skill
    ) -> None:
        self._channel = channel
        self._guards = guards
        self._facts = (call, listing, skill)

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._channel.capabilities

    @property
    def is_sessionless(self) -> bool:
        return self._channel.is_sessionless

    async def progress(self, fraction: float | None, message: str = "") -> None:
        await self._channel.progress(fraction, await self._look(message))

    async def stream_text(self, piece: TextPiece) -> None:
        """Withhold the piece: the whole text is in the result, which the guards see."""

    async def log(self, level: LogLevel, message: str, data: Mapping[str, Any] | None = None) -> None:
        await self._channel.log(level, await self._look(message), await self._look(data))

    async def elicit(self, message: str, schema: Mapping[str, Any], *, key: str | None = None) -> Any:
        value = await self._channel.elicit(await self._look(message), await self._look(schema), key=key)
        answer = await self._guards.look_at_answer(*self._facts, value)
        if answer is not value and (problems := compile_schema(schema, "question").problems(answer)):
            _, listing, skill = self._facts
            raise PolicyDeniedError(
                f"the answer to {listing.name}/{skill.id} is withheld: without what guards removed, it does "
                f"not fit the question ({problems[0].path})",
                remedy=_REMEDY,
            )
        return answer

    async def sample(self, prompt: str, *, max_tokens: int = 1024, key: str | None = None) -> str:
        text = await self._channel.sample(await self._look(prompt), max_tokens=max_tokens, key=key)
        return str(await self._guards.look_at_answer(*self._facts, text))

    async def roots(self, *, key: str | None = None) -> tuple[Root, ...]:
        roots = await self._channel.roots(key=key)
        rows = [{"uri": root.uri, "name": root.name} for root in roots]
        looked = await self._guards.look_at_answer(*self._facts, rows)
        return roots if looked is rows else tuple(Root(row["uri"], row["name"]) for row in looked)

    async def _look(self, value: Any) -> Any:
        return await self._guards.look(*self._facts, value) if value else value


def _describe(call: Call, listing: Listing, skill: Skill) -> GuardedCall:
    return GuardedCall(
        agent=listing.name,
        skill=skill.id,
        caller=call.principal.id,
        arguments=call.arguments,
        source=listing.source,
        is_foreign=listing.trust >= Trust.IMPORTED,
    )


def _text_of_file(part: Part) -> str | None:
    """The text of a file that holds some, by its type; None for others."""
    is_text = part.mime.startswith("text/") or part.mime.endswith(("json", "xml", "yaml", "csv"))
    if part.kind != "file" or not is_text or not isinstance(part.value, str):
        return None
    try:
        return b64decode(part.value, validate=True).decode()
    except (Base64Error, UnicodeDecodeError):
        return None


def _is_small(guard: Guard, value: Any) -> bool:
    """Whether a built-in guard may look at a value on the event loop."""
    if not isinstance(guard, SensitiveGuard | InstructionGuard | MaskGuard):
        return False
    return len(value) < LARGE_CHARACTERS if isinstance(value, str) else _size(value) < LARGE_CHARACTERS


def _size(value: Any) -> int:
    """About how many characters a JSON value has; counted up to the limit only."""
    total, waiting = 0, [value]
    while waiting and total < LARGE_CHARACTERS:
        inner = waiting.pop()
        if isinstance(inner, str):
            total += len(inner)
        elif isinstance(inner, Mapping):
            total += sum(len(str(name)) for name in inner)
            waiting += inner.values()
        elif isinstance(inner, list | tuple):
            waiting += inner
        total += 1
    return total


def _report(rule: GuardRule, verdict: Verdict, call: GuardedCall) -> None:
    _log.info(
        "guard decided",
        guard=rule.name,
        action=verdict.action,
        agent=call.agent,
        skill=call.skill,
        caller=call.caller,
        reason=verdict.reason,
    )


def _deny(rule: GuardRule, verdict: Verdict, call: GuardedCall, what: str) -> PolicyDeniedError:
    return PolicyDeniedError(
        f"{call.agent}/{call.skill} {what}: {verdict.reason} ({rule.name})",
        policies=[rule.name],
        remedy=_REMEDY,
    )


_REMEDY = "leave it out of the call, or ask the owner of this mesh, whose table [guards] says what guards do"
