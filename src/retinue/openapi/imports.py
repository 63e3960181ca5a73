"""Imported HTTP APIs as agents: loads documents in the background and lists their operations.

A changed operation keeps its accepted text and is not called, and a new one is not listed, until a person
accepts them (``mesh.pins``). A document that cannot be loaded is listed as unreachable with the reason, and
loaded again with back-off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal

import orjson
import structlog

from retinue.cards.pallet_card import render_card
from retinue.core.call import Answer, Call
from retinue.core.errors import AgentUnreachableError, RetinueError
from retinue.core.record import AgentRecord, Listing, Skill
from retinue.mesh.channel import Channel
from retinue.mesh.directory.sources import LiveMember, LiveSource, MemberId, OnChange
from retinue.mesh.guard.trace_guard import AdmittedCall
from retinue.mesh.pins import Pins, Tool
from retinue.web.transport import HttpRequester

if TYPE_CHECKING:
    from retinue.openapi.client import ApiClient
    from retinue.openapi.codec.api import Api
    from retinue.openapi.codec.operations import Operation

APIS = "apis"
"""The name of the source."""

FIRST_BACK_OFF_S = 5.0
LAST_BACK_OFF_S = 300.0
MAX_DESCRIPTION = 1_000
MAX_PINNED_SCHEMA_BYTES = 2_000
"""Larger schemas are compared by their digest."""

_DIGEST = "sha256"
_ALL = frozenset({"mesh", "exposed"})

_log = structlog.get_logger("retinue.imports")


@dataclass(frozen=True, slots=True)
class ApiSpec:
    """One import: ``load`` gives the bytes of the document, ``url`` is where it was found, if anywhere.

    ``server`` replaces the servers of the document; ``key_origins`` get its credentials in addition to
    the first server. With ``strict`` a response that differs from the document is an error, else a warning.
    ``environment`` has the values of its credentials; the default is the environment of the process.
    ``fingerprint`` changes with the configuration.
    """

    name: str
    place: str
    load: Callable[[], Awaitable[bytes]]
    url: str | None = None
    server: str | None = None
    visibility: Literal["mesh", "exposed"] = "exposed"
    strict: bool = False
    fingerprint: str = ""
    key_origins: tuple[str, ...] = ()
    environment: Mapping[str, str] | None = None
    team: str = ""
    tag: str = ""
    """The team and the tag of the digest that brings it; "" for those of the machine."""

    @property
    def id(self) -> MemberId:
        """Which member of its source it is."""
        return MemberId(self.name, self.team, self.tag)


class ImportedApi(LiveMember):
    """One API; a separate task loads its document."""

    def __init__(
        self, spec: ApiSpec, make_client: Callable[[Api], ApiClient], pins: Pins, on_change: OnChange
    ) -> None:
        self.spec = spec
        self.id = spec.id
        self._pins = pins
        self._api: Api | None = None
        self.fingerprint = spec.fingerprint
        self.client: ApiClient | None = None
        self.reason = "its document is being loaded"
        self._make_client = make_client
        self._on_change = on_change
        self._record = AgentRecord(spec.name)
        self._task = asyncio.create_task(self._load(), name=f"import {spec.name}")

    @property
    def listing(self) -> Listing:
        card = render_card(self._record, scopes=_ALL)
        digest = sha256(orjson.dumps(card, option=orjson.OPT_SORT_KEYS)).hexdigest()
        key, tag = self.id.key, self.id.tag or None
        return Listing(self._record, source=APIS, key=key, tag=tag, digest=f"sha256:{digest}")

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _load(self) -> None:
        back_off_s = FIRST_BACK_OFF_S
        while True:
            try:
                content = await self.spec.load()
                # a document of some megabytes takes seconds
                api = await asyncio.to_thread(self._parse, content)
            except AgentUnreachableError as error:
                self._fail(f"its document {error.url}: {error.cause}")
            except RetinueError as error:
                self._fail(f"{error.message}" + (f" — {error.remedy}" if error.remedy else ""))
            else:
                break
            await asyncio.sleep(back_off_s)
            back_off_s = min(back_off_s * 2, LAST_BACK_OFF_S)
        for note in api.notes:
            _log.info("import shortened", api=self.spec.name, note=note)
        self._api, self.client = api, self._make_client(api)
        self.review()

    def review(self) -> None:
        """List the accepted operations in their accepted form."""
        api = self._api
        if api is None:
            return
        pins = [_pin_of(operation) for operation in api.operations]
        offered = {pin["name"]: (pin, skill) for pin, skill in zip(pins, api.skills, strict=True)}
        skills = []
        for tool in self._pins.review(self.id.pinned, pins):
            pin, skill = offered[tool["name"]]
            skills.append(self._offer(skill if tool == pin else _as_accepted(skill, tool)))
        described = (api.description or api.title)[:MAX_DESCRIPTION]
        self._record = AgentRecord(
            self.spec.name,
            version=api.version or None,
            title=api.title,
            description=described,
            skills=tuple(skills),
        )
        self._on_change(self.listing, "healthy", "")

    def _fail(self, reason: str) -> None:
        self.reason = reason
        _log.warning("import unreachable", api=self.spec.name, reason=reason)
        self._on_change(self.listing, "unreachable", reason)

    def _offer(self, skill: Skill) -> Skill:
        from retinue.openapi.codec.responses import documented_only

        output_schema = skill.output_schema if self.spec.strict else documented_only(skill.output_schema)
        return replace(skill, visibility=self.spec.visibility, output_schema=output_schema)

    def _parse(self, content: bytes) -> Api:
        # loaded with the first document: a hub without imported APIs does not need the reader
        from retinue.openapi.codec.api import parse_api
        from retinue.openapi.codec.reader import read_document

        spec = self.spec
        document = read_document(content, spec.place)
        return parse_api(document, spec.name, source=spec.place, url=spec.url, server=spec.server)


def _pin_of(operation: Operation) -> dict[str, Any]:
    """The compared parts of an operation: its texts, its schemas and the request that it becomes."""
    skill = operation.skill
    pin = {
        "name": skill.id,
        "title": skill.title,
        "description": skill.description,
        "request": f"{operation.method} {operation.server}{operation.path}",
        "inputSchema": _short(skill.input_schema),
        "outputSchema": _short(skill.output_schema),
    }
    return {key: value for key, value in pin.items() if value is not None}


def _short(schema: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A schema, or its digest: the schemas of a large document would take many megabytes of the pins."""
    if schema is None:
        return None
    content = orjson.dumps(schema, option=orjson.OPT_SORT_KEYS)
    return schema if len(content) <= MAX_PINNED_SCHEMA_BYTES else {_DIGEST: sha256(content).hexdigest()}


