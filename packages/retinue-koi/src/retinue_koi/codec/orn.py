"""Object resource names (ORN), the identifiers of a KOI network: ``orn:<namespace>:<reference>``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import core_schema

from retinue.cards.personality_profile import check_rid_length


class ORN(ABC):
    """One object resource name; equal to another by its text.

    A subclass has a ``namespace``, makes its fields of the reference in ``from_reference``, and gives the
    reference back. As a field of a pydantic model it is a string in JSON. Source: K-01, rid-lib 3.2.5.
    """

    namespace: ClassVar[str] = ""

    @property
    @abstractmethod
    def reference(self) -> str:
        """The text after the namespace."""

    @classmethod
    @abstractmethod
    def from_reference(cls, reference: str) -> Self:
        """The name with this reference; raises ValueError."""

    @classmethod
    def from_string(cls, string: str) -> Self:
        """Parse ``orn:<namespace>:<reference>``; raises ValueError."""
        head = f"orn:{cls.namespace}:"
        if not string.startswith(head):
            raise ValueError(f"{string[:80]!r} does not start with {head!r}")
        check_rid_length(string)
        return cls.from_reference(string[len(head) :])

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        def parse(value: Any) -> ORN:
            if isinstance(value, cls):
                return value
            if not isinstance(value, str):
                raise ValueError(f"{type(value).__name__} is not a string orn:{cls.namespace}:…")
            return cls.from_string(value)

        return core_schema.no_info_plain_validator_function(
            parse, serialization=core_schema.to_string_ser_schema(when_used="always")
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^orn:{cls.namespace}:"}

    def __str__(self) -> str:
        return f"orn:{self.namespace}:{self.reference}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {str(self)!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ORN) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


class KoiNetNode(ORN):
    """A node: ``orn:koi-net.node:<name>+<hash>``; on the unsigned dialect the hash is a uuid."""

    namespace = "koi-net.node"

    def __init__(self, name: str, hash: str) -> None:  # noqa: A002 - rid-lib's name
        if not name or not hash:
            raise ValueError("a node has a name and a hash: orn:koi-net.node:<name>+<hash>")
        self.name = name
        self.hash = hash

    @property
    def reference(self) -> str:
        return f"{self.name}+{self.hash}"

    @classmethod
    def from_reference(cls, reference: str) -> Self:
        name, plus, uuid = reference.rpartition("+")
        if not plus:
            raise ValueError(f"{reference[:80]!r} is no reference <name>+<hash> of a node")
        return cls(name, uuid)
