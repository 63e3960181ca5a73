"""`connect` and `connect_sync`: a mesh for programs, by its hub.

Everything else is imported by the call, so that `import retinue` and the names cost a program little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.client.limits import RETRIES, TIMEOUT_S

if TYPE_CHECKING:
    from retinue.client.mesh_connection import MeshConnection
    from retinue.client.sync_connection import SyncMeshConnection
    from retinue.client.updates import QuestionHandler


def connect(
    hub: str | None = None,
    *,
    url: str | None = None,
    token: str | None = None,
    timeout_s: float = TIMEOUT_S,
    retries: int = RETRIES,
    on_question: QuestionHandler | None = None,
) -> MeshConnection:
    """The mesh of a hub, for ``async with connect() as mesh``; sends nothing yet.

    ``hub`` is the URL of a hub or the name of a context, ``url`` a URL. Without both it is the hub of
    ``RETINUE_HUB``, of the context in use, or of the state folder, as for the command line. ``token``
    replaces ``RETINUE_TOKEN`` and the stored one. ``timeout_s`` limits each call. ``retries`` bounds the
    repetitions of a call that the hub did not get, or whose repetition is safe. ``on_question`` answers the
    questions of skills: a function of a `Question`, which may be a coroutine function. Raises
    InvalidSettingError.
    """
    from retinue.client.opening import open_connection

    return open_connection(
        hub, url=url, token=token, timeout_s=timeout_s, retries=retries, on_question=on_question
    )


def connect_sync(
    hub: str | None = None,
    *,
    url: str | None = None,
    token: str | None = None,
    timeout_s: float = TIMEOUT_S,
    retries: int = RETRIES,
    on_question: QuestionHandler | None = None,
) -> SyncMeshConnection:
    """As `connect`, for programs without an event loop, notebooks and threads.

    Use it as ``with connect_sync() as mesh``, or close it. The calls run in an event loop of a thread of its
    own. Any number of threads may call at the same time; Ctrl-C cancels the call that it interrupts.
    ``on_question`` runs in a further thread, so that it may wait for a person.
    """
    # imported here, because most programs have an event loop
    from retinue.client.opening import check_handler
    from retinue.client.sync_connection import SyncMeshConnection, in_thread

    check_handler(on_question)
    handler = None if on_question is None else in_thread(on_question)
    mesh = connect(hub, url=url, token=token, timeout_s=timeout_s, retries=retries, on_question=handler)
    return SyncMeshConnection(mesh)
