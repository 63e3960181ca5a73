"""Texts of policies that are too deep or too long: told as an error, and the watch of files goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import cedarpy
import pytest

from retinue.core.errors import InvalidSettingError
from retinue.mesh.permissions import Access
from retinue.parts.process import Process
from retinue.policies import policy_body, policy_set
from retinue.policies.entities import TeamScope
from retinue.policies.policy_body import BoundError, check_bounds, limit_depth
from retinue.policies.policy_set import load_policies
from retinue.runtime.loading.policy_files import PolicyFiles, check_policies, store_policies
from retinue.runtime.loading.publishables import read_target
from retinue.runtime.parts.policies import LoadedPolicies
from retinue.settings_tables import PolicyTable
from tests.policies.test_decision import decide, facts


def forbid(condition: str, policy_id: str = "deep") -> str:
    return f'@id("{policy_id}") @reason("r")\nforbid(principal, action, resource) when {{\n{condition} }};'


def name_users(count: int) -> str:
    return " || ".join(f'principal.name == "token:user{number}"' for number in range(count))


DEEP = {
    "parentheses": ("(" * 800 + "true" + ")" * 800, "24 brackets"),
    "sets": ("[" * 800 + "]" * 800 + " == [1]", "24 brackets"),
    "brackets that close others": ("([" * 400 + "true" + ")" * 400, "24 brackets"),
    "after a comment": ("// until \r" + "(" * 800 + "true" + ")" * 800, "24 brackets"),
    "after a text": (r'"\"(" == "" || ' + "(" * 800 + "true" + ")" * 800, "24 brackets"),
    "if": ("if true then " * 3000 + "true" + " else false" * 3000, "64 times if"),
    "terms": (name_users(600), "200 operators"),
    "sums": ("1" + "+1" * 9000 + " == 1", "200 operators"),
    "conditions": ("true" + " } when { true" * 9000, "200 operators"),
    "attributes": ("context.args" + ".a" * 9000, "64 attributes"),
    "methods": ("[1]" + ".contains(1)" * 9000, "64 attributes"),
}


@pytest.fixture
def unparsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser, which these texts would end with the process, gets none of them."""

    def fail(text: str) -> str:
        raise AssertionError(f"the parser got {len(text)} characters")

    monkeypatch.setattr(cedarpy, "policies_to_json_str", fail)


@pytest.mark.usefixtures("unparsed")
@pytest.mark.parametrize("kind", sorted(DEEP))
def test_a_text_that_would_overflow_the_parser_is_refused_before_it(kind: str) -> None:
    condition, bound = DEEP[kind]
    with pytest.raises(
        InvalidSettingError, match=rf"^policies/a\.cedar: line [34]: more than {bound}"
    ) as refused:
        load_policies({"policies/a.cedar": forbid(condition)})
    assert refused.value.remedy


@pytest.mark.usefixtures("unparsed")
def test_a_text_of_more_than_one_mebibyte_is_refused() -> None:
    with pytest.raises(InvalidSettingError, match=r"^a\.cedar: more than 1,048,576 bytes"):
        load_policies({"a.cedar": "// " + "é" * 600_000})


@pytest.mark.usefixtures("unparsed")
@pytest.mark.parametrize("end", ["", "\\", "\\\n"])
def test_a_quote_that_nothing_closes_is_refused_without_a_search_from_each_quote(end: str) -> None:
    # such a search takes 4 s for 32 kB and over an hour for 1 MiB, and no other thread runs meanwhile
    text = forbid("true") + '\n"' + r"\"" * 15_000 + end
    with pytest.raises(InvalidSettingError, match=r"^a\.cedar: line 4: a text in quotes that has no end"):
        load_policies({"a.cedar": text})


@pytest.mark.usefixtures("unparsed")
def test_more_policies_than_a_set_may_have_are_refused_before_they_are_parsed() -> None:
    with pytest.raises(InvalidSettingError, match=r"^a\.cedar: more than 5,000 policies"):
        load_policies({"a.cedar": "permit(principal,action,resource);" * 5_001})


def test_brackets_and_operators_in_texts_and_comments_do_not_count() -> None:
    check_bounds(
        forbid('principal.name == "' + "(" * 300 + r"\"||" * 300 + '" // ' + "([{ && if" * 300 + "\n")
    )
    with pytest.raises(BoundError):
        check_bounds(forbid('principal.name == "" || ' + "(" * 300))


def test_operators_count_for_each_policy_alone() -> None:
    check_bounds("\n".join(forbid(name_users(150), f"p{number}") for number in range(20)))


CHAIN = name_users(80)


@pytest.mark.parametrize(
    ("caller", "verdict"), [("token:user0", "deny"), ("token:user79", "deny"), ("token:ann", "allow")]
)
@pytest.mark.parametrize(
    "condition",
    [CHAIN, f"!({CHAIN.replace('==', '!=').replace('||', '&&')})", f"(true && ({CHAIN})) == true"],
)
def test_a_chain_of_eighty_terms_is_in_force(condition: str, caller: str, verdict: str) -> None:
    assert decide(forbid(condition), facts(caller=caller)).verdict == verdict


