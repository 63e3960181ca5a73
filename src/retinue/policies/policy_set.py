"""Loads policies from the texts of ``*.cedar`` files: annotations, what they read, strict validation.

A set is loaded whole or not at all. Every policy has an ``@id``. A policy with ``@effect`` is a ``forbid``,
so that it denies where the annotation is lost, such as in another Cedar program.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import islice
from typing import Any, Literal

import cedarpy

from retinue.core.errors import InvalidSettingError
from retinue.guards.sensitive import KINDS
from retinue.policies.entities import (
    ACTION,
    AGENT,
    GROUP,
    NAMESPACE,
    OWNER_ACTIONS,
    Caller,
    Groups,
    Resource,
    TeamScope,
    normalize,
)
from retinue.policies.obligations import CallLimit, Redaction, read_limit, read_masks
from retinue.policies.policy_body import BoundError, PolicyBody, check_bounds, limit_depth
from retinue.policies.reads import EntityId, ReadError, Reads, find_reads
from retinue.policies.schema import find_errors

Effect = Literal["permit", "deny", "approve", "limit", "redact", "approved"]
"""``permit`` and ``deny`` are those of Cedar; ``approve``, ``limit`` and ``redact`` are obligations.

With ``approve`` a person decides, ``limit`` counts calls, ``redact`` masks values. ``approved`` is the yes of
a person for calls that it would be asked about; it permits nothing else.
"""

Default = Literal["allow", "deny"]

_ABSENT = ("optional attribute", "may not exist", "unable to guarantee")
"""Words of the engine's errors about an argument that a call may leave out."""

OBLIGATIONS: Mapping[str, tuple[str, ...]] = {
    "approve": ("approvers", "expires"),
    "limit": ("limit",),
    "redact": ("arguments", "results"),
}
"""The effects of obligations with the annotations that belong to them."""

_ANNOTATIONS = frozenset(
    {"id", "reason", "effect", "mode", "by", "args"}
    | {name for names in OBLIGATIONS.values() for name in names}
)
_TYPES = frozenset(
    f"{NAMESPACE}::{kind}"
    for kind in (
        *("Action", "Agent", "Approval", "Artifact", "Caller", "Group", "Import"),
        *("Prompt", "Resource", "Skill", "Source", "Tag", "Workflow"),
    )
)
_ACTIONS = frozenset({"use", "call", "read", "prompt", "list"}) | OWNER_ACTIONS

_DURATION = re.compile(r"([0-9]{1,6})([smhd])")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

MAX_POLICIES = 5_000

_PARSED_AT_ONCE = 25
"""Policies that the parser gets at once, for about 3 ms."""

_TOKENS = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n\r]*|;', re.DOTALL)
"""The end of a policy, and what may have a semicolon within."""

_BEFORE = re.compile(r"(?:\s|//[^\n\r]*)+")
"""Blanks and comments before a policy."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy. ``body`` is the policy without its annotations.

    ``reason`` is told to callers. ``approvers`` are globs of the principals that may answer, () = anybody
    with the scope. An approval counts for ``expires_s``, None for the default. ``limit`` and ``redaction``
    are those of the effects of these names, None for others. A policy that ``is_watched`` decides nothing:
    what it would have decided is recorded. ``by`` is who gave the yes of an ``approved`` one, which counts
    for calls with no other arguments than the ``named_arguments``.
    """

    id: str
    file: str
    effect: Effect
    body: PolicyBody
    reads: Reads
    reason: str = ""
    approvers: tuple[str, ...] = ()
    expires_s: float | None = None
    is_watched: bool = False
    by: str = ""
    named_arguments: frozenset[str] = frozenset()
    limit: CallLimit | None = None
    redaction: Redaction | None = None
    agents: frozenset[str] | None = None
    """The policy of a team binds calls to these agents and calls of them; None for one of the owner."""
    team: str = ""
    """The team whose agents these are; an agent of this name in another team is not bound."""

    @property
    def facts(self) -> frozenset[str]:
        """The facts of the context that the policy reads, also to count calls."""
        by_origin = self.limit is not None and "origin" in self.limit.by
        return frozenset(self.reads.facts | {"origin"} if by_origin else self.reads.facts)

    def concerns_action(self, action: str) -> bool:
        """Whether the policy may apply to this action."""
        names = _name_actions(self.body.action)
        if self.agents is not None and action == "list":
            return False  # a team hides nothing
        if not names:
            return action not in OWNER_ACTIONS
        within_use = "use" in names and self.body.action["op"] == "in" and action not in OWNER_ACTIONS
        return action in names or within_use

    def concerns(
        self, resource: Resource, containers: Sequence[EntityId], caller: Caller | None = None
    ) -> bool:
        """Whether the policy may apply to this skill, which is a member of ``containers``.

        The policies of a team also apply to skills of others, if one of its agents is the ``caller``.
        """
        if self.agents is not None:
            is_callers = caller is not None and self._binds(caller.id, caller.team)
            if not is_callers and not self._binds(resource.agent, resource.team):
                return False
        named = self.scope_entity
        if named is None:
            return True
        return named == resource.id or (self.body.resource["op"] != "==" and named in containers)

    def _binds(self, agent: EntityId, team: str) -> bool:
        is_named = agent.type == AGENT and agent.id in (self.agents or ())
        return is_named and team in ("", self.team)

    @property
    def scope_entity(self) -> EntityId | None:
        """The entity that the scope of the resource names; None where it names none."""
        scope = self.body.resource
        entity = scope.get("entity") or scope.get("in", {}).get("entity")
        return None if entity is None else EntityId(entity["type"], entity["id"])


