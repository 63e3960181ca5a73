"""Checks the artifacts of the state: index, folder, quota, and the digests of the newest ones."""

from __future__ import annotations

from contextlib import aclosing
from hashlib import sha256

from retinue.core.errors import RetinueError, UnknownArtifactError
from retinue.oci.codec.saved_files import SAVED_FILES
from retinue.parts.part import Check
from retinue.runtime.checks.machine import failed
from retinue.runtime.factories import state_artifacts
from retinue.settings import Settings
from retinue.storage.artifacts.store import StoredArtifacts
from retinue.storage.state import State
from retinue.web.http_client import HttpClient

VERIFIED_BYTES = 256 * 1024**2
"""How much content is read and compared with its digests; the newest artifacts come first."""

VERIFIED_REMOTE_BYTES = 4 * 1024**2
"""The same where the content is in a registry elsewhere."""

VERIFIED_MOST = 1_000
NEARLY_FULL = 0.9
"""The share of the quota above which the check warns."""

_NAME = "artifacts"


async def check_artifacts(settings: Settings, state: State, http: HttpClient) -> Check:
    """Whether the artifacts can be read, have their digests, and leave room in their quota."""
    artifacts = state_artifacts(settings, state, http)
    if not artifacts.exists():
        return Check(_NAME, "ok", "none saved")
    folder = state.registry / SAVED_FILES
    if settings.artifacts.registry is None and folder.exists():
        try:
            next(folder.iterdir(), None)
        except OSError as error:
            problem = f"{folder} cannot be read: {error.strerror}"
            return Check(_NAME, "fail", problem, "change its owner or mode (chown, chmod u+rwx)")
    try:
        return await _examine(artifacts.store, is_remote=settings.artifacts.registry is not None)
    except RetinueError as error:
        return failed(_NAME, error)
    finally:
        artifacts.close()


async def _examine(store: StoredArtifacts, *, is_remote: bool) -> Check:
    count, stored_bytes = await store.measure()
    verified, problems = await _verify(store, VERIFIED_REMOTE_BYTES if is_remote else VERIFIED_BYTES)
    quota_bytes = store.limits.quota_bytes
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return Check(
            _NAME,
            "fail",
            problems[0] + more,
            "retinue artifacts delete DIGEST --all, then save the file again",
        )
    share = f"{stored_bytes / quota_bytes:.0%} of artifacts.quota_bytes"
    if stored_bytes > NEARLY_FULL * quota_bytes:
        remedy = "delete some (retinue artifacts --all), or raise artifacts.quota_bytes"
        return Check(_NAME, "warn", f"{count:,} take {share}", remedy)
    return Check(_NAME, "ok", f"{count:,} take {share}; {verified:,} verified")


async def _verify(store: StoredArtifacts, limit_bytes: int) -> tuple[int, list[str]]:
    """How many artifacts have their digests, of the newest that fit into a limit, and what is wrong."""
    verified, problems = 0, list[str]()
    for artifact in await store.list_all(limit=VERIFIED_MOST):
        if artifact.size_bytes > limit_bytes:
            continue
        limit_bytes -= artifact.size_bytes
        hasher = sha256()
        try:
            async with aclosing(store.open(artifact.digest)) as pieces:
                async for piece in pieces:
                    hasher.update(piece)
        except UnknownArtifactError:
            problems.append(f"the content of {artifact.digest} is missing")
            continue
        except RetinueError as error:
            problems.append(error.message)
            continue
        if artifact.digest == f"sha256:{hasher.hexdigest()}":
            verified += 1
        else:
            problems.append(f"the content of {artifact.digest} does not match its digest")
    return verified, problems
