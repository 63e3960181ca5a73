"""What lasts in a step think: large results as artifacts."""

from __future__ import annotations

from typing import Any

import orjson

from retinue import Agent, Answer
from retinue.core.errors import StorageFullError
from retinue.testing import MemoryArtifacts, run_workflow
from tests.requirements import requirement
from tests.support.thinking import ScriptedModel, say, think, use

BIG = "".join(f"line {n}: ä\n" for n in range(1, 200_000))


def make_dump(text: Any = BIG) -> Agent:
    agent = Agent("dump", version="1.0.0")

    @agent.skill
    async def everything() -> Answer:
        """Gives everything."""
        return Answer(text)

    return agent


def read(store: MemoryArtifacts, **arguments: Any) -> tuple[str, dict[str, Any]]:
    """A call of read_result for the only artifact in a store."""
    (digest,) = store.digests
    return ("read_result", {"link": f"artifact:{digest}", **arguments})


@requirement("T-14")
async def test_a_large_result_is_kept_once_and_read_in_parts() -> None:
    store = MemoryArtifacts()
    call = use(("dump__everything", {}))
    model = ScriptedModel(
        call,
        lambda request: use(read(store), read(store, offset=2_900_001, length=30), read(store, lines="7-8")),
        lambda request: use(read(store, lines="199990-9999999"), read(store, lines="5000000")),
        call,
        say("ok"),
    )
    run = await run_workflow(
        think(tools=["dump/*"]), agents=[model.agent, make_dump()], artifacts=store, crash_at_every_step=True
    )
    assert run.get() == "ok"
    assert [skill for skill, _ in run.calls].count("everything") == 2
    (digest,) = store.digests
    assert b"".join([piece async for piece in store.open(digest)]) == BIG.encode()
    texts = model.list_results()
    assert f"cut: {len(BIG.encode()):,} bytes in all, a text of {len(BIG):,} characters" in texts[0]
    assert f"artifact:{digest} with read_result" in texts[0]
    assert texts[1].startswith("(bytes 0 to 8,000 of ")
    assert "go on with offset 8000)" in texts[1]
    assert "(bytes 2,900,00" in texts[2]
    assert "\nline 7: ä\nline 8: ä\n" in texts[3]
    assert "line 199999: ä" in texts[4]
    assert "which is the end" in texts[4]
    assert texts[5] == "It has only 200,000 lines."
    assert texts[6] == texts[0]
    assert "[begin of a part of a result" in texts[1]
    assert max(len(orjson.dumps(step.outcome.to_json())) for step in run.steps) < 30_000
    first, second = model.requests[0].tools, model.requests[-1].tools
    assert [tool.name for tool in second] == [*[tool.name for tool in first], "read_result"]
    assert "research/turn-2/read" in [step.step for step in run.steps]


async def test_a_tool_may_answer_20_megabytes() -> None:
    model = ScriptedModel(use(("dump__everything", {})), say("ok"))
    run = await run_workflow(think(tools=["dump/*"]), agents=[model.agent, make_dump("x" * 20_000_000)])
    assert run.get() == "ok"
    assert "cut: 20,000,000 bytes in all" in model.list_results()[0]


@requirement("T-14")
async def test_keep_results_is_the_size_from_which_a_result_is_kept() -> None:
    rows = [{"n": n} for n in range(1_000)]
    model = ScriptedModel(use(("dump__everything", {})), say("ok"))
    store = MemoryArtifacts()
    await run_workflow(
        think(tools=["dump/*"], context={"keep_results": 1_000}),
        agents=[model.agent, make_dump(rows)],
        artifacts=store,
    )
    (digest,) = store.digests
    assert orjson.loads(b"".join([piece async for piece in store.open(digest)])) == rows
    assert "a list of 1,000 items; the first 1,000 bytes follow" in model.list_results()[0]


async def test_only_artifacts_whose_link_came_up_are_read() -> None:
    store = MemoryArtifacts()
    other = await store.save(b"of somebody else")
    given = await store.save(b"\x89PNG\xff\xff")
    model = ScriptedModel(
        use(
            ("read_result", {"link": other.link}),
            ("read_result", {"link": given.link}),
            ("read_result", {"link": given.link, "offset": 6}),
            ("read_result", {}),
        ),
        say("ok"),
    )
    run = await run_workflow(think(f"See {given.link}", tools=[]), agents=[model.agent], artifacts=store)
    assert run.get() == "ok"
    unknown, binary, beyond, wrong = model.list_outcomes()
    assert "is the link of no result here. Known are artifact:" in unknown[0]
    assert binary == ("It cannot be read: it is no text in UTF-8.", True)
    assert beyond == ("The offset 6 is not below its size of 6 bytes.", True)
    assert "'link'" in wrong[0]


async def test_a_result_that_cannot_be_kept_is_cut_and_the_model_is_told() -> None:
    class Full(MemoryArtifacts):
        async def save(self, *args: Any, **named: Any) -> Any:
            raise StorageFullError("the artifact")

    model = ScriptedModel(use(("dump__everything", {})), say("ok"))
    run = await run_workflow(
        think(tools=["dump/*"]), agents=[model.agent, make_dump("x" * 30_000)], artifacts=Full()
    )
    assert run.get() == "ok"
    assert "the rest could not be kept: " in model.list_results()[0]
    assert [tool.name for tool in model.requests[-1].tools] == ["dump__everything"]