@pytest.mark.parametrize("condition", ["1" + "+1" * 199 + " == 1", "if true then true else " * 40 + "true"])
def test_a_condition_that_stays_too_deep_is_refused_with_its_policy(condition: str) -> None:
    with pytest.raises(
        InvalidSettingError, match=r"^a\.cedar: deep: \d+ expressions within .* 24 is the most"
    ):
        load_policies({"a.cedar": forbid(condition)})


def test_a_tree_that_python_cannot_walk_is_refused() -> None:
    tree: dict[str, Any] = {"Value": 1}
    for _ in range(2000):
        tree = {"+": {"left": tree, "right": {"Value": 1}}}
    with pytest.raises(BoundError, match="2001 expressions"):
        limit_depth({"conditions": [{"kind": "when", "body": tree}]})


def test_what_the_engine_does_not_take_is_told_with_its_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_body, "MAX_DEPTH", 1000)
    with pytest.raises(InvalidSettingError, match=r"^a\.cedar: deep: the engine does not take it"):
        load_policies({"a.cedar": forbid(CHAIN)})


@pytest.mark.usefixtures("unparsed")
def test_no_way_into_the_state_leads_a_deep_text_past_the_bound(tmp_path: Path) -> None:
    deep = forbid("(" * 800 + "true" + ")" * 800)
    with pytest.raises(InvalidSettingError, match="24 brackets"):
        store_policies(PolicyFiles(tmp_path, None, ()), PolicyTable(), "a.cedar", deep)
    with pytest.raises(InvalidSettingError, match="24 brackets"):
        load_policies({"a.cedar": deep}, teams={"a.cedar": TeamScope("t", frozenset({"bank"}))})
    (tmp_path / "a.cedar").write_text(deep)
    with pytest.raises(InvalidSettingError, match="24 brackets"):
        read_target(str(tmp_path / "a.cedar"))


def open_policies(root: Path) -> LoadedPolicies:
    """The policies of a process of which only the state and the switches of calls are needed."""
    process = SimpleNamespace(
        state=SimpleNamespace(root=root, keys=root),
        find=lambda product: None,
        kind="agent",
        dispatcher=SimpleNamespace(access=Access()),
        tables=SimpleNamespace(get=lambda table: table()),
    )
    return LoadedPolicies(cast(Process, process), PolicyTable(files=[]))


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_true():
            await asyncio.sleep(0.005)


def list_ids(loaded: LoadedPolicies) -> list[str]:
    return [] if loaded.gate is None else [policy.id for policy in loaded.gate.engine.policies.policies]


class Panic(BaseException):
    """What an extension in Rust raises for a panic; it is no Exception."""


def raise_panic(*arguments: Any, **options: Any) -> Any:
    raise Panic("index out of bounds")


@pytest.mark.parametrize("kind", ["terms", "groups", "day", "panic", "look"])
async def test_the_watch_goes_on_after_files_that_cannot_be_loaded(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "a.cedar").write_text(forbid('principal.name == "token:eve"', "a"))
    loaded = open_policies(tmp_path)
    loaded.load()
    watching = asyncio.create_task(loaded.watch(0.005))
    if kind == "terms":
        (folder / "b.cedar").write_text(forbid(name_users(600), "b"))
    elif kind == "panic":
        monkeypatch.setattr(policy_set, "find_reads", raise_panic)
        (folder / "b.cedar").write_text(forbid("true", "b"))
    elif kind == "look":
        monkeypatch.setattr(PolicyFiles, "list_files", lambda files: 1 // 0)
    else:
        (folder / "groups.yaml").write_text("[" * 500 if kind == "groups" else "since: 2026-13-45")
    await until(lambda: loaded.problem is not None or watching.done())
    problems = await loaded.find_problems()
    expected = {
        "terms": "policies/b.cedar: line 3: more than 200 operators",
        "groups": "groups.yaml: lists within lists",
        "day": "groups.yaml: not YAML: month must be in 1..12",
        "panic": "policies: not read: Panic: index out of bounds",
        "look": "policies: not read: ZeroDivisionError",
    }
    assert [expected[kind] in problem.reason for problem in problems] == [True]
    assert list_ids(loaded) == ["a"]
    if kind in ("terms", "day"):
        (check,) = check_policies(PolicyTable(files=[]), tmp_path)
        assert (check.status, expected[kind] in check.found) == ("fail", True)
    monkeypatch.undo()
    for name in ("b.cedar", "groups.yaml"):
        (folder / name).unlink(missing_ok=True)
    (folder / "c.cedar").write_text(forbid("true", "c"))
    await until(lambda: list_ids(loaded) == ["a", "c"] or watching.done())
    assert list_ids(loaded) == ["a", "c"]
    assert loaded.problem is None
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
