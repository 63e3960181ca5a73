"""Teams and their signatures over HTTP: pushed, mirrored, listed as referrers, pulled and verified."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from retinue.core.errors import InvalidSettingError
from retinue.oci.client.http_registry import HttpRegistry
from retinue.oci.codec.manifest import EMPTY_CONFIG, MANIFEST_TYPE
from retinue.oci.codec.reference import Reference
from retinue.oci.codec.referrers import parse_referrers
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.mirror import mirror
from retinue.runtime.commands.teams.commands import TeamCommands
from retinue.runtime.commands.teams.places import TeamPlace
from retinue.storage.card_keys import CardKeys
from retinue.storage.state import State
from retinue.team.signature import SIGNATURE_TYPE, signature_tag
from retinue.web.http_client import HttpClient
from tests.oci.server.test_push import MANIFEST, TOKEN, open_endpoint
from tests.team.conftest import WriteTeam


def rename_tag(index: Path, tag: str) -> None:
    index.write_text(index.read_text().replace(tag, "other"))


async def test_a_mirrored_team_has_its_signature_and_lists_it_as_a_referrer(
    teams: TeamCommands, write_team: WriteTeam, state: State, layout: LayoutRegistry
) -> None:
    team = (await teams.pack(write_team(), registry=None, output=None)).team
    async with open_endpoint(layout) as endpoint, HttpClient() as http:
        host = endpoint.url.removeprefix("http://")
        target = HttpRegistry(f"http://x:{TOKEN}@{host}", http)
        report = await mirror(LayoutRegistry(state.registry), target)
        assert [copied.tag for copied in report.copied] == ["1.0.0", signature_tag(team.digest)]

        path = f"/v2/teams/words/referrers/{team.digest}"
        reply = await endpoint.ask("GET", f"{path}?artifactType={SIGNATURE_TYPE}".replace("+", "%2B"))
        assert (reply.status, reply.headers["oci-filters-applied"]) == (200, "artifactType")
        (row,) = parse_referrers(reply.body, SIGNATURE_TYPE, where="x")
        assert (await endpoint.ask("GET", f"{path}?artifactType=other")).body.endswith(b'"manifests":[]}')
        unknown = await endpoint.ask("GET", f"/v2/teams/none/referrers/{team.digest}")
        assert (unknown.status, orjson.loads(unknown.body)["manifests"]) == (200, [])

        raw = (await endpoint.ask("GET", f"/v2/teams/words/manifests/{row.digest}")).body
        put = f"/v2/teams/words/manifests/{signature_tag(team.digest)}"
        again = await endpoint.ask("PUT", put, raw, content_type=MANIFEST)
        assert (again.status, again.headers["oci-subject"]) == (201, team.digest)

        # without the tag the referrers still lead to the signature
        await layout.put_manifest("teams/words", row.digest, raw, MANIFEST)
        rename_tag(Path(layout.name, "teams", "words", "index.json"), signature_tag(team.digest))
        pulled = await teams.pull(f"oci://{host}/teams/words@{team.digest}")
        assert pulled.verify(CardKeys(state.keys).trusted()).owner == "this state"
        assert {file.path for file in await pulled.pull_files()} == {row.path for row in team.files}


async def test_a_pulled_file_is_published_elsewhere_with_digest_and_signature(
    teams: TeamCommands, write_team: WriteTeam, state: State, layout: LayoutRegistry, tmp_path: Path
) -> None:
    team = (await teams.pack(write_team(), registry=None, output=None)).team
    file = tmp_path / "words.tar"
    await teams.save(await teams.pull("words"), file, force=False)
    with pytest.raises(InvalidSettingError, match="exists"):
        await teams.save(await teams.pull("words"), file, force=False)
    published = await teams.publish(str(file), layout.name)
    assert published.team.digest == team.digest
    copied = await TeamPlace(layout).pull(Reference("teams/words", tag="1.0.0"))
    assert (copied.team.digest, copied.verify(CardKeys(state.keys).trusted()).owner) == (
        team.digest,
        "this state",
    )


async def test_a_registry_without_referrers_keeps_the_signature_under_its_tag(
    teams: TeamCommands, write_team: WriteTeam, state: State, each_registry_url: str
) -> None:
    team = (await teams.pack(write_team(), registry=None, output=None)).team
    host = each_registry_url.removeprefix("http://")
    async with HttpClient() as http:
        target = HttpRegistry(each_registry_url, http)
        report = await mirror(LayoutRegistry(state.registry), target, repositories=["teams/words"])
        assert [copied.tag for copied in report.copied] == ["1.0.0", signature_tag(team.digest)]
    pulled = await teams.pull(f"oci://{host}/teams/words@{team.digest}")
    assert pulled.verify(CardKeys(state.keys).trusted()).owner == "this state"
    assert {file.path for file in await pulled.pull_files()} == {row.path for row in team.files}


def test_a_row_with_the_type_of_the_config_is_looked_at_too() -> None:
    rows = [
        {
            "mediaType": MANIFEST_TYPE,
            "digest": f"sha256:{number * 64}",
            "size": 1,
            "artifactType": artifact_type,
        }
        for number, artifact_type in (("1", EMPTY_CONFIG.media_type), ("2", SIGNATURE_TYPE), ("3", "a/b"))
    ]
    listed = parse_referrers(orjson.dumps({"manifests": rows}), SIGNATURE_TYPE, where="x")
    assert [row.digest[7] for row in listed] == ["1", "2"]
