"""Reading ahead: a batch for all who ask, the rest one by one, and never much more than is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from retinue.core.errors import DigestMismatchError
from retinue.oci.codec.artifacts import Artifact, card_artifact, parse_envelope, render_artifact
from retinue.oci.codec.bulk import Pulled
from retinue.oci.codec.reference import Reference, digest_of
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.registry import publish_card
from retinue.oci.source import BATCH, ReadAhead

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
RAW = render_artifact(
    card_artifact("x", b'{"name": "x"}', version=None, skills=[], created=NOON)
).manifest_bytes
ARTIFACT = parse_envelope(RAW, where="x").open(b'{"name": "x"}')


@dataclass
class ScriptedRegistry(LayoutRegistry):
    """Gives ``answers`` in turn, then artifacts for all; notes what it was asked for."""

    answers: list[Pulled] = field(default_factory=list)
    batches: list[list[str]] = field(default_factory=list)
    single: list[str] = field(default_factory=list)
    at_once: int = 0

    async def pull_many(self, references: Sequence[Reference]) -> Pulled:
        self.at_once += 1
        assert self.at_once == 1
        self.batches.append([one.repository for one in references])
        try:
            await asyncio.sleep(0)
        finally:
            self.at_once -= 1
        return self.answers.pop(0) if self.answers else dict.fromkeys(self.batches[-1], ARTIFACT)

    async def pull_if_changed(self, reference: Reference, known_digest: str | None) -> Artifact | None:
        self.single.append(reference.repository)
        return None


def refs(count: int) -> list[Reference]:
    return [Reference(f"agents/a{n:04}", tag="v1", digest=digest_of(b"")) for n in range(count)]


async def take(ahead: ReadAhead, references: list[Reference], workers: int = 16) -> list[Artifact | None]:
    waiting = iter(references)

    async def work() -> list[Artifact | None]:
        return [await ahead.pull_if_changed(reference, None) for reference in waiting]

    return [one for found in await asyncio.gather(*(work() for _ in range(workers))) for one in found]


async def test_all_are_fetched_in_batches_one_after_the_other() -> None:
    registry, wanted = ScriptedRegistry(), refs(3 * BATCH + 5)
    assert await take(ReadAhead(registry, wanted), wanted) == [ARTIFACT] * len(wanted)
    assert [len(batch) for batch in registry.batches] == [BATCH, BATCH, BATCH, 5]
    assert registry.single == []


async def test_what_is_not_asked_for_is_not_fetched_without_end() -> None:
    registry, wanted = ScriptedRegistry(), refs(9 * BATCH)
    ahead = ReadAhead(registry, wanted)
    for reference in wanted[:BATCH]:
        await ahead.pull_if_changed(reference, None)
    assert len(registry.batches) == 2


async def test_what_an_answer_leaves_out_comes_with_the_next_batch() -> None:
    wanted = refs(4)
    first: Pulled = {wanted[0].repository: ARTIFACT, wanted[1].repository: None}
    registry = ScriptedRegistry(answers=[first])
    assert await take(ReadAhead(registry, wanted), wanted, 1) == [ARTIFACT, None, ARTIFACT, ARTIFACT]
    assert registry.batches[1] == [one.repository for one in wanted[2:]]
    assert registry.single == [wanted[1].repository]


async def test_after_an_empty_answer_all_are_pulled_one_by_one() -> None:
    registry, wanted = ScriptedRegistry(answers=[{}]), refs(2 * BATCH)
    await take(ReadAhead(registry, wanted), wanted)
    assert len(registry.batches) == 1
    assert sorted(registry.single) == [one.repository for one in wanted]


async def test_an_error_is_raised_where_its_repository_is_asked_for() -> None:
    wanted = refs(2)
    error = DigestMismatchError("agents/a0000:v1", "sha256:a", "sha256:b")
    answers: list[Pulled] = [{wanted[0].repository: error, wanted[1].repository: ARTIFACT}]
    ahead = ReadAhead(ScriptedRegistry(answers=answers), wanted)
    assert await ahead.pull_if_changed(wanted[1], None) is ARTIFACT
    with pytest.raises(DigestMismatchError):
        await ahead.pull_if_changed(wanted[0], None)


async def test_a_cancelled_reader_leaves_the_others_reading() -> None:
    registry, wanted = ScriptedRegistry(), refs(3)
    ahead = ReadAhead(registry, wanted)
    first = asyncio.create_task(ahead.pull_if_changed(wanted[0], None))
    second = asyncio.create_task(ahead.pull_if_changed(wanted[1], None))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await second is ARTIFACT


async def test_a_registry_that_knows_no_batches_is_asked_one_by_one(tmp_path: Path) -> None:
    layout = LayoutRegistry(tmp_path)
    await publish_card(layout, "plan", b'{"name": "plan"}', version=None, skills=[], created=NOON)
    reference = Reference("agents/plan", tag="v1", digest=await layout.find_digest(Reference("agents/plan")))
    found = await ReadAhead(layout, [reference]).pull_if_changed(reference, None)
    assert found is not None
    assert found.content == b'{"name": "plan"}'
