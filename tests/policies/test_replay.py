"""Replays of past calls: the same facts decide as at the call, and what is not known is never guessed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from unittest.mock import AsyncMock
from zoneinfo import ZoneInfo

import pytest

from retinue.approvals.records import Approval, ApprovalStore, MemoryApprovals
from retinue.core.call import Call, Hop, Principal, TraceContext
from retinue.core.record import Hints, Listing, Skill
from retinue.guards.call_guards import CallGuards, GuardRule
from retinue.guards.guard import SensitiveGuard
from retinue.hub.policies import CurrentPolicies, ModeSwitch, PastMesh, PolicyBook
from retinue.mesh.directory.directory import Directory
from retinue.mesh.observing.events import EventBus, record_calls
from retinue.mesh.permissions import Access
from retinue.policies.decision import Engine
from retinue.policies.entities import Resource, TeamScope
from retinue.policies.gate import Gate
from retinue.policies.history.past_calls import PastCall, read_past_call
from retinue.policies.history.replay import KnownSkill, Replay, Replayed, ReplayReport
from retinue.policies.history.suggesting import Usage
from retinue.policies.policy_set import load_policies
from retinue.policies.recording import InputRecorder
from tests.mesh.scripted import ScriptedLookup, make_call, make_dispatcher, make_listing, make_skill

BOB = Principal("token:bob", "token", frozenset({"exposed", "mesh"}))
PAY = Skill("pay", hints=Hints(destructive=True), tags=("payment",))
BANK = make_listing("bank", PAY, digest="sha256:" + "ab" * 32)
ANY = 'principal, action == Retinue::Action::"call", resource'
READS_AMOUNT = f'@id("large") forbid({ANY}) when {{ context.args has amount && context.args.amount > 500 }};'


async def make_past(
    call: Call, policies: str = "", *, is_old: bool = False, calls: int = 1, **fields: Any
) -> tuple[PastCall, Mapping[str, Any]]:
    """The call as the audit of a hub with these policies has it after it was made, and its row."""
    rows: list[dict[str, Any]] = []
    inputs: list[Mapping[str, Any]] = []
    bus = EventBus()
    bus.subscribe(record_calls(lambda row: rows.append(dict(row))))
    opening, teams = fields.pop("open_approvals", None), fields.pop("teams", None)
    gate = Gate(Engine(load_policies({"p.cedar": policies}, teams=teams)), "enforce", opening)
    gate.recorder = InputRecorder(inputs.append)
    dispatcher, _, _ = make_dispatcher(
        BANK, acts={"bank": [{}]}, events=bus, check_policies=gate.check, **fields
    )
    for _ in range(calls):
        await dispatcher.dispatch(call)
    row = [row for row in rows if row["type"] == "CALL:ENDED"][-1]
    if is_old:
        del row["facts"]
    past = read_past_call(row, inputs[0] if inputs else None)
    assert past is not None
    return past, row


def replay(text: str, past: PastCall, *, knows: bool = True, **options: Any) -> Replayed:
    skills = {past.key: KnownSkill(Resource.of(BANK, PAY), is_same=True)} if knows else {}
    return Replay(load_policies({"new.cedar": text}, **options), skills).decide(past)


def pay(amount: Any = None, **more: Any) -> Call:
    return make_call("pay", {} if amount is None else {"amount": amount}, principal=BOB, **more)


async def test_a_replay_decides_by_the_arguments_that_policies_have_read() -> None:
    for amount, verdict in [(900, "deny"), (100, "allow"), (None, "allow")]:
        past, _ = await make_past(pay(amount), READS_AMOUNT)
        assert past.past == verdict
        assert replay(READS_AMOUNT.replace("large", "other"), past).verdict == verdict
        assert replay(READS_AMOUNT.replace("500", "1000"), past).verdict == "allow"


async def test_refusals_by_guards_and_by_persons_are_no_denials_by_policies() -> None:
    class Refusing(MemoryApprovals):
        """A store whose approver says no to everything."""

        async def ask(self, *arguments: Any, **options: Any) -> Approval:
            asked = await super().ask(*arguments, **options)
            return asked if asked.state != "open" else await self.answer(asked.id, "no", "owner")

    store = Refusing()

    async def open_store() -> ApprovalStore:
        return store

    denying = CallGuards([GuardRule("secrets", SensitiveGuard(arguments="deny"))])
    key = make_call("pay", {"amount": 900, "password": "hunter2"}, principal=BOB)
    past, _ = await make_past(key, guards=denying)
    assert (past.past, past.is_refused) == ("allow", True)
    asks = READS_AMOUNT.replace("forbid", '@effect("approve") forbid')
    past, row = await make_past(pay(900), asks, open_approvals=open_store)
    assert (past.past, past.is_refused, row["error"]) == ("approve", True, "policy_denied")
    past, row = await make_past(pay(900), READS_AMOUNT)
    assert (past.past, past.is_refused, row["policy"]["ids"]) == ("deny", True, ["large"])


async def test_an_argument_that_no_policy_has_read_is_not_guessed() -> None:
    past, _ = await make_past(pay(900))
    decision = replay(READS_AMOUNT, past)
    assert decision[:3] == ("cannot_tell", ("large",), "large: args.amount is not recorded")


@pytest.mark.parametrize(
    ("condition", "verdict"),
    [
        ("resource.read_only && context.args has amount && context.args.amount > 500", "allow"),
        ("resource.destructive && context.args has amount && context.args.amount > 500", "cannot_tell"),
        ("resource.destructive || (context.args has amount && context.args.amount > 500)", "cannot_tell"),
        ("!(resource.destructive || (context.args has amount && context.args.amount > 500))", "allow"),
        ('context.chain.contains(Retinue::Agent::"web") && context.args has amount', "allow"),
    ],
)
async def test_an_unknown_argument_does_not_matter_where_the_rest_of_a_condition_decides(
    condition: str, verdict: str
) -> None:
    past, _ = await make_past(pay(900))
    assert replay(f'@id("p") forbid({ANY}) when {{ {condition} }};', past).verdict == verdict
    # as it was at the call, or unknown, never the contrary
    true_past, _ = await make_past(pay(900), f'@id("p") forbid({ANY}) when {{ {condition} }};')
    assert verdict in ("cannot_tell", true_past.past)


async def test_a_certain_policy_decides_beside_an_uncertain_one() -> None:
    past, _ = await make_past(pay(900))
    sure = f'@id("sure") forbid({ANY}) when {{ resource in Retinue::Tag::"payment" }};'
    assert replay(READS_AMOUNT + sure, past)[:2] == ("deny", ("sure",))
    asks = f'@id("ask") @effect("approve") forbid({ANY}) when {{ resource.destructive }};'
    unsure = '@effect("approve") ' + READS_AMOUNT
    assert replay(asks + unsure, past)[:2] == ("approve", ("ask",))
    assert replay(unsure, past).verdict == "cannot_tell"
    # without a permit that may apply, the default denies whatever the arguments were
    assert replay(unsure, past, default="deny")[:3] == ("deny", (), "no policy permits it")
    permits = READS_AMOUNT.replace("forbid", "permit")
    assert replay(permits, past, default="deny").verdict == "cannot_tell"


async def test_a_secret_argument_is_not_recorded_and_not_guessed() -> None:
    reads = f'@id("key") forbid({ANY}) when {{ context.args has token && context.args.token like "sk-*" }};'
    call = make_call("pay", {"token": "sk-proj-" + "A1b2C3d4" * 4}, principal=BOB)
    past, _ = await make_past(call, reads)
    assert "A1b2C3d4" not in str(past)
    assert replay(reads, past).reason == "key: args.token is masked"
    # whether there was one is known
    has = f'@id("has") forbid({ANY}) when {{ context.args has token }};'
    assert replay(has, past).verdict == "deny"


async def test_the_facts_of_a_row_are_those_that_the_gate_saw() -> None:
    trace = TraceContext("t" * 32, depth=1, path=(Hop("web", "read"),), trusted=True)
    call = pay(trace=trace)
    policies = {
        "scopes": f'@id("p") forbid({ANY}) when {{ principal.scopes.contains("mesh") }};',
        "chain": f'@id("p") forbid({ANY}) when {{ context.chain.contains(Retinue::Agent::"web") }};',
        "trusted": f'@id("p") forbid({ANY}) when {{ context.trusted }};',
        "run": f'@id("p") forbid({ANY}) unless {{ context.run }};',
    }
    for fact, text in policies.items():
        past, _ = await make_past(call, text)
        assert past.past == "deny"
        assert replay(text, past).verdict == "deny", fact
        old, _ = await make_past(call, text, is_old=True)
        assert replay(text, old)[:3] == ("cannot_tell", ("p",), f"p: {fact} is not in rows of this age")


async def test_facts_that_no_row_has_are_not_guessed() -> None:
    past, _ = await make_past(pay())
    for condition in (
        "!context.foreign.isEmpty()",
        "context has dollars_left",
        "context has calls_left && context.calls_left < 5",
    ):
        text = f'@id("p") forbid({ANY}) when {{ {condition} }};'
        assert replay(text, past)[:2] == ("cannot_tell", ("p",)), condition


async def test_hours_and_days_of_past_calls_are_those_of_the_zone() -> None:
    past, _ = await make_past(pay())
    past = replace(past, began_at=datetime(2026, 11, 26, 23, 30, tzinfo=UTC))  # Friday 00:30 in Zurich
    for condition, zones in (("hour < 6", ["Europe/Zurich"]), ("weekday == 4", ["UTC"])):
        policies = load_policies({"p.cedar": f'@id("p") forbid({ANY}) when {{ context.{condition} }};'})
        skills = {past.key: KnownSkill(Resource.of(BANK, PAY), is_same=True)}
        for zone in ("UTC", "Europe/Zurich"):
            verdict = Replay(policies, skills, zone=ZoneInfo(zone)).decide(past).verdict
            assert verdict == ("deny" if zone in zones else "allow"), (condition, zone)


async def test_a_skill_that_no_listing_has_now_is_told_by_its_names_only() -> None:
    past, _ = await make_past(pay())
    by_name = '@id("n") forbid(principal, action, resource == Retinue::Skill::"bank/pay");'
    by_tag = '@id("t") forbid(principal, action, resource in Retinue::Tag::"payment");'
    by_hint = f'@id("h") forbid({ANY}) when {{ resource.destructive }};'
    assert replay(by_name, past, knows=False).verdict == "deny"
    for text in (by_tag, by_hint):
        assert replay(text, past, knows=False).verdict == "cannot_tell"
        assert replay(text, past).verdict == "deny"


async def test_a_report_groups_the_calls_that_a_set_decides_otherwise() -> None:
    report = ReplayReport()
    for amount in (900, 800, 100):
        past, _ = await make_past(pay(amount), READS_AMOUNT.replace("forbid", '@mode("watch") forbid'))
        report.add(past, replay(READS_AMOUNT, past))
    shown = report.as_json()
    assert shown["counts"] == {
        **dict.fromkeys(shown["counts"], 0),
        "same": 1,
        "denied": 2,
    }
    assert [(row["calls"], row["caller"], row["skill"], row["policies"]) for row in shown["rows"]] == [
        (2, "token:bob", "bank/pay", ["large"])
    ]


def test_refused_calls_that_never_reached_the_policies_are_no_past_calls() -> None:
    row = {"agent": "bank", "status": "refused", "error": "unknown_skill"}
    assert read_past_call(row, None) is None
    assert read_past_call({"agent": None}, None) is None


async def test_a_suggested_set_permits_what_was_called_and_nothing_else() -> None:
    ann, odd = replace(BOB, id="token:ann"), replace(BOB, id='jwt:"ö"\\x')
    calls = [await make_past(replace(pay(), principal=caller)) for caller in (BOB, BOB, ann, odd)]
    usage = Usage({past.key: KnownSkill(Resource.of(BANK, PAY), is_same=True) for past, _ in calls})
    for past, _ in calls:
        usage.add(past)
    groups = {"payers": ["token:ann", "token:bob"], "all": ["token:*"], "more": ["token:ann", "token:eve"]}
    text = usage.render(groups, calls[0][0].began_at)
    assert "// 3 calls, the last one" in text
    policies = load_policies({"suggested.cedar": text}, groups=groups, default="deny")
    assert [policy.body.principal["op"] for policy in policies.policies] == ["in", "=="]
    assert all(replay(text, past, groups=groups, default="deny").verdict == "allow" for past, _ in calls)
    eve, _ = await make_past(replace(pay(), principal=replace(BOB, id="token:eve")))
    assert replay(text, eve, groups=groups, default="deny").verdict == "deny"


async def test_calls_beyond_a_limit_are_counted_in_the_order_of_their_times() -> None:
    text = f'@id("few") @effect("limit") @limit("2 per hour by principal") forbid({ANY});'
    past, _ = await make_past(pay())
    runner = Replay(load_policies({"new.cedar": text}), {past.key: KnownSkill(Resource.of(BANK, PAY), True)})
    times = [timedelta(minutes=minute) for minute in (0, 10, 20, 61)]
    verdicts = [runner.decide(replace(past, began_at=past.began_at + at)).verdict for at in times]
    assert verdicts == ["limit", "limit", "limited", "limit"]
    other = replace(past, caller="token:ann", began_at=past.began_at + times[2])
    assert runner.decide(other).verdict == "limit"


async def test_a_fact_that_no_row_has_is_not_guessed() -> None:
    past, _ = await make_past(pay())
    text = f'@id("p") forbid({ANY}) when {{ context.sources.contains(Retinue::Agent::"web") }};'
    assert replay(text, past)[:3] == ("cannot_tell", ("p",), "p: sources is not recorded")


SHOP = TeamScope("shop", frozenset({"seller"}))


def pay_through(agent: str) -> Call:
    return make_call("pay", {"amount": 900}, principal=replace(BOB, through=agent))


async def test_the_policies_of_a_team_are_recorded_and_replayed_for_calls_of_its_agents() -> None:
    for agent, verdict, named in [("seller", "deny", ("shop/large",)), ("stranger", "allow", ())]:
        past, _ = await make_past(pay_through(agent), READS_AMOUNT, teams={"p.cedar": SHOP})
        assert past.past == verdict
        assert replay(READS_AMOUNT, past, teams={"new.cedar": SHOP})[:2] == (verdict, named), agent
    past, _ = await make_past(pay_through("seller"))
    by_name = f'@id("all") forbid({ANY});'
    assert replay(by_name, past, teams={"new.cedar": SHOP}, knows=False)[:2] == ("deny", ("shop/all",))


class OneAgent:
    """A directory with the bank."""

    async def ensure_fresh(self) -> None:
        pass

    async def iterate_pages(self) -> AsyncIterator[list[str]]:
        yield ["bank"]

    def list_named(self, agent: str) -> list[str]:
        return [agent]

    def open_all(self, names: list[str]) -> list[Listing]:
        return [BANK] if names == ["bank"] else []


async def test_replays_and_checks_with_the_policies_in_force_have_those_of_teams() -> None:
    rows = [(await make_past(pay_through(agent)))[1] for agent in ("seller", "stranger")]
    hub = make_listing("hub", make_skill("call_skill"))
    current = CurrentPolicies({"teams/shop.cedar": f'@id("all") forbid({ANY});'}, {"teams/shop.cedar": SHOP})
    book = PolicyBook(
        lambda: None,
        ScriptedLookup([hub]),
        cast("Directory", OneAgent()),
        Access(),
        PastMesh(lambda since: iter([(row, None) for row in rows]), lambda caller: ()),
        ModeSwitch(lambda: ("enforce", False), AsyncMock()),
        lambda: current,
    )
    for with_current, denied in ((False, 0), (True, 1)):
        replayed = await book.replay(
            {"new.cedar": "// nothing"}, None, "allow", datetime.now(UTC), with_current=with_current
        )
        assert (replayed["policies"], replayed["counts"]["denied"]) == (denied, denied)
    for with_teams in (False, True):
        own = {"own.cedar": '@id("typo") forbid(principal, action, resource in Retinue::Agent::"bnak");'}
        checked = await book.check(own, {}, "allow", with_teams=with_teams)
        assert checked["policies"] == 1 + with_teams
        assert {finding["policy"] for finding in checked["findings"]} == {"typo"}
