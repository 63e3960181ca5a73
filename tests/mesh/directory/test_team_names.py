"""Agents of one name in two teams: full names find each, the plain name is refused with both."""

from __future__ import annotations

import pytest

from retinue.core.errors import UnknownAgentError
from retinue.core.record import AgentRecord, Endpoint, Listing, Skill
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings

MESH = frozenset({"mesh", "exposed"})


def member(team: str, version: str = "1.0.0") -> Listing:
    endpoint = Endpoint("execute", f"http://{team}-{version}")
    record = AgentRecord("word", version=version, endpoints=(endpoint,), skills=(Skill("count"),))
    return Listing(record, "home", f"agents/{team}/word", tag=f"v{version}", digest=f"sha256:{team}{version}")


async def resolve(directory: Directory, agent: str | None) -> list[str]:
    return sorted(entry.key for entry in await directory.resolve_skill("count", MESH, agent=agent))


async def test_full_names_find_the_agents_of_two_teams_and_the_plain_one_names_them() -> None:
    directory = Directory(MemoryListings())
    news, words = member("news"), member("words", "2.0.0")
    directory.upsert(news)
    assert await resolve(directory, "word") == await resolve(directory, "word@news") == ["agents/news/word"]
    assert directory.name_of(news) == "word"
    directory.upsert(words)
    for team in ("news", "words"):
        assert await resolve(directory, f"word@{team}") == [f"agents/{team}/word"]
        assert (await directory.open_named(f"word@{team}")).key == f"agents/{team}/word"
    assert {directory.name_of(news), directory.name_of(words)} == {"word@news", "word@words"}
    assert await resolve(directory, None) == ["agents/news/word", "agents/words/word"]
    with pytest.raises(UnknownAgentError, match="word@news, word@words"):
        await resolve(directory, "word")
    with pytest.raises(UnknownAgentError, match="word@news, word@words"):
        await directory.open_named("word")
    # an older version of one team is no reason to doubt
    directory.remove(words.id)
    directory.upsert(member("news", "0.9.0"))
    assert {entry.key for entry in directory.list_named("word")} == {"agents/news/word"}
    assert directory.find_named("word") is not None
    assert (await resolve(directory, "word"))[0] == "agents/news/word"
    directory.upsert(words)
    directory.set_enabled(words, False)
    assert set(await resolve(directory, "word")) == {"agents/news/word"}
