"""``discover_agent``: from a skill's id to the url of an agent that offers it (P-01)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from retinue.apps.parts import HOME_SOURCE, named_registries, registry_sources
from retinue.core.errors import InvalidSettingError
from retinue.drivers.http import HttpClient
from retinue.drivers.layout import LayoutRegistry
from retinue.drivers.state import State, find_state_folder
from retinue.mesh.directory import Directory
from retinue.mesh.listings import MemoryListings
from retinue.settings import environment, load_settings


@asynccontextmanager
async def open_directory(registries: Sequence[str] | None = None) -> AsyncIterator[Directory]:
    """The agents of these registries (urls or folders); of this state and its settings when None."""
    flags = {} if registries is None else {"registries": tuple(registries)}
    settings = load_settings(flags)
    state = State(find_state_folder(environment(), Path.cwd()))
    async with HttpClient(allow_private=settings.allow_private_urls) as http:
        named = named_registries(settings, LayoutRegistry(state.registry), http)
        if registries is not None:
            del named[HOME_SOURCE]
        directory = Directory(
            MemoryListings(), registry_sources(settings, named), ttl_s=settings.directory.ttl_s
        )
        try:
            yield directory
        finally:
            await directory.aclose()


def discover_agent(skill_id: str, *, registries: Sequence[str] | None = None) -> str:
    """The url of the first agent in catalog order that offers the skill, exactly as its card has it.

    Raises UnknownSkillError with near misses and the registries that could not be asked. For
    synchronous programs; inside an event loop use ``open_directory``, whose look-ups are cached.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_discover(skill_id, registries))
    raise InvalidSettingError(
        "discover_agent",
        "called inside an event loop, which it would block",
        remedy="use: async with open_directory() as directory: await directory.discover_agent(skill_id)",
    )


async def _discover(skill_id: str, registries: Sequence[str] | None) -> str:
    async with open_directory(registries) as directory:
        return await directory.discover_agent(skill_id)
