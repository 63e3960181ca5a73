"""The error tree is what its docstring draws, and every error can be told in one line."""

from __future__ import annotations

import inspect
import re
import traceback
from collections import Counter
from typing import Any

import pytest

from retinue.core import errors
from retinue.core.error_kinds import admission, base, execution, lookups, machine, requests, runs
from retinue.core.errors import (
    AgentUnreachableError,
    CallTimedOutError,
    CallTooDeepError,
    ExecutionFailedError,
    InvalidParametersError,
    Kind,
    Problem,
    RemoteFaultError,
    RetinueError,
    UnknownSkillError,
)
from tests.requirements import requirement

SAMPLES: dict[str, Any] = {
    "str": "sample",
    "str | None": "sample",
    "int": 7,
    "float": 1.5,
    "float | None": 1.5,
    "Mapping[str, Any]": {"a": 1},
    "Any": {"type": "sample"},
    "Sequence[str]": ("one", "two"),
    "Sequence[Problem | str]": (Problem("a.b", "is wrong"),),
    "bool": False,
    "ModelReason": "empty",
}

SHARES_ITS_PARENTS_TYPE = {"InvalidRequestError", "ExecutionFailedError"}
"""The plain form of their branch: the wire needs no second name for it."""


KINDS = "retinue.core.error_kinds."

TOPICS = (base, requests, lookups, admission, execution, runs, machine)
"""The modules of the classes, in the order of the drawing."""


def walk(kind: type[RetinueError]) -> list[type[RetinueError]]:
    here = [child for child in kind.__subclasses__() if child.__module__.startswith(KINDS)]
    return [kind, *(deeper for child in here for deeper in walk(child))]


ALL = walk(RetinueError)


def build(kind: type[RetinueError]) -> RetinueError:
    """An error of this class, from sample values chosen by the annotations of its ``__init__``."""
    given = {
        name: SAMPLES[str(parameter.annotation)]
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.default is inspect.Parameter.empty
    }
    return kind(**given)


def drawn_tree() -> dict[str, str]:
    """Class → parent, as the module's docstring draws it."""
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"([│├└─ ]*)([A-Z]\w+Error)", line):
            level = len(found[1]) // 4
            path[level:] = [found[2]]
            parents[found[2]] = path[level - 1] if level else "Exception"
    return parents


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    real = {kind.__name__: kind.__base__.__name__ for kind in ALL if kind.__base__ is not None}
    assert drawn_tree() == real


def test_every_class_is_offered_where_importers_look() -> None:
    assert {kind.__name__ for kind in ALL} <= set(errors.__all__)
    assert all(getattr(errors, kind.__name__) is kind for kind in ALL)


def test_the_classes_stand_in_the_order_in_which_they_are_drawn() -> None:
    source = "".join(map(inspect.getsource, TOPICS))
    written = re.findall(r"^class (\w+Error)\(", source, re.MULTILINE)
    assert written == list(drawn_tree())


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_error_says_what_happened_in_one_line(kind: type[RetinueError]) -> None:
    error = build(kind)
    assert str(error) == error.message
    assert error.message
    assert "\n" not in error.message
    assert "\n" not in error.remedy
    assert isinstance(error.data, dict)


@requirement("P-27")
@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_error_has_a_machine_name_and_a_kind(kind: type[RetinueError]) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", kind.type)
    assert isinstance(kind.kind, Kind)


def test_a_machine_name_is_shared_only_on_purpose() -> None:
    own = [kind for kind in ALL if kind.__name__ not in SHARES_ITS_PARENTS_TYPE]
    assert [name for name, count in Counter(kind.type for kind in own).items() if count > 1] == []
    for kind in ALL:
        if kind.__name__ in SHARES_ITS_PARENTS_TYPE:
            assert kind.__base__ is not None
            assert kind.type == kind.__base__.type  # type: ignore[attr-defined]


def test_only_a_transport_failure_counts_against_an_agent() -> None:
    assert [kind for kind in ALL if kind.kind.counts_against_health] == [AgentUnreachableError]


@requirement("P-22")
def test_an_unknown_skill_is_named_and_near_ones_are_in_the_data() -> None:
    error = UnknownSkillError("creat_plan", near=["create_plan"], unasked=["http://reg"])
    assert error.message == "Unknown skill: creat_plan"
    assert error.data == {"near": ["create_plan"], "registries_not_asked": ["http://reg"]}
    assert "create_plan" in error.remedy
    assert "http://reg" in error.remedy


@requirement("P-23")
def test_bad_parameters_say_and_list_all_problems() -> None:
    problems = [Problem("requirements", "missing required field 'requirements'"), Problem("n", "too small")]
    error = InvalidParametersError(problems)
    assert error.message == "missing required field 'requirements'; too small"
    assert error.type == "validation_error"
    assert error.data["jsonrpc_code"] == -32602
    assert error.data["errors"] == [problem.as_json() for problem in problems]


@requirement("P-24")
@pytest.mark.parametrize(
    ("raised", "message"),
    [
        (RuntimeError("Claude API timeout"), "Claude API timeout"),
        (ValueError("first line\nsecond line"), "first line"),
        (KeyError(), "KeyError"),
        (RuntimeError("  \n "), "RuntimeError"),
    ],
)
def test_a_failed_execution_tells_one_line_of_what_was_raised(raised: Exception, message: str) -> None:
    error = ExecutionFailedError.from_exception(raised)
    assert error.message == message
    assert error.type == "execution_error"


def test_a_timeout_names_its_layer_and_the_setting_behind_it() -> None:
    error = CallTimedOutError("create_plan", 0.5, layer="door execute", setting="timeouts.door_s")
    assert error.message == "create_plan did not answer within 0.5 s (door execute)"
    assert error.remedy == "raise timeouts.door_s"


@requirement("S-14")
def test_a_chain_that_is_too_deep_carries_trace_depth_and_drawn_path() -> None:
    error = CallTooDeepError("t1", 6, 5, "a:x → b:y", "a → b → a")
    assert error.data == {
        "trace_id": "t1",
        "depth": 6,
        "max_depth": 5,
        "path": "a:x → b:y",
        "cycle": "a → b → a",
    }
    assert "cycle" not in CallTooDeepError("t1", 6, 5, "a:x").data


@pytest.mark.parametrize(
    ("data", "remote_type"),
    [({"type": "timeout"}, "timeout"), ({"type": 5}, "remote_error"), ("text", "remote_error")],
)
def test_a_remote_error_is_classified_by_its_own_type_where_it_has_one(data: Any, remote_type: str) -> None:
    assert RemoteFaultError("plan-agent", -32603, "no", data).remote_type == remote_type


def test_a_traceback_ends_with_the_remedy_also_after_it_was_changed() -> None:
    error = UnknownSkillError("gret", near=["greet"])
    assert traceback.format_exception_only(error)[-1] == "remedy: did you mean greet?\n"
    error.remedy = "serve it"
    assert traceback.format_exception_only(error)[-1] == "remedy: serve it\n"
    assert traceback.format_exception_only(RetinueError("lost"))[-1].endswith("RetinueError: lost\n")
