"""Imported HTTP APIs as agents: loads documents in the background and lists their operations.

A document that cannot be loaded is listed as unreachable with the reason, and loaded again with back-off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Literal

import orjson
import structlog

from retinue.cards.pallet_card import render_card
from retinue.core.call import Answer, Call
from retinue.core.errors import AgentUnreachableError, RetinueError
from retinue.core.record import AgentRecord, Listing, Skill
from retinue.mesh.channel import Channel
from retinue.mesh.directory.sources import LiveMember, LiveSource, OnChange
from retinue.mesh.guard.trace_guard import AdmittedCall
from retinue.openapi.client import ApiClient
from retinue.openapi.codec.api import Api, parse_api
from retinue.openapi.codec.reader import read_document
from retinue.openapi.codec.responses import documented_only
from retinue.web.transport import HttpRequester

APIS = "apis"
"""The name of the source."""

FIRST_BACK_OFF_S = 5.0
LAST_BACK_OFF_S = 300.0
MAX_DESCRIPTION = 1_000
_ALL = frozenset({"mesh", "exposed"})

_log = structlog.get_logger("retinue.imports")


@dataclass(frozen=True, slots=True)
class ApiSpec:
    """One import: ``load`` gives the bytes of the document, ``url`` is where it was found, if anywhere.

    ``server`` replaces the servers of the document. With ``strict`` a response that differs from the document
    is an error, else a warning. ``fingerprint`` changes with the configuration.
    """

    name: str
    place: str
    load: Callable[[], Awaitable[bytes]]
    url: str | None = None
    server: str | None = None
    visibility: Literal["mesh", "exposed"] = "exposed"
    strict: bool = False
    fingerprint: str = ""


class ImportedApi(LiveMember):
    """One API; a separate task loads its document."""

    def __init__(self, spec: ApiSpec, make_client: Callable[[Api], ApiClient], on_change: OnChange) -> None:
        self.spec = spec
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
        return Listing(record=self._record, source=APIS, key=self.spec.name, digest=f"sha256:{digest}")

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
        described = (api.description or api.title)[:MAX_DESCRIPTION]
        skills = tuple(self._offer(skill) for skill in api.skills)
        self._record = AgentRecord(
            self.spec.name, version=api.version or None, title=api.title, description=described, skills=skills
        )
        self.client = self._make_client(api)
        self._on_change(self.listing, "healthy", "")

    def _fail(self, reason: str) -> None:
        self.reason = reason
        _log.warning("import unreachable", api=self.spec.name, reason=reason)
        self._on_change(self.listing, "unreachable", reason)

    def _offer(self, skill: Skill) -> Skill:
        output_schema = skill.output_schema if self.spec.strict else documented_only(skill.output_schema)
        return replace(skill, visibility=self.spec.visibility, output_schema=output_schema)

    def _parse(self, content: bytes) -> Api:
        spec = self.spec
        document = read_document(content, spec.place)
        return parse_api(document, spec.name, source=spec.place, url=spec.url, server=spec.server)


class ImportedApis(LiveSource[ImportedApi]):
    """The imported APIs of a process: a source of the directory, and the invoker of their operations."""

    name = APIS

    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__()
        self._environment = environment

    async def configure(self, specs: Mapping[str, ApiSpec], http: HttpRequester) -> None:
        """Load new documents, drop removed ones, and load again those with other settings."""

        def load(name: str) -> ImportedApi:
            def make_client(api: Api) -> ApiClient:
                return ApiClient(http, api, self._environment, strict=specs[name].strict)

            return ImportedApi(specs[name], make_client, self._change)

        await self._replace({name: spec.fingerprint for name, spec in specs.items()}, load)

    async def invoke(
        self, listing: Listing, skill: Skill, call: Call, admitted: AdmittedCall, channel: Channel
    ) -> Answer:
        """One call of an operation, as `Invoker`."""
        name = listing.record.name
        api = self._members.get(name)
        if api is None or api.client is None:
            reason = "it is not imported any more" if api is None else api.reason
            raise AgentUnreachableError(name, "its API", reason, sent=False)
        return await api.client.invoke(listing, skill, call, admitted, channel)
