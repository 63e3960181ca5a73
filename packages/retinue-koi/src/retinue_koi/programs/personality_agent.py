"""Makes an agent from a personality: callable traits become skills, other traits facts (K-33)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from retinue.authoring.agent import Agent
from retinue.core.errors import InvalidSettingError, UnknownSkillError
from retinue.core.record import AgentRecord
from retinue_koi.codec.personality import PersonalityProfile, PersonalityTrait
from retinue_koi.codec.profile_records import parse_profile

Functions = Mapping[str, Callable[..., Any]]
"""The functions behind callable traits, by the names of the traits."""


class PersonalityAgent(Agent):
    """The agent of a profile, whose skills are exposed: seed 003 has no lists of exposure.

    A callable trait with a function of ``functions`` runs it; one without gives its value, whatever the
    arguments. Call ``follow_profile`` after a change of the profile. Raises InvalidSettingError for a
    function without a callable trait.
    """

    def __init__(self, profile: PersonalityProfile, functions: Functions | None = None) -> None:
        super().__init__(profile.rid.name, version=profile.rid.version)
        self.profile = profile
        self._bound = dict(functions or {})
        self.follow_profile()

        @self.resource(
            f"agent:{quote(profile.rid.name)}",
            name="profile",
            mime="application/json",
            description=f"The personality of {profile.rid.name}",
            expose=True,
        )
        def read_profile() -> Any:
            return self.profile.model_dump()

    def is_bound(self, trait: str) -> bool:
        """Whether a function answers for this trait."""
        return trait in self._bound

    def bind(self, trait: str, function: Callable[..., Any]) -> None:
        """Let a function answer for a callable trait from now on."""
        self._bound[trait] = function
        self.follow_profile()

    def follow_profile(self) -> None:
        """Take skills and facts from the profile; traits with a function get its schemas."""
        for name, function in self._bound.items():
            trait = self.profile.get_trait(name)
            if trait is None or not trait.is_callable:
                raise InvalidSettingError(
                    f"function {name}",
                    f"{self.profile.rid.name} has no callable trait of this name",
                    remedy=f'declare it: "{name}": {{"description": "…", "is_callable": true}}',
                )
            if name in self._functions and self._functions[name][0] is not function:
                self.forget_skill(name)
            if name not in self._functions:
                self.skill(name, description=trait.description or None, expose=True)(function)
            skill = self._skills[name]
            schemas = {"input_schema": skill.input_schema, "output_schema": skill.output_schema}
            known = {key: dict(schema) for key, schema in schemas.items() if schema is not None}
            described = {"description": skill.description, "type": "function", **known}
            self.profile.add_trait(PersonalityTrait(**{**trait.model_dump(), **described}))
        record = parse_profile(self.profile)
        declared = {skill.id: skill for skill in record.skills}
        for skill_id in [known for known in self._skills if known not in declared]:
            self.forget_skill(skill_id)
        for skill in declared.values():
            if skill.id not in self._skills:
                self.declare(skill)
            elif skill.id not in self._functions and self._skills[skill.id] != skill:
                self.replace_skills([skill])
        self.amend(
            description=record.description,
            topics=record.topics,
            scores=record.scores,
            traits=record.traits,
        )

    async def execute_skill(self, skill_id: str, params: Any) -> Any:
        if skill_id in self._functions:
            return await super().execute_skill(skill_id, params)
        trait = self.profile.get_trait(skill_id)
        if trait is None:
            raise UnknownSkillError(skill_id)
        return trait.value

    def record(self, url: str | None = None, *, with_facts: bool = False) -> AgentRecord:
        """As `Agent.record`; the profile is a resource of its own, so the facts are not added to it."""
        record = super().record(url)
        return replace(record, extra={**record.extra, **parse_profile(self.profile).extra})
