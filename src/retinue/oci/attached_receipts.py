"""Receipts in a registry: artifacts that name the manifest of a card as their subject."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from retinue.cards.receipts import (
    MAX_RECEIPT_BYTES,
    RECEIPT_TYPE,
    SignedReceipt,
    parse_receipt,
)
from retinue.core.errors import MalformedArtifactError, ReferenceNotFoundError, RegistryError, RetinueError
from retinue.oci.client.http_registry import HttpRegistry
from retinue.oci.codec.artifacts import Package, rfc3339
from retinue.oci.codec.manifest import (
    CREATED,
    EMPTY_CONFIG,
    EMPTY_JSON,
    MANIFEST_TYPE,
    Descriptor,
    Manifest,
    describe,
    parse_manifest,
    render_descriptor,
    render_manifest,
)
from retinue.oci.codec.reference import Reference, digest_of
from retinue.oci.codec.referrers import subject_of
from retinue.oci.layout.folder_registry import LayoutRegistry

AttachingRegistry = HttpRegistry | LayoutRegistry

ISSUER = "dev.retinue.receipt.issuer"
"""Annotation of a receipt's manifest: the id of the issuer's key, so that others are not fetched."""

MAX_FETCHED = 16
MAX_OF_ISSUER = 4
MAX_REFUSED = 8
_MAX_MANIFEST_BYTES = 4 * MAX_RECEIPT_BYTES


@dataclass(frozen=True, slots=True)
class AttachedReceipts:
    """The receipts at a card, not verified yet; ``refused`` are issuers with the reasons."""

    receipts: Sequence[SignedReceipt] = ()
    refused: Sequence[tuple[str, str]] = ()


async def read_receipts(
    registry: AttachingRegistry, repository: str, digest: str, issuers: Collection[str]
) -> AttachedReceipts:
    """Read the receipts of these keys at the card with this digest, the newest first.

    Raises RegistryError where the list cannot be read; an unreadable receipt is refused.
    """
    rows = await registry.list_referrers(repository, digest, RECEIPT_TYPE)
    chosen, refused = _choose(rows, issuers)
    receipts: list[SignedReceipt] = []
    for row in chosen:
        try:
            receipts.append(await _pull(registry, repository, digest, row))
        except RetinueError as error:
            refused.append((row.annotations[ISSUER], error.message))
    return AttachedReceipts(receipts, refused[:MAX_REFUSED])


async def attach_receipt(
    registry: AttachingRegistry, signed: SignedReceipt, *, replaced: str | None = None
) -> str:
    """Attach a receipt to the card that it names, in place of the one with the digest ``replaced``.

    Returns the digest of its manifest. Raises RegistryError, ReferenceNotFoundError for a card that is gone.
    """
    receipt = signed.receipt
    card = await registry.pull_manifest(Reference(receipt.repository, digest=receipt.digest))
    subject = Descriptor(card.media_type, receipt.digest, len(card.content))
    package = pack_receipt(signed, subject)

    def is_replaced(row: Descriptor) -> bool:
        return row.artifact_type == RECEIPT_TYPE and row.annotations.get(ISSUER) == receipt.issuer

    await registry.push_referrer(receipt.repository, package, is_replaced=is_replaced)
    if replaced is not None and replaced not in (package.digest, receipt.digest):
        # a registry that deletes nothing keeps it; readers take the newest of an issuer
        with suppress(RegistryError, ReferenceNotFoundError):
            await registry.delete(receipt.repository, replaced)
    return package.digest


def pack_receipt(signed: SignedReceipt, subject: Descriptor) -> Package:
    """The artifact of a receipt, whose ``subject`` is the manifest of the card."""
    receipt = signed.receipt
    layer = describe(signed.content, RECEIPT_TYPE, inline=True, title="receipt.json")
    issued = datetime.fromtimestamp(receipt.issued_at, UTC)
    manifest = Manifest(
        EMPTY_CONFIG,
        (layer,),
        RECEIPT_TYPE,
        {ISSUER: receipt.issuer, CREATED: rfc3339(issued)},
        MANIFEST_TYPE,
        {"subject": render_descriptor(subject)},
    )
    raw = render_manifest(manifest)
    blobs = {layer.digest: signed.content, EMPTY_CONFIG.digest: EMPTY_JSON}
    return Package(manifest, raw, digest_of(raw), blobs)


def _choose(
    rows: Sequence[Descriptor], issuers: Collection[str]
) -> tuple[list[Descriptor], list[tuple[str, str]]]:
    """The rows to fetch, and the issuers of others with the reason."""
    chosen: list[Descriptor] = []
    refused: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for row in sorted(rows, key=lambda row: row.annotations.get(CREATED, ""), reverse=True):
        issuer = row.annotations.get(ISSUER, "unknown")[:100]
        if issuer not in issuers:
            refused[issuer] = "its key is not trusted"
        elif row.size_bytes > _MAX_MANIFEST_BYTES:
            refused[issuer] = "it is too large"
        elif len(chosen) < MAX_FETCHED and counts[issuer] < MAX_OF_ISSUER:
            counts[issuer] += 1
            chosen.append(row)
    return chosen, list(refused.items())


async def _pull(registry: AttachingRegistry, repository: str, digest: str, row: Descriptor) -> SignedReceipt:
    where = f"{repository}@{row.digest}"
    stored = await registry.pull_manifest(Reference(repository, digest=row.digest))
    manifest = parse_manifest(stored.content, where=where)
    if subject_of(manifest) != digest:
        raise MalformedArtifactError(where, "its subject is another manifest")
    if len(manifest.layers) != 1 or manifest.layers[0].size_bytes > MAX_RECEIPT_BYTES:
        raise MalformedArtifactError(where, "it has no layer of the size of a receipt")
    layer = manifest.layers[0]
    content = layer.data if layer.data is not None and digest_of(layer.data) == layer.digest else None
    if content is None:
        content = await registry.pull_blob(repository, layer)
    return parse_receipt(content, where=where)
