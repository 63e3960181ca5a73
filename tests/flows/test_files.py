"""Files in workflows in Python: saved once, and passed on by their links."""

from __future__ import annotations

from typing import Any

import pytest

from retinue import Agent, Artifact, InvalidSettingError, Run, workflow
from retinue.core.errors import StepFailedError
from retinue.testing import MemoryArtifacts, run_workflow

agent = Agent("file-agent")


@agent.skill
async def shout(file: Artifact) -> str:
    """Returns a file in capitals."""
    return (await file.read()).decode().upper()


@workflow
async def copy_twice(run: Run, file: Artifact) -> dict[str, Any]:
    """Saves the capitals of a file, and its first letter."""
    content = await file.read()
    text = await run.call("shout", file=file)
    whole, first = await run.gather(
        run.save(text.encode(), "text/plain", name="../whole.txt"), run.save(content[:1])
    )
    assert await whole.read() == text.encode()
    return {"whole": whole, "first": first}


async def test_a_run_saves_files_and_reads_them_after_a_crash_at_every_step() -> None:
    artifacts = MemoryArtifacts()
    file = await artifacts.save(b"abc")
    for crash in (False, True):
        ended = await run_workflow(
            copy_twice,
            {"file": file.to_json()},
            agents=[agent],
            artifacts=artifacts,
            crash_at_every_step=crash,
        )
        links = ended.get()
        assert (links["whole"]["name"], links["whole"]["media_type"]) == ("whole.txt", "text/plain")
        assert await Artifact.of(links["whole"], artifacts).read() == b"ABC"
        assert await Artifact.of(links["first"], artifacts).read() == b"a"
        assert {step.step for step in ended.steps} >= {"shout", "save", "save-2"}


@workflow
async def save_missing(run: Run) -> Any:
    """Saves a file that is not there."""
    return await run.save("/nowhere/at-all.txt")


async def test_a_file_that_cannot_be_read_fails_its_step() -> None:
    ended = await run_workflow(save_missing, {})
    with pytest.raises(StepFailedError, match="cannot be read"):
        ended.get()


async def test_a_run_without_a_store_says_so() -> None:
    from retinue.flows.run import Run as Handle
    from retinue.testing import MemoryCaller
    from retinue.workflows.interpreter.frame import Tools
    from retinue.workflows.library import Library
    from retinue.workflows.runs.records import RunRequest

    run = Handle(None, RunRequest("x", {}, None), Tools(MemoryCaller()), Library())  # type: ignore[arg-type]
    assert run.artifacts is None
    with pytest.raises(InvalidSettingError, match="no store of artifacts"):
        run.save(b"x")
