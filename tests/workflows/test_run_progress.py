"""What steps report is kept for those who watch their run, within bounds, and for nobody else."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from retinue.core.call import MAX_WRITER_CHARACTERS, TextPiece
from retinue.mesh.channel import NullChannel
from retinue.workflows.run_progress import (
    KEPT_CHARACTERS,
    KEPT_TEXTS,
    WATCHED_RUNS,
    WATCHED_S,
    RunProgress,
    StepReport,
)


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def progress(clock: Clock) -> RunProgress:
    return RunProgress(clock)


def texts(reports: Sequence[StepReport]) -> list[tuple[str, int, str]]:
    """Step, place and text of each piece."""
    return [(one.step, one.piece.at, one.piece.text) for one in reports if one.piece is not None]


async def write(progress: RunProgress, run_id: str, path: str, *pieces: str) -> None:
    channel, at = progress.open_channel(run_id, path), 0
    for text in pieces:
        await channel.stream_text(TextPiece(text, at, "writer"))
        at += len(text)


async def test_the_step_of_a_run_that_is_not_watched_has_no_channel(progress: RunProgress) -> None:
    channel = progress.open_channel("r", "plan")
    assert type(channel) is NullChannel
    assert not channel.capabilities
    progress.watch("r")
    assert progress.open_channel("r", "plan").capabilities == {"progress"}
    assert type(progress.open_channel("other", "plan")) is NullChannel


async def test_a_reader_who_comes_in_the_middle_gets_the_text_of_the_model_from_its_beginning(
    progress: RunProgress,
) -> None:
    with progress.keep_text("r/child", "turn-1/model") as channel:
        assert channel.capabilities == {"progress"}
        for number in range(1_000):
            await channel.stream_text(TextPiece(f"{number:4}", 4 * number, "claude"))
        progress.watch("other")
        assert not progress.list_after("r", 0)
        progress.watch("r")
        whole = "".join(f"{number:4}" for number in range(1_000))
        assert texts(progress.list_after("r", 0)) == [("child/turn-1/model", 0, whole)]
        await channel.stream_text(TextPiece("!", 4_000, "claude"))
        progress.watch("r")
        assert texts(progress.list_after("r", 0)) == [("child/turn-1/model", 0, f"{whole}!")]


async def test_of_a_long_text_its_end_is_kept_and_of_two_texts_the_second(progress: RunProgress) -> None:
    with progress.keep_text("r", "model") as channel:
        await channel.stream_text(TextPiece("given up", 0, "claude"))
        for number in range(100):
            await channel.stream_text(TextPiece("x" * 1_999 + "y", 2_000 * number, "claude"))
        progress.watch("r")
    ((_, at, text),) = texts(progress.list_after("r", 0))
    assert at + len(text) == 200_000
    assert KEPT_CHARACTERS / 2 < len(text) <= KEPT_CHARACTERS
    assert text.endswith("xy")


async def test_the_texts_of_a_bounded_number_of_calls_are_kept(progress: RunProgress) -> None:
    with ExitStack() as stack:
        for number in range(KEPT_TEXTS):
            assert stack.enter_context(progress.keep_text(f"r{number}", "model")).capabilities
        with progress.keep_text("more", "model") as channel:
            assert not channel.capabilities
        progress.watch("more")
        with progress.keep_text("more", "model") as channel:
            assert channel.capabilities
    with progress.keep_text("r", "model") as channel:
        assert channel.capabilities


async def test_pieces_of_one_text_are_joined_exactly_and_have_their_step(progress: RunProgress) -> None:
    progress.watch("r")
    await write(progress, "r", "plan", "One, ", " ", "\n\ntwo ")
    (report,) = progress.list_after("r", 0)
    assert report.piece == TextPiece("One,  \n\ntwo ", 0, "writer", "plan")
    await write(progress, "r", "plan", "three")
    assert texts([*progress.list_after("r", report.number)]) == [("plan", 0, "three")]
    assert progress.last("r") == progress.list_after("r", 0)[-1].number


async def test_pieces_of_branches_have_the_path_of_their_branch(progress: RunProgress) -> None:
    progress.watch("r")
    left, right = (progress.open_channel(f"r/ask.{name}", "execute") for name in ("a", "b"))
    await left.stream_text(TextPiece("x", 0, "a"))
    await right.stream_text(TextPiece("y", 0, "b"))
    await left.stream_text(TextPiece("z", 1, "a"))
    await left.progress(0.5, "half")
    reports = progress.list_after("r", 0)
    assert texts([*reports]) == [
        ("ask.a/execute", 0, "x"),
        ("ask.b/execute", 0, "y"),
        ("ask.a/execute", 1, "z"),
    ]
    assert (reports[-1].step, reports[-1].fraction, reports[-1].message) == ("ask.a/execute", 0.5, "half")
    # a run that the agent of the step has started itself
    await left.stream_text(TextPiece("inner", 0, "c", "draft"))
    assert progress.list_after("r", reports[-1].number)[0].step == "ask.a/execute/draft"


async def test_a_slow_reader_loses_the_oldest_pieces_and_sees_the_gap(progress: RunProgress) -> None:
    progress.watch("r")
    count = 2 * KEPT_CHARACTERS // 1000
    await write(progress, "r", "plan", *("x" * 1000 for _ in range(count)))
    (report,) = progress.list_after("r", 0)
    assert report.piece is not None
    assert report.piece.at > 0
    assert report.piece.end == count * 1000
    assert len(report.piece.text) <= KEPT_CHARACTERS


async def test_reports_are_forgotten_when_nobody_looks_any_more(progress: RunProgress, clock: Clock) -> None:
    progress.watch("r")
    clock.now = WATCHED_S - 1
    progress.watch("r")
    clock.now = 2 * WATCHED_S - 2
    assert progress.open_channel("r", "plan").capabilities
    await write(progress, "r", "plan", "kept")
    clock.now = 2 * WATCHED_S + 1
    assert type(progress.open_channel("r", "plan")) is NullChannel
    progress.watch("other")
    assert progress.list_after("r", 0) == []


def test_the_number_of_watched_runs_is_bounded(progress: RunProgress) -> None:
    for number in range(WATCHED_RUNS + 1):
        progress.watch(f"r{number}")
    assert not progress.open_channel("r0", "plan").capabilities
    assert progress.open_channel(f"r{WATCHED_RUNS}", "plan").capabilities


async def test_a_watched_run_is_kept_when_later_ones_need_its_place(
    progress: RunProgress, clock: Clock
) -> None:
    for number in range(WATCHED_RUNS):
        progress.watch(f"r{number}")
    channel = progress.open_channel("r0", "plan")
    clock.now = 1
    progress.watch("r0")
    progress.watch("another")
    await channel.stream_text(TextPiece("kept", 0, "writer"))
    assert texts([*progress.list_after("r0", 0)]) == [("plan", 0, "kept")]
    assert not progress.open_channel("r1", "plan").capabilities


async def test_a_running_step_reports_again_once_its_run_is_watched_again(progress: RunProgress) -> None:
    progress.watch("r")
    channel = progress.open_channel("r", "plan")
    for number in range(WATCHED_RUNS):
        progress.watch(f"other{number}")
    await channel.stream_text(TextPiece("lost", 0, "writer"))
    assert progress.list_after("r", 0) == []
    progress.watch("r")
    await channel.stream_text(TextPiece("kept", 4, "writer"))
    await channel.progress(0.5, "half")
    reports = progress.list_after("r", 0)
    assert texts([*reports]) == [("plan", 4, "kept")]
    assert reports[-1].message == "half"


async def test_of_a_piece_that_is_too_long_the_end_is_kept_with_its_place(progress: RunProgress) -> None:
    progress.watch("r")
    text = "".join(chr(ord("a") + number % 26) for number in range(3 * KEPT_CHARACTERS))
    await write(progress, "r", "plan", "before", text, "after")
    (report,) = progress.list_after("r", 0)
    assert report.piece is not None
    whole = f"before{text}after"
    assert report.piece.text == whole[report.piece.at :]
    assert KEPT_CHARACTERS / 2 < len(report.piece.text) <= KEPT_CHARACTERS


async def test_names_and_messages_of_remote_agents_count_as_well(progress: RunProgress) -> None:
    progress.watch("r")
    channel = progress.open_channel("r", "plan")
    name = "n" * MAX_WRITER_CHARACTERS
    for number in range(100):
        await channel.stream_text(TextPiece("x", number, name, name))
    await channel.progress(None, "m" * (2 * KEPT_CHARACTERS))
    reports = progress.watched["r"].reports
    pieces = [report.piece for report in reports if report.piece is not None]
    kept = sum(len(piece.agent) + len(piece.step) for piece in pieces) + sum(
        len(one.message) for one in reports
    )
    assert KEPT_CHARACTERS / 2 < kept <= KEPT_CHARACTERS
    assert TextPiece.from_json({"text": "x", "agent": name}) == TextPiece("x", 0, name)
    assert TextPiece.from_json({"text": "x", "agent": f"{name}n"}) is None
    assert TextPiece.from_json({"text": "x", "step": f"{name}n"}) is None
