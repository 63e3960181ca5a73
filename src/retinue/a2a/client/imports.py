"""Imported A2A agents: reads each card in the background, once a minute, and lists its skills.

A card whose skills or endpoint have changed since they were accepted keeps its accepted text, and changed
skills are not called, until a person accepts them (``mesh.pins``). An agent that cannot be reached is listed
as unreachable with the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Literal
from urllib.parse import urlsplit

import orjson
import structlog

from retinue.a2a.client.agent_client import A2aClient, AgentPlace, read_card_flags
from retinue.a2a.codec.exchange import PROMPT_SCHEMA
from retinue.cards.a2a_card import CARD_PATH, find_interface, parse_agent_card
from retinue.cards.card_checks import check_card
from retinue.cards.pallet_card import render_card
from retinue.cards.signatures import CardVerifier, canonical_forms
from retinue.core.call import Answer, Call
from retinue.core.errors import (
    AgentUnreachableError,
    BusyError,
    MalformedArtifactError,
    NotAuthenticatedError,
    RetinueError,
)
from retinue.core.record import AgentRecord, Endpoint, Listing, SignatureState, Skill
from retinue.mesh.channel import Channel
from retinue.mesh.directory.sources import LiveMember, LiveSource, MemberId, OnChange
from retinue.mesh.foreign_records import clean_record
from retinue.mesh.guard.trace_guard import AdmittedCall
from retinue.mesh.pins import Pins
from retinue.mesh.schema.checks import check_skill
from retinue.web.http_client import HttpClient
from retinue.web.transport import TransportError

A2A_AGENTS = "a2a"
"""The name of the source."""

FIRST_BACK_OFF_S = 1.0
LAST_BACK_OFF_S = 60.0
RELIST_S = 60.0
"""How often a card is read again."""

CARD_TIMEOUT_S = 10.0
MAX_IN_FLIGHT = 200
"""Calls of one agent at once. It also ends a loop through an agent that forwards no trace."""

ENDPOINT = "(endpoint)"
"""The pin of the address that is called, because no skill has a name with brackets."""

_OLD_PATH = "/.well-known/agent.json"
_ALL = frozenset({"mesh", "exposed"})

_log = structlog.get_logger("retinue.imports")


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """One import: ``url`` is that of the agent, or of its card if it ends with ``.json``.

    ``headers`` are sent to the origin of the url and to no other. ``fingerprint`` changes with the
    configuration.
    """

    name: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    visibility: Literal["mesh", "exposed"] = "exposed"
    fingerprint: str = ""

    problem: str = ""
    """Why the agent cannot be called as it is configured; "" if it can."""

    team: str = ""
    tag: str = ""
    """The team and the tag of the digest that brings it; "" for those of the machine."""

    @property
    def id(self) -> MemberId:
        """Which member of its source it is."""
        return MemberId(self.name, self.team, self.tag)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportLimits:
    """When the cards of imported agents are read, and how many calls of one agent run at once."""

    first_back_off_s: float = FIRST_BACK_OFF_S
    last_back_off_s: float = LAST_BACK_OFF_S
    relist_s: float = RELIST_S
    max_in_flight: int = MAX_IN_FLIGHT


DEFAULT_LIMITS = ImportLimits()


class ImportedAgent(LiveMember):
    """One imported agent; a separate task reads its card."""

    def __init__(
        self,
        spec: AgentSpec,
        http: HttpClient,
        pins: Pins,
        verifier: CardVerifier,
        on_change: OnChange,
        limits: ImportLimits = DEFAULT_LIMITS,
    ) -> None:
        self.spec = spec
        self.id = spec.id
        self._limits = limits
        self.fingerprint = spec.fingerprint
        self.client: A2aClient | None = None
        self.reason = "its card is being read"
        self.in_flight = 0
        self._http = http
        self._pins = pins
        self._verifier = verifier
        self._on_change = on_change
        self._record = AgentRecord(spec.name)
        self._read: AgentRecord | None = None
        self._signature: SignatureState = "none"
        self._task = asyncio.create_task(self._keep(), name=f"import {spec.name}")

    @property
    def listing(self) -> Listing:
        card = render_card(self._record, scopes=_ALL)
        digest = sha256(orjson.dumps([card, self._signature], option=orjson.OPT_SORT_KEYS)).hexdigest()
        return Listing(
            record=self._record,
            source=A2A_AGENTS,
            key=self.id.key,
            tag=self.id.tag or None,
            digest=f"sha256:{digest}",
            signature=self._signature,
        )

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def review(self) -> None:
        """Compare the skills with the accepted ones again."""
        if self._read is not None:
            self._describe(self._read)
            self._changed()

    async def _keep(self) -> None:
        if self.spec.problem:
            self._lose(self.spec.problem)
            return
        back_off_s = self._limits.first_back_off_s
        while True:
            try:
                await self._refresh()
                wait_s, back_off_s = self._limits.relist_s, self._limits.first_back_off_s
            except RetinueError as error:
                cause = error.cause if isinstance(error, AgentUnreachableError) else error.message
                reason = cause + (f" — {error.remedy}" if error.remedy else "")
                self._lose(reason)
                wait_s, back_off_s = back_off_s, min(back_off_s * 2, self._limits.last_back_off_s)
            await asyncio.sleep(wait_s)

    def _lose(self, reason: str) -> None:
        if reason != self.reason:
            _log.warning("import unreachable", agent=self.spec.name, reason=reason)
        self.client, self.reason = None, reason
        self._changed()

    async def _refresh(self) -> None:
        raw = await self._fetch()
        name = self.spec.name
        record = parse_agent_card(raw, reference=f"the card of {name}")
        check_card(record, raw, reference=f"the card of {name}", keeps_name=False)
        record, notes = clean_record(record)
        if notes:
            _log.warning("import bounded", agent=name, notes=list(notes))
        for skill in record.skills:
            check_skill(skill)
        document = orjson.loads(raw)
        verdict = self._verifier.check(
            document.get("signatures"), canonical_forms(document), reference=f"the card of {name}"
        )
        interface = find_interface(record)
        if interface is None:
            raise _no_endpoint(name, document)
        streams, has_schemas = read_card_flags(raw)
        is_new = self.client is None
        before = self.listing.digest
        self._signature = verdict.state
        self.client = A2aClient(
            self._http,
            AgentPlace(
                name,
                interface.url,
                version="0.3" if interface.wire_version == "0.3" else "1.0",
                streams=streams,
                has_schemas=has_schemas,
                headers=self._headers_for(interface.url),
            ),
        )
        self.reason = ""
        self._read = replace(record, endpoints=(Endpoint("a2a", interface.url, interface.wire_version),))
        self._describe(self._read)
        if is_new or self.listing.digest != before:
            self._changed()

    def _headers_for(self, url: str) -> Mapping[str, str]:
        """The configured headers for the origin that they are for; none for another that a card names."""
        return self.spec.headers if _origin(url) == _origin(self.spec.url) else {}

    async def _fetch(self) -> bytes:
        url = self.spec.url
        base = url.rstrip("/")
        places = [url] if urlsplit(url).path.endswith(".json") else [base + CARD_PATH, base + _OLD_PATH]
        status = 0
        for place in places:
            try:
                reply = await self._http.request(
                    "GET",
                    place,
                    headers=self.spec.headers,
                    timeout_s=CARD_TIMEOUT_S,
                    what=f"the card of {self.spec.name}",
                )
            except TransportError as error:
                raise AgentUnreachableError(self.spec.name, url, error.cause, sent=False) from error
            if reply.status == 200:
                return reply.body
            status = status or reply.status
        if status in (401, 403):
            raise NotAuthenticatedError(
                f"its card answers with status {status}",
                remedy="import it again with --header or --token-env, which are sent to the card too",
            )
        raise AgentUnreachableError(self.spec.name, url, f"its card answers with status {status}")

    def _describe(self, record: AgentRecord) -> None:
        """List the accepted skills of a card, in their accepted form."""
        offered = {skill.id: self._offer(skill) for skill in record.skills}
        tools: list[dict[str, Any]] = [_pin_of(self._offer(skill)) for skill in record.skills]
        tools.append({"name": ENDPOINT, "description": record.endpoints[0].url})
        listed = self._pins.review(self.id.pinned, tools)
        skills = []
        for tool in listed:
            skill = offered.get(str(tool["name"]))
            if skill is not None:
                skills.append(
                    replace(
                        skill,
                        title=tool.get("title"),
                        description=tool.get("description", ""),
                        input_schema=tool.get("inputSchema"),
                        output_schema=tool.get("outputSchema"),
                    )
                )
        self._record = replace(
            record, name=self.spec.name, skills=tuple(skills), traits=(), resources=(), prompts=()
        )

    def _offer(self, skill: Skill) -> Skill:
        named = skill if skill.input_schema is not None else replace(skill, input_schema=PROMPT_SCHEMA)
        return replace(named, visibility=self.spec.visibility, extra={})

    def _changed(self) -> None:
        self._on_change(self.listing, "healthy" if self.client is not None else "unreachable", self.reason)


def _pin_of(skill: Skill) -> dict[str, Any]:
    pin = {
        "name": skill.id,
        "title": skill.title,
        "description": skill.description,
        "inputSchema": skill.input_schema,
        "outputSchema": skill.output_schema,
    }
    return {key: value for key, value in pin.items() if value is not None}


def _no_endpoint(name: str, card: Any) -> MalformedArtifactError:
    """The error for a card without an endpoint that is spoken here; it names the transports of the card."""
    rows = [
        *_rows_of(card, "supportedInterfaces"),
        *_rows_of(card, "additionalInterfaces"),
        {"transport": card.get("preferredTransport")},
    ]
    kinds = {str(row.get("protocolBinding") or row.get("transport") or "")[:40] for row in rows}
    offered = ", ".join(sorted(kinds - {""})[:5])
    error = MalformedArtifactError(
        f"the card of {name}", f"it names no JSON-RPC endpoint of A2A{f', but {offered}' if offered else ''}"
    )
    error.remedy = "ask its operator for JSON-RPC: Retinue calls agents over JSON-RPC only"
    return error


def _rows_of(card: Any, key: str) -> list[dict[str, Any]]:
    rows = card.get(key)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


class ImportedAgents(LiveSource[ImportedAgent]):
    """The imported agents of a process: a source of the directory, and the invoker of their skills."""

    name = A2A_AGENTS

    def __init__(self, pins: Pins, verifier: CardVerifier, limits: ImportLimits = DEFAULT_LIMITS) -> None:
        super().__init__()
        self.limits = limits
        self.pins = pins
        self._verifier = verifier

    async def configure(self, specs: Mapping[str, AgentSpec], http: HttpClient) -> None:
        """Read the cards of new agents, drop removed ones, do both for agents with other settings."""

        def start(name: str) -> ImportedAgent:
            return ImportedAgent(specs[name], http, self.pins, self._verifier, self._change, self.limits)

        await self._replace({name: spec.fingerprint for name, spec in specs.items()}, start)

    def review(self) -> None:
        """Compare the skills of every agent with the accepted ones."""
        for agent in self._members.values():
            agent.review()

    async def invoke(
        self, listing: Listing, skill: Skill, call: Call, admitted: AdmittedCall, channel: Channel
    ) -> Answer:
        """One call of a skill, as `Invoker`; the dispatcher enforces the time limit."""
        name = listing.record.name
        agent = self.find_member(listing.id)
        if agent is None or agent.client is None:
            reason = "it is not imported any more" if agent is None else agent.reason
            url = "its address" if agent is None else agent.spec.url
            raise AgentUnreachableError(name, url, reason, sent=False)
        self.pins.check(agent.id.pinned, ENDPOINT)
        self.pins.check(agent.id.pinned, skill.id)
        if agent.in_flight >= self.limits.max_in_flight:
            raise BusyError(f"{agent.in_flight} calls of agent {name} are in flight", 1.0)
        agent.in_flight += 1
        try:
            with admitted.relay(is_forwarded=True) as outgoing:
                # it reports no further calls; those that come back with the trace are one hop each
                outgoing.record_usage(0)
                # without via: an agent that sends the trace back may use this hub, one hop further on
                trace = replace(outgoing.trace, via=())
                return outgoing.take_answer(await agent.client.call(skill, call.arguments, trace, channel))
        finally:
            agent.in_flight -= 1
