"""Chooses who answers in a conversation: an agent in Markdown, or a model, with skills as its tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from retinue.core.errors import InvalidSettingError, NoModelError
from retinue.core.record import HUB_NAME

if TYPE_CHECKING:
    from retinue.client.hub_skills import HubSkills

Json = dict[str, Any]

_COMPLETE = "complete"
_ROLE = "execute"
_MARKDOWN = "io.retinue.markdown"
"""The annotation of the card of an agent in Markdown."""

_THINK, _STEP = "think", "answer"
"""The built-in workflow, and its step whose model is replaced."""

_ARGUMENTS = ("prompt", "run", "session")


@dataclass(frozen=True, slots=True)
class Partner:
    """Who answers: a turn calls ``skill`` of ``agent`` with the prompt, a run id and a session.

    ``title`` says it to people. ``remembers`` = the skill takes a session. A ``model`` is called by
    ``orchestrate``, or if it ``thinks`` by the workflow of this name.
    """

    title: str
    agent: str
    skill: str
    remembers: bool = True
    model: str | None = None
    thinks: bool = False

    def write_arguments(self, prompt: str, run: str, session: str) -> Json:
        """The arguments of the call of one turn."""
        if self.thinks:
            workflow_input = {"prompt": prompt, "session": session}
            overrides = {"agents": {_STEP: self.model}}
            return {"workflow": _THINK, "input": workflow_input, "overrides": overrides, "run": run}
        arguments: Json = {"prompt": prompt, "run": run}
        if self.model is not None:
            arguments["preferences"] = {"workflow": "direct", "agent": self.model, "cache": False}
        return {**arguments, "session": session} if self.remembers else arguments

    def read_answer(self, value: Any) -> Any:
        """The answer in the value of the call."""
        if self.thinks:
            return value["output"]["output"]
        return value if self.model is None else value["output"]


async def choose_partner(hub: HubSkills, name: str | None) -> Partner:
    """The agent of this name, else the best model of the mesh.

    Raises UnknownAgentError, InvalidSettingError for an agent that takes no prompts, and NoModelError.
    """
    if name is None:
        return await _choose_model(hub)
    shown = await hub.read("show_agent", {"name": name})
    card = shown["card"]
    if _is_model(card):
        return _use_model(name, shown["listing"]["skills"])
    partner = _read_markdown(name, card)
    if partner is None:
        raise InvalidSettingError(
            "AGENT",
            f"{name} is neither a model nor an agent in Markdown that takes a prompt",
            remedy="name one of them, or call its skills: retinue call",
        )
    return partner


async def _choose_model(hub: HubSkills) -> Partner:
    """The best available model that takes tools, else the best one that only answers."""
    rows = (await hub.read("list_agents", {"role": _ROLE, "detailed": True}))["agents"]
    for row in rows:
        if row["status"] != "unavailable" and _COMPLETE in row["skills"]:
            return _use_model(row["name"], row["skills"])
    missing: list[str] = []
    for row in rows:
        if not _is_model((await hub.read("show_agent", {"name": row["name"]}))["card"]):
            continue
        if row["status"] != "unavailable":
            return _use_model(row["name"], row["skills"])
        missing.append(f"{row['name']}: {row.get('reason')}")
    raise NoModelError(_ROLE, "; ".join(missing))


def _use_model(name: str, skills: list[str]) -> Partner:
    thinks = _COMPLETE in skills
    title = f"{name}, which uses the skills of the mesh" if thinks else f"{name}, which takes no tools"
    skill = "orchestrate_workflow" if thinks else "orchestrate"
    return Partner(title, HUB_NAME, skill, model=name, thinks=thinks)


def _is_model(card: Mapping[str, Any]) -> bool:
    return _read_metadata(card, "labels").get("kind") == "model"


def _read_metadata(card: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    metadata = card.get("metadata")
    rows = metadata.get(part) if isinstance(metadata, Mapping) else None
    return rows if isinstance(rows, Mapping) else {}


def _read_markdown(name: str, card: Mapping[str, Any]) -> Partner | None:
    """The agent of a card as a partner; None for one that is not in Markdown, or takes no prompt."""
    if _MARKDOWN not in _read_metadata(card, "annotations"):
        return None
    for skill in card.get("skills", ()):
        schema = skill.get("input_schema") or {}
        fields = schema.get("properties") or {}
        if "prompt" in fields and "run" in fields and set(schema.get("required", ())) <= set(_ARGUMENTS):
            return Partner(name, name, skill["id"], remembers="session" in fields)
    return None
