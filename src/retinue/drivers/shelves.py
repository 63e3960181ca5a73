"""Workflows kept in an OCI registry, as ``workflows/<name>`` (P-29)."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.core.errors import MalformedArtifactError
from retinue.drivers.registry import Registry, list_published
from retinue.protocols.oci.reference import Reference, choose_tag, workflow_repository
from retinue.workflows.shelf import StoredText

_PREFIX = "workflows/"


class RegistryShelf:
    """The workflows of one registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def list_names(self) -> Sequence[str]:
        repositories = await list_published(self._registry)
        return [one.removeprefix(_PREFIX) for one in repositories if one.startswith(_PREFIX)]

    async def find_text(self, name: str) -> StoredText | None:
        repository = workflow_repository(name)
        tag = choose_tag(await self._registry.list_tags(repository))
        if tag is None:
            return None
        artifact = await self._registry.pull(Reference(repository, tag=tag))
        reference = f"{repository}:{tag}"
        if artifact.form != "workflow":
            raise MalformedArtifactError(reference, f"it holds {artifact.media_type}, not a workflow")
        try:
            return StoredText(artifact.content.decode("utf-8"), reference)
        except UnicodeDecodeError as error:
            raise MalformedArtifactError(reference, "its text is not UTF-8") from error