def _as_accepted(skill: Skill, pin: Tool) -> Skill:
    """A changed operation as it was accepted; it is not called, so a schema that is not stored is open."""
    schemas = [pin.get(key) for key in ("inputSchema", "outputSchema")]
    input_schema, output_schema = (None if schema and _DIGEST in schema else schema for schema in schemas)
    return replace(
        skill,
        title=pin.get("title"),
        description=pin.get("description", ""),
        input_schema=input_schema or {"type": "object"},
        output_schema=output_schema,
    )


class ImportedApis(LiveSource[ImportedApi]):
    """The imported APIs of a process: a source of the directory, and the invoker of their operations."""

    name = APIS

    def __init__(self, environment: Mapping[str, str], pins: Pins) -> None:
        super().__init__()
        self._environment = environment
        self._pins = pins

    async def configure(self, specs: Mapping[str, ApiSpec], http: HttpRequester) -> None:
        """Load new documents, drop removed ones, and load again those with other settings."""

        def load(name: str) -> ImportedApi:
            def make_client(api: Api) -> ApiClient:
                from retinue.openapi.client import ApiClient

                spec = specs[name]
                own = self._environment if spec.environment is None else spec.environment
                return ApiClient(http, api, own, strict=spec.strict, key_origins=spec.key_origins)

            return ImportedApi(specs[name], make_client, self._pins, self._change)

        await self._replace({name: spec.fingerprint for name, spec in specs.items()}, load)

    def review(self) -> None:
        """Compare the operations of every API with the accepted ones."""
        for api in self._members.values():
            api.review()

    async def invoke(
        self, listing: Listing, skill: Skill, call: Call, admitted: AdmittedCall, channel: Channel
    ) -> Answer:
        """One call of an operation, as `Invoker`."""
        name = listing.record.name
        api = self.find_member(listing.id)
        if api is None or api.client is None:
            reason = "it is not imported any more" if api is None else api.reason
            raise AgentUnreachableError(name, "its API", reason, sent=False)
        self._pins.check(api.id.pinned, skill.id)
        return await api.client.invoke(listing, skill, call, admitted, channel)
