"""Which skills get a function, and which agents it calls."""

from __future__ import annotations

from typing import Any

from retinue.client.stubs.offers import Offer, choose_skills, read_offers
from retinue.core.errors import UnknownAgentError

TEXT = {"type": "object", "properties": {"text": {"type": "string"}, "limit": {"type": "integer"}}}
SAME = {"properties": {"limit": {"type": "integer"}, "text": {"type": "string"}}, "type": "object"}
OTHER = {"type": "object", "properties": {"query": {"type": "string"}}}


def offer(agent: str, skill: str = "search", schema: Any = TEXT) -> Offer:
    return Offer(agent, skill, "", schema, None)


def chosen(
    *offers: Offer, agents: tuple[str, ...] = (), skills: tuple[str, ...] = ()
) -> list[tuple[str, str | None]]:
    return [(skill.name, skill.agent) for skill in choose_skills(offers, agents, skills)]


def test_a_skill_with_equal_schemas_everywhere_is_called_at_any_agent() -> None:
    assert chosen(offer("a"), offer("b", schema=SAME)) == [("search", None)]


def test_a_skill_with_different_schemas_has_a_function_for_each_agent() -> None:
    assert chosen(offer("b"), offer("a", schema=OTHER)) == [("search_at_a", "a"), ("search_at_b", "b")]


def test_of_one_chosen_agent_the_function_has_the_plain_name_and_calls_it_only() -> None:
    assert chosen(offer("b"), offer("a", schema=OTHER), agents=("b*",)) == [("search", "b")]
    assert chosen(offer("b"), offer("a"), agents=("b",)) == [("search", None)]


def test_globs_choose_skills_and_agents() -> None:
    offers = (offer("git", "git_log"), offer("git", "git_show"), offer("web", "fetch"))
    assert chosen(*offers, skills=("git_*",)) == [("git_log", None), ("git_show", None)]
    assert chosen(*offers, skills=("*",), agents=("w*", "x")) == [("fetch", None)]
    assert chosen(*offers, skills=("Git*",)) == []


async def test_of_several_versions_the_newest_is_read_and_of_several_sources_each() -> None:
    rows = [
        {"name": "plan", "source": "local", "version": "1.9.0"},
        {"name": "plan", "source": "local", "version": "1.10.0", "health": "unavailable"},
        {"name": "plan", "source": "local", "version": "2.0.0-rc1"},
        {"name": "two", "source": "local", "version": "1.0.0"},
        {"name": "two", "source": "team", "version": "1.0.0"},
        {"name": "off", "source": "local", "health": "disabled", "status": "unavailable"},
        {"name": "gone", "source": "local"},
    ]
    asked = []

    async def read(skill: str, arguments: dict[str, Any]) -> Any:
        if skill == "list_agents":
            return {"agents": rows, "missing": [{"source": "far", "error": "away"}]}
        asked.append(arguments["name"])
        if arguments["name"] == "gone":
            raise UnknownAgentError("gone")
        return {"card": {"skills": [{"id": "do", "description": "Does."}]}}

    offers, missing = await read_offers(read)
    assert asked == ["gone", "plan@1.10.0", "two@local", "two@team"]
    assert offers == [Offer(agent, "do", "Does.", None, None) for agent in ("plan", "two@local", "two@team")]
    assert missing == [{"source": "far", "error": "away"}]
