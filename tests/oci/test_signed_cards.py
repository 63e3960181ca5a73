"""Signed cards in a registry: the signature in the manifest, verified when the card is read."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest

from retinue.cards.signatures import CardSigner, CardVerifier, Policy, SigningKey
from retinue.core.errors import CardSignatureError
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.oci.codec.reference import Reference
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.registry import publish_card
from retinue.oci.source import RegistrySource
from retinue.storage.card_keys import CardKeys

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
CARD = orjson.dumps({"name": "plan-agent", "url": "http://localhost:8001", "skills": [{"id": "plan"}]})


@pytest.fixture
def layout(tmp_path: Path) -> LayoutRegistry:
    return LayoutRegistry(tmp_path / "registry")


@pytest.fixture
def keys(tmp_path: Path) -> CardKeys:
    return CardKeys(tmp_path / "keys")


async def publish(layout: LayoutRegistry, signer: CardSigner | None, over: bytes = CARD) -> None:
    signatures = () if signer is None else [signer.sign(over)]
    await publish_card(
        layout, "plan-agent", CARD, version=None, skills=["plan"], created=NOON, signatures=signatures
    )


def source_of(layout: LayoutRegistry, keys: CardKeys, policy: Policy) -> RegistrySource:
    return RegistrySource("home", layout, verifier=CardVerifier(policy, keys.trusted, keys.revision))


async def test_the_card_keeps_its_bytes_and_the_manifest_holds_the_signature(
    layout: LayoutRegistry, keys: CardKeys
) -> None:
    await publish(layout, CardSigner(keys.signing_key()))
    artifact = await layout.pull(Reference("agents/plan", tag="v1"))
    assert artifact.content == CARD
    assert keys.trusted().verify(artifact.signatures, [artifact.content]).state == "valid"


@pytest.mark.parametrize("policy", ["require", "warn"])
async def test_a_card_signed_with_a_trusted_key_is_listed_as_valid(
    layout: LayoutRegistry, keys: CardKeys, policy: Policy
) -> None:
    await publish(layout, CardSigner(keys.signing_key()))
    (listing,) = (await source_of(layout, keys, policy).read_all()).listings
    assert listing.signature == "valid"


@pytest.mark.parametrize(
    ("signer", "over", "state"),
    [
        (None, CARD, "none"),
        ("own", b"{}", "invalid"),
        ("foreign", CARD, "unknown_key"),
        ("expired", CARD, "invalid"),
    ],
)
async def test_other_cards_are_refused_with_the_reason_or_listed_with_their_state(
    layout: LayoutRegistry, keys: CardKeys, signer: str | None, over: bytes, state: str
) -> None:
    own = keys.signing_key()
    signers = {
        None: None,
        "own": CardSigner(own),
        "foreign": CardSigner(SigningKey.create()),
        "expired": CardSigner(own, valid_days=1, clock=lambda: 1_000_000),
    }
    await publish(layout, signers[signer], over)
    if state != "invalid":
        (listing,) = (await source_of(layout, keys, "warn").read_all()).listings
        assert listing.signature == state
    policies: list[Policy] = ["require", "warn"] if state == "invalid" else ["require"]
    for policy in policies:
        reading = await source_of(layout, keys, policy).read_all()
        assert not reading.listings
        (problem,) = reading.problems
        assert isinstance(problem.error, CardSignatureError)
        assert problem.error.data == {"signature": state}
    (unlooked,) = (await source_of(layout, keys, "off").read_all()).listings
    assert unlooked.signature == "none"


async def test_a_listed_card_that_is_replaced_by_a_forged_one_is_withdrawn(
    layout: LayoutRegistry, keys: CardKeys
) -> None:
    signer = CardSigner(keys.signing_key())
    await publish(layout, signer)
    directory = Directory(MemoryListings(), [source_of(layout, keys, "warn")], ttl_s=0)
    await directory.ensure_fresh()
    assert [entry.name for entry in directory.list_entries()] == ["plan-agent"]
    await publish(layout, signer, b"{}")
    await directory.ensure_fresh()
    assert directory.list_entries() == []
    assert "is not what this state signed" in directory.problems()[0].error.message
    await directory.aclose()


async def test_a_key_that_is_trusted_later_lets_the_card_in_and_forgotten_keeps_it_out(
    layout: LayoutRegistry, keys: CardKeys
) -> None:
    publisher = SigningKey.create()
    await publish(layout, CardSigner(publisher))
    directory = Directory(MemoryListings(), [source_of(layout, keys, "require")], ttl_s=0)
    await directory.ensure_fresh()
    assert directory.list_entries() == []
    keys.trust("friend", {"keys": [publisher.public]})
    await directory.ensure_fresh()
    assert [one.name for one in directory.list_entries()] == ["plan-agent"]
    keys.forget("friend")
    await directory.ensure_fresh()
    assert directory.list_entries() == []
    await directory.aclose()


async def test_the_state_of_a_listing_follows_the_trusted_keys(
    layout: LayoutRegistry, keys: CardKeys
) -> None:
    publisher = SigningKey.create()
    await publish(layout, CardSigner(publisher))
    directory = Directory(MemoryListings(), [source_of(layout, keys, "warn")], ttl_s=0)
    states = []
    for act in (lambda: None, lambda: keys.trust("friend", publisher.public)):
        act()
        await directory.ensure_fresh()
        states.append((await directory.open_named("plan-agent")).signature)
    assert states == ["unknown_key", "valid"]
    await directory.aclose()


def test_the_key_of_a_state_is_made_once_and_readable_by_its_owner_only(
    keys: CardKeys, tmp_path: Path
) -> None:
    made = keys.signing_key()
    assert CardKeys(tmp_path / "keys").signing_key() == made
    assert (tmp_path / "keys" / "card-signing.json").stat().st_mode & 0o777 == 0o600
    assert [owner for owner, _ in keys.trusted().list_keys()] == ["this state"]
