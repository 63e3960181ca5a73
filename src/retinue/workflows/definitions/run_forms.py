"""The stored form of a run's work: a whole workflow, a nested workflow, or a branch of either.

A request holds the JSON form. It is parsed once for all runs that hold the same: the items of a ``foreach``
share one parsed branch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal

import orjson
from pydantic import Discriminator, Field, Tag, TypeAdapter

from retinue.workflows.definitions.definition import (
    CodeDefinition,
    CodeReference,
    Definition,
    Step,
    WorkflowSettings,
)
from retinue.workflows.definitions.values import StrictModel

_PARSED = 32
"""How many different definitions stay parsed."""


class BundledWorkflow(StrictModel):
    """A stored workflow that another one runs; ``digest`` is that of the artifact it came in.

    ``as_mesh`` = its owner may mark it ``runs_as: mesh``, and did.
    """

    definition: Definition
    digest: str | None
    as_mesh: bool = False


Bundled = Mapping[str, BundledWorkflow]
"""The workflows that the steps of a run refer to, by reference: read and checked before the run began."""


class WholeRun(Definition):
    """A workflow that was started from outside. The run's value is the workflow's output."""

    nested: dict[str, BundledWorkflow] = Field(default={})

    @classmethod
    def of(cls, definition: Definition, nested: Bundled) -> WholeRun:
        form = CodeRun if isinstance(definition, CodeDefinition) else cls
        return form.model_validate({**dict(definition), "nested": dict(nested)})


class CodeRun(WholeRun):
    """A workflow in Python that was started from outside; its function makes the steps."""

    steps: Annotated[tuple[Step, ...], Field(strict=False, max_length=0)] = ()
    code: CodeReference


class NestedRun(WholeRun):
    """A workflow that a step of another run executes. The run's value is a BranchResult."""

    as_step: Literal[True]

    @classmethod
    def of(cls, definition: Definition, nested: Bundled) -> NestedRun:
        return cls.model_validate({**dict(definition), "nested": dict(nested), "as_step": True})


class BranchRun(StrictModel):
    """Steps that run concurrently with others of the same workflow. The run's value is a BranchResult.

    ``known`` are the ids of steps that expressions may refer to.
    """

    steps: Annotated[tuple[Step, ...], Field(alias="branch", strict=False)]
    known: Annotated[tuple[str, ...], Field(strict=False)]
    settings: WorkflowSettings
    nested: dict[str, BundledWorkflow] = Field(default={})


RunForm = WholeRun | NestedRun | CodeRun | BranchRun


def render_form(form: RunForm) -> dict[str, Any]:
    """The JSON form, without what equals the default."""
    return form.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def parse_form(definition: Mapping[str, Any]) -> RunForm:
    """The form that `render_form` rendered; raises pydantic's ValidationError for another value."""
    return _parse(orjson.dumps(definition))


@lru_cache(maxsize=_PARSED)
def _parse(text: bytes) -> RunForm:
    return _FORMS.validate_python(orjson.loads(text))


def _kind_of(value: Any) -> str:
    if "branch" in value:
        return "branch"
    if "code" in value:
        return "code"
    return "nested" if value.get("as_step") else "whole"


_FORMS: TypeAdapter[RunForm] = TypeAdapter(
    Annotated[
        Annotated[WholeRun, Tag("whole")]
        | Annotated[NestedRun, Tag("nested")]
        | Annotated[CodeRun, Tag("code")]
        | Annotated[BranchRun, Tag("branch")],
        Discriminator(_kind_of),
    ]
)
