"""Chooses the hub of a command or a program, and the token that goes to it.

The hub is the named one (``--hub``, ``connect(hub)``), else that of ``RETINUE_HUB``, else of the context in
use, else of the state folder.
The token is that of ``RETINUE_TOKEN``, else of the context with the hub's URL, else the one that this machine
got when it joined that hub. The token of the state goes to the state's own hub only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from retinue.storage.contexts import LOCAL, ContextFile, HubContexts, check_hub_url, find_configuration_folder
from retinue.storage.mesh_key import joined_token
from retinue.storage.state import HUB_VARIABLE, State
from retinue.web.mesh_tokens import find_hub_token, is_hub_of

TOKEN_VARIABLE = "RETINUE_TOKEN"  # noqa: S105 - a name


@dataclass(frozen=True, slots=True)
class HubChoice:
    """A hub for a command or program; ``remedy`` is what to do when it does not answer.

    ``is_member`` if this state and the hub share a mesh key, so that a signed trace means something to it.
    ``has_own_token`` if ``token`` is the one that the state has for the hub, and no other was named.
    """

    url: str
    token: str | None = field(repr=False)
    remedy: str
    is_member: bool
    has_own_token: bool


_OWN_REMEDY = "start it: retinue hub; or see what is wrong: retinue doctor"
_START = "start it on its machine: retinue hub"


def choose_hub(
    state: State,
    option: str | None,
    environ: Mapping[str, str],
    *,
    token: str | None = None,
    option_name: str = "--hub",
) -> HubChoice | None:
    """The hub of a command; None where no hub is named and none runs on the state folder.

    ``option`` is the value of ``--hub``: a URL, or the name of a context; ``option_name`` is its name in
    messages. ``token`` goes before every stored one. Raises InvalidSettingError, and StateError for a file of
    contexts that cannot be used.
    """
    contexts = ContextFile(find_configuration_folder(environ)).read()
    named = _find_named(contexts, option, option_name, environ)
    if named is None:
        hub = state.read_hub()
        named = None if hub is None else (hub.url, _OWN_REMEDY)
    if named is None:
        return None
    url, remedy = named
    own = choose_known(state, url)
    token = token or environ.get(TOKEN_VARIABLE) or contexts.token_for(url, first=option)
    return HubChoice(url, token or own.token, remedy, own.is_member, has_own_token=not token)


def choose_known(state: State, url: str) -> HubChoice:
    """The hub at a URL with the token that this state has for it, if any."""
    is_member = is_hub_of(state, url) or joined_token(state.keys, url) is not None
    return HubChoice(url, find_hub_token(state, url), _OWN_REMEDY, is_member, has_own_token=True)


def _find_named(
    contexts: HubContexts, option: str | None, option_name: str, environ: Mapping[str, str]
) -> tuple[str, str] | None:
    """The URL that the option, the variable or the context in use names, with the remedy."""
    if option is not None and "://" in option:
        return check_hub_url(option, option_name), f"check {option_name}, or {_START}"
    if option is not None:
        return contexts.find(option).url, _START
    if variable := environ.get(HUB_VARIABLE):
        return check_hub_url(variable, HUB_VARIABLE), f"{_START}; or unset {HUB_VARIABLE}"
    if contexts.current is not None:
        remedy = f"{_START}; or use the hub of this machine: retinue context use {LOCAL}"
        return contexts.by_name[contexts.current].url, remedy
    return None