@dataclass(frozen=True, slots=True)
class PolicySet:
    """The policies of one mesh; equal files, groups and defaults have an equal ``digest``.

    Files that have only the yes of persons do not count for the digest.
    """

    policies: tuple[Policy, ...] = ()
    default: Default = "allow"
    groups: Groups = field(default_factory=dict)
    digest: str = ""

    @property
    def decides(self) -> bool:
        """Whether any call may be denied."""
        return bool(self.policies) or self.default == "deny"


def load_policies(
    files: Mapping[str, str],
    *,
    default: Default = "allow",
    groups: Groups | None = None,
    teams: Mapping[str, TeamScope] | None = None,
) -> PolicySet:
    """The policies of these texts, by the name of their file; those of files in ``teams`` bind a team only.

    Raises InvalidSettingError, which names the file and the policy, for the first policy that is not valid.
    """
    policies: dict[str, Policy] = {}
    deciding: dict[str, str] = {}
    for name in sorted(files):
        loaded = _load_file(name, files[name], MAX_POLICIES - len(policies))
        if (scope := (teams or {}).get(name)) is not None:
            loaded = [_bind(policy, scope) for policy in loaded]
        # a yes for similar calls leaves the questions about others as they are
        if not loaded or any(policy.effect != "approved" for policy in loaded):
            deciding[name] = files[name]
        for policy in loaded:
            if policy.id in policies:
                other = policies[policy.id].file
                raise _refuse(name, f"@id {policy.id!r} is in {other} too", "give each policy its own @id")
            policies[policy.id] = policy
    facts: list[Any] = [
        sorted(deciding.items()),
        default,
        sorted((name, list(globs)) for name, globs in (groups or {}).items()),
    ]
    if teams:
        facts.append(sorted((name, scope.name, sorted(scope.agents)) for name, scope in teams.items()))
    digest = "sha256:" + sha256(json.dumps(facts).encode("utf-8", "surrogatepass")).hexdigest()
    return PolicySet(tuple(policies.values()), default, groups or {}, digest)


def _bind(policy: Policy, scope: TeamScope) -> Policy:
    """The policy as one of a team. Raises InvalidSettingError for one that no team may have."""
    where = f"{policy.file}: {policy.id}"
    if policy.effect in ("permit", "approved"):
        remedy = "write a forbid with unless: a team permits nothing that the owner does not"
        raise _refuse(where, f"{policy.effect} in a team", remedy)
    if names := sorted(_name_actions(policy.body.action) & (OWNER_ACTIONS | {"list"})):
        raise _refuse(where, f"the action {names[0]!r} in a team", "write a policy of call, read or prompt")
    if any(entity.type == GROUP for entity in policy.reads.entities):
        raise _refuse(where, "a group in a team", "name agents: groups belong to the owner of the machine")
    agents = frozenset(map(normalize, scope.agents))
    return replace(policy, id=f"{scope.name}/{policy.id}", agents=agents, team=scope.team or scope.name)


def _load_file(name: str, text: str, most: int) -> list[Policy]:
    """The policies of a file; raises InvalidSettingError, also for more than ``most`` of them."""
    try:
        check_bounds(text)
    except BoundError as error:
        where = name if error.line is None else f"{name}: line {error.line}"
        raise _refuse(where, str(error), error.remedy) from None
    # each policy ends with one, and to check too many would take a minute
    if sum(1 for _ in _find_ends(text)) > most:
        raise _refuse(name, f"more than {MAX_POLICIES:,} policies in all files", "write fewer")
    try:
        bodies = [body for part in _split(text) for body in _parse(name, part)]
    except (ValueError, RecursionError):
        try:
            bodies = list(_parse(name, text))
        except (ValueError, RecursionError) as error:
            raise _refuse(name, f"not Cedar: {error}{_find_place(name, text)}", "correct it") from None
    return [_load_policy(name, number, body) for number, body in enumerate(bodies, 1)]


