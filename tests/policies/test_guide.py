"""The ten policies of the guide, each with a call that it decides and one that it lets pass."""

from __future__ import annotations

import re
from typing import Any

import pytest

from retinue.policies.cases import parse_cases, run_cases
from retinue.policies.policy_set import load_policies
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "guides" / "policies.md").read_text("utf-8")
TEXTS = re.findall(r"^```cedar\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
GROUPS = {"guests": ["token:guest"], "testers": ["token:tester"], "models": ["claude"]}
SET = load_policies({str(number): text for number, text in enumerate(TEXTS)}, groups=GROUPS)

NIGHT, DAY = "2026-11-26T03:00:00Z", "2026-11-26T12:00:00Z"
READS, RUNS, DESTROYS = ({name: True} for name in ("read_only", "runs_code", "destructive"))
PAYMENT, PAYOUT, MODEL = ({"tags": [tag]} for tag in ("payment", "payout", "model"))
MAIL = {"call": "mail/send"}


def refund(amount: float, **expected: Any) -> dict[str, Any]:
    return {"call": "bank/refund", "arguments": {"amount": amount}, **expected}


CASES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("refund-limit", "deny", refund(5000.5), refund(500, expect="limit")),
    (
        "1-large-refunds",
        "approve",
        refund(500.01, policies=["1-large-refunds", "1-refunds-in-pieces"]),
        refund(500, expect="limit"),
    ),
    ("1-refunds-in-pieces", "limit", refund(5), {}),
    ("2-no-destruction", "approve", {"skill": DESTROYS}, {}),
    ("3-guests-read", "deny", {"caller": "token:guest", "action": "list"}, {"caller": "token:ann"}),
    (
        "3-guests-everywhere",
        "deny",
        {"caller": "clerk", "origin": "token:guest"},
        {"caller": "clerk"},
    ),
    ("4-two-persons", "approve", {"skill": PAYOUT}, {}),
    ("5-own-servers", "redact", {"skill": {"trust": "imported"}}, {}),
    ("6-models-alone", "deny", {"caller": "claude", "skill": MODEL}, {"caller": "planner", "skill": MODEL}),
    ("7-day-hours", "deny", {"now": NIGHT, "skill": PAYMENT}, {"now": DAY, "skill": PAYMENT}),
    ("8-five-mails", "limit", MAIL, {"call": "mail/read"}),
    ("9-after-foreign-text", "deny", {"foreign": ["web"], "skill": RUNS}, {"sources": ["x"], "skill": RUNS}),
    ("10-canary", "deny", {"call": "canary/x"}, {"call": "canary/x", "caller": "token:tester"}),
    (
        "10-canary",
        "deny",
        {"call": "canary/notes://x", "action": "read"},
        {"call": "notes/notes://x", "action": "read"},
    ),
]


def test_each_policy_of_the_guide_has_a_case() -> None:
    assert {case[0] for case in CASES} == {policy.id for policy in SET.policies}


@pytest.mark.parametrize(
    ("policy", "verdict", "hit", "passes"),
    CASES,
    ids=[f"{case[0]}-{number}" for number, case in enumerate(CASES)],
)
def test_each_policy_of_the_guide_decides_what_it_says(
    policy: str, verdict: str, hit: dict[str, Any], passes: dict[str, Any]
) -> None:
    cases = [
        {"call": "docs/write", "expect": verdict, "policies": [policy], **hit},
        {"call": "docs/write", "expect": "allow", **passes},
    ]
    assert [result.problem for result in run_cases(SET, parse_cases(policy, cases))] == ["", ""]
