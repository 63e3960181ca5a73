"""Texts at a terminal: printed in place while they are written, with their steps, and not a second time."""

from __future__ import annotations

import pytest

from retinue.cli.terminal_channel import TerminalChannel
from retinue.core.call import TextPiece

Printed = pytest.CaptureFixture[str]


async def test_the_pieces_of_a_text_are_printed_behind_each_other(capsys: Printed) -> None:
    channel = TerminalChannel(asks=False, shows_text=True)
    for text, at in (("One,", 0), ("  ", 4), ("\n\ntwo", 6)):
        await channel.stream_text(TextPiece(text, at, "writer"))
    assert channel.has_shown("One,  \n\ntwo")
    assert capsys.readouterr() == ("", "One,  \n\ntwo\n")
    assert not channel.has_shown("another text")
    assert not channel.has_shown({"text": "One"})
    assert not channel.has_shown("")


async def test_a_line_of_progress_stands_on_its_own(capsys: Printed) -> None:
    channel = TerminalChannel(asks=False, shows_text=True)
    await channel.stream_text(TextPiece("One", 0))
    await channel.progress(0.5, "half")
    await channel.stream_text(TextPiece(" two\n", 3))
    await channel.log("info", "looked")
    assert capsys.readouterr().err == "One\n   50%  half\n two\n  info: looked\n"
    assert channel.has_shown("One two")


async def test_texts_of_steps_say_whose_they_are(capsys: Printed) -> None:
    channel = TerminalChannel(asks=False, shows_text=True)
    for step, text, at in (("a", "x", 0), ("a", "y", 1), ("b", "z", 0), ("a", "w", 2)):
        await channel.stream_text(TextPiece(text, at, "claude", step))
    channel.has_shown("")
    assert capsys.readouterr().err == "  a: xy\n  b: z\n  a: w\n"


@pytest.mark.parametrize("pieces", [(("half of", 0), ("the whole", 0)), (("One", 0), ("the whole", 9))])
async def test_a_text_that_begins_again_counts_and_one_with_a_gap_does_not(
    pieces: tuple[tuple[str, int], ...], capsys: Printed
) -> None:
    channel = TerminalChannel(asks=False, shows_text=True)
    for text, at in pieces:
        await channel.stream_text(TextPiece(text, at))
    assert channel.has_shown("the whole") is (pieces[1][1] == 0)


async def test_a_text_cannot_control_the_terminal(capsys: Printed) -> None:
    channel = TerminalChannel(asks=False, shows_text=True)
    await channel.stream_text(TextPiece("\x1b[2Jred\r\x07\tend", 0, "x", "st\x1b[1mep"))
    channel.has_shown("")
    assert capsys.readouterr().err == "  st [1mep: [2Jred\tend\n"


async def test_without_texts_the_result_has_them(capsys: Printed) -> None:
    channel = TerminalChannel(asks=False)
    await channel.stream_text(TextPiece("One", 0))
    assert not channel.has_shown("One")
    assert capsys.readouterr() == ("", "")