def _parse(name: str, text: str) -> Iterator[dict[str, Any]]:
    """The policies of a text in their order; raises ValueError."""
    parsed = json.loads(cedarpy.policies_to_json_str(text))
    if parsed["templates"]:
        raise _refuse(name, "a template (?principal, ?resource)", "write a policy with names")
    # policy2 before policy10, as they are in the file
    for _, body in sorted(parsed["staticPolicies"].items(), key=lambda item: (len(item[0]), item[0])):
        yield body


def _find_place(name: str, text: str) -> str:
    """Where the first policy begins that is not Cedar, because the parser does not tell."""
    line = 1
    for part in _split(text, 1):
        try:
            list(_parse(name, part))
        except (ValueError, RecursionError):
            blank = _BEFORE.match(part)
            line += blank[0].count("\n") if blank else 0
            return f", in the policy that begins at line {line}"
        line += part.count("\n")
    return ""


def _split(text: str, count: int = _PARSED_AT_ONCE) -> Iterator[str]:
    """The text in parts of ``count`` whole policies, because the parser holds up all threads."""
    start = 0
    for end in islice(_find_ends(text), count - 1, None, count):
        yield text[start:end]
        start = end
    yield text[start:]


def _find_ends(text: str) -> Iterator[int]:
    """The places behind the semicolons, which end policies."""
    return (token.end() for token in _TOKENS.finditer(text) if token[0] == ";")


def _load_policy(file: str, number: int, body: dict[str, Any]) -> Policy:
    # an annotation without a value is null
    annotations = {name: value or "" for name, value in (body.pop("annotations", None) or {}).items()}
    policy_id = annotations.get("id") or ""
    where = f"{file}: {policy_id or f'policy {number}'}"
    if not policy_id or len(policy_id) > 100:
        raise _refuse(where, "no @id of 1 to 100 characters", 'write @id("name") before it')
    unknown = sorted(annotations.keys() - _ANNOTATIONS)
    if unknown:
        known = ", ".join(f"@{annotation}" for annotation in sorted(_ANNOTATIONS))
        raise _refuse(where, f"unknown annotation @{unknown[0]}", f"known are {known}")
    effect = _read_effect(where, annotations, body["effect"])
    mode = annotations.get("mode", "enforce")
    if mode not in ("enforce", "watch"):
        raise _refuse(where, f"@mode is {mode!r}", 'write @mode("watch") or nothing')
    try:
        body = limit_depth(body)
        reads = find_reads(body)
    except BoundError as error:
        raise _refuse(where, str(error), error.remedy) from None
    except ReadError as error:
        raise _refuse(where, str(error), "read one attribute as one type") from None
    _check_entities(where, reads)
    is_owners = _is_about_owner_actions(where, body, effect)
    try:
        errors = find_errors(body, reads.arguments, is_owners=is_owners)
    except ValueError as error:
        raise _refuse(where, f"the engine does not take it: {error}", "write several policies") from None
    if errors:
        raise _refuse(where, errors[0], _name_remedies(errors))
    return Policy(
        policy_id,
        file,
        effect,
        PolicyBody.of(body),
        reads,
        reason=annotations.get("reason") or "",
        approvers=tuple(annotations.get("approvers", "").replace(",", " ").split()),
        expires_s=_read_expiry(where, annotations),
        is_watched=mode == "watch",
        by=annotations.get("by", ""),
        named_arguments=_read_names(where, annotations.get("args", "")),
        limit=_read_limit(where, annotations) if effect == "limit" else None,
        redaction=_read_redaction(where, annotations) if effect == "redact" else None,
    )


def _name_actions(scope: Mapping[str, Any]) -> frozenset[str]:
    """The actions that this scope of a policy names; none where it has all of them."""
    if scope["op"] == "All":
        return frozenset()
    named = scope["entities"] if "entities" in scope else [scope["entity"]]
    return frozenset(entity["id"] for entity in named)


def _is_about_owner_actions(where: str, body: Mapping[str, Any], effect: Effect) -> bool:
    names = _name_actions(body["action"])
    owners = sorted(names & OWNER_ACTIONS)
    if not owners:
        return False
    if effect != "deny":
        raise _refuse(where, f"{effect} with the action {owners[0]!r}", "write a forbid without @effect")
    if others := sorted(names - OWNER_ACTIONS):
        raise _refuse(where, f"the actions {owners[0]!r} and {others[0]!r}", "write two policies")
    return True


