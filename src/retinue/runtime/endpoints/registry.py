"""The registry endpoint of a hub: the visible repositories of a caller, and the token of webhooks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import chain

from starlette.requests import Request

from retinue.core.call import Principal
from retinue.core.errors import InvalidSettingError
from retinue.mesh.directory.directory import Directory
from retinue.mesh.entry import Entry
from retinue.mesh.permissions import Access, AgentView, decide_listings, is_whole
from retinue.oci.server.logins import may_write
from retinue.oci.server.pull import KeepShown
from retinue.oci.server.webhooks import HOOK_TOKEN
from retinue.oci.source import AGENTS, PROMPTS, WORKFLOWS
from retinue.parts.shown_agents import OPENED_AT_ONCE
from retinue.runtime.factories import HOME_SOURCE
from retinue.settings_tables import HookTable
from retinue.web.security import identity_of


def hook_tokens(hooks: HookTable, environ: Mapping[str, str]) -> dict[str, Principal]:
    """The configured token for registry webhooks, accepted besides the state's token.

    Raises InvalidSettingError if the environment variable is not set.
    """
    variable = hooks.token_env
    if variable is None:
        return {}
    token = environ.get(variable, "").strip()
    if not token:
        raise InvalidSettingError(
            "hooks.token_env", f"the variable {variable} is not set", remedy=f"set {variable} to the token"
        )
    return {token: HOOK_TOKEN}


def shown_repositories(directory: Directory, access: Access) -> KeepShown:
    """Shows all repositories to the mesh itself and to callers that see every agent.

    To the others it shows those whose agents they all see whole, because published cards are never edited,
    with the files of these agents, and workflows. A card that the directory does not list, because it is too
    new or was refused, is hidden from them, because its owner is unknown.
    """

    async def keep_shown(request: Request, repositories: Sequence[str]) -> Sequence[str]:
        view = access.view_of(identity_of(request.scope).principal)
        if view is None or may_write(request):
            return repositories
        await directory.ensure_fresh()
        keys = {repository: _key_of_card(repository) for repository in repositories}
        agents = {key: directory.list_tags(HOME_SOURCE, key) for key in keys.values()}
        parts = await _list_parts(directory, view, [*chain.from_iterable(agents.values())])

        def is_shown(key: str) -> bool:
            if agents[key]:
                return key not in parts and all(view(entry.name) for entry in agents[key])
            return key.startswith(WORKFLOWS)

        return [repository for repository in repositories if is_shown(keys[repository])]

    return keep_shown


def _key_of_card(repository: str) -> str:
    """The repository of the card that belongs to the file of an agent; any other repository as it is."""
    if repository.startswith(PROMPTS):
        return f"{AGENTS}{repository.removeprefix(PROMPTS)}"
    return repository


async def _list_parts(directory: Directory, view: AgentView, published: Sequence[Entry]) -> set[str]:
    """The keys of the agents of which the caller sees a part only."""
    parts: set[str] = set()
    for start in range(0, len(published) if view.lists else 0, OPENED_AT_ONCE):
        for listing in directory.open_all(published[start : start + OPENED_AT_ONCE]):
            await decide_listings(view, [listing])
            if not is_whole(view, listing):
                parts.add(listing.key)
        await asyncio.sleep(0)
    return parts
