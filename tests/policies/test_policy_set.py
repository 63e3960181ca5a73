"""Policies as they are loaded: annotations, strict validation, what they read."""

from __future__ import annotations

import cedarpy
import pytest

from retinue.core.errors import InvalidSettingError
from retinue.policies.policy_set import PolicySet, load_policies

CALL = 'principal, action == Retinue::Action::"call", resource'


def load(text: str, **options: object) -> PolicySet:
    return load_policies({"policies/a.cedar": text}, **options)  # type: ignore[arg-type]


def test_a_policy_has_its_id_reason_effect_and_the_arguments_that_it_reads() -> None:
    policies = load(
        f"""
        @id("refunds") @reason("finance decides") @effect("approve") @approvers("owner, token:fin*")
        @expires("2h")
        forbid({CALL}) when {{
            context.args has amount && context.args.amount.greaterThan(decimal("500.0"))
            && context.args has customer.country && context.args.customer.country == "FR"
        }};
        """
    )
    (policy,) = policies.policies
    assert (policy.id, policy.reason, policy.effect) == ("refunds", "finance decides", "approve")
    assert (policy.approvers, policy.expires_s) == (("owner", "token:fin*"), 7200.0)
    assert policy.reads.arguments == {("amount",): "decimal", ("customer", "country"): "text"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"forbid({CALL});", "no @id"),
        (f'@id("a") @efect("approve") forbid({CALL});', "unknown annotation @efect"),
        (f'@id("a") @effect("aprove") forbid({CALL});', "@effect is 'aprove'"),
        (f'@id("a") @effect("approve") permit({CALL});', 'a permit with @effect("approve")'),
        (f'@id("a") @approvers("owner") forbid({CALL});', "@approvers without @effect"),
        (f'@id("a") @effect("approve") @expires("soon") forbid({CALL});', "@expires is 'soon'"),
        (f'@id("a") @mode("wach") forbid({CALL});', "@mode is 'wach'"),
        (f'@id("a") forbid({CALL}); @id("a") forbid({CALL});', "@id 'a' is in policies/a.cedar too"),
        ('@id("a") forbid(principal, action, resource', "not Cedar"),
        ('@id("a") forbid(principal == ?principal, action, resource);', "a template"),
        (f'@id("a") forbid({CALL}) when {{ resource.destructve }};', "attribute `destructve`"),
        (
            f'@id("a") forbid({CALL}) when {{ context.args.amount > 100 }};',
            "optional attribute `args.amount`",
        ),
        (f'@id("a") forbid({CALL}) when {{ context.args == {{a: 1}} }};', "context.args is read as a whole"),
        (f'@id("a") forbid({CALL}) when {{ context == {{a: 1}} }};', "context is read as a whole"),
        (
            f'@id("a") forbid({CALL}) when {{ context.origin.scopes.contains("guest") }};',
            "scopes are known of the principal only",
        ),
        (
            f'@id("a") forbid({CALL}) when {{ (if context.run then context.origin else principal) '
            "has scopes };",
            "scopes are known of the principal only",
        ),
        (
            f'@id("a") forbid({CALL}) when {{ resource.agent["scopes"] == principal.scopes }};',
            "scopes are known of the principal only",
        ),
        (
            f'@id("a") forbid({CALL}) when {{ context.args has a && context.args.a > 1 '
            '&& context.args.a == "x" };',
            "context.args.a is read as integer and text",
        ),
        (
            f'@id("a") forbid({CALL}) when {{ context.args has a.b && context.args.a == "x" }};',
            "read as a value and as a record",
        ),
        (
            f'@id("a") forbid({CALL}) when {{ context.args has "__entity" }};',
            "an argument of such a name",
        ),
        ('@id("a") forbid(principal, action == Retinue::Action::"cal", resource);', "unknown action 'cal'"),
        ('@id("a") forbid(principal == User::"x", action, resource);', "unknown type User"),
        (
            '@id("a") forbid(principal, action, resource in Retinue::Agent::"cafe\u0301");',
            "not in the Unicode form NFC",
        ),
        ('@id("a") forbid(principal, action, resource) when { context.args has a };', "args"),
        (f'@id("a") @effect("limit") @limit forbid({CALL});', "@limit is ''"),
        (f'@id("a") @effect("redact") @results forbid({CALL});', "@results is empty"),
        (f'@id("a") @effect("approve") @expires forbid({CALL});', "@expires is ''"),
        (f'@id("a") @effect forbid({CALL});', "@effect is ''"),
    ],
)
def test_a_set_that_is_not_valid_is_refused_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(InvalidSettingError) as refused:
        load(text)
    assert problem in refused.value.message
    assert refused.value.message.startswith("policies/a.cedar")
    assert refused.value.remedy


def test_equal_files_groups_and_defaults_have_an_equal_digest() -> None:
    text = f'@id("a") forbid({CALL});'
    assert load(text).digest == load(text).digest
    others = [load(text + " "), load(text, default="deny"), load(text, groups={"g": ["local"]})]
    assert len({load(text).digest, *(other.digest for other in others)}) == 4


def test_scopes_of_the_caller_and_arguments_of_that_name_are_read() -> None:
    text = """principal.scopes.contains("guest") && context.args has scopes
        && context.args.scopes.contains("x") && context.args has a.scopes && context.args.a.scopes == "y" """
    (policy,) = load(f'@id("a") forbid({CALL}) when {{ {text} }};').policies
    assert policy.reads.arguments == {("scopes",): "texts", ("a", "scopes"): "text"}


def test_a_large_file_is_parsed_in_parts_and_an_error_names_its_place_in_the_whole() -> None:
    def write(number: int, condition: str = '"a;\\"b" == "//;"') -> str:
        return f'// one; "two\n@id("p{number}") forbid(principal, action, resource) when {{ {condition} }};\n'

    text = "".join(map(write, range(60)))
    policies = load_policies({"p.cedar": text}).policies
    assert [policy.id for policy in policies] == [f"p{number}" for number in range(60)]
    assert policies[59].body == load_policies({"p.cedar": write(59)}).policies[0].body
    broken = text + write(60, "1 +")
    with pytest.raises(InvalidSettingError, match=r"p\.cedar: not Cedar") as refused:
        load_policies({"p.cedar": broken})
    with pytest.raises(ValueError) as told:  # the text of the parser is compared
        cedarpy.policies_to_json_str(broken)
    assert str(told.value) in refused.value.message