def _read_effect(where: str, annotations: Mapping[str, str], cedar_effect: str) -> Effect:
    effect = annotations.get("effect")
    if effect == "approved":
        return _check_approved(where, annotations, cedar_effect)
    for name in ("by", "args"):
        if name in annotations:
            raise _refuse(where, f"@{name} without @effect", 'add @effect("approved")')
    if effect is not None and effect not in OBLIGATIONS:
        raise _refuse(where, f"@effect is {effect!r}", f"known are {', '.join((*OBLIGATIONS, 'approved'))}")
    for owner, names in OBLIGATIONS.items():
        for name in names:
            if name in annotations and owner != effect:
                without = "" if effect is None else f", and it is {effect}"
                raise _refuse(where, f"@{name} without @effect{without}", f'add @effect("{owner}")')
    if effect is None:
        return "permit" if cedar_effect == "permit" else "deny"
    if cedar_effect != "forbid":
        raise _refuse(where, f'a permit with @effect("{effect}")', "write it as a forbid")
    return effect  # type: ignore[return-value]


def _check_approved(where: str, annotations: Mapping[str, str], cedar_effect: str) -> Effect:
    if cedar_effect != "permit":
        raise _refuse(where, 'a forbid with @effect("approved")', "write it as a permit")
    if not annotations.get("by") or "args" not in annotations:
        raise _refuse(
            where, '@effect("approved") without @by or @args', "write who said yes, and names of arguments"
        )
    others = annotations.keys() - {"id", "reason", "effect", "by", "args"}
    if others:
        raise _refuse(where, f'@{min(others)} with @effect("approved")', "remove it")
    return "approved"


def _read_names(where: str, text: str) -> frozenset[str]:
    """The names of ``@args``: with spaces between, or a JSON list of them."""
    if not text.startswith("["):
        return frozenset(text.split())
    try:
        names = json.loads(text)
    except ValueError:
        names = None
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise _refuse(where, "@args is no list of names", 'write @args("a b") or @args("[\\"a-b\\"]")')
    return frozenset(names)


def _read_limit(where: str, annotations: Mapping[str, str]) -> CallLimit:
    try:
        return read_limit(annotations.get("limit", ""))
    except ValueError as error:
        raise _refuse(where, str(error), 'write such as @limit("5 per hour by origin")') from None


def _read_redaction(where: str, annotations: Mapping[str, str]) -> Redaction:
    try:
        masks = {
            name: read_masks(name, annotations[name]) for name in OBLIGATIONS["redact"] if name in annotations
        }
    except ValueError as error:
        raise _refuse(
            where, str(error), f"write kinds ({', '.join(KINDS)}) and places such as /customers/*/name"
        ) from None
    if not masks:
        raise _refuse(
            where, "nothing to mask", 'add @results("email /customers/*/name") or @arguments("key")'
        )
    return Redaction(**masks)


def _read_expiry(where: str, annotations: Mapping[str, str]) -> float | None:
    if "expires" not in annotations:
        return None
    match = _DURATION.fullmatch(annotations["expires"])
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if seconds <= 0:
        raise _refuse(
            where, f"@expires is {annotations['expires']!r}", 'write a duration such as @expires("15m")'
        )
    return seconds


def _check_entities(where: str, reads: Reads) -> None:
    for entity in reads.entities:
        if entity.type not in _TYPES:
            raise _refuse(where, f"unknown type {entity.type}", f"known are {', '.join(sorted(_TYPES))}")
        if entity.id != normalize(entity.id):
            raise _refuse(where, f"{entity.id!r} is not in the Unicode form NFC", "write it in the form NFC")
        if entity.type == ACTION and entity.id not in _ACTIONS:
            raise _refuse(where, f"unknown action {entity.id!r}", f"known are {', '.join(sorted(_ACTIONS))}")


def _name_remedies(errors: Sequence[str]) -> str:
    """Tell what mends the errors of one policy."""
    remedies = []
    if any("not found" in error and 'Action::"list"' in error for error in errors):
        remedies.append('name the action, because lists have no arguments: action == Retinue::Action::"call"')
    if any(word in error for error in errors for word in _ABSENT):
        remedies.append("ask for the argument first: context.args has NAME && …")
    return ", and ".join(remedies) or "see retinue docs policies"


def _refuse(where: str, problem: str, remedy: str) -> InvalidSettingError:
    return InvalidSettingError(where, problem, remedy=remedy)
