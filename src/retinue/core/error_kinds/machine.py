"""Errors of registries, of the state folder and of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from retinue.core.error_kinds.base import FAILED, REFUSED, REQUEST, Kind, RetinueError


class RegistryError(RetinueError):
    """An OCI registry or image layout could not execute a request."""

    type = "registry_error"


class RegistryUnreachableError(RegistryError):
    """No answer from the registry within its time limit."""

    type = "registry_unreachable"

    def __init__(self, registry: str, cause: str) -> None:
        super().__init__(f"registry {registry} is unreachable: {cause}", remedy="is it running?")
        self.registry = registry


class RegistryRefusedError(RegistryError):
    """The registry answered with an error status."""

    type = "registry_refused"
    kind = REFUSED

    def __init__(self, registry: str, status: int, detail: str, *, remedy: str = "") -> None:
        super().__init__(f"registry {registry} answered {status}: {detail}", remedy=remedy)
        self.registry = registry
        self.status = status

    @property
    def data(self) -> dict[str, Any]:
        return {"status": self.status}


class RegistryLoginError(RegistryRefusedError):
    """The registry, or its token server, does not accept our credentials."""

    type = "registry_login"

    def __init__(self, registry: str, detail: str) -> None:
        super().__init__(registry, 401, detail)
        self.remedy = "log in: docker login HOST, or write user:password@ into the registry's url"


class RegistryBusyError(RegistryRefusedError):
    """The registry answered 429 for longer than we may wait; ``retry_after_s`` is its retry-after."""

    type = "registry_busy"
    kind = FAILED

    def __init__(self, registry: str, detail: str, retry_after_s: float) -> None:
        super().__init__(registry, 429, detail)
        self.remedy = f"try again in {max(1, round(retry_after_s))} s"
        self.retry_after_s = retry_after_s

    @property
    def data(self) -> dict[str, Any]:
        return {**super().data, "retry_after_s": self.retry_after_s}


class ReferenceNotFoundError(RegistryError):
    """No such repository, tag or digest."""

    type = "reference_not_found"
    kind = REFUSED

    def __init__(self, registry: str, reference: str) -> None:
        super().__init__(f"{reference} is not in {registry}", remedy="list the agents: retinue agents")
        self.reference = reference


class InvalidReferenceError(RegistryError):
    """Text that is not an OCI reference."""

    type = "invalid_reference"
    kind = REQUEST

    def __init__(self, text: str, problem: str) -> None:
        super().__init__(
            f"{text!r} is not a reference: {problem}",
            remedy="write repository:tag or repository@sha256:<64 hex>",
        )


class DigestMismatchError(RegistryError):
    """Content does not have the digest under which it was requested."""

    type = "digest_mismatch"
    kind = REFUSED

    def __init__(self, reference: str, wanted: str, digest: str) -> None:
        super().__init__(f"{reference}: content has digest {digest}, not {wanted}")
        self.wanted = wanted
        self.found = digest


class MalformedArtifactError(RegistryError):
    """A manifest or agent card that cannot be read."""

    type = "malformed_artifact"
    kind = REFUSED

    def __init__(self, reference: str, problem: str) -> None:
        super().__init__(f"{reference}: {problem}", remedy="publish it again: retinue publish")
        self.reference = reference


class ContentMissingError(MalformedArtifactError):
    """A manifest names content that its repository does not have."""

    type = "content_missing"

    def __init__(self, reference: str, digest: str) -> None:
        super().__init__(reference, f"its content {digest} is missing")
        self.digest = digest

    @property
    def data(self) -> dict[str, Any]:
        return {"digest": self.digest}


class CardSignatureError(MalformedArtifactError):
    """A card that is not signed with a trusted key, where the settings require that.

    ``state`` is that of its signature: none, invalid, unknown_key.
    """

    type = "card_signature"
    _REMEDIES: ClassVar[Mapping[str, str]] = {
        "none": "ask its publisher to sign it: publish it again",
        "unknown_key": "if you trust its publisher: retinue keys trust NAME JWKS",
        "invalid": "do not use it; ask its publisher to publish it again",
    }

    def __init__(self, reference: str, state: str, reason: str) -> None:
        super().__init__(reference, reason)
        self.remedy = self._REMEDIES.get(state, self._REMEDIES["invalid"])
        self.state = state

    @property
    def data(self) -> dict[str, Any]:
        return {"signature": self.state}


class TeamRefusedError(RegistryError):
    """A team that is not run or not read; ``reason`` is a stable word for why.

    It is unsigned, key_unknown, changed, not_a_team, path_refused, too_large, downgrade, data, requires,
    platform, not_consented, tools_differ, check_failed, nodes or name_taken.
    """

    type = "team_refused"
    kind = REFUSED
    _REMEDIES: ClassVar[Mapping[str, str]] = {
        "unsigned": "ask its publisher to sign it: retinue pack signs; or trust nothing of it",
        "key_unknown": "if you trust its publisher: retinue keys trust NAME JWKS",
        "changed": "do not run it; ask its publisher for the digest, and pull it again",
        "not_a_team": "name a team: retinue up teams/NAME, or a file of retinue pack --output",
        "path_refused": "do not run it; ask its publisher to pack it again",
        "downgrade": "to go back to an older version: retinue up REF --downgrade",
        "check_failed": "correct the team and pack it again; its output: retinue logs",
    }

    def __init__(self, reason: str, reference: str, problem: str, *, remedy: str = "") -> None:
        super().__init__(f"{reference}: {problem}", remedy=remedy or self._REMEDIES.get(reason, ""))
        self.reason = reason

    @property
    def data(self) -> dict[str, Any]:
        return {"reason": self.reason}


class RolloutFailedError(TeamRefusedError):
    """A new digest of a team failed its check or was worse than the one before, which has all calls now."""

    type = "rollout_failed"

    def __init__(self, team: str, problem: str) -> None:
        super().__init__("check_failed", team, problem)


class RepositoryTakenError(RegistryError):
    """The repository holds a card of another name."""

    # specification 7.2

    type = "repository_taken"
    kind = REFUSED

    def __init__(self, repository: str, holder: str, name: str) -> None:
        super().__init__(
            f"{repository} holds the card of {holder}, not of {name}",
            remedy="choose another with --repository",
        )


class TagTakenError(RegistryError):
    """The tag holds another major version of the agent."""

    # specification 7.9

    type = "tag_taken"
    kind = REFUSED

    def __init__(self, name: str, place: str, held: str, version: str, *, free_tag: str) -> None:
        tag = place.rpartition(":")[2]
        super().__init__(
            f"{place} holds version {held} of {name}; version {version} would replace it",
            remedy=f"publish under a tag of its own: --tag {free_tag}; "
            f"or remove the other first: retinue forget {name}@{tag}",
        )


class StateError(RetinueError):
    """The state folder or this machine is not usable."""

    type = "state_error"
    kind = Kind(retryable=False, counts_against_health=False, on_error="failed")


class StateDamagedError(StateError):
    """A file of the state folder cannot be read. Nothing was changed."""

    type = "state_damaged"

    def __init__(self, path: str, problem: str, *, remedy: str) -> None:
        super().__init__(f"{path} is damaged: {problem}", remedy=remedy)
        self.path = path


class StorageFullError(StateError):
    """No space left on the device; no partial file remains."""

    type = "storage_full"

    def __init__(self, path: str) -> None:
        super().__init__(f"no space left for {path}; nothing was changed", remedy="free some space")
        self.path = path


class HubRunningError(StateError):
    """Another hub owns this state folder."""

    type = "hub_running"

    def __init__(self, url: str, pid: int, state: str) -> None:
        super().__init__(
            f"a hub already runs on {state}: {url} (pid {pid})",
            remedy="use that one, or give this one its own RETINUE_HOME",
        )


class PortInUseError(StateError):
    """Another program listens on the port; ``holder`` names it where it is known."""

    type = "port_in_use"

    def __init__(
        self, host: str, port: int, *, holder: str | None = None, remedy: str = "choose another with --port"
    ) -> None:
        by = f" by {holder}" if holder else ""
        super().__init__(f"{host}:{port} is in use{by}", remedy=remedy)
        self.port = port


class ChildFailedError(StateError):
    """A supervised process did not become ready."""

    type = "child_failed"

    def __init__(self, name: str, problem: str, tail: str = "") -> None:
        super().__init__(f"{name} did not start: {problem}" + (f": {tail}" if tail else ""))
        self.name = name
