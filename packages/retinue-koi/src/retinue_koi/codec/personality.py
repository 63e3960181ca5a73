"""Personalities: the identifier, the traits and the profile of an agent on a KOI network (K-01 … K-04).

A profile is the content of a bundle. Keys that a trait or a profile has beyond these fields are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, model_validator

from retinue.cards.personality_profile import personality_rid
from retinue_koi.codec.orn import ORN, KoiNetNode

_METADATA = frozenset({"description", "is_callable", "type", "value", "input_schema", "output_schema"})


class AgentPersonality(ORN):
    """The RID of one version of an agent's personality: ``orn:agent.personality:<name>/<version>``.

    Raises ValueError for a name or version that is empty or contains a slash, and for a RID that is too long.
    """

    namespace = "agent.personality"

    def __init__(self, name: str, version: str) -> None:
        personality_rid(name, version)
        self.name = name
        self.version = version

    @property
    def reference(self) -> str:
        return f"{self.name}/{self.version}"

    @classmethod
    def from_reference(cls, reference: str) -> Self:
        name, slash, version = reference.partition("/")
        if not slash:
            raise ValueError(f"{reference[:80]!r} is no reference <name>/<version> of a personality")
        return cls(name, version)


class PersonalityTrait(BaseModel):
    """One trait: a fact, or, with ``is_callable``, a tool of the agent.

    ``type`` is the Python name of the value's type; it is inferred where it is not given. A callable trait
    may have ``input_schema`` and ``output_schema``, the JSON Schemas of its arguments and of its result.
    """

    model_config = ConfigDict(extra="allow")

    name: str
    description: str = ""
    type: str = ""
    value: Any = None
    is_callable: bool = False

    @model_validator(mode="after")
    def _infer_type(self) -> Self:
        if not self.type:
            self.type = type_name_of(self.value)
        return self

    @classmethod
    def from_value(
        cls, name: str, value: Any, description: str | None = None, is_callable: bool = False
    ) -> Self:
        """A trait of a name and a value; its type is inferred."""
        text = f"{name} trait" if description is None else description
        return cls(name=name, description=text, value=value, is_callable=is_callable)

    @classmethod
    def from_entry(cls, name: str, entry: Any) -> Self:
        """A trait of one entry of a dictionary of traits: a plain value, or one with its metadata.

        Raises pydantic's ValidationError for metadata of a wrong type.
        """
        if is_described(entry):
            return cls(**{**entry, "name": name})
        return cls.from_value(name, entry)

    def find_schema(self, kind: str) -> dict[str, Any] | None:
        """The ``input_schema`` or ``output_schema``, if the trait has one that is an object."""
        schema = (self.model_extra or {}).get(kind)
        return schema if isinstance(schema, dict) else None


class PersonalityProfile(BaseModel):
    """The personality of an agent: who it is, where it answers, and its traits."""

    model_config = ConfigDict(extra="allow")

    rid: AgentPersonality
    node_rid: KoiNetNode
    base_url: str | None = None
    mcp_url: str | None = None
    traits: list[PersonalityTrait]

    def get_trait(self, name: str) -> PersonalityTrait | None:
        """The trait of this name, or None."""
        for trait in self.traits:
            if trait.name == name:
                return trait
        return None

    def update_trait(self, name: str, value: Any) -> bool:
        """Set the value of a trait, or its metadata from a described entry; False if there is no such trait.

        The type follows the new value unless the entry names one.
        """
        for position, trait in enumerate(self.traits):
            if trait.name != name:
                continue
            changes = dict(value) if is_described(value) else {"value": value}
            if "value" in changes:
                changes.setdefault("type", type_name_of(changes["value"]))
            # validated as a whole: a trait with a description of a wrong type would break its readers
            self.traits[position] = PersonalityTrait(**{**trait.model_dump(), **changes, "name": name})
            return True
        return False

    def add_trait(self, trait: PersonalityTrait) -> None:
        """Add a trait; one of the same name is replaced in its place."""
        for position, held in enumerate(self.traits):
            if held.name == trait.name:
                self.traits[position] = trait
                return
        self.traits.append(trait)


def is_described(entry: Any) -> bool:
    """Whether an entry is metadata of a trait rather than its value.

    It is if it is an object with a description or ``is_callable``, or with nothing but metadata.
    """
    if not isinstance(entry, Mapping) or not entry:
        return False
    return "description" in entry or "is_callable" in entry or entry.keys() <= _METADATA


def type_name_of(value: Any) -> str:
    """The Python name of a value's type, such as ``str`` or ``NoneType``."""
    return type(value).__name__
