"""The registry endpoint of a hub: the visible repositories of a caller, and the token of webhooks."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping

from starlette.requests import Request

from retinue.core.call import Principal
from retinue.core.errors import InvalidSettingError
from retinue.mesh.directory.directory import Directory
from retinue.mesh.permissions import Access, decide_listings, is_whole
from retinue.oci.server.logins import may_write
from retinue.oci.server.pull import FindShown, IsShown
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


def shown_repositories(directory: Directory, access: Access) -> FindShown:
    """Shows all repositories to the mesh itself and to callers that see every agent.

    To the others it shows those whose agents they all see whole, because published cards are never edited,
    with the files of these agents, and workflows. A card that the directory does not list, because it is too
    new or was refused, is hidden from them, because its owner is unknown.
    """

    async def find_shown(request: Request) -> IsShown | None:
        view = access.view_of(identity_of(request.scope).principal)
        if view is None or may_write(request):
            return None
        await directory.ensure_fresh()
        agents: defaultdict[str, set[str]] = defaultdict(set)
        parts: set[str] = set()
        published = [entry for entry in directory.list_held() if entry.source == HOME_SOURCE]
        for entry in published:
            agents[entry.key].add(entry.name)
        for start in range(0, len(published) if view.lists else 0, OPENED_AT_ONCE):
            for listing in directory.open_all(published[start : start + OPENED_AT_ONCE]):
                await decide_listings(view, [listing])
                if not is_whole(view, listing):
                    parts.add(listing.key)
            await asyncio.sleep(0)

        def is_shown(repository: str) -> bool:
            if repository.startswith(PROMPTS):
                repository = f"{AGENTS}{repository.removeprefix(PROMPTS)}"
            if repository in agents:
                return repository not in parts and all(map(view, agents[repository]))
            return repository.startswith(WORKFLOWS)

        return is_shown

    return find_shown
