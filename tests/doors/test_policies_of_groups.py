"""Groups that tokens and JWTs name: a policy for a group binds all that acts for its members."""

from __future__ import annotations

from dataclasses import replace

from retinue.core.call import Principal
from retinue.core.errors import PolicyDeniedError
from retinue.policies.caller_groups import CallerGroups
from retinue.policies.decision import Engine
from retinue.policies.gate import Gate
from retinue.policies.policy_set import load_policies
from retinue.web.issued_tokens import TokenFile
from tests.doors.test_policies import CLERK_STEPS, DENY, STEPS, open_bank
from tests.mcp.clients import sessionless
from tests.mesh.scripted import make_call, make_dispatcher
from tests.system import System, Wire

GUESTS = 'Retinue::Group::"guests"'


async def test_the_group_of_a_token_binds_its_caller_and_all_that_acts_for_it(
    system: System, wire: Wire
) -> None:
    by_caller = DENY.replace("principal,", f"principal in {GUESTS},")
    by_origin = DENY.replace(");", f") when {{ context.origin in {GUESTS} }};").replace(
        "no-refunds", "origin"
    )
    listed = f'@id("list") forbid(principal in {GUESTS}, action == Retinue::Action::"list", resource);'
    bank = await open_bank(system, wire, by_caller + by_origin + listed)
    tokens = TokenFile(system.state.keys)
    issued = {
        name: f"Bearer {tokens.issue(('mesh',), name=name, groups=groups)[1]}"
        for name, groups in (("ann", ("guests", "staff")), ("bob", ("staff",)))
    }
    calls = [
        ("refund", {"amount": 1}),
        ("help_customer", {"amount": 1}),
        ("orchestrate_workflow", {"workflow": STEPS, "input": {}}),
        ("orchestrate_workflow", {"workflow": CLERK_STEPS, "input": {}}),
    ]
    for skill, arguments in calls:
        for name, token in issued.items():
            bank.refunds.clear()
            reply = await wire.call(bank.hub.url, skill, arguments, authorization=token)
            assert len(bank.refunds) == (name == "bob"), (skill, name, reply.body)
    for name, token in issued.items():
        asked, headers = sessionless("tools/list", {})
        reply = await wire.post(f"{bank.hub.url}/agents/bank/mcp", asked, authorization=token, **headers)
        assert (b'"refund"' in reply.body) is (name == "bob")


async def test_the_groups_of_a_jwt_bind_its_subject_and_unknown_ones_deny() -> None:
    rule = f"forbid(principal in {GUESTS}, action, resource);"
    gate = Gate(Engine(load_policies({"p.cedar": f'@id("guests") {rule}'}, groups={})))
    gate.groups = CallerGroups(has_claim=True)
    dispatcher, _, _ = make_dispatcher(check_policies=gate.check)
    guest = Principal("jwt:ann", "token", frozenset({"mesh", "exposed"}), groups=("guests",))
    staff = replace(guest, id="jwt:bob", groups=("staff",))
    unknown = replace(guest, id="jwt:eve", kind="run", groups=())
    refused = (await dispatcher.dispatch(make_call(principal=guest))).error
    assert isinstance(refused, PolicyDeniedError)
    assert refused.policies == ("guests",)
    assert (await dispatcher.dispatch(make_call(principal=staff))).error is None
    # a run of a subject that has called here before
    for known, is_denied in ((guest, True), (staff, False)):
        run = replace(known, kind="run", groups=())
        outcome = await dispatcher.dispatch(make_call(principal=run))
        assert isinstance(outcome.error, PolicyDeniedError) is is_denied
    refused = (await dispatcher.dispatch(make_call(principal=unknown))).error
    assert isinstance(refused, PolicyDeniedError)
    assert "the groups of jwt:eve are not known to this process" in refused.message
