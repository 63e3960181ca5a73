"""Makes the connection of a program: checks what it names, and chooses the hub when it is needed."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.client.hub_choice import HubChoice, choose_hub
from retinue.client.hub_dispatch import HubDispatch
from retinue.client.mesh_client import MeshClient, is_seconds
from retinue.client.mesh_connection import MeshConnection
from retinue.core.error_kinds.execution import HUB
from retinue.core.errors import AgentUnreachableError, InvalidSettingError
from retinue.mesh.lazy_artifacts import LazyArtifacts
from retinue.storage.state import State, find_state_folder

if TYPE_CHECKING:
    from retinue.artifacts.client import HubArtifacts
    from retinue.client.updates import QuestionHandler

ENDPOINT = "client"


def open_connection(
    hub: str | None,
    *,
    url: str | None,
    token: str | None,
    timeout_s: float,
    retries: int,
    on_question: QuestionHandler | None,
) -> MeshConnection:
    """As `connect`."""
    if hub is not None and url is not None:
        raise InvalidSettingError("url", "hub and url are both given", remedy="give one of them")
    for field, text in (("hub", hub), ("url", url), ("token", token)):
        _check_text(field, text)
    if url is not None and "://" not in url:
        raise InvalidSettingError("url", f"{url[:80]!r} is not a URL", remedy="write http://host:port")
    if not is_seconds(timeout_s):
        raise InvalidSettingError(
            "timeout_s", f"{timeout_s!r} is not a number above 0", remedy="give seconds"
        )
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise InvalidSettingError(
            "retries", f"{retries!r} is not a whole number from 0", remedy="give a number"
        )
    check_handler(on_question)
    state = State(find_state_folder(os.environ, Path.cwd()))
    choice = _Choice(state, hub if url is None else url, "hub" if url is None else "url", token)
    dispatch = HubDispatch(choice.choose, state)
    return MeshConnection(
        MeshClient(dispatch, None, retries=retries, endpoint=ENDPOINT),
        timeout_s=timeout_s,
        on_question=on_question,
        close=dispatch.aclose,
        choose=choice.choose,
        artifacts=LazyArtifacts(partial(_open_artifacts, dispatch)),
    )


def check_handler(on_question: object) -> None:
    """Raises InvalidSettingError for what cannot answer questions."""
    if on_question is not None and not callable(on_question):
        kind = type(on_question).__name__
        raise InvalidSettingError("on_question", f"{kind} is not a function", remedy="give one of a Question")


def _check_text(field: str, text: object) -> None:
    """Raises InvalidSettingError, which quotes no token."""
    if text is not None and not isinstance(text, str):
        problem = f"{type(text).__name__} is not a text"
    elif text is not None and field == "token" and not (text.isascii() and text.isprintable()):
        problem = "it has a line break, or another character that no token has"
    else:
        return
    remedy = "print it with retinue token new" if field == "token" else "write http://host:port"
    raise InvalidSettingError(field, problem, remedy=remedy)


def _open_artifacts(dispatch: HubDispatch) -> HubArtifacts:
    # imported here, because most programs use no file
    from retinue.artifacts.client import HubArtifacts

    return HubArtifacts(dispatch.find_artifact_server)


class _Choice:
    """The hub that a program named, or that its environment names."""

    def __init__(self, state: State, hub: str | None, option_name: str, token: str | None) -> None:
        self._state = state
        self._hub = hub
        self._option_name = option_name
        self._token = token

    def choose(self) -> HubChoice:
        """Raises InvalidSettingError, StateError, and AgentUnreachableError where no hub is named or runs."""
        chosen = choose_hub(
            self._state, self._hub, os.environ, token=self._token, option_name=self._option_name
        )
        if chosen is None:
            error = AgentUnreachableError(HUB, "", f"none runs on the state folder {self._state.root}")
            error.message = f"no hub is running on the state folder {self._state.root}, and no other is named"
            error.args = (error.message,)
            error.remedy = (
                "start one: retinue hub; or name one: connect(url=…), RETINUE_HUB, retinue context use"
            )
            raise error
        return chosen
