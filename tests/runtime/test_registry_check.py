"""The row ``registry`` of ``retinue doctor``."""

from __future__ import annotations

from pathlib import Path

from retinue.oci.codec.artifacts import Package
from retinue.oci.codec.manifest import Manifest, describe, render_manifest
from retinue.oci.codec.reference import digest_of
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.runtime.checks.state import check_layouts


async def test_artifacts_that_are_no_cards_are_verified_by_their_blobs(tmp_path: Path) -> None:
    config, content = b"{}", b"a layer of a team"
    config_blob = describe(config, "application/vnd.retinue.team.config.v1+json")
    layer = describe(content, "application/vnd.retinue.team.agents.v1.tar")
    manifest = Manifest(config_blob, (layer,), artifact_type="application/vnd.retinue.team.v1")
    raw = render_manifest(manifest)
    registry = LayoutRegistry(tmp_path)
    blobs = {config_blob.digest: config, layer.digest: content}
    await registry.push_package("teams/editorial", "1.0.0", Package(manifest, raw, digest_of(raw), blobs))
    check = await check_layouts(registry)
    assert (check.status, "1 repositories, 1 tags" in check.found) == ("ok", True)

    _damage(tmp_path, layer.digest)
    check = await check_layouts(LayoutRegistry(tmp_path))
    assert check.status == "fail"
    assert "does not match its digest" in check.found


def _damage(root: Path, digest: str) -> None:
    (path,) = root.rglob(digest.removeprefix("sha256:"))
    path.write_bytes(b"another layer")
